"""The proof: what was exported is what was sampled, and the model itself says so."""

import collections
import dataclasses
import re
import time

import numpy as np

from engine import common, scale
from tokenizer import as_template_knows

# The largest difference between a recorded log-probability and that of a plain forward pass, in nats.
TOLERANCE = 1e-3
NAMES = re.compile(rb'"((?:chatcmpl|cmpl|generate-tokens)-[0-9a-zA-Z-]+)"')
REASONS = {"text_only", "ids_incomplete", "logprobs_incomplete", "constrained", "realigned", "no_output", "undelivered", "interrupted",
           "upstream_error", "foreign", "side_call", "abandoned", "untrained_policy", "over_length", "filtered"}


@dataclasses.dataclass
class Figures:
    """What was found, to be added up and printed."""

    conversations: int = 0
    calls: int = 0
    samples: int = 0
    trained: int = 0
    largest: float = 0.0
    drift: int = 0
    left_out: collections.Counter = dataclasses.field(default_factory=collections.Counter)

    def __add__(self, other):
        return Figures(self.conversations + other.conversations, self.calls + other.calls, self.samples + other.samples,
                       self.trained + other.trained, max(self.largest, other.largest), self.drift + other.drift,
                       self.left_out + other.left_out)

    def __str__(self):
        left_out = ", ".join(f"{count} {reason}" for reason, count in sorted(self.left_out.items())) or "none"
        return (f"{self.trained} tokens checked, largest difference {self.largest:.1e}, {self.samples} samples of {self.conversations} "
                f"conversations ({self.calls} calls), drift {self.drift}, left out: {left_out}")


def prove(table, chats, path):
    """Proves all that is claimed of these conversations' rollouts, and gives the figures."""
    rollouts = list({chat.rollout["id"]: chat.rollout for chat in chats}.values())
    for rollout in rollouts:
        settled(table.gleaner, rollout)
    samples = table.export(rollouts, path)
    figures = Figures(conversations=len(chats), samples=len(samples))
    for sample in samples:
        largest, count = scored(table.family.model, sample)
        assert largest <= TOLERANCE, f"sample {sample['id']}: a log-probability differs from the model's own by {largest}"
        figures.largest, figures.trained = max(figures.largest, largest), figures.trained + count
    log = {name: entry for replica in table.family.replicas for name, entry in replica.sampled().items()}
    for rollout in rollouts:
        calls = all_calls(table.gleaner, rollout)
        figures.calls += len(calls)
        figures.left_out += covered(table, rollout, calls, [one for one in samples if one["rollout_id"] == rollout["id"]], log)
        figures.drift += table.gleaner.api(f"/rollouts/{rollout['id']}")["drift"]
    return figures


def scored(model, sample):
    """Compares a sample's log-probabilities with a plain forward pass over its ids, by the weights that each span says: the largest
    difference, and how many tokens were compared."""
    ids, mask = sample["token_ids"], np.array(sample["loss_mask"], bool)
    recorded = np.array([np.nan if logprob is None else logprob for logprob in sample["logprobs"]])
    version = np.full(len(ids), None, object)
    for span in sample["spans"]:
        version[span["start"]:span["end"]] = span["policy_version"]
    largest = 0.0
    for weights in {*version[mask]}:
        where = np.flatnonzero(mask & (version == weights))
        largest = max(largest, float(np.abs(model.score(ids, scale(weights), where) - recorded[where]).max()))
    assert not np.isnan(largest), f"sample {sample['id']}: the mask is 1 where there is no log-probability"
    return largest, int(mask.sum())


def covered(table, rollout, calls, samples, log):
    """Compares with what the servers say they sampled: each token is trained exactly once, or its call is left out with a reason."""
    left_out = {one["call_id"]: one["reason"] for one in table.gleaner.samples(rollout)["left_out"]}
    assert REASONS.issuperset(left_out.values()), f"reasons that are none: {left_out}"
    trained = collections.Counter()
    for sample in samples:
        for span in sample["spans"]:
            trained.update((span["call_id"], at) for at in range(span["start"], span["end"]) if sample["loss_mask"][at])
            same(f"sample {sample['id']}, span of {span['call_id']}", sample["token_ids"][:span["end"]],
                 whole_of(calls, span["call_id"])[:span["end"]])
    for call in calls:
        names = names_in(table.gleaner, call)
        table.claimed.update(names)
        if call["id"] in left_out:
            assert not any(id == call["id"] for id, _ in trained), f"call {call['id']} is trained and left out ({left_out[call['id']]})"
            continue
        as_sampled(call, [log[name] for name in names])
        places = range(len(call["capture"]["prompt_ids"]), len(whole_of(calls, call["id"])))
        often = {at: trained[call["id"], at] for at in places if trained[call["id"], at] != 1}
        assert not often, f"call {call['id']}: not every token is trained once, but so often, by place: {often}"
    return collections.Counter(left_out.values())


def as_sampled(call, pieces):
    """A call's record is, piece by piece, what the servers sampled for it; one that died may have sampled more than came."""
    prompt, ids, logprobs = (call["capture"][name] for name in ("prompt_ids", "completion_ids", "logprobs"))
    assert pieces, f"call {call['id']}: its raw reply names no request of the policy server's"
    starts = [len(piece.prompt_ids) - len(prompt) for piece in pieces]
    assert starts[0] == 0, f"call {call['id']}: its first piece begins at {starts[0]}"
    for piece, start, end in zip(pieces, starts, [*starts[1:], len(ids)]):
        same(f"call {call['id']}, prompt", prompt + ids[:start], piece.prompt_ids)
        came = len(piece.ids) if piece is pieces[-1] else end - start
        same(f"call {call['id']}, what was sampled", ids[start:end], piece.ids[:came])
        assert logprobs[start:end] == piece.logprobs[:came], f"call {call['id']}: log-probabilities are not what the server wrote down"


def whole_of(calls, call_id):
    capture = next(call["capture"] for call in calls if call["id"] == call_id)
    return capture["prompt_ids"] + capture["completion_ids"]


def names_in(gleaner, call):
    """The names that the policy servers gave to the requests of this call, in order."""
    raw = gleaner.http.get(f"/api/v1/calls/{call['id']}/response").content
    return list(dict.fromkeys(name.decode() for name in NAMES.findall(raw) if b"-tool-" not in name))


def settled(gleaner, rollout):
    """Waits until it is noted of each call how it ended and whether its reply was delivered."""
    limit = time.monotonic() + 20
    while pending := [call["id"] for call in all_calls(gleaner, rollout) if call["status"] == "running" or call["delivered"] is None]:
        assert time.monotonic() < limit, f"calls that do not settle: {pending}"
        time.sleep(0.02)


def all_calls(gleaner, rollout):
    calls, after = [], ""
    while True:
        page = gleaner.api(f"/rollouts/{rollout['id']}/calls?limit=1000{after}")
        calls += page["calls"]
        if not page["next"]:
            return calls
        after = f"&after={page['next']}"


def same(what, one, two):
    at = common(one, two)
    assert len(one) == len(two) == at, f"{what}: parts at {at} of {len(one)} and {len(two)}: {one[at:at + 5]} and {two[at:at + 5]}"


def reference(table, turn):
    """The text that transformers makes of what the client sent."""
    return table.family.tokenizer.render(as_template_knows(turn.messages), tools=turn.options.get("tools"), add_generation_prompt=True)


def expected_drift(table, chat, calls):
    """Where re-encoding gives other ids, by the reference alone: the places (reply, index) at which transformers' rendering of what the
    client sent parts from an earlier reply of the conversation. Also proves that the prompts are that rendering."""
    places, chain = set(), []
    captures = {call["id"]: call["capture"] for call in calls}
    for turn in chat.turns:
        capture = captures[turn.call_id]
        prompt = table.family.tokenizer.encode(reference(table, turn))
        same(f"call {turn.call_id}, prompt", capture["prompt_ids"], prompt)
        if turn.goes_on:
            before = captures[chain[-1]]
            at = common(before["prompt_ids"] + before["completion_ids"], prompt)
            places |= {(earlier, at) for earlier in chain if 0 <= at - len(captures[earlier]["prompt_ids"]) < len(captures[earlier]["completion_ids"])}
        else:
            chain = []
        chain.append(turn.call_id)
    return places


def spliced(table, chat, calls):
    """Proves that each prompt is an earlier call's whole sequence and, after it, just what transformers makes of what is new; or, where
    it goes on from none, all that transformers makes. Gives how many were spliced."""
    captures = {call["id"]: call["capture"] for call in calls}
    read, count = table.family.tokenizer, 0
    for turn in chat.turns:
        prompt, rendered, text = captures[turn.call_id]["prompt_ids"], captures[turn.call_id]["rendered"], reference(table, turn)
        if rendered.get("after") is None:
            same(f"call {turn.call_id}, prompt made afresh", prompt, read.encode(text))
            continue
        # As its ids read: tokenizers may compose characters.
        text = read.decode(read.encode(text))
        earlier = whole_of(calls, rendered["after"])
        same(f"call {turn.call_id}, prompt after {rendered['after']}", prompt[:len(earlier)], earlier)
        tail = read.decode(prompt[len(earlier):])
        assert text.endswith(tail), f"call {turn.call_id}: {tail!r} was put after the earlier reply; the template makes {text[-len(tail) - 40:]!r}"
        same(f"call {turn.call_id}, tail", prompt[len(earlier):], read.encode(tail))
        count += 1
    return count
