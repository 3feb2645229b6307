"""Types that cross between client, workflows, and activities, and the names of signals, queries, and activities.

Everything here is data, written as camelCase JSON; a workflow's one input carries all that a run continued as new needs.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from pydantic import Field

from perdure.approvals.policy import Ask, Flow, ToolOwner
from perdure.approvals.requests import MessageFate, WaitingView
from perdure.hooks.events import NOBODY, HookRef, RunOwner
from perdure.models.requests import PATIENCE, ModelWait, RequestView
from perdure.models.usage import Price, RunUsage
from perdure.plan import Approval
from perdure.rules import Rule, RuleRecord
from perdure.runs.agent import Models, PromptConfig
from perdure.runs.limits import Budget, StopReason
from perdure.runs.notifications import ApprovalRoutes, NotificationView
from perdure.runs.prompt_parts import PromptParts
from perdure.runs.shared_budgets import SharedBudget
from perdure.runs.standing_approvals import StandingClaim
from perdure.runs.version_switches import follows
from perdure.tools.invocation import Limited
from perdure.tools.tool import Tool
from perdure.values.json import Json, JsonObject, Packed, WireModel
from perdure.values.limits import MAX_PAYLOAD
from perdure.values.state import WriteRecord

AGENT_WORKFLOW: Final = "Agent"
PREPARE_ACTIVITY: Final = "perdure.prepare"
READ_AGENT_ACTIVITY: Final = "perdure.read_agent"
PREPARED_BY_ACTIVITY: Final = "prepared-by-activity"
"""Marker of an execution that no local activity has prepared. Only a worker that keeps no workflow in memory records it."""
LIMITED_ACTIVITY: Final = "perdure.limited"
REQUEST_ACTIVITY: Final = "perdure.request"
CHOOSE_ACTIVITY: Final = "perdure.choose"
NEXT_TASK_ACTIVITY: Final = "perdure.next_task"
RUN_QUERY: Final = "run"
WAITING_QUERY: Final = "waiting"
VALUE_QUERY: Final = "value"
"""One value whole, page by page: what a view has cut (R18.3)."""
RECALL_QUERY: Final = "recall"
"""A page of a value that the run's model is shown cut (R10.18)."""
CLAIM: Final = "claim"
"""Signal of an activity whose result is large: may the history hold it? (R18.4)"""
GRANTED: Final = "granted"
"""Signal to a delegate, or a loop: what was decided of its own claim, that of its output to the history above it."""
CALLS_SIGNAL: Final = "calls"
DECIDE: Final = "decide"
"""Signal and update; `approve`, `reject`, `edit` and `replace` are signals that say their kind by their name."""
POLICY: Final = "policy"
"""Signal and update: changes to the run's approval policy."""
WAITING_ATTRIBUTE: Final = "PerdureWaiting"
"""Search attribute (Int): what waits for a person in a run (R7.8)."""
AGENT_ATTRIBUTE: Final = "PerdureAgent"
"""Search attribute (Keyword) of a run that no other run has started: its agent's name. Set at its start."""
SENDER_ATTRIBUTE: Final = "PerdureSender"
TENANT_ATTRIBUTE: Final = "PerdureTenant"
"""Search attributes (Keyword) of such a run: for whom it runs, if the start named somebody. Set at its start."""
STOP_ATTRIBUTE: Final = "PerdureStopReason"
"""Search attribute (Keyword) of such a run: why it stopped, or the type of its failure. Set at its end."""
VERSION_ATTRIBUTE: Final = "PerdureVersion"
"""Search attribute (Keyword) of such a run: the version of its agent, where its file has one. Set at its start (R24.10)."""
COST_ATTRIBUTE: Final = "PerdureCost"
"""Search attribute (Double) of such a run: dollars, where they are known. Set at its end."""
SCORE_ATTRIBUTE: Final = "PerdureScore"
"""Search attribute (Double) of the workflow that has scored a run: the share of assertions that hold (R22.4)."""
ATTRIBUTES: Final[Mapping[str, Literal["Int", "Keyword", "Double"]]] = {
    WAITING_ATTRIBUTE: "Int",
    AGENT_ATTRIBUTE: "Keyword",
    STOP_ATTRIBUTE: "Keyword",
    SENDER_ATTRIBUTE: "Keyword",
    TENANT_ATTRIBUTE: "Keyword",
    COST_ATTRIBUTE: "Double",
    VERSION_ATTRIBUTE: "Keyword",
    SCORE_ATTRIBUTE: "Double",
}
"""All of them, and what they hold: a worker registers them at its start."""
SCHEDULE_ATTRIBUTE: Final = "TemporalScheduledById"
SCHEDULED_ATTRIBUTE: Final = "TemporalScheduledStartTime"
"""Temporal's own search attributes (Keyword, Datetime) of a run that a schedule has started: which one, and for when (R19.6)."""
LONGEST_KEYWORD: Final = 200
"""Characters of a search attribute: what is longer is cut."""
WAITING_MEMO: Final = "waiting"
"""Key of the memo that holds a `WaitingMemo` while something waits."""
MODEL_MEMO: Final = "model"
"""Key of the memo that holds a `ModelWait` while the run waits for its model's provider (R20.5)."""
USAGE_MEMO: Final = "usage"
"""Key of the memo that holds a `RunUsage` once the run has ended."""
WAITING_NAMED: Final = 10
"""What waits in a run and is named in its memo; the search attribute counts all."""

REWRITE: Final = "rewrite"
"""Signal to sessions, ledgers and audit logs: they continue as new, so that the codec's newest key encrypts their values (R24.9).

A session has no handler for it: it continues as new when it is idle again after any signal."""
REFUSED: Final = "Refused"
"""Type of the failure of a run whose agent, tools or input cannot be used; nothing was executed."""
MODEL_FAILED: Final = "ModelFailed"
"""Type of the failure of a run whose model could not be reached, or refused for good."""
MODEL_REFUSED: Final = "ModelRefused"
"""Type of the failure of a run whose model refused; the message is the model's words (R20.2)."""
CONTEXT_TOO_LONG: Final = "ContextTooLong"
"""Type of the failure of a Request whose context is more than the model takes (R9.7)."""
UNDO_STOPPED: Final = "UndoStopped"
"""Type of the failure of an undo run in which something could not be taken back (R23.4)."""
RECORD_ENDED: Final = "RecordEnded"
"""Type of the failure of an imported run that did not complete where it ran (R24.5)."""
LEDGER_AWAY: Final = "LedgerAway"
"""Type of the failure of a run whose tenant's ledger does not answer, so that no share of a budget can be reserved."""
LIMIT_REACHED: Final = "LimitReached"
"""Type of the failure of a run that came to a limit without an output."""

RunStatus: TypeAlias = Literal["running", "completed", "refused", "failed", "cancelled", "terminated", "timed_out"]
"""What has become of a run; `refused`: its model refused (R20.2), `cancelled` was asked to end, `terminated` was ended from outside."""


class PrepareInput(WireModel):
    tools: list[str | JsonObject]
    models: JsonObject
    """The agent file's `config.models`, as far as it has any."""
    prices: dict[str, Price] = Field(default_factory=dict)
    """The agent file's own."""
    cost_budget: bool = False
    """Whether there is one: then every model needs a price."""
    delegates: dict[str, JsonObject] = Field(default_factory=dict)
    """Those that the run above has recorded, by name."""
    approver: str | None = None
    """The program that decides, if there is one: the worker has to know it."""
    prompt: PromptConfig = Field(default_factory=PromptConfig)
    """The instructions, skills and files of the run's prompt (R10.19)."""
    notify: dict[str, list[str]] = Field(default_factory=dict)
    """Names of the routes that the run's notifications need, by their places in `config.notify` (R19.5)."""
    callback: str = ""
    """Address to which the run's end is to be sent (R19.8)."""
    tenant: str = Field(default="", exclude_if=operator.not_)
    """The run's tenant, by which versions of its delegates are chosen (R24.10)."""


class PreparedWorker(WireModel):
    """The worker's record at the run's start; a redeployed worker cannot change a run's past."""

    tools: list[Tool]
    undo_tools: list[Tool] = Field(default_factory=list)
    """The tools that take effects of `tools` back (R23.4)."""
    recall: Tool | None = None
    """The tool that reads the rest of a value, for a run in which one was cut; `None`: the worker had none when the run began (R10.18)."""
    models: Models
    prices: dict[str, Price] = Field(default_factory=dict)
    """Of the models that the run may ask, as far as they are known (R9.5)."""
    model_patience: float = PATIENCE
    """Seconds that a Request waits for a model whose provider is away, where its agent does not say (R20.5)."""
    floor: Ask = "never"
    """The worker's `--approval-floor`, which nothing loosens (R7.1)."""
    floor_flows: list[Flow] = Field(default_factory=list)
    """Its rules about where parameters may come from (R15.5)."""
    worker_rules: list[Rule] = Field(default_factory=list, exclude_if=operator.not_)
    """The worker's `--rules`, which hold beside those of the agent file (R23.1)."""
    budgets: list[SharedBudget] = Field(default_factory=list, exclude_if=operator.not_)
    """The worker's `--budgets`, which the run shares with others (R24.8)."""
    delegates: dict[str, JsonObject] = Field(default_factory=dict)
    """The agent files that tools delegate to, however far down, as they were when the run started (R8.1)."""
    delegate_problems: dict[str, str] = Field(default_factory=dict)
    """Why others cannot be used: the calls that need them fail with it (R8.4)."""
    max_payload: int = MAX_PAYLOAD
    """`MAX_STORED` where the worker has external storage."""
    searchable: bool = False
    """Whether the namespace knows `WAITING_ATTRIBUTE`: setting one that it does not know fails the run's tasks for ever."""
    attributes: list[str] = Field(default_factory=list)
    """All of `ATTRIBUTES` that it knows."""
    limited: Limited = Field(default_factory=Limited)
    """What has a task queue of its own, for its rate."""
    hooks: list[HookRef] = Field(default_factory=list)
    """The worker's hooks of runs, in their order (R10.17)."""
    prompt: PromptParts = Field(default_factory=PromptParts)
    """Instructions, skills and bootstrap files as they were then (R10.19)."""
    rules: int = 0
    """Which rules the run follows until its end: see `perdure.runs.version_switches`. 0.1.0 recorded none."""
    pages: str = ""
    """Where the gateway's pages are, to which a run links in Temporal's Web UI; empty: nowhere."""
    audited: bool = Field(default=False, exclude_if=operator.not_)
    """Whether the worker has an audit sink (R24.4)."""
    keeps_version: bool = False
    """Whether the run stays with its worker's version until it ends, also where another one becomes current (R19.9)."""

    def follows(self, rule: str) -> bool:
        """Whether the run follows a rule that came after 0.1.0."""
        return follows(self.rules, rule)


class CallView(WireModel):
    """A call, as `show` and `run --json` print it.

    ```python
    for call in (await run.view()).calls:
        print(call.id, call.tool, call.status, call.error)
    ```
    """

    id: str  # R5.7
    """`R.N`: the Request's number, and the call's index in it."""
    tool: str
    params: JsonObject
    """With every reference resolved, once the call was ready."""
    status: str  # R5.4, R5.10, R10.5, R10.6
    """`done`, `failed`, `rejected`, `skipped`, `invalid`, `deferred` or `unknown` once it has ended; before that `pending`, `ready`, `waiting`, `held` or `running`."""
    started_at: str | None = None
    """ISO 8601, UTC, as all times of a view; `None`: it never started."""
    ended_at: str | None = None
    attempts: int = 0
    """How often its tool was begun."""
    recorded: bool = Field(default=False, exclude_if=operator.not_)
    """Whether the run is a fork, and the call was answered from the other run's record: its tool was not begun."""
    reason: str | None = None
    """Why it was skipped, or what it waits for."""
    error: JsonObject | None = None
    """`{"code", "message"}` of one that did not end well."""
    approval: Approval | None = None
    """The outcome of its approval request, if it had one."""
    sources: dict[str, int] = Field(default_factory=dict)  # R15.1
    """By parameter where it comes from, but for what the model has written out: an index into the run's `sets`; as `""` its
    result's, where others wrote of it. Not part of `run --json`."""
    shown: str | None = None
    """The beginning of the result, for `show`; not part of `run --json`."""
    result: str | None = None  # R10.18
    """The result as text, cut as a transcript keeps it, in a run that `records`; not part of `run --json`."""
    told: JsonObject = Field(default_factory=dict)  # R15.4
    """Of what the transcript keeps of it what a model is told in its place, where it is shown by its shape: `params`, `error`, `shown`.
    Not part of `run --json`."""
    wrote: list[WriteRecord] = Field(default_factory=list)
    """What it has written to the state, in a run that `records`; not part of `run --json`."""

    def as_json(self) -> JsonObject:
        plain = super().as_json()
        del plain["shown"], plain["result"], plain["told"], plain["wrote"]
        optional = ("reason", "error", "approval")
        return {key: value for key, value in plain.items() if value is not None or key not in optional}


class RunResult(WireModel):
    """A run, as `run --json` prints it.

    ```python
    result = (await run.view()).result()
    print(result.output, result.usage.cost)
    ```
    """

    run_id: str
    status: RunStatus = "running"
    output: Any = None  # its reader knows the schema
    """JSON that fits the agent's schema; `None` where there is none, or none yet."""
    stop_reason: StopReason | None = None  # R9.5
    """Why it ended: with its `output`, an `answer` in text, `task_complete`, or at the limit of this name."""
    requests: int = 0
    """How often a model was asked."""
    usage: RunUsage = Field(default_factory=RunUsage)  # R9.6
    """Tokens and dollars, those of its delegates too."""
    errors: list[JsonObject] = Field(default_factory=list)  # R6.6
    """The error messages that the model was given, each `{"call", "error"}`."""
    calls: list[CallView] = Field(default_factory=list)
    """In the order of the plans, also those that never ran."""
    state: JsonObject = Field(default_factory=dict)
    """What calls wrote, as a reference to `†state` reads it now."""
    messages: list[MessageFate] = Field(default_factory=list)
    """What became of the messages that came while it worked, in the order of their acceptance; not printed where there were none."""
    error: str | None = None
    """Why the run failed, in one line."""
    schedule: str = ""
    """The schedule that started it; not printed where there is none."""
    scheduled_at: str | None = None
    """ISO 8601, UTC: the time for which the schedule started it."""
    worked: float = 0.0
    """Seconds of work, for a parent's deadline; not part of `run --json`."""
    cut: list[str] = Field(default_factory=list)  # R18.3
    """Values that were too large to be shown in full, a line each, and how to read them."""
    sources: list[str] = Field(default_factory=list)  # R15.1
    """Where the output of a delegate comes from, for the run above; not part of `run --json`."""
    left: dict[str, list[str]] = Field(default_factory=dict)  # R15.1
    """Where what a session goes on with comes from, by reference: `†state.KEY`, and as `†conversation` what others wrote of what is told
    of the run; not part of `run --json`."""
    output_size: int = 0
    """Bytes of an output that was cut, so that nobody takes it for the value; 0: it is whole. Not part of `run --json`."""
    context_tokens: int = 0
    """What a server counted in the last Request, context and answer; 0: it did not say. Not part of `run --json`."""
    sent: list[str] = Field(default_factory=list)  # R10.16
    """Digests of what message tools have sent, those of its delegates too. Not part of `run --json`."""
    rule_record: RuleRecord | None = Field(default=None, exclude_if=operator.not_)  # R23.1
    """What has happened in it, for the rules of the run above or of its session. Not part of `run --json`."""
    reasoning: str = ""
    """The model's reasoning before the answer, in a session that sends it. Not part of `run --json`."""
    tight: bool = False  # R9.7
    """Whether its context was too long for a model, and was shown cut since. Not part of `run --json`."""
    ended_at: str | None = None
    """ISO 8601, UTC: when it ended, by its own clock, so that all who read it have the same time; `None`: it was broken off, or is a run of
    0.1.0. Not part of `run --json`."""

    def as_json(self) -> JsonObject:
        plain = super().as_json() | {"calls": [call.as_json() for call in self.calls]}
        del plain["worked"], plain["outputSize"], plain["contextTokens"], plain["tight"], plain["sources"]
        del plain["left"], plain["sent"], plain["reasoning"], plain["endedAt"]
        plain.pop("ruleRecord", None)
        for name in ("error", "cut", "messages", "schedule", "scheduledAt"):
            if not plain[name]:
                del plain[name]
        return plain


class RunView(RunResult):
    """A run as it is now, or as it ended: its result so far, and data for live views.

    ```python
    view = await run.view()
    print(view.status, view.output, view.usage.tokens, view.stop_reason)
    ```
    """

    agent: str = ""
    """Its agent's name."""
    version: str = Field(default="", exclude_if=operator.not_)  # R24.10
    """The version of its agent; empty: the agent has none."""
    forked: str = Field(default="", exclude_if=operator.not_)
    """The run of which it is a fork, and the point: `order-17 at 2.1`; empty: it is none."""
    owner: RunOwner = Field(default_factory=RunOwner, exclude_if=lambda owner: owner == NOBODY)
    """The sender, tenant, session and context of its start; secrets in the context are masked."""
    waiting: list[WaitingView] = Field(default_factory=list)
    """What waits for a person, oldest first."""
    rules: list[str] = Field(default_factory=list, exclude_if=operator.not_)  # R23.1
    """The verdict on each rule of the run over its running plan, one line each, violated ones first."""
    wait: ModelWait | None = None  # R20.5
    """The model that it waits for, while its provider is away."""
    notifications: list[NotificationView] = Field(default_factory=list)  # R19.5
    """The newest notifications, with their outcomes."""
    refusals: list[JsonObject] = Field(default_factory=list)
    """Decisions that changed nothing, and why: `{"time", "decision", "problem"}`."""
    resets: int = 0
    """How many resets by Temporal its history holds: after each the run goes on from an earlier point."""
    log: list[RequestView] = Field(default_factory=list)
    """Its Requests, in order."""
    trouble: str = ""  # R18.10
    """Why its workflow tasks fail, and what to do, where they do; or that no worker answers for a run that has ended."""
    reads: dict[str, list[str]] = Field(default_factory=dict)
    """Call id → what it reads, as references."""
    writes: dict[str, str] = Field(default_factory=dict)
    """Call id → its output path."""
    sets: list[list[str]] = Field(default_factory=list)  # R15.1
    """Names of sources; `!` before one means that others wrote its values."""
    met: list[str] = Field(default_factory=list)  # R15.1
    """What others wrote and its calls or its model have met, as names of sources."""
    edges: list[tuple[str, str, str]] = Field(default_factory=list)
    """Writer's call id, reader's, and the reference: what a drawing shows."""

    def result(self) -> RunResult:
        """Return only the part that `run --json` prints.

        ```python
        print((await run.view()).result().as_json())
        ```
        """
        return RunResult.model_validate({name: getattr(self, name) for name in RunResult.model_fields})


PREPARED_FORM: Final = 1
"""Of what `perdure.prepare` records."""


class RunInput(WireModel):
    """The input of the `Agent` workflow: an agent file and the run's input (section 11)."""

    agent: JsonObject
    agent_name: str = ""
    """In place of `agent`: the worker reads the file of this name when the run begins, as for a schedule's runs (R19.6)."""
    input: Json = None
    has_input: bool = False
    """Whether an input was given at all: `null` is one."""
    approval: JsonObject = Field(default_factory=dict)
    """The run's own override of the agent's approval policy: the keys that differ (R7.1)."""
    prompt: JsonObject = Field(default_factory=dict)
    """The same of its `config.prompt` (R10.19)."""
    floor: Ask = "never"
    """That of the run above: a delegate on another queue does not get below it."""
    floor_flows: list[Flow] = Field(default_factory=list)
    """The rules that belong to it."""
    rules: list[Rule] = Field(default_factory=list, exclude_if=operator.not_)
    """The rules of the run above (R23.1)."""
    rule_record: RuleRecord | None = Field(default=None, exclude_if=operator.not_)
    """What has happened before, for these rules and for those that hold over a session."""
    unlent_rules: list[str] = Field(default_factory=list, exclude_if=operator.not_)
    """Keys of rules whose calls the run above has not left to this one."""
    budgets: list[SharedBudget] = Field(default_factory=list, exclude_if=operator.not_)
    """The budgets of the run above that many runs share (R24.8)."""
    givers: list[ToolOwner] = Field(default_factory=list)
    """Whose policies the tools keep that the run was given (R8.2)."""
    lineage: list[str] = Field(default_factory=list)
    """The agents above a delegate, outermost first."""
    delegates: dict[str, JsonObject] = Field(default_factory=dict)
    """The agent files that the run above has recorded."""
    budget: Budget = Field(default_factory=Budget)
    """What the run above has left (R9.6)."""
    free: int = MAX_PAYLOAD
    """Bytes that a delegate's output may have without a `CLAIM` (R18.4)."""
    sources: dict[str, list[str]] = Field(default_factory=dict)
    """Where what a delegate is given comes from, by reference (R15.1)."""
    whose: RunOwner = Field(default_factory=RunOwner)
    routes_above: ApprovalRoutes | None = None
    """Routes of the run above, for approval requests of a delegate whose agent file names none (R19.5)."""
    callback: str = ""
    """Address to which the run's end is sent (R19.8)."""
    said: str = Field(default="", exclude_if=operator.not_)  # the person's last message in its session, for approvers
    requesters: list[str] = Field(default_factory=list, exclude_if=operator.not_)
    """People, besides the sender, whose messages the run begins with: a quorum may exclude them (R24.6)."""
    asks: bool = False  # what is large in this of the run above (R18.2)
    clocked: bool = False  # the run above tells when the deadline may be there (R9.5)
    records: bool = False
    """Whether the result has the results of calls, for a session that keeps them (R10.10)."""
    reasons: bool = False  # a session tells people what the model thinks (R10.16)
    prepared: Packed | None = None
    """A `PreparedWorker` that its loop has recorded for all iterations; its form is `PREPARED_FORM`."""
    fork: Packed | None = Field(default=None, exclude_if=operator.not_)
    """A `ForkRecord`: the record of the run of which this one is a fork (R22.1); its form is `FORK_FORM`."""
    undo: Packed | None = Field(default=None, exclude_if=operator.not_)
    """An `UndoRecord`: the calls of the run that this run undoes (R23.4); its form is `UNDO_FORM`."""
    standing: StandingClaim | None = Field(default=None, exclude_if=operator.not_)
    """The standing approvals that hold for a part of a procedure's loop (R23.3)."""
    snapshot: Packed | None = None
    """A `RunSnapshot`, set when the run goes on from an execution that grew too long; its form is `SNAPSHOT_FORM`."""
