"""`perdure models check`: small tasks played for real against model servers good and bad, and what is made of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.checking.report import Row, TaskResult, recommend
from perdure.checking.tasks import TASKS
from perdure.testing.scripted_model import Script, ScriptedModel
from tests.checking.scripted_models import good, old, prose, sloppy
from tests.support import Command, perdure

pytestmark = pytest.mark.asyncio(loop_scope="session")
ONE = ("--fast", "gpt-4o-mini", "--smart", "gpt-4o-mini")


async def check(script: Script, *arguments: str) -> tuple[Command, dict[str, Any]]:
    command = await run(script, "--json", *arguments)
    return command, json.loads(command.out) if command.out else {}


async def run(script: Script, *arguments: str) -> Command:
    async with ScriptedModel(script, api_key="right") as model:
        env = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "right"}
        env |= {"PERDURE_APPROVAL_FLOOR": "always", "PERDURE_TASK_QUEUE": "mine"}  # no matter of the models'
        return await perdure("models", "check", *arguments, env=env)


def failed(report: dict[str, Any]) -> dict[str, list[str]]:
    return {
        f"{row['dialect']} {task['name']}": task["problems"]
        for row in report["rows"]
        for task in row["tasks"]
        if not task["passed"]
    }


async def test_a_model_that_does_everything() -> None:
    command, report = await check(good(), *ONE)
    assert failed(report) == {}
    assert command.code == 0, command.err
    assert [(row["dialect"], row["passed"], row["of"]) for row in report["rows"]] == [
        (dialect, len(TASKS), len(TASKS)) for dialect in ("solution", "tools", "script")
    ]
    assert all(row["cost"] > 0 and row["completionTokens"] > 0 and row["seconds"] > 0 for row in report["rows"])
    assert report["recommendation"]["config"] == {
        "dialect": min(report["rows"], key=lambda row: row["completionTokens"])["dialect"],
        "models": {"fast": "gpt-4o-mini", "smart": "gpt-4o-mini"},
    }
    assert report["understands"] == {
        "gpt-4o-mini": {
            "responseFormat": "json_schema, strict",
            "refusedOfSomeSchemas": [],
            "streamOptions": True,
            "usage": True,
            "nativeCalls": True,
            "parallelCalls": True,
        }
    }


PROVIDERS = {
    "anthropic:claude-sonnet-5": {"ANTHROPIC_API_KEY": "right"},
    "openai-responses:gpt-5": {"OPENAI_API_KEY": "right"},
    "google:gemini-3-pro": {"GEMINI_API_KEY": "right"},
    "bedrock:anthropic.claude-opus-5": {"AWS_BEARER_TOKEN_BEDROCK": "right"},
}


@pytest.mark.parametrize("name", PROVIDERS)
async def test_a_model_of_each_provider(name: str) -> None:
    async with ScriptedModel(good(), api_key="right") as model:
        address = model.base_url.removesuffix("/v1")
        env = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "", "ANTHROPIC_BASE_URL": address}
        env |= {"GOOGLE_GEMINI_BASE_URL": address, "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": address, "GOOGLE_API_KEY": ""}
        few = ("--task", "references", "--task", "schema", "--json")
        command = await perdure("models", "check", "--fast", name, "--smart", name, *few, env=env | PROVIDERS[name])
    assert command.code == 0, command.err
    report = json.loads(command.out)
    assert failed(report) == {}
    assert [(row["dialect"], row["passed"]) for row in report["rows"]] == [
        (dialect, 2) for dialect in ("solution", "tools", "script")
    ]
    assert {request.provider for request in model.requests} == {name.partition(":")[0]}
    assert (report["understands"][name]["usage"], report["understands"][name]["nativeCalls"]) == (True, True)


NO_KEY = {
    "anthropic:claude-sonnet-5": "no key for the provider 'anthropic': set ANTHROPIC_API_KEY for the process that calls the model",
    "google:gemini-3-pro": "no key for the provider 'google': set GEMINI_API_KEY for the process that calls the model",
    "bedrock:amazon.nova-pro-v1:0": "no region for the provider 'bedrock': set AWS_REGION for the process that calls the model",
}


@pytest.mark.parametrize("name", NO_KEY)
async def test_a_provider_without_its_key_is_one_line(name: str) -> None:
    keys = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "GOOGLE_API_KEY", "GEMINI_API_KEY")
    aws = ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_BEARER_TOKEN_BEDROCK")
    env = dict.fromkeys((*keys, *aws), "") | {"HOME": "/nonexistent"}
    command = await perdure("models", "check", "--fast", name, "--smart", name, env=env)
    assert command.code != 0
    assert NO_KEY[name] in command.err


WRONG = {
    "references": [
        "send_invoice got a copy, not a reference",
        "find_customer and send_invoice took 2 answers, not one",
    ],
    "text": ['save_note got text="Hi Bruno Costa", not "Dear Bruno Costa, write to costa@example.org."'],
    "parallel": ["temperature took 3 answers, not one"],
    "branch": ["charge_card failed twice, not once"],
    "correction": ["count_pages was called never, not once"],
    "order": ["back_up started before stop_service had ended", "start_service started before back_up had ended"],
    "choice": ["book_room was called never, not once", "book_desk was called, but should not be"],
    "quoting": ["save_note got text="],
    "schema": ["the output was "],
    "long": ["count_lines got a copy, not a reference"],
    "rejection": ['the output was {"deleted": true}, not {"deleted": false}'],
    "restraint": ["find_customer was called, but should not be"],
}


async def test_a_model_that_does_everything_badly() -> None:
    command, report = await check(sloppy(), *ONE, "--dialect", "solution")
    found = failed(report)
    assert list(found) == [f"solution {task}" for task in WRONG]
    for task, words in WRONG.items():
        problems = found[f"solution {task}"]
        assert len(problems) == len(words), (task, problems)
        assert all(problem.startswith(start) for problem, start in zip(problems, words, strict=True)), (task, problems)
    assert (command.code, report["recommendation"]["config"]) == (1, None)


async def test_a_model_that_only_talks() -> None:
    command, report = await check(prose, *ONE, "--task", "references", "--task", "restraint")
    assert [(row["dialect"], row["passed"]) for row in report["rows"]] == [("solution", 0), ("tools", 0), ("script", 0)]
    assert (command.code, report["recommendation"]["config"]) == (1, None)
    assert report["recommendation"]["why"][-1] == "no dialect is good enough: less than 67% of the tasks at best"


async def test_a_server_that_knows_next_to_nothing() -> None:
    command, report = await check(old(), *ONE, "--task", "references", "--task", "order", "--task", "restraint")
    assert [(row["dialect"], row["passed"]) for row in report["rows"]] == [("solution", 3), ("tools", 0), ("script", 3)]
    assert {words for task in report["rows"][1]["tasks"] for words in task["problems"]} == {
        "Request 1 to gpt-4o-mini failed: the model's server answered 400: m does not support tools",
        "not run: Request 1 to gpt-4o-mini failed: the model's server answered 400: m does not support tools",
    }
    assert report["understands"]["gpt-4o-mini"] == {
        "responseFormat": "none",
        "refusedOfSomeSchemas": [],
        "streamOptions": False,
        "usage": False,
        "nativeCalls": False,
        "parallelCalls": False,
    }
    assert (command.code, report["recommendation"]["config"]["dialect"] in ("solution", "script")) == (0, True)


async def test_the_table_and_its_words() -> None:
    arguments = (
        "--fast",
        "small",
        "--smart",
        "gpt-4o",
        "--dialect",
        "script",
        "--task",
        "references",
        "--task",
        "schema",
    )
    command = await run(good(), *arguments)
    lines = command.out.splitlines()
    assert lines[0].split() == [
        "model",
        "dialect",
        "passed",
        "Requests",
        "tokens",
        "in",
        "tokens",
        "out",
        "seconds",
        "cost",
    ]
    assert lines[1].split()[:4] == ["small", "script", "2/2", "3"]
    assert lines[2].split()[-1].startswith("$0.0")
    assert (
        "small understands response_format not tried; stream_options: yes; usage: yes; native calls: not tried"
        in command.out
    )
    assert "policy fast: gpt-4o passes no more tasks than small" in lines
    assert lines[-1] == 'config {"dialect":"script","models":{"fast":"small","smart":"gpt-4o","policy":"fast"}}'
    assert "small script references: ok" in command.err
    assert command.code == 0


@pytest.mark.parametrize(
    ("env", "arguments", "code", "words"),
    [
        ({}, [], 2, "no model to check: set OPENAI_API_KEY"),
        ({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}, [], 1, "http://127.0.0.1:9/v1"),
        ({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}, [], 1, "check OPENAI_BASE_URL"),
        (
            {"OPENAI_API_KEY": "k"},
            ["--dialect", "prose"],
            2,
            "--dialect: 'prose' is not one of solution, tools, script",
        ),
        ({"OPENAI_API_KEY": "k"}, ["--task", "juggling"], 2, "--task: 'juggling' is not one of references, text"),
    ],
)
async def test_what_cannot_be_checked_is_one_line(
    env: dict[str, str], arguments: list[str], code: int, words: str
) -> None:
    command = await perdure("models", "check", *arguments, env=env)
    assert (command.code, command.out, len(command.err.splitlines())) == (code, "", 1)
    assert words in command.err


async def test_a_wrong_key_is_one_line() -> None:
    async with ScriptedModel(good(), api_key="right") as model:
        env = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "wrong"}
        command = await perdure("models", "check", *ONE, env=env)
    assert (command.code, command.out) == (1, "")
    assert command.err == "perdure: gpt-4o-mini: the model's server answered 401: Incorrect API key provided\n"


def row(model: str, dialect: str, passed: int, tokens: int = 100) -> Row:
    played = [
        TaskResult(model, dialect, f"t{n}", () if n < passed else ("wrong",), completion_tokens=tokens)
        for n in range(12)
    ]
    return Row(model, dialect, tuple(played))


@pytest.mark.parametrize(
    ("rows", "config"),
    [
        ([row("f", "solution", 12), row("f", "script", 12, 40)], ("script", None)),
        ([row("f", "solution", 12), row("f", "script", 11, 40)], ("solution", None)),
        ([row("f", "script", 7)], (None, None)),
        ([row("f", "script", 12), row("s", "script", 12)], ("script", "fast")),
        ([row("f", "script", 10), row("s", "script", 12)], ("script", "auto")),
        ([row("f", "script", 3), row("s", "script", 12)], ("script", "smart")),
        (
            [row("f", "tools", 2), row("s", "tools", 12), row("f", "script", 9), row("s", "script", 9)],
            ("script", "fast"),
        ),
        ([], (None, None)),
    ],
)
async def test_what_is_recommended(rows: list[Row], config: tuple[str | None, str | None]) -> None:
    smart = "s" if any(each.model == "s" for each in rows) else "f"
    advice = recommend(rows, "f", smart)
    found = advice.config or {"dialect": None, "models": {}}
    assert (found["dialect"], found["models"].get("policy")) == config
    assert advice.why
