"""Section 5 where it meets the loop: what a plan is, what the model is shown of it, and how a run starts with one."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import ToolError, tool
from tests.support import DONE, agent, harness

pytestmark = pytest.mark.asyncio(loop_scope="session")


@tool
def echo(value: Any) -> Any:
    """Give it back."""
    return value


@tool(retries=0)
def fail() -> None:
    """Fails."""
    raise ToolError("broken", "it is broken")


def shown(prompt: str, title: str) -> list[Any]:
    """The JSON lines under one heading of a prompt."""
    block = re.search(rf"^# {title}[^\n]*\n(.*?)(?=^# |\Z)", prompt, re.MULTILINE | re.DOTALL)
    assert block is not None, f"no {title} in {prompt}"
    return [json.loads(line) for line in block.group(1).strip().splitlines() if line.startswith("{")]


async def test_r2_5_the_plan_is_carried_with_each_calls_status(dev_server: WorkflowEnvironment) -> None:
    calls: list[dict[str, Any]] = [
        {"_tool": "fail", "_outputPath": "†state.x"},
        {"_tool": "echo", "value": "†state.x"},
        {"_tool": "echo", "value": 7, "_outputPath": "†state.seven"},
        {"_tool": "echo", "value": "†state.seven"},
    ]
    async with harness(dev_server.client, [echo, fail], [{"calls": calls, "output": None}, DONE]) as it:
        await it.run(agent("echo", "fail"))
        prompt = it.model.requests[1].text
    plan = shown(prompt, "plan")
    assert [(call["_id"], call["_status"]) for call in plan] == [
        ("1.0", "failed"),
        ("1.1", "skipped"),
        ("1.2", "done"),
        ("1.3", "done"),
    ]
    assert plan[3]["value"] == "†state.seven"
    assert shown(prompt, "error") == [
        {
            "call": {**calls[0], "_id": "1.0", "_status": "failed"},
            "error": {"code": "broken", "message": "it is broken"},
        }
    ]
    assert shown(prompt, "state") == [{"seven": 7}]
    assert shown(prompt, "results") == [{"1.3": {"tool": "echo", "params": {"value": "†state.seven"}, "result": 7}}]


async def test_a_value_in_state_is_not_shown_again_as_a_result(dev_server: WorkflowEnvironment) -> None:
    calls = [{"_tool": "echo", "value": "only-once", "_outputPath": "†state.a"}]
    again = {"calls": [{"_tool": "echo", "value": "†state.a", "_outputPath": "†state.b"}], "output": None}
    async with harness(dev_server.client, [echo], [{"calls": calls, "output": None}, again, DONE]) as it:
        await it.run(agent("echo"))
        second, third = (request.text for request in it.model.requests[1:])
    assert second.count("only-once") == 2  # in state, and in the plan as the model itself wrote it
    assert third.count("only-once") == 2  # in state under its two paths


async def test_r5_7_a_call_is_named_by_request_and_index(dev_server: WorkflowEnvironment) -> None:
    script = [
        {"calls": [{"_tool": "echo", "value": 1}] * 2, "output": None},
        {"calls": [{"_tool": "echo", "value": 2}], "output": 1},
    ]
    async with harness(dev_server.client, [echo], script) as it:
        handle = await it.start(agent("echo"))
        await handle.result()
        history = await handle.fetch_history()
    scheduled = [
        event.activity_task_scheduled_event_attributes
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    assert [
        (event.activity_id, event.activity_type.name) for event in scheduled if event.activity_type.name == "echo"
    ] == [
        ("1.0", "echo"),
        ("1.1", "echo"),
        ("2.0", "echo"),
    ]


async def test_r5_8_a_graph_as_output_is_data(dev_server: WorkflowEnvironment) -> None:
    graph = [{"_tool": "echo", "value": "†state.nope"}, {"_tool": "unknown"}]
    async with harness(dev_server.client, [echo], [{"calls": [], "output": graph}]) as it:
        view = await it.run(agent("echo"))
    assert (view.status, view.output, view.calls) == ("completed", graph, [])


async def test_r5_9_a_given_plan_runs_first_or_is_only_shown(dev_server: WorkflowEnvironment) -> None:
    given = {"type": "plan", "plan": [{"_tool": "echo", "value": "†input.n", "_outputPath": "†state.n"}]}
    async with harness(dev_server.client, [echo], [DONE, DONE]) as it:
        ran = await it.run(agent("echo", context=[given, {"type": "input"}], config={"start": "plan"}), {"n": 5})
        only = await it.run(agent("echo", context=[given, {"type": "input"}]), {"n": 5})
        first, second = (shown(request.text, "plan") for request in it.model.requests)
    assert ([call.id for call in ran.calls], ran.state, ran.requests) == (["0.0"], {"n": 5}, 1)
    assert (only.calls, only.state, only.requests) == ([], {}, 1)
    assert (first[0]["_status"], "_status" in second[0]) == ("done", False)


async def test_r5_9_a_plan_given_with_its_output_runs_first_unless_the_author_says_model(
    dev_server: WorkflowEnvironment,
) -> None:
    calls = [{"_tool": "echo", "value": "†input.n", "_outputPath": "†state.n"}]
    given = {"type": "plan", "plan": calls, "output": {"n": "†state.n"}}
    async with harness(dev_server.client, [echo], [DONE]) as it:
        ran = await it.run(agent("echo", context=[given]), {"n": 5})
        shown_only = await it.run(agent("echo", context=[given], config={"start": "model"}), {"n": 5})
    assert (ran.output, ran.requests, [call.id for call in ran.calls]) == ({"n": 5}, 0, ["0.0"])
    assert (shown_only.output, shown_only.requests, shown_only.calls) == ({"ok": True}, 1, [])


async def test_r6_4_an_output_is_resolved_as_parameters_are(dev_server: WorkflowEnvironment) -> None:
    got = {"_tool": "echo", "value": {"x": 1, "note": "see {††state.got.x}"}, "_outputPath": "†state.got"}
    graph = {"_tool": "echo", "value": "†state.nope"}
    output = {
        "all": ["†state.got.x", "x is {†state.got.x}", "††state.got", "†state.got.note"],
        "either": "†state.no || †input.n",
        "g": graph,
    }
    text = {"_tool": "echo", "value": "{††state.x}", "_outputPath": "†state.text"}
    script = [{"calls": [text, got], "output": output}, {"calls": [text], "output": "†state.text"}]
    async with harness(dev_server.client, [echo], script) as it:
        parts = await it.run(agent("echo"), {"n": 5})
        whole = await it.run(agent("echo"), {"n": 5})
        schema = it.model.requests[0].body["response_format"]["json_schema"]["schema"]
    assert parts.errors == []
    assert parts.output == {"all": [1, "x is 1", "†state.got", "see {†state.got.x}"], "either": 5, "g": graph}
    assert whole.output == "{†state.x}"  # what came out of data is not read again
    assert schema["properties"]["output"] == {}


async def test_r6_4_what_an_output_takes_may_be_a_reference(dev_server: WorkflowEnvironment) -> None:
    schema = {"type": "object", "properties": {"rows": {"type": "array"}}, "required": ["rows"]}
    calls = [{"_tool": "echo", "value": [1], "_outputPath": "†state.rows"}]
    wrong = {"calls": calls, "output": {"rows": "†state.row"}}
    script = [wrong, {"calls": [], "output": {"rows": "†state.rows"}}]
    async with harness(dev_server.client, [echo], script) as it:
        view = await it.run(agent("echo", schema=schema))
        offered = json.dumps(it.model.requests[0].body["response_format"]["json_schema"]["schema"])
        told = it.model.requests[1].text
    assert view.output == {"rows": [1]}
    assert "$.rows: †state.row does not exist and no call writes it; near it are †state.rows" in told
    assert '"rows": {"anyOf": [{"type": "array"' in offered
    assert '{"$ref": "#/$defs/reference"}' in offered


@pytest.mark.parametrize("dialect", ["solution", "tools", "script"])
async def test_r6_4_an_output_beside_what_did_not_succeed_is_asked_for_again(
    dialect: str, dev_server: WorkflowEnvironment
) -> None:
    taken = {"_tool": "fail", "_outputPath": "†state.ok || †state.bad"}
    script = [
        {"calls": [{"_tool": "nope"}], "output": {"ok": 1}},
        {"calls": [{"_tool": "fail"}], "output": {"ok": "†state.never"}},
        {"calls": [taken], "output": {"ok": "†state.bad.code"}},
    ]
    async with harness(dev_server.client, [echo, fail], script) as it:
        it.model.dialect = dialect
        view = await it.run(agent("echo", "fail", config={"dialect": dialect}, schema={"type": "object"}))
        told = [request.text for request in it.model.requests[1:]]
    assert (view.output, view.requests, len(view.errors)) == ({"ok": "broken"}, 3, 2)
    assert "The output was not returned, because calls beside it did not succeed: 1.0 nope (invalid)." in told[0]
    assert "did not succeed: 2.0 fail (failed)." in told[1]


async def test_r5_10_step_mode_drains_when_the_solution_has_an_output(dev_server: WorkflowEnvironment) -> None:
    calls = [
        {"_tool": "echo", "value": 1, "_outputPath": "†state.a"},
        {"_tool": "echo", "value": "†state.a", "_outputPath": "†state.b"},
    ]
    script = [{"calls": calls, "output": None}, {"calls": calls, "output": {"ok": True}}]
    async with harness(dev_server.client, [echo], script) as it:
        view = await it.run(agent("echo", config={"execution": "step"}))
        plan = shown(it.model.requests[1].text, "plan")
    # At the second Request †state.a exists, but the call before writes it anew: still bound to it.
    assert [call.status for call in view.calls] == ["done", "deferred", "done", "done"]
    assert plan[1]["_status"] == "deferred"


async def test_a_hundred_calls_in_three_levels_with_unicode_names(dev_server: WorkflowEnvironment) -> None:
    name = {
        "name": "ausführen_実行_выполнить",
        "properties": {"värde": {}},
        "required": ["värde"],
        "_activity": "echo_any",
    }

    @tool
    def echo_any(**params: Any) -> Any:
        """Give the parameters back."""
        return params["värde"]

    def call(value: Any, path: str) -> dict[str, Any]:
        return {"_tool": name["name"], "värde": value, "_outputPath": path}

    first = [call(n, f"†state.レベル.a{n}") for n in range(60)]
    second = [
        call([f"†state.レベル.a{2 * n}", f"†state.レベル.a{2 * n + 1}"], f'†state["zweite Ebene"].б{n}')
        for n in range(30)
    ]
    third = [
        call(f'†state["zweite Ebene"].б{3 * n} && †state["zweite Ebene"].б{3 * n + 2}', f"†state.c{n}")
        for n in range(10)
    ]
    calls = [*third, *second, *first]
    async with harness(dev_server.client, [echo_any], [{"calls": calls, "output": {"ok": True}}]) as it:
        view = await it.run(agent(name))
    assert {call.status for call in view.calls} == {"done"}
    assert view.state["c9"] == [58, 59]
