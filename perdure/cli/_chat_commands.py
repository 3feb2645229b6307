"""The command `perdure chat`."""

from __future__ import annotations

import shlex
import sys
import uuid
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.agents.agent import Agent
from perdure.cli._execute import Context, connected, context_option, one_line_errors
from perdure.cli._help import Commands
from perdure.cli._options import configured, local_user
from perdure.hosting.settings import Settings
from perdure.runs.caller_context import masked_context
from perdure.values.json import dumps

if TYPE_CHECKING:
    from perdure.client.perdure import Perdure


chat_app = Commands()


@chat_app.command("chat")
@configured("task_queue", "agents")
def chat(
    settings: Settings,
    agent: Annotated[
        str, typer.Argument(metavar="AGENT", help="An agent file, a name in the agents folder, or MODULE:NAME.")
    ],
    session: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="The session's key: an existing session continues.", show_default="a random one"
        ),
    ] = None,
    reasoning: Annotated[
        bool, typer.Option("--reasoning", help="Also show what the model thinks, while it does.")
    ] = False,
    sender: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Who talks; by default the user of this machine.", show_default=False),
    ] = None,
    tenant: Annotated[str, typer.Option(metavar="NAME", help="The session's tenant.")] = "",
    context: Context = None,
) -> None:
    """Talk with an agent: in a terminal live, with approvals; in a pipe a message a line."""
    with one_line_errors():
        found = Agent.read_to_run(agent, folder=settings.agents_folder)
        known = context_option(context, found.check_context)
    key = session or f"chat-{found.name}-{uuid.uuid4().hex[:6]}"
    who = local_user() if sender is None else sender
    live = sys.stdin.isatty() and sys.stdout.isatty()

    async def talk(perdure: Perdure) -> int:
        there = perdure.session(key, tenant=tenant, agent=found, task_queue=settings.task_queue)
        print(
            f"{found.name}, session {key}{'; /help lists the commands' if live else ''}",
            file=sys.stderr,
            flush=True,
        )
        if not await perdure.has_worker(settings.task_queue):
            print(f"perdure: no worker listens on task queue {settings.task_queue!r} yet", file=sys.stderr, flush=True)
        if not live:
            from perdure.cli import _chat as chat_module

            return await chat_module.chat(perdure, there, who, known)
        from perdure.cli import _chat_terminal as chat_terminal  # only this command needs it

        code = await chat_terminal.chat(perdure, there, who, known, reasoning=reasoning)
        again = ["perdure", "chat", agent, "--session", key, *(["--tenant", tenant] if tenant else [])]
        if context is not None:  # a typed secret is printed nowhere
            again += ["--context", context if context.startswith("@") else dumps(masked_context(known))]
        print(f"it goes on with: {shlex.join(again)}", file=sys.stderr)
        return code

    raise SystemExit(connected(talk))
