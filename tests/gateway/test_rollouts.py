"""The rollout of an agent at each adapter of the gateway: the tenant's runs take the candidate (R24.10)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from temporalio.testing import WorkflowEnvironment

from perdure.gateway.a2a.adapter import a2a_adapter
from perdure.gateway.agui.adapter import agui_adapter
from perdure.gateway.ai_sdk.adapter import ai_sdk_adapter
from perdure.gateway.api.adapter import api
from perdure.gateway.mcp.adapter import mcp_adapter
from perdure.gateway.openai.adapter import openai_adapter
from perdure.gateway.webhooks import trigger_adapter
from tests.gateway.support import Served, bearer, gateway, some_name, write_agents, write_tokens
from tests.gateway.test_mcp import INITIALIZE, post, rpc
from tests.gateway.test_webhooks import declared, deliver, output
from tests.support import agent, harness

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADAPTERS = [a2a_adapter, agui_adapter, ai_sdk_adapter, api, mcp_adapter, openai_adapter]
TENANTS = {"acme": "new", "other": "old"}


def version(name: str, words: str) -> dict[str, Any]:
    document = agent(name=name)
    document["context"][0]["text"] = words
    return document


def answer(request: Any) -> Any:
    return {"calls": [], "output": "new" if "I am new." in str(request.messages) else "old"}


@asynccontextmanager
async def serving(server: WorkflowEnvironment, folder: Path) -> AsyncIterator[tuple[Served, dict[str, str]]]:
    """A gateway whose agent `shopper` has a candidate for the tenant acme; a token by tenant."""
    tokens = write_tokens(folder / "tokens.json", *((tenant, "ann", ["*"]) for tenant in TENANTS))
    agents = write_agents(folder / "agents", version("shopper", "I am old."), version("next", "I am new."))
    (agents / "rollouts.toml").write_text('[shopper]\ncandidate = "next"\ntenants = ["acme"]\n', encoding="utf-8")
    to = {"scheme": "github", "agent": "shopper"}
    message: dict[str, Any] = {"session": {"key": "†body.id", "text": "†body.title"}}
    triggers = declared(
        **{f"run-{tenant}": to | {"tenant": tenant} for tenant in TENANTS},
        **{f"say-{tenant}": to | message | {"tenant": tenant} for tenant in TENANTS},
    )
    async with (
        harness(server.client, [], answer, agents=agents) as it,
        gateway(
            server.client,
            [*ADAPTERS, trigger_adapter(triggers)],
            task_queue=it.task_queue,
            agents=agents,
            gateway_rate=60_000.0,
            gateway_tokens=folder / "tokens.json",
        ) as at,
    ):
        yield at, dict(zip(TENANTS, tokens, strict=True))


@pytest.mark.parametrize("tenant", TENANTS)
async def test_each_adapter_takes_the_version_of_the_rollout(
    dev_server: WorkflowEnvironment, tmp_path: Path, tenant: str
) -> None:
    async with serving(dev_server, tmp_path) as (at, tokens):
        token, wanted = tokens[tenant], TENANTS[tenant]

        async def sent(path: str, body: Any) -> httpx2.Response:
            found = await at.http.post(path, json=body, headers=bearer(token))
            assert found.status_code < 300, found.text
            return found

        run = (await sent("/v1/runs", {"agent": "shopper"})).json()["runId"]
        assert await output(at, run, bearer(token)) == wanted

        session = at.gateway.perdure.session(some_name(), tenant=tenant)
        for _ in range(2):
            said = await sent(f"/v1/sessions/{session.key}/messages", {"agent": "shopper", "text": "Which?"})
            assert await session.reply(said.json()["messageId"], sender="ann") == wanted

        thread = {"threadId": some_name(), "runId": "r", "tools": [], "state": {}, "context": [], "forwardedProps": {}}
        asked = {"id": "m", "role": "user", "content": "Which?"}
        assert f'"{wanted}"' in (await sent("/ag-ui/shopper", {**thread, "messages": [asked]})).text

        part = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "Which?"}]}
        chat = {"id": some_name(), "messages": [part], "trigger": "submit-message"}
        assert f'"{wanted}"' in (await sent("/ai-sdk/shopper", chat)).text

        response = (await sent("/v1/responses", {"model": "shopper", "input": "Which?"})).json()
        assert response["output"][-1]["content"][0]["text"] == wanted
        after = {"model": "shopper", "input": "And now?", "previous_response_id": response["id"]}
        assert (await sent("/v1/responses", after)).json()["output"][-1]["content"][0]["text"] == wanted
        completion = {"model": "shopper", "messages": [{"role": "user", "content": "Which?"}]}
        assert (await sent("/v1/chat/completions", completion)).json()["choices"][0]["message"]["content"] == wanted

        words = {"messageId": some_name(), "role": "ROLE_USER", "parts": [{"text": "Which?"}]}
        task = await at.http.post(
            "/a2a/shopper",
            json={"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": words}},
            headers=bearer(token) | {"A2A-Version": "1.0"},
        )
        assert f'"{wanted}"' in task.text

        await post(at, token, {"id": 0, **INITIALIZE})
        called = await rpc(at, token, "tools/call", name="shopper", arguments={})
        assert f'"{wanted}"' in json.dumps(called)

        body = {"id": some_name(), "title": "Which?"}
        started = await deliver(at, f"run-{tenant}", body, id=body["id"])
        assert await output(at, started.json()["runId"], bearer(token)) == wanted
        message = (await deliver(at, f"say-{tenant}", body, id=body["id"])).json()
        replies = at.gateway.perdure.session(body["id"], tenant=tenant)
        assert await replies.reply(message["messageId"], sender=f"say-{tenant}") == wanted
