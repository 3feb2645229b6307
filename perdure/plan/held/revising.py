"""A plan that goes on under the next Request, because a new message came while it ran (R10.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from perdure.plan.calls import Call
from perdure.plan.edges.wiring import Wiring
from perdure.plan.held.keeping import Keeping
from perdure.plan.loops.running import Rounds
from perdure.plan.outcomes import Outcome
from perdure.plan.settling import Settling
from perdure.plan.slots import Slots
from perdure.tools.tool import KEEP, Tool
from perdure.values.jsons import Json
from perdure.values.sources.origins import Known
from perdure.values.state import State


class Revising:
    """What of a plan has to do with the Requests that it goes on under."""

    request: int
    closed: bool
    drained: bool
    calls: list[Call]
    state: State
    known: Known
    keeping: Keeping
    """What is held, kept and dropped of it."""
    time = ""
    """When the task under way happens."""
    _tools: Mapping[str, Tool]
    _data: Mapping[str, Json]
    _step: bool
    _uncounted: int
    _named: int
    _wiring: Wiring
    _settling: Settling
    _slots: Slots
    _rounds: Rounds
    _begin = 0
    """Index of the first call of the running Request's list."""
    _joined: frozenset[str] = frozenset()
    """The calls of earlier Requests."""

    def end(self, call: Call, outcome: Outcome, time: str = "") -> None:
        raise NotImplementedError

    @property
    def own(self) -> list[Call]:
        """The calls of the running Request's list, without those of earlier ones."""
        return self.calls[self._begin :]

    @property
    def listed(self) -> int:
        """How many these are."""
        return len(self.calls) - self._begin

    @property
    def goes_on(self) -> bool:
        """Whether calls of earlier Requests are in it."""
        return bool(self._joined)

    def is_past(self, call: Call) -> bool:
        """Whether it is an earlier Request's, and runs or has ended."""
        return call.index < self._begin and (call.ended or call.status == "running")

    def begin(self, request: int, tools: Mapping[str, Tool], known: Known | None = None) -> None:
        """The next Request's calls follow, with what runs and what it keeps.

        They see the state as it stands now. What is held and not kept stays out of their sight. `known`: of sources, by now.
        """
        self.request, self._begin, self._tools = request, len(self.calls), tools
        self.known = self._known_now(known or self.known)
        self.reopen(self.known)
        self._uncounted = self._named = 0
        self._joined = frozenset(call.id for call in self.calls)
        self._settling.step = self._step
        self._slots.renew()
        self._rounds.renew()
        self._wiring.begin(request, {**self._data, "state": self.state.snapshot()})

    def reopen(self, known: Known | None = None) -> None:
        """More calls follow."""
        self.closed = self.drained = False
        self._settling.reopen(known)

    def _known_now(self, given: Known) -> Known:
        """With where the values of the state come from."""
        return replace(given, base={**given.base, "state": self.state.labels.snapshot()})

    def _keep_what_is_asked(self) -> None:
        """A call of `keep` is carried out as soon as it is ready: it has no effect but on the plan."""
        ready = self._settling.ready if self._joined else ()
        for call in [call for call in ready if call.tool is not None and call.tool.activity == KEEP]:
            self._settling.ready.remove(call)
            self._settling.running += 1
            call.status, call.started = "running", self.time
            self.end(call, self.keeping.decide(call.params.get("calls"), call.params.get("drop")), self.time)
