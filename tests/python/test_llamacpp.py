"""Against a real llama.cpp server: what Gleaner keeps and exports is what the raw bytes of the calls say.

The server's address comes in GLEANER_TEST_LLAMACPP_URL (scripts/with-llama-server sets it); the run in a container needs Docker.
"""

import json
import os
import subprocess

import pytest

import derive
import openai
import programs

URL = os.environ.get("GLEANER_TEST_LLAMACPP_URL")
if not URL and "GLEANER_TEST_REAL" in os.environ:
    raise RuntimeError("GLEANER_TEST_REAL is set, so GLEANER_TEST_LLAMACPP_URL must name a llama.cpp server")
pytestmark = pytest.mark.skipif(not URL, reason="GLEANER_TEST_LLAMACPP_URL names no llama.cpp server")

ASK = "Write one short sentence about ships."


@pytest.fixture
def gleaner(tmp_path):
    with programs.serving(URL, tmp_path) as gleaner:
        yield gleaner


def client_of(gleaner, rollout):
    """The official client, with nothing set but base URL and key."""
    return openai.OpenAI(base_url=f"{gleaner.url}/v1", api_key=rollout["key"], max_retries=0)


def chat(client, messages, stream):
    answer = client.chat.completions.create(model="any", messages=messages, max_tokens=12, temperature=0, stream=stream)
    if not stream:
        return answer.choices[0].message.content
    return "".join(choice.delta.content or "" for chunk in answer for choice in chunk.choices)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_conversation_is_what_the_raw_bytes_say(gleaner, stream):
    rollout = gleaner.rollout()
    client = client_of(gleaner, rollout)
    messages = [{"role": "user", "content": ASK}]
    messages.append({"role": "assistant", "content": chat(client, messages, stream)})
    messages.append({"role": "user", "content": "Another one."})
    said = chat(client, messages, stream)
    calls = gleaner.calls(rollout)
    assert [(call["status"], call["capture"]["level"]) for call in calls] == [("done", "full")] * 2
    assert calls[1]["message"]["content"] == said
    assert derive.check(gleaner.url, rollout["id"], min_trained=2)["forms"] == {"llamacpp": 2}


def test_responses_are_what_the_raw_bytes_say(gleaner):
    rollout = gleaner.rollout()
    with client_of(gleaner, rollout).responses.stream(model="any", input=ASK, max_output_tokens=12, temperature=0) as stream:
        events = list(stream)
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[-1].type in ("response.completed", "response.incomplete")
    (call,) = gleaner.calls(rollout)
    assert (call["capture"]["level"], call["message"]["content"]) == ("full", said)
    assert derive.check(gleaner.url, rollout["id"], min_trained=1)["forms"] == {"llamacpp": 1}


def test_what_a_real_harness_did_in_its_container_is_what_the_raw_bytes_say(tmp_path):
    """The main job: run, export with its checks, and derive the same from the bytes with other code."""

    def gleaner(*arguments):
        command = [programs.GLEANER, *arguments, "--database", str(tmp_path / "gleaner.db")]
        return subprocess.run(command, check=True, env=programs.environment(), stdout=subprocess.PIPE, text=True).stdout

    ran = gleaner("run", "mini-swe-agent:text", "Create hello.txt.", "--set", "steps=2", "--timeout", "600", "--policy", URL, "--json")
    (rollout,) = json.loads(ran)["rollouts"]
    # The model is tiny: that it does the task is not asked.
    assert rollout["outcome"] in ("passed", "failed") and rollout["calls"] > 0
    samples = tmp_path / "samples.jsonl"
    gleaner("export", "samples", "--rollout", rollout["id"], "--out", str(samples), "--check")
    with programs.serving(URL, tmp_path) as server:
        # An emoji among what was sampled costs a call its log-probabilities, and so its place.
        assert "full" in [call["capture"]["level"] for call in server.calls(rollout)]
        assert derive.check(server.url, rollout["id"], str(samples), min_trained=1)["forms"] == {"llamacpp": rollout["calls"]}
