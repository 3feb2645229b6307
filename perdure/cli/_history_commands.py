"""`perdure fork`, `what-if`, `replay` and `undo`: what can follow a run that has a history."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from perdure.agents.agent import Agent
from perdure.agents.json_files import json_option
from perdure.approvals.policy import parse_policy
from perdure.cli._console import get_console, make_table, strip_control_characters
from perdure.cli._execute import FAILED, USAGE, CommandError, Json, RunId, connected, execute, one_line_errors
from perdure.cli._help import Commands
from perdure.cli._list_commands import Query, Since, Tenant, check_since
from perdure.cli._options import local_user, with_settings, write_file
from perdure.cli._run_view import started_and_shown
from perdure.client.selection import Selection
from perdure.errors import RunError, clip, pluralize
from perdure.hosting.settings import Settings
from perdure.rules import parse_rules
from perdure.runs.fork import ForkPoint
from perdure.runs.undo import Effect, UndoPlan
from perdure.runs.what_if import CallNote, RunReport, WhatIfReport
from perdure.values.json import JsonObject, dumps, shorten
from perdure.values.references import MISSING

if TYPE_CHECKING:
    from perdure.client.perdure import Perdure
    from perdure.client.run import Run


histories_app = Commands()
_POLICY = '{"ask": "unsafe"}'
_MOST_LINES = 20
"""The most lines of one run's differences that are printed; `--json` has all."""
_MOST_REASON = 160
_RULE = '[{"rule": "count_at_most", "of": "refund", "count": 3}]'


@histories_app.command()
@with_settings("agents")
def fork(
    settings: Settings,
    run_id: RunId,
    at: Annotated[
        str,
        typer.Option("--at", metavar="R[.N]", help="The point to start from: before Request R, or before call R.N."),
    ],
    agent: Annotated[
        str | None,
        typer.Option(metavar="AGENT", help="Another agent: a file, a name in the agents folder, or MODULE:NAME."),
    ] = None,
    input: Annotated[str | None, typer.Option("--input", metavar="JSON|@FILE", help="Another input.")] = None,
    edit: Annotated[
        list[str] | None,
        typer.Option(
            "--edit", metavar="CALL=JSON", help="The keys of a call to change; null removes a key. May be repeated."
        ),
    ] = None,
    result: Annotated[
        list[str] | None,
        typer.Option("--result", metavar="CALL=JSON", help="A result to use instead of a call's own. May be repeated."),
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="The model of Requests after the point.")] = None,
    id: Annotated[str | None, typer.Option("--id", help="The new run's id.")] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Start the run, print its id and do not wait.")] = False,
    as_json: Json = False,
) -> None:
    """Start a new run from a point of an existing one. Earlier Requests and unchanged calls get their results from the record.

    Other calls run, under today's policies. The existing run does not change.
    """
    with one_line_errors():
        try:
            ForkPoint.parse(at)
        except RunError as error:
            raise CommandError(f"--at: {error}", USAGE) from None
        found = None if agent is None else Agent.read_to_run(agent, folder=settings.agents_folder)
        given = MISSING if input is None else json_option(input, "--input")
        edits = _by_call(edit, "--edit", '2.1={"amount": 5}')
        for call, keys in edits.items():
            if not isinstance(keys, dict):
                raise CommandError(
                    f'--edit {call}: expected an object of the keys to change, such as 2.1={{"amount": 5}}', USAGE
                )
        results = _by_call(result, "--result", "2.1=true")

    started_and_shown(
        lambda perdure: perdure.get_run(run_id).fork(
            at, agent=found, input=given, edits=edits, results=results, model=model, id=id
        ),
        lambda started: f"{started}: {run_id} at {at}",
        no_wait=no_wait,
        as_json=as_json,
    )


@histories_app.command("what-if")
@with_settings("agents", "endpoints", "prices")
def what_if(
    settings: Settings,
    run_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID…]", help="The runs' ids; or select runs by options.")
    ] = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Only runs of this agent.")] = None,
    since: Since = None,
    tenant: Tenant = None,
    query: Query = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The number of runs, newest first.")] = 500,
    policy: Annotated[
        str | None,
        typer.Option(metavar="JSON|@FILE", help="An approval policy instead of the agent's. It needs no model."),
    ] = None,
    rules: Annotated[
        str | None,
        typer.Option(metavar="JSON|@FILE", help="Rules of runs instead of the agent's. They need no model."),
    ] = None,
    agent_file: Annotated[
        str | None, typer.Option("--agent-file", metavar="AGENT", help="Another agent: a file, a name, or MODULE:NAME.")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Another model, for all Requests.")] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with drawings to this file too.")
    ] = None,
    show_all: Annotated[bool, typer.Option("--all", help="List runs without a difference too.")] = False,
    as_json: Json = False,
) -> None:
    """Compare recorded runs with the same runs under a change. No call takes effect.

    Tools' results come from the record. The results of new calls, and of calls that depend on them, are unknown.
    A change of policy or rules needs no model. Another agent or model answers Requests that differ from the record.
    An ID that cannot be compared fails the command; the others are reported.
    """
    with one_line_errors():
        if (policy, rules, agent_file, model) == (None,) * 4:
            raise CommandError("give a change: --policy, --rules, --agent-file or --model", USAGE)
        if run_ids and (agent, since, tenant, query) != (None,) * 4:
            raise CommandError("give IDs, or select runs by --agent, --since, --tenant and --query; not both", USAGE)
        check_since(since)
        asks = None
        if policy is not None:
            asks = parse_policy(json_option(policy, "--policy", _POLICY), source="--policy").as_change()
        held = None if rules is None else parse_rules(json_option(rules, "--rules", _RULE), source="--rules")
        found = None if agent_file is None else Agent.read_to_run(agent_file, folder=settings.agents_folder)

    async def play(perdure: Perdure) -> WhatIfReport:
        progress = get_console(stderr=True)
        count = 0

        def note(_: RunReport) -> None:
            nonlocal count
            count += 1
            if not as_json and count % 50 == 0:
                progress.print(pluralize(count, "run"), style="dim")

        return await perdure.what_if(
            Selection(agent, None, since, None, tenant, query=query, outermost=True),
            policy=asks,
            rules=held,
            agent=found,
            model=model,
            ids=run_ids or (),
            limit=limit,
            on_run=note,
        )

    report = connected(play)
    if as_json:
        print(dumps(report.as_json()))
    elif not report.runs:
        chosen = {"--agent": agent, "--since": since, "--tenant": tenant, "--query": query}
        words = ", ".join(f"{name} {text!r}" for name, text in chosen.items() if text is not None)
        print(f"no run matches {words}" if words else "there are no runs")
    else:
        _print_what_if(get_console(), report, show_all=show_all)
    if html is not None:
        from perdure.pages.what_if import what_if_page  # only this option needs the templates

        options = {"--policy": policy, "--rules": rules, "--agent-file": agent_file, "--model": model}
        changes = {name: text for name, text in options.items() if text is not None}
        write_file(html, what_if_page(report, changes))
    least = len(report.runs) if run_ids else min(1, len(report.runs))
    raise SystemExit(0 if len(report.played) >= least else FAILED)


def _by_call(options: list[str] | None, name: str, example: str) -> JsonObject:
    """Return the values of a repeated option `CALL=JSON` by call."""
    found: JsonObject = {}
    for each in options or []:
        call, sign, text = each.partition("=")
        if not sign or not call:
            raise CommandError(f"{name} {each[:80]}: expected CALL=JSON, such as {example}", USAGE)
        found[call] = json_option(text, f"{name} {call}")
    return found


@histories_app.command()
@with_settings("workflows")
def replay(
    settings: Settings,
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID|KEY|FILE…]", help="Runs' ids, sessions' keys or ids, or JSON files of histories."),
    ] = None,
    tenant: Annotated[
        str, typer.Option("--tenant", metavar="NAME", help="The tenant of the sessions that are given by key.")
    ] = "",
    all_running: Annotated[
        bool, typer.Option("--running", help="Check all open runs, loops and sessions of the namespace.")
    ] = False,
    query: Annotated[
        str | None,
        typer.Option(metavar="QUERY", help="With --running: only those that match this Temporal list filter."),
    ] = None,
) -> None:
    """Check before a deploy that workers of this version can continue these runs. Print one line per run; exit with code 1 if one cannot continue.

    Runs and sessions are replayed with all their descendants. A file has the output of `temporal workflow show --output json`,
    or a download from the Web UI. A file that cannot be read, or has another kind of workflow, is left out and fails the command.
    """
    names = what or []
    with one_line_errors():
        if bool(names) == all_running or (query is not None and not all_running):
            raise CommandError("give IDs, KEYs or files, or --running; --query needs --running", USAGE)
    files = [name for name in names if name.endswith(".json") or Path(name).is_file()]

    async def runs(perdure: Perdure | None) -> bool:
        from perdure.client.histories import replay_each, replay_running
        from perdure.hosting.connection import data_converter
        from perdure.hosting.user_workflows import load_workflows

        users = load_workflows(settings.workflows).workflows
        client, count, bad = None if perdure is None else perdure.client, 0, 0
        if all_running:
            assert client is not None
            each = replay_running(client, query, users)
        else:
            converter = data_converter() if client is None else client.data_converter
            each = replay_each(client, names, files, converter, users, tenant)
        async for found in each:
            print(found.line())
            count, bad = count + 1, bad + (found.problem is not None)
        if all_running:
            print(f"open executions: {count:,}; broken or left out: {bad:,}")
        return bad > 0

    broken = execute(lambda: runs(None)) if names and len(files) == len(names) else connected(runs)
    raise SystemExit(FAILED if broken else 0)


def _print_what_if(console: Console, report: WhatIfReport, *, show_all: bool = False) -> None:
    """Print the runs that differ, a line for each difference, and the sums."""
    for run in report.runs:
        if run.problem is not None:
            console.print(Text.assemble((run.run_id, "bold"), f" was not compared: {run.problem}"), soft_wrap=True)
        elif run.differs:
            console.print(Text(run.run_id, "bold"), soft_wrap=True)
            lines = [*_run_lines(run)]
            for line, style in lines[:_MOST_LINES]:
                console.print(Text(f"  {line}", style), soft_wrap=True)
            if len(lines) > _MOST_LINES:
                console.print(Text(f"  and {len(lines) - _MOST_LINES:,} more lines: --json", "dim"))
        elif show_all:
            console.print(Text.assemble((run.run_id, "bold"), " is the same"), soft_wrap=True)
    for line in report.total_lines():
        console.print(Text(line), soft_wrap=True)


def _run_lines(run: RunReport) -> Iterator[tuple[str, str]]:
    """Yield the lines of a run's differences, each with its style."""
    noted = set()
    for words, style, notes in (
        ("asks about", "yellow", run.approvals_added),
        ("no longer asks about", "green", run.approvals_removed),
        ("refuses", "red", run.refused),
        ("no longer rejects", "green", run.allowed),
    ):
        for note in notes:
            noted.add(note.call)
            yield f"{words} {_call_title(note)}: {clip(note.reason, _MOST_REASON)}", style
    # a note above names the call: the lines of a call that is done before and after would repeat it
    noted -= {_call_of(line) for line in run.differences if not line.endswith(("done", "done, asked"))}
    for line in run.differences:
        if _call_of(line) not in noted:
            yield line, "red" if line.startswith("-") else "green"
    if run.unknown_from is not None and run.unknown_from <= run.requests:
        yield f"unknown from Request {run.unknown_from} on: {pluralize(run.unknown_calls, 'call')}", "dim"
    elif run.unknown_from is not None or run.unknown_calls:
        yield f"unknown: {pluralize(run.unknown_calls, 'call')}", "dim"


def _call_of(difference: str) -> str:
    return difference[2:].partition(" ")[0]


def _call_title(note: CallNote) -> str:
    return f"{note.call} {note.tool}" if note.tool else f"the plan of Request {note.call}"


undo_app = Commands()


@undo_app.command()
def undo(
    run_id: RunId,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="R.N", help="Only this call, the calls that depend on it, and the calls of later Requests."
        ),
    ] = None,
    no_effect: Annotated[
        list[str] | None,
        typer.Option(
            "--no-effect", metavar="R.N", help="A call with an unknown outcome that had no effect. May be repeated."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the calls to undo and the calls that stay.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    by: Annotated[
        str, typer.Option("--by", envvar="USER", help="The person who requests the undo. The run records it.")
    ] = "",
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Start the run, print its id and do not wait.")] = False,
    as_json: Json = False,
) -> None:
    """Undo the calls of a run that has ended, in the reverse order of its data flow. Calls without an undo stay.

    An undo is a run of its own, under the first run's policies. If the undo of a call fails, the calls that it depends on stay; independent
    calls are undone. The same command continues an unfinished undo.
    """
    settled = no_effect or []
    if dry_run or not yes:
        plan, why = connected(lambda perdure: _read_undo_plan(perdure.get_run(run_id), to, settled))
        if as_json:
            print(dumps(plan.as_json()), file=sys.stdout if dry_run else sys.stderr)
        else:
            print_plan(get_console(stderr=not dry_run), plan, why)
        if dry_run:
            return
        if plan.undoes and not typer.confirm(f"undo {pluralize(len(plan.undoes), 'call')} of {run_id}?", err=True):
            raise SystemExit(FAILED)

    started_and_shown(
        lambda perdure: perdure.get_run(run_id).undo(to=to, no_effect=settled, by=by or local_user()),
        lambda started: f"perdure: started the undo {started}",
        no_wait=no_wait,
        as_json=as_json,
    )


async def _read_undo_plan(run: Run[Any], to: str | None, no_effect: list[str]) -> tuple[UndoPlan, str]:
    """Return the plan of an undo, and for a plan without a call the reason."""
    plan = await run.undo_plan(to=to, no_effect=no_effect)
    if plan.undoes or plan.waits or plan.cannot:
        return plan, ""
    if await run.undone():
        return plan, ": the calls that have an undo are undone"
    return plan, ": no call that had an effect has an undo, so effects stay"


def print_plan(console: Console, plan: UndoPlan, why: str = "") -> None:
    """Print the calls that an undo takes back, in order, and the calls that stay. `why`: the reason that there are none."""
    stays = [each for each in plan.waits if each not in plan.undoes]
    print_effects(console, [*plan.undoes, *stays, *plan.cannot], {each.call for each in plan.undoes})
    if plan.left:
        console.print(f"left for the next undo: {pluralize(plan.left, 'call')}")
    if not plan.undoes:
        console.print(f"no call can be undone now{why}", soft_wrap=True)


def print_effects(console: Console, effects: Iterable[Effect], undoes: Iterable[str] = ()) -> None:
    """Print a table of effects. Effects that are undone now have `undoes` in place of their status."""
    now = set(undoes)
    rows = [
        (
            each.call,
            each.tool,
            "will be undone" if each.call in now else each.status,
            f"{each.undo}({shorten(each.params, 80)})" if each.params else ", ".join(each.below) or each.undo,
            strip_control_characters(each.reason),
        )
        for each in effects
    ]
    if rows:
        console.print(
            make_table(("call", "tool", "effect", "undo", "why"), rows, console.width, shrinkable=("why", "undo"))
        )
