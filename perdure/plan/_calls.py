"""Calls: one use of a tool, its condition and iteration, its approval, and its outcome."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer
from pydantic.alias_generators import to_camel

from perdure.errors import CallError, ReferenceSyntaxError, clip
from perdure.tools.quorum import Approver
from perdure.tools.tool import Tool
from perdure.values.formulas import is_name, readable_formula
from perdure.values.json import Json, JsonObject, dumps, shorten
from perdure.values.limits import MAX_INSIDE, MAX_PARALLEL, MAX_ROUNDS
from perdure.values.provenance import NOWHERE, UNKNOWN_ORIGINS, Origins, Sources
from perdure.values.references import (
    MISSING,
    UNKNOWN,
    Alternatives,
    Missing,
    Path,
    Reference,
    evaluate,
    get,
    parse_expression,
    parse_output_path,
    show,
)
from perdure.values.state import OutputMethod, Write, scope_path
from perdure.values.templates import (
    EMPTY_TEMPLATE,
    EXPR,
    Template,
    TextBudget,
    is_expression,
    is_formula,
    parse_template,
)

DecisionKind: TypeAlias = Literal["approve", "reject", "edit", "replace", "answer"]
"""The decisions of a person (R7.2)."""


_CHANGES: Final[tuple[DecisionKind, ...]] = ("edit", "replace")
"""The decisions that change a call."""


class Approval(BaseModel):
    """The approval of one call, as `run --json` prints it.

    ```python
    for call in (await run.view()).calls:
        if call.approval is not None:
            print(call.id, call.approval.decision, call.approval.by)
    ```
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    requested_at: str
    """ISO 8601, UTC."""
    decision: DecisionKind | Literal["timeout", "dropped"] | None = None
    """`None`: it still waits. `dropped`: nobody has decided, and the call will not run."""
    by: str = ""
    """The name that the decider gave."""
    reason: str = ""
    via: str = ""
    """The channel of the decision, if the sender named it; else not printed."""
    approvers: list[Approver] = Field(default_factory=list)  # R24.6
    """The persons who have approved it so far, if a quorum decides; else not printed."""
    earlier: list[Approval] = Field(default_factory=list)
    """Earlier decisions that have changed the call, and those whose senders named a channel: on the call's plan, or of a
    quorum; else not printed."""

    @property
    def channel_decisions(self) -> list[Approval]:
        """Every decision whose sender named a channel, the oldest first."""
        return [each for each in (*self.earlier, self) if each.via]

    @property
    def earlier_changes(self) -> list[Approval]:
        """Earlier decisions that have changed the call, the oldest first."""
        return [each for each in self.earlier if each.decision in _CHANGES]

    @model_serializer(mode="wrap")
    def _without_nothing(self, handler: SerializerFunctionWrapHandler) -> JsonObject:
        plain: JsonObject = handler(self)
        return {key: value for key, value in plain.items() if value or key not in ("via", "approvers", "earlier")}


def again(before: Approval | None, time: str) -> Approval:
    """Return the approval of a call that is shown now. It keeps the decisions on its plan, and those that have changed
    the call."""
    known = [] if before is None else [*before.earlier, before.model_copy(update={"earlier": []})]
    return Approval(requested_at=time, earlier=[each for each in known if each.via or each.decision in _CHANGES])


@dataclass(frozen=True, slots=True)
class Returned:
    """The outcome of a call whose tool returned a value, perhaps for one alternative of its output path (R12.4)."""

    value: Json
    branch: str | None = None
    parts: Mapping[Path, Json] | None = None
    """The value for each path that a loop with a body writes; a path without a value is not written (R16.4)."""
    sources: Sources = NOWHERE
    """The provenance of the value beside its tool and its parameters, as a delegate's run reports it (R15.1)."""
    recalled: bool = False
    """Whether `recall` read the value again: `sources` replace the tool's declaration."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The outcome of a call whose tool raised an error, timed out or used up its retries (R6.6)."""

    error: CallError
    sources: Sources = NOWHERE
    """The provenance of the error's text beside its tool and its parameters."""
    carried_out: bool | None = False
    """Whether the call took effect, although its result cannot be used: a hook withholds it, or it is too large or no JSON.
    `None`: that is not known.
    """


@dataclass(frozen=True, slots=True)
class Rejected:
    """The outcome of a call that a person has rejected (R7.2)."""

    reason: str


@dataclass(frozen=True, slots=True)
class RefusedByRule:
    """The outcome of a call that may not run because it would violate a rule of its run (R23.2)."""

    error: CallError


Outcome: TypeAlias = Returned | Failed | Rejected | RefusedByRule


IF: Final = "_if"


def parse_condition(value: Json, key: str = IF) -> tuple[Template, str | None]:
    """Return the condition as a template, and its problem.

    It is a formula, as a text or as `{"_expr": "…"}`. A text that joins references by `||` or `&&` is read as such
    (R3.3).
    """
    joined = isinstance(value, str) and ("||" in value or "&&" in value)
    formula: Json = {EXPR: value} if isinstance(value, str) and not joined else value
    if not joined and not is_formula(formula):
        return (
            EMPTY_TEMPLATE,
            f'$.{key} is {shorten(value, 60)}, but must be an expression such as "len(state.hosts) > 3"',
        )
    template, malformed = parse_template(formula)
    return template, f"$.{key}: {malformed[0].error}" if malformed else None


_LENGTH: Final = re.compile(r"len\(\s*†?(?P<path>[^()]+?)\s*\)")


@dataclass
class Assumptions:
    """The assumptions of a dry run."""

    holds: dict[str, bool] = field(default_factory=dict)
    """Whether the condition of a call holds, by call."""
    counts: dict[str, int] = field(default_factory=dict)
    """The number of iterations of a loop, by call."""
    lengths: dict[str, int] = field(default_factory=dict)
    """The number of items of a list, by reference."""
    taken: int = 0
    """Steps of the formulas that the dry run has computed."""

    def take(self, what: str, value: str) -> bool:
        """Record one assumption: `1.2` with `true`, `false` or a number, or `len(†state.x)` with a number. Return
        whether it is valid.
        """
        if value.isascii() and value.isdigit() and len(value) <= 6:
            found = _LENGTH.fullmatch(what)
            if found is None:
                self.counts[what] = int(value)
            else:
                self.lengths["†" + found["path"]] = int(value)
            return True
        if value in ("true", "false"):
            self.holds[what] = value == "true"
            return True
        return False

    def value(
        self, template: Template, written: Json, lookup: Callable[[Reference], Json | Missing], texts: TextBudget
    ) -> Json:
        """Return the template's value, or `UNKNOWN`; `written` is its text. Raises the errors of `Template.resolve`."""
        values = [evaluate(site.expression, lookup) for site in template.sites]
        if not any(value is UNKNOWN for value in values):
            resolved: Json = template.resolve(lookup, texts)
            return resolved
        text = written[EXPR] if isinstance(written, dict) else written
        plain = readable_formula(text) if isinstance(text, str) else None
        if plain is None or not self.lengths:
            return UNKNOWN
        known = _LENGTH.sub(lambda found: str(self.lengths.get("†" + found["path"], found[0])), plain)
        if known == plain:
            return UNKNOWN
        formula: JsonObject = {EXPR: known}
        return self.value(parse_template(formula)[0], formula, lambda each: _or_unknown(lookup, each), texts)

    def length(self, template: Template) -> int | None:
        """Return the maximum of items of the loop, if the list that it reads or filters has an assumed length."""
        known = (self.lengths.get(str(reference)) for reference in template.references())
        return next((length for length in known if length is not None), None)


def _or_unknown(lookup: Callable[[Reference], Json | Missing], reference: Reference) -> Json | Missing:
    try:
        return lookup(reference)
    except KeyError:
        return MISSING


DEFAULT_PARALLEL: Final = 8
DEFAULT_ITERATIONS: Final = 20
SHOWN_FAILURES: Final = 10
"""Failed iterations that the model reads one by one."""
EACH: Final = "_each"
UNTIL: Final = "_until"
WHILE: Final = "_while"
BODY: Final = "_body"
AS: Final = "_as"
AT: Final = "_at"
LOOP_KEYS: Final = frozenset({EACH, "_parallel", UNTIL, "_max", AS, AT, "_from"})
LOOP_RESULTS: Final = "_loop_results"
LOOP_FAILED: Final = "_loop_failed"
LOOP_DONE: Final = "_loop_done"
"""Keys of the state in the run of a part of a longer list: its results, its failures, and the number of its done calls.
"""
ITEM: Final = "item"
INDEX: Final = "index"
_OWN: Final = frozenset({"state", "input", "output"})
_NAME: Final = re.compile(r"[^\W\d]\w*")


def loop_problems(raw: Mapping[str, Json], *, most: int = MAX_ROUNDS) -> list[str]:
    """Return the problems of a call's loop, before anything runs; `most`: the maximum of iterations of a loop with a
    condition.
    """
    problems: list[str] = []
    if LOOP_KEYS.isdisjoint(raw):
        return problems
    if EACH in raw and (UNTIL in raw or WHILE in raw):
        problems.append("a call has '_each' or '_until', not both: loop inside a delegate, or a body, instead")
    if EACH in raw and not (isinstance(raw[EACH], list | str) or is_formula(raw[EACH])):
        problems.append(
            f'$._each is {shorten(raw[EACH], 60)}, but must be a reference such as "†state.hosts", an array, or {{"_expr": "…"}}'
        )
    ends = UNTIL if WHILE not in raw else WHILE
    for key, needs, least, largest in (
        ("_parallel", EACH, 1, MAX_PARALLEL),
        ("_max", ends, 1, most),
        ("_from", EACH, 0, 10**9),
    ):
        if key in raw:
            value = raw[key]
            if needs not in raw:
                problems.append(f"$.{key} says nothing without '{needs}'")
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= largest:
                problems.append(
                    f"$.{key} is {shorten(value, 40)}, but must be a whole number from {least} to {largest}"
                )
    for key in (AS, AT):
        name = raw.get(key, ITEM)
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _OWN or not is_name(name):
            problems.append(f"$.{key} is {shorten(name, 40)}, but must be a name that has no meaning of its own")
        elif key in raw and EACH not in raw and key == AS:
            problems.append(f"$.{key} says nothing without '{EACH}'")
    return problems


def delegate_problems(raw: Mapping[str, Json]) -> list[str]:
    """Return the problems of a loop over a delegate, whose condition reads only its output."""
    problems = loop_problems(raw)
    if UNTIL in raw:
        until, problem = parse_until(raw[UNTIL])
        wrong = [str(ref) for ref in until.template.references() if ref.kind not in ("output", INDEX)]
        if problem is not None:
            problems.append(problem)
        elif wrong or until.template.literal:
            what = f"{wrong[0]} is not of the output" if wrong else f"{shorten(raw[UNTIL], 60)} is not a reference"
            problems.append(f'$._until: {what}; expected such as "†output.done", or a formula: "output.n > 3"')
    return problems


@dataclass(frozen=True, slots=True)
class Until:
    """The condition that ends a loop."""

    template: Template = EMPTY_TEMPLATE
    formula: bool = False

    def with_all_needed(self) -> Until:
        """Return the condition that is false without any of the values that it names."""
        return replace(self, template=self.template.with_all_needed())

    def holds(self, lookup: Callable[[Reference], Json | Missing]) -> bool:
        """Whether the condition is true; a reference is true for every value except null and false. Without a value
        that it needs, it is false. Raises `FormulaError`.
        """
        if any(self.template.find_missing(lookup)):
            return False
        value = self.template.resolve(lookup)
        return bool(value) if self.formula else value is not None and value is not False


def parse_until(value: Json, key: str = UNTIL) -> tuple[Until, str | None]:
    """Return a condition, as references (`†output.done`) or as a formula, and its problem."""
    if isinstance(value, str) and is_expression(value):
        try:
            parse_expression(value.strip())
        except ReferenceSyntaxError as error:
            until, problem = parse_until({"_expr": value}, key)
            return until, problem and f"$.{key}: {error}"
        return Until(parse_template(value)[0]), None
    template, problem = parse_condition(value, key)
    return Until(template, formula=True), problem


def is_satisfied(until: Json, output: Json, index: int = 0) -> bool:
    """Whether the condition of a delegate's loop holds for its last output. Raises `FormulaError`."""
    known = {"output": output, INDEX: index}
    condition = parse_until(until)[0].with_all_needed()
    return condition.holds(lambda reference: get(known[reference.kind], reference.path))


def item_call(raw: JsonObject, *, with_condition: bool) -> JsonObject:
    """Return the call of one item, for a call that loops over itself."""
    left_out = {*LOOP_KEYS, "_outputPath", "_outputMethod", "_after", "_instance", *(() if with_condition else (IF,))}
    return {key: value for key, value in raw.items() if key not in left_out}


CallStatus: TypeAlias = Literal[
    "pending", "ready", "waiting", "running", "done", "failed", "rejected", "skipped", "invalid", "deferred", "unknown"
]
"""`waiting`: the call is ready and needs approval. `unknown`: the run ended while the call ran, or the call was
dropped while its client had it. It is unknown whether it took effect.
"""
HELD: Final = "held"
"""The status that is shown for a held call: it had not begun when a new message came, and no Request has kept it yet
(R10.5)."""
EXECUTED_CALLS_COUNT: Final = "executed-calls-count"
"""Patch: in runs of 0.2.0 a call that ran, and whose result cannot be written, counts as one that never ran. So does a
call that its client has when it is dropped. A call that waits at the deadline counts as one that ran, and a call whose
result cannot be used otherwise as one that only failed. A call that a client or a person answers is not done for
rules, and the model may drop a call that has to follow it."""
STEERED_RUNS_GO_ON: Final = "steered-runs-go-on"
"""Patch: in runs of 0.2.0, after a message, an unreadable answer ends or drops calls of earlier plans. A rejected plan
keeps the slots of its calls, and its output is returned. Calls that a rule requires do not start before the last Request.
Calls of a plan that no person has reviewed begin (R7.6, R10.5, R23.2). Held calls that are kept begin all in one task
(R18.1)."""
INVALID_WRITE: Final = "invalid_write"
"""Code of a call that ran, and whose result cannot be written to the state."""
ENDED: Final[frozenset[CallStatus]] = frozenset(
    {"done", "failed", "rejected", "skipped", "invalid", "deferred", "unknown"}
)


@dataclass(frozen=True, slots=True)
class LoopForm:
    """The parsed form of a loop that the plan itself runs (R16.1, R16.4)."""

    kind: Literal["each", "until", "while"]
    single: bool
    """Whether the call itself is repeated, and not its `_body`."""
    raws: tuple[JsonObject, ...]
    """The calls of each iteration, as written."""
    forms: tuple[Call, ...]
    """The same calls, checked before anything runs. They never run themselves."""
    item: str = ITEM
    place: str = INDEX
    """The kinds of the references that read the item and its index."""
    parallel: int = DEFAULT_PARALLEL
    most: int = DEFAULT_ITERATIONS
    first: int | None = None
    """The index of the first item, for a part of a longer list; `None`: the whole list."""
    each: Template = EMPTY_TEMPLATE
    """The list that the loop goes through."""
    until: Until | None = None
    before: Until | None = None
    """The conditions that are evaluated after each iteration, and before it."""
    writes: tuple[Path, ...] = ()
    """The paths that a body writes: outside the loop, each is a list of the values of all iterations."""
    tallies: tuple[Path, ...] = ()
    """The further paths of a part of a longer list: its failures, and the number of its done calls."""
    reads: frozenset[Reference] = frozenset()
    """The references of the loop to the state outside it."""


@dataclass(frozen=True, slots=True)
class CallOrder:
    """The order that `_after` requires: paths, and the ids of calls."""

    paths: Template = EMPTY_TEMPLATE
    ids: list[str] = field(default_factory=list)


NO_ORDER: Final = CallOrder()


@dataclass(frozen=True, slots=True, eq=False)
class CallSpec:
    """A call as it was written and checked. A person's edit, or a hook's change, replaces it by another spec."""

    raw: JsonObject
    """The call as written, without the engine's notes."""
    tool: Tool | None = None
    params: JsonObject = field(default_factory=dict)
    """The parameters as written, with their references."""
    template: Template = EMPTY_TEMPLATE
    """The same parameters, parsed."""
    condition: Template = EMPTY_TEMPLATE
    """The condition `_if`: the call is skipped if it does not hold (R16.2)."""
    after: CallOrder = NO_ORDER
    """The calls that have to be done, and the paths that have to be written, before it starts (R5.11)."""
    after_end: CallOrder = NO_ORDER
    """The calls and paths that have to end before it starts, in any way."""
    paths: Alternatives = ()
    """The paths to which the result is written; empty: the result goes only to the context (R4.4)."""
    method: OutputMethod = "set"
    output: Json = None
    """The result that the model has written itself, for a latent tool."""
    scopes: Sequence[str] = ()
    """The messages of the parent's context that a delegate gets (R8.2)."""
    instance: str | None = None
    """The independent context that it reads and writes; `None`: the shared one (R8.8)."""
    converted: Sequence[str] = ()
    """Literals that were converted to the type that the schema requires (R5.13)."""
    loop: LoopForm | None = None
    """The loop, if the plan itself makes the call more than once; a delegate's loop is a workflow of its own."""
    soft: Template = EMPTY_TEMPLATE
    """Values that a loop's calls may read, and that may be missing: each call checks its own."""

    @property
    def tool_name(self) -> str:
        return str(self.raw.get("_tool", "?"))

    @property
    def known_tool(self) -> Tool:
        """The tool of a valid call. Raise `LookupError` for an invalid call, whose tool may not exist."""
        if self.tool is None:
            raise LookupError(f"there is no tool {self.tool_name!r}")
        return self.tool

    @property
    def safe(self) -> bool:
        """Whether its tool is harmless for every input (R7.1)."""
        if self.loop is not None:
            return all(form.spec.safe for form in self.loop.forms)
        return self.tool is not None and self.tool.safe

    @property
    def written_params(self) -> JsonObject:
        """The parameters as the model wrote them, with their references."""
        return {key: value for key, value in self.raw.items() if not key.startswith("_")}

    @property
    def repeats(self) -> bool:
        """Whether its delegate runs more than once (R8.5, R8.6)."""
        return "_each" in self.raw or "_until" in self.raw

    @property
    def has_condition(self) -> bool:
        """Whether a condition is evaluated before the call starts. The items' calls evaluate a condition on the item."""
        return not self.condition.literal

    @property
    def condition_text(self) -> str:
        """`_if` as it was written."""
        written = self.raw[IF]
        return str(written[EXPR] if isinstance(written, dict) else written)

    @property
    def reads(self) -> list[str]:
        """The references that it reads."""
        read = (self.condition, self.template, self.soft)
        return list(dict.fromkeys(str(each) for template in read for each in template.references()))

    @property
    def target(self) -> str:
        """The output path, as written or as the tool fixes it, and the paths that a body writes; empty without one."""
        if self.loop is not None and self.loop.writes:
            return " || ".join(" && ".join(map(show, paths)) for paths in self.paths)
        fixed = self.tool.output_path if self.tool is not None else None
        return str(self.raw.get("_outputPath") or fixed or "")

    @property
    def branches(self) -> bool:
        """Whether a failure is written to the last alternative instead of raised (R4.3)."""
        return len(self.paths) > 1


@dataclass(slots=True, eq=False)
class CallInputs:
    """The values with which a call runs, and their provenance, set by the first check whether the call is ready."""

    params: JsonObject
    """The parameters: as written until the call is ready, resolved from then on."""
    items: list[Json] | None = None
    """The resolved value of `_each`: the delegate runs once for each item (R8.5)."""
    origins: Origins = UNKNOWN_ORIGINS
    """The provenance of the call and of its parameters (R15.1)."""
    decided: Sources = NOWHERE
    """The provenance of the conditions and lists that led to the call: its own, and those of the loops around it."""
    outside: dict[Reference, Json] = field(default_factory=dict)
    """The values from outside that a loop's calls read, by reference."""
    outside_sources: dict[Reference, Sources] = field(default_factory=dict)
    """The provenance of these values."""
    item_values: JsonObject = field(default_factory=dict)
    """The values that a delegate of one item reads beside its parameters: `item` and `index` (R8.5)."""
    item_sources: Sources = NOWHERE
    """The provenance of these values."""
    changed: Sequence[str] = ()
    """Parameters that a hook has changed since a person decided about the call (R10.17)."""
    unhooked: JsonObject | None = None
    """The parameters as they would be without the changes of hooks, if a hook has changed them."""
    changed_by: Sequence[str] = ()
    """The names of the hooks that have changed them."""
    approved: str | None = None
    """Digest of the parameters that a person approved: a worker with its own approval floor checks it (R7.1)."""
    undoes: str = ""
    """`<run id>/<call id>` of the call that it undoes (R23.4)."""

    @property
    def hooked(self) -> list[str]:
        """The parameters that have another value than without hooks, or that hooks have removed."""
        if self.unhooked is None:
            return []
        before, now = self.unhooked, self.params
        same = {
            name
            for name in before.keys() & now.keys()
            if before[name] is now[name] or dumps(before[name]) == dumps(now[name])
        }
        return [name for name in dict.fromkeys([*before, *now]) if name not in same]

    def take_resolved(self, values: JsonObject) -> None:
        """Set the parameters, and the items of `_each`, with every reference resolved."""
        self.params = {key: value for key, value in values.items() if key != "_each"}
        self.items = values.get("_each")
        self.unhooked, self.changed_by = None, ()


@dataclass(slots=True, eq=False)
class CallState:
    """The progress and the end of a call. The plan sets it; a driver only reports the ends of calls."""

    status: CallStatus = "pending"
    reason: str = ""
    """The reason why it was skipped, in words."""
    retried: str = ""
    """The reason for its last retry after a failure that was not its own."""
    branch: bool = False
    """Whether it was skipped, without an error, because it or a call that it reads belongs to a branch that was not
    taken.
    """
    error: CallError | None = None
    result: Json = None
    kept: list[Json] | None = None
    """The value that a session's transcript keeps in place of the result, if a hook sets one; a list of one value."""
    writes: list[Write] = field(default_factory=list)
    sources: Sources = NOWHERE
    """The provenance of its result, or of its failure's text."""
    notes: Sequence[CallError] = ()
    """Errors of failed iterations, which the model reads although the call is done."""
    started: str | None = None
    """ISO 8601: the time when it was handed to its activity."""
    ended_at: str | None = None
    attempts: int = 0
    outcome: Outcome | None = None
    """The outcome that the driver reported, for a fork of the run."""
    carried_out: bool | None = False
    """Whether it was carried out, although it is not `done`: its result cannot be used. `None`: that is not known."""
    some_done: bool | None = False
    """Whether a run of the delegate has returned, although the loop over it has not; `None`: that is not known."""
    key: str = ""
    """Digest of its action, in a fork and in a replay for one: `perdure.runs.fork.call_key`."""
    written_key: str = ""
    """The same digest without the changes of hooks."""
    recorded: bool = False
    """Whether its result is from the record of another run."""
    iterations: Sequence[Call] = ()
    """The calls of its iterations, where a what-if plays a loop that ran in child workflows."""
    child_calls: JsonObject | None = None
    """`perdure.rules.ChildCalls` of its child run, in a replay for a fork and in a fork; `None`: not known."""

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def executed(self) -> bool:
        """Whether its tool has returned a result, even one that is not written."""
        return self.status == "done" or bool(self.carried_out)


@dataclass(slots=True, eq=False)
class CallHold:
    """The reasons for which a ready call does not start: a new message, or its place in the driver's queue."""

    held: bool = False
    """Whether a new message came before it began: it does not start unless a Request keeps it, or its tool is safe
    (R10.5)."""
    unwanted: bool = False
    """Whether it is held, and the running Request wants to drop it."""
    pressed: bool = False
    """Whether it is held, and the model was asked again to keep or drop it."""
    queued: bool = False
    """Whether the driver has taken it, and has not scheduled it yet."""
    unfollowed: bool = False
    """Whether a rule requires a later call that has not arrived yet."""
    with_client: bool = False
    """Whether its client has received it: without an answer it is unknown whether it took effect."""


@dataclass(slots=True, eq=False)
class Call:
    """One node of a plan: its spec, the values with which it runs, and its state."""

    id: str
    """`R.N`: Request number and index (R5.7)."""
    index: int
    spec: CallSpec
    inputs: CallInputs
    state: CallState
    hold: CallHold = field(default_factory=CallHold)
    approval: Approval | None = None
    """The approval, if one was ever requested (section 7)."""
    place: tuple[int, ...] = ()
    """Its index; inside a loop, after the loop's place and the iteration's number."""
    written_id: str | None = None
    """The id of a native tool call."""

    @classmethod
    def of(cls, id: str, index: int, spec: CallSpec, *, written_id: str | None = None) -> Call:
        """Return a new call of this spec, without progress."""
        return cls(id, index, spec, CallInputs(spec.params), CallState(result=spec.output), written_id=written_id)

    def copy_state(self) -> Call:
        """Return a copy, which the call's further progress does not change."""
        return replace(self, state=copy(self.state), approval=copy(self.approval))

    @property
    def is_under_way(self) -> bool:
        """Whether its tool may be at work: the driver has scheduled it, or its client has it."""
        return self.is_with_client or (self.state.status == "running" and not self.hold.queued)

    @property
    def is_with_client(self) -> bool:
        """Whether its client has received the call and has not answered yet."""
        return self.hold.with_client and not self.state.ended

    @property
    def title(self) -> str:
        """The id and the tool's name, clipped, because a model may invent a name of any length."""
        return f"{self.id} {clip(self.spec.tool_name, 100)}"

    @property
    def standing(self) -> str:
        """The status, as it is shown."""
        return HELD if self.hold.held and not self.state.ended else self.state.status

    @property
    def far(self) -> bool:
        """Whether it has more items than a run processes itself: then a child workflow does it (R16.1)."""
        return self.spec.loop is not None and len(self.inputs.items or ()) > MAX_INSIDE

    def written(self) -> Iterator[Call]:
        """Yield the call itself, and all calls of its body, as written."""
        yield self
        for form in self.spec.loop.forms if self.spec.loop is not None else ():
            yield from form.written()

    def as_plan_entry(self) -> JsonObject:
        """Return the call in the form of a plan message: as written, with its id and status (R2.5)."""
        entry = {**self.spec.raw, "_id": self.id, "_status": self.standing}
        if self.state.reason:
            entry["_reason"] = self.state.reason
        elif self.standing == HELD and self.approval is not None and self.approval.decision is None:
            entry["_reason"] = "a person is asked about it"
        return entry


def find_branch(call: Call, text: str) -> tuple[Path, ...] | None:
    """Return the alternative of the call's output path that a returned branch addresses, or `None` (R4.3, R12.4)."""
    try:
        wanted = parse_output_path(text)
    except ReferenceSyntaxError:
        return None
    if call.spec.instance is not None:
        wanted = tuple(tuple(scope_path(path, call.spec.instance) for path in paths) for paths in wanted)
    whole = (paths for paths in call.spec.paths if wanted == (paths,))
    one_of = (paths for paths in call.spec.paths if len(wanted) == 1 and any(wanted[0] == (path,) for path in paths))
    return next(whole, next(one_of, None))


def errors_of(calls: Iterable[Call]) -> list[Call]:
    """Return the calls whose errors go to the model: no branch took them (R4.3, R6.6)."""
    return [call for call in calls if call.state.error is not None and not call.state.writes]
