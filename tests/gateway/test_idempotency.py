"""An idempotency key is (tenant, sender, key), in all conversations and at all doors: another body under it is 409 (R10.1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from temporalio.testing import WorkflowEnvironment

from perdure.gateway.agui.adapter import agui_adapter
from perdure.gateway.api.adapter import api
from perdure.gateway.mcp.adapter import mcp_adapter
from perdure.gateway.openai.adapter import openai_adapter
from perdure.sessions.wire import KEY_WORKFLOW
from tests.gateway.openai_support import SHOPPER, WEATHER, says
from tests.gateway.support import Served, bearer, gateway, some_name, write_agents, write_tokens
from tests.gateway.test_agui import asked, user
from tests.gateway.test_mcp import rpc
from tests.support import Harness, harness

pytestmark = pytest.mark.asyncio(loop_scope="session")


def answers(request: Any) -> Any:
    """Ask the client for the weather where that is the question, and else say what was said."""
    said = request.messages[-1]["content"]
    if "mild" in request.text:
        return says("It is mild.")
    if "Weather?" in said:
        return {"calls": [{"_tool": "get_weather", "city": "Rome", "_outputPath": "†state.rome"}], "output": None}
    return says(f"to {said[-20:]}")


@asynccontextmanager
async def all_doors(
    server: WorkflowEnvironment, folder: Path
) -> AsyncIterator[tuple[Served, Harness, str, tuple[str, str]]]:
    """A gateway with every door of programs, the tenant, and the tokens of Ann and Bob."""
    tenant = some_name("t")
    ann, bob = write_tokens(folder / "tokens.json", (tenant, "ann", ["*"]), (tenant, "bob", ["*"]))
    agents = write_agents(folder / "agents", SHOPPER)
    doors = [api, openai_adapter, mcp_adapter, agui_adapter]
    async with (
        harness(server.client, [], answers, agents=agents) as it,
        gateway(
            server.client,
            doors,
            task_queue=it.task_queue,
            agents=agents,
            gateway_tokens=folder / "tokens.json",
            gateway_rate=60_000.0,
        ) as served,
    ):
        yield served, it, tenant, (ann, bob)


class Sender:
    """Who sends requests with keys."""

    def __init__(self, served: Served, token: str) -> None:
        self.served = served
        self.token = token

    async def post(self, path: str, body: dict[str, Any], key: str) -> httpx2.Response:
        headers = {**bearer(self.token), "Idempotency-Key": key}
        return await self.served.http.post(path, json=body, headers=headers)

    async def conversation(self) -> str:
        answer = await self.served.http.post("/v1/conversations", json={}, headers=bearer(self.token))
        return str(answer.json()["id"])

    def requests(self, text: str, conversation: str) -> dict[str, tuple[str, dict[str, Any]]]:
        """A request of each adapter, in this conversation where it has one."""
        message = asked(threadId=conversation, runId="r", messages=[user(text, f"m-{text}")])
        return {
            "messages": (f"/v1/sessions/{conversation}/messages", {"text": text, "agent": "shopper"}),
            "runs": ("/v1/runs", {"agent": "shopper", "approval": {"ask": text.lower()}}),
            "responses": ("/v1/responses", {"model": "shopper", "input": text, "conversation": conversation}),
            "chat": ("/v1/chat/completions", {"model": "shopper", "messages": [{"role": "user", "content": text}]}),
            "ag-ui": ("/ag-ui/shopper", message),
        }


def told(answer: httpx2.Response) -> Any:
    """What says whether two answers are of one run."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        return [line for line in answer.text.splitlines() if '"messageId"' in line]
    body = answer.json()
    return body.get("runId") or body["id"]


@pytest.mark.parametrize("adapter", ["messages", "runs", "responses", "chat", "ag-ui"])
async def test_r10_1_a_key_is_one_request_in_all_conversations(
    dev_server: WorkflowEnvironment, tmp_path: Path, adapter: str
) -> None:
    async with all_doors(dev_server, tmp_path) as (served, _, _, tokens):
        ann, bob = (Sender(served, token) for token in tokens)
        here, there = await ann.conversation(), await ann.conversation()
        path, body = ann.requests("Always", here)[adapter]
        first = await ann.post(path, body, "k")
        assert first.status_code < 300, first.text
        again = await ann.post(path, body, "k")
        assert (again.status_code, told(again)) == (first.status_code, told(first))
        path, body = ann.requests("Never", there)[adapter]
        other = await ann.post(path, body, "k")
        assert other.status_code == 409, other.text
        hers = await bob.post(path, body, "k")
        assert hers.status_code == first.status_code, hers.text
        assert told(hers) != told(first)
        # What was refused is said under a key of its own.
        assert (await ann.post(path, body, "other")).status_code == first.status_code


@pytest.mark.parametrize("adapter", ["messages", "responses", "ag-ui"])
async def test_r10_1_a_request_that_is_refused_for_its_content_takes_no_key(
    dev_server: WorkflowEnvironment, tmp_path: Path, adapter: str
) -> None:
    async with all_doors(dev_server, tmp_path) as (served, _, _, (token, _)):
        ann = Sender(served, token)
        conversation = await ann.conversation()
        path, body = ann.requests("x" * 100_001, conversation)[adapter]
        if adapter == "ag-ui":
            body["messages"][0]["id"] = "m"
        refused = await ann.post(path, body, "k")
        assert refused.status_code in (400, 409), refused.text
        assert "the limit is 100,000" in refused.text
        path, body = ann.requests("Always", conversation)[adapter]
        assert (await ann.post(path, body, "k")).status_code < 300


async def test_r10_1_a_key_is_one_request_at_all_doors(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with all_doors(dev_server, tmp_path) as (served, _, _, (token, _)):
        ann = Sender(served, token)
        requests = ann.requests("Always", await ann.conversation())
        for taken in requests:
            assert (await ann.post(*requests[taken], f"k-{taken}")).status_code < 300
            for name in requests.keys() - {taken}:
                assert (await ann.post(*requests[name], f"k-{taken}")).status_code == 409, (taken, name)
            call = {"name": "shopper", "arguments": {}, "_meta": {"perdure/key": f"k-{taken}"}}
            said = (await rpc(served, token, "tools/call", **call))["result"]
            assert said["isError"], taken  # with another policy it is another run, too
            assert "belongs to a run with another" in said["content"][0]["text"]
        assert (await ann.post("/v1/runs", {"agent": "shopper", "key": "k"}, "another")).status_code == 422
        assert (await ann.post(*requests["runs"], "k\x7f")).status_code == 422
        assert (await ann.post(*requests["runs"], "")).status_code == 422


async def test_r10_1_of_requests_at_once_one_has_the_key(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with all_doors(dev_server, tmp_path) as (served, it, tenant, (token, _)):
        ann = Sender(served, token)
        talks = await asyncio.gather(*(ann.conversation() for _ in range(4)))
        requests = [
            ann.requests(f"Say {n}.", talk)[name] for n, talk in enumerate(talks) for name in ("messages", "responses")
        ]
        answers = await asyncio.gather(*(ann.post(path, body, "k") for path, body in [*requests, *requests]))
        statuses = [answer.status_code for answer in answers]
        assert statuses.count(409) == len(statuses) - 2, [answer.text for answer in answers]
        one, again = (answer for answer in answers if answer.status_code != 409)
        assert told(one) == told(again)
        assert len(it.model.requests) <= 1  # a message's receipt waits for no answer
        owners = [each async for each in it.client.list_workflows(f"WorkflowType = '{KEY_WORKFLOW}'")]
        assert tenant not in {each.id for each in owners}  # an id says nothing of whose it is


@pytest.mark.parametrize("how", ["previous", "conversation", "chat"])
async def test_r10_1_results_that_are_sent_again_are_answered_again(
    dev_server: WorkflowEnvironment, tmp_path: Path, how: str
) -> None:
    """The run has gone on by then, or ended: the key says as what."""
    async with all_doors(dev_server, tmp_path) as (served, it, _, (token, _)):
        ann = Sender(served, token)
        path, body = ann.requests("Weather?", await ann.conversation())["chat" if how == "chat" else "responses"]
        schema = {key: WEATHER[key] for key in ("name", "parameters")}
        body |= {"tools": [{"type": "function", "function": schema} if how == "chat" else WEATHER]}
        if how == "previous":
            del body["conversation"]
        first = (await ann.post(path, body, "k1")).json()
        if how == "chat":
            message = first["choices"][0]["message"]
            result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "mild"}
            follows = {**body, "messages": [*body["messages"], message, result]}
        else:
            output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "mild"}
            follows = {**body, "input": [output]}
            follows |= {"previous_response_id": first["id"]} if how == "previous" else {}
        at_once = await asyncio.gather(*(ann.post(path, follows, "k2") for _ in range(3)))
        later = await ann.post(path, follows, "k2")
        assert {answer.status_code for answer in (*at_once, later)} == {200}, [answer.text for answer in at_once]
        assert len({told(answer) for answer in (*at_once, later)}) == 1
        assert "It is mild." in later.text
        assert len(it.model.requests) == 2
        assert (await ann.post(path, {**follows, "temperature": 0.5}, "k2")).status_code == 409
