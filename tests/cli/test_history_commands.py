"""What the commands about recorded runs print."""

from __future__ import annotations

from perdure.cli._history_commands import _run_lines
from perdure.runs.what_if import CallNote, RunReport


def test_a_difference_has_both_its_lines_or_a_note_alone() -> None:
    note = CallNote(call="1.1", tool="pay", reason="it would be 12; the limit is 10")
    was, asked = '- 1.1 pay {"euros":12} done', '+ 1.1 pay {"euros":12} done, asked'
    refused = '+ 1.1 pay {"euros":12} invalid: it would be 12'
    run = RunReport(run_id="a-1", approvals_added=[note], differences=[was, asked])
    assert [line for line, _ in _run_lines(run)] == ["asks about 1.1 pay: it would be 12; the limit is 10"]
    run = RunReport(run_id="a-1", refused=[note], differences=[was, refused])
    assert [line for line, _ in _run_lines(run)] == ["refuses 1.1 pay: it would be 12; the limit is 10", was, refused]
