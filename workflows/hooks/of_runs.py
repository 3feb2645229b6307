"""Hooks of a run's beginning and its end (R10.17)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from temporalio import workflow
from temporalio.exceptions import ApplicationError, FailureError, is_cancelled_exception

from perdure.workflows.hooks.hooking import Hooking

with workflow.unsafe.imports_passed_through():
    from perdure.hooks.events import AgentBootstrap, AgentEnd, BeforeAgentStart
    from perdure.hooks.wire import REFUSED_BY_HOOK
    from perdure.model.dialects.saying import text_of
    from perdure.run.documents import with_system_text
    from perdure.run.running import Run
    from perdure.run.wire import Prepared, RunInput, RunResult
    from perdure.values.jsons import JsonObject, dumps

START: Final = "before_agent_start"
BOOTSTRAP: Final = "agent_bootstrap"
END: Final = "agent_end"


async def begin(hooking: Hooking, run_input: RunInput, agent: str, system: str) -> RunInput | None:
    """What the run is given instead, where a hook has changed its input or its `system` text. Fails with `refused_by_hook` where one refuses."""
    run_id = workflow.info().workflow_id
    answer = await hooking.ask(
        START,
        lambda: BeforeAgentStart(
            **run_input.whose.model_dump(),
            key=f"{run_id}/{START}",
            at=_now(),
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
    # A hook has seen all of it: whatever it gave may come from any of what the run above has told of it (R15.1).
    told = {reference: names for reference, names in run_input.sources.items() if not _of_input(reference)}
    mixed = sorted({name for reference, names in run_input.sources.items() if _of_input(reference) for name in names})
    sources = {**told, **({"†input": mixed} if mixed else {})}
    return run_input.model_copy(update={"input": answer.changed["input"], "has_input": True, "sources": sources})


async def bootstrap(hooking: Hooking, run_input: RunInput, agent: str, prepared: Prepared) -> Prepared:
    """What the worker recorded, with the files of the prompt as hooks have made them: once a run, so that they go along with it, over
    continue-as-new too (R10.19). Fails with `refused_by_hook` where one refuses."""
    run_id = workflow.info().workflow_id
    answer = await hooking.ask(
        BOOTSTRAP,
        lambda: AgentBootstrap(
            **run_input.whose.model_dump(),
            key=f"{run_id}/{BOOTSTRAP}",
            at=_now(),
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


async def ended(work: Coroutine[Any, Any, RunResult], hooking: Hooking, run: Callable[[], Run | None]) -> RunResult:
    """What the work gives, or raises; hooks are told that the run has ended. One that could not begin has no end, nor one that goes on as new."""
    try:
        result = await work
    except (FailureError, asyncio.CancelledError) as error:
        await _tell_end(hooking, run(), None, error)
        raise
    await _tell_end(hooking, run(), result)
    return result


async def _tell_end(
    hooking: Hooking, run: Run | None, result: RunResult | None, error: BaseException | None = None
) -> None:
    if run is None:
        return
    hooking.note = None  # nothing is noted of a run behind its end
    run_id, usage = workflow.info().workflow_id, run.progress.usage
    status = "completed" if error is None else "cancelled" if is_cancelled_exception(error) else "failed"
    messages: list[JsonObject] = run.last_messages() if hooking.hooks.of(END) else []
    if result is not None and result.output is not None:
        messages.append({"role": "assistant", "content": text_of(result.output)})
    await hooking.ask(
        END,
        lambda: AgentEnd(
            **run.whose.model_dump(),
            key=f"{run_id}/{END}",
            at=_now(),
            run_id=run_id,
            agent=run.agent.name,
            above=run.lineage[:-1],
            status=status,
            output=None if result is None else result.output,
            stop_reason=run.stop_reason if run.limit is None else run.limit.reason,
            error=error.message if isinstance(error, ApplicationError) and status == "failed" else None,
            requests=len(run.past.log),
            tokens=usage.prompt_tokens + usage.completion_tokens,
            cost=usage.cost if usage.by_model else 0.0,
            messages=messages,
        ),
        (),
        None if result is None else result.output,
        messages,
        sizes=run.sizes,
    )


def _of_input(reference: str) -> bool:
    return reference == "†input" or reference.startswith(("†input.", "†input["))


def _now() -> str:
    return workflow.now().isoformat(timespec="milliseconds")
