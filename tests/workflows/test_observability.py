"""What operators are told of runs: counted once, whatever is replayed, and never what was said in them."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from temporalio.client import Client, WorkflowHistory
from temporalio.runtime import BUFFERED_METRIC_KIND_COUNTER, MetricBuffer, Runtime, TelemetryConfig
from temporalio.testing import WorkflowEnvironment

from perdure import ToolError, tool
from perdure.client.approvals import decide
from perdure.client.histories import replay_history
from perdure.errors import RunError
from perdure.hosting.connection import data_converter
from perdure.runs.metrics import METRICS
from perdure.testing.scripted_model import Turn
from scripts.replay_coverage import HISTORIES
from tests.support import Harness, agent, harness

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRET = "saffron"
"""In parameters, prompts, results and errors: it must not be seen anywhere."""


@tool
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello {name}"


@tool(retries=0)
def fail(name: str) -> str:
    """Fail as a tool does."""
    raise ToolError("no_such_person", f"nobody is called {name}")


@tool(retries=0)
def break_down(name: str) -> str:
    """Fail as a bug does."""
    raise KeyError(name)


@tool(dangerous=True)
def remove(name: str) -> str:
    """Remove somebody."""
    return name


TOOLS = [greet, fail, break_down, remove]
CALLS = [{"_tool": each, "name": SECRET, "_outputPath": f"†state.{each}"} for each in ("greet", "fail", "break_down")]
CALLS += [{"_tool": SECRET}, {"_tool": "greet", "name": "†state.fail"}]


class Counted:
    """A client whose runtime keeps what is counted."""

    def __init__(self, client: Client, buffer: MetricBuffer) -> None:
        self.client = client
        self._buffer = buffer
        self._totals: dict[tuple[str, tuple[str, ...]], float] = {}

    def totals(self, name: str) -> dict[tuple[str, ...], float]:
        """By its labels, in the table's order, how often since the last look at any: sums of counters, numbers of values."""
        for update in self._buffer.retrieve_updates():
            if update.metric.name in METRICS:
                labels = tuple(str(update.attributes[label]) for label in METRICS[update.metric.name].labels)
                counter = update.metric.kind == BUFFERED_METRIC_KIND_COUNTER
                key = update.metric.name, labels
                self._totals[key] = self._totals.get(key, 0) + (update.value if counter else 1)
        return {labels: count for (each, labels), count in self._totals.items() if each == name}


@pytest_asyncio.fixture(loop_scope="session")
async def counted(dev_server: WorkflowEnvironment) -> AsyncIterator[Counted]:
    buffer = MetricBuffer(100_000)
    runtime = Runtime(telemetry=TelemetryConfig(logging=None, metrics=buffer))
    address = dev_server.client.service_client.config.target_host
    client = await Client.connect(address, runtime=runtime, data_converter=data_converter())
    yield Counted(client, buffer)


async def run_all(it: Harness) -> None:
    """A run in which everything happens."""
    document = agent(
        "greet",
        "fail",
        "break_down",
        "remove",
        name="observed",
        config={"models": {"fast": "gpt-4o", "smart": "gpt-4o"}},
    )
    handle = await it.start(document)
    await it.until_waiting(handle.id, "2.0")
    with pytest.raises(RunError):
        await decide(it.client, handle.id, {"call": "9.9", "decision": "approve", "reason": SECRET})
    await decide(it.client, handle.id, {"call": "2.0", "decision": "approve", "reason": SECRET})
    await handle.result()
    await it.view(handle.id)


@pytest.mark.parametrize("cached", [100, 0])
async def test_everything_is_counted_once(counted: Counted, caplog: pytest.LogCaptureFixture, cached: int) -> None:
    script = [
        {"calls": CALLS, "output": None},
        {"calls": [{"_tool": "remove", "name": SECRET}], "output": None},
        {"calls": [], "output": {"said": SECRET}},
    ]
    with caplog.at_level(logging.DEBUG, logger="perdure"):
        async with harness(counted.client, TOOLS, script, cached_workflows=cached) as it:
            await run_all(it)
    assert counted.totals("perdure_calls_total") == {
        ("greet", "done"): 1,
        ("fail", "failed"): 1,
        ("break_down", "failed"): 1,
        ("unknown", "invalid"): 1,
        ("greet", "skipped"): 1,
        ("remove", "done"): 1,
    }
    assert counted.totals("perdure_requests_total") == {("observed", "gpt-4o", "answered"): 3}
    assert counted.totals("perdure_runs_total") == {("observed", "completed", "output"): 1}
    assert counted.totals("perdure_decisions_refused_total") == {(): 1}
    assert counted.totals("perdure_approval_wait_seconds") == {("approve", "person"): 1}
    assert counted.totals("perdure_first_call_seconds") == {("observed", "gpt-4o"): 2}
    assert counted.totals("perdure_request_cost_dollars") == {("observed", "gpt-4o"): 3}
    assert all(count > 0 for count in counted.totals("perdure_tokens_total").values())
    lines = [record for record in caplog.records if record.name == "perdure.run"]
    assert Counter(record.getMessage() for record in lines) == {
        "run started": 1,
        "request started": 3,
        "request ended": 3,
        "call ended": 6,
        "waits for a person": 1,
        "decided": 1,
        "decision refused": 1,
        "run ended": 1,
    }
    assert SECRET not in "".join(str(vars(record)) for record in lines)


async def test_a_run_that_fails_and_falls_back_says_why(counted: Counted) -> None:
    models = {"fast": "gpt-4o", "smart": "gpt-4o", "fallback": ["gpt-4o-mini"]}
    down = Turn(SECRET, status=401)
    async with harness(counted.client, [], [down, down]) as it:
        view = await it.run(agent(name="observed", config={"models": models}))
        assert view.status == "failed"
        refused = agent("no such tool", name="observed")
        assert (await it.run(refused)).status == "failed"
    assert counted.totals("perdure_fallbacks_total") == {("gpt-4o",): 1}
    assert counted.totals("perdure_requests_total") == {("observed", "gpt-4o-mini", "failed"): 1}
    assert counted.totals("perdure_runs_total") == {
        ("observed", "failed", "ModelFailed"): 1,
        ("unknown", "failed", "Refused"): 1,
    }


async def test_a_history_that_is_replayed_counts_and_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Also where it ends with a task that nobody has completed, which is run as a new one."""
    recorded = json.loads((HISTORIES / "0.2.0" / "decisions.json").read_text(encoding="utf-8"))
    for number, event in enumerate(events := recorded["events"], 1):
        if event["eventType"] != "EVENT_TYPE_WORKFLOW_TASK_STARTED":
            continue
        history = WorkflowHistory.from_json(recorded["workflowId"], {"events": events[:number]})
        with caplog.at_level(logging.DEBUG, logger="perdure.run"):
            assert (await replay_history(history, data_converter())).problem is None
    assert [record.getMessage() for record in caplog.records if record.name == "perdure.run"] == []
