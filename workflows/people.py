"""People in the loop: decisions come in by signal or update, and a call waits for them without holding a worker (R7.3, R7.4)."""

from __future__ import annotations

import asyncio
from itertools import islice

from temporalio import workflow
from temporalio.common import SearchAttributeKey

with workflow.unsafe.imports_passed_through():
    from perdure.errors import DecisionError
    from perdure.people.decisions import Decision, parse_decision
    from perdure.people.desk import Desk, Judged, Offer, Verdict
    from perdure.people.policies import Policy, parse_policy
    from perdure.plan.approval import Kind
    from perdure.run.views.run import waiting_entry
    from perdure.run.wire import WAITING_ATTRIBUTE, WAITING_MEMO, WAITING_NAMED, WaitingEntry, WaitingMemo
    from perdure.values.jsons import Json, JsonObject

_WAITING = SearchAttributeKey.for_int(WAITING_ATTRIBUTE)


class People:
    """What waits in one run, and the way that decisions take to it."""

    def __init__(self) -> None:
        self.desk = Desk()
        self.searchable = False
        """Whether the namespace knows the search attribute."""
        self._verdicts: dict[str, asyncio.Future[Verdict]] = {}
        self._listed: tuple[int, list[WaitingEntry]] = (0, [])
        """What visibility tells: how many wait, and the oldest of them."""

    async def verdict(self, offer: Offer) -> Verdict:
        """Wait until somebody decides, or until the policy's timeout."""
        seconds = self.desk.guard.policy.timeout
        decided: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._verdicts[offer.id] = decided
        try:
            await workflow.wait([decided], timeout=seconds)
            if decided.done():
                return decided.result()
            assert seconds is not None
            return self.desk.time_out(offer, seconds)
        finally:
            del self._verdicts[offer.id]
            self.desk.withdraw([offer])

    def judge(self, raw: Json, kind: Kind | None = None) -> Judged:
        """Whether a decision can be followed; changes nothing. Raises `DecisionError`."""
        decision: Decision = parse_decision(raw, kind)
        return self.desk.judge(decision)

    def decide(self, raw: Json, kind: Kind | None = None) -> JsonObject:
        """Follow a decision; `{"call", "decision"}`. Raises `DecisionError`, and then nothing has changed."""
        judged = self.judge(raw, kind)
        self._verdicts[judged.offer.id].set_result(self.desk.apply(judged))
        if judged.decision.remember:
            self._release()
        return {"call": judged.offer.id, "decision": judged.decision.decision}

    def note(self, raw: Json, kind: Kind | None = None) -> None:
        """Follow a decision that came by signal: nobody waits for an answer, so a refusal is kept for `show`."""
        try:
            self.decide(raw, kind)
        except DecisionError as error:
            self.desk.refuse(raw, str(error), workflow.now().isoformat(timespec="seconds"))

    def change_policy(self, change: Policy) -> JsonObject:
        """Change the run's policy, and judge anew what waits (R7.7); the policy as it stands then."""
        self.desk.change_policy(change)
        self._release()
        policy: JsonObject = self.desk.guard.policy.model_dump(mode="json")
        return policy

    def note_policy(self, raw: Json) -> None:
        """The same by signal."""
        try:
            self.change_policy(parse_policy(raw))
        except DecisionError as error:
            self.desk.refuse(raw, str(error), workflow.now().isoformat(timespec="seconds"))

    def show(self, agent: str) -> None:
        """Keep up to date what visibility tells of the run, so that lists ask no run (R7.8)."""
        known = {entry.call: entry for entry in self._listed[1]}
        oldest = islice(self.desk.waiting.values(), WAITING_NAMED)
        listed = (len(self.desk.waiting), [known.get(offer.id) or waiting_entry(offer) for offer in oldest])
        if not self.searchable or listed == self._listed:
            return
        self._listed = listed
        count, calls = listed
        workflow.upsert_search_attributes([_WAITING.value_set(count)])
        memo = WaitingMemo(agent=agent, calls=calls).as_json() if calls else None
        workflow.upsert_memo({WAITING_MEMO: memo})

    def _release(self) -> None:
        for offer in self.desk.released():
            self._verdicts[offer.id].set_result(Verdict())
