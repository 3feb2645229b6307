"""Servers of 2025-11-25 that ask while several calls run: each question belongs to its call (R21.3)."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

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


async def test_a_page_that_an_error_names_is_a_question() -> None:
    asked: list[ServerQuestion] = []
    async with offered_by(CONFIG) as registry:
        assert await answered(registry, "x.pay", asked) == "paid"
    assert [(each.url, each.form) for each in asked] == [("https://pay.example/1", None)]
