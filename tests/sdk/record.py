"""What must be true of a cell's calls and samples, whatever the client got."""

import base64
import hashlib
import json
import time

import cases
import derive

PATIENCE_S = 20
# What the record says of a failure, by whether the reply was streamed.
KINDS = {"refused": ("refused", "refused"), "busy": ("rate_limited", "rate_limited"), "down": ("unavailable", "unavailable"),
         "inside": ("unavailable", "cut"), "cut": ("unavailable", "cut"), None: ("cancelled", "cancelled")}
# What a wire can't pass on, and says so.
BUDGET = "thinking.budget_tokens was not passed on: how long a policy thinks, its template and max_tokens say"


def settled(gleaner, rollout, count):
    """The rollout's calls once all of them have ended and what became of each is noted."""
    end = time.monotonic() + PATIENCE_S
    while True:
        calls = gleaner.calls(rollout)
        if len(calls) == count and all(has_ended(call) for call in calls):
            return calls
        assert len(calls) <= count and time.monotonic() < end, f"{len(calls)} of {count} calls: {[(c['status'], c['delivered']) for c in calls]}"
        time.sleep(0.02)


def has_ended(call):
    """Whether its end is known and, of a whole reply, what became of it."""
    return call["status"] != "running" and (call["status"] != "done" or call["delivered"] is not None)


def said(message):
    """An assistant's message as [text, reasoning, calls], arguments by their meaning."""
    calls = [[call["function"]["name"], json.loads(call["function"]["arguments"] or "{}")] for call in message.get("tool_calls") or []]
    return [message.get("content") or "", message.get("reasoning") or message.get("reasoning_content") or "", calls]


def scripted(reply, text=None):
    calls = [[call["name"], json.loads(call["arguments"] or "{}")] for call in reply.get("tool_calls", [])]
    return [text if text is not None else reply.get("text") or reply.get("refusal") or "", reply.get("reasoning", ""), calls]


def check_done(cell, calls, sampled):
    case = cell.case
    assert [call["status"] for call in calls] == ["done"] * len(sampled)
    finishes = [case.finish, "stop"][: len(calls)]
    for call, reply, finish, seen in zip(calls, cell.replies, finishes, sampled):
        assert (call["wire"], call["stream"], call["delivered"], call["failure"]) == (cell.wire, cell.streamed, True, None)
        assert (call["capture"]["level"], call["capture"]["reason"]) == ("full", None)
        assert said(call["message"]) == scripted(reply, case.text if reply is cell.replies[0] else None)
        assert call["finish_reason"] == cases.RECORDED[finish]
        assert call["capture"]["prompt_ids"] == seen["prompt_ids"]
        assert call["capture"]["completion_ids"] == seen["ids"]
        assert call["capture"]["logprobs"] == seen["logprobs"]
        assert call["usage"]["completion_tokens"] == len(seen["ids"])
        assert call["notes"] == ([BUDGET] if cell.wire == "messages" and "reasoning" in case.ask else [])


def check_failed(cell, calls):
    (call,) = calls
    assert (call["wire"], call["stream"]) == (cell.wire, cell.streamed)
    assert (call["status"], call["delivered"]) == (cell.case.status, None)
    assert call["failure"]["kind"] == KINDS[cell.case.fails][cell.streamed]
    assert call["failure"]["message"] and call["notes"] == []
    text = said(call["message"])[0] if call["message"] else ""
    assert cell.case.reply["text"].startswith(text)


def check_samples(cell, samples, calls, sampled):
    """The trained ids are those that were sampled, their log-probabilities to the last bit; of failed calls there are none."""
    case = cell.case
    reason = {"done": case.left_out, "failed": "upstream_error", "cancelled": "undelivered"}[case.status]
    assert [(left["call_id"], left["reason"]) for left in samples["left_out"]] == [(call["id"], reason) for call in calls if reason]
    if reason:
        assert samples["samples"] == []
        return
    (sample,) = samples["samples"]
    pairs = [pair for seen in sampled for pair in zip(seen["ids"], seen["logprobs"])]
    spans = [place for span in sample["spans"] for place in range(span["start"], span["end"])]
    assert [(sample["token_ids"][place], sample["logprobs"][place]) for place in spans] == pairs
    assert sample["loss_mask"] == [int(place in set(spans)) for place in range(len(sample["token_ids"]))]
    assert sample["token_ids"] == sampled[-1]["prompt_ids"] + sampled[-1]["ids"]
    assert sample["status"] == ("truncated" if case.finish == "length" else "complete")
    # The same conversation as text.
    assert said(sample["messages"][-1]) == scripted(cell.replies[-1], None if cell.runs_tools else case.text)
    check_images(case, sample)


def check_images(case, sample):
    given = [base64.b64decode(case.ask["image"].partition(",")[2])] if "image" in case.ask else []
    expected = [("image/png", hashlib.sha256(image).hexdigest()) for image in given]
    assert [(image["mime"], image["hash"]) for image in sample["images"]] == expected


def check_request(cell, call, request):
    """What was asked is in the record and went up."""
    case = cell.case
    assert cell.mark in json.dumps([call["messages"], call.get("prompt")])
    upstream = json.dumps(request)
    assert cell.mark in upstream
    assert [tool["function"]["name"] for tool in request.get("tools", [])] == [tool["name"] for tool in case.ask.get("tools", [])]
    if "image" in case.ask:
        assert case.ask["image"] in upstream and case.ask["image"] in json.dumps(call["messages"])
    if "schema" in case.ask:
        asked = request["response_format"]["json_schema"]["schema"]
        assert asked["properties"].keys() == case.ask["schema"]["properties"].keys()
    if "stop" in case.ask:
        assert request["stop"] == case.ask["stop"]
    if "max_tokens" in case.ask:
        assert request.get("max_tokens") == case.ask["max_tokens"]


def check(gleaner, policy, cell, rollout):
    """Record and samples of a cell that was played."""
    case = cell.case
    calls = settled(gleaner, rollout, len(cell.replies))
    sampled = policy.sampled(cell.mark)
    if case.status == "done":
        check_done(cell, calls, sampled)
        assert all(seen["finished"] for seen in sampled)
    else:
        check_failed(cell, calls)
    if case.status == "cancelled":
        assert [seen["hung_up"] for seen in sampled] == [True]
    check_request(cell, calls[0], sampled[0]["request"])
    check_samples(cell, gleaner.samples(rollout), calls, sampled)
    # The same once more, from the raw bytes and by other code.
    derive.check(gleaner.url, rollout["id"], min_trained=1 if case.status == "done" and not case.left_out else 0)
