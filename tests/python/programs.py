"""The scripted policy and gleaner as programs, and how tests ask them."""

import contextlib
import os
import pathlib
import subprocess

import httpx

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
    """The scripted policy, seen from outside."""

    def __init__(self, url):
        self.http = httpx.Client(base_url=url, timeout=60)
        self.url = url

    def bind(self, mark, replies):
        """What to say to requests in which the mark stands; the last reply stands for all that follow."""
        self.http.post("/__script", json={"when": mark, "replies": replies}).raise_for_status()

    def sampled(self, mark):
        """All that was sampled for the mark: prompt_ids, ids, logprobs, text, request, finished, hung_up of each call."""
        return self.http.get("/__sampled", params={"when": mark}).json()["calls"]


class Gleaner:
    """A running gleaner, seen from outside."""

    def __init__(self, url):
        self.http = httpx.Client(base_url=url, timeout=60)
        self.url = url

    def api(self, path):
        answer = self.http.get(f"/api/v1{path}")
        answer.raise_for_status()
        return answer.json()

    def rollout(self, **fields):
        answer = self.http.post("/api/v1/rollouts", json=fields)
        answer.raise_for_status()
        return answer.json()

    def calls(self, rollout):
        return self.api(f"/rollouts/{rollout['id']}/calls")["calls"]

    def samples(self, rollout):
        return self.api(f"/rollouts/{rollout['id']}/samples")


@contextlib.contextmanager
def scripting():
    """The scripted policy."""
    process, url = start([POLICY, "--seed", "7"])
    try:
        yield Policy(url)
    finally:
        stop(process)


def environment():
    """This one without what would steer gleaner."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GLEANER_")}


@contextlib.contextmanager
def serving(policy_url, folder, config=""):
    """gleaner, on the store in `folder`."""
    command = [GLEANER, "serve", "--listen", "127.0.0.1:0", "--policy", policy_url, "--database", str(folder / "gleaner.db")]
    if config:
        (folder / "config.toml").write_text(config)
        command += ["--config", str(folder / "config.toml")]
    with open(folder / "stderr.log", "a") as log:
        process, url = start(command, stderr=log, env=environment() | {"HOME": str(folder)})
        try:
            yield Gleaner(url)
        finally:
            stop(process)
