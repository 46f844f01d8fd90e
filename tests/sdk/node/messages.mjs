// @anthropic-ai/sdk: messages.
import Anthropic from '@anthropic-ai/sdk';
import { betaZodTool } from '@anthropic-ai/sdk/helpers/beta/zod';
import { zodOutputFormat } from '@anthropic-ai/sdk/helpers/zod';
import { assert, City, HungUp, patience, tools } from './got.mjs';

function client(asked) {
  return new Anthropic({ baseURL: asked.url, apiKey: asked.key, maxRetries: asked.retries ?? 0 });
}

function request(asked) {
  let content = asked.prompt;
  if (asked.image) {
    const [, media_type, data] = /^data:(.*);base64,(.*)$/.exec(asked.image);
    content = [{ type: 'text', text: content }, { type: 'image', source: { type: 'base64', media_type, data } }];
  }
  const made = { model: 'any', max_tokens: asked.max_tokens ?? 2000, messages: [{ role: 'user', content }] };
  if (asked.tools) {
    made.tools = asked.tools.map(({ name, description, parameters }) => ({ name, description, input_schema: parameters }));
  }
  if (asked.schema) made.output_config = { format: { type: 'json_schema', schema: asked.schema } };
  if (asked.stop) made.stop_sequences = asked.stop;
  if (asked.reasoning) made.thinking = { type: 'enabled', budget_tokens: 1024 };
  return made;
}

function parsing(asked) {
  const made = request(asked);
  if (asked.schema) made.output_config = { format: zodOutputFormat(City) };
  return made;
}

function read(got, message) {
  assert.equal(message.type, 'message');
  assert.equal(message.role, 'assistant');
  assert.equal(message.model, 'any');
  const of = (kind) => message.content.filter((block) => block.type === kind);
  assert(of('thinking').every((block) => block.signature));
  got.text = of('text').map((block) => block.text).join('');
  got.reasoning = of('thinking').map((block) => block.thinking).join('');
  got.calls = of('tool_use').map((block) => [block.name, block.input]);
  got.finish = message.stop_reason;
  got.stop_sequence = message.stop_sequence;
  got.usage = [message.usage.input_tokens, message.usage.output_tokens];
  got.parsed = message.parsed_output ?? null;
}

export async function whole(asked, got) {
  read(got, await client(asked).messages.create(request(asked), patience(asked)));
}

export async function parse(asked, got) {
  read(got, await client(asked).messages.parse(parsing(asked)));
}

export async function stream(asked, got) {
  let message = null;
  let open = null;
  let inputs = [];
  let stopped = false;
  for await (const event of await client(asked).messages.create({ ...request(asked), stream: true })) {
    assert(!stopped);
    if (event.type === 'message_start') {
      assert.equal(message, null);
      message = event.message;
      assert.deepEqual(message.content, []);
      assert(message.usage.input_tokens > 0);
    } else if (event.type === 'content_block_start') {
      assert.equal(open, null);
      assert.equal(event.index, message.content.length);
      open = event.content_block;
      message.content.push(open);
      inputs[event.index] = '';
    } else if (event.type === 'content_block_delta') {
      assert.equal(message.content[event.index], open);
      const { delta } = event;
      if (delta.type === 'text_delta') {
        open.text += delta.text;
        got.text += delta.text;
      } else if (delta.type === 'thinking_delta') open.thinking += delta.thinking;
      else if (delta.type === 'signature_delta') open.signature = delta.signature;
      else if (delta.type === 'input_json_delta') inputs[event.index] += delta.partial_json;
    } else if (event.type === 'content_block_stop') {
      if (open.type === 'tool_use') open.input = JSON.parse(inputs[event.index]);
      open = null;
    } else if (event.type === 'message_delta') {
      assert.equal(open, null);
      Object.assign(message, event.delta);
      Object.assign(message.usage, Object.fromEntries(Object.entries(event.usage).filter(([, value]) => value !== null)));
    } else if (event.type === 'message_stop') stopped = true;
    if (asked.hang_up && got.text) throw new HungUp();
  }
  assert(stopped);
  const { text } = got;
  read(got, message);
  assert.equal(got.text, text);
}

export async function helper(asked, got) {
  const events = client(asked).messages.stream(parsing(asked));
  for await (const event of events) {
    if (event.type === 'content_block_delta' && event.delta.type === 'text_delta') got.text += event.delta.text;
    if (asked.hang_up && got.text) throw new HungUp();
  }
  const { text } = got;
  read(got, await events.finalMessage());
  assert.equal(got.text, text);
}

async function run(asked, got, stream) {
  const known = tools(got);
  const runnable = asked.tools.map(({ name, description }) => {
    const { schema: inputSchema, run } = known[name];
    return betaZodTool({ name, description, inputSchema, run });
  });
  read(got, await client(asked).beta.messages.toolRunner({ ...request(asked), tools: runnable, stream }).runUntilDone());
}

export const runner = (asked, got) => run(asked, got, false);
export const runner_stream = (asked, got) => run(asked, got, true);

export async function count(asked, got) {
  const { max_tokens, ...made } = request(asked);
  got.count = (await client(asked).messages.countTokens(made)).input_tokens;
}

export async function models(asked, got) {
  got.models = [];
  for await (const model of client(asked).models.list()) got.models.push(model.id);
  got.model = (await client(asked).models.retrieve(got.models[0])).id;
}
