"""The check of a run's rules at each call, and its record.

The record of a rule is a set of entries that only grows: begun calls with their amounts, or values for which an event
has happened. So the records of child runs, former executions and a session join by union, and no entry counts twice.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from pydantic import Field, PrivateAttr

from perdure.errors import CallError
from perdure.plan import DEFAULT_ITERATIONS, EACH, EXECUTED_CALLS_COUNT, Call
from perdure.rules.rules import (
    AtMost,
    CountAtMost,
    FollowedBy,
    NeverAfter,
    OnlyFrom,
    Precedes,
    Rule,
    amount_of,
    by_tool,
    digest_of,
    exact_fraction,
    keys_of,
    names_of,
    same_key,
    value_at,
)
from perdure.values.json import JsonObject, WireModel, shorten
from perdure.values.limits import CheckBudget
from perdure.values.provenance import in_words
from perdure.values.references import MISSING

RULE_BROKEN: Final = "rule_broken"
"""Code of the error of a call that a rule forbids."""
_NEVER_RAN: Final = ("skipped", "rejected", "invalid")
"""Statuses of calls that never ran, unless they were executed."""
_TOTAL: Final = ""
"""Key of the entry that holds the sum of older entries."""


class RuleRecord(WireModel):
    """The record of a run, as far as its rules need it."""

    entries: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Entries by a rule's key. For a sum or a count: call → its amount. For an order: value of `same` → 1."""

    lost: bool = Field(default=False, exclude_if=operator.not_)
    """Whether the record of an earlier run was lost: then the worst case is assumed."""

    _sums: dict[str, Fraction] = PrivateAttr(default_factory=dict)
    """The sums that were asked for so far."""

    def note(self, rule: Rule, entry: str, amount: float) -> None:
        """Set an entry of the rule."""
        self.remove(rule, entry)
        self.entries.setdefault(rule.key, {})[entry] = amount
        if rule.key in self._sums:
            self._sums[rule.key] += exact_fraction(amount)

    def add(self, rule: Rule, entry: str, amount: Fraction) -> None:
        """Add to an entry of the rule, which may not exist yet."""
        known = self.entries.get(rule.key, {}).get(entry, 0.0)
        self.note(rule, entry, float(exact_fraction(known) + amount))

    def remove(self, rule: Rule, entry: str) -> None:
        """Remove an entry of the rule, if it exists."""
        amount = self.entries.get(rule.key, {}).pop(entry, None)
        if amount is not None and rule.key in self._sums:
            self._sums[rule.key] -= exact_fraction(amount)

    def sum_of(self, rule: Rule) -> Fraction:
        """Return the sum of the rule's entries."""
        sums = self._sums
        if rule.key not in sums:
            sums[rule.key] = sum(map(exact_fraction, self.entries.get(rule.key, {}).values()), Fraction())
        return sums[rule.key]

    def join(self, other: RuleRecord) -> None:
        """Add the other record's entries."""
        self._sums.clear()
        self.lost = self.lost or other.lost
        for key, entries in other.entries.items():
            self.entries.setdefault(key, {}).update(entries)

    def summed(self, rules: Iterable[Rule]) -> RuleRecord:
        """Return the entries of these rules, each sum as one entry: its calls can no longer be repeated."""
        found = self.of(rules)
        for rule in rules:
            if isinstance(rule, AtMost | CountAtMost) and rule.key in found.entries:
                found.entries[rule.key] = {_TOTAL: float(self.sum_of(rule))}
        return found

    def of(self, rules: Iterable[Rule]) -> RuleRecord:
        """Return the entries of these rules."""
        keys = [rule.key for rule in rules]
        return RuleRecord(entries={key: dict(self.entries[key]) for key in keys if key in self.entries})


class ChildCalls(WireModel):
    """The calls of the child run of a call, as a fork's rules count them."""

    rules: list[str] = Field(default_factory=list)
    """The keys of all rules of the run."""
    lent: list[str] = Field(default_factory=list)
    """The keys of the rules that the child run used exclusively."""
    record: RuleRecord | None = None
    """The child run's record; `None`: it is not known."""


@dataclass(frozen=True, slots=True)
class Breach:
    """A rule that a call would violate."""

    rule: Rule
    words: str

    @property
    def message(self) -> str:
        """The breach as text, with the rule and its reason."""
        why = f" ({self.rule.why})" if self.rule.why else ""
        return f"the rule {self.rule.words} forbids it: {self.words}{why}"

    @property
    def error(self) -> CallError:
        return CallError(RULE_BROKEN, self.message, rule=self.rule.key)


def broken_rules(breaches: Iterable[Breach]) -> frozenset[str]:
    """Return the keys of the broken rules."""
    return frozenset(each.rule.key for each in breaches)


class RuleBook:
    """The rules of one run, with their record.

    `roles`: the roles of the person for whom the run works. `prefix`: the run's name in entries of its calls. `unlent`:
    keys of rules whose calls the parent run keeps to itself. `counts_each`: whether each run of a loop over a
    delegate counts, and each delegate whose record is lost. In runs of 0.2.0 they count once, and a loop without
    iterations counts as a call of its tool.
    """

    def __init__(
        self,
        rules: Sequence[Rule] = (),
        record: RuleRecord | None = None,
        *,
        roles: Collection[str] = (),
        prefix: str = "",
        unlent: Collection[str] = (),
        counts_each: bool = True,
    ) -> None:
        self.rules = list(rules)
        self.counts_each = counts_each
        self.record = record or RuleRecord()
        self.roles = frozenset(roles)
        self._prefix, self._unlent = prefix, frozenset(unlent)
        self._by_subject = by_tool(rules)
        self._by_event: dict[str, list[Precedes | NeverAfter]] = {}
        for rule in rules:
            if isinstance(rule, Precedes):
                for first in rule.firsts:
                    self._by_event.setdefault(first, []).append(rule)
            elif isinstance(rule, NeverAfter):
                self._by_event.setdefault(rule.after, []).append(rule)
        self._allowed: set[tuple[str, str]] = set()
        """Calls that a person has approved although they violate a rule: the call's id and the rule's key."""
        self.is_stale = False
        """Whether a reset has ended an execution whose record was not read yet."""
        self._begun: set[str] = set()
        self._expected = RuleRecord()
        """What calls that begin next will add to the record."""
        self._recorded = [rule for rule in rules if rule.has_record]
        self._leases: dict[str, list[Rule]] = {}
        """Calls whose child runs have exclusive use of rules, with these rules."""
        if self.record.lost:
            self.record.lost = False
            self.take_back(None)

    def concerning(self, call: Call) -> list[Rule]:
        """Return the rules that may refuse the call."""
        if not self._by_subject or call.spec.tool is None:
            return []
        names = names_of(call.spec.tool)
        return [rule for name in names for rule in self._by_subject.get(name, ())]

    def breaches(self, call: Call, checks: CheckBudget | None = None) -> list[Breach]:
        """Return the rules that the call would violate if it began now; its parameters are resolved."""
        found = []
        for rule in self.concerning(call):
            if not rule.covers(_params_of(call), checks):
                continue
            if (words := self._broken(rule, call)) is not None:
                found.append(Breach(rule, words))
        return found

    def refusal(self, call: Call, checks: CheckBudget | None = None) -> Breach | None:
        """Return the breach that forbids the call to begin now, also with a person's approval."""
        return next((each for each in self.breaches(call, checks) if each.rule.otherwise == "refuse"), None)

    def questions(self, call: Call, checks: CheckBudget | None = None) -> list[Breach]:
        """Return the breaches that a person has to approve."""
        return [each for each in self.breaches(call, checks) if each.rule.otherwise == "ask"]

    def allow(self, call: Call, keys: Collection[str]) -> None:
        """Record that a person has approved the call although it breaks the rules with these keys."""
        self._allowed |= {(call.id, key) for key in keys}

    def begin(self, call: Call, checks: CheckBudget | None = None) -> Breach | None:
        """Record that the call begins, or return the breach that forbids it."""
        if (found := self.obstacle(call, checks)) is None:
            self.note_begun(call)
        return found

    def obstacle(self, call: Call, checks: CheckBudget | None = None) -> Breach | None:
        """Return the breach that forbids the call to begin, or to continue to its start."""
        if call.id in self._begun:  # its own amounts are in the record
            found = [each for each in self.breaches(call, checks) if _may_break_after_begin(each.rule, call)]
        else:
            found = self.breaches(call, checks)
        return next((each for each in found if (call.id, each.rule.key) not in self._allowed), None)

    def note_begun(self, call: Call, only: Collection[str] | None = None) -> None:
        """Record that the call has begun. `only`: keys of the rules for which it counts; `None`: for all."""
        if not self.rules or call.spec.tool is None or call.id in self._begun:
            return
        self._begun.add(call.id)
        self._note_begin(call, self.record, only)

    def expect(self, call: Call) -> None:
        """Judge other calls as if this one, which begins next, had begun. It counts until `forget_expected`."""
        if self.rules and call.spec.tool is not None and call.id not in self._begun:
            self._note_begin(call, self._expected)

    def forget_expected(self) -> None:
        """Judge calls by the record alone again."""
        self._expected = RuleRecord()

    def _note_begin(self, call: Call, record: RuleRecord, only: Collection[str] | None = None) -> None:
        for each in self._counted(call):
            for rule in self.concerning(each):
                if only is not None and rule.key not in only:
                    continue
                if isinstance(rule, AtMost | CountAtMost) and rule.has_record and rule.covers(_params_of(each)):
                    amount = self._amount(rule, each)
                    record.note(rule, self._entry(each), float(amount) if isinstance(amount, Fraction) else 0.0)
            self._note_event(each, "begun", record)

    def note_held(self, call: Call, *, keeps_lent: bool = False) -> None:
        """Remove the begin of a call that a message holds before it is scheduled. The call begins later or never.

        Its child run has not begun, and uses no rules exclusively. `keeps_lent`: it keeps them, as in runs of 0.2.0.
        """
        if not keeps_lent:
            self._leases.pop(call.id, None)
        if call.id in self._begun:
            self._begun.discard(call.id)
            self._give_back(call)

    def _give_back(self, call: Call) -> None:
        """Remove a call's amounts from the sums and counts."""
        for each in self._counted(call):
            for rule in self.concerning(each):
                if isinstance(rule, AtMost | CountAtMost):
                    self.record.remove(rule, self._entry(each))

    def note_ended(self, call: Call, checks: CheckBudget) -> None:
        """Record the end of a call, and end the exclusive use of rules by its child runs.

        A call that a person or a client answered counts as done, although it has no start time (not in runs of 0.2.0).
        """
        self._leases.pop(call.id, None)
        if not self.rules or call.spec.tool is None:
            return
        counts_answers = checks.is_patched(EXECUTED_CALLS_COUNT)
        some_failed = self.counts_each and call.spec.repeats and bool(call.state.notes)
        some_done = self.counts_each and call.state.some_done
        for each in self._counted(call):
            is_done = each.state.executed or (each is call and some_done)
            if is_done and (call.state.started is not None or counts_answers):
                self._note_event(each, "done", self.record)
            if each.state.status == "failed" or (each is call and some_failed):  # it may count as both
                self._note_event(each, "failed", self.record)
            if each.state.carried_out is None or (each is call and some_done is None):
                self._note_event(each, "unknown", self.record)
        if call.id in self._begun and not call.state.executed and call.state.status in _NEVER_RAN:
            self._give_back(call)
        if self.counts_each and call.state.recorded:
            self._take_back_recorded(call)

    def _take_back_recorded(self, call: Call) -> None:
        """Count the calls of the child run of a call that the record of another run answers. The worst case is assumed for
        the rules of a loop's tools that the other run did not have.
        """
        used = call.state.child_calls
        known = ChildCalls() if used is None else ChildCalls.model_validate(used)
        if used is not None:
            self.take_back(known.record, [rule for rule in self._recorded if rule.key in known.lent])
        if call.far:
            tools = (each.spec.tool for each in call.written() if each.spec.loop is None)
            names = [name for tool in tools if tool is not None for name in names_of(tool)]
            self.take_back(None, [rule for rule in self.touched(names) if rule.key not in known.rules])

    def child_calls(self, lent: Sequence[Rule], record: RuleRecord | None) -> ChildCalls:
        """Return what a fork has to count of a child run that has used the `lent` rules exclusively."""
        rules = [rule.key for rule in self.rules]
        return ChildCalls(rules=rules, lent=[rule.key for rule in lent], record=record)

    def _counted(self, call: Call) -> Sequence[Call]:
        """Return the calls that use a tool in place of this one: itself, or the iterations of a loop that a what-if plays
        as a whole. The iterations of other loops are calls of their own.
        """
        if self.counts_each and call.spec.loop is not None:
            return call.state.iterations
        return () if self.counts_each and call.inputs.items == [] else (call,)

    def _note_event(self, call: Call, event: str, record: RuleRecord) -> None:
        """Record the event for the rules of an order. `unknown`: the call may be done, so `never_after` counts it as
        each event, and `precedes` not at all.
        """
        if not self._by_event:
            return
        # Of a failed iteration that `recorded_iterations` has made, no outcome tells which of its calls are done.
        may_be_done = call.state.status == "failed" and call.state.outcome is None
        for name in names_of(call.spec.known_tool):
            for rule in self._by_event.get(name, ()):
                if may_be_done and isinstance(rule, Precedes):
                    continue
                if event in ((rule.event, "unknown") if isinstance(rule, NeverAfter) else ("done",)):
                    key = same_key(_params_of(call), [first for first, _ in rule.pairs])
                    if key is not None:
                        record.note(rule, key, 1)

    def has_begun(self, call: Call) -> bool:
        """Whether the record has the begin of the call."""
        return call.id in self._begun

    @property
    def begun(self) -> int:
        """The number of calls that have begun."""
        return len(self._begun)

    def _entry(self, call: Call) -> str:
        """Return the name of a call's amount. After a reset, another call may have the same id."""
        return f"{self._prefix}{call.id}:{digest_of(call.inputs.params)}"

    def used(self, rule: AtMost | CountAtMost) -> Fraction:
        """Return the sum, or the count, so far."""
        return self.record.sum_of(rule) + self._expected.sum_of(rule)

    def has(self, rule: Precedes | NeverAfter, key: str = _TOTAL) -> bool:
        """Whether the record has the event of an order, for a value of `same`."""
        return any(key in record.entries.get(rule.key, ()) for record in (self.record, self._expected))

    def shared(self, call: Call, checks: CheckBudget | None = None) -> list[tuple[AtMost | CountAtMost, Fraction]]:
        """Return the amounts that the call needs of the sums over all runs of the tenant."""
        found: list[tuple[AtMost | CountAtMost, Fraction]] = []
        for rule in self.concerning(call):
            if isinstance(rule, AtMost | CountAtMost) and rule.is_of_tenant and rule.covers(_params_of(call), checks):
                amount = self._amount(rule, call)
                found += [(rule, amount)] if isinstance(amount, Fraction) else []
        return found

    def entry_of(self, call: Call) -> str:
        """Return the key of the call's amounts: the same call has the same key in every attempt and after a reset."""
        return self._entry(call)

    def waits_for_record(self, call: Call) -> bool:
        """Whether the call may begin only once the record from before a reset is known."""
        return self.is_stale and any(rule.has_record for rule in self.concerning(call))

    def _amount(self, rule: AtMost | CountAtMost, call: Call) -> Fraction | str:
        """Return the amount of a call, in all the runs that it may start, or the reason why it is unknown."""
        one = (
            Fraction(1) if isinstance(rule, CountAtMost) else amount_of(rule.of, call.spec.known_tool, _params_of(call))
        )
        if isinstance(one, str) or not self.counts_each or (runs := _max_runs(call)) == 1:
            return one
        return one * runs

    def _broken(self, rule: Rule, call: Call) -> str | None:
        if call not in self._counted(call):
            return None
        params = _params_of(call)
        if rule.key in self._unlent:
            return "the parent run's rules did not expect this call"
        if isinstance(rule, Precedes):
            key = same_key(params, [then for _, then in rule.pairs])
            if key is not None and self.has(rule, key):
                return None
            return f"no call of {rule.first_words} is done{_for_same(rule, params)}"
        if isinstance(rule, NeverAfter):
            event = {"begun": "has begun", "done": "is done", "failed": "has failed"}[rule.event]
            key = same_key(params, [then for _, then in rule.pairs])
            if self.has(rule) or (key is not None and self.has(rule, key)):  # without a value the worst case is assumed
                return f"a call of {rule.after} {event}{_for_same(rule, params)}"
            return None
        if isinstance(rule, AtMost | CountAtMost):
            amount = self._amount(rule, call)
            return amount if isinstance(amount, str) else exceeded_reason(rule, self.used(rule), amount)
        if isinstance(rule, OnlyFrom):
            return _foreign(rule, call)
        if isinstance(rule, FollowedBy):  # the plan decides it: `PlanJudge.unfollowed`
            return None
        return None if rule.role in self.roles else f'the sender of the run does not have the role "{rule.role}"'

    # Runs below.

    def touched(self, names: Iterable[str] | None) -> list[Rule]:
        """Return the rules that may apply to runs with tools of these names; `None`: with any tools."""
        if names is None:
            return list(self._recorded)
        known = set(names)
        return [rule for rule in self._recorded if not known.isdisjoint(rule.tools)]

    def lend(self, call: Call, names: Iterable[str] | None) -> None:
        """Give a child run exclusive use of the rules that may apply to it, until its call ends."""
        if rules := self.touched(names):
            self._leases[call.id] = rules

    def lent_to(self, call: Call) -> list[Rule]:
        """Return the rules that the call's child run uses exclusively."""
        return self._leases.get(call.id, [])

    @property
    def has_lent(self) -> bool:
        """Whether child runs use rules exclusively."""
        return bool(self._leases)

    def is_free(self, call: Call, names: Iterable[str] | None = ()) -> bool:
        """Whether no other call's child run exclusively uses a rule that applies to this call, or to its child runs."""
        others = {rule.key for id, rules in self._leases.items() if id != call.id for rule in rules}
        if not others or call.spec.tool is None:
            return True
        own = {rule.key for rule in self.touched(names_of(call.spec.tool))} | {rule.key for rule in self.touched(names)}
        return own.isdisjoint(others)

    def record_of(self, rules: Sequence[Rule], *, summed: bool = False) -> RuleRecord:
        """Return the record of these rules, for the parent run, a session or a later execution.

        It does not contain the calls of child runs that have not ended.
        """
        found = self.record.summed(rules) if summed else self.record.of(rules)
        found.lost = self.has_lent
        return found

    @property
    def recorded(self) -> list[Rule]:
        """The rules that depend on earlier calls."""
        return self._recorded

    def take_back(self, record: RuleRecord | None, rules: Sequence[Rule] | None = None) -> None:
        """Join the record of a child run. `None`: it is unknown, so the worst case is assumed for these rules; by
        default for all that this run may use.
        """
        if record is not None:
            self.record.join(record)
            if not self.record.lost:
                return
            self.record.lost = False
        lent = (rule for rule in self._recorded if rule.key not in self._unlent)
        for rule in lent if rules is None else rules:
            if isinstance(rule, AtMost | CountAtMost):
                left = rule.limit - self.used(rule)
                entry = f"{self._prefix}unknown"
                if left > 0 and self.counts_each:
                    self.record.add(rule, entry, left)
                elif left > 0:
                    self.record.note(rule, entry, float(left))
            elif isinstance(rule, NeverAfter):
                self.record.note(rule, _TOTAL, 1)


def exceeded_reason(rule: AtMost | CountAtMost, used: Fraction, amount: Fraction) -> str | None:
    """Return the reason why an amount is too much after the used one, or `None`."""
    if used + amount <= rule.limit:
        return None
    total = f"{format_number(used + amount)}; the limit is {format_number(rule.limit)}"
    if isinstance(rule, CountAtMost):
        more = (
            ""
            if amount == 1
            else f", and this call may start {format_number(amount)} runs: fewer items or a smaller _max start fewer"
        )
        return f"the calls of {rule.of} would be {total}{more}"
    return f"the sum of {rule.of} would be {total}"


def format_number(value: Fraction) -> str:
    """Return the number as text for people."""
    return f"{int(value):,}" if value.denominator == 1 else f"{float(value):,.10g}"


def _max_runs(call: Call) -> int:
    """Return the largest number of runs that a call starts: a loop over a delegate starts one for each iteration."""
    if call.spec.known_tool.delegate is None or not call.spec.repeats:
        return 1
    if call.inputs.items is not None:
        return len(call.inputs.items)
    return 1 if EACH in call.spec.raw else call.spec.raw.get("_max", DEFAULT_ITERATIONS)


def _params_of(call: Call) -> JsonObject:
    return call.spec.known_tool.with_defaults(call.inputs.params)


def still_satisfies(rule: FollowedBy, later: Call, revised: Call) -> bool:
    """Whether the revised call satisfies the rule like the later call that it replaces."""
    names = [then for _, then in rule.pairs]
    keys = [same_key(_params_of(each), names) for each in (later, revised)]
    return not set(names_of(revised.spec.known_tool)).isdisjoint(rule.thens) and keys[0] == keys[1]


def _may_break_after_begin(rule: Rule, call: Call) -> bool:
    """Whether a begun call may violate the rule later. Only `never_after` can, and not by the call's own begin."""
    own = isinstance(rule, NeverAfter) and rule.event == "begun" and rule.after in names_of(call.spec.known_tool)
    return isinstance(rule, NeverAfter) and not own


def _for_same(rule: Precedes | NeverAfter, params: JsonObject) -> str:
    if not rule.pairs:
        return ""
    values = []
    for _, name in rule.pairs:
        value = value_at(name, params)
        values.append(f"{name} is missing" if value is MISSING else f"{name}={shorten(value, 40)}")
    return f" for {', '.join(values)}"


def _foreign(rule: OnlyFrom, call: Call) -> str | None:
    """Return the reason why the parameter's value is not from the rule's sources. A value of unknown sources never is."""
    origins, name = call.inputs.origins, keys_of(rule.parameter, call.spec.known_tool)[0]
    if name not in call.inputs.params:
        return None
    if not origins.read:
        return f"the provenance of {rule.parameter} is unknown"
    sources = origins.params.get(name, origins.written)
    found = rule.stranger(sources or origins.written)
    return None if found is None else f"{rule.parameter} comes from {in_words([found])}"
