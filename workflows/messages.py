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
        """When the last one came, as `workflow.time` has it."""
        self._revised: float | None = None
        """When the run went on last with messages that had come; `None`: with none."""

    def open(self, run: Run, refuse: Refuse, steer: Callable[[], None]) -> None:
        """The run is made. `refuse` keeps what is no message; `steer` ends the running Request."""
        self._run, self._refuse, self._steer = run, refuse, steer
        for said in self._early:
            self.take(said)

    def take(self, said: tuple[Any, ...]) -> None:
        """Accept a message; the running Request ends, unless it is the last: nothing would come after it."""
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
        """Messages that come close upon one that has ended an answer are told together: no Request is asked for each."""
        assert self._run is not None
        now = workflow.time()
        before, self._revised = self._revised, now if self._run.progress.inbox else None
        if before is None or now - before > context.QUIET:
            return
        while (left := min(self._came + context.QUIET, now + context.LONGEST_QUIET) - workflow.time()) > 0:
            await workflow.sleep(left, summary="more messages may come")
        self._revised = workflow.time()

    def withdraw(self, id: Json) -> JsonObject:
        """Take the message back. Raises `DecisionError`."""
        taken = context.withdraw(self.progress, id)
        if self._run is not None:
            self._run.notes.withdrawn(str(taken["id"]))
        return taken

    @property
    def progress(self) -> RunProgress:
        """Of the run. Raises `DecisionError` before there is one."""
        if self._run is None:
            raise DecisionError("the run has not started yet")
        return self._run.progress


class MessageHandlers:
    """The handlers of a workflow that takes messages while it works. They take whatever anybody sends (R18.6)."""

    def __init__(self) -> None:
        super().__init__()
        self._mail = Mailbox()

    @workflow.signal(name=STEER, description='A new message for the run while it works: {"id": "m1", "text": "…"}')
    def steer(self, *said: Any) -> None:
        """`{"id", "text", "sender"?, "at"?}` (R10.5). What is none is kept where `show` finds it."""
        self._mail.take(said)

    @workflow.update(name=WITHDRAW)
    def withdraw(self, *said: Any) -> dict[str, Any]:
        """Take back the message of this id: `{"id", "withdrawn": true}`, or why that cannot be (R10.7)."""
        return self._mail.withdraw(only(said))

    @withdraw.validator
    def _check_withdrawal(self, *said: Any) -> None:
        context.check_withdrawal(self._mail.progress, only(said))
