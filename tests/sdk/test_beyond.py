"""The official openai SDK through a base URL, on chat completions and Responses, streamed and not, strict helpers included.

Each cell checks the value at the client, the record, and that the trained ids are exactly what the policy sampled.
"""

import json

import openai
import pytest

import derive

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
CHAT_TOOLS = [{"type": "function", "function": {"name": "weather", "strict": True, "parameters": WEATHER}}]
RESPONSES_TOOLS = [{"type": "function", "name": "weather", "strict": True, "parameters": WEATHER}]
HI = [{"role": "user", "content": "hi"}]

TEXT = {"text": "Hello wörld 👩‍🚀, this is \"it\"."}
REASONING = {"reasoning": "first I think, then I speak", "text": "spoken"}
PARALLEL = {"tool_calls": [{"name": "weather", "arguments": '{"city": "Bern"}'}, {"name": "weather", "arguments": '{"city": "Rome"}'}]}
MIXED = PARALLEL | {"text": "I look. ", "reasoning": "two cities", "interleave": True}
REPLIES = {"text": TEXT, "reasoning": REASONING, "parallel": PARALLEL, "mixed": MIXED}


class Said:
    """What a client got, whatever the way."""

    def __init__(self, text="", reasoning="", calls=()):
        self.text, self.reasoning, self.calls = text or "", reasoning or "", list(calls)

    def __eq__(self, other):
        return vars(self) == vars(other)

    def __repr__(self):
        return repr(vars(self))

    @classmethod
    def of_script(cls, reply):
        calls = [(call["name"], call["arguments"]) for call in reply.get("tool_calls", [])]
        return cls(reply.get("text"), reply.get("reasoning"), calls)


def extra(of, *names):
    return next((value for name in names if (value := (of.model_extra or {}).get(name))), "")


def of_message(message):
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or []]
    return Said(message.content, extra(message, "reasoning", "reasoning_content"), calls)


def chat_whole(client):
    return of_message(client.chat.completions.create(model="any", messages=HI, tools=CHAT_TOOLS).choices[0].message)


def chat_stream(client):
    said, calls, finish = Said(), {}, []
    stream = client.chat.completions.create(
        model="any", messages=HI, tools=CHAT_TOOLS, stream=True, stream_options={"include_usage": True}
    )
    usage = None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            said.text += choice.delta.content or ""
            said.reasoning += extra(choice.delta, "reasoning", "reasoning_content")
            finish += [choice.finish_reason] if choice.finish_reason else []
            for call in choice.delta.tool_calls or []:
                name, arguments = calls.get(call.index, ("", ""))
                calls[call.index] = (name + (call.function.name or ""), arguments + (call.function.arguments or ""))
    assert len(finish) == 1 and usage.completion_tokens > 0
    said.calls = [calls[index] for index in sorted(calls)]
    return said


def chat_helper(client):
    with client.chat.completions.stream(model="any", messages=HI, tools=CHAT_TOOLS) as stream:
        kinds = {event.type for event in stream}
        completion = stream.get_final_completion()
    assert "chunk" in kinds
    return of_message(completion.choices[0].message)


def of_response(response):
    assert response.status == "completed"
    calls = [(item.name, item.arguments) for item in response.output if item.type == "function_call"]
    thoughts = [part for item in response.output if item.type == "reasoning" for part in (item.content or item.summary)]
    return Said(response.output_text, "".join(part.text for part in thoughts), calls)


def responses_whole(client):
    return of_response(client.responses.create(model="any", input="hi", tools=RESPONSES_TOOLS))


def responses_stream(client):
    text, final = "", None
    for event in client.responses.create(model="any", input="hi", tools=RESPONSES_TOOLS, stream=True):
        if event.type == "response.output_text.delta":
            text += event.delta
        if event.type == "response.completed":
            final = event.response
    said = of_response(final)
    assert said.text == text
    return said


def responses_helper(client):
    with client.responses.stream(model="any", input="hi", tools=RESPONSES_TOOLS) as stream:
        for _ in stream:
            pass
        return of_response(stream.get_final_response())


WAYS = [chat_whole, chat_stream, chat_helper, responses_whole, responses_stream, responses_helper]


def assert_exact(gleaner, policy, rollout):
    """One sample whose trained ids and log-probabilities are exactly what was sampled."""
    answer = gleaner.samples(rollout)
    assert answer["left_out"] == [] and len(answer["samples"]) == 1
    sample = answer["samples"][0]
    trained = [(token, logprob) for token, bit, logprob in zip(sample["token_ids"], sample["loss_mask"], sample["logprobs"]) if bit]
    assert trained == [pair for call in policy.sampled for pair in zip(call["ids"], call["logprobs"])]
    last = policy.sampled[-1]
    assert sample["token_ids"] == last["prompt_ids"] + last["ids"]
    counts = derive.check(gleaner.url, rollout["id"], min_trained=1)
    assert counts["forms"] == {"vllm": len(policy.sampled)}


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES.keys())
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_cell(policy, gleaner, way, reply):
    # A whole body has no order of fragments; and the SDK's own chat helper parses a call's arguments as soon as another call's
    # fragment comes, so that no server may mix them for it.
    if reply.get("interleave") and way in (chat_whole, responses_whole, chat_helper):
        reply = reply | {"interleave": False}
    policy.script(reply)
    rollout = gleaner.rollout(task_id=way.__name__)
    assert way(gleaner.client(rollout)) == Said.of_script(reply)
    (call,) = gleaner.calls(rollout)
    message = call["message"]
    calls = [(one["function"]["name"], one["function"]["arguments"]) for one in message.get("tool_calls") or []]
    recorded = Said(message.get("content"), message.get("reasoning") or message.get("reasoning_content"), calls)
    assert (call["status"], call["capture"]["level"], recorded) == ("done", "full", Said.of_script(reply))
    assert_exact(gleaner, policy, rollout)


def test_chat_conversation_is_one_sample(policy, gleaner):
    policy.script(MIXED | {"interleave": False}, TEXT)
    rollout = gleaner.rollout()
    client = gleaner.client(rollout)
    messages = list(HI)
    with client.chat.completions.stream(model="any", messages=messages, tools=CHAT_TOOLS) as stream:
        message = stream.get_final_completion().choices[0].message
    messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in message.tool_calls]
    with client.chat.completions.stream(model="any", messages=messages, tools=CHAT_TOOLS) as stream:
        assert stream.get_final_completion().choices[0].message.content == TEXT["text"]
    assert_exact(gleaner, policy, rollout)


def test_responses_conversation_is_one_sample(policy, gleaner):
    policy.script(MIXED, TEXT)
    rollout = gleaner.rollout()
    client = gleaner.client(rollout)
    history = [{"role": "user", "content": "hi"}]
    with client.responses.stream(model="any", input=history, tools=RESPONSES_TOOLS) as stream:
        first = stream.get_final_response()
    history += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in first.output]
    history += [{"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
                for item in first.output if item.type == "function_call"]
    with client.responses.stream(model="any", input=history, tools=RESPONSES_TOOLS) as stream:
        assert stream.get_final_response().output_text == TEXT["text"]
    assert_exact(gleaner, policy, rollout)


def test_errors_are_the_sdks_own(policy, gleaner):
    client = gleaner.client({"key": "glr_00000000000000000000000000000000"})
    with pytest.raises(openai.AuthenticationError):
        client.chat.completions.create(model="any", messages=HI)
    client = gleaner.client(gleaner.rollout())
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="any", input="hi", previous_response_id="resp_1")
    assert caught.value.param == "previous_response_id"
    policy.script(TEXT | {"fault": {"kind": "cut_after", "events": 3}})
    with pytest.raises(openai.APIError):
        list(client.chat.completions.create(model="any", messages=HI, stream=True))


def test_models(policy, gleaner):
    models = gleaner.client(gleaner.rollout()).models.list()
    assert [model.id for model in models] == ["scripted"]


def test_derive_finds_what_differs(policy, gleaner, tmp_path):
    policy.script(TEXT)
    rollout = gleaner.rollout()
    chat_stream(gleaner.client(rollout))
    (sample,) = gleaner.samples(rollout)["samples"]
    start = sample["prompt_length"]
    for change in ("token_ids", "logprobs", "loss_mask"):
        changed = json.loads(json.dumps(sample))
        at = 0 if change == "loss_mask" else start
        changed[change][at] = 1 if change == "loss_mask" else changed[change][at] + 1
        path = tmp_path / "samples.jsonl"
        path.write_text(json.dumps(changed) + "\n")
        with pytest.raises(derive.Mismatch):
            derive.check(gleaner.url, rollout["id"], str(path))
