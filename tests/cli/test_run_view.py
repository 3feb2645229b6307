"""What a command prints of a run that it waits for."""

from __future__ import annotations

from perdure.approvals.requests import WaitingEntry
from perdure.cli._run_view import waiting_lines


def test_a_request_is_a_sentence_on_one_line_and_the_commands_that_decide() -> None:
    given = {"call": "1.0", "reason": "euros is\nabove 100", "requestedAt": "", "digest": "d"}
    call = WaitingEntry.model_validate({**given, "tool": "refund", "params": {"euros": 120, "to": "ann@example.com"}})
    said = "perdure: 1.0 waits for a person: refund 120 EUR to ann@example.com: euros is above 100"
    assert waiting_lines("r", call) == f"{said}\nperdure approve r 1.0\nperdure reject r 1.0"
    asks = WaitingEntry.model_validate({**given, "tool": "ask_person", "reason": "Really?", "question": True})
    assert waiting_lines("r", asks) == "perdure: 1.0 waits for a person: Really?\nperdure answer r 1.0 TEXT"
