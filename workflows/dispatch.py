"""Dispatch: the room of a task and a history, the order of commands, and their task queues."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from temporalio import worker, workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

from perdure.workflows.arguments import read_one
from perdure.workflows.children import ChildRuns
from perdure.workflows.failures import not_taken_up
from perdure.workflows.internal_activities import LAST_WORKER_LACKED, execute_on_capable_worker, execute_typed
from perdure.workflows.resets import ends_former
from perdure.workflows.timers import Alarm

with workflow.unsafe.imports_passed_through():
    from perdure.plan import NO_SUCH_TOOL, Call
    from perdure.runs.claim_check import CHILD, GONE, GRANT, Payload
    from perdure.runs.loops import LoopInput
    from perdure.runs.run import RunState
    from perdure.runs.version_switches import ASKS_BY_ACTIVITY
    from perdure.runs.wire import GRANTED, LIMITED_ACTIVITY, NEXT_TASK_ACTIVITY, RunInput
    from perdure.tools.invocation import (
        Limited,
        SpaceClaim,
        SpaceGrant,
        ToolInput,
        ToolReads,
    )
    from perdure.tools.tool import QUEUE_TIMEOUT, Tool
    from perdure.values.json import Sent
    from perdure.values.limits import COMMAND, MAX_OPERATIONS, MAX_PAYLOAD, OVER, QUICK, SHORT_TASKS
    from perdure.values.sizes import HistoryBudget, QuickCalls, Sizes, TaskBudget, history_full


WAIT: Final = timedelta(seconds=QUEUE_TIMEOUT)
"""Time for a turn in such a queue; then the workers are asked whether they still have the queue."""


class Routing:
    """The task queues of one run. The worker's record from the run's start is valid until nobody polls such a queue."""

    def __init__(self, run: RunState) -> None:
        self._agent_run = run

    def model(self, model: str) -> str | None:
        """Return the queue of a limited model; `None` for the run's own."""
        return self._limited.of_model(workflow.info().task_queue, model)

    def tool(self, tool: Tool) -> str | None:
        """Return the queue of a limited tool; `None` for the queue of its other calls."""
        return self._limited.of_tool(tool.task_queue or workflow.info().task_queue, tool.activity or tool.name)

    async def lifted(self, error: ActivityError, tool: Tool | None = None) -> bool:
        """Whether to schedule an activity again whose turn has not come, on the queue that the workers name now.

        A tool of another queue has its own workers, which may be gone: it is scheduled again only if it is no longer
        limited.
        """
        if not not_taken_up(error):
            return False
        prepared = self._agent_run.prepared
        limited = await ask_limited(local=not prepared.follows(ASKS_BY_ACTIVITY))
        self._agent_run.prepared = self._agent_run.prepared.model_copy(update={"limited": limited})
        return tool is None or tool.task_queue is None or self.tool(tool) is None

    @property
    def _limited(self) -> Limited:
        return self._agent_run.prepared.limited


async def ask_limited(*, local: bool) -> Limited:
    """Return the rate limits of the workers as of now; `local` as for `ask_worker`."""
    found: Limited = await ask_worker(LIMITED_ACTIVITY, None, Limited, local=local)
    return found


_ANSWERS: Final = timedelta(seconds=30)
"""Time of one attempt of an activity that reads its worker's configuration."""


async def ask_worker(activity: str, argument: Any, result_type: type, *, local: bool, attempts: int = 0) -> Any:
    """Return a worker's answer, in at most so many attempts, 0 for any number.

    `local`: by a local activity, as 0.1.0 did. Where a query comes with a task, the SDK's core ends that task with the
    marker of the result, and returns the result in the next task. A replay returns it in the first one: commands then
    come in another order.
    """
    arguments = [] if argument is None else [argument]
    if local:
        return await workflow.execute_local_activity(
            activity,
            args=arguments,
            result_type=result_type,
            start_to_close_timeout=_ANSWERS,
            retry_policy=RetryPolicy(maximum_attempts=attempts),
        )
    policy = RetryPolicy(
        initial_interval=timedelta(seconds=0.25),
        maximum_interval=timedelta(seconds=2),
        maximum_attempts=attempts,
        non_retryable_error_types=[NO_SUCH_TOOL],
    )
    execute = functools.partial(
        execute_typed, activity, arguments, result_type, start_to_close_timeout=_ANSWERS, retry_policy=policy
    )
    return await execute_on_capable_worker(execute)


_SOON = timedelta(milliseconds=1)
_RINGS = timedelta(seconds=1)
"""Resolution of a server's timers."""
_BACK = timedelta(seconds=10)
_QUICK = timedelta(seconds=QUICK)
_COMES_WITHIN = timedelta(seconds=5)
"""Time for a result to arrive after its claim was granted."""


class Dispatcher:
    """The dispatcher of one execution: it counts bytes and commands.

    `sizes` has the sizes of its values, `max_payload` is the maximum of one value in bytes.
    """

    def __init__(
        self,
        sizes: Sizes,
        max_payload: int,
        children: ChildRuns,
        routing: Routing | None = None,
        on_retry: Callable[[Call, str], None] = lambda _call, _why: None,
        ends_former: Callable[[], bool] = ends_former,
        report_closed: Callable[[str], None] = lambda _run_id: None,
        *,
        time_is_known: bool = True,
        max_operations: int = MAX_OPERATIONS,
    ) -> None:
        """Create the dispatcher.

        `routing`: that of a run whose calls may go to queues of their own. `on_retry` learns of a call's retry, and of
        the reason. `ends_former` returns whether a child of before a reset is ended where it holds an id.
        `report_closed` learns of a child run that has ended and could not report anything.
        `time_is_known`: whether a replay has the same time in the current task. It may have another one behind a local activity, if a query
        came meanwhile.
        `max_operations`: Nexus operations that may run at a time.
        """
        self.sizes = sizes
        self.operations = asyncio.Semaphore(max_operations)
        """Places of the Nexus operations under way."""
        self.routing = routing
        """The routing to queues of calls that workers limit; `None`: there is none."""
        self.children = children
        self.max_payload = max_payload
        self.ends_former = ends_former
        self.report_closed = report_closed
        self._sending = TaskBudget()
        self._quick = QuickCalls()
        self._shifting_task = None if time_is_known else task_number()
        self._pause: asyncio.Task[None] | None = None
        self._history = HistoryBudget()
        self.on_retry = on_retry
        self.alarm = Alarm()
        """Alarm of all tasks that wait for a time in this execution."""
        self.turn = asyncio.Lock()
        """Lock of tasks that wait for `room`. A task that prepares a payload in its turn holds it, and reserves with
        `take`.
        """
        self._child_inputs: dict[str, tuple[RunInput | LoopInput, int]] = {}
        self._turning: asyncio.Task[None] | None = None

    async def room(self, size: int) -> None:
        """Wait until a command of so many bytes may be sent: now, or with a later task, in the order of calls to this."""
        async with self.turn:
            await self.take(size)

    async def take(self, size: int) -> None:
        """Reserve bytes as `room` does, for a task that holds the `turn`."""
        while not self._sending.take(task_number(), size, self._quick.count(self._time())):
            await self._next_task()

    async def take_call(self, size: int, least: int) -> bool:
        """Wait until a call may be scheduled. Return whether its input of `size` bytes is sent with it. If not, `least`
        bytes are sent, and the activity queries the input.
        """
        inline = self._sending.take_call(task_number(), size, self._quick.count(self._time()))
        if inline is None:
            await self.room(least)
        return bool(inline)

    def _time(self) -> float | None:
        """Return the time by which decisions go; `None` in a task where a replay may have another one."""
        return None if task_number() == self._shifting_task else workflow.time()

    async def _next_task(self) -> None:
        """Wait for the next task: a call's result or a timer starts it. A server fires a timer up to a second late."""
        if self._pause is None or self._pause.done():
            self._pause = asyncio.create_task(
                workflow.sleep(_QUICK, summary="the rest goes with one of the next tasks")
            )
        before = task_number()
        await workflow.wait_condition(lambda: task_number() != before)

    def keep_input(self, name: str, argument: RunInput | LoopInput, size: int) -> None:
        """Keep a child run's input of `size` bytes, which it will query, until it is settled."""
        self._child_inputs[name] = argument, size

    def payload(self, kind: str, name: str) -> Payload | None:
        """Return an unsent input of a child run, or the decision on a claim; `None` while the claim is undecided."""
        if kind == GRANT.name:
            granted = self._history.granted(name)
            return None if granted is None else Payload(granted)
        return Payload(*self._child_inputs[name]) if kind == CHILD.name and name in self._child_inputs else GONE

    def size_of(self, reads: ToolReads) -> int:
        """Return the bytes of a tool's input."""
        context = None if reads.owner is None else reads.owner.context
        return sum(map(self.sizes.of, (reads.call, reads.params, reads.definition, reads.messages, context)))

    def claim(self, claim: Sent[SpaceClaim]) -> None:
        """Record a `SpaceClaim` of an activity, or a child run, for a result above its share of the history (R18.4).

        It is decided when earlier results have arrived.
        """
        if (found := read_one(SpaceClaim, claim)) is not None:
            self._history.claim(found.call_id, found.size)
            self._decide()

    def free(self, call_id: str) -> int:
        """Return the bytes that the call's result may have without a claim. The call is under way until it is settled."""
        self._quick.begin(call_id, self._time())
        return self._history.free(call_id, _history_size())

    def holds_child(self) -> bool:
        """Whether the history has room for the start of a child, which this task has sent, and for the child's result."""
        sent = self._sending.bytes if self.max_payload <= MAX_PAYLOAD else COMMAND  # else it travels outside
        return self._history.holds(sent, _history_size())

    def settle(self, call_id: str) -> None:
        """Record that the call's result has arrived or will not arrive."""
        self._quick.end(call_id)
        self._history.settle(call_id)
        self._child_inputs.pop(call_id, None)
        if not isinstance(sys.exception(), GeneratorExit):  # then the run is only put out of memory
            self._decide()

    def _decide(self) -> None:
        self._take_turns()
        if self._history.turns and (self._turning is None or self._turning.done()):
            self._turning = asyncio.create_task(self._let_on())

    async def _let_on(self) -> None:
        """Grant later claims when a granted result does not arrive in time: its worker may be gone."""
        while self._history.turns:
            before = set(self._history.coming)
            await workflow.sleep(_COMES_WITHIN, summary="large results come one after the other")
            for call_id in before & set(self._history.coming):
                del self._history.coming[call_id]
            self._take_turns()

    def _take_turns(self) -> None:
        for call_id in self._history.decide(_history_size()):
            self.answer_claim(call_id)

    def answer_claim(self, call_id: str) -> None:
        """Signal the decision on its claim to the call's delegate, if it runs. Its claim may arrive before its start."""
        if (granted := self._history.granted(call_id)) is not None:
            self.children.signal_one(f"{workflow.info().workflow_id}/{call_id}", GRANTED, SpaceGrant(granted=granted))


def full_reason(part: float = OVER) -> str | None:
    """Return the reason why this execution's history has room for only a last Request; `None` while it has more
    (R18.4).
    """
    return history_full(workflow.info().get_current_history_length(), _history_size(), part)


async def next_task(run: RunState) -> None:
    """Wait for the next task. An activity starts it at once, where a timer takes up to a second; its result is ignored."""
    words = "what is left goes with the next task"
    if not run.prepared.follows(SHORT_TASKS):
        await workflow.sleep(_SOON, summary=words)
        return
    try:
        await workflow.execute_activity(
            NEXT_TASK_ACTIVITY,
            schedule_to_start_timeout=_RINGS,
            start_to_close_timeout=_BACK,
            retry_policy=RetryPolicy(maximum_attempts=1),
            summary=words,
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise


def task_number() -> int:
    """Return a number for the current workflow task: each task has a longer history than the one before."""
    return workflow.info().get_current_history_length()


def _history_size() -> int:
    return workflow.info().get_current_history_size()


class EagerStartInterceptor(worker.Interceptor):
    """An interceptor that disables eager start for activities that this worker may lack.

    A worker starts activities of its own workflow tasks "eagerly", which is fast. An activity that it lacks would fail
    each time.
    """

    def workflow_interceptor_class(self, _: worker.WorkflowInterceptorClassInput) -> type[_DispatchInbound]:
        return _DispatchInbound


class _DispatchInbound(worker.WorkflowInboundInterceptor):
    def init(self, outbound: worker.WorkflowOutboundInterceptor) -> None:
        super().init(_DispatchOutbound(outbound))


class _DispatchOutbound(worker.WorkflowOutboundInterceptor):
    def start_activity(self, input: worker.StartActivityInput) -> workflow.ActivityHandle[Any]:
        if LAST_WORKER_LACKED.get() or any(
            isinstance(argument, ToolInput) and argument.elsewhere for argument in input.args
        ):
            input.disable_eager_execution = True
        return super().start_activity(input)
