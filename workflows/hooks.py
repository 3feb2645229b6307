"""Hooks of runs, calls, and sessions: one activity for each event and point."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, TypeAlias

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from perdure.workflows.dispatch import Dispatcher
from perdure.workflows.failures import kind_of, message_of
from perdure.workflows.internal_activities import RETRY_ON_OTHER_WORKERS, execute_internal
from perdure.workflows.observability import now, observe

with workflow.unsafe.imports_passed_through():
    from perdure.approvals.requests import ApprovalRequest
    from perdure.errors import CallError
    from perdure.hooks.answers import AFTER, BEFORE, PERSIST, Hooks, answer_without_hook, withheld_words
    from perdure.hooks.events import (
        HOOK_ACTIVITY,
        NO_SUCH_HOOK,
        REFUSED_BY_HOOK,
        AfterToolCall,
        AgentBootstrap,
        AgentEnd,
        BeforeAgentStart,
        BeforeToolCall,
        HookAnswer,
        HookEvent,
        HookInput,
        HookProblem,
        HookRef,
        ToolResultPersist,
    )
    from perdure.models.dialects.output_text import text_of
    from perdure.plan import Call, Failed, Outcome, Returned
    from perdure.runs import metrics
    from perdure.runs.agent import with_system_text
    from perdure.runs.claim_check import GONE, Payload
    from perdure.runs.request_loop import RequestLoop
    from perdure.runs.run import RunState
    from perdure.runs.version_switches import HOOKS_SEE_ANSWERS, PERSISTS_IN_SESSIONS
    from perdure.runs.views import summary as line
    from perdure.runs.wire import PreparedWorker, RunInput, RunResult
    from perdure.tools.invocation import CallHookRefs
    from perdure.tools.tool import ENGINE_ACTIVITIES, SLEEP_UNTIL, Tool, known_as
    from perdure.values.json import Json, JsonObject, dumps
    from perdure.values.limits import INLINE
    from perdure.values.provenance import without_code


AT_ONCE: Final = 50
"""Points of an execution at which hooks run at once: their activities count beside those of the calls (R18.2)."""
_MARGIN: Final = 5.0
"""Seconds that an attempt has beyond its hooks' timeouts, so that a hung hook is reported, and not its activity."""
_LONG: Final = 30.0
"""Seconds from which on heartbeats detect a lost worker."""


class ExecutionHooks:
    """The hooks of one execution, once it knows which were recorded.

    `note` notes a refusal or a failure for readers: `refused` or `failed`, event, hook, call, reason.
    """

    def __init__(self, note: Callable[[str, str, str, str, str], None] | None = None) -> None:
        self.hooks = Hooks()
        self._note = note
        self._events: dict[str, HookEvent] = {}
        """Events under way that were too large to be sent, by key."""
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def ask(
        self,
        name: str,
        event: Callable[[], HookEvent],
        tools: Sequence[str] = (),
        *holds: Json,
        sender: Dispatcher | None = None,
    ) -> HookAnswer | None:
        """Return the answer of an event's hooks; `None` if there are none.

        `holds` are its values that may be large. The run's `sender` measures each once, so that this task encodes no
        large value (R18.1), and waits for room. Raise only a cancellation.
        """
        if not (wanted := self.hooks.of(name, tools)):
            return None
        async with self._slots:
            hook_event = event()
            size = 0 if sender is None else sum(map(sender.sizes.of, holds))
            answer = await self._ask(wanted, hook_event, size, sender)
        call = getattr(hook_event, "call", "")
        for problem in answer.failed:
            self.observe_failure(name, problem, call)
        if answer.refused is not None:
            hook = answer.by[-1] if answer.by else ""
            observe(metrics.hook_refused(name, hook))
            self._observe("refused", name, hook, call, answer.refused)
        return answer

    def observe_failure(self, name: str, problem: HookProblem, call: str) -> None:
        """Record that a hook has failed and was ignored."""
        observe(metrics.hook_failed(name, problem.hook))
        self._observe("failed", name, problem.hook, call, problem.problem)

    def _observe(self, what: str, name: str, hook: str, call: str, why: str) -> None:
        if self._note is not None and name != END:  # a run records nothing after its end
            self._note(what, name, hook, call, why)

    async def _ask(self, wanted: list[HookRef], event: HookEvent, size: int, sender: Dispatcher | None) -> HookAnswer:
        key, event_json = event.key, None if size > INLINE else event.as_json()
        size = len(dumps(event_json).encode(errors="surrogatepass"))
        event_json = None if size > INLINE else event_json
        if sender is not None:
            await sender.room(0 if event_json is None else size)
        seconds = sum(hook.timeout for hook in wanted) + _MARGIN
        if event_json is None:
            self._events[key] = event
        try:
            # A hook's own error is data, and is never retried.
            answer: HookAnswer = await execute_internal(
                HOOK_ACTIVITY,
                [HookInput(event=wanted[0].event, hooks=wanted, key=key, given=event_json)],
                HookAnswer,
                timeout=timedelta(seconds=seconds),
                retry_policy=RETRY_ON_OTHER_WORKERS,
                heartbeat=timedelta(seconds=_LONG) if seconds > _LONG else None,
                summary=line(f"{wanted[0].event} {key.rpartition('/')[2]}: {', '.join(hook.name for hook in wanted)}"),
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            gone = kind_of(error) == NO_SUCH_HOOK
            words = "is missing: no worker has it" if gone else f"could not be called: {message_of(error)}"
            return answer_without_hook(wanted, words)
        finally:
            self._events.pop(key, None)
        return answer

    def payload(self, key: str) -> Payload:
        """Return the event by its key, while hooks are called with it."""
        event = self._events.get(key)
        return GONE if event is None else Payload(event.as_json())


START: Final = "before_agent_start"
BOOTSTRAP: Final = "agent_bootstrap"
END: Final = "agent_end"


async def apply_start_hooks(hooking: ExecutionHooks, run_input: RunInput, agent: str, system: str) -> RunInput | None:
    """Return the run's input where a hook has changed it or its `system` text, else `None`.

    Fail with `refused_by_hook` where a hook refuses.
    """
    run_id = workflow.info().workflow_id
    answer = await hooking.ask(
        START,
        lambda: BeforeAgentStart(
            **run_input.whose.model_dump(),
            key=f"{run_id}/{START}",
            at=now(),
            run_id=run_id,
            agent=agent,
            input=run_input.input,
            system=system,
            above=run_input.lineage,
        ),
    )
    if answer is None:
        return None
    if answer.refused is not None:
        raise ApplicationError(answer.refused, type=REFUSED_BY_HOOK, non_retryable=True)
    if answer.changed is None:
        return None
    if (text := answer.changed.get("system", system)) != system:
        run_input = run_input.model_copy(update={"agent": with_system_text(run_input.agent, text)})
    if dumps(answer.changed["input"]) == dumps(run_input.input):
        return run_input
    # A hook has seen all of the input: each value that it returns may come from any of the input's sources (R15.1).
    read_sources = {reference: names for reference, names in run_input.sources.items() if not _of_input(reference)}
    mixed = sorted({name for reference, names in run_input.sources.items() if _of_input(reference) for name in names})
    sources = {**read_sources, **({"†input": mixed} if mixed else {})}
    return run_input.model_copy(update={"input": answer.changed["input"], "has_input": True, "sources": sources})


async def bootstrap(
    hooking: ExecutionHooks, run_input: RunInput, agent: str, prepared: PreparedWorker
) -> PreparedWorker:
    """Return the worker's record, with the prompt's files as hooks have changed them.

    Hooks see the files once for each run, so that the files stay the same over continue-as-new too (R10.19). Fail with
    `refused_by_hook` where a hook refuses.
    """
    run_id = workflow.info().workflow_id
    answer = await hooking.ask(
        BOOTSTRAP,
        lambda: AgentBootstrap(
            **run_input.whose.model_dump(),
            key=f"{run_id}/{BOOTSTRAP}",
            at=now(),
            run_id=run_id,
            agent=agent,
            files={file.name: file.text for file in prepared.prompt.files},
        ),
    )
    if answer is None:
        return prepared
    if answer.refused is not None:
        raise ApplicationError(answer.refused, type=REFUSED_BY_HOOK, non_retryable=True)
    if answer.changed is None:
        return prepared
    return prepared.model_copy(update={"prompt": prepared.prompt.with_files(answer.changed["files"])})


async def call_end_hooks(
    hooking: ExecutionHooks,
    run: RunState,
    sender: Dispatcher,
    result: RunResult | None = None,
    error: BaseException | None = None,
) -> None:
    """Report a run's end, with its result or its error."""
    run_id, usage = workflow.info().workflow_id, run.progress.usage
    status = "completed" if error is None else "cancelled" if is_cancelled_exception(error) else "failed"
    messages: list[JsonObject] = run.conversation.last_messages() if hooking.hooks.of(END) else []
    if result is not None and result.output is not None:
        messages.append({"role": "assistant", "content": text_of(result.output)})
    await hooking.ask(
        END,
        lambda: AgentEnd(
            **run.identity.owner.model_dump(),
            key=f"{run_id}/{END}",
            at=now(),
            run_id=run_id,
            agent=run.agent.name,
            above=run.lineage[:-1],
            status=status,
            output=None if result is None else result.output,
            stop_reason=run.output.stop_reason if run.limits.reached is None else run.limits.reached.reason,
            error=error.message if isinstance(error, ApplicationError) and status == "failed" else None,
            requests=len(run.records.past.log),
            tokens=usage.prompt_tokens + usage.completion_tokens,
            cost=usage.cost if usage.by_model else 0.0,
            messages=messages,
        ),
        (),
        None if result is None else result.output,
        [*messages],
        sender=sender,
    )


def _of_input(reference: str) -> bool:
    return reference == "†input" or reference.startswith(("†input.", "†input["))


AskPeople: TypeAlias = "Callable[[Call, ApprovalRequest], Awaitable[Outcome | None]]"


def of_run(run: RunState) -> dict[str, Any]:
    """Return the run's fields, which every event has."""
    return {**run.identity.owner.model_dump(), "agent": run.agent.name}


class CallHooks:
    """The hooks of one run's calls."""

    def __init__(
        self,
        run: RunState,
        hooking: ExecutionHooks,
        loop: RequestLoop,
        sender: Dispatcher,
        on_change: Callable[[], None],
    ) -> None:
        self._agent_run, self._hooking, self._loop, self._on_change = run, hooking, loop, on_change
        self._sender = sender
        self._rounds: dict[str, int] = {}

    def look_before(self, call: Call) -> bool:
        """Whether a hook must see the call before it runs."""
        return (
            call.spec.tool is not None
            and call.spec.loop is None
            and bool(self._hooking.hooks.of(BEFORE, known_as(call.spec.tool)))
        )

    async def passed(
        self, call: Call, approval_request: ApprovalRequest | None, ask: AskPeople
    ) -> tuple[Outcome | None, bool]:
        """Show the call to hooks, then `ask` where a person decides. Hooks see a person's edit again.

        Return its outcome, if it has one, and whether the call waited for a person.
        """
        seen: JsonObject | None = None
        was_requested = False
        while True:
            if self.look_before(call) and seen is not call.inputs.params:
                answer = await self._before(call, decided=was_requested)
                if answer is not None and not isinstance(answer, ApprovalRequest):
                    return answer, True
                approval_request, seen = answer, call.inputs.params
                self._on_change()
            if approval_request is None:
                return None, was_requested or seen is not None
            was_requested = True
            if (outcome := await ask(call, approval_request)) is not None:
                return outcome, True
            approval_request = None

    async def _before(self, call: Call, *, decided: bool) -> Outcome | ApprovalRequest | None:
        """Return the hooks' decision on a call; with `decided`, a person has decided on it, and perhaps edited it."""
        number = self._rounds[call.id] = self._rounds.get(call.id, 0) + 1
        usage = self._agent_run.progress.usage
        answer = await self._hooking.ask(
            BEFORE,
            lambda: BeforeToolCall(
                **self._of(call, BEFORE if number == 1 else f"{BEFORE}/{number}"),
                sources={name: sorted(map(without_code, each)) for name, each in call.inputs.origins.params.items()},
                tokens=usage.prompt_tokens + usage.completion_tokens,
                cost=usage.cost if usage.by_model else 0.0,
            ),
            known_as(call.spec.known_tool),
            call.inputs.params,
            sender=self._sender,
        )
        assert answer is not None
        return self._loop.let_pass(call, answer, now(), decided=decided)

    def of_results(self, tool: Tool) -> CallHookRefs | None:
        """Return the hooks that a tool's worker calls after the tool."""
        run, hooks = self._agent_run, self._hooking.hooks
        if not hooks:
            return None
        found = [
            *hooks.of(AFTER, known_as(tool)),
            *(hooks.of(PERSIST, known_as(tool)) if run.identity.in_session else []),
        ]
        if not found and not run.identity.in_session:
            return None
        of = {name: value for name, value in of_run(run).items() if name != "context"}  # in the call's input
        return CallHookRefs(hooks=found, of=of, records=run.identity.in_session)

    def unheard(self, call: Call, problems: Sequence[HookProblem]) -> None:
        """Record failures of hooks that the call's worker has ignored."""
        for problem in problems:
            self._hooking.observe_failure(AFTER, problem, call.id)

    async def after(self, call: Call, outcome: Outcome) -> Outcome:
        """Return the outcome of a call after hooks saw its result; on a worker, that worker called them for a
        successful call.
        """
        if call.spec.tool is None or call.spec.loop is not None or not isinstance(outcome, Returned | Failed):
            return outcome
        if isinstance(outcome, Failed) and outcome.error.code == REFUSED_BY_HOOK:
            return outcome
        if isinstance(outcome, Returned) and self._on_worker(call.spec.tool):
            return outcome
        if (ended := await self._after(call, outcome)) is not outcome:
            outcome = ended
        persists = self._agent_run.identity.in_session or not self._agent_run.prepared.follows(PERSISTS_IN_SESSIONS)
        if isinstance(outcome, Returned) and persists:
            await self._persist(call, outcome)
        return outcome

    async def _after(self, call: Call, outcome: Returned | Failed) -> Returned | Failed:
        result: dict[str, Any] = (
            {"result": outcome.value}
            if isinstance(outcome, Returned)
            else {"status": "failed", "error": outcome.error.code, "message": outcome.error.message}
        )
        answer = await self._hooking.ask(
            AFTER,
            lambda: AfterToolCall(**self._of(call, AFTER), **result, attempt=call.state.attempts),
            known_as(call.spec.known_tool),
            call.inputs.params,
            result.get("result"),
            sender=self._sender,
        )
        if answer is None or (answer.refused is None and answer.changed is None):
            return outcome
        if isinstance(outcome, Failed):
            words = answer.refused or str((answer.changed or {})["message"])
            return replace(outcome, error=CallError(outcome.error.code, words))
        if answer.refused is not None:
            words = withheld_words(call.spec.tool_name, answer.refused)
            return Failed(CallError(REFUSED_BY_HOOK, words), outcome.sources, carried_out=True)
        return replace(outcome, value=(answer.changed or {})["result"])

    async def _persist(self, call: Call, outcome: Returned) -> None:
        answer = await self._hooking.ask(
            PERSIST,
            lambda: ToolResultPersist(**self._of(call, PERSIST), result=outcome.value),
            known_as(call.spec.known_tool),
            call.inputs.params,
            outcome.value,
            sender=self._sender,
        )
        if answer is not None and answer.refused is not None:
            call.state.kept = [f"[withheld: {answer.refused}]"]
        elif answer is not None and answer.changed is not None:
            call.state.kept = [answer.changed["result"]]

    def _of(self, call: Call, point: str) -> dict[str, Any]:
        run_id = workflow.info().workflow_id
        code = known_as(call.spec.known_tool)[-1]
        return {
            **of_run(self._agent_run),
            "key": f"{run_id}/{call.id}/{point}",
            "at": now(),
            "run_id": run_id,
            "call": call.id,
            "tool": call.spec.known_tool.name,
            "code": code,
            "params": call.inputs.params,
        }

    def _on_worker(self, tool: Tool) -> bool:
        """Whether the tool's code runs on a worker of Perdure."""
        sees_answers = self._agent_run.prepared.follows(HOOKS_SEE_ANSWERS)
        elsewhere = ENGINE_ACTIVITIES if sees_answers else {SLEEP_UNTIL}
        return not (tool.latent or tool.delegate is not None or tool.calls is not None or tool.activity in elsewhere)
