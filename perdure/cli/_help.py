"""Help and usage errors of all commands, as plain text: help on one screen, an error on one line."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from perdure.cli._console import strip_control_characters

SITE: Final = "https://perdure.example"
"""The URL of the site, as in `pyproject.toml`."""
SCREEN: Final = 40
"""The most lines of a command's help."""
ALL_OPTIONS: Final = "--help-all"
"""The option that prints all settings of a command, if they need more than a screen."""
_COLUMN: Final = 26
"""The widest column of names; the text of a longer name begins on the next line."""
_UsageError: Final[Any] = typer.BadParameter.__base__
"""The base class of a parser's errors; `typer` exports no name for it."""
_TYPES: Final = {"str": "TEXT", "int": "NUMBER", "float": "NUMBER", "path": "FILE"}

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
Rows: TypeAlias = list[tuple[str, str]]

START: Final = "First step: 'perdure demo'. It needs no account and no key."
COMMANDS: Final[Mapping[str, Mapping[str, str]]] = {
    "Start": {
        "demo": "Run the demo: a server, a worker and an agent.",
        "init": "Write a small project: tools, an agent, a script, a test.",
        "dev": "Run a server, a worker and the gateway for development.",
    },
    "Run": {
        "run": "Start an agent and print its result.",
        "wait, watch": "Wait for a run's end; show a run live.",
        "steer, withdraw": "Send a message to a running run; withdraw a message.",
        "cancel, terminate": "End one run or many: with cleanup; at once.",
        "schedule": "Run an agent at fixed times; pause, trigger, backfill.",
        "plan": "Validate, simulate or draw a plan, without a server.",
    },
    "Decide": {
        "approvals, inbox": "List calls that wait for a person; serve a page.",
        "approve, reject": "Approve or reject a call or a plan.",
        "edit, replace": "Change a call's parameters; replace a call.",
        "answer": "Answer a question of a run.",
        "policy, standing": "Change runs' approval policy; approve coming runs.",
    },
    "Sessions": {
        "chat": "Talk with an agent in the terminal.",
        "agent": "Send a message to a session and print the reply.",
        "session": "Show, watch, export, fork or delete a session.",
    },
    "Look": {
        "list, show, events": "List runs; show a run in full; print its events.",
        "tools, schema": "List a worker's tools; print the schema of agent files.",
        "settings, models": "Print the settings in force; check the models.",
    },
    "Operate": {
        "worker, serve": "Run a worker; run the HTTP gateway.",
        "rollout, eval": "Compare an agent's versions; score its runs.",
        "token, trigger": "Manage the gateway's tokens; check a file of triggers.",
        "audit, limits, erase": "Verify an audit log; show use; remove personal data.",
        "undo, promote": "Undo a run's calls; make an agent from a run's plan.",
        "fork, what-if": "Run again from a point; compare runs under a change.",
        "export, import": "Write a run to a file; restore it elsewhere.",
        "record, replay": "Write runs as cases; check that open runs replay.",
        "codec, codec-server": "List keys of encrypted values; decode for the Web UI.",
    },
}
"""All commands with one line each, grouped by task."""


class HelpedCommand(TyperCommand):
    """A command with its help on one screen."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ALL_OPTIONS in args and _panels(self):
            print("\n".join(_command_help(self, ctx, "all")))
            ctx.exit()
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write("\n".join(_shortest(self, ctx)) + "\n")


class CommandGroup(TyperGroup):
    """A group of commands; a usage error ends with one line on stderr and code 2."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        lines = _overview(self) if ctx.parent is None else _group_help(self, ctx)
        formatter.write("\n".join(lines) + "\n")

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line; in standalone mode leave the process."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except _UsageError as error:
            print(_usage_problem(error), file=sys.stderr)
            raise SystemExit(error.exit_code) from None
        except typer.Abort:
            print("perdure: aborted", file=sys.stderr)
            raise SystemExit(1) from None
        raise SystemExit(code if isinstance(code, int) else 0)


class Commands(typer.Typer):
    """Commands with the classes above."""

    def __init__(self, *, cls: type[TyperGroup] = CommandGroup, **options: Any) -> None:
        super().__init__(cls=cls, pretty_exceptions_enable=False, **options)

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = HelpedCommand, **options: Any
    ) -> Callable[[CommandT], CommandT]:
        """Return a decorator that adds a command."""
        return super().command(name, cls=cls, **options)


def _shortest(command: Any, ctx: Any) -> list[str]:
    """Return the longest help that fits on a screen."""
    for much in ("all", "some"):
        lines = _command_help(command, ctx, much)
        if len(lines) <= SCREEN:
            return lines
    return _command_help(command, ctx, "names")


def _command_help(command: Any, ctx: Any, much: str) -> list[str]:
    """Return the help of a command. `much`: `all` settings, `some` (the first group), or their `names` only."""
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.get_params(ctx) if each.param_type_name == "option"]
    own = [each for each in options if not getattr(each, "rich_help_panel", None)]
    lines = [_usage(ctx), *_paragraph(" ".join((command.help or "").split()))]
    lines += _section("Arguments:", [(_shape(each), each.help or "") for each in arguments])
    lines += _section("Options:", [(_names(each), _about(each)) for each in own])
    for number, (panel, inside) in enumerate(_panels(command).items()):
        if much == "all" or (much == "some" and number == 0):
            rows = [(_names(each), each.help if much == "all" else each.help.rpartition(" [")[0]) for each in inside]
            lines += _section(f"{panel}:", rows)
        else:
            lines += _paragraph(f"{panel}: " + " ".join(each.opts[0] for each in inside), first="")
    if much != "all":
        lines += ["", f"'{ctx.command_path} {ALL_OPTIONS}' prints each option's variable and default."]
    return lines


def _group_help(group: Any, ctx: Any) -> list[str]:
    commands = [(name, each) for name, each in group.commands.items() if not each.hidden]
    lines = [_usage(ctx), *_paragraph(" ".join((group.help or "").split()))]
    return lines + _section("Commands:", [(name, _first_sentence(each.help or "")) for name, each in commands])


def _overview(group: Any) -> list[str]:
    """Return the help of the program: its commands in groups, with a first step and the site's URL."""
    lines = ["Usage: perdure COMMAND [ARGUMENTS] [OPTIONS]", "  " + (group.help or ""), START]
    for title, rows in COMMANDS.items():
        lines += [f"{title}:", *(f"  {names:<20} {words}" for names, words in rows.items())]
    lines += ["Options: --version, --install-completion. More: perdure COMMAND --help"]
    return [*lines, f"Documentation: {SITE}"]


def _panels(command: Any) -> dict[str, list[Any]]:
    """Return the flags of settings by their group."""
    found: dict[str, list[Any]] = {}
    for each in command.params:
        if panel := getattr(each, "rich_help_panel", None):
            found.setdefault(panel, []).append(each)
    return found


def _usage(ctx: Any) -> str:
    return (
        " ".join(ctx.get_usage().split())
        .translate(_BRACES)
        .replace("[[", "[")
        .replace("]]", "]")
        .replace("…]...", "…]")
        .replace("…...", "…")
    )


_BRACES: Final = str.maketrans("", "", "{}")


def _shape(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _names(option: Any) -> str:
    """Return the option as a reader types it: `--limit NUMBER`, `--wait/--no-wait`."""
    names = "/".join([max(option.opts, key=len), *option.secondary_opts])
    return names if option.is_flag or option.count else f"{names} {option.metavar or _type_of(option)}"


def _type_of(option: Any) -> str:
    return next((word for kind, word in _TYPES.items() if kind in option.display_type(None).lower()), "TEXT")


def _about(option: Any) -> str:
    """Return the option's help, with its default unless that is hidden."""
    default = option.show_default if isinstance(option.show_default, str) else option.default
    if (
        not option.show_default
        or isinstance(default, bool)
        or not isinstance(default, str | int | float)
        or default == ""
    ):
        return option.help or ""
    return (
        f"{option.help or ''} [default: {default:g}]"
        if isinstance(default, float)
        else f"{option.help or ''} [default: {default}]"
    )


def _first_sentence(text: str) -> str:
    """Return the text up to the end of its first sentence, or clause."""
    plain = " ".join(text.split())
    return plain.partition(". ")[0].partition("; ")[0].rstrip(".") + "."


def _section(title: str, rows: Rows) -> list[str]:
    if not rows:
        return []
    column = min(_COLUMN, max(len(name) for name, _ in rows) + 2)
    return ["", title, *(line for name, words in rows for line in _row(name, words, column))]


def _row(name: str, words: str, column: int) -> Iterator[str]:
    wrapped = _wrapped(words, _width() - column - 2)
    if len(name) + 2 > column:
        yield f"  {name}"
    elif wrapped:
        yield f"  {name:<{column}}{wrapped.pop(0)}"
    else:
        yield f"  {name}"
    yield from (" " * (column + 2) + line for line in wrapped)


def _paragraph(text: str, *, first: str = "  ") -> list[str]:
    options: Any = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(text, _width(), initial_indent=first, subsequent_indent="  ", **options)


def _wrapped(text: str, width: int) -> list[str]:
    """Return the wrapped lines of a text. No word is cut, such as a variable's name."""
    return textwrap.wrap(text, max(width, 20), break_long_words=False, break_on_hyphens=False)


def _width() -> int:
    return max(40, min(100, shutil.get_terminal_size().columns))


def _usage_problem(error: Any) -> str:
    """Return one line with the command, the error, and the usage; for a group without a command, its help."""
    message: str = error.format_message()
    if type(error).__name__ == "NoArgsIsHelpError":
        return message
    context = error.ctx
    words = " ".join(_words(error, message).split()).rstrip(".")
    line = f"{context.command_path if context else 'perdure'}: {strip_control_characters(words)}"
    return f"{line}{'' if line.endswith('?') else '.'} {_usage(context)}" if context else line


def _words(error: Any, message: str) -> str:
    from perdure.values.problems import none_of  # it imports pydantic, which help and `--version` do not need

    if hasattr(error, "possibilities"):
        return none_of(error.option_name, "option", _options(error.ctx.command.params)).replace('"', "")
    if hasattr(error, "param_type"):
        return f"{_name(error.param)} is missing"
    if getattr(error, "param", None) is not None:
        return f"{_name(error.param)}: {error.message.replace('Input should be', 'must be').split(', unable to')[0]}"
    if message.startswith("No such command"):
        return none_of(message.split("'")[1], "command", [*error.ctx.command.commands]).replace('"', "")
    if message.startswith("Got unexpected extra argument"):
        return f"{message.partition('(')[2].partition('(')[2].rstrip(')')} is not expected: too many arguments"
    return message


def _options(params: Iterable[Any]) -> list[str]:
    return [option for each in params for option in each.opts if option.startswith("--")]


def _name(param: Any) -> str:
    """Return the parameter as a reader types it: `--limit`, or `SENDER`."""
    return _shape(param).strip("[]") if param.param_type_name == "argument" else max(param.opts, key=len)
