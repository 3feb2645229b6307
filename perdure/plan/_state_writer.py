"""The writes of a plan's calls to its state, checked against the state's schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perdure.errors import CallError, StateError, clip
from perdure.plan._calls import EXECUTED_CALLS_COUNT, INVALID_WRITE, Call, Failed, Returned, find_branch
from perdure.plan._structural_errors import unknown_branch
from perdure.values.json import Json
from perdure.values.limits import CheckBudget
from perdure.values.references import UNKNOWN, Path
from perdure.values.schemas import Schema
from perdure.values.state import State, Write, scope_path, without_instance


class StateWriter:
    """The writer of one plan's results. `schema` is that of the state; `None` allows any value."""

    def __init__(self, state: State, schema: Schema | None, checks: CheckBudget) -> None:
        self._state, self._schema, self._checks = state, schema, checks

    def write(self, call: Call, outcome: Returned | Failed, time: str) -> None:
        """Write the call's result or error, and set its status (R4.3)."""
        if isinstance(outcome, Failed):
            call.state.carried_out = self._checks.is_patched(EXECUTED_CALLS_COUNT) and outcome.carried_out
            self._write_error(call, outcome.error, time)
        else:
            self._write_result(call, outcome, time)

    def _write_result(self, call: Call, outcome: Returned, time: str) -> None:
        """Write the result and mark the call done, or invalid (R4.5); or failed, if the tool chose an unknown branch."""
        alternative = call.spec.paths[0] if call.spec.paths else ()
        if outcome.branch is not None:
            chosen = find_branch(call, outcome.branch)
            if chosen is None:
                call.state.carried_out = self._checks.is_patched(EXECUTED_CALLS_COUNT)
                self._write_error(call, unknown_branch(call, outcome.branch), time)
                return
            alternative = chosen
        call.state.result, call.state.status = outcome.value, "done"
        self._state.sizes.of(outcome.value)  # also of a value without a path: the end of a plan measures none
        if problem := self._append(call, alternative, outcome.value, time, outcome.parts):
            call.state.carried_out = self._checks.is_patched(EXECUTED_CALLS_COUNT)
            words = "the call was carried out, but its result cannot be written: " if call.state.carried_out else ""
            call.state.status, call.state.error = "invalid", CallError.of(INVALID_WRITE, [words + problem])

    def _write_error(self, call: Call, error: CallError, time: str) -> None:
        """Mark the call failed, and write the error if the call has a path for errors."""
        call.state.status, call.state.error = "failed", error
        if not call.spec.branches:
            return
        value: Json = [error.as_json()] if call.spec.method == "concat" else error.as_json()
        if problem := self._append(call, call.spec.paths[-1], value, time):
            call.state.error = CallError(error.code, f"{error.message}; nor could that be written: {clip(problem)}")

    def _append(
        self, call: Call, paths: Iterable[Path], value: Json, time: str, parts: Mapping[Path, Json] | None = None
    ) -> str | None:
        """Write the value, and record the writes in the call. Return the reason why the state cannot take it, or
        `None`.

        `parts`: the values that go to paths of their own.
        """
        loop, sources = call.spec.loop, call.state.sources
        left_out = set() if loop is None or parts is None else {_scoped(path, call) for path in loop.writes}
        writes = [
            Write(path=path, value=value, method=call.spec.method, call=call.id, time=time, sources=sources)
            for path in paths
            if path not in left_out
        ]
        for path, each in (parts or {}).items():
            writes.append(Write(path=_scoped(path, call), value=each, call=call.id, time=time, sources=sources))
        try:
            self._state.append_all(writes, self._check)
        except StateError as error:
            return str(error)
        call.state.writes.extend(writes)
        return None

    def _check(self, write: Write, value: Json) -> None:
        if self._schema is None or value is UNKNOWN:
            return
        for each in self._schema.at(without_instance(write.path)) or ():
            if problems := each.errors(value, root=("state", *write.path), checks=self._checks):
                raise StateError(f"the result breaks the state's schema: {'; '.join(problems[:3])}")


def _scoped(path: Path, call: Call) -> Path:
    return path if call.spec.instance is None else scope_path(path, call.spec.instance)
