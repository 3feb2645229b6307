"""A slow interpreter of small plans: it plays every outcome, in every order, and tells which rules each of them breaks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

from perdure.errors import CallError
from perdure.plan import Call, Failed, Outcome, Plan, Returned
from perdure.rules.rules import AtMost, CountAtMost, FollowedBy, NeverAfter, OnlyFrom, Precedes, Rule
from perdure.tools.tool import Tool, parse_tool
from perdure.values.state import State, Write

STATE: Final[dict[str, Any]] = {"v": 1, "w": {"n": 2}, "yes": True}
TOOLS: Final[dict[str, Tool]] = {
    name: parse_tool({"name": name, "additionalProperties": True, "_activity": name}, activities=[name])
    for name in ("a", "b", "c")
}
_ENDS: Final[list[Outcome]] = [Returned({"n": 0}), Returned({"n": 1}), Failed(CallError("boom", "it broke"))]
End = tuple[str, int]
"""The id of a call that ends, and the number of its outcome."""
Past = tuple[tuple[str, str], ...]
"""What happened, in this order: `begun`, `done` or `failed`, and the call's id."""


def new_plan(calls: list[dict[str, Any]], data: dict[str, Any] | None = None) -> Plan:
    """Return the plan of these calls, complete, of which nothing has begun."""
    plan = Plan(1, tools=TOOLS, state=State([Write(path=(), value=STATE)]), data=data)
    for raw in calls:
        plan.add(raw)
    plan.close()
    return plan


class Outcomes:
    """All outcomes of a plan, found end by end. `broken` holds the keys of the rules that some outcome breaks."""

    def __init__(self, calls: list[dict[str, Any]], rules: list[Rule], most: int = 100) -> None:
        self._calls, self._rules = calls, rules
        self.broken: set[str] = set()
        self._never = {call.id for call in new_plan(calls).every_call() if call.state.status == "invalid"}
        self._seen: set[tuple[Any, ...]] = set()
        # A number that no condition reads changes nothing.
        self._numbers = [0, 1, 2] if any(".n >" in call.get("_if", "") for call in calls) else [0, 2]
        branches: list[tuple[list[End], list[Past]]] = [([], [()])]
        while branches and most > 0:
            most -= 1
            branches += self._play(*branches.pop())
        self.complete = not branches
        """Whether all outcomes were played."""

    def _play(self, ends: list[End], pasts: list[Past]) -> list[tuple[list[End], list[Past]]]:
        """Play these ends, and go on until nothing is new; return the branches that it did not take.

        A plan does not learn which of its ready calls have begun: it is the same for each of `pasts`.
        """
        plan = new_plan(self._calls)
        ready = {call.id: call for call in plan.take_ready()}
        branches: list[tuple[list[End], list[Past]]] = []
        for id, number in ends:
            _end(plan, ready, id, number)
        while found := self._next_ends(plan, ready, {id for id, _ in ends}, pasts):
            end, pasts = found.popitem()
            branches += [([*ends, other], later) for other, later in found.items()]
            ends = [*ends, end]
            _end(plan, ready, *end)
        return branches

    def _next_ends(
        self, plan: Plan, ready: dict[str, Call], ended: set[str], pasts: list[Past]
    ) -> dict[End, list[Past]]:
        """Play each begin; return the ends that may be next, with what happened before them."""
        found: dict[End, list[Past]] = {}
        state = tuple((call.id, call.state.status, str(call.state.result)) for call in plan.every_call())
        while pasts:
            past = pasts.pop()
            history = [(event, ready[id]) for event, id in past]
            begun = {id for event, id in past if event == "begun"}
            owed = tuple(
                (rule.key, call.id)
                for rule in self._rules
                if isinstance(rule, FollowedBy)
                for call in unfollowed(rule, history, plan, self._never)
            )
            key = (state, frozenset(begun), owed)
            if key in self._seen:
                continue
            self._seen.add(key)
            if ready.keys() == ended:
                self.broken |= {rule for rule, _ in owed}
            for id, call in ready.items():
                if id not in begun:
                    self._note_broken(call, history)
                    pasts.append((*past, ("begun", id)))
                elif id not in ended:
                    for number in self._numbers:
                        event = "failed" if isinstance(_ENDS[number], Failed) else "done"
                        found.setdefault((id, number), []).append((*past, (event, id)))
        return found

    def _note_broken(self, call: Call, history: list[tuple[str, Call]]) -> None:
        self.broken |= {
            rule.key for rule in self._rules if rule.subject == call.spec.tool_name and breaks(rule, call, history)
        }


def _end(plan: Plan, ready: dict[str, Call], id: str, number: int) -> None:
    plan.home(ready[id]).end(ready[id], _ENDS[number])
    ready |= {call.id: call for call in plan.take_ready()}


def breaks(rule: Rule, call: Call, history: list[tuple[str, Call]]) -> bool:
    """Whether a call that begins after this history breaks the rule, in the plainest words."""
    params = call.inputs.params
    if isinstance(rule, Precedes | NeverAfter):
        wanted = rule.event if isinstance(rule, NeverAfter) else "done"
        tools = [rule.after] if isinstance(rule, NeverAfter) else rule.firsts
        found = any(
            event == wanted
            and other.spec.tool_name in tools
            and all(
                one in other.inputs.params and two in params and other.inputs.params[one] == params[two]
                for one, two in rule.pairs
            )
            for event, other in history
        )
        return found if isinstance(rule, NeverAfter) else not found
    if isinstance(rule, OnlyFrom | FollowedBy):
        return False
    begun = [other for event, other in history if event == "begun" and other.spec.tool_name == rule.subject] + [call]
    if isinstance(rule, CountAtMost):
        return len(begun) > rule.count
    assert isinstance(rule, AtMost)
    values = [other.inputs.params.get("p") for other in begun]
    wrong = isinstance(values[-1], bool) or not isinstance(values[-1], int | float) or values[-1] < 0
    return wrong or sum(value for value in values if isinstance(value, int | float)) > rule.sum


def unfollowed(rule: FollowedBy, history: list[tuple[str, Call]], plan: Plan, never: set[str]) -> list[Call]:
    """Return the calls after which the rule wants another that has not begun, in the plainest words.

    One whose parameters do not fit what it has read is in the plan, which is enough, unless its written values are
    others. `never`: ids of impossible calls.
    """
    unfit = [
        call
        for call in plan.every_call()
        if call.spec.tool_name in rule.thens and call.state.status == "invalid" and call.id not in never
    ]

    def may_follow(call: Call, other: Call) -> bool:
        written = other.spec.params
        return all(
            one in call.inputs.params
            and two in written
            and (isinstance(written[two], str) or written[two] == call.inputs.params[one])
            for one, two in rule.pairs
        )

    def is_same(call: Call, other: Call) -> bool:
        return all(
            one in call.inputs.params
            and two in other.inputs.params
            and call.inputs.params[one] == other.inputs.params[two]
            for one, two in rule.pairs
        )

    return [
        call
        for place, (event, call) in enumerate(history)
        if event == "done" and call.spec.tool_name == rule.call
        if not any(may_follow(call, other) for other in unfit)
        if not any(
            what == "begun" and other.spec.tool_name in rule.thens and is_same(call, other)
            for what, other in history[place:]
        )
    ]


def random_calls(chance: random.Random) -> list[dict[str, Any]]:
    """Return one to four calls, with references forward and back, order, conditions, branches and loops."""
    count = chance.randint(1, 4)
    calls: list[dict[str, Any]] = []
    for index in range(count):
        calls.append(_random_call(chance, index, count))
    return calls


def _random_call(chance: random.Random, index: int, count: int, inside: bool = False) -> dict[str, Any]:
    call: dict[str, Any] = {"_tool": chance.choice("aabbc")}
    if chance.random() < 0.8:
        call["p"] = chance.choice([1, 1, 2, 3, "†state.v", "†state.w.n", *(["†item"] if inside else [])])
    others = [other for other in range(count) if other != index]
    if others and not inside and chance.random() < 0.55:
        one, two = chance.choice(others), chance.choice(others)
        call["r"] = chance.choice(
            [
                f"†state.r{one}",
                f"†state.r{one}.n",
                f"†state.r{one} || †state.r{two}",
                f"†state.r{one} && †state.r{two}",
                f"†state.e{one}",
            ]
        )
    if others and not inside and chance.random() < 0.3:
        one = chance.choice(others)
        call["_after"] = [chance.choice([f"1.{one}", f"ended 1.{one}", f"†state.r{one}", f"ended †state.r{one}"])]
    if chance.random() < 0.2:
        other = chance.choice(others) if others and not inside else None
        call["_if"] = "state.yes" if other is None else chance.choice([f"state.r{other}.n > 0", "state.v > 1"])
    if chance.random() < 0.85:
        name = chance.choice([index, index, index, 0]) if not inside else f"x{index}"
        call["_outputPath"] = chance.choice([f"†state.r{name}"] * 4 + [f"†state.r{name} || †state.e{name}"])
    if inside:
        call.pop("_if", None)
        call["_outputPath"] = f"†state.r{index}"
        if index and chance.random() < 0.6:
            call["r"] = f"†state.r{index - 1}"
    elif chance.random() < 0.12:
        body = [_random_call(chance, place, 2, inside=True) for place in range(chance.randint(1, 2))]
        loop = {"_tool": "_for", "_each": chance.choice([[1], [1, 2], [], "†state.none || †state.v"]), "_body": body}
        return loop | {key: call[key] for key in ("_after", "_if") if key in call}
    return call


def random_rules(chance: random.Random) -> list[Rule]:
    """Return a rule of each kind that depends on the order of calls, on their number or on their values."""
    one, two = chance.sample("abc", 2)
    return [
        Precedes(first=one, then=two, same=chance.choice([None, "p"])),
        Precedes(first=two, then=one, same=chance.choice([None, "p", {"p": "p"}])),
        NeverAfter(call=one, after=two, event=chance.choice(["begun", "done", "failed"])),
        NeverAfter(call=two, after=chance.choice([one, two]), event=chance.choice(["begun", "done", "failed"])),
        AtMost(of=f"{one}.p", sum=chance.randint(0, 5)),
        CountAtMost(of=two, count=chance.randint(0, 3)),
        Precedes(first=("a", "c"), then="b", same=chance.choice([None, "p"])),
        NeverAfter(call=one, after=chance.choice([one, two]), event=chance.choice(["begun", "done"]), same="p"),
    ]


def followed_rules(chance: random.Random) -> list[Rule]:
    """Return rules that want a later call."""
    one, two = chance.sample("abc", 2)
    return [
        FollowedBy(call=one, then=two, same=chance.choice([None, "p"])),
        FollowedBy(call="a", then=("b", "c"), same=chance.choice([None, None, "p"])),
    ]


def seeds(first: int, count: int) -> Iterator[tuple[int, list[dict[str, Any]], list[Rule]]]:
    """Yield plans with rules, by seed."""
    for seed in range(first, first + count):
        chance = random.Random(seed)
        yield seed, random_calls(chance), random_rules(chance) + followed_rules(chance)
