"""What a setting is beside its value: its words, its group, and how it is written in one line of text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field
from pydantic.fields import FieldInfo

from perdure.authoring.files import json_option
from perdure.errors import SettingsError
from perdure.people.flows import Flow

T = TypeVar("T")


@dataclass(frozen=True)
class About:
    """A setting's place in the table of all settings."""

    group: str
    form: str
    """What is written: `SECONDS`, `FOLDER`, `A,B,…`."""
    secret: bool = False
    """Its value is shown nowhere."""


def setting(default: Any, words: str, group: str, form: str = "", *, secret: bool = False, **bounds: Any) -> Any:
    """A field of `Settings`. `words` say in one line what it does; `bounds` are those of `pydantic.Field`."""
    about = About(group, form, secret)
    return Field(default=default, description=words, json_schema_extra={"about": about.__dict__}, **bounds)


def about(field: FieldInfo) -> About:
    """What was said of the field."""
    extra = field.json_schema_extra
    assert isinstance(extra, dict)
    assert isinstance(extra["about"], dict)
    return About(**extra["about"])  # type: ignore[arg-type]


def _names(value: Any) -> Any:
    """Comma-separated text, or a list of texts."""
    return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value


def _json(value: Any) -> Any:
    """JSON text, `@file`, or in a TOML file a table."""
    if not isinstance(value, str):
        return value
    try:
        return json_option(value, "what is given")
    except SettingsError as error:
        raise ValueError(str(error)) from None


def _rates(value: Any) -> Any:
    """`NAME=NUMBER,…`, or what `_json` reads."""
    if not isinstance(value, str) or value.lstrip().startswith(("{", "@")):
        read = _json(value)
        if isinstance(read, dict) and any(isinstance(each, bool) for each in read.values()):
            raise ValueError("a rate is a number")
        return read
    rates: dict[str, str] = {}
    for part in _names(value):
        name, equals, number = part.rpartition("=")
        if not equals or not name:
            raise ValueError(f"{part!r} is no NAME=NUMBER")
        rates[name.strip()] = number.strip()
    return rates


def _pollers(value: Any) -> Any:
    """`auto`, or a number: one of two is for the runs that a worker keeps in memory."""
    if value == "auto" or (str(value).isdecimal() and int(value) >= 2):
        return value if value == "auto" else int(value)
    raise ValueError("must be a number from 2 on, or auto")


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
ByName = Annotated[dict[str, T], BeforeValidator(_json)]
Pollers = Annotated[int | Literal["auto"], BeforeValidator(_pollers)]
Flows = Annotated[tuple[Flow, ...], BeforeValidator(_json)]
Rates = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=200)], Annotated[float, Field(gt=0)]], BeforeValidator(_rates)
]
"""How often a minute, by name."""
