"""Token in, token out against a real llama.cpp server, whose tiny model is made to sample what no tokenizer would write.

Eighteen conversations of two turns. Each prompt of a second turn must begin with what was sampled, id by id, where encoding the same
messages anew gives other ids for a third of them or more. The server's address comes in GLEANER_TEST_LLAMACPP_URL.
"""

import json
import os

import httpx
import pytest

import programs
import test_llamacpp

URL = os.environ.get("GLEANER_TEST_LLAMACPP_URL")
pytestmark = test_llamacpp.pytestmark

# Everything is left to chance: no truncation, and a temperature at which words fall into odd pieces.
CONFIG = """[policies.default]
tokens = "exact"
tokenizer = "{model}"
[policies.default.sampling]
temperature = 1.3
top_k = 0
top_p = 1.0
min_p = 0.0
"""
ASKS = [
    "Invent six names of monsters, with underscores in them.",
    "Reply with many emoji: 👩‍🚀 é 🇩🇪",
    "Write a line of Perl that nobody can read.",
    "Spell the longest chemical name that you know.",
    "Say hello in Japanese, Arabic and Thai.",
    "Repeat: 🎉🦀👍🏽 🧑🏿‍🦰",
]
THEN = "And another one, please."
CONVERSATIONS = 18
END = "<|im_end|>"


class Llama:
    """The server itself, which knows nothing of Gleaner."""

    def __init__(self):
        self.http = httpx.Client(base_url=URL, timeout=60)

    def post(self, path, **body):
        answer = self.http.post(path, json=body)
        answer.raise_for_status()
        return answer.json()

    def encode(self, text):
        return self.post("/tokenize", content=text, add_special=False, parse_special=True)["tokens"]

    def encode_anew(self, messages):
        """The prompt's ids as a proxy without a memory of what was sampled has them."""
        return self.encode(self.post("/apply-template", messages=messages)["prompt"])

    def model(self):
        """The GGUF file that it serves."""
        return self.http.get("/props").json()["model_path"]


class Call:
    """A call by the bytes that went up and came back."""

    def __init__(self, gleaner, record):
        raw = {kind: json.loads(gleaner.http.get(f"/api/v1/calls/{record['id']}/{kind}").content) for kind in ("upstream", "response")}
        self.id, self.capture = record["id"], record["capture"]
        self.prompt, self.sampled = raw["upstream"]["prompt"], raw["response"]["tokens"]
        self.logprobs = [(entry["id"], entry["logprob"]) for entry in raw["response"].get("completion_probabilities", [])]
        self.lost = len(self.sampled) - len(self.logprobs)
        self.counts = f"{len(self.logprobs)} log-probabilities for {len(self.sampled)} completion ids"
        self.ended = raw["response"]["stop_type"] == "eos"

    def check(self):
        """What was kept is what the bytes say, and that log-probabilities are missing is known."""
        capture = self.capture
        assert (capture["prompt_ids"], capture["completion_ids"]) == (self.prompt, self.sampled)
        if self.lost:
            assert (capture["level"], capture["logprobs"]) == ("ids", [])
            assert capture["reason"] == self.counts
        else:
            assert (capture["level"], list(zip(self.sampled, capture["logprobs"]))) == ("full", self.logprobs)


def converse(gleaner, seed):
    """Two turns; the rollout, its calls and the second turn's messages."""
    rollout = gleaner.rollout()
    client = test_llamacpp.client_of(gleaner, rollout)
    messages = [{"role": "user", "content": ASKS[seed % len(ASKS)]}]
    for limit, said in ((28, THEN), (2, None)):
        reply = client.chat.completions.create(model="any", messages=messages, max_tokens=limit, seed=seed)
        if said:
            messages.append({"role": "assistant", "content": reply.choices[0].message.content})
            messages.append({"role": "user", "content": said})
    calls = [Call(gleaner, record) for record in gleaner.calls(rollout)]
    assert len(calls) == 2
    return rollout, calls, messages


def check_samples(answer, calls):
    """One sample of all that has log-probabilities; a call without is context, and named."""
    named = [(one["call_id"], one["reason"], one["detail"]) for one in answer["left_out"]]
    assert named == [(call.id, "logprobs_incomplete", call.counts) for call in calls if call.lost]
    whole = [call for call in calls if not call.lost]
    if not whole:
        assert answer["samples"] == []
        return
    (sample,) = answer["samples"]
    last = whole[-1]
    assert sample["token_ids"] == last.prompt + last.sampled
    trained = [(id, logprob) for id, bit, logprob in zip(sample["token_ids"], sample["loss_mask"], sample["logprobs"]) if bit]
    assert trained == [pair for call in whole for pair in call.logprobs]
    assert [span["call_id"] for span in sample["spans"]] == [call.id for call in whole]


def test_eighteen_of_eighteen_go_on_from_what_was_sampled(tmp_path):
    llama = Llama()
    broken = lost = whole = tokens = 0
    with programs.serving(URL, tmp_path, CONFIG.format(model=llama.model())) as gleaner:
        for seed in range(1001, 1001 + CONVERSATIONS):
            rollout, calls, messages = converse(gleaner, seed)
            for call in calls:
                call.check()
            first, second = calls
            tail = llama.encode(f"{'' if first.ended else END}\n<|im_start|>user\n{THEN}{END}\n<|im_start|>assistant\n")
            assert second.prompt == first.prompt + first.sampled + tail, f"seed {seed}"
            assert llama.encode_anew(messages[:1]) == first.prompt, f"seed {seed}"
            check_samples(gleaner.samples(rollout), calls)
            assert gleaner.api(f"/rollouts/{rollout['id']}")["drift"] == 0
            anew = llama.encode_anew(messages)
            sequence = first.prompt + first.sampled
            broken += anew[:len(sequence)] != sequence
            lost += sum(call.lost > 0 for call in calls)
            whole += all(call.lost == 0 for call in calls)
            tokens += sum(len(call.sampled) for call in calls)
    print(f"{CONVERSATIONS} conversations, {tokens} tokens: encoding anew breaks {broken}, {lost} calls lost log-probabilities, {whole} are trained whole")
    assert broken >= 6, f"encoding anew breaks {broken}: this shows little"
    assert lost > 0, "no log-probability was lost: this shows nothing of their detection"
    assert whole > 0, "no conversation has all its log-probabilities"
