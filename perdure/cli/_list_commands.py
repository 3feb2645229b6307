"""`perdure list`, `cancel`, `terminate`, and `policy`, with the options that select runs."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar

import click
import typer

from perdure.agents.json_files import json_option
from perdure.approvals.policy import ASKS, parse_policy
from perdure.cli._console import get_console, make_table, wait_line
from perdure.cli._execute import INTERRUPTED, USAGE, CommandError, Json, check_choice, connected, one_line_errors
from perdure.cli._help import Commands
from perdure.cli._options import built_from, naming_tenants
from perdure.client.selection import STATUSES, ListedRun, RunPage, Selection, read_since, schedule_id
from perdure.errors import RunError, RunNotFoundError, pluralize
from perdure.values.json import dumps, shorten

if TYPE_CHECKING:
    from perdure.client.perdure import Perdure
    from perdure.client.run import Run

T = TypeVar("T")

Agent = Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Only runs of this agent.")]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="Only runs that started, or continued as new, since this time: 90min, 2h, 3d ago, or 2026-01-31T08:00.",
    ),
]
Sender = Annotated[str | None, typer.Option("--sender", metavar="NAME", help="Only runs of this sender.")]
Tenant = Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only runs of this tenant.")]
Query = Annotated[str | None, typer.Option("--query", metavar="QUERY", help="A further Temporal list filter.")]
All = Annotated[bool, typer.Option("--all", help="All open runs.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
ChangeMany: TypeAlias = "Callable[[Perdure, Selection, Callable[[str], None]], Awaitable[int]]"
"""Changes the selected runs, and returns their number. The last argument receives the id of each changed run."""
_SHOWN: Final = 100
"""The runs between two lines of progress."""
OneRun = Annotated[str | None, typer.Argument(metavar="[ID]", help="The run's id; or select many runs by options.")]


@dataclass(slots=True)
class ChangedRuns:
    """The progress of a command that changes many runs, on stderr."""

    count: int
    done: int = 0

    @property
    def words(self) -> str:
        return f"{self.done:,} of {pluralize(self.count, 'run')} accepted the change"

    def note(self, run_id: str) -> None:
        """Count a run; every 100 runs print a line."""
        del run_id
        self.done += 1
        if self.done % _SHOWN == 0:
            get_console(stderr=True).print(self.words, style="dim")


@dataclass(frozen=True, slots=True)
class ChosenRuns:
    """The runs that a command changes: one by its id, or the selected ones. Runs of delegates follow theirs."""

    run_id: str | None
    selection: Selection
    yes: bool

    def change(
        self,
        verb: str,
        one: Callable[[Run[Any]], Coroutine[Any, Any, T]],
        many: ChangeMany,
    ) -> T | int:
        """Change the runs; many only after a question on a terminal. Return the result of `one`, or the number of runs."""
        if (id := self.run_id) is not None:
            return connected(lambda perdure: one(perdure.get_run(id)))
        return connected(lambda perdure: self.change_many(perdure, verb, many))

    async def change_many(self, perdure: Perdure, verb: str, many: ChangeMany) -> int:
        """Change the selected runs, and return their number. Raises `CommandError` with the progress if it is interrupted."""
        count = await perdure.count_runs(self.selection)
        progress = ChangedRuns(count)
        try:
            return await many(perdure, self.selection, progress.note) if confirm(count, verb, yes=self.yes) else 0
        except asyncio.CancelledError:
            raise CommandError(f"interrupted: {progress.words}; the same command continues", INTERRUPTED) from None


def check_since(since: str | None) -> None:
    """Raise `CommandError` for a time that cannot be read, before a server is needed."""
    if since is not None:
        try:
            read_since(since, datetime.now(UTC))
        except RunError as error:
            raise CommandError(f"--since: {error}", USAGE) from None


def choose(
    run_id: OneRun = None,
    agent: Agent = None,
    since: Since = None,
    sender: Sender = None,
    tenant: Tenant = None,
    query: Query = None,
    everything: All = False,
    yes: Yes = False,
) -> ChosenRuns:
    """Choose running runs by options. Raise `CommandError` unless the options choose one run, or some, or all."""
    check_since(since)
    some = (agent, since, sender, tenant, query) != (None,) * 5
    if some and everything:
        raise CommandError("--all selects every open run: use it without other selections", USAGE)
    if (run_id is None) == (not some and not everything):
        raise CommandError(
            "give a run's id, or select many by --agent, --since, --sender, --tenant, --query, --all", USAGE
        )
    return ChosenRuns(run_id, Selection(agent, "running", since, sender, tenant, query=query, outermost=True), yes)


def confirm(count: int, what: str, *, yes: bool) -> bool:
    """Whether to change `count` runs: ask on a terminal. Raises `CommandError` without a terminal to ask."""
    if count == 0 or yes:
        return count > 0
    runs = pluralize(count, "run")
    if not sys.stdin.isatty():
        raise CommandError(
            f"{runs} {'matches' if count == 1 else 'match'}; nothing changed: add --yes to {what} them", USAGE
        )
    if not click.confirm(f"{what} {runs}?", err=True):
        raise CommandError("nothing changed")
    return True


lists_app = Commands()


@lists_app.command("list")
def list_command(
    agent: Agent = None,
    status: Annotated[
        str | None,
        typer.Option(
            metavar="STATUS",
            help="Only runs with this status: running, completed, refused, failed, cancelled, terminated or timed_out.",
        ),
    ] = None,
    since: Since = None,
    sender: Sender = None,
    tenant: Tenant = None,
    reason: Annotated[
        str | None,
        typer.Option(metavar="REASON", help="Only runs that ended for this reason: output, deadline, ModelFailed, …"),
    ] = None,
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Only runs with a call or a question that waits for a person.")
    ] = False,
    schedule: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only runs of this schedule; with --tenant, of that tenant's schedule."),
    ] = None,
    version: Annotated[
        str | None, typer.Option("--agent-version", metavar="NAME", help="Only runs of this version of the agent.")
    ] = None,
    query: Query = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The number of runs on a page.")] = 20,
    page: Annotated[str | None, typer.Option(help="The page to print, as the previous page named it.")] = None,
    as_json: Json = False,
) -> None:
    """List runs: running ones first, the newest on top, then ended ones, the last end on top."""
    with one_line_errors():
        check_choice("--status", status, [*STATUSES])
        check_since(since)
        if schedule is not None:
            schedule_id(schedule)
    chosen = Selection(agent, status, since, sender, tenant, reason, waiting, query, schedule=schedule, version=version)

    async def read(perdure: Perdure) -> RunPage:
        async def has(other: str) -> bool:
            return await perdure.count_runs(replace(chosen, tenant=other)) > 0

        found = await perdure.page_of_runs(chosen, size=limit, page=page)
        if schedule is not None and not found.rows:
            error = RunNotFoundError(f"there are no such runs of the schedule {schedule!r}")
            if (hint := await naming_tenants(perdure, error, tenant or "", has)) is not error:
                print(f"perdure: {hint}", file=sys.stderr)
        return found

    found = connected(read)
    if as_json:
        print(dumps([row.as_json() for row in found.rows]))
    else:
        print_rows(found.rows)
    if found.following is not None:
        # With `--json`, stdout has the JSON document only; for people, the line is a part of the list.
        to = sys.stderr if as_json else sys.stdout
        print(f"the next page: {next_page(chosen, limit, found.following, as_json=as_json)}", file=to)


@lists_app.command()
@built_from("runs", choose)
def cancel(runs: ChosenRuns, as_json: Json = False) -> None:
    """Cancel one run or many, with their model streams and running tools."""
    found = runs.change(
        "cancel", lambda run: run.cancel(), lambda perdure, chosen, note: perdure.cancel_runs(chosen, on_run=note)
    )
    if isinstance(found, int):
        print(dumps({"runs": found}) if as_json else f"cancellation requested of {pluralize(found, 'run')}")
    else:
        print(dumps({"runId": runs.run_id}) if as_json else f"{runs.run_id}: cancellation requested")


@lists_app.command()
@built_from("runs", choose)
def terminate(
    runs: ChosenRuns,
    reason: Annotated[str, typer.Option(help="The reason. Temporal records it.")] = "",
    as_json: Json = False,
) -> None:
    """End one run or many at once, without cleanup; for runs that no worker can continue. Running tool calls continue."""
    found = runs.change(
        "terminate",
        lambda run: run.terminate(reason),
        lambda perdure, chosen, note: perdure.terminate_runs(chosen, reason=reason, on_run=note),
    )
    if isinstance(found, int):
        print(dumps({"runs": found}) if as_json else f"terminated {pluralize(found, 'run')}")
    else:
        status = {"runId": runs.run_id, "status": "terminated"}
        print(dumps(status) if as_json else f"{runs.run_id}: terminated")


@lists_app.command()
def limits(
    tenant: Annotated[str, typer.Option("--tenant", metavar="NAME", help="The tenant; by default no tenant.")] = "",
    as_json: Json = False,
) -> None:
    """List a tenant's use today or this month: the counts of rules over runs, and budgets."""
    found = connected(lambda perdure: perdure.limits(tenant=tenant))
    if as_json:
        print(dumps([account.as_json() for account in found]))
        return
    if not found:
        print("the tenant has no use that a rule or a budget counts over runs")
        return
    rows = [
        (
            account.title,
            account.since,
            f"{account.used:,.10g} of {account.limit:,.10g}{f' {account.unit}' if account.unit else ''}",
            f"{account.reservations:,}",
        )
        for account in found
    ]
    console = get_console()
    console.print(
        make_table(
            ["account", "since", "used", "times"],
            rows,
            console.width,
            shrinkable=["account"],
            droppable=["times"],
            right=["times"],
        )
    )


@lists_app.command()
@built_from("runs", choose)
def policy(
    runs: ChosenRuns,
    ask: Annotated[str | None, typer.Option(help="The calls that need an approval: " + " < ".join(ASKS))] = None,
    tool: Annotated[
        list[str] | None, typer.Option(metavar="NAME=never|always", help="An exception for one tool. May be repeated.")
    ] = None,
    change: Annotated[
        str | None, typer.Option("--set", metavar="JSON|@FILE", help="Keys of config.approval, with their new values.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Change the approval policy of one running run or many, for waiting calls too. With many, runs without a worker get the change later."""
    with one_line_errors():
        keys: Any = {} if change is None else json_option(change, "--set")
        if not isinstance(keys, dict):
            raise CommandError(
                f'--set must be a JSON object such as {{"ask": "always"}}, not {shorten(keys, 60)}', USAGE
            )
        check_choice("--ask", ask, ASKS)
        keys |= {} if ask is None else {"ask": ask}
        for item in tool or ():
            if not item.endswith(("=never", "=always")):
                raise CommandError(f"--tool: {item!r} is not NAME=never or NAME=always", USAGE)
        exceptions = dict(item.rpartition("=")[::2] for item in tool or [])
        keys |= {"tools": exceptions} if exceptions else {}
        if not keys:
            raise CommandError("nothing to change: give --ask, --tool or --set", USAGE)
        parse_policy(keys, source="--set")
    found = runs.change(
        "change the policy of",
        lambda run: run.policy(**keys),
        lambda perdure, chosen, note: perdure.change_policies(chosen, on_run=note, **keys),
    )
    if isinstance(found, int):
        print(dumps({"runs": found}) if as_json else f"{pluralize(found, 'run')} accepted the change")
    else:
        print(dumps(found))


def next_page(chosen: Selection, limit: int, page: str, *, as_json: bool) -> str:
    """Return the command for the next page, with the same filters: a page's name does not contain them."""
    names = ("agent", "status", "since", "sender", "tenant", "reason", "query", "schedule")
    filters = {name: getattr(chosen, name) for name in names}
    words = [part for name, value in filters.items() if value is not None for part in (f"--{name}", value)]
    words += [] if chosen.version is None else ["--agent-version", chosen.version]
    words += [*(["--waiting"] if chosen.waiting else []), *(["--json"] if as_json else [])]
    return shlex.join(["perdure", "list", *words, "--limit", str(limit), "--page", page])


def print_rows(rows: list[ListedRun]) -> None:
    """Print a table of runs. Columns for which the terminal has no room are left out."""
    if not rows:
        print("no runs")
        return
    console = get_console()
    titles = ["run", "agent", "status", "why", "waits", "cost", "started", "ended"]
    shown = [[*_cells(row), _local(row.started_at), _local(row.ended_at)] for row in rows]
    droppable = ["ended", "agent", "why", "cost", "started"]
    if any(row.version for row in rows):
        titles.insert(2, "version")
        shown = [[*cells[:2], row.version or "", *cells[2:]] for row, cells in zip(rows, shown, strict=True)]
        droppable.insert(4, "version")
    console.print(make_table(titles, shown, console.width, shrinkable=("why",), droppable=droppable, right=("cost",)))
    if first := next((row for row in rows if row.waiting), None):
        print(f"list the waiting calls: perdure approvals {shlex.quote(first.id)}", file=sys.stderr)


def _cells(row: ListedRun) -> tuple[str, str, str, str, str, str]:
    waits = {0: "", 1: "1 decision"}.get(row.waiting or 0, f"{row.waiting} decisions")
    cost = "" if row.cost is None else f"${row.cost:.4f}"
    why = row.stop_reason or row.trouble or ("" if row.wait is None else wait_line(row.wait))
    return row.id, row.agent or "", row.status, why, waits, cost


def _local(time: datetime | None) -> str:
    return "" if time is None else time.astimezone().strftime("%Y-%m-%d %H:%M:%S")
