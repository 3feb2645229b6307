"""A run that continues as new between any two Requests goes on as if it had not (R6.8)."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.approvals.policy import Guard, Policy, parse_policy
from perdure.approvals.queue import ApprovalQueue
from perdure.errors import CallError
from perdure.models.requests import RequestResult
from perdure.models.usage import Usage
from perdure.plan import Failed, Outcome, Rejected, Returned
from perdure.runs.agent import Context, ModelChoice, Models, parse_agent
from perdure.runs.context import accept
from perdure.runs.run import RunState
from perdure.runs.snapshot import SNAPSHOT_FORM, RunSnapshot, restore, take_snapshot
from perdure.runs.views import run_view
from perdure.runs.wire import PreparedWorker
from perdure.tools.tool import parse_tool
from perdure.values.json import pack
from perdure.values.state import State
from tests.strategies import json_values, plans

NOW = "2026-01-01T00:00:00"
AGENT = parse_agent(
    {
        "name": "any",
        "config": {"stuck_after": 2},
        "context": [{"type": "tool", "tool": "t"}, {"type": "state", "state": {"start": 1}}],
    }
)
TOOL = parse_tool({"name": "t", "properties": {"p": {}, "q": {}}}, activities=["t"], registered=True)
OUTCOMES: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Returned, json_values()),
    st.builds(Failed, st.builds(CallError, st.just("broken"), st.text(max_size=9))),
    st.builds(Rejected, st.text(max_size=9)),
)
STEP = st.fixed_dictionaries(
    {
        "calls": plans(),
        "outcomes": st.lists(OUTCOMES, min_size=1, max_size=4),
        "message": st.none() | st.text(min_size=1, max_size=9),
        "refused": st.none() | json_values(),
        "policy": st.sampled_from([None, Policy(ask="unsafe"), Policy(timeout=5.0)]),
        "endorsed": st.dictionaries(st.sampled_from(["†state.a", "†state.b"]), st.text(max_size=4), max_size=1),
        "remembered": st.booleans(),
        "usage": st.builds(Usage, prompt_tokens=st.integers(0, 99), completion_tokens=st.integers(0, 99)),
    }
)


STEPS = st.lists(STEP, min_size=1, max_size=3).flatmap(lambda some: st.lists(st.sampled_from(some), max_size=5))
"""Requests, of which some repeat an earlier one: the run tells its model of that."""


def begun(kept: RunSnapshot | None = None) -> RunState:
    context = Context(AGENT, None, has_input=False)
    if kept is None:
        return RunState(
            AGENT, context, PreparedWorker(tools=[TOOL], models=Models(fast="m", smart="m")), ApprovalQueue()
        )
    queue = ApprovalQueue()
    queue.guard = Guard(change=parse_policy(kept.policy))
    run = RunState(AGENT, context, kept.prepared, queue)
    restore(run, kept)
    return run


def continued(run: RunState, queue: ApprovalQueue | None = None) -> RunState:
    """The run that continues another one, whose snapshot has been sent as JSON."""
    made = RunSnapshot.model_validate_json(take_snapshot(run).model_dump_json(exclude_defaults=True))
    following = RunState(run.agent, run.context, made.prepared, queue)
    restore(following, made)
    return following


def play(run: RunState, number: int, step: dict[str, Any]) -> str:
    """Make a Request of the run; return what its model was told."""
    queue = run.approval_queue
    run.situation()
    run.begin_request(ModelChoice("m", "only"))
    told = run.request_context(number).model_dump_json(by_alias=True)
    plan = run.open_plan(number)
    for raw in step["calls"]:
        plan.add(raw)
    plan.close()
    ended = 0
    while ready := plan.take_ready(NOW):
        for call in ready:
            plan.end(call, step["outcomes"][ended % len(step["outcomes"])], NOW)
            ended += 1
            if step["remembered"]:
                queue.guard.remember("t", call.inputs.params, call.inputs.origins)
    if step["message"] is not None:
        accept(run.progress, {"id": step["message"], "text": step["message"], "sender": "ann"})
    if step["refused"] is not None:
        queue.refuse(step["refused"], "no decision", NOW)
    if step["policy"] is not None:
        queue.change_policy(step["policy"])
    queue.vouched.known |= step["endorsed"]
    run.close_request(plan, RequestResult(calls=step["calls"], usage=step["usage"]))
    return told


def reorder(run: RunState) -> None:
    """Make the value of the state again from its writes: that it is the same one, `tests/values/test_state.py` proves.

    A `set` over an earlier one leaves its key where that was, and a snapshot does not hold the earlier one.
    """
    run.state.compact()
    run.provenance.restore(State(run.state.writes, run.sizes), run.records.past.calls, run.tools)


def seen(run: RunState) -> list[Any]:
    """The state of a run between two Requests, and what somebody can see of it."""
    take_snapshot(run)  # it numbers the sources of its calls
    return [
        *run_view(run, "r").model_dump(by_alias=True).items(),
        run.state.snapshot(),
        run.journal.events.page(0).model_dump_json(),
        run.approval_queue.guard.policy,
        run.approval_queue.guard.remembered,
        run.approval_queue.vouched.known,
        run.approval_queue.refusals,
        run.approval_queue.is_changed,
        run.progress.model_dump(),
        run.records.past.model_dump(),
        run.state.writes,
    ]


@settings(max_examples=50)
@given(STEPS)
def test_r6_8_a_run_that_continues_as_new_after_each_request_goes_on_as_if_it_had_not(steps: list[Any]) -> None:
    stays, goes = begun(), begun()
    for number, step in enumerate(steps, 1):
        assert play(goes, number, step) == play(stays, number, step)
        kept = pack(take_snapshot(goes), SNAPSHOT_FORM).read(RunSnapshot, SNAPSHOT_FORM, "the snapshot")
        goes = begun(kept)
        reorder(stays)
        for mine, other in zip(seen(goes), seen(stays), strict=True):
            assert mine == other
