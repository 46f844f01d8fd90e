"""What a conversation is held on: policy servers, and gleaner in front of them with a policy for each way of having tokens."""

import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import httpx

import model
import programs
import tokenizer

HERE = pathlib.Path(__file__).parent


class Replica:
    """One policy server, seen from outside."""

    def __init__(self, process, url, log):
        self.process, self.url, self.log = process, url, log
        self.http = httpx.Client(base_url=url, timeout=120)

    def script(self, mark, replies):
        self.http.post("/test/script", json={"mark": mark, "replies": replies}).raise_for_status()

    def update(self, version):
        self.http.post("/update_weight_version", json={"new_version": version}).raise_for_status()

    def sampled(self):
        """All that was ever sampled: by the name of each request its prompt, ids, log-probabilities and whether it came to an end."""
        requests = {}
        with open(self.log, encoding="utf-8") as lines:
            for line in map(json.loads, lines):
                if "prompt_ids" in line:
                    requests[line["name"]] = Sampled(line["prompt_ids"], line["score"])
                elif "id" in line:
                    requests[line["name"]].ids.append(line["id"])
                    requests[line["name"]].logprobs.append(line["logprob"])
                else:
                    requests[line["name"]].finish = line["finish"]
        return requests


@dataclasses.dataclass
class Sampled:
    prompt_ids: list
    # The prompt's log-probabilities were wanted, not the reply.
    score: bool
    ids: list = dataclasses.field(default_factory=list)
    logprobs: list = dataclasses.field(default_factory=list)
    finish: str | None = None


@dataclasses.dataclass
class Family:
    """Replicas of one model, and the model itself, to compare with."""

    replicas: list
    tokenizer: tokenizer.Tokenizer
    make: object
    parsers: bool

    @property
    def model(self):
        """Made by the test itself from the same weights."""
        return self.make()


@contextlib.contextmanager
def replica(folder, name, number, *options):
    log = folder / f"{name}-{number}.tokens.jsonl"
    command = [sys.executable, HERE / "server.py", name, "--log", log, *options]
    with open(folder / f"{name}-{number}.stderr", "w") as stderr:
        process, url = programs.start(list(map(str, command)), stderr=stderr, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"})
    try:
        yield Replica(process, url, log)
    finally:
        programs.stop(process)


# Whether replies are read for reasoning and tool calls.
FAMILIES = {"qwen3": ("qwen3", ["--parsers"]), "swallowing": ("qwen3", ["--parsers", "--swallow"]), "plain": ("qwen3", []),
            "smollm2": ("smollm2", [])}
MAKES = {"qwen3": (model.tiny_qwen3, tokenizer.qwen3, lambda: tokenizer.QWEN3),
         "smollm2": (model.smollm2, tokenizer.smollm2, model.smollm2_file)}


class Stage:
    """Starts what is asked for when it is first asked for."""

    def __init__(self, folder, stack):
        self.folder, self.stack, self.families, self.tables = folder, stack, {}, {}

    def family(self, name, replicas=1):
        """Servers of one model; where there are several, nobody else's."""
        if (name, replicas) not in self.families:
            kind, options = FAMILIES[name]
            folder = self.folder / f"{name}-{replicas}"
            folder.mkdir()
            started = [self.stack.enter_context(replica(folder, kind, number, *options)) for number in range(replicas)]
            make, read, _ = MAKES[kind]
            self.families[name, replicas] = Family(started, read(), make, bool(options))
        return self.families[name, replicas]

    def table(self, name, mode, replicas=1, policy=()):
        """A gleaner in front of a family, with a store of its own; `policy` are further lines of its policy's config."""
        key = (name, mode, replicas, tuple(policy))
        if key not in self.tables:
            family, kind = self.family(name, replicas), FAMILIES[name][0]
            folder = self.folder / f"gleaner-{len(self.tables)}"
            folder.mkdir()
            config = ["[policies.default]", f'tokens = "{mode}"', "retry_s = 20", *policy]
            if mode == "exact":
                config += [f'tokenizer = "{MAKES[kind][2]()}"', f"urls = {json.dumps([one.url for one in family.replicas[1:]])}"]
                config += [] if family.parsers else ['tool_parser = "none"', 'reasoning_parser = "none"']
            gleaner = self.stack.enter_context(programs.serving(family.replicas[0].url, folder, "\n".join(config) + "\n"))
            self.tables[key] = Table(family, gleaner, mode, folder)
        return self.tables[key]


@dataclasses.dataclass
class Table:
    """Where conversations are held: a model behind a gleaner, tokens had in one of the modes."""

    family: Family
    gleaner: programs.Gleaner
    mode: str
    folder: pathlib.Path
    # The names of the requests that its records speak of.
    claimed: set = dataclasses.field(default_factory=set)

    def script(self, mark, *replies):
        """What the first server says where the mark stands, in this order."""
        self.family.replicas[0].script(mark, list(replies))

    def export(self, rollouts, path):
        """The samples of these rollouts as `gleaner export` writes them, its check passed."""
        done = self.run("export", "samples", "--check", "--json", "--out", path, *named(rollouts))
        if done.returncode:
            raise AssertionError(f"gleaner export failed: {done.stderr}")
        return [json.loads(line) for line in path.read_text().splitlines()]

    def audit(self, rollouts, *options):
        """What `gleaner audit` finds of these rollouts, and its exit code."""
        done = self.run("audit", "--json", *named(rollouts), *options)
        if not done.stdout:
            raise AssertionError(f"gleaner audit failed: {done.stderr}")
        return json.loads(done.stdout), done.returncode

    def run(self, *arguments):
        """A command on the store and with the config of this table's gleaner."""
        command = [programs.GLEANER, *arguments, "--config", self.folder / "config.toml", "--database", self.folder / "gleaner.db"]
        environment = programs.environment() | {"GLEANER_POLICY": self.family.replicas[0].url}
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment)


def named(rollouts):
    return [word for rollout in rollouts for word in ("--rollout", rollout["id"])]
