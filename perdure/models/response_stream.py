"""Response streams: documents of a model server become calls, output, reasoning, and usage.

Servers differ from the protocol and from each other in almost every key. So the reader relies only on the values that
it uses, and accepts any type; no document of a server raises an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from perdure.models.dialects.common import SolutionStreamReader, ToolDelta, lost_thought
from perdure.models.provider_extras import ProviderExtras, Reasoning, call_beside, is_thought, reasoning_text, text_in
from perdure.models.providers.registry import event_reader
from perdure.models.requests import INTERRUPTED, KEPT_TEXT, CallDelivery, HostedCall, RequestResult
from perdure.models.usage import Usage
from perdure.values.json import Json, JsonObject, dumps
from perdure.values.limits import MAX_ANSWER
from perdure.values.templates import TextForm

# **The invariant.** Each call of a Request runs at most once, and a released call is never withdrawn.
# Its argument. (1) Calls reach the plan only through `Intake`: each index once, in the order of the model's list. A
# delivery that comes twice or out of order is kept or dropped by its index. (2) Deliveries and the activity's result
# name their attempt. The first attempt with a call that arrives owns the Request. Calls of any other attempt are
# dropped, also those of a worker that was thought dead. So calls of two answers never mix. (3) Before a later attempt
# calls the model, it asks the run whether calls have arrived (`RequestContext.released`). If so, it does not call the
# model. (2) covers a delivery that arrives after this check. (4) The owner's result is the whole list, so it repairs a
# lost delivery. If the owner died, its arrived calls stay, and the Request is closed as interrupted. (5) These
# decisions depend only on the workflow's history, so a replay makes the same ones. An activity that Temporal repeats
# after its worker's death has the same idempotency key on each attempt. (6) A Request is closed once, by its final
# result, which has the whole list. Later deliveries, also its owner's, add nothing.


class Intake:
    """The calls of one Request as they arrive."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.received = 0
        """Calls released so far."""
        self.closed = False
        """Whether the Request has its final result: later calls are dropped."""
        self._owner: int | None = None
        self._early: dict[int, Json] = {}

    def deliver(self, delivery: CallDelivery) -> list[Json]:
        """Return the calls that the delivery adds, in the order of the list; none from an attempt that does not own the
        Request."""
        if self.closed or delivery.number != self.number or not delivery.calls:
            return []
        return self._take(delivery.attempt, delivery.first, delivery.calls)

    def close(self, result: RequestResult) -> tuple[list[Json], RequestResult]:
        """Return the calls that were still missing, and the final result.

        The owner's result is final. Another attempt's result, which does not know the owner's calls, is dropped: the
        Request was interrupted. Later deliveries add nothing.
        """
        self.closed = True
        if self._owner is not None and result.attempt != self._owner:
            return [], self.interrupted("the worker was lost")
        return self._take(result.attempt, 0, result.calls), result

    def interrupted(self, reason: str) -> RequestResult:
        """Return the result of a Request whose answer broke off after calls had been released. Closes the Request."""
        self.closed = True
        return RequestResult(problem=interruption(self.received, reason), attempt=self._owner or 1)

    def _take(self, attempt: int, first: int, calls: Sequence[Json]) -> list[Json]:
        if self._owner is None and calls:
            self._owner = attempt
        if attempt != self._owner:
            return []
        if first <= self.received and not self._early:  # in order, except after a lost or late delivery
            fresh = list(calls[self.received - first :])
            self.received += len(fresh)
            return fresh
        for index, call in enumerate(calls, first):
            if index >= self.received:
                self._early.setdefault(index, call)
        ready: list[Json] = []
        while self.received in self._early:
            ready.append(self._early.pop(self.received))
            self.received += 1
        return ready


def interruption(released: int, reason: str) -> JsonObject:
    """Return the error that explains an interrupted answer to the model (R6.7)."""
    return {
        "code": INTERRUPTED,
        "message": f"your answer broke off after {released} calls ({reason}); they were run, see the plan. Go on from there",
    }


_MOST_TOKENS: Final = 10**12
_CACHED: Final = ("prompt_cache_hit_tokens", "cache_read_input_tokens", "cached_tokens")
"""Keys for cached tokens beside OpenAI's `prompt_tokens_details.cached_tokens`: DeepSeek's, Anthropic's and
Moonshot's."""
_MOST_HOSTED: Final = 50
"""The most uses of hosted tools that are reported for one answer."""
_LONGEST_HOSTED: Final = 1000
"""Characters of a hosted tool's input, or result."""
_LONGEST: Final = 500
"""Characters of a name, an id or a refusal."""
_TEXT_ALONE: Final = frozenset({"content", "role"})
"""Keys of a delta that has only text."""
_CHUNK: Final = frozenset(
    {"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier", "obfuscation"}
)
"""Keys of a chunk that has only a delta."""
_CHOICE: Final = frozenset({"index", "delta", "finish_reason", "logprobs"})
_FILTERED: Final = ("content_filter", "refusal")
"""Beginnings of finish reasons that mean a refusal; Google's server adds its category behind a colon."""


_Place: TypeAlias = tuple[Json, int | None]
"""The model of a piece of text, and the index of the call whose arguments it continues; `None` for the answer's text."""


def join_chunks(documents: list[Json]) -> list[Json]:
    """Return chunks that arrived together, with consecutive pieces of one text as one chunk.

    So are pieces of one call's arguments. Most of the cost of a token does not depend on its length.
    """
    found: list[Json] = []
    place: _Place | None = None
    texts: list[str] = []
    for document in documents:
        piece = _piece(document)
        if piece is not None and piece[0] == place:
            texts.append(piece[1])
            continue
        if place is not None and len(texts) > 1:
            found[-1] = _chunk(place, "".join(texts))
        found.append(document)
        place, texts = (None, []) if piece is None else (piece[0], [piece[1]])
    if place is not None and len(texts) > 1:
        found[-1] = _chunk(place, "".join(texts))
    return found


def _piece(document: Json) -> tuple[_Place, str] | None:
    """Return the text of a chunk that has nothing else, and its place."""
    if not isinstance(document, dict) or not document.keys() <= _CHUNK or document.get("usage") is not None:
        return None
    choices = document.get("choices")
    choice = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
    if not isinstance(choice, dict) or not choice.keys() <= _CHOICE or choice.get("finish_reason") is not None:
        return None
    delta = choice.get("delta")
    if not isinstance(delta, dict) or choice.get("index") not in (None, 0) or document.get("object") == "error":
        return None
    if delta.keys() <= _TEXT_ALONE:
        text, index = delta.get("content"), None
    elif delta.keys() == {"tool_calls"} and isinstance(calls := delta["tool_calls"], list) and len(calls) == 1:
        call = calls[0]
        if not isinstance(call, dict) or call.keys() != {"index", "function"} or not isinstance(call["index"], int):
            return None
        function, index = call["function"], call["index"]
        text = function["arguments"] if isinstance(function, dict) and function.keys() == {"arguments"} else None
    else:
        return None
    return ((document.get("model"), index), text) if isinstance(text, str) else None


def _chunk(place: _Place, text: str) -> JsonObject:
    model, index = place
    call: JsonObject = {"index": index, "function": {"arguments": text}}
    return {"model": model, "choices": [{"delta": {"content": text} if index is None else {"tool_calls": [call]}}]}


class ResponseStream:
    """The reader of a model server's documents, one by one, with `result` at the end."""

    def __init__(self, model: str, attempt: int, reader: SolutionStreamReader) -> None:
        self.model = model
        self.attempt = attempt
        self.finish_reason: str | None = None
        self.whole = False
        """Whether the answer's end was read; else it broke off."""
        self._events = event_reader(model)
        self._reader = reader
        self._usage = Usage()
        self._text: list[str] = []
        self._half = ""
        self._hosted: list[HostedCall] = []
        self._refusal: list[str] = []
        self._beside = ProviderExtras()
        self._reasoning = Reasoning()
        self._size = 0
        self._anew = False

    @property
    def too_long(self) -> bool:
        """Whether the answer is too long and must be ended."""
        return self._size > MAX_ANSWER

    def documents(self, event: Json) -> list[Json]:
        """Return the documents of Chat Completions in an event of the model's provider."""
        return self._events.take(event)

    def take(self, document: Json) -> list[Json]:
        """Return the calls that close with a chunk, or with a completion."""
        if not isinstance(document, dict):
            return []
        if isinstance(model := document.get("model"), str) and model and model != self.model:
            self.model = _clean(model)
        self._count(document)
        closed: list[Json] = []
        for choice in _list(document.get("choices")):
            if isinstance(choice, dict) and choice.get("index") in (None, 0):
                closed += self._choice(choice)
        return closed

    @property
    def usage(self) -> Usage:
        """The usage that the server has reported so far."""
        return self._usage

    def output_text(self) -> str:
        """Return the known text of the output beyond earlier results: see `perdure.models.dialects.output_text`."""
        return self._reader.output_text()

    @property
    def text_form(self) -> TextForm:
        """Form of the text that `output_text` has returned."""
        return self._reader.text_form

    def thought(self) -> str:
        """Return the model's thoughts beyond earlier results."""
        self._think()
        return self._reasoning.new()

    def _think(self) -> None:
        self._reasoning.add(self._reader.thought())

    def _choice(self, choice: JsonObject) -> list[Json]:
        if isinstance(reason := choice.get("finish_reason"), str) and reason:
            self.finish_reason, self.whole = reason, True
        piece, message = choice.get("delta"), choice.get("message")
        if not piece and isinstance(message, dict) and not self._size:
            self.whole = True  # a completion, also in place of a stream
            piece = message
        return self._take(piece) if isinstance(piece, dict) else []

    def _take(self, piece: JsonObject) -> list[Json]:
        """Add text, native calls and refusal of a delta or a message; thoughts are not part of the answer."""
        content = piece.get("content")
        text = content if isinstance(content, str) else "".join(map(self._part, _list(content)))
        closed = self._push_text(text) if text else []
        if piece.keys() <= _TEXT_ALONE:  # most deltas: the code below would be most of a token's cost
            return closed
        if isinstance(refusal := piece.get("refusal"), str):
            self._refusal.append(refusal)
        for call in _list(piece.get("tool_calls")):
            if isinstance(call, dict):
                closed += self._call(call)
        if isinstance(call := piece.get("function_call"), dict):  # the protocol's form before several calls existed
            closed += self._call({"function": call})
        for use in _list(piece.get("hosted_calls")):
            if isinstance(use, dict) and len(self._hosted) < _MOST_HOSTED:
                texts = {key: _clean(str(use.get(key) or ""), _LONGEST_HOSTED) for key in ("tool", "input", "result")}
                self._hosted.append(HostedCall(**texts, failed=bool(use.get("failed"))))
        self._size += self._beside.add(piece)
        self._reasoning.take(piece)
        return closed

    def _part(self, part: Json) -> str:
        """Return the text of a part of a content; a thought has none, and goes to the reasoning."""
        if isinstance(part, str):
            return part
        if not isinstance(part, dict):
            return ""
        if isinstance(refusal := part.get("refusal"), str):
            self._refusal.append(refusal)
        if is_thought(part):
            thought = text_in(part)
            self._size += len(thought)
            self._reasoning.add(thought)
            return ""
        text = part.get("text")
        return text if isinstance(text, str) and part.get("type", "text") in ("text", "output_text") else ""

    def _push_text(self, text: str) -> list[Json]:
        if self._half or not text.isascii():
            text = self._half + text
            # A character beyond the 16-bit plane, written as two escapes, may be cut between them.
            self._half = text[-1] if "\ud800" <= text[-1] <= "\udbff" else ""
            text = text[: len(text) - len(self._half)].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            self._size += len(text.encode()) - len(text)
        self._size += len(text)
        self._text.append(text)
        return self._reader.push(text)

    def _call(self, call: JsonObject) -> list[Json]:
        function = call.get("function")
        function = function if isinstance(function, dict) else call
        name, id, index = function.get("name"), call.get("id"), call.get("index")
        arguments = function.get("arguments")
        if arguments is not None and not isinstance(arguments, str):
            arguments = dumps(arguments)
        self._size += len(arguments or "")
        return self._reader.push_tool(
            ToolDelta(
                index=index if isinstance(index, int) else None,
                id=_clean(id) if isinstance(id, str) else None,
                name=_clean(name) if isinstance(name, str) else None,
                arguments=arguments,
                beside=call_beside(call),
            )
        )

    def _count(self, document: JsonObject) -> None:
        usage = document.get("usage")
        if not isinstance(usage, dict) and isinstance(groq := document.get("x_groq"), dict):
            usage = groq.get("usage")
        if isinstance(usage, dict):
            prompt, completion = _tokens(usage.get("prompt_tokens")), _tokens(usage.get("completion_tokens"))
            reasoning = _tokens(_part_of(usage, "completion_tokens_details").get("reasoning_tokens"))
            if _tokens(usage.get("total_tokens")) == prompt + completion + reasoning:
                completion += reasoning  # xAI counts them beside the completion, and others within
            self._usage = Usage(
                prompt_tokens=prompt,
                completion_tokens=completion,
                cached_tokens=(cached := min(prompt, _cached(usage))),
                cache_write_tokens=min(prompt - cached, _cache_written(usage)),
                reasoning_tokens=reasoning,
            )

    def result(self) -> RequestResult:
        """Return the result of the finished answer."""
        solution = self._reader.close("length" if self.too_long else self.finish_reason)
        problem = None if solution.problem is None else solution.problem.as_json()
        if self.too_long:
            message = f"your answer was ended after {MAX_ANSWER:,} bytes; write less, and pass results on by reference"
            problem = {"code": "answer_too_long", "message": message}
        self._beside.calls, self._anew = solution.beside, solution.anew
        self._reasoning.add(lost_thought("".join(self._text)))
        if not self.too_long and (words := self._refusal_words(solution.text)) is not None:
            result = self._result(solution.calls, None, refusal_problem(words))
            return result.model_copy(update={"refusal": words})
        return self._result(solution.calls, solution.output, problem, solution.text)

    def _refusal_words(self, text: str | None) -> str | None:
        """Return the model's message if it refused or a filter ended its answer; `None` if it answered (R20.2)."""
        if refusal := "".join(self._refusal).strip():
            return _clean(refusal)
        if not (self.finish_reason or "").startswith(_FILTERED):
            return None
        message = "".join(self._text) if text is None else text
        return _clean(message.strip()) or "the server's content filter withheld the answer"

    def refused(self, words: str) -> RequestResult:
        """Return the result of a server's refusal in place of an answer (R20.2)."""
        return self._result([], None, refusal_problem(words)).model_copy(update={"refusal": words})

    def interrupted(self, released: list[Json], reason: str) -> RequestResult:
        """Return the remaining result of an answer that broke off after calls were released (R6.7)."""
        self._beside.calls = self._reader.close("length").beside
        return self._result(released, None, interruption(len(released), reason))

    def _result(
        self, calls: list[Json], output: Json, problem: JsonObject | None, text: str | None = None
    ) -> RequestResult:
        self._think()
        beside = self._beside.kept()
        reasoning = self._reasoning.kept.encode(errors="replace").decode()
        return RequestResult(
            calls=calls,
            output=output,
            text=("".join(self._text) if text is None else text)[:KEPT_TEXT].encode(errors="replace").decode(),
            reasoning="" if beside is not None and reasoning_text(beside.message) == reasoning else reasoning,
            reasoned=self._reasoning.characters,
            anew=self._anew,
            beside=beside,
            problem=problem,
            hosted=self._hosted,
            model=self.model,
            usage=self._usage,
            attempt=self.attempt,
        )


_YOU_REFUSED: Final = "you refused: "


def refusal_problem(words: str) -> JsonObject:
    """Return the problem that a model reads after it refused."""
    return {"code": "refusal", "message": f"{_YOU_REFUSED}{words}"}


def problem_words(problem: JsonObject) -> str:
    """Return the words of an answer's problem for a person. The model reads its `message`."""
    words = str(problem.get("message"))
    refused = problem.get("code") == "refusal" and words.startswith(_YOU_REFUSED)
    return f"the model refused: {words.removeprefix(_YOU_REFUSED)}" if refused else words


def _list(value: Json) -> list[Json]:
    """Return a list; a single value becomes a list of one."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _part_of(usage: JsonObject, name: str) -> JsonObject:
    return part if isinstance(part := usage.get(name), dict) else {}


def _clean(text: str, most: int = _LONGEST) -> str:
    """Return a server's name or sentence, cut to a size and to characters that can be stored."""
    return text[:most].encode(errors="replace").decode()


def _cached(usage: JsonObject) -> int:
    """Return the prompt tokens from a server's cache, under any of the known keys (R10.19)."""
    cached = _part_of(usage, "prompt_tokens_details").get("cached_tokens")
    return max(map(_tokens, [cached, *(usage.get(name) for name in _CACHED)]))


def _cache_written(usage: JsonObject) -> int:
    """Return the prompt tokens that a server wrote to its cache, as OpenRouter and Perdure's providers report them."""
    return _tokens(_part_of(usage, "prompt_tokens_details").get("cache_write_tokens"))


def _tokens(value: Json) -> int:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < _MOST_TOKENS:
        return 0
    return int(value)
