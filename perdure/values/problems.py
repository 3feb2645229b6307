"""Problems of a document: each with its place, its reason, and the accepted form."""

from __future__ import annotations

import difflib
import json
import re
import types
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import ErrorDetails

from perdure.errors import Problem
from perdure.values.json import Json, PathPart, escape_surrogates, json_path, shorten, without_comments

ProblemPath: TypeAlias = tuple[PathPart, ...]

_MUST: Final = {
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    **dict.fromkeys(("list_type", "sequence_str", "tuple_type", "set_type", "frozen_set_type"), "must be a list"),
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
}
"""JSON's terms for Pydantic's kinds of errors."""
MOST: Final = 20
"""Maximum of reported problems of one document: each costs a search for close names."""
_NAMES: Final = 12
"""Maximum of valid names that are listed if none is close."""


def close_names(name: str, names: Iterable[str], limit: int = 5) -> list[str]:
    """Return the names most similar to an unknown one; all of them if they are few."""
    known = sorted(names)
    return difflib.get_close_matches(name, known, n=limit, cutoff=0.4) or known[:limit]


def suggest_name(name: str, names: Iterable[str]) -> str | None:
    """Return the name that was probably meant by an unknown one."""
    return next(iter(difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.6)), None)


def none_of(name: str, what: str, names: Sequence[str]) -> str:
    """Return `'dialct' is not a known key; did you mean 'dialect'?`, or the list of names."""
    near = suggest_name(name, names)
    there = f"; use one of: {', '.join(names[:_NAMES])}{' …' if len(names) > _NAMES else ''}" if names else ""
    return f"{shorten(name, 60)} is not a known {what}" + (f"; did you mean {shorten(near, 60)}?" if near else there)


def accepts(form: str) -> WrapValidator:
    """Return a validator of a text with a pattern: its error names the accepted form in place of the pattern.

    ```python
    Annotated[str, Field(pattern=r"^[^.]+[.][^.]+$"), accepts("TOOL.PARAMETER, such as refund.euros")]
    ```
    """

    def check(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:  # it is not validated yet
        try:
            return validate(value)
        except ValidationError as error:
            if [each["type"] for each in error.errors()] != ["string_pattern_mismatch"]:
                raise
            raise ValueError(f"must be {form}, not {shorten(value, 60)}") from None

    return WrapValidator(check)


def problem_at(place: Sequence[PathPart], words: str) -> Problem:
    """Return a problem at a place of a document."""
    return Problem(tuple(place), escape_surrogates(json_path(place)), escape_surrogates(words))


def problems_of(
    error: ValidationError, document: Json = None, *, model: object = None, at: ProblemPath = (), skip: int = 0
) -> list[Problem]:
    """Return all problems of a pydantic error about the `document`, which has to be a `model` and is at the place `at`.

    `skip`: the number of first steps that are left out of its places. The errors of one value are one problem, for any
    number of allowed kinds. After `MOST` problems, one reports that there are more.
    """
    found: dict[ProblemPath, list[str]] = {}
    instead: set[ProblemPath] = set()
    for each in error.errors(include_url=False):
        missing = each["type"] == "missing"
        place = _place(each["loc"][skip:], document, missing=missing)
        if len(found) == MOST and place not in found:
            found[()] = [f"has more problems than these {MOST}"]
            break
        keys = _keys(_model_at(model, place[:-1], document)) if each["type"] == "extra_forbidden" else []
        if keys and (near := suggest_name(str(place[-1]), keys)):
            instead.add((*place[:-1], near))
        if each["type"] == "union_tag_not_found":
            keys = _tags(_model_at(model, place, document, chooses=False), each["ctx"]["discriminator"].strip("'"))
        words = _words(each, place, keys)
        if words not in found.setdefault(place, []):
            found[place].append(words)
    kept = {place: words for place, words in found.items() if place not in instead or words != ["is missing"]}
    return [problem_at((*at, *place), _either(words)) for place, words in kept.items()]


def _either(words: Sequence[str]) -> str:
    """Return the condition of a value with several kinds: `must be text or must be an object, not 5`."""
    return " or ".join([*(each.partition(", not ")[0] for each in words[:-1]), words[-1]])


def _place(steps: Sequence[PathPart], document: Json, *, missing: bool) -> ProblemPath:
    """Return the steps in the document, without the kinds of value that pydantic tried and names between them."""
    if document is None:
        return tuple(steps)
    place: list[PathPart] = []
    for number, step in enumerate(steps):
        last = missing and number == len(steps) - 1
        if last:
            place.append(step)
            document = None
        elif isinstance(document, dict) and step in document:
            place.append(step)
            document = document[str(step)]
        elif isinstance(document, list) and isinstance(step, int) and step < len(document):
            place.append(step)
            document = document[step]
    return tuple(place)


def _words(error: ErrorDetails, place: ProblemPath, keys: Sequence[str]) -> str:
    kind, found = error["type"], error["input"]
    if kind == "extra_forbidden":
        return none_of(str(place[-1]) if place else "it", "key", keys)
    if kind == "missing":
        return "is missing"
    if kind == "union_tag_not_found":
        return f"lacks {error['ctx']['discriminator']}" + (f": give one of {', '.join(keys)}" if keys else "")
    got = "" if isinstance(found, dict | list) and found else f", not {shorten(found, 60)}"
    if kind in _MUST:
        return _MUST[kind] + got + ("; leave it out for its default" if found is None else "")
    if kind == "literal_error":
        allowed = [word.strip("'") for word in error["ctx"]["expected"].replace(" or ", ", ").split(", ")]
        near = suggest_name(found, allowed) if isinstance(found, str) else None
        return f"must be {error['ctx']['expected']}{got}" + (f"; did you mean '{near}'?" if near else "")
    if kind == "union_tag_invalid":
        allowed = [word.strip("'") for word in error["ctx"]["expected_tags"].split(", ")]
        tag, name = error["ctx"]["tag"], error["ctx"]["discriminator"].strip("'")
        near = suggest_name(tag, allowed)
        hint = f"; did you mean {near!r}?" if near else ""
        return f"{name} {tag!r} is not one of {', '.join(allowed)}{hint}"
    if kind == "string_too_short" and found == "":
        return "must not be empty"
    message = str(error["msg"]).removeprefix("Value error, ")
    plain = message.replace("Input should be", "must be", 1)
    return plain if plain == message else plain + got


def _keys(model: object) -> list[str]:
    """Return the keys that an object of this model may have."""
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return []
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_at(model: object, place: ProblemPath, document: Json, *, chooses: bool = True) -> object:
    """Return the kind of the value at this place of a model's document. With `chooses`, one of several models."""
    model = _stripped(model, document)
    for number, step in enumerate(place, 1):
        if isinstance(model, type) and issubclass(model, BaseModel):
            model = next((f.annotation for n, f in model.model_fields.items() if step in (n, f.alias)), None)
        else:
            model = _inside(model)
        if isinstance(document, dict):
            document = document.get(str(step))
        else:
            document = document[step] if isinstance(document, list) and isinstance(step, int) else None
        if chooses or number < len(place):
            model = _stripped(model, document)
    return model


def _stripped(kind: object, value: Json) -> object:
    """Return the model of the value among its kinds; a list's, or a mapping's, kind is unchanged."""
    if get_origin(kind) is Annotated:
        return _stripped(get_args(kind)[0], value)
    if get_origin(kind) in (Union, types.UnionType):
        kinds = [_stripped(each, value) for each in get_args(kind)]
        found = [each for each in kinds if each not in (type(None), str)]
        return next((each for each in found if _fits_tags(each, value)), next(iter(found), None))
    return kind


def _fits_tags(kind: object, value: Json) -> bool:
    """Whether the model is the one that the value names by its fields with one text, such as `rule`."""
    if not (isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(value, dict)):
        return False
    tags = {
        name: get_args(f.annotation) for name, f in kind.model_fields.items() if get_origin(f.annotation) is Literal
    }
    return any(len(texts) == 1 and value.get(name) == texts[0] for name, texts in tags.items())


def _tags(kind: object, name: str) -> list[str]:
    """Return the texts of the field by which one of several models is chosen."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return list(get_args(kind.model_fields[name].annotation)) if name in kind.model_fields else []
    return [tag for each in get_args(kind) for tag in _tags(each, name)]


def _inside(kind: object) -> object:
    return get_args(kind)[-1] if get_args(kind) else None


def first_problem(error: ValidationError, document: Json = None, *, model: object = None) -> str:
    """Return a pydantic error's first problem as one line with its JSON path."""
    first = problems_of(error, document, model=model)[0]
    return f"{first.words} at {first.path}" if first.place else first.words


_BLANKS: Final = re.compile(r"[\s,:]*")
_DECODER: Final = json.JSONDecoder()


def line_of(text: str, place: Sequence[PathPart]) -> int:
    """Return the line, from 1, on which the value at the place, with its key, begins; for a missing value its parent's
    line.

    `text` is JSON, with comments or without.
    """
    plain = without_comments(text)
    at = found = _blanks(plain, 0)
    for step in place:
        inside = _step(plain, at, step)
        if inside is None:
            break
        found, at = inside
    return plain.count("\n", 0, found) + 1


def _step(text: str, at: int, step: PathPart) -> tuple[int, int] | None:
    """Return the beginning of a member of the object or list at `at`, and the beginning of its value."""
    if text[at : at + 1] not in ("{", "["):
        return None
    keyed = text[at] == "{"
    at, index = _blanks(text, at + 1), 0
    found = None
    while text[at] not in "}]":
        begin, name = at, index
        if keyed:
            name, at = _DECODER.raw_decode(text, at)
            at = _blanks(text, at)
        if name == step:
            found = begin, at  # the last of repeated keys counts
        _, at = _DECODER.raw_decode(text, at)
        at, index = _blanks(text, at), index + 1
    return found


def _blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return at if found is None else found.end()
