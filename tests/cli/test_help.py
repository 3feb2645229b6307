"""Help fits a screen, and a wrong use of a command ends with one line: what is wrong, where, what is accepted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner, Result

from perdure.cli._help import ALL_OPTIONS, COMMANDS, SCREEN, SITE
from perdure.cli.app import app
from perdure.hosting.settings import Settings, variable_name


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No command may reach a server here: each is refused before."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    whole: Any = typer.main.get_command(app)
    for name, one in (group or whole).commands.items():
        here = path if one.hidden else (*path, name)
        yield here, one
        if hasattr(one, "commands"):
            yield from commands(one, here)


ALL = [*commands()]
IDS = [" ".join(path) + (" …" if one.hidden else "") for path, one in ALL]


@pytest.mark.parametrize(("path", "command"), ALL, ids=IDS)
def test_the_help_of_a_command_fits_a_screen(path: tuple[str, ...], command: Any) -> None:
    shown = invoke(*path, "--help")
    lines = shown.stdout.splitlines()
    assert shown.exit_code == 0
    assert len(lines) <= SCREEN
    assert max(map(len, lines)) <= 80
    assert not re.search(r"<\w+>|Usage:.*[{}]", shown.stdout), "a type of Python"
    for each in command.params if not hasattr(command, "commands") else ():
        assert (each.metavar or each.name if each.param_type_name == "argument" else each.opts[0]) in shown.stdout


def test_the_first_help_has_every_command_once_a_first_step_and_the_site() -> None:
    shown = invoke("--help").stdout
    listed = [name for rows in COMMANDS.values() for names in rows for name in names.split(", ")]
    there = [path[0] for path, _ in commands() if len(path) == 1]
    assert sorted(listed) == sorted(set(there))
    assert len(shown.splitlines()) <= SCREEN
    assert max(map(len, shown.splitlines())) <= 80
    assert [line.rstrip(":") for line in shown.splitlines() if line.rstrip(":") in COMMANDS] == [*COMMANDS]
    assert "perdure demo" in shown
    assert SITE in shown


@pytest.mark.parametrize("name", ["worker", "serve", "dev", "settings"])
def test_all_settings_of_a_command_are_explained_on_demand(name: str) -> None:
    shown = invoke(name, ALL_OPTIONS)
    taken = [each.name for each in dict(commands())[(name,)].params if each.name in Settings.model_fields]
    assert shown.exit_code == 0
    assert len(taken) > 10
    assert all(f"[{variable_name(each)};" in shown.stdout for each in taken), "no variable's name is cut"
    assert f"perdure {name} {ALL_OPTIONS}" in invoke(name, "--help").stdout


def test_a_type_reads_as_a_person_says_it() -> None:
    assert "--timeout SECONDS" in invoke("wait", "--help").stdout
    assert "--id TEXT" in invoke("run", "--help").stdout
    assert "--limit NUMBER" in invoke("list", "--help").stdout
    assert "--agent AGENT" in invoke("agent", "--help").stdout


NEEDING = [
    (path, one)
    for path, one in ALL
    if not one.hidden and any(each.param_type_name == "argument" and each.required for each in one.params)
]


@pytest.mark.parametrize(
    ("path", "command"), NEEDING, ids=lambda each: " ".join(each) if isinstance(each, tuple) else ""
)
def test_a_missing_argument_is_named_in_one_line_with_the_usage(path: tuple[str, ...], command: Any) -> None:
    wrong = invoke(*path)
    first = next(each for each in command.params if each.param_type_name == "argument")
    words = " ".join(path)
    assert (wrong.exit_code, wrong.stderr.count("\n"), wrong.stdout) == (2, 1, "")
    assert wrong.stderr.startswith(f"perdure {words}: {first.metavar} is missing. Usage: perdure {words} [OPTIONS] ")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["run", "a.json", "--inptu", "x"],
            "perdure run: --inptu is not a known option; did you mean --input? Usage: perdure run [OPTIONS] AGENT",
        ),
        (
            ["shw", "a"],
            "perdure: shw is not a known command; did you mean show? Usage: perdure [OPTIONS] COMMAND [ARGS]...",
        ),
        (
            ["token", "new", "a", "b"],
            "perdure token new: b is not expected: too many arguments. Usage: perdure token new [OPTIONS] SENDER",
        ),
        (
            ["wait", "a", "--timeout", "soon"],
            "perdure wait: --timeout: must be a valid number. Usage: perdure wait [OPTIONS] ID",
        ),
        (["settings", "--config", "none.toml"], "perdure: --config: the file none.toml does not exist"),
        (
            ["worker", "--tool-limits", "foo"],
            'perdure: --tool-limits: must be NAME=NUMBER, separated by commas, such as search=120, not "foo"',
        ),
        (
            ["run", "a.json", "--ask", "foo"],
            "perdure: --ask: 'foo' is not one of never, untrusted, dangerous, unsafe, always",
        ),
        (
            ["policy", "a", "--ask", "alwys"],
            "perdure: --ask: 'alwys' is not one of never, untrusted, dangerous, unsafe, always; did you mean 'always'?",
        ),
        (["policy", "a", "--tool", "foo"], "perdure: --tool: 'foo' is not NAME=never or NAME=always"),
        (
            ["policy", "a", "--set", "[]"],
            'perdure: --set must be a JSON object such as {"ask": "always"}, not []',
        ),
        (
            ["edit", "a", "1.0", "{bad"],
            "perdure: the argument JSON is not valid JSON: Expecting property name enclosed in double quotes at line 1, "
            'column 2; give JSON such as {"key": "value"}, or @FILE',
        ),
        (
            ["run", "a.json", "--input", "hello"],
            "perdure: --input is not valid JSON: Expecting value at line 1, column 1; "
            'give JSON such as {"request": "hello"}, or @FILE',
        ),
        (
            ["run", "a.json", "--input", '{"request": }'],
            "perdure: --input is not valid JSON: Expecting value at line 1, column 13; "
            'give JSON such as {"request": "…"}, or @FILE',
        ),
        (
            ["what-if", "a", "--rules", '[{"rule": "preceeds"}]'],
            "perdure: --rules: rule 'preceeds' is not one of precedes, followed_by, never_after, at_most, count_at_most, "
            "only_from, needs; did you mean 'precedes'? at $[0]",
        ),
        (
            ["list", "--since", "yesterday"],
            'perdure: --since: "yesterday" is not a time: use 90min, 2h, 3d, or 2026-01-31T08:00',
        ),
        (
            ["cancel", "--since", "yesterday"],
            'perdure: --since: "yesterday" is not a time: use 90min, 2h, 3d, or 2026-01-31T08:00',
        ),
        (
            ["list", "--status", "done"],
            "perdure: --status: 'done' is not one of running, completed, refused, failed, cancelled, terminated, timed_out",
        ),
        (
            ["token", "new", "a", "--tokens", "t.json", "--rights", "foo"],
            "perdure: `foo` is not a valid right. Use one of: ",
        ),
        (
            ["token", "new", "a"],
            "perdure: the file of tokens is not set: give --tokens FILE, or set gateway_tokens in ",
        ),
        (
            ["events", "a", "--from", "x"],
            "perdure: --from: 'x' is not a valid cursor of events: use one such as '12' for a run or ",
        ),
        (["events", "a", "--topics", "words"], "perdure: --topics: 'words' is not one of lifecycle, request, "),
        (["agent", "a", "b", "--mode", "x"], "perdure: --mode: 'x' is not one of steer, followup, "),
        (
            ["plan", "validate", "tools.py"],
            "perdure: tools.py is a Python module, not a plan: expected an agent file, ",
        ),
        (["rollout", "start", "a", "b"], "perdure: no run would use the candidate: give --share or --tenant"),
        (["fork", "a", "--at", "x"], "perdure: --at: 'x' is not a point of a run. Use R for a Request (2), or "),
        (["session", "fork", "a", "--at", "x"], "perdure: --at: 'x' is not a point of a session: use R or R.N, "),
        (["wait", "a", "--timeout", "-1"], "perdure wait: --timeout: must be greater than or equal to 0. "),
        (["edit", "a", "1.0", "5"], "perdure: the decision is not valid: must be an object, not 5 at $.params"),
        (["replace", "a", "1.0", "{}"], "perdure: a replacement needs 'with', the other call: "),
        (["demo", "--model", "x"], "perdure: --model: 'x' is not one of scripted, live"),
    ],
)
def test_a_wrong_use_ends_with_one_line_before_a_server_is_needed(words: list[str], line: str) -> None:
    Path("a.json").write_text('{"name": "a", "context": [{"type": "text", "text": "hi"}]}')
    Path("tools.py").write_text("def look() -> int:\n    return 1\n")
    wrong = invoke(*words)
    assert (wrong.exit_code, wrong.stdout, wrong.stderr.count("\n")) == (2, "", 1)
    assert wrong.stderr.startswith(line)
    if line[-1] != " ":
        assert wrong.stderr == line + "\n"
