"""Commands for decisions of people (section 7)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.syntax import Syntax
from rich.text import Text

from perdure.agents.json_files import json_option
from perdure.approvals.decisions import parse_decision
from perdure.approvals.requests import WaitingView
from perdure.cli._console import get_console, make_table, read_key, strip_control_characters
from perdure.cli._execute import CommandError, Json, RunId, connected, execute, one_line_errors
from perdure.cli._help import Commands
from perdure.cli._options import Port, local_user, with_settings
from perdure.cli._run_view import decision_commands
from perdure.client.selection import WaitingRequest, format_age
from perdure.errors import RunError
from perdure.hosting.settings import Settings
from perdure.values.json import JsonObject, dumps, loads
from perdure.values.templates import changes

if TYPE_CHECKING:
    from perdure.client.perdure import Perdure

approvals_app = Commands()
CallId = Annotated[
    str, typer.Argument(metavar="CALL", help="A call's id, such as 1.0, or a plan's Request number, such as 2.")
]
By = Annotated[str, typer.Option("--by", envvar="USER", help="The person who decides. The run records it.")]
Roles = Annotated[
    list[str] | None,
    typer.Option("--role", metavar="NAME", help="A role of the person who decides, for a quorum. May be repeated."),
]
Digest = Annotated[
    str | None,
    typer.Option(help="The digest of the call that you saw. The decision is rejected if the call has changed."),
]
QUESTION_KEYS = "[a]nswer  re[j]ect  [s]kip  [q]uit"
KEYS = "[a]pprove  approve and [r]emember  re[j]ect  [e]dit  [s]kip  [q]uit"


@approvals_app.command()
def approvals(
    run_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="Only this run's calls.")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show one call after the other and decide each with a key.")
    ] = False,
    by: By = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The number of runs on a page, without ID.")] = 1000,
    page: Annotated[str | None, typer.Option(help="The page to print, as the previous page named it.")] = None,
    as_json: Json = False,
) -> None:
    """List the calls that wait for a person, oldest first. With ID, print them in full."""
    if watch:
        _walk(run_id, by)
        return
    if run_id is None:
        _print_page(connected(lambda perdure: perdure.approvals(size=limit, page=page)), as_json)
        return
    waiting, silent = connected(lambda perdure: perdure.get_run(run_id).waiting_below())
    if as_json:
        print(dumps([one.as_json() for one in waiting]))
    else:
        _print_rows(
            [_whole_row(one) for one in waiting], [decision_commands(one.run_id, one.request) for one in waiting]
        )
    for why in silent:
        get_console(stderr=True).print(why, soft_wrap=True, markup=False)


def _print_page(found: Any, as_json: bool) -> None:
    if as_json:
        print(dumps([one.as_json() for one in found.waiting]))
    else:
        _print_rows(
            [_listed_row(one) for one in found.waiting],
            [decision_commands(one.run_id, one.entry) for one in found.waiting],
        )
    out = get_console(stderr=True)
    for run, more in found.unnamed.items():
        out.print(f"{more} more calls of {run}: perdure approvals {run}")
    if found.following is not None:
        out.print(f"the next page: perdure approvals --page {found.following}", soft_wrap=True, markup=False)


def _print_rows(rows: list[list[str]], commands: list[str]) -> None:
    if not rows:
        print("no call waits for a person")
        return
    console = get_console()
    titles = ("question", "asked by", "agent", "waits", "run", "call")
    shrinkable, droppable = ("question",), ("agent", "asked by", "waits")
    console.print(make_table(titles, rows, console.width, shrinkable=shrinkable, droppable=droppable))
    print(commands[0])


def _listed_row(one: Any) -> list[str]:
    entry = one.entry
    return [entry.sentence, one.sender or "", one.agent, format_age(entry.requested_at), one.run_id, entry.call]


def _whole_row(one: Any) -> list[str]:
    request = one.request
    asked = "\n".join([request.sentence, *request.ways, *request.rules, *_no_undo(request)])
    return [asked, request.sender, request.agent, format_age(request.requested_at), one.run_id, request.call]


def _shown(request: Any) -> JsonObject:
    """Return the parameters of a call, and the items of its loop."""
    return request.params if request.items is None else {**request.params, "_each": request.items}


@approvals_app.command()
def approve(
    run_id: RunId,
    call: CallId,
    reason: Annotated[str, typer.Option(help="A note. The run records it.")] = "",
    remember: Annotated[
        bool, typer.Option("--remember", help="Approve later calls of this tool in this run too.")
    ] = False,
    endorse: Annotated[
        bool,
        typer.Option(
            "--endorse", help="Endorse the call's parameters: their provenance is then the person who approves."
        ),
    ] = False,
    digest: Digest = None,
    by: By = "",
    role: Roles = None,
    as_json: Json = False,
) -> None:
    """Approve a call or a plan, which then runs."""
    options: JsonObject = {"remember": remember, "endorse": endorse, "digest": digest}
    _decide(run_id, as_json, call=call, decision="approve", reason=reason, by=by, roles=role, **options)


@approvals_app.command()
def reject(
    run_id: RunId,
    call: CallId,
    reason: Annotated[str, typer.Option(help="The reason. The model gets it.")] = "",
    digest: Digest = None,
    by: By = "",
    as_json: Json = False,
) -> None:
    """Reject a call or a plan. It does not run, and the model gets the reason."""
    _decide(run_id, as_json, call=call, decision="reject", reason=reason, digest=digest, by=by)


@approvals_app.command()
def edit(
    run_id: RunId,
    call: CallId,
    params: Annotated[
        str | None,
        typer.Argument(
            metavar="[JSON|@FILE]",
            help='The parameters to change, with their values; a reference is {"_ref": "†state.x"}. Without it, $EDITOR opens.',
        ),
    ] = None,
    reason: Annotated[str, typer.Option(help="The reason. The model gets it.")] = "",
    by: By = "",
    role: Roles = None,
    as_json: Json = False,
) -> None:
    """Change a call's parameters, or a plan's calls, and approve it."""
    shown = None
    with one_line_errors():
        value = None if params is None else json_option(params, "the argument JSON")
    if params is None:
        value, shown = _edited(_find(run_id, call))
    key = "calls" if isinstance(value, list) else "params"
    _decide(run_id, as_json, call=call, decision="edit", reason=reason, digest=shown, by=by, roles=role, **{key: value})


@approvals_app.command()
def replace(
    run_id: RunId,
    call: CallId,
    replacement: Annotated[str, typer.Argument(metavar="JSON|@FILE", help='The call to run instead: {"_tool": …}.')],
    reason: Annotated[str, typer.Option(help="The reason. The model gets it.")] = "",
    by: By = "",
    role: Roles = None,
    as_json: Json = False,
) -> None:
    """Replace a call that waits for a person by another call."""
    with one_line_errors():
        other = json_option(replacement, "the replacement")
    _decide(run_id, as_json, call=call, decision="replace", reason=reason, by=by, roles=role, **{"with": other})


@approvals_app.command()
def answer(
    run_id: RunId,
    call: CallId,
    answer: Annotated[str, typer.Argument(metavar="TEXT", help="The answer: text, or JSON with --as-json.")],
    is_json: Annotated[bool, typer.Option("--as-json", help="Read the answer as JSON, or from @FILE.")] = False,
    by: By = "",
    as_json: Json = False,
) -> None:
    """Answer a question of a run (tool ask_person) or of a tool's MCP server, or send the result of a client's tool."""
    with one_line_errors():
        value = json_option(answer, "the answer") if is_json else answer
    _decide(run_id, as_json, call=call, decision="answer", answer=value, by=by)


@approvals_app.command()
@with_settings(flags={"inbox_token": "--token"})
def inbox(
    settings: Settings,
    host: Annotated[
        str, typer.Option(help="The address to listen on. Another address than this machine's needs a token.")
    ] = "127.0.0.1",
    port: Port = 8733,
) -> None:
    """Serve a page where people approve and reject calls, until Ctrl-C."""
    from perdure.pages.adapter import serve_inbox  # only this command needs a web server

    execute(lambda: serve_inbox(host=host, port=port, token=settings.inbox_token))


def _decide(run_id: str, as_json: bool, **keys: Any) -> None:
    keys["by"] = keys.get("by") or local_user()
    decision = {key: value for key, value in keys.items() if key == "answer" or value not in (None, "", False, [])}
    with one_line_errors():
        parse_decision(decision)
    done = connected(lambda perdure: perdure.get_run(run_id).decide(decision))
    needs = f"; it needs {done['missing']}" if "missing" in done else ""
    print(dumps(done) if as_json else f"{run_id} {done['call']}: {done['decision']}{needs}")


def _find(run_id: str, call: str) -> Any:
    waiting, _ = connected(lambda perdure: perdure.get_run(run_id).waiting_below())
    for one in waiting:
        if one.request.call == call:
            return one
    with one_line_errors():
        raise CommandError(f"nothing changed: call {call!r} of {run_id!r} does not wait for a decision")


def _edited(one: Any) -> tuple[Any, str]:
    """Return the edited parameters, and the digest of the shown ones."""
    before = dumps(one.request.params if one.request.calls is None else one.request.calls, indent=2)
    with one_line_errors():
        after = click.edit(before + "\n", extension=".json")
        if after is None or after.strip() == before.strip():
            raise CommandError("nothing changed: the text is the same as before")
        wanted = loads(after, source="the edited text")
        if one.request.calls is None and isinstance(wanted, dict):
            wanted = changes(one.request.params, wanted)
        return wanted, one.request.digest


def _walk(run_id: str | None, by: str) -> None:
    """Ask for a decision on one waiting request after the other, until `q`."""
    console = get_console()
    skipped: set[tuple[str, str]] = set()
    quiet = False
    while True:
        one = connected(lambda perdure: _next_pending(perdure, run_id, skipped))
        if one is None:
            if not quiet:
                console.print("no call waits for a person; Ctrl-C ends the command", style="dim")
            quiet = True
            execute(lambda: asyncio.sleep(1))  # a pause before the next query
            continue
        quiet = False
        console.print(_panel(one))
        console.print(QUESTION_KEYS if one.request.question else KEYS, style="bold", markup=False)
        key = read_key()
        if key in ("q", "\x03", "\x04"):
            return
        if key == "s":
            skipped.add((one.run_id, one.request.call))
            continue
        if (decision := _decision(key, one)) is not None:
            try:
                _decide(one.run_id, False, call=one.request.call, digest=one.request.digest, by=by, **decision)
            except SystemExit:
                continue  # the error was printed; somebody else may have decided, so query again


async def _next_pending(perdure: Perdure, run_id: str | None, skipped: set[tuple[str, str]]) -> WaitingRequest | None:
    """Return the oldest waiting request of this run, or of all runs, that is not in `skipped`."""
    if run_id is not None:
        found, _ = await perdure.get_run(run_id).waiting_below()
        return next((one for one in found if (one.run_id, one.request.call) not in skipped), None)
    for listed in (await perdure.approvals()).waiting:
        if (listed.run_id, listed.entry.call) not in skipped:
            # The index lags: requests that are decided already are skipped.
            with contextlib.suppress(RunError):
                for request in await perdure.get_run(listed.run_id).waiting(listed.entry.call):
                    return WaitingRequest(listed.run_id, request)
    return None


def _decision(key: str, one: Any) -> JsonObject | None:
    if key == "a" and one.request.question:
        return {"decision": "answer", "answer": click.prompt("answer", default="", show_default=False)}
    if one.request.question and key != "j":
        return None
    if key == "a":
        return {"decision": "approve"}
    if key == "r":
        return {"decision": "approve", "remember": True}
    if key == "j":
        return {"decision": "reject", "reason": click.prompt("reason", default="", show_default=False)}
    if key == "e":
        try:
            value, _ = _edited(one)
        except SystemExit:
            return None
        return {"decision": "edit", "params" if one.request.calls is None else "calls": value}
    return None


def _person(request: Any) -> list[RenderableType]:
    """Return the sender of the run, their last message, and the informed people."""
    of = [f"asked by {request.sender}"] if request.sender else []
    of += [f"tenant {request.tenant}"] if request.tenant else []
    of += [f"session {request.session}"] if request.session else []
    lines = [", ".join(of), f"last message: {' '.join(request.said.split())}" if request.said else ""]
    lines += [f"informed: {', '.join(each.words for each in request.informed)}" if request.informed else ""]
    return [Text(strip_control_characters(line), style="dim") for line in lines if line]


def _panel(one: Any) -> RenderableType:
    request = one.request
    shown = dumps(_shown(request) if request.calls is None else request.calls, indent=2)
    body = Syntax(shown, "json", background_color="default")
    return Panel(
        Group(
            Text(request.sentence, style="bold"),
            *_person(request),
            body,
            *map(Text, [*request.ways, *request.rules, *_no_undo(request)]),
        ),
        subtitle=f"{one.run_id}, call {request.call}; waits for {format_age(request.requested_at)}",
        subtitle_align="left",
    )


def _no_undo(request: WaitingView) -> list[str]:
    return [f"calls without an undo: {', '.join(request.no_undo)}"] if request.no_undo else []
