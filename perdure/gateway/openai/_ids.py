"""Ids: a response's id leads to its run, only for its tenant (R10.2).

A response belongs to a session, or, if it is not stored, to its own run. Its id holds the session's random key, and
never the id of the workflow, which is a digest of tenant and key: for another tenant, the same id leads to no run. A
run that waited for its client continues as the next *leg*, which is another response.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, replace
from typing import Final

from perdure.sessions.wire import digest, session_id

_KEY: Final = r"[A-Za-z0-9-]{1,64}"
_RUN: Final = r"[0-9a-f]{6}-[0-9]{1,9}"
_RESPONSE: Final = re.compile(rf"({_KEY})(?:_({_RUN}))?(?:_([1-9][0-9]{{0,5}}))?")
_CALL: Final = re.compile(rf"call_({_KEY})(?:_({_RUN}))?_([0-9]+(?:--?[0-9]+)*)")
_CONVERSATION: Final = re.compile(rf"conv_({_KEY})")
RESPONSE: Final = "resp_"
COMPLETION: Final = "chatcmpl-"
RUN_PREFIX: Final = "openai-"
"""The prefix of the id of a run without a session."""


def new_key() -> str:
    """Return a session key that nobody can guess: 96 random bits."""
    return secrets.token_hex(12)


def key_of(*parts: str) -> str:
    """Return a key derived from these words, for requests with an idempotency key."""
    return digest(list(parts), 24)


@dataclass(frozen=True, slots=True)
class ResponseId:
    """The id of a response: the session's `key` and the end of its `run`'s id. Without a `run`, the run has no session."""

    key: str
    run: str = ""
    leg: int = 1
    """1, and one more for each time that the run continued with its client's answers."""

    def __str__(self) -> str:
        return f"{RESPONSE}{self._rest}"

    @property
    def _rest(self) -> str:
        return "_".join(filter(None, (self.key, self.run, str(self.leg) if self.leg > 1 else "")))

    @property
    def completion(self) -> str:
        """Return the id of a chat completion."""
        return f"{COMPLETION}{self._rest}"

    @property
    def number(self) -> int:
        """The run's number in its session."""
        return int(self.run.rpartition("-")[2])

    def run_id(self, tenant: str) -> str:
        """Return the id of the run's workflow, for this tenant."""
        if not self.run:
            return RUN_PREFIX + digest([tenant, self.key], 32)
        return f"{session_id(tenant, self.key)}/{self.run}"

    def next(self) -> ResponseId:
        """Return the leg after this one."""
        return replace(self, leg=self.leg + 1)

    def item(self, kind: str, what: str = "") -> str:
        """Return the id of one of the response's items."""
        return "_".join(filter(None, (kind, self._rest, slug(what))))

    def call(self, call: str) -> str:
        """Return the client's id of a call, the same for all legs of the run."""
        return "_".join(filter(None, ("call", self.key, self.run, slug(call))))


def response_id(text: str, prefix: str = RESPONSE) -> ResponseId | None:
    """Read a response's id; `None` for an invalid id."""
    found = _RESPONSE.fullmatch(text.removeprefix(prefix)) if text.startswith(prefix) else None
    return None if found is None else ResponseId(found[1], found[2] or "", int(found[3] or 1))


def of_call(text: str) -> ResponseId | None:
    """Return the first leg of the run of a call, by the client's id of the call. `None` for an invalid id."""
    found = _CALL.fullmatch(text)
    return None if found is None else ResponseId(found[1], found[2] or "")


def of_run(key: str, run_id: str) -> ResponseId:
    """Return the first response of a run of the session."""
    return ResponseId(key, run_id.rpartition("/")[2])


def conversation_key(id: str) -> str | None:
    """Return the session's key of a conversation's id."""
    found = _CONVERSATION.fullmatch(id)
    return None if found is None else found[1]


def slug(call: str) -> str:
    """Return a call's id in characters that ids may have: `1.3[0]` is `1-3-0`, and in a delegate's run `1.0/2.0` is `1-0--2-0`."""
    return "--".join(re.sub(r"[^0-9A-Za-z]+", "-", part).strip("-") for part in call.split("/"))
