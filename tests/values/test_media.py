"""Files as base64 inside values (R10.18)."""

from __future__ import annotations

import base64
import hashlib
import json
import marshal
import math
import random
import re
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.values.json import Json, JsonObject
from perdure.values.media import beginning_without_media, media_of, media_within, read_media, with_lines, without_media
from tests.cpu import takes_less
from tests.support import ROOT

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


_SOURCE = (ROOT / "perdure/values/media.py").read_bytes()
BARE = {
    "compressed": zlib.compress(_SOURCE * 3, 9)[:9000],
    "sound": b"".join(round(8000 * math.sin(n / 10)).to_bytes(2, "little", signed=True) for n in range(4000)),
    "program": (lambda: 0).__code__.co_code + marshal.dumps(compile(_SOURCE, "a", "exec")),
    "text": _SOURCE,
    "cyrillic": (
        "Все люди рождаются свободными и равными в своём достоинстве и правах. Они наделены разумом и совестью. " * 40
    ).encode(),
    "table": "".join(f"{n},{n * 7 % 100}.{n % 10}\n" for n in range(1000)).encode(),
}


@pytest.mark.parametrize("name", BARE)
@pytest.mark.parametrize("form", ["plain", "url", "lines", "crlf", "in JSON", "60", "around", "cut"])
def test_r10_18_base64_of_which_nothing_says_that_it_is_a_file_is_left_out(name: str, form: str) -> None:
    data = BARE[name]
    encoded = base64.b64encode(data).decode()
    lined = base64.encodebytes(data).decode()
    text, around = {
        "plain": (encoded, ""),
        "url": (base64.urlsafe_b64encode(data).decode(), ""),
        "lines": (lined, ""),
        "crlf": (lined.replace("\n", "\r\n"), ""),
        "in JSON": (json.dumps({"content": lined}), '{"content": ""}'),
        "60": ("\n".join(encoded[n : n + 60] for n in range(0, len(encoded), 60)), ""),
        "around": (f"it is\n{encoded}, and then {encoded[:1000]}", f"it is\n, and then {encoded[:1000]}"),
        "cut": (encoded[:-7], ""),
    }[form]
    shown = without_media(text)
    found = re.fullmatch(r"(.*)\[data, ([\d,]+) bytes, [0-9a-f]{12}, left out\](.*)", shown, re.DOTALL)
    assert found is not None
    assert (found[1] + found[3]).replace("\\n", "").strip() == around
    assert abs(int(found[2].replace(",", "")) - len(data)) < 7
    assert beginning_without_media(text, 16_000) == (shown, True)
    assert without_media({"a": [text]}) == {"a": [shown]}
    assert without_media(text, bare=False) == text


def test_r10_18_files_of_both_kinds_are_left_out_of_one_text() -> None:
    encoded = base64.b64encode(BARE["compressed"]).decode()
    text = f"one {encoded} two data:image/png;base64,{PNG} three {PNG} four {encoded}! {encoded[:400]}" + " more" * 5000
    shown = without_media(text)
    assert re.findall(r"(\w+) \[([a-z/]+), ", shown) == [
        ("one", "data"), ("two", "image/png"), ("three", "image/png"), ("four", "data"),
    ]  # fmt: skip
    assert encoded[:400] in shown
    begin, is_whole = beginning_without_media(text, 2000)
    assert shown.startswith(begin)
    assert not is_whole
    assert 2000 <= len(begin) < 2500


LONG_TEXTS = {
    "hexadecimal": hashlib.shake_256(b"a").hexdigest(5000),
    "both cases": "".join(c.upper() if n % 3 else c for n, c in enumerate(hashlib.shake_256(b"a").hexdigest(5000))),
    "dump": "\n".join(hashlib.sha256(bytes([n])).hexdigest() for n in range(200)),
    "DNA": "ACGTTGCA" * 1000,
    "protein": "MKVLAAGIVGLCAKQWERTYIPSDFGHN" * 200,
    "one name": "getUserByIdAndUpdateTheAddress2OfCustomer" * 100,
    "upper name": "MAX_VALUE_OF_ITEM_12_" * 200,
    "path": "usr/local/lib/Python3/site-packages/Some_Package/" * 100,
    "numbers": "0123456789" * 500,
    "names": "\n".join(f"Name{n}Of{n % 7}People" for n in range(1000)),
    "ids": "\n".join(base64.b64encode(bytes([n % 256]) * 32)[:43].decode() for n in range(200)),
    "rule": "-" * 5000 + "\n" + "_" * 5000,
    "tokens": " ".join(["AbC1" + base64.b64encode(bytes(range(256)) * 5).decode()[:1900]] * 5),
    "source": _SOURCE.decode(),
    "less white space": re.sub(r"\s+", "", _SOURCE.decode()),
    "guide": "\n".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))),
    "json": json.dumps({f"key{n}": [n, str(n), None] for n in range(2000)}, separators=(",", ":")),
    "german": "Alle Menschen sind frei und gleich an Würde und Rechten geboren. " * 200,
    "chinese": "人人生而自由在尊嚴和權利上一律平等" * 500,
}


@pytest.mark.parametrize("name", LONG_TEXTS)
def test_r10_18_a_long_text_that_is_no_base64_stays(name: str) -> None:
    text = LONG_TEXTS[name]
    assert without_media(text) == text
    assert beginning_without_media(text, len(text)) == (text, True)


@given(st.lists(st.text(max_size=100), max_size=8), st.integers(1, 40))
def test_r10_18_a_text_of_words_stays(words: list[str], times: int) -> None:
    text = " ".join(words * times)
    assert without_media(text) == text


@given(st.text(max_size=50), st.integers(1_500, 12_000), st.text(max_size=50), st.integers(0, 2**32))
def test_r10_18_random_bytes_are_left_out_of_any_text(before: str, size: int, after: str, seed: int) -> None:
    encoded = base64.b64encode(random.Random(seed).randbytes(size)).decode()
    text = f"{before} {encoded}. {after}"
    shown = without_media(text)
    assert (shown.startswith(f"{before} ["), shown.endswith(f", left out]. {after}")) == (True, True)
    assert beginning_without_media(text, len(text)) == (shown, True)


def test_a_hostile_text_takes_linear_time() -> None:
    hostile = [
        "data:a/a;" + "a=a;" * 200_000,
        "/9j/" * 200_000 + "!",
        "data:image/png;base64," * 50_000,
        "a" * 1_000_000,
        "A1b" * 333_333,
        ("A1b" * 600 + ".") * 500,
        ("aB3" * 20 + "\n") * 16_000,
        (("aB3" * 20 + "\n") * 16 + "\n") * 1_000,
        f"data:image/png;base64,{'aB3+' * 500} " * 500,
        "data:a/a;base64," + ("aB3d" * 9 + "\ndata:a/a;base64,") * 20_000,
        "\\n" * 500_000,
    ]
    assert takes_less(lambda: [(without_media(text), beginning_without_media(text, 500_000)) for text in hostile], 200)


@pytest.mark.parametrize("name", ["letters", "base64"])
def test_the_beginning_of_one_line_of_millions_of_characters_costs_no_workflow_task(name: str) -> None:
    text = "x" * 5_000_000 if name == "letters" else base64.b64encode(random.Random(1).randbytes(3_700_000)).decode()
    assert takes_less(lambda: [beginning_without_media(text, 200) for _ in range(20)], 120)


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
