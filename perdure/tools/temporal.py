"""Tools made from a user's own activities, workflows, and Nexus operations."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, Literal, TypedDict

from pydantic import BaseModel, ConfigDict, TypeAdapter, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from typing_extensions import Unpack

from perdure.errors import JsonError, ToolDefinitionError, ToolError, clip
from perdure.tools.decorator import (
    Annotation,
    ToolFunction,
    docstring_text,
    meta_properties,
    plain_schema,
    read_signature,
)
from perdure.tools.tool import Existing, parse_tool
from perdure.values.json import JsonObject, to_json

ACTIVITY_DEFINITION: Final = "__temporal_activity_definition"
WORKFLOW_DEFINITION: Final = "__temporal_workflow_definition"
"""Attributes that the SDK sets: it has no public way to read a definition's name."""
_ONE: Final = "input"
"""The parameter's name if the one argument is not an object."""


class ToolOptions(TypedDict, total=False):
    """The options of `@tool` for tools of Temporal. `safe`: never harmful; `dangerous`: needs approval; `untrusted`:
    others write its results."""

    name: str
    description: str
    output_path: str
    approval: Any  # an `approval`, in any form that a tool's definition has it
    ask: str
    safe: bool
    dangerous: bool
    untrusted: bool
    timeout: float
    retries: int
    task_queue: str
    duration: float
    exclusive: bool | str


class ActivityOptions(ToolOptions, total=False):
    heartbeat: float
    queue_timeout: float


def activity_tool(
    activity: Callable[..., Any] | str,
    *,
    input: Annotation = None,
    output: Annotation = None,
    **options: Unpack[ActivityOptions],
) -> ToolFunction:
    """Return a tool for an existing activity: its calls run that activity, on its own workers.

    `activity`: the function, whose signature and docstring describe the tool, or the activity's name; then `input` and
    `output` are types, or JSON Schemas, of its one argument (default: none) and its result (default: anything). A
    single parameter that is a model or a dataclass gives the tool its fields as parameters. `options`: as `@tool` has
    them; `task_queue` is the queue of its workers (default: the run's own), `timeout` seconds for an attempt (60),
    `retries` attempts after the first (2), `heartbeat` seconds within which the activity has to heartbeat by itself
    (default: it need not).

    Raises `ToolDefinitionError` for an activity that cannot be a tool.

    ```python
    charge = activity_tool("charge_card", input={"type": "object"}, dangerous=True)
    shopper = Agent("shopper", tools=[charge])
    ```
    """
    if isinstance(activity, str):
        return _by_name(Existing(kind="activity", name=activity), input, output, dict(options))
    name = getattr(getattr(activity, ACTIVITY_DEFINITION, None), "name", None)
    if name is None:
        raise ToolDefinitionError(f"{activity!r} is not an activity with a name: decorate it with @activity.defn")
    method = not inspect.ismethod(activity) and next(iter(inspect.signature(activity).parameters), "") == "self"
    existing = Existing(kind="activity", name=name)
    return _by_signature(existing, activity, docstring_text(activity), dict(options), method=method)


def workflow_tool(
    workflow: type | str,
    *,
    id: str | None = None,
    input: Annotation = None,
    output: Annotation = None,
    **options: Unpack[ToolOptions],
) -> ToolFunction:
    """Return a tool for an existing workflow: a call is a child of the run.

    `workflow`: the class, or the workflow's type with `input` and `output` as `activity_tool` has them. `id`: the
    child's id, with the call's parameters as in `order-{number}`; by default `<run>/<call>`. `timeout`: seconds for all
    of it, by default none: it may wait for people, and its time does not count for the run, as with a delegate.
    `retries`: 0 by default. A cancelled run cancels the child.

    Raises `ToolDefinitionError` for a workflow that cannot be a tool.

    ```python
    fulfil = workflow_tool("FulfilOrder", id="order-{number}", input={"type": "object"})
    shopper = Agent("shopper", tools=[fulfil])
    ```
    """
    plain: JsonObject = {"retries": 0, **options}
    if isinstance(workflow, str):
        return _by_name(Existing(kind="workflow", name=workflow, id=id), input, output, plain)
    found = getattr(workflow, WORKFLOW_DEFINITION, None)
    if found is None or getattr(found, "name", None) is None:
        raise ToolDefinitionError(f"{workflow!r} is not a workflow with a name: decorate it with @workflow.defn")
    about = docstring_text(workflow) if workflow.__doc__ else docstring_text(found.run_fn)
    return _by_signature(Existing(kind="workflow", name=found.name, id=id), found.run_fn, about, plain, method=True)


def nexus_tool(
    operation: Any,  # `nexusrpc` types it by its input and output
    *,
    endpoint: str,
    service: type | str,
    input: Annotation = None,
    output: Annotation = None,
    **options: Unpack[ToolOptions],
) -> ToolFunction:
    """Return a tool for an existing Nexus operation.

    `operation`: of a service class, `Payments.charge`, whose types describe the tool, or its name with `input` and
    `output` as `activity_tool` has them. `endpoint`: its name on the server. `timeout`: seconds for all of it, retries
    included, by default none; the server retries the failures that allow it. A cancelled run cancels the operation.

    Raises `ToolDefinitionError` for an operation that cannot be a tool.

    ```python
    stock = nexus_tool("stock", endpoint="warehouse", service="Stock", input=str, output=int)
    shopper = Agent("shopper", tools=[stock])
    ```
    """
    named = isinstance(operation, str)
    name = operation if named else getattr(operation, "name", None)
    definition = getattr(service, "__nexus_service_definition__", None)
    known = service if isinstance(service, str) else getattr(definition, "name", None)
    if not name or not known:
        raise ToolDefinitionError(
            f"{operation!r} of {service!r} is not a Nexus operation: give both of a service, or their names"
        )
    existing = Existing(kind="operation", name=name, endpoint=endpoint, service=known)
    takes, gives = (input, output) if named else (operation.input_type, operation.output_type)
    return _by_name(existing, takes, gives, {"retries": 0, **options})


def _by_name(existing: Existing, input: Annotation, output: Annotation, options: JsonObject) -> ToolFunction:
    where = f"tool {options.get('name', existing.name)!r}"
    none = input in (None, type(None))
    schema = {} if none else _schema(input, where, "validation")
    if none or not _is_object(schema):
        schema, names = ({}, []) if none else ({"properties": {_ONE: schema}, "required": [_ONE]}, [_ONE])
        existing = existing.model_copy(update={"arguments": names})
    result = None if output in (None, type(None)) else _schema(output, where, "serialization")
    return _tool_of(existing, schema, result, options, "")


def _by_signature(
    existing: Existing, function: Callable[..., Any], about: str, options: JsonObject, *, method: bool
) -> ToolFunction:
    name = options.get("name", existing.name)
    arguments, result, context = read_signature(function, name, method=method)
    fields = list(arguments.model_fields.values())
    if context is not None or arguments.model_config.get("extra") == "allow":
        raise ToolDefinitionError(
            f"tool {name!r}: Temporal passes arguments by position, so it cannot have a ToolContext or **params"
        )
    schema = plain_schema(arguments.model_json_schema(by_alias=True))
    output = None if result is None else plain_schema(result.json_schema(mode="serialization"))
    alone = _schema(fields[0].annotation, f"tool {name!r}", "validation") if len(fields) == 1 else {}
    if _is_object(alone):
        return _tool_of(existing, alone, output, options, about)
    try:
        defaults = to_json(
            {str(f.alias): f.get_default() for f in fields if not f.is_required()}, source=f"tool {name!r}: a default"
        )
    except JsonError as error:
        raise ToolDefinitionError(str(error)) from None
    existing = existing.model_copy(update={"arguments": [f.alias for f in fields], "defaults": defaults})
    return _tool_of(existing, schema, output, options, about)


def _tool_of(
    existing: Existing, schema: JsonObject, output: JsonObject | None, options: JsonObject, about: str
) -> ToolFunction:
    name = options.pop("name", existing.name)
    about = options.pop("description", about)
    calls = existing.model_dump(exclude_defaults=True)
    definition = {**schema, "name": name, "description": about, **meta_properties(options), "_calls": calls}
    definition |= {"_output": output} if output else {}
    parse_tool(definition, activities=[name])

    async def elsewhere(**_: object) -> object:
        raise ToolError(
            "not_here", f"{name} is {existing.title}, which this worker does not run: replace it by a fake in a test"
        )

    arguments: type[BaseModel] = create_model(f"{name}_arguments", __config__=ConfigDict(extra="allow"))
    return ToolFunction(definition, elsewhere, arguments, None, None, True)


def _schema(wanted: Annotation, where: str, mode: Literal["validation", "serialization"]) -> JsonObject:
    if isinstance(wanted, dict):
        return wanted
    try:
        schema: JsonObject = plain_schema(TypeAdapter(wanted).json_schema(mode=mode))
    except (PydanticSchemaGenerationError, PydanticUserError, NameError, SyntaxError) as error:
        problem = str(error).splitlines()[0]
        raise ToolDefinitionError(
            f"{where}: {clip(repr(wanted), 60)} is not a JSON Schema or a type that JSON can be validated as: {problem}"
        ) from None
    return {key: value for key, value in schema.items() if key != "description"} if _is_object(schema) else schema


def _is_object(schema: JsonObject) -> bool:
    return schema.get("type") == "object" and "properties" in schema
