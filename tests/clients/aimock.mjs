// A model server that others wrote, in the form of every provider: `node aimock.mjs TURNS`, until its input ends.
// TURNS is JSON: `[{"response": {…}, "options": {…}}]`, one for each request. The first line that it prints is its address;
// at its end it prints of each request the path, the status and the texts of its messages and its tools.

import { LLMock } from "@copilotkit/aimock";

const mock = new LLMock({ port: 0, chunkSize: 7, logLevel: "silent" });
JSON.parse(process.argv[2]).forEach(({ response, options }, index) =>
  mock.on({ predicate: () => mock.getRequests().length === index }, response, options ?? {}),
);
await mock.start();
console.log(mock.url);
process.stdin.resume();
await new Promise((ended) => process.stdin.on("end", ended));
const texts = ({ content }) => (typeof content === "string" ? content : (content ?? []).map(({ text }) => text ?? "").join("\n"));
const shown = (body) => [...(body?.messages ?? []).map(texts), JSON.stringify(body?.tools ?? [])].join("\n");
console.log(JSON.stringify(mock.getRequests().map(({ path, response, body }) => [path, response.status, shown(body)])));
await mock.stop();
