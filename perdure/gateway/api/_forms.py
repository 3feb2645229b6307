"""Forms of the API: bodies and queries, and answers that are not types of the engine."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from perdure.runs.schedules import Overlap
from perdure.runs.wire import RunStatus
from perdure.sessions.wire import WAIT
from perdure.values.json import Json, JsonObject, WireModel
from perdure.values.limits import MAX_STANDING_USES
from perdure.values.messages import Mode

LONGEST_WAIT = 60.0
"""The most seconds that one request waits: proxies time out."""


class Paged(WireModel):
    """A list's query."""

    limit: int = Field(default=50, ge=1, le=200, description="The number of rows on a page.")
    page: str | None = Field(default=None, max_length=4096, description="`next` of the previous page.")


class ListRuns(Paged):
    agent: str | None = Field(default=None, max_length=200, description="The agent's name.")
    status: RunStatus | None = Field(default=None, description="The runs' status.")
    since: str | None = Field(
        default=None, max_length=100, description="Only runs started since: `90min`, `2h`, `3d`, or an ISO 8601 time."
    )
    sender: str | None = Field(default=None, max_length=200, description="The sender who started the runs.")
    waiting: bool = Field(default=False, description="Only runs with an approval request or a question.")
    schedule: str | None = Field(default=None, max_length=100, description="Only runs of this schedule.")
    version: str | None = Field(default=None, max_length=60, description="Only runs of this version of the agent.")


class WaitQuery(WireModel):
    """A query that waits."""

    timeout: float = Field(
        default=WAIT, ge=0, le=LONGEST_WAIT, description="The most seconds to wait. The run continues after a timeout."
    )


class SenderQuery(WireModel):
    """A query about a message."""

    sender: str | None = Field(
        default=None, min_length=1, max_length=200, description="The message's sender; by default the token's."
    )


class WaitsForMessage(SenderQuery, WaitQuery):
    """A query that waits for a message's run."""


class EventsQuery(WireModel):
    """A query for events."""

    from_: str | None = Field(
        default=None,
        alias="from",
        max_length=200,
        description="The cursor after which the stream starts; `Last-Event-ID` takes precedence. `now`: only new events.",
    )
    topics: str | None = Field(default=None, max_length=200, description="Only these topics, separated by commas.")


class TranscriptQuery(WireModel):
    what: str = Field(
        max_length=1000,
        description="`output`, `state`, `calls`, `errors`, a reference such as `†state.x`, or a call's id.",
    )


class RecallQuery(WireModel):
    what: str = Field(max_length=1000, description="A call's id, an entry's number, or words to search for.")
    page: int = Field(default=1, ge=1)


class StartRun(WireModel):
    """A run to be started."""

    agent: str = Field(max_length=200, description="The name of an agent of `/v1/agents`.")
    input: Any = Field(default=None, description="The input, valid for the agent's input schema. By default no input.")
    key: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="The sender's idempotency key. The same key with the same body returns the existing run.",
    )
    approval: JsonObject = Field(
        default_factory=dict,
        description="This run's approval policy, which overrides the agent's. It needs the right `approve`.",
    )
    callback: str | None = Field(
        default=None,
        max_length=1000,
        description="The URL of a signed webhook at the run's end, if the worker allows the host.",
    )


class CreateSchedule(WireModel):
    """A schedule to be created, or changed."""

    schedule: str = Field(max_length=100, description="Its name.")
    agent: str = Field(
        max_length=200, description="One of `/v1/agents`. Each run reads the agent's file when it starts."
    )
    input: Any = Field(
        default=None, description='The input of each run; `"{{scheduled}}"` becomes the time of the run.'
    )
    cron: str | Annotated[list[str], Field(max_length=20)] = Field(
        default_factory=list, description="`MINUTE HOUR DAY MONTH WEEKDAY`, or a list of them."
    )
    every: float | str | None = Field(default=None, description="Seconds, or `30s`, `5min`, `2h`, `1d`.")
    timezone: str = Field(
        default="UTC", max_length=100, description="The time zone of `cron`, such as `Europe/Berlin`."
    )
    overlap: Overlap = Field(default="skip", description="The overlap policy, if the last run is still open.")
    catchup: float | str = Field(default="1d", description="The longest delay of a run that the server missed.")
    jitter: float | str = Field(default=0, description="The longest random delay of a run.")
    note: str = Field(default="", max_length=1000, description="A note, shown in lists and pages.")
    paused: bool = Field(default=False, description="Create the schedule paused.")
    replace: bool = Field(
        default=False, description="Change the existing schedule of this name. It needs the right `stop` too."
    )


class ScheduleNote(WireModel):
    """A note on a schedule that is paused or resumed."""

    note: str = Field(default="", max_length=1000, description="The new note; by default the note does not change.")


class TriggerSchedule(WireModel):
    """A run of a schedule, now."""

    overlap: Overlap | None = Field(
        default=None, description="The overlap policy of this run; by default that of the schedule."
    )


class BackfillSchedule(WireModel):
    """A time that has passed, whose runs are to be started."""

    from_: str = Field(
        alias="from",
        max_length=100,
        description="The start of the period: ISO 8601; by default in the schedule's time zone.",
    )
    to: str = Field(max_length=100, description="The end of the period, in the same form.")
    overlap: Overlap = Field(default="buffer-all", description="The overlap policy of these runs.")


class SessionMessage(WireModel):
    """A message for a session."""

    text: str = Field(description="The message's text; `/stop`, `/new` and `/reset` are commands.")
    message_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="The sender's id of the message. A second message with this id is a duplicate. By default a new id.",
    )
    agent: str | None = Field(
        default=None, max_length=200, description="The agent. An existing session does not need it."
    )
    mode: Mode | None = Field(
        default=None, description="The mode: the effect on an active run. By default the session's setting."
    )
    route: str = Field(default="", max_length=200, description="The route of the reply.")


class RunMessage(WireModel):
    """Something new for a run that works."""

    text: str
    message_id: str | None = Field(
        default=None, min_length=1, max_length=200, description="The sender's id of the message. By default a new id."
    )


class DecisionBody(WireModel):
    """A decision on what waits."""

    call: str = Field(max_length=1000, description="The call's id, or the plan's Request number.")
    decision: Literal["approve", "reject", "edit", "replace", "answer"]
    digest: str | None = Field(
        default=None, description="The digest of the shown call. The decision is rejected if the call has changed."
    )
    reason: str | None = None
    remember: bool | None = Field(default=None, description="Approve later calls of this tool in this run too.")
    endorse: bool | list[str] | None = Field(default=None, description="Endorse all parameters, or the named ones.")
    params: JsonObject | None = Field(default=None, description="For an edit of a call: the parameters to change.")
    calls: list[Json] | None = Field(default=None, description="For an edit of a plan: the new calls.")
    with_: JsonObject | None = Field(
        default=None, alias="with", description='For a replacement: the new call, `{"_tool": …}`.'
    )
    answer: Any = None


class SessionDecisionBody(DecisionBody):
    """A decision on what waits in a session's run, or in a run of its delegates."""

    run: str | None = Field(
        default=None, max_length=1000, description="The call's run, if several runs of the session have waiting calls."
    )


class Redeliver(WireModel):
    """A reply of which nobody knows whether it arrived."""

    delivery: str = Field(min_length=1, max_length=1000, description="The delivery's key, `<run>/<reply>`.")


class ForkForm(WireModel):
    """The place where another session is to begin."""

    at: str = Field(max_length=100, description="A run's number, or a Request's, `R.N`.")
    session: str | None = Field(
        default=None, min_length=1, max_length=200, description="The new session's key; by default a new one."
    )


class StartedRun(WireModel):
    """A run that there is now."""

    run_id: str


class DeliveredMessage(WireModel):
    """A message to a run."""

    message_id: str


class ReplyBody(WireModel):
    """The reply to a message; `null`: there is none."""

    reply: str | None


class ForkedSession(WireModel):
    """A session that there is now."""

    session: str


class GrantStandingApproval(WireModel):
    """A person's approval of coming runs of a procedure."""

    procedure: str = Field(max_length=200, description="The name of the procedure's agent.")
    uses: int = Field(ge=1, le=MAX_STANDING_USES, description="The largest number of runs.")
    until: str = Field(max_length=40, description="The last day in UTC, such as `2026-12-31`, or a time (ISO 8601).")
    bounds: JsonObject = Field(
        default_factory=dict, description="A JSON Schema of approved inputs; `{}` approves any input."
    )
    sources: list[str] = Field(
        default=["trusted"], description="The accepted provenance of the calls' values, besides the procedure itself."
    )
    name: str | None = Field(
        default=None, max_length=100, description="The standing approval's name; by default the procedure's."
    )
    reason: str = Field(default="", max_length=500, description="A note. The approval records it.")


class UndoQuery(WireModel):
    """A query about an undo."""

    to: str | None = Field(
        default=None, max_length=200, description="Undo this call and the calls after it, such as `1.3`."
    )
    no_effect: str | None = Field(
        default=None,
        max_length=4096,
        description="Calls with an unknown outcome that had no effect, separated by commas.",
    )

    @property
    def calls(self) -> list[str]:
        return [each.strip() for each in (self.no_effect or "").split(",") if each.strip()]


class UndoRun(WireModel):
    """An undo of a run that has ended."""

    to: str | None = Field(
        default=None, max_length=200, description="Undo this call and the calls after it, such as `1.3`."
    )
    no_effect: list[str] = Field(
        default_factory=list, max_length=1_000, description="Calls with an unknown outcome that had no effect."
    )
