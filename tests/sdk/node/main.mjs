// The official SDKs for Node, asked by lines of JSON on standard input; what each client then got goes to standard output in the
// same form as in clients/__init__.py. Several are at work at a time.
import readline from 'node:readline';
import { blank } from './got.mjs';

const wires = {};
for (const wire of ['chat', 'completions', 'responses', 'messages', 'gemini']) {
  wires[wire] = await import(`./${wire}.mjs`);
}

async function run(asked) {
  const got = blank();
  try {
    await wires[asked.wire][asked.way](asked, got);
  } catch (error) {
    // An SDK's failure is a value here; what it got before stands beside it.
    got.error = {
      class: error.constructor.name,
      status: error.status ?? error.code ?? null,
      message: String(error.message),
      retry_after: error.headers?.get?.('retry-after') ?? null,
    };
  }
  return got;
}

// A failure that nobody awaits would end the program, and with it all the others that are at work.
process.on('unhandledRejection', (error) => process.stderr.write(`unhandled: ${error.stack}\n`));
for await (const line of readline.createInterface({ input: process.stdin })) {
  const { number, asked } = JSON.parse(line);
  run(asked).then((got) => process.stdout.write(`${JSON.stringify({ number, got })}\n`));
}
