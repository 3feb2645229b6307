"""Forms for decisions: parameters as fields, and fields as a decision."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from perdure.client.run import Run
from perdure.client.selection import WaitingRequest
from perdure.errors import JsonError, clip
from perdure.gateway.callers import Caller
from perdure.runs.diagrams import Drawing, draw_run, to_svg
from perdure.runs.wire import RunView
from perdure.values.json import Json, JsonObject, dumps, loads
from perdure.values.templates import changes

FieldKind: TypeAlias = Literal["text", "long", "integer", "number", "boolean", "choice", "json"]
PREFIX: Final = "p:"
"""The prefix of a parameter's field name: it prevents a clash with the form's own fields."""
_LONG: Final = 80


class FormError(Exception):
    """A field that cannot be read; `str()` is one line."""


@dataclass(frozen=True)
class Field:
    name: str
    kind: FieldKind
    text: str
    """The field's text; for a choice the chosen option."""
    required: bool
    description: str = ""
    options: Sequence[str] = ()
    """The options of a choice, as JSON: they need not be texts."""
    given: bool = False
    value: Json = None
    """The value that the form shows. An unchanged field keeps exactly this value."""


def make_fields(schema: JsonObject, params: Mapping[str, Json]) -> list[Field]:
    """Return one field for each parameter of the schema, and for each other parameter of the call."""
    properties: JsonObject = schema.get("properties", {})
    required = schema.get("required", [])
    return [
        _field(name, properties.get(name, {}), name in params, params.get(name), required=name in required)
        for name in [*properties, *(name for name in params if name not in properties)]
    ]


def _field(name: str, schema: Any, given: bool, value: Json, *, required: bool) -> Field:
    schema = schema if isinstance(schema, dict) else {}
    description = str(schema.get("description", ""))
    kind = _kind(schema, given, value)
    if kind == "choice":
        options = [dumps(option) for option in schema["enum"]]
        return Field(name, kind, dumps(value) if given else "", required, description, options, given, value)
    if not given:
        text = ""
    elif isinstance(value, str) and kind in ("text", "long"):
        text = value
    else:
        text = dumps(value, indent=2 if kind == "json" and isinstance(value, dict | list) else None)
    return Field(name, kind, text, required, description, given=given, value=value)


def _kind(schema: JsonObject, given: bool, value: Json) -> FieldKind:
    """Return the kind of field: JSON if the schema is not a simple type, or the value does not match it."""
    if isinstance(schema.get("enum"), list):
        return "choice"
    kind = schema.get("type")
    text = value if given else ""
    if kind == "string" and isinstance(text, str):
        return "long" if len(text) > _LONG or "\n" in text else "text"
    if kind == "boolean" and isinstance(value if given else True, bool):
        return "boolean"
    if kind in ("integer", "number") and (
        not given or (isinstance(value, int | float) and not isinstance(value, bool))
    ):
        return "integer" if kind == "integer" else "number"
    return "json"


def read_fields(fields: Sequence[Field], form: Mapping[str, str]) -> JsonObject:
    """Return the parameters of the form, without empty fields that are not required. Raises `FormError`."""
    params: JsonObject = {}
    for field in fields:
        # A browser always sends line ends as CR LF.
        text = _plain(form.get(PREFIX + field.name, field.text))
        if text == _plain(field.text):
            if field.given:
                params[field.name] = field.value
        elif text == "" and (not field.required or field.kind not in ("text", "long")):
            continue
        elif field.kind in ("text", "long"):
            params[field.name] = text
        else:
            try:
                params[field.name] = loads(text, source=field.name)
            except JsonError as error:
                raise FormError(f"{error}; this field needs JSON") from None
    return params


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n")


Find: TypeAlias = Callable[[Caller, str], Awaitable[Run]]
"""Finds a run that the caller may see, by its id. Raises `RunNotFoundError` for an unknown run, and for another tenant's."""

ACTIONS: Final = ("approve", "remember", "endorse", "answer", "replace", "reject")
"""The values of a form's buttons."""
DECIDED: Final = {
    "approve": "approved",
    "reject": "rejected",
    "edit": "approved with changes",
    "replace": "replaced",
    "answer": "answered",
}


async def decide(run: Run, form: Mapping[str, str], *, caller: Caller | None) -> str:
    """Send the decision to the run. Return its effect in words. `caller`: the person who decides; `None`: the form's
    `by` names them.

    Raises `FormError` and `JsonError` for invalid fields, `RunError` and `ServerError` as `Run.decide` does.
    """
    if lacking := [key for key in ("run", "call", "action") if not form.get(key)]:
        raise FormError(f"the form lacks {', '.join(lacking)}: reload the page and try again")
    if form["action"] not in ACTIONS:  # an unknown action must not approve anything
        raise FormError(
            f"the action must be {', '.join(ACTIONS[:-1])} or {ACTIONS[-1]}, not {clip(form['action'], 40)!r}"
        )
    decision = await _decision(run, form)
    done = await run.decide(decision if caller is None else caller.signed(decision))
    needs = f"; it needs {done['missing']}" if "missing" in done else ""
    return f"{form['run']} {done['call']}: {DECIDED[done['decision']]}{needs}"


async def waiting_request(run: Run, call: str) -> WaitingRequest | None:
    """Return the whole approval request of a call; `None` if the call does not wait."""
    return next((WaitingRequest(run.id, request) for request in await run.waiting(call)), None)


async def _decision(run: Run, form: Mapping[str, str]) -> JsonObject:
    decision: JsonObject = {key: form[key] for key in ("call", "digest", "by", "reason") if form.get(key)}
    if form["action"] == "answer":
        answer: Json = form.get("answer", "")
        if "answer" not in form:  # the form of an MCP server has its own fields
            chosen = await waiting_request(run, form["call"])
            answer = {} if chosen is None else read_fields(_all_fields(chosen), form)
        return decision | {"decision": "answer", "answer": answer}
    if form["action"] == "reject":
        return decision | {"decision": "reject"}
    if form["action"] == "replace":
        return decision | {"decision": "replace", "with": loads(form.get("with", ""), source="the other call")}
    if form["action"] == "endorse":
        decision["endorse"] = True
    if form["action"] == "remember":
        decision["remember"] = True
    chosen = await waiting_request(run, form["call"])
    if chosen is None:
        return decision | {"decision": "approve"}  # the run rejects the decision with the reason
    if chosen.request.calls is not None:
        calls = loads(form.get("calls", dumps(chosen.request.calls)), source="the calls")
        return decision | (
            {"decision": "approve"} if calls == chosen.request.calls else {"decision": "edit", "calls": calls}
        )
    params = read_fields(_all_fields(chosen), form)
    changed = changes(chosen.request.params, params)
    return decision | ({"decision": "edit", "params": changed} if changed else {"decision": "approve"})


def _all_fields(chosen: WaitingRequest) -> list[Field]:
    """Return the fields of a call's parameters, or of an MCP server's form, with its defaults."""
    request = chosen.request
    if request.form is None:
        return make_fields(request.parameters, request.params)
    properties = request.form.get("properties", {})
    return make_fields(request.form, {name: each["default"] for name, each in properties.items() if "default" in each})


def fields_of(chosen: WaitingRequest | None, typed: Mapping[str, str] | None) -> list[Field]:
    """Return the form's fields, with the typed texts of a rejected form."""
    if chosen is None or chosen.request.calls is not None:
        return []
    fields = _all_fields(chosen)
    if typed is None:
        return fields
    return [replace(each, text=typed.get(PREFIX + each.name, each.text)) for each in fields]


def request_drawing(view: RunView, call: str) -> str:
    """Return the plan of the call's Request as SVG, with the call highlighted."""
    number = call.split(".")[0]
    whole = draw_run(view)
    nodes = [node for node in whole.nodes if node.id.split(".")[0] == number]
    ids = {node.id for node in nodes}
    edges = [edge for edge in whole.edges if edge[0] in ids and edge[1] in ids]
    return to_svg(Drawing(nodes, edges), lit=[call])
