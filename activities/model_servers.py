"""Servers of models, one class for each provider: they send a body and yield the response as it arrives.

The engine reads the answer's events as bytes: a library's objects for every event cost many times as much.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Protocol
from urllib.parse import quote

import httpx2
import openai
from openai import AsyncOpenAI
from temporalio.exceptions import ApplicationError

from perdure.activities.secrets import keep_secret
from perdure.models.model_names import Provider
from perdure.runs.caller_context import looks_secret
from perdure.values.json import JsonObject, dumps

IDLE_TIMEOUT = 120.0
"""Seconds without a byte from the model until the attempt counts as lost; reasoning models may think that long."""
TIMEOUT: Final = httpx2.Timeout(IDLE_TIMEOUT, connect=10.0)
NO_KEY: Final = "NoKey"
MISSING_EXTRA: Final = "MissingExtra"
NO_ENDPOINT: Final = "NoEndpoint"
LACKS: Final = frozenset({NO_KEY, MISSING_EXTRA, NO_ENDPOINT})
"""Types of failures of a worker that lacks what a model needs. Another worker may have it."""


class ModelServer(Protocol):
    """The server of a provider, at one address."""

    def send(self, body: JsonObject) -> AbstractAsyncContextManager[httpx2.Response]:
        """Send a Request; yield the response, whose body is not read yet.

        Raise an error that `model_failure` accepts if the server refuses or cannot be reached.
        """
        ...


class ChatServer:
    """A server of OpenAI's Chat Completions."""

    def __init__(self, client: AsyncOpenAI) -> None:
        self._client = client

    @asynccontextmanager
    async def send(self, body: JsonObject) -> AsyncIterator[httpx2.Response]:
        """Send a Request; yield the response."""
        # `extra_body` is sent unchanged, and replaces the others; the client would walk through its own parameters.
        sending = self._client.chat.completions.with_streaming_response
        async with sending.create(model=str(body["model"]), messages=[], extra_body=body) as answered:
            yield answered.http_response


class ResponsesServer:
    """A server of OpenAI's Responses."""

    def __init__(self, client: AsyncOpenAI) -> None:
        self._client = client

    @asynccontextmanager
    async def send(self, body: JsonObject) -> AsyncIterator[httpx2.Response]:
        """Send a Request; yield the response."""
        async with self._client.responses.with_streaming_response.create(extra_body=body) as answered:
            yield answered.http_response


class AnthropicServer:
    """A server of Anthropic's Messages, by Anthropic's own client.

    Without an address and a key the client finds them: `ANTHROPIC_BASE_URL`, `ANTHROPIC_API_KEY`, a profile, or the
    identity of the workload. The headers of `ANTHROPIC_CUSTOM_HEADERS` are for that server alone.
    """

    def __init__(self, address: str = "", key: str = "", http: httpx2.AsyncClient | None = None) -> None:
        self._key = key
        self._options: dict[str, Any] = {"max_retries": 0, "timeout": TIMEOUT, "http_client": http}
        if not address and os.environ.get("ANTHROPIC_BASE_URL") == "":
            address = _ANTHROPIC  # The client would take an empty variable for an address.
        self._options |= ({"base_url": address} if address else {}) | ({"api_key": key} if key else {})
        self._client: Any = None  # the library may be missing, also where types are checked

    @asynccontextmanager
    async def send(self, body: JsonObject) -> AsyncIterator[httpx2.Response]:
        """Send a Request; yield the response."""
        anthropic = await load_library("anthropic", extra="anthropic")
        if self._client is None:
            headers = _own_headers("ANTHROPIC_CUSTOM_HEADERS", self._key, anthropic.omit)
            self._options["default_headers"] = headers
            self._client = anthropic.AsyncAnthropic(**self._options)
            keep_secret(self._client.api_key or "", self._client.auth_token or "")
        try:
            # `extra_body` replaces the three required arguments. A version of the client may lack a parameter that older models take.
            sending = self._client.messages.with_streaming_response
            older = {} if body.keys().isdisjoint(_SAMPLING) else {"anthropic-version": _SAMPLING_VERSION}
            async with sending.create(
                model=body["model"], max_tokens=1, messages=[], extra_body=body, extra_headers=older
            ) as answered:
                yield answered.http_response
        except anthropic.APIStatusError as error:
            raise status_error(error.response) from None
        except anthropic.APIConnectionError as error:
            raise (error.__cause__ if isinstance(error.__cause__, httpx2.HTTPError) else _lost(error)) from None
        except (anthropic.AnthropicError, TypeError) as error:
            if "authentication" not in str(error):
                raise
            raise no_key("anthropic", "ANTHROPIC_API_KEY") from None


class GoogleServer:
    """A server of Google's Gemini API.

    Without an address and a key they are `GOOGLE_GEMINI_BASE_URL`, and `GOOGLE_API_KEY` or `GEMINI_API_KEY`.
    """

    def __init__(self, address: str = "", key: str = "", http: httpx2.AsyncClient | None = None) -> None:
        self._address = (address or os.environ.get("GOOGLE_GEMINI_BASE_URL") or _GOOGLE).rstrip("/")
        self._key = key or os.environ.get("GOOGLE_API_KEY") or os.environ.get("GEMINI_API_KEY") or ""
        if not self._key:
            raise no_key("google", "GEMINI_API_KEY")
        keep_secret(self._key)
        self._http = http or httpx2.AsyncClient(timeout=TIMEOUT)

    @asynccontextmanager
    async def send(self, body: JsonObject) -> AsyncIterator[httpx2.Response]:
        """Send a Request; yield the response."""
        method = "streamGenerateContent?alt=sse" if body["stream"] else "generateContent"
        url = f"{self._address}/v1beta/models/{quote(body['model'], safe='')}:{method}"
        async with _post(self._http, url, _encoded(body), {"x-goog-api-key": self._key}) as response:
            yield response


class BedrockServer:
    """A server of AWS Bedrock's Converse, with AWS's own library for credentials and signatures.

    A key is one of Bedrock's own (`AWS_BEARER_TOKEN_BEDROCK`). Without one the library finds credentials as all of
    AWS's programs do: variables, profiles, roles.
    """

    def __init__(self, address: str = "", key: str = "", http: httpx2.AsyncClient | None = None) -> None:
        self._address = address or os.environ.get("AWS_ENDPOINT_URL_BEDROCK_RUNTIME") or ""
        self._key = key or os.environ.get("AWS_BEARER_TOKEN_BEDROCK") or ""
        keep_secret(self._key)
        self._http = http or httpx2.AsyncClient(timeout=TIMEOUT)
        self._session: Any = None

    @asynccontextmanager
    async def send(self, body: JsonObject) -> AsyncIterator[httpx2.Response]:
        """Send a Request; yield the response."""
        library = await load_library("botocore.session", extra="bedrock")
        await load_library("botocore.eventstream", extra="bedrock")  # the answer's reader needs it
        if self._session is None:
            self._session = library.Session()
        region = await asyncio.to_thread(self._session.get_config_variable, "region") or os.environ.get("AWS_REGION")
        if not region and not self._address:
            raise _missing("no region for the provider 'bedrock'", "AWS_REGION")
        address = (self._address or f"https://bedrock-runtime.{region}.amazonaws.com").rstrip("/")
        url = f"{address}/model/{quote(body['model'], safe='')}/converse{'-stream' if body['stream'] else ''}"
        content = _encoded(body)
        headers = await self._signed(url, content, region or "us-east-1")
        async with _post(self._http, url, content, headers) as response:
            yield response

    async def _signed(self, url: str, content: bytes, region: str) -> dict[str, str]:
        """Return the headers with the credentials' signature."""
        if self._key:
            return {"authorization": f"Bearer {self._key}"}
        auth = await load_library("botocore.auth", extra="bedrock")
        requests = await load_library("botocore.awsrequest", extra="bedrock")
        credentials = await asyncio.to_thread(self._credentials)
        if credentials is None:
            raise no_key(
                "bedrock", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or AWS_BEARER_TOKEN_BEDROCK"
            )
        keep_secret(credentials.secret_key)
        request = requests.AWSRequest(method="POST", url=url, data=content, headers=dict(_JSON))
        auth.SigV4Auth(credentials, "bedrock", region).add_auth(request)
        return dict(request.headers.items())

    def _credentials(self) -> Any:
        found = self._session.get_credentials()
        return None if found is None else found.get_frozen_credentials()


_ANTHROPIC: Final = "https://api.anthropic.com"
_SAMPLING: Final = ("temperature", "top_p")
_SAMPLING_VERSION: Final = "2023-06-01"
"""The last version of Anthropic's API that accepts sampling parameters. The client's own refuses them for every model."""
_OPENAI: Final = "https://api.openai.com/v1"
_GOOGLE: Final = "https://generativelanguage.googleapis.com"
_JSON: Final = {"content-type": "application/json"}


def _own_headers(variable: str, key: str, omit: Any) -> dict[str, Any]:
    """Return the headers that keep those of a variable from a server with its own key; `omit`: the library's sign.

    The variable's headers are for the default server, but the library sends them to any. They are kept secret.
    """
    lines = (line.partition(":") for line in os.environ.get(variable, "").split("\n"))
    headers = {name.strip(): value.strip() for name, colon, value in lines if colon}
    keep_secret(*(value for name, value in headers.items() if looks_secret(name)))
    own = {"authorization": f"Bearer {key}"}
    # The version of the API is no secret, and required.
    return {name: own.get(name.lower(), omit) for name in headers if key and name.lower() != "anthropic-version"}


def _encoded(body: JsonObject) -> bytes:
    """Return a body without the parts that belong to its address."""
    return dumps({key: value for key, value in body.items() if key not in ("model", "stream")}).encode(errors="replace")


@asynccontextmanager
async def _post(
    http: httpx2.AsyncClient, url: str, content: bytes, headers: Mapping[str, str]
) -> AsyncIterator[httpx2.Response]:
    """Yield the response to a body. Raise `HTTPStatusError` for a refusal, with its whole body."""
    async with http.stream("POST", url, content=content, headers={**_JSON, **headers}) as response:
        if response.status_code >= 400:
            await response.aread()
            raise status_error(response)
        yield response


def _lost(error: Any) -> Exception:
    return openai.APIConnectionError(message=str(error), request=error.request)


def status_error(response: httpx2.Response) -> httpx2.HTTPStatusError:
    """Return the error for a response in which a server refuses."""
    return httpx2.HTTPStatusError(
        f"the server answered {response.status_code}", request=response.request, response=response
    )


async def load_library(name: str, *, extra: str) -> Any:
    """Return a library that an extra installs. Raise `ApplicationError` where it is missing.

    It loads in a thread: that may take seconds, which would block the worker.
    """
    try:
        return await asyncio.to_thread(importlib.import_module, name)
    except ModuleNotFoundError as error:
        raise ApplicationError(
            f"the provider {extra!r} needs a library that is not installed ({error.name}): pip install 'perdure[{extra}]'",
            type=MISSING_EXTRA,
            non_retryable=True,
        ) from None


def no_key(provider: str, variable: str) -> ApplicationError:
    """Return the failure of a process that has no key for a provider."""
    return _missing(f"no key for the provider {provider!r}", variable)


def _missing(what: str, variable: str) -> ApplicationError:
    # A worker calls the models of runs. Clients call those of what-if and of evaluators.
    message = f"{what}: set {variable} for the process that calls the model"
    return ApplicationError(message, type=NO_KEY, non_retryable=True)


ADDRESSES: Final[dict[Provider, str]] = {
    "openai": "OPENAI_BASE_URL",
    "openai-responses": "OPENAI_BASE_URL",
    "anthropic": "ANTHROPIC_BASE_URL",
    "google": "GOOGLE_GEMINI_BASE_URL",
    "bedrock": "AWS_ENDPOINT_URL_BEDROCK_RUNTIME",
}
"""The variable of each provider's address."""


def default_openai() -> AsyncOpenAI:
    """Return the client of `OPENAI_BASE_URL` and `OPENAI_API_KEY`. Raise `ApplicationError` without a key."""
    try:
        # The client would take an empty variable for an address.
        headers = _own_headers("OPENAI_CUSTOM_HEADERS", "", openai.omit)
        address = os.environ.get("OPENAI_BASE_URL") or _OPENAI
        return AsyncOpenAI(base_url=address, max_retries=0, timeout=TIMEOUT, default_headers=headers)
    except openai.OpenAIError:
        variables = "OPENAI_API_KEY (and OPENAI_BASE_URL for your own server)"
        raise _missing("no key for the model", variables) from None


def connect(
    provider: Provider, address: str = "", key: str = "", http: httpx2.AsyncClient | None = None
) -> ModelServer:
    """Return the server of a provider: at this address, else at the environment's. `http`: the client to use."""
    if provider == "anthropic":
        return AnthropicServer(address, key, http)
    if provider == "google":
        return GoogleServer(address, key, http)
    if provider == "bedrock":
        return BedrockServer(address, key, http)
    # Temporal retries: a retry inside the client would be invisible and unbounded.
    if address:
        headers = _own_headers("OPENAI_CUSTOM_HEADERS", key, openai.omit)
        client = AsyncOpenAI(base_url=address, api_key=key, max_retries=0, timeout=TIMEOUT, default_headers=headers)
        client.organization = client.project = None  # those of the environment are for the default server
    else:
        client = default_openai()
    return ResponsesServer(client) if provider == "openai-responses" else ChatServer(client)


def endpoint_key(name: str, variable: str | None) -> str:
    """Return the key of an endpoint. Raise `ApplicationError` if its variable is empty."""
    key = os.environ.get(variable, "") if variable else "none"
    if not key:
        raise _missing(f"no key for the endpoint {name!r}", str(variable))
    keep_secret(key)
    return key
