"""Function definitions as others write them, and the composed schema in OpenAI's strict mode (R2.4, R9.3)."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from perdure import tool as tool_decorator
from perdure.errors import ToolDefinitionError
from perdure.models.dialects.common import DialectRequest, ToolDelta
from perdure.models.dialects.registry import DIALECTS
from perdure.models.schemas import compose, function_schema, make_strict
from perdure.plan import Plan
from perdure.testing.scripted_model import write_answer
from perdure.tools.decorator import tool_function
from perdure.tools.definitions import with_own_names
from perdure.tools.tool import Tool, parse_tool
from perdure.values.json import JsonObject, dumps
from perdure.values.schemas import subschemas
from perdure.values.state import State

FUNCTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {
            "name": "geo.area",
            "description": "Area of a shape.",
            "parameters": {
                "type": "dict",
                "properties": {
                    "points": {"type": "array", "items": {"type": "tuple", "items": {"type": "float"}}},
                    "unit": {"type": "string", "enum": ["m", "km"], "default": "m"},
                },
                "required": ["points"],
            },
        },
        {"points": [[0, 0.5], [1, 2]], "unit": "km"},
    ),
    (
        {
            "type": "function",
            "function": {
                "name": "Session.open",
                "parameters": {"type": "object", "properties": {"from": {"type": "String"}}},
            },
        },
        {"from": "a\n'b' \"c\" \\ {d}"},
    ),
    (
        {
            "name": "map",
            "input_schema": {"type": "dict", "properties": {"params": {"type": "HashMap"}, "any": {"type": "any"}}},
        },
        {"params": {"limit": [50], "odd key": None}, "any": [True, None, 1e300]},
    ),
    (
        {
            "name": "pair",
            "inputSchema": {
                "type": "object",
                "properties": {"p": {"type": "tuple", "items": [{"type": "int"}, {"type": "str"}]}},
            },
        },
        {"p": [1, "a"]},
    ),
    ({"name": "nothing", "parameters": {}}, {}),
    (
        {
            "name": "odd",
            "parameters": {
                "type": "dict",
                "properties": {
                    "n": {"type": "integer", "minimum": "0", "maximum": "many", "enum": "any", "description": None},
                    "required": ["n"],
                },
            },
        },
        {"n": 3},
    ),
    (
        {
            "name": "flag",
            "parameters": {"type": "dict", "properties": {"on": {"type": "bool", "required": True, "optional": False}}},
        },
        {"on": False},
    ),
]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("definition", "arguments"), FUNCTIONS, ids=lambda value: str(value.get("name", ""))[:12])
def test_r9_3_definitions_of_others_compose_validate_and_round_trip(
    definition: dict[str, Any], arguments: dict[str, Any], dialect: str
) -> None:
    name = definition.get("name") or definition["function"]["name"]
    tools = {name: parse_tool(definition, activities=[name])}
    call = {"_tool": name, **arguments}
    schema = compose(tools, True)
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate({"calls": [call], "output": None})
    Draft202012Validator(function_schema(tools[name])).validate(arguments)
    DIALECTS[dialect].parameters(DialectRequest(tools=tools))
    answer = write_answer({"calls": [call], "output": None}, dialect)
    reader = DIALECTS[dialect].reader(DIALECTS[dialect].vocabulary(tools, []))
    reader.push(answer.text)
    for index, (function, text) in enumerate(answer.tool_calls):
        reader.push_tool(ToolDelta(index, "id", function, text))
    read: list[Any] = reader.close("stop").calls
    assert [{key: value for key, value in each.items() if key != "_id"} for each in read] == [call]
    plan = Plan(1, tools=tools, state=State())
    assert plan.add(read[0]).state.error is None


class Address(BaseModel):
    street: str
    number: int | None = None


@tool_decorator
def ship(to: Address, items: list[str], note: str | None = None, express: bool = False) -> dict[str, str]:
    """Ship items."""
    return {"to": to.street, "n": str(len(items)), "note": note or "", "how": str(express)}


def shipping() -> Tool:
    function = tool_function(ship)
    assert function is not None
    return parse_tool(function.definition, activities=["ship"])


OUTPUT = {"type": "object", "properties": {"ok": {"type": "boolean"}, "why": {"type": "string", "minLength": 1}}}


def test_r9_3_typed_tools_compose_into_the_strict_subset() -> None:
    strict, problems = make_strict(compose({"ship": shipping()}, OUTPUT))
    assert problems == []
    assert not list(breaches(strict))
    full = {
        "_tool": "ship",
        "to": {"street": "†state.street", "number": None},
        "items": "†state.items",
        "note": None,
        "express": None,
        "_outputPath": None,
        "_outputMethod": None,
        "_after": None,
    }
    plain = {key: value for key, value in full.items() if key not in ("_outputMethod", "_after")} | {
        "_outputPath": "†state.sent"
    }
    bare = {key: value for key, value in plain.items() if key != "_outputPath"}
    validator = Draft202012Validator(strict)
    validator.validate({"calls": [full, plain, bare], "output": None})
    # Each shape is whole: what is not used of the meta-properties is left out together.
    assert not validator.is_valid({"calls": [plain | {"_outputPath": None}], "output": None})
    assert not validator.is_valid(
        {"calls": [{key: value for key, value in full.items() if key != "note"}], "output": None}
    )


def test_r9_3_a_call_of_which_little_is_free_has_a_shape_for_each_of_its_forms() -> None:
    tool = parse_tool(
        {"name": "t", "_outputMethod": "push", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
        activities=["t"],
    )
    strict, problems = make_strict(compose({"t": tool}, OUTPUT))
    assert problems == []
    assert [shape["required"] for shape in strict["properties"]["calls"]["items"]["anyOf"]] == [
        ["_tool", "x"],
        ["_tool", "x", "_outputPath"],
        ["_tool", "x", "_outputPath", "_after"],
    ]
    fixed = parse_tool(
        {"name": "t", "_outputPath": "†state.x", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
        activities=["t"],
    )
    strict, _ = make_strict(compose({"t": fixed}, OUTPUT))
    bare, ordered = strict["properties"]["calls"]["items"]["anyOf"]
    assert [bare["required"], ordered["required"]] == [["_tool", "x"], ["_tool", "x", "_after"]]
    assert ordered["properties"]["_after"] == {"type": "array", "items": {"type": "string"}}  # never null


@pytest.mark.parametrize(("count", "shapes"), [(50, 3), (60, 2), (100, 1)])
def test_r9_3_many_parameters_leave_a_call_as_many_shapes_as_the_subset_allows(count: int, shapes: int) -> None:
    properties = {f"p{n}": {"type": "integer"} for n in range(30)}
    tools = {
        f"t{n}": parse_tool({"name": f"t{n}", "properties": properties}, activities=[f"t{n}"]) for n in range(count)
    }
    strict, problems = make_strict(compose(tools, OUTPUT))
    assert problems == []
    first, *more = (
        each for each in strict["properties"]["calls"]["items"]["anyOf"] if each["properties"]["_tool"]["const"] == "t0"
    )
    assert len([first, *more]) == shapes
    assert "_outputMethod" in [first, *more][-1]["required"]


def test_r9_3_functions_have_no_pattern_for_references_and_a_list_of_types_for_plain_parameters() -> None:
    # llama.cpp refuses all functions of a Request if one has a pattern without `$` at its end.
    counts = {"type": "array", "items": {"type": ["integer", "null"]}}
    properties = {
        "n": {"type": "integer", "description": "how many"},
        "list": counts,
        "kind": {"enum": ["a"]},
        "text": {"type": "string"},
    }
    definition = {"name": "t", "properties": properties, "required": ["n"]}
    assert function_schema(parse_tool(definition, activities=["t"]))["additionalProperties"] is False
    tool = parse_tool({**definition, "additionalProperties": False}, activities=["t"])
    schema = function_schema(tool)
    shown = schema["properties"]
    assert "pattern" not in dumps(schema)
    assert schema.keys() == {"type", "properties", "required"}
    assert shown["n"] == {"description": "how many", "type": ["integer", "string"]}
    items = {"type": ["integer", "null", "string"]}
    assert shown["list"] == {"anyOf": [{"type": "array", "items": items}, {"type": "string"}]}
    assert [shown["text"], shown["_outputPath"]] == [{"type": "string"}] * 2
    validator = Draft202012Validator(schema)
    validator.validate({"n": "†state.n", "list": [1, "†state.m"], "kind": "†state.kind", "_outputPath": "†state.x"})
    assert not validator.is_valid({"n": 1.5})
    call = Plan(1, tools={"t": tool}, state=State()).add({"_tool": "t", "n": 1, "other": 2})
    assert call.state.error is not None
    assert "other" in call.state.error.message


@pytest.mark.parametrize("control", [False, True])
@pytest.mark.parametrize("delegate", [None, "helper"])
def test_r9_3_references_of_a_function_lead_into_its_own_definitions(control: bool, delegate: str | None) -> None:
    properties = {"n": {"type": "integer"}, "tree": {"$ref": "#/$defs/N"}}
    nested = {"N": {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}, "n": {"type": "integer"}}}}
    tool = parse_tool(
        {"name": "t", "parameters": {"type": "object", "properties": properties, "$defs": nested}}, activities=["t"]
    ).model_copy(update={"delegate": delegate})
    schema = function_schema(tool, control=control)
    assert "pattern" not in dumps(schema)
    refs = {part["$ref"].removeprefix("#/$defs/").replace("~1", "/") for part in subschemas(schema) if "$ref" in part}
    assert refs == schema["$defs"].keys()
    each = {"_each": "†state.list", "_until": "†output.done"} if delegate else {}
    Draft202012Validator(schema).validate({"n": "†state.n", "tree": {"next": {"n": "†state.n"}}, **each})


def test_r9_3_a_call_whose_only_free_meta_property_is_its_path_has_it_or_not() -> None:
    tool = parse_tool({"name": "t", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, activities=["t"])
    strict, problems = make_strict(compose({"t": tool}, {"type": "string"}, untaught={"_after", "_outputMethod"}))
    assert problems == []
    assert not list(breaches(strict))
    assert strict["$defs"].keys() == {"p0"}
    validator = Draft202012Validator(strict)
    bare = {"_tool": "t", "n": "†state.n"}
    validator.validate({"calls": [bare, {**bare, "_outputPath": "†state.x"}], "output": None})
    assert not validator.is_valid({"calls": [{**bare, "_outputPath": None}], "output": None})
    assert not validator.is_valid({"calls": [{**bare, "n": "many"}], "output": None})
    many = {
        f"t{n}": parse_tool({"name": f"t{n}", "properties": {f"p{m}": {"type": "integer"} for m in range(30)}})
        for n in range(75)
    }
    both, _ = make_strict(compose(many, {"type": "string"}, untaught={"_after", "_outputMethod"}))
    assert len(both["properties"]["calls"]["items"]["anyOf"]) == 2 * len(many)


def test_r9_3_a_short_definition_stands_in_place_of_its_references_unless_it_refers_to_itself() -> None:
    definitions: dict[str, Any] = {"N": {"type": "integer"}, "L": {"items": {"$ref": "#/$defs/L"}}, "B": True}
    properties = {name: {"$ref": f"#/$defs/{name}"} for name in definitions}
    tool = parse_tool({"name": "t", "parameters": {"type": "object", "properties": properties, "$defs": definitions}})
    strict, problems = make_strict(compose({"t": tool}, True))
    assert {each.split(": ")[0] for each in problems} == {"tool 't'", "the output"}
    assert {"call:t/L", "call:t/B"} <= strict["$defs"].keys()
    assert "call:t/N" not in dumps(strict)


def test_r9_3_a_schema_that_occurs_in_several_shapes_stands_once() -> None:
    place = {"type": "object", "properties": {"street": {"type": "string"}}, "required": ["street"]}
    tools = {
        name: parse_tool({"name": name, "properties": {"to": place, "n": {"type": "integer"}}}, activities=[name])
        for name in ("send", "fetch")
    }
    strict, problems = make_strict(compose(tools, OUTPUT))
    assert problems == []
    assert dumps(strict).count('"street":') == 1
    assert not list(breaches(strict))
    call = {"_tool": "send", "to": {"street": "Elm"}, "n": "†state.n"}
    Draft202012Validator(strict).validate({"calls": [call], "output": None})
    assert not Draft202012Validator(strict).is_valid({"calls": [{**call, "to": {"street": 1}}], "output": None})


def test_r9_3_strict_mode_keeps_what_its_list_allows_and_leaves_the_rest_out() -> None:
    schema = {
        "type": "string",
        "pattern": "^a",
        "format": "uri",
        "minLength": 1,
        "not": {"const": "b"},
        "contentMediaType": "text/plain",
        "x-order": 1,
        "if": {"minLength": 3},
        "then": {"maxLength": 9},
    }
    enums = {
        "number": {"type": "string", "enum": [1, 2]},
        "maybe": {"type": "string", "enum": ["a", None]},
        "const": {"const": True},
    }
    properties = {"text": schema, **enums}
    tool = parse_tool(
        {"name": "t", "properties": properties, "required": list(properties), "_outputPath": "†state.x"},
        activities=["t"],
    )
    strict, problems = make_strict(compose({"t": tool}, OUTPUT))
    assert problems == []
    shape = strict["properties"]["calls"]["items"]["anyOf"][0]
    parts = {name: strict["$defs"][child["$ref"][8:]] for name, child in shape["properties"].items() if "$ref" in child}
    made = {name: parts.get(name, child)["anyOf"][0] for name, child in shape["properties"].items() if name != "_tool"}
    assert made == {
        "text": {"type": "string", "pattern": "^a"},
        "number": {"type": "integer", "enum": [1, 2]},
        "maybe": {"type": ["string", "null"], "enum": ["a", None]},
        "const": {"type": "boolean", "const": True},
    }


def test_enumerations_of_another_type_in_foreign_definitions_are_mended() -> None:
    properties = {
        "n": {"type": "integer", "enum": ["1", "2"]},
        "s": {"type": "string", "enum": ["a", None]},
        "k": {"type": "number", "enum": [1, 2.5]},
    }
    tool = parse_tool({"name": "t", "parameters": {"type": "object", "properties": properties}}, activities=["t"])
    assert tool.parameters_schema.errors({"n": "1", "s": None, "k": 1}) == []
    assert tool.parameters_schema.errors({"n": 1})


def breaches(schema: Any, path: str = "$") -> Any:
    """Where a schema leaves the subset that OpenAI documents."""
    if isinstance(schema, list):
        for index, child in enumerate(schema):
            yield from breaches(child, f"{path}[{index}]")
    if not isinstance(schema, dict):
        return
    if "properties" in schema and isinstance(schema.get("type"), str):
        if schema.get("additionalProperties") is not False or set(schema["required"]) != set(schema["properties"]):
            yield f"{path} is open"
        for key in schema.keys() & {
            "allOf",
            "oneOf",
            "not",
            "if",
            "patternProperties",
            "default",
            "title",
            "minLength",
        }:
            yield f"{path} has {key}"
    for key, child in schema.items():
        yield from breaches(child, f"{path}.{key}")


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"x": {}}, "tool 't': $.x takes any value"),
        ({"x": {"type": "object"}}, "tool 't': $.x"),
        ({"x": {"type": "array"}}, "is an array of any values"),
        ({"x": {"oneOf": [{"type": "string"}, {"type": "null"}]}}, "uses 'oneOf'"),
        ({"x": {"type": "object", "additionalProperties": {"type": "string"}}}, "takes any further keys"),
    ],
)
def test_r9_3_what_prevents_strict_mode_is_said_with_the_tool(properties: dict[str, Any], says: str) -> None:
    other = parse_tool({"name": "t", "properties": properties}, activities=["t"])
    _, problems = make_strict(compose({"ship": shipping(), "t": other}, OUTPUT))
    assert len(problems) == 1
    assert problems[0].startswith("tool 't'")
    assert says in problems[0]


def test_what_strict_mode_makes_null_was_left_out() -> None:
    plan = Plan(1, tools={"ship": shipping()}, state=State())
    call = plan.add(
        {
            "_tool": "ship",
            "to": {"street": "Elm", "number": None},
            "items": [],
            "note": None,
            "express": None,
            "_outputPath": None,
            "_outputMethod": None,
            "_after": None,
        }
    )
    assert call.state.error is None
    # `note` and `number` take a null, so they keep it; `express` does not.
    assert call.spec.raw == {"_tool": "ship", "to": {"street": "Elm", "number": None}, "items": [], "note": None}


def test_r9_3_two_hundred_tools_compose_strictly() -> None:
    tools = {f"ship_{number}": shipping().model_copy(update={"name": f"ship_{number}"}) for number in range(200)}
    parameters = DIALECTS["solution"].parameters(DialectRequest(tools=tools, output=OUTPUT, max_calls=500))
    schema = parameters["response_format"]["json_schema"]["schema"]
    assert len(schema["properties"]["calls"]["items"]["anyOf"]) == 3 * 200
    assert parameters["response_format"]["json_schema"]["strict"] is True


FOREIGN: dict[str, Any] = {
    "name": "__search",
    "annotations": {"readOnlyHint": True},
    "cache_control": {"type": "ephemeral"},
    "_meta": {"x": 1},
    "inputSchema": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "_safe": True,
        "_approval": "never",
        "x-order": 3,
        "properties": {
            "_from": {"type": "string"},
            "from_": {"type": "string"},
            "_output": {"type": "integer"},
            "_scopes": {"enum": ["a"]},
            "pair": {"type": "array", "items": [{"type": "integer"}, {"type": "string"}], "additionalItems": False},
            "code": {"type": "string", "pattern": "^(?!x)"},
        },
        "required": ["_from", "_output"],
        "dependencies": {"pair": ["code"]},
    },
}


def test_a_foreign_schema_speaks_of_parameters_only_and_all_of_them_are_the_tools_own() -> None:
    tool = parse_tool(FOREIGN, activities=["__search"])
    assert (tool.safe, tool.approval, tool.output, tool.scopes) == (False, None, None, None)
    assert list(tool.parameters["properties"]) == ["from__", "from_", "output_", "scopes_", "pair", "code"]
    assert tool.parameters["required"] == ["from__", "output_"]
    assert parse_tool(tool.definition(), activities=["__search"]) == tool
    plan = Plan(1, tools={"__search": tool}, state=State())
    params: JsonObject = {"from__": "a", "from_": "b", "output_": 1, "scopes_": "a", "pair": [1, "x"], "code": "x"}
    call = plan.add({"_tool": "__search", **params})
    assert call.state.error is None
    assert with_own_names(call.inputs.params, tool.definition()) == {
        "_from": "a",
        "from_": "b",
        "_output": 1,
        "_scopes": "a",
        "pair": [1, "x"],
        "code": "x",
    }
    broken = plan.add({"_tool": "__search", "from__": "a", "output_": 1, "pair": [1, 2]})
    assert broken.state.error is not None
    assert "$.pair[1]" in broken.state.error.message
    assert "code" in broken.state.error.message


def _parameters(definition: dict[str, Any]) -> dict[str, Any]:
    return parse_tool({"name": "t", **definition}, activities=["t"]).parameters


def test_r2_4_a_flat_map_of_parameters_is_read_as_properties() -> None:
    flat = {"arg_0": {"type": "int or float", "required": True}, "type": {"type": "str", "required": False}}
    read = {"arg_0": {"type": "number"}, "type": {"type": "string"}}
    assert _parameters({"parameters": flat}) == {"type": "object", "properties": read, "required": ["arg_0"]}
    as_schema = {"type": "dict", "properties": {**flat, "required": ["type"]}}
    assert _parameters({"parameters": as_schema}) == {
        "type": "object",
        "properties": read,
        "required": ["type", "arg_0"],
    }
    named = {"properties": {"type": "list[str]"}, "id": {"type": "int"}, "_from": {"type": "str", "optional": False}}
    assert _parameters({"parameters": {"type": "object", **named}, "required": ["id"]}) == {
        "type": "object",
        "properties": {
            "properties": {"type": "array", "items": {"type": "string"}},
            "id": {"type": "integer"},
            "from_": {"type": "string"},
        },
        "required": ["from_", "id"],
    }
    inner = {"o": {"type": "dict", "properties": {"deep": {"type": "int", "required": True}}}}
    assert _parameters({"parameters": inner})["properties"]["o"]["required"] == ["deep"]


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("int or float", {"type": "number"}),
        ("int, str, or None", {"type": ["integer", "string", "null"]}),
        ("list of float", {"type": "array", "items": {"type": "number"}}),
        ("List[str]", {"type": "array", "items": {"type": "string"}}),
        (
            "list[dict[str, int]]",
            {"type": "array", "items": {"type": "object", "additionalProperties": {"type": "integer"}}},
        ),
        ("array of arrays of ints", {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}),
        ("string[]", {"type": "array", "items": {"type": "string"}}),
        ("Optional[bool]", {"type": ["boolean", "null"]}),
        ("str, optional", {"type": "string"}),
        ("Union[str, List[int]]", {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]}),
        ("Tuple[int, ...]", {"type": "array", "items": {"type": "integer"}}),
        ("NUMBER", {"type": "number"}),
        ("any", {}),
        ("str or any", {}),
    ],
)
def test_r2_4_types_in_words_become_types(text: str, schema: dict[str, Any]) -> None:
    assert _parameters({"parameters": {"x": {"type": text}}})["properties"]["x"] == schema
    assert _parameters({"parameters": {"properties": {"x": {"type": text}}}})["properties"]["x"] == schema


@pytest.mark.parametrize(
    ("definition", "says"),
    [
        ({"parameters": {"x": {"type": "strng"}}}, "tool 't': $.parameters.x.type is \"strng\"; this is not a type"),
        ({"parameters": {"x": {"type": "list of frogs"}}}, '"list of frogs"'),
        ({"parameters": {"city": "the city's name"}}, "$.parameters.city"),
        ({"parameters": {"properties": {"x": 5}}}, "$.parameters.properties.x is 5"),
        ({"parameters": {"properties": {}, "city": {"type": "string"}}}, "'city' is beside 'properties'"),
        ({"parameters": {"type": "array", "items": {}}}, "$.parameters.type"),
        ({"parameters": {}, "input_schema": {"properties": {"x": {}}}}, "'parameters' and 'input_schema'"),
        ({"parameters": {"x": {}}, "required": ["y"]}, '$.required names "y"'),
    ],
)
def test_r2_4_a_definition_of_which_something_would_be_lost_is_refused(definition: dict[str, Any], says: str) -> None:
    with pytest.raises(ToolDefinitionError) as caught:
        _parameters(definition)
    assert says in str(caught.value)
    assert str(caught.value).startswith("tool 't': ")
    assert len(str(caught.value).splitlines()) == 1


def test_r2_4_api_name_is_a_name() -> None:
    tool = parse_tool({"api_name": "get_x", "api_description": "Get x.", "parameters": {"x": {"type": "int"}}})
    assert (tool.name, tool.description) == ("get_x", "Get x.")
    wrapped = {"type": "function", "parameters": {"x": {"type": "int"}}, "function": {"name": "f"}}
    assert parse_tool(wrapped).parameters["properties"] == {"x": {"type": "integer"}}


def test_names_of_temporals_own_are_refused() -> None:
    for name in ("__temporal_x", "perdure.x", "a\nb"):
        with pytest.raises(ToolDefinitionError, match="cannot be a tool's name"):
            parse_tool({"name": name, "properties": {}})


def test_r9_3_an_older_schema_is_shown_in_the_words_of_today() -> None:
    schema: dict[str, Any] = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "object",
        "properties": {
            "pair": {"items": [{"type": "integer"}], "additionalItems": {"type": "string"}},
            "n": {"type": "number", "minimum": 1, "exclusiveMinimum": True},
            "again": {"$ref": "#/properties/n", "type": "string"},
            "tree": {"$ref": "#"},
            "named": {"$ref": "#item"},
            "one": {"$ref": "#/definitions/one"},
        },
        "definitions": {"one": {"id": "#item", "type": "integer"}},
        "dependencies": {"pair": ["n"], "n": {"required": ["one"]}},
    }
    tool = parse_tool({"name": "t", "parameters": schema}, activities=["t"])
    composed = compose({"t": tool}, True)
    Draft202012Validator.check_schema(composed)
    shown = Draft202012Validator(composed)
    good: dict[str, Any] = {"pair": [1, "x"], "n": 1.5, "again": 2, "tree": {}, "named": 1, "one": 1}
    bad: list[dict[str, Any]] = [
        {"n": 1, "one": 1},
        {"again": 1},
        {"tree": {"n": 0}},
        {"named": "x"},
        {"pair": [1, 2], "n": 2, "one": 1},
        {"n": 2},
    ]
    for params, fits in [(good, True), *((each, False) for each in bad)]:
        assert shown.is_valid({"calls": [{"_tool": "t", **params}], "output": None}) is fits, params
        assert (tool.parameters_schema.errors(params) == []) is fits, params


@pytest.mark.parametrize(
    "scopes", [["state.mail text"], {"enum": ["my mails"]}, ["state.hosts[0]"], ["state.a || state.b"]]
)
def test_r8_2_a_scope_that_cannot_be_read_is_refused_with_its_tool(scopes: Any) -> None:
    with pytest.raises(ToolDefinitionError, match=r"'clerk': the scope '.*' cannot be read: .*state.user"):
        parse_tool({"name": "clerk", "_delegate": "clerk", "_scopes": scopes})
