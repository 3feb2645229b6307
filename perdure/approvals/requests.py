"""Approval requests: calls and plans that wait for a person, and the sentence that a person reads."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import Field

from perdure.approvals.decisions import Decision, Digests, digest
from perdure.errors import clip
from perdure.hooks.events import RunOwner
from perdure.plan import Approval, Call, DecisionKind, Outcome, Plan
from perdure.rules import FollowedBy
from perdure.tools.definitions import question_parts
from perdure.tools.quorum import Approver, Quorum, merge_quorums, missing_words
from perdure.tools.server_input import ServerQuestion
from perdure.tools.tool import CLIENT
from perdure.values.json import Json, JsonObject, Timestamp, WireModel, shorten
from perdure.values.limits import MAX_ID, MAX_NAME, MAX_QUESTION, MAX_ROLES, bytes_text
from perdure.values.media import file_name, read_media
from perdure.values.messages import one_visible_line, visible_lines
from perdure.values.templates import marked_call

WITH_CLIENT: Final = "the program that started the run executes the call and sends the result"
RESET: Final = "; requested again, because the run was reset"
EDITED: Final = "a person has tried to edit it"
"""Words before the rules that an edit would break."""
NAMED: Final = 5
"""Maximum of a plan's tools whose code the reason names; `runs` of the request names all of them."""


@dataclass(slots=True, eq=False)
class ApprovalRequest:
    """One call, or a whole plan, that waits for a decision. Only a decision changes what it shows.

    A change of the policy, or a rule that is broken later, can change its reason and its quorums.
    """

    id: str
    """The call's id, or the Request's number for its plan."""
    reason: str
    plan: Plan
    approval: Approval
    call: Call | None = None
    """The call; `None`: the plan waits."""
    floor: bool = False
    """Whether the worker's floor requires it, so that only a person can approve it."""
    question: bool = False
    """Whether it is a question, whose answer is the call's result, or goes to the server that asks."""
    asked: ServerQuestion | None = None
    """The question, if the server of the call's tool asks it while the call runs (R21.3)."""
    digests: Digests = field(default_factory=Digests)
    """The queue's cache of digests, so that a value in several requests is hashed once."""
    quorums: list[Quorum] = field(default_factory=list)
    """The quorums that its approvals must meet (R24.6); of a plan those of all its calls."""
    requesters: Sequence[str] = ()
    """The senders of the run's messages, whom a quorum may exclude."""
    breaches: frozenset[str] = frozenset()
    """The keys of the broken rules with `otherwise: "ask"` that the reason names."""
    required_by: list[FollowedBy] = field(default_factory=list)
    """The `followed_by` rules that require this call, because an earlier call has begun."""
    revised: DecisionKind | None = None
    """`edit` or `replace`, if an approver before the last one has changed the call."""
    new_plan: Callable[[], Plan] | None = None
    """Returns an empty plan, in which a person's edit of the plan is validated as a whole; `None` for a call."""
    _digest: str | None = None
    _added: list[str] = field(default_factory=list)
    """The breaches that were added to the reason: a decision from before they were shown has another digest."""
    _edits: dict[str, frozenset[str]] = field(default_factory=dict)
    """The keys of the rules that an edit or a replacement would break, by `edit_key`."""
    calls: list[Call] = field(init=False)
    """The calls of the plan that had not begun when the request was made; a revised plan omits calls that run already
    (R10.5).
    """

    def __post_init__(self) -> None:
        self.calls = [call for call in self.plan.calls if not (self.call is not None or self.plan.is_past(call))]

    @property
    def is_client_call(self) -> bool:
        """Whether the program that started the run executes this call, so that no person is asked."""
        return self.call is not None and is_client_call(self.call)

    @property
    def shown(self) -> Any:  # an object for a call, a list for a plan
        """The value of the digest: for a call the object of its resolved parameters, for a plan the list of its calls
        as written, with references marked, and for a server's question the question.
        """
        if self.asked is not None:
            return self.asked.shown
        if self.call is None:
            return [marked_call(call.spec.raw) for call in self.calls]
        return (
            self.call.inputs.params
            if self.call.inputs.items is None
            else {**self.call.inputs.params, "_each": self.call.inputs.items}
        )

    @property
    def written_calls(self) -> list[Call]:
        """The call, or all calls of the plan, with those in bodies of loops."""
        return [*self.plan.written()] if self.call is None else [self.call]

    @property
    def digest(self) -> str:
        """The digest of the shown value, and of the rules that were added to the reason, computed once."""
        if self._digest is None:
            self._digest = self.digests.of([self.shown, *self._added] if self._added else self.shown)
        return self._digest

    @property
    def runs(self) -> dict[str, str]:
        """The code that runs, by tool, for tools with another name than their code."""
        tools = [call.spec.tool for call in self.written_calls]
        return {tool.name: tool.runs for tool in tools if tool is not None and tool.runs}

    @property
    def missing(self) -> str:
        """The approvals that a quorum still needs, as text; empty if none is missing, or without a quorum."""
        return missing_words(self.quorums, self.approval.approvers, self.requesters)

    @property
    def roles(self) -> list[str]:
        """The first role of each quorum that is not met."""
        unmet = [quorum for quorum in self.quorums if quorum.missing(self.approval.approvers, self.requesters)]
        return [*dict.fromkeys(quorum.roles[0] for quorum in unmet if quorum.roles)][:MAX_ROLES]

    @property
    def full_reason(self) -> str:
        """The reason with the state of the quorum, for people."""
        if not (missing := self.missing):
            return self.reason
        approved = ", ".join(each.by for each in self.approval.approvers)
        return f"{self.reason}; {f'approved by {approved}; ' if approved else ''}needs {missing}"

    def revise(self, kind: DecisionKind, quorums: Sequence[Quorum]) -> None:
        """Show the call with an approver's change: approvals of the earlier form do not count."""
        self.revised, self._digest, self.approval.approvers = kind, None, []
        self.quorums = merge_quorums(self.quorums, quorums)

    def note_channel(self, decision: Decision) -> None:
        """Keep a decision of an incomplete quorum, so that its sender's channel can show it."""
        if decision.via:
            kept = Approval(
                requested_at=self.approval.requested_at,
                decision=decision.decision,
                by=decision.by,
                reason=decision.reason,
                via=decision.via,
            )
            self.approval.earlier = [*self.approval.earlier, kept]

    def add_breaches(self, breaches: Mapping[str, str], edit: str) -> None:
        """Name broken rules: each rule's key with the breach as text. `edit`: the key of the edit that would break them;
        without it, approvals from before do not count.
        """
        self._added += breaches.values()
        self.reason, self._digest = "; ".join([self.reason, *([EDITED] if edit else []), *breaches.values()]), None
        if edit:
            self._edits[edit] = self.breaches_of(edit) | breaches.keys()
        else:
            self.breaches |= breaches.keys()
            self.floor, self.approval.approvers = True, []

    def breaches_of(self, edit: str) -> frozenset[str]:
        """Return the keys of the rules that were named for an edit, by its key."""
        return self._edits.get(edit, frozenset())

    def renew(self, time: str) -> None:
        """Renew the request after a reset of the run."""
        self.approval.requested_at, self.approval.approvers = time, []
        self.reason = f"{self.reason.removesuffix(RESET)}{RESET}"

    @property
    def title(self) -> str:
        return f"the plan of Request {self.id}" if self.call is None else f"{self.id} {self.call.spec.tool_name}"


@dataclass(frozen=True, slots=True)
class ApprovalVerdict:
    """The effect of a decision on a request: without an outcome the call runs."""

    outcome: Outcome | None = None
    plan: Plan | None = None
    """The plan that replaces the one that was shown."""
    waits: bool = False
    """Whether the request continues to wait, for approvals of others."""


@dataclass(frozen=True, slots=True)
class JudgedDecision:
    """A decision that can be applied."""

    request: ApprovalRequest
    decision: Decision
    call: Call | None = None
    """The revised call."""
    plan: Plan | None = None
    """The revised plan."""
    by_person: bool = True
    approver: Approver | None = None
    """The approver, if a quorum decides."""
    quorums: list[Quorum] = field(default_factory=list)
    """The quorums of the revised call."""


def edit_key(revised: Call) -> str:
    """Return the key of an edit or a replacement: the same revised call has the same key."""
    return digest([revised.spec.tool_name, revised.inputs.params])


def what_runs(request: ApprovalRequest) -> str:
    """Return the end of the reason: the code that runs, for tools with another name than their code."""
    named = [f"{clip(name, 60)} runs {clip(code, 60)}" for name, code in request.runs.items()]
    return "".join(f"; {each}" for each in named[:NAMED]) + (
        f"; and {len(named) - NAMED} more" if len(named) > NAMED else ""
    )


def is_client_call(call: Call) -> bool:
    """Whether a client program executes the call, and returns its result."""
    return call.spec.tool is not None and call.spec.tool.activity == CLIENT


def question_words(call: Call) -> str:
    """Return the question to the person or program that answers a call, without invisible characters."""
    return WITH_CLIENT if is_client_call(call) else visible_lines(str(call.inputs.params.get("question", "")))


def changed_words(call: Call) -> str:
    """Return the end of a reason: the parameters that a hook has changed since the model wrote them (R10.17)."""
    return f"; a hook has changed {clip(', '.join(call.inputs.changed), 200)}" if call.inputs.changed else ""


def hook_feedback(call: Call, by: str) -> JsonObject:
    """Return the feedback for the model about a call that hooks have changed: the names of the parameters, not the
    change (R10.17)."""
    about: JsonObject = {"type": "feedback", "call": call.as_plan_entry(), "decision": "edit", "by": by}
    return about | {"reason": f"a hook has changed {', '.join(call.inputs.changed)}"}


# Example: `ask_words("refund", {"euros": 120, "to": "ann@example.com"}, "euros is above 100")` returns `refund 120
# EUR to ann@example.com: euros is above 100`.

NO_WORDS: Final = "its parameters meet the condition of the policy"
"""The reason, if no part of a condition has a text."""
_CURRENCIES: Final = {
    "eur": "EUR",
    "euro": "EUR",
    "euros": "EUR",
    "usd": "USD",
    "dollars": "USD",
    "gbp": "GBP",
    "chf": "CHF",
}
_PREPOSITIONS: Final = frozenset(
    (
        "about",
        "after",
        "as",
        "at",
        "before",
        "by",
        "for",
        "from",
        "in",
        "into",
        "of",
        "on",
        "since",
        "to",
        "until",
        "via",
        "with",
    )
)
_SHOWN: Final = 50
"""Characters of a value in a sentence; the form beside the sentence shows the whole value."""
_NAMED: Final = 6
"""Maximum of parameters in a sentence."""
_PLAIN: Final = re.compile(r"[\w@.+/#%-]+(?::[\w@.+/#%-]+)*")
"""Values that need no quotes: no part of them can be mistaken for words of the sentence."""
_COUNTED: Final = re.compile(r"[^\W_]*[^sui_]s")
"""Names of counts: `replicas`, but not `status`, `address` or `older_than_days`."""


def ask_words(tool: str, params: JsonObject | None, reason: str, *, question: bool = False, ask: str = "") -> str:
    """Return the sentence: the effect of the call, and the reason. A question is its own sentence.

    `ask`: the words of the tool's own question.
    """
    words = ask or call_words(tool, params or {})
    return reason if question else f"{words} ({reason})" if words.endswith("?") else f"{words}: {reason}"


def tool_question(call: Call | None) -> str:
    """Return the own question of a call's tool, with the call's parameters as data; empty if it has none."""
    tool = None if call is None else call.spec.tool
    if call is None or tool is None or tool.ask is None:
        return ""
    properties = tool.parameters.get("properties", {})
    defaults = {name: about["default"] for name, about in properties.items() if "default" in about}
    values = defaults | call.inputs.params
    parts = (
        one_visible_line(words) + ("" if name is None else value_words(values[name]) if name in values else "…")
        for words, name in question_parts(tool.ask)
    )
    return clip("".join(parts), 2 * MAX_QUESTION)


def plan_words(calls: int | None, reason: str) -> str:
    """Return the sentence for a whole plan; `calls=None`: the number of its calls is unknown."""
    return f"run a plan{'' if calls is None else f' of {calls} ' + ('call' if calls == 1 else 'calls')}: {reason}"


def call_words(tool: str, params: Mapping[str, Json]) -> str:
    """Return a text for a call's effect: the tool's name as a verb, then each parameter."""
    text = _words(tool)
    for place, (name, value) in enumerate(params.items()):
        if place == _NAMED:
            return f"{text}, and {len(params) - _NAMED} more parameters"
        if name == "currency" and _is_number(params.get("amount")):
            continue
        piece, joins = _piece(name, value, params)
        if place == 0 and text.endswith(f" {_words(name)}"):  # `deploy_service(service="shop")`
            piece = value_words(value)
        text += f" {piece}" if joins or place == 0 else f", {piece}"
    return text


def _piece(name: str, value: Json, params: Mapping[str, Json]) -> tuple[str, bool]:
    """Return the text of one parameter, and whether it needs no comma before it."""
    shown, key = value_words(value), name.lower()
    if _is_number(value):
        if key in _CURRENCIES:
            return f"{shown} {_CURRENCIES[key]}", False
        if key == "amount" and isinstance(params.get("currency"), str):
            return f"{shown} {value_words(params['currency'])}", False
        if _COUNTED.fullmatch(key):
            return f"{shown} {_words(name)}", False
    return f"{_words(name)} {shown}", key in _PREPOSITIONS


def value_words(value: Json) -> str:
    """Return a value for a sentence: in quotes if it could be mistaken for words, and never with invisible
    characters. A file is its name, type and size."""
    if (file := read_media(value)) is not None:
        name = value_words(file_name(file.name)) if file.name else "a file"
        return f"{name} ({file.type}, {bytes_text(file.bytes)})"
    if isinstance(value, str) and len(value) <= _SHOWN and _PLAIN.fullmatch(value):
        return value
    if isinstance(value, str) and len(value) > _SHOWN:
        value = f"{value[: _SHOWN - 1]}…"
    return one_visible_line(shorten(value, _SHOWN + 2))


def condition_words(when: Json, params: JsonObject | None, *, decided: bool = True) -> str:
    """Return a policy's condition as a sentence: `{"properties": {"euros": {"exclusiveMinimum": 100}}}` is `euros is
    above 100`.

    `params`: the parameters; an absent one has no words. `None`: they are not known yet. `decided`: whether they meet
    the condition for certain.
    """
    words = one_visible_line(" and ".join(dict.fromkeys(_conditions(when, params, ""))))
    if params is not None and decided:
        return words or NO_WORDS
    return f"it is not known whether {words or NO_WORDS}"


def _conditions(schema: Json, value: Json, path: str) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    properties = schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    for name, inner in properties.items():
        if not isinstance(value, dict) or name in value:
            below = value.get(name) if isinstance(value, dict) else None
            yield from _conditions(inner, below, f"{path}.{name}" if path else name)
    required = schema.get("required")
    for each in required if isinstance(required, list) else ():
        if each not in properties:
            yield f"{path}.{each} is given" if path else f"{each} is given"
    for all_of in _schemas(schema, "allOf"):
        yield from _conditions(all_of, value, path)
    for key in ("anyOf", "oneOf"):
        found = [" and ".join(_conditions(each, value, path)) for each in _schemas(schema, key)]
        if any(found):
            yield " or ".join(dict.fromkeys(filter(None, found)))
    others = list(_conditions(schema.get("not"), value, path))
    if len(others) == 1:
        yield others[0].replace(" is ", " is not ", 1) if " is " in others[0] else f"not: {others[0]}"
    if path:
        yield from _bounds(schema, path)


def _schemas(schema: JsonObject, key: str) -> list[Json]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def _bounds(schema: JsonObject, path: str) -> Iterator[str]:
    """Yield the comparisons that a schema makes with one value, in words."""
    for key, words in _COMPARED.items():
        if key in schema:
            yield f"{path} {words.format(value_words(schema[key]))}"
    options = schema.get("enum")
    if isinstance(options, list):
        yield f"{path} is {' or '.join(map(value_words, options[:_NAMED]))}{' or another of the policy' if len(options) > _NAMED else ''}"


_COMPARED: Final = {
    "const": "is {}",
    "exclusiveMinimum": "is above {}",
    "minimum": "is {} or more",
    "exclusiveMaximum": "is below {}",
    "maximum": "is {} or less",
    "minLength": "has {} characters or more",
    "maxLength": "has {} characters or fewer",
    "minItems": "has {} items or more",
    "maxItems": "has {} items or fewer",
    "pattern": "matches {}",
}
"""Words for each comparing keyword of JSON Schema."""


def _words(name: str) -> str:
    return one_visible_line(" ".join(re.split(r"[_\-\s]+", name.strip("_-"))) or name)


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class InformedRoute(WireModel):
    """A route by which people were informed of a request.

    ```python
    print(each.route, each.at, each.status)
    ```
    """

    route: str
    at: str
    """Time of the notification: ISO 8601, UTC."""
    status: Literal["sending", "delivered", "refused", "unknown"]
    """The outcome so far."""

    @property
    def words(self) -> str:
        """The route, its outcome where that is not `delivered`, and the time, as one line."""
        outcome = "" if self.status == "delivered" else f" ({self.status})"
        return f"{self.route}{outcome} at {self.at[:16].replace('T', ' ')} UTC"


class WaitingView(WireModel):
    """A view of one waiting request: a call, or a whole plan (then `calls` and `simulation` are set).

    ```python
    for request in await run.waiting():
        print(request.call, request.sentence, request.params)
    ```
    """

    call: str
    """The name in a decision: the call's id, or the Request's number for its plan."""
    agent: str
    """The name of the run's agent."""
    tool: str
    description: str = ""
    """The tool's description."""
    params: JsonObject = Field(default_factory=dict)
    """Resolved parameters."""
    parameters: JsonObject = Field(default_factory=dict)
    """JSON Schema of the parameters."""
    items: list[Json] | None = None
    """What `_each` resolved to: the call runs once for each. The digest is of the parameters with these as `_each`."""
    runs: dict[str, str] = Field(default_factory=dict)
    """Tool → the activity, or the agent, that runs, if its name is not the tool's."""
    ways: list[str] = Field(default_factory=list)  # R15.6
    """The provenance of its parameters, one line each: `send_money.iban ← †state.mail.iban ← read_mail (written by
    others)`."""
    reason: str
    """The reason for the request, or the question."""
    requested_at: str
    """ISO 8601, UTC."""
    digest: str  # R7.2
    """The digest of exactly what is shown: a decision that carries it applies to nothing else."""
    question: bool = False
    """Whether it is a question (`reason`), which needs an answer and not a decision."""
    approvers: list[Approver] = Field(default_factory=list, exclude_if=operator.not_)  # R24.6
    """Its approvers so far, if a quorum decides; left out if there are none, as the next two."""
    missing: str = Field(default="", exclude_if=operator.not_)
    """The approvals that are missing: `1 more approval with the role finance, not by ann`."""
    roles: list[str] = Field(default_factory=list, exclude_if=operator.not_)
    """Roles with which the next approval counts: one for each quorum that is not met."""
    server: str = Field(default="", exclude_if=operator.not_)  # R21.3
    """The MCP server that asks the question, while the call runs; left out where none asks, as the next two."""
    form: JsonObject | None = Field(default=None, exclude_if=operator.not_)
    """JSON Schema of the answer to that server: an object whose properties are the fields of a form."""
    url: str = Field(default="", exclude_if=operator.not_)
    """The address that the server asks the person to open. Nothing else opens it."""
    client: bool = False  # R17.2
    """Whether the program that started the run carries the call out: no person decides."""
    calls: list[Json] | None = None
    """The whole plan, if a plan waits."""
    more: int = 0
    """The number of requests behind it for which the answer had no room; the client asks for them next."""
    cut: bool = False  # R18.3
    """Whether a part was too large to be shown in full; the digest is of the whole."""
    simulation: JsonObject | None = None
    """`{"makespan", "levels": [[call ids]], "asks": [call ids]}`."""
    ask: str = Field(default="", exclude_if=operator.not_)
    """The tool's own question, with the parameters: `refund 120 EUR to C-17?`; left out where it has none."""
    rules: list[str] = Field(default_factory=list, exclude_if=operator.not_)  # R23.1
    """The verdict on each rule that concerns it, one line each, violated ones first: `unknown: at_most(refund.euros,
    sum=100, per="run"): the sum is only known at the calls`; left out where the run has no such rule."""
    no_undo: list[str] = Field(default_factory=list, exclude_if=operator.not_)  # R23.4
    """Its calls whose effects cannot be undone, in a run that has tools with an undo."""
    sender: str = Field(default="", exclude_if=operator.not_)
    """The sender for whom the run works, verified by its starter; left out if none was named, as the next two."""
    tenant: str = Field(default="", exclude_if=operator.not_)
    session: str = Field(default="", exclude_if=operator.not_)
    """The key of the run's session."""
    said: str = Field(default="", exclude_if=operator.not_)
    """The last message of the person in that session, or its beginning."""
    informed: list[InformedRoute] = Field(default_factory=list, exclude_if=operator.not_)  # R19.5
    """The routes that have notified people of it, oldest first; left out if there are none."""

    @property
    def sentence(self) -> str:
        """The question as a sentence: `refund 120 EUR to ann@example.com: euros is above 100`."""
        if self.calls is not None:
            return plan_words(len(self.calls), self.reason)
        return ask_words(self.tool, self.params, self.reason, question=self.question, ask=self.ask)


def requests_of_people(waiting: Iterable[WaitingView]) -> list[WaitingView]:
    """Return the requests that people decide or answer, without the calls that the run's client carries out."""
    return [request for request in waiting if not request.client]


class WaitingEntry(WireModel):
    """One waiting request as a list shows it; the run itself has the rest.

    ```python
    for row in (await perdure.approvals()).waiting:
        print(row.entry.call, row.entry.sentence)
    ```
    """

    call: str
    """The name in a decision."""
    tool: str
    params: JsonObject | None = None
    """The parameters; `None`: a plan, or parameters too long for a list."""
    reason: str
    """The reason for the request, or the question."""
    requested_at: Timestamp
    """ISO 8601, UTC."""
    digest: str
    """The digest of the `WaitingView`."""
    question: bool = False
    """Whether it needs an answer and not a decision."""
    ask: str = Field(default="", exclude_if=operator.not_)
    """As of the `WaitingView`."""
    roles: list[str] = Field(default_factory=list, exclude_if=operator.not_)
    """As of the `WaitingView`."""

    @property
    def sentence(self) -> str:
        """The question as a sentence, as `WaitingView.sentence`; without the parameters if they are too long for a
        list."""
        if "." not in self.call:  # a Request's number is its plan
            return plan_words(None, self.reason)
        return ask_words(self.tool, self.params, self.reason, question=self.question, ask=self.ask)


class WaitingMemo(WireModel):
    """The memo in Temporal's visibility of a run that waits for a person, so that lists need no query to the run
    (R7.8)."""

    agent: str
    calls: list[WaitingEntry]
    """The oldest `WAITING_NAMED`."""


APPROVE_ACTIVITY: Final = "perdure.approve"
PROGRAM_SECONDS: Final = 30.0
"""Time for a program to decide, from its start; after that a person decides."""
EXECUTION_ACTIVITY: Final = "perdure.execution"
LEFT_BEHIND: Final = "left-behind"
"""The activity's answer in place of an id: a parent workflow was reset to a point before it started this run (R7.2)."""
STEER: Final = "steer"
"""Signal: a new message for the run while it works, an `IncomingMessage` (R10.5)."""
WAITS: Final = "waits"
"""Signal, a `RunWaits`: a session's run, or its child run, has begun or ceased to wait for a person (R10.4)."""
WITHDRAW: Final = "withdraw"
"""Update: withdraw a message, by its id, while no Request holds it (R10.7)."""


class RunWaits(WireModel):
    """Whether a session's run, or a run below it, waits for a person."""

    run_id: str = Field(max_length=MAX_ID)
    count: int
    """Larger in each later report of a run: signals may overtake each other."""
    waits: bool
    closed: bool = False
    """Whether the run has ended without a report of its own, and so have the runs below it."""
    left: list[str] | None = None
    """After a reset of the run: the names of the runs below it that it still has. It has left all others behind."""

    def forgets(self, run_id: str) -> bool:
        """Whether it reports that a child run of the reporting one no longer waits."""
        if not run_id.startswith(f"{self.run_id}/"):
            return False
        name = run_id[len(self.run_id) + 1 :].partition("/")[0]
        return self.closed or (self.left is not None and name not in self.left)


class ApproveInput(WireModel):
    """The input of a program that decides (R7.9)."""

    approver: str
    """`module:function`."""
    call: str
    """The request's name, as in a decision."""
    offer: JsonObject | None = None
    """A `WaitingView` as JSON: what a person would be shown. `None`: a claim check; the activity asks its run for it
    (R18.2)."""
    owner: RunOwner | None = Field(default=None, exclude_if=operator.not_)
    """Who asks, as the program gets it beside the request (R19.1)."""


class IncomingMessage(WireModel):
    """A message that arrived while the run worked."""

    id: str = Field(min_length=1, max_length=MAX_NAME)
    """The sender's id of the message: a second one with the same sender and id is the same message."""
    text: str = Field(min_length=1)
    sender: str = Field(default="", max_length=MAX_NAME)
    at: str = Field(default="", max_length=40)
    """ISO 8601, UTC: the time when the message was accepted."""


class MessageFate(WireModel):
    """The fate of a message that arrived while the run worked."""

    id: str
    sender: str = ""
    request: int | None = None
    """Number of the Request that held the message; `None`: no Request has held it, or none did before the run ended."""

    def names(self, id: str, sender: str) -> bool:
        """Whether this is the fate of the message with this id and sender; Perdure 0.1.0 recorded no sender."""
        return self.id == id and self.sender in ("", sender)
