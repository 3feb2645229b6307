"""The peer: a hand-written ReAct loop on Temporal, as people write it today.

One turn of the model per level, native tool calls, all of a turn's calls gathered, their results appended to the messages,
and the messages passed to the next model activity.
"""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any, cast

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletionMessageParam

Message = dict[str, Any]


class ModelActivity:
    def __init__(self, client: AsyncOpenAI, *, stream: bool = True) -> None:
        self._client = client
        self._stream = stream

    @activity.defn(name="ask")
    async def ask(self, messages: list[Message]) -> Message:
        """One turn: an assistant message, with `tool_calls` if the model wants any."""
        if not self._stream:
            whole = await self._client.chat.completions.create(
                model="m", messages=cast(list[ChatCompletionMessageParam], messages)
            )
            return whole.choices[0].message.model_dump(exclude_none=True)
        calls: dict[int, Message] = {}
        text = ""
        stream = await self._client.chat.completions.create(
            model="m", messages=cast(list[ChatCompletionMessageParam], messages), stream=True
        )
        async for chunk in stream:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                for delta in choice.delta.tool_calls or []:
                    call = calls.setdefault(
                        delta.index, {"id": delta.id, "type": "function", "function": {"name": "", "arguments": ""}}
                    )
                    if delta.function is not None:
                        call["function"]["name"] += delta.function.name or ""
                        call["function"]["arguments"] += delta.function.arguments or ""
        return {"role": "assistant", "content": text} | ({"tool_calls": list(calls.values())} if calls else {})


async def do_work(ms: int, x: Any = None, size: int = 20) -> str:
    """Takes its time and returns so many characters, whatever it reads."""
    del x
    await asyncio.sleep(ms / 1000)
    return "r" * size


@activity.defn(name="work")
async def work(arguments: str) -> str:
    """The same work as Perdure's tool does, told by JSON arguments."""
    return await do_work(**json.loads(arguments))


@workflow.defn(name="ReActLoop")
class ReActLoop:
    @workflow.run
    async def run(self, task: str) -> str:
        messages: list[Message] = [{"role": "user", "content": task}]
        while True:
            reply: Message = await workflow.execute_activity(
                "ask", messages, start_to_close_timeout=timedelta(minutes=5)
            )
            messages.append(reply)
            if "tool_calls" not in reply:
                return str(reply["content"])
            results: list[str] = await asyncio.gather(
                *(
                    workflow.execute_activity(
                        call["function"]["name"],
                        call["function"]["arguments"],
                        start_to_close_timeout=timedelta(minutes=1),
                    )
                    for call in reply["tool_calls"]
                )
            )
            for call, result in zip(reply["tool_calls"], results, strict=True):
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


@workflow.defn(name="SkippingLoop")
class SkippingLoop:
    """A ReAct loop that takes messages between its turns: the calls that it was about to make are skipped, and the model is asked again."""

    def __init__(self) -> None:
        self._said: list[Message] = []

    @workflow.signal
    def say(self, text: str) -> None:
        self._said.append({"role": "user", "content": text})

    @workflow.run
    async def run(self, task: str) -> None:
        messages: list[Message] = [{"role": "user", "content": task}]
        minute = timedelta(minutes=1)
        while True:
            reply: Message = await workflow.execute_activity("ask", messages, start_to_close_timeout=minute)
            messages.append(reply)
            calls = reply.get("tool_calls", [])
            if not calls and not self._said:
                return
            results = ["skipped: a new message came"] * len(calls)
            if not self._said:
                started = (
                    workflow.execute_activity("do", call["function"]["arguments"], start_to_close_timeout=minute)
                    for call in calls
                )
                results = await asyncio.gather(*started)
            for call, result in zip(calls, results, strict=True):
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            messages, self._said = [*messages, *self._said], []


@workflow.defn(name="Gather")
class Gather:
    """One empty activity and then so many at once, for so many rounds; or only those at once."""

    @workflow.run
    async def run(self, count: int, rounds: int = 1, first: bool = False) -> None:
        for _ in range(rounds):
            if first:
                await _nothing()
            await asyncio.gather(*(_nothing() for _ in range(count)))


async def _nothing() -> None:
    await workflow.execute_activity("work", '{"ms":0}', start_to_close_timeout=timedelta(minutes=1))
