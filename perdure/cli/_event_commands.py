"""`perdure events`: events of a run or a session as they happen."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text

from perdure.approvals.requests import ask_words, plan_words
from perdure.cli._console import harmless, screen
from perdure.cli._execute import connected
from perdure.runs.events import Event
from perdure.values.json import JsonObject, dumps, shorten

if TYPE_CHECKING:
    from perdure.client.perdure import Perdure


_SHOWN: Final = 160
"""Characters of parameters, of a result, or of a message."""


class EventPrinter:
    """Prints one event after the other. What a model writes goes on where it stands, until something else happens."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._writing = ""

    def tell(self, event: Event) -> None:
        if event.phase == "delta":
            self._write(event)
            return
        self.rest()
        words = _words(event)
        if words:
            style = _STYLES.get(event.phase, "")
            head = (f"{event.at[11:23]} {event.topic:<9} ", "dim")
            line = Text.assemble(head, (harmless(words).replace("\n", " "), style))
            self._console.print(line, overflow="ellipsis", no_wrap=True)

    def rest(self) -> None:
        """End the line of what is being written."""
        if self._writing:
            self._console.print()
            self._writing = ""

    def _write(self, event: Event) -> None:
        if self._writing != event.topic:
            self.rest()
            self._writing = event.topic
            self._console.print(Text(f"{event.at[11:23]} {event.topic:<9} ", style="dim"), end="")
        style = "dim" if event.topic == "reasoning" else ""
        self._console.print(Text(harmless(str(event.data["text"])), style=style), end="", soft_wrap=True)


_STYLES: Final = {"error": "red", "superseded": "yellow", "snapshot": "yellow", "reset": "yellow", "update": "yellow"}


def _words(event: Event) -> str:
    """Return a line about an event; empty if the text above it has the same content."""
    tell: Callable[[str, JsonObject, Event], str] = _TOLD[event.topic]
    return tell(event.phase, event.data, event)


def _lifecycle(phase: str, data: JsonObject, event: Event) -> str:
    whose = event.run_id or "the session"
    if phase == "start":
        return f"{whose} begins: {data.get('agent', '')}"
    if phase == "reset":
        return f"{whose} was reset: what was told of it after the point from which it goes on does not count"
    if phase == "snapshot":
        return f"what happened before is not kept any more: events {data['first']} to {data['next'] - 1} of {whose}"
    why = data.get("error") or data.get("stopReason")
    why = "" if why == "output" else why
    return f"{whose} {data.get('status', phase)}{f': {why}' if why else ''}"


def _request(phase: str, data: JsonObject, event: Event) -> str:
    del event
    about = f"Request {data.get('number', '')}"
    if phase == "start":
        return f"{about} asks {data.get('model', '')} ({data.get('reason', '')})"
    if phase == "update":
        return f"{about} is asked again: {data.get('reason', '')}"
    usage: Any = data.get("usage") or {}
    used = f"{usage.get('promptTokens', 0)} tokens in, {usage.get('completionTokens', 0)} out"
    return f"{about} is answered: {data['problem']}" if data.get("problem") else f"{about} is answered: {used}"


def _text(phase: str, data: JsonObject, event: Event) -> str:
    del event
    if phase == "superseded" or data.get("accepted") is False:
        return f"does not count: {data.get('reason', '')}"
    return ""


def _tool(phase: str, data: JsonObject, event: Event) -> str:
    del event
    call = f"{data.get('call')} {data.get('tool', '')}"
    if phase == "start":
        return f"{call}({shorten(data.get('params') or {}, _SHOWN)})"
    if phase == "update":
        return f"{call}: {data.get('reason') or data.get('progress') or ''}"
    error: Any = data.get("error") or {}
    why = error.get("message") or data.get("reason")
    result = f" → {shorten(data['result'], _SHOWN)}" if "result" in data else ""
    return f"{call} {data.get('status')}{f': {why}' if why else result}"


def _approval(phase: str, data: JsonObject, event: Event) -> str:
    del event
    call = f"{data.get('call')} {data.get('tool', '')}".rstrip()
    if phase == "start":
        return f"{data.get('call')} waits for {'its client' if data.get('client') else 'a person'}: {_asks(data)}"
    by = f" by {data['by']}" if data.get("by") else ""
    return f"{call} {data.get('decision', 'waits no longer')}{by}{_because(data)}"


def _asks(data: JsonObject) -> str:
    """Return the sentence of a request for an approval, as the inbox has it."""
    tool, params, reason, calls = (
        str(data.get("tool", "")),
        data.get("params"),
        str(data.get("reason", "")),
        data.get("calls"),
    )
    if not tool:
        return plan_words(len(calls) if isinstance(calls, list) else None, reason)
    return ask_words(tool, params if isinstance(params, dict) else {}, reason, question=bool(data.get("question")))


def _compaction(phase: str, data: JsonObject, event: Event) -> str:
    del event
    if phase == "start":
        return f"what was said is told in short: {data.get('reason', '')}"
    if "before" not in data:
        return str(data.get("reason", ""))
    return f"{data.get('before', '?')} tokens before, {data.get('after', '?')} after"


def _message(phase: str, data: JsonObject, event: Event) -> str:
    del event
    about = str(data.get("messageId", ""))
    if phase == "accepted":
        return f"{data.get('sender', '')}: {shorten(data.get('text', ''), _SHOWN)} ({about}, {data.get('done', phase)})"
    return f"{about} {phase}{_because(data)}"


def _reply(phase: str, data: JsonObject, event: Event) -> str:
    del phase, event
    return str(data["text"]) if data.get("text") else f"no reply{_because(data)}"


def _hook(phase: str, data: JsonObject, event: Event) -> str:
    del event
    call = f" {data['call']}" if data.get("call") else ""
    return f"{data.get('hook', '')} at {data.get('event', '')}{call}: {phase}{_because(data)}"


def _because(data: JsonObject) -> str:
    return f": {data['reason']}" if data.get("reason") else ""


_TOLD: Final[dict[str, Callable[[str, JsonObject, Event], str]]] = {
    "lifecycle": _lifecycle,
    "request": _request,
    "assistant": _text,
    "reasoning": _text,
    "tool": _tool,
    "approval": _approval,
    "compaction": _compaction,
    "message": _message,
    "reply": _reply,
    "hook": _hook,
}


events_app = typer.Typer()


@events_app.command("events")
def events(
    id: Annotated[str, typer.Argument(metavar="ID", help="A run's id, or a session's key or id.")],
    from_: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="CURSOR", help="Behind the event with this cursor; now: only what happens from now on."
        ),
    ] = None,
    topics: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these, e.g. assistant,tool; all are in docs/events.md.")
    ] = None,
    tenant: Annotated[str, typer.Option(metavar="NAME", help="Whose session it is.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON for each; in a pipe too.")] = False,
) -> None:
    """Tell what happens in a run or a session, and what has happened before, until it has ended."""
    names = None if topics is None else [name.strip() for name in topics.split(",") if name.strip()]

    async def follow(perdure: Perdure) -> None:
        telling = None if as_json or not sys.stdout.isatty() else EventPrinter(screen())
        try:
            async with aclosing(perdure.events(id, from_, names, tenant=tenant)) as found:
                async for event in found:
                    if telling is None:
                        print(dumps(event.as_json()), flush=True)
                    else:
                        telling.tell(event)
        finally:
            if telling is not None:
                telling.rest()

    connected(follow)
