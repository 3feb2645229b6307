"""Gold sequences of public datasets, read as plans."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from perdure.tools.definitions import own_names
from perdure.values.arguments import check_arguments_of
from perdure.values.json import Json, JsonObject
from perdure.values.references import Path, show

_LABELLED: Final = re.compile(r"\$(?P<label>\w+)(?:\.(?P<path>[^$]+))?\$")
"""A reference in NESTFUL: `$var1.geoId$`, `$var_1.result$`, `$var3$`."""
_NUMBERED: Final = re.compile(r"\b(?P<label>API_call_\d+)\b")
"""A reference in NesTools and Seal-Tools: `API_call_0`."""
_RESULT: Final = "var_result"
"""The name of the call that is the answer, in NESTFUL."""


@check_arguments_of
def gold_plan(
    calls: Sequence[Mapping[str, Any]], *, tools: Iterable[Mapping[str, Any]] = (), whole: str | None = "result"
) -> JsonObject:
    """Return a gold sequence of NESTFUL, NesTools or Seal-Tools as a plan: `{"calls": […], "output": …}`.

    `calls`: the dataset's calls: `name`, `arguments` and `label`, or `api_name` (`api`), `parameters` and `responses`.
    `tools`: the dataset's definitions, whose `responses` name the fields of a result; without them a call with one
    response returns that value itself. `whole`: the field of a label that stands for the whole result; `None`: none.
    The output is that of NESTFUL's `var_result`, else the last call's result. A parameter `_from` becomes `from_`, the
    name in Perdure's tools.

    Raises `ValueError` for a call without a name, and for a reference to no earlier call.

    ```python
    plan = gold_plan([{"name": "add", "label": "$var_1", "arguments": {"a": 1, "b": 2}}])
    assert plan["output"] == "†state.var_1"
    ```
    """
    fields = {_name_of(each, "tools"): list(each.get("responses") or ()) for each in tools}
    known: dict[str, Path] = {}
    written: list[Json] = []
    output: Json = None
    for number, call in enumerate(calls):
        where = f"call {number}"
        name = _name_of(call, where)
        given = call.get("arguments", call.get("parameters")) or {}
        aliases = {own: alias for alias, own in own_names(dict(given)).items()}
        params = {aliases.get(key, key): _value(each, known, f"{where} ({name})", whole) for key, each in given.items()}
        if name == _RESULT:
            output = params
            continue
        label = str(call.get("label") or f"call_{number}").strip("$")
        path: Path = (label,)
        written.append({"_tool": name, **params, "_outputPath": show(path)})
        output = show(path)
        known[label] = path
        responses = list(call.get("responses") or ())
        named = fields.get(name, [])
        if len(responses) > 1 and len(named) < len(responses):
            raise ValueError(
                f"{where} ({name}) has {len(responses)} responses: give tools= with the fields of its result"
            )
        for place, response in enumerate(responses):
            known[str(response)] = (*path, named[place]) if place < len(named) else path
    return {"calls": written, "output": output}


def _name_of(each: Mapping[str, Any], where: str) -> str:
    for key in ("name", "api_name", "api"):
        if isinstance(name := each.get(key), str) and name:
            return name
    raise ValueError(f"{where}: it has no name: expected 'name', 'api_name' or 'api'")


def _value(value: Any, known: Mapping[str, Path], where: str, whole: str | None) -> Json:
    """Return a parameter with the dataset's references as Perdure's."""
    if isinstance(value, Mapping):
        return {str(key): _value(each, known, where, whole) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_value(each, known, where, whole) for each in value]
    if not isinstance(value, str):
        found: Json = value
        return found
    for form in (_LABELLED, _NUMBERED):
        if (only := form.fullmatch(value)) is not None:
            return _reference(only, known, where, whole)
    text = value.replace("†", "††")
    for form in (_LABELLED, _NUMBERED):
        text = form.sub(lambda found: f"{{{_reference(found, known, where, whole)}}}", text)
    return text


def _reference(found: re.Match[str], known: Mapping[str, Path], where: str, whole: str | None) -> str:
    label = found["label"]
    if label not in known:
        raise ValueError(f"{where}: no earlier call returns {found[0]}")
    steps = [each for each in re.split(r"[.\[\]]+", found.groupdict().get("path") or "") if each]
    if whole is not None and steps[:1] == [whole]:
        steps = steps[1:]
    return show((*known[label], *(int(each) if each.isdigit() else each for each in steps)))
