"""The delivery of calls while the model writes: seldom enough to cost little, early enough to start at once (R6.3)."""

from __future__ import annotations

import asyncio

from perdure.activities.requests import GATHERED, Deliverer, next_read
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
