"""What a Temporal user has already, as the code of a tool: an activity, a workflow, a Nexus operation (R13.6)."""

from __future__ import annotations

import re
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from perdure.values.jsons import Json, JsonObject

_PLACE: Final = re.compile(r"\{(\w+)\}")


class Existing(BaseModel):
    """What a call of the tool is, in place of the engine's own activity. Only the worker's code says it, no agent file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["activity", "workflow", "operation"]
    name: str = Field(min_length=1)
    """The activity's or workflow's type, the operation's name."""
    arguments: list[str] | None = None
    """Parameters in the order in which they are given; `None`: all of them together are the one argument."""
    defaults: JsonObject = Field(default_factory=dict)
    """Of parameters that a call may leave out and one behind them does not."""
    id: str | None = None
    """Of a workflow: `order-{number}` with the call's parameters; `None`: the run's and the call's."""
    endpoint: str = ""
    """Of an operation."""
    service: str = ""

    @property
    def title(self) -> str:
        """For messages, and for whoever approves."""
        return f"the {'Nexus operation' if self.kind == 'operation' else self.kind} {self.name}"

    @property
    def waits(self) -> bool:
        """Whether its time is waiting, as a delegate's is, and not the run's own work (R9.5): it may take days."""
        return self.kind != "activity"

    def given(self, params: JsonObject) -> list[Any]:
        """What it is given for a call's parameters; those at the end that were left out it fills in itself."""
        if self.arguments is None:
            return [params]
        last = max((index for index, name in enumerate(self.arguments) if name in params), default=-1)
        return [params.get(name, self.defaults.get(name)) for name in self.arguments[: last + 1]]

    def workflow_id(self, params: JsonObject, default: str) -> str:
        """The child's id."""
        if self.id is None:
            return default
        return _PLACE.sub(lambda found: _word(params.get(found[1], found[0])), self.id)


def _word(value: Json) -> str:
    return value if isinstance(value, str) else str(value)
