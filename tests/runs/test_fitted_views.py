"""Result, failure and every view of a run fit into a payload, whatever has grown in it (R18.3)."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.approvals.requests import WaitingView
from perdure.models.requests import RequestView
from perdure.runs.views import fit_result, fit_waiting
from perdure.runs.wire import CallView, RunResult, RunView
from perdure.values.limits import MAX_PAYLOAD
from perdure.values.sizes import Sizes, cut_to
from tests.cpu import takes_less
from tests.soak import share


def result(size: int) -> RunResult:
    call = CallView(id="1.0", tool="t", params={"text": "x" * size, "n": 1}, status="done")
    return RunResult(run_id="r", calls=[call], state={"large": "y" * size, "small": 1, "list": list(range(size // 10))})


def size(view: RunResult) -> int:
    return len(view.model_dump_json(by_alias=True).encode())


def test_what_fits_is_left_alone() -> None:
    whole = result(1000)
    assert fit_result(whole, 10_000) is whole


def test_parameters_are_cut_first_then_the_largest_of_the_state() -> None:
    cut = fit_result(result(50_000), 90_000)
    assert cut.calls[0].params["n"] == 1
    assert cut.calls[0].params["text"].endswith("… [cut: 50,002 bytes]")
    assert cut.state["large"] == "y" * 50_000
    smaller = fit_result(result(50_000), 40_000)
    assert smaller.state["large"].endswith("… [cut: 50,002 bytes]")
    assert smaller.state["small"] == 1
    assert size(smaller) <= 40_000
    assert smaller.cut == ["state has 73,921 bytes, shown in part; all: perdure show r --value state"]


SIZES = st.integers(0, 300) | st.integers(0, 30_000)


@st.composite
def views(draw: st.DrawFn) -> RunView:
    """Runs in which anything may have grown."""

    def some(most: int, make: Any) -> list[Any]:
        count, each = draw(st.integers(0, most)), draw(SIZES)
        return [make(n, "é" * each) for n in range(min(count, 400_000 // (each + 40)))]

    return RunView(
        run_id="r",
        output=draw(st.none() | SIZES.map(lambda n: {"wired": ["x" * n] * 3})),
        errors=some(
            300, lambda _, text: {"type": "error", "call": {"_tool": text}, "error": {"code": "c", "message": text}}
        ),
        calls=some(
            2000,
            lambda n, text: CallView(
                id=f"1.{n}", tool="t", params={"p": text}, status="failed", error={"message": text}
            ),
        ),
        state={f"k{n}": text for n, text in enumerate(some(500, lambda _, text: text))},
        waiting=some(
            500,
            lambda n, text: WaitingView(
                call=f"1.{n}", agent="a", tool="t", params={"p": text}, reason="r", requested_at="", digest="d"
            ),
        ),
        refusals=some(20, lambda _, text: {"time": "", "decision": text, "problem": text}),
        log=some(300, lambda n, text: RequestView(number=n, model="m", reason=text[:300], text=text[:300])),
        reads=dict(some(500, lambda n, text: (f"1.{n}", [text]))),
        writes=dict(some(500, lambda n, text: (f"1.{n}", text))),
        edges=some(500, lambda n, text: ("1.0", f"1.{n}", text)),
    )


@settings(max_examples=share(60))
@given(views(), st.integers(60_000, 300_000))
def test_r18_3_any_run_fits_and_says_what_was_cut(view: RunView, limit: int) -> None:
    fitted = fit_result(view, limit)
    assert size(fitted) <= limit
    assert (fitted is view) or (fitted.usage, fitted.run_id, fitted.status) == (view.usage, view.run_id, view.status)
    shown = fit_result(view.result(), limit)
    assert size(shown) <= limit
    for name in ("errors", "calls"):
        if len(getattr(shown, name)) < len(getattr(view, name)):
            assert any(line.startswith(f"{name} have ") and "the last" in line for line in shown.cut)


def test_r18_3_twelve_thousand_calls_and_an_output_of_two_values() -> None:
    calls = [
        CallView(id=f"{n // 500}.{n % 500}", tool="t", params={"p": "x" * 400}, status="done", shown="x" * 160)
        for n in range(12_000)
    ]
    value = "x" * 1_200_000
    view = RunView(run_id="r", output=[value, value], calls=calls, state={"a": value, "b": value})
    fitted = fit_result(view)
    assert takes_less(lambda: fit_result(view), 200)
    assert size(fitted) <= MAX_PAYLOAD
    assert len(fitted.calls) > 100
    assert fitted.calls[-1].id == calls[-1].id


def test_r18_3_three_hundred_calls_of_ten_kilobytes_wait() -> None:
    waiting = [
        WaitingView(
            call=f"1.{n}",
            agent="a",
            tool="t",
            params={"text": "x" * 10_000, "n": n},
            reason="r",
            requested_at="",
            digest="d",
        )
        for n in range(300)
    ]
    shown = fit_waiting(waiting)
    assert sum(len(view.model_dump_json(by_alias=True)) for view in shown) <= MAX_PAYLOAD
    assert [view.params["n"] for view in shown] == list(range(300))
    assert {view.cut for view in shown} == {True}
    assert fit_waiting(waiting[:100]) == waiting[:100]


@settings(max_examples=share(50))
@given(st.integers(1, 4000), SIZES, st.text(max_size=200), st.integers(20_000, 300_000))
def test_r18_3_whatever_waits_is_named_as_far_as_there_is_room(count: int, each: int, name: str, limit: int) -> None:
    waiting = [
        WaitingView(
            call=f"1.{n}",
            agent=name,
            tool=name,
            params={"p": "é" * each},
            items=["x" * each],
            runs={name: name},
            reason=name,
            requested_at="2026-01-01T00:00:00.000+00:00",
            digest="d" * 16,
        )
        for n in range(min(count, 400_000 // (each + 40)))
    ]
    shown = fit_waiting(waiting, limit)
    assert sum(len(view.model_dump_json(by_alias=True).encode()) + 1 for view in shown) <= limit + 2
    assert [view.call for view in shown] == [view.call for view in waiting[: len(shown)]]
    assert sum(view.more for view in shown) == len(waiting) - len(shown)
    assert shown[-1].more == len(waiting) - len(shown)


def test_r18_3_ten_thousand_offers_are_told_part_by_part() -> None:
    waiting = [
        WaitingView(
            call=f"1.{n}", agent="a", tool="t", params={"p": "x" * 400}, reason="r", requested_at="", digest="d"
        )
        for n in range(10_000)
    ]
    told: list[str] = []
    more = True
    while more:
        shown = fit_waiting(waiting[len(told) :])
        told += [view.call for view in shown]
        more = shown[-1].more > 0
    assert told == [view.call for view in waiting]


def test_r18_5_a_list_of_many_numbers_is_cut_by_its_beginning() -> None:
    class Counting(Sizes):
        asked = 0

        def of(self, value: Any) -> int:
            Counting.asked += 1
            return super().of(value)

    values: dict[str, Any] = {"list": list(range(400_000)), "object": {str(n): n for n in range(100_000)}}
    cut = cut_to(values, 1_000_000, Counting())
    assert Counting.asked < 300_000, "each part is measured once, and those that are shown once more"
    assert cut["list"][:3] == [0, 1, 2]
    assert cut["list"][-1] == "… 395000 more"
    assert cut["object"]["…"] == "95000 more"


def test_what_is_kept_of_a_list_is_said_as_it_is() -> None:
    view = RunView(run_id="r", output=["x" * 90] * 1000)
    assert fit_result(view, 60_000).output[0] == "x" * 90
    assert fit_result(view, 60_000).cut == [
        "output has 93,001 bytes, shown in part; all: perdure show r --value output"
    ]
