"""What the worker has, recorded at a run's start (R12.5): a redeployed worker cannot change a run's past."""

from __future__ import annotations

import os

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.registry import Registry
from activities.visibility import WaitingAttribute
from perdure.agents import Models
from perdure.errors import ProtocolError
from perdure.policies import Ask
from perdure.runs import PREPARE_ACTIVITY, REFUSED, Prepared, PrepareInput
from perdure.tools import resolve_tools


class PrepareActivity:
    def __init__(self, registry: Registry, floor: Ask = "never", attribute: WaitingAttribute | None = None) -> None:
        self._registry = registry
        self._floor: Ask = floor
        self._attribute = attribute or WaitingAttribute()

    @activity.defn(name=PREPARE_ACTIVITY)
    async def prepare(self, wanted: PrepareInput) -> Prepared:
        """The run's tools, and its models with the worker's defaults: `PERDURE_FAST_MODEL`, `PERDURE_SMART_MODEL` (R9.4)."""
        try:
            tools = resolve_tools(wanted.tools, self._registry.definitions())
        except ProtocolError as error:
            raise ApplicationError(str(error), type=REFUSED, non_retryable=True) from None
        defaults = {
            key: value for key in ("fast", "smart") if (value := os.environ.get(f"PERDURE_{key.upper()}_MODEL"))
        }
        return Prepared(
            tools=list(tools.values()),
            models=Models.model_validate(defaults | wanted.models),
            floor=self._floor,
            searchable=await self._attribute.ensure(activity.client()) is None,
        )
