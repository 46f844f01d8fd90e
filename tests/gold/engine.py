"""Samples replies, one token at a time, and writes down every token that it ever sampled."""

import dataclasses
import json
import threading

import numpy as np

from model import Cache, log_sum_exp
from tokenizer import Detokenizer

# How many sequences keep their keys and values for whoever goes on from them.
KEPT = 12


class BadRequest(Exception):
    """A request that this server can't answer; `param` as vLLM names it."""

    def __init__(self, message, param=None):
        super().__init__(message)
        self.param = param


class Died(Exception):
    """A scripted reply ends here, and the connection with it."""


@dataclasses.dataclass
class Sampling:
    """vLLM's sampling parameters, as far as this server has them."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: list = dataclasses.field(default_factory=list)
    stop_token_ids: list = dataclasses.field(default_factory=list)
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False

    @classmethod
    def of(cls, fields):
        given = {field.name: fields[field.name] for field in dataclasses.fields(cls) if fields.get(field.name) is not None}
        sampling = cls(**given)
        if isinstance(sampling.stop, str):
            sampling.stop = [sampling.stop]
        if sampling.temperature < 0:
            raise BadRequest(f"temperature must be non-negative, got {sampling.temperature}.", "temperature")
        if not 0 < sampling.top_p <= 1:
            raise BadRequest(f"top_p must be in (0, 1], got {sampling.top_p}.", "top_p")
        if sampling.max_tokens is not None and sampling.max_tokens < 1:
            raise BadRequest(f"max_tokens must be at least 1, got {sampling.max_tokens}.", "max_tokens")
        return sampling


@dataclasses.dataclass
class Step:
    """A sampled token. Log-probabilities are raw: of the model's own distribution."""

    id: int
    logprob: float
    rank: int
    top: list
    text: str
    finish: str | None = None
    stop: str | int | None = None


class Engine:
    """One model at a time in one process. Weights `step-N` are the model's with its final norm N percent larger."""

    def __init__(self, model, tokenizer, window, log):
        self.model, self.tokenizer, self.window, self.log = model, tokenizer, window, log
        self.version, self.lock, self.kept, self.requests = "default", threading.Lock(), [], 0
        self.scripts = Scripts(tokenizer)

    def update(self, version):
        with self.lock:
            self.version, self.kept = version, []

    def write(self, **fields):
        self.log.write(json.dumps(fields) + "\n")
        self.log.flush()

    def begin(self, prompt, sampling, alternatives=0):
        """A reply to come; it is sampled as it is read."""
        if not prompt:
            raise BadRequest("The decoder prompt cannot be empty", "prompt")
        foreign = next((id for id in prompt if not 0 <= id < self.tokenizer.vocabulary), None)
        if foreign is not None:
            raise BadRequest(f"Token id {foreign} is out of vocabulary", "prompt")
        left = self.window - len(prompt)
        asked = sampling.max_tokens
        if left < 1 or (asked or 0) > left:
            raise BadRequest(
                f"This model's maximum context length is {self.window} tokens. However, you requested {asked or 0} output tokens and your "
                f"prompt contains {len(prompt)} input tokens, for a total of {len(prompt) + (asked or 0)} tokens. Please reduce the "
                "length of the input prompt or the number of requested output tokens.", "input_tokens")
        with self.lock:
            number, self.requests = self.requests, self.requests + 1
        return Reply(self, number, list(prompt), sampling, asked or left, alternatives, self.scripts.next(prompt))

    def logits(self, ids, count, cache):
        """The logits after each of the last `count` of `ids`, of which the cache may hold those before; and the cache with all of them."""
        with self.lock:
            if cache is None or cache.version != self.version:
                cache = self.resumed(ids, count)
            states = self.model.hidden(ids[cache.length:], cache)
            return self.model.logits(states[-count:], scale(self.version)), cache

    def resumed(self, ids, count):
        """A cache with the longest beginning that `ids` but for the last `count` shares with an earlier sequence."""
        best, length = None, 0
        for earlier, cache in self.kept:
            shared = common(earlier[:cache.length], ids[:-count])
            if shared > length:
                best, length = cache, shared
        cache = best.head(length) if best else Cache(self.model.shape)
        cache.version = self.version
        return cache

    def keep(self, ids, cache):
        with self.lock:
            if cache is not None and cache.version == self.version:
                self.kept = [*self.kept[-KEPT + 1:], (ids, cache)]

    def score(self, ids):
        with self.lock:
            return self.model.score(ids, scale(self.version))


class Reply:
    """One reply: iterate over its steps."""

    def __init__(self, engine, number, prompt, sampling, limit, alternatives, script):
        self.engine, self.prompt, self.sampling, self.limit = engine, prompt, sampling, limit
        # As its endpoint calls it, and whether it was asked for the prompt's log-probabilities.
        self.name, self.score = None, False
        self.alternatives, self.script = alternatives, script
        self.ids, self.logprobs, self.versions, self.finish, self.stop = [], [], [], None, None
        self.draw = np.random.default_rng(sampling.seed if sampling.seed is not None else (1 << 32) + number)

    def __iter__(self):
        engine, cache = self.engine, None
        text = Text(engine.tokenizer, self.sampling)
        engine.write(name=self.name, prompt_ids=self.prompt, score=self.score)
        rows = []
        while self.finish is None:
            if not len(rows):
                # What is sure to be said is read in one go.
                ahead = self.script.ahead()
                rows, cache = engine.logits(self.prompt + self.ids + ahead[:-1], max(1, len(ahead)), cache)
            step = self.step(rows[0])
            rows = rows[1:]
            if not self.versions or self.versions[-1]["version"] != cache.version:
                self.versions.append({"version": cache.version, "start": len(self.ids), "end": None})
            self.ids.append(step.id)
            self.logprobs.append(step.logprob)
            self.versions[-1]["end"] = len(self.ids)
            engine.write(name=self.name, id=step.id, logprob=step.logprob, version=cache.version)
            self.end(step, text)
            self.finish, self.stop = step.finish, step.stop
            yield step
            if self.script.updates_after == len(self.ids):
                engine.update(self.script.version)
            if self.script.dies_after == len(self.ids):
                raise Died
        engine.keep(self.prompt + self.ids, cache)
        engine.write(name=self.name, finish=self.finish)

    def step(self, logits):
        total = log_sum_exp(logits[None])[0]
        forced = self.script.forced()
        id = forced if forced is not None else self.sample(logits)
        rank = int((logits > logits[id]).sum()) + 1
        top = np.argsort(-logits)[:self.alternatives] if self.alternatives else []
        return Step(id, float(logits[id] - total), rank, [(int(other), float(logits[other] - total)) for other in top], "")

    def sample(self, logits):
        sampling = self.sampling
        if len(self.ids) < sampling.min_tokens or self.script.goes_on():
            logits = logits.copy()
            logits[list(self.engine.tokenizer.ends)] = -np.inf
        if sampling.temperature == 0:
            return int(logits.argmax())
        chances = np.exp((logits - logits.max()) / np.float32(sampling.temperature))
        chances /= chances.sum()
        if sampling.top_k > 0:
            chances[chances < np.sort(chances)[-min(sampling.top_k, len(chances))]] = 0
        if sampling.top_p < 1:
            order = np.argsort(-chances)
            before = np.cumsum(chances[order]) - chances[order]
            chances[order[before >= sampling.top_p]] = 0
        if sampling.min_p > 0:
            chances[chances < sampling.min_p * chances.max()] = 0
        sums = np.cumsum(chances, dtype=np.float64)
        return int(np.searchsorted(sums, self.draw.random() * sums[-1], side="right"))

    def end(self, step, text):
        """Says whether the reply ends here, and what text has come."""
        ended = step.id in self.engine.tokenizer.ends and not self.sampling.ignore_eos
        step.text, stopped = text.push(step.id, hidden=ended)
        if ended:
            step.finish = "stop"
        elif step.id in self.sampling.stop_token_ids:
            step.finish, step.stop = "stop", step.id
        elif stopped is not None:
            step.finish, step.stop = "stop", stopped
        elif len(self.ids) >= self.limit:
            step.finish = "length"
        if step.finish and stopped is None:
            step.text += text.finish()


class Text:
    """A reply's text as it may be told: what could begin a stop string waits."""

    def __init__(self, tokenizer, sampling):
        self.detokenizer = Detokenizer(tokenizer, sampling.skip_special_tokens)
        self.sampling, self.held = sampling, ""
        self.wait = max(map(len, sampling.stop), default=1) - 1

    def push(self, id, hidden):
        """The text that comes out, and the stop string that was met."""
        before = len(self.held)
        self.held += "" if hidden else self.detokenizer.push(id)
        for stop in self.sampling.stop:
            at = self.held.find(stop, max(0, before - len(stop) + 1))
            if at >= 0:
                return self.held[:at + len(stop) * self.sampling.include_stop_str_in_output], stop
        told = len(self.held) - self.wait
        out, self.held = self.held[:max(0, told)], self.held[max(0, told):]
        return out, None

    def finish(self):
        return self.held + self.detokenizer.finish()


class Scripts:
    """What a test wants to be said: replies by a mark that stands in the prompt, one after the other."""

    def __init__(self, tokenizer):
        self.tokenizer, self.marks, self.lock = tokenizer, {}, threading.Lock()

    def add(self, mark, replies):
        with self.lock:
            self.marks.setdefault(mark, []).extend(replies)

    def next(self, prompt):
        with self.lock:
            if not any(self.marks.values()):
                return Script(self.tokenizer, {})
            text = self.tokenizer.decode(prompt)
            found = next((replies for mark, replies in self.marks.items() if replies and mark in text), None)
            return Script(self.tokenizer, found.pop(0) if found else {})


class Script:
    """`parts`: `{"sample": N}` draws N tokens that end nothing, `{"text"}` is encoded and said, `{"ids"}` too, `{"letters"}` is said letter by
    letter, as no tokenizer would. After them the reply goes on by itself. `die_after`: after so many tokens the connection is cut;
    `update_after`: after so many the weights become those of `version`."""

    def __init__(self, tokenizer, reply):
        self.plan, self.at, self.dies_after = [], 0, reply.get("die_after")
        self.updates_after, self.version = reply.get("update_after"), reply.get("version")
        for part in reply.get("parts", []):
            if "sample" in part:
                self.plan += [None] * part["sample"]
            elif "ids" in part:
                self.plan += part["ids"]
            elif "letters" in part:
                self.plan += [id for letter in part["letters"] for id in tokenizer.encode(letter)]
            else:
                self.plan += tokenizer.encode(part["text"])

    def forced(self):
        """The id that must be said now; `None` to sample."""
        self.at += 1
        return self.plan[self.at - 1] if self.at <= len(self.plan) else None

    def ahead(self):
        """The ids that come now, as far as they are no matter of chance."""
        end = self.at
        while end < len(self.plan) and self.plan[end] is not None and end < self.at + 64:
            end += 1
        return self.plan[self.at:end]

    def goes_on(self):
        return self.at <= len(self.plan)

def scale(version):
    """What weights of this version are multiplied by."""
    return 1 + int(version.removeprefix("step-")) / 100 if version.startswith("step-") else 1.0


def common(one, two):
    """How many ids two sequences share from their start."""
    length = min(len(one), len(two))
    differ = np.flatnonzero(np.asarray(one[:length]) != np.asarray(two[:length]))
    return int(differ[0]) if len(differ) else length
