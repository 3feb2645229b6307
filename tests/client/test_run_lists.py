"""Finding runs by visibility, and acting on many."""

from __future__ import annotations

import asyncio
import json
import shlex
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, RemoveSearchAttributesRequest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment

from perdure import Perdure, tool
from perdure.cli._execute import CommandError
from perdure.cli._list_commands import ChangedRuns, ChosenRuns, next_page, print_rows
from perdure.client._pending_activities import task_failure
from perdure.client._run_lists import AT_ONCE, act_on_all, change_policies, count_runs, list_runs
from perdure.client.key_use import _keys_of
from perdure.client.run_operations import FROM_HISTORY, WITHOUT_RESULT, fetch_run, start_run
from perdure.client.selection import ListedRun, Selection
from perdure.errors import RunError
from perdure.hosting.server import embedded_server
from perdure.queries import SearchAttributes, add_attributes
from perdure.runs.agent import parse_agent
from perdure.runs.wire import AGENT_ATTRIBUTE, ATTRIBUTES
from perdure.testing._local import QuickTasks
from tests.cli.test_session_commands import commands
from tests.client.test_approval_lists import remove, removing
from tests.support import DONE, agent, harness, perdure
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def until_found(client: Client, selection: Selection, count: int) -> None:
    """The index is a moment late, and tells nobody when it has caught up."""
    async with asyncio.timeout(HANG):
        while True:
            if await count_runs(client, selection) == count:
                return
            await asyncio.sleep(0.05)


async def test_runs_are_found_by_what_they_are_and_many_are_told_at_once(dev_server: WorkflowEnvironment) -> None:
    client, name = dev_server.client, f"agent-{uuid.uuid4().hex[:8]}"
    assert await SearchAttributes().ensure(client) is None  # as a worker does at its start
    async with harness(client, [remove], [DONE]) as it:
        prices = {"gpt-4o": {"prompt": 1e6, "completion": 1e6}}
        config = {"models": {"fast": "gpt-4o", "smart": "gpt-4o"}, "prices": prices}
        document = agent(name=name, config=config)
        ended = await start_run(
            client, parse_agent(document), document, task_queue=it.task_queue, sender="ann", tenant="acme"
        )
        await ended.result()
        waiting = [await it.start(removing("/a") | {"name": name}) for _ in range(3)]
        await until_found(client, Selection(name, waiting=True), 3)
        await until_found(client, Selection(name, "completed", reason="output"), 1)
        [listed] = (await list_runs(client, Selection(name, "completed", since="1h"), size=10)).rows
        row = listed.as_json()
        assert row | {"startedAt": "", "endedAt": ""} == {
            "runId": ended.id,
            "status": "completed",
            "startedAt": "",
            "endedAt": "",
            "agent": name,
            "stopReason": "output",
            "cost": row["cost"],
            "tokens": row["tokens"],
            "sender": "ann",
            "tenant": "acme",
        }
        assert isinstance(row["cost"], float)
        assert row["cost"] > 0
        first = await list_runs(client, Selection(name), size=3)
        second = await list_runs(client, Selection(name), size=3, page=first.following)
        assert (len(first.rows), len(second.rows), second.following) == (3, 1, None)
        assert await count_runs(client, Selection(name, sender="ann", tenant="acme")) == 1
        with pytest.raises(RunError, match='the query "nonsense" is refused: '):
            await count_runs(client, Selection(query="nonsense"))
        # Not told twice, nor anybody else: a query of the user's own stays within the agents' runs.
        run_id = waiting[0].id
        only = Selection(name, "running", query=f"WorkflowId = '{run_id}') OR (WorkflowId = '{run_id}'")
        assert await change_policies(client, only, {"ask": "never"}) == 1
        assert (await waiting[0].result()).output == "gone"
        env = {"TEMPORAL_ADDRESS": client.service_client.config.target_host}
        asked = await perdure("cancel", "--agent", name, env=env)
        assert (asked.code, asked.out) == (2, "")
        assert "match; nothing changed: add --yes to cancel them" in asked.err
        both = await perdure("cancel", run_id, "--agent", name, env=env)
        assert both.code == 2
        await until_found(client, Selection(name, "running"), 2)
        many = ChosenRuns(None, Selection(name, "running"), yes=True)

        async def change(api: Perdure, chosen: Selection, note: Callable[[str], None]) -> int:
            await api.change_policies(chosen, on_run=note, ask="always")
            raise asyncio.CancelledError  # Ctrl-C

        with pytest.raises(CommandError, match=r"^interrupted: 2 of 2 runs accepted the change; the same"):
            await many.change_many(Perdure(client), "change", change)
        done = await perdure("cancel", "--agent", name, "--yes", "--json", env=env)
        assert (done.code, done.out) == (0, '{"runs":2}\n')
        for each in waiting[1:]:
            with pytest.raises(WorkflowFailureError):
                await each.result()
            assert (await each.describe()).status == WorkflowExecutionStatus.CANCELED


async def test_one_run_s_refusal_keeps_nobody_else_from_it_and_the_count_is_told() -> None:
    told: list[str] = []
    answers = {"gone": RPCStatusCode.NOT_FOUND, "full": RPCStatusCode.RESOURCE_EXHAUSTED}

    async def tell(run_id: str) -> None:
        await asyncio.sleep(0)
        if (status := answers.get(run_id)) is not None:
            raise RPCError("no room in its history", status, b"")
        told.append(run_id)

    others = [str(number) for number in range(3 * AT_ONCE)]
    assert await act_on_all(["gone", *others], tell) == len(others)
    told.clear()
    with pytest.raises(RunError, match="48 of 50 runs accepted the change, 'full' did not: no room in its history"):
        await act_on_all(["full", "gone", *others], tell)
    assert sorted(told) == sorted(others)
    answers["7"] = RPCStatusCode.UNAVAILABLE
    told.clear()
    with pytest.raises(RunError, match="of 48 runs accepted the change, '7' did not"):
        await act_on_all(others, tell)
    assert len(told) < 2 * AT_ONCE


def test_a_change_of_many_runs_prints_its_progress(capsys: pytest.CaptureFixture[str]) -> None:
    progress = ChangedRuns(250)
    for number in range(250):
        progress.note(str(number))
    assert capsys.readouterr().err == "".join(f"{done} of 250 runs accepted the change\n" for done in (100, 200))


async def test_a_session_that_is_deleted_meanwhile_is_not_rewritten(dev_server: WorkflowEnvironment) -> None:
    gone: Any = SimpleNamespace(id=f"gone-{uuid.uuid4().hex}", run_id=str(uuid.uuid4()))
    assert await _keys_of(dev_server.client, gone) == set()


async def test_what_a_namespace_does_not_take_harms_nobody() -> None:
    async with embedded_server(ui=False) as server:
        client = server.client
        with pytest.raises(RunError, match="lacks a search attribute"):
            await count_runs(client, Selection("nobody"))
        request = AddSearchAttributesRequest(namespace=client.namespace)
        request.search_attributes["PerdureCost"] = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
        request.search_attributes["PerdureTenant"] = IndexedValueType.INDEXED_VALUE_TYPE_INT
        await client.operator_service.add_search_attributes(request)
        attributes = SearchAttributes()
        problem = await attributes.ensure(client)
        assert problem is not None
        assert "PerdureTenant (Keyword), PerdureCost (Double)" in problem
        assert attributes.known == [name for name in ATTRIBUTES if name not in ("PerdureCost", "PerdureTenant")]
        document = agent()
        async with harness(client, [], [DONE], attribute=attributes) as it:
            handle = await start_run(client, parse_agent(document), document, task_queue=it.task_queue, tenant="acme")
            assert (await handle.result()).status == "completed"


async def test_a_run_whose_search_attributes_are_taken_away_says_so_and_goes_on_once_they_are_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with embedded_server(ui=False) as server:
        # A refused task is repeated at its timeout.
        client = Client(**server.client.config() | {"interceptors": [QuickTasks()]})
        found = asyncio.Event()

        @tool
        async def lose() -> None:
            await found.wait()
            request = RemoveSearchAttributesRequest(namespace=client.namespace, search_attributes=list(ATTRIBUTES))
            await client.operator_service.remove_search_attributes(request)

        calls = [
            {"_tool": "lose", "_outputPath": "†state.a"},
            {"_tool": "remove", "path": "/x", "_after": ["†state.a"]},
        ]
        async with harness(client, [lose, remove], [{"calls": calls, "output": None}, DONE]) as it:
            handle = await it.start(agent("lose", "remove", config={"approval": {"timeout": 0.1}}))
            known = (await handle.describe()).search_attributes
            assert known[AGENT_ATTRIBUTE] == ["test"], "the first run of a namespace is found, too"
            found.set()
            async with asyncio.timeout(HANG):
                while True:
                    if words := await task_failure(client, await handle.describe()):
                        break
                    await asyncio.sleep(0.1)
            await add_attributes(client, list(ATTRIBUTES))
            assert (await handle.result()).status == "completed"
    assert words.startswith(f"the namespace has no search attribute that {handle.id!r} sets (BadSearchAttributes")
    assert "Register it again" in words
    refused = [vars(record)["perdure"] for record in caplog.records if "rejected a task" in record.message]
    assert refused
    assert refused[0]["run"] == handle.id


async def test_an_ended_run_without_a_worker_is_shown_from_its_history_and_says_so(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = dev_server.client
    calls = [
        {"_tool": "remove", "path": "/a", "_outputPath": "†state.gone"},
        {"_tool": "remove", "path": "†state.gone"},
    ]
    script = [{"calls": calls, "output": None}, *[{"calls": [], "output": "†state.gone"}] * 2]
    free = {"config": {"approval": {"ask": "never"}}}
    async with harness(client, [remove], script) as it:
        seen = await it.run(agent("remove", name="clerk", schema={}, **free))
        failed = await it.run(
            agent("remove", schema={"type": "integer"}, config={"max_requests": 1, "approval": {"ask": "never"}})
        )
        waiting = await it.start(removing("/b"))
        await it.until_waiting(waiting.id, "0.0")
        await waiting.terminate()
    assert (seen.status, len(seen.calls), len(seen.log), seen.trouble) == ("completed", 2, 2, ""), seen.error
    assert (seen.reads, seen.writes) == ({"1.1": ["†state.gone"]}, {"1.0": "†state.gone"})
    monkeypatch.setattr("perdure.queries._answers.TIMEOUT", timedelta(seconds=0.5))
    shown = await fetch_run(client, seen.run_id)
    assert shown.trouble == FROM_HISTORY
    assert shown.result().as_json() == seen.result().as_json()
    assert (shown.log, shown.reads, shown.writes) == ([], {}, {})
    printed = " ".join((await commands(dev_server)("show", seen.run_id)).out.split())
    assert "[iter=1] a Request of a model that the history does not name" in printed
    assert "the given plan" not in printed
    assert FROM_HISTORY in printed
    assert failed.status == "failed"
    assert (await fetch_run(client, failed.run_id)).trouble == FROM_HISTORY
    ended = await fetch_run(client, waiting.id)
    assert (ended.status, ended.calls, ended.trouble) == ("terminated", [], WITHOUT_RESULT)


async def test_a_list_of_one_says_nothing_beside_it(dev_server: WorkflowEnvironment) -> None:
    client, name = dev_server.client, f"agent-{uuid.uuid4().hex[:8]}"
    env = {"TEMPORAL_ADDRESS": client.service_client.config.target_host}
    assert await SearchAttributes().ensure(client) is None
    async with harness(client, [remove], lambda _: DONE) as it:
        for _ in range(2):
            await it.run(agent(name=name))
        await until_found(client, Selection(name), 2)
    listed = await perdure("list", "--agent", name, "--limit", "1", env=env)
    assert (listed.code, listed.err) == (0, "")
    assert (
        len([line for line in listed.out.splitlines() if line.startswith("the next page: perdure list --agent")]) == 1
    )
    as_json = await perdure("list", "--agent", name, "--limit", "1", "--json", env=env)
    assert (as_json.code, len(json.loads(as_json.out))) == (0, 1)
    assert as_json.err.startswith("the next page: perdure list --agent")


@pytest.mark.parametrize(("columns", "is_there"), [("120", True), ("60", False)])
def test_a_list_has_the_agent_of_each_run_where_there_is_room(
    columns: str, is_there: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    started = datetime(2026, 1, 31, tzinfo=UTC)
    print_rows(
        [ListedRun("nightly", "completed", started, started, "reporter"), ListedRun("b", "running", started, None)]
    )
    title, first, second = capsys.readouterr().out.splitlines()
    assert ("agent" in title) is is_there
    assert ("reporter" in first) is is_there
    assert "nightly" in first
    assert second.startswith("b ")


async def test_the_next_page_is_of_the_same_runs_and_its_command_can_be_copied() -> None:
    chosen = Selection("a clerk", "running", since="2h", tenant="acme", waiting=True, query="PerdureCost > 5")
    said = next_page(chosen, 5, "e30=", as_json=True)
    words = shlex.split(said)
    assert words[:2] == ["perdure", "list"]
    assert " ".join(words[2:]) == (
        "--agent a clerk --status running --since 2h --tenant acme --query PerdureCost > 5 --waiting --json --limit 5 --page e30="
    )
