"""What everything that crosses a boundary has in common: camelCase JSON."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from perdure.values.jsons import JsonObject


class Unread(str):
    """In the place of an argument that could not be read: why not. Whoever takes anything that is sent takes this for text that is wrong."""

    waits = False
    """A worker with other keys may be able to read it."""


class Wire(BaseModel):
    """What crosses a boundary: camelCase JSON, and no key that is not known."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")

    def as_json(self) -> JsonObject:
        return self.model_dump(mode="json", by_alias=True)


class ValuePage(Wire):
    """A part of a value's JSON, as a run answers it."""

    text: str
    next: int | None = None
    """The offset, in characters, of the next page; `None`: this was the last."""
    earlier: bool = False
    """It is not known whole here: the execution is to be asked that this one went on from."""
