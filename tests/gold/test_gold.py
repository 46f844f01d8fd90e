"""Conversations through Gleaner with a model that samples for real, and the proof that what is exported is what was sampled.

`GLEANER_TEST_WIDE=1`: every way of echoing, more tokens and turns, and the larger model for longer.
"""

import os

import pytest

import conversations
from proof import Figures, all_calls, expected_drift, prove

WIDE = "GLEANER_TEST_WIDE" in os.environ
MODES = ["server"]

ECHOES = conversations.ECHOES if WIDE else [conversations.as_it_was, conversations.all_of_it]
SCENARIOS = {f"tools-{echo.__name__}": lambda table, echo=echo: conversations.tool_turns(table, echo) for echo in ECHOES} | {
    "edited_history": conversations.edited_history, "compaction": conversations.compaction, "sub_agents": conversations.sub_agents,
    "retries": conversations.retries, "unicode": conversations.unicode, "stops": conversations.stops,
}


@pytest.fixture(params=MODES)
def mode(request):
    return request.param


def proven(table, chats, tmp_path, figures, name):
    """Proves the conversations, and that drift is where the reference says."""
    found = prove(table, chats, tmp_path / "samples.jsonl")
    key = f"{name}, {table.mode} mode"
    figures[key] = figures.get(key, Figures()) + found
    if table.mode == "server":
        for rollout in {chat.rollout["id"]: chat.rollout for chat in chats}.values():
            calls = all_calls(table.gleaner, rollout)
            held = [chat for chat in chats if chat.rollout is rollout]
            places = set().union(*(expected_drift(table, chat, calls) for chat in held))
            drift = table.gleaner.api(f"/rollouts/{rollout['id']}")["drift"]
            assert drift == len(places), f"drift {drift}; by the reference: {sorted(places)}"
    else:
        assert found.drift == 0
    return found


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_conversation_is_exported_as_it_was_sampled(stage, figures, tmp_path, mode, name):
    table = stage.table("qwen3", mode)
    chats = SCENARIOS[name](table)
    found = proven(table, chats, tmp_path, figures, "tiny Qwen3")
    assert found.trained > 20 * len(chats)


def test_hot_sampling_is_exported_as_it_was_sampled(stage, figures, tmp_path, mode):
    table = stage.table("plain", mode)
    seeds, tokens = 200, 24 if WIDE else 6
    chats = [chat for seed in range(seeds) for chat in conversations.hot(table, seed, tokens=tokens)]
    found = proven(table, chats, tmp_path, figures, "tiny Qwen3 at 1.3")
    # Nothing but the end token ends a reply early.
    assert seeds * 2 * tokens - 2 * tokens < found.trained <= seeds * 2 * tokens


def test_a_real_model_is_exported_as_it_was_sampled(stage, figures, tmp_path, mode):
    table = stage.table("smollm2", mode)
    chats = [chat for seed in range(24 if WIDE else 2) for chat in conversations.hot(table, seed, turns=3 if WIDE else 2, tokens=24)]
    found = proven(table, chats, tmp_path, figures, "SmolLM2 at 1.3")
    assert found.trained > 40
