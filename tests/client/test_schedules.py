"""Schedules: runs of an agent at fixed times, on Temporal's own Schedules (R19.6)."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio import client as temporal
from temporalio.client import Client, ScheduleActionStartWorkflow, ScheduleSpec
from temporalio.testing import WorkflowEnvironment

from perdure import Perdure, RunError, RunExistsError, RunNotFoundError, Selection, ToolContext, tool
from perdure.client.schedules import ListedSchedule, Schedule, ScheduleView
from perdure.errors import ScheduleError, ServerRefusalError
from perdure.hosting.connection import data_converter
from perdure.runs.schedules import check_agent_name, with_time
from perdure.runs.wire import AGENT_WORKFLOW
from perdure.testing import approve, run_locally
from perdure.testing.cases import record_run
from tests.client.test_approval_lists import remove
from tests.support import DONE, Command, Harness, agent, harness, perdure
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")

NEVER: dict[str, Any] = {"cron": "0 0 1 1 *"}
"""Times that no test lives to see: what starts is triggered."""


@tool(safe=True)
async def customer(context: ToolContext) -> dict[str, Any]:
    """Return what is known of the sender."""
    return dict(context.context)


def unique() -> str:
    return f"s-{uuid.uuid4().hex[:8]}"


@asynccontextmanager
async def scheduling(
    server: WorkflowEnvironment, folder: Path, *functions: Any, script: Any = None, **options: Any
) -> AsyncIterator[tuple[Perdure, Harness]]:
    """A worker with this agents folder; its schedules are deleted at the end."""
    async with harness(server.client, functions, script or (lambda _: DONE), agents=folder, **options) as it:
        api = Perdure(it.client, task_queue=it.task_queue)
        yield api, it
        async for each in api.list_schedules():
            if each.name.startswith("s-"):
                await api.schedule(each.name).delete()


def write(folder: Path, name: str, *tools: Any, **more: Any) -> None:
    (folder / f"{name}.json").write_text(json.dumps(agent(*tools, name=name, **more)), encoding="utf-8")


async def until(schedule: Schedule, right: Callable[[ScheduleView], bool]) -> ScheduleView:
    """A schedule can only be looked at: nothing tells when to look."""
    async with asyncio.timeout(HANG):
        while True:
            if right(view := await schedule.show()):
                return view
            await asyncio.sleep(0.05)


async def test_r19_6_a_triggered_run_says_by_which_schedule_and_for_when(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    day = {"type": "input", "schema": {"properties": {"day": {"type": "string"}}}}
    write(tmp_path, "reporter", "customer", context=[day])
    name = unique()
    asks = {"calls": [{"_tool": "customer", "_outputPath": "†state.customer"}], "output": "†state.customer"}
    async with scheduling(dev_server, tmp_path, customer, script=[asks]) as (api, it):
        nightly = api.schedule(name)
        who: dict[str, Any] = {"sender": "ann", "context": {"shop": 7}, "priority": 5}
        made = await nightly.create("reporter", {"day": "{{scheduled}}"}, **who, **NEVER)
        assert (made.agent, made.cron, made.runs, made.sender) == ("reporter", ["0 0 1 1 *"], [], "ann")
        assert made.as_json()["priority"] == 5
        await nightly.trigger()
        [started] = (await until(nightly, lambda view: len(view.runs) == 1)).runs
        run = api.get_run(started.run_id)
        assert await run.result(HANG) == {"shop": 7}
        view, origin = await run.view(), await run.origin()
        described = await run.handle.describe()
        assert described.raw_description.workflow_execution_info.priority.priority_key == 5
        at = view.scheduled_at
        assert at is not None
        assert started.run_id == f"{name}-{at.replace('+00:00', 'Z')}"
        assert (view.schedule, view.agent, origin.schedule, origin.sender) == (name, "reporter", name, "ann")
        assert origin.input == {"day": at}
        assert at in str(it.model.requests[0].messages)
        rows = await until_listed(api, Selection(schedule=name))
        assert [(row.id, row.schedule, row.agent) for row in rows] == [(run.id, name, "reporter")]
        case = await record_run(api.client, run.id)
        assert (case["agent"]["name"], case["input"]) == ("reporter", {"day": at})


async def test_r19_6_each_run_of_a_schedule_reads_its_encrypted_input(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PERDURE_CODEC", "perdure.encryption:aes_gcm")
    monkeypatch.setenv("PERDURE_CODEC_KEYS", json.dumps({"k": base64.b64encode(bytes(32)).decode()}))
    monkeypatch.setenv("PERDURE_STORAGE", str(tmp_path / "values"))
    monkeypatch.setenv("PERDURE_STORAGE_THRESHOLD", "2000")
    client = await Client.connect(dev_server.client.service_client.config.target_host, data_converter=data_converter())
    write(tmp_path, "reporter", schema={"const": {"ok": True}}, context=[{"type": "input", "schema": {}}])
    name = unique()
    async with harness(client, [], lambda _: DONE, agents=tmp_path) as it:
        nightly = Perdure(client, task_queue=it.task_queue).schedule(name, tenant="acme")
        for number, text in ((1, "small"), (2, "large" * 1_000)):
            await nightly.create("reporter", {"text": text}, overlap="allow-all", replace=True, **NEVER)
            assert (await nightly.show()).input == {"text": text}
            await nightly.trigger()
            view = await until(nightly, lambda view, number=number: len(view.runs) == number)  # type: ignore[misc]
            run = Perdure(client).get_run(view.runs[0].run_id)
            assert await run.result(HANG) == {"ok": True}
            assert ((await run.origin()).input, (await run.view()).schedule) == ({"text": text}, name)
            history = await run.handle.fetch_history()
            assert "small" not in str(history)
        await nightly.delete()


async def until_listed(api: Perdure, selection: Selection) -> list[Any]:
    """The index is a moment late."""
    async with asyncio.timeout(HANG):
        while True:
            if rows := [row async for row in api.list_runs(selection)]:
                return rows
            await asyncio.sleep(0.05)


async def until_known(api: Perdure, tenant: str = "") -> list[ListedSchedule]:
    """The index is a moment late."""
    async with asyncio.timeout(HANG):
        while True:
            if found := [each async for each in api.list_schedules(tenant=tenant)]:
                return found
            await asyncio.sleep(0.05)


async def test_r19_6_the_agent_is_read_when_a_run_starts(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with scheduling(dev_server, tmp_path) as (api, _):
        schedule = api.schedule(unique())
        write(tmp_path, "changing", schema={"const": {"ok": True}})
        await schedule.create("changing", overlap="allow-all", **NEVER)
        texts = []
        for number in (1, 2, 3):
            if number == 2:
                write(tmp_path, "changing", description="the second", schema={"const": {"ok": True}})
            if number == 3:
                (tmp_path / "changing.json").unlink()
                write(tmp_path, "other")
            times = (f"2026-01-0{number}T00:00", f"2026-01-0{number}T00:00")
            await schedule.create("changing", overlap="allow-all", cron="0 0 * * *", replace=True)
            await schedule.backfill(*times)
            view = await until(schedule, lambda view, number=number: len(view.runs) == number)  # type: ignore[misc]
            run = api.get_run(view.runs[0].run_id)
            ended = await run.wait(HANG)
            texts.append((ended.status, ended.error))
        assert texts[:2] == [("completed", None), ("completed", None)]
        assert texts[2] == ("failed", "the agents folder has no 'changing'; its agents are other")


async def test_r19_6_a_schedule_fires_by_itself_until_it_is_paused(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    write(tmp_path, "pulse")
    async with scheduling(dev_server, tmp_path) as (api, _):
        schedule = api.schedule(unique())
        await schedule.create("pulse", every=1, overlap="allow-all", note="beats", paused=True)
        assert (await schedule.show()).started == 0
        await schedule.resume()
        view = await until(schedule, lambda view: view.started >= 2)
        assert view.runs[0].run_id != view.runs[1].run_id
        await schedule.pause()
        paused = await schedule.show()
        assert (paused.paused, paused.note) == (True, "beats")
        assert (await api.get_run(view.runs[0].run_id).wait(HANG)).status == "completed"
        await schedule.pause("the shop is closed")
        assert (await schedule.show()).note == "the shop is closed"
        await schedule.create("pulse", every=1, note="new beats", replace=True)
        replaced = await schedule.show()
        assert (replaced.paused, replaced.note) == (True, "the shop is closed")
        await schedule.pause("a holiday")
        await schedule.pause()
        assert (await schedule.show()).note == "a holiday"
        await schedule.resume()
        assert (await schedule.show()).note == "new beats", "the reason of the pause goes"
        await schedule.create("pulse", every=1, replace=True)
        await schedule.pause("the shop is closed")
        await schedule.resume()
        assert (await schedule.show()).note == ""
        await schedule.pause()
        assert (await schedule.show()).note == ""
        await schedule.delete()
        with pytest.raises(RunNotFoundError, match="there is no schedule"):
            await schedule.show()


async def test_r19_6_nothing_starts_while_a_run_waits_for_approval(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    write(tmp_path, "remover", "remove")
    script = [{"calls": [{"_tool": "remove", "path": "/a"}], "output": None}, DONE, DONE, DONE]
    async with scheduling(dev_server, tmp_path, remove, script=script) as (api, it):
        schedule = api.schedule(unique())
        await schedule.create("remover", every=1)
        await until(schedule, lambda view: view.skipped >= 2)
        await schedule.pause()
        [waiting] = (await schedule.show()).runs
        await it.until_waiting(waiting.run_id, "1.0")
        run = api.get_run(waiting.run_id)
        await run.approve("1.0")
        assert (await run.wait(HANG)).status == "completed"
        assert (await schedule.show()).started == 1


async def test_r19_6_a_backfill_starts_the_runs_of_a_time_that_has_passed(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    write(tmp_path, "reporter")
    async with scheduling(dev_server, tmp_path) as (api, _):
        schedule = api.schedule(unique())
        await schedule.create("reporter", cron="0 2 * * *", timezone="Europe/Berlin")
        await schedule.backfill("2026-03-28", "2026-03-30T12:00")
        view = await until(schedule, lambda view: any("2026-03-30" in run.run_id for run in view.runs))
        # On the 29th there is no two o'clock in Berlin: Temporal leaves the time out.
        assert [run.run_id.removeprefix(f"{schedule.name}-") for run in reversed(view.runs)] == [
            "2026-03-28T01:00:00Z",
            "2026-03-30T00:00:00Z",
        ]
        with pytest.raises(ScheduleError, match="to: 2026-01-01T00:00:00\\+00:00 is before"):
            await schedule.backfill("2026-02-01T00:00Z", "2026-01-01T00:00Z")
        with pytest.raises(ScheduleError, match="this period has more than 500 times of the schedule: divide it"):
            await schedule.backfill("2024-01-01", "2026-01-01")
        assert (await schedule.show()).started == 2
        with pytest.raises(ScheduleError, match='from: "yesterday" is not a time'):
            await schedule.backfill("yesterday", "2026-01-01")


async def test_r19_6_the_hour_stays_over_a_change_of_the_clock(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with scheduling(dev_server, tmp_path) as (api, _):
        view = await api.schedule(unique()).create("reporter", cron="30 12 1 * *", timezone="Europe/Berlin")
        assert {(time.hour, time.minute) for time in view.next} == {(12, 30)}
        assert {str(time.utcoffset()) for time in view.next} == {"1:00:00", "2:00:00"}, "ten months have a change"
        assert view.timezone == "Europe/Berlin"


async def test_r19_6_another_tenant_s_schedule_is_not_there(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    write(tmp_path, "reporter")
    name, tenant = unique(), f"acme-{unique()}"
    async with scheduling(dev_server, tmp_path) as (api, _):
        own, none = api.schedule(name, tenant=tenant), api.schedule(name)
        await own.create("reporter", **NEVER)
        try:
            for act in (none.show, none.pause, none.resume, none.trigger, none.delete):
                with pytest.raises(RunNotFoundError, match="there is no schedule"):
                    await act()
            with pytest.raises(ScheduleError, match="not a valid name"):
                api.schedule(own.id)
            await none.create("reporter", **NEVER)
            await own.trigger()
            view = await until(own, lambda view: len(view.runs) == 1)
            run = await api.find_run(view.runs[0].run_id, tenant=tenant)
            assert (await run.wait(HANG)).schedule == name
            with pytest.raises(RunNotFoundError):
                await api.find_run(run.id, tenant="other")
            rows = await until_listed(api, Selection(schedule=name, tenant=tenant))
            assert [(row.id, row.tenant, row.schedule) for row in rows] == [(run.id, tenant, name)]
            found = await until_known(api, tenant)
            assert [(each.name, each.agent, len(each.next)) for each in found] == [(name, "reporter", 5)]
        finally:
            await own.delete()


@pytest.mark.parametrize("arguments", [[], [{}], [5], [{"agentName": 5, "agent": {}}], ["text", 3]])
async def test_a_schedule_that_another_program_has_made_is_refused_in_one_line(
    dev_server: WorkflowEnvironment, arguments: list[Any]
) -> None:
    schedule = Perdure(dev_server.client, task_queue="perdure").schedule(unique())
    action = ScheduleActionStartWorkflow(AGENT_WORKFLOW, args=arguments, id=schedule.name, task_queue="perdure")
    made = await dev_server.client.create_schedule(schedule.id, temporal.Schedule(action=action, spec=ScheduleSpec()))
    with pytest.raises(RunError, match="is not one that Perdure has written") as refused:
        await schedule.show()
    await made.delete()
    assert str(refused.value).endswith("Create the schedule again, and replace this one")
    assert "\n" not in str(refused.value)


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "the times are missing: give cron ('0 2 * * *'), or every ('1h')"),
    ({"cron": "0 99 * * *"}, 'cron: "0 99 * * *": Hour is not in range [0-23]; use MINUTE HOUR'),
    ({"cron": "0 9 1"}, 'cron: "0 9 1": CronString does not have 5-7 fields'),
    ({"cron": "CRON_TZ=Europe/Berlin 0 9 * * *"}, "is not a cron expression"),
    ({"cron": "0 2 * * *", "timezone": "Europe/Berlinn"}, 'timezone: "Europe/Berlinn" is not a time zone'),
    ({"cron": "0 2 * * *", "timezone": "../etc"}, 'timezone: "../etc" is not a time zone'),
    (
        {"cron": "0 2 * * *", "timezone": "Local"},
        'timezone: "Local" is not a time zone: use a name such as Europe/Berlin',
    ),
    ({"cron": "0 2 * * *", "timezone": "localtime"}, 'timezone: "localtime" is not a time zone'),
    ({"cron": "0 2 * * *", "timezone": "right/UTC"}, 'timezone: "right/UTC" is not a time zone'),
    ({"every": "1 fortnight"}, 'every: "1 fortnight" is not a duration: use 30s'),
    ({"every": 0.5}, "every: 0.5 s is not valid: give whole seconds, at least 1 s"),
    ({"every": "1h", "catchup": "1s"}, "catchup: 1 s is too short"),
    ({"every": "1h", "overlap": "queue"}, 'overlap: "queue" is not one of skip'),
]


@pytest.mark.parametrize(("given", "words"), BAD, ids=[words[:30] for _, words in BAD])
async def test_bad_times_are_refused_in_one_line(
    dev_server: WorkflowEnvironment, given: dict[str, Any], words: str
) -> None:
    schedule = Perdure(dev_server.client).schedule(unique())
    with pytest.raises(ScheduleError) as refused:
        await schedule.create("reporter", **given)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    with pytest.raises(RunNotFoundError):
        await schedule.show()


async def test_a_name_that_is_taken_is_refused_unless_it_is_replaced(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    async with scheduling(dev_server, tmp_path) as (api, _):
        schedule = api.schedule(unique())
        await schedule.create("one", paused=True, **NEVER)
        with pytest.raises(RunExistsError, match=r"there is already a schedule .*: replace it"):
            await schedule.create("two", **NEVER)
        changed = await schedule.create("two", every="2h", replace=True)
        assert (changed.agent, changed.cron, changed.every, changed.paused) == ("two", [], 7200.0, True)


async def test_r19_3_the_kit_has_schedules_on_a_dev_server(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    write(tmp_path, "remover", "remove")
    script = [{"calls": [{"_tool": "remove", "path": "/a"}], "output": None}, DONE]
    people = [approve("remove")]
    async with run_locally(tools=[remove], model=script, people=people, server=dev_server, agents=tmp_path) as local:
        schedule = local.perdure.schedule(unique())
        await schedule.create("remover", **NEVER)
        try:
            await schedule.trigger()
            view = await until(schedule, lambda view: len(view.runs) == 1)
            assert await local.perdure.get_run(view.runs[0].run_id).result() == {"ok": True}
        finally:
            await schedule.delete()


async def test_a_server_without_schedules_is_named(time_skipping: WorkflowEnvironment) -> None:
    with pytest.raises(ServerRefusalError, match="this is Temporal's test server, which has no schedules"):
        await Perdure(time_skipping.client).schedule("nightly").create("reporter", **NEVER)


@pytest.mark.parametrize("name", ["agents/reporter.json", "../reporter", "reporter.json", "", "a/b"])
async def test_an_agent_is_named_and_no_path(name: str) -> None:
    with pytest.raises(ScheduleError, match="is not the name of an agent"):
        check_agent_name(name)


async def test_only_a_value_that_is_exactly_scheduled_becomes_the_time() -> None:
    given: Any = {"a": ["{{scheduled}}", "on {{scheduled}}"], "{{scheduled}}": 1}
    assert with_time(given, "2026-03-01T02:00:00+00:00") == {
        "a": ["2026-03-01T02:00:00+00:00", "on {{scheduled}}"],
        "{{scheduled}}": 1,
    }


async def test_the_commands(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    write(
        tmp_path,
        "reporter",
        context=[{"type": "input", "schema": {"properties": {"team": {"type": "string"}}, "required": ["team"]}}],
    )
    name = unique()
    async with scheduling(dev_server, tmp_path) as (api, it):
        run = commands(it.client, "schedule")
        where = ("--agents", str(tmp_path), "--task-queue", it.task_queue)
        times = ("--cron", "0 2 * * *", "--timezone", "Europe/Berlin")
        bad = await run("create", name, "reporter", *times, "--input", '{"team": 3}', *where)
        assert (bad.code, bad.out) == (2, "")
        assert "team" in bad.err
        bad = await run("create", name, "reporter", "--cron", "0 99 * * *", "--input", '{"team": "a"}', *where)
        assert (bad.code, bad.out, bad.err.count("\n")) == (2, "", 1)
        bad = await run("create", name, "x/reporter.json", *times, *where)
        assert (bad.code, bad.err.count("\n")) == (2, 1)
        made = await run("create", name, "reporter", *times, "--input", '{"team": "a"}', "--json", *where)
        assert (made.code, made.err) == (0, "")
        assert json.loads(made.out)["schedule"] == name
        again = await run("create", name, "reporter", *times, "--input", '{"team": "b"}', *where)
        assert (again.code, again.out) == (1, "")
        assert (
            again.err
            == f"perdure: there is already a schedule {name!r}: replace it (replace=True, --replace), or use another name\n"
        )
        replaced = await run("create", name, "reporter", *times, "--input", '{"team": "b"}', "--replace", *where)
        assert replaced.out.startswith(f"{name}: 0 2 * * * Europe/Berlin; next 20")
        assert (await run("pause", name, "--note", "closed")).out == f"{name}: paused\n"
        shown = await run("show", name)
        assert "paused: closed" in shown.out
        assert "next " not in shown.out
        assert '{"team":"b"}' in shown.out
        assert json.loads((await run("resume", name, "--json")).out) == {"schedule": name, "resumed": True}
        assert (await run("trigger", name)).out == f"{name}: triggered\n"
        view = await until(api.schedule(name), lambda view: len(view.runs) == 1)
        assert (await api.get_run(view.runs[0].run_id).wait(HANG)).status == "completed"
        told = await commands(it.client)("show", view.runs[0].run_id)
        assert f"started by the schedule '{name}' for {view.runs[0].scheduled_at.year}" in told.out
        backfilled = await run("backfill", name, "--from", "2026-01-01", "--to", "2026-01-02T12:00")
        assert (backfilled.code, backfilled.out) == (0, f"{name}: backfilled\n")
        await until(api.schedule(name), lambda view: len(view.runs) == 3)
        await until_listed(api, Selection(schedule=name))
        listed = json.loads((await commands(it.client)("list", "--schedule", name, "--json")).out)
        assert {row["schedule"] for row in listed} == {name}
        assert name in (await run("list")).out
        assert (await run("delete", name, "--yes")).out == f"{name}: deleted\n"
        gone = await run("show", name)
        assert (gone.code, gone.err) == (1, f"perdure: there is no schedule {name!r} in namespace 'default'\n")


async def test_a_schedule_of_another_tenant_is_named_where_it_can_be_found(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    write(tmp_path, "reporter")
    name, tenant = unique(), f"shop-{unique()}"
    async with scheduling(dev_server, tmp_path) as (api, it):
        schedule = api.schedule(name, tenant=tenant)
        await schedule.create("reporter", every="1h", paused=True)
        await schedule.trigger()
        await until(schedule, lambda view: len(view.runs) == 1)
        await until_listed(api, Selection(schedule=name, tenant=tenant))
        for words in (("schedule", "show", name), ("schedule", "trigger", name)):
            missed = await commands(it.client)(*words)
            assert (missed.code, missed.out) == (1, "")
            assert f"for no tenant; found with --tenant {tenant}" in missed.err
        listed = await commands(it.client)("list", "--schedule", name)
        assert (listed.code, listed.out) == (0, "no runs\n")
        assert f"for no tenant; found with --tenant {tenant}" in listed.err
        await schedule.delete()


def commands(client: Client, *before: str) -> Callable[..., Awaitable[Command]]:
    env = {"TEMPORAL_ADDRESS": client.service_client.config.target_host}

    async def run(*words: str) -> Command:
        return await perdure(*before, *words, env=env)

    return run
