"""Conversations through Gleaner with a model that samples for real, and the proof that what is exported is what was sampled.

`GLEANER_TEST_WIDE=1`: every way of echoing, more tokens and turns, and the larger model for longer.
"""

import json
import os

import pytest

import conversations
from proof import Figures, all_calls, expected_drift, prove, spliced

WIDE = "GLEANER_TEST_WIDE" in os.environ
ECHOES = conversations.ECHOES if WIDE else [conversations.as_it_was, conversations.all_of_it]
# Each scenario, and how many samples there are where tokens are exact: one for each conversation, and one for each parting of the ways.
SCENARIOS = {f"tools-{echo.__name__}": (lambda table, echo=echo: conversations.tool_turns(table, echo), 1) for echo in ECHOES} | {
    "edited_history": (conversations.edited_history, 2), "compaction": (conversations.compaction, 2),
    "sub_agents": (conversations.sub_agents, 2), "retries": (conversations.retries, 2), "unicode": (conversations.unicode, 1),
    "stops": (conversations.stops, 1), "garbled": (conversations.garbled, 1),
}


@pytest.fixture(params=["server", "exact"])
def mode(request):
    return request.param


def noted(table, chats, tmp_path, figures, name):
    found = prove(table, chats, tmp_path / "samples.jsonl")
    key = f"{name}, {table.mode} mode"
    figures[key] = figures.get(key, Figures()) + found
    return found


def proven(table, chats, tmp_path, figures, name):
    """Proves the conversations: drift is where the reference says that re-encoding differs, and nowhere where tokens are exact."""
    found = noted(table, chats, tmp_path, figures, name)
    for rollout in {chat.rollout["id"]: chat.rollout for chat in chats}.values():
        calls = all_calls(table.gleaner, rollout)
        held = [chat for chat in chats if chat.rollout is rollout]
        drift = table.gleaner.api(f"/rollouts/{rollout['id']}")["drift"]
        if table.mode == "server":
            places = set().union(*(expected_drift(table, chat, calls) for chat in held))
            assert drift == len(places), f"drift {drift}; by the reference: {sorted(places)}"
        else:
            going_on = sum(turn.goes_on for chat in held for turn in chat.turns)
            assert sum(spliced(table, chat, calls) for chat in held) >= going_on
            assert drift == 0
    return found


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_conversation_is_exported_as_it_was_sampled(stage, figures, tmp_path, mode, name):
    table = stage.table("qwen3", mode)
    hold, samples = SCENARIOS[name]
    chats = hold(table)
    found = proven(table, chats, tmp_path, figures, "tiny Qwen3")
    assert found.trained > 20 * len(chats)
    assert not found.left_out
    if mode == "exact":
        assert found.samples == samples


def test_ids_that_a_stream_swallows_are_noticed(stage, figures, tmp_path):
    """A server whose parser keeps chunks back, ids and all: what was lost is left out by name; from then on nothing is lost."""
    table = stage.table("swallowing", "server")
    chats = conversations.tool_turns(table, conversations.as_it_was, turns=4)
    found = noted(table, chats, tmp_path, figures, "a server that swallows ids")
    assert found.left_out == {"ids_incomplete": 1}


def test_hot_sampling_is_exported_as_it_was_sampled(stage, figures, tmp_path, mode):
    table = stage.table("plain", mode)
    seeds, tokens = 200, 24 if WIDE else 6
    chats = [chat for seed in range(seeds) for chat in conversations.hot(table, seed, tokens=tokens)]
    found = proven(table, chats, tmp_path, figures, "tiny Qwen3 at 1.3")
    # Nothing but the end token ends a reply early.
    assert seeds * 2 * tokens - 2 * tokens < found.trained <= seeds * 2 * tokens
    # Text of all scripts at once does not come back as it was said.
    assert found.samples == seeds if mode == "exact" else found.drift > seeds / 10


def test_a_real_model_is_exported_as_it_was_sampled(stage, figures, tmp_path, mode):
    table = stage.table("smollm2", mode)
    chats = [chat for seed in range(24 if WIDE else 2) for chat in conversations.hot(table, seed, turns=3 if WIDE else 2, tokens=24)]
    found = proven(table, chats, tmp_path, figures, "SmolLM2 at 1.3")
    assert found.trained > 40
    if mode == "exact":
        assert found.samples == len(chats)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_reply_is_finished_by_another_replica(stage, figures, tmp_path, stream):
    """The first server dies in the middle of the second turn's reply: another goes on from the tokens that are there."""
    table = stage.table("plain", "exact", replicas=2)
    chat = conversations.Chat(table, max_tokens=24, stream=stream)
    chat.script({}, {"die_after": 9})
    for text in ("one", "two", "three"):
        chat.user(text)
    found = proven(table, [chat], tmp_path, figures, "killed replicas")
    assert found.samples == 1
    calls = all_calls(table.gleaner, chat.rollout)
    runs = [[run["start"] for run in call["capture"]["runs"]] for call in calls]
    # A whole body that is cut is lost, and asked for again.
    assert runs == [[], [0, 9] if stream else [], []], f"notes: {[call['notes'] for call in calls]}"


def test_a_killed_replica_costs_no_token(stage, figures, tmp_path):
    """The process itself is killed while it streams."""
    table = stage.table("plain", "exact", replicas=2, policy=["connect_timeout_s = 2"])
    chat = conversations.Chat(table, max_tokens=200, stream=True)
    conversations.killing(table.family.replicas[0], chat)
    chat.user("Go on.")
    found = proven(table, [chat], tmp_path, figures, "killed replicas")
    assert found.samples == 1
    runs = all_calls(table.gleaner, chat.rollout)[0]["capture"]["runs"]
    assert len(runs) == 2 and runs[0]["start"] == 0 < runs[1]["start"] < 200


def test_a_reply_across_an_update_has_a_span_for_each_version(stage, figures, tmp_path):
    table = stage.table("qwen3", "exact")
    chat = conversations.Chat(table, max_tokens=40)
    chat.script({"parts": [{"sample": 20}], "update_after": 7, "version": "step-5"}, {"parts": [{"sample": 6}, conversations.END]})
    chat.user("one")
    chat.user("two")
    table.family.replicas[0].update("default")
    found = proven(table, [chat], tmp_path, figures, "updates of weights")
    assert found.samples == 1
    (sample,) = table.gleaner.samples(chat.rollout)["samples"]
    spans = [(span["policy_version"], span["end"] - span["start"]) for span in sample["spans"]]
    assert spans[0] == ("default", 7) and spans[1][0] == "step-5" and {version for version, _ in spans[1:]} == {"step-5"}


def test_a_reply_across_a_pause_has_a_span_for_each_version(stage, figures, tmp_path):
    """The policy is paused in the middle of a reply, its weights change, and the reply goes on where it was."""
    table = stage.table("qwen3", "exact")
    chat = conversations.Chat(table, max_tokens=120, stream=True)
    chat.script({"parts": [{"sample": 100}]}, {"parts": [{"sample": 20}]}, conversations.spoken())
    conversations.pausing(table, chat, "step-5")
    chat.user("Go on.")
    table.family.replicas[0].update("default")
    found = proven(table, [chat], tmp_path, figures, "updates of weights")
    assert found.samples == 1
    (sample,) = table.gleaner.samples(chat.rollout)["samples"]
    assert [span["policy_version"] for span in sample["spans"]] == ["default", "step-5", "step-5"]


def changed(samples, change):
    """The samples with one changed."""
    first = {**samples[0], **change({name: list(samples[0][name]) for name in ("token_ids", "loss_mask", "logprobs")}, samples[0]["prompt_length"])}
    return "".join(json.dumps(sample) + "\n" for sample in [first, *samples[1:]])


CHANGES = {
    "logprob": lambda lists, at: {"logprobs": [value - 0.01 if place == at else value for place, value in enumerate(lists["logprobs"])]},
    "id": lambda lists, at: {"token_ids": [id ^ 1 if place == at else id for place, id in enumerate(lists["token_ids"])]},
    "mask": lambda lists, at: {"loss_mask": [0 if place == at else bit for place, bit in enumerate(lists["loss_mask"])]},
}


def test_audit_agrees_and_finds_what_was_changed(stage, tmp_path, mode):
    table = stage.table("plain", mode)
    chats = [chat for seed in range(8) for chat in conversations.hot(table, seed, temperature=1)]
    rollouts = [chat.rollout for chat in chats]
    figures = prove(table, chats, tmp_path / "samples.jsonl")
    report, code = table.audit(rollouts, "--threshold", 1e-3)
    assert (code, report["faults"]) == (0, []), report
    assert report["compared"] == figures.trained and report["max"] < 1e-3
    samples = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    for name, change in CHANGES.items():
        file = tmp_path / f"{name}.jsonl"
        file.write_text(changed(samples, change))
        report, code = table.audit(rollouts, "--samples", file, "--no-score")
        assert (code, report["different"]) == (1, 1), f"one {name} was changed: {report}"


def test_nothing_was_sampled_that_no_record_speaks_of(stage):
    """The last test: what the servers wrote down, over all that the others did."""
    for family in stage.families.values():
        claimed = set().union(*(table.claimed for table in stage.tables.values() if table.family is family))
        ended = {name for replica in family.replicas for name, entry in replica.sampled().items() if entry.finish and not entry.score}
        assert ended <= claimed, f"{len(ended - claimed)} of {len(ended)} replies are in no record"
