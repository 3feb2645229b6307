"""Reservations in the tenant's ledger: of one call under a rule, and of a run's Requests under shared budgets."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

from perdure.workflows.failures import message_of
from perdure.workflows.internal_activities import execute_internal

with workflow.unsafe.imports_passed_through():
    from perdure.models.usage import RunUsage
    from perdure.plan import Call
    from perdure.runs.ledger import RESERVE_ACTIVITY, Reservation, ReservationAnswer, ReserveInput, Settlement
    from perdure.runs.limits import Limit
    from perdure.runs.run import RunState
    from perdure.runs.shared_budgets import accounts_of, amounts_of, settlements_of
    from perdure.runs.version_switches import UNUSED_GIVEN_BACK
    from perdure.runs.views import summary as line

_RESERVE_ATTEMPTS: Final = 9
"""Attempts of a reservation: the ledger may be unavailable for about five minutes."""
_SETTLE_ATTEMPTS: Final = 3
"""Attempts of a settlement: an unavailable ledger delays a run's end for half a minute at most."""


async def reserve(
    tenant: str, wanted: Reservation, summary: str, attempts: int = _RESERVE_ATTEMPTS
) -> ReservationAnswer:
    """Reserve amounts in the ledger of a tenant. Raise `ActivityError` where it does not answer in so many attempts."""
    answer: ReservationAnswer = await execute_internal(
        RESERVE_ACTIVITY,
        [ReserveInput(tenant=tenant, reservation=wanted)],
        ReservationAnswer,
        timeout=timedelta(seconds=30),
        retry_policy=RetryPolicy(maximum_attempts=attempts),
        summary=line(summary),
    )
    return answer


class RequestShares:
    """The shares of a run's Requests in budgets of its tenant, sender and agent (R24.8)."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._tenant = run.identity.owner.tenant
        self._accounts = accounts_of(run.shared_budgets, run.identity.owner, run.lineage[0])
        self.refused = ""
        """The reason why the next Request cannot be made; empty if it can."""

    async def reserve(self, model: str) -> None:
        """Reserve the share of the next Request to this model, and settle the previous one. Limit the run if a budget
        is spent.
        """
        run, number = self._run, self._run.progress.number
        if not self._accounts or (run.fork is not None and run.fork.answer(number) is not None):
            return
        amounts = amounts_of(self._accounts, model, run.progress.expected, run.prepared.prices)
        if isinstance(amounts, str):
            self._limit(amounts, "dollars", refused=True)
            return
        reported = self._take_reported()
        wanted = Reservation(key=self._key(number), amounts=amounts, settled=self._settled(reported))
        try:
            answer = await reserve(self._tenant, wanted, f"the share of Request {number} in shared budgets")
        except ActivityError as error:
            run.progress.unsettled.include(reported)
            if is_cancelled_exception(error):
                raise
            self.refused = f"the tenant's ledger does not answer: {message_of(error)}"
            return
        run.progress.reserved = 0 if answer.refused else number
        if answer.refused or answer.last:
            self._limit(answer.refused or answer.last, answer.unit, refused=bool(answer.refused))

    async def settle(self) -> None:
        """Settle the last Request at any end of the run. Without an answer its share stays reserved."""
        reported = self._take_reported()
        if settled := self._settled(reported):
            wanted = Reservation(key=self._key(self._run.progress.reserved), amounts=[], settled=settled)
            try:
                await reserve(
                    self._tenant, wanted, "what the last Request has used of shared budgets", _SETTLE_ATTEMPTS
                )
            except ActivityError:
                self._run.progress.unsettled.include(reported)
                return
            self._run.progress.reserved = 0

    def _take_reported(self) -> RunUsage:
        """Return the usage that calls have reported since the last settlement. Before the run's first reservation it stays
        for the settlement of that one.
        """
        progress = self._run.progress
        if not progress.reserved:
            return RunUsage()
        reported, progress.unsettled = progress.unsettled, RunUsage()
        return reported

    def _settled(self, reported: RunUsage) -> list[Settlement]:
        number, log = self._run.progress.reserved, self._run.records.past.log
        if not number:
            return []
        request = next((view for view in reversed(log) if view.number == number), None)
        return settlements_of(self._accounts, self._key(number), request, reported)

    def _limit(self, words: str, unit: str, *, refused: bool) -> None:
        limits = self._run.limits
        self.refused = words if refused else ""
        limits.reached = limits.reached or Limit("cost_budget" if unit == "dollars" else "token_budget", words)

    def _key(self, number: int) -> str:
        return f"{workflow.info().workflow_id}/{number}"


class CallReservations:
    """Reservations of one execution's calls in sums over runs. A call that never begins returns its reservation
    (R23.1).
    """

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._tenant = run.identity.owner.tenant
        self._reserved: dict[str, Reservation] = {}
        """The first reservation of each call, until the call begins."""
        self._unused: list[Settlement] = []
        self._sending: asyncio.Task[None] | None = None

    async def reserve(self, call: Call, wanted: Reservation) -> ReservationAnswer:
        """Reserve the amounts that a call needs. Raise `ActivityError` where the ledger does not answer in time."""
        if self._sending is None and self._run.prepared.follows(UNUSED_GIVEN_BACK):
            self._sending = asyncio.create_task(self._send())
        self._reserved[call.id] = wanted
        answer = await reserve(self._tenant, wanted, f"what {call.id} {call.spec.tool_name} uses of the tenant's")
        if answer.refused or answer.held:
            del self._reserved[call.id]
        return answer

    def note_begun(self, call: Call) -> None:
        """Keep the call's reservation: it is scheduled now."""
        self._reserved.pop(call.id, None)

    def note_ended(self, call: Call) -> None:
        """Return the reservation of a call that has ended without having begun."""
        if (reserved := self._reserved.pop(call.id, None)) is not None and self._sending is not None:
            self._unused += [Settlement(key=reserved.key, account=each.account, amount=0) for each in reserved.amounts]

    async def settle(self) -> None:
        """Wait until unused reservations are returned. Without an answer they stay reserved."""
        if self._unused:  # otherwise do not yield to the event loop, which may change the order of commands
            await workflow.wait_condition(lambda: not self._unused or self._sending is None or self._sending.done())

    async def _send(self) -> None:
        while True:
            await workflow.wait_condition(lambda: bool(self._unused))
            settled = list(self._unused)
            wanted = Reservation(key=settled[0].key, amounts=[], settled=settled)
            try:
                await reserve(
                    self._tenant,
                    wanted,
                    "what calls that did not begin have reserved of the tenant's",
                    _SETTLE_ATTEMPTS,
                )
            except ActivityError as error:
                if is_cancelled_exception(error):
                    raise
            del self._unused[: len(settled)]
