"""The loop of one Request: events in, commands out.

    streaming ──SolutionEnded──▶ answered ──PlanDecided──▶ draining ──▶ settled

Where no person reviews the whole plan, `streaming` becomes `draining`. A limit settles the loop from any stage. A new
message makes it `revised`: the Request is over, and its running calls continue. Calls that have not begun are held,
and the loop continues the plan under the next Request (`go_on`).

The workflow reports events, lets the loop `work`, and carries out what it `starts`, until it is settled or revised.
Only the run keeps the plan.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias, assert_never

from perdure.approvals.requests import ApprovalRequest, ApprovalVerdict, hook_feedback
from perdure.errors import CallError
from perdure.hooks.answers import BEFORE, OF_CALLS, Hooks
from perdure.hooks.events import REFUSED_BY_HOOK, HookAnswer
from perdure.models.requests import CallDelivery, RequestResult
from perdure.models.response_stream import Intake
from perdure.plan import (
    EXECUTED_CALLS_COUNT,
    STEERED_RUNS_GO_ON,
    Call,
    Failed,
    Outcome,
    Plan,
    RefusedByRule,
    Rejected,
    Returned,
    take_changed,
    written_anew,
)
from perdure.rules import RULE_BROKEN, FollowedBy, PlanJudge, RuleBook, names_of
from perdure.runs.context import ended_badly
from perdure.runs.delegates import tools_below, tools_of_delegate
from perdure.runs.limits import Limit
from perdure.runs.recall import is_recall, with_sources
from perdure.runs.run import RunState
from perdure.runs.version_switches import (
    ADDED_ONE_BY_ONE,
    ALL_USAGE_COUNTS,
    DECIDED_CALLS_STOP,
    EDITS_KEEP_AUTHORS,
    HELD_BLOCKS_NOTHING,
    HELD_CALLS_STAY,
    JUDGED_AFTER_HOOKS,
    JUDGED_ANEW,
    RECALLED_SOURCES,
    RECORDED_CALLS_FIRST,
    REMARKS_END_NOTHING,
)
from perdure.tools.tool import ANSWERED, KEEP, Tool, known_as
from perdure.values.json import Json


class RequestStage(Enum):
    """The stage of a Request."""

    STREAMING = "streaming"
    """The model is writing. Calls arrive, and start as they become ready, unless a person reviews the plan as a whole.
    """
    ANSWERED = "answered"
    """The answer is complete, and its plan waits for a person: nothing starts (R7.6)."""
    DRAINING = "draining"
    """No further call arrives, and all calls run to their end."""
    SETTLED = "settled"
    """Every call has ended."""
    REVISED = "revised"
    """The Request is over before its calls: the plan continues under the next Request (R10.5)."""


@dataclass(frozen=True)
class CallsArrived:
    """The next calls of the model's list."""

    calls: list[Json]


@dataclass(frozen=True)
class SolutionEnded:
    """The end of an answer: it is complete, or was interrupted."""

    result: RequestResult


@dataclass(frozen=True)
class PlanDecided:
    """A person's decision on the whole plan."""

    verdict: ApprovalVerdict


@dataclass(frozen=True)
class CallEnded:
    """The end of a call that was started."""

    call: Call
    outcome: Outcome


@dataclass(frozen=True)
class MessageArrived:
    """A new message. Calls that have not begun are held (R10.5)."""


@dataclass(frozen=True)
class LimitReached:
    """A limit that was reached: no further call runs (R9.5)."""

    limit: Limit


LoopEvent: TypeAlias = CallsArrived | SolutionEnded | PlanDecided | CallEnded | MessageArrived | LimitReached


@dataclass(frozen=True)
class StartCall:
    """A call to execute, after its approval request was decided if it has one."""

    call: Call
    approval_request: ApprovalRequest | None


@dataclass(frozen=True)
class ShowPlan:
    """The approval request of the whole plan, which waits for a decision."""

    approval_request: ApprovalRequest


def edited_plan(plan: Plan, other: Plan, time: str, *, keeps_authors: bool = True) -> Plan:
    """Return the plan that a person has edited: the other one.

    Calls of earlier Requests in the other plan stay. The other plan's calls replace calls that have not begun (R10.5).
    `keeps_authors`: a call that the person has changed counts as the person's, and not as the model's (R15.1).
    """
    if not plan.goes_on:
        return other
    plan.held_calls.hold_back()
    plan.held_calls.drop("a person has edited the plan", time)
    plan.reopen()
    for call in other.calls:
        written = call.inputs.origins.written if keeps_authors else None
        plan.add(call.spec.raw, written).approval = call.approval
    plan.close(drain=other.drained)
    return plan


REQUEST: Final = "request"
PLAN: Final = "plan"
NOT_COMPLETE: Final = "the answer was not complete, so nothing of its plan was run"
"""The reason why the calls of an unreadable answer do not run where a person reviews whole plans."""


class RequestLoop:
    """The calls of the Request whose plan the run has just opened."""

    def __init__(self, run: RunState, is_patched: Callable[[str], bool] = lambda _: True) -> None:
        self._run = run
        self._is_patched = is_patched
        """Whether this execution follows a rule that may be newer than its history."""
        self._stage = RequestStage.STREAMING
        self._shows_plan = run.approval_queue.guard.shows_plans
        self._left: deque[LoopEvent] = deque()
        self._plan_request: ApprovalRequest | None = None
        self.intake = Intake(self.plan.request)
        self.result = RequestResult()
        """The present answer."""
        self.running: dict[str, Call] = {}
        """Started calls whose end was not processed, calls that wait for a person included."""
        self.resting: set[str] = set()
        """Calls whose time does not count as work of the run: delegates with their own clocks, sleeps, and queued
        calls.
        """
        self.ended: list[Call] = []
        """Ended calls, calls of loops included, in the order of their ends. The driver that reports them empties the
        list.
        """
        self.limit: Limit | None = None
        """Limit that stops the Request: see `stop`."""
        self.steered = False
        """Whether a new message waits that no Request holds. Only safe calls start then."""
        self.cut = False
        """Whether a message has ended the Request's answer."""
        self.model_away = False
        """Whether the Request waits for an unavailable provider (R20.5)."""
        self.abandoned: list[str] = []
        """Ids of calls, `REQUEST` and `PLAN` that no longer need a wait. The driver that cancels them empties the list.
        """
        self.hooks = Hooks(run.prepared.hooks)
        self._with_people: dict[str, Call] = {}
        """Calls that waited for a person when a message came, or have waited since."""
        self._left_to_people: set[str] = set()
        """Held calls that the model was asked about and did not name: they wait only for a person."""
        self._judge: PlanJudge | None = None
        self._required: tuple[PlanJudge, tuple[int, int, int], list[tuple[Call, FollowedBy]]] | None = None
        """The calls that have to begin, with the judge and the numbers of ended, begun and arrived calls."""
        self._unjudged: list[Call] = []
        """Calls that depend on calls that have not arrived."""
        self._judged = 0
        self._closed_judged = False

    def recalled(self, call: Call, outcome: Outcome) -> Outcome:
        """Return a call's outcome. The outcome of `recall` has the sources of the value that it has read (R15.1)."""
        if not is_recall(self._run, call) or not self._is_patched(RECALLED_SOURCES):
            return outcome
        return with_sources(self._run, call, outcome)

    @property
    def plan(self) -> Plan:
        """The present plan; a person's edit replaces it."""
        assert self._run.plan is not None
        return self._run.plan

    @property
    def stage(self) -> RequestStage:
        return RequestStage.SETTLED if self.plan.settled else self._stage

    def steer(self) -> None:
        """Accept a new message: from now on only safe calls start, and the Request ends (R10.5)."""
        self._run.note("steer")
        if self.stage not in (RequestStage.SETTLED, RequestStage.REVISED):
            self.steered = True
            self.report(MessageArrived())

    def go_on(self) -> None:
        """Continue the run's plan, under the Request that has just begun."""
        self._stage, self.steered, self.cut, self.limit = RequestStage.STREAMING, False, False, None
        self._shows_plan = self._run.approval_queue.guard.shows_plans
        self.intake, self.result = Intake(self.plan.request), RequestResult()

    def may_begin(self, call: Call) -> bool:
        """Whether a taken, and perhaps approved, call may be scheduled now."""
        waits = call.id not in self._left_to_people and self.plan.is_held(call)
        held = waits or (self.steered and self._stage is not RequestStage.REVISED)
        if not (call.spec.safe or not held) or not self.plan.home(call).room_for(call):
            return False
        if self._rules.waits_for_record(call):
            return False
        if not (self._rules.has_lent or self._rules.is_stale):
            return True
        below = call.spec.loop is not None or call.spec.known_tool.delegate is not None
        names = tools_below(call, self._run) if below else ()
        return self._rules.is_free(call, names) and not (self._rules.is_stale and self._rules.touched(names))

    @property
    def behind(self) -> bool:
        """Whether work is left for the next workflow task, because checks have used the time of this one (R18.5)."""
        return bool(self._left) or self.plan.held_back

    @property
    def waits(self) -> bool:
        """Whether the run does no work of its own now (R9.5, R20.5).

        Each call waits for a person, a delegate, a sleep or its turn, and the Request waits for its provider. The run's
        clock is derived from this, at each change.
        """
        idle = {*self._run.approval_queue.waiting, *self.resting}
        if self._run.plan is not None and self.stage is RequestStage.STREAMING:
            return self.model_away and self.running.keys() <= idle
        if self._run.plan is None or self.stage not in (RequestStage.ANSWERED, RequestStage.DRAINING):
            return False  # the model works, or the run goes on to its next Request
        return self.running.keys() <= idle and (bool(self.running) or self._stage is RequestStage.ANSWERED)

    def deliver(self, delivery: CallDelivery) -> None:
        """Deliver calls that have closed in the model's stream (R6.3)."""
        self._run.note("deliver", delivery)
        if not self.steered and (calls := self.intake.deliver(delivery)):
            self.report(CallsArrived(calls))

    def answer(self, result: RequestResult) -> None:
        """Process the Request's result, as far as `Intake` accepts it. It is ignored if a message has ended the Request
        before.
        """
        self._run.note("answer", result)
        if self.steered:
            self._run.note_answer(result)
            return
        missing, stands = self.intake.close(result)
        if stands is not result and self._run.prepared.follows(ALL_USAGE_COUNTS):
            stands.spent = result.usage if result.spent is None else result.usage.plus(result.spent)
        self.report(CallsArrived(missing), SolutionEnded(stands))

    def report(self, *events: LoopEvent) -> None:
        """Report events, in this order."""
        for event in events if self._run.log is not None else ():
            self._note(event)
        self._left.extend(events)

    def _note(self, event: LoopEvent) -> None:
        """Record an event that no other method of the loop records."""
        match event:
            case CallEnded(call, outcome):
                state = call.state
                self._run.note("ended", outcome, state.key, [*state.notes], state.kept, state.some_done, call=call.id)
            case PlanDecided():
                self._run.note("plan_decided")
            case LimitReached(limit):
                self._run.note("limit", limit)
            case _:
                pass

    def work(self, task: int, now: str) -> None:
        """Process reported events, as far as the workflow task's time for checks reaches."""
        self._run.note("work", task, now)
        self.plan.checks.is_patched = self._is_patched
        self.plan.checks.begin(task)
        self.plan.time = now
        while self._left and not self.plan.checks.spent:
            self._take(self._left.popleft(), now)
        if self.plan.held_back and not self.plan.checks.spent:
            self.plan.go_on()
        self._judge_calls(now)
        self._note_news()

    def starts(self, now: str) -> list[StartCall | ShowPlan]:
        """Return the calls and plans to start now. The end of a call is reported as `CallEnded`, a decision on the plan
        as `PlanDecided`.
        """
        self._run.note("start", now)
        starts: list[StartCall | ShowPlan] = []
        if self._plan_request is not None:
            starts.append(ShowPlan(self._plan_request))
            self._plan_request = None
        approval_queue = self._run.approval_queue
        while self._may_start and (ready := self._take_ready(now)):
            for call in ready:
                home = self.plan.home(call)
                if self._answer_from_record(call, now):
                    continue
                if (refused := approval_queue.refuse_flow(call)) is not None:
                    home.end(call, refused, now)
                    continue
                hooked = call.spec.loop is None and bool(self.hooks.of(BEFORE, known_as(call.spec.known_tool)))
                if (breach := self._refusal(call, hooked=hooked and self._is_patched(JUDGED_AFTER_HOOKS))) is not None:
                    home.end(call, breach, now)
                    continue
                # A loop's calls need approval, not the loop. A call with hooks is judged after them (`let_pass`).
                approval_request = None if call.spec.loop is not None or hooked else self._request_approval(call, now)
                if call.spec.known_tool.activity == KEEP:
                    home.end(call, Failed(CallError("not_here", "what is kept is said outside of loops")), now)
                elif (
                    call.spec.loop is None
                    and approval_request is None
                    and call.spec.known_tool.latent
                    and not self._is_hooked(call)
                ):
                    # the model has written the result itself: nothing runs
                    self._rules.note_begun(call)
                    home.end(call, Returned(call.state.result), now)
                else:
                    call.hold.queued = (
                        hooked  # it has not begun: a new message, or the run's end, may prevent the begin
                    )
                    self.running[call.id] = call
                    starts.append(StartCall(call, approval_request))
                    if approval_request is None and not hooked:
                        self._run.journal.call_began(call)
                        if call.spec.loop is None and self._is_patched(JUDGED_ANEW):
                            self._rules.expect(call)  # the other ready calls are judged in view of it
        self._rules.forget_expected()
        if not starts and self._end_with_held(now):
            return self.starts(now)
        self._note_news()
        return starts

    def _take_ready(self, now: str) -> list[Call]:
        """Return the ready calls. In a fork they are those that remain after the calls that the record answers."""
        ready = self.plan.take_ready(now, only_safe=self.steered)
        self._note_news()
        if self._run.fork is None or not self._is_patched(RECORDED_CALLS_FIRST):
            return ready
        found: list[Call] = []
        while ready:
            left = [call for call in ready if not self._answer_from_record(call, now)]
            found += left
            self._note_news()
            ready = self.plan.take_ready(now, only_safe=self.steered) if len(left) < len(ready) else []
        return found

    def _answer_from_record(self, call: Call, now: str) -> bool:
        """End a ready call with its outcome from the record that a fork begins with; return whether there is one."""
        if (known := self._run.recorded(call)) is None:
            return False
        self._rules.note_begun(call)
        self.plan.home(call).end(call, known, now)
        return True

    def _note_news(self) -> None:
        """Note the ends of calls, of any cause."""
        for call, what in self.plan.take_news():
            if what == "began":
                self._run.journal.call_began(call)
            else:
                self._rules.note_ended(call, self.plan.checks)
                self._run.journal.call_ended(call)
                if call.state.status == "done":
                    self._run.records.note_done(call)
                elif ended_badly(call) and (len(call.place) == 1 or call.state.status == "rejected"):
                    self._run.stop_text()  # the failed item of a loop has its place in the loop's list
                self.ended.append(call)
        self._run.records.fold(self.plan)
        if self._stage is RequestStage.DRAINING and not self.plan.settled:
            self._run.read_text(self.plan, self.result)

    def let_pass(
        self, call: Call, answer: HookAnswer, now: str, *, decided: bool = False
    ) -> Outcome | ApprovalRequest | None:
        """Apply the answer of a call's hooks, before its approval request (R10.17).

        Return an outcome, an approval request, or `None`. With `decided` a person has edited the call: it needs no
        further approval, unless a hook has changed it since.
        """
        self._run.note("hooks", answer, now, decided, call=call.id)
        self._run.note_keys(call)
        approval_queue, by = self._run.approval_queue, ", ".join(answer.by)
        if answer.refused is not None:
            return Failed(CallError(REFUSED_BY_HOOK, answer.refused))
        if answer.changed is not None:
            before = call.inputs.changed
            stay = {name: value for name, value in call.inputs.params.items() if name not in answer.gone}
            problem = take_changed(call, {**stay, **answer.changed["params"]}, self.plan.checks, by=answer.by)
            if problem is not None:
                words = f"the hook {by} gave {call.spec.tool_name} parameters that do not fit: {problem.message}"
                return Failed(CallError(REFUSED_BY_HOOK, words))
            if call.inputs.changed != before:
                approval_queue.feedback.append(hook_feedback(call, by))
            if (refused := approval_queue.refuse_flow(call)) is not None:
                return refused
        if (breach := self._refusal(call)) is not None:
            return breach
        needs_none = decided and not call.inputs.changed and not is_answered(call)
        return None if needs_none else self._request_approval(call, now)

    def ask_instead(self, call: Call, now: str) -> RefusedByRule | ApprovalRequest:
        """Return the question of a call that a person has put in another's place, or its end if a rule forbids it."""
        self._run.note("question", now, call=call.id)
        refused = self._refusal(call) if self._is_patched(JUDGED_AFTER_HOOKS) else None
        return refused or self._ask(call, now)

    @property
    def _rules(self) -> RuleBook:
        return self._run.rules

    def _refusal(self, call: Call, *, hooked: bool = False) -> RefusedByRule | None:
        """Return the end of a ready call that a rule forbids; no person can allow it (R23.2).

        A call that is answered from outside begins here, unless it is `hooked`: its hooks may still change it.
        """
        if call.spec.loop is not None or not self._rules.rules:
            return None
        checks = self.plan.checks
        if (refused := self._unfollowed(call)) is not None:
            return refused
        if is_answered(call) and self._rules.waits_for_record(call):
            return RefusedByRule(
                CallError(RULE_BROKEN, "the run was just reset, and it is not known yet what its rules leave")
            )
        if is_answered(call) and self._rules.shared(call):
            return RefusedByRule(
                CallError(RULE_BROKEN, "no sum over runs can be kept of a call that a client carries out")
            )
        begins = is_answered(call) and not hooked
        breach = self._rules.begin(call, checks) if begins else self._rules.refusal(call, checks)
        return None if breach is None else RefusedByRule(breach.error)

    def begin(self, call: Call) -> RefusedByRule | None:
        """Begin a call that needs no further approval, and record that for the rules (R23.1).

        Return its end if a rule forbids it, because other calls have begun meanwhile.
        """
        if (refused := self.still_refused(call)) is not None:
            return refused
        if call.spec.loop is not None or call.spec.known_tool.delegate is not None:
            self._rules.lend(call, tools_below(call, self._run))
        return None

    def still_refused(self, call: Call) -> RefusedByRule | None:
        """Return the end of a call that is about to be scheduled, if a rule forbids the call now.

        A call that a message held after its begin is begun again here.
        """
        if call.spec.loop is not None or not self._rules.rules:
            return None
        if (refused := self._unfollowed(call)) is not None:
            return refused
        breach = self._rules.begin(call, self.plan.checks)
        return None if breach is None else RefusedByRule(breach.error)

    def _unfollowed(self, call: Call) -> RefusedByRule | None:
        """Return the end of a call, if a rule requires a later call that the plan may not make."""
        if not any(isinstance(rule, FollowedBy) for rule in self._rules.concerning(call)):
            return None
        breach = self._judge_of_plan().unfollowed(call)
        return None if breach is None else RefusedByRule(breach.error)

    def _judge_calls(self, now: str) -> None:
        """End arrived calls that break a rule in some outcome of the plan (R23.1).

        A call is judged once its dependencies are known. Earlier calls are judged again if a call that arrives later
        changes their verdict.
        """
        if not self._rules.rules:
            return
        plan, judge = self.plan, self._judge_of_plan()
        arrived = plan.calls[self._judged :]
        self._judged = len(plan.calls)
        again = (plan.closed and not self._closed_judged) or any(map(judge.matters_to_others, arrived))
        self._closed_judged = plan.closed
        left: list[Call] = []
        for call in plan.calls if again else [*self._unjudged, *arrived]:
            if call.state.status not in ("pending", "ready"):
                continue
            if judge.is_open(call):
                left.append(call)
            elif (breach := judge.breach(call)) is not None:
                plan.refuse(call, breach.error, now)
        self._unjudged = left
        for call in self._followed_later(arrived):
            call.hold.unfollowed = not plan.closed and judge.unfollowed(call) is not None

    def _followed_later(self, arrived: Sequence[Call]) -> list[Call]:
        """Return the calls for which the presence of a required later call may have changed."""
        rules = [rule for rule in self._rules.rules if isinstance(rule, FollowedBy)]
        if not rules:
            return []
        tools = {tool for rule in rules for tool in rule.thens}
        names = {
            name for call in arrived for each in call.written() if each.spec.tool for name in known_as(each.spec.tool)
        }
        again = self.plan.closed or not names.isdisjoint(tools)
        held = [call for call in self.plan.calls if call.hold.unfollowed] if again else []
        return held + [call for call in arrived if call.state.status in ("pending", "ready")]

    def _judge_of_plan(self) -> PlanJudge:
        if self._judge is None or not self._judge.is_of(self.plan):
            self._judge, self._unjudged, self._judged = self._new_judge(), [], 0
        return self._judge

    def _new_judge(self) -> PlanJudge:
        return PlanJudge(self.plan, self._rules, self._reach, self._run.may_answer)

    def _reach(self, tool: Tool) -> frozenset[str] | None:
        return tools_of_delegate(tool, self._run)

    def _request_approval(self, call: Call, now: str) -> ApprovalRequest | None:
        if is_answered(call):
            return self._ask(call, now)
        queue = self._run.approval_queue
        return queue.add_call(self.plan.home(call), call, now, lambda: self._requiring(call))

    def _ask(self, call: Call, now: str) -> ApprovalRequest:
        if self._is_patched(JUDGED_AFTER_HOOKS):
            call.hold.queued = False  # it has begun: a person, or a client, has it
        return self._run.approval_queue.add_question(self.plan.home(call), call, now)

    def _requiring(self, call: Call) -> list[FollowedBy]:
        """Return the `followed_by` rules that require this call, because an earlier call has begun."""
        rules = [rule for rule in self._rules.rules if isinstance(rule, FollowedBy)]
        names = set(names_of(call.spec.known_tool)) if rules else set()
        if all(names.isdisjoint(rule.thens) for rule in rules):
            return []
        judge, now = self._judge_of_plan(), (self.plan.ended, self._rules.begun, len(self.plan.calls))
        if self._required is None or self._required[:2] != (judge, now):
            self._required = (judge, now, judge.required())
        return [rule for later, rule in self._required[2] if later is call]

    def _is_hooked(self, call: Call) -> bool:
        return any(self.hooks.of(event, known_as(call.spec.known_tool)) for event in OF_CALLS)

    def stop(self, limit: Limit, now: str) -> None:
        """Settle the Request: cancelled calls have failed, unless they ended in time. Calls that had not begun are
        skipped.
        """
        self._run.note("stop", limit, now)
        self.limit = limit
        for event in [event for event in self._left if isinstance(event, CallEnded)]:
            self._take(event, now)
        self._left.clear()
        for call in self.running.values():
            home = self.plan.home(call)
            if call.is_under_way or not self._is_patched(EXECUTED_CALLS_COUNT):
                home.end(call, Failed(CallError(limit.reason, f"cancelled, because {limit.words}")), now)
            else:
                home.refuse(call, CallError(limit.reason, f"not run, because {limit.words}"), now, status="skipped")
        self.running.clear()
        if self._stage is RequestStage.STREAMING:
            self.result = self.intake.interrupted(limit.words)
        self._stage = RequestStage.DRAINING
        if not self.plan.closed:
            self.plan.close()
        self.plan.end_all("skipped", limit.words, now)
        self._note_news()

    def hold_to(self, limit: Limit, now: str) -> None:
        """Drop held calls, because no further Request can keep them; running calls run to their end (R9.5).

        Where a person reviews whole plans, no other call begins, because no person is shown this plan (R7.6).
        """
        self._run.note("hold", limit, now)
        if self._shows_plan and self._is_patched(STEERED_RUNS_GO_ON):
            self._hold_back()
        self._drop(limit.words, now, by="run")
        self._stage = RequestStage.DRAINING
        if self._is_patched(STEERED_RUNS_GO_ON):
            self.steered = False  # calls that a rule requires still start, also with effects
        self.plan.close()
        self._note_news()

    def break_off(self, reason: str, now: str) -> None:
        """End the run here; finished calls stay finished (R10.6)."""
        self._run.note("break", reason, now)
        for event in [event for event in self._left if isinstance(event, CallEnded)]:
            self._take(event, now)
        self._left.clear()
        self.plan.break_off(reason, now)
        self._note_news()

    @property
    def _may_start(self) -> bool:
        return self._stage is RequestStage.DRAINING or (self._stage is RequestStage.STREAMING and not self._shows_plan)

    def _take(self, event: LoopEvent, now: str) -> None:
        match event:
            case CallsArrived(calls):
                self._take_calls(calls)
            case SolutionEnded():
                self._take_end(event, now)
            case PlanDecided(verdict):
                self._take_decision(verdict, now)
            case CallEnded(call, outcome):
                if self.running.pop(call.id, None) is None:
                    return  # dropped just before
                self.plan.home(call).end(call, outcome, now)
            case MessageArrived():
                self._revise()
            case LimitReached(limit):
                self.limit = limit
            case _:
                assert_never(event)

    def _take_calls(self, calls: list[Json]) -> None:
        # one by one, because the check of each may take long; calls beyond the limit are only counted
        count = 1 if self.plan.listed <= self.plan.max_calls else len(calls)
        self.plan.extend(calls[:count])
        if calls[count:]:
            self._left.appendleft(CallsArrived(calls[count:]))

    def _take_end(self, event: SolutionEnded, now: str) -> None:
        self.result = result = event.result
        if self.plan.held_calls.held and self.plan.held_back:
            self.plan.go_on()  # the calls that it keeps have to be known
        if self.plan.held_calls.held and self.plan.held_back and self.plan.checks.spent:
            self._left.appendleft(event)
            return
        if self.intake.number:
            self._run.note_answer(result)
        if result.problem is not None and self._is_patched(STEERED_RUNS_GO_ON):
            self._discard_decisions(now)
        if (
            result.problem is not None and self.plan.held_calls.held
        ):  # the model has not decided on the held calls: it is asked about them again
            self._stage = RequestStage.REVISED
            return
        if self._drop_unkept(now):  # the answer does not name some held calls: the model is asked about them once
            self._stage = RequestStage.REVISED
            return
        self.plan.close(drain=result.output is not None)
        self._judge_calls(now)  # before a person is shown the plan
        self._stage = self._shown(now)

    def _take_decision(self, verdict: ApprovalVerdict, now: str) -> None:
        if self._stage is not RequestStage.ANSWERED:
            return  # a message has arrived: the plan is shown again in its later state
        self._stage = RequestStage.DRAINING
        if verdict.plan is not None:
            self._note_news()
            keeps_authors = self._is_patched(EDITS_KEEP_AUTHORS)
            self._run.plan = edited_plan(self.plan, verdict.plan, now, keeps_authors=keeps_authors)
        outcome = verdict.outcome
        if isinstance(outcome, Rejected | Failed):
            reason = outcome.error.message if isinstance(outcome, Failed) else outcome.reason
            self.plan.end_all("rejected", reason, now, but=self._begun_before())
            self.plan.rejected = self._is_patched(STEERED_RUNS_GO_ON)
        else:  # the person has seen the held calls too, in the whole plan
            for call in self.plan.held_calls.held:
                self.plan.held_calls.release(call)
        if self._is_patched(DECIDED_CALLS_STOP):
            ended = [call for call in self.running.values() if call.state.ended]
            self._abandon(ended, "it is not in the plan that was decided on", by="person")

    def _begun_before(self) -> list[str]:
        """Return the calls of earlier Requests that run while a person decides on the plan. No decision stops them."""
        if not self._is_patched(DECIDED_CALLS_STOP):
            return []
        return [id for id, call in self.running.items() if call.state.status == "running" and not call.hold.queued]

    def _revise(self) -> None:
        """End the Request early: the calls that have closed stay, and running calls continue."""
        if self._stage is RequestStage.STREAMING:
            self.cut = True
            self.abandoned.append(REQUEST)
        elif self._stage is RequestStage.ANSWERED:
            self.abandoned.append(PLAN)
            self._plan_request = None
        self._with_people, self._left_to_people = self._calls_waiting(), set()
        self._hold_back()
        if self.plan.closed or any(not call.state.ended for call in self.plan.calls):
            self._stage = RequestStage.REVISED
        else:
            self.plan.close()  # no call is left to continue

    def _discard_decisions(self, now: str) -> None:
        """Discard what an unreadable answer decides about held calls.

        Where a person reviews whole plans, the answer's own calls do not run, because no person is shown its plan.
        """
        for call in self.plan.held_calls.held:
            call.hold.unwanted = False
        if self._shows_plan and self.plan.goes_on:
            own = [call for call in self.plan.own if not call.state.ended]
            self._drop(NOT_COMPLETE, now, own)
            self._judge = None  # the dropped calls meet no rule
            self._hold_back()

    def _hold_back(self) -> None:
        """Hold all calls that have not begun, except those that a rule requires. The next Request decides on them."""
        owed = [call for call, _ in self._judge_of_plan().required()] if self._rules.rules else []
        self.plan.held_calls.hold_back()
        for call in owed:  # other calls have begun because these calls follow
            self.plan.held_calls.release(call)
        self._judge = None  # held calls may never begin, and their readers may read other calls
        for call in self.running.values():
            if call.hold.queued and call.state.status != "running":
                self._rules.note_held(call, keeps_lent=not self._is_patched(HELD_BLOCKS_NOTHING))

    def _drop_unkept(self, now: str) -> bool:
        """Drop the held calls that the answer drops or writes anew; return whether to ask the model about others.

        Calls that the answer does not name stay held. The model is asked about them once. From then on a call
        only waits for its person, if it has one (R10.5).
        """
        held, request = self.plan.held_calls.held, self.plan.request
        gone = [call for call in held if call.hold.unwanted]
        unnamed = [call for call in held if not call.hold.unwanted]
        gone += written_anew(unnamed, self.plan.own, by_method=self._is_patched(ADDED_ONE_BY_ONE))
        silent = [call for call in held if call not in gone]
        if silent and not self._is_patched(HELD_CALLS_STAY):
            gone, silent = held, []
        self._drop(f"dropped by Request {request}", now, gone)
        self._with_people |= self._calls_waiting()
        pressed = {call.index for call in silent if call.hold.pressed}
        self._left_to_people = {
            id for id, call in self._with_people.items() if not call.state.ended and call.place[0] in pressed
        }
        for call in silent:
            call.hold.pressed = True
        return len(pressed) < len(silent)

    def _calls_waiting(self) -> dict[str, Call]:
        return {
            id: approval_request.call
            for id, approval_request in self._run.approval_queue.waiting.items()
            if approval_request.call is not None
        }

    def _end_with_held(self, now: str) -> bool:
        """End a plan that has only held calls left. The next Request may still keep them; without one they do not run.
        Return whether to look for calls that start now: other calls may read the result of a dropped loop.
        """
        blocked = self._is_patched(HELD_BLOCKS_NOTHING) and all(map(self._is_blocked, self.running.values()))
        idle = (blocked or not self.running) and not self.behind and self.stage is RequestStage.DRAINING
        if not idle or not self.plan.closed or not self.plan.held_calls.held:
            return False
        counts_remarks = not self._is_patched(REMARKS_END_NOTHING)
        if self._run.output.is_complete(self.plan, self.result, counts_remarks=counts_remarks):
            self._drop(f"not run: Request {self.plan.request} gave the output, and none has kept it", now)
            return self._is_patched(HELD_CALLS_STAY)
        self._stage = RequestStage.REVISED
        return False

    def _is_blocked(self, call: Call) -> bool:
        """Whether a taken call waits for its turn, and is held: only a Request can let it begin, and no person."""
        asked = call.id in self._run.approval_queue.waiting or call.id in self._left_to_people
        return call.hold.queued and not asked and not call.spec.safe and self.plan.is_held(call)

    def _drop(self, reason: str, now: str, calls: Iterable[Call] | None = None, by: str = "model") -> None:
        self._abandon(self.plan.held_calls.drop(reason, now, calls), reason, by)

    def _abandon(self, calls: Iterable[Call], reason: str, by: str) -> None:
        """End all waits for these calls, which have ended without running."""
        for call in calls:
            if (approval_request := self._run.approval_queue.waiting.get(call.id)) is not None:
                self._run.approval_queue.drop(approval_request, reason, by)
            if self.running.pop(call.id, None) is not None:
                self.abandoned.append(call.id)

    def _shown(self, now: str) -> RequestStage:
        """Return the stage after the answer, and request approval of its plan if a person has to review it (R7.6)."""
        if self._shows_plan and self.result.problem:
            if not (self.plan.goes_on and self._is_patched(STEERED_RUNS_GO_ON)):
                self.plan.end_all("rejected", NOT_COMPLETE, now)
        elif self._shows_plan:
            self._plan_request = self._run.approval_queue.add_plan(
                self.plan, now, lambda: self._run.new_plan(self.plan.request)
            )
        return RequestStage.ANSWERED if self._plan_request is not None else RequestStage.DRAINING


def is_answered(call: Call) -> bool:
    """Whether a person, or a program outside, gives the call's result."""
    return call.spec.tool is not None and call.spec.tool.activity in ANSWERED
