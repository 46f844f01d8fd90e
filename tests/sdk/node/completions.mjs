// openai: completions.
import { client } from './chat.mjs';
import { assert, HungUp, patience } from './got.mjs';

function request(asked) {
  const made = { model: 'any', prompt: asked.prompt, max_tokens: asked.max_tokens ?? 200 };
  if (asked.stop) made.stop = asked.stop;
  return made;
}

function usage(given) {
  return given ? [given.prompt_tokens, given.completion_tokens] : null;
}

export async function whole(asked, got) {
  const completion = await client(asked).completions.create(request(asked), patience(asked));
  assert.equal(completion.object, 'text_completion');
  assert.equal(completion.choices.length, 1);
  const [choice] = completion.choices;
  got.text = choice.text;
  got.finish = choice.finish_reason;
  got.usage = usage(completion.usage);
}

export async function stream(asked, got) {
  const made = { ...request(asked), stream: true, stream_options: { include_usage: true } };
  for await (const chunk of await client(asked).completions.create(made)) {
    assert.equal(chunk.object, 'text_completion');
    assert.equal(got.usage, null);
    got.usage = usage(chunk.usage);
    for (const choice of chunk.choices) {
      assert.equal(got.finish, null);
      got.text += choice.text;
      got.finish = choice.finish_reason;
    }
    if (asked.hang_up && got.text) throw new HungUp();
  }
}

export async function several(asked, got) {
  const completion = await client(asked).completions.create({ ...request(asked), n: 2 });
  got.choices = completion.choices.map((choice) => [choice.index, choice.text, choice.finish_reason]);
}

export async function several_stream(asked, got) {
  const choices = [[0, '', null], [1, '', null]];
  for await (const chunk of await client(asked).completions.create({ ...request(asked), n: 2, stream: true })) {
    for (const choice of chunk.choices) {
      choices[choice.index][1] += choice.text;
      choices[choice.index][2] ??= choice.finish_reason;
    }
  }
  got.choices = choices;
}

export async function logprobs(asked, got) {
  const { choices } = await client(asked).completions.create({ ...request(asked), logprobs: 0 });
  got.logprobs = choices[0].logprobs.token_logprobs;
}

export async function logprobs_stream(asked, got) {
  got.logprobs = [];
  for await (const chunk of await client(asked).completions.create({ ...request(asked), logprobs: 0, stream: true })) {
    for (const choice of chunk.choices) got.logprobs.push(...(choice.logprobs?.token_logprobs ?? []));
  }
}

/** A prompt of token ids. */
export async function tokens(asked, got) {
  const { choices } = await client(asked).completions.create({ ...request(asked), prompt: asked.ids });
  got.text = choices[0].text;
  got.finish = choices[0].finish_reason;
}

export async function echo(asked, got) {
  const { choices } = await client(asked).completions.create({ ...request(asked), echo: true });
  got.text = choices[0].text;
  got.finish = choices[0].finish_reason;
}

export async function best_of(asked) {
  await client(asked).completions.create({ ...request(asked), best_of: 2 });
}
