"""google-genai: models and chats."""

import asyncio
import base64
import re

import pydantic
from google import genai
from google.genai import types

from . import HungUp, results


def client(asked):
    options = types.HttpOptions(base_url=asked["url"])
    # A client that hangs up on a whole body is one that waits no longer.
    if asked.get("hang_up") and asked["way"] == "whole":
        options.timeout = 2000
    return genai.Client(api_key=asked["key"], http_options=options)


class City(pydantic.BaseModel):
    city: str
    degrees: int


def parts(asked):
    made = [types.Part(text=asked["prompt"])]
    if "image" in asked:
        kind, data = re.fullmatch("data:(.*);base64,(.*)", asked["image"]).groups()
        made.append(types.Part.from_bytes(data=base64.b64decode(data), mime_type=kind))
    return made


def config(asked):
    made = types.GenerateContentConfig()
    if "tools" in asked:
        made.tools = [types.Tool(function_declarations=[
            types.FunctionDeclaration(name=tool["name"], description=tool["description"], parameters_json_schema=tool["parameters"])
            for tool in asked["tools"]])]
    if "schema" in asked:
        made.response_mime_type, made.response_json_schema = "application/json", asked["schema"]
    if "max_tokens" in asked:
        made.max_output_tokens = asked["max_tokens"]
    if "stop" in asked:
        made.stop_sequences = asked["stop"]
    if asked.get("reasoning"):
        made.thinking_config = types.ThinkingConfig(include_thoughts=True)
    return made


def add(got, response):
    candidates = response.candidates or []
    assert len(candidates) <= 1
    for candidate in candidates:
        for part in (candidate.content and candidate.content.parts) or []:
            if part.function_call:
                got["calls"].append([part.function_call.name, part.function_call.args])
            elif part.thought:
                got["reasoning"] += part.text
            else:
                got["text"] += part.text or ""
        if candidate.finish_reason:
            got["finish"] = candidate.finish_reason.value
    usage = response.usage_metadata
    if usage:
        got["usage"] = [usage.prompt_token_count, (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)]


def whole(asked, got):
    made = client(asked)
    add(got, made.models.generate_content(model="any", contents=parts(asked), config=config(asked)))


def parse(asked, got):
    # The older way, with a schema in the API's own spelling.
    made = types.GenerateContentConfig(response_mime_type="application/json", response_schema=City)
    asking = client(asked)
    response = asking.models.generate_content(model="any", contents=parts(asked), config=made)
    add(got, response)
    got["parsed"] = response.parsed.model_dump()


def drain(asked, got, chunks, made):
    for chunk in chunks:
        assert got["finish"] is None
        add(got, chunk)
        if asked.get("hang_up") and got["text"]:
            chunks.close()
            made.close()
            raise HungUp


def stream(asked, got):
    made = client(asked)
    drain(asked, got, made.models.generate_content_stream(model="any", contents=parts(asked), config=config(asked)), made)


def helper(asked, got):
    """Its chats keep a history of what they take for a whole answer."""
    made = client(asked)
    chat = made.chats.create(model="any", config=config(asked))
    drain(asked, got, chat.send_message_stream(parts(asked)), made)
    said = [part for content in chat.get_history() if content.role == "model" for part in content.parts if not part.thought]
    assert "".join(part.text or "" for part in said) == got["text"]


def runnable(asked, got):
    known = results(got)

    def weather(city: str) -> str:
        """Tells the weather."""
        return known["weather"](city)

    def now() -> str:
        """Tells the time."""
        return known["now"]()

    functions = {"weather": weather, "now": now}
    return types.GenerateContentConfig(tools=[functions[tool["name"]] for tool in asked["tools"]])


def runner(asked, got):
    made = client(asked)
    add(got, made.models.generate_content(model="any", contents=parts(asked), config=runnable(asked, got)))


def runner_stream(asked, got):
    made = client(asked)
    for chunk in made.models.generate_content_stream(model="any", contents=parts(asked), config=runnable(asked, got)):
        # The chunks of both turns come; only the last turn is the answer.
        if chunk.function_calls or got["finish"]:
            got |= {"text": "", "reasoning": "", "calls": [], "finish": None}
        if not chunk.function_calls:
            add(got, chunk)


def count(asked, got):
    made = client(asked)
    got["count"] = made.models.count_tokens(model="any", contents=parts(asked)).total_tokens


def models(asked, got):
    made = client(asked)
    got["models"] = [model.name for model in made.models.list()]
    got["model"] = made.models.get(model=got["models"][0]).name


def asynchronous(asked, got):
    """The stream of the asynchronous client."""
    async def run():
        async with client(asked).aio as made:
            async for chunk in await made.models.generate_content_stream(model="any", contents=parts(asked), config=config(asked)):
                add(got, chunk)

    asyncio.run(run())
