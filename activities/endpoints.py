"""Servers of models, and the features that each of them does not support (R9.1, R9.4)."""

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
"""Schemas whose refused features are remembered."""


class Endpoints:
    """The servers of models. Without a `default` client, one is made from `OPENAI_BASE_URL` and `OPENAI_API_KEY`.

    `more` are further servers by name: the model `llama-3@backup` is `llama-3` of the server `backup`.
    """

    def __init__(self, default: AsyncOpenAI | None = None, more: Mapping[str, Endpoint] | None = None) -> None:
        self._clients: dict[str, AsyncOpenAI] = {} if default is None else {"": default}
        if default is not None:
            keep_secret(default.api_key)
        self._more = dict(more or {})
        self._unknown: dict[str, set[str]] = {}
        """Features that a model's server does not know at all, by model."""
        self._refused: dict[tuple[str, str], set[str]] = {}
        """Features that a server refused for one schema alone, by model and schema."""

    @asynccontextmanager
    async def ask(self, model: str, body: JsonObject) -> AsyncIterator[httpx2.Response]:
        """Yield a chat completion, or its stream, without the features that the server refused before (`learn`).

        The answer is raw: building the client's objects of every chunk costs many times what reading it does.
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
        """Return the body to send now, without features that the server does not support."""
        unknown, refused = self._unknown.get(model, set()), self._refused.get((model, _schema_key(body)), set())
        return without(body, unknown | refused)

    def learn(self, model: str, body: JsonObject, sent: JsonObject, refusal: Refusal) -> bool:
        """Record which features of the body the server refused; return whether to send it again without them.

        An unknown feature is left out from then on. A feature that was refused for one schema is left out with that
        schema. The refusal is of the body that was `sent`: the second of two Requests that are refused alike changes
        nothing more.
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
        """Return the refused features: `{"unknown": […], "refused": […]}`, of the server and of single schemas."""
        refused = {feature for (name, _), features in self._refused.items() if name == model for feature in features}
        return {"unknown": sorted(self._unknown.get(model, ())), "refused": sorted(refused)}

    def setting(self, model: str) -> str:
        """Return the name of the setting that holds the address of the model's server, for a message to the user."""
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
        # Temporal retries: an attempt that waits inside the client would be invisible and unbounded.
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
