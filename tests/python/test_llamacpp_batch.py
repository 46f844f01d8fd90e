"""A batch of real harnesses in containers, with a real llama.cpp server as policy, run to its end, shown and exported.

The server's address comes in GLEANER_TEST_LLAMACPP_URL (scripts/with-llama-server sets it); the containers need Docker.
"""

import json
import os
import subprocess

import pytest

import derive
import programs

URL = os.environ.get("GLEANER_TEST_LLAMACPP_URL")
if not URL and "GLEANER_TEST_REAL" in os.environ:
    raise RuntimeError("GLEANER_TEST_REAL is set, so GLEANER_TEST_LLAMACPP_URL must name a llama.cpp server")
pytestmark = pytest.mark.skipif(not URL, reason="GLEANER_TEST_LLAMACPP_URL names no llama.cpp server")

# Codex asks with the longest prompt of these, of 4,300 tokens, and the window is 8,192.
HARNESSES = ["codex", "mini-swe-agent:text", "react:text"]
SAMPLES = 2
MAX_CALLS = 2
# What a rollout can end as for reasons of the model's, which is tiny: that it does the task is not asked.
FAIR = {"passed", "failed", "truncated"}
# Whatever harnesses ask for, the likeliest token: a character of several tokens, such as an emoji, costs a call its log-probabilities.
CONFIG = """
[policies.default.sampling]
temperature = 0.0
"""


def test_a_batch_of_real_harnesses_ends_is_shown_and_is_what_the_raw_bytes_say(tmp_path):
    config, tasks, samples = (tmp_path / name for name in ("config.toml", "tasks.jsonl", "samples.jsonl"))
    config.write_text(CONFIG)
    task = {"id": "hello", "prompt": "Make the file hello.txt with the word hello in it.", "verify": "grep -qx hello hello.txt"}
    tasks.write_text(json.dumps(task) + "\n")

    def gleaner(*words):
        command = [programs.GLEANER, *words, "--database", tmp_path / "gleaner.db"]
        ran = subprocess.run(command, env=programs.environment(), capture_output=True, text=True)
        assert ran.returncode == 0, f"{words} ended with {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    plan = ["--harness", ",".join(HARNESSES), "--samples", str(SAMPLES), "--max-calls", str(MAX_CALLS), "--timeout", "900"]
    ran = gleaner("batch", tasks, *plan, "--policy", URL, "--config", config, "--json")
    said = json.loads(ran.splitlines()[-1])
    summaries = {summary["harness"]: summary for summary in said["summary"]}
    assert sorted(summaries) == HARNESSES
    for harness, summary in summaries.items():
        seen = (summary["rollouts"], summary["infra_retries"], set(summary["outcomes"]) - FAIR)
        assert seen == (SAMPLES, 0, set()), f"{harness}: {json.dumps(said, indent=1)}"
        assert summary["calls"] >= SAMPLES and summary["tokens"] > 0, summary

    table = gleaner("show", said["batch"])
    assert all(harness in table for harness in HARNESSES), table
    gleaner("export", "samples", "--out", samples, "--check")
    with programs.serving(URL, tmp_path) as server:
        for rollout in said["rollouts"]:
            calls = server.calls(rollout)
            # One call past the cap is kept as refused, if the harness asked for it.
            answered = [call for call in calls if (call["failure"] or {}).get("kind") != "capped"]
            states = [(call["status"], call["capture"]["level"]) for call in answered]
            assert states and set(states) == {("done", "full")} and len(states) <= MAX_CALLS, f"{rollout}: {states}"
            derived = derive.check(server.url, rollout["id"], str(samples), min_trained=1)
            assert derived["forms"] == {"llamacpp": len(answered)}, f"{rollout}: {derived}"
