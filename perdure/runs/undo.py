"""Undo: the effects of a run, their order, and the plan that undoes them.

A run notes its effects when a plan has settled (`EffectLog`). `RunEffects` has the effects as a client or an activity
has read them, with the undos of earlier undo runs. `plan_undo` makes the agent of an undo run from it: a run that
starts with a plan, and calls no model.
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final, Literal, get_args

from pydantic import Field

from perdure.errors import RunError
from perdure.plan import INTERRUPTED, LOST, OWN_TOOLS, UNTIL, Call, Failed, Plan, Returned
from perdure.rules import RuleRecord
from perdure.rules.rules import digest_of
from perdure.runs.limits import StopReason
from perdure.runs.wire import CallView, RunInput
from perdure.tools.engine import UNDO_BELOW
from perdure.tools.tool import CLIENT, ENGINE_ACTIVITIES, Tool
from perdure.tools.undo import accepted_defaults, complete_params, read_by, undo_params
from perdure.values.json import Json, JsonObject, WireModel, pack
from perdure.values.limits import HISTORY_FULL, MAX_UNDO_PARAMS, MAX_UNDONE, RESULT_NOT_STORED, RESULT_TOO_LARGE
from perdure.values.provenance import join, join_all
from perdure.values.references import MISSING, Missing
from perdure.values.sizes import Sizes

UNDO_FORM: Final = 1
"""Form of a packed `UndoRecord`."""
_WITHOUT_EFFECT: Final = ENGINE_ACTIVITIES - {CLIENT}
"""Activities whose calls have no effect that an undo could name."""
_CHUNK: Final = 300
"""Effects, and edges, in one answer to a query."""
_UNCERTAIN: Final = frozenset(
    {
        INTERRUPTED,
        LOST,
        RESULT_TOO_LARGE,
        RESULT_NOT_STORED,
        HISTORY_FULL,
        "timeout",
        "cancelled",
        "terminated",
        "not_json",
        "CancelledError",
        "no_answer",
    }
) | frozenset(get_args(StopReason))
"""Codes of failures that leave it unknown whether the call took effect."""
UNDO_PLAN_ACTIVITY: Final = "perdure.plan_undo"

Standing = Literal["done", "undone", "undoing", "cannot be undone", "unknown"]
"""Status of an effect. `unknown`: it is not known whether the call took effect, so it and its dependencies are not
undone. A delegate's call is unknown if any call of its run is; an undo of that run still undoes the other calls.
"""


class Effect(WireModel):
    """A call that has, or may have, changed something outside of its run.

    ```python
    for effect in await run.effects():
        print(effect.call, effect.tool, effect.status, effect.reason)
    ```
    """

    call: str
    """`R.N`: its id."""
    tool: str
    status: Standing = "done"
    undo: str = ""
    """The tool that undoes it; empty: there is none."""
    params: JsonObject = Field(default_factory=dict)
    """The parameters of that tool."""
    reason: str = ""
    """The reason why it cannot be undone, is unknown, or was not undone."""
    runs: bool = Field(default=False, exclude_if=operator.not_)
    """Whether it is a delegate, or a loop of runs: its effects are the effects of the child runs."""
    sequential: bool = Field(default=False, exclude_if=operator.not_)
    """Whether it is a loop whose iterations depend on those before them."""
    below: list[str] = Field(default_factory=list)
    """The child runs whose effects can be undone, in the order in which they began."""
    stays: int = Field(default=0, exclude_if=operator.not_)
    """The number of calls of the child runs that cannot be undone, also where the status is `undone`."""
    blocked: list[str] = Field(default_factory=list, exclude_if=operator.not_)
    """The child runs whose effects stay, because a later iteration of a sequential loop may depend on them."""
    sources: dict[str, list[str]] = Field(default_factory=dict, exclude_if=operator.not_)
    """By parameter of the undo tool the source of its value; not shown."""

    @property
    def key(self) -> str:
        """The effect's name in the records of undo runs. A call's id is not unique: after a reset another call may have
        it.
        """
        return f"{self.call}:{digest_of([self.undo, self.params])}"


class EffectChunk(WireModel):
    """A part of a run's effects, as the run returns them."""

    effects: list[Effect] = Field(default_factory=list)
    order: list[tuple[str, str]] = Field(default_factory=list)
    """Pairs of call ids, or of names of barriers: the first took effect before the second, which depends on it."""
    more: bool = False
    earlier: bool = False
    """Whether the run continued from another execution, which has the earlier effects."""
    base: UndoBase | None = None
    undone: dict[str, tuple[str, str]] | None = None
    """The undos of an undo run: by the effect's key its status and the reason of a failure."""


class UndoBase(WireModel):
    """The settings that an undo run inherits from the run that it undoes."""

    input: RunInput
    """The run's input; its agent has only the name and the configuration."""
    tools: dict[str, Json] = Field(default_factory=dict)
    """The undo tools: `true` for a tool of the worker, or the tool's definition."""

    @classmethod
    def of(
        cls,
        run_input: RunInput,
        tools: Iterable[Tool],
        record: RuleRecord | None,
        requesters: Iterable[str] = (),
        approval: JsonObject | None = None,
    ) -> UndoBase:
        """Return the base for a run that began with this input and recorded these undo tools.

        `record`: the run's record for its rules. `requesters`: the people who have sent the run its messages.
        `approval`: the changes of its approval policy so far.
        """
        agent = {key: run_input.agent[key] for key in ("name", "config") if key in run_input.agent}
        kept = RunInput(
            agent=agent,
            approval=run_input.approval if approval is None else approval,
            floor=run_input.floor,
            floor_flows=run_input.floor_flows,
            givers=run_input.givers,
            rules=run_input.rules,
            rule_record=record,
            whose=run_input.whose,
            routes_above=run_input.routes_above,
            requesters=[*requesters],
            evaluated=run_input.evaluated,
        )
        return cls(input=kept, tools={tool.name: True if tool.registered else tool.definition() for tool in tools})


class UndoWanted(WireModel):
    """The input of the activity that plans an undo."""

    run_id: str
    calls: list[str] | None = None
    own: bool = False
    """Whether the run undoes its own calls, and so continues meanwhile."""


class UndoStart(WireModel):
    """The undo run that is to be started."""

    id: str = ""
    input: RunInput | None = None
    """`None`: there is nothing to undo."""
    cannot: list[str] = Field(default_factory=list)
    """Calls that have no undo."""
    waits: list[str] = Field(default_factory=list)
    """Calls that stay, because it is not known whether they, or calls that depend on them, took effect."""
    left: int = 0
    """Further effects, for the next undo run."""


class UndoRecord(WireModel):
    """The record with which an undo run begins."""

    run_id: str
    calls: dict[str, str] = Field(default_factory=dict)
    """The call that each call of the undo run undoes, by the id of the undoing call."""
    keys: dict[str, str] = Field(default_factory=dict)
    """The key of the effect that each call of the undo run undoes, by the call's id."""
    below: list[str] = Field(default_factory=list)
    """The runs of delegates that it may undo."""
    in_part: list[str] = Field(default_factory=list, exclude_if=operator.not_)
    """The calls that it undoes in part, as `R.N tool: reason`: it fails at its end."""
    by: str = ""
    """The person who requested it, for the audit log; empty: the run itself, or no name was given."""

    def undoes(self, call_id: str) -> str:
        """Return `<run id>/<call id>` of the call that this one takes back; empty for any other call."""
        return f"{self.run_id}/{self.calls[call_id]}" if call_id in self.calls else ""


# The effects of a run.


class EffectLog:
    """The effects of one execution of a run, of plans that have settled."""

    def __init__(
        self, tools: Iterable[Tool], undo_tools: Iterable[Tool], sizes: Sizes, *, knows_defaults: bool = True
    ) -> None:
        self._targets = {tool.name: tool for tool in undo_tools}
        self.notes = any(tool.undo is not None or tool.delegate is not None for tool in tools)
        """Whether any tool of the run has an undo; otherwise the run keeps no effects."""
        self._sizes = sizes
        self._knows_defaults = knows_defaults
        self._defaults: dict[str, JsonObject] = {}
        """By tool the defaults that its undo accepts: a check for each call takes seconds for 10,000 calls."""
        self._effects: list[Effect] = []
        self._order: list[tuple[str, str]] = []
        self._plans = 0

    def add(self, plan: Plan) -> None:
        """Note the effects of a plan that has settled."""
        if self.notes:
            effects, order = self._of(plan)
            self._effects += effects
            self._order += order
            self._plans += 1

    def chunk(self, number: int, running: Plan | None) -> EffectChunk:
        """Return a part of the effects, with the effects of the `running` plan; 0 is the first."""
        effects, order = self._effects, self._order
        if running is not None and self.notes:
            more, edges = self._of(running)
            effects, order = [*effects, *more], [*order, *edges]
        begin, end = number * _CHUNK, (number + 1) * _CHUNK
        more_left = end < len(effects) or end < len(order)
        return EffectChunk(effects=effects[begin:end], order=order[begin:end], more=more_left)

    def _of(self, plan: Plan) -> tuple[list[Effect], list[tuple[str, str]]]:
        calls = [call for call in plan.every_call() if call.state.status != "invalid" or call.state.executed]
        effects = [effect for call in calls if (effect := self._effect(call)) is not None]
        start, end = f"plan {self._plans}", f"plan {self._plans + 1}"
        order = plan_order(plan, calls, {each.call for each in effects}, start, end)
        return effects, order

    def _effect(self, call: Call) -> Effect | None:
        tool = call.spec.tool
        has_begun = call.state.started is not None or call.hold.with_client
        if tool is None or call.state.recorded or not has_begun:
            return None
        if call.spec.loop is not None or tool.delegate is not None:
            is_run = call.far or (call.spec.loop is None and tool.delegate is not None)
            effect = Effect(call=call.id, tool=tool.name, runs=True, sequential=UNTIL in call.spec.raw)
            return effect if is_run and call.state.attempts else None
        if tool.latent or call.spec.safe or tool.activity in _WITHOUT_EFFECT or tool.activity is None:
            return None
        outcome, effect = call.state.outcome, Effect(call=call.id, tool=tool.name)
        match outcome:
            case Returned(value):
                return self._undoable(call, tool, effect, value)
            case Failed() if call.state.carried_out:
                return self._undoable(call, tool, effect, MISSING)
            case Failed(error) if error.code not in _UNCERTAIN and call.state.carried_out is not None:
                return None
            case Failed(error):
                words = f"{error.code}: whether it took effect is not known"
            case _ if call.is_with_client or call.state.status in ("running", "unknown"):
                words = "it was interrupted: whether it took effect is not known"
            case _:
                return None
        known = {"undo": tool.undo.tool} if tool.undo is not None else {}
        return effect.model_copy(update={"status": "unknown", "reason": words, **known})

    def _undoable(self, call: Call, tool: Tool, effect: Effect, result: Json | Missing) -> Effect:
        if tool.undo is None:
            return effect.model_copy(update={"status": "cannot be undone", "reason": f"{tool.name} has no undo"})
        return self._with_undo(call, tool, effect, result)

    def _with_undo(self, call: Call, tool: Tool, effect: Effect, result: Json | Missing) -> Effect:
        params = call.inputs.params
        undo, target = tool.undo, None if tool.undo is None else self._targets.get(tool.undo.tool)
        if undo is None or target is None:
            return effect.model_copy(update={"status": "cannot be undone", "reason": "its undo tool is unknown"})
        if self._knows_defaults and tool.defaults:
            if (defaults := self._defaults.get(tool.name)) is None:
                defaults = self._defaults[tool.name] = accepted_defaults(undo, target.parameters, tool.defaults)
            params = complete_params(undo, defaults, params, result)
        made, problem = undo_params(undo, target.parameters, params, result)
        if problem is None and self._sizes.of(made) > MAX_UNDO_PARAMS:
            problem = f"the parameters of {undo.tool} are above {MAX_UNDO_PARAMS:,} bytes"
        if problem is not None:
            return effect.model_copy(update={"status": "cannot be undone", "reason": problem, "undo": undo.tool})
        origins, sources = call.inputs.origins, {}
        for name in made:
            from_params, from_result = read_by(undo, name, params)
            found = join(origins.written, join_all(origins.params.get(each, origins.written) for each in from_params))
            sources[name] = sorted(join(found, call.state.sources) if from_result else found)
        return effect.model_copy(update={"undo": undo.tool, "params": made, "sources": sources})


def without_undo(calls: Iterable[Call]) -> list[str]:
    """Return the calls without an undo, as `R.N tool`; calls of safe tools and of delegates are left out."""
    found = []
    for call in calls:
        tool = call.spec.tool
        if tool is None or tool.undo is not None or tool.delegate is not None or tool.latent or tool.safe:
            continue
        if call.spec.loop is not None and not call.spec.loop.single:
            continue
        if tool.activity not in _WITHOUT_EFFECT and tool.name not in OWN_TOOLS:
            found.append(f"{call.id} {tool.name}")
    return found


class _Order:
    """The order of nodes: calls, and barriers between groups of them."""

    def __init__(self) -> None:
        self.before: dict[str, set[str]] = defaultdict(set)
        self.after: dict[str, set[str]] = defaultdict(set)

    def link(self, first: str, second: str) -> None:
        self.after[first].add(second)
        self.before[second].add(first)

    def nodes(self) -> list[str]:
        return [*dict.fromkeys([*self.before, *self.after])]

    def fence(self, nodes: Iterable[str], start: str, end: str) -> None:
        """Put all nodes between the barriers `start` and `end`."""
        for node in nodes:
            if not self.before[node]:
                self.link(start, node)
            if not self.after[node]:
                self.link(node, end)

    def leave_out(self, node: str) -> None:
        """Remove a node, if that does not increase the number of pairs."""
        into, out = self.before[node], self.after[node]
        if len(into) * len(out) > len(into) + len(out):
            return
        for first in into:
            self.after[first].discard(node)
            self.after[first] |= out
        for second in out:
            self.before[second].discard(node)
            self.before[second] |= into
        del self.before[node], self.after[node]


def _continuations(plan: Plan, start: str) -> Iterator[tuple[str, str]]:
    """Yield pairs of nodes for each later Request that continues the plan.

    A barrier is after the calls that had ended, and before the Request's own calls. These may have read results in the
    state, and such a read is no edge of the plan.
    """
    last, known = "", set[str]()
    ends = [first for first, _ in plan.continuations[1:]]
    for number, ((first, ended), end) in enumerate(zip_longest(plan.continuations, ends), start=1):
        barrier = f"{start}, continuation {number}"
        yield from ((id, barrier) for id in [last, *sorted(ended - known)] if id)
        yield from ((barrier, call.id) for call in plan.calls[first:end])
        last, known = barrier, ended


def plan_order(plan: Plan, calls: Sequence[Call], kept: set[str], start: str, end: str) -> list[tuple[str, str]]:
    """Return pairs of nodes, the first before the second, over `kept` calls of the plan and the barriers that save pairs.

    Every call is between the barriers `start` and `end`, which it shares with the plans before and after. A loop's
    iterations are between its own barriers, one iteration after the other if the loop is sequential.
    """
    order = _Order()
    by_id = {call.id: call for call in calls}
    loops = {call.id for call in calls if call.spec.loop is not None and not call.far}

    def head(node: str) -> str:
        return f"{node} begins" if node in loops else node

    for writer, reader, _ in plan.named_edges():
        if writer in by_id and reader in by_id:
            order.link(writer, head(reader))
    for first, second in _continuations(plan, start):
        order.link(first, head(second))
    for call in calls:
        loop, bracket, rest = call.id.rpartition("[")
        if not bracket or loop not in loops:
            continue
        form, number = by_id[loop].spec.loop, rest.partition("]")[0]
        if form is not None and form.kind != "each" and number.isdigit():
            order.link(f"{loop} {number}", head(call.id))
            order.link(call.id, f"{loop} {int(number) + 1}")
            order.link(head(loop), f"{loop} {number}")
        order.link(head(loop), head(call.id))
        order.link(call.id, loop)
    for loop in loops:
        order.link(head(loop), loop)
    nodes = [*dict.fromkeys([*order.nodes(), *by_id])]
    order.fence(nodes, start, end)
    if not nodes:  # the plans before and after are still in order
        order.link(start, end)
    for _ in range(2):
        for node in order.nodes():
            if node not in kept and node not in (start, end):
                order.leave_out(node)
    return sorted((first, second) for first, seconds in order.after.items() for second in seconds)


# The effects as a reader knows them.


@dataclass
class RunEffects:
    """The effects of a run, with the outcomes of their undos."""

    run_id: str
    base: UndoBase | None = None
    effects: list[Effect] = field(default_factory=list)
    order: list[tuple[str, str]] = field(default_factory=list)
    next: int = 1
    """Number of the next undo run."""
    open: str = ""
    """The undo run that has not ended."""

    @property
    def next_id(self) -> str:
        """The id of the next undo run."""
        return undo_id(self.run_id, self.next)

    def take_in(self, undone: Mapping[str, tuple[str, str]], *, goes_on: bool) -> None:
        """Add the outcomes of an undo run."""
        for number, effect in enumerate(self.effects):
            status, why = undone.get(effect.key, ("", ""))
            if effect.status == "undone" or not status:
                continue
            if status == "done":
                self.effects[number] = effect.model_copy(update={"status": "undone", "reason": ""})
            elif goes_on:
                self.effects[number] = effect.model_copy(update={"status": "undoing"})
            else:
                self.effects[number] = effect.model_copy(update={"status": "done", "reason": why})

    def settle(self, no_effect: Iterable[str]) -> None:
        """Remove calls of unknown outcome that took no effect. Raises `RunError` for other calls."""
        unknown = {each.call: each for each in self.effects if each.status == "unknown"}
        for call in no_effect:
            if call not in unknown:
                raise RunError(
                    f"{call} of {self.run_id} has no unknown outcome. Calls with one: {', '.join(sorted(unknown)) or 'none'}"
                )
            if runs := [*unknown[call].blocked, *unknown[call].below]:
                raise RunError(
                    f"{call} of {self.run_id} has effects that can be undone. Undo them first: perdure undo {runs[-1]} [--no-effect R.N]"
                )
        named = set(no_effect)
        self.effects = [each for each in self.effects if each.call not in named]


def effect_of_runs(effect: Effect, runs: Mapping[str, list[Effect] | str]) -> Effect | None:
    """Return the effect of a delegate's call, or of a loop of runs; `None` if its runs have no effects.

    `runs`: in the order in which they began, by id their effects, or the reason why these are not known.
    """
    standing, below, blocked, reason, stays = list[Standing](), list[str](), list[str](), "", 0
    for run, known in runs.items():
        effects = [] if isinstance(known, str) else known
        found: list[Standing] = ["unknown"] if isinstance(known, str) else [each.status for each in known]
        standing += found
        if isinstance(known, str):
            reason = reason or known
        for each in effects:
            stays += each.stays or each.status == "cannot be undone"
            if each.status == "unknown":
                reason = reason or (each.reason if each.runs else f"{run}/{each.call} {each.tool}: {each.reason}")
        if effect.sequential and not {"unknown", "undoing"}.isdisjoint(found):
            blocked, below = [*blocked, *below], []  # the calls of this iteration may depend on those before it
        if any(each.status == "done" or each.below for each in effects):
            below.append(run)
        elif any(each.blocked for each in effects):
            blocked.append(run)
    if not standing:
        return None
    # An undone run stays undone, whatever of it has no undo: the reason names these calls.
    order: tuple[Standing, ...] = ("undoing", "unknown", "done", "undone")
    status = next((each for each in order if each in standing), "cannot be undone")
    if stays:
        reason = reason or f"{stays} of its calls cannot be undone"
    return effect.model_copy(
        update={"status": status, "below": below, "stays": stays, "blocked": blocked, "reason": reason}
    )


_UNDO_ID: Final = re.compile(r"(.+)\.undo-[1-9][0-9]*", re.DOTALL)


def undo_id(run_id: str, number: int) -> str:
    """Return the id of the undo run of a run with this number, from 1."""
    return f"{run_id}.undo-{number}"


def undone_run(undo: str) -> str | None:
    """Return the id of the run that an undo run with this id undoes; `None`: it is not the id of an undo run."""
    found = _UNDO_ID.fullmatch(undo)
    return found and found[1]


def undo_outcomes(record: UndoRecord, views: Iterable[CallView]) -> dict[str, tuple[str, str]]:
    """Return the status of each undo and the reason of its failure, by the key of the effect.

    An undo whose result cannot be used has been carried out: it is done.
    """
    found = {}
    for view in views:
        if view.carried_out and view.id in record.keys:
            found[record.keys[view.id]] = ("done", "")
        elif (key := record.keys.get(view.id)) is not None:
            why = view.reason or (f"{view.error.get('code')}: {view.error.get('message')}" if view.error else "")
            found[key] = (view.status, f"its undo {view.status}" + (f": {why}" if why else ""))
    return found


def undo_stop_reason(record: UndoRecord, views: Iterable[CallView]) -> str:
    """Return the reason why an undo run has not undone all effects."""
    ended = [view for view in views if view.tool != "_let"]
    bad = [view for view in ended if view.status not in ("done", "skipped") and not view.carried_out]
    skipped = sum(view.status == "skipped" for view in ended)
    words = record.in_part[:3]
    for view in bad[:3]:
        error = view.error or {}
        words.append(f"{view.id} {view.tool} {view.status}: {view.reason or error.get('message') or ''}")
    more = f"; calls that wait for that: {skipped}" if skipped else ""
    return f"not everything was undone: {'; '.join(words)}{more}. Continue with: perdure undo {record.run_id}"


# The plan of an undo run.


class UndoPlan(WireModel):
    """The plan of an undo, for the person who decides.

    ```python
    plan = await run.undo_plan()
    print([each.call for each in plan.undoes], [each.call for each in plan.cannot])
    ```
    """

    run_id: str
    undoes: list[Effect] = Field(default_factory=list)
    """Effects that are undone, in the order of their undos. A delegate's call of status `unknown` is undone in part, and
    is also in `waits`.
    """
    cannot: list[Effect] = Field(default_factory=list)
    """Effects that stay, because they have no undo."""
    waits: list[Effect] = Field(default_factory=list)
    """Effects that stay, because it is not known whether they, or calls that depend on them, took effect."""
    left: int = 0
    """Further effects, for the next undo run."""


def plan_undo(
    found: RunEffects, calls: Sequence[str] | None = None, to: str | None = None
) -> tuple[UndoPlan, RunInput | None]:
    """Return the plan of an undo, and the input of its run; `None`: there is nothing to undo.

    `calls`: only these calls, and the calls that depend on them. `to`: the same for one call. By default all calls.
    Raises `RunError` for a call that has no effect.
    """
    wanted = _chosen(found, calls if to is None else [to])
    by_id = {each.call: each for each in found.effects}
    seconds: dict[str, list[str]] = defaultdict(list)
    firsts: dict[str, list[str]] = defaultdict(list)
    for first, second in found.order:
        seconds[first].append(second)
        firsts[second].append(first)
    plan, record = UndoPlan(run_id=found.run_id), UndoRecord(run_id=found.run_id)
    entries: list[JsonObject] = []
    data: JsonObject = {}
    sources: dict[str, list[str]] = {}
    ends: dict[
        str, list[str] | None
    ] = {}  # by node the calls that have to end before its dependencies are undone; `None`: it stays
    for node in _reverse(seconds, firsts, by_id):
        waited = [ends.get(each, []) for each in seconds[node]]
        blocked = any(each is None for each in waited)
        after = list(dict.fromkeys(each for some in waited if some is not None for each in some))
        effect = by_id.get(node)
        if effect is not None and node in wanted and effect.status != "undone":
            if effect.status == "cannot be undone":
                plan.cannot.append(effect)
            elif blocked or effect.status == "undoing" or (effect.status == "unknown" and not effect.below):
                plan.waits.append(effect if effect.status != "done" else _blocked(effect))
                blocked = True
            elif effect.runs and not effect.below:
                pass
            elif len(plan.undoes) >= MAX_UNDONE:
                plan.left += 1
                blocked = True
            else:
                plan.undoes.append(effect)
                if effect.status == "unknown":
                    plan.waits.append(effect)
                    blocked = True
                made: list[str] = []
                for call in _calls(effect, f"c{len(plan.undoes)}", data, sources, record):
                    waits = made[-1:] if effect.sequential and made else after
                    entries.append(call | ({"_after": waits} if waits else {}))
                    made.append(f"0.{len(entries) - 1}")
                    if not effect.runs:
                        record.calls[made[-1]], record.keys[made[-1]] = effect.call, effect.key
                after = made
        elif effect is None and len(after) > 1 and len(firsts[node]) > 1:
            entries.append({"_tool": "_let", "value": None, "_after": after})
            after = [f"0.{len(entries) - 1}"]
        ends[node] = None if blocked else after
    if found.base is None or not plan.undoes:
        return plan, None
    record.in_part = [f"{each.call} {each.tool}: {each.reason}" for each in plan.undoes if each.status == "unknown"]
    document = _document(found.base, plan, entries, None if record.in_part else _output(plan), data)
    return plan, found.base.input.model_copy(
        update={"agent": document, "undo": pack(record, UNDO_FORM), "sources": sources}
    )


def _blocked(effect: Effect) -> Effect:
    return effect.model_copy(update={"reason": "a call that depends on it stays, so it stays too"})


def _chosen(found: RunEffects, calls: Sequence[str] | None) -> set[str]:
    if calls is None:
        return {each.call for each in found.effects}
    known = {each.call for each in found.effects}
    for call in calls:
        if call not in known:
            raise RunError(
                f"{call} is not a call of {found.run_id} with an effect. Its calls with one: {', '.join(sorted(known)) or 'none'}"
            )
    seconds: dict[str, list[str]] = defaultdict(list)
    for first, second in found.order:
        seconds[first].append(second)
    reached, left = set(calls), [*calls]
    while left:
        for each in seconds[left.pop()]:
            if each not in reached:
                reached.add(each)
                left.append(each)
    return reached


def _reverse(
    seconds: Mapping[str, list[str]], firsts: Mapping[str, list[str]], effects: Mapping[str, Effect]
) -> Iterator[str]:
    """Yield the nodes, each after the nodes that depend on it."""
    nodes = dict.fromkeys([*effects, *seconds, *firsts])
    waits = {node: len(seconds.get(node, ())) for node in nodes}
    ready = [node for node in nodes if not waits[node]]
    while ready:
        node = ready.pop(0)
        yield node
        for first in firsts.get(node, ()):
            waits[first] -= 1
            if not waits[first]:
                ready.append(first)


def _calls(
    effect: Effect, key: str, data: JsonObject, sources: dict[str, list[str]], record: UndoRecord
) -> list[JsonObject]:
    if effect.runs:
        record.below += effect.below
        return [{"_tool": UNDO_BELOW["name"], "run": run} for run in reversed(effect.below)]
    data[key] = effect.params
    sources |= {f"†undo.{key}.{name}": names for name, names in effect.sources.items()}
    return [{"_tool": effect.undo, **{name: f"†undo.{key}.{name}" for name in effect.params}}]


def _output(plan: UndoPlan) -> JsonObject:
    return {
        "undone": [each.call for each in plan.undoes],
        "cannot_be_undone": [each.call for each in plan.cannot],
    }


def _document(base: UndoBase, plan: UndoPlan, entries: list[JsonObject], output: Json, data: JsonObject) -> JsonObject:
    """Return the agent of the undo run: the undo tools, the plan, and the policy of the run that it undoes.

    Without an `output` the run fails at the end of its plan.
    """
    agent = base.input.agent
    written = agent.get("config")
    config: JsonObject = written if isinstance(written, dict) else {}
    kept = {key: config[key] for key in ("approval", "rules", "notify", "priority", "deadline") if key in config}
    names = dict.fromkeys(each.undo for each in plan.undoes if not each.runs)
    tools: list[Json] = [name if base.tools.get(name) is True else base.tools.get(name, name) for name in names]
    if any(each.runs for each in plan.undoes):
        tools.append(UNDO_BELOW)
    return {
        "name": f"{agent.get('name', 'run')} undo",
        "description": f"Take back what {plan.run_id} has done.",
        "config": kept | {"start": "plan", "max_calls": max(1, len(entries))},
        "context": [
            *({"type": "tool", "tool": tool} for tool in tools),
            {"type": "data", "kind": "undo", "data": data},
            {"type": "plan", "plan": entries, "output": output},
        ],
    }
