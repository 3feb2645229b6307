"""Approvals: requests that wait, and decisions by signal or update."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any, Final

from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributeKey
from temporalio.exceptions import ActivityError, is_cancelled_exception

from perdure.workflows.arguments import only
from perdure.workflows.children import ChildRuns
from perdure.workflows.dispatch import Dispatcher
from perdure.workflows.failures import message_of
from perdure.workflows.observability import may_list, tell
from perdure.workflows.resets import Resets

with workflow.unsafe.imports_passed_through():
    from perdure.approvals.decisions import Decision, parse_decision
    from perdure.approvals.policy import Policy, parse_policy
    from perdure.approvals.queue import ApprovalQueue
    from perdure.approvals.requests import (
        APPROVE_ACTIVITY,
        ApprovalRequest,
        ApprovalVerdict,
        ApproveInput,
        JudgedDecision,
        WaitingEntry,
        WaitingMemo,
        WaitingView,
        is_with_client,
    )
    from perdure.errors import DecisionError
    from perdure.plan.calls import Kind
    from perdure.runs import metrics
    from perdure.runs.event_journal import RunJournal
    from perdure.runs.rules import CLIENT_CALLS_UNLISTED, REMEMBER_PROVENANCE, follows
    from perdure.runs.views import offer_size, waiting_entry
    from perdure.runs.views import summary as line
    from perdure.runs.wire import DECIDE, POLICY, WAITING_ATTRIBUTE, WAITING_MEMO, WAITING_NAMED
    from perdure.values.json import Json, JsonObject
    from perdure.values.limits import INLINE


PROGRAM_TIMEOUT: Final = timedelta(seconds=30)
"""For a program that decides: what it has not answered by then is left to a person."""
LEFT: Final = workflow.HandlerUnfinishedPolicy.ABANDON
"""A run that ends while a decision comes in does not wait for it."""
PROGRAMS_AT_ONCE: Final = 50
"""Offers of a run that programs decide on at a time: their activities count beside those of the calls (R18.2)."""
_NOBODY: Final = {"timeout": "timeout", "policy": "policy"}
_WAITING = SearchAttributeKey.for_int(WAITING_ATTRIBUTE)


class RunApprovals:
    """The approvals of one run: its waiting requests, and the handling of decisions."""

    def __init__(self) -> None:
        self.desk = ApprovalQueue()
        self.children = ChildRuns()
        self.searchable = False
        """Whether the namespace knows the search attribute."""
        self.rules = 0
        """Which rules the run follows."""
        self.shown: Callable[[ApprovalRequest], WaitingView] | None = None
        """What a program that decides is shown of an offer."""
        self.sender: Dispatcher | None = None
        """Keeps the sums of what programs are asked."""
        self.notes = RunJournal()
        """What has happened in the run, for whoever reads it."""
        self.client_timeout: float | None = None
        """Seconds that a call waits for the program that carries it out."""
        self.gone: Callable[[float], None] = lambda _: None
        """Told when that program has not come back within so many seconds."""
        self.report: Callable[[], None] = lambda: None
        """Told when something has come to wait for a person."""
        self.on_waiting: Callable[[bool], None] = lambda _: None
        """Told when the first thing has come to wait for one, and when the last does not any more."""
        self.resets = Resets(self._ask_again)
        self._programs = asyncio.Semaphore(PROGRAMS_AT_ONCE)
        self._with_program: set[str] = set()
        """Offers on which a program is deciding: nobody needs to look at them yet."""
        self._verdicts: dict[str, asyncio.Future[ApprovalVerdict]] = {}
        self._timeout_changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when another timeout counts than before, and another then."""
        self._listed: tuple[int, list[WaitingEntry]] = (0, [])
        """What visibility tells: how many wait, and the oldest of them."""

    async def verdict(self, offer: ApprovalRequest) -> ApprovalVerdict:
        """Wait until somebody decides, or until the policy's timeout, counted from the offer; a changed one counts at once."""
        decided, since = self._verdict_of(offer), workflow.time()
        self._tell_waits(offer)
        program = asyncio.create_task(self._ask_program(offer, decided))
        assert self.sender is not None
        try:
            while not decided.done():
                with_client = _is_with_client(offer) and self.client_timeout is not None
                seconds = self.client_timeout if with_client else self.desk.guard.policy.timeout
                events: list[asyncio.Future[Any]] = [decided, self._timeout_changed]
                if seconds is not None and since + seconds <= workflow.time():
                    if with_client:
                        self.gone(seconds)
                    return self.desk.time_out(offer, seconds)
                ring = None if seconds is None else self.sender.alarm.at(since + seconds, "nobody has decided by then")
                await workflow.wait([*events, ring] if ring else events, return_when=asyncio.FIRST_COMPLETED)
                if ring is not None:
                    ring.cancel()
            return decided.result()
        finally:
            program.cancel()
            del self._verdicts[offer.id]
            self.desk.withdraw([offer])
            if not isinstance(sys.exception(), GeneratorExit):  # then the run is only put out of memory
                self.notes.waits_no_more(offer)
            if offer.approval.decision is not None:
                self._tell_decided(offer, workflow.time() - since)

    def _tell_waits(self, offer: ApprovalRequest) -> None:
        self.notes.waits(offer)
        tool = "" if offer.call is None else metrics.tool_of(offer.call)
        tell(metrics.waits(offer.id, tool, question=offer.question, client=_is_with_client(offer)))

    def _tell_decided(self, offer: ApprovalRequest, seconds: float) -> None:
        approval = offer.approval
        by = "program" if approval.by == self.desk.guard.policy.approver else "person"
        by = approval.by if approval.decision == "dropped" else _NOBODY.get(approval.by, by)
        tell(metrics.decided(offer.id, approval.decision, by, seconds))

    def _verdict_of(self, offer: ApprovalRequest) -> asyncio.Future[ApprovalVerdict]:
        """Return the future on which a request waits; a decision may come before anybody waits."""
        if offer.id not in self._verdicts:
            self._verdicts[offer.id] = asyncio.get_running_loop().create_future()
        return self._verdicts[offer.id]

    async def _ask_program(self, offer: ApprovalRequest, decided: asyncio.Future[ApprovalVerdict]) -> None:
        """Let the policy's program decide first (R7.9). What fails, takes too long or is no decision is left to a person."""
        approver = self.desk.guard.policy.approver
        if approver is None or offer.question or self.shown is None:
            return
        self._with_program.add(offer.id)
        try:
            async with self._programs:
                said = await workflow.execute_activity(
                    APPROVE_ACTIVITY,
                    await self._asked(approver, offer),
                    schedule_to_close_timeout=PROGRAM_TIMEOUT,
                    retry_policy=RetryPolicy(maximum_attempts=1),
                    summary=line(f"{approver} on {offer.title}"),
                )
            judged = None if decided.done() else self.desk.judge_program(offer, said, approver)
            if judged is not None:
                decided.set_result(self.desk.apply(judged))
        except ActivityError as error:
            if is_cancelled_exception(error):
                return  # somebody else has decided, or the run is cancelled: nobody waits for this
            problem = f"{approver} gave no answer, so a person is asked: {message_of(error)}"
            self.desk.refuse({"call": offer.id}, problem, workflow.now().isoformat(timespec="seconds"))
        except DecisionError as error:
            self.desk.refuse({"call": offer.id}, str(error), workflow.now().isoformat(timespec="seconds"))
        finally:
            self._with_program.discard(offer.id)
        self.report()

    async def _asked(self, approver: str, offer: ApprovalRequest) -> ApproveInput:
        """Return the input of the approver, when its turn has come; the approver queries a large request itself
        (R18.2).
        """
        assert self.shown is not None
        assert self.sender is not None
        sizes, asked = self.sender.sizes, ApproveInput(approver=approver, call=offer.id)
        if sizes.of(offer.shown) <= INLINE:  # else it need not even be built
            view = self.shown(offer)
            if (size := offer_size(view, sizes)) <= INLINE:
                await self.sender.room(size)
                asked.offer = view.as_json()
                return asked
        await self.sender.room(0)
        return asked

    def check(self, said: Sequence[Json]) -> None:
        """Refuse, before it is taken, what cannot be followed. Raises `DecisionError`.

        After a reset the server would bring a refused one again and again: only one that was sent to this execution is judged so early.
        """
        try:
            raw, update = only(said), workflow.current_update_info()
            if update is not None and self.resets.is_own(update.id):
                self.judge(raw)
            else:
                parse_decision(raw)
        except DecisionError:
            tell(metrics.refused())
            raise

    def check_policy(self, said: Sequence[Json]) -> None:
        """Check a change of policy as `check` does a decision."""
        try:
            parse_policy(only(said))
        except DecisionError:
            tell(metrics.refused())
            raise

    def judge(self, raw: Json, kind: Kind | None = None) -> JudgedDecision:
        """Whether a decision can be followed; changes nothing. Raises `DecisionError`."""
        decision: Decision = parse_decision(raw, kind)
        return self.desk.judge(decision)

    def decide(self, raw: Json, kind: Kind | None = None) -> JsonObject:
        """Follow a decision; `{"call", "decision"}`. Raises `DecisionError`, and then nothing has changed."""
        judged = self.judge(raw, kind)
        if judged.decision.remember:
            self.desk.guard.by_provenance = follows(self.rules, REMEMBER_PROVENANCE)
        self._verdict_of(judged.offer).set_result(self.desk.apply(judged))
        if judged.decision.remember:
            self._release()
        return {"call": judged.offer.id, "decision": judged.decision.decision}

    async def counted(self, raw: Json, update_id: str = "") -> Json:
        """The decision, once it is known that it came after the last reset. Raises `DecisionError` where it came before.

        What a client has carried out is its result after a reset, too: it would be carried out twice.
        """
        call = raw.get("call") if isinstance(raw, dict) else None
        offer = self.desk.waiting.get(call) if isinstance(call, str) else None
        if offer is None or not _is_with_client(offer):
            await self.resets.check(update_id)
        return raw

    async def note(self, said: Sequence[Json], kind: Kind | None = None) -> None:
        """Follow a decision that came by signal: nobody waits for an answer, so a refusal is kept for `show`."""
        try:
            self.decide(await self.counted(only(said)), kind)
        except DecisionError as error:
            self.refuse(said, error)

    async def decide_now(self, said: Sequence[Json], update_id: str) -> JsonObject:
        """Follow a decision that came by update. Raises `DecisionError`; where it came before a reset, nobody may wait for it any more."""
        try:
            raw = await self.counted(only(said), update_id)
        except DecisionError as error:
            self.refuse(said, error)
            raise
        return self.decide(raw)

    def change_policy(self, change: Policy) -> JsonObject:
        """Change the run's policy, and judge anew what waits (R7.7); the policy as it stands then."""
        before = self.desk.guard.policy.timeout
        self.desk.change_policy(change)
        self.children.tell(change.as_change())
        self._release()
        if self.desk.guard.policy.timeout != before:
            told, self._timeout_changed = self._timeout_changed, asyncio.get_running_loop().create_future()
            told.set_result(None)
        policy: JsonObject = self.desk.guard.policy.model_dump(mode="json")
        return policy

    async def counted_policy(self, raw: Json, update_id: str = "") -> Policy:
        """The change of policy, as `counted`; one that asks about more counts in any case, and at once."""
        change = parse_policy(raw)
        if not self.desk.guard.only_tightens(change):
            await self.resets.check(update_id)
        return change

    async def change_policy_now(self, said: Sequence[Json], update_id: str) -> JsonObject:
        """Change it by update, as `decide_now`."""
        try:
            change = await self.counted_policy(only(said), update_id)
        except DecisionError as error:
            self.refuse(said, error)
            raise
        return self.change_policy(change)

    async def note_policy(self, said: Sequence[Json]) -> None:
        """Change the policy by signal."""
        try:
            self.change_policy(await self.counted_policy(only(said)))
        except DecisionError as error:
            self.refuse(said, error)

    def refuse(self, said: Sequence[Json], error: DecisionError) -> None:
        """Keep for `show` what changed nothing, and why."""
        tell(metrics.refused())
        shown = said[0] if len(said) == 1 else list(said)
        self.desk.refuse(shown, str(error), workflow.now().isoformat(timespec="seconds"))

    def show(self, agent: str) -> None:
        """Keep up to date what visibility tells of the run, so that lists ask no run (R7.8).

        The memo also where nothing lists it: where a task had no commands, the SDK's core replays it together with the next one, and hands
        out an update before what the task had taken in (sdk-rust #1606): a decision would be refused because nothing waits yet.
        """
        known = {entry.call: entry for entry in self._listed[1]}
        waiting = [offer for offer in self.desk.waiting.values() if offer.id not in self._with_program]
        if any(map(_is_with_client, waiting)) and follows(self.rules, CLIENT_CALLS_UNLISTED):
            waiting = [offer for offer in waiting if not _is_with_client(offer)]  # no person is asked
        oldest = islice(waiting, WAITING_NAMED)
        listed = (len(waiting), [known.get(offer.id) or waiting_entry(offer) for offer in oldest])
        if listed == self._listed:
            return
        before, self._listed = self._listed[0], listed
        count, calls = listed
        if bool(before) != bool(count):
            self.on_waiting(bool(count))
        if self.searchable and may_list("waiting"):
            workflow.upsert_search_attributes([_WAITING.value_set(count)])
        memo = WaitingMemo(agent=agent, calls=calls).as_json() if calls else None
        workflow.upsert_memo({WAITING_MEMO: memo})

    def _ask_again(self) -> None:
        """The run was reset: what waits is asked once more, and whoever looks is told."""
        self.notes.was_reset()
        tell(metrics.run_reset())
        if not self.resets.counted:
            return
        for offer in self.desk.waiting.values():
            if not _is_with_client(offer):
                offer.renew(workflow.now().isoformat(timespec="milliseconds"))
                self.notes.waits(offer)
        self._listed = (self._listed[0], [])
        self.report()

    def _release(self) -> None:
        for offer in self.desk.released():
            self._verdict_of(offer).set_result(ApprovalVerdict())


def _is_with_client(offer: ApprovalRequest) -> bool:
    return offer.call is not None and is_with_client(offer.call)


class DecisionHandlers:
    """The handlers of a workflow in which people decide. They take whatever anybody sends, and judge it themselves (R18.6)."""

    def __init__(self) -> None:
        super().__init__()
        self._people = RunApprovals()

    @workflow.signal(name="approve", unfinished_policy=LEFT, description='Let a call that waits run: {"call": "1.0"}')
    async def approve(self, *said: Any) -> None:
        """`{"call": "1.0"}`, and if wanted `by`, `remember`, `digest` (R7.2). What cannot be followed shows in `show`."""
        await self._people.note(said, "approve")

    @workflow.signal(
        name="reject",
        unfinished_policy=LEFT,
        description='Do not let it run: {"call": "1.0", "reason": "still needed"}',
    )
    async def reject(self, *said: Any) -> None:
        """`{"call": "1.0", "reason": "still needed"}`."""
        await self._people.note(said, "reject")

    @workflow.signal(
        name="edit", unfinished_policy=LEFT, description='Run it with other parameters: {"call": "1.0", "params": {}}'
    )
    async def edit(self, *said: Any) -> None:
        """`{"call": "1.0", "params": {…}}`; of a plan `{"call": "1", "calls": […]}`."""
        await self._people.note(said, "edit")

    @workflow.signal(
        name="replace",
        unfinished_policy=LEFT,
        description='Run another call in its place: {"call": "1.0", "with": {"_tool": "name"}}',
    )
    async def replace(self, *said: Any) -> None:
        """`{"call": "1.0", "with": {"_tool": …}}`."""
        await self._people.note(said, "replace")

    @workflow.signal(
        name="answer", unfinished_policy=LEFT, description='Answer a question: {"call": "1.0", "answer": "yes"}'
    )
    async def answer(self, *said: Any) -> None:
        """`{"call": "1.0", "answer": …}`: the result of a call of `ask_person`."""
        await self._people.note(said, "answer")

    @workflow.signal(
        name=DECIDE, unfinished_policy=LEFT, description='Any decision: {"call": "1.0", "decision": "approve"}'
    )
    async def decide(self, *said: Any) -> None:
        """Any of them: `{"call": "1.0", "decision": "approve"}`."""
        await self._people.note(said)

    @workflow.update(name=DECIDE, unfinished_policy=LEFT)
    async def decide_now(self, *said: Any) -> dict[str, Any]:
        """Decide by update; return `{"call", "decision"}`, or the reason why nothing changed (R7.3)."""
        return await self._people.decide_now(said, _update_id())

    @decide_now.validator
    def _check_decision(self, *said: Any) -> None:
        self._people.check(said)

    @workflow.signal(
        name=POLICY, unfinished_policy=LEFT, description='What is asked about from now on: {"ask": "unsafe"}'
    )
    async def change_policy(self, *said: Any) -> None:
        """The keys of `config.approval` that are to differ from now on: `{"ask": "unsafe"}` (R7.7)."""
        await self._people.note_policy(said)

    @workflow.update(name=POLICY, unfinished_policy=LEFT)
    async def change_policy_now(self, *said: Any) -> dict[str, Any]:
        """Change the policy by update; return the policy as it stands then, or the problem."""
        return await self._people.change_policy_now(said, _update_id())

    @change_policy_now.validator
    def _check_policy(self, *said: Any) -> None:
        self._people.check_policy(said)


def _update_id() -> str:
    update = workflow.current_update_info()
    return "" if update is None else update.id
