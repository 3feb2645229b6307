"""The activities of hooks: all of one event at one point together, recorded once; and which of a session's the worker has."""

from __future__ import annotations

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.asking import ask_run
from perdure.activities.heartbeats import supervised_heartbeat
from perdure.activities.hooks.calling import call_hooks
from perdure.activities.hooks.registered import HookRegistry
from perdure.activities.secrets import masked_value
from perdure.activities.underway.elsewhere import others_poll
from perdure.hooks.answers import told
from perdure.hooks.table import HOOKS
from perdure.hooks.wire import (
    HOOK_ACTIVITY,
    HOOK_QUERY,
    NO_SUCH_HOOK,
    SESSION_HOOKS_ACTIVITY,
    HookAnswer,
    HookInput,
    HookRef,
)
from perdure.values.jsons import JsonObject


class HookActivity:
    """`registry`: the worker's."""

    def __init__(self, registry: HookRegistry) -> None:
        self._registry = registry

    @activity.defn(name=HOOK_ACTIVITY)
    async def run(self, wanted: HookInput) -> HookAnswer:
        """What the hooks make of the event. Nothing that a hook does makes it fail; where this worker lacks one, another is asked for."""
        lacking = self._registry.lacking(wanted.hooks)
        if lacking and await others_poll():
            words = f"this worker has no hook {lacking[0].name!r}"
            raise ApplicationError(words, type=NO_SUCH_HOOK)
        async with supervised_heartbeat():
            given = wanted.given
            if given is None:
                asked: JsonObject = await ask_run(HOOK_QUERY, wanted.key, JsonObject)
                given = asked
            try:
                event = HOOKS[wanted.event].event.model_validate(given)
            except (KeyError, ValueError) as error:
                raise ApplicationError(
                    f"no event that this version knows: {error}", type="unknown_event", non_retryable=True
                ) from None
            hearing = await call_hooks(self._registry, wanted.hooks, event)
        answer: HookAnswer = HookAnswer.model_validate(masked_value(told(event, hearing).as_json()))
        return answer

    @activity.defn(name=SESSION_HOOKS_ACTIVITY)
    async def of_sessions(self) -> list[HookRef]:
        """What an execution of a session records."""
        return self._registry.recorded("session")
