"""The servers that models answer from, and what each of them does not understand (R9.1, R9.4)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import openai
from openai import AsyncOpenAI
from pydantic import BaseModel, ConfigDict
from temporalio.exceptions import ApplicationError

from perdure.values.jsons import JsonObject

IDLE_TIMEOUT = 120.0
"""Seconds without a byte from the model before the attempt counts as lost; reasoning models think for that long."""


class Endpoint(BaseModel):
    """An OpenAI-compatible server beside the default one. Its key is named, not written down."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_url: str
    api_key_env: str | None = None
    """Environment variable with the key; `None`: the server wants none."""


class Endpoints:
    """`default` is a client to ask with; without one it is made from `OPENAI_BASE_URL` and `OPENAI_API_KEY`.

    `more` are further servers by name: the model `llama-3@backup` is `llama-3` of the server `backup`.
    """

    def __init__(self, default: AsyncOpenAI | None = None, more: Mapping[str, Endpoint] | None = None) -> None:
        self._clients: dict[str, AsyncOpenAI] = {} if default is None else {"": default}
        self._more = dict(more or {})
        self._refused: dict[str, set[str]] = {}

    async def create(self, model: str, body: JsonObject) -> Any:
        """A chat completion, or its stream.

        What the server answers that it does not understand is left out from then on: the prompt says it too, and the answer
        is checked here anyway.
        """
        name, client = self._client(model)
        refused = self._refused.setdefault(model, set())
        while True:
            sent = without(body, refused)
            try:
                return await client.chat.completions.create(model=name, **sent)
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                feature = refused_feature(str(error), sent)
                if feature is None:
                    raise
                refused.add(feature)

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


def without(body: JsonObject, refused: set[str]) -> JsonObject:
    """The body without what the server does not understand, step by step: `strict`, then any schema, then JSON mode."""
    body = dict(body)
    if "stream_options" in refused:
        body.pop("stream_options", None)
    form = body.get("response_format")
    if form is None:
        return body
    if "json_object" in refused:
        del body["response_format"]
    elif "json_schema" in refused:
        body["response_format"] = {"type": "json_object"}
    elif "strict" in refused:
        schema = {key: value for key, value in form["json_schema"].items() if key != "strict"}
        body["response_format"] = {**form, "json_schema": schema}
    return body


def refused_feature(message: str, body: JsonObject) -> str | None:
    """What of the body an error is about, as far as one can do without it."""
    text = message.lower()
    if "stream_options" in text and "stream_options" in body:
        return "stream_options"
    form = body.get("response_format")
    if form is None or not any(
        word in text for word in ("response_format", "json_schema", "json_object", "schema", "strict")
    ):
        return None
    if form["type"] == "json_object":
        return "json_object"
    return "strict" if "strict" in form["json_schema"] else "json_schema"
