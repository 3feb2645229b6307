"""The delivery of calls while the model writes: seldom enough to cost little, early enough to start at once (R6.3)."""

from __future__ import annotations

import asyncio

from perdure.activities.requests import GATHERED, Deliverer, Send, crowding_factor, next_read
from perdure.values.json import Json


async def test_r6_3_the_first_call_is_sent_soon_and_later_ones_together() -> None:
    sent: list[tuple[int, list[Json]]] = []
    soon, again = asyncio.Event(), asyncio.Event()

    async def send(first: int, calls: list[Json]) -> None:
        sent.append((first, calls))
        (again if soon.is_set() else soon).set()

    clock = asyncio.get_running_loop().time
    async with Deliverer(send) as deliverer:
        begun = clock()
        deliverer.add(["a"])
        await soon.wait()
        assert sent == [(0, ["a"])]
        deliverer.add(["b"])
        deliverer.add(["c"])
        await again.wait()
        assert clock() - begun > GATHERED - 0.01
        deliverer.add(["d"])
    assert sent == [(0, ["a"]), (1, ["b", "c"])], "the result carries what is left, and waits for nothing"
    assert deliverer.calls == ["a", "b", "c", "d"]


async def test_r6_7_what_closes_while_the_last_delivery_is_under_way_comes_with_the_result() -> None:
    sent: list[tuple[int, list[Json]]] = []
    let, soon = asyncio.Event(), asyncio.Event()

    async def send(first: int, calls: list[Json]) -> None:
        sent.append((first, calls))
        soon.set()
        await let.wait()

    async with Deliverer(send) as deliverer:
        deliverer.add(["a"])
        await soon.wait()
        deliverer.add(["b"])
        asyncio.get_running_loop().call_soon(let.set)
    assert sent == [(0, ["a"])]


async def test_r6_3_calls_that_close_with_the_answer_are_not_sent_by_themselves() -> None:
    sent: list[tuple[int, list[Json]]] = []

    async def send(first: int, calls: list[Json]) -> None:
        sent.append((first, calls))

    async with Deliverer(send) as deliverer:
        deliverer.add(["a"])
    assert (sent, deliverer.calls) == ([], ["a"])


def test_r6_3_an_answer_is_read_seldom_the_longer_it_takes() -> None:
    pauses = [next_read(tenths / 10) for tenths in range(50)]
    assert pauses == sorted(pauses)
    assert all(pause <= 0.03 * tenths / 10 + 1e-9 for tenths, pause in enumerate(pauses))
    assert max(pauses) == 0.05


def test_r6_3_a_process_with_many_answers_reads_each_more_seldom() -> None:
    factors = [crowding_factor(answers) for answers in range(1, 200)]
    assert factors == sorted(factors)
    assert (factors[0], factors[10], max(factors)) == (1, 2, 3)
    assert [next_read(seconds, 11) for seconds in (0, 1, 9)] == [2 * next_read(seconds) for seconds in (0, 1, 9)]


def call(name: str) -> Json:
    return {"_tool": "look", "_outputPath": f"†state.{name}"}


async def test_r6_3_calls_that_read_nothing_wait_longer_for_each_other_than_a_call_that_reads_a_value() -> None:
    sent: list[tuple[str, list[Json]]] = []
    first, all_sent = asyncio.Event(), asyncio.Event()

    def sender(name: str) -> Send:
        async def send(_: int, calls: list[Json]) -> None:
            sent.append((name, calls))
            if len(sent) == 2:
                first.set()
            if len(sent) == 4:
                all_sent.set()

        return send

    a, b, c = (call(name) for name in "abc")
    reader: Json = {"_tool": "look", "at": "†state.a"}
    clock = asyncio.get_running_loop().time
    asked = clock() - 1
    async with Deliverer(sender("apart"), asked) as apart, Deliverer(sender("chain"), asked) as chain:
        apart.add([a])
        chain.add([a])
        await first.wait()
        begun = clock()
        apart.add([b])
        chain.add([b])
        apart.add([c])
        chain.add([reader])
        await all_sent.wait()
        assert clock() - begun > 0.45
    assert sent[2:] == [("chain", [b, reader]), ("apart", [b, c])]
