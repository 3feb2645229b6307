"""What a command prints of a run that it waits for."""

from __future__ import annotations

import io

from rich.console import Console

from perdure.approvals.requests import WaitingEntry
from perdure.cli._run_view import _lines, print_result, waiting_lines
from perdure.plan import Approval
from perdure.runs.wire import CallView, RunView


def test_a_request_is_a_sentence_on_one_line_and_the_commands_that_decide() -> None:
    given = {"call": "1.0", "reason": "euros is\nabove 100", "requestedAt": "2026-11-29T10:00:00+00:00", "digest": "d"}
    call = WaitingEntry.model_validate({**given, "tool": "refund", "params": {"euros": 120, "to": "ann@example.com"}})
    said = "1.0 waits for a person: refund 120 EUR to ann@example.com: euros is above 100"
    assert waiting_lines("r", call) == f"{said}\nperdure approve r 1.0\nperdure reject r 1.0"
    asks = WaitingEntry.model_validate({**given, "tool": "ask_person", "reason": "Really?", "question": True})
    assert waiting_lines("r", asks) == "1.0 waits for a person: Really?\nperdure answer r 1.0 TEXT"


def test_a_call_shows_characters_that_nobody_sees_as_the_request_does() -> None:
    params = {"to": "ann\u202egro.live@\u200bexample.com"}
    given = {
        "call": "1.0",
        "reason": "",
        "requestedAt": "2026-11-29T10:00:00+00:00",
        "digest": "d",
        "tool": "send",
        "params": params,
    }
    asked = waiting_lines("r", WaitingEntry.model_validate(given))
    call = CallView.model_validate(
        {
            "id": "1.0",
            "tool": "send",
            "params": params,
            "status": "done",
            "startedAt": "2026-01-01T00:00:00Z",
            "shown": "a\u2066b",
        }
    )
    call.hooked, call.hooked_by = ["to"], "only_ann"
    lines = [line.plain for line in _lines(call, "r", {})]
    assert lines[2] == "1.0 the hook only_ann has changed to"
    edited = Approval(requested_at="", decision="edit", by="bob")
    call.approval = Approval(requested_at="", decision="approve", by="ann", reason="fine", earlier=[edited])
    assert _lines(call, "r", {})[3].plain == "1.0 edit by bob; approve by ann (fine)"
    assert r"ann\u202egro.live@\u200bexample.com" in asked
    assert lines[0] == r'1.0 tool_call: send({"to": "ann\u202egro.live@\u200bexample.com"})'
    assert lines[1] == r"    result: a\u2066b"


def test_a_failed_call_counts_as_an_error_before_the_model_has_received_it() -> None:
    call = {"tool": "look", "params": {}, "error": {"code": "gone", "message": "no"}}
    calls = [
        CallView.model_validate(call | {"id": id, "status": status})
        for id, status in (("1.0", "failed"), ("1.1", "failed"), ("1.1[].0", "failed"), ("1.2", "done"))
    ]
    view = RunView(
        run_id="r",
        calls=calls,
        errors=[{"type": "error", "call": {"_tool": "look", "_id": "1.0"}, "error": {"message": "no"}}],
    )
    console = Console(file=io.StringIO(), width=100)
    print_result(console, view)
    assert "4 calls · errors: 2 ·" in console.file.getvalue()  # type: ignore[attr-defined]
