"""`perdure standing`, and standing approvals over HTTP and in the audit log (R23.3)."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import Perdure
from perdure.runs.ledger import ledger_id
from tests.cli.test_approval_commands import settings
from tests.gateway.test_api import served, until
from tests.support import harness, perdure
from tests.workflows.test_audit import entries
from tests.workflows.test_standing_approvals import LATER, TOOLS, given, procedure

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_r23_3_standing_grants_lists_and_revokes(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    tenant, log = uuid.uuid4().hex, tmp_path / "audit.jsonl"
    (tmp_path / "monthly.json").write_text(json.dumps(procedure().document()), encoding="utf-8")
    plain = procedure().document() | {"metadata": {}}
    (tmp_path / "plain.json").write_text(json.dumps(plain), encoding="utf-8")
    async with harness(dev_server.client, TOOLS, [], audit=f"file:{log}") as it:
        env = settings(dev_server) | {"COLUMNS": "120", "USER": "ann", "PERDURE_TASK_QUEUE": it.task_queue}
        ends = ["--uses", "2", "--until", LATER, "--tenant", tenant]
        file, limit = str(tmp_path / "monthly.json"), '{"properties": {"euros": {"maximum": 50}}}'
        empty = await perdure("standing", "list", "--tenant", tenant, env=env)
        granted = await perdure("standing", "grant", file, *ends, "--bounds", limit, env=env)
        twice = await perdure("standing", "grant", file, *ends, env=env)
        wrong = [
            await perdure("standing", "grant", str(tmp_path / "plain.json"), *ends, env=env),
            await perdure("standing", "grant", file, *ends, "--bounds", "[1]", env=env),
            await perdure("standing", "grant", file, *ends, "--from", "!tool:x", env=env),
        ]
        run = await Perdure(dev_server.client, task_queue=it.task_queue).start(procedure(), given(), tenant=tenant)
        await run.result()
        shown = await perdure("show", run.id, env=env)
        listed = await perdure("standing", "list", "--tenant", tenant, env=env)
        revoked = await perdure("standing", "revoke", "monthly", "--tenant", tenant, "--json", env=env)
        nothing = await perdure("standing", "revoke", "other", "--tenant", tenant, env=env)
        audited = await entries(log, 3)
        await dev_server.client.get_workflow_handle(ledger_id(tenant)).terminate()
    assert empty.out == "the tenant has no standing approval\n"
    assert granted.out == "monthly: 2 runs of monthly until 2999-12-31T23:59:59+00:00 (UTC)\n"
    assert (twice.code, "there is a standing approval monthly already" in twice.err) == (1, True)
    assert [each.code for each in wrong] == [2, 2, 2]
    assert "monthly is not a procedure" in wrong[0].err
    assert "approve by ann (standing approval monthly, run 1 of 2, until 2999-12-31)" in " ".join(shown.out.split())
    assert listed.out.splitlines()[1].split()[:6] == ["monthly", "monthly", "active", "1", "of", "2"]
    assert (json.loads(revoked.out)["status"], json.loads(revoked.out)["revokedBy"]) == ("revoked", "ann")
    assert (nothing.code, nothing.err) == (1, "perdure: there is no standing approval other\n")
    told = {(each["action"], each["by"], each["data"].get("change"), each["data"].get("via")) for each in audited}
    assert told == {
        ("standing_approval", "ann", "granted", None),
        ("decision", "ann", None, "standing approval monthly"),
        ("standing_approval", "ann", "revoked", None),
    }


async def test_r23_3_standing_approvals_over_http(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    tenant = uuid.uuid4().hex
    who = [
        (tenant, "ann", ["read", "grant"]),
        (tenant, "ron", ["read", "send", "approve"]),
        (f"{tenant}-2", "eve", ["*"]),
    ]
    document = procedure().document()
    async with served(dev_server, tmp_path, [], document, tools=TOOLS, who=who) as (front, _, (ann, ron, eve)):
        http, body = front.http, {"procedure": "monthly", "uses": 3, "until": LATER}
        assert (await http.post("/v1/standing-approvals", json=body, headers=ron)).status_code == 403
        made = await http.post("/v1/standing-approvals", json=body, headers=ann)
        granted = until(made, 201)
        assert (granted["by"], granted["uses"], made.headers["location"]) == (
            "ann",
            3,
            "/v1/standing-approvals/monthly",
        )
        for wrong, status in (({"procedure": "nobody"}, 404), ({"uses": 0}, 422), ({"until": "x"}, 422), ({}, 409)):
            refused = await http.post("/v1/standing-approvals", json={**body, **wrong}, headers=ann)
            assert refused.status_code == status, wrong
        run = until(await http.post("/v1/runs", json={"agent": "monthly", "input": given()}, headers=ron), 201)["runId"]
        assert until(await http.get(f"/v1/runs/{run}/wait", headers=ron))["status"] == "ok"
        found = until(await http.get("/v1/standing-approvals", headers=ron))["standingApprovals"]
        assert [(each["name"], each["used"], each["status"]) for each in found] == [("monthly", 1, "active")]
        assert until(await http.get("/v1/standing-approvals", headers=eve)) == {"standingApprovals": []}
        assert (await http.delete("/v1/standing-approvals/monthly", headers=ron)).status_code == 403
        assert (await http.delete("/v1/standing-approvals/monthly", headers=eve)).status_code == 404
        assert until(await http.delete("/v1/standing-approvals/monthly", headers=ann))["revokedBy"] == "ann"
        for each in (tenant, f"{tenant}-2"):
            await dev_server.client.get_workflow_handle(ledger_id(each)).terminate()
