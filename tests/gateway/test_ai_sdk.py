"""The AI SDK's chats over real HTTP: messages, approvals, tools of the page, streams that are resumed (R21.5)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx2
import pytest
from fastapi import FastAPI, Header, Request
from starlette.responses import Response
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure, ToolContext, tool
from perdure.gateway import chat_response, resume_response
from perdure.gateway.ai_sdk.adapter import ai_sdk_adapter
from perdure.gateway.http_server import serve_app
from perdure.testing.scripted_model import Turn
from tests.gateway.support import Served, bearer, gateway, some_name, write_agents, write_tokens
from tests.gateway.test_agui import EVERYTHING, LAST_REQUEST, PAYS, SHOPPER, pay, until_accepted
from tests.gateway.test_ai_sdk_events import UiPage, take
from tests.support import Harness, harness
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")


def user(text: str, id: str = "m1") -> dict[str, Any]:
    return {"id": id, "role": "user", "parts": [{"type": "text", "text": text}]}


def chunks(answer: httpx2.Response) -> list[dict[str, Any]]:
    """The chunks of a whole stream, as the AI SDK's transport reads them."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-vercel-ai-ui-message-stream"] == "v1"
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@dataclass
class Chats:
    served: Served
    it: Harness
    tokens: list[str]

    async def post(self, messages: list[dict[str, Any]], token: int = 0, **more: Any) -> httpx2.Response:
        agent = more.pop("agent", "shopper")
        body = {"id": "chat", "messages": messages, "trigger": "submit-message", **more}
        return await self.served.http.post(f"/ai-sdk/{agent}", json=body, headers=bearer(self.tokens[token]))

    async def page(self, messages: list[dict[str, Any]], token: int = 0, **more: Any) -> UiPage:
        """The page after an answer."""
        page = UiPage(messages)
        take(page, chunks(await self.post(messages, token, **more)))
        return page

    async def resumed(self, chat: str, token: int = 0) -> httpx2.Response:
        return await self.served.http.get(f"/ai-sdk/shopper/{chat}/stream", headers=bearer(self.tokens[token]))


@asynccontextmanager
async def chats(
    server: WorkflowEnvironment,
    folder: Path,
    script: Any,
    who: Sequence[tuple[str, str, Sequence[str]]] = (EVERYTHING,),
    documents: Sequence[dict[str, Any]] = (SHOPPER,),
) -> AsyncIterator[Chats]:
    tokens = write_tokens(folder / "tokens.json", *who)
    agents = write_agents(folder / "agents", *documents)
    given: dict[str, Any] = {"agents": agents, "gateway_tokens": folder / "tokens.json"}
    async with (
        harness(server.client, [pay], script) as it,
        gateway(server.client, [ai_sdk_adapter], task_queue=it.task_queue, **given) as at,
    ):
        yield Chats(at, it, tokens)


async def test_a_chat_is_a_session(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    script = [{"calls": [], "output": "Which colour?"}, {"calls": [], "output": "These."}]
    async with chats(dev_server, tmp_path, script) as it:
        chat = some_name()
        first = await it.page([user("Shoes.")], id=chat)
        assert first.texts == ["Which colour?"]
        again = await it.page([user("Shoes.")], id=chat, trigger="regenerate-message")
        assert (again.texts, again.message["id"]) == (first.texts, first.message["id"])
        second = await it.page([*first.messages, user("Red ones.", "m2")], id=chat)
        assert second.texts == ["These."]
        assert len(second.messages) == 4
        assert "Which colour?" in it.it.model.requests[1].text
        assert len(it.it.model.requests) == 2
        about = second.message["metadata"]["perdure"]
        assert (about["status"], about["runId"].endswith(second.message["id"])) == ("completed", True)
        assert (await it.resumed(chat)).status_code == 204
        assert (await it.resumed(some_name())).status_code == 204
        command = await it.page([*second.messages, user("/new", "m3")], id=chat)
        assert command.parts == []


async def test_an_answer_continues_with_the_run_that_reads_its_message(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    gate = asyncio.Event()
    last = Turn({"calls": [], "output": "Which colour?"}, gate=gate)
    script = [PAYS[0], last, {"calls": [], "output": "These."}]
    async with chats(dev_server, tmp_path, script, documents=LAST_REQUEST) as it:
        chat = some_name()
        first = asyncio.create_task(it.page([user("Shoes.")], id=chat))
        await it.it.model.wait_for_request(2)
        second = asyncio.create_task(it.page([user("Shoes."), user("Red ones.", "m2")], id=chat))
        await until_accepted(it.it, chat, 2)
        gate.set()
        assert (await first).texts == ["Which colour?"]
        page = await second
        assert page.texts == ["Which colour?", "These."]
        assert page.message["metadata"]["perdure"]["runId"].endswith("-2")
        again = await it.page([user("Shoes."), user("Red ones.", "m2")], id=chat, trigger="regenerate-message")
        assert again.texts == page.texts


@pytest.mark.parametrize("approved", [True, False])
async def test_an_approval_outlives_its_connection(
    dev_server: WorkflowEnvironment, tmp_path: Path, *, approved: bool
) -> None:
    script = [PAYS[0], PAYS[1] if approved else {"calls": [], "output": "Not paid."}]
    async with chats(dev_server, tmp_path, script) as it:
        chat = some_name()
        page = await it.page([user("Pay.")], id=chat)
        (part,) = [each for each in page.parts if each["type"] == "tool-pay"]
        assert (part["state"], part["input"]) == ("approval-requested", {"amount": 5})
        assert part["title"].startswith("pay amount 5")
        resumed = UiPage(page.messages, resumes=True)  # a page that was loaded anew
        take(resumed, chunks(await it.resumed(chat)))
        assert resumed.messages == page.messages
        page.respond(approved=approved)
        done = await it.page(page.messages, id=chat)
        assert done.texts == ["paid 5" if approved else "Not paid."]
        assert len(done.messages) == 2
        assert done.call(part["toolCallId"])["state"] == ("output-available" if approved else "output-denied")
        assert not done.sends_by_itself
        late = await it.page(page.messages, id=chat)  # the same request once more decides nothing
        assert late.texts == done.texts


async def test_tools_of_the_page_and_questions(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    tools = [
        {"name": "read_cart", "description": "Read the cart.", "inputSchema": {"type": "object", "properties": {}}}
    ]
    ask = {"_tool": "ask_person", "question": "Which size?", "_outputPath": "†state.size"}
    script = [
        {"calls": [{"_tool": "read_cart", "_outputPath": "†state.cart"}]},
        {"calls": [ask], "output": "{†state.cart.fruit} {†state.size}"},
    ]
    who = [("acme", "ann", ["send"]), EVERYTHING, ("acme", "kim", ["read", "approve"])]
    async with chats(dev_server, tmp_path, script, who) as it:
        chat = some_name()
        page = await it.page([user("Order.")], id=chat, tools=tools)
        (part,) = [each for each in page.parts if each["type"] == "tool-read_cart"]
        assert (part["state"], part["providerExecuted"]) == ("input-available", False)
        page.give(part["toolCallId"], {"fruit": "apple"})
        refused = await it.post(page.messages, 2, id=chat, tools=tools)
        assert (refused.status_code, "right 'send'" in refused.json()["detail"]) == (403, True)
        # A page carries its tools out with the right to send; a question is answered with the right to approve.
        page = await it.page(page.messages, 1, id=chat, tools=tools)
        (question,) = [each for each in page.parts if each["type"] == "tool-ask_person"]
        assert question["input"]["question"] == "Which size?"
        resumed = UiPage(page.messages, resumes=True)  # a page that was loaded anew
        take(resumed, chunks(await it.resumed(chat, 1)))
        assert [each["type"] for each in resumed.parts if "toolCallId" in each] == ["tool-read_cart", "tool-ask_person"]
        cart = resumed.call(part["toolCallId"])
        assert (cart["state"], cart["output"]) == ("output-available", {"fruit": "apple"})
        assert not resumed.sends_by_itself
        page.give(question["toolCallId"], "42")
        refused = await it.post(page.messages, 0, id=chat)
        assert (refused.status_code, "right 'approve'" in refused.json()["detail"]) == (403, True)
        done = await it.page(page.messages, 1, id=chat)
        assert done.texts == ["apple ", "42"]  # the first answer ended within the text
        late = await it.page(page.messages, id=chat)  # what is shown is not written again
        assert late.texts == done.texts
        own = [{"name": "pay"}]
        taken = await it.post([user("x")], id=some_name(), tools=own)
        assert (taken.status_code, "which is a tool of the agent" in taken.json()["detail"]) == (422, True)


async def test_a_failure_is_an_error_of_the_stream_and_a_refusal_is_a_status(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    who = [EVERYTHING, ("acme", "bob", ["read"])]
    async with chats(dev_server, tmp_path, [Turn(status=400)], who) as it:
        failed = await it.page([user("Go.")], id=some_name())
        assert failed.error
        assert "\n" not in failed.error
        assert (await it.post([user("Go.")], 1)).status_code == 403
        assert (await it.post([user("Go.")], agent="nobody")).status_code == 404
        wrong = await it.post([])
        assert (wrong.status_code, wrong.json()["type"]) == (422, "urn:perdure:problem:invalid")
        answered = {"id": "abcdef-1/1.0/0123456789", "approved": True}
        part = {"type": "tool-pay", "state": "approval-responded", "approval": answered}
        assert (await it.post([{"id": "a", "role": "assistant", "parts": [part]}], id=some_name())).status_code == 404


async def test_another_tenant_has_another_chat(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    who = [EVERYTHING, ("other", "eve", ["*"])]
    async with chats(dev_server, tmp_path, PAYS, who) as it:
        chat = some_name()
        page = await it.page([user("Pay.")], id=chat)
        page.respond()
        assert (await it.post(page.messages, 1, id=chat)).status_code == 404
        assert (await it.resumed(chat, 1)).status_code == 204
        assert (await it.page(page.messages, id=chat)).texts == ["paid 5"]


@tool(safe=True)
def customer(ctx: ToolContext) -> str:
    """Return who asks."""
    return f"{ctx.sender} {ctx.context['number']}"


async def test_an_application_has_routes_of_its_own(dev_server: WorkflowEnvironment) -> None:
    """Each user has chats of their own, and the context is the application's, never the body's."""
    agent = Agent("shopper", instructions="You help.", tools=[customer, pay], context={"type": "object"}, output=str)
    app = FastAPI()
    script = [{"calls": [{"_tool": "customer", "_outputPath": "†state.c"}], "output": "{†state.c}"}] * 2 + [PAYS[0]]
    async with harness(dev_server.client, [customer, pay], script) as it:
        perdure = Perdure(dev_server.client, task_queue=it.task_queue)

        @app.post("/api/chat")
        async def chat(request: Request, who: Annotated[str, Header()]) -> Response:
            return await chat_response(
                perdure, agent, await request.json(), sender=who, context={"number": f"of {who}"}
            )

        @app.get("/api/chat/{id}/stream")
        async def resume(id: str, who: Annotated[str, Header()], may: Annotated[str, Header()] = "*") -> Response:
            return await resume_response(perdure, id, sender=who, rights=may.split())

        async with (
            serve_app(app, None, "127.0.0.1", 0, stopping=lambda: None, grace=5.0) as address,
            httpx2.AsyncClient(base_url=address, timeout=HANG) as http,
        ):
            body: dict[str, Any] = {"id": some_name(), "messages": [user("Who?")], "context": {"number": "C-99"}}
            for name in ("ann", "bob"):
                page = UiPage(body["messages"])
                take(page, chunks(await http.post("/api/chat", json=body, headers={"who": name})))
                assert page.texts == [f"{name} of {name}"]
            page = UiPage([user("Pay.", "m2")])
            body["messages"] = page.messages
            take(page, chunks(await http.post("/api/chat", json=body, headers={"who": "ann"})))
            path = f"/api/chat/{body['id']}/stream"
            assert (await http.get(path, headers={"who": "bob"})).status_code == 204
            resumed = UiPage(page.messages, resumes=True)
            take(resumed, chunks(await http.get(path, headers={"who": "ann"})))
            assert resumed.parts[-1]["state"] == "approval-requested"
            assert (await http.get(path, headers={"who": "ann", "may": "approve"})).status_code == 403
            slash = await http.post("/api/chat", json={**body, "id": "bob/7"}, headers={"who": "ann"})
            assert (slash.status_code, "has a slash" in slash.json()["detail"]) == (422, True)
            wrong = await http.post("/api/chat", json={"id": "x"}, headers={"who": "ann"})
            assert (wrong.status_code, "messages must be" in wrong.json()["detail"]) == (422, True)
