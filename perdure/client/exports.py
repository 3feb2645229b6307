"""Export of sessions and runs as files, and their import into another namespace (R24.5)."""

from __future__ import annotations

import base64
import binascii
import contextlib
from typing import Any, Final, Literal

from pydantic import Field, ValidationError
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowQueryFailedError
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.agents.media import Media
from perdure.client.histories import audit_run
from perdure.client.recorded_runs import fork_input, start_fork
from perdure.client.run_operations import AgentHandle, describe
from perdure.client.session_operations import Address, clear_session_errors, first_line, new_mark, start_session
from perdure.errors import JsonError, MediaError, ProtocolError, RunError, RunExistsError
from perdure.plan import Returned
from perdure.queries import SessionReader, answer_of, read_segment, start_segment
from perdure.queries.media_store import MediaStore
from perdure.runs.agent import parse_agent
from perdure.runs.fork import FORK_FORM, ForkRecord
from perdure.runs.wire import RunInput
from perdure.sessions.export import CARRIED_QUERY, ExportedSegments, RestoredSession, SessionExport, remove_unexported
from perdure.sessions.recall import oldest_first
from perdure.sessions.transcript import SESSION_FORM, SegmentSpan, SessionSnapshot
from perdure.sessions.wire import SHOW, SessionInput, SessionView
from perdure.values.json import Json, JsonObject, WireModel, check, pack
from perdure.values.media import media_within
from perdure.values.problems import first_problem

_FORM: Final = 1


class Exported(WireModel):
    """A session or a run as a file: one part for people, and one part for `import`."""

    form: Literal[1] = _FORM
    session: str | None = None
    """The session's key."""
    run: str | None = None
    """The run's id."""
    tenant: str = ""
    agent: str
    entries: list[JsonObject] | None = None
    """All entries of a session, as `session show --json` prints them."""
    view: JsonObject | None = None
    """The view of a run, as `show --json` prints it."""
    files: dict[str, str | None] = Field(default_factory=dict)
    """Files by digest, as base64; `null` for a file that is no longer stored."""
    problem: str | None = None
    """The reason why this file cannot be restored."""
    restore_session: SessionExport | None = None
    restore_run: RunInput | None = None

    @classmethod
    def parse(cls, written: Json) -> Exported:
        """Return the parsed file. Raise `RunError` for a file that cannot be restored."""
        try:
            check(written, source="the file")
            exported = cls.model_validate(written)
        except JsonError as error:
            raise RunError(f"this is not an exported session or run: {error}") from None
        except ValidationError as error:
            raise RunError(f"the file is not an exported session or run: {first_problem(error, written)}") from None
        if exported.restore_session is not None and exported.restore_session.input.snapshot is None:
            raise RunError("the file is not an exported session or run: restoreSession.input has no snapshot")
        if exported.restore_session is None and exported.restore_run is None:
            name = exported.session or exported.run
            raise RunError(f"{name} cannot be restored from this file: {exported.problem or 'it has only entries'}")
        return exported

    def as_json(self) -> JsonObject:
        """Return the content of the file."""
        plain = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return {"form": self.form, "tenant": self.tenant, "agent": self.agent, **plain}


async def export_session(session: Address) -> Exported:
    """Return a session with all entries and files. While a run, reply or message has not ended, the result has a
    `problem`.

    Raise `RunError` if an entry cannot be read, `RunNotFoundError` without the session.
    """
    client, reader = session.client, SessionReader(session.client, session.id)
    carried: SessionInput | None = None
    problem: str | None = None
    with clear_session_errors(client, session.key):
        try:
            carried = await answer_of(session.handle, CARRIED_QUERY, result_type=SessionInput, client=client)
        except WorkflowQueryFailedError as error:
            problem = f"{error}. Export it again"
        entries = [entry.as_json() async for entry in oldest_first(reader)]
        shown: SessionView = await answer_of(session.handle, SHOW, result_type=SessionView, client=client)
        exported = Exported(
            session=session.key, tenant=session.tenant, agent=shown.agent, entries=[*entries], problem=problem
        )
        values: list[Any] = []
        if carried is not None:
            assert carried.snapshot is not None
            snapshot = carried.snapshot.read(SessionSnapshot, SESSION_FORM, f"the session {session.key!r}")
            remove_unexported(snapshot)
            carried = carried.model_copy(update={"snapshot": pack(snapshot, SESSION_FORM)})
            spans = [await _segments(client, span) for span in snapshot.transcript.spans]
            exported.restore_session = SessionExport(id=session.id, input=carried, spans=spans)
            values = [snapshot.state, carried.document, carried.delegates]
        exported.files = await _load_files(client, session.tenant, [*entries, *values])
    return exported


async def _segments(client: Client, span: SegmentSpan) -> ExportedSegments:
    numbers = range(1, span.segments + 1)
    return ExportedSegments(
        name=span.name, segments=[await read_segment(client, span.id(number), number) for number in numbers]
    )


async def import_session(client: Client, exported: Exported, key: str, tenant: str, task_queue: str) -> Address:
    """Start the exported session under this key, with its segments and files.

    A second attempt continues where the first one stopped. Raise `RunExistsError` if the key has a session,
    `MediaError` if files cannot be stored.
    """
    if exported.restore_session is None:
        raise RunError(f"the file has the run {exported.run!r}, not a session: use import_run")
    target = Address(client, key, tenant)
    try:
        restored = RestoredSession(exported.restore_session, key, tenant, new_mark())
        session_input, segments = restored.input, [*restored.segments()]
    except ProtocolError as error:
        raise RunError(f"this file cannot be restored: {error}") from None
    if session_input.document:
        parse_agent(session_input.document)
    with clear_session_errors(client, key):
        await _check_absent(target)
        await _save_files(client, tenant, exported.files)
        for id, segment in segments:
            with contextlib.suppress(WorkflowAlreadyStartedError):  # an earlier attempt has started it
                await start_segment(client, id, segment, task_queue)
    texts = (entry.get("text") for entry in exported.entries or () if entry.get("type") == "message")
    await start_session(target, session_input, task_queue, first_line(str(next(texts, ""))))
    return target


async def _check_absent(target: Address) -> None:
    try:
        described = await target.handle.describe()
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return
    if described.status is WorkflowExecutionStatus.RUNNING:
        raise RunExistsError(f"there is a session {target.key!r} already: use another key")


async def export_run(client: Client, run_id: str) -> Exported:
    """Return a run with its view, its record and its files. It needs no worker.

    A run that has not ended has a `problem`. Raise `RunError` if another version wrote the run's history.
    """
    status = (await describe(client, run_id)).status
    audit = await audit_run(client, run_id)
    if audit.input is None:
        raise RunError(f"{run_id} has not begun, so it has no data to export")
    tenant = audit.input.whose.tenant
    exported = Exported(run=run_id, tenant=tenant, agent=str(audit.input.agent.get("name") or ""))
    exported.view = None if audit.view is None else audit.view.as_json()
    if status is WorkflowExecutionStatus.RUNNING:
        exported.problem = "it is running. Export it again when it has ended"
    else:
        error = "" if audit.view is None else audit.view.error
        end = "ended from outside" if status is None or audit.view is None else audit.view.status
        try:
            exported.restore_run = fork_input(run_id, audit, None, end=f"{end}: {error}" if error else end)
        except RunError as error:
            exported.problem = str(error)
    outcomes = [call.state.outcome for call in audit.calls]
    results = [outcome.value for outcome in outcomes if isinstance(outcome, Returned)]
    given: list[Json] = [audit.input.agent, *audit.input.delegates.values(), audit.input.input]
    exported.files = await _load_files(client, tenant, [*given, exported.view, results])
    return exported


async def import_run(client: Client, exported: Exported, id: str, task_queue: str) -> AgentHandle:
    """Start a run that answers each Request and call from the exported record, and runs nothing else.

    Raise `RunExistsError` if the id has a run, `MediaError` if files cannot be stored.
    """
    if exported.restore_run is None:
        raise RunError(f"the file has the session {exported.session!r}, not a run: use import_session")
    try:
        fork = exported.restore_run.fork
        record = None if fork is None else fork.read(ForkRecord, FORK_FORM, f"the run {exported.run!r}")
    except ProtocolError as error:
        raise RunError(f"this file cannot be restored: {error}") from None
    if record is None or record.end is None:
        raise RunError("this file cannot be restored: it has no record of the run's end")
    await _save_files(client, exported.restore_run.whose.tenant, exported.files)
    return await start_fork(client, exported.restore_run, id, task_queue)


async def _load_files(client: Client, tenant: str, value: Json) -> dict[str, str | None]:
    store = MediaStore(client.data_converter, tenant)
    files: dict[str, str | None] = {}
    for file in media_within(value):
        if file.digest not in files:
            data = await store.find(file.digest) if store.is_there else None
            files[file.digest] = None if data is None else base64.b64encode(data).decode()
    return files


async def _save_files(client: Client, tenant: str, files: dict[str, str | None]) -> None:
    store = MediaStore(client.data_converter, tenant)
    for digest, text in files.items():
        if text is None:
            continue
        try:
            file = Media(data=base64.b64decode(text, validate=True))
        except binascii.Error:
            raise MediaError(f"the file {digest} is not base64") from None
        if file.digest != digest:
            raise MediaError(f"the file {digest} is damaged: its bytes do not match the digest")
        await store.save([file])
