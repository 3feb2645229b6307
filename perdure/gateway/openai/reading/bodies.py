"""Reading a body key by key: each is honoured, or means nothing here, or is refused in one line; none is passed over (R17.2)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from perdure.gateway.openai.errors import invalid, refused, unsupported
from perdure.values.jsons import Json, JsonObject, shorten
from perdure.values.problems import close_names


class Body:
    """A request's JSON. Each method reads one key and raises `HttpError` (400), naming it, for a value that is none; `null` is left out."""

    def __init__(self, body: JsonObject) -> None:
        self.json = body

    def check(
        self, honoured: Collection[str], hints: Collection[str], neutral: dict[str, tuple[str, list[Json]]]
    ) -> None:
        """Refuses every key that is neither `honoured` nor a hint without effect, nor has one of the values that ask for nothing.

        `neutral`: key → why other values than these are not supported.
        """
        for name, value in self.json.items():
            if value is None or name in honoured or name in hints:
                continue
            if name not in neutral:
                near = close_names(name, [*honoured, *hints, *neutral])
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise refused(f"unknown parameter: {shorten(name, 60)}{hint}", name[:100], "unknown_parameter")
            why, values = neutral[name]
            if value not in values or (isinstance(value, bool) and not any(value is each for each in values)):
                raise unsupported(name, why)

    def get(self, name: str) -> Any:
        return self.json.get(name)

    def text(self, name: str) -> str | None:
        found: str | None = self._of(name, str, "a string")
        return found

    def flag(self, name: str, default: bool = False) -> bool:
        found = self._of(name, bool, "true or false")
        return default if found is None else bool(found)

    def number(self, name: str, least: float, most: float) -> float | None:
        value = self.json.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise invalid(name, f"a number from {least:g} to {most:g}")
        return value

    def count(self, name: str) -> int | None:
        value = self.json.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**9:
            raise invalid(name, "a whole number from 1 on")
        return value

    def object(self, name: str) -> JsonObject:
        found = self._of(name, dict, "an object")
        return {} if found is None else found

    def list(self, name: str) -> list[Any]:
        found = self._of(name, list, "a list")
        return [] if found is None else found

    def metadata(self) -> dict[str, str]:
        """At most 16 pairs of texts."""
        found = self.object("metadata")
        fits = all(isinstance(value, str) and len(value) <= 512 and len(key) <= 64 for key, value in found.items())
        if len(found) > 16 or not fits:
            raise invalid("metadata", "at most 16 pairs of texts, of 64 and 512 characters at most")
        return found

    def _of(self, name: str, kind: type, wanted: str) -> Any:
        value = self.json.get(name)
        if value is not None and not isinstance(value, kind):
            raise invalid(name, wanted)
        return value
