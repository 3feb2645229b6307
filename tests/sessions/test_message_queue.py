"""The message_queue of a session: what is accepted, in which order it is taken, and that nothing waits for nothing (R10.1 to R10.9)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from perdure.approvals.requests import RunWaits
from perdure.errors import MessageRefusedError
from perdure.sessions.message_queue import (
    AcceptedMessage,
    BeginRun,
    MessageQueue,
    Queued,
    QueueIdle,
    QueueState,
    RunActive,
    RunCommand,
    WaitUntil,
    covers,
)
from perdure.sessions.transcript import Transcript
from perdure.sessions.views import find_fate
from perdure.sessions.wire import Message, MessageWithdrawal, message_key, session_id
from perdure.values.limits import MAX_REPORTS
from perdure.values.messages import MODES, SessionRules

SESSION = session_id("acme", "desk")
ALL = ["*"]


def ann(id: str) -> str:
    """The key of ann's message."""
    return message_key("ann", id)


def message_queue(**rules: Any) -> MessageQueue:
    return MessageQueue(SESSION, SessionRules(**rules))


def say(
    message_queue: MessageQueue, text: str, now: float = 0.0, *, id: str | None = None, sender: str = "ann", **more: Any
) -> AcceptedMessage:
    rights = more.pop("rights", [])
    message = Message(
        message_id=id or (text.strip().replace("\n", " ")[:100] or "blank"),
        sender=sender,
        rights=rights,
        text=text,
        **more,
    )
    return message_queue.accept(message, now, f"t{now}")


def begin(message_queue: MessageQueue, now: float = 0.0) -> list[str]:
    """Start the run that is to begin; what it begins with."""
    step = message_queue.next(now)
    assert isinstance(step, BeginRun), step
    message_queue.begun()
    return [each.text for each in step.run.messages]


def test_r10_4_what_is_said_while_the_run_waits_for_a_person_follows_it_unless_somebody_says_otherwise() -> None:
    def waits(message_queue: MessageQueue, count: int, now: bool, number: int = 1) -> None:
        message_queue.waits(RunWaits(run_id=message_queue.run_id(number), count=count, waits=now))

    asking = message_queue()
    say(asking, "a")
    begin(asking)
    waits(asking, 1, True)
    waits(asking, 7, False, number=9)  # no run of this message_queue
    receipt = say(asking, "b").receipt
    assert (receipt.done, receipt.position) == ("queued", 1)
    assert (
        receipt.why
        == f"{asking.run_id(1)} waits for a person, so the message waits for the run's end; the mode steer delivers it now"
    )
    assert say(asking, "c", mode="steer").receipt.done == "steered"
    waits(asking, 3, False)
    waits(asking, 2, True)  # overtaken
    assert say(asking, "d").receipt.done == "steered"
    ruled = message_queue(mode="steer")
    say(ruled, "a")
    begin(ruled)
    waits(ruled, 1, True)
    assert say(ruled, "b").receipt.done == "steered"


def test_r10_4_a_run_waits_for_a_person_while_a_run_below_it_does() -> None:
    asking = message_queue()
    say(asking, "a")
    begin(asking)
    own = asking.run_id(1)

    def waits(below: str, count: int, now: bool, **more: Any) -> bool:
        asking.waits(RunWaits(run_id=f"{own}{below}", count=count, waits=now, **more))
        assert asking.state.running is not None
        return asking.state.running.is_asking

    assert not waits("0/1.0", 1, True)  # of another run
    assert waits("/1.0", 5, True)
    assert waits("/1.0/0.0", 1, True)
    assert waits("/1.0", 6, False)
    assert not waits("/1.0/0.0", 2, False)
    assert not waits("/1.0/0.0", 1, True)  # overtaken
    assert waits("/1.0/0.0", 3, True)
    assert waits("/1.0/0", 1, True)
    assert asking.deciding() == [f"{own}/1.0/0", f"{own}/1.0/0.0"]
    assert waits("/1.0/0.0", 4, False, closed=True)
    assert not waits("/1.0", 7, False, closed=True)
    assert waits("", 1, True)
    assert not waits("", 2, False)
    assert waits("/1.0/0.0", 9, True)
    assert waits("/1.0", 8, False, closed=True)  # late: what is below it has begun anew since
    assert not waits("/1.0/0.0", 10, False)


def test_r10_4_a_reset_run_names_the_runs_below_it_that_it_still_has() -> None:
    asking = message_queue()
    say(asking, "a")
    begin(asking)
    own = asking.run_id(1)

    def waits(below: str, count: int, now: bool, **more: Any) -> list[str]:
        asking.waits(RunWaits(run_id=f"{own}{below}", count=count, waits=now, **more))
        return [run_id.removeprefix(own) for run_id in asking.deciding()]

    for below in ("/1.0", "/1.1/0", "/1.1/0/1.0", "/1.10"):
        waits(below, 1, True)
    waits("/1.2", 9, True)
    assert waits("", 5, True, left=["1.1"]) == ["", "/1.1/0", "/1.1/0/1.0", "/1.2"]  # 1.2 has begun anew since
    assert waits("/1.1", 6, False, left=[]) == ["", "/1.2"]
    assert waits("", 10, False, left=[]) == []


def test_a_session_knows_of_a_bounded_number_of_runs_below_its_own() -> None:
    asking = message_queue()
    say(asking, "a")
    begin(asking)
    own = asking.run_id(1)
    running = asking.state.running
    assert running is not None
    for number in range(MAX_REPORTS + 10):
        asking.waits(RunWaits(run_id=f"{own}/{number}", count=1, waits=number > 4))
    assert len(running.below) == MAX_REPORTS
    assert f"{own}/0" not in running.below
    assert f"{own}/5" in running.waiting_below
    with pytest.raises(ValidationError):
        RunWaits(run_id=f"{own}/" + "x" * 1_000, count=1, waits=True)


def test_r10_9_a_decision_is_for_the_run_that_waits() -> None:
    asking = message_queue()
    say(asking, "a")
    begin(asking)
    own = asking.run_id(1)

    def waits(below: str, *, now: bool = True, count: int = 1) -> None:
        asking.waits(RunWaits(run_id=f"{own}{below}", count=count, waits=now))

    assert asking.decided_run() == own  # a run of an earlier version does not say whether it waits
    waits("/1.0")
    assert asking.decided_run() == asking.decided_run(f"{own}/1.0") == f"{own}/1.0"
    assert asking.decided_run(own) == own
    waits("/1.1")
    with pytest.raises(MessageRefusedError, match="in 2 runs"):
        asking.decided_run()
    assert asking.decided_run(f"{own}/1.1") == f"{own}/1.1"
    with pytest.raises(MessageRefusedError, match="no call waits for a person in the run"):
        asking.decided_run(f"{own}/1.2")
    waits("")  # the session's own run comes first: a decision named no other before
    assert asking.decided_run() == own


def test_r10_2_a_session_is_named_by_tenant_and_key() -> None:
    assert session_id("acme", "desk") == session_id("acme", "desk")
    others = {
        session_id("acme", "desk"),
        session_id("", "acmedesk"),
        session_id("acm", "edesk"),
        session_id("other", "desk"),
    }
    assert len(others) == 4
    assert "acme" not in SESSION
    assert "desk" not in SESSION


def test_r10_1_the_receipt_and_the_same_again() -> None:
    it = message_queue()
    first = say(it, "hi", 1.0, id="m1").receipt
    assert first.as_json() == {
        "runId": f"{SESSION}/1",
        "messageId": "m1",
        "position": 0,
        "acceptedAt": "t1.0",
        "done": "started",
    }
    again = say(it, "hi", 9.0, id="m1", rights=["stop"])
    assert again.receipt == first
    assert again.queued is None
    others: list[dict[str, Any]] = [{"text": "ho"}, {"mode": "reject"}, {"route": "mail"}]
    for changed in others:
        with pytest.raises(MessageRefusedError, match="another message"):
            say(it, changed.pop("text", "hi"), id="m1", **changed)
    assert it.state.seq == 1
    # An id belongs to its sender.
    other = say(it, "ho", 2.0, id="m1", sender="bob").receipt
    assert (other.message_id, other.accepted_at) == ("m1", "t2.0")
    assert say(it, "hi", 9.0, id="m1").receipt == first
    assert it.state.seq == 2


def test_r10_1_two_senders_messages_of_one_id_have_fates_and_withdrawals_of_their_own() -> None:
    it, transcript = message_queue(), Transcript()
    say(it, "a")
    begin(it)
    say(it, "mine", id="m1", mode="followup")
    say(it, "yours", id="m1", sender="bob", mode="followup")
    assert find_fate(it, transcript, "m1", "ann").run_id == f"{SESSION}/2"
    assert find_fate(it, transcript, "m1", "bob").run_id == f"{SESSION}/3"
    assert not find_fate(it, transcript, "m1", "eve").known
    with pytest.raises(MessageRefusedError, match=r"several senders \(ann, bob\): give the sender"):
        find_fate(it, transcript, "m1")
    with pytest.raises(MessageRefusedError, match="several senders"):
        take_back(it, "m1", "eve", ["withdraw"])
    assert take_back(it, "m1", "bob") == []
    assert find_fate(it, transcript, "m1", "bob").state == "withdrawn"
    assert find_fate(it, transcript, "m1", "ann").state == "queued"
    it.judge_withdrawal(MessageWithdrawal(message_id="m1", sender="eve", rights=["withdraw"], of="ann"))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"text": "  "}, "the message is empty"),
        ({"text": "x" * 100_001}, "the limit is 100,000"),
        ({"id": "\x00"}, "cannot be printed"),
        ({"id": "i" * 201}, "the limit is 200"),
        ({"sender": " "}, "the sender is empty"),
        ({"rights": ["r" * 201]}, "200 characters"),
    ],
)
def test_r10_1_what_is_no_message_is_refused(wrong: dict[str, Any], words: str) -> None:
    it = message_queue()
    with pytest.raises(MessageRefusedError, match=words):
        say(it, wrong.pop("text", "hi"), **wrong)
    assert it.state == QueueState()


def test_r10_4_followups_are_taken_one_by_one_in_their_order() -> None:
    it = message_queue(mode="followup")
    receipts = [say(it, text).receipt for text in "abc"]
    assert [(r.done, r.position, r.run_id) for r in receipts] == [
        ("started", 0, f"{SESSION}/1"),
        ("queued", 1, f"{SESSION}/2"),
        ("queued", 2, f"{SESSION}/3"),
    ]
    for text in "abc":
        assert begin(it) == [text]
        assert it.next(0.0) == RunActive()
        it.ended()
    assert it.next(0.0) == QueueIdle()


def test_r10_4_a_steer_goes_to_the_run_under_way() -> None:
    it = message_queue()
    say(it, "a")
    joined = say(it, "b")
    assert (joined.receipt.done, joined.steer) == ("steered", False)  # the run has not begun: it begins with it
    assert begin(it) == ["a", "b"]
    given_to = say(it, "c")
    assert (given_to.receipt.done, given_to.receipt.run_id, given_to.steer) == ("steered", f"{SESSION}/1", True)
    say(it, "d", mode="followup")
    assert say(it, "e").receipt.done == "steered"  # what waits for its end does not hold up what is said to it
    assert it.ended({ann("c"): 2, ann("e"): 3}) == []
    assert it.state.known[ann("e")].request == 3
    assert begin(it) == ["d"]


def test_r10_3_a_steer_that_no_request_held_begins_the_next_run_in_its_place() -> None:
    it = message_queue()
    say(it, "a")
    begin(it)
    say(it, "b")
    say(it, "c", mode="followup")
    say(it, "d")
    say(it, "e")
    assert [each.text for each in it.ended({})] == ["b", "d", "e"]
    for texts in (["b"], ["c"], ["d", "e"]):
        assert begin(it) == texts
        it.ended()
    numbers = [it.state.known[ann(text)].number for text in "abcde"]
    assert numbers == [1, 3, 2, 4, 4]  # no run's id is given twice


def test_r10_4_collect_joins_what_arrives_within_the_quiet_time() -> None:
    it = message_queue(mode="collect")
    receipts = [say(it, "a", 0.0).receipt, say(it, "b", 0.4).receipt]
    assert [(r.done, r.run_id) for r in receipts] == [("collected", f"{SESSION}/1")] * 2
    assert it.next(0.5) == WaitUntil(0.9)
    assert [each.at for each in it.state.queue] == [0.0, 0.4]
    assert begin(it, 0.9) == ["a", "b"]
    say(it, "c", 1.0)
    other = say(it, "d", 1.1, rights=["stop"]).receipt
    assert other.why is not None
    assert "other rights" in other.why
    say(it, "e", 1.1, route="mail", rights=["stop"])
    assert it.next(1.2) == RunActive()
    it.ended()
    assert begin(it, 1.2) == ["c"]  # nobody can join it any more, so it waits for nothing
    it.ended()
    assert begin(it, 1.2) == ["d"]
    it.ended()
    assert it.next(1.2) == WaitUntil(1.6)


def test_r10_3_a_lost_steer_between_collected_messages_gives_no_run_id_twice() -> None:
    it = message_queue()
    say(it, "a")
    begin(it)
    for text, mode in (("b", "collect"), ("c", "steer"), ("d", "collect"), ("e", "collect")):
        say(it, text, mode=mode)
    it.ended()
    assert [each.text for each in it.find_left_messages(1)] == ["d", "e"]
    it.promise_anew([ann("d"), ann("e")])
    assert it.find_left_messages(1) == []
    assert [each.number for each in it.state.queue] == [2, 3, 4, 4]
    for texts in (["b"], ["c"], ["d", "e"]):
        assert begin(it, 1.0) == texts
        it.ended()


def test_r10_3_carried_messages_of_an_ended_run_begin_another_run() -> None:
    it = message_queue()
    for n, (text, mode) in enumerate((("a", "collect"), ("b", "followup"), ("c", "collect"))):
        say(it, text, mode=mode)
        it.state.queue[n].number = (1, 2, 1)[n]  # as 0.2.0 numbered them
    assert begin(it, 1.0) == ["a"]
    it.ended()
    assert [each.text for each in it.find_left_messages(1)] == ["c"]


def test_r10_4_collected_messages_that_fill_the_queue_begin() -> None:
    it = message_queue(mode="collect", cap=2)
    say(it, "a")
    say(it, "b")
    assert begin(it) == ["a", "b"]


def test_r10_6_interrupt_ends_what_runs_and_keeps_its_place() -> None:
    it = message_queue()
    say(it, "a")
    begin(it)
    say(it, "b", mode="followup")
    interrupting = say(it, "c", mode="interrupt")
    assert (interrupting.cancel, interrupting.receipt.done, interrupting.receipt.why) == (
        True,
        "interrupted",
        "1 wait before it",
    )
    late = say(it, "d")
    assert late.receipt.done == "queued"
    assert late.receipt.why is not None
    assert "is ending (interrupted by 'c')" in late.receipt.why
    assert not say(it, "e", mode="interrupt").cancel
    for texts in (["b"], ["c"], ["d"], ["e"]):
        it.ended()
        assert begin(it) == texts


def test_r10_4_reject_does_not_wait() -> None:
    it = message_queue()
    assert say(it, "a", mode="reject").receipt.done == "started"
    with pytest.raises(MessageRefusedError, match="a run is active"):
        say(it, "b", mode="reject")


def test_r10_8_one_more_than_may_wait_is_refused_at_once() -> None:
    it = message_queue(cap=2)
    say(it, "a")
    begin(it)
    say(it, "b", mode="followup")
    say(it, "c", mode="followup")
    before = it.state.model_copy(deep=True)
    with pytest.raises(MessageRefusedError, match=r"2 messages already wait, which is the limit \(cap 2\)"):
        say(it, "d", mode="followup")
    assert it.state == before
    assert say(it, "e").receipt.done == "steered"  # it does not wait
    assert say(it, "/stop", rights=ALL).cancel


@pytest.mark.parametrize("mode", ["steer", "followup"])
def test_r10_8_messages_that_wait_for_a_run_that_has_not_begun_count(mode: str) -> None:
    it = message_queue(cap=2)
    for text in "abc":
        say(it, text, mode=mode)
    before = it.state.model_copy(deep=True)
    for late in ("steer", "followup"):
        with pytest.raises(MessageRefusedError, match=r"2 messages already wait, which is the limit \(cap 2\)"):
            say(it, "d", mode=late)
    assert it.state == before
    begin(it)
    assert say(it, "d", mode="steer").receipt.done == "steered"


def test_r10_8_the_text_of_messages_that_wait_for_a_run_counts() -> None:
    it = message_queue()
    for n in range(6):
        assert say(it, "x" * 100_000, id=f"m{n}").receipt.done == ("steered" if n else "started")
    with pytest.raises(MessageRefusedError, match="waiting messages have more than 500,000 characters"):
        say(it, "one more")


def test_r10_3_lost_steers_with_much_text_begin_several_runs() -> None:
    it = message_queue()
    say(it, "a")
    begin(it)
    for n in range(12):
        say(it, f"{n} {'x' * 99_000}", id=f"m{n}")
    it.ended()
    for first, count in ((0, 5), (5, 5), (10, 2)):
        assert [text.split()[0] for text in begin(it)] == [str(first + n) for n in range(count)]
        it.ended()


def test_r10_9_a_steer_by_a_stranger_follows() -> None:
    it = message_queue()
    say(it, "a", rights=["refunds"])
    begin(it)
    strange = say(it, "b", sender="eve")
    assert (strange.receipt.done, strange.steer) == ("queued", False)
    assert (
        strange.receipt.why == f"'eve' does not have the rights of {SESSION}/1, so the message waits for the run's end"
    )
    cut = say(it, "c", sender="eve", mode="interrupt")
    assert (cut.receipt.done, cut.cancel) == ("queued", False)
    assert say(it, "d", sender="bob", rights=["refunds", "stop"]).steer
    it.ended({ann("d"): 2})
    step = it.next(0)
    assert isinstance(step, BeginRun)
    assert step.run.rights == []  # a run has its starter's


def test_r10_9_a_run_has_the_rights_of_the_next_messages_sender_after_a_withdrawal() -> None:
    it = message_queue()
    say(it, "a")
    say(it, "queued", mode="followup")
    assert say(it, "b", sender="bob", rights=["refunds"]).receipt.done == "steered"
    assert say(it, "c", sender="carl").receipt.done == "steered"
    assert say(it, "d", sender="dora", rights=ALL).receipt.done == "steered"
    assert [each.text for each in take_back(it, "a") or ()] == ["c"]  # carl has no right to refunds
    assert say(it, "e", sender="carl").receipt.done == "queued"
    receipt = say(it, "f", sender="carl", mode="interrupt").receipt
    assert (receipt.done, receipt.why) == (
        "queued",
        f"'carl' does not have the rights of {SESSION}/1, so the message waits for the run's end",
    )
    assert begin(it) == ["b", "d"]
    it.ended()
    for text in ("queued", "c", "e", "f"):
        assert begin(it) == [text]
        it.ended()


def test_r10_7_a_withdrawal_takes_no_message_from_a_run_that_has_begun() -> None:
    """A run that has not begun, and whose starter withdrew under 0.2.0, has the rights of that starter."""
    it = MessageQueue(SESSION, SessionRules(), None, lambda: False)
    say(it, "a")
    assert say(it, "b", sender="bob", rights=["refunds"]).receipt.done == "steered"
    assert say(it, "c", sender="carl").receipt.done == "steered"
    take_back(it, "a")
    it = MessageQueue(SESSION, it.rules, it.state)
    assert begin(it) == ["b", "c"]
    say(it, "d", mode="followup")
    assert take_back(it, "d") == []


def test_r10_7_a_steer_becomes_the_first_message_when_the_starting_message_is_withdrawn() -> None:
    it = message_queue()
    say(it, "a")
    say(it, "b", sender="bob")
    say(it, "c", sender="carl")
    take_back(it, "a")
    say(it, "/stop", rights=ALL)
    it.separate_steered()
    assert [each.text for each in it.ended()] == ["c"]


def test_r19_1_a_steer_with_another_context_follows() -> None:
    it = message_queue()
    say(it, "a", context={"customer": 1})
    begin(it)
    other = say(it, "b", sender="bob", context={"customer": 2})
    assert (other.receipt.done, other.steer) == ("queued", False)
    assert other.receipt.why == f"{SESSION}/1 has another context, so the message waits for the run's end"
    for number, context in enumerate(({}, {"customer": 1.0}, {"customer": True}, {"customer": 1, "admin": True})):
        assert not say(it, f"c{number}", context=context).steer
    assert say(it, "d", sender="bob", context={"customer": 1}).steer
    it.ended({message_key("bob", "d"): 2})
    contexts = []
    while isinstance(step := it.next(0), BeginRun):
        contexts.append([message.context for message in step.run.messages])
        it.begun()
        it.ended()
    assert contexts == [
        [{"customer": 2}],
        [{}],
        [{"customer": 1.0}],
        [{"customer": True}],
        [{"customer": 1, "admin": True}],
    ]


@pytest.mark.parametrize("joins", [True, False])
def test_r10_4_collect_joins_messages_of_the_same_settings(joins: bool) -> None:
    it = MessageQueue(SESSION, SessionRules(mode="collect"), is_patched=lambda: joins)
    note = {"context": [{"role": "user", "content": "from the trigger"}]}
    numbers = [say(it, text, settings=settings).queued for text, settings in (("a", note), ("b", note), ("c", {}))]
    assert [None if each is None else each.number for each in numbers] == ([1, 1, 2] if joins else [1, 2, 3])


def test_r19_1_collect_joins_messages_of_one_context() -> None:
    it = message_queue(mode="collect")
    first, joined = say(it, "a", context={"a": 1, "b": 2}), say(it, "b", context={"b": 2, "a": 1})
    other = say(it, "c", context={"a": 2})
    assert first.receipt.run_id == joined.receipt.run_id != other.receipt.run_id
    assert other.receipt.why is not None
    assert "context or route" in other.receipt.why


def test_r19_1_another_context_is_another_message() -> None:
    it = message_queue()
    say(it, "a", context={"customer": 1})
    assert it.judge(Message(message_id="a", sender="ann", text="a", context={"customer": 1})) is not None
    with pytest.raises(MessageRefusedError, match="another message"):
        it.judge(Message(message_id="a", sender="ann", text="a", context={"customer": 2}))
    with pytest.raises(MessageRefusedError, match="another message"):
        it.judge(Message(message_id="a", sender="ann", text="a"))


@pytest.mark.parametrize(
    "text", ["> /stop", "he said: /stop", "`/stop`", "/stop now", "/STOP", '"/stop"', "/stop\n> /stop"]
)
def test_r10_9_a_command_counts_only_as_all_that_is_said(text: str) -> None:
    it = message_queue()
    say(it, "a")
    begin(it)
    said = say(it, text, rights=ALL)
    assert (said.receipt.done, said.cancel) == ("steered", False)


def test_r10_9_commands_need_the_right_to_them() -> None:
    it = message_queue()
    say(it, "a")
    begin(it)
    for command in ("/stop", "/new", "/reset"):
        with pytest.raises(MessageRefusedError, match=f"may not send {command}: the right '{command[1:]}' is missing"):
            say(it, command, rights=["refunds"])
    stopped = say(it, " /stop\n", sender="bob", rights=["stop"])
    assert (stopped.cancel, stopped.receipt.done, stopped.receipt.run_id) == (True, "stopped", f"{SESSION}/1")
    it.ended()
    nothing = say(it, "/stop", id="again", rights=["stop"])
    assert (nothing.cancel, nothing.receipt.why, nothing.receipt.run_id) == (False, "nothing runs", None)
    assert it.next(0) == QueueIdle()


def test_r10_10_a_new_branch_begins_in_its_turn() -> None:
    it = message_queue()
    say(it, "a")
    begin(it)
    assert say(it, "/new", rights=ALL).receipt.done == "queued"
    after = say(it, "b").receipt
    assert (after.done, after.position, after.why) == ("queued", 2, "/new waits before it")
    it.ended()
    step = it.next(0)
    assert isinstance(step, RunCommand)
    assert step.command.text == "/new"
    assert begin(it) == ["b"]
    it.ended()
    assert say(it, "/reset", rights=ALL).receipt.done == "reset"
    assert isinstance(it.next(0), RunCommand)
    assert it.next(0) == QueueIdle()


def take_back(it: MessageQueue, id: str, sender: str = "ann", rights: list[str] | None = None) -> list[Queued] | None:
    return it.withdraw(it.judge_withdrawal(MessageWithdrawal(message_id=id, sender=sender, rights=rights or [])))


def test_r10_7_a_message_can_be_taken_back_until_a_request_holds_it() -> None:
    it = message_queue()
    say(it, "a")
    assert take_back(it, "a") is not None
    assert it.next(0) == QueueIdle()
    assert take_back(it, "a") is None  # once more is the same
    say(it, "b")
    begin(it)
    say(it, "c", mode="followup")
    say(it, "d")
    assert it.steered_into(ann("d")) == 2
    with pytest.raises(MessageRefusedError, match=f"Request 1 of {SESSION}/2 already has 'b'|a Request of"):
        take_back(it, "b")
    with pytest.raises(MessageRefusedError, match="'eve' may not withdraw a message of 'ann'"):
        take_back(it, "c", "eve")
    assert take_back(it, "c", "bob", ["withdraw"]) is not None
    it.ended({ann("d"): 3})
    with pytest.raises(MessageRefusedError, match=f"Request 3 of {SESSION}/2 already has 'd'"):
        take_back(it, "d")
    with pytest.raises(MessageRefusedError, match="no message 'x'"):
        take_back(it, "x")
    assert say(it, "c", mode="followup").queued is None  # its receipt stays


said = st.tuples(
    st.just("say"),
    st.integers(0, 30),
    st.sampled_from(["hi", "/stop", "/new", "/reset"]),
    st.sampled_from(MODES),
    st.sampled_from([[], ["x"], ["*"]]),
)
happens = st.one_of(
    said,
    said,
    st.tuples(st.just("begin")),
    st.tuples(st.just("end"), st.integers(0, 3)),
    st.tuples(st.just("pass"), st.sampled_from([0.1, 0.6])),
    st.tuples(st.just("back"), st.integers(0, 30)),
    st.tuples(st.just("anew")),
)


def steered_run(first: int, second: int, held: int) -> list[Any]:
    """Events of a run that gets a message, and ends: by chance they seldom come in this order."""
    return [("say", first, "hi", "steer", ["*"]), ("begin",), ("say", second, "hi", "steer", ["*"]), ("end", held)]


def collecting_run(messages: int) -> list[Any]:
    """Events of a run that gets a message between collected ones, and ends before a Request holds it."""
    collected = [("say", messages + n, "hi", "collect", ["*"]) for n in range(3)]
    steered = ("say", messages + 3, "hi", "steer", ["*"])
    return [
        ("say", 30, "hi", "steer", ["*"]),
        ("begin",),
        collected[0],
        steered,
        *collected[1:],
        ("end", 0),
        ("begin",),
    ]


def withdrawn_starter(first: int, second: int) -> list[Any]:
    """Events of a run whose starter withdraws, so that it begins with the message of a sender with more rights."""
    return [
        ("end", 0),
        ("say", first, "hi", "steer", []),
        ("say", second, "hi", "steer", ["x"]),
        ("say", 30, "hi", "steer", []),
        ("back", first),
    ]


several = (
    st.builds(withdrawn_starter, st.integers(0, 29), st.integers(0, 29))
    | st.builds(steered_run, st.integers(0, 30), st.integers(0, 30), st.integers(0, 1))
    | st.builds(collecting_run, st.integers(0, 26))
    | happens.map(lambda event: [event])
)


@settings(max_examples=400)
@given(st.lists(several, max_size=40), st.integers(1, 6))
def test_r10_3_whatever_happens_nothing_is_lost_and_nothing_waits_for_nothing(lists: list[Any], cap: int) -> None:
    it, now = message_queue(cap=cap), 0.0
    events = [event for events in lists for event in events]
    accepted: dict[str, Queued] = {}
    over: set[str] = set()
    numbers: list[int] = []
    for event in events:
        if event[0] == "say":
            _, n, text, mode, rights = event
            try:
                done = say(it, text, now, id=f"m{n}", mode=mode, rights=rights)
            except MessageRefusedError:
                continue
            if done.queued is not None:
                accepted[done.receipt.message_id] = done.queued
                if text == "/stop":
                    over.add(done.receipt.message_id)
        elif event[0] == "pass":
            now += event[1]
        elif event[0] == "back":
            try:
                if take_back(it, f"m{event[1]}") is not None:
                    over.add(f"m{event[1]}")
            except MessageRefusedError:
                pass
        elif event[0] == "end" and it.state.running is not None:
            running = it.state.running
            held = {each.key: 2 for each in running.steered[: event[1]]}
            over |= {each.message_id for each in [*running.steered[: event[1]], *running.messages]}
            it.ended(held)
            it.promise_anew({each.key for each in it.find_left_messages(running.number)})
        elif event[0] == "anew":  # over a continue-as-new
            it = MessageQueue(SESSION, it.rules, QueueState.model_validate_json(it.state.model_dump_json()))
        while isinstance(step := it.next(now), RunCommand):
            over.add(step.command.message_id)
        if isinstance(step, BeginRun) and event[0] == "begin":
            it.begun()
            numbers.append(step.run.number)
        assert len(set(numbers)) == len(numbers)
        running_messages = [] if it.state.running is None else [*it.state.running.messages, *it.state.running.steered]
        kept = [each.message_id for each in [*it.state.queue, *running_messages]]
        assert sorted([*kept, *over]) == sorted(accepted)  # each exactly once
        check_state(it.state)
        assert not (isinstance(step, QueueIdle) and it.state.queue)
        assert not isinstance(step, WaitUntil) or now < step.at <= now + 0.5


def check_state(state: QueueState) -> None:
    """Check that messages stand in the order in which they came, and that the run has the rights of its first sender."""
    if (running := state.running) is not None:
        assert running.rights == running.messages[0].rights
        assert all(covers(each.rights, running.rights) for each in [*running.messages, *running.steered])
    for messages in (state.queue, [] if state.running is None else state.running.messages):
        assert [each.seq for each in messages] == sorted(each.seq for each in messages)
