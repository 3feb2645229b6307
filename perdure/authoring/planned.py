"""A plan looked at before anything runs, with all that is needed to judge it (R5.6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from perdure.plan.plan import Plan
from perdure.plan.simulation import simulate
from perdure.run.agents import Context
from perdure.run.past.wire import Progress
from perdure.run.reading import Reading
from perdure.run.views.ways import plan_ways
from perdure.tools.tool import READ_SKILL, Tool, parse_tool
from perdure.values.jsons import Json, JsonObject
from perdure.values.messages import deep_merge
from perdure.values.schemas import Schema
from perdure.values.sources import AGENT
from perdure.values.state import State, Write


@dataclass(frozen=True)
class Planned:
    """A plan with all that is needed to judge it."""

    calls: list[Json]
    tools: dict[str, Tool]
    unknown: list[str]
    """Tools of which only the name is known: their parameters cannot be checked."""
    context: Context
    state: JsonObject
    parallel: int | None = None

    def new_plan(self) -> Plan:
        """An empty plan to play the calls on, as Request 1."""
        schema = self.context.state.data_schema
        return Plan(
            1,
            tools=self.tools,
            state=State([Write(path=(), value=self.state, sources=AGENT)] if self.state else []),
            data=self.context.values(),
            state_schema=None if schema is None else Schema(schema),
            max_calls=max(500, len(self.calls)),
            parallel=self.parallel,
            dry_run=True,
            known=Reading(self.context, {}, "values").known(1, Progress(), lambda *_: False),
        )

    def checked(self) -> Plan:
        """The plan with all its calls, judged as far as can be before anything runs."""
        plan = self.new_plan()
        for raw in self.calls:
            plan.add(raw)
        plan.close()
        return plan

    def played(self) -> Plan:
        """The same with what nothing can be known about as the tools' results."""
        plan = self.new_plan()
        simulate(plan, self.calls)
        return plan

    def warnings(self, plan: Plan) -> list[str]:
        """What is no error of the checked plan, but may not be what its author means: converted literals (R5.13), races (R5.14)."""
        converted = [
            f"{call.id} {form.tool_name}: {text}"
            for call in plan.calls
            for form in call.written()
            for text in form.converted
        ]
        return [*converted, *(plan.races() if self.parallel != 1 else [])]

    def hints(self, plan: Plan) -> list[str]:
        """Dangerous tools of which two calls may run at once (R5.12)."""
        called = {form.tool.name: form.tool for call in plan.calls for form in call.written() if form.tool is not None}
        return [
            f"the tool {name!r} is dangerous, and two of its calls may run at once: exclusive=True, or _exclusive in its definition, prevents that"
            for name, tool in called.items()
            if tool.dangerous and tool.exclusive_group is None
        ]

    def ways(self) -> list[tuple[str, str]]:
        """Call id and way of each parameter that is not written out in the plan (R15.7)."""
        return list(plan_ways(self.played()))


def call_problems(plan: Plan) -> list[str]:
    """What is wrong with its calls, a line each."""
    return [
        f"{call.id} {call.tool_name}: {message}"
        for call in plan.calls
        if call.error is not None and call.error.code != "assumed"
        for message in call.error.problems or (call.error.message,)
    ]


def plan_of(
    calls: list[Json],
    context: Context,
    known: Mapping[str, JsonObject],
    *,
    parallel: int | None = None,
    state: JsonObject | None = None,
    complete: bool = False,
) -> Planned:
    """The calls with the tools of the context, and of the modules' `known` definitions; `state` is merged into the context's.

    `complete`: there are no other tools than those, so that a call of one is invalid, as it is in a run.
    """
    given = context.state.value if context.state.exists else {}
    tools, unknown = _tools(context, [] if complete else calls, known)
    return Planned(calls, tools, unknown, context, deep_merge(given, state or {}), parallel)


def _tools(
    context: Context, calls: Iterable[Json], known: Mapping[str, JsonObject]
) -> tuple[dict[str, Tool], list[str]]:
    """The tools as far as they are known here: from the file, and from the modules given with --tools."""
    wanted: list[str | JsonObject] = list(context.tools)
    if not wanted:
        # No list of tools to check against: those of the modules, and any other that a call names.
        names = [call.get("_tool") for call in calls if isinstance(call, dict)]
        wanted = list(dict.fromkeys([*known, *(name for name in names if isinstance(name, str))]))
    if context.skills and READ_SKILL not in wanted:  # it comes with them
        wanted.append(READ_SKILL)
    tools: dict[str, Tool] = {}
    unknown = [item for item in wanted if isinstance(item, str) and item not in known]
    for item in wanted:
        if isinstance(item, str):
            tool = offline_tool(
                known.get(item) or {"name": item, "additionalProperties": True, "_activity": item}, known
            )
        else:
            tool = offline_tool(item, known)
        tools[tool.name] = tool
    return tools, unknown


def offline_tool(definition: JsonObject, known: Iterable[str]) -> Tool:
    """Nobody can tell here which activities a worker will have; one that is named, or meant by the name, is taken to exist."""
    activity = definition.get("_activity") or ("" if "_output" in definition else definition.get("name", ""))
    named = {"_activity": activity} if activity and "_delegate" not in definition else {}
    return parse_tool({**definition, **named}, activities=[*known, activity])
