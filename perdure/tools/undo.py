"""The undo of a tool: the tool that undoes its effect, and the origin of that tool's parameters in the call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, field_validator

from perdure.errors import PerdureError, ToolDefinitionError
from perdure.values.json import Json, JsonObject, shorten
from perdure.values.references import MISSING, Missing, Reference, get
from perdure.values.schemas import Schema
from perdure.values.templates import parse_template

PARAMS: Final = "params"
RESULT: Final = "result"
"""Kinds of the references in `Undo.params`."""


class Undo(BaseModel):
    """The tool that undoes an effect."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tool: str = Field(min_length=1, max_length=200)
    """The undo tool's name."""
    params: dict[str, Any] | None = None  # pydantic cannot read the recursive `Json`
    """Its parameters, with references such as `†result.id` and `†params.city`; `None`: by name, from the call's parameters, then from its result, then from the defaults of omitted parameters."""

    @field_validator("params")
    @classmethod
    def _references(cls, params: JsonObject | None) -> JsonObject | None:
        template, malformed = parse_template(params or {})
        if malformed:
            raise ValueError(f"params: {malformed[0].error}")
        for reference in template.references():
            if reference.kind not in (PARAMS, RESULT):
                raise ValueError(f"params: {reference} is not known in an undo. Use †params.NAME or †result.NAME")
        return params


def undo_problem(undo: Undo, schema: JsonObject, output: Json, target: JsonObject) -> str | None:
    """Return the reason why calls of a tool cannot be undone in this way; `None` if they can.

    `schema`: of the tool's parameters. `output`: the schema of its result, `None` if it is unknown. `target`: the
    schema of the undo tool's parameters.
    """
    known: JsonObject = target.get("properties") or {}
    required = [name for name in target.get("required") or () if isinstance(name, str)]
    own: JsonObject = schema.get("properties") or {}
    if undo.params is not None:
        if (unknown := undo.params.keys() - known.keys()) and target.get("additionalProperties") is False:
            return f"{undo.tool} has no parameter {min(unknown)!r}"
        if missing := [name for name in required if name not in undo.params]:
            return f"{undo.tool} needs {missing[0]!r}: map it, such as {{{missing[0]!r}: '†result.{missing[0]}'}}"
        for reference in parse_template(undo.params)[0].references():
            if reference.kind == PARAMS and reference.path and str(reference.path[0]) not in own and own:
                return f"{reference} is not a parameter of the tool: it has {', '.join(own)}"
        return None
    properties = output.get("properties") if isinstance(output, dict) else None
    fields: JsonObject = properties if isinstance(properties, dict) else {}
    if not isinstance(output, dict) or not ("properties" in output or output.get("type", "object") != "object"):
        return None  # it may have any field
    for name in required:
        if name not in own and name not in fields:
            return (
                f"{undo.tool} needs {name!r}, which is neither a parameter nor a field of the result: "
                f"map it, such as {{{name!r}: '†result'}}"
            )
    return None


def accepted_defaults(undo: Undo, target: JsonObject, defaults: JsonObject) -> JsonObject:
    """Return the defaults of a tool's parameters that its undo tool accepts. `null` for a string is not accepted.

    A default inside another value, such as `†params` or a text with `{†params.city}`, is not checked.
    `target`: the schema of the undo tool's parameters.
    """
    properties = target.get("properties") or {}
    definitions: JsonObject = {key: target[key] for key in ("$defs", "definitions") if key in target}

    def is_accepted(name: str, value: Json) -> bool:
        receivers = (
            [name] if undo.params is None else [key for key, at in undo.params.items() if at == f"†params.{name}"]
        )
        known: JsonObject = {key: properties[key] for key in receivers if key in properties}
        schema = Schema({**definitions, "type": "object", "properties": known})
        return schema.fits(dict.fromkeys(known, value)) is not False

    return {name: value for name, value in defaults.items() if is_accepted(name, value)}


def complete_params(undo: Undo, defaults: JsonObject, params: JsonObject, result: Json | Missing) -> JsonObject:
    """Return a call's parameters as its undo reads them, by name or as `†params.…`: with the defaults of omitted ones.

    Without `undo.params`, a field of the result comes before a default, because the result reports the effect. So a
    result that cannot be used leaves all defaults out.
    """
    if undo.params is None and result is MISSING:
        return params
    fields = result if undo.params is None and isinstance(result, dict) else {}
    return {**{name: value for name, value in defaults.items() if name not in fields}, **params}


def undo_params(
    undo: Undo, target: JsonObject, params: JsonObject, result: Json | Missing
) -> tuple[JsonObject, str | None]:
    """Return the undo tool's parameters for a call with these parameters and this result, and the reason if there are
    none. If the result cannot be used (`MISSING`), each parameter that could come from it is such a reason.

    `target`: the schema of the undo tool's parameters.
    """
    unusable = f"{undo.tool} needs its result, which cannot be used"
    required = [name for name in target.get("required") or () if isinstance(name, str)]
    made: JsonObject = {}
    if undo.params is not None:
        values: dict[str, Json | Missing] = {PARAMS: params, RESULT: result}
        for name, written in undo.params.items():
            template, _ = parse_template(written)
            lost = [ref for ref in template.references() if get(values[ref.kind], ref.path) is MISSING]
            if result is MISSING and any(ref.kind == RESULT for ref in lost):
                return {}, unusable
            if lost and name in required:
                return {}, f"{lost[0]} does not exist, which {undo.tool} needs as {name!r}"
            if not lost:
                try:
                    made[name] = template.resolve(_lookup(values))
                except PerdureError as error:
                    return {}, f"the parameter {name!r} of {undo.tool} cannot be made: {error}"
        return made, None
    fields: JsonObject = result if isinstance(result, dict) else {}
    for name in target.get("properties") or {}:
        if name in params:
            made[name] = params[name]
        elif name in fields:
            made[name] = fields[name]
        elif result is MISSING:
            return {}, unusable
        elif name in required:
            return (
                {},
                f"{undo.tool} needs {name!r}, and neither the parameters nor the result {shorten(result, 60)} have it",
            )
    return made, None


def read_by(undo: Undo, name: str, params: Iterable[str]) -> tuple[list[str], bool]:
    """Return the parameters of the call that a parameter of the undo tool comes from, and whether it also comes from
    the result.
    """
    if undo.params is None:
        return ([name], False) if name in set(params) else ([], True)
    references = list(parse_template(undo.params.get(name))[0].references())
    named = [str(each.path[0]) for each in references if each.kind == PARAMS and each.path]
    whole = any(each.kind == PARAMS and not each.path for each in references)
    return (list(params) if whole else named), any(each.kind == RESULT for each in references)


def _lookup(values: JsonObject) -> Callable[[Reference], Json | Missing]:
    return lambda reference: get(values[reference.kind], reference.path)


def as_undo(undo: object, params: JsonObject | None = None) -> Json:
    """Return the meta-property of an option `undo`: a decorated function, or a tool's name. Raises `ToolDefinitionError` for neither."""
    found = getattr(undo, "__perdure_tool__", undo)
    name = found if isinstance(found, str) else getattr(found, "name", None)
    if not isinstance(name, str) or not name.isprintable() or name.strip() != name or not name:
        raise ToolDefinitionError(f"undo={shorten(repr(undo), 60)}: expected a function with @tool, or a tool's name")
    return name if params is None else {"tool": name, "params": params}
