// A page with a tool of its own, through CopilotKit's runtime: `node tools.mjs ADDRESS TOKEN`.

// It counts its users unless it is told not to, before it is loaded.
import "data:text/javascript,process.env.COPILOTKIT_TELEMETRY_DISABLED = process.env.DO_NOT_TRACK = 'true'";
import { createServer } from "node:http";
import { CopilotKitCore, ProxiedCopilotRuntimeAgent } from "@copilotkit/core";
import { CopilotRuntime } from "@copilotkit/runtime/v2";
import { createCopilotNodeListener } from "@copilotkit/runtime/v2/node";
import { HttpAgent } from "@ag-ui/client";
import { z } from "zod";

const [address, token] = process.argv.slice(2);
const headers = { Authorization: `Bearer ${token}` };
const agents = { shopper: new HttpAgent({ url: `${address}/ag-ui/shopper`, headers }) };
const server = createServer(createCopilotNodeListener({ runtime: new CopilotRuntime({ agents }), basePath: "/kit" }));
await new Promise((ready) => server.listen(0, "127.0.0.1", ready));

const runtimeUrl = `http://127.0.0.1:${server.address().port}/kit`;
const agent = new ProxiedCopilotRuntimeAgent({ runtimeUrl, agentId: "shopper", threadId: crypto.randomUUID() });
const found = { calls: [] };
const handler = async (params) => {
  found.calls.push(params);
  return { fruit: "apple" };
};
const parameters = z.object({ of: z.string() });
const core = new CopilotKitCore({
  runtimeUrl,
  agents__unsafe_dev_only: { shopper: agent },
  tools: [{ name: "read_cart", description: "Read the cart.", parameters, handler }],
});
for (const content of ["Order what is in my cart.", "Thanks."]) {
  agent.addMessage({ id: crypto.randomUUID(), role: "user", content });
  await core.runAgent({ agent });
}
found.texts = agent.messages.filter((each) => each.role === "assistant" && each.content).map((each) => each.content);
console.log(JSON.stringify(found));
process.exit(0);
