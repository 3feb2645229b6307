"""An audit log: which calls were about to be made, and what came of them, once each however often a hook is called."""

from __future__ import annotations

from examples.hooks.database import run
from perdure import hook
from perdure.hooks import AfterToolCall, BeforeToolCall
from perdure.values.json import Json, dumps

ADD = (
    "insert into audit (key, at, run, agent, tenant, sender, what, call, tool, detail) "
    "values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) on conflict (key) do nothing"
)


@hook("before_tool_call")
async def asked_for(event: BeforeToolCall) -> None:
    """It fails closed: what cannot be written down is not done."""
    await _write(
        event, "asked", {"params": event.params, "sources": {name: [*each] for name, each in event.sources.items()}}
    )


@hook("after_tool_call")
async def came_of_it(event: AfterToolCall) -> None:
    """It only looks, and fails open: what was done is done. The log says then that nothing is known of it."""
    said: Json = event.result if event.status == "done" else {"error": event.error, "message": event.message}
    await _write(event, event.status, said)


async def _write(event: BeforeToolCall | AfterToolCall, what: str, detail: Json) -> None:
    of = (event.key, event.at, event.run_id, event.agent, event.tenant, event.sender)
    await run((ADD, (*of, what, event.call, event.tool, dumps(detail)[:10_000])))
