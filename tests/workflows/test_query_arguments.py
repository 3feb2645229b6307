"""Queries that people send by hand, with arguments that do not fit: they say what is expected (R18.6)."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import WorkflowQueryFailedError
from temporalio.testing import WorkflowEnvironment

from perdure.runs.events import EVENTS_QUERY
from perdure.runs.wire import VALUE_QUERY, WAITING_QUERY
from perdure.sessions.wire import FATE, SHOW
from tests.support import DONE, agent, harness
from tests.workflows.test_session import ALL, answers, desk

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_query_of_a_wrong_form_says_what_is_expected(dev_server: WorkflowEnvironment) -> None:
    wrong: list[tuple[str, list[Any], str]] = [
        (VALUE_QUERY, [], "the query expects what: str, offset: int = 0; it came with 0 arguments"),
        (VALUE_QUERY, [5], "the query expects what: str, offset: int = 0; 'what' cannot be 5"),
        (VALUE_QUERY, ["output", {}], "the query expects what: str, offset: int = 0; 'offset' cannot be {}"),
        (
            WAITING_QUERY,
            [["1.0"]],
            "the query expects only: str | None = None, skip: int = 0; 'only' cannot be [\"1.0\"]",
        ),
        (EVENTS_QUERY, ["x"], "the query expects first: int = 0, limit: int = 1000; 'first' cannot be \"x\""),
    ]
    async with harness(dev_server.client, [], [DONE]) as it:
        handle = await it.start(agent())
        await handle.result()
        for query, arguments, words in wrong:
            with pytest.raises(WorkflowQueryFailedError) as refused:
                await handle.query(query, args=arguments)
            assert str(refused.value) == words
    async with desk(dev_server) as (session, _):
        await answers(session, await session.send("hello", sender="ann", rights=ALL))
        for query, arguments, words in (
            (FATE, [1], "the query expects what: str, sender: str = ''; 'what' cannot be 1"),
            (SHOW, [1], "the query expects no arguments; it came with 1 arguments"),
        ):
            with pytest.raises(WorkflowQueryFailedError) as refused:
                await session.handle.query(query, args=arguments)
            assert str(refused.value) == words
