"""anthropic: messages."""

import asyncio
import json
import re

import anthropic
import pydantic

from . import HungUp, results

HTTP = anthropic.DefaultHttpxClient()


def client(asked):
    # A client that hangs up on a whole body is one that waits no longer.
    timeout = 2 if asked.get("hang_up") and asked["way"] == "whole" else 60
    retries = asked.get("retries", 0)
    return anthropic.Anthropic(base_url=asked["url"], api_key=asked["key"], max_retries=retries, timeout=timeout, http_client=HTTP)


class City(pydantic.BaseModel):
    city: str
    degrees: int


def request(asked):
    content = asked["prompt"]
    if "image" in asked:
        kind, data = re.fullmatch("data:(.*);base64,(.*)", asked["image"]).groups()
        source = {"type": "base64", "media_type": kind, "data": data}
        content = [{"type": "text", "text": content}, {"type": "image", "source": source}]
    made = {"model": "any", "max_tokens": asked.get("max_tokens", 2000), "messages": [{"role": "user", "content": content}]}
    if "tools" in asked:
        made["tools"] = [{"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
                         for tool in asked["tools"]]
    if "schema" in asked:
        made["output_config"] = {"format": {"type": "json_schema", "schema": asked["schema"]}}
    if "stop" in asked:
        made["stop_sequences"] = asked["stop"]
    if asked.get("reasoning"):
        made["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    return made


def parsing(asked):
    made = request(asked)
    if made.pop("output_config", None):
        made["output_format"] = City
    return made


def read(got, message):
    assert (message.type, message.role, message.model) == ("message", "assistant", "any")
    blocks = {kind: [block for block in message.content if block.type == kind] for kind in ("text", "thinking", "tool_use")}
    assert all(block.signature for block in blocks["thinking"]) and all(block.id for block in blocks["tool_use"])
    parsed = getattr(message, "parsed_output", None)
    got |= {
        "text": "".join(block.text for block in blocks["text"]),
        "reasoning": "".join(block.thinking for block in blocks["thinking"]),
        "calls": [[block.name, block.input] for block in blocks["tool_use"]],
        "finish": message.stop_reason,
        "stop_sequence": message.stop_sequence,
        "usage": [message.usage.input_tokens, message.usage.output_tokens],
        "parsed": parsed.model_dump() if parsed else None,
    }


def whole(asked, got):
    read(got, client(asked).messages.create(**request(asked)))


def parse(asked, got):
    read(got, client(asked).messages.parse(**parsing(asked)))


def stream(asked, got):
    started, open_index, stopped, inputs, kinds = False, None, False, {}, []
    events = client(asked).messages.create(**request(asked), stream=True)
    for event in events:
        assert not stopped
        if event.type == "message_start":
            assert not started and event.message.content == [] and event.message.usage.input_tokens > 0
            started, got["usage"] = True, [event.message.usage.input_tokens, 0]
        elif event.type == "content_block_start":
            assert started and open_index is None and event.index == len(kinds)
            open_index, block = event.index, event.content_block
            kinds.append(block.type)
            if block.type == "tool_use":
                assert block.id and block.input == {}
                got["calls"].append([block.name, None])
                inputs[event.index] = ""
        elif event.type == "content_block_delta":
            assert event.index == open_index
            delta = event.delta
            if delta.type == "text_delta":
                got["text"] += delta.text
            elif delta.type == "thinking_delta":
                got["reasoning"] += delta.thinking
            elif delta.type == "input_json_delta":
                inputs[event.index] += delta.partial_json
        elif event.type == "content_block_stop":
            assert event.index == open_index
            if event.index in inputs:
                got["calls"][-1][1] = json.loads(inputs[event.index])
            open_index = None
        elif event.type == "message_delta":
            assert open_index is None
            got["finish"], got["stop_sequence"] = event.delta.stop_reason, event.delta.stop_sequence
            got["usage"] = [event.usage.input_tokens or got["usage"][0], event.usage.output_tokens]
        elif event.type == "message_stop":
            stopped = True
        if asked.get("hang_up") and got["text"]:
            events.close()
            raise HungUp
    assert stopped


def helper(asked, got):
    with client(asked).messages.stream(**parsing(asked)) as events:
        for event in events:
            if event.type == "text":
                got["text"] += event.text
            if asked.get("hang_up") and got["text"]:
                raise HungUp
        text = got["text"]
        read(got, events.get_final_message())
        assert got["text"] == text


def runner(asked, got, **options):
    made, known = request(asked), results(got)
    made["tools"] = [anthropic.beta_tool(known[tool["name"]], description=tool["description"]) for tool in asked["tools"]]
    read(got, client(asked).beta.messages.tool_runner(**made, **options).until_done())


def runner_stream(asked, got):
    runner(asked, got, stream=True)


def count(asked, got):
    made = request(asked)
    del made["max_tokens"]
    got["count"] = client(asked).messages.count_tokens(**made).input_tokens


def models(asked, got):
    made = client(asked)
    got["models"] = [model.id for model in made.models.list()]
    got["model"] = made.models.retrieve(got["models"][0]).id


def asynchronous(asked, got):
    """The stream helper of the asynchronous client."""
    async def run():
        async with anthropic.AsyncAnthropic(base_url=asked["url"], api_key=asked["key"], max_retries=0) as made:
            async with made.messages.stream(**request(asked)) as events:
                read(got, await events.get_final_message())

    asyncio.run(run())
