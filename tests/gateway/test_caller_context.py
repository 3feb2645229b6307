"""Who asks, at each adapter: the context is the token's or the application's, and never a body's (R19.1)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import Perdure, ToolContext, tool
from perdure.errors import SettingsError
from perdure.gateway import Caller, create_app
from perdure.gateway.agui.adapter import agui_adapter
from perdure.gateway.api.adapter import api
from perdure.gateway.callers import new_token
from perdure.gateway.http_server import serve_app
from perdure.gateway.mcp.adapter import mcp_adapter
from perdure.gateway.openai.adapter import openai_adapter
from perdure.hosting.settings import Settings, load, replace_settings
from perdure.testing.scripted_model import ChatRequest
from tests.gateway.support import Served, bearer, some_name, write_agents, write_tokens
from tests.gateway.test_mcp import INITIALIZE, post, rpc
from tests.support import Harness, harness
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")

ANN, BOB = {"customer": "C-17"}, {"customer": "C-18"}
FAKE = {"customer": "C-99", "sender": "root", "tenant": "other", "context": {"customer": "C-99"}}
TELLER: dict[str, Any] = {
    "name": "teller",
    "context": [{"type": "system", "text": "You say who asks."}, {"type": "tool", "tool": "who"}],
    "schema": {"type": "string"},
    "caller_context": {"properties": {"customer": {"type": "string"}}, "required": ["customer"]},
}

PAYER = TELLER | {"name": "payer", "config": {"rules": [{"rule": "needs", "role": "finance", "call": "who"}]}}


@tool(safe=True)
async def who(ctx: ToolContext) -> str:
    """Say who asks."""
    return f"<{ctx.tenant} {ctx.sender} {ctx.context.get('customer')}>"


def says(_: ChatRequest) -> Any:
    return {"calls": [{"_tool": "who", "_outputPath": "†state.who"}], "output": "{†state.who}"}


@dataclass
class At:
    served: Served
    it: Harness
    tokens: list[str]

    async def post(self, path: str, body: Any, token: int = 0, key: str = "") -> Any:
        sent = {**bearer(self.tokens[token]), **({"Idempotency-Key": key} if key else {})}
        return await self.served.http.post(path, json=body, headers=sent)


@asynccontextmanager
async def serving(server: WorkflowEnvironment, folder: Path, **more: Any) -> AsyncIterator[At]:
    people: Any = [("shop", "ann", ["*"], None, ANN), ("shop", "bob", ["*"], None, BOB), ("shop", "eve", ["*"])]
    people.append(("shop", "kim", ["*"], None, ANN, ["finance"]))
    tokens = write_tokens(folder / "tokens.json", *people)
    agents = write_agents(folder / "agents", TELLER, PAYER)
    settings: Settings = replace_settings(load(), {"agents": agents, "gateway_tokens": folder / "tokens.json"})
    async with harness(server.client, [who], says) as it:
        perdure = Perdure(server.client, task_queue=it.task_queue)
        app = create_app(perdure, settings, [api, agui_adapter, mcp_adapter, openai_adapter], **more)
        async with (
            serve_app(app, "gateway", "127.0.0.1", 0, stopping=app.state.gateway.stopping.set, grace=5.0) as address,
            httpx2.AsyncClient(base_url=address, timeout=HANG) as http,
        ):
            yield At(Served(address, app.state.gateway, http), it, tokens)


async def test_the_context_is_the_token_s_at_each_adapter(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with serving(dev_server, tmp_path) as at:
        begun = await at.post("/v1/runs", {"agent": "teller"})
        run = at.served.gateway.perdure.get_run(begun.json()["runId"])
        assert await run.result() == "<shop ann C-17>"

        session = some_name()
        sent = await at.post(f"/v1/sessions/{session}/messages", {"agent": "teller", "text": "Who?"}, 1)
        found = at.served.gateway.perdure.session(session, tenant="shop")
        assert await found.reply(sent.json()["messageId"], sender="bob") == "<shop bob C-18>"

        thread = {
            "threadId": some_name(),
            "runId": "r",
            "messages": [{"id": "m", "role": "user", "content": "Who?"}],
            "tools": [],
            "state": FAKE,
            "context": [{"description": "customer", "value": json.dumps(FAKE)}],
            "forwardedProps": FAKE,
        }
        answer = await at.post("/ag-ui/teller", thread)
        assert "<shop ann C-17>" in answer.text

        for body in ({"input": "Who?"}, {"input": "Who?", "metadata": {"customer": "C-99"}, "user": "root"}):
            response = (await at.post("/v1/responses", {"model": "teller", **body}, 1)).json()
            assert "<shop bob C-18>" in json.dumps(response, ensure_ascii=False)
        chat = {"model": "teller", "messages": [{"role": "user", "content": "Who?"}], "user": "root"}
        assert "<shop ann C-17>" in (await at.post("/v1/chat/completions", chat)).text

        await post(at.served, at.tokens[0], {"id": 0, **INITIALIZE})
        called = await rpc(at.served, at.tokens[0], "tools/call", name="teller", arguments={}, _meta=FAKE)
        assert "<shop ann C-17>" in json.dumps(called)


async def test_a_body_sets_none(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with serving(dev_server, tmp_path) as at:
        for path, body in (
            ("/v1/runs", {"agent": "teller", "context": ANN}),
            (f"/v1/sessions/{some_name()}/messages", {"agent": "teller", "text": "Who?", "context": ANN}),
        ):
            refused = await at.post(path, body, 2)
            assert refused.status_code == 422
            assert "context" in refused.json()["detail"]
        nobody = await at.post("/v1/runs", {"agent": "teller"}, 2)
        assert nobody.status_code == 422
        assert nobody.json()["detail"] == "the context breaks the agent's schema for it: $ lacks 'customer'"


async def test_r23_1_the_rule_needs_takes_the_roles_of_the_token_alone(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    async with serving(dev_server, tmp_path) as at:
        perdure = at.served.gateway.perdure
        kim = perdure.get_run((await at.post("/v1/runs", {"agent": "payer"}, 3)).json()["runId"])
        assert await kim.result() == "<shop kim C-17>"
        assert (await kim.view()).owner.context == ANN | {"roles": ["finance"]}
        session = some_name()
        sent = await at.post(f"/v1/sessions/{session}/messages", {"agent": "payer", "text": "Who?"}, 3)
        found = perdure.session(session, tenant="shop")
        assert await found.reply(sent.json()["messageId"], sender="kim") == "<shop kim C-17>"

        ann = perdure.get_run((await at.post("/v1/runs", {"agent": "payer"})).json()["runId"])
        await ann.wait()
        (call, *_) = (await ann.view()).calls
        assert (call.status, (call.error or {})["code"]) == ("invalid", "rule_broken")
        assert 'not have the role "finance"' in (call.error or {})["message"]
        body = {"agent": "payer", "context": {"roles": ["finance"]}}
        assert (await at.post("/v1/runs", body)).status_code == 422
        claims: Any = {"roles": ["finance"], "context": {"roles": ["finance"]}}
        thread: Any = {
            "threadId": some_name(),
            "runId": "r",
            "messages": [{"id": "m", "role": "user", "content": "Who?"}],
        }
        thread |= {"tools": [], "state": claims, "context": [], "forwardedProps": claims}
        answer = (await at.post("/ag-ui/payer", thread)).text
        assert '"code":"stuck"' in answer
        assert "<shop ann" not in answer


async def test_a_run_is_told_something_by_callers_of_its_context(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    async with serving(dev_server, tmp_path) as at:
        run_id = (await at.post("/v1/runs", {"agent": "teller"})).json()["runId"]
        refused = await at.post(f"/v1/runs/{run_id}/messages", {"text": "And mine?"}, 1)
        assert (refused.status_code, refused.json()["detail"]) == (
            409,
            "this run has another context: start another run",
        )


async def test_an_idempotency_key_is_that_of_one_context(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    known = {"shop": ANN}
    async with serving(dev_server, tmp_path, context_of=lambda caller: known[caller.tenant]) as at:
        key = some_name("k")
        first = await at.post("/v1/runs", {"agent": "teller"}, key=key)
        again = await at.post("/v1/runs", {"agent": "teller"}, key=key)
        assert first.json() == again.json()
        known["shop"] = BOB
        assert (await at.post("/v1/runs", {"agent": "teller"}, key=key)).status_code == 409


async def test_an_application_sets_the_context(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async def context_of(caller: Caller) -> Any:
        return {"customer": f"of {caller.sender}"}

    async with serving(dev_server, tmp_path, context_of=context_of) as at:
        run_id = (await at.post("/v1/runs", {"agent": "teller"}, 2)).json()["runId"]
        assert await at.served.gateway.perdure.get_run(run_id).result() == "<shop eve of eve>"


async def test_a_token_carries_one() -> None:
    text, entry = new_token("shop", "ann", ["read"], None, ANN)
    assert entry.caller.context == ANN
    with_roles = new_token("shop", "ann", ["read"], None, ANN, ["b", "a"])[1]
    assert with_roles.caller.context == ANN | {"roles": ["a", "b"]}
    own = new_token("shop", "ann", ["read"], None, {"roles": ["c"]}, ["b"])[1]
    assert own.caller.context == {"roles": ["c"]}
    assert "C-17" not in text
    assert "C-17" not in repr(entry.caller)
    with pytest.raises(SettingsError, match="the context has 9,0"):
        new_token("shop", "ann", ["read"], None, {"x": "x" * 9000})
