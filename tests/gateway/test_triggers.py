"""Declarations of triggers: their faults, a line each, and what their mappings take out of a body (R19.7)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from perdure.cli.app import app
from perdure.errors import SettingsError
from perdure.gateway import SessionMapping, Trigger
from perdure.gateway.triggers import Mapped, MappingError, map_delivery, parse_triggers
from tests.gateway.support import write_agents

VALID: dict[str, Any] = {"scheme": "github", "secret": "env:HUB", "agent": "triage"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"key": "k", "text": " /stop "}, "session.text is the command /stop, which a trigger may not send"),
        ({"key": {"a": 1}, "text": "x"}, "session.key must be text, and this body has dict there"),
        ({"key": True, "text": "x"}, "session.key must be text, and this body has bool there"),
        ({"key": " ", "text": "x"}, "session.key is empty"),
        ({"key": "a\nb", "text": "x"}, "session.key has characters that cannot be printed: 'a\\nb'"),
        ({"key": "k" * 201, "text": "x"}, f"session.key has 201 characters; the limit is 200: {'k' * 50!r}…"),
        ({"key": "k", "text": " "}, "the message is empty"),
        ({"key": "k"}, "session.text reads †body.text, which is missing in this body"),
    ],
)
def test_a_message_is_text_and_no_command(body: Any, words: str) -> None:
    mapping = SessionMapping(key="†body.key", text="†body.text")
    trigger = Trigger(scheme="github", secret=SecretStr("x"), agent="a", session=mapping)
    with pytest.raises(MappingError) as found:
        map_delivery(trigger, body, "", "")
    assert str(found.value) == words


def test_a_mapping_takes_values_and_resolves_none_of_them() -> None:
    mapping = {"all": "†body.a", "in": "x {†body.b} y", "many": {"_expr": "len(body.c)"}, "or": "†body.z || †event"}
    trigger = Trigger(scheme="github", secret=SecretStr("x"), agent="a", input=mapping)
    body: Any = {"a": {"_expr": "1 + 1", "t": "†body.b"}, "b": "{†delivery}", "c": [1, 2]}
    found = map_delivery(trigger, body, "push", "d")
    assert found == Mapped({"all": body["a"], "in": "x {†delivery} y", "many": 2, "or": "push"})


@pytest.mark.parametrize("effect", [{}, {"input": 5}, {"session": {"key": "k", "text": "t"}}])
def test_a_mapping_makes_the_context(effect: dict[str, Any]) -> None:
    trigger = Trigger(**VALID, **effect, context={"customer": "†body.id", "by": "{†event}!"})
    assert map_delivery(trigger, {"id": "{†delivery}"}, "push", "d").context == {
        "customer": "{†delivery}",
        "by": "push!",
    }
    with pytest.raises(MappingError, match=r"^context\.customer reads †body\.id, which is missing in this body$"):
        map_delivery(trigger, {}, "push", "d")


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        ({"Bad name": VALID}, "'Bad name' is not a valid name of a trigger: use 1 to 64 of a-z, 0-9, '-' and '_'"),
        (
            {"a": VALID | {"scheme": "githup"}},
            "a.scheme: must be 'standard', 'github' or 'stripe', not \"githup\"; did",
        ),
        ({"a": VALID | {"inptu": 1}}, 'a.inptu: "inptu" is not a known key; did you mean "input"?'),
        ({"a": VALID | {"secret": "hunter2"}}, "a.secret: must name the secret's place, not the secret: use env:"),
        ({"a": VALID | {"secret": ["env:A", ""]}}, "a.secret: must name the secret's place"),
        ({"a": VALID | {"secret": []}}, "a.secret: must have 1 to 4 secrets, not 0"),
        ({"a": VALID | {"secret": ["env:A"] * 5}}, "a.secret: must have 1 to 4 secrets, not 5"),
        ({"a": {"scheme": "github"}}, "a.secret: is missing"),
        ({"a": VALID | {"on": "issues.opened"}}, 'a.on: must be a list, not "issues.opened"'),
        ({"a": 5}, "a: must be an object, not 5"),
        ({"a": VALID | {"input": {"t": "†body."}}}, "a.input.t: malformed reference '†body.': expected a name"),
        ({"a": VALID | {"input": ["†state.x"]}}, 'a.input[0]: "†state" is not a known reference of a trigger; use one'),
        ({"a": VALID | {"input": {"_expr": "1 +"}}}, "a.input: "),
        (
            {"a": VALID | {"input": 1, "session": {"key": "k", "text": "t"}}},
            "a: has both 'input' and 'session': a delivery starts a run or sends a message",
        ),
        ({"a": VALID | {"session": {"key": "k"}}}, "a.session.text: is missing"),
        ([], "must be an object such as {"),
        ({}, "must be an object such as {"),
    ],
)
def test_a_fault_of_a_declaration_is_one_line(raw: Any, fault: str) -> None:
    with pytest.raises(SettingsError) as found:
        parse_triggers({"triggers": raw})
    assert str(found.value).startswith(f"the triggers: {fault}")
    assert "\n" not in str(found.value)
    assert "hunter2" not in str(found.value)


def test_a_secret_is_shown_nowhere() -> None:
    trigger = parse_triggers({"a": VALID | {"secret": SecretStr("hunter2")}})["a"]
    assert trigger.secrets() == ["hunter2"]
    assert "hunter2" not in repr(trigger) + trigger.model_dump_json(exclude={"input"})


def test_the_command_checks_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB", "a secret")
    task = {"type": "system", "text": "Sort."}
    write_agents(tmp_path / "agents", {"name": "triage", "context": [task]})
    path, own = tmp_path / "triggers.json", tmp_path / "own.json"
    own.write_text(json.dumps({"context": [task]}), encoding="utf-8")

    def checked(**raw: Any) -> tuple[int, str, list[str]]:
        path.write_text(json.dumps({"triggers": raw}), encoding="utf-8")
        words = ["trigger", "check", str(path), "--agents", str(tmp_path / "agents")]
        ran = CliRunner().invoke(app, words)
        return ran.exit_code, ran.stdout, ran.stderr.splitlines()

    code, out, err = checked(hub=VALID | {"on": ["issues"]}, own=VALID | {"agent": str(own)})
    assert (code, err) == (0, [])
    assert "hub" in out
    assert "issues" in out
    faults = {
        "one": VALID | {"agent": "triag"},
        "two": VALID | {"secret": ["env:HUB", "env:NONE", "file:none.txt"]},
        "three": VALID | {"scheme": "standard"},
        "four": VALID | {"agent": "none/there.json"},
        "five": {},
        "six": VALID | {"agent": "knows"},
        "seven": VALID | {"agent": "knows", "context": {"role": "†event"}},
        "eight": VALID | {"agent": "knows", "context": {"customer": 5}},
        "nine": VALID | {"context": {"customer": "†state.x"}, "agent": "triag", "secret": "env:NONE"},
        "talk": VALID | {"agent": "typed", "session": {"key": "k", "text": "t"}},
        "without": VALID | {"agent": "typed"},
        "misspelt": VALID | {"agent": "typed", "input": {"titel": "†body.title", "n": 5}},
        "literal": VALID | {"agent": "typed", "input": {"title": "x", "n": "five"}},
    }
    needed = {"properties": {"customer": {"type": "string"}}, "required": ["customer"]}
    write_agents(tmp_path / "agents", {"name": "knows", "context": [task], "caller_context": needed})
    properties = {"title": {"type": "string"}, "n": {"type": "integer"}}
    typed = {"properties": properties, "required": [*properties], "additionalProperties": False}
    write_agents(tmp_path / "agents", {"name": "typed", "context": [{"type": "input", "schema": typed}]})
    code, out, err = checked(**faults)
    assert (code, out) == (2, "")
    assert [line.removeprefix(f"perdure: {path}: ") for line in err] == [
        "five.scheme: is missing",
        "five.secret: is missing",
        "five.agent: is missing",
        'nine.context.customer: "†state" is not a known reference of a trigger; use one of: †body, †event, †delivery',
        'one.agent: "triag" is not a known agent; did you mean "triage"?',
        "two.secret: the variable NONE is not set",
        "three.secret: env:HUB must be base64, as in whsec_MfKQ9r8…",
        "four.agent: the file none/there.json does not exist",
        "six.context: is missing: the context breaks the agent's schema for it: $ lacks 'customer'",
        "seven.context: the agent's context type also needs 'customer'",
        'eight.context: the context breaks the agent\'s schema for it: $.customer is 5, but must fit {"type": "string"}',
        "nine.secret: the variable NONE is not set",
        'nine.agent: "triag" is not a known agent; did you mean "triage"?',
        "talk.session: the agent 'typed' needs the input 'title', 'n', and a message gives one text: the agent's input "
        "schema may require only one property, a string",
        "without.input: is missing: the input breaks its schema: $ lacks 'title', 'n'",
        "misspelt.input: the input breaks its schema: $ lacks 'title'; $ has unknown keys 'titel'; allowed are 'title', 'n'",
        'literal.input: the input breaks its schema: $.n is "five", but must fit {"type": "integer"}',
    ]
    code, out, err = checked(
        fits=VALID | {"agent": "knows", "context": {"customer": "†body.id"}},
        whole=VALID | {"agent": "typed", "input": "†body"},
        parts=VALID | {"agent": "typed", "input": {"title": "{†body.a}!", "n": {"_expr": "len(body.b)"}}},
    )
    assert (code, err) == (0, [])
    assert CliRunner().invoke(app, ["trigger", "check", "none.json"]).exit_code == 2
