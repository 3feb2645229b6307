"""A result that is too large is cut where it hurts least (R6.9)."""

from __future__ import annotations

from perdure.run.fitting import fit
from perdure.run.wire import CallView, RunResult
from perdure.values.jsons import dumps


def result(size: int) -> RunResult:
    call = CallView(id="1.0", tool="t", params={"text": "x" * size, "n": 1}, status="done")
    return RunResult(run_id="r", calls=[call], state={"large": "y" * size, "small": 1, "list": list(range(size // 10))})


def test_what_fits_is_left_alone() -> None:
    whole = result(1000)
    assert fit(whole, 10_000) is whole


def test_parameters_are_cut_first_then_the_largest_of_the_state() -> None:
    cut = fit(result(50_000), 90_000)
    assert cut.calls[0].params["n"] == 1
    assert "characters" in cut.calls[0].params["text"]
    assert cut.state["large"] == "y" * 50_000
    smaller = fit(result(50_000), 40_000)
    assert "characters" in smaller.state["large"]
    assert smaller.state["small"] == 1
    assert len(dumps(smaller.as_json())) <= 40_000
