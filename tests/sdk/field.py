"""Plays cells: one gleaner, one scripted policy and one program for each language serve them all, several at a time."""

import concurrent.futures
import itertools
import json
import os
import subprocess
import threading

import clients
import programs

# A stream that is silent for a second gets a sign of life, and trouble is not retried for long.
CONFIG = """
[server]
ping_s = 1
[policies.default]
retry_s = 1
"""
AT_ONCE = 8
PATIENCE_S = 60
NODE = programs.ROOT / "target/sdk-node"


class Node:
    """The SDKs for Node, in one process that is asked by lines of JSON."""

    def __init__(self):
        # The link (scripts/setup) is how the program finds the packages beside it.
        command = [NODE / "node_modules/.bin/node", "--preserve-symlinks", "--preserve-symlinks-main", NODE / "runner/main.mjs"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.numbers, self.waiting, self.lock = itertools.count(), {}, threading.Lock()
        threading.Thread(target=self.listen, daemon=True).start()

    def run(self, asked):
        answer = concurrent.futures.Future()
        with self.lock:
            number = next(self.numbers)
            self.waiting[number] = answer
            self.process.stdin.write(json.dumps({"number": number, "asked": asked}) + "\n")
            self.process.stdin.flush()
        return answer.result(PATIENCE_S)

    def listen(self):
        for line in self.process.stdout:
            answer = json.loads(line)
            self.waiting.pop(answer["number"]).set_result(answer["got"])
        for answer in self.waiting.values():
            answer.set_exception(RuntimeError("the program for Node has died; what it said stands above"))

    def stop(self):
        self.process.stdin.close()
        self.process.wait(PATIENCE_S)


class Field:
    """Where cells are played."""

    def __init__(self, policy, gleaner):
        self.policy, self.gleaner = policy, gleaner
        self.pool = concurrent.futures.ThreadPoolExecutor(AT_ONCE)
        self.node, self.node_lock = None, threading.Lock()
        self.played = {}

    def start(self, cells):
        """Begins to play all of them; `play` waits for one."""
        self.played = {cell.id: self.pool.submit(self.run_cell, cell) for cell in cells}

    def play(self, cell):
        """The cell's rollout, and what the client got."""
        return self.played[cell.id].result(2 * PATIENCE_S)

    def run_cell(self, cell):
        rollout = self.gleaner.rollout(task_id=cell.id)
        self.policy.bind(cell.mark, cell.replies)
        return rollout, self.run(cell.language, cell.asked, rollout)

    def run(self, language, asked, rollout):
        """Has a client of this language do what is asked, as a part of the rollout."""
        asked = asked | {"url": self.gleaner.url, "key": rollout["key"]}
        if language == "python":
            return clients.run(asked)
        with self.node_lock:
            self.node = self.node or Node()
        return self.node.run(asked)

    def stop(self):
        self.pool.shutdown(cancel_futures=True)
        if self.node:
            self.node.stop()


def without_others():
    """SDKs read keys and addresses from the environment; none of them is for us."""
    for name in list(os.environ):
        if name.startswith(("OPENAI_", "ANTHROPIC_", "GOOGLE_", "GEMINI_")):
            del os.environ[name]
