"""What crosses when a reply is delivered, and the names it goes by (R10.16)."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from pydantic import Field

from perdure.values.wire import Wire

DELIVER_ACTIVITY: Final = "perdure.reply"
"""Gives one reply, a `Delivery`, to the worker's function for its route: a `Delivered`."""
NO_SUCH_ROUTE: Final = "NoSuchRoute"
"""Type of the failure of a worker that has not the route, where another may."""

ATTEMPTS: Final = 6
"""Of one delivery; one that a worker was shut down in does not count."""

Kind: TypeAlias = Literal["answer", "reasoning", "tools", "failure"]
"""`answer`: what the run says; before it, where `verbose` allows, its `reasoning` and a line for each call (`tools`). `failure`: there is
nothing to say, and why."""
Status: TypeAlias = Literal["delivered", "refused", "unknown"]
"""`unknown`: it was tried, and nobody knows whether it has arrived."""


class Delivery(Wire):
    """One reply on its way."""

    key: str
    """`<run>/<reply>`, the replies of a run counted from 1: its idempotency key, the same at every attempt."""
    kind: Kind
    text: str
    route: str
    """As the messages name it: `name`, or `name:address`."""
    run_id: str
    number: int
    """The reply's number in its run."""
    session: str
    """The session's key."""
    tenant: str = ""
    agent: str = ""
    """The name of the agent that answers."""
    message_ids: list[str] = Field(default_factory=list)
    """The messages of this route that the run has answered, in the order of their acceptance."""
    sender: str = ""
    """Of the first of them."""
    earlier: int = 0
    """Attempts of workers that were shut down meanwhile."""


class Delivered(Wire):
    """What became of it."""

    status: Status = "delivered"
    why: str | None = None
    """Why it was refused, or why nobody knows."""


def name_of(route: str) -> str:
    """The part of a route that names the function."""
    return route.partition(":")[0]


def address_of(route: str) -> str:
    """The part behind it, which is the function's to read; `""`: there is none."""
    return route.partition(":")[2]
