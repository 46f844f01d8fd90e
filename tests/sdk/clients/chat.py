"""openai: chat.completions."""

import asyncio
import json

import openai
import pydantic

from . import HungUp

HTTP = openai.DefaultHttpxClient()


def client(asked):
    # A client that hangs up on a whole body is one that waits no longer.
    timeout = 2 if asked.get("hang_up") and asked["way"] == "whole" else 60
    return openai.OpenAI(base_url=f"{asked['url']}/v1", api_key=asked["key"], max_retries=asked.get("retries", 0), timeout=timeout, http_client=HTTP)


class City(pydantic.BaseModel):
    city: str
    degrees: int


def request(asked):
    content = asked["prompt"]
    if "image" in asked:
        content = [{"type": "text", "text": content}, {"type": "image_url", "image_url": {"url": asked["image"]}}]
    made = {"model": "any", "messages": [{"role": "user", "content": content}]}
    if "tools" in asked:
        made["tools"] = [{"type": "function", "function": tool | {"strict": True}} for tool in asked["tools"]]
    if "schema" in asked:
        made["response_format"] = {"type": "json_schema",
                                   "json_schema": {"name": "city", "schema": asked["schema"], "strict": True}}
    if "max_tokens" in asked:
        made["max_completion_tokens"] = asked["max_tokens"]
    if "stop" in asked:
        made["stop"] = asked["stop"]
    if asked.get("reasoning"):
        made["reasoning_effort"] = "low"
    return made


def parsing(asked):
    made = request(asked)
    if "schema" in asked:
        made["response_format"] = City
    return made


def said(of, name):
    return (of.model_extra or {}).get(name) or ""


def read(got, completion):
    (choice,) = completion.choices
    message = choice.message
    assert completion.object == "chat.completion" and completion.model == "any" and message.role == "assistant"
    assert said(message, "reasoning") == said(message, "reasoning_content")
    assert all(call.id and call.type == "function" for call in message.tool_calls or [])
    got |= {
        "text": message.content or "",
        "reasoning": said(message, "reasoning"),
        "refusal": message.refusal,
        "calls": [[call.function.name, json.loads(call.function.arguments)] for call in message.tool_calls or []],
        "finish": choice.finish_reason,
        "usage": [completion.usage.prompt_tokens, completion.usage.completion_tokens] if completion.usage else None,
    }
    parsed = getattr(message, "parsed", None)
    got["parsed"] = parsed.model_dump() if isinstance(parsed, pydantic.BaseModel) else None


def whole(asked, got):
    read(got, client(asked).chat.completions.create(**request(asked)))


def parse(asked, got):
    read(got, client(asked).chat.completions.parse(**parsing(asked)))


def stream(asked, got):
    calls, roles, ids = {}, [], set()
    chunks = client(asked).chat.completions.create(**request(asked), stream=True, stream_options={"include_usage": True})
    for chunk in chunks:
        ids.add(chunk.id)
        assert chunk.object == "chat.completion.chunk" and got["usage"] is None
        if chunk.usage:
            assert chunk.choices == []
            got["usage"] = [chunk.usage.prompt_tokens, chunk.usage.completion_tokens]
        for choice in chunk.choices:
            assert got["finish"] is None and choice.index == 0
            delta, got["finish"] = choice.delta, choice.finish_reason
            roles += [delta.role] if delta.role else []
            got["text"] += delta.content or ""
            got["reasoning"] += said(delta, "reasoning")
            if delta.refusal:
                got["refusal"] = (got["refusal"] or "") + delta.refusal
            for call in delta.tool_calls or []:
                # Names and ids are joined by the SDKs' own folds, so that they may come only once.
                known = calls.setdefault(call.index, {"id": "", "name": "", "arguments": ""})
                known["id"] += call.id or ""
                known["name"] += call.function.name or ""
                known["arguments"] += call.function.arguments or ""
        if asked.get("hang_up") and got["text"]:
            chunks.close()
            raise HungUp
    assert roles == ["assistant"] and len(ids) == 1 and all(call["id"] for call in calls.values())
    got["calls"] = [[calls[index]["name"], json.loads(calls[index]["arguments"])] for index in range(len(calls))]


def helper(asked, got):
    with client(asked).chat.completions.stream(**parsing(asked), stream_options={"include_usage": True}) as events:
        for event in events:
            if event.type == "content.delta":
                got["text"] += event.delta
            if asked.get("hang_up") and got["text"]:
                raise HungUp
        text = got["text"]
        try:
            read(got, events.get_final_completion())
        except (openai.LengthFinishReasonError, openai.ContentFilterFinishReasonError):
            # To this helper such an end is an error; what came stands in its snapshot.
            read(got, events.current_completion_snapshot)
            assert got["finish"] in ("length", "content_filter")
        assert got["text"] == text


def several(asked, got):
    """Two choices, as whole bodies."""
    completion = client(asked).chat.completions.create(**request(asked), n=2)
    got["choices"] = [[choice.index, choice.message.content, choice.finish_reason] for choice in completion.choices]
    got["usage"] = [completion.usage.prompt_tokens, completion.usage.completion_tokens]


def several_stream(asked, got):
    """Two choices, mixed in one stream, by the strict helper."""
    with client(asked).chat.completions.stream(**request(asked), n=2, stream_options={"include_usage": True}) as events:
        completion = events.get_final_completion()
    got["choices"] = [[choice.index, choice.message.content, choice.finish_reason] for choice in completion.choices]
    got["usage"] = [completion.usage.prompt_tokens, completion.usage.completion_tokens]


def logprobs(asked, got):
    (choice,) = client(asked).chat.completions.create(**request(asked), logprobs=True).choices
    got["logprobs"] = [entry.logprob for entry in choice.logprobs.content]


def logprobs_stream(asked, got):
    with client(asked).chat.completions.stream(**request(asked), logprobs=True) as events:
        (choice,) = events.get_final_completion().choices
    got["logprobs"] = [entry.logprob for entry in choice.logprobs.content]


def models(asked, got):
    made = client(asked)
    got["models"] = [model.id for model in made.models.list()]
    got["model"] = made.models.retrieve(got["models"][0]).id


def asynchronous(asked, got):
    """The stream helper of the asynchronous client."""
    async def run():
        async with openai.AsyncOpenAI(base_url=f"{asked['url']}/v1", api_key=asked["key"], max_retries=0) as made:
            async with made.chat.completions.stream(**request(asked), stream_options={"include_usage": True}) as events:
                read(got, await events.get_final_completion())

    asyncio.run(run())
