"""The start of a run: its agent, and its worker's record, or a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributeKey
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from perdure.workflows.approvals import RunApprovals
from perdure.workflows.failures import message_of
from perdure.workflows.hooks import ExecutionHooks, apply_start_hooks, bootstrap
from perdure.workflows.internal_activities import RETRY_ON_OTHER_WORKERS, execute_internal
from perdure.workflows.notifications import notify_refused
from perdure.workflows.observability import observe

with workflow.unsafe.imports_passed_through():
    from perdure.approvals.policy import Guard, Policy, keep_remembered, parse_policy, stricter_level
    from perdure.errors import ProtocolError
    from perdure.hooks.answers import Hooks
    from perdure.plan import CODE_COUNTS, NO_SUCH_TOOL
    from perdure.rules import RuleBook, merge_rules, roles_of
    from perdure.runs import metrics
    from perdure.runs.agent import AgentSpec, Context, Models, check_task, parse_agent, parse_prompt
    from perdure.runs.caller_context import check_context
    from perdure.runs.event_journal import RunJournal
    from perdure.runs.fork import FORK_FORM, Fork, ForkRecord
    from perdure.runs.hosted_tools import hosted_problems
    from perdure.runs.run import RunIdentity, RunState
    from perdure.runs.schedules import with_time
    from perdure.runs.snapshot import SNAPSHOT_FORM, RunSnapshot, restore
    from perdure.runs.undo import UNDO_FORM, UndoRecord
    from perdure.runs.version_switches import COUNTS_EACH_DELEGATE, DEFAULTS_ASK, JUDGED_ANEW, NEWEST
    from perdure.runs.wire import (
        PREPARE_ACTIVITY,
        PREPARED_BY_ACTIVITY,
        PREPARED_FORM,
        READ_AGENT_ACTIVITY,
        REFUSED,
        SCHEDULED_ATTRIBUTE,
        PreparedWorker,
        PrepareInput,
        RunInput,
    )
    from perdure.values.json import JsonObject, Packed
    from perdure.values.limits import LIMITS_OF_CHILDREN


PREPARING: Final = RetryPolicy(maximum_interval=timedelta(seconds=20), maximum_attempts=8)
"""Attempts of a worker to read an agent's file, and to prepare a run: about a minute, in which its disk or a server may
be unavailable.
"""
_ATTEMPT: Final = timedelta(seconds=30)
"""Time of one attempt to read an agent's file, or to prepare a run: MCP servers list their tools meanwhile."""


async def prepare(
    run_input: RunInput, people: RunApprovals, journal: RunJournal, hooking: ExecutionHooks
) -> tuple[RunInput, RunState]:
    """Return the input, as hooks may have changed it, and the run, whether it begins or continues.

    Fail with `Refused` where it cannot run.
    """
    try:
        run_input = await with_agent(run_input)
        run_input, run = await _prepare(run_input, people, journal, hooking)
    except ApplicationError as error:
        observe(metrics.run_ended("", "failed", error.type))
        await notify_refused(run_input, error)
        raise
    if run_input.snapshot is None:
        observe(metrics.run_started(run.agent.name))
        journal.run_began(run.agent.name)
    return run_input, run


async def _prepare(
    run_input: RunInput, people: RunApprovals, journal: RunJournal, hooking: ExecutionHooks
) -> tuple[RunInput, RunState]:
    agent, context, change = _read(run_input)
    earlier: RunSnapshot | None = None
    if run_input.snapshot is not None:
        earlier = run_input.snapshot.read(RunSnapshot, SNAPSHOT_FORM, "the snapshot that the run continues from")
        prepared, change = earlier.prepared, parse_policy(earlier.policy)
    else:
        packed = run_input.prepared or await record(run_input)
        prepared = packed.read(PreparedWorker, PREPARED_FORM, "what the worker recorded at the run's start")
    if prepared.rules > NEWEST:  # this worker would follow other rules than the history
        problem = f"a newer version of Perdure has started this run (rules {prepared.rules}; this worker has rules {NEWEST}). Start workers of that version"
        info = workflow.info()
        is_sent = run_input.snapshot is not None or run_input.prepared is not None
        if is_sent and not (info.continued_run_id or info.parent):  # anybody may have written it
            raise ApplicationError(problem, type=REFUSED, non_retryable=True)
        raise RuntimeError(problem)  # the task fails until a worker of that version takes it
    hooking.hooks = Hooks(prepared.hooks)
    _set_guard(people, agent, context.hosted, run_input, prepared, change)
    if earlier is None:
        if (
            changed := await apply_start_hooks(hooking, run_input, agent.name, "\n\n".join(context.system))
        ) is not None:
            run_input = changed
            agent, context, _ = _read(run_input)
        prepared = await bootstrap(hooking, run_input, agent.name, prepared)
    run = RunState(
        agent,
        context,
        prepared,
        people.approval_queue,
        identity=RunIdentity.of(run_input, workflow.info().task_queue),
        budget=run_input.budget,
        sources=run_input.sources,
        journal=journal,
        fork=None
        if run_input.fork is None
        else Fork(run_input.fork.read(ForkRecord, FORK_FORM, "the record of the fork")),
        undo=None if run_input.undo is None else run_input.undo.read(UndoRecord, UNDO_FORM, "the record of the undo"),
    )
    run.standing = run_input.standing
    if run_input.plan_approval is not None:
        people.approval_queue.begin_part(run_input.plan_approval)
    if earlier is not None:
        restore(run, earlier)
    return run_input, run


_SCHEDULED: Final = SearchAttributeKey.for_datetime(SCHEDULED_ATTRIBUTE)


async def with_agent(run_input: RunInput) -> RunInput:
    """Return the input with the agent that it names, from the worker's present file (R19.6). Fail with `Refused`
    without such an agent.
    """
    if not run_input.agent_name:
        return run_input
    arguments = [run_input.agent_name, run_input.whose.tenant]
    try:
        if _prepares_locally():
            document: JsonObject = await workflow.execute_local_activity(
                READ_AGENT_ACTIVITY,
                args=arguments,
                result_type=dict,
                start_to_close_timeout=_ATTEMPT,
                retry_policy=PREPARING,
            )
        else:
            document = await execute_internal(
                READ_AGENT_ACTIVITY, arguments, dict, timeout=_ATTEMPT, retry_policy=PREPARING
            )
    except (ActivityError, ApplicationError) as error:
        raise _refused(error) from None
    info = workflow.info()
    at = info.typed_search_attributes.get(_SCHEDULED) or info.start_time
    return run_input.model_copy(
        update={
            "agent": document,
            "agent_name": "",
            "input": with_time(run_input.input, at.astimezone(UTC).isoformat()),
        }
    )


def _refused(error: ActivityError | ApplicationError) -> Exception:
    """Return the error that ends a run that its worker cannot prepare; a cancellation is returned unchanged. A local
    activity's own failure is not wrapped.
    """
    if (isinstance(error, ApplicationError) and error.type == REFUSED) or is_cancelled_exception(error):
        return error
    if isinstance(error, ActivityError):
        return ApplicationError(message_of(error), type=REFUSED, non_retryable=True)
    return ApplicationError(f"the worker cannot prepare the run: {error.message}", type=REFUSED, non_retryable=True)


async def record(run_input: RunInput) -> Packed:
    """Return the worker's record for such a run (R12.5). If the worker lacks a tool, as in a deploy, return another
    worker's.

    Fail with `Refused` where it cannot run.
    """
    agent, context, change = _read(run_input)
    alone = not (run_input.lineage or run_input.undo)
    wanted = PrepareInput(
        tools=context.tools,
        models=agent.config.models.model_dump(exclude_unset=True),
        prices=agent.config.prices,
        cost_budget=agent.config.cost_budget is not None or run_input.budget.cost is not None,
        delegates=run_input.delegates,
        prompt=agent.config.prompt.changed(parse_prompt(run_input.prompt)),
        approver=agent.config.approval.changed(change).approver,
        notify={} if run_input.evaluated else agent.config.notify.places(),
        callback=run_input.callback,
        tenant=run_input.whose.tenant,
        rules=agent.config.rules if alone else [],
        policy=agent.config.approval if alone else None,
    )
    locally = _prepares_locally()
    try:
        if locally:
            try:
                prepared: Packed = await workflow.execute_local_activity(
                    PREPARE_ACTIVITY,
                    wanted,
                    result_type=Packed,
                    start_to_close_timeout=_ATTEMPT,
                    retry_policy=PREPARING,
                )
                return prepared
            except ApplicationError as error:
                if error.type != NO_SUCH_TOOL:
                    raise _refused(error) from None
        timeout = timedelta(seconds=5) if locally else _ATTEMPT
        prepared = await execute_internal(
            PREPARE_ACTIVITY, [wanted], Packed, timeout=timeout, retry_policy=RETRY_ON_OTHER_WORKERS
        )
    except ActivityError as error:
        raise _refused(error) from None
    return prepared


def _prepares_locally() -> bool:
    """Whether a local activity prepares the run. A worker that caches no workflow does not do so, and a marker in the
    history records that.

    With a query the SDK's core evicts such a workflow at once, and its local activity with it: the task ends by its timeout, 10 s later.
    """
    return not workflow.patched(PREPARED_BY_ACTIVITY)


def _read(run_input: RunInput) -> tuple[AgentSpec, Context, Policy]:
    try:
        agent: AgentSpec = parse_agent(run_input.agent)
        context = Context(agent, run_input.input, has_input=run_input.has_input)
        change = parse_policy(run_input.approval)
        parse_prompt(run_input.prompt)
        check_task(agent, context)
        check_context(run_input.whose.context, agent.caller_context)
    except ProtocolError as error:
        raise ApplicationError(str(error), type=REFUSED, non_retryable=True) from None
    return agent, context, change


def _set_guard(
    people: RunApprovals,
    agent: AgentSpec,
    hosted: Sequence[str],
    run_input: RunInput,
    prepared: PreparedWorker,
    change: Policy,
) -> None:
    """Set the policy's three layers; earlier changes by signals stay. A delegate has its parent's floor too."""
    guard = Guard(
        agent.config.approval,
        floor=stricter_level(prepared.floor, run_input.floor),
        change=change.changed(people.approval_queue.guard.change),
        # A snapshot has the remembered tools itself.
        remembered=keep_remembered(run_input.remembered, people.approval_queue.guard.change)
        if run_input.snapshot is None
        else [],
        givers=run_input.givers,
        floor_flows=[*prepared.floor_flows, *run_input.floor_flows],
        knows_defaults=prepared.follows(DEFAULTS_ASK),
        adds_to_quorums=prepared.follows(JUDGED_ANEW),
        keeps_giver_policy=prepared.follows(LIMITS_OF_CHILDREN),
        code_counts=prepared.follows(CODE_COUNTS),
    )
    models = Models.model_validate(prepared.models.model_dump())  # the worker's own defaults count as named by the run
    if run_input.snapshot is None and (problems := hosted_problems(agent, hosted, models, guard)):
        raise ApplicationError(problems[0], type=REFUSED, non_retryable=True)
    people.approval_queue.rules = RuleBook(
        merge_rules(agent.config.rules, prepared.worker_rules, run_input.rules),
        None if run_input.rule_record is None else run_input.rule_record.model_copy(deep=True),
        roles=roles_of(run_input.whose.context),
        prefix=f"{workflow.info().workflow_id}/",
        unlent=run_input.unlent_rules,
        counts_each=prepared.follows(COUNTS_EACH_DELEGATE),
    )
    people.begin(guard, prepared)
