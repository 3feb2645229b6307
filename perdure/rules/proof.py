"""The static judge: the verdict on each rule over a plan, before its first call.

A rule is *proven* if no outcome of the plan's calls can violate it, and *violated* if some outcome does, which a path
shows. Otherwise it is *unknown*, because a value, a condition or a child run decides it. The check at each call
(`perdure.rules.enforcement`) does not depend on this judge: a wrong proof would show a wrong verdict, and allow no
forbidden call.

The judge works on sets of calls as bits of integers. For each call it knows the calls that are certainly done before it
begins (`done`), and those that have certainly ended (`ended`). Calls without a condition, branch or loop are *plain*:
for these it knows exactly whether they begin if others fail.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from operator import and_
from typing import Final, Literal, TypeAlias

from pydantic import Field

from perdure.plan import (
    DEFAULT_ITERATIONS,
    EACH,
    EXECUTED_CALLS_COUNT,
    AnyOf,
    Call,
    EachOf,
    Plan,
    Requirement,
    Requirements,
    WritersOf,
    body_requirements,
)
from perdure.rules.enforcement import Breach, RuleBook, exceeded_reason
from perdure.rules.rules import (
    AtMost,
    CountAtMost,
    FollowedBy,
    Needs,
    NeverAfter,
    OnlyFrom,
    Precedes,
    Rule,
    amount_of,
    digest_of,
    keys_of,
    names_of,
    same_key,
    value_at,
)
from perdure.tools.tool import Tool
from perdure.values.json import Json, JsonObject, WireModel
from perdure.values.provenance import in_words
from perdure.values.references import MISSING, Reference, overlaps
from perdure.values.templates import parse_template

VerdictStatus: TypeAlias = Literal["proven", "violated", "unknown"]
Reach: TypeAlias = Callable[[Tool], "frozenset[str] | None"]
"""Function that returns the names of the tools that the child run of a delegate's tool may use; `None`: any."""
Recorded: TypeAlias = Callable[[Call], bool]
"""Function that returns whether the record of a fork may answer a call before other calls begin."""

DATA_KNOWN: Final = "data-known"
"""Patch: `same` compares the values of references to data, such as the input and what an undo reads, not their names."""
_ORDER: Final[tuple[VerdictStatus, ...]] = ("proven", "unknown", "violated")


class PathStep(WireModel):
    """One step of a counterexample."""

    call: str
    tool: str
    what: str
    """The call's event: `begins`, `fails`, `is not done`."""


class RuleVerdict(WireModel):
    """The verdict on one rule over one plan.

    ```python
    for verdict in request.verdicts:
        print(verdict.status, verdict.rule, verdict.words)
    ```
    """

    rule: str
    """The rule in its Python form."""
    status: VerdictStatus
    call: str = ""
    """The call that violates the rule, or for which it is unknown."""
    words: str = ""
    """Why."""
    path: list[PathStep] = Field(default_factory=list)
    """A path that violates the rule."""
    asks: list[str] = Field(default_factory=list, exclude_if=operator.not_)
    """The calls about which a person is asked, because they violate a rule with `otherwise="ask"`."""

    @property
    def forbids(self) -> bool:
        """Whether a call may not begin: it violates the rule, and no person is asked."""
        return self.status == "violated" and not self.asks

    @property
    def line(self) -> str:
        """The verdict in one line."""
        verdict = f"asks about {', '.join(self.asks)}" if self.asks else self.status
        return f"{verdict}: {self.reason}"

    @property
    def reason(self) -> str:
        """The rule, why the verdict is so, and the path."""
        path = " → ".join(f"{step.call} {step.tool} {step.what}" for step in self.path)
        return self.rule + (f": {self.words}" if self.words else "") + (f" ({path})" if path else "")


@dataclass(frozen=True, slots=True)
class _Use:
    """A use of a tool that a plan may make: a call, or a call of a loop's body."""

    call: Call
    spec: object
    """The call's specification when it arrived: a person may replace the call."""
    home: int
    """Index of the call, or of the loop around it, in the plan."""
    place: int | None = None
    """Place in the body of the outermost loop; `None` outside of loops."""
    least: int = 1
    most: float = 1
    """Maximum number of its begins, if its home begins."""
    certain: bool = True
    """Whether it begins in each iteration of the loop."""


@dataclass(slots=True)
class _Facts:
    """The facts of one call of the plan."""

    needs: Requirements
    names: frozenset[int]
    """All calls that `needs` names."""
    done: int = 0
    ended: int = 0
    plain: bool = False
    sure: bool = False
    held: bool = False
    """Whether a Request has still to decide on the call, or on one that it waits for."""


@dataclass(slots=True)
class _Finding:
    status: VerdictStatus
    words: str = ""
    path: list[PathStep] = field(default_factory=list)


_PROVEN: Final = _Finding("proven")


class PlanJudge:
    """The judge of one plan, for the rules of a book. Calls may still arrive: `open_calls` are judged later."""

    def __init__(
        self, plan: Plan, book: RuleBook, reach: Reach = lambda _: None, recorded: Recorded = lambda _: False
    ) -> None:
        self._plan, self._book, self._reach, self._recorded = plan, book, reach, recorded
        self._facts: dict[int, _Facts] = {}
        self._provisional: set[int] = set()
        """Calls whose facts may change, because the calls that they wait for may change."""
        self._uses: dict[str, list[_Use]] = {}
        """By tool name."""
        self._arrived: list[_Use] = []
        """All of them."""
        self._below: list[tuple[int, frozenset[str] | None]] = []
        """Calls with runs below, with the tools that these may use."""
        self._filed = 0
        self._has_after = False
        """Whether a call waits for another one by `_after`."""
        self._seen = (0, 0)
        self._begun: dict[int, dict[int, bool]] = {}
        """Whether a call begins, by the calls that fail."""
        self._other_calls: dict[str, _OtherCalls] = {}
        self._keys: dict[tuple[int, tuple[str, ...]], tuple[str, str] | None] = {}
        """The keys of the uses' values, by the names of their parameters."""
        self._sums: dict[str, _SumScan] = {}

    def is_of(self, plan: Plan) -> bool:
        """Whether this is the judge of the plan."""
        return self._plan is plan

    def matters_to_others(self, call: Call) -> bool:
        """Whether the call's arrival may make earlier calls violate a rule."""
        names = {name for each in call.written() if each.spec.tool is not None for name in names_of(each.spec.tool)}
        return any(isinstance(rule, NeverAfter) and rule.after in names for rule in self._book.rules)

    def verdicts(self) -> list[RuleVerdict]:
        """Return the verdict on each rule, over the calls so far."""
        return [self._verdict(rule) for rule in self._book.rules]

    def breach(self, call: Call) -> Breach | None:
        """Return the rule that this call violates in some outcome of the plan, with the path; a person cannot allow it."""
        self._file()
        for rule in self._rules_of(call):
            if rule.otherwise == "ask":
                continue
            for use in self._uses_of(rule, call.index):
                found = self._judge(rule, use)
                if found.status == "violated":
                    path = " → ".join(f"{step.call} {step.tool} {step.what}" for step in found.path)
                    return Breach(rule, found.words + (f": {path}" if path else ""))
        return None

    def unfollowed(self, call: Call) -> Breach | None:
        """Return the rule that requires a later call, if the present plan does not certainly make that call after this
        one.
        """
        self._file()
        resolved = call.spec.loop is None and call.state.status in _RESOLVED
        for rule in self._rules_of(call):
            if isinstance(rule, FollowedBy) and not (
                resolved and not rule.covers(call.spec.known_tool.with_defaults(call.inputs.params))
            ):
                for use in self._uses_of(rule, call.place[0]):
                    if (found := self._followed(rule, use)).status != "proven":
                        return Breach(rule, found.words)
        return None

    def required(self) -> list[tuple[Call, FollowedBy]]:
        """Return the calls that have to begin because begun calls were allowed in view of them, each with the rule."""
        self._file()
        required: dict[tuple[int, str], tuple[Call, FollowedBy]] = {}
        for rule in [each for each in self._book.rules if isinstance(each, FollowedBy)]:
            for use in self._uses_under(rule):
                home = self._plan.calls[use.home]
                follower = self._follower(rule, use)[0] if self._may_have_run(home) and _may_cover(rule, use) else None
                if follower is not None:
                    required[follower, rule.key] = self._plan.calls[follower], rule
        return [*required.values()]

    def _may_have_run(self, call: Call) -> bool:
        """Whether the call was executed, or may be under way on a worker, with its client or with a person."""
        if call.state.status == "waiting":
            return self._book.has_begun(call) and self._plan.checks.is_patched(EXECUTED_CALLS_COUNT)
        return call.state.executed or (call.state.status == "running" and not call.hold.queued)

    def is_open(self, call: Call) -> bool:
        """Whether the call may have to wait for calls that have not arrived."""
        return not self._plan.closed and self._plan.requirements(call.index).open

    def _rules_of(self, call: Call) -> list[Rule]:
        names = {name for each in call.written() if each.spec.tool is not None for name in names_of(each.spec.tool)}
        return [rule for rule in self._book.rules if not names.isdisjoint(rule.subjects)]

    def _uses_under(self, rule: Rule) -> list[_Use]:
        """Return the uses of the rule's tool, in the order of the list."""
        if len(rule.subjects) == 1:
            return self._uses.get(rule.subject, [])
        names = set(rule.subjects)
        return [use for use in self._arrived if not names.isdisjoint(names_of(use.call.spec.known_tool))]

    def _uses_of(self, rule: Rule, home: int) -> list[_Use]:
        return [use for use in self._uses_under(rule) if use.home == home and _may_cover(rule, use)]

    def _verdict(self, rule: Rule) -> RuleVerdict:
        self._file()
        worst, at = _PROVEN, ""
        asks: list[str] = []
        for use in self._uses_under(rule):
            if not _may_cover(rule, use) or not self._may_begin(use):
                continue
            found = self._judge(rule, use)
            if found.status == "violated" and rule.otherwise == "ask":
                asks.append(use.call.id)
            if _ORDER.index(found.status) > _ORDER.index(worst.status):
                worst, at = found, use.call.id
        if worst.status == "proven" and (below := self._touching(rule.tools)):
            call = self._plan.calls[below[0]]
            words = f"the run below {call.title} may call {rule.subject}; it keeps the rule itself"
            worst, at = _Finding("unknown", words), call.id
        asks = [*dict.fromkeys(asks)]
        return RuleVerdict(rule=rule.words, status=worst.status, call=at, words=worst.words, path=worst.path, asks=asks)

    # The calls of the plan.

    def _file(self) -> None:
        """Add the calls that have arrived, and drop facts that begun or ended calls have made invalid."""
        if (now := (self._plan.ended, self._book.begun)) != self._seen:
            if now[0] != self._seen[0]:  # a begin changes none of these
                self._other_calls, self._keys = {}, {}
            self._seen = now
            self._begun, self._sums = {}, {}
            if any(use.call.spec is not use.spec for use in self._arrived):
                self._uses, self._arrived, self._below = {}, [], []
                self._facts, self._filed, self._other_calls = {}, 0, {}
        calls = self._plan.calls
        if self._filed < len(calls):
            self._keys = {}
        for call in calls[self._filed :]:
            self._has_after |= "_after" in call.spec.raw
            for use in _uses_in(call, counts_each=self._book.counts_each):
                tool = use.call.spec.tool
                if tool is None:
                    continue
                self._arrived.append(use)
                for name in names_of(tool):
                    self._uses.setdefault(name, []).append(use)
                if tool.delegate is not None:
                    self._below.append((call.index, self._reach(tool)))
        self._filed = len(calls)

    def _may_begin(self, use: _Use) -> bool:
        return not self._plan.calls[use.home].state.ended and use.most > 0

    def _touching(self, tools: Iterable[str]) -> list[int]:
        """Return the calls whose child runs may use one of the tools."""
        named = set(tools)
        return [
            index
            for index, names in self._below
            if not self._plan.calls[index].state.ended and (names is None or not named.isdisjoint(names))
        ]

    def _known(self, index: int) -> _Facts:
        """Return the facts of a call, after those of all calls that it waits for."""
        known = self._facts.get(index)
        if known is not None:
            return known
        stack, visiting = [index], set[int]()
        while stack:
            at = stack[-1]
            if at in self._facts:
                stack.pop()
                continue
            needs = self._plan.requirements(at)
            missing = [each for each in _named(needs) if each not in self._facts and each not in visiting]
            if missing and at not in visiting:
                visiting.add(at)
                stack.extend(missing)
                continue
            self._facts[at] = self._facts_of(at, needs)
            stack.pop()
        facts = self._facts[index]
        for at in self._provisional:
            del self._facts[at]
        self._provisional.clear()
        return facts

    def _facts_of(self, index: int, needs: Requirements) -> _Facts:
        call, known = self._plan.calls[index], self._facts
        waits = _named(needs)
        facts = _Facts(needs, frozenset(waits))
        for each in needs.ended:
            below = known[each].ended if each in known and not self._plan.calls[each].state.ended else 0
            facts.ended |= 1 << each | below
        facts.done = self._done(needs.needed)
        facts.held = call.hold.held or any(each in known and known[each].held for each in waits)
        decided = call.spec.has_condition or call.spec.branches or call.hold.held
        facts.sure = not decided and all(each in known and known[each].sure for each in waits)
        # A loop writes a list, whose readable parts are unknown.
        plain = all(each in known and known[each].plain and self._plan.calls[each].spec.loop is None for each in waits)
        facts.plain = facts.sure and plain and not (self._plan.is_stepwise and waits) and not (needs.open or needs.more)
        if facts.held or (needs.open and not self._plan.closed):
            self._provisional.add(index)
        return facts

    def _done(self, needed: Requirement) -> int:
        if isinstance(needed, EachOf):
            found = 0
            for each in needed.items:
                found |= self._done(each)
            return found
        if isinstance(needed, AnyOf):
            masks = [self._done(each) for each in needed.items]
            return _common(masks)
        found = 0
        for writer in needed.writers:
            if self._plan.calls[writer].hold.held:
                continue  # the call may be dropped
            if writer in self._facts and (self._facts[writer].sure or needed.well):
                found |= 1 << writer | self._facts[writer].done
        if needed.setters and needed.only_setters and needed.setters[0] in self._facts:
            found |= _common([self._done_by(each) for each in needed.setters])
        return found

    def _done_by(self, setter: int) -> int:
        if setter not in self._facts:
            return 0
        own = 0 if self._plan.calls[setter].spec.branches else 1 << setter
        return own | self._facts[setter].done

    def _begins(self, index: int, failing: int) -> bool:
        """Whether a plain call begins if the `failing` calls fail, and all others succeed."""
        memo = self._begun.setdefault(failing, {})
        stack, visiting = [index], set[int]()
        while stack:
            at = stack[-1]
            if at in memo:
                stack.pop()
                continue
            state, facts = self._plan.calls[at].state, self._known(at)
            missing = [] if state.ended else [each for each in facts.names if each not in memo and each not in visiting]
            if missing and at not in visiting:
                visiting.add(at)
                stack.extend(missing)
                continue
            memo[at] = state.status == "done" if state.ended else _is_met(facts.needs.needed, failing, memo)
            stack.pop()
        return memo[index]

    def _is_plain(self, use: _Use) -> bool:
        """Whether only failures of other calls decide whether the use begins."""
        return self._known(use.home).plain and use.certain and use.least > 0

    def _is_made_each_iteration(self, use: _Use) -> bool:
        """Whether the use is a call of its loop's own body that is made at least once in each iteration."""
        least = _count_runs(use.call)[0] if self._book.counts_each else 1
        return _is_direct(self._plan, use) and least > 0

    def _surely_begins(self, use: _Use) -> bool:
        """Whether the use begins if all calls succeed."""
        return self._is_plain(use) and self._begins(use.home, 0)

    # The judgement of one use of a tool, by the kind of the rule.

    def _judge(self, rule: Rule, use: _Use) -> _Finding:
        found = self._judge_kind(rule, use)
        if found.status == "violated" and not (self._surely_begins(use) and _surely_covers(rule, use)):
            return _Finding("unknown", found.words)
        return found

    def _judge_kind(self, rule: Rule, use: _Use) -> _Finding:
        if isinstance(rule, Precedes):
            return self._order(rule, use)
        if isinstance(rule, FollowedBy):
            return self._followed(rule, use)
        if isinstance(rule, NeverAfter):
            return self._never(rule, use)
        if isinstance(rule, AtMost | CountAtMost):
            return self._sum(rule, use)
        if isinstance(rule, OnlyFrom):
            return self._sources(rule, use)
        assert isinstance(rule, Needs)
        if rule.role in self._book.roles:
            return _PROVEN
        words = f'the sender of the run does not have the role "{rule.role}"'
        return _Finding("violated", words, [_step(use.call, "begins")])

    def _order(self, rule: Precedes, use: _Use) -> _Finding:
        key = self._key(use, [then for _, then in rule.pairs])
        if key == _MISSING:
            names = " and ".join(then for _, then in rule.pairs)
            return _Finding("violated", f"{use.call.title} has no {names}", [_step(use.call, "begins")])
        if key is not None and key[0] == "value" and self._book.has(rule, key[1]):
            return _PROVEN
        waits = self._known(use.home)
        firsts = self._find_others(rule, rule.firsts, [first for first, _ in rule.pairs])
        same, possible = firsts.masks(key)
        if waits.done & same:
            return _PROVEN
        inside = _inner_done(self._plan.calls[use.home], use) if use.place is not None else frozenset()
        doubtful = bool(waits.ended & (possible | firsts.in_loops))
        for first in firsts.inner.get(use.home, ()):
            equal = self._same(rule, first, use)
            if equal is True and first.place in inside and self._is_made_each_iteration(first):
                return _PROVEN
            doubtful = doubtful or equal is not False
        if (key is None or key[0] != "value") and self._book.record.entries.get(rule.key):
            doubtful = True
        if any(waits.ended >> below & 1 for below in self._touching(rule.firsts)):
            doubtful = True
        if any(self._recorded(self._plan.calls[each]) for each in _bits(same | possible)):
            doubtful = True  # whether the record answers the call depends on the values that the call reads
        if doubtful:
            return _Finding(
                "unknown", f"whether {rule.first_words} is done before {use.call.title} is only known at run time"
            )
        if self._is_plain(use) and not self._begins(use.home, same | possible):
            return _PROVEN  # on every path one of them is done, although none is done on all paths
        path = [_step(self._plan.calls[each], "fails, or has not ended") for each in _bits(same | possible)]
        words = f"{use.call.title} can begin although no call of {rule.first_words} is done"
        if rule.pairs:
            words += f" for the same {' and '.join(then for _, then in rule.pairs)}"
        return _Finding("violated", words, [*path[:6], _step(use.call, "begins")])

    def _followed(self, rule: FollowedBy, use: _Use) -> _Finding:
        follower, path = self._follower(rule, use)
        if follower is not None:
            return _PROVEN
        what = f"the plan has no call of {' or '.join(rule.thens)} that always starts after {use.call.title}"
        if rule.pairs:
            what += f" for the same {' and '.join(then for _, then in rule.pairs)}"
        if path is None:
            return _Finding("unknown", what)
        return _Finding("violated", what, [_step(use.call, "is done"), *path[:6]])

    def _follower(self, rule: FollowedBy, use: _Use) -> tuple[int | None, list[PathStep] | None]:
        """Return the call that begins after the use on every path on which the use is done, or a path without such a
        call.

        A follower needs only the use and the calls done before it: it may only wait for other calls.
        """
        firsts, names = [first for first, _ in rule.pairs], [then for _, then in rule.pairs]
        thens, key = self._find_others(rule, rule.thens, names), self._key(use, firsts)
        same, possible = thens.masks(key)
        if use.place is None and use.call.state.status in _RESOLVED:
            resolved = same_key(use.call.spec.known_tool.with_defaults(use.call.inputs.params), firsts)
            equal = 0 if resolved is None else thens.masks(("value", resolved))[0]
            same = equal if use.call.inputs.changed else same | equal
        done, loop = self._known(use.home).done, self._plan.calls[use.home]
        if use.place is None:
            done |= 1 << use.home
        elif any(
            self._same(rule, use, then) is True and _follows_inside(loop, use, then)
            for then in thens.inner.get(use.home, ())
            if _is_direct(self._plan, use) and self._is_made_each_iteration(then)
        ):
            return use.home, None
        for each in _bits(same):
            if self._surely_follows(each, use.home, done):
                return each, None
        doubtful = not self._plan.closed or bool(thens.in_loops)
        path = []
        for each in _bits((same | possible) & ~(1 << use.home)):
            call, facts = self._plan.calls[each], self._known(each)
            if call.state.ended or key == _MISSING:
                continue
            begins = self._met_by(facts.needs.needed, done)
            if not facts.plain or (begins and (facts.ended >> use.home & 1 or not same >> each & 1)):
                doubtful = True
            path.append(_step(call, "begins earlier" if begins else "does not begin, if a call fails that it needs"))
        return None, None if doubtful else path

    def _surely_follows(self, index: int, before: int, done: int) -> bool:
        """Whether the call begins after the previous one has ended, if only these calls are done."""
        call, facts = self._plan.calls[index], self._known(index)
        decided = call.spec.has_condition or call.hold.held or call.state.ended
        late = facts.needs.more or (facts.needs.open and not self._plan.closed)
        stepwise = self._plan.is_stepwise and bool(facts.names)
        return (
            before in facts.needs.ended and not (decided or late or stepwise) and self._met_by(facts.needs.needed, done)
        )

    def _met_by(self, needed: Requirement, done: int) -> bool:
        """Whether these calls are enough, so that a call has its values in every outcome of others."""
        if isinstance(needed, WritersOf):
            if not needed.writers:
                return needed.exists
            return all(
                done >> each & 1 and (needed.well or not self._plan.calls[each].spec.branches)
                for each in needed.writers
            )
        results = (self._met_by(each, done) for each in needed.items)
        return any(results) if isinstance(needed, AnyOf) else all(results)

    def _find_others(self, rule: Precedes | FollowedBy, tools: Sequence[str], names: Sequence[str]) -> _OtherCalls:
        """Return the calls of these tools, by their values of the parameters with these names."""
        known = self._other_calls.setdefault(rule.key, _OtherCalls())
        for tool in tools:
            uses = self._uses.get(tool, [])
            for first in uses[known.counts.get(tool, 0) :]:
                state = self._plan.calls[first.home].state
                if state.ended and state.status != "done":
                    continue
                if not first.most and self._book.counts_each:
                    continue
                if first.place is not None:
                    known.inner.setdefault(first.home, []).append(first)
                if first.place is not None or not first.least:
                    known.in_loops |= 1 << first.home
                else:
                    known.add(self._key(first, names), 1 << first.home)
            known.counts[tool] = len(uses)
        return known

    def _never(self, rule: NeverAfter, use: _Use) -> _Finding:
        words, key = f"a call of {rule.after} {_PAST[rule.event]}", self._key(use, [then for _, then in rule.pairs])
        if self._book.has(rule) or (key is not None and key[0] == "value" and self._book.has(rule, key[1])):
            return _Finding("violated", words, [_step(use.call, "begins")])
        if key == _MISSING:
            return _PROVEN  # no call has the same value
        unknown: _Finding | None = None
        firsts = [first for first, _ in rule.pairs]
        if (key is None or key[0] != "value") and self._book.record.entries.get(rule.key):
            unknown = _Finding("unknown", f"{words}, with a value that is only compared at the call")
        for after in self._uses.get(rule.after, ()):
            equal = _are_equal(self._key(after, firsts), key)
            if equal is False or (unknown is not None and equal is None) or not self._may_begin(after):
                continue
            found = self._after(rule, use, after)
            if found.status == "violated" and equal:
                return found
            unknown = unknown or (_Finding("unknown", found.words) if found.status != "proven" else None)
        if unknown is None:
            for below in self._touching([rule.after]):
                if below != use.home and not self._known(below).ended >> use.home & 1:
                    unknown = _Finding("unknown", f"a run below may call {rule.after} before {use.call.title} begins")
        return unknown or _PROVEN

    def _after(self, rule: NeverAfter, use: _Use, after: _Use) -> _Finding:
        words = f"{use.call.title} can begin after {after.call.title} {_PAST[rule.event]}"
        if after.home == use.home:
            if use.place is None or (use.most <= 1 and use.place == after.place):
                return _PROVEN  # the call itself
            return _Finding("unknown", words)
        if self._known(after.home).ended >> use.home & 1:
            return _PROVEN  # the call waits for the end of the use
        if rule.event == "failed" and after.place is None:
            needs_success = self._known(use.home).done >> after.home & 1
            if needs_success or (self._is_plain(use) and not self._begins(use.home, 1 << after.home)):
                # A call whose result cannot be used has failed, but counts as done for `_after`. So has a loop in part.
                may_do_both = after.call.spec.repeats or self._has_after
                return _Finding("unknown", words) if may_do_both else _PROVEN
        certain = self._is_plain(after) and self._is_plain(use) and self._begins(after.home, 0)
        if not certain or (rule.event == "failed" and after.place is not None):
            return _Finding("unknown", words)
        return _Finding("violated", words, [_step(after.call, _NOW[rule.event]), _step(use.call, "begins")])

    def _sum(self, rule: AtMost | CountAtMost, use: _Use) -> _Finding:
        scan = self._sums.setdefault(rule.key, _SumScan())
        self._scan(rule, scan)
        found = scan.wrong.get(id(use))
        if found is not None:
            return found
        if scan.certain and not self._touching(rule.subjects):
            return _PROVEN
        what = "count" if isinstance(rule, CountAtMost) else "sum"
        return _Finding("unknown", f"the {what} is only known at the calls")

    def _scan(self, rule: AtMost | CountAtMost, scan: _SumScan) -> None:
        """Add the calls that have arrived to the sum of all calls of the plan, in the order of the list."""
        used, uses = self._book.used(rule), self._uses_under(rule)
        for use in uses[scan.count :]:
            if not self._may_begin(use) or self._book.has_begun(use.call) or not _may_cover(rule, use):
                continue
            amount = Fraction(1) if isinstance(rule, CountAtMost) else _literal_amount(rule.of, use.call)
            if isinstance(amount, str):
                scan.wrong[id(use)] = _Finding("violated", amount, [_step(use.call, "begins")])
                continue  # it never begins
            if amount is None or use.most == math.inf:
                scan.is_known = False
            else:
                scan.high += amount * int(use.most)
            if amount is None or not _surely_covers(rule, use) or not self._surely_begins(use):
                continue
            if used + scan.low + amount * use.least > rule.limit:
                words = exceeded_reason(rule, used + scan.low, amount * use.least) or ""
                path = [*scan.path[-5:], _step(use.call, "begins")]
                scan.wrong[id(use)] = _Finding("violated", words, path)
                continue
            scan.low += amount * use.least
            scan.path.append(_step(use.call, "begins"))
        scan.count = len(uses)
        scan.certain = scan.is_known and used + scan.high <= rule.limit and (not rule.is_of_tenant or not uses)

    def _sources(self, rule: OnlyFrom, use: _Use) -> _Finding:
        name = keys_of(rule.parameter, use.call.spec.known_tool)[0]
        origins, params = use.call.inputs.origins, use.call.spec.params
        if use.place is None and name not in params:
            return _PROVEN
        if origins.read and use.place is None:
            sources = origins.params.get(name, origins.written) or origins.written
        elif use.place is None and parse_template(params.get(name))[0].literal and origins.written:
            sources = origins.written
        else:
            return _Finding("unknown", f"the provenance of {rule.parameter} is only known at the call")
        found = rule.stranger(sources)
        if found is None:
            return _PROVEN
        words = f"{rule.parameter} of {use.call.title} comes from {in_words([found])}"
        return _Finding("violated", words, [_step(use.call, "begins")])

    # Equal values.

    def _same(self, rule: Precedes | FollowedBy | NeverAfter, first: _Use, then: _Use) -> bool | None:
        """Whether the values of `same` are equal in both; `None` if that is unknown."""
        return _are_equal(
            self._key(first, [name for name, _ in rule.pairs]), self._key(then, [name for _, name in rule.pairs])
        )

    def _key(self, use: _Use, names: Sequence[str]) -> tuple[str, str] | None:
        """Return a key that is equal for equal values of parameters: the values, or their references."""
        if not names:
            return ("value", "")
        place = id(use), tuple(names)
        if place not in self._keys:
            self._keys[place] = self._find_key(use, names)
        return self._keys[place]

    def _find_key(self, use: _Use, names: Sequence[str]) -> tuple[str, str] | None:
        parts: list[Json] = []
        literals: list[Json] = []
        params = _written_params(use.call)
        for name in names:
            if name.partition(".")[0] not in params:
                return _MISSING
            value = value_at(name, params)
            if value is MISSING:
                return None
            template = parse_template(value)[0]
            if template.literal:
                literals.append(value)
                parts.append(["value", value])
                continue
            whole = len(template.sites) == 1 and not template.sites[0].path and isinstance(value, str)
            reference = template.sites[0].expression if whole and not template.computes else None
            if (
                not isinstance(reference, Reference)
                or use.call.spec.instance is not None
                or str(reference) != str(value).strip()
            ):
                return None
            place = self._place_of(use, reference)
            if place is None:
                return None
            known = self._plan.data_at(reference) if self._plan.checks.is_patched(DATA_KNOWN) else MISSING
            if isinstance(known, str | int | float | None):
                literals.append(known)
                parts.append(["value", known])
            else:
                parts.append([str(reference), place])
        return ("value", digest_of(literals)) if len(literals) == len(parts) else ("reference", digest_of(parts))

    def _place_of(self, use: _Use, reference: Reference) -> Json:
        """Return a key that distinguishes values of one reference: its writers, and the list or iteration that reads
        it.
        """
        request = use.call.id.split(".")[0]
        if use.place is not None:
            if not _is_direct(self._plan, use):
                return None
            body = _body_of(self._plan.calls[use.home])
            written = [path for form in body for paths in form.spec.paths for path in paths]
            if reference.kind == "state" and any(overlaps(path, reference.path) for path in written):
                return None
            return ["loop", use.home]
        if reference.kind != "state":
            return ["data", request]
        writers = self._plan.writers_of(use.home, reference)
        return None if writers is None else ["state", request, *writers]


def _are_equal(first: tuple[str, str] | None, then: tuple[str, str] | None) -> bool | None:
    """Whether two keys stand for equal values; `None` if that is unknown."""
    if _MISSING in (first, then):
        return False
    if first is None or then is None:
        return None
    if first == then:
        return True
    return False if first[0] == then[0] == "value" else None


@dataclass(slots=True)
class _OtherCalls:
    """The calls of a plan that an order rule requires before, or after, a call. They are bits, by the values that the
    rule compares.
    """

    counts: dict[str, int] = field(default_factory=dict)
    """The number of uses that were added, by tool."""
    values: dict[tuple[str, str] | None, int] = field(default_factory=dict)
    inner: dict[int, list[_Use]] = field(default_factory=dict)
    """Those in loops, by the loop."""
    in_loops: int = 0
    by_value: int = 0
    by_reference: int = 0
    by_nothing: int = 0

    def add(self, key: tuple[str, str] | None, bit: int) -> None:
        if key == _MISSING:
            return
        self.values[key] = self.values.get(key, 0) | bit
        if key is None:
            self.by_nothing |= bit
        elif key[0] == "value":
            self.by_value |= bit
        else:
            self.by_reference |= bit

    def masks(self, key: tuple[str, str] | None) -> tuple[int, int]:
        """Return the calls with certainly equal values, and those with possibly equal values."""
        every = self.by_value | self.by_reference | self.by_nothing
        if key is None:
            return 0, every
        same = self.values.get(key, 0)
        return same, (every & ~self.by_value if key[0] == "value" else every) & ~same


@dataclass(slots=True)
class _SumScan:
    """The amounts of the calls of a plan, for one sum."""

    count: int = 0
    """Uses that were added."""
    low: Fraction = Fraction()
    """The sum of the uses that begin if all calls succeed."""
    high: Fraction = Fraction()
    is_known: bool = True
    """Whether `high` is the sum of all uses."""
    path: list[PathStep] = field(default_factory=list)
    certain: bool = False
    """Whether all uses together stay within the limit in every outcome."""
    wrong: dict[int, _Finding] = field(default_factory=dict)
    """The uses that exceed it."""


_MISSING: Final = ("missing", "")
_RESOLVED: Final = ("ready", "waiting", "running")
"""The states of calls whose parameters are known."""
_PAST: Final = {"begun": "has begun", "done": "is done", "failed": "has failed"}
_NOW: Final = {"begun": "begins", "done": "is done", "failed": "fails"}


def judge_plan(
    plan: Plan, book: RuleBook, reach: Reach = lambda _: None, recorded: Recorded = lambda _: False
) -> list[RuleVerdict]:
    """Return the verdict on each rule of the book over a plan, without changing either.

    `reach`: the names of the tools that a delegate's run may use; by default any. `recorded`: whether the record of a
    fork may answer a call; by default none.

    ```python
    for verdict in judge_plan(plan, RuleBook(rules)):
        print(verdict.line)
    ```
    """
    return PlanJudge(plan, book, reach, recorded).verdicts() if book.rules else []


def _is_met(needed: Requirement, failing: int, begun: dict[int, bool]) -> bool:
    if isinstance(needed, WritersOf):
        if not needed.writers:
            return needed.exists
        return all(not failing >> each & 1 and begun.get(each, False) for each in needed.writers)
    results = (_is_met(each, failing, begun) for each in needed.items)
    return any(results) if isinstance(needed, AnyOf) else all(results)


def _is_direct(plan: Plan, use: _Use) -> bool:
    """Whether the use is a call of its loop's own body, and not of a loop in it."""
    return use.place is not None and _body_of(plan.calls[use.home])[use.place] is use.call


def _step(call: Call, what: str) -> PathStep:
    return PathStep(call=call.id, tool=call.spec.tool_name, what=what)


def _named(needs: Requirements) -> set[int]:
    """Return all calls that the requirements name."""
    found = set(needs.ended)
    stack: list[Requirement] = [needs.needed]
    while stack:
        each = stack.pop()
        if isinstance(each, WritersOf):
            found.update(each.writers, each.setters)
        else:
            stack.extend(each.items)
    return found


def _common(masks: Sequence[int]) -> int:
    return reduce(and_, masks) if masks else 0


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _uses_in(call: Call, *, counts_each: bool) -> Iterator[_Use]:
    if call.spec.loop is None:
        least, most = _count_runs(call) if counts_each else (1, 1)
        yield _Use(call, call.spec, call.index, least=least, most=most)
        return
    yield from _uses_of_body(call, call.index, None, 1, 1, certain=True, counts_each=counts_each)


def _count_runs(call: Call) -> tuple[int, float]:
    """Return the smallest and the largest number of a call's runs, if it begins: a loop runs once for each iteration."""
    raw, loop = call.spec.raw, call.spec.loop
    if EACH in raw:
        items, template = raw[EACH], parse_template(raw[EACH])[0] if loop is None else loop.each
        return (len(items), len(items)) if isinstance(items, list) and template.literal else (0, math.inf)
    if loop is not None:
        return (1 if loop.before is None else 0), loop.most
    return 1, raw.get("_max", DEFAULT_ITERATIONS) if call.spec.repeats else 1


def _product(one: float, other: float) -> float:
    return one * other if one and other else 0  # `0 * inf` is `nan`


def _uses_of_body(
    call: Call, home: int, outer: int | None, least: int, most: float, *, certain: bool, counts_each: bool
) -> Iterator[_Use]:
    loop = call.spec.loop
    assert loop is not None
    fewest, largest = _count_runs(call)
    least, most = least * fewest, _product(most, largest)
    needs = body_requirements(loop)
    for place, form in enumerate(loop.forms):
        at = place if outer is None else outer
        sure = (
            certain and _is_undecided(form) and all(_is_undecided(loop.forms[each]) for each in _before(needs, place))
        )
        if form.spec.loop is not None:
            yield from _uses_of_body(form, home, at, least, most, certain=sure, counts_each=counts_each)
        else:
            fewest, largest = _count_runs(form) if counts_each else (1, 1)
            yield _Use(form, form.spec, home, at, least * fewest, _product(most, largest), sure)


def _body_of(call: Call) -> Sequence[Call]:
    return () if call.spec.loop is None else call.spec.loop.forms


def _inner_done(loop_call: Call, use: _Use) -> frozenset[int]:
    """Return the places of the body's calls that are certainly done before the use begins, in the same iteration."""
    loop = loop_call.spec.loop
    if loop is None or use.place is None:
        return frozenset()
    needs = body_requirements(loop)

    def visit(needed: Requirement) -> set[int]:
        if isinstance(needed, WritersOf):
            sure = [at for at in needed.writers if needed.well or _is_sure(loop.forms[at])]
            return {*sure, *(each for at in sure for each in visit(needs[at].needed))}
        parts = [visit(each) for each in needed.items]
        if isinstance(needed, AnyOf):
            return set.intersection(*parts) if parts else set()
        return set().union(*parts)

    return frozenset(visit(needs[use.place].needed))


def _follows_inside(loop_call: Call, use: _Use, then: _Use) -> bool:
    """Whether one call of a loop's body begins after another of the same iteration, if that is done."""
    loop = loop_call.spec.loop
    if loop is None or use.place is None or then.place is None or not _is_undecided(loop.forms[then.place]):
        return False
    needs = body_requirements(loop)[then.place]
    waits = _named(needs)
    enough = {use.place, *_inner_done(loop_call, use)}
    return use.place in waits and waits <= enough and all(_is_sure(loop.forms[each]) for each in waits)


def _before(needs: Sequence[Requirements], place: int) -> set[int]:
    """Return the calls of a body that one of its calls waits for, directly or indirectly."""
    found: set[int] = set()
    left = [place]
    while left:
        new = _named(needs[left.pop()]) - found
        found |= new
        left += new
    return found


def _is_undecided(form: Call) -> bool:
    """Whether the begin and the writes of a body's call depend on no condition or branch."""
    return not (form.spec.has_condition or form.spec.branches)


def _is_sure(form: Call) -> bool:
    return _is_undecided(form) and form.spec.loop is None


def _literal_params(call: Call) -> JsonObject | None:
    return _written_params(call) if call.spec.template.literal else None


def _written_params(call: Call) -> JsonObject:
    return call.spec.known_tool.with_defaults(call.spec.params)


def _may_cover(rule: Rule, use: _Use) -> bool:
    """Whether the rule may apply to the use; unknown parameters may fit."""
    if rule.when is None:
        return True
    params = _literal_params(use.call)
    return params is None or rule.covers(params)


def _surely_covers(rule: Rule, use: _Use) -> bool:
    return rule.when is None or _literal_params(use.call) is not None


def _literal_amount(of: str, call: Call) -> Fraction | str | None:
    """Return the amount of a call, its problem, or `None` if it is known only later."""
    name = keys_of(of, call.spec.known_tool)[0]
    if name in call.spec.params and not parse_template(call.spec.params[name])[0].literal:
        return None
    return amount_of(of, call.spec.known_tool, _written_params(call))
