"""Limits: every number that bounds a value, a task, or a run, with its unit and its reason.

Temporal's limits are per payload, per task and per history; a run's are sums (section 18). Every number below has its unit and
its reason beside it; `sizes` measures, `fitting` makes fit, `sending` keeps the sums of a task and of a history, `steps` those of
what is checked. What can be read at all, its depth and its digits, `perdure.values.jsons` says, and of references
`perdure.values.references`; what a tool of Perdure's takes stands with the tool.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, TypeAlias

from pydantic import Field

# One value, and where it travels.

MAX_PAYLOAD: Final = 1_900_000
"""Bytes of JSON in one value. Temporal's limit is 2 MB, and what is over it is re-sent for ever; the rest is its frame."""

MAX_STORED: Final = 50_000_000
"""The same where values travel by external storage."""

INLINE: Final = 16_000
"""Bytes of a call's parameters up to which they travel in its command. Above, its activity asks the run for them by query,
which costs 5 ms, and neither the task nor the history grows (R18.2)."""

MAX_INLINE: Final = 1_000_000
"""The same of all calls that one task starts: the parameters of the others are asked for."""

INLINE_INPUT: Final = 64_000
"""Bytes of a delegate's input up to which it travels in the command that starts it: 500 of them are 32 MB of history. Above, it asks
the run above for it, which costs an activity."""

# One workflow task.

MAX_SENT: Final = 3_000_000
"""Bytes of all commands of one workflow task. The server takes 4 MiB, and ends a run that sends more."""

MAX_COMMANDS: Final = 50
"""Commands of one workflow task, and calls under way that may be quick: each of them may be back, as two events, while the next task
is under way, and of more than 100 the server breaks that task off. So as many start as come back; where none does, more start
when those before them have shown that they take longer than `QUICK`."""
QUICK: Final = 1.0
"""Seconds. On a machine that is busy with other work 60 calls come back in one, so no more than 50 may come to be under way in it."""

COMMAND: Final = 1_000
"""Bytes that a command has beside its payload: names, ids, timeouts, a summary."""

MAX_AT_ONCE: Final = 1_000
"""Activities of one Request at a time: the server takes 2,000 in all, and refuses the whole task beyond that."""
MAX_ID: Final = 1_000
"""Bytes of a workflow's id: the server refuses the whole task beyond that."""

# One history.

HISTORY_BYTES: Final = 50_000_000
"""Of one execution; the server ends a run whose history is larger."""
HISTORY_EVENTS: Final = 51_200
"""The same in events."""
NEAR: Final = 0.8
"""Part of either from which on a run that cannot go on as new asks its last Request (R18.4)."""
OVER: Final = 0.92
"""Part of either from which on what runs is broken off, for that last Request to have room."""

HELD_BACK: Final = 1_000_000
"""Bytes of results that may be on their way at once, but for one that is larger by itself. The server holds back what comes in
while a task is under way, and breaks the task off at 2 MiB of it; the other half is for what was not asked about."""
FREE_RESULT: Final = 256_000
"""Bytes of a result up to which it may be returned without asking, while the history has much room and few run."""
FREE_AT_ONCE: Final = 40_000
"""The same where many run: of results so large the server holds back 50, for their number."""
LEAST_RESULT: Final = 2_000
"""The same when it has little."""

RESULT_TOO_LARGE: Final = "result_too_large"
"""Code of a call whose result, or whose delegate's output, cannot be returned whole."""
HISTORY_FULL: Final = "history_full"
"""Code of one for which the history has no room."""

# One plan.

MAX_MESSAGE: Final = 10_000
"""Characters of an error's message: more is nothing that a model or a person reads."""

MAX_NAMED_BY_CALL: Final = 1_000
"""References, output paths and calls that one call names: one that joins the results of 500 names 500."""
MAX_NAMED: Final = 10_000
"""The same of all calls of a plan of up to 500; of more, as many for each: to read one and look it up takes up to 30 µs (R18.5)."""
MAX_EDGES: Final = 130_000
"""Edges of a plan, each a pair of a reference and a call that may write there. 500 calls that all read one path, and add to it,
have 124,750."""

MAX_FLOWS: Final = 200
"""Rules of a policy about where parameters come from."""
MAX_EDITED: Final = 10_000
"""Calls of a plan that a person sends: of more it is not even looked at what they are (R18.6). `max_calls` is mostly less."""

MAX_TEXT: Final = 10_000_000
"""Bytes of one text that values are embedded in, also where values travel by external storage: to make it takes 0.2 s (R18.5)."""
MAX_TEXTS: Final = 200_000_000
"""Bytes of all texts of a plan that values are embedded in: each is a copy, where a reference alone is none."""
MAX_OUTPUT_TEXTS: Final = 20_000_000
"""The same of an output, which is made in one task."""
MAX_OUTPUT: Final = 20_000_000
"""Bytes of an output with what it reads, where values do not travel by external storage: all of it is checked in one task (R18.5)."""
MAX_TEXTS_KEPT: Final = 20_000_000
"""Characters of the texts of values that are kept for the next reader, but for one that is longer by itself."""

MAX_RETRIES: Final = 10_000
"""Attempts of one call: Temporal counts them in 32 bits, and nobody tries anything that often."""

MAX_BUDGET: Final = 10**15
"""Tokens of a budget: no run uses a millionth of them, and what is shared out is divided, which no number of any length can be."""

# Delegates and loops.

MAX_DELEGATES_DEEP: Final = 5
"""Delegates inside delegates: one that delegates to itself ends here, with an error, and not never."""
MAX_PARALLEL: Final = 200
"""Iterations of one loop at a time: as many children report to one history."""
MAX_ROUNDS: Final = 10_000
"""Iterations of a loop until something holds: each is a run."""
MAX_INSIDE: Final = 100
"""Items that run inside the run's own workflow, each with a few events; more have a loop workflow (R16.1)."""
MAX_TURNS: Final = 500
"""Iterations, one after another, inside a run's own workflow: it goes on as new only between Requests."""
MAX_ROUNDS_INSIDE: Final = 10_000
"""Iterations of all loops of one Request that run inside the run's own workflow, those of loops inside loops among them: each is a plan
of its own and takes up to 1 ms (R16.6)."""
MAX_BODY_CALLS: Final = 100
"""Calls of a body: each iteration is a plan of so many."""
MAX_LOOPS_DEEP: Final = 5
"""Loops inside loops."""
MAX_SHARED: Final = 8_000
"""Bytes of what iterations are given recorded: it stands in the history once for each. Above it each records its own."""

# A model's answer, and what a program is sent.

MAX_ANSWER: Final = 1_500_000
"""Bytes of text, arguments and thoughts, after which an answer is ended. No model writes a third of it, and what is read of it
has to fit into one result."""
MAX_EVENT: Final = 4_000_000
"""Bytes of one event of a stream, or of a document in place of one. The longest answers are a tenth of it."""
MAX_BODY: Final = 64 * 1024 * 1024
"""Bytes of a request to the codec server: a page of a history, with room."""

# What a run carries on, keeps and shows.

MAX_CARRIED: Final = 15_000_000
"""Bytes of what a run carries on for which it is tried to go on in a new execution: to pack more takes too long for one task."""

MAX_KEPT: Final = 64_000_000
"""Bytes of parameters and results of ended calls that a run keeps by reference, to be read whole."""

MAX_VIEWED_EDGES: Final = 10_000
"""Edges between calls of iterations that a view has: the newest."""
MAX_VIEWED: Final = 2_000
"""Calls, the newest, that a view of a run holds: to show one takes up to 0.1 ms, and while a run is looked at it does nothing else (R16.6).
All of them are read page by page."""

SHOWN_PARAMS: Final = 2_000
"""Bytes of a call's parameters that views keep of it: a run has thousands of calls."""

MAX_RESULT: Final = 16_000
"""Characters of a call's result that a transcript keeps: what suits a model. The rest is read by `recall` (R10.18)."""

MAX_RECORDED: Final = 400_000
"""Characters of all results that a run keeps for its session's transcript: of more, the oldest are only shown by their beginning."""

MAX_RUN: Final = 200_000
"""Bytes of a run in a transcript: of calls that have more together, the oldest lose their results, and then are left out. A session
has its newest runs at hand, and they go along whenever it continues as new (R10.13)."""

MAX_REPLY: Final = 64_000
"""Characters of a reply in a transcript, for the same reason; the run has it whole."""

CONTEXT_TOKENS: Final = 100_000
"""Tokens of a session's context from which on its conversation is compacted, unless its model takes less: most take 128,000 (R10.11)."""
KEPT_TOKENS: Final = 20_000
"""Tokens of the newest part of a conversation that is left word for word."""
MAX_SUMMARY: Final = 4_000
"""Tokens of what stands for all before it: a fifth of what is left word for word."""
MAX_IDENTIFIERS: Final = 4_000
"""Characters of the names in it that its summary has left out."""
AT_HAND: Final = 500_000
"""Bytes of entries that a session has at hand before it compacts: packed a fifth of it, which goes along whenever it continues as new."""
MAX_SEGMENT: Final = 256_000
"""Bytes of entries in one segment, but for one that is larger by itself: it is the input of a workflow, and answered page by page."""
LEAST_SEGMENT: Final = 64_000
"""Bytes of old entries for which it is worth making one."""

MAX_PROGRESS: Final = 1_000
"""Characters of how far a call is: an MCP server may say any number, and what no heartbeat can carry would lose the call."""

MAX_EVENT_DATA: Final = 2_000
"""Characters of what an event says, but for a text that a model has written: whole values are asked for by `--value`."""
KEPT_EVENTS: Final = 1_000
"""Events that a run or a session keeps for its readers (R10.14): all that a plan of 500 calls has."""
KEPT_EVENTS_SIZE: Final = 1_000_000
"""Characters of all of them, for each run that a worker has in memory."""
EVENTS_AT_ONCE: Final = 300_000
"""Characters of those in one answer, which fit into a payload whatever characters they are."""
CARRIED_EVENTS: Final = 200
"""Those that go along when it continues as new, so that a reader who was looking goes on without a gap."""
CARRIED_EVENTS_SIZE: Final = 32_000
"""Characters of them: what a run carries is packed whenever it goes on."""

MAX_MEMO: Final = 20_000
"""Bytes of what a run's memo holds."""

# A prompt (R10.19).

MAX_INSTRUCTIONS: Final = 20_000
"""Characters of `config.prompt.text`: 5,000 tokens that stand in every Request."""
MAX_BOOTSTRAP: Final = 20
"""Names of bootstrap files that are looked for."""
FILE_CHARACTERS: Final = 20_000
"""Of one bootstrap file that are told; the longest that people keep are half of it."""
FILES_CHARACTERS: Final = 60_000
"""Of all of them: 15,000 tokens, an eighth of what most models take."""
MAX_SKILLS: Final = 100
"""Skills that a model is told of: of more it finds none."""
SKILLS_CHARACTERS: Final = 20_000
"""Of the list of skills: of many their descriptions are cut."""
MAX_SKILL_FILE: Final = 1_000_000
"""Bytes of a file of a skill, and of a bootstrap file, that is opened at all."""
SKILL_CHARACTERS: Final = 60_000
"""Of a skill's file that a model is given at once."""
TIGHT_PART: Final = 1_000
"""Characters left of each bootstrap file, and of a skill's description, where the context was too long for the model (R9.7)."""


# What is said to a session.

MAX_SAID: Final = 100_000
"""Bytes of a message: 20 of them wait in one history, and no person writes a tenth of it."""
MAX_NAME: Final = 200
"""Characters of a session's key, of a sender, of a message's id and of a right: they stand in lists and in ids."""
MAX_WAITING_TEXT: Final = 500_000
"""Characters of all messages that wait in a session: they go along whenever it continues as new, and one run may be given all of them."""
MAX_STATE: Final = 500_000
"""Bytes of a session's state, which goes along whenever it continues as new, and to each of its runs."""
MAX_AGENT: Final = 500_000
"""Bytes of the agent file of a session with those that come along with it, for the same reason."""
MAX_STEERED: Final = 200
"""Messages that steer one run; more of them wait, so that what is said to a run does not fill its history."""
MAX_INBOX: Final = 1_000
"""Messages that wait in a run for its next Request: nobody writes so many while one answer is."""
MAX_UNHEARD: Final = 1_000_000
"""Bytes of these together: a Request tells all of them, and its context goes in one answer of a query."""
MAX_HOOK_SECONDS: Final = 300.0
"""That a hook may ask for: somebody waits for it."""
MAX_REFUSALS: Final = 2
"""Requests in a row that a model refuses before its run ends as refused: the first, and one more (R20.2)."""
MAX_REASON: Final = 1_000
"""Characters of why a hook refuses."""
MAX_ADDITION: Final = 2_000
"""Characters that a hook may add to a compaction: half of what a summary may have."""
MAX_LAST_MESSAGES: Final = 1_000_000
"""Bytes of a run's messages that a hook is given at its end: they are sent by query, beside the run's output."""
MAX_MCP_MESSAGE: Final = MAX_STORED + 1_000_000
"""Bytes of one message of an MCP server: the largest value that a run can keep, and its frame. The client keeps a message whole until it has ended."""
MAX_MCP_LIST: Final = 4_000_000
"""The same while no call is under way: the client takes microseconds for each byte of a list of tools."""
MAX_MCP_TOOLS: Final = 500
"""Tools of one MCP server: each of them costs half a millisecond of the worker's event loop whenever the list changes."""
MAX_MCP_DEFINITION: Final = 64_000
"""Bytes of one MCP tool's definition, which each run that uses it records, and each prompt holds."""
MAX_MCP_BLOCKS: Final = 10_000
"""Content blocks of one MCP result: the client takes ten microseconds for each, and the worker does nothing else meanwhile."""
MAX_MCP_PROBLEMS: Final = 100
"""Lines that are logged of one MCP server's tools; a list that changes may bring new ones for ever."""


def said(size: int) -> str:
    """A number of bytes in words: `2,000,000 bytes`."""
    return f"{size:,} bytes"


MOST_STEPS: Final = 1_500_000
"""For one value against one schema, and once more for the words of what is wrong. A step takes 0.1 to 0.3 µs: the largest value that
Temporal carries, 1.9 MB of `[[1],[1],…`, takes 0.5 million of them and 0.15 s against a schema without alternatives."""


TASK_STEPS: Final = 750_000
"""Of one workflow task: once its checks have taken so many, no further one begins in it (R18.5)."""
ROUNDS_STEPS: Final = 150_000
"""The same for iterations: 50 of one call each, which take 0.02 s. On a machine that other programs use the same work takes ten times as
long, and the SDK fails a task after 2 s by the clock."""
SHORT_TASKS: Final = "short-tasks-in-loops"
"""Patch: runs of 0.1.0 begin iterations until `TASK_STEPS`, check a body's calls anew in each, and have a timer bring the next task."""
DECIDED: Final = "sources-of-conditions"
"""Patch: in runs of 0.1.0 a result does not have the sources of the conditions that its call is made under."""
PART_STEPS: Final = 2
"""Steps for each part of a call as a model wrote it: it is looked through for names and nulls, read, measured and sent."""
COSTLY: Final = 2_000
"""Steps. What took more is remembered: many calls may read one large value (R18.2)."""


class TooMuchError(Exception):
    """Checking would take more steps than it may."""


class CheckBudget:
    """The checks of one plan: what they found, by the identity of schema and value, and what they have taken of a task.

    A value that was checked must not be changed afterwards. What is found again takes no steps. To be used where a replay does the
    same only: what a query or a validator checks has `Checks` of its own.
    """

    def __init__(self) -> None:
        # Schema and value are kept beside what was found, so that their ids cannot be used again while it counts.
        self.verdicts: dict[int, dict[int, tuple[Any, Any, bool | None]]] = {}
        """By value and node whether it fits; `None`: that takes too many steps."""
        self.words: dict[tuple[int, int], tuple[Any, Any, list[Any] | None]] = {}
        """By schema and value what is wrong; `None`: that takes too many steps."""
        self.schemas: dict[int, Any] = {}
        """Those that are made where they are used, by the identity of the document."""
        self.taken = 0
        """Steps, in the task under way."""
        self._task = -1
        self.is_patched: Callable[[str], bool] = lambda _: True
        """Whether this execution goes by a rule that is newer than its history may be."""

    @property
    def spent(self) -> bool:
        """Whether the rest goes with the next task."""
        return self.taken >= TASK_STEPS

    @property
    def full(self) -> bool:
        """Whether no further iteration of a loop begins in this task."""
        return self.spent or (self.taken >= ROUNDS_STEPS and self.is_patched(SHORT_TASKS))

    def begin(self, task: int) -> None:
        """A workflow task, known by a number of its own, has begun, or goes on."""
        if task != self._task:
            self._task, self.taken = task, 0


class CheckSteps:
    """The budget of one check. With `checks` what it finds is remembered there."""

    __slots__ = ("checks", "left", "most")

    def __init__(self, most: int = MOST_STEPS, checks: CheckBudget | None = None) -> None:
        self.left = self.most = most
        self.checks = CheckBudget() if checks is None else checks

    def settle(self) -> None:
        """The check has ended: the task has taken what it took."""
        self.checks.taken += self.most - max(self.left, 0)

    def take(self, count: int) -> None:
        """Raises `TooMuchError` when nothing is left."""
        self.left -= count
        if self.left < 0:
            raise TooMuchError


QUERY_TIMEOUT: Final = 10.0
"""Seconds of one query: a worker that holds the run answers in milliseconds, one that has to replay it in a second."""
ATTEMPTS: Final = 12
"""Two minutes where nobody answers. A server also refuses queries while it holds back one for a run that is busy."""
SHORTEST_PAUSE: Final = 0.02
"""Seconds between two queries of a run that answers at once: each query is billed."""
LONGEST_PAUSE: Final = 0.2
"""Seconds between two queries of a run that is busy: more would be felt by whoever waits."""


def after_failure(attempt: int) -> float | None:
    """Seconds to wait after a query that nobody answered: the worker that held the run is gone, or it is busy. `None`: give up."""
    return None if attempt >= ATTEMPTS else min(2.0, 0.1 * 2**attempt)


def after_answer(pause: float, *, told: bool) -> float:
    """The same after an answer that told something, or nothing: it is not their turn, or their asking was not taken in."""
    return SHORTEST_PAUSE if told else min(2 * pause, LONGEST_PAUSE)


LONGEST: Final = 100 * 365 * 86_400.0
"""A hundred years: more than anybody waits, less than what overflows in any of Temporal's clocks (292 years)."""
SHORTEST: Final = 0.001
"""A millisecond, Temporal's own unit: a time-out that is rounded to zero counts as none, and the server refuses it."""

Seconds: TypeAlias = Annotated[float, Field(ge=SHORTEST, le=LONGEST)]
