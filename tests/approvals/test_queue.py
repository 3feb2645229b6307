"""The approval queue of a run (R7.2)."""

from __future__ import annotations

from perdure.approvals.policy import Guard, Policy
from perdure.approvals.queue import ApprovalQueue
from perdure.approvals.requests import RESET
from perdure.plan import Plan
from perdure.tools.tool import resolve_tools
from perdure.values.state import State

TOOLS = resolve_tools(["send"], {"send": {"name": "send", "_dangerous": True, "properties": {}}})


def test_r7_2_requests_from_the_first_task_after_a_reset_are_asked_again() -> None:
    """The task that follows a reset repeats one of before it: it may add a request before or behind the reset."""
    plan, queue = Plan(1, tools=TOOLS, state=State()), ApprovalQueue(Guard(Policy()))
    calls = [plan.add({"_tool": "send"}) for _ in range(3)]
    plan.close()
    plan.take_ready()
    before = queue.add_call(plan, calls[0], "09:00")
    assert queue.renew("10:00") == [before]
    repeated, later = queue.add_call(plan, calls[1], "10:00"), queue.add_call(plan, calls[2], "10:01")
    assert before is not None
    assert repeated is not None
    assert later is not None
    assert [each.approval.requested_at for each in (before, repeated, later)] == ["10:00", "10:00", "10:01"]
    assert [each.reason.endswith(RESET) for each in (before, repeated, later)] == [True, True, False]
