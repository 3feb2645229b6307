"""Health of a worker: `/livez`, `/readyz`, runs that it cannot replay, and gauges."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.common import MetricMeter, SearchAttributeKey
from temporalio.service import RPCError, RPCStatusCode

from perdure.approvals.requests import WaitingMemo
from perdure.errors import SettingsError
from perdure.hosting.worker_group import WorkerGroup
from perdure.queries import UNANSWERED, read_memo
from perdure.runs.metrics import METRICS
from perdure.runs.wire import AGENT_WORKFLOW, WAITING_ATTRIBUTE, WAITING_MEMO

MOST_UNREPLAYABLE: Final = 100
"""Unreplayable runs that are remembered: the last ones."""
_runs: dict[str, None] = {}


def note(run_id: str) -> None:
    """Remember a run whose history does not match this worker's workflow code."""
    _runs.pop(run_id, None)
    _runs[run_id] = None
    if len(_runs) > MOST_UNREPLAYABLE:
        del _runs[next(iter(_runs))]


def forget(run_id: str) -> None:
    """Forget a run that has since been replayed, or has ended."""
    _runs.pop(run_id, None)


def words() -> str | None:
    """Return the number of unreplayable runs and the id of the last one; `None` without such runs."""
    if not _runs:
        return None
    return f"cannot replay {len(_runs):,} {'run' if len(_runs) == 1 else 'runs'}, the last {next(reversed(_runs))}"


CHECK_INTERVAL: Final = 5.0
"""Seconds between checks of the server. A check is not a billable Action."""
_AT_FIRST: Final = 0.2
"""The same, in seconds, until the server has seen the worker poll."""
_TIMEOUT: Final = timedelta(seconds=5)
_PATIENCE: Final = 5.0
"""Seconds in which a client must send its request line."""
_LINES: Final = 16_384
"""The most bytes of a request that are read."""
_MAY_NOT_ASK: Final = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED)
_log: Final = logging.getLogger("perdure.worker")


class Health:
    """The health of one worker. The code that ends the worker sets `draining`. `on_return` is called when a lost server
    is back, because it may be another server.
    """

    def __init__(
        self,
        client: Client,
        worker: WorkerGroup,
        *,
        tools_only: bool = False,
        on_return: Callable[[], None] = lambda: None,
    ) -> None:
        self.draining = False
        self._on_return = on_return
        self._client = client
        self._worker = worker
        kind = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY if tools_only else TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
        self._request = DescribeTaskQueueRequest(
            namespace=client.namespace, task_queue=TaskQueue(name=worker.task_queue), task_queue_type=kind
        )
        self._problem: str | None = "not polling yet"
        self._lost_at: float | None = None

    @property
    def problem(self) -> str | None:
        """The reason why the worker is not ready; `None` if it is ready."""
        if self.draining:
            return "draining"
        return self._problem if self._worker.is_running else "the worker is not running"

    async def watch(self) -> None:
        """Check the server until cancelled, and log when it is lost and when it is back."""
        while True:
            await self.look()
            await asyncio.sleep(_AT_FIRST if self._problem and self._lost_at is None else CHECK_INTERVAL)

    async def look(self) -> None:
        """Check once whether the server answers and has seen this worker poll."""
        service = self._client.workflow_service
        try:
            answer = await service.describe_task_queue(self._request, retry=False, timeout=_TIMEOUT)
            polls = any(poller.identity == self._client.identity for poller in answer.pollers)
        except RPCError as error:
            if error.status is RPCStatusCode.RESOURCE_EXHAUSTED:
                return  # the server answers: the namespace is at its rate limit
            if error.status not in _MAY_NOT_ASK:
                self._note_lost(error)
                return
            polls = True  # it answers, but does not list pollers
        if self._problem is not None and polls:
            self._note_polls()

    def _note_lost(self, error: RPCError) -> None:
        if self._lost_at is None:
            self._lost_at = time.monotonic()
            _log.warning("lost the server", extra={"perdure": {"status": error.status.name}})
        answers = error.status not in UNANSWERED
        self._problem = f"the server answers {error.status.name}" if answers else "the server does not answer"

    def _note_polls(self) -> None:
        fields = {"address": self._client.service_client.config.target_host}
        if self._lost_at is None:
            _log.info("connected: polls", extra={"perdure": fields})
        else:
            self._on_return()
            seconds = round(time.monotonic() - self._lost_at, 1)
            _log.info("the server answers again: polling", extra={"perdure": {**fields, "seconds": seconds}})
        self._problem = self._lost_at = None

    @asynccontextmanager
    async def served(self, port: int | None) -> AsyncIterator[None]:
        """Serve health requests on this port of all addresses while the context lasts; `None`: do not serve. Raises `SettingsError`."""
        if port is None:
            yield
            return
        try:
            server = await asyncio.start_server(self._answer, None, port, limit=_LINES)
        except (OSError, OverflowError) as error:
            raise SettingsError(
                f"health cannot be served on port {port}: {error}; give another port with --health-port"
            ) from None
        async with server:
            yield

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self.response(head.split(b"\r\n", 1)[0].decode("latin-1")))
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, OSError):
            pass  # the client has closed the connection, or sent something else
        finally:
            writer.close()

    @staticmethod
    def _ready() -> str:
        """Return the answer of a ready worker. It names runs that the worker cannot replay; these do not make the worker unready."""
        lacking = words()
        return "ready" if lacking is None else f"ready; {lacking}"

    def response(self, request: str) -> bytes:
        """Answer the first line of a request."""
        method, _, rest = request.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        status, words = "200 OK", "ok"
        if method not in ("GET", "HEAD"):
            status = words = "405 Method Not Allowed"
        elif path == "/readyz":
            problem = self.problem
            status, words = ("200 OK", self._ready()) if problem is None else ("503 Service Unavailable", problem)
        elif path != "/livez":
            status = words = "404 Not Found"
        body = f"{words}\n".encode()
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if method == "HEAD" else body)


GAUGE_INTERVAL: Final = 60.0
"""Seconds between two updates of the gauges."""
MOST_WAITING: Final = 10_000
"""The most runs that one update reads."""
_QUERY: Final = f"WorkflowType = '{AGENT_WORKFLOW}' AND ExecutionStatus = 'Running' AND {WAITING_ATTRIBUTE} > 0"
_WAITING: Final = SearchAttributeKey.for_int(WAITING_ATTRIBUTE)


async def look(client: Client) -> tuple[int, float]:
    """Return the number of waiting approval requests in the namespace, and the age of the oldest one in seconds or 0."""
    count, oldest, now = 0, 0.0, datetime.now(UTC)
    async for run in client.list_workflows(_QUERY, limit=MOST_WAITING):
        memo = await read_memo(run, WAITING_MEMO, WaitingMemo(agent="", calls=[]), WaitingMemo)
        count += run.typed_search_attributes.get(_WAITING) or 0
        for entry in memo.calls:
            oldest = max(oldest, (now - datetime.fromisoformat(entry.requested_at)).total_seconds())
    return count, oldest


async def export_waiting(client: Client, meter: MetricMeter) -> None:
    """Update the gauges until cancelled. Export nothing if the namespace cannot list waiting runs."""
    names = ("perdure_approvals_waiting", "perdure_approvals_oldest_seconds")
    waiting, oldest = (meter.create_gauge_float(name, METRICS[name].help) for name in names)
    attributes = {"namespace": client.namespace}
    while True:
        with contextlib.suppress(RPCError):
            count, seconds = await look(client)
            waiting.set(float(count), attributes)
            oldest.set(seconds, attributes)
        await asyncio.sleep(GAUGE_INTERVAL)
