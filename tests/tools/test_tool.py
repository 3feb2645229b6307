"""Tools, `@tool` and the composed schema (R2.4, R9.3, section 12)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from decimal import Decimal
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

from perdure import Agent, ToolContext, ToolError, tool
from perdure.errors import ToolDefinitionError
from perdure.models.schemas import compose
from perdure.testing import check
from perdure.tools.decorator import ToolFunction, tool_function
from perdure.tools.tool import parse_tool, resolve_tools


class Address(BaseModel):
    street: str
    tags: list[str] = []


@tool(
    output_path="†state.sent", approval="always", timeout=5, heartbeat=2, retries=7, task_queue="laptop", dangerous=True
)
def send(
    to: Address,
    text: Annotated[str, Field(max_length=10)],
    how: Literal["mail", "fax"] = "mail",
    *,
    copy: bool = False,
    context: ToolContext,
) -> dict[str, int]:
    """Send a text.

    It goes out at once.

    Args:
        to: Who gets it.
        text: What it says.
    """
    return {"length": len(text) + copy, "tags": len(to.tags), how: len(context.call_id)}


@tool
async def anything(context: ToolContext, **params: Any) -> Any:
    return params | {"id": context.call_id}


def described(function: Any) -> ToolFunction:
    found = tool_function(function)
    assert found is not None
    return found


def a_context() -> ToolContext:
    return ToolContext("send", {}, {}, "1.0", "run/1.0")


def test_r12_1_schema_and_options_come_from_the_function() -> None:
    definition = described(send).definition
    assert definition["name"] == "send"
    assert definition["description"] == "Send a text.\nIt goes out at once."
    assert list(definition["properties"]) == ["to", "text", "how", "copy"]
    assert definition["properties"]["text"] == {"maxLength": 10, "type": "string", "description": "What it says."}
    assert definition["required"] == ["to", "text"]
    assert definition["_output"] == {"type": "object", "additionalProperties": {"type": "integer"}}
    parsed = parse_tool(definition, activities=["send"])
    assert (parsed.output_path, parsed.approval, parsed.timeout, parsed.heartbeat) == ("†state.sent", "always", 5, 2)
    assert (parsed.retries, parsed.task_queue, parsed.dangerous, parsed.latent) == (7, "laptop", True, False)


class Unknown:
    """Of which pydantic can make no schema."""


@pytest.mark.parametrize(
    ("returns", "words"),
    [
        (Unknown, "it returns Unknown, which has no JSON Schema"),
        (Unknown | None, "Unknown | None"),
        (Callable[[int], int], "Callable"),
        ("Nowhere", "it returns Nowhere, which cannot be read: name 'Nowhere' is not defined"),
        ("list[Nowhere]", "list[Nowhere]"),
        (3, "it returns 3"),
    ],
)
def test_a_function_is_a_tool_whatever_it_is_annotated_to_return(returns: Any, words: str) -> None:
    def double(number: int):  # type: ignore[no-untyped-def]
        return 2 * number

    double.__annotations__["return"] = returns
    with pytest.warns(UserWarning, match="tool 'double' has no schema of its result") as warned:
        found = tool_function(tool(double))
    assert words in str(warned[0].message)
    assert found is not None
    assert "_output" not in found.definition
    assert found.definition["properties"] == {"number": {"type": "integer"}}
    assert found.dump(4) == 4


@pytest.mark.parametrize("kind", [Unknown, Callable[[int], int], dict[str, Unknown], "Nowhere", "1+", "list[Nowhere]"])
def test_a_parameter_that_cannot_be_read_is_named(kind: Any) -> None:
    def double(fine: int, number):  # type: ignore[no-untyped-def]
        return fine * number

    double.__annotations__["number"] = kind
    with pytest.raises(ToolDefinitionError) as raised:
        tool(double)
    assert "the parameter 'number'" in str(raised.value) or "of the parameter 'number' cannot be read" in str(
        raised.value
    )
    assert "pydantic-core" not in str(raised.value)
    assert "arbitrary_types_allowed" not in str(raised.value)


def test_a_parameter_by_the_name_of_the_context_is_refused() -> None:
    @tool
    async def look(where: ToolContext, **params: Any) -> str:
        return f"{where.call_id} {params}"

    found = tool_function(look)
    assert found is not None
    registry = {"look": found.definition}
    assert resolve_tools(["look"], registry)["look"].parameters["properties"] == {}
    assert "_contextParameter" not in resolve_tools(["look"], registry)["look"].definition()
    for name in ("look", "view"):
        mine = {"name": name, "properties": {"where": {"type": "string"}}, "_activity": "look"}
        with pytest.raises(ToolDefinitionError, match=f"tool '{name}': its function takes the ToolContext as 'where'"):
            resolve_tools([mine], registry)
    with pytest.raises(ToolError, match="takes its ToolContext as 'where'"):
        found.bind({"where": "here"}, ToolContext("look", {}, {}, "1.0", "key"))


@pytest.mark.parametrize("wrapped", [False, True])
def test_examples_that_are_one_example(wrapped: bool) -> None:
    properties: dict[str, Any] = {
        "cities": {"type": "string", "examples": "Paris, Rome"},
        "examples": {"type": "string"},
    }
    mine: dict[str, Any] = {"name": "look", "properties": properties}
    theirs: dict[str, Any] = {"name": "look", "parameters": {"type": "object", "properties": properties}}
    found = resolve_tools([theirs if wrapped else mine], {"look": {"name": "look"}})["look"]
    assert found.parameters["properties"]["cities"]["examples"] == ["Paris, Rome"]
    assert found.parameters["properties"]["examples"] == {"type": "string"}
    agent = Agent.of({"name": "x", "context": [{"type": "tool", "tool": theirs if wrapped else mine}]})
    assert check(agent, [{"_tool": "look", "cities": "Bern"}]).problems == []


def test_a_parameter_by_its_own_name_is_told_its_alias() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"_from": {"type": "string"}, "_class": {"type": "integer"}},
        "required": ["_from"],
    }
    agent = Agent.of({"name": "x", "context": [{"type": "tool", "tool": {"name": "look", "parameters": schema}}]})
    for call, problems in (
        ({"_from": "a"}, ["$._from: the tool's parameter '_from' is written 'from_' in a call", "$ lacks 'from_'"]),
        ({"from_": "a", "_class": 3}, ["$._class: the tool's parameter '_class' is written 'class_' in a call"]),
        ({"from_": "a", "class_": "x"}, ['$.class_ is "x", but must fit {"type": "integer"}']),
        ({}, ["$ lacks 'from_'"]),
        ({"from_": "a", "class_": 3}, []),
        ({"from_": "a", "_each": [1, 2, 3], "_from": 1}, []),
    ):
        assert check(agent, [{"_tool": "look", **call}]).problems == [f"1.0 look: {problem}" for problem in problems]


def test_r12_1_parameters_become_what_the_annotations_say() -> None:
    bound = described(send).bind({"to": {"street": "x"}, "text": "hi", "copy": True}, a_context())
    assert bound["to"] == Address(street="x")
    assert bound["copy"] is True
    assert bound["context"].idempotency_key == "run/1.0"
    assert send(**bound) == {"length": 3, "tags": 0, "mail": 3}
    with pytest.raises(ToolError, match="at most 10 characters"):
        described(send).bind({"to": {"street": "x"}, "text": "much too long"}, a_context())


def test_r12_1_open_parameters_take_what_the_definition_allows() -> None:
    bound = described(anything).bind({"any": 1, "schema": 2}, a_context())
    assert {key: value for key, value in bound.items() if key != "context"} == {"any": 1, "schema": 2}
    assert described(anything).definition["additionalProperties"] is True


@dataclasses.dataclass
class Point:
    x: int


def test_results_are_dumped_as_json_or_say_why_not() -> None:
    @tool
    def where() -> Point:
        return Point(1)

    @tool
    def odd() -> Any:
        return object()

    assert described(where).dump(Point(1)) == {"x": 1}
    with pytest.raises(ToolError, match="cannot be written as JSON"):
        described(odd).dump(object())
    with pytest.raises(ToolError, match="the result of odd has an unpaired surrogate"):
        described(odd).dump({"\ud800": 1})


def test_no_retries_are_said_and_no_time_at_all_is_refused() -> None:
    @tool(dangerous=True, retries=0, safe=False)
    def pay() -> int:
        return 1

    definition = described(pay).definition
    assert (definition["_retries"], definition["_dangerous"], "_safe" in definition) == (0, True, False)
    assert parse_tool(definition, activities=["pay"]).retries == 0
    for option in ("timeout", "heartbeat", "queue_timeout"):
        with pytest.raises(ToolDefinitionError, match="greater than or equal"):
            tool(**{option: 0})(lambda: 1)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("said", "seconds"),
    [({}, 10.0), ({"_retries": 0}, 20.0), ({"_heartbeat": 3}, 3.0), ({"_timeout": 5}, 4.5), ({"_heartbeat": 90}, 54.0)],
)
def test_a_lost_worker_is_noticed_before_its_calls_time_out(said: dict[str, Any], seconds: float) -> None:
    assert parse_tool({"name": "x", "properties": {}, **said}, activities=["x"]).heartbeat_timeout == seconds


def test_functions_that_cannot_be_tools_say_why() -> None:
    with pytest.raises(ToolDefinitionError, match="is a positional-only parameter"):

        @tool
        def positional(a: int, /) -> int:
            return a

    with pytest.raises(ToolDefinitionError, match="meta-properties"):

        @tool
        def meta(_tool: int) -> int:
            return _tool

    with pytest.raises(ToolDefinitionError, match="malformed reference"):

        @tool(output_path="†state..x")
        def bad_path() -> int:
            return 1


def test_a_value_of_several_kinds_is_refused_with_all_of_them() -> None:
    line = r"^tool '<lambda>': must be true or false or must be text, not 5 at \$\._exclusive$"
    with pytest.raises(ToolDefinitionError, match=line):
        tool(exclusive=5)(lambda: 1)  # type: ignore[call-overload]


@pytest.mark.parametrize("other", [5, "look", SimpleNamespace(name="look", on_invoke_tool=print), SimpleNamespace])
def test_what_is_no_function_cannot_be_decorated(other: Any) -> None:
    line = f"^tool needs a function, not {type(other).__name__}: decorate the function itself with @tool$"
    with pytest.raises(ToolDefinitionError, match=line):
        tool(other)


def test_the_tools_of_a_worker_are_listed_beside_the_one_that_was_meant() -> None:
    known = {name: {"name": name} for name in ("ask_person", "now", "recall")}
    line = "^the worker has no tool 'ask_persn'; did you mean 'ask_person'\\? it has ask_person, now, recall$"
    with pytest.raises(ToolDefinitionError, match=line):
        resolve_tools(["ask_persn"], known)
    many = {f"tool{number}": {"name": f"tool{number}"} for number in range(10)}
    with pytest.raises(ToolDefinitionError, match=r"it has tool0, .*, tool7 and 2 more$"):
        resolve_tools(["other"], many)


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ({}, "needs a 'name'"),
        ({"name": "perdure.x"}, "cannot be a tool's name"),
        ({"name": "x", "params": {}}, "unknown key 'params'"),
        (
            {"name": "x", "parameters": [{"name": "a", "type": "string"}]},
            'tool \'x\': $.parameters is [{"name": "a", "type": "string"}]; the parameters are an object: a JSON Schema',
        ),
        ({"function": {"name": "x", "parameters": "a, b"}}, '$.parameters is "a, b"; the parameters are an object'),
        ({"name": "x", "inputSchema": None}, "$.inputSchema is null; the parameters are an object"),
        ({"name": "x", "_aproval": 1}, '"_aproval" is not a known key; did you mean "_approval"? at $._aproval'),
        ({"name": "x", "properties": {"a": {"type": "nope"}}}, "its schema is not a JSON Schema"),
        ({"name": "x", "properties": {"a": {"$ref": "#/$defs/none"}}}, "points at nothing"),
        ({"name": "x", "_activity": "y"}, "needs the activity 'y'"),
        ({"name": "x", "_timeout": 0}, "greater than or equal to 0.001"),
    ],
)
def test_r12_5_a_bad_definition_says_what_is_wrong(definition: dict[str, Any], words: str) -> None:
    with pytest.raises(ToolDefinitionError) as caught:
        parse_tool(definition)
    assert words in str(caught.value)


def test_r2_4_the_last_definition_of_a_name_wins_and_binds_by_name() -> None:
    registry = {"send": described(send).definition}
    tools = resolve_tools(["send", {"name": "send", "description": "another"}, {"name": "latent"}], registry)
    assert (tools["send"].description, tools["send"].activity, tools["send"].registered) == ("another", "send", False)
    assert tools["latent"].latent


@pytest.mark.parametrize("name", ["../other", "a/b", "http://x", "", ".hidden", "a..b"])
def test_r8_1_a_delegates_name_is_no_path(name: str) -> None:
    with pytest.raises(ToolDefinitionError, match="is not a delegate's name"):
        resolve_tools([{"name": "child", "_delegate": name}], {})


def test_r4_4_a_fixed_path_may_be_written_either_way() -> None:
    for meta in (
        {"_outputPath": "†state.x"},
        {"_outputPath": {"const": "†state.x"}},
        {"properties": {"_outputPath": {"const": "†state.x"}}},
    ):
        assert parse_tool({"name": "t", **meta}).output_path == "†state.x"


TOOLS = resolve_tools(
    [
        "send",
        {"name": "guess", "properties": {"n": {"type": "integer"}}, "required": ["n"], "_output": {"type": "string"}},
    ],
    {"send": described(send).definition},
)
SCHEMA = compose(
    TOOLS, {"type": "object", "properties": {"n": {"$ref": "#/$defs/N"}}, "$defs": {"N": {"type": "integer"}}}
)


@pytest.mark.parametrize(
    ("solution", "fits"),
    [
        ({"calls": [], "output": None}, True),
        ({"calls": [], "output": {"n": 1}}, True),
        ({"calls": [], "output": {"n": "x"}}, False),
        ({"calls": []}, False),
        ({"calls": [{"_tool": "send", "to": {"street": "x"}, "text": "hi"}], "output": None}, True),
        ({"calls": [{"_tool": "send", "to": "†state.address", "text": "†state.t"}], "output": None}, True),
        (
            {
                "calls": [{"_tool": "send", "to": {"street": "†state.s", "tags": "†state.t"}, "text": "hi"}],
                "output": None,
            },
            True,
        ),
        ({"calls": [{"_tool": "send", "to": {"street": 1}, "text": "hi"}], "output": None}, False),
        (
            {
                "calls": [{"_tool": "send", "to": {"street": "x"}, "text": "hi", "_outputPath": "†state.x"}],
                "output": None,
            },
            False,
        ),
        ({"calls": [{"_tool": "guess", "n": 1, "_output": "one", "_outputPath": "†state.x"}], "output": None}, True),
        ({"calls": [{"_tool": "guess", "n": 1}], "output": None}, False),
        ({"calls": [{"_tool": "nope"}], "output": None}, False),
    ],
)
def test_r9_3_the_composed_schema(solution: dict[str, Any], fits: bool) -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert Draft202012Validator(SCHEMA).is_valid(solution) is fits
    assert list(SCHEMA["properties"]) == ["calls", "output"]


def test_r18_6_a_type_whose_pattern_looks_ahead_is_taken_without_it() -> None:
    @tool
    def pay(amount: Decimal) -> str:
        """Pay."""
        return str(amount)

    function = tool_function(pay)
    assert function is not None
    assert "pattern" not in json.dumps(function.definition)


@pytest.mark.parametrize("key", ["_timeout", "_heartbeat", "_queueTimeout", "_duration"])
def test_r18_6_no_time_is_without_end(key: str) -> None:
    for seconds in (1e300, float("inf"), float("nan"), -1):
        with pytest.raises(ToolDefinitionError, match=key):
            parse_tool({"name": "t", key: seconds}, activities=["t"])


def definition(function: Callable[..., Any], **options: Any) -> dict[str, Any]:
    found = tool_function(tool(**options)(function))
    assert found is not None
    return found.definition


def test_a_field_as_a_default_describes_the_parameter() -> None:
    def order(
        fruit: str = Field(description="What to order."),
        count: int = Field(3, gt=0),
        price: Annotated[float, Field(gt=0, description="In euros.")] = 1.0,
        notes: list[str] = Field(default_factory=list),  # noqa: B008  # as applications write it
    ) -> str:
        return f"{count} {fruit} {price} {notes}"

    found = definition(order)
    assert found["required"] == ["fruit"]
    assert found["properties"] == {
        "fruit": {"type": "string", "description": "What to order."},
        "count": {"type": "integer", "default": 3, "exclusiveMinimum": 0},
        "price": {"type": "number", "default": 1.0, "exclusiveMinimum": 0, "description": "In euros."},
        "notes": {"type": "array", "items": {"type": "string"}},
    }
    function = tool_function(order)
    assert function is not None
    assert order(**function.bind({"fruit": "plum"}, ToolContext("order", {}, {}, "1.0", "k"))) == "3 plum 1.0 []"
    with pytest.raises(ToolError, match="greater than 0"):
        function.bind({"fruit": "plum", "count": 0}, ToolContext("order", {}, {}, "1.0", "k"))


def test_a_parameters_docstring_describes_it_above_its_field() -> None:
    def order(count: Annotated[int, Field(description="Of the type.")]) -> None:
        """Order.

        Args:
            count: How many.
        """
        del count

    assert definition(order)["properties"]["count"]["description"] == "How many."


def test_parameters_that_cannot_be_those_of_a_tool_are_named() -> None:
    class Desk:
        def order(self, fruit: str) -> str:
            return fruit

    def two(context: ToolContext, other: ToolContext) -> None: ...
    def first(context: ToolContext, /) -> None: ...
    def many(*context: ToolContext) -> None: ...
    def named(**context: ToolContext) -> None: ...

    for function, words in (
        (Desk.order, "'self' is the parameter of a method: decorate a function, or leave @tool out"),
        (two, "'other' must not be a ToolContext: one parameter takes it"),
        (first, "'context' is a positional-only parameter"),
        (many, "'context' is a positional-only parameter"),
        (named, "'context' must not be a ToolContext"),
    ):
        with pytest.raises(ToolDefinitionError, match=words):
            tool(function)
    (found,) = Agent("desk", tools=[Desk().order]).functions
    assert list(found.definition["properties"]) == ["fruit"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"message": "txt"}, 'message: "txt" is not a known parameter; did you mean "text"'),
        ({"undo_params": {"x": "†result.id"}}, "name the tool that they are for, as undo="),
        ({"undo": "send"}, "cannot be its own undo"),
        ({"undo": " "}, "expected a function with @tool, or a tool's name"),
        ({"undo": "take\n"}, "expected a function with @tool, or a tool's name"),
        ({"name": ""}, "tool ''"),
        ({"name": []}, "'name' that is a string"),
        ({"timeout": b"1"}, "the definition of the tool 'send' has bytes, which is not JSON"),
        ({"task_queue": b"n"}, "the definition of the tool 'send' has bytes, which is not JSON"),
    ],
)
def test_an_option_without_an_effect_is_refused(options: dict[str, Any], words: str) -> None:
    def send(text: str) -> None:
        del text

    with pytest.raises(ToolDefinitionError, match=words):
        tool(**options)(send)


def test_a_default_that_is_not_json_is_refused() -> None:
    def pay(euros: float = float("nan")) -> None:
        del euros

    with pytest.raises(ToolDefinitionError, match="has a number outside the range"):
        tool(pay)
