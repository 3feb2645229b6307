"""What can be judged of a call before anything runs, and of its parameters before it starts (R6.6)."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from dataclasses import replace
from typing import Final

from perdure.errors import CallError, ReferenceSyntaxError
from perdure.plan.calls import Call
from perdure.plan.control.conditions import IF, parse_condition
from perdure.plan.control.iteration import BODY, EACH, LOOP_KEYS, delegate_problems
from perdure.plan.edges.order import AFTER, parse_after
from perdure.plan.loops.reading import BODY_KEYS, OWN_TOOLS, is_inside, read_loop
from perdure.tools.tool import Tool
from perdure.values.instances import foreign_problems, scope_path, scope_template
from perdure.values.jsons import Json, JsonObject, has_null, json_path, shorten
from perdure.values.limits import MAX_BODY_CALLS, MAX_LOOPS_DEEP
from perdure.values.limits.steps import Checks
from perdure.values.output_paths import claimed_paths, parse_output_path, show
from perdure.values.problems import close_names
from perdure.values.schemas import Schema
from perdure.values.schemas.conversion import convert_literals
from perdure.values.state import METHODS
from perdure.values.templates import parse_template

TOO_MUCH: Final = "too_many_names"
"""Code of a call that names more than a call, or a plan, may."""
NOTES: Final = frozenset({"_id", "_status", "_reason", "_error"})
"""What the engine adds to a call when it shows it in a plan message; a model may write it back, and it means nothing then."""
CONVERTED: Final = "literals-converted"
"""Patch: a literal of another type is converted where nothing is lost (R5.13); 0.1.0 refused its call."""


def check_call(
    raw: Json,
    *,
    id: str,
    index: int,
    tools: Mapping[str, Tool],
    state_schema: Schema | None = None,
    instances: Collection[str] = (),
    kinds: Collection[str] = (),
    checks: Checks | None = None,
    too_much: str | None = None,
    joined: Container[str] = (),
) -> Call:
    """Everything about a call that can be judged before anything runs; a call with `error` set is invalid (R6.6).

    `too_much`: why it is not even read. `joined`: the calls of earlier Requests that are in the plan.
    """
    if not isinstance(raw, dict):
        return _invalid(
            Call(id, index, {}), "not_a_call", f"{shorten(raw, 60)} is no call: expected an object with a '_tool'"
        )
    if too_much is not None:
        return _invalid(
            Call(id, index, {key: value for key, value in raw.items() if key not in NOTES}), TOO_MUCH, too_much
        )
    call = _checked(raw, id, index, tools, state_schema, instances, checks, joined)
    instance = call.raw.get("_instance")
    if isinstance(instance, str) and instance in instances:
        call.instance = instance
        call.template = scope_template(call.template, instance, kinds)
        call.condition = scope_template(call.condition, instance, kinds)
        call.soft = scope_template(call.soft, instance, kinds)
        call.after = replace(call.after, paths=scope_template(call.after.paths, instance, kinds))
        call.after_end = replace(call.after_end, paths=scope_template(call.after_end.paths, instance, kinds))
        call.paths = tuple(tuple(scope_path(path, instance) for path in paths) for paths in call.paths)
    return call


def _checked(
    raw: JsonObject,
    id: str,
    index: int,
    tools: Mapping[str, Tool],
    state_schema: Schema | None,
    instances: Collection[str],
    checks: Checks | None,
    joined: Container[str],
) -> Call:
    call = Call(id, index, {key: value for key, value in raw.items() if key not in NOTES})
    call.written_id = raw["_id"] if isinstance(raw.get("_id"), str) else None
    if "_syntax" in raw:
        return _invalid(call, "syntax", str(call.raw.pop("_syntax"))[:1000])
    name = raw.get("_tool")
    tool = OWN_TOOLS.get(name) or tools.get(name) or _last_named(name, tools) if isinstance(name, str) else None
    if tool is None:
        close = close_names(str(name), tools)
        what = "the call has no '_tool'" if name is None else f"there is no tool {shorten(name, 80)}"
        return _invalid(
            call,
            "unknown_tool",
            f"{what}; {_offer(close, len(tools))}",
        )
    call.tool, call.raw["_tool"] = tool, tool.name
    call.raw = _without_nulls(call.raw, tool)
    call.params = call.written_params
    instance = call.raw.get("_instance")
    problems = [*_meta_problems(call, tool, checks, joined), *_path_problems(call, tool, state_schema)]
    if is_inside(call.raw, tool):

        def check_inner(raw: Json, id: str, index: int) -> Call:
            return check_call(raw, id=id, index=index, tools=tools, state_schema=state_schema, checks=checks)

        problems += problems or _with_item(call, read_loop(call, check_inner, call.paths))
    else:
        problems += _with_item(call, _param_problems(call, tool, checks))
    problems += _instance_problems(call, instance, instances)
    return _invalid(call, "invalid_call", *problems) if problems else call


def _last_named(name: str, tools: Mapping[str, Tool]) -> Tool | None:
    """The one tool whose name ends with this one behind a dot: models leave out what stands before it."""
    found = [tool for known, tool in tools.items() if known.endswith(f".{name}")] if name else []
    return found[0] if len(found) == 1 else None


def _without_nulls(raw: JsonObject, tool: Tool) -> JsonObject:
    """The call without what is `null` because strict mode leaves nothing out; a `null` that the tool takes stays."""
    schema = tool.parameters_schema

    def walk(value: Json, path: tuple[str | int, ...]) -> Json:
        if isinstance(value, list):
            return [walk(child, (*path, index)) for index, child in enumerate(value)]
        if not isinstance(value, dict):
            return value
        required = {name for each in schema.at(path) or () for name in each.schema.get("required", ())}
        return {
            key: walk(child, (*path, key))
            for key, child in value.items()
            if child is not None or key in required or not _refuses_null(schema.at((*path, key)))
        }

    meta = {key: value for key, value in raw.items() if key.startswith("_") and (value is not None or key == "_output")}
    parameters = {key: value for key, value in raw.items() if not key.startswith("_")}
    return meta | (walk(parameters, ()) if has_null(parameters) else parameters)


def _refuses_null(schemas: list[Schema] | None) -> bool:
    return any(schema.errors(None) for schema in schemas or ())


def _instance_problems(call: Call, instance: Json, instances: Collection[str]) -> list[str]:
    if instance is None or (isinstance(instance, str) and instance in instances):
        if not instances:
            return []
        read = [*call.condition.references(), *call.template.references(), *call.soft.references()]
        return foreign_problems(read, call.paths, shared=instance is None)
    if not instances:
        return ["$._instance: there are no instances in this context"]
    known = ", ".join(close_names(str(instance), instances))
    return [f"$._instance: there is no instance {shorten(instance, 60)}; close to it are {known}"]


def _offer(close: list[str], count: int) -> str:
    if not close:
        return "no tools are offered"
    return f"{'the tools are' if count == len(close) else 'close to it are'}: {', '.join(close)}"


def check_resolved(call: Call, checks: Checks | None = None) -> CallError | None:
    """The parameters with every value in its place, against the tool's schema (R3.1)."""
    assert call.tool is not None
    # A loop's own parameters are those of its calls, and theirs are looked at one by one.
    problems = [] if call.loop is not None else call.tool.parameters_schema.errors(call.params, checks=checks)
    if "_each" in call.raw and not isinstance(call.items, list):
        problems.append(f"$._each is {shorten(call.items, 60)}, but must be an array to go through")
    return CallError.of("invalid_params", problems) if problems else None


def _invalid(call: Call, code: str, *problems: str) -> Call:
    """The call refused. It keeps the paths that it names: what it would have written counts as not written (R5.1)."""
    call.status, call.error = "invalid", CallError.of(code, problems)
    method = call.raw.get("_outputMethod")
    call.method = method if method in METHODS else "set"
    named = [*_named_paths(call.raw), call.tool and call.tool.output_path]
    call.paths = tuple(claimed_paths(text) for text in named if isinstance(text, str))
    return call


def _named_paths(raw: Json, deep: int = 0) -> list[Json]:
    """What a call, and those of its body, say of where they write."""
    if not isinstance(raw, dict) or deep > MAX_LOOPS_DEEP:
        return []
    body = raw.get(BODY)
    inner = body[:MAX_BODY_CALLS] if isinstance(body, list) else []
    return [raw.get("_outputPath"), *(path for each in inner for path in _named_paths(each, deep + 1))]


def _misnamed(raw: JsonObject, tool: Tool, allowed: Container[str]) -> list[str]:
    """Parameters under their own names, which would be meta-properties: a call has them under others."""
    loops = EACH in raw
    return [
        f"$.{name}: the tool's parameter {name!r} is written {alias!r} in a call"
        for alias, name in tool.names.items()
        if name in raw and alias not in raw and (name not in allowed or (name in LOOP_KEYS and not loops))
    ]


def _meta_problems(call: Call, tool: Tool, checks: Checks | None, joined: Container[str]) -> list[str]:
    allowed = {"_tool", "_outputPath", "_outputMethod", "_instance", AFTER, IF, *(("_output",) if tool.latent else ())}
    if tool.scope_choice is not None:
        allowed.add("_scopes")
    allowed |= LOOP_KEYS | BODY_KEYS.get(tool.name, frozenset())
    if misnamed := _misnamed(call.raw, tool, allowed):
        return misnamed
    unknown = [key for key in call.raw if key.startswith("_") and key not in allowed]
    if "_output" in unknown:
        unknown.remove("_output")
        return [f"$._output is not yours to write: the tool {tool.name!r} computes it"]
    if unknown:
        return [
            f"unknown meta-properties {', '.join(unknown[:5])}; those of this tool are {', '.join(sorted(allowed))}"
        ]
    chosen = call.raw.get("_scopes", [])
    if not isinstance(chosen, list) or not all(scope in (tool.scope_choice or ()) for scope in chosen):
        return [f"$._scopes is {shorten(chosen, 80)}, but must be a list of {', '.join(tool.scope_choice or ())}"]
    call.scopes = [*(tool.scopes or ()), *chosen]
    inside = is_inside(call.raw, tool)
    if not inside and (wrong := delegate_problems(call.raw)):
        return wrong
    if AFTER in call.raw:
        call.after, call.after_end, wrong = parse_after(call.raw[AFTER], call.id, joined)
        if wrong:
            return wrong
    if IF in call.raw and not inside:
        call.condition, malformed = parse_condition(call.raw[IF])
        if malformed is not None:
            return [malformed]
    if not tool.latent or inside:
        return []
    if "_output" not in call.raw:
        return [f"$ lacks '_output': the tool {tool.name!r} has no code, write its result yourself"]
    call.result = call.raw["_output"]
    schema = tool.output_schema
    return [] if schema is None else schema.errors(call.result, root=("_output",), checks=checks)


def _path_problems(call: Call, tool: Tool, state_schema: Schema | None) -> list[str]:
    text, method = call.raw.get("_outputPath"), call.raw.get("_outputMethod")
    if text is not None and tool.output_path is not None and text != tool.output_path:
        return [f"$._outputPath is {shorten(text, 80)}, but the tool {tool.name!r} always writes to {tool.output_path}"]
    if method is not None and tool.output_method is not None and method != tool.output_method:
        return [
            f"$._outputMethod is {shorten(method, 40)}, but the tool {tool.name!r} always uses {tool.output_method}"
        ]
    text = tool.output_path if text is None else text
    method = tool.output_method or "set" if method is None else method
    if method not in METHODS:
        return [f"$._outputMethod is {shorten(method, 40)}, but must be one of {', '.join(METHODS)}"]
    call.method = method
    if text is None:
        return []
    if not isinstance(text, str):
        return [f'$._outputPath is {shorten(text, 60)}, but must be a string such as "†state.name"']
    try:
        call.paths = parse_output_path(text)
    except ReferenceSyntaxError as error:
        return [f"$._outputPath: {error}"]
    if state_schema is None:
        return []
    return [
        f"$._outputPath: {show(path)} is not in the state's schema"
        for alternative in call.paths
        for path in alternative
        if state_schema.at(path) is None
    ]


def _param_problems(call: Call, tool: Tool, checks: Checks | None) -> list[str]:
    each = {"_each": call.raw["_each"]} if "_each" in call.raw else {}
    call.template, malformed = parse_template(call.params | each)
    if malformed:
        return [f"{json_path(problem.path)}: {problem.error}" for problem in malformed]
    problems = tool.parameters_schema.errors(call.params, references=not call.template.literal, checks=checks)
    if not problems:
        return []
    params, converted = convert_literals(call.params, tool.parameters_schema, checks)
    if not (converted and isinstance(params, dict)):
        return problems
    template, _ = parse_template(params | each)
    if tool.parameters_schema.errors(params, references=not template.literal, checks=checks):
        return problems  # the model writes the call again in any case, and is told of all that it wrote
    if checks is not None and not checks.is_patched(CONVERTED):
        return problems
    call.converted = converted
    call.raw, call.params, call.template = {**call.raw, **params}, params, template
    return []


def _with_item(call: Call, problems: list[str]) -> list[str]:
    """Of a parameter that is missing in a loop it is said how the item is named there."""
    item = "; what a call with _each runs for is †item, which its parameters can read"
    return [f"{each}{item}" if "_each" in call.raw and " lacks " in each else each for each in problems]
