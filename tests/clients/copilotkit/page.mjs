// What the client of a page does through CopilotKit's runtime: `node page.mjs ADDRESS TOKEN`.

// It counts its users unless it is told not to, before it is loaded.
import "data:text/javascript,process.env.COPILOTKIT_TELEMETRY_DISABLED = process.env.DO_NOT_TRACK = 'true'";
import { createServer } from "node:http";
import { ProxiedCopilotRuntimeAgent } from "@copilotkit/core";
import { CopilotRuntime } from "@copilotkit/runtime/v2";
import { createCopilotNodeListener } from "@copilotkit/runtime/v2/node";
import { HttpAgent } from "@ag-ui/client";

const [address, token] = process.argv.slice(2);
const headers = { Authorization: `Bearer ${token}` };
const agents = { shopper: new HttpAgent({ url: `${address}/ag-ui/shopper`, headers }) };
const server = createServer(createCopilotNodeListener({ runtime: new CopilotRuntime({ agents }), basePath: "/kit" }));
await new Promise((ready) => server.listen(0, "127.0.0.1", ready));

const runtimeUrl = `http://127.0.0.1:${server.address().port}/kit`;
const agent = new ProxiedCopilotRuntimeAgent({ runtimeUrl, agentId: "shopper", threadId: crypto.randomUUID() });
const context = [{ description: "The open page", value: JSON.stringify({ shoes: "red" }) }];
agent.addMessage({ id: crypto.randomUUID(), role: "user", content: "Pay for the shoes." });
await agent.runAgent({ context });
const waiting = agent.pendingInterrupts ?? [];
const found = { asked: waiting.map((each) => each.message) };
for (const { id } of waiting) {
  const resume = [{ interruptId: id, status: "resolved", payload: { approved: true } }];
  await agent.runAgent({ context, resume });
}
found.last = agent.messages.at(-1).content;
found.state = agent.state;
console.log(JSON.stringify(found));
process.exit(0);
