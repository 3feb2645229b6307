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
"""Owns a sender's idempotency key that no run owns (R10.1)."""
SESSION_PREFIX: Final = "session-"
"""With which the workflow id of each begins."""
SEND: Final = "send"
"""Update, one `Message`: its `Receipt`, once the message stands in the session's history."""
WITHDRAW: Final = "withdraw"
"""Update, one `MessageWithdrawal`."""
DECIDE_IN_SESSION: Final = "decide"
"""Update, one `SessionDecision`: what a person decides of a call of the running run."""
SHOW: Final = "session"
"""Query: the session as `session show --json` prints it."""
COMPACT: Final = "compact"
"""Update, the sender and rights of a `SessionDeletion`: the conversation is compacted (R10.11)."""
FORK_INPUT: Final = "fork_input"
"""Query: the `SessionInput` that a fork begins with, but for its key and what it carries on."""
FATE: Final = "fate"
"""Query, a message's id or a run's: what has become of it, a `Fate`."""
REDELIVER: Final = "redeliver"
"""Update, one `Redelivery`: a reply of which nobody knows whether it arrived is delivered once more."""
DESCRIBE: Final = "describe"
"""Update, one `Description`: the session keeps this metadata. Query: its `SessionInfo`."""
END: Final = "end"
"""Update, one `SessionDeletion`: the session ends, and what runs in it."""
TURN: Final = "turn"
"""Signal, a run's id: a worker has room for it (R10.3)."""
TURN_ACTIVITY: Final = "perdure.turn"
"""Takes a place among the runs of a worker for a run, and keeps it until that has ended (R10.3)."""
UNLIMITED_RUNS_PATCH: Final = "session-runs-unlimited"
"""Marker of a session's execution whose runs wait for no room. Only a worker without a limit of runs records it."""
AFTER_ACTIVITY: Final = "perdure.after"
"""What a run that told nothing by its end has done: its `RunResult`."""
UPDATE_RUN_ACTIVITY: Final = "perdure.say"
"""Sends a `RunUpdate` to a run; returns its `RunUpdateResult`."""

ENDED: Final = "the session has ended"
"""What a session answers that was deleted, while the server still has it."""
UNKNOWN_AGENT: Final = "AgentUnknown"
"""Type of the failure of a message that names an agent file by a digest that the session does not have: send the file with it."""

Acceptance: TypeAlias = Literal["started", "steered", "queued", "collected", "interrupted", "stopped", "new", "reset"]
"""What acceptance did: the message begins a run now, was given to the running one, waits for its turn, was put together with others that
arrive now, has ended what ran; or the command of this name was carried out, or waits for its turn (`queued`)."""

EVERYTHING: Final = "*"
"""The right to everything."""
COMMANDS: Final = ("/stop", "/new", "/reset")
"""The words that are a command when they are a whole message; each needs the right of its name without the slash (R10.9)."""

SETTINGS: Final = ("context", "config", "schema", "metadata")
"""Keys of an agent file that a message may set for its own run."""

CAP: Final = 20
"""Messages that may wait; one more is refused (R10.8)."""
QUIET: Final = 0.5
"""Seconds without another message after which those collected begin a run (R10.4)."""
WAIT: Final = 30.0
"""Seconds that `wait` waits (R10.1)."""


SenderName: TypeAlias = Annotated[str, Field(max_length=MAX_NAME)]


def message_key(sender: str, id: str) -> str:
    """Return the name of a message in its session: an id belongs to its sender, and no sender's name has a line break (R10.1)."""
    return f"{sender}\n{id}"


def several_senders(id: str, senders: Iterable[str]) -> str:
    """Return the words for an id that names messages of several senders."""
    names = ", ".join(sorted(set(senders))[:5])
    return f"the id {id!r} names messages of several senders ({names}): name the sender"


class Message(WireModel):
    """A message of a sender. The front door has verified sender and rights; the text proves neither (R10.9)."""

    message_id: str
    """The sender's idempotency key."""
    sender: str
    rights: list[str] = Field(default_factory=list)
    """`*`, `stop`, `new`, `reset`, `approve`, `withdraw`, `agent`, … and whatever else the front door compares."""
    text: str
    mode: Mode | None = None
    """`None`: the session's, or else its agent's."""
    route: str = ""
    """Where the reply goes: only messages of one route are collected."""
    agent: str = ""
    """Digest of the agent file that is to answer; empty: the one that the session has."""
    document: JsonObject | None = None
    """That file, where the session does not have it yet."""
    delegates: dict[str, JsonObject] = Field(default_factory=dict)
    """Agent files that come along with it."""
    settings: JsonObject = Field(default_factory=dict)
    """Keys of the agent file (`SETTINGS`) that are others in the run that begins with this message, and in no other run (R10.9)."""
    request: str = ""
    """Digest of the request that it came with, if that holds more than the message."""
    context: JsonObject = Field(default_factory=dict, exclude_if=operator.not_)
    """What the front door knows of the sender: tools of the run that begins with it read that (R19.1)."""

    @property
    def key(self) -> str:
        """The name of the message in the session, see `message_key`."""
        return message_key(self.sender, self.message_id)

    @property
    def body(self) -> str:
        """A digest of what makes it this message and no other: not of the rights, which may change while it is sent again."""
        more = [self.request, {"context": self.context}] if self.context else [self.request] if self.request else []
        return digest([self.sender, self.text, self.mode, self.route, *more])

    @property
    def command(self) -> str | None:
        """The command that is the whole message; a command inside of a text is none."""
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
    """The run that takes it, also where it has not begun yet; `None`: a command, which takes no run."""
    message_id: str
    position: int
    """How many messages wait before it, and with it; 0: it waits for nothing."""
    accepted_at: str
    """ISO 8601, UTC."""
    done: Acceptance
    why: str | None = None
    """Why that is less than its mode asked for."""
    sender: str = Field(default="", exclude=True)
    """Whose message it is; the caller knows it, and no answer repeats it."""

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
    """ISO 8601, UTC; `None`: it has not begun."""
    ended_at: str | None = None
    error: str | None = None  # R18.10
    """The reason of a bad end; of a run that has not ended, why its workflow tasks fail, and what to do."""

    def as_json(self) -> JsonObject:
        plain = super().as_json()
        return {key: value for key, value in plain.items() if key != "error" or value is not None}


class Fate(WireModel):
    """The fate of a message, or of a run of the session."""

    known: bool = False
    run_id: str | None = None
    """Of a message: the run that has taken it, or is to."""
    under_way: str | None = None
    """The run that is under way, while the one that is asked about waits for it."""
    state: Literal["queued", "running", "ended", "withdrawn"] = "queued"
    status: Literal["ok", "error"] | None = None
    """Once it has ended."""
    started_at: str | None = None
    ended_at: str | None = None
    error: str | None = None
    reply: str | None = None


class MessageWithdrawal(WireModel):
    """A message is taken back, by its sender or by whoever has the right `withdraw` (R10.7)."""

    message_id: str
    sender: SenderName
    """Who takes it back."""
    rights: list[str] = Field(default_factory=list)
    of: str = ""
    """Who sent it; empty: the one who takes it back, or where that sender has no such message, the only one who has."""


class SessionDecision(WireModel):
    """A decision on a call of the running run, or of one below it, by whoever has the right `approve` (R10.9)."""

    decision: JsonObject
    run: str | None = None
    """The id of the run that the call is of; `None`: the running one, or the only one below it that waits."""
    sender: SenderName
    rights: list[str] = Field(default_factory=list)
    roles: Roles = Field(default_factory=list, exclude_if=operator.not_)
    """The sender's roles, for a quorum (R24.6); verified as the rights are."""

    @property
    def signed(self) -> JsonObject:
        """The decision with the sender's name and roles, in place of any that it has itself."""
        own = {key: value for key, value in self.decision.items() if key not in ("by", "roles")}
        return own | {"by": self.sender} | ({"roles": self.roles} if self.roles else {})


class Redelivery(WireModel):
    """A reply is delivered once more, by a sender with the right `redeliver` (R24.2)."""

    delivery: str
    """Its key, `<run>/<reply>`."""
    sender: SenderName
    rights: list[str] = Field(default_factory=list)


METADATA_PAIRS, METADATA_KEY, METADATA_VALUE = 16, 64, 512
"""Pairs that a session keeps, and characters of their names and texts: OpenAI's bounds."""


class Description(WireModel):
    """Pairs of texts that whoever began a session keeps with it; no model reads them."""

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
    """ISO 8601, UTC; empty: of a session that began before it was kept."""


class SessionDeletion(WireModel):
    """The session is ended by whoever has the right `delete`."""

    sender: SenderName
    rights: list[str] = Field(default_factory=list)


class RunUpdate(WireModel):
    """An update of a run that an activity sends, with its one argument."""

    run_id: str
    update: str
    argument: Json


class RunUpdateResult(WireModel):
    """The answer to the update, or the reason of its rejection."""

    answer: Any = None  # its sender knows the form
    """JSON of the form that the update returns."""
    refused: str | None = None


class SessionInput(WireModel):
    """The input of the `Session` workflow: whose it is and what answers in it, and all that it carries on."""

    key: str
    tenant: str = ""
    rules: SessionRules = Field(default_factory=SessionRules)
    """The session's own."""
    agent: str = ""
    """Digest of `document`."""
    document: JsonObject = Field(default_factory=dict)
    """The agent file that answers; empty: the first message names one."""
    delegates: dict[str, JsonObject] = Field(default_factory=dict)
    """Agent files that come along with it (R8.1)."""
    metadata: dict[str, str] = Field(default_factory=dict)
    """As a `Description` has it."""
    created_at: str = ""
    """ISO 8601, UTC; empty: it begins with this input."""
    searchable: bool = False
    """Whether the namespace knows the search attributes that a run is found by."""
    snapshot: Packed | None = None
    """A `SessionSnapshot`, set when the session goes on in a new execution; its form is `SESSION_FORM`."""


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
    """Oldest first, as far as the session has them at hand."""
    archived_through: int = 0
    """The number of the last entry that is in the archive and not in `entries`; 0: these are all."""
    run_id: str | None = None
    """The run under way; not part of `session show --json`."""
    waiting_runs: list[str] = Field(default_factory=list)
    """Ids of the runs below it that wait for a person; not part of `session show --json`."""
    trouble: str = ""
    """Why the run under way does not answer, and what to do; not part of `session show --json`."""

    def as_json(self) -> JsonObject:
        plain = super().as_json()
        del plain["runId"], plain["waitingRuns"], plain["trouble"]
        return plain


def session_id(tenant: str, key: str) -> str:
    """Return a session's workflow id: nobody who has another tenant can say it (R10.2)."""
    return f"{SESSION_PREFIX}{digest([tenant, key], 32)}"


def digest(what: ReadOnlyJson, length: int = 24) -> str:
    """Return a digest of JSON, in so many hexadecimal digits."""
    return hashlib.sha256(dumps(what).encode(errors="surrogatepass")).hexdigest()[:length]
