"""Scripted people: their decisions about approval requests, and the times of these (R14.5)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeAlias

from perdure.approvals.requests import WaitingView
from perdure.plan import DecisionKind
from perdure.values.arguments import check_arguments_of
from perdure.values.json import Json, JsonObject

Duration: TypeAlias = "float | timedelta | str"
"""Seconds, a `timedelta`, or a text such as `2h`, `30 min`, `2 days`."""

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_WORDS: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(s|m|h|d|w)(?:ec|in|r|our|ay|eek|econd|inute)?s?\s*", re.IGNORECASE)


def seconds(duration: Duration) -> float:
    """Return the seconds of a duration. Raise `ValueError` for an invalid text, and for a time before now or without an
    end.
    """
    if not isinstance(duration, str):
        found = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
        if not 0 <= found < math.inf:
            raise ValueError(f"{duration!r} is not a duration: give 0 or more seconds")
        return found
    words = _WORDS.fullmatch(duration)
    if words is None:
        raise ValueError(
            f"{duration!r} is not a duration: give seconds, or words such as '90 s', '30 min', '2h', '2 days'"
        )
    return float(words[1]) * _UNITS[words[2].lower()]


@dataclass
class Person:
    """A person who decides about the first approval request that matches, or with `every` about each one.

    ```python
    people = [approve("order", after="2h", by="ann"), answer("The blue one.")]
    ```
    """

    tool: str | None
    """The tool of the calls; `None`: any request, also for a whole plan."""
    kind: DecisionKind
    after: float = 0.0
    """Seconds from the request to the decision."""
    more: JsonObject = field(default_factory=dict)
    """Other keys of the decision."""
    every: bool = False
    decided: int = 0

    def means(self, request: WaitingView) -> bool:
        """Whether this person decides about this approval request.

        ```python
        if approve("order").means((await run.waiting())[0]):
            print("approved")
        ```
        """
        if request.question != (self.kind == "answer") or (self.decided and not self.every):
            return False
        if self.more.get("by") in [approver.by for approver in request.approvers]:
            return False  # a quorum needs somebody else
        return self.tool in (None, request.tool)

    def decision(self, request: WaitingView) -> JsonObject:
        """Return the decision that this person sends, bound to the request as it was shown.

        ```python
        await run.decide(approve("order").decision((await run.waiting())[0]))
        ```
        """
        return {"call": request.call, "decision": self.kind, "digest": request.digest, **self.more}

    def __str__(self) -> str:
        return f"{self.kind}({'' if self.tool is None else repr(self.tool)})"


@check_arguments_of
def approve(
    tool: str | None = None,
    *,
    after: Duration = 0,
    by: str = "",
    roles: Sequence[str] = (),
    remember: bool = False,
    endorse: bool = False,
    every: bool = False,
) -> Person:
    """Return a person who approves the first waiting call of the tool; without a name, any call or plan.

    `after`: seconds, a `timedelta`, or a text such as `2h`. `by`, `roles`, `remember`, `endorse`: as `Run.approve` has
    them. `every`: each such call, once per quorum.

    ```python
    people = [approve("order", after="2h", by="ann")]
    ```
    """
    more = _by_person(by, roles) | ({"remember": True} if remember else {}) | ({"endorse": True} if endorse else {})
    return Person(tool, "approve", seconds(after), more, every)


@check_arguments_of
def reject(
    tool: str | None = None, reason: str = "", *, after: Duration = 0, by: str = "", every: bool = False
) -> Person:
    """Return a person who rejects such a call, with a reason that the model reads. Otherwise as `approve`.

    ```python
    people = [reject("order", "Too expensive.")]
    ```
    """
    return Person(tool, "reject", seconds(after), {"reason": reason, **_by_person(by)}, every)


@check_arguments_of
def edit(
    tool: str | None = None,
    params: Mapping[str, Any] | None = None,
    *,
    calls: Sequence[Mapping[str, Any]] | None = None,
    after: Duration = 0,
    by: str = "",
    roles: Sequence[str] = (),
    every: bool = False,
) -> Person:
    """Return a person who approves such a call with changes to these parameters; the others stay. `calls`: all
    calls of a plan. Otherwise as `approve`.

    ```python
    people = [edit("order", {"count": 2})]
    ```
    """
    changed: JsonObject = {} if params is None else {"params": dict(params)}
    changed |= {} if calls is None else {"calls": [dict(call) for call in calls]}
    return Person(tool, "edit", seconds(after), {**changed, **_by_person(by, roles)}, every)


@check_arguments_of
def replace(
    tool: str | None,
    call: Mapping[str, Any],
    *,
    after: Duration = 0,
    by: str = "",
    roles: Sequence[str] = (),
    every: bool = False,
) -> Person:
    """Return a person who runs another call, `{"_tool": …}`, in its place. Otherwise as `approve`.

    ```python
    people = [replace("order", {"_tool": "voucher", "euros": 20})]
    ```
    """
    return Person(tool, "replace", seconds(after), {"with": dict(call), **_by_person(by, roles)}, every)


@check_arguments_of
def answer(value: Json, *, tool: str | None = None, after: Duration = 0, by: str = "", every: bool = False) -> Person:
    """Return a person who answers the first question of `ask_person`, or the first call of a client's tool. `tool`: the
    tool whose calls are answered; by default any. Otherwise as `approve`.

    ```python
    people = [answer("The blue one."), answer({"number": "SN-7"}, tool="read_serial")]
    ```
    """
    return Person(tool, "answer", seconds(after), {"answer": value, **_by_person(by)}, every)


def _by_person(by: str, roles: Sequence[str] = ()) -> JsonObject:
    return ({"by": by} if by else {}) | ({"roles": [*roles]} if roles else {})
