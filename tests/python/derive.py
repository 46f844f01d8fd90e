#!/usr/bin/env python3
"""Derives a rollout's tokens from the raw bytes of its calls, and compares them with what Gleaner exports.

    derive.py --server http://127.0.0.1:8080 ROLLOUT_ID [--samples samples.jsonl] [--min-trained 1]

Shares no code with Gleaner and needs nothing but Python. It reads what went up and what came back (vLLM's form with
`prompt_token_ids` and `token_ids`, or llama.cpp's with an `id` in each log-probability and a /tokenize answer for the prompt),
and checks every sample: each span's ids and log-probabilities, the context before each span, mask and lengths.
Exit 0 if all of it is the same, else 1 with what differs.
"""

import argparse
import json
import os
import sys
import urllib.error
import urllib.request


class Mismatch(Exception):
    """What Gleaner says is not what the raw bytes say."""


class Api:
    def __init__(self, server):
        self.base = server.rstrip("/") + "/api/v1"

    def bytes(self, path):
        request = urllib.request.Request(self.base + path)
        key = os.environ.get("GLEANER_ADMIN_KEY")
        if key:
            request.add_header("Authorization", f"Bearer {key}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read()

    def json(self, path):
        return json.loads(self.bytes(path))

    def calls(self, rollout):
        after, calls = "", []
        while True:
            page = self.json(f"/rollouts/{rollout}/calls?limit=100{after}")
            calls += page["calls"]
            if not page["next"]:
                return calls
            after = f"&after={page['next']}"


def events(raw):
    """The data of each server-sent event."""
    text = raw.decode("utf-8", errors="replace").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    for block in text.split("\n\n"):
        data = [line[5:].removeprefix(" ") for line in block.split("\n") if line.startswith("data:")]
        if data:
            yield "\n".join(data)


def parts(raw):
    """The JSON objects of a response: one for a whole body, one an event for a stream."""
    if raw.lstrip().startswith(b"{"):
        return [json.loads(raw)]
    return [json.loads(data) for data in events(raw) if data.strip() != "[DONE]"]


class Derived:
    """What the raw bytes of one call say."""

    def __init__(self, response, prompt):
        self.prompt_ids, self.ids, self.logprobs, self.usage = None, [], [], None
        entry_ids, has_token_ids = [], False
        for part in parts(response):
            self.prompt_ids = part.get("prompt_token_ids") or self.prompt_ids
            self.usage = part.get("usage") or self.usage
            for choice in part.get("choices") or []:
                self.prompt_ids = choice.get("prompt_token_ids") or self.prompt_ids
                if choice.get("token_ids") is not None:
                    has_token_ids = True
                    self.ids += choice["token_ids"]
                logprobs = choice.get("logprobs") or {}
                # The old form of completions; where the prompt is echoed, its tokens stand first.
                self.logprobs += (logprobs.get("token_logprobs") or [])[-len(choice.get("token_ids") or [None]):]
                for entry in logprobs.get("content") or []:
                    self.logprobs.append(entry["logprob"])
                    if "id" in entry:
                        entry_ids.append(entry["id"])
        self.form = "vllm" if has_token_ids else "llamacpp" if entry_ids else "none"
        if self.form == "llamacpp":
            self.ids = entry_ids
        if self.prompt_ids is None and prompt:
            self.prompt_ids = json.loads(prompt)["tokens"]

    @property
    def full(self):
        """Whether everything is there that a trainer needs, by the server's own counts."""
        return (
            self.form != "none"
            and self.prompt_ids is not None
            and self.usage is not None
            and len(self.ids) == len(self.logprobs) == self.usage["completion_tokens"]
            and len(self.prompt_ids) == self.usage["prompt_tokens"]
        )


def derive(api, call_id):
    try:
        prompt = api.bytes(f"/calls/{call_id}/prompt")
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        prompt = b""
    return Derived(api.bytes(f"/calls/{call_id}/response"), prompt)


def same(what, ours, theirs):
    if ours != theirs:
        at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
        raise Mismatch(f"{what}: raw bytes and sample differ from place {at} on: "
                       f"{ours[at:at + 5]} (of {len(ours)}) and {theirs[at:at + 5]} (of {len(theirs)})")


def check_sample(sample, derived):
    name = f"sample {sample['id']}"
    ids, mask, logprobs = sample["token_ids"], sample["loss_mask"], sample["logprobs"]
    if not len(ids) == len(mask) == len(logprobs):
        raise Mismatch(f"{name}: lengths differ: {len(ids)}, {len(mask)}, {len(logprobs)}")
    inside, by_call = [False] * len(ids), {}
    for span in sample["spans"]:
        by_call.setdefault(span["call_id"], []).append(span)
        for at in range(span["start"], span["end"]):
            if inside[at]:
                raise Mismatch(f"{name}: spans overlap at {at}")
            inside[at] = True
    for at, (bit, logprob) in enumerate(zip(mask, logprobs)):
        if bit not in (0, 1) or (bit == 1 and not inside[at]):
            raise Mismatch(f"{name}: mask {bit} at {at}, outside every span")
        if (logprob is not None) != inside[at]:
            raise Mismatch(f"{name}: log-probability {logprob} at {at}, inside a span: {inside[at]}")
    for call_id, spans in by_call.items():
        call = derived.get(call_id)
        if call is None or not call.full:
            raise Mismatch(f"{name}: call {call_id} has a span, and its raw bytes do not give every id and log-probability")
        start, end = spans[0]["start"], spans[-1]["end"]
        if any(one["end"] != two["start"] for one, two in zip(spans, spans[1:])):
            raise Mismatch(f"{name}: the spans of call {call_id} have gaps")
        same(f"{name}, ids of call {call_id}", call.ids, ids[start:end])
        same(f"{name}, log-probabilities of call {call_id}", call.logprobs, logprobs[start:end])
        same(f"{name}, context of call {call_id}", call.prompt_ids, ids[:start])
    return sum(mask)


def check(server, rollout, samples_file=None, min_trained=0):
    """Checks one rollout; gives counts of what was compared. Raises Mismatch."""
    api = Api(server)
    calls = api.calls(rollout)
    ended = [call["id"] for call in calls if call["status"] == "done"]
    derived = {call_id: derive(api, call_id) for call_id in ended}
    answer = api.json(f"/rollouts/{rollout}/samples")
    samples, left_out = answer["samples"], {one["call_id"] for one in answer["left_out"]}
    if samples_file:
        with open(samples_file, encoding="utf-8") as lines:
            samples = [sample for sample in map(json.loads, lines) if sample["rollout_id"] == rollout]
    trained = sum(check_sample(sample, derived) for sample in samples)
    in_spans = {span["call_id"] for sample in samples for span in sample["spans"]}
    for call in calls:
        if call["status"] != "running" and call["id"] not in in_spans | left_out:
            raise Mismatch(f"call {call['id']} is in no sample, and nothing says why")
    if trained < min_trained:
        raise Mismatch(f"{trained} trained tokens, at least {min_trained} were expected")
    forms = {}
    for call in derived.values():
        forms[call.form] = forms.get(call.form, 0) + 1
    return {"calls": len(calls), "samples": len(samples), "trained": trained, "forms": forms}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rollout")
    parser.add_argument("--server", required=True, help="base URL of a running gleaner serve")
    parser.add_argument("--samples", help="an exported samples.jsonl; without it, the API's samples")
    parser.add_argument("--min-trained", type=int, default=1, help="fail with fewer trained tokens (1)")
    args = parser.parse_args()
    try:
        counts = check(args.server, args.rollout, args.samples, args.min_trained)
    except Mismatch as mismatch:
        print(f"derive: rollout {args.rollout}: {mismatch}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"derive: can't read rollout {args.rollout} from {args.server}: {error}", file=sys.stderr)
        return 1
    print(f"rollout {args.rollout}: {counts['trained']} trained tokens in {counts['samples']} samples of {counts['calls']} calls "
          f"are what the raw bytes say ({counts['forms']})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
