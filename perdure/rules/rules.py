"""Rules of runs: conditions that every run has to satisfy, for all plans of its model and approvals of people.

A rule is data. `perdure.rules.proof` judges it over a plan before the first call; `perdure.rules.enforcement` checks it
at each call.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from perdure.errors import AgentError, ProtocolError
from perdure.tools.tool import Tool, known_as
from perdure.values.json import Json, JsonObject, dumps, shorten, whole_numbers
from perdure.values.limits import MAX_AMOUNT, MAX_RULES, CheckBudget
from perdure.values.problems import accepts, first_problem, problems_of
from perdure.values.provenance import NAME, OTHERS, TRUSTED, Sources, find_disallowed
from perdure.values.references import MISSING, Missing, get
from perdure.values.schemas import Schema

RuleSpan: TypeAlias = Literal["run", "session"]
"""The calls among which a rule holds: those of one run with the runs below it, or those of all runs of a session."""
SumSpan: TypeAlias = Literal["run", "session", "tenant/day", "tenant/month"]
"""The same, or all runs of a tenant in a day or a month (UTC)."""
CallEvent: TypeAlias = Literal["begun", "done", "failed"]
"""What has happened with a call: it has begun, it was done, or it failed."""

ToolName: TypeAlias = Annotated[str, Field(min_length=1, max_length=200)]
ToolNames: TypeAlias = ToolName | Annotated[tuple[ToolName, ...], Field(min_length=1, max_length=50)]
"""A tool, or several of which one is enough."""
ParameterPath: TypeAlias = Annotated[
    str, Field(pattern=r"^[^.]+(\.[^.]+)+$", max_length=500), accepts("TOOL.PARAMETER, such as refund.euros")
]
"""`TOOL.PARAMETER`; further keys name a part of the parameter. The tool of an MCP server is `SERVER.TOOL`."""

_SOURCE: Final = re.compile(NAME)


def check_sources(sources: list[str]) -> list[str]:
    """Return the names of sources that a person has written. Raise `ValueError` for one that is not a source."""
    for name in sources:
        if name != TRUSTED and (name.startswith(OTHERS) or not _SOURCE.fullmatch(name)):
            raise ValueError(
                f"{name!r} is not a source: use trusted, user, agent, model, tool:NAME, skill:NAME, file:NAME or client:NAME"
            )
    return sources


class BaseRule(BaseModel):
    """The parts that every rule has."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    when: JsonObject | None = None
    """JSON Schema of the parameters of the calls that the rule holds for; `None`: all calls of the tool."""
    otherwise: Literal["refuse", "ask"] = "refuse"
    """What becomes of a call that would break the rule. `ask`: a person may approve it."""
    why: str = Field(default="", max_length=500)
    """The reason for the rule. The model and people read it with a breach."""

    @model_serializer(mode="wrap")
    def _with_kind(self, handler: SerializerFunctionWrapHandler) -> JsonObject:
        """Write the rule's kind also if defaults are left out: it identifies the rule."""
        written: JsonObject = handler(self)
        return {"rule": type(self).model_fields["rule"].default} | written

    @field_validator("when")
    @classmethod
    def _usable_schema(cls, when: JsonObject | None) -> JsonObject | None:
        if when is not None and (problem := Schema(when).problem):
            raise ValueError(f"is not a JSON Schema: {problem}")
        return when

    @cached_property
    def subject(self) -> str:
        """The tool whose calls the rule may refuse; of a parameter's path everything before its last key."""
        raise NotImplementedError

    @cached_property
    def subjects(self) -> tuple[str, ...]:
        """The names that this tool may have: a tool of an MCP server has a dot in its name, as a path to a part has."""
        return (self.subject,)

    @property
    def has_record(self) -> bool:
        """Whether the rule depends on earlier calls."""
        return not isinstance(self, FollowedBy | OnlyFrom | Needs) and not self.is_of_tenant

    @property
    def is_of_tenant(self) -> bool:
        """Whether the rule holds over all runs of a tenant, which the tenant's ledger knows."""
        return isinstance(self, AtMost | CountAtMost) and self.per.startswith("tenant/")

    @property
    def is_of_session(self) -> bool:
        """Whether the rule holds over all runs of a session."""
        return isinstance(self, Precedes | NeverAfter | AtMost | CountAtMost) and self.per == "session"

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools that the rule names."""
        return self.subjects

    @cached_property
    def words(self) -> str:
        """The rule in its Python form."""
        return self._own_words if self.when is None else f"{self._own_words[:-1]}, when={shorten(self.when, 200)})"

    @cached_property
    def _own_words(self) -> str:
        """The rule in its Python form, without its condition."""
        raise NotImplementedError

    @cached_property
    def key(self) -> str:
        """The name of the rule in records: equal rules have equal keys."""
        plain_form = self.model_dump(mode="json", exclude_defaults=True, exclude={"why"})
        return hashlib.sha256(dumps([type(self).__name__, plain_form], sort_keys=True).encode()).hexdigest()[:16]

    def covers(self, params: JsonObject, checks: CheckBudget | None = None) -> bool:
        """Whether the rule applies to a call with these parameters; it does if the steps do not suffice to decide."""
        return self._condition is None or self._condition.fits(params, checks=checks) is not False

    @cached_property
    def _condition(self) -> Schema | None:
        return None if self.when is None else Schema(self.when)


class OrderRule(BaseRule):
    """A rule about the order of two calls."""

    same: str | dict[str, str] | None = None
    """The parameter with the same value in both calls. An object maps the earlier call's parameter to the later call's."""

    @cached_property
    def pairs(self) -> list[tuple[str, str]]:
        """The pairs of parameters with equal values: of the earlier call, and of the later one."""
        if self.same is None:
            return []
        return [(self.same, self.same)] if isinstance(self.same, str) else list(self.same.items())

    @property
    def _same_words(self) -> str:
        return "" if self.same is None else f", same={self.same!r}".replace("'", '"')


class Precedes(OrderRule):
    """A call of `first`, or of one of several tools, must be done before a call of `then` begins."""

    rule: Literal["precedes"] = "precedes"
    first: ToolNames
    then: ToolName
    per: RuleSpan = "run"

    @cached_property
    def firsts(self) -> tuple[str, ...]:
        """The tools of which one must be done."""
        return (self.first,) if isinstance(self.first, str) else self.first

    @property
    def first_words(self) -> str:
        """The tools of which one must be done, as text."""
        return " or ".join(self.firsts)

    @cached_property
    def subject(self) -> str:
        return self.then

    @property
    def tools(self) -> tuple[str, ...]:
        return *self.firsts, self.then

    @cached_property
    def _own_words(self) -> str:
        return f"precedes({_in_list(self.first)}, {self.then}{self._same_words})"


class FollowedBy(OrderRule):
    """A plan that makes a call of `call` must also make a later call of `then`, or of one of several tools."""

    rule: Literal["followed_by"] = "followed_by"
    call: ToolName
    then: ToolNames

    @model_validator(mode="after")
    def _refuses(self) -> FollowedBy:
        if self.otherwise == "ask":
            raise ValueError("otherwise: a person cannot approve a missing later call: use refuse")
        return self

    @cached_property
    def thens(self) -> tuple[str, ...]:
        """The tools of which one must follow."""
        return (self.then,) if isinstance(self.then, str) else self.then

    @cached_property
    def subject(self) -> str:
        return self.call

    @property
    def tools(self) -> tuple[str, ...]:
        return self.call, *self.thens

    @cached_property
    def _own_words(self) -> str:
        return f"followed_by({self.call}, {_in_list(self.then)}{self._same_words})"


class NeverAfter(OrderRule):
    """No call of `call` may begin after `event` has happened with a call of `after`."""

    rule: Literal["never_after"] = "never_after"
    call: ToolName
    after: ToolName
    event: CallEvent = "begun"
    per: RuleSpan = "run"

    @cached_property
    def subject(self) -> str:
        return self.call

    @property
    def tools(self) -> tuple[str, ...]:
        return self.call, self.after

    @cached_property
    def _own_words(self) -> str:
        event = "" if self.event == "begun" else f" {self.event}"
        return f"never_after({self.call}, {self.after}{event}{self._same_words})"


class AtMost(BaseRule):
    """The sum of a parameter over all calls of a tool is at most `sum`."""

    rule: Literal["at_most"] = "at_most"
    of: ParameterPath
    sum: float = Field(ge=0, allow_inf_nan=False)
    per: SumSpan = "run"

    @model_validator(mode="after")
    def _refuses_over_runs(self) -> AtMost:
        return _checked_span(self)

    @cached_property
    def subject(self) -> str:
        return self.of.rpartition(".")[0]

    @cached_property
    def subjects(self) -> tuple[str, ...]:
        return _tools_of_path(self.of)

    @cached_property
    def _own_words(self) -> str:
        return f'at_most({self.of}, sum={self.sum:g}, per="{self.per}")'

    @cached_property
    def limit(self) -> Fraction:
        return exact_fraction(self.sum)


class CountAtMost(BaseRule):
    """A tool is called at most `count` times."""

    rule: Literal["count_at_most"] = "count_at_most"
    of: ToolName
    count: int = Field(ge=0, le=1_000_000_000)
    per: SumSpan = "run"

    @model_validator(mode="after")
    def _refuses_over_runs(self) -> CountAtMost:
        return _checked_span(self)

    @cached_property
    def subject(self) -> str:
        return self.of

    @cached_property
    def _own_words(self) -> str:
        return f'count_at_most({self.of}, {self.count}, per="{self.per}")'

    @cached_property
    def limit(self) -> Fraction:
        return Fraction(self.count)


class OnlyFrom(BaseRule):
    """A parameter has values from these sources only."""

    rule: Literal["only_from"] = "only_from"
    parameter: ParameterPath
    sources: list[str] = Field(min_length=1, max_length=50)
    """`trusted`, `user`, `agent`, `model`, `tool:NAME`, `skill:NAME`, `file:NAME`, `client:NAME`."""

    @field_validator("sources", mode="before")
    @classmethod
    def _one_or_many(cls, sources: Json) -> Json:
        return [sources] if isinstance(sources, str) else sources

    @field_validator("sources")
    @classmethod
    def _known_forms(cls, sources: list[str]) -> list[str]:
        return check_sources(sources)

    @cached_property
    def subject(self) -> str:
        return self.parameter.rpartition(".")[0]

    @cached_property
    def subjects(self) -> tuple[str, ...]:
        return _tools_of_path(self.parameter)

    @cached_property
    def _own_words(self) -> str:
        return f"only_from({self.parameter}, {', '.join(map(repr, self.sources))})".replace("'", '"')

    def stranger(self, sources: Sources) -> str | None:
        """Return a source of a value that the rule does not allow, or `None`."""
        return find_disallowed(sources, self.sources)


class Needs(BaseRule):
    """The person for whom the run works has a role."""

    rule: Literal["needs"] = "needs"
    role: str = Field(min_length=1, max_length=200)
    call: ToolName

    @cached_property
    def subject(self) -> str:
        return self.call

    @cached_property
    def _own_words(self) -> str:
        return f'needs("{self.role}", {self.call})'


S = TypeVar("S", AtMost, CountAtMost)


def _checked_span(rule: S) -> S:
    if rule.is_of_tenant and rule.otherwise == "ask":
        raise ValueError(f"otherwise: a person cannot approve a sum per {rule.per}: use refuse")
    return rule


Rule: TypeAlias = Annotated[
    Precedes | FollowedBy | NeverAfter | AtMost | CountAtMost | OnlyFrom | Needs, Field(discriminator="rule")
]
"""A rule of runs."""

_RULES: Final[TypeAdapter[list[Rule]]] = TypeAdapter(Annotated[list[Rule], Field(max_length=MAX_RULES)])


def parse_rules(raw: Json, *, source: str = "rules") -> list[Rule]:
    """Parse a list of rules, such as a worker's file. `source`: its name, for messages. Raises `AgentError`."""
    try:
        return _RULES.validate_python(raw)
    except ValidationError as error:
        raise AgentError(f"{source}: {first_problem(error, raw, model=list[Rule])}") from None


def merge_rules(*layers: Iterable[Rule]) -> list[Rule]:
    """Return the rules of all layers, equal rules once."""
    return list({rule.key: rule for layer in layers for rule in layer}.values())


def roles_of(context: JsonObject) -> list[str]:
    """Return the roles of the person for whom a run works: `roles` of the context that was verified at its start."""
    roles = context.get("roles")
    return [role for role in roles if isinstance(role, str)] if isinstance(roles, list) else []


def names_of(tool: Tool) -> tuple[str, ...]:
    """Return the names by which a rule may name the tool: the agent's, and that of the code behind it."""
    return known_as(tool)


# Values.


def _in_list(tools: str | tuple[str, ...]) -> str:
    return tools if isinstance(tools, str) else f"[{', '.join(tools)}]"


def exact_fraction(value: float) -> Fraction:
    """Return the number with its decimal value in JSON: 0.1 is a tenth."""
    return Fraction(value) if isinstance(value, int) else Fraction(str(value))


def _tools_of_path(path: str) -> tuple[str, ...]:
    """Return each name that the tool of `TOOL.PARAMETER` may have, the shortest first."""
    keys = path.split(".")
    return tuple(".".join(keys[:count]) for count in range(1, len(keys)))


def keys_of(path: str, tool: Tool) -> tuple[str, ...]:
    """Return the keys after the tool's name in `TOOL.PARAMETER.KEY`: the parameter, and a part of it."""
    names = [name for name in names_of(tool) if path.startswith(f"{name}.")]
    return tuple(path[len(max(names, key=len)) + 1 :].split("."))


def amount_of(of: str, tool: Tool, params: JsonObject) -> Fraction | str:
    """Return the number at `TOOL.PARAMETER` of a call of the tool, or its problem: only numbers from 0 to `MAX_AMOUNT`
    can be summed.
    """
    value = get(params, keys_of(of, tool))
    if value is MISSING:
        return f"{of} is missing; a rule limits its sum"
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        return f"{of} is not a number of 0 or more; a rule limits its sum"
    if value > MAX_AMOUNT:
        return f"{of} is more than {MAX_AMOUNT:g}, and its sum is limited"
    return exact_fraction(value)


def value_at(name: str, params: JsonObject) -> Json | Missing:
    """Return the value at `PARAMETER` or `PARAMETER.KEY` in a call's parameters."""
    return get(params, tuple(name.split(".")))


def same_key(params: JsonObject, names: Sequence[str]) -> str | None:
    """Return a digest of the values of these parameters, or `None` if one is missing."""
    if not names:
        return ""
    values = [value_at(name, params) for name in names]
    known = [value for value in values if value is not MISSING]
    if len(known) < len(values):
        return None
    return digest_of(known)


def digest_of(value: Json) -> str:
    """Return a digest of a value; equal numbers have equal digests."""
    return hashlib.sha256(dumps(whole_numbers(value), sort_keys=True).encode()).hexdigest()[:16]


def by_tool(rules: Iterable[Rule]) -> Mapping[str, list[Rule]]:
    """Return the rules by the tool whose calls they may refuse."""
    found: dict[str, list[Rule]] = {}
    for rule in rules:
        for name in rule.subjects:
            found.setdefault(name, []).append(rule)
    return found


# The Python form.

R = TypeVar("R", bound=BaseRule)


def _new(kind: type[R], fields: dict[str, Any]) -> R:  # any value that a caller gives
    """Return the rule with these fields. Raises `ProtocolError`."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        found = problems_of(error, fields, model=kind)
        lines = [f"{'.'.join(map(str, each.place))}: {each.words}" if each.place else each.words for each in found]
        raise ProtocolError(f"{kind.model_fields['rule'].default}: {'; '.join(lines)}") from None


def precedes(
    first: str | Sequence[str], then: str, *, same: str | dict[str, str] | None = None, **more: object
) -> Precedes:
    """Return the rule that a call of `first` is done before a call of `then` begins.

    `first`: a tool, or several of which one is enough. `same`: a parameter that has the same value in both calls;
    `{"id": "customer"}` where `first` has it as `id`.
    `more`: `per`, `when`, `otherwise` and `why`, as in every rule.

    ```python
    precedes("fraud_check", "refund", same="customer")
    ```
    """
    return _new(Precedes, {"first": first, "then": then, "same": same, **more})


def followed_by(
    call: str, then: str | Sequence[str], *, same: str | dict[str, str] | None = None, **more: object
) -> FollowedBy:
    """Return the rule that the plan which calls `call` also makes a later call of `then`, whatever happens in between.

    `then`: a tool, or several of which one is enough. `same`: a parameter that has the same value in both calls;
    `{"id": "shop"}` where `call` has it as `id`. `more`: `when` and `why`, as in every rule.

    ```python
    followed_by("close_shop", "open_shop", same="shop")
    ```
    """
    return _new(FollowedBy, {"call": call, "then": then, "same": same, **more})


def never_after(
    call: str, after: str, *, event: CallEvent = "begun", same: str | dict[str, str] | None = None, **more: object
) -> NeverAfter:
    """Return the rule that no call of `call` begins after a call of `after` has begun, was done, or failed.

    `same`: a parameter that has the same value in both calls; `{"id": "base"}` where `after` has it as `id`.
    `more`: `per`, `when`, `otherwise` and `why`, as in every rule.

    ```python
    never_after("delete", "backup", event="failed", same="base")
    ```
    """
    return _new(NeverAfter, {"call": call, "after": after, "event": event, "same": same, **more})


def at_most(of: str, sum: float, *, per: str = "run", **more: object) -> AtMost:
    """Return the rule that the sum of a parameter over all calls is at most `sum`.

    `of`: `TOOL.PARAMETER`. `per`: `run`, `session`, `tenant/day` or `tenant/month`.

    ```python
    at_most("refund.euros", 5000, per="session")
    ```
    """
    return _new(AtMost, {"of": of, "sum": sum, "per": per, **more})


def count_at_most(of: str, count: int, *, per: str = "run", **more: object) -> CountAtMost:
    """Return the rule that a tool is called at most `count` times.

    ```python
    count_at_most("send_mail", 3)
    ```
    """
    return _new(CountAtMost, {"of": of, "count": count, "per": per, **more})


def only_from(parameter: str, *sources: str, **more: object) -> OnlyFrom:
    """Return the rule that a parameter has values from these sources only: `trusted`, `user`, `tool:NAME` and others.

    ```python
    only_from("pay.iban", "trusted")
    ```
    """
    return _new(OnlyFrom, {"parameter": parameter, "sources": list(sources), **more})


def needs(role: str, call: str, **more: object) -> Needs:
    """Return the rule that the person for whom the run works has a role: one of `roles` in the run's context.

    ```python
    needs("finance", "pay")
    ```
    """
    return _new(Needs, {"role": role, "call": call, **more})
