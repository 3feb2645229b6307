"""Who asks: the sender, tenant and context of a start or a message, as tools, hooks and approvers read them (R19.1)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from perdure import Agent, ToolContext, ToolError, hook, tool
from perdure.approvals.requests import WaitingView
from perdure.errors import AgentError, InputError, MessageRefusedError, RunExistsError, ToolDefinitionError
from perdure.hooks import AfterToolCall, AgentEnd, BeforeAgentStart, BeforeToolCall, HookEvent, MessageReceived
from perdure.runs.caller_context import check_context, masked_context, secrets_of
from perdure.testing import run_locally
from perdure.testing.scripted_model import ChatRequest
from perdure.tools.decorator import tool_function
from perdure.values.json import dumps
from perdure.values.limits import MAX_CALLER_CONTEXT
from tests.timeouts import HANG


class Customer(BaseModel):
    number: str
    admin: bool = False


ANN = {"number": "C-17"}
BOB = {"number": "C-18"}
SEEN = "seen-by-tools-alone"


def who(ctx: ToolContext[Any]) -> dict[str, Any]:
    return {"sender": ctx.sender, "tenant": ctx.tenant, "session": ctx.session, "context": ctx.context}


@tool(safe=True)
async def look(ctx: ToolContext) -> dict[str, Any]:
    """Say who asks."""
    return who(ctx) | {"run": ctx.run_id}


@tool(safe=True)
def orders(ctx: ToolContext[Customer], limit: int = 3) -> str:
    """The orders of the customer who asks."""
    return f"{limit} orders of {ctx.context.number}{' (admin)' if ctx.context.admin else ''}"


LOOK = {"_tool": "look", "_outputPath": "†state.who"}
LOOKED: dict[str, Any] = {"calls": [LOOK], "output": "†state.who"}
looker = Agent("looker", tools=[look], context=Customer)
anybody = Agent("anybody", tools=[look])


async def test_tools_read_sender_tenant_and_context() -> None:
    async with run_locally(looker, model=[LOOKED]) as local:
        run = await local.start(sender="ann", tenant="shop", context=Customer(number="C-17"))
        assert await run.result() == {
            "sender": "ann",
            "tenant": "shop",
            "session": "",
            "context": {"number": "C-17", "admin": False},
            "run": run.id,
        }


async def test_a_run_of_nobody_has_empty_values() -> None:
    async with run_locally(anybody, model=[LOOKED]) as local:
        output = await (await local.start()).result()
        assert {**output, "run": ""} == {"sender": "", "tenant": "", "session": "", "context": {}, "run": ""}


async def test_a_typed_context_is_the_type() -> None:
    agent = Agent("seller", tools=[orders], context=Customer)
    script = [{"calls": [{"_tool": "orders", "_outputPath": "†state.o"}], "output": "†state.o"}] * 2
    async with run_locally(agent, model=script) as local:
        assert await (await local.start(context=ANN)).result() == "3 orders of C-17"
        assert await (await local.start(context=ANN | {"admin": True})).result() == "3 orders of C-17 (admin)"


async def test_a_context_that_does_not_fit_the_tool_fails_its_call() -> None:
    agent = Agent("seller", tools=[orders])
    script = [{"calls": [{"_tool": "orders", "_outputPath": "†state.o"}]}, {"calls": [], "output": "done"}]
    async with run_locally(agent, model=script) as local:
        view = await (await local.start(context={"number": 1})).wait()
        (call,) = view.calls
        assert call.error is not None
        assert call.error["code"] == "invalid_context"
        assert call.error["message"].startswith("the context of the run is not valid for orders: ")
        assert call.attempts == 1


def test_a_tool_names_a_type_that_json_is_read_as() -> None:
    with pytest.raises(
        ToolDefinitionError, match=r"ToolContext\[Exception\] has a type that JSON cannot be validated as"
    ):

        @tool
        def wrong(ctx: ToolContext[Exception]) -> None:
            """Wrong."""


def test_the_context_is_no_parameter() -> None:
    for function, parameters in ((look, []), (orders, ["limit"])):
        found = tool_function(function)
        assert found is not None
        assert list(found.definition["properties"]) == parameters


async def test_a_start_whose_context_does_not_fit_is_refused_at_once() -> None:
    large = {"number": "x" * MAX_CALLER_CONTEXT}
    async with run_locally(looker) as local:
        for given, words in (
            (None, r"the context breaks the agent's schema for it: \$ lacks 'number'"),
            ({"number": 17}, r"the context breaks the agent's schema for it: \$\.number"),
            ("C-17", "the context must be a JSON object, not a text"),
            (large, r"the context has 8,20\d bytes, and 8,192 is the limit"),
            ({"number": object()}, "the context cannot be written as JSON"),
        ):
            with pytest.raises(InputError, match=words):
                await local.start(context=given)


@pytest.mark.parametrize("token", [{"maxLength": 5}, {"pattern": "^tok_"}, {"type": "number"}, {"pattern": "^.masked"}])
def test_an_error_does_not_show_a_secret(token: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="breaks the agent's schema for it") as refused:
        check_context({"token": "a secret"}, {"properties": {"token": token}, "additionalProperties": False})
    assert 'a secret"' not in str(refused.value)
    with pytest.raises(InputError, match="not an array"):
        check_context(["a secret"])


def test_an_agent_declares_it() -> None:
    document = looker.document()
    assert document["caller_context"]["required"] == ["number"]
    assert looker.check_context(ANN) == ANN
    again = Agent.of(document)
    with pytest.raises(InputError):
        again.check_context({})
    with pytest.raises(AgentError, match=r"pass messages as messages=\[…\]"):
        Agent("a", context=[{"type": "text", "text": "Hello."}])
    with pytest.raises(AgentError, match=r"\$\.caller_context: is not a JSON Schema"):
        Agent.of({"name": "a", "context": [], "caller_context": {"type": "nothing"}})


async def test_a_key_is_that_of_one_context() -> None:
    async with run_locally(looker, model=[LOOKED]) as local:
        run = await local.perdure.start(looker, key="k", sender="ann", context=ANN)
        assert (await local.perdure.start(looker, key="k", sender="ann", context=ANN)).id == run.id
        with pytest.raises(RunExistsError):
            await local.perdure.start(looker, key="k", sender="ann", context=BOB)
        await run.result()


async def test_no_model_reads_it() -> None:
    """Neither a prompt nor the schema that goes with it has any of it, nor can a reference name it."""
    names = ("context", "sender", "tenant", "caller_context", "owner", "whose", "run.context")
    tries = [{"_tool": "look", "x": f"†{name}"} for name in names]
    script = [{"calls": tries}, LOOKED]
    async with run_locally(looker, model=script) as local:
        run = await local.start(sender=f"ann-{SEEN}", tenant=f"shop-{SEEN}", context={"number": SEEN})
        view = await run.wait()
        assert [call.status for call in view.calls[: len(names)]] == ["invalid"] * len(names)
        asked = [dumps(request.body) for request in local.model.requests]
        assert len(asked) == 2
        assert not any(SEEN in text for text in asked)


@tool(safe=True)
async def ask_below(ctx: ToolContext) -> str:
    """Say who asks, below."""
    return f"{ctx.sender} {ctx.context['number']}"


async def test_delegates_and_loops_inherit_it() -> None:
    below = Agent("below", tools=[ask_below], input={"properties": {"n": {"type": "integer"}}}, output=str)
    above = Agent("above", tools=[below, ask_below])
    one = {"calls": [{"_tool": "ask_below", "_outputPath": "†state.w"}], "output": "†state.w"}
    calls = [
        {"_tool": "below", "n": 1, "_outputPath": "†state.one"},
        {"_tool": "below", "n": "†item", "_each": [1, 2], "_outputPath": "†state.two"},
        {"_tool": "ask_below", "_each": [1, 2], "_outputPath": "†state.three"},
    ]
    whole = {"calls": calls, "output": ["†state.one", "†state.two", "†state.three"]}

    def answers(request: ChatRequest) -> Any:
        return one if "/" in request.run_id else whole

    async with run_locally(above, model=answers) as local:
        output = await (await local.start(sender="ann", context=ANN)).result()
        assert output == ["ann C-17", ["ann C-17"] * 2, ["ann C-17"] * 2]


async def test_hooks_have_it_and_cannot_change_it() -> None:
    seen: list[tuple[str, str, str, Any]] = []

    def note(event: HookEvent) -> None:
        seen.append((type(event).__name__, event.sender, event.tenant, event.context))

    @hook("before_agent_start")
    def began(event: BeforeAgentStart) -> None:
        note(event)
        with pytest.raises(TypeError):
            event.changed(context={})

    @hook("before_tool_call")
    def before(event: BeforeToolCall) -> None:
        note(event)

    @hook("after_tool_call")
    def after(event: AfterToolCall) -> None:
        note(event)

    @hook("agent_end")
    def ended(event: AgentEnd) -> None:
        note(event)

    async with run_locally(looker, model=[LOOKED], hooks=[began, before, after, ended]) as local:
        await (await local.start(sender="ann", tenant="shop", context=ANN)).result()
        await local.settle()
    assert seen == [
        (name, "ann", "shop", ANN) for name in ("BeforeAgentStart", "BeforeToolCall", "AfterToolCall", "AgentEnd")
    ]


async def test_each_message_has_its_own() -> None:
    received: list[Any] = []

    @hook("message_received")
    def receives(event: MessageReceived) -> None:
        received.append((event.sender, event.context))

    async with run_locally(anybody, model=[LOOKED] * 3, hooks=[receives]) as local:
        session = local.session("desk", tenant="shop")
        for sender, context in (("ann", ANN), ("bob", BOB), ("ann", None)):
            reply = await session.ask("Who asks?", sender=sender, context=context)
            assert reply is not None
            assert f'"sender": "{sender}"' in reply or f'"sender":"{sender}"' in reply
            assert ("C-17" in reply, "C-18" in reply) == (context == ANN, context == BOB)
            assert '"desk"' in reply
    assert received == [("ann", ANN), ("bob", BOB), ("ann", {})]


async def test_a_message_whose_context_does_not_fit_is_refused() -> None:
    async with run_locally(looker, model=[LOOKED]) as local:
        session = local.session("desk")
        with pytest.raises(MessageRefusedError, match=r"the context breaks the agent's schema for it: \$ lacks"):
            await session.send("Who asks?", sender="ann")
        with pytest.raises(MessageRefusedError, match="the context must be a JSON object"):
            await session.send("Who asks?", sender="ann", context="C-17")
        await session.ask("Who asks?", sender="ann", context=ANN, id="m")
        with pytest.raises(MessageRefusedError, match="another message"):
            await session.send("Who asks?", sender="ann", context=BOB, id="m")
        assert (await session.send("Who asks?", sender="ann", context=ANN, id="m")).message_id == "m"


async def test_a_message_with_another_context_steers_no_run() -> None:
    """Nor is it put together with others: whoever asks reads with their own rights (R10.9)."""

    async with run_locally(anybody, model=[LOOKED] * 4) as local:
        session = local.session("desk", mode="collect", quiet=0.2)
        receipts = [
            await session.send("One", sender="ann", context=ANN),
            await session.send("Two", sender="ann", context=ANN),
            await session.send("Three", sender="ann", context=BOB),
            await session.send("Four", sender="ann", context=ANN | {"n": 1}),
            await session.send("Five", sender="ann", context=ANN | {"n": True}),
        ]
        runs = [receipt.run_id for receipt in receipts]
        assert runs[0] == runs[1]
        assert len(set(runs)) == 4
        replies = [await session.reply(receipt) or "" for receipt in receipts]
        assert ["C-18" in reply for reply in replies] == [False, False, True, False, False]


TOKEN = "user-token-of-ann-0001"


@tool(safe=True, retries=0)
async def leak(ctx: ToolContext, how: str) -> Any:
    """Say what nobody may read."""
    token = str(ctx.context["session_token"])
    if how == "fail":
        raise ToolError("wrong", f"the shop refused {token}")
    ctx.progress(f"with {token}")
    return {"said": f"true {token == TOKEN}", "token": token}


async def test_secrets_of_the_context_leave_no_worker() -> None:
    """The tool has the true value. Results, failures, progress and hooks' answers have it masked, as other secrets."""
    context = {"customer": "C-17", "session_token": TOKEN, "more": [{"password": {"old": "an-older-password"}}]}
    calls = [{"_tool": "leak", "how": how, "_outputPath": f"†state.{how}"} for how in ("fail", "return")]
    seen: list[Any] = []

    @hook("before_tool_call", tools=["leak"])
    def echo(event: BeforeToolCall) -> BeforeToolCall:
        seen.append(event.context["session_token"])
        return event.changed(params={**event.params, "how": f"{event.params['how']}"})

    script = [{"calls": calls}, {"calls": [], "output": "†state.return"}]
    async with run_locally(Agent("leaker", tools=[leak]), model=script, hooks=[echo]) as local:
        run = await local.start(sender="ann", context=context)
        view = await run.wait()
        assert view.output == {"said": "true True", "token": "[masked]"}
        assert view.calls[0].error == {"code": "wrong", "message": "the shop refused [masked]"}
        assert seen == [TOKEN, TOKEN]
        events = [event.as_json() async for event in run.events()]
        assert TOKEN not in dumps([view.as_json(), events, [each.body for each in local.model.requests]])
        history = await local.client.get_workflow_handle(run.id).fetch_history()
        holds = [
            event for event in history.events if TOKEN in str(event) or TOKEN.encode() in event.SerializeToString()
        ]
        assert holds  # its input, as the start was given it
        completed = [event for event in holds if event.HasField("activity_task_completed_event_attributes")]
        assert not completed
        failed = [event for event in holds if event.HasField("activity_task_failed_event_attributes")]
        assert not failed


@tool(retries=0)
async def wait_for_watcher(ctx: ToolContext) -> None:
    """Report progress until it was seen, then fail."""
    token = str(ctx.context["session_token"])
    ctx.progress(f"GET /orders?token={token}")
    await progress_seen.wait()
    raise ToolError("http_401", "401") from ValueError(f"401 for /orders?token={token}")


progress_seen = asyncio.Event()


async def test_secrets_of_the_context_are_masked_in_heartbeats_and_in_the_causes_of_failures() -> None:
    progress_seen.clear()
    script = [{"calls": [{"_tool": "wait_for_watcher"}]}, {"calls": [], "output": "so"}]
    async with run_locally(Agent("waiter", tools=[wait_for_watcher]), model=script, server="dev") as local:
        run = await local.start(context={"session_token": TOKEN})
        said: list[str] = []
        async with asyncio.timeout(HANG):
            async for event in run.events():
                said.append(dumps(event.as_json()))
                if "GET /orders" in said[-1]:
                    progress_seen.set()
        assert TOKEN not in str(said)
        assert "GET /orders?token=[masked]" in str(said)
        history = await local.client.get_workflow_handle(run.id).fetch_history()
        (failed,) = [each for each in history.events if each.HasField("activity_task_failed_event_attributes")]
        assert TOKEN not in str(failed)


def test_what_of_a_context_is_masked() -> None:
    context: dict[str, Any] = {
        "customer": "C-17",
        "api_key": "k",
        "more": [{"password": {"old": "p"}, "n": 1}],
        "Authorization": 7,
    }
    assert masked_context(context) == {
        "customer": "C-17",
        "api_key": "[masked]",
        "more": [{"password": "[masked]", "n": 1}],
        "Authorization": "[masked]",
    }
    assert list(secrets_of(context)) == ["k", "p"]


decided: list[dict[str, Any]] = []


def decide_by_context(offer: dict[str, Any]) -> str:
    decided.append(offer)
    return "approve" if offer["context"].get("admin") else "reject"


@tool(dangerous=True)
def refund(euros: int) -> str:
    """Refund."""
    return f"refunded {euros}"


async def test_an_approver_has_it() -> None:
    decided.clear()
    name = f"{__name__}:decide_by_context"
    agent = Agent("clerk", tools=[refund], approval={"approver": name})
    call = {"_tool": "refund", "euros": 5, "_outputPath": "†state.r"}
    script = [{"calls": [call], "output": "†state.r"}, {"calls": [call]}, {"calls": [], "output": "no"}]
    async with run_locally(agent, model=script, functions=[__name__]) as local:
        run = await local.start(sender="ann", tenant="shop", context=ANN | {"admin": True})
        assert await run.result() == "refunded 5"
        other = await local.start(sender="bob", context=BOB)
        assert await other.result() == "no"
    who = [(each["sender"], each["tenant"], each["session"], each["runId"], each["context"]) for each in decided]
    assert who == [("ann", "shop", "", run.id, ANN | {"admin": True}), ("bob", "", "", other.id, BOB)]


@tool(dangerous=True, ask="refund {euros} EUR to {customer} by {way}?")
def give_back(euros: int, customer: str, way: str = "transfer") -> str:
    """Give money back."""
    return f"gave {euros} to {customer} by {way}"


EVIL = 'C-17? (it is fine)\n\x1b[2J "†state.x" {euros} <b>'


asked: list[dict[str, Any]] = []


def refuse_all(offer: dict[str, Any]) -> str:
    asked.append(offer)
    return "reject"


async def test_a_request_says_what_is_asked_of_whom_and_why() -> None:
    asked.clear()
    agent = Agent("clerk", tools=[give_back], approval={"approver": f"{__name__}:refuse_all"})
    call = {"_tool": "give_back", "euros": 5, "customer": "C-17", "_outputPath": "†state.r"}
    evil = {"_tool": "give_back", "euros": 5, "customer": (EVIL * 9).replace("†", "††")}
    script = [{"calls": [call, evil]}, {"calls": [], "output": "done"}]
    async with run_locally(agent, model=script, functions=[__name__]) as local:
        session = local.session("desk", tenant="shop")
        receipt = await session.send(f"I want {EVIL}", sender="ann", context=ANN | {"api_key": TOKEN})
        assert await session.reply(receipt) == "done"
        run = local.perdure.get_run(str(receipt.run_id))
        owner = (await run.view()).owner.as_json()
        questions = [each.data.get("ask") async for each in run.events(topics=["approval"]) if each.phase == "start"]
    first, second = sorted(asked, key=lambda offer: str(offer["call"]))
    assert first["context"] == ANN | {"api_key": TOKEN}
    views = [WaitingView.model_validate({key: one[key] for key in one.keys() - {"context", "runId"}}) for one in asked]
    sentences = {view.call: view.sentence for view in views}
    assert sentences["1.0"] == "refund 5 EUR to C-17 by transfer? (give_back is dangerous)"
    assert sentences["1.1"].isprintable()
    assert sentences["1.1"].startswith('refund 5 EUR to "C-17? (it is fine)\\n\\u001b[2J')
    assert len(sentences["1.1"]) < 150
    for one in (first, second):
        assert (one["sender"], one["tenant"], one["session"]) == ("ann", "shop", "desk")
        assert one["said"] == f"I want {EVIL}"
    assert owner == {
        "tenant": "shop",
        "sender": "ann",
        "session": "desk",
        "context": {"number": "C-17", "api_key": "[masked]"},
    }
    assert questions[0] == "refund 5 EUR to C-17 by transfer?"
