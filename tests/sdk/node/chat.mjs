// openai: chat.completions.
import OpenAI from 'openai';
import { ContentFilterFinishReasonError, LengthFinishReasonError } from 'openai/error';
import { zodResponseFormat } from 'openai/helpers/zod';
import { assert, City, HungUp, patience, tools } from './got.mjs';

export function client(asked) {
  return new OpenAI({ baseURL: `${asked.url}/v1`, apiKey: asked.key, maxRetries: asked.retries ?? 0 });
}

function request(asked) {
  let content = asked.prompt;
  if (asked.image) {
    content = [{ type: 'text', text: content }, { type: 'image_url', image_url: { url: asked.image } }];
  }
  const made = { model: 'any', messages: [{ role: 'user', content }] };
  if (asked.tools) made.tools = asked.tools.map((tool) => ({ type: 'function', function: { ...tool, strict: true } }));
  if (asked.schema) {
    made.response_format = { type: 'json_schema', json_schema: { name: 'city', schema: asked.schema, strict: true } };
  }
  if (asked.max_tokens) made.max_completion_tokens = asked.max_tokens;
  if (asked.stop) made.stop = asked.stop;
  if (asked.reasoning) made.reasoning_effort = 'low';
  return made;
}

function parsing(asked) {
  const made = request(asked);
  if (asked.schema) made.response_format = zodResponseFormat(City, 'city');
  return made;
}

function usage(given) {
  return given ? [given.prompt_tokens, given.completion_tokens] : null;
}

function readMessage(got, message) {
  assert.equal(message.role, 'assistant');
  assert.equal(message.reasoning, message.reasoning_content);
  const calls = message.tool_calls ?? [];
  assert(calls.every((call) => call.id && call.type === 'function'));
  got.text = message.content ?? '';
  got.reasoning = message.reasoning ?? '';
  got.refusal = message.refusal ?? null;
  got.calls = calls.map((call) => [call.function.name, JSON.parse(call.function.arguments)]);
  got.parsed = message.parsed ?? null;
}

function read(got, completion) {
  assert.equal(completion.object, 'chat.completion');
  assert.equal(completion.model, 'any');
  assert.equal(completion.choices.length, 1);
  const [choice] = completion.choices;
  readMessage(got, choice.message);
  got.finish = choice.finish_reason;
  got.usage = usage(completion.usage);
}

export async function whole(asked, got) {
  read(got, await client(asked).chat.completions.create(request(asked), patience(asked)));
}

export async function parse(asked, got) {
  read(got, await client(asked).chat.completions.parse(parsing(asked)));
}

export async function stream(asked, got) {
  const calls = [];
  const roles = [];
  const made = { ...request(asked), stream: true, stream_options: { include_usage: true } };
  for await (const chunk of await client(asked).chat.completions.create(made)) {
    assert.equal(chunk.object, 'chat.completion.chunk');
    assert.equal(got.usage, null);
    got.usage = usage(chunk.usage);
    for (const { delta, finish_reason: finish } of chunk.choices) {
      assert.equal(got.finish, null);
      got.finish = finish;
      if (delta.role) roles.push(delta.role);
      got.text += delta.content ?? '';
      got.reasoning += delta.reasoning ?? '';
      if (delta.refusal) got.refusal = (got.refusal ?? '') + delta.refusal;
      for (const call of delta.tool_calls ?? []) {
        calls[call.index] ??= ['', ''];
        calls[call.index][0] += call.function.name ?? '';
        calls[call.index][1] += call.function.arguments ?? '';
      }
    }
    // Leaving the loop is how this SDK hangs up.
    if (asked.hang_up && got.text) throw new HungUp();
  }
  assert.deepEqual(roles, ['assistant']);
  got.calls = calls.map(([name, given]) => [name, JSON.parse(given)]);
}

export async function helper(asked, got) {
  const events = client(asked).chat.completions.stream({ ...parsing(asked), stream_options: { include_usage: true } });
  let reasoning = '';
  for await (const chunk of events) {
    reasoning += chunk.choices[0]?.delta.reasoning ?? '';
    got.text += chunk.choices[0]?.delta.content ?? '';
    if (asked.hang_up && got.text) throw new HungUp();
  }
  const { text } = got;
  try {
    read(got, await events.finalChatCompletion());
  } catch (error) {
    // To this helper such an end is an error where an output was to be parsed.
    if (!(error instanceof LengthFinishReasonError || error instanceof ContentFilterFinishReasonError)) throw error;
    read(got, { object: 'chat.completion', ...events.currentChatCompletionSnapshot });
  }
  // Of fields that it does not know this helper keeps the last piece only.
  assert(reasoning.endsWith(got.reasoning));
  got.reasoning = reasoning;
  assert.equal(got.text, text);
}

async function run(asked, got, stream) {
  const known = tools(got);
  const made = request(asked);
  made.tools = asked.tools.map((tool) => ({
    type: 'function',
    function: { ...tool, strict: true, parse: JSON.parse, function: known[tool.name].run },
  }));
  const options = stream ? { stream: true, stream_options: { include_usage: true } } : {};
  const runner = client(asked).chat.completions.runTools({ ...made, ...options });
  const completion = await runner.finalChatCompletion();
  read(got, { object: 'chat.completion', ...completion });
}

export const runner = (asked, got) => run(asked, got, false);
export const runner_stream = (asked, got) => run(asked, got, true);

function readSeveral(got, completion) {
  got.choices = completion.choices.map((choice) => [choice.index, choice.message.content, choice.finish_reason]);
  got.usage = usage(completion.usage);
}

/** Two choices, as whole bodies. */
export async function several(asked, got) {
  readSeveral(got, await client(asked).chat.completions.create({ ...request(asked), n: 2 }));
}

/** Two choices, mixed in one stream, by the strict helper. */
export async function several_stream(asked, got) {
  const made = { ...request(asked), n: 2, stream_options: { include_usage: true } };
  readSeveral(got, await client(asked).chat.completions.stream(made).finalChatCompletion());
}

export async function logprobs(asked, got) {
  const completion = await client(asked).chat.completions.create({ ...request(asked), logprobs: true });
  got.logprobs = completion.choices[0].logprobs.content.map((entry) => entry.logprob);
}

export async function logprobs_stream(asked, got) {
  const completion = await client(asked).chat.completions.stream({ ...request(asked), logprobs: true }).finalChatCompletion();
  got.logprobs = completion.choices[0].logprobs.content.map((entry) => entry.logprob);
}

export async function models(asked, got) {
  got.models = [];
  for await (const model of client(asked).models.list()) got.models.push(model.id);
  got.model = (await client(asked).models.retrieve(got.models[0])).id;
}
