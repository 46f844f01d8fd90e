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


def several(asked, got):
    completion = client(asked).completions.create(**request(asked), n=2)
    got["choices"] = [[choice.index, choice.text, choice.finish_reason] for choice in completion.choices]


def several_stream(asked, got):
    texts, finishes = ["", ""], [None, None]
    for chunk in client(asked).completions.create(**request(asked), n=2, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            finishes[choice.index] = choice.finish_reason or finishes[choice.index]
    got["choices"] = [[index, text, finish] for index, (text, finish) in enumerate(zip(texts, finishes))]


def logprobs(asked, got):
    (choice,) = client(asked).completions.create(**request(asked), logprobs=0).choices
    got["logprobs"] = choice.logprobs.token_logprobs
    assert len(choice.logprobs.tokens) == len(choice.logprobs.text_offset) == len(got["logprobs"])


def logprobs_stream(asked, got):
    got["logprobs"] = []
    for chunk in client(asked).completions.create(**request(asked), logprobs=0, stream=True):
        for choice in chunk.choices:
            got["logprobs"] += choice.logprobs.token_logprobs if choice.logprobs else []


def tokens(asked, got):
    """A prompt of token ids."""
    made = request(asked) | {"prompt": asked["ids"]}
    (choice,) = client(asked).completions.create(**made).choices
    got["text"], got["finish"] = choice.text, choice.finish_reason


def echo(asked, got):
    (choice,) = client(asked).completions.create(**request(asked), echo=True).choices
    got["text"], got["finish"] = choice.text, choice.finish_reason


def best_of(asked, got):
    client(asked).completions.create(**request(asked), best_of=2)
