"""A loop over more items than run inside a run: parts of the list, each a run that is given its plan and asks no model (R16.1, R8.7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from perdure.people.policies import Giver, Guard
from perdure.plan.calls import Call
from perdure.plan.control.iteration import EACH, LOOP_DONE, LOOP_FAILED, LOOP_RESULTS
from perdure.plan.loops.reading import OWN_TOOLS
from perdure.plan.loops.running import outside_state
from perdure.tools.tool import Tool
from perdure.values.jsons import Json, JsonObject
from perdure.values.limits import MAX_INSIDE
from perdure.values.output_paths import show
from perdure.values.sources import NOWHERE, Labels, join_all, untrusted

PART_DEADLINE: Final = 30 * 24 * 3600.0
"""Seconds that a part may work. A loop has no deadline of its own, and each of its calls has its tool's."""
ITEMS: Final = "_loop_items"
"""The kind under which a part reads its items."""
WRITTEN: Final = "†plan"
"""Stands for who has written the call, where a part is told where what it is given comes from."""
_LEFT_OUT: Final = ("_if", "_after", "_instance", "_outputMethod")


def part_document(call: Call, tools: Mapping[str, Tool], base: Mapping[str, Json], guard: Guard) -> JsonObject:
    """The agent of all parts, but for its plan: the call's tools, what it reads, and the run's policy."""
    assert call.loop is not None
    used = [each.tool for form in call.loop.forms for each in form.written() if each.tool is not None]
    names = dict.fromkeys(tool.name for tool in used if tool.name not in OWN_TOOLS)
    context: list[JsonObject] = [
        {"type": "tool", "tool": name if tools[name].registered else tools[name].definition()} for name in names
    ]
    context.append({"type": "state", "state": outside_state(call).snapshot()})
    context += [{"type": "data", "kind": kind, "data": base[kind]} for kind in _kinds(call) if kind in base]
    policy = {**guard.base.as_change(), **({"scope": "calls"} if guard.policy.scope == "plan" else {})}
    config = {"start": "plan", "approval": policy, "deadline": PART_DEADLINE}
    return {"name": f"{call.tool_name} {call.id}", "config": config, "context": context}


def _kinds(call: Call) -> list[str]:
    """What it reads that stands outside, but for the state."""
    read = {ref.kind for template in (call.template, call.soft) for ref in template.references()}
    return sorted(read - {"state"})


def part_policy(guard: Guard, call: Call, given: Mapping[str, list[str]]) -> tuple[JsonObject, list[Giver]]:
    """The run's change of policy, and the givers, for the parts: what an approved plan covers is not asked about again (R7.6). `given`: where
    what the parts are given comes from."""
    change = guard.change.as_change()
    # Nobody has seen what others write into the calls of the parts: a person is asked about those as if nothing was remembered.
    clean = not untrusted(join_all(map(frozenset, given.values()))) and not any(map(_brings_others_in, call.written()))
    remembered = dict.fromkeys(guard.remembered if clean else (), "never")
    names = [each.tool_name for each in call.written()]
    if guard.policy.scope == "plan":
        return {**change, "scope": "calls", "ask": "never", "tools": remembered}, []
    return ({**change, "tools": {**change.get("tools", {}), **remembered}} if remembered else change), guard.given(
        names
    )


def _brings_others_in(call: Call) -> bool:
    """Whether others may have written what the call gives; a delegate's run says so only when it has ended."""
    return call.tool is not None and (call.tool.others_write or call.tool.delegate is not None)


def part_call(call: Call) -> JsonObject:
    """The call as all parts make it, but for the items."""
    assert call.loop is not None
    own = {key: value for key, value in call.raw.items() if key not in _LEFT_OUT}
    by_item = {"_if": call.raw["_if"]} if "_if" in call.raw and not call.has_condition else {}
    parallel = min(call.loop.parallel, MAX_INSIDE)
    return {**own, **by_item, "_parallel": parallel, "_outputPath": show((LOOP_RESULTS,))}


def part_sources(call: Call, known: Mapping[str, Labels]) -> dict[str, list[str]]:
    """Where what the parts are given comes from, by reference there; `known` by kind (R15.1)."""
    given = {str(reference): sources for reference, sources in call.outside_sources.items()}
    given |= {f"†{kind}": known[kind].whole for kind in _kinds(call) if kind in known}
    given |= {f"†{ITEMS}": call.origins.params.get(EACH, NOWHERE), WRITTEN: call.origins.written}
    return {text: sorted(sources) for text, sources in given.items()}


def part_plan(call: JsonObject, lists: list[str], items: list[Any], first: int) -> list[JsonObject]:
    """What one part is given beside the agent: its items, and its plan."""
    made = {**call, "_each": f"†{ITEMS}", "_from": first}
    output = {
        "results": show((LOOP_RESULTS,)),
        "failed": show((LOOP_FAILED,)),
        "done": show((LOOP_DONE,)),
        "lists": lists,
    }
    data = {"type": "data", "kind": ITEMS, "data": items}
    return [data, {"type": "plan", "plan": [made], "output": output}]
