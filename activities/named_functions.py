"""Functions that agent files name by `module:function`, such as choosers of models."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.active_executions import in_thread, leave_or_refuse
from perdure.activities.queries import fetch_own
from perdure.activities.secrets import keep_secret_here, mask_value
from perdure.agents.modules import import_named
from perdure.approvals.requests import APPROVE_ACTIVITY, PROGRAM_SECONDS, ApproveInput
from perdure.errors import JsonError
from perdure.hooks.events import RunOwner
from perdure.runs.agent import ChooseInput, ModelChoice
from perdure.runs.claim_check import APPROVAL
from perdure.runs.wire import CHOOSE_ACTIVITY, REFUSED
from perdure.values.json import JsonObject, check


class NamedFunctions:
    """The functions of `modules`, which `--functions` or `PERDURE_FUNCTIONS` lists.

    Only functions that such a module defines can be named, not those that it imports.
    """

    def __init__(self, modules: Collection[str] = ()) -> None:
        self._modules = frozenset(modules)

    async def find(self, name: str, where: str) -> Callable[..., Any]:
        """Return the function `module:function`; `where` is its place in the agent file. Raise `ApplicationError`
        (`Refused`). A worker that lacks the module leaves it to another worker first.
        """
        module, _, function = name.partition(":")
        if module not in self._modules:
            known = ", ".join(sorted(self._modules)) or "none"
            await leave_or_refuse(
                f"{where} {name!r}: the worker does not allow functions of {module!r} (--functions); it allows {known}"
            )
        try:
            found = getattr(import_named(module), function)
        except Exception as error:
            await leave_or_refuse(f"{where} {name!r} cannot be loaded by the worker: {error}")
        if not inspect.isfunction(found) or found.__module__ != module:
            raise _refused(f"{where} {name!r} is not a function of {module}")
        return found

    async def call(self, name: str, where: str, argument: Any) -> Any:
        """Return the function's result for the argument; a sync function runs in a thread."""
        function = await self.find(name, where)
        return await in_thread(lambda: function(argument), name)


class ApproveActivity:
    """The program that decides in a person's place (R7.9)."""

    def __init__(self, functions: NamedFunctions) -> None:
        self._functions = functions

    @activity.defn(name=APPROVE_ACTIVITY)
    async def approve(self, wanted: ApproveInput) -> Any:
        """Return the answer of `config.approval.approver` to an approval request. It is recorded: a replay never
        repeats the call.
        """
        offer = wanted.offer if wanted.offer is not None else await _fetch_view(wanted.call)
        owner = wanted.owner or RunOwner()
        keep_secret_here(owner.context)
        asked = {**offer, **owner.model_dump(), "context": owner.context, "runId": activity.info().workflow_id or ""}
        try:
            async with asyncio.timeout(PROGRAM_SECONDS) as limit:
                answer = await self._functions.call(wanted.approver, "config.approval.approver", asked)
        except TimeoutError:
            if not limit.expired():
                raise  # an error of the program
            raise _refused(f"it has not decided within {PROGRAM_SECONDS:g} s") from None
        try:
            check(answer, source="the approver's answer")
        except JsonError as error:
            raise _refused(str(error)) from None
        return mask_value(answer)


async def _fetch_view(call: str) -> JsonObject:
    """Query an approval request that is too large to send. If it does not fit, a person decides: a part could mislead."""
    view = await fetch_own(APPROVAL, call)
    if view.cut:
        raise ApplicationError(
            f"{call} is too large for an approver program", type="offer_too_large", non_retryable=True
        )
    return view.as_json()


def _refused(message: str) -> ApplicationError:
    return ApplicationError(message, type=REFUSED, non_retryable=True)


class ChooseActivity:
    def __init__(self, functions: NamedFunctions) -> None:
        self._functions = functions

    @activity.defn(name=CHOOSE_ACTIVITY)
    async def choose(self, wanted: ChooseInput) -> ModelChoice:
        """Return the choice of the worker's own policy. It is recorded: a replay never repeats the call."""
        given = await self._functions.call(wanted.policy, "config.models.policy", wanted.situation)
        return read_choice(given, wanted)


def read_choice(given: Any, wanted: ChooseInput) -> ModelChoice:
    """Return the choice from a policy's model, or model and reason; `fast` and `smart` are the agent's models."""
    model, reason = (given, f"policy {wanted.policy}") if isinstance(given, str) else (None, None)
    if isinstance(given, tuple | list) and len(given) == 2:
        model, reason = given
    if not isinstance(model, str) or not isinstance(reason, str) or not model:
        message = (
            f"config.models.policy {wanted.policy!r} returned {given!r}, but must return a model, or (model, reason)"
        )
        raise ApplicationError(message, type="bad_policy", non_retryable=True)
    models = wanted.situation.models
    return ModelChoice({"fast": models.fast, "smart": models.smart}.get(model, model), reason)
