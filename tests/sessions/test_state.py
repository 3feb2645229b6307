"""A session that continues as new goes on as if it had not (R10.1, R10.13)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import MessageRefusedError
from perdure.runs.routes import Delivered
from perdure.runs.wire import RunResult
from perdure.sessions.entries import CommandEntry, CompactionEntry, MessageEntry
from perdure.sessions.message_queue import BeginRun, MessageQueue, QueueState, RunCommand
from perdure.sessions.state import SessionState
from perdure.sessions.status_webhooks import StatusWebhook, StatusWebhookChange
from perdure.sessions.wire import Description, Message, MessageWithdrawal, SessionInput, session_id
from perdure.values.json import JsonObject
from perdure.values.messages import MODES, SessionRules
from tests.soak import share

AGENT: JsonObject = {
    "name": "desk",
    "context": [{"type": "system", "text": "Help."}],
    "config": {"session": {"verbose": ["reasoning"], "cap": 5}},
}
SESSION = session_id("acme", "desk")
ORIGINS: JsonObject = {"†state.v": ["!tool:read"], "†conversation": ["!tool:read"]}

IDS = st.sampled_from(["m1", "m2", "m3"])
SENDERS = st.sampled_from(["ann", "bob"])
CALL: JsonObject = {"id": "1.0", "tool": "read", "params": {}, "status": "done", "result": "read"}
LARGE: JsonObject = {
    "id": "1.0",
    "tool": "read",
    "params": {},
    "status": "failed",
    "error": {"code": "x", "message": "x" * 60_000},
}

SAY = st.fixed_dictionaries(
    {
        "do": st.just("say"),
        "message_id": st.sampled_from(["old 1", "old 19"]) | IDS | st.text("ab\n ", min_size=1, max_size=3),
        "sender": SENDERS,
        "text": st.sampled_from(["hello", "go on", "/new", "/reset", "/compact", "/stop", " ", "x" * 40_000]),
        "mode": st.sampled_from([None, *MODES]),
        "route": st.sampled_from(["", "mail:ann", "chat"]),
        "rights": st.sampled_from([[], ["*"], ["stop", "new", "reset"]]),
    }
)
RUN = st.fixed_dictionaries(
    {
        "do": st.just("run"),
        "ends": st.booleans(),
        "status": st.sampled_from(["completed", "completed", "failed", "cancelled"]),
        "output": st.sampled_from([None, "done", "NO_REPLY", {"answer": 1}]),
        "state": st.sampled_from([{}, {"v": 1}, {"v": "x" * 50}]),
        "left": st.sampled_from([{}, ORIGINS]),
        "requests": st.integers(0, 2),
        "calls": st.sampled_from([[], [CALL], [LARGE]]),
        "context_tokens": st.sampled_from([0, 1_000, 50_000]),
        "tight": st.booleans(),
        "hears": st.booleans(),
    }
)
OTHERS = st.one_of(
    st.fixed_dictionaries({"do": st.just("withdraw"), "message_id": IDS, "sender": SENDERS}),
    st.fixed_dictionaries({"do": st.just("deliver"), "status": st.sampled_from(["delivered", "refused", "unknown"])}),
    st.fixed_dictionaries({"do": st.just("describe"), "title": st.sampled_from(["a", "b"])}),
    st.fixed_dictionaries({"do": st.sampled_from(["archive", "compact"])}),
)
TURN = st.builds(lambda run: run | {"do": "turn", "ends": True}, RUN)
OLD: JsonObject = {"ends": True, "status": "completed", "output": "so", "hears": True, "requests": 1}
RESULT = ("status", "output", "state", "left", "requests", "calls", "context_tokens", "tight")
STEPS = st.lists(st.one_of(TURN, TURN, SAY, RUN, OTHERS), min_size=3, max_size=25)


def begun() -> SessionState:
    given = SessionInput(key="desk", tenant="acme", rules=SessionRules(quiet=0.5), document=AGENT)
    session = SessionState(given, SESSION, "b", "t0")
    for number in range(20):  # a branch that has been left, old enough for a segment
        say(session, {"message_id": f"old {number}", "sender": "ann", "text": "x" * 20_000}, -2.0)
        take_step(session, OLD, -1.0)
    say(session, {"message_id": "new", "sender": "ann", "text": "/new", "rights": ["*"]}, -1.0)
    take_step(session, OLD, -1.0)
    return session


def continued(session: SessionState) -> SessionState:
    """The session of the next execution, whose input has been sent as JSON."""
    sent = SessionInput.model_validate_json(session.carried().model_dump_json(exclude_defaults=True))
    return SessionState(sent, SESSION, "another execution", "another time")


def say(session: SessionState, step: JsonObject, now: float) -> Any:
    message = Message.model_validate({name: value for name, value in step.items() if name != "do"})
    if session.forgot(message):
        return "only a segment knows it"
    try:
        accepted = session.message_queue.accept(message, now, f"t{now}")
    except MessageRefusedError as error:
        return str(error)
    if accepted.queued is not None:
        session.write(accepted, accepted.queued)
    return accepted.receipt.as_json()


def take_step(session: SessionState, step: JsonObject, now: float) -> Any:
    """Take the queue's next step; a run ends in the same step."""
    at = f"t{now}"
    following = session.message_queue.next(now)
    if isinstance(following, RunCommand):
        session.carry_out(following.command, at)
        return following.command.text
    if not isinstance(following, BeginRun):
        return following
    running = following.run
    if not step["ends"] or running.ending is not None:
        running.ending = running.ending or "it was stopped"
        session.never_ran(running, at)
        return running.ending
    told = session.run_input(running)
    session.begun(running, at)
    while_running = say(session, {"message_id": "s", "sender": "ann", "text": "more", "mode": "steer"}, now)
    heard = [
        {"id": each.message_id, "sender": each.sender, "request": 1 if step["hears"] else None}
        for each in running.steered
    ]
    result = RunResult.model_validate(
        {
            "run_id": "r",
            "ended_at": at,
            "messages": heard,
            **{name: step[name] for name in RESULT if name in step},
        }
    )
    replies = session.ended(running, result, at, at)
    session.to_deliver += replies
    return told, while_running, replies


def play(session: SessionState, step: JsonObject, now: float) -> Any:
    """Take one step; return what somebody outside learns of it."""
    at, do = f"t{now}", step["do"]
    if do == "say":
        return say(session, step, now)
    if do == "turn":
        said = say(session, {"message_id": at, "sender": "ann", "text": "hello", "route": "mail:ann"}, now)
        return said, take_step(session, step, now + 0.2)
    if do == "run":
        return take_step(session, step, now)
    if do == "withdraw":
        asked = MessageWithdrawal(message_id=step["message_id"], sender=step["sender"], rights=["withdraw"])
        try:
            session.withdraw(asked, at)
        except MessageRefusedError as error:
            return str(error)
    elif do == "deliver" and session.to_deliver:
        delivery = session.to_deliver.pop(0)
        session.delivered(delivery, Delivered(status=step["status"]), delivery.text, at)
    elif do == "describe":
        session.describe(Description(metadata={"title": step["title"]}))
    elif do == "compact" and (runs := [entry.n for entry in session.transcript.entries if entry.type == "run"]):
        texts: JsonObject = {"text": "So far.", "kind": "summary", "why": "asked"}
        session.transcript.append(CompactionEntry(at=at, up_to=runs[-1], request=1, before=9, after=1, **texts))
    return None


def archive(session: SessionState, last: int) -> None:
    old = [entry for entry in session.transcript.entries if entry.n <= last]
    session.put_away(old)
    session.gone(old)
    session.transcript.let_go(last)


def seen(session: SessionState, first: int) -> list[Any]:
    """The state of a session, and what somebody can see of it: of its events those from `first` on."""
    return [
        session.view().model_dump(by_alias=True),
        session.about,
        session.details(),
        [session.fate(id, sender) for id in ("m1", "m2") for sender in ("ann", "bob") if knows(session, id, sender)],
        session.notes.events.page(first).events,
        session.message_queue.state.model_dump(),
        session.transcript.carried().model_dump(),
        session.transcript.tokens,
        session.transcript.limit,
        session.state,
        session.sources,
        session.remembered.text,
        session.to_deliver,
    ]


def knows(session: SessionState, id: str, sender: str) -> bool:
    return session.message_queue.resolve(id, sender) is not None


def test_r10_3_collected_messages_that_a_lost_steer_separates_have_answers_of_their_own() -> None:
    session = SessionState(SessionInput(key="desk", tenant="acme", document=AGENT), SESSION, "b", "t0")

    def run_next() -> None:
        step = session.message_queue.next(9.0)
        assert isinstance(step, BeginRun)
        session.begun(step.run, "t1")
        for n, mode in enumerate(("collect", "steer", "collect") if step.run.number == 1 else ()):
            say(session, {"message_id": f"m{n}", "sender": "ann", "text": str(n), "mode": mode}, 0.0)
        output = f"re: {step.run.messages[0].text}"
        session.ended(step.run, RunResult(run_id="r", status="completed", output=output), "t1", "t2")
        session.separate(session.message_queue.find_left_messages(step.run.number))

    say(session, {"message_id": "first", "sender": "ann", "text": "first"}, 0.0)
    for _ in range(4):
        run_next()
    assert [session.fate(f"m{n}").reply for n in range(3)] == ["re: 0", "re: 1", "re: 2"]
    said = [str(each["content"]) for each in session.transcript.conversation()]
    assert said == ["ann: first", "re: first", "ann: 0", "re: 0", "ann: 1", "re: 1", "ann: 2", "re: 2"]


def test_r24_2_each_redelivery_has_the_text_that_hooks_gave_the_first_delivery() -> None:
    session = SessionState(SessionInput(key="desk", tenant="acme", document=AGENT), SESSION, "b", "t0")
    play(session, {"do": "turn", **OLD}, 0.0)
    unknown, first = Delivered(status="unknown"), session.to_deliver.pop()
    session.delivered(first, unknown, f"{first.text} (signed)", "t2")
    for _ in range(2):
        again = session.redelivery(first.key)
        assert again.text == f"{first.text} (signed)"
        session.delivered(again, unknown, again.text, "t3")


@pytest.mark.parametrize(("hooked", "text"), [(True, "hi"), (False, "hi"), (False, "hi (signed)")])
def test_r10_17_a_redelivery_knows_whether_hooks_have_made_or_passed_its_text(hooked: bool, text: str) -> None:
    session = SessionState(SessionInput(key="desk", tenant="acme", document=AGENT), SESSION, "b", "t0")
    play(session, {"do": "turn", **OLD}, 0.0)
    first = session.to_deliver.pop()
    first.text, first.hooked = "hi", hooked
    session.delivered(first, Delivered(status="unknown"), text, "t2")
    assert session.redelivery(first.key).hooked is (hooked or text != "hi")


def accept(session: SessionState, id: str, text: str, sender: str = "ann", **how: Any) -> str:
    receipt = say(session, {"message_id": id, "sender": sender, "text": text, "rights": ["*"], **how}, 0.0)
    return str(receipt["done"])


@pytest.mark.parametrize("begins", [True, False])
def test_r10_1_an_interrupted_message_is_in_the_next_conversation_whether_or_not_its_run_has_begun(
    begins: bool,
) -> None:
    session = SessionState(SessionInput(key="desk", tenant="acme", document=AGENT), SESSION, "b", "t0")
    assert accept(session, "m1", "order the chair") == "started"
    first = session.message_queue.state.running
    assert first is not None
    if begins:
        session.begun(first, "t1")
    assert accept(session, "m2", "in blue", mode="interrupt") == "interrupted"
    if begins:
        session.ended(first, RunResult(run_id="r", status="cancelled"), "t1", "t2")
    else:
        session.never_ran(first, "t2")
        assert session.never_began(session.message_queue.run_id(1))
    assert session.fate(session.message_queue.run_id(1)).error == "interrupted by 'm2'"
    said = [str(each["content"]) for each in session.transcript.conversation()]
    assert said == ["ann: order the chair", "# the run ended without an answer: cancelled (interrupted by 'm2')"]


def test_r10_9_a_message_that_follows_the_run_after_its_starter_withdraws_is_in_its_own_conversation() -> None:
    session = SessionState(SessionInput(key="desk", tenant="acme", document=AGENT), SESSION, "b", "t0")
    for id, sender, rights in (("m1", "ann", []), ("m2", "bob", ["refunds"]), ("m3", "carl", [])):
        accept(session, id, f"text of {id}", sender, rights=rights)
    session.withdraw(MessageWithdrawal(message_id="m1", sender="ann"), "t1")
    take_step(session, OLD, 1.0)
    assert (session.fate("m2").reply, session.fate("m3").state) == ("so", "queued")
    take_step(session, OLD | {"output": "late"}, 2.0)
    assert session.fate("m3").reply == "late"
    said = [str(each["content"]) for each in session.transcript.conversation()]
    assert said == ["bob: text of m2", "so", "carl: text of m3", "late"]


def test_r10_3_a_steer_outlives_a_run_that_was_stopped_before_it_began() -> None:
    session = SessionState(SessionInput(key="desk", tenant="acme", document=AGENT), SESSION, "b", "t0")
    accept(session, "m1", "order the chair")
    assert accept(session, "b1", "ship my lamp", "bob") == "steered"
    for number in (1, 2):  # a message begins the run after, and is then its first
        step = session.message_queue.next(0.0)
        assert accept(session, f"s{number}", "/stop") == "stopped"
        assert isinstance(step, BeginRun)
        assert step.run.number == number
        session.never_ran(step.run, "t1")
    assert (session.fate("m1", "ann").error, session.fate("b1", "bob").error) == ("stopped by 'ann'",) * 2
    said = [str(each["content"]) for each in session.transcript.conversation()]
    assert said[::2] == ["ann: order the chair", "bob: ship my lamp"]


def test_r21_4_a_webhook_for_an_archived_run_is_refused() -> None:
    session = begun()
    archive(session, session.transcript.old()[-1].n)
    say(session, {"message_id": "next", "sender": "ann", "text": "hello"}, 0.0)

    def judge(number: int, remove: bool = False) -> None:
        webhook = StatusWebhook(run_id=session.message_queue.run_id(number), url="https://example.com/ended")
        session.judge_webhook(StatusWebhookChange(webhook=webhook, sender="ann", remove=remove))

    with pytest.raises(MessageRefusedError, match="has ended, and its entry is archived"):
        judge(1)
    judge(1, remove=True)
    judge(20)
    judge(21)
    with pytest.raises(MessageRefusedError, match="the session has no run"):
        judge(22)


def test_r10_20_a_sender_of_a_fork_may_use_the_id_of_a_copied_message_again() -> None:
    fork = begun()
    fork.transcript.append(CommandEntry(at="t0", command="fork", text="desk at 20"))
    fork.message_queue = MessageQueue(SESSION, SessionRules(), QueueState(born="f-", number=20))
    fork = continued(fork)
    again = {"message_id": "old 3", "sender": "ann", "text": "another text"}
    receipt = say(fork, again, 0.0)
    assert receipt["done"] == "started"
    take_step(fork, OLD, 0.5)
    for n in range(60):
        say(fork, {"message_id": f"{n}", "sender": "ann", "text": "x" * 3_000}, 1.0)
        take_step(fork, OLD, 1.5)
    copied = fork.transcript.old()
    archive(fork, copied[-1].n)
    assert not any(entry.known for entry in copied if isinstance(entry, MessageEntry))
    assert say(fork, again, 2.0) == receipt
    assert say(fork, {"message_id": "old 4", "sender": "ann", "text": "a new message"}, 2.0)["done"] == "started"
    take_step(fork, OLD, 2.5)
    play(fork, {"do": "compact"}, 3.0)
    own = fork.transcript.entries[:-1]
    archive(fork, own[-1].n)
    assert next(each.known for each in own if isinstance(each, MessageEntry) and each.message_id == "old 3")
    assert say(fork, again, 4.0) == "only a segment knows it"


@settings(max_examples=share(30))
@given(STEPS)
def test_r10_13_a_session_that_continues_as_new_at_each_step_goes_on_as_if_it_had_not(steps: list[JsonObject]) -> None:
    stays, goes = begun(), begun()
    for number, step in enumerate(steps, 1):
        now = number / 4
        if step["do"] == "archive" and (old := goes.transcript.old()):
            archive(stays, old[-1].n)
            archive(goes, old[-1].n)
        assert play(goes, step, now) == play(stays, step, now)
        goes = continued(goes)
        first = goes.notes.events.page(0).first  # older events are not carried on
        for mine, other in zip(seen(goes, first), seen(stays, first), strict=True):
            assert mine == other
