"""The audit log, as an operator meets it (R24.4): entries from runs, sessions and the gateway, in one chain."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from temporalio import activity
from temporalio.client import WorkflowContinuedAsNewError, WorkflowFailureError, WorkflowHistory
from temporalio.exceptions import CancelledError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from perdure import tool
from perdure.client.histories import replay_history
from perdure.gateway.api.adapter import api
from perdure.gateway.openai.adapter import openai_adapter
from perdure.hosting.connection import data_converter
from perdure.rules import count_at_most
from perdure.runs.audit import AUDIT_ACTIVITY, AUDIT_WORKFLOW, RECORD, AuditBatch, audit_id, verify_chain
from perdure.runs.ledger import LEDGER_WORKFLOW, LedgerInput
from perdure.runs.standing_approvals import GRANT, StandingAnswer
from perdure.runs.wire import DECIDE, POLICY, REWRITE
from perdure.testing.scripted_model import ChatRequest, Turn
from perdure.values.json import Json, JsonObject
from perdure.workflows.ledger import LedgerWorkflow
from tests.gateway.support import bearer, gateway, write_agents, write_tokens
from tests.support import DONE, Harness, agent, failed_tasks, harness, impatient, perdure, serving
from tests.timeouts import HANG
from tests.workflows.test_session import desk

pytestmark = pytest.mark.asyncio(loop_scope="session")
impatient_server = impatient(60)


@tool(dangerous=True)
def remove(path: str) -> str:
    """Remove a file."""
    return f"removed {path}"


def plan(*paths: str) -> JsonObject:
    return {"calls": [{"_tool": "remove", "path": path} for path in paths], "output": None}


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def entries(path: Path, least: int) -> list[JsonObject]:
    """The entries of a log, once there are so many; the chain is whole."""
    texts: list[str] = []
    async with asyncio.timeout(HANG):
        while len(texts) < least:
            await asyncio.sleep(0.02)
            texts = lines_of(path)
    assert verify_chain(texts).last == len(texts)
    return [json.loads(text)["entry"] for text in texts]


async def decide(it: Harness, run_id: str, call: str, decision: str = "approve", **more: Any) -> None:
    await it.until_waiting(run_id, call)
    handle = it.client.get_workflow_handle(run_id)
    await handle.execute_update(DECIDE, {"call": call, "decision": decision, "by": "bob", **more})


async def test_a_sink_that_is_away_for_an_hour_gets_all_entries_in_their_order(
    time_skipping: WorkflowEnvironment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "away" / "audit.jsonl"
    rules = {"rules": [count_at_most("remove", 2).model_dump(mode="json", exclude_defaults=True)]}
    script = [plan("/a"), plan("/b"), plan("/c"), DONE]
    async with harness(time_skipping.client, [remove], script, audit=f"file:{path}") as it:
        handle = await it.start(agent("remove", config=rules))
        await it.until_waiting(handle.id, "1.0")
        await handle.signal(POLICY, {"ask": "always"})
        await handle.signal("approve", {"call": "7.0"})  # nothing of that name waits
        await decide(it, handle.id, "1.0", roles=["finance"], remember=False)
        await decide(it, handle.id, "2.0", "edit", params={"path": "/secret"})
        await handle.result()
        await time_skipping.sleep(3600)
        assert not path.exists()
        why = f"lines from 1 on could not be written; retrying: file:{path}: No such file or directory"
        assert why in caplog.text
        path.parent.mkdir()
        await time_skipping.sleep(120)
        found = await entries(path, 5)
    told = [(each["action"], each["by"], each["data"].get("call")) for each in found]
    assert told == [
        ("policy_change", "", None),
        ("refusal", "", "7.0"),
        ("decision", "bob", "1.0"),
        ("decision", "bob", "2.0"),
        ("refusal", "rule", "3.0"),
    ]
    assert found[2]["data"]["roles"] == ["finance"]
    assert {each["run"] for each in found} == {handle.id}
    assert len(found[2]["data"]["digest"]) == len(found[3]["data"]["changed"]) == 16
    assert "/secret" not in path.read_text()


async def test_a_timeout_decides_too_and_a_cancelled_run_loses_nothing(
    time_skipping: WorkflowEnvironment, tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    approval = {"approval": {"timeout": 60}}
    async with harness(
        time_skipping.client, [remove], [plan("/a"), plan("/b"), plan("/c")], audit=f"file:{path}"
    ) as it:
        handle = await it.start(agent("remove", config=approval))
        await it.until_waiting(handle.id, "1.0")
        await time_skipping.sleep(90)
        await decide(it, handle.id, "2.0", "reject", reason="still needed")
        await it.until_waiting(handle.id, "3.0")
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
        assert isinstance(caught.value.cause, CancelledError)
        found = await entries(path, 2)
    assert [(each["action"], each["by"]) for each in found] == [("decision", "timeout"), ("decision", "bob")]


async def test_without_a_sink_a_run_has_no_command_more_and_keeps_nothing(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [remove], [plan("/a"), DONE]) as it:
        handle = await it.start(agent("remove"))
        await decide(it, handle.id, "1.0")
        await handle.result()
        history = await handle.fetch_history()
    assert "perdure.audit" not in str(history)


async def test_the_log_continues_as_new_while_its_sink_is_away_and_no_entry_is_lost(
    impatient_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    path = tmp_path / "away" / "audit.jsonl"
    paths = [f"/{each}" for each in range(12)]
    script = [plan(*paths), DONE] * 2
    async with harness(impatient_server.client, [remove], script, audit=f"file:{path}") as it:
        for _ in range(2):
            handle = await it.start(agent("remove"))
            for each in range(12):
                await it.until_waiting(handle.id, *[f"1.{left}" for left in range(each, 12)])
                await handle.execute_update(DECIDE, {"call": f"1.{each}", "decision": "approve", "by": "bob"})
            await handle.result()
        log = impatient_server.client.get_workflow_handle(audit_id(it.task_queue))
        async with asyncio.timeout(HANG):  # the write that nobody takes is cancelled for it
            while not before(history := await log.fetch_history()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        path.parent.mkdir()
        found = await entries(path, 24)
        earlier = await impatient_server.client.get_workflow_handle(log.id, run_id=before(history)).fetch_history()
    assert [each["data"]["call"] for each in found] == [f"1.{each}" for each in range(12)] * 2
    await replay_history(earlier, data_converter())


async def test_r18_2_lines_that_are_too_many_bytes_for_one_write_are_written_in_parts(
    impatient_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    """An approver could stop the log of a task queue by decisions of a megabyte each."""
    path = tmp_path / "away" / "audit.jsonl"
    about = {"at": "2026-11-29T12:00:00.000+00:00", "action": "decision", "data": {"endorse": "x" * 1_200_000}}
    async with harness(impatient_server.client, [], [], audit=f"file:{path}") as it:
        client, id = it.client, audit_id(it.task_queue)
        log = await client.start_workflow(AUDIT_WORKFLOW, {}, id=id, task_queue=it.task_queue)
        for number in range(4):
            await log.signal(RECORD, {"entries": [{**about, "key": str(number)}]})
        await log.signal(REWRITE)  # the write that nobody takes is tried again with all lines
        path.parent.mkdir()
        found = await entries(path, 4)
        first = client.get_workflow_handle(id, run_id=log.first_execution_run_id)
        failed, history = await failed_tasks(first), await first.fetch_history()
    assert ([each["key"] for each in found], failed) == (["0", "1", "2", "3"], [])
    await replay_history(history, data_converter())


async def test_a_ledger_continues_as_new_once_the_log_has_all_changes(dev_server: WorkflowEnvironment) -> None:
    """The second grant comes while the first one is sent, in an execution that is to continue as new."""
    got: list[Json] = []
    asked, goes_on = asyncio.Event(), asyncio.Event()

    @activity.defn(name=AUDIT_ACTIVITY)
    async def takes(batch: AuditBatch) -> None:
        got.extend(each.data["name"] for each in batch.entries)
        asked.set()
        await goes_on.wait()

    client, queue = dev_server.client, f"ledger-{uuid.uuid4().hex[:8]}"
    terms = {"procedure": "monthly", "digest": f"sha256:{'0' * 64}", "uses": 2, "until": "2099-01-01", "by": "ann"}
    runner = UnsandboxedWorkflowRunner()
    async with (
        asyncio.timeout(HANG),
        Worker(client, task_queue=queue, workflows=[LedgerWorkflow], activities=[takes], workflow_runner=runner),
    ):
        ledger = await client.start_workflow(LEDGER_WORKFLOW, LedgerInput(tenant="acme"), id=queue, task_queue=queue)
        for name in ("first", "second"):
            answer = await ledger.execute_update(GRANT, {"name": name, **terms}, result_type=StandingAnswer)
            assert not answer.refused
            await asked.wait()
        await ledger.signal(REWRITE)
        goes_on.set()
        first = client.get_workflow_handle(queue, run_id=ledger.first_execution_run_id)
        with pytest.raises(WorkflowContinuedAsNewError):
            await first.result(follow_runs=False)
    assert got == ["first", "second"]


def before(history: WorkflowHistory) -> str:
    """The run id of the execution that this one continues; empty for the first one."""
    return history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id


async def test_the_gateway_records_rights_and_a_session_its_deletion(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    greeter: dict[str, Any] = agent() | {"name": "greeter"}
    agents = write_agents(tmp_path / "agents", greeter)
    tokens = write_tokens(tmp_path / "tokens.json", ("acme", "ann", ["*"]), ("acme", "eve", ["read"]))
    sink: dict[str, Any] = {"audit": f"file:{path}"}
    async with (
        harness(dev_server.client, [], [DONE] * 4, agents=agents, **sink) as it,
        gateway(
            dev_server.client,
            [api, openai_adapter],
            task_queue=it.task_queue,
            agents=agents,
            gateway_tokens=tmp_path / "tokens.json",
            **sink,
        ) as gate,
    ):
        ann, eve = (bearer(each) for each in tokens)
        assert (await gate.http.get("/v1/agents", headers=ann)).status_code == 200
        assert (await gate.http.delete("/v1/sessions/s", headers=eve)).status_code == 403
        body = {"agent": "greeter", "text": "hello"}
        assert (await gate.http.post("/v1/sessions/s/messages", json=body, headers=ann)).status_code < 300
        assert (await gate.http.delete("/v1/sessions/s", headers=ann)).status_code == 204
        response = await gate.http.post("/v1/responses", json={"model": "greeter", "input": "hello"}, headers=ann)
        cancelled = await gate.http.post(f"/v1/responses/{response.json()['id']}/cancel", headers=ann)
        assert cancelled.status_code == 200, cancelled.text
        found = await entries(path, 6)
    told = [(each["action"], each["by"], each["tenant"], each["data"].get("right")) for each in found]
    assert told == [
        ("refusal", "eve", "acme", "delete"),
        ("right_used", "ann", "acme", "send"),
        ("session_deletion", "ann", "acme", None),
        ("right_used", "ann", "acme", "delete"),
        ("right_used", "ann", "acme", "send"),
        ("right_used", "ann", "acme", "stop"),
    ]
    assert found[3]["data"]["status"] == 204


async def test_a_sessions_deletion_is_recorded_before_its_compaction_ends(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    path, summary, asked = tmp_path / "audit.jsonl", asyncio.Event(), asyncio.Event()

    def talkative(request: ChatRequest) -> Any:
        if "You keep the memory" in request.text:
            asked.set()
            return Turn("They spoke of many things.", dialect="tools", gate=summary)
        return {"calls": [], "output": "and so on, and so on. " * 6_000}

    async with desk(dev_server, talkative, audit=f"file:{path}") as (session, _):
        for number in range(3):
            await session.ask(f"say much {number}", sender="ann", timeout=HANG)
        async with asyncio.TaskGroup() as tasks:
            compaction = tasks.create_task(session.compact(sender="ann"))
            await asyncio.wait_for(asked.wait(), HANG)
            deletion = tasks.create_task(session.delete(sender="ann"))
            found = await entries(path, 1)
            assert not compaction.done()
            assert not deletion.done()
            summary.set()
    assert [(each["action"], each["by"]) for each in found] == [("session_deletion", "ann")]
    assert len(lines_of(path)) == 1


async def test_the_command_verifies_and_names_the_line(tmp_path: Path, time_skipping: WorkflowEnvironment) -> None:
    path = tmp_path / "audit.jsonl"
    async with harness(time_skipping.client, [remove], [plan("/a"), plan("/b"), DONE], audit=f"file:{path}") as it:
        handle = await it.start(agent("remove"))
        await decide(it, handle.id, "1.0")
        await decide(it, handle.id, "2.0")
        await handle.result()
        await entries(path, 2)
    whole = await perdure("audit", "verify", str(path))
    assert (whole.code, whole.out.startswith("lines 1 to 2 are complete and unchanged; the digest of line 2 is ")) == (
        0,
        True,
    )
    path.write_text(path.read_text().replace('"bob"', '"eve"'))
    broken = await perdure("audit", "verify", str(path))
    assert broken.code == 1
    assert "line 1 (number 1) was changed" in broken.err
    missing = await perdure("audit", "verify", str(tmp_path / "none"))
    assert (missing.code, "No such file" in missing.err) == (2, True)


async def test_an_undo_and_a_decision_at_the_command_line_name_who_it_was(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    client = dev_server.client
    env = {"TEMPORAL_ADDRESS": client.service_client.config.target_host, "USER": "", "LOGNAME": "carol"}

    @tool(undo="remove")
    def place(path: str) -> str:
        """Place a file."""
        return path

    script = [{"calls": [{"_tool": "place", "path": "/a"}], "output": {"ok": True}}]
    async with harness(client, [place, remove], script, audit=f"file:{path}") as it:
        handle = await it.start(agent("place"))
        await handle.result()
        undo = await perdure("undo", handle.id, "--yes", "--no-wait", "--by", "bob", env=env)
        assert undo.code == 0, undo.err
        run_id = undo.out.strip()
        await it.until_waiting(run_id, "0.0")
        approved = await perdure("approve", run_id, "0.0", env=env)
        assert approved.code == 0, approved.err
        found = await entries(path, 2)
    undone, decided = found
    assert (undone["action"], undone["by"], undone["run"]) == ("undo", "bob", run_id)
    assert undone["data"] == {"undoes": handle.id, "calls": ["1.0"]}
    assert (decided["action"], bool(decided["by"])) == ("decision", True)


class Receiver:
    """A collector of lines, and a receiver of OpenTelemetry's logs, which refuse the first request."""

    def __init__(self) -> None:
        self.headers: list[dict[str, str]] = []
        self.lines: list[str] = []
        self.app = Starlette(routes=[Route(path, self.take, methods=["POST"]) for path in ("/lines", "/v1/logs")])

    async def take(self, request: Request) -> Response:
        self.headers.append(dict(request.headers))
        if len(self.headers) == 1:
            return Response(status_code=503)
        body = (await request.body()).decode()
        if request.url.path == "/lines":
            self.lines += body.splitlines()
            return Response()
        # OpenTelemetry's own reader of the protocol, which refuses unknown fields and wrong types.
        export = ParseDict(json.loads(body), ExportLogsServiceRequest())
        for record in export.resource_logs[0].scope_logs[0].log_records:
            assert record.time_unix_nano > 0
            self.lines.append(record.body.string_value)
        return Response("{}", media_type="application/json")


@pytest.mark.parametrize("sink", ["/lines", "otel"])
async def test_a_collector_that_refuses_at_first_gets_each_line_in_the_chain(
    time_skipping: WorkflowEnvironment, sink: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = Receiver()
    async with serving(receiver.app) as address:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        place = "otel" if sink == "otel" else f"{address}{sink}"
        script = [plan("/a"), DONE]
        async with harness(time_skipping.client, [remove], script, audit=place, audit_token="secret") as it:
            handle = await it.start(agent("remove"))
            await decide(it, handle.id, "1.0")
            await handle.result()
            async with asyncio.timeout(HANG):
                while not receiver.lines:
                    await time_skipping.sleep(60)
    assert verify_chain(receiver.lines).last == len(receiver.lines) == 1
    assert json.loads(receiver.lines[0])["entry"]["by"] == "bob"
    assert receiver.headers[-1]["authorization"] == "Bearer secret"
    kind = "application/json" if sink == "otel" else "application/x-ndjson"
    assert receiver.headers[-1]["content-type"] == kind
