"""Runs whose values, results and calls add up: each of these was terminated, or retried for ever, when only parts were checked."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import uuid
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from perdure.approvals.requests import WaitingView
from perdure.client.run_operations import AgentHandle, read_value
from perdure.errors import RunError
from perdure.queries import answer_of
from perdure.runs.wire import AGENT_WORKFLOW, RUN_QUERY, WAITING_QUERY, RunInput, RunView
from perdure.testing.scripted_model import ChatRequest
from perdure.values.json import Packed, loads
from tests.soak import share
from tests.support import DONE, Harness, agent, answered, harness, impatient, task_failures
from tests.timeouts import HANG
from tests.workflows.test_delegates import parts, save

pytestmark = pytest.mark.asyncio(loop_scope="session")


@tool
def make(size: int) -> str:
    """Make a text."""
    return "x" * size


@tool
def measure(text: Any, n: int = 0) -> int:
    """Measure it."""
    return len(text) + n


@tool
def total(texts: list[str], n: int) -> int:
    """Measure all of them."""
    return sum(map(len, texts)) + n


@tool
def echo(value: Any) -> Any:
    """Give it back."""
    return value


@tool(approval="always")
def risky(text: str, n: int = 0) -> int:
    """Needs a person."""
    return len(text) + n


MAKER: dict[str, Any] = {
    "name": "maker",
    "context": [
        {"type": "tool", "tool": "make"},
        {"type": "input"},
        {
            "type": "plan",
            "plan": [{"_tool": "make", "size": "†input.item || †input.size", "_outputPath": "†state.t"}],
            "output": "†state.t",
        },
    ],
}


async def ended(it: Harness, document: dict[str, Any], run_input: Any = None) -> AgentHandle:
    handle = await it.start(document, run_input)
    with contextlib.suppress(WorkflowFailureError):
        await handle.result()
    return handle


async def troubles(client: Client, handle: AgentHandle) -> list[str]:
    """What no run may have in any of its executions: a termination, or a workflow task that failed."""
    found: list[str] = []
    run_id = handle.first_execution_run_id
    while run_id:
        execution = client.get_workflow_handle(handle.id, run_id=run_id)
        trouble, run_id = await troubles_of(execution)
        found += trouble
    return found


async def troubles_of(execution: WorkflowHandle[Any, Any]) -> tuple[list[str], str]:
    """The same of one execution, and the run id of the one that went on from it."""
    ended = (await execution.describe()).status == WorkflowExecutionStatus.TERMINATED
    events = (await execution.fetch_history()).events
    found = [f"{execution.id} was terminated"] if ended else []
    found += [f"{execution.id}: {each}" for each in task_failures(events)]
    return found, events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id


@pytest.mark.parametrize(
    ("size", "readers"),
    [
        (15_000, 100),
        *(pytest.param(*each, marks=pytest.mark.soak) for each in ((15_000, 300), (10_000, 450))),
        (200_000, 22),
        (1_500_000, 4),
    ],
)
async def test_r18_2_what_many_calls_read(dev_server: WorkflowEnvironment, size: int, readers: int) -> None:
    calls = [{"_tool": "make", "size": size, "_outputPath": "†state.text"}]
    calls += [
        {"_tool": "measure", "text": "†state.text", "n": n, "_outputPath": f"†state.n{n}"} for n in range(readers)
    ]
    async with harness(
        dev_server.client, [make, measure], [{"calls": calls, "output": {"ok": True}}], chunk=4000, sandboxed=False
    ) as it:
        handle = await ended(it, agent("make", "measure"))
        view = await it.view(handle.id)
        assert await troubles(it.client, handle) == []
    assert view.status == "completed"
    assert [view.state[f"n{n}"] for n in range(readers)] == [size + n for n in range(readers)]
    assert {call.attempts for call in view.calls} == {1}


@tool
def numbers(count: int) -> list[int]:
    """Make a list."""
    return [1000 + n % 9000 for n in range(count)]


@pytest.mark.parametrize("readers", [40, pytest.param(450, marks=pytest.mark.soak)])
async def test_r18_5_what_many_calls_embed_in_a_text(dev_server: WorkflowEnvironment, readers: int) -> None:
    """Each reader made the text of the value anew, and measured it: with 450 no task came to its end."""
    calls: list[dict[str, Any]] = [{"_tool": "numbers", "count": 39_000, "_outputPath": "†state.v"}]
    calls += [{"_tool": "measure", "text": f"{n:04}{{†state.v}}"} for n in range(readers)]
    calls += [{"_tool": "measure", "text": "{†state.v}" * 150, "_outputPath": "†state.a"}]
    outputs = [{"all": "{†state.v}" * count} for count in (150, 1)]
    answers = [{"calls": calls, "output": None}, *({"calls": [], "output": output} for output in outputs)]
    async with harness(dev_server.client, [numbers, measure], answers, chunk=4000, sandboxed=False) as it:
        handle = await ended(it, agent("numbers", "measure"))
        view = await it.view(handle.id)
        assert await troubles(it.client, handle) == []
    assert {call.status for call in view.calls[1:-1]} == {"done"}
    assert {call.shown for call in view.calls[1:-1]} == {str(4 + 195_001)}
    assert view.calls[-1].error is not None
    assert view.calls[-1].error["code"] == "params_too_large"
    assert [error["error"]["code"] for error in view.errors] == ["params_too_large", "invalid_output"]
    assert (view.status, len(view.output["all"])) == ("completed", 195_001)


@pytest.mark.parametrize("seed", range(share(3)))
async def test_r18_2_any_mix_of_values_and_readers(dev_server: WorkflowEnvironment, seed: int) -> None:
    dice = random.Random(seed)
    sizes = [dice.choice([1, 900, 15_000, 17_000, 300_000, 900_000, 1_800_000]) for _ in range(6)]
    calls: list[dict[str, Any]] = [
        {"_tool": "make", "size": size, "_outputPath": f"†state.t{n}"} for n, size in enumerate(sizes)
    ]
    expected: dict[str, int] = {}
    for n in range(dice.randint(10, 40)):
        reads = dice.sample(range(6), dice.randint(1, 2))
        while sum(sizes[each] for each in reads) > 1_850_000:
            reads.pop()
        calls.append(
            {"_tool": "total", "texts": [f"†state.t{each}" for each in reads], "n": n, "_outputPath": f"†state.n{n}"}
        )
        expected[f"n{n}"] = n + sum(sizes[each] for each in reads)
    dice.shuffle(calls)
    script = [{"calls": calls, "output": {"ok": True}}]
    async with harness(dev_server.client, [make, total], script, chunk=4000, sandboxed=False) as it:
        handle = await ended(it, agent("make", "total"))
        view = await it.view(handle.id)
        assert await troubles(it.client, handle) == []
    assert view.status == "completed"
    assert {name: view.state[name] for name in expected} == expected
    assert {call.attempts for call in view.calls} == {1}


async def test_r18_3_an_output_that_wires_two_large_values(dev_server: WorkflowEnvironment) -> None:
    document = agent(
        "make",
        context=[
            {
                "type": "plan",
                "plan": [{"_tool": "make", "size": 1_200_000, "_outputPath": f"†state.{name}"} for name in "ab"],
                "output": {"both": ["†state.a", "†state.b"]},
            }
        ],
    )
    async with harness(dev_server.client, [make], [DONE]) as it:
        handle = await ended(it, document)
        view = await it.view(handle.id)
        whole: Any = loads(await answered(lambda: read_value(it.client, handle.id, "output")))
        call: Any = loads(await answered(lambda: read_value(it.client, handle.id, "0.1")))
        assert await troubles(it.client, handle) == []
    assert view.status == "completed"
    assert [len(text) < 1_000_000 for text in view.output["both"]] == [True, True]
    assert f"perdure show {handle.id} --value output" in " ".join(view.cut)
    assert [len(text) for text in whole["both"]] == [1_200_000] * 2
    assert (call["id"], call["params"], len(call["result"])) == ("0.1", {"size": 1_200_000}, 1_200_000)


impatient_server = impatient(40)


async def test_r18_4_a_run_whose_snapshot_is_too_large_goes_on(impatient_server: WorkflowEnvironment) -> None:
    def answer(asked: ChatRequest) -> dict[str, Any]:
        if asked.number > 8:
            return DONE
        calls = [{"_tool": "noise", "size": 700_000, "_outputPath": f"†state.t{asked.number}"}]
        return {"calls": calls if asked.number <= 4 else [{"_tool": "echo", "value": asked.number}] * 3, "output": None}

    @tool
    def noise(size: int) -> str:
        """A text that cannot be packed."""
        return secrets.token_hex(size // 2)

    async with harness(impatient_server.client, [noise, echo], answer) as it:
        handle = await ended(it, agent("noise", "echo"))
        view = await it.view(handle.id)
        assert await troubles(it.client, handle) == []
    assert (view.status, view.requests, len(view.calls)) == ("completed", 9, 16)


@tool
def empty(count: int) -> Any:
    """Make many lists."""
    return [[]] * count


async def test_r18_4_a_run_of_too_many_lists_goes_on_in_its_execution(
    impatient_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next execution would read all of them in its first task, which may take two seconds."""
    monkeypatch.setattr("perdure.workflows.continue_as_new.MAX_CARRIED_PARTS", 10_000)

    def answer(asked: ChatRequest) -> dict[str, Any]:
        n = asked.number
        if n > 8:
            return DONE
        lists = [{"_tool": "empty", "count": 6_000, "_outputPath": f"†state.many{n}"}] if n <= 2 else []
        return {"calls": [{"_tool": "echo", "value": n, "_outputPath": f"†state.n{n}"}, *lists], "output": None}

    async with harness(impatient_server.client, [empty, echo], answer, sandboxed=False) as it:
        handle = await ended(it, agent("empty", "echo"))
        assert (await it.view(handle.id)).status == "completed"
        assert await troubles(it.client, handle) == []
        last = await it.client.get_workflow_handle(handle.id).describe()
        assert last.run_id == handle.first_execution_run_id


async def test_r18_1_a_value_that_many_read_one_after_the_other_is_measured_once(
    dev_server: WorkflowEnvironment,
) -> None:
    calls = [{"_tool": "make", "size": 1_600_000, "_outputPath": "†state.t0"}]
    calls += [{"_tool": "echo", "value": f"†state.t{n}", "_outputPath": f"†state.t{n + 1}"} for n in range(8)]
    async with harness(dev_server.client, [make, echo], [{"calls": calls, "output": {"ok": True}}]) as it:
        handle = await ended(it, agent("make", "echo"))
        view = await it.view(handle.id)
        assert await troubles(it.client, handle) == []
    assert (view.status, len(view.calls)) == ("completed", 9)


async def test_r18_5_four_hundred_and_ninety_nine_approvals_time_out_together(
    time_skipping: WorkflowEnvironment,
) -> None:
    calls = [{"_tool": "risky", "text": "x" * 1000} for _ in range(499)]
    policy = {"timeout": 60, "on_timeout": "reject"}
    script = [{"calls": calls, "output": None}, DONE]
    async with harness(time_skipping.client, [risky], script, chunk=20_000, sandboxed=False) as it:
        handle = await ended(it, agent("risky", config={"approval": policy}))
        view = await it.view(handle.id)
        assert await troubles(it.client, handle) == []
    assert (view.status, {call.status for call in view.calls}) == ("completed", {"rejected"})


async def test_r18_3_two_hundred_definitions_of_nine_kilobytes(dev_server: WorkflowEnvironment) -> None:
    words = " ".join(f"word{n}" for n in range(1150))
    tools = [
        {
            "name": f"t{n}",
            "description": f"{n} {words}",
            "type": "object",
            "properties": {"x": {"type": "integer"}},
            "_activity": "echo",
        }
        for n in range(200)
    ]
    async with harness(dev_server.client, [echo], [DONE], sandboxed=False) as it:
        handle = await ended(it, agent(*tools))
        view = await it.view(handle.id)
        assert await troubles(it.client, handle) == []
    assert (view.status, view.error) == ("completed", None)


async def test_r18_3_three_hundred_large_calls_wait_for_a_person(dev_server: WorkflowEnvironment) -> None:
    calls: list[dict[str, Any]] = [{"_tool": "make", "size": 10_000, "_outputPath": "†state.text"}]
    calls += [{"_tool": "risky", "text": "†state.text", "n": n} for n in range(300)]
    async with harness(
        dev_server.client, [make, risky], [{"calls": calls, "output": {"ok": True}}], chunk=100_000, sandboxed=False
    ) as it:
        handle = await it.start(agent("make", "risky"))
        async with asyncio.timeout(HANG):
            while True:
                waiting: list[WaitingView] = await answer_of(handle, WAITING_QUERY, result_type=list[WaitingView])
                if len(waiting) == 300:
                    break
                await asyncio.sleep(0.1)  # a run can only be looked at
        view: RunView = await answer_of(handle, RUN_QUERY, result_type=RunView)
        whole: Any = loads(await answered(lambda: read_value(it.client, handle.id, "1.8")))
        await handle.terminate()
    assert {one.cut for one in waiting} == {True}
    assert len(view.waiting) == 300
    assert whole["params"] == {"text": "x" * 10_000, "n": 7}


@pytest.mark.soak
async def test_r18_4_forty_results_of_one_megabyte_eight(dev_server: WorkflowEnvironment) -> None:
    calls = [{"_tool": "make", "size": 1_800_000} for _ in range(40)]
    script = [{"calls": calls, "output": None}, {"calls": [], "output": {"best": "answer"}}]
    async with harness(dev_server.client, [make], script, model_timeout=30) as it:
        handle = await ended(it, agent("make"))
        view = await it.view(handle.id)
        assert await troubles(it.client, handle) == []
        size = (await handle.describe()).raw_description.workflow_execution_info.history_size_bytes
    statuses = [call.status for call in view.calls]
    assert (view.status, view.output) == ("completed", {"best": "answer"})
    assert statuses.count("done") > 15
    assert {call.error["code"] for call in view.calls if call.error} == {"history_full"}
    assert size < 50_000_000


async def test_r18_4_a_loop_keeps_the_results_that_there_is_room_for(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    call = {"_tool": "all", "_each": [300_000] * 8, "_outputPath": "†state.all"}
    script = parts(PARENT=[{"calls": [call], "output": None}, DONE])
    async with harness(dev_server.client, [make], script, agents=save(tmp_path, MAKER)) as it:
        handle = await ended(it, agent({"name": "all", "_delegate": "maker"}))
        view = await it.view(handle.id)
        every: Any = loads(await answered(lambda: read_value(it.client, handle.id, "†state.all")))
        assert await troubles(it.client, handle) == []
    kept = [each for each in every if isinstance(each, str)]
    assert (view.status, len(every), len(kept)) == ("completed", 8, 5)
    assert {each["error"]["code"] for each in every if isinstance(each, dict)} == {"result_too_large"}


@pytest.mark.parametrize("count", [4, pytest.param(40, marks=pytest.mark.soak)])
async def test_r18_4_outputs_of_delegates_claim_room_in_the_history_above(
    dev_server: WorkflowEnvironment, tmp_path: Path, count: int
) -> None:
    delegate = {"name": "all", "_delegate": "maker"}
    calls: list[dict[str, Any]] = [
        {"_tool": "all", "size": 1_800_000, "_outputPath": f"†state.t{n}"} for n in range(count)
    ]
    calls += [{"_tool": "measure", "text": f"†state.t{n}", "n": n} for n in range(count)]
    script = parts(PARENT=[{"calls": calls, "output": None}, DONE])
    async with harness(
        dev_server.client, [make, measure], script, model_timeout=30, sandboxed=False, agents=save(tmp_path, MAKER)
    ) as it:
        handle = await ended(it, agent(delegate, "measure"))
        view = await it.view(handle.id)
        below = await it.view(f"{handle.id}/1.0")
        described = await handle.describe()
        assert await troubles(it.client, handle) == []
    done = [call for call in view.calls[:count] if call.status == "done"]
    assert view.status == "completed"
    assert {call.error["code"] for call in view.calls[:count] if call.error} == (
        {"history_full"} if count > 25 else set()
    )
    assert min(count, 20) <= len(done) <= 25
    assert [call.status for call in view.calls[count:]] == [
        "done" if call in done else "skipped" for call in view.calls[:count]
    ]
    assert described.raw_description.workflow_execution_info.history_size_bytes < 50_000_000
    assert [call.tool for call in below.calls] == ["make"], "what is not told above is still shown"


async def test_r18_3_no_run_reads_an_output_that_was_cut(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    twice = {**MAKER, "context": [*MAKER["context"][:-1], {**MAKER["context"][-1], "output": ["†state.t"] * 2}]}
    call = {"_tool": "all", "size": 1_200_000, "_outputPath": "†state.t"}
    script = parts(PARENT=[{"calls": [call], "output": None}, DONE])
    async with harness(dev_server.client, [make], script, agents=save(tmp_path, twice)) as it:
        handle = await ended(it, agent({"name": "all", "_delegate": "maker"}))
        view = await it.view(handle.id)
        assert await troubles(it.client, handle) == []
    error = view.calls[0].error
    assert error is not None
    assert (error["code"], view.state) == ("result_too_large", {})
    assert error["message"] == (
        f"the delegate of all failed: its output has 2,400,007 bytes, and 1,900,000 is the limit; the full output: perdure show {view.run_id}/1.0 --value output; external storage (PERDURE_STORAGE) removes the limit"
    )


async def test_r18_4_an_unknown_form_of_a_snapshot_fails_the_run_and_says_so(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [echo], [DONE]) as it:
        given = RunInput(agent=agent("echo"), snapshot=Packed(form=99, data="?"))
        handle = await it.client.start_workflow(
            AGENT_WORKFLOW, given, id=f"form-{uuid.uuid4().hex[:8]}", task_queue=it.task_queue
        )
        with pytest.raises(WorkflowFailureError) as failure:
            await handle.result()
    assert "has form 99, and this worker reads form" in str(failure.value.cause)


async def test_r18_8_too_large_an_input_says_that_it_is_the_input(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [echo], [DONE]) as it:
        with pytest.raises(RunError, match="the input has 2,500,012 bytes; the limit is 1,900,000"):
            await it.start(agent("echo"), {"text": "x" * 2_500_000 + "y"})


async def test_r18_1_a_result_that_no_run_could_read_back_is_its_calls_own_error(
    dev_server: WorkflowEnvironment,
) -> None:
    @tool
    def deep() -> Any:
        """Nested."""
        value: Any = 1
        for _ in range(200):
            value = [value]
        return value

    async with harness(dev_server.client, [deep], [{"calls": [{"_tool": "deep"}], "output": {"ok": True}}]) as it:
        handle = await ended(it, agent("deep"))
        view = await it.view(handle.id)
        assert await troubles(it.client, handle) == []
    assert view.errors[0]["error"]["code"] == "not_json"
    assert view.calls[0].attempts == 1
