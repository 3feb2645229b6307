"""The ledger of a tenant: one workflow that grants what runs reserve, in the order in which they ask."""

from __future__ import annotations

from pydantic import ValidationError
from temporalio import workflow

from perdure.workflows.arguments import any_arguments, query_arguments, read_input, read_one
from perdure.workflows.preparation import should_continue_as_new

with workflow.unsafe.imports_passed_through():
    from perdure.errors import PerdureError
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
    from perdure.values.json import Json, Sent


@workflow.defn(name=LEDGER_WORKFLOW, failure_exception_types=[PerdureError, ValidationError])
class LedgerWorkflow:
    """The accounts of one tenant. It runs on, and continues as new when Temporal suggests it."""

    @workflow.init
    def __init__(self, *arguments: Json) -> None:
        self._refusal: Exception | None = None
        self._tenant, self._ledger = "", Ledger()
        try:
            argument = read_input(LedgerInput, arguments)
            self._tenant, self._ledger = argument.tenant, Ledger(argument.accounts)
        except Exception as error:  # `run` raises it: a handler may be called before
            self._refusal = error

    @workflow.run
    async def run(self, *_: Json) -> None:
        """Grant reservations until this execution's history is long, and continue as new."""
        if self._refusal is not None:
            raise self._refusal
        await workflow.wait_condition(should_continue_as_new)
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(LedgerInput(tenant=self._tenant, accounts=self._ledger.accounts))

    @workflow.update(name=RESERVE, description="The engine's own: reserve amounts under a key, all or none")
    @any_arguments
    async def reserve(self, reservation: Sent[Reservation]) -> ReservationAnswer:
        """Grant the amounts, or return why not. The same key counts once."""
        wanted = read_one(Reservation, reservation)
        if wanted is None:
            return ReservationAnswer(refused="this is no reservation")
        return self._ledger.reserve(wanted, self._today)

    @workflow.query(name=ACCOUNTS_QUERY, description="The accounts, with what is used of them today or this month")
    @query_arguments
    def accounts(self, today: str = "") -> list[AccountView]:
        """Return the accounts in their present periods. `today`: the day in UTC, where the last reservation was on an earlier one."""
        return self._ledger.views(max(today, self._today))

    @property
    def _today(self) -> str:
        return workflow.now().date().isoformat()
