"""Validation of calls before they start, of their parameters, of revised calls, and of writes in conflict."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import lru_cache
from itertools import combinations, pairwise
from typing import Final, TypeAlias

from perdure.errors import CallError, DecisionError, FormulaError, ReferenceSyntaxError, TooLargeError
from perdure.plan._calls import BODY, EACH, IF, LOOP_KEYS, NO_ORDER, Call, CallSpec, delegate_problems, parse_condition
from perdure.plan._dependency_graph import AFTER, Edge, parse_after
from perdure.plan._loop_spec import BODY_KEYS, OWN_TOOLS, is_inside, read_loop
from perdure.plan._structural_errors import LAZY_READS
from perdure.tools.tool import Tool
from perdure.values.json import Json, JsonObject, dumps, has_null, json_path, shorten
from perdure.values.limits import MAX_BODY_CALLS, MAX_LOOPS_DEEP, CheckBudget
from perdure.values.problems import close_names, none_of
from perdure.values.provenance import EACH as PROVENANCE_EACH
from perdure.values.provenance import USER, Origins, Sources, join, origins_of
from perdure.values.references import (
    MISSING,
    Alternatives,
    Missing,
    Path,
    Reference,
    claimed_paths,
    get,
    overlaps,
    parse_output_path,
    show,
)
from perdure.values.schemas import Schema, convert_literals
from perdure.values.state import METHODS, OutputMethod, foreign_problems, scope_path, scope_template
from perdure.values.templates import EMPTY_TEMPLATE, TemplateProblem, TextBudget, parse_template

TOO_MUCH: Final = "too_many_names"
"""Code of a call with more names than a call, or a plan, may have."""
NOTES: Final = frozenset({"_id", "_status", "_reason", "_error"})
"""Keys that the engine adds to a call in a plan message; a model may write them back, and then they are ignored."""
LOOPS_KEEP_VALUES: Final = "loops-keep-values"
"""Patch: in runs of 0.2.0 a value that no iteration of a `while` writes is cut to the parts that the loop reads."""
CONVERTED: Final = "literals-converted"
"""Patch: a literal of another type is converted without loss (R5.13); 0.1.0 refused its call."""


def check_call(
    raw: Json,
    *,
    id: str,
    index: int,
    tools: Mapping[str, Tool],
    state_schema: Schema | None = None,
    instances: Collection[str] = (),
    kinds: Collection[str] = (),
    checks: CheckBudget | None = None,
    too_much: str | None = None,
    joined: Container[str] = (),
) -> Call:
    """Check all properties of a call that can be checked before it runs; a call with `error` set is invalid (R6.6).

    `too_much`: the reason why it is not parsed. `joined`: the calls of earlier Requests that are in the plan.
    """
    if not isinstance(raw, dict):
        problem = f"{shorten(raw, 60)} is not a call: expected an object with a '_tool'"
        return _checked_call(id, index, *_refuse(CallSpec({}), "not_a_call", problem))
    plain = {key: value for key, value in raw.items() if key not in NOTES}
    if too_much is not None:
        return _checked_call(id, index, *_refuse(CallSpec(plain), TOO_MUCH, too_much))
    spec, error = _check_spec(plain, id, tools, state_schema, instances, checks, joined)
    if checks is not None and not checks.is_patched(LAZY_READS):
        condition, template = spec.condition.with_all_needed(), spec.template.with_all_needed()
        spec = replace(spec, condition=condition, template=template)
    instance = spec.raw.get("_instance")
    if isinstance(instance, str) and instance in instances:
        spec = _scope_spec(spec, instance, kinds)
    written_id = raw.get("_id")
    return _checked_call(id, index, spec, error, written_id=written_id if isinstance(written_id, str) else None)


def _checked_call(
    id: str, index: int, spec: CallSpec, error: CallError | None, *, written_id: str | None = None
) -> Call:
    call = Call.of(id, index, spec, written_id=written_id)
    if error is not None:
        call.state.status, call.state.error = "invalid", error
    return call


def _scope_spec(spec: CallSpec, instance: str, kinds: Collection[str]) -> CallSpec:
    """Return the call with its references and paths inside the instance (R8.8)."""
    return replace(
        spec,
        instance=instance,
        template=scope_template(spec.template, instance, kinds),
        condition=scope_template(spec.condition, instance, kinds),
        soft=scope_template(spec.soft, instance, kinds),
        after=replace(spec.after, paths=scope_template(spec.after.paths, instance, kinds)),
        after_end=replace(spec.after_end, paths=scope_template(spec.after_end.paths, instance, kinds)),
        paths=tuple(tuple(scope_path(path, instance) for path in paths) for paths in spec.paths),
    )


def _check_spec(
    raw: JsonObject,
    id: str,
    tools: Mapping[str, Tool],
    state_schema: Schema | None,
    instances: Collection[str],
    checks: CheckBudget | None,
    joined: Container[str],
) -> tuple[CallSpec, CallError | None]:
    if "_syntax" in raw:
        syntax = str(raw.pop("_syntax"))[:1000]
        return _refuse(CallSpec(raw), "syntax", syntax)
    name = raw.get("_tool")
    tool = OWN_TOOLS.get(name) or tools.get(name) or _last_named(name, tools) if isinstance(name, str) else None
    if tool is None:
        close = close_names(str(name), tools)
        what = "the call has no '_tool'" if name is None else f"there is no tool {shorten(name, 80)}"
        return _refuse(CallSpec(raw), "unknown_tool", f"{what}; {_list_tools(close, len(tools))}")
    meta, params = _without_nulls({**raw, "_tool": tool.name}, tool)
    raw = meta | params
    inside = is_inside(raw, tool)
    spec, malformed, problems = _read_spec(raw, meta, params, tool, id, checks, joined, inside=inside)
    problems += _path_problems(spec, state_schema)
    if not inside:
        spec, wrong = _check_params(spec, tool, malformed, checks)
        problems += _with_item(spec, wrong)
    elif not problems:

        def check_inner(raw: Json, id: str, index: int) -> Call:
            return check_call(raw, id=id, index=index, tools=tools, state_schema=state_schema, checks=checks)

        spec, wrong = read_loop(
            spec,
            id,
            check_inner,
            keeps_values=checks is None or checks.is_patched(LOOPS_KEEP_VALUES),
            reads_lazily=checks is None or checks.is_patched(LAZY_READS),
        )
        problems += _with_item(spec, wrong)
    problems += _instance_problems(spec, raw.get("_instance"), instances)
    return _refuse(spec, "invalid_call", *problems) if problems else (spec, None)


def _last_named(name: str, tools: Mapping[str, Tool]) -> Tool | None:
    """Return the only tool whose name ends with this one after a dot: models omit the prefix."""
    found = [tool for known, tool in tools.items() if known.endswith(f".{name}")] if name else []
    return found[0] if len(found) == 1 else None


def _without_nulls(raw: JsonObject, tool: Tool) -> tuple[JsonObject, JsonObject]:
    """Return the meta-properties and the parameters of a call, without the `null` values that only strict mode requires;
    a `null` that the tool accepts stays."""
    meta: JsonObject = {}
    parameters: JsonObject = {}
    for key, value in raw.items():
        if not key.startswith("_"):
            parameters[key] = value
        elif value is not None or key == "_output":
            meta[key] = value
    return meta, _strip_nulls(parameters, (), tool.parameters_schema) if has_null(parameters) else parameters


def _strip_nulls(value: JsonObject, path: Path, schema: Schema) -> JsonObject:
    """Return an object without each `null` that the schema refuses at its place."""
    required = {name for each in schema.at(path) or () for name in each.schema.get("required", ())}
    return {
        key: _strip_nulls_in(child, (*path, key), schema)
        for key, child in value.items()
        if child is not None or key in required or not _refuses_null(schema.at((*path, key)))
    }


def _strip_nulls_in(value: Json, path: Path, schema: Schema) -> Json:
    if isinstance(value, list):
        return [_strip_nulls_in(child, (*path, index), schema) for index, child in enumerate(value)]
    return _strip_nulls(value, path, schema) if isinstance(value, dict) else value


def _refuses_null(schemas: list[Schema] | None) -> bool:
    return any(schema.errors(None) for schema in schemas or ())


def _instance_problems(spec: CallSpec, instance: Json, instances: Collection[str]) -> list[str]:
    if instance is None or (isinstance(instance, str) and instance in instances):
        if not instances:
            return []
        read = [*spec.condition.references(), *spec.template.references(), *spec.soft.references()]
        return foreign_problems(read, spec.paths, shared=instance is None)
    if not instances:
        return ["$._instance: there are no instances in this context"]
    known = ", ".join(close_names(str(instance), instances))
    return [f"$._instance: there is no instance {shorten(instance, 60)}; close to it are {known}"]


def _list_tools(close: list[str], count: int) -> str:
    if not close:
        return "no tools are offered"
    return f"{'the tools are' if count == len(close) else 'close to it are'}: {', '.join(close)}"


def check_resolved(call: Call, checks: CheckBudget | None = None) -> CallError | None:
    """Check the resolved parameters against the tool's schema (R3.1)."""
    # A loop's parameters are those of its calls, which are checked one by one.
    problems = (
        []
        if call.spec.loop is not None
        else call.spec.known_tool.parameters_schema.errors(call.inputs.params, checks=checks)
    )
    if "_each" in call.spec.raw and not isinstance(call.inputs.items, list):
        problems.append(f"$._each is {shorten(call.inputs.items, 60)}, but must be an array to go through")
    return CallError.of("invalid_params", problems) if problems else None


def _refuse(spec: CallSpec, code: str, *problems: str) -> tuple[CallSpec, CallError]:
    """Return the error of an invalid call. It keeps the paths that it names: its writes count as not written (R5.1)."""
    method = spec.raw.get("_outputMethod")
    named = [*_named_paths(spec.raw), spec.tool and spec.tool.output_path]
    paths = tuple(claimed_paths(text) for text in named if isinstance(text, str))
    return replace(spec, method=method if method in METHODS else "set", paths=paths), CallError.of(code, problems)


def _named_paths(raw: Json, deep: int = 0) -> list[Json]:
    """Return the output paths that a call, and those of its body, name."""
    if not isinstance(raw, dict) or deep > MAX_LOOPS_DEEP:
        return []
    body = raw.get(BODY)
    inner = body[:MAX_BODY_CALLS] if isinstance(body, list) else []
    return [raw.get("_outputPath"), *(path for each in inner for path in _named_paths(each, deep + 1))]


def _misnamed(raw: JsonObject, tool: Tool, allowed: Container[str]) -> list[str]:
    """Return problems of parameters whose own names would be meta-properties: a call has them under other names."""
    loops = EACH in raw
    return [
        f"$.{name}: the tool's parameter {name!r} is written {alias!r} in a call"
        for alias, name in tool.names.items()
        if name in raw and alias not in raw and (name not in allowed or (name in LOOP_KEYS and not loops))
    ]


def _read_spec(
    raw: JsonObject,
    meta: JsonObject,
    params: JsonObject,
    tool: Tool,
    id: str,
    checks: CheckBudget | None,
    joined: Container[str],
    *,
    inside: bool,
) -> tuple[CallSpec, list[TemplateProblem], list[str]]:
    """Return the call as written, the problems of its references, and those of its meta-properties.

    No meta-property is read after the first invalid one. `meta` and `params` are the two parts of `raw`. `inside`: the
    plan runs it as a loop, see `read_loop`.
    """
    scopes: Sequence[str] = ()
    after = after_end = NO_ORDER
    condition, output = EMPTY_TEMPLATE, None
    problems = _unknown_keys(raw, meta, tool)
    if not problems:
        scopes, problems = _read_scopes(raw, tool)
    if not problems and not inside:
        problems = delegate_problems(raw)
    if not problems and AFTER in raw:
        after, after_end, problems = parse_after(raw[AFTER], id, joined)
    if not problems and IF in raw and not inside:
        condition, problem = parse_condition(raw[IF])
        problems = [] if problem is None else [problem]
    if not problems and tool.latent and not inside:
        output, problems = _read_output(raw, tool, checks)
    method, paths, wrong = _read_paths(raw, tool)
    read = params | {EACH: raw[EACH]} if EACH in raw else params
    template, malformed = (EMPTY_TEMPLATE, []) if inside else parse_template(read)
    spec = CallSpec(
        raw,
        tool,
        params=params,
        template=template,
        condition=condition,
        after=after,
        after_end=after_end,
        paths=paths,
        method=method,
        output=output,
        scopes=scopes,
    )
    return spec, malformed, problems + wrong


def _unknown_keys(raw: JsonObject, meta: Collection[str], tool: Tool) -> list[str]:
    """Return the problems of meta-properties that a call of the tool cannot have."""
    allowed = _meta_properties(tool.name, latent=tool.latent, scoped=tool.scope_choice is not None)
    if tool.names and (misnamed := _misnamed(raw, tool, allowed)):
        return misnamed
    unknown = [key for key in meta if key not in allowed]
    if "_output" in unknown:
        return [f"$._output is not yours to write: the tool {tool.name!r} computes it"]
    if unknown:
        return [f"$.{key}: {none_of(key, 'meta-property of a call', sorted(allowed))}" for key in unknown[:5]]
    return []


@lru_cache(maxsize=1024)
def _meta_properties(name: str, *, latent: bool, scoped: bool) -> frozenset[str]:
    """Return the meta-properties that a call of such a tool may have."""
    more = (*(("_output",) if latent else ()), *(("_scopes",) if scoped else ()))
    own = frozenset({"_tool", "_outputPath", "_outputMethod", "_instance", AFTER, IF, *more})
    return own | LOOP_KEYS | BODY_KEYS.get(name, frozenset())


def _read_scopes(raw: JsonObject, tool: Tool) -> tuple[Sequence[str], list[str]]:
    if "_scopes" not in raw:
        return tool.scopes or (), []
    chosen = raw["_scopes"]
    if not isinstance(chosen, list) or not all(scope in (tool.scope_choice or ()) for scope in chosen):
        return [], [f"$._scopes is {shorten(chosen, 80)}, but must be a list of {', '.join(tool.scope_choice or ())}"]
    return [*(tool.scopes or ()), *chosen], []


def _read_output(raw: JsonObject, tool: Tool, checks: CheckBudget | None) -> tuple[Json, list[str]]:
    """Return the result that the model has written for a latent tool, and its problem."""
    if "_output" not in raw:
        return None, [f"$ lacks '_output': the tool {tool.name!r} has no code, write its result yourself"]
    output, schema = raw["_output"], tool.output_schema
    return output, [] if schema is None else schema.errors(output, root=("_output",), checks=checks)


def _read_paths(raw: JsonObject, tool: Tool) -> tuple[OutputMethod, Alternatives, list[str]]:
    """Return the output method, the output paths, and their problem."""
    text, method = raw.get("_outputPath"), raw.get("_outputMethod")
    if text is not None and tool.output_path is not None and text != tool.output_path:
        always = f"but the tool {tool.name!r} always writes to {tool.output_path}"
        return "set", (), [f"$._outputPath is {shorten(text, 80)}, {always}"]
    if method is not None and tool.output_method is not None and method != tool.output_method:
        always = f"but the tool {tool.name!r} always uses {tool.output_method}"
        return "set", (), [f"$._outputMethod is {shorten(method, 40)}, {always}"]
    text = tool.output_path if text is None else text
    method = tool.output_method or "set" if method is None else method
    if method not in METHODS:
        return "set", (), [f"$._outputMethod is {shorten(method, 40)}, but must be one of {', '.join(METHODS)}"]
    if text is None:
        return method, (), []
    if not isinstance(text, str):
        return method, (), [f'$._outputPath is {shorten(text, 60)}, but must be a string such as "†state.name"']
    try:
        return method, parse_output_path(text), []
    except ReferenceSyntaxError as error:
        return method, (), [f"$._outputPath: {error}"]


def _path_problems(spec: CallSpec, state_schema: Schema | None) -> list[str]:
    if state_schema is None:
        return []
    return [
        f"$._outputPath: {show(path)} is not in the state's schema"
        for alternative in spec.paths
        for path in alternative
        if state_schema.at(path) is None
    ]


def _check_params(
    spec: CallSpec, tool: Tool, malformed: Sequence[TemplateProblem], checks: CheckBudget | None
) -> tuple[CallSpec, list[str]]:
    """Return the call, with literals converted where its schema requires it, and the problems of its parameters."""
    if malformed:
        return spec, [f"{json_path(problem.path)}: {problem.error}" for problem in malformed]
    problems = tool.parameters_schema.errors(spec.params, references=not spec.template.literal, checks=checks)
    if not problems:
        return spec, []
    params, converted = convert_literals(spec.params, tool.parameters_schema, checks)
    if not (converted and isinstance(params, dict)):
        return spec, problems
    template, _ = parse_template(params | ({EACH: spec.raw[EACH]} if EACH in spec.raw else {}))
    if tool.parameters_schema.errors(params, references=not template.literal, checks=checks):
        return spec, problems  # the model rewrites the call in any case, and gets all its problems at once
    if checks is not None and not checks.is_patched(CONVERTED):
        return spec, problems
    return replace(spec, raw={**spec.raw, **params}, params=params, template=template, converted=converted), []


def _with_item(spec: CallSpec, problems: list[str]) -> list[str]:
    """Add the name of the loop's item to the problem of a missing parameter."""
    item = "; what a call with _each runs for is †item, which its parameters can read"
    return [f"{each}{item}" if EACH in spec.raw and " lacks " in each else each for each in problems]


def revise(
    call: Call,
    raw: JsonObject,
    *,
    check: Callable[[Json, str, int], Call],
    tools: Mapping[str, Tool],
    values: Mapping[str, Json],
    readers: Set[str],
    texts: TextBudget,
    sources: Callable[[Reference], Sources],
    kept: JsonObject | None = None,
) -> Call:
    """Return the call of `raw`, with its references resolved from `values`, the present values by kind.

    `sources` returns their provenance; literals are the person's. `kept` are parameters of `call` as they were shown,
    in which no reference is resolved again.

    `check` checks it like the model's own. Without an output path, or instance, it gets those of `call`. `readers` are
    the references that depend on `call`: its paths have to satisfy them. Raises `DecisionError`.
    """
    tool = tools.get(str(raw.get("_tool")))
    if call.spec.paths and tool is not None and tool.output_path is None and "_outputPath" not in raw:
        raw = {"_outputMethod": call.spec.method, **raw, "_outputPath": call.spec.target}
    if call.spec.instance is not None:
        raw = {"_instance": call.spec.instance, **raw}
    revised = check(raw, call.id, call.index)
    if revised.state.error is not None:
        raise DecisionError(f"{call.id} would not be valid: {revised.state.error.message}")
    if revised.spec.loop is not None:
        raise DecisionError(f"{call.id} would be a loop, but the request is for one call: send one call")

    def lookup(reference: Reference) -> Json | Missing:
        return get(values[reference.kind], reference.path) if reference.kind in values else MISSING

    read = revised.spec.template if kept is None else revised.spec.template.without({*kept, "_each"})
    if (site := next(read.find_missing(lookup), None)) is not None:
        raise DecisionError(
            f"{call.id} would not be valid: {json_path(site.path)}: {site.expression} does not exist now"
        )
    try:
        resolved = read.resolve(lookup, texts)
        texts.check_whole({**resolved, **(kept or {})})
        revised.inputs.take_resolved(resolved)
    except (TooLargeError, FormulaError) as error:
        raise DecisionError(f"{call.id} would not be valid: {error}") from None
    if kept is not None:
        revised.inputs.params, revised.inputs.items = revised.inputs.params | kept, call.inputs.items
    revised.inputs.origins = origins_of(read, USER, lookup, sources)
    if kept is not None:  # the tool is still the model's choice
        stay = {
            name: each for name, each in call.inputs.origins.params.items() if name in kept or name == PROVENANCE_EACH
        }
        revised.inputs.origins = Origins(
            call.inputs.origins.written, {**stay, **revised.inputs.origins.params}, read=True
        )
    if problem := check_resolved(revised):
        raise DecisionError(f"{call.id} would not be valid: {problem.message}")
    if readers:
        _keep_for(readers, call, revised)
    return revised


def _keep_for(readers: Set[str], call: Call, revised: Call) -> None:
    """Check that the values that others read of the call stay at their paths. Raises `DecisionError`."""
    if revised.spec.paths != call.spec.paths:
        raise DecisionError(
            f"{call.id} must write {call.spec.target}, which other calls read ({', '.join(sorted(readers))}); "
            f"this one would write {revised.spec.target or 'nothing'}"
        )
    if call.spec.method == "set" != revised.spec.method:
        raise DecisionError(
            f"{call.id} must set {call.spec.target}, because other calls read only its value ({', '.join(sorted(readers))}); "
            f"this one would {revised.spec.method} to the existing value"
        )


def replace_call(call: Call, revised: Call) -> None:
    """Replace the waiting call by the revised call."""
    old = call.spec
    if (unhooked := call.inputs.unhooked) is not None:  # an edit keeps the other parameters as they were shown
        written = revised.spec.params
        call.inputs.unhooked = {
            name: unhooked[name] if name in unhooked and old.params.get(name) == written[name] else value
            for name, value in revised.inputs.params.items()
            if name in written
        }
    call.spec = replace(
        revised.spec, after=old.after, after_end=old.after_end, instance=old.instance, loop=old.loop, soft=old.soft
    )
    call.state.result = revised.state.result
    call.inputs.params, call.inputs.items = revised.inputs.params, revised.inputs.items
    call.inputs.origins = revised.inputs.origins
    call.inputs.changed, call.inputs.approved = (), None


def take_changed(
    call: Call, params: JsonObject, checks: CheckBudget | None = None, *, by: Sequence[str] = ()
) -> CallError | None:
    """Set the parameters that the hooks `by` have changed on a ready call (R10.17). Return their problem; the call is
    then unchanged.

    They are values without references. A hook has seen all parameters: each of its values may come from any of them,
    and no person has endorsed or approved it.
    """
    if meta := [name for name in params if name.startswith("_")]:
        return CallError("invalid_params", f"{meta[0]!r} is not a parameter")
    before, names = call.inputs.params, [*params, *(name for name in call.inputs.params if name not in params)]
    changed = [
        name for name in names if name not in params or name not in before or _differ(params[name], before[name])
    ]
    if not changed:
        return None
    call.inputs.params = params
    if (problem := check_resolved(call, checks)) is not None:
        call.inputs.params = before
        return problem
    call.inputs.unhooked = before if call.inputs.unhooked is None else call.inputs.unhooked
    call.inputs.changed_by = [*dict.fromkeys([*call.inputs.changed_by, *by])]
    origins = call.inputs.origins
    mixed = join(origins.written, origins.all)
    sources = {name: origins.params.get(name, mixed) if name not in changed else mixed for name in params}
    kept = {PROVENANCE_EACH: origins.params[PROVENANCE_EACH]} if PROVENANCE_EACH in origins.params else {}
    call.inputs.origins = Origins(origins.written, {**kept, **sources}, origins.read)
    call.spec = replace(call.spec, template=call.spec.template.without(changed))
    call.inputs.changed, call.inputs.approved = [*dict.fromkeys([*call.inputs.changed, *changed])], None
    return None


def _differ(one: Json, other: Json) -> bool:
    return one is not other and dumps(one, sort_keys=True) != dumps(other, sort_keys=True)


Race: TypeAlias = tuple[Call, Call, Path]
_ALL_PAIRS: Final = 20
"""Maximum of calls that set one path for which all pairs are compared; of more calls, only neighbours in the list."""


def find_races(calls: Sequence[Call], edges: Iterable[Edge], *, ended: bool = False) -> list[Race]:
    """Return two calls and the path that both set, for each pair in which neither waits for the other.

    `edges` are those of the list. Before anything runs, calls under different conditions, or of different branches of
    one call, count as exclusive. With `ended`, the calls are those that have set the path.
    """
    paths_of = _written if ended else _first_choice
    setters: dict[Path, list[Call]] = {}
    for call in calls:
        for path in dict.fromkeys(paths_of(call)):
            setters.setdefault(path, []).append(call)
    pairs = list(_pairs(setters))
    if not pairs:
        return []
    before, guards = _before_and_guards(calls, edges)
    found: dict[tuple[int, int], Race] = {}
    for first, second, path in pairs:
        one, two = sorted((first.index, second.index))
        apart = _ordered(one, two, before) or (not ended and _exclusive(one, two, guards))
        if one != two and not apart:
            found.setdefault((one, two), (calls[one], calls[two], path))
    return [race for _, race in sorted(found.items())]


def find_concurrent(
    calls: Sequence[Call], edges: Iterable[Edge], groups: Mapping[str, Sequence[tuple[Call, bool]]]
) -> list[str]:
    """Return the groups of calls that have two calls that may run at once: neither waits for the other, and no
    condition excludes one. A group has its calls, each with whether it may run beside itself, as in a loop over a list.
    """
    if not groups:
        return []
    before, guards = _before_and_guards(calls, edges)
    return [
        name
        for name, group in groups.items()
        if any(beside_itself for _, beside_itself in group)
        or any(
            one.index == two.index
            or not (_ordered(one.index, two.index, before) or _exclusive(one.index, two.index, guards))
            for (one, _), (two, _) in combinations(group, 2)
        )
    ]


def _ordered(one: int, two: int, before: Mapping[int, int]) -> bool:
    """Whether one of two calls waits for the other; calls on a cycle never run."""
    return one not in before or two not in before or bool(before[one] >> two & 1 or before[two] >> one & 1)


def _exclusive(one: int, two: int, guards: Mapping[int, int]) -> bool:
    """Whether two calls have different conditions."""
    return bool(guards[one] & ~guards[two] and guards[two] & ~guards[one])


def race_text(race: Race) -> str:
    """Return the problem of the two calls, and its correction."""
    first, second, path = race
    order = f'"_after": "ended {first.id}"'
    return f"{first.title} and {second.title} both set {show(path)} without an order between them: give the second {order}, or another path"


def _first_choice(call: Call) -> Iterable[Path]:
    """Return the paths that a call writes if all goes well."""
    return (
        call.spec.paths[0] if call.spec.paths and call.spec.method == "set" and call.state.status != "invalid" else ()
    )


def _written(call: Call) -> Iterable[Path]:
    return (write.path for write in call.state.writes) if call.spec.method == "set" else ()


def _pairs(setters: dict[Path, list[Call]]) -> Iterator[Race]:
    for path, here in setters.items():
        for one, two in combinations(here, 2) if len(here) <= _ALL_PAIRS else pairwise(here):
            yield one, two, path
        for length in range(1, len(path)):  # a call that sets a prefix of the path sets the path
            for one in setters.get(path[:length], ())[:_ALL_PAIRS]:
                for two in here[:_ALL_PAIRS]:
                    yield one, two, path


def _before_and_guards(calls: Sequence[Call], edges: Iterable[Edge]) -> tuple[dict[int, int], dict[int, int]]:
    """Return, for each call, the calls that end before it starts, and its conditions, each as the bits of a number;
    nothing for calls on a cycle.
    """
    readers: dict[int, list[tuple[int, Reference | str]]] = {}
    waits_for = dict.fromkeys((call.index for call in calls), 0)
    for writer, reader, what in edges:
        readers.setdefault(writer, []).append((reader, what))
        waits_for[reader] += 1
    bits: dict[tuple[int, frozenset[int]], int] = {}
    before, guards = dict.fromkeys(waits_for, 0), dict.fromkeys(waits_for, 0)
    for call in calls:
        if IF in call.spec.raw:
            guards[call.index] = _bit(bits, call.index, frozenset())
    free = [index for index, count in waits_for.items() if not count]
    for writer in free:
        for reader, what in readers.get(writer, ()):
            before[reader] |= before[writer] | 1 << writer
            if isinstance(what, Reference):
                guards[reader] |= guards[writer] | _of_branch(calls[writer], what, bits)
            waits_for[reader] -= 1
            if not waits_for[reader]:
                free.append(reader)
    return {index: before[index] for index in free}, guards


def _of_branch(writer: Call, reference: Reference, bits: dict[tuple[int, frozenset[int]], int]) -> int:
    """Return the condition of a reader of one of a call's branches, as bits."""
    if not writer.spec.branches:
        return 0
    alternatives = enumerate(writer.spec.paths)
    read = frozenset(n for n, paths in alternatives if any(overlaps(path, reference.path) for path in paths))
    return _bit(bits, writer.index, read) if 0 < len(read) < len(writer.spec.paths) else 0


def _bit(bits: dict[tuple[int, frozenset[int]], int], index: int, branches: frozenset[int]) -> int:
    return 1 << bits.setdefault((index, branches), len(bits))
