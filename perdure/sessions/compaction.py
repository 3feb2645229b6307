"""Compaction: the cut of a transcript, the summary that replaces the cut part, and the identifiers to keep.

A cut lies between two Requests, so that each call keeps its result. A model summarises the cut part as one text. This
module judges the summary. An extract replaces a bad summary, so that a session never waits for a summary that no
model can write.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pydantic import Field

from perdure.models.usage import Usage
from perdure.runs.claim_check import PayloadKind
from perdure.sessions.entries import CompactionEntry, ConversationStep, Entry, StepPosition, estimate
from perdure.sessions.transcript import EARLIER, Segment, SegmentSpan, Transcript
from perdure.values.json import JsonObject, WireModel
from perdure.values.limits import AT_HAND, KEPT_TOKENS, MAX_IDENTIFIERS, MAX_SUMMARY

_WORD: Final = re.compile(r"[^\s\"'<>(){}\[\],;|`=]+")
_ROUND: Final = ".:!?*#$€£~%+-_/\\&^†…"
_LONGEST: Final = 120
"""Characters. A person or a model would not repeat a longer word."""
_NUMBERED: Final = re.compile(r"\d+(st|nd|rd|th|x|s|ms|kb|mb|%)|\d{1,2}", re.IGNORECASE)


def find_identifiers(text: str) -> dict[str, None]:
    """Return the identifiers of a text, each once, in their order. The cost grows with the text only."""
    found: dict[str, None] = {}
    for word in _WORD.findall(text):
        word = word.strip(_ROUND)
        if 3 <= len(word) <= _LONGEST and _names(word):
            found[word] = None
    return found


def _names(word: str) -> bool:
    if any(character.isdigit() for character in word):
        return not _NUMBERED.fullmatch(word)
    return ("@" in word and "." in word) or "://" in word or word.count("/") > 1


def changed_identifiers(summary: str, source: str) -> list[str]:
    """Return identifiers of a summary that its source lacks: a model has invented or changed them."""
    return [word for word in find_identifiers(summary) if word not in source]


def list_missing(wanted: Iterable[str], text: Container[str], room: int) -> str:
    """Return the first identifiers that a text lacks, in `room` characters; an empty text if it lacks none."""
    names: list[str] = []
    for word in wanted:
        if word in text:
            continue
        room -= len(word) + 2
        if room < 0:
            break
        names.append(word)
    return ", ".join(names)


Why: TypeAlias = Literal["tokens", "size", "refused", "asked"]
"""Reason of a compaction: the tokens, the bytes in the session, a rejection by the model's server (R9.7), or a
person's command.
"""

_SAVES: Final = 0.9
"""Largest part of a conversation that a compaction may leave; otherwise the conversation stays as it is."""
_TWICE: Final = 2
"""Compactions without a run between them: more would not help."""
_LEAST: Final = 16
"""Part of the context's tokens that a summary may always use: a shorter one loses names."""
_TEXTS: Final = (16_000, 4_000, 1_000, 300, 80)
"""Characters of one text in the source of a summary: the first of these for which there is room."""
_PART: Final = re.compile(r"\S{0,120}$")
_IDENTIFIERS: Final = "\nNamed there: "


@dataclass(frozen=True, slots=True)
class CompactionCut:
    """The part of a conversation that a compaction cuts, and its figures."""

    why: Why
    place: StepPosition
    """Place of the last step that is cut."""
    before: int
    """Estimated tokens of the conversation."""
    kept: int
    """Estimated tokens that stay."""
    earlier: str
    """Summary that replaced the beginning until now."""
    steps: Sequence[ConversationStep]
    """Steps that are cut."""
    limit: int
    """Tokens that the context may have."""
    branch: int
    """Branch of the conversation: another may begin while the summary is written."""

    @property
    def most(self) -> int:
        """The most tokens of the summary: it saves a tenth at least, and has a fixed limit."""
        return min(MAX_SUMMARY, self.limit // 4, int(_SAVES * self.before) - self.kept - estimate(EARLIER))

    @property
    def most_of_summary(self) -> int:
        """The most tokens of a model's summary: the rest is for the names that it leaves out."""
        return self.most * 3 // 4

    def source(self, room: int) -> str:
        """Return the text to summarise, in `room` characters: long texts are cut first, then the oldest texts are left
        out.
        """
        text = ""
        for most in _TEXTS:
            text = "\n".join([*([self.earlier] if self.earlier else []), *_lines(self.steps, most)])
            if len(text) <= room:
                return text
        return text[len(text) - room :].partition(" ")[2]


def compaction_reason(transcript: Transcript) -> Why | None:
    """Return the reason why a conversation should be compacted now; `None` if it is short enough."""
    if transcript.tokens >= transcript.limit:
        return "tokens"
    return "size" if transcript.bytes >= AT_HAND else None


def cut_of(transcript: Transcript, why: Why) -> CompactionCut | None:
    """Return the part to cut; `None` if the cut would not save a tenth, or was tried twice since the last run."""
    if transcript.compactions_in_a_row >= _TWICE:
        return None
    steps = list(transcript.steps())
    tokens = [step.tokens for step in steps]
    compaction = transcript.compaction()
    earlier = "" if compaction is None else compaction.text
    before = sum(tokens) + (estimate(EARLIER, earlier) if earlier else 0)
    keep = min(KEPT_TOKENS, transcript.limit // 3)
    kept, first = 0, len(steps)
    while first and kept + tokens[first - 1] <= keep:
        first -= 1
        kept += tokens[first]
    if why == "size":  # many small steps: their bytes do not correspond to their tokens
        while first < len(steps) // 2:
            kept -= tokens[first]
            first += 1
    if (
        first == len(steps) and steps and tokens[-1] <= transcript.limit // 2
    ):  # one long step: it stays whole if possible
        first -= 1
        kept = tokens[first]
    if not first:
        return None
    cut = CompactionCut(
        why, steps[first - 1].place, before, kept, earlier, steps[:first], transcript.limit, transcript.branch
    )
    return cut if cut.most >= min(KEPT_TOKENS, transcript.limit) // _LEAST else None


def summary_problem(summary: str, source: str, most: int) -> str | None:
    """Return the problem of a summary of at most `most` tokens, in words for its model; `None` for a good summary."""
    summary = summary.strip()
    if not summary:
        return "it is empty"
    if (size := estimate(summary)) > most:
        return f"it is too long: about {size:,} tokens; the limit is {most:,}"
    if made_up := changed_identifiers(summary, source):
        return f"it has names that are not in the text: {', '.join(made_up[:10])}"
    return None


def compacted(
    cut: CompactionCut, summary: str | None, trouble: str | None, at: str, addition: str = ""
) -> CompactionEntry | None:
    """Return the entry that replaces the cut part: the summary or an extract, with the identifiers that it lacks.

    A hook's `addition` is appended unchanged. Return `None` if not even an extract saves a tenth.
    """
    room = cut.most * 3  # characters: a little less than so many tokens
    names_room = min(MAX_IDENTIFIERS, room // 2)
    if summary is not None:
        room = max(0, (cut.most - estimate(summary)) * 3)
        text = summary.strip()
    else:
        room -= names_room
        text = extract(cut, room)
        room = names_room
    names = list_missing(_identifiers(cut), text, min(MAX_IDENTIFIERS, room) - len(_IDENTIFIERS))
    text += f"{_IDENTIFIERS}{names}" if names else ""
    text += f"\n\n{addition}" if addition else ""
    after = cut.kept + estimate(EARLIER, text)
    if after > _SAVES * cut.before:
        return None
    return CompactionEntry(
        at=at,
        text=text,
        kind="extract" if summary is None else "summary",
        why=cut.why,
        up_to=cut.place[0],
        request=cut.place[1],
        before=cut.before,
        after=after,
        problem=trouble if summary is None else None,
        branch=cut.branch,
    )


def extract(cut: CompactionCut, room: int) -> str:
    """Return an extract without a model, in `room` characters: the beginning of the earlier summary, then the newest
    lines.
    """
    head = _short(cut.earlier.partition(_IDENTIFIERS)[0], room // 3)
    lines: list[str] = []
    left = room - len(head) - 1
    for line in reversed([line for step in cut.steps for line in _lines([step], 200)]):
        left -= len(line) + 1
        if left < 0:
            break
        lines.append(line)
    return "\n".join([*([head] if head else []), *reversed(lines)])


def _identifiers(cut: CompactionCut) -> dict[str, None]:
    """Return the identifiers, newest first; identifiers from people and the model come before those from tools."""
    found: dict[str, None] = {}
    results: dict[str, None] = {}
    for step in reversed(cut.steps):
        for message in reversed(step.messages):
            into = results if message["role"] == "tool" else found
            into |= find_identifiers(message.get("content") or "")
            for call in message.get("tool_calls", ()):
                found |= find_identifiers(call["function"]["arguments"])
    return found | find_identifiers(cut.earlier) | results


def _lines(steps: Sequence[ConversationStep], most: int) -> Iterator[str]:
    for step in steps:
        for message in step.messages:
            yield from _texts(message, most)


def _texts(message: JsonObject, most: int) -> Iterator[str]:
    content = message.get("content")
    for call in message.get("tool_calls", ()):
        yield _short(f"called {call['function']['name']}: {call['function']['arguments']}", most)
    if content is not None:
        who = {"tool": "result", "assistant": "assistant"}.get(message["role"], "")
        yield _short(f"{who}: {content}" if who else content, most)


def _short(text: str, most: int) -> str:
    """Return the beginning of a text, without a cut word at its end: half an order number is a wrong number."""
    if len(text) <= most:
        return text
    end = text[:most]
    return f"{end[: len(end) - len(_PART.search(end)[0])]}…"  # type: ignore[index]


SUMMARY_ACTIVITY: Final = "perdure.summary"
ARCHIVE_ACTIVITY: Final = "perdure.archive"
FIND_ACTIVITY: Final = "perdure.find"
ENTRIES_QUERY: Final = "at_hand"
"""Query: the entries that the session has itself, and the segments of the older ones, a `HeldEntries`."""


class SummaryInput(WireModel):
    """The input of the activity that requests a summary. The activity queries all other data."""

    models: JsonObject = Field(default_factory=dict)
    """The agent file's `config.models`."""


class SummarySource(WireModel):
    """The text to summarise."""

    text: str
    most: int
    """Tokens of the summary."""


SUMMARY: Final = PayloadKind[SummarySource]("summary", SummarySource)
"""The text to summarise, by the number of characters."""
SEGMENT: Final = PayloadKind[Segment]("segment", Segment)
"""The entries to archive, by the number of their segment."""


class SummaryResult(WireModel):
    """The result of a summary."""

    text: str | None = None
    """Summary; `None` if there is no usable one."""
    problem: str | None = None
    """Reason why there is no summary."""
    model: str = ""
    usage: Usage = Field(default_factory=Usage)


class ArchiveInput(WireModel):
    """The input of the activity that archives: the place of the archive."""

    span: SegmentSpan


class Archived(WireModel):
    """The segment that holds the entries now."""

    last: int
    """Place of its last entry."""


class FindInput(WireModel):
    """A search for a message that may be in a segment."""

    message_id: str
    sender: str = ""
    """Sender of the message; empty if only one sender has a message of this id."""
    spans: list[SegmentSpan]


class FoundEntry(WireModel):
    """The message's entry; `None` if there is none."""

    entry: Entry | None = None


class HeldEntries(WireModel):
    """Entries that a session has itself. With `more`, another query returns newer ones."""

    entries: list[Entry] = Field(default_factory=list)
    more: bool = False
    spans: list[SegmentSpan] = Field(default_factory=list)
    last: int = 0
    branch: int = 0
    limit: int = 0
