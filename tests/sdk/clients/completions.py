"""openai: completions."""

from . import HungUp
from .chat import client


def request(asked):
    made = {"model": "any", "prompt": asked["prompt"], "max_tokens": asked.get("max_tokens", 200)}
    if "stop" in asked:
        made["stop"] = asked["stop"]
    return made


def usage(given):
    return given and [given.prompt_tokens, given.completion_tokens]


def whole(asked, got):
    completion = client(asked).completions.create(**request(asked))
    (choice,) = completion.choices
    assert completion.object == "text_completion" and completion.model == "any" and choice.index == 0
    got |= {"text": choice.text, "finish": choice.finish_reason, "usage": usage(completion.usage)}


def stream(asked, got):
    chunks = client(asked).completions.create(**request(asked), stream=True, stream_options={"include_usage": True})
    ids = set()
    for chunk in chunks:
        ids.add(chunk.id)
        assert chunk.object == "text_completion" and got["usage"] is None
        got["usage"] = usage(chunk.usage)
        for choice in chunk.choices:
            assert got["finish"] is None and choice.index == 0
            got["text"] += choice.text
            got["finish"] = choice.finish_reason
        if asked.get("hang_up") and got["text"]:
            chunks.close()
            raise HungUp
    assert len(ids) == 1
