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
