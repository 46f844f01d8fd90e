"""Replies in the forms of vLLM's endpoints: each class takes one reply's steps and gives the events of a stream, or the whole body."""

import time
import uuid

import parse


class Form:
    """What the endpoints have in common."""

    prefix = object = chunk_object = None

    def __init__(self, request, reply, engine, name):
        self.request, self.reply, self.tokenizer, self.engine, self.name = request, reply, engine.tokenizer, engine, name
        self.id = reply.name = self.naming()
        reply.score = request.get("prompt_logprobs") is not None
        self.wants_ids = request.get("return_token_ids") is True

    def naming(self):
        return f"{self.prefix}-{uuid.uuid4().hex}"

    def head(self, object):
        return {"id": self.id, "object": object, "created": int(time.time()), "model": self.name}

    def usage(self):
        prompt, completion = len(self.reply.prompt), len(self.reply.ids)
        return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion, "prompt_tokens_details": None}

    def last(self):
        """The chunk of the usage, where it is asked for."""
        if (self.request.get("stream_options") or {}).get("include_usage"):
            yield {**self.head(self.chunk_object), "choices": [], "usage": self.usage()}

    def entry(self, step, as_id=False):
        """One token's log-probability as chat tells it."""
        spelt = (lambda id: f"token_id:{id}") if as_id or self.request.get("return_tokens_as_token_ids") else self.tokenizer.token
        told = lambda id, logprob: {"token": spelt(id), "logprob": logprob, "bytes": list(self.tokenizer.bytes(id))}
        return {**told(step.id, step.logprob), "top_logprobs": [told(*other) for other in step.top]}

    def prompt_logprobs(self):
        """Each prompt token's log-probability, as vLLM tells them."""
        if self.request.get("prompt_logprobs") is None:
            return None
        scores = self.engine.score(self.reply.prompt)
        told = lambda id, score: {str(id): {"logprob": float(score), "rank": None, "decoded_token": self.tokenizer.token(id)}}
        return [None, *map(told, self.reply.prompt[1:], scores[1:])]


class Chat(Form):
    prefix, object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, request, reply, engine, name, parsers, swallow=False):
        super().__init__(request, reply, engine, name)
        wants_tools = parsers.tools and bool(request.get("tools")) and request.get("tool_choice") != "none"
        thinks = (request.get("chat_template_kwargs") or {}).get("enable_thinking", True)
        self.parser = parse.Parser(parsers.reasoning and thinks, wants_tools, f"chatcmpl-tool-{uuid.uuid4().hex}")
        self.swallow = swallow and wants_tools

    def logprobs(self, steps):
        return {"content": [self.entry(step) for step in steps]} if self.request.get("logprobs") else None

    def finish(self):
        return "tool_calls" if self.reply.finish == "stop" and self.parser.calls else self.reply.finish

    def whole(self, steps):
        deltas = [delta for step in steps for delta in self.parser.push(step.text, step.finish is not None)]
        choice = {"index": 0, "message": parse.message(deltas), "logprobs": self.logprobs(steps), "finish_reason": self.finish(),
                  "stop_reason": self.reply.stop}
        body = {**self.head(self.object), "choices": [choice], "usage": self.usage(), "system_fingerprint": "vllm-0.32.0-gold",
                "prompt_logprobs": self.prompt_logprobs()}
        if self.wants_ids:
            choice["token_ids"], body["prompt_token_ids"] = self.reply.ids, self.reply.prompt
        return body

    def stream(self, steps):
        first = {**self.head(self.chunk_object), "choices": [
            {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}]}
        if self.wants_ids:
            first["prompt_token_ids"] = self.reply.prompt
        yield first
        for step in steps:
            deltas = self.parser.push(step.text, step.finish is not None)
            if self.swallow and not deltas and not step.finish:
                continue
            # One chunk a token: several deltas of one token go together.
            delta = {name: value for delta in deltas for name, value in delta.items()}
            if len(deltas) > 1:
                delta = {name: value for name, value in parse.message(deltas).items() if value and name != "role"}
                delta |= {"tool_calls": [call for one in deltas for call in one.get("tool_calls", [])]} if "tool_calls" in delta else {}
            choice = {"index": 0, "delta": delta or {"content": ""}, "logprobs": self.logprobs([step]),
                      "finish_reason": self.finish() if step.finish else None}
            if step.finish:
                choice["stop_reason"] = step.stop
            if self.wants_ids:
                choice["token_ids"] = [step.id]
            yield {**self.head(self.chunk_object), "choices": [choice]}
        yield from self.last()


class Completion(Form):
    prefix, object, chunk_object = "cmpl", "text_completion", "text_completion"

    def logprobs(self, steps, echoed=()):
        """The old form: lists beside each other, those of the echoed prompt first."""
        if self.request.get("logprobs") is None:
            return None
        scores = self.engine.score(self.reply.prompt) if echoed else []
        entries = [(id, None if not place else float(scores[place]), []) for place, id in enumerate(echoed)]
        entries += [(step.id, step.logprob, step.top) for step in steps]
        tokens = [self.tokenizer.token(id) for id, _, _ in entries]
        top = [None if logprob is None else {self.tokenizer.token(other): value for other, value in [(id, logprob), *others]}
               for id, logprob, others in entries]
        offsets = [sum(map(len, tokens[:place])) for place in range(len(tokens))]
        return {"text_offset": offsets, "token_logprobs": [logprob for _, logprob, _ in entries], "tokens": tokens, "top_logprobs": top}

    def choice(self, steps, first, last):
        echoed = self.reply.prompt if first and self.request.get("echo") else []
        choice = {"index": 0, "text": self.tokenizer.decode(echoed) + "".join(step.text for step in steps),
                  "logprobs": self.logprobs(steps, echoed), "finish_reason": self.reply.finish if last else None,
                  "stop_reason": self.reply.stop if last else None}
        if self.wants_ids:
            choice |= {"token_ids": [step.id for step in steps]} | ({"prompt_token_ids": self.reply.prompt} if first else {})
        return choice

    def whole(self, steps):
        choice = self.choice(steps, True, True)
        choice["prompt_logprobs"] = self.prompt_logprobs()
        return {**self.head(self.object), "choices": [choice], "usage": self.usage(), "system_fingerprint": "vllm-0.32.0-gold"}

    def stream(self, steps):
        for place, step in enumerate(steps):
            yield {**self.head(self.object), "choices": [self.choice([step], place == 0, step.finish is not None)]}
        yield from self.last()


class Generate(Form):
    """`/inference/v1/generate`: token ids in and out, and the weights that sampled them on the last chunk."""

    prefix = "generate-tokens"

    def __init__(self, request, reply, engine, name):
        super().__init__(request, reply, engine, name)
        self.wants_logprobs = request["sampling_params"].get("logprobs") is not None

    def naming(self):
        return f"{self.prefix}-{self.request.get('request_id') or uuid.uuid4().hex}"

    def head(self, _object):
        return {"request_id": self.id}

    def logprobs(self, steps):
        if not self.wants_logprobs:
            return None
        return {"content": [{"token_id": step.id, "logprob": step.logprob, "rank": step.rank,
                             "top_logprobs": [{"token_id": other, "logprob": logprob} for other, logprob in step.top]} for step in steps]}

    def choice(self, steps, last):
        choice = {"index": 0, "token_ids": [step.id for step in steps], "logprobs": self.logprobs(steps),
                  "finish_reason": self.reply.finish if last else None, "stop_reason": self.reply.stop if last else None}
        return choice | ({"weight_versions": self.reply.versions} if last else {})

    def whole(self, steps):
        return {**self.head(None), "choices": [self.choice(steps, True)], "usage": self.usage(), "prompt_logprobs": self.prompt_logprobs()}

    def stream(self, steps):
        for step in steps:
            yield {**self.head(None), "choices": [self.choice([step], step.finish is not None)]}
        yield from self.last()
