"""Agents as MCP tools, played by that protocol's own client over streamable HTTP, and long ones as tasks (R17.4)."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, ElicitResult, ResourceTemplateReference
from temporalio.client import Client as Temporal
from temporalio.testing import WorkflowEnvironment

from perdure import Image, Media, Perdure, tool
from perdure.gateway.mcp._context import TASKS
from perdure.gateway.mcp._elicitation import read_state
from perdure.gateway.mcp.adapter import mcp_adapter
from perdure.hosting.connection import data_converter
from perdure.testing.scripted_model import ChatRequest
from tests.gateway.support import Served, bearer, gateway, some_name, write_agents, write_tokens
from tests.support import ROOT, harness, storage_fixture
from tests.timeouts import HANG
from tests.workflows.test_media import PDF, PNG, connect

pytestmark = pytest.mark.asyncio(loop_scope="session")
storage = storage_fixture()
OBJECT = {"type": "object"}
ADDS = {
    "name": "adder",
    "description": "Adds two numbers.",
    "context": [
        {"type": "system", "text": "Add."},
        {
            "type": "input",
            "schema": {
                **OBJECT,
                "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
                "required": ["a", "b"],
            },
        },
        {"type": "tool", "tool": "add"},
    ],
    "schema": {**OBJECT, "properties": {"sum": {"type": "number"}}, "required": ["sum"]},
}
PAYS = {"name": "payer", "context": [{"type": "system", "text": "Pay."}, {"type": "tool", "tool": "pay"}]}


@tool
def add(a: float, b: float) -> float:
    """Add."""
    return a + b


@tool(dangerous=True)
def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


def answer(request: ChatRequest) -> Any:
    if "Pay." in request.text:
        done = {"calls": [], "output": "†state.paid"}
        return (
            done
            if "paid 5" in request.text
            else {"calls": [{"_tool": "pay", "euros": 5, "_outputPath": "†state.paid"}], "output": None}
        )
    if '"s"' in request.text:
        return {"calls": [], "output": {"sum": "†state.s"}}
    return {"calls": [{"_tool": "add", "a": "†input.a", "b": "†input.b", "_outputPath": "†state.s"}], "output": None}


@asynccontextmanager
async def serving(
    server: WorkflowEnvironment, tmp_path: Path, tenant: str = "shop"
) -> AsyncIterator[tuple[Served, list[str]]]:
    tokens = write_tokens(
        tmp_path / "tokens.json", (tenant, "ann", ["*"]), (f"no-{tenant}", "eve", ["*"]), (tenant, "ron", ["read"])
    )
    agents = write_agents(tmp_path / "agents", ADDS, PAYS)
    async with (
        harness(server.client, [add, pay], answer) as it,
        gateway(
            server.client,
            [mcp_adapter],
            task_queue=it.task_queue,
            agents=agents,
            gateway_tokens=tmp_path / "tokens.json",
        ) as at,
    ):
        yield at, tokens


@asynccontextmanager
async def client(at: Served, token: str, **options: Any) -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers=bearer(token), timeout=HANG) as http,
        Client(streamable_http_client(f"{at.address}/mcp", http_client=http), **options) as found,
    ):
        yield found


async def modern(at: Served, token: str, method: str, *, header: str = "", **params: Any) -> Any:
    """One request of 2026-07-28 by a client that takes tasks and fills forms, for what the library's client does not send.

    `header`: what it names; empty: what the body does.
    """
    tasks: dict[str, Any] = {"extensions": {TASKS: {}}, "elicitation": {"form": {}}}
    meta = {"protocolVersion": "2026-07-28", "clientInfo": {"name": "tests", "version": "1"}}
    capabilities = params.pop("capabilities", tasks)
    headers = {
        **bearer(token),
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": method,
        "Mcp-Name": header or params.get("taskId") or params.get("name", ""),
    }
    whole = {f"io.modelcontextprotocol/{key}": each for key, each in meta.items()}
    params["_meta"] = {**whole, "io.modelcontextprotocol/clientCapabilities": capabilities}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answered = await at.http.post("/mcp", json=body, headers=headers)
    if answered.headers["content-type"].startswith("application/json"):
        return answered.json()
    return said(answered)


INITIALIZE: dict[str, Any] = {
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "tests", "version": "1"},
    },
}


async def post(at: Served, token: str, message: dict[str, Any], session: str = "") -> httpx2.Response:
    headers = {**bearer(token), "Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}
    if session:
        headers["Mcp-Session-Id"] = session
    return await at.http.post("/mcp", json={"jsonrpc": "2.0", **message}, headers=headers)


async def rpc(at: Served, token: str, method: str, **params: Any) -> Any:
    """One request as the protocol of 2025-11-25 writes it, for what the client has no words for."""
    return said(await post(at, token, {"id": 1, "method": method, "params": params}))


def said(answered: httpx2.Response) -> Any:
    assert answered.status_code == 200, answered.text
    if answered.headers["content-type"].startswith("application/json"):
        return answered.json()
    lines = [line[6:] for line in answered.text.splitlines() if line.startswith("data: ") and len(line) > 6]
    return json.loads(lines[-1])


async def test_r17_4_an_agent_is_a_tool_with_its_schemas_and_tells_how_far_it_is(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    async with serving(dev_server, tmp_path) as (at, tokens), client(at, tokens[0]) as mcp:
        tools = {each.name: each for each in (await mcp.list_tools()).tools}
        assert tools["adder"].input_schema["required"] == ["a", "b"]
        assert tools["adder"].output_schema == ADDS["schema"]
        assert tools["payer"].input_schema["required"] == ["request"]
        told: list[str | None] = []

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            del progress, total
            told.append(message)

        result = await mcp.call_tool("adder", {"a": 2, "b": 3}, progress_callback=progress)
        assert (result.is_error, result.structured_content) == (False, {"sum": 5})
        assert "1.0 add done" in told
        wrong = await mcp.call_tool("adder", {"a": "two"})
        assert wrong.is_error
        with pytest.raises(MCPError, match="adder") as nobody:
            await mcp.call_tool("subtracter", {})
        assert nobody.value.code == INVALID_PARAMS
        async with client(at, tokens[2]) as reader:
            refused = await reader.call_tool("adder", {"a": 1, "b": 1})
        assert refused.is_error
        assert "'ron' may not run an agent" in refused.content[0].text  # type: ignore[union-attr]


async def test_r17_4_a_long_one_is_a_task_which_waits_for_a_person_and_is_cancelled(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    async with serving(dev_server, tmp_path, some_name("shop")) as (at, tokens):
        ann, eve, *_ = tokens
        call = {"name": "payer", "arguments": {"request": "pay 5"}, "task": {"ttl": 60_000}}
        begun = (await rpc(at, ann, "tools/call", **call))["result"]["task"]
        id = begun["taskId"]
        assert begun["ttl"] is None
        assert begun["status"] in ("working", "input_required")
        async with asyncio.timeout(HANG):
            while (task := (await rpc(at, ann, "tasks/get", taskId=id))["result"])["status"] != "input_required":
                pass
        assert (task["statusMessage"], task["ttl"]) == ("waits for a person: 1.0 pay 5 EUR: pay is dangerous", None)
        assert (await rpc(at, eve, "tasks/get", taskId=id))["error"]["message"] == "the task does not exist"
        await at.gateway.perdure.get_run(id).approve("1.0")
        result = (await rpc(at, ann, "tasks/result", taskId=id))["result"]
        assert (result["content"][0]["text"], result["isError"]) == ("paid 5", False)
        assert (await rpc(at, ann, "tasks/get", taskId=id))["result"]["status"] == "completed"
        again = (await rpc(at, ann, "tasks/cancel", taskId=id))["error"]
        assert again["message"] == f"the task {id} has already ended: completed"
        other = (await rpc(at, ann, "tools/call", **call))["result"]["task"]["taskId"]
        cancelled = (await rpc(at, ann, "tasks/cancel", taskId=other))["result"]
        assert (cancelled["status"], cancelled["ttl"]) == ("cancelled", None)
        async with asyncio.timeout(HANG):
            while (
                not {
                    each["taskId"]: each["ttl"] for each in (await rpc(at, ann, "tasks/list"))["result"]["tasks"]
                }.items()
                >= {id: None, other: None}.items()
            ):
                pass
        assert (await rpc(at, eve, "tasks/list"))["result"]["tasks"] == []


async def test_r17_4_who_goes_away_cancels_a_call_that_is_no_task(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    async with serving(dev_server, tmp_path) as (at, tokens):
        async with client(at, tokens[0]) as mcp:
            calling = asyncio.create_task(mcp.call_tool("payer", {"request": "pay 5"}))
            perdure = at.gateway.perdure
            async with asyncio.timeout(HANG):
                while not (found := (await perdure.approvals(tenant="shop")).waiting):
                    pass
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
        view = await perdure.get_run(found[0].run_id).wait(HANG)
    assert view.status == "cancelled"


async def test_r10_1_a_key_names_the_run_of_a_call_in_a_session(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    async with serving(dev_server, tmp_path) as (at, tokens):
        session = (await post(at, tokens[0], {**INITIALIZE, "id": 0})).headers["mcp-session-id"]
        call = {"name": "adder", "arguments": {"a": 1, "b": 2}, "_meta": {"perdure/key": "once"}}
        sent = [{"id": id, "method": "tools/call", "params": call} for id in (1, 2)]
        results = [said(await post(at, tokens[0], each, session))["result"] for each in sent]
    assert [each["isError"] for each in results] == [False, False], results
    assert results[0]["structuredContent"] == results[1]["structuredContent"]


async def test_a_call_with_a_key_outlives_its_connection(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    tenant = some_name("shop")
    async with serving(dev_server, tmp_path, tenant) as (at, tokens):
        perdure = at.gateway.perdure
        params = {"name": "payer", "arguments": {"request": "pay 5"}}
        keyed = {"id": 1, "method": "tools/call", "params": params | {"_meta": {"perdure/key": "once"}}}
        calls: list[asyncio.Task[Any]] = []
        runs: list[str] = []
        for call in (keyed, {"id": 2, "method": "tools/call", "params": params}):
            calls.append(asyncio.create_task(post(at, tokens[0], call)))
            async with asyncio.timeout(HANG):
                while len(runs) < len(calls):
                    waiting = (await perdure.approvals(tenant=tenant)).waiting
                    runs += [each.run_id for each in waiting if each.run_id not in runs]
        for each in calls:
            each.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert (await perdure.get_run(runs[1]).wait(HANG)).status == "cancelled"
        again = asyncio.create_task(post(at, tokens[0], keyed))
        await perdure.get_run(runs[0]).approve("1.0")
        result = said(await again)["result"]
    assert (result["isError"], result["content"][0]["text"]) == (False, "paid 5")


async def test_r17_4_a_call_is_cancelled_by_its_session_and_request_through_any_gateway(
    dev_server: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(dev_server, tmp_path) as (at, tokens):
        perdure = at.gateway.perdure
        given = {"agents": tmp_path / "agents", "gateway_tokens": tmp_path / "tokens.json"}
        async with gateway(dev_server.client, [mcp_adapter], task_queue=perdure.task_queue, **given) as other:
            begun = await post(at, tokens[0], {**INITIALIZE, "id": 0})
            session = begun.headers["mcp-session-id"]
            assert said(begun)["result"]["serverInfo"]["version"] == version("perdure")

            async def cancel(gateway: Served, token: str, session: str, id: object) -> None:
                note = {"method": "notifications/cancelled", "params": {"requestId": id, "reason": "enough"}}
                assert (await post(gateway, token, note, session)).status_code == 202

            for id, near in ((7, at), (8, other)):
                call = {"id": id, "method": "tools/call", "params": {"name": "payer", "arguments": {"request": "pay"}}}
                calling = asyncio.create_task(post(at, tokens[0], call, session))
                async with asyncio.timeout(HANG):
                    while not (found := (await perdure.approvals(tenant="shop")).waiting):
                        pass
                run = perdure.get_run(found[0].run_id)
                # Another sender's, another session's, another request's, and one of no session: they mean another call.
                if near is at:  # for each a gateway waits until the call could have begun
                    strangers = ((tokens[1], session, id), (tokens[0], "other", id), (tokens[0], "", id))
                    with monkeypatch.context() as patch:
                        patch.setattr("perdure.gateway.mcp._methods._FOUND_WITHIN", 0.5)
                        await asyncio.gather(*(cancel(at, *stranger) for stranger in strangers))
                assert (await run.view()).status == "running"
                await cancel(near, tokens[0], session, id)
                assert (await run.wait(HANG)).status == "cancelled"
                assert said(await calling)["result"]["isError"] is True


async def test_r21_3_the_user_of_a_client_approves_a_call_by_a_form(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    forms: list[str] = []
    states: list[str] = []

    async def approve(context: Any, params: Any) -> ElicitResult:
        del context
        forms.append(params.message)
        return ElicitResult(action="accept", content={"decision": "approve"})

    async def close(context: Any, params: Any) -> ElicitResult:
        del context, params
        return ElicitResult(action="cancel")

    tenant = some_name("shop")
    async with serving(dev_server, tmp_path, tenant) as (at, tokens):
        async with client(at, tokens[0], elicitation_callback=approve) as mcp:
            paid = await mcp.call_tool("payer", {"request": "pay 5"})
        assert (paid.is_error, paid.content[0].text) == (False, "paid 5")  # type: ignore[union-attr]
        assert forms == ['pay 5 EUR: pay is dangerous\n{"euros":5}\npay.euros ← model']
        async with client(at, tokens[0], elicitation_callback=close) as mcp:
            closed = await mcp.call_tool("payer", {"request": "pay 5"})
        assert "made none" in closed.content[0].text  # type: ignore[union-attr]
        [waiting] = (await at.gateway.perdure.approvals(tenant=tenant)).waiting
        await at.gateway.perdure.get_run(waiting.run_id).cancel()
        # The state of a call: another tenant's, and another tool's, is none.
        call: dict[str, Any] = {"name": "payer", "arguments": {"request": "pay 5"}}
        call["capabilities"] = {"elicitation": {}}
        asked = (await modern(at, tokens[0], "tools/call", **call))["result"]
        assert (asked["resultType"], [*asked["inputRequests"]]) == ("input_required", ["pay"])
        states.append(asked["requestState"])
        again: dict[str, Any] = {"requestState": states[0], "inputResponses": {"pay": {"action": "decline"}}}
        for token, tool in ((tokens[1], "payer"), (tokens[0], "adder")):
            wrong = (await modern(at, token, "tools/call", **call | again | {"name": tool}))["error"]
            assert (wrong["code"], wrong["message"][:12]) == (INVALID_PARAMS, "requestState")
        forged = await modern(at, tokens[0], "tools/call", **call | again | {"requestState": "e30="})
        assert forged["error"]["message"].startswith("requestState")
        # A retry without an answer is asked again.
        missing = (await modern(at, tokens[0], "tools/call", **call | {"requestState": states[0]}))["result"]
        assert [*missing["inputRequests"]] == ["pay"]
        await modern(at, tokens[0], "tools/call", **call | again)
        run = at.gateway.perdure.get_run(read_state(states[0])[0])
        await run.cancel()
        ends = [event.data async for event in run.events(topics=["approval"]) if event.phase == "end"]
        assert (ends[0]["decision"], ends[0]["by"]) == ("reject", "ann")


async def test_r21_3_a_call_of_2026_is_a_task_whose_user_decides(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    tenant = some_name("shop")
    async with serving(dev_server, tmp_path, tenant) as (at, tokens):
        ann, eve, ron = tokens
        begun = (await modern(at, ann, "tools/call", name="payer", arguments={"request": "pay 5"}))["result"]
        assert (begun["resultType"], begun["ttlMs"]) == ("task", None)
        id = begun["taskId"]

        async def until(status: str) -> Any:
            async with asyncio.timeout(HANG):
                while (task := (await modern(at, ann, "tasks/get", taskId=id))["result"])["status"] != status:
                    pass
            return task

        [(key, form)] = (await until("input_required"))["inputRequests"].items()
        assert (form["method"], form["params"]["requestedSchema"]["required"]) == ("elicitation/create", ["decision"])
        # A client without forms, or whose token may not approve, is not asked.
        without_forms: dict[str, Any] = {"capabilities": {"extensions": {TASKS: {}}}}
        for token, more in ((ann, without_forms), (ron, {})):
            seen = (await modern(at, token, "tasks/get", taskId=id, **more))["result"]
            assert (seen["status"], "inputRequests" in seen) == ("working", False)
            assert "waits for a person" in seen["statusMessage"]
        approved: dict[str, Any] = {"inputResponses": {key: {"action": "accept", "content": {"decision": "approve"}}}}
        assert (await modern(at, eve, "tasks/update", taskId=id, **approved))["error"]["code"] == INVALID_PARAMS
        assert "may not decide" in (await modern(at, ron, "tasks/update", taskId=id, **approved))["error"]["message"]
        undeclared = await modern(at, ann, "tasks/get", taskId=id, capabilities={})
        assert undeclared["error"]["code"] == -32021
        assert (await modern(at, ann, "tasks/get", header="other", taskId=id))["error"]["code"] == -32020
        for method in ("tasks/list", "tasks/result"):
            assert (await modern(at, ann, method, taskId=id))["error"]["code"] == -32601
        assert (await modern(at, ann, "tasks/update", taskId=id, **approved))["result"]["resultType"] == "complete"
        done = await until("completed")
        assert done["result"]["content"][0]["text"] == "paid 5"
        assert (await modern(at, ann, "tasks/cancel", taskId=id))["result"]["resultType"] == "complete"
        assert (await rpc(at, ann, "tasks/update", taskId=id, **approved))["error"]["code"] == -32601


async def test_r21_3_runs_and_plans_are_resources_and_agents_prompts(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    tenant = some_name("shop")
    async with serving(dev_server, tmp_path, tenant) as (at, tokens):
        perdure = at.gateway.perdure
        async with client(at, tokens[0]) as mcp:
            await mcp.call_tool("adder", {"a": 2, "b": 3})
            async with asyncio.timeout(HANG):
                while not (listed := (await mcp.list_resources()).resources):
                    pass
            run, plan = listed
            assert run.description is not None
            assert run.description.startswith("adder, completed")
            [shown] = (await mcp.read_resource(run.uri)).contents
            assert json.loads(shown.text)["output"] == {"sum": 5}  # type: ignore[union-attr]
            [calls] = (await mcp.read_resource(plan.uri)).contents
            assert [call["tool"] for call in json.loads(calls.text)] == ["add"]  # type: ignore[union-attr]
            session = perdure.session("a b", tenant=tenant, agent=at.gateway.agents.get("adder"))
            await session.begin()
            [entries] = (await mcp.read_resource("perdure:///sessions/a%20b/transcript")).contents
            assert isinstance(json.loads(entries.text), list)  # type: ignore[union-attr]
            templates = [each.uri_template for each in (await mcp.list_resource_templates()).resource_templates]
            ids = await mcp.complete(
                ResourceTemplateReference(uri=templates[0]), {"name": "run", "value": run.name[4:9]}
            )
            assert run.name.removeprefix("run ") in ids.completion.values
            prompts = {each.name: each for each in (await mcp.list_prompts()).prompts}
            assert [each.name for each in prompts["adder"].arguments or ()] == ["a", "b"]
            adder = await mcp.get_prompt("adder", {"a": "2", "b": "3"})
            assert [each.content.text for each in adder.messages] == ["Add.", '{"a":2,"b":3}']  # type: ignore[union-attr]
            payer = await mcp.get_prompt("payer", {"request": "pay 5"})
            assert payer.messages[-1].content.text == "pay 5"  # type: ignore[union-attr]
            for name, arguments, words in (
                ("nobody", {}, "is not a known prompt"),
                ("adder", {"a": "two", "b": "3"}, "arguments.a: expected JSON of the type number"),
                ("adder", {"a": "2"}, "'b'"),
            ):
                with pytest.raises(MCPError, match=words):
                    await mcp.get_prompt(name, arguments)
            for uri in ("perdure:///runs/none", "file:///etc/passwd", "perdure:///sessions/none/transcript"):
                with pytest.raises(MCPError, match="no such resource"):
                    await mcp.read_resource(uri)
        async with client(at, tokens[1]) as other:
            assert (await other.list_resources()).resources == []
            with pytest.raises(MCPError, match="no such resource"):
                await other.read_resource(run.uri)


async def test_the_client_of_the_docs_runs(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "gateway" / "mcp.md").read_text(encoding="utf-8")
    script = page.split("```python\n")[1].split("```")[0]
    async with serving(dev_server, tmp_path) as (at, tokens):
        env = {**os.environ, "PERDURE_GATEWAY": at.address, "PERDURE_TOKEN": tokens[0]}
        ran = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await asyncio.wait_for(ran.communicate(), HANG)
    assert ran.returncode == 0, err.decode()
    assert out.decode().splitlines() == ["['adder', 'payer']", "{'sum': 5.0}"]


@pytest.mark.usefixtures("storage")
async def test_r20_3_the_files_of_an_output_are_contents(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    temporal = await connect(dev_server)
    files = [Image(data=PNG, name="a.png"), Media(data=PDF, name="b c.pdf"), Image(data=PNG, name="again.png")]
    values = await Perdure(temporal).save_media(*files, tenant="shop")
    gone = {**values[0], "_media": f"sha256:{'0' * 64}"}  # type: ignore[dict-item]
    [token] = write_tokens(tmp_path / "tokens.json", ("shop", "ann", ["*"]))
    agents = write_agents(tmp_path / "agents", {"name": "drawer", "context": [{"type": "system", "text": "Draw."}]})
    given: dict[str, Any] = {"agents": agents, "gateway_tokens": tmp_path / "tokens.json"}
    async with (
        harness(temporal, [], [{"output": {"files": [*values, gone]}}]) as it,
        gateway(temporal, [mcp_adapter], task_queue=it.task_queue, **given) as at,
        client(at, token) as mcp,
    ):
        result = await mcp.call_tool("drawer", {})
    text, picture, document = result.content
    assert (picture.type, base64.b64decode(picture.data)) == ("image", PNG)  # type: ignore[union-attr]
    assert base64.b64decode(document.resource.blob) == PDF  # type: ignore[union-attr]
    assert values[0]["_media"] in text.text  # type: ignore[union-attr,index,call-overload]


@pytest.mark.usefixtures("storage")
async def test_r18_3_a_large_output_is_returned_whole(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    temporal = await connect(dev_server)
    [token] = write_tokens(tmp_path / "tokens.json", ("shop", "ann", ["*"]))
    agents = write_agents(tmp_path / "agents", {"name": "lister", "context": [{"type": "tool", "tool": "read_rows"}]})
    given: dict[str, Any] = {"agents": agents, "gateway_tokens": tmp_path / "tokens.json"}
    rows = ["x" * 100] * 20_000

    @tool(safe=True)
    def read_rows() -> list[str]:
        """Read all rows."""
        return rows

    script = [
        {"calls": [{"_tool": "read_rows", "_outputPath": "†state.rows"}], "output": None},
        {"calls": [], "output": {"rows": "†state.rows"}},
    ]
    async with (
        harness(temporal, [read_rows], script) as it,
        gateway(temporal, [mcp_adapter], task_queue=it.task_queue, **given) as at,
        client(at, token) as mcp,
    ):
        result = await mcp.call_tool("lister", {})
    assert not result.is_error, result.content
    assert result.structured_content == {"rows": rows}


async def test_an_answer_says_nothing_of_what_stands_behind_the_gateway(
    dev_server: WorkflowEnvironment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = dev_server.client.service_client.config.target_host
    temporal = await Temporal.connect(address, namespace="hidden", data_converter=data_converter())
    [token] = write_tokens(tmp_path / "tokens.json", ("shop", "ann", ["*"]))
    given: dict[str, Any] = {
        "agents": write_agents(tmp_path / "agents", ADDS),
        "gateway_tokens": tmp_path / "tokens.json",
    }
    async with gateway(temporal, [mcp_adapter], **given) as at:
        error = (await rpc(at, token, "resources/list"))["error"]
        called = (await rpc(at, token, "tools/call", name="adder", arguments={"a": 1, "b": 2}))["result"]
    words = "the gateway's Temporal server does not answer"
    assert (error["code"], error["message"]) == (-32603, words)
    assert (called["isError"], called["content"][0]["text"]) == (True, words)
    assert caplog.text.count("'hidden'") == 2
