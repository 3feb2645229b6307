"""`perdure agent`, `session` and `chat`: a conversation that outlives its runs (section 10).

The sender is the user of this machine, who has all rights here. An option names the tenant.
"""

from __future__ import annotations

import shlex
import sys
import uuid
import warnings
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from perdure.agents.agent import Agent
from perdure.agents.files import tools_of, with_lines
from perdure.agents.folder import AgentFolder
from perdure.approvals.policy import policy_problems
from perdure.cli._console import get_console, make_table, strip_control_characters
from perdure.cli._data_commands import Out, write_export
from perdure.cli._execute import (
    FAILED,
    TIMEOUT,
    USAGE,
    CommandError,
    Context,
    Json,
    check_choice,
    connected,
    context_option,
    one_line_errors,
)
from perdure.cli._help import CommandGroup, Commands
from perdure.cli._options import local_user, naming_tenants, tenant_options, tenant_text, with_settings
from perdure.errors import RunError, RunNotFoundError
from perdure.hosting.settings import Settings
from perdure.runs.caller_context import masked_context
from perdure.runs.delegates import wanted_delegates
from perdure.sessions.fork import read_place
from perdure.sessions.replies import shorten_text
from perdure.sessions.wire import EVERYTHING, WAIT, Receipt, SessionView, WaitResult
from perdure.values.json import JsonObject, dumps
from perdure.values.messages import MODES, ToolMessage

if TYPE_CHECKING:
    from perdure.client.perdure import Perdure
    from perdure.client.session import Session


_ALL: Final = (EVERYTHING,)
_SEND: Final = "say"

Key = Annotated[str, typer.Argument(metavar="SESSION", help="The session's key.")]
Tenant = Annotated[
    str, typer.Option(metavar="NAME", help="The session's tenant. Other tenants' sessions are not found.")
]
Sender = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The sender; by default the user of this machine.", show_default=False),
]


class _SendsByDefault(CommandGroup):
    """The group `perdure agent`: `perdure agent SESSION MESSAGE` is a command without a name, `wait` has one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help"):
            args = [_SEND, *args]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the command without a name."""
        send = self.commands[_SEND]
        send.format_help(send.context_class(send, info_name=ctx.info_name, parent=ctx.parent), formatter)
        formatter.write(
            "\n'perdure agent wait RUN' waits for the end of a session's run.\n'perdure agent check AGENT' shows an agent's parts.\n"
        )


agent_app = Commands(
    cls=_SendsByDefault,
    no_args_is_help=True,
    help="Send a message to a session: perdure agent SESSION MESSAGE --agent FILE. Or wait for a session's run.",
)
session_app = Commands(no_args_is_help=True, help="Sessions: conversations of many runs.")


@agent_app.command(_SEND, hidden=True)
@with_settings("task_queue", "agents")
def say(
    settings: Settings,
    session: Key,
    message: Annotated[
        str, typer.Argument(metavar="MESSAGE", help="The message; /stop, /new and /reset are commands.")
    ],
    agent: Annotated[
        str | None,
        typer.Option(
            metavar="AGENT",
            help="The agent: a file, a name in the agents folder, or MODULE:NAME. An existing session does not need it.",
        ),
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(metavar="MESSAGE_ID", help="The message's id. A second message with this id is a duplicate."),
    ] = None,
    mode: Annotated[str | None, typer.Option(metavar="MODE", help=" | ".join(MODES))] = None,
    route: Annotated[
        str,
        typer.Option(
            metavar="NAME[:ADDRESS]",
            help="The worker's function that delivers the reply.",
            show_default="nowhere",
        ),
    ] = "",
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Print the receipt and do not wait for the reply.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=0, help="Seconds to wait for the reply. The run continues after a timeout."
        ),
    ] = None,
    sender: Sender = None,
    tenant: Tenant = "",
    context: Context = None,
    as_json: Json = False,
) -> None:
    """Send a message to a session and print the reply. With --json or --no-wait, print the receipt and do not wait."""
    with one_line_errors():
        check_choice("--mode", mode, MODES)
        found = None if agent is None else Agent.read_to_run(agent, folder=settings.agents_folder)
        known = context_option(context)

    async def speak(perdure: Perdure) -> tuple[Receipt, str | None]:
        there = perdure.session(session, tenant=tenant, agent=found, task_queue=settings.task_queue)
        given: Any = {"id": id, "mode": mode, "route": route, "sender": _sender(sender), "rights": _ALL}
        given |= {"context": known}
        try:
            receipt = await there.send(message, **given)
        except RunNotFoundError as error:
            hint = "" if found is not None else "; --agent AGENT begins it"
            raise CommandError(f"{error}{hint}") from None
        if as_json or no_wait or receipt.run_id is None or receipt.done == "stopped":
            return receipt, None
        _print_aside(receipt)
        return receipt, await there.reply(receipt, timeout)

    receipt, reply = connected(speak)
    if as_json:
        print(dumps(receipt.as_json()))
    elif no_wait or receipt.run_id is None or receipt.done == "stopped":
        print(receipt.run_id or receipt.done)
        _print_aside(receipt)
    elif reply is not None:
        print(reply)


@agent_app.command("wait")
def wait(
    what: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's id, from a receipt; with --session, a message's id too.")
    ],
    session: Annotated[str | None, typer.Option(metavar="SESSION", help="The key of the message's session.")] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Seconds to wait. The run continues after a timeout.")
    ] = WAIT,
    sender: Annotated[
        str, typer.Option(metavar="NAME", help="The message's sender, if several senders used this id.")
    ] = "",
    tenant: Tenant = "",
    as_json: Json = False,
) -> None:
    """Wait for the end of a session's run."""

    async def ask(perdure: Perdure) -> WaitResult:
        if session is not None:
            return await perdure.session(session, tenant=tenant).wait(what, timeout, sender=sender)
        return await perdure.session_of(what).wait(what, timeout)

    waited = connected(ask)
    if as_json:
        print(dumps(waited.as_json()))
    else:
        print(waited.status if waited.error is None else f"{waited.status}: {waited.error}")
    raise SystemExit({"ok": 0, "error": FAILED, "timeout": TIMEOUT}[waited.status])


@agent_app.command("check")
@with_settings("agents", "tools")
def check(
    settings: Settings,
    agent: Annotated[
        str, typer.Argument(metavar="AGENT", help="An agent file, a name in the agents folder, or MODULE:NAME.")
    ],
    as_json: Json = False,
) -> None:
    """Show an agent's parts, delegates without an agent file, and rules that name a parameter which their tool does not have. For another framework's agent, show the unsupported parts and their replacements too."""
    from perdure.hosting.equipment import registry_of  # as for a worker

    with one_line_errors(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the command prints them itself
        of_worker = registry_of(settings).definitions()
        found = Agent.read_to_run(agent, folder=settings.agents_folder, tools=of_worker)
        known = {each.name: each.definition for each in found.functions} | of_worker
    tools = [message.tool for message in found.parsed.messages() if isinstance(message, ToolMessage)]
    delegates, problems = AgentFolder(settings.agents_folder).delegates_of(found.parsed, found.delegates())
    wrong = policy_problems(found.document(), tools_of(found.parsed, known, delegates))
    problems += map(str, with_lines(wrong, agent, settings.agents_folder))
    facts: JsonObject = {
        "agent": found.name,
        "tools": [tool if isinstance(tool, str) else str(tool.get("name")) for tool in tools],
        "delegates": list(dict.fromkeys([*found.delegates(), *wanted_delegates(tools)])),
        "hooks": [f"{each.ref.event} {each.ref.name}" for each in found.hooks],
        "notCarried": [{"agent": each.agent, "part": each.part, "instead": each.instead} for each in found.not_carried],
        "problems": problems,
    }
    if as_json:
        print(dumps(facts))
        raise SystemExit(FAILED if problems else 0)
    out = get_console()
    for name in ("tools", "delegates", "hooks"):
        of = " of the agent" if name == "hooks" else ""  # a worker has hooks of its own
        out.print(f"{name}{of}: {', '.join(facts[name]) or 'none'}", markup=False, soft_wrap=True)
    for line in [*map(str, found.not_carried), *problems]:
        out.print(line, markup=False, soft_wrap=True)
    if problems:
        raise SystemExit(FAILED)


@session_app.command("show")
def show(
    session: Key,
    tenant: Tenant = "",
    whole: Annotated[
        bool, typer.Option("--all", help="Show archived entries too. The command fails if one cannot be read.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show a session: its run, its queue, and its newest entries."""

    async def ask(perdure: Perdure) -> SessionView:
        its = perdure.session(session, tenant=tenant)
        try:
            view = await its.show()
        except RunNotFoundError as error:
            raise await naming_tenants(
                perdure, error, tenant, lambda other: perdure.session(session, tenant=other).exists()
            ) from None
        if whole and view.archived_through:
            view.entries, view.archived_through = await its.read_entries(), 0
        return view

    view = connected(ask)
    if view.trouble:
        print(f"perdure: {strip_control_characters(view.trouble)}", file=sys.stderr)
    if as_json:
        print(dumps(view.as_json()))
        return
    out = get_console()
    whose = f", tenant {tenant}" if tenant else ""
    out.print(f"{view.session}: {view.agent}, {view.status}{whose}", markup=False)
    if view.queue:
        rows = [(each.message_id, each.sender, each.mode, shorten_text(each.text, 80)) for each in view.queue]
        out.print(make_table(("waits", "sender", "mode", "message"), rows, out.width, shrinkable=("message",)))
    if view.archived_through:
        words = (
            f"entries 1 to {view.archived_through:,} are archived: perdure session show {shlex.quote(session)} --all"
        )
        out.print(words, markup=False, highlight=False)
    for entry in view.entries:
        out.print(_line(entry), markup=False, highlight=False)


@session_app.command("watch")
def watch(session: Key, tenant: Tenant = "", as_json: Json = False) -> None:
    """Print a session's entries, and new ones as they arrive, until its end or Ctrl-C. With --json, print one line of JSON each."""

    async def follow(perdure: Perdure) -> None:
        out = get_console()
        async with aclosing(perdure.session(session, tenant=tenant).watch()) as entries:
            async for entry in entries:
                if as_json:
                    print(dumps(entry), flush=True)
                else:
                    out.print(_line(entry), markup=False, highlight=False)

    connected(follow)


@session_app.command("export")
def export(session: Key, out: Out = None, tenant: Tenant = "") -> None:
    """Write a session as JSON, with all entries, state and files. `perdure import` restores it in another namespace."""
    write_export(connected(lambda perdure: perdure.session(session, tenant=tenant).export()), out)


@session_app.command("list")
def list_sessions(tenant: Tenant = "", as_json: Json = False) -> None:
    """List a tenant's sessions, last used first."""

    async def found(perdure: Perdure) -> tuple[list[Any], list[str]]:
        others = [other for other in await perdure.list_tenants() if other != tenant]
        return [each async for each in perdure.list_sessions(tenant=tenant)], others

    sessions, others = connected(found)
    if as_json:
        print(dumps([each.as_json() for each in sessions]))
    elif sessions:
        rows = [
            (each.session, each.title, each.agent or "", each.since.isoformat(timespec="seconds")) for each in sessions
        ]
        out = get_console()
        titles = ("session", "first message", "agent", "since")
        out.print(
            make_table(
                titles, rows, out.width, shrinkable=("first message", "session", "agent"), droppable=("first message",)
            )
        )
    if not as_json and (others or tenant):
        there = "these are" if sessions else "there are none"
        more = f"; others are of {tenant_options(others)}" if others else ""
        print(f"perdure: {there} of {tenant_text(tenant)}{more}", file=sys.stderr)


@session_app.command("withdraw")
def withdraw(
    session: Key,
    message_id: Annotated[str, typer.Argument(metavar="MESSAGE_ID", help="The message's id.")],
    sender: Sender = None,
    of: Annotated[
        str, typer.Option(metavar="NAME", help="The message's sender, if several senders used this id.")
    ] = "",
    tenant: Tenant = "",
    as_json: Json = False,
) -> None:
    """Withdraw a message that no Request contains yet."""
    who = _sender(sender)
    connected(
        lambda perdure: perdure.session(session, tenant=tenant).withdraw(message_id, sender=who, rights=_ALL, of=of)
    )
    print(dumps({"messageId": message_id, "withdrawn": True}) if as_json else f"{message_id}: withdrawn")


@session_app.command("stop")
def stop(session: Key, sender: Sender = None, tenant: Tenant = "", as_json: Json = False) -> None:
    """End the current run. The session then handles waiting messages."""
    _command("stop", session, sender, tenant, as_json)


@session_app.command("new")
def new(session: Key, sender: Sender = None, tenant: Tenant = "", as_json: Json = False) -> None:
    """Begin an empty conversation with the same state. Nothing is deleted."""
    _command("new", session, sender, tenant, as_json)


@session_app.command("reset")
def reset(session: Key, sender: Sender = None, tenant: Tenant = "", as_json: Json = False) -> None:
    """Begin an empty conversation with the state of the agent's file. Nothing is deleted."""
    _command("reset", session, sender, tenant, as_json)


@session_app.command("compact")
def compact(session: Key, sender: Sender = None, tenant: Tenant = "", as_json: Json = False) -> None:
    """Replace the old part of the conversation in later prompts by a summary. Nothing is deleted."""
    who = _sender(sender)
    words = connected(lambda perdure: perdure.session(session, tenant=tenant).compact(sender=who, rights=_ALL))
    print(dumps({"session": session, "compacted": words}) if as_json else words)


@session_app.command("redeliver")
def redeliver(
    session: Key,
    delivery: Annotated[str, typer.Argument(metavar="DELIVERY", help="The delivery's key, RUN_ID/NUMBER.")],
    sender: Sender = None,
    tenant: Tenant = "",
    as_json: Json = False,
) -> None:
    """Deliver a reply with the status `unknown` again, under the same key."""
    who = _sender(sender)
    connected(lambda perdure: perdure.session(session, tenant=tenant).redeliver(delivery, sender=who, rights=_ALL))
    print(dumps({"delivery": delivery}) if as_json else f"{delivery}: delivering again")


@session_app.command("recall")
def recall(
    session: Key,
    what: Annotated[
        str,
        typer.Argument(metavar="WHAT", help="A call's id as in prompts, an entry's number, or words to search for."),
    ],
    page: Annotated[int, typer.Option(metavar="N", min=1, help="The page of a long result.")] = 1,
    tenant: Tenant = "",
    as_json: Json = False,
) -> None:
    """Print entries in full that the conversation shortens or summarises."""
    found = connected(lambda perdure: perdure.session(session, tenant=tenant).recall(what, page))
    if as_json:
        print(dumps(found))
        return
    for each in found.get("found", ()):
        print(f"{each['n']}  {str(each['at'])[:19]}  {each['type']}  {shorten_text(each['text'], 200)}")
    if not found.get("found"):
        print(found.get("text", f"no entry matches {what!r}"))
    if "gone" in found:
        print(f"perdure: {found['gone']}", file=sys.stderr)
    if found.get("more") or page < found.get("pages", 0):
        print(f"perdure: the next page: --page {page + 1}", file=sys.stderr)


@session_app.command("fork")
def fork(
    session: Key,
    at: Annotated[
        str,
        typer.Option(
            "--at",
            metavar="R.N",
            help="The point: R is after run R of the session, R.N is after Request N of that run.",
        ),
    ],
    key: Annotated[
        str | None, typer.Option("--as", metavar="KEY", help="The new session's key.", show_default="a random one")
    ] = None,
    tenant: Tenant = "",
    as_json: Json = False,
) -> None:
    """Begin a session with this one's conversation up to a point. No call runs again, and this session does not change."""
    with one_line_errors():
        try:
            read_place(at)
        except RunError as error:
            raise CommandError(f"--at: {error}", USAGE) from None
    begun = connected(lambda perdure: perdure.session(session, tenant=tenant).fork(at, key))
    print(dumps({"session": begun.key, "from": session, "at": at}) if as_json else begun.key)


@session_app.command("delete")
def delete(
    session: Key,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    sender: Sender = None,
    tenant: Tenant = "",
    as_json: Json = False,
) -> None:
    """End a session and its run, and delete all entries."""
    if not yes and not typer.confirm(f"delete the session {session!r} and all its messages?", err=True):
        raise SystemExit(FAILED)
    who = _sender(sender)
    connected(lambda perdure: perdure.session(session, tenant=tenant).delete(sender=who, rights=_ALL))
    print(dumps({"session": session, "deleted": True}) if as_json else f"{session}: deleted")


def _command(name: str, key: str, sender: str | None, tenant: str, as_json: bool) -> None:
    who = _sender(sender)

    async def do(perdure: Perdure) -> Receipt:
        session: Session = perdure.session(key, tenant=tenant)
        receipt: Receipt = await getattr(session, name)(sender=who, rights=_ALL)
        return receipt

    receipt = connected(do)
    print(dumps(receipt.as_json()) if as_json else receipt.done)
    if not as_json:
        _print_aside(receipt)


def _sender(name: str | None) -> str:
    """Return the sender of a message: without a name, the user of this machine."""
    return local_user() if name is None else name


def _print_aside(receipt: Receipt) -> None:
    """Print a message's effect to stderr, and the reason if its mode was not applied."""
    if receipt.why is not None:
        print(f"perdure: {receipt.done}: {receipt.why}", file=sys.stderr)


def _line(entry: JsonObject) -> str:
    at, kind = str(entry["at"])[:19], entry["type"]
    if kind == "message":
        why = f"  ({entry['why']})" if entry.get("why") else ""
        return f"{at}  {entry['sender']}: {shorten_text(entry['text'], 200)}{why}"
    if kind == "run":
        calls = ", ".join(f"{call['id']} {call['tool']} {call['status']}" for call in entry["calls"])
        return f"{at}    {entry['runId']} {entry['status']}{f': {calls}' if calls else ''}"
    if kind == "reply":
        text = entry["text"] if entry["text"] is not None else f"({entry.get('why') or 'nothing to say'})"
        return f"{at}  → {shorten_text(text, 500)}"
    if kind == "delivery":
        why = f": {entry['why']}" if entry.get("why") else ""
        return f"{at}    {entry['kind']} to {entry['route']} {entry['status']}{shorten_text(why, 200)}"
    what = entry.get("command") or entry.get("kind")
    return f"{at}    {kind} {what} {entry.get('sender') or ''}".rstrip()


chat_app = Commands()


@chat_app.command("chat")
@with_settings("task_queue", "agents")
def chat(
    settings: Settings,
    agent: Annotated[
        str, typer.Argument(metavar="AGENT", help="An agent file, a name in the agents folder, or MODULE:NAME.")
    ],
    session: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="The session's key. An existing session continues.", show_default="a random one"
        ),
    ] = None,
    reasoning: Annotated[
        bool, typer.Option("--reasoning", help="Show the model's reasoning too, as it arrives.")
    ] = False,
    sender: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The sender of the messages; by default the user of this machine.", show_default=False
        ),
    ] = None,
    tenant: Annotated[str, typer.Option(metavar="NAME", help="The session's tenant.")] = "",
    context: Context = None,
) -> None:
    """Talk with an agent. In a terminal, show its work live and ask for approvals; in a pipe, read one message per line."""
    with one_line_errors():
        found = Agent.read_to_run(agent, folder=settings.agents_folder)
        known = context_option(context, found.check_context)
    key = session or f"chat-{found.name}-{uuid.uuid4().hex[:6]}"
    who = local_user() if sender is None else sender
    live = sys.stdin.isatty() and sys.stdout.isatty()

    async def talk(perdure: Perdure) -> int:
        from perdure.queries import find_missing_worker  # other commands start without the SDK

        there = perdure.session(key, tenant=tenant, agent=found, task_queue=settings.task_queue)
        print(f"{found.name}, session {key}{'; /help lists the commands' if live else ''}", file=sys.stderr, flush=True)
        if missing := await find_missing_worker(perdure.client, settings.task_queue):
            print(f"perdure: no worker takes messages yet. {missing}", file=sys.stderr, flush=True)
        if not live:
            from perdure.cli import _chat as chat_module

            return await chat_module.chat(perdure, there, who, known)
        from perdure.cli import _chat_terminal as chat_terminal  # only this command needs it

        code = await chat_terminal.chat(perdure, there, who, known, reasoning=reasoning)
        again = ["perdure", "chat", agent, "--session", key, *(["--tenant", tenant] if tenant else [])]
        if context is not None:  # a typed secret is printed nowhere
            again += ["--context", context if context.startswith("@") else dumps(masked_context(known))]
        print(f"continue the session with: {shlex.join(again)}", file=sys.stderr)
        return code

    raise SystemExit(connected(talk))
