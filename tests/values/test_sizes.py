"""The sums: measuring, fitting, and what a task and a history may hold (section 18)."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.runs.views import fit_result
from perdure.runs.wire import RunResult
from perdure.values.json import JsonObject, dumps
from perdure.values.limits import HELD_BACK, HISTORY_BYTES, LEAST_RESULT, MAX_COMMANDS, MAX_PAYLOAD, MAX_SENT, QUICK
from perdure.values.references import UNKNOWN
from perdure.values.sizes import (
    LEAST,
    HistoryBudget,
    QuickCalls,
    Sizes,
    TaskBudget,
    allot_room,
    cut_to,
    first_fitting,
    history_full,
    preview,
)
from tests.cpu import takes_less

TEXTS = st.text(st.characters(codec="utf-8"), max_size=30) | st.integers(1, 4000).map(lambda n: '"ö\n' * n)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(TEXTS, inner, max_size=8),
    max_leaves=40,
)


def size(value: Any) -> int:
    return len(dumps(value).encode())


@given(VALUES)
def test_r18_1_a_size_is_what_json_has(value: Any) -> None:
    assert Sizes().of(value) == size(value)


@pytest.mark.parametrize(
    "value",
    [
        [[1], ["ä", None, -0.5]] * 60,
        [{"a\n": [n, {}], "b": "\ud800"} for n in range(120)],
        [["x" * 600] * 3] * 150,
        [{"k" * 600: 1}] * 150,
        [[0] * 17] * 150,
        ["y" * 500] * 5_000,
        [UNKNOWN, *range(200)],
    ],
)
def test_r18_1_a_list_of_many_is_measured_like_its_parts(value: list[Any]) -> None:
    assert Sizes().of(value) == 1 + sum(Sizes().of(each) + 1 for each in value)


def test_r18_5_the_largest_value_of_small_parts_is_measured_in_a_part_of_a_task() -> None:
    """One list after the other `[[1],[1],…` of 1.9 MB took 90 laps."""
    value = [[1] for _ in range(475_000)]
    assert Sizes().of(value) == 1_900_001
    assert takes_less(lambda: Sizes().of(value), 60)


def test_r18_1_a_value_is_measured_once() -> None:
    large: list[JsonObject] = [{"text": "x" * 100, "n": n} for n in range(15_000)]
    sizes = Sizes()
    whole = sizes.of(large)
    assert [sizes.of({"value": large, "n": n}) for n in range(500)] == [
        whole + len(f'{{"value":,"n":{n}}}') for n in range(500)
    ]
    assert takes_less(lambda: [sizes.of({"value": large, "n": n}) for n in range(500)], 20)


def test_r18_3_a_look_at_a_run_leaves_no_sizes_behind() -> None:
    sizes, large = Sizes(), {"text": "x" * 1000}
    sizes.of(large)
    before = len(sizes._known)
    for _ in range(10):
        assert (
            fit_result(RunResult(run_id="r", state={"copy": {"of": large}}), sizes=sizes).state["copy"]["of"] is large
        )
    assert len(sizes._known) == before


@given(VALUES, st.integers(LEAST, 3000))
def test_r18_3_anything_fits(value: Any, room: int) -> None:
    cut = cut_to(value, room)
    assert size(cut) <= room
    assert cut == value or size(value) > room


def test_r18_3_what_is_small_stays_whole_beside_what_is_large() -> None:
    cut = cut_to({"a": "small", "b": "x" * 100_000, "c": [1, 2, 3]}, 1000)
    assert (cut["a"], cut["c"]) == ("small", [1, 2, 3])
    assert cut["b"].endswith("… [cut: 100,002 bytes]")
    assert len(cut["b"]) > 850
    assert cut_to({str(n): "x" * 200 for n in range(100)}, 1500)["…"].endswith(" more")
    found: Any = cut_to(["x" * 200] * 100, 1500)
    assert found[-1].endswith(" more")


@given(VALUES, st.integers(2, 300))
def test_a_preview_is_the_beginning(value: Any, limit: int) -> None:
    import json

    text = json.dumps(value, ensure_ascii=False)
    shown = preview(value, limit)
    assert (
        shown == text
        if len(text) <= limit
        else (shown.endswith("…") and text.startswith(shown[:-1]) and len(shown) == limit)
    )


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=12), st.integers(100, 20_000))
def test_r18_3_room_is_given_to_what_matters_first(sizes: list[int], room: int) -> None:
    shares = allot_room(sizes, room)
    assert sum(shares) <= room
    assert all(share <= size for share, size in zip(shares, sizes, strict=True))
    assert shares == sizes or sum(shares) == room or sum(sizes) > room
    assert all(share > 0 for share, size in zip(shares, sizes, strict=True) if size)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2_000_000)), max_size=60))
def test_r18_2_no_task_sends_more_than_its_bound(wanted: list[tuple[int, int]]) -> None:
    sending, task, sent = TaskBudget(), 0, {0: 0}
    for step, each in wanted:
        task += step
        if sending.take(task, each):
            sent[task] = sent.get(task, 0) + each
        else:
            assert sending.take(task + 1, each), "what does not fit goes with the next task"
            task += 1
            sent[task] = each
    assert max(sent.values()) <= MAX_SENT


@given(st.lists(st.tuples(st.floats(0.0, 1.2), st.integers(0, 80), st.integers(0, 80)), max_size=40))
def test_r18_2_as_many_quick_calls_start_as_come_back(tasks: list[tuple[float, int, int]]) -> None:
    """Tasks some seconds apart, in each of which calls come back and others want to start."""
    sending, quick, now, waiting = TaskBudget(), QuickCalls(), 0.0, 0
    begun: dict[str, float] = {}
    for task, (pause, back, wanted) in enumerate(tasks):
        now += pause
        waiting += wanted
        for call in list(begun)[:back]:
            quick.end(call)
            del begun[call]
        while waiting and sending.take_call(task, 100, quick.count(now)) is not None:
            waiting -= 1
            begun[f"{task}.{waiting}"] = now
            quick.begin(f"{task}.{waiting}", now)
        assert sum(now < since + QUICK for since in begun.values()) <= MAX_COMMANDS
    assert sending.take(len(tasks), 0, quick.count(now + QUICK)), "what takes long holds nobody up"


@given(st.lists(st.integers(0, 1_900_000), min_size=1, max_size=150), st.integers(0, HISTORY_BYTES), st.randoms())
def test_r18_4_no_history_is_filled_by_its_results(results: list[int], used: int, dice: Random) -> None:
    """Any results, coming in whatever order: no history above its limit, nobody waits for ever, few on their way at once."""
    room, begun = HistoryBudget(), used
    size = {str(n): result for n, result in enumerate(results)}
    free = {call: room.free(call, used) for call in size}
    for call, each in size.items():
        if each > free[call]:
            room.claim(call, each)
    room.decide(used)
    left = [call for call in size if size[call] <= free[call] or room.granted(call) is not False]
    while left:
        assert len(room.coming) <= 1 or sum(room.coming.values()) <= HELD_BACK
        able = [call for call in left if size[call] <= free[call] or room.granted(call)]
        call = dice.choice(able)
        left.remove(call)
        used += size[call]
        room.settle(call)
        room.decide(used)
        left = [call for call in left if size[call] <= free[call] or room.granted(call) is not False]
    assert min(free.values()) >= LEAST_RESULT
    assert used <= max(HISTORY_BYTES * 0.92, begun) + LEAST_RESULT * len(results)


@given(
    st.lists(st.integers(1, 1_800_000) | st.integers(1, 40_000), min_size=1, max_size=8),
    st.integers(1, 300),
    st.integers(0, 2**32),
)
def test_r18_2_any_mix_of_values_and_readers_is_sent_in_bounds_and_runs_once(
    values: list[int], readers: int, seed: int
) -> None:
    """Tasks in which calls become ready in whatever order, and activities that ask for what was not sent with them."""
    dice = Random(seed)
    sizes = [100 + sum(dice.choices(values, k=dice.randint(0, 3))) for _ in range(readers)]
    sizes = [size for size in sizes if size <= MAX_PAYLOAD]  # others are an error of the call
    sending, task, sent = TaskBudget(), 0, Counter[int]()
    commands: Counter[int] = Counter()
    given: Counter[int] = Counter()
    asking: list[int] = []
    ready, turn = list(range(len(sizes))), list[int]()
    while ready or turn:
        task += 1
        begun = [ready.pop() for _ in range(dice.randint(0, len(ready)))]
        for call in begun:
            inline = sending.take_call(task, sizes[call])
            if inline is None:
                turn.append(call)
                continue
            commands[task] += 1
            sent[task] += sizes[call] if inline else 0
            if inline:
                given[call] += 1
            else:
                asking.append(call)
        while turn and sending.take(task, 0):
            asking.append(turn.pop(0))
            commands[task] += 1
        if dice.random() < 0.5:
            asking = asked(asking, sizes, given)
    while asking:
        asking = asked(asking, sizes, given)
    assert given == Counter(range(len(sizes)))
    assert max(sent.values(), default=0) <= MAX_SENT
    assert max(commands.values(), default=0) <= MAX_COMMANDS


def asked(asking: list[int], sizes: list[int], given: Counter[int]) -> list[int]:
    """One query of the activities that ask: those that were not told are left."""
    told = first_fitting([sizes[call] for call in asking], MAX_PAYLOAD)
    assert sum(sizes[call] for call in asking[:told]) <= MAX_PAYLOAD
    given.update(asking[:told])
    return asking[told:]


def test_r18_4_what_was_let_in_stays_so_unless_it_has_grown() -> None:
    room = HistoryBudget(room=3_000_000)
    for call in "ab":
        room.free(call, 0)
    room.claim("a", 900_000)
    assert (room.decide(0), room.granted("a"), room.granted("b")) == (["a"], True, None)
    room.claim("a", 800_000)
    assert room.decide(0) == []
    room.claim("b", 900_000)
    assert (room.decide(0), room.turns) == ([], True)
    room.claim("a", 2_900_000)
    assert (room.decide(0), room.granted("a"), room.granted("b")) == (["b", "a"], False, True)
    room.settle("b")
    room.claim("b", 900_000)
    assert (room.decide(0), room.granted("b")) == ([], False)


def test_r18_4_a_history_near_its_limit_says_so() -> None:
    assert history_full(4000, 4_000_000) is None
    assert "40,000,000 bytes; the limit is 50,000,000 bytes" in str(history_full(10, 40_000_000))
    assert "41,000 events; the limit is 51,200" in str(history_full(41_000, 10))
