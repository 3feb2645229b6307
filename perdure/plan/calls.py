"""Calls: one use of a tool, its condition and iteration, its approval, and its outcome."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer
from pydantic.alias_generators import to_camel

from perdure.errors import CallError, ReferenceSyntaxError, clip
from perdure.tools.tool import Tool
from perdure.values.formulas import is_name, readable
from perdure.values.json import Json, JsonObject, shorten
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
from perdure.values.templates import EMPTY_TEMPLATE, EXPR, Template, is_expression, is_formula, parse_template

Kind: TypeAlias = Literal["approve", "reject", "edit", "replace", "answer"]
"""What a person decides (R7.2)."""


class Approval(BaseModel):
    """What became of a call that was offered, as `run --json` prints it (section 11)."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    requested_at: str
    """ISO 8601, UTC."""
    decision: Kind | Literal["timeout", "dropped"] | None = None
    """`None`: it still waits. `dropped`: nobody has decided, and the call does not run any more."""
    by: str = ""
    """Who decided, as they said."""
    reason: str = ""
    via: str = ""
    """By which way the decision came, where that was said; not printed where it was not."""

    @model_serializer(mode="wrap")
    def _without_nothing(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        plain: dict[str, Any] = handler(self)
        return plain if self.via else {key: value for key, value in plain.items() if key != "via"}


def again(before: Approval | None, time: str) -> Approval:
    """That of a call that is offered now. By which way the plan that it is part of was approved stays known until it is decided itself."""
    return Approval(requested_at=time, via=before.via if before is not None else "")


@dataclass(frozen=True, slots=True)
class Returned:
    """The tool returned a value, perhaps to one alternative of its output path (R12.4)."""

    value: Json
    branch: str | None = None
    parts: Mapping[Path, Json] | None = None
    """Of a loop with a body what each path that it writes is given; one that has nothing is not written (R16.4)."""
    sources: Sources = NOWHERE
    """What it comes from beside its tool and its parameters, as a run below tells (R15.1)."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The tool raised, timed out or used up its retries (R6.6)."""

    error: CallError
    sources: Sources = NOWHERE
    """What its words come from beside its tool and its parameters."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A person did not want it run (R7.2)."""

    reason: str


Outcome: TypeAlias = Returned | Failed | Rejected


IF: Final = "_if"


def parse_condition(value: Json, key: str = IF) -> tuple[Template, str | None]:
    """The condition as a template that gives the value it goes by, and what is wrong with it.

    A formula, as a text or as `{"_expr": "…"}`; a text that joins references by `||` or `&&` is read as what it is (R3.3).
    """
    joined = isinstance(value, str) and ("||" in value or "&&" in value)
    formula = {EXPR: value} if isinstance(value, str) and not joined else value
    if not joined and not (isinstance(formula, dict) and is_formula(formula)):
        return (
            EMPTY_TEMPLATE,
            f'$.{key} is {shorten(value, 60)}, but must be an expression such as "len(state.hosts) > 3"',
        )
    template, malformed = parse_template(formula)
    return template, f"$.{key}: {malformed[0].error}" if malformed else None


_LENGTH: Final = re.compile(r"len\(\s*†?(?P<path>[^()]+?)\s*\)")


@dataclass
class Assumptions:
    """What is taken to be so in a dry run."""

    holds: dict[str, bool] = field(default_factory=dict)
    """By call whether its condition holds."""
    counts: dict[str, int] = field(default_factory=dict)
    """By loop how often it goes round."""
    lengths: dict[str, int] = field(default_factory=dict)
    """By reference how many items the list has."""

    def take(self, what: str, value: str) -> bool:
        """`1.2` and `true`, `false` or a number; `len(†state.x)` and a number. Whether it is one of these."""
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

    def value(self, template: Template, written: Json, lookup: Callable[[Reference], Json | Missing]) -> Json:
        """What the template gives, or `UNKNOWN`; `written` is it as text. Raises `FormulaError`."""
        values = [evaluate(site.expression, lookup) for site in template.sites]
        if not any(value is UNKNOWN for value in values):
            return template.resolve(lookup)
        text = written[EXPR] if isinstance(written, dict) else written
        plain = readable(text) if isinstance(text, str) else None
        if plain is None or not self.lengths:
            return UNKNOWN
        known = _LENGTH.sub(lambda found: str(self.lengths.get("†" + found["path"], found[0])), plain)
        if known == plain:
            return UNKNOWN
        return self.value(parse_template({EXPR: known})[0], {EXPR: known}, lambda each: _or_unknown(lookup, each))

    def length(self, template: Template) -> int | None:
        """How many items are gone through at most, where the list that is gone through, or picked from, has an assumed length."""
        known = (self.lengths.get(str(reference)) for reference in template.references())
        return next((length for length in known if length is not None), None)


def _or_unknown(lookup: Callable[[Reference], Json | Missing], reference: Reference) -> Json | Missing:
    try:
        return lookup(reference)
    except KeyError:
        return MISSING


DEFAULT_PARALLEL: Final = 8
DEFAULT_MAX: Final = 20
TOLD_FAILURES: Final = 10
"""Failed iterations that the model is told of one by one."""
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
"""Where the run of a part of a longer list keeps its results, its failures, and how many calls ended well."""
ITEM: Final = "item"
INDEX: Final = "index"
_OWN: Final = frozenset({"state", "input", "output"})
_NAME: Final = re.compile(r"[^\W\d]\w*")


def loop_problems(raw: Mapping[str, Json], *, most: int = MAX_ROUNDS) -> list[str]:
    """What is wrong with a call's loop, before anything runs; `most`: iterations until something holds."""
    problems: list[str] = []
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
    """The same of a loop over a delegate, whose condition is of its output alone."""
    problems = loop_problems(raw)
    if UNTIL in raw:
        until, problem = parse_until(raw[UNTIL])
        wrong = [str(ref) for ref in until.template.references() if ref.kind not in ("output", INDEX)]
        if problem is not None:
            problems.append(problem)
        elif wrong or until.template.literal:
            what = f"{wrong[0]} is not of the output" if wrong else f"{shorten(raw[UNTIL], 60)} is no reference"
            problems.append(f'$._until: {what}; expected such as "†output.done", or a formula: "output.n > 3"')
    return problems


@dataclass(frozen=True, slots=True)
class Until:
    """When a loop is over."""

    template: Template = EMPTY_TEMPLATE
    formula: bool = False

    def holds(self, lookup: Callable[[Reference], Json | Missing]) -> bool:
        """Whether it is true. What does not exist is not; of references, what is neither null nor false is. Raises `FormulaError`."""
        if any(evaluate(site.expression, lookup) is MISSING for site in self.template.sites):
            return False
        value = self.template.resolve(lookup)
        return bool(value) if self.formula else value is not None and value is not False


def parse_until(value: Json, key: str = UNTIL) -> tuple[Until, str | None]:
    """A condition as references, `†output.done`, or as a formula, and what is wrong with it."""
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
    return parse_until(until)[0].holds(lambda reference: get(known[reference.kind], reference.path))


def item_call(raw: JsonObject, *, with_condition: bool) -> JsonObject:
    """What a call that loops over itself is made as, for one item."""
    left_out = {*LOOP_KEYS, "_outputPath", "_outputMethod", "_after", "_instance", *(() if with_condition else (IF,))}
    return {key: value for key, value in raw.items() if key not in left_out}


Status: TypeAlias = Literal[
    "pending", "ready", "waiting", "running", "done", "failed", "rejected", "skipped", "invalid", "deferred", "unknown"
]
"""`waiting`: ready, and a person is asked. `unknown`: the run ended while it ran, and nobody knows whether it took effect."""
HELD: Final = "held"
"""What a call is shown as that was not begun when a new message came, and that no Request has kept yet (R10.5)."""
ENDED: Final[frozenset[Status]] = frozenset({"done", "failed", "rejected", "skipped", "invalid", "deferred", "unknown"})


@dataclass(frozen=True, slots=True)
class LoopForm:
    """A loop that the plan itself runs, as it was read (R16.1, R16.4)."""

    kind: Literal["each", "until", "while"]
    single: bool
    """The call is made itself, over and over; else its `_body` is."""
    raws: tuple[JsonObject, ...]
    """What is made in each iteration, as written."""
    forms: tuple[Call, ...]
    """The same as checked before anything runs; they are never run themselves."""
    item: str = ITEM
    place: str = INDEX
    """Under which kinds the item and its place are read."""
    parallel: int = DEFAULT_PARALLEL
    most: int = DEFAULT_MAX
    first: int | None = None
    """The place of the first item, of a part of a longer list; `None`: it is all."""
    each: Template = EMPTY_TEMPLATE
    """What is gone through."""
    until: Until | None = None
    before: Until | None = None
    """Asked after, and before, each iteration."""
    writes: tuple[Path, ...] = ()
    """What a body writes: outside, each is a list of what the iterations wrote."""
    tallies: tuple[Path, ...] = ()
    """What a part of a longer list writes beside: its failures, and how many calls ended well."""
    reads: frozenset[Reference] = frozenset()
    """What of the state it reads that stands outside."""


@dataclass(frozen=True, slots=True)
class CallOrder:
    """What a call comes after: paths, and the ids of calls."""

    paths: Template = EMPTY_TEMPLATE
    ids: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Call:
    """One node of a plan. The plan sets `status` and what follows it; a driver only reports ends."""

    id: str
    """`R.N`: Request number and index (R5.7)."""
    index: int
    raw: JsonObject
    """The call as written, without the engine's notes."""
    tool: Tool | None = None
    params: JsonObject = field(default_factory=dict)
    """As written until the call is ready, resolved from then on."""
    template: Template = EMPTY_TEMPLATE
    condition: Template = EMPTY_TEMPLATE
    """What `_if` asks: the call is skipped where it does not hold (R16.2)."""
    after: CallOrder = field(default_factory=CallOrder)
    """What has to have ended well before it starts (R5.11)."""
    after_end: CallOrder = field(default_factory=CallOrder)
    """What has to have ended, however."""
    paths: Alternatives = ()
    """Where the result goes; empty: to the context only (R4.4)."""
    method: OutputMethod = "set"
    status: Status = "pending"
    reason: str = ""
    """Why it was skipped, in words."""
    branch: bool = False
    """Skipped because a branch was not taken, itself or what it reads: nothing has gone wrong."""
    error: CallError | None = None
    result: Json = None
    writes: list[Write] = field(default_factory=list)
    started: str | None = None
    """ISO 8601: when it was handed to its activity."""
    ended_at: str | None = None
    attempts: int = 0
    scopes: list[str] = field(default_factory=list)
    """What of the parent's context a delegate is given (R8.2)."""
    written_id: str | None = None
    """The id that a native tool call came with."""
    instance: str | None = None
    """Which of the independent contexts it reads and writes; `None`: what is shared (R8.8)."""
    items: list[Any] | None = None
    """What `_each` resolved to: the delegate runs once for each (R8.5)."""
    origins: Origins = UNKNOWN_ORIGINS
    """Where it and its parameters come from, once it was looked at whether it is ready (R15.1)."""
    decided: Sources = NOWHERE
    """Where what decided that it is made comes from: conditions and lists, its own and those of the loops that it stands in."""
    sources: Sources = NOWHERE
    """Where its result comes from, or what is said of its failure."""
    notes: list[CallError] = field(default_factory=list)
    """What the model is told although the call is done: iterations that failed."""
    converted: list[str] = field(default_factory=list)
    """Literals that were taken as another type, as the schema has it (R5.13)."""
    loop: LoopForm | None = None
    """Set where it is made more than once by the plan itself; a delegate's loop is a workflow of its own."""
    soft: Template = EMPTY_TEMPLATE
    """What a loop's calls may read, and need not: that it has no value is theirs to find."""
    outside: dict[Reference, Json] = field(default_factory=dict)
    """What of the state a loop's calls read, by the value that it has for the loop."""
    outside_sources: dict[Reference, Sources] = field(default_factory=dict)
    """Where these values come from."""
    place: tuple[int, ...] = ()
    """Its index; inside a loop before it the loop's place and the iteration's number."""
    given: JsonObject = field(default_factory=dict)
    """What a delegate that is made for an item reads beside its parameters: `item` and `index` (R8.5)."""
    given_sources: Sources = NOWHERE
    held: bool = False
    """A new message has come before it was begun: it does not start unless a Request keeps it, or its tool is safe (R10.5)."""
    unwanted: bool = False
    """It is held, and the running Request has said that it is to be dropped."""
    pressed: bool = False
    """It is held, and the model was asked once more what is to become of it."""
    queued: bool = False
    """Taken up by the driver, which has not sent it yet."""
    approval: Approval | None = None
    """Set when it was ever offered to a person (section 7)."""
    changed: list[str] = field(default_factory=list)
    """Parameters that a hook has given another value (R10.17)."""
    kept: list[Json] | None = None
    """What a session's transcript keeps in place of the result, where a hook says so; one value."""
    approved: str | None = None
    """Digest of what a person let run: a worker with a floor of its own goes by it (R7.1)."""

    def copied(self, id: str, index: int) -> Call:
        """Return the same call as it was checked, with another id: one of an iteration. What is written into a call is the copy's own."""
        return Call(
            id,
            index,
            self.raw,
            tool=self.tool,
            params=self.params,
            template=self.template,
            condition=self.condition,
            after=self.after,
            after_end=self.after_end,
            paths=self.paths,
            method=self.method,
            result=self.result,
            scopes=self.scopes,
            converted=self.converted,
            loop=self.loop,
            soft=self.soft,
        )

    @property
    def tool_name(self) -> str:
        return str(self.raw.get("_tool", "?"))

    @property
    def title(self) -> str:
        """Its id and its tool's name, which a model may have made up at any length."""
        return f"{self.id} {clip(self.tool_name, 100)}"

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def safe(self) -> bool:
        """Whether its tool never does harm, whatever its input (R7.1)."""
        if self.loop is not None:
            return all(form.safe for form in self.loop.forms)
        return self.tool is not None and self.tool.safe

    @property
    def standing(self) -> str:
        """Its status, as it is shown."""
        return HELD if self.held and not self.ended else self.status

    @property
    def written_params(self) -> JsonObject:
        """The parameters as the model wrote them, with their references."""
        return {key: value for key, value in self.raw.items() if not key.startswith("_")}

    @property
    def loops(self) -> bool:
        """Whether its delegate runs more than once (R8.5, R8.6)."""
        return "_each" in self.raw or "_until" in self.raw

    @property
    def has_condition(self) -> bool:
        """Whether it is asked before the call is made; of a condition that goes by the item, the items' calls are."""
        return not self.condition.literal

    @property
    def condition_text(self) -> str:
        """`_if` as it was written."""
        written = self.raw[IF]
        return str(written[EXPR] if isinstance(written, dict) else written)

    def take_resolved(self, values: JsonObject) -> None:
        """The parameters, and what `_each` names, with every reference replaced."""
        self.params = {key: value for key, value in values.items() if key != "_each"}
        self.items = values.get("_each")

    @property
    def reads(self) -> list[str]:
        """What it reads, as references."""
        read = (self.condition, self.template, self.soft)
        return list(dict.fromkeys(str(each) for template in read for each in template.references()))

    @property
    def target(self) -> str:
        """Its output path as written, or as its tool fixes it, and what a body writes; empty without one."""
        if self.loop is not None and self.loop.writes:
            return " || ".join(" && ".join(map(show, paths)) for paths in self.paths)
        fixed = self.tool.output_path if self.tool is not None else None
        return str(self.raw.get("_outputPath") or fixed or "")

    @property
    def far(self) -> bool:
        """Whether it goes through more items than run inside the run: then a workflow of its own does (R16.1)."""
        return self.loop is not None and len(self.items or ()) > MAX_INSIDE

    def written(self) -> Iterator[Call]:
        """Itself, and all that its body is made of, as written."""
        yield self
        for form in self.loop.forms if self.loop is not None else ():
            yield from form.written()

    @property
    def branches(self) -> bool:
        """Whether a failure is written to the last alternative instead of raised (R4.3)."""
        return len(self.paths) > 1

    def as_plan_entry(self) -> JsonObject:
        """The call as a plan message shows it: as written, with its id and status (R2.5)."""
        entry = {**self.raw, "_id": self.id, "_status": self.standing}
        if self.reason:
            entry["_reason"] = self.reason
        elif self.standing == HELD and self.approval is not None and self.approval.decision is None:
            entry["_reason"] = "a person is asked about it"
        return entry


def find_branch(call: Call, text: str) -> tuple[Any, ...] | None:
    """The alternative of the call's output path that a returned branch addresses, or `None` (R4.3, R12.4)."""
    try:
        wanted = parse_output_path(text)
    except ReferenceSyntaxError:
        return None
    if call.instance is not None:
        wanted = tuple(tuple(scope_path(path, call.instance) for path in paths) for paths in wanted)
    whole = (paths for paths in call.paths if wanted == (paths,))
    one_of = (paths for paths in call.paths if len(wanted) == 1 and any(wanted[0] == (path,) for path in paths))
    return next(whole, next(one_of, None))


def errors_of(calls: Iterable[Call]) -> list[Call]:
    """Those of the calls whose errors go to the model: no branch took them (R4.3, R6.6)."""
    return [call for call in calls if call.error is not None and not call.writes]
