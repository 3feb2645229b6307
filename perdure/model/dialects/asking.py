"""What a dialect is told of a Request, and the words that several of them share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from perdure.tools.tool import Tool
from perdure.values.jsons import Json, JsonObject, dumps

LOOPS: Final = (
    'Another agent. With "_each": "†state.list" it runs once per item and has †input.item and †input.index ("_parallel" at a '
    'time, default 8); the result is the array of its outputs. With "_until": "†output.done" it is repeated until that is true '
    '("_max" times at most, default 20), and has its last output as †state.previous.'
)

CONTROL: Final = """\
- Compute with {"_expr": "…"}, a Python expression, wherever a value stands: {"_expr": "[h.name for h in state.hosts if h.cpu > 90]"}. \
It has operators, comparisons, comprehensions, f-strings and len sum min max sorted any all round str int float.
- "_if": "len(state.hosts) > 3" makes a call only if that holds; what reads it is skipped otherwise.
- "_each": "†state.hosts", or {"_expr": "…"}, makes a call for each item, which is †item in its parameters and item in expressions (its \
place is †index); eight at a time, or "_parallel". Its result is the array of theirs. "_until": "output.done" makes it again until that holds."""
"""How formulas, conditions and loops are written in JSON (R16.1 to R16.3)."""


@dataclass(frozen=True)
class Ask:
    """One Request: what may be called, and what the output has to fit."""

    tools: Mapping[str, Tool] = field(default_factory=dict)
    taught: Mapping[str, Tool] | None = None
    """What the prompt tells of, where that is not what may be called: the same for all Requests of a run, for prompt caches (R10.19)."""
    output: JsonObject | bool = True
    """JSON Schema."""
    final: bool = False
    """Only an output is wanted: no calls."""
    max_calls: int | None = None
    parallel: int | None = None
    """How many of them run at once; `None` is no limit."""
    instances: Sequence[str] = ()
    kinds: Sequence[str] = ()
    """The kinds of data that references can name, beside `state`."""
    control: bool = False
    """Whether the model is taught formulas and conditions (R16)."""
    server: str = ""
    """Who is asked; see `perdure.model.beside`."""

    @property
    def known(self) -> Mapping[str, Tool]:
        """The tools that the prompt tells of."""
        return self.tools if self.taught is None else self.taught


def written_names(names: Mapping[str, str]) -> dict[str, str]:
    """Tool → how it is written, of names as written → tool."""
    return {tool: name for name, tool in names.items()}


def plan_text(calls: Sequence[JsonObject]) -> str:
    """A plan message's calls, one JSON object a line."""
    return "\n".join(dumps(call) for call in calls)


def tools_text(tools: Mapping[str, Tool], output_schema: Json) -> str:
    """What each tool is and takes, and the output's schema."""
    lines = ["Tools:"] if tools else ["There are no tools."]
    lines += [
        f"- {tool.name} {dumps(parameters_text(tool.parameters))}" + "".join(f"\n  {note}" for note in tool_notes(tool))
        for tool in tools.values()
    ]
    lines.append(f"Schema of the output: {dumps(output_schema)}")
    return "\n".join(lines)


def tool_notes(tool: Tool, loops: str = LOOPS) -> list[str]:
    """What is to be known of a tool beside its parameters."""
    notes = []
    if tool.description and tool.description != tool.name:
        notes.append(tool.description.strip())
    if tool.output_path:
        notes.append(f"Always writes to {tool.output_path}.")
    if tool.exclusive_group is not None:
        notes.append("Its calls run one at a time.")
    if tool.delegate is not None:
        notes.append(loops)
    if tool.scope_choice is not None:
        notes.append(f"_scopes: a list of what of this context it is given, from {', '.join(tool.scope_choice)}.")
    if tool.latent:
        schema = "" if tool.output is None else f", which must fit {dumps(tool.output)}"
        notes.append(f"It has no code: write its result yourself as _output{schema}.")
    elif tool.output is not None:
        notes.append(f"Returns {dumps(tool.output)}.")
    return notes


def parameters_text(parameters: JsonObject) -> JsonObject:
    """The parameters' schema without what says nothing."""
    return {key: value for key, value in parameters.items() if key != "type" and value not in ({}, [])}
