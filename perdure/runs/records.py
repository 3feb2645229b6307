"""Records of a run: calls that have ended, their usage and values, and tallies for its events."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final, Literal

from pydantic import Field

from perdure.approvals.requests import IncomingMessage, MessageFate
from perdure.models.requests import RequestResult, RequestView
from perdure.models.usage import Price, RunUsage
from perdure.plan import Call, Plan
from perdure.runs.agent import CalledTool
from perdure.runs.budget import ExpectedUsage
from perdure.runs.events import CarriedEvents, clipped
from perdure.runs.wire import CallView, PreparedWorker
from perdure.values.json import Json, JsonObject, WireModel
from perdure.values.limits import MAX_KEPT, MAX_RECORDED, SHOWN_PARAMS
from perdure.values.media import beginning_without_media, first_without_media, result_text, without_media
from perdure.values.provenance import MODEL, SourceTable, untrusted
from perdure.values.sizes import Sizes, cut_to, preview
from perdure.values.state import State, Write, WriteRecord

SHOWN_RESULT: Final = 160
"""Characters of a result that `show` prints."""


def plan_reads(calls: Iterable[Call]) -> dict[str, list[str]]:
    return {call.id: reads for call in calls if (reads := call.spec.reads)}


def plan_writes(calls: Iterable[Call]) -> dict[str, str]:
    return {call.id: call.spec.target for call in calls if call.spec.paths}


def call_view(call: Call, sizes: Sizes, table: SourceTable) -> CallView:
    """Return the call as it is shown, with its sources as numbers of `table`.

    Of large parameters it holds the beginning, so that a run of thousands of calls stays small (R18.3).
    """
    return CallView(
        id=call.id,
        tool=call.spec.tool_name,
        params=_shown_params(call.inputs.params, sizes),
        status=call.standing,
        started_at=call.state.started,
        ended_at=call.state.ended_at,
        attempts=call.state.attempts,
        reason=call.state.reason or None,
        error=cut_to(call.state.error.as_json(), SHOWN_PARAMS) if call.state.error else None,
        approval=call.approval,
        sources=_numbered(call, table),
        shown=_one_line(call.state.result) if call.state.status == "done" else None,
    )


def _numbered(call: Call, table: SourceTable) -> dict[str, int]:
    """Return sources by parameter, without those that the model wrote out; under `""` the result's, where it is
    untrusted.
    """
    named = {name: each for name, each in call.inputs.origins.params.items() if each != MODEL}
    return {
        name: table.number(each)
        for name, each in (named | ({"": call.state.sources} if untrusted(call.state.sources) else {})).items()
    }


def record(
    views: Sequence[CallView], calls: Sequence[Call], sizes: Sizes, told: Callable[[Call], tuple[Json, JsonObject]]
) -> None:
    """Add to the last of the `views`, those of `calls`, what a session's transcript keeps of them (R10.10).

    `told` returns what a model may see. Of the results of all views the newest `MAX_RECORDED` characters stay; the
    others are only `shown`.
    """
    left = MAX_RECORDED
    for view, call in zip(reversed(views), reversed(calls), strict=False):
        view.wrote = [WriteRecord(path=list(write.path), method=write.method) for write in call.state.writes]
        if call.state.kept is not None and call.state.status == "done":
            call = replace(call, state=replace(call.state, result=call.state.kept[0]))
            view.shown = _one_line(call.state.result)
        result, view.told = told(call)
        if call.state.status == "done" and left > 0:
            view.result = result_text(result, sizes.of(result))
            left -= len(view.result)
    for view in reversed(views[: len(views) - len(calls)]):
        left -= len(view.result or "")
        if left < 0:
            view.result = None


def weight(view: CallView, sizes: Sizes) -> int:
    """Return the bytes of a call as it is kept, more or less."""
    return (
        500
        + sizes.of(view.params)
        + 2 * len(view.shown or "")
        + sizes.of(view.error)
        + len(view.reason or "")
        + 2 * len(view.result or "")
    )


def _shown_params(params: JsonObject, sizes: Sizes) -> JsonObject:
    if sizes.of(params) <= SHOWN_PARAMS:
        return without_media(params)
    cut: JsonObject = cut_to(clipped(params, SHOWN_PARAMS, media=True)[0], SHOWN_PARAMS)
    return cut


def _one_line(value: Json) -> str:
    """Return the beginning of a result on one line; of a text as text."""
    if not isinstance(value, str):
        return preview(first_without_media(value, SHOWN_RESULT)[0], SHOWN_RESULT)
    text = " | ".join(beginning_without_media(value, 2 * SHOWN_RESULT)[0].splitlines())
    return text if len(text) <= SHOWN_RESULT else f"{text[: SHOWN_RESULT - 1]}…"


class KeptValues:
    """The parameters and results of the newest ended calls, up to `MAX_KEPT` bytes.

    A value that many calls read counts once: it is known by its identity.
    """

    def __init__(self, most: int = MAX_KEPT) -> None:
        self._most = most
        self._calls: dict[str, tuple[JsonObject, Json]] = {}
        self._held: dict[int, tuple[int, int]] = {}
        """Number of calls that hold a value, and its bytes, by the value's identity."""
        self._bytes = 0

    def add(self, call: Call, sizes: Sizes) -> None:
        """Keep the values of an ended call; the oldest go where there is no room."""
        self._calls[call.id] = call.inputs.params, call.state.result
        for value in (*call.inputs.params.values(), call.state.result):
            count, size = self._held.get(id(value), (0, 0))
            if not count:
                size = sizes.of(value)
                self._bytes += size
            self._held[id(value)] = count + 1, size
        while self._bytes > self._most and len(self._calls) > 1:
            self._let_go(next(iter(self._calls)))

    def whole(self, call_id: str) -> JsonObject | None:
        """Return `{"params", "result"}`; `None` if they are not here any more, or never were."""
        if call_id not in self._calls:
            return None
        params, result = self._calls[call_id]
        return {"params": params, "result": result}

    def _let_go(self, call_id: str) -> None:
        params, result = self._calls.pop(call_id)
        for value in (*params.values(), result):
            count, size = self._held.pop(id(value))
            if count > 1:
                self._held[id(value)] = count - 1, size
            else:
                self._bytes -= size


MOST: Final = 1_000
"""Digests that a run keeps: the newest."""
_NAMES: Final = ("text", "message", "content", "body")
"""Parameters that may hold the sent text, where the tool does not name one."""
_WORD: Final = re.compile(r"\w+")
_PARAGRAPHS: Final = re.compile(r"\n\s*\n")


def sent_by(calls: Iterable[Call]) -> list[str]:
    """Return the digests of what successful calls of message tools have sent."""
    return [
        each
        for call in calls
        if call.spec.tool is not None and call.spec.tool.message and call.state.status == "done"
        for each in _digests(_text(call.inputs.params, call.spec.tool.message))
    ]


def added(before: list[str], more: Iterable[str]) -> list[str]:
    """Return both lists, each digest once, the newest `MOST`."""
    return list(dict.fromkeys([*before, *more]))[-MOST:]


def was_sent(text: str, sent: Collection[str]) -> bool:
    """Whether a text holds nothing new: it was sent as a whole, or each of its paragraphs was.

    Case, blanks and signs do not count.
    """
    return bool(sent) and (_digest(text) in sent or all(each in sent for each in _paragraphs(text)))


def _text(params: dict[str, Json], named: bool | str) -> str:
    """Return the text that a call sends."""
    if isinstance(named, str):
        found = params.get(named)
        return found if isinstance(found, str) else ""
    texts = {name: value for name, value in params.items() if isinstance(value, str)}
    known = next((texts[name] for name in _NAMES if name in texts), None)
    return known if known is not None else max(texts.values(), key=len, default="")


def _digests(text: str) -> list[str]:
    return [] if not text.strip() else [_digest(text), *_paragraphs(text)]


def _paragraphs(text: str) -> Iterator[str]:
    return (_digest(each) for each in _PARAGRAPHS.split(text) if each.strip())


def _digest(text: str) -> str:
    plain = unicodedata.normalize("NFKC", text).casefold()
    words = " ".join(_WORD.findall(plain)) or plain.strip()
    return hashlib.sha256(words.encode(errors="replace")).hexdigest()[:16]


class PastRequests(WireModel):
    """The records of Requests that are over, for readers of the run."""

    calls: list[CallView] = Field(default_factory=list)
    log: list[RequestView] = Field(default_factory=list)
    sets: list[list[str]] = Field(default_factory=list)
    """Sets of sources: calls name them by their index."""
    edges: list[tuple[str, str, str]] = Field(default_factory=list)
    reads: dict[str, list[str]] = Field(default_factory=dict)
    writes: dict[str, str] = Field(default_factory=dict)


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
    """Number of the last Request that told the model that its answers repeat (R9.8)."""
    worked: float = 0.0
    expected: ExpectedUsage = Field(default_factory=ExpectedUsage)
    """Estimated usage of a delegate (R18.7)."""
    told: list[str] = Field(default_factory=list)
    """Names of untrusted sources that its messages and results hold (R15.3)."""
    planned: list[str] = Field(default_factory=list)
    """Digests of calls that trusted Requests planned and that were not made."""
    wants: Literal["plan", "structured", "refined"] = "plan"
    """Purpose of the next Request; `structured` and `refined` only want an output."""
    must_call: list[str] = Field(default_factory=list)
    """Tools of which the model must call one before an output counts (R6.5); empty once it has."""
    draft: Json = None
    """Output that is to be refined."""
    inbox: list[IncomingMessage] = Field(default_factory=list)
    """Messages that no Request holds so far."""
    heard: list[MessageFate] = Field(default_factory=list)
    """Messages that a Request holds."""
    cut: int = 0
    """Requests that a message ended before their answer: they do not count as made."""
    sent: list[str] = Field(default_factory=list)
    """Digests of what message tools have sent (R10.16)."""
    refusals: int = 0
    """Requests in a row that the model refused, up to the last one (R20.2)."""
    has_cut: bool = False
    """Whether the model has seen only the beginning of a value, so that `recall` is offered (R10.18)."""
    tight: bool = False
    """Whether the context was too long for the model, and is shortened since (R9.7)."""

    def include(self, usage: RunUsage, sent: Sequence[str]) -> None:
        """Add the usage of a child run, and the digests of what its message tools have sent."""
        self.usage.include(usage)
        self.sent = added(self.sent, sent)


SNAPSHOT_FORM: Final = 3
"""Form of a `RunSnapshot`. A worker that does not know a snapshot's form fails the run with that reason."""


class RunSnapshot(WireModel):
    """A snapshot of a run between two Requests, from which a new execution continues (R6.8)."""

    prepared: PreparedWorker
    progress: RunProgress
    writes: list[Write]
    sets: list[list[str]] = Field(default_factory=list)
    sources: list[int] = Field(default_factory=list)
    """Sources of each write's value, as an index into `sets` (R15.1)."""
    policy: JsonObject = Field(default_factory=dict)
    """Changes of the run's own approval policy against the agent file's (R7.7)."""
    remembered: dict[str, list[str]] | list[str] = Field(default_factory=dict)
    """Untrusted sources of the calls that a person has seen, by tool. A list, as 0.1.0 wrote it, holds for any source.
    """
    vouched: dict[str, str] = Field(default_factory=dict)
    """Endorsed values: the digest of each value by reference (R15.6)."""
    refusals: list[JsonObject] = Field(default_factory=list)
    past: PastRequests
    events: CarriedEvents = Field(default_factory=CarriedEvents)
    """Events that a snapshot carries (R10.14)."""


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
    """Count the Request's complete answer. `text_answers`: the model's text may be its answer."""
    if request.status == "done":
        return
    request.status, request.usage, request.text = "done", result.usage, result.text[:SHOWN_TEXT]
    if not (text_answers or result.problem):
        request.text = ""  # it is all in the calls and the output
    request.cost = result.usage.cost_at(prices.get(request.model))
    progress.usage.count(request.model, result.usage, prices)
    progress.expected.note_request(result.usage, request.cost)


RECENT: Final = 40
"""Calls that stay whole for the live table. The table is made anew at every event; its cost must not grow with the run.
"""


class CallTallies:
    """Tallies of a run's calls: those that are over and those of the plan that runs."""

    state: State
    progress: RunProgress
    past: PastRequests
    plan: Plan | None
    _recent: list[Call]
    _views: dict[str, CallView]
    """Views of calls in iterations that have ended, by id."""
    sizes: Sizes
    table: SourceTable
    _done: int

    def carries(self) -> Iterator[Json]:
        """Yield the values that continue-as-new carries on, as far as they grow with the run."""
        yield from (write.value for write in self.state.writes)
        yield from self.progress.results.values()
        yield from self.progress.messages
        yield from (self.progress.plan_message, self.progress.draft)

    @property
    def errors(self) -> list[JsonObject]:
        """Return the error messages that the model has received so far."""
        return [message for message in self.progress.messages if message["type"] == "error"]

    @property
    def count(self) -> int:
        """The number of calls so far, of any status."""
        return len(self.past.calls) + (self.plan.count if self.plan is not None else 0)

    @property
    def done(self) -> int:
        """The number of calls that have succeeded so far."""
        return self._done + (self.plan.done if self.plan is not None else 0)

    def call_view(self, call: Call) -> CallView:
        """Return the call as it is shown. The view of a call in an ended iteration is made once (R16.6)."""
        known = self._views.get(call.id)
        return call_view(call, self.sizes, self.table) if known is None else known

    def fold(self) -> None:
        """Make the views of calls in ended iterations: nothing of them changes any more."""
        for call in self.plan.take_folded() if self.plan is not None else ():
            self._views[call.id] = call_view(call, self.sizes, self.table)

    def last_calls(self) -> list[Call]:
        """Return the newest calls, `RECENT` at most, in their order."""
        newest = [] if self.plan is None else [*islice(self.plan.made_last(), RECENT)][::-1]
        return [*self._recent, *newest][-RECENT:]
