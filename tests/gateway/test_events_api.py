"""Events over HTTP: each once and in order, at whichever gateway a client comes back (R17.1, R10.14)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from temporalio.testing import WorkflowEnvironment

from perdure.gateway.api.adapter import api
from tests.gateway.support import gateway, some_name
from tests.gateway.test_api import ALL, GREETER, quoted, served, until
from tests.support import DONE
from tests.timeouts import HANG
from tests.workflows.test_session import ECHO, HOLD, Gate, echo

pytestmark = pytest.mark.asyncio(loop_scope="session")


@dataclass
class Sent:
    """A server-sent event, as a browser reads it."""

    id: str
    event: str
    data: Any

    @property
    def what(self) -> str:
        return f"{self.data['topic']} {self.data['phase']}"


async def events(answer: httpx2.Response) -> AsyncIterator[Sent]:
    found: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            found[name] = found[name] + "\n" + value if name in found else value
        elif "data" in found:
            yield Sent(found.get("id", ""), found.get("event", ""), json.loads(found["data"]))
            found = {}
        else:
            found = {}


async def all_of(http: httpx2.AsyncClient, path: str, **options: Any) -> list[Sent]:
    async with http.stream("GET", path, **options) as answer:
        assert answer.status_code == 200, (await answer.aread()).decode()
        return [each async for each in events(answer)]


async def test_a_runs_events_end_with_it_and_are_read_again_from_anywhere(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    async with served(dev_server, tmp_path, [DONE], GREETER) as (front, _, (ann,)):
        http = front.http
        http.headers.update(ann)
        run = until(await http.post("/v1/runs", json={"agent": "greeter", "input": {"who": "you"}}), 201)["runId"]
        at = f"/v1/runs/{run}/events"
        live = await all_of(http, at)
        assert live[0].what == "lifecycle start"
        assert live[-1].what == "lifecycle end"
        assert {each.event for each in live} == {each.data["topic"] for each in live}
        durable = [each.what for each in live if each.data["phase"] not in ("delta", "update")]
        again = await all_of(http, at)
        assert [each.what for each in again if each.data["phase"] not in ("delta", "update")] == durable
        for number, each in enumerate(again):
            rest = await all_of(http, at, headers={"Last-Event-ID": each.id})
            assert [(one.id, one.what) for one in rest] == [(one.id, one.what) for one in again[number + 1 :]]
        some = await all_of(http, at, params={"topics": "lifecycle", "from": again[0].id})
        assert [each.what for each in some] == ["lifecycle end"]
        for query, kind in (({"from": "x"}, "cursor"), ({"from": "1.2.3"}, "cursor"), ({"topics": "x"}, "protocol")):
            assert until(await http.get(at, params=query), 422)["type"] == f"urn:perdure:problem:{kind}"


async def test_a_client_goes_on_at_another_gateway_where_it_was(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    """A conversation read in pieces, each piece at the other of two gateways: every event once, in order."""
    key = some_name()
    async with served(dev_server, tmp_path, echo, ECHO) as (front, it, (ann,)):
        http = front.http
        http.headers.update(ann)
        at = f"/v1/sessions/{key}"
        for number in range(3):
            said = {"text": f"hello {number}", "messageId": f"m{number}", "agent": "echo"}
            until(await http.post(f"{at}/messages", json=said), 202)
            until(await http.get(f"{at}/messages/m{number}/wait"))

        async def until_last(client: httpx2.AsyncClient, start: str | None, most: int) -> list[Sent]:
            found: list[Sent] = []
            async with client.stream(
                "GET", f"{at}/events", headers={"Last-Event-ID": start} if start else {}
            ) as answer:
                async for each in events(answer):
                    found.append(each)
                    ends = [one for one in found if one.what == "lifecycle end"]
                    if len(found) == most or len(ends) == 3:
                        return found
            return found

        whole = await until_last(http, None, 10_000)
        async with gateway(
            dev_server.client, [api], task_queue=it.task_queue, gateway_tokens=tmp_path / "tokens.json"
        ) as other:
            other.http.headers.update(ann)
            pieces: list[Sent] = []
            while sum(one.what == "lifecycle end" for one in pieces) < 3:
                client = (http, other.http)[len(pieces) % 2]
                pieces += await until_last(client, pieces[-1].id if pieces else None, 3)
        durable = [(one.id, one.what) for one in whole if one.data["phase"] != "delta"]
        assert [(one.id, one.what) for one in pieces if one.data["phase"] != "delta"] == durable
        assert [one.data["data"]["messageId"] for one in whole if one.what == "message accepted"] == ["m0", "m1", "m2"]


async def test_a_stream_ends_when_its_reader_goes_its_token_does_or_the_gateway(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    gate, key = Gate(), some_name()
    async with served(dev_server, tmp_path, gate.answer, HOLD, tools=[gate.tool]) as (front, _, (ann,)):
        http = front.http
        http.headers.update(ann)
        said = {"text": "hold", "agent": "echo"}
        receipt = until(await http.post(f"/v1/sessions/{key}/messages", json=said), 202)
        await gate.asked.wait()
        at = f"/v1/runs/{quoted(receipt['runId'])}/events"
        async with http.stream("GET", at) as answer:
            async for each in events(answer):
                if each.what == "tool start":
                    break
            assert sum(front.gateway.streams.open.values()) == 1
        async with asyncio.timeout(HANG):
            while True:  # the server hears of it when the connection ends
                if not front.gateway.streams.open:
                    break
                await asyncio.sleep(0.01)
        async with http.stream("GET", at) as answer:
            seen = []
            async for each in events(answer):  # it ends with the gateway, which may stop before its first event
                front.gateway.stopping.set()
                seen.append(each.what)
            assert "lifecycle start" in seen
        gate.open.set()


async def test_another_tenants_events_are_those_of_nothing(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    who = [("a", "ann", ALL), ("b", "bob", ALL)]
    key = some_name()
    async with served(dev_server, tmp_path, echo, ECHO, who=who) as (front, _, (ann, bob)):
        http = front.http
        said = {"text": "hello", "messageId": "m", "agent": "echo"}
        receipt = until(await http.post(f"/v1/sessions/{key}/messages", json=said, headers=ann), 202)
        until(await http.get(f"/v1/sessions/{key}/messages/m/wait", headers=ann))
        for path, unknown in (
            (f"/v1/sessions/{key}/events", "/v1/sessions/none/events"),
            (f"/v1/runs/{quoted(receipt['runId'])}/events", "/v1/runs/none/events"),
        ):
            answers = [await http.get(each, headers=bob) for each in (path, unknown)]
            assert [answer.status_code for answer in answers] == [404, 404]
            texts = {a.text.replace(key, "none").replace(receipt["runId"], "none") for a in answers}
            assert len(texts) == 1, texts
