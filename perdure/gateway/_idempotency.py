"""Idempotency keys in headers: (tenant, sender, key) is one request, at any adapter and in any conversation (R10.1)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from perdure.client.errors import clear_errors
from perdure.client.perdure import Perdure
from perdure.client.tenancy import IdempotentStart
from perdure.errors import RunExistsError
from perdure.gateway.adapter import Gateway
from perdure.gateway.callers import Caller
from perdure.gateway.errors import HttpError
from perdure.sessions.wire import digest
from perdure.values.json import Json

HEADER: Final = "idempotency-key"
REUSED: Final = "idempotency-key-reused"
"""The kind of the problem."""


@dataclass(frozen=True, slots=True)
class RequestKey:
    """A request's key. An empty workflow owns it: it costs one Action, and expires with the namespace's retention."""

    perdure: Perdure
    tenant: str
    wanted: IdempotentStart

    @classmethod
    def of(cls, gateway: Gateway, request: Request, caller: Caller, body: Json) -> RequestKey | None:
        """Return the key in the request's header. Raises `RunError` for an invalid key."""
        header = request.headers.get(HEADER)
        if header is None:
            return None
        of_caller = [caller.context] if caller.context else []
        wanted = IdempotentStart.of(caller.tenant, caller.sender, header, [request.url.path, body, *of_caller])
        return cls(gateway.perdure, caller.tenant, wanted)

    @property
    def message(self) -> str:
        """The id of the request's message in a session."""
        return f"key-{digest(self.wanted.run_id)}"

    async def answer(self) -> str | None:
        """Return the place of the request's answer, `""` if the place is unknown, `None` for a new request. Raises `HttpError` (409)."""
        with _reused(), clear_errors(self.perdure.client):
            return await self.wanted.answer(self.perdure.client)

    async def take(self, answer: str = "") -> bool:
        """Take the key, as late as possible: a rejected request takes no key. Return whether it was free. Raises `HttpError` (409)."""
        with _reused(), clear_errors(self.perdure.client):
            return await self.wanted.take(self.perdure.client, self.tenant, self.perdure.task_queue, answer)


def key_reused_error() -> HttpError:
    """Return the error for a key of another request. Its header stops OpenAI's clients from a retry."""
    words = "the Idempotency-Key belongs to another request: use another key, or send the same request again"
    return HttpError(
        409, words, kind=REUSED, more={"code": "idempotency_key_reused"}, headers={"x-should-retry": "false"}
    )


@contextmanager
def _reused() -> Iterator[None]:
    try:
        yield
    except RunExistsError:
        raise key_reused_error() from None
