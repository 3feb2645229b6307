"""Procedures: the plan of a completed run as an agent file that runs it again, with other inputs and without a model.

`plan_of_run` takes the calls of a run together. `procedure_of` makes the agent file from them, with the literals that a person chooses as inputs.
`differing_literals` chooses them from several runs whose plans have the same shape.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, TypeAlias

from pydantic import Field

from perdure.errors import ReferenceSyntaxError, RunError
from perdure.plan import BODY, EACH, Call
from perdure.runs.agent import AgentSpec, parse_agent
from perdure.runs.wire import RunView
from perdure.tools.definitions import definition_name
from perdure.tools.tool import KEEP, TASK_COMPLETE, UNDO, Tool
from perdure.values.json import Json, JsonObject, WireModel, dumps, path_step, shorten
from perdure.values.messages import PlanMessage, ToolMessage, merge_data
from perdure.values.references import MISSING, Missing, Path, Reference, get, parse_expression, step_into
from perdure.values.templates import as_data, parse_template

PROCEDURE: Final = "procedure"
"""Key of an agent's metadata that makes it a procedure."""
NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
"""The name of a procedure: of a file, and of a tool for other agents."""
_INPUT: Final = re.compile(r"[^\W\d]\w{0,63}")
_PLACE: Final = re.compile(r"(?P<call>\d+\.\d+)(?P<path>[.\[].+)", re.DOTALL)
_ORDER: Final = re.compile(r"(?P<ended>\s*ended\s+)?(?P<call>\d+\.\d+)(?P<body>\[.*\])?(?P<own>\.\d+)?", re.DOTALL)
"""An item of `_after`: a call's id, also in the body of a loop."""
_AFTER: Final = "_after"
_OUTPUT_PATH: Final = "_outputPath"
_WHOLE_PATH: Final = re.compile(r"†state\.(\w+)")
"""An output path that replaces a whole value of the state."""
_STATE: Final = re.compile(r"†state(?:\.(\w+))?")
"""A mention of the state in a call's text, with the key."""
_WALKED: Final = frozenset({BODY, EACH})
"""Keys of the engine with literals of the plan."""

LiteralPlace: TypeAlias = tuple[int, Path]
"""A literal of a plan: the call's index, and the path in the call as it was written."""


class Procedure(WireModel):
    """A completed run's plan as an agent, with its inputs and its frozen literals.

    ```python
    procedure = await run.promote("monthly_refunds", parameters={"euros": "1.2.euros"})
    print(procedure.digest, procedure.inputs, procedure.frozen)
    ```
    """

    name: str
    version: int = 1
    digest: str
    """Digest of the frozen plan with its output, its tools and data, and the schema of its input: `sha256:…`."""
    runs: list[str]
    """The runs that it comes from."""
    agent: JsonObject
    """The agent file."""
    inputs: dict[str, Json] = Field(default_factory=dict)
    """By input its value in the first of the runs."""
    places: dict[str, list[str]] = Field(default_factory=dict)
    """By input the literals of that run that it replaces: `R.N.path`."""
    frozen: dict[str, Json] = Field(default_factory=dict)
    """By `R.N.path` the literals that stay unchanged."""
    notes: list[str] = Field(default_factory=list)
    """Notes for the person who promotes the run."""

    def with_version(self, version: int) -> Procedure:
        """Return the procedure with another version.

        ```python
        procedure = await run.promote("monthly_refunds")
        second = procedure.with_version(2)
        ```
        """
        metadata = {**self.agent["metadata"], PROCEDURE: {**self.agent["metadata"][PROCEDURE], "version": version}}
        return self.model_copy(update={"version": version, "agent": {**self.agent, "metadata": metadata}})


@dataclass(frozen=True)
class RunPlan:
    """The calls of a run as one plan."""

    run_id: str
    ids: list[str]
    """The ids that the calls had in the run."""
    calls: list[JsonObject]
    """The calls as they were written, with the order of the run's Requests; ids are those of Request 0."""
    output: Json = None
    """The run's output as it was written, with its references; `None`: the model answered with a text."""
    input: Json | Missing = MISSING
    """The input of the run."""
    reads: frozenset[Reference] = frozenset()
    """References that the calls and the output read."""
    tools: Mapping[str, Tool] = field(default_factory=dict)

    def place(self, written: str) -> LiteralPlace:
        """Parse a place in the form `R.N.path`. Raises `RunError` unless it is the place of a literal."""
        found = _PLACE.fullmatch(written)
        path = None if found is None else _path_of(found["path"])
        if found is None or path is None:
            raise RunError(f"{written[:80]!r} is not the path of a literal. Use R.N.PATH, such as 1.2.euros")
        if found["call"] not in self.ids:
            raise RunError(f"{written}: {found['call']} is not a call of the plan. Its calls are {_listed(self.ids)}")
        index = self.ids.index(found["call"])
        if any(isinstance(step, str) and step.startswith("_") and step not in _WALKED for step in path):
            raise RunError(f"{written}: only a parameter can become an input, not a key of the engine")
        value = get(self.calls[index], path)
        if value is MISSING:
            names = [self.name_of(each) for each, _ in literals(self.calls) if each[0] == index]
            raise RunError(
                f"{written} is not the path of a literal. The literals of {found['call']} are {_listed(names) or 'none'}"
            )
        if not is_literal(value) or path == (BODY,):
            raise RunError(f"{written} is {shorten(value, 60)}, not a literal: it already depends on other values")
        return index, _keys_of(self.calls[index], path)

    def name_of(self, place: LiteralPlace) -> str:
        """Return a place in the form `R.N.path`."""
        index, path = place
        return self.ids[index] + "".join(path_step(step) for step in path)


def plan_of_run(
    view: RunView | None, calls: Iterable[Call], output: Json, input: Json | Missing, tools: Iterable[Tool]
) -> RunPlan:
    """Return the calls of a completed run as one plan, in the order of its Requests.

    `output`: as the last Solution wrote it. Invalid, rejected and skipped calls are left out; calls of a branch that
    was not taken stay. Raises `RunError` for a run that has not completed, and for calls that no plan can repeat.
    """
    run_id = "the run" if view is None else view.run_id
    if view is None or view.status != "completed":
        raise RunError(f"{run_id} has not completed: only a completed run can be promoted")
    kept = [call for call in calls if len(call.place) == 1 and _is_kept(call)]
    if not kept:
        raise RunError(f"{run_id} has no calls, so it has no plan to promote")
    known = {call.id: index for index, call in enumerate(kept)}
    written: list[JsonObject] = []
    before: list[Json] = []
    older: set[str] = set()
    for _, group in groupby(kept, key=lambda call: call.id.partition(".")[0]):
        members = [*group]
        skipped = {name for call in members if call.state.status == "skipped" for name in _state_names(call)}
        for call in members:
            _check_reads(call, skipped & older)
        older |= {name for call in members for name in _state_names(call)}
        written += [_renumbered(call, known, before) for call in members]
        # The model knew the outcomes of these calls when it answered the next Request.
        before = [
            f"0.{known[call.id]}" if call.state.status == "done" else f"ended 0.{known[call.id]}" for call in members
        ]
    if view.stop_reason == "task_complete":
        output = None
    return RunPlan(
        run_id=run_id,
        ids=[*known],
        calls=written,
        output=output,
        input=input,
        reads=frozenset(_references(kept, output)),
        tools={tool.name: tool for tool in tools},
    )


def _state_names(call: Call) -> set[str]:
    """Return the names in the state that a call may write."""
    return {name for name in _STATE.findall(dumps(call.spec.raw.get(_OUTPUT_PATH))) if name}


def _check_reads(call: Call, hidden: Set[str]) -> None:
    """Raise `RunError` for a call that reads a path of a skipped call of its Request, which an earlier Request has
    written.

    In the run the call never reads the earlier value, which is older than its plan. In one plan it would.
    """
    if any(reference.path and reference.path[0] in hidden for reference in _references([call], None)):
        raise RunError(
            f"{call.title} reads a path that a skipped call writes, and would read an older value in one plan: the run cannot be promoted"
        )


def _is_kept(call: Call) -> bool:
    """Whether a call is part of the procedure. Raises `RunError` for a call that can neither be part of it nor be left
    out.
    """
    state, tool = call.state, call.spec.tool
    if tool is not None and (tool.activity == KEEP or tool.name == TASK_COMPLETE):
        return False
    if tool is not None and (tool.activity == UNDO or tool.name == "recall"):
        raise RunError(f"{call.title} names calls or values of this run: a run with it cannot be promoted")
    if state.status in ("failed", "unknown") and not state.writes:
        raise RunError(f"{call.title} {state.status} without a branch for that: a run with it cannot be promoted")
    return state.status in ("done", "failed") or (state.status == "skipped" and state.branch)


def _references(calls: Iterable[Call], output: Json) -> Iterator[Reference]:
    for call in calls:
        for template in (call.spec.condition, call.spec.template, call.spec.soft):
            yield from template.references()
    yield from parse_template(output)[0].references()


def _renumbered(call: Call, known: Mapping[str, int], before: Sequence[Json]) -> JsonObject:
    """Return a call as it was written, with the procedure's ids, and after the calls of the previous Request.

    Parameters that hooks have changed have the values with which the call was made.
    """
    hooked, made = call.inputs.hooked, call.inputs.params
    own = {name: value for name, value in call.spec.raw.items() if name not in hooked or name in made}
    own |= {name: as_data(made[name]) for name in hooked if name in made}
    raw: JsonObject = _with_ids(deepcopy(own), call, known)
    after = raw.get(_AFTER, [])
    order = [*(after if isinstance(after, list) else [after])]
    order += [each for each in before if each not in order]
    return {key: value for key, value in raw.items() if key != _AFTER} | ({_AFTER: order} if order else {})


def _with_ids(raw: JsonObject, call: Call, known: Mapping[str, int]) -> JsonObject:
    if _AFTER in raw:
        own = raw[_AFTER]
        items = [_renamed(item, call, known) for item in (own if isinstance(own, list) else [own])]
        raw = {**raw, _AFTER: [item for item in items if item is not None]}
    if isinstance(body := raw.get(BODY), list):
        raw = {**raw, BODY: [_with_ids(each, call, known) if isinstance(each, dict) else each for each in body]}
    return raw


def _renamed(item: Json, call: Call, known: Mapping[str, int]) -> Json:
    """Return an item of `_after` with the procedure's id; `None` for a call that is left out, because it has ended."""
    found = _ORDER.fullmatch(item) if isinstance(item, str) else None
    if found is None:
        return item
    ended = "ended " if found["ended"] else ""
    if found["body"] is not None:
        if found["call"] != call.id or found["own"] is None or found["body"].count("[") > 1:
            raise RunError(f"{call.title} names {item} in a loop: that id cannot be kept, so it cannot be promoted")
        return ended + found["own"]
    return f"{ended}0.{known[found['call']]}" if found["call"] in known else None


# Literals.


def is_literal(value: Json) -> bool:
    """Whether a value of a plan contains no reference and no formula."""
    template, malformed = parse_template(value)
    return template.literal and not malformed


def literals(calls: Sequence[JsonObject]) -> Iterator[tuple[LiteralPlace, Json]]:
    """Yield the literals of the calls' parameters: texts, numbers and lists of them, each with its place."""
    for index, call in enumerate(calls):
        for path, value in _literals(call, ()):
            yield (index, path), value


def _literals(value: Json, path: Path) -> Iterator[tuple[Path, Json]]:
    inside: Iterable[tuple[str | int, Json]]
    if isinstance(value, dict) and (value or not path) and "_expr" not in value:
        is_call = "_tool" in value
        inside = ((k, v) for k, v in value.items() if not (is_call and k.startswith("_")) or k in _WALKED)
    elif isinstance(value, list) and (path[-1:] == (BODY,) or not is_literal(value)):
        inside = enumerate(value)
    else:
        if is_literal(value):
            yield path, value
        return
    for step, each in inside:
        yield from _literals(each, (*path, step))


def differing_literals(plans: Sequence[RunPlan]) -> tuple[dict[str, list[LiteralPlace]], dict[str, list[Path]]]:
    """Return by name the literals in which plans of the same shape differ, and the paths of the same values in their outputs.

    The names are those of the tools' parameters. Raises `RunError` for plans that differ in anything else.
    """
    first = plans[0]
    for other in plans[1:]:
        tools = [[call.get("_tool") for call in plan.calls] for plan in (first, other)]
        if tools[0] != tools[1]:
            raise RunError(
                f"the plans of {first.run_id} and {other.run_id} have different calls, so they have no common shape"
            )
    named: dict[str, list[LiteralPlace]] = {}
    names: dict[str, str] = {}
    for index, call in enumerate(first.calls):
        for path in _differences([plan.calls[index] for plan in plans], (), f"{first.ids[index]} differs"):
            values = dumps([_value(plan.calls[index], path) for plan in plans])
            if values not in names:
                names[values] = _new_name(call, path, first, named)
            named.setdefault(names[values], []).append((index, path))
    outputs: dict[str, list[Path]] = {}
    for path in _differences([plan.output for plan in plans], (), "the output differs"):
        values = dumps([_value(plan.output, path) for plan in plans])
        if values not in names:
            at = "".join(path_step(step) for step in path)
            raise RunError(f"the output differs at ${at} between the runs, and no input has these values")
        outputs.setdefault(names[values], []).append(path)
    return named, outputs


def _differences(values: Sequence[Json], path: Path, where: str) -> Iterator[Path]:
    first = values[0]
    if all(each == first and type(each) is type(first) for each in values[1:]):
        return
    step = path[-1] if path else ""
    fixed = isinstance(step, str) and step.startswith("_") and step not in _WALKED
    alike = not fixed and all(type(each) is type(first) for each in values)
    whole = bool(path) and step != BODY and not fixed and all(map(is_literal, values))
    if alike and isinstance(first, dict) and all([*each] == [*first] for each in values):  # type: ignore[misc]
        for key in first:
            yield from _differences([each[key] for each in values], (*path, key), where)  # type: ignore[index,call-overload]
    elif whole:
        yield path
    elif alike and isinstance(first, list) and all(len(each) == len(first) for each in values):  # type: ignore[arg-type]
        for index in range(len(first)):
            yield from _differences([each[index] for each in values], (*path, index), where)  # type: ignore[index]
    else:
        at = "".join(path_step(each) for each in path)
        raise RunError(f"{where} at ${at} between the runs, in more than literals: they have no common shape")


def _new_name(call: JsonObject, path: Path, plan: RunPlan, taken: Mapping[str, object]) -> str:
    steps = [step for step in path if isinstance(step, str) and step not in _WALKED]
    base = re.sub(r"\W", "_", steps[-1] if steps else "items")
    base = base if _INPUT.fullmatch(base) else f"p_{base}"[:64]
    used = {*taken, *(str(each.path[0]) for each in plan.reads if each.kind == "input" and each.path)}
    tool = re.sub(r"\W", "_", str(call.get("_tool")))
    tries = [base, f"{tool}_{base}"[:64], *(f"{base[:60]}_{number}" for number in range(2, 1000))]
    return next(each for each in tries if each not in used)


# The agent file.


def procedure_of(
    plan: RunPlan,
    document: JsonObject,
    name: str,
    chosen: Mapping[str, Sequence[LiteralPlace]],
    outputs: Mapping[str, Sequence[Path]] | None = None,
    runs: Sequence[str] = (),
) -> Procedure:
    """Return the procedure of a run's plan. `document`: the run's agent. `chosen`: by input the literals that it
    replaces. `outputs`: by input the literals of the output that it replaces. Raises `RunError` for inputs that cannot
    be added.
    """
    if not NAME.fullmatch(name):
        raise RunError(f"{name[:80]!r} is not the name of a procedure. Use a letter, then letters, digits, _ and -")
    calls, output = deepcopy(plan.calls), deepcopy(plan.output)
    inputs, schemas = {}, {}
    for each, places in chosen.items():
        if not _INPUT.fullmatch(each):
            raise RunError(f"{each[:80]!r} is not the name of an input. Use letters, digits and _")
        values = [_value(plan.calls[index], path) for index, path in places]
        if any(dumps(value) != dumps(values[0]) for value in values):
            raise RunError(f"the literals of the input {each!r} differ: {_listed(map(plan.name_of, places))}")
        inputs[each] = _resolved(values[0])
        schemas[each] = _schema_at(plan, *places[0])
        for index, path in places:
            _replace(calls[index], path, str(Reference("input", (each,))), plan.name_of((index, path)))
        for path in (outputs or {}).get(each, ()):
            reference = str(Reference("input", (each,)))
            if path:
                _replace(output, path, reference, "the output")
            else:
                output = reference
    message = _input_message(plan, document, schemas)
    agent = _agent_file(document, name, message, calls, output)
    digest = procedure_digest(parse_agent(agent, source=f"the procedure {name}"))
    about: JsonObject = {"version": 1, "digest": digest, "runs": [*(runs or [plan.run_id])]}
    return Procedure(
        name=name,
        digest=about["digest"],
        runs=about["runs"],
        agent={**agent, "metadata": {**(document.get("metadata") or {}), PROCEDURE: about}},
        inputs=inputs,
        places={each: [plan.name_of(place) for place in places] for each, places in chosen.items()},
        frozen={plan.name_of(place): value for place, value in literals(calls)},
        notes=_notes(output),
    )


def procedure_digest(agent: AgentSpec) -> str:
    """Return the digest of a procedure: its plan and output, the tools that it calls, its data, and its input's schema.

    The state counts if the plan may read state that it has not written itself. Instructions, models and policies do not
    count.
    """
    messages = agent.messages()
    plans = [message for message in messages if isinstance(message, PlanMessage)]
    calls = plans[-1].plan if plans else []
    used = {str(call.get("_tool")) for call in _all_calls(calls)}
    tools = [message.tool for message in messages if isinstance(message, ToolMessage)]
    output = plans[-1].output if plans else None
    merged, with_state = merge_data(messages), _reads_earlier_state(calls, output)
    content: JsonObject = {
        "calls": [*calls],
        "output": output,
        "tools": [each for each in tools if (definition_name(each) if isinstance(each, dict) else each) in used],
        "input": [[each.instance, each.data_schema] for each in merged if each.kind == "input"],
        "data": [
            [each.kind, each.instance, each.value]
            for each in merged
            if each.exists and each.kind != "input" and (each.kind != "state" or (with_state and each.value))
        ],
    }
    return f"sha256:{hashlib.sha256(dumps(content, sort_keys=True).encode(errors='replace')).hexdigest()}"


def _all_calls(calls: Sequence[Json]) -> Iterator[JsonObject]:
    """Yield the calls, and the calls of their bodies."""
    for call in calls:
        if isinstance(call, dict):
            yield call
            body = call.get(BODY)
            yield from _all_calls(body if isinstance(body, list) else [])


def _reads_earlier_state(calls: Sequence[JsonObject], output: Json) -> bool:
    """Whether the plan may read state that none of its calls has written as a whole. In doubt it may."""
    every = [*_all_calls(calls)]
    whole = [call.get(_OUTPUT_PATH) for call in every if call.get("_outputMethod", "set") == "set"]
    written = {found[1] for path in whole if (found := _WHOLE_PATH.fullmatch(str(path)))}
    left = [{key: value for key, value in call.items() if key not in (_OUTPUT_PATH, BODY)} for call in every]
    read: list[str] = _STATE.findall(dumps([output, *left]))
    return any("_instance" in call for call in every) or not written.issuperset(read)


def _agent_file(
    document: JsonObject, name: str, message: JsonObject | None, calls: list[JsonObject], output: Json
) -> JsonObject:
    context: list[Json] = []
    for each in document.get("context") or []:
        kind = each.get("type") if isinstance(each, dict) else None
        own_input = kind == "input" and each.get("instance") is None and message is not None
        if kind != "plan" and not own_input:
            context.append(each)
    context += [message] if message is not None else []
    frozen: JsonObject = {"type": "plan", "plan": [*calls]} | ({"output": output} if output is not None else {})
    # A procedure runs the whole Solution: `step` would send a Request after each of its levels.
    config = {key: value for key, value in (document.get("config") or {}).items() if key != "execution"}
    if len(calls) > parse_agent(document).config.max_calls:
        config["max_calls"] = len(calls)  # the run's own limit is for one Request
    return {**document, "name": name, "context": [*context, frozen], "config": {**config, "start": "plan"}}


def _notes(output: Json) -> list[str]:
    if output is None:
        return [
            "the model wrote the run's answer as text: in the procedure, a model writes the answer from the results"
        ]
    if is_literal(output):
        return ["the output reads no result: every run of the procedure returns the same output"]
    return []


def _input_message(plan: RunPlan, document: JsonObject, schemas: Mapping[str, Json]) -> JsonObject | None:
    """Return the message that describes the procedure's input; `None`: the agent's message stays."""
    if not schemas:
        return None
    reads = [each for each in plan.reads if each.kind == "input"]
    value = plan.input
    if any(not each.path for each in reads) or (reads and not isinstance(value, dict)):
        raise RunError("the plan reads the run's input as a whole, so no literal can become another input")
    own = [
        each
        for each in document.get("context") or []
        if isinstance(each, dict) and each.get("type") == "input" and each.get("instance") is None
    ]
    given: JsonObject = next((each["schema"] for each in reversed(own) if isinstance(each.get("schema"), dict)), {})
    properties = given.get("properties", {})
    if not isinstance(properties, dict) or {"anyOf", "oneOf", "allOf", "$ref", "nullable"} & given.keys():
        raise RunError("the agent's schema of its input is not a plain list of properties, so no input can be added")
    if taken := [each for each in schemas if each in properties or any(each == str(r.path[0]) for r in reads)]:
        raise RunError(f"the agent already has an input {taken[0]!r}: choose another name")
    known = value if isinstance(value, dict) else {}
    read = sorted({str(each.path[0]) for each in reads})
    inferred = {each: _type_of(known[each]) if each in known else {} for each in read if each not in properties}
    schema = {
        **given,
        "type": "object",
        "properties": {**properties, **inferred, **schemas},
        "required": [*(each for each in read if each in known), *schemas],
    }
    return {"type": "input", "schema": schema}


def _schema_at(plan: RunPlan, index: int, path: Path) -> Json:
    """Return the schema of a literal: the schema of the tool's parameter, else the type of its value."""
    call: Json = plan.calls[index]
    start, at = call, call
    rest = path
    for number, step in enumerate(path):
        at = at[step]  # type: ignore[index]  # the place of a literal that is there
        if isinstance(at, dict) and "_tool" in at:
            start, rest = at, path[number + 1 :]
    tool = plan.tools.get(str(start.get("_tool"))) if isinstance(start, dict) else None
    schema: Json = {} if tool is None else tool.parameters
    for step in rest:
        inside = schema if isinstance(schema, dict) else {}
        properties = inside.get("properties")
        known = properties if isinstance(properties, dict) else {}
        found = inside.get("items") if isinstance(step, int) else known.get(step)
        schema = found if isinstance(found, dict) else {}
    return schema if schema and '"$ref"' not in dumps(schema) else _type_of(get(call, path))


def _type_of(value: Json | Missing) -> JsonObject:
    kinds = ((bool, "boolean"), (int | float, "number"), (str, "string"), (list, "array"), (dict, "object"))
    return next(({"type": name} for kind, name in kinds if isinstance(value, kind)), {})


def _replace(value: Json, path: Path, reference: str, where: str) -> None:
    inside = get(value, path[:-1])
    last = path[-1]
    if get(inside, path[-1:]) is MISSING or not isinstance(inside, dict | list):
        raise RunError(f"{where} is inside a literal that is already an input")
    inside[last if isinstance(inside, dict) else int(last)] = reference  # type: ignore[index]


def _resolved(literal: Json) -> Json:
    """Return the value of a literal: in a plan `††` is the text `†`."""
    found: Json = parse_template(literal)[0].resolve(lambda _: MISSING)
    return found


def _value(value: Json, path: Path) -> Json:
    found = get(value, path)
    return None if found is MISSING else found


def _path_of(text: str) -> Path | None:
    try:
        found = parse_expression(f"†call{text}")
    except ReferenceSyntaxError:
        return None
    return found.path if isinstance(found, Reference) and found.path else None


def _keys_of(value: Json | Missing, path: Path) -> Path:
    """Return a path of an existing value, with each list index as a number: `.0` and `[0]` are one place."""
    keys: list[str | int] = []
    for step in path:
        keys.append(int(step) if isinstance(value, list) else str(step))
        value = step_into(value, step)
    return tuple(keys)


def _listed(names: Iterable[str]) -> str:
    listed = [*names]
    return ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
