"""Triggers over real HTTP: signed webhooks start runs and send messages, each delivery once (R19.7)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from pydantic import SecretStr
from temporalio.testing import WorkflowEnvironment

from perdure import Perdure, ToolContext, tool
from perdure.errors import SettingsError
from perdure.gateway import SessionMapping, Trigger, create_app
from perdure.gateway.api.adapter import api
from perdure.gateway.http_server import serve_app
from perdure.gateway.triggers import Scheme
from perdure.gateway.webhooks import trigger_adapter, triggers_adapter
from perdure.hosting.settings import load, replace_settings
from tests.gateway.support import Served, bearer, gateway, some_name, write_agents, write_tokens
from tests.gateway.test_signatures import signed
from tests.support import Harness, harness
from tests.timeouts import HANG
from tests.workflows.test_session import ECHO

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRET = "whsec_c2VjcmV0c2VjcmV0c2VjcmV0"
TITLE = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
TRIAGE: dict[str, Any] = {
    "name": "triage",
    "context": [{"type": "system", "text": "Triage."}, {"type": "input", "schema": TITLE}],
    "schema": True,
}
RUN: dict[str, Any] = {"scheme": "github", "agent": "triage", "tenant": "acme", "input": {"title": "†body.title"}}


def declared(**each: dict[str, Any]) -> dict[str, Trigger]:
    return {name: Trigger(**{"secret": SecretStr(SECRET), **raw}) for name, raw in each.items()}


@asynccontextmanager
async def front(
    server: WorkflowEnvironment, folder: Path, made: dict[str, Trigger], script: Any = None, **options: Any
) -> AsyncIterator[tuple[Served, Harness, dict[str, str]]]:
    """A gateway that takes these triggers beside its API, a worker, and the headers of acme's token."""
    agents = write_agents(folder / "agents", TRIAGE, ECHO)
    (token,) = write_tokens(folder / "tokens.json", ("acme", "ann", ["*"]))
    given = {"gateway_rate": 60_000.0, "gateway_tokens": folder / "tokens.json", **options.pop("given", {})}
    async with (
        harness(server.client, options.pop("tools", []), script or says, agents=agents) as it,
        gateway(server.client, [api, trigger_adapter(made)], task_queue=it.task_queue, agents=agents, **given) as at,
    ):
        yield at, it, bearer(token)


def says(request: Any) -> Any:
    """Answer with the title that the run was given, or with the last thing that was said."""
    if "†input" in request.text:
        return {"calls": [], "output": "†input.title"}
    return {"calls": [], "output": f"re: {request.messages[-1]['content'][-60:]}"}


async def deliver(
    to: Served, name: str, body: Any, scheme: Scheme = "github", secret: str = SECRET, **how: Any
) -> httpx2.Response:
    raw = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    headers = {"Content-Type": "application/json", **signed(scheme, secret, raw, **{"at": time.time(), **how})}
    return await to.http.post(f"/v1/triggers/{name}", content=raw, headers=headers)


async def output(at: Served, run: str, headers: dict[str, str]) -> Any:
    waited = await at.http.get(f"/v1/runs/{run.replace('/', '%2F')}/wait", headers=headers)
    assert waited.json()["status"] == "ok", waited.text
    return (await at.http.get(f"/v1/runs/{run.replace('/', '%2F')}", headers=headers)).json()["output"]


@pytest.mark.parametrize("scheme", ["standard", "github", "stripe"])
async def test_a_delivery_of_each_scheme_starts_one_run_however_often_it_comes(
    dev_server: WorkflowEnvironment, tmp_path: Path, scheme: Scheme
) -> None:
    made = declared(mine=RUN | {"scheme": scheme}, other=RUN | {"scheme": scheme})
    id = some_name("evt")
    body = {"id": id, "type": "issue", "title": "It is †state.x {†input.y}"}
    async with front(dev_server, tmp_path, made) as (at, it, ann):
        at_once = await asyncio.gather(*(deliver(at, "mine", body, scheme, id=id) for _ in range(6)))
        # A sender may count its attempts in the body: the id says that it is the same delivery.
        later = await deliver(at, "mine", {**body, "title": "another"}, scheme, id=id, at=time.time() - 200)
        assert {answer.status_code for answer in (*at_once, later)} == {202}, later.text
        (run,) = {answer.json()["runId"] for answer in (*at_once, later)}
        assert later.headers["location"] == f"/v1/runs/{run}"
        assert await output(at, run, ann) == "It is †state.x {†input.y}"
        assert len(it.model.requests) == 1
        shown = (await at.http.get(f"/v1/runs/{run}", headers=ann)).json()
        assert shown["status"] == "completed"
        elsewhere = await deliver(at, "other", body, scheme, id=id)
        assert elsewhere.json()["runId"] != run
        perdure = Perdure(it.client)
        origin = await perdure.get_run(run).origin()
        assert (origin.sender, origin.tenant) == ("mine", "acme")


async def test_wrong_old_and_unknown_deliveries_are_refused_alike(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    made = declared(hub=RUN, pay=RUN | {"scheme": "stripe"}, std=RUN | {"scheme": "standard"})
    body = {"id": "evt_1", "title": "no"}
    now = time.time()
    async with front(dev_server, tmp_path, made) as (at, it, _):
        answers = [
            await deliver(at, "hub", body, secret=SECRET + "x"),
            await deliver(at, "none", body),
            await deliver(at, "none", body, "stripe"),
            await deliver(at, "pay", body, "stripe", at=now - 400),
            await deliver(at, "pay", body, "stripe", at=now + 400),
            await deliver(at, "std", body, "standard", at=now - 400),
            await deliver(at, "std", body, "stripe"),
            await at.http.post("/v1/triggers/hub", json=body),
            await at.http.post("/v1/triggers/none", content=b"\xff", headers={b"X-Hub-Signature-256": "é".encode()}),
        ]
        assert {answer.status_code for answer in answers} == {403}, [answer.text for answer in answers]
        assert len({answer.content for answer in answers}) == 1
        without = {"x-request-id", "date"}
        assert len({tuple((k, v) for k, v in each.headers.items() if k not in without) for each in answers}) == 1
        assert it.model.requests == []


async def test_two_secrets_are_accepted_while_one_replaces_the_other(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    made = declared(hub=RUN | {"secret": [SecretStr("the old secret"), SecretStr("the new secret")]})
    async with front(dev_server, tmp_path, made) as (at, _, _):
        for secret, status in (("the old secret", 202), ("the new secret", 202), ("another", 403)):
            answer = await deliver(at, "hub", {"title": "x"}, secret=secret, id=some_name())
            assert answer.status_code == status


async def test_events_that_are_not_wanted_are_passed_over(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    made = declared(hub=RUN | {"on": ["issues.opened"]}, any=RUN)
    body = {"action": "opened", "title": "x"}
    async with front(dev_server, tmp_path, made) as (at, it, _):
        wanted = await deliver(at, "hub", body, event="issues", id=some_name())
        others = [
            await deliver(at, "hub", body | {"action": "closed"}, event="issues", id=some_name()),
            await deliver(at, "hub", {"zen": "…"}, event="ping", id=some_name()),
            await deliver(at, "any", {"zen": "…"}, event="ping", id=some_name()),
        ]
        assert wanted.status_code == 202
        assert [(answer.status_code, answer.content) for answer in others] == [(204, b"")] * 3
        await Perdure(it.client).get_run(wanted.json()["runId"]).result()
        assert len(it.model.requests) == 1


@pytest.mark.parametrize(
    ("body", "id", "status", "words"),
    [
        ({"name": 5}, "d", 422, "trigger hub: input.title reads †body.title, which is missing in this body"),
        ({"title": 5}, "d", 422, "the input breaks its schema: $.title is 5"),
        ([1], "d", 422, "the body must be a JSON object"),
        ({"title": "x"}, "", 422, "the delivery has no id, which is needed to find duplicates"),
        (b"{", "d", 400, "the body is not valid JSON"),
        (b"[" * 90_000, "d", 413, "values"),
        ({"title": "x" * 4_000_001}, "d", 413, "4,000,000 bytes"),
    ],
)
async def test_a_body_that_does_not_fit_is_one_line(
    dev_server: WorkflowEnvironment, tmp_path: Path, body: Any, id: str, status: int, words: str
) -> None:
    async with front(dev_server, tmp_path, declared(hub=RUN)) as (at, it, _):
        answer = await deliver(at, "hub", body, id=id and some_name(id))
        assert answer.status_code == status, answer.text
        detail = answer.json()["detail"]
        assert words in detail, detail
        assert "\n" not in detail
        form = {"Content-Type": "application/x-www-form-urlencoded", **signed("github", SECRET, b"a=1")}
        answer = await at.http.post("/v1/triggers/hub", content=b"a=1", headers=form)
        assert answer.status_code == 415
        assert it.model.requests == []


TALK: dict[str, Any] = {
    "scheme": "github",
    "agent": "echo",
    "tenant": "acme",
    "sender": "github",
    "session": SessionMapping(key="{†body.number}-{†body.where}", text="{†event} by {†body.user.login}: {†body.title}"),
}


async def test_a_delivery_sends_one_message_in_a_session(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    where, id = some_name(), some_name("d")
    body = {"number": 7, "where": where, "user": {"login": "eve"}, "title": "†state.x"}
    async with front(dev_server, tmp_path, declared(hub=TALK)) as (at, it, ann):
        at_once = await asyncio.gather(*(deliver(at, "hub", body, event="issues", id=id) for _ in range(4)))
        assert {answer.status_code for answer in at_once} == {202}, at_once[0].text
        (message,) = {answer.json()["messageId"] for answer in at_once}
        path = f"/v1/sessions/7-{where}"
        reply = await at.http.get(f"{path}/messages/{message}/reply", params={"sender": "github"}, headers=ann)
        assert reply.json()["reply"] == "re: github: issues by eve: †state.x"
        more = await deliver(at, "hub", body | {"title": "more"}, event="issues", id=some_name("d"))
        assert more.json()["messageId"] != message
        reply = await at.http.get(
            f"{path}/messages/{more.json()['messageId']}/reply", params={"sender": "github"}, headers=ann
        )
        assert reply.json()["reply"] == "re: github: issues by eve: more"
        assert len(it.model.requests) == 2


@tool(safe=True)
def customer(ctx: ToolContext) -> str:
    """Return the customer's number."""
    return str(ctx.context.get("number"))


@pytest.mark.parametrize("effect", ["run", "session"])
async def test_a_trigger_gives_the_context_that_tools_read(
    dev_server: WorkflowEnvironment, tmp_path: Path, effect: str
) -> None:
    def script(_: Any) -> Any:
        return {"calls": [{"_tool": "customer", "_outputPath": "†state.c"}], "output": "{†state.c}"}

    schema = {"properties": {"number": {"type": "string"}}, "required": ["number"]}
    document: dict[str, Any] = {"name": "knows", "caller_context": schema, "schema": {"type": "string"}}
    document |= {"context": [{"type": "system", "text": "Say it."}, {"type": "tool", "tool": "customer"}]}
    write_agents(tmp_path / "agents", document)
    how = {"session": TALK["session"]} if effect == "session" else {"input": "go"}
    raw = {"scheme": "github", "agent": "knows", "tenant": "acme", "context": {"number": "†body.user.login"}, **how}
    made = declared(hub=raw)
    body = {"number": 1, "where": some_name(), "user": {"login": "C-17 {†body.title}"}, "title": "x"}
    async with front(dev_server, tmp_path, made, script, tools=[customer]) as (at, it, ann):
        answer = await deliver(at, "hub", body, id=some_name("d"))
        assert answer.status_code == 202, answer.text
        assert await output(at, answer.json()["runId"], ann) == "C-17 {†body.title}"
        prompts = "".join(request.text for request in it.model.requests)
        wrong = await deliver(at, "hub", body | {"user": {"login": 5}}, id=some_name("d"))
        assert (wrong.status_code, wrong.json()["type"]) == (422, "urn:perdure:problem:input"), wrong.text
        assert "the context breaks the agent's schema for it: $.number is 5" in wrong.json()["detail"]
    if effect == "run":
        assert "C-17" not in prompts  # no model reads it


async def test_a_session_key_that_no_session_can_have_is_refused(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    async with front(dev_server, tmp_path, declared(hub=TALK)) as (at, it, _):
        body = {"number": 7, "where": "x" * 200, "user": {"login": "eve"}, "title": "t"}
        answer = await deliver(at, "hub", body, id=some_name("d"))
        assert answer.status_code == 422, answer.text
        assert "trigger hub: session.key has 202 characters; the limit is 200" in answer.json()["detail"]
        assert it.model.requests == []


@tool(dangerous=True)
def pay(euros: float) -> float:
    """Pay."""
    return euros


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("effect", ["run", "session"])
async def test_what_a_delivery_says_was_written_by_others(
    dev_server: WorkflowEnvironment, tmp_path: Path, effect: str, trusted: bool
) -> None:
    """A person is asked about a dangerous call after it (`ask: "untrusted"`), unless the operator trusts the sender."""
    call = {"_tool": "pay", "euros": 5, "_outputPath": "†state.paid"}

    def script(_: Any) -> Any:
        return {"calls": [call], "output": "paid"}

    document = {**TRIAGE, "name": "payer", "config": {"approval": {"ask": "untrusted"}}}
    document["context"] = [*TRIAGE["context"], {"type": "tool", "tool": "pay"}]
    if effect == "session":
        document["context"] = [TRIAGE["context"][0], document["context"][-1]]
    write_agents(tmp_path / "agents", document)
    made = declared(hub=(RUN if effect == "run" else TALK) | {"agent": "payer", "sender": "github"})
    given = {"gateway_trusted_clients": ("acme/github",) if trusted else ()}
    body = {"number": 1, "where": some_name(), "user": {"login": "eve"}, "title": "pay me"}
    async with front(dev_server, tmp_path, made, script, tools=[pay], given=given) as (at, it, ann):
        answer = await deliver(at, "hub", body, id=some_name("d"))
        run = answer.json()["runId"]
        if trusted:
            assert await output(at, run, ann) == "paid"
        else:
            view = await it.until_waiting(run, "1.0")
            assert [each.tool for each in view.waiting] == ["pay"]
            await it.client.get_workflow_handle(run).terminate()


async def test_tenants_do_not_see_each_others_runs(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    made = declared(hub=RUN, theirs=RUN | {"tenant": some_name("t")})
    id = some_name("d")
    async with front(dev_server, tmp_path, made) as (at, _, ann):
        mine, theirs = [(await deliver(at, name, {"title": "x"}, id=id)).json()["runId"] for name in made]
        assert mine != theirs
        assert (await at.http.get(f"/v1/runs/{mine}", headers=ann)).status_code == 200
        assert (await at.http.get(f"/v1/runs/{theirs}", headers=ann)).status_code == 404


async def test_a_stranger_is_bounded_and_takes_nothing_from_the_sender(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    made = declared(hub=RUN, other=RUN)
    given = {"gateway_rate": 16.0, "gateway_proxies": ("127.0.0.1",)}
    async with front(dev_server, tmp_path, made, given=given) as (at, _, _):

        async def sent(name: str, of: str, address: str) -> httpx2.Response:
            raw = b'{"title": "x"}'
            headers = {"Content-Type": "application/json", "X-Forwarded-For": address}
            headers |= signed("github", of, raw, id=some_name("d"))
            return await at.http.post(f"/v1/triggers/{name}", content=raw, headers=headers)

        wrong = [await sent("hub", "wrong", "192.0.2.1") for _ in range(6)]
        assert [answer.status_code for answer in wrong] == [403] * 4 + [429] * 2
        assert "requests a minute from this address" in wrong[-1].json()["detail"]
        assert (await sent("none", "wrong", "192.0.2.1")).status_code == 429
        right = [await sent("hub", SECRET, f"192.0.2.{n + 2}") for n in range(5)]
        assert [answer.status_code for answer in right] == [202] * 4 + [429]
        assert "requests a minute by this trigger" in right[-1].json()["detail"]
        assert (await sent("other", SECRET, "192.0.2.9")).status_code == 202


async def test_an_application_has_triggers_of_its_own(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    """Mounted in FastAPI, under a name of the outside, without tokens: the signature is enough."""
    agents = write_agents(tmp_path / "agents", TRIAGE)
    app = FastAPI()
    async with harness(dev_server.client, [], says, agents=agents) as it:
        perdure = Perdure(dev_server.client, task_queue=it.task_queue)
        app.mount(
            "/hooks", create_app(perdure, replace_settings(load(), {"agents": agents}), triggers=declared(hub=RUN))
        )
        async with (
            serve_app(app, None, "127.0.0.1", 0, stopping=lambda: None, grace=5.0) as address,
            httpx2.AsyncClient(base_url=f"{address}/hooks", timeout=HANG) as http,
        ):
            raw = b'{"title": "x"}'
            headers = {"Content-Type": "application/json", "Host": "shop.example.com"}
            headers |= signed("github", SECRET, raw, id=some_name("d"))
            answer = await http.post("/v1/triggers/hub", content=raw, headers=headers)
            assert answer.status_code == 202, answer.text
            assert await perdure.get_run(answer.json()["runId"]).result()
            assert (await http.post("/v1/triggers/hub", content=b"{}", headers=headers)).status_code == 403


async def test_a_file_declares_triggers(
    dev_server: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = write_agents(tmp_path / "agents", TRIAGE)
    monkeypatch.setenv("HUB_SECRET", "the secret of the hub\n")
    (tmp_path / "stripe.txt").write_text("the secret of stripe\n", encoding="utf-8")
    raw: dict[str, Any] = {
        "hub": RUN | {"secret": "env:HUB_SECRET"},
        "pay": RUN | {"scheme": "stripe", "secret": f"file:{tmp_path / 'stripe.txt'}"},
        "own": RUN | {"secret": ["env:HUB_SECRET"], "agent": str(agents / "triage.json")},
    }
    path = tmp_path / "triggers.json"
    path.write_text(json.dumps({"triggers": raw}), encoding="utf-8")
    async with (
        harness(dev_server.client, [], says, agents=agents) as it,
        gateway(
            dev_server.client, [api, triggers_adapter], task_queue=it.task_queue, agents=agents, gateway_triggers=path
        ) as at,
    ):
        assert "/v1/triggers/{trigger}" in (await at.http.get("/v1/openapi.json")).json()["paths"]
        senders: dict[str, tuple[Scheme, str]] = {
            "hub": ("github", "the secret of the hub"),
            "pay": ("stripe", "the secret of stripe"),
            "own": ("github", "the secret of the hub"),
        }
        for name, (scheme, secret) in senders.items():
            id = some_name("d")
            answer = await deliver(at, name, {"title": "x", "id": id}, scheme, secret, id=id)
            assert answer.status_code == 202, answer.text
    monkeypatch.delenv("HUB_SECRET")
    with pytest.raises(SettingsError, match=r"hub\.secret: the variable HUB_SECRET is not set"):
        async with gateway(None, [triggers_adapter], agents=agents, gateway_triggers=path):
            pass
