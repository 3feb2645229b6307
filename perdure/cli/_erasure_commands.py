"""`perdure erase`: remove the runs and sessions of a person, or old ones (R24.5)."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from perdure.cli._console import harmless, screen, table
from perdure.cli._errors import FAILED, USAGE, CommandError, one_line_errors
from perdure.cli._execute import Json, connected
from perdure.cli._help import Commands
from perdure.cli._options import configured, local_user
from perdure.client.selection import read_since
from perdure.errors import RunError
from perdure.hosting.settings import Settings
from perdure.values.json import dumps

if TYPE_CHECKING:
    from perdure.client.erasure import ErasureReport
    from perdure.client.perdure import Perdure

erasure_app = Commands()


@erasure_app.command()
@configured("task_queue", "audit", "retention")
def erase(
    settings: Settings,
    tenant: Annotated[str, typer.Option(metavar="NAME", help="The tenant; default: no tenant.")] = "",
    sender: Annotated[str | None, typer.Option(metavar="NAME", help="The person whose data it is.")] = None,
    before: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only what ended, or was last used, before: 90d ago, or 2026-01-31."),
    ] = None,
    old: Annotated[bool, typer.Option("--old", help="Only data older than its tenant's age in --retention.")] = False,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared",
            help="Also sessions to which others have written, and evaluations with others' cases, as a whole.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; print what would be removed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who does it; default: the user of this machine.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Remove a person's runs and sessions, or old ones, from Temporal and from external storage. This cannot be undone. Repeat it where it was broken off."""
    with one_line_errors():
        if old and (tenant or sender or before is not None or shared):
            raise CommandError(
                "--old has no --tenant, --sender, --before or --shared: the setting retention names tenants and ages",
                USAGE,
            )
        if not old and not sender and before is None:
            raise CommandError(
                "name the person by --sender, or a time by --before, or both; or --old, with the setting retention",
                USAGE,
            )
        try:
            until = None if before is None else read_since(before, datetime.now(UTC))
        except RunError as error:
            raise CommandError(f"--before: {error}", USAGE) from None
    who = by or local_user()
    given: dict[str, Any] = {"tenant": tenant, "sender": sender, "before": until, "shared": shared, "by": who}

    async def run(perdure: Perdure, *, dry_run: bool) -> list[ErasureReport]:
        if old:
            return await perdure.apply_retention(dry_run=dry_run, by=who)
        return [await perdure.erase(dry_run=dry_run, **given)]

    planned = connected(lambda perdure: run(perdure, dry_run=True))
    with one_line_errors():
        is_wanted = not dry_run and _is_confirmed(planned, yes=yes, as_json=as_json)
    if not is_wanted:
        _print(planned, as_json=as_json)
        return
    reports = connected(lambda perdure: run(perdure, dry_run=False))
    _print(reports, as_json=as_json)
    if any(report.executions for report in reports):
        print(
            "perdure: the server removes histories within minutes; repeat the command to see that nothing is left",
            file=sys.stderr,
        )
    if settings.audit is not None:
        print("perdure: the audit log keeps its lines: who decided what, and this erasure", file=sys.stderr)
    left = [each for report in reports for each in report.remaining]
    raise SystemExit(FAILED if any(each.what == "run" for each in left) else 0)


def _is_confirmed(planned: list[ErasureReport], *, yes: bool, as_json: bool) -> bool:
    """Whether there is something to remove, and the person agrees. Raises `CommandError` without a terminal to ask."""
    found = [report for report in planned if report.executions]
    if not found or yes:
        return bool(found)
    if as_json or not sys.stdin.isatty():
        what = "; ".join(f"{_tenant_label(report, len(found) > 1)}{_counts(report)}" for report in found[:5])
        raise CommandError(f"nothing was removed: {what} would be. Add --yes", USAGE)
    _print(planned, as_json=False)
    if not click.confirm("remove all of this for good?", err=True):
        raise CommandError("nothing was removed")
    return True


def _tenant_label(report: ErasureReport, is_one_of_many: bool) -> str:
    """Return the tenant of a report as the beginning of its line; empty if it is the only report."""
    return f"{harmless(report.tenant) or 'no tenant'}: " if is_one_of_many else ""


def _counts(report: ErasureReport) -> str:
    named = (
        ("session", len(report.sessions)),
        ("run", len(report.runs) + len(report.session_runs)),
        *([("evaluation", len(report.evaluations))] if report.evaluations else ()),
        ("execution", report.executions),
        ("stored value", report.values),
        ("file", report.files),
    )
    return ", ".join(f"{count:,} {name}{'' if count == 1 else 's'}" for name, count in named)


def _print(reports: list[ErasureReport], *, as_json: bool) -> None:
    out = screen()
    if not reports and not as_json:
        out.print("nothing is older than its tenant's retention")
    for report in reports:
        if as_json:
            print(dumps(report.as_json()))
            continue
        line = f"{_tenant_label(report, len(reports) > 1)}{'would remove' if report.dry_run else 'removed'} {_counts(report)}"
        out.print(line, markup=False, soft_wrap=True)
        runs = [*report.runs, *report.session_runs]
        for name, ids in (("session", report.sessions), ("run", runs), ("evaluation", report.evaluations)):
            for id in ids:
                out.print(harmless(f"  {name} {id}"), markup=False, soft_wrap=True)
        if report.remaining:
            rows = [(each.what, harmless(each.id), harmless(each.why), each.until) for each in report.remaining]
            out.print("remains:")
            out.print(table(("what", "id", "why", "until"), rows, out.width, gives=("why",)))
