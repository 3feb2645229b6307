"""What has changed between two values, as a JSON Patch (RFC 6902): pure."""

from __future__ import annotations

from perdure.values.jsons import Json, JsonObject


def patch(before: Json, after: Json, at: str = "") -> list[JsonObject]:
    """The operations that make `after` of `before`; whatever is no object is replaced whole."""
    if same(before, after):
        return []
    if not isinstance(before, dict) or not isinstance(after, dict):
        return [{"op": "replace", "path": at, "value": after}]
    made: list[JsonObject] = [{"op": "remove", "path": _at(at, key)} for key in before if key not in after]
    for key, value in after.items():
        if key in before:
            made += patch(before[key], value, _at(at, key))
        else:
            made.append({"op": "add", "path": _at(at, key), "value": value})
    return made


def same(one: Json, other: Json) -> bool:
    """Whether they are one JSON value: Python holds `1` and `true` to be the same."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def _at(path: str, key: str) -> str:
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
