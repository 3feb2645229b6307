"""The dialect `tools`: native function calling; text without tool calls is the answer (R9.2)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from perdure.model.composing import compose, function_schema
from perdure.model.dialects.asking import CONTROL, LOOPS, Ask, plan_text, tool_notes, written_names
from perdure.model.dialects.tools_reader import ToolsReader
from perdure.model.wire import Vocabulary
from perdure.tools.tool import Tool
from perdure.values.jsons import JsonObject, dumps

HOW_TO_CALL: Final = """\
Call functions to act; call all that can be made now at once, they run in parallel. Keys with "_" are the engine's:
- "_outputPath": "†state.name" keeps a result under a name. Another argument may then be "†state.name.field" instead of a value, \
also in the same answer: the engine waits for it. To pass a result on, refer to it: never copy it out. "†input.x" is input data; \
inside a longer text write {†state.name}.
- "a || b" is the first that exists; "a && b" waits for both and is b. "_outputPath": "†state.ok || †state.error" is a branch: \
success writes the first, failure the last.
- "_after": ["†state.name"] starts a call only after those that write these have succeeded: order where no value is passed on; "ended †state.name" once these have ended, however.
- "_outputMethod": set (default), merge, assign, push or concat.
When the task is solved, answer without calling anything: that ends it. The answer may refer to kept results too: {†state.name.field}."""

_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_NAME: Final = 64


class ToolsDialect:
    """See the module."""

    how: Final = HOW_TO_CALL
    control: Final = CONTROL
    text_answers: Final = True
    keeps_turns: Final = True

    def only_output(self, ask: Ask) -> str:
        return "Answer in plain text" if ask.output in (True, {}) else 'Answer with one JSON object {"output": …}'

    def tools_text(self, ask: Ask) -> str:
        schema = "" if ask.output in (True, {}) else f"The answer is to fit this schema: {dumps(ask.output)}"
        return schema if ask.tools else f"There are no functions to call. {schema}".strip()

    def plan(self, calls: list[JsonObject], ask: Ask) -> str:
        return plan_text(calls)

    def parameters(self, ask: Ask) -> JsonObject:
        """`tools`, or for an output alone the form that it has to have."""
        if ask.final and ask.output not in (True, {}):
            schema = {"name": "answer", "schema": compose({}, ask.output, final=True)}
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
        names = written_names(function_names(ask.tools))
        functions = [self._function(names[name], tool, ask) for name, tool in ask.tools.items() if not ask.final]
        return {"tools": functions} if functions else {}

    @staticmethod
    def _function(name: str, tool: Tool, ask: Ask) -> JsonObject:
        function = {
            "name": name,
            "description": " ".join(tool_notes(tool, LOOPS))[:1024],
            "parameters": function_schema(tool, ask.instances, control=ask.control),
        }
        return {"type": "function", "function": function}

    def vocabulary(self, tools: Mapping[str, Tool], kinds: list[str]) -> Vocabulary:
        return Vocabulary(names={name: tool for name, tool in function_names(tools).items() if name != tool})

    def reader(self, vocabulary: Vocabulary) -> ToolsReader:
        return ToolsReader(vocabulary.names)


def function_names(tools: Iterable[str]) -> dict[str, str]:
    """Tools by the name under which they are offered: letters, digits, `_` and `-`, at most 64 of them."""
    names: dict[str, str] = {}
    for tool in tools:
        plain = base = _NAME.sub("_", tool)[:_LONGEST_NAME]
        number = 2
        while plain in names:
            plain, number = f"{base[: _LONGEST_NAME - 4]}_{number}", number + 1
        names[plain] = tool
    return names


def turn_messages(turn: JsonObject, names: Mapping[str, str], server: str = "") -> list[JsonObject]:
    """One answer of the model and what became of its calls, as chat messages for a `server`.

    `turn` is `{"type": "turn", "text", "calls": [{"id", "tool", "arguments", "result"}]}`; `names` says how tools are written.
    What stands `beside` turn and calls goes back to the server that it came from, and to no other.
    """
    own = turn.get("server") == server
    said: JsonObject = {"role": "assistant", "content": turn["text"] or None}
    if turn["calls"]:
        said["tool_calls"] = [_said_call(call, names, own=own) for call in turn["calls"]]
        said |= turn["beside"] if own else {}
    results = [{"role": "tool", "tool_call_id": call["id"], "content": call["result"]} for call in turn["calls"]]
    return [said, *results]


def _said_call(call: JsonObject, names: Mapping[str, str], *, own: bool) -> JsonObject:
    name = names.get(call["tool"], _NAME.sub("_", call["tool"])[:_LONGEST_NAME])
    function = {"name": name, "arguments": dumps(call["arguments"])}
    beside: JsonObject = call.get("beside", {}) if own else {}
    return {
        **beside,
        "id": call["id"],
        "type": "function",
        "function": {**beside.get("function", {}), **function},
    }
