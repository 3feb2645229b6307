"""The HTTP API over real HTTP: what programs do with it, and what they are told (R17.1)."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from jsonschema import Draft202012Validator
from temporalio.testing import WorkflowEnvironment

from perdure import Perdure, tool
from perdure.gateway.api.adapter import OPERATIONS, api
from tests.gateway.support import Served, bearer, gateway, some_name, write_agents, write_tokens
from tests.support import DONE, Harness, agent, harness
from tests.timeouts import HANG
from tests.workflows.test_session import ECHO, HOLD, Gate, echo

pytestmark = pytest.mark.asyncio(loop_scope="session")

GREETER: dict[str, Any] = {
    "name": "greeter",
    "description": "Greets.",
    "context": [
        {"type": "system", "text": "Greet."},
        {"type": "input", "schema": {"type": "object", "properties": {"who": {"type": "string"}}, "required": ["who"]}},
    ],
    "schema": {"type": "object"},
}
ALL = ["*"]


@tool(dangerous=True)
def pay(euros: float) -> float:
    """Pay."""
    return euros


def quoted(text: str) -> str:
    return quote(text, safe="")


def until(answer: Any, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


async def listed(http: Any, path: str, least: int, headers: Any = None) -> list[Any]:
    """The rows of a list, once there are so many: the server's index is a moment late, and tells nobody when."""
    async with asyncio.timeout(HANG):
        while True:
            found = until(await http.get(path, headers=headers))
            rows: list[Any] = next(value for key, value in found.items() if key != "next")
            if len(rows) >= least:
                return rows
            await asyncio.sleep(0.05)


@asynccontextmanager
async def served(
    server: WorkflowEnvironment,
    folder: Path,
    script: Any,
    *documents: dict[str, Any],
    tools: Iterable[Any] = (),
    who: Iterable[tuple[str, str, Iterable[str]]] = (("acme", "ann", ALL),),
    **given: Any,
) -> AsyncIterator[tuple[Served, Harness, list[dict[str, str]]]]:
    """A gateway and a worker; the headers of each token."""
    given.setdefault("agents", write_agents(folder / "agents", *documents))
    given.setdefault("gateway_rate", 60_000.0)
    tokens = write_tokens(folder / "tokens.json", *who)
    async with (
        harness(server.client, list(tools), script, agents=given["agents"]) as it,
        gateway(
            server.client, [api], task_queue=it.task_queue, gateway_tokens=folder / "tokens.json", **given
        ) as front,
    ):
        yield front, it, [bearer(token) for token in tokens]


async def test_a_run_from_its_start_to_its_output(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with served(dev_server, tmp_path, [DONE] * 3, GREETER) as (front, _, (ann,)):
        front.http.headers.update(ann)
        http = front.http
        assert until(await http.get("/v1/agents"))["agents"] == [
            {
                "name": "greeter",
                "description": "Greets.",
                "input": GREETER["context"][1]["schema"],
                "output": {"type": "object"},
            }
        ]
        body = {"agent": "greeter", "input": {"who": "you"}}
        started = await http.post("/v1/runs", json=body)
        run = until(started, 201)["runId"]
        assert started.headers["location"] == f"/v1/runs/{run}"
        assert until(await http.get(f"/v1/runs/{run}/wait"))["status"] == "ok"
        shown = until(await http.get(started.headers["location"]))
        assert (shown["runId"], shown["status"], shown["output"]) == (run, "completed", {"ok": True})
        assert until(await http.get(f"/v1/runs/{run}/value", params={"what": "output"})) == {"ok": True}
        # The same key with the same body is the same run.
        first = until(await http.post("/v1/runs", json={**body, "key": "mine"}), 201)["runId"]
        assert until(await http.post("/v1/runs", json={**body, "key": "mine"}), 201)["runId"] == first != run
        other = await http.post("/v1/runs", json={**body, "input": {"who": "me"}, "key": "mine"})
        assert until(other, 409)["type"] == "urn:perdure:problem:run-exists"
        for wrong, status, kind in (
            ({"agent": "greeter", "input": {}}, 422, "input"),
            ({"agent": "../greeter"}, 404, "agent-not-found"),
            ({"agent": "greeter", "tenant": "evil"}, 422, "invalid"),
            ({}, 422, "invalid"),
        ):
            assert until(await http.post("/v1/runs", json=wrong), status)["type"] == f"urn:perdure:problem:{kind}"
        assert until(await http.get("/v1/runs/none"), 404)["detail"] == "there is no run 'none' in namespace 'default'"


async def test_lists_come_by_pages(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    tenant = some_name("t")
    async with served(dev_server, tmp_path, lambda _: DONE, GREETER, who=[(tenant, "ann", ALL)]) as (front, _, (ann,)):
        http = front.http
        http.headers.update(ann)
        body = {"agent": "greeter", "input": {"who": "you"}}
        runs = {until(await http.post("/v1/runs", json=body), 201)["runId"] for _ in range(3)}
        await listed(http, "/v1/runs?status=completed", 3)
        first = until(await http.get("/v1/runs", params={"limit": 2}))
        rest = until(await http.get("/v1/runs", params={"limit": 2, "page": first["next"]}))
        assert {row["runId"] for row in first["runs"] + rest["runs"]} == runs
        assert (len(first["runs"]), rest["runs"][0]["tenant"], rest["runs"][0]["sender"]) == (2, tenant, "ann")
        assert until(await http.get("/v1/runs", params={"page": "x"}), 422)["type"] == "urn:perdure:problem:run"
        assert until(await http.get("/v1/runs", params={"limit": 1000, "q": 1}), 422)["problems"]


async def test_what_waits_is_decided_by_who_may(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    tenant = some_name("t")
    calls = [{"_tool": "pay", "euros": 5, "_outputPath": "†state.paid"}]
    who = [(tenant, "ann", ["read", "send"]), (tenant, "boss", ["read", "approve"])]
    script = [{"calls": calls, "output": None}, {"calls": [], "output": "†state.paid"}]
    async with served(dev_server, tmp_path, script, agent("pay", name="payer"), tools=[pay], who=who) as (
        front,
        it,
        (ann, boss),
    ):
        http = front.http
        run = until(await http.post("/v1/runs", json={"agent": "payer"}, headers=ann), 201)["runId"]
        await it.until_waiting(run, "1.0")
        offers = until(await http.get(f"/v1/runs/{run}/waiting", headers=ann))["waiting"]
        assert [(one["runId"], one["call"], one["params"]) for one in offers] == [(run, "1.0", {"euros": 5})]
        found = await listed(http, "/v1/approvals", 1, ann)
        assert [(one["runId"], one["call"]) for one in found] == [(run, "1.0")]
        decision = {"call": "1.0", "decision": "approve", "digest": offers[0]["digest"]}
        refused = await http.post(f"/v1/runs/{run}/decisions", json=decision, headers=ann)
        assert (
            until(refused, 403)["detail"] == "'ann' may not decide an approval request: the right 'approve' is missing"
        )
        stale = await http.post(f"/v1/runs/{run}/decisions", json={**decision, "digest": "0" * 12}, headers=boss)
        assert until(stale, 409)["type"] == "urn:perdure:problem:decision-refused"
        forged = await http.post(f"/v1/runs/{run}/decisions", json={**decision, "by": "ann"}, headers=boss)
        assert until(forged, 422)["problems"]
        done = until(await http.post(f"/v1/runs/{run}/decisions", json=decision, headers=boss))
        assert done == {"call": "1.0", "decision": "approve"}
        assert until(await http.get(f"/v1/runs/{run}/wait", headers=ann))["status"] == "ok"
        shown = until(await http.get(f"/v1/runs/{run}", headers=ann))
        assert (shown["output"], shown["calls"][0]["approval"]["by"]) == (5, "boss")
        again = await http.post(f"/v1/runs/{run}/decisions", json=decision, headers=boss)
        assert until(again, 409)["type"] == "urn:perdure:problem:run-ended"
        policy = await http.post("/v1/runs", json={"agent": "payer", "approval": {"ask": "never"}}, headers=ann)
        assert until(policy, 403)["detail"].endswith("the right 'approve' is missing")


async def test_a_conversation(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    tenant, key = some_name("t"), f"ann/{some_name()} é?"
    async with served(dev_server, tmp_path, echo, ECHO, who=[(tenant, "ann", ALL)]) as (front, _, (ann,)):
        http = front.http
        http.headers.update(ann)
        at = f"/v1/sessions/{quoted(key)}"
        unknown = await http.post(f"{at}/messages", json={"text": "hi"})
        assert until(unknown, 404)["type"] == "urn:perdure:problem:run-not-found"
        said = {"text": "hello", "messageId": "m1", "agent": "echo"}
        receipt = until(await http.post(f"{at}/messages", json=said), 202)
        assert (receipt["messageId"], receipt["done"]) == ("m1", "started")
        assert until(await http.post(f"{at}/messages", json=said), 202) == receipt
        another = await http.post(f"{at}/messages", json={**said, "text": "other"})
        assert until(another, 409)["type"] == "urn:perdure:problem:message-refused"
        assert until(await http.get(f"{at}/messages/m1/reply")) == {"reply": "re: ann: hello"}
        assert until(await http.get(f"{at}/messages/m1/wait"))["status"] == "ok"
        assert until(await http.get(f"/v1/runs/{quoted(receipt['runId'])}/wait"))["status"] == "ok"
        assert until(await http.get(f"/v1/runs/{quoted(receipt['runId'])}"))["output"] == "re: ann: hello"
        shown = until(await http.get(at))
        assert [(each["type"], each["text"]) for each in shown["entries"] if "text" in each] == [
            ("message", "hello"),
            ("reply", "re: ann: hello"),
        ]
        steered = await http.post(f"/v1/runs/{quoted(receipt['runId'])}/messages", json={"text": "x"})
        assert until(steered, 409)["detail"] == "this is a run of a session: send the message to the session"
        forked = until(await http.post(f"{at}/fork", json={"at": "1"}), 201)["session"]
        assert len(until(await http.get(f"/v1/sessions/{quoted(forked)}"))["entries"]) >= 2
        found = await listed(http, "/v1/sessions", 2)
        assert {each["session"] for each in found} == {key, forked}
        assert (await http.delete(at)).status_code == 204
        assert (await http.get(at)).status_code == 404


async def test_r10_9_what_waits_in_a_delegate_of_a_session_is_decided_there(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    tenant, at = some_name("t"), f"/v1/sessions/{some_name()}"
    paying = {
        "type": "plan",
        "plan": [{"_tool": "pay", "euros": 5, "_outputPath": "†state.paid"}],
        "output": "†state.paid",
    }
    clerk = agent("pay", name="clerk", config={"start": "plan"}, context=[paying])
    desk = agent({"name": "clerk", "_delegate": "clerk"}, name="desk")
    script = [{"calls": [{"_tool": "clerk", "_outputPath": "†state.paid"}], "output": None}, DONE]
    async with served(dev_server, tmp_path, script, desk, clerk, tools=[pay], who=[(tenant, "ann", ALL)]) as (
        front,
        _,
        (ann,),
    ):
        http = front.http
        http.headers.update(ann)
        said = until(await http.post(f"{at}/messages", json={"text": "pay", "agent": "desk"}), 202)
        async with asyncio.timeout(HANG):
            while until(await http.get(at))["status"] != "waiting":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        decision = {"call": "0.0", "decision": "approve"}
        refused = await http.post(f"{at}/decisions", json={**decision, "run": "elsewhere"})
        below = f"{said['runId']}/1.0"
        assert f"calls wait in {below}" in until(refused, 409)["detail"]
        assert until(await http.post(f"{at}/decisions", json={**decision, "run": below})) == decision
        reply = await http.get(f"{at}/messages/{said['messageId']}/reply")
        assert until(reply)["reply"]


async def test_r10_1_what_no_worker_answers_ends_in_time(
    dev_server: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.client.session_operations.ANSWERS_WITHIN", 5.0)  # less, and a busy server is the cause
    tenant, key = some_name("t"), some_name()
    [token] = write_tokens(tmp_path / "tokens.json", (tenant, "ann", ALL))
    given = {"agents": write_agents(tmp_path / "agents", ECHO), "gateway_tokens": tmp_path / "tokens.json"}
    at = f"/v1/sessions/{key}"
    async with gateway(dev_server.client, [api], task_queue=some_name("nobody"), **given) as front:
        front.http.headers.update(bearer(token))
        message = {"text": "hello", "messageId": "m1", "agent": "echo"}
        sending = asyncio.create_task(front.http.post(f"{at}/messages", json=message))
        await until_exists(dev_server, key, tenant)
        answers = await asyncio.gather(
            sending,
            front.http.delete(f"{at}/messages/m1"),
            front.http.post(f"{at}/decisions", json={"call": "1.0", "decision": "approve"}),
            front.http.delete(at),
        )
    for answer in answers:
        assert until(answer, 503)["type"] == "urn:perdure:problem:no-worker"


async def until_exists(server: WorkflowEnvironment, key: str, tenant: str) -> None:
    """Wait until the session has begun: to others than the first message's sender one that is not there yet is none."""
    async with asyncio.timeout(HANG):
        while not await Perdure(server.client).session(key, tenant=tenant).exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_r10_1_what_no_worker_answers_ends_with_its_client(
    dev_server: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.client.session_operations.ANSWERS_WITHIN", 10 * HANG)
    tenant, key = some_name("t"), some_name()
    [token] = write_tokens(tmp_path / "tokens.json", (tenant, "ann", ALL))
    given = {"agents": write_agents(tmp_path / "agents", ECHO), "gateway_tokens": tmp_path / "tokens.json"}
    at = f"/v1/sessions/{key}"
    async with gateway(dev_server.client, [api], task_queue=some_name("nobody"), **given) as front:
        front.http.headers.update(bearer(token))
        message = {"text": "hello", "messageId": "m1", "agent": "echo"}
        requests = [asyncio.create_task(front.http.post(f"{at}/messages", json=message))]
        await until_exists(dev_server, key, tenant)
        requests += [
            asyncio.create_task(front.http.delete(f"{at}/messages/m1")),
            asyncio.create_task(front.http.post(f"{at}/decisions", json={"call": "1.0", "decision": "approve"})),
            asyncio.create_task(front.http.delete(at)),
        ]
        async with asyncio.timeout(HANG):
            while front.gateway.under_way < len(requests):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            for each in requests:
                each.cancel()
            await asyncio.gather(*requests, return_exceptions=True)
            while front.gateway.under_way:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert [each.cancelled() for each in requests] == [True] * 4  # no answer came before


async def test_waiting_ends_with_its_time_and_with_the_gateway(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    gate, key = Gate(), some_name()
    async with served(dev_server, tmp_path, gate.answer, HOLD, tools=[gate.tool]) as (front, _, (ann,)):
        http = front.http
        http.headers.update(ann)
        at = f"/v1/sessions/{key}"
        receipt = until(await http.post(f"{at}/messages", json={"text": "hold", "agent": "echo"}), 202)
        run = f"/v1/runs/{quoted(receipt['runId'])}"
        await gate.asked.wait()
        queued = until(await http.post(f"{at}/messages", json={"text": "more", "mode": "followup"}), 202)
        # A run that has not begun is waited for all the same.
        waited = await http.get(f"/v1/runs/{quoted(queued['runId'])}/wait", params={"timeout": 0.1})
        assert until(waited) == {"status": "timeout", "startedAt": None, "endedAt": None}
        assert until(await http.get(f"{run}/wait", params={"timeout": 0.1}))["status"] == "timeout"
        late = await http.get(f"{at}/messages/{receipt['messageId']}/reply", params={"timeout": 0.1})
        assert until(late, 504)["type"] == "urn:perdure:problem:run-timeout"
        assert until(await http.get(f"{run}/wait", params={"timeout": 61}), 422)["problems"]
        waiting = asyncio.create_task(http.get(f"{run}/wait", params={"timeout": 60}))
        async with asyncio.timeout(HANG):
            while True:
                if front.gateway.under_way:
                    break
                await asyncio.sleep(0)
            front.gateway.stopping.set()
            assert until(await waiting)["status"] == "timeout"
        gate.open.set()


async def test_two_tenants_do_not_find_each_others(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    """Foreign ids answer word for word as those that there are not; the same keys are different things."""
    who = [(some_name("a"), "ann", ALL), (some_name("b"), "bob", ALL), ("", "nobody", ALL)]
    calls = [{"_tool": "pay", "euros": 5, "_outputPath": "†state.paid"}]
    documents = [agent("pay", name="payer"), ECHO]

    def script(request: Any) -> Any:
        return {"calls": calls, "output": None} if "pay" in str(request.messages) else echo(request)

    async with served(dev_server, tmp_path, script, *documents, tools=[pay], who=who) as (front, it, (ann, bob, none)):
        http = front.http
        body = {"agent": "payer", "key": "k"}
        run = until(await http.post("/v1/runs", json=body, headers=ann), 201)["runId"]
        other = until(await http.post("/v1/runs", json=body, headers=bob), 201)["runId"]
        assert run != other
        await it.until_waiting(run, "1.0")
        said = {"text": "hello", "messageId": "m1", "agent": "echo"}
        receipt = until(await http.post("/v1/sessions/main/messages", json=said, headers=ann), 202)
        until(await http.get("/v1/sessions/main/messages/m1/wait", headers=ann))
        decision = {"call": "1.0", "decision": "approve"}
        tries: list[tuple[str, str, Any]] = [
            ("GET", "/v1/runs/{}", None),
            ("GET", "/v1/runs/{}/wait", None),
            ("GET", "/v1/runs/{}/waiting", None),
            ("GET", "/v1/runs/{}/value?what=output", None),
            ("POST", "/v1/runs/{}/decisions", decision),
            ("POST", "/v1/runs/{}/messages", {"text": "x"}),
            ("DELETE", "/v1/runs/{}/messages/m", None),
            ("POST", "/v1/runs/{}/cancel", None),
        ]
        session_tries: list[tuple[str, str, Any]] = [
            ("GET", "/v1/sessions/{}", None),
            ("GET", "/v1/sessions/{}/messages/m1/wait", None),
            ("GET", "/v1/sessions/{}/messages/m1/reply", None),
            ("POST", "/v1/sessions/{}/messages", {"text": "x"}),
            ("DELETE", "/v1/sessions/{}/messages/m1", None),
            ("POST", "/v1/sessions/{}/decisions", decision),
            ("GET", "/v1/sessions/{}/recall?what=1", None),
            ("POST", "/v1/sessions/{}/compact", None),
            ("POST", "/v1/sessions/{}/fork", {"at": "1"}),
            ("DELETE", "/v1/sessions/{}", None),
        ]

        async def check(name: str, unknown: str, headers: Any, method: str, path: str, sent: Any) -> None:
            answers = [
                await http.request(method, path.format(quoted(one)), json=sent, headers=headers)
                for one in (name, unknown)
            ]
            texts = {answer.text.replace(one, "…") for one, answer in zip((name, unknown), answers, strict=True)}
            assert ({answer.status_code for answer in answers}, len(texts)) == ({404}, 1), (path, texts)

        # Each answer takes a tenth of a second, whether there is a run or not.
        await asyncio.gather(
            *(
                check(name, unknown, headers, *each)
                for names, unknown, every in (
                    ((run, receipt["runId"]), f"run-{uuid.uuid4().hex[:24]}", tries),
                    (("main",), some_name(), session_tries),
                )
                for name in names
                for headers in (bob, none)
                for each in every
            )
        )
        for path in ("/v1/runs", "/v1/sessions", "/v1/approvals"):
            await listed(http, path, 1, ann)
            assert run not in (await http.get(path, headers=bob)).text
            assert "main" not in str(until(await http.get("/v1/sessions", headers=bob))["sessions"])
            assert run not in (await http.get(path, headers=none)).text
        assert until(await http.get(f"/v1/runs/{run}", headers=ann))["status"] == "running"


async def test_the_document_says_what_there_is(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with served(dev_server, tmp_path, [DONE], GREETER) as (front, _, (ann,)):
        http = front.http
        assert (await http.get("/v1/openapi.json")).status_code == 401
        document = until(await http.get("/v1/openapi.json", headers=ann))
    said = {(method.upper(), path) for path, found in document["paths"].items() for method in found}
    assert said == {(each.method, each.path) for each in OPERATIONS}
    ids = [found["operationId"] for paths in document["paths"].values() for found in paths.values()]
    assert len(ids) == len(set(ids)) == len(OPERATIONS)
    schemas = document["components"]["schemas"]
    for name in re.findall(r'"\$ref": ?"#/components/schemas/([^"]+)"', str(document).replace("'", '"')):
        assert name in schemas
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
