"""openai: responses."""

import asyncio
import json

import openai
from openai.lib.responses_tool_runner import RegisteredFunction, ResponsesToolRunner

from . import HungUp, results
from .chat import City, client


def request(asked):
    content = asked["prompt"]
    if "image" in asked:
        content = [{"role": "user", "content": [{"type": "input_text", "text": content},
                                                {"type": "input_image", "image_url": asked["image"], "detail": "auto"}]}]
    made = {"model": "any", "input": content}
    if "tools" in asked:
        made["tools"] = [{"type": "function", "strict": True} | tool for tool in asked["tools"]]
    if "schema" in asked:
        made["text"] = {"format": {"type": "json_schema", "name": "city", "schema": asked["schema"], "strict": True}}
    if "max_tokens" in asked:
        made["max_output_tokens"] = asked["max_tokens"]
    if "stop" in asked:
        # The API has none; servers with more to offer read it.
        made["extra_body"] = {"stop": asked["stop"]}
    if asked.get("reasoning"):
        made["reasoning"] = {"effort": "low"}
    return made


def parsing(asked):
    made = request(asked)
    if made.pop("text", None):
        made["text_format"] = City
    return made


def read(got, response):
    status, reason = response.status, response.incomplete_details and response.incomplete_details.reason
    assert response.object == "response" and response.model == "any"
    texts = [part for item in response.output if item.type == "message" for part in item.content]
    thoughts = [part for item in response.output if item.type == "reasoning" for part in (item.content or item.summary)]
    calls = [item for item in response.output if item.type == "function_call"]
    assert all(call.id and call.call_id for call in calls)
    # What was thought stands before what it led to.
    assert [item.type for item in response.output] == sorted((item.type for item in response.output), key=ORDER.index)
    got |= {
        "text": "".join(part.text for part in texts if part.type == "output_text"),
        "refusal": "".join(part.refusal for part in texts if part.type == "refusal") or None,
        "reasoning": "".join(part.text for part in thoughts),
        "calls": [[call.name, json.loads(call.arguments)] for call in calls],
        "finish": f"{status}: {reason}" if reason else status,
        "usage": [response.usage.input_tokens, response.usage.output_tokens] if response.usage else None,
    }
    parsed = getattr(response, "output_parsed", None)
    got["parsed"] = parsed.model_dump() if parsed else None
    if response.error:
        got["error"] = {"class": "response.failed", "status": response.error.code, "message": response.error.message}


ORDER = ["reasoning", "message", "function_call"]


def whole(asked, got):
    read(got, client(asked).responses.create(**request(asked)))


def parse(asked, got):
    read(got, client(asked).responses.parse(**parsing(asked)))


def stream(asked, got):
    number, last, arguments = 0, None, {}
    events = client(asked).responses.create(**request(asked), stream=True)
    for event in events:
        assert event.sequence_number == number and last is None
        number += 1
        if event.type == "response.output_text.delta":
            got["text"] += event.delta
        if event.type == "response.function_call_arguments.delta":
            arguments[event.output_index] = arguments.get(event.output_index, "") + event.delta
        if event.type in ("response.completed", "response.incomplete", "response.failed"):
            last = event
        if asked.get("hang_up") and got["text"]:
            events.close()
            raise HungUp
    assert last.type == f"response.{last.response.status}"
    text = got["text"]
    read(got, last.response)
    if last.type == "response.failed":
        got["text"] = text
        return
    assert got["text"] == text
    whole = {index: item.arguments for index, item in enumerate(last.response.output) if item.type == "function_call"}
    assert arguments == whole


def helper(asked, got):
    with client(asked).responses.stream(**parsing(asked)) as events:
        for event in events:
            if event.type == "response.output_text.delta":
                got["text"] += event.delta
            if event.type in ("response.incomplete", "response.failed"):
                # The helper has a last response only of those that were completed.
                text = got["text"]
                read(got, event.response)
                got["text"] = text
                return
            if asked.get("hang_up") and got["text"]:
                raise HungUp
        text = got["text"]
        read(got, events.get_final_response())
        assert got["text"] == text


def runner(asked, got, stream=False):
    made = request(asked)
    tools = results(got)
    functions = [RegisteredFunction({"type": "function", "strict": True} | tool, lambda given, run=tools[tool["name"]]: run(**given))
                 for tool in asked["tools"]]
    del made["tools"]
    made["input"] = [{"role": "user", "content": made["input"]}]
    read(got, ResponsesToolRunner(functions=functions).run(client(asked), made, stream=stream))


def runner_stream(asked, got):
    runner(asked, got, stream=True)


def chain(asked, got):
    """A second request that names the first, and what is kept of both."""
    made = client(asked)
    first = made.responses.create(**request(asked))
    second = made.responses.create(model="any", input="And then?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    read(got, second)
    kept = made.responses.retrieve(first.id)
    got["kept"] = [kept.id == first.id, kept.status, kept.output_text]
    got["inputs"] = [item.content[0].text for item in made.responses.input_items.list(second.id, order="asc")
                     if item.type == "message" and item.role == "user"]


def chain_stream(asked, got):
    """The same by the stream helper."""
    made = client(asked)
    with made.responses.stream(**request(asked)) as events:
        first = events.get_final_response()
    with made.responses.stream(model="any", input="And then?", previous_response_id=first.id) as events:
        read(got, events.get_final_response())


def logprobs(asked, got):
    response = client(asked).responses.create(**request(asked), include=["message.output_text.logprobs"])
    got["logprobs"] = [entry.logprob for item in response.output for part in item.content for entry in part.logprobs]


def count(asked, got):
    got["count"] = client(asked).responses.input_tokens.count(model="any", input=asked["prompt"]).input_tokens


def unknown(asked, got):
    client(asked).responses.create(model="any", input="hi", previous_response_id="resp_00000000000000000000000000000000")


def compact(asked, got):
    client(asked).responses.compact(model="any", input=asked["prompt"])


def asynchronous(asked, got):
    """The stream helper of the asynchronous client."""
    async def run():
        async with openai.AsyncOpenAI(base_url=f"{asked['url']}/v1", api_key=asked["key"], max_retries=0) as made:
            async with made.responses.stream(**request(asked)) as events:
                read(got, await events.get_final_response())

    asyncio.run(run())
