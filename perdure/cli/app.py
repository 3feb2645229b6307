"""The commands (section 11): what they are called and take, and how they end."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from perdure.agents.agent import Agent
from perdure.agents.files import example_input, json_option
from perdure.approvals.policy import ASKS
from perdure.cli import _commands as commands
from perdure.cli._approval_commands import approvals_app
from perdure.cli._chat_commands import chat_app
from perdure.cli._console import screen
from perdure.cli._errors import FAILED, USAGE, CommandError, check_choice, one_line_errors
from perdure.cli._event_commands import events_app
from perdure.cli._execute import Json, RunId, connected, execute
from perdure.cli._help import Commands
from perdure.cli._history_commands import histories_app
from perdure.cli._list_commands import lists_app
from perdure.cli._model_commands import models_app
from perdure.cli._options import DEV, SERVE, WORKER, configured
from perdure.cli._plan_commands import plan_app, print_drawing
from perdure.cli._project_commands import starting_app
from perdure.cli._run_view import print_parts, print_result, print_run
from perdure.cli._session_commands import agent_app, session_app
from perdure.cli._settings_command import settings_app
from perdure.cli._token_commands import token_app
from perdure.hosting.settings import Settings
from perdure.runs.agent import parse_prompt, written_keys
from perdure.runs.diagrams import draw_run
from perdure.runs.views import run_ways
from perdure.runs.wire import RunView
from perdure.values.json import JsonObject, dumps
from perdure.values.references import MISSING

app = Commands(
    name="perdure",
    help="A durable engine for AI agents, on Temporal.",
    no_args_is_help=True,
)
app.add_typer(agent_app, name="agent")
app.add_typer(session_app, name="session")
app.add_typer(plan_app, name="plan")
app.add_typer(models_app, name="models")
app.add_typer(token_app, name="token")
app.add_typer(approvals_app)
app.add_typer(chat_app)
app.add_typer(events_app)
app.add_typer(lists_app)
app.add_typer(histories_app)
app.add_typer(settings_app)
app.add_typer(starting_app)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"perdure {version('perdure')}")
        raise typer.Exit()


@app.callback()
def perdure(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A durable engine for AI agents, on Temporal."""
    del version


@app.command()
@configured("task_queue", "agents")
def run(
    settings: Settings,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="An agent file, or a name in the agents folder.")],
    input: Annotated[str | None, typer.Option("--input", metavar="JSON|@FILE", help="The run's input.")] = None,
    id: Annotated[
        str | None, typer.Option("--id", help="The run's id; by default the agent's name and a random part.")
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Start it and return.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it live.")] = False,
    ask: Annotated[
        str | None, typer.Option(help="What this run asks a person about, over its agent file: " + " < ".join(ASKS))
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="JSON|@FILE", help='Prompt settings of this run, over config.prompt: {"text": "…", "skills": true}'
        ),
    ] = None,
    sender: Annotated[str | None, typer.Option(metavar="NAME", help="For whom it runs: lists find it by it.")] = None,
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="The same, one level up.")] = None,
    as_json: Json = False,
) -> None:
    """Start an agent and print its result."""
    approval: JsonObject = {} if ask is None else {"ask": ask}
    with one_line_errors():  # what the run would refuse needs no server to be refused
        if id is not None and not id.strip():
            raise CommandError("--id is empty: give the run a name, or leave it out for one of its own", USAGE)
        check_choice("--ask", ask, ASKS)
        found = Agent.read_to_run(agent, folder=settings.agents_folder)
        example = example_input(found.input_schema, input)
        value = found.check_input(MISSING if input is None else json_option(input, "--input", example), told=True)
        told = {} if prompt is None else written_keys(parse_prompt(json_option(prompt, "--prompt")))
    how: dict[str, Any] = {
        "no_wait": no_wait,
        "live": watch and not as_json,
        "task_queue": settings.task_queue,
        "id": id,
        "approval": approval,
        "prompt": told,
        "sender": sender,
        "tenant": tenant,
    }
    view = connected(lambda perdure: commands.run_agent(perdure, found, value, **how))
    if isinstance(view, str):
        print(dumps({"runId": view}) if as_json else view)
    else:
        _finish(view, as_json)


@app.command()
def wait(
    run_id: RunId,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Seconds; the run is not touched.")] = 30.0,
    as_json: Json = False,
) -> None:
    """Wait for a run to end and print its result."""
    _finish(connected(lambda perdure: perdure.get_run(run_id).wait(timeout)), as_json)


@app.command()
def show(
    run_id: RunId,
    as_json: Json = False,
    draw: Annotated[bool, typer.Option("--draw", help="Print its plans as Mermaid, coloured by status.")] = False,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="OUT", help="Draw its plans into an SVG file.")] = None,
    value: Annotated[
        str | None,
        typer.Option(
            "--value",
            metavar="WHAT",
            help="Print one thing whole, as JSON: output, state, calls, errors, a reference or a call's id.",
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also print every prompt and answer in full.")] = False,
    sources: Annotated[bool, typer.Option("--sources", help="Print where each parameter comes from.")] = False,
    prompt: Annotated[
        bool, typer.Option("--prompt", help="Print what its prompts are made of, and what each part costs.")
    ] = False,
) -> None:
    """Show a run: Requests, calls, state and result."""
    if value is not None:
        print(connected(lambda perdure: perdure.get_run(run_id).value(value)))
        return
    if prompt:
        print_parts(run_id, connected(lambda perdure: perdure.get_run(run_id).exchanges()), as_json=as_json)
        return
    view = connected(lambda perdure: commands.show(perdure.get_run(run_id), verbose=verbose, aside=as_json))
    if svg is not None or (draw and not as_json):
        with one_line_errors():
            print_drawing(draw_run(view), svg)
    if sources:
        ways = list(run_ways(view))
        print(dumps(ways) if as_json else "\n".join(ways or ["the model has written out every parameter itself"]))
    elif as_json:
        print(dumps(view.result().as_json()))
    elif svg is None and not draw:
        print_run(screen(), view)


@app.command()
def watch(
    run_id: RunId,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="At its end print every prompt and answer in full.")
    ] = False,
) -> None:
    """Show a run live until it ends."""
    _finish(connected(lambda perdure: commands.watch(perdure.get_run(run_id), verbose=verbose)), as_json=False)


@app.command()
def steer(
    run_id: RunId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The new message.")],
    id: Annotated[str | None, typer.Option("--id", help="The message's; the same one twice is one message.")] = None,
    by: Annotated[str, typer.Option("--by", envvar="USER", help="Who says it, for the record.")] = "",
    as_json: Json = False,
) -> None:
    """Tell a run something new while it works: it changes its plan for it."""
    message = connected(lambda perdure: perdure.get_run(run_id).steer(text, by=by, id=id))
    print(dumps({"messageId": message}) if as_json else message)


@app.command()
def withdraw(
    run_id: RunId,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The message's id.")],
    as_json: Json = False,
) -> None:
    """Take back what a run was told, while no Request holds it."""
    connected(lambda perdure: perdure.get_run(run_id).withdraw(message))
    print(dumps({"messageId": message, "withdrawn": True}) if as_json else f"{message} was taken back")


@app.command()
@configured(*WORKER)
def worker(settings: Settings) -> None:
    """Run a Perdure worker. Connection settings are Temporal's own: TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, profiles, …"""
    from perdure.hosting.worker import (
        serve,  # a model's client and Temporal's worker are not needed by any other command
    )

    execute(lambda: serve(settings))


@app.command()
@configured("agents", "task_queue", "tools", "wait", "log_format", "log_level", "log_payloads", flags=SERVE)
def serve(settings: Settings) -> None:
    """The gateway: HTTP in front of agents, sessions and runs, until Ctrl-C. Any number of them may run side by side."""
    from perdure.cli._gateway import serve as serve_gateway  # a web server is not needed by any other command

    execute(lambda: serve_gateway(settings))


@app.command()
@configured(*DEV, *SERVE, flags={"dev_port": "--port", "dev_ui_port": "--ui-port", "dev_db": "--db"})
def dev(settings: Settings) -> None:
    """An embedded Temporal server with its Web UI, a worker and the gateway, until Ctrl-C."""
    from perdure.cli._gateway import serve_dev  # the server and the worker are not needed by any other command

    execute(lambda: serve_dev(settings))


@app.command("codec-server")
@configured(flags={"codec_token": "--token", "codec_origin": "--origin"})
def codec_server(
    settings: Settings,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.")] = 8081,
) -> None:
    """Show what PERDURE_CODEC encrypts in Temporal's Web UI and command line, until Ctrl-C."""
    from perdure.pages.serve import serve_codec  # a web server is not needed by any other command

    execute(lambda: serve_codec(host=host, port=port, token=settings.codec_token, origin=settings.codec_origin))


@app.command()
@configured(flags={"dev_ui_port": "--ui-port"})
def demo(
    settings: Settings,
    yes: Annotated[bool, typer.Option("--yes", help="Approve what waits for a person.")] = False,
    stay: Annotated[bool, typer.Option("--stay", help="Keep the server and the Web UI up until Ctrl-C.")] = False,
    model: Annotated[str, typer.Option(help="'scripted' needs no key; 'live' asks OPENAI_BASE_URL.")] = "scripted",
) -> None:
    """The whole thing on this machine, with no account and no key; its Web UI takes a free port unless one is given."""
    from perdure.cli.demo import run_demo

    ui_port = settings.dev_ui_port if settings.sources.get("dev_ui_port") == "--ui-port" else 0
    execute(lambda: run_demo(stay=stay, model=model, ui_port=ui_port, yes=yes))


def _finish(view: RunView, as_json: bool) -> None:
    """Print a result and leave with its exit code."""
    if as_json:
        print(dumps(view.result().as_json()))
    else:
        print_result(screen(), view)
    raise SystemExit(0 if view.status == "completed" else FAILED)
