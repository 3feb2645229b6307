"""Which runs a list means, as the query that visibility is asked."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from perdure.client.selection import Selection, read_since
from perdure.errors import RunError
from perdure.sessions.wire import session_id

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
ALL = "WorkflowType = 'Agent' AND ExecutionStatus != 'ContinuedAsNew'"


@pytest.mark.parametrize(
    ("selection", "query"),
    [
        (Selection(), ""),
        (Selection("it's \\ mine"), " AND PerdureAgent = 'it\\'s \\\\ mine'"),
        (
            Selection(status="refused"),
            " AND ExecutionStatus = 'Failed' AND PerdureStopReason = 'ModelRefused'",
        ),
        (Selection(status="cancelled"), " AND ExecutionStatus = 'Canceled'"),
        (Selection(since="2h"), " AND StartTime >= '2026-11-21T10:00:00+00:00'"),
        (Selection(sender="a", tenant="b"), " AND PerdureSender = 'a' AND PerdureTenant = 'b'"),
        (Selection(reason="deadline", waiting=True), " AND PerdureStopReason = 'deadline' AND PerdureWaiting > 0"),
        (
            Selection(query="A OR B", outermost=True),
            " AND (ParentWorkflowId IS NULL OR ParentWorkflowId STARTS_WITH 'session-') AND (A OR B)",
        ),
        (Selection("x" * 300), f" AND PerdureAgent = '{'x' * 200}'"),
    ],
)
def test_a_selection_is_a_query(selection: Selection, query: str) -> None:
    assert selection.text(NOW) == ALL + query


def test_a_run_of_a_session_is_outermost_and_one_that_a_run_starts_is_not() -> None:
    session = session_id("", "talk")
    starters = [None, session, f"{session}/1", f"{session}/1/1.0", "order-17/1.0"]
    assert [Selection(outermost=True).takes(each) for each in starters] == [True, True, False, False, False]
    assert all(Selection().takes(each) for each in starters)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("90min", "2026-11-21T10:30:00+00:00"),
        ("3d", "2026-11-18T12:00:00+00:00"),
        ("2026-11-01", "2026-11-01T00:00:00+00:00"),
        ("2026-11-01T08:00+02:00", "2026-11-01T06:00:00+00:00"),
    ],
)
def test_since_is_an_age_or_a_time(text: str, time: str) -> None:
    assert read_since(text, NOW).isoformat() == time


@pytest.mark.parametrize("text", ["", "soon", "-3d", "9" * 400 + "d", "3 months", "' OR 1=1"])
def test_what_is_no_time_is_said(text: str) -> None:
    with pytest.raises(RunError, match="is not a time"):
        read_since(text, NOW)


def test_what_is_no_status_is_said() -> None:
    with pytest.raises(RunError, match="is not one of running"):
        Selection(status="Running").text()
