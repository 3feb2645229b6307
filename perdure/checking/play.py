"""Runs of the tasks by the engine, and the judgement of their results."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise

from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from perdure.activities.endpoints import Endpoints
from perdure.activities.failures import model_failure
from perdure.activities.registry import load_tools
from perdure.agents.agent import Agent
from perdure.checking.report import CheckReport, Row, TaskResult, understanding
from perdure.checking.tasks import TASKS, ExpectedCall, Task
from perdure.client.perdure import Perdure
from perdure.errors import RunError, RunTimeoutError
from perdure.hosting.server import embedded_server
from perdure.hosting.settings import TASK_QUEUE, Settings, replace_settings
from perdure.hosting.telemetry import worker_runtime
from perdure.hosting.worker import build_worker
from perdure.models.usage import Price
from perdure.runs.wire import CallView, RunView
from perdure.values.json import Json, shorten


def judge(task: Task, view: RunView) -> list[str]:
    """Return the problems of a run, one line each; none if the task was done."""
    if view.status != "completed":
        return [view.error or f"the run {view.status}"]
    if view.stop_reason not in ("output", "answer", "task_complete"):
        return [f"it did not end by itself: {view.stop_reason}"]
    return [*_calls(task, view), *_order(task, view), *_output(task, view)]


def _calls(task: Task, view: RunView) -> Iterator[str]:
    ended_well = [call for call in view.calls if call.status == "done"]
    for tool in dict.fromkeys(wanted.tool for wanted in task.done):
        calls = [call for call in ended_well if call.tool == tool]
        wanted = [each for each in task.done if each.tool == tool]
        if len(calls) != len(wanted):
            yield f"{tool} was called {_times(len(calls))}, not {_times(len(wanted))}"
            continue
        for call, each in zip(calls, wanted, strict=True):
            yield from _params(call, each, view)
    for tool in task.never:
        if any(call.tool == tool for call in ended_well):
            yield f"{tool} was called, but should not be"
    for tool in task.failed:
        calls = [call for call in view.calls if call.tool == tool and call.status == "failed"]
        if len(calls) != 1:
            yield f"{tool} failed {_times(len(calls))}, not once"
    answers = {call.id.partition(".")[0] for call in ended_well if call.tool in task.once}
    if len(answers) > 1:
        yield f"{' and '.join(task.once)} took {len(answers)} answers, not one"


def _params(call: CallView, wanted: ExpectedCall, view: RunView) -> Iterator[str]:
    for name, value in wanted.params.items():
        if not _same(call.params.get(name), value):
            yield f"{call.tool} got {name}={shorten(call.params.get(name), 60)}, not {shorten(value, 60)}"
    if wanted.wired and not view.reads.get(call.id):
        yield f"{call.tool} got a copy, not a reference"


def _order(task: Task, view: RunView) -> Iterator[str]:
    calls = [next((c for c in view.calls if c.tool == tool and c.status == "done"), None) for tool in task.order]
    for before, after in pairwise(calls):
        if before is None or after is None or before.ended_at is None or after.started_at is None:
            continue
        if datetime.fromisoformat(after.started_at) < datetime.fromisoformat(before.ended_at):
            yield f"{after.tool} started before {before.tool} had ended"


def _output(task: Task, view: RunView) -> Iterator[str]:
    if task.output and not _same(view.output, task.output):
        yield f"the output was {shorten(view.output, 100)}, not {shorten(task.output, 100)}"


def _same(given: Json, wanted: Json) -> bool:
    """Whether the values are equal, except for letters' case and the blanks around a text; `2` is `2.0`, `true` is not
    `1`.
    """
    if isinstance(wanted, str):
        return isinstance(given, str) and given.strip().casefold() == wanted.strip().casefold()
    if isinstance(wanted, dict):
        return isinstance(given, dict) and all(
            key in given and _same(given[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return isinstance(given, list) and len(given) == len(wanted) and all(map(_same, given, wanted))
    return isinstance(given, bool) == isinstance(wanted, bool) and given == wanted


def _times(count: int) -> str:
    words: Sequence[str] = ("never", "once", "twice")
    return words[count] if count < len(words) else f"{count} times"


DIALECTS = ("solution", "tools", "script")
_GRACE = 30.0
"""Seconds beyond a run's deadline, for its last Request."""


async def check_models(
    fast: str,
    smart: str,
    *,
    endpoints: Endpoints,
    prices: Mapping[str, Price] | None = None,
    dialects: Sequence[str] = DIALECTS,
    tasks: Sequence[Task] = TASKS,
    parallel: int = 4,
    timeout: float = 120.0,
    on_result: Callable[[TaskResult], None] = lambda _: None,
) -> CheckReport:
    """Run the tasks with both models in each dialect; `on_result` receives the result of each.

    `parallel` tasks run at once, each for at most `timeout` seconds. Raises `RunError` if a model does not answer.
    """
    models = list(dict.fromkeys([fast, smart]))
    for model in models:
        await _reach(endpoints, model)
    rows: list[Row] = []
    # The SDK's default runtime logs to stdout, where the command prints its JSON.
    async with embedded_server(ui=False, runtime=worker_runtime()) as server:
        tools = load_tools(["perdure.checking.tools"])
        # The settings of workers (approvals, rates, …) do not apply to a check of models.
        plain = replace_settings(Settings.model_construct(), {"prices": prices})
        worker = build_worker(server.client, tools, settings=plain, endpoints=endpoints)
        async with worker:
            bench = _Bench(server.client, parallel, timeout, on_result)
            for model in models:
                rows += [await bench.row(model, dialect, tasks) for dialect in dialects]
    understands = {
        model: understanding([row for row in rows if row.model == model], endpoints.not_understood(model))
        for model in models
    }
    return CheckReport(fast, smart, tuple(rows), understands)


async def _reach(endpoints: Endpoints, model: str) -> None:
    """Send one small request, so that a wrong address, key or name gives one error in place of dozens of failed
    runs."""
    try:
        async with endpoints.ask(model, {"messages": [{"role": "user", "content": "Answer with the word OK."}]}):
            pass
    except ApplicationError as error:
        raise RunError(error.message) from None
    except Exception as error:
        failure = model_failure(error, setting=endpoints.setting(model))
        raise RunError(f"{model}: {failure.message}") from None


class _Bench:
    """A client that runs the tasks on the server with the worker."""

    def __init__(self, client: Client, parallel: int, timeout: float, on_result: Callable[[TaskResult], None]) -> None:
        self._perdure = Perdure(client, task_queue=TASK_QUEUE)
        self._places = asyncio.Semaphore(parallel)
        self._timeout = timeout
        self._on_result = on_result

    async def row(self, model: str, dialect: str, tasks: Sequence[Task]) -> Row:
        """Run all tasks of one model and dialect. The first runs alone: it finds unsupported features, and a refusal
        ends the row.
        """
        first, *rest = tasks
        played = [await self._play(first, model, dialect)]
        if played[0].requests == 0:
            refused = (f"not run: {played[0].problems[0]}",)
            played += [self._report(TaskResult(model, dialect, task.name, refused)) for task in rest]
        else:
            played += await asyncio.gather(*(self._play(task, model, dialect) for task in rest))
        return Row(model, dialect, tuple(played))

    async def _play(self, task: Task, model: str, dialect: str) -> TaskResult:
        document = task.document(model, dialect, self._timeout)
        async with self._places:
            start = time.monotonic()
            run = await self._perdure.start(Agent.of(document))
            try:
                view = await run.wait(self._timeout + _GRACE)
            except RunTimeoutError:
                await run.cancel()
                return self._report(
                    TaskResult(model, dialect, task.name, (f"no end after {self._timeout:g} s",), requests=1)
                )
            seconds = time.monotonic() - start
        usage = view.usage
        answers = Counter(call.id.partition(".")[0] for call in view.calls)
        return self._report(
            TaskResult(
                model,
                dialect,
                task.name,
                tuple(judge(task, view)),
                requests=sum(used.requests for used in usage.by_model.values()),
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                seconds=seconds,
                cost=usage.cost,
                calls=len(view.calls),
                most_at_once=max(answers.values(), default=0),
            )
        )

    def _report(self, played: TaskResult) -> TaskResult:
        self._on_result(played)
        return played
