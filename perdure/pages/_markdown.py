"""Answers as HTML: Markdown with tables and code, without elements that load, run or imitate a part of the page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape

LONGEST: Final = 16_000
"""The most characters that are rendered. A longer answer is shown as plain text: the parser's time grows faster than linearly."""
STEPS: Final = 100_000
"""Calls of the parser's rules for one answer, about 1 µs each: prose with lists and tables takes 22,000 for `LONGEST` characters, nested quotations
whose lines leave out their marks took 8 million. An answer that needs more is shown as plain text."""
_KEPT: Final = 512
"""The most rendered answers in the cache: a conversation is shown again after each message."""
_TAGS: Final = {
    *("p", "br", "hr", "em", "strong", "s", "code", "pre", "blockquote", "a", "ul", "ol", "li"),
    *("h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td"),
}
_ATTRIBUTES: Final = {"a": {"href", "title"}, "ol": {"start"}, "th": {"align"}, "td": {"align"}}
# Pictures would be loaded from other sites. They become links with the same text.
_PARSER: Final = (
    MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"]).disable("image")
)


class _TooManyStepsError(Exception):
    """Raised inside the parser when an answer needs more than `STEPS` steps."""


def _count_steps(parser: MarkdownIt) -> None:
    """Make each rule count its calls in the `env` of its text."""

    def counted(rule: Callable[..., Any]) -> Callable[..., Any]:
        def count(state: Any, *more: Any) -> Any:
            state.env["steps"] = steps = state.env.get("steps", 0) + 1
            if steps > STEPS:
                raise _TooManyStepsError
            return rule(state, *more)

        return count

    for ruler in (parser.block.ruler, parser.inline.ruler, parser.inline.ruler2):
        for rule in ruler.__rules__:
            ruler.at(rule.name, counted(rule.fn), {"alt": rule.alt})


_count_steps(_PARSER)


@lru_cache(_KEPT)
def render_markdown(text: str) -> Markup:
    """Return the answer as HTML for a page. HTML in it is shown as text; links lead to the web or to mail."""
    plain = Markup('<div class="plain">{}</div>').format(escape(text))
    if len(text) > LONGEST:
        return plain
    try:
        tokens = _PARSER.parse(text)
    except _TooManyStepsError:
        return plain
    _fit_into_page(tokens)
    html = _PARSER.renderer.render(tokens, _PARSER.options, {})
    clean = nh3.clean(
        html,
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer nofollow",
    )
    return Markup(
        clean.replace("<table>", '<div class="wide" tabindex="0"><table>').replace("</table>", "</table></div>")
    )


async def prepare_answers(texts: Iterable[str]) -> None:
    """Render answers in a thread, into the cache: a hostile answer takes a tenth of a second."""
    await asyncio.to_thread(lambda: [render_markdown(text) for text in texts])


def _fit_into_page(tokens: list[Token]) -> None:
    """Lower headings below the page's own, and align columns without styles: the pages' policy blocks styles."""
    levels = sorted({token.tag for token in tokens if token.type == "heading_open"})
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{levels.index(token.tag) + 2}" if levels.index(token.tag) < 5 else "h6"
        elif token.type in ("th_open", "td_open") and (style := token.attrs.pop("style", None)):
            token.attrs["align"] = str(style).removeprefix("text-align:")
