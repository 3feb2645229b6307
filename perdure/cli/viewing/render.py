"""A run on a terminal: its Requests, and its plan as a table (rich)."""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from perdure.cli.viewing.tables import table, wait_line
from perdure.model.usage import Usage
from perdure.model.wire import RequestView
from perdure.run.wire import CallView, RunView, WaitingEntry, WaitingView
from perdure.values.jsons import dumps, shorten
from perdure.values.media import without_media

STYLE: Final = {
    "done": "green",
    "completed": "green",
    "running": "yellow",
    "waiting": "bold yellow",
    "failed": "red",
    "invalid": "red",
    "rejected": "magenta",
    "skipped": "dim",
    "deferred": "dim",
    "held": "cyan",
    "unknown": "bold red",
    "refused": "red",
    "cancelled": "magenta",
}


_INDENT: Final = 2


def run_table(view: RunView, width: int) -> RenderableType:
    """The whole run: each Request with its model, under it its calls, with what they read and write where the `width` has room for it."""
    parts: list[RenderableType] = []
    numbers = sorted({int(call.id.split(".")[0]) for call in view.calls} | {request.number for request in view.log})
    for number in numbers:
        request = next((request for request in view.log if request.number == number), None)
        calls = [call for call in view.calls if call.id.split(".")[0] == str(number)]
        parts.append(_heading(number, request, calls, str(view.output)))
        if view.wait is not None and number == numbers[-1]:
            parts.append(Text(f"  {wait_line(view.wait)}", style="yellow"))
        if calls:
            parts.append(_calls_table(calls, view, width))
    if view.trouble:
        parts.append(Text(view.trouble, style="bold red"))
    return Group(*parts)


def _heading(number: int, request: RequestView | None, calls: list[CallView], answer: str) -> RenderableType:
    """`[iter=1 model=… reason=… msgs=2 cost=$0.0003]`, below it the tokens, and what was said beside the `answer`."""
    if request is None:
        which = "a model was asked; which one, the history alone does not show" if number else "the plan that was given"
        return Text(f"[iter={number}] {which}", style="bold")
    cost = "" if request.cost is None else f" cost=${request.cost:.4f}"
    line = Text.assemble(
        (f"[iter={number}", "bold"), " model=", (request.model, "bold"), f" reason={request.reason}",
        f" msgs={request.messages}{cost}]",
    )  # fmt: skip
    usage = request.usage
    cached = f" cached={usage.cached_tokens}" if usage.cached_tokens else ""
    tokens = f"  tokens: prompt={usage.prompt_tokens}{cached} completion={usage.completion_tokens}"
    state = tokens if request.status == "done" else "  running" if calls else "  asking…"
    lines = [line, Text(state, style="dim"), *(Text(f"  because {words}", style="dim") for words in request.because)]
    if request.status == "running" and request.trouble:
        lines.append(Text(f"  {request.trouble}", style="yellow"))
    if request.text and not answer.startswith(request.text):
        lines.append(Text(f"  said: {' | '.join(request.text.splitlines())}"))
    return Group(*lines)


def _calls_table(calls: list[CallView], view: RunView, width: int) -> RenderableType:
    starts = [start for call in calls if (start := _seconds(call.started_at)) is not None]
    rows = [
        (
            call.id,
            call.tool,
            _short(", ".join(view.reads.get(call.id, []))),
            _short(view.writes.get(call.id, "")),
            _span(call, min(starts, default=0.0)),
            _status(call),
        )
        for call in calls
    ]
    titles = ("call", "tool", "reads", "writes", "when", "status")
    gives, drops = ("reads", "writes", "tool"), ("reads", "when", "writes")
    shown = table(titles, rows, width - _INDENT, gives=gives, drops=drops)
    with_client = {offer.call for offer in view.waiting if offer.client}
    notes = [line for call in calls for line in _lines(call, view.run_id, with_client)]
    return Padding(Group(shown, *notes), (0, 0, 1, _INDENT))


def _lines(call: CallView, run_id: str, with_client: set[str]) -> list[Text]:
    """What ran, what came of it, and why it did not end well; each cut to the terminal's width but for the last."""
    lines = []
    if call.started_at is not None or call.approval is not None:
        params = shorten(call.params, 300) if call.params else ""
        lines.append(Text(f"{call.id} tool_call: {call.tool}({params})", no_wrap=True, overflow="ellipsis"))
    if call.shown is not None:
        lines.append(Text(f"{' ' * len(call.id)} result: {call.shown}", style="dim", no_wrap=True, overflow="ellipsis"))
    if note := _note(call, run_id, with_client):
        lines.append(Text(f"{call.id} {note}", style="dim"))
    return lines


def _short(references: str) -> str:
    """Nearly everything is state: the kind is only shown where it is something else."""
    return references.replace("†state.", "†")


def _status(call: CallView) -> Text:
    text = Text(call.status, style=STYLE.get(call.status, ""))
    if call.attempts > 1:
        text.append(f" ({call.attempts} attempts)", style="dim")
    return text


def _note(call: CallView, run_id: str, with_client: set[str]) -> str:
    """Why a call did not end well, and who decided about it."""
    why = call.reason or (f"{call.error.get('code')}: {call.error.get('message')}" if call.error else "")
    approval = call.approval
    if approval is None or call.status == "rejected" or (approval.decision is None and call.status != "waiting"):
        return why
    if approval.decision is None and call.id in with_client:
        return "waits for the client that carries it out"
    if approval.decision is None:
        how = (
            f"answer {shlex.quote(run_id)} {call.id} TEXT"
            if call.tool == "ask_person"
            else f"approve {shlex.quote(run_id)} {call.id}"
        )
        return f"waits for a person: perdure {how}"
    if approval.decision == "dropped":
        return f"nobody decided: {why}"
    by = f" by {approval.by}" if approval.by else ""
    return (
        f"{approval.decision}{by}" + (f" ({approval.reason})" if approval.reason else "") + (f"; {why}" if why else "")
    )


def deciding(run_id: str, one: WaitingEntry | WaitingView) -> str:
    """The commands that decide about it, ready to be pasted."""
    named = f"{shlex.quote(run_id)} {one.call}"
    if one.question:
        return f"perdure answer {named} TEXT"
    return f"perdure approve {named}\nperdure reject {named}"


def _span(call: CallView, origin: float) -> str:
    """When it ran, in seconds since the first call of its Request: calls with overlapping spans ran in parallel."""
    start, end = _seconds(call.started_at), _seconds(call.ended_at)
    if start is None:
        return ""
    return f"{start - origin:.2f}–{'…' if end is None else format(end - origin, '.2f')} s"


def _seconds(time: str | None) -> float | None:
    return None if time is None else datetime.fromisoformat(time).timestamp()


def print_result(console: Console, view: RunView) -> None:
    """The end of a run: status, output, what went wrong and what it cost."""
    stopped = f" (stop reason: {view.stop_reason})" if view.stop_reason not in (None, "output") else ""
    status = (view.status, STYLE.get(view.status, ""))
    console.print(Text.assemble("run ", (view.run_id, "bold"), " ", status, stopped))
    if view.error:
        console.print(Text(view.error, style="red"))
    if isinstance(view.output, str):
        console.print(Text(without_media(view.output)))
    elif view.output is not None:
        console.print_json(dumps(without_media(view.output)))
    usage = view.usage
    cost = "" if usage.cost is None else f" · ${usage.cost:.4f}"
    console.print(
        Text(
            f"{view.requests} Requests · {len(view.calls)} calls · errors told to the model: {len(view.errors)} · "
            f"tokens: {_tokens(usage)}{cost}",
            style="dim",
        )
    )
    if len(usage.by_model) > 1:
        for model, used in usage.by_model.items():
            cost = "" if used.cost is None else f", ${used.cost:.4f}"
            line = f"  {model}: {used.requests} Requests, {_tokens(used)}{cost}"
            console.print(Text(line, style="dim"))


def _tokens(usage: Usage) -> str:
    cached = f" ({usage.cached_tokens} of them cached)" if usage.cached_tokens else ""
    return f"{usage.prompt_tokens} in{cached}, {usage.completion_tokens} out"


def print_run(console: Console, view: RunView) -> None:
    """Everything about a run, as `show` prints it."""
    console.print(run_table(view, console.width))
    if view.state:
        console.print(Text.assemble(("state ", "bold"), shorten(without_media(view.state), 2000)))
    for line in view.cut:
        console.print(Text(line, style="yellow"))
    if view.resets:
        often = "" if view.resets == 1 else f" {view.resets} times"
        console.print(
            Text(f"Temporal has reset this run{often}: it goes on from an earlier point of its history", style="yellow")
        )
    for refusal in view.refusals:
        line = f"decision without effect at {refusal['time']}: {refusal['decision']}: {refusal['problem']}"
        console.print(Text(line, style="magenta"))
    print_result(console, view)
