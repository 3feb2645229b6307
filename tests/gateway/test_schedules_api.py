"""Schedules over HTTP: as runs are, with the token's tenant and rights (R19.6)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from tests.gateway.support import some_name
from tests.gateway.test_api import GREETER, until
from tests.gateway.test_api import served as serving
from tests.support import DONE
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_r19_6_a_schedule_from_its_creation_to_its_end(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    name = some_name()
    path = f"/v1/schedules/{name}"
    who = [
        ("acme", "ann", ["read", "send", "stop"]),
        ("acme", "sue", ["read", "send"]),
        ("acme", "ron", ["read"]),
        ("other", "eve", ["*"]),
    ]
    async with serving(dev_server, tmp_path, lambda _: DONE, GREETER, who=who) as (front, _, (ann, sue, ron, eve)):
        http = front.http
        body: dict[str, Any] = {"schedule": name, "agent": "greeter", "input": {"who": "{{scheduled}}"}}
        body |= {"cron": "0 4 1 1 *", "timezone": "Europe/Berlin"}
        assert (await http.post("/v1/schedules", json=body, headers=ron)).status_code == 403
        made = await http.post("/v1/schedules", json=body, headers=sue)
        assert until(made, 201)["next"][0].endswith("-01-01T04:00:00+01:00")
        assert made.headers["location"] == path
        taken = await http.post("/v1/schedules", json=body, headers=ann)
        assert (taken.status_code, "replace it" in taken.json()["detail"]) == (409, True)
        for wrong, status in (
            ({"agent": "nobody"}, 404),
            ({"cron": ["every night"]}, 422),
            ({"cron": 4}, 422),
            ({"timezone": "Mars"}, 422),
            ({"input": {}}, 422),
            ({"schedule": "a/b"}, 422),
        ):
            refused = await http.post("/v1/schedules", json={**body, "schedule": some_name(), **wrong}, headers=ann)
            assert refused.status_code == status, wrong
        assert (await http.post("/v1/schedules", json={**body, "replace": True}, headers=sue)).status_code == 403
        again = {**body, "cron": [body["cron"]], "replace": True, "note": "n"}
        until(await http.post("/v1/schedules", json=again, headers=ann), 201)
        for method, at in (("GET", ""), ("DELETE", ""), ("POST", "/trigger"), ("POST", "/pause"), ("POST", "/resume")):
            answer = await http.request(method, path + at, headers=eve, json={} if method == "POST" else None)
            assert (answer.status_code, answer.json()["detail"]) == (
                404,
                f"there is no schedule {name!r} in namespace 'default'",
            )
        assert until(await http.get("/v1/schedules", headers=eve)) == {"schedules": []}
        assert (await http.post(f"{path}/pause", json={}, headers=sue)).status_code == 403
        until(await http.post(f"{path}/pause", json={"note": "closed"}, headers=ann), 204)
        shown = until(await http.get(path, headers=ron))
        assert (shown["paused"], shown["note"], shown["sender"]) == (True, "closed", "ann")
        until(await http.post(f"{path}/resume", headers=sue), 204)
        untyped = await http.post(f"{path}/trigger", content=b"{}", headers=sue)
        assert (untyped.status_code, untyped.json()["detail"]) == (
            415,
            "the body must be application/json, and the request has no Content-Type",
        )
        until(await http.post(f"{path}/trigger", json={}, headers=sue), 202)
        run = (await _until_run(http, path, sue))["runId"]
        assert until(await http.get(f"/v1/runs/{run}/wait", params={"timeout": 60}, headers=sue))["status"] == "ok"
        told = until(await http.get(f"/v1/runs/{run}", headers=sue))
        assert (told["schedule"], run.startswith(f"{name}@")) == (name, True)
        assert (await http.get(f"/v1/runs/{run}", headers=eve)).status_code == 404
        future = {"from": "2026-01-01", "to": "9999-01-01"}
        assert (await http.post(f"{path}/backfill", json=future, headers=sue)).status_code == 422
        until(await http.post(f"{path}/backfill", json={"from": "2026-01-01", "to": "2026-01-02"}, headers=sue), 202)
        assert (await http.delete(path, headers=sue)).status_code == 403
        until(await http.delete(path, headers=ann), 204)
        assert (await http.get(path, headers=ann)).status_code == 404


async def _until_run(http: Any, path: str, headers: dict[str, str]) -> Any:
    """The server lists a run a moment after it began."""
    async with asyncio.timeout(HANG):
        while True:
            if runs := until(await http.get(path, headers=headers))["runs"]:
                return runs[0]
            await asyncio.sleep(0.05)
