// What a client got, in one normal form.
import assert from 'node:assert/strict';
import * as z from 'zod';

/** Nothing yet. `calls` are [name, arguments]; `ran` those that the SDK ran itself; `usage` is [input, output]. */
export function blank() {
  return {
    text: '', reasoning: '', refusal: null, calls: [], ran: [], finish: null, stop_sequence: null, usage: null, parsed: null,
    error: null,
  };
}

/** The tools that a runner runs, by name, with their schemas: they note that they were. */
export function tools(got) {
  const noted = (name, answer) => (given) => {
    got.ran.push([name, given]);
    return answer(given);
  };
  return {
    weather: { schema: z.object({ city: z.string() }), run: noted('weather', ({ city }) => `sunny in ${city}`) },
    now: { schema: z.object({}), run: noted('now', () => 'noon') },
  };
}

export const City = z.object({ city: z.string(), degrees: z.int() });

/** The client went away, as it was asked to. */
export class HungUp extends Error {}

/** Options of a request: a client that hangs up on a whole body waits no longer. */
export function patience(asked) {
  return asked.hang_up && asked.way === 'whole' ? { signal: AbortSignal.timeout(2000) } : {};
}

export { assert };
