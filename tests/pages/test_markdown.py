"""Answers on pages: Markdown as HTML that can do nothing but be read (R17.5)."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.pages._markdown import LONGEST, render_markdown
from tests.cpu import takes_less

PIECES = st.sampled_from(
    [
        *"<>\"'`*_[]()!|#\n &:\\",
        "<script>",
        "javascript:",
        "[x](",
        "![x](",
        "data:text/html,",
        "| a | b |\n|--:|:-|\n",
        "onerror=",
        "```\n",
        "http://a",
    ]
)


class _Read(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("Your <b>20</b>", "<p>Your &lt;b&gt;20&lt;/b&gt;</p>"),
        ("# One\n\n### Two", "<h2>One</h2>\n<h3>Two</h3>"),
        ("a\nb", "<p>a<br>\nb</p>"),
        ("```py\nx < 1\n```", "<pre><code>x &lt; 1\n</code></pre>"),
        ("[x](javascript:alert(1))", "<p>[x](javascript:alert(1))</p>"),
        (
            "[x](https://a.b/)",
            '<p><a href="https://a.b/" rel="noopener noreferrer nofollow">x</a></p>',
        ),
        ("![x](https://a.b/c.png)", '<p>!<a href="https://a.b/c.png" rel="noopener noreferrer nofollow">x</a></p>'),
    ],
)
def test_r17_5_an_answer_is_rendered(text: str, html: str) -> None:
    assert render_markdown(text).strip() == html


def test_r17_5_a_table_scrolls_by_itself_and_keeps_its_columns() -> None:
    html = render_markdown("| a | b |\n|---|--:|\n| 1 | 2 |")
    assert html.startswith('<div class="wide" tabindex="0"><table>')
    assert '<td align="right">2</td>' in html


def test_r17_5_what_is_too_long_to_parse_stands_as_it_was_written() -> None:
    assert render_markdown("<b>" + "*" * LONGEST) == '<div class="plain">&lt;b&gt;' + "*" * LONGEST + "</div>"


@pytest.mark.parametrize(
    "unit",
    [
        '> > > ===\n"\n',
        "> > > > > a\nb\n",
        "> " * 18 + "=\na\n",
        "[",
        "![a",
        "[a](",
        "|\n",
        "> |a|b|\n> |-|-|\n",
        "- a\n  1. b\n",
        "*a_ ",
        "`a ``b ",
    ],
)
def test_r17_5_a_hostile_answer_takes_no_longer_than_a_long_one(unit: str) -> None:
    """The first one took 800 laps."""
    text = (unit * LONGEST)[:LONGEST]
    assert takes_less(lambda: render_markdown(text), 250)


def test_r17_5_a_long_answer_of_a_usual_kind_is_rendered() -> None:
    part = "Some *words* of `code` and **bold**, a [link](http://a.b).\n\n- one\n- two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> said\n\n"
    html = render_markdown((part * 200)[:LONGEST])
    assert html.count("<table>") > 100
    assert "plain" not in html


@given(st.lists(PIECES | st.text(max_size=8), max_size=40).map("".join))
def test_r17_5_no_answer_loads_or_runs_anything(text: str) -> None:
    read = _Read()
    read.feed(render_markdown(text))
    assert not set(read.tags) & {"script", "img", "style", "iframe", "svg", "form", "input", "h1"}
    for name, value in read.attributes:
        assert name in ("href", "title", "rel", "start", "align", "class", "tabindex")
        assert name != "href" or not re.match(r"\s*(javascript|data|vbscript):", value or "", re.IGNORECASE)
