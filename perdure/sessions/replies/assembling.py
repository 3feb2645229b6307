"""What is said of a run that has ended: its answer, and what goes before it; or that there is none (R10.16)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from perdure.run.past.sent import was_sent
from perdure.run.wire import CallView, RunResult
from perdure.sessions.lanes.queued import Queued, Running
from perdure.sessions.replies.wire import Delivery, Kind
from perdure.values.excerpts import cut_text
from perdure.values.jsons import shorten
from perdure.values.limits import MAX_REPLY
from perdure.values.rules import Told

_MOST: Final = 30
"""Calls of which a summary tells, the newest."""
_SHOWN: Final = 80
"""Characters of a parameter, a result or a failure in a summary."""
_FAILURE: Final = 500
"""Characters of a failure that is all there is to say."""


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that is said."""

    kind: Kind
    text: str


def parts(result: RunResult, reply: str | None, told: Collection[Told] = ()) -> list[Part]:
    """What is to be said of a run, in its order; empty: nothing. `reply`: its answer, `None` where it has none or wants to say nothing.

    What a message tool has sent already is not said again. Where nothing is left and a tool has failed, that is said, unless a message tool
    has sent something that people see. That a run has failed is said in any case, and of a refused one the model's words; of one that
    somebody has ended nothing is.
    """
    if reply is not None and not was_sent(reply, result.sent):
        thought = [Part("reasoning", result.reasoning)] if "reasoning" in told and result.reasoning.strip() else []
        calls = [Part("tools", summary(result.calls))] if "tools" in told and result.calls else []
        return [*thought, *calls, Part("answer", reply)]
    if result.status == "refused":
        return [Part("failure", (result.error or "The model refused.")[:_FAILURE])]
    if result.status in ("completed", "failed", "timed_out"):
        failed = [] if result.sent else failures(result.calls)
        if failed:
            return [Part("failure", "\n".join(failed))]
        if result.status != "completed":
            return [Part("failure", f"There is no answer: {result.error or f'the run {result.status}'}"[:_FAILURE])]
    return []


def failures(calls: Iterable[CallView]) -> list[str]:
    """A line for each tool that has failed in the end: what was repeated and went well counts as well."""
    last = {call.tool: call for call in calls if call.status in ("done", "failed")}
    return [
        f"{call.tool} failed: {(call.error or {}).get('message') or 'it did not say why'}"[:_FAILURE]
        for call in last.values()
        if call.status == "failed"
    ]


def summary(calls: list[CallView]) -> str:
    """The calls of a run, a line each."""
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


def shorten_text(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who says it."""

    run_id: str
    session: str
    tenant: str
    agent: str


def deliveries(
    result: RunResult,
    reply: str | None,
    running: Running,
    held: Collection[str],
    told: Collection[Told] = (),
    *,
    speaker: Speaker,
) -> list[Delivery]:
    """What is said of a run, to each route that the messages it has answered name, in the order of their acceptance. No route: to nobody.

    `held`: what of the messages that it was given since it began a Request held.
    """
    routes: dict[str, list[Queued]] = {}
    for message in [*running.messages, *(each for each in running.steered if each.key in held)]:
        if message.route:
            routes.setdefault(message.route, []).append(message)
    if not routes or (running.ending is not None and result.status != "completed"):  # by somebody, who knows it
        return []
    said = parts(result, reply, told)
    pairs = [(route, messages, part) for route, messages in routes.items() for part in said]
    return [
        Delivery(
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
