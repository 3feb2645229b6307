"""What becomes of the calls of a plan that wait: looked at one by one, as what they wait for arrives and ends (R5.3, R5.4)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from perdure.errors import CallError
from perdure.plan import refusals
from perdure.plan.calls import Call, Status
from perdure.plan.control.guessing import Assumed
from perdure.plan.edges.bindings import Binding
from perdure.plan.edges.wiring import Node, Wiring
from perdure.plan.explanations import missing_path, state_shape
from perdure.plan.readiness import judge, with_conditions
from perdure.values.jsons import Json
from perdure.values.limits.steps import Checks
from perdure.values.references import Missing, Reference
from perdure.values.sources import Sources
from perdure.values.sources.origins import Known
from perdure.values.state import State
from perdure.values.texts import Texts

News: TypeAlias = tuple[Call, Literal["began", "ended"]]
"""A call has ended, or a loop has begun: of others it is known when they are taken."""


class Settling:
    """The calls of one plan that may be ready, and in which order they have ended. Each call is settled or waits for one that is not."""

    def __init__(
        self,
        wiring: Wiring,
        state: State,
        checks: Checks,
        texts: Texts,
        known: Known,
        *,
        step: bool,
        dry_run: bool,
    ) -> None:
        self.calls: list[Call] = []
        self.done = 0
        """Calls that ended well."""
        self.ready: list[Call] = []
        self.running = 0
        self.step = step
        """Whether calls that read what others of the plan write are left for the next Request (R5.10)."""
        self.closed = False
        self._wiring = wiring
        self._state = state
        self._checks, self._texts = checks, texts
        self._dry_run = dry_run
        self.news: list[News] = []
        """What is to be told, until somebody takes it."""
        self.assumed = Assumed()
        """Of a dry run."""
        self._sources = known
        self._sources_then: list[Known] = []
        """By call what was known when its Request began."""
        self._completion: dict[int, int] = {}
        self._queue: deque[Node] = deque()
        self._known: Mapping[str, Json] | None = None

    def add(self, call: Call) -> None:
        """The next call of the list, wired to what stands before it, and to it what has waited for it."""
        self.calls.append(call)
        self._sources_then.append(self._sources)
        self._known = None
        node = self._wiring.add(call)
        if call.ended:
            self._completion[call.index] = len(self._completion)
            self.news.append((call, "ended"))
            node.refused = True
        self._refuse_impossible(node)
        self._queue.append(node)
        self._queue.extend(self._wiring.rebind_open(call))
        self.go_on()

    def close(self) -> None:
        """No call will arrive any more: what is still open is bound to what there is, or refused."""
        self.closed = True
        for node in self._wiring.close():
            self._refuse_impossible(node)
        self._refuse_cycles(first=True)
        for node in self._wiring.nodes:
            if self.step and node.call.status == "pending" and node.wired:
                self.end(node.call, "deferred", reason="step mode: it reads what another call of this plan writes")
        self._queue.extend(self._wiring.nodes)

    def binding_at_end(self, reference: Reference) -> Binding:
        """Return how a call at the end of the list would read the reference, once all calls have ended (R6.4)."""
        return self._wiring.binding_at_end(reference, self.calls)

    def read_at_end(self, reference: Reference) -> Json | Missing:
        """Return what a call at the end of the list would read. Raises `StateError` as `Binding.find` does."""
        return self.binding_at_end(reference).find(self.calls, self._completion)[1]

    def sources_at_end(self, reference: Reference) -> Sources:
        """Return where what `read_at_end` gives comes from (R15.1)."""
        base = self._sources.of_kind(reference.kind)
        binding = self.binding_at_end(reference)
        sources = binding.sources(self.calls, self._completion, base)
        return with_conditions(sources, binding.decided(self.calls), self._checks)

    def reopen(self, known: Known | None = None) -> None:
        """More calls follow, of another Request if more is `known` now (R10.5)."""
        self.closed, self._known, self._sources = False, None, known or self._sources

    def refile(self, call: Call) -> None:
        """The call writes elsewhere from now on."""
        self.look_at(self._wiring.refile(call))
        self.go_on()

    def look_at(self, nodes: Iterable[Node]) -> None:
        """What they wait for has changed: they may be ready."""
        self._queue.extend(nodes)

    def give_up(self, call: Call, reason: str) -> None:
        """The call is not run, although it may be ready or wait for a person."""
        if call.status == "waiting":
            self.running -= 1
        elif call in self.ready:
            self.ready.remove(call)
        self.end(call, "skipped", reason=reason)

    @property
    def held_back(self) -> bool:
        """Whether calls may be ready, and are looked at in the next task (R18.5)."""
        return bool(self._queue)

    @property
    def settled(self) -> bool:
        return self.closed and len(self._completion) == len(self.calls)

    def go_on(self) -> None:
        """Look at all that may be ready, as far as this task's time goes."""
        while True:
            while self._queue:
                if self._checks.spent and not self._dry_run:
                    return
                node = self._queue.popleft()
                if node.call.status == "pending" and not (self.step and node.wired):
                    self._settle(node)
            self._refuse_deadlock()
            if not self._queue:
                return

    def end(
        self, call: Call, status: Status, *, error: CallError | None = None, reason: str = "", branch: bool = False
    ) -> None:
        """The call ends without a result."""
        call.status, call.error, call.reason, call.branch = status, error, reason, branch
        self.note_end(call)

    def note_end(self, call: Call) -> None:
        """The call has ended, and its writes are made: what waited for it may be ready."""
        self.done += call.status == "done"
        self._completion[call.index] = len(self._completion)
        self.news.append((call, "ended"))
        self._queue.extend(self._wiring.end(call))

    def _refuse_deadlock(self) -> None:
        """Readers that moved on past a branch not taken may have come to wait for each other (R5.4)."""
        if self.closed and not self.running and not self.ready and not self.settled:
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
            dry=self.assumed if self._dry_run else None,
            checks=self._checks,
            texts=self._texts,
            known=self._sources_then[node.call.index],
        )
        if isinstance(verdict, Binding):
            verdict.exhausted = not self._wiring.move_on(node, verdict)
            self._queue.append(node)
        elif verdict is not None:
            self.end(node.call, verdict.status, error=verdict.error, reason=verdict.reason, branch=verdict.branch)
        else:
            node.call.status = "ready"
            self.ready.append(node.call)

    def _refuse_impossible(self, node: Node) -> None:
        """An expression that nothing can ever satisfy is a structural error (R5.5)."""
        crowded = refusals.refuse_crowded(node.call) if node.crowded else None
        error = crowded or refusals.impossible_error(node, self._wiring.id_of, self._missing)
        if error is not None and node.call.ended:
            node.call.error = error
        elif error is not None:
            node.refused = True
            self.end(node.call, "invalid", error=error)

    def _refuse_cycles(self, *, first: bool = False) -> None:
        for index, error in list(refusals.cycle_errors(self._wiring.edges(first=first), self.calls)):
            self.end(self.calls[index], "invalid", error=error)

    def _missing(self, reference: Reference, where: str) -> CallError:
        if self._known is None:
            self._known = {**self._wiring.base, "state": state_shape(self._state.snapshot(), self.calls)}
        return missing_path(reference, where, self._known)
