"""Delegates: an agent as a tool of another, isolated, as a child workflow (R8.1 to R8.4)."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from perdure.client.approvals import decide, waiting_below
from perdure.errors import DecisionRefusedError
from perdure.testing.scripted_model import ChatRequest, Turn
from tests.cli.test_commands import one_line
from tests.support import DONE, agent, harness, perdure
from tests.timeouts import HANG
from tests.workflows.test_approvals import TOOLS, look, remove

pytestmark = pytest.mark.asyncio(loop_scope="session")

WRITER = {
    "name": "writer",
    "context": [
        {"type": "system", "text": "You are WRITER. CHILD-SECRET."},
        {
            "type": "input",
            "schema": {"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]},
        },
        {"type": "tool", "tool": "look"},
    ],
    "schema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}
WRITE = {"name": "write", "description": "Have a text written.", "properties": {"topic": {}}, "_delegate": "writer"}


def save(folder: Path, *documents: dict[str, Any]) -> Path:
    for document in documents:
        (folder / f"{document['name']}.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


def parts(**answers: Any) -> Callable[[ChatRequest], Any]:
    """A model that answers by who is asking: `WRITER=[…]` gives the turns of whoever's system text says WRITER."""
    asked: dict[str, int] = {}

    def answer(request: ChatRequest) -> Any:
        system = request.messages[0]["content"]
        who = next((name for name in answers if f"You are {name}." in system), "PARENT")
        turns = answers[who]
        asked[who] = asked.get(who, 0) + 1
        return turns(request) if callable(turns) else turns[min(asked[who], len(turns)) - 1]

    return answer


def write(topic: Any = "cats", **more: Any) -> dict[str, Any]:
    return {"calls": [{"_tool": "write", "topic": topic, "_outputPath": "†state.text", **more}], "output": None}


TEXT = {"calls": [], "output": {"text": "About cats."}}


async def test_r8_3_a_delegate_is_a_child_with_a_readable_id_and_its_output_is_the_result(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    looks = {"calls": [{"_tool": "look", "path": "†input.topic", "_outputPath": "†state.seen"}], "output": None}
    script = parts(PARENT=[write("†input.about"), DONE], WRITER=[looks, TEXT])
    async with harness(dev_server.client, TOOLS, script, agents=save(tmp_path, WRITER)) as it:
        handle = await it.start(agent(WRITE, context=[{"type": "input"}]), {"about": "cats"})
        result = await handle.result()
        child = await it.view(f"{handle.id}/1.0")
        description = await it.client.get_workflow_handle(f"{handle.id}/1.0").describe()
        used = it.model.prompt_tokens, it.model.completion_tokens
    assert result.state == {"text": {"text": "About cats."}}
    assert (child.status, child.state) == ("completed", {"seen": "looked at cats"})
    assert description.parent_id == handle.id
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == used
    assert sum(usage.requests for usage in result.usage.by_model.values()) == 4
    assert result.requests == 2


async def test_r8_2_nothing_leaks_either_way(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    prompts: dict[str, list[str]] = {"PARENT": [], "WRITER": []}

    def asked(who: str, *turns: Any) -> Callable[[ChatRequest], Any]:
        def answer(request: ChatRequest) -> Any:
            prompts[who].append(request.text)
            return turns[len(prompts[who]) - 1]

        return answer

    context = [
        {"type": "text", "text": "PARENT-SECRET in a text"},
        {"type": "data", "kind": "profile", "data": {"key": "PARENT-SECRET"}},
        {"type": "data", "kind": "style", "data": {"tone": "GIVEN-TONE"}},
        {"type": "state", "state": {"deep": {"shared": "GIVEN-STATE", "other": "PARENT-SECRET"}}},
        {"type": "tool", "tool": {"name": "PARENT-SECRET-tool", "description": "PARENT-SECRET"}},
    ]
    hidden = {"calls": [{"_tool": "look", "path": "CHILD-SECRET", "_outputPath": "†state.deep.shared"}], "output": None}
    script = parts(PARENT=asked("PARENT", write(), DONE), WRITER=asked("WRITER", hidden, TEXT))
    scopes = WRITE | {"_scopes": ["style", "state.deep.shared"]}
    async with harness(dev_server.client, TOOLS, script, agents=save(tmp_path, WRITER)) as it:
        view = await it.run(agent(scopes, context=context))
    assert view.status == "completed"
    assert len(prompts["WRITER"]) == 2
    assert "PARENT-SECRET" not in "".join(prompts["WRITER"])
    assert "CHILD-SECRET" not in "".join(prompts["PARENT"])
    assert all("GIVEN-TONE" in prompt and "GIVEN-STATE" in prompts["WRITER"][0] for prompt in prompts["WRITER"])
    assert view.state["deep"]["shared"] == "GIVEN-STATE"


async def test_r8_2_scopes_chosen_by_the_model(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    seen: list[str] = []

    def writer(request: ChatRequest) -> Any:
        seen.append(request.text)
        return TEXT

    context = [{"type": "data", "kind": kind, "data": {"word": f"WORD-{kind}"}} for kind in ("a", "b")]
    open_scopes = WRITE | {"_scopes": {"enum": ["a", "tool:look"]}}
    script = parts(PARENT=[write(_scopes=["b"]), write(_scopes=["a", "tool:look"]), DONE], WRITER=writer)
    bare = WRITER | {"context": WRITER["context"][:1]}  # type: ignore[index]
    async with harness(dev_server.client, TOOLS, script, agents=save(tmp_path, bare)) as it:
        view = await it.run(agent(open_scopes, "look", context=context))
    assert [call.status for call in view.calls] == ["invalid", "done"]
    assert "must be a list of a, tool:look" in view.errors[0]["error"]["message"]
    assert len(seen) == 1
    assert ("WORD-a" in seen[0], "WORD-b" in seen[0], "- look(" in seen[0]) == (True, False, True)


async def test_r8_1_an_anonymous_delegate_needs_no_file(dev_server: WorkflowEnvironment) -> None:
    seen: list[str] = []

    def child(request: ChatRequest) -> Any:
        seen.append(request.text)
        return {"calls": [], "output": {"sum": 5}}

    add = {
        "name": "add",
        "description": "You are ADDER. Add two numbers.",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "_delegate": "anonymous",
        "_output": {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]},
    }
    calls = [{"_tool": "add", "a": 2, "b": 3, "_outputPath": "†state.five"}]

    def answer(request: ChatRequest) -> Any:
        if request.messages[0]["content"].startswith("You are ADDER."):
            return child(request)
        return {"calls": calls, "output": None} if "# plan" not in request.text else DONE

    async with harness(dev_server.client, [], answer) as it:
        view = await it.run(agent(add))
    assert view.state == {"five": {"sum": 5}}
    assert '{"a":2,"b":3}' in seen[0]


async def test_r8_4_upfront_the_model_knows_the_delegates_schemas(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    upfront = {"name": "write", "_delegate": "writer", "_resolution": "upfront"}
    script = parts(PARENT=[write([7]), write(), DONE], WRITER=[TEXT])
    folder = save(tmp_path, WRITER)
    async with harness(dev_server.client, TOOLS, script, agents=folder) as it:
        view = await it.run(agent(upfront))
        told = it.model.requests[0].text
        missing = await it.run(agent(upfront | {"_delegate": "wirter"}))
    assert "- write(topic: string)" in told
    assert 'Returns {"type":"object","properties":{"text"' in told
    assert [call.status for call in view.calls] == ["invalid", "done"]
    assert missing.status == "failed"
    assert missing.error == "tool 'write': the agents folder has no 'wirter'; its agents are writer"


async def test_r8_4_at_execution_a_delegate_that_cannot_be_used_is_the_calls_failure(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    tools: list[Any] = [
        {"name": name, "properties": {"topic": {}}, "_delegate": name} for name in ("nobody", "broken", "writer")
    ]
    calls = [{"_tool": name, "topic": 7} for name in ("nobody", "broken", "writer")]
    script = parts(PARENT=[{"calls": calls, "output": None}, DONE], WRITER=[TEXT])
    async with harness(dev_server.client, TOOLS, script, agents=save(tmp_path, WRITER)) as it:
        view = await it.run(agent(*tools))
        path = await it.run(agent(WRITE | {"_delegate": "../writer"}))
    messages = [f"{error['error']['code']}: {error['error']['message']}" for error in view.errors]
    assert messages[0].startswith("no_such_delegate: nobody cannot run its delegate 'nobody': the agents folder has no")
    assert "broken.json is not valid JSON" in messages[1]
    assert messages[2].startswith("Refused: the delegate of writer failed: the input breaks its schema: $.topic")
    assert "'../writer' is not a delegate's name" in (path.error or "")


async def test_a_delegate_that_cannot_start_uses_nothing_of_its_rules(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    calls = [{"_tool": "write", "topic": "cats"}, {"_tool": "write", "topic": "dogs", "_each": [1, 2], "_parallel": 1}]
    looks = {"calls": [{"_tool": "look", "path": "/", "_outputPath": "†state.seen"}], "output": {"text": "†state.seen"}}
    script = parts(PARENT=[{"calls": calls, "output": None}, DONE], WRITER=[looks])
    document = agent(WRITE, "look", config={"rules": [{"rule": "count_at_most", "of": "look", "count": 2}]})
    run_id = f"unstarted-{uuid.uuid4().hex[:8]}"
    async with harness(dev_server.client, TOOLS, script, agents=save(tmp_path, WRITER)) as it:
        for taken in ("1.0", "1.1/0"):
            await it.client.start_workflow("nobody", id=f"{run_id}/{taken}", task_queue="nowhere")
        view = await asyncio.wait_for((await it.start(document, run_id=run_id)).result(), HANG)
        for taken in ("1.0", "1.1/0"):
            await it.client.get_workflow_handle(f"{run_id}/{taken}").terminate()
    assert [call.status for call in view.calls] == ["failed", "done"]
    assert [error["error"]["code"] for error in view.errors] == ["id_taken", "iteration_failed"]
    assert "rule" not in str(view.errors[1])


async def test_r8_3_failure_timeout_and_cancellation_of_a_delegate(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    started = asyncio.Event()

    @tool
    async def hang() -> None:
        """Hang."""
        started.set()
        await asyncio.Event().wait()

    never = {
        "name": "never",
        "context": [{"type": "system", "text": "You are NEVER."}, {"type": "tool", "tool": "hang"}],
    }
    fails = {
        "name": "fails",
        "context": [{"type": "system", "text": "You are FAILS."}],
        "config": {"max_requests": 1},
        "schema": {"type": "integer"},
    }
    tools: list[dict[str, Any]] = [
        {"name": "fails", "_delegate": "fails"},
        {"name": "slow", "_delegate": "never", "_timeout": 1},
        {"name": "cancelled", "_delegate": "never"},
    ]
    calls = [{"_tool": name["name"], "_outputPath": f"†state.{name['name']}"} for name in tools]
    script = parts(
        PARENT=[{"calls": calls, "output": None}, DONE],
        NEVER=[{"calls": [{"_tool": "hang"}], "output": None}],
        FAILS=[{"calls": [], "output": "no number"}],
    )
    async with harness(dev_server.client, [hang], script, agents=save(tmp_path, never, fails)) as it:
        handle = await it.start(agent(*tools))
        await asyncio.wait_for(started.wait(), HANG)
        child = it.client.get_workflow_handle(f"{handle.id}/1.2")
        async with asyncio.timeout(HANG):
            while (await it.view(handle.id)).calls[1].status != "failed":
                pass
        await child.cancel()
        result = await handle.result()
        runs = [await it.view(id) for id in (handle.id, *(f"{handle.id}/1.{n}" for n in range(3)))]
    assert [call.status for call in result.calls] == ["failed"] * 3
    codes = [error["error"]["code"] for error in result.errors]
    assert codes == ["LimitReached", "timeout", "cancelled"]
    asked = sum(request.usage.prompt_tokens for run in runs for request in run.log)
    assert result.usage.prompt_tokens == asked, "what a failed delegate used counts too"


async def test_r6_10_cancelling_the_parent_cancels_the_child(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    gate = asyncio.Event()
    script = parts(PARENT=[write()], WRITER=[Turn(TEXT, gate=gate)])
    async with harness(dev_server.client, TOOLS, script, agents=save(tmp_path, WRITER), model_timeout=60) as it:
        handle = await it.start(agent(WRITE))
        await it.model.wait_for_request(2)
        child = it.client.get_workflow_handle(f"{handle.id}/1.0")
        await handle.cancel()
        for each in (handle, child):
            with pytest.raises(WorkflowFailureError):
                await asyncio.wait_for(each.result(), HANG)
        views = [await it.view(each.id) for each in (handle, child)]
    assert [view.status for view in views] == ["cancelled", "cancelled"]


async def test_r8_a_delegate_that_delegates_to_itself_ends(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    again = {"name": "again", "_delegate": "loop"}
    loop = {"name": "loop", "context": [{"type": "system", "text": "You are LOOP."}, {"type": "tool", "tool": again}]}
    deeper = {"calls": [{"_tool": "again"}], "output": None}

    def answer(request: ChatRequest) -> Any:
        return deeper if "# plan" not in request.text else DONE

    async with harness(dev_server.client, [], answer, agents=save(tmp_path, loop)) as it:
        view = await it.run(agent(again))
        deepest = await it.view(f"{view.run_id}/1.0/1.0/1.0/1.0/1.0")
    assert view.status == "completed"
    assert deepest.errors[0]["error"] == {
        "code": "too_deep",
        "message": "delegates may be 5 deep, and this would be one more: test → loop → loop → loop → loop → loop → again",
    }


async def test_r7_a_delegates_approvals_are_listed_with_their_parent(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    cleaner = {
        "name": "cleaner",
        "config": {"approval": {"ask": "never"}},
        "context": [{"type": "system", "text": "You are CLEANER."}, {"type": "tool", "tool": "remove"}],
    }
    clean = {"name": "clean", "_delegate": "cleaner", "_safe": True}
    script = parts(
        PARENT=[{"calls": [{"_tool": "clean"}], "output": {"ok": True}}],
        CLEANER=[{"calls": [{"_tool": "remove", "path": "/child"}], "output": {"ok": True}}, DONE],
    )
    async with harness(
        dev_server.client, [remove, look], script, agents=save(tmp_path, cleaner), approval_floor="dangerous"
    ) as it:
        handle = await it.start(agent(clean))
        async with asyncio.timeout(HANG):
            while not (found := (await waiting_below(it.client, handle.id))[0]):
                pass
        with pytest.raises(
            DecisionRefusedError, match=f"below it has a call that waits: run '{handle.id}/1.0', call '1.0'"
        ):
            await decide(it.client, handle.id, {"call": "1.0", "decision": "approve"})
        env = {"TEMPORAL_ADDRESS": it.client.service_client.config.target_host}
        shown = await perdure("show", handle.id, env=env)
        assert f"in the run {handle.id}/1.0 below it, 1.0 waits for a person: remove path /child" in shown.out
        assert f"\nperdure approve {handle.id}/1.0 1.0\n" in shown.out
        await it.client.get_workflow_handle(found[0].run_id).signal("reject", {"call": "1.0", "reason": "no"})
        result = await handle.result()
        child = await it.view(f"{handle.id}/1.0")
    assert [(one.run_id, one.request.tool) for one in found] == [(f"{handle.id}/1.0", "remove")]
    assert result.status == "completed"
    assert child.calls[0].reason == "rejected: no"


async def test_r8_1_an_edited_file_does_not_change_a_running_run(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    told: list[str] = []

    def writer(request: ChatRequest) -> Any:
        told.append(request.text)
        if len(told) == 1:
            changed = json.loads(json.dumps(WRITER).replace("You are WRITER.", "You are WRITER. EDITED."))
            save(tmp_path, changed)
        return TEXT

    script = parts(PARENT=[write(), write(), DONE], WRITER=writer)
    async with harness(dev_server.client, TOOLS, script, agents=save(tmp_path, WRITER)) as it:
        view = await it.run(agent(WRITE))
        fresh = await it.run(agent(WRITE))
    assert (view.status, fresh.status, len(told)) == ("completed", "completed", 2)
    assert "EDITED" not in told[1]


async def test_the_worker_checks_delegates_at_its_start(tmp_path: Path) -> None:
    parent = agent(WRITE) | {"name": "parent"}
    refused = await perdure("--agents", str(save(tmp_path, parent)), program="worker.py")
    assert refused.code == 2
    assert "the agents folder has no 'writer'; its agents are parent" in one_line(refused.err)
