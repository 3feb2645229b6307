"""Requests to a model: streamed, with calls delivered while the model still writes."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import logging
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, ClassVar, Final, NamedTuple

import httpx2
import openai
from pydantic_core import from_json
from temporalio import activity
from temporalio.client import WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from perdure.activities.active_executions import TRACE, ActiveExecutions, leave_to_another
from perdure.activities.endpoints import Endpoints
from perdure.activities.failures import context_failure, model_failure, refusal_in, with_spent, within_patience
from perdure.activities.heartbeats import Heartbeat, supervised_heartbeat
from perdure.activities.model_servers import LACKS
from perdure.activities.queries import AttemptState, fetch_attempt_state, fetch_own, own_run
from perdure.activities.queue_rates import QueueRates
from perdure.activities.secrets import known_secrets, mask_error, mask_text, mask_value
from perdure.errors import RunError
from perdure.models.dialects.registry import DIALECTS
from perdure.models.media_parts import files_to_show, with_files
from perdure.models.provider_errors import Reduction, Refusal, RefusalError, refusal_of
from perdure.models.provider_extras import ProviderExtras
from perdure.models.providers.capabilities import Capabilities
from perdure.models.requests import (
    CallDelivery,
    HostedCall,
    RequestContext,
    RequestInput,
    RequestResult,
    pause_after,
    read_spent,
)
from perdure.models.response_stream import ResponseStream, interruption, join_chunks
from perdure.models.usage import Usage
from perdure.queries import answer_of, cancel_all
from perdure.queries.media_store import MediaStore
from perdure.runs.caller_context import MASK
from perdure.runs.claim_check import CONTEXT, NEIGHBOURS
from perdure.runs.event_stream import TextWriter
from perdure.runs.events import WATCHED, WrittenText
from perdure.runs.metrics import label_value
from perdure.runs.wire import CALLS_SIGNAL, REQUEST_ACTIVITY
from perdure.values.json import Json, JsonObject
from perdure.values.limits import MAX_EVENT
from perdure.values.media import is_text, media_type
from perdure.values.templates import is_plain

_log: Final = logging.getLogger("perdure.run")

# The parser accepts a byte order mark, any line ends, `retry:` and comments, events without an empty line between them,
# and a missing end. Its cost grows with the bytes, and it holds one event at a time.

_SHOWN: Final = 20_000
"""Bytes kept of an answer that is neither events nor a document, to show them."""
_BOM: Final = b"\xef\xbb\xbf"


class EventTooLongError(Exception):
    """An event of more than `MAX_EVENT` bytes without an end."""

    def __init__(self) -> None:
        super().__init__(f"it sent {MAX_EVENT:,} bytes without the end of an event")


class ServerSentEvent(NamedTuple):
    data: bytes
    name: str = ""


class Events:
    """A parser of bytes into events. With `document` the whole answer is one event; so is an answer that begins as JSON
    does.
    """

    def __init__(self, *, document: bool = False) -> None:
        self.strange = b""
        """The first bytes that were not an event, if there were any."""
        self._document: bool | None = document or None
        self._rest: list[bytes] = []
        """Pieces of an unfinished line, or of the document."""
        self._data: list[bytes] = []
        self._name = ""
        self._size = 0
        self._after_cr = False

    def push(self, piece: bytes) -> list[ServerSentEvent]:
        """Return the events that end with this piece. Raise `EventTooLongError`."""
        self._size += len(piece)
        if self._size > MAX_EVENT:
            raise EventTooLongError
        if self._document is None:
            piece = self._begin(piece)
        if self._document is not False or not piece:
            self._rest.append(piece)
            return []
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        self._after_cr = piece.endswith(b"\r")
        end = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
        if not end:
            self._rest.append(piece)
            return []
        lines = b"".join([*self._rest, piece[:end]]).splitlines()
        self._rest = [piece[end:]] if end < len(piece) else []
        events: list[ServerSentEvent] = []
        for line in lines:
            self._line(line, events)
        return events

    def end(self) -> list[ServerSentEvent]:
        """Return the events that were unfinished when the connection ended."""
        events: list[ServerSentEvent] = []
        whole = b"".join(self._rest)
        self._rest = []
        if self._document:
            return [ServerSentEvent(whole.removeprefix(_BOM))] if whole.strip() else []
        for line in whole.splitlines():
            self._line(line, events)
        self._line(b"", events)
        return events

    def _begin(self, piece: bytes) -> bytes:
        """Detect a document by its first byte; return the bytes from that one."""
        piece = b"".join([*self._rest, piece])
        self._rest = []
        head = piece.removeprefix(_BOM).lstrip()
        if head and not (len(piece) < len(_BOM) and _BOM.startswith(piece)):
            self._document = head[:1] in (b"{", b"[")
            return head
        return piece

    def _line(self, line: bytes, events: list[ServerSentEvent]) -> None:
        if not line:
            if self._data:
                events.append(ServerSentEvent(b"\n".join(self._data), self._name))
                self._data = []
            self._name = ""
            self._size = sum(map(len, self._rest))
        elif line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        elif line.startswith(b"event:"):
            self._name = line[6:].strip().decode(errors="replace")
        elif not line.startswith((b":", b"id:", b"retry:")) and len(self.strange) < _SHOWN:
            self.strange = (self.strange + b" " + line).strip()[:_SHOWN]


class AwsEvents:
    """A parser of AWS's event stream, with the interface of `Events`: each event is `{"name": {…}}`."""

    strange = b""

    def __init__(self) -> None:
        stream = importlib.import_module("botocore.eventstream")  # an extra, which the server's answer needs
        self._buffer, self._broken = stream.EventStreamBuffer(), stream.ParserError

    def push(self, piece: bytes) -> list[ServerSentEvent]:
        """Return the events that end with this piece. Raise `RefusalError` for bytes that are not an event."""
        self._buffer.add_data(piece)
        try:
            return [self._event(each.headers, each.payload) for each in self._buffer]
        except self._broken as error:
            raise RefusalError(Refusal(f"the answer is not an event stream: {error}")) from None

    def end(self) -> list[ServerSentEvent]:
        """Return nothing: half an event does not count."""
        return []

    @staticmethod
    def _event(headers: Mapping[str, Any], payload: bytes) -> ServerSentEvent:
        kind = headers.get(":exception-type") or headers.get(":error-code")
        if kind is None:
            return ServerSentEvent(b'{"%s":%s}' % (str(headers.get(":event-type")).encode(), payload or b"{}"))
        try:
            body = json.loads(payload)
        except ValueError:
            body = {}
        message = body.get("message") if isinstance(body, dict) else None
        error = {"type": kind, "message": message or headers.get(":error-message") or str(kind)}
        return ServerSentEvent(json.dumps({"error": error}).encode(), "error")


_CROWDED_BY: Final = 10
"""Further answers for which `crowding_factor` grows by 1."""
_MOST_CROWDED: Final = 3.0


def crowding_factor(answers: int) -> float:
    """Return the factor for the pauses between reads and between deliveries, while this process streams that many `answers`.

    It is 1 for one answer, and `_MOST_CROWDED` at most. A wake-up costs as much CPU as the read of four tokens, and a
    delivery costs a workflow task. A process with many answers needs that CPU for its runs.
    """
    return min(_MOST_CROWDED, 1 + max(0, answers - 1) / _CROWDED_BY)


Send = Callable[[int, list[Json]], Awaitable[None]]
"""Function that sends calls, the first of which has this index in the list."""


GATHERED: Final = 0.1
"""Maximum of seconds that the first call waits for others, and the next delivery while calls are written quickly."""
_ANSWER_SHARE: Final = 0.1
"""Share of the time since the Request that passes between two deliveries, because each is a billed signal."""
_INDEPENDENT_SHARE: Final = 0.5
"""The same if no waiting call reads a value: only their own readers wait for them, and a reader is delivered soon. With
0.5 eight calls take three deliveries, and a run of equal calls ends 4 % later at most (`benchmarks/latency.py`).
"""
_LONGEST_GATHERED: Final = 1.0
"""Maximum of seconds between two deliveries."""


class Deliverer:
    """A sender of calls as they arrive, several together, so that long answers take few deliveries.

    The first call is sent almost at once. A call that reads a value is sent within a tenth of the time since the
    Request. Any other call is sent within half of that time, a second at most. Both shares grow by `crowding_factor`. Calls that
    arrive with the answer's end are not sent: an answer of one call needs no delivery.

    Leaving the context waits for a delivery under way. The activity's result carries calls that were not sent by then,
    so a failed delivery is not retried.
    """

    def __init__(self, send: Send, requested_at: float | None = None) -> None:
        """Create the deliverer of a Request. `requested_at`: the loop's clock when the Request was sent (default: now)."""
        self._send = send
        self._calls: list[Json] = []
        self._sent = 0
        self._requested_at = asyncio.get_running_loop().time() if requested_at is None else requested_at
        self._begun: float | None = None
        self._sending: asyncio.Task[None] | None = None
        self._waiting, self._urgent = asyncio.Event(), asyncio.Event()
        """Set while calls wait, and while one of them reads a value; both also set when the context is left."""
        self._left = asyncio.Event()
        """Set when the context is left: no further delivery begins."""

    def add(self, calls: list[Json]) -> None:
        if not calls:
            return
        self._calls.extend(calls)
        self._waiting.set()
        if any(map(_is_dependent, calls)):
            self._urgent.set()
        if self._sending is None:
            self._begun = asyncio.get_running_loop().time()
            self._sending = asyncio.create_task(self._deliver())

    async def _deliver(self) -> None:
        clock = asyncio.get_running_loop().time
        await _wait(self._left, clock() + min(GATHERED, self._share(_ANSWER_SHARE)))
        while not self._left.is_set():
            first, batch = self._sent, self._calls[self._sent :]
            self._sent = len(self._calls)
            self._waiting.clear()
            self._urgent.clear()
            soon, later = clock() + self._pause(), clock() + self._share(_INDEPENDENT_SHARE)
            await self._send(first, batch)
            await _wait(self._left, soon)
            await _wait(self._urgent, later)
            await self._waiting.wait()

    def _share(self, part: float) -> float:
        elapsed = asyncio.get_running_loop().time() - self._requested_at
        return min(_LONGEST_GATHERED, part * crowding_factor(_Reading.active) * elapsed)

    def _pause(self) -> float:
        """Return the minimum of seconds until the next delivery: the time of two calls, or a tenth of the answer's
        time.
        """
        if self._begun is None or len(self._calls) < 2:
            return max(GATHERED, self._share(_ANSWER_SHARE))
        each = (asyncio.get_running_loop().time() - self._begun) / (len(self._calls) - 1)
        return max(min(GATHERED, 2 * each), self._share(_ANSWER_SHARE))

    async def __aenter__(self) -> Deliverer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for event in (self._left, self._urgent, self._waiting):
            event.set()
        if self._sending is not None:
            await asyncio.gather(self._sending, return_exceptions=True)

    @property
    def calls(self) -> list[Json]:
        """Return all closed calls. The result contains calls that were not delivered, also for an incomplete answer."""
        return self._calls


def _is_dependent(call: Json) -> bool:
    """Whether the call reads a value or waits for another call, so that its delay may delay a chain of calls."""
    return isinstance(call, dict) and ("_after" in call or not is_plain({**call, "_outputPath": None}))


async def _wait(event: asyncio.Event, until: float) -> None:
    """Wait for the event, until this time of the loop's clock at most."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(until):
            await event.wait()


UNWATCHED: Final = 1.0
"""Seconds that the first text waits without watchers: an answer that is complete by then is reported by its result
alone.
"""
_NOTHING_YET: Final = 0.05
"""Seconds between two looks for the first text while somebody watches: calls may be written before it."""
_SHORTEST: Final = 0.25
_LONGEST: Final = 1.0
"""Seconds between reports while somebody watches, at the beginning and later: each is an Action."""
_SHARE: Final = 0.05
"""Share of the time since the first report by which the pauses grow."""
_SHARE_UNWATCHED: Final = 0.25
"""The share without watchers, from `_LONGEST` on: a new watcher is noticed, and sees the text so far."""


def next_report(written: float, *, watched: bool) -> float:
    """Return the seconds until the next report, `written` seconds after the first one."""
    if watched:
        return min(_LONGEST, max(_SHORTEST, written * _SHARE))
    return max(_LONGEST, written * _SHARE_UNWATCHED)


class WritingReporter:
    """A reporter of one attempt's text, by heartbeats."""

    def __init__(
        self,
        heart: Heartbeat,
        writing: TextWriter,
        seen: asyncio.Task[AttemptState] | None,
        context: RequestContext,
        is_near: Callable[[], bool],
    ) -> None:
        """Create the reporter. The `context` has the time until which somebody watches, as of the `seen` history or
        later; `None`: the history was not seen, because the run in this process gave the context.

        `is_near`: whether the run in this process keeps the context up to date, so that it needs no query.
        """
        self._heart = heart
        self._writing = writing
        self._seen = seen
        self._events: int | None = None
        self._watched_until = 0.0
        self._context, self._is_near = context, is_near
        self._answer: ResponseStream | None = None
        self._news = asyncio.Event()
        self._woken = asyncio.Event()
        self._reported_at = 0.0
        self._looking = self._knows = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.told = False
        """Whether a text was reported."""
        self.spent = read_spent(activity.info().heartbeat_details)
        """The usage of answers before this one, which do not count."""

    def note(self) -> None:
        """Record that more of the answer has arrived."""
        if not self._news.is_set():
            self._news.set()

    async def supersede(self) -> None:
        """Withdraw the text that an earlier attempt has reported."""
        await self._heart.send(self._writing.written(self.spent))

    async def report_failure(self, failure: ApplicationError) -> ApplicationError:
        """Report the usage so far to the next attempt, if there is one. Return the failure with this usage."""
        if self.spent.tokens and not failure.non_retryable:
            await self._heart.send(self._writing.written(self.spent))
        return with_spent(failure, self.spent)

    @asynccontextmanager
    async def of(self, answer: ResponseStream) -> AsyncIterator[None]:
        """Report the answer while the context lasts."""
        self._answer = answer
        self._heart.on_look, self._heart.renew = self._looked, self._renewed
        self._start(self._report())
        try:
            yield
        finally:
            self._heart.on_look = self._heart.renew = None
            await cancel_all(*self._tasks)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def _watched(self) -> bool:
        return time.time() < max(self._watched_until, self._context.watched_until)

    async def _report(self) -> None:
        clock = asyncio.get_running_loop().time
        await self._more()
        begun = clock()
        self._knows = self._watched
        if not self._knows:
            await self._wait(lambda: begun + UNWATCHED, begun)
        while True:
            self._take()
            await self._heart.send(self._written())
            await self._wait(lambda: self._reported_at + next_report(clock() - begun, watched=self._watched), clock())
            await self._more()

    async def _more(self) -> None:
        """Wait until there is more to report. Look every `_SHORTEST` seconds, and every `_NOTHING_YET` for a watched answer's first text."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._take():
                return
            await asyncio.sleep(_NOTHING_YET if self._watched and not self.told else _SHORTEST)

    def _take(self) -> bool:
        """Take the answer's new text; return whether there is more than was reported."""
        answer = self._answer
        return answer is not None and self._writing.add(answer.output_text(), answer.thought(), answer.text_form)

    def _written(self) -> WrittenText:
        self.told, self._reported_at = True, asyncio.get_running_loop().time()
        return self._writing.written(self.spent if self._answer is None else self.spent.plus(self._answer.usage))

    async def _wait(self, due: Callable[[], float], now: float) -> None:
        """Wait until the next report is due, which may change meanwhile. Return at once when somebody begins to watch."""
        while now < due():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due()):
                    await self._woken.wait()
                    break
            now = asyncio.get_running_loop().time()
        self._woken.clear()

    def _renewed(self) -> tuple[WrittenText, ...]:
        """Return the text for a heartbeat that is due."""
        return (self._written(),) if self._take() or self.told else ()

    def _looked(self, look: AttemptState) -> None:
        if self._events is None and self._seen is not None and self._seen.done():
            self._events = self._seen.result().events
        if self._watched:  # by the run in this process
            if not self._knows:
                self._knows = True
                self._woken.set()
        elif self._is_near():
            self._events = look.events  # its context knows what these events say
        elif look.events and look.events != self._events and not self._looking:
            self._start(self._find_out(look))

    async def _find_out(self, look: AttemptState) -> None:
        """Query the watchers after an event in the run: somebody may have begun to watch it."""
        self._looking = True
        with contextlib.suppress(RPCError, WorkflowQueryFailedError):
            self._watched_until = max(self._watched_until, await answer_of(own_run(), WATCHED, result_type=float))
            self._events = look.events
            if self._watched:
                self._knows = True
                self._woken.set()
        self._looking = False


class RequestActivity:
    """The activity that sends a Request to the server of its model, which `endpoints` finds."""

    def __init__(
        self,
        endpoints: Endpoints | None = None,
        underway: ActiveExecutions | None = None,
        rates: QueueRates | None = None,
    ) -> None:
        self._endpoints = endpoints or Endpoints()
        self._underway = underway or ActiveExecutions()
        self._rates = rates or QueueRates()

    @activity.defn(name=REQUEST_ACTIVITY)
    async def request(self, request: RequestInput) -> RequestResult:
        """Return the model's Solution; its calls are delivered to the run as they close (R6.3).

        A failure before any call was released is raised as `model_failure` returns it, and a retry sends the Request
        again. After that the Request is never repeated: it ends as interrupted, with the calls that were released
        (R6.7).
        """
        run = own_run()
        attempt = request.earlier_attempts + activity.info().attempt

        async def send(first: int, calls: list[Json]) -> None:
            delivery = CallDelivery(number=request.number, attempt=attempt, first=first, calls=calls)
            await run.signal(CALLS_SIGNAL, delivery)

        title = f"Request {request.number} of {activity.info().workflow_id}"
        async with self._underway.working(title), supervised_heartbeat() as heart, _leave_where_lacking():
            near = _near(request)
            seen = asyncio.create_task(fetch_attempt_state()) if near is None else None
            context = await _fetch_context(request) if near is None else near
            if context.released:
                _log_interruption(request, context.released, "WorkerLost")
                lost = RequestResult(problem=interruption(context.released, "the worker was lost"), attempt=attempt)
                return _add_spent(lost, read_spent(activity.info().heartbeat_details))
            messages, stable = await _with_media(context, self._endpoints.capabilities(request.model))
            body = _body(context, request, messages)
            counted = await self._rates.begin(body)
            trace = TRACE.get()
            if trace is not None and trace.content:
                trace.given = context.messages
            writing = TextWriter(request.number, attempt, known_secrets(), MASK)
            reporter = WritingReporter(heart, writing, seen, context, lambda: near is not None and _holds_run())
            if activity.info().heartbeat_details:
                await reporter.supersede()
            steps: list[Reduction] = []
            while True:
                sent, is_answered = self._endpoints.fitted(request.model, body), False
                answer = ResponseStream(request.model, attempt, DIALECTS[context.dialect].reader(context.vocabulary))
                try:
                    asking = self._endpoints.ask(request.model, body, stable)
                    async with Deliverer(send) as deliverer, asking as response:
                        is_answered = True
                        if request.stream:
                            async with reporter.of(answer):
                                await read_answer(response, answer, deliverer, reporter)
                        else:
                            await read_answer(response, answer)
                    if trace is not None:
                        trace.finish_reason = answer.finish_reason
                    result = answer.result()
                    await self._rates.settle(counted, result.usage)
                    return _add_spent(_masked(result), reporter.spent)
                except ApplicationError:
                    raise
                except Exception as error:
                    if deliverer.calls:  # after any error, also one of the engine: the released calls stay
                        _log_interruption(request, len(deliverer.calls), type(error).__name__)
                        return _add_spent(_masked(answer.interrupted(deliverer.calls, _words(error))), reporter.spent)
                    refusal = refusal_in(error)
                    if refusal is not None and refusal.kind == "filtered":
                        return _add_spent(_masked(answer.refused(refusal.words)), reporter.spent)
                    reporter.spent = reporter.spent.plus(answer.usage)
                    failure = model_failure(error, setting=self._endpoints.setting(request.model))
                    step = None
                    if refusal is not None and is_answered:  # `ask` has learnt from a refusal before the answer
                        step = self._endpoints.learn(request.model, body, sent, refusal)
                    if step is not None and not reporter.told:  # else another attempt reports that the text changes
                        steps.append(step)
                        continue
                    self._endpoints.restore_files(request.model, steps)
                    raise await reporter.report_failure(within_patience(failure, request)) from None


async def _fetch_context(request: RequestInput) -> RequestContext:
    """Return the Request's context by a query: a history does not hold queries, so it does not grow with every context
    (R6.8).
    """
    try:
        context: RequestContext = await fetch_own(CONTEXT, str(request.number))
    except ApplicationError as error:
        raise context_failure(error) from None
    return context


@asynccontextmanager
async def _leave_where_lacking() -> AsyncIterator[None]:
    """Leave a Request to another worker if this one lacks the model's endpoint, key or library."""
    try:
        yield
    except ApplicationError as error:
        if error.type in LACKS:
            await leave_to_another(error.message)
        raise


async def ask_model(endpoints: Endpoints, model: str, context: RequestContext) -> RequestResult:
    """Return a model's answer to a context outside of a run, in three attempts at most. Raises `RunError` without an answer."""
    body: JsonObject = {"messages": context.messages, **context.parameters}
    for attempt in range(1, _ATTEMPTS_OUTSIDE + 1):
        answer = ResponseStream(model, attempt, DIALECTS[context.dialect].reader(context.vocabulary))
        try:
            async with endpoints.ask(model, body, context.stable) as response:
                await read_answer(response, answer)
            return _masked(answer.result())
        except ApplicationError as error:  # a key, a library or an endpoint is missing
            raise RunError(f"{model}: {error.message}") from None
        except Exception as error:
            refusal = refusal_in(error)
            if refusal is not None and refusal.kind == "filtered":
                return _masked(answer.refused(refusal.words))
            failure = model_failure(error, setting=endpoints.setting(model))
            if failure.non_retryable or attempt == _ATTEMPTS_OUTSIDE:
                raise RunError(f"{model}: {failure.message}") from None
        await asyncio.sleep(pause_after(attempt, None))
    raise AssertionError("the last attempt returns or raises")


def _near(request: RequestInput) -> RequestContext | None:
    """Return the context from the run in this process. A later attempt asks the run for the calls that were released
    before.
    """
    info = activity.info()
    if request.earlier_attempts or info.attempt > 1:
        return None
    return NEIGHBOURS.find(info.workflow_id or "", info.workflow_run_id or "", request.number)


def _holds_run() -> bool:
    """Whether this process holds the activity's run in memory."""
    info = activity.info()
    return NEIGHBOURS.holds(info.workflow_id or "", info.workflow_run_id or "")


def _add_spent(result: RequestResult, spent: Usage) -> RequestResult:
    """Return the result with the usage of earlier attempts, if a server has reported any (R9.6)."""
    return result.model_copy(update={"spent": spent}) if spent.tokens else result


def _masked(result: RequestResult) -> RequestResult:
    """Return the result without secrets that a server repeats; each call stays as it was delivered."""
    names = ("calls", "output", "text", "reasoning", "problem", "refusal")
    fields = {name: getattr(result, name) for name in names} | {"beside": result.beside and result.beside.as_json()}
    fields["hosted"] = [use.model_dump() for use in result.hosted]
    clean = mask_value(fields)
    if clean is fields:
        return result
    return result.model_copy(
        update={
            **clean,
            "beside": clean["beside"] and ProviderExtras.model_validate(clean["beside"]),
            "hosted": [HostedCall.model_validate(use) for use in clean["hosted"]],
        }
    )


def _log_interruption(request: RequestInput, calls: int, code: str) -> None:
    """Log why an answer breaks off after calls were released. The run's own line has no cause."""
    fields = {
        "run": activity.info().workflow_id,
        "request": request.number,
        "model": label_value(request.model),
        "calls": calls,
        "code": label_value(code),
    }
    _log.warning("request interrupted", extra={"perdure": fields})


def _words(error: Exception) -> str:
    try:
        return model_failure(error).message
    except Exception as bug:
        activity.logger.error("an answer could not be read completely", exc_info=mask_error(bug))
        return f"the answer could not be read: {type(error).__name__}"


def _body(context: RequestContext, request: RequestInput, messages: list[JsonObject]) -> JsonObject:
    streaming = {"stream": True, "stream_options": {"include_usage": True}} if request.stream else {}
    return {"messages": messages, **context.parameters, **streaming}


async def _with_media(context: RequestContext, capabilities: Capabilities) -> tuple[list[JsonObject], int]:
    """Return the messages with the files that the model can read, and the number of those that stay (R20.3).

    A file that is not stored stays one line: it may have been deleted, or the text only resembles a file's line.
    """
    store = MediaStore(activity.client().data_converter, context.tenant)
    wanted = files_to_show(context.messages, capabilities) if store.is_there else []
    if not wanted:
        return context.messages, context.stable
    found = await asyncio.gather(*(store.find(file.digest) for file in wanted))
    files = {
        file.digest: _masked_text(data)
        for file, data in zip(wanted, found, strict=True)
        if data and len(data) == file.bytes
    }
    return await asyncio.to_thread(with_files, context.messages, context.stable, files, capabilities)


def _masked_text(data: bytes) -> bytes:
    return mask_text(data.decode()).encode() if is_text(media_type(data)) else data


_ATTEMPTS_OUTSIDE: Final = 3
_SHARE_OF_READS: Final = 0.03
_LONGEST_READ: Final = 0.05
_WAITED: Final = 0.001
"""Seconds. A piece that is read faster had arrived before."""
_LONGEST_END: Final = 0.05
"""Maximum of seconds between an answer's last event and the end of its response; without the end, the connection is
closed."""


def next_read(streamed: float, answers: int = 1) -> float:
    """Return the seconds until the next read of an answer, from the time that it has been streamed.

    A wake-up for each token costs as much as its read. So tokens are read together: after a second of streaming, new
    tokens may be noticed 0.03 s later. The pause grows by `crowding_factor` while this process streams several `answers`.
    """
    return crowding_factor(answers) * min(_LONGEST_READ, streamed * _SHARE_OF_READS)


async def read_answer(
    response: httpx2.Response,
    answer: ResponseStream,
    deliverer: Deliverer | None = None,
    reporter: WritingReporter | None = None,
) -> None:
    """Read the answer as it arrives. Raise an error that `model_failure` accepts for a missing or incomplete answer.

    The answer is read to the end of its response: then its connection serves another Request.
    """
    kind = response.headers.get("content-type", "")
    events = AwsEvents() if "amazon.eventstream" in kind else Events(document="json" in kind)
    if await _Reading(events, answer, deliverer, reporter).read(response):
        return
    _take(events.end(), answer, deliverer)
    if answer.whole:
        return
    if (refusal := refusal_of(None, events.strange.decode(errors="replace"), event="error")) and events.strange:
        raise RefusalError(refusal)
    raise openai.APIConnectionError(message="the model's answer broke off", request=response.request)


class _Reading:
    """The reading of one answer. Pieces that arrive together are read together."""

    active: ClassVar = 0
    """The number of answers that this process streams now."""

    def __init__(
        self,
        events: Events | AwsEvents,
        answer: ResponseStream,
        deliverer: Deliverer | None,
        reporter: WritingReporter | None,
    ) -> None:
        self._events, self._answer = events, answer
        self._deliverer, self._reporter = deliverer, reporter
        self._pieces: list[bytes] = []
        self._ended = False
        """Whether the answer's last event was read, or the answer is too long."""
        self._failure: Exception | None = None
        self._limit = asyncio.timeout(None)
        """The limit of the time that is left, once no further event is wanted."""

    async def read(self, response: httpx2.Response) -> bool:
        """Return whether the answer's last event was read; else the response has ended without it."""
        _Reading.active += 1
        try:
            with contextlib.suppress(TimeoutError):
                async with self._limit:
                    try:
                        await self._read(response)
                    except httpx2.HTTPError as error:
                        error.request = response.request
                        self._take()
                        if not self._answer.whole:  # else only the end of the stream is missing
                            raise
                    self._take()
        finally:
            _Reading.active -= 1
            self._pieces.clear()
        if self._failure is not None:
            raise self._failure
        return self._ended

    async def _read(self, response: httpx2.Response) -> None:
        loop = asyncio.get_running_loop()
        began = asked = loop.time()
        # The client's own iterators cost two generators and a context for each token, which only a compressed answer needs.
        pieces = response.aiter_bytes() if "content-encoding" in response.headers else response.stream
        assert isinstance(pieces, AsyncIterable)
        async for piece in pieces:
            self._pieces.append(piece)
            if loop.time() - asked > _WAITED:
                self._take()
                if self._deliverer is not None and not (self._is_done() or self._answer.whole):
                    await asyncio.sleep(next_read(loop.time() - began, _Reading.active))
            elif len(self._pieces) == 1:
                loop.call_soon(self._take)  # runs when this task waits for the next piece
            asked = loop.time()

    def _is_done(self) -> bool:
        return self._ended or self._failure is not None

    def _take(self) -> None:
        """Read the pieces that have arrived. After the last event only the end of the response is awaited, and nothing
        after a failure.
        """
        arrived = b"".join(self._pieces)
        self._pieces.clear()
        if not arrived or self._is_done():
            return
        try:
            self._ended = _take(self._events.push(arrived), self._answer, self._deliverer)
        except EventTooLongError as error:
            self._failure = RefusalError(Refusal(str(error)))
        except Exception as error:
            self._failure = error
        if self._reporter is not None:
            self._reporter.note()
        if self._is_done():
            wanted = self._failure is None and not self._answer.too_long
            self._limit.reschedule(asyncio.get_running_loop().time() + (_LONGEST_END if wanted else 0))


def _take(events: list[ServerSentEvent], answer: ResponseStream, deliverer: Deliverer | None) -> bool:
    """Process events; return whether the last one was among them. Raise `RefusalError` for an error in place of an
    answer.
    """
    documents: list[Json] = []
    for event in events:
        if event.data.strip() == b"[DONE]":
            _take_documents(documents, answer, deliverer)
            answer.whole = True
            return True
        found = [document for read in _documents(event) for document in answer.documents(read)]
        if event.name == "error":
            _take_documents(documents, answer, deliverer)
            _take_documents(found, answer, deliverer, event.name)
            documents = []
        else:
            documents += found
    _take_documents(documents, answer, deliverer)
    return answer.too_long


def _take_documents(
    documents: list[Json], answer: ResponseStream, deliverer: Deliverer | None, event: str = ""
) -> None:
    for document in join_chunks(documents):
        if (refusal := refusal_of(None, document, event=event)) is not None:
            raise RefusalError(refusal)
        closed = answer.take(document)
        if closed and deliverer is not None:
            deliverer.add(mask_value(closed))


def _documents(event: ServerSentEvent) -> list[Json]:
    """Return an event's JSON documents, one for the event or one for each line; text if the event is an error, else
    nothing.
    """
    try:
        return [from_json(event.data)]
    except ValueError:
        text = event.data.decode(errors="replace")
    documents: list[Json] = []
    for each in dict.fromkeys([text, *text.split("\n")]):  # half a character is JSON to this parser alone
        try:
            documents.append(json.loads(each))
        except (ValueError, RecursionError):
            continue
        if each == text:
            break
    return documents or ([text] if event.name == "error" else [])
