"""A call: one use of a tool, as the model wrote it and as the plan follows it (R5.4, R5.7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from perdure.errors import CallError, ReferenceSyntaxError, clip
from perdure.plan.approval import Approval
from perdure.plan.control.conditions import IF
from perdure.plan.control.iteration import DEFAULT_MAX, DEFAULT_PARALLEL, INDEX, ITEM, Until
from perdure.tools.tool import Tool
from perdure.values.instances import scope_path
from perdure.values.jsons import Json, JsonObject
from perdure.values.limits import MAX_INSIDE
from perdure.values.output_paths import Alternatives, parse_output_path, show
from perdure.values.references import Path, Reference
from perdure.values.sources import NOWHERE, Sources
from perdure.values.sources.origins import UNKNOWN_ORIGINS, Origins
from perdure.values.state import OutputMethod, Write
from perdure.values.templates import EMPTY_TEMPLATE, EXPR, Template

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
class After:
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
    after: After = field(default_factory=After)
    """What has to have ended well before it starts (R5.11)."""
    after_end: After = field(default_factory=After)
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
