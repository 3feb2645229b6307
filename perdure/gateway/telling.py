"""Hooks of the gateway's own: `gateway_start` and `gateway_stop` (R10.17). They observe: one that fails is a line in the log."""

from __future__ import annotations

from datetime import UTC, datetime

from perdure.activities.hooks.calling import call_hooks
from perdure.activities.hooks.registered import HookRegistry
from perdure.hooks.events import GatewayStart, GatewayStop


async def tell_start(hooks: HookRegistry, address: str) -> None:
    """The gateway listens."""
    await _tell(hooks, "gateway_start", GatewayStart(address=address, at=_now()))


async def tell_stop(hooks: HookRegistry, address: str) -> None:
    """It does not listen any more, and has answered whom it still could."""
    await _tell(hooks, "gateway_stop", GatewayStop(address=address, at=_now()))


async def _tell(hooks: HookRegistry, name: str, event: GatewayStart | GatewayStop) -> None:
    wanted = [each for each in hooks.recorded("gateway") if each.event == name]
    await call_hooks(hooks, wanted, event)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
