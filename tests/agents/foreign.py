"""Agents of other frameworks, written as the examples of their projects are: small ones for tests, in words of our own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

import agents
import pydantic_ai
from agents import RunContextWrapper
from pydantic import BaseModel

# OpenAI Agents SDK: a desk whose agents hand over to each other, as `customer_service` has it.


class Passenger(BaseModel):
    name: str
    flight: str | None = None


NOTED: list[str] = []
"""What callbacks of handoffs have seen."""


@agents.function_tool
def look_up(question: str) -> str:
    """Answer a question that is asked often."""
    return f"An answer to: {question}"


@agents.function_tool(needs_approval=True)
def change_seat(ctx: RunContextWrapper[Passenger], seat: str) -> str:
    """Change the passenger's seat."""
    return f"{ctx.context.name} sits in {seat}"


class Reason(BaseModel):
    reason: str


async def on_seat(ctx: RunContextWrapper[Passenger], given: Reason) -> None:
    NOTED.append(f"{ctx.context.name}: {given.reason}")


faq = agents.Agent[Passenger](
    name="FAQ Agent",
    handoff_description="Answers questions about flights.",
    instructions="Answer by the tool.",
    tools=[look_up],
)


def seat_instructions(ctx: RunContextWrapper[Passenger], agent: agents.Agent[Passenger]) -> str:
    return f"You are {agent.name}, for {ctx.context.name}."


seats = agents.Agent[Passenger](name="Seat Agent", instructions=seat_instructions, tools=[change_seat])


@agents.input_guardrail
async def no_homework(_: RunContextWrapper[Any], agent: agents.Agent[Any], input: Any) -> Any:
    del agent
    return agents.GuardrailFunctionOutput(output_info=None, tripwire_triggered="homework" in str(input))


triage = agents.Agent[Passenger](
    name="Triage Agent",
    instructions="Hand over to the agent that fits.",
    handoffs=[faq, agents.handoff(seats, on_handoff=on_seat, input_type=Reason)],
    input_guardrails=[no_homework],
    model="gpt-5.4",
    model_settings=agents.ModelSettings(temperature=0.2, parallel_tool_calls=False, top_logprobs=2),
)
faq.handoffs.append(triage)
seats.handoffs.append(triage)

# Agents as tools, as `agents_as_tools` has them.

spanish = agents.Agent(name="spanish", instructions="Translate to Spanish.", handoff_description="Spanish")
orchestrator = agents.Agent(
    name="orchestrator",
    instructions="Translate by the tools.",
    tools=[spanish.as_tool("translate_to_spanish", "Translate to Spanish."), agents.WebSearchTool()],
    model_settings=agents.ModelSettings(tool_choice="required"),
)

# Output guardrails, as `output_guardrails` has them.


class Message(BaseModel):
    reasoning: str
    response: str


@agents.output_guardrail
async def no_phone_number(_: RunContextWrapper[Any], agent: agents.Agent[Any], output: Message) -> Any:
    del agent
    return agents.GuardrailFunctionOutput(output_info=None, tripwire_triggered="650" in output.response)


assistant = agents.Agent(
    name="Assistant",
    instructions="Help.",
    output_type=Message,
    output_guardrails=[no_phone_number],
)

# Pydantic AI: support of a bank whose dependencies hold a connection, as `bank_support` has it.


class Database:
    async def customer_name(self, id: int) -> str:
        return {123: "John"}[id]


@dataclass
class SupportDeps:
    customer_id: int
    db: Database


class SupportOutput(BaseModel):
    advice: str
    block_card: bool
    risk: int


def support_deps(context: Any) -> SupportDeps:
    return SupportDeps(context["customer_id"], Database())


support = pydantic_ai.Agent(
    "openai:gpt-5.2",
    deps_type=SupportDeps,
    output_type=SupportOutput,
    instructions="You are a support agent of a bank.",
    defer_model_check=True,
)


@support.instructions
async def add_customer_name(ctx: pydantic_ai.RunContext[SupportDeps]) -> str:
    return f"The customer is {await ctx.deps.db.customer_name(ctx.deps.customer_id)}."


@support.tool
async def customer_balance(ctx: pydantic_ai.RunContext[SupportDeps]) -> str:
    """Return the balance of the customer."""
    return f"{ctx.deps.customer_id}: 100"


# A game whose dependencies are plain data, as `roulette_wheel` has it.


@dataclass
class Wheel:
    winning_number: int


roulette = pydantic_ai.Agent(
    "groq:llama-3.3-70b-versatile",
    deps_type=Wheel,
    retries=3,
    output_type=bool,
    system_prompt="Use the wheel.",
    defer_model_check=True,
)


@roulette.tool
def wheel(ctx: pydantic_ai.RunContext[Wheel], square: int) -> str:
    """Say whether the square wins."""
    return "winner" if square == ctx.deps.winning_number else "loser"


# A search with a validated union as its output, as `flight_booking` has it.


class Flight(BaseModel):
    number: str
    day: date


class NoFlight(BaseModel):
    why: str


flights = pydantic_ai.Agent(
    "openai-chat:gpt-5.2",
    name="flights",
    output_type=[Flight, pydantic_ai.ToolOutput(NoFlight), pydantic_ai.DeferredToolRequests],
    system_prompt="Find the cheapest flight.",
    model_settings={"temperature": 0.0, "max_tokens": 500, "logit_bias": {"1": 2}},
    defer_model_check=True,
)


@flights.output_validator
def is_in_time(output: Any) -> Any:
    return output
