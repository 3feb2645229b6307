"""Approvals: requests that wait, the list of them outside the run, and decisions by signal or update."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final

from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributeKey
from temporalio.exceptions import ActivityError, is_cancelled_exception

from perdure.workflows.arguments import single_argument
from perdure.workflows.children import ChildRuns
from perdure.workflows.dispatch import Dispatcher
from perdure.workflows.failures import message_of
from perdure.workflows.internal_activities import execute_internal, execute_on_capable_worker
from perdure.workflows.notifications import RunNotifications
from perdure.workflows.observability import now, observe
from perdure.workflows.resets import Resets
from perdure.workflows.standing_approvals import StandingApprovals

with workflow.unsafe.imports_passed_through():
    from perdure.approvals.decisions import Decision, parse_decision
    from perdure.approvals.policy import Guard, Policy, parse_policy
    from perdure.approvals.queue import ApprovalQueue
    from perdure.approvals.requests import (
        APPROVE_ACTIVITY,
        PROGRAM_SECONDS,
        WAITS,
        ApprovalRequest,
        ApprovalVerdict,
        ApproveInput,
        JudgedDecision,
        RunWaits,
        WaitingEntry,
        WaitingMemo,
    )
    from perdure.errors import DecisionError
    from perdure.hooks.events import NOBODY
    from perdure.plan import DecisionKind
    from perdure.runs import metrics
    from perdure.runs.event_journal import RunJournal
    from perdure.runs.limits import Limit
    from perdure.runs.run import RunState
    from perdure.runs.version_switches import (
        CLIENT_CALLS_UNLISTED,
        CLIENT_TIMEOUT_ALONE,
        DECISIONS_BEFORE_TIMEOUTS,
        INFORMED_AGAIN,
        JUDGED_ANEW,
        REMEMBER_PROVENANCE,
        RESETS_COUNT,
        SESSION_KNOWS_DELEGATES,
        SESSION_KNOWS_WAITING,
    )
    from perdure.runs.views import approval_size, request_view, waiting_entry
    from perdure.runs.views import summary as line
    from perdure.runs.wire import WAITING_ATTRIBUTE, WAITING_MEMO, WAITING_NAMED, PreparedWorker
    from perdure.tools.tool import Tool
    from perdure.values.json import Json, JsonObject
    from perdure.values.limits import INLINE


PROGRAM_TIMEOUT: Final = timedelta(seconds=PROGRAM_SECONDS + 60)
"""Time of the activity that fetches a request and calls the program: a busy run sends the request late."""
LEFT: Final = workflow.HandlerUnfinishedPolicy.ABANDON
"""A run that ends does not wait for a decision that arrives meanwhile."""
PROGRAMS_AT_ONCE: Final = 50
"""Requests of a run that programs decide at the same time: their activities are added to those of the calls (R18.2)."""
_NOBODY: Final = {"timeout": "timeout", "policy": "policy"}
_WAITING: Final = SearchAttributeKey.for_int(WAITING_ATTRIBUTE)


class RunApprovals:
    """The decisions on one run's waiting requests, and the changes of its policy."""

    def __init__(
        self, approval_queue: ApprovalQueue, notes: RunJournal, children: ChildRuns, waiting_list: WaitingList
    ) -> None:
        self.approval_queue = approval_queue
        self._notes = notes
        self._children = children
        self._waiting_list = waiting_list
        self.resets = Resets(self._ask_again)
        if self.resets.was_reset_to_start:
            waiting_list.report_reset()
        self._prepared: PreparedWorker | None = None
        self._tools: dict[str, Tool] = {}
        self._verdicts: dict[str, asyncio.Future[ApprovalVerdict]] = {}
        self.waits_changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the timeout or the approver changes, or a request is renewed. A new future then replaces it."""

    def begin(self, guard: Guard, prepared: PreparedWorker) -> None:
        """Set the run's guard, tools and recorded switches. Earlier decisions wait for this call."""
        self.approval_queue.guard, self._prepared = guard, prepared
        self._tools = {tool.name: tool for tool in prepared.tools}
        self.resets.begin(prepared.follows(RESETS_COUNT))

    def _follows(self, rule: str) -> bool:
        return self._prepared is not None and self._prepared.follows(rule)

    def verdict_of(self, approval_request: ApprovalRequest) -> asyncio.Future[ApprovalVerdict]:
        """Return the future on which a request waits; a decision may come before anybody waits."""
        if approval_request.id not in self._verdicts:
            self._verdicts[approval_request.id] = asyncio.get_running_loop().create_future()
        return self._verdicts[approval_request.id]

    def close(self, approval_request: ApprovalRequest) -> None:
        """Remove the request from the queue: nothing waits for its verdict any longer."""
        del self._verdicts[approval_request.id]
        self.approval_queue.withdraw([approval_request])

    def check(self, sent: Sequence[Json]) -> None:
        """Reject an invalid decision before it is accepted. Raises `DecisionError`.

        After a reset the server would deliver a rejected decision repeatedly: only one that was sent to this execution
        is judged this early.
        """
        try:
            raw, update = single_argument(sent), workflow.current_update_info()
            if update is not None and self.resets.is_own(update.id):
                self.approval_queue.check_remember(self.judge(raw))
            else:
                parse_decision(raw, bounds_names=self.approval_queue.judges_anew)
        except DecisionError:
            observe(metrics.refused(_update_id()))
            raise

    def check_policy(self, sent: Sequence[Json]) -> None:
        """Check a change of policy as `check` does a decision."""
        try:
            parse_policy(single_argument(sent))
        except DecisionError:
            observe(metrics.refused(_update_id()))
            raise

    def judge(self, raw: Json, kind: DecisionKind | None = None) -> JudgedDecision:
        """Validate a decision; change nothing. Raises `DecisionError`."""
        decision: Decision = parse_decision(raw, kind, bounds_names=self.approval_queue.judges_anew)
        request = self.approval_queue.waiting.get(decision.call)
        since = workflow.now() if request is None else datetime.fromisoformat(request.approval.requested_at)
        return self.approval_queue.judge(decision, now(), (workflow.now() - since).total_seconds())

    def decide(self, raw: Json, kind: DecisionKind | None = None) -> JsonObject:
        """Apply a decision; return `{"call", "decision"}`, with `missing` if the approvals of others are missing
        (R24.6).

        Raises `DecisionError`. A newly broken rule is first added to the request.
        """
        judged = self.judge(raw, kind)
        if judged.decision.remember:
            self.approval_queue.guard.by_provenance = self._follows(REMEMBER_PROVENANCE)
        followed: JsonObject = {"call": judged.request.id, "decision": judged.decision.decision}
        try:
            verdict = self.approval_queue.decide(judged)
        except DecisionError:
            self._show([judged.request])
            raise
        self._notes.decided(judged, judged.request.missing if verdict.waits else "")
        if verdict.waits:
            self._show([judged.request])
            return followed | {"missing": judged.request.missing}
        self.verdict_of(judged.request).set_result(verdict)
        if judged.decision.remember:
            self.release()
        return followed

    async def counted(self, raw: Json, update_id: str = "") -> Json:
        """Return the decision once it is known to be later than the last reset. Raises `DecisionError` for an earlier
        one.

        The result of a call that a client executed also counts after a reset: the call would be executed twice.
        """
        call = raw.get("call") if isinstance(raw, dict) else None
        approval_request = self.approval_queue.waiting.get(call) if isinstance(call, str) else None
        if approval_request is None or not approval_request.is_client_call:
            await self.resets.check(update_id)
        return raw

    async def note(self, sent: Sequence[Json], kind: DecisionKind | None = None) -> None:
        """Apply a decision that came by signal. A signal has no answer, so a rejection is kept for `show`."""
        try:
            self.decide(await self.counted(single_argument(sent)), kind)
        except DecisionError as error:
            self.refuse(sent, error)

    async def decide_now(self, sent: Sequence[Json]) -> JsonObject:
        """Apply a decision that came by update. Raises `DecisionError`, which is also kept for `show`: its sender may not
        wait any longer.
        """
        try:
            raw = await self.counted(single_argument(sent), _update_id())
        except DecisionError as error:
            self.refuse(sent, error)
            raise
        try:
            return self.decide(raw)
        except DecisionError as error:
            if self._follows(JUDGED_ANEW):
                self.refuse(sent, error)
            raise

    def change_policy(self, change: Policy) -> JsonObject:
        """Change the run's policy, judge waiting requests anew (R7.7), and return the policy."""
        before, timeouts = self.approval_queue.guard.policy, self._timeouts()
        changed = self.approval_queue.change_policy(change)
        is_timed_anew = self._timeouts() != timeouts
        self._notes.policy_changed(change.as_change())
        self._children.signal_change(change.as_change())
        self.release()
        self._show([request for request in changed if request.id in self.approval_queue.waiting])
        after = self.approval_queue.guard.policy
        is_renamed = after.approver != before.approver and self._follows(JUDGED_ANEW)
        if is_timed_anew or is_renamed:
            self._wake_waits()
        policy: JsonObject = after.model_dump(mode="json")
        return policy

    def _timeouts(self) -> dict[str, float | None]:
        return {id: self.approval_queue.timeout(request) for id, request in self.approval_queue.waiting.items()}

    async def counted_policy(self, raw: Json, update_id: str = "") -> Policy:
        """Return the change of policy, as `counted` does. A change that requires more approvals counts always, and at
        once.
        """
        change = parse_policy(raw)
        if not self.approval_queue.guard.only_tightens(change):
            await self.resets.check(update_id)
        return change

    async def change_policy_now(self, sent: Sequence[Json]) -> JsonObject:
        """Change the policy by update, as `decide_now` does a decision."""
        try:
            change = await self.counted_policy(single_argument(sent), _update_id())
            if problem := self.approval_queue.judge_change(change, self._tools)[1]:
                raise DecisionError(problem)
        except DecisionError as error:
            self.refuse(sent, error)
            raise
        return self.change_policy(change)

    async def note_policy(self, sent: Sequence[Json]) -> None:
        """Change the policy by signal. Rules that would loosen a quorum are not applied. `show` prints them."""
        try:
            change = await self.counted_policy(single_argument(sent))
        except DecisionError as error:
            self.refuse(sent, error)
            return
        counted, problem = self.approval_queue.judge_change(change, self._tools)
        if problem and self._follows(JUDGED_ANEW):
            self.refuse(sent, DecisionError(problem))
            change = counted
        self.change_policy(change)

    def refuse(self, sent: Sequence[Json], error: DecisionError) -> None:
        """Keep a rejected decision and its error for `show`."""
        observe(metrics.refused(_update_id()))
        shown = sent[0] if len(sent) == 1 else list(sent)
        self._notes.decision_refused(shown, str(error))
        self.approval_queue.refuse(shown, str(error), workflow.now().isoformat(timespec="seconds"))

    def _ask_again(self) -> None:
        """Ask again after a reset of the run, and note the reset for watchers."""
        self._notes.was_reset()
        observe(metrics.run_reset())
        self._waiting_list.report_reset()
        if not self.resets.counted:
            return
        self._show(self.approval_queue.renew(now()))
        if self._follows(INFORMED_AGAIN):
            self._wake_waits()

    def _show(self, changed: Collection[ApprovalRequest]) -> None:
        """Show requests that wait for other approvals now."""
        for request in changed:
            self._notes.waits(request)
        if changed:
            self._waiting_list.renew()

    def _wake_waits(self) -> None:
        """Let each wait for a verdict read its request, its timeout and its approver again."""
        changed, self.waits_changed = self.waits_changed, asyncio.get_running_loop().create_future()
        changed.set_result(None)

    def release(self) -> None:
        """Let the requests go on that need no further decision (R7.7)."""
        for approval_request in self.approval_queue.release():
            self.verdict_of(approval_request).set_result(ApprovalVerdict())


class ApprovalWaits:
    """The waits of one run's calls for a verdict: of a program, of a person, or of the policy's timeout."""

    def __init__(
        self,
        run: RunState,
        approvals: RunApprovals,
        waiting_list: WaitingList,
        sender: Dispatcher,
        notifications: RunNotifications,
    ) -> None:
        self._agent_run = run
        self._approval_queue = run.approval_queue
        self._approvals = approvals
        self._waiting_list = waiting_list
        self._sender = sender
        self._notifications = notifications
        self._programs = asyncio.Semaphore(PROGRAMS_AT_ONCE)
        self.standing = StandingApprovals(run)

    async def verdict(self, approval_request: ApprovalRequest) -> ApprovalVerdict:
        """Wait for a decision, or for the policy's timeout, counted from the request; a changed timeout applies at
        once.

        A request that is asked again after a reset notifies people again, and its timeout starts again.
        """
        decided, since = self._approvals.verdict_of(approval_request), workflow.time()
        asked_at = approval_request.approval.requested_at
        self._observe_wait(approval_request)
        approver = self._approval_queue.guard.policy.approver
        program = asyncio.create_task(self._decide_early(approval_request, decided))
        informing = self._notifications.watch(approval_request, program)
        client_timeout = self._agent_run.agent.config.client_timeout
        try:
            while not decided.done():
                if approval_request.approval.requested_at != asked_at and self._agent_run.prepared.follows(
                    INFORMED_AGAIN
                ):
                    asked_at, since = approval_request.approval.requested_at, workflow.time()
                    if informing is not None:
                        informing.cancel()
                    informing = self._notifications.watch(approval_request, program)
                new_approver = self._approval_queue.guard.policy.approver
                if new_approver != approver and self._agent_run.prepared.follows(JUDGED_ANEW):
                    approver, former, is_informed = new_approver, program, program.done()
                    former.cancel()
                    program = asyncio.create_task(self._decide_instead(former, approval_request, decided))
                    if informing is not None and not is_informed:
                        informing.cancel()
                        informing = self._notifications.watch(approval_request, program)
                for_client = approval_request.is_client_call and (
                    client_timeout is not None or self._agent_run.prepared.follows(CLIENT_TIMEOUT_ALONE)
                )
                seconds = client_timeout if for_client else self._approval_queue.timeout(approval_request)
                events: list[asyncio.Future[Any]] = [decided, self._approvals.waits_changed]
                if seconds is not None and since + seconds <= workflow.time():
                    if await self._await_pending_decisions(decided):
                        continue  # a decision may have arrived, or the timeout changed
                    if for_client:
                        self._client_gone(seconds)
                    return self._approval_queue.time_out(approval_request, seconds)
                ring = None if seconds is None else self._sender.alarm.at(since + seconds, "no decision in time")
                await workflow.wait([*events, ring] if ring else events, return_when=asyncio.FIRST_COMPLETED)
                if ring is not None:
                    ring.cancel()
            return decided.result()
        finally:
            program.cancel()
            if informing is not None:
                informing.cancel()
            self._approvals.close(approval_request)
            if not isinstance(sys.exception(), GeneratorExit):  # then the run is only evicted from the worker's cache
                self._agent_run.journal.waits_no_more(approval_request)
            if approval_request.approval.decision is not None:
                self._observe_decision(approval_request, workflow.time() - since)

    async def _await_pending_decisions(self, decided: asyncio.Future[ApprovalVerdict]) -> bool:
        """Wait until pending decisions are judged. Return whether any were pending.

        They may have arrived before the timeout, while no worker was there.
        """
        resets = self._approvals.resets
        if not resets.pending or not self._agent_run.prepared.follows(DECISIONS_BEFORE_TIMEOUTS):
            return False
        await workflow.wait_condition(lambda: decided.done() or not resets.pending)
        return True

    def _client_gone(self, seconds: float) -> None:
        """Record that the program that executes the model's calls has not come back: the run fails once its calls have
        ended.
        """
        words = f"its client has not sent the results of its functions within {seconds:g} s"
        self._agent_run.limits.reached = self._agent_run.limits.reached or Limit("client_gone", words)

    def _observe_wait(self, approval_request: ApprovalRequest) -> None:
        self._agent_run.journal.waits(approval_request)
        tool = "" if approval_request.call is None else metrics.tool_of(approval_request.call)
        observe(
            metrics.waiting_observation(
                approval_request.id, tool, question=approval_request.question, client=approval_request.is_client_call
            )
        )

    def _observe_decision(self, approval_request: ApprovalRequest, seconds: float) -> None:
        approval = approval_request.approval
        by = "program" if approval.by == self._approval_queue.guard.policy.approver else "person"
        by = approval.by if approval.decision == "dropped" else _NOBODY.get(approval.by, by)
        observe(metrics.decided(approval_request.id, approval.decision, by, seconds))

    async def _decide_early(self, approval_request: ApprovalRequest, decided: asyncio.Future[ApprovalVerdict]) -> None:
        """Let a standing approval decide first (R23.3), then the policy's program (R7.9). If neither decides, a person
        does.
        """
        approver = None if approval_request.question else self._approval_queue.guard.policy.approver
        may_stand = self.standing.may_decide(approval_request)
        if approver is None and not may_stand:
            return
        self._waiting_list.hide(approval_request)
        try:
            if may_stand:
                async with self._programs:
                    await self._ask_standing(approval_request, decided)
            if approver is not None and not decided.done():
                await self._ask_program(approver, approval_request, decided)
        except ActivityError as error:
            if not is_cancelled_exception(error):
                raise
            return  # somebody else has decided, or the run is cancelled: nobody waits for this
        finally:
            self._waiting_list.unhide(approval_request)
        self._waiting_list.report()

    async def _decide_instead(
        self, former: asyncio.Task[None], approval_request: ApprovalRequest, decided: asyncio.Future[ApprovalVerdict]
    ) -> None:
        """Let the program that a change names decide, once the former one is cancelled."""
        await workflow.wait([former])
        self._waiting_list.report()
        await self._decide_early(approval_request, decided)

    async def _ask_standing(self, approval_request: ApprovalRequest, decided: asyncio.Future[ApprovalVerdict]) -> None:
        found = await self.standing.decide(approval_request)
        if found is not None and not decided.done():
            judged, verdict = found
            decided.set_result(verdict)
            self._agent_run.journal.decided(judged)

    async def _ask_program(
        self, approver: str, approval_request: ApprovalRequest, decided: asyncio.Future[ApprovalVerdict]
    ) -> None:
        """Let the policy's program decide. If it fails, takes too long or returns no decision, a person decides."""
        try:
            async with self._programs:
                approve_input = await self._approve_input(approver, approval_request)
                execute = functools.partial(
                    execute_internal,
                    APPROVE_ACTIVITY,
                    [approve_input],
                    Any,
                    timeout=PROGRAM_TIMEOUT,
                    retry_policy=RetryPolicy(maximum_attempts=1),
                    summary=line(f"{approver} on {approval_request.title}"),
                )
                sent = await execute_on_capable_worker(execute)
            if not decided.done():
                judged = self._approval_queue.judge_program(approval_request, sent, approver)
                if judged is not None:
                    decided.set_result(self._approval_queue.apply(judged))
                    self._agent_run.journal.decided(judged)
                    if judged.decision.remember and self._agent_run.prepared.follows(JUDGED_ANEW):
                        self._approvals.release()
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            problem = f"{approver} did not answer, so a person must decide: {message_of(error)}"
            self._approval_queue.refuse(
                {"call": approval_request.id}, problem, workflow.now().isoformat(timespec="seconds")
            )
        except DecisionError as error:
            self._approval_queue.refuse(
                {"call": approval_request.id}, str(error), workflow.now().isoformat(timespec="seconds")
            )

    async def _approve_input(self, approver: str, approval_request: ApprovalRequest) -> ApproveInput:
        """Return the approver's input when there is room to send it; the approver queries a large request itself
        (R18.2).
        """
        owner = self._agent_run.identity.owner
        sizes, approve_input = self._sender.sizes, ApproveInput(approver=approver, call=approval_request.id)
        approve_input.owner = None if owner == NOBODY else owner
        if sizes.of(approval_request.shown) <= INLINE:  # a larger view is not built
            run = self._agent_run
            view = request_view(approval_request, run)
            if (size := approval_size(view, sizes)) <= INLINE:
                await self._sender.room(size)
                approve_input.offer = view.as_json()
                return approve_input
        await self._sender.room(0)
        return approve_input


def _update_id() -> str:
    update = workflow.current_update_info()
    return "" if update is None else update.id


class WaitingList:
    """The list of a run's waiting requests: its search attribute and memo (R7.8), and the session's knowledge of them (R10.4)."""

    def __init__(self, approval_queue: ApprovalQueue, children: ChildRuns) -> None:
        self._approval_queue = approval_queue
        self._run: RunState | None = None
        self._reporting = False
        self._with_program: Counter[str] = Counter()
        """By request id, the number of programs that are deciding it: no person has to look at it yet."""
        self._listed: tuple[int, list[WaitingEntry]] = (0, [])
        """The number of listed requests, and the oldest of them."""
        self._reports = SessionReports()
        self._waits = False
        """Whether the run waits for a person, by its last report to the session."""
        self._children = children
        self._was_reset = False
        """Whether a reset came before the run existed."""

    def begin(self, run: RunState) -> None:
        """List the requests of this run from now on."""
        self._run = run
        if self._was_reset:
            self.report_reset()

    def report(self) -> None:
        """Show a change, once for all simultaneous changes."""
        if self._run is not None and not self._reporting:
            self._reporting = True
            asyncio.get_running_loop().call_soon(self.show)

    def show(self) -> None:
        """Update the list from the run's present state."""
        self._reporting = False
        if self._run is not None:
            self._list(self._run)

    def hide(self, approval_request: ApprovalRequest) -> None:
        """Remove the request from the list: a program decides it."""
        self._with_program[approval_request.id] += 1

    def unhide(self, approval_request: ApprovalRequest) -> None:
        """List the request again, from the next change on."""
        self._with_program[approval_request.id] -= 1
        if not self._with_program[approval_request.id]:
            del self._with_program[approval_request.id]

    def renew(self) -> None:
        """Rebuild the list: the waiting requests have changed."""
        self._listed = (self._listed[0], [])
        self.report()

    def _list(self, run: RunState) -> None:
        """Keep the run's search attribute and memo up to date, so that lists query no run.

        The memo is kept also where no list reads it. Where a task had no commands, the SDK's core replays it together with the
        next one, and delivers an update before the events of that task (sdk-rust #1606). A decision would then be
        refused, because no request waits yet.
        """
        known = {entry.call: entry for entry in self._listed[1]}
        waiting = [each for each in self._approval_queue.waiting.values() if each.id not in self._with_program]
        if any(each.is_client_call for each in waiting) and run.prepared.follows(CLIENT_CALLS_UNLISTED):
            waiting = [each for each in waiting if not each.is_client_call]  # no person is asked
        oldest = islice(waiting, WAITING_NAMED)
        listed = (len(waiting), [known.get(each.id) or waiting_entry(each) for each in oldest])
        if listed == self._listed:
            return
        before, self._listed = self._listed[0], listed
        count, calls = listed
        if bool(before) != bool(count):
            self._report_waiting(run, waits=bool(count))
        if run.prepared.searchable:
            workflow.upsert_search_attributes([_WAITING.value_set(count)])
        memo = WaitingMemo(agent=run.agent.name, calls=calls).as_json() if calls else None
        workflow.upsert_memo({WAITING_MEMO: memo})

    def report_closed(self, run_id: str) -> None:
        """Report to the session that a child run has ended and could not report it itself."""
        if self._run is not None and self._run.prepared.follows(SESSION_KNOWS_DELEGATES):
            self._signal_session(self._run, run_id, waits=False, closed=True)

    def report_reset(self) -> None:
        """Report to the session which runs still wait after a reset: this run or not, and of child runs only its
        present ones.
        """
        self._was_reset = self._run is None
        if self._run is not None and self._run.prepared.follows(SESSION_KNOWS_DELEGATES):
            self._waits = bool(self._listed[0])
            self._signal_session(self._run, workflow.info().workflow_id, waits=self._waits, left=self._children.names)

    async def settle(self) -> None:
        """Report to the session that this run, which ends now, no longer waits.

        A server sends no signal of a workflow that ends in the same task.
        """
        run = self._run
        if run is None or run.identity.in_session or not run.prepared.follows(SESSION_KNOWS_DELEGATES):
            return  # a session knows itself when its own run has ended
        if self._waits:
            self._report_waiting(run, waits=False)
        await self.until_sent()

    async def until_sent(self) -> None:
        """Wait until the session has the reports of this execution, which ends now or continues as new."""
        if self._run is not None and self._run.prepared.follows(SESSION_KNOWS_DELEGATES):
            await self._reports.until_sent()

    def _report_waiting(self, run: RunState, *, waits: bool) -> None:
        """Report whether this run waits: a session's next message follows a run that waits for a person, unless its mode is another."""
        rule = SESSION_KNOWS_WAITING if run.identity.in_session else SESSION_KNOWS_DELEGATES
        if run.prepared.follows(rule):
            self._waits = waits
            self._signal_session(run, workflow.info().workflow_id, waits=waits)

    def _signal_session(
        self, run: RunState, run_id: str, *, waits: bool, closed: bool = False, left: Collection[str] | None = None
    ) -> None:
        """Signal the session of this run, or of its outermost parent. Do nothing without a session."""
        if workflow.info().parent is not None and (run.identity.in_session or run.identity.owner.session):
            self._reports.send(run_id, waits=waits, closed=closed, left=left)


class SessionReports:
    """The reports of one execution to the session at the beginning of its id."""

    def __init__(self) -> None:
        self._count = 0
        """Number of the last report."""
        self._signals: set[asyncio.Task[None]] = set()

    def send(self, run_id: str, *, waits: bool, closed: bool = False, left: Collection[str] | None = None) -> None:
        """Send a `RunWaits` for this run, or for a child run that cannot send it."""
        # The time also increases where this run continues as new, or is reset.
        self._count = max(self._count + 1, int(workflow.time() * 1000))
        report = RunWaits(
            run_id=run_id, count=self._count, waits=waits, closed=closed, left=None if left is None else sorted(left)
        )
        session = workflow.get_external_workflow_handle(workflow.info().workflow_id.partition("/")[0])
        self._signals.add(task := asyncio.create_task(session.signal(WAITS, report)))
        task.add_done_callback(self._forget)

    async def until_sent(self) -> None:
        """Wait until the session has all reports. A server sends no signal of an execution that ends in the same task."""
        if self._signals:
            await workflow.wait([*self._signals])

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._signals.discard(task)
        if not task.cancelled():
            task.exception()  # the session may be gone
