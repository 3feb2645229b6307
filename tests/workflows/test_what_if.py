"""What-if over runs on a real server: read from their histories, played under a change, and with no effect (R22.2)."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure, Selection, tool
from perdure.client.approvals import decide
from perdure.client.what_if import what_if
from perdure.hosting.model_client import ModelClient
from perdure.pages.what_if import what_if_page
from perdure.runs.what_if import Change, RunReport, WhatIfReport
from perdure.testing.cases import case_text, record, with_evaluators
from perdure.values.json import dumps
from tests.support import DONE, agent, harness, perdure
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")

BEGUN: list[Any] = []


@tool(safe=True)
def look(order: str) -> dict[str, Any]:
    """Look an order up."""
    BEGUN.append(order)
    return {"euros": 40, "to": "ann"}


@tool(dangerous=True)
def refund(euros: int) -> str:
    """Pay money back."""
    BEGUN.append(euros)
    return f"paid {euros}"


@tool
def note(text: str) -> str:
    """Write a note."""
    BEGUN.append(text)
    return "noted"


PLAN = [
    {"_tool": "look", "order": "A-1", "_outputPath": "†state.order"},
    {"_tool": "refund", "euros": "†state.order.euros", "_outputPath": "†state.paid"},
    {"_tool": "note", "text": "{†state.paid}"},
]
NEVER = {"config": {"approval": {"ask": "never"}}}


async def reported(it: Any, run_id: str, **change: Any) -> RunReport:
    """The report on a run; no tool was called for it."""
    before = list(BEGUN)
    report = await what_if(it.client, Change(**change), ids=[run_id], models=ModelClient(it.model.client()))
    assert before == BEGUN
    return report.runs[0]


async def test_r22_2_approvals_that_are_added_are_assumed_and_the_run_goes_on(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [look, refund, note], [{"calls": PLAN, "output": None}, DONE]) as it:
        run = await it.run(agent("look", "refund", "note", **NEVER))
        same = await reported(it, run.run_id, policy={"ask": "never"})
        strict = await reported(it, run.run_id, policy={"ask": "unsafe"})
    assert not same.differs
    assert [(each.call, each.tool, each.reason) for each in strict.approvals_added] == [
        ("1.1", "refund", "refund is not declared safe"),
        ("1.2", "note", "note is not declared safe"),
    ]
    assert (strict.requests, strict.requests_after, strict.unknown_calls, strict.unknown_from) == (2, 2, 0, None)
    assert not strict.plan_differs


@pytest.mark.parametrize(
    ("quorum", "reason"),
    [
        ({"by": 2}, "refund is always asked about; approved by ann; needs 1 more approval"),
        ({"roles": ["finance"]}, "refund is always asked about; needs 1 approval with the role finance"),
    ],
)
@pytest.mark.parametrize("whole", [False, True])
async def test_r22_2_the_approvals_that_a_quorum_adds_are_assumed(
    dev_server: WorkflowEnvironment, quorum: Any, reason: str, whole: bool
) -> None:
    """`whole`: a person approves the plan."""
    scope: Any = {"scope": "plan"} if whole else {}
    id = "1" if whole else "1.1"
    async with harness(dev_server.client, [look, refund, note], [{"calls": PLAN, "output": None}, DONE]) as it:
        started = await it.start(agent("look", "refund", "note", config={"approval": scope}))
        await it.until_waiting(started.id, id)
        await decide(it.client, started.id, {"call": id, "decision": "approve", "by": "ann"})
        await started.result()
        report = await reported(it, started.id, policy={"tools": {"refund": quorum}, **scope})
        same = await reported(it, started.id, policy={"tools": {"refund": {"by": 1}}, **scope})
    assert not same.approvals_added
    (added,) = report.approvals_added
    assert (added.call, added.tool, report.approvals_removed) == (id, "" if whole else "refund", [])
    assert added.reason.endswith(reason.partition("; ")[2] if whole else reason)
    assert (report.requests, report.requests_after, report.unknown_calls, report.unknown_from) == (2, 2, 0, None)
    assert report.waited_after == report.waited > 0


@pytest.mark.parametrize("recorded", ["approve", "reject"])
async def test_r22_2_a_timeout_has_the_effect_that_the_policy_gives_it(
    dev_server: WorkflowEnvironment, recorded: str
) -> None:
    waits: Any = {"ask": "dangerous", "timeout": 0.1}
    async with harness(dev_server.client, [look, refund, note], [{"calls": PLAN, "output": None}, DONE]) as it:
        config = {"approval": {**waits, "on_timeout": recorded}}
        run = await it.run(agent("look", "refund", "note", config=config))
        same = await reported(it, run.run_id, policy=config["approval"])
        other = await reported(
            it, run.run_id, policy={**waits, "on_timeout": "fail" if recorded == "approve" else "approve"}
        )
        quorum = await reported(
            it, run.run_id, policy={**waits, "on_timeout": "approve", "tools": {"refund": {"by": 2}}}
        )
    assert not same.differs
    assert other.unknown_from == 2
    assert quorum.unknown_from == (2 if recorded == "approve" else None), "no timeout approves in place of a quorum"


async def test_r22_2_a_refused_call_and_what_reads_it_and_the_next_request_are_not_what_they_were(
    dev_server: WorkflowEnvironment,
) -> None:
    async with harness(dev_server.client, [look, refund, note], [{"calls": PLAN, "output": None}, DONE]) as it:
        run = await it.run(agent("look", "refund", "note", **NEVER))
        flow = {"from": "tool:look", "to": "refund.euros", "do": "refuse"}
        report = await reported(it, run.run_id, policy={"ask": "never", "flows": [flow]})
        rule = {"rule": "count_at_most", "count": 0, "of": "refund"}
        ruled = await reported(it, run.run_id, rules=[rule])
        mistyped = WhatIfReport(runs=[await reported(it, run.run_id, rules=[{**rule, "of": "refnd"}])])
        sum_rule = {"rule": "at_most", "of": "refund.eurs", "sum": 5}
        misnamed = WhatIfReport(runs=[await reported(it, run.run_id, rules=[sum_rule])])
        order: Any = {"rule": "precedes", "first": "lok", "then": "refund"}
        above = [{"title": "x" * 200, "properties": {"euros": {"minimum": least}}} for least in (0, 9)]
        alike = await reported(it, run.run_id, rules=[{**order, "when": when} for when in above])
    assert [len(lines) for lines in (alike.refused, alike.not_accepted, alike.without_effect)] == [1, 1, 1]
    assert "rules[1]" in alike.without_effect[0]  # its text is that of the rule that has refused the call
    assert [line for line in mistyped.total_lines() if "refnd" in line] == [
        'no effect: $.config.rules[0]: "refnd" is not a known tool of this agent; did you mean "refund"?'
    ]
    assert [line for line in misnamed.total_lines() if "eurs" in line] == [
        'not valid in an agent file: $.config.rules[0]: "eurs" is not a known parameter of refund; did you mean "euros"?'
    ]
    assert not [line for line in WhatIfReport(runs=[ruled]).total_lines() if line.startswith("no effect")]
    for each in (report, ruled):
        assert [(call.call, call.tool) for call in each.refused] == [("1.1", "refund")]
        assert each.unknown_from == 2
        assert any(line.startswith("+ 1.2 note") for line in each.differences)
    assert "refund.euros comes from look" in report.refused[0].reason
    assert "the rule count_at_most(refund, 0" in ruled.refused[0].reason


async def test_r22_2_only_the_change_is_judged_not_the_rules_that_the_run_has(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [look, note], [{"calls": PLAN[:1], "output": None}, DONE]) as it:
        rule = {"rule": "count_at_most", "count": 0, "of": "refund"}
        run = await it.run(agent("look", "note", config={"rules": [rule], "approval": {"ask": "never"}}))
        policy = await reported(it, run.run_id, policy={"ask": "never"})
        rules = await reported(it, run.run_id, rules=[rule])
    assert (policy.without_effect, len(rules.without_effect)) == ([], 1)


async def test_r22_2_a_rule_may_name_the_tools_of_delegates_and_no_others(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    (tmp_path / "child.json").write_text(json.dumps(agent("note") | {"name": "child"}), encoding="utf-8")
    work = {"name": "work", "description": "Work.", "properties": {}, "_delegate": "child"}
    script = [{"calls": PLAN[:1], "output": None}, DONE]
    async with harness(dev_server.client, [look, note], script, agents=tmp_path) as it:
        run = await it.run(agent("look", work))
        rules = [{"rule": "count_at_most", "count": 1, "of": name} for name in ("note", "nte")]
        rules.append({"rule": "precedes", "first": "lok", "then": "look"})
        report = await reported(it, run.run_id, rules=rules)
    [without_effect], [not_accepted] = report.without_effect, report.not_accepted
    assert without_effect.startswith('$.config.rules[1]: "nte" is not a known tool')
    assert not_accepted.startswith('$.config.rules[2]: "lok" is not a known tool')
    assert [call.call for call in report.refused] == ["1.0"]


async def test_r22_2_what_a_person_rejected_is_unknown_where_nobody_is_asked(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [look, refund, note], [{"calls": PLAN, "output": None}, DONE]) as it:
        started = await it.start(agent("look", "refund", "note"))
        await it.until_waiting(started.id, "1.1")
        await decide(it.client, started.id, {"call": "1.1", "decision": "reject", "reason": "no"})
        await started.result()
        report = await reported(it, started.id, policy={"ask": "never"})
        loose = await reported(it, started.id, policy={"ask": "dangerous"})
    assert not loose.differs
    assert [each.call for each in report.approvals_removed] == ["1.1"]
    assert report.waited > report.waited_after == 0
    assert report.unknown_calls == 2  # the refund, and the note that reads it
    assert (report.unknown_from, report.requests_after) == (2, 1)


@pytest.mark.parametrize("terminated", [False, True])
async def test_r22_2_a_run_that_still_waits_or_was_terminated_is_played_as_far_as_it_came(
    dev_server: WorkflowEnvironment, terminated: bool
) -> None:
    async with harness(dev_server.client, [look, refund, note], [{"calls": PLAN, "output": None}]) as it:
        started = await it.start(agent("look", "refund", "note"))
        await it.until_waiting(started.id, "1.1")
        run = Perdure(it.client).get_run(started.id)
        if terminated:
            await run.terminate("no longer needed")
        same = await reported(it, started.id, policy={"ask": "dangerous"})
        report = await reported(it, started.id, policy={"ask": "never"})
        exported, case = await run.export(), await record(run)
        if not terminated:
            await run.cancel()
    assert (same.problem, same.differs) == (None, False)
    assert [each.call for each in report.approvals_removed] == ["1.1"]
    view = exported["view"]
    assert view["status"] == ("terminated" if terminated else "running")
    assert [call["status"] for call in view["calls"]] == ["done", "waiting", "pending"]
    assert "was cancelled" not in case_text(case) + dumps([*report.differences])


async def test_r22_2_another_agent_or_model_is_asked_and_tools_are_answered_from_the_record(
    dev_server: WorkflowEnvironment,
) -> None:
    other = [PLAN[0], {"_tool": "note", "text": "later"}]
    script = [
        {"calls": PLAN, "output": None},
        {"calls": [], "output": {"first": True}},
        {"calls": PLAN, "output": None},
        {"calls": [], "output": {"second": True}},
        {"calls": other, "output": None},
    ]
    document = agent("look", "refund", "note", **NEVER)
    async with harness(dev_server.client, [look, refund, note], script) as it:
        run = await it.run(document)
        asked = len(it.model.requests)
        brief = {**document, "context": [{"type": "system", "text": "Plan briefly."}, *document["context"][1:]]}
        report = await reported(it, run.run_id, agent=brief)
        assert "Plan briefly." in it.model.requests[asked].text
        assert len(it.model.requests) == asked + 2
        unknown = await reported(it, run.run_id, model="gpt-4o")
        assert it.model.requests[-1].model == "gpt-4o"
    assert report.output_differs
    assert not report.plan_differs
    assert report.unknown_from is None
    assert unknown.plan_differs
    assert unknown.unknown_from == 2
    assert any("later" in line for line in unknown.differences)


async def test_r22_2_a_model_without_a_price_is_named(dev_server: WorkflowEnvironment) -> None:
    priced = {"config": {"prices": {"gpt-4o-mini": {"prompt": 1, "completion": 1}}, "models": {"fast": "gpt-4o-mini"}}}
    async with harness(dev_server.client, [look], [{"calls": [], "output": {"a": 1}}] * 2) as it:
        run = await it.run(agent("look", **priced))
        report = await reported(it, run.run_id, model="own-model")
    assert (report.cost is None, report.cost_after, report.without_price) == (False, None, ["own-model"])
    assert "no cost: the price of own-model is not known" in WhatIfReport(runs=[report]).total_lines()


async def test_r22_2_a_delegate_a_loop_and_an_approval_in_a_loop(dev_server: WorkflowEnvironment) -> None:
    calls = [{"_tool": "refund", "euros": "†item", "_each": [1, 2, 3], "_outputPath": "†state.paid"}]
    async with harness(dev_server.client, [refund], [{"calls": calls, "output": None}, DONE]) as it:
        run = await it.run(agent("refund", **NEVER))
        report = await reported(it, run.run_id, policy={"ask": "dangerous"})
        rule = {"rule": "at_most", "sum": 4, "of": "refund.euros"}
        ruled = await reported(it, run.run_id, rules=[rule])
    assert [each.tool for each in report.approvals_added] == ["refund"] * 3
    assert report.unknown_from is None
    assert ruled.refused


@pytest.mark.parametrize(("limit", "refused"), [(102, []), (101, ["1.1"]), (100, ["1.0"])])
async def test_r22_2_a_new_limit_counts_the_items_of_a_long_loop(
    dev_server: WorkflowEnvironment, limit: int, refused: list[str]
) -> None:
    calls = [
        {"_tool": "refund", "_each": [1] * 101, "euros": "†item", "_outputPath": "†state.paid"},
        {"_tool": "refund", "euros": 1, "_after": ["1.0"]},
    ]
    async with harness(dev_server.client, [refund], [{"calls": calls, "output": None}, DONE]) as it:
        old = {"rule": "count_at_most", "count": 200, "of": "refund"}
        run = await it.run(agent("refund", config={"approval": {"ask": "never"}, "rules": [old]}))
        for new in ({"rule": "at_most", "sum": limit, "of": "refund.euros"}, {**old, "count": limit}):
            report = await reported(it, run.run_id, rules=[old, new])
            assert (report.problem, [each.call for each in report.refused]) == (None, refused)


@pytest.mark.parametrize(("items", "refused"), [(101, []), (2, []), (0, ["1.1"])])
async def test_r22_2_a_new_rule_counts_the_items_of_a_loop(
    dev_server: WorkflowEnvironment, items: int, refused: list[str]
) -> None:
    """More than 100 items run in child workflows, whose records are not read."""
    calls = [
        {"_tool": "look", "_each": [*map(str, range(items))], "order": "†item"},
        {"_tool": "refund", "euros": 1, "_after": ["1.0"]},
    ]
    async with harness(dev_server.client, [look, refund], [{"calls": calls, "output": None}, DONE]) as it:
        run = await it.run(agent("look", "refund", **NEVER))
        report = await reported(it, run.run_id, rules=[{"rule": "precedes", "first": "look", "then": "refund"}])
    assert (report.problem, [each.call for each in report.refused]) == (None, refused)


async def test_r22_2_runs_of_sessions_are_selected_as_others_are(dev_server: WorkflowEnvironment) -> None:
    name = f"what-if-{uuid.uuid4().hex[:6]}"
    async with harness(dev_server.client, [look, refund, note], [{"calls": PLAN, "output": None}, DONE]) as it:
        client = Perdure(it.client, task_queue=it.task_queue)
        talk = client.session(name, agent=Agent.of(agent("look", "refund", "note", **NEVER) | {"name": name}))
        await talk.ask("Refund order 17.", sender="ann")
        selected, report = Selection(agent=name, outermost=True), WhatIfReport()
        async with asyncio.timeout(HANG):
            while not report.runs:  # lists follow a moment later
                report = await client.what_if(selected, policy={"ask": "unsafe"})
        counted = await client.count_runs(selected)
    assert [run.run_id.rpartition("/")[0] for run in report.runs] == [talk.id]
    assert (counted, report.added) == (1, 2)


SECRET = "sk-hidden-0123456789"


@tool(safe=True)
def leak() -> str:
    """Return what a server has said."""
    return f"the server said {SECRET}"


async def test_r22_5_a_masked_value_is_in_nothing_that_is_exported(dev_server: WorkflowEnvironment) -> None:
    plan = [{"_tool": "leak", "_outputPath": "†state.said"}, {"_tool": "note", "text": "†state.said"}]
    turns = [{"calls": plan, "output": None}, {"calls": [], "output": "†state.said"}]
    async with harness(dev_server.client, [leak, note], turns) as it:
        document = Agent.of(agent("leak", "note", **NEVER))
        client = Perdure(it.client, task_queue=it.task_queue)
        run = await client.start(document, context={"api_key": SECRET}, sender="ann")
        await run.wait()
        report = await client.what_if(ids=[run.id], policy={"ask": "always"})
        case = case_text(with_evaluators(await record(run)))
    page, text = what_if_page(report, {}), dumps(report.as_json())
    assert (report.added, page.count("<svg")) == (2, 2)
    for exported in (page, text, case):
        assert "the server said" in exported
        assert SECRET not in exported


async def test_r22_2_the_command_prints_a_table_and_json(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    env = {"TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host}
    name = f"what-if-{uuid.uuid4().hex[:6]}"
    async with harness(dev_server.client, [look, refund, note], [{"calls": PLAN, "output": None}, DONE]) as it:
        document = agent("look", "refund", "note", **NEVER) | {"name": name}
        run = await Perdure(it.client, task_queue=it.task_queue).start(Agent.of(document))
        await run.wait()
        policy = tmp_path / "policy.json"
        policy.write_text('{"ask": "unsafe"}')
        printed = await perdure("what-if", run.id, "--policy", f"@{policy}", env=env)
        as_json = await perdure("what-if", run.id, "--policy", f"@{policy}", "--json", env=env)
        page = tmp_path / "what-if.html"
        shown = await perdure("what-if", run.id, "--policy", f"@{policy}", "--html", str(page), env=env)
        nowhere = await perdure(
            "what-if", run.id, "--policy", f"@{policy}", "--html", str(tmp_path / "no" / "page"), env=env
        )
        report = await Perdure(it.client).what_if(Selection(agent="nobody-has-this"), policy={"ask": "always"})
        nobody = await perdure("what-if", "--agent", "nobody-has-this", "--policy", '{"ask": "always"}', env=env)
        assert (nobody.code, nobody.out) == (0, "no run matches --agent 'nobody-has-this'\n")
        wrong = await perdure("what-if", run.id, "--policy", '{"aks": "never"}', env=env)
        assert wrong.err.startswith("perdure: --policy is not valid: ")
        missing = await perdure("what-if", "no-such-run", "--policy", '{"ask": "never"}', env=env)
        mixed = await perdure("what-if", run.id, "no-such-run", "--policy", '{"ask": "never"}', env=env)
    assert printed.code == 0
    assert (mixed.code, "runs: 2, 1 not compared" in mixed.out) == (1, True), mixed.out
    assert "asks about 1.1 refund: refund is not declared safe" in printed.out
    assert "runs: 1, 1 differ" in printed.out
    assert shown.out == printed.out
    written = page.read_text()
    assert written.count("<svg") == 2
    assert written.count('stroke-width="4"') == 2 * 2  # the calls that are asked about, in both drawings
    assert "refund is not declared safe" in written
    assert (nowhere.code, nowhere.err.count("\n")) == (2, 1)
    assert "cannot be written" in nowhere.err
    found = json.loads(as_json.out)
    assert found["totals"]["approvalsAdded"] == 2
    assert found["runs"][0]["runId"] == run.id
    assert report.runs == []
    assert wrong.code != 0
    assert "aks" in wrong.err
    assert missing.code != 0
    assert "no run 'no-such-run'" in missing.out
