"""The message queue of a session: accepted messages, modes, rights, and the next step.

A session has at most one active run. Accepted messages get the number of their run, which begins when the workflow
starts it. Without an active run, messages wait until a time (`WaitUntil`). So no message waits without an end.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from pydantic import Field

from perdure.approvals.requests import RunWaits
from perdure.errors import InputError, MessageRefusedError
from perdure.runs.caller_context import check_context, same_context
from perdure.sessions.wire import (
    CAP,
    EVERYTHING,
    QUIET,
    Acceptance,
    Message,
    MessageWithdrawal,
    Receipt,
    message_key,
    several_senders,
)
from perdure.values.json import JsonObject, WireModel
from perdure.values.limits import MAX_AGENT, MAX_NAME, MAX_REPORTS, MAX_SESSION_MESSAGE, MAX_STEERED, MAX_WAITING_TEXT
from perdure.values.messages import Mode, SessionRules
from perdure.values.sizes import Sizes

_NAMED: Final = 5
"""Runs that a rejection names."""


class Queued(WireModel):
    """A message that was accepted, until a run has taken it."""

    message_id: str
    sender: str
    rights: list[str]
    text: str
    mode: Mode
    route: str = ""
    seq: int
    """Number in the order of acceptance."""
    number: int | None = None
    """Number of the run that is to take it, with all messages of the same number; `None` for a command."""
    at: float
    """Seconds since 1970, of its acceptance."""
    settings: JsonObject = Field(default_factory=dict)
    """Settings of the message."""
    context: JsonObject = Field(default_factory=dict, exclude_if=operator.not_)
    """Context of the message (R19.1)."""

    @property
    def key(self) -> str:
        """The name of the message in the session."""
        return message_key(self.sender, self.message_id)

    def joins(self, other: Queued) -> bool:
        """Whether one run may take both messages: their rights, routes, settings and contexts are the same (R10.4)."""
        same = (set(self.rights), self.route, self.settings) == (set(other.rights), other.route, other.settings)
        return same and same_context(self.context, other.context)


class ActiveRun(WireModel):
    """The active run, or the run that waits for a worker with room."""

    number: int
    rights: list[str]
    """Rights of the sender who started it (R10.9)."""
    messages: list[Queued]
    """Messages with which it begins."""
    steered: list[Queued] = Field(default_factory=list)
    """Messages that it received since."""
    begun: bool = False
    ending: str | None = None
    """Reason of its cancellation."""
    waits: bool = False
    """Whether it waits for a person, by its last report."""
    told: int = 0
    """Number of that report."""
    below: dict[str, RunWaits] = Field(default_factory=dict)
    """Last reports of the runs below it, by their ids."""

    @property
    def waiting_below(self) -> list[str]:
        """The ids of the runs below it that wait for a person."""
        return sorted(run_id for run_id, report in self.below.items() if report.waits)

    @property
    def is_asking(self) -> bool:
        """Whether it, or a run below it, waits for a person."""
        return self.waits or bool(self.waiting_below)

    def forget(self, report: RunWaits) -> None:
        """Forget the runs below the reporting one that have ended with it, or are from before a reset."""
        gone = [run_id for run_id, kept in self.below.items() if report.forgets(run_id) and kept.count < report.count]
        for run_id in gone:
            del self.below[run_id]

    def report(self, waits: RunWaits) -> None:
        """Record the report of a run below it. No run below an ended run waits."""
        before = self.below.pop(waits.run_id, None)
        self.below[waits.run_id] = waits if before is None or waits.count > before.count else before
        self.forget(waits)
        if len(self.below) > MAX_REPORTS:  # the oldest report of a run that no longer waits is removed first
            done = (run_id for run_id, report in self.below.items() if not report.waits)
            del self.below[next(done, waits.run_id)]


class KnownMessage(WireModel):
    """The record of a message, to answer if it is sent again or withdrawn."""

    body: str
    at: str
    """Time of acceptance, as its receipt names it."""
    done: Acceptance
    why: str | None = None
    position: int = 0
    promised: int | None = None
    """Number of the run that its receipt names."""
    number: int | None = None
    """Number of the run that has taken it, or is to take it."""
    request: int | None = None
    """First Request that held it, once that is known."""
    withdrawn: bool = False


class QueueState(WireModel):
    """The state of a queue that continue-as-new carries over."""

    born: str = ""
    """Mark that separates this session's run ids from those of an earlier session with the same key."""
    earlier: dict[str, int] = Field(default_factory=dict, exclude_if=operator.not_)
    """Earlier marks of an imported session, each with the number of the last run that has it."""
    seq: int = 0
    number: int = 0
    """Number of the last promised run."""
    queue: list[Queued] = Field(default_factory=list)
    running: ActiveRun | None = None
    known: dict[str, KnownMessage] = Field(default_factory=dict)
    """Known messages by `message_key`; Perdure 0.1.0 wrote them by the message's id."""


@dataclass(frozen=True, slots=True)
class AcceptedMessage:
    """The effects of acceptance, with its receipt."""

    receipt: Receipt
    queued: Queued | None = None
    """Message as it was accepted; `None` if it was accepted earlier."""
    steer: bool = False
    """Whether the active run receives it."""
    cancel: bool = False
    """Whether the active run is to be cancelled."""


@dataclass(frozen=True, slots=True)
class BeginRun:
    """The next step: start this run."""

    run: ActiveRun


@dataclass(frozen=True, slots=True)
class RunCommand:
    """The next step: execute this command."""

    command: Queued


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """The next step: wait until this time (seconds since 1970), unless a message arrives."""

    at: float


@dataclass(frozen=True, slots=True)
class RunActive:
    """The next step: none, because a run is active."""


@dataclass(frozen=True, slots=True)
class QueueIdle:
    """The next step: none, because no message waits and no run is active."""


QueueStep: TypeAlias = BeginRun | RunCommand | WaitUntil | RunActive | QueueIdle


def covers(rights: Iterable[str], wanted: Iterable[str]) -> bool:
    """Whether these rights include all wanted ones."""
    has = set(rights)
    return EVERYTHING in has or set(wanted) <= has


def check_right(sender: str, rights: Iterable[str], wanted: str, what: str) -> None:
    """Raise `MessageRefusedError` where `sender` lacks the right."""
    if not covers(rights, [wanted]):
        raise MessageRefusedError(f"{sender!r} may not {what}: the right {wanted!r} is missing")


def check_command(message: Message) -> None:
    """Check the right for a command, which has the command's name. Raise `MessageRefusedError`."""
    if message.command is not None:
        check_right(message.sender, message.rights, message.command[1:], f"send {message.command}")


def check_name(name: str, what: str) -> None:
    """Check that a key, a sender or an id has printable characters. Raise `MessageRefusedError`."""
    if not name.strip():
        raise MessageRefusedError(f"{what} is empty")
    if not name.isprintable():
        raise MessageRefusedError(f"{what} has characters that cannot be printed: {name[:50]!r}")
    if len(name) > MAX_NAME:
        raise MessageRefusedError(f"{what} has {len(name):,} characters; the limit is {MAX_NAME}: {name[:50]!r}…")


def check_text(text: str) -> None:
    """Check that a text can be encoded as UTF-8. Raise `MessageRefusedError`.

    Invalid bytes of a terminal arrive as surrogates.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise MessageRefusedError(
            f"the message is not valid text: its character {error.start + 1:,} is an unpaired surrogate"
        ) from None


def check_content(message: Message) -> None:
    """Check that a message can be accepted at all. Raise `MessageRefusedError`."""
    for each in (message.text, message.route, *message.rights):
        check_text(each)
    check_name(message.message_id, "the message's id")
    check_name(message.sender, "the sender")
    if (
        len(message.route) > MAX_NAME
        or len(message.rights) > MAX_NAME
        or any(len(each) > MAX_NAME for each in message.rights)
    ):
        raise MessageRefusedError(
            f"a route and each right may have {MAX_NAME} characters, and a message may have {MAX_NAME} rights"
        )
    if not message.text.strip():
        raise MessageRefusedError("the message is empty")
    if (size := len(message.text.encode())) > MAX_SESSION_MESSAGE:
        raise MessageRefusedError(
            f"the message has {size:,} bytes; the limit is {MAX_SESSION_MESSAGE:,}: name a file in it instead"
        )
    judge_context(message)


def judge_context(message: Message, schema: JsonObject | bool = True) -> None:
    """Check the context of a message; `schema`: the answering agent's. Raise `MessageRefusedError`."""
    try:
        check_context(message.context, schema)
    except InputError as error:
        raise MessageRefusedError(str(error)) from None


class MessageQueue:
    """The message queue. `rules` are the session's over its agent's; `session` is its workflow's id.

    `is_patched`: whether changes after 0.2.0 apply to this execution. Call it only where they change the result: it
    records a marker.
    """

    def __init__(
        self,
        session: str,
        rules: SessionRules,
        state: QueueState | None = None,
        is_patched: Callable[[], bool] = lambda: True,
    ) -> None:
        self._is_patched = is_patched
        self.session = session
        self.rules = rules
        self.state = state or QueueState()

    def run_id(self, number: int) -> str:
        """Return a run's id. It stays unique, even if a new session has the same key."""
        earlier = self.state.earlier.items()
        mark = next((mark for mark, last in earlier if number <= last), self.state.born)
        return f"{self.session}/{mark}{number}"

    def number_of(self, run_id: str) -> int | None:
        """Return the number of a run of this session."""
        for mark in (*self.state.earlier, self.state.born):
            number = run_id.removeprefix(f"{self.session}/{mark}")
            if number.isdecimal() and len(number) < 10 and self.run_id(int(number)) == run_id:
                return int(number)
        return None

    def import_runs(self, born: str) -> None:
        """Use another mark for the ids of further runs: the exported session may have given the next numbers."""
        self.state.earlier[self.state.born] = self.state.number
        self.state.born = born

    @property
    def cap(self) -> int:
        return CAP if self.rules.cap is None else self.rules.cap

    def judge(self, message: Message) -> Receipt | None:
        """Return the receipt of a message that was accepted before; `None` if it may be accepted now. Change nothing.

        Raise `MessageRefusedError` for another message of the same id, a message above a limit of waiting messages, a
        command without its right, and a message that must not wait.
        """
        check_content(message)
        if (known := self.state.known.get(message.key)) is not None:
            if known.body != message.body:
                raise MessageRefusedError(f"the id {message.message_id!r} belongs to another message of this session")
            return self.receipt(message.key)
        check_command(message)
        running, queue = self.state.running, self.state.queue
        if message.command == "/stop":
            return None
        if self._mode(message) == "reject" and (running is not None or queue):
            what = "a run is active" if running is not None else f"{len(queue)} wait"
            raise MessageRefusedError(f"{what}, and a message with mode reject does not wait")
        excess = None if self._steered(message)[0] is not None else self._excess(message, queue)
        if excess is None and running is not None and not running.begun:  # its further messages wait, too
            joined = self._excess(message, [*running.messages[1:], *queue])
            excess = joined if joined is not None and self._is_patched() else None
        if excess is not None:
            raise MessageRefusedError(f"{excess}; send the message later")
        return None

    def _excess(self, message: Message, waiting: Sequence[Queued]) -> str | None:
        """Return the limit that the message would exceed together with the waiting ones; `None`: it exceeds none."""
        if len(waiting) >= self.cap:
            return f"{len(waiting)} messages already wait, which is the limit (cap {self.cap})"
        if message.settings and Sizes().of([message.settings, *(each.settings for each in waiting)]) > MAX_AGENT:
            return f"the settings of waiting messages have more than {MAX_AGENT:,} bytes"
        if len(message.text) + sum(len(each.text) for each in waiting) > MAX_WAITING_TEXT:
            return f"waiting messages have more than {MAX_WAITING_TEXT:,} characters"
        return None

    def accept(self, message: Message, now: float, at: str, text: str | None = None) -> AcceptedMessage:
        """Accept a message. Raise as `judge` does; a message that was accepted before changes nothing.

        `at` is `now` as ISO 8601. `text` replaces its text if hooks have changed it, and is never a command.
        """
        if (receipt := self.judge(message)) is not None:
            return AcceptedMessage(receipt)
        self.state.seq += 1
        queued = Queued(
            message_id=message.message_id,
            sender=message.sender,
            rights=sorted(set(message.rights)),
            text=message.command or (message.text if text is None else text),
            mode=self._mode(message),
            route=message.route,
            seq=self.state.seq,
            at=now,
            settings=message.settings,
            context=message.context,
        )
        accepted = self._command(queued, message.command) if message.command else self._message(queued, message)
        receipt = accepted.receipt.model_copy(update={"accepted_at": at})
        self.state.known[message.key] = KnownMessage(
            body=message.body,
            at=at,
            done=receipt.done,
            why=receipt.why,
            position=receipt.position,
            promised=None if receipt.run_id is None else self.number_of(receipt.run_id),
            number=queued.number,
        )
        return replace(accepted, receipt=receipt)

    def receipt(self, key: str) -> Receipt:
        """Return the unchanged receipt of a known message (R10.1)."""
        known = self.state.known[key]
        return Receipt(
            run_id=None if known.promised is None else self.run_id(known.promised),
            message_id=key.partition("\n")[2],
            position=known.position,
            accepted_at=known.at,
            done=known.done,
            why=known.why,
        )

    def _mode(self, message: Message) -> Mode:
        return message.mode or self.rules.mode or ("followup" if self._is_asking else "steer")

    @property
    def _is_asking(self) -> bool:
        """Whether the run waits for a person. The next message then waits for the run, and withdraws no approval
        request (R10.4).
        """
        return self.state.running is not None and self.state.running.is_asking

    def _steered(self, message: Message) -> tuple[ActiveRun | None, str | None]:
        """Return the active run if a message steers it; otherwise the reason why not, if the message's mode is to
        steer.
        """
        running = self.state.running
        if running is None or message.command:
            return None, None
        run = self.run_id(running.number)
        if self._is_asking and not (message.mode or self.rules.mode):
            return (
                None,
                f"{run} waits for a person, so the message waits for the run's end; the mode steer delivers it now",
            )
        if self._mode(message) != "steer":
            return None, None
        if message.settings:
            return None, "its settings need a run of its own"
        if (first := running.messages[0]).settings and first.sender != message.sender:
            return None, f"{run} has settings of {first.sender!r}, so the message waits for the run's end"
        if not covers(message.rights, running.rights):
            return None, f"{message.sender!r} does not have the rights of {run}, so the message waits for the run's end"
        if not same_context(message.context, first.context):
            return None, f"{run} has another context, so the message waits for the run's end"
        if running.ending is not None:
            return None, f"{run} is ending ({running.ending})"
        if len(running.steered) >= MAX_STEERED:
            return None, f"{run} already has {MAX_STEERED} messages"
        if commands := [each.text for each in self.state.queue if each.number is None]:
            return None, f"{commands[0]} waits before it"
        return running, None

    def _message(self, queued: Queued, message: Message) -> AcceptedMessage:
        running = self.state.running
        steered, why = self._steered(message)
        if steered is not None:
            queued.number = steered.number
            (steered.steered if steered.begun else steered.messages).append(queued)
            return AcceptedMessage(self._receipt(queued, 0, "steered"), queued, steer=steered.begun)
        cancel, done = False, "queued"
        if queued.mode == "collect":
            done, why = "collected", self._collect(queued)
        elif queued.mode == "interrupt" and running is not None:
            if covers(queued.rights, running.rights):
                cancel, done = running.ending is None, "interrupted"
                running.ending = running.ending or f"interrupted by {queued.message_id!r}"
            else:
                why = f"{queued.sender!r} does not have the rights of {self.run_id(running.number)}, so the message waits for the run's end"
        if queued.number is None:
            queued.number = self._promise()
        self.state.queue.append(queued)
        position = len(self.state.queue)
        if done == "queued" and running is None and position == 1:
            position, done = 0, "started"
            self._take_head()
        elif done == "interrupted" and position > 1:
            why = f"{position - 1} wait before it"
        return AcceptedMessage(self._receipt(queued, position, done, why), queued, cancel=cancel)

    def _collect(self, queued: Queued) -> str | None:
        """Join a message to those at the end of the queue, if allowed; return the reason if not."""
        last = self.state.queue[-1] if self.state.queue else None
        if last is None or last.mode != "collect" or last.number is None:
            return None
        if not self._share_run(last, queued):
            return "earlier messages have other rights, settings, context or route, so this message is handled alone"
        queued.number = last.number
        return None

    def _command(self, queued: Queued, command: str) -> AcceptedMessage:
        running = self.state.running
        if command == "/stop":
            cancel = running is not None and running.ending is None
            if running is not None:
                running.ending = running.ending or f"stopped by {queued.sender!r}"
            why = None if running is not None else "nothing runs"
            receipt = self._receipt(queued, 0, "stopped", why)
            if running is not None:
                receipt.run_id = self.run_id(running.number)
            return AcceptedMessage(receipt, queued, cancel=cancel)
        waits = running is not None or bool(self.state.queue)
        self.state.queue.append(queued)
        why = "earlier messages are handled first" if waits else None
        done: Acceptance = "queued" if waits else ("new" if command == "/new" else "reset")
        return AcceptedMessage(self._receipt(queued, len(self.state.queue) if waits else 0, done, why), queued)

    def _receipt(self, queued: Queued, position: int, done: str, why: str | None = None) -> Receipt:
        run_id = None if queued.number is None else self.run_id(queued.number)
        return Receipt.model_validate(
            {
                "run_id": run_id,
                "message_id": queued.message_id,
                "position": position,
                "accepted_at": "",
                "done": done,
                "why": why,
            }
        )

    def _promise(self) -> int:
        self.state.number += 1
        return self.state.number

    def next(self, now: float) -> QueueStep:
        """Return the next step. A command that it returns has left the queue."""
        state = self.state
        if state.running is None and state.queue:
            if state.queue[0].number is None:
                return RunCommand(state.queue.pop(0))
            if (until := self._quiet_until()) > now:
                return WaitUntil(until)
            self._take_head()
        if state.running is None:
            return QueueIdle()
        return RunActive() if state.running.begun else BeginRun(state.running)

    def _quiet_until(self) -> float:
        """Return the time at which the messages at the queue's head may begin.

        Collected messages begin after a quiet time, unless no further message can join them.
        """
        head = self._head()
        if head[-1].mode != "collect" or len(head) < len(self.state.queue) or len(self.state.queue) >= self.cap:
            return 0.0
        return head[-1].at + (QUIET if self.rules.quiet is None else self.rules.quiet)

    def _head(self) -> list[Queued]:
        """Return the messages at the queue's head that begin one run together."""
        number = self.state.queue[0].number
        count = next((n for n, each in enumerate(self.state.queue) if each.number != number), len(self.state.queue))
        return self.state.queue[:count]

    def _take_head(self) -> None:
        head = self._head()
        assert head[0].number is not None
        del self.state.queue[: len(head)]
        self.state.running = ActiveRun(number=head[0].number, rights=head[0].rights, messages=head)

    def begun(self) -> None:
        """Record that the run was started: it receives later messages by signal."""
        assert self.state.running is not None
        self.state.running.begun = True

    def waits(self, report: RunWaits) -> None:
        """Record a report of the run, or of a run below it, whether it waits for a person."""
        running = self.state.running
        if running is None:
            return
        own = self.run_id(running.number)
        if report.run_id.startswith(f"{own}/"):
            running.report(report)
        elif report.run_id == own and report.count > running.told:
            running.waits, running.told = report.waits, report.count
            running.forget(report)

    def deciding(self) -> list[str]:
        """Return the ids of the runs that wait for a person, the active run first."""
        running = self.state.running
        if running is None:
            return []
        return [*([self.run_id(running.number)] if running.waits else []), *running.waiting_below]

    def decided_run(self, run_id: str | None = None) -> str:
        """Return the id of a decision's run: the named one, the active run, or the only one below it that waits.

        Raise `MessageRefusedError` if no such run waits, or several wait.
        """
        running = self.state.running
        if running is None or not running.begun:
            raise MessageRefusedError("no run waits for a decision")
        own, waiting = self.run_id(running.number), self.deciding()
        names = ", ".join(waiting[:_NAMED]) + (", …" if len(waiting) > _NAMED else "")
        if run_id is not None:
            if run_id != own and run_id not in waiting:
                where = f"but calls wait in {names}" if waiting else "or in another run of the session"
                raise MessageRefusedError(f"no call waits for a person in the run {run_id[:MAX_NAME]!r}, {where}")
            return run_id
        if running.waits or not waiting:  # an earlier version's run does not report
            return own
        if len(waiting) > 1:
            raise MessageRefusedError(
                f"calls wait for a person in {len(waiting)} runs below {own}: give one as 'run': {names}"
            )
        return waiting[0]

    def separate_steered(self) -> None:
        """Separate the run's first messages from those that steered it. The run ends before it has begun.

        The first message left is the run's own, even if it was accepted as a steer and the message before it was
        withdrawn.
        """
        running = self.state.running
        assert running is not None
        first = running.messages[0]

        def is_steered(message: Queued) -> bool:
            known = None if message is first else self.state.known.get(message.key)
            return known is not None and known.done == "steered" and known.promised == running.number

        running.steered = [each for each in running.messages if is_steered(each)]
        running.messages = [each for each in running.messages if not is_steered(each)]

    def ended(self, held: Mapping[str, int | None] | Collection[str] = ()) -> list[Queued]:
        """Record the run's end, with any outcome. Return the messages that no Request held.

        `held` names the messages that a Request held since the run began, with the Request's number. The others return
        to their place in the order of acceptance, and begin the next run (R10.3).
        """
        running = self.state.running
        assert running is not None
        self.state.running = None
        for message in running.messages:
            self._hold(message.key, 1)
        lost: list[Queued] = []
        for message in running.steered:
            if message.key in held:
                self._hold(message.key, held[message.key] if isinstance(held, Mapping) else None)
            else:
                lost.append(message)
        self._return_to_queue(lost)
        return lost

    def _return_to_queue(self, messages: Collection[Queued]) -> None:
        """Return messages of a run to their places in the order of acceptance: other runs take them."""
        self.state.queue = sorted([*messages, *self.state.queue], key=lambda each: each.seq)
        self.promise_anew({message.key for message in messages})

    def find_left_messages(self, ended: int) -> list[Queued]:
        """Return the waiting messages that need another run: their run has ended, or will begin without them.

        `ended`: the number of the run that has just ended. A run begins without a message if a lost message has
        returned to a place between the two.
        """
        found: list[Queued] = []
        numbers, before, again = {ended}, None, False
        for message in self.state.queue:
            if message.number is not None:
                if message.number != before:
                    again = message.number in numbers
                    numbers.add(message.number)
                found += [message] if again else []
            before = message.number
        return found

    def promise_anew(self, keys: Collection[str]) -> None:
        """Assign new runs to these waiting messages: adjacent messages share a run if allowed, up to `MAX_WAITING_TEXT`."""
        before: Queued | None = None
        size = 0
        for message in self.state.queue:
            if message.key not in keys:
                before = None
                continue
            shares = before is not None and self._share_run(before, message)
            size = len(message.text) + (size if shares else 0)
            if shares and size > MAX_WAITING_TEXT and self._is_patched():
                shares, size = False, len(message.text)
            message.number = before.number if before is not None and shares else self._promise()
            if (known := self.state.known.get(message.key)) is not None:
                known.number = message.number
            before = message

    def _share_run(self, first: Queued, second: Queued) -> bool:
        return first.joins(second) and (not first.settings or self._is_patched())

    def _hold(self, key: str, request: int | None) -> None:
        if (known := self.state.known.get(key)) is not None:
            known.request = request

    def resolve(self, message_id: str, sender: str = "") -> str | None:
        """Return the key of a known message. Without its sender, only one sender may have a message of this id (R10.1).

        Raise `MessageRefusedError` if several have one.
        """
        if sender:
            key = message_key(sender, message_id)
            return key if key in self.state.known else None
        found = [key for key in self.state.known if key.endswith(f"\n{message_id}")]
        if len(found) > 1:
            raise MessageRefusedError(several_senders(message_id, [key.partition("\n")[0] for key in found]))
        return found[0] if found else None

    def judge_withdrawal(self, withdrawal: MessageWithdrawal) -> str:
        """Return the key of a message that can be withdrawn, as far as the queue knows.

        Raise `MessageRefusedError` with the run or Request that holds it (R10.7).
        """
        key = self.resolve(withdrawal.message_id, withdrawal.of or withdrawal.sender)
        if key is None and not withdrawal.of:
            key = self.resolve(withdrawal.message_id)
        if key is None:
            raise MessageRefusedError(f"no message {withdrawal.message_id!r} can be withdrawn")
        known = self.state.known[key]
        if known.withdrawn:
            return key
        where = self._withdrawable(key)
        if where is None:
            if known.number is None:
                raise MessageRefusedError(f"{withdrawal.message_id!r} is a command that has already been executed")
            which = "a Request" if known.request is None else f"Request {known.request}"
            raise MessageRefusedError(f"{which} of {self.run_id(known.number)} already has {withdrawal.message_id!r}")
        if where.sender != withdrawal.sender and not covers(withdrawal.rights, ["withdraw"]):
            raise MessageRefusedError(f"{withdrawal.sender!r} may not withdraw a message of {where.sender!r}")
        return key

    def check_no_command(self, key: str) -> None:
        """Raise `MessageRefusedError` for a waiting command: its conversation began at its acceptance."""
        waiting = self._withdrawable(key)
        if waiting is not None and waiting.number is None:
            raise MessageRefusedError(
                f"{waiting.message_id!r} is {waiting.text}, which cannot be withdrawn: later messages already belong to the new conversation"
            )

    def _withdrawable(self, key: str) -> Queued | None:
        """Return the message, while it can be withdrawn."""
        running = self.state.running
        received = [] if running is None else [*running.steered, *([] if running.begun else running.messages)]
        return next((each for each in [*self.state.queue, *received] if each.key == key), None)

    def steered_into(self, key: str) -> int | None:
        """Return the number of the run that received it and knows whether a Request holds it."""
        running = self.state.running
        if running is not None and any(each.key == key for each in running.steered):
            return running.number
        return None

    def withdraw(self, key: str) -> list[Queued] | None:
        """Withdraw the message. A run without any first message does not begin.

        Return the messages that leave the run with it, because they lack a right of its next message (R10.9); `None` if
        it was withdrawn before.
        """
        message = self._withdrawable(key)
        if message is None:
            return None
        state, running = self.state, self.state.running
        state.known[key].withdrawn = True
        state.queue = [each for each in state.queue if each is not message]
        if running is None:
            return []
        running.steered = [each for each in running.steered if each is not message]
        running.messages = [each for each in running.messages if each is not message]
        if not running.messages:
            state.running = None
        elif not running.begun and (rights := running.messages[0].rights) != running.rights and self._is_patched():
            following = [each for each in running.messages if not covers(each.rights, rights)]
            running.rights = rights
            running.messages = [each for each in running.messages if each not in following]
            self._return_to_queue(following)
            return following
        return []
