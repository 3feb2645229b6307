"""What tests of OpenAI's doors share: the official client, a gateway, a worker and a scripted model, all over real HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from temporalio.client import Client

from perdure.gateway.openai.adapter import openai_adapter
from perdure.testing.scripted_model import Script
from tests.gateway.support import Served, gateway, write_agents, write_tokens
from tests.support import Harness, harness
from tests.timeouts import HANG

SHOPPER: dict[str, Any] = {"name": "shopper", "context": [{"type": "system", "text": "You help people shop."}]}
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
EVERYTHING = ("acme", "ann", ["*"])


def says(text: Any) -> dict[str, Any]:
    return {"calls": [], "output": text}


@dataclass
class Door:
    """A gateway with its worker, and clients for each of its tokens."""

    served: Served
    it: Harness
    clients: list[AsyncOpenAI]
    tokens: list[str]
    given: dict[str, Any]
    """The gateway's settings."""

    @property
    def ai(self) -> AsyncOpenAI:
        return self.clients[0]


@asynccontextmanager
async def door(
    client: Client,
    folder: Path,
    script: Script,
    *,
    agents: Sequence[dict[str, Any]] = (SHOPPER,),
    functions: Sequence[Callable[..., Any]] = (),
    who: Sequence[tuple[str, str, Sequence[str]]] = (EVERYTHING,),
    given: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Door]:
    """The door in front of a worker that has these functions and this model; `given`: more settings of the gateway."""
    tokens = write_tokens(folder / "tokens.json", *who)
    given = {
        **(given or {}),
        "agents": write_agents(folder / "agents", *agents),
        "gateway_tokens": folder / "tokens.json",
    }
    async with (
        harness(client, functions, script, agents=given["agents"], **options) as it,
        gateway(client, [openai_adapter], task_queue=it.task_queue, **given) as served,
        AsyncExitStack() as stack,
    ):
        base, most = f"{served.address}/v1", {"max_retries": 0, "timeout": HANG}
        clients = [AsyncOpenAI(base_url=base, api_key=token, **most) for token in tokens]  # type: ignore[arg-type]
        for each in clients:
            stack.push_async_callback(each.close)
        yield Door(served, it, clients, tokens, given)
