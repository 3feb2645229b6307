"""What the model reads: how to plan, and the context as chat messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from perdure.agents import Context
from perdure.instances import split_state
from perdure.jsons import Json, JsonObject, dumps, shorten
from perdure.tools import Tool

HOW_TO_PLAN: Final = """\
You plan; an engine acts. Answer with one JSON object: {"calls": [...], "output": ...}, calls first.

calls: what to do now. Each is {"_tool": name, parameters…, "_outputPath": "†state.some.name"}. The engine runs every call as \
soon as what it reads is there, all that can in parallel; the order of the list does not matter where the wiring tells it.
- A parameter may be a reference instead of a value: "†state.profile.name", "†input.items[0]", "†state[\\"odd key\\"]". Inside a \
longer text write {†state.name}. To pass a result on, write it to a path and refer to it: never copy it out.
- "a || b" is the first that exists; "a && b" waits for both and is b. Both join references and output paths.
- "_outputPath": "†state.ok || †state.error" is a branch: success writes the first, failure {"code","message"} to the last. What \
reads the path not taken is skipped.
- "_outputMethod": set (default), merge, assign, push or concat. Without an _outputPath a result is shown to you, but no call can \
read it.
- The graph must have no cycle, and every path read must exist or be written by a call.
output: null while calls' results are needed to decide; else the answer. When the task is solved, give the output: no further \
calls are needed.
Errors you are shown are yours to correct: answer with new calls. Do not repeat calls that are done."""

LOOPS: Final = (
    'Another agent. With "_each": "†state.list" it runs once per item and has †input.item and †input.index ("_parallel" at a '
    'time, default 8); the result is the array of its outputs. With "_until": "†output.done" it is repeated until that is true '
    '("_max" times at most, default 20), and has its last output as †state.previous.'
)

INSTANCES: Final = (
    'The context has instances that know nothing of each other: {names}. A call with "_instance": name reads that one\'s data '
    "(and what is shared) and writes to its state; write references without the instance's name. A call without it only sees "
    "and writes what is shared. To do the same for several instances, write the calls for each."
)

FINAL: Final = (
    'No more calls can be made: {limit}. Answer with {{"output": …}}: the best answer that what is known so far allows.'
)


def chat_messages(
    context: Context,
    tools: Mapping[str, Tool],
    *,
    state: JsonObject,
    results: JsonObject,
    history: Sequence[JsonObject],
    output_schema: Json,
    final: str | None = None,
) -> list[dict[str, str]]:
    """The context of one Request as chat messages.

    `results` holds by call id what went to no path (R4.4); `history` the plan, error and feedback messages in their order.
    A `final` reason asks for the output alone (R9.5).
    """
    how = [HOW_TO_PLAN, *([INSTANCES.format(names=", ".join(context.instances))] if context.instances else [])]
    system = "\n\n".join([*context.system, *how, _tools_text(tools, output_schema)])
    chat = [{"role": "system", "content": system}]
    chat += [{"role": text.role, "content": text.text} for text in context.texts]
    for merged in context.data:
        title = merged.kind if merged.instance is None else f"{merged.kind} (instance {merged.instance})"
        chat.append(_user(title, merged.value if merged.exists else None, merged.description, merged.data_schema))
    shared, own = split_state(state, context.instances)
    if shared or context.state.data_schema is not None:
        chat.append(_user("state", shared, context.state.description, context.state.data_schema))
    chat += [_user(f"state (instance {name})", value) for name, value in own.items()]
    if results:
        chat.append(_user("results", results, "What calls without an _outputPath returned, by call id."))
    chat += [_history_text(message) for message in history]
    if final is not None:
        chat.append({"role": "user", "content": FINAL.format(limit=final)})
    if len(chat) == 1:
        chat.append({"role": "user", "content": "Begin."})
    return chat


def _user(title: str, value: Json, description: str = "", schema: JsonObject | None = None) -> dict[str, str]:
    lines = [f"# {title}"]
    if description:
        lines.append(description)
    if schema is not None:
        lines.append(f"schema: {dumps(schema)}")
    if value is not None or schema is None:
        lines.append(dumps(value))
    return {"role": "user", "content": "\n".join(lines)}


def _history_text(message: JsonObject) -> dict[str, str]:
    kind = message["type"]
    if kind == "plan":
        lines = ["# plan: the calls so far, with their status", *(dumps(call) for call in message["plan"])]
        return {"role": "user", "content": "\n".join(lines)}
    body = {key: value for key, value in message.items() if key != "type"}
    return {"role": "user", "content": f"# {kind}\n{dumps(body)}"}


def _tools_text(tools: Mapping[str, Tool], output_schema: Json) -> str:
    lines = ["Tools:"] if tools else ["There are no tools."]
    lines += [_tool_text(tool) for tool in tools.values()]
    lines.append(f"Schema of the output: {dumps(output_schema)}")
    return "\n".join(lines)


def _tool_text(tool: Tool) -> str:
    notes = []
    if tool.description and tool.description != tool.name:
        notes.append(tool.description.strip())
    if tool.output_path:
        notes.append(f"Always writes to {tool.output_path}.")
    if tool.delegate is not None:
        notes.append(LOOPS)
    if tool.scope_choice is not None:
        notes.append(f"_scopes: a list of what of this context it is given, from {', '.join(tool.scope_choice)}.")
    if tool.latent:
        notes.append(f"It has no code: write its result yourself as _output{_of(tool.output)}.")
    elif tool.output is not None:
        notes.append(f"Returns {dumps(tool.output)}.")
    return f"- {tool.name} {dumps(_parameters(tool.parameters))}" + "".join(f"\n  {note}" for note in notes)


def _parameters(parameters: JsonObject) -> JsonObject:
    """The parameters' schema without what says nothing."""
    return {key: value for key, value in parameters.items() if key != "type" and value not in ({}, [])}


def _of(schema: JsonObject | None) -> str:
    return "" if schema is None else f", which must fit {dumps(schema)}"


def call_line(raw: Mapping[str, Any], limit: int = 100) -> str:
    """A call's parameters on one line, for summaries and tables."""
    return ", ".join(f"{key}={shorten(value, 40)}" for key, value in raw.items() if not key.startswith("_"))[:limit]
