"""Views of a run: for clients, in pages that fit a payload, and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from perdure.approvals.policy import Guard
from perdure.approvals.requests import ApprovalRequest, InformedRoute, WaitingEntry, WaitingView, tool_question
from perdure.errors import clip, pluralize
from perdure.hooks.events import RunOwner
from perdure.models.requests import RequestView
from perdure.plan import ENDED, Call, Plan, simulate
from perdure.rules import Rule, RuleBook, RuleVerdict, judge_plan
from perdure.runs.caller_context import masked_context
from perdure.runs.context import message_fates
from perdure.runs.delegates import tools_of_delegate
from perdure.runs.events import Event
from perdure.runs.prompts import call_line
from perdure.runs.records import RECENT, plan_reads, plan_writes, whole_values
from perdure.runs.run import RunState
from perdure.runs.undo import without_undo
from perdure.runs.wire import CallView, RunInput, RunResult, RunView
from perdure.values.json import Json, JsonObject, ValuePage, dumps, loads
from perdure.values.limits import MAX_KEPT, MAX_PAYLOAD, MAX_SHOWN_MESSAGE, MAX_VIEWED, MAX_VIEWED_EDGES, bytes_text
from perdure.values.media import first_without_media
from perdure.values.provenance import MODEL, in_words, untrusted_sources
from perdure.values.references import MISSING, evaluate, get, parse_expression
from perdure.values.sizes import Sizes, allot_room, clip_text, cut_to, preview, text_size

SHOWN: Final = 20
"""Parameters of a call that are shown; there are seldom so many."""
_LONGEST: Final = 120


def source_lines(call: Call, *, model: bool = True) -> list[str]:
    """Return one line for each parameter, untrusted ones first.

    An example is `send_money.iban ← †state.mail.iban ← read_mail (written by others)`. With `model` the lines include
    parameters that the model has written out.
    """
    params, tool = call.inputs.origins.params, clip(call.spec.tool_name, 60)
    named = [
        name
        for name in sorted(params, key=lambda name: not untrusted_sources(params[name]))
        if model or params[name] != MODEL
    ]
    lines = []
    for name in named[:SHOWN]:
        read = dict.fromkeys(str(site.expression) for site in call.spec.template.sites if site.path[0] == name)
        through = f" ← {clip(', '.join(read), _LONGEST)}" if read else ""
        lines.append(f"{tool}.{clip(name, 60)}{through} ← {in_words(params[name])}")
    if len(named) > SHOWN:
        lines.append(f"and {len(named) - SHOWN} more parameters of {tool}")
    if untrusted_sources(call.inputs.origins.written):
        lines.append(
            f"{tool} itself ← {in_words(call.inputs.origins.written)}: what had been read when the call was written"
        )
    return lines


def plan_ways(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the call id and provenance of each parameter that the plan does not write out."""
    for call in plan.calls:
        for line in source_lines(call, model=False):
            yield call.id, line


def run_ways(view: RunView) -> Iterator[str]:
    """Yield the provenance lines of a run's view, such as `1.2 send_money.iban ← read_mail (written by others)`."""
    for call in view.calls:
        for name, number in call.sources.items():
            if not name:
                continue
            names = view.sets[number] if number < len(view.sets) else []
            yield f"{call.id} {call.tool}.{name} ← {in_words(names)}"


_RULES_SHOWN: Final = 20
_RULE: Final = 500
"""Characters of a rule's line."""
_WORST_FIRST: Final = ("violated", "unknown", "proven")


def plan_verdicts(run: RunState) -> list[tuple[Rule, RuleVerdict]]:
    """Return the verdict on each rule of the run, over the calls of its plan that have not begun."""
    book = run.rules
    if run.plan is None or not book.rules:
        return []
    verdicts = judge_plan(run.plan, book, lambda tool: tools_of_delegate(tool, run), run.may_answer)
    return list(zip(book.rules, verdicts, strict=True))


def rule_lines(verdicts: Sequence[tuple[Rule, RuleVerdict]], book: RuleBook, call: Call | None = None) -> list[str]:
    """Return one line for each rule, violated ones first, as every page, list and drawing of a run shows them.

    `call`: only the rules that concern it. Its parameters are resolved, so a rule that they break is violated.
    """
    if not verdicts:
        return []
    if call is not None:
        own = {rule.key for rule in book.concerning(call)}
        broken = {each.rule.key: each.words for each in book.breaches(call)} if call.inputs.items is None else {}
        verdicts = [
            (rule, RuleVerdict(rule=rule.words, status="violated", call=call.id, words=broken[rule.key]))
            if rule.key in broken
            else (rule, verdict)
            for rule, verdict in verdicts
            if rule.key in own or verdict.call == call.id
        ]
    found = sorted((verdict for _, verdict in verdicts), key=lambda each: _WORST_FIRST.index(each.status))
    lines = [clip(each.line, _RULE) for each in found[:_RULES_SHOWN]]
    return lines + ([f"and {len(found) - _RULES_SHOWN} more rules"] if len(found) > _RULES_SHOWN else [])


_SHOWN_IN_LISTS: Final = 300
"""Characters of parameters, and of a reason, in a list of waiting requests."""


def run_view(run: RunState, run_id: str) -> RunView:
    """Return the present view of the run, with its newest `MAX_VIEWED` calls."""
    plan, past, verdicts = run.plan, run.records.past, plan_verdicts(run)
    newest = [] if plan is None else [*islice(plan.every_call_reversed(), MAX_VIEWED)][::-1]
    edges = [] if plan is None else plan.newest_edges(MAX_VIEWED_EDGES)
    earlier = past.calls[max(0, len(past.calls) + len(newest) - MAX_VIEWED) :]
    return RunView(
        run_id=run_id,
        agent=run.agent.name,
        version=run.agent.version,
        forked="" if run.fork is None or run.fork.record.end is not None else run.fork.title,
        owner=masked_owner(run.identity.owner),
        status="running" if run.output.stop_reason is None else "completed",
        output=run.output.value,
        stop_reason=run.output.stop_reason,
        requests=len(past.log),
        usage=run.progress.usage,
        errors=run.progress.errors,
        calls=[*earlier, *map(run.records.view, newest)],
        state=run.state.snapshot(),
        messages=message_fates(run.progress),
        worked=run.progress.worked,
        context_tokens=past.log[-1].usage.tokens if past.log else 0,
        sent=run.progress.sent,
        reasoning=run.output.reasoning,
        tight=run.progress.tight,
        sources=sorted(run.output.sources),
        left=run.provenance.left(run.state, run.progress, run.records.table.sets, run.output.sources)
        if run.identity.in_session
        else {},
        waiting=waiting_views(run, verdicts=verdicts),
        rules=rule_lines(verdicts, run.rules),
        wait=run.wait,
        notifications=run.notifications,
        refusals=run.approval_queue.refusals,
        log=past.log,
        reads=past.reads | plan_reads(newest),
        writes=past.writes | plan_writes(newest),
        sets=run.records.table.as_json(),
        met=run.provenance.untrusted_read(run.progress, run.records.table.sets),
        edges=[*past.edges, *edges],
        cut=[f"edges: only the newest edges of loops are shown; all: perdure show {run_id} --value edges"]
        if len(edges) >= MAX_VIEWED_EDGES
        else [],
    )


def waiting_views(
    run: RunState, only: str | None = None, skip: int = 0, *, verdicts: Sequence[tuple[Rule, RuleVerdict]] | None = None
) -> list[WaitingView]:
    """Return the requests that wait for a person, oldest first, without the first `skip`.

    With `only`, return that call's request, or that Request's plan, alone. `verdicts`: the result of
    `plan_verdicts`, if known.
    """
    requests = [request for request in run.approval_queue.waiting.values() if only is None or request.id == only][skip:]
    if requests and verdicts is None:
        verdicts = plan_verdicts(run)
    return [request_view(request, run, verdicts or ()) for request in requests]


def masked_owner(owner: RunOwner) -> RunOwner:
    """Return the owner of a run without secrets, for people."""
    return owner.model_copy(update={"context": masked_context(owner.context)}) if owner.context else owner


def request_view(
    request: ApprovalRequest, run: RunState, verdicts: Sequence[tuple[Rule, RuleVerdict]] = ()
) -> WaitingView:
    """Return a person's view of a request and its owner."""
    view = waiting_view(request, run.agent.name, run.approval_queue.guard, run.dry_plan)
    view.rules = [] if request.question else rule_lines(verdicts, run.rules, request.call)
    if run.records.effects.notes and not request.question:
        calls = request.calls if request.call is None else [request.call]
        view.no_undo = without_undo(each for call in calls for each in call.written())
    owner = run.identity.owner
    view.sender, view.tenant, view.session = owner.sender, owner.tenant, owner.session
    newest = run.progress.inbox[-1].text if run.progress.inbox else run.identity.last_message
    view.said = clip(newest, MAX_SHOWN_MESSAGE)
    view.informed = [
        InformedRoute(route=each.route, at=notification.at, status=each.status)
        for notification in run.notifications
        if notification.call == request.id and notification.at >= request.approval.requested_at
        for each in notification.routes
    ]
    return view


def waiting_view(request: ApprovalRequest, agent: str, guard: Guard, dry_run: Callable[[int], Plan]) -> WaitingView:
    """Return a person's view of a request. A plan also has its simulation, on an empty plan made by `dry_run`."""
    view = WaitingView(
        call=request.id,
        agent=agent,
        tool="plan",
        reason=request.full_reason,
        requested_at=request.approval.requested_at,
        digest=request.digest,
        question=request.question,
        runs=request.runs,
        ask="" if request.question else tool_question(request.call),
        approvers=request.approval.approvers,
        missing=request.missing,
        roles=request.roles,
    )
    call = request.call
    if call is not None:
        view.tool, view.description = call.spec.tool_name, call.spec.known_tool.description
        view.params, view.parameters, view.items = (
            call.inputs.params,
            call.spec.known_tool.parameters,
            call.inputs.items,
        )
        view.ways = [] if request.question else source_lines(call)
        view.client = request.is_client_call
        if request.asked is not None:
            view.server, view.form, view.url = request.asked.server, request.asked.form, request.asked.url
        return view
    view.calls = request.shown
    dry = simulate(dry_run(request.plan.request), [each.spec.raw for each in request.calls], asks=guard.asks)
    view.simulation = {
        "makespan": dry.makespan,
        "levels": [[step.call.id for step in steps] for steps in dry.levels().values()],
        "asks": [step.call.id for step in dry.steps if step.asks],
    }
    return view


def waiting_entry(request: ApprovalRequest) -> WaitingEntry:
    """Return one waiting request as an entry of a list."""
    call = request.call
    return WaitingEntry(
        call=request.id,
        tool="plan" if call is None else call.spec.tool_name,
        params=None
        if call is None or len(preview(call.inputs.params, _SHOWN_IN_LISTS)) == _SHOWN_IN_LISTS
        else call.inputs.params,
        reason=request.full_reason[:_SHOWN_IN_LISTS],
        requested_at=request.approval.requested_at,
        digest=request.digest,
        question=request.question,
        ask="" if request.question else tool_question(call),
        roles=request.roles,
    )


_PAGE: Final = 300_000
"""Characters of a page: at most six bytes each as JSON."""
_PARTS: Final = frozenset(["output", "errors", "refusals", "edges", "reads", "writes", "calls", "log", "waiting"])


class Pages:
    """The pages of values. The JSON of a value is made once, as far as it is read, and kept until the last page."""

    def __init__(self) -> None:
        self._read: tuple[str, str, Iterator[str]] | None = None

    def page(self, run: RunState | None, what: str, offset: int, run_input: RunInput | None = None) -> ValuePage:
        """Return a page of the JSON of a value that `whole` returns, from a character on.

        `run`: `None` until it has begun. `run_input`: the run's input, once the run knows it.
        """
        text = ""
        rest: Iterator[str] = iter(())
        if offset > 0 and self._read is not None and self._read[0] == what:
            _, text, rest = self._read
        elif run is None:
            text = dumps(before_start(run_input, what))
        elif is_earlier(run, what):
            return ValuePage(text="", earlier=True)
        else:
            rest = _pieces(run, what)
        end = max(0, offset) + _PAGE
        pieces, size = [text], len(text)
        while size <= end and (piece := next(rest, None)) is not None:
            pieces.append(piece)
            size += len(piece)
        text = "".join(pieces)
        self._read = (what, text, rest) if end < len(text) else None
        return ValuePage(text=text[max(0, offset) : end], next=end if end < len(text) else None)


def _pieces(run: RunState, what: str) -> Iterator[str]:
    """Yield the JSON of a value that `whole` returns. Calls come one by one, because a run may have thousands (R16.6)."""
    if what != "calls":
        yield dumps(find_whole_value(run, what))
        return
    calls = [*run.records.past.calls, *(run.plan.every_call() if run.plan is not None else ())]
    for number, call in enumerate(calls):
        view = run.records.view(call) if isinstance(call, Call) else call
        yield f"{',' if number else '['}{dumps(view.as_json())}"
    yield "]" if calls else "[]"


def is_earlier(run: RunState, what: str) -> bool:
    """Whether this is a call of an earlier execution of the run, which has the whole call."""
    number = what.partition(".")[0]
    known = run.records.restored_at and number.isdecimal() and int(number) <= run.records.restored_at
    return bool(known) and any(call.id == what for call in run.records.past.calls)


def before_start(run_input: RunInput | None, what: str) -> Json:
    """Return a value of an accepted run that has not begun. Raise `LookupError` as `whole` does."""
    if what == "metadata":
        return None if run_input is None else run_input.agent.get("metadata")
    if what in ("state", "†state"):
        return {}
    if what not in _PARTS:
        raise LookupError(f"{what!r} is not known: the run has not started")
    found: Json = RunView(run_id="").as_json()[what]
    return found


def find_whole_value(run: RunState, what: str) -> Json:
    """Return a whole value that a view may cut: a part of the result by name, a reference's value, or a call by id.

    Raise `ReferenceSyntaxError` or `LookupError` for anything else.
    """
    if what.removeprefix("†").partition(".")[0] == "state" or what.startswith("†"):
        expression = parse_expression(what if what.startswith("†") else f"†{what}")
        values = {**run.context.values(), "state": run.state.snapshot()}
        found = evaluate(expression, lambda reference: get(values.get(reference.kind, MISSING), reference.path))
        if found is MISSING:
            raise LookupError(f"{what} does not exist")
        return found
    for call in run.plan.every_call() if run.plan is not None else ():
        if call.id == what:
            found = whole_values(call.inputs.params, call.state.result, call.state.kept)
            return run.records.view(call).as_json() | found
    for view in run.records.past.calls:
        if view.id == what:
            if (kept := run.records.values.get(what)) is None:
                why = f"only the newest ended calls are stored in full, {bytes_text(MAX_KEPT)} of them"
                raise LookupError(f"{what} is only in the run's history: {why}")
            return view.as_json() | kept
    plan, past = run.plan, run.records.past
    made = list(plan.every_call()) if plan is not None else []
    parts: dict[str, Callable[[], Any]] = {  # lists of texts are JSON, too
        "output": lambda: run.output.value,
        "errors": lambda: run.progress.errors,
        "refusals": lambda: run.approval_queue.refusals,
        "edges": lambda: [*past.edges, *(plan.named_edges() if plan is not None else ())],
        "reads": lambda: past.reads | plan_reads(made),
        "writes": lambda: past.writes | plan_writes(made),
        "metadata": lambda: run.agent.metadata,
        "log": lambda: [each.as_json() for each in past.log],
        "waiting": lambda: [each.as_json() for each in waiting_views(run)],
        "calls": lambda: loads("".join(_pieces(run, "calls"))),
    }
    if what not in parts:
        raise LookupError(
            f"{what!r} is not a part of a run: use output, state, errors, calls, waiting, log, metadata, a call's id or a reference"
        )
    part: Json = parts[what]()
    return part


_SHOWN: Final = 200
"""Characters of a result."""


class LiveView:
    """The live view of a run. Events older than the view are ignored."""

    def __init__(self, view: RunView) -> None:
        self.view = view
        self.lacks = False
        """Whether there is news that events do not contain in full."""
        self.asks = False
        """Whether that news is a request for a person's decision, or the run's end."""
        self._texts: dict[int, str] = {}
        self._reasons: dict[str, str] = {}

    def renew(self, view: RunView) -> None:
        """Replace the view by the present run, which has no text that is being written and no updates of tools."""
        self.view, self.lacks, self.asks = view, False, False
        for request in view.log:
            if request.status == "running":
                request.text = self._texts.get(request.number, request.text)
        for call in view.calls:
            if call.status == "running":
                call.reason = self._reasons.get(call.id, call.reason)

    def apply(self, event: Event) -> None:
        """Apply an event."""
        if event.topic == "request":
            self._request(event.phase, event.data)
        elif event.topic == "assistant":
            self._text(event.phase, event.data)
        elif event.topic == "tool":
            self._call(event.phase, event.data, event.at)
        elif event.phase == "reset":
            self.view = self.view.model_copy(update={"calls": [], "log": [], "waiting": []})
            self._texts.clear()
            self._reasons.clear()
            self.lacks = self.asks = True
        elif event.topic in ("approval", "lifecycle"):
            waits = {request.call for request in self.view.waiting}
            self.asks = self.asks or event.phase == "start" or event.data.get("call") in waits
            self.lacks = self.lacks or self.asks
        elif event.topic == "message":
            self.lacks = True

    def _request(self, phase: str, data: JsonObject) -> None:
        number = int(data.get("number", 0))
        found = next((each for each in self.view.log if each.number == number), None)
        if found is None:
            found = RequestView(number=number, model=str(data.get("model", "")), reason=str(data.get("reason", "")))
            self.view.log.append(found)
            self.lacks = True
        if phase == "update" and found.status == "running":
            found.trouble = str(data.get("reason", ""))
        elif phase == "end":
            self._texts.pop(number, None)
            self.lacks = self.lacks or found.status == "running"

    def _text(self, phase: str, data: JsonObject) -> None:
        number = int(data.get("request", 0))
        found = next((each for each in self.view.log if each.number == number), None)
        if found is None or found.status != "running" or phase == "end":
            return
        text = self._texts.get(number, "") if phase == "delta" else ""
        self._texts[number] = found.text = text + str(data.get("text", ""))

    def _call(self, phase: str, data: JsonObject, at: str) -> None:
        id = str(data.get("call"))
        found = next((each for each in self.view.calls if each.id == id), None)
        if found is None:
            params = data.get("params")
            params = params if isinstance(params, dict) else {}
            found = CallView(id=id, tool=str(data.get("tool", "")), params=params, status="pending")
            self.view.calls.append(found)
            self.lacks = True
        if found.status in ENDED:
            return
        if phase == "start":
            found.status, found.started_at = "running", found.started_at or at
        elif phase == "update":
            words = data.get("reason") or data.get("progress")
            found.reason = self._reasons[id] = str(words)
        else:
            self._reasons.pop(id, None)
            error, reason = data.get("error"), data.get("reason")
            found.status, found.ended_at = str(data.get("status", "done")), at
            found.error = error if isinstance(error, dict) else None
            found.reason = None if reason is None else str(reason)
            found.shown = preview(data["result"], _SHOWN) if "result" in data else None


_MARKUP: Final = re.compile(r"[\\`*~\[<>|&]")
_STARTS: Final = re.compile(r"[\\`*~\[<]|(?<!\w)_|_(?!\w)")
"""Signs that begin emphasis, code, a link or HTML within a line."""


def progress_markdown(run: RunState, run_id: str = "") -> str:
    """Return the run's progress as Markdown: its Requests, and its last calls with their reads and writes.

    `run_id` makes the link to the run's page.
    """
    lines = [
        f"**{escape_markdown(run.agent.name)}**: {pluralize(len(run.records.past.log), 'Request')}, {run.records.done(run.plan)} of {pluralize(run.records.count(run.plan), 'call')} done"
    ]
    if run.prepared.pages:
        lines[0] += f" · [its page]({run.prepared.pages.rstrip('/')}/runs/{_in_address(run_id)})"
    if run.records.past.log:
        last = run.records.past.log[-1]
        lines += [
            "",
            f"Request {last.number}: {escape_markdown(last.model)} ({escape_markdown(last.reason)}), {last.status}",
        ]
    if run.wait is not None:
        lines += ["", f"**{escape_markdown(run.wait.text())} UTC**"]
    if rules := rule_lines(plan_verdicts(run), run.rules):
        lines += ["", "Rules over the plan:", "", *(f"- {escape_markdown(line)}" for line in rules)]
    if waiting := run.approval_queue.waiting:
        lines += [
            "",
            '**Waiting for a person.** Decide by a signal: `approve` with input `{"call": "…"}`, `reject`, …',
            "",
        ]
        lines += ["| call | what | parameters | why | since |", "|---|---|---|---|---|"]
        lines += [_waiting(request) for request in islice(waiting.values(), RECENT)]
        if len(waiting) > RECENT:
            lines += ["", f"{len(waiting) - RECENT} more wait."]
    if calls := run.records.newest(run.plan):
        lines += ["", "| call | status | tool | parameters | writes |", "|---|---|---|---|---|", *map(_row, calls)]
        if run.records.count(run.plan) > len(calls):
            lines += ["", f"{run.records.count(run.plan) - len(calls)} earlier calls are not shown."]
        if notes := [note for call in calls if (note := _note(call))]:
            lines += ["", *notes]
    if run.output.value is not None:
        lines += ["", f"Output: {_code(preview(first_without_media(run.output.value, 300)[0], 300))}"]
    return "\n".join(lines)


def _in_address(id: str) -> str:
    """Return an id with percent-encoding, for a path of an address."""
    return re.sub(r"[^A-Za-z0-9/._~-]", lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), id)


def _row(call: Call) -> str:
    # A narrow panel: the status first, and no column for reads, which the parameters show.
    return (
        "| "
        + " | ".join(
            map(
                escape_markdown,
                (call.id, call.standing, call.spec.tool_name, call_line(call.spec.raw, 60), call.spec.target),
            )
        )
        + " |"
    )


def _waiting(request: ApprovalRequest) -> str:
    what, shown = (
        ("the whole plan", "")
        if request.call is None
        else (request.call.spec.tool_name, call_line(request.call.inputs.params))
    )
    cells = (request.id, what, shown, request.full_reason, request.approval.requested_at[:19])
    return "| " + " | ".join(map(escape_markdown, cells)) + " |"


def _note(call: Call) -> str:
    """Return, as an item of a list, why a call did not succeed."""
    note = call.state.reason or (call.state.error.message if call.state.error else "")
    return f"- {call.id} {escape_markdown(note[:200])}" if note else ""


def escape_markdown(text: str) -> str:
    """Return the text so that Markdown shows it unchanged, without columns, links, pictures or markup."""
    return _MARKUP.sub(r"\\\g<0>", text).replace("\n", " ").replace("\r", " ")


def summary(text: str) -> str:
    """Return a line of at most 200 characters that a list in the Web UI shows unchanged: a summary is Markdown there."""
    shown = _STARTS.sub(r"\\\g<0>", " ".join(text[:200].split()))[:200]
    return shown[:-1] if (len(shown) - len(shown.rstrip("\\"))) % 2 else shown


def _code(text: str) -> str:
    ticks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{ticks}{text}{ticks}" if len(ticks) == 1 else f"{ticks} {text} {ticks}"


# `cut` names each cut value and the command to read it whole: the run keeps it, and returns it page by page.

R = TypeVar("R", bound=RunResult)
M = TypeVar("M", bound=BaseModel)
ItemT = TypeVar("ItemT")

_PARTS_FITTING: Final = ("output", "errors", "waiting", "calls", "state", "log", "refusals", "edges", "reads", "writes")
"""Parts that can grow, the most important first."""
_SLIM: Final = 500
"""Bytes of a call's parameters where the calls do not fit with more of them."""
_BESIDE: Final = 20_000
"""Bytes of a delegate's result, without its output, in the parent's history."""


def fit_result(result: R, limit: int = MAX_PAYLOAD, sizes: Sizes | None = None, *, calls: int = 0) -> R:
    """Return the result unchanged if its JSON has at most `limit` bytes; else a copy with cut parts that has.

    `calls`: the number of calls of the run, if the result has only the newest. The function never fails. Its cost grows
    with calls, not with bytes: values that `sizes` knows are not measured again.
    """
    sizes = Sizes(sizes)
    names = [name for name in _PARTS_FITTING if name in type(result).model_fields]
    needed = [_size(getattr(result, name), sizes) for name in names]
    frame = result.model_copy(update=dict.fromkeys(names))
    room = limit - len(frame.model_dump_json(by_alias=True, warnings=False).encode())
    left_out = max(0, calls - len(result.calls))
    if sum(needed) <= room - 200 * (left_out > 0):
        calls_line = f"calls: the last {len(result.calls):,} of {calls:,} are shown; all: perdure show {result.run_id} --value calls"
        return result.model_copy(update={"cut": [*result.cut, calls_line]}) if left_out else result
    # First the parts that repeat other parts.
    result = result.model_copy(update={"calls": [_slim(call, sizes) for call in result.calls]})
    needed[names.index("calls")] = _size(result.calls, sizes)
    shares = _allot(needed, room - 200 * len(names))
    update: dict[str, object] = {}
    cut: list[str] = []
    for name, size, share in zip(names, needed, shares, strict=True):
        if size > share:
            whole = getattr(result, name)
            update[name] = _cut(name, whole, share, sizes)
            if name == "output":
                update["output_size"] = size
            cut.append(_cut_line(result.run_id, name, whole, update[name], size, left_out if name == "calls" else 0))
    return result.model_copy(update=update | {"cut": cut})


def result_for_parent(result: RunResult, sizes: Sizes) -> RunResult:
    """Return a delegate's result without large parts that its parent does not read: the delegate's history has them."""
    sizes = Sizes(sizes)
    beside = sum(_size(getattr(result, name), sizes) for name in ("errors", "calls", "state"))
    if beside <= _BESIDE:
        return result
    cut = [f"errors, calls and state are left out of the parent's result; all: perdure show {result.run_id}"]
    return result.model_copy(update={"errors": [], "calls": [], "state": {}, "cut": cut})


def fit_waiting(
    waiting: Sequence[WaitingView], limit: int = MAX_PAYLOAD, sizes: Sizes | None = None
) -> list[WaitingView]:
    """Return the waiting requests, with as much of their parameters as there is room for (R18.3).

    Each request is named at least, if all fit. Otherwise the oldest remain, and the last has the number of `more`.
    """
    sizes = Sizes(sizes)
    needed = [approval_size(view, sizes) for view in waiting]
    if sum(needed) <= limit or not waiting:
        return list(waiting)
    share = max(limit // len(waiting), _NAMED)
    shown = [
        view if size <= share else _cut_request(view, share, sizes)
        for view, size in zip(waiting[: limit // share], needed, strict=False)
    ]
    if shown and (more := len(waiting) - len(shown)):
        shown[-1] = shown[-1].model_copy(update={"more": more})
    return shown


def _allot(needed: Sequence[int], room: int) -> list[int]:
    """Return the room of each part. An output that leaves a twentieth for the rest stays whole.

    A delegate's output is the value of its call (R8.2).
    """
    output, *rest = needed
    if output <= room - room // 20:
        return [output, *allot_room(rest, room - output)]
    return allot_room(needed, room)


def _size(part: Any, sizes: Sizes) -> int:  # a field of a view
    if isinstance(part, list) and part and isinstance(part[0], WaitingView):
        return sum(approval_size(view, sizes) for view in part)
    if isinstance(part, list) and part and isinstance(part[0], BaseModel):
        return 2 + sum(map(_size_of_model, part))
    if isinstance(part, list) and part and isinstance(part[0], tuple):
        return len(dumps(part).encode())
    return sizes.of(part)


def _size_of_model(model: BaseModel) -> int:
    return len(model.model_dump_json(by_alias=True).encode()) + 1


_LARGE_OF_OFFER: Final = (
    "params",
    "items",
    "parameters",
    "calls",
    "simulation",
    "runs",
    "reason",
    "description",
    "rules",
)
_NAMED: Final = 1000
"""Bytes in which a request can be named, without its content."""
_SHOWN_FITTING: Final = 4000
"""Bytes from which on a request shows a part of its content."""
_NAME: Final = 150
"""Bytes of a name or reason if there is no room for more."""


def approval_size(view: WaitingView, sizes: Sizes) -> int:
    """Return the most bytes that a request may have."""
    # Measured part by part: the parameters are the run's own values, however large.
    names = text_size(view.tool) + text_size(view.agent) + text_size(view.call)
    return 500 + names + sum(sizes.of(getattr(view, name)) for name in _LARGE_OF_OFFER)


def _cut_request(view: WaitingView, share: int, sizes: Sizes) -> WaitingView:
    """Return a request that is cut to its share: first without its schema, which the tool's definition repeats."""
    update: dict[str, object] = {"cut": True, "parameters": {}, "simulation": None}
    update |= {name: clip_text(getattr(view, name), _NAME) for name in ("tool", "agent")}
    if share < _SHOWN_FITTING:
        reason = clip_text(view.reason, _NAME)
        update |= {"reason": reason, "description": "", "params": {}, "items": None, "calls": None}
        update |= {"runs": {}, "rules": []}
        return view.model_copy(update=update)
    names = [name for name in _LARGE_OF_OFFER if name not in update]
    needed = [sizes.of(getattr(view, name)) for name in names]
    for name, size, room in zip(names, needed, allot_room(needed, share - _NAMED), strict=True):
        if size > room:
            update[name] = cut_to(getattr(view, name), room, sizes)
    return view.model_copy(update=update)


def _cut(name: str, whole: Any, share: int, sizes: Sizes) -> object:  # the field of a view with this name
    if name == "waiting":
        return fit_waiting(whole, share, sizes)
    if name == "calls":
        return _newest(whole, share, _size_of_model)
    if name == "log":
        return _newest(
            [view.model_copy(update={"text": "", "reason": view.reason[:100]}) for view in whole], share, _size_of_model
        )
    if name == "edges":
        return _newest(whole, share, lambda edge: len(dumps(edge).encode()) + 1)
    if name in ("reads", "writes"):
        return dict(_newest(list(whole.items()), share, lambda item: len(dumps(item).encode()) + 1))
    if name in ("errors", "refusals"):
        each = max(share // 50, 1000)
        return _newest([cut_to(item, each, sizes) for item in whole], share, lambda item: sizes.of(item) + 1)
    return cut_to(whole, share, sizes)


def _slim(call: CallView, sizes: Sizes) -> CallView:
    return call.model_copy(
        update={
            "params": cut_to(call.params, _SLIM, sizes),
            "error": call.error and cut_to(call.error, _SLIM, sizes),
            "reason": call.reason and call.reason[:_SLIM],
            "shown": None,
            "result": call.result and call.result[:_SLIM],
        }
    )


def _newest(items: Sequence[ItemT], room: int, size: Callable[[ItemT], int]) -> list[ItemT]:
    """Return the last items that fit."""
    room -= 2
    kept: list[ItemT] = []
    for item in reversed(items):
        room -= size(item)
        if room < 0:
            break
        kept.append(item)
    return kept[::-1]


def _cut_line(run_id: str, name: str, whole: object, shown: object, size: int, left_out: int) -> str:
    """Return a line with the cut size of a part, and the command to read all of it; `left_out` items were missing
    before.
    """
    end, what = "first" if name == "waiting" else "last", "in part"
    # An output keeps its first items, and the last item has the number of further ones.
    if name != "output" and isinstance(whole, list) and isinstance(shown, list) and len(shown) < len(whole):
        what = f"the {end} {len(shown):,} of {len(whole) + left_out:,}"
    have = "have" if name[-1] == "s" else "has"
    return f"{name} {have} {bytes_text(size)}, shown {what}; all: perdure show {run_id} --value {name}"
