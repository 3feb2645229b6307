"""What a call looked at, and what is kept of one between Requests (R15.3, R15.4)."""

from __future__ import annotations

from typing import Final

from perdure.errors import ReferenceSyntaxError
from perdure.people.digests import digest
from perdure.plan.calls import Call
from perdure.values.jsons import JsonObject
from perdure.values.references import Path, Reference, parse_expression

_PLACED: Final = frozenset({"_id", "_after", "_outputPath", "_outputMethod"})
"""What says where a call stands in its plan, and not what it does."""


def says_values(call: Call) -> bool:
    """Whether what is said of its end, or of a person's change to it, may hold values that it was called with."""
    return call.error is not None or bool(call.notes) or call.approval is not None


def looked_at(call: Call) -> tuple[list[Reference], list[Path]]:
    """What it and all inside it read, and where they write."""
    read: list[Reference] = []
    paths: list[Path] = []
    for each in call.written():
        templates = [each.condition, each.template, each.soft]
        if (loop := each.loop) is not None:
            templates += [loop.each, *(until.template for until in (loop.until, loop.before) if until is not None)]
            paths += loop.writes
        read += [reference for template in templates for reference in template.references()]
        paths += [path for alternative in each.paths for path in alternative]
    return read, paths


def reference_of(text: str) -> Reference:
    try:
        found = parse_expression(text)
    except ReferenceSyntaxError:
        return Reference("")
    return found if isinstance(found, Reference) else Reference("")


def print_of(raw: JsonObject) -> str:
    """Of what a call does. Where it stands in its plan is left out; a condition, or what a loop makes, is not."""
    return digest({key: value for key, value in raw.items() if key not in _PLACED})
