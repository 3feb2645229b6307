"""Replies of a session: their texts, their routes, and their deliveries."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pydantic import Field

from perdure.runs.routes import F, RouteFunction, address_of, decorated_route, registered_routes
from perdure.runs.sent_texts import was_sent
from perdure.runs.wire import CallView, RunResult
from perdure.sessions.message_queue import ActiveRun, Queued
from perdure.values.json import WireModel, shorten
from perdure.values.limits import MAX_REPLY
from perdure.values.media import cut_text
from perdure.values.messages import VerbosePart

DELIVER_ACTIVITY: Final = "perdure.reply"
"""Activity that passes one reply, a `ReplyDelivery`, to the worker's function for its route; returns a `Delivered`."""

ATTEMPTS: Final = 6
"""Attempts of one delivery, without attempts during which the worker was shut down."""

PartKind: TypeAlias = Literal["answer", "reasoning", "tools", "failure"]
"""`answer`: the run's text; before it, if `verbose` allows, its `reasoning` and a line for each call (`tools`).
`failure`: the reason why there is no answer."""


class ReplyDelivery(WireModel):
    """A reply on its way."""

    key: str
    """`<run>/<reply>`, the replies of a run counted from 1: its idempotency key, the same at every attempt."""
    kind: PartKind
    text: str
    route: str
    """Route, as the messages name it: `name`, or `name:address`."""
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
    """Sender of the first of these messages."""
    earlier: int = 0
    """Attempts of earlier deliveries, and attempts during which the worker was shut down."""
    hooked: bool = Field(default=False, exclude_if=operator.not_)
    """Whether hooks have made or passed the text (`message_sending`)."""

    @property
    def is_redelivery(self) -> bool:
        """Whether an earlier delivery of the reply has an unknown outcome. Read it from the session's copy: in the
        copy of a later attempt `earlier` may also count attempts of this delivery.
        """
        return self.earlier > 0


_MOST: Final = 30
"""Calls of a summary: the newest are shown."""
_SHOWN: Final = 80
"""Characters of a parameter, a result or a failure in a summary."""
_FAILURE: Final = 500
"""Characters of a failure that is the whole reply."""


@dataclass(frozen=True, slots=True)
class ReplyPart:
    """A part of a reply, of one kind."""

    kind: PartKind
    text: str


def parts(result: RunResult, reply: str | None, verbose: Collection[VerbosePart] = ()) -> list[ReplyPart]:
    """Return the parts of a run's reply in their order; none if there is nothing to send.

    `reply`: the run's answer; `None` if there is none, or if it is `NO_REPLY`. A text that a message tool has sent is
    not sent again. If no text is left and a tool has failed, the failure is sent, unless a message tool has sent a
    text that people see. The failure of a run is always sent, and so is the model's text of a refused run. A stopped
    run sends nothing.
    """
    if reply is not None and not was_sent(reply, result.sent):
        thought = (
            [ReplyPart("reasoning", result.reasoning)] if "reasoning" in verbose and result.reasoning.strip() else []
        )
        calls = [ReplyPart("tools", summary(result.calls))] if "tools" in verbose and result.calls else []
        return [*thought, *calls, ReplyPart("answer", reply)]
    if result.status == "refused":
        return [ReplyPart("failure", (result.error or "The model refused.")[:_FAILURE])]
    if result.status in ("completed", "failed", "timed_out"):
        failed = [] if result.sent else failures(result.calls)
        if failed:
            return [ReplyPart("failure", "\n".join(failed))]
        if result.status != "completed":
            return [
                ReplyPart("failure", f"There is no answer: {result.error or f'the run {result.status}'}"[:_FAILURE])
            ]
    return []


def failures(calls: Iterable[CallView]) -> list[str]:
    """Return a line for each failed tool. A failure does not count if a repeated call succeeded."""
    last = {call.tool: call for call in calls if call.status in ("done", "failed")}
    return [
        f"{call.tool} failed: {(call.error or {}).get('message') or 'no reason given'}"[:_FAILURE]
        for call in last.values()
        if call.status == "failed"
    ]


def summary(calls: list[CallView]) -> str:
    """Return the calls of a run, one line each."""
    shown = calls[-_MOST:]
    before = [f"({len(calls) - len(shown)} calls before these)"] if len(calls) > len(shown) else []
    return "\n".join([*before, *map(_line, shown)])


def _line(call: CallView) -> str:
    params = ", ".join(f"{name}={shorten(value, _SHOWN)}" for name, value in call.params.items())
    if call.status == "done":
        outcome = "" if call.shown is None else f" → {shorten_text(call.shown)}"
    else:
        words = (call.error or {}).get("message") or call.reason
        outcome = f": {call.status}" + (f" ({shorten_text(str(words))})" if words else "")
    return f"{call.tool}({params}){outcome}"


def shorten_text(text: str, most: int = _SHOWN) -> str:
    """Return a text as one line of at most `most` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


@dataclass(frozen=True, slots=True)
class ReplyAuthor:
    """The author of a reply."""

    run_id: str
    session: str
    tenant: str
    agent: str


def deliveries(
    result: RunResult,
    reply: str | None,
    running: ActiveRun,
    held: Collection[str],
    verbose: Collection[VerbosePart] = (),
    *,
    speaker: ReplyAuthor,
) -> list[ReplyDelivery]:
    """Return the deliveries of a run's reply: one for each route of its messages, in the order of acceptance.

    `held`: keys of the messages that a Request held after the run began.
    """
    routes: dict[str, list[Queued]] = {}
    for message in [*running.messages, *(each for each in running.steered if each.key in held)]:
        if message.route:
            routes.setdefault(message.route, []).append(message)
    if not routes or (
        running.ending is not None and result.status != "completed"
    ):  # a person has ended it, and knows it
        return []
    reply_parts = parts(result, reply, verbose)
    pairs = [(route, messages, part) for route, messages in routes.items() for part in reply_parts]
    return [
        ReplyDelivery(
            key=f"{speaker.run_id}/{number}",
            kind=part.kind,
            text=cut_text(part.text, MAX_REPLY, f"{len(part.text):,} characters"),
            route=route,
            run_id=speaker.run_id,
            number=number,
            session=speaker.session,
            tenant=speaker.tenant,
            agent=speaker.agent,
            message_ids=[message.message_id for message in messages],
            sender=messages[0].sender,
        )
        for number, (route, messages, part) in enumerate(pairs, 1)
    ]


REGISTERED: Final = "__perdure_routes__"


@dataclass(frozen=True)
class Reply:
    """One text to deliver on one route: the argument of a route's function.

    ```python
    @reply_route("slack")
    async def post(reply: Reply) -> None:
        print(f"to {reply.address}: {reply.text} (idempotency key {reply.key})")
    ```
    """

    key: str
    """`<run>/<reply>`: identifies this delivery at every attempt. A receiver ignores a key that it has processed."""
    text: str
    kind: PartKind
    """`answer`, `failure`, or, where the agent's `session.verbose` allows, `reasoning` and `tools`."""
    route: str
    """Route as the messages name it: `slack:C012`."""
    address: str
    """The part of the route after the name: `C012`."""
    session: str
    tenant: str
    agent: str
    run_id: str
    message_ids: list[str]
    """The messages that it answers, in the order of their acceptance."""
    sender: str
    """Sender of the first of these messages."""
    attempt: int
    """Number of the attempt, from 1."""


def reply_route(name: str, /) -> Callable[[F], F]:
    """Make a function, sync or async, deliver the replies of a route: to messages with the route `name` or
    `name:address`.

    The function takes a `Reply` and delivers it under its `key`. It returns nothing, or `refuse("why")` if the reply
    can never be delivered. The engine retries after an exception, six attempts in all; then the outcome is unknown
    (`perdure session redeliver`). Attempts wait for a worker without a limit. Sync functions run in threads.

    Raises `ToolDefinitionError` for a name with a colon in it, and for a function that takes no `Reply`.

    ```python
    @reply_route("slack")
    async def post(reply: Reply) -> None:
        print(f"to {reply.address}: {reply.text}")
    ```
    """
    # R10.16
    return decorated_route(name, REGISTERED, "reply")


def routes_of(value: object) -> list[RouteFunction]:
    """Return the routes that a decorated function is registered for."""
    return registered_routes(value, REGISTERED, "reply")


def reply_for_route(delivery: ReplyDelivery, attempt: int) -> Reply:
    """Return the argument of the route's function."""
    return Reply(
        key=delivery.key,
        text=delivery.text,
        kind=delivery.kind,
        route=delivery.route,
        address=address_of(delivery.route),
        session=delivery.session,
        tenant=delivery.tenant,
        agent=delivery.agent,
        run_id=delivery.run_id,
        message_ids=delivery.message_ids,
        sender=delivery.sender,
        attempt=attempt,
    )
