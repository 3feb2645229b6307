"""Forms of the API: bodies and queries, and answers that are not types of the engine."""

from __future__ import annotations

from typing import Any, Literal

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

    limit: int = Field(default=50, ge=1, le=200, description="Rows of a page.")
    page: str | None = Field(default=None, max_length=4096, description="`next` of the page before.")


class ListRuns(Paged):
    agent: str | None = Field(default=None, max_length=200, description="The agent's name.")
    status: RunStatus | None = Field(default=None, description="What has become of them.")
    since: str | None = Field(
        default=None, max_length=100, description="Started since: `90min`, `2h`, `3d`, or an ISO 8601 time."
    )
    sender: str | None = Field(default=None, max_length=200, description="Who started them.")
    waiting: bool = Field(default=False, description="Only those in which something waits for a person.")
    schedule: str | None = Field(default=None, max_length=100, description="Started by this schedule.")
    version: str | None = Field(default=None, max_length=60, description="Of this version of the agent.")


class WaitQuery(WireModel):
    """A query that waits."""

    timeout: float = Field(default=WAIT, ge=0, le=LONGEST_WAIT, description="Seconds; they stop nothing.")


class SenderQuery(WireModel):
    """A query about a message."""

    sender: str | None = Field(
        default=None, min_length=1, max_length=200, description="Whose message of this id; by default the token's."
    )


class WaitsForMessage(SenderQuery, WaitQuery):
    """A query that waits for a message's run."""


class EventsQuery(WireModel):
    """A query for events."""

    from_: str | None = Field(
        default=None,
        alias="from",
        max_length=200,
        description="The cursor behind which to go on, as in `Last-Event-ID`, which takes precedence; `now`: only what comes.",
    )
    topics: str | None = Field(default=None, max_length=200, description="Only these, with commas between them.")


class TranscriptQuery(WireModel):
    what: str = Field(
        max_length=1000,
        description="`output`, `state`, `calls`, `errors`, a reference such as `†state.x`, or a call's id.",
    )


class RecallQuery(WireModel):
    what: str = Field(max_length=1000, description="A call's id, an entry's number, or words to look for.")
    page: int = Field(default=1, ge=1)


class StartRun(WireModel):
    """A run to be started."""

    agent: str = Field(max_length=200, description="One of `/v1/agents`.")
    input: Any = Field(default=None, description="As the agent's input schema has it; left out there is none.")
    key: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="The sender's own: the same key with the same body gives the run that there is already.",
    )
    approval: JsonObject = Field(
        default_factory=dict, description="This run's own policy over its agent's; takes the right `approve`."
    )
    callback: str | None = Field(
        default=None,
        max_length=1000,
        description="Where its end is sent, as a signed webhook, if the worker allows the host.",
    )


class CreateSchedule(WireModel):
    """A schedule to be created, or changed."""

    schedule: str = Field(max_length=100, description="Its name.")
    agent: str = Field(max_length=200, description="One of `/v1/agents`; each run reads it as it is then.")
    input: Any = Field(default=None, description='As of a run; `"{{scheduled}}"` becomes the time of the run.')
    cron: list[str] = Field(default_factory=list, max_length=20, description="`MINUTE HOUR DAY MONTH WEEKDAY`.")
    every: float | str | None = Field(default=None, description="Seconds, or `30s`, `5min`, `2h`, `1d`.")
    timezone: str = Field(default="UTC", max_length=100, description="Of `cron`: `Europe/Berlin`.")
    overlap: Overlap = Field(default="skip", description="The policy while the last run works.")
    catchup: float | str = Field(default="1d", description="How late a run may begin that the server missed.")
    jitter: float | str = Field(default=0, description="How much later a run may begin, at random.")
    note: str = Field(default="", max_length=1000, description="A note that lists and pages show.")
    paused: bool = Field(default=False, description="Start nothing before it is resumed.")
    replace: bool = Field(default=False, description="Change the schedule of this name; takes the right `stop`, too.")


class ScheduleNote(WireModel):
    """A note on a schedule that is paused or resumed."""

    note: str = Field(default="", max_length=1000, description="By default the note stays.")


class TriggerSchedule(WireModel):
    """A run of a schedule, now."""

    overlap: Overlap | None = Field(default=None, description="In place of the schedule's own.")


class BackfillSchedule(WireModel):
    """A time that has passed, whose runs are to be started."""

    from_: str = Field(alias="from", max_length=100, description="ISO 8601; by default in the schedule's time zone.")
    to: str = Field(max_length=100, description="The same; up to it.")
    overlap: Overlap = Field(default="buffer-all", description="The policy for these runs.")


class SessionMessage(WireModel):
    """A message for a session."""

    text: str = Field(description="Its text; `/stop`, `/new` and `/reset` are commands.")
    message_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="The sender's own: sent again with it, it is the same message. By default a new one.",
    )
    agent: str | None = Field(
        default=None, max_length=200, description="Who answers; not needed where the session is there already."
    )
    mode: Mode | None = Field(default=None, description="What it does to what runs; by default the session's own.")
    route: str = Field(default="", max_length=200, description="Where the reply goes.")


class RunMessage(WireModel):
    """Something new for a run that works."""

    text: str
    message_id: str | None = Field(default=None, min_length=1, max_length=200, description="As of a session's message.")


class DecisionBody(WireModel):
    """A decision on what waits."""

    call: str = Field(max_length=1000, description="The call's id; of a plan its Request's number.")
    decision: Literal["approve", "reject", "edit", "replace", "answer"]
    digest: str | None = Field(default=None, description="Of what was shown: nothing else is decided then.")
    reason: str | None = None
    remember: bool | None = Field(default=None, description="This tool is not asked about again in this run.")
    endorse: bool | list[str] | None = Field(default=None, description="Stand for its parameters, or those named.")
    params: JsonObject | None = Field(default=None, description="Of an edit: those that change.")
    calls: list[Json] | None = Field(default=None, description="Of an edit of a plan.")
    with_: JsonObject | None = Field(default=None, alias="with", description='The call in its place: `{"_tool": …}`.')
    answer: Any = None


class SessionDecisionBody(DecisionBody):
    """A decision on what waits in a session's run, or in a run of its delegates."""

    run: str | None = Field(
        default=None, max_length=1000, description="The call's run, where several below the session's run wait."
    )


class Redeliver(WireModel):
    """A reply of which nobody knows whether it arrived."""

    delivery: str = Field(min_length=1, max_length=1000, description="The delivery's key, `<run>/<reply>`.")


class ForkForm(WireModel):
    """The place where another session is to begin."""

    at: str = Field(max_length=100, description="A run's number, or a Request's, `R.N`.")
    session: str | None = Field(
        default=None, min_length=1, max_length=200, description="Its key; by default a new one."
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
    uses: int = Field(ge=1, le=MAX_STANDING_USES, description="The most runs.")
    until: str = Field(max_length=40, description="The last day in UTC, such as `2026-12-31`, or a time (ISO 8601).")
    bounds: JsonObject = Field(default_factory=dict, description="JSON Schema of a run's input; `{}` takes any.")
    sources: list[str] = Field(
        default=["trusted"], description="Where the values of its calls may come from, beside the procedure itself."
    )
    name: str | None = Field(default=None, max_length=100, description="By default the procedure's.")
    reason: str = Field(default="", max_length=500, description="For the record.")


class UndoQuery(WireModel):
    """A query about an undo."""

    to: str | None = Field(default=None, max_length=200, description="Back to this call, with it, such as `1.3`.")
    no_effect: str | None = Field(
        default=None, max_length=4096, description="Calls of unknown outcome that took no effect, with commas."
    )

    @property
    def calls(self) -> list[str]:
        return [each.strip() for each in (self.no_effect or "").split(",") if each.strip()]


class UndoRun(WireModel):
    """An undo of a run that has ended."""

    to: str | None = Field(default=None, max_length=200, description="Back to this call, with it, such as `1.3`.")
    no_effect: list[str] = Field(
        default_factory=list, max_length=1_000, description="Calls of unknown outcome that took no effect."
    )
