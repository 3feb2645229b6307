"""Values as people see and send them: text is text, and what is a reference is marked as one, `{"_ref": "†state.x"}` (R7.2).

`marked` is what a person is shown of something written with references, `written` what they send in the engine's own writing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final

from perdure.errors import ReferenceSyntaxError
from perdure.values.jsons import Json, JsonObject, dumps, shorten
from perdure.values.references import DAGGER
from perdure.values.templates import as_data, has_reference, is_formula, looks_computed, parse_template

REF: Final = "_ref"
DATA: Final = "_data"
"""In a plan, `{"_data": {"_ref": "…"}}` stands for an object that only looks like a mark."""


def marked(value: Json) -> Json:
    """Something written with references, with each string that holds any marked; every other string stands for itself.

    An object that is data and looks like a mark, or like the wrapping of one, is wrapped: `{"_data": {"_ref": "…"}}`. A formula,
    `{"_expr": "…"}`, is a mark of its own.
    """
    if is_formula(value):
        return value
    if isinstance(value, dict):
        if looks_computed(value):
            return {DATA: parse_template(value)[0].resolve(_nothing)}
        shown = {key: marked(item) for key, item in value.items()}
        return {DATA: shown} if _is_mark(shown) or (len(shown) == 1 and DATA in shown) else shown
    if isinstance(value, list):
        return [marked(item) for item in value]
    if not isinstance(value, str) or DAGGER not in value:
        return value
    template, malformed = parse_template(value)
    if malformed:
        return value
    return {REF: value} if template.sites else template.resolve(_nothing)


def _nothing(_: object) -> Json:
    return None


def _is_mark(value: JsonObject) -> bool:
    return len(value) == 1 and isinstance(value.get(REF), str)


def written(value: Json, held: Collection[str] | None = None) -> Json:
    """What a person sends, as it is written where references are read: only what they mark is one.

    Of a plan, which they were shown as `marked` writes it, everything comes back as it was. Of a call they were shown values:
    `held` are then the texts of marks that stood in these; whoever wrote that data meant nothing by them, so they stay data.
    Raises `ReferenceSyntaxError` for a mark without a reference in it.
    """
    if isinstance(value, list):
        return [written(item, held) for item in value]
    if not isinstance(value, dict):
        return as_data(value)
    if held is None and len(value) == 1 and isinstance(value.get(DATA), dict):
        data = value[DATA]
        return as_data(data) if looks_computed(data) else {key: written(item) for key, item in data.items()}
    if looks_computed(value):
        return value if held is None else as_data(value)
    text = value.get(REF)
    if not isinstance(text, str) or not _is_mark(value) or text in (held or ()):
        return {key: written(item, held) for key, item in value.items()}
    if not has_reference(text):
        raise ReferenceSyntaxError(f'{{"{REF}": {shorten(text, 60)}}} holds no reference such as †state.name')
    return text


def held_marks(value: Json) -> Iterator[str]:
    """The texts of what looks like a mark in a value that is data."""
    if isinstance(value, list):
        for item in value:
            yield from held_marks(item)
    elif isinstance(value, dict):
        if _is_mark(value):
            yield str(value[REF])
        for item in value.values():
            yield from held_marks(item)


def marked_call(call: Json) -> Json:
    """A call as written, with the references in its parameters marked. Paths and conditions are what their keys say already."""
    return _each_parameter(call, marked)


def written_call(call: Json, held: Collection[str] | None = None) -> Json:
    """A call as a person writes it, back again. Raises `ReferenceSyntaxError`."""
    return _each_parameter(call, lambda value: written(value, held))


def _each_parameter(call: Json, change: Callable[[Json], Json]) -> Json:
    if not isinstance(call, dict):
        return call
    return {
        key: [_each_parameter(inner, change) for inner in value]
        if key == "_body" and isinstance(value, list)
        else change(value)
        if _is_read(key, value)
        else value
        for key, value in call.items()
    }


def _is_read(key: str, value: Json) -> bool:
    """Whether references are read there: of the meta-properties only in the items of `_each`, or where it is marked."""
    return not key.startswith("_") or (key == "_each" and not isinstance(value, str))


def changes(offered: JsonObject, wanted: JsonObject) -> JsonObject:
    """Only the parameters that differ, as an edit sends them; `null` for one that is not wanted any more."""
    gone = {key: None for key in offered if key not in wanted}
    return gone | {
        key: value for key, value in wanted.items() if key not in offered or _text(value) != _text(offered[key])
    }


def _text(value: Json) -> str:
    """What is the same for the same JSON, which Python's equality is not: `1` and `true`."""
    return dumps(value, sort_keys=True)
