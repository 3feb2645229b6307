"""Provider errors: the text of a server's refusal, its kind, and the feature that the next attempt leaves out.

Servers put error texts in many places: `error` as an object, a text or a list, `detail`, `message`, plain text, an
event of the stream, a choice, or a JSON document in place of a stream. This module reads the texts and chooses the
feature to leave out. The activity that calls the model decides about retries.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Final, Literal

from perdure.models.media_parts import files_of, part_digest
from perdure.models.provider_extras import SIGNED, keys_beside, without_beside
from perdure.values.json import Json, JsonObject

LONGEST_WORDS: Final = 500
"""Characters of a server's message that are kept."""

READ: Final = 20_000
"""Characters of the message that are read."""

Kind = Literal["too_long", "no_money", "bad_answer", "filtered", "other"]
"""`too_long`: the context exceeds the model's window. `no_money`: waiting does not help. `bad_answer`: the server
checked the model's answer itself and rejected it, so a retry may succeed. `filtered`: its content filter withheld the
answer (R20.2). For all other refusals the status decides."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A server's refusal."""

    words: str
    """The message on one line, at most `LONGEST_WORDS` characters."""
    kind: Kind = "other"
    status: int | None = None
    """HTTP's status; for an error in a stream, the status in the error. `None`: unknown, so a retry may succeed."""
    wait: float | None = None
    """Seconds after which the message asks to retry."""
    codes: str = ""
    """The server's own names for the refusal: code, type, status, parameter."""


class RefusalError(Exception):
    """A refusal in the place of an answer, raised by the reader of the answer."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.words)
        self.refusal = refusal


def refusal_of(status: int | None, body: str | Json, *, event: str = "") -> Refusal | None:
    """Return the refusal in a body, or in one event of a stream; `None` if it is an answer.

    `status` is the response's: from 400 on every body is a refusal, below 400 only a body with an error in it. `event`
    is the event's name in the stream.
    """
    failed = (status is not None and status >= 400) or event == "error"
    if isinstance(body, str):
        body = _read(body)
    error = _error_in(body, failed=failed)
    if error is None:
        return None
    message = " ".join(_words(error)[:READ].split())
    codes = " ".join(_codes(error, body))
    known = status if status is not None and status >= 400 else _status_of(error, body, codes)
    kind = _kind(f"{message} {codes}".lower(), known)
    return Refusal(
        message[:LONGEST_WORDS] or "no reason given", kind, known, _wait(message, error), codes[:LONGEST_WORDS]
    )


_PREFIX: Final = re.compile(r"^(?:\s*(?:event:\s*\w+|:.*|))*\s*(?:data|error):\s*", re.ASCII)
_TAGS: Final = re.compile(r"<(style|script)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)


def _read(text: str) -> Json:
    """Return JSON, also after a byte order mark or in an event; else the text, without HTML."""
    text = text.lstrip("\ufeff").strip()
    for candidate in (text, _PREFIX.sub("", text)):
        if candidate[:1] in ("{", "["):
            try:
                found: Json = json.loads(candidate)
                return found
            except (ValueError, RecursionError):
                continue
    return " ".join(_TAGS.sub(" ", text[:READ]).split())


_SPEAKING: Final = (
    "message",
    "detail",
    "error",
    "msg",
    "error_message",
    "errorMessage",
    "description",
    "reason",
    "errors",
)
"""Keys that hold the message, or an object that holds it, in the order of the search."""


def _error_in(body: Json, *, failed: bool) -> Json:
    """Return the part of a body that is an error; `None` if there is none."""
    if isinstance(body, list):
        return next(
            (found for each in body[:10] if (found := _error_in(each, failed=False)) is not None),
            body if failed else None,
        )
    if not isinstance(body, dict):
        return body if failed else None
    if body.get("error"):
        return body["error"] if isinstance(body["error"], dict) else body
    if body.get("object") == "error" or body.get("type") == "error":
        return body
    choices = body.get("choices")
    if isinstance(choices, list) and choices:
        return _error_in_choice(choices[0])
    if "choices" in body and not failed:
        return None
    speaks = any(isinstance(body.get(key), str | list) and body[key] for key in ("detail", "message", "errors", "msg"))
    return body if failed or speaks else None


def _error_in_choice(choice: Json) -> Json:
    if not isinstance(choice, dict):
        return None
    for place in (choice, choice.get("delta"), choice.get("message")):
        if isinstance(place, dict) and place.get("error"):
            return place["error"] if isinstance(place["error"], dict) else {"error": place["error"]}
    return {"message": "the server ended the answer with an error"} if choice.get("finish_reason") == "error" else None


def _words(error: Json, depth: int = 0) -> str:
    """Return the message of an error at any depth."""
    if depth > 6 or error is None:
        return ""
    if isinstance(error, str):
        inner = _read(error) if error.lstrip()[:1] in ("{", "[") else error
        return _words(inner, depth + 1) if not isinstance(inner, str) else inner
    if isinstance(error, list):
        return "; ".join(words for each in error[:5] if (words := _words(each, depth + 1)))
    if not isinstance(error, dict):
        return str(error)
    message = next((words for key in _SPEAKING if (words := _words(error.get(key), depth + 1))), "")
    if isinstance(place := error.get("loc"), list) and message:  # a parameter's place, as in FastAPI's errors
        message = f"{'.'.join(map(str, place))}: {message}"
    if (behind := _behind(error, depth)) and behind not in message:
        message = f"{message}: {behind}" if message else behind
    return message or (", ".join(f"{key}: {value}" for key, value in error.items() if isinstance(value, str | int)))


def _behind(error: JsonObject, depth: int) -> str:
    """Return the message of a router's upstream server."""
    metadata = error.get("metadata")
    return _words(metadata.get("raw"), depth + 1) if isinstance(metadata, dict) else ""


def _codes(*places: Json) -> Iterator[str]:
    """Yield every name of a kind of error."""
    for place in places:
        if isinstance(place, dict):
            for key in ("code", "type", "status", "error_type", "param"):
                if isinstance(place.get(key), str | int):
                    yield str(place[key])


_STATUS: Final[Mapping[str, int]] = {
    "overloaded": 503,
    "unavailable": 503,
    "rate_limit": 429,
    "throttling": 429,
    "modelstreamerror": 500,
    "resource_exhausted": 429,
    "insufficient_quota": 429,
    "authentication": 401,
    "invalid_api_key": 401,
    "unauthorized": 401,
    "permission": 403,
    "not_found": 404,
    "invalid_request": 400,
    "badrequest": 400,
    "invalid_argument": 400,
    "validation": 422,
    "server_error": 500,
    "api_error": 500,
    "internal": 500,
}
"""The status that an error's type implies, for an error without one."""


def _status_of(error: Json, body: Json, codes: str) -> int | None:
    for place in (error, body):
        if isinstance(place, dict):
            for key in ("status_code", "code", "status", "http_status_code", "statusCode"):
                value = place.get(key)
                if str(value).isdecimal() and 400 <= int(str(value)[:4]) <= 599:
                    return int(str(value)[:4])
    return next((status for word, status in _STATUS.items() if word in codes.lower()), None)


_TOO_LONG: Final = re.compile(
    "|".join(
        (
            r"context_length_exceeded|exceed_context|context_exceeded|contextwindowexceeded|input_too_large|request_too_large",
            r"max(imum)? (context|prompt|model|input|sequence) (length|size)|maximum number of tokens",
            r"(exceed|longer than|larger than|greater than|too large|overflow|fit)\w*.{0,80}context[ -](length|size|window|limit)",
            r"context[ -](length|size|window|limit).{0,60}(exceed|overflow|too (small|long)|not enough|reached)",
            r"context (the )?overflows",
            r"(input token count|prompt|input|messages?|tokens\)?)( \([^)]*\))? exceeds?\b",
            r"(prompt|input|context|request|messages?)( is| are|:)? too (long|large)",
            r"too many (input |prompt )?tokens",
            r"reduce (the|your) (length|size) of|reduce your (message|prompt|input)",
            r"`?inputs`? (must have less than|tokens \+ )",
            r"range of input length",
            r"blob data size exceeds|message larger than max",
        )
    )
)
"""Servers' messages for a context that exceeds the model's window."""
_RATE: Final = re.compile(r"rate.?limit|quota|per (minute|min|day|hour)|please wait|slow down")
_NO_MONEY: Final = re.compile(
    r"insufficient_quota|insufficient (balance|credits|funds)|credit balance is too low|requires more credits|billing_hard_limit"
)
_FILTERED: Final = re.compile(r"\bcontent_filter\b|responsibleaipolicyviolation|content_policy_violation")
_BAD_ANSWER: Final = re.compile(r"json_validate_failed|tool_use_failed|output_parse_failed")


def _kind(text: str, status: int | None) -> Kind:
    if _NO_MONEY.search(text) or status == 402:
        return "no_money"
    if status in (401, 403, 404):
        return "other"
    if _FILTERED.search(text) and (status is None or 400 <= status < 500) and status != 429:
        return "filtered"
    if status == 413 or "request too large" in text:  # also for a limit a minute: a retry is as large
        return "too_long"
    if (status == 429 or _RATE.search(text)) and "context_length_exceeded" not in text:
        return "other"
    if _BAD_ANSWER.search(text):
        return "bad_answer"
    return "too_long" if _TOO_LONG.search(text) else "other"


_WAIT: Final = re.compile(
    r"(?:try again|retry)(?: shortly)? (?:in|after) (?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?) ?(ms|s)?)?", re.I
)


def _wait(words: str, error: Json) -> float | None:
    """Return the seconds that the message asks to wait, or a `retryDelay` beside it."""
    details: Json = error.get("details") if isinstance(error, dict) else None
    for detail in details if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str) and re.fullmatch(r"\d{1,9}(\.\d+)?s", delay):
            return float(delay[:-1])
    found = _WAIT.search(words)
    if found is None or not any(found.groups()[:3]):
        return None
    hours, minutes, seconds, unit = found.groups()
    last = float(seconds or 0) * (0.001 if unit == "ms" else 1)
    return int(hours or 0) * 3600 + int(minutes or 0) * 60 + last


# A feature that is left out is only a help of the server: the prompt has the same information, and the answer is
# validated here.


@dataclass(frozen=True, slots=True)
class Reduction:
    """One feature to leave out of the next attempt."""

    feature: str
    """`stream_options`, `max_tokens`, `strict`, `json_schema`, `json_object`, `file` or `files`; or a key beside a
    call, such as `reasoning_content`."""
    always: bool
    """Whether the server lacks the feature; else it rejected only this schema or file, and another one may work."""
    file: str = ""
    """The digest of the file to leave out; empty for every other feature."""
    kinds: tuple[str, ...] = ()
    """For the feature `files`: the kinds of files whose number the server limits."""
    most: int = 0
    """For the feature `files`: the number of files that the server accepts. Older files are left out."""


def remove_features(body: JsonObject, refused: Set[str]) -> JsonObject:
    """Return the body without the features that the server does not support."""
    body = dict(body)
    if "stream_options" in refused:
        body.pop("stream_options", None)
    if "max_tokens" in refused and "max_tokens" in body:
        body["max_completion_tokens"] = body.pop("max_tokens")
    if refused:
        body["messages"] = without_beside(body.get("messages", []), refused)
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


_ABOUT_THOUGHTS: Final = re.compile(
    r"signature.{0,40}(thinking|thought|reasoning)|(thinking|thought|reasoning).{0,40}signature|"
    r"bound to a different conversation|encrypted.content|item of type 'reasoning'|of type .reasoning. was provided"
)
"""Refusals of returned thoughts: they are of another account, or the prompt has changed."""
_ABOUT_FORM: Final = re.compile(
    r"response.?(format|schema)|output.?(config|format)|json.?(schema|object|mode)|\b(schema|strict|grammar|xgrammar|outlines|guided|structured outputs?)\b"
)
_ABOUT_SCHEMA: Final = re.compile(
    r"invalid (json )?schema|invalid_json_schema|in context=|additionalproperties|grammar|too (complex|many|deep|large)|nesting|\$ref|"
    r"recursi|keyword|\b(any|one|all)of\b|\bpatterns?\b|\benums?\b|compil|schema (contains|conversion|is (not|in)valid)|"
    r"unrecognized schema|unsupported schema|features? not supported|response_schema|json_schema\.schema\."
)
_UNKNOWN: Final = re.compile(
    r"not support|unsupported|unavailable|unknown|unrecogni[sz]ed|unexpected|extra (inputs|fields)|extra_forbidden|not permitted|"
    r"not allowed|not enabled|enabled only|must be|should be|deserialize|not implemented|no longer|unsupportedparams"
)

_NEVER: Final = (401, 402, 403, 404, 408, 413, 429)
"""Statuses that are never about the requested features."""
_FILE_WORDS: Final = {
    "images": re.compile(r"\b(images?|pictures?)\b"),
    "documents": re.compile(r"\b(pdfs?|documents?|files?)\b"),
    "audio": re.compile(r"\baudio\b"),
}
_ANY_FILE: Final = re.compile(r"inline_?data|request contains an invalid argument")
"""Gemini's refusals of a file that do not name its kind."""
_TOO_MANY: Final = re.compile(
    r"\btoo (many|much) (\w+ )?(images|pictures|documents|pdfs|files|audios?|media|attachments)\b"
)
_MOST: Final = re.compile(
    r"(?:\bat most|\bup to|\blimit(?: is| of)?|>|\bmax(?:imum)?(?: \w+){0,5}?|\bonly(?: \w+){0,2}?):? (\d{1,3}|one)\b"
    r"(?![.,]\d| ?([kmg]?i?b|bytes|pixels|px|(pdf |document )?pages|tokens|\w*seconds|\w*minutes)\b)"
)
"""The limit in a refusal of a number of files."""
_COUNTED: Final = re.compile(r"\btoo (many|much)\b|\bcount\b|\bper (request|prompt|message)\b")
"""Words of a refusal that concerns the number of files."""
_FILE_NOUN: Final = re.compile(r" (\w+ )?(images?|pictures?|documents?|pdfs?|files?|audios?|attachments?)\b")
"""A word after a number that makes it a number of files."""
_FILE_STATUSES: Final = (400, 415, 422)
"""Statuses with which servers refuse a file."""
_WANTED: Final = re.compile(r"\b(missing|is required|must be (passed|sent|included|provided|present))\b")


def step_down(refusal: Refusal, sent: JsonObject) -> Reduction | None:
    """Return the feature of the `sent` body that a refusal is about, if the Request works without it; else `None`.

    In doubt only this schema counts as rejected: one more refusal costs a moment, but a disabled feature affects every
    agent.
    """
    if refusal.kind == "too_long" or refusal.status in _NEVER:
        return None
    text = f"{refusal.words} {refusal.codes}".lower()
    if "stream_options" in sent and re.search(r"stream_options|include_usage", text):
        return Reduction("stream_options", always=True)
    if "max_tokens" in sent and "max_completion_tokens" in text and _UNKNOWN.search(text):
        return Reduction("max_tokens", always=True)
    for key in sorted(keys_beside(sent.get("messages", []))):
        if re.search(rf"\b{re.escape(key)}\b", text) and not _WANTED.search(text):
            return Reduction(key, always=True)
    if _ABOUT_THOUGHTS.search(text) and (signed := keys_beside(sent.get("messages", [])) & SIGNED):
        return Reduction(min(signed), always=False)
    form = sent.get("response_format")
    if form is None or not _ABOUT_FORM.search(text):
        return _file_reduction(refusal.status, text, sent)
    always = not _ABOUT_SCHEMA.search(text) and bool(_UNKNOWN.search(text))
    if form["type"] == "json_object":
        return Reduction("json_object", always)
    if "strict" not in form["json_schema"]:
        return Reduction("json_schema", always)
    return Reduction("strict", always)


def _file_reduction(status: int | None, text: str, sent: JsonObject) -> Reduction | None:
    """Return the files to leave out after a refusal of files; `None` if the refusal concerns none.

    A refusal of the number of files leaves out the oldest files. Any other refusal leaves out the newest file, because
    the server has accepted the older files before.
    """
    if status not in _FILE_STATUSES:
        return None
    kinds = tuple(kind for kind, about in _FILE_WORDS.items() if about.search(text))
    if not kinds and _ANY_FILE.search(text):
        kinds = tuple(_FILE_WORDS)
    files = files_of(sent.get("messages", []), kinds)
    if not files:
        return None
    most = _limit_of_files(text, len(files))
    if most is not None:
        return Reduction("files", always=True, kinds=kinds, most=most)
    return Reduction("file", always=False, file=part_digest(files[-1]))


def _limit_of_files(text: str, count: int) -> int | None:
    """Return the number of files that a refusal of `count` files allows; `None` if it does not concern the number."""
    counted = _COUNTED.search(text) is not None
    limits = [
        1 if found[1] == "one" else int(found[1])
        for found in _MOST.finditer(text)
        if counted or _FILE_NOUN.match(text, found.end())
    ]
    if allowed := [limit for limit in limits if limit < count]:
        return max(allowed)
    return count - 1 if count > 1 and _TOO_MANY.search(text) else None


def refuses_parameter(words: str, name: str) -> bool:
    """Whether a server's message says that it does not accept this parameter, or this value of it."""
    named = re.search(rf"\b{re.escape(name)}\b", words) is not None
    return named and bool(_UNKNOWN.search(words.lower()))
