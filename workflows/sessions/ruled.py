"""What is had of a session by those with the right to it: a decision on what its run waits for, a compaction (R10.9, R10.11)."""

from __future__ import annotations

from typing import Any

from temporalio import workflow

from perdure.workflows.sessions.asked import Asked
from perdure.workflows.sessions.reading import now, read
from perdure.workflows.sessions.runs import say

with workflow.unsafe.imports_passed_through():
    from perdure.errors import MessageRefusedError
    from perdure.run.wire import DECIDE
    from perdure.sessions.entries import CommandEntry
    from perdure.sessions.lanes.rights import check_right
    from perdure.sessions.wire import COMPACT, DECIDE_IN_SESSION, Ending, Saying, SessionDecision


class Ruled(Asked):
    """A session's updates that change what it does, and no message."""

    def __init__(self) -> None:
        super().__init__()
        self._happened = 0
        """Counts what came in, for whoever waits for anything to."""

    @workflow.update(name=DECIDE_IN_SESSION, description="A decision on a call of the run under way")
    async def decide(self, *said: Any) -> dict[str, Any]:
        """A `SessionDecision`, by whoever has the right `approve`; the run's own answer, or why it refuses (R10.9)."""
        self._happened += 1
        kept, asked = self._open(), read(SessionDecision, said)
        running = kept.lane.state.running
        if running is None:
            raise MessageRefusedError("nothing runs that waits for a decision")
        decision = {**asked.decision, "by": asked.sender}
        answered = await say(Saying(run_id=kept.lane.run_id(running.number), update=DECIDE, argument=decision))
        if answered.refused is not None:
            raise MessageRefusedError(answered.refused)
        answer: dict[str, Any] = answered.answer
        return answer

    @decide.validator
    def _check_decision(self, *said: Any) -> None:
        kept, asked = self._open(), read(SessionDecision, said)
        check_right(asked.sender, asked.rights, "approve", "decide here")
        if kept.lane.state.running is None or not kept.lane.state.running.begun:
            raise MessageRefusedError("nothing runs that waits for a decision")

    @workflow.update(name=COMPACT, description='Compact the conversation: {"sender": "ann", "rights": ["compact"]}')
    async def compact(self, *said: Any) -> dict[str, Any]:
        """An `Ending`: what is older than the newest part is told in short from now on (R10.11). What was done, in words."""
        self._happened += 1  # it is not to go on as new meanwhile
        kept, asked = self._open(), read(Ending, said)
        words = await self.tend(kept.models, "asked")
        kept.transcript.append(CommandEntry(at=now(), command="compact", sender=asked.sender, text=words or ""))
        self._happened += 1
        return {"compacted": words}

    @compact.validator
    def _check_compact(self, *said: Any) -> None:
        self._open()
        asked = read(Ending, said)
        check_right(asked.sender, asked.rights, "compact", "compact the session")
