"""A case played again against the code and the agent of today: same answers, same results, same decisions; is it the same plan? (R14.6)"""

from __future__ import annotations

import tempfile
import uuid
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from temporalio.client import Client

from perdure import ToolContext, ToolError, branch
from perdure.authoring.agent import Agent
from perdure.client.approvals import change_policy, decide
from perdure.client.runs import fetch_run
from perdure.errors import RunError
from perdure.run.wire import RunView
from perdure.testing.agents import AgentLike, ToolLike, as_agent, functions_of, inline_tools
from perdure.testing.cases.graphs import differences, plan_graph
from perdure.testing.cases.recording import Case, check_case, read_case
from perdure.testing.clock import Look
from perdure.testing.following import offers_of
from perdure.testing.local import run_locally
from perdure.testing.scripted_model import ScriptedModel
from perdure.testing.serving import Server
from perdure.testing.turns import ChatRequest, Fault, Turn
from perdure.values.jsons import JsonObject, dumps, shorten
from perdure.values.references import MISSING


class CaseDifferenceError(AssertionError):
    """The run is not what was recorded: `lines` are what was (`-`) and what is (`+`)."""

    def __init__(self, name: str, lines: list[str], view: RunView) -> None:
        super().__init__(f"the run differs from its record {name!r}:\n" + "\n".join(lines))
        self.lines = lines
        self.view = view


async def replay(
    case: Case | str | Path,
    agent: AgentLike | None = None,
    *,
    tools: Iterable[ToolLike] = (),
    model: ScriptedModel | AsyncOpenAI | None = None,
    server: Server = "time-skipping",
    timeout: float = 30.0,
) -> RunView:
    """Play a recorded run again: by default with the answers of its record, and the agent that it had.

    `agent`: the agent of today; `tools`: the code of today, of which only the definitions count: no tool is called, each call gets what the
    recorded one of the same tool and parameters got. `model`: another model, whose plan is compared with the recorded one. `server` and
    `timeout` as for `run_locally`. Raises `CaseDifferenceError`, an `AssertionError`, with a diff of the plans as graphs: calls with
    parameters, statuses and whether a person was asked, edges, status and output; `SettingsError` for what is no case.
    """
    known = read_case(case) if isinstance(case, str | Path) else check_case(case, "the case")
    whole = as_agent(known["agent"] if agent is None else agent)
    today = _without_programs(whole)
    record = _Record(known, f"{today.name}-replay-{uuid.uuid4().hex[:8]}")
    definitions = _definitions(known, whole, tools)
    inline = {name for name, tool in inline_tools(today).items() if tool.get("_activity", name) in definitions}
    fakes = dict.fromkeys({*definitions, *inline}, record.recorded_result)
    scripted = model or ScriptedModel(record.answer)
    with tempfile.TemporaryDirectory() as folder:
        delegates = {**known.get("delegates", {}), **whole.delegates()}
        _write(delegates, Path(folder))
        options: dict[str, Any] = {"server": server, "timeout": timeout, "agents": folder}
        async with run_locally(today, model=scripted, tools=definitions.values(), fakes=fakes, **options) as local:
            given = known.get("input", MISSING)
            run = await local.start(given, id=record.run_id, approval=known.get("approval"))
            local.following.meanwhile = lambda look: record.decide(local.client, look)
            view = await run.wait()
            lines = [*record.strange, *await _compared(local.client, record, view)]
    if lines:
        raise CaseDifferenceError(str(known.get("name")), lines, view)
    return view


async def _compared(client: Client, record: _Record, view: RunView) -> list[str]:
    """What differs of the run and of those below it, a line each."""
    lines: list[str] = []
    for path, before in record.runs.items():
        where = f"run {path}: " if path else ""
        try:
            after = await fetch_run(client, f"{record.run_id}/{path}") if path else view
        except RunError:
            lines.append(f"- {where}it was a run of its own, and is not there any more")
            continue
        found = differences(before, {**plan_graph(after), "status": after.status, "output": after.output})
        lines += [f"{line[:2]}{where}{line[2:]}" for line in found]
    return lines


class _Record:
    """What the recorded runs tell the one that is played: each thing once."""

    def __init__(self, case: Case, run_id: str) -> None:
        self.run_id = run_id
        self.runs: dict[str, JsonObject] = case["runs"]
        """By the way below the outermost run: `""`, `1.0`, `1.0/2.1`, …"""
        self.strange: list[str] = []
        self._asked: Counter[str] = Counter()
        self._results = {path: dict(run.get("results", {})) for path, run in self.runs.items()}
        self._decisions = {path: list(run.get("decisions", [])) for path, run in self.runs.items()}

    def _path(self, run_id: str) -> str:
        return run_id.removeprefix(self.run_id).removeprefix("/")

    def answer(self, asked: ChatRequest) -> Turn:
        """The next recorded answer of the run that asks."""
        path = self._path(asked.run_id)
        answers = self.runs.get(path, {}).get("answers", [])
        self._asked[path] += 1
        if self._asked[path] > len(answers):
            return Turn("the record has no further answer", status=400)
        one = answers[self._asked[path] - 1]
        says = one["says"]
        cut = Fault("cut", len(says)) if one.get("cut") and isinstance(says, str) else None
        usage = one.get("usage")
        dialect = one.get("dialect") if path else None  # the outermost agent's may have changed
        return Turn(says, dialect=dialect, fault=cut, usage=True if usage is None else (usage[0], usage[1]))

    async def recorded_result(self, context: ToolContext, **params: Any) -> Any:
        """What the recorded call of the same tool and parameters got; of several the one of the same id."""
        path = self._path(context.idempotency_key.rpartition("/")[0])
        results = self._results.get(path, {})
        same = [
            call_id
            for call_id, one in results.items()
            if one["tool"] == context.tool_name and one["params"] in (None, params)
        ]
        if not same:
            where = f"run {path}: " if path else ""
            said = f"{context.tool_name} {shorten(params, 200)}"
            self.strange.append(f"+ {where}{context.call_id} {said}: the record has no result for it")
            raise ToolError("not_recorded", f"the record has no result of {said}")
        found = results.pop(context.call_id if context.call_id in same else same[0])
        if "raises" in found:
            raise ToolError(found["raises"]["code"], found["raises"]["message"])
        return branch(found["branch"], found["returns"]) if "branch" in found else found["returns"]

    async def decide(self, client: Client, look: Look) -> None:
        """Say again what people said, each once its call waits."""
        for run_id in look.open:
            left = self._decisions.get(self._path(run_id), [])
            while left and "policy" in left[0]:
                await change_policy(client, run_id, left.pop(0)["policy"])
            waiting = {offer.call for offer in await offers_of(client, run_id)} if left else set()
            for decision in [each for each in left if each.get("call") in waiting]:
                left.remove(decision)
                try:
                    await decide(client, run_id, decision)
                except RunError as error:
                    self.strange.append(f"- {decision['call']} {decision['decision']}: refused now, {error}")


def _write(delegates: dict[str, JsonObject], folder: Path) -> None:
    for name, document in delegates.items():
        (folder / f"{name}.json").write_text(dumps(document), encoding="utf-8")


def _definitions(case: Case, agent: Agent[Any], tools: Iterable[ToolLike]) -> dict[str, JsonObject]:
    """The tools by name: those of today, and of the others what the record knows of them."""
    there = {name: _own(definition) for name, definition in case.get("tools", {}).items()}
    return {**there, **{function.name: function.definition for function in functions_of(agent, tools)}}


def _own(definition: JsonObject) -> JsonObject:
    """As a worker has it, whatever name the agent gave it."""
    kept = {key: value for key, value in definition.items() if key not in ("_activity", "_taskQueue")}
    return {**kept, "name": definition.get("_activity", definition["name"])}


def _without_programs(agent: Agent[Any]) -> Agent[Any]:
    """Programs of the worker's that would decide: what they decided is in the record."""
    document = agent.document()
    config = document.get("config", {})
    if isinstance(config.get("approval"), dict):
        config["approval"].pop("approver", None)
    if ":" in str(config.get("models", {}).get("policy", "")):
        del config["models"]["policy"]
    return Agent.of(document)
