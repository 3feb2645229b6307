"""What became of a call that was offered to a person (section 7, section 11)."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer
from pydantic.alias_generators import to_camel

Kind: TypeAlias = Literal["approve", "reject", "edit", "replace", "answer"]
"""What a person decides (R7.2)."""


class Approval(BaseModel):
    """What became of a call that was offered, as `run --json` prints it (section 11)."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    requested_at: str
    """ISO 8601, UTC."""
    decision: Kind | Literal["timeout", "dropped"] | None = None
    """`None`: it still waits. `dropped`: nobody has decided, and the call does not run any more."""
    by: str = ""
    """Who decided, as they said."""
    reason: str = ""
    via: str = ""
    """By which way the decision came, where that was said; not printed where it was not."""

    @model_serializer(mode="wrap")
    def _without_nothing(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        plain: dict[str, Any] = handler(self)
        return plain if self.via else {key: value for key, value in plain.items() if key != "via"}


def again(before: Approval | None, time: str) -> Approval:
    """That of a call that is offered now. By which way the plan that it is part of was approved stays known until it is decided itself."""
    return Approval(requested_at=time, via=before.via if before is not None else "")
