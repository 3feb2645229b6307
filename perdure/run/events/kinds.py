"""Which events there are: their topics and phases, and what each of them says. The one table of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from perdure.values.jsons import JsonObject
from perdure.values.limits import MAX_EVENT_DATA, MAX_REPLY

Topic: TypeAlias = Literal[
    "lifecycle", "request", "assistant", "reasoning", "tool", "approval", "compaction", "message", "reply", "hook"
]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that has happened, as whoever watches reads it (R10.14)."""

    topic: Topic
    phase: str
    """One of its topic's: see `TOPICS`."""
    at: str
    """ISO 8601, UTC, to the millisecond. Of a delta: when it was read."""
    run_id: str
    """The run that it belongs to; empty: it is the session's own."""
    data: JsonObject = field(default_factory=dict)
    """As `TOPICS` says. What was cut is named in `cut`."""
    cursor: str = ""
    """Where to go on behind this event."""

    def as_json(self) -> JsonObject:
        """As `perdure events --json` prints it, a line each."""
        return {
            "topic": self.topic,
            "phase": self.phase,
            "at": self.at,
            "runId": self.run_id,
            "cursor": self.cursor,
            "data": self.data,
        }


@dataclass(frozen=True, slots=True)
class Phase:
    """What one phase of a topic says."""

    when: str
    """When there is one, in words."""
    data: Mapping[str, str]
    """Key → what it is. Ends with `?`: only where there is something to say."""
    noted: bool = True
    """Whether a journal keeps it; others are made for each reader."""
    most: int = MAX_EVENT_DATA
    """Characters of its data: more is cut."""


_CALL: Final = {"call": "its id, `R.N`", "tool": "its tool's name"}
_HOOK: Final = {
    "event": "the name of what it is called at",
    "hook": "its name, `module:function`",
    "call?": "the call that it is about",
    "reason": "why",
}
_PIECE: Final = {
    "request": "the Request's number",
    "attempt": "which attempt of it writes",
    "start": "how many characters of this text come before",
    "text": "what was written since",
}
_SUPERSEDED: Final = {
    "request": "the Request's number",
    "attempt": "the attempt whose text does not count any more",
    "reason": "why",
}

TOPICS: Final[Mapping[Topic, Mapping[str, Phase]]] = {
    "lifecycle": {
        "start": Phase(
            "a run begins; in a session also each of its runs",
            {"agent": "its agent's name", "number?": "in a session: the run's number there"},
        ),
        "end": Phase(
            "it has ended with an output",
            {
                "status": "`completed`, or of a session `deleted`",
                "stopReason?": "why it stopped",
                "output?": "its output",
                "number?": "in a session: the run's number there",
            },
        ),
        "error": Phase(
            "it has ended without one",
            {
                "status": "`refused`, `failed`, `cancelled`, `terminated` or `timed_out`",
                "stopReason?": "the limit that it came to",
                "error?": "why, in a line",
                "number?": "in a session: the run's number there",
            },
        ),
        "reset": Phase(
            "Temporal has reset the run: what was told of it after the point from which it goes on does not count",
            {"number": "how often it was reset by then"},
        ),
        "snapshot": Phase(
            "what a reader has missed is not kept any more: this is how things stand",
            {
                "first": "the number of the first event that it has missed",
                "next": "the number of the next that it is given",
                "view": "the run, or the session, as `show --json` prints it, shortened",
            },
            noted=False,
        ),
    },
    "request": {
        "start": Phase(
            "a model is asked",
            {"number": "1 for the run's first", "model": "which one", "reason": "why this one"},
        ),
        "update": Phase(
            "it is asked again",
            {"number": "as at its start", "model": "who is asked now", "reason": "why it is asked again"},
        ),
        "end": Phase(
            "its answer is whole, or it has none",
            {
                "number": "as at its start",
                "model": "who has answered",
                "attempt?": "which attempt it is the answer of",
                "usage": "tokens, as its server counts them",
                "cost?": "dollars",
                "problem?": "why the answer is no use, or was ended",
                "says?": "`true`: it has a text, which `assistant` `end` tells once its calls have ended and it is known whether it counts",
            },
        ),
    },
    "assistant": {
        "delta": Phase("text was written", _PIECE, noted=False, most=MAX_REPLY),
        "superseded": Phase("what was written does not count any more", _SUPERSEDED, noted=False),
        "end": Phase(
            "the text is whole",
            {
                "request": "the Request's number",
                "attempt": "which attempt has written it",
                "text": "all of it",
                "anew?": "`true`: what was told of it while it was written was a thought, and no part of it",
                "accepted": "whether it counts: `false` where it is no output that fits, or calls beside it have failed",
                "output?": "`true`: it is the run's output, or becomes it",
                "reason?": "why it does not",
            },
            most=MAX_REPLY + MAX_EVENT_DATA,
        ),
    },
    "reasoning": {
        "delta": Phase("text was thought", _PIECE, noted=False, most=MAX_REPLY),
        "superseded": Phase("what was thought does not count any more", _SUPERSEDED, noted=False),
        "end": Phase(
            "it is whole", {"request": "the Request's number", "attempt": "which attempt", "characters": "how many"}
        ),
    },
    "tool": {
        "start": Phase("a call runs", _CALL | {"params": "its parameters", "runId?": "the run that it delegates to"}),
        "update": Phase(
            "its tool says how far it is, or is tried again",
            _CALL | {"attempt?": "which one runs", "progress?": "what it says", "reason?": "why it is tried again"},
        ),
        "end": Phase(
            "it has ended, also where it never ran",
            _CALL
            | {
                "status": "`done`, `failed`, `rejected`, `skipped`, `invalid`, `deferred` or `unknown`",
                "result?": "what it has returned",
                "error?": "`{code, message}`",
                "reason?": "why it was skipped",
                "attempts?": "how often it was begun",
            },
        ),
    },
    "approval": {
        "start": Phase(
            "a call, or a whole plan, waits for a person",
            {
                "call": "what a decision names: the call's id, or the Request's number for its plan",
                "tool": "its tool's name, empty for a plan",
                "params": "its parameters, none for a plan",
                "calls?": "a plan's calls, as they were written",
                "reason": "why it is asked about, or the question",
                "question?": "`true`: an answer is wanted, not a decision",
                "client?": "`true`: the program that started the run carries the call out, and answers with its result",
            },
        ),
        "end": Phase(
            "it does not wait any more",
            {
                "call": "as at its start",
                "tool": "as at its start",
                "decision?": "what was decided, or `dropped`: the call does not run any more; none of a plan that is offered anew",
                "by?": "who has decided",
                "reason?": "why",
            },
        ),
    },
    "hook": {
        "refused": Phase("a hook, or one that failed, does not let something happen", _HOOK),
        "failed": Phase("a hook that only looks has failed, and was gone past", _HOOK),
    },
    "compaction": {
        "start": Phase(
            "what was said is being summarised, or is cut for a model that takes less",
            {"reason": "why", "before?": "tokens before it"},
        ),
        "end": Phase(
            "it is done",
            {
                "reason": "why",
                "before?": "tokens before it",
                "after?": "tokens after it",
                "kind?": "`summary` (a model's) or `extract` (taken out of the messages), where anything was to be saved",
                "problem?": "why there is no summary",
            },
        ),
    },
    "message": {
        "accepted": Phase(
            "a message, or a command, was accepted",
            {
                "messageId": "its sender's key for it",
                "sender": "who has sent it",
                "mode?": "its mode",
                "text": "what it says",
                "done?": "in a session what its acceptance did, as its receipt says it",
                "position?": "how many wait before it, and with it",
                "runId?": "the run that takes it",
            },
        ),
        "taken": Phase(
            "a Request holds it, or a run has it; a command is carried out",
            {
                "messageId": "as above",
                "runId?": "the run",
                "request?": "the first Request that holds it",
                "command?": "the command",
            },
        ),
        "withdrawn": Phase("it was taken back, or will never be taken", {"messageId": "as above", "reason?": "why"}),
    },
    "reply": {
        "end": Phase(
            "what a run of the session answers",
            {"text?": "the reply", "reason?": "why there is none"},
            most=MAX_REPLY + MAX_EVENT_DATA,
        ),
        "delivery": Phase(
            "a reply was to be delivered, and this became of it",
            {
                "key": "`<run>/<reply>`",
                "kind": "`answer`, `reasoning`, `tools` or `failure`",
                "route": "where to",
                "status": "`delivered`, `refused` or `unknown`",
                "reason?": "why it was refused, or why nobody knows",
            },
        ),
    },
}
"""Everything that there is, in the order of docs/events.md."""


SAID_BY_SESSION: Final = frozenset(
    {
        ("lifecycle", "start"),
        ("lifecycle", "end"),
        ("lifecycle", "error"),
        ("message", "accepted"),
        ("message", "withdrawn"),
    }
)
"""What the journal of a session's run says that the session's says too: whoever reads the session is not told twice."""


def as_topic(name: Any) -> Topic | None:
    """The topic of this name; `None`: there is none."""
    return next((topic for topic in TOPICS if topic == name), None)
