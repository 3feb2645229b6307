"""Input that a tool's server asks for while the tool runs: answers of a person, and texts of a model (R21.3)."""

from __future__ import annotations

import operator
import re
from contextvars import ContextVar
from functools import cached_property
from typing import Final

from pydantic import Field

from perdure.errors import JsonError, clip
from perdure.values.json import Json, JsonObject, WireModel, dumps, loads, shorten
from perdure.values.limits import MAX_SERVER_ANSWER, MAX_SERVER_FIELDS
from perdure.values.messages import visible_lines
from perdure.values.schemas import Schema

_TYPES: Final = ("string", "number", "integer", "boolean", "array")
_ADDRESS: Final = re.compile(r"https?://[!-~]+")
_YES: Final = {"true": True, "yes": True, "false": False, "no": False}


class ServerQuestion(WireModel):
    """A question of a tool's server to a person: a form, or an address that the person opens."""

    server: str
    """The name of the server, as the worker's configuration has it."""
    key: str
    """Names the question to the server."""
    message: str
    form: JsonObject | None = Field(default=None, exclude_if=operator.not_)
    """JSON Schema of an object whose properties are the fields."""
    url: str = Field(default="", exclude_if=operator.not_)
    """The address, which nothing but a person opens."""

    @property
    def problem(self) -> str | None:
        """Return the reason why a person cannot be asked this, or `None`."""
        if self.form is None:
            is_address = _ADDRESS.fullmatch(self.url) is not None
            return None if is_address else f"{shorten(self.url, 60)} is not the URL of a web page"
        return _form_problem(self.form)

    @property
    def words(self) -> str:
        """Return the question with the name of its server, and the accepted answer."""
        message = visible_lines(self.message).strip() or "…"
        if self.form is None:
            return (
                f"the MCP server {self.server!r} asks you to open {self.url} yourself and then answer 'done': {message}"
            )
        fields = ", ".join(_field_words(name, about) for name, about in self._properties.items())
        return f"the MCP server {self.server!r} asks: {message}" + (f" ({fields})" if fields else "")

    @property
    def shown(self) -> JsonObject:
        """Return the data that a person sees, for the digest of a decision."""
        return {"server": self.server, "message": self.message, "form": self.form, "url": self.url}

    def content(self, answer: Json) -> JsonObject:
        """Return an answer as the form's content, with the defaults of fields that it leaves out.

        A text may be JSON, or the value of the only field. Raises `ValueError` if it does not fit the form.
        """
        if answer is None:
            raise ValueError("an answer needs 'answer'")
        if self.form is None:
            return {}
        content = self._read(answer)
        if unknown := [name for name in content if name not in self._properties]:
            raise ValueError(f"the form has no field {shorten(unknown[0], 60)}; it has {', '.join(self._properties)}")
        content = {name: _typed(value, self._properties[name]) for name, value in content.items()}
        defaults = {name: about["default"] for name, about in self._properties.items() if "default" in about}
        content = {name: value for name, value in (defaults | content).items() if value is not None}
        if len(dumps(content)) > MAX_SERVER_ANSWER:
            raise ValueError(f"the answer is longer than {MAX_SERVER_ANSWER:,} characters")
        if errors := self._schema.errors(content):
            raise ValueError(errors[0])
        return content

    def _read(self, answer: Json) -> JsonObject:
        if isinstance(answer, str):
            try:
                parsed = loads(answer)
            except JsonError:
                parsed = None
            if isinstance(parsed, dict):
                return parsed
            if not answer.strip() and not self._required:
                return {}
        if isinstance(answer, dict):
            return answer
        names = [*self._properties] if len(self._properties) == 1 else self._required
        if len(names) != 1:
            example = dumps(dict.fromkeys(self._properties, "…"))
            raise ValueError(f"{shorten(answer, 60)} is not an answer: an object such as {example} is needed")
        return {names[0]: answer}

    @property
    def _properties(self) -> dict[str, JsonObject]:
        return {} if self.form is None else self.form.get("properties", {})

    @property
    def _required(self) -> list[str]:
        return [] if self.form is None else self.form.get("required", [])

    @cached_property
    def _schema(self) -> Schema:
        return Schema({**(self.form or {}), "type": "object"})


class SampleRequest(WireModel):
    """A request of a tool's server to a model of the run."""

    key: str
    """Names the request to the server."""
    messages: list[JsonObject]
    """`{"role", "content"}`, texts alone."""
    max_tokens: int
    temperature: float | None = Field(default=None, exclude_if=lambda value: value is None)
    stop: list[str] = Field(default_factory=list, exclude_if=operator.not_)


class ServerInput(WireModel):
    """The questions and requests of a tool's server before it returns a result."""

    server: str
    questions: list[ServerQuestion] = Field(default_factory=list)
    samples: list[SampleRequest] = Field(default_factory=list, exclude_if=operator.not_)
    state: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """The server's own note, which the next call returns to it."""
    repeats: bool = Field(default=False, exclude_if=operator.not_)
    """Whether the server begins the call again, and repeats its earlier requests."""


class ServerAnswers(WireModel):
    """The answers to a server's questions and requests, for the next call."""

    answers: dict[str, JsonObject] = Field(default_factory=dict)
    """By key: `{"action", "content"}` of a person, `{"text", "model", "stopReason"}` of a model."""
    state: str | None = None
    sampled: int = 0
    """How often a model was asked for the server so far."""

    def after(self, asked: ServerInput, answers: dict[str, JsonObject]) -> ServerAnswers:
        """Return the answers for the next call: the new ones, and the earlier ones if the server asks again."""
        earlier = self.answers if asked.repeats else {}
        sampled = self.sampled + len(asked.samples)
        return ServerAnswers(answers={**earlier, **answers}, state=asked.state, sampled=sampled)


ANSWERS: Final[ContextVar[ServerAnswers]] = ContextVar("answers")
"""The answers so far, in the activity of a run's call; without a value, no answers are possible."""


class ServerInputError(Exception):
    """A server asks for something before it returns a result."""

    def __init__(self, asked: ServerInput) -> None:
        super().__init__(asked.server)
        self.asked = asked


def _form_problem(form: JsonObject) -> str | None:
    properties, required = form.get("properties", {}), form.get("required", [])
    if form.get("type") != "object" or not isinstance(properties, dict) or not isinstance(required, list):
        return "its form is not a JSON Schema of an object"
    if len(properties) > MAX_SERVER_FIELDS:
        return f"its form has {len(properties):,} fields; {MAX_SERVER_FIELDS} are accepted"
    for name, about in properties.items():
        if not isinstance(about, dict) or about.get("type") not in _TYPES:
            return f"its field {shorten(name, 60)} has none of the types {', '.join(_TYPES)}"
        if about["type"] == "array" and not _choices(about.get("items")):
            return f"its field {shorten(name, 60)} is a list without choices"
    if unknown := [name for name in required if not isinstance(name, str) or name not in properties]:
        return f"it requires {shorten(unknown[0], 60)}, which is not one of its fields"
    return Schema(form).problem


def _choices(schema: Json) -> dict[str, Json]:
    """Return the choices of a field by the title that a person reads; empty: it has none."""
    if not isinstance(schema, dict):
        return {}
    for key in ("oneOf", "anyOf"):
        options = schema.get(key)
        found = (
            [each for each in options if isinstance(each, dict) and "const" in each]
            if isinstance(options, list)
            else []
        )
        if isinstance(options, list) and len(found) == len(options):
            return {str(each.get("title", each["const"])): each["const"] for each in found}
    values, names = schema.get("enum"), schema.get("enumNames")
    if not isinstance(values, list):
        return {}
    names = names if isinstance(names, list) and len(names) == len(values) else values
    return {str(name): value for name, value in zip(names, values, strict=True)}


def _field_words(name: str, about: JsonObject) -> str:
    choices = _choices(about) or _choices(about.get("items"))
    kind = " or ".join(list(choices)[:8]) + (" or another" if len(choices) > 8 else "")
    kind = kind or {"string": "text", "boolean": "true or false"}.get(about["type"], str(about["type"]))
    return clip(visible_lines(f"{name}: {kind}"), 200)


def _typed(answer: Json, about: JsonObject) -> Json:
    """Return a person's text as the value of a field, if it is valid."""
    if not isinstance(answer, str):
        return answer
    text, kind = answer.strip(), about["type"]
    choices = _choices(about) or _choices(about.get("items"))
    if kind == "array":
        parts = [part.strip() for part in text.split(",") if part.strip()]
        return [_chosen(part, choices) for part in parts]
    if kind == "string":
        return _chosen(answer, choices)
    if kind == "boolean":
        return _YES.get(text.lower(), answer)
    try:
        number = loads(text)
    except JsonError:
        return answer
    return number if isinstance(number, int | float) else answer


def _chosen(text: str, choices: dict[str, Json]) -> Json:
    return text if text in choices.values() else choices.get(text.strip(), text)
