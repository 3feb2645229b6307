"""New messages for a run that works: taken in, held by a Request, or taken back (R10.5, R10.7)."""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError

from perdure.errors import DecisionError
from perdure.people.wire import Heard, Said
from perdure.run.past.wire import Progress
from perdure.values.jsons import Json, JsonObject
from perdure.values.limits import MAX_INBOX, MAX_SAID, MAX_UNHEARD
from perdure.values.problems import first_problem

QUIET: Final = 0.5
"""Seconds: messages that come so close upon one that ended an answer are told together."""
LONGEST_QUIET: Final = 2.0
"""Seconds for which the next Request waits at most for more of them."""


def accept(progress: Progress, raw: Json) -> Said | None:
    """Take a message in; `None`: it is there already. Raises `DecisionError` for what is none, and where there are too many."""
    try:
        said = Said.model_validate(raw)
    except ValidationError as error:
        raise DecisionError(f"this is no message: {first_problem(error)}") from None
    if any(each.names(said.id, said.sender) for each in heard(progress)):
        return None
    size = len(said.text.encode())
    if size > MAX_SAID:
        raise DecisionError(f"the message {said.id} has {size:,} bytes, and {MAX_SAID:,} is the most")
    waiting = sum(len(each.text.encode()) for each in progress.inbox)
    if len(progress.inbox) >= MAX_INBOX or size + waiting > MAX_UNHEARD:
        raise DecisionError(
            f"the message {said.id} was not taken: {MAX_INBOX:,} messages of {MAX_UNHEARD:,} bytes together may wait for a Request"
        )
    progress.inbox.append(said)
    return said


def check_withdrawal(progress: Progress, id: Json) -> None:
    """Raises `DecisionError` with the reason why the message cannot be taken back."""
    name, sender = _named(id)
    found = [each for each in progress.inbox if _is(each, name, sender)]
    if len(found) > 1:
        raise DecisionError(f'several senders have a message {name!r} in this run: name it by {{"id", "sender"}}')
    if found:
        return
    request = next((each.request for each in progress.heard if _is(each, name, sender)), None)
    if request is not None:
        raise DecisionError(f"Request {request} holds the message {name}: it cannot be taken back any more")
    raise DecisionError(f"there is no message {str(name)[:60]!r} in this run")


def _named(id: Json) -> tuple[Json, Json]:
    """A message's id, and its sender where that is said: `{"id", "sender"}`."""
    return (id.get("id"), id.get("sender")) if isinstance(id, dict) else (id, None)


def _is(message: Said | Heard, id: Json, sender: Json) -> bool:
    return message.id == id and (sender is None or message.sender in ("", sender))


def withdraw(progress: Progress, id: Json) -> JsonObject:
    """Take a message back: `{"id", "withdrawn": true}`. Raises `DecisionError`."""
    check_withdrawal(progress, id)
    name, sender = _named(id)
    progress.inbox = [each for each in progress.inbox if not _is(each, name, sender)]
    return {"id": str(name), "withdrawn": True}


def hold(progress: Progress) -> None:
    """The Request that begins is told all of them."""
    for said in progress.inbox:
        progress.messages.append({"type": "message", "text": said.text})
        progress.heard.append(Heard(id=said.id, sender=said.sender, request=progress.number))
    progress.inbox = []


def heard(progress: Progress) -> list[Heard]:
    """Which Request held each message; those that none held last."""
    return [*progress.heard, *(Heard(id=said.id, sender=said.sender) for said in progress.inbox)]


def heed(progress: Progress) -> None:
    """Where something new was said, what was asked for before is not all that is wanted now."""
    if progress.inbox:
        progress.wants, progress.draft, progress.answers = "plan", None, []
