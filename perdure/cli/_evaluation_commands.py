"""`perdure eval` and `perdure record`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

from perdure.agents.agent import Agent
from perdure.cli._console import get_console, make_table
from perdure.cli._execute import FAILED, USAGE, CommandError, Json, check_choice, connected, one_line_errors
from perdure.cli._help import Commands
from perdure.cli._list_commands import Agent as OfAgent
from perdure.cli._list_commands import Query, Since, Tenant, check_since
from perdure.cli._options import make_folder, with_settings, write_file
from perdure.client.selection import Selection
from perdure.errors import RunError, SettingsError, pluralize
from perdure.hosting.settings import Settings
from perdure.runs.evaluation import (
    ComparedRow,
    Comparison,
    EvaluationProgress,
    EvaluationResult,
    EvaluationRow,
    PassRate,
    compare,
)
from perdure.values.json import dumps

if TYPE_CHECKING:
    from perdure.client.evaluations import Evaluation
    from perdure.client.perdure import Perdure

evaluations_app = Commands()
_DECISIONS: Final = ("reject", "approve", "wait")
_NOT_OF_FILES: Final = re.compile(r"[^\w.-]+")
_REASONS: Final = 3
"""The most reasons of one case that are printed; `--json` has all."""


@evaluations_app.command("eval")
@with_settings("agents", "task_queue")
def evaluate(
    settings: Settings,
    cases: Annotated[
        str | None,
        typer.Argument(
            metavar="[CASES]",
            help="A folder, a file, or MODULE:NAME. Not needed with the --id of an existing evaluation.",
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option("--agent", metavar="AGENT", help="A file, a name in the agents folder, or MODULE:NAME."),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", metavar="NAME", help="A model to compare. May be repeated.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, max=100, help="The number of runs of each case with each model.")] = 1,
    parallel: Annotated[int, typer.Option(min=1, max=100, help="The most runs at the same time.")] = 8,
    timeout: Annotated[
        float, typer.Option(min=1, help="The most seconds of one run, with its waits for people.")
    ] = 3600.0,
    decide: Annotated[
        str, typer.Option(metavar="|".join(_DECISIONS), help="The decision about calls that wait for a person.")
    ] = "reject",
    at_least: Annotated[
        float | None,
        typer.Option(
            "--at-least", min=0, max=1, help="Exit with code 1 unless each model passes this share of its runs."
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="FILE|ID", help="An earlier result, or an evaluation's id, to compare with.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the result to this file, as JSON.")
    ] = None,
    tenant: Tenant = None,
    id: Annotated[
        str | None, typer.Option("--id", help="The evaluation's id. An existing evaluation continues.")
    ] = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Start the evaluation, print its id and do not wait.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run an agent over cases and score each run: pass rates, cost, tokens and time, by case and model.

    The evaluation is a workflow. It continues after this command ends; `--id` alone shows it again.
    Workers really call the tools: use workers that have tools for tests.
    """
    with one_line_errors():
        check_choice("--decide", decide, _DECISIONS)
        if cases is None and id is None:
            raise CommandError("give CASES and --agent, or the --id of an evaluation", USAGE)
        if cases is not None and agent is None:
            raise CommandError("--agent is missing: give the agent to evaluate", USAGE)
        known = None if agent is None else Agent.read_to_run(agent, folder=settings.agents_folder)
        found = None if baseline is None or not Path(baseline).is_file() else _read_baseline(Path(baseline))
        if baseline is not None and found is None and Path(baseline).suffix:
            raise CommandError(f"--baseline: the file {baseline} does not exist", USAGE)

    async def start(perdure: Perdure) -> tuple[Evaluation, EvaluationResult | None, EvaluationResult | None]:
        if cases is None or known is None:
            evaluation = perdure.get_evaluation(str(id))
        else:
            how: dict[str, Any] = {"repeat": repeat, "parallel": parallel, "timeout": timeout, "decide": decide}
            evaluation = await perdure.evaluate(known, cases, models=model or [], tenant=tenant, id=id, **how)
        earlier = found if baseline is None or found is not None else await perdure.get_evaluation(baseline).wait()
        if no_wait:
            return evaluation, None, None
        if not as_json and cases is not None:
            print(f"{evaluation.id}: show it again with: perdure eval --id {evaluation.id}", file=sys.stderr)
        return evaluation, await evaluation.wait(on_progress=None if as_json else _Progress().note), earlier

    evaluation, result, earlier = connected(start)
    if result is None:
        print(dumps({"id": evaluation.id}) if as_json else evaluation.id)
        return
    compared = None if earlier is None else compare(earlier, result)
    if out is not None:
        write_file(out, dumps(result.as_json()) + "\n")
    if as_json:
        print(dumps(result.as_json() | ({} if compared is None else {"comparison": compared.as_json()})))
    else:
        print_evaluation(get_console(), result)
        if compared is not None:
            print_comparison(get_console(), compared)
    if at_least is not None and not result.is_at_least(at_least):
        raise SystemExit(FAILED)


class _Progress:
    """Prints a line on stderr after each change of the number of scored runs."""

    def __init__(self) -> None:
        self._done = -1

    def note(self, progress: EvaluationProgress) -> None:
        if progress.done != self._done and progress.total:
            self._done = progress.done
            words = f"{progress.done:,} of {pluralize(progress.total, 'run')}, {progress.passed:,} passed"
            print(words, file=sys.stderr)


def _read_baseline(path: Path) -> EvaluationResult:
    try:
        return EvaluationResult.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError):
        raise SettingsError(f"--baseline: {path} is not a result of 'perdure eval --out'") from None


def print_evaluation(console: Console, result: EvaluationResult) -> None:
    """Print a row for each case and model, the reasons of failed runs, and a row with each model's sums."""
    rows, totals = result.rows(), result.totals()
    several = len(result.models) > 1
    titles = [
        "case",
        *(["model"] if several else []),
        "passed",
        "95 %",
        "requests",
        "tokens",
        "cost",
        "seconds",
        "failed",
    ]
    cells = [_cells(row, row.case, several) for row in rows]
    cells += [_cells(row, "all cases", several) for row in totals]
    right = ("passed", "95 %", "requests", "tokens", "cost", "seconds")
    console.print(
        make_table(
            titles, cells, console.width, shrinkable=("case", "failed"), droppable=("requests", "seconds"), right=right
        )
    )
    for row in rows:
        for reason in row.reasons[:_REASONS]:
            console.print(Text(f"{_title(row.case, row.model)}: {reason}", "red"), soft_wrap=True)
        if len(row.reasons) > _REASONS:
            console.print(Text(f"{_title(row.case, row.model)}: {len(row.reasons) - _REASONS:,} more: --json", "dim"))
    for row in totals:
        for name, value in row.scores.items():
            console.print(Text(f"{name}{f' of {row.model}' if row.model else ''}: {value:.3f} on average"))


def _cells(row: EvaluationRow, case: str, several: bool) -> list[str | Text]:
    style = "green" if row.rate.passed == row.rate.runs else "yellow" if row.rate.passed else "red"
    return [
        case,
        *([row.model or "own"] if several else []),
        Text(f"{row.rate.passed}/{row.rate.runs} {row.rate.rate:.0%}", style),
        f"{row.rate.low:.0%}-{row.rate.high:.0%}",
        f"{row.requests:,}",
        f"{row.tokens:,}",
        "" if row.cost is None else f"${row.cost:.4f}",
        f"{row.seconds:.1f}",
        ", ".join(f"{name} {count}" for name, count in row.failed.items()),
    ]


def print_comparison(console: Console, compared: Comparison) -> None:
    """Print improvements, regressions, and sums."""
    for words, style, rows in (("better", "green", compared.better), ("worse", "red", compared.worse)):
        for row in rows:
            console.print(Text(f"{words}: {_title(row.case, row.model)}: {_change(row)}", style), soft_wrap=True)
    for row in compared.total:
        console.print(Text(f"{_title('all cases', row.model)}: {_change(row)}"), soft_wrap=True)
    if compared.not_compared:
        console.print(Text(f"not compared: {compared.not_compared}", "red"), soft_wrap=True)
        return
    console.print(Text(f"{len(compared.better):,} better, {len(compared.worse):,} worse, {compared.same:,} the same"))
    for words, names in (("new", compared.added), ("gone", compared.removed)):
        if names:
            console.print(Text(f"{words}: {', '.join(names)}"), soft_wrap=True)


def _title(case: str, model: str) -> str:
    return f"{case}, {model}" if model else case


def _change(row: ComparedRow) -> str:
    chance = "" if row.is_clear else ", possibly by chance"
    return f"{_rate(row.before)} -> {_rate(row.after)}{chance}"


def _rate(rate: PassRate) -> str:
    return f"{rate.rate:.0%} ({rate.low:.0%}-{rate.high:.0%})"


@evaluations_app.command()
def record(
    run_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID…]", help="The runs' ids; or select runs by options.")
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FOLDER", help="Write each run into this folder, as a case of a dataset."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write one run to this file instead of stdout.")
    ] = None,
    agent: OfAgent = None,
    since: Since = None,
    tenant: Tenant = None,
    query: Query = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="The number of runs, newest first.")] = 50,
) -> None:
    """Write runs as cases: the model's answers, the tools' results and people's decisions. See perdure.testing.replay and perdure eval.

    A case contains the data of its run: review it before you share it. Masked values stay masked.
    A run that received a message while it worked cannot be a case. With --to it is left out, and fails the command.
    """
    from perdure.testing import cases  # it replays histories: only this command and `replay` need it

    names = run_ids or []
    with one_line_errors():
        chosen = (agent, since, tenant, query) != (None,) * 4
        if bool(names) == chosen:
            raise CommandError("give IDs, or select runs by --agent, --since, --tenant and --query", USAGE)
        if to is None and (chosen or len(names) > 1):
            raise CommandError("--to is missing: give the folder for the cases", USAGE)
        if to is not None and out is not None:
            raise CommandError("--out is for one run, --to for a folder of cases", USAGE)
        check_since(since)

    async def each(perdure: Perdure) -> AsyncIterator[str]:
        for name in names:
            yield name
        if chosen:
            selection = Selection(agent, None, since, None, tenant, query=query, outermost=True)
            async with aclosing(perdure.list_runs(selection, limit=limit)) as runs:
                async for run in runs:
                    yield run.id

    async def write(perdure: Perdure) -> bool:
        if to is None:
            case = await cases.record(perdure.get_run(names[0]))
            if out is None:
                print(cases.case_text(case))
            else:
                write_file(out, cases.case_text(case) + "\n")
            return True
        make_folder(to, "--to")
        count, left_out = 0, 0
        async for name in each(perdure):
            path = to / f"{_NOT_OF_FILES.sub('-', name)}.json"
            try:
                case = await cases.record(perdure.get_run(name))
            except RunError as error:
                print(f"{name}: left out: {error}", file=sys.stderr)
                left_out += 1
                continue
            write_file(path, cases.case_text(cases.with_evaluators(case)) + "\n")
            count += 1
        print(f"{pluralize(count, 'case')} in {to}{f'; left out: {left_out:,}' if left_out else ''}")
        return not left_out

    raise SystemExit(0 if connected(write) else FAILED)
