"""The engine against a plain interpreter of the protocol's sections 3 to 6, on random cases."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from perdure.errors import CallError, StateError
from perdure.plan import Call, Failed, Outcome, Plan, Returned
from perdure.tools.tool import parse_tool
from perdure.values.references import MISSING, Reference, parse_expression
from perdure.values.state import State, Write
from tests.differential.cases import PATHS, TAKES, Case, make_case, rename, renamed
from tests.differential.interpreter import NOTHING, Interpreter, UnwritableError, interpret, leaves, parse
from tests.soak import share

SEEDS = share(2000)
PROPERTIES = {name: {} if kind == "any" else {"type": kind} for name, kind in TAKES.items()}
TOOLS = {
    (f"t{index}", group): parse_tool(
        {"name": f"t{index}", "properties": PROPERTIES, "additionalProperties": False, "_activity": "t"}
        | ({"_exclusive": group} if group else {}),
        activities=["t"],
    )
    for index in range(12)
    for group in (None, "door", "window")
}


class Engine:
    """A case played by the engine's own plan; `streamed` by chance, else whole, its calls ending by their ranks."""

    def __init__(self, case: Case, *, state: State | None = None, streamed: random.Random | None = None) -> None:
        self.case = case
        self.order: list[int] = []
        start = State([Write(path=(), value=case.state)]) if state is None else state
        self.plan = Plan(
            1,
            tools={name: TOOLS[name, case.groups.get(name)] for name in case.ends},
            state=start,
            data={"input": case.input},
            execution="step" if case.step else "drain",
            parallel=case.parallel,
        )
        arriving = list(case.calls)
        running: list[Call] = []
        while not self.plan.settled:
            if arriving and (streamed is None or not running or streamed.random() < 0.5):
                self.plan.add(arriving.pop(0))
            elif not arriving and not self.plan.closed:
                self.plan.close()
            else:
                assert running, [(call.id, call.state.status) for call in self.plan.calls]
                call = min(running, key=lambda call: case.rank(call.index))
                running.remove(call)
                self.order.append(call.index)
                self.plan.end(call, self._outcome(call))
            if streamed is not None or self.plan.closed:
                running += self.plan.take_ready()
            self._check_room([call.index for call in running])

    def _check_room(self, running: list[int]) -> None:
        """R5.12, whatever has arrived."""
        groups = [group for index in running if (group := self.case.groups.get(self.case.tool(index)))]
        assert len(set(groups)) == len(groups), f"{running} run at once, of the groups {groups}"
        assert self.case.parallel is None or len(running) <= self.case.parallel, f"{running} run at once"

    def _outcome(self, call: Call) -> Outcome:
        how, value = self.case.outcome(call.index, call.inputs.params)
        if how == "failed":
            return Failed(CallError(value["code"], value["message"]))
        return Returned(value, call.spec.raw["_outputPath"].split(" || ")[-1] if how == "branch" else None)

    def ended(self) -> list[Any]:
        return [
            (call.state.status, call.state.error is not None and not call.state.writes, call.state.branch)
            for call in self.plan.calls
        ]

    def params(self) -> list[Any]:
        return [call.inputs.params for call in self.plan.calls if call.index in self.order]


def expected(spec: Interpreter) -> list[Any]:
    return [(node.status, node.told, node.branch) for node in spec.nodes]


def differences(engine: Engine, spec: Interpreter) -> list[str]:
    found = []
    for call, ours, theirs in zip(engine.plan.calls, engine.ended(), expected(spec), strict=True):
        if ours != theirs:
            why = call.state.error.message if call.state.error else call.state.reason
            found.append(f"{call.id}: {ours} ({why}), expected {theirs}")
    for index in engine.order:
        if (params := spec.nodes[index].params) != engine.plan.calls[index].inputs.params:
            found.append(
                f"1.{index} got {engine.plan.calls[index].inputs.params}, expected {params if params is not NOTHING else 'nothing'}"
            )
    if engine.plan.state.snapshot() != spec.state:
        found.append(f"state {engine.plan.state.snapshot()}, expected {spec.state}")
    return found


def told(case: Case, found: list[str]) -> str:
    calls = "\n".join(
        f"  1.{index} {call} → {case.ends.get(case.tool(index))}" for index, call in enumerate(case.calls)
    )
    config = f"parallel {case.parallel}, step {case.step}, groups {case.groups}"
    return f"seed {case.seed}: {'; '.join(found)}\nstate {case.state}, input {case.input}, {config}\n{calls}"


def batches() -> pytest.MarkDecorator:
    """The seeds in ten tests, so that workers of the suite share them."""
    return pytest.mark.parametrize("batch", range(10))


@batches()
def test_the_engine_does_what_the_protocol_says(batch: int) -> None:
    for seed in range(batch, SEEDS, 10):
        case = make_case(seed)
        engine, spec = Engine(case), interpret(case)
        same = engine.order == spec.order
        found = differences(engine, spec) if same else [f"ended in the order {engine.order}, not {spec.order}"]
        assert not found, told(case, found)


@batches()
def test_calls_that_arrive_one_by_one_do_what_the_protocol_says_of_the_list(batch: int) -> None:
    rare = [57060] if batch == 0 else []  # a call ends early, and its reader looks on into a ring
    for seed in [*rare, *range(batch, SEEDS, 10)]:
        case = make_case(seed, most=11, order=False) if seed in rare else make_case(seed)
        engine = Engine(case, streamed=random.Random(seed))
        found = differences(engine, interpret(case, engine.order))
        assert not found, told(case, found)


@batches()
def test_r6_4_an_output_binds_as_a_call_at_the_end_of_the_list(batch: int) -> None:
    for seed in range(batch, SEEDS // 4, 10):
        case = make_case(seed)
        engine = Engine(case, streamed=random.Random(seed))
        spec = interpret(case, engine.order)
        for path in PATHS:
            reference = parse_expression(f"†state.{path}")
            assert isinstance(reference, Reference)
            try:
                found = engine.plan.read_at_end(reference)
            except StateError:
                found = "unreadable"
            try:
                leaf = parse(f"†state.{path}")
                wanted = spec.see(len(case.calls), leaf)[1]
            except UnwritableError:
                wanted = "unreadable"
            assert (found is MISSING and wanted is NOTHING) or found == wanted, told(
                case, [f"{path}: {found}, {wanted}"]
            )


@batches()
def test_names_of_paths_mean_nothing(batch: int) -> None:
    for seed in range(batch, SEEDS // 4, 10):
        case = make_case(seed)
        other = renamed(case)
        ours, theirs = Engine(case), Engine(other)
        assert (ours.order, ours.ended()) == (theirs.order, theirs.ended()), told(case, ["differs when renamed"])
        assert rename(ours.params()) == theirs.params(), told(case, ["gets other parameters when renamed"])


@batches()
def test_neighbours_that_have_nothing_to_do_with_each_other_can_change_places(batch: int) -> None:
    for seed in range(batch, SEEDS // 2, 10):
        case = make_case(seed, order=False)  # who goes first is what a limit decides by the list
        ours = Engine(case)
        for at in range(len(case.calls) - 1):
            if independent(case, at):
                calls = [*case.calls[:at], case.calls[at + 1], case.calls[at], *case.calls[at + 2 :]]
                theirs = Engine(replace(case, calls=calls))
                ended = theirs.ended()
                ended[at], ended[at + 1] = ended[at + 1], ended[at]
                assert ended == ours.ended(), told(case, [f"{at} and {at + 1} cannot change places"])
                assert theirs.plan.state.snapshot() == ours.plan.state.snapshot()


def independent(case: Case, at: int) -> bool:
    """Whether neither of two neighbours reads or writes near what the other writes."""
    first, second = interpret(case).nodes[at : at + 2]
    reads = [{leaf[2] for tree in node.refs for leaf in leaves(tree)} for node in (first, second)]
    near = [*first.paths(), *reads[0]], [*second.paths(), *reads[1]]
    return not any(node.touches(path) for node, paths in ((first, near[1]), (second, near[0])) for path in paths)


@batches()
def test_a_snapshot_between_requests_changes_nothing(batch: int) -> None:
    for seed in range(batch, SEEDS // 4, 10):
        first, second = make_case(seed), make_case(seed + SEEDS)
        before = Engine(first).plan.state
        kept = State([Write.model_validate_json(write.model_dump_json()) for write in before.writes])
        compact = State(before.writes)
        compact.compact()
        ended = []
        for state in (before, kept, State(compact.writes)):
            engine = Engine(second, state=state)
            ended.append((engine.order, engine.ended(), engine.params(), engine.plan.state.snapshot()))
        assert ended[0] == ended[1] == ended[2], told(second, [f"differs after seed {seed}"])


@batches()
def test_what_a_call_comes_after_can_be_named_in_any_order(batch: int) -> None:
    for seed in range(2 * batch + 1, SEEDS // 2, 20):
        case = make_case(seed)
        calls = [
            call | {"_after": list(reversed(call["_after"]))} if isinstance(call.get("_after"), list) else call
            for call in case.calls
        ]
        ours, theirs = Engine(case), Engine(replace(case, calls=calls))
        assert (ours.order, ours.ended()) == (theirs.order, theirs.ended()), told(case, ["differs when reversed"])
