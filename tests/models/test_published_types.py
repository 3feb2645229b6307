"""Providers' forms against the types that the providers publish: those of their own client libraries (R20.1, R20.6)."""

from __future__ import annotations

import base64
import importlib
import json
from collections.abc import Iterable
from functools import cache
from typing import Any, Final, get_args

import pytest
from pydantic import TypeAdapter

from perdure.models.providers.capabilities import capabilities_of
from perdure.models.providers.claude import Claude
from perdure.models.providers.registry import write_request
from tests.models.test_providers import answer

PICTURE: Final = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
CHAT: Final[dict[str, Any]] = {
    "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "go"}]
}
CALLED: Final[list[dict[str, Any]]] = [
    *CHAT["messages"],
    {
        "role": "assistant",
        "content": "I add.",
        "message_phase": {"phase": "commentary"},
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": '{"sum": 1}'},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "look"},
            PICTURE,
            {"type": "image_url", "image_url": {"url": "https://img.example.com/a.png"}},
            {"type": "file", "file": {"filename": "a b.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}},
        ],
    },
]
STRICT: Final = {
    "type": "json_schema",
    "json_schema": {
        "name": "solution",
        "strict": True,
        "schema": {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}, "required": ["a"]},
    },
}
ADD: Final = {
    "type": "function",
    "function": {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}},
}
BODIES: Final[dict[str, dict[str, Any]]] = {
    "plain": CHAT,
    "streamed": {**CHAT, "stream": True},
    "sampling": {**CHAT, "temperature": 0.2, "top_p": 0.9, "max_tokens": 100, "seed": 3},
    **{f"effort {effort}": {**CHAT, "reasoning_effort": effort} for effort in ("none", "minimal", "low", "high")},
    "schema": {**CHAT, "response_format": STRICT},
    "object": {**CHAT, "response_format": {"type": "json_object"}},
    "calls": {"messages": CALLED, "tools": [ADD]},
    "calls of before": {"messages": CALLED},
    "hosted": {**CHAT, "hosted_tools": ["web_search", "code_execution"], "response_format": STRICT},
}
MODELS: Final = {
    "openai-responses": ("gpt-5", "gpt-4.1"),
    "anthropic": ("claude-sonnet-5", "claude-sonnet-4-5", "claude-3-5-haiku-latest"),
    "bedrock": ("anthropic.claude-sonnet-5", "eu.anthropic.claude-sonnet-4-5-20250929-v1:0", "amazon.nova-pro-v1:0"),
}


PARAMS: Final = {
    "openai-responses": "openai.types.responses.response_create_params",
    "anthropic": "anthropic.types.message_create_params",
}
EVERY: Final = [(provider, name) for provider, names in MODELS.items() for name in names]
OLDER: Final = ("temperature", "top_p")
"""Parameters that only older models of Anthropic take, in an older version of its API: the types of today lack them."""


@pytest.mark.parametrize(("provider", "name"), EVERY)
def test_r20_1_a_body_is_one_that_the_provider_has_published(provider: str, name: str) -> None:
    for case, each in BODIES.items():
        chat = json.loads(json.dumps(each))
        if "hosted_tools" in chat and not capabilities_of(f"{provider}:{name}").hosted_tools:
            continue
        body = write_request(f"{provider}:{name}", name, chat, len(chat["messages"]))
        if provider == "bedrock":
            check_converse(body)
            continue
        sent = {key: value for key, value in body.items() if provider != "anthropic" or key not in OLDER}
        published = adapter(PARAMS[provider], "Streaming" if body.get("stream") else "NonStreaming")
        assert plain(published.validate_python(sent)) == sent, case  # it leaves out keys that it does not know


@cache
def adapter(module: str, kind: str) -> TypeAdapter[Any]:
    """Return the reader of a library's parameters."""
    names = vars(importlib.import_module(module)).items()
    (params,) = (value for key, value in names if key.endswith(f"CreateParams{kind}"))
    return TypeAdapter(params)


def plain(value: Any) -> Any:
    """The value with lists in place of what is validated while it is read."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return value if isinstance(value, str) or not isinstance(value, Iterable) else [plain(each) for each in value]


def check_converse(body: dict[str, Any]) -> None:
    """Fail where AWS's library refuses a body of Converse."""
    session, validate = pytest.importorskip("botocore.session"), pytest.importorskip("botocore.validate")
    shape = session.Session().get_service_model("bedrock-runtime").operation_model("Converse").input_shape
    sent = {"modelId": body["model"], **{key: each for key, each in body.items() if key not in ("model", "stream")}}
    assert validate.ParamValidator().validate(with_bytes(sent), shape).generate_report() == ""


def with_bytes(value: Any) -> Any:
    """The value with bytes in place of base64, as AWS's library takes them."""
    if isinstance(value, dict):
        return {key: base64.b64decode(each) if key == "bytes" else with_bytes(each) for key, each in value.items()}
    return [with_bytes(each) for each in value] if isinstance(value, list) else value


def test_r20_1_facts_about_claude_models_are_those_that_others_have_verified() -> None:
    profiles = pytest.importorskip("pydantic_ai.profiles.anthropic")
    (names,) = (
        get_args(each) for each in get_args(importlib.import_module("anthropic.types.model").Model) if get_args(each)
    )
    known = [
        *names,
        "claude-3-7-sonnet-latest",
        "claude-opus-4-20250514",
        "claude-sonnet-4-0",
        "claude-opus-4-1-20250805",
    ]
    for name in known:
        claude, profile = Claude(name), profiles.anthropic_model_profile(name)
        newest = name == "claude-mythos-preview"  # which other than those after it is no longer served
        assert claude.adaptive == profile["anthropic_supports_adaptive_thinking"], name
        assert (not claude.sampling({"temperature": 0.5})) == profile[
            "anthropic_disallows_sampling_settings"
        ] or newest, name
        assert claude.strict_schemas == profile["supports_json_schema_output"] or newest, name
        assert claude.tokens({}) == (profile["anthropic_max_output_tokens"] or 4096) or newest, name
        ends = claude.thoughts("none", []).get("thinking", {}).get("type")
        stops = profile["thinking_enabled_by_default"] and not profile["thinking_always_enabled"]
        between = profile["anthropic_disables_thinking_with_between_tools"]
        assert ends == (("between_tools" if between else "disabled") if stops else None), name
        if claude.adaptive:
            xhigh = "xhigh" if profile["anthropic_supports_xhigh_effort"] else "max"
            assert claude.thoughts("xhigh", [])["effort"] == xhigh or newest, name


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("claude-sonnet-4-5-20250929-v1", (4, 5)),
        ("claude-opus-4-20250514", (4, 0)),
        ("claude-opus-4@20250514", (4, 0)),
        ("claude-3-5-sonnet-20241022-v2", (3, 5)),
        ("claude-4-opus-20250514", (4, 0)),
        ("claude-v2", (2, 0)),
        ("claude-instant-v1", (1, 0)),
        ("claude-2.1", (2, 1)),
        ("claude-haiku-5-5", (5, 5)),
        ("claude-new", (99, 0)),
    ],
)
def test_the_version_of_a_claude_model_is_in_its_name(name: str, version: tuple[int, int]) -> None:
    assert Claude(name).version == version


def test_a_claude_model_gets_one_of_temperature_and_top_p() -> None:
    chat = {**CHAT, "temperature": 0.2, "top_p": 0.9}
    for name, sent in (
        ("claude-sonnet-4-5", {"temperature": 0.2}),
        ("claude-opus-4-8", {}),
        ("claude-3-7-sonnet", {"temperature": 0.2, "top_p": 0.9}),
    ):
        body = write_request(f"anthropic:{name}", name, chat)
        assert {key: body[key] for key in ("temperature", "top_p") if key in body} == sent


# Results of hosted tools as Anthropic's types have them; the documentation shows only some.
RESULTS: Final = [
    ("code_execution", {"code": "1"}, "code_execution_tool_result",
     {"type": "code_execution_result", "stdout": "1\n", "stderr": "", "return_code": 0, "content": []}, "1\n", False),
    ("bash_code_execution", {"command": "ls"}, "bash_code_execution_tool_result",
     {"type": "bash_code_execution_tool_result_error", "error_code": "unavailable"}, "unavailable", True),
    ("text_editor_code_execution", {"command": "view", "path": "a"}, "text_editor_code_execution_tool_result",
     {"type": "text_editor_code_execution_view_result", "file_type": "text", "content": "words"}, "words", False),
    ("text_editor_code_execution", {"command": "create", "path": "a"}, "text_editor_code_execution_tool_result",
     {"type": "text_editor_code_execution_create_result", "is_file_update": False}, "", False),
    ("web_search", {"query": "tea"}, "web_search_tool_result",
     [{"type": "web_search_result", "title": "Tea", "url": "https://t.example", "encrypted_content": "E", "page_age": None}],
     "Tea https://t.example", False),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "given", "kind", "content", "result", "failed"), RESULTS)
def test_r20_6_each_result_of_anthropics_tools_is_read(
    tool: str, given: dict[str, Any], kind: str, content: Any, result: str, failed: bool
) -> None:
    blocks = [
        {"type": "server_tool_use", "id": "srv_1", "name": tool, "input": given},
        {"type": kind, "tool_use_id": "srv_1", "content": content},
    ]
    block = importlib.import_module("anthropic.types.content_block").ContentBlock
    for each in blocks:
        assert TypeAdapter(block).validate_python(each).type == each["type"]
    events = [
        {"type": "content_block_start", "index": index, "content_block": each} for index, each in enumerate(blocks)
    ]
    (use,) = answer(f"anthropic:{MODELS['anthropic'][0]}", events).result().hosted
    assert (use.tool, use.result, use.failed) == (
        "web_search" if tool == "web_search" else "code_execution",
        result,
        failed,
    )


ACTIONS: Final = [
    ({"type": "search", "query": "tea", "queries": ["tea", "green tea"]}, "tea\ngreen tea"),
    ({"type": "open_page", "url": "https://t.example"}, "https://t.example"),
    ({"type": "find_in_page", "url": "https://t.example", "pattern": "price"}, "price https://t.example"),
]


@pytest.mark.parametrize(("action", "given"), ACTIONS)
def test_r20_6_each_action_of_openais_search_is_read(action: dict[str, Any], given: str) -> None:
    item = {"type": "web_search_call", "id": "ws", "status": "completed", "action": action}
    published = importlib.import_module("openai.types.responses.response_function_web_search").ResponseFunctionWebSearch
    assert published.model_validate(item).action.type == action["type"]
    (use,) = answer("openai-responses:gpt-5", [{"type": "response.output_item.done", "item": item}]).result().hosted
    assert (use.tool, use.input) == ("web_search", given)


def test_r20_1_the_phase_of_a_text_goes_back_with_its_calls() -> None:
    items = [
        {
            "type": "message",
            "role": "assistant",
            "phase": "commentary",
            "content": [{"type": "output_text", "text": "I add."}],
        },
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
    ]
    done = [{"type": "response.output_item.done", "output_index": at, "item": item} for at, item in enumerate(items)]
    extras = answer("openai-responses:gpt-5", done).result().beside
    assert extras is not None
    assert extras.message == {"message_phase": {"phase": "commentary"}}
    body = write_request("openai-responses:gpt-5", "gpt-5", {"messages": CALLED})
    assert {"role": "assistant", "content": "I add.", "phase": "commentary"} in body["input"]


GEMINI: Final = (
    *("gemini-2.0-flash", "gemini-2.5-flash", "gemini-2.5-pro", "gemini-2.5-flash-image", "gemini-3-pro-preview"),
    *("gemini-3.1-pro-preview", "gemini-3.7-flash", "gemini-4-argon", "gemini-flash-latest", "gemma-3-27b-it"),
)


@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh", "max"])
def test_r20_1_the_thinking_of_gemini_models_is_what_others_have_verified(effort: str) -> None:
    profiles = pytest.importorskip("pydantic_ai.profiles.google")
    for name in GEMINI:
        profile = profiles.google_model_profile(name)
        assert capabilities_of(f"google:{name}").thinking == profile["supports_thinking"], name
        config = write_request(f"google:{name}", name, {**CHAT, "reasoning_effort": effort}).get("generationConfig", {})
        sent = config.get("thinkingConfig")
        assert (sent is not None) == profile["supports_thinking"], name
        if sent is None:
            continue
        assert ("thinkingLevel" in sent) == profile["google_supports_thinking_level"], name
        if "thinkingLevel" in sent:
            known = profile.get("google_thinking_levels", profiles.GOOGLE_THINKING_LEVELS)
            assert sent["thinkingLevel"] in known or (effort, name) == (
                "medium",
                "gemini-3-pro-preview",
            )  # not served now
        else:
            assert sent["thinkingBudget"] > 0 or not profile["thinking_always_enabled"], name
