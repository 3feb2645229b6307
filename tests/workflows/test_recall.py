"""Recall where a run has gone on as new, in a delegate's run, and in loops (R10.18)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from perdure.activities.transcripts import recall
from perdure.values.limits import MAX_INSIDE
from tests.support import DONE, agent, harness, impatient
from tests.workflows.test_delegates import parts, save

pytestmark = pytest.mark.asyncio(loop_scope="session")

impatient_server = impatient(40)


def rows(name: str) -> str:
    return "".join(f"{name} {n:>4}\n" for n in range(5000))[:-4] + "END."


@tool
def report(name: str) -> str:
    """A report of 50,000 characters, with a word of four."""
    return rows(name)


@tool
def echo(value: Any) -> Any:
    """Give it back."""
    return value


def calls(*made: dict[str, Any]) -> dict[str, Any]:
    return {"calls": list(made), "output": None}


KEPT = {"_tool": "report", "name": "kept", "_outputPath": "†state.kept"}
TOLD = {"_tool": "report", "name": "told"}


def last_page(what: str) -> dict[str, Any]:
    return {"_tool": "recall", "what": what, "page": 5}


async def test_r10_18_a_run_that_went_on_as_new_recalls_what_it_had_before(
    impatient_server: WorkflowEnvironment,
) -> None:
    between = [calls(*({"_tool": "echo", "value": f"{n}.{i}"} for i in range(6))) for n in range(3)]
    turns = [calls(TOLD, KEPT), *between, calls(last_page("1.0"), last_page("state.kept")), DONE]
    async with harness(impatient_server.client, [report, echo, recall], turns) as it:
        handle = await it.start(agent("report", "echo"))
        result = await handle.result()
        current = (await it.client.get_workflow_handle(handle.id).describe()).run_id
        read = it.model.requests[-1].text
    assert current != handle.first_execution_run_id, "it was not continued as new"
    assert [call.status for call in result.calls if call.tool == "recall"] == ["done", "done"]
    assert read.count("END.") == 2


async def test_r10_18_a_delegates_run_recalls_what_it_was_shown_itself(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    reader = {
        "name": "reader",
        "context": [
            {"type": "system", "text": "You are READER."},
            {"type": "input"},
            {"type": "tool", "tool": "report"},
        ],
        "schema": True,
    }
    read = {"_tool": "read", "_outputPath": "†state.read"}
    script = parts(
        PARENT=[calls({"_tool": "report", "name": "above"}), calls(read), DONE],
        READER=[calls(TOLD, KEPT), calls(last_page("1.0"), last_page("state.kept")), DONE],
    )
    definition = {"name": "read", "description": "Read.", "_delegate": "reader"}
    async with harness(dev_server.client, [report, recall], script, agents=save(tmp_path, reader)) as it:
        handle = await it.start(agent("report", definition))
        result = await handle.result()
        below = await it.view(f"{handle.id}/2.0")
        shown = [request.text for request in it.model.requests if "You are READER." in request.text][-1]
    assert result.status == "completed"
    assert [call.status for call in below.calls if call.tool == "recall"] == ["done", "done"]
    assert shown.count("END.") == 2
    assert "above" not in shown


@pytest.mark.parametrize("count", [5, MAX_INSIDE + 5], ids=["inside", "in-parts"])
async def test_r10_18_the_calls_of_a_loop_recall_what_its_run_was_shown(
    count: int, dev_server: WorkflowEnvironment
) -> None:
    each = {"_tool": "report", "name": "†item", "_each": ["aaaa", "bbbb"], "_outputPath": "†state.each"}
    body = [
        {
            "_tool": "recall",
            "what": what,
            "page": "†p",
            "_if": "index < 5 or index >= 100",
            "_outputPath": f"†state.of_{name}",
        }
        for name, what in (("told", "1.0"), ("kept", "state.kept"), ("bbbb", "1.2[1]"))
    ]
    loop = {"_tool": "_for", "_each": [1, 2, 3, 4] + [5] * (count - 4), "_as": "p", "_body": body}
    turns = [calls(TOLD, KEPT, each), calls(loop), DONE]
    async with harness(dev_server.client, [report, recall], turns) as it:
        result = await (await it.start(agent("report"))).result()
    assert result.errors == []
    for name in ("told", "kept", "bbbb"):
        pages = result.state[f"of_{name}"]
        texts = [page["text"] for page in pages if page is not None]
        assert "".join(texts[:5]) == rows(name)
        assert texts[4:] == texts[4:5] * (len(texts) - 4)
        assert (len(pages), len(texts)) == (count, 5 if count == 5 else 10)
