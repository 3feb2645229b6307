"""Standing approvals (R23.3): calls of a procedure's plan that nobody is asked about, as far as a person has foreseen them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pytest

from perdure import Agent, tool
from perdure.client.approvals import standing_approval_of
from perdure.client.perdure import Perdure
from perdure.client.selection import WaitingRequest
from perdure.errors import DecisionRefusedError, ProtocolError, RunNotFoundError
from perdure.testing import Local, LocalRun, record, replay, run_locally
from perdure.testing._clock import WaitingState
from perdure.values.json import JsonObject

pytestmark = pytest.mark.asyncio

paid: list[tuple[str, float]] = []
LATER = "2999-12-31"


@tool(safe=True)
def customer(name: str) -> dict[str, Any]:
    """Find a customer."""
    return {"id": f"C-{name}"}


@tool(safe=True, untrusted=True)
def read_mail(name: str) -> str:
    """Read the customer's mail."""
    return f"C-{name}"


@tool(dangerous=True)
def refund(customer: str, euros: float) -> str:
    """Pay money back."""
    if euros == 13:
        raise ValueError("the bank refuses 13")
    paid.append((customer, euros))
    return f"{euros:g} euros"


@pytest.fixture(autouse=True)
def _nothing_paid() -> None:
    paid.clear()


TOOLS: list[Callable[..., Any]] = [customer, read_mail, refund]
PAYS: list[Any] = [
    {"_tool": "customer", "name": "†input.name", "_outputPath": "†state.who"},
    {"_tool": "refund", "customer": "†state.who.id", "euros": "†input.euros", "_outputPath": "†state.paid"},
]
MAILED: list[Any] = [
    {"_tool": "read_mail", "name": "†input.name", "_outputPath": "†state.who"},
    {"_tool": "refund", "customer": "†state.who", "euros": "†input.euros", "_outputPath": "†state.paid"},
]
INPUT: JsonObject = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "euros": {"type": "number"}},
    "required": ["name", "euros"],
}


def procedure(plan: list[Any] = PAYS, **config: Any) -> Agent[Any]:
    """A procedure, as `promote` writes it."""
    tools: list[Any] = [{"type": "tool", "tool": name} for name in ("customer", "read_mail", "refund")]
    return Agent.of(
        {
            "name": "monthly",
            "config": {"start": "plan", **config},
            "context": [
                {"type": "system", "text": "You pay refunds."},
                *tools,
                {"type": "input", "schema": INPUT},
                {"type": "plan", "plan": plan, "output": {"paid": "†state.paid"}},
            ],
            "metadata": {"procedure": {"version": 1, "digest": "sha256:of-somebody", "runs": ["r-1"]}},
        }
    )


async def granted(perdure: Perdure, agent: Agent[Any] | None = None, **more: Any) -> None:
    terms: dict[str, Any] = {"uses": 2, "until": LATER, "by": "ann"} | more
    await perdure.grant_standing_approval(agent or procedure(), **terms)


def given(name: str = "Bob", euros: float = 12) -> JsonObject:
    return {"name": name, "euros": euros}


async def reason(local: Local, run: LocalRun[Any], call: str = "0.1") -> str:
    """Return why a call waits for a person, once nothing else decides about it."""
    waiting = await run.until_waiting(call)

    async def decided_by_nobody(look: WaitingState) -> str | None:
        return None if look.busy or not (found := (await run.view()).waiting) else found[0].reason

    assert waiting.status == "running"
    return await local.following.until(decided_by_nobody)


async def test_calls_of_a_procedure_are_approved_as_often_as_a_person_has_granted() -> None:
    async with run_locally(tools=TOOLS) as local:
        await granted(local.perdure, bounds={"properties": {"euros": {"maximum": 50}}})
        first = await local.run(given(), agent=procedure())
        approval = first.calls[1].approval
        assert approval is not None
        assert (approval.decision, approval.by, approval.via) == ("approve", "ann", "standing approval monthly")
        assert approval.reason == "standing approval monthly, run 1 of 2, until 2999-12-31"
        case = await record(local.perdure.get_run(first.run_id))
        assert [each["via"] for each in case["runs"][""]["decisions"]] == ["standing approval monthly"]
        await replay(case)  # there, a person decides
        await local.run(given(euros=50), agent=procedure())
        [standing] = await local.perdure.standing_approvals()
        assert (standing.status, standing.used, standing.left) == ("used up", 2, 0)

        third = await local.start(given(), agent=procedure())
        assert "the standing approval monthly does not cover it: it is used up" in await reason(local, third)
        await third.approve("0.1", by="bob")
        await third.wait()
    assert paid == [("C-Bob", 12), ("C-Bob", 50), ("C-Bob", 12)]


async def test_what_a_standing_approval_does_not_cover_waits_for_a_person() -> None:
    async with run_locally(tools=TOOLS) as local:
        await granted(local.perdure, bounds={"properties": {"euros": {"maximum": 50}}}, uses=5)
        dear = await local.start(given(euros=51), agent=procedure())
        assert "the input is out of its bounds" in await reason(local, dear)
        other = await local.start(given(), agent=procedure([PAYS[0], {**PAYS[1], "euros": 500}]))
        assert "standing" not in await reason(local, other)  # another digest
        [standing] = await local.perdure.standing_approvals()
        assert standing.used == 0
        for run in (dear, other):
            await run.approve("0.1", by="bob")
            await run.wait()


async def test_values_that_others_wrote_are_not_covered_unless_their_source_is_allowed() -> None:
    async with run_locally(tools=TOOLS) as local:
        await granted(local.perdure, procedure(MAILED), name="own")
        run = await local.start(given(), agent=procedure(MAILED))
        assert "refund.customer comes from read_mail (written by others)" in await reason(local, run)
        await granted(local.perdure, procedure(MAILED), name="mails", sources=["user", "tool:read_mail"])
        await run.approve("0.1", by="bob")
        await run.wait()
        view = await local.run(given(), agent=procedure(MAILED))
        assert view.calls[1].approval is not None
        assert view.calls[1].approval.via == "standing approval mails"
    assert len(paid) == 2


async def test_a_plan_that_is_asked_about_as_a_whole_is_covered_call_by_call() -> None:
    async with run_locally(tools=TOOLS) as local:
        for plan in (PAYS, MAILED):
            await granted(local.perdure, procedure(plan), name=str(plan[0]["_tool"]))
        view = await local.run(given(), agent=procedure(PAYS, approval={"scope": "plan"}))
        assert view.output == {"paid": "12 euros"}
        run = await local.start(given(), agent=procedure(MAILED, approval={"scope": "plan"}))
        assert "which the standing approval does not allow" in await reason(local, run)
        await run.approve("0.1", by="bob")
        await run.wait()
    assert len(paid) == 2


@tool(dangerous=True)
def quote(euros: float, note: str = "") -> dict[str, Any]:
    """Make a quote."""
    return {"euros": euros, "note": note}


QUOTED: JsonObject = {"_tool": "quote", "euros": "†input.euros", "_outputPath": "†state.quote"}
PAYS_QUOTE: JsonObject = {"_tool": "refund", "customer": "†input.name", "euros": "†state.quote.euros"}
MAIL: JsonObject = {"_tool": "read_mail", "name": "†input.name", "_outputPath": "†state.mail"}
CLERKS: JsonObject = {"tools": {"quote": {"by": 1, "roles": ["clerk"]}}}


@pytest.mark.parametrize(
    ("plan", "policy"),
    [
        ([QUOTED, PAYS_QUOTE], CLERKS),
        ([{**QUOTED, "note": "†state.mail"}, PAYS_QUOTE, MAIL], {"scope": "plan"}),
    ],
    ids=["a call", "a call of a plan that was approved as a whole"],
)
async def test_a_call_that_reads_what_a_person_has_changed_is_asked_about(plan: list[Any], policy: JsonObject) -> None:
    """Bounds are those of the input, and the person may be another than the one who has granted the approval."""
    agent = quoted(plan, policy)
    async with run_locally(tools=[*TOOLS, quote]) as local:
        await granted(local.perdure, agent, bounds={"properties": {"euros": {"maximum": 50}}})
        run = await local.start(given(), agent=agent)
        await run.until_waiting("0.0")
        await run.edit("0.0", {"euros": 5000, "note": ""}, by="carl", roles=["clerk"])
        assert "a decision has changed a call of the procedure" in await reason(local, run)
        await run.cancel()
        await run.wait()
    assert paid == []


def quoted(plan: list[Any], policy: JsonObject) -> Agent[Any]:
    """A procedure that also makes quotes."""
    document = procedure(plan, approval=policy).document()
    document["context"].insert(1, {"type": "tool", "tool": "quote"})
    return Agent.of(document)


@pytest.mark.parametrize(
    ("change", "ends"),
    [
        ({"ask": "always"}, True),
        ({"tools": {"refund": "always"}}, True),
        ({"flows": [{"from": "tool:customer", "to": "refund", "do": "ask"}]}, True),
        ({"ask": "untrusted", "tools": {"customer": "never"}}, False),
    ],
)
async def test_a_stricter_policy_of_a_run_ends_its_standing_approvals(change: JsonObject, ends: bool) -> None:
    """Nobody was asked about the calls for which somebody had just required a decision."""
    agent = quoted(
        [QUOTED, {**PAYS_QUOTE, "_outputPath": "†state.paid"}],
        CLERKS | {"tools": {**CLERKS["tools"], "refund": "always"}},
    )
    async with run_locally(tools=[*TOOLS, quote]) as local:
        await granted(local.perdure, agent)
        run = await local.start(given(), agent=agent)
        await run.until_waiting("0.0")
        await run.policy(**change)
        await run.approve("0.0", by="carl", roles=["clerk"])
        if ends:
            assert "its run's policy has become stricter" in await reason(local, run)
            await run.cancel()
        await run.wait()
    assert len(paid) == (0 if ends else 1)


async def settled(local: Local, run: LocalRun[Any]) -> list[WaitingRequest]:
    """The requests that are left for people, in the run and below it, once nothing happens by itself."""
    await local.settle()
    return (await run.waiting_below())[0]


@pytest.mark.parametrize("ends", [True, False])
async def test_a_stricter_policy_counts_in_loops_that_begin_and_in_those_that_run(ends: bool) -> None:
    plan = [QUOTES, {**PAYS_EACH, "_after": ["0.0"], "_outputPath": "†state.paid"}]
    last: JsonObject = {"properties": {"note": {"enum": ["100"]}}}
    agent = quoted(plan, {"tools": {"refund": "always", "quote": {"by": 1, "roles": ["clerk"], "when": last}}})
    async with run_locally(tools=[*TOOLS, quote]) as local:
        await granted(local.perdure, agent)
        run = await local.start(given(), agent=agent)

        [first] = await settled(local, run)
        await run.policy(tools={"refund" if ends else "customer": "always" if ends else "never"})
        await local.perdure.get_run(first.run_id).approve(first.request.call, by="carl", roles=["clerk"])
        if ends:
            waiting = await settled(local, run)
            assert {each.request.tool for each in waiting} == {"refund"}
            await run.cancel()
        await run.wait()
    assert len(paid) == (0 if ends else 101)


QUOTES: JsonObject = {
    "_tool": "quote",
    "_each": [*range(101)],  # more items than run inside the run
    "euros": "†input.euros",
    "note": {"_expr": "str(†index)"},
    "_outputPath": "†state.quotes",
}
PAYS_EACH: JsonObject = {
    "_tool": "refund",
    "_each": [*range(101)],
    "customer": "†input.name",
    "euros": "†input.euros",
    "_outputPath": "†state.all",
}


@pytest.mark.parametrize(
    ("plan", "edited"),
    [
        ([PAYS_EACH, {**QUOTED, "_after": ["0.0"]}, {**PAYS_EACH, "euros": "†state.quote.euros"}], "0.1"),
        ([QUOTES, {**PAYS_QUOTE, "euros": "†state.quotes[0].euros"}], "0.0[0]"),
    ],
    ids=["a second loop reads it", "it is changed in a loop"],
)
async def test_a_change_counts_in_the_child_workflows_of_loops(plan: list[Any], edited: str) -> None:
    clerks: JsonObject = {
        "tools": {"quote": {"by": 1, "roles": ["clerk"], "when": {"properties": {"note": {"enum": ["", "0"]}}}}}
    }
    agent = quoted(plan, {"ask": "dangerous", **clerks})
    async with run_locally(tools=[*TOOLS, quote]) as local:
        await granted(local.perdure, agent, bounds={"properties": {"euros": {"maximum": 50}}})
        run = await local.start(given(), agent=agent)

        [first] = await settled(local, run)
        assert first.request.call == edited
        await local.perdure.get_run(first.run_id).edit(edited, {"euros": 5000}, by="carl", roles=["clerk"])
        waiting = await settled(local, run)
        assert {each.request.tool for each in waiting} == {"refund"}
        await run.cancel()
    assert 5000 not in [euros for _, euros in paid]


async def test_a_change_in_one_part_of_a_loop_counts_in_the_next() -> None:
    body = [{**QUOTED, "note": {"_expr": "str(†index)"}, "_outputPath": "†state.quote"}, PAYS_QUOTE]
    plan = [{"_tool": "_for", "_each": [*range(101)], "_body": body}]
    last: JsonObject = {"properties": {"note": {"const": "99"}}}  # the last of the first part
    agent = quoted(plan, {"tools": {"refund": "always", "quote": {"by": 1, "roles": ["clerk"], "when": last}}})
    async with run_locally(tools=[*TOOLS, quote]) as local:
        await granted(local.perdure, agent, bounds={"properties": {"euros": {"maximum": 50}}})
        run = await local.start(given(), agent=agent)

        [first] = await settled(local, run)
        part = local.perdure.get_run(first.run_id)
        await part.edit(first.request, {"euros": 40}, by="carl", roles=["clerk"])
        [same] = await settled(local, run)
        assert (same.run_id, same.request.tool) == (part.id, "refund")
        await part.approve(same.request, by="carl")
        [other] = await settled(local, run)
        assert (other.run_id != part.id, other.request.tool) == (True, "refund")
        await run.cancel()
    assert len(paid) == 100


async def test_a_revoked_or_expired_approval_holds_no_more() -> None:
    async with run_locally(tools=TOOLS) as local:
        await granted(local.perdure)
        await local.run(given(), agent=procedure())
        revoked = await local.perdure.revoke_standing_approval("monthly", by="eve")
        assert (revoked.status, revoked.revoked_by, revoked.left) == ("revoked", "eve", 0)
        run = await local.start(given(), agent=procedure())
        assert "standing" not in await reason(local, run)
        await run.approve("0.1", by="bob")
        await run.wait()

        day = (await local.now()).date().isoformat()
        await granted(local.perdure, until=day)
        await local.skip("2 days")
        late = await local.start(given(), agent=procedure())
        assert "it is expired" in await reason(local, late)
        await late.approve("0.1", by="bob")
        await late.wait()
        with pytest.raises(DecisionRefusedError, match="would have ended at"):
            await granted(local.perdure, until=day)
        with pytest.raises(RunNotFoundError, match="there is no standing approval other"):
            await local.perdure.revoke_standing_approval("other")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"uses": 0}, "uses"),
        ({"uses": True}, "uses"),
        ({"uses": "2"}, "uses"),
        ({"until": "soon"}, 'such as 2026-12-31 or 2026-12-31T12:00:00Z, not "soon" at'),
        ({"bounds": {"euros": {"maximum": 100}}}, '"euros" is not a keyword of JSON Schema at'),
        ({"bounds": {"properties": {"euros": {"maximun": 100}}}}, '"maximun" is not a keyword of JSON Schema at'),
        ({"bounds": {"properties": {"eurs": {"maximum": 100}}}}, 'did you mean "euros"'),
        ({"bounds": {"type": "euro"}}, "is not a JSON Schema"),
        ({"sources": ["!tool:x"]}, "is not a source"),
        ({"name": "a b"}, "is not a valid name"),
        ({"bounds": "euros"}, "bounds must be a dict or None, not 'euros'"),
        ({"sources": "trusted"}, "sources must be a list of str, not 'trusted'"),
        ({"until": 2030}, "until must be str or date, not 2030"),
        ({"until": datetime(2030, 1, 31, 12)}, "until has no time zone: use"),
        ({"agent": "monthly"}, "procedure must be Agent, not 'monthly'"),
    ],
)
async def test_a_standing_approval_that_cannot_be(wrong: dict[str, Any], words: str) -> None:
    perdure = Perdure.__new__(Perdure)
    with pytest.raises(ProtocolError, match=words):
        await granted(perdure, **wrong)


@pytest.mark.parametrize(
    ("until", "end"),
    [
        (date(2030, 1, 31), "2030-01-31T23:59:59+00:00"),
        (datetime(2030, 1, 31, 12, tzinfo=timezone(timedelta(hours=1))), "2030-01-31T11:00:00+00:00"),
        ("2030-01-31T12:00Z", "2030-01-31T12:00:00+00:00"),
    ],
)
def test_the_end_of_a_standing_approval_is_a_date_or_a_time_in_utc(until: str | date, end: str) -> None:
    terms: dict[str, Any] = {"bounds": {}, "sources": ["trusted"], "name": None, "reason": ""}
    assert standing_approval_of(procedure().document(), uses=1, until=until, by="ann", **terms).until == end


async def test_a_model_that_comes_back_is_asked_about_as_usual() -> None:
    again = [
        {"calls": [{"_tool": "refund", "customer": "C-Bob", "euros": 12}]},
        {"calls": [], "output": {"paid": "12"}},
    ]
    async with run_locally(tools=TOOLS, model=again) as local:
        await granted(local.perdure)
        run = await local.start(given(euros=13), agent=procedure())
        assert "standing" not in await reason(local, run, "1.0")
        await run.approve("1.0", by="bob")
        view = await run.wait()
    assert [(call.id, call.status, call.approval and call.approval.via) for call in view.calls] == [
        ("0.0", "done", None),
        ("0.1", "failed", "standing approval monthly"),
        ("1.0", "done", ""),
    ]
    assert paid == [("C-Bob", 12)]


async def test_neither_the_floor_nor_a_quorum_nor_a_rule_that_asks_is_passed() -> None:
    async with run_locally(tools=TOOLS, approval_floor="dangerous") as local:
        await granted(local.perdure)
        run = await local.start(given(), agent=procedure())
        await reason(local, run)
        await run.approve("0.1", by="bob")
        await run.wait()
    rule = {"rule": "at_most", "of": "refund.euros", "sum": 10, "otherwise": "ask"}
    two = {"tools": {"refund": {"by": 2}}}
    async with run_locally(tools=TOOLS) as local:
        await granted(local.perdure)
        for config, people in (({"rules": [rule]}, ["bob"]), ({"approval": two}, ["bob", "eve"])):
            run = await local.start(given(), agent=procedure(**config))
            await reason(local, run)
            for who in people:
                await run.approve("0.1", by=who)
            await run.wait()
        [standing] = await local.perdure.standing_approvals()
    assert standing.used == 0


@pytest.mark.parametrize("count", [3, 120])
async def test_all_items_of_a_loop_are_one_use(count: int) -> None:
    items: list[Any] = [
        {
            "_tool": "refund",
            "_each": [*range(count)],
            "customer": "†input.name",
            "euros": "†input.euros",
            "_outputPath": "†state.paid",
        }
    ]
    async with run_locally(tools=TOOLS) as local:
        await granted(local.perdure, procedure(items), uses=1)
        await local.run(given(), agent=procedure(items))
        [standing] = await local.perdure.standing_approvals()
    assert (standing.used, len(paid)) == (1, count)


async def test_a_delegate_and_a_session_use_it_too() -> None:
    boss = Agent("boss", instructions="You delegate.", tools=[procedure()])
    turns = [
        {"calls": [{"_tool": "monthly", "name": "Ann", "euros": 5, "_outputPath": "†state.done"}], "output": "done"}
    ]
    async with run_locally(boss, tools=TOOLS, model=turns) as local:
        await granted(local.perdure, uses=3, sources=["trusted"])
        await local.run({"request": "Pay Ann."})
        session = local.session("ann", agent=texted())
        await granted(local.perdure, texted(), name="texted")
        for _ in range(2):
            await session.ask("Ann", sender="ann")
        used = {each.name: each.used for each in await local.perdure.standing_approvals()}
    assert used == {"monthly": 1, "texted": 2}
    assert [euros for _, euros in paid] == [5, 7, 7]


def texted() -> Agent[Any]:
    """A procedure that one text starts, as a message of a session."""
    document = procedure([PAYS[0], {**PAYS[1], "euros": 7}]).document()
    name: JsonObject = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    context = [{**each, "schema": name} if each["type"] == "input" else each for each in document["context"]]
    return Agent.of({**document, "name": "texted", "context": context})


async def test_runs_at_once_do_not_pass_the_number_of_uses_together() -> None:
    async with run_locally(tools=TOOLS) as local:
        await granted(local.perdure, uses=3)
        runs = [await local.start(given(f"n{number}"), agent=procedure()) for number in range(5)]

        async def at_rest(look: WaitingState) -> bool | None:
            return None if look.busy else True

        await local.following.until(at_rest)
        waiting = [run for run in runs if (await run.view()).waiting]
        assert (len(waiting), len(paid)) == (2, 3)
        for run in waiting:
            await run.approve("0.1", by="bob")
            await run.wait()
    assert len(paid) == 5
