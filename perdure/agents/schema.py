"""The JSON Schema of agent files, made from the models that read them."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any, Final, get_args

from pydantic import BaseModel

from perdure.runs.agent import AgentSpec, Config
from perdure.tools.decorator import plain_schema
from perdure.values.formulas import parse_statements
from perdure.values.json import JsonObject, dumps
from perdure.values.messages import CLASSES, ChatMessage, DataMessage, InputMessage, StateMessage

_DATA: Final = (InputMessage, StateMessage, DataMessage)
_HIDDEN: Final = ("given", "data")
"""Keys of a data message beside its written ones."""


def agent_schema() -> JsonObject:
    """Return the JSON Schema of agent files, for editors. A list of messages alone is a context (R2.9)."""
    definitions: JsonObject = {}
    schema = _schema(AgentSpec, definitions)
    messages = [_when_type(kind, model, definitions) for kind, model in CLASSES.items()]
    chat = _schema(ChatMessage, definitions)
    definitions["message"] = {
        "type": "object",
        "anyOf": [{"required": ["type"]}, {"required": ["role"]}],
        "properties": {"type": {"enum": list(CLASSES)}},
        "allOf": [*messages, {"if": {"not": {"required": ["type"]}}, "then": chat}],
    }
    context = {"type": "array", "items": {"$ref": "#/$defs/message"}}
    schema["properties"] |= {"context": {**context, "description": "Messages, in the order of the prompt."}}
    schema["required"] = [name for name in schema.get("required", []) if name != "name"]  # the file's name
    config = definitions["Config"]["properties"]
    config["approval"] = {"anyOf": [{"enum": ["calls", "plan"]}, config["approval"]]}  # its scope alone
    definitions["agent"] = schema
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A Perdure agent",
        "if": {"type": "array"},
        "then": context,
        "else": {"$ref": "#/$defs/agent"},
        "$defs": definitions,
    }


def config_table() -> str:
    """Return the keys of `config` as Markdown, with their defaults and meanings."""
    lines = ["| key | default | |", "|---|---|---|"]
    for path, default, words in _rows(Config, ""):
        lines.append(f"| `{path}` | {default} | {words} |")
    return "\n".join(lines) + "\n"


def _rows(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str]]:
    words = field_docstrings(model)
    for name, field in model.model_fields.items():
        inner = _model_of(field.annotation)
        if inner is not None and field.default_factory is not None and name not in ("fast", "smart"):
            yield from _rows(inner, f"{prefix}{name}.")
            continue
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            default = default.model_dump(exclude_unset=True)
        choices = [f"`{each}`" for each in get_args(field.annotation) if isinstance(each, str)]
        description = [*([f"{', '.join(choices)}."] if choices else []), *([words[name]] if name in words else [])]
        shown = "none" if default is None else f"`{dumps(default)}`"
        yield prefix + name, shown, " ".join(description).replace("|", "\\|").replace("`None`", "`null`")


_RULES: Final = re.compile(r" \(R\d[^)]*\)")


def field_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstring under each field without the codes of rules, those of parent classes included."""
    found: dict[str, str] = {}
    for kind in reversed([each for each in model.__mro__ if issubclass(each, BaseModel) and each is not BaseModel]):
        body = parse_statements(textwrap.dedent(inspect.getsource(kind)))[0]
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and below.value.value
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, str):
                found[field.target.id] = _RULES.sub("", " ".join(text.split()))
    return found


def _model_of(kind: Any) -> type[BaseModel] | None:
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _schema(model: type[BaseModel], definitions: JsonObject) -> JsonObject:
    """Return the schema of one model. Models inside it go to the definitions, each with its fields' docstrings."""
    schema = model.model_json_schema(by_alias=True, ref_template="#/$defs/{model}")
    definitions |= schema.pop("$defs", {})
    for kind in [model, *_inside(model)]:
        described_schema, words = (
            (schema if kind is model else definitions.get(kind.__name__, {})),
            field_docstrings(kind),
        )
        if "description" in described_schema:
            described_schema["description"] = _RULES.sub("", described_schema["description"])
        for name, field in kind.model_fields.items():
            if name in words and (field.alias or name) in described_schema.get("properties", {}):
                described_schema["properties"][field.alias or name]["description"] = words[name]
    plain: JsonObject = plain_schema(schema)
    return plain


def _inside(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for field in model.model_fields.values():
        for kind in (field.annotation, *get_args(field.annotation)):
            if (inner := _model_of(kind)) is not None:
                yield inner
                yield from _inside(inner)


def _when_type(kind: str, model: type[BaseModel], definitions: JsonObject) -> JsonObject:
    """Return the schema of a message of this type; data may stand beside its keys, or under its own name (R2.2)."""
    schema = _schema(model, definitions)
    if model in _DATA:
        kept = {name: each for name, each in schema["properties"].items() if name not in _HIDDEN}
        schema |= {
            "properties": kept
            | {kind: {"description": "The data. Without this key, the message's other keys are the data."}}
        }
        schema["additionalProperties"] = True
    if kind == "error":
        schema |= {"required": [], "properties": schema["properties"] | {"data": {"type": "object"}}}
    return {"if": {"required": ["type"], "properties": {"type": {"const": kind}}}, "then": schema}
