"""Bodies of OpenAI's clients: each key is used, ignored, or rejected in one line. Errors have OpenAI's form:
`{"error": {"message", "type", "param", "code"}}`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from perdure.errors import AgentError, ToolDefinitionError
from perdure.gateway._idempotency import REUSED
from perdure.gateway.client_tools import MOST_TOOLS, client_tool, is_function_name, parse_result
from perdure.gateway.errors import HttpError, log_problem
from perdure.sessions.wire import digest
from perdure.values.json import Json, JsonObject, ReadOnlyJson, dumps, shorten
from perdure.values.messages import parse_messages
from perdure.values.problems import close_names

NOT_AGAIN: Final = "invalid_request_error"
"""The `type` of errors that clients do not retry."""
_RETRIED_STATUSES: Final = (408, 409, 429)
_ERROR_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ERROR_CODES: Final = {
    401: "invalid_api_key",
    403: "insufficient_permissions",
    413: "request_too_large",
    429: "rate_limit_exceeded",
}
_SENT_AS_400: Final = frozenset({409, 415, 422})
"""Statuses that OpenAI does not use: its clients would retry after a 409."""


def refused(message: str, param: str | None = None, code: str | None = None, *, status: int = 400) -> HttpError:
    """Return the error for a rejected part of a request, in one line. `param`: the part's path."""
    return HttpError(status, message, more={"param": param, "code": code})


def unsupported_error(param: str, why: str) -> HttpError:
    """Return the error for an unsupported parameter that would change the result."""
    return refused(f"'{param}' is not supported here: {why}", param, "unsupported_parameter")


def invalid_error(param: str, wanted: str) -> HttpError:
    """Return the error of an invalid value."""
    return refused(f"'{param}' must be {wanted}", param, "invalid_value")


def ended_badly(message: str, code: str) -> HttpError:
    """Return an error that clients do not retry, for a request whose run has begun: a retry would start a second run.

    Clients retry after a 408, 409, 429 or 5xx, some also after the start of a stream, by the error's `type` and `code`.
    """
    more: JsonObject = {"param": None, "code": code, "type": NOT_AGAIN}
    return HttpError(422, message, more=more, headers={"X-Should-Retry": "false"})


def after_start(error: Exception, id: object) -> HttpError:
    """Return the error for a failure after the run `id` has begun. OpenAI's clients do not retry it."""
    return _not_retried(log_problem(error), id)


def _not_retried(problem: HttpError, id: object) -> HttpError:
    if problem.status < 500 and problem.status not in _RETRIED_STATUSES:
        return problem
    return ended_badly(f"{problem.detail}; the run continues as {id}", "still_running")


def note_begun(request: Request, id: object) -> None:
    """Note that the run of the request has begun, as `id`."""
    request.state.begun = id


def not_found(id: str, what: str = "response") -> HttpError:
    """Return the error for a missing object, and for another tenant's (R10.2)."""
    return refused(f"there is no {what} {id!r}", f"{what}_id", "not_found", status=404)


def error_body(problem: HttpError) -> JsonObject:
    """Return the form's `error` member."""
    kind = (
        problem.more.get("type")
        or _ERROR_TYPES.get(problem.status)
        or ("server_error" if problem.status >= 500 else NOT_AGAIN)
    )
    code = problem.more.get("code") or _ERROR_CODES.get(problem.status)
    if code is None and problem.status in _SENT_AS_400:
        code = problem.kind.replace("-", "_")
    return {"message": problem.detail, "type": kind, "param": problem.more.get("param"), "code": code}


def as_openai(request: Request, problem: HttpError) -> Response:
    """Return the form, with a status that OpenAI's clients know. If the request's run has begun, they do not retry."""
    if (begun := getattr(request.state, "begun", None)) is not None:
        problem = _not_retried(problem, begun)
    bad = problem.status in _SENT_AS_400 and problem.kind != REUSED and "type" not in problem.more
    status = 400 if bad else problem.status
    body = dumps({"error": error_body(problem)})
    return Response(body, status, problem.headers, "application/json")


class RequestBody:
    """A request's JSON. Each method reads one key and raises `HttpError` (400) with its name for an invalid value; `null` is ignored."""

    def __init__(self, body: JsonObject) -> None:
        self.json = body

    def check(
        self, honoured: Collection[str], hints: Collection[str], neutral: dict[str, tuple[str, list[Json]]]
    ) -> None:
        """Reject every key that is not `honoured`, not a hint without effect, and has no neutral value.

        `neutral`: by key, its neutral values and the reason why others are not supported.
        """
        for name, value in self.json.items():
            if value is None or name in honoured or name in hints:
                continue
            if name not in neutral:
                near = close_names(name, [*honoured, *hints, *neutral])
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise refused(f"unknown parameter: {shorten(name, 60)}{hint}", name[:100], "unknown_parameter")
            why, values = neutral[name]
            if value not in values or (isinstance(value, bool) and not any(value is each for each in values)):
                raise unsupported_error(name, why)

    def get(self, name: str) -> Any:
        return self.json.get(name)

    def text(self, name: str) -> str | None:
        found: str | None = self._of(name, str, "a string")
        return found

    def flag(self, name: str, default: bool = False) -> bool:
        found = self._of(name, bool, "true or false")
        return default if found is None else bool(found)

    def number(self, name: str, least: float, most: float) -> float | None:
        value = self.json.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise invalid_error(name, f"a number from {least:g} to {most:g}")
        return value

    def count(self, name: str) -> int | None:
        value = self.json.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**9:
            raise invalid_error(name, "a whole number of 1 or more")
        return value

    def object(self, name: str) -> JsonObject:
        found = self._of(name, dict, "an object")
        return {} if found is None else found

    def list(self, name: str) -> list[Any]:
        found = self._of(name, list, "a list")
        return [] if found is None else found

    def metadata(self) -> dict[str, str]:
        """Return at most 16 pairs of texts."""
        found = self.object("metadata")
        fits = all(isinstance(value, str) and len(value) <= 512 and len(key) <= 64 for key, value in found.items())
        if len(found) > 16 or not fits:
            raise invalid_error(
                "metadata", "an object of at most 16 texts, with keys of at most 64 and texts of at most 512 characters"
            )
        return found

    def _of(self, name: str, kind: type, wanted: str) -> Any:
        value = self.json.get(name)
        if value is not None and not isinstance(value, kind):
            raise invalid_error(name, wanted)
        return value


APPROVAL_TOOL: Final = "perdure_approval"
"""The function that a client declares to receive approval requests as calls: chat completions have no item for them."""


@dataclass(frozen=True, slots=True)
class ClientInput:
    """The content of a request's input."""

    before: list[JsonObject] = field(default_factory=list)
    """Earlier messages, in the form of chat completions."""
    texts: list[str] = field(default_factory=list)
    """The present messages; none: the run continues with the result that ends `before`."""
    outputs: dict[str, Json] = field(default_factory=dict)
    """The results of the client's own calls, by the client's id of the call."""
    verdicts: dict[str, JsonObject] = field(default_factory=dict)
    """The decisions `{"decision", "reason"}`, by the id of the approval's item."""
    earlier: list[JsonObject] = field(default_factory=list)
    """For a history that ends with results: the messages before their calls."""
    history: list[JsonObject] = field(default_factory=list)
    """All messages as the client sent them, if the request has the whole history."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The differences between the agent's file and the run of a request."""

    instructions: str | None = None
    tools: list[JsonObject] = field(default_factory=list)
    """The client's own tools, as an agent file defines them."""
    sampling: JsonObject = field(default_factory=dict)
    one_by_one: bool = False
    schema: JsonObject | None = None
    """The output's schema; `None`: the agent's own."""
    must_call: list[str] = field(default_factory=list)
    """Tools of which the answer must call one."""

    @property
    def digest(self) -> str:
        """Return the digest of the changes without `must_call`, which each continuing request sets again."""
        parts = [self.instructions, self.tools, self.sampling, self.one_by_one, self.schema]
        return digest(parts)

    @property
    def names(self) -> set[str]:
        return {str(tool["name"]) for tool in self.tools}


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """One parsed request."""

    model: str
    client_input: ClientInput
    changes: Changes
    stream: bool
    store: bool
    echo: JsonObject
    """The parameters that the response object repeats."""
    items: list[JsonObject] = field(default_factory=list)
    """The input's items, as `input_items` lists them."""
    background: bool = False
    previous: str | None = None
    """The id of the previous response."""
    conversation: str | None = None
    """The id of the conversation."""
    approvals: bool = True
    """Whether the client can handle approval requests."""
    approval_tool: bool = False
    """Whether the client declares the function `APPROVAL_TOOL`."""
    chat: bool = False
    """Whether the request is a chat completion."""
    with_usage: bool = False
    """Whether the last chunk of a chat completion has the usage."""


def read_tools(body: RequestBody, of: str) -> list[JsonObject]:
    """Return the functions of `tools`, as an agent file defines tools. `of`: their API, "responses" (flat) or "chat"."""
    tools = body.list("tools")
    if len(tools) > MOST_TOOLS:
        raise invalid_error("tools", f"at most {MOST_TOOLS} tools")
    found: dict[str, JsonObject] = {}
    for at, tool in enumerate(tools):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind != "function":
            raise unsupported_error(
                f"tools[{at}].type",
                f"{kind!r} is not supported as a client's tool: use 'function'",
            )
        function = tool.get("function") if of == "chat" else tool
        name = function.get("name") if isinstance(function, dict) else None
        if not is_function_name(name):
            raise invalid_error(f"tools[{at}].name", "1 to 64 letters, digits, '_' and '-'")
        if name in found:
            raise refused(f"two tools are called {name!r}", f"tools[{at}].name", "invalid_value")
        parameters = function.get("parameters")
        if parameters and not isinstance(parameters, dict):
            raise invalid_error(f"tools[{at}].parameters", "a JSON Schema of an object")
        try:
            found[name] = client_tool(name, parameters, function.get("description"))
        except ToolDefinitionError as error:
            raise invalid_error(f"tools[{at}]", f"a function: {error}") from None
    return list(found.values())


def without_approval(tools: list[JsonObject]) -> tuple[list[JsonObject], bool]:
    """Return the tools without the one for approvals, and whether that one was among them."""
    kept = [tool for tool in tools if tool["name"] != APPROVAL_TOOL]
    return kept, len(kept) < len(tools)


def choose_tools(body: RequestBody, tools: list[JsonObject]) -> tuple[list[JsonObject], list[str]]:
    """Return the tools that `tool_choice` permits, and those of which the answer must call one."""
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
        allowed = choice.get("allowed_tools", choice)  # chat completions nest it one level deeper
        listed = allowed.get("tools") if isinstance(allowed, dict) else None
        if not isinstance(listed, list) or not listed or allowed.get("mode") not in ("auto", "required"):
            raise invalid_error(
                "tool_choice", "an object of the type 'allowed_tools' with a 'mode', 'auto' or 'required', and 'tools'"
            )
        chosen = [_chosen(each, names) for each in listed]
        kept = [tool for tool in tools if tool["name"] in chosen]
        return kept, chosen if allowed["mode"] == "required" else []
    raise invalid_error(
        "tool_choice", "'auto', 'none', 'required', or an object of the type 'function' or 'allowed_tools'"
    )


def _chosen(choice: Json, names: list[str]) -> str:
    """Return the name of the chosen function, which must be one of the request's."""
    about = choice.get("function", choice) if isinstance(choice, dict) else None
    name = about.get("name") if isinstance(about, dict) else None
    if name not in names:
        raise invalid_error("tool_choice", f"the name of one of 'tools', not {str(name)[:80]!r}")
    return str(name)


def read_schema(format: Any, param: str) -> JsonObject | None:
    """Return the requested output schema; `None` without one. `format`: flat, or with a member `json_schema`."""
    if format is None or format == {"type": "text"}:
        return None
    if not isinstance(format, dict):
        raise invalid_error(param, "an object")
    if format.get("type") == "json_object":
        return {"type": "object"}
    given = format.get("json_schema", format)
    schema = given.get("schema") if isinstance(given, dict) else None
    if format.get("type") != "json_schema" or not isinstance(schema, dict):
        raise invalid_error(param, "of the type 'text', 'json_object', or 'json_schema' with a 'schema'")
    return schema


def read_sampling(body: RequestBody, tokens: int | None, effort: str | None) -> JsonObject:
    """Return the sampling settings of the run's models (R9.8)."""
    found = {
        "temperature": body.number("temperature", 0, 2),
        "top_p": body.number("top_p", 0, 1),
        "max_tokens": tokens,
        "reasoning_effort": effort,
    }
    return {key: value for key, value in found.items() if value is not None}


_TEXTS: Final = ("input_text", "output_text", "text", "refusal")
MOST_ITEMS: Final = 2_000


def read_input(value: ReadOnlyJson, *, follows: bool) -> tuple[ClientInput, list[JsonObject]]:
    """Return the content of an `input`, and its items in the form of a list. `follows`: whether it continues a conversation."""
    if value is None:
        raise refused("'input' is missing: a text, or a list of items", "input", "missing_required_parameter")
    written = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not isinstance(written, list) or not written or len(written) > MOST_ITEMS:
        raise invalid_error("input", f"a text, or a list of 1 to {MOST_ITEMS:,} items")
    items = [_item(item, at) for at, item in enumerate(written)]
    return (_following(items) if follows else _opening(items)), items


def _item(item: Any, at: int) -> JsonObject:
    """Return the item with its type, which it may omit."""
    if not isinstance(item, dict):
        raise invalid_error(f"input[{at}]", "an item: an object with a 'type', or a 'role'")
    return item if "type" in item else {"type": "message", **item}


def _following(items: list[JsonObject]) -> ClientInput:
    """Return the new texts, and the results of waiting calls, for an existing conversation."""
    client_input = ClientInput()
    for at, item in enumerate(items):
        where, kind = f"input[{at}]", item["type"]
        if kind == "function_call_output":
            client_input.outputs[_id(item, "call_id", where)] = _result(item.get("output"), where)
        elif kind == "mcp_approval_response":
            client_input.verdicts[_id(item, "approval_request_id", where)] = _verdict(item, where)
        elif kind == "message" and item.get("role") == "user":
            _sort_message(client_input, _message(item, where))
        elif kind == "message" and item.get("role") in ("system", "developer"):
            client_input.before.append(_message(item, where))
        else:
            raise unsupported_error(where, f"{_named(item)} is already part of the conversation: send only new items")
    return client_input


def _sort_message(client_input: ClientInput, message: JsonObject) -> None:
    """Add a message: its text is new input; its pictures come before the text."""
    content = message["content"]
    if isinstance(content, str):
        client_input.texts.append(content)
        return
    client_input.texts.extend(part["text"] for part in content if part["type"] == "text")
    if pictures := [part for part in content if part["type"] != "text"]:
        client_input.before.append({"role": "user", "content": pictures})


def _opening(items: list[JsonObject]) -> ClientInput:
    """Read a whole history: the present messages are its last ones."""
    messages: list[JsonObject] = []
    for at, item in enumerate(items):
        _add(messages, item, f"input[{at}]")
    return of_history(messages, "input")


def of_history(messages: list[JsonObject], where: str) -> ClientInput:
    """Read a history in the form of chat completions: the user's messages or the results at its end are the present ones."""
    first = len(messages)
    while first and messages[first - 1]["role"] == "user":
        first -= 1
    results = first
    while results and messages[results - 1]["role"] == "tool":
        results -= 1
    _check(messages, where)
    client_input = ClientInput(before=messages[:first], history=messages)
    for message in messages[first:]:
        _sort_message(client_input, message)
    if results < first:
        client_input.earlier.extend(messages[: max(0, results - 1)])
        results_of = messages[results:first]
        client_input.outputs.update({str(each["tool_call_id"]): parse_result(each["content"]) for each in results_of})
    if not client_input.texts and not client_input.outputs:
        raise refused(f"'{where}' must end with a user's message or results", where, "invalid_value")
    return client_input


def _check(messages: Sequence[JsonObject], where: str) -> None:
    try:
        parse_messages(messages, where=where)
    except AgentError as error:
        raise refused(str(error), where, "invalid_value") from None


def _add(messages: list[JsonObject], item: JsonObject, where: str) -> None:
    kind = item["type"]
    if kind == "message":
        messages.append(_message(item, where))
    elif kind == "function_call":
        function = {"name": str(item.get("name")), "arguments": str(item.get("arguments") or "{}")}
        call = {"id": _id(item, "call_id", where), "type": "function", "function": function}
        if messages and messages[-1]["role"] == "assistant" and "tool_calls" in messages[-1]:
            messages[-1]["tool_calls"].append(call)
        else:
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    elif kind == "function_call_output":
        content = _text_of(item.get("output"), where)
        messages.append({"role": "tool", "tool_call_id": _id(item, "call_id", where), "content": content})
    elif kind != "reasoning":  # reasoning is left out: the following answer is enough
        raise unsupported_error(where, f"{_named(item)} is not accepted in a history")


def _message(item: JsonObject, where: str) -> JsonObject:
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        raise invalid_error(f"{where}.role", "'user', 'assistant', 'system' or 'developer'")
    return {"role": role, "content": read_content(item.get("content"), f"{where}.content", pictures=role == "user")}


def read_content(content: Any, where: str, *, pictures: bool) -> str | list[JsonObject]:
    """Return a message's content: its text, or with `pictures` its parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise invalid_error(where, "a text, or a list of parts")
    parts = [_part(part, f"{where}[{at}]") for at, part in enumerate(content)]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    if not pictures:
        raise unsupported_error(where, "only a user's message has pictures")
    return parts


def _part(part: Any, where: str) -> JsonObject:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _TEXTS:
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise invalid_error(where, "a part with a text")
        return {"type": "text", "text": text}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        detail = {"detail": part["detail"]} if isinstance(part.get("detail"), str) else {}
        return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
    if kind == "image_url" and isinstance(part.get("image_url"), dict):
        return {"type": "image_url", "image_url": part["image_url"]}
    raise unsupported_error(
        where,
        f"{kind!r} is not a supported part: use texts, pictures by 'image_url', or, with PERDURE_STORAGE, files as base64",
    )


def _result(output: Any, where: str) -> Json:
    return parse_result(_text_of(output, where))


def _text_of(output: Any, where: str) -> str:
    if isinstance(output, str):
        return output
    parts = output if isinstance(output, list) else [None]
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") in _TEXTS else None for part in parts]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise unsupported_error(f"{where}.output", "a text, or a list of text parts")
    return "\n".join(map(str, texts))


def _verdict(item: JsonObject, where: str) -> JsonObject:
    approve, reason = item.get("approve"), item.get("reason")
    if not isinstance(approve, bool):
        raise invalid_error(f"{where}.approve", "true or false")
    return {"decision": "approve" if approve else "reject", "reason": reason if isinstance(reason, str) else ""}


def _id(item: JsonObject, name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 200:
        raise invalid_error(f"{where}.{name}", "a text of 1 to 200 characters")
    return value


def _named(item: JsonObject) -> str:
    kind = item["type"]
    return f"a message of the role {item.get('role')!r}" if kind == "message" else dumps(kind)[:60]


HONOURED: Final = frozenset(
    [
        *("model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "text", "reasoning"),
        *("temperature", "top_p", "max_output_tokens", "stream", "background", "store", "metadata"),
        *("previous_response_id", "conversation", "include"),
    ]
)
HINTS: Final = frozenset(
    ["user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "service_tier"]
)
"""Keys without effect on an answer: the response repeats them."""
NEUTRAL: Final[dict[str, tuple[str, list[Json]]]] = {
    "truncation": ("a long conversation is compacted, not truncated", ["auto", "disabled"]),
    "top_logprobs": ("agents return no probabilities", [0]),
    "presence_penalty": ("an agent's file sets it", [0]),
    "frequency_penalty": ("an agent's file sets it", [0]),
    "max_tool_calls": ("the agent's file limits its calls", []),
    "prompt": ("the agent has its own prompt; use 'instructions'", []),
    "moderation": ("the gateway does not implement it", []),
    "context_management": ("the agent's file sets when a conversation is compacted", [[]]),
    "stream_options": ("deltas have no padding", [{}, {"include_obfuscation": False}]),
}
"""By key, the reason why other values are not supported, and the neutral values."""
_NO_LOGPROBS: Final = "message.output_text.logprobs"


def read_request(json: JsonObject) -> ClientRequest:
    """Parse the body of a response. Raises `HttpError` (400) that names what is not supported."""
    body = RequestBody(json)
    body.check(HONOURED, HINTS, NEUTRAL)
    if not (model := body.text("model")):
        raise refused("'model' is missing: give the agent's name", "model", "missing_required_parameter")
    if _NO_LOGPROBS in body.list("include"):
        raise unsupported_error("include", "agents return no probabilities")
    previous, conversation = body.text("previous_response_id"), _conversation(body)
    if previous is not None and conversation is not None:
        raise refused(
            "'previous_response_id' and 'conversation' are both set: set one of them", "conversation", "invalid_value"
        )
    store, background = body.flag("store", True), body.flag("background")
    if background and not store:
        raise refused("a response in the background is always stored: without 'store'", "store", "invalid_value")
    follows = previous is not None or conversation is not None
    if follows and not store:
        raise unsupported_error("store", "a conversation is always stored: send the whole history instead")
    client_input, items = read_input(body.get("input"), follows=follows)
    declared, approval_tool = without_approval(read_tools(body, "responses"))
    return ClientRequest(
        model=model,
        client_input=client_input,
        changes=_changes(body, declared),
        stream=body.flag("stream"),
        store=store,
        echo=_echo(body, model),
        items=items,
        background=background,
        previous=previous,
        conversation=conversation,
        approval_tool=approval_tool,
    )


def _changes(body: RequestBody, declared: list[JsonObject]) -> Changes:
    text = body.object("text")
    if text.get("verbosity") not in (None, "medium"):
        raise unsupported_error("text.verbosity", "describe the answer's length in 'instructions'")
    reasoning = body.object("reasoning")
    for key, value in reasoning.items():
        if key not in ("effort", "summary", "generate_summary") and value is not None:
            raise unsupported_error(f"reasoning.{key}", "an agent's reasoning is not returned; use 'effort' only")
    effort = reasoning.get("effort")
    if effort is not None and not isinstance(effort, str):
        raise invalid_error("reasoning.effort", "a string")
    tools, must_call = choose_tools(body, declared)
    return Changes(
        instructions=body.text("instructions"),
        tools=tools,
        must_call=must_call,
        sampling=read_sampling(body, body.count("max_output_tokens"), effort),
        one_by_one=not body.flag("parallel_tool_calls", True),
        schema=read_schema(text.get("format"), "text.format"),
    )


def _conversation(body: RequestBody) -> str | None:
    value: Any = body.get("conversation")
    id = value.get("id") if isinstance(value, dict) else value
    if value is not None and not isinstance(id, str):
        raise invalid_error("conversation", "a conversation's id")
    return id


def _echo(body: RequestBody, model: str) -> JsonObject:
    """Return the parameters that the response repeats, also those that the request omits."""
    text = body.object("text")
    named = ("instructions", "max_output_tokens", "previous_response_id", "safety_identifier", "prompt_cache_key")
    tools = [{"description": None, "parameters": None, "strict": None, **tool} for tool in body.list("tools")]
    echo: JsonObject = {
        "model": model,
        **{name: body.get(name) for name in named},
        "tools": tools,
        "tool_choice": body.get("tool_choice") or "auto",
        "parallel_tool_calls": body.flag("parallel_tool_calls", True),
        "text": {"format": {"type": "text"}, **{key: value for key, value in text.items() if value is not None}},
        "reasoning": {"effort": body.object("reasoning").get("effort"), "summary": None},
        "temperature": _or(body.number("temperature", 0, 2), 1.0),
        "top_p": _or(body.number("top_p", 0, 1), 1.0),
        "background": body.flag("background"),
        "store": body.flag("store", True),
        "metadata": body.metadata(),
        "truncation": body.get("truncation") or "auto",
        "service_tier": "default",
        "top_logprobs": 0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "max_tool_calls": None,
        "conversation": None if (id := _conversation(body)) is None else {"id": id},
    }
    return echo | ({"user": user} if (user := body.text("user")) else {})


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


CHAT_HONOURED: Final = frozenset(
    [
        *(
            "model",
            "messages",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "response_format",
            "temperature",
            "top_p",
        ),
        *(
            "max_completion_tokens",
            "max_tokens",
            "reasoning_effort",
            "seed",
            "stream",
            "stream_options",
            "metadata",
            "store",
        ),
    ]
)
CHAT_HINTS: Final = frozenset(
    [
        *("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
        *("service_tier", "stop"),
    ]
)
"""Keys without effect on an answer: `stop`, too, does not cut an agent's answer."""
CHAT_NEUTRAL: Final[dict[str, tuple[str, list[Json]]]] = {
    "n": ("an agent returns one answer", [1]),
    "verbosity": ("describe the answer's length in a message", ["medium"]),
    "logprobs": ("agents return no probabilities", [False]),
    "top_logprobs": ("agents return no probabilities", [0]),
    "logit_bias": ("an agent's file sets it", [{}]),
    "presence_penalty": ("an agent's file sets it", [0]),
    "frequency_penalty": ("an agent's file sets it", [0]),
    "modalities": ("an agent returns text", [["text"]]),
    "audio": ("an agent returns text", []),
    "prediction": ("an agent makes its own answer", []),
    "web_search_options": ("the agent has its own tools", []),
    "functions": ("use 'tools'", [[]]),
    "function_call": ("use 'tool_choice'", []),
    "moderation": ("the gateway does not implement it", []),
}
"""By key, the reason why other values are not supported, and the neutral values."""
_ROLES: Final = ("system", "developer", "user", "assistant", "tool")


def read_chat(json: JsonObject) -> ClientRequest:
    """Parse the body of a chat completion. Raises `HttpError` (400) that names what is not supported."""
    body = RequestBody(json)
    body.check(CHAT_HONOURED, CHAT_HINTS, CHAT_NEUTRAL)
    if not (model := body.text("model")):
        raise refused("'model' is missing: give the agent's name", "model", "missing_required_parameter")
    written = body.list("messages")
    if not 1 <= len(written) <= MOST_ITEMS:
        raise invalid_error("messages", f"a list of 1 to {MOST_ITEMS:,} messages")
    options = body.object("stream_options")
    if options.get("include_obfuscation"):
        raise invalid_error("stream_options.include_obfuscation", "false: deltas have no padding")
    declared, approval_tool = without_approval(read_tools(body, "chat"))
    tools, must_call = choose_tools(body, declared)
    seed = body.get("seed")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise invalid_error("seed", "a whole number")
    tokens = body.count("max_completion_tokens") or body.count("max_tokens")
    return ClientRequest(
        model=model,
        client_input=of_history([_message_chats(message, at) for at, message in enumerate(written)], "messages"),
        changes=Changes(
            tools=tools,
            sampling=read_sampling(body, tokens, body.text("reasoning_effort"))
            | ({} if seed is None else {"seed": seed}),
            one_by_one=not body.flag("parallel_tool_calls", True),
            schema=read_schema(body.get("response_format"), "response_format"),
            must_call=must_call,
        ),
        stream=body.flag("stream"),
        store=body.flag("store"),
        echo={"model": model, "metadata": body.metadata()},
        approvals=approval_tool,
        approval_tool=approval_tool,
        chat=True,
        with_usage=options.get("include_usage") is True,
    )


def _message_chats(message: Any, at: int) -> JsonObject:
    where = f"messages[{at}]"
    role = message.get("role") if isinstance(message, dict) else None
    if role not in _ROLES:
        raise invalid_error(f"{where}.role", ", ".join(map(repr, _ROLES)))
    calls = message.get("tool_calls")
    content = message.get("content")
    if content is None and role == "assistant" and isinstance(message.get("refusal"), str):
        content = message["refusal"]
    plain: JsonObject = {"role": role}
    if content is not None or role != "assistant" or not calls:
        plain["content"] = read_content(content, f"{where}.content", pictures=role == "user")
    if role == "tool":
        id = message.get("tool_call_id")
        if not isinstance(id, str) or not 0 < len(id) <= 200:
            raise invalid_error(f"{where}.tool_call_id", "a text of 1 to 200 characters")
        plain["tool_call_id"] = id
    if calls and role == "assistant":
        plain["tool_calls"] = _calls(calls, where)
        plain.setdefault("content", None)
    if isinstance(message.get("name"), str) and role != "tool":
        plain["name"] = message["name"]
    return plain


def _calls(calls: Any, where: str) -> list[JsonObject]:
    found: list[JsonObject] = []
    for at, call in enumerate(calls if isinstance(calls, list) else [None]):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(call.get("id"), str):
            raise invalid_error(f"{where}.tool_calls[{at}]", "a call of a function: 'id', 'type' and 'function'")
        about = {"name": str(function.get("name")), "arguments": str(function.get("arguments") or "{}")}
        found.append({"id": call["id"], "type": "function", "function": about})
    return found
