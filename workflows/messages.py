"""Messages to a running run: by signal, and withdrawn by update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from temporalio import workflow

from perdure.workflows.arguments import only

with workflow.unsafe.imports_passed_through():
    from perdure.approvals.requests import STEER, WITHDRAW
    from perdure.errors import DecisionError
    from perdure.runs import context
    from perdure.runs.records import RunProgress
    from perdure.runs.run import Run
    from perdure.values.json import Json, JsonObject


Refuse = Callable[[Sequence[Json], DecisionError], None]


class Mailbox:
    """The messages of one run, from its workflow's first task on."""

    def __init__(self) -> None:
        self._run: Run | None = None
        self._early: list[tuple[Any, ...]] = []
        self._refuse: Refuse
        self._steer: Callable[[], None]
        self._came = 0.0
        """Time of the last message, by `workflow.time`."""
        self._revised: float | None = None
        """Time when the run last went on with new messages; `None` if it never has."""

    def open(self, run: Run, refuse: Refuse, steer: Callable[[], None]) -> None:
        """Open the mailbox of a run. `refuse` keeps invalid messages; `steer` ends the running Request."""
        self._run, self._refuse, self._steer = run, refuse, steer
        for said in self._early:
            self.take(said)

    def take(self, said: tuple[Any, ...]) -> None:
        """Accept a message. It ends the running Request, unless that is the last: nothing would follow it."""
        if self._run is None:
            self._early.append(said)
            return
        try:
            message = context.accept(self._run.progress, only(said))
            if message is None:
                return
            self._run.notes.heard(message)
        except DecisionError as error:
            self._refuse(said, error)
            return
        self._came = workflow.time()
        if self._run.limit is None:
            self._steer()

    async def lull(self) -> None:
        """Wait for messages that closely follow one that has ended an answer, so that one Request holds them all."""
        assert self._run is not None
        now = workflow.time()
        before, self._revised = self._revised, now if self._run.progress.inbox else None
        if before is None or now - before > context.QUIET:
            return
        while (left := min(self._came + context.QUIET, now + context.LONGEST_QUIET) - workflow.time()) > 0:
            await workflow.sleep(left, summary="more messages may come")
        self._revised = workflow.time()

    def withdraw(self, id: Json) -> JsonObject:
        """Withdraw a message. Raise `DecisionError`."""
        taken = context.withdraw(self.progress, id)
        if self._run is not None:
            self._run.notes.withdrawn(str(taken["id"]))
        return taken

    @property
    def progress(self) -> RunProgress:
        """The run's progress. Raises `DecisionError` before there is a run."""
        if self._run is None:
            raise DecisionError("the run has not started yet")
        return self._run.progress


class MessageHandlers:
    """The handlers of a workflow that accepts messages while it works. They accept whatever anybody sends (R18.6)."""

    def __init__(self) -> None:
        super().__init__()
        self._mail = Mailbox()

    @workflow.signal(name=STEER, description='A new message for the run while it works: {"id": "m1", "text": "…"}')
    def steer(self, *said: Any) -> None:
        """Accept `{"id", "text", "sender"?, "at"?}` (R10.5). `show` prints invalid ones."""
        self._mail.take(said)

    @workflow.update(name=WITHDRAW)
    def withdraw(self, *said: Any) -> dict[str, Any]:
        """Withdraw the message of this id; return `{"id", "withdrawn": true}`, or the reason why it cannot be withdrawn
        (R10.7).
        """
        return self._mail.withdraw(only(said))

    @withdraw.validator
    def _check_withdrawal(self, *said: Any) -> None:
        context.check_withdrawal(self._mail.progress, only(said))
