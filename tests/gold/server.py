#!/usr/bin/env python3
"""A small policy server that samples for real and speaks as vLLM 0.32 does (chat, completions, generate, tokenize, weights).

Prints `listening on http://ADDR`. Beside vLLM's endpoints: POST /test/script {"mark", "replies"} says what to say (see engine.Script) where
the mark stands in a prompt. --log names a file that gets a line for each request and each sampled token, before anyone is told of it.
"""

import argparse
import dataclasses
import http.server
import json
import os
import select
import signal
import socket

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import engine as engines
import model
import replies
import tokenizer
from engine import BadRequest, Sampling


@dataclasses.dataclass
class Parsers:
    reasoning: bool
    tools: bool


class Gone(Exception):
    """The client hung up."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine = parsers = name = None
    swallow = False

    def setup(self):
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, *_):
        pass

    def do_GET(self):
        answers = {
            "/version": lambda: {"version": "0.32.0"},
            "/health": lambda: None,
            "/v1/models": lambda: {"object": "list", "data": [
                {"id": self.name, "object": "model", "created": 1_700_000_000, "owned_by": "vllm", "root": self.name, "parent": None,
                 "max_model_len": self.engine.window}]},
            "/weight_info": lambda: {"weight_version": self.engine.version},
        }
        found = answers.get(self.path)
        self.whole(200, found()) if found else self.whole(404, {"detail": "Not Found"})

    def do_POST(self):
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        answers = {"/tokenize": self.tokenize, "/detokenize": self.detokenize, "/v1/chat/completions": self.chat,
                   "/v1/completions": self.completions, "/inference/v1/generate": self.generate,
                   "/update_weight_version": self.update, "/test/script": self.script}
        try:
            if self.path not in answers:
                return self.whole(404, {"detail": "Not Found"})
            try:
                request = json.loads(raw)
            except ValueError as error:
                raise BadRequest(f"invalid JSON: {error}") from error
            answers[self.path](request)
        except BadRequest as error:
            self.refuse(str(error), error.param)
        except (KeyError, TypeError, ValueError) as error:
            self.refuse(f"{type(error).__name__}: {error}")
        except (Gone, engines.Died, ConnectionError):
            self.close_connection = True

    def refuse(self, message, param=None):
        self.whole(400, {"error": {"message": message, "type": "BadRequestError", "param": param, "code": 400}})

    def tokenize(self, request):
        if "messages" in request:
            ids = self.prompt(request)
        else:
            ids = self.engine.tokenizer.encode(request["prompt"], request.get("add_special_tokens", True))
        strings = list(map(self.engine.tokenizer.token, ids)) if request.get("return_token_strs") else None
        self.whole(200, {"count": len(ids), "max_model_len": self.engine.window, "tokens": ids, "token_strs": strings})

    def detokenize(self, request):
        self.whole(200, {"prompt": self.engine.tokenizer.decode(request["tokens"])})

    def update(self, request):
        self.engine.update(request["new_version"])
        self.whole(200, {"success": True, "weight_version": self.engine.version})

    def script(self, request):
        self.engine.scripts.add(request["mark"], request["replies"])
        self.whole(200, {})

    def prompt(self, request):
        options = {name: request[name] for name in ("add_generation_prompt", "continue_final_message") if name in request}
        options = {"add_generation_prompt": True} | options | (request.get("chat_template_kwargs") or {})
        tools = request.get("tools") if request.get("tool_choice") != "none" else None
        try:
            messages = tokenizer.as_template_knows(request["messages"])
            text = self.engine.tokenizer.render(messages, tools=tools or None, **options)
        # Whatever a template or a message's arguments raise is the client's to mend, as vLLM has it.
        except Exception as error:
            raise BadRequest(f"{error} {type(error).__name__}") from error
        return self.engine.tokenizer.encode(text)

    def chat(self, request):
        sampling = Sampling.of({**request, "max_tokens": request.get("max_completion_tokens") or request.get("max_tokens")})
        alternatives = (request.get("top_logprobs") or 0) if request.get("logprobs") else 0
        reply = self.engine.begin(self.prompt(request), sampling, alternatives)
        self.answer(replies.Chat(request, reply, self.engine, self.name, self.parsers, self.swallow), request)

    def completions(self, request):
        prompt = request["prompt"]
        if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
            prompt = prompt[0]
        ids = self.engine.tokenizer.encode(prompt, request.get("add_special_tokens", True)) if isinstance(prompt, str) else prompt
        reply = self.engine.begin(ids, Sampling.of({"max_tokens": 16, **request}), request.get("logprobs") or 0)
        self.answer(replies.Completion(request, reply, self.engine, self.name), request)

    def generate(self, request):
        fields = request["sampling_params"]
        reply = self.engine.begin(request["token_ids"], Sampling.of(fields), fields.get("logprobs") or 0)
        request["prompt_logprobs"] = fields.get("prompt_logprobs")
        self.answer(replies.Generate(request, reply, self.engine, self.name), request)

    def answer(self, form, request):
        steps = self.watched(form.reply)
        if not request.get("stream"):
            return self.whole(200, form.whole(list(steps)))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for chunk in form.stream(steps):
            self.event(json.dumps(chunk, ensure_ascii=False))
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def watched(self, reply):
        """The steps of a reply, for as long as the client is there."""
        for step in reply:
            yield step
            readable, _, _ = select.select([self.connection], [], [], 0)
            if readable and not self.connection.recv(1, socket.MSG_PEEK):
                raise Gone

    def event(self, data):
        frame = f"data: {data}\n\n".encode()
        self.wfile.write(f"{len(frame):x}\r\n".encode() + frame + b"\r\n")

    def whole(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


MODELS = {"qwen3": (model.tiny_qwen3, tokenizer.qwen3), "smollm2": (model.smollm2, tokenizer.smollm2)}


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("model", choices=MODELS)
    arguments.add_argument("--log", required=True, help="the file that gets every sampled token")
    arguments.add_argument("--window", type=int, default=8192, help="most tokens of prompt and reply together")
    arguments.add_argument("--parsers", action="store_true", help="read reasoning (qwen3) and tool calls (hermes) out of chat replies")
    arguments.add_argument("--swallow", action="store_true", help="streams of chat with tools lose the ids that the parser holds back, "
                                                                  "as those of vLLM's releases that send no chunk for them")
    given = arguments.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    make, read = MODELS[given.model]
    Handler.engine = engines.Engine(make(), read(), given.window, open(given.log, "a", encoding="utf-8"))
    Handler.parsers, Handler.name, Handler.swallow = Parsers(given.parsers, given.parsers), f"gold-{given.model}", given.swallow
    server = Server(("127.0.0.1", 0), Handler)
    print(f"listening on http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
