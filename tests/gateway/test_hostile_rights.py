"""Rights that an adversary has tried to get round, by another door than the one that asks for them, and what odd requests are told."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import openai
import pytest
from temporalio.testing import WorkflowEnvironment

from perdure.gateway.api import api
from perdure.pages.door import pages, sign_in
from tests.gateway.openai_support import SHOPPER, door
from tests.gateway.support import bearer, gateway, some_name, write_agents, write_tokens
from tests.gateway.test_api import pay, quoted, served, until
from tests.gateway.test_mcp_door import rpc, serving
from tests.support import agent, harness
from tests.test_sessions import ECHO, echo

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_token_that_only_reads_cancels_no_response_of_its_senders(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    who = [("acme", "ann", ["read", "send"]), ("acme", "ann", ["read"])]
    slow = [{"calls": [{"_tool": "sleep_until", "seconds": 3600}]}]
    agents = [SHOPPER | {"context": [*SHOPPER["context"], {"type": "tool", "tool": "sleep_until"}]}]
    async with door(dev_server.client, tmp_path, slow, who=who, agents=agents) as it:
        sends, reads = it.clients
        begun = await sends.responses.create(model="shopper", input="Wait.", background=True)
        while (await reads.responses.retrieve(begun.id)).status != "in_progress":
            pass
        with pytest.raises(openai.PermissionDeniedError):
            await reads.responses.cancel(begun.id)
        assert (await sends.responses.cancel(begun.id)).status == "cancelled"


async def test_what_was_said_in_a_session_is_taken_back_there_alone(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    """R10.9: who may not take back what others have said does not by way of the run that was told it."""
    who = [("acme", "ann", ["*"]), ("acme", "sue", ["read", "send"])]
    async with served(dev_server, tmp_path, echo, ECHO, who=who) as (front, _, (ann, sue)):
        said = {"text": "hello", "messageId": "m1", "agent": "echo"}
        run = until(await front.http.post(f"/v1/sessions/{some_name()}/messages", json=said, headers=ann), 202)["runId"]
        until(await front.http.get(f"/v1/runs/{quoted(run)}/wait", headers=ann))
        answer = await front.http.delete(f"/v1/runs/{quoted(run)}/messages/m1", headers=sue)
        assert (answer.status_code, answer.json()["detail"]) == (
            409,
            "this is a run of a session: take it back there",
        )


async def test_mcp_holds_no_stream_open_that_says_nothing(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with serving(dev_server, tmp_path) as (at, tokens):
        headers = {**bearer(tokens[0]), "Accept": "text/event-stream"}
        for method in ("GET", "DELETE"):
            async with at.http.stream(method, "/mcp", headers=headers) as answer:
                assert answer.status_code == 405
        names: list[Any] = [["adder"], {}, None, 1]
        for name in names:
            told = await rpc(at, tokens[0], "tools/call", name=name, arguments={}, task={})
            assert told["error"]["code"] == -32602, told


async def test_pages_say_what_is_wrong_with_a_form_and_what_is_not_there(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    [token] = write_tokens(tmp_path / "tokens.json", ("acme", "ann", ["*"]))
    given: dict[str, Any] = {
        "agents": write_agents(tmp_path / "agents", ECHO),
        "gateway_tokens": tmp_path / "tokens.json",
    }
    async with gateway(dev_server.client, [sign_in, api, pages], **given) as at:
        form = {"content-type": "application/x-www-form-urlencoded"}
        many = await at.http.post("/sign-in", headers=form, content=b"a&" * 2000)
        assert many.status_code == 400
        assert "Too many fields" in many.json()["detail"]
        gone = await at.http.get("/inbox/list?run=nope&call=1.0", headers=bearer(token))
        assert gone.status_code == 404


@pytest.mark.parametrize("path", ["/inbox/decide", "/decide/k"])
async def test_a_form_that_says_no_known_action_approves_nothing(
    path: str, dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    [token] = write_tokens(tmp_path / "tokens.json", ("acme", "ann", ["*"]))
    given: dict[str, Any] = {
        "agents": write_agents(tmp_path / "agents", agent("pay", name="payer")),
        "gateway_tokens": tmp_path / "tokens.json",
    }
    calls = {"calls": [{"_tool": "pay", "euros": 5, "_outputPath": "†state.paid"}], "output": None}
    async with (
        harness(dev_server.client, [pay], lambda _: calls) as it,
        gateway(dev_server.client, [sign_in, api, pages], task_queue=it.task_queue, **given) as at,
    ):
        http, ann = at.http, bearer(token)
        run = until(await http.post("/v1/runs", json={"agent": "payer"}, headers=ann), 201)["runId"]
        await it.until_waiting(run, "1.0")
        found = re.search(r'name="csrf" value="(\w+)"', (await http.get("/conversations", headers=ann)).text)
        assert found is not None
        form = {"csrf": found[1], "run": run, "call": "1.0", "action": "deny"}
        answer = await http.post(path, data=form, headers={**ann, "HX-Request": "true"})
        assert "approve, remember, endorse, answer, replace or reject" in answer.text
        waiting = until(await http.get(f"/v1/runs/{run}/waiting", headers=ann))["waiting"]
        assert [offer["call"] for offer in waiting] == ["1.0"]
        until(await http.post(f"/v1/runs/{run}/cancel", headers=ann), 202)
        async with asyncio.timeout(20):  # other tests look at what waits in the whole namespace
            while any(one.run_id == run for one in (await at.gateway.perdure.approvals()).waiting):
                pass
