"""A fleet of hosts, one of which does not come back."""

from __future__ import annotations

import asyncio

from perdure import ToolError, tool

HOSTS = [f"web-{n:02}" for n in range(1, 9)]
BROKEN = "web-05"


@tool(safe=True)
def list_hosts() -> list[str]:
    """The names of all hosts."""
    return HOSTS


@tool
async def drain(host: str) -> bool:
    """Take a host out of the load balancer."""
    await asyncio.sleep(0.05)
    return host in HOSTS


@tool(retries=0)
async def update(host: str) -> str:
    """Install the new version."""
    await asyncio.sleep(0.05)
    if host == BROKEN:
        raise ToolError("no_space", f"the disk of {host} is full")
    return "2.4.1"


@tool(safe=True)
async def probe(host: str) -> str:
    """Ask a host how it is."""
    await asyncio.sleep(0.05)
    return f"{host} answers"
