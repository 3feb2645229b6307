"""The live table of a run, for the Web UI's current details (R12.8)."""

from __future__ import annotations

import re

from perdure.approvals.policy import Policy
from perdure.errors import CallError
from perdure.models.requests import RequestResult
from perdure.plan import Failed, Returned
from perdure.runs.agent import Context, Models, auto, parse_agent
from perdure.runs.run import RunState
from perdure.runs.views import progress_markdown
from perdure.runs.wire import PreparedWorker
from perdure.tools.tool import parse_tool

TOOL = parse_tool({"name": "t", "additionalProperties": True, "_activity": "t"}, activities=["t"])


def new_run() -> RunState:
    agent = parse_agent({"name": "helper"})
    return RunState(agent, Context(agent), PreparedWorker(tools=[TOOL], models=Models()))


def test_r12_8_the_table_names_calls_with_status_parameters_and_path() -> None:
    run = new_run()
    run.begin_request(auto(run.situation()))
    plan = run.open_plan(1)
    plan.add({"_tool": "t", "x": "a|b", "_outputPath": "†state.a"})
    plan.add({"_tool": "t", "x": "†state.a"})
    plan.add({"_tool": "t", "x": 1})
    plan.close()
    first, third = plan.take_ready()
    plan.end(first, Failed(CallError("boom", "it\nbroke")))
    text = progress_markdown(run)
    assert "**helper**: 1 Request, 0 of 3 calls done" in text
    assert "Request 1: gpt-4o-mini (first Request), running" in text
    assert '| 1.0 | failed | t | x="a\\|b" | †state.a |' in text
    assert "- 1.0 it broke" in text
    assert "- 1.1 $.x reads †state.a from 1.0 t, which did not succeed (failed)" in text
    plan.end(third, Returned(1))
    assert not run.close_request(plan, RequestResult(output={"done": 1}))  # a call beside it has failed (R6.4)
    run.begin_request(auto(run.situation()))
    plan = run.open_plan(2)
    plan.close()
    assert run.close_request(plan, RequestResult(output={"done": 1}))
    assert 'Output: `{"done": 1}`' in progress_markdown(run)


def test_r12_8_calls_stay_in_the_table_over_requests_that_make_none() -> None:
    run = new_run()
    for number, calls in ((1, 30), (2, 30), (3, 0)):
        run.begin_request(auto(run.situation()))
        plan = run.open_plan(number)
        for n in range(calls):
            plan.add({"_tool": "t", "x": n})
        plan.close()
        for call in plan.take_ready():
            plan.end(call, Returned(n))
        run.close_request(plan, RequestResult())
    text = progress_markdown(run)
    assert (text.count("\n| 1."), text.count("\n| 2.")) == (10, 30)
    assert "20 earlier calls are not shown." in text


def test_what_a_page_says_is_no_markup_of_the_table() -> None:
    """The attack: a text ends its cell and goes on with a reason of its own, or is a link or a picture of elsewhere."""
    run = new_run()
    run.approval_queue.guard.loosen_or_tighten(Policy(ask="always"))
    run.begin_request(auto(run.situation()))
    plan = run.open_plan(1)
    plan.add({"_tool": "t", "x": "\\| checked by Ann |", "y": "![x](//e.example) <b>`|`"})
    plan.close()
    run.approval_queue.add_call(plan, plan.take_ready()[0], "2026-01-01T00:00:00Z")
    row = next(line for line in progress_markdown(run).splitlines() if line.startswith("| 1.0 | t |"))
    # An escape is two characters; what is left over has its meaning in Markdown.
    assert re.sub(r"\\[^\w\s]", "", row).count("|") == 6
    assert not set("[<`") & set(re.sub(r"\\[^\w\s]", "", row))
    run.output.value = "``` ![x](//e.example)"
    assert progress_markdown(run).endswith('Output: ```` "``` ![x](//e.example)" ````')
