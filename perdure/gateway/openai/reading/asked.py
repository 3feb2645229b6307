"""What a request asks for, however its API says it: what is said, what it goes on from, and how its run differs from the agent's file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from perdure.errors import ToolDefinitionError
from perdure.gateway.openai.errors import invalid, refused, unsupported
from perdure.gateway.openai.reading.bodies import Body
from perdure.sessions.wire import digest
from perdure.tools.tool import CLIENT, parse_tool
from perdure.values.jsons import Json, JsonObject

MOST_TOOLS: Final = 128
"""Tools that a client runs itself, in one request."""
APPROVAL_TOOL: Final = "perdure_approval"
"""The function that a client declares to be asked for approvals by its calls: chat completions have no item for them."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a request's input comes to."""

    before: list[JsonObject] = field(default_factory=list)
    """Messages in the chat form that stand before what is said now."""
    texts: list[str] = field(default_factory=list)
    """What is said now; none: the last of `before` is a result that the run goes on with."""
    outputs: dict[str, Json] = field(default_factory=dict)
    """By the call's id as the client was told it: what calls that it carried out have given."""
    verdicts: dict[str, JsonObject] = field(default_factory=dict)
    """By the id of the item that asked: `{"decision", "reason"}`."""
    earlier: list[JsonObject] = field(default_factory=list)
    """Of a history that ends with results: the messages before the calls that they are of."""


@dataclass(frozen=True, slots=True)
class Changes:
    """How the run of a request differs from what the agent's file says."""

    instructions: str | None = None
    tools: list[JsonObject] = field(default_factory=list)
    """As an agent file defines them; the client carries their calls out."""
    sampling: JsonObject = field(default_factory=dict)
    one_by_one: bool = False
    schema: JsonObject | None = None
    """Of the output; `None`: the agent's own."""
    must_call: list[str] = field(default_factory=list)
    """Tools of which the answer has to call one."""

    @property
    def digest(self) -> str:
        """Return the same for the same changes, but for `must_call`: each request that goes on says it anew."""
        said = [self.instructions, self.tools, self.sampling, self.one_by_one, self.schema]
        return digest(said)

    @property
    def names(self) -> set[str]:
        return {str(tool["name"]) for tool in self.tools}


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    model: str
    said: Said
    changes: Changes
    stream: bool
    store: bool
    echo: JsonObject
    """What the response object repeats."""
    items: list[JsonObject] = field(default_factory=list)
    """Its input, as `input_items` lists it."""
    background: bool = False
    previous: str | None = None
    """The response that it follows."""
    conversation: str | None = None
    """The conversation, by its id."""
    approvals: bool = True
    """Whether its client knows what to do where a person is asked."""
    approval_tool: bool = False
    """Whether it declares the function by whose calls it is asked for approvals."""
    chat: bool = False
    """Whether it is a chat completion."""
    with_usage: bool = False
    """Of a chat completion: a last chunk tells the usage."""


def read_tools(body: Body, of: str) -> list[JsonObject]:
    """The functions of `tools`, each in OpenAI's `of` ("responses", where it stands flat, or "chat"), as an agent file defines tools."""
    tools = body.list("tools")
    if len(tools) > MOST_TOOLS:
        raise invalid("tools", f"at most {MOST_TOOLS} tools")
    found: dict[str, JsonObject] = {}
    for at, tool in enumerate(tools):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind != "function":
            raise unsupported(
                f"tools[{at}].type", f"{kind!r} is no tool of a client's; the agent has its own, and takes 'function'"
            )
        function = tool.get("function") if of == "chat" else tool
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not 0 < len(name) <= 64 or not name.replace("_", "").replace("-", "").isalnum():
            raise invalid(f"tools[{at}].name", "1 to 64 letters, digits, '_' and '-'")
        if name in found:
            raise refused(f"two tools are called {name!r}", f"tools[{at}].name", "invalid_value")
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        if not isinstance(parameters, dict):
            raise invalid(f"tools[{at}].parameters", "a JSON Schema of an object")
        about = {"name": name, "parameters": parameters}
        if isinstance(function.get("description"), str):
            about["description"] = function["description"]
        found[name] = {**about, "_activity": CLIENT}
        try:
            parse_tool(found[name])
        except ToolDefinitionError as error:
            raise invalid(f"tools[{at}]", f"a function: {error}") from None
    return list(found.values())


def without_approval(tools: list[JsonObject]) -> tuple[list[JsonObject], bool]:
    """Return the tools that are the agent's to call, and whether the one for approvals was among them."""
    kept = [tool for tool in tools if tool["name"] != APPROVAL_TOOL]
    return kept, len(kept) < len(tools)


def choose_tools(body: Body, tools: list[JsonObject]) -> tuple[list[JsonObject], list[str]]:
    """Return the tools that `tool_choice` leaves, and those of which the answer has to call one."""
    choice = body.get("tool_choice")
    names = [str(tool["name"]) for tool in tools]
    if choice in (None, "auto"):
        return tools, []
    if choice == "none":
        return [], []
    if choice == "required":
        if not names:
            raise refused("'tool_choice' is 'required', and there are no 'tools'", "tool_choice", "invalid_value")
        return tools, names
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "function":
        return tools, [_chosen(choice, names)]
    if kind == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)  # chat completions have it one level deeper
        listed = allowed.get("tools") if isinstance(allowed, dict) else None
        if not isinstance(listed, list) or not listed or allowed.get("mode") not in ("auto", "required"):
            raise invalid("tool_choice", "of the type 'allowed_tools' with a 'mode', 'auto' or 'required', and 'tools'")
        chosen = [_chosen(each, names) for each in listed]
        kept = [tool for tool in tools if tool["name"] in chosen]
        return kept, chosen if allowed["mode"] == "required" else []
    raise invalid("tool_choice", "'auto', 'none', 'required', or an object of the type 'function' or 'allowed_tools'")


def _chosen(choice: Json, names: list[str]) -> str:
    """Return the name of a function that is one of the request's."""
    about = choice.get("function", choice) if isinstance(choice, dict) else None
    name = about.get("name") if isinstance(about, dict) else None
    if name not in names:
        raise invalid("tool_choice", f"the name of one of 'tools', and {str(name)[:80]!r} is none")
    return str(name)


def read_schema(format: Any, param: str) -> JsonObject | None:
    """The schema of the output that is asked for; `None`: none. `format`: flat, or with `json_schema` below it."""
    if format is None or format == {"type": "text"}:
        return None
    if not isinstance(format, dict):
        raise invalid(param, "an object")
    if format.get("type") == "json_object":
        return {"type": "object"}
    given = format.get("json_schema", format)
    schema = given.get("schema") if isinstance(given, dict) else None
    if format.get("type") != "json_schema" or not isinstance(schema, dict):
        raise invalid(param, "of the type 'text', 'json_object', or 'json_schema' with a 'schema'")
    return schema


def read_sampling(body: Body, tokens: int | None, effort: str | None) -> JsonObject:
    """How the run's models are to write (R9.8)."""
    found = {
        "temperature": body.number("temperature", 0, 2),
        "top_p": body.number("top_p", 0, 1),
        "max_tokens": tokens,
        "reasoning_effort": effort,
    }
    return {key: value for key, value in found.items() if value is not None}
