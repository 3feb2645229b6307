"""What model servers say when they refuse, as each of them says it, and what is made of it (R9.1, R9.7)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.models.media_parts import with_newest, without_files
from perdure.models.provider_errors import (
    LONGEST_WORDS,
    Reduction,
    refusal_of,
    refuses_parameter,
    remove_features,
    step_down,
)

JSON_SCHEMA = {
    "stream_options": {"include_usage": True},
    "response_format": {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": {}}},
}
PLAIN = remove_features(JSON_SCHEMA, {"strict"})
JSON_MODE = remove_features(JSON_SCHEMA, {"strict", "json_schema"})


def openai(message: str, code: Any = None, kind: str = "invalid_request_error", param: Any = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


# Server, status (`None`: an event of a stream), body, words that reach the user, kind.
SAID: list[tuple[str, int | None, Any, str, str]] = [
    (
        "OpenAI",
        400,
        openai(
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
            "context_length_exceeded",
            param="messages",
        ),
        "This model's maximum context length is 8192 tokens",
        "too_long",
    ),
    (
        "OpenAI, a minute's limit that waiting does not help with",
        429,
        openai(
            "Request too large for gpt-4o in organization org-1 on tokens per min (TPM): Limit 30000, Requested 50000.",
            "rate_limit_exceeded",
            "tokens",
        ),
        "Requested 50000",
        "too_long",
    ),
    (
        "OpenAI, quota",
        429,
        openai("You exceeded your current quota", "insufficient_quota"),
        "current quota",
        "no_money",
    ),
    (
        "OpenAI, rate",
        429,
        openai("Rate limit reached on tokens per min. Please try again in 1m2.5s.", "rate_limit_exceeded"),
        "Rate limit reached",
        "other",
    ),
    ("OpenAI, in the stream", None, openai("The server had an error", kind="server_error"), "had an error", "other"),
    (
        "Azure",
        401,
        {"statusCode": 401, "message": "Access denied due to invalid subscription key or wrong API endpoint."},
        "invalid subscription key",
        "other",
    ),
    (
        "Azure, filter",
        400,
        {
            "error": {
                "message": "The response was filtered due to the prompt",
                "code": "content_filter",
                "status": 400,
                "innererror": {"code": "ResponsibleAIPolicyViolation"},
            }
        },
        "was filtered",
        "filtered",
    ),
    (
        "Anthropic",
        400,
        {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": "prompt is too long: 202095 tokens > 200000 maximum"},
        },
        "prompt is too long: 202095 tokens",
        "too_long",
    ),
    (
        "Anthropic, in the stream",
        None,
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        "Overloaded",
        "other",
    ),
    (
        "Anthropic, size",
        413,
        {"type": "error", "error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}},
        "exceeds the maximum size",
        "too_long",
    ),
    (
        "Anthropic, no money",
        400,
        {"type": "error", "error": {"type": "invalid_request_error", "message": "Your credit balance is too low"}},
        "credit balance",
        "no_money",
    ),
    (
        "Gemini, a list",
        400,
        [
            {
                "error": {
                    "code": 400,
                    "message": "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).",
                    "status": "INVALID_ARGUMENT",
                }
            }
        ],
        "input token count (1200293)",
        "too_long",
    ),
    (
        "Gemini, rate",
        429,
        [
            {
                "error": {
                    "code": 429,
                    "message": "You exceeded your current quota, please check your plan",
                    "status": "RESOURCE_EXHAUSTED",
                    "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34s"}],
                }
            }
        ],
        "current quota",
        "other",
    ),
    (
        "Gemini through a gateway, JSON inside the message",
        None,
        openai('{\n "error": {"code": 400, "message": "The input token count (3475108) exceeds the maximum"}}'),
        "input token count (3475108)",
        "too_long",
    ),
    (
        "Mistral",
        400,
        {
            "object": "error",
            "message": "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
            "type": "invalid_request_error",
            "param": None,
            "code": "3051",
        },
        "too large for model with 32768",
        "too_long",
    ),
    (
        "Mistral, a parameter",
        422,
        {
            "object": "error",
            "message": {
                "detail": [
                    {
                        "type": "extra_forbidden",
                        "loc": ["body", "stream_options", "include_usage"],
                        "msg": "Extra inputs are not permitted",
                        "input": True,
                    }
                ]
            },
            "type": "invalid_request_error",
        },
        "body.stream_options.include_usage: Extra inputs are not permitted",
        "other",
    ),
    (
        "Mistral, older",
        422,
        {
            "object": "error",
            "message": '{"detail":[{"type":"extra_forbidden","loc":["body","user"],"msg":"Extra inputs are not permitted"}]}',
            "type": "internal_error_proxy",
            "code": "1000",
        },
        "body.user: Extra inputs",
        "other",
    ),
    ("Mistral, key", 401, {"detail": "Unauthorized"}, "Unauthorized", "other"),
    (
        "Groq",
        413,
        openai(
            "Request too large for model `llama-3.3-70b-versatile` on tokens per minute (TPM): Limit 6000, Requested 14810",
            "rate_limit_exceeded",
            "tokens",
        ),
        "Requested 14810",
        "too_long",
    ),
    (
        "Groq, length",
        400,
        openai("Please reduce the length of the messages or completion.", "context_length_exceeded"),
        "reduce the length",
        "too_long",
    ),
    (
        "Groq, its own check of the answer",
        400,
        openai("Failed to generate JSON. Please adjust your prompt.", "json_validate_failed"),
        "Failed to generate JSON",
        "bad_answer",
    ),
    (
        "Together",
        422,
        {
            "id": "x",
            **openai("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000"),
        },
        "must be <= 8193",
        "too_long",
    ),
    (
        "Fireworks",
        400,
        {
            "error": {
                "object": "error",
                "type": "invalid_request_error",
                "message": "The prompt is too long: 140000, model maximum context length: 131071",
            }
        },
        "The prompt is too long",
        "too_long",
    ),
    (
        "DeepSeek, money",
        402,
        openai("Insufficient Balance", "invalid_request_error"),
        "Insufficient Balance",
        "no_money",
    ),
    (
        "DeepSeek, length",
        400,
        openai("This model's maximum context length is 65536 tokens. However, you requested 70000 tokens"),
        "65536",
        "too_long",
    ),
    (
        "xAI",
        400,
        {
            "code": "Client specified an invalid argument",
            "error": "This model's maximum prompt length is 131072 but the request contains 136973 tokens.",
        },
        "maximum prompt length is 131072",
        "too_long",
    ),
    (
        "xAI, newer",
        400,
        {"code": "400", "error": "[input_too_large] Current message (1149677 tokens) exceeds budget (975424 tokens)"},
        "exceeds budget",
        "too_long",
    ),
    (
        "Cohere",
        400,
        {
            "id": "x",
            "message": "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000",
        },
        "too many tokens",
        "too_long",
    ),
    (
        "OpenRouter",
        400,
        {
            "error": {
                "message": "This endpoint's maximum context length is 131072 tokens. However, you requested about 140000",
                "code": 400,
            }
        },
        "131072",
        "too_long",
    ),
    (
        "OpenRouter, what is behind it",
        400,
        {
            "error": {
                "message": "Provider returned error",
                "code": 400,
                "metadata": {
                    "raw": '{"error":{"message":"Model supports at most 1 image per prompt.","code":null}}',
                    "provider_name": "Crucible",
                },
            }
        },
        "Provider returned error: Model supports at most 1 image",
        "other",
    ),
    (
        "OpenRouter, in a choice",
        None,
        {
            "id": "x",
            "choices": [
                {
                    "index": 0,
                    "delta": {"content": ""},
                    "finish_reason": "error",
                    "error": {"code": 502, "message": "Provider disconnected"},
                }
            ],
        },
        "Provider disconnected",
        "other",
    ),
    (
        "OpenRouter, beside the choices",
        None,
        {
            "id": "x",
            "error": {"code": "server_error", "message": "Provider disconnected unexpectedly"},
            "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}],
        },
        "Provider disconnected unexpectedly",
        "other",
    ),
    (
        "LiteLLM",
        400,
        openai(
            "litellm.ContextWindowExceededError: litellm.BadRequestError: OpenAIException - input is long",
            "400",
            "None",
        ),
        "litellm.ContextWindowExceededError",
        "too_long",
    ),
    (
        "vLLM",
        400,
        {
            "object": "error",
            "message": "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
        "maximum model length of 4096",
        "too_long",
    ),
    (
        "SGLang, in the stream",
        None,
        {
            "error": {
                "object": "error",
                "message": "The input (61709 tokens) is longer than the model's context length (40960 tokens).",
                "type": "BadRequestError",
                "code": 400,
            }
        },
        "61709 tokens",
        "too_long",
    ),
    (
        "llama.cpp",
        500,
        {
            "error": {
                "code": 500,
                "message": "the request exceeds the available context size. try increasing the context size",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 1407,
                "n_ctx": 256,
            }
        },
        "exceeds the available context size",
        "too_long",
    ),
    (
        "llama.cpp, older streams",
        None,
        'error: {"code":400,"message":"request (8708 tokens) exceeds the available context size (8192 tokens)"}',
        "8708 tokens",
        "too_long",
    ),
    (
        "llama.cpp, loading",
        503,
        {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}},
        "Loading model",
        "other",
    ),
    ("Ollama", 404, openai('model "llama9" not found, try pulling it first', kind="api_error"), "llama9", "other"),
    ("Ollama, its own way", 400, {"error": "the input length exceeds the context length"}, "input length", "too_long"),
    (
        "LM Studio",
        None,
        {
            "error": "Trying to keep the first 14538 tokens when context the overflows. However, the model is loaded with "
            "context length of only 2048 tokens, which is not enough."
        },
        "Trying to keep the first 14538",
        "too_long",
    ),
    (
        "LM Studio, newer",
        400,
        {
            "error": "The number of tokens to keep from the initial prompt is greater than the context length "
            "(n_keep: 13055>= n_ctx: 4096)."
        },
        "n_keep: 13055",
        "too_long",
    ),
    (
        "TGI",
        422,
        {
            "error": "Input validation error: `inputs` must have less than 4095 tokens. Given: 5000",
            "error_type": "validation",
        },
        "must have less than 4095",
        "too_long",
    ),
    ("TGI, in the stream", None, {"error": "Model is overloaded", "error_type": "overloaded"}, "overloaded", "other"),
    (
        "FastAPI",
        422,
        {"detail": [{"loc": ["body", "messages"], "msg": "field required"}]},
        "body.messages: field",
        "other",
    ),
    ("a document in place of a stream", None, {"detail": "Not authenticated"}, "Not authenticated", "other"),
    ("plain text", 500, "upstream connect error", "upstream connect error", "other"),
    ("plain text about length", 400, "\ufeffPrompt is too long", "Prompt is too long", "too_long"),
    (
        "a proxy's page",
        413,
        "<html><head><title>413 Request Entity Too Large</title></head><body><center>nginx</center></body></html>",
        "413 Request Entity Too Large",
        "too_long",
    ),
    ("nothing at all", 502, "", "no reason given", "other"),
    ("a list of errors", 400, {"errors": [{"message": "one"}, {"message": "two"}]}, "one; two", "other"),
    ("error as a list", 400, {"error": ["first", {"message": "second"}]}, "first; second", "other"),
    (
        "too many tokens a minute",
        429,
        {"message": "Too many tokens, please wait before trying again."},
        "please",
        "other",
    ),
    (
        "a limit on the answer, not on the context",
        400,
        openai(
            "max_tokens must be less than or equal to 16384, the maximum value for max_tokens is less than the context_window"
        ),
        "max_tokens must be",
        "other",
    ),
    ("Temporal, for the context query", 500, "Blob data size exceeds limit.", "Blob data size", "too_long"),
]


@pytest.mark.parametrize(("status", "body", "words", "kind"), [row[1:] for row in SAID], ids=[row[0] for row in SAID])
@pytest.mark.parametrize("as_text", [False, True])
def test_b7_the_words_of_a_refusal_are_found(
    status: int | None, body: Any, words: str, kind: str, as_text: bool
) -> None:
    given = json.dumps(body) if as_text and not isinstance(body, str) else body
    refusal = refusal_of(status, given, event="error" if isinstance(body, str) and status is None else "")
    assert refusal is not None
    assert words in refusal.words
    assert (refusal.kind, "\n" in refusal.words, len(refusal.words) <= LONGEST_WORDS) == (kind, False, True)
    assert status is None or refusal.status == status


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"error": {"type": "overloaded_error", "message": "x"}}, 503),
        ({"error": {"type": "rate_limit_error", "message": "x"}}, 429),
        ({"error": {"code": 502, "message": "x"}}, 502),
        ({"error": {"code": "400", "message": "x"}}, 400),
        ({"error": {"type": "invalid_request_error", "message": "x"}}, 400),
        ({"error": {"status_code": 400, "code": "tool_use_failed", "message": "x"}}, 400),
        ({"error": "x", "error_type": "overloaded"}, 503),
        ({"error": {"message": "x"}}, None),
    ],
)
def test_an_error_in_a_stream_says_its_status(body: Any, status: int | None) -> None:
    refusal = refusal_of(None, body)
    assert refusal is not None
    assert refusal.status == status


@pytest.mark.parametrize(
    "answer",
    [
        {"id": "x", "choices": [{"delta": {"content": "error: message"}, "finish_reason": None}]},
        {"id": "x", "choices": [{"delta": {"content": "x"}, "finish_reason": "stop", "error": None}]},
        {"id": "x", "choices": [], "usage": {"prompt_tokens": 1}},
        {"id": "x", "choices": [{"message": {"content": "Prompt is too long"}}], "error": None},
        {"id": "x", "choices": [], "prompt_filter_results": [], "message": "ok"},
        {"type": "ping"},
        {"model": "llama", "message": {"role": "assistant", "content": "hi"}, "done": False},
        "[DONE]",
        "",
        None,
        17,
    ],
    ids=str,
)
def test_an_answer_is_no_refusal(answer: Any) -> None:
    assert refusal_of(None, answer) is None
    assert refusal_of(200, answer) is None


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("Please try again in 7.66s.", 7.66),
        ("Please try again in 120ms.", 0.12),
        ("Please try again in 1m2.5s.", 62.5),
        ("Please try again in 2h3m.", 7380.0),
        ("retry after 30 seconds", 30.0),
        ("try again later", None),
    ],
)
def test_what_the_words_ask_to_wait(words: str, seconds: float | None) -> None:
    refusal = refusal_of(429, {"error": {"message": words}})
    assert refusal is not None
    assert refusal.wait == (None if seconds is None else pytest.approx(seconds))


def test_whatever_is_sent_is_read_without_failing() -> None:
    deep: Any = "x"
    for _ in range(500):
        deep = {"error": [deep]}
    bodies: list[Any] = [
        deep,
        {"error": {"message": "y" * 10_000_000}},
        {"error": {"loc": [[]], "msg": 3}},
        "[" * 100_000,
        [[]],
        {"error": 1},
    ]
    for body in bodies:
        refusal = refusal_of(400, body)
        assert refusal is not None
        assert len(refusal.words) <= LONGEST_WORDS


UNKNOWN = [  # the server does not know it: left out from then on
    ("OpenAI, older model", "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model."),
    ("Azure", "response_format value as json_schema is enabled only for api versions 2024-08-01-preview and later"),
    ("DeepSeek", "This response_format type is unavailable now"),
    ("DeepSeek, older", "Failed to deserialize the JSON body into the target type: response_format: response_format.type "
     "`json_schema` is unavailable now at line 1 column 1193"),
    ("Groq", "This model does not support response format `json_schema`. See supported models"),
    ("LM Studio", "'response_format.type' must be 'text'"),
    ("LiteLLM", "litellm.UnsupportedParamsError: mistral does not support parameters: ['response_format']"),
    ("Mistral", "body.response_format: Extra inputs are not permitted"),
    ("vLLM, older", "body.response_format.type: Input should be 'text' or 'json_object'"),
    ("Cohere", "unsupported response_format"),
]  # fmt: skip
THIS_SCHEMA = [  # another schema would not meet it
    ("OpenAI", "Invalid schema for response_format 'plan': In context=(), 'additionalProperties' is required to be supplied and to be false."),
    ("OpenAI, keyword", "Invalid schema for response_format 'plan': In context=('properties', 'x'), 'pattern' is not permitted."),
    ("OpenAI, size", "Invalid schema for response_format 'plan': 120 properties exceed the limit; too many enum values"),
    ("Anthropic", "compiled grammar is too large: the schema is too complex"),
    ("Gemini", "Invalid JSON payload received. Unknown name \"additionalProperties\" at 'generation_config.response_schema'"),
    ("vLLM", "The provided JSON schema contains features not supported by xgrammar."),
    ("llama.cpp", "JSON schema conversion failed: Unrecognized schema: {\"type\": \"frob\"}"),
    ("llama.cpp, grammar", "failed to parse grammar"),
    ("doubt", "something about the schema"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "always"),
    [(row[1], True) for row in UNKNOWN] + [(row[1], False) for row in THIS_SCHEMA],
    ids=[row[0] for row in UNKNOWN + THIS_SCHEMA],
)
@pytest.mark.parametrize(
    ("sent", "feature"), [(JSON_SCHEMA, "strict"), (PLAIN, "json_schema"), (JSON_MODE, "json_object")]
)
def test_b7_what_is_refused_is_asked_for_no_more(words: str, always: bool, sent: Any, feature: str) -> None:
    for status in (400, 422, 500, None):
        refusal = refusal_of(status, {"error": {"message": words}})
        assert refusal is not None
        assert step_down(refusal, sent) == Reduction(feature, always)
        assert step_down(refusal, {"messages": []}) is None


@pytest.mark.parametrize(
    "words",
    [
        "body.stream_options.include_usage: Extra inputs are not permitted",
        "Unrecognized request argument supplied: stream_options",
    ],
)
def test_stream_options_are_left_out_for_good(words: str) -> None:
    refusal = refusal_of(422, {"message": words})
    assert refusal is not None
    assert step_down(refusal, JSON_SCHEMA) == Reduction("stream_options", always=True)


def test_max_tokens_has_its_newer_name_once_a_server_has_refused_the_older_one() -> None:
    words = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    refusal = refusal_of(400, {"error": {"message": words, "param": "max_tokens", "code": "unsupported_parameter"}})
    assert refusal is not None
    assert step_down(refusal, {"messages": [], "max_tokens": 50}) == Reduction("max_tokens", always=True)
    assert step_down(refusal, {"messages": []}) is None
    renamed = {"messages": [], "max_completion_tokens": 50}
    assert remove_features({"messages": [], "max_tokens": 50}, {"max_tokens"}) == renamed
    assert remove_features({"messages": []}, {"max_tokens"}) == {"messages": []}


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
LATER_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,BBBB"}}
DOCUMENT = {"type": "file", "file": {"filename": "d.pdf", "file_data": "data:application/pdf;base64,CCCC"}}
WITH_FILES = [{"role": "user", "content": [{"type": "text", "text": "See"}, IMAGE, LATER_IMAGE, DOCUMENT]}]


@pytest.mark.parametrize(
    ("words", "file"),
    [
        ("messages.7.content.2.image.source.base64.data: At least one of the image dimensions exceed max allowed size: 8000 pixels", LATER_IMAGE),
        ("messages.0.content.2.image.source.bytes: image exceeds 5 MB maximum: 7167852 bytes > 5242880 bytes", LATER_IMAGE),
        ("Could not process image", LATER_IMAGE),
        ("You uploaded an unsupported image. Please make sure your image is valid.", LATER_IMAGE),
        ("messages.0.content.3.pdf.source.base64.data: The PDF specified was not valid.", DOCUMENT),
        ("The document has no pages.", DOCUMENT),
        ("Provided image is not valid", LATER_IMAGE),
        ("Request contains an invalid argument.", DOCUMENT),
        ("Invalid value at 'contents[0].parts[2].inline_data.data' (TYPE_BYTES), Base64 decoding failed", DOCUMENT),
        ("A maximum of 1 PDF pages may be provided.", DOCUMENT),
        ("The image has more than the maximum of 1 MB", LATER_IMAGE),
        ("image size: at most 1.75 MB, got 4.2 MB", LATER_IMAGE),
        ("image dimensions must be at most 1,000 x 8,000", LATER_IMAGE),
        ("the image's aspect ratio must be at most 1", LATER_IMAGE),
        ("images: only 1 format is supported", LATER_IMAGE),
        ("file size limit of 1.0 MB per request", DOCUMENT),
    ],
)  # fmt: skip
def test_r20_3_a_file_that_a_server_refuses_is_left_out(words: str, file: Any) -> None:
    refusal = refusal_of(400, {"error": {"message": words}})
    assert refusal is not None
    step = step_down(refusal, {**JSON_SCHEMA, "messages": WITH_FILES})
    assert step is not None
    (sent,) = without_files(WITH_FILES, {step.file})
    line = {"type": "text", "text": "[a file is left out: the model's server refuses it]"}
    assert sent["content"] == [line if part is file else part for part in WITH_FILES[0]["content"]]
    assert step_down(refusal, {"messages": [{"role": "user", "content": "no files"}]}) is None


@pytest.mark.parametrize(
    ("words", "most"),
    [
        ("At most 5 image(s) may be provided in one request.", 5),
        ("Too many images in request. Max is 10.", 10),
        ("Too many images in request: 12 images provided, but the model supports a maximum of 10 images.", 10),
        ("request contains 12 images, exceeding the maximum of 7 allowed per request", 7),
        ("Image count 12 exceeds limit 4 per request.", 4),
        ("Too many images provided. This model supports up to 5 images", 5),
        ("vision model only supports one image while more than one image requested", 1),
        ("too many images in the message, max allowed is 8", 8),
        ("messages.3: too many images", 11),
        ("At most 0 image(s) may be provided in one prompt.", 0),
    ],
)
def test_r20_3_a_refused_number_of_files_leaves_out_the_oldest(words: str, most: int) -> None:
    images = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{number:04}"}} for number in range(12)]
    messages = [{"role": "user", "content": [*images[:7], DOCUMENT]}, {"role": "user", "content": images[7:]}]
    refusal = refusal_of(400, {"error": {"message": words}})
    assert refusal is not None
    step = step_down(refusal, {"messages": messages})
    assert step == Reduction("files", always=True, kinds=("images",), most=most)
    sent = [part for message in with_newest(messages, step.kinds, step.most) for part in message["content"]]
    assert [part for part in sent if part in images] == images[12 - most :]
    assert DOCUMENT in sent


def test_r20_3_pictures_and_documents_may_have_one_limit() -> None:
    messages = [{"role": "user", "content": [IMAGE] * 90}, *WITH_FILES * 10]
    refusal = refusal_of(400, {"error": {"message": "Too much media: 10 document pages + 110 images > 100"}})
    assert refusal is not None
    assert step_down(refusal, {"messages": messages}) == Reduction(
        "files", always=True, kinds=("images", "documents"), most=100
    )


def test_r20_3_a_refusal_that_is_about_no_file_leaves_all_files() -> None:
    for status, words in (
        (400, "max_tokens is too large"),
        (403, "no image for this key"),
        (503, "images: overloaded"),
    ):
        refusal = refusal_of(status, {"error": {"message": words}})
        assert refusal is not None
        assert step_down(refusal, {"messages": WITH_FILES}) is None


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "This model's maximum context length is 8192 tokens; shorten the schema"),
        (400, "the value of temperature is restricted"),
        (401, "response_format is not supported for this key"),
        (429, "too many requests with a schema"),
        (400, "messages.0.content: field required"),
    ],
)
def test_what_is_about_something_else_leaves_the_body_alone(status: int, words: str) -> None:
    refusal = refusal_of(status, {"error": {"message": words}})
    assert refusal is not None
    assert step_down(refusal, JSON_SCHEMA) is None


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ("Unsupported value: 'temperature' does not support 0.2 with this model.", True),
        ("temperature: Extra inputs are not permitted", True),
        ("the schema of set_temperature is not supported", False),
        ("the temperature was noted", False),
    ],
)
def test_a_parameter_is_refused_by_its_whole_name(words: str, refused: bool) -> None:
    assert refuses_parameter(words, "temperature") is refused
