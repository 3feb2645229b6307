"""The `@tool` decorator: a typed Python function as a tool and its activity."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Annotated, Any, Final, Generic, Literal, TypeAlias, get_args, get_origin, get_type_hints, overload

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError
from typing_extensions import TypeVar

from perdure.errors import JsonError, ToolDefinitionError, ToolError, clip
from perdure.tools.invocation import ReportedUsage
from perdure.tools.tool import CONTEXT_PARAMETER, parse_tool
from perdure.tools.undo import as_undo
from perdure.values.json import Json, JsonObject, SchemaPart, check, dumps, to_json
from perdure.values.limits import MAX_PROGRESS
from perdure.values.problems import first_problem, none_of
from perdure.values.registration import check_outermost, check_target, is_generator_function
from perdure.values.schemas import pattern_problem

F = TypeVar("F", bound=Callable[..., Any])
Annotation: TypeAlias = Any
"""A type, or another object that Python allows in an annotation: `list[int]`, `None`, `Annotated[…]`. Python has no
type for them.
"""

REGISTERED: Final = "__perdure_tool__"
"""The attribute in which a decorated function carries its `ToolFunction`."""


ContextT = TypeVar("ContextT", default=JsonObject)


@dataclass(frozen=True)
class ToolContext(Generic[ContextT]):
    """The context of a call, for the tool's code. A parameter annotated with it is not part of the schema.

    `ToolContext[Customer]` has its `context` as a `Customer`, or any other type that pydantic reads; a call whose context
    is of another type fails with `invalid_context`.

    ```python
    @tool(timeout=600)
    async def export(table: str, context: ToolContext) -> str:
        context.progress(f"exporting {table}, attempt {context.attempt}")
        return context.idempotency_key
    ```
    """

    # R12.2

    tool_name: str
    """The agent's name for the tool."""
    tool: JsonObject
    """The tool's definition, as an agent file writes it."""
    call: JsonObject
    """The call as the model wrote it."""
    call_id: str  # R5.7
    """`R.N`: the Request's number and the call's index in it."""
    idempotency_key: str  # R6.7
    """The key of the effect: the same on every attempt, another for other parameters. With it the effect happens once."""
    attempt: int = 1
    """1 for the first attempt."""
    messages: list[JsonObject] = field(default_factory=list)
    """The context's messages that the tool's `_scopes` list."""
    run_id: str = ""
    """The id of the run, or of the delegate's run, that calls the tool."""
    session: str = ""
    """The key of the run's session; empty in a run without one."""
    sender: str = ""
    """The sender, verified by the caller of `start` or `send`; empty if none was named. No model reads or sets it."""
    tenant: str = ""
    context: ContextT = field(default_factory=dict)  # type: ignore[assignment]  # where no type says otherwise
    """Data of the caller of `start` or `send` about the sender: whose data the tool may touch. No model reads or sets
    it.
    """
    on_heartbeat: Callable[..., None] = field(default=lambda *_: None, repr=False)
    """Set by the worker; `heartbeat` and `progress` are for tools."""
    on_usage: Callable[[ReportedUsage], None] = field(default=lambda _: None, repr=False)
    """Set by the worker; `report_usage` is for tools."""
    on_untrusted: Callable[[], None] = field(default=lambda: None, repr=False)
    """Set by the worker; `mark_untrusted` is for tools."""
    is_cancelled: Callable[[], bool] = field(default=lambda: False, repr=False)
    """Set by the worker; `cancelled` is for tools."""

    @property
    def cancelled(self) -> bool:
        """Whether the call was abandoned: it timed out, was cancelled, or its worker is ending.

        An async function is cancelled. A thread has to check this itself, because Python cannot end a thread.
        """
        return self.is_cancelled()

    def heartbeat(self, *details: object) -> None:
        """Send a heartbeat. The next attempt has its details after a timeout or a failure, but not after a lost worker.

        Raises `ToolError` if the call was abandoned, so that a thread that sends heartbeats ends.

        ```python
        context.heartbeat({"rows": 1000})
        ```
        """
        if self.cancelled:
            raise ToolError("cancelled", f"{self.tool_name} {self.call_id} was abandoned")
        self.on_heartbeat(*details)

    def report_usage(
        self,
        model: str,
        *,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        cached_tokens: int = 0,
        reasoning_tokens: int = 0,
        cache_write_tokens: int = 0,
        requests: int = 1,
    ) -> None:
        """Report the usage of a model that the tool's code has called itself. The run counts it if the call succeeds.

        ```python
        context.report_usage("gpt-5-mini", prompt_tokens=900, completion_tokens=40)
        ```
        """
        self.on_usage(
            ReportedUsage(
                model=model,
                requests=requests,
                prompt_tokens=prompt_tokens,
                completion_tokens=completion_tokens,
                cached_tokens=cached_tokens,
                reasoning_tokens=reasoning_tokens,
                cache_write_tokens=cache_write_tokens,
            )
        )

    def mark_untrusted(self) -> None:
        """Mark this call's result as written by others, as `untrusted=True` does for every result of a tool.

        ```python
        mail = {"sender": "eve@example.com", "text": "Pay me."}
        if not mail["sender"].endswith("@acme.example"):
            context.mark_untrusted()
        ```
        """
        self.on_untrusted()

    def progress(self, text: str) -> None:
        """Report progress to watchers, in up to `MAX_PROGRESS` characters; it counts as a heartbeat. Raises as
        `heartbeat` does.

        ```python
        context.progress("1,000 of 5,000 rows")
        ```
        """
        self.heartbeat({"progress": clip(text, MAX_PROGRESS)})


@dataclass(frozen=True, slots=True)
class Branch:
    """A result for one alternative of the call's output path: see `branch`."""

    path: str
    value: object


def branch(path: str, value: object = None) -> Branch:
    """Return a tool's result for one alternative of the call's output path.

    `path`: the alternative, as the output path names it. `value`: JSON, or a value that pydantic writes as JSON
    (`None`).

    ```python
    @tool(output_path="†state.sunny || †state.rainy")
    def weather(place: str) -> Any:
        return branch("†state.sunny", {"place": place})
    ```
    """
    # R12.4
    return Branch(path, value)


@dataclass(frozen=True)
class ToolFunction:
    """A tool with the code behind it."""

    definition: JsonObject
    function: Callable[..., Any]
    arguments: type[BaseModel]
    result: TypeAdapter[Any] | None
    context_parameter: str | None
    is_async: bool
    context_type: TypeAdapter[Any] | None = None
    """Reader of `ToolContext.context`, where the function names its type."""
    undo: ToolFunction | None = None
    """The tool that undoes its effect, if the declaration has its function."""

    @property
    def name(self) -> str:
        return str(self.definition["name"])

    @property
    def __perdure_tool__(self) -> ToolFunction:
        return self

    def bind(self, params: JsonObject, context: ToolContext) -> dict[str, Any]:  # arguments of the user's types
        """Return keyword arguments for the function, of the annotated types. Raises `ToolError` when the parameters do
        not fit."""
        if self.context_parameter is not None and self.context_parameter in params:
            raise ToolError(
                "invalid_params",
                f"the function takes its ToolContext as {self.context_parameter!r}: no parameter can have this name",
            )
        try:
            model = self.arguments.model_validate(params)
        except ValidationError as error:
            raise ToolError("invalid_params", first_problem(error, params)) from None
        fields = type(model).model_fields
        arguments = {(info.alias or name): getattr(model, name) for name, info in fields.items()} | (
            model.model_extra or {}
        )
        return arguments | ({self.context_parameter: self._typed(context)} if self.context_parameter else {})

    def _typed(self, context: ToolContext) -> ToolContext[Any]:
        """Return the context with the run's context converted to the function's type."""
        if self.context_type is None:
            return context
        try:
            return replace(context, context=self.context_type.validate_json(dumps(context.context)))
        except ValidationError as error:
            raise ToolError(
                "invalid_context",
                f"the context of the run is not valid for {self.name}: {first_problem(error, context.context)}",
            ) from None

    def dump(self, value: object) -> Json:
        """Return a tool's result as JSON. Raises `ToolError` when it cannot be written as JSON."""
        adapter = self.result or TypeAdapter(Any)
        try:
            result: Json = to_json(value, source=f"the result of {self.name}", adapter=adapter)
        except JsonError as error:
            raise ToolError("not_json", str(error)) from None
        return result


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(
    *,
    name: str | None = None,
    output_path: str | None = None,
    approval: Any = None,  # in any form of a definition
    ask: str | None = None,
    safe: bool = False,
    dangerous: bool = False,
    untrusted: bool = False,
    timeout: float = 60.0,
    heartbeat: float | None = None,
    retries: int = 2,
    task_queue: str | None = None,
    queue_timeout: float | None = None,
    duration: float | None = None,
    exclusive: bool | str = False,
    message: bool | str = False,
    undo: Callable[..., Any] | str | None = None,
    undo_params: JsonObject | None = None,
) -> Callable[[F], F]: ...


def tool(function: Any = None, /, **options: Any) -> Any:  # typed by the overloads
    """Make a typed function, sync or async, a tool.

    The annotations give the schemas of the parameters and the result, the docstring gives the descriptions. A function
    with `**params` takes every parameter that the tool's definition allows. Sync functions run in threads.

    `name`: the function's name. `output_path`: a fixed path such as `†state.profile`; default: the model's choice.
    `approval`: `never`, `always` or a condition. `ask`: the question to the person who decides about a call, with its
    parameters: `refund {euros} EUR to {customer}?`. `safe`: never harmful, whatever its input; `dangerous`: needs
    approval. `untrusted`: others write its results, mails or pages, and may write instructions to a model in them.
    `timeout`: seconds per attempt (60). `heartbeat`: seconds between heartbeats, which the engine sends
    (10; 20 with `retries=0`).
    `retries`: attempts after the first (2); with 0 it never begins twice, even if its worker is lost. `task_queue`: the
    queue of its workers (the run's own). `queue_timeout`: seconds until one of them has to take a call up (300).
    `duration`: seconds it usually takes (unknown). `exclusive`: no two calls of it at once in a run; with a group's
    name, no two of all tools of that group. `message`: it sends a message to people, the parameter of this name, or
    else `text`, `message`, `content` or `body`: a session's run does not reply with the same text again.
    `undo`: the tool that takes the effect of a call back, a function with `@tool` or its name. `undo_params`: its
    parameters, with references such as `†result.id` and `†params.city`; by default each comes by its name from the
    call's parameters, or else from its result, or else from the defaults of parameters that the call omits.

    Raises `ToolDefinitionError` for a function that cannot be a tool.

    ```python
    @tool(approval="always", retries=0)
    def order(fruit: str, count: int = 1) -> str:
        return f"ordered {count} {fruit}"
    ```
    """
    # R12.1, R15.2

    def decorate(target: F) -> F:
        check_target(target, "tool", ToolDefinitionError, objects=False)
        setattr(target, REGISTERED, describe(target, **options))
        return target

    return decorate if function is None else decorate(function)


def tool_function(target: object) -> ToolFunction | None:
    """Return the tool of a decorated function, or `None`. Raises `ToolDefinitionError` if another decorator is above
    `@tool`.
    """
    found = getattr(target, REGISTERED, None)
    if not isinstance(found, ToolFunction):
        return None
    if found is not target:
        check_outermost(target, found.function, "tool", ToolDefinitionError)
    return found


def with_undos(functions: Iterable[ToolFunction]) -> list[ToolFunction]:
    """Return the tools, and those that undo their effects."""
    found = list(functions)
    return [*found, *(each.undo for each in found if each.undo is not None)]


def describe(function: Callable[..., Any], **options: Any) -> ToolFunction:  # those of `tool`
    """Return the tool of a function, with the options of `@tool`. Raises `ToolDefinitionError`."""
    given_name = options.pop("name", None)
    name = getattr(function, "__name__", "") if given_name is None else given_name
    if is_generator_function(function):
        raise ToolDefinitionError(f"tool {name!r} is a generator function: return one value, such as a list")
    arguments, result, context_parameter = read_signature(function, name)
    undo = tool_function(options.get("undo"))
    sent, known = options.get("message"), [str(each.alias) for each in arguments.model_fields.values()]
    if isinstance(sent, str) and sent not in known and arguments.model_config.get("extra") != "allow":
        raise ToolDefinitionError(f"tool {name!r}: message: {none_of(sent, 'parameter', known)}")
    definition = {
        "name": name,
        "description": docstring_text(function),
        **plain_schema(arguments.model_json_schema(by_alias=True)),
        **meta_properties(options),
    }
    if output := None if result is None else plain_schema(result.json_schema(mode="serialization")):
        definition["_output"] = output
    try:
        check(definition, source=f"the definition of the tool {name!r}")
    except JsonError as error:
        raise ToolDefinitionError(str(error)) from None
    undone_by = parse_tool(definition, activities=[name]).undo
    if undone_by is not None and undone_by.tool == name:
        raise ToolDefinitionError(f"tool {name!r} cannot be its own undo: name the tool that takes its effect back")
    if context_parameter is not None and arguments.model_config.get("extra") == "allow":
        definition[CONTEXT_PARAMETER] = context_parameter
    context_type = _context_type(function, name, context_parameter)
    is_async = inspect.iscoroutinefunction(function)
    return ToolFunction(definition, function, arguments, result, context_parameter, is_async, context_type, undo)


def _context_type(function: Callable[..., Any], name: str, parameter: str | None) -> TypeAdapter[Any] | None:
    """Return a reader of the type that `ToolContext[…]` names, if it names one."""
    wanted = get_args(_hints(function, f"tool {name!r}")[parameter]) if parameter is not None else ()
    if not wanted or wanted[0] in (dict, JsonObject, Any):
        return None
    if (adapter := _adapter(wanted[0], "validation")) is None:
        raise ToolDefinitionError(
            f"tool {name!r}: ToolContext[{_name_of(wanted[0])}] has a type that JSON cannot be validated as"
        )
    return adapter


def read_signature(
    function: Callable[..., Any], name: str, *, method: bool = False
) -> tuple[type[BaseModel], TypeAdapter[Any] | None, str | None]:
    """Return a model of the parameters, a reader of the result, and the name of the parameter for the `ToolContext`.

    `method`: the first parameter is `self`, which is not the tool's. Raises `ToolDefinitionError`.
    """
    where = f"tool {name!r}"
    hints = _hints(function, where)
    documented = docstring_parser.parse(inspect.getdoc(function) or "")
    descriptions = {parameter.arg_name: parameter.description for parameter in documented.params}
    fields: dict[str, Any] = {}  # as `create_model` takes them
    context_parameter: str | None = None
    open_ended = False
    for number, parameter in enumerate(list(inspect.signature(function).parameters.values())[method:]):
        annotation = hints.get(parameter.name, Any)
        takes_context = ToolContext in (annotation, get_origin(annotation))
        if number == 0 and parameter.name in ("self", "cls") and parameter.name not in hints and not method:
            raise ToolDefinitionError(
                f"{where}: {parameter.name!r} is the parameter of a method: decorate a function, or leave @tool out and "
                "give an object's method, as in tools=[desk.order]"
            )
        if takes_context and (context_parameter is not None or parameter.kind is inspect.Parameter.VAR_KEYWORD):
            raise ToolDefinitionError(f"{where}: {parameter.name!r} must not be a ToolContext: one parameter takes it")
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            open_ended = True
        elif parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL):
            raise ToolDefinitionError(
                f"{where}: {parameter.name!r} is a positional-only parameter; tools are called by name"
            )
        elif takes_context:
            context_parameter = parameter.name
        elif parameter.name.startswith("_"):
            raise ToolDefinitionError(f"{where}: {parameter.name!r} starts with '_', which is for meta-properties")
        else:
            # Fields get names of their own, so that a parameter called `schema` or `copy` hides no method of the
            # model.
            fields[f"p_{parameter.name}"] = _field(parameter, annotation, descriptions.get(parameter.name))
    extra = ConfigDict(extra="allow" if open_ended else "forbid", arbitrary_types_allowed=False)
    try:
        arguments = create_model(f"{name}_arguments", __config__=extra, **fields)
        arguments.model_json_schema(by_alias=True)
    except _NO_SCHEMA as error:
        for field_name, (annotation, _) in fields.items():
            if _adapter(annotation, "validation") is None:
                instead = "Use str, int, float, bool, list, dict, a dataclass, a TypedDict or a pydantic model"
                if isinstance(error, PydanticUserError) and error.code == "typed-dict-version":
                    instead = "Import TypedDict from typing_extensions"
                raise ToolDefinitionError(
                    f"{where}: the parameter {field_name.removeprefix('p_')!r} is annotated as {_name_of(annotation)}, which has no "
                    f"JSON Schema. {instead}"
                ) from None
        raise ToolDefinitionError(f"{where}: {str(error).splitlines()[0]}") from None
    returns = hints.get("return", Any)
    result = None if returns in (Any, Branch) else _adapter(returns, "serialization")
    if result is None and returns not in (Any, Branch):
        _hint(where, f"{_name_of(returns)}, which has no JSON Schema")
    return arguments, result, context_parameter


def _field(
    parameter: inspect.Parameter, annotation: Annotation, description: str | None
) -> tuple[Annotation, Any]:  # as `create_model` takes it
    """Return the type and the field of a parameter. `description`: the docstring's, if it has one."""
    default = parameter.default
    about: JsonObject = {} if description is None else {"description": description}
    if not isinstance(default, FieldInfo):
        about["default"] = ... if default is inspect.Parameter.empty else default
    else:  # `count: int = Field(gt=0)`, as in a model
        annotation = Annotated[annotation, default]
        if default.default_factory is not None:
            about["default_factory"] = default.default_factory
        elif not default.is_required():
            about["default"] = default.default
    return annotation, Field(alias=parameter.name, **about)


_NO_SCHEMA: Final = (PydanticSchemaGenerationError, PydanticUserError, PydanticSerializationError, TypeError, NameError)


def _adapter(annotation: Annotation, mode: Literal["validation", "serialization"]) -> TypeAdapter[Any] | None:
    """Return a reader and writer of values of a type; `None`: the type has no JSON Schema."""
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        adapter.json_schema(mode=mode)
    except _NO_SCHEMA:
        return None
    return adapter


def _hints(function: Callable[..., Any], where: str) -> dict[str, Annotation]:
    """Return the annotations by parameter, and `return`; without `return` if only that cannot be resolved. Raises
    `ToolDefinitionError`."""
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, SyntaxError) as error:
        annotations = getattr(function, "__annotations__", None)
        if not isinstance(annotations, dict):
            raise ToolDefinitionError(f"{where}: its annotations cannot be read: {error}") from None
    hints: dict[str, Annotation] = {}
    for name, annotation in annotations.items():
        alone = SimpleNamespace(
            __annotations__={name: annotation}, __globals__=getattr(inspect.unwrap(function), "__globals__", {})
        )
        try:
            hints |= get_type_hints(alone, include_extras=True)
        except (NameError, TypeError, SyntaxError) as error:
            if name != "return":
                raise ToolDefinitionError(
                    f"{where}: the annotation {_name_of(annotation)} of the parameter {name!r} cannot be read: {error}"
                ) from None
            _hint(where, f"{_name_of(annotation)}, which cannot be read: {error}")
    return hints


def _name_of(annotation: Annotation) -> str:
    return annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)


def _hint(where: str, why: str) -> None:
    words = f"{where} has no schema of its result, so results are not validated: it returns {why}"
    warnings.warn(words, stacklevel=6)


def docstring_text(documented: object) -> str:
    """Return a docstring's text, without its parameters."""
    found = docstring_parser.parse(inspect.getdoc(documented) or "")
    return "\n".join(filter(None, (found.short_description, found.long_description)))


def meta_properties(options: JsonObject) -> JsonObject:
    """Return the options of `@tool` as meta-properties of a definition."""
    undo, mapping = options.pop("undo", None), options.pop("undo_params", None)
    if undo is None and mapping is not None:
        raise ToolDefinitionError(f"undo_params={clip(repr(mapping), 60)}: name the tool that they are for, as undo=…")
    if undo is not None:
        options["undo"] = as_undo(undo, mapping)
    return {
        f"_{_CAMEL.get(key, key)}": value for key, value in options.items() if value is not None and value is not False
    }


def open_tool(
    definition: JsonObject, function: Callable[..., Any], *, context_parameter: str | None = None
) -> ToolFunction:
    """Return a tool for a foreign definition, with an async function that takes every parameter that it allows.

    `context_parameter`: the name of the function's parameter for its `ToolContext`. Raises `ToolDefinitionError`.
    """
    name = str(definition.get("name"))
    parse_tool(definition, activities=[name])
    arguments = create_model(f"{name}_arguments", __config__=ConfigDict(extra="allow"))
    return ToolFunction(definition, function, arguments, None, context_parameter, True)


_CAMEL: Final = {"output_path": "outputPath", "task_queue": "taskQueue", "queue_timeout": "queueTimeout"}


def plain_schema(schema: SchemaPart) -> SchemaPart:
    """Return a schema without the titles that pydantic makes from names, which only cost tokens.

    Patterns that cannot be checked in linear time (a `Decimal` has one) are removed too: the function's own types check
    again.
    """
    if isinstance(schema, list):
        return [plain_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: plain_schema(child) for name, child in value.items()}
        if key in ("properties", "$defs")
        else plain_schema(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
        and not (key == "pattern" and isinstance(value, str) and pattern_problem(value))
    }
