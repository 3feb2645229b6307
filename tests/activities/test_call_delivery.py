"""The delivery of calls while the model writes: seldom enough to cost little, early enough to start at once (R6.3)."""

from __future__ import annotations

import asyncio

from perdure.activities.requests import GATHERED, Deliverer
from perdure.values.json import Json


async def test_r6_3_the_first_call_is_sent_at_once_and_later_ones_together() -> None:
    sent: list[tuple[int, list[Json]]] = []
    again = asyncio.Event()

    async def send(first: int, calls: list[Json]) -> None:
        sent.append((first, calls))
        if len(sent) == 2:
            again.set()

    clock = asyncio.get_running_loop().time
    async with Deliverer(send) as deliverer:
        begun = clock()
        deliverer.add(["a"])
        await asyncio.sleep(0)
        assert sent == [(0, ["a"])]
        deliverer.add(["b"])
        deliverer.add(["c"])
        await again.wait()
        assert clock() - begun > GATHERED - 0.01
        deliverer.add(["d"])
    assert sent == [(0, ["a"]), (1, ["b", "c"])], "the result carries what is left, and waits for nothing"
    assert (deliverer.attempted, deliverer.calls) == (3, ["a", "b", "c", "d"])


async def test_r6_7_what_closes_while_the_last_delivery_is_under_way_comes_with_the_result() -> None:
    sent: list[tuple[int, list[Json]]] = []
    let = asyncio.Event()

    async def send(first: int, calls: list[Json]) -> None:
        sent.append((first, calls))
        await let.wait()

    async with Deliverer(send) as deliverer:
        deliverer.add(["a"])
        await asyncio.sleep(0)
        deliverer.add(["b"])
        asyncio.get_running_loop().call_soon(let.set)
    assert sent == [(0, ["a"])]
