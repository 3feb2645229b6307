"""Playing the tasks: an embedded server, a worker, and a run for each task, model and dialect."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from perdure.activities.endpoints import Endpoints
from perdure.activities.failures import model_failure
from perdure.activities.registry import load_tools
from perdure.authoring.agent import Agent
from perdure.checking.judging import judge
from perdure.checking.report import Played, Report, Row, understanding
from perdure.checking.tasks import TASKS, Task
from perdure.client.perdure import Perdure
from perdure.errors import RunError, RunTimeoutError
from perdure.hosting.server import embedded_server
from perdure.hosting.settings import Settings, changed
from perdure.hosting.worker import build_worker
from perdure.model.usage import Price
from perdure.run.wire import TASK_QUEUE

DIALECTS = ("solution", "tools", "script")
_GRACE = 30.0
"""Seconds that a run is given beyond its deadline, for its last Request."""


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
    told: Callable[[Played], None] = lambda _: None,
) -> Report:
    """Let both models do the tasks in each dialect; `told` hears of each that was played.

    `parallel` tasks run at once, each for at most `timeout` seconds. Raises `RunError` where a model does not answer at all.
    """
    models = list(dict.fromkeys([fast, smart]))
    for model in models:
        await _reach(endpoints, model)
    rows: list[Row] = []
    async with embedded_server(ui=False) as server:
        tools = load_tools(["perdure.checking.tools"])
        # What is in force for workers (who is asked, rates, …) is no matter of the models'.
        plain = changed(Settings.model_construct(), {"prices": prices})
        worker = build_worker(server.client, tools, settings=plain, endpoints=endpoints)
        async with worker:
            bench = _Bench(server.client, parallel, timeout, told)
            for model in models:
                rows += [await bench.row(model, dialect, tasks) for dialect in dialects]
    understands = {
        model: understanding([row for row in rows if row.model == model], endpoints.not_understood(model))
        for model in models
    }
    return Report(fast, smart, tuple(rows), understands)


async def _reach(endpoints: Endpoints, model: str) -> None:
    """One small question, so that a wrong address, key or name is one line and not dozens of failed runs."""
    try:
        async with endpoints.ask(model, {"messages": [{"role": "user", "content": "Answer with the word OK."}]}):
            pass
    except ApplicationError as error:
        raise RunError(error.message) from None
    except Exception as error:
        failure = model_failure(error, setting=endpoints.setting(model))
        raise RunError(f"{model}: {failure.message}") from None


class _Bench:
    """A client of the server with the worker, and how its runs are played."""

    def __init__(self, client: Client, parallel: int, timeout: float, told: Callable[[Played], None]) -> None:
        self._perdure = Perdure(client, task_queue=TASK_QUEUE)
        self._places = asyncio.Semaphore(parallel)
        self._timeout = timeout
        self._told = told

    async def row(self, model: str, dialect: str, tasks: Sequence[Task]) -> Row:
        """The first task goes ahead: what the server does not understand is learnt once, and where it refuses, no more is asked."""
        first, *rest = tasks
        played = [await self._play(first, model, dialect)]
        if played[0].requests == 0:
            refused = (f"not asked: {played[0].problems[0]}",)
            played += [self._tell(Played(model, dialect, task.name, refused)) for task in rest]
        else:
            played += await asyncio.gather(*(self._play(task, model, dialect) for task in rest))
        return Row(model, dialect, tuple(played))

    async def _play(self, task: Task, model: str, dialect: str) -> Played:
        document = task.document(model, dialect, self._timeout)
        async with self._places:
            start = time.monotonic()
            run = await self._perdure.start(Agent.of(document))
            try:
                view = await run.wait(self._timeout + _GRACE)
            except RunTimeoutError:
                await run.cancel()
                return self._tell(Played(model, dialect, task.name, (f"no end after {self._timeout:g} s",), requests=1))
            seconds = time.monotonic() - start
        usage = view.usage
        answers = Counter(call.id.partition(".")[0] for call in view.calls)
        return self._tell(
            Played(
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

    def _tell(self, played: Played) -> Played:
        self._told(played)
        return played
