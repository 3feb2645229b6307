"""A loop over a delegate as a workflow of its own, which continues as new (R8.5 to R8.7)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.exceptions import ApplicationError

from perdure.workflows.approvals import SessionReports
from perdure.workflows.arguments import any_arguments, end_if_started_by_hand, read_input, single_argument
from perdure.workflows.children import BudgetShare, ChildRuns
from perdure.workflows.continue_as_new import go_on_anew, should_continue_as_new
from perdure.workflows.delegates import ChildHandle, run_iteration
from perdure.workflows.dispatch import Dispatcher, full_reason
from perdure.workflows.parent_run import InternalHandlers, ParentRun, fetch_whole_input
from perdure.workflows.preparation import record
from perdure.workflows.resets import LeftBehind, on_reset

with workflow.unsafe.imports_passed_through():
    from perdure.approvals.policy import PlanApproval, Policy, keep_remembered, may_tighten, parse_policy
    from perdure.errors import CallError, DecisionError, FormulaError, PerdureError
    from perdure.models.usage import RunUsage
    from perdure.plan import Failed, Returned, is_satisfied
    from perdure.rules import RuleBook
    from perdure.runs.budget import BudgetPool
    from perdure.runs.claim_check import GONE, USAGE, Payload
    from perdure.runs.delegates import ChildUsage, SpentBudget
    from perdure.runs.limits import Budget, Limit
    from perdure.runs.loops import LOOP_WORKFLOW, UNTIL_ERRORS_PATCH, LoopInput, LoopState
    from perdure.runs.sent_texts import merge_digests
    from perdure.runs.standing_approvals import StandingClaim
    from perdure.runs.version_switches import LEFT_CHILDREN_END, SESSION_KNOWS_DELEGATES, UNUSED_SHARES_RETURN
    from perdure.runs.wire import POLICY, RunInput
    from perdure.values.json import Json, JsonObject, Sent
    from perdure.values.limits import HISTORY_FULL, MAX_SHARED, NEAR
    from perdure.values.sizes import Sizes


@workflow.defn(name=LOOP_WORKFLOW, failure_exception_types=[PerdureError, ValidationError])
class LoopWorkflow(InternalHandlers):
    """The iterations of one delegate. `LoopDriver` runs them; the handlers call its parts."""

    def __init__(self) -> None:
        super().__init__(self._raise_budget)
        self._children = ChildRuns()
        self._policy = PolicyChanges(self._children)
        self._was_reset = False
        on_reset(self._note_reset)
        self._left = LeftBehind(lambda: workflow.patched(LEFT_CHILDREN_END))
        self._driver: LoopDriver | None = None
        """The driver, once the input is read. Handlers may be called before."""

    @workflow.run
    async def run(self, *arguments: Any) -> LoopState:
        """Run all iterations; return their results and failures. The argument is one `LoopInput`."""
        loop = await fetch_whole_input(read_input(LoopInput, arguments))
        with end_if_started_by_hand():
            self._driver = LoopDriver(loop, self._children, self._policy, self._parent, self._left)
            self._sender = self._driver.sender
            if self._parent.raised is not None:
                self._driver.raise_budget(self._parent.raised)
            if self._was_reset:
                self._driver.report_reset()
            return await self._driver.run()

    def _note_reset(self) -> None:
        if self._driver is None:
            self._was_reset = True
        else:
            self._driver.report_reset()

    def _raise_budget(self, raised: Budget) -> None:
        if self._driver is not None:
            self._driver.raise_budget(raised)

    @workflow.signal(name=POLICY, description='Change the approval policy: {"ask": "unsafe"}')
    @any_arguments
    def change_policy(self, change: Sent[Policy]) -> None:
        """Change the policy of iterations that run and of later ones (R7.7). An invalid change has no effect."""
        self._policy.note(change)

    def _payload(self, kind: str, name: str) -> Payload | None:
        if kind == USAGE.name:
            return Payload(SpentBudget(usage=RunUsage()) if self._driver is None else self._driver.spent)
        return GONE if self._driver is None else self._driver.sender.payload(kind, name)


class PolicyChanges:
    """The changes of a loop's policy since this execution began."""

    def __init__(self, children: ChildRuns) -> None:
        self._children = children
        self._change = Policy()
        self.is_tightened = False
        """Whether a change has made the policy stricter, even if a later one has taken it back."""

    def note(self, sent: Sequence[Any]) -> None:
        """Change the policy of running and later iterations. An invalid change has no effect."""
        try:
            change = parse_policy(single_argument(sent))
        except DecisionError:
            return
        self._change = self._change.changed(change)
        self.is_tightened |= may_tighten(change)
        self._children.signal_change(change.as_change())

    def keep_remembered(self, remembered: Sequence[str]) -> list[str]:
        """Return the remembered tools that these changes do not concern."""
        return keep_remembered(remembered, self._change)

    def keep_standing(self, standing: StandingClaim | None) -> StandingClaim | None:
        """Return the standing approvals, unless these changes may make the policy stricter (R23.3)."""
        return None if self.is_tightened else standing

    def over(self, approval: JsonObject) -> JsonObject:
        """Return a change of policy, overridden by these changes."""
        return parse_policy(approval).changed(self._change).as_change()


class LoopDriver:
    """One execution of a loop. Each iteration is a run of its own, named after the loop and its index."""

    def __init__(
        self, loop: LoopInput, children: ChildRuns, policy: PolicyChanges, parent: ParentRun, left: LeftBehind
    ) -> None:
        self.state = loop.state
        self._sizes = Sizes()
        self.sender = Dispatcher(self._sizes, loop.max_payload, children, report_closed=self._report_closed)
        self._children = children
        self._reports = SessionReports()
        self._loop = loop
        self._policy = policy
        self._parent = parent
        self._left = left
        self._stays = False
        """Whether its items and results are too large for a new execution: the loop stays in this one (R18.4)."""
        self._is_open = False
        """Whether a cancelled iteration may have returned nevertheless."""
        shares = BudgetPool(loop.budget, loop.state.expected)
        self._budget_share = BudgetShare(
            shares,
            usage=lambda: self.state.usage,
            # The iterations that run at once, or the number that is left if that is smaller.
            rivals=lambda: max(1, min(loop.concurrency, loop.count - self.state.done) - len(shares.holders)),
            frees_unused=lambda: workflow.patched(UNUSED_SHARES_RETURN),
        )

    async def run(self) -> LoopState:
        """Run all iterations, or continue as new after some; return their results and failures."""
        loop = self._loop
        if loop.kind == "each":
            loop.make_room()
        await self._record()
        while not self._over:
            await (self._run_items() if loop.kind == "each" else self._run_until())
            if self._over:
                break
            if len(loop.model_dump_json().encode()) <= loop.max_payload:
                await self._settle()
                loop.approval = self._policy.over(loop.approval)
                loop.remembered = self._policy.keep_remembered(loop.remembered)
                loop.standing, loop.plan_approval = self._standing, self._plan_approval
                go_on_anew(loop, keeps=loop.keeps_version)
            self._stays = True
            if (words := full_reason(NEAR)) is not None:
                self._give_up(words)
        if (why := await self._parent.why_not(self.state.size, loop.free)) is not None:
            raise ApplicationError(why, self.spent.as_json(), type=HISTORY_FULL, non_retryable=True)
        await self._settle()
        return self.state

    @property
    def spent(self) -> SpentBudget:
        """The usage of the iterations so far."""
        state = self.state
        record = state.rule_record
        some_run = self._is_open or bool(self._children.names)
        if some_run and record is not None:  # their calls are not in it yet
            record = record.model_copy(update={"lost": True})
        return SpentBudget(
            usage=state.usage,
            sent=state.sent,
            rule_record=record,
            changed=state.changed,
            some_done=True if state.well else None if some_run else False,
        )

    async def _settle(self) -> None:
        """Wait for tasks that the end of an execution would otherwise drop."""
        await self._reports.until_sent()
        await self._left.until_ended()

    def report_reset(self) -> None:
        """Report a reset to the session: the actions of the iterations that it has undone are unknown."""
        if self.state.rule_record is not None:
            self.state.rule_record.lost = True
        self._report_reset()

    def _report_reset(self) -> None:
        """Report to the session that a reset has left iterations behind, except those that the loop started before it."""
        if self._reports_waits:
            self._reports.send(workflow.info().workflow_id, waits=False, left=self._children.names)

    def _report_closed(self, run_id: str) -> None:
        """Report to the session that an iteration has ended, and could not report it itself."""
        if self._reports_waits:
            self._reports.send(run_id, waits=False, closed=True)

    @property
    def _reports_waits(self) -> bool:
        """Whether there is a session to report to. Called only where a report is due, because a marker is a command."""
        return bool(self._loop.whose.session) and workflow.patched(SESSION_KNOWS_DELEGATES)

    def raise_budget(self, raised: Budget) -> None:
        """Raise the budget that the iterations share."""
        self._loop.budget = self._loop.budget.raised(raised)
        self._budget_share.raise_to(self._loop.budget)

    async def _run_items(self) -> None:
        tasks = [asyncio.create_task(self._iterate_in_turn()) for _ in range(self._loop.concurrency)]
        try:
            await asyncio.gather(*tasks)
        except BaseException as error:
            for task in tasks:
                task.cancel()
            if not isinstance(error, GeneratorExit):
                await asyncio.gather(*tasks, return_exceptions=True)  # until their usage is known (R9.6)
            raise

    def _give_up(self, words: str) -> None:
        """Run no further iterations, and return the results so far."""
        state = self.state
        while not self._over:
            self._loop.keep_error(state.next, HISTORY_FULL, f"not run: {words}")
            state.next += 1

    @property
    def _pauses(self) -> bool:
        """Whether this execution's history is too long to begin another iteration."""
        return full_reason(NEAR) is not None if self._stays else should_continue_as_new(keeps=self._loop.keeps_version)

    @property
    def _over(self) -> bool:
        return self.state.satisfied or self.state.next >= self._loop.count

    async def _iterate_in_turn(self) -> None:
        """Run iterations in turn, while there are any and this execution's history is not too long.

        One always runs: the loop makes progress even where a new execution is too long at once (R8.7).
        """
        while not self._over:
            index = self.state.next
            self.state.next += 1
            await self._iterate(index)
            if self._pauses:
                return

    async def _run_until(self) -> None:
        """Run iterations of an until-loop in turn, as `_iterate_in_turn` does."""
        while not self._over:
            index = self.state.next
            output = await self._iterate(index)
            self.state.next += 1
            if self.state.failures:
                return  # the next iteration would have no state to continue from
            try:
                self.state.satisfied = is_satisfied(self._loop.until, output, index)
            except FormulaError as error:
                if not workflow.patched(UNTIL_ERRORS_PATCH):
                    raise
                self._loop.keep_error(index, "invalid_expression", str(error))
                return
            if self._pauses:
                return

    async def _iterate(self, index: int) -> Json:
        loop, state = self._loop, self.state
        agent, child_input = loop.iteration(index)
        share = await self._budget_share.take(str(index))
        if isinstance(share, Limit):
            return self._note(index, Failed(CallError(share.reason, f"not run: {share.words}")))
        usage = ChildUsage()
        child = ChildHandle(str(index), str(agent.get("name")), f"{loop.title} [{index}]")
        try:
            outcome = await run_iteration(child, lambda: self._child(agent, child_input, share), self.sender, usage)
        except asyncio.CancelledError:
            self._is_open |= usage.some_done is not False
            raise
        finally:
            if (spent := usage.spent) is not None:
                state.usage.include(spent.usage)
                state.sent = merge_digests(state.sent, spent.sent)
                state.changed |= spent.changed
            self._budget_share.settle(str(index), usage)
            if state.rule_record is not None and usage.started:
                RuleBook(loop.rules, state.rule_record, unlent=loop.unlent_rules).take_back(usage.rule_record)
        return self._note(index, outcome)

    def _child(self, agent: JsonObject, child_input: JsonObject, share: Budget) -> RunInput:
        loop = self._loop
        return RunInput(
            agent=agent,
            input=child_input,
            has_input=True,
            approval=self._policy.over(loop.approval),
            floor=loop.floor,
            floor_flows=loop.floor_flows,
            rules=loop.rules,
            rule_record=self.state.rule_record,
            unlent_rules=loop.unlent_rules,
            budgets=loop.budgets,
            givers=loop.givers,
            lineage=loop.lineage,
            delegates=loop.delegates,
            prepared=loop.prepared,
            budget=share.within(loop.part_budget),
            sources=loop.sources_of(),
            whose=loop.whose,
            routes_above=loop.routes_above,
            said=loop.said,
            requesters=loop.requesters,
            evaluated=loop.evaluated,
            remembered=self._policy.keep_remembered(loop.remembered),
            standing=self._standing,
            plan_approval=self._plan_approval,
        )

    @property
    def _plan_approval(self) -> PlanApproval | None:
        """The approval of the whole plan, as far as it counts for the next part (R7.6)."""
        approval, is_tightened = self._loop.plan_approval, self._policy.is_tightened
        return None if approval is None else approval.limit(is_tightened=is_tightened, is_changed=self.state.changed)

    @property
    def _standing(self) -> StandingClaim | None:
        """The standing approvals of the next part: none once a decision has changed a call of an earlier one (R23.3)."""
        return None if self.state.changed else self._policy.keep_standing(self._loop.standing)

    async def _record(self) -> None:
        """Record the common preparation of all iterations. If the preparation fails, each iteration is refused by
        itself.
        """
        loop = self._loop
        if loop.prepared is not None or self._over:
            return
        try:
            packed = await record(self._child(*loop.iteration(self.state.next), loop.budget))
        except ApplicationError:
            return
        if len(packed.data) <= MAX_SHARED:
            loop.prepared = packed

    def _note(self, index: int, outcome: Returned | Failed) -> Json:
        """Record an iteration's result, or its failure; return it in the state's form."""
        loop, value = self._loop, None
        self.state.sources = sorted({*self.state.sources, *outcome.sources})
        if isinstance(outcome, Failed):
            loop.keep_error(index, outcome.error.code, outcome.error.message)
        else:
            value = outcome.value
            if loop.call is not None and isinstance(value, dict):
                loop.keep_part(index, value, self._sizes)
            else:
                loop.keep(index, value, self._sizes.of(value))
            self._sizes.retain(())
        workflow.set_current_details(f"**{loop.title}**: {loop.progress()}")
        return value
