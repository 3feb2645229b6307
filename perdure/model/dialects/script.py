"""The dialect `script`: a plan in Python's call syntax, read and never executed (R9.2). Tokens are time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from perdure.model.dialects.asking import Ask, parameters_text, tool_notes, written_names
from perdure.model.dialects.scripts.reader import ScriptReader
from perdure.model.dialects.scripts.writer import is_name, write_call
from perdure.model.wire import Vocabulary
from perdure.tools.tool import Tool
from perdure.values.jsons import Json, JsonObject, dumps

HOW_TO_SCRIPT: Final = """\
You plan; an engine acts. Answer only with calls in Python syntax, one per line:
user = fetchUser(name=input.name)
receipt, error = pay(amount=user.total)
output(text=receipt.text)
- A line runs once what it reads is there, all that can in parallel.
- The name before = keeps the result: pass on user.name, items[0] or d["odd key"], never copy values. Without a name you only see \
the result.
- input.x is input data. In text write "Dear {†state.user.name}".
- a or b: the first that exists; a and b: waits for both, is b. x, error = …: failure goes to error, and what reads the one not \
written is skipped. a = b = f() writes both.
- Arguments: names, text, numbers, True, False, None, lists, dicts.
- _outputMethod="push" (merge, assign, concat) adds to a value.
- _after=[user, receipt] starts a line only after these have succeeded: order where no value is passed on; _after=["ended †state.user"] once it has ended, however.
- output(value) or output(key=value) ends the task; it may use names as above. Leave it out while you need results to decide.
Correct errors with new lines. Do not repeat calls that are done."""

CONTROL: Final = """\
- Arguments and names may compute: hot = [h for h in hosts if h.cpu > 90], f"{user.name}: {max(loads)} %", total * 2. There are \
operators, comprehensions, f-strings, methods of text, and len sum min max sorted any all round str int float set dict zip enumerate range.
- Calls may stand in calls, and under for, if/elif/else and while (20 rounds at most):
for h in hosts:
    c = check(host=h.name)
    if not c.ok:
        restart(host=h.name)
bad = [x.host for x in c if not x.ok]
- What a for assigns is a list afterwards, with None where nothing was made; so is [check(host=h.name) for h in hosts]. Its rounds \
run in parallel and do not see each other: no break, no n = n + 1. A while's rounds follow each other.
- There is no def, import, try or return."""

LOOPS: Final = (
    "Another agent. With _each=list it runs once per item and has †input.item and †input.index (_parallel=8 at a time); the result "
    "is the list of its outputs. With _until=output.done it is repeated until that is true (_max=20 times at most)."
)

_NOT_IN_A_NAME: Final = re.compile(r"\W")


class ScriptDialect:
    """See the module."""

    how: Final = HOW_TO_SCRIPT
    control: Final = CONTROL
    text_answers: Final = False
    keeps_turns: Final = False

    def only_output(self, ask: Ask) -> str:
        return "Answer with one line: output(…)"

    def tools_text(self, ask: Ask) -> str:
        """Each tool as a signature, with what a signature cannot say below it."""
        lines = ["Tools:"] if ask.tools else ["There are no tools."]
        names = written_names(script_names(ask.tools))
        for tool in ask.tools.values():
            lines.append(f"- {names[tool.name]}({', '.join(_signature(tool))})")
            lines += [f"  {note}" for note in [*tool_notes(tool, LOOPS), *_details(tool)]]
        lines.append(f"Schema of the output: {dumps(ask.output)}")
        return "\n".join(lines)

    def plan(self, calls: list[JsonObject], ask: Ask) -> str:
        """The calls as lines of script, with their status as comments."""
        names = written_names(script_names(ask.tools))
        return "\n".join(_noted(call, names, ask.kinds) for call in calls)

    def parameters(self, ask: Ask) -> JsonObject:
        return {}

    def vocabulary(self, tools: Mapping[str, Tool], kinds: list[str]) -> Vocabulary:
        return Vocabulary(
            names=script_names(tools),
            parameters={name: list(tool.parameters.get("properties", {})) for name, tool in tools.items()},
            kinds=kinds,
        )

    def reader(self, vocabulary: Vocabulary) -> ScriptReader:
        return ScriptReader(vocabulary)


def script_names(tools: Iterable[str]) -> dict[str, str]:
    """Tools by the name under which a script calls them: itself, or the nearest that Python's syntax allows."""
    names: dict[str, str] = {}
    for tool in tools:
        plain = tool
        if not all(is_name(part) for part in tool.split(".")) or tool == "output":
            plain = _NOT_IN_A_NAME.sub("_", tool)
            if plain[:1].isdigit():
                plain = f"_{plain}"
            elif not is_name(plain) or plain == "output":
                plain = f"{plain}_"
        while plain in names:
            plain += "_"
        names[plain] = tool
    return names


def _signature(tool: Tool) -> list[str]:
    required = tool.parameters.get("required", [])
    return [
        f"{name}{'' if name in required else '?'}: {_kind(schema)}"
        for name, schema in tool.parameters.get("properties", {}).items()
    ]


def _kind(schema: Json) -> str:
    """A parameter's type in a word or two, or its schema."""
    if not isinstance(schema, dict):
        return "any"
    said = {key: value for key, value in schema.items() if key not in ("description", "title", "default")}
    if set(said) == {"type"} and isinstance(said["type"], str):
        return said["type"]
    if set(said) <= {"type", "enum"} and "enum" in said:
        return "|".join(map(dumps, said["enum"]))
    return dumps(said) if said else "any"


def _details(tool: Tool) -> list[str]:
    properties = tool.parameters.get("properties", {})
    details = [
        f"{name}: {schema['description']}"
        for name, schema in properties.items()
        if isinstance(schema, dict) and schema.get("description")
    ]
    more = {
        key: value
        for key, value in parameters_text(tool.parameters).items()
        if key not in ("properties", "required", "additionalProperties", "title")
    }
    return [*details, *([dumps(more)] if more else [])]


def _noted(call: JsonObject, names: Mapping[str, str], kinds: Iterable[str]) -> str:
    notes = [str(call[key]) for key in ("_id", "_status", "_reason") if call.get(key)]
    raw = {key: value for key, value in call.items() if key not in ("_id", "_status", "_reason", "_error")}
    line = raw["_source"] if isinstance(raw.get("_source"), str) else write_call(raw, names=names, kinds=kinds)
    first, *more = line.split("\n")
    return "\n".join([f"{first}  # {' '.join(notes)}".replace("\n", "\\n") if notes else first, *more])
