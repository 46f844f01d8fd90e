// openai: responses.
import { ResponsesToolRunner } from 'openai/helpers/responses-tool-runner';
import { zodTextFormat } from 'openai/helpers/zod';
import { client } from './chat.mjs';
import { assert, City, HungUp, patience, tools } from './got.mjs';

const ORDER = ['reasoning', 'message', 'function_call'];
const LAST = ['response.completed', 'response.incomplete', 'response.failed'];

function request(asked) {
  let input = asked.prompt;
  if (asked.image) {
    const image = { type: 'input_image', image_url: asked.image, detail: 'auto' };
    input = [{ role: 'user', content: [{ type: 'input_text', text: input }, image] }];
  }
  const made = { model: 'any', input };
  if (asked.tools) made.tools = asked.tools.map((tool) => ({ type: 'function', strict: true, ...tool }));
  if (asked.schema) made.text = { format: { type: 'json_schema', name: 'city', schema: asked.schema, strict: true } };
  if (asked.max_tokens) made.max_output_tokens = asked.max_tokens;
  // The API has none; servers with more to offer read it.
  if (asked.stop) made.stop = asked.stop;
  if (asked.reasoning) made.reasoning = { effort: 'low' };
  return made;
}

function parsing(asked) {
  const made = request(asked);
  if (asked.schema) made.text = { format: zodTextFormat(City, 'city') };
  return made;
}

function read(got, response) {
  assert.equal(response.object, 'response');
  assert.equal(response.model, 'any');
  const kinds = response.output.map((item) => item.type);
  // What was thought stands before what it led to.
  assert.deepEqual(kinds, kinds.toSorted((one, two) => ORDER.indexOf(one) - ORDER.indexOf(two)));
  const of = (kind) => response.output.filter((item) => item.type === kind);
  const parts = of('message').flatMap((item) => item.content);
  const thoughts = of('reasoning').flatMap((item) => (item.content?.length ? item.content : item.summary));
  const calls = of('function_call');
  assert(calls.every((call) => call.id && call.call_id));
  const reason = response.incomplete_details?.reason;
  got.text = parts.filter((part) => part.type === 'output_text').map((part) => part.text).join('');
  got.refusal = parts.filter((part) => part.type === 'refusal').map((part) => part.refusal).join('') || null;
  got.reasoning = thoughts.map((part) => part.text).join('');
  got.calls = calls.map((call) => [call.name, JSON.parse(call.arguments)]);
  got.finish = reason ? `${response.status}: ${reason}` : response.status;
  got.usage = response.usage ? [response.usage.input_tokens, response.usage.output_tokens] : null;
  got.parsed = response.output_parsed ?? null;
  if (response.error) {
    got.error = { class: 'response.failed', status: response.error.code, message: response.error.message };
  }
}

export async function whole(asked, got) {
  read(got, await client(asked).responses.create(request(asked), patience(asked)));
}

export async function parse(asked, got) {
  read(got, await client(asked).responses.parse(parsing(asked)));
}

export async function stream(asked, got) {
  let number = 0;
  let last = null;
  for await (const event of await client(asked).responses.create({ ...request(asked), stream: true })) {
    assert.equal(event.sequence_number, number);
    assert.equal(last, null);
    number += 1;
    if (event.type === 'response.output_text.delta') got.text += event.delta;
    if (LAST.includes(event.type)) last = event;
    if (asked.hang_up && got.text) throw new HungUp();
  }
  const { text } = got;
  assert.equal(last.type, `response.${last.response.status}`);
  read(got, last.response);
  if (last.type === 'response.failed') got.text = text;
  assert.equal(got.text, text);
}

export async function helper(asked, got) {
  const events = client(asked).responses.stream(parsing(asked));
  for await (const event of events) {
    if (event.type === 'response.output_text.delta') got.text += event.delta;
    if (asked.hang_up && got.text) throw new HungUp();
  }
  const { text } = got;
  const response = await events.finalResponse();
  read(got, response);
  if (response.status === 'failed') got.text = text;
  assert.equal(got.text, text);
}

async function run(asked, got, stream) {
  const known = tools(got);
  const { tools: offered, input, ...made } = request(asked);
  const functions = offered.map((tool) => ({ tool, execute: known[tool.name].run }));
  const runner = new ResponsesToolRunner({ functions });
  read(got, await runner.run(client(asked), { ...made, input: [{ role: 'user', content: input }] }, { stream }));
}

export const runner = (asked, got) => run(asked, got, false);
export const runner_stream = (asked, got) => run(asked, got, true);

/** A second request that names the first, and what is kept of both. */
export async function chain(asked, got) {
  const made = client(asked);
  const first = await made.responses.create(request(asked));
  const second = await made.responses.create({ model: 'any', input: 'And then?', previous_response_id: first.id });
  assert.equal(second.previous_response_id, first.id);
  read(got, second);
  const kept = await made.responses.retrieve(first.id);
  got.kept = [kept.id === first.id, kept.status, kept.output_text];
  got.inputs = [];
  for await (const item of made.responses.inputItems.list(second.id, { order: 'asc' })) {
    if (item.type === 'message' && item.role === 'user') got.inputs.push(item.content[0].text);
  }
}

/** The same by the stream helper. */
export async function chain_stream(asked, got) {
  const made = client(asked);
  const first = await made.responses.stream(request(asked)).finalResponse();
  const next = { model: 'any', input: 'And then?', previous_response_id: first.id };
  read(got, await made.responses.stream(next).finalResponse());
}

export async function logprobs(asked, got) {
  const response = await client(asked).responses.create({ ...request(asked), include: ['message.output_text.logprobs'] });
  got.logprobs = response.output.flatMap((item) => item.content).flatMap((part) => part.logprobs).map((entry) => entry.logprob);
}

export async function count(asked, got) {
  got.count = (await client(asked).responses.inputTokens.count({ model: 'any', input: asked.prompt })).input_tokens;
}

export async function unknown(asked) {
  const previous_response_id = 'resp_00000000000000000000000000000000';
  await client(asked).responses.create({ model: 'any', input: 'hi', previous_response_id });
}

export async function compact(asked) {
  await client(asked).responses.compact({ model: 'any', input: asked.prompt });
}
