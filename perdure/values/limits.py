"""Limits: every number that bounds a value, a task, or a run, with its unit and its reason.

Temporal's limits are per payload, per task and per history; a run's are sums (section 18). `perdure.values.sizes`
measures values and keeps the sums of a task and of a history. The limits of parsing, of depth and digits, are in
`perdure.values.json`, those of references in `perdure.values.references`. The limits of a tool of Perdure's are in its
module.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeAlias

from pydantic import Field

# One value, and the ways that it travels.

MAX_PAYLOAD: Final = 1_900_000
"""Bytes of JSON in one value. Temporal's limit is 2 MB, and a larger value is re-sent for ever; the rest is its
frame."""

MAX_STORED: Final = 50_000_000
"""Bytes of JSON in one value if values travel by external storage."""

INLINE: Final = 16_000
"""Bytes of a call's parameters up to which they travel in its command. Larger ones are a claim check: its activity
queries the run for them, which costs 5 ms, and neither the task nor the history grows (R18.2)."""

MAX_INLINE: Final = 1_000_000
"""Bytes of the parameters of all calls that one task starts; those of further calls are claim checks."""

INLINE_INPUT: Final = 64_000
"""Bytes of a delegate's input up to which it travels in the command that starts it: 500 of them are 32 MB of history. A
larger one is a claim check, which costs an activity."""

# Files as values.

MAX_MEDIA: Final = 20_000_000
"""Bytes of one file: providers take requests of 20 to 50 MB, in which a file has a third more as base64."""
MAX_MEDIA_OF_CALL: Final = 50_000_000
"""Bytes of all files that one call reads or returns, or one input has: a worker holds them at once."""
MAX_FILES_OF_CALL: Final = 200
"""Files that one call reads or returns, or one input has: each is a request to the storage."""
MAX_MEDIA_SHOWN: Final = 14_000_000
"""Bytes of all files in one Request, the newest: as base64 they and the text fit into Gemini's 20 MB, the least of any
provider."""
MAX_FILES_SHOWN: Final = 20
"""Files in one Request, the newest: Bedrock takes 20 pictures."""
MAX_FILE_TEXT: Final = 48_000
"""Characters of one text file in a Request, about 12,000 tokens: a long document, or some hundred lines of a table."""
MAX_TEXT_SHOWN: Final = 200_000
"""Bytes of all text files in one Request, the newest: with the rest of a prompt they fit into a window of 128,000 tokens."""

# One workflow task.

MAX_SENT: Final = 3_000_000
"""Bytes of all commands of one workflow task. The server takes 4 MiB, and ends a run that sends more."""

MAX_COMMANDS: Final = 50
"""Commands of one workflow task, and running calls that may be quick. Each of them may return, as two events, while the
next task runs, and the server breaks that task off at more than 100. So as many start as return; if none returns, more
start when the earlier ones have taken longer than `QUICK`."""
QUICK: Final = 1.0
"""Seconds. On a busy machine 60 calls return in one, so no more than 50 may start to run in it."""

COMMAND: Final = 1_000
"""Bytes of a command beside its payload: names, ids, timeouts, a summary."""

MAX_AT_ONCE: Final = 1_000
"""Activities of one Request at a time: the server takes 2,000 in all, and refuses the whole task beyond that."""
MAX_OPERATIONS: Final = 25
"""Nexus operations of one run at a time: the server takes 30, and refuses the whole task beyond that."""
MAX_ID: Final = 1_000
"""Bytes of a workflow's id: the server refuses the whole task beyond that."""

MAX_QUESTION: Final = 300
"""Characters of a tool's question to a person: it is one sentence."""

# One history.

HISTORY_BYTES: Final = 50_000_000
"""Bytes of one execution's history; the server ends a run whose history is larger."""
HISTORY_EVENTS: Final = 51_200
"""Events of one execution's history; the server ends a run with more."""
NEAR: Final = 0.8
"""Part of either limit from which a run that cannot continue as new makes its last Request (R18.4)."""
OVER: Final = 0.92
"""Part of either limit from which running calls are broken off, so that the last Request has room."""

HELD_BACK: Final = 1_000_000
"""Bytes of results that may be on their way at once; a larger one travels alone. The server holds back results that
arrive while a task runs, and breaks the task off at 2 MiB of them; the other half is for results without a claim."""
FREE_RESULT: Final = 256_000
"""Bytes of a result up to which it returns without a claim, while the history has much room and few calls run."""
FREE_AT_ONCE: Final = 40_000
"""Bytes of a result that returns without a claim while many calls run: of this size the server holds back 50."""
LEAST_RESULT: Final = 2_000
"""Bytes of a result that returns without a claim while the history has little room."""

RESULT_TOO_LARGE: Final = "result_too_large"
"""Code of a call whose result, or whose delegate's output, cannot be returned whole."""
HISTORY_FULL: Final = "history_full"
"""Code of a call for whose result the history has no room."""
RESULT_NOT_STORED: Final = "result_not_stored"
"""Code of a call that has run, and whose result could not be encoded or stored."""

# One plan.

MAX_MESSAGE: Final = 10_000
"""Characters of an error's message: neither a model nor a person reads more."""

MAX_NAMED_BY_CALL: Final = 1_000
"""References, output paths and calls that one call names: a call that joins the results of 500 others names 500."""
MAX_NAMED: Final = 10_000
"""References, output paths and calls that all calls of a plan of up to 500 name; a larger plan may have as many for
each call. Parsing one and looking it up takes up to 30 µs (R18.5)."""
MAX_EDGES: Final = 130_000
"""Edges of a plan, each a pair of a reference and a call that may write there. 500 calls that all read one path, and
add to it, have 124,750."""

MAX_FLOWS: Final = 200
"""Flow rules of a policy."""
MAX_RULES: Final = 200
"""Rules of an agent file, or of a worker."""
MAX_AMOUNT: Final = 1e300
"""The largest number that a rule sums: sums of many stay in the range of a 64-bit float."""
MAX_ACCOUNTS: Final = 5_000
"""Accounts of a tenant's ledger, such as one for each sender under a budget: it carries them whenever it continues as new."""
MAX_KEPT_RESERVATIONS: Final = 1_000
"""Reservations of an account and a period that a tenant's ledger keeps one by one, so that none counts twice."""
MAX_STANDING_APPROVALS: Final = 50
"""Standing approvals of a tenant: its ledger carries them whenever it continues as new."""
MAX_STANDING_USES: Final = 1_000
"""Runs that one standing approval may hold for: the ledger keeps the id of each, so that none counts twice."""
MAX_STANDING_BOUNDS: Final = 10_000
"""Characters of the schema of a standing approval's inputs."""
MAX_APPROVERS: Final = 10
"""People whose approvals a rule may require for one call."""
MAX_ROLES: Final = 50
"""Roles of a person, or of a rule."""
MAX_ENDORSED: Final = 1_000
"""Parameters that one decision endorses by name; `true` endorses all."""
MAX_EDITED: Final = 10_000
"""Calls of a plan that a person sends; a longer list is refused unread (R18.6). `max_calls` is mostly less."""

MAX_TEXT: Final = 10_000_000
"""Bytes of one text with embedded values, also with external storage: making it takes 0.2 s (R18.5)."""
MAX_TEXTS: Final = 200_000_000
"""Bytes of all texts of a plan with embedded values: each is a copy, unlike a reference alone."""
MAX_OUTPUT_TEXTS: Final = 20_000_000
"""Bytes of all texts of an output with embedded values: an output is made in one task."""
MAX_OUTPUT: Final = 20_000_000
"""Bytes of an output with the values that it reads, without external storage: all of it is validated in one task
(R18.5)."""
MAX_TEXTS_KEPT: Final = 20_000_000
"""Characters of the texts of values that are cached for the next reader; a longer one is cached alone."""

MAX_RETRIES: Final = 10_000
"""Attempts of one call: Temporal counts them in 32 bits, and nothing is worth as many."""

MAX_BUDGET: Final = 10**15
"""Tokens of a budget: no run uses a millionth of them. A budget is divided into shares, which a number of any length
cannot be."""

# Delegates and loops.

MAX_DELEGATES_DEEP: Final = 5
"""Delegates inside delegates: one that delegates to itself ends here, with an error."""
MAX_PARALLEL: Final = 200
"""Iterations of one loop at a time: as many children report to one history."""
MAX_ROUNDS: Final = 10_000
"""Iterations of a loop with a condition: each is a run."""
MAX_INSIDE: Final = 100
"""Items that run inside the run's own workflow, each with a few events; more have a loop workflow (R16.1)."""
MAX_TURNS: Final = 500
"""Iterations, one after another, inside a run's own workflow: it continues as new only between Requests."""
MAX_CALLS_INSIDE: Final = 10_000
"""Calls in the iterations of all loops of one Request that run inside the run's own workflow, nested loops included.
Each takes up to 1 ms. As the Request ends, one workflow task goes over all of them: that takes up to 0.3 s. The
SDK fails a task after 2 s. Bodies have up to 100 calls, so a bound on iterations alone would allow a million
(R16.6)."""
MAX_BODY_CALLS: Final = 100
"""Calls of a body: each iteration is a plan of as many."""
MAX_LOOPS_DEEP: Final = 5
"""Loops inside loops."""
MAX_SHARED: Final = 8_000
"""Bytes of the preparation that all iterations of a loop share: the history has it once per iteration. Of a larger one,
each iteration records its own."""

# A model's answer, and the requests to a program.

MAX_ANSWER: Final = 1_500_000
"""Bytes of text, arguments and thoughts, after which an answer is ended. No model writes a third of it, and the part
that is read has to fit into one result."""
MAX_EVENT: Final = 4_000_000
"""Bytes of one event of a stream, or of a document in place of one. The longest answers are a tenth of it."""
MAX_BODY: Final = 64 * 1024 * 1024
"""Bytes of a request to the codec server: a page of a history, with room."""

# Data that a run carries over, keeps and shows.

MAX_CARRIED: Final = 15_000_000
"""Bytes of a run's carried data up to which it continues as new: packing more takes too long for one task."""
MAX_CARRIED_PARTS: Final = 1_000_000
"""Lists and objects in a run's carried data up to which it continues as new: reading more takes too long for one task."""

MAX_KEPT: Final = 64_000_000
"""Bytes of parameters and results of ended calls that a run keeps by reference, so that they can be read in full."""

MAX_VIEWED_EDGES: Final = 10_000
"""The newest edges between calls of iterations that a view shows."""
MAX_VIEWED: Final = 2_000
"""Calls, the newest, that a view of a run holds. Each takes up to 0.1 ms, and the run does nothing else meanwhile
(R16.6). A reader gets all of them page by page."""

SHOWN_PARAMS: Final = 2_000
"""Bytes of a call's parameters in a view: a run has thousands of calls."""

MAX_RESULT: Final = 16_000
"""Characters of a call's result in a transcript: a size that suits a model. `recall` reads the rest (R10.18)."""

MAX_STATE_SHOWN: Final = 2_000_000
"""Characters of the state in one Request, about 500,000 tokens. Of a longer one, the model sees the beginning of each value: a task has no time
for more.
"""

MAX_RECORDED: Final = 400_000
"""Characters of all results that a run keeps for its session's transcript: of the oldest beyond that, only the
beginnings are shown."""

MAX_RUN: Final = 200_000
"""Bytes of a run in a transcript: beyond that the oldest calls lose their results, and then are left out. A session
holds its newest runs, and carries them whenever it continues as new (R10.13)."""

MAX_SHOWN_MESSAGE: Final = 600
"""Characters of a person's message that an approval request shows; each run below a session's run has it."""

MAX_REPLY: Final = 64_000
"""Characters of a reply in a transcript, for the same reason; the run has all of it."""

CONTEXT_TOKENS: Final = 100_000
"""Tokens of a session's context from which its conversation is compacted, unless its model takes less: most take
128,000 (R10.11)."""
KEPT_TOKENS: Final = 20_000
"""Tokens of the newest part of a conversation that stays word for word."""
MAX_SUMMARY: Final = 4_000
"""Tokens of the summary of the part before it: a fifth of the part that stays word for word."""
MAX_IDENTIFIERS: Final = 4_000
"""Characters of the names in that part which its summary has left out."""
MAX_REPORTS: Final = 1_000
"""Runs below a session's run of which the session knows whether they wait for a person."""
AT_HAND: Final = 500_000
"""Bytes of entries that a session holds before it compacts: packed, a fifth of it, which it carries whenever it
continues as new."""
MAX_SEGMENT: Final = 256_000
"""Bytes of entries in one segment; a larger entry is one by itself. A segment is the input of a workflow, and is
returned page by page."""
LEAST_SEGMENT: Final = 64_000
"""Bytes of old entries from which a segment is made."""

MAX_PROGRESS: Final = 1_000
"""Characters of a call's progress: an MCP server may send any number, and a text too large for a heartbeat would lose
the call."""

MAX_EVENT_DATA: Final = 2_000
"""Characters of an event's data, except for a text that a model has written: `--value` fetches whole values."""
KEPT_EVENTS: Final = 1_000
"""Events that a run or a session keeps for its readers (R10.14): all events of a plan of 500 calls."""
KEPT_EVENTS_SIZE: Final = 1_000_000
"""Characters of all these events, for each run that a worker has in memory."""
EVENTS_AT_ONCE: Final = 300_000
"""Characters of the events in one answer, which fit into a payload whatever characters they are."""
CARRIED_EVENTS: Final = 200
"""Events that it carries when it continues as new, so that a watcher sees no gap."""
CARRIED_EVENTS_SIZE: Final = 32_000
"""Characters of the carried events: a run's carried data is packed whenever it continues as new."""

MAX_MEMO: Final = 20_000
"""Bytes of a run's memo."""

# A prompt.

MAX_INSTRUCTIONS: Final = 20_000
"""Characters of `config.prompt.text`: 5,000 tokens in every Request."""
MAX_BOOTSTRAP: Final = 20
"""Names of bootstrap files that are searched for."""
FILE_CHARACTERS: Final = 20_000
"""Characters of one bootstrap file in a prompt; the longest in use are half of it."""
FILES_CHARACTERS: Final = 60_000
"""Characters of all bootstrap files in a prompt: 15,000 tokens, an eighth of most models' context."""
MAX_SKILLS: Final = 100
"""Skills in a prompt: among more, a model finds none."""
SKILLS_CHARACTERS: Final = 20_000
"""Characters of the list of skills: the descriptions of a longer list are cut."""
MAX_SKILL_FILE: Final = 1_000_000
"""Bytes of a skill's file, and of a bootstrap file; a larger one is not opened."""
SKILL_CHARACTERS: Final = 60_000
"""Characters of a skill's file that a model gets at once."""
TIGHT_PART: Final = 1_000
"""Characters left of each bootstrap file, and of a skill's description, after the context was too long for the model
(R9.7)."""


# Who asks.

MAX_CALLER_CONTEXT: Final = 8_192
"""Bytes of the context of a start or a message, as JSON: each call of a tool, and each run below, gets it. It names a
person and their rights; what belongs to them is in a database."""

# Schedules.

MAX_BACKFILLED: Final = 500
"""Runs of one backfill of a schedule: Temporal keeps 1,000 waiting starts, and drops the others without a word."""

# Messages to a session.

MAX_SESSION_MESSAGE: Final = 100_000
"""Bytes of a message: 20 of them wait in one history, and no person writes a tenth of it."""
MAX_NAME: Final = 200
"""Characters of a session's key, of a sender, of a message's id and of a right: they are in lists and in ids."""
MAX_WAITING_TEXT: Final = 500_000
"""Characters of all messages that wait in a session: it carries them whenever it continues as new, and one run may get
all of them."""
MAX_STATE: Final = 500_000
"""Bytes of a session's state: the session carries it whenever it continues as new, and sends it to each of its runs."""
MAX_AGENT: Final = 500_000
"""Bytes of a session's agent file with the files that belong to it, for the same reason."""
MAX_STEERED: Final = 200
"""Messages that steer one run; more of them wait, so that they do not fill the run's history."""
MAX_INBOX: Final = 1_000
"""Messages that wait in a run for its next Request: nobody writes as many during one answer."""
MAX_UNHEARD: Final = 1_000_000
"""Bytes of these together: a Request contains all of them, and its context travels in one answer of a query."""
MAX_HOOK_SECONDS: Final = 300.0
"""Seconds that a hook may ask for: the run, or a person, waits for it."""
MAX_REFUSALS: Final = 2
"""Requests in a row that a model refuses before its run ends as refused: the first, and one more (R20.2)."""
MAX_REASON: Final = 1_000
"""Characters of a hook's reason for a refusal."""
MAX_ADDITION: Final = 2_000
"""Characters that a hook may add to a compaction: half of what a summary may have."""
MAX_LAST_MESSAGES: Final = 1_000_000
"""Bytes of a run's messages that a hook gets at its end: they travel by query, beside the run's output."""
MAX_MCP_MESSAGE: Final = MAX_STORED + 1_000_000
"""Bytes of one message of an MCP server: the largest value that a run can keep, and its frame. The client holds a
message until its end."""
MAX_MCP_LIST: Final = 4_000_000
"""Bytes of one message while no call runs: the client takes microseconds for each byte of a list of tools."""
MAX_MCP_TOOLS: Final = 500
"""Tools of one MCP server: each costs half a millisecond of the worker's event loop whenever the list changes."""
MAX_MCP_DEFINITION: Final = 64_000
"""Bytes of one MCP tool's definition, which each run that uses it records, and each prompt holds."""
MAX_MCP_BLOCKS: Final = 10_000
"""Content blocks of one MCP result: the client takes ten microseconds for each, and the worker does nothing else
meanwhile."""
MAX_SERVER_ROUNDS: Final = 10
"""Times that one call of an MCP tool may ask before it returns a result: a server could ask for ever."""
MAX_SERVER_QUESTIONS: Final = 10
"""Questions and requests to a model that an MCP server may send at once: a person reads one after another."""
MAX_SERVER_FIELDS: Final = 50
"""Fields of a form of an MCP server."""
MAX_SERVER_QUESTION: Final = 16_000
"""Characters of one question of an MCP server, its form included: the history keeps it twice."""
MAX_SERVER_STATE: Final = 64_000
"""Characters of what an MCP server has a call return to it: the history keeps it twice for each question."""
MAX_SERVER_ANSWER: Final = 32_000
"""Characters of a person's answer to an MCP server's form."""
MAX_SAMPLE: Final = 64_000
"""Characters of all messages that an MCP server sends to a model."""
MAX_SAMPLE_TOKENS: Final = 4_096
"""Tokens of a model's answer to an MCP server."""
MAX_MCP_PROBLEMS: Final = 100
"""Log lines about one MCP server's tools; a list that changes may bring new ones for ever."""


# Notifications, callbacks and the audit log.

MAX_ROUTES: Final = 20
"""Routes that an agent file may name for one kind of notification: each is an activity."""
MAX_WAITING_STEPS: Final = 10
"""Times after which an agent file may have people informed again of a request that waits."""
MAX_NOTIFIED_AT_ONCE: Final = 10
"""Notifications of requests under way at a time in a run: a plan may ask about 500 calls at once."""
NOTIFIED_SLOT: Final = 30.0
"""Seconds after which a delivery that still goes on makes room for another request's: its route may be away for long."""
MAX_NOTIFICATION_TEXT: Final = 600
"""Characters of the text of a notification: pagers and chats cut longer ones."""
MAX_NOTIFIED_OUTPUT: Final = 64_000
"""Bytes of an output that a notification or a callback holds. Receivers of webhooks refuse large bodies, so a larger one
goes as a link."""
MAX_STATUS_WEBHOOKS: Final = 100
"""Addresses that a session informs of its runs: it carries them whenever it continues as new."""
MAX_NOTIFICATIONS: Final = 100
"""Notifications that a run keeps for `show`, the newest: it carries them whenever it continues as new."""
NOTIFIED_WITHIN: Final = 2.0
"""Seconds that a run waits at its end for the outcomes of its notifications. They are delivered without it."""
NOTIFY_ATTEMPTS: Final = 12
"""Attempts of one notification at one route: about 20 minutes, for a receiver that is deployed meanwhile."""
CALLBACK_ATTEMPTS: Final = 35
"""Attempts of one callback: about a day, with an hour between two at most."""


MAX_AUDITED_AT_ONCE: Final = 100
"""Entries that go to the audit log, or lines that go to its sink, in one activity."""
MAX_AUDIT_TEXT: Final = 1_000
"""Characters of a name or a reason in the audit log: what a person decides by is in the run."""
MAX_AUDIT_DATA: Final = 8_000
"""Bytes of an entry's data in the audit log; larger data is cut, and has a digest of the whole."""
MAX_AUDIT_BATCH: Final = 1_100_000
"""Bytes of the entries in one activity of a run. The same workflow task may also send `MAX_SENT` bytes."""
MAX_KEPT_AUDIT_KEYS: Final = 2_000
"""Keys of entries that an audit log keeps, the newest, so that an entry that comes again is no second line."""


def bytes_text(size: int) -> str:
    """Return a number of bytes in words: `2,000,000 bytes`."""
    return f"{size:,} bytes"


def duration_words(seconds: float) -> str:
    """Return a duration in its largest unit: `90 s` is `90 s`, `7200 s` is `2 h`."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length or seconds == length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def read_duration(text: str) -> float | None:
    """Return the seconds of `90s`, `5min`, `2h`, `3d` or `1w`; `None` for another text."""
    if found := re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h|d|w)", text.strip()):
        return float(found[1]) * {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}[found[2]]
    return None


# Checks of values against schemas.

MOST_STEPS: Final = 1_500_000
"""Steps for one value against one schema, and once more for the errors' texts. A step takes 0.2 to 0.5 µs: the largest
value that Temporal carries, 1.9 MB of `[[1],[1],…`, takes 0.6 million of them and 0.3 s against a schema without
alternatives."""


TASK_STEPS: Final = 750_000
"""Steps of one workflow task: once its checks have taken as many, no further one begins in it (R18.5)."""
ROUNDS_STEPS: Final = 150_000
"""Steps of one workflow task for iterations: 50 of one call each, which take 0.02 s. On a machine that other programs
use, the same work takes ten times as long, and the SDK fails a task after 2 s by the clock."""
LIMITS_OF_CHILDREN: Final = "limits-of-children"
"""Patch: an owner's `timeout` and `scope` apply to tools that it gives to a delegate (R8.2). A run's models, prices, budgets and `client_timeout` apply to
the calls in parts of its loops (R16.1). `parallel` and `exclusive` hold for clients' calls, and `exclusive` for the calls in parts (R5.12).
Runs of 0.2.0 have none of these rules.
"""
SHORT_TASKS: Final = "short-tasks-in-loops"
"""Patch: runs of 0.1.0 begin iterations until `TASK_STEPS`, check a body's calls anew in each, and have a timer bring
the next task."""
CALLS_OF_ROUNDS: Final = "calls-of-rounds"
"""Patch: runs of 0.1.0 count as many iterations of a Request's loops, and not the calls in them."""
SIZES_COUNTED: Final = "sizes-of-checks"
"""Patch: in runs of 0.1.0, checks take no steps for the sizes of objects, of errors, and of listed arrays and objects."""
DECIDED: Final = "sources-of-conditions"
"""Patch: in runs of 0.1.0 a result lacks the provenance of the conditions that its call is made under."""
PART_STEPS: Final = 2
"""Steps for each part of a call as a model wrote it: the engine searches it for names and nulls, parses, measures and
sends it."""
CALL_STEPS: Final = 1_000
"""Steps for each call of a plan beside its parts: one workflow task takes in 750, in 0.15 s (R18.5)."""
COSTLY: Final = 2_000
"""Steps from which a check is cached: many calls may read one large value (R18.2)."""


class TooMuchError(Exception):
    """A check that would take more steps than its budget."""


class CheckBudget:
    """The checks of one plan: a cache of verdicts, by the identity of schema and value, and the steps that they took of
    a task.

    A value that was checked must not be changed afterwards. A cached verdict takes no steps. Use it only in code that a
    replay repeats: a query or a validator has a `CheckBudget` of its own.
    """

    def __init__(self) -> None:
        # Schema and value are kept beside the verdict, so that their ids cannot be used again while it counts.
        self.verdicts: dict[int, dict[int, tuple[object, object, bool | None]]] = {}
        """Whether the value fits, by value and node; `None`: that takes too many steps."""
        self.words: dict[tuple[int, int], tuple[object, object, list[Any] | None]] = {}  # errors of `jsonschema`
        """The errors, by schema and value; `None`: that takes too many steps."""
        self.schemas: dict[int, Any] = {}  # of `values.schemas`, which is above this module
        """Schemas that are made where they are used, by the identity of the document."""
        self.taken = 0
        """Steps in the current task."""
        self._task = -1
        self.is_patched: Callable[[str], bool] = lambda _: True
        """Whether this execution follows a rule that is newer than its history may be."""

    @property
    def spent(self) -> bool:
        """Whether the rest waits for the next task."""
        return self.taken >= TASK_STEPS

    @property
    def full(self) -> bool:
        """Whether no further iteration of a loop begins in this task."""
        return self.spent or (self.taken >= ROUNDS_STEPS and self.is_patched(SHORT_TASKS))

    def begin(self, task: int) -> None:
        """Begin a workflow task, known by a number of its own, or continue it."""
        if task != self._task:
            self._task, self.taken = task, 0


class CheckSteps:
    """The budget of one check. With `checks`, its verdicts are cached there."""

    __slots__ = ("_counts_sizes", "checks", "left", "most")

    def __init__(self, most: int = MOST_STEPS, checks: CheckBudget | None = None) -> None:
        self.left = self.most = most
        self.checks = CheckBudget() if checks is None else checks
        self._counts_sizes = self.checks.is_patched(SIZES_COUNTED)

    def settle(self) -> None:
        """End the check: its steps count for the task."""
        self.checks.taken += self.most - max(self.left, 0)

    def take(self, count: int) -> None:
        """Take steps from the budget. Raises `TooMuchError` when none are left."""
        self.left -= count
        if self.left < 0:
            raise TooMuchError

    def take_size(self, count: int) -> None:
        """Take steps that a run of 0.1.0 does not count."""
        if self._counts_sizes:
            self.take(count)


# Queries of a run.

QUERY_TIMEOUT: Final = 10.0
"""Seconds of one query: a worker that holds the run answers in milliseconds, one that has to replay it in a second."""
ATTEMPTS: Final = 12
"""Attempts, two minutes without an answer. A server also refuses queries while it holds back one for a busy run."""
SHORTEST_PAUSE: Final = 0.02
"""Seconds between two queries of a run that answers at once: each query is billed."""
LONGEST_PAUSE: Final = 0.2
"""Seconds between two queries of a busy run: a reader would notice more."""


def after_failure(attempt: int) -> float | None:
    """Return the seconds to wait after a query without an answer, because its worker is gone or busy. `None`: give
    up."""
    return None if attempt >= ATTEMPTS else min(2.0, 0.1 * 2**attempt)


def after_answer(pause: float, *, found: bool) -> float:
    """Return the seconds to wait after an answer. One without news means that the reader's turn has not come, or that
    its claim was not received."""
    return SHORTEST_PAUSE if found else min(2 * pause, LONGEST_PAUSE)


# Evaluations.

MAX_EVALUATED: Final = 2_000
"""Runs of one evaluation: their scores are one result of a workflow."""
MAX_EVALUATION: Final = 500_000
"""Bytes of the agent and the cases of one evaluation: each of its executions begins with them."""

# Undo.

MAX_UNDONE: Final = 2_000
"""Effects that one undo run takes back, the newest; the next one goes on with the others. Each is a call of one plan."""
MAX_UNDO_PARAMS: Final = 256_000
"""Bytes of the parameters of one undo: all of an undo run travel in its input."""
MAX_UNDO_DEPTH: Final = 20
"""Runs of delegates inside each other whose effects are read."""

# Times.

LONGEST: Final = 100 * 365 * 86_400.0
"""A hundred years in seconds: more than any wait, less than the overflow of any of Temporal's clocks (292 years)."""
SHORTEST: Final = 0.001
"""A millisecond, Temporal's own unit: a time-out that is rounded to zero counts as none, and the server refuses it."""

Seconds: TypeAlias = Annotated[float, Field(ge=SHORTEST, le=LONGEST)]
