"""A production run written down: what the model answered, what tools returned, what people decided, and the plan that came of it (R14.6).

All of it stands in the histories of the run and of those below it; nothing is asked of a model or a tool, and no worker has to run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from temporalio.api.common.v1 import Payloads
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

from perdure.client.audit import Exchange, audit_run
from perdure.client.histories import executions, started_below
from perdure.client.runs import fetch_run
from perdure.errors import RunError, SettingsError
from perdure.model.wire import KEPT_TEXT
from perdure.people.decisions import KINDS
from perdure.people.wire import APPROVE_ACTIVITY, ApproveInput
from perdure.run.wire import AGENT_WORKFLOW, DECIDE, POLICY, RunInput, RunView
from perdure.testing.cases.graphs import plan_graph
from perdure.tools.engine import ENGINE_TOOLS
from perdure.tools.tool import Tool
from perdure.tools.wire import ToolInput, ToolResult
from perdure.values.jsons import Json, JsonObject

Case: TypeAlias = JsonObject
"""A run as `record` writes it down: JSON, to be read and to be edited by hand.

`{"form", "perdure", "name", "agent", "input"?, "approval"?, "delegates"?, "tools": {name: definition}, "runs"}`. `runs` has the run under `""`
and each below it under its path (`1.0`): `{"status", "output", "answers": [{"request", "model", "dialect", "usage", "says", "cut"?}],
"results": {call id: {"tool", "params", "returns" or "raises", "branch"?}}, "decisions", "calls", "edges", "cut"?}`.
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
    """The run, and those below it, as a case to be kept beside the tests. It holds what the run read and wrote: look at it before it is shared.

    Raises `RunError` for a run that is not there, or whose history this version cannot replay.
    """
    return await record_run(run.client, run.id)


async def record_run(client: Client, run_id: str) -> Case:
    """`record`, by id."""
    runs: dict[str, JsonObject] = {}
    case: Case = {"form": FORM, "perdure": version("perdure"), "name": run_id}
    left = [(run_id, "")]
    while left:
        workflow_id, kind = left.pop(0)
        taken = _Taken(client)
        async for history in executions(client, workflow_id):
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
            case |= _given(taken.input)
            case["tools"] = {}
        case["tools"] |= _definitions(audited.tools)
        runs[workflow_id.removeprefix(run_id).removeprefix("/")] = _written(view, audited.exchanges, taken)
    return {**case, "runs": runs}


def case_text(case: Case) -> str:
    """As indented JSON."""
    return json.dumps(case, ensure_ascii=False, indent=2)


def write_case(case: Case, path: str | Path) -> None:
    """Into a file, as indented JSON."""
    Path(path).write_text(case_text(case) + "\n", encoding="utf-8")


def read_case(path: str | Path) -> Case:
    """Raises `SettingsError` for a file that is no case, or of a form that this version does not know."""
    try:
        case = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read as a case: {error}") from None
    return check_case(case, str(path))


def check_case(case: Any, source: str) -> Case:
    if not isinstance(case, dict) or not isinstance(case.get("runs"), dict) or "agent" not in case:
        raise SettingsError(f"{source} is no case: write one with 'perdure record ID'")
    if case.get("form") != FORM:
        raise SettingsError(f"{source} is a case of form {case.get('form')}, and this version of Perdure reads {FORM}")
    return case


def _definitions(tools: Iterable[Tool]) -> JsonObject:
    """Of the tools that code carries out: not the engine's own, and not what the model writes itself."""
    return {
        tool.name: tool.definition()
        for tool in tools
        if tool.activity is not None and tool.activity not in ENGINE_TOOLS and tool.delegate is None
    }


def _given(run_input: RunInput | None) -> JsonObject:
    if run_input is None:
        return {}
    given: JsonObject = {"agent": run_input.agent}
    given |= {"input": run_input.input} if run_input.has_input else {}
    given |= {"approval": run_input.approval} if run_input.approval else {}
    return given | ({"delegates": run_input.delegates} if run_input.delegates else {})


def _written(view: RunView, exchanges: list[Exchange], taken: _Taken) -> JsonObject:
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
    """What the model said: word for word where that was kept whole, else as it was understood."""
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
    calls = [{key: value for key, value in call.items() if key not in ("_id", "_source")} for call in answer.calls]
    # Where calls are native, text is what stands beside them, or the answer (R9.5).
    output = answer.output if exchange.context.dialect != "tools" else answer.text or None
    return {**about, "says": {"calls": calls, "output": output}}


@dataclass
class _Taken:
    """What the histories of one run tell beside its Requests."""

    client: Client
    input: RunInput | None = None
    results: dict[str, JsonObject] = field(default_factory=dict)
    """By call id: `{"tool", "params", "returns", "branch"?}`, or `"raises"` in place of what it returned."""
    called: dict[str, JsonObject | None] = field(default_factory=dict)
    """The resolved parameters of each call that ran, where its history holds them."""
    decisions: list[JsonObject] = field(default_factory=list)
    _scheduled: dict[int, ToolInput | ApproveInput] = field(default_factory=dict)

    async def take(self, event: HistoryEvent) -> None:
        which = event.WhichOneof("attributes")
        attributes: Any = getattr(event, which) if which else None
        if which == "workflow_execution_started_event_attributes" and self.input is None:
            self.input = await self._read(attributes.input, RunInput)
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
            await self._say(attributes.signal_name, attributes.input)
        elif which == "workflow_execution_update_accepted_event_attributes":
            await self._say(attributes.accepted_request.input.name, attributes.accepted_request.input.args)

    async def _complete(self, scheduled: ToolInput | ApproveInput | None, result: Payloads) -> None:
        if isinstance(scheduled, ToolInput):
            returned: ToolResult = await self._read(result, ToolResult)
            branch = {} if returned.branch is None else {"branch": returned.branch}
            params = self.called[scheduled.call_id]
            one = {"tool": scheduled.tool, "params": params, "returns": returned.value, **branch}
            self.results[scheduled.call_id] = one
        elif scheduled is not None:
            self._decide(scheduled.call, await self._read(result, object))

    def _decide(self, call: str, said: Json) -> None:
        """What a program decided; on a replay it is said as a person's."""
        decision = {"decision": said} if isinstance(said, str) else said
        if isinstance(decision, dict) and decision.get("decision") in KINDS:
            self.decisions.append({"call": call, **_without_digest(decision)})

    async def _say(self, name: str, payloads: Payloads) -> None:
        if name not in (*KINDS, DECIDE, POLICY) or not payloads.payloads:
            return
        try:
            said = await self._read(payloads, object)
        except Exception:  # whatever anybody sends
            return
        if isinstance(said, dict):
            kind = {} if name in (DECIDE, POLICY) else {"decision": name}
            self.decisions.append({"policy": said} if name == POLICY else {**_without_digest(said), **kind})

    async def _read(self, payloads: Payloads, kind: Any) -> Any:
        (value,) = await self.client.data_converter.decode(payloads.payloads[:1], None if kind is object else [kind])
        return value


def _without_digest(decision: JsonObject) -> JsonObject:
    """On a replay it is what then waits that counts: whether it is the same, the plans tell."""
    return {key: value for key, value in decision.items() if key != "digest"}
