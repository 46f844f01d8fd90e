"""What the matrix is made of: wires, SDKs, ways to call them, and cases with what a client must then see.

A cell is a wire, an SDK's language, a case and a way. `asked` gives what its client is told, `seen` what it must say it got.
"""

import base64
import dataclasses
import struct
import zlib

WIRES = {
    "chat": "openai",
    "completions": "openai",
    "responses": "openai",
    "messages": "anthropic",
    "gemini": "google-genai",
}
LANGUAGES = ("python", "node")

# whole: one body. stream: its raw stream. helper: its strict stream helper. parse: its parsed outputs. runner: its tool runner.
PLAIN = ("whole", "stream", "helper")
TOOLS = (*PLAIN, "runner", "runner_stream")
PARSED = (*PLAIN, "parse")
STREAMED = ("stream", "helper", "runner_stream")


def png(red, green, blue):
    """A picture of one pixel, as a data URL."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixel = zlib.compress(bytes([0, red, green, blue]))
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixel) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(data).decode()


def schema(**properties):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


WEATHER = {"name": "weather", "description": "Tells the weather.", "parameters": schema(city={"type": "string"})}
NOW = {"name": "now", "description": "Tells the time.", "parameters": schema()}
CITY = schema(city={"type": "string"}, degrees={"type": "integer"})


def tool(name, arguments):
    return {"name": name, "arguments": arguments}


LONG = " ".join(f"word{n}" for n in range(40))
# Line ends that only JSON knows, marks that join, a flag of two halves, a letter beyond the first plane.
UNICODE = "n\u0061\u0308ive 日本語, 👩\u200d🚀 \u2028 and \u0085, 🇨🇭: 𝒳 \"quoted\" \\ back\u200b.\n\ttab"
BERN, ROME = tool("weather", '{"city": "Bern"}'), tool("weather", '{"city": "Rome, \\"caput mundi\\""}')
BAD = '{"error":{"message":"temperature is out of range","type":"BadRequestError","param":"temperature","code":400}}'
BUSY = '{"error":{"message":"too many requests","type":"TooManyRequests","code":429}}'
DOWN = '{"error":{"message":"no worker lives","type":"ServiceUnavailable","code":503}}'


def status(code, body, **headers):
    return {"text": "never said", "fault": {"kind": "status", "status": code, "body": body, "headers": headers}}


@dataclasses.dataclass(frozen=True)
class Case:
    """What the policy says, what it is asked, and how it ends."""

    name: str
    # What the policy says; with a tool runner, `then` follows.
    reply: dict
    ways: tuple = PLAIN
    # What the policy says where no stream is asked for, if that is something else.
    whole_reply: dict | None = None
    # What is asked beside the prompt: tools, image, schema, max_tokens, stop, reasoning, hang_up.
    ask: dict = dataclasses.field(default_factory=dict)
    finish: str = "stop"
    # How the call's record ends.
    status: str = "done"
    # The kind of the failure: see `failure` below.
    fails: str | None = None
    # What of the reply the client gets where that is not all of it.
    text: str | None = None
    parsed: dict | None = None
    # Why the reply is not trained.
    left_out: str | None = None


THEN = {"text": "The tools have answered, and so do I."}
TEXT = {"text": "Hello wörld, this is \"it\".\nA second line: the end."}
CASES = [
    Case("text", TEXT),
    Case("unicode at every byte", {"text": UNICODE, "fault": {"kind": "byte_by_byte"}}),
    Case("one tool", {"tool_calls": [tool("weather", '{"city": "Zürich 🏔"}')]}, TOOLS, ask={"tools": [WEATHER]}, finish="tools"),
    Case("parallel tools", {"tool_calls": [BERN, ROME]}, TOOLS, ask={"tools": [WEATHER]}, finish="tools"),
    Case("mixed fragments", {"tool_calls": [BERN, ROME], "interleave": True}, TOOLS, {"tool_calls": [BERN, ROME]},
         ask={"tools": [WEATHER]}, finish="tools"),
    Case("tool without arguments", {"tool_calls": [tool("now", "{}")]}, TOOLS, ask={"tools": [NOW, WEATHER]}, finish="tools"),
    # As servers do whose parsers take "{}" for nothing.
    Case("tool with nothing for arguments", {"tool_calls": [tool("now", "")]}, TOOLS, ask={"tools": [NOW, WEATHER]},
         finish="tools"),
    Case("reasoning, text, tool", {"reasoning": "Two cities, hm.\n", "text": "I look. ", "tool_calls": [BERN, ROME]}, TOOLS,
         ask={"tools": [WEATHER], "reasoning": True}, finish="tools"),
    Case("reasoning, text", {"reasoning": "First I think, ", "text": "then I speak."}, ask={"reasoning": True}),
    Case("image", {"text": "One red pixel."}, ask={"image": png(255, 0, 0)}),
    Case("structured output", {"text": '{"city": "Bern", "degrees": -3}'}, PARSED, ask={"schema": CITY},
         parsed={"city": "Bern", "degrees": -3}, left_out="constrained"),
    Case("length", {"text": LONG}, ask={"max_tokens": 5}, finish="length", text=LONG[: LONG.index("word5")]),
    Case("stop sequence", {"text": "one two three four"}, ask={"stop": ["never", "o th"]}, finish="stop_string", text="one tw"),
    Case("refusal", {"refusal": "That I will not do."}, finish="refusal"),
    Case("content filter", {"text": "It is done by ", "finish": "content_filter"}, finish="filtered"),
    Case("error before: refused", status(400, BAD), status="failed", fails="refused"),
    Case("error before: busy", status(429, BUSY, **{"retry-after": "7"}), status="failed", fails="busy"),
    Case("error before: down", status(503, DOWN), status="failed", fails="down"),
    Case("error inside", TEXT | {"fault": {"kind": "error_event", "events": 4}}, whole_reply=TEXT | {"fault": {"kind": "broken_json"}},
         status="failed", fails="inside"),
    Case("cut", TEXT | {"fault": {"kind": "cut_after", "events": 4}}, status="failed", fails="cut"),
    # Longer than a stream may be silent here, so that there are pings.
    Case("slow", TEXT | {"pause_ms": 1400}),
    Case("hang-up", TEXT | {"fault": {"kind": "stall_after", "events": 4}}, whole_reply=TEXT | {"fault": {"kind": "stall_before"}},
         ask={"hang_up": True}, status="cancelled"),
]

FINISH = {
    "chat": {"stop": "stop", "tools": "tool_calls", "length": "length", "stop_string": "stop", "refusal": "stop",
             "filtered": "content_filter"},
    "completions": {"stop": "stop", "length": "length", "stop_string": "stop", "filtered": "content_filter"},
    "responses": {"stop": "completed", "tools": "completed", "length": "incomplete: max_output_tokens", "stop_string": "completed",
                  "refusal": "completed", "filtered": "incomplete: content_filter"},
    "messages": {"stop": "end_turn", "tools": "tool_use", "length": "max_tokens", "stop_string": "stop_sequence",
                 "refusal": "refusal", "filtered": "refusal"},
    "gemini": {"stop": "STOP", "tools": "STOP", "length": "MAX_TOKENS", "stop_string": "STOP", "refusal": "SAFETY",
               "filtered": "SAFETY"},
}
# What the record says, whatever the wire.
RECORDED = {"stop": "stop", "tools": "tool_calls", "length": "length", "stop_string": "stop", "refusal": "stop",
            "filtered": "content_filter"}

NO_TOOLS = "completions has no tools"
NOT_APPLICABLE = {
    ("completions", "one tool"): NO_TOOLS,
    ("completions", "parallel tools"): NO_TOOLS,
    ("completions", "mixed fragments"): NO_TOOLS,
    ("completions", "tool without arguments"): NO_TOOLS,
    ("completions", "tool with nothing for arguments"): NO_TOOLS,
    ("completions", "reasoning, text, tool"): "completions has neither tools nor reasoning: a server parses nothing there",
    ("completions", "reasoning, text"): "completions has no reasoning: a server parses nothing there",
    ("completions", "image"): "a prompt of completions is text or token ids",
    ("completions", "structured output"): "completions has no response format",
    ("completions", "refusal"): "completions has no refusals, only texts",
}
# The ways that each SDK has.
WAYS = {
    ("chat", "python"): (*PLAIN, "parse"),
    ("chat", "node"): (*PLAIN, "parse", "runner", "runner_stream"),
    ("completions", "python"): ("whole", "stream"),
    ("completions", "node"): ("whole", "stream"),
    ("responses", "python"): (*PLAIN, "parse", "runner", "runner_stream"),
    ("responses", "node"): (*PLAIN, "parse", "runner", "runner_stream"),
    ("messages", "python"): (*PLAIN, "parse", "runner", "runner_stream"),
    ("messages", "node"): (*PLAIN, "parse", "runner", "runner_stream"),
    ("gemini", "python"): (*PLAIN, "parse", "runner", "runner_stream"),
    ("gemini", "node"): (*PLAIN, "runner", "runner_stream"),
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One wire, language, case and way."""

    wire: str
    language: str
    case: Case
    way: str

    @property
    def id(self):
        return f"{self.wire}-{self.language}-{self.case.name}-{self.way}".replace(" ", "_")

    @property
    def mark(self):
        """Stands in the prompt, so that the policy knows the cell's script, and in no other's."""
        return "mark" + "".join(char if char.isalnum() else "" for char in self.id) + "."

    @property
    def streamed(self):
        return self.way in STREAMED

    @property
    def replies(self):
        reply = self.case.whole_reply if self.case.whole_reply and not self.streamed else self.case.reply
        return [reply, THEN] if self.runs_tools else [reply]

    @property
    def runs_tools(self):
        return self.way.startswith("runner")

    @property
    def asked(self):
        """What the client is told."""
        return {"wire": self.wire, "way": self.way, "prompt": f"{self.mark} Say something."} | self.case.ask


def cells():
    """All cells that there are."""
    for wire in WIRES:
        for language in LANGUAGES:
            for case in CASES:
                if (wire, case.name) in NOT_APPLICABLE:
                    continue
                for way in ways(wire, language, case):
                    yield Cell(wire, language, case, way)


def ways(wire, language, case):
    """The ways in which this SDK can be asked for this case."""
    return [way for way in case.ways if way in WAYS[wire, language]]
