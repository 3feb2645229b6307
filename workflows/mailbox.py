"""Messages to a running run: by signal, and withdrawn by update."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from temporalio import workflow

from perdure.workflows.arguments import single_argument
from perdure.workflows.calls import CallRunner

with workflow.unsafe.imports_passed_through():
    from perdure.errors import DecisionError
    from perdure.runs import context
    from perdure.runs.progress import RunProgress
    from perdure.runs.run import RunState
    from perdure.values.json import Json, JsonObject


Refuse = Callable[[Sequence[Json], DecisionError], None]


class Mailbox:
    """The messages of one run, from its workflow's first task on. `refuse` keeps invalid ones for `show`."""

    def __init__(self, refuse: Refuse) -> None:
        self._refuse = refuse
        self._run: RunState | None = None
        self._early: list[tuple[Json, ...]] = []
        self._came = 0.0
        """Time of the last message, by `workflow.time`."""
        self._revised: float | None = None
        """Time when the run last continued with new messages; `None` if it never has."""

    def open(self, run: RunState) -> None:
        """Open the mailbox of a run."""
        self._run = run
        for sent in self._early:
            self.take(sent, None)

    def take(self, sent: tuple[Json, ...], calls: CallRunner | None) -> None:
        """Accept `{"id", "text", "sender"?, "at"?}` (R10.5). It ends the running Request, which has these calls, unless
        no other Request can follow.
        """
        if self._run is None:
            self._early.append(sent)
            return
        try:
            message = context.accept(self._run.progress, single_argument(sent))
            if message is None:
                return
            self._run.note_requesters()
            self._run.note("message", single_argument(sent))
            self._run.journal.message_accepted(message)
        except DecisionError as error:
            self._refuse(sent, error)
            return
        self._came = workflow.time()
        if self._run.limits.reached is None and self._run.plan is not None and calls is not None:
            calls.steer()

    async def wait_for_messages(self) -> None:
        """Wait for messages that closely follow one that has ended an answer, so that one Request holds them all."""
        assert self._run is not None
        now = workflow.time()
        before, self._revised = self._revised, now if self._run.progress.inbox else None
        if before is None or now - before > context.QUIET:
            return
        while (left := min(self._came + context.QUIET, now + context.LONGEST_QUIET) - workflow.time()) > 0:
            await workflow.sleep(left, summary="more messages may come")
        self._revised = workflow.time()

    def check_withdrawal(self, sent: Sequence[Json]) -> None:
        """Raise `DecisionError` where no message of this id can be withdrawn."""
        context.check_withdrawal(self._progress, single_argument(sent))

    def withdraw(self, sent: Sequence[Json]) -> JsonObject:
        """Withdraw the message of this id; return `{"id", "withdrawn": true}` (R10.7). Raise `DecisionError`."""
        taken = context.withdraw(self._progress, single_argument(sent))
        if self._run is not None:
            self._run.note_requesters()
            self._run.note("withdrawn", single_argument(sent))
            self._run.journal.withdrawn(str(taken["id"]))
        return taken

    @property
    def _progress(self) -> RunProgress:
        """The run's progress. Raises `DecisionError` before there is a run."""
        if self._run is None:
            raise DecisionError("the run has not started yet")
        return self._run.progress
