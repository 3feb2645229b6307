"""Erasure of old data, or of a person's runs and sessions, in Temporal and in external storage (R24.5).

A repeated erasure removes the data that an interrupted attempt has left. Stored values and files are removed first, and
histories last, because histories name the values.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import uuid
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain, count
from typing import Any, Final

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest, DescribeNamespaceRequest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle, WorkflowHistoryEventFilterType
from temporalio.client import WorkflowExecution as Execution
from temporalio.common import RawValue
from temporalio.service import RPCError, RPCStatusCode

from perdure.client._run_lists import AT_ONCE, KEY_MEMO, SENDER, TENANT
from perdure.client.evaluations import fetch_plan
from perdure.client.schedules import Schedule, ScheduleView, walk_schedules
from perdure.client.selection import check_time_zone, of_tenant, quote_text
from perdure.client.session_operations import Address, update
from perdure.client.tenancy import TENANT_MEMO
from perdure.errors import (
    JsonError,
    MediaError,
    MessageRefusedError,
    NoWorkerError,
    RunError,
    RunNotFoundError,
    ServerRefusalError,
)
from perdure.hosting.settings import in_force
from perdure.queries import UNANSWERED, SessionReader, children_of, describe, read_memo, record_entries
from perdure.queries.media_store import MediaStore, erasable
from perdure.runs.audit import AUDIT_WORKFLOW, AuditBatch, AuditData, audit_id, entry
from perdure.runs.evaluation import EVALUATED_RUN_WORKFLOW, EVALUATION_WORKFLOW, EvaluationPlan, scored_id
from perdure.runs.ledger import LEDGER_WORKFLOW
from perdure.runs.loops import LOOP_WORKFLOW
from perdure.runs.undo import undo_id, undone_run
from perdure.runs.wire import AGENT_WORKFLOW, LONGEST_KEYWORD, SENDER_ATTRIBUTE
from perdure.sessions.recall import oldest_first
from perdure.sessions.transcript import SEGMENT_WORKFLOW, is_sent
from perdure.sessions.wire import (
    END,
    ENDED,
    EVERYTHING,
    LAST_USE_MEMO,
    SESSION_PREFIX,
    SESSION_WORKFLOW,
    SessionDeletion,
)
from perdure.values.json import JsonObject, Timestamp, dumps, fields_as_json, loads
from perdure.values.limits import read_duration

__all__ = ["ErasureReport", "Remaining"]

_ENDS_WITHIN: Final = 30.0
"""Seconds for a session to end, with its hooks."""
_LISTED_WITHIN: Final = 60.0
"""The longest wait, in seconds, until the server lists a run. It drops an erased run from its lists first, and later from its histories."""
_PAUSE: Final = 0.5
"""Seconds between two looks at the lists."""
_FILE: Final = re.compile(rb"sha256:[0-9a-f]{64}")
_SENDER: Final = re.compile(rb'"sender":\s*("(?:[^"\\]|\\.)*")')
_PACKED: Final = re.compile(rb'"form":\s*\d+,\s*"data":\s*"([A-Za-z0-9+/=]+)"')
_ERASED_BY: Final = "perdure-erase"
_PARTS: Final = (SEGMENT_WORKFLOW, EVALUATED_RUN_WORKFLOW)
"""Types of workflows that belong to a session or a run without being its child."""


@dataclass(frozen=True)
class Remaining:
    """An item that an erasure or a key rotation has left, and the reason.

    ```python
    for each in (await perdure.erase(sender="ann", dry_run=True)).remaining:
        print(each.what, each.id, each.why, each.until)
    ```
    """

    what: str
    """`session`, `run`, `evaluation`, `workflow`, `file`, `value`, `schedule`, or `tenant`."""
    id: str
    why: str
    until: str = ""
    """The time at which the server removes it, in ISO 8601; empty: it does not."""

    def as_json(self) -> JsonObject:
        """Return it as `perdure erase --json` prints it.

        ```python
        from perdure.client.erasure import Remaining

        print(Remaining("session", "team", "other senders have written to it").as_json())
        ```
        """
        return fields_as_json(self) | {"until": self.until or None}


@dataclass
class ErasureReport:
    """The result of an erasure; with `dry_run` what it would do.

    ```python
    report = await perdure.erase(tenant="acme", sender="ann", dry_run=True)
    print(len(report.runs), report.sessions, report.remaining)
    ```
    """

    tenant: str
    sender: str | None
    before: str | None
    dry_run: bool
    runs: list[str] = field(default_factory=list)
    """Ids of runs without a session."""
    sessions: list[str] = field(default_factory=list)
    """Keys of sessions, with all of their runs and transcripts."""
    session_runs: list[str] = field(default_factory=list)
    """Ids of the person's runs in sessions that stay."""
    evaluations: list[str] = field(default_factory=list)
    """Ids of evaluations, with their cases and scores; their runs are among `runs`."""
    executions: int = 0
    """Executions of workflows: delegates, loops, segments and notifications too. The server has accepted
    their deletion and carries it out within minutes. Until then another erasure finds them again."""
    values: int = 0
    """Values in external storage."""
    files: int = 0
    """Files in external storage."""
    remaining: list[Remaining] = field(default_factory=list)

    def as_json(self) -> JsonObject:
        """Return it as `perdure erase --json` prints it.

        ```python
        print((await perdure.erase(sender="ann", dry_run=True)).as_json())
        ```
        """
        return fields_as_json(self)


@dataclass(frozen=True)
class _Target:
    """A session or a run, with all executions below it."""

    id: str
    key: str = ""
    """The session's key; empty for a run."""
    tenant: str = ""
    is_open: bool = False
    last: int | None = None
    """Number of the last entry of an open session; `None` if it is unknown."""


async def retention_ends(client: Client, retention: Mapping[str, str], now: datetime) -> dict[str, datetime]:
    """Return for each tenant the time before which data is too old. `retention`: the setting's ages by tenant.

    `*` stands for all other tenants that have such data, and for data without a tenant.
    """
    ends = {tenant: now - timedelta(seconds=read_duration(age) or 0) for tenant, age in retention.items()}
    others = ends.pop("*", None)
    if others is not None:
        # All sessions: a key rotation starts an idle session anew, which is no use of it.
        old = f"WorkflowType IN ('{AGENT_WORKFLOW}', '{EVALUATION_WORKFLOW}') AND StartTime < '{others.isoformat()}'"
        async for each in client.list_workflows(f"WorkflowType = '{SESSION_WORKFLOW}' OR ({old})"):
            known: str = await read_memo(each, TENANT_MEMO, "", str)
            ends.setdefault(each.typed_search_attributes.get(TENANT) or known, others)
    return ends


async def erase(
    client: Client,
    task_queue: str,
    tenant: str,
    sender: str | None,
    before: datetime | None,
    *,
    dry_run: bool = False,
    shared: bool = False,
    by: str = "",
) -> ErasureReport:
    """Carry out one erasure. If the task queue has an audit log, the log notes the start and the end.

    Raises `RunError` without `sender` and `before`, and `ProtocolError` for a time without a time zone.
    """
    before = None if before is None else check_time_zone(before, "before")
    if sender is None and before is None:
        raise RunError(
            "sender and before are missing: name the sender, or give before=datetime.now(UTC) to erase all of the tenant's runs"
        )
    eraser = Eraser(client, tenant, sender, before, dry_run=dry_run, shared=shared)
    # Workers may have an audit log that the caller's settings do not name.
    if dry_run or (in_force().audit is None and await describe(client, audit_id(task_queue)) is None):
        return await eraser.erase()
    about: AuditData = {"by": by, "sender": sender, "before": eraser.report.before, "shared": shared}
    id = uuid.uuid4().hex

    async def note(when: str, data: AuditData) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        found = entry("erasure", at, f"erasure/{id}/{when}", data).model_copy(update={"tenant": tenant})
        await record_entries(client, task_queue, AuditBatch(entries=[found]))

    await note("start", about)
    report = await eraser.erase()
    counts: AuditData = {"runs": len(report.runs), "sessions": len(report.sessions), "values": report.values}
    counts |= {"executions": report.executions, "files": report.files, "remaining": len(report.remaining)}
    await note("end", {**about, **counts, "complete": True})
    return report


async def apply_retention(
    client: Client, task_queue: str, *, dry_run: bool = False, by: str = ""
) -> list[ErasureReport]:
    """Erase data that is older than the setting `retention` allows. Raises `RunError` if the setting names no tenant.

    A tenant whose data cannot be erased, for example because its storage fails, remains in its report. The others are
    erased.
    """
    if not (retention := in_force().retention):
        raise RunError(
            "no retention is configured: set PERDURE_RETENTION=acme=30d,*=365d, or retention in perdure.toml"
        )
    reports = []
    for tenant, before in sorted((await retention_ends(client, retention, datetime.now(UTC))).items()):
        try:
            report = await erase(client, task_queue, tenant, None, before, dry_run=True)
            if report.executions and not dry_run:  # a tenant without old data gets no lines in the audit log
                report = await erase(client, task_queue, tenant, None, before, by=by)
        except Exception as error:
            if isinstance(error, RPCError) and error.status in UNANSWERED:  # the server is away, for all tenants
                raise
            left = Remaining("tenant", tenant, f"{type(error).__name__}: {error}")
            report = ErasureReport(tenant, None, before.isoformat(), dry_run, remaining=[left])
        if report.executions or report.remaining:
            reports.append(report)
    return reports


class Eraser:
    """One erasure. `sender`: the person; `None`: everybody. `before`: only runs that ended, and sessions that were last used, before this time."""

    def __init__(
        self, client: Client, tenant: str, sender: str | None, before: datetime | None, *, dry_run: bool, shared: bool
    ) -> None:
        self._client = client
        self._tenant, self._sender, self._before, self._shared = tenant, sender, before, shared
        self._storage = erasable(client.data_converter)
        self._media = MediaStore(client.data_converter, tenant)
        self.report = ErasureReport(
            tenant, sender, None if before is None else before.isoformat(timespec="seconds"), dry_run
        )

    async def erase(self) -> ErasureReport:
        """Find the targets, and remove them unless it is a dry run."""
        report = self.report
        targets = await self._sessions()
        targets += await self._runs({each.id for each in targets})
        targets += await self._evaluations()
        if self._sender is not None:
            await self._note_schedules(self._sender)
        if not report.dry_run:
            targets = await self._end(targets)
        # Histories of child runs first: a repeated erasure finds those that are left through the run or session above.
        executions = [each for target in targets for each in reversed(await self._executions(target.id))]
        report.executions = len({each.run_id for each in executions})
        await self._erase_stored({each.id for each in executions}, executions)
        if not report.dry_run:
            await self._erase_histories(executions)
        return report

    # Find the targets.

    async def _sessions(self) -> list[_Target]:
        found = await self._newest(f"WorkflowType = '{SESSION_WORKFLOW}' AND {of_tenant(self._tenant)}")
        limit = asyncio.Semaphore(AT_ONCE)

        async def judge(each: Execution) -> _Target | None:
            async with limit:
                return await self._judge_session(each)

        return [each for each in await asyncio.gather(*map(judge, found.values())) if each is not None]

    async def _newest(self, query: str) -> dict[str, Execution]:
        """Return the newest execution of each workflow, by id."""
        found: dict[str, Execution] = {}
        async for each in self._client.list_workflows(query):
            if each.id not in found or each.status is WorkflowExecutionStatus.RUNNING:
                found[each.id] = each
        return found

    async def _judge_session(self, found: Execution) -> _Target | None:
        if self._before is not None and await _last_use(found) >= self._before:
            return None  # no query: a namespace has many sessions
        key = await read_memo(found, KEY_MEMO, "", str) or found.id
        is_open = found.status is WorkflowExecutionStatus.RUNNING
        senders, last, number = await self._use_of(found)
        target = _Target(found.id, key, self._tenant, is_open, number)
        if self._sender is not None and self._sender not in senders:
            return None
        if self._before is not None and (last >= self._before or await self._has_later_run(found.id, self._before)):
            return None
        if self._sender is not None and (others := sorted(senders - {self._sender})) and not self._shared:
            words = f"{len(others)} other senders have written to it ({', '.join(others[:3])}): the option shared erases all of it"
            self.report.remaining.append(Remaining("session", key, words))
            return None
        self.report.sessions.append(key)
        return target

    async def _has_later_run(self, session: str, before: datetime) -> bool:
        """Whether a run of a session, or an undo of one, goes on or has ended later."""
        parts = [f"WorkflowType = '{AGENT_WORKFLOW}'", f"WorkflowId STARTS_WITH {quote_text(session + '/')}"]
        parts.append(f"(ExecutionStatus = 'Running' OR CloseTime >= '{before.isoformat()}')")
        async for _ in self._client.list_workflows(" AND ".join(parts)):
            return True
        return False

    async def _use_of(self, found: Execution) -> tuple[set[str], datetime, int | None]:
        """Return the senders of a session, the time of its last use, and the number of its last entry: from its
        histories, and without the number, if it does not answer or has ended.
        """
        senders: set[str] = set()
        last, number = await _last_use(found), None
        try:
            async for entry in oldest_first(SessionReader(self._client, found.id)):
                number = entry.n
                last = max(last, datetime.fromisoformat(entry.at)) if found.close_time is None else last
                if is_sent(entry):
                    senders.add(entry.sender)
        except RunError:
            number = None
            for each in await self._executions(found.id):
                senders |= {name} if (name := each.typed_search_attributes.get(SENDER)) else set()
                last = max(last, await _last_use(each))
                if each.workflow_type != AGENT_WORKFLOW:
                    async for text in self._values_of(each):
                        senders |= _senders_in(text)
            senders.discard(_ERASED_BY)
        return senders, found.close_time or last, number

    async def _runs(self, sessions: set[str]) -> list[_Target]:
        parts = [f"WorkflowType = '{AGENT_WORKFLOW}'", of_tenant(self._tenant)]
        if self._sender is not None:
            parts.append(f"{SENDER_ATTRIBUTE} = {quote_text(self._sender[:LONGEST_KEYWORD])}")
        if self._before is not None:
            parts.append(f"CloseTime < '{self._before.isoformat()}'")
        found: dict[str, set[str]] = {}  # each run, with the runs that it is part of
        # No other target includes these runs. One is an undo run, whose id does not begin with its parent's id.
        alone: set[str] = set()
        async for each in self._client.list_workflows(" AND ".join(parts)):
            is_below = each.parent_id is not None and each.id.startswith(f"{each.parent_id}/")
            session = each.id.partition("/")[0] if each.id.startswith(SESSION_PREFIX) else None
            if is_below and (session in sessions or (session is not None and self._sender is None)):
                continue  # its session's target includes it
            found[each.id] = {name for name in (each.parent_id, undone_run(each.id)) if name}
            if is_below:
                found[each.id] |= {each.id[:n] for n in _slashes(each.id)}
            else:
                alone.add(each.id)
        if self._before is not None:
            found = await self._without_ongoing(found, self._before)
        tops = [id for id in found if id in alone or not any(id[:n] in found for n in _slashes(id))]
        if self._storage is not None:
            tops = await self._without_replayed(tops)
        self.report.runs += sorted(id for id in tops if not id.startswith(SESSION_PREFIX))
        in_sessions = (id for id in tops if id.startswith(SESSION_PREFIX) and id.partition("/")[0] not in sessions)
        self.report.session_runs += sorted(in_sessions)
        return [*map(_Target, tops)]

    async def _without_ongoing(self, found: dict[str, set[str]], before: datetime) -> dict[str, set[str]]:
        """Leave out runs that go on, or have ended later, and runs that are part of such runs. An undo is a part of its
        run.

        A query also finds an ended execution of a run that continued as new, or was reset, and goes on.
        """
        limit = asyncio.Semaphore(AT_ONCE)

        async def stays(id: str) -> bool:
            async with limit:
                for each in chain([id], (undo_id(id, number) for number in count(1))):
                    newest = await describe(self._client, each)
                    if newest is None or newest.workflow_type not in (AGENT_WORKFLOW, LOOP_WORKFLOW):
                        break
                    if newest.close_time is None or newest.close_time >= before:
                        return True
            return False

        ids = sorted({*found}.union(*found.values()))
        kept = {id for id, stay in zip(ids, await asyncio.gather(*map(stays, ids)), strict=True) if stay}
        while more := {id for id, outer in found.items() if id not in kept and not kept.isdisjoint(outer)}:
            kept |= more
        return {id: outer for id, outer in found.items() if id not in kept}

    async def _without_replayed(self, ids: Iterable[str]) -> list[str]:
        """Leave out runs whose stored result an open workflow reads again in a replay, and report them as remaining."""
        limit = asyncio.Semaphore(AT_ONCE)

        async def find(id: str) -> str | None:
            async with limit:
                return await self._find_replaying_parent(id)

        ids = [*ids]
        parents = dict(zip(ids, await asyncio.gather(*map(find, ids)), strict=True))
        for id, parent in parents.items():
            if parent is not None:
                words = f"the open workflow {parent} reads this run's result in a replay: erase again when {parent} has ended or continued as new"
                self.report.remaining.append(Remaining("run", id, words))
        return [id for id, parent in parents.items() if parent is None]

    async def _find_replaying_parent(self, id: str) -> str | None:
        """Return the id of the open parent whose history refers to a stored result of the run; `None` without one.

        If the run completed in its first execution, the result is stored for the parent, and stays after an erasure.
        """
        ended = await describe(self._client, id)
        if ended is None or ended.parent_id is None or ended.parent_id.startswith(f"{id}/"):
            return None  # a parent below the run is erased with the run
        is_first = ended.raw_description.workflow_execution_info.first_run_id == ended.run_id
        is_completed = ended.status is WorkflowExecutionStatus.COMPLETED
        if ended.close_time is None or (is_first and is_completed):
            return None
        parent = await describe(self._client, ended.parent_id)
        if parent is None or parent.close_time is not None or ended.parent_run_id is None:
            return None
        if parent.run_id != ended.parent_run_id:  # a reset keeps the history, continue-as-new does not
            original = await self._original_run_id(parent.id, ended.parent_run_id)
            if await self._original_run_id(parent.id, parent.run_id) != original:
                return None
        handle: WorkflowHandle[Any, Any] = self._client.get_workflow_handle(id, run_id=ended.run_id)
        end = await handle.fetch_history(event_filter_type=WorkflowHistoryEventFilterType.CLOSE_EVENT)
        stored = (each.external_payloads for event in end.events for each in payloads_of(event))
        return parent.id if any(stored) else None

    async def _original_run_id(self, id: str, run_id: str) -> str:
        """Return the run id of the execution from which this one was reset; its own run id without a reset."""
        handle: WorkflowHandle[Any, Any] = self._client.get_workflow_handle(id, run_id=run_id)
        with ignore_not_found():
            async for event in handle.fetch_history_events(page_size=1):
                return event.workflow_execution_started_event_attributes.original_execution_run_id
        return run_id

    async def _evaluations(self) -> list[_Target]:
        """Return the evaluations of the person's cases, and their runs. An evaluation that also has cases of others
        remains.
        """
        targets: list[_Target] = []
        for id, each in (await self._newest(f"WorkflowType = '{EVALUATION_WORKFLOW}'")).items():
            if self._before is not None and (each.close_time is None or each.close_time >= self._before):
                continue
            if await read_memo(each, TENANT_MEMO, self._tenant, str) != self._tenant:
                continue
            plan = await self._plan_of(each)
            if plan is None or plan.tenant != self._tenant:
                continue
            own = [self._sender in (None, case.sender) for case in plan.cases]
            if not any(own):
                continue
            leaves = all(own) or self._shared
            if leaves and not self.report.dry_run:
                await self._end_evaluation(id)
            wanted = {f"{id}-{index + 1}" for index in range(plan.total) if leaves or own[plan.place(index)[0]]}
            runs = await self._evaluated_runs(id) & wanted
            self.report.runs += sorted(runs - {*self.report.runs})
            targets += map(_Target, runs)
            if leaves:  # after its runs: a repeated erasure finds them through it
                self.report.evaluations.append(id)
                targets.append(_Target(id))
            else:
                words = f"{own.count(False)} of its {len(own)} cases are not {self._sender}'s: the option shared erases all of it"
                if each.status == WorkflowExecutionStatus.RUNNING:
                    words += ". It is running and may start more runs: cancel it, or erase again when it has ended"
                await self._note_evaluation(each, words)
        return targets

    async def _end_evaluation(self, id: str) -> None:
        """End an evaluation, so that it starts no more runs, and wait until the server lists all that it has started.

        The lists are a moment late, and nothing else finds a score whose evaluation is gone. Raise `RunError` if they
        do not catch up.
        """
        late: set[str] = set()
        with ignore_not_found():
            await self._client.get_workflow_handle(id).terminate(reason="erased")
        with ignore_not_found():
            late = {*await children_of(self._client, id, EVALUATED_RUN_WORKFLOW)}
        try:
            async with asyncio.timeout(_LISTED_WITHIN):
                while True:
                    late -= (await self._evaluated(id)).keys()
                    late = {each for each in late if await describe(self._client, each) is not None}
                    if not late:
                        return
                    await asyncio.sleep(_PAUSE)
        except TimeoutError:
            words = f"the server does not list {len(late)} runs of the evaluation {id} yet: repeat the erasure"
            raise RunError(words) from None

    async def _evaluated_runs(self, evaluation: str) -> set[str]:
        """Return the ids of an evaluation's runs, also if only the score is left. Ids can be chosen, so the parents are
        checked.
        """
        found = await self._evaluated(evaluation)
        scored = {id for id, each in found.items() if each.parent_id == evaluation}
        started = {id for id, each in found.items() if each.parent_id == scored_id(id)}
        return started | {id.removesuffix(scored_id("")) for id in scored}

    async def _evaluated(self, evaluation: str) -> dict[str, Execution]:
        """Return the newest executions of runs and scores whose ids begin with that of the evaluation, by id."""
        types = f"WorkflowType IN ('{AGENT_WORKFLOW}', '{EVALUATED_RUN_WORKFLOW}')"
        return await self._newest(f"{types} AND WorkflowId STARTS_WITH {quote_text(evaluation + '-')}")

    async def _plan_of(self, each: Execution) -> EvaluationPlan | None:
        """Return the plan of an evaluation; `None` if it no longer exists, or cannot be decoded, which is reported."""
        try:
            return await fetch_plan(self._client, each.id)
        except RunNotFoundError:
            return None
        except (RPCError, RunError):
            raise
        except Exception:  # a codec may raise anything
            await self._note_evaluation(each, "it cannot be decoded, so its senders are unknown")
            return None

    async def _note_evaluation(self, each: Execution, why: str) -> None:
        until = "" if each.close_time is None else await self._until(each.close_time)
        self.report.remaining.append(Remaining("evaluation", each.id, why, until))

    async def _note_schedules(self, sender: str) -> None:
        async for view in self._schedules():
            if view.sender == sender:
                words = f"it starts runs for {sender}: delete it with perdure schedule delete"
                self.report.remaining.append(Remaining("schedule", view.name, words))

    async def _schedules(self) -> AsyncIterator[ScheduleView]:
        """Yield the tenant's schedules that can be read. A server of the test kit may have none."""
        with contextlib.suppress(ServerRefusalError):
            async for each in walk_schedules(self._client, self._tenant):
                with contextlib.suppress(RunError, RPCError):
                    yield await Schedule(self._client, each.name, tenant=self._tenant, task_queue="").show()

    async def _executions(self, id: str) -> list[Execution]:
        """Return the executions of a target, and of all workflows below it. Starters choose ids, so an id alone proves
        nothing.
        """
        found: dict[str, Execution] = {}
        for query in (f"WorkflowId = {quote_text(id)}", f"WorkflowId STARTS_WITH {quote_text(id + '/')}"):
            async for each in self._client.list_workflows(query):
                found[each.run_id] = each
        others = tuple(f"{each.id}/" for each in found.values() if not _is_part(each, id))
        return [each for each in found.values() if not f"{each.id}/".startswith(others)]

    # Remove the targets.

    async def _end(self, targets: Iterable[_Target]) -> list[_Target]:
        """End sessions and runs, so that they write nothing more. Sessions end with their hooks, runs at once.

        Return those without the sessions that have got a message since they were found.
        """
        ended: list[_Target] = []
        for target in targets:
            handle: WorkflowHandle[Any, Any] = self._client.get_workflow_handle(target.id)
            if target.key and target.is_open:
                address = Address(self._client, target.key, target.tenant, known=target.id)
                deletion = SessionDeletion(sender=_ERASED_BY, rights=[EVERYTHING], last=target.last)
                try:
                    await update(self._client, address, END, deletion)
                    with contextlib.suppress(TimeoutError, Exception):
                        async with asyncio.timeout(_ENDS_WITHIN):
                            await handle.result()
                except MessageRefusedError as error:
                    if str(error) != ENDED:
                        self.report.sessions.remove(target.key)
                        self.report.remaining.append(Remaining("session", target.key, f"{error}: erase again"))
                        continue
                except (NoWorkerError, RunNotFoundError):
                    pass
            ended.append(target)
            for each in await self._executions(target.id):
                if each.status is WorkflowExecutionStatus.RUNNING:
                    with ignore_not_found():
                        running: WorkflowHandle[Any, Any] = self._client.get_workflow_handle(
                            each.id, run_id=each.run_id
                        )
                        await running.terminate(reason="erased")
        return ended

    async def _erase_stored(self, ids: set[str], executions: Iterable[Execution]) -> None:
        """Remove stored values, and files that no other run or session of the tenant uses."""
        report = self.report
        if self._storage is None:
            return
        files: set[bytes] = set()
        for each in executions:
            files |= await self._files_of(each)
        kept = await self._named_elsewhere(files, ids) if files else {}
        for digest, by in sorted(kept.items()):
            report.remaining.append(Remaining("file", digest.decode(), f"{by} has it too"))
        for digest in sorted(files - kept.keys()):
            name = digest.decode()
            try:
                report.files += await self._media.delete(name, dry_run=report.dry_run)
            except MediaError as error:
                report.remaining.append(Remaining("file", name, str(error)))
        for id in sorted(ids):
            report.values += await self._storage.erase_owned(self._client.namespace, id, dry_run=report.dry_run)

    async def _named_elsewhere(self, files: set[bytes], ids: set[str]) -> dict[bytes, str]:
        """Return the files that other runs or sessions of the tenant use, each with the id of one such user."""
        found: dict[bytes, str] = {}
        async for each in self._client.list_workflows(f"WorkflowType NOT IN ('{AUDIT_WORKFLOW}', '{LEDGER_WORKFLOW}')"):
            if each.id in ids or (each.typed_search_attributes.get(TENANT) or self._tenant) != self._tenant:
                continue
            for digest in await self._files_of(each) & files:
                found[digest] = each.id
            if len(found) == len(files):
                return found
        async for view in self._schedules():
            # Runs for the erased sender are to end with their schedule.
            if self._sender is None or view.sender != self._sender:
                for digest in files.intersection(_FILE.findall(dumps(view.input).encode())):
                    found[digest] = f"the schedule {view.name}"
        return found

    async def _files_of(self, each: Execution) -> set[bytes]:
        """Return the digests of files that a history names."""
        found: set[bytes] = set()
        async for text in self._values_of(each):
            found |= {*_FILE.findall(text)}
        return found

    async def _values_of(self, each: Execution) -> AsyncIterator[bytes]:
        """Yield the values of a history as JSON, and the values packed in them."""
        handle: WorkflowHandle[Any, Any] = self._client.get_workflow_handle(each.id, run_id=each.run_id)
        try:
            history = await handle.fetch_history()
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            return
        for payload in (one for event in history.events for one in payloads_of(event)):
            for text in _unpacked(await self._read(payload)):
                yield text

    async def _read(self, payload: Payload) -> bytes:
        """Return the bytes of a value; none if its key or the stored value is missing. The files that it names are then
        not found.
        """
        with contextlib.suppress(Exception):  # a codec may raise anything
            [raw] = await self._client.data_converter.decode([payload], [RawValue])
            return bytes(raw.payload.data)
        return b""

    async def _erase_histories(self, executions: Iterable[Execution]) -> None:
        for each in {one.run_id: one for one in executions}.values():
            request = DeleteWorkflowExecutionRequest(
                namespace=self._client.namespace,
                workflow_execution=WorkflowExecution(workflow_id=each.id, run_id=each.run_id),
            )
            try:
                await self._client.workflow_service.delete_workflow_execution(request)
            except RPCError as error:
                if error.status in UNANSWERED:
                    raise
                if error.status != RPCStatusCode.NOT_FOUND:
                    await self._note_history(each, f"the server does not delete its history: {error.message}")

    async def _note_history(self, each: Execution, why: str) -> None:
        until = await self._until(each.close_time or datetime.now(UTC))
        self.report.remaining.append(Remaining("run", each.id, why, until))

    async def _until(self, closed: datetime) -> str:
        """Return the time at which the server removes a history that ended at this time."""
        described = await self._client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace=self._client.namespace)
        )
        kept = timedelta(seconds=described.config.workflow_execution_retention_ttl.seconds)
        return (closed + kept).isoformat(timespec="seconds")


async def _last_use(each: Execution) -> datetime:
    """Return the time of a session's last use, as far as an execution's memo has it; else the execution's start."""
    found = await read_memo(each, LAST_USE_MEMO, None, Timestamp)
    return each.start_time if found is None else datetime.fromisoformat(found)


def _is_part(each: Execution, of: str) -> bool:
    """Whether an execution is the run or session `of`, or was started by it. Its id is `of`, or begins with it."""
    if each.id == of or each.workflow_type in _PARTS:
        return True
    return f"{each.parent_id or ''}/".startswith(f"{of}/")


@contextlib.contextmanager
def ignore_not_found() -> Iterator[None]:
    """Ignore the error for a workflow that does not exist."""
    try:
        yield
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise


def _slashes(id: str) -> Iterator[int]:
    return (place for place, letter in enumerate(id) if letter == "/")


def payloads_of(message: Message) -> Iterator[Payload]:
    """Yield the payloads in a Temporal message, at any depth."""
    if isinstance(message, Payload):
        yield message
        return
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None:
            continue
        if descriptor.message_type.GetOptions().map_entry:
            values = [each for each in value.values() if isinstance(each, Message)]
        else:
            values = [value] if isinstance(value, Message) else [*value]
        for each in values:
            yield from payloads_of(each)


def _unpacked(text: bytes) -> Iterator[bytes]:
    """Yield the JSON of a value, and the values packed in it."""
    yield text
    for packed in _PACKED.findall(text):
        with contextlib.suppress(ValueError, zlib.error):
            yield from _unpacked(zlib.decompress(base64.b64decode(packed)))


def _senders_in(text: bytes) -> set[str]:
    """Return the senders of messages in the JSON of a session's value."""
    found = set()
    for name in _SENDER.findall(text):
        with contextlib.suppress(JsonError):
            found.add(str(loads(name)))
    return found - {""}
