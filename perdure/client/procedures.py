"""Promotion of runs to procedures, which are validated as runs are (R23.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from temporalio.client import Client

from perdure.agents.files import call_problems, plan_of
from perdure.client.histories import Audit, audit_run
from perdure.errors import RunError
from perdure.runs.agent import Context, parse_agent
from perdure.runs.procedures import Procedure, RunPlan, differing_literals, plan_of_run, procedure_of
from perdure.values.json import Json, JsonObject
from perdure.values.references import MISSING


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
    checked = plan_of([*context.plan], context, known, request=0)
    if problems := call_problems(checked.checked()):
        raise RunError(f"{plan.run_id} cannot be promoted: as one plan it is not valid: {problems[0]}")


def _plan_of(run_id: str, audit: Audit) -> RunPlan:
    given = audit.input
    if given is None:
        raise RunError(f"{run_id} has not begun: there is nothing to promote")
    context = Context(parse_agent(given.agent), given.input, has_input=given.has_input)
    written = [each.answer.output for each in audit.exchanges if each.answer is not None]
    output = written[-1] if written else context.plan_output
    return plan_of_run(audit.view, audit.calls, output, context.values().get("input", MISSING), audit.tools)


def _agent_of(run_id: str, audit: Audit) -> JsonObject:
    if audit.input is None or audit.input.fork is not None or audit.input.snapshot is not None:
        raise RunError(f"{run_id} began with the record of another run: promote a run of its own")
    return audit.input.agent
