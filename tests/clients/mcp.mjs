// What MCP's own client for JavaScript does with the gateway: `node mcp.mjs ADDRESS TOKEN`.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { CallToolResultSchema } from "@modelcontextprotocol/sdk/types.js";

const [address, token] = process.argv.slice(2);
const requestInit = { headers: { Authorization: `Bearer ${token}` } };
const client = new Client({ name: "tests", version: "1" });
await client.connect(new StreamableHTTPClientTransport(new URL(address), { requestInit }));
const { tasks } = client.experimental;
const found = { version: client.getServerVersion().version };

await client.listTools();
found.called = (await client.callTool({ name: "adder", arguments: { a: 2, b: 3 } })).structuredContent;
found.unknown = await client.callTool({ name: "nobody", arguments: {} }).catch((error) => error.code);

const statuses = [];
for await (const message of tasks.callToolStream({ name: "adder", arguments: { a: 4, b: 5 } })) {
  if (message.type === "taskCreated") found.ttl = message.task.ttl;
  else if (message.type === "result") found.task = message.result.structuredContent;
  else if (message.type === "error") throw message.error;
  else statuses.push(message.task.status);
}
found.listed = (await tasks.listTasks()).tasks.length > 0;

const waiting = tasks.callToolStream({ name: "payer", arguments: { request: "pay 5" } }, CallToolResultSchema);
const id = (await waiting.next()).value.task.taskId;
found.cancelled = (await tasks.cancelTask(id)).status;

const abort = new AbortController();
const { signal } = abort;
// The first news of how far it is says that the run has begun.
const onprogress = () => abort.abort("enough");
const aborted = client.callTool({ name: "payer", arguments: { request: "pay 5" } }, undefined, { signal, onprogress });
found.aborted = await aborted.catch((error) => String(error.message ?? error));
await client.close();
console.log(JSON.stringify(found));
