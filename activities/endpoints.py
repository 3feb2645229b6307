"""The servers that models answer from, and what each of them does not understand (R9.1, R9.4)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import httpx2
import openai
from openai import AsyncOpenAI
from temporalio.exceptions import ApplicationError

from perdure.activities.failures import refusal_in
from perdure.activities.secrets import keep_secret
from perdure.models.provider_errors import Refusal, step_down, without
from perdure.models.requests import Endpoint
from perdure.values.json import JsonObject, dumps

IDLE_TIMEOUT = 120.0
"""Seconds without a byte from the model before the attempt counts as lost; reasoning models think for that long."""


REMEMBERED: Final = 1000
"""Schemas of which it is remembered what was refused of them."""


class Endpoints:
    """`default` is a client to ask with; without one it is made from `OPENAI_BASE_URL` and `OPENAI_API_KEY`.

    `more` are further servers by name: the model `llama-3@backup` is `llama-3` of the server `backup`.
    """

    def __init__(self, default: AsyncOpenAI | None = None, more: Mapping[str, Endpoint] | None = None) -> None:
        self._clients: dict[str, AsyncOpenAI] = {} if default is None else {"": default}
        if default is not None:
            keep_secret(default.api_key)
        self._more = dict(more or {})
        self._unknown: dict[str, set[str]] = {}
        """Model → what its server does not know at all."""
        self._refused: dict[tuple[str, str], set[str]] = {}
        """Model and schema → what was refused of this schema alone."""

    @asynccontextmanager
    async def ask(self, model: str, body: JsonObject) -> AsyncIterator[httpx2.Response]:
        """A chat completion, or its stream, as it comes; without what the server refused before (`learn`).

        Raw: building the client's objects of every chunk costs many times what reading it does.
        """
        name, client = self._client(model)
        async with AsyncExitStack() as stack:
            while True:
                sent = self.fitted(model, body)
                asking = client.chat.completions.with_streaming_response.create(model=name, **sent)
                try:
                    answered = await stack.enter_async_context(asking)
                except openai.APIStatusError as error:
                    refusal = refusal_in(error)
                    if refusal is None or not self.learn(model, body, sent, refusal):
                        raise
                else:
                    break
            yield answered.http_response

    def fitted(self, model: str, body: JsonObject) -> JsonObject:
        """The body as it is sent now: without what the server is known not to understand."""
        unknown, refused = self._unknown.get(model, set()), self._refused.get((model, _schema_key(body)), set())
        return without(body, unknown | refused)

    def learn(self, model: str, body: JsonObject, sent: JsonObject, refusal: Refusal) -> bool:
        """Remember what of the body the server does not understand; whether it is worth asking again, without it.

        What a server does not know is left out from then on, what it refused of one schema is left out with that schema. The
        refusal is of what was `sent`: of two Requests at once that are refused the same, the second takes no further step.
        """
        step = step_down(refusal, sent)
        if step is None:
            return False
        if step.always:
            self._unknown.setdefault(model, set()).add(step.feature)
        else:
            key = (model, _schema_key(body))
            if key not in self._refused and len(self._refused) >= REMEMBERED:
                del self._refused[next(iter(self._refused))]
            self._refused.setdefault(key, set()).add(step.feature)
        return True

    def not_understood(self, model: str) -> dict[str, list[str]]:
        """What was found so far: `{"unknown": […], "refused": […]}`, of the server and of single schemas."""
        refused = {feature for (name, _), features in self._refused.items() if name == model for feature in features}
        return {"unknown": sorted(self._unknown.get(model, ())), "refused": sorted(refused)}

    def setting(self, model: str) -> str:
        """Where the address of the model's server comes from, for a message to the user."""
        endpoint = model.rpartition("@")[2]
        return f"{endpoint!r} of PERDURE_ENDPOINTS" if "@" in model and endpoint in self._more else "OPENAI_BASE_URL"

    def _client(self, model: str) -> tuple[str, AsyncOpenAI]:
        name, mark, endpoint = model.rpartition("@")
        if not mark or endpoint not in self._more:
            name, endpoint = model, ""
        if endpoint not in self._clients:
            self._clients[endpoint] = self._connect(endpoint)
        return name, self._clients[endpoint]

    def _connect(self, endpoint: str) -> AsyncOpenAI:
        # Retrying is Temporal's: an attempt that waits inside the client would be invisible and unbounded.
        options: dict[str, Any] = {"max_retries": 0, "timeout": openai.Timeout(IDLE_TIMEOUT, connect=10.0)}
        if endpoint:
            known = self._more[endpoint]
            key = os.environ.get(known.api_key_env, "") if known.api_key_env else "none"
            if not key:
                raise ApplicationError(
                    f"no key for the endpoint {endpoint!r}: set {known.api_key_env} where the worker runs", type="NoKey",
                    non_retryable=True,
                )  # fmt: skip
            keep_secret(key)
            return AsyncOpenAI(base_url=known.base_url, api_key=key, **options)
        try:
            return AsyncOpenAI(**options)
        except openai.OpenAIError:
            raise ApplicationError(
                "no key for the model: set OPENAI_API_KEY (and OPENAI_BASE_URL for a server of your own) where the worker "
                "runs",
                type="NoKey",
                non_retryable=True,
            ) from None


def _schema_key(body: JsonObject) -> str:
    form = body.get("response_format")
    return "" if form is None else hashlib.sha256(dumps(form).encode(errors="replace")).hexdigest()
