"""Servers of models, and the features that each of them does not support (R9.1, R9.4)."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import httpx2
import openai
from openai import AsyncOpenAI
from temporalio.exceptions import ApplicationError

from perdure.activities.failures import refusal_in
from perdure.activities.model_servers import (
    ADDRESSES,
    NO_ENDPOINT,
    ChatServer,
    ModelServer,
    ResponsesServer,
    connect,
    endpoint_key,
)
from perdure.activities.secrets import keep_secret
from perdure.models.media_parts import with_newest, without_files
from perdure.models.model_names import Provider, parse_model, split_endpoint
from perdure.models.provider_errors import Reduction, Refusal, remove_features, step_down
from perdure.models.providers.capabilities import Capabilities, FileKinds, with_files_of
from perdure.models.providers.registry import write_request
from perdure.models.requests import Endpoint
from perdure.values.json import JsonObject, dumps

REMEMBERED: Final = 1000
"""Schemas whose refused features are remembered, and as many refused files."""


class Endpoints:
    """The servers of models. Without a `default` client, one is made from `OPENAI_BASE_URL` and `OPENAI_API_KEY`.

    `more` are further servers by name: the model `llama-3@backup` is `llama-3` of the server `backup`. `servers`
    replace those of the environment for a provider. `files`: the kinds of files that models read, by the model's name,
    for models that the engine does not know.
    """

    def __init__(
        self,
        default: AsyncOpenAI | None = None,
        more: Mapping[str, Endpoint] | None = None,
        servers: Mapping[Provider, ModelServer] | None = None,
        files: FileKinds | None = None,
    ) -> None:
        self._files = files or {}
        self._servers: dict[tuple[Provider, str], ModelServer] = {}
        if default is not None:
            keep_secret(default.api_key)
            self._servers[("openai", "")] = ChatServer(default)
            self._servers[("openai-responses", "")] = ResponsesServer(default)
        self._servers |= {(provider, ""): server for provider, server in (servers or {}).items()}
        self._more = dict(more or {})
        self._unknown: dict[str, set[str]] = {}
        """Features that a model's server does not know, by model."""
        self._refused: dict[tuple[str, str], set[str]] = {}
        """Features that a server refused for one schema alone, by model and the schema's digest."""
        self._refused_files: dict[tuple[str, str], None] = {}
        """Files that a server refused, by model and the file's digest: left out of each later Request of this worker."""
        self._most_files: dict[str, dict[tuple[str, ...], int]] = {}
        """The number of files of some kinds that a server accepts, by model."""

    @asynccontextmanager
    async def ask(self, model: str, body: JsonObject, stable: int = 0) -> AsyncIterator[httpx2.Response]:
        """Yield the answer, or its stream, without the features that the server refused before (`learn`).

        `body`: in the form of Chat Completions, for every provider. `stable`: the number of its messages that later
        Requests repeat.
        """
        name, server = self._server(model)
        steps: list[Reduction] = []
        async with AsyncExitStack() as stack:
            while True:
                sent = self.fitted(model, body)
                asking = server.send(write_request(model, name, sent, stable, self.capabilities(model)))
                try:
                    answered = await stack.enter_async_context(asking)
                except (openai.APIStatusError, httpx2.HTTPStatusError) as error:
                    refusal = refusal_in(error)
                    step = None if refusal is None else self.learn(model, body, sent, refusal)
                    if step is None:
                        self.restore_files(model, steps)
                        raise
                    steps.append(step)
                else:
                    break
            yield answered

    def capabilities(self, model: str) -> Capabilities:
        """Return the capabilities of a model, with the kinds of files that this worker declares for it."""
        return with_files_of(self._files, model)

    def fitted(self, model: str, body: JsonObject) -> JsonObject:
        """Return the body to send now, without features that the server does not support."""
        unknown, refused = self._unknown.get(model, set()), self._refused.get((model, _schema_key(body)), set())
        fitted = remove_features(body, unknown | refused)
        if files := {digest for name, digest in self._refused_files if name == model}:
            fitted["messages"] = without_files(fitted["messages"], files)
        for kinds, most in self._most_files.get(model, {}).items():
            fitted["messages"] = with_newest(fitted["messages"], kinds, most)
        return fitted

    def learn(self, model: str, body: JsonObject, sent: JsonObject, refusal: Refusal) -> Reduction | None:
        """Record which feature of the body the server refused, and return it; `None` if the body needs all its features.

        An unknown feature is omitted from then on, and so is a refused file, or the oldest files above a number. A
        feature that was refused for one schema is omitted with that schema. The refusal is of the body that was
        `sent`: a second, equal refusal changes nothing.
        """
        step = step_down(refusal, sent)
        if step is None:
            return None
        if step.kinds:
            self._most_files.setdefault(model, {})[step.kinds] = step.most
        elif step.always:
            self._unknown.setdefault(model, set()).add(step.feature)
        elif step.file:
            _make_room(self._refused_files, (model, step.file))
            self._refused_files[model, step.file] = None
        else:
            key = (model, _schema_key(body))
            _make_room(self._refused, key)
            self._refused.setdefault(key, set()).add(step.feature)
        return step

    def restore_files(self, model: str, steps: Iterable[Reduction]) -> None:
        """Send files again that the reductions left out in vain: the refusals may not have been about them."""
        for step in steps:
            self._refused_files.pop((model, step.file), None)
            self._most_files.get(model, {}).pop(step.kinds, None)

    def not_understood(self, model: str) -> dict[str, list[str]]:
        """Return the refused features: `{"unknown": […], "refused": […]}`, of the server and of single schemas."""
        refused = {feature for (name, _), features in self._refused.items() if name == model for feature in features}
        return {"unknown": sorted(self._unknown.get(model, ())), "refused": sorted(refused)}

    def setting(self, model: str) -> str:
        """Return the name of the setting that holds the address of the model's server, for a message to the user."""
        endpoint = split_endpoint(model)[1]
        return f"{endpoint!r} of PERDURE_ENDPOINTS" if endpoint else ADDRESSES[parse_model(model).provider]

    def problem(self, model: str) -> str | None:
        """Return why no server can be asked for the model: the worker has no such endpoint. Another server must not get
        its prompt.
        """
        name, endpoint = split_endpoint(model)
        if not endpoint or endpoint in self._more:
            return None
        known = ", ".join(sorted(self._more)) or "none"
        return f"model {model!r}: PERDURE_ENDPOINTS has no endpoint {endpoint!r}; it has {known}. Write {model + '@'!r} for a model with the name {name + '@' + endpoint!r}"

    def _server(self, model: str) -> tuple[str, ModelServer]:
        """Return the model's name as its server knows it, and the server."""
        if problem := self.problem(model):
            raise ApplicationError(problem, type=NO_ENDPOINT, non_retryable=True)
        provider, (name, endpoint) = parse_model(model).provider, split_endpoint(model)
        key = (provider, endpoint)
        if key not in self._servers:
            known = self._more.get(endpoint)
            at = () if known is None else (known.base_url, endpoint_key(endpoint, known.api_key_env))
            self._servers[key] = connect(provider, *at)
        return name, self._servers[key]


def _make_room(remembered: dict[tuple[str, str], Any], key: tuple[str, str]) -> None:
    """Remove the oldest entry if there is no room for a new one."""
    if key not in remembered and len(remembered) >= REMEMBERED:
        del remembered[next(iter(remembered))]


def _schema_key(body: JsonObject) -> str:
    form = body.get("response_format")
    return "" if form is None else hashlib.sha256(dumps(form).encode(errors="replace")).hexdigest()
