"""Rules as people see them (R23.1): `perdure limits`, and the verdicts in commands, pages and the Web UI."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime

import pytest
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure
from perdure.pages.adapter import pages
from perdure.rules import Rule, at_most, count_at_most, precedes
from perdure.runs.ledger import ledger_id
from tests.cli.test_approval_commands import settings
from tests.gateway.support import gateway
from tests.support import DONE, agent, harness, perdure
from tests.workflows.test_rules import TOOLS, checks, pays, plan, refund, rules

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_r23_1_limits_lists_what_is_used(dev_server: WorkflowEnvironment) -> None:
    tenant, env = uuid.uuid4().hex, settings(dev_server) | {"COLUMNS": "100"}
    sums: list[Rule] = [
        at_most("refund.euros", 100, per="tenant/day"),
        count_at_most("refund", 2500, per="tenant/month"),
    ]
    clerk = Agent("clerk", tools=[refund], rules=sums)
    async with harness(dev_server.client, TOOLS, [plan(pays(60.5), pays(30)), DONE]) as it:
        before = await perdure("limits", "--tenant", tenant, env=env)
        run = await Perdure(dev_server.client, task_queue=it.task_queue).start(clerk, "pay", tenant=tenant)
        await run.result()
        shown = await perdure("limits", "--tenant", tenant, env=env)
        narrow = await perdure("limits", "--tenant", tenant, env=env | {"COLUMNS": "60"})
        as_json = await perdure("limits", "--tenant", tenant, "--json", env=env)
        nobody = await perdure("limits", "--tenant", f"{tenant}-2", "--json", env=env)
        await dev_server.client.get_workflow_handle(ledger_id(tenant)).terminate()
    assert [each.code for each in (before, shown, narrow, as_json, nobody)] == [0] * 5, shown.err
    assert before.out == "the tenant has no use that a rule or a budget counts over runs\n"
    today = datetime.now(UTC).date().isoformat()
    assert json.loads(as_json.out)[0]["used"] == 90.5
    assert json.loads(nobody.out) == []
    lines = shown.out.splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["at_most(refund.euros,", "sum=100,", 'per="tenant/day")', today, "90.5", "of", "100", "2"],
        ["count_at_most(refund,", "2500,", 'per="tenant/month")', today[:7], "2", "of", "2,500", "calls", "2"],
    ]
    assert all(len(line) <= 60 for line in narrow.out.splitlines())


async def test_r23_1_the_verdicts_are_shown_wherever_a_run_is(dev_server: WorkflowEnvironment) -> None:
    env = settings(dev_server) | {"COLUMNS": "200"}
    config = rules(
        precedes("fraud_check", "refund", same="customer"), at_most("refund.euros", 100), count_at_most("send_mail", 3)
    ) | {"approval": {"tools": {"refund": "always"}}}
    state = {"type": "state", "state": {"amount": 60}}
    script = [plan(checks(), pays("†state.amount", _after=["1.0"]), pays("†state.amount", _after=["1.0"])), DONE]
    proven = 'proven: precedes(fraud_check, refund, same="customer")'
    unknown = 'unknown: at_most(refund.euros, sum=100, per="run"): the sum is only known at the calls'
    mails = 'proven: count_at_most(send_mail, 3, per="run")'
    violated = (
        'violated: at_most(refund.euros, sum=100, per="run"): the sum of refund.euros would be 120; the limit is 100'
    )
    async with harness(dev_server.client, TOOLS, script) as it:
        handle = await it.start(agent("fraud_check", "refund", "send_mail", context=[state], config=config))
        await it.until_waiting(handle.id, "1.1", "1.2")
        run = Perdure(dev_server.client).get_run(handle.id)
        view = await run.view()
        assert view.rules == [unknown, proven, mails]
        assert [each.rules for each in view.waiting] == [[unknown, proven]] * 2
        listed = await perdure("approvals", handle.id, env=env)
        assert listed.out.count(unknown) == 2
        shown = await perdure("show", handle.id, env=env)
        assert mails in shown.out
        found: WorkflowMetadata = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
        assert "- unknown: at_most(refund.euros, sum=100" in found.current_details
        async with gateway(dev_server.client, [pages], task_queue=it.task_queue) as served:
            page = (await served.http.get(f"/runs/{handle.id}")).text
            assert "the sum is only known at the calls" in page
            request = (await served.http.get("/inbox/", params={"run": handle.id, "call": "1.1"})).text
            assert "the sum is only known at the calls" in request
        await run.approve("1.1")
        (left,) = await run.waiting()
        assert left.rules[0] == violated
        await run.reject("1.2")
        await handle.result()
        assert (await run.view()).rules == []
