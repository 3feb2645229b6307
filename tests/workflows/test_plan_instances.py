"""One plan, many instances, over a real run (R8.8)."""

from __future__ import annotations

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from tests.support import DONE, agent, harness

pytestmark = pytest.mark.asyncio(loop_scope="session")


@tool
def greet(name: str, greeting: str) -> str:
    """Greet somebody."""
    return f"{greeting} {name}"


async def test_r8_8_one_plan_many_instances(dev_server: WorkflowEnvironment) -> None:
    names = ["ann", "bo", "cy"]
    context = [
        {"type": "state", "state": {"greeting": "Hello"}},
        *({"type": "input", "_instance": name, "input": {"name": name.title()}} for name in names),
    ]
    calls = [
        {
            "_tool": "greet",
            "name": "†input.name",
            "greeting": "†state.greeting",
            "_outputPath": "†state.text",
            "_instance": name,
        }
        for name in names
    ]
    calls.append({"_tool": "greet", "name": "†input.name", "greeting": "x", "_instance": "dora"})
    async with harness(dev_server.client, [greet], [{"calls": calls, "output": None}, DONE]) as it:
        view = await it.run(agent("greet", context=context))
        first, second = (request.text for request in it.model.requests)
    assert [call.status for call in view.calls] == ["done"] * 3 + ["invalid"]
    assert view.state == {
        "greeting": "Hello",
        "@ann": {"text": "Hello Ann"},
        "@bo": {"text": "Hello Bo"},
        "@cy": {"text": "Hello Cy"},
    }
    assert "# input (instance ann)" in first
    assert "The context has instances that know nothing of each other: ann, bo, cy." in first
    assert '# state (instance bo)\n{"text":"Hello Bo"}' in second
    assert '# state\n{"greeting":"Hello"}' in second
    assert "there is no instance" in view.errors[0]["error"]["message"]
