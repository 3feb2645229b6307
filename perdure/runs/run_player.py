"""A recorded run, played again from its log: without effects, and perhaps under another policy, agent or model (R22.2).

The player drives `RunState` and `RequestLoop`, as the workflow does. It repeats the recorded reports of the driver, as
far as they apply. Results of tools come from the record. A call that is not in the record is unknown, and so are its
readers and all later Requests. A Request that differs from the recorded one is a `ModelQuestion`: the caller sends it to
a model, or leaves it unknown. The model's answer arrives in place of the recorded one.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from perdure.approvals.queue import ApprovalQueue
from perdure.approvals.requests import ApprovalRequest, ApprovalVerdict, JudgedDecision
from perdure.errors import DecisionError, PerdureError
from perdure.hooks.events import HookAnswer
from perdure.models.requests import RequestContext, RequestResult
from perdure.plan import Call, Failed, Outcome, Plan, RefusedByRule, Rejected, Returned, recorded_iterations
from perdure.rules import RULE_BROKEN
from perdure.runs.agent import POLICIES, Context, ModelChoice, Situation, parse_agent
from perdure.runs.context import accept, withdraw
from perdure.runs.delegates import tools_of_delegate
from perdure.runs.fork import FORK_FORM, Fork, ForkRecord
from perdure.runs.limits import Limit, StopReason
from perdure.runs.request_loop import PLAN, CallEnded, LimitReached, PlanDecided, RequestLoop, RequestStage, ShowPlan
from perdure.runs.run import RunIdentity, RunState
from perdure.runs.run_log import LogStep, RunLog, RunStart
from perdure.runs.snapshot import SNAPSHOT_FORM, RunSnapshot, restore
from perdure.runs.standing_decisions import is_standing, may_stand
from perdure.runs.version_switches import REMEMBER_PROVENANCE
from perdure.runs.views import run_view
from perdure.runs.wire import CallView, PreparedWorker, RunView
from perdure.values.json import Json, JsonObject, dumps, shorten

UNKNOWN: Final = "unknown"
"""The status of a call that was never made, and of calls that read it."""
_NEVER_MADE: Final = "the record has no result of this call"
_ENDINGS: Final = ("approval_timeout", "no_answer")
_LASTING_LIMITS: Final[tuple[StopReason, ...]] = ("deadline", "history", "client_gone")
"""Recorded limits that hold for other answers too. The others are checked again."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run as its history reproduces it."""

    run_id: str
    logs: Sequence[RunLog]
    """One log for each execution: a run that continues as new has several."""
    view: RunView | None
    """The run at its end; `None`: it has not ended."""


@dataclass(frozen=True, slots=True)
class RunSetup:
    """The agent file and the worker's record with which a run is played."""

    document: JsonObject
    """The agent file."""
    prepared: PreparedWorker


@dataclass(frozen=True, slots=True)
class ModelQuestion:
    """A Request that the record cannot answer."""

    number: int
    model: str
    context: RequestContext


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A call, or a plan, with an approval request."""

    id: str
    tool: str
    """Empty for the plan of a Request."""
    reason: str
    assumed: bool
    """Whether the record has no decision, so that the approval is assumed."""
    rules: frozenset[str] = frozenset()
    """The keys of the rules that require it; empty for the policy."""
    digest: str = ""
    """The digest of a plan; empty for a call."""


@dataclass(frozen=True, slots=True)
class RefusedCall:
    """A call that a rule of the policy has refused."""

    id: str
    tool: str
    reason: str
    rule: str = ""
    """The key of the rule that forbids it; empty for the policy."""


@dataclass
class PlayedRun:
    """The result of a play of a run."""

    graph: JsonObject = field(default_factory=lambda: {"calls": [], "edges": []})
    """`plan_graph` of its calls."""
    view: RunView | None = None
    """The run at its end; calls without a result are `unknown` in it."""
    asked: dict[str, AskedCall] = field(default_factory=dict)
    refused: dict[str, RefusedCall] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    """Ids of calls without a result."""
    unknown_from: int | None = None
    """The first Request that is unknown; `None`: the whole run is known."""
    output: Json = None
    requests: int = 0
    tokens: int = 0
    cost: float | None = None
    without_price: list[str] = field(default_factory=list)
    """The models that have answered, and have no known price."""
    contexts: dict[tuple[int, int], RequestContext] = field(default_factory=dict)
    """The context of each Request, by its number and the number of earlier sends."""
    initial_plan: Json = None
    """The plan with which the run begins, if it has one."""
    started: dict[str, str] = field(default_factory=dict)
    """The keys of the started calls, by id. Two calls with the same key have the same tool, parameters and values read."""
    rules: frozenset[str] = frozenset()
    """Keys of its rules."""
    tools_below: frozenset[str] | None = frozenset()
    """Names of the tools of its delegates; `None`: they are not known."""
    written: dict[str, JsonObject] = field(default_factory=dict)
    """The calls as they were written, by id."""
    waited: dict[str, float] = field(default_factory=dict)
    """By call or plan, the seconds of its wait for a decision."""
    without_person: set[str] = field(default_factory=set)
    """Ids of calls and plans that a program or a standing approval has decided."""


Player: TypeAlias = Generator[ModelQuestion, RequestResult | None, PlayedRun]
"""Yields the Requests that the record cannot answer, and takes their answers; `None`: the answer is unknown."""


class _UnknownError(Exception):
    """The rest of the run is unknown."""


def first_setup(recorded: RecordedRun) -> RunSetup:
    """Return the agent file and the worker's record with which the run began."""
    start = _start_of(recorded)
    return RunSetup(start.input.agent, start.prepared)


def _start_of(recorded: RecordedRun) -> RunStart:
    start = recorded.logs[0].start if recorded.logs else None
    if start is None:
        raise PerdureError(f"{recorded.run_id} has not begun")
    return start


def play_record(recorded: RecordedRun) -> PlayedRun:
    """Play a run unchanged. Raises `PerdureError` for a run that has not begun."""
    try:
        next(_RunPlayer(recorded, first_setup(recorded), None).play())
    except StopIteration as ended:
        played: PlayedRun = ended.value
        return played
    raise AssertionError("a play without a change asks no model")


def play_changed(recorded: RecordedRun, setup: RunSetup, before: PlayedRun, *, asks_models: bool) -> Player:
    """Play a run with another setup; `before`: the play of the run without the change.

    `asks_models`: whether a model answers the Requests that differ. Otherwise they are unknown.
    """
    return (yield from _RunPlayer(recorded, setup, before, asks_models=asks_models).play())


class _RunPlayer:
    """One play of a run."""

    def __init__(
        self, recorded: RecordedRun, setup: RunSetup, before: PlayedRun | None, *, asks_models: bool = False
    ) -> None:
        self._steps = [step for log in recorded.logs for step in log.steps]
        self._ends = {step.call: step for step in self._steps if step.kind == "ended"}
        self._by_key: dict[str, list[str]] = {}
        for id, step in self._ends.items():
            self._by_key.setdefault(step.data[1], []).append(id)
        self._run_id, self._before, self.played = recorded.run_id, before, PlayedRun()
        self._run = _new_run(_start_of(recorded), setup)
        self.played.initial_plan = [*self._run.context.plan] if self._run.context.starts_with_plan else None
        self._asks_models, self._recorded_models = asks_models, first_setup(recorded).prepared.models
        self._new_answer: RequestResult | None = None
        """The answer to the running Request, if the record has none."""
        self._has_diverged = False
        """Whether an answer, or the initial plan, is not the recorded one. From then on limits are checked again."""
        self._is_open = False
        """Whether a Request runs."""
        self._is_delivered = False
        """Whether the whole answer to the running Request has arrived."""
        self._is_last = False
        """Whether no Request follows the running one."""
        self._is_over = False
        """Whether the run has ended."""
        self._situation: Situation | None = None
        self.played.rules = frozenset(rule.key for rule in self._run.rules.rules)
        for tool in self._run.tools.values():
            if tool.delegate is not None and (below := self.played.tools_below) is not None:
                names = tools_of_delegate(tool, self._run)
                self.played.tools_below = None if names is None else below | names
        self._loop: RequestLoop | None = None
        self._late: dict[str, LogStep] = {}
        """Recorded ends of calls that have not started yet."""
        self._reported: set[str] = set()
        """Ids of calls whose ends this play has reported."""
        self._reused_ends: set[str] = set()
        """Ids of recorded calls whose ends are those of calls in this play."""
        self._pending_usage: dict[str, list[LogStep]] = {}
        """Reports on the child runs of recorded calls that have not started yet, by id."""
        self._verdicts: dict[str, ApprovalVerdict] = {}
        self._began: dict[str, float] = {}
        self._sent = 0
        """Number of times that the running Request was sent again."""
        self._task, self._time, self._at = 0, "", 0.0

    # The recorded reports.

    def play(self) -> Player:
        """Repeat the reports of the record in their order, as far as they apply. Then play on, if answers differ."""
        before = self._before
        try:
            if before is not None and before.initial_plan != self.played.initial_plan:
                self._start_with_new_plan()
            for step in self._steps:
                if self._is_over:
                    break
                self._time, self._at = step.time, step.at
                if step.kind == "request":
                    yield from self._begin(step)
                else:
                    self._take(step)
            if self._has_diverged:
                yield from self._play_on()
        except _UnknownError:
            pass
        return self._result()

    def _take(self, step: LogStep) -> None:
        """Repeat a report of the driver, as far as it applies in this play."""
        run, data = self._run, step.data
        match step.kind:
            case "situation":
                self._update_limit(step.limit, coming=run.progress.number + 1)
                self._situation = run.situation()
            case "again":
                if self._new_answer is None:
                    self._sent += 1
                    run.ask_again(data[0], tight=data[1])
                    self._note_request()
            case "plan":
                if data[0] or self._before is None or self._before.initial_plan == self.played.initial_plan:
                    self._open(data[0])
            case "close":
                # A play that has diverged may continue where the record has closed a plan at its limit.
                if run.plan is not None and (self._is_open or not self._has_diverged or run.limits.reached is not None):
                    self._update_limit(step.limit)
                    self._close(data[0], cut=data[1])
            case "draft":
                if not self._has_diverged or run.limits.reached is not None:
                    self._is_over = run.end_with_draft() and self._has_diverged
            case "decision" | "timeout" | "policy" | "released" | "plan_sources" | "breaches":
                self._take_decision(step)
            case "message" | "withdrawn" | "used" | "reported" | "taken_back":
                self._take_from_outside(step)
            case _:
                if self._loop is not None and run.plan is not None:
                    self._take_in_loop(step, self._loop)

    def _take_decision(self, step: LogStep) -> None:
        queue = self._run.approval_queue
        match step.kind:
            case "decision":
                self._decide(step)
            case "timeout":
                if (request := queue.waiting.get(step.call)) is not None:
                    self._verdicts[request.id] = verdict = queue.time_out(request, step.data[0])
                    self._note_decided(request.id)
                    if self._before is not None and request.call is not None:
                        self._end_at_timeout(request.call, verdict.outcome)
            case "policy":
                queue.change_policy(step.data[0])
            case "plan_sources":
                queue.limit_plan(step.data[0])
            case "breaches":
                if (request := queue.waiting.get(step.call)) is not None:
                    queue.name_breaches(request, *step.data)
            case _:
                queue.release()

    def _take_from_outside(self, step: LogStep) -> None:
        """Report messages, and the usage of child runs and tools, if they have run in this play."""
        run, data = self._run, step.data
        match step.kind:
            case "message":
                accept(run.progress, data[0])
                run.note_requesters()
            case "withdrawn":
                withdraw(run.progress, data[0])
                run.note_requesters()
            case "reported":
                run.progress.usage.count(data[0], data[1], run.prepared.prices, requests=data[2])
            case _ if step.call in self._reused_ends or self._has_started(step.call):
                self._count_child(step)
            case _:
                self._pending_usage.setdefault(step.call, []).append(step)

    def _count_child(self, step: LogStep) -> None:
        """Report the usage of a call's child run."""
        if step.kind == "used":
            self._run.progress.include(*step.data)
        else:
            self._run.rules.take_back(*step.data)

    def _take_in_loop(self, step: LogStep, loop: RequestLoop) -> None:
        data = step.data
        match step.kind:
            case "deliver" | "answer":
                self._take_answer(step, loop)
            case "work":
                self._task = max(self._task, data[0])
                loop.work(data[0], data[1])
            case "start":
                self._start(data[0])
            case "limit" | "stop" | "hold" | "break":
                self._take_stop(step, loop)
            case "steer":
                loop.steer()
            case "plan_decided":
                self._assume_missing(str(loop.plan.request))
                loop.report(PlanDecided(self._verdicts.pop(str(loop.plan.request), ApprovalVerdict())))
            case _:
                self._take_call(step, loop)
        self._give_up(loop, everything=step.kind == "stop" or (step.kind == "break" and not self._is_unanswered))

    def _take_answer(self, step: LogStep, loop: RequestLoop) -> None:
        """Deliver the recorded answer, or the same part of the one that has taken its place."""
        sent, own = step.data[0], self._new_answer
        if step.kind == "answer":
            self._is_delivered = True
            loop.answer(own or sent)
        elif own is None:
            loop.deliver(sent)
        else:
            part = own.calls[sent.first : sent.first + len(sent.calls)]
            loop.deliver(sent.model_copy(update={"attempt": own.attempt, "calls": part}))

    def _take_stop(self, step: LogStep, loop: RequestLoop) -> None:
        """Stop at a recorded limit, or where the recorded run ended, if that holds in this play too."""
        what, run = step.data[0], self._run
        if step.kind == "break":
            if not self._is_unanswered:
                loop.break_off(what, step.data[1])
                self._is_over = self._has_diverged
        elif not self._has_diverged or what.reason in _LASTING_LIMITS or run.limits.reached is not None:
            if step.kind == "limit":
                loop.report(LimitReached(what))
                return
            self._update_limit(step.limit)
            (loop.stop if step.kind == "stop" else loop.hold_to)(what, step.data[1])

    @property
    def _is_unanswered(self) -> bool:
        """Whether the running Request has an answer of its own, where the record has none so far."""
        return self._new_answer is not None and not self._is_delivered

    def _take_call(self, step: LogStep, loop: RequestLoop) -> None:
        """Report an event of one call, if the call runs in this play."""
        data, call = step.data, loop.running.get(step.call)
        if step.call in self._reported:
            return
        if call is None or not self._has_started(step.call):
            if step.kind == "ended":
                self._late[step.call] = step
            return
        match step.kind:
            case "resumed":
                self._assume_missing(call.id)
                if call.id not in self._run.approval_queue.waiting:
                    self._resume(call, loop, data[0])
            case "begun":
                call.hold.queued = False
            case "question":
                if isinstance(question := loop.ask_instead(call, data[0]), ApprovalRequest):
                    self._note_asked(question)
            case "hooks":
                answered = loop.let_pass(call, data[0], data[1], decided=data[2])
                if isinstance(answered, ApprovalRequest):
                    self._ask(answered)
            case "ended":
                self._end(call, step)
            case _:
                pass

    def _resume(self, call: Call, loop: RequestLoop, time: str) -> None:
        """Resume a call, unless a rule forbids it now. It has not begun yet."""
        call.hold.queued = True
        loop.plan.home(call).resume(call, time)
        if (refused := loop.begin(call)) is None:
            self._run.recorded(call, decided=True)
        elif self._before is not None:
            self._report_end(call, refused)

    def _give_up(self, loop: RequestLoop, *, everything: bool) -> None:
        """Withdraw the requests of abandoned calls."""
        queue = self._run.approval_queue
        names = {str(loop.plan.request) if name == PLAN else name for name in loop.abandoned}
        queue.withdraw([each for each in queue.waiting.values() if everything or each.id in names])
        loop.abandoned, loop.ended = [], []

    # Requests that the record does not have.

    def _begin(self, step: LogStep | None) -> Generator[ModelQuestion, RequestResult | None, None]:
        """Begin a Request. If it is not the recorded one of `step`, a model is asked."""
        run, number = self._run, self._run.progress.number
        recorded: ModelChoice | None = None if step is None else step.data[0]
        self._update_limit(None if step is None else step.limit, coming=number)
        self._new_answer, self._sent, self._is_open, self._is_delivered = None, 0, True, False
        self._is_last = run.limits.reached is not None
        choice = self._choose(recorded)
        run.begin_request(choice)
        if not self._asks_models:
            self._note_request()
            return
        context = run.request_context(number)
        was = None if self._before is None else self._before.contexts.get((number, 0))
        if recorded is not None and was is not None and _is_same(was, context) and choice.model == recorded.model:
            return
        self._has_diverged = True
        self._new_answer = yield ModelQuestion(number, choice.model, context)
        if self._new_answer is None:
            self._stop_at(number)

    def _choose(self, recorded: ModelChoice | None) -> ModelChoice:
        """Return the choice of the Request's model: the recorded one, unless the change names other models."""
        if recorded is not None and (not self._asks_models or self._run.prepared.models == self._recorded_models):
            return recorded
        assert self._situation is not None
        models = self._situation.models
        if models.policy in POLICIES:
            return POLICIES[models.policy](self._situation)
        return recorded or ModelChoice(models.fast, "the worker's own choice is not known")

    def _start_with_new_plan(self) -> None:
        """Begin the run with another plan than the recorded one, or without its plan."""
        assert self._before is not None
        others = {id: key for id, key in self._before.started.items() if not id.startswith("0.")}
        self._before, self._has_diverged = replace(self._before, started=others), True
        if self._run.context.starts_with_plan:
            self._new_answer, self._is_open = RequestResult(calls=[*self._run.context.plan]), True
            self._open(0)
            self._settle()

    def _play_on(self) -> Player:
        """Play on where the record ends, Request by Request."""
        run = self._run
        if self._is_open and not self._is_over:
            if run.plan is None or self._loop is None:
                self._open(run.progress.number)
            self._settle()
        while not self._is_over and not self._is_open:
            self._update_limit(None, coming=run.progress.number + 1)
            self._situation = run.situation()
            if run.limits.reached is not None and run.end_with_draft():
                break
            yield from self._begin(None)
            self._open(run.progress.number)
            self._settle()
        return self._result()

    def _settle(self) -> None:
        """Deliver the answer of the running Request, and close it, unless it waits for a person as the record does."""
        loop = self._loop
        assert loop is not None
        self._deliver(loop)
        self._task += 1
        self._go(loop)
        if loop.stage in (RequestStage.SETTLED, RequestStage.REVISED):
            self._close(loop.result, cut=loop.cut)

    def _deliver(self, loop: RequestLoop) -> None:
        """Deliver the Request's own answer, if the record has delivered none and nothing has ended the Request."""
        if self._new_answer is not None and not self._is_delivered and loop.stage is RequestStage.STREAMING:
            loop.answer(self._new_answer)
            self._is_delivered = True

    def _update_limit(self, recorded: Limit | None, coming: int = 0) -> None:
        """Set the reached limit. `coming`: the Request that begins; 0: none does."""
        limits = self._run.limits
        if not self._has_diverged:
            limits.reached = recorded
            return
        if recorded is not None and recorded.reason in _LASTING_LIMITS:
            limits.reached = limits.reached or recorded
        if coming:
            limits.check(self._run.progress, 0.0, coming=coming)

    # Plans and calls.

    def _open(self, number: int) -> None:
        goes_on = self._run.plan is not None and self._loop is not None
        self._run.open_plan(number)
        if not goes_on:
            self._loop = RequestLoop(self._run, self._run.prepared.follows)
        else:
            assert self._loop is not None
            self._loop.go_on()

    def _note_request(self) -> None:
        """Note the context of a Request. If it differs from the recorded one, the rest is unknown."""
        number = self._run.progress.number
        context = self._run.request_context(number)
        before = None if self._before is None else self._before.contexts.get((number, self._sent))
        if self._before is not None and (before is None or not _is_same(before, context)):
            self._stop_at(number)
        self.played.contexts[number, self._sent] = context

    def _stop_at(self, number: int) -> None:
        self.played.unknown_from = number
        raise _UnknownError

    def _go(self, loop: RequestLoop) -> None:
        """Work until the run waits for an event."""
        for _ in range(_MOST_TURNS):
            loop.work(self._task, self._time)
            before = len(loop.running), loop.stage
            self._start(self._time)
            if not loop.behind and (len(loop.running), loop.stage) == before:
                return
            self._task += loop.behind

    def _start(self, now: str) -> None:
        loop = self._loop
        assert loop is not None
        for start in loop.starts(now):
            if isinstance(start, ShowPlan):
                self._ask(start.approval_request)
                continue
            call, is_hooked = start.call, start.call.hold.queued
            self.played.started[call.id] = call.state.key
            if start.approval_request is not None:
                self._ask(start.approval_request)
            else:
                call.hold.queued = True  # as in the run, until it has begun
            if not self._has_started(call.id):
                self._end_unrecorded(call, loop, is_hooked=is_hooked)
            elif (step := self._late.pop(call.id, None)) is not None:
                self._end(call, step)

    def _has_started(self, id: str) -> bool:
        """Whether the recorded call of this id has started in this play. A call with the same id may be another one."""
        started = self.played.started
        return id in started and (self._before is None or self._before.started.get(id) == started[id])

    def _was_asked(self, request: ApprovalRequest) -> bool:
        """Whether the record has this request: about the same call, or the same plan."""
        before = None if self._before is None else self._before.asked.get(request.id)
        if before is None:
            return False
        return before.digest == request.digest if request.call is None else self._has_started(request.id)

    def _ask(self, request: ApprovalRequest) -> None:
        """Note an approval request. The approval of a request that is not in the record is assumed."""
        assumed = self._before is not None and not self._was_asked(request) and not request.question
        self._note_asked(request, assumed=assumed)
        if not assumed:
            return
        verdict = self._run.approval_queue.assume(request)
        if request.call is None and self._loop is not None:
            self._loop.report(PlanDecided(verdict))
            self._go(self._loop)

    def _note_asked(self, request: ApprovalRequest, *, assumed: bool = False) -> None:
        tool = "" if request.call is None else request.call.spec.tool_name
        digest = request.digest if request.call is None else ""
        self.played.asked[request.id] = AskedCall(request.id, tool, request.reason, assumed, request.breaches, digest)
        self._began[request.id] = self._at

    def _note_decided(self, id: str) -> None:
        self.played.waited[id] = self._at - self._began.get(id, self._at)

    def _decide(self, step: LogStep) -> None:
        queue = self._run.approval_queue
        if (request := queue.waiting.get(step.call)) is None:
            return
        decision, at, waited, by_person = step.data
        queue.guard.by_provenance = self._run.prepared.follows(REMEMBER_PROVENANCE)
        try:
            judged = queue.judge(decision, at, waited)
        except DecisionError:
            if request.quorums and decision.digest in (None, request.digest):
                return  # it does not count for the quorum: what is missing is assumed
            if request.call is not None:  # the person was shown another request
                self._leave_unknown(request.call)
            return
        if judged.approver is not None and not by_person:  # a program's approval counts for no quorum
            return
        if self._before is not None and not by_person and not self._may_decide(judged):
            self._assume(request)
            if decision.decision != "approve":
                self._leave_undecided(request)
            return
        if not by_person:
            self.played.without_person.add(request.id)
        verdict = queue.apply(replace(judged, by_person=by_person))
        if not verdict.waits:
            self._verdicts[request.id] = verdict
            self._note_decided(request.id)

    def _may_decide(self, judged: JudgedDecision) -> bool:
        """Whether the program or the standing approval that has decided would decide in this play too."""
        if is_standing(judged.decision):
            return may_stand(judged.request)
        queue, by = self._run.approval_queue, judged.decision.by
        return by == queue.guard.policy.approver and queue.may_decide(judged, by)

    def _leave_undecided(self, request: ApprovalRequest) -> None:
        """Mark a call, or the run from a plan on, as unknown: the record does not show what an approval would lead to."""
        if request.call is None:
            self._stop_at(request.plan.request)
        else:
            self._leave_unknown(request.call)

    def _end_at_timeout(self, call: Call, outcome: Outcome | None) -> None:
        """End a call whose timeout has another effect than in the record. `outcome`: by its policy; `None`: it runs."""
        recorded = self._ends.get(call.id)
        if recorded is None or _was_decided(recorded.data[0]) == (outcome is not None):
            return
        if outcome is None:
            self._leave_unknown(call)
        else:
            self._report(call, outcome)

    def _assume_missing(self, id: str) -> None:
        """Assume the approvals that a quorum lacks where the recorded call or plan goes on, and note them."""
        request = self._run.approval_queue.waiting.get(id)
        if self._before is not None and request is not None and request.missing:
            self._assume(request)

    def _assume(self, request: ApprovalRequest) -> None:
        """Assume a person's approval, and note it."""
        asked = self.played.asked
        asked[request.id] = replace(asked[request.id], reason=request.full_reason, assumed=True)
        self._verdicts[request.id] = self._run.approval_queue.assume(request)
        self._note_decided(request.id)

    def _end(self, call: Call, step: LogStep) -> None:
        """End a call with its recorded outcome, if it is the same call."""
        outcome, key, *_ = step.data
        changed = self._before is not None
        # A rule over several runs depends on those runs: only the record has its verdict.
        stands = (
            isinstance(outcome, RefusedByRule) and self._before is not None and self.played.rules == self._before.rules
        )
        if changed and key and call.state.key != key:
            self._end_by_key(call)
        elif changed and _was_decided(outcome) and call.id not in self.played.asked and not stands:
            self._leave_unknown(call)
        else:
            self._take_end(call, step)

    def _end_unrecorded(self, call: Call, loop: RequestLoop, *, is_hooked: bool) -> None:
        """End a call that is not the recorded one of its id. Its hooks are assumed to let it pass unchanged."""
        passed = loop.let_pass(call, HookAnswer(), self._time) if is_hooked else None
        if isinstance(passed, ApprovalRequest):
            self._ask(passed)
        elif passed is not None:
            self._report(call, passed)
            return
        self._end_by_key(call)

    def _end_by_key(self, call: Call) -> None:
        """End a call that the record may have under another id."""
        key = call.state.key
        found = next((id for id in self._by_key.get(key, ()) if not _was_decided(self._ends[id].data[0])), None)
        if found is None:
            self._leave_unknown(call)
            return
        self._by_key[key].remove(found)
        self._withdraw(call)
        self._take_end(call, self._ends[found])

    def _take_end(self, call: Call, step: LogStep) -> None:
        """End a call with a recorded outcome, and count the usage of its child run."""
        outcome, _, notes, kept, some_done = step.data
        call.state.notes, call.state.kept, call.state.some_done = [*notes], kept, some_done
        self._report(call, outcome)
        self._reused_ends.add(step.call)
        for each in self._pending_usage.pop(step.call, ()):
            self._count_child(each)

    def _withdraw(self, call: Call) -> None:
        queue = self._run.approval_queue
        queue.withdraw([each for each in queue.waiting.values() if each.call is call])

    def _leave_unknown(self, call: Call) -> None:
        self.played.unknown.add(call.id)
        outer, loop, _ = call.id.partition("[")
        self.played.unknown |= {outer} if loop else set()
        self._withdraw(call)
        self._report(call, Rejected(_NEVER_MADE))

    def _report(self, call: Call, outcome: Outcome) -> None:
        assert self._loop is not None
        if call.far and self._before is not None and (new := self.played.rules - self._before.rules):
            outcome = self._count_iterations(call, outcome, new) or outcome
        if call.hold.queued or call.state.status == "waiting":
            self._loop.plan.home(call).resume(call, self._time)
            refused = self._loop.begin(call) if isinstance(outcome, Returned) else None
            outcome = refused or outcome
        self._report_end(call, outcome)

    def _report_end(self, call: Call, outcome: Outcome) -> None:
        assert self._loop is not None
        self._reported.add(call.id)
        self._loop.report(CallEnded(call, outcome))

    def _count_iterations(self, call: Call, outcome: Outcome, new: frozenset[str]) -> RefusedByRule | None:
        """Count the iterations of a loop that ran in child workflows, under the `new` rules: its record has the others.

        Return the refusal of the first iteration that a new rule forbids. An approval that one requires is assumed.
        """
        rules, loop = self._run.rules, self._loop
        assert loop is not None
        if isinstance(outcome, Returned | Failed):
            call.state.iterations = recorded_iterations(call, loop.plan.home(call).values(call), outcome)
        for each in call.state.iterations:
            is_known = each.inputs.params.keys() == each.spec.params.keys()
            for breach in (each for each in rules.breaches(each) if is_known and each.rule.key in new):
                if breach.rule.otherwise == "refuse":
                    return RefusedByRule(breach.error)
                asked = AskedCall(call.id, call.spec.tool_name, breach.message, True, frozenset({breach.rule.key}))
                self.played.asked.setdefault(call.id, asked)
            rules.note_begun(each, new)
        return None

    def _close(self, result: RequestResult, *, cut: bool) -> None:
        """Close the Request, with the recorded result unless another answer has arrived."""
        loop = self._loop
        assert loop is not None
        if self._before is not None:
            self._deliver(loop)
            self._go(loop)
            left = [] if loop.stage is RequestStage.REVISED else [*loop.running.values()]
            for call in left:
                if call.id in self._ends or self._has_diverged or not self._has_started(call.id):
                    self._leave_unknown(call)
            self._go(loop)
        plan = loop.plan
        self._note_unread(plan)
        self._note_refused(plan)
        self.played.written |= {call.id: call.spec.raw for call in plan.own}
        result, cut = (result, cut) if self._new_answer is None else (loop.result, loop.cut)
        over = self._run.close_request(plan, result, cut=cut, is_patched=self._run.prepared.follows)
        refused = result.refusal is not None and self._run.limits.refused(self._run.progress)
        self._is_open, self._is_over = False, self._has_diverged and (over or refused or self._is_last)
        if self._before is not None and self.played.unknown:
            self._stop_at(plan.request + 1)

    def _note_unread(self, plan: Plan) -> None:
        """Note that calls are unknown because they read unknown ones."""
        unknown = self.played.unknown
        if not unknown:
            return
        skipped = {call.id for call in plan.every_call() if call.state.status == "skipped"}
        edges = plan.named_edges()
        while more := {reader for writer, reader, _ in edges if writer in unknown and reader in skipped} - unknown:
            unknown |= more

    def _note_refused(self, plan: Plan) -> None:
        for call in plan.every_call():
            if call.id in self.played.unknown:
                continue
            error = call.state.error
            if error is not None and error.code == RULE_BROKEN:
                reason, rule = error.message, error.rule
            elif call.state.status == "rejected" and call.approval is None:
                reason, rule = call.state.reason, ""
            else:
                continue
            self.played.refused[call.id] = RefusedCall(call.id, call.spec.tool_name, reason, rule)

    def _result(self) -> PlayedRun:
        run, played = self._run, self.played
        view = run_view(run, self._run_id)
        unknown = {"status": UNKNOWN, "reason": _NEVER_MADE}
        view.calls = [call.model_copy(update=unknown) if call.id in played.unknown else call for call in view.calls]
        played.view, played.graph = view, plan_graph(view)
        played.output = view.output
        played.requests, played.tokens, played.cost = view.requests, view.usage.tokens, view.usage.cost
        played.without_price = [model for model, used in view.usage.by_model.items() if used.cost is None]
        return played


_MOST_TURNS: Final = 10_000


def _new_run(start: RunStart, setup: RunSetup) -> RunState:
    agent = parse_agent(setup.document)
    given = start.input
    queue = ApprovalQueue(guard=start.guard(agent.config.approval))
    queue.rules = start.rule_book(agent.config.rules)
    if given.plan_approval is not None:
        queue.begin_part(given.plan_approval)
    fork = None if given.fork is None else Fork(given.fork.read(ForkRecord, FORK_FORM, "the record of the fork"))
    run = RunState(
        agent,
        Context(agent, given.input, has_input=given.has_input),
        setup.prepared,
        queue,
        identity=RunIdentity.of(given, start.queue),
        budget=given.budget,
        sources=given.sources,
        fork=fork,
    )
    run.records.collected = []  # then each call has its key
    if given.snapshot is not None:
        restore(run, given.snapshot.read(RunSnapshot, SNAPSHOT_FORM, "the snapshot that the run continues from"))
    return run


def _is_same(one: RequestContext, other: RequestContext) -> bool:
    return one.messages == other.messages and one.parameters == other.parameters


def _was_decided(outcome: Outcome) -> bool:
    """Whether a decision, its absence, or a rule has ended the call, without a call of its tool."""
    return isinstance(outcome, Rejected | RefusedByRule) or (
        isinstance(outcome, Failed) and outcome.error.code in _ENDINGS
    )


_SHOWN: Final = 200
"""Characters of a value in a line."""


def plan_graph(view: RunView) -> JsonObject:
    """Return `{"calls": [{"id", "tool", "params", "status", …}], "edges": [[writer, reader, what is read]]}`."""
    return {"calls": [_node(call) for call in view.calls], "edges": [list(edge) for edge in view.edges]}


def _node(call: CallView) -> JsonObject:
    node: JsonObject = {"id": call.id, "tool": call.tool, "params": call.params, "status": call.status}
    node |= {"asked": True} if call.approval is not None else {}
    node |= {"error": call.error} if call.error is not None else {}
    return node | ({"reason": call.reason} if call.reason and call.status != "done" else {})


def differences(before: JsonObject, after: JsonObject) -> list[str]:
    """Return the differences, a line each: `-` was, `+` is. Calls are named by their ids; an edge is a writer, a reader, and the path that is
    read.
    """
    lines: list[str] = []
    old, new = ({call["id"]: call for call in each["calls"]} for each in (before, after))
    for call_id in sorted({**old, **new}, key=_place):
        if _compared(old.get(call_id)) != _compared(new.get(call_id)):
            lines += _changed(_call_line(old.get(call_id)), _call_line(new.get(call_id)))
    was, is_ = ({tuple(edge) for edge in each["edges"]} for each in (before, after))
    lines += [f"- {_edge_line(edge)}" for edge in sorted(was - is_)]
    lines += [f"+ {_edge_line(edge)}" for edge in sorted(is_ - was)]
    for key in ("status", "output"):
        if before[key] != after[key]:
            lines += _changed(f"{key} {_short(before[key])}", f"{key} {_short(after[key])}")
    return lines


def _compared(call: JsonObject | None) -> Json:
    """Return the parts of a call that must stay the same. The texts of errors and reasons may change."""
    if call is None:
        return None
    code = (call.get("error") or {}).get("code")
    return [call["tool"], call["params"], call["status"], bool(call.get("asked")), code]


def _changed(before: str, after: str) -> list[str]:
    return [line for sign, words in (("-", before), ("+", after)) if words for line in [f"{sign} {words}"]]


def _call_line(call: JsonObject | None) -> str:
    if call is None:
        return ""
    why = (call.get("error") or {}).get("message") or call.get("reason")
    asked = ", asked" if call.get("asked") else ""
    return f"{call['id']} {call['tool']} {_short(call['params'])} {call['status']}{asked}{f': {why}' if why else ''}"


def _edge_line(edge: tuple[str, ...]) -> str:
    writer, reader, what = edge
    return f"{writer} → {reader} {what}"


def _place(call_id: str) -> list[int | str]:
    return [int(part) if part.isdigit() else part for part in call_id.replace("[", ".").replace("]", "").split(".")]


def _short(value: Json) -> str:
    text = dumps(value)
    return text if len(text) <= _SHOWN else shorten(value, _SHOWN)
