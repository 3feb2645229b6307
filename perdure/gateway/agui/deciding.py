"""Answers to interrupts, taken to their run."""

from __future__ import annotations

from perdure.client.run import Run
from perdure.errors import DecisionRefusedError, RunEndedError
from perdure.gateway.agui.reading import Answer
from perdure.gateway.problems import HttpError
from perdure.people.shown import asked_of_people
from perdure.run.wire import RunView


async def decide(run: Run[object], view: RunView, answers: list[Answer], by: str) -> list[str]:
    """Decide; the interrupts that did not wait any more, because somebody was faster or this input was sent before.

    Raises `HttpError` (422) for what was never offered, `DecisionRefusedError` for an answer that cannot be.
    """
    waiting = {offer.call: offer for offer in asked_of_people(view.waiting)}
    offered = {call.id for call in view.calls if call.approval is not None}
    offered |= {str(each.number) for each in view.log}
    late = []
    for answer in answers:
        offer = waiting.get(answer.call)
        if offer is None or offer.digest != answer.decision["digest"]:
            if offer is None and answer.call not in offered:
                raise HttpError(422, f"resume names what was never asked: {answer.interrupt!r}")
            late.append(answer.interrupt)
            continue
        decision = dict(answer.decision)
        if offer.question and decision["decision"] == "approve":
            raise HttpError(422, 'resume has a payload that must be {"answer": …}: this is a question')
        try:
            await run.decide({**decision, "by": by})
        except RunEndedError:
            late.append(answer.interrupt)
        except DecisionRefusedError:
            if any(each.call == answer.call for each in await run.waiting()):
                raise
            late.append(answer.interrupt)
    return late
