"""A call as a person, or a hook, changed it: checked like the model's own, and put in the place of the call that waits (R7.2, R10.17)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

from perdure.errors import CallError, DecisionError, FormulaError, TooLargeError
from perdure.plan.calls import Call
from perdure.plan.checks import check_resolved
from perdure.tools.tool import Tool
from perdure.values.jsons import Json, JsonObject, dumps, json_path
from perdure.values.limits.steps import Checks
from perdure.values.paths import get
from perdure.values.references import MISSING, Missing, Reference, evaluate
from perdure.values.sources import USER, Sources, join
from perdure.values.sources.origins import EACH, Origins, origins_of
from perdure.values.texts import Texts


def revise(
    call: Call,
    raw: JsonObject,
    *,
    check: Callable[[Json, str, int], Call],
    tools: Mapping[str, Tool],
    values: Mapping[str, Json],
    readers: Set[str],
    texts: Texts,
    sources: Callable[[Reference], Sources],
    kept: JsonObject | None = None,
) -> Call:
    """The call that `raw` writes, with its references resolved from `values`, which hold by kind what stands now.

    `sources` say where these come from; what is written out is the person's. `kept` are parameters of `call` that stay as they were offered, values that nothing is read in again.

    `check` checks it like the model's own. Where it says no output path, or instance, it has those of `call`. `readers` are the references that are wired to `call`: if
    there are any, it has to. Raises `DecisionError`.
    """
    tool = tools.get(str(raw.get("_tool")))
    if call.paths and tool is not None and tool.output_path is None and "_outputPath" not in raw:
        raw = {"_outputMethod": call.method, **raw, "_outputPath": call.target}
    if call.instance is not None:
        raw = {"_instance": call.instance, **raw}
    revised = check(raw, call.id, call.index)
    if revised.error is not None:
        raise DecisionError(f"{call.id} would be wrong: {revised.error.message}")
    if revised.loop is not None:
        raise DecisionError(f"{call.id} would be a loop, and what waits is one call: let it be one")

    def lookup(reference: Reference) -> Json | Missing:
        return get(values.get(reference.kind, MISSING), reference.path)

    read = revised.template if kept is None else revised.template.without({*kept, "_each"})
    for site in read.sites:
        if evaluate(site.expression, lookup) is MISSING:
            raise DecisionError(
                f"{call.id} would be wrong: {json_path(site.path)}: {site.expression} does not exist now"
            )
    try:
        resolved = read.resolve(lookup, texts)
        texts.check_whole({**resolved, **(kept or {})})
        revised.take_resolved(resolved)
    except (TooLargeError, FormulaError) as error:
        raise DecisionError(f"{call.id} would be wrong: {error}") from None
    if kept is not None:
        revised.params, revised.items = revised.params | kept, call.items
    revised.origins = origins_of(read, USER, lookup, sources)
    if kept is not None:  # the tool is the model's choice still
        stay = {name: each for name, each in call.origins.params.items() if name in kept or name == EACH}
        revised.origins = Origins(call.origins.written, {**stay, **revised.origins.params}, read=True)
    if problem := check_resolved(revised):
        raise DecisionError(f"{call.id} would be wrong: {problem.message}")
    if readers:
        _keep_for(readers, call, revised)
    return revised


def _keep_for(readers: Set[str], call: Call, revised: Call) -> None:
    """What others read of the call stays where they read it. Raises `DecisionError`."""
    if revised.paths != call.paths:
        raise DecisionError(
            f"{call.id} must write {call.target}, which other calls read ({', '.join(sorted(readers))}); "
            f"this one would write {revised.target or 'nothing'}"
        )
    if call.method == "set" != revised.method:
        raise DecisionError(
            f"{call.id} must set {call.target}, for other calls read what it writes alone ({', '.join(sorted(readers))}); "
            f"this one would {revised.method} to what is there"
        )


def adopt(call: Call, revised: Call) -> None:
    """Put the revised call in the place of the one that waits."""
    call.raw, call.tool, call.params, call.template = revised.raw, revised.tool, revised.params, revised.template
    call.condition, call.converted = revised.condition, revised.converted
    call.paths, call.method, call.result = revised.paths, revised.method, revised.result
    call.scopes, call.items, call.origins = revised.scopes, revised.items, revised.origins
    call.changed, call.approved = [], None


def take_changed(call: Call, params: JsonObject, checks: Checks | None = None) -> CallError | None:
    """Give a call that is ready the parameters that a hook has made of its own (R10.17); what is wrong with them, and then it stays as it was.

    They are values, in which nothing is read. A hook has seen all parameters: whatever it gave may come from any of them, and nobody has
    stood for it or approved it.
    """
    if meta := [name for name in params if name.startswith("_")]:
        return CallError("invalid_params", f"{meta[0]!r} is no parameter")
    before, names = call.params, [*params, *(name for name in call.params if name not in params)]
    changed = [
        name for name in names if name not in params or name not in before or _differ(params[name], before[name])
    ]
    if not changed:
        return None
    call.params = params
    if (problem := check_resolved(call, checks)) is not None:
        call.params = before
        return problem
    origins = call.origins
    mixed = join(origins.written, origins.all)
    sources = {name: origins.params.get(name, mixed) if name not in changed else mixed for name in params}
    kept = {EACH: origins.params[EACH]} if EACH in origins.params else {}
    call.origins = Origins(origins.written, {**kept, **sources}, origins.read)
    call.template = call.template.without(changed)
    call.changed, call.approved = [*dict.fromkeys([*call.changed, *changed])], None
    return None


def _differ(one: Json, other: Json) -> bool:
    return one is not other and dumps(one, sort_keys=True) != dumps(other, sort_keys=True)
