"""Every wire with every official SDK: what the client got, what is in the record, what is trained."""

import pytest

import cases
import clients
import record


def expected(cell, sampled):
    """What the client must have got of a reply that it got whole."""
    case, reply = cell.case, cell.replies[-1]
    text, reasoning, calls = record.scripted(reply, case.text)
    got = clients.blank() | {"text": text, "reasoning": reasoning, "calls": calls}
    got["finish"] = cases.FINISH[cell.wire]["stop" if cell.runs_tools else case.finish]
    got["usage"] = [len(sampled[-1]["prompt_ids"]), len(sampled[-1]["ids"])]
    if case.finish == "stop_string" and cell.wire == "messages":
        got["stop_sequence"] = "o th"
    if case.finish == "refusal" and cell.wire in ("chat", "responses"):
        got |= {"text": "", "refusal": reply["refusal"]}
    if cell.runs_tools:
        got["ran"] = record.scripted(cell.replies[0])[2]
        got |= {"text": reply["text"], "reasoning": "", "calls": []}
    if case.parsed and (cell.way == "parse" or cell.way == "helper" and cell.wire != "gemini"):
        got["parsed"] = case.parsed
    return got


def failure(cell):
    """The class and the status of an SDK's error, as its documents tell them apart."""
    sdk, fails, language = cases.WIRES[cell.wire], cell.case.fails, cell.language
    inside = fails in ("inside", "cut") and cell.streamed
    if cell.wire == "responses" and inside:
        return "response.failed", "server_error"
    if inside:
        return IN_STREAM[sdk, language]
    kind = "down" if fails in ("inside", "cut") else fails
    code = {"refused": 400, "busy": 429, "down": 503}[kind]
    if sdk == "google-genai":
        return ("ApiError" if language == "node" else "ServerError" if code == 503 else "ClientError"), code
    names = {"refused": "BadRequestError", "busy": "RateLimitError", "down": "InternalServerError"}
    if sdk == "anthropic":
        names["down"] = "ServiceUnavailableError"
    return names[kind], code


IN_STREAM = {
    ("openai", "python"): ("APIError", "upstream_cut"),
    ("openai", "node"): ("APIError", "upstream_cut"),
    ("anthropic", "python"): ("APIStatusError", 200),
    ("anthropic", "node"): ("APIError", None),
    ("google-genai", "python"): ("ServerError", 503),
    ("google-genai", "node"): ("ApiError", 503),
}
SAYS = {"refused": "temperature is out of range", "busy": "too many requests", "down": "no worker lives", "inside": "", "cut": ""}


@pytest.mark.parametrize("cell", list(cases.cells()), ids=lambda cell: cell.id)
def test_cell(field, cell):
    rollout, got = field.play(cell)
    case = cell.case
    if case.status == "done":
        assert got["error"] is None
        assert got == expected(cell, field.policy.sampled(cell.mark))
    else:
        assert case.reply["text"].startswith(got["text"]) and got["finish"] in (None, "failed")
        assert (got["calls"], got["parsed"]) == ([], None)
    if case.fails:
        assert (got["error"]["class"], got["error"]["status"]) == failure(cell)
        assert SAYS[case.fails] in got["error"]["message"]
    # What the policy said of when to come back; Google's SDK for Node shows no headers.
    if case.fails == "busy" and (cell.wire, cell.language) != ("gemini", "node"):
        assert got["error"]["retry_after"] == "7"
    if case.status == "cancelled":
        assert got["error"] and (got["text"] or not cell.streamed)
    record.check(field.gleaner, field.policy, cell, rollout)
