"""What a session's run says to people, and to whom (R10.16)."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.errors import ToolDefinitionError
from perdure.plan import Call
from perdure.plan._calls import CallSpec
from perdure.runs.events import is_silence
from perdure.runs.routes import RouteFunctions
from perdure.runs.sent_texts import merge_digests, sent_by, was_sent
from perdure.runs.wire import CallView, RunResult
from perdure.sessions.message_queue import ActiveRun, Queued
from perdure.sessions.replies import (
    Reply,
    ReplyAuthor,
    deliveries,
    failures,
    parts,
    reply_route,
    routes_of,
    summary,
)
from perdure.tools.tool import parse_tool
from perdure.values.json import JsonObject
from perdure.values.messages import VerbosePart


def call(tool: str, status: str = "done", number: int = 0, **more: Any) -> CallView:
    return CallView(id=f"1.{number}", tool=tool, params=more.pop("params", {}), status=status, **more)


def result(status: str = "completed", **more: Any) -> RunResult:
    return RunResult.model_validate({"run_id": "s/1", "status": status, **more})


BOOK = call("book", "failed", error={"code": "full", "message": "no seat is left"})
THOUGHT: tuple[VerbosePart, ...] = ("reasoning",)


def digests(text: str, message: bool | str = True, **params: Any) -> list[str]:
    tool = parse_tool(
        {"name": "send", "properties": {}, "additionalProperties": True, "_message": message}, activities=["send"]
    )
    call = Call.of("1.0", 0, CallSpec({"_tool": "send"}, tool, params={"text": text, **params}))
    call.state.status = "done"
    return sent_by([call])


ROWS: list[tuple[str, RunResult, str | None, tuple[Any, ...], list[tuple[str, str]]]] = [
    ("an answer", result(), "yes", (), [("answer", "yes")]),
    (
        "all of it",
        result(reasoning="hm", calls=[call("price", params={"item": "tea"}, shown="3")]),
        "yes",
        ("reasoning", "tools"),
        [("reasoning", "hm"), ("tools", 'price(item="tea") → 3'), ("answer", "yes")],
    ),
    ("not what is not told", result(reasoning="hm", calls=[BOOK]), "yes", (), [("answer", "yes")]),
    ("nothing there", result(), "yes", ("reasoning", "tools"), [("answer", "yes")]),
    ("no text", result(reasoning="hm"), None, ("reasoning", "tools"), []),
    ("no text, and a failure", result(calls=[BOOK]), None, (), [("failure", "book failed: no seat is left")]),
    ("what failed first went well", result(calls=[BOOK, call("book", number=1)]), None, (), []),
    ("sent already", result(sent=digests("Yes!")), "yes", ("reasoning",), []),
    (
        "sent already, and a failure",
        result(sent=digests("Yes!"), calls=[BOOK]),
        "yes",
        (),
        [],
    ),
    ("something was sent, no text, and a failure", result(sent=digests("Wait."), calls=[BOOK]), None, (), []),
    (
        "something was sent, and the run failed",
        result("failed", error="it broke", sent=digests("Wait."), calls=[BOOK]),
        None,
        (),
        [("failure", "There is no answer: it broke")],
    ),
    ("another was sent", result(sent=digests("no")), "yes", (), [("answer", "yes")]),
    ("a refused run", result("refused", error="I cannot."), None, (), [("failure", "I cannot.")]),
    ("a failed run", result("failed", error="it broke"), None, (), [("failure", "There is no answer: it broke")]),
    (
        "a failed run, by a tool",
        result("failed", calls=[BOOK]),
        None,
        (),
        [("failure", "book failed: no seat is left")],
    ),
    ("a run that somebody ended", result("cancelled", calls=[BOOK]), None, (), []),
]


@pytest.mark.parametrize(("run", "reply", "told", "said"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_r10_16_what_is_said(
    run: RunResult, reply: str | None, told: tuple[Any, ...], said: list[tuple[str, str]]
) -> None:
    assert [(part.kind, part.text) for part in parts(run, reply, told)] == said


@pytest.mark.parametrize(
    ("sent", "text", "same"),
    [
        ("Your table is booked.", "your table\n is booked", True),
        ("**Booked**, Ann!", "Booked, Ann", True),
        ("Booked.\n\nSee you at 8.", "See you at 8", True),
        ("Booked.\n\nSee you at 8.", "See you at 8.\n\nBooked!", True),
        ("Booked.", "Booked.\n\nSee you at 8.", False),
        ("Booked for 8", "Booked for 9", False),
        ("👍", "👍", True),
        ("👍", "👎", False),
        ("", "", False),
    ],
)
def test_the_same_text_is_the_same_whatever_its_signs(sent: str, text: str, same: bool) -> None:
    assert was_sent(text, digests(sent)) == same


def test_what_a_message_tool_sends_is_the_parameter_that_it_names() -> None:
    assert was_sent("yes", digests("no", "body", body="yes"))
    assert not was_sent("no", digests("no", "body", body="yes"))
    assert not was_sent("general", digests("hello", channel="general"))
    assert digests("x", "body", body=7) == []
    assert digests("no", False) == []


def test_digests_are_bounded() -> None:
    assert len(merge_digests([str(n) for n in range(1000)], [str(n) for n in range(500, 1500)])) == 1000


def test_a_summary_and_failures_are_short() -> None:
    calls = [call(f"t{n}", "failed", n, error={"message": "x" * 5000}) for n in range(40)]
    assert len(summary(calls).splitlines()) == 31
    assert max(map(len, [*summary(calls).splitlines(), *failures(calls)])) <= 500
    assert summary([call("t", "skipped", reason="the run ended")]) == "t(): skipped (the run ended)"


def message(number: int, route: str = "", sender: str = "ann") -> Queued:
    return Queued(
        message_id=f"m{number}", sender=sender, rights=[], text="?", mode="steer", route=route, seq=number, at=0
    )


def test_each_route_is_told_and_each_reply_has_its_number() -> None:
    running = ActiveRun(number=1, rights=[], messages=[message(1), message(2, "a:1"), message(3, "b")])
    running.steered = [message(4, "a:1", "bob"), message(5, "c"), message(6, "d")]
    speaker = ReplyAuthor(run_id="s/1", session="s", tenant="t", agent="x")
    held = [each.key for each in running.steered if each.message_id != "m5"]
    found = deliveries(result(reasoning="hm"), "yes", running, held, THOUGHT, speaker=speaker)
    assert [(each.key, each.route, each.kind, each.message_ids, each.sender) for each in found] == [
        ("s/1/1", "a:1", "reasoning", ["m2", "m4"], "ann"),
        ("s/1/2", "a:1", "answer", ["m2", "m4"], "ann"),
        ("s/1/3", "b", "reasoning", ["m3"], "ann"),
        ("s/1/4", "b", "answer", ["m3"], "ann"),
        ("s/1/5", "d", "reasoning", ["m6"], "ann"),
        ("s/1/6", "d", "answer", ["m6"], "ann"),
    ]
    nobody = ActiveRun(number=1, rights=[], messages=[message(1)])
    assert deliveries(result(), "yes", nobody, [], speaker=speaker) == []
    running.ending = "stopped by 'ann'"
    assert deliveries(result("failed"), None, running, [], speaker=speaker) == []
    assert len(deliveries(result(), "x" * 70_000, running, [], speaker=speaker)[0].text) < 64_100


def test_a_route_is_a_function_of_one_name() -> None:
    @reply_route("a")
    @reply_route("b")
    def say(reply: Reply) -> None:
        del reply

    async def other(reply: Reply) -> None:
        del reply

    routes = RouteFunctions()
    for each in routes_of(say):
        routes.add(each)
    assert [name for name in ("a", "a:x:y", "b", "c", "") if routes.get(name)] == ["a", "a:x:y", "b"]
    with pytest.raises(ToolDefinitionError, match="two functions deliver to 'a'"):
        routes.add(routes_of(reply_route("a")(other))[0])
    for name in ("", "a:b", " a", "x" * 101, "a\n"):
        with pytest.raises(ToolDefinitionError, match="is not a valid name of a route"):
            reply_route(name)

    def nothing() -> None: ...

    with pytest.raises(ToolDefinitionError, match="without a parameter for the reply"):
        reply_route("c")(nothing)


def test_no_reply_counts_as_the_whole_alone() -> None:
    said: JsonObject = {"NO_REPLY": True, ' "NO_REPLY" ': True, "No, NO_REPLY": False, "NO_REPLY NO_REPLY": False}
    assert {text: is_silence(text) for text in said} == said
