"""The ledger of a tenant: one workflow that grants the reservations of runs in their order, and keeps standing
approvals.
"""

from __future__ import annotations

import asyncio

from pydantic import ValidationError
from temporalio import workflow

from perdure.workflows.arguments import any_arguments, query_arguments, read_input, read_one, single_argument
from perdure.workflows.audit import send_entries
from perdure.workflows.continue_as_new import should_continue_as_new, wait_uncancelled

with workflow.unsafe.imports_passed_through():
    from perdure.errors import DecisionError, PerdureError
    from perdure.runs.audit import ALL_CHANGES_AUDITED_PATCH, AUDIT_PATCH, AuditBatch, AuditEntry, entry, standing_data
    from perdure.runs.ledger import (
        ACCOUNTS_QUERY,
        LEDGER_WORKFLOW,
        RESERVE,
        AccountView,
        Ledger,
        LedgerInput,
        Reservation,
        ReservationAnswer,
    )
    from perdure.runs.standing_approvals import (
        GRANT,
        REVOKE,
        STANDING_QUERY,
        USE,
        StandingAnswer,
        StandingApproval,
        StandingBook,
        StandingRevocation,
        StandingUse,
        parse_standing_approval,
    )
    from perdure.runs.wire import REWRITE
    from perdure.values.json import Json, Sent
    from perdure.values.limits import MAX_PAYLOAD


@workflow.defn(name=LEDGER_WORKFLOW, failure_exception_types=[PerdureError, ValidationError])
class LedgerWorkflow:
    """The accounts of one tenant. It runs on, and continues as new when Temporal suggests it."""

    @workflow.init
    def __init__(self, *arguments: Json) -> None:
        self._refusal: Exception | None = None
        self._tenant, self._ledger, self._standing = "", Ledger(), StandingBook()
        self._changes: list[AuditEntry] = []
        """Grants and revocations that the audit log does not have yet."""
        self._rewrites = False
        try:
            argument = read_input(LedgerInput, arguments)
            self._tenant, self._ledger = argument.tenant, Ledger(argument.accounts)
            self._standing = StandingBook(argument.standing)
        except Exception as error:  # `run` raises it: a handler may be called before
            self._refusal = error

    @workflow.run
    async def run(self, *_: Json) -> None:
        """Grant reservations until this execution's history is long, and continue as new."""
        if self._refusal is not None:
            raise self._refusal
        while self._has_unsent_changes() or not self._is_due():
            await wait_uncancelled(lambda: bool(self._changes) or self._is_due())
            auditing = asyncio.create_task(self._audit())  # a cancellation reaches this task alone, and not that one
            await wait_uncancelled(auditing.done)
            auditing.result()
        await wait_uncancelled(workflow.all_handlers_finished)
        workflow.continue_as_new(self._carried())

    def _has_unsent_changes(self) -> bool:
        return bool(self._changes) and workflow.patched(ALL_CHANGES_AUDITED_PATCH)

    def _carried(self) -> LedgerInput:
        return LedgerInput(tenant=self._tenant, accounts=self._ledger.accounts, standing=self._standing.records)

    def _is_due(self) -> bool:
        """Whether to continue as new: with a state that a new execution can begin with."""
        return (self._rewrites or should_continue_as_new()) and (
            len(self._carried().model_dump_json().encode()) <= MAX_PAYLOAD
        )

    @workflow.signal(name=REWRITE, description="Continue as new, to encrypt all values with the newest key")
    @any_arguments
    def rewrite(self, _: Sent[None]) -> None:
        """Continue as new."""
        self._rewrites = True

    @workflow.update(name=RESERVE, description="Internal: reserve amounts under a key, all or none")
    @any_arguments
    async def reserve(self, reservation: Sent[Reservation]) -> ReservationAnswer:
        """Grant the amounts, or return the reason for a refusal. The same key counts once."""
        wanted = read_one(Reservation, reservation)
        if wanted is None:
            return ReservationAnswer(refused="the input is not a reservation")
        return self._ledger.reserve(wanted, self._today)

    @workflow.query(name=ACCOUNTS_QUERY, description="The accounts, with their use of today or this month")
    @query_arguments
    def accounts(self, today: str = "") -> list[AccountView]:
        """Return the accounts in their present periods. `today`: the day in UTC, where the last reservation was on an earlier one."""
        return self._ledger.views(max(today, self._today))

    @workflow.update(name=GRANT, description="Store a standing approval of a procedure's coming runs")
    @any_arguments
    def grant(self, approval: Sent[StandingApproval]) -> StandingAnswer:
        """Keep a standing approval, or return the reason for a refusal."""
        try:
            wanted = parse_standing_approval(single_argument(approval))
        except DecisionError as error:
            return StandingAnswer(refused=str(error))
        return self._noted("granted", wanted.by, self._standing.grant(wanted, self._now))

    @workflow.update(name=REVOKE, description="Revoke a standing approval")
    @any_arguments
    def revoke(self, revocation: Sent[StandingRevocation]) -> StandingAnswer:
        """Revoke a standing approval. Calls that begin from now on wait for a person."""
        wanted = read_one(StandingRevocation, revocation)
        if wanted is None:
            return StandingAnswer(refused='expected an object such as {"name": "monthly", "by": "ann"}')
        return self._noted("revoked", wanted.by, self._standing.revoke(wanted, self._now))

    @workflow.update(name=USE, description="Internal: use a standing approval in a run")
    @any_arguments
    async def use(self, use: Sent[StandingUse]) -> StandingAnswer:
        """Count a run under a standing approval, or return the reason why it does not apply. The same run counts once."""
        wanted = read_one(StandingUse, use)
        if wanted is None:
            return StandingAnswer(refused="the input is not a use of a standing approval")
        return self._standing.use(wanted, self._now)

    @workflow.query(name=STANDING_QUERY, description="The standing approvals, with their uses")
    @query_arguments
    def standing(self, now: str = "") -> list[StandingApproval]:
        """Return the standing approvals, the newest first. `now`: the time in UTC, where the last update came earlier."""
        return self._standing.views(max(now, self._now))

    def _noted(self, change: str, by: str, answer: StandingAnswer) -> StandingAnswer:
        """Record a change of a standing approval for the audit log."""
        if answer.approval is not None:
            at = workflow.now().isoformat(timespec="milliseconds")
            key = f"{workflow.info().workflow_id}/{workflow.uuid4()}"
            found = entry("standing_approval", at, key, standing_data(change, by, answer.approval))
            self._changes.append(found.model_copy(update={"tenant": self._tenant}))
        return answer

    async def _audit(self) -> None:
        """Send the recorded changes to the audit log, where the worker has one."""
        entries, self._changes = self._changes, []
        if entries and workflow.patched(AUDIT_PATCH):
            await send_entries(AuditBatch(entries=entries))

    @property
    def _now(self) -> str:
        return workflow.now().isoformat(timespec="seconds")

    @property
    def _today(self) -> str:
        return workflow.now().date().isoformat()
