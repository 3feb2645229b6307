"""Files as base64 inside values (R10.18)."""

from __future__ import annotations

import base64
import json

import pytest

from perdure.values.json import Json
from perdure.values.media import without_media
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
