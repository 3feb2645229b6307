"""Files as parts of a Request, in the form of each provider (R20.3)."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest

from perdure.models.media_parts import files_to_show, with_files
from perdure.models.providers.capabilities import EXAMPLES, Capabilities, capabilities_of, with_files_of
from perdure.models.providers.registry import write_request
from perdure.values.limits import MAX_FILE_TEXT, MAX_FILES_SHOWN, MAX_MEDIA_SHOWN, MAX_TEXT_SHOWN
from perdure.values.media import MediaValue, media_of

PNG, PDF, WAV, CSV = b"\x89PNG\r\n\x1a\n1", b"%PDF-1.7", b"RIFF\x00\x00\x00\x00WAVEfmt ", b"a,b"
FILES = {
    name: (media_of(data, name), data)
    for name, data in (("p.png", PNG), ("d.pdf", PDF), ("s.wav", WAV), ("t.csv", CSV))
}
ALL = Capabilities(images=True, documents=True, audio=True)


def said(*names: str, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": " ".join(["See", *(FILES[name][0].line for name in names)]), **more}


def shown(messages: list[dict[str, Any]], stable: int = 0, capabilities: Capabilities = ALL) -> Any:
    wanted = files_to_show(messages, capabilities)
    data = {file.digest: data for file, data in FILES.values() if file in wanted}
    return with_files(messages, stable, data, capabilities)


def kinds(message: dict[str, Any]) -> list[str]:
    content = message["content"]
    return [part["type"] for part in content] if isinstance(content, list) else []


def test_a_file_stands_in_the_message_that_names_it_first() -> None:
    messages, stays = shown([said("p.png", "t.csv"), said("p.png", "d.pdf", "s.wav")], 1)
    assert kinds(messages[0]) == ["text", "text", "image_url", "text"]
    assert kinds(messages[1]) == ["text", "text", "file", "text", "input_audio"]
    assert stays == 1


def test_files_of_results_stand_after_all_of_them() -> None:
    calls = {"role": "assistant", "content": FILES["d.pdf"][0].line, "tool_calls": []}
    given = [said("s.wav", role="system"), said(), calls, said("p.png", role="tool"), said(role="tool"), said()]
    messages, stays = shown(given, 5)
    assert [message["role"] for message in messages] == [
        "system",
        "user",
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
        "user",
    ]
    assert kinds(messages[1]) == ["text", "text", "input_audio"]
    assert kinds(messages[6]) == ["text", "text", "image_url"]
    assert stays == 7
    assert messages[:7] == shown([*given[:5], said(role="assistant"), said()], 5)[0][:7]  # a cache finds the beginning


def test_a_model_gets_only_files_that_it_reads() -> None:
    assert shown([said("p.png", "d.pdf")], 1, Capabilities(documents=True))[0][0]["content"][1]["text"].startswith(
        "[application/pdf"
    )
    assert shown([said("p.png")], 1, Capabilities()) == ([said("p.png")], 1)


def test_the_newest_files_are_shown_up_to_a_sum() -> None:
    files = [MediaValue(f"sha256:{number:064}", "image/png", 10) for number in range(MAX_FILES_SHOWN + 5)]
    messages = [{"role": "user", "content": file.line} for file in files]
    assert files_to_show(messages, ALL) == files[5:]
    large = [MediaValue(f"sha256:{number:064}", "image/png", MAX_MEDIA_SHOWN // 2 - number) for number in range(3)]
    assert files_to_show([{"role": "user", "content": file.line} for file in large], ALL) == large[1:]


def test_a_file_of_another_type_than_its_line_says_stays_a_line() -> None:
    lie = MediaValue(FILES["t.csv"][0].digest, "image/png", 3)
    message = {"role": "user", "content": lie.line}
    assert with_files([message], 1, {lie.digest: CSV}, ALL) == ([message], 1)


@pytest.mark.parametrize(
    ("provider", "expected"),
    [
        ("openai", ['{"url": "data:image/png;base64,%(png)s"}', '"filename": "d.pdf"', '"data:application/pdf;base64,%(pdf)s"']),
        ("openai-responses", ['"type": "input_image"', '"data:image/png;base64,%(png)s"', '"type": "input_file"', '"filename": "d.pdf"']),
        ("anthropic", ['"media_type": "image/png", "data": "%(png)s"', '"type": "document"', '"data": "%(pdf)s"']),
        ("google", ['"mimeType": "image/png", "data": "%(png)s"', '"mimeType": "application/pdf", "data": "%(pdf)s"']),
        ("bedrock", ['"image": {"format": "png", "source": {"bytes": "%(png)s"}}', '"document"', '"bytes": "%(pdf)s"']),
    ],
)  # fmt: skip
def test_each_provider_gets_files_in_its_own_form(provider: Any, expected: list[str]) -> None:
    name = EXAMPLES[provider]
    model = name if provider == "openai" else f"{provider}:{name}"
    call = {"id": "c1", "type": "function", "function": {"name": "draw", "arguments": "{}"}}
    given = [
        {"role": "system", "content": "Draw."},
        said("d.pdf"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        said("p.png", role="tool", tool_call_id="c1"),
    ]
    messages, _ = shown(given, 4, capabilities_of(model))
    body = json.dumps(write_request(model, name, {"messages": messages, "stream": True}, 4))
    encoded = {key: base64.b64encode(data).decode() for key, data in (("png", PNG), ("pdf", PDF))}
    for each in expected:
        assert each % encoded in body, body


def test_bedrock_gets_documents_with_names_of_their_own_and_five_at_most() -> None:
    names = ("報告書.pdf", "計画.pdf", "", "a  b.pdf", "report.pdf", "report.pdf", "report")
    files = [(media_of(data, name), data) for name, data in ((name, PDF + bytes([n])) for n, name in enumerate(names))]
    messages = [{"role": "user", "content": "\n".join(file.line for file, _ in files)}, said("p.png")]
    capabilities = capabilities_of("bedrock:anthropic.claude-sonnet-5")
    wanted = files_to_show(messages, capabilities)
    assert wanted == [*(file for file, _ in files[2:]), FILES["p.png"][0]]
    every = {file.digest: data for file, data in (*files, FILES["p.png"])}
    with_all, _ = with_files(messages, 0, every, capabilities)
    body = write_request("bedrock:anthropic.claude-sonnet-5", "m", {"messages": with_all})
    blocks = [block["document"] for message in body["messages"] for block in message["content"] if "document" in block]
    found = [block["name"] for block in blocks]
    assert len(found) == len(set(found)) == len(names)
    assert [name.rpartition(" ")[0] for name in found] == ["document", "document", "file", "a b"] + ["report"] * 3
    assert all(re.fullmatch(r"[a-zA-Z0-9()\[\]-]+( [a-zA-Z0-9()\[\]-]+)*", name) for name in found)


LEAST = Capabilities()


@pytest.mark.parametrize(
    ("model", "read"),
    [
        ("llava:13b", "images"),
        ("qwen2.5-vl@box", "images documents"),
        ("gpt-4o", ""),
        ("bedrock:meta.llama4", "images"),
        ("gpt-4.1", "images documents"),
        ("other", ""),
    ],
)
def test_a_setting_says_which_files_a_model_reads(model: str, read: str) -> None:
    kinds: Any = {
        "llava*": ["images"],
        "*-vl@box": ["images", "documents"],
        "gpt-4o": [],
        "meta.*": ["images"],
        "m": [],
    }
    found = with_files_of(kinds, model)
    assert [kind for kind in ("images", "documents", "audio") if getattr(found, kind)] == read.split()
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}}]}
    body = json.dumps(write_request(model, "m", {"messages": [message], "stream": True}, 0, found))
    assert ("eA==" in body) is (
        "images" in read or not model.startswith("bedrock")
    )  # the caller has left the others out


def test_a_text_is_shown_to_every_model_and_its_message_stays_one_string() -> None:
    csv = FILES["t.csv"][0]
    text = f"{csv.line}\na,b\n[end of {csv.digest[:23]}]"
    messages, _ = shown([said("t.csv", "p.png"), said("t.csv")], 0, LEAST)
    assert messages == [{"role": "user", "content": f"{said('t.csv', 'p.png')['content']}\n\n{text}"}, said("t.csv")]
    result, _ = shown([said("t.csv", role="tool")], 0, LEAST)
    assert result[1:] == [{"role": "user", "content": f"The files that are named above:\n\n{text}"}]


@pytest.mark.parametrize("model", [f"{provider}:{name}" for provider, name in EXAMPLES.items()])
def test_each_provider_takes_a_text(model: str) -> None:
    messages, stays = shown([said("t.csv", "p.png")], 1, capabilities_of(model))
    body = write_request(model, "m", {"messages": messages}, stays)
    assert f"a,b\\n[end of {FILES['t.csv'][0].digest[:23]}]" in json.dumps(body)


def test_of_a_long_text_the_beginning_is_shown() -> None:
    data = ("é" * (MAX_FILE_TEXT + 5)).encode()
    file = media_of(data, "long.txt")
    ((message,), _) = with_files([{"role": "user", "content": file.line}], 0, {file.digest: data}, LEAST)
    assert (
        f"é\n… [the first 48,000 of 48,005 characters; a tool reads the rest]\n[end of {file.digest[:23]}]"
        in message["content"]
    )
    assert message["content"].count("é") == MAX_FILE_TEXT


def test_texts_are_shown_up_to_a_sum_of_their_own() -> None:
    files = [MediaValue(f"sha256:{number:064}", "text/plain", MAX_FILE_TEXT * 3) for number in range(6)]
    assert (
        files_to_show([{"role": "user", "content": file.line} for file in files], LEAST)
        == files[-(MAX_TEXT_SHOWN // MAX_FILE_TEXT) :]
    )


def test_a_file_that_is_no_text_is_not_shown_as_one() -> None:
    file = MediaValue(FILES["p.png"][0].digest, "text/plain", len(PNG))
    message = {"role": "user", "content": file.line}
    assert with_files([message], 1, {file.digest: PNG}, LEAST) == ([message], 1)
