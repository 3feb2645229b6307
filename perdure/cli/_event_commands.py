"""`perdure events`: the events of a run or a session, live."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text

from perdure.approvals.requests import ask_words, plan_words
from perdure.cli._console import get_console, strip_control_characters
from perdure.cli._execute import USAGE, CommandError, check_choice, connected, one_line_errors
from perdure.cli._help import Commands
from perdure.errors import CursorError
from perdure.runs.evaluation import score_words
from perdure.runs.event_stream import EventAdapter
from perdure.runs.events import TOPICS, Event, parse_cursor
from perdure.values.json import JsonObject, dumps, shorten

if TYPE_CHECKING:
    from perdure.client.perdure import Perdure


_SHOWN: Final = 160
"""The most characters of parameters, of a result, or of a message."""


class EventPrinter:
    """Prints events one after the other. A model's text continues on its line until another event arrives."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._writing = ""

    def print_event(self, event: Event) -> None:
        if event.phase == "delta":
            self._write(event)
            return
        self.rest()
        for words in filter(None, _WORDS.fold(event)):
            style = _STYLES.get(event.phase, "")
            head = (f"{event.at[11:23]} {event.topic:<9} ", "dim")
            line = Text.assemble(head, (strip_control_characters(words).replace("\n", " "), style))
            self._console.print(line, overflow="ellipsis", no_wrap=True)

    def rest(self) -> None:
        """End the line of the text being written."""
        if self._writing:
            self._console.print()
            self._writing = ""

    def _write(self, event: Event) -> None:
        if self._writing != event.topic:
            self.rest()
            self._writing = event.topic
            self._console.print(Text(f"{event.at[11:23]} {event.topic:<9} ", style="dim"), end="")
        style = "dim" if event.topic == "reasoning" else ""
        self._console.print(
            Text(strip_control_characters(str(event.data["text"])), style=style), end="", soft_wrap=True
        )


_STYLES: Final = {"error": "red", "superseded": "yellow", "snapshot": "yellow", "reset": "yellow", "update": "yellow"}


class EventWords(EventAdapter[str, None]):
    """A line for each event, except events that the text above already shows."""

    def on_lifecycle(self, event: Event) -> Iterator[str]:
        data, whose = event.data, event.run_id or "the session"
        if event.phase == "start":
            yield f"{whose} begins: {data.get('agent', '')}"
        elif event.phase == "reset":
            yield f"{whose} was reset: its events after the point of the reset do not count"
        elif event.phase == "snapshot":
            missed = f"events {data['first']} to {data['next'] - 1} of {whose}"
            yield f"earlier events are no longer stored: {missed}"
        else:
            why = data.get("error") or data.get("stopReason")
            yield f"{whose} {data.get('status', event.phase)}{f': {why}' if why and why != 'output' else ''}"

    def on_request(self, event: Event) -> Iterator[str]:
        data, about = event.data, f"Request {event.data.get('number', '')}"
        if event.phase == "start":
            yield f"{about} is sent to {data.get('model', '')} ({data.get('reason', '')})"
        elif event.phase == "update":
            yield f"{about} is retried: {data.get('reason', '')}"
        else:
            usage: Any = data.get("usage") or {}
            used = f"{usage.get('promptTokens', 0)} tokens in, {usage.get('completionTokens', 0)} out"
            yield f"{about} is answered: {data.get('problem') or used}"

    def on_assistant(self, event: Event) -> Iterator[str]:
        if event.phase == "superseded" or event.data.get("accepted") is False:
            yield f"does not count: {event.data.get('reason', '')}"

    on_reasoning = on_assistant

    def on_tool(self, event: Event) -> Iterator[str]:
        data, call = event.data, f"{event.data.get('call')} {event.data.get('tool', '')}"
        if event.phase == "start":
            yield f"{call}({shorten(data.get('params') or {}, _SHOWN)})"
        elif event.phase == "update":
            yield f"{call}: {data.get('reason') or data.get('progress') or ''}"
        else:
            error: Any = data.get("error") or {}
            why = error.get("message") or data.get("reason")
            result = f" → {shorten(data['result'], _SHOWN)}" if "result" in data else ""
            yield f"{call} {data.get('status')}{f': {why}' if why else result}"

    def on_hosted(self, event: Event) -> Iterator[str]:
        yield hosted_words(event)

    def on_approval(self, event: Event) -> Iterator[str]:
        data, call = event.data, f"{event.data.get('call')} {event.data.get('tool', '')}".rstrip()
        by = f" by {data['by']}" if data.get("by") else ""
        if event.phase == "start":
            whom = "its client" if data.get("client") else "a person"
            yield f"{data.get('call')} waits for {whom}: {_request_words(data)}"
        else:
            yield f"{call} {data.get('decision', 'no longer waits')}{by}{_because(data)}"

    def on_compaction(self, event: Event) -> Iterator[str]:
        data, reason = event.data, str(event.data.get("reason", ""))
        if event.phase == "start":
            yield f"the conversation is compacted: {reason}"
        else:
            sizes = f"{data.get('before')} tokens before, {data.get('after', '?')} after"
            yield sizes if "before" in data else reason

    def on_message(self, event: Event) -> Iterator[str]:
        data, phase, about = event.data, event.phase, str(event.data.get("messageId", ""))
        if phase == "accepted":
            text = shorten(data.get("text", ""), _SHOWN)
            yield f"{data.get('sender', '')}: {text} ({about}, {data.get('done', phase)})"
        else:
            yield f"{about} {phase}{_because(data)}"

    def on_reply(self, event: Event) -> Iterator[str]:
        yield str(event.data["text"]) if event.data.get("text") else f"no reply{_because(event.data)}"

    def on_score(self, event: Event) -> Iterator[str]:
        yield score_words(event.data)

    def on_hook(self, event: Event) -> Iterator[str]:
        data, call = event.data, f" {event.data['call']}" if event.data.get("call") else ""
        yield f"{data.get('hook', '')} at {data.get('event', '')}{call}: {event.phase}{_because(data)}"


def hosted_words(event: Event) -> str:
    """Return a use of a hosted tool as a line, for `events` and `chat`."""
    data = event.data
    result = f" → {shorten(data['result'], _SHOWN)}" if "result" in data else ""
    return f"{data.get('tool')}({shorten(data.get('input') or '', _SHOWN)}) {data.get('status')}{result}"


def _request_words(data: JsonObject) -> str:
    """Return the sentence of an approval request, as in the inbox."""
    tool, params, reason, calls = data.get("tool"), data.get("params"), str(data.get("reason", "")), data.get("calls")
    if not tool:
        return plan_words(len(calls) if isinstance(calls, list) else None, reason)
    question = bool(data.get("question"))
    ask = str(data.get("ask") or "")
    return ask_words(str(tool), params if isinstance(params, dict) else {}, reason, question=question, ask=ask)


def _because(data: JsonObject) -> str:
    return f": {data['reason']}" if data.get("reason") else ""


_WORDS: Final = EventWords()


events_app = Commands()


@events_app.command("events")
def events(
    id: Annotated[str, typer.Argument(metavar="ID", help="A run's id, or a session's key or id.")],
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="CURSOR", help="Start after the event with this cursor; now: only new events."),
    ] = None,
    topics: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Only these topics, such as assistant,tool. docs/events.md lists all."),
    ] = None,
    tenant: Annotated[str, typer.Option(metavar="NAME", help="The session's tenant.")] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each event as a line of JSON; the default in a pipe.")
    ] = False,
) -> None:
    """Print the events of a run or a session until it has ended, past events first."""
    names = None if topics is None else [name.strip() for name in topics.split(",") if name.strip()]
    with one_line_errors():  # before a server is needed
        for name in names or ():
            check_choice("--topics", name, [*TOPICS])
        if from_ is not None and from_ != "now":
            try:
                parse_cursor(from_)
            except CursorError as error:
                raise CommandError(f"--from: {error}", USAGE) from None

    async def follow(perdure: Perdure) -> None:
        printer = None if as_json or not sys.stdout.isatty() else EventPrinter(get_console())
        try:
            async with aclosing(perdure.events(id, from_, names, tenant=tenant)) as found:
                async for event in found:
                    if printer is None:
                        print(dumps(event.as_json()), flush=True)
                    else:
                        printer.print_event(event)
        finally:
            if printer is not None:
                printer.rest()

    connected(follow)
