"""What a scripted model is asked, what it answers, how fast, and what goes wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

TOKEN = 4
"""Characters that count as one token, in pacing and in `usage`."""


RUN_HEADER = "x-perdure-run"
"""Which run asks, as far as the client says it: see `ScriptedModel.client`."""


@dataclass(frozen=True)
class ChatRequest:
    """One request that was answered; `number` counts from 1."""

    number: int
    body: dict[str, Any]
    headers: Mapping[str, str]

    @property
    def model(self) -> str:
        return str(self.body.get("model", ""))

    @property
    def run_id(self) -> str:
        """The run that asks, a delegate's too; empty where the client does not say."""
        return self.headers.get(RUN_HEADER, "")

    @property
    def messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = self.body.get("messages", [])
        return messages

    @property
    def shown(self) -> str:
        """Everything that the model was shown, native calls and their results too, as JSON where it is not text."""
        calls = [
            f"{call['function']['name']} {call['function']['arguments']}"
            for message in self.messages
            for call in message.get("tool_calls", ())
        ]
        return "\n".join([self.text, *calls, json.dumps(self.body.get("tools", []), ensure_ascii=False)])

    @property
    def text(self) -> str:
        """Everything that the model was shown, as one text."""
        return "\n".join(str(message.get("content") or "") for message in self.messages)


@dataclass(frozen=True)
class Pace:
    """Seconds before the first token, and for each token after it. Zero is as fast as it goes."""

    first_token: float = 0.0
    """Seconds until the first."""
    per_token: float = 0.0
    """Seconds for each."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong once `after` characters of the answer were sent.

    `cut` drops the connection, `hang` sends nothing more until the client goes away; `silent` sends nothing at all.
    """

    kind: Literal["cut", "hang", "silent"]
    after: int = 0


Content: TypeAlias = "str | dict[str, Any] | Callable[[ChatRequest], str | dict[str, Any]]"
"""What a model says: text, a Solution, or what a function makes of the request."""


@dataclass(frozen=True)
class Turn:
    """One answer. A dict is written as compact JSON; a callable answers what it is asked.

    `status` other than 200 is an error reply with `content` as its message. `gate` holds the stream back after `gate_after`
    characters until the event is set.
    """

    content: Content = ""
    tool_calls: Sequence[tuple[str, str]] = ()
    """Native tool calls in place of content: name and arguments as JSON text."""
    dialect: str | None = None
    """In which a Solution is written, where it is not the model's."""
    refusal: str = ""
    """Why it answers nothing, in place of content."""
    reasoning: str = ""
    """What it thinks before, as servers send it beside the answer (`reasoning_content`)."""
    finish_reason: str = "stop"
    status: int = 200
    """HTTP status; from 400 on the content is the error's message."""
    headers: Mapping[str, str] = field(default_factory=dict)
    fault: Fault | None = None
    usage: bool | tuple[int, int] | Mapping[str, Any] = True
    """Whether tokens are told; or the prompt and completion tokens to tell; or what else is told of them, such as those that were cached."""
    raw: Sequence[str | bytes] = ()
    """The whole body as it goes over the wire, piece by piece, in place of anything made here; with `status` and `headers`."""
    media_type: str = "text/event-stream"
    """Of `raw`."""
    gate: asyncio.Event | None = None
    gate_after: int = 0


Script: TypeAlias = "Sequence[Any] | Callable[[ChatRequest], Turn | dict[str, Any]]"
"""Turns in the order of the requests (a `Turn`, a Solution or text each), or a function that answers every request."""


def cut(content: Content, after: int) -> Turn:
    """The connection breaks after so many tokens of the answer (of `TOKEN` characters each)."""
    return Turn(content, fault=Fault("cut", after * TOKEN))


def rate_limited(retry_after: float = 1.0) -> Turn:
    """429: too many requests, to be asked again after so many seconds."""
    return Turn("rate limit reached", status=429, headers={"retry-after": f"{retry_after:g}"})


def server_error(status: int = 500) -> Turn:
    """The server fails."""
    return Turn("the server had an error", status=status)


def refusal(reason: str) -> Turn:
    """The model refuses to answer."""
    return Turn(refusal=reason)
