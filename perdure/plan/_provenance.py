"""The provenance of the values that the calls of a plan read and return (R15.1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from perdure.plan._calls import Call, Failed, LoopForm, Returned
from perdure.plan._loop_spec import LET
from perdure.tools.tool import ASK_PERSON, code_names
from perdure.values.limits import DECIDED, CheckBudget
from perdure.values.provenance import NOWHERE, USER, KnownSources, Labels, Sources, join, join_all, tool_source
from perdure.values.references import Reference
from perdure.values.state import State

CODE_COUNTS: Final = "code-counts"
"""The worker's flow rules apply to the code's name of a tool and of a source, and to the agent's name (R15.5)."""


def with_conditions(sources: Sources, decided: Sources, checks: CheckBudget) -> Sources:
    """Return the provenance of a value, joined with that of the conditions that it depends on."""
    return sources if decided <= sources or not checks.is_patched(DECIDED) else join(sources, decided)


def result_sources(
    call: Call, reported: Sources = NOWHERE, *, recalled: bool = False, names_code: bool = True
) -> Sources:
    """Return the provenance of a call's result: its tool, all its parameters, and the provenance that a delegate's run
    has reported (R15.1). With `recalled`, `reported` replaces the tool's declaration. With `names_code`, the source of
    the tool names its code.
    """
    tool = call.spec.tool
    if tool is None or tool.latent:
        return join(call.inputs.origins.written, call.inputs.origins.all)
    if tool.activity == ASK_PERSON:
        return USER
    code = code_names(tool) if names_code else ()
    marked = tool_source(tool.name, True)
    own = tool_source(tool.name, marked <= reported or (tool.others_write and not recalled), code)
    if tool.delegate is None:  # the mark is in `own`, with the code's names
        reported -= marked
    return join(join(own, reported), call.inputs.origins.all)


class PlanProvenance:
    """The provenance of the values that one plan reads, and of the results of its calls.

    For the plan of a loop's iteration, `outer` is that of the plan around the loop.
    """

    def __init__(
        self, known: KnownSources, state: State, checks: CheckBudget, outer: PlanProvenance | None = None
    ) -> None:
        self._state, self._checks, self._outer = state, checks, outer
        self.known = known
        """The provenance of the values that existed when the Request began, and of the text of its calls."""
        self.renew()

    def renew(self, known: KnownSources | None = None) -> None:
        """Begin a Request: its calls read the present state."""
        known = known or self.known
        self.known = replace(known, base={**known.base, "state": self._state.labels.snapshot()})

    def now(self, reference: Reference) -> Sources:
        """Return the provenance of the value that a reference finds now."""
        around = NOWHERE if self._outer is None else self._outer.now(reference)
        return join(self.known.now(reference, self._state.labels), around)

    def then(self, reference: Reference) -> Sources:
        """Return the provenance of the value that a reference found when the plan was made."""
        around = NOWHERE if self._outer is None else self._outer.then(reference)
        return join(self.known.of_kind(reference.kind).at(reference.path), around)

    def ever(self, references: Iterable[Reference]) -> Sources:
        """Return the provenance of the values that references have found, or find now."""
        return join_all(join(self.then(each), self.now(each)) for each in references)

    def of_iteration(self, call: Call, items: Labels, kinds: Iterable[str]) -> KnownSources:
        """Return the provenance for the calls of a loop's iteration. `kinds` name the item and its index, `items` are
        the labels of both.
        """
        return replace(
            self.known,
            base={**self.known.base, **dict.fromkeys(kinds, items)},
            written=lambda _: call.inputs.origins.written,
            decided=join(call.inputs.decided, items.whole),
        )

    def of_conditions(self, loop: LoopForm) -> Sources:
        """Return the provenance of all values that a loop's conditions may read, for any writes of its iterations."""
        conditions = (loop.before, loop.until)
        return join_all(self.ever(each.template.references()) for each in conditions if each is not None)

    def of_result(self, call: Call, outcome: Returned | Failed) -> Sources:
        """Return the provenance of a call's result: its tool, its parameters, and the conditions around it.

        A person's answer has the person as its only source.
        """
        sources = self._of_outcome(call, outcome)
        if call.spec.tool is not None and call.spec.tool.activity == ASK_PERSON:
            return sources
        return with_conditions(sources, call.inputs.decided, self._checks)

    def _of_outcome(self, call: Call, outcome: Returned | Failed) -> Sources:
        """Return the provenance of its tool and its parameters. Its scopes count as a whole, unless a delegate's run
        reports more exact ones.
        """
        if isinstance(outcome, Failed) and call.spec.loop is not None:
            # The error's text may hold a value that a condition has read.
            outcome = replace(outcome, sources=join(outcome.sources, self._read_inside(call)))
        if call.spec.tool is LET or (call.spec.loop is not None and not call.spec.loop.single):
            return join(outcome.sources, call.inputs.origins.all)
        scoped = call.spec.tool is not None and call.spec.tool.delegate is None and call.spec.tool.scopes
        reported = outcome.sources
        for scope in scoped or ():
            reported = join(reported, self.then(Reference(scope.lstrip("†").partition(".")[0])))
        recalled = isinstance(outcome, Returned) and outcome.recalled
        return result_sources(call, reported, recalled=recalled, names_code=self._checks.is_patched(CODE_COUNTS))

    def _read_inside(self, call: Call) -> Sources:
        """Return the provenance of all values that a loop and the calls in it may have read."""
        read: set[Reference] = set()
        for form in call.written():
            read.update(form.spec.condition.references(), form.spec.template.references())
            for until in (form.spec.loop.until, form.spec.loop.before) if form.spec.loop is not None else ():
                read.update(() if until is None else until.template.references())
        return join(join_all(call.inputs.outside_sources.values()), self.ever(read))
