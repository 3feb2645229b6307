// The same scenarios as scenarios.py with the clients for JavaScript: `node scenarios.mjs CLIENT BASE_URL KEY`.

import OpenAI from "openai";
import { Agent, OpenAIProvider, Runner, setTracingDisabled, tool as agentTool } from "@openai/agents";
import { createOpenAI } from "@ai-sdk/openai";
import { Output, generateText, stepCountIs, streamText, tool as aiTool } from "ai";
import { z } from "zod";

const QUESTION = "How is the weather in Rome?";
const Report = z.object({ city: z.string(), degrees: z.number() });
const FUNCTIONS = {
  get_weather: {
    description: "Return the weather of a city.",
    schema: z.object({ city: z.string() }),
    run: ({ city }) => (city === "Rome" ? "mild and sunny" : "unknown"),
  },
  perdure_approval: {
    description: "Ask whether a call may run.",
    schema: z.object({ tool: z.string(), arguments: z.object({ amount: z.number() }) }),
    run: ({ tool, arguments: given }) => (tool === "pay" && given.amount === 5 ? "approve" : "reject"),
  },
};
const parametersOf = (name) => z.toJSONSchema(FUNCTIONS[name].schema);

function openaiResponses(client) {
  const ask = (model, more = {}) => client.responses.create({ model, input: QUESTION, ...more });
  return {
    text: async () => (await ask("text")).output_text,
    stream: async () => {
      let text = "";
      for await (const event of await ask("text", { stream: true })) {
        if (event.type === "response.output_text.delta") text += event.delta;
      }
      return text;
    },
    structured: async () => {
      const format = { type: "json_schema", name: "report", schema: z.toJSONSchema(Report) };
      return JSON.parse((await ask("structured", { text: { format } })).output_text);
    },
    function: async () => {
      const tools = [{ type: "function", name: "get_weather", parameters: parametersOf("get_weather"), strict: false }];
      const found = await ask("function", { tools });
      const input = found.output.map((call) => ({
        type: "function_call_output",
        call_id: call.call_id,
        output: FUNCTIONS.get_weather.run(JSON.parse(call.arguments)),
      }));
      return (await ask("function", { previous_response_id: found.id, input })).output_text;
    },
    approval: async () => {
      const found = await ask("approval");
      const input = found.output.map((item) => ({
        type: "mcp_approval_response",
        approval_request_id: item.id,
        approve: item.name === "pay",
      }));
      return (await ask("approval", { previous_response_id: found.id, input })).output_text;
    },
    failing: async () => {
      const found = await ask("failing");
      throw new Error(found.error.message);
    },
  };
}

function openaiChat(client) {
  const messages = [{ role: "user", content: QUESTION }];
  const loop = async (model, name) => {
    const said = [...messages];
    const tools = [{ type: "function", function: { name, parameters: parametersOf(name) } }];
    for (;;) {
      const { message } = (await client.chat.completions.create({ model, messages: said, tools })).choices[0];
      if (!message.tool_calls) return message.content;
      said.push(message);
      for (const call of message.tool_calls) {
        const content = FUNCTIONS[name].run(JSON.parse(call.function.arguments));
        said.push({ role: "tool", tool_call_id: call.id, content });
      }
    }
  };
  const text = async (model) =>
    (await client.chat.completions.create({ model, messages })).choices[0].message.content;
  return {
    text: () => text("text"),
    stream: async () => {
      let said = "";
      for await (const chunk of await client.chat.completions.create({ model: "text", messages, stream: true })) {
        said += chunk.choices[0].delta.content ?? "";
      }
      return said;
    },
    structured: async () => {
      const json_schema = { name: "report", schema: z.toJSONSchema(Report) };
      const response_format = { type: "json_schema", json_schema };
      const found = await client.chat.completions.create({ model: "structured", messages, response_format });
      return JSON.parse(found.choices[0].message.content);
    },
    function: () => loop("function", "get_weather"),
    approval: () => loop("approval", "perdure_approval"),
    failing: () => text("failing"),
  };
}

function agentsSdk(client, useResponses) {
  setTracingDisabled(true);
  const runner = new Runner({ modelProvider: new OpenAIProvider({ openAIClient: client, useResponses }) });
  const agent = (model, ...names) =>
    new Agent({
      name: "tester",
      model,
      tools: names.map((name) =>
        agentTool({
          name,
          description: FUNCTIONS[name].description,
          parameters: FUNCTIONS[name].schema,
          execute: async (given) => FUNCTIONS[name].run(given),
        }),
      ),
    });
  const text = async (...of) => (await runner.run(agent(...of), QUESTION)).finalOutput;
  return {
    text: () => text("text"),
    stream: async () => {
      const run = await runner.run(agent("text"), QUESTION, { stream: true });
      let said = "";
      for await (const piece of run.toTextStream()) said += piece;
      await run.completed;
      return said;
    },
    structured: async () => {
      const typed = new Agent({ name: "tester", model: "structured", outputType: Report });
      return (await runner.run(typed, QUESTION)).finalOutput;
    },
    function: () => text("function", "get_weather"),
    approval: () => text("approval", "perdure_approval"),
    failing: () => text("failing"),
  };
}

function aiSdk(modelOf) {
  const ask = async (name, ...names) => {
    const tools = Object.fromEntries(
      names.map((each) => [
        each,
        aiTool({
          description: FUNCTIONS[each].description,
          inputSchema: FUNCTIONS[each].schema,
          execute: async (given) => FUNCTIONS[each].run(given),
        }),
      ]),
    );
    const more = names.length ? { tools, stopWhen: stepCountIs(5) } : {};
    return (await generateText({ model: modelOf(name), prompt: QUESTION, ...more })).text;
  };
  return {
    text: () => ask("text"),
    stream: async () => {
      let said = "";
      for await (const piece of streamText({ model: modelOf("text"), prompt: QUESTION }).textStream) said += piece;
      return said;
    },
    structured: async () => {
      const output = Output.object({ schema: Report });
      return (await generateText({ model: modelOf("structured"), prompt: QUESTION, output })).output;
    },
    function: () => ask("function", "get_weather"),
    approval: () => ask("approval", "perdure_approval"),
    failing: () => ask("failing"),
  };
}

const [name, baseURL, apiKey] = process.argv.slice(2);
const client = () => new OpenAI({ baseURL, apiKey });
const clients = {
  "node-openai-responses": () => openaiResponses(client()),
  "node-openai-chat": () => openaiChat(client()),
  "node-agents-responses": () => agentsSdk(client(), true),
  "node-agents-chat": () => agentsSdk(client(), false),
  "ai-sdk-responses": () => aiSdk((model) => createOpenAI({ baseURL, apiKey }).responses(model)),
  "ai-sdk-chat": () => aiSdk((model) => createOpenAI({ baseURL, apiKey }).chat(model)),
};
const scenarios = clients[name]();
const found = {};
for (const each of ["text", "stream", "structured", "function", "approval", "failing"]) {
  try {
    found[each] = await scenarios[each]();
  } catch (error) {
    found[each] = { error: `${error.name}: ${error.message}` };
  }
}
console.log(JSON.stringify(found));
