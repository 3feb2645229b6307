"""A worker's own policy for choosing the model, by `module:function` (R9.4)."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.run.choosing import Choice, Situation
from perdure.run.wire import CHOOSE_ACTIVITY, REFUSED, ChooseInput


def load_policy(name: str) -> Callable[[Situation], Any]:
    """The function behind `module:function`. Raises `ApplicationError` with what is wrong."""
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as error:
        message = f"config.models.policy {name!r} cannot be loaded where the worker runs: {error}"
        raise ApplicationError(message, type=REFUSED, non_retryable=True) from None
    if not callable(found):
        raise ApplicationError(f"config.models.policy {name!r} is no function", type=REFUSED, non_retryable=True)
    policy: Callable[[Situation], Any] = found
    return policy


@activity.defn(name=CHOOSE_ACTIVITY)
async def choose(wanted: ChooseInput) -> Choice:
    """What the worker's own policy says; its answer is recorded, so a replay never asks again."""
    given = load_policy(wanted.policy)(wanted.situation)
    given = await given if inspect.isawaitable(given) else given
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
