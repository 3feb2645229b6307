"""Hooks of a run's calls: before somebody is asked about one, and when it has run (R10.17)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from temporalio import workflow

from perdure.workflows.hooks.hooking import Hooking
from perdure.workflows.sending import Sender

with workflow.unsafe.imports_passed_through():
    from perdure.errors import CallError
    from perdure.hooks.answers import WITHHELD
    from perdure.hooks.events import AfterToolCall, BeforeToolCall, ToolResultPersist
    from perdure.hooks.matching import AFTER, BEFORE, PERSIST
    from perdure.hooks.wire import REFUSED_BY_HOOK, HookProblem
    from perdure.people.offers import Offer
    from perdure.plan.calls import Call
    from perdure.plan.outcomes import Failed, Outcome, Returned
    from perdure.run.inner import InnerLoop
    from perdure.run.running import Run
    from perdure.tools.names import known_as
    from perdure.tools.tool import SLEEP_UNTIL, Tool
    from perdure.tools.wire import HooksOfCall
    from perdure.values.jsons import JsonObject

Ask: TypeAlias = "Callable[[Call, Offer], Awaitable[Outcome | None]]"


def of_run(run: Run) -> dict[str, str]:
    """What every event says of the run that it is of."""
    return {**run.whose.model_dump(), "agent": run.agent.name}


class CallHooks:
    """Those of the calls of one run."""

    def __init__(
        self, run: Run, hooking: Hooking, loop: InnerLoop, sender: Sender, on_change: Callable[[], None]
    ) -> None:
        self._agent_run, self._hooking, self._loop, self._on_change = run, hooking, loop, on_change
        sender.hooks_of, sender.unheard = (self.of_results if hooking.hooks else None), self.unheard
        self._rounds: dict[str, int] = {}

    def look_before(self, call: Call) -> bool:
        """Whether a hook is to see the call before it is made."""
        return call.tool is not None and call.loop is None and bool(self._hooking.hooks.of(BEFORE, known_as(call.tool)))

    async def passed(self, call: Call, offer: Offer | None, ask: Ask) -> tuple[Outcome | None, bool]:
        """Let hooks see the call, then `ask` where somebody is to be asked; what a person has changed, hooks see again.

        Its outcome if that is all, and whether it was put off for it.
        """
        seen: JsonObject | None = None
        was_offered = False
        while True:
            if self.look_before(call) and seen is not call.params:
                said = await self._before(call, decided=was_offered)
                if said is not None and not isinstance(said, Offer):
                    return said, True
                offer, seen = said, call.params
                self._on_change()
            if offer is None:
                return None, was_offered or seen is not None
            was_offered = True
            if (outcome := await ask(call, offer)) is not None:
                return outcome, True
            offer = None

    async def _before(self, call: Call, *, decided: bool) -> Outcome | Offer | None:
        """What becomes of the call; `decided`: a person has, and it is as that person has changed it."""
        assert call.tool is not None
        number = self._rounds[call.id] = self._rounds.get(call.id, 0) + 1
        usage = self._agent_run.progress.usage
        answer = await self._hooking.ask(
            BEFORE,
            lambda: BeforeToolCall(
                **self._of(call, BEFORE if number == 1 else f"{BEFORE}/{number}"),
                sources={name: sorted(each) for name, each in call.origins.params.items()},
                tokens=usage.prompt_tokens + usage.completion_tokens,
                cost=usage.cost if usage.by_model else 0.0,
            ),
            known_as(call.tool),
            call.params,
            sizes=self._agent_run.sizes,
        )
        assert answer is not None
        return self._loop.let_pass(call, answer, workflow.now().isoformat(timespec="milliseconds"), decided=decided)

    def of_results(self, tool: Tool) -> HooksOfCall | None:
        """What the worker of a tool is to call when it has run."""
        run, hooks = self._agent_run, self._hooking.hooks
        found = [*hooks.of(AFTER, known_as(tool)), *(hooks.of(PERSIST, known_as(tool)) if run.records else [])]
        if not found and not run.records:
            return None
        return HooksOfCall(hooks=found, of=of_run(run), records=run.records)

    def unheard(self, call: Call, problems: Sequence[HookProblem]) -> None:
        """Hooks that its worker has gone past."""
        for problem in problems:
            self._hooking.tell_failed(AFTER, problem, call.id)

    async def after(self, call: Call, outcome: Outcome) -> Outcome:
        """How a call ends by what hooks say of its result: those of a call on a worker were called there, where it came to one."""
        if call.tool is None or call.loop is not None or not isinstance(outcome, Returned | Failed):
            return outcome
        if isinstance(outcome, Failed) and outcome.error.code == REFUSED_BY_HOOK:
            return outcome
        if isinstance(outcome, Returned) and _on_worker(call.tool):
            return outcome
        if (ended := await self._after(call, outcome)) is not outcome:
            outcome = ended
        if isinstance(outcome, Returned) and self._agent_run.records:
            await self._persist(call, outcome)
        return outcome

    async def _after(self, call: Call, outcome: Returned | Failed) -> Returned | Failed:
        assert call.tool is not None
        result: dict[str, Any] = (
            {"result": outcome.value}
            if isinstance(outcome, Returned)
            else {"status": "failed", "error": outcome.error.code, "message": outcome.error.message}
        )
        answer = await self._hooking.ask(
            AFTER,
            lambda: AfterToolCall(**self._of(call, AFTER), **result, attempt=call.attempts),
            known_as(call.tool),
            call.params,
            result.get("result"),
            sizes=self._agent_run.sizes,
        )
        if answer is None or (answer.refused is None and answer.changed is None):
            return outcome
        if isinstance(outcome, Failed):
            words = answer.refused or str((answer.changed or {})["message"])
            return replace(outcome, error=CallError(outcome.error.code, words))
        if answer.refused is not None:
            words = f"{call.tool_name} {WITHHELD}: {answer.refused}"
            return Failed(CallError(REFUSED_BY_HOOK, words), outcome.sources)
        return replace(outcome, value=(answer.changed or {})["result"])

    async def _persist(self, call: Call, outcome: Returned) -> None:
        assert call.tool is not None
        answer = await self._hooking.ask(
            PERSIST,
            lambda: ToolResultPersist(**self._of(call, PERSIST), result=outcome.value),
            known_as(call.tool),
            call.params,
            outcome.value,
            sizes=self._agent_run.sizes,
        )
        if answer is not None and answer.refused is not None:
            call.kept = [f"[withheld: {answer.refused}]"]
        elif answer is not None and answer.changed is not None:
            call.kept = [answer.changed["result"]]

    def _of(self, call: Call, point: str) -> dict[str, Any]:
        assert call.tool is not None
        run_id = workflow.info().workflow_id
        code = known_as(call.tool)[-1]
        return {
            **of_run(self._agent_run),
            "key": f"{run_id}/{call.id}/{point}",
            "at": workflow.now().isoformat(timespec="milliseconds"),
            "run_id": run_id,
            "call": call.id,
            "tool": call.tool.name,
            "code": code,
            "params": call.params,
        }


def _on_worker(tool: Tool) -> bool:
    """Whether the tool's code is a worker's, called by Perdure."""
    return not (tool.latent or tool.delegate is not None or tool.calls is not None or tool.activity == SLEEP_UNTIL)
