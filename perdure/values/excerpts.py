"""Excerpts: what a model is shown of a result, in feedback, in turns, in the state and in a transcript (R10.18).

Images and other base64 are described, and of more than `MAX_RESULT` characters the beginning is shown, with a line that says how to
read the rest. The value itself stays whole: a reference passes on all of it.
"""

from __future__ import annotations

from typing import Final

from perdure.errors import RunError
from perdure.values.jsons import Json, JsonObject, dumps
from perdure.values.limits import MAX_RESULT, said
from perdure.values.limits.sizes import preview
from perdure.values.media import beginning_without_media, first_without_media, without_media

REST: Final = "; the rest: recall]"
"""How a text ends that a transcript has cut."""
PAGE: Final = 12_000
"""Characters of a page of `recall`: somewhat less than a result may have."""
_PAGE_AS_JSON: Final = MAX_RESULT - 1_000
"""Characters that its JSON may have: what is recalled is not cut again."""


def cut_text(text: str, most: int, whole: str) -> str:
    """Return the text, if it has at most `most` characters; else its beginning, how much the `whole` has, and how to read that."""
    return text if len(text) <= most else f"{text[:most]}… [{whole}{REST}"


def result_text(value: Json, size: int, most: int = MAX_RESULT, *, name: str = "") -> str:
    """Return a result as text: a text as it is, any other value as JSON, without images and other base64.

    `size` is what it has in bytes. Of more than `most` characters the beginning is kept, with how many there are, and the `name` under
    which `recall` reads the rest.
    """
    return _read(value, size, most, name)[0]


def excerpt(value: Json, size: int, name: str) -> tuple[Json, bool]:
    """Return the value as a model is shown it, and whether it was cut: the same value without base64, or the text of its beginning."""
    if size <= MAX_RESULT:
        return without_media(value), False
    text, is_cut = _read(value, size, MAX_RESULT, name)
    if is_cut or isinstance(value, str):
        return text, is_cut
    return first_without_media(value, 4 * MAX_RESULT)[0], False


def _read(value: Json, size: int, most: int, name: str) -> tuple[str, bool]:
    if isinstance(value, str):
        text, is_whole = beginning_without_media(value, most)
    elif size <= 4 * most:
        text, is_whole = dumps(without_media(value)), True
    else:  # what is not shown is not looked at (R18.5)
        part, is_whole = first_without_media(value, 4 * most)
        text = dumps(part) if is_whole else preview(part, most + 1)
    if is_whole and len(text) <= most:
        return text, False
    whole = f"{len(value):,} characters" if isinstance(value, str) else _length(text, size, most)
    rest = f"; the rest: recall {name}]" if name else REST
    return f"{text[:most]}… [{whole}{rest}", True


def _length(text: str, size: int, most: int) -> str:
    return f"{len(text):,} characters" if size <= 4 * most else said(size)


def page_of(what: str, text: str, page: int) -> JsonObject:
    """Return `{"what", "page", "pages", "text"}`. Raises `RunError` where there is no such page."""
    ends = [0]
    while ends[-1] < len(text) or len(ends) == 1:
        length = PAGE
        while len(as_json := dumps(text[ends[-1] : ends[-1] + length])) > _PAGE_AS_JSON:
            length = length * _PAGE_AS_JSON // len(as_json)
        ends.append(min(len(text), ends[-1] + length))
    if page >= len(ends):
        raise RunError(f"{what} has {len(ends) - 1} pages")
    return {"what": what, "page": page, "pages": len(ends) - 1, "text": text[ends[page - 1] : ends[page]]}
