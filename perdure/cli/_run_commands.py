"""`perdure run`, `wait`, `show`, `watch`, `steer` and `withdraw`."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from perdure.agents.json_files import json_option
from perdure.approvals.policy import ASKS
from perdure.cli._console import get_console, strip_control_characters
from perdure.cli._execute import (
    INTERRUPTED,
    USAGE,
    CommandError,
    Context,
    Json,
    Priority,
    RunId,
    check_choice,
    connected,
    context_option,
    one_line_errors,
)
from perdure.cli._help import Commands
from perdure.cli._options import local_user, with_settings
from perdure.cli._run_view import (
    LiveRun,
    finish,
    print_exchanges,
    print_parts,
    print_run,
    print_waiting,
    run_table,
    waiting_lines,
)
from perdure.errors import MediaError, RunError
from perdure.hosting.settings import Settings
from perdure.runs.wire import RunView
from perdure.values.json import JsonObject, dumps
from perdure.values.references import MISSING

if TYPE_CHECKING:
    from perdure.agents.agent import Agent
    from perdure.client.perdure import Perdure
    from perdure.client.run import Run
    from perdure.client.selection import WaitingRow
    from perdure.runs.evaluation import RunScore
    from perdure.runs.undo import Effect

runs_app = Commands()


@runs_app.command()
@with_settings("task_queue", "agents")
def run(
    settings: Settings,
    agent: Annotated[
        str, typer.Argument(metavar="AGENT", help="An agent file, a name in the agents folder, or MODULE:NAME.")
    ],
    input: Annotated[str | None, typer.Option("--input", metavar="JSON|@FILE", help="The run's input.")] = None,
    files: Annotated[
        list[str] | None,
        typer.Option("--file", metavar="NAME=PATH", help="A file for this key of the input. May be repeated."),
    ] = None,
    id: Annotated[
        str | None, typer.Option("--id", help="The run's id; by default the agent's name with a random suffix.")
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Start the run, print its id and do not wait.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show the run live.")] = False,
    ask: Annotated[
        str | None,
        typer.Option(
            help="The calls of this run that need an approval, instead of the agent file's: " + " < ".join(ASKS)
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="JSON|@FILE",
            help='Prompt settings of this run, which override config.prompt: {"text": "…", "skills": true}',
        ),
    ] = None,
    sender: Annotated[
        str | None, typer.Option(metavar="NAME", help="The person for whom the run works. Lists filter by it.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="The run's tenant.")] = None,
    context: Context = None,
    callback: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="The URL of a signed webhook at the run's end. The worker must allow its host."
        ),
    ] = None,
    priority: Priority = None,
    as_json: Json = False,
) -> None:
    """Start an agent and print its result."""
    # Agents and plans are imported here: help and other commands of this module do not need them.
    from perdure.agents.agent import Agent
    from perdure.agents.files import example_input
    from perdure.runs.agent import check_new_id, parse_prompt, written_keys
    from perdure.runs.notifications import check_callback

    approval: JsonObject = {} if ask is None else {"ask": ask}
    with one_line_errors():  # validation before a server is needed
        if id is not None:
            try:
                check_new_id(id)
            except RunError as error:
                raise CommandError(f"--id: {error}", USAGE) from None
        check_choice("--ask", ask, ASKS)
        found = Agent.read_to_run(agent, folder=settings.agents_folder)
        example = example_input(found.input_schema, input)
        given = _with_files(MISSING if input is None else json_option(input, "--input", example), files or [])
        found.check_input(given, explicit=True)
        written = {} if prompt is None else json_option(prompt, "--prompt", '{"text": "…", "skills": true}')
        prompt_change = written_keys(parse_prompt(written, source="--prompt"))
        known = context_option(context, found.check_context)
        if callback is not None and (problem := check_callback(callback)):
            raise CommandError(f"--callback: {problem}", USAGE)
    how: dict[str, Any] = {
        "no_wait": no_wait,
        "live": watch and not as_json,
        "task_queue": settings.task_queue,
        "id": id,
        "approval": approval,
        "prompt": prompt_change,
        "sender": sender,
        "tenant": tenant,
        "context": known,
        "callback": callback,
        "priority": priority,
    }
    view = connected(lambda perdure: _run_agent(perdure, found, given, **how))
    if isinstance(view, str):
        print(dumps({"runId": view}) if as_json else view)
    else:
        finish(view, as_json)


def _with_files(value: object, files: Iterable[str]) -> object:
    """Return the input with the files under their keys. Raise `CommandError` for a path that is not a file."""
    from perdure.agents.media import Media

    for each in files:
        name, sign, path = each.partition("=")
        if not (name and sign and path):
            raise CommandError(f"--file {each!r} is not valid: expected NAME=PATH", USAGE)
        value = {} if value is MISSING else value
        if not isinstance(value, dict) or name in value:
            raise CommandError(f"--file {each!r} cannot be used: the input must be an object without {name!r}", USAGE)
        try:
            value = {**value, name: Media(path)}
        except MediaError as error:
            raise CommandError(f"--file {each!r}: {error}", USAGE) from None
    return value


@runs_app.command()
def wait(
    run_id: RunId,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Seconds to wait. The run continues after a timeout.")
    ] = 30.0,
    as_json: Json = False,
) -> None:
    """Wait for a run to end and print its result."""
    finish(connected(lambda perdure: perdure.get_run(run_id).wait(timeout)), as_json)


@runs_app.command()
def show(
    run_id: RunId,
    as_json: Json = False,
    draw: Annotated[bool, typer.Option("--draw", help="Print the run's plans as Mermaid, coloured by status.")] = False,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="OUT", help="Write the run's plans to an SVG file.")
    ] = None,
    value: Annotated[
        str | None,
        typer.Option(
            "--value",
            metavar="WHAT",
            help="Print one full value as JSON: output, state, calls, errors, a reference or a call's id.",
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print every prompt and answer in full too.")] = False,
    sources: Annotated[bool, typer.Option("--sources", help="Print the provenance of each parameter.")] = False,
    prompt: Annotated[bool, typer.Option("--prompt", help="Print the parts of each prompt and their tokens.")] = False,
) -> None:
    """Show a run: Requests, calls, state and result."""
    if value is not None:
        print(connected(lambda perdure: perdure.get_run(run_id).value(value)))
        return
    if prompt:
        print_parts(run_id, connected(lambda perdure: perdure.get_run(run_id).exchanges()), as_json=as_json)
        return
    view, below = connected(lambda perdure: _read_view(perdure.get_run(run_id), verbose=verbose, as_json=as_json))
    if svg is not None or (draw and not as_json):
        from perdure.cli._plan_commands import print_drawing
        from perdure.runs.diagrams import draw_run

        with one_line_errors():
            print_drawing(draw_run(view), svg)
    if sources:
        from perdure.runs.views import run_ways

        ways = list(run_ways(view))
        print(dumps(ways) if as_json else "\n".join(ways or ["the model wrote every parameter itself"]))
    elif as_json:
        print(dumps(view.result().as_json()))
    elif svg is None and not draw:
        print_run(get_console(), view)
        if view.status == "running":
            for row in below:
                print(f"in the run {row.run_id} below it, {waiting_lines(row.run_id, row.entry)}")
            return
        effects, score = connected(lambda perdure: _read_effects_and_score(perdure.get_run(run_id)))
        if effects:
            from perdure.cli._history_commands import print_effects

            print_effects(get_console(), effects)
        if score is not None:
            get_console().print(Text(f"score: {score}"), soft_wrap=True)


async def _read_effects_and_score(run: Run) -> tuple[Sequence[Effect], RunScore | None]:
    """Return the effects that were undone after the run's end, and its score."""
    return await run.undone(), await run.score()


@runs_app.command()
def watch(
    run_id: RunId,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="At the run's end, print every prompt and answer in full.")
    ] = False,
) -> None:
    """Show a run live until it ends. In a pipe, print the calls that wait for a person at once, and the run at its end."""
    finish(connected(lambda perdure: _watch(perdure.get_run(run_id), verbose=verbose)), as_json=False)


@runs_app.command()
def steer(
    run_id: RunId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The new message.")],
    id: Annotated[
        str | None, typer.Option("--id", help="The message's id. A second message with this id is a duplicate.")
    ] = None,
    by: Annotated[str, typer.Option("--by", envvar="USER", help="The sender. The run records it.")] = "",
    as_json: Json = False,
) -> None:
    """Send a message to a running run. The model revises its plan."""
    message = connected(lambda perdure: perdure.get_run(run_id).steer(text, by=by or local_user(), id=id))
    print(dumps({"messageId": message}) if as_json else message)


@runs_app.command()
def withdraw(
    run_id: RunId,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The message's id.")],
    as_json: Json = False,
) -> None:
    """Withdraw a message that no Request of the run contains yet."""
    connected(lambda perdure: perdure.get_run(run_id).withdraw(message))
    print(dumps({"messageId": message, "withdrawn": True}) if as_json else f"{message} was withdrawn")


async def _run_agent(
    perdure: Perdure, agent: Agent, value: object, *, task_queue: str, no_wait: bool, live: bool, **given: Any
) -> RunView | str:
    """Start a run and follow it to its end. Return its view, or with `no_wait` its id at once."""
    run = await perdure.start(agent, value, task_queue=task_queue, **given)
    if no_wait:
        return run.id
    print(f"run {run.id}", file=sys.stderr)
    from perdure.queries import find_missing_worker  # other commands start without the SDK

    if missing := await find_missing_worker(perdure.client, task_queue):
        print(f"perdure: no worker takes the run yet; it waits for one. {missing}", file=sys.stderr)
    try:
        return await _follow(run) if live else await _wait(run)
    except asyncio.CancelledError:
        raise CommandError(f"interrupted; the run continues: perdure wait {run.id}", INTERRUPTED) from None


async def _read_view(run: Run, *, verbose: bool, as_json: bool) -> tuple[RunView, list[WaitingRow]]:
    """Return the run's view, and what waits for people in the runs below. With `verbose`, print all prompts and answers first."""
    view = await run.view()
    if verbose:
        print_exchanges(get_console(stderr=as_json), await run.exchanges())
    below: list[WaitingRow] = []
    if not as_json and view.status == "running" and any(call.status == "running" for call in view.calls):
        with contextlib.suppress(RunError):  # a namespace without the attribute lists none
            below = [row for row in await run.list_requests() if row.run_id != run.id]
    return view, below


async def _watch(run: Run, *, verbose: bool = False) -> RunView:
    """Follow a run to its end. With `verbose`, print all prompts and answers then."""
    await run.view()
    view = await _follow(run)
    if verbose:
        print_exchanges(get_console(), await run.exchanges())
    return view


async def _follow(run: Run) -> RunView:
    """Show the run live until it ends. In a pipe, print what waits for people at once, and the run at its end."""
    console = get_console()
    if not console.is_terminal:
        view = await _wait(run)
    else:
        view = RunView(run_id=run.id)
        with LiveRun(console) as live:
            async for view in run.views():
                live.show(view)
    console.print(run_table(view, console.width))
    return view


async def _wait(run: Run) -> RunView:
    printing = [asyncio.create_task(_print_troubles(run)), asyncio.create_task(print_waiting(run))]
    try:
        return await run.wait()
    finally:
        for each in printing:
            each.cancel()


async def _print_troubles(run: Run) -> None:
    async for trouble in run.troubles():
        print(f"perdure: {strip_control_characters(str(trouble))}", file=sys.stderr)
