"""Starts the scripted policy and gleaner as programs, each test with its own."""

import contextlib
import os
import pathlib
import subprocess

import httpx
import openai
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
GLEANER = os.environ.get("GLEANER_BIN", TARGET / "debug" / "gleaner")
POLICY = os.environ.get("SCRIPTED_POLICY_BIN", TARGET / "debug" / "examples" / "scripted_policy")


def start(command, **options):
    """Starts a program that says where it listens, and waits until it does."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, **options)
    line = process.stdout.readline()
    if "listening on " not in line:
        process.kill()
        raise RuntimeError(f"{command[0]} said {line!r} instead of where it listens")
    return process, line.strip().removeprefix("listening on ")


def stop(process):
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Policy:
    def __init__(self, url):
        self.url = url

    def script(self, *replies):
        httpx.post(f"{self.url}/__script", json=list(replies)).raise_for_status()

    @property
    def sampled(self):
        """All that was sampled: prompt_ids, ids, logprobs, text and request of each call."""
        return httpx.get(f"{self.url}/__sampled").json()["calls"]


class Gleaner:
    def __init__(self, url):
        self.url = url

    def api(self, path):
        answer = httpx.get(f"{self.url}/api/v1{path}")
        answer.raise_for_status()
        return answer.json()

    def rollout(self, **fields):
        answer = httpx.post(f"{self.url}/api/v1/rollouts", json=fields)
        answer.raise_for_status()
        return answer.json()

    def calls(self, rollout):
        return self.api(f"/rollouts/{rollout['id']}/calls")["calls"]

    def samples(self, rollout):
        return self.api(f"/rollouts/{rollout['id']}/samples")

    def client(self, rollout):
        """The official client, with nothing set but base URL and key."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=rollout["key"], max_retries=0)


@pytest.fixture
def policy():
    process, url = start([POLICY, "--seed", "7"])
    yield Policy(url)
    stop(process)


def environment():
    """This one without what would steer gleaner."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GLEANER_")}


@contextlib.contextmanager
def serving(policy_url, folder):
    """gleaner, on the store in `folder`."""
    command = [GLEANER, "serve", "--listen", "127.0.0.1:0", "--policy", policy_url, "--database", str(folder / "gleaner.db")]
    with open(folder / "stderr.log", "a") as log:
        process, url = start(command, stderr=log, env=environment() | {"HOME": str(folder)})
        try:
            yield Gleaner(url)
        finally:
            stop(process)


@pytest.fixture
def gleaner(policy, tmp_path):
    with serving(policy.url, tmp_path) as gleaner:
        yield gleaner
