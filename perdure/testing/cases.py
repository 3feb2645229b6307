"""Cases: recorded production runs, which are replayed against the present code."""

from __future__ import annotations

import json
import re
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Protocol

from openai import AsyncOpenAI
from temporalio.api.common.v1 import Payloads
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.converter import decode_typed_search_attributes

from perdure import ToolContext, ToolError, branch
from perdure.agents.agent import Agent
from perdure.agents.datasets import recorded_evaluators
from perdure.approvals.decisions import KINDS
from perdure.approvals.requests import APPROVE_ACTIVITY, ApproveInput
from perdure.client.approvals import change_policy, decide
from perdure.client.histories import Exchange, audit_run, execution_histories, started_below
from perdure.client.run_operations import fetch_run
from perdure.errors import RunError, SettingsError
from perdure.models.requests import KEPT_TEXT
from perdure.runs.run_player import differences, plan_graph
from perdure.runs.schedules import with_time
from perdure.runs.wire import (
    AGENT_WORKFLOW,
    DECIDE,
    POLICY,
    READ_AGENT_ACTIVITY,
    SCHEDULED_ATTRIBUTE,
    RunInput,
    RunView,
)
from perdure.testing._checks import AgentLike, ToolLike, as_agent, functions_of, inline_tools
from perdure.testing._clock import WaitingState
from perdure.testing._local import run_locally
from perdure.testing._servers import Server
from perdure.testing._waits import waiting_requests
from perdure.testing.scripted_model import ChatRequest, Fault, ScriptedModel, Turn
from perdure.tools.engine import ENGINE_TOOLS
from perdure.tools.invocation import ToolInput, ToolResult
from perdure.tools.tool import Tool
from perdure.values.json import Json, JsonObject, dumps, shorten
from perdure.values.references import MISSING

_SCHEDULED: Final = SearchAttributeKey.for_datetime(SCHEDULED_ATTRIBUTE)


# A case is made only from the histories of the run and of the runs below it. It needs no model, tool or worker.


class Case(dict[str, Any]):
    """A recorded run, as `record` writes it: JSON, which people may read and edit.

    `{"form", "perdure", "name", "agent", "input"?, "approval"?, "delegates"?, "tools": {name: definition}, "runs"}`.
    `runs` has the run under `""` and each below it under its path (`1.0`): `{"status", "output", "answers": [{"request",
    "model", "dialect", "usage", "says", "cut"?}], "results": {call id: {"tool", "params", "returns" or "raises",
    "branch"?}}, "decisions", "calls", "edges", "cut"?}`.

    ```python
    case = read_case("tests/cases/order.json")
    print(sorted(case["runs"]))
    ```
    """


FORM: Final = 1
_CALL: Final = re.compile(r"\d+\.\d+(\[\d+\])?")


class Recordable(Protocol):
    """A run of `perdure.Perdure`, or of `run_locally`."""

    @property
    def id(self) -> str: ...

    @property
    def client(self) -> Client: ...


async def record(run: Recordable) -> Case:
    """Record a run, and the runs below it, as a case to keep beside the tests. It holds the data that the run read and
    wrote: check it before you share it.

    Raises `RunError` if there is no such run, or if this version cannot replay its history.

    ```python
    write_case(await record(perdure.get_run("order-17")), "tests/cases/order.json")
    ```
    """
    return await record_run(run.client, run.id)


async def record_run(client: Client, run_id: str) -> Case:
    """Record a run by its id, as `record` does."""
    runs: dict[str, JsonObject] = {}
    case = Case({"form": FORM, "perdure": version("perdure"), "name": run_id})
    left = [(run_id, "")]
    while left:
        workflow_id, kind = left.pop(0)
        taken = _RecordedRun(client)
        async for history in execution_histories(client, workflow_id):
            kind = kind or history.events[0].workflow_execution_started_event_attributes.workflow_type.name
            left += started_below(history)
            for event in history.events if kind == AGENT_WORKFLOW else ():
                await taken.take(event)
        if workflow_id == run_id and kind != AGENT_WORKFLOW:
            raise RunError(f"{run_id!r} is a {kind} workflow, not a run of an agent")
        if kind != AGENT_WORKFLOW:
            continue
        audited = await audit_run(client, workflow_id)
        view = audited.view or await fetch_run(client, workflow_id)
        if workflow_id == run_id:
            case |= _input_of(taken.input) | _caller_of(view)
            case["tools"] = {}
        case["tools"] |= _definitions(audited.tools)
        runs[workflow_id.removeprefix(run_id).removeprefix("/")] = _written(view, audited.exchanges, taken)
    return Case({**case, "runs": runs})


def _caller_of(view: RunView) -> JsonObject:
    """Return the sender and the context of the start. Secrets of the context are masked."""
    known = {"sender": view.owner.sender, "context": view.owner.context}
    return {name: value for name, value in known.items() if value}


def with_evaluators(case: Case) -> Case:
    """Return the case with the evaluators of its run, as `perdure eval` reads them."""
    return Case({**case, "evaluators": recorded_evaluators(case["runs"].get("") or {})})


def case_text(case: Case) -> str:
    """Return the case as indented JSON."""
    return json.dumps(case, ensure_ascii=False, indent=2)


def write_case(case: Case, path: str | Path) -> None:
    """Write a case into a file, as indented JSON. Raises `SettingsError` for a value that is not a case.

    ```python
    write_case(await record(run), "tests/cases/order.json")
    ```
    """
    Path(path).write_text(case_text(check_case(case, "the value")) + "\n", encoding="utf-8")


def read_case(path: str | Path) -> Case:
    """Return the case in a file. Raises `SettingsError` for a file that is not a case, or a case of a form that this
    version does not know.

    ```python
    case = read_case("tests/cases/order.json")
    ```
    """
    try:
        case = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read as a case: {error}") from None
    return check_case(case, str(path))


def check_case(case: Any, source: str) -> Case:
    if not isinstance(case, dict) or not isinstance(case.get("runs"), dict) or "agent" not in case:
        raise SettingsError(f"{source} is not a case: write one with 'perdure record ID'")
    if case.get("form") != FORM:
        raise SettingsError(f"{source} is a case of form {case.get('form')}, and this version of Perdure reads {FORM}")
    return Case(case)


def _definitions(tools: Iterable[Tool]) -> JsonObject:
    """Return the definitions of the tools that have code, without the engine's own and the latent ones."""
    return {
        tool.name: tool.definition()
        for tool in tools
        if tool.activity is not None and tool.activity not in ENGINE_TOOLS and tool.delegate is None
    }


def _input_of(run_input: RunInput | None) -> JsonObject:
    if run_input is None:
        return {}
    given: JsonObject = {"agent": run_input.agent}
    given |= {"input": run_input.input} if run_input.has_input else {}
    given |= {"approval": run_input.approval} if run_input.approval else {}
    return given | ({"delegates": run_input.delegates} if run_input.delegates else {})


def _written(view: RunView, exchanges: list[Exchange], taken: _RecordedRun) -> JsonObject:
    failed = {call.id: call for call in view.calls if call.status == "failed" and call.id in taken.called}
    for call_id, call in failed.items():
        taken.results[call_id] = {
            "tool": call.tool,
            "params": taken.called[call_id] or call.params,
            "raises": call.error,
        }
    refused = [refusal.get("decision") for refusal in view.refusals]
    return {
        "status": view.status,
        "output": view.output,
        "answers": [_answer(each) for each in exchanges if each.answer is not None],
        "results": taken.results,
        "decisions": [each for each in taken.decisions if each not in refused],
        **plan_graph(view),
        **({"cut": view.cut} if view.cut else {}),
    }


def _answer(exchange: Exchange) -> JsonObject:
    """Return the model's answer: word for word if it was kept in full, else as it was parsed."""
    answer = exchange.answer
    assert answer is not None
    code = None if answer.problem is None else answer.problem.get("code")
    about: JsonObject = {"request": exchange.request.number, "model": answer.model or exchange.request.model}
    about |= {"dialect": exchange.context.dialect}
    about |= {"usage": [answer.usage.prompt_tokens, answer.usage.completion_tokens]}
    about |= {"cut": True} if code == "interrupted" else {}
    whole = bool(answer.text.strip()) and len(answer.text) < KEPT_TEXT
    understood = answer.problem is None and exchange.context.dialect != "script"
    if whole and not understood:
        return {**about, "says": answer.text}
    calls = [
        {key: value for key, value in call.items() if key not in ("_id", "_source")} if isinstance(call, dict) else call
        for call in answer.calls
    ]
    # With native calls, text is beside them, or is the answer (R9.5).
    output = answer.output if exchange.context.dialect != "tools" else answer.text or None
    return {**about, "says": {"calls": calls, "output": output}}


@dataclass
class _RecordedRun:
    """The data of one run's histories, beside its Requests."""

    client: Client
    input: RunInput | None = None
    results: dict[str, JsonObject] = field(default_factory=dict)
    """By call id: `{"tool", "params", "returns", "branch"?}`, or `"raises"` in place of `"returns"`."""
    called: dict[str, JsonObject | None] = field(default_factory=dict)
    """The resolved parameters of each call that ran, if the history has them."""
    decisions: list[JsonObject] = field(default_factory=list)
    _scheduled: dict[int, ToolInput | ApproveInput] = field(default_factory=dict)
    _scheduled_at: datetime | None = None

    async def take(self, event: HistoryEvent) -> None:
        which = event.WhichOneof("attributes")
        attributes: Any = getattr(event, which) if which else None
        if which == "workflow_execution_started_event_attributes" and self.input is None:
            self.input = await self._read(attributes.input, RunInput)
            self._scheduled_at = decode_typed_search_attributes(attributes.search_attributes).get(_SCHEDULED)
        elif which == "marker_recorded_event_attributes" and self.input is not None and self.input.agent_name:
            await self._take_agent(self.input, attributes)
        elif which == "activity_task_scheduled_event_attributes":
            if _CALL.fullmatch(attributes.activity_id):
                called: ToolInput = await self._read(attributes.input, ToolInput)
                self._scheduled[event.event_id] = called
                self.called[called.call_id] = called.reads.params if called.reads else None
            elif attributes.activity_type.name == APPROVE_ACTIVITY:
                self._scheduled[event.event_id] = await self._read(attributes.input, ApproveInput)
        elif which == "activity_task_completed_event_attributes":
            await self._complete(self._scheduled.get(attributes.scheduled_event_id), attributes.result)
        elif which == "workflow_execution_signaled_event_attributes":
            await self._take_signal(attributes.signal_name, attributes.input)
        elif which == "workflow_execution_update_accepted_event_attributes":
            await self._take_signal(attributes.accepted_request.input.name, attributes.accepted_request.input.args)

    async def _take_agent(self, given: RunInput, marker: Any) -> None:
        """Record the agent file that the worker read at the start of a schedule's run."""
        if READ_AGENT_ACTIVITY.encode() not in b"".join(each.data for each in marker.details["data"].payloads):
            return
        document = await self._read(marker.details["result"], dict)
        value = given.input if self._scheduled_at is None else with_time(given.input, self._scheduled_at.isoformat())
        self.input = given.model_copy(update={"agent": document, "agent_name": "", "input": value})

    async def _complete(self, scheduled: ToolInput | ApproveInput | None, result: Payloads) -> None:
        if isinstance(scheduled, ToolInput):
            returned: ToolResult = await self._read(result, ToolResult)
            branch = {} if returned.branch is None else {"branch": returned.branch}
            params = self.called[scheduled.call_id]
            one = {"tool": scheduled.tool, "params": params, "returns": returned.value, **branch}
            self.results[scheduled.call_id] = one
        elif scheduled is not None:
            self._decide(scheduled.call, await self._read(result, object))

    def _decide(self, call: str, written: Json) -> None:
        """Record a program's decision; a replay sends it as a person's."""
        decision = {"decision": written} if isinstance(written, str) else written
        if isinstance(decision, dict) and decision.get("decision") in KINDS:
            self.decisions.append({"call": call, **_without_digest(decision)})

    async def _take_signal(self, name: str, payloads: Payloads) -> None:
        if name not in (*KINDS, DECIDE, POLICY) or not payloads.payloads:
            return
        try:
            decision = await self._read(payloads, object)
        except Exception:  # a client may send any value
            return
        if isinstance(decision, dict):
            kind = {} if name in (DECIDE, POLICY) else {"decision": name}
            self.decisions.append({"policy": decision} if name == POLICY else {**_without_digest(decision), **kind})

    async def _read(self, payloads: Payloads, kind: Any) -> Any:
        (value,) = await self.client.data_converter.decode(payloads.payloads[:1], None if kind is object else [kind])
        return value


def _without_digest(decision: JsonObject) -> JsonObject:
    """Return the decision without its digest: a replay decides its own request, and the plans show whether it is the
    same.
    """
    return {key: value for key, value in decision.items() if key != "digest"}


class CaseDifferenceError(AssertionError):
    """The run differs from the recorded one. `lines`: the diff, of recorded (`-`) and present (`+`) lines.

    ```python
    try:
        await replay("tests/cases/order.json", shopper)
    except CaseDifferenceError as error:
        print(error.lines)
    ```
    """

    def __init__(self, name: str, lines: list[str], view: RunView) -> None:
        super().__init__(f"the run differs from its record {name!r}:\n" + "\n".join(lines))
        self.lines = lines
        self.view = view


async def replay(
    case: Case | JsonObject | str | Path,
    agent: AgentLike | None = None,
    *,
    tools: Iterable[ToolLike] = (),
    model: ScriptedModel | AsyncOpenAI | None = None,
    server: Server = "time-skipping",
    timeout: float = 120.0,
) -> RunView:
    """Play a recorded run again, by default with the recorded answers and the recorded agent, and return its view.

    `agent`: the present agent. `tools`: the present tools, of which only the definitions count. No tool is called: each
    call gets the result of the recorded call of the same tool and parameters. `model`: another model, whose plan is
    compared with the recorded one. `server`, `timeout`: as for `run_locally`. Raises `CaseDifferenceError`, an
    `AssertionError`, with a diff of the plans as graphs: calls with parameters, statuses and approvals, dependencies,
    status and output. Raises `SettingsError` for a value that is not a case.

    ```python
    async def test_order() -> None:
        await replay("tests/cases/order.json", shopper, tools=[order])
    ```
    """
    known = read_case(case) if isinstance(case, str | Path) else check_case(case, "the case")
    whole = as_agent(known["agent"] if agent is None else agent)
    today = _without_programs(whole)
    record = _Record(known, f"{today.name}-replay-{uuid.uuid4().hex[:8]}")
    definitions = _definitions_replaying(known, whole, tools)
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
            lines = [*record.strange, *await _compared_replaying(local.client, record, view)]
    if lines:
        raise CaseDifferenceError(str(known.get("name")), lines, view)
    return view


async def _compared_replaying(client: Client, record: _Record, view: RunView) -> list[str]:
    """Return the differences of the run and of the runs below it, one line each."""
    lines: list[str] = []
    for path, before in record.runs.items():
        where = f"run {path}: " if path else ""
        try:
            after = await fetch_run(client, f"{record.run_id}/{path}") if path else view
        except RunError:
            lines.append(f"- {where}it was a run of its own, and no longer exists")
            continue
        found = differences(before, {**plan_graph(after), "status": after.status, "output": after.output})
        lines += [f"{line[:2]}{where}{line[2:]}" for line in found]
    return lines


class _Record:
    """The data of the recorded runs for the run that is replayed: each item is used once."""

    def __init__(self, case: Case, run_id: str) -> None:
        self.run_id = run_id
        self.runs: dict[str, JsonObject] = case["runs"]
        """By the path below the outermost run: `""`, `1.0`, `1.0/2.1`, …"""
        self.strange: list[str] = []
        self._requests: Counter[str] = Counter()
        self._results = {path: dict(run.get("results", {})) for path, run in self.runs.items()}
        self._decisions = {path: list(run.get("decisions", [])) for path, run in self.runs.items()}

    def _path(self, run_id: str) -> str:
        return run_id.removeprefix(self.run_id).removeprefix("/")

    def answer(self, request: ChatRequest) -> Turn:
        """Return the next recorded answer of the run that sent the request."""
        path = self._path(request.run_id)
        answers = self.runs.get(path, {}).get("answers", [])
        self._requests[path] += 1
        if self._requests[path] > len(answers):
            return Turn("the record has no more answers", status=400)
        one = answers[self._requests[path] - 1]
        says = one["says"]
        cut = Fault("cut", len(says)) if one.get("cut") and isinstance(says, str) else None
        usage = one.get("usage")
        dialect = one.get("dialect") if path else None  # the outermost agent's may have changed
        return Turn(says, dialect=dialect, fault=cut, usage=True if usage is None else (usage[0], usage[1]))

    async def recorded_result(self, context: ToolContext, **params: Any) -> Any:
        """Return the result of the recorded call with the same tool and parameters; of several the one with the same id."""
        path = self._path(context.idempotency_key.rpartition("/")[0])
        results = self._results.get(path, {})
        same = [
            call_id
            for call_id, one in results.items()
            if one["tool"] == context.tool_name and one["params"] in (None, params)
        ]
        if not same:
            where = f"run {path}: " if path else ""
            call_text = f"{context.tool_name} {shorten(params, 200)}"
            self.strange.append(f"+ {where}{context.call_id} {call_text}: the record has no result for it")
            raise ToolError("not_recorded", f"the record has no result of {call_text}")
        found = results.pop(context.call_id if context.call_id in same else same[0])
        if "raises" in found:
            raise ToolError(found["raises"]["code"], found["raises"]["message"])
        return branch(found["branch"], found["returns"]) if "branch" in found else found["returns"]

    async def decide(self, client: Client, look: WaitingState) -> None:
        """Send the recorded decisions, each once its call waits."""
        for run_id in look.open:
            left = self._decisions.get(self._path(run_id), [])
            while left and "policy" in left[0]:
                await change_policy(client, run_id, left.pop(0)["policy"])
            waiting = {request.call for request in await waiting_requests(client, run_id)} if left else set()
            for decision in [each for each in left if each.get("call") in waiting]:
                left.remove(decision)
                try:
                    await decide(client, run_id, decision)
                except RunError as error:
                    self.strange.append(f"- {decision['call']} {decision['decision']}: rejected now: {error}")


def _write(delegates: dict[str, JsonObject], folder: Path) -> None:
    for name, document in delegates.items():
        (folder / f"{name}.json").write_text(dumps(document), encoding="utf-8")


def _definitions_replaying(case: Case, agent: Agent[Any], tools: Iterable[ToolLike]) -> dict[str, JsonObject]:
    """Return the tools by name: the present ones, and for all others their recorded definitions."""
    there = {name: _own(definition) for name, definition in case.get("tools", {}).items()}
    return {**there, **{function.name: function.definition for function in functions_of(agent, tools)}}


def _own(definition: JsonObject) -> JsonObject:
    """Return the definition under the name of the worker's tool, in place of the agent's name for it."""
    kept = {key: value for key, value in definition.items() if key not in ("_activity", "_taskQueue")}
    return {**kept, "name": definition.get("_activity", definition["name"])}


def _without_programs(agent: Agent[Any]) -> Agent[Any]:
    """Return the agent without the worker's programs that decide: their decisions are in the record."""
    document = agent.document()
    config = document.get("config", {})
    if isinstance(config.get("approval"), dict):
        config["approval"].pop("approver", None)
    if ":" in str(config.get("models", {}).get("policy", "")):
        del config["models"]["policy"]
    return Agent.of(document)
