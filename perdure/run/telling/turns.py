"""What the model has been told of the running plan: the results of its calls, and its own turns with what became of them (R6.6)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from perdure.model.beside import server_of
from perdure.model.wire import RequestResult, RequestView
from perdure.plan.calls import Call
from perdure.plan.plan import Plan
from perdure.run.feedback import complete_turns, results_of, turn_message
from perdure.run.past.wire import Progress
from perdure.run.prompts import Revision
from perdure.run.reading import Reading
from perdure.run.telling import inbox
from perdure.tools.engine import keep_tool
from perdure.tools.tool import Tool
from perdure.values.jsons import JsonObject
from perdure.values.limits.sizes import Sizes


class Telling:
    """Of one run, whose dialect shows the model its turns or does not (`turns`); `given` are ids of calls in the history it was given."""

    def __init__(self, sizes: Sizes, reading: Reading, given: Iterable[str], *, turns: bool) -> None:
        self._sizes, self._reading, self._given, self._turns = sizes, reading, given, turns
        self._told: set[str] = set()
        self._turned = -1
        self._asked = -1
        self._since = 0  # how many messages were told before the running Request
        self._keep: Tool | None = None

    def begin(self, number: int, progress: Progress, plan: Plan | None, tools: Container[str]) -> Revision | None:
        """Request `number` holds all messages that have come; what it is told of the plan that goes on under it (R10.5)."""
        if self._asked != number:
            self._asked, self._since = number, len(progress.messages)
        inbox.hold(progress)
        self._keep = keep_tool(tools) if plan is not None and plan.keeping.held else None
        if plan is None:
            return None
        entries = [call.as_plan_entry() for call in plan.calls]
        pressed = [call.id for call in plan.keeping.held if call.pressed]
        return Revision(entries, self._since, None if self._keep is None else self._keep.name, pressed)

    def tools(self, tools: Mapping[str, Tool]) -> dict[str, Tool]:
        """Those of the run, with that by which the running Request keeps what is held."""
        return {**tools, **({} if self._keep is None else {self._keep.name: self._keep})}

    def fresh(self, plan: Plan) -> list[Call]:
        """The calls that have ended since the model was told last. They count as told."""
        found = [call for call in plan.calls if call.ended and call.id not in self._told]
        self._told.update(call.id for call in found)
        return found

    def plan_is_over(self) -> None:
        """Another plan follows, with calls of its own."""
        self._told.clear()

    def keep_results(self, progress: Progress, calls: Iterable[Call]) -> None:
        """What went to no path, where no turn holds it (R4.4)."""
        if not self._turns and (found := results_of(calls, self._sizes, self._reading)):
            progress.results |= found
            progress.messages.append({"type": "results", "calls": list(found)})

    def note_plan(self, progress: Progress, plan: Plan) -> None:
        """The plan as it stands, for a model that is not shown its turns (R2.5)."""
        if self._turns:
            progress.plan_message = None
        elif plan.calls:
            progress.plan_message = {"type": "plan", "plan": [call.as_plan_entry() for call in plan.calls]}

    def turn(
        self, progress: Progress, plan: Plan, fresh: list[Call], result: RequestResult, log: list[RequestView]
    ) -> list[JsonObject]:
        """The Request's turn, once; results of calls that an earlier one made are put there."""
        if not self._turns:
            return []
        complete_turns(progress.messages, fresh, self._sizes, self._reading)
        if plan.request == self._turned:
            return []
        self._turned = plan.request
        server = server_of(log[-1].model) if log else ""
        turn = turn_message(plan.own, result, progress.messages, self._sizes, self._reading, server, self._given)
        return [turn] if turn else []
