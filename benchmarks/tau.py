"""Gold actions of τ²-bench as runs, against its own databases, judged by its own evaluator.

The benchmark is fetched when it is needed, and `make` installs what it imports in an environment of its own.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import sys
from collections import Counter
from typing import Any, Final, Literal, TypeAlias

from benchmarks.datasets import repository
from perdure import Agent, ToolContext, ToolError
from perdure.errors import JsonError
from perdure.runs.wire import RunView
from perdure.testing import run_locally
from perdure.testing.scripted_model import ChatRequest, write_script
from perdure.tools.decorator import ToolFunction, open_tool
from perdure.values.json import JsonObject, loads

_DOMAINS: Final = ("airline", "retail")
_Dialect: TypeAlias = Literal["solution", "tools", "script"]
_DIALECTS: Final[tuple[_Dialect, ...]] = ("solution", "tools", "script")
_CONTEXT: Final = "†context"
_WORD: Final = re.compile(r"\w+")
_AT_ONCE: Final = 4
_SECONDS: Final = 600.0
"""Real seconds for a run, on a loaded machine."""


class _Domain:
    """A domain of the benchmark: its tasks, and the state of its database by run."""

    def __init__(self, name: str) -> None:
        package = f"tau2.domains.{name}.environment"
        self._messages: Any = importlib.import_module("tau2.data_model.message")
        self._evaluator: Any = importlib.import_module("tau2.evaluator.evaluator_env").EnvironmentEvaluator
        self._environment: Any = importlib.import_module(package)
        self.name = name
        self.tasks: list[Any] = self._environment.get_tasks(None)
        self._runs: dict[str, Any] = {}
        self._trajectories: dict[str, list[Any]] = {}
        self._answers: dict[str, Any] = {}

    def begin(self, run_id: str) -> None:
        """Give a run a database of its own."""
        self._runs[run_id] = self._environment.get_environment()
        self._trajectories[run_id] = []

    def tools(self) -> list[ToolFunction]:
        """Return the domain's tools, as the benchmark defines them."""
        return [self._tool(tool) for tool in self._environment.get_environment().get_tools()]

    def _tool(self, tool: Any) -> ToolFunction:
        function = tool.openai_schema["function"]

        async def call(**params: Any) -> Any:
            context: ToolContext = params.pop(_CONTEXT)
            key = context.idempotency_key
            if key not in self._answers:  # an attempt before this one may have reached the database
                made = self._messages.ToolCall(id=key, name=tool.name, arguments=params)
                self._answers[key] = self._runs[context.run_id].get_response(made)
                said = self._messages.AssistantMessage(role="assistant", tool_calls=[made])
                self._trajectories[context.run_id] += [said, self._answers[key]]
            answer = self._answers[key]
            if answer.error:
                raise ToolError("tool_failed", str(answer.content))
            try:
                return loads(answer.content)
            except JsonError:
                return answer.content

        definition = {
            "name": tool.name,
            "description": function["description"],
            "inputSchema": function["parameters"],
            "_exclusive": True,
        }
        return open_tool(definition, call, context_parameter=_CONTEXT)

    def end(self, run_id: str) -> None:
        """Forget a run's database: 15 MB each."""
        del self._runs[run_id]

    def reward(self, run_id: str, task: Any) -> float:
        """Return the reward that the benchmark's evaluator gives for what a run did to its database."""
        trajectory = self._trajectories.pop(run_id)
        found = self._evaluator.calculate_reward(self._environment.get_environment, task, trajectory)
        reward: float = found.db_check.db_reward
        return reward


def load_domains(*names: str) -> list[_Domain]:
    """Return domains of the benchmark."""
    checkout = repository("tau2-bench")
    sys.path.insert(0, str(checkout / "src"))
    os.environ.setdefault("TAU2_DATA_DIR", str(checkout / "data"))
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it fetches prices, which nothing here reads
    importlib.import_module("loguru").logger.remove()
    return [_Domain(name) for name in names]


def table() -> str:
    """Return the tasks of each domain, and in how many a run of each dialect leaves the right database."""
    return asyncio.run(_table(load_domains(*_DOMAINS)))


async def _table(domains: list[_Domain]) -> str:
    lines = ["| domain | tasks | calls | solution | tools | script | not right |", "|---|--:|--:|--:|--:|--:|---|"]
    for domain in domains:
        right, why = Counter[str](), list[str]()
        for dialect in _DIALECTS:
            for task, reward, words in await _play(domain, dialect):
                right[dialect] += reward == 1.0
                if reward != 1.0:
                    why.append(f"{task.id}, {dialect}: {words}")
        calls = sum(len(gold_actions(task)) for task in domain.tasks)
        figures = " | ".join(f"{right[each]}" for each in _DIALECTS)
        lines.append(f"| {domain.name} | {len(domain.tasks)} | {calls:,} | {figures} | {'; '.join(why) or '–'} |")
    return "\n".join(lines)


def gold_actions(task: Any) -> list[Any]:
    """Return the calls of the agent by which a task is scored."""
    return [each for each in task.evaluation_criteria.actions or [] if each.requestor == "assistant"]


async def _play(domain: _Domain, dialect: _Dialect) -> list[tuple[Any, float, str]]:
    tasks = {task.id: task for task in domain.tasks}

    def answer(request: ChatRequest) -> Any:
        task = tasks[request.text.rpartition("TASK <")[2].partition(">")[0]]
        # Asked again, after a call that failed or an answer that broke off, the model writes the calls that are missing.
        words = set(_WORD.findall(request.shown))
        plan = _plan(task, sum(f"r{number}" in words for number in range(len(gold_actions(task)))))
        return write_script(plan) if dialect == "script" else plan

    agent = Agent(
        f"{domain.name}-{dialect}",
        instructions="You serve customers.",
        tools=domain.tools(),
        dialect=dialect,
        approval={"ask": "never"},
    )
    # Real time: a database that is loaded beside the runs would look like silence to a server that skips time.
    async with run_locally(agent, model=answer, server="dev", timeout=_SECONDS) as local:

        async def play(task: Any, turns: asyncio.Semaphore) -> RunView:
            async with turns:
                domain.begin(run_id := f"{domain.name}-{dialect}-{task.id}")
                view = await (await local.perdure.start(agent, {"request": f"TASK <{task.id}>"}, id=run_id)).wait()
                domain.end(run_id)
            return view

        turns = asyncio.Semaphore(_AT_ONCE)
        views = await asyncio.gather(*(play(task, turns) for task in domain.tasks))
    # The evaluator takes half a second of CPU time for a task, so no run goes on beside it.
    return [
        (
            task,
            domain.reward(view.run_id, task),
            "; ".join(str(call.error) for call in view.calls if call.error) or view.error or "another database",
        )
        for task, view in zip(domain.tasks, views, strict=True)
    ]


def _plan(task: Any, begin: int) -> JsonObject:
    """Return a task's gold actions as a plan, from the one at `begin`."""
    calls: list[JsonObject] = []
    for number, action in enumerate(gold_actions(task)[begin:], begin):
        # The order of the actions is the database's, and no data says so. Some are meant to fail: a user gives a wrong id.
        after = {"_after": [f"ended †state.r{number - 1}"]} if number > begin else {}
        calls.append({"_tool": action.name, **action.arguments, "_outputPath": f"†state.r{number}", **after})
    return {"calls": calls, "output": {"done": True}}
