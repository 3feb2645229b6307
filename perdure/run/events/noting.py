"""What a run notes in its journal, and what of it: one method for each thing that happens (R10.14)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from perdure.model.availability import ModelWait
from perdure.model.dialects import saying
from perdure.model.wire import RequestResult, RequestView
from perdure.people.offers import Offer, is_with_client
from perdure.people.wire import Said
from perdure.plan.calls import Call
from perdure.run.events.journal import Journal
from perdure.run.events.silence import is_silence
from perdure.values.jsons import Json
from perdure.values.limits import MAX_REPLY
from perdure.values.limits.sizes import Sizes, preview

NOT_YET: Final[Mapping[str, str]] = {
    "structured": "the next Request puts it into form",
    "refined": "the next Request goes over it",
}
"""By what the next Request is for, why what the last one says is no output."""
CUT_BY_MESSAGE: Final = "a new message has ended it"


class Noting:
    """One run's journal, and when and under which id it is written. `now` says the time (ISO 8601, UTC)."""

    def __init__(self, journal: Journal | None = None, now: Callable[[], str] = str, run_id: str = "") -> None:
        self.journal = journal or Journal()
        self._now, self._run_id = now, run_id
        self.sizes = Sizes()
        """Those of the run's values."""
        self._asked = 0
        self._over = False
        self._saying: tuple[int, int, bool] | None = None
        """The Request, its attempt, and whether what was told is another text, of whose text it is not known yet what becomes of it."""

    # The run.

    def run_began(self, agent: str) -> None:
        self.journal.note("lifecycle", "start", self._now(), agent=agent)

    def was_reset(self) -> None:
        """It goes on from an earlier point of its history."""
        self.journal.reset(self._now())

    def run_ended(self, reason: str | None, output: Json) -> None:
        """With an output; `reason`: why it stopped."""
        self.journal.note("lifecycle", "end", self._now(), status="completed", stopReason=reason, output=output)
        self._over = True

    def run_failed(self, status: str, error: str | None, reason: str | None = None) -> None:
        """Without one; `reason`: the limit that it came to."""
        if not self._over:
            self.journal.note("lifecycle", "error", self._now(), status=status, error=error, stopReason=reason)
        self._over = True

    @contextmanager
    def to_end(self, *failures: type[Exception]) -> Iterator[None]:
        """Round all that a run does, the last of its hooks too: behind that no event follows. Of what could not even begin one of the
        `failures` says why."""
        try:
            yield
        except failures as error:
            self.run_failed("failed", str(getattr(error, "message", error)))
            raise
        finally:
            self.journal.ended = self._over

    # Its Requests.

    def asked(self, view: RequestView) -> None:
        """A model is asked, or once more for the same Request."""
        again, self._asked = view.number == self._asked, view.number
        self.journal.note(
            "request",
            "update" if again else "start",
            self._now(),
            number=view.number,
            model=view.model,
            reason=view.reason,
        )

    def answered(self, view: RequestView, result: RequestResult, *, says: bool, cut: bool = False) -> None:
        """Its answer is whole; `says`: it has a text, which `said` follows for; `cut`: a message has ended it."""
        self._saying = (view.number, result.attempt, result.anew) if says else None
        if result.reasoned:
            self.journal.note(
                "reasoning",
                "end",
                self._now(),
                request=view.number,
                attempt=result.attempt,
                characters=result.reasoned,
            )
        problem = CUT_BY_MESSAGE if cut else None
        if result.problem is not None:
            problem = f"{result.problem.get('code')}: {result.problem.get('message')}"
        self.journal.note(
            "request",
            "end",
            self._now(),
            number=view.number,
            model=result.model or view.model,
            attempt=None if cut else result.attempt,
            usage=view.usage.as_json(),
            cost=view.cost,
            problem=problem,
            says=says or None,
        )

    def model_is_away(self, view: RequestView, wait: ModelWait) -> None:
        """Its model's provider is away; the run waits for it."""
        self.journal.note(
            "request", "update", self._now(), number=view.number, model=wait.model, reason=f"{wait.text()} UTC"
        )

    def unanswered(self, view: RequestView, problem: str) -> None:
        """Nobody has answered it."""
        self.journal.note(
            "request",
            "end",
            self._now(),
            number=view.number,
            model=view.model,
            usage=view.usage.as_json(),
            problem=problem,
        )

    def said(self, text: str, refused: str | None, *, output: bool) -> None:
        """What becomes of what the last answer says, if it says anything; `refused`: why it does not count, `output`: it is the run's."""
        if self._saying is None:
            return
        request, attempt, anew = self._saying
        self._saying = None
        self.journal.note(
            "assistant",
            "end",
            self._now(),
            request=request,
            attempt=attempt,
            text=text,
            anew=anew or None,
            accepted=refused is None,
            output=output or None,
            reason=refused,
        )

    def compacted(self, reason: str) -> None:
        """The context is shown cut from now on."""
        for phase in ("start", "end"):
            self.journal.note("compaction", phase, self._now(), reason=reason)

    # Its calls.

    def call_began(self, call: Call) -> None:
        """It is carried out, or waits for nothing but its turn; of a loop: its iterations begin."""
        below = call.tool is not None and call.tool.delegate is not None and call.loop is None and not call.loops
        self.journal.note(
            "tool",
            "start",
            self._now(),
            call=call.id,
            tool=call.tool_name,
            params=call.params,
            of=self.sizes,
            runId=f"{self._run_id}/{call.id}" if below else None,
        )

    def call_again(self, call: Call, reason: str) -> None:
        """It is tried again, because of a failure that says nothing of the call."""
        self.journal.note(
            "tool",
            "update",
            self._now(),
            call=call.id,
            tool=call.tool_name,
            attempt=call.attempts + 1,
            reason=reason,
        )

    def call_ended(self, call: Call) -> None:
        """However it did."""
        done = call.status == "done"
        self.journal.note(
            "tool",
            "end",
            self._now(),
            call=call.id,
            tool=call.tool_name,
            status=call.status,
            result=call.result if done else None,
            of=self.sizes,
            error=None if call.error is None else call.error.as_json(),
            reason=call.reason or None,
            attempts=call.attempts or None,
        )

    def hook(self, phase: str, event: str, hook: str, call: str, reason: str) -> None:
        """One has refused something, or has failed and was gone past (R10.17)."""
        self.journal.note("hook", phase, self._now(), event=event, hook=hook, call=call or None, reason=reason)

    # People.

    def waits(self, offer: Offer) -> None:
        """It waits for a person, or for a program outside that carries it out."""
        call = offer.call
        self.journal.note(
            "approval",
            "start",
            self._now(),
            call=offer.id,
            tool="" if call is None else call.tool_name,
            params={} if call is None else call.params,
            calls=[each.raw for each in offer.calls] if call is None else None,
            of=self.sizes,
            reason=offer.reason,
            question=offer.question or None,
            client=(call is not None and is_with_client(call)) or None,
        )

    def waits_no_more(self, offer: Offer) -> None:
        """It was decided, or nobody needs to decide any more."""
        approval = offer.approval
        decided = approval.decision is not None
        self.journal.note(
            "approval",
            "end",
            self._now(),
            call=offer.id,
            tool="" if offer.call is None else offer.call.tool_name,
            decision=approval.decision,
            by=(approval.by or None) if decided else None,
            reason=(approval.reason or None) if decided else None,
        )

    def heard(self, said: Said) -> None:
        """A message has come while it works."""
        self.journal.note("message", "accepted", self._now(), messageId=said.id, sender=said.sender, text=said.text)

    def taken(self, messages: Sequence[Said], request: int) -> None:
        """The Request that begins holds them."""
        for said in messages:
            self.journal.note("message", "taken", self._now(), messageId=said.id, request=request)

    def withdrawn(self, message_id: str) -> None:
        self.journal.note("message", "withdrawn", self._now(), messageId=message_id)


def why_not(result: RequestResult, wants: str) -> str | None:
    """Why an answer is no output, by what is wrong with it, or by what the next Request is for."""
    return NOT_YET.get(wants) if result.problem is None else str(result.problem.get("message"))


def text_of(output: Json, sizes: Sizes, *, replies: bool = False) -> str:
    """An output as its text: see `saying.text_of`; of JSON that is too long a beginning; none of a reply that is `NO_REPLY`."""
    texts = isinstance(output, dict) and len(output) == 1 and isinstance(next(iter(output.values())), str)
    if output is None or isinstance(output, str) or texts or sizes.of(output) <= 2 * MAX_REPLY:
        text = saying.text_of(output)
        return "" if replies and is_silence(text) else text
    return preview(output, 2 * MAX_REPLY)
