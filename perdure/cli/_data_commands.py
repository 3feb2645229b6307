"""Stored data as a whole: `perdure export`, `import`, `erase`, `codec` and `audit` (R24.5, R24.9)."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from perdure.agents.json_files import json_option
from perdure.cli._console import get_console, make_table, strip_control_characters
from perdure.cli._execute import FAILED, USAGE, CommandError, Json, RunId, connected, one_line_errors
from perdure.cli._help import Commands
from perdure.cli._options import local_user, with_settings, write_file
from perdure.client.selection import read_since
from perdure.errors import RunError, SettingsError, pluralize
from perdure.hosting.settings import Settings
from perdure.runs.audit import DATABASES, VerifiedChain, verify_chain
from perdure.values.json import JsonObject, dumps

if TYPE_CHECKING:
    from perdure.client.erasure import ErasureReport
    from perdure.client.perdure import Perdure


exports_app = Commands()
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write to this file instead of stdout.")]


@exports_app.command("export")
def export(run_id: RunId, out: Out = None) -> None:
    """Write a run as JSON, with its record and files. `import` restores it in another namespace. For a session, use `session export`."""
    write_export(connected(lambda perdure: perdure.get_run(run_id).export()), out)


@exports_app.command("import")
@with_settings("task_queue")
def import_(
    settings: Settings,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file that `export` or `session export` wrote.")],
    name: Annotated[
        str | None,
        typer.Option("--as", metavar="NAME", help="The new session's key, or the new run's id; by default the same."),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(metavar="NAME", help="The new session's tenant; by default the same.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Restore an exported session, which then continues, or an exported run, as a record. No Request and no call runs again."""
    with one_line_errors():
        exported: Any = json_option(f"@{file}", "FILE")
        is_run = isinstance(exported, dict) and "run" in exported
        if is_run and tenant is not None:
            raise SettingsError("--tenant is for sessions only: a run keeps its tenant")

    async def restore(perdure: Perdure) -> JsonObject:
        if is_run:
            return {"run": (await perdure.import_run(exported, id=name, task_queue=settings.task_queue)).id}
        restored = await perdure.import_session(exported, key=name, tenant=tenant, task_queue=settings.task_queue)
        return {"session": restored.key, "tenant": restored.tenant}

    restored = connected(restore)
    print(dumps(restored) if as_json else restored.get("run") or restored["session"])


def write_export(exported: JsonObject, out: Path | None) -> None:
    """Write an export to a file that only its owner can read, or print it. Print to stderr why it cannot be restored."""
    if (problem := exported.get("problem")) is not None:
        print(f"perdure: this export cannot be restored: {problem}", file=sys.stderr)
    if missing := sum(data is None for data in (exported.get("files") or {}).values()):
        print(f"perdure: the export lacks {pluralize(missing, 'file')}, no longer stored", file=sys.stderr)
    if out is None:
        print(dumps(exported))
    else:
        write_file(out, f"{dumps(exported)}\n", mode=0o600)


erasure_app = Commands()


@erasure_app.command()
@with_settings("task_queue", "audit", "retention")
def erase(
    settings: Settings,
    tenant: Annotated[str, typer.Option(metavar="NAME", help="The tenant; by default no tenant.")] = "",
    sender: Annotated[str | None, typer.Option(metavar="NAME", help="The person whose data is removed.")] = None,
    before: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Only runs that ended and sessions last used before this time: 90d ago, or 2026-01-31."
        ),
    ] = None,
    old: Annotated[bool, typer.Option("--old", help="Only data older than the tenant's age in --retention.")] = False,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared",
            help="Remove sessions and evaluations with other senders' data too, with all of their data.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Remove nothing; print the data that the command would remove.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="The person who erases; by default the user of this machine.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Remove a person's runs and sessions, or old ones, from Temporal and external storage, for good. Repeat the command if it was interrupted."""
    with one_line_errors():
        if old and (tenant or sender or before is not None or shared):
            raise CommandError(
                "--old cannot be used with --tenant, --sender, --before or --shared: the setting retention has the tenants and ages",
                USAGE,
            )
        if not old and not sender and before is None:
            raise CommandError(
                "give --sender, --before or both; or give --old and the setting retention",
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

    reports = connected(lambda perdure: run(perdure, dry_run=True))
    with one_line_errors():
        is_wanted = not dry_run and _is_confirmed(reports, yes=yes, as_json=as_json)
    if is_wanted:
        reports = connected(lambda perdure: run(perdure, dry_run=False))
    _print_reports(reports, as_json=as_json)
    if is_wanted and any(report.executions for report in reports):
        print(
            "perdure: the server removes histories within minutes; repeat the command to verify that none remains",
            file=sys.stderr,
        )
    if is_wanted and settings.audit is not None:
        print("perdure: the audit log keeps its lines, including decisions and this erasure", file=sys.stderr)
    left = [each for report in reports for each in report.remaining]
    # A tenant's erasure failed, or the server did not delete these histories. Other items remain as the documents say.
    has_failed = any(each.what == "tenant" or (is_wanted and each.what == "run" and each.until) for each in left)
    raise SystemExit(FAILED if has_failed else 0)


def _is_confirmed(planned: list[ErasureReport], *, yes: bool, as_json: bool) -> bool:
    """Whether there is something to remove, and the person agrees. Raises `CommandError` without a terminal to ask."""
    found = [report for report in planned if report.executions]
    if not found or yes:
        return bool(found)
    if as_json or not sys.stdin.isatty():
        what = "; ".join(f"{_tenant_label(report, len(found) > 1)}{_counts(report)}" for report in found[:5])
        raise CommandError(f"nothing was removed. Add --yes to remove {what}", USAGE)
    _print_reports(planned, as_json=False)
    if not click.confirm("remove this data for good?", err=True):
        raise CommandError("nothing was removed")
    return True


def _tenant_label(report: ErasureReport, is_one_of_many: bool) -> str:
    """Return the tenant of a report as the beginning of its line; empty if it is the only report."""
    return f"{strip_control_characters(report.tenant) or 'no tenant'}: " if is_one_of_many else ""


def _counts(report: ErasureReport) -> str:
    named = (
        ("session", len(report.sessions)),
        ("run", len(report.runs) + len(report.session_runs)),
        *([("evaluation", len(report.evaluations))] if report.evaluations else ()),
        ("execution", report.executions),
        ("stored value", report.values),
        ("file", report.files),
    )
    return ", ".join(pluralize(count, name) for name, count in named)


def _print_reports(reports: list[ErasureReport], *, as_json: bool) -> None:
    out = get_console()
    if not reports and not as_json:
        out.print("no data is older than its tenant's retention")
    for report in reports:
        if as_json:
            print(dumps(report.as_json()))
            continue
        line = f"{_tenant_label(report, len(reports) > 1)}{'would remove' if report.dry_run else 'removed'} {_counts(report)}"
        out.print(line, markup=False, soft_wrap=True)
        runs = [*report.runs, *report.session_runs]
        for name, ids in (("session", report.sessions), ("run", runs), ("evaluation", report.evaluations)):
            for id in ids:
                out.print(strip_control_characters(f"  {name} {id}"), markup=False, soft_wrap=True)
        if report.remaining:
            rows = [
                (each.what, strip_control_characters(each.id), strip_control_characters(each.why), each.until)
                for each in report.remaining
            ]
            out.print("remains:")
            out.print(make_table(("what", "id", "why", "until"), rows, out.width, shrinkable=("why",)))


codec_app = Commands(
    no_args_is_help=True, help="The keys of encrypted values: list the keys in use, or change to the newest."
)


@codec_app.command("status")
@with_settings("codec_keys")
def codec_status(
    settings: Settings,
    query: Annotated[
        str | None, typer.Option(metavar="QUERY", help="Only workflows that match this Temporal list filter.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the keys that histories, schedules and stored files need, and until when. The command reads all histories and stored values without decoding them."""
    uses = connected(lambda perdure: perdure.key_uses(query))
    here = [*(settings.codec_keys or {})]
    if as_json:
        print(dumps({"newest": here[0] if here else None, "keys": [each.as_json() for each in uses]}))
        return
    out = get_console()
    rows = []
    for name in [*here, *(each.key for each in uses if each.key not in here)]:
        use = next((each for each in uses if each.key == name), None)
        place = "not encrypted" if not name else "missing here" if name not in here else ""
        place = place or ("encrypts" if name == here[0] else "decrypts" if use else "can be removed")
        until = "" if use is None or use.until is None else use.until.isoformat(timespec="minutes")
        numbers = (use.open, use.closed, use.schedules, use.files) if use else (0, 0, 0, 0)
        rows.append((name or "none", place, *(f"{number:,}" for number in numbers), until))
    if not rows:
        out.print("no workflow has an encrypted value")
        return
    titles = ("key", "here", "open", "ended", "schedules", "files", "needed until")
    out.print(make_table(titles, rows, out.width, right=("open", "ended", "schedules", "files")))


@codec_app.command("rewrite")
def codec_rewrite(as_json: Json = False) -> None:
    """Continue idle sessions, ledgers and audit logs under the newest key, and encode schedules and stored files again. Repeat the command until none remains."""
    report = connected(lambda perdure: perdure.rewrite_keys())
    if as_json:
        print(dumps(report.as_json()))
    else:
        out = get_console()
        numbers = f"{pluralize(report.workflows, 'workflow')}, {pluralize(report.schedules, 'schedule')} and {pluralize(report.files, 'file')}"
        out.print(f"{numbers} use the key {report.key}", markup=False)
        for each in report.remaining:
            out.print(f"not changed: {each.what} {each.id}: {each.why}", markup=False, soft_wrap=True)
    if report.remaining:
        raise SystemExit(FAILED)


audit_app = Commands(no_args_is_help=True, help="The audit log: decisions, rejected operations and uses of rights.")


@audit_app.command("verify")
@with_settings("audit_token")
def audit_verify(
    settings: Settings,
    places: Annotated[
        list[str],
        typer.Argument(metavar="FILE…", help="The log's files, oldest first, or postgresql://USER@HOST/DATABASE."),
    ],
    as_json: Json = False,
) -> None:
    """Verify that no line of an audit log is missing, changed or moved. Print the line numbers and the last digest."""
    chain = VerifiedChain()
    with one_line_errors():
        for place in places:
            if place.startswith(DATABASES):
                from perdure.activities.audit import AuditTable

                chain = asyncio.run(AuditTable(place, settings.audit_token).verify(chain))
                continue
            try:
                with Path(place).open(encoding="utf-8", errors="replace", newline="\n") as lines:
                    chain = verify_chain(lines, chain, source=f"{place}: line")
            except OSError as error:
                raise CommandError(f"{place}: {error.strerror or error}", USAGE) from None
    if as_json:
        print(dumps({"first": chain.first, "last": chain.last, "digest": chain.digest}))
    elif chain.last == 0:
        print("the log is empty")
    else:
        print(
            f"lines {chain.first:,} to {chain.last:,} are complete and unchanged; the digest of line {chain.last:,} is {chain.digest}"
        )
