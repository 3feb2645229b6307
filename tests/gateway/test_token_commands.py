"""`perdure token` and what `perdure serve` says of what it cannot use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from perdure.cli.app import app
from perdure.gateway.callers import TokenFile


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_a_token_is_shown_once_and_kept_as_a_digest(here: Path) -> None:
    made = invoke("token", "new", "ann", "--tenant", "acme", "--tokens", "t.json")
    token = made.stdout.strip()
    assert (made.exit_code, token.startswith("perdure_")) == (0, True)
    assert token not in made.stderr + (here / "t.json").read_text()
    assert (here / "t.json").stat().st_mode & 0o077 == 0
    second = json.loads(
        invoke("token", "new", "bob", "--rights", "*", "--days", "1", "--tokens", "t.json", "--json").stdout
    )
    tokens = TokenFile(here / "t.json")
    ann, bob = tokens.find(token), tokens.find(second["token"])
    assert ann is not None
    assert bob is not None
    assert (ann.tenant, ann.sender, sorted(ann.rights)) == ("acme", "ann", ["read", "send"])
    assert (bob.tenant, bob.may("delete")) == ("", True)
    listed = json.loads(invoke("token", "list", "--tokens", "t.json", "--json").stdout)
    assert [each["sender"] for each in listed] == ["ann", "bob"]
    assert "sha256" not in listed[0]
    assert invoke("token", "revoke", second["id"], "--tokens", "t.json").exit_code == 0
    assert TokenFile(here / "t.json").find(second["token"]) is None
    assert TokenFile(here / "t.json").find(token) is not None


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["token", "list"], 2, "the file of tokens is not set: give --tokens"),
        (
            ["token", "new", "x", "--rights", "fly", "--tokens", "t.json"],
            2,
            "`fly` is not a valid right. Use one of: read",
        ),
        (["token", "revoke", "x", "--tokens", "none.json"], 2, "none.json cannot be read"),
        (["serve", "--tokens", "none.json"], 2, "none.json cannot be read"),
        (["serve", "--host", "0.0.0.0"], 2, "other machines can reach 0.0.0.0"),
        (["serve", "--token", "short"], 2, "--token: "),
        (["serve", "--token", "x" * 20, "--tokens", "t.json"], 2, "both set: set one of them"),
        (["dev", "--gateway-host", "0.0.0.0"], 2, "other machines can reach 0.0.0.0"),
    ],
)
def test_what_cannot_be_used_is_one_line(words: list[str], code: int, said: str) -> None:
    found = invoke(*words)
    assert (found.exit_code, found.stderr.count("\n")) == (code, 1)
    assert said in found.stderr
