"""The state of a session: its queue, its transcript, its agent, and the input and the records of its runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from perdure.errors import MessageRefusedError, clip
from perdure.hooks.events import RunOwner
from perdure.rules import RuleRecord
from perdure.runs.agent import parse_agent
from perdure.runs.event_journal import EventJournal
from perdure.runs.provenance import CONVERSATION
from perdure.runs.routes import Delivered
from perdure.runs.sent_texts import was_sent
from perdure.runs.wire import RunInput, RunResult
from perdure.sessions.agent_file import document, input_name, with_settings
from perdure.sessions.entries import (
    CommandEntry,
    Entry,
    MessageEntry,
    ReplyEntry,
    RunEntry,
    delivery_entry,
    message_text,
    reply_of,
    run_entry,
)
from perdure.sessions.journal import SessionJournal
from perdure.sessions.message_queue import (
    AcceptedMessage,
    ActiveRun,
    KnownMessage,
    MessageQueue,
    Queued,
    QueueState,
    check_right,
    judge_context,
)
from perdure.sessions.replies import ATTEMPTS, ReplyAuthor, ReplyDelivery, deliveries
from perdure.sessions.status_webhooks import StatusWebhookChange, StatusWebhooks
from perdure.sessions.transcript import (
    SESSION_FORM,
    MessageFilter,
    SessionSnapshot,
    Transcript,
    TranscriptSnapshot,
    is_sent,
)
from perdure.sessions.views import find_fate, session_markdown
from perdure.sessions.wire import (
    Description,
    Fate,
    Message,
    MessageWithdrawal,
    QueuedView,
    Receipt,
    SessionInfo,
    SessionInput,
    SessionView,
    digest,
    message_key,
)
from perdure.values.json import JsonObject, pack
from perdure.values.limits import CONTEXT_TOKENS, MAX_AGENT, MAX_SHOWN_MESSAGE, MAX_STATE, MAX_STORED, bytes_text
from perdure.values.sizes import Sizes

_CONVERSATION: Final = f"†{CONVERSATION}"
_SILENT: Final = frozenset({"cancelled", "terminated", "timed_out"})
"""Ends of a run without a result: the session queries the run."""


class SessionState:
    """The state of a session, without its active run.

    `born` separates its runs from those of an earlier session with its key. `at` is the time when this execution began.
    `is_patched`: whether changes after 0.2.0 apply to this execution. Call it only where they change the result: it
    records a marker.
    """

    def __init__(
        self,
        argument: SessionInput,
        session_id: str,
        born: str,
        at: str,
        is_patched: Callable[[], bool] = lambda: True,
    ) -> None:
        self._input, self._is_patched = argument, is_patched
        snapshot = (
            None
            if argument.snapshot is None
            else argument.snapshot.read(SessionSnapshot, SESSION_FORM, "the snapshot that the session goes on from")
        )
        self.transcript = Transcript(None if snapshot is None else snapshot.transcript)
        self.remembered = MessageFilter("" if snapshot is None else snapshot.remembered)
        """Messages that are only in segments."""
        self.state: JsonObject | None = None if snapshot is None else snapshot.state
        """State that its runs have written; `None` if they have written nothing."""
        self.sources: dict[str, list[str]] = {} if snapshot is None else snapshot.sources
        """Sources of the state and the conversation, by reference (R15.1)."""
        message_queue = QueueState(born=f"{born}-") if snapshot is None else snapshot.message_queue
        message_queue.known = self._by_sender(message_queue)
        self.message_queue = MessageQueue(session_id, argument.rules, message_queue, is_patched)
        self.notes = SessionJournal(EventJournal(None if snapshot is None else snapshot.events))
        """Journal of the session's events."""
        self.to_deliver: list[ReplyDelivery] = [] if snapshot is None else snapshot.replies
        """Replies on their way; the first may be under way."""
        self.rule_record: RuleRecord | None = None if snapshot is None else snapshot.rule_record
        """The record of its runs, for rules over a session (R23.1)."""
        self.webhooks = StatusWebhooks([] if snapshot is None else snapshot.webhooks)
        self._read_agent()
        if not self.notes.events.count:
            self.notes.began(self.agent, at)

    def _by_sender(self, message_queue: QueueState) -> dict[str, KnownMessage]:
        """Return the known messages by `message_key`: Perdure 0.1.0 kept them by their ids."""
        entries: list[MessageEntry | CommandEntry | Queued] = [
            each for each in self.transcript.entries if is_sent(each)
        ]
        senders = {each.message_id: each.sender for each in [*entries, *message_queue.queue]}
        return {
            key if "\n" in key else message_key(senders.get(key, ""), key): known
            for key, known in message_queue.known.items()
        }

    def _read_agent(self) -> None:
        if not self._input.document:  # the session has no agent yet
            self.agent, self.models, self.message_queue.rules = "", {}, self._input.rules
            self.priority = self._input.rules.priority
            self.caller_context: JsonObject | bool = {}
            return
        agent = parse_agent(self._input.document)
        self.agent = agent.name
        self.caller_context = agent.caller_context
        self.message_queue.rules = self._input.rules.over(agent.config.session)
        self.models = agent.config.models.model_dump(exclude_unset=True)
        """Models, as the agent's file names them."""
        self.priority = self.message_queue.rules.priority or agent.config.priority
        """Priority of its runs; `None`: that of the session."""
        self.transcript.limit = min(self.transcript.limit, self.message_queue.rules.context_tokens or CONTEXT_TOKENS)

    @property
    def key(self) -> str:
        return self._input.key

    @property
    def tenant(self) -> str:
        return self._input.tenant

    @property
    def searchable(self) -> bool:
        return self._input.searchable

    def names_another_agent(self, message: Message) -> bool:
        """Whether the message has an agent file, or the digest of one, that the session does not have."""
        return (message.document is not None or message.agent != "") and message.agent != self._input.agent

    def judge(self, message: Message) -> None:
        """Check that a new message fits the agent that answers it: the message's own agent file, or the session's.

        Raise `MessageRefusedError`.
        """
        if not message.agent and not self._input.document:
            raise MessageRefusedError("the session has no agent yet: give one with the first message")
        another = message.document is not None and self.names_another_agent(message)
        if another:
            self._judge_agent(message)
        with_settings(message.document or self._input.document, message.settings)
        if message.command is None:  # the message begins a run, or joins one
            judge_context(message, parse_agent(message.document).caller_context if another else self.caller_context)

    def _judge_agent(self, message: Message) -> None:
        """Check that the message's agent file may replace the session's; an agent of another name needs a right
        (R10.2).
        """
        assert message.document is not None
        if digest([message.document, message.delegates]) != message.agent:
            raise MessageRefusedError("the agent file is not the message's agent")
        if (size := Sizes().of([message.document, message.delegates])) > MAX_AGENT:
            raise MessageRefusedError(f"the agent file has {size:,} bytes; the limit is {MAX_AGENT:,}")
        if self.agent and message.document.get("name") != self.agent:
            check_right(message.sender, message.rights, "agent", f"change the session's agent {self.agent!r}")
        input_name(message.document)

    def change_agent(self, message: Message) -> None:
        """Answer with the message's agent file from the next run on."""
        given = {"agent": message.agent, "document": message.document, "delegates": message.delegates}
        self._input = self._input.model_copy(update=given)
        self._read_agent()

    def describe(self, description: Description) -> None:
        """Replace the metadata."""
        self._input = self._input.model_copy(update={"metadata": description.metadata})

    @property
    def about(self) -> SessionInfo:
        return SessionInfo(session=self.key, metadata=self._input.metadata, created_at=self._input.created_at)

    def lose_rule_record(self) -> None:
        """Note that the record of some of its runs is lost: rules over the session assume the worst."""
        self.rule_record = self.rule_record or RuleRecord()
        self.rule_record.lost = True

    def carried(self) -> SessionInput:
        """Return the input of a new execution."""
        snapshot = SessionSnapshot(
            message_queue=self.message_queue.state,
            transcript=self.transcript.carried(),
            state=self.state,
            sources=self.sources,
            remembered=self.remembered.text,
            events=self.notes.events.carried(),
            replies=self.to_deliver,
            rule_record=self.rule_record,
            webhooks=self.webhooks.kept,
        )
        return self._input.model_copy(update={"snapshot": pack(snapshot, SESSION_FORM)})

    @property
    def fork_input(self) -> SessionInput:
        """Return the input of a new session with the same agent, rules and rule record."""
        snapshot = SessionSnapshot(
            message_queue=QueueState(), transcript=TranscriptSnapshot(), rule_record=self.rule_record
        )
        update = {"snapshot": pack(snapshot, SESSION_FORM), "metadata": {}, "created_at": ""}
        return self._input.model_copy(update=update)

    # Archived entries.

    def forgot(self, message: Message) -> bool:
        """Whether a message may have been accepted and archived (R10.1). Perdure 0.1.0 remembered only ids."""
        if message.key in self.message_queue.state.known:
            return False
        return message.key in self.remembered or message.message_id in self.remembered

    def answer(self, message: Message, known: JsonObject) -> Receipt:
        """Return the receipt of an archived message. Raise `MessageRefusedError` for another message of its id."""
        self.message_queue.state.known[message.key] = KnownMessage.model_validate(known)
        try:
            receipt = self.message_queue.judge(message)
        finally:
            del self.message_queue.state.known[message.key]
        assert receipt is not None
        return receipt

    def put_away(self, entries: Iterable[Entry]) -> None:
        """Add to archived entries the data for answers if their messages are sent again."""
        for entry in filter(is_sent, entries):
            known = self.message_queue.state.known.get(entry.key)
            if known is not None and not self._was_copied(entry):
                entry.known = known.model_dump(mode="json", by_alias=True, exclude_defaults=True)

    def gone(self, entries: Iterable[Entry]) -> None:
        """Drop entries that are in a segment now. A command that still waits for its turn stays known here."""
        waiting = {queued.key for queued in self.message_queue.state.queue}
        for entry in filter(is_sent, entries):
            if entry.key in waiting or (self._was_copied(entry) and self._is_patched()):
                continue
            self.message_queue.state.known.pop(entry.key, None)
            self.remembered.add(entry.key)

    def _was_copied(self, entry: Entry) -> bool:
        """Whether a fork copied the entry: its id names a message of another session, and may be used again here."""
        return entry.n < self.transcript.forked_at

    def check_last(self, last: int | None) -> None:
        """Raise `MessageRefusedError` where a message came after the entry `last`."""
        if last is None:
            return
        sent = [entry.n for entry in self.transcript.entries if is_sent(entry)]
        if max(self.transcript.archived_through, *sent[-1:], 0) > last:
            raise MessageRefusedError("a message has come meanwhile")

    # Changes of the session.

    def write(self, accepted: AcceptedMessage, queued: Queued) -> None:
        """Add an accepted message or command to the transcript."""
        at, run_id = accepted.receipt.accepted_at, accepted.receipt.run_id
        self.notes.accepted(queued, accepted.receipt)
        if queued.number is None:
            command = CommandEntry(at=at, command=queued.text[1:], message_id=queued.message_id, sender=queued.sender)
            self.transcript.append(command)
            return
        self.transcript.append(
            MessageEntry(
                at=at,
                message_id=queued.message_id,
                sender=queued.sender,
                text=queued.text,
                mode=queued.mode,
                run_id=run_id,
            )
        )

    def withdraw(self, withdrawal: MessageWithdrawal, at: str) -> None:
        """Record that a message was withdrawn; it stays in the transcript with that mark."""
        key = self.message_queue.judge_withdrawal(withdrawal)
        if (following := self.message_queue.withdraw(key)) is not None:
            self._assign_unread(following)
            self.transcript.settle(key, reason := f"withdrawn by {withdrawal.sender!r}")
            self.notes.withdrawn([withdrawal.message_id], reason, at)
            self.transcript.append(
                CommandEntry(at=at, command="withdraw", message_id=withdrawal.message_id, sender=withdrawal.sender)
            )

    def carry_out(self, command: Queued, at: str) -> None:
        """Execute a command. Its branch began at its acceptance; `/reset` also clears the state."""
        self.notes.carried_out(command, at)
        self.sources.pop(_CONVERSATION, None)
        if command.text == "/reset":
            self.state, self.sources = None, {}

    def never_ran(self, running: ActiveRun, at: str) -> None:
        """Record that a run was cancelled before it had begun. Its first messages stay in the conversation, and messages
        that steered it begin the next run.
        """
        why, run_id = running.ending or "its run did not start", self.message_queue.run_id(running.number)
        is_patched = self._is_patched()
        if is_patched:
            self.message_queue.separate_steered()
        for message in running.messages:
            self.transcript.settle(message.key, why, run_id if is_patched else None)
        if is_patched:
            self.transcript.append(RunEntry(at=at, run_id=run_id, status="cancelled", error=why))
            self.transcript.append(ReplyEntry(at=at, run_id=run_id, why=why))
        self.notes.withdrawn([message.message_id for message in running.messages], why, at)
        self._assign_unread(self.message_queue.ended())

    def run_input(self, running: ActiveRun) -> RunInput:
        """Return the input of a run: its agent with the conversation of its messages' branch, and the messages to
        answer.

        Its result may have any size that the workflow can receive, because only one run is active.
        """
        first, senders = running.messages[0], dict.fromkeys(each.sender for each in running.messages)
        begins = self.transcript.message(first.key)
        found = [self.transcript.message(each.key) for each in running.messages]
        agent = document(
            with_settings(self._input.document, first.settings),
            self.transcript.conversation(None if begins is None else begins.branch),
            self.state,
            [message_text(each) for each in found if each is not None],
        )
        return RunInput(
            agent=agent,
            delegates=self._input.delegates,
            sources=self.sources,
            whose=RunOwner(tenant=self.tenant, sender=first.sender, session=self.key, context=first.context),
            said=clip(running.messages[-1].text, MAX_SHOWN_MESSAGE),
            requesters=[sender for sender in senders if sender != first.sender],
            rule_record=self.rule_record,
            records=True,
            reasons="reasoning" in (self.message_queue.rules.verbose or ()),
            free=MAX_STORED,
        )

    def begun(self, running: ActiveRun, at: str) -> None:
        """Record that a run is started."""
        self.message_queue.begun()
        self.notes.run_began(running, self.message_queue.run_id(running.number), self.agent, at)

    def ended(self, running: ActiveRun, result: RunResult, started: str, at: str) -> list[ReplyDelivery]:
        """Record a run's end: its messages, calls, reply and state. Messages without an answer begin the next run.

        `at` is the time of the session's task. The run's own time has precedence: a query may return the end before its
        task has begun, at the time of the previous task. Return the replies to deliver to the routes of its messages.
        """
        at = result.ended_at or at
        run_id = self.message_queue.run_id(running.number)
        held = {
            message.key: heard.request
            for message in running.steered
            for heard in result.messages
            if heard.request is not None and heard.names(message.message_id, message.sender)
        }
        for message in running.messages:
            self.transcript.assign(message.key, run_id, 1)
        for message in running.steered:
            request = held.get(message.key)
            self.transcript.assign(message.key, None if request is None else run_id, request or 1)
        entry = run_entry(result, at)
        entry.run_id, entry.started_at = run_id, started
        self._keep_state(result, entry)
        if result.rule_record is not None:
            self.rule_record = self.rule_record or RuleRecord()
            self.rule_record.join(result.rule_record)
        elif result.status in _SILENT and result.ended_at is None:  # its record is not known
            self.lose_rule_record()
        read_sources = {*self.sources.get(_CONVERSATION, ()), *result.left.get(_CONVERSATION, ())}
        self.sources |= {_CONVERSATION: sorted(read_sources)} if read_sources else {}
        self.transcript.append(entry)
        completed = result.status == "completed"
        why = None if completed else running.ending or result.error or f"the run was {result.status}"
        reply = reply_of(result.output) if completed else None
        sent = reply is not None and was_sent(reply, result.sent)
        self.transcript.append(ReplyEntry(at=at, run_id=run_id, text=reply, why=why, sent=sent))
        self.notes.run_ended(running, run_id, result, why, at)
        self.notes.replied(run_id, reply, why, at)
        self._assign_unread(self.message_queue.ended(held))
        return deliveries(
            result, reply, running, held, self.message_queue.rules.verbose or (), speaker=self._speaker(run_id)
        )

    def separate(self, messages: Collection[Queued]) -> None:
        """Assign runs of their own to waiting messages whose run begins, or has ended, without them."""
        self.message_queue.promise_anew({message.key for message in messages})
        self._assign_unread(messages)

    def _assign_unread(self, messages: Iterable[Queued]) -> None:
        """Assign messages that no Request held to the runs that they begin."""
        for message in messages:
            assert message.number is not None
            self.transcript.assign(message.key, self.message_queue.run_id(message.number))

    def _speaker(self, run_id: str) -> ReplyAuthor:
        return ReplyAuthor(run_id=run_id, session=self.key, tenant=self.tenant, agent=self.agent)

    def judge_webhook(self, change: StatusWebhookChange) -> None:
        """Check that an address may be informed of a run. Raise `MessageRefusedError`, also for a run that is not the
        session's, and for an ended run whose status is archived.
        """
        run_id = change.webhook.run_id
        fate = self.fate(run_id)
        if not fate.known:
            raise MessageRefusedError(f"the session has no run {run_id!r}")
        if not change.remove and fate.state == "ended" and fate.status is None:
            raise MessageRefusedError(f"the run {run_id!r} has ended, and its entry is archived: read its status")
        self.webhooks.judge(change)

    def status_of(self, run_id: str) -> tuple[str, str | None]:
        """Return the status of a run, `waiting` if it waits for a person, and the reason of a failure. A run that has
        not begun is `running`.
        """
        running = self.message_queue.state.running
        if running is not None and self.message_queue.run_id(running.number) == run_id:
            return ("waiting" if running.is_asking else "running"), None
        for entry in reversed(self.transcript.entries):
            if isinstance(entry, RunEntry) and entry.run_id == run_id:
                return entry.status, entry.error
        fate = self.fate(run_id)
        if fate.state != "ended" or not fate.error:
            return "running", None
        return "cancelled" if self.never_began(run_id) else "failed", fate.error

    def never_began(self, run_id: str) -> bool:
        """Whether a run was stopped, or its messages withdrawn, before it began."""
        fate = self.fate(run_id)
        return fate.status == "error" and fate.started_at is None

    def delivered(self, delivery: ReplyDelivery, became: Delivered, text: str, at: str) -> None:
        """Record the outcome of a reply, and its final text."""
        is_answer = delivery.kind == "answer" and text == delivery.text
        # A redelivery has the text that hooks made: compare it with the run's answer.
        if is_answer and delivery.is_redelivery and text != self.transcript.reply(delivery.run_id):
            is_answer = not self._is_patched()
        self.transcript.append(delivery_entry(delivery, became, None if is_answer else text, at))
        self.notes.delivered(delivery, became, at)

    def redelivery(self, key: str) -> ReplyDelivery:
        """Return a delivery of unknown outcome, under the same key. Raise `MessageRefusedError` if there is none."""
        if any(each.key == key for each in self.to_deliver):
            raise MessageRefusedError(f"the delivery {key!r} is active")
        run_id, _, number = key.rpartition("/")
        before = [entry for entry in self.transcript.deliveries(run_id) if str(entry.number) == number]
        if not before:
            archived = (
                f", and entries up to {through} are archived" if (through := self.transcript.archived_through) else ""
            )
            raise MessageRefusedError(f"the session has no delivery {key!r} in its current entries{archived}")
        found = before[-1]
        if found.status != "unknown":
            raise MessageRefusedError(
                f"the delivery {key!r} is {found.status}; only an unknown delivery can be repeated"
            )
        text = found.text if found.text is not None else self.transcript.reply(run_id)
        if text is None:
            raise MessageRefusedError(f"the text of the delivery {key!r} is archived")
        return ReplyDelivery(
            key=key,
            kind=found.kind,
            text=text,
            route=found.route,
            run_id=run_id,
            number=found.number,
            session=self.key,
            tenant=self.tenant,
            agent=self.agent,
            message_ids=found.message_ids,
            sender=found.sender,
            earlier=ATTEMPTS * len(before),
            hooked=found.hooked or (found.kind == "answer" and found.text is not None),  # only hooks change an answer
        )

    def _keep_state(self, result: RunResult, entry: RunEntry) -> None:
        if not result.requests and not result.calls:
            return
        size = Sizes().of(result.state)
        if size > MAX_STATE or any(line.startswith("state ") for line in result.cut):
            words = f"its state is too large (the limit is {bytes_text(MAX_STATE)}), so the session keeps its previous state"
            entry.error = f"{entry.error}; {words}" if entry.error else words
            return
        self.state = result.state
        conversation = self.sources.get(_CONVERSATION, [])
        self.sources = {**result.left, **({_CONVERSATION: conversation} if conversation else {})}

    @property
    def active_run(self) -> dict[str, str]:
        """`run_id` and `sender` of the active run; empty where no run is active."""
        if (running := self.message_queue.state.running) is None:
            return {}
        return {"run_id": self.message_queue.run_id(running.number), "sender": running.messages[0].sender}

    @property
    def latest_run(self) -> dict[str, str]:
        """`run_id` and `sender` of the active run, or else of the last run in memory; empty where there is none."""
        entries = self.transcript.entries
        last = next((each.run_id for each in reversed(entries) if isinstance(each, RunEntry)), None)
        if self.active_run or last is None:
            return self.active_run
        senders = (each.sender for each in entries if isinstance(each, MessageEntry) and each.run_id == last)
        return {"run_id": last, "sender": next(senders, "")}

    # Views of the session.

    def details(self) -> str:
        """Return the session as Markdown, for the Web UI."""
        running = self.message_queue.state.running
        run_id = None if running is None else self.message_queue.run_id(running.number)
        return session_markdown(self.key, self.agent, self.message_queue.state, run_id, self.transcript.entries)

    def view(self) -> SessionView:
        state = self.message_queue.state
        running = state.running is not None and state.running.begun
        asks = state.running is not None and state.running.is_asking
        waits = state.queue or state.running is not None
        return SessionView(
            session=self.key,
            agent=self.agent,
            status="running" if running and not asks else "waiting" if waits else "idle",
            queue=[self._queued(each) for each in self._waiting()],
            entries=[entry.as_json() for entry in self.transcript.entries],
            archived_through=self.transcript.archived_through,
            run_id=self.message_queue.run_id(state.running.number) if state.running is not None and running else None,
            waiting_runs=[] if state.running is None else state.running.waiting_below,
        )

    def _waiting(self) -> list[Queued]:
        running = self.message_queue.state.running
        return [*([] if running is None or running.begun else running.messages), *self.message_queue.state.queue]

    def _queued(self, queued: Queued) -> QueuedView:
        return QueuedView(
            message_id=queued.message_id,
            sender=queued.sender,
            text=queued.text,
            mode=queued.mode,
            run_id=None if queued.number is None else self.message_queue.run_id(queued.number),
            accepted_at=self.message_queue.state.known[queued.key].at,
        )

    def fate(self, what: str, sender: str = "") -> Fate:
        """Return the fate of a message, or of a run of this session."""
        return find_fate(self.message_queue, self.transcript, what, sender)
