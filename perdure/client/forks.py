"""Start of forks: the record of a run is read from its history, and a new run begins with it."""

from __future__ import annotations

from collections.abc import Mapping

from temporalio.client import Client

from perdure.client.histories import audit_run
from perdure.client.run_operations import AgentHandle, describe, start_run
from perdure.errors import RunError
from perdure.models.requests import RequestResult
from perdure.runs.agent import parse_agent, with_model
from perdure.runs.fork import FORK_FORM, ForkPoint, ForkRecord, RecordedAnswer, record_fork
from perdure.runs.wire import RunInput
from perdure.values.json import Json, JsonObject, pack


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
    """Start a fork of a run at a point, `R` or `R.N`. The run itself is only read; no worker is needed for that.

    `agent`: another agent file, and those of its delegates. `input`: another input, in a list of one value. `edits`, `results`: see `record_fork`. `model`: the model
    of all Requests that the fork makes. Raises `RunError` for a run that cannot be forked there.
    """
    point = ForkPoint.parse(at)
    description = await describe(client.get_workflow_handle(run_id))
    audit = await audit_run(client, run_id)
    if audit.input is None:
        raise RunError(f"{run_id} has not begun: there is nothing to fork")
    given = audit.input
    if given.lineage:
        above = run_id.rpartition("/")[0]
        raise RunError(f"{run_id} is the run of a delegate. Fork the run above: {above}")
    if late := [each for each in audit.messages if each.request is not None and each.request < point.request]:
        raise RunError(f"Request {late[0].request} of {run_id} took a message in. Fork at {late[0].request} or before")
    recorded = {each.number: each for each in _record_of(given).answers}  # a fork's own first Requests asked no model
    if begun := [call.spec.raw for call in audit.calls if call.id.startswith("0.") and len(call.place) == 1]:
        recorded[0] = RecordedAnswer(number=0, result=RequestResult(calls=[*begun]))
    for each in audit.exchanges:
        if each.answer is not None:
            number = each.request.number
            recorded[number] = RecordedAnswer(number=number, model=each.request.model, result=each.answer)
    record = record_fork(run_id, point, recorded.values(), audit.calls, edits or {}, results or {})
    document, delegates = (given.agent, given.delegates) if agent is None else agent
    if model is not None:
        document = with_model(document, model)
    return await start_run(
        client,
        parse_agent(document),
        document,
        given.input if input is None else input[0],
        has_input=given.has_input or input is not None,
        run_id=id,
        task_queue=task_queue or description.task_queue,
        approval=given.approval,
        prompt=given.prompt,
        sender=given.whose.sender or None,
        tenant=given.whose.tenant or None,
        context=given.whose.context,
        delegates=delegates,
        source=next(iter(given.sources.get("†input", [])), ""),
        fork=pack(record, FORK_FORM),
    )


def _record_of(run_input: RunInput) -> ForkRecord:
    """Return the record with which a fork began; of any other run an empty one."""
    if run_input.fork is None:
        return ForkRecord(run_id="", point=ForkPoint(request=1))
    return run_input.fork.read(ForkRecord, FORK_FORM, "the record of the fork")
