"""A reply's text as chat knows it, in the manner of vLLM's parsers: `qwen3` for reasoning, `hermes` for tool calls."""

import json

THINK, UNTHINK, CALL, UNCALL = "<think>", "</think>", "<tool_call>", "</tool_call>"


class Parser:
    """Takes text as it comes and gives deltas; what could begin a tag waits. Once it has begun, a call is told when it is whole."""

    def __init__(self, reasoning, tools, name):
        self.state = "begin" if reasoning else "content"
        self.tools, self.held, self.calls, self.name = tools, "", 0, name

    def push(self, text, last=False):
        self.held += text
        deltas = []
        while self.step(deltas, last):
            pass
        return deltas

    def step(self, deltas, last):
        """Does what can be done with what is held; whether there may be more to do."""
        if self.state == "begin":
            if self.held.startswith(THINK):
                self.held, self.state = self.held[len(THINK):], "reasoning"
                return True
            if THINK.startswith(self.held) and not last:
                return False
            self.state = "reasoning"
            return True
        if self.state == "reasoning":
            return self.upto(deltas, "reasoning", UNTHINK, "content", last)
        if self.state == "content" and self.tools:
            return self.upto(deltas, "content", CALL, "call", last)
        if self.state == "call":
            return self.call(deltas, last)
        self.tell(deltas, "content", len(self.held))
        return False

    def upto(self, deltas, name, tag, state, last):
        at = self.held.find(tag)
        if at >= 0:
            self.tell(deltas, name, at)
            self.held, self.state = self.held[len(tag):], state
            return True
        waits = 0 if last else next((size for size in range(len(tag) - 1, 0, -1) if self.held.endswith(tag[:size])), 0)
        self.tell(deltas, name, len(self.held) - waits)
        return False

    def call(self, deltas, last):
        at = self.held.find(UNCALL)
        if at < 0:
            if last:
                # A call that is not whole is text, as its ids say.
                deltas.append({"content": CALL + self.held})
                self.held = ""
            return False
        inner, self.held, self.state = self.held[:at], self.held[at + len(UNCALL):], "content"
        try:
            said = json.loads(inner)
            call = {"name": said["name"], "arguments": json.dumps(said["arguments"], ensure_ascii=False)}
        except (ValueError, KeyError, TypeError):
            deltas.append({"content": CALL + inner + UNCALL})
            return True
        deltas.append({"tool_calls": [{"index": self.calls, "id": f"{self.name}-{self.calls}", "type": "function", "function": call}]})
        self.calls += 1
        return True

    def tell(self, deltas, name, length):
        if length:
            deltas.append({name: self.held[:length]})
            self.held = self.held[length:]


def message(deltas):
    """The whole message that deltas make."""
    whole = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [], "reasoning": None}
    for delta in deltas:
        for name in ("content", "reasoning"):
            if name in delta:
                whole[name] = (whole[name] or "") + delta[name]
        whole["tool_calls"] += [{key: value for key, value in call.items() if key != "index"} for call in delta.get("tool_calls", [])]
    # Blank space between calls is no text.
    if whole["tool_calls"] and not (whole["content"] or "").strip():
        whole["content"] = None
    return whole
