"""The chain of an audit log (R24.4): a line that was changed, removed or moved is found, and an entry is one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.exceptions import ApplicationError

from perdure.activities.audit import append_lines, otlp_body
from perdure.approvals.decisions import digest
from perdure.errors import AuditError
from perdure.runs.audit import (
    AuditBatch,
    AuditEntry,
    AuditLine,
    AuditLog,
    AuditTrail,
    VerifiedChain,
    entry,
    refused_decision_data,
    verify_chain,
)
from perdure.values.json import Json, JsonObject
from perdure.values.limits import (
    MAX_AUDIT_BATCH,
    MAX_AUDIT_DATA,
    MAX_AUDITED_AT_ONCE,
    MAX_KEPT_AUDIT_KEYS,
    MAX_PAYLOAD,
)

AT = "2026-11-26T12:00:00.000+00:00"
ODD = ["x", "é", "\U0001f600", "\x01"]


def batch(*keys: str) -> AuditBatch:
    return AuditBatch(entries=[entry("decision", AT, key, {"by": "ann", "call": key}) for key in keys])


def log_of(count: int) -> list[AuditLine]:
    log = AuditLog()
    log.record(batch(*map(str, range(count))))
    return log.state.pending


def text_of(lines: list[AuditLine]) -> list[str]:
    return [line.text() for line in lines]


def test_an_entry_that_comes_again_is_one_line_also_in_the_next_execution() -> None:
    log = AuditLog()
    log.record(batch("a", "b"))
    log.record(batch("b", "c"))
    log.delivered(1)
    following = AuditLog(log.carried())
    following.record(batch("a", "d"))
    assert [line.entry.key for line in following.state.pending] == ["b", "c", "d"]
    assert verify_chain(text_of(following.state.pending)).last == 4


def test_the_keys_that_a_log_keeps_are_bounded() -> None:
    log = AuditLog()
    log.record(batch(*map(str, range(MAX_KEPT_AUDIT_KEYS + 5))))
    assert len(log.carried().keys) == MAX_KEPT_AUDIT_KEYS


@given(st.integers(2, 8), st.data())
def test_a_line_that_was_changed_removed_or_moved_is_found_with_its_number(count: int, data: st.DataObject) -> None:
    lines = text_of(log_of(count))
    chain = verify_chain(lines)
    assert (chain.first, chain.last) == (1, count)
    place = data.draw(st.integers(0, count - 2))
    changed, removed, moved = [list(lines) for _ in range(3)]
    changed[place] = changed[place].replace('"ann"', '"bob"')
    with pytest.raises(AuditError, match=rf"line {place + 1} \(number {place + 1}\) was changed"):
        verify_chain(changed)
    before = VerifiedChain(0, 0, "") if place else VerifiedChain(1, 0, "")
    del removed[place]
    with pytest.raises(AuditError, match=f"line {place + 1} has the number {place + 2}"):
        verify_chain(removed, before)
    moved[place], moved[place + 1] = moved[place + 1], moved[place]
    with pytest.raises(AuditError, match=f"line {place + 1} has the number {place + 2}"):
        verify_chain(moved, before)


def test_a_line_that_was_written_anew_with_its_own_digest_breaks_the_chain_behind_it() -> None:
    lines = log_of(3)
    forged = AuditLog()
    forged.record(batch("0", "other"))
    texts = text_of([lines[0], forged.state.pending[1], lines[2]])
    with pytest.raises(AuditError, match=r"line 3 \(number 3\) does not match the previous line"):
        verify_chain(texts)


def test_files_of_one_log_are_verified_one_after_the_other() -> None:
    texts = text_of(log_of(4))
    first = verify_chain(texts[:2])
    assert verify_chain(texts[2:], first) == verify_chain(texts)
    with pytest.raises(AuditError, match="line 1 has the number 4, and 3 is expected"):
        verify_chain(texts[3:], first)


@pytest.mark.parametrize("text", ["", "{}", "[1]", "no json", '{"number": 1'])
def test_a_line_of_something_else_is_named(text: str) -> None:
    with pytest.raises(AuditError, match="line 1 is not a line of an audit log"):
        verify_chain([text])


@given(cut=st.integers(0, 2_000))
def test_an_attempt_that_was_broken_off_anywhere_is_completed(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    lines = log_of(4)
    path = tmp_path_factory.mktemp("log") / "audit.jsonl"
    whole = "".join(f"{text}\n" for text in text_of(lines)).encode()
    path.write_bytes(whole[: min(cut, len(whole))])
    append_lines(path, lines)
    append_lines(path, lines[:2])
    assert path.read_bytes() == whole


def test_a_file_of_another_chain_is_not_written_to(tmp_path: Path) -> None:
    path, lines = tmp_path / "audit.jsonl", log_of(4)
    append_lines(path, lines[:1])
    before = path.read_bytes()
    with pytest.raises(ApplicationError, match="ends with line 1, which line 3 does not follow"):
        append_lines(path, lines[2:])
    path.write_bytes(before + b"torn")
    with pytest.raises(ApplicationError, match="part of a line"):
        append_lines(path, lines[1:])
    path.write_bytes(b"a log of another program\n")
    with pytest.raises(ApplicationError, match="not a line of an audit log"):
        append_lines(path, lines)


def test_lines_of_another_log_are_not_taken_for_those_that_the_file_has(tmp_path: Path) -> None:
    """An operator had ended the audit workflow: as many new decisions as the file had lines were dropped."""
    path, other = tmp_path / "audit.jsonl", AuditLog()
    lines = log_of(5)
    append_lines(path, lines)
    before = path.read_bytes()
    other.record(batch("other", "one more", "third"))
    for count in (1, 3):
        with pytest.raises(
            ApplicationError, match=f"has another log: its line {count} is not line {count} of this one"
        ):
            append_lines(path, other.state.pending[:count])
    append_lines(path, lines[1:3])  # the audit workflow was reset
    assert path.read_bytes() == before


def test_a_log_record_of_opentelemetry_holds_the_line() -> None:
    line = log_of(1)[0]
    record = otlp_body([line])["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]
    assert record["body"] == {"stringValue": line.text()}
    assert record["timeUnixNano"] == "1795694400000000000"


@pytest.mark.parametrize("sent", [b"\xff", {"call": b"x"}, {1: 2, "a": 3}, object(), None, float("nan")])
def test_a_refused_decision_of_any_shape_is_audited(sent: Any) -> None:
    found = refused_decision_data(sent, "it is not a decision")
    assert (found["reason"], len(str(found["changed"]))) == ("it is not a decision", 16)


@pytest.mark.parametrize("character", ODD)
def test_r18_6_an_entry_is_bounded_whatever_was_sent_and_says_what_is_missing(character: str) -> None:
    names: list[Json] = [character] * 150_000
    text = character * 5_000
    data: dict[str, Any] = {"call": "1.0", "endorse": names, "reason": text, "tool": text, "roles": [text] * 50}
    found = entry("decision", AT, "k", data).data
    assert len(json.dumps(found, ensure_ascii=False).encode()) <= MAX_AUDIT_DATA
    assert found["call"] == "1.0"
    written = json.dumps(names, ensure_ascii=False, separators=(",", ":"))
    assert found["endorse"].endswith(f" … ({len(written):,} characters, digest {digest(names)})")
    assert found["endorse"].startswith(written[:300])


@pytest.mark.parametrize("character", ODD)
def test_r18_2_a_batch_of_a_run_is_bounded_in_bytes_and_no_entry_is_lost(character: str) -> None:
    trail = AuditTrail(character * 1_000)
    trail.begin(is_wanted=True, execution="e" * 36, tenant=character * 5_000, session="")
    sent: JsonObject = dict.fromkeys(("call", "decision", "by"), character * 5_000)
    for _ in range(250):
        trail.add("refusal", AT, refused_decision_data(sent, character * 5_000))
    keys = []
    while trail.is_pending:
        batch = trail.take()
        assert len(batch.model_dump_json().encode()) <= MAX_AUDIT_BATCH + 100
        keys += [each.key for each in batch.entries]
    assert keys == [f"{character * 1_000}/{'e' * 36}/{number}" for number in range(1, 251)]


def test_entries_of_a_usual_run_go_at_once_also_if_each_is_as_large_as_it_can_be() -> None:
    trail = AuditTrail("r" * 300)
    trail.begin(is_wanted=True, execution="e" * 36, tenant="t" * 200, session="s" * 200)
    for _ in range(MAX_AUDITED_AT_ONCE):
        trail.add("decision", AT, {"by": "b" * 1_000, "endorse": ["path"] * 3_000})
    assert len(trail.take().entries) == MAX_AUDITED_AT_ONCE


def test_r18_2_lines_of_any_size_are_written_in_parts_that_one_activity_carries() -> None:
    log = AuditLog()
    sizes = [1_200_000, 1_200_000, 10, 10, 1_895_000, 2_000_000, 5]
    for number, size in enumerate(sizes):
        log.record(AuditBatch(entries=[AuditEntry(key=str(number), at=AT, action="decision", data={"a": "z" * size})]))
    texts: list[str] = []
    parts = []
    while lines := log.oldest():
        assert len(json.dumps([line.as_json() for line in lines])) <= MAX_PAYLOAD + 1_000
        parts.append(len(lines))
        texts += text_of(lines)
        log.delivered(len(lines))
    assert parts == [1, 3, 1, 2]
    assert verify_chain(texts).last == len(sizes)
    assert json.loads(texts[4])["entry"]["data"] == {"a": "z" * 1_895_000}
    assert " … (2,000,008 characters, digest " in json.loads(texts[5])["entry"]["data"]["cut"]


def test_an_entry_of_another_program_is_cut_as_a_whole() -> None:
    log = AuditLog()
    data = {f"k{number}": 1 for number in range(120_000)}
    texts = dict.fromkeys(("key", "at", "by", "tenant", "session", "run"), "x" * 100_000)
    log.record(AuditBatch.model_validate({"entries": [{**texts, "action": "undo", "data": data}]}))
    assert len(text_of(log.state.pending)[0]) < 20_000


def test_a_log_of_an_earlier_version_asks_only_where_its_task_would_have_failed() -> None:
    def fail() -> bool:
        raise AssertionError

    log = AuditLog(is_bounded=fail)
    log.record(batch(*map(str, range(MAX_AUDITED_AT_ONCE + 1))))
    assert len(log.oldest()) == MAX_AUDITED_AT_ONCE


def test_a_long_line_at_the_end_of_a_file_is_found(tmp_path: Path) -> None:
    path, log = tmp_path / "audit.jsonl", AuditLog()
    for key in "ab":
        log.record(AuditBatch(entries=[AuditEntry(key=key, at=AT, action="decision", data={"a": "z" * 1_890_000})]))
    append_lines(path, log.state.pending[:1])
    with path.open("ab") as file:
        file.write(text_of(log.state.pending)[1].encode()[:1_800_000])
    append_lines(path, log.state.pending[1:])
    assert verify_chain(path.read_text().splitlines()).last == 2
