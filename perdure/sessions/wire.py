"""Types that cross between clients, a session's workflow, and its activities."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field

from perdure.tools.quorum import Roles
from perdure.values.json import Json, JsonObject, Packed, ReadOnlyJson, WireModel, dumps
from perdure.values.limits import MAX_NAME
from perdure.values.messages import Mode, SessionRules

SESSION_WORKFLOW: Final = "Session"
KEY_WORKFLOW: Final = "IdempotencyKey"
"""Workflow that owns a sender's idempotency key, if no run owns it (R10.1)."""
SESSION_PREFIX: Final = "session-"
"""Beginning of each session's workflow id."""
LAST_USE_MEMO: Final = "lastUse"
"""Key of the memo that holds the time of a session's last use, ISO 8601, UTC; without it, the execution's start is that time."""
SEND: Final = "send"
"""Update, one `Message`: its `Receipt`, once the session's history has the message."""
WITHDRAW: Final = "withdraw"
"""Update, one `MessageWithdrawal`."""
DECIDE_IN_SESSION: Final = "decide"
"""Update, one `SessionDecision`: a person's decision on a call of the active run."""
SHOW: Final = "session"
"""Query: the session as `session show --json` prints it."""
COMPACT: Final = "compact"
"""Update, the sender and rights of a `SessionDeletion`: the conversation is compacted (R10.11)."""
FORK_INPUT: Final = "fork_input"
"""Query: the `SessionInput` of a fork. Its snapshot has only the rule record."""
FATE: Final = "fate"
"""Query, the id of a message or run: its `Fate`."""
REDELIVER: Final = "redeliver"
"""Update, one `Redelivery`: a reply of unknown arrival is delivered again."""
DESCRIBE: Final = "describe"
"""Update, one `Description`: the session keeps this metadata. Query: its `SessionInfo`."""
END: Final = "end"
"""Update, one `SessionDeletion`: the session ends, and its active run too."""
TURN: Final = "turn"
"""Signal, a run's id: a worker has room for it (R10.3)."""
TURN_ACTIVITY: Final = "perdure.turn"
"""Activity: take one of a worker's places for runs, and keep it until the run has ended (R10.3)."""
UNLIMITED_RUNS_PATCH: Final = "session-runs-unlimited"
"""Marker of a session's execution whose runs need no place. Only a worker without a limit of runs records it."""
CANCEL_ENDS_PATCH: Final = "session-cancel-ends"
"""Marker of a session whose workflow was cancelled: its run and its hooks end first. Before, it ended at once."""
SESSION_RULES_PATCH: Final = "session-rules"
"""Marker of a session's execution in which a rule since 0.2.0 has changed the result."""
AFTER_ACTIVITY: Final = "perdure.after"
"""Activity: return the `RunResult` of a run that ended without a result."""
UPDATE_RUN_ACTIVITY: Final = "perdure.say"
"""Activity: send a `RunUpdate` to a run, and return its `RunUpdateResult`."""

ENDED: Final = "the session has ended"
"""Error message of a deleted session, while the server still has it."""
UNKNOWN_AGENT: Final = "AgentUnknown"
"""Type of the failure of a message that names an agent file by a digest that the session does not have: send the file with it."""

Acceptance: TypeAlias = Literal["started", "steered", "queued", "collected", "interrupted", "stopped", "new", "reset"]
"""Effect of acceptance: the message begins a run, steers the active run, waits in the queue, joins other messages, or
interrupts the active run; or the command of this name was executed, or waits in the queue (`queued`)."""

EVERYTHING: Final = "*"
"""The right to everything."""
COMMANDS: Final = ("/stop", "/new", "/reset")
"""Texts that are a command if they are the whole message; each needs the right of its name without the slash (R10.9).
"""

SETTINGS: Final = ("context", "config", "schema", "metadata")
"""Keys of an agent file that a message may set for its own run."""

CAP: Final = 20
"""Messages that may wait; one more is refused (R10.8)."""
QUIET: Final = 0.5
"""Seconds without another message after which collected messages begin a run (R10.4)."""
WAIT: Final = 30.0
"""Seconds that `wait` waits (R10.1)."""


SenderName: TypeAlias = Annotated[str, Field(max_length=MAX_NAME)]


def message_key(sender: str, id: str) -> str:
    """Return the key of a message in its session: its sender and id. No sender's name has a line break (R10.1)."""
    return f"{sender}\n{id}"


def several_senders(id: str, senders: Iterable[str]) -> str:
    """Return the error message for an id that belongs to messages of several senders."""
    names = ", ".join(sorted(set(senders))[:5])
    return f"the id {id!r} belongs to messages of several senders ({names}): give the sender"


class Message(WireModel):
    """A message of a sender. The caller has verified sender and rights; the text proves neither (R10.9)."""

    message_id: str
    """The sender's idempotency key."""
    sender: str
    rights: list[str] = Field(default_factory=list)
    """`*`, `stop`, `new`, `reset`, `approve`, `withdraw`, `agent`, … and other rights that the caller compares."""
    text: str
    mode: Mode | None = None
    """`None`: the session's mode, or else its agent's."""
    route: str = ""
    """Route of the reply: only messages of one route are collected."""
    agent: str = ""
    """Digest of the agent file that is to answer; empty: the session's agent file."""
    document: JsonObject | None = None
    """The agent file, if the session does not have it yet."""
    delegates: dict[str, JsonObject] = Field(default_factory=dict)
    """Agent files of its delegates."""
    settings: JsonObject = Field(default_factory=dict)
    """Keys of the agent file (`SETTINGS`) that replace the agent's, only in the run that begins with this message
    (R10.9).
    """
    request: str = ""
    """Digest of the request with the message, if it holds more than the message."""
    context: JsonObject = Field(default_factory=dict, exclude_if=operator.not_)
    """The caller's data about the sender, for tools of the run that begins with the message (R19.1)."""

    @property
    def key(self) -> str:
        """The name of the message in the session, see `message_key`."""
        return message_key(self.sender, self.message_id)

    @property
    def body(self) -> str:
        """A digest of the message without its rights, which may change before it is sent again."""
        more = [self.request, {"context": self.context}] if self.context else [self.request] if self.request else []
        return digest([self.sender, self.text, self.mode, self.route, *more])

    @property
    def command(self) -> str | None:
        """The command, if it is the whole message; `None` for any other text."""
        return text if (text := self.text.strip()) in COMMANDS else None


class Receipt(WireModel):
    """The confirmation that a message is in the session's history.

    ```python
    receipt = await session.send("Two pears, too.", sender="ann")
    print(receipt.done, receipt.run_id)
    ```
    """

    # R10.1

    run_id: str | None
    """The run that takes it, which may not have begun; `None` for a command."""
    message_id: str
    position: int
    """The number of messages that wait, including this one and those before it; 0: it does not wait."""
    accepted_at: str
    """ISO 8601, UTC."""
    done: Acceptance
    why: str | None = None
    """The reason why the effect differs from its mode."""
    sender: str = Field(default="", exclude=True)
    """The sender of the message; the caller knows it, and no answer repeats it."""

    def as_json(self) -> JsonObject:
        plain = super().as_json()
        return {key: value for key, value in plain.items() if key != "why" or value is not None}


class WaitResult(WireModel):
    """The end of a run, as `Session.wait` and `Run.waited` return it.

    ```python
    if (await session.wait(receipt, timeout=60)).status == "timeout":
        print("still running")
    ```
    """

    # R10.1

    status: Literal["ok", "error", "timeout"]
    started_at: str | None = None
    """Time of its start, ISO 8601, UTC; `None`: it has not begun."""
    ended_at: str | None = None
    error: str | None = None  # R18.10
    """The reason of a failure; of a run that has not ended, why its workflow tasks fail, and what to do."""

    def as_json(self) -> JsonObject:
        plain = super().as_json()
        return {key: value for key, value in plain.items() if key != "error" or value is not None}


class Fate(WireModel):
    """The fate of a message, or of a run of the session."""

    known: bool = False
    run_id: str | None = None
    """Run that has taken the message, or will take it."""
    under_way: str | None = None
    """The active run, while the queried run or message waits for it."""
    state: Literal["queued", "running", "ended", "withdrawn"] = "queued"
    status: Literal["ok", "error"] | None = None
    """Result of an ended run."""
    started_at: str | None = None
    ended_at: str | None = None
    error: str | None = None
    reply: str | None = None


class MessageWithdrawal(WireModel):
    """The withdrawal of a message, by its sender or by a sender with the right `withdraw` (R10.7)."""

    message_id: str
    sender: SenderName
    """The person who withdraws it."""
    rights: list[str] = Field(default_factory=list)
    of: str = ""
    """The message's sender; empty: the person who withdraws it, or else the only sender with a message of this id."""


class SessionDecision(WireModel):
    """A decision on a call of the active run, or of one below it, by a sender with the right `approve` (R10.9)."""

    decision: JsonObject
    run: str | None = None
    """The id of the call's run; `None`: the active run, or the only one below it that waits."""
    sender: SenderName
    rights: list[str] = Field(default_factory=list)
    roles: Roles = Field(default_factory=list, exclude_if=operator.not_)
    """The sender's verified roles, for a quorum (R24.6)."""

    @property
    def signed(self) -> JsonObject:
        """The decision with the sender's name and roles, in place of its own."""
        own = {key: value for key, value in self.decision.items() if key not in ("by", "roles")}
        return own | {"by": self.sender} | ({"roles": self.roles} if self.roles else {})


class Redelivery(WireModel):
    """The repeated delivery of a reply, by a sender with the right `redeliver` (R24.2)."""

    delivery: str
    """Its key, `<run>/<reply>`."""
    sender: SenderName
    rights: list[str] = Field(default_factory=list)


METADATA_PAIRS, METADATA_KEY, METADATA_VALUE = 16, 64, 512
"""Pairs that a session keeps, and characters of their names and texts: OpenAI's limits."""


class Description(WireModel):
    """Metadata of a session: pairs of texts for the caller; no model reads them."""

    metadata: dict[Annotated[str, Field(max_length=METADATA_KEY)], Annotated[str, Field(max_length=METADATA_VALUE)]] = (
        Field(default_factory=dict, max_length=METADATA_PAIRS)
    )


class SessionInfo(Description):
    """A session's metadata and origin, without its messages.

    ```python
    info = await session.about()
    print(info.created_at, info.metadata)
    ```
    """

    session: str
    created_at: str = ""
    """Time of its start, ISO 8601, UTC; empty for a session of a version that did not record it."""


class SessionDeletion(WireModel):
    """The end of a session, by a sender with the right `delete`."""

    sender: SenderName
    rights: list[str] = Field(default_factory=list)
    last: int | None = Field(default=None, exclude_if=lambda last: last is None)
    """Number of the last entry that the sender has read: a session with a later message does not end."""


class RunUpdate(WireModel):
    """An update of a run that an activity sends, with its one argument."""

    run_id: str
    update: str
    argument: Json
    id: str = Field(default="", exclude_if=operator.not_)
    """The update's id. A run executes an update once for each id: a retry, or a reset of the session, sends the same id again."""


class RunUpdateResult(WireModel):
    """The answer to the update, or the reason of its rejection."""

    answer: Any = None  # its sender knows the form
    """JSON of the form that the update returns."""
    refused: str | None = None


class SessionInput(WireModel):
    """The input of the `Session` workflow: its owner, its agent, and its snapshot."""

    key: str
    tenant: str = ""
    rules: SessionRules = Field(default_factory=SessionRules)
    """The session's own rules."""
    agent: str = ""
    """Digest of `document`."""
    document: JsonObject = Field(default_factory=dict)
    """The agent file that answers; empty: the first message has one."""
    delegates: dict[str, JsonObject] = Field(default_factory=dict)
    """Agent files of its delegates (R8.1)."""
    metadata: dict[str, str] = Field(default_factory=dict)
    """Pairs of a `Description`."""
    created_at: str = ""
    """Time of the session's creation, ISO 8601, UTC; empty: the time of the first execution."""
    searchable: bool = False
    """Whether the namespace knows the search attributes of runs."""
    snapshot: Packed | None = None
    """A `SessionSnapshot`, set when the session continues in a new execution; its form is `SESSION_FORM`."""


class QueuedView(WireModel):
    """A message that waits, as `session show` prints it."""

    message_id: str
    sender: SenderName
    text: str
    mode: Mode
    run_id: str | None = None
    accepted_at: str


class SessionView(WireModel):
    """A session as `session show --json` prints it.

    ```python
    view = await session.show()
    print(view.status, len(view.queue))
    ```
    """

    session: str
    """Its key."""
    agent: str
    """The name of the agent that answers."""
    status: Literal["idle", "running", "waiting"] = "idle"
    """`waiting`: messages wait and no run has begun, or the run waits for a person."""
    queue: list[QueuedView] = Field(default_factory=list)
    entries: list[JsonObject] = Field(default_factory=list)
    """The session's own entries, oldest first."""
    archived_through: int = 0
    """The number of the last entry that is archived and not in `entries`; 0: `entries` has all."""
    run_id: str | None = None
    """The active run; not part of `session show --json`."""
    waiting_runs: list[str] = Field(default_factory=list)
    """Ids of the runs below it that wait for a person; not part of `session show --json`."""
    trouble: str = ""
    """Why the active run does not answer, and what to do; not part of `session show --json`."""

    def as_json(self) -> JsonObject:
        plain = super().as_json()
        del plain["runId"], plain["waitingRuns"], plain["trouble"]
        return plain


def session_id(tenant: str, key: str) -> str:
    """Return a session's workflow id, which no other tenant can name (R10.2)."""
    return f"{SESSION_PREFIX}{digest([tenant, key], 32)}"


def digest(what: ReadOnlyJson, length: int = 24) -> str:
    """Return a digest of JSON, with `length` hexadecimal digits."""
    return hashlib.sha256(dumps(what).encode(errors="surrogatepass")).hexdigest()[:length]
