"""`perdure schedule`: runs of an agent at fixed times, on Temporal's own Schedules (R19.6)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from perdure.agents.agent import Agent
from perdure.agents.files import example_input
from perdure.agents.json_files import json_option
from perdure.cli._console import get_console, make_table, strip_control_characters
from perdure.cli._execute import (
    FAILED,
    USAGE,
    CommandError,
    Context,
    Json,
    Priority,
    check_choice,
    connected,
    context_option,
    one_line_errors,
)
from perdure.cli._help import Commands
from perdure.cli._options import naming_tenants, with_settings
from perdure.errors import RunNotFoundError, ScheduleError
from perdure.hosting.settings import Settings
from perdure.runs.schedules import OVERLAPS, check_agent_name, with_time
from perdure.values.json import Json as JsonValue
from perdure.values.json import dumps
from perdure.values.references import MISSING, Missing

if TYPE_CHECKING:
    from perdure.client.perdure import Perdure
    from perdure.client.schedules import ListedSchedule, Schedule, ScheduleView

T = TypeVar("T")

_NEXT: Final = 5
"""The most times and runs that `show` prints."""

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]
Tenant = Annotated[
    str, typer.Option(metavar="NAME", help="The schedule's tenant. Other tenants' schedules are not found.")
]
Note = Annotated[str, typer.Option(metavar="TEXT", help="A note, shown in lists and pages.")]
Overlap = Annotated[
    str | None,
    typer.Option(metavar="POLICY", help=f"The overlap policy, if the last run is still open: {', '.join(OVERLAPS)}."),
]

schedule_app = Commands(no_args_is_help=True, help="Schedules: runs of an agent at fixed times.")


@schedule_app.command("create")
@with_settings("task_queue", "agents")
def create(
    settings: Settings,
    name: Name,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's name in the workers' agents folder.")],
    cron: Annotated[
        list[str] | None,
        typer.Option(metavar="CRON", help="The times: MINUTE HOUR DAY MONTH WEEKDAY, or @daily. May be repeated."),
    ] = None,
    timezone: Annotated[str, typer.Option(metavar="ZONE", help="The time zone of --cron: Europe/Berlin.")] = "UTC",
    every: Annotated[str | None, typer.Option(metavar="TIME", help="The interval: 30s, 5min, 2h, 1d or 1w.")] = None,
    input: Annotated[
        str | None,
        typer.Option(
            "--input", metavar="JSON|@FILE", help='The input of each run; "{{scheduled}}" is the time of the run.'
        ),
    ] = None,
    overlap: Overlap = "skip",
    catchup: Annotated[
        str, typer.Option(metavar="TIME", help="The longest delay of a run that the server missed.")
    ] = "1d",
    jitter: Annotated[str, typer.Option(metavar="TIME", help="The longest random delay of a run.")] = "0s",
    note: Note = "",
    paused: Annotated[bool, typer.Option("--paused", help="Create the schedule paused; 'resume' starts it.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Change the existing schedule of this name.")] = False,
    sender: Annotated[
        str, typer.Option(metavar="NAME", help="The person for whom the runs work. Lists filter by it.")
    ] = "",
    tenant: Tenant = "",
    context: Context = None,
    priority: Priority = None,
    as_json: Json = False,
) -> None:
    """Create a schedule. Each run reads the agent's file when it starts."""
    with one_line_errors():
        check_choice("--overlap", overlap, OVERLAPS)
        check_agent_name(agent)
        if not cron and every is None:
            raise CommandError("the times are missing: give --cron '0 2 * * *', or --every 1h", USAGE)
        known = context_option(context)
        value = _check_input(settings, agent, input, context)
    given: dict[str, Any] = {"cron": cron or (), "timezone": timezone, "every": every, "overlap": overlap}
    given |= {"catchup": catchup, "jitter": jitter, "note": note, "paused": paused, "replace": replace}
    given |= {"priority": priority}

    async def add(perdure: Perdure) -> ScheduleView:
        schedule = perdure.schedule(name, tenant=tenant, task_queue=settings.task_queue)
        with _naming_flags():
            return await schedule.create(agent, value, sender=sender, context=known, **given)

    view = connected(add)
    if as_json:
        print(dumps(view.as_json()))
    else:
        print(f"{name}: {_when(view)}; next {_next(view)}")
    if not view.next:
        print("perdure: this schedule has no future time: it starts no run", file=sys.stderr)


@contextmanager
def _naming_flags() -> Iterator[None]:
    """Name the flags in an error that names the arguments of `Schedule`'s methods: `every` is `--every` here."""
    try:
        yield
    except ScheduleError as error:
        fields, colon, problem = str(error).partition(": ")
        names = fields.split(", ")
        if not {*names} <= _FLAGS:
            raise
        raise ScheduleError(f"{', '.join(f'--{each}' for each in names)}{colon}{problem}") from None


_FLAGS: Final = frozenset(("cron", "timezone", "every", "overlap", "catchup", "jitter", "from", "to"))


def _check_input(settings: Settings, agent: str, text: str | None, context: str | None) -> JsonValue | Missing:
    """Return the input, validated if the agent's file exists here: its runs validate it too."""
    here = settings.agents_folder / f"{agent}.json"
    found = Agent.read_to_run(here) if here.is_file() else None
    example = "{}" if found is None else example_input(found.input_schema, text)
    value = MISSING if text is None else json_option(text, "--input", example)
    if found is None:
        print(
            f"note: {here} does not exist here: the input was not validated. Each run reads the workers' file",
            file=sys.stderr,
        )
    else:
        context_option(context, found.check_context)
        found.check_input(value if value is MISSING else with_time(value, datetime.now(UTC).isoformat()), explicit=True)
    return value


@schedule_app.command("list")
def list_schedules(tenant: Tenant = "", as_json: Json = False) -> None:
    """List a tenant's schedules with their next times and last runs."""

    async def found(perdure: Perdure) -> list[ListedSchedule]:
        return sorted([each async for each in perdure.list_schedules(tenant=tenant)], key=lambda each: each.name)

    schedules = connected(found)
    if as_json:
        print(dumps([each.as_json() for each in schedules]))
    elif not schedules:
        print("no schedules")
    else:
        out = get_console()
        rows = [
            (each.name, each.agent, _when(each), _next(each), each.runs[0].run_id if each.runs else "")
            for each in schedules
        ]
        titles = ("schedule", "agent", "when", "next", "last run")
        out.print(make_table(titles, rows, out.width, shrinkable=("last run", "when"), droppable=("last run", "agent")))


@schedule_app.command("show")
def show(name: Name, tenant: Tenant = "", as_json: Json = False) -> None:
    """Show a schedule: its agent, its input, its next times, its last runs."""
    view = _on_schedule(name, tenant, lambda schedule: schedule.show())
    if as_json:
        print(dumps(view.as_json()))
        return
    out = get_console()
    lines = [
        f"{view.name}: {view.agent}, {_when(view)}",
        f"overlap {view.overlap}, catch-up {view.catchup:g} s, jitter {view.jitter:g} s, task queue {view.task_queue}",
        *(
            [f"paused: {view.note or 'no reason given'}"]
            if view.paused
            else [f"note: {view.note}"]
            if view.note
            else []
        ),
        *([f"input: {dumps(view.input)}"] if view.has_input else []),
        *([f"sender {view.sender or 'none'}"] if view.sender or view.tenant else []),
        *([f"tenant {view.tenant}"] if view.tenant else []),
        f"started {view.started}, skipped {view.skipped} because another run was open, missed {view.missed}",
        *(f"next  {time.isoformat(timespec='seconds')}" for time in view.next[:_NEXT] if not view.paused),
        *(f"ran   {run.scheduled_at.isoformat(timespec='seconds')}  {run.run_id}" for run in view.runs[:_NEXT]),
        *(f"works {run_id}" for run_id in view.running),
    ]
    for line in lines:
        out.print(strip_control_characters(line), markup=False, highlight=False)


@schedule_app.command("pause")
def pause(name: Name, note: Note = "", tenant: Tenant = "", as_json: Json = False) -> None:
    """Start no more runs. Open runs continue."""
    _on_schedule(name, tenant, lambda schedule: schedule.pause(note))
    _done(name, "paused", as_json)


@schedule_app.command("resume")
def resume(name: Name, note: Note = "", tenant: Tenant = "", as_json: Json = False) -> None:
    """Start runs at the schedule's times again. 'backfill' starts the missed runs."""
    _on_schedule(name, tenant, lambda schedule: schedule.resume(note))
    _done(name, "resumed", as_json)


@schedule_app.command("trigger")
def trigger(name: Name, overlap: Overlap = None, tenant: Tenant = "", as_json: Json = False) -> None:
    """Start a run now. A paused schedule starts one too."""
    with one_line_errors():
        check_choice("--overlap", overlap, OVERLAPS)
    policy: Any = overlap
    _on_schedule(name, tenant, lambda schedule: schedule.trigger(overlap=policy))
    _done(name, "triggered", as_json)


@schedule_app.command("backfill")
def backfill(
    name: Name,
    first: Annotated[
        str,
        typer.Option(
            "--from", metavar="TIME", help="The start: 2026-11-01, or 2026-11-01T02:00, in the schedule's time zone."
        ),
    ],
    last: Annotated[str, typer.Option("--to", metavar="TIME", help="The end, in the same form.")],
    overlap: Overlap = "buffer-all",
    tenant: Tenant = "",
    as_json: Json = False,
) -> None:
    """Start the runs of a past period."""
    with one_line_errors():
        check_choice("--overlap", overlap, OVERLAPS)
    policy: Any = overlap

    async def start(schedule: Schedule) -> None:
        with _naming_flags():
            await schedule.backfill(first, last, overlap=policy)

    _on_schedule(name, tenant, start)
    _done(name, "backfilled", as_json)


@schedule_app.command("delete")
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    tenant: Tenant = "",
    as_json: Json = False,
) -> None:
    """Delete a schedule. Its runs continue."""
    if not yes and not typer.confirm(f"delete the schedule {name!r}?", err=True):
        raise SystemExit(FAILED)
    _on_schedule(name, tenant, lambda schedule: schedule.delete())
    _done(name, "deleted", as_json)


def _on_schedule(name: str, tenant: str, do: Callable[[Schedule], Coroutine[Any, Any, T]]) -> T:
    """Run a command on a tenant's schedule. The error for a missing one names other tenants that have it."""

    async def run(perdure: Perdure) -> T:
        async def has(other: str) -> bool:
            with suppress(RunNotFoundError):
                await perdure.schedule(name, tenant=other).show()
                return True
            return False

        try:
            return await do(perdure.schedule(name, tenant=tenant))
        except RunNotFoundError as error:
            raise await naming_tenants(perdure, error, tenant, has) from None

    return connected(run)


def _done(name: str, what: str, as_json: bool) -> None:
    print(dumps({"schedule": name, what: True}) if as_json else f"{name}: {what}")


def _when(view: ListedSchedule) -> str:
    """Return the schedule's times in short: `0 2 * * * Europe/Berlin`, `every 3600 s`."""
    cron = [f"{' | '.join(view.cron)} {view.timezone}"] if view.cron else []
    return " and ".join([*cron, *([f"every {view.every:g} s"] if view.every else [])])


def _next(view: ListedSchedule) -> str:
    if view.paused:
        return "paused"
    return view.next[0].isoformat(timespec="minutes") if view.next else "never"
