"""The plan: calls as a data-flow graph, and which of them is ready (section 5).

A plain object that does no I/O. Calls arrive by `add`, in the order of the model's list; a driver takes what is ready,
carries it out, and reports each end. All rules of ordering, branching, skipping and writing are decided here.

    plan.add(call) …  plan.take_ready() → run them → plan.end(call, outcome) …  plan.close()  … until plan.settled

A call that arrived can become ready before the list is closed (R6.3): it binds to what stands before it. Only what nothing
before it offers waits for later calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from perdure.errors import CallError, clip
from perdure.plan import refusals
from perdure.plan.calls import Call, Status, find_branch
from perdure.plan.checks import TOO_MUCH, check_call
from perdure.plan.edges.bindings import Binding
from perdure.plan.edges.cycles import Edge
from perdure.plan.edges.wiring import Node, Wiring
from perdure.plan.explanations import missing_path, state_shape, unknown_branch
from perdure.plan.order import AFTER_ID
from perdure.plan.outcomes import Failed, Outcome, Rejected, Returned
from perdure.plan.readiness import judge
from perdure.plan.revisions import adopt, revise
from perdure.plan.slots import Slots
from perdure.plan.writing import write
from perdure.tools.tool import Tool
from perdure.values.instances import values_for
from perdure.values.jsons import Json, JsonObject
from perdure.values.limits import MAX_PAYLOAD
from perdure.values.limits.steps import Checks
from perdure.values.references import Path, Reference
from perdure.values.schemas import Schema
from perdure.values.state import State
from perdure.values.texts import Texts


class Plan:
    """The calls of one Request.

    `data` holds the value of each kind but `state` that references can name. Writes go to `state`, in the order in which
    the calls end. With `execution="step"` only calls that read nothing of this plan run; the rest is deferred (R5.10).
    `parallel` calls run at once, and with `step` so many at all (R5.12).
    `max_payload` is the bytes that one value may have.
    With `dry_run` results are unknown, so nothing is checked against them (R5.6).
    """

    def __init__(
        self,
        request: int,
        *,
        tools: Mapping[str, Tool],
        state: State,
        data: Mapping[str, Json] | None = None,
        state_schema: Schema | None = None,
        execution: Literal["drain", "step"] = "drain",
        max_calls: int = 500,
        parallel: int | None = None,
        dry_run: bool = False,
        instances: Collection[str] = (),
        max_payload: int = MAX_PAYLOAD,
    ) -> None:
        self.request = request
        self.calls: list[Call] = []
        self.done = 0
        """Calls that ended well."""
        self.closed = False
        self.drained = False  # closed to run to its end, whatever `execution` says
        self.state = state
        self.checks = Checks()
        """What its calls' schemas were found to say; who drives the plan tells it when a task begins."""
        self._max_payload = max_payload
        self._texts = Texts(max_payload, state.sizes, self.checks)
        self._tools = tools
        self._state_schema = state_schema
        self._step = execution == "step"
        self._slots = Slots(parallel, step=self._step)
        self.max_calls = max_calls
        self._uncounted = 0  # how many of the list are beyond the first surplus call, and not kept
        self._dry_run = dry_run
        self._instances = instances
        self._wiring = Wiring({**(data or {}), "state": state.snapshot()})
        self._named = 0  # references, output paths and calls that the calls name
        self._completion: dict[int, int] = {}
        self._running = 0
        self._ready: list[Call] = []
        self._to_settle: deque[Node] = deque()
        self._known: Mapping[str, Json] | None = None

    def add(self, raw: Json) -> Call:
        """The next call of the list. It is checked, bound, and ready at once if nothing holds it (R5.3, R6.6).

        Raises `ValueError` once the plan is closed: nobody would settle the call.
        """
        if self.closed:
            raise ValueError(f"the plan of Request {self.request} is closed")
        index = len(self.calls)
        call = self._checked(raw, f"{self.request}.{index}", index, self.checks)
        if index >= self.max_calls:
            refusals.refuse_surplus(call, self.max_calls)
        elif call.error is None or call.error.code != TOO_MUCH:
            self._named += refusals.names_in(raw) + (len(call.paths) if "_outputPath" not in call.raw else 0)
        self.calls.append(call)
        self._known = None
        node = self._wiring.add(call)
        if call.ended:
            self._completion[index] = len(self._completion)
        self._refuse_impossible(node)
        self._to_settle.extend([node, *self._wiring.rebind_open(call)])
        self._settle_all()
        return call

    def extend(self, raws: Sequence[Json]) -> None:
        """The next calls of the list. Of those beyond `max_calls` the first is kept, to say how many there were (R6.8)."""
        room = max(0, self.max_calls + 1 - len(self.calls))
        for raw in raws[:room]:
            self.add(raw)
        self._uncounted += max(0, len(raws) - room)

    def _checked(self, raw: Json, id: str, index: int, checks: Checks | None = None) -> Call:
        return check_call(
            raw,
            id=id,
            index=index,
            tools=self._tools,
            state_schema=self._state_schema,
            instances=self._instances,
            kinds=self._wiring.base.keys(),
            checks=checks,
            too_much=refusals.too_many_names(raw, self._named, self.max_calls),
        )

    def close(self, *, drain: bool = False) -> None:
        """No call will arrive any more. `drain` runs what `execution="step"` would defer: nobody will ask again (R6.4)."""
        self.closed, self.drained = True, drain
        if len(self.calls) > self.max_calls:
            refusals.refuse_surplus(self.calls[self.max_calls], self.max_calls, len(self.calls) + self._uncounted)
        if drain:
            self._step = False
            self._slots.drain()
        for node in self._wiring.close():
            self._refuse_impossible(node)
        self._refuse_cycles(first=True)
        for node in self._wiring.nodes:
            if self._step and node.call.status == "pending" and node.wired:
                self._end_without_result(
                    node.call, "deferred", reason="step mode: it reads what another call of this plan writes"
                )
        self._to_settle.extend(self._wiring.nodes)
        self.go_on()

    @property
    def held_back(self) -> bool:
        """Whether calls may be ready, and are looked at in the next task: those before them took this one's time (R18.5)."""
        return bool(self._to_settle)

    def go_on(self) -> None:
        """Look at what was held back."""
        self._settle_all()
        for call in self._slots.surplus(self._ready) if self.closed and not self.held_back else ():
            self._ready.remove(call)
            self._end_without_result(call, "deferred", reason="step mode: other calls of this plan go first")
        self._settle_all()

    def take_ready(self, time: str = "") -> list[Call]:
        """The calls that are ready and have room beside what runs, now running, with their parameters resolved."""
        if self._slots.by_list and not self.closed and any(node.open for node in self._wiring.nodes):
            return []  # which calls are the first of the list shows at its end
        taken = self._slots.take_from(self._ready)
        self._running += len(taken)
        for call in taken:
            call.status, call.started = "running", time
        return taken

    def end(self, call: Call, outcome: Outcome, time: str = "") -> None:
        """A running call ended. Its writes are made, and what waited for it may become ready (R4.3, R5.4)."""
        call.ended_at = time
        self._running -= 1
        self._slots.give_back(call)
        if isinstance(outcome, Rejected):
            call.status, call.reason = "rejected", outcome.reason
            error = None
        else:
            error = outcome.error if isinstance(outcome, Failed) else self._end_returned(call, outcome, time)
        if error is not None:
            call.status, call.error = "failed", error
            if call.branches:
                value: Json = error.as_json()
                problem = self._write(call, call.paths[-1], [value] if call.method == "concat" else value, time)
                if problem is not None:
                    call.error = CallError(error.code, f"{error.message}; nor could that be written: {clip(problem)}")
        self._note_end(call)
        self._settle_all()

    def hold(self, call: Call) -> None:
        """A call that was taken waits for a person. Others run meanwhile (R7.5)."""
        call.status, call.started = "waiting", None
        self._slots.give_back(call)

    def room_for(self, call: Call) -> bool:
        """Whether a call that was taken may run beside what runs (R5.12)."""
        return self._slots.free(call)

    def resume(self, call: Call, time: str = "") -> None:
        """It runs now: there has to be room for it."""
        self._slots.take(call)
        call.status, call.started = "running", time

    def end_all(self, status: Literal["rejected", "skipped"], reason: str, time: str = "") -> None:
        """Every call that has not ended is not run: a person does not want any of it (R7.6), or there is no time (R9.5)."""
        self._ready.clear()
        for call in self.calls:
            if not call.ended:
                call.ended_at = time
                self._end_without_result(call, status, reason=reason)

    def revised(self, call: Call, raw: JsonObject, kept: JsonObject | None = None) -> Call:
        """A waiting call as a person would have it, checked like the model's own (R7.2).

        What it refers to is read as it stands now, but `kept`, parameters as they were offered, are not read again. Raises `DecisionError` with everything that is wrong with it.
        """
        readers = {str(what) for writer, _, what in self._wiring.edges() if writer == call.index and what != AFTER_ID}
        now = {**self._wiring.base, "state": self.state.snapshot()}
        return revise(
            call,
            raw,
            check=self._checked,
            tools=self._tools,
            values=now,
            readers=readers,
            kept=kept,
            texts=Texts(self._max_payload),
        )

    def adopt(self, call: Call, revised: Call) -> None:
        """Put a revised call in the place of the one that waits: what is still to arrive reads what it writes now (R7.2)."""
        adopt(call, revised)
        self._to_settle.extend(self._wiring.refile(call))
        self._settle_all()

    @property
    def settled(self) -> bool:
        """Whether every call has ended and none can arrive: the tick is over (R5.4)."""
        return self.closed and len(self._completion) == len(self.calls)

    @property
    def errors(self) -> list[Call]:
        """The calls whose errors go to the model, in the order of the list: no branch took them (R4.3, R6.6)."""
        return [call for call in self.calls if call.error is not None and not call.writes]

    def edges(self) -> list[Edge]:
        """Writer, reader and what the reader reads, in the order of the readers."""
        return list(self._wiring.edges())

    def named_edges(self) -> list[tuple[str, str, str]]:
        """The same with call ids and the reference's text."""
        return [(self.calls[writer].id, self.calls[reader].id, str(what)) for writer, reader, what in self.edges()]

    def values(self, call: Call) -> Mapping[str, Json]:
        """The value of each kind when the plan was made, as the call's instance sees it."""
        return values_for(self._wiring.base, call.instance)

    # How a call ends.

    def _end_returned(self, call: Call, outcome: Returned, time: str) -> CallError | None:
        """Write the result and mark the call done, or invalid (R4.5); an error where the tool chose no real branch."""
        alternative = call.paths[0] if call.paths else ()
        if outcome.branch is not None:
            chosen = find_branch(call, outcome.branch)
            if chosen is None:
                return unknown_branch(call, outcome.branch)
            alternative = chosen
        call.result, call.status = outcome.value, "done"
        if problem := self._write(call, alternative, outcome.value, time):
            call.status, call.error = "invalid", CallError.of("invalid_write", [problem])
        return None

    def _write(self, call: Call, paths: Iterable[Path], value: Json, time: str) -> str | None:
        return write(call, paths, value, to=self.state, schema=self._state_schema, time=time, checks=self.checks)

    def _end_without_result(
        self, call: Call, status: Status, *, error: CallError | None = None, reason: str = "", branch: bool = False
    ) -> None:
        call.status, call.error, call.reason, call.branch = status, error, reason, branch
        self._note_end(call)

    def _note_end(self, call: Call) -> None:
        self.done += call.status == "done"
        self._completion[call.index] = len(self._completion)
        self._to_settle.extend(self._wiring.end(call))

    # How a call becomes ready.

    def _settle_all(self) -> None:
        while True:
            while self._to_settle:
                if self.checks.spent and not self._dry_run:
                    return
                node = self._to_settle.popleft()
                if node.call.status == "pending" and not (self._step and node.wired):
                    self._settle(node)
            self._refuse_deadlock()
            if not self._to_settle:
                return

    def _refuse_deadlock(self) -> None:
        """Readers that moved on past a branch not taken may have come to wait for each other (R5.4)."""
        if self.closed and not self._running and not self._ready and not self.settled:
            self._refuse_cycles()

    def _settle(self, node: Node) -> None:
        """Everything that the call reads has ended: it is ready, skipped or invalid."""
        if node.crowded:
            self._refuse_impossible(node)
        if node.blocked or node.crowded:
            return
        verdict = judge(
            node,
            self.calls,
            self._completion,
            self._missing,
            dry_run=self._dry_run,
            checks=self.checks,
            texts=self._texts,
        )
        if isinstance(verdict, Binding):
            verdict.exhausted = not self._wiring.move_on(node, verdict)
            self._to_settle.append(node)
        elif verdict is not None:
            self._end_without_result(
                node.call, verdict.status, error=verdict.error, reason=verdict.reason, branch=verdict.branch
            )
        else:
            node.call.status = "ready"
            self._ready.append(node.call)

    def _refuse_impossible(self, node: Node) -> None:
        """An expression that nothing can ever satisfy is a structural error (R5.5)."""
        crowded = refusals.refuse_crowded(node.call) if node.crowded else None
        error = crowded or refusals.impossible_error(node, self.request, self._missing)
        if error is not None and node.call.ended:
            node.call.error = error
        elif error is not None:
            self._end_without_result(node.call, "invalid", error=error)

    def _refuse_cycles(self, *, first: bool = False) -> None:
        for index, error in list(refusals.cycle_errors(self._wiring.edges(first=first), self.calls)):
            self._end_without_result(self.calls[index], "invalid", error=error)

    def _missing(self, reference: Reference, where: str) -> CallError:
        if self._known is None:
            self._known = {**self._wiring.base, "state": state_shape(self.state.snapshot(), self.calls)}
        return missing_path(reference, where, self._known)
