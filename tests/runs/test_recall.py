"""Where a value comes from that is read again (R15.1)."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.approvals.policy import parse_policy
from perdure.models.requests import RequestResult
from perdure.plan import Call, Returned
from perdure.runs.agent import Context, ModelChoice, Models, parse_agent
from perdure.runs.recall import with_sources
from perdure.runs.run import RunState
from perdure.runs.wire import PreparedWorker
from perdure.tools.tool import parse_tool
from perdure.values.json import Json
from perdure.values.provenance import untrusted_sources
from tests.runs.test_snapshot import continued

NOW = "2026-01-01T00:00:00Z"
NAMES = ("recall", "mail", "count", "ask_agent")


def new_run(**config: Any) -> RunState:
    tools = [
        parse_tool({"name": "recall", "_untrusted": False, "properties": {}}, activities=NAMES, registered=True),
        parse_tool({"name": "mail", "_untrusted": True, "properties": {}}, activities=NAMES, registered=True),
        parse_tool({"name": "count", "properties": {}}, activities=NAMES, registered=True),
        parse_tool({"name": "ask_agent", "_delegate": "other", "properties": {}}, activities=NAMES),
    ]
    tools[0] = tools[0].model_copy(update={"code_untrusted": True})
    context: list[Json] = [{"type": "tool", "tool": name} for name in NAMES[:3]]
    context += [{"type": "tool", "tool": {"name": "ask_agent", "_delegate": "other"}}]
    context += [{"type": "state", "state": {"own": "text"}}]
    agent = parse_agent({"name": "a", "config": {"show": "shape"} | config, "context": context})
    prepared = PreparedWorker(tools=tools, recall=tools[0], models=Models(fast="m", smart="m"))
    return RunState(agent, Context(agent, None, has_input=False), prepared)


def request(run: RunState, *made: dict[str, Any]) -> list[Call]:
    """The next Request, with calls that all return; what `recall` gives is given its sources."""
    run.situation()
    run.begin_request(ModelChoice("m", "only"))
    plan = run.open_plan(run.progress.number)
    for each in made:
        plan.add(each)
    plan.close()
    while ready := plan.take_ready(NOW):
        for call in ready:
            outcome = Returned(f"what {call.spec.tool_name} gave")
            plan.end(call, with_sources(run, call, outcome) if call.spec.tool_name == "recall" else outcome, NOW)
    calls = list(plan.calls)
    run.close_request(plan, RequestResult(calls=[call.spec.raw for call in calls]))
    return calls


def read(what: str) -> dict[str, Any]:
    return {"_tool": "recall", "what": what}


FIRST = (
    {"_tool": "mail", "_outputPath": "†state.mail"},
    {"_tool": "count", "_outputPath": "†state.count"},
    {"_tool": "count", "of": "†state.mail", "_outputPath": "†state.of_mail"},
    {"_tool": "ask_agent"},
)
KNOWN = ["1.1", "state.count", "state.own", "state.count.deeper"]
OTHERS = [
    "1.0",
    "1.2",
    "state.mail",
    "state.of_mail",
    "state",
    "†state.own || †state.mail",
    "1.9",
    "1.3",
    "c1_1_0",
    "x",
]


@pytest.mark.parametrize("what", [*KNOWN, *OTHERS])
@pytest.mark.parametrize("anew", [False, True], ids=["as it runs", "after continue-as-new"])
def test_what_is_read_again_has_its_own_sources(what: str, anew: bool) -> None:
    run = new_run()
    request(run, *FIRST)
    if anew:
        run = continued(run)
    (call,) = request(run, read(what))
    assert call.state.status == "done"
    assert bool(untrusted_sources(call.state.sources)) == (what in OTHERS)


@pytest.mark.parametrize("what", ["1.1", "state.count"])
def test_what_is_read_again_has_the_names_of_trusted_tools(what: str) -> None:
    run = new_run()
    request(run, *FIRST)
    (call,) = request(run, read(what))
    assert "tool:count" in call.state.sources


def test_r15_3_who_has_read_what_others_wrote_reads_nothing_as_its_own() -> None:
    run = new_run(show="values")
    request(run, *FIRST)
    (call,) = request(run, read("state.count"))
    assert untrusted_sources(call.state.sources)


def test_a_name_that_others_wrote_makes_what_is_read_theirs() -> None:
    run = new_run()
    request(run, *FIRST)
    (call,) = request(run, read("†state.mail"))
    assert untrusted_sources(call.state.sources), "the model could not have chosen this without the mail"


def test_what_stood_there_while_it_was_read_counts() -> None:
    run = new_run()
    *_, call, _ = request(
        run,
        {"_tool": "mail", "_outputPath": "†state.x"},
        {"_tool": "count", "_after": "1.0", "_outputPath": "†state.x"},
        {**read("state.x"), "_after": "1.1"},
        {"_tool": "count"},
    )
    assert untrusted_sources(call.state.sources), "it may have been read before it was written over"


def test_where_rules_of_flows_name_tools_an_earlier_result_stays_untrusted() -> None:
    run = new_run()
    run.approval_queue.guard.floor_flows = parse_policy(
        {"flows": [{"from": "tool:count", "to": "mail", "do": "ask"}]}
    ).flows
    request(run, *FIRST)
    (call,) = request(run, read("1.1"))
    assert untrusted_sources(call.state.sources)


def test_an_agent_file_that_says_that_others_write_it_is_followed() -> None:
    run = new_run()
    run.tools["recall"] = run.tools["recall"].model_copy(update={"untrusted": True})
    request(run, *FIRST)
    (call,) = request(run, read("state.count"))
    assert untrusted_sources(call.state.sources)
