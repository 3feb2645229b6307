"""Cases: recorded production runs, which are replayed against the present code."""

from __future__ import annotations

import json
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Protocol

from openai import AsyncOpenAI
from temporalio.client import Client

from perdure import ToolContext, ToolError, branch, hook, refuse
from perdure.agents.agent import Agent
from perdure.agents.datasets import recorded_evaluators
from perdure.approvals.decisions import Decision
from perdure.client.approvals import change_policy, decide
from perdure.client.histories import Audit, Exchange, audit_run, execution_histories, kind_of, started_below
from perdure.client.run_operations import fetch_run
from perdure.errors import RunError, RunNotFoundError, SettingsError
from perdure.hooks.answers import BEFORE
from perdure.hooks.events import BeforeToolCall, HookAnswer
from perdure.models.requests import KEPT_TEXT
from perdure.plan import Call, Failed, Returned
from perdure.runs.caller_context import masked_context
from perdure.runs.run_log import LogStep
from perdure.runs.run_player import differences, plan_graph
from perdure.runs.wire import AGENT_WORKFLOW, PreparedWorker, RunView
from perdure.sessions.agent_file import split_conversation, with_conversation
from perdure.testing._checks import AgentLike, ToolLike, as_agent, functions_of, inline_tools
from perdure.testing._clock import WaitingState
from perdure.testing._local import run_locally
from perdure.testing._servers import Server
from perdure.testing._waits import waiting_requests
from perdure.testing.scripted_model import ChatRequest, Fault, ScriptedModel, Turn
from perdure.tools.tool import RESERVED_PREFIX, Tool
from perdure.values.json import JsonObject, dumps, shorten
from perdure.values.references import MISSING

# A case is made only from a replay of the histories of the run and of the runs below it. It needs no model, tool or
# worker.


class Case(dict[str, Any]):
    """A recorded run, as `record` writes it: JSON, which people may read and edit.

    `{"form", "perdure", "name", "agent", "input"?, "messages"?, "approval"?, "sender"?, "context"?, "delegates"?, "prices",
    "tools": {name: definition}, "runs"}`.
    `runs` has the run under `""` and each below it under its path (`1.0`): `{"status", "output", "answers": [{"request",
    "model", "dialect", "usage", "says", "cut"?}], "results": {call id: {"tool", "params", "returns" or "raises",
    "branch"?}}, "decisions", "hooks"?, "calls", "edges", "cut"?}`. `hooks` has the answers of hooks before calls that they
    have changed or refused: `{call id: {"tool", "answers": [{"refused"} or {"params", "gone"} or null]}}`.

    ```python
    case = read_case("tests/cases/order.json")
    print(sorted(case["runs"]))
    ```
    """


FORM: Final = 1


class Recordable(Protocol):
    """A run of `perdure.Perdure`, or of `run_locally`."""

    @property
    def id(self) -> str: ...

    @property
    def client(self) -> Client: ...


async def record(run: Recordable) -> Case:
    """Record a run, and the runs below it, as a case to keep beside the tests. It holds the data that the run read and
    wrote: check it before you share it.

    Raises `RunError` if there is no such run, if this version cannot replay its history, or if a message was sent to
    the run while it worked.

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
        async for history in execution_histories(client, workflow_id):
            kind = kind or kind_of(history)
            left += started_below(history)
        if workflow_id == run_id and kind != AGENT_WORKFLOW:
            raise RunError(f"{run_id!r} is a {kind} workflow, not a run of an agent")
        if kind != AGENT_WORKFLOW:
            continue
        audit = await audit_run(client, workflow_id)
        if workflow_id == run_id:
            case |= _start_of(run_id, audit) | {"prices": {}, "tools": {}}
        if steered := [each.request for each in audit.messages if each.request is not None]:
            raise RunError(f"{workflow_id}: Request {steered[0]} received a message, and a case has no messages")
        case["prices"] |= _prices(audit)
        case["tools"] |= {tool.name: tool.definition() for tool in audit.tools if _has_code(tool)}
        view = audit.view or await fetch_run(client, workflow_id)
        runs[workflow_id.removeprefix(run_id).removeprefix("/")] = _written(view, audit)
    return Case({**case, "runs": runs})


def _start_of(run_id: str, audit: Audit) -> JsonObject:
    """Return the agent, and what the run was started with: an input, or the messages of its session or its chat client.
    Messages of an agent file are the agent's. Secrets of the context are masked.
    """
    given = audit.input
    if given is None:
        raise RunError(f"{run_id} has not started, so it cannot be recorded")
    known: JsonObject = {
        "approval": given.approval,
        "sender": given.whose.sender,
        "context": masked_context(given.whose.context),
        "delegates": given.delegates
        | {name: each for start in _starts(audit) for name, each in start.delegates.items()},
    }
    agent, messages = split_conversation(given.agent, of_session=given.records and not given.has_input)
    whole: JsonObject = {"agent": agent} | ({"input": given.input} if given.has_input else {})
    whole |= {"messages": messages} if messages else {}
    return whole | {name: value for name, value in known.items() if value}


def _starts(audit: Audit) -> list[PreparedWorker]:
    """Return the worker's record at the start of each execution."""
    return [log.start.prepared for log in audit.logs if log.start is not None]


def _prices(audit: Audit) -> JsonObject:
    """Return the prices with which the run kept its budget."""
    return {name: price.as_json() for start in _starts(audit) for name, price in start.prices.items()}


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


def _has_code(tool: Tool) -> bool:
    """Whether a call of the tool runs code that a replay replaces: it is not latent, and neither the engine nor a
    client runs it. A client's results are answers, which are among the decisions.
    """
    return tool.activity is not None and not tool.activity.startswith(RESERVED_PREFIX) and tool.delegate is None


def _written(view: RunView, audit: Audit) -> JsonObject:
    return {
        "status": view.status,
        "output": view.output,
        "answers": [_answer(each) for each in audit.exchanges if each.answer is not None],
        "results": {call.id: found for call in audit.calls if (found := _result(call)) is not None},
        "decisions": [found for log in audit.logs for step in log.steps if (found := _decision(step)) is not None],
        **plan_graph(view),
        **({"hooks": hooks} if (hooks := _hook_answers(audit)) else {}),
        **({"cut": view.cut} if view.cut else {}),
    }


def _hook_answers(audit: Audit) -> JsonObject:
    """Return the answers of hooks before calls, by call and in their order, of the calls that hooks have changed or refused."""
    answers: dict[str, list[JsonObject | None]] = {}
    for step in (step for log in audit.logs for step in log.steps if step.kind == "hooks"):
        answer: HookAnswer = step.data[0]
        changed = None if answer.changed is None else {"params": answer.changed["params"], "gone": answer.gone}
        answers.setdefault(step.call, []).append(changed if answer.refused is None else {"refused": answer.refused})
    return {
        call.id: {"tool": call.spec.known_tool.name, "answers": answers[call.id]}
        for call in audit.calls
        if any(answers.get(call.id, ()))
    }


def _result(call: Call) -> JsonObject | None:
    """Return the result or the failure of a call whose code ran, whatever ran it."""
    tool, state = call.spec.tool, call.state
    if tool is None or not _has_code(tool) or call.spec.loop is not None or state.started is None:
        return None
    about: JsonObject = {"tool": tool.name, "params": call.inputs.params}
    match state.outcome:
        case Returned(value, branch):
            return about | {"returns": value} | ({} if branch is None else {"branch": branch})
        case Failed(error):
            return about | {"raises": error.as_json()}
    return None


def _decision(step: LogStep) -> JsonObject | None:
    """Return a decision that took effect, or a change of the policy. A replay sends those of programs, and of standing
    approvals, as a person's.

    It has no digest: a replay decides its own request, and the plans show whether it is the same.
    """
    if step.kind == "policy":
        return {"policy": step.data[0].as_change()}
    if step.kind != "decision":
        return None
    decision: Decision = step.data[0]
    return decision.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"digest"})


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
    call gets the result of the recorded call of the same tool and parameters. No hook is called before a call: the
    recorded answers of hooks change or refuse it. `model`: another model, whose plan is
    compared with the recorded one. `server`, `timeout`: as for `run_locally`. Raises `CaseDifferenceError`, an
    `AssertionError`, with a diff of the plans as graphs: calls with parameters, statuses and approvals, dependencies,
    status and output. Raises `SettingsError` for a value that is not a case.

    ```python
    async def test_order() -> None:
        await replay("tests/cases/order.json", shopper, tools=[order])
    ```
    """
    known = read_case(case) if isinstance(case, str | Path) else check_case(case, "the case")
    whole, prices = as_agent(known["agent"] if agent is None else agent), known.get("prices", {})
    today = Agent.of(_replayable(with_conversation(whole.document(), known.get("messages", [])), prices))
    record = _Record(known, f"{today.name}-replay-{uuid.uuid4().hex[:8]}")

    @hook(BEFORE)
    def recorded_hooks(event: BeforeToolCall) -> Any:
        return record.hook_answer(event)

    definitions = _definitions_replaying(known, whole, tools)
    inline = {name for name, tool in inline_tools(today).items() if tool.get("_activity", name) in definitions}
    fakes = dict.fromkeys({*definitions, *inline}, record.recorded_result)
    scripted = model or ScriptedModel(record.answer)
    with tempfile.TemporaryDirectory() as folder:
        for name, document in {**known.get("delegates", {}), **whole.delegates()}.items():
            text = dumps(_replayable(document, prices))
            (Path(folder) / f"{name}.json").write_text(text, encoding="utf-8")
        options: dict[str, Any] = {"server": server, "timeout": timeout, "agents": folder}
        options |= {"hooks": [recorded_hooks]} if record.has_hooks else {}
        async with run_locally(today, model=scripted, tools=definitions.values(), fakes=fakes, **options) as local:
            who = {name: known[name] for name in ("sender", "context") if name in known}
            approval: Any = _without_approver(known.get("approval", {}))
            run = await local.start(known.get("input", MISSING), id=record.run_id, approval=approval, **who)
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
        except RunNotFoundError:
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
        self._used: dict[str, JsonObject] = {}
        """The result of each call, by its idempotency key: each attempt of a call has the same one."""
        self._decisions = {path: list(run.get("decisions", [])) for path, run in self.runs.items()}

    @property
    def has_hooks(self) -> bool:
        """Whether hooks have changed or refused a call."""
        return any(run.get("hooks") for run in self.runs.values())

    def hook_answer(self, event: BeforeToolCall) -> Any:
        """Return the recorded answer of hooks to the call of this id and tool."""
        recorded = self.runs.get(self._path(event.run_id), {}).get("hooks", {}).get(event.call)
        turn = event.key.rpartition("/")[2]
        index = int(turn) - 1 if turn.isdigit() else 0
        if recorded is None or recorded["tool"] != event.tool or index >= len(recorded["answers"]):
            return None
        answer = recorded["answers"][index]
        if answer is None or "refused" in answer:
            return None if answer is None else refuse(answer["refused"])
        kept = {name: value for name, value in event.params.items() if name not in answer["gone"]}
        return event.changed(params={**kept, **answer["params"]})

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
        found = self._used.get(context.idempotency_key)
        if found is None:
            found = self._used[context.idempotency_key] = self._find_result(context, params)
        if "raises" in found:
            raise ToolError(found["raises"]["code"], found["raises"]["message"])
        return branch(found["branch"], found["returns"]) if "branch" in found else found["returns"]

    def _find_result(self, context: ToolContext, params: JsonObject) -> JsonObject:
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
        found: JsonObject = results.pop(context.call_id if context.call_id in same else same[0])
        return found

    async def decide(self, client: Client, look: WaitingState) -> None:
        """Send the recorded decisions, each once its call waits."""
        for run_id in look.open:
            left = self._decisions.get(self._path(run_id), [])
            while left and "policy" in left[0]:
                await change_policy(client, run_id, _without_approver(left.pop(0)["policy"]))
            waiting = {request.call for request in await waiting_requests(client, run_id)} if left else set()
            for decision in [each for each in left if each.get("call") in waiting]:
                left.remove(decision)
                try:
                    await decide(client, run_id, decision)
                except RunError as error:
                    self.strange.append(f"- {decision['call']} {decision['decision']}: rejected now: {error}")


def _definitions_replaying(case: Case, agent: Agent[Any], tools: Iterable[ToolLike]) -> dict[str, JsonObject]:
    """Return the tools by name: the present ones, and for all others their recorded definitions."""
    there = {name: _own(definition) for name, definition in case.get("tools", {}).items()}
    return {**there, **{function.name: function.definition for function in functions_of(agent, tools)}}


def _own(definition: JsonObject) -> JsonObject:
    """Return the definition under the name of the worker's tool, in place of the agent's name for it. Code of the test
    replaces another application's activity, workflow or operation.
    """
    kept = {key: value for key, value in definition.items() if key not in ("_activity", "_taskQueue", "_calls")}
    return {**kept, "name": definition.get("_activity", definition["name"])}


def _replayable(document: JsonObject, prices: JsonObject) -> JsonObject:
    """Return the agent file for a replay: without programs, routes and evaluators, and with the recorded `prices`. The
    record has the programs' decisions.
    """
    config = {key: value for key, value in document.get("config", {}).items() if key not in ("notify", "evaluate")}
    if isinstance(config.get("approval"), dict):
        config["approval"] = _without_approver(config["approval"])
    if ":" in str(config.get("models", {}).get("policy", "")):
        config["models"] = {key: value for key, value in config["models"].items() if key != "policy"}
    if prices:
        config["prices"] = prices | config.get("prices", {})
    return {**document, "config": config}


def _without_approver(policy: JsonObject) -> JsonObject:
    return {key: value for key, value in policy.items() if key != "approver"}
