"""A plain ReAct agent (arxiv.org/abs/2210.03629): the model thinks, runs a command, sees what it printed, until it answers.

Standard library only. It prints the answer, and writes how it ended to the result file.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

ABOUT = """You are an agent that solves tasks on a Linux machine by running shell commands.

- Each command runs in a new shell in {workdir}: files stay, but `cd` and variables of one command are gone in the next.
- Nobody answers questions, neither yours nor a command's. Commands have no terminal and no standard input.
- A command that takes longer than {seconds} seconds is killed. Of output longer than {limit} characters the middle is left out.
- You have at most {steps} turns. Look before you change something, and check your work before you end.

"""
TOOLS = ABOUT + """Say briefly what you think, then call the tool `bash`. When the task is done, answer without calling it:
that ends the session."""
TEXT = ABOUT + """In each turn reply in one of these two forms, with nothing after it.

To run a command:
Thought: what you think
Action:
```bash
the command
```
You will then be given an observation: what the command printed, and its exit code.

When the task is done:
Thought: what you think
Final Answer: your answer to the user; it ends the session"""
BASH = {"type": "function", "function": {
    "name": "bash",
    "description": "Runs a shell command and gives what it printed (standard output and error) and its exit code.",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}}
ACTION = re.compile(r"^```(?:bash|sh)[ \t]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
ANSWER = re.compile(r"^Final Answer:(.*)", re.DOTALL | re.MULTILINE)
MISTAKES = 3  # replies in a row that are neither a command nor an answer


class End(Exception):
    """The session's end: its status, and the answer or what went wrong."""


class Model:
    """A model behind OpenAI's chat completions."""

    def __init__(self, options):
        self.url, self.key = options.base_url + "/chat/completions", os.environ.pop("REACT_API_KEY", "none")
        self.body = {"model": options.model}
        if options.form == "tools":
            self.body["tools"] = [BASH]
        if options.max_tokens:
            self.body["max_tokens"] = options.max_tokens

    def reply(self, messages):
        """The message that comes next; End if there is none, or it was cut."""
        headers = {"content-type": "application/json", "authorization": "Bearer " + self.key, "user-agent": "gleaner-react/1"}
        body = json.dumps({**self.body, "messages": messages}).encode()
        for last in (False, True):
            try:
                with urllib.request.urlopen(urllib.request.Request(self.url, body, headers)) as answer:
                    choice = json.load(answer)["choices"][0]
                break
            except urllib.error.HTTPError as error:
                said = f"the model's server answered {error.code}: {error.read().decode(errors='replace')}"
                if "context_length" in said or "context length" in said:
                    raise End("context", said) from None
                if last or (error.code < 500 and error.code not in (408, 429)):
                    raise End("error", said) from None
            except (OSError, ValueError, LookupError) as error:
                if last:
                    raise End("error", f"asking the model: {error!r}") from None
            time.sleep(1)
        messages.append(choice["message"])
        if choice.get("finish_reason") == "length":
            raise End("length", "the reply was cut by its limit of tokens")
        return choice["message"]


class Shell:
    """Runs commands, each in a shell and a process group of its own."""

    def __init__(self, options):
        self.seconds, self.limit = options.command_s, options.output_chars
        self.program = shutil.which("bash") or "/bin/sh"

    def run(self, command):
        """What it printed, without the middle if it is long, and how it ended."""
        output = bytearray()
        process = subprocess.Popen([self.program, "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        # A thread, as a process left in the background may hold the pipe open.
        reader = threading.Thread(target=self.read, args=(process.stdout, output), daemon=True)
        reader.start()
        try:
            code = process.wait(self.seconds)
            end = f"exit code {code}" if code >= 0 else f"killed by signal {-code}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            end = f"killed: it took longer than {self.seconds} seconds"
        reader.join(1)
        return f"{self.cut(bytes(output))}\n({end})".lstrip("\n")

    def read(self, pipe, output):
        """Reads all, and keeps no more than is ever shown."""
        while chunk := pipe.read1(65536):
            output += chunk
            if len(output) > 16 * self.limit:
                del output[4 * self.limit:-4 * self.limit]

    def cut(self, output):
        text, half = output.decode(errors="replace").rstrip("\n"), self.limit // 2
        short = len(text) <= self.limit
        return text if short else f"{text[:half]}\n\n[... the middle of this long output is left out ...]\n\n{text[-half:]}"


def by_tools(message, shell):
    """Runs the calls of a reply: what to tell the model, and whether any was valid. Without calls it is an answer."""
    calls, told, valid = message.get("tool_calls") or [], [], False
    if not calls and (message.get("content") or "").strip():
        raise End("answered", message["content"].strip())
    for call in calls:
        try:
            if call["function"]["name"] != "bash":
                raise ValueError(f"there is no tool {call['function']['name']}; the only one is bash")
            command = json.loads(call["function"]["arguments"])["command"]
            if not isinstance(command, str):
                raise ValueError("command must be a text")
            text, valid = shell.run(command), True
        except (ValueError, LookupError, TypeError) as error:
            text = f"Error: the call is not valid, nothing was run: {error}. Call bash with {{\"command\": \"...\"}}."
        told.append({"role": "tool", "tool_call_id": call.get("id"), "content": text})
    return told or [{"role": "user", "content": "Your reply was empty. Call bash, or answer to end the session."}], valid


def by_text(message, shell):
    """The same for a model without tools."""
    text = message.get("content") or ""
    if action := ACTION.search(text):
        return [{"role": "user", "content": "Observation:\n" + shell.run(action[1])}], True
    if answer := ANSWER.search(text):
        raise End("answered", answer[1].strip())
    remind = "Your reply had neither an Action with a ```bash block nor a Final Answer. Reply in one of the two forms."
    return [{"role": "user", "content": remind}], False


def solve(options):
    """Goes on until the end, which it raises."""
    prompt, act = {"tools": (TOOLS, by_tools), "text": (TEXT, by_text)}[options.form]
    about = prompt.format(workdir=os.getcwd(), seconds=options.command_s, limit=options.output_chars, steps=options.steps)
    messages = [{"role": "system", "content": about}, {"role": "user", "content": options.prompt}]
    model, shell, mistakes = Model(options), Shell(options), 0
    for options.turns in range(1, options.steps + 1):
        told, valid = act(model.reply(messages), shell)
        messages += told
        mistakes = 0 if valid else mistakes + 1
        if mistakes == MISTAKES:
            raise End("format", f"{MISTAKES} replies in a row were neither a command nor an answer")
    raise End("steps", f"no answer after {options.steps} turns")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("base-url", "model", "form", "result"):
        parser.add_argument("--" + name, required=True)
    for name in ("steps", "command-s", "output-chars", "max-tokens"):
        parser.add_argument("--" + name, required=True, type=int)
    parser.add_argument("prompt")
    options = parser.parse_args()
    options.turns = 0
    try:
        solve(options)
    except End as end:
        status, text = end.args
    with open(options.result, "w") as file:
        json.dump({"status": status, "turns": options.turns, "text": text}, file)
    print(text)
    sys.exit(status == "error")


if __name__ == "__main__":
    main()
