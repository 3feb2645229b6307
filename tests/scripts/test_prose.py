"""The linter of sentences finds what it is for, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.prose import of_changelog, of_code, of_page, problems, problems_of, sentences

LONG = " ".join(["word"] * 31) + "."


@pytest.mark.parametrize(
    ("sentence", "wrong"),
    [
        (LONG, "31 words, at most 30"),
        (" ".join(["word"] * 29) + " ¶ ¶", "31 words, at most 30"),
        ("What is sent is kept.", 'begins with "What"'),
        ("Whoever asks gets it.", 'begins with "Whoever"'),
        ("The value stands there.", '"stands"'),
        ("It is simply a list.", '"simply"'),
        ("A call ends once (R5.3).", '"R5.3"'),
    ],
)
def test_a_sentence_is_refused(sentence: str, wrong: str) -> None:
    assert any(found.startswith(wrong) for found in problems_of(sentence))


@pytest.mark.parametrize(
    "sentence", [LONG.replace("word ", "", 1), "What can go wrong?", "A standard list.", "It is ¶."]
)
def test_a_sentence_passes(sentence: str) -> None:
    assert list(problems_of(sentence)) == []


def test_a_message_of_code_has_plain_words() -> None:
    old = "The run goes on, and nobody can look at what waits any more; 5 is the most."
    assert [found.split(":")[0] for found in problems_of(old, message=True)] == [
        '"goes on"',
        '"nobody"',
        '"look at"',
        '"what waits"',
        '"any more"',
        '"is the most"',
    ]
    assert list(problems_of(old)) == []


def test_sentences_end_at_full_stops_and_not_inside_numbers() -> None:
    assert sentences("It takes 1.5 s. ¶ is last? No: see e.g. Temporal.") == [
        "It takes 1.5 s.",
        "¶ is last?",
        "No: see e.g. Temporal.",
    ]


def test_a_page_has_paragraphs_items_and_cells_without_code_and_headings() -> None:
    page = "# What now\n\nOne `two three` four.\n\n- five\n\n| a | b |\n|---|---|\n| six | [seven](x.md) |\n\n```\ncode\n```\n"
    assert [text for _, text in of_page(page)] == ["One ¶ four.", "five", "a", "b", "six", "seven"]
    assert [line for line, _ in of_page(page)][:2] == [3, 5]


def test_of_the_changelog_only_what_is_unreleased_counts() -> None:
    log = "# Changelog\n\n## Unreleased\n\n- new\n\n## 1.0\n\n- old\n"
    assert list(of_changelog(log)) == [(5, "new")]


def test_errors_and_help_are_read_from_code() -> None:
    code = 'raise ValueError(f"no {x} here")\nOption(help="Some help.")\n@app.command()\ndef run():\n    """Run `it`\n    now."""\n'
    assert {text for _, text in of_code(code)} == {"no ¶ here", "Some help.", "Run ¶ now."}


def test_a_fault_names_its_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripts.prose.ROOT", tmp_path)
    (tmp_path / "page.md").write_text("# Page\n\nWhat is this.\n", encoding="utf-8")
    (fault,) = problems([tmp_path / "page.md"])
    assert fault.startswith("page.md:3: begins with")
