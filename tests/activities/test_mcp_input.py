"""Servers of 2025-11-25 that ask while several calls run: each question belongs to its call (R21.3)."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from typing import Any

import pytest
from temporalio.common import RetryPolicy
from temporalio.testing import ActivityEnvironment, WorkflowEnvironment

from perdure.activities.mcp_connection import McpConfig
from perdure.activities.registry import Registry
from perdure.tools.server_input import ANSWERS, ServerAnswers, ServerInputError, ServerQuestion
from tests.activities.test_mcp import call, offered_by
from tests.support import ROOT

pytestmark = pytest.mark.asyncio(loop_scope="session")
ENTRY: dict[str, Any] = {"command": sys.executable, "args": ["-S", "-m", "tests.asking_mcp_server"], "cwd": str(ROOT)}
CONFIG = McpConfig.model_validate({"mcpServers": {"x": ENTRY}})


async def answered(registry: Registry, tool: str, asked: list[ServerQuestion], who: str = "", **params: Any) -> Any:
    """The result of a call whose questions `who` answers."""
    answers = ServerAnswers()
    while True:
        ANSWERS.set(answers)
        try:
            return await call(registry, tool, **params)
        except ServerInputError as error:
            asked += error.asked.questions
            found = {each.key: {"action": "accept", "content": {"who": who}} for each in error.asked.questions}
            answers = answers.after(error.asked, found)


async def test_questions_of_calls_that_run_at_once_are_those_of_their_calls() -> None:
    asked: list[ServerQuestion] = []
    async with offered_by(CONFIG) as registry:
        waited, *found = await asyncio.gather(
            answered(registry, "x.wait", asked),
            *(answered(registry, "x.ask", asked, who, **{"for": who}) for who in ("ann", "bob", "cleo")),
        )
        assert waited == "waited"
        assert found == ["ann by ann", "bob by bob", "cleo by cleo"]
        assert sorted(each.message for each in asked) == [str({"for": who}) for who in ("ann", "bob", "cleo")]


async def test_a_question_of_a_cancelled_call_is_put_to_no_other_call() -> None:
    asked: list[ServerQuestion] = []
    async with offered_by(CONFIG) as registry:
        slow = asyncio.create_task(answered(registry, "x.slow", asked))
        asks = asyncio.create_task(answered(registry, "x.ask", asked, "ann", **{"for": "ann"}))
        await answered(registry, "x.wait", asked)
        asks.cancel()
        assert await slow == "slow 1"
    assert asked == []


async def test_calls_that_may_not_be_repeated_are_not_sent_again_for_a_question_of_unknown_origin(
    dev_server: WorkflowEnvironment,
) -> None:
    asked: list[ServerQuestion] = []
    environment = ActivityEnvironment(client=dev_server.client)
    environment.info = replace(environment.info, retry_policy=RetryPolicy(maximum_attempts=1))

    async def asks(who: str) -> Any:
        return await answered(registry, "x.ask", asked, who, **{"for": who})

    async with offered_by(CONFIG) as registry:
        found = await asyncio.gather(environment.run(asks, "ann"), environment.run(asks, "bob"))
    assert sorted(found) in (["ann by ann", "refused"], ["bob by bob", "refused"])
    assert len(asked) == 1


async def test_a_page_that_an_error_names_is_a_question() -> None:
    asked: list[ServerQuestion] = []
    async with offered_by(CONFIG) as registry:
        assert await answered(registry, "x.pay", asked) == "paid"
    assert [(each.url, each.form) for each in asked] == [("https://pay.example/1", None)]
