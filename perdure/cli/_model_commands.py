"""The `perdure models` commands: tests of the configured models, and recommended settings."""

from __future__ import annotations

import os
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from perdure.checking.report import CheckReport, Row, TaskResult
from perdure.checking.tasks import TASKS, Task
from perdure.cli._console import get_console
from perdure.cli._execute import FAILED, USAGE, CommandError, Json, check_choice, execute, one_line_errors
from perdure.cli._help import Commands
from perdure.cli._options import with_settings
from perdure.hosting.settings import Settings
from perdure.models.model_names import parse_model, split_endpoint
from perdure.values.json import JsonObject, dumps

models_app = Commands(help="Check the configured models.", no_args_is_help=True)
T = TypeVar("T")
DIALECTS = ("solution", "tools", "script")


@models_app.command()
@with_settings("endpoints", "prices", flags={"fast_model": "--fast", "smart_model": "--smart"})
def check(
    settings: Settings,
    dialect: Annotated[list[str] | None, typer.Option(help="Only this one: " + ", ".join(DIALECTS))] = None,
    task: Annotated[list[str] | None, typer.Option(help="Only this one: " + ", ".join(t.name for t in TASKS))] = None,
    parallel: Annotated[
        int, typer.Option(min=1, help="The most tasks at the same time; a small local server may need 1.")
    ] = 4,
    timeout: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="The most seconds of one task.")] = 120.0,
    as_json: Json = False,
) -> None:
    """Run a dozen small tasks with each model and dialect, and print the recommended `config`.

    The command runs an embedded Temporal server and test tools. Only the model server is real: give it by OPENAI_BASE_URL and
    OPENAI_API_KEY, by the variables of PROVIDER:MODEL, or by MODEL@ENDPOINT of PERDURE_ENDPOINTS. Exit with code 1 if no
    config can be recommended.
    """
    with one_line_errors():
        dialects = _chosen("--dialect", dialect, {name: name for name in DIALECTS})
        tasks = _chosen("--task", task, {each.name: each for each in TASKS})
    console = get_console(stderr=True)

    def print_result(played: TaskResult) -> None:
        words = "ok" if played.passed else played.problems[0]
        console.print(Text(f"{played.model} {played.dialect} {played.task}: {words}", style="dim"), soft_wrap=True)

    report: CheckReport = execute(
        lambda: _check(settings, dialects, tasks, parallel=parallel, timeout=timeout, on_result=print_result)
    )
    if as_json:
        print(dumps(report.as_json()))
    else:
        print_report(get_console(), report)
    raise SystemExit(FAILED if report.recommendation.config is None else 0)


async def _check(settings: Settings, dialects: list[str], tasks: list[Task], **how: object) -> CheckReport:
    from perdure.activities.endpoints import Endpoints  # only this command needs it, and the worker
    from perdure.checking.play import check_models

    fast, smart = settings.fast_model, settings.smart_model
    ours = [
        model
        for model in (fast, smart)
        if parse_model(model).provider.startswith("openai") and not split_endpoint(model)[1]
    ]
    if not os.environ.get("OPENAI_API_KEY") and len(ours) == 2:
        raise CommandError(
            "no model to check: set OPENAI_API_KEY (and OPENAI_BASE_URL for a server of your own)", USAGE
        )
    endpoints, prices = Endpoints(None, settings.endpoints, files=settings.model_files), settings.prices
    return await check_models(fast, smart, endpoints=endpoints, prices=prices, dialects=dialects, tasks=tasks, **how)  # type: ignore[arg-type]


def _chosen(option: str, names: list[str] | None, known: dict[str, T]) -> list[T]:
    if unknown := [name for name in names or () if name not in known]:
        check_choice(option, unknown[0], [*known])
    return [value for name, value in known.items() if not names or name in names]


def print_report(console: Console, report: CheckReport) -> None:
    """Print the table, the problems, the servers' features, and the recommendation."""
    console.print(_table(report.rows))
    for row in report.rows:
        for played in row.played:
            for problem in played.problems:
                console.print(Text(f"{row.model} {row.dialect} {played.task}: {problem}", style="dim"), soft_wrap=True)
    for model, found in report.understands.items():
        console.print(Text.assemble((model, "bold"), f" understands {_understood(found)}"), soft_wrap=True)
    advice = report.recommendation
    for line in advice.why:
        console.print(Text(line), soft_wrap=True)
    if advice.config is None:
        console.print(Text("no config can be recommended", style="red"))
    else:
        console.print(Text.assemble(("config ", "bold"), dumps(advice.config)), soft_wrap=True)


def _table(rows: tuple[Row, ...]) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for title in ("model", "dialect", "passed", "Requests", "tokens in", "tokens out", "seconds", "cost"):
        table.add_column(title, justify="left" if title in ("model", "dialect") else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.model,
            row.dialect,
            f"{row.passed}/{len(row.played)}",
            str(sum(each.requests for each in row.played)),
            str(sum(each.prompt_tokens for each in row.played)),
            str(row.completion_tokens),
            f"{row.seconds:.1f}",
            "" if row.cost is None else f"${row.cost:.4f}",
        )
    return table


def _understood(found: JsonObject) -> str:
    words = {True: "yes", False: "no", None: "not tried"}
    parts = [f"response_format {found['responseFormat'] or 'not tried'}"]
    if found["refusedOfSomeSchemas"]:
        parts.append(f"(for some schemas it rejected {', '.join(found['refusedOfSomeSchemas'])})")
    names = {
        "streamOptions": "stream_options",
        "usage": "usage",
        "nativeCalls": "native calls",
        "parallelCalls": "parallel calls",
    }
    return "; ".join([" ".join(parts), *(f"{name}: {words[found[key]]}" for key, name in names.items())])
