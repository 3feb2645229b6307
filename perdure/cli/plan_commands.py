"""The `perdure plan` commands."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from perdure.activities.registry import load_tools
from perdure.authoring.files import json_option
from perdure.authoring.planned import Planned
from perdure.cli.errors import FAILED, USAGE, CommandError, one_line_errors
from perdure.cli.options import configured
from perdure.cli.plans import read_plan
from perdure.hosting.settings import Settings
from perdure.people.policies import Guard
from perdure.plan.plan import Plan
from perdure.plan.simulation import Simulation, Step, simulate
from perdure.run.views.drawing import Drawing, draw_plan, to_mermaid, to_svg
from perdure.values.jsons import dumps

plan_app = typer.Typer(help="Look at a plan before anything runs; needs no server.", no_args_is_help=True)

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="An agent file with a plan, a Solution, or a list of calls.")
]
Input = Annotated[str | None, typer.Option("--input", metavar="JSON|@FILE", help="The run's input.")]
State = Annotated[str | None, typer.Option("--state", metavar="JSON|@FILE", help="What the state holds before.")]
Durations = Annotated[str | None, typer.Option(metavar="JSON|@FILE", help='Seconds by tool: {"fetch": 2.5}.')]
Assume = Annotated[list[str] | None, typer.Option(metavar="ID=OUTCOME", help="1.0=failed, or 1.3=†state.notSunny.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Svg = Annotated[Path | None, typer.Option("--svg", metavar="OUT", help="Write an SVG instead of printing Mermaid.")]


@plan_app.command()
@configured("tools")
def validate(settings: Settings, file: File, input: Input = None, state: State = None, as_json: AsJson = False) -> None:
    """List every problem of a plan, with call id and JSON path."""
    with one_line_errors():
        found = _read(file, input, state, settings.tools)
        plan = found.checked()
    problems = _problems(plan)
    if as_json:
        print(dumps({"ok": not problems, "calls": len(plan.calls), "problems": problems}))
    else:
        for problem in problems:
            print(f"{problem['call']} {problem['tool']}: {problem['message']}")
        print(
            f"{len(plan.calls)} calls, {len(problems)} problems"
            if problems
            else f"{len(plan.calls)} calls, no problems"
        )
        _warn(found)
    raise SystemExit(FAILED if problems else 0)


@plan_app.command("simulate")
@configured("tools")
def simulate_command(
    settings: Settings,
    file: File,
    input: Input = None,
    state: State = None,
    durations: Durations = None,
    assume: Assume = None,
    as_json: AsJson = False,
) -> None:
    """A dry run: levels, what would run in parallel, what would need approval, and how long it would take."""
    with one_line_errors():
        found = _read(file, input, state, settings.tools)
        simulation = _simulate(found, durations, assume)
    if as_json:
        print(dumps(_as_json(simulation)))
    else:
        _print_simulation(simulation)
        _warn(found)


@plan_app.command()
@configured("tools")
def draw(
    settings: Settings,
    file: File,
    input: Input = None,
    state: State = None,
    assume: Assume = None,
    svg: Svg = None,
    calls: Annotated[bool, typer.Option("--calls", help="Draw calls only, and not what they read and write.")] = False,
) -> None:
    """Draw a plan as Mermaid, or as SVG: calls, and the paths between them; with --assume as it would end."""
    with one_line_errors():
        found = _read(file, input, state, settings.tools)
        if assume:
            plan = found.new_plan()
            simulate(plan, found.calls, assume=_assumed(found, assume))
        else:
            plan = found.checked()
        print_drawing(draw_plan(plan, paths=not calls), svg)


def print_drawing(drawing: Drawing, svg: Path | None) -> None:
    """Mermaid on stdout, or an SVG file."""
    if svg is None:
        print(to_mermaid(drawing))
        return
    try:
        svg.write_text(to_svg(drawing) + "\n", encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{svg} cannot be written: {error.strerror}", USAGE) from None
    print(f"{svg}: {len(drawing.nodes)} calls, {len(drawing.edges)} edges", file=sys.stderr)


def _read(file: Path, input: str | None, state: str | None, tools: Iterable[str]) -> Planned:
    return read_plan(
        file,
        registry=load_tools(tools),
        run_input=None if input is None else json_option(input, "--input"),
        has_input=input is not None,
        state=None if state is None else json_option(state, "--state"),
    )


def _problems(plan: Plan) -> list[dict[str, str]]:
    return [
        {"call": call.id, "tool": call.tool_name, "code": call.error.code, "message": message}
        for call in plan.calls
        if call.error is not None
        for message in call.error.problems or (call.error.message,)
    ]


def _simulate(found: Planned, durations: str | None, assume: list[str] | None) -> Simulation:
    known: Any = {} if durations is None else json_option(durations, "--durations")
    if not isinstance(known, dict) or not all(
        isinstance(value, int | float) and value >= 0 for value in known.values()
    ):
        raise CommandError("--durations must be a JSON object of seconds by tool name", USAGE)
    return simulate(found.new_plan(), found.calls, durations=known, assume=_assumed(found, assume), asks=Guard().asks)


def _assumed(found: Planned, assume: list[str] | None) -> dict[str, str]:
    outcomes = dict(item.split("=", 1) for item in assume or [] if "=" in item)
    ids = {f"1.{index}" for index in range(len(found.calls))}
    for item in assume or []:
        call_id, _, outcome = item.partition("=")
        if call_id not in ids or not (outcome == "failed" or outcome.startswith("†")):
            raise CommandError(
                f"--assume {item}: expected ID=failed or ID=†state.path with an ID from 1.0 to 1.{len(ids) - 1}", USAGE
            )
    return outcomes


def _as_json(simulation: Simulation) -> dict[str, Any]:
    calls = [
        {
            "id": step.call.id,
            "tool": step.call.tool_name,
            "level": step.level,
            "start": step.start,
            "end": step.end,
            "status": step.status,
            "approval": step.asks,
            "reason": step.call.reason or (step.call.error.message if step.call.error else None),
        }
        for step in simulation.steps
    ]
    levels = [[step.call.id for step in steps] for steps in simulation.levels().values()]
    return {"makespan": simulation.makespan, "sum": simulation.total, "levels": levels, "calls": calls}


def _print_simulation(simulation: Simulation) -> None:
    console = Console()
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for title in ("level", "call", "tool", "from", "to", "approval", "status"):
        table.add_column(title, no_wrap=title != "status", justify="right" if title in ("from", "to") else "left")
    for step in sorted(simulation.steps, key=lambda step: (step.start is None, step.level, step.call.index)):
        table.add_row(*_row(step))
    console.print(table)
    for step in simulation.steps:
        if reason := step.call.reason or (step.call.error.message if step.call.error else ""):
            console.print(Text(f"{step.call.id} {reason}", style="dim"))
    for level, steps in simulation.levels().items():
        together = ", ".join(step.call.id for step in steps)
        console.print(f"level {level}: {together}" + (" in parallel" if len(steps) > 1 else ""), highlight=False)
    gain = simulation.total / simulation.makespan if simulation.makespan else 1.0
    console.print(
        f"makespan {simulation.makespan:.2f} s, one after the other {simulation.total:.2f} s: {gain:.1f} times faster",
        highlight=False,
    )


def _row(step: Step) -> list[str]:
    times = ["", ""] if step.start is None or step.end is None else [f"{step.start:.2f}", f"{step.end:.2f}"]
    level = str(step.level) if step.start is not None else ""
    return [level, step.call.id, step.call.tool_name, *times, "asks" if step.asks else "", step.status]


def _warn(found: Planned) -> None:
    if found.unknown:
        names = ", ".join(dict.fromkeys(found.unknown))
        print(
            f"perdure: parameters not checked, as these tools are only known by name here (--tools): {names}",
            file=sys.stderr,
        )
