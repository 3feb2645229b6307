"""The view of a chat: events of a session as lines, never higher than the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from rich.text import Text

from perdure.approvals.requests import WaitingView, ask_words, plan_words
from perdure.cli._console import strip_control_characters
from perdure.cli._event_commands import hosted_words
from perdure.cli._run_view import STYLE
from perdure.runs.event_stream import EventAdapter
from perdure.runs.events import Event
from perdure.values.json import JsonObject, shorten
from perdure.values.media import parts_without_media
from perdure.values.provenance import BY_OTHERS

_SHOWN: Final = 200
"""The most characters of parameters and of a result on a line."""
_BEGUN: Final = 50
"""The most characters of a call on the line with its outcome."""
_PASSED: Final = {"approve": "approved", "edit": "approved, changed,", "replace": "replaced"}
_CALLS: Final = 6
"""The most running calls with their own line."""


@dataclass
class PendingApproval:
    """An approval request that waits for a person."""

    run_id: str
    call: str
    tool: str
    reason: str
    question: bool = False
    view: WaitingView | None = None
    """The whole request as shown. A decision is bound to it."""

    @property
    def title(self) -> str:
        return f"{self.call} {self.tool}".rstrip() if self.tool else f"the plan of Request {self.call}"

    @property
    def sentence(self) -> str:
        """The question, with the same words as everywhere."""
        if self.view is not None:
            return self.view.sentence
        return ask_words(self.tool, None, self.reason) if "." in self.call else plan_words(None, self.reason)


@dataclass
class _Writing:
    """A text that is being written."""

    text: str = ""
    thought: str = ""


@dataclass
class ChatView(EventAdapter[Text, None]):
    """The lasting lines of a chat, and the live lines below them."""

    reasoning: bool = False
    """Whether to show a model's reasoning."""
    own: set[str] = field(default_factory=set)
    """Ids of the messages that were typed here, which are shown already."""
    run_id: str = ""
    """The active run; empty without one."""
    waits: dict[tuple[str, str], PendingApproval] = field(default_factory=dict)
    """Waiting requests by run and call, the oldest first."""
    trouble: str = ""
    """The error that stops the events; empty without one."""
    _calls: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The running calls by id: the call's text, and its progress."""
    _writing: _Writing = field(default_factory=_Writing)
    _asking: str = ""

    @property
    def works(self) -> bool:
        return bool(self.run_id)

    def fold(self, event: Event) -> Iterator[Text]:
        """Yield the lasting lines for an event."""
        self.trouble = ""
        return super().fold(event)

    def decided(self, waits: PendingApproval) -> None:
        """Remove an approval request that has been decided."""
        self.waits.pop((waits.run_id, waits.call), None)

    def on_lifecycle(self, event: Event) -> Iterator[Text]:
        if event.phase == "snapshot":
            yield Text("… the events in between are no longer stored", style="yellow")
        elif event.phase == "reset":
            what = "run" if event.run_id else "conversation"
            yield Text(f"… the {what} was reset and continues from an earlier point", style="yellow")
            if event.run_id:
                self.waits = {key: each for key, each in self.waits.items() if not key[0].startswith(event.run_id)}
            else:
                self.run_id = run = str(event.data.get("runId", ""))
                self.waits = {key: each for key, each in self.waits.items() if run and key[0].startswith(run)}
            self._calls.clear()
            self._writing = _Writing()
        elif event.phase == "start" and event.run_id:
            self.run_id = event.run_id
        elif event.run_id:
            self.waits = {key: each for key, each in self.waits.items() if not key[0].startswith(event.run_id)}
            self.run_id, self._asking = "", ""
            self._calls.clear()
            if event.phase == "error":
                self._writing = _Writing()

    def on_request(self, event: Event) -> Iterator[Text]:
        data = event.data
        if event.phase == "start":
            self._asking = f"{data.get('model', 'the model')} is asked"
        elif event.phase == "update":
            self._asking = f"asked again: {data.get('reason', '')}"
        else:
            self._asking = ""
            if data.get("problem"):
                yield _line(f"  {_problem(data['problem'])}", "yellow")

    def on_assistant(self, event: Event) -> Iterator[Text]:
        data = event.data
        if event.phase == "delta":
            self._asking = ""
            self._writing.text += str(data.get("text", ""))
        elif event.phase == "superseded":
            self._writing = _Writing()
        else:
            beside = data.get("accepted") and not data.get("output")
            self._writing = _Writing() if beside or not data.get("accepted") else self._writing
            if beside and str(data.get("text", "")).strip():
                yield Text(strip_control_characters(str(data["text"])).strip(), style="dim")

    def on_reasoning(self, event: Event) -> Iterator[Text]:
        data = event.data
        if event.phase == "delta" and self.reasoning:
            self._writing.thought += str(data.get("text", ""))
        elif event.phase != "delta":
            self._writing.thought = ""
        yield from ()

    def on_tool(self, event: Event) -> Iterator[Text]:
        data = event.data
        call, name = str(data.get("call", "")), str(data.get("tool", ""))
        if event.phase == "start":
            self._calls[call] = f"{call} {name}({_params(data.get('params'))})", ""
        elif event.phase == "update":
            detail = data.get("progress") or data.get("reason") or ""
            began, _ = self._calls.get(call, (f"{call} {name}", ""))
            self._calls[call] = began, detail if isinstance(detail, str) else shorten(detail, _SHOWN)
        else:
            began, _ = self._calls.pop(call, (f"{call} {name}", ""))
            began = began if len(began) <= _BEGUN else f"{began[:_BEGUN]}…"
            line = _line(f"  {began} ", "dim")
            line.append(*_ending(str(data.get("status", "")), data))
            yield line

    def on_hosted(self, event: Event) -> Iterator[Text]:
        yield _line(f"  {hosted_words(event)}", "dim")

    def on_approval(self, event: Event) -> Iterator[Text]:
        data = event.data
        key = (event.run_id, str(data.get("call", "")))
        if event.phase == "start" and not data.get("client"):
            self.waits.setdefault(
                key,
                PendingApproval(
                    event.run_id,
                    key[1],
                    str(data.get("tool", "")),
                    str(data.get("reason", "")),
                    bool(data.get("question")),
                ),
            )
        elif event.phase == "end" and (waits := self.waits.pop(key, None)) is not None:
            decision, by = data.get("decision"), f" by {data['by']}" if data.get("by") else ""
            if decision == "dropped":
                yield _line(f"  {waits.title} no longer waits for a decision: {data.get('reason', '')}", "magenta")
            elif decision in _PASSED:  # for other decisions, the call's own end shows it
                yield _line(f"  {waits.title} {_PASSED[decision]}{by}", "magenta")

    def on_compaction(self, event: Event) -> Iterator[Text]:
        data = event.data
        if event.phase == "start":
            self._asking = "compacting the conversation"
        else:
            self._asking = ""
            sizes = f"compacted: {data.get('before')} tokens before, {data.get('after', '?')} after"
            yield _line(f"  {sizes if 'before' in data else data.get('reason', '')}", "dim")

    def on_message(self, event: Event) -> Iterator[Text]:
        data = event.data
        if event.phase == "accepted" and data.get("messageId") not in self.own:
            yield _line(f"{data.get('sender', '')}: {data.get('text', '')}", "bold")
        elif event.phase == "withdrawn" and data.get("messageId") in self.own:
            yield _line(f"  taken back{': ' + str(data['reason']) if data.get('reason') else ''}", "yellow")

    def on_reply(self, event: Event) -> Iterator[Text]:
        data = event.data
        self._writing, self._asking = _Writing(), ""
        if data.get("text"):
            yield Text(strip_control_characters(str(data["text"])).rstrip(), style="")
        elif data.get("reason"):
            yield _line(f"  no answer: {data['reason']}", "red")

    # Live lines.

    def live(self, width: int, room: int) -> list[Text]:
        """Return at most `room` lines of this width: the end of the text being written, running calls, and waiting requests."""
        below = [*self._running(), *self._waiting()]
        for line in below:
            line.truncate(width, overflow="ellipsis")
        below = below[-room:] if room > 0 else []
        above = self._written(width)
        left = max(0, room - len(below))
        if len(above) > left:
            above = (
                [Text(f"… {len(above) - left + 1} lines above", style="dim"), *above[len(above) - left + 1 :]]
                if left > 1
                else []
            )
        return [*above, *below]

    def _written(self, width: int) -> list[Text]:
        text = Text()
        if self._writing.thought and not self._writing.text:
            text.append(strip_control_characters(self._writing.thought[-4000:]), style="dim italic")
        text.append(strip_control_characters(self._writing.text[-20_000:]))
        return wrap_lines(text, width) if text.plain.strip() else []

    def _running(self) -> Iterator[Text]:
        calls = list(self._calls.values())
        if len(calls) > _CALLS:
            yield Text(f"  … and {len(calls) - _CALLS} more running calls", style="dim")
        for began, far in calls[-_CALLS:]:
            yield _line(f"  {began}{f': {far}' if far else ''}", "yellow")
        if self.trouble:
            yield _line(f"  {self.trouble}", "red")
        elif self._asking:
            yield _line(f"  {self._asking}…", "dim")

    def _waiting(self) -> Iterator[Text]:
        waiting = list(self.waits.values())
        if not waiting:
            return
        first, more = waiting[0], len(waiting) - 1
        after = f"  ({more} more wait)" if more else ""
        if first.question:
            yield Text.assemble(
                ("? ", "bold yellow"), (_one_line(first.reason), "bold"), (f"  type the answer{after}", "dim")
            )
        else:
            keys = "  [a]pprove, [r]eject REASON"
            yield Text.assemble(
                ("? ", "bold yellow"),
                (_one_line(f"{first.title} waits for your decision"), "bold"),
                (keys + after, "dim"),
            )


def wrap_lines(text: Text, width: int) -> list[Text]:
    """Return a text in lines of this width."""
    from rich.console import Console

    return list(text.wrap(Console(width=width, file=None), width))


def approval_lines(waits: PendingApproval) -> Iterator[Text]:
    """Yield the lines of an approval request, cut to fit a terminal."""
    view = waits.view
    if waits.question:
        yield _whole(f"? {waits.reason}", "bold yellow")
        choices: Any = (view.params if view is not None else {}).get("choices")
        if isinstance(choices, list) and choices:
            yield _whole(f"  one of: {', '.join(map(str, choices))}", "dim")
        return
    yield _whole(f"? {waits.sentence}", "bold yellow")
    if view is None:
        return
    for name, value in parts_without_media(view.params).items():
        yield _whole(f"    {name}: {value if isinstance(value, str) else shorten(value, 2_000)}")
    for name, code in view.runs.items():
        yield _whole(f"    {name} runs {code}", "yellow")
    for call in view.calls or ():
        yield _whole(f"    {shorten(call, 500)}")
    for way in view.ways:
        if BY_OTHERS in way:
            yield _whole(f"    {way}", "yellow")


def _line(text: str, style: str = "") -> Text:
    """Return one line, cut at the terminal's width."""
    return Text(_one_line(text), style=style, no_wrap=True, overflow="ellipsis")


def _whole(text: str, style: str = "") -> Text:
    """Return one line, wrapped at the terminal's width."""
    return Text(_one_line(text), style=style)


def _one_line(text: str) -> str:
    return strip_control_characters(text).replace("\n", " ")


def _params(params: Any) -> str:
    if not isinstance(params, dict):
        return ""
    pairs = (f"{key}={value if isinstance(value, str) else shorten(value, 80)}" for key, value in params.items())
    return ", ".join(each if len(each) <= _SHOWN else f"{each[:_SHOWN]}…" for each in pairs)


def _problem(problem: Any) -> str:
    return str(problem.get("message", problem)) if isinstance(problem, dict) else str(problem)


def _ending(status: str, data: JsonObject) -> tuple[str, str]:
    """Return the words for a call's end, and their style."""
    error: Any = data.get("error") or {}
    why = (error.get("message") if isinstance(error, dict) else error) or data.get("reason")
    if status != "done":
        reason = _one_line(str(why or ""))
        return reason if reason.startswith(status) else f"{status}{f': {reason}' if reason else ''}", STYLE.get(
            status, "red"
        )
    result: Any = data.get("result")
    shown = result if isinstance(result, str) else shorten(result, _SHOWN)
    return f"→ {_one_line(shown)}" if "result" in data else "done", "green"
