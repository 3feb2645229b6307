"""The log of a run: all reports of its driver, in their order.

A replay of a run's history records it; workers keep none. The log plays a run again without a server, also under
another policy (`perdure.runs.what_if`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from perdure.approvals.policy import Ask, Flow, Guard, Policy, ToolOwner
from perdure.plan import CODE_COUNTS
from perdure.rules import Rule, RuleBook, merge_rules, roles_of
from perdure.runs.limits import Limit
from perdure.runs.version_switches import COUNTS_EACH_DELEGATE, DEFAULTS_ASK, JUDGED_ANEW
from perdure.runs.wire import PreparedWorker, RunInput
from perdure.values.limits import LIMITS_OF_CHILDREN

StepKind: TypeAlias = Literal[
    "situation",
    "request",
    "again",
    "plan",
    "deliver",
    "answer",
    "work",
    "start",
    "resumed",
    "begun",
    "question",
    "hooks",
    "ended",
    "plan_decided",
    "plan_sources",
    "breaches",
    "limit",
    "steer",
    "stop",
    "hold",
    "break",
    "close",
    "draft",
    "decision",
    "timeout",
    "policy",
    "released",
    "message",
    "withdrawn",
    "used",
    "reported",
    "taken_back",
]


@dataclass(frozen=True, slots=True)
class LogStep:
    """One report of the driver: its kind, time, call and data."""

    kind: StepKind
    time: str
    """ISO 8601, UTC."""
    at: float
    """Its time in seconds."""
    call: str = ""
    data: tuple[Any, ...] = ()  # the arguments of the called method
    limit: Limit | None = None
    """The limit that the run had reached at that time."""


@dataclass(frozen=True, slots=True)
class RunStart:
    """The beginning of one execution of a run."""

    input: RunInput
    """The input after the hooks' changes."""
    prepared: PreparedWorker
    queue: str
    """The task queue of its workers."""
    floor: Ask
    floor_flows: Sequence[Flow]
    givers: Sequence[ToolOwner]
    change: Policy
    """The run's own changes of the policy so far."""
    prefix: str
    """The run's name in records of rules."""

    def guard(self, policy: Policy) -> Guard:
        """Return the layers of the approval policy, with `policy` as the agent file's."""
        return Guard(
            policy,
            floor=self.floor,
            change=self.change,
            givers=self.givers,
            floor_flows=list(self.floor_flows),
            knows_defaults=self.prepared.follows(DEFAULTS_ASK),
            adds_to_quorums=self.prepared.follows(JUDGED_ANEW),
            keeps_giver_policy=self.prepared.follows(LIMITS_OF_CHILDREN),
            code_counts=self.prepared.follows(CODE_COUNTS),
        )

    def rule_book(self, rules: Sequence[Rule]) -> RuleBook:
        """Return the run's rules, with `rules` as the agent file's."""
        given = self.input
        return RuleBook(
            merge_rules(rules, self.prepared.worker_rules, given.rules),
            None if given.rule_record is None else given.rule_record.model_copy(deep=True),
            roles=roles_of(given.whose.context),
            prefix=self.prefix,
            unlent=given.unlent_rules,
            counts_each=self.prepared.follows(COUNTS_EACH_DELEGATE),
        )


@dataclass
class RunLog:
    """The log of one execution. `now` returns the time (ISO 8601, UTC), and `clock` the same in seconds."""

    now: Callable[[], str] = str
    clock: Callable[[], float] = float
    start: RunStart | None = None
    """`None`: the execution was refused before it began."""
    steps: list[LogStep] = field(default_factory=list)

    def policy_change(self) -> Policy:
        """Return the run's own changes of the policy at the end of the execution."""
        changes = [step.data[0] for step in self.steps if step.kind == "policy"]
        return functools.reduce(Policy.changed, changes, Policy() if self.start is None else self.start.change)

    def note(self, kind: StepKind, *data: Any, call: str = "", limit: Limit | None = None) -> None:  # as in `Step`
        """Record a report of the driver."""
        self.steps.append(LogStep(kind, self.now(), self.clock(), call, data, limit))
