// @google/genai: models and chats.
import { GoogleGenAI } from '@google/genai';
import { assert, HungUp, patience, tools } from './got.mjs';

function client(asked) {
  return new GoogleGenAI({ apiKey: asked.key, httpOptions: { baseUrl: asked.url } });
}

function request(asked) {
  const parts = [{ text: asked.prompt }];
  if (asked.image) {
    const [, mimeType, data] = /^data:(.*);base64,(.*)$/.exec(asked.image);
    parts.push({ inlineData: { mimeType, data } });
  }
  const config = {};
  if (asked.tools) {
    config.tools = [
      {
        functionDeclarations: asked.tools.map(({ name, description, parameters }) => ({
          name, description, parametersJsonSchema: parameters,
        })),
      },
    ];
  }
  if (asked.schema) {
    config.responseMimeType = 'application/json';
    config.responseJsonSchema = asked.schema;
  }
  if (asked.max_tokens) config.maxOutputTokens = asked.max_tokens;
  if (asked.stop) config.stopSequences = asked.stop;
  if (asked.reasoning) config.thinkingConfig = { includeThoughts: true };
  if (asked.hang_up && asked.way === 'whole') config.abortSignal = patience(asked).signal;
  return { model: 'any', contents: [{ role: 'user', parts }], config };
}

function add(got, response) {
  assert((response.candidates ?? []).length <= 1);
  const [candidate] = response.candidates ?? [];
  for (const part of candidate?.content?.parts ?? []) {
    if (part.functionCall) got.calls.push([part.functionCall.name, part.functionCall.args]);
    else if (part.thought) got.reasoning += part.text;
    else got.text += part.text ?? '';
  }
  got.finish = candidate?.finishReason ?? got.finish;
  const usage = response.usageMetadata;
  if (usage) got.usage = [usage.promptTokenCount, (usage.candidatesTokenCount ?? 0) + (usage.thoughtsTokenCount ?? 0)];
}

export async function whole(asked, got) {
  add(got, await client(asked).models.generateContent(request(asked)));
}

async function drain(asked, got, chunks) {
  for await (const chunk of chunks) {
    assert.equal(got.finish, null);
    add(got, chunk);
    if (asked.hang_up && got.text) throw new HungUp();
  }
}

// This SDK hangs up by a signal only.
function withSignal(asked, made) {
  const control = new AbortController();
  if (asked.hang_up) made.config.abortSignal = control.signal;
  return control;
}

export async function stream(asked, got) {
  const made = request(asked);
  const control = withSignal(asked, made);
  try {
    await drain(asked, got, await client(asked).models.generateContentStream(made));
  } finally {
    control.abort();
  }
}

/** Its chats keep a history of what they take for a whole answer. */
export async function helper(asked, got) {
  const { model, contents, config } = request(asked);
  const control = withSignal(asked, { config });
  const chat = client(asked).chats.create({ model, config });
  try {
    await drain(asked, got, await chat.sendMessageStream({ message: contents[0].parts }));
  } finally {
    control.abort();
  }
  const said = chat.getHistory().filter((content) => content.role === 'model').flatMap((content) => content.parts);
  assert.equal(said.filter((part) => !part.thought).map((part) => part.text ?? '').join(''), got.text);
}

function callable(asked, got) {
  const known = tools(got);
  const [{ functionDeclarations }] = request(asked).config.tools;
  return {
    tool: async () => ({ functionDeclarations }),
    callTool: async (calls) =>
      calls.map(({ id, name, args }) => ({ functionResponse: { id, name, response: { result: known[name].run(args) } } })),
  };
}

export async function runner(asked, got) {
  const made = request(asked);
  made.config.tools = [callable(asked, got)];
  add(got, await client(asked).models.generateContent(made));
}

export async function runner_stream(asked, got) {
  const made = request(asked);
  made.config.tools = [callable(asked, got)];
  for await (const chunk of await client(asked).models.generateContentStream(made)) {
    // The chunks of both turns come; only the last turn is the answer.
    if (chunk.functionCalls || got.finish) Object.assign(got, { text: '', reasoning: '', calls: [], finish: null });
    if (!chunk.functionCalls) add(got, chunk);
  }
}

export async function count(asked, got) {
  const { model, contents } = request(asked);
  got.count = (await client(asked).models.countTokens({ model, contents })).totalTokens;
}

export async function models(asked, got) {
  got.models = [];
  for await (const model of await client(asked).models.list()) got.models.push(model.name);
  got.model = (await client(asked).models.get({ model: got.models[0] })).name;
}
