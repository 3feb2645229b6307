"""Files as base64 inside values (R10.18)."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.values.json import Json, JsonObject
from perdure.values.media import media_of, media_within, read_media, with_lines, without_media
from tests.cpu import Cpu

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8).decode()
WAV = base64.b64encode(b"RIFF\x00\x00\x00\x00WAVE" + bytes(300)).decode()


@pytest.mark.parametrize(
    "value",
    [
        {"shot": PNG},
        {"html": f"<img src='data:image/png;base64,{PNG}'> and text"},
        [{"image": {"type": "image", "mimeType": "image/x-own", "data": base64.b64encode(b"own" * 40).decode()}}],
        json.dumps({"image": PNG, "note": "a text that holds JSON"}),
        f"as text: {WAV}",
    ],
)
def test_files_are_described(value: Json) -> None:
    shown = json.dumps(without_media(value))
    assert "left out]" in shown
    assert "bytes" in shown
    assert len(shown) < 300


@pytest.mark.parametrize(
    "value",
    [
        "a" * 5000,
        "ACGT" * 1000,
        "deadbeef" * 200,
        "/9j/short",
        {"mimeType": "text/plain", "text": "x" * 3000},
        {"mimeType": "image/png", "name": "picture", "uri": "file:///a/b.png"},
        {"n": 1, "b": True, "none": None, "list": ["iVBORw0KGgo is how it begins"]},
        "eyJhbGciOiJSUzI1NiJ9." + "A" * 600,
    ],
)
def test_what_is_no_file_stays_as_it_is(value: Json) -> None:
    assert without_media(value) == value


def test_a_hostile_text_takes_linear_time() -> None:
    cpu = Cpu()
    without_media("data:a/a;" + "a=a;" * 200_000)
    without_media("/9j/" * 200_000 + "!")
    without_media("data:image/png;base64," * 50_000)
    assert cpu.laps() < 200


@pytest.mark.parametrize(
    ("data", "name", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n..", "a.txt", "image/png"),
        (b"\xff\xd8\xff\xe0", "", "image/jpeg"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "", "image/webp"),
        (b"RIFF\x00\x00\x00\x00WAVEfmt ", "", "audio/wav"),
        (b"%PDF-1.7", "a.png", "application/pdf"),
        (b"\xff\xfb\x90\x00", "", "audio/mpeg"),
        (b"a,b\n1,2\n", "A.CSV", "text/csv"),
        (b"<svg onload='alert(1)'/>", "a.svg", "text/plain"),
        (b"<html>", "a.html", "text/plain"),
        (b"BMW,ID3\n", "cars.csv", "text/csv"),
        (b"ID3 is a tag", "", "text/plain"),
        (b"\x00\x01\x02\xfe", "a.png", "application/octet-stream"),
        (b"", "", "text/plain"),
    ],
)
def test_r20_3_a_type_is_found_from_the_bytes(data: bytes, name: str, kind: str) -> None:
    assert media_of(data, name).type == kind


@given(st.binary(max_size=50), st.text())
def test_r20_3_a_files_line_is_found_again_in_any_text(data: bytes, name: str) -> None:
    file = media_of(data, name)
    value: Json = {"a": [file.as_json(), "b"], "†": 'say "x"'}
    assert read_media(file.as_json()) == file
    assert list(media_within(value)) == [file]
    shown = without_media(value)
    assert shown == with_lines(value) == {"a": [file.line, "b"], "†": 'say "x"'}
    again = json.dumps(json.dumps(shown, ensure_ascii=False), ensure_ascii=False)  # a result inside a result
    assert list(media_within(again)) == [file]


@pytest.mark.parametrize(
    "change", [{"_media": "sha256:12"}, {"type": "a"}, {"bytes": -1}, {"bytes": True}, {"name": 5}, {"more": 1}]
)
def test_r20_3_another_object_is_no_file(change: JsonObject) -> None:
    value: Json = media_of(b"x").as_json() | change
    assert read_media(value) is None
    assert without_media(value) == value
