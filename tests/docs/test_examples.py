"""The examples run as their READMEs say, with scripted models."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from examples.__main__ import NAMES, play
from examples.desk.talk import talk
from examples.desk.tools import PAID as REFUNDED
from examples.mailbox.tools import PAID
from perdure.runs.diagrams import draw_run, to_mermaid
from perdure.runs.views import run_ways
from tests.support import ROOT


@pytest.mark.asyncio(loop_scope="session")
async def test_refund_is_decided_anew_at_every_step_and_approved(dev_server: WorkflowEnvironment) -> None:
    view = await play("refund", dev_server)
    assert (view.status, view.output, view.state["receipt"]["euros"]) == ("completed", {"refunded": 72.0}, 72.0)
    done = [f"{call.id} {call.tool}" for call in view.calls if call.status == "done"]
    assert done == ["0.0 find_order", "1.0 check_policy", "2.0 pay_back", "3.0 notify"]
    assert [call.id for call in view.calls if call.approval] == ["2.0"]
    _is_drawn("refund", view)


@pytest.mark.asyncio(loop_scope="session")
async def test_fleet_goes_on_although_one_host_fails(dev_server: WorkflowEnvironment) -> None:
    view = await play("fleet", dev_server)
    assert view.output == {"updated": 7, "failed": ["web-05"]}
    assert [one.get("host") for one in view.state["hosts_done"]].count(None) == 1
    assert view.state["hosts_done"][4]["error"]["index"] == 4
    _is_drawn("fleet", view)


@pytest.mark.asyncio(loop_scope="session")
async def test_producer_delegates_two_levels_down_in_two_ways(dev_server: WorkflowEnvironment) -> None:
    view = await play("producer", dev_server)
    runs = [run.id async for run in dev_server.client.list_workflows(f"WorkflowId STARTS_WITH '{view.run_id}/'")]
    assert view.output["title"] == "The Sea Remembers"
    assert {run.removeprefix(view.run_id) for run in runs} <= {"/1.0", "/1.0/1.0", "/1.1"}
    assert sum(usage.requests for usage in view.usage.by_model.values()) == 7
    _is_drawn("producer", view)


@pytest.mark.asyncio(loop_scope="session")
async def test_mailbox_obeys_an_injection_and_the_money_stays(dev_server: WorkflowEnvironment) -> None:
    PAID.clear()
    view = await play("mailbox", dev_server)
    assert view.output == {"paid": "900 euros to DE01 1111", "mail": "Your invoice"}
    assert list(PAID.values()) == [("DE01 1111", 900.0)]
    assert [(call.id, call.status) for call in view.calls] == [("1.0", "done"), ("1.1", "done"), ("2.0", "rejected")]
    assert view.calls[0].approval is None
    text = (ROOT / "examples" / "mailbox" / "README.md").read_text(encoding="utf-8")
    assert "\n".join(run_ways(view)) in text
    assert str(view.calls[2].reason) in text
    _is_drawn("mailbox", view)


def _is_drawn(name: str, view: Any) -> None:
    """The README's drawing is the run's own."""
    text = (ROOT / "examples" / name / "README.md").read_text(encoding="utf-8")
    assert to_mermaid(draw_run(view)) in text, to_mermaid(draw_run(view))


def test_an_example_that_does_not_exist_is_one_line() -> None:
    refused = subprocess.run([sys.executable, "-m", "examples", "nothing"], cwd=ROOT, capture_output=True, text=True)
    assert refused.returncode == 1
    assert refused.stderr.strip() == f"usage: python -m examples {'|'.join(NAMES)} [--connect]"


@pytest.mark.asyncio(loop_scope="session")
async def test_desk_hears_two_senders_and_goes_on_after_a_restart(dev_server: WorkflowEnvironment) -> None:
    REFUNDED.clear()
    view = await talk(dev_server)
    assert list(REFUNDED.values()) == ["B-4"]  # nothing was paid for the order that was corrected
    kinds = [entry["type"] for entry in view.entries]
    assert kinds.count("message") == 6
    assert "compaction" in kinds
    replies = [entry["text"] for entry in view.entries if entry["type"] == "reply"]
    assert (len(replies), replies[-1]) == (5, "You had B-4 paid back.")
    corrected = [entry for entry in view.entries if entry["type"] == "run"][1]
    assert [
        (call["tool"], call["params"]["order"], call["status"])
        for call in corrected["calls"]
        if "order" in call["params"]
    ] == [
        ("pay_back", "A-17", "skipped"),
        ("pay_back", "B-4", "done"),
    ]
    messages = [entry for entry in view.entries if entry["type"] == "message"]
    assert [entry["runId"] for entry in messages[1:3]] == [corrected["runId"]] * 2
