"""What a call's end writes to the state (R4.3, R4.5)."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.errors import CallError, StateError
from perdure.plan.calls import Call
from perdure.values.instances import without_instance
from perdure.values.jsons import Json
from perdure.values.paths import UNKNOWN
from perdure.values.references import Path
from perdure.values.schemas import Schema
from perdure.values.state import State, Write


def write(call: Call, paths: Iterable[Path], value: Json, time: str, *, state: State, schema: Schema | None) -> None:
    """All of the paths or none; a value that the state, or its schema, cannot take makes the call invalid (R4.5)."""
    writes = [Write(path=path, value=value, method=call.method, call=call.id, time=time) for path in paths]
    try:
        for each in writes:
            _check(each, state, schema)
        for each in writes:
            state.append(each)
            call.writes.append(each)
    except StateError as error:
        call.status, call.error = "invalid", CallError("invalid_write", str(error))


def _check(write: Write, state: State, schema: Schema | None) -> None:
    value = state.preview(write)
    if schema is None or value is UNKNOWN:
        return
    for each in schema.at(without_instance(write.path)) or ():
        if problems := each.errors(value, root=("state", *write.path)):
            raise StateError(f"the result breaks the state's schema: {'; '.join(problems[:3])}")
