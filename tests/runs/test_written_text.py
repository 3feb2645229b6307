"""What is told of a text that is being written (R10.14): each character once, no key, and nothing of what says nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.runs.event_stream import WINDOW, MaskedText, TextWriter
from perdure.runs.events import NO_REPLY, is_silence, may_be_silence

SECRETS = ["aab", "aabaac", "baa"]


@given(st.text("abc", max_size=30), st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_no_key_is_told_however_it_is_cut(text: str, cuts: list[int]) -> None:
    masked, told, at, step = MaskedText(SECRETS, "*"), "", 0, 0
    while at < len(text):
        told += masked.push(text[at : at + cuts[step % len(cuts)]])
        at, step = at + cuts[step % len(cuts)], step + 1
    assert not any(secret in told for secret in SECRETS)
    assert told.replace("*", "").count("c") <= text.count("c")


@given(st.text("ab", max_size=30), st.integers(1, 7))
def test_one_key_is_masked_as_in_the_whole_text(text: str, size: int) -> None:
    masked = MaskedText(["aab"], "*")
    told = "".join(masked.push(text[at : at + size]) for at in range(0, len(text), size))
    whole = text.replace("aab", "*")
    assert whole.startswith(told)
    assert len(whole) - len(told) <= 2


@given(st.lists(st.text(max_size=WINDOW // 5), max_size=9))
def test_what_is_told_goes_on_where_it_was(pieces: list[str]) -> None:
    writing, read = TextWriter(3, 2), ""
    for piece in pieces:
        if writing.add(piece):
            told = writing.written().assistant
            assert told.start <= len(read) <= told.start + len(told.text)
            read += told.text[len(read) - told.start :]
    whole = "".join(pieces)
    assert read == whole or (not read and may_be_silence(whole))


def test_a_long_text_is_told_from_its_end() -> None:
    writing = TextWriter(1, 1)
    assert writing.add("x" * WINDOW)
    assert writing.add("end")
    told = writing.written()
    assert (told.assistant.start, len(told.assistant.text), told.assistant.text[-3:]) == (3, WINDOW, "end")
    assert not writing.add("")


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(
    ("text", "silent"),
    [
        ("NO_REPLY", True),
        (' "NO_REPLY"\n', True),
        ("`NO_REPLY`", True),
        ("**NO_REPLY**", True),
        ("NO_REPLY.", False),
        ("NO_REPLY is what I would say", False),
        ("Say NO_REPLY", False),
        ("no_reply", False),
        ("NO_RE", False),
        ("", False),
    ],
)
def test_what_may_be_no_reply_waits(text: str, silent: bool, size: int) -> None:
    writing = TextWriter(1, 1)
    for at in range(0, len(text), size):
        writing.add(text[at : at + size])
    assert is_silence(text) == silent
    assert writing.written().assistant.text == ("" if silent or NO_REPLY.startswith(text) else text)


def test_reasoning_does_not_wait_for_the_answer() -> None:
    writing = TextWriter(1, 1)
    assert writing.add("NO_", "hm")
    assert writing.written().reasoning.text == "hm"
