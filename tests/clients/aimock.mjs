// A model server that others wrote, in the form of every provider: `node aimock.mjs TURNS`, until its input ends.
// TURNS is JSON: `[{"response": {…}, "options": {…}}]`, one for each request. The first line that it prints is its address;
// at its end it prints the paths that were asked.

import { LLMock } from "@copilotkit/aimock";

const mock = new LLMock({ port: 0, chunkSize: 7, logLevel: "silent" });
JSON.parse(process.argv[2]).forEach(({ response, options }, index) =>
  mock.on({ predicate: () => mock.getRequests().length === index }, response, options ?? {}),
);
await mock.start();
console.log(mock.url);
process.stdin.resume();
await new Promise((ended) => process.stdin.on("end", ended));
console.log(JSON.stringify(mock.getRequests().map(({ path, response }) => [path, response.status])));
await mock.stop();
