"""Erasure of a person's runs and sessions, in Temporal and in external storage (R24.5)."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_evals import Case, Dataset
from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest, ResetWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.converter import StorageDriverStoreContext, StorageDriverWorkflowInfo
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Media, Perdure, RunNotFoundError, tool
from perdure.activities.transcripts import recall
from perdure.client.erasure import Eraser, _senders_in, ignore_not_found, retention_ends
from perdure.errors import MediaError, RunError
from perdure.hosting._storage import FileStorage, _owner
from perdure.hosting.connection import data_converter
from perdure.runs.audit import verify_chain
from perdure.runs.wire import REWRITE
from perdure.testing.scripted_model import ChatRequest
from tests.support import DONE, Harness, agent, harness, impatient, new_namespace, perdure, storage_fixture
from tests.timeouts import HANG
from tests.workflows.test_resets import newest_task
from tests.workflows.test_session import Gate

pytestmark = pytest.mark.asyncio(loop_scope="session")
storage = storage_fixture()
impatient_server = impatient(20)


@tool(safe=True)
def long(size: int) -> str:
    """Return a text that is stored outside."""
    return uuid.uuid4().hex * (size // 32)


CALLS: dict[str, Any] = {
    "calls": [{"_tool": "long", "size": 300_000, "_outputPath": "†state.t"}],
    "output": {"ok": True},
}


@asynccontextmanager
async def working(server: WorkflowEnvironment, **options: Any) -> AsyncIterator[tuple[Perdure, Harness, str]]:
    address = server.client.service_client.config.target_host
    namespace = await new_namespace(server.client)  # an erasure looks at all workflows
    client = await Client.connect(address, namespace=namespace, data_converter=data_converter())
    tools = [long, recall, *options.pop("tools", [])]
    async with harness(client, tools, options.pop("script", lambda _: CALLS), **options) as it:
        yield Perdure(client, task_queue=it.task_queue), it, f"tenant-{uuid.uuid4().hex[:8]}"


def connection(api: Perdure) -> dict[str, str]:
    """The environment of a command that connects as `api` does."""
    address = api.client.service_client.config.target_host
    return {"TEMPORAL_ADDRESS": address, "TEMPORAL_NAMESPACE": api.client.namespace}


async def until_listed(api: Perdure, tenant: str, runs: int) -> None:
    """The index is a moment late."""
    from perdure import Selection

    async with asyncio.timeout(HANG):
        while True:
            rows = [row async for row in api.list_runs(Selection(tenant=tenant))]
            if len(rows) >= runs and all(row.ended_at for row in rows):
                return
            await asyncio.sleep(0.05)


def values(folder: Path) -> list[Path]:
    """The stored values and files, without the notes of their owners."""
    kinds = ("owners", "references")
    return [each for each in folder.rglob("*") if each.is_file() and each.relative_to(folder).parts[0] not in kinds]


async def test_r24_5_a_persons_runs_sessions_values_and_files_leave_and_those_of_others_stay(
    dev_server: WorkflowEnvironment, storage: Path
) -> None:
    photo, shared = (
        Media(data=b"only ann's", name="a.txt"),
        Media(data=b"ann's and bob's", name="b.txt"),
    )
    document = Agent.of(agent("long"))
    async with working(dev_server) as (api, _, tenant):
        mine = await api.start(document, {"files": [photo, shared]}, id=f"{tenant}-ann", sender="ann", tenant=tenant)
        theirs = await api.start(document, {"files": [shared]}, id=f"{tenant}-bob", sender="bob", tenant=tenant)
        await mine.result(HANG)
        await theirs.result(HANG)
        own = api.session("own", tenant=tenant, agent=document)
        both = api.session("both", tenant=tenant, agent=document)
        await own.ask("hello", sender="ann", timeout=HANG)
        await both.ask("hello", sender="ann", timeout=HANG)
        await both.ask("hello", sender="bob", timeout=HANG)
        await until_listed(api, tenant, 5)
        before = len(values(storage))
        planned = await api.erase(tenant=tenant, sender="ann", dry_run=True)
        assert (planned.runs, planned.sessions, len(planned.session_runs)) == ([mine.id], ["own"], 1)
        assert len(values(storage)) == before
        env = {"PERDURE_STORAGE": str(storage), **connection(api)}
        words = ("erase", "--tenant", tenant, "--sender", "ann")
        refused = await perdure(*words, env=env)
        assert (refused.code, "Add --yes" in refused.err) == (2, True)
        shown = await perdure(*words, "--dry-run", env=env)
        assert shown.out.startswith("would remove 1 session, 2 runs, ")
        done = await perdure(*words, "--yes", "--json", env=env | {"PERDURE_TASK_QUEUE": api.task_queue})
        report = json.loads(done.out)
        assert done.code == 0, (done.err, report)
        assert (report["values"], report["files"]) == (planned.values, planned.files)
        assert report["executions"] >= planned.executions >= 3
        assert report["values"] >= 3
        assert report["files"] == 1
        kinds = {(each["what"], each["id"]) for each in report["remaining"]}
        assert kinds == {("session", "both"), ("file", shared.digest)}
        assert not await own.exists()
        with pytest.raises(MediaError, match="not in this storage"):
            await api.load_media(photo.value.as_json(), tenant=tenant)
        assert (await api.load_media(shared.value.as_json(), tenant=tenant)).read() == b"ann's and bob's"
        assert (await theirs.view()).status == "completed"
        assert [entry["sender"] for entry in (await both.show()).entries if entry["type"] == "message"] == [
            "ann",
            "bob",
        ]
        # The session of both leaves as a whole, if that is wanted; and with everybody's, what is old.
        rest = await api.erase(tenant=tenant, sender="ann", shared=True)
        assert "both" in rest.sessions
        # The file is named if the server still lists the run that has left.
        assert {each.what for each in rest.remaining} <= {"file"}
        assert not await both.exists()
        everything = await api.erase(tenant=tenant, before=datetime.now(UTC) + timedelta(minutes=1))
        assert theirs.id in everything.runs
        assert not values(storage)
        await until_gone(api, tenant)
        for run in (mine, theirs):
            with pytest.raises(RunNotFoundError):
                await run.view()


async def test_r24_5_evaluations_of_a_persons_cases_leave_and_those_with_cases_of_others_are_named(
    dev_server: WorkflowEnvironment,
) -> None:
    def cases(*senders: str) -> Dataset[Any, Any, Any]:
        return Dataset[Any, Any, Any](
            name="orders",
            cases=[Case(name=f"{n}", inputs={}, metadata={"sender": each}) for n, each in enumerate(senders)],
        )

    document = Agent.of(agent("long"))
    async with working(dev_server) as (api, _, tenant):
        own = await api.evaluate(document, cases("ann", "ann"), tenant=tenant, id=f"{tenant}-own")
        both = await api.evaluate(document, cases("ann", "bob"), tenant=tenant, id=f"{tenant}-both")
        other = await api.evaluate(document, cases("ann"), tenant=f"{tenant}-2", id=f"{tenant}-other")
        for each in (own, both, other):
            await each.wait()
        async with asyncio.timeout(HANG):
            while True:  # the index is a moment late
                planned = await api.erase(tenant=tenant, sender="ann", dry_run=True)
                if len(planned.runs) == 3 and planned.remaining and planned.remaining[0].until:
                    break
        assert planned.evaluations == [own.id]
        [left] = planned.remaining
        assert (left.what, left.id, left.until > datetime.now(UTC).isoformat()) == ("evaluation", both.id, True)
        assert left.why.startswith("1 of its 2 cases are not ann's")
        env = connection(api)
        done = await perdure("erase", "--tenant", tenant, "--sender", "ann", "--yes", env=env)
        assert done.out.startswith("removed 0 sessions, 3 runs, 1 evaluation, "), done.err
        assert f"  evaluation {own.id}\n" in done.out
        assert (await api.get_run(f"{both.id}-2").view()).status == "completed"
        rest = await api.erase(tenant=tenant, sender="ann", shared=True)
        assert (both.id in rest.evaluations, rest.remaining) == (True, [])
        old = await api.erase(tenant=f"{tenant}-2", before=datetime.now(UTC) + timedelta(minutes=1))
        assert (old.evaluations, old.runs) == ([other.id], [f"{other.id}-1"])
        assert f"{both.id}-2" in rest.runs
        await until_gone(api, tenant)
        await until_gone(api, f"{tenant}-2")


async def test_r24_5_an_evaluation_that_is_running_leaves_with_all_that_it_has_started(
    dev_server: WorkflowEnvironment,
) -> None:
    cases = [Case[Any, Any, Any](name=f"{n}", inputs={}, metadata={"sender": "ann"}) for n in range(60)]
    async with working(dev_server) as (api, _, tenant):
        running = await api.evaluate(
            Agent.of(agent("long")), Dataset[Any, Any, Any](name="many", cases=cases), tenant=tenant, parallel=8
        )
        async with asyncio.timeout(HANG):
            while (await running.progress()).done < 5:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        report = await api.erase(tenant=tenant, sender="ann")
        assert (report.evaluations, report.remaining) == ([running.id], [])
        await api.erase(tenant=tenant, sender="ann")
        await until_left(api.client)


async def test_r24_5_what_is_older_than_its_tenants_retention_leaves(
    dev_server: WorkflowEnvironment, storage: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    document, log = Agent.of(agent("long")), tmp_path / "audit.jsonl"
    async with working(dev_server, audit=f"file:{log}") as (api, _, tenant):
        other = f"{tenant}-other"
        old = await api.start(document, sender="ann", tenant=tenant)
        kept = await api.start(document, sender="ann", tenant=other)
        await old.result(HANG)
        await kept.result(HANG)
        session = api.session("idle", tenant=tenant, agent=document)
        await session.ask("hello", sender="ann", timeout=HANG)
        await until_listed(api, tenant, 2)
        await until_listed(api, other, 1)
        async with asyncio.timeout(HANG):
            while True:
                if [each async for each in api.list_sessions(tenant=tenant)]:
                    break
                await asyncio.sleep(0.05)
        monkeypatch.delenv("PERDURE_RETENTION", raising=False)
        with pytest.raises(RunError, match="no retention is configured: set PERDURE_RETENTION"):
            await api.apply_retention()
        ends = await retention_ends(api.client, {"*": "0.001s", other: "30d"}, datetime.now(UTC))
        assert ends[tenant] > ends[other]
        env = {
            **connection(api),
            "PERDURE_STORAGE": str(storage),
            "PERDURE_TASK_QUEUE": api.task_queue,
            "PERDURE_RETENTION": f"{tenant}=0.001s,{other}=30d",
            "PERDURE_AUDIT": f"file:{log}",
        }
        planned = await perdure("erase", "--old", "--dry-run", env=env)
        assert planned.out.startswith("would remove 1 session, 1 run, "), planned.err
        refused = await perdure("erase", "--old", env=env)
        assert (refused.code, "Add --yes" in refused.err) == (2, True)
        mixed = await perdure("erase", "--old", "--tenant", tenant, env=env)
        assert (mixed.code, "--old cannot be used with --tenant" in mixed.err) == (2, True)
        reports: list[Any] = []
        async with asyncio.timeout(HANG):
            while await session.exists():  # the server's list of workflows lacks one for a moment, now and then
                done = await perdure("erase", "--old", "--yes", "--by", "retention", "--json", env=env)
                assert done.code == 0
                reports += [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
        assert {each["tenant"] for each in reports} == {tenant}
        assert {id for each in reports for id in each["runs"]} == {old.id}
        assert {key for each in reports for key in each["sessions"]} == {"idle"}
        await until_gone(api, tenant)
        audited = await erasures(log)
        assert [(each["tenant"], each["by"]) for each in audited] == [(tenant, "retention")] * 2 * len(reports)
        assert [each["data"]["before"] for each in audited] == [each["before"] for each in reports for _ in range(2)]
        assert [each["data"].get("runs") for each in audited[:2]] == [None, len(reports[0]["runs"])]
        nothing = await perdure("erase", "--old", "--yes", env=env)
        assert (nothing.code, nothing.out) == (0, "no data is older than its tenant's retention\n")
        assert (await kept.view()).status == "completed"
        assert await erasures(log) == audited, "neither a dry run nor one without old data has a line"
        await api.erase(tenant=tenant, sender="nobody", by="bob")  # without the setting: the queue has the log
        async with asyncio.timeout(HANG):
            while [each["by"] for each in erasures_in(log)[len(audited) :]] != ["bob", "bob"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_r24_5_a_tenant_whose_erasure_fails_does_not_stop_the_others(
    dev_server: WorkflowEnvironment, storage: Path
) -> None:
    """The storage of the first tenant is damaged. The erasure of the second one was interrupted before."""
    document = Agent.of(agent("long"))
    async with working(dev_server) as (api, _, tenant):
        broken, other = f"{tenant}-a", f"{tenant}-b"
        runs = {each: await api.start(document, tenant=each) for each in (broken, other)}
        for each, run in runs.items():
            await run.result(HANG)
            await until_listed(api, each, 1)
        for each, run in runs.items():
            owned = next((storage / "owners" / _owner(api.client.namespace, run.id)).iterdir())
            references = storage / "references" / owned.name
            (references / owned.parent.name).unlink()
            references.rmdir()
            if each == broken:
                references.touch()
        ages = f"{broken}=0.001s,{other}=0.001s"
        env = {**connection(api), "PERDURE_STORAGE": str(storage), "PERDURE_TASK_QUEUE": api.task_queue}
        env["PERDURE_RETENTION"] = ages
        done = await perdure("erase", "--old", "--yes", "--json", env=env)
        first, second = (json.loads(line) for line in done.out.splitlines())
        assert done.code == 1, done
        assert [(each["what"], each["id"]) for each in first["remaining"]] == [("tenant", broken)]
        assert (second["tenant"], second["runs"], second["remaining"]) == (other, [runs[other].id], [])
        assert second["values"] > 0
        for words in (("--yes",), ("--dry-run",)):
            again = await perdure(
                "erase",
                "--old",
                *words,
                env=env | {"PERDURE_RETENTION": f"{broken}=0.001s", "PERDURE_STORAGE": "s3://no-such-bucket"},
            )
            assert (again.code, "tenant" in again.out) == (1, True), again


def erasures_in(log: Path) -> list[dict[str, Any]]:
    """Return the log's entries of erasures."""
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True) if log.exists() else []
    whole = [line for line in lines if line.endswith("\n")]
    assert verify_chain(whole).last == len(whole)
    return [entry for line in whole if (entry := json.loads(line)["entry"])["action"] == "erasure"]


async def erasures(log: Path) -> list[dict[str, Any]]:
    """Return the log's entries of erasures, once one of these has ended."""
    async with asyncio.timeout(HANG):
        while True:
            found = erasures_in(log)
            if any("complete" in each["data"] for each in found):
                return found
            await asyncio.sleep(0.05)


async def until_gone(api: Perdure, tenant: str) -> None:
    """The server carries out deletions later."""
    async with asyncio.timeout(HANG):
        later = datetime.now(UTC) + timedelta(hours=1)
        while True:
            if (await api.erase(tenant=tenant, before=later, dry_run=True)).executions == 0:
                return
            await asyncio.sleep(0.5)


async def until_left(client: Client, *left: str) -> None:
    """The namespace has these workflows alone. The server's lists, and its deletions, are a moment late."""
    async with asyncio.timeout(HANG):
        while {each.id async for each in client.list_workflows()} != {*left}:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def until_only(client: Client, run_id: str) -> None:
    """Delete all other executions of the namespace, and wait until the lists have this one alone."""
    async with asyncio.timeout(HANG):
        while others := [each async for each in client.list_workflows() if each.run_id != run_id]:
            for each in others:
                execution = WorkflowExecution(workflow_id=each.id, run_id=each.run_id)
                with ignore_not_found():
                    await client.workflow_service.delete_workflow_execution(
                        DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=execution)
                    )
            await asyncio.sleep(0.1)


async def test_r24_5_a_session_that_gets_a_message_during_an_erasure_stays(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(dev_server) as (api, _, tenant):
        session = api.session("own", tenant=tenant, agent=Agent.of(agent("long")))
        await session.ask("hello", sender="ann", timeout=HANG)
        await until_listed(api, tenant, 1)
        finds = Eraser._evaluations

        async def writes(eraser: Eraser) -> Any:
            await session.ask("hello", sender="bob", timeout=HANG)
            return await finds(eraser)

        with monkeypatch.context() as patch:
            patch.setattr(Eraser, "_evaluations", writes)
            report = await api.erase(tenant=tenant, sender="ann")
        assert (report.sessions, report.executions) == ([], 0)
        assert [(each.id, each.why) for each in report.remaining] == [
            ("own", "a message has come meanwhile: erase again")
        ]
        senders = [each["sender"] for each in (await session.show()).entries if each["type"] == "message"]
        assert senders == ["ann", "bob"]
        assert (await api.erase(tenant=tenant, sender="ann", shared=True)).sessions == ["own"]


@pytest.mark.usefixtures("storage")
async def test_r24_5_a_file_that_somebody_elses_schedule_passes_on_stays(dev_server: WorkflowEnvironment) -> None:
    file, own = Media(data=b"a template", name="a.txt"), Media(data=b"ann's", name="b.txt")
    async with working(dev_server) as (api, _, tenant):
        run = await api.start(Agent.of(agent("long")), {"files": [file, own]}, sender="ann", tenant=tenant)
        await run.result(HANG)
        for sender, media in (("bob", file), ("ann", own)):
            schedule = api.schedule(f"of-{sender}", tenant=tenant)
            await schedule.create("reporter", {"template": media.value.as_json()}, every="365d", sender=sender)
        await until_listed(api, tenant, 1)
        async with asyncio.timeout(HANG):
            while True:  # the index is a moment late
                if len([each async for each in api.list_schedules(tenant=tenant)]) == 2:
                    break
                await asyncio.sleep(0.05)
        report = await api.erase(tenant=tenant, sender="ann")
        assert (report.runs, report.files) == ([run.id], 1)
        assert {(each.what, each.id) for each in report.remaining} == {("schedule", "of-ann"), ("file", file.digest)}
        assert (await api.load_media(file.value.as_json(), tenant=tenant)).read() == b"a template"


async def breaks(*_: Any) -> None:
    raise ConnectionError


async def test_r24_5_an_erasure_that_is_broken_off_anywhere_is_completed_when_it_is_repeated(
    dev_server: WorkflowEnvironment, storage: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "audit.jsonl"
    monkeypatch.setenv("PERDURE_AUDIT", f"file:{log}")
    file = Media(data=b"a file", name="a.txt")
    async with working(dev_server, audit=f"file:{log}") as (api, _, tenant):
        run = await api.start(Agent.of(agent("long")), {"files": [file]}, sender="ann", tenant=tenant)
        await run.result(HANG)
        session = api.session("own", tenant=tenant, agent=Agent.of(agent("long")))
        await session.ask("hello", sender="ann", timeout=HANG)
        await until_listed(api, tenant, 2)
        deletes = Eraser._erase_histories

        async def breaks_in_the_middle(eraser: Eraser, executions: Any) -> None:
            await deletes(eraser, [*executions][:1])
            raise ConnectionError

        steps = [("_erase_stored", breaks), ("_erase_histories", breaks), ("_erase_histories", breaks_in_the_middle)]
        for step, broken in steps:
            with monkeypatch.context() as patch:
                patch.setattr(Eraser, step, broken)
                with pytest.raises(ConnectionError):
                    await api.erase(tenant=tenant, sender="ann", by="bob")
        report = await api.erase(tenant=tenant, sender="ann", by="bob")
        assert (report.runs, report.sessions, report.remaining) == ([run.id], ["own"], [])
        assert not values(storage)
        found = await erasures(log)
    assert [(each["by"], each["data"].get("complete", False)) for each in found] == [
        ("bob", False),
        ("bob", False),
        ("bob", False),
        ("bob", False),
        ("bob", True),
    ]


async def test_r24_5_a_deleted_session_leaves_no_value(dev_server: WorkflowEnvironment, storage: Path) -> None:
    async with working(dev_server) as (api, _, tenant):
        session = api.session("ann", tenant=tenant, agent=Agent.of(agent("long")))
        await session.ask("hello", sender="ann", timeout=HANG)
        await until_listed(api, tenant, 1)
        assert values(storage)
        await session.delete(sender="ann")
        assert not values(storage)


@pytest.mark.usefixtures("storage")
async def test_r24_5_a_result_stays_while_an_open_session_replays_it(dev_server: WorkflowEnvironment) -> None:
    gate = Gate()

    def model(request: ChatRequest) -> dict[str, Any]:
        return {"calls": [{"_tool": "hold"}], "output": None} if "bob: hold" in request.text else CALLS

    document = agent("long", "hold", config={"max_requests": 1}, schema={"type": "integer"})
    async with working(dev_server, script=model, tools=[gate.tool]) as (api, _, tenant):
        session = api.session("team", tenant=tenant, agent=Agent.of(document))
        receipt = await session.send("fetch it", sender="ann")
        held = await session.send("hold", sender="bob", mode="followup")
        await gate.asked.wait()
        left: dict[str, str] = {}
        async with asyncio.timeout(HANG):
            while receipt.run_id not in left:  # the lists are a moment late
                report = await api.erase(tenant=tenant, sender="ann")
                assert report.session_runs == []
                left = {each.id: each.why for each in report.remaining}
        assert left[receipt.run_id].startswith(f"the open workflow {session.id} reads this run's result")
        reset = ResetWorkflowExecutionRequest(
            namespace=api.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=session.id),
            workflow_task_finish_event_id=await newest_task(session.handle),
            request_id=uuid.uuid4().hex,
        )
        await api.client.workflow_service.reset_workflow_execution(reset)
        report = await api.erase(tenant=tenant, sender="ann")  # the reset session replays it too
        assert (report.session_runs, {each.id: each.why for each in report.remaining}) == ([], left)
        gate.open.set()
        await session.wait(held, HANG)
        async with asyncio.timeout(HANG):
            while not report.session_runs:  # until the idle session has continued as new
                report = await api.erase(tenant=tenant, sender="ann")


@pytest.mark.usefixtures("storage")
async def test_r24_5_a_key_rotation_is_no_use_of_a_session(dev_server: WorkflowEnvironment) -> None:
    async with working(dev_server) as (api, _, tenant):
        session = api.session("idle", tenant=tenant, agent=Agent.of(agent("long")))

        async def wait_for_next_execution(known: str) -> str:
            """Return the newest execution once the lists have it, and it is not the known one."""
            async with asyncio.timeout(HANG):
                while True:
                    listed = api.client.list_workflows(f"WorkflowId = '{session.id}' AND ExecutionStatus = 'Running'")
                    found = [each.run_id async for each in listed if each.run_id != known]
                    if found and (await session.handle.describe()).run_id == found[0]:
                        return found[0]
                    await asyncio.sleep(0.05)

        async def old_sessions(before: datetime) -> list[str]:
            return (await api.erase(tenant=tenant, before=before, dry_run=True)).sessions

        await session.ask("hello", sender="ann", timeout=HANG)
        described = await session.handle.describe()
        newest = await wait_for_next_execution(described.raw_description.workflow_execution_info.first_run_id)
        await until_listed(api, tenant, 1)
        before = datetime.now(UTC)
        assert await old_sessions(before) == ["idle"]
        for _ in range(2):
            await session.handle.signal(REWRITE)
            newest = await wait_for_next_execution(newest)
            assert await old_sessions(before) == ["idle"]
        await until_only(api.client, newest)  # as after the namespace's retention
        age = timedelta(seconds=1)
        assert await retention_ends(api.client, {"*": "1s"}, before + age) == {tenant: before}
        await session.ask("hello again", sender="ann", timeout=HANG)
        await wait_for_next_execution(newest)
        assert await old_sessions(before) == []


async def test_r24_5_an_erasure_without_a_person_and_a_time_is_refused(dev_server: WorkflowEnvironment) -> None:
    with pytest.raises(RunError, match="sender and before are missing"):
        await Perdure(dev_server.client).erase(tenant="acme")


async def test_r24_5_a_stored_value_leaves_with_its_last_owner(tmp_path: Path) -> None:
    storage, payload = FileStorage(tmp_path), Payload(data=b"x" * 100)

    def of(id: str) -> StorageDriverStoreContext:
        return StorageDriverStoreContext(target=StorageDriverWorkflowInfo(namespace="default", id=id))

    [claim] = await storage.store(of("a"), [payload])
    assert await storage.store(of("b"), [payload]) == [claim]
    assert await storage.erase_owned("default", "a", dry_run=True) == 0
    assert await storage.erase_owned("default", "a") == 0
    assert len(values(tmp_path)) == 1
    assert await storage.erase_owned("other", "b") == 0
    assert await storage.erase_owned("default", "b", dry_run=True) == 1
    assert await storage.erase_owned("default", "b") == 1
    assert values(tmp_path) == []
    assert await storage.erase_owned("default", "b") == 0


@given(st.text(min_size=1), st.booleans())
@settings(max_examples=50, deadline=None)
def test_r24_5_a_sender_of_any_name_is_found_in_a_history(sender: str, ascii: bool) -> None:
    text = json.dumps([{"sender": sender, "text": '{"sender":"nobody"}'}], ensure_ascii=ascii)
    assert _senders_in(text.encode(errors="surrogatepass")) == {sender}


@pytest.mark.usefixtures("storage")
async def test_r24_5_runs_of_others_whose_ids_begin_alike_stay(dev_server: WorkflowEnvironment) -> None:
    document = Agent.of(agent("long"))
    async with working(dev_server) as (api, _, tenant):
        mine = await api.start(document, id=f"{tenant}-order", sender="ann", tenant=tenant)
        same = await api.start(document, id=f"{mine.id}/bob", sender="bob", tenant=tenant)
        other = await api.start(document, id=f"{mine.id}/other", sender="ann", tenant=f"{tenant}-other")
        for run in (mine, same, other):
            await run.result(HANG)
        await until_listed(api, tenant, 2)
        await until_listed(api, f"{tenant}-other", 1)
        report = await api.erase(tenant=tenant, sender="ann")
        assert (report.runs, report.executions) == ([mine.id], 1)
        assert [(await run.view()).status for run in (same, other)] == ["completed"] * 2


@tool
def cancel(item: str) -> str:
    """Cancel an order."""
    return f"{item} is cancelled"


@tool(undo=cancel)
def order(item: str) -> str:
    """Order an item."""
    return f"{item} is ordered"


async def test_r24_5_undo_runs_leave_with_a_person_and_with_a_session(dev_server: WorkflowEnvironment) -> None:
    """A client, or the run itself, starts an undo run, and the undo of a delegate's run has its id below another run's."""
    boss = Agent("boss", tools=[order, Agent("clerk", tools=[order])])
    failing = Agent("failing", tools=[order], on_failure="undo", max_requests=1)

    def model(request: ChatRequest) -> Any:
        if "is ordered" in request.text:
            return {"calls": [], "output": "done"}
        wants_order = "CLERK" in request.text or "FAIL" in request.text
        call = {"_tool": "order", "item": "a pear"} if wants_order else {"_tool": "clerk", "request": "CLERK"}
        return {"calls": [{**call, "_outputPath": "†state.it"}], "output": None}

    client = Client(**dev_server.client.config() | {"namespace": await new_namespace(dev_server.client)})

    async with harness(client, [order, cancel], model) as it:
        api, tenant = Perdure(client, task_queue=it.task_queue), f"tenant-{uuid.uuid4().hex[:8]}"
        run = await api.start(boss, "Order.", id="alone", sender="ann", tenant=tenant)
        await run.result(HANG)
        undone = await api.start(failing, "FAIL", id="failing", sender="ann", tenant=tenant)
        assert (await undone.wait()).status == "failed"
        session = api.session("own", tenant=tenant, agent=boss)
        await session.ask("Order.", sender="ann", timeout=HANG)
        top = str((await session.show()).entries[-1]["runId"])
        for id in (run.id, top):
            assert (await (await api.get_run(id).undo()).wait()).status == "completed"
        undos = {f"{each}.undo-1" for each in (run.id, f"{run.id}/1.0", undone.id, top, f"{top}/1.0")}
        await until_left(client, run.id, f"{run.id}/1.0", undone.id, session.id, top, f"{top}/1.0", *undos)
        report = await api.erase(tenant=tenant, sender="ann")
        assert (report.sessions, report.session_runs) == (["own"], [])
        await until_left(client)


@tool(safe=True)
def look(n: int) -> str:
    """Look."""
    return f"looked {n} times"


@tool(dangerous=True)
def pay(euros: int) -> str:
    """Pay."""
    return f"{euros} euros paid"


async def test_r24_5_an_age_counts_from_the_end_of_the_whole_run(impatient_server: WorkflowEnvironment) -> None:
    """A run goes on in another execution than the first, and its delegate has ended."""
    boss = Agent("boss", tools=[look, pay, Agent("clerk", tools=[order])])

    def turn(**call: Any) -> Any:
        return {"calls": [call], "output": None}

    looks = [turn(_tool="look", n=n, _outputPath="†state.it") for n in range(4)]
    turns = {
        False: iter([turn(_tool="clerk", request="CLERK"), *looks, turn(_tool="pay", euros=5), DONE]),
        True: iter([turn(_tool="order", item="a pear"), DONE]),
    }

    def model(request: ChatRequest) -> Any:
        return next(turns["CLERK" in request.messages[1]["content"]])

    client = Client(**impatient_server.client.config() | {"namespace": await new_namespace(impatient_server.client)})
    async with harness(client, [order, cancel, look, pay], model) as it:
        api, tenant = Perdure(client, task_queue=it.task_queue), f"tenant-{uuid.uuid4().hex[:8]}"
        run = await api.start(boss, "Order.", id="alone", sender="ann", tenant=tenant)
        await it.until_waiting(run.id, "6.0")
        ended = 0
        async with asyncio.timeout(HANG):
            while ended < 2:  # an execution of the run, and the delegate
                ended = len({each.id async for each in client.list_workflows("CloseTime IS NOT NULL")})
        begun = datetime.now(UTC)
        nothing = await api.erase(tenant=tenant, before=begun)
        assert (nothing.runs, nothing.executions) == ([], 0)
        await run.approve("6.0")
        assert (await run.wait()).status == "completed"
        assert [(each.call, each.status) for each in await run.effects()] == [
            ("1.0", "done"),
            ("6.0", "cannot be undone"),
        ]
        assert (await api.erase(tenant=tenant, before=begun)).runs == []
        await until_left(client, run.id, f"{run.id}/1.0")
        assert (await api.erase(tenant=tenant, before=datetime.now(UTC))).runs == [run.id]
        await until_left(client)


@tool(dangerous=True)
def take_back(item: str) -> str:
    """Take an item back."""
    return f"{item} is taken back"


@tool(undo=take_back)
def buy(item: str) -> str:
    """Buy an item."""
    return f"{item} is bought"


async def test_r24_5_a_run_that_is_being_undone_is_not_old(dev_server: WorkflowEnvironment) -> None:
    """The undo needs the runs of its delegates, and the next undo needs the record of this one."""
    boss = Agent("boss", tools=[buy, Agent("clerk", tools=[buy])])

    def model(request: ChatRequest) -> Any:
        if "is bought" in request.text:
            return {"calls": [], "output": "done"}
        if "CLERK" in request.text:
            return {"calls": [{"_tool": "buy", "item": "a pear", "_outputPath": "†state.it"}], "output": None}
        asks = {"_tool": "clerk", "request": "CLERK", "_outputPath": "†state.it"}
        return {"calls": [asks, {"_tool": "buy", "item": "†state.it", "_outputPath": "†state.more"}], "output": None}

    client = Client(**dev_server.client.config() | {"namespace": await new_namespace(dev_server.client)})
    async with harness(client, [buy, take_back], model) as it:
        api, tenant = Perdure(client, task_queue=it.task_queue), f"tenant-{uuid.uuid4().hex[:8]}"
        run = await api.start(boss, "Order.", id="alone", sender="ann", tenant=tenant)
        await run.result(HANG)
        session = api.session("own", tenant=tenant, agent=boss)
        await session.ask("Order.", sender="ann", timeout=HANG)
        top = api.get_run(str((await session.show()).entries[-1]["runId"]))
        undos = [await each.undo() for each in (run, top)]
        for each in undos:
            await it.until_waiting(each.id, "0.0")
        left = [f"{each.id}{more}" for each in (run, top) for more in ("", "/1.0", ".undo-1")]
        await until_left(client, *left, session.id)
        assert (await api.erase(tenant=tenant, before=datetime.now(UTC))).executions == 0
        for each, undo in zip((run, top), undos, strict=True):
            await undo.approve("0.0")
            below = f"{each.id}/1.0.undo-1"
            await it.until_waiting(below, "0.0")
            await api.get_run(below).approve("0.0")
            assert (await undo.wait()).status == "completed"
            assert [effect.status for effect in await each.effects()] == ["undone"] * 2
