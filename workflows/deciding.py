"""What people send to a run: decisions and another policy, by signal or by update (R7.3)."""

from __future__ import annotations

from typing import Any

from temporalio import workflow

from perdure.workflows.arguments import only
from perdure.workflows.people import People

with workflow.unsafe.imports_passed_through():
    from perdure.people.policies import parse_policy
    from perdure.run.wire import DECIDE, POLICY


class Decidable:
    """The handlers of a workflow in which people decide. They take whatever anybody sends, and judge it themselves (R18.6)."""

    def __init__(self) -> None:
        super().__init__()
        self._people = People()

    @workflow.signal(name="approve", description='Let a call that waits run: {"call": "1.0"}')
    def approve(self, *said: Any) -> None:
        """`{"call": "1.0"}`, and if wanted `by`, `remember`, `digest` (R7.2). What cannot be followed shows in `show`."""
        self._people.note(said, "approve")

    @workflow.signal(name="reject", description='Do not let it run: {"call": "1.0", "reason": "still needed"}')
    def reject(self, *said: Any) -> None:
        """`{"call": "1.0", "reason": "still needed"}`."""
        self._people.note(said, "reject")

    @workflow.signal(name="edit", description='Run it with other parameters: {"call": "1.0", "params": {}}')
    def edit(self, *said: Any) -> None:
        """`{"call": "1.0", "params": {…}}`; of a plan `{"call": "1", "calls": […]}`."""
        self._people.note(said, "edit")

    @workflow.signal(
        name="replace", description='Run another call in its place: {"call": "1.0", "with": {"_tool": "name"}}'
    )
    def replace(self, *said: Any) -> None:
        """`{"call": "1.0", "with": {"_tool": …}}`."""
        self._people.note(said, "replace")

    @workflow.signal(name="answer", description='Answer a question: {"call": "1.0", "answer": "yes"}')
    def answer(self, *said: Any) -> None:
        """`{"call": "1.0", "answer": …}`: the result of a call of `ask_person`."""
        self._people.note(said, "answer")

    @workflow.signal(name=DECIDE, description='Any decision: {"call": "1.0", "decision": "approve"}')
    def decide(self, *said: Any) -> None:
        """Any of them: `{"call": "1.0", "decision": "approve"}`."""
        self._people.note(said)

    @workflow.update(name=DECIDE)
    def decide_now(self, *said: Any) -> dict[str, Any]:
        """The same, answering at once: `{"call", "decision"}`, or the reason why nothing changed (R7.3)."""
        return self._people.decide(only(said))

    @decide_now.validator
    def _check_decision(self, *said: Any) -> None:
        self._people.check(said)

    @workflow.signal(name=POLICY, description='What is asked about from now on: {"ask": "unsafe"}')
    def change_policy(self, *said: Any) -> None:
        """The keys of `config.approval` that are to differ from now on: `{"ask": "unsafe"}` (R7.7)."""
        self._people.note_policy(said)

    @workflow.update(name=POLICY)
    def change_policy_now(self, *said: Any) -> dict[str, Any]:
        """The same, answering with the policy as it stands then, or with what is wrong."""
        return self._people.change_policy(parse_policy(only(said)))

    @change_policy_now.validator
    def _check_policy(self, *said: Any) -> None:
        self._people.check_policy(said)
