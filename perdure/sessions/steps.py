"""A conversation as steps: what a model reads of a run between two of its Requests, as chat messages (R10.10, R2.8)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from perdure.sessions.entries import CallEntry, MessageEntry, ReplyEntry, RunEntry
from perdure.values.jsons import JsonObject, dumps

Place: TypeAlias = tuple[int, int]
"""A run by its place in the session, and a Request of it: what a step is up to."""
END: Final = 1_000_000
"""In the place of a Request: what comes after the last one."""
_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")
_TOKEN: Final = 4
"""Bytes of text that are thought to be one token, where no server has counted."""


@dataclass(frozen=True, slots=True)
class Step:
    """Messages that belong together: each call stands beside its result."""

    place: Place
    messages: list[JsonObject]

    @property
    def tokens(self) -> int:
        return sum(map(tokens_of, self.messages))


def tokens_of(message: JsonObject) -> int:
    """Tokens of a chat message, as thought."""
    calls = message.get("tool_calls", ())
    texts = [message.get("content") or "", *(call["function"]["arguments"] for call in calls)]
    return estimate(*texts) + 8 * len(calls)


def estimate(*texts: str) -> int:
    """Tokens of texts, as thought."""
    return 4 + sum(len(text.encode(errors="replace")) for text in texts) // _TOKEN


def said(message: MessageEntry) -> str:
    """What a sender said, as a model reads it."""
    return f"{message.sender}: {message.text}" if message.sender else message.text


def steps_of(run: RunEntry, messages: Sequence[MessageEntry], reply: ReplyEntry | None) -> Iterator[Step]:
    """A run that has ended, with what it was told and what it said: a step for each of its Requests that called anything."""
    requests: dict[int, list[CallEntry]] = {}
    for call in run.calls:
        requests.setdefault(call.request, []).append(call)
    left = list(messages)
    first = [message for message in left if message.request <= 1]
    yield Step((run.n, -1), [_user(said(message)) for message in first])
    left = [message for message in left if message.request > 1]
    for number, calls in sorted(requests.items()):
        held = [message for message in left if message.request <= number]
        left = [message for message in left if message.request > number]
        yield Step((run.n, number), [*(_user(said(message)) for message in held), *_called(run.n, calls)])
    yield Step((run.n, END), [*(_user(said(message)) for message in left), *_ended(run, reply)])


def call_id(n: int, call: CallEntry) -> str:
    """What a conversation calls a call of the run in a place: `c12_1_0`."""
    return f"c{n}_{_NAME.sub('_', call.id)}"[:60]


def _called(n: int, calls: Iterable[CallEntry]) -> Iterator[JsonObject]:
    ids = {id(call): call_id(n, call) for call in calls}
    made = [
        {
            "id": ids[id(call)],
            "type": "function",
            "function": {"name": _NAME.sub("_", call.tool)[:64] or "_", "arguments": dumps(call.params)},
        }
        for call in calls
    ]
    yield {"role": "assistant", "content": None, "tool_calls": made}
    for call in calls:
        yield {"role": "tool", "tool_call_id": ids[id(call)], "content": call.outcome}


def _ended(run: RunEntry, reply: ReplyEntry | None) -> Iterator[JsonObject]:
    if reply is not None and reply.text is not None:
        yield {"role": "assistant", "content": reply.text}
    elif run.status != "completed" and run.status != "forked":
        why = (reply.why if reply is not None else None) or run.error
        yield _user(f"# the run ended without an answer: {run.status}{f' ({why})' if why else ''}")


def _user(text: str) -> JsonObject:
    return {"role": "user", "content": text}
