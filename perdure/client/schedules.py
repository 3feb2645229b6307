"""Schedules: runs of an agent at fixed times, on Temporal's own Schedules (R19.6).

The action of a schedule starts a run with the agent's *name*. The worker reads the file of that name when the run begins: an edited
file counts from the next run on.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final, TypeAlias, cast
from zoneinfo import ZoneInfo

import temporalio.client as temporal
from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import ValidationError
from temporalio.api.workflowservice.v1 import ListScheduleMatchingTimesRequest
from temporalio.client import (
    Client,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleBackfill,
    ScheduleDescription,
    ScheduleHandle,
    ScheduleIntervalSpec,
    ScheduleListDescription,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleState,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.common import TypedSearchAttributes
from temporalio.service import RPCError, RPCStatusCode

from perdure.client._run_lists import AGENT, names_attribute, start_attributes
from perdure.client.errors import clear_errors
from perdure.client.selection import of_tenant, schedule_id, schedule_name
from perdure.client.tenancy import owned_memo, queue_priority
from perdure.errors import RunError, RunExistsError, RunNotFoundError, ScheduleError, ServerRefusalError
from perdure.hooks.events import RunOwner
from perdure.hosting.codec import UnboundCodec
from perdure.queries import SearchAttributes
from perdure.runs.agent import read_input
from perdure.runs.caller_context import read_context
from perdure.runs.schedules import OVERLAPS, Overlap, check_agent_name
from perdure.runs.views import summary
from perdure.runs.wire import AGENT_WORKFLOW, RunInput
from perdure.values.arguments import check_arguments
from perdure.values.json import Json, JsonObject, fields_as_json, shorten
from perdure.values.limits import MAX_BACKFILLED, MAX_PAYLOAD, bytes_text, read_duration
from perdure.values.messages import Priority, check_priority
from perdure.values.problems import first_problem
from perdure.values.references import MISSING

__all__ = ["ListedSchedule", "Overlap", "Schedule", "ScheduleView", "ScheduledRun"]

ScheduleDuration: TypeAlias = str | float | timedelta
"""Seconds, `"90s"`, `"5min"`, `"2h"`, `"3d"`, `"1w"`, or a `timedelta`."""
CATCHUP: Final = "1d"
"""The default of `catchup`. Temporal's own default is a year, which is too long because each run costs money."""
_POLICIES: Final[dict[str, ScheduleOverlapPolicy]] = {
    name: ScheduleOverlapPolicy[name.replace("-", "_").upper()] for name in OVERLAPS
}
_NAMES: Final[dict[ScheduleOverlapPolicy, Overlap]] = {
    ScheduleOverlapPolicy[name.replace("-", "_").upper()]: name for name in OVERLAPS
}
_PAUSED: Final = "paused"
_RESUMED: Final = "resumed"
_WHY_PAUSED: Final = f"{_PAUSED}: "
"""The beginning of the note that gives the reason of a pause."""
_OWN_NOTE: Final = "\nnote: "
"""The text between that reason and the schedule's own note."""
_ZONE: Final = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")
_NO_ZONES: Final = ("local", "localtime", "factory", "posix", "posixrules", "right")
"""Names that a server accepts beside IANA's: its own time zone, and other forms of its zone files."""


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """A run that a schedule has started.

    ```python
    for run in (await perdure.schedule("nightly").show()).runs:
        print(run.run_id, run.scheduled_at)
    ```
    """

    run_id: str
    scheduled_at: datetime
    """The scheduled time of the run, in the schedule's time zone; for a triggered run the time of the trigger."""
    started_at: datetime

    def as_json(self) -> JsonObject:
        return fields_as_json(self)


@dataclass(frozen=True)
class ListedSchedule:
    """A schedule in a list. `Schedule.show` returns all of it.

    ```python
    async for schedule in perdure.list_schedules(tenant="acme"):
        print(schedule.name, schedule.agent, schedule.paused)
    ```
    """

    name: str
    agent: str
    """The name of its agent's file in the workers' agents folder."""
    cron: list[str]
    """Its cron expressions, as they were written."""
    every: float | None
    """Seconds between two runs; `None`: only cron expressions set the times."""
    timezone: str
    """The time zone of the cron expressions."""
    paused: bool
    note: str
    next: list[datetime]
    """The next times, in the schedule's time zone; empty: it starts no more runs."""
    runs: list[ScheduledRun]
    """The last runs, the newest first; some may be deleted."""

    def as_json(self) -> JsonObject:
        return fields_as_json(self, name="schedule")


@dataclass(frozen=True)
class ScheduleView(ListedSchedule):
    """A schedule with its input, its policy and its counts.

    ```python
    view = await perdure.schedule("nightly").show()
    print(view.overlap, view.started, view.skipped)
    ```
    """

    input: Json = None
    has_input: bool = False
    overlap: Overlap = "skip"
    catchup: float = 0.0
    """Seconds within which the server still starts a run that it missed."""
    jitter: float = 0.0
    """The most seconds by which a run may begin later, at random."""
    sender: str = ""
    """The sender on whose behalf its runs work."""
    tenant: str = ""
    task_queue: str = ""
    priority: int | None = None
    """1 to 5: workers serve runs of a smaller number first; `None`: 3."""
    running: list[str] = field(default_factory=list)
    """Ids of its runs that have not ended."""
    started: int = 0
    """How many runs it has started."""
    skipped: int = 0
    """How many runs it skipped, because another one had not ended."""
    missed: int = 0
    """How many runs it missed, because the server was down for longer than `catchup`."""

    def as_json(self) -> JsonObject:
        shown = super().as_json()
        del shown["hasInput"]
        for name in ("sender", "tenant", "priority"):
            if not shown[name]:
                del shown[name]
        if not self.has_input:
            del shown["input"]
        return shown


@check_arguments
class Schedule:
    """A schedule by its name, of one tenant, or of none. Only its methods make requests.

    ```python
    nightly = perdure.schedule("nightly")
    await nightly.create("reporter", {"team": "sales"}, cron="0 2 * * *", timezone="Europe/Berlin")
    print((await nightly.show()).next[0])
    ```

    Every method but `create` raises `RunNotFoundError` if the tenant has no such schedule.
    """

    def __init__(self, client: Client, name: str, *, tenant: str = "", task_queue: str) -> None:
        self.name: str = name
        self.tenant: str = tenant
        self.id: str = schedule_id(name, tenant)
        """Temporal's id of the schedule; the ids of its runs begin with it."""
        self._client = unbound_client(client)
        self._task_queue = task_queue

    async def create(
        self,
        agent: str,
        input: object = MISSING,
        *,
        cron: str | Iterable[str] = (),
        every: ScheduleDuration | None = None,
        timezone: str = "UTC",
        overlap: Overlap = "skip",
        catchup: ScheduleDuration = CATCHUP,
        jitter: ScheduleDuration = 0,
        note: str = "",
        paused: bool = False,
        sender: str = "",
        context: object = None,
        priority: Priority | None = None,
        task_queue: str | None = None,
        replace: bool = False,
    ) -> ScheduleView:
        """Create the schedule, and return it with its next times.

        `agent`: the name of a file in the workers' agents folder, which the worker reads when a run begins. `input`:
        JSON, or a value that pydantic writes as JSON (default: none). A value in it that is exactly `"{{scheduled}}"`
        becomes the time for which the run is started. The run validates the input, as its agent is then. `cron`:
        `"MINUTE HOUR DAY MONTH WEEKDAY"`, one or several, in `timezone`. `every`: seconds, or `"1h"`, counted from 1970.
        `overlap`: the policy for a time at which the last run has not ended. `catchup`: how late a missed run may begin.
        `jitter`: how much later a run may begin, at random. `paused`: no run starts before `resume`. `sender`,
        `context`: on whose behalf the runs work, as in `Perdure.start`. `priority`: 1 to 5, 1 first (default: 3; the
        agent's is not known before its run begins). `task_queue`: the queue of its workers.
        `replace`: change the schedule of this name, if there is one; it stays paused if it is.

        Raises `ScheduleError` for invalid times and policies, `RunExistsError` for a name that is in use.

        ```python
        await perdure.schedule("pulse").create("checker", every="15min", overlap="buffer-one")
        ```
        """
        check_agent_name(agent)
        expressions = [cron] if isinstance(cron, str) else [*cron]
        spec = _spec(expressions, every, timezone, _seconds(jitter, "jitter"))
        late = _seconds(catchup, "catchup")
        if late < _LEAST_CATCHUP:
            raise ScheduleError(f"catchup: {late:g} s is too short: the minimum is {_LEAST_CATCHUP:g} s")
        given = RunInput(
            agent={},
            agent_name=agent,
            input=None if input is MISSING else read_input(input),
            has_input=input is not MISSING,
            whose=RunOwner(tenant=self.tenant, sender=sender, context=read_context(context)),
        )
        if (size := len(given.model_dump_json().encode())) > MAX_PAYLOAD:
            raise RunError(f"the input has {bytes_text(size)}; the limit is {MAX_PAYLOAD:,}")
        policy = SchedulePolicy(overlap=_policy(overlap), catchup_window=timedelta(seconds=late))
        state = ScheduleState(note=note or None, paused=paused)
        with _clear(self._client, expressions, timezone):
            attributes = SearchAttributes()
            await attributes.ensure(self._client)
            # An attribute that the namespace lacks would fail each start.
            known = {*attributes.known}
            owner = [each for each in start_attributes("", sender, self.tenant) if each.key.name in known]
            listed = [each for each in start_attributes(agent, sender, self.tenant) if each.key.name in known]
            action = ScheduleActionStartWorkflow(
                AGENT_WORKFLOW,
                given,
                id=self.id,
                task_queue=task_queue or self._task_queue,
                memo=owned_memo(self.tenant),
                typed_search_attributes=TypedSearchAttributes(owner),
                static_summary=summary(f"{agent}, by the schedule {self.name}"),
                priority=queue_priority(self.tenant, check_priority(priority)),
            )
            schedule = temporal.Schedule(action=action, spec=spec, policy=policy, state=state)
            try:
                await self._client.create_schedule(self.id, schedule, search_attributes=TypedSearchAttributes(listed))
            except ScheduleAlreadyRunningError:
                if not replace:
                    raise RunExistsError(
                        f"there is already a schedule {self.name!r}: replace it (replace=True, --replace), or use another name"
                    ) from None
                await self._replace(schedule, TypedSearchAttributes(listed))
        return await self.show()

    async def _replace(self, schedule: temporal.Schedule, listed: TypedSearchAttributes) -> None:
        try:
            await self._described()
        except RunNotFoundError:
            raise RunExistsError(f"{self.name!r} is the id of another Temporal schedule: use another name") from None
        paused, own = schedule.state.paused, schedule.state.note or ""

        def renewed(found: ScheduleUpdateInput) -> ScheduleUpdate:
            before = found.description.schedule.state
            schedule.state.paused = paused or before.paused
            reason = _read_note(before.note)[0] if before.paused else ""
            schedule.state.note = _write_note(reason, own) or None
            return ScheduleUpdate(schedule, search_attributes=listed)

        await self._handle.update(renewed)

    async def show(self) -> ScheduleView:
        """Return the schedule with its next times and its last runs.

        ```python
        view = await perdure.schedule("nightly").show()
        print(view.paused, view.next, [run.run_id for run in view.runs])
        ```
        """
        with _clear(self._client):
            found = await self._described()
            action: Any = found.schedule.action
            given = await self._read_input(action.args)
        info, policy = found.info, found.schedule.policy
        return ScheduleView(
            **_listed(found.id, given.agent_name, found.schedule.spec, found.schedule.state, info),
            input=given.input,
            has_input=given.has_input,
            overlap=_NAMES.get(policy.overlap, "skip"),
            catchup=0.0 if policy.catchup_window is None else policy.catchup_window.total_seconds(),
            jitter=0.0 if found.schedule.spec.jitter is None else found.schedule.spec.jitter.total_seconds(),
            sender=given.whose.sender,
            tenant=given.whose.tenant,
            task_queue=action.task_queue,
            priority=action.priority.priority_key,
            running=[each.workflow_id for each in info.running_actions],  # type: ignore[attr-defined]
            started=info.num_actions,
            skipped=info.num_actions_skipped_overlap,
            missed=info.num_actions_missed_catchup_window,
        )

    async def _read_input(self, arguments: Sequence[Any]) -> RunInput:
        """Return the input of the schedule's runs. Raise `RunError` for one that another program has written."""
        try:
            # The SDK needs as many types as values.
            [given] = await self._client.data_converter.decode(arguments, [RunInput] * len(arguments))
        except ValueError as error:
            why = first_problem(error) if isinstance(error, ValidationError) else str(error)
            raise RunError(
                f"the input of the schedule {self.name!r} is not one that Perdure has written: {why}. "
                "Create the schedule again, and replace this one"
            ) from None
        return cast("RunInput", given)

    async def pause(self, note: str = "") -> None:
        """Pause the schedule: it starts no runs, and running ones continue.

        `note`: the reason; it is shown in place of the schedule's note until `resume` (default: the shown note stays).

        ```python
        await perdure.schedule("nightly").pause("the shop is closed")
        ```
        """
        with _clear(self._client):
            found = await self._described()
            reason, own = _read_note(found.schedule.state.note)
            await self._handle.pause(note=_write_note(note or reason, own) or _PAUSED)

    async def resume(self, note: str = "") -> None:
        """Resume the schedule. Runs that were missed meanwhile are not started; see `backfill`.

        `note`: the new note (default: the schedule's own note, without the reason of the pause).

        ```python
        await perdure.schedule("nightly").resume()
        ```
        """
        with _clear(self._client):
            found = await self._described()
            _, own = _read_note(found.schedule.state.note)
            await self._handle.unpause(note=note or own or _RESUMED)

    async def trigger(self, *, overlap: Overlap | None = None) -> None:
        """Start a run now, also of a paused schedule. `overlap`: in place of the schedule's own; with `skip` a running
        run prevents it.

        ```python
        await perdure.schedule("nightly").trigger(overlap="allow-all")
        ```
        """
        policy = None if overlap is None else _policy(overlap)
        with _clear(self._client):
            await self._described()
            await self._handle.trigger(overlap=policy)

    async def backfill(self, from_: str | datetime, to: str | datetime, *, overlap: Overlap = "buffer-all") -> None:
        """Start the runs of a time that has passed: one for each time of the schedule from `from_` up to `to`, at
        most 500.

        Both are a `datetime`, or an ISO 8601 date or time; without an offset they are in the schedule's time zone.
        `overlap`: by default one run after the other. A time that already had its run gets another one, under the same
        id. Raises `ScheduleError` for an invalid time.

        ```python
        await perdure.schedule("nightly").backfill("2026-11-01", "2026-11-08")
        ```
        """
        policy = _policy(overlap)
        with _clear(self._client):
            zone = _zone((await self._described()).schedule.spec.time_zone_name or "UTC")
            first, last = _time(from_, zone, "from"), _time(to, zone, "to")
            if first.year < _FIRST_YEAR:
                raise ScheduleError(f"from: {first.isoformat()} is before {_FIRST_YEAR}")
            if last > datetime.now(UTC):
                raise ScheduleError(f"to: {last.isoformat()} has not passed yet")
            if last < first:
                raise ScheduleError(f"to: {last.isoformat()} is before {first.isoformat()}, the start")
            first -= timedelta(seconds=1)  # Temporal leaves out the time at which a backfill begins
            if await self._times(first, last) > MAX_BACKFILLED:
                raise ScheduleError(
                    f"from, to: this period has more than {MAX_BACKFILLED} times of the schedule: divide it into shorter periods"
                )
            await self._handle.backfill(ScheduleBackfill(first, last, policy))

    async def _times(self, first: datetime, last: datetime) -> int:
        """Return the number of the schedule's times after `first` and up to `last`; the server counts to 1,000."""
        start, end = Timestamp(), Timestamp()
        start.FromDatetime(first)
        end.FromDatetime(last)
        request = ListScheduleMatchingTimesRequest(
            namespace=self._client.namespace, schedule_id=self._handle.id, start_time=start, end_time=end
        )
        return len((await self._client.workflow_service.list_schedule_matching_times(request)).start_time)

    async def delete(self) -> None:
        """Delete the schedule; its running runs continue.

        ```python
        await perdure.schedule("nightly").delete()
        ```
        """
        with _clear(self._client):
            await self._described()
            await self._handle.delete()

    @property
    def _handle(self) -> ScheduleHandle:
        return self._client.get_schedule_handle(self.id)

    async def _described(self) -> ScheduleDescription:
        """Return the description of this tenant's schedule, whose id has a digest of the tenant. Raise
        `RunNotFoundError` unless it starts runs of an agent.
        """
        try:
            found = await self._handle.describe()
            if _is_ours(found.schedule.action):
                return found
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
        raise _missing(self._client, self.name)

    def __repr__(self) -> str:
        return f"Schedule({self.name!r})"


def unbound_client(client: Client) -> Client:
    """Return the client with a codec that binds no value to a run.

    The SDK encodes a schedule's input for the schedule's id, but each of its runs has an id of its own.
    """
    config = client.config(active_config=True)
    converter = config["data_converter"]
    if converter.payload_codec is None:
        return client
    config["data_converter"] = replace(converter, payload_codec=UnboundCodec(converter.payload_codec))
    config["plugins"] = []  # the configuration holds their changes already
    return Client(**config)


async def walk_schedules(client: Client, tenant: str) -> AsyncGenerator[ListedSchedule, None]:
    """Yield the schedules of a tenant. The index of the server is a moment late."""
    with _clear(client):
        try:
            found = [each async for each in await client.list_schedules(of_tenant(tenant))]
        except RPCError as error:
            if not names_attribute(error):
                raise
            found = [each async for each in await client.list_schedules()]  # the namespace lacks the attributes
        for each in found:
            if _belongs(each, tenant):
                yield _row(each)


def _belongs(found: ScheduleListDescription, tenant: str) -> bool:
    if found.schedule is None or found.info is None or not _is_ours(found.schedule.action):
        return False
    with contextlib.suppress(ScheduleError):  # the id of another program's schedule
        return found.id == schedule_id(schedule_name(found.id), tenant)
    return False


def _row(found: ScheduleListDescription) -> ListedSchedule:
    assert found.schedule is not None
    assert found.info is not None
    agent = found.typed_search_attributes.get(AGENT) or ""
    return ListedSchedule(**_listed(found.id, agent, found.schedule.spec, found.schedule.state, found.info))


def _is_ours(action: Any) -> bool:
    return getattr(action, "workflow", None) == AGENT_WORKFLOW


def _missing(client: Client, name: str) -> RunNotFoundError:
    return RunNotFoundError(f"there is no schedule {name!r} in namespace {client.namespace!r}")


def _listed(id: str, agent: str, spec: ScheduleSpec, state: Any, info: Any) -> dict[str, Any]:
    """Return the fields of a `ListedSchedule`."""
    zone = _zone(timezone := spec.time_zone_name or "UTC")
    recent: Sequence[Any] = info.recent_actions
    reason, own = _read_note(state.note)
    return {
        "name": schedule_name(id),
        "agent": agent,
        "cron": [each.comment for each in spec.calendars if each.comment],
        "every": next((each.every.total_seconds() for each in spec.intervals), None),
        "timezone": timezone,
        "paused": state.paused,
        "note": reason or own,
        "next": [time.astimezone(zone) for time in info.next_action_times],
        "runs": [
            ScheduledRun(each.action.workflow_id, each.scheduled_at.astimezone(zone), each.started_at.astimezone(zone))
            for each in reversed(recent)
        ],
    }


def _read_note(note: str | None) -> tuple[str, str]:
    """Return the reason of a pause, and the schedule's own note; "" for one that is not set.

    `paused` and `resumed` are Perdure's own: Temporal accepts no empty note.
    """
    if note is None or note in (_PAUSED, _RESUMED):
        return "", ""
    if not note.startswith(_WHY_PAUSED):
        return "", note
    reason, _, own = note.removeprefix(_WHY_PAUSED).partition(_OWN_NOTE)
    return reason, own


def _write_note(reason: str, own: str) -> str:
    """Return the note that Temporal keeps: the reason of a pause, then the schedule's own note; "" without both."""
    if not reason:
        return own
    return f"{_WHY_PAUSED}{reason}{_OWN_NOTE}{own}" if own else f"{_WHY_PAUSED}{reason}"


def _policy(overlap: str) -> ScheduleOverlapPolicy:
    if overlap not in _POLICIES:
        raise ScheduleError(f"overlap: {shorten(overlap, 40)} is not one of {', '.join(OVERLAPS)}")
    return _POLICIES[overlap]


_FIRST_YEAR: Final = 1970
_LEAST_CATCHUP: Final = 10.0
"""Seconds; Temporal's least value."""


def _spec(cron: Sequence[str], every: ScheduleDuration | None, timezone: str, jitter: float) -> ScheduleSpec:
    if not cron and every is None:
        raise ScheduleError("the times are missing: give cron ('0 2 * * *'), or every ('1h')")
    for each in cron:
        if (
            not each.strip()
            or not each.isprintable()
            or "#" in each
            or each.lstrip().startswith(("CRON_TZ", "TZ=", "@every"))
        ):
            raise ScheduleError(f"cron: {shorten(each, 60)} {_FORM}")
    if not _ZONE.fullmatch(timezone) or timezone.casefold().partition("/")[0] in _NO_ZONES:
        raise ScheduleError(_no_zone(timezone))
    between = None if every is None else _seconds(every, "every")
    if between is not None and (between < 1 or between % 1):
        raise ScheduleError(f"every: {between:g} s is not valid: give whole seconds, at least 1 s")
    return ScheduleSpec(
        # Temporal keeps the calendar that it makes of an expression, and the comment after the #.
        cron_expressions=[f"{' '.join(each.split())} # {' '.join(each.split())}" for each in cron],
        intervals=[] if between is None else [ScheduleIntervalSpec(every=timedelta(seconds=between))],
        jitter=timedelta(seconds=jitter) if jitter else None,
        time_zone_name=timezone,
    )


_FORM: Final = "is not a cron expression: use MINUTE HOUR DAY MONTH WEEKDAY, such as '0 2 * * 1-5', or @daily; timezone names the time zone"


def _no_zone(timezone: str) -> str:
    return f"timezone: {shorten(timezone, 60)} is not a time zone: use a name such as Europe/Berlin, or UTC"


def _seconds(given: ScheduleDuration, name: str) -> float:
    seconds: float | None
    if isinstance(given, str):
        seconds = read_duration(given)
        if seconds is None:
            raise ScheduleError(f"{name}: {shorten(given, 40)} is not a duration: use 30s, 5min, 2h, 3d or 1w")
    else:
        seconds = given.total_seconds() if isinstance(given, timedelta) else float(given)
    if not 0 <= seconds <= _LONGEST:
        raise ScheduleError(f"{name}: {seconds:g} s is not valid: give 0 s to ten years")
    return seconds


_LONGEST: Final = 3650 * 86400.0


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # this machine may know fewer than the server
        return UTC


def _time(given: str | datetime, zone: tzinfo, name: str) -> datetime:
    try:
        time = given if isinstance(given, datetime) else datetime.fromisoformat(given.strip())
        return (time if time.tzinfo else time.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ScheduleError(
            f"{name}: {shorten(str(given), 40)} is not a time: use 2026-11-01, or 2026-11-01T02:00"
        ) from None


@contextlib.contextmanager
def _clear(client: Client, cron: Sequence[str] = (), timezone: str = "") -> Iterator[None]:
    """Translate the server's errors. Errors about the cron expressions or the time zone name them."""
    with clear_errors(client):
        try:
            yield
        except RPCError as error:
            if error.status == RPCStatusCode.UNIMPLEMENTED:
                raise ServerRefusalError(
                    "this is Temporal's test server, which has no schedules: use a dev server (server='dev' in tests)"
                ) from None
            if error.status != RPCStatusCode.INVALID_ARGUMENT or names_attribute(error):
                raise
            words = error.message.removeprefix("Invalid schedule spec: ")
            if "time zone" in words:
                raise ScheduleError(_no_zone(timezone)) from None
            given = f"cron: {shorten(' | '.join(cron), 60)}: " if cron and words != error.message else ""
            hint = "; use MINUTE HOUR DAY MONTH WEEKDAY, such as '0 2 * * 1-5'" if given else ""
            raise ScheduleError(f"{given}{words}{hint}") from None
