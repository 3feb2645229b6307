"""Compaction of a conversation, whatever it holds and however badly its model summarises (R10.11, R10.13)."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from perdure.models.dialects.registry import DIALECTS
from perdure.runs.agent import Context, ModelChoice, Models, parse_agent
from perdure.runs.run import RunState
from perdure.runs.wire import CallView, PreparedWorker, RunResult
from perdure.sessions.compaction import (
    changed_identifiers,
    compacted,
    compaction_reason,
    cut_of,
    find_identifiers,
    summary_problem,
)
from perdure.sessions.entries import CommandEntry, MessageEntry, ReplyEntry, estimate, run_entry
from perdure.sessions.transcript import Transcript, TranscriptSnapshot
from perdure.sessions.wire import message_key
from perdure.values.json import Json
from perdure.values.limits import AT_HAND, MAX_SEGMENT
from perdure.values.messages import parse_messages
from tests.cpu import takes_less
from tests.soak import share, times

AT = "2026-11-21T10:00:00Z"


def exchange(transcript: Transcript, number: int, said: str, answered: str, *calls: CallView, **more: Any) -> None:
    run = f"s/{number}"
    transcript.append(MessageEntry(at=AT, message_id=f"m{number}", sender="anna", text=said, run_id=run))
    transcript.append(run_entry(RunResult(run_id=run, status="completed", calls=list(calls), **more), AT))
    transcript.append(ReplyEntry(at=AT, run_id=run, text=answered))


def long_one(exchanges: int = 60, words: int = 400) -> Transcript:
    transcript = Transcript()
    for number in range(exchanges):
        text = f"order A-{1000 + number} " + "word " * words
        exchange(
            transcript, number, text, "done", CallView(id="1.0", tool="price", params={}, status="done", result="7")
        )
    return transcript


def summed_up(transcript: Transcript, summary: str | None = "They ordered tea.", trouble: str | None = None) -> bool:
    cut = cut_of(transcript, "tokens")
    entry = None if cut is None else compacted(cut, summary, trouble, AT)
    if entry is not None:
        transcript.append(entry)
    return entry is not None


def test_r10_11_the_newest_part_stays_word_for_word_and_a_summary_stands_for_the_rest() -> None:
    transcript = long_one()
    before, whole = transcript.tokens, transcript.conversation()
    assert summed_up(transcript)
    chat = transcript.conversation()
    assert "They ordered tea." in chat[0]["content"]
    assert chat[1:] == whole[len(whole) - len(chat) + 1 :]
    assert 18_000 < sum(step.tokens for step in transcript.steps()) <= 20_000
    assert transcript.tokens < 0.9 * before
    assert "A-1000" in chat[0]["content"]  # of what the summary has left out the names
    parse_messages(chat)


def test_r10_11_what_saves_no_tenth_is_left_and_twice_in_a_row_is_enough() -> None:
    assert cut_of(long_one(30), "asked") is None  # all of it is the newest part
    transcript = long_one(120)
    transcript.limit = 30_000
    assert summed_up(transcript)
    transcript.limit = 12_000
    assert summed_up(transcript)
    transcript.limit = 4_000
    assert cut_of(transcript, "refused") is None
    exchange(transcript, 999, "more", "yes")
    assert cut_of(transcript, "refused") is not None


def test_r10_10_a_branch_that_begins_while_a_summary_is_written_is_not_told_it() -> None:
    transcript = long_one()
    cut = cut_of(transcript, "tokens")
    assert cut is not None
    transcript.append(CommandEntry(at=AT, command="new"))
    entry = compacted(cut, "They ordered tea.", None, AT)
    assert entry is not None
    transcript.append(entry)
    assert transcript.conversation() == []
    assert "They ordered tea." in transcript.conversation(branch=0)[0]["content"]


@pytest.mark.parametrize(
    ("summary", "wrong"),
    [
        ("  ", "empty"),
        ("word " * 20_000, "too long"),
        ("They ordered A-1001 and A-9999.", "A-9999"),
        ("They ordered A-1001 for anna.", None),
    ],
)
def test_r10_11_a_summary_is_judged(summary: str, wrong: str | None) -> None:
    cut = cut_of(long_one(), "tokens")
    assert cut is not None
    found = summary_problem(summary, cut.source(400_000), cut.most_of_summary)
    assert (found is None) if wrong is None else (found is not None and wrong in found)


def test_r10_11_an_extract_takes_the_place_of_a_summary_that_nobody_wrote() -> None:
    transcript = long_one()
    assert summed_up(transcript, None, "500: the server had an error")
    entry = transcript.compaction()
    assert entry is not None
    assert (entry.kind, entry.problem) == ("extract", "500: the server had an error")
    assert "A-1000" in entry.text
    assert "called price" in entry.text


def test_r10_11_what_is_summarised_fits_the_model_that_does_it() -> None:
    cut = cut_of(long_one(), "tokens")
    assert cut is not None
    for room in (400_000, 20_000, 3_000, 100):
        assert len(cut.source(room)) <= room
    assert "A-1000" in cut.source(20_000)


def test_identifiers_are_what_names_something() -> None:
    text = 'order A-17 of "2026-11-21", €1,250.00 to a.b@c.org, see https://x.org/a?b=1. and /etc/app/conf; 3 of 10 teas, the 2nd'
    assert list(find_identifiers(text)) == [
        "A-17",
        "2026-11-21",
        "250.00",
        "a.b@c.org",
        "https://x.org/a?b",
        "/etc/app/conf".strip("/"),
    ]
    assert changed_identifiers("A-17 and A-18", text) == ["A-18"]
    assert changed_identifiers("on 2026-11-21 (A-17).", text) == []


def test_looking_for_identifiers_takes_what_there_is_of_text() -> None:
    texts = ("a/" * 200_000, "1" * 400_000, "a@" * 200_000, "http://" * 60_000)
    assert takes_less(lambda: [find_identifiers(text) for text in texts], 400)


def test_r9_7_after_a_refusal_less_is_told() -> None:
    transcript = long_one()
    assert compaction_reason(transcript) is None
    transcript.refused()
    assert compaction_reason(transcript) == "tokens"
    assert summed_up(transcript)
    assert transcript.tokens < transcript.limit


def test_r9_7_a_run_whose_context_was_too_long_has_the_next_told_less() -> None:
    transcript = long_one()
    exchange(transcript, 900, "more", "yes", tight=True, context_tokens=700)
    assert transcript.limit < 20_000
    assert compaction_reason(transcript) == "tokens"


@pytest.mark.parametrize("dialect", list(DIALECTS))
def test_r9_7_a_conversation_that_was_too_long_is_told_by_its_newest_part(dialect: str) -> None:
    context: list[Json] = [
        {"type": "system", "text": "Plan."},
        *long_one(60, 400).conversation(),
        {"role": "user", "content": "now"},
    ]
    agent = parse_agent({"name": "desk", "config": {"dialect": dialect}, "context": context})
    run = RunState(agent, Context(agent), PreparedWorker(tools=[], models=Models()))
    run.situation()
    run.begin_request(ModelChoice("m", "r"))
    whole = run.request_context(1).messages
    run.ask_again(ModelChoice("m", "too long"), tight=True)
    tight = run.request_context(1).messages
    assert len(tight) < 0.7 * len(whole)
    assert tight[0] == whole[0]
    assert "left out" in tight[1]["content"]
    assert tight[-1] == whole[-1]
    called = [call["id"] for message in tight for call in message.get("tool_calls", ())]
    assert called == [message["tool_call_id"] for message in tight if message["role"] == "tool"]


def test_r10_13_thousands_of_messages_are_carried_in_as_few_bytes_as_hundreds() -> None:
    transcript = Transcript()
    sizes, segments, compactions = [], 0, 0
    for number in range(1_000):
        exchange(transcript, number, f"message {number} says this and that" * 32, "noted" * 32)
        if compaction_reason(transcript):
            compactions += summed_up(transcript)
        while old := transcript.old():
            segments += 1
            transcript.let_go(old[-1].n)
        if number % 80 == 79:
            sizes.append(transcript.bytes)
    assert max(sizes) < AT_HAND + 2 * MAX_SEGMENT
    assert max(sizes[10:]) < 1.2 * max(sizes[:10])
    assert segments > 2
    assert transcript.last == 3_000 + compactions
    assert len(transcript.conversation()) > 100


SIZES = (3, 30, 300, 3_000, 40_000)


class Random:
    """A transcript that grows at random, as sessions do; `names` are the identifiers that people and runs have said."""

    def __init__(self, seed: int, *, summaries: bool = True) -> None:
        self.random = random.Random(seed)
        self.transcript = Transcript()
        self.transcript.limit = self.random.choice((2_000, 8_000, 30_000, 100_000))
        self.numbers = itertools.count(1)
        self.names: list[str] = []
        self.summaries = summaries

    def name(self) -> str:
        name = f"{self.random.choice(('A-', 'tx_', 'inv/', ''))}{self.random.randrange(10_000, 10**9)}"
        self.names.append(name)
        return name

    def text(self) -> str:
        length = self.random.choice(SIZES)
        unit = self.random.choice(("word ", "ß€ ", "日本語", "†state.x ", '{"a": 1} ', "[cut] "))
        return f"{self.name() if self.random.random() < 0.3 else ''} {unit * (length // len(unit))}"

    def calls(self) -> Iterator[CallView]:
        for request in range(1, self.random.choice((1, 2, 2, 3, 6))):
            for index in range(self.random.choice((1, 1, 3))):
                status = self.random.choice(
                    ("done", "done", "failed", "skipped", "running", "ready", "unknown", "invalid")
                )
                yield CallView(
                    id=f"{request}.{index}",
                    tool=self.random.choice(("price", "a.b/c", "größe", "x" * 90)),
                    params={"item": self.text()[:2000]},
                    status=status,
                    result=self.text()[:16_000] if status == "done" else None,
                    error={"code": "x", "message": "no"} if status in ("failed", "invalid") else None,
                )

    def step(self) -> None:
        transcript, number = self.transcript, next(self.numbers)
        what = self.random.random()
        if what < 0.04:
            transcript.append(CommandEntry(at=AT, command=self.random.choice(("new", "reset", "stop"))))
            if transcript.branch == transcript.last:
                self.names.clear()
            return
        run = f"s/{number}"
        for index in range(self.random.choice((1, 1, 1, 3))):
            id = f"m{number}.{index}"
            known = len(self.names)
            transcript.append(MessageEntry(at=AT, message_id=id, sender="anna", text=self.text()))
            if self.random.random() < 0.05:
                transcript.settle(message_key("anna", id), "withdrawn")
                del self.names[known:]
            else:
                transcript.assign(message_key("anna", id), run, self.random.choice((1, 1, 2, 9)))
        status = self.random.choice(("completed", "completed", "failed", "cancelled", "terminated"))
        result = RunResult(
            run_id=run, status=status, calls=list(self.calls()), error="it failed"[: 9 * (status == "failed")]
        )
        result.context_tokens = self.random.choice((0, 500, 5_000, 50_000))
        transcript.append(run_entry(result, AT))
        if status == "completed" or self.random.random() < 0.5:
            transcript.append(ReplyEntry(at=AT, run_id=run, text=self.text() if status == "completed" else None))
        if self.random.random() < 0.03:
            transcript.refused()

    def tend(self) -> bool:
        transcript, before = self.transcript, self.transcript.last
        for _ in range(3):
            why = compaction_reason(transcript) or ("asked" if self.random.random() < 0.1 else None)
            if why is None or (cut := cut_of(transcript, why)) is None:
                break
            source = cut.source(3 * transcript.limit)
            said = self.random.choice(
                ("", "word " * 50_000, f"{source[:200]} B-777777777", f"They talk. {source[:100]}")
            )
            summary = None if summary_problem(said, source, cut.most_of_summary) else said
            if (entry := compacted(cut, summary, "bad" if summary is None else None, AT)) is None:
                break
            assert entry.after <= 0.9 * entry.before
            transcript.append(entry)
        while old := transcript.old():
            transcript.let_go(old[-1].n)
        if self.random.random() < 0.05:
            self.transcript = Transcript(TranscriptSnapshot.model_validate_json(transcript.carried().model_dump_json()))
        return self.transcript.last > before


def check(drawn: Random, seed: int) -> None:
    transcript = drawn.transcript
    chat = transcript.conversation()
    messages = parse_messages(chat)  # raises for a call without its result (R2.8)
    json.dumps(chat).encode()
    check_shown(chat, messages, list(DIALECTS)[seed % len(DIALECTS)])
    steps = list(transcript.steps())
    compaction = transcript.compaction()
    told = sum(step.tokens for step in steps) + (estimate(compaction.text) if compaction else 0)
    assert min(told, transcript.tokens) <= transcript.limit or transcript.compactions_in_a_row == 2
    shown = json.dumps(chat, ensure_ascii=False)
    missing = [name for name in drawn.names[-40:] if name not in shown]
    few = sum(map(len, drawn.names)) + 2 * len(drawn.names) < min(3_000, transcript.limit // 32)
    assert not (missing and few and transcript.limit > 4_000), missing


def check_shown(chat: list[Any], messages: list[Any], dialect: str) -> None:
    """What a run's first Request says to a model has all of it: each call with its result, in each dialect."""
    agent = parse_agent(
        {"name": "desk", "config": {"dialect": dialect}, "context": [*chat, {"role": "user", "content": "now"}]}
    )
    run = RunState(agent, Context(agent), PreparedWorker(tools=[], models=Models()))
    run.situation()
    run.begin_request(ModelChoice("m", "r"))
    said = run.request_context(1).messages
    if dialect == "tools":
        assert said[-1 - len(chat) : -1] == [message.as_json() for message in messages]
    else:
        assert not any("tool_calls" in message or message["role"] == "tool" for message in said)
        texts = "\n".join(message["content"] for message in said)
        for message in chat:
            if message["role"] == "tool":
                assert f"# result of {message['tool_call_id']}\n{message['content']}" in texts
                assert f" as {message['tool_call_id']}\n" in texts


def test_r10_10_any_transcript_is_valid() -> None:
    for seed in range(share(150)):
        play(seed)


@pytest.mark.soak
def test_r10_10_thousands_of_transcripts_are_valid() -> None:
    for seed in range(150, 150 + times(1500)):
        play(seed)


def play(seed: int) -> None:
    drawn = Random(seed)
    for number in range(steps := drawn.random.choice((2, 5, 12))):
        drawn.step()
        if drawn.tend() or number == steps - 1:
            check(drawn, seed)
