"""`python -m examples NAME`: run an example on this machine, with a scripted model in place of a real one.

`python -m examples NAME --connect` starts it where TEMPORAL_ADDRESS says, with your own worker and model: its README has the command.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from typing import Any

from perdure import Event, Perdure, PerdureError, Run, RunView
from perdure.testing import run_locally

NAMES = ("refund", "fleet", "producer", "mailbox", "hooks")


async def play(name: str, server: Any = "dev") -> RunView:
    """Run the example to its end on a server of its own, or on one that is there already."""
    example = importlib.import_module(f"examples.{name}.agent")
    model = importlib.import_module(f"examples.{name}.model")
    agents = getattr(example, "AGENTS", None)
    async with run_locally(
        example.AGENT, model=model.SCRIPT, tools=[f"examples.{name}.tools"], agents=agents, server=server
    ) as local:
        perdure = Perdure(local.client, task_queue=local.task_queue)
        return await follow(await perdure.start(example.AGENT, example.INPUT), ask=False)


async def connect(name: str) -> None:
    example = importlib.import_module(f"examples.{name}.agent")
    perdure = await Perdure.connect()
    await follow(await perdure.start(example.AGENT, example.INPUT), ask=True)


async def follow(run: Run, *, ask: bool) -> RunView:
    """Tell what happens, have whatever waits for a person decided, and print the output."""
    print(run)
    async for event in run.events():
        if line := told(event):
            print(line)
        if (event.topic, event.phase) == ("approval", "start"):
            if ask and await asyncio.to_thread(input, "approve? [y/n] ") != "y":
                await run.reject(event, by="the example", reason="not this time")
            else:
                await run.approve(event, by="the example")
    print(await run.result())
    return await run.view()


def told(event: Event) -> str:
    said = event.data
    match event.topic, event.phase:
        case "request", "start":
            return f"{said['number']} {said['model']} is asked: {said['reason']}"
        case "tool", "end":
            return f"{said['call']} {said['tool']}: {said['status']} {said.get('result') or said.get('reason') or said.get('error') or ''}"
        case "approval", "start":
            return f"{said['call']} {said['tool']} waits for a person: {said['params']}"
        case _:
            return ""


def main(*words: str) -> None:
    if not words or words[0] not in NAMES or words[1:] not in ((), ("--connect",)):
        raise SystemExit(f"usage: python -m examples {'|'.join(NAMES)} [--connect]")
    try:
        asyncio.run(connect(words[0]) if words[1:] else play(words[0]))
    except PerdureError as error:
        raise SystemExit(f"{words[0]}: {error}") from None


if __name__ == "__main__":
    main(*sys.argv[1:])
