"""A worker's own policy for choosing the model, by `module:function` (R9.4)."""

from __future__ import annotations

from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.named import NamedFunctions
from perdure.run.choosing import Choice, ChooseInput
from perdure.run.wire import CHOOSE_ACTIVITY


class ChooseActivity:
    def __init__(self, functions: NamedFunctions) -> None:
        self._functions = functions

    @activity.defn(name=CHOOSE_ACTIVITY)
    async def choose(self, wanted: ChooseInput) -> Choice:
        """What the worker's own policy says; its answer is recorded, so a replay never asks again."""
        given = await self._functions.call(wanted.policy, "config.models.policy", wanted.situation)
        return read_choice(given, wanted)


def read_choice(given: Any, wanted: ChooseInput) -> Choice:
    """A policy may give a model, or model and reason; `fast` and `smart` stand for the agent's."""
    model, reason = (given, f"policy {wanted.policy}") if isinstance(given, str) else (None, None)
    if isinstance(given, tuple | list) and len(given) == 2:
        model, reason = given
    if not isinstance(model, str) or not isinstance(reason, str) or not model:
        message = f"config.models.policy {wanted.policy!r} gave {given!r}, but must give a model, or (model, reason)"
        raise ApplicationError(message, type="bad_policy", non_retryable=True)
    models = wanted.situation.models
    return Choice({"fast": models.fast, "smart": models.smart}.get(model, model), reason)
