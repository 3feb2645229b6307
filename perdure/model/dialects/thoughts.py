"""What models and servers leave around an answer: thoughts, marks of channels and turns, code fences, a byte order mark."""

from __future__ import annotations

import re
from typing import Final

_BEGINS: Final = ("<think>", "<thinking>")
_ENDS: Final = re.compile(r"</think(?:ing)?>")
_LONGEST_END: Final = len("</thinking>")
_FENCE: Final = re.compile(r"```\w*\s*")
_LONGEST_FENCE: Final = 32

FINAL_CHANNEL: Final = r"<\|channel\|>\s*final\b[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>"
END_OF_THOUGHT: Final = re.compile(
    rf"(?:^|\n)[ \t]*</think(?:ing)?>|</think(?:ing)?>[ \t]*(?=\n|$)|{FINAL_CHANNEL}",
)
"""Where a thought ends whose beginning was in the prompt, or was lost. A tag inside a sentence is only spoken of."""

_LAST_MARK: Final = re.compile(r"(?:<[|｜][\w▁]{1,40}[|｜]>|</s>)$")
_LONGEST_MARK: Final = 44

_CALL_AS_TEXT: Final = re.compile(
    r"^[ \t]*(?:<tool_calls?>|<\|?tool_calls?(?:_begin)?\|?>|<function(?:=|_calls?>|>)|<invoke\b|\[TOOL_CALLS\]|<\|python_tag\|>"
    r"|<[|｜]tool▁calls?▁begin[|｜]>|<\|channel\|>\s*(?:commentary|analysis)\s+to=|```tool_(?:code|call)\b)",
    re.MULTILINE,
)


def last_marks_removed(text: str) -> str:
    """The text without marks of its end, such as `<|im_end|>`, that a server should have kept."""
    end = whole = _end(text, len(text))
    while found := _LAST_MARK.search(text[max(0, end - _LONGEST_MARK) : end]):
        end = _end(text, end - len(found[0]))
    return text[:end] if end < whole else text


def _end(text: str, end: int) -> int:
    """Where the text before `end` ends without its last blanks."""
    while end and text[end - 1].isspace():
        end -= 1
    return end


def without_thoughts(text: str) -> str:
    """A finished answer without the thoughts before it and the marks around it."""
    text = text.lstrip("\ufeff \t\r\n")
    while text.startswith(_BEGINS):
        end = _ENDS.search(text)
        text = "" if end is None else text[end.end() :].lstrip("\ufeff \t\r\n")
    if not text.startswith("{"):
        ends = [found.end() for found in END_OF_THOUGHT.finditer(text)]
        text = text[ends[-1] :] if ends else text
    return last_marks_removed(text).strip()


def fence_removed(text: str) -> str:
    """The text without a code fence that it begins with."""
    fence = _FENCE.match(text)
    return text if fence is None else text[fence.end() :]


def call_as_text(text: str) -> str | None:
    """The mark of a function call that a server let through as text; `None` where there is none."""
    found = _CALL_AS_TEXT.search(text)
    return None if found is None else found[0].strip()


class Opening:
    """Gives the JSON document of an answer that is being written, where the answer is one: from its `{` on.

    Thoughts in `<think>`, a code fence and a byte order mark before it are taken away. An answer that begins with anything
    else may be a thought whose beginning was lost: of that nothing is given, and what it was is decided when it has ended.
    """

    def __init__(self) -> None:
        self._state = "begin"  # then "thought", "document" or "prose"
        self._head = ""

    def push(self, text: str) -> str:
        if self._state == "document":
            return text
        while text and self._state != "prose":
            self._head += text
            text = ""
            if self._state == "thought":
                end = _ENDS.search(self._head)
                if end is None:
                    self._head = self._head[-_LONGEST_END:]
                else:
                    self._state, text, self._head = "begin", self._head[end.end() :], ""
            elif self._state == "begin":
                text = self._begin()
                if self._state == "document":
                    return text
        return ""

    def _begin(self) -> str:
        """Decide what the answer begins with, if that can be told yet; what is left to look at."""
        head = self._head = self._head.lstrip("\ufeff \t\r\n")
        if head.startswith("{"):
            self._state, self._head = "document", ""
            return head
        if head.startswith(_BEGINS):
            self._state, self._head = "thought", ""
            return head
        if fence := _FENCE.match(head):
            rest = head[fence.end() :]
            if not rest and len(head) < _LONGEST_FENCE:
                return ""
            self._head = ""
            return rest if rest.startswith("{") else self._prose()
        if "```".startswith(head) or any(mark.startswith(head) for mark in _BEGINS):
            return ""
        return self._prose()

    def _prose(self) -> str:
        self._state, self._head = "prose", ""
        return ""
