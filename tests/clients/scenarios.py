"""The same scenarios with each of OpenAI's clients for Python, in an environment of their own: `scenarios.py CLIENT BASE_URL KEY`.

The script prints one JSON object: by scenario what the client came to, or `{"error": …}`.
"""

# mypy: ignore-errors
# Its clients are in other environments than the type checker.
from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel

QUESTION = "How is the weather in Rome?"
WEATHER = "mild and sunny"


class Report(BaseModel):
    """A city's weather."""

    city: str
    degrees: int


def get_weather(city: str) -> str:
    """Return the weather of a city.

    Args:
        city: Its name.
    """
    return WEATHER if city == "Rome" else "unknown"


def perdure_approval(tool: str, arguments: dict[str, Any]) -> str:
    """Ask whether a call may run.

    Args:
        tool: The call's tool.
        arguments: What the call is given.
    """
    return "approve" if (tool, arguments) == ("pay", {"amount": 5}) else "reject"


SCHEMAS: dict[str, dict[str, Any]] = {
    "get_weather": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "perdure_approval": {
        "type": "object",
        "properties": {"tool": {"type": "string"}, "arguments": {"type": "object"}},
        "required": ["tool", "arguments"],
    },
}


def chat_tool(name: str) -> Any:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMAS[name]}}


class Client:
    """The scenarios that most clients play alike."""

    async def approval(self) -> Any:
        return await self.function("approval", perdure_approval)

    async def failing(self) -> Any:
        return await self.text("failing")


class ChatClient(Client):
    """A client whose user keeps the messages of a chat: `ask` sends them."""

    async def ask(self, model: str, messages: list[Any] | None = None, **more: Any) -> Any:
        raise NotImplementedError

    async def text(self, model: str = "text") -> Any:
        return (await self.ask(model)).choices[0].message.content

    async def stream(self) -> Any:
        stream = await self.ask("text", stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def function(self, model: str = "function", function: Callable[..., str] = get_weather) -> Any:
        messages: list[Any] = [{"role": "user", "content": QUESTION}]
        tools = [chat_tool(function.__name__)]
        while True:
            message = (await self.ask(model, messages, tools=tools)).choices[0].message
            if not message.tool_calls:
                return message.content
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                result = function(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


class OpenAIResponses:
    """The official client, over responses."""

    def __init__(self, base: str, key: str) -> None:
        from openai import AsyncOpenAI

        self.client = AsyncOpenAI(base_url=base, api_key=key)

    async def text(self) -> Any:
        return (await self.client.responses.create(model="text", input=QUESTION)).output_text

    async def stream(self) -> Any:
        async with self.client.responses.stream(model="text", input=QUESTION) as stream:
            return "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])

    async def structured(self) -> Any:
        found = await self.client.responses.parse(model="structured", input=QUESTION, text_format=Report)
        return found.output_parsed.model_dump()

    async def function(self) -> Any:
        tool = {"type": "function", "name": "get_weather", "parameters": SCHEMAS["get_weather"]}
        found = await self.client.responses.create(model="function", input=QUESTION, tools=[tool])
        results = [
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": get_weather(**json.loads(call.arguments)),
            }
            for call in found.output
        ]
        told = await self.client.responses.create(model="function", previous_response_id=found.id, input=results)
        return told.output_text

    async def approval(self) -> Any:
        found = await self.client.responses.create(model="approval", input=QUESTION)
        verdicts = [
            {"type": "mcp_approval_response", "approval_request_id": item.id, "approve": item.name == "pay"}
            for item in found.output
        ]
        told = await self.client.responses.create(model="approval", previous_response_id=found.id, input=verdicts)
        return told.output_text

    async def failing(self) -> Any:
        found = await self.client.responses.create(model="failing", input=QUESTION)
        assert found.status == "failed"
        raise RuntimeError(found.error.message)


class OpenAIChat(ChatClient):
    """The official client, over chat completions."""

    def __init__(self, base: str, key: str) -> None:
        from openai import AsyncOpenAI

        self.client = AsyncOpenAI(base_url=base, api_key=key)

    async def ask(self, model: str, messages: list[Any] | None = None, **more: Any) -> Any:
        said = messages or [{"role": "user", "content": QUESTION}]
        return await self.client.chat.completions.create(model=model, messages=said, **more)

    async def structured(self) -> Any:
        messages = [{"role": "user", "content": QUESTION}]
        found = await self.client.chat.completions.parse(model="structured", messages=messages, response_format=Report)
        return found.choices[0].message.parsed.model_dump()


class AgentsSDK(Client):
    """OpenAI's Agents SDK, over responses."""

    api = "responses"

    def __init__(self, base: str, key: str) -> None:
        import agents
        from openai import AsyncOpenAI

        self.agents = agents
        agents.set_default_openai_client(AsyncOpenAI(base_url=base, api_key=key), use_for_tracing=False)
        agents.set_default_openai_api(self.api)
        agents.set_tracing_disabled(True)

    def agent(self, model: str, *functions: Callable[..., str], **more: Any) -> Any:
        tools = [self.agents.function_tool(function, strict_mode=False) for function in functions]
        return self.agents.Agent(name="tester", model=model, tools=tools, **more)

    async def text(self, model: str = "text") -> Any:
        return (await self.agents.Runner.run(self.agent(model), QUESTION)).final_output

    async def stream(self) -> Any:
        run = self.agents.Runner.run_streamed(self.agent("text"), QUESTION)
        deltas = []
        async for event in run.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                deltas.append(event.data.delta)
        return "".join(deltas)

    async def structured(self) -> Any:
        run = await self.agents.Runner.run(self.agent("structured", output_type=Report), QUESTION)
        return run.final_output.model_dump()

    async def function(self) -> Any:
        settings = self.agents.ModelSettings(tool_choice="required")
        agent = self.agent("function", get_weather, model_settings=settings)
        return (await self.agents.Runner.run(agent, QUESTION)).final_output

    async def approval(self) -> Any:
        return (await self.agents.Runner.run(self.agent("approval", perdure_approval), QUESTION)).final_output


class AgentsSDKChat(AgentsSDK):
    """The same over chat completions."""

    api = "chat_completions"


class LangChain(Client):
    """LangChain's model, with its own loop over tool calls."""

    def __init__(self, base: str, key: str) -> None:
        from langchain_openai import ChatOpenAI

        self.model = lambda name: ChatOpenAI(model=name, base_url=base, api_key=key)

    async def text(self, model: str = "text") -> Any:
        return (await self.model(model).ainvoke(QUESTION)).text

    async def stream(self) -> Any:
        return "".join([chunk.text async for chunk in self.model("text").astream(QUESTION)])

    async def structured(self) -> Any:
        for method in ("function_calling", "json_schema"):
            found = await self.model("structured").with_structured_output(Report, method=method).ainvoke(QUESTION)
            if found.model_dump() != {"city": "Rome", "degrees": 21}:
                return method, found.model_dump()
        return found.model_dump()

    async def function(self, model: str = "function", function: Callable[..., str] = get_weather) -> Any:
        from langchain_core.messages import HumanMessage, ToolMessage

        bound = self.model(model).bind_tools([function])
        messages: list[Any] = [HumanMessage(QUESTION)]
        while True:
            messages.append(await bound.ainvoke(messages))
            if not messages[-1].tool_calls:
                return messages[-1].text
            for call in messages[-1].tool_calls:
                messages.append(ToolMessage(function(**call["args"]), tool_call_id=call["id"]))


class LlamaIndex(Client):
    """LlamaIndex's model and its function agent."""

    def __init__(self, base: str, key: str) -> None:
        from llama_index.llms.openai import OpenAI

        class Served(OpenAI):
            """A model that LlamaIndex has no table entry for."""

            @property
            def metadata(self) -> Any:
                from llama_index.core.base.llms.types import LLMMetadata

                return LLMMetadata(model_name=self.model, is_chat_model=True, is_function_calling_model=True)

            def _should_use_structure_outputs(self) -> bool:
                return False

        self.model = lambda name: Served(model=name, api_base=base, api_key=key)

    async def text(self, model: str = "text") -> Any:
        return (await self.model(model).acomplete(QUESTION)).text

    async def stream(self) -> Any:
        return "".join([chunk.delta async for chunk in await self.model("text").astream_complete(QUESTION)])

    async def structured(self) -> Any:
        from llama_index.core.llms import ChatMessage

        found = await self.model("structured").as_structured_llm(Report).achat([ChatMessage(QUESTION)])
        return found.raw.model_dump()

    async def function(self, model: str = "function", function: Callable[..., str] = get_weather) -> Any:
        from llama_index.core.agent.workflow import FunctionAgent

        agent = FunctionAgent(tools=[function], llm=self.model(model), streaming=False)
        return str(await agent.run(QUESTION))


class PydanticAI(Client):
    """pydantic-ai, over chat completions."""

    def __init__(self, base: str, key: str) -> None:
        from pydantic_ai import Agent
        from pydantic_ai.providers.openai import OpenAIProvider

        self.Agent = Agent
        self.provider = OpenAIProvider(base_url=base, api_key=key)

    def model(self, name: str) -> Any:
        from pydantic_ai.models.openai import OpenAIChatModel

        return OpenAIChatModel(name, provider=self.provider)

    async def text(self, model: str = "text") -> Any:
        return (await self.Agent(self.model(model)).run(QUESTION)).output

    async def stream(self) -> Any:
        async with self.Agent(self.model("text")).run_stream(QUESTION) as found:
            return "".join([delta async for delta in found.stream_text(delta=True)])

    async def structured(self) -> Any:
        return (await self.Agent(self.model("structured"), output_type=Report).run(QUESTION)).output.model_dump()

    async def function(self, model: str = "function", function: Callable[..., str] = get_weather) -> Any:
        return (await self.Agent(self.model(model), tools=[function]).run(QUESTION)).output


class PydanticAIResponses(PydanticAI):
    """The same over responses."""

    def model(self, name: str) -> Any:
        from pydantic_ai.models.openai import OpenAIResponsesModel

        return OpenAIResponsesModel(name, provider=self.provider)


class Instructor(OpenAIChat):
    """instructor around the official client: its structured output is a function that has to be called."""

    def __init__(self, base: str, key: str) -> None:
        import instructor

        super().__init__(base, key)
        self.instructor = instructor.from_openai(self.client)

    async def structured(self) -> Any:
        return (await self.report("structured")).model_dump()

    async def failing(self) -> Any:
        return await self.report("failing")

    async def report(self, model: str) -> Any:
        messages = [{"role": "user", "content": QUESTION}]
        return await self.instructor.chat.completions.create(model=model, messages=messages, response_model=Report)


class LiteLLM(ChatClient):
    """LiteLLM, with the gateway as an OpenAI-compatible server."""

    def __init__(self, base: str, key: str) -> None:
        os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch one
        import litellm

        self.given = {"api_base": base, "api_key": key}
        self.litellm = litellm

    async def ask(self, model: str, messages: list[Any] | None = None, **more: Any) -> Any:
        said = messages or [{"role": "user", "content": QUESTION}]
        return await self.litellm.acompletion(model=f"openai/{model}", messages=said, **self.given, **more)

    async def structured(self) -> Any:
        found = await self.ask("structured", response_format=Report)
        return Report.model_validate_json(found.choices[0].message.content).model_dump()


CLIENTS: dict[str, type[Any]] = {
    "openai-responses": OpenAIResponses,
    "openai-chat": OpenAIChat,
    "agents-responses": AgentsSDK,
    "agents-chat": AgentsSDKChat,
    "langchain": LangChain,
    "llama-index": LlamaIndex,
    "pydantic-ai-chat": PydanticAI,
    "pydantic-ai-responses": PydanticAIResponses,
    "instructor": Instructor,
    "litellm": LiteLLM,
}
SCENARIOS = ("text", "stream", "structured", "function", "approval", "failing")


async def outcome(scenario: Callable[[], Awaitable[Any]]) -> Any:
    """Return what a scenario came to."""
    try:
        return await scenario()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


async def main(name: str, base: str, key: str) -> None:
    client = CLIENTS[name](base, key)
    print(json.dumps({each: await outcome(getattr(client, each)) for each in SCENARIOS}))


asyncio.run(main(*sys.argv[1:4]))
