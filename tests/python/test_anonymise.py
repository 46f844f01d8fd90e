"""scripts/anonymise keeps the shape of a request and nothing of its words."""

import json
import subprocess

from programs import ROOT

SYSTEM = "You are Zorblax, a careful assistant.\n\n- Never guess: ask `which_file` first.\n\tÜber 42 Fälle, 中文, 🙂.\n"
REQUEST = {
    "model": "gleaner-policy",
    "messages": [
        {"role": "system", "content": SYSTEM},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_AbC123xyz",
                    "type": "function",
                    "function": {"name": "which_file", "arguments": '{"file_path": "/srv/zorblax/notes.md", "depth": 2}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_AbC123xyz", "content": "data:image/png;base64,aGVsbG8gd29ybGQ="},
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "which_file",
                "description": "Finds the marmalade of a directory.",
                "parameters": {
                    "type": "object",
                    "properties": {"file_path": {"type": "string", "enum": ["marmalade", "quince"]}},
                    "required": ["file_path"],
                },
            },
        }
    ],
}


def anonymise(tmp_path, request, out, seed="1"):
    captured = tmp_path / "some-agent-chat-2.json"
    captured.write_text(json.dumps(request))
    command = [ROOT / "scripts" / "anonymise", captured, "--out", tmp_path / out, "--seed", seed]
    return subprocess.run(command, capture_output=True, text=True), tmp_path / out / "chat" / "real_some_agent_2.json"


def kinds(text):
    return ["A" if c.isupper() else "a" if c.isalpha() else "0" if c.isdigit() else c for c in text]


def test_shape_stays_and_words_go(tmp_path):
    done, path = anonymise(tmp_path, REQUEST, "one")
    assert (done.returncode, done.stderr) == (0, "")
    text = path.read_text()
    made = json.loads(text)["request"]
    assert [*made] == [*REQUEST] and [m["role"] for m in made["messages"]] == ["system", "assistant", "tool"]
    system, assistant, tool = made["messages"]
    assert kinds(system["content"]) == kinds(SYSTEM) and len(system["content"].encode()) == len(SYSTEM.encode())
    # A name is the same wherever it comes, and so is an id.
    call, offered = assistant["tool_calls"][0], made["tools"][0]["function"]
    assert call["function"]["name"] == offered["name"] != "which_file"
    [parameter] = offered["parameters"]["properties"]
    assert offered["parameters"]["required"] == [parameter] and parameter in json.loads(call["function"]["arguments"])
    assert call["id"] == tool["tool_call_id"] != "call_AbC123xyz" and call["id"].startswith("call_")
    assert tool["content"].startswith("data:image/png;base64,") and len(tool["content"]) == len(REQUEST["messages"][2]["content"])
    for word in ("orblax", "marmalade", "quince", "which", "file_path", "assistant.", "中文", "aGVsb"):
        assert word not in text


def test_same_seed_same_bytes(tmp_path):
    first, again, other = (anonymise(tmp_path, REQUEST, *how)[1].read_text() for how in (["one"], ["two"], ["three", "2"]))
    assert first == again != other


def test_what_is_not_known_is_not_passed_on(tmp_path):
    for unknown in ({"zorblax": 1}, {"tool_choice": {"type": "marmalade"}}):
        done, path = anonymise(tmp_path, REQUEST | unknown, "one")
        assert done.returncode == 1 and ("zorblax" in done.stderr or "marmalade" in done.stderr)
        assert not path.exists()
