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
                    requests[line["name"]] = Sampled(line["prompt_ids"])
                elif "id" in line:
                    requests[line["name"]].ids.append(line["id"])
                    requests[line["name"]].logprobs.append(line["logprob"])
                else:
                    requests[line["name"]].finish = line["finish"]
        return requests


@dataclasses.dataclass
class Sampled:
    prompt_ids: list
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
    _model: model.Model | None = None

    @property
    def model(self):
        """Made by the test itself from the same weights."""
        self._model = self._model or self.make()
        return self._model


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
FAMILIES = {"qwen3": ("qwen3", ["--parsers"]), "plain": ("qwen3", []), "smollm2": ("smollm2", [])}
MAKES = {"qwen3": (model.tiny_qwen3, tokenizer.qwen3, lambda: tokenizer.QWEN3),
         "smollm2": (model.smollm2, tokenizer.smollm2, model.smollm2_file)}


class Stage:
    """Starts what is asked for when it is first asked for."""

    def __init__(self, folder, stack):
        self.folder, self.stack, self.families, self.gleaners = folder, stack, {}, {}

    def family(self, name):
        if name not in self.families:
            kind, options = FAMILIES[name]
            folder = self.folder / name
            folder.mkdir()
            replicas = [self.stack.enter_context(replica(folder, kind, number, *options)) for number in range(2 if name != "smollm2" else 1)]
            make, read, _ = MAKES[kind]
            self.families[name] = Family(replicas, read(), make, bool(options))
        return self.families[name]

    def gleaner(self, name, mode):
        """A gleaner in front of a family; each has a store of its own, as it has been started with."""
        if (name, mode) not in self.gleaners:
            family, kind = self.family(name), FAMILIES[name][0]
            folder = self.folder / f"gleaner-{name}-{mode}"
            folder.mkdir()
            config = ["[policies.default]", f'tokens = "{mode}"', "retry_s = 20"]
            if mode == "exact":
                config += [f'tokenizer = "{MAKES[kind][2]()}"', f"urls = {json.dumps([one.url for one in family.replicas[1:]])}"]
                config += ([] if family.parsers else ['tool_parser = "none"', 'reasoning_parser = "none"'])
            started = self.stack.enter_context(programs.serving(family.replicas[0].url, folder, "\n".join(config) + "\n"))
            started.database = folder / "gleaner.db"
            started.stderr = folder / "stderr.log"
            self.gleaners[name, mode] = started
        return self.gleaners[name, mode]

    def table(self, name, mode):
        return Table(self.family(name), self.gleaner(name, mode), mode)


@dataclasses.dataclass
class Table:
    """Where conversations are held: a model behind a gleaner, tokens had in one of the modes."""

    family: Family
    gleaner: programs.Gleaner
    mode: str

    def script(self, mark, *replies):
        """Replies in order, wherever they are asked; each replica takes its own turn, so only one may be asked."""
        self.family.replicas[0].script(mark, list(replies))

    def export(self, rollouts, path):
        """The samples of these rollouts as `gleaner export` writes them, its check passed."""
        command = [programs.GLEANER, "export", "samples", "--check", "--json", "--out", path, "--database", self.gleaner.database]
        for rollout in rollouts:
            command += ["--rollout", rollout["id"]]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=programs.environment())
        if done.returncode:
            raise AssertionError(f"gleaner export failed: {done.stderr}")
        return [json.loads(line) for line in path.read_text().splitlines()]
