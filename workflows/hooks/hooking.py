"""The hooks of one execution: what they are given, and what they have said. Without hooks nothing of this costs anything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Final

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

from perdure.workflows.failures import kind_of, message_of
from perdure.workflows.observing import tell

with workflow.unsafe.imports_passed_through():
    from perdure.hooks.answers import unanswered
    from perdure.hooks.events import HookEvent
    from perdure.hooks.matching import Hooks
    from perdure.hooks.wire import HOOK_ACTIVITY, HOOK_QUERY, NO_SUCH_HOOK, HookAnswer, HookInput, HookProblem, HookRef
    from perdure.run.views import observing
    from perdure.run.views.markdown import summary as line
    from perdure.values.jsons import Json, JsonObject, dumps
    from perdure.values.limits import INLINE
    from perdure.values.limits.sizes import Sizes

ANOTHER_WITHIN: Final = timedelta(minutes=1)
"""For which other workers are asked whether they have a hook, and one that was lost is waited for."""
AT_ONCE: Final = 50
"""Points of an execution at which hooks are under way: their activities count beside those of the calls (R18.2)."""
_MARGIN: Final = 5.0
"""Seconds that an attempt has beside its hooks' own, so that they are told to have hung, and not their activity."""
_LONG: Final = 30.0
"""Seconds from which on a lost worker is noticed by heartbeats."""
_ASK_AROUND: Final = RetryPolicy(initial_interval=timedelta(seconds=0.25), maximum_interval=timedelta(seconds=2))
"""What a hook does is data and is never tried again; what is, is a lost worker, or one that lacks the hook."""


class Hooking:
    """One execution's, once it knows which hooks were recorded."""

    def __init__(self) -> None:
        self.hooks = Hooks()
        self.room: Callable[[int], Awaitable[None]] | None = None
        """Waited for before so many bytes are sent."""
        self.note: Callable[[str, str, str, str, str], None] | None = None
        """Told for whoever watches what was refused, or failed: `refused` or `failed`, event, hook, call, reason."""
        self._given: dict[str, HookEvent] = {}
        """By its key what is under way and was too large to be sent."""
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def ask(
        self,
        name: str,
        event: Callable[[], HookEvent],
        tools: Sequence[str] = (),
        *holds: Json,
        sizes: Sizes | None = None,
    ) -> HookAnswer | None:
        """What the hooks of an event say; `None`: there are none. `holds`: its values that may be large, which `sizes` measures once:
        what is large is not even encoded here (R18.1). Raises only what cancels it."""
        if not (wanted := self.hooks.of(name, tools)):
            return None
        async with self._slots:
            asked = event()
            size = 0 if sizes is None else sum(map(sizes.of, holds))
            answer = await self._ask(wanted, asked, size)
        call = getattr(asked, "call", "")
        for problem in answer.failed:
            self.tell_failed(name, problem, call)
        if answer.refused is not None:
            hook = answer.by[-1] if answer.by else ""
            tell(observing.hook_refused(name, hook))
            if self.note is not None:
                self.note("refused", name, hook, call, answer.refused)
        return answer

    def tell_failed(self, name: str, problem: HookProblem, call: str) -> None:
        """A hook has failed, and was gone past."""
        tell(observing.hook_failed(name, problem.hook))
        if self.note is not None:
            self.note("failed", name, problem.hook, call, problem.problem)

    async def _ask(self, wanted: list[HookRef], event: HookEvent, size: int) -> HookAnswer:
        key, given = event.key, None if size > INLINE else event.as_json()
        size = len(dumps(given).encode(errors="surrogatepass"))
        given = None if size > INLINE else given
        if self.room is not None:
            await self.room(0 if given is None else size)
        seconds = sum(hook.timeout for hook in wanted) + _MARGIN
        if given is None:
            self._given[key] = event
        try:
            answer: HookAnswer = await workflow.execute_activity(
                HOOK_ACTIVITY,
                HookInput(event=wanted[0].event, hooks=wanted, key=key, given=given),
                result_type=HookAnswer,
                start_to_close_timeout=timedelta(seconds=seconds),
                schedule_to_close_timeout=ANOTHER_WITHIN + timedelta(seconds=seconds),
                heartbeat_timeout=timedelta(seconds=_LONG) if seconds > _LONG else None,
                retry_policy=_ASK_AROUND,
                summary=line(f"{wanted[0].event} {key.rpartition('/')[2]}: {', '.join(hook.name for hook in wanted)}"),
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            gone = kind_of(error) == NO_SUCH_HOOK
            words = "is not there any more: no worker has it" if gone else f"could not be called: {message_of(error)}"
            return unanswered(wanted, words)
        finally:
            self._given.pop(key, None)
        return answer

    def given(self, key: str) -> JsonObject:
        """What is under way by this key. Raises `ValueError` where nothing is."""
        event = self._given.get(key)
        if event is None:
            raise ValueError("no hook waits for this")
        return event.as_json()


class Hooked:
    """The question of hooks that were not sent what they are given. `_hooking`: the execution's."""

    def __init__(self) -> None:
        super().__init__()
        self._hooking = Hooking()

    @workflow.query(name=HOOK_QUERY)
    def hook_given(self, *said: Any) -> dict[str, Any]:
        """What hooks are given at a point that is under way, by its key: asked by their activity (R18.2)."""
        return self._hooking.given(str(said[0]) if said else "")
