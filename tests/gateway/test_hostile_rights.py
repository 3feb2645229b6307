"""Rights that an adversary has tried to get round, by another door than the one that asks for them, and what odd requests are told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import openai
import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import hook
from perdure.gateway.agui.adapter import agui_adapter
from perdure.gateway.api.adapter import api
from perdure.hooks import MessageReceived
from perdure.pages.adapter import pages, sign_in
from perdure.sessions.wire import session_id
from tests.gateway.openai_support import SHOPPER, door
from tests.gateway.support import bearer, gateway, some_name, write_agents, write_tokens
from tests.gateway.test_api import quoted, served, until
from tests.gateway.test_mcp import rpc, serving
from tests.workflows.test_session import ECHO, echo

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
            "this is a run of a session: withdraw it from the session",
        )


RIGHTS = [[], ["send"], ["read", "send"], ["send", "approve"], ["send", "stop", "reset"], ["agent", "send"], ["*"]]
MORE: dict[str, Any] = {"tools": [], "context": [], "state": {}, "forwardedProps": {}}


async def test_r10_9_no_adapter_adds_rights(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    """What is said by way of any adapter has the rights of its token and no others; a token without `send` says nothing."""
    came: list[tuple[str, list[str]]] = []

    @hook("message_received")
    def note(event: MessageReceived) -> None:
        came.append((event.sender, sorted(event.rights)))

    who = [("acme", f"s{n}", rights) for n, rights in enumerate(RIGHTS)]
    async with (
        door(dev_server.client, tmp_path, echo, agents=[ECHO], who=who, functions=[note]) as it,
        gateway(dev_server.client, [sign_in, api, agui_adapter, pages], **it.given, task_queue=it.it.task_queue) as at,
    ):
        for token, client, (_, sender, rights) in zip(it.tokens, it.clients, who, strict=True):
            at.http.headers.update(bearer(token))
            found = re.search(r'name="csrf" value="(\w+)"', (await at.http.get("/conversations")).text)
            said = {
                "threadId": some_name(),
                "runId": "r",
                "messages": [{"id": "m", "role": "user", "content": "hello"}],
            }
            form = {"csrf": found[1] if found else "", "text": "hello", "agent": "echo", "key": some_name()}
            answers = [
                await at.http.post(f"/v1/sessions/{some_name()}/messages", json={"text": "hello", "agent": "echo"}),
                await at.http.post("/ag-ui/echo", json=said | MORE),
                *([await at.http.post("/conversations", data=form)] if found else []),
            ]
            codes = [each.status_code for each in answers]
            try:
                await client.responses.create(model="echo", input="hello", background=True)
                codes.append(200)
            except openai.PermissionDeniedError:
                codes.append(403)
            may = "send" in rights or "*" in rights
            assert {code < 400 for code in codes} == {may}, (rights, codes)
            expected = [(sender, sorted(rights))] * len(codes) if may else []
            assert [each for each in came if each[0] == sender] == expected


@pytest.mark.parametrize("form", ["{}/abcdef-1", "{}", "{}/", "{}/abcdef-1/2.0"])
async def test_r10_2_waiting_for_a_foreign_session_is_as_for_none(
    form: str, dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    who = [("acme", "ann", ["*"]), ("other", "eve", ["*"])]
    async with served(dev_server, tmp_path, echo, ECHO, who=who) as (front, _, (ann, eve)):
        key = some_name()
        said = await front.http.post(
            f"/v1/sessions/{key}/messages", json={"text": "hi", "messageId": "m", "agent": "echo"}, headers=ann
        )
        theirs, none = until(said, 202)["runId"].split("/")[0], session_id("acme", "none")
        answers = []
        for id in (theirs, none):
            answer = await front.http.get(f"/v1/runs/{quoted(form.format(id))}/wait?timeout=1", headers=eve)
            answers.append((answer.status_code, answer.text.replace(id, "")))
        assert answers[0] == answers[1]
        assert answers[0][0] == 404
        foreign = await front.http.get(f"/v1/sessions/{key}/messages/m/wait", headers=eve)
        missing = await front.http.get("/v1/sessions/none/messages/m/wait", headers=eve)
        assert (foreign.status_code, foreign.text.replace(key, "")) == (404, missing.text.replace("none", ""))


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


async def test_a_page_says_what_this_gateway_has_told_this_browser_and_nothing_else(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    """A link from elsewhere puts no words of its own on a page, nor those that another browser was told."""
    who = [("acme", "ann", ["*"]), ("acme", "eve", ["*"])]
    async with (
        door(dev_server.client, tmp_path, echo, agents=[ECHO], who=who) as it,
        gateway(dev_server.client, [sign_in, api, pages], **it.given, task_queue=it.it.task_queue) as at,
    ):
        told = []
        for token in it.tokens:
            at.http.cookies.clear()
            at.http.headers.update(bearer(token))
            found = re.search(r'name="csrf" value="(\w+)"', (await at.http.get("/conversations")).text)
            form = {"csrf": found[1] if found else "", "text": "hello", "agent": "echo", "key": some_name()}
            begun = (await at.http.post("/conversations", data=form)).headers["location"]
            answer = await at.http.post(begun, data=form | {"mode": "followup"})
            told.append(answer.headers["location"].partition("#")[0])
        own, other = urlsplit(told[1]), urlsplit(told[0])
        words = parse_qs(own.query)["notice"][0]
        forged = urlencode({"notice": words, "by": "0" * 64})
        addresses = [told[1], f"{own.path}?{other.query}", f"{own.path}?{forged}", f"/inbox/?{forged}"]
        shown = [f'role="status">{words}' in (await at.http.get(address)).text for address in addresses]
        assert shown == [True, False, False, False]


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
