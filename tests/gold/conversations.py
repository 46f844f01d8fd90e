"""Conversations as harnesses hold them: clients of chat completions that echo what they were told, each in a manner of its own."""

import dataclasses
import itertools
import json

import httpx

TOOLS = [
    {"type": "function", "function": {"name": "read", "description": "Reads <a file> & 'more'.", "parameters": {
        "type": "object", "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}}, "required": ["path"]}}},
    {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}},
]
NUMBERS = itertools.count(1)


def as_it_was(message, _results):
    return message


def renamed(message, results):
    """Ids shortened, as harnesses do that have a form of their own for them."""
    names = {call["id"]: f"c{place}" for place, call in enumerate(message.get("tool_calls", []))}
    for result in results:
        result["tool_call_id"] = names.get(result["tool_call_id"], result["tool_call_id"])
    return {**message, **calls_by(message, lambda call: {**call, "id": names[call["id"]]})}


def reserialised(message, _results):
    """Arguments parsed and written anew: other blanks, other escapes, keys sorted."""
    def anew(call):
        arguments = json.dumps(json.loads(call["function"]["arguments"]), separators=(",", ":"), sort_keys=True)
        return {**call, "function": {**call["function"], "arguments": arguments}}

    return {**message, **calls_by(message, anew)}


def trimmed(message, _results):
    content = message.get("content")
    return {**message, "content": content.strip() if content else content}


def forgetful(message, _results):
    """Reasoning dropped."""
    return {name: value for name, value in message.items() if name not in ("reasoning", "reasoning_content")}


def in_parts(message, _results):
    """The text as a list of parts."""
    return {**message, "content": [{"type": "text", "text": message["content"]}]} if message.get("content") else message


def split(message, _results):
    """A text and the calls after it as two messages, as the items of other wires become."""
    if not (message.get("content") and message.get("tool_calls")):
        return message
    said = {name: value for name, value in message.items() if name != "tool_calls"}
    return [said, {"role": "assistant", "content": None, "tool_calls": message["tool_calls"]}]


def all_of_it(message, results):
    for echo in (renamed, reserialised, trimmed, forgetful, in_parts):
        message = echo(message, results)
    return message


def text_of(message):
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def calls_by(message, change):
    return {"tool_calls": [change(call) for call in message["tool_calls"]]} if message.get("tool_calls") else {}


ECHOES = [as_it_was, renamed, reserialised, trimmed, forgetful, in_parts, split, all_of_it]


@dataclasses.dataclass
class Turn:
    """One call as the client made it."""

    call_id: str
    messages: list
    options: dict
    reply: dict
    finish: str
    # It goes on from the conversation's last turn, word for word.
    goes_on: bool


class Chat:
    """One conversation. `mark` stands in it, so that its replies can be scripted."""

    def __init__(self, table, rollout=None, system=None, echo=as_it_was, **options):
        self.table, self.rollout, self.echo = table, rollout or table.gleaner.rollout(), echo
        self.mark = f"[m{next(NUMBERS)}]"
        self.messages = [{"role": "system", "content": system}] if system else []
        self.options, self.turns, self.edited, self.seen = options, [], False, lambda line: None

    def script(self, *replies):
        self.table.script(self.mark, *replies)

    def user(self, text):
        """Asks, and keeps the answer."""
        mark = "" if any(self.mark in str(message["content"]) for message in self.messages) else f"{self.mark} "
        self.messages.append({"role": "user", "content": mark + text})
        return self.ask()

    def results(self, reply, text):
        """Tells what each of the reply's calls gave; if it called nothing, says the text as the user."""
        calls = reply.get("tool_calls") or []
        if not calls:
            return self.user(text)
        self.messages += [{"role": "tool", "tool_call_id": self.echoed[call["id"]], "content": f"{text} {place}"}
                          for place, call in enumerate(calls)]
        return self.ask()

    def ask(self, **options):
        """Sends what there is, and keeps the answer as this client echoes it."""
        turn = self.send(**options)
        reply = turn.reply
        results = [{"tool_call_id": call["id"]} for call in reply.get("tool_calls", [])]
        kept = self.echo(dict(reply), results)
        self.echoed = {call["id"]: result["tool_call_id"] for call, result in zip(reply.get("tool_calls", []), results)}
        # A text that was changed reads otherwise, and so do two messages; all else may be written in many ways.
        self.edited = isinstance(kept, list) or text_of(kept) != text_of(reply)
        self.messages += kept if isinstance(kept, list) else [kept]
        return reply

    def edit(self, place, message):
        """Changes what was said; the messages after it stay."""
        self.messages[place], self.edited = message, True

    def forget(self, messages):
        """Begins anew with these messages, as a compaction does."""
        self.messages, self.edited = messages, True

    def send(self, **options):
        options = {"max_tokens": 256, **self.options, **options}
        messages = [dict(message) for message in self.messages]
        turn = post(self.table.gleaner, self.rollout, {"model": "any", "messages": messages, **options}, self.seen)
        turn = Turn(turn[0], messages, options, turn[1], turn[2], goes_on=bool(self.turns) and not self.edited)
        self.turns.append(turn)
        self.edited = False
        return turn


def post(gleaner, rollout, body, seen=lambda line: None):
    """One call: its id, the reply as a message, and why it ended. `seen` is shown each event of a stream."""
    url = f"/rollouts/{rollout['key']}/v1/chat/completions"
    if not body.get("stream"):
        answer = gleaner.http.post(url, json=body, timeout=120)
        if answer.status_code != 200:
            raise AssertionError(f"{answer.status_code}: {answer.text}")
        choice = answer.json()["choices"][0]
        message = {name: value for name, value in choice["message"].items() if value not in (None, [])}
        return answer.headers["x-gleaner-call"], {"content": None, **message}, choice["finish_reason"]
    with gleaner.http.stream("POST", url, json=body, timeout=120) as answer:
        answer.read() if answer.status_code != 200 else None
        if answer.status_code != 200:
            raise AssertionError(f"{answer.status_code}: {answer.text}")
        return answer.headers["x-gleaner-call"], *gathered(answer, seen)


def gathered(answer: httpx.Response, seen=lambda line: None):
    """A stream's message and why it ended."""
    message, calls, finish = {"role": "assistant", "content": None}, {}, None
    done = False
    for line in answer.iter_lines():
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            done = True
            break
        seen(line)
        chunk = json.loads(data)
        if "error" in chunk:
            raise AssertionError(f"the stream says: {chunk['error']}")
        for choice in chunk["choices"]:
            finish = choice.get("finish_reason") or finish
            for name, value in choice["delta"].items():
                if name == "tool_calls":
                    for piece in value:
                        call = calls.setdefault(piece["index"], {"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
                        call["id"] = piece.get("id") or call["id"]
                        call["function"]["name"] += piece.get("function", {}).get("name") or ""
                        call["function"]["arguments"] += piece.get("function", {}).get("arguments") or ""
                elif name != "role" and isinstance(value, str) and value:
                    message[name] = (message.get(name) or "") + value
    assert done and finish, "the stream ended before it was done"
    return message | ({"tool_calls": [calls[place] for place in sorted(calls)]} if calls else {}), finish


END = {"text": "<|im_end|>"}


def thought(count):
    return [{"text": "<think>\n"}, {"sample": count}, {"text": "\n</think>\n\n"}]


def called(*calls):
    """Calls as Qwen3 is taught to write them, in spellings that no template would choose."""
    spellings = [lambda call: json.dumps(call, ensure_ascii=False), lambda call: json.dumps(call, separators=(",", ":")),
                 lambda call: json.dumps(call, ensure_ascii=True), lambda call: json.dumps(dict(reversed(call.items())))]
    texts = [f"<tool_call>\n{spellings[place % len(spellings)](call)}\n</tool_call>" for place, call in enumerate(calls)]
    return [{"text": "\n".join(texts)}]


def a_call(number):
    if number % 2:
        return {"name": "bash", "arguments": {"command": f"grep -n 'é{number}' *.py | head -{number}", "b": 1, "a": [1, 2.50, None]}}
    return {"name": "read", "arguments": {"path": f"src/Îlot {number}.rs", "lines": number}}


def tool_turns(table, echo, turns=12, sampled=6, stream=lambda number: number % 2 == 0):
    """Turn after turn with reasoning, a little text and a call or two, as an agent works."""
    chat = Chat(table, system="You are an agent. <|im_start|> is a token.", echo=echo, tools=TOOLS)
    plan = []
    for number in range(turns - 1):
        calls = called(*[a_call(number + place) for place in range(1 + number % 3)])
        said = [{"text": "I look"}, {"sample": sampled}] if number % 2 else []
        plan.append({"parts": [*thought(sampled), *said, *calls, END]})
    plan.append({"parts": [*thought(sampled), {"text": "All done. "}, {"sample": sampled}, END]})
    chat.script(*plan)
    chat.options["stream"] = stream(0)
    reply = chat.user("Find the bug, please.")
    for number in range(1, turns):
        chat.options["stream"] = stream(number)
        reply = chat.results(reply, f"line {number}: naïve\r\n  \t x = '{number}'")
    return [chat]


def spoken(count=8, text=""):
    """A reply that says something and ends."""
    return {"parts": [{"text": "<think>\n\n</think>\n\n" + text}, {"sample": count}, END]}


def edited_history(table):
    """The user changes an earlier message, and the conversation goes on from there."""
    chat = Chat(table, system="Be brief.")
    chat.script(*[spoken() for _ in range(5)])
    for text in ("one", "two", "three"):
        chat.user(text)
    chat.edit(3, {"role": "user", "content": "rather four"})
    chat.user("five")
    chat.user("six")
    return [chat]


def compaction(table):
    """The harness has the conversation summed up and goes on with the summary alone."""
    chat = Chat(table, system="Be brief.")
    chat.script(*[spoken() for _ in range(6)])
    for text in ("one", "two", "three"):
        chat.user(text)
    summary = chat.user("Sum up what was said.")
    chat.forget([{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"{chat.mark} So far: {summary['content']}"}])
    chat.ask()
    chat.user("Go on.")
    return [chat]


def sub_agents(table):
    """Two agents of one rollout take turns, with prompts of their own."""
    main = Chat(table, system="You lead.", tools=TOOLS)
    helper = Chat(table, rollout=main.rollout, system="You help.")
    for chat in (main, helper):
        chat.script(*[spoken() for _ in range(4)])
    for number in range(4):
        main.user(f"lead {number}")
        helper.user(f"help {number}")
    return [main, helper]


def retries(table):
    """The same prompt again: the first answer was had and set aside; the conversation goes on from the second."""
    chat = Chat(table, system="Be brief.")
    chat.script(*[spoken() for _ in range(4)])
    chat.user("one")
    chat.messages.append({"role": "user", "content": "two"})
    chat.send()
    chat.turns[-1].goes_on = True
    chat.ask()
    chat.turns[-1].goes_on = False
    chat.user("three")
    return [chat]


def garbled(table):
    """Calls that are none: they stay text, and the conversation goes on."""
    chat = Chat(table, system="You are an agent.", tools=TOOLS)
    plain = {"text": "<think>\n\n</think>\n\n"}
    texts = ['<tool_call>\n{"name": "bash", "arguments": {"command": ls}}\n</tool_call>', "<tool_call> is how one calls a tool",
             '<tool_call>\n["bash"]\n</tool_call> and </tool_call>', "a < b, <tool, </think> and <tool_cal"]
    chat.script(*[{"parts": [plain, {"text": text}, {"sample": 2}, END]} for text in texts], spoken())
    for number in range(len(texts) + 1):
        chat.user(f"number {number}")
    return [chat]


# Each way in which an emoji of four bytes and more is put together.
EMOJI = ["😀", "👍🏽", "👩‍🚀", "👨‍👩‍👧‍👦", "🇫🇷", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "🏳️‍🌈", "🤷🏾‍♀️", "🧑🏻‍❤️‍💋‍🧑🏿", "𝔘𝔫𝔦", "𠮷", "𓀀", "🀄", "🪿", "e\u0301", "שלום", "한국", "\u200f\u200b"]


def unicode(table):
    """Characters of every length, said whole, byte by byte, and cut off in the middle by the limit."""
    chat = Chat(table, system=f"Write {EMOJI[3]}.")
    for emoji in EMOJI:
        chat.script({"parts": [{"text": "<think>\n\n</think>\n\n" + emoji}, {"letters": emoji}, {"sample": 2}, {"text": f"ab{emoji} \n"}, END]})
        chat.user(f"{emoji} and {emoji}{emoji}?")
    chat.script({"parts": [{"text": "<think>\n\n</think>\n\n"}, {"letters": "🪿" * 4}]})
    chat.messages.append({"role": "user", "content": "cut"})
    # The goose is three tokens or more: a limit of 5 after the block of reasoning falls into one.
    chat.ask(max_tokens=table.family.tokenizer.encode("<think>\n\n</think>\n\n").__len__() + 5)
    chat.script(spoken())
    chat.user("again")
    return [chat]


def stops(table):
    """Replies that end by a stop string (in a token, over tokens), by length, and within a call."""
    chat = Chat(table, system="Be brief.", tools=TOOLS)
    plain = {"text": "<think>\n\n</think>\n\n"}
    chat.script({"parts": [plain, {"text": "it is Half past two"}, {"sample": 20}]}, {"parts": [plain, {"letters": "one STOP two"}, {"sample": 20}]},
                {"parts": [plain, {"sample": 40}]}, {"parts": [plain, *called(a_call(1))]}, spoken())
    for text, options in [("one", {"stop": "alf"}), ("two", {"stop": ["STOP", "never"]}), ("three", {"max_tokens": 9}), ("four", {"max_tokens": 20})]:
        chat.messages.append({"role": "user", "content": f"{chat.mark} {text}"})
        chat.ask(**options)
    chat.user("five")
    return [chat]


def hot(table, seed, turns=2, tokens=12, temperature=1.3):
    """What a model says that is too warm: text that its own tokenizer would cut up otherwise."""
    chat = Chat(table, temperature=temperature, max_tokens=tokens)
    for turn in range(turns):
        chat.options["seed"] = 1000 * turn + seed
        chat.user(f"Tell me about {seed}.")
    return [chat]


def killing(replica, chat, after=8):
    """Kills the server's process once so many events of the conversation's first reply have come."""
    events = itertools.count(1)

    def seen(_line):
        if next(events) == after:
            replica.process.kill()

    chat.seen = seen
    chat.user("Speak at length.")
    replica.process.wait()


def pausing(table, chat, version, after=8):
    """Pauses the policy once so many events of the conversation's first reply have come, and gives it other weights meanwhile."""
    events = itertools.count(1)

    def seen(_line):
        if next(events) == after:
            put(table, paused=True, mode="resume")
            while not put(table)["drained"]:
                pass
            table.family.replicas[0].update(version)
            put(table, paused=False)

    chat.seen = seen
    chat.user("Speak at length.")


def put(table, **update):
    """Changes the policy, and says how it is."""
    answer = table.gleaner.http.put("/api/v1/policies/default", json=update)
    answer.raise_for_status()
    return answer.json()
