"""The progress of a run, and the limits that it can reach."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from pydantic import Field

from perdure.approvals.requests import IncomingMessage, MessageFate
from perdure.models.requests import RequestResult, RequestView
from perdure.models.usage import Price, RunUsage, price_of
from perdure.runs.agent import CalledTool, Config
from perdure.runs.budget import BudgetPool, ExpectedUsage
from perdure.runs.limits import Budget, Limit, budget_of, request_limit
from perdure.runs.sent_texts import merge_digests
from perdure.values.json import Json, JsonObject, WireModel
from perdure.values.limits import MAX_REFUSALS


class RunProgress(WireModel):
    """The progress of a run, beside its state."""

    number: int = 0
    """Number of the last Request begun; 0 is a plan that came with the agent (R5.9)."""
    results: JsonObject = Field(default_factory=dict)
    """Results that were written to no path, by call id (R4.4)."""
    messages: list[JsonObject] = Field(default_factory=list)
    """Error, feedback and turn messages in their order."""
    plan_message: JsonObject | None = None
    after_error: bool = False
    usage: RunUsage = Field(default_factory=RunUsage)
    called: list[CalledTool] = Field(default_factory=list)
    """Tools that the last answer called."""
    answers: list[str] = Field(default_factory=list)
    """Fingerprints of the last answers."""
    told_to_vary: int = 0
    """Number of the last Request with the feedback that answers repeat (R9.8)."""
    worked: float = 0.0
    expected: ExpectedUsage = Field(default_factory=ExpectedUsage)
    """Estimated usage of a delegate (R18.7)."""
    told: list[str] = Field(default_factory=list)
    """Names of untrusted sources that its messages and results hold (R15.3)."""
    planned: list[str] = Field(default_factory=list)
    """Digests of calls that trusted Requests planned and that did not run."""
    wants: Literal["plan", "structured", "refined"] = "plan"
    """Purpose of the next Request; `structured` and `refined` request only an output."""
    must_call: list[str] = Field(default_factory=list)
    """Tools, one of which the model must call before an output counts (R6.5); empty after the call."""
    draft: Json = None
    """Output that is to be refined."""
    draft_sources: list[str] = Field(default_factory=list, exclude_if=operator.not_)
    """Provenance of the draft."""
    inbox: list[IncomingMessage] = Field(default_factory=list)
    """Messages that no Request holds so far."""
    heard: list[MessageFate] = Field(default_factory=list)
    """Messages that a Request holds."""
    cut: int = 0
    """Requests that a message ended before their answer: they do not count as made."""
    sent: list[str] = Field(default_factory=list)
    """Digests of texts that message tools have sent (R10.16)."""
    refusals: int = 0
    """Requests in a row that the model refused, up to the last one (R20.2)."""
    has_cut: bool = False
    """Whether the model has seen only the beginning of a value, so that `recall` is offered (R10.18)."""
    budget_noted: bool = False
    """Whether people were informed that the budget is nearly used (R19.5)."""
    reserved: int = Field(default=0, exclude_if=operator.not_)
    """Number of the Request with a reserved and unsettled share of budgets; 0: none (R24.8)."""
    unsettled: RunUsage = Field(default_factory=RunUsage, exclude_if=lambda usage: not usage.by_model)
    """Unsettled usage of models by its calls themselves, as they report it."""
    tight: bool = False
    """Whether the context was too long for the model, and is shortened since (R9.7)."""

    @property
    def errors(self) -> list[JsonObject]:
        """The error messages that the model has received so far."""
        return [message for message in self.messages if message["type"] == "error"]

    def values(self) -> Iterator[Json]:
        """Yield the values that continue-as-new carries over, as far as they grow with the run."""
        yield from self.results.values()
        yield from self.messages
        yield from (self.plan_message, self.draft)

    def include(self, usage: RunUsage, sent: Sequence[str]) -> None:
        """Add the usage of a child run, and the digests of texts that its message tools have sent."""
        self.usage.include(usage)
        self.sent = merge_digests(self.sent, sent)


SHOWN_TEXT: Final = 300
"""Characters of the model's text that `show` prints."""


def count_answer(
    request: RequestView,
    result: RequestResult,
    progress: RunProgress,
    prices: Mapping[str, Price],
    *,
    text_answers: bool,
) -> None:
    """Count the Request's complete answer. `text_answers`: whether the model's text may be its answer."""
    if request.status == "done":
        return
    request.status, request.usage, request.text = "done", result.usage, result.text[:SHOWN_TEXT]
    if not (text_answers or result.problem):
        request.text = ""  # the calls and the output contain the whole text
    request.cost = result.usage.cost_at(price_of(request.model, prices))
    progress.usage.count(request.model, result.usage, prices)
    progress.expected.note_request(result.usage, request.cost)


class RunLimits:
    """The limits of one run: its budget, its Requests, and the limit that it has reached (R9.5)."""

    def __init__(self, config: Config, progress: RunProgress, share: Budget | None = None) -> None:
        self.reached: Limit | None = None
        """Reason why the coming Request is the last."""
        self.pool = BudgetPool(budget_of(config), progress.expected, share=share)
        """Shares of the budget that delegates have reserved while they run at once (R18.7)."""
        self._config = config

    def check(self, progress: RunProgress, worked: float, *, coming: int, last_counts: bool = True) -> None:
        """Set `reached` if Request `coming` has to be the last; the run has worked for `worked` seconds."""
        progress.worked = worked
        varied = 0 < progress.told_to_vary == coming - 1
        self.reached = (
            self.reached
            or request_limit(
                self._config, progress.answers, coming=coming - progress.cut, warned=varied, last_counts=last_counts
            )
            or self.pool.budget.late(worked)
            or self.pool.limit(progress.usage)
        )

    def exceeded(self, progress: RunProgress) -> bool:
        """Whether the coming Request exceeds the limit of the run."""
        return progress.number - progress.cut > self._config.max_requests

    def refused(self, progress: RunProgress) -> bool:
        """Whether the model has refused once too often, or in the last Request (R20.2)."""
        return progress.refusals >= MAX_REFUSALS or (progress.refusals > 0 and self.reached is not None)
