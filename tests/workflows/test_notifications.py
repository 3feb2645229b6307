"""People are informed by routes, once, beside the run; and the end of a run is reported (R19.5, R19.8)."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from standardwebhooks import Webhook
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Notification, Run, notification_route, refuse, tool
from perdure.cli._approval_commands import _panel
from perdure.client.histories import execution_histories, replay_history
from perdure.errors import RunError
from perdure.gateway.api import api
from perdure.hosting.connection import data_converter
from perdure.hosting.settings import Settings
from perdure.runs.notifications import NotificationResult, NotificationView, notification_routes_of, webhook_id
from perdure.testing import approve
from perdure.values.limits import MAX_NOTIFIED_AT_ONCE
from tests.gateway.support import gateway
from tests.support import agent, check_replays, harness, impatient, perdure, registry, serving
from tests.timeouts import HANG
from tests.workflows.test_resets import reset, task_before_decision, temporal, until_asked

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
DONE = {"output": {"ok": True}}
tiny_server = impatient(20)


@tool(dangerous=True)
async def refund(euros: float, to: str) -> str:
    """Refund money."""
    return f"refunded {euros} to {to}"


ASKED: dict[str, Any] = {"calls": [{"_tool": "refund", "euros": 120, "to": "ann@example.com"}], "output": None}


def shop(max_requests: int = 20, **notify: Any) -> Agent[Any]:
    known: Any = notify
    return Agent("shop", instructions="Refund.", tools=[refund], notify=known, max_requests=max_requests)


class Pager:
    """A route's function that keeps what it is given. `answers`: what it does with the first of them."""

    def __init__(self, *answers: Any) -> None:
        self.taken: list[Notification] = []
        self.tried: list[str] = []
        self._answers = list(answers)

        @notification_route("ops")
        @notification_route("boss")
        async def page(notification: Notification) -> Any:
            self.tried.append(notification.key)
            answer = self._answers.pop(0) if self._answers else None
            if isinstance(answer, Exception):
                raise answer
            if answer is None:
                self.taken.append(notification)
            return answer

        self.route = page

    @property
    def kinds(self) -> list[tuple[str, str]]:
        return [(each.kind, each.route) for each in self.taken]


def outcomes(views: list[NotificationView]) -> list[tuple[str, str, str]]:
    return [(view.kind, route.route, route.status) for view in views for route in view.routes]


async def test_a_person_is_informed_of_a_request_with_a_sentence_and_a_link(
    run_locally: Callable[..., Any],
) -> None:
    pager = Pager()
    options: dict[str, Any] = {"routes": [pager.route], "pages_url": "https://agents.example.com/"}
    agent = shop(approval_requested=["ops", "boss:night"])
    async with run_locally(agent, model=[ASKED, DONE], people=[approve()], **options) as local:
        run = await local.perdure.start(agent, sender="ann", id="shop-1")
        view = await run.wait()
        events = [(each.phase, each.data) async for each in run.events(topics=["notification"])]
    assert view.status == "completed", view.error
    one, two = sorted(pager.taken, key=lambda each: each.route, reverse=True)
    assert one.text == (
        "The agent 'shop', for ann, asks ops and boss:night to decide: "
        "refund 120 EUR to ann@example.com: refund is dangerous"
    )
    assert one.link == "https://agents.example.com/inbox/?run=shop-1&call=1.0"
    assert one.command == "perdure approve shop-1 1.0"
    assert (one.key, one.kind, one.call, one.tool) == (two.key, "approval_requested", "1.0", "refund")
    assert one.key.startswith("shop-1/1.0:")
    assert one.key.endswith("/approval_requested/1")
    assert (two.route, two.address, two.sender, two.attempt) == ("boss:night", "night", "ann", 1)
    delivered = [("approval_requested", "ops", "delivered"), ("approval_requested", "boss:night", "delivered")]
    assert outcomes(view.notifications) == delivered
    noted = [(phase, data["route"], data.get("status")) for phase, data in events]
    assert noted[:2] == [("start", "ops", None), ("start", "boss:night", None)]
    assert sorted(noted[2:]) == [("end", "boss:night", "delivered"), ("end", "ops", "delivered")]


async def test_a_reminder_and_somebody_else_come_after_a_time_and_none_after_the_decision(
    run_locally: Callable[..., Any],
) -> None:
    steps = [
        {"after": 7200, "routes": ["boss"]},
        {"after": 3600, "routes": ["ops"]},
        {"after": 360_000, "routes": ["boss"]},
    ]
    pager = Pager()
    agent = shop(approval_requested=["ops"], approval_waiting=steps)
    people = [approve(after="3h")]
    async with run_locally(agent, model=[ASKED, DONE], people=people, routes=[pager.route]) as local:
        view = await local.run()
    assert view.status == "completed"
    assert pager.kinds == [("approval_requested", "ops"), ("approval_waiting", "ops"), ("approval_waiting", "boss")]
    assert [each.number for each in pager.taken] == [1, 1, 2]
    assert "asks boss to decide, and has waited for 2 h: refund 120 EUR" in pager.taken[2].text
    assert len({each.key for each in pager.taken}) == 3


async def test_the_inbox_has_the_routes_by_which_people_were_informed(run_locally: Callable[..., Any]) -> None:
    pager = Pager(refuse("nobody is on duty"))
    agent = shop(approval_requested=["ops", "boss"])
    async with run_locally(agent, model=[ASKED, DONE], routes=[pager.route]) as local:
        run = await local.perdure.start(agent)
        left = 2
        async for event in run.events(topics=["notification"]):
            left -= event.phase == "end"
            if not left:
                break
        (offer,) = await run.waiting()
        await run.approve("1.0")
        await run.result()
    assert sorted(each.route for each in offer.informed) == ["boss", "ops"]
    assert sorted(each.status for each in offer.informed) == ["delivered", "refused"]
    assert all(each.at >= offer.requested_at for each in offer.informed)
    refused = next(each for each in offer.informed if each.status == "refused")
    assert refused.words == f"{refused.route} (refused) at {refused.at[:16].replace('T', ' ')} UTC"
    console = Console(file=io.StringIO(), width=200)
    console.print(_panel(SimpleNamespace(run_id=run.id, request=offer)))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"informed: {', '.join(each.words for each in offer.informed)}" in shown


async def test_a_route_that_fails_is_tried_again_under_the_same_key_and_the_run_does_not_wait(
    run_locally: Callable[..., Any],
) -> None:
    pager = Pager(ConnectionError("down"), ConnectionError("down"))
    agent = shop(approval_requested=["ops"])
    async with run_locally(agent, model=[ASKED, DONE], people=[approve(after=60)], routes=[pager.route]) as local:
        view = await local.run()
    assert pager.tried == [pager.tried[0]] * 3
    assert pager.taken[0].attempt == 3
    assert outcomes(view.notifications) == [("approval_requested", "ops", "delivered")]


async def test_what_a_route_refuses_or_never_takes_fails_no_run(run_locally: Callable[..., Any]) -> None:
    pager = Pager(refuse("nobody is on duty"), *[ConnectionError("down")] * 12)
    agent = shop(approval_requested=["ops"], approval_waiting=[{"after": 60, "routes": ["ops"]}])
    async with run_locally(agent, model=[ASKED, DONE], people=[approve(after="2h")], routes=[pager.route]) as local:
        view = await local.run()
    assert view.status == "completed"
    found = [(route.status, route.why) for each in view.notifications for route in each.routes]
    assert found == [("refused", "nobody is on duty"), ("unknown", "down")]
    assert len(pager.tried) == 13


async def test_a_route_that_hangs_does_not_hold_up_the_end_of_a_run(run_locally: Callable[..., Any]) -> None:
    gate = asyncio.Event()

    @notification_route("ops")
    async def hangs(notification: Notification) -> None:
        del notification
        await gate.wait()

    async with run_locally(shop(run_ended=["ops"]), model=[DONE], routes=[hangs]) as local:
        view = await local.run()
        gate.set()
    assert view.status == "completed"
    assert outcomes(view.notifications) == [("run_ended", "ops", "sending")]


async def test_a_message_to_a_run_with_a_long_history_drops_no_notification_that_waits_for_its_turn(
    tiny_server: WorkflowEnvironment,
) -> None:
    """Where no calls waited, the run would continue as new."""
    came, opens = list[str | None](), asyncio.Event()

    @notification_route("ops")
    async def slow(notification: Notification) -> None:
        await opens.wait()
        came.append(notification.call)

    found = registry([refund])
    for route in notification_routes_of(slow):
        found.notification_routes.add(route)
    waiting = [f"1.{n}" for n in range(MAX_NOTIFIED_AT_ONCE + 2)]
    asked = {"calls": [{"_tool": "refund", "euros": n, "to": "ann"} for n in range(len(waiting))], "output": None}
    script = [asked, {"calls": [{"_tool": "keep", "calls": waiting}], "output": None}, DONE]
    async with harness(tiny_server.client, [], script, registry=found) as it, asyncio.timeout(HANG):
        handle = await it.start(agent("refund", config={"notify": {"approval_requested": ["ops"]}}))
        run = Run(it.client, handle.id)
        await it.until_waiting(handle.id, *waiting)
        await run.steer("Go on.", by="ann")
        async for view in run.views():
            if len(view.log) == 2 and view.log[1].status == "done":
                break
        opens.set()
        async for view in run.views():
            if [each[2] for each in outcomes(view.notifications)] == ["delivered"] * len(waiting):
                break
        await asyncio.gather(*(run.approve(each) for each in waiting))
        await handle.result()
        async for history in execution_histories(it.client, handle.id):
            await check_replays(history)
    assert sorted(map(str, came)) == sorted(waiting)


async def test_the_outcome_of_a_route_does_not_wait_for_another_that_hangs(
    dev_server: WorkflowEnvironment,
) -> None:
    pager, hangs = Pager(), asyncio.Event()

    @notification_route("deaf")
    async def deaf(_: Notification) -> None:
        await hangs.wait()

    found = registry([refund])
    for route in (*notification_routes_of(pager.route), *notification_routes_of(deaf)):
        found.notification_routes.add(route)
    notify = {"approval_requested": ["deaf", "ops"], "run_ended": ["ops", "deaf"]}
    async with harness(dev_server.client, [], [ASKED, DONE], registry=found) as it, asyncio.timeout(HANG):
        handle = await it.start(agent("refund", config={"notify": notify}))
        run = Run(it.client, handle.id)
        async for view in run.views():
            if ("approval_requested", "ops", "delivered") in outcomes(view.notifications):
                break
        (request,) = await run.waiting()
        await run.approve("1.0")
        await handle.result()
        while True:
            view = await it.view(handle.id)
            if ("run_ended", "ops", "delivered") in outcomes(view.notifications):
                break
            await asyncio.sleep(0.1)
        hangs.set()
    assert [(each.route, each.status) for each in request.informed] == [("deaf", "sending"), ("ops", "delivered")]
    assert outcomes(view.notifications) == [
        ("approval_requested", "deaf", "sending"),
        ("approval_requested", "ops", "delivered"),
        ("run_ended", "ops", "delivered"),
        ("run_ended", "deaf", "sending"),
    ]


async def test_the_end_of_a_run_informs_each_route_once(run_locally: Callable[..., Any]) -> None:
    pager = Pager()
    agent = shop(run_failed=["ops"], run_ended=["ops", "boss"])
    async with run_locally(agent, model=lambda _: DONE, routes=[pager.route]) as local:
        view = await local.run()
        assert sorted(pager.kinds) == [("run_ended", "boss"), ("run_ended", "ops")]
        assert pager.taken[0].text == (
            f"The agent 'shop' has completed the run '{view.run_id}'. It cost ${view.usage.cost:.4f}."
        )
        assert (pager.taken[0].status, pager.taken[0].output) == ("completed", {"ok": True})
        assert outcomes(view.notifications) == [("run_ended", "ops", "delivered"), ("run_ended", "boss", "delivered")]
    pager = Pager()
    failing = shop(max_requests=1, run_failed=["ops"], run_ended=["ops", "boss"])
    async with run_locally(failing, model=[{"output": None}], routes=[pager.route]) as local:
        view = await (await local.start()).wait()
    assert view.status == "failed"
    assert sorted(pager.kinds) == [("run_ended", "boss"), ("run_failed", "ops")]
    assert view.error in pager.taken[0].text


async def test_a_budget_that_is_nearly_used_is_noted_once(run_locally: Callable[..., Any]) -> None:
    pager = Pager()
    look = {"calls": [{"_tool": "refund", "euros": 1, "to": "x"}]}
    agent = Agent(
        "shop",
        tools=[refund],
        approval={"ask": "never"},
        token_budget=100_000,
        notify={"budget_nearly_used": ["ops"], "budget_share": 0.001},
    )
    async with run_locally(
        agent, model=[look, look | {"calls": [{"_tool": "refund", "euros": 2, "to": "x"}]}, DONE], routes=[pager.route]
    ) as local:
        await local.run()
    assert pager.kinds == [("budget_nearly_used", "ops")]
    assert "has nearly used its budget" in pager.taken[0].text
    assert " of 100,000 tokens (" in pager.taken[0].text


async def test_a_delegates_request_informs_once_by_the_routes_above_or_its_own(run_locally: Callable[..., Any]) -> None:
    pager = Pager()

    def turn(asked: Any) -> dict[str, Any]:
        below = asked.run_id.partition("/")[2]
        if not below:
            calls = [{"_tool": "helper", "request": "a"}, {"_tool": "chief", "request": "b"}]
            return {"calls": calls, "output": {"ok": True}}
        return {"calls": ASKED["calls"], "output": {"ok": True}}

    helper = Agent("helper", tools=[refund], description="Helps.")
    chief = Agent(
        "chief", tools=[refund], description="Leads.", notify={"approval_requested": ["boss"], "run_ended": ["boss"]}
    )
    agent = Agent("shop", tools=[helper, chief], notify={"approval_requested": ["ops"], "run_ended": ["ops"]})
    options: dict[str, Any] = {"people": [approve(every=True)], "routes": [pager.route]}
    async with run_locally(agent, model=turn, **options) as local:
        await local.run()
    found = sorted((each.kind, each.route, each.agent, tuple(each.above)) for each in pager.taken)
    assert found == [
        ("approval_requested", "boss", "chief", ("shop",)),
        ("approval_requested", "ops", "helper", ("shop",)),
        ("run_ended", "ops", "shop", ()),
    ]


async def test_calls_of_a_loop_inform_one_by_one_and_iterations_of_a_delegate_too(
    run_locally: Callable[..., Any],
) -> None:
    pager = Pager()

    def turn(asked: Any) -> dict[str, Any]:
        if asked.run_id.partition("/")[2]:
            return {"calls": ASKED["calls"], "output": {"ok": True}}
        looped = {"_tool": "refund", "_each": ["a", "b"], "euros": 1, "to": "†item"}
        return {"calls": [looped, {"_tool": "helper", "_each": ["c", "d"], "request": "†item"}], "output": {"ok": True}}

    helper = Agent("helper", tools=[refund], description="Helps.")
    agent = Agent("shop", tools=[refund, helper], notify={"approval_requested": ["ops"]})
    options: dict[str, Any] = {"people": [approve(every=True)], "routes": [pager.route]}
    async with run_locally(agent, model=turn, **options) as local:
        await local.run()
    asked = sorted((each.agent, each.run_id.partition("/")[2], each.call) for each in pager.taken)
    assert asked == [
        ("helper", "1.1[0]", "1.0"),
        ("helper", "1.1[1]", "1.0"),
        ("shop", "", "1.0[0]"),
        ("shop", "", "1.0[1]"),
    ]
    assert len({each.key for each in pager.taken}) == len(pager.taken)


async def test_a_run_in_a_session_informs(run_locally: Callable[..., Any]) -> None:
    pager = Pager()
    agent = shop(approval_requested=["ops"], run_ended=["boss"])
    async with run_locally(agent, model=[ASKED, DONE], people=[approve()], routes=[pager.route]) as local:
        session = local.session("ann")
        receipt = await session.send("refund it", sender="ann")
        await session.reply(receipt)
        await local.settle()
    assert [(each.kind, each.session, each.sender) for each in pager.taken] == [
        ("approval_requested", "ann", "ann"),
        ("run_ended", "ann", "ann"),
    ]
    assert pager.taken[0].run_id == receipt.run_id


async def test_a_route_that_the_worker_lacks_is_one_line_at_the_start(run_locally: Callable[..., Any]) -> None:
    pager = Pager()
    agent = shop(approval_waiting=[{"after": 5, "routes": ["opps"]}], run_failed=["boss"])
    async with run_locally(agent, model=lambda _: DONE, routes=[pager.route]) as local:
        view = await (await local.start()).wait()
        await local.settle()
    words = "config.notify.approval_waiting[0].routes: the worker has no notification route 'opps'; it has ops, boss"
    assert view.error == words
    assert [(each.kind, each.route, each.error) for each in pager.taken] == [("run_failed", "boss", words)]


class Receiver:
    """A receiver of webhooks on this machine. `answers`: the statuses of the first answers, then 204."""

    def __init__(self, *answers: int) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self._answers = list(answers)
        self._changed = asyncio.Condition()

    async def take(self, request: Request) -> Response:
        self.got.append(({**request.headers, "path": request.url.path}, await request.body()))
        status = self._answers.pop(0) if self._answers else 204
        async with self._changed:
            self._changed.notify_all()
        return Response(status_code=status, headers={"location": "/elsewhere"} if 300 <= status < 400 else {})

    async def until(self, count: int) -> None:
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(lambda: len(self.got) >= count), HANG)

    def read(self, index: int = 0) -> Any:
        """The body, once its signature is verified as Standard Webhooks does it."""
        headers, body = self.got[index]
        return Webhook(SECRET).verify(body, headers)


@asynccontextmanager
async def receiving(*answers: int) -> AsyncIterator[tuple[Receiver, str]]:
    receiver = Receiver(*answers)
    async with serving(Starlette(routes=[Route("/{path:path}", receiver.take, methods=["POST"])])) as url:
        yield receiver, url


async def test_a_signed_webhook_and_an_address_of_apprises(run_locally: Callable[..., Any]) -> None:
    async with receiving() as (receiver, url), receiving() as (chat, there):
        routes = {
            "audit": {"url": f"{url}/hook", "secret": SECRET},
            "chat": there.replace("http://", "json://"),
        }
        agent = shop(approval_requested=["audit", "chat"])
        ask = {"calls": [ASKED["calls"][0] | {"to": "<!channel> [x](http://evil) @here"}]}
        settings = Settings.model_construct(
            notification_routes=Settings(notification_routes=routes).notification_routes
        )
        options: dict[str, Any] = {"people": [approve(after=60)], "settings": settings}
        async with run_locally(agent, model=[ask, DONE], **options) as local:
            view = await local.run()
    assert {status for _, _, status in outcomes(view.notifications)} == {"delivered"}
    said = receiver.read()
    assert (said["type"], said["data"]["call"], said["data"]["runId"]) == ("approval_requested", "1.0", view.run_id)
    headers, _ = receiver.got[0]
    key = said["data"]["key"]
    assert headers["webhook-id"] == key.replace(".", "%2E")
    assert "<!channel> [x](http://evil) @here" in said["data"]["text"]
    message = json.loads(chat.got[0][1])
    assert message["title"] == "Approval requested: shop"
    text, _, way = message["message"].partition("\n")
    assert way == f"perdure approve {view.run_id} 1.0"
    assert "‹!channel› [x] (http:∕∕evil) ＠here" in text


async def test_a_receiver_that_is_down_and_then_up_has_the_end_of_a_run(run_locally: Callable[..., Any]) -> None:
    async with receiving(503, 500) as (receiver, url):
        settings = Settings.model_construct(callback_hosts=("127.0.0.1",), callback_secret=SECRET)
        agent = shop()
        async with run_locally(agent, model=[DONE], settings=settings) as local:
            run = await local.perdure.start(agent, callback=f"{url}/ended?x=1")
            await run.wait()
            await receiver.until(3)
            await local.settle()
            view = await run.view()
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1
    said = receiver.read(2)
    assert said["type"] == "run_ended"
    found = {key: said["data"][key] for key in ("runId", "agent", "status", "output", "stopReason")}
    assert found == {
        "runId": view.run_id,
        "agent": "shop",
        "status": "completed",
        "output": {"ok": True},
        "stopReason": "output",
    }
    assert outcomes(view.notifications) == [("callback", url.removeprefix("http://"), "delivered")]


@pytest.mark.parametrize(
    ("hosts", "secret", "words"),
    [
        ((), SECRET, "the callback: the worker sends no callbacks: set callback_hosts and callback_secret"),
        (
            ("hooks.example.com",),
            None,
            "the callback: the worker sends no callbacks: set callback_hosts and callback_secret",
        ),
        (
            ("hooks.example.com",),
            SECRET,
            "the callback: the host 127.0.0.1 is not allowed; the worker allows hooks.example.com",
        ),
    ],
)
async def test_a_callback_that_the_worker_does_not_allow_is_refused_at_the_start(
    run_locally: Callable[..., Any], hosts: Any, secret: Any, words: str
) -> None:
    async with receiving() as (receiver, url):
        settings = Settings.model_construct(callback_hosts=hosts, callback_secret=secret)
        async with run_locally(shop(), model=lambda _: DONE, settings=settings) as local:
            view = await (await local.perdure.start(shop(), callback=url)).wait()
            await local.settle()
    assert view.error == words
    assert not view.trouble  # its worker answers
    assert receiver.got == []


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (410, "accepts no more deliveries (410 Gone)"),
        (302, "redirects (302); webhooks do not follow redirects"),
    ],
)
async def test_a_receiver_that_is_gone_or_redirects_is_not_tried_again(
    run_locally: Callable[..., Any], status: int, words: str
) -> None:
    async with receiving(status) as (receiver, url):
        settings = Settings.model_construct(callback_hosts=("127.0.0.1",), callback_secret=SECRET)
        async with run_locally(shop(), model=[DONE], settings=settings) as local:
            run = await local.perdure.start(shop(), callback=url)
            await run.wait()
            await local.settle()
            view = await run.view()
    assert len(receiver.got) == 1
    (route,) = view.notifications[0].routes
    assert (route.status, words in str(route.why)) == ("refused", True)


async def test_a_wildcard_allows_no_private_address(run_locally: Callable[..., Any]) -> None:
    async with receiving() as (receiver, url):
        settings = Settings.model_construct(callback_hosts=("127.0.0.*",), callback_secret=SECRET)
        async with run_locally(shop(), model=[DONE], settings=settings) as local:
            run = await local.perdure.start(shop(), callback=url)
            await run.wait()
            await local.settle()
            view = await run.view()
    assert receiver.got == []
    assert view.notifications[0].routes[0].why == "127.0.0.1 is 127.0.0.1, which is not a public address"


async def test_an_address_that_is_none_is_no_callback(run_locally: Callable[..., Any]) -> None:
    async with run_locally(shop(), model=lambda _: DONE) as local:
        for wrong in (
            "ftp://example.com",
            "https://ann:pw@example.com",
            "example.com",
            "https://e.com/#a",
            "https://",
            "",
        ):
            with pytest.raises(RunError, match="a callback must be an http or https URL"):
                await local.perdure.start(shop(), callback=wrong)


async def test_a_program_that_decides_goes_first(run_locally: Callable[..., Any]) -> None:
    pager = Pager()
    approver: Any = {"approver": f"{__name__}:decides_small"}
    agent = Agent("shop", tools=[refund], approval=approver, notify={"approval_requested": ["ops"]})
    small = ASKED["calls"][0] | {"euros": 1}
    turns = [{"calls": [small, *ASKED["calls"]]}, DONE]
    options: dict[str, Any] = {"routes": [pager.route], "functions": [__name__], "people": [approve(after=60)]}
    async with run_locally(agent, model=turns, **options) as local:
        await local.run()
    assert [each.call for each in pager.taken] == ["1.1"]


def decides_small(offer: dict[str, Any]) -> str | None:
    """Approve what is small, and leave the rest to a person."""
    return "approve" if offer["params"]["euros"] < 10 else None


async def test_many_requests_at_a_time_take_turns_and_those_decided_meanwhile_inform_nobody(
    run_locally: Callable[..., Any],
) -> None:
    pager = Pager(*[ConnectionError("down")] * 1000)
    agent = shop(approval_requested=["ops"])
    calls = [ASKED["calls"][0] | {"euros": n} for n in range(1, 31)]
    options: dict[str, Any] = {"people": [approve(every=True, after=1)], "routes": [pager.route]}
    async with run_locally(agent, model=[{"calls": calls}, DONE], **options) as local:
        view = await local.run()
    assert view.status == "completed"
    assert len(view.notifications) == len(set(pager.tried)) == 10


async def test_the_command_of_a_notification_names_the_roles_of_a_quorum(run_locally: Callable[..., Any]) -> None:
    pager = Pager()
    policy: Any = {"tools": {"refund": {"by": 2, "roles": ["finance team"]}}}
    agent = Agent("shop", tools=[refund], approval=policy, notify={"approval_requested": ["ops"]})
    people = [approve(by=name, roles=["finance team"]) for name in ("ann", "bob")]
    async with run_locally(agent, model=[ASKED, DONE], people=people, routes=[pager.route]) as local:
        await local.perdure.run(agent, id="shop-2")
    assert [each.command for each in pager.taken] == ["perdure approve shop-2 1.0 --role 'finance team'"]


async def test_deliveries_that_go_on_for_long_hold_up_no_other(run_locally: Callable[..., Any]) -> None:
    """The first ten find nobody for twenty minutes; people are informed of the others long before."""
    taken: list[str] = []

    @notification_route("ops")
    async def page(notification: Notification) -> None:
        if int(str(notification.call).partition(".")[2]) < 10:
            raise ConnectionError("down")
        taken.append(str(notification.call))

    agent = shop(approval_requested=["ops"])
    calls = [ASKED["calls"][0] | {"euros": n} for n in range(1, 31)]
    options: dict[str, Any] = {"people": [approve(every=True, after="5m")], "routes": [page]}
    async with run_locally(agent, model=[{"calls": calls}, DONE], **options) as local:
        view = await local.run()
    assert view.status == "completed"
    assert sorted(taken, key=lambda call: int(call[2:])) == [f"1.{n}" for n in range(10, 30)]


async def test_a_cancelled_run_informs_of_its_end(run_locally: Callable[..., Any]) -> None:
    pager = Pager()
    agent = shop(run_failed=["ops"], run_ended=["boss"])
    async with run_locally(agent, model=[ASKED], routes=[pager.route]) as local:
        run = await local.start()
        await run.until_waiting("1.0")
        await run.cancel()
        view = await run.wait()
        await local.settle()
    assert view.status == "cancelled"
    assert [(each.kind, each.route, each.status) for each in pager.taken] == [("run_ended", "boss", "cancelled")]


async def test_a_run_without_notifications_starts_nothing_for_them(run_locally: Callable[..., Any]) -> None:
    async with run_locally(shop(), model=[ASKED, DONE], people=[approve()]) as local:
        run = await local.start()
        await run.wait()
        events = (await local.client.get_workflow_handle(run.id).fetch_history()).events
    names = [each.WhichOneof("attributes") or "" for each in events]
    assert [name for name in names if "child_workflow" in name or ("timer" in name and "canceled" not in name)] == [
        "timer_started_event_attributes"
    ]


async def test_a_large_output_goes_as_a_link(run_locally: Callable[..., Any]) -> None:
    pager = Pager()
    options: dict[str, Any] = {"routes": [pager.route], "pages_url": "https://agents.example.com"}
    async with run_locally(shop(run_ended=["ops"]), model=[{"output": "x" * 70_000}], **options) as local:
        view = await local.run()
    (said,) = pager.taken
    assert (said.output, said.output_size) == (None, 70_002)
    assert said.output_link == f"https://agents.example.com/v1/runs/{view.run_id}/value?what=output"


async def test_a_run_that_is_reset_asks_again_and_informs_again_and_one_that_goes_on_as_new_does_not(
    dev_server: WorkflowEnvironment, tiny_server: WorkflowEnvironment
) -> None:
    pager = Pager()
    found = registry([refund])
    for route in notification_routes_of(pager.route):
        found.notification_routes.add(route)
    config = {"notify": {"approval_requested": ["ops"], "run_ended": ["boss", "ops"]}}
    async with harness(dev_server.client, [], [ASKED, DONE, DONE], registry=found) as it:
        handle = await it.start(agent("refund", config=config))
        await until_asked(it, handle.id, "1.0")
        await Run(it.client, handle.id).approve("1.0")
        await asyncio.wait_for(handle.result(), HANG)
        first = len(pager.tried)
        await reset(dev_server, handle, await task_before_decision(handle))
        await until_asked(it, handle.id, "1.0")
        await Run(it.client, handle.id).approve("1.0")
        again = it.client.get_workflow_handle(handle.id)
        await asyncio.wait_for(again.result(), HANG)
        view = await it.view(handle.id)
        replayed = await replay_history(await again.fetch_history(), data_converter(), handle.id)
    assert replayed.problem is None
    assert len(pager.tried) == 2 * first == 6
    assert len(set(pager.tried)) == 5, "both routes had one key before the reset"
    ends = [("run_ended", "boss"), ("run_ended", "ops")]
    assert sorted(pager.kinds) == sorted([("approval_requested", "ops"), *ends] * 2)
    assert sorted(outcomes(view.notifications)) == sorted(
        (*each, "delivered") for each in [("approval_requested", "ops"), *ends] * 2
    )
    pager.tried.clear()
    safe = {"approval": {"ask": "never"}, "notify": {"budget_nearly_used": ["ops"], "budget_share": 0.001}}
    steps = [{"calls": [{"_tool": "refund", "euros": n, "to": "x"}], "output": None} for n in range(8)]
    async with harness(tiny_server.client, [], [*steps, DONE], registry=found) as it:
        handle = await it.start(agent("refund", config=safe | {"token_budget": 100_000}))
        await asyncio.wait_for(handle.result(), HANG)
        view = await it.view(handle.id)
        executions = [each async for each in it.client.list_workflows(f"WorkflowId = '{handle.id}'")]
    assert len(executions) > 1
    assert pager.tried == [f"{handle.id}/budget_nearly_used/1"]
    assert outcomes(view.notifications) == [("budget_nearly_used", "ops", "delivered")]


async def test_a_notification_that_is_under_way_goes_on_when_its_run_is_reset(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    """What a reset leaves behind is cancelled, but no notification: nothing sends its key again."""
    begun, goes_on = asyncio.Event(), asyncio.Event()
    tried: list[str] = []

    @notification_route("ops")
    async def slow(notification: Notification) -> None:
        tried.append(notification.key)
        begun.set()
        await goes_on.wait()

    found = registry([refund])
    for route in notification_routes_of(slow):
        found.notification_routes.add(route)
    below = agent(name="below")
    (tmp_path / "below.json").write_text(json.dumps(below), encoding="utf-8")
    tools = ("refund", {"name": "below", "_delegate": "below"})
    document = agent(*tools, config={"notify": {"approval_requested": ["ops"]}})
    script = [ASKED, ASKED, DONE]
    async with harness(dev_server.client, [], script, registry=found, agents=tmp_path) as it, asyncio.timeout(HANG):
        handle = await it.start(document)
        await until_asked(it, handle.id, "1.0")
        await begun.wait()
        await temporal(dev_server, "reset", "--workflow-id", handle.id, "--type", "FirstWorkflowTask", "--reason", "x")
        await until_asked(it, handle.id, "1.0")
        await Run(it.client, handle.id).approve("1.0")
        await it.client.get_workflow_handle(handle.id).result()  # it waits for the activity that cancels
        goes_on.set()
        outcome = await it.client.get_workflow_handle(tried[0], result_type=NotificationResult).result()
    assert [route.status for route in outcome.routes] == ["delivered"]
    assert len(set(tried)) == len(tried) == 2, "the request of before the reset, and the one that is asked again"


@pytest.mark.parametrize("approved", [True, False])
async def test_whoever_started_a_run_hears_each_of_its_ends_once(
    dev_server: WorkflowEnvironment, *, approved: bool
) -> None:
    """The key holds the outcome: a run that is reset and ends otherwise is reported again, one that ends the same is not."""

    async with receiving() as (receiver, url):
        settings = Settings.model_construct(callback_hosts=("127.0.0.1",), callback_secret=SECRET)
        steps = [ASKED, DONE, {"output": {"ok": approved}}]
        async with (
            harness(dev_server.client, [refund], steps, settings=settings) as it,
            asyncio.timeout(HANG),
        ):
            handle = await it.start(agent("refund"), callback=url)
            await until_asked(it, handle.id, "1.0")
            await Run(it.client, handle.id).approve("1.0")
            await handle.result()
            await reset(dev_server, handle, await task_before_decision(handle))
            await until_asked(it, handle.id, "1.0")
            run = Run(it.client, handle.id)
            await (run.approve("1.0") if approved else run.reject("1.0"))
            again = it.client.get_workflow_handle(handle.id)
            await again.result()
            await receiver.until(1 if approved else 2)
            view = await it.view(handle.id)
            replayed = await replay_history(await again.fetch_history(), data_converter(), handle.id)
    assert replayed.problem is None
    assert [call.status for call in view.calls] == ["done" if approved else "rejected"]
    (key,) = [each.key for each in view.notifications]
    said = [receiver.read(index)["data"] for index in range(len(receiver.got))]
    assert [each["output"] for each in said] == [{"ok": True}] if approved else [{"ok": True}, {"ok": False}]
    ids = [headers["webhook-id"] for headers, _ in receiver.got]
    assert len(set(ids)) == len(ids)
    assert ids[-1] == webhook_id(key)


async def test_a_scheduled_or_other_run_that_cannot_begin_calls_back(run_locally: Callable[..., Any]) -> None:
    async with receiving() as (receiver, url):
        settings = Settings.model_construct(callback_hosts=("127.0.0.1",), callback_secret=SECRET)
        broken = Agent.of({"name": "broken", "context": [{"type": "tool", "tool": "none_such"}], "schema": {}})
        async with run_locally(shop(), model=lambda _: DONE, settings=settings) as local:
            run = await local.perdure.start(broken, callback=url)
            view = await run.wait()
            await local.settle()
    said = receiver.read()["data"]
    assert (said["status"], said["error"]) == ("failed", view.error)
    assert "none_such" in said["error"]


async def test_the_command_line_and_the_http_api_take_a_callback(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    document_of = shop().document()
    (tmp_path / "shop.json").write_text(json.dumps(document_of), encoding="utf-8")
    async with receiving() as (receiver, url):
        hosts: dict[str, Any] = {"callback_hosts": ("127.0.0.1",), "callback_secret": SECRET}
        async with harness(dev_server.client, [refund], lambda _: DONE, **hosts) as it:
            env = {
                "TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host,
                "PERDURE_TASK_QUEUE": it.task_queue,
            }
            ran = await perdure("run", str(tmp_path / "shop.json"), "--callback", f"{url}/cli", env=env)
            await receiver.until(1)
            async with gateway(dev_server.client, [api], task_queue=it.task_queue, agents=tmp_path) as front:
                started = await front.http.post("/v1/runs", json={"agent": "shop", "callback": f"{url}/http"})
                await receiver.until(2)
                wrong = await front.http.post("/v1/runs", json={"agent": "shop", "callback": "nowhere"})
            shown = await perdure("show", receiver.read(0)["data"]["runId"], env=env)
    assert ran.code == 0, ran.err
    assert started.status_code == 201, started.text
    assert receiver.read(1)["data"]["runId"] == started.json()["runId"]
    assert "a callback must be an http or https URL" in wrong.text
    assert wrong.status_code == 422
    assert "callback → 127.0.0.1:" in shown.out
