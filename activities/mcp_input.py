"""Requests of an MCP server while a request of ours runs, and the run's answers (R21.3)."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from mcp.types import (
    INVALID_REQUEST,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    ElicitResult,
    ErrorData,
    InputRequest,
    InputRequiredResult,
    InputResponse,
    InputResponses,
    ListRootsRequest,
    TextContent,
)

from perdure.errors import ToolError
from perdure.tools.server_input import ANSWERS, SampleRequest, ServerAnswers, ServerInput, ServerQuestion
from perdure.values.json import JsonObject, dumps
from perdure.values.limits import (
    MAX_SAMPLE,
    MAX_SAMPLE_TOKENS,
    MAX_SERVER_QUESTION,
    MAX_SERVER_QUESTIONS,
    MAX_SERVER_STATE,
)

REFUSED: Final = ErrorData(code=INVALID_REQUEST, message="no person can answer now")
_ASKS: Final = "asks its client's user or model before the call"


@dataclass
class ServerRequests:
    """The requests of one server in one run of a call. `samples`: how often it may ask a model in all runs of the call."""

    server: str
    samples: int
    answers: ServerAnswers | None = field(default_factory=lambda: ANSWERS.get(None))
    _met: Counter[str] = field(default_factory=Counter)

    @property
    def responses(self) -> InputResponses | None:
        """The answers in the form of the next request; `None` if there are none."""
        if self.answers is None or not self.answers.answers:
            return None
        return {key: _response(answer) for key, answer in self.answers.answers.items()}

    def read(self, required: InputRequiredResult) -> ServerInput:
        """Return the input that a result asks for. Raises `ToolError`."""
        asked = ServerInput(server=self.server, state=required.request_state)
        requests = required.input_requests or {}
        if len(requests) > MAX_SERVER_QUESTIONS:
            raise self._invalid(f"it asks {len(requests):,} questions at once; {MAX_SERVER_QUESTIONS} are accepted")
        if len(required.request_state or "") > MAX_SERVER_STATE:
            raise self._invalid(f"its requestState has more than {MAX_SERVER_STATE:,} characters")
        for key, request in requests.items():
            self._add(asked, key, request)
        return asked

    def known(self, request: InputRequest) -> InputResponse | None:
        """Return the answer to a request that the server sends during the call, if it sent the same request in an
        earlier run.
        """
        answer = None if self.answers is None else self.answers.answers.get(self._key(request))
        return None if answer is None else _response(answer)

    def ask(self, *requests: InputRequest) -> ServerInput:
        """Return the input that the server's own requests, sent during the call, ask for. Raises `ToolError`."""
        asked = ServerInput(server=self.server, repeats=True)
        for request in requests[:MAX_SERVER_QUESTIONS]:
            digest = _digest(request)
            self._add(asked, f"{digest}.{self._met[digest] or 1}", request)
        return asked

    def _key(self, request: InputRequest) -> str:
        """Return the key of a request. The same request has the same key in the next call."""
        digest = _digest(request)
        self._met[digest] += 1
        return f"{digest}.{self._met[digest]}"

    def _add(self, asked: ServerInput, key: str, request: InputRequest) -> None:
        if self.answers is None:
            raise self._invalid(f"it {_ASKS}, which this call does not support")
        if isinstance(request, ListRootsRequest):
            raise self._invalid("it asks for its client's folders, which a worker does not have")
        if isinstance(request, CreateMessageRequest):
            asked.samples.append(self._sample(key, request.params))
            if self.answers.sampled + len(asked.samples) > self.samples:
                raise self._invalid(f"it asks a model more often than its entry's 'sampling' allows ({self.samples})")
            return
        asked.questions.append(self._question(key, request))

    def _question(self, key: str, request: ElicitRequest) -> ServerQuestion:
        params = request.params
        question = ServerQuestion(server=self.server, key=key, message=params.message)
        if isinstance(params, ElicitRequestFormParams):
            question.form = params.requested_schema
        else:
            question.url = params.url
        if len(dumps(question.as_json())) > MAX_SERVER_QUESTION:
            raise self._invalid(f"its question has more than {MAX_SERVER_QUESTION:,} characters")
        if question.problem is not None:
            raise self._invalid(f"its question cannot be asked: {question.problem}")
        return question

    def _sample(self, key: str, params: CreateMessageRequestParams) -> SampleRequest:
        if not self.samples:
            raise self._invalid("it asks for its client's model, which its entry's 'sampling' does not allow")
        if params.tools:
            raise self._invalid("it gives tools to its client's model, which is not supported")
        messages: list[JsonObject] = []
        if params.system_prompt:
            messages.append({"role": "system", "content": params.system_prompt})
        for message in params.messages:
            blocks = message.content_as_list
            if not all(isinstance(block, TextContent) for block in blocks):
                raise self._invalid("it sends its client's model more than text, which is not supported")
            messages.append({"role": message.role, "content": "\n".join(block.text for block in blocks)})  # type: ignore[union-attr]
        if len(dumps(messages)) > MAX_SAMPLE:
            raise self._invalid(f"it sends its client's model more than {MAX_SAMPLE:,} characters")
        return SampleRequest(
            key=key,
            messages=messages,
            max_tokens=max(1, min(params.max_tokens, MAX_SAMPLE_TOKENS)),
            temperature=params.temperature,
            stop=(params.stop_sequences or [])[:MAX_SERVER_QUESTIONS],
        )

    def _invalid(self, why: str) -> ToolError:
        return ToolError(
            "invalid_answer", f"the MCP server {self.server!r} returned no result: {why}", carried_out=None
        )


def as_requests(elicitations: Any) -> list[InputRequest]:
    """Return the addresses that a server of 2025-11-25 has a person open first. Raises pydantic's `ValidationError`."""
    found = elicitations if isinstance(elicitations, list) else []
    return [ElicitRequest(params=ElicitRequestURLParams.model_validate(each)) for each in found]


def _digest(request: InputRequest) -> str:
    plain = request.model_dump(mode="json", by_alias=True, exclude_none=True)
    for changing in ("_meta", "elicitationId"):
        plain.get("params", {}).pop(changing, None)
    return hashlib.sha256(dumps(plain, sort_keys=True).encode(errors="replace")).hexdigest()[:16]


def _response(answer: JsonObject) -> InputResponse:
    if "action" in answer:
        return ElicitResult.model_validate(answer)
    text = TextContent(type="text", text=answer["text"])
    return CreateMessageResult(role="assistant", content=text, model=answer["model"], stop_reason=answer["stopReason"])
