"""The `perdure plan` commands."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from perdure.agents.files import Planned
from perdure.agents.json_files import json_option
from perdure.cli._console import get_console, make_table
from perdure.cli._execute import FAILED, USAGE, CommandError, one_line_errors
from perdure.cli._help import Commands
from perdure.cli._options import with_settings, write_file
from perdure.hosting.equipment import registry_of
from perdure.hosting.settings import Settings
from perdure.plan import Call, SimulatedCall, Simulation, most_at_once, simulate
from perdure.rules import RULE_BROKEN
from perdure.runs.diagrams import Drawing, draw_plan, to_mermaid, to_svg
from perdure.runs.undo import without_undo
from perdure.runs.views import source_lines
from perdure.values.json import JsonObject, dumps
from perdure.values.provenance import BY_OTHERS
from perdure.values.references import MISSING

if TYPE_CHECKING:
    from perdure.cli._plans import CheckedPlan

_LENGTH: Final = re.compile(r"len\(.+\)")
_COUNT: Final = re.compile(r"[0-9]{1,6}")
_WIDE: Final = 1000
"""The width in pixels above which a file's drawing goes from top to bottom: a page shows about 750."""
_OUTCOME: Final = re.compile(r"failed|true|false|[0-9]{1,6}|†.+", re.DOTALL)

plan_app = Commands(
    help="Check, simulate or draw a plan without running it. No server is needed.", no_args_is_help=True
)

File = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="An agent file with a plan; a Solution, calls or a script, in any dialect."),
]
ForAgent = Annotated[
    str | None,
    typer.Option("--agent", metavar="AGENT", help="The plan's agent: a file, a name, or MODULE:NAME."),
]
Input = Annotated[str | None, typer.Option("--input", metavar="JSON|@FILE", help="The run's input.")]
State = Annotated[str | None, typer.Option("--state", metavar="JSON|@FILE", help="The state before the plan.")]
Durations = Annotated[
    str | None, typer.Option(metavar="JSON|@FILE", help='The seconds of a call of each tool: {"fetch": 2.5}.')
]
Assume = Annotated[
    list[str] | None,
    typer.Option(metavar="ID=OUTCOME", help="1.0=failed, 1.3=†state.notSunny, 1.2=false, 'len(†state.hosts)=12'."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print only one JSON document.")]
Svg = Annotated[Path | None, typer.Option("--svg", metavar="OUT", help="Write an SVG instead of printing Mermaid.")]


@plan_app.command()
@with_settings("tools", "agents")
def validate(
    settings: Settings,
    file: File,
    agent: ForAgent = None,
    input: Input = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """List every problem of a plan, with call id and JSON path. With --agent, list the agent's problems too."""
    with one_line_errors():
        looked = _read(settings, file, agent, input, state)
        plan = looked.planned.checked()
    verdicts = looked.verdicts()
    broken: list[JsonObject] = [
        {"call": None, "tool": None, "code": RULE_BROKEN, "message": each.line} for each in verdicts if each.forbids
    ]
    problems = [*_problems(plan.calls), *broken] + [
        {"call": None, "tool": None, "code": "plan", "message": m} for m in looked.problems
    ]
    warnings, hints = looked.planned.warnings(plan), looked.planned.hints(plan)
    written = [form for call in plan.calls for form in call.written()]
    has_undo = any(form.spec.tool is not None and form.spec.tool.undo is not None for form in written)
    no_undo = without_undo(written) if has_undo else []
    if as_json:
        sources = [{"call": call, "way": way} for call, way in looked.planned.ways()]
        found: JsonObject = {"ok": not problems, "calls": len(plan.calls), "problems": problems}
        judged: JsonObject = {"rules": [each.as_json() for each in verdicts]} if verdicts else {}
        print(dumps({**found, "warnings": warnings, "hints": hints, "sources": sources, "noUndo": no_undo, **judged}))
    else:
        for problem in problems:
            call = f"{problem['call']} {problem['tool']}: " if problem["call"] else ""
            print(f"{call}{problem['message']}")
        for verdict in verdicts:
            if not verdict.forbids:
                print(verdict.line)
        for warning in warnings:
            print(f"warning: {warning}")
        for hint in hints:
            print(f"hint: {hint}")
        for each in no_undo:
            print(f"has no undo: {each}")
        more = f", {_count(len(warnings), 'warning')}" if warnings else ""
        print(f"{_count(len(plan.calls), 'call')}, {_count(len(problems), 'problem')}{more}")
        _print_ways(looked.planned)
        _warn(looked.planned, input, problems)
    raise SystemExit(FAILED if problems else 0)


@plan_app.command("simulate")
@with_settings("tools", "agents")
def simulate_command(
    settings: Settings,
    file: File,
    agent: ForAgent = None,
    input: Input = None,
    state: State = None,
    durations: Durations = None,
    assume: Assume = None,
    as_json: AsJson = False,
) -> None:
    """Show a dry run: the levels of parallel calls, the calls that need approval, and the time. Exit with code 1 if a call, the output or a delegate's agent file is invalid."""
    with one_line_errors():
        looked = _read(settings, file, agent, input, state)
        simulation = _simulate(looked, durations, assume)
    if as_json:
        problems: JsonObject = {"problems": looked.problems} if looked.problems else {}
        print(dumps({**_as_json(simulation), **problems}))
    else:
        for line in looked.problems:
            print(line)
        _print_simulation(simulation)
        for verdict in looked.verdicts():
            print(verdict.line)
        _print_ways(looked.planned)
        _warn(looked.planned, input, _problems(step.call for step in simulation.steps))
    if looked.problems or any(step.status == "invalid" for step in simulation.steps):
        raise SystemExit(FAILED)


@plan_app.command()
@with_settings("tools", "agents")
def draw(
    settings: Settings,
    file: File,
    agent: ForAgent = None,
    input: Input = None,
    state: State = None,
    assume: Assume = None,
    svg: Svg = None,
    calls: Annotated[
        bool, typer.Option("--calls", help="Draw only calls, without the paths that they read and write.")
    ] = False,
) -> None:
    """Draw a plan's calls and the paths between them, as Mermaid or SVG. With --assume, draw the end of the run."""
    with one_line_errors():
        found = _read(settings, file, agent, input, state).planned
        if assume:
            plan = found.new_plan()
            simulate(plan, found.calls, assume=_assumed(found, assume))
        else:
            plan = found.checked()
        sources = {call.id: call.state.sources for call in found.played().calls}
        print_drawing(draw_plan(plan, paths=not calls, sources=sources), svg)


def print_drawing(drawing: Drawing, svg: Path | None) -> None:
    """Print Mermaid to stdout, or write an SVG file."""
    if svg is None:
        print(to_mermaid(drawing))
        return
    write_file(svg, to_svg(drawing, most=_WIDE) + "\n")
    calls = sum(node.status != "path" for node in drawing.nodes)
    print(f"{svg}: {_count(calls, 'call')}, {_count(len(drawing.edges), 'edge')}", file=sys.stderr)


def _read(settings: Settings, file: Path, agent: str | None, input: str | None, state: str | None) -> CheckedPlan:
    """Read the plan of a file. With named modules, its tools are those of a worker with these options."""
    from perdure.cli._plans import check_plan_file  # only these commands need the parsers of all dialects

    return check_plan_file(
        file,
        registry_of(settings).definitions() if agent is not None or settings.tools else {},
        agent=agent,
        agents=settings.agents_folder,
        complete=bool(settings.tools),
        run_input=MISSING if input is None else json_option(input, "--input"),
        state=None if state is None else json_option(state, "--state"),
    )


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def _problems(calls: Iterable[Call]) -> list[JsonObject]:
    return [
        {"call": call.id, "tool": call.spec.tool_name, "code": call.state.error.code, "message": message}
        for call in calls
        if call.state.error is not None
        for message in call.state.error.problems or (call.state.error.message,)
    ]


def _simulate(looked: CheckedPlan, durations: str | None, assume: list[str] | None) -> Simulation:
    known: Any = {} if durations is None else json_option(durations, "--durations")
    if not isinstance(known, dict) or not all(
        isinstance(value, int | float) and value >= 0 for value in known.values()
    ):
        raise CommandError("--durations must be a JSON object of seconds by tool name", USAGE)
    found = looked.planned
    return simulate(found.new_plan(), found.calls, durations=known, assume=_assumed(found, assume), asks=looked.asks())


def _assumed(found: Planned, assume: list[str] | None) -> dict[str, str]:
    outcomes = dict(item.split("=", 1) for item in assume or [] if "=" in item)
    ids = {f"{found.request}.{index}" for index in range(len(found.calls))}
    for item in assume or []:
        what, _, value = item.partition("=")
        known = what in ids or what.partition("[")[0] in ids
        if not (_LENGTH.fullmatch(what) and _COUNT.fullmatch(value)) and not (known and _OUTCOME.fullmatch(value)):
            expected = "ID=failed, ID=†state.path, ID=true, ID=false, ID=3 or 'len(†state.path)=3'"
            raise CommandError(
                f"--assume {item}: expected {expected} with an ID from {found.request}.0 to {found.request}.{len(ids) - 1}",
                USAGE,
            )
    return outcomes


def _as_json(simulation: Simulation) -> JsonObject:
    calls = [
        {
            "id": step.call.id,
            "tool": step.call.spec.tool_name,
            "level": step.level,
            "start": step.start,
            "end": step.end,
            "status": step.status,
            "approval": step.asks,
            "sources": source_lines(step.call, model=False),
            "reason": step.call.state.reason or (step.call.state.error.message if step.call.state.error else None),
            **(
                {}
                if step.inside is None
                else {"times": step.times, "guessed": step.guessed, "inside": _as_json(step.inside)}
            ),
        }
        for step in simulation.steps
    ]
    levels = [[step.call.id for step in steps] for steps in simulation.levels().values()]
    return {"makespan": simulation.makespan, "sum": simulation.total, "levels": levels, "calls": calls}


def _print_simulation(simulation: Simulation) -> None:
    console = get_console()
    titles = ("level", "call", "tool", "from", "to", "approval", "status")
    rows = [_row(step) for step in sorted(simulation.steps, key=lambda s: (s.start is None, s.level, s.call.index))]
    console.print(make_table(titles, rows, console.width, shrinkable=("tool",), right=("from", "to")))
    for step in simulation.steps:
        if step.inside is not None and step.start is not None:
            console.print(_round(step), highlight=False)
        if reason := step.call.state.reason or (step.call.state.error.message if step.call.state.error else ""):
            console.print(Text(f"{step.call.id} {reason}", style="dim"))
    for level, steps in simulation.levels().items():
        together = ", ".join(step.call.id for step in steps)
        console.print(f"level {level}: {together}{_at_once(steps)}", highlight=False)
    gain = simulation.total / simulation.makespan if simulation.makespan else 1.0
    console.print(
        f"makespan {simulation.makespan:.2f} s; calls in sequence {simulation.total:.2f} s: {gain:.1f} times faster",
        highlight=False,
    )


def _at_once(steps: Sequence[SimulatedCall]) -> str:
    """Return how many calls of a level run at the same time: calls of an exclusive tool never do."""
    most = most_at_once(steps)
    if len(steps) == 1:
        return ""
    return " in parallel" if most == len(steps) else " one after another" if most == 1 else f", {most} in parallel"


def _round(step: SimulatedCall) -> str:
    """Return the number of a loop's iterations, and the calls of one iteration."""
    assert step.inside is not None
    inner = ", ".join(f"{each.call.id} {each.call.spec.tool_name}" for each in step.inside.steps)
    if step.guessed:
        times = f"an unknown number of times, assumed once: give --assume {step.call.id}=12"
    else:
        times = f"{step.times} times"
    return f"{step.call.id} runs {times}; each iteration {inner}, {step.inside.makespan:.2f} s"


def _row(step: SimulatedCall) -> list[str]:
    times = ["", ""] if step.start is None or step.end is None else [f"{step.start:.2f}", f"{step.end:.2f}"]
    level = str(step.level) if step.start is not None else ""
    return [level, step.call.id, step.call.spec.tool_name, *times, "asks" if step.asks else "", step.status]


def _print_ways(found: Planned) -> None:
    """Print the parameters with untrusted text, and each text's provenance (R15.7)."""
    for call, way in found.ways():
        if BY_OTHERS in way:
            print(f"{call} {way}")


def _warn(found: Planned, input: str | None, problems: list[JsonObject]) -> None:
    if input is None and any("†input" in problem["message"] for problem in problems):
        print("perdure: the plan reads the run's input, which is missing: give --input JSON|@FILE", file=sys.stderr)
    if found.unknown:
        names = ", ".join(dict.fromkeys(found.unknown))
        print(
            f"perdure: parameters not checked: only the names of these tools are known (give --tools): {names}",
            file=sys.stderr,
        )
