"""A run on a terminal: its plan, its result, its progress, and its prompts."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NoReturn

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from perdure.approvals.requests import WaitingEntry, WaitingView
from perdure.cli._console import get_console, make_table, strip_control_characters, wait_line
from perdure.cli._execute import FAILED, connected
from perdure.errors import clip, pluralize
from perdure.hooks.events import RunOwner
from perdure.models.requests import RequestContext, RequestResult, RequestView
from perdure.models.schemas import make_strict
from perdure.models.usage import Usage
from perdure.runs.notifications import NotificationView, decide_command
from perdure.runs.prompt_parts import TOKEN, characters, common_prefix_length, costs
from perdure.runs.wire import CallView, RunView
from perdure.values.json import JsonObject, dumps, shorten
from perdure.values.media import without_media
from perdure.values.messages import one_visible_line

if TYPE_CHECKING:
    from perdure.client.histories import Exchange
    from perdure.client.perdure import Perdure
    from perdure.client.run import Run


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


def owner_lines(owner: RunOwner) -> list[str]:
    """Return a line with sender, tenant, session and context; no line if all are empty."""
    named = (("sender", owner.sender), ("tenant", owner.tenant), ("session", owner.session))
    parts = [f"{name} {value}" for name, value in named if value]
    parts += [f"context {dumps(owner.context)}"] if owner.context else []
    return [strip_control_characters(", ".join(parts))] if parts else []


def run_table(view: RunView, width: int) -> RenderableType:
    """Return the whole run: each Request with its model and its calls. Their references are shown if the `width` permits."""
    about = [strip_control_characters(f"version {view.version} of {view.agent}")] if view.version else []
    parts: list[RenderableType] = [Text(line, style="dim") for line in [*about, *owner_lines(view.owner)]]
    numbers = sorted({int(call.id.split(".")[0]) for call in view.calls} | {request.number for request in view.log})
    for number in numbers:
        request = next((request for request in view.log if request.number == number), None)
        calls = [call for call in view.calls if call.id.split(".")[0] == str(number)]
        parts.append(_heading(number, request, calls, str(view.output)))
        if view.wait is not None and number == numbers[-1]:
            parts.append(Text(f"  {wait_line(view.wait)}", style="yellow"))
        if calls:
            parts.append(_calls_table(calls, view, width))
    parts += [
        Text(strip_control_characters(line), style="yellow" if line.startswith("violated") else "dim")
        for line in view.rules
    ]
    if view.trouble:
        parts.append(Text(view.trouble, style="bold red"))
    return Group(*parts)


def _heading(number: int, request: RequestView | None, calls: list[CallView], answer: str) -> RenderableType:
    """Return `[iter=1 model=… reason=… msgs=2 cost=$0.0003]`, then the tokens, and the text if it differs from the `answer`."""
    if request is None:
        which = "a Request of a model that the history does not name" if number else "the given plan"
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
        lines.append(Text(f"  text: {' | '.join(request.text.splitlines())}"))
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
    shrinkable, droppable = ("reads", "writes", "tool"), ("reads", "when", "writes")
    shown = make_table(titles, rows, width - _INDENT, shrinkable=shrinkable, droppable=droppable)
    waiting = {request.call: request for request in view.waiting}
    notes = [line for call in calls for line in _lines(call, view.run_id, waiting)]
    return Padding(Group(shown, *notes), (0, 0, 1, _INDENT))


def _lines(call: CallView, run_id: str, waiting: Mapping[str, WaitingView]) -> list[Text]:
    """Return the lines of a call: the call, its result, and a failure's reason. All but the last are cut to the terminal's width."""
    lines = []
    if call.started_at is not None or call.approval is not None:
        params = one_visible_line(shorten(call.params, 300)) if call.params else ""
        lines.append(Text(f"{call.id} tool_call: {call.tool}({params})", no_wrap=True, overflow="ellipsis"))
    if call.shown is not None:
        lines.append(
            Text(
                f"{' ' * len(call.id)} result: {one_visible_line(call.shown)}",
                style="dim",
                no_wrap=True,
                overflow="ellipsis",
            )
        )
    if call.hooked:
        words = one_visible_line(f"{call.hooked_by} has changed {', '.join(call.hooked)}")
        lines.append(Text(f"{call.id} the hook {words}", style="dim"))
    if note := _note(call, run_id, waiting):
        lines.append(Text(f"{call.id} {note}", style="dim"))
    return lines


def _short(references: str) -> str:
    """Shorten references: omit the kind `state`, which nearly all have."""
    return references.replace("†state.", "†")


def _status(call: CallView) -> Text:
    text = Text(call.status, style=STYLE.get(call.status, ""))
    if call.attempts > 1:
        text.append(f" ({call.attempts} attempts)", style="dim")
    return text


def _note(call: CallView, run_id: str, waiting: Mapping[str, WaitingView]) -> str:
    """Return a failed or waiting call's reason, and its decision."""
    why = call.reason or (f"{call.error.get('code')}: {call.error.get('message')}" if call.error else "")
    approval = call.approval
    waits = call.status in ("waiting", "running")  # a running call may wait for an answer to its MCP server
    if approval is None or call.status == "rejected" or (approval.decision is None and not waits):
        return why
    request = waiting.get(call.id)
    if approval.decision is None and request is not None and request.client:
        return f"waits for the client that runs it: perdure answer {shlex.quote(run_id)} {call.id} RESULT"
    if approval.decision is None:
        question = call.tool == "ask_person" or call.status == "running"
        return f"waits for a person: {_decide_command(run_id, call.id, question, request)}"
    if approval.decision == "dropped":
        return f"nobody decided: {why}"
    decided = [
        f"{each.decision}{f' by {each.by}' if each.by else ''}{f' ({each.reason})' if each.reason else ''}"
        for each in (*approval.earlier_changes, approval)
    ]
    return "; ".join([*decided, *([why] if why else [])])


def decision_commands(run_id: str, one: WaitingEntry | WaitingView) -> str:
    """Return the commands for a decision, ready to be pasted."""
    decide = _decide_command(run_id, one.call, one.question, one)
    return decide if one.question else f"{decide}\nperdure reject {shlex.quote(run_id)} {one.call}"


def _decide_command(run_id: str, call: str, question: bool, one: WaitingEntry | WaitingView | None) -> str:
    return strip_control_characters(decide_command(run_id, call, question=question, roles=one.roles if one else ()))


def waiting_lines(run_id: str, one: WaitingEntry | WaitingView) -> str:
    """Return the question on one line, and the commands for a decision."""
    words = " ".join(strip_control_characters(one.sentence).split())
    return f"{one.call} waits for a person: {words}\n{decision_commands(run_id, one)}"


async def print_waiting(run: Run) -> None:
    """Print waiting requests of a run and its delegates' runs to stderr, with the commands for a decision: a pipe has no prompt."""
    async for one in run.waits():
        print(f"perdure: {waiting_lines(one.run_id, one.entry)}", file=sys.stderr, flush=True)


def _span(call: CallView, origin: float) -> str:
    """Return a call's time span, in seconds since the first call of its Request. Overlapping calls ran in parallel."""
    start, end = _seconds(call.started_at), _seconds(call.ended_at)
    if start is None:
        return ""
    return f"{start - origin:.2f}–{'…' if end is None else format(end - origin, '.2f')} s"


def _seconds(time: str | None) -> float | None:
    return None if time is None else datetime.fromisoformat(time).timestamp()


def started_and_shown(
    start: Callable[[Perdure], Awaitable[Run[Any]]], words: Callable[[str], str], *, no_wait: bool, as_json: bool
) -> None:
    """Start a run derived from another run, wait for its end, and print the result. Exit with 1 unless it completed.

    `words` returns the line that names the new run. With `no_wait`, print its id only.
    """

    async def begin(perdure: Perdure) -> tuple[str, RunView | None]:
        run = await start(perdure)
        if no_wait:
            return run.id, None
        if not as_json:
            print(words(run.id), file=sys.stderr)
        return run.id, await run.wait()

    name, view = connected(begin)
    if view is None:
        print(dumps({"runId": name}) if as_json else name)
        return
    finish(view, as_json)


def finish(view: RunView, as_json: bool) -> NoReturn:
    """Print a result and exit with its code."""
    if as_json:
        print(dumps(view.result().as_json()))
    else:
        print_result(get_console(), view)
    raise SystemExit(0 if view.status == "completed" else FAILED)


def print_result(console: Console, view: RunView) -> None:
    """Print the end of a run: status, output, failures and cost."""
    stopped = f" (stop reason: {view.stop_reason})" if view.stop_reason not in (None, "output") else ""
    status = (view.status, STYLE.get(view.status, ""))
    console.print(Text.assemble("run ", (view.run_id, "bold"), " ", status, stopped))
    if view.error:
        console.print(Text(view.error, style="red"))
    if view.status == "failed" and (words := _last_problem(view)) not in (None, view.error):
        console.print(Text(f"last error: {words}", style="red"))
    if isinstance(view.output, str):
        console.print(Text(without_media(view.output)))
    elif view.output is not None:
        console.print_json(dumps(without_media(view.output)))
    usage = view.usage
    cost = "" if usage.cost is None else f" · ${usage.cost:.4f}"
    console.print(
        Text(
            f"{pluralize(view.requests, 'Request')} · {pluralize(len(view.calls), 'call')} · errors: {_errors(view)} · "
            f"tokens: {_tokens(usage)}{cost}",
            style="dim",
        )
    )
    if len(usage.by_model) > 1:
        for model, used in usage.by_model.items():
            cost = "" if used.cost is None else f", ${used.cost:.4f}"
            line = f"  {model}: {pluralize(used.requests, 'Request')}, {_tokens(used)}{cost}"
            console.print(Text(line, style="dim"))


def _errors(view: RunView) -> int:
    """Return the number of errors: those that the model has received, and those of calls that it has yet to receive."""
    received = {call.get("_id") for error in view.errors if isinstance(call := error.get("call"), dict)}
    failed = [call for call in view.calls if call.status in ("failed", "invalid") and "[" not in call.id]
    return len(view.errors) + sum(call.id not in received for call in failed)


def _last_problem(view: RunView) -> str | None:
    """Return the message of the run's last error if it concerns no call, such as an output that breaks its schema."""
    last: JsonObject = view.errors[-1] if view.errors else {}
    error = last.get("error")
    if last.get("call") is not None or not isinstance(error, dict):
        return None
    return one_visible_line(clip(str(error.get("message")), 500))


def _tokens(usage: Usage) -> str:
    cached = f" ({usage.cached_tokens} of them cached)" if usage.cached_tokens else ""
    return f"{usage.prompt_tokens} in{cached}, {usage.completion_tokens} out"


def notification_lines(notification: NotificationView) -> Iterator[Text]:
    """Yield a line for each route of a notification, with its outcome."""
    call = f" {notification.call}" if notification.call else ""
    for route in notification.routes:
        why = f": {strip_control_characters(route.why)}" if route.why else ""
        line = f"{notification.kind}{call} → {strip_control_characters(route.route)}: {route.status}{why}"
        yield Text(line, style={"delivered": "dim", "sending": "dim"}.get(route.status, "yellow"))


def print_run(console: Console, view: RunView) -> None:
    """Print the whole run, as `show` does."""
    console.print(run_table(view, console.width))
    if view.schedule:
        console.print(Text(f"started by the schedule {view.schedule!r} for {view.scheduled_at}", style="dim"))
    if view.state:
        console.print(Text.assemble(("state ", "bold"), one_visible_line(shorten(without_media(view.state), 2000))))
    for line in view.cut:
        console.print(Text(line, style="yellow"))
    if view.resets:
        often = "" if view.resets == 1 else f" {view.resets} times"
        console.print(
            Text(
                f"Temporal reset this run{often}: the run continues from an earlier point of its history",
                style="yellow",
            )
        )
    for notification in view.notifications:
        console.print(Group(*notification_lines(notification)))
    for refusal in view.refusals:
        line = f"decision rejected at {refusal['time']}: {refusal['decision']}: {refusal['problem']}"
        console.print(Text(line, style="magenta"))
    print_result(console, view)


_KEPT = 2
"""Lines that are left free: for the cursor, and for the number of hidden lines."""


class FittedView:
    """A view cut to the terminal's height: its last lines, and the number of lines above."""

    def __init__(self, view: RunView) -> None:
        self._view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(run_table(self._view, options.max_width), options.update(height=None), pad=False)
        while lines and not "".join(segment.text for segment in lines[-1]).strip():
            lines.pop()
        room = max(1, console.size.height - _KEPT)
        if len(lines) > room:
            yield Text(self._above(len(lines) - room), style="dim", no_wrap=True, overflow="ellipsis")
            lines = lines[-room:]
        yield from _joined(lines)

    def _above(self, count: int) -> str:
        done = sum(call.status == "done" for call in self._view.calls)
        return f"… {pluralize(count, 'line')} above; {pluralize(len(self._view.log), 'Request')}, {done} of {pluralize(len(self._view.calls), 'call')} done"


def _joined(lines: list[list[Segment]]) -> Iterator[Segment]:
    for number, line in enumerate(lines):
        if number:
            yield Segment.line()
        yield from line


class LiveRun:
    """Shows a run's views one after the other in one place. The place is cleared at the end, and for a question."""

    def __init__(self, console: Console) -> None:
        self._live = Live(
            console=console,
            refresh_per_second=8,
            transient=True,
            auto_refresh=console.is_terminal,
            redirect_stderr=False,
        )
        self._terminal = console.is_terminal

    def __enter__(self) -> LiveRun:
        if self._terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, view: RunView) -> None:
        if self._terminal:
            self._live.update(FittedView(view))

    def pause(self) -> None:
        """Clear the place for other output."""
        self._live.stop()

    def go_on(self) -> None:
        if self._terminal:
            self._live.start(refresh=True)


def print_exchanges(console: Console, found: list[Exchange]) -> None:
    """Print full prompts and answers, as `show --verbose` prints them."""
    for exchange in found:
        request, context = exchange.request, exchange.context
        title = f"[iter={request.number} model={request.model} reason={request.reason} msgs={len(context.messages)}]"
        console.print(Text(title, style="bold"), soft_wrap=True)
        for message in context.messages:
            console.print(Text(f"--- {message['role']}", style="dim"))
            console.print(Text(_content(message)), soft_wrap=True)  # verbatim, so no line is wrapped
        if context.parameters:
            console.print(Text("--- sent with the messages", style="dim"))
            console.print(Text(dumps(context.parameters)), soft_wrap=True)
        for problem in _not_strict(context):
            console.print(Text(f"not in strict mode: {problem}", style="dim"))
        if exchange.answer is not None and (thought := exchange.answer.thought):
            cut = exchange.answer.reasoned - len(thought)
            console.print(Text("--- reasoning", style="dim"))
            console.print(Text(thought + (f"… ({cut:,} more characters)" if cut > 0 else "")), soft_wrap=True)
        console.print(Text("--- answer", style="dim"))
        answer = "(none)" if exchange.answer is None else _answer(exchange.answer)
        console.print(Text(answer), soft_wrap=True)
        console.print()


def _content(message: JsonObject) -> str:
    calls = [
        f"{call['id']} {call['function']['name']}({call['function']['arguments']})"
        for call in message.get("tool_calls", ())
    ]
    about = [f"({message['tool_call_id']})"] if "tool_call_id" in message else []
    return "\n".join([*about, *([message["content"]] if message.get("content") else []), *calls])


def _answer(answer: RequestResult) -> str:
    """Return the answer's text verbatim; native calls as they were parsed."""
    calls = [] if answer.text.strip() else answer.calls
    return "\n".join([*([answer.text] if answer.text.strip() else []), *map(dumps, calls)]) or "(empty)"


def _not_strict(context: RequestContext) -> list[str]:
    """Return the parts of the composed schema that OpenAI's strict mode does not allow (R9.3)."""
    schema = context.parameters.get("response_format", {}).get("json_schema", {})
    return [] if not schema or schema.get("strict") else make_strict(schema["schema"])[1]


def print_parts(run_id: str, found: list[Exchange], *, as_json: bool) -> None:
    """Print the last Request's parts, and each Request's size, cached part, and common part with the previous one."""
    exchanges = _exchanges_as_json(found)
    if as_json:
        print(dumps({"runId": run_id, "requests": exchanges}))
        return
    out = get_console()
    if not exchanges:
        out.print(Text(f"{run_id} has made no Request yet"))
        return
    last = exchanges[-1]
    how = "counted by its server, split by characters" if last["counted"] else f"estimated: {TOKEN} characters each"
    out.print(
        Text(f"Request {last['number']} to {last['model']}: {pluralize(last['tokens'], 'token')}, {how}", style="bold"),
        soft_wrap=True,
    )
    rows = [(each["part"], f"{each['characters']:,}", f"{each['tokens']:,}") for each in last["parts"]]
    out.print(make_table(("part", "characters", "tokens"), rows, out.width, shrinkable=("part",)))
    for line in last.get("leftOut", ()):
        out.print(Text(f"left out: {line}", style="yellow"))
    for each in exchanges:
        out.print(Text(_line(each), style="dim"), soft_wrap=True)


def _exchanges_as_json(found: list[Exchange]) -> list[JsonObject]:
    begins = [
        0,
        *(common_prefix_length(one.context.messages, other.context.messages) for one, other in pairwise(found)),
    ]
    rows = []
    for exchange, begun in zip(found, begins, strict=True):
        context, usage = exchange.context, None if exchange.answer is None else exchange.answer.usage
        cost = costs(context.parts, 0 if usage is None else usage.prompt_tokens)
        parts = [{**each.as_json(), "tokens": tokens} for each, tokens in zip(context.parts, cost.tokens, strict=True)]
        rows.append(
            {
                "number": exchange.request.number,
                "model": exchange.request.model,
                "tokens": cost.total,
                "counted": cost.counted,
                "cachedTokens": 0 if usage is None else usage.cached_tokens,
                "characters": sum(map(characters, context.messages)),
                "likeTheOneBefore": begun,
                "parts": parts,
                **({"leftOut": context.left_out} if context.left_out else {}),
            }
        )
    return rows


def _line(request: JsonObject) -> str:
    """Return `Request 2 gpt-4o: 1,204 tokens, 1,024 of them cached; the first 4,100 of 4,816 characters as in the previous Request`."""
    about = "" if request["counted"] else " (estimated)"
    cached = f", {request['cachedTokens']:,} of them cached" if request["cachedTokens"] else ""
    same = request["likeTheOneBefore"]
    like = f"; the first {same:,} of {request['characters']:,} characters as in the previous Request" if same else ""
    return (
        f"Request {request['number']} {request['model']}: {pluralize(request['tokens'], 'token')}{about}{cached}{like}"
    )
