"""New uses of recorded runs: a fork begins with the record of a run, a procedure is the plan of a run as an agent file (R23.3)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from temporalio.client import Client

from perdure.agents.files import call_problems, plan_of
from perdure.client.histories import Audit, audit_run
from perdure.client.run_operations import AgentHandle, describe, start_run
from perdure.errors import RunError
from perdure.models.requests import RequestResult
from perdure.queries import undone_calls
from perdure.runs.agent import Context, parse_agent, with_model
from perdure.runs.fork import FORK_FORM, ForkPoint, ForkRecord, RecordedAnswer, record_fork
from perdure.runs.procedures import Procedure, RunPlan, differing_literals, plan_of_run, procedure_of
from perdure.runs.undo import undone_run
from perdure.runs.wire import RunInput
from perdure.values.json import Json, JsonObject, pack
from perdure.values.references import MISSING

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


async def fork_run(
    client: Client,
    run_id: str,
    at: str,
    *,
    agent: tuple[JsonObject, Mapping[str, JsonObject]] | None = None,
    input: list[Json] | None = None,
    edits: Mapping[str, JsonObject] | None = None,
    results: Mapping[str, Json] | None = None,
    model: str | None = None,
    id: str | None = None,
    task_queue: str | None = None,
) -> AgentHandle:
    """Start a fork of a run at a point, `R` or `R.N`. The run itself is only read. The fork needs a worker only if
    effects of the run were undone.

    `agent`: another agent file, and those of its delegates. `input`: another input, in a list of one value. `edits`, `results`: see `record_fork`. `model`: the model
    of all Requests that the fork makes. Raises `RunError` for a run that cannot be forked there.
    """
    point = ForkPoint.parse(at)
    description = await describe(client, run_id)
    audit = await audit_run(client, run_id)
    _refuse_undo(run_id, audit, "Fork")
    undone = await undone_calls(client, run_id)
    given = fork_input(run_id, audit, point, edits or {}, results or {}, undone)
    document, delegates = (given.agent, given.delegates) if agent is None else agent
    update: dict[str, Any] = {} if input is None else {"input": input[0], "has_input": True}
    update |= {"agent": document if model is None else with_model(document, model), "delegates": dict(delegates)}
    return await start_fork(client, given.model_copy(update=update), id, task_queue or description.task_queue)


def fork_input(
    run_id: str,
    audit: Audit,
    point: ForkPoint | None,
    edits: Mapping[str, JsonObject] = _NONE,
    results: Mapping[str, Json] = _NONE,
    undone: Collection[str] = (),
    *,
    end: str | None = None,
) -> RunInput:
    """Return the input of a fork at this point, by default after the last answer. `undone`: see `record_fork`. `end`: see `ForkRecord`.

    Raise `RunError` for a run that cannot be forked there.
    """
    if audit.input is None:
        raise RunError(f"{run_id} has not started, so it cannot be forked")
    given = audit.input
    if given.lineage:
        above = run_id.rpartition("/")[0]
        raise RunError(f"{run_id} is the run of a delegate. Fork the parent run: {above}")
    point = point or ForkPoint(request=1 + sum(each.answer is not None for each in audit.exchanges))
    if late := [each for each in audit.messages if each.request is not None and each.request < point.request]:
        raise RunError(f"Request {late[0].request} of {run_id} received a message. Fork at {late[0].request} or before")
    recorded = {each.number: each for each in _record_of(given).answers}  # a fork's first Requests called no model
    if begun := [call.spec.raw for call in audit.calls if call.id.startswith("0.") and len(call.place) == 1]:
        recorded[0] = RecordedAnswer(number=0, result=RequestResult(calls=[*begun]))
    for each in audit.exchanges:
        if each.answer is not None:
            number = each.request.number
            recorded[number] = RecordedAnswer(number=number, model=each.request.model, result=each.answer)
    record = record_fork(run_id, point, recorded.values(), audit.calls, edits, results, undone)
    record.end = end
    return RunInput(
        agent=given.agent,
        input=given.input,
        has_input=given.has_input,
        approval=audit.logs[-1].policy_change().as_change() if audit.logs else given.approval,
        prompt=given.prompt,
        delegates=given.delegates,
        whose=given.whose,
        sources={place: found for place, found in given.sources.items() if place == "†input"},
        requesters=given.requesters,
        fork=pack(record, FORK_FORM),
    )


async def start_fork(client: Client, given: RunInput, id: str | None, task_queue: str) -> AgentHandle:
    """Start the run with an input that `fork_input` has returned."""
    # Field by field: an input from an imported file may hold other fields, such as another floor.
    return await start_run(
        client,
        parse_agent(given.agent),
        given.agent,
        given.input,
        has_input=given.has_input,
        run_id=id,
        task_queue=task_queue,
        approval=given.approval,
        prompt=given.prompt,
        sender=given.whose.sender or None,
        tenant=given.whose.tenant or None,
        context=given.whose.context,
        delegates=given.delegates,
        source=next(iter(given.sources.get("†input", [])), ""),
        fork=given.fork,
        requesters=given.requesters,
    )


def _record_of(run_input: RunInput) -> ForkRecord:
    """Return the record with which a fork began; an empty record for any other run."""
    if run_input.fork is None:
        return ForkRecord(run_id="", point=ForkPoint(request=1))
    return run_input.fork.read(ForkRecord, FORK_FORM, "the record of the fork")


async def promote_run(
    client: Client, run_id: str, name: str, parameters: Mapping[str, str | Sequence[str]], like: Sequence[str]
) -> Procedure:
    """Return the procedure of a run. Its inputs are the literals in which the runs `like` it differ. Raises `RunError`."""
    audit = await audit_run(client, run_id)
    plan = _plan_of(run_id, audit)
    document = _agent_of(run_id, audit)
    if like and parameters:
        raise RunError("give either parameters or other runs of the same shape, not both")
    if not like:
        chosen = {
            each: [plan.place(place) for place in ([places] if isinstance(places, str) else places)]
            for each, places in parameters.items()
        }
        procedure = procedure_of(plan, document, name, chosen)
    else:
        plans = [plan, *[_plan_of(each, await audit_run(client, each)) for each in like]]
        named, outputs = differing_literals(plans)
        procedure = procedure_of(plan, document, name, named, outputs, [run_id, *like])
    check_procedure(procedure, plan)
    return procedure


def check_procedure(procedure: Procedure, plan: RunPlan) -> None:
    """Validate the procedure with the input of its run. Raises `RunError` with all problems."""
    value: Json = None if plan.input is MISSING else plan.input
    given = isinstance(value, dict) or bool(procedure.inputs)
    whole: Json = {**value, **procedure.inputs} if isinstance(value, dict) else procedure.inputs or value
    agent = parse_agent(procedure.agent, source=f"the procedure {procedure.name}")
    context = Context(agent, whole, has_input=given or plan.input is not MISSING)
    known: dict[str, JsonObject] = {tool.name: tool.definition() for tool in plan.tools.values()}
    checked = plan_of([*context.plan], context, agent.config, known, request=0)
    if problems := call_problems(checked.checked()):
        raise RunError(f"{plan.run_id} cannot be promoted: its calls are not valid as one plan: {problems[0]}")


def _refuse_undo(run_id: str, audit: Audit, what: str) -> None:
    if audit.input is not None and audit.input.undo is not None:
        raise RunError(f"{run_id} is an undo. {what} the run that it undoes: {undone_run(run_id)}")


def _plan_of(run_id: str, audit: Audit) -> RunPlan:
    _refuse_undo(run_id, audit, "Promote")
    given = audit.input
    if given is None:
        raise RunError(f"{run_id} has not started, so it cannot be promoted")
    context = Context(parse_agent(given.agent), given.input, has_input=given.has_input)
    written = [each.result.output for each in _record_of(given).answers if each.number]
    written += [each.answer.output for each in audit.exchanges if each.answer is not None]
    output = written[-1] if written else context.plan_output
    return plan_of_run(audit.view, audit.calls, output, context.values().get("input", MISSING), audit.tools)


def _agent_of(run_id: str, audit: Audit) -> JsonObject:
    is_fork = audit.input is not None and audit.input.fork is not None and _record_of(audit.input).end is None
    if audit.input is None or is_fork or audit.input.snapshot is not None:
        raise RunError(f"{run_id} is a fork with another run's record: promote a run without a fork")
    return audit.input.agent
