"""What models and servers leave around an answer: thoughts, marks of channels and turns, code fences, a byte order mark."""

from __future__ import annotations

import re
from typing import Final

_BLANK: Final = "\ufeff \t\r\n"
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
_BEGUN_MARK: Final = re.compile(r"<(?:[|｜][\w▁]{0,40}[|｜]?|/\w{0,8})?$")
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


def settled(text: str) -> int:
    """How much of a text that is being written is its own, whatever comes: blanks and marks may be its end, or begin one."""
    end = _end(text, len(text))
    begun = _BEGUN_MARK.search(text[max(0, end - _LONGEST_MARK) : end])
    end -= len(begun[0]) if begun else 0
    while found := _LAST_MARK.search(text[max(0, end - _LONGEST_MARK) : (end := _end(text, end))]):
        end -= len(found[0])
    return end


def without_thoughts(text: str) -> str:
    """A finished answer without the thoughts before it and the marks around it."""
    text = text.lstrip(_BLANK)
    while text.startswith(_BEGINS):
        end = _ENDS.search(text)
        text = "" if end is None else text[end.end() :].lstrip(_BLANK)
    if not text.startswith("{"):
        ends = [found.end() for found in END_OF_THOUGHT.finditer(text)]
        text = text[ends[-1] :] if ends else text
    return last_marks_removed(text).strip()


def lost_thought(text: str) -> str:
    """What stands before the end of a thought whose beginning was in the prompt, or was lost; `""`: there is no such."""
    text = text.lstrip(_BLANK)
    if text.startswith(("{", *_BEGINS)) or not any(sign in text for sign in ("</think", "<|channel|>")):
        return ""
    starts = [found.start() for found in END_OF_THOUGHT.finditer(text)]
    return text[: starts[-1]].rstrip() if starts else ""


def fence_removed(text: str) -> str:
    """The text without a code fence that it begins with."""
    fence = _FENCE.match(text)
    return text if fence is None else text[fence.end() :]


def call_as_text(text: str) -> str | None:
    """The mark of a function call that a server let through as text; `None` where there is none."""
    found = _CALL_AS_TEXT.search(text)
    return None if found is None else found[0].strip()


class Thoughts:
    """Takes the thoughts in `<think>` that stand before an answer away, and blanks around them: gives what comes behind."""

    def __init__(self) -> None:
        self._thought: list[str] = []
        self._state = "begin"  # or "thought", then "answer"
        self._head = ""

    def new(self) -> str:
        """What has come of them since this was asked last."""
        text, self._thought = "".join(self._thought), []
        return text

    def push(self, text: str) -> str:
        if self._state == "answer":
            return text
        head, self._head = self._head + text, ""
        while True:
            if self._state == "thought":
                end = _ENDS.search(head)
                if end is None:
                    kept = max(0, len(head) - _LONGEST_END + 1)
                    self._thought.append(head[:kept])
                    self._head = head[kept:]
                    return ""
                self._thought.append(head[: end.start()])
                self._state, head = "begin", head[end.end() :]
            head = head.lstrip(_BLANK)
            begins = next((mark for mark in _BEGINS if head.startswith(mark)), None)
            if begins is not None:
                self._state, head = "thought", head[len(begins) :]
            elif any(mark.startswith(head) for mark in _BEGINS):
                self._head = head
                return ""
            else:
                self._state = "answer"
                return head


class Opening:
    """Gives the JSON document of an answer that is being written, where the answer is one: from its `{` on.

    Thoughts in `<think>`, a code fence and a byte order mark before it are taken away. An answer that begins with anything
    else may be a thought whose beginning was lost: of that nothing is given, and what it was is decided when it has ended.
    """

    def __init__(self) -> None:
        self.thoughts = Thoughts()
        self._state = "begin"  # then "document" or "prose"
        self._head = ""

    def push(self, text: str) -> str:
        text = self.thoughts.push(text)
        if self._state == "document":
            return text
        if self._state == "prose" or not text:
            return ""
        head = self._head + text
        if fence := _FENCE.match(head):
            rest = head[fence.end() :]
            if not rest and len(head) < _LONGEST_FENCE:
                self._head = head
                return ""
            head = rest
        elif "```".startswith(head):
            self._head = head
            return ""
        self._state, self._head = "document" if head.startswith("{") else "prose", ""
        return head if self._state == "document" else ""
