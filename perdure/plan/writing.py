"""Writing what a call gave to the state: all of an output path or none of it, within the state's schema (R4.3, R4.5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perdure.errors import StateError
from perdure.plan.calls import Call
from perdure.tools.tool import ASK_PERSON
from perdure.values.instances import scope_path, without_instance
from perdure.values.jsons import Json
from perdure.values.limits.steps import Checks
from perdure.values.paths import UNKNOWN
from perdure.values.references import Path
from perdure.values.schemas import Schema
from perdure.values.sources import NOWHERE, USER, Sources, join, tool_source
from perdure.values.state import State, Write


def write(
    call: Call,
    paths: Iterable[Path],
    value: Json,
    *,
    to: State,
    schema: Schema | None,
    time: str,
    checks: Checks,
    parts: Mapping[Path, Json] | None = None,
) -> str | None:
    """Write the value as the call does, and note it there; what is wrong where the state cannot take it.

    `parts`: what goes to paths of their own.
    """

    def check(write: Write, value: Json) -> None:
        if schema is None or value is UNKNOWN:
            return
        for each in schema.at(without_instance(write.path)) or ():
            if problems := each.errors(value, root=("state", *write.path), checks=checks):
                raise StateError(f"the result breaks the state's schema: {'; '.join(problems[:3])}")

    own = {} if parts is None else {_own(path, call): each for path, each in parts.items()}
    left_out = set() if call.loop is None or parts is None else {_own(path, call) for path in call.loop.writes}
    sources = call.sources
    writes = [
        Write(path=path, value=value, method=call.method, call=call.id, time=time, sources=sources)
        for path in paths
        if path not in left_out
    ]
    writes += [Write(path=path, value=each, call=call.id, time=time, sources=sources) for path, each in own.items()]
    try:
        to.append_all(writes, check)
    except StateError as error:
        return str(error)
    call.writes.extend(writes)
    return None


def result_sources(call: Call, told: Sources = NOWHERE) -> Sources:
    """Where what a call gives comes from: its tool, all its parameters, and what the run of a delegate has told (R15.1)."""
    tool = call.tool
    if tool is None or tool.latent:
        return join(call.origins.written, call.origins.all)
    if tool.activity == ASK_PERSON:
        return USER
    return join(join(tool_source(tool.name, tool.others_write), told), call.origins.all)


def _own(path: Path, call: Call) -> Path:
    return path if call.instance is None else scope_path(path, call.instance)
