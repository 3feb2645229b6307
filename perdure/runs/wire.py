"""Types that cross between client, workflows, and activities, and the names of signals, queries, and activities.

Everything here is data, written as camelCase JSON; a workflow's one input carries all that a run continued as new needs.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from pydantic import Field

from perdure.approvals.policy import Ask, Flow, PlanApproval, Policy, ToolOwner
from perdure.approvals.requests import MessageFate, WaitingView
from perdure.hooks.events import NOBODY, HookRef, RunOwner
from perdure.models.requests import PATIENCE, ModelWait, RequestView
from perdure.models.usage import Price, RunUsage
from perdure.plan import ENDED, Approval
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
"""Query: a page of a whole value that a view has cut (R18.3)."""
RECALL_QUERY: Final = "recall"
"""Query: a page of a value that the run's model sees cut (R10.18)."""
CLAIM: Final = "claim"
"""Signal of an activity with a large result: it requests room in the history (R18.4)."""
GRANTED: Final = "granted"
"""Signal to a delegate, or a loop: the decision on its claim to room for its output in the parent's history."""
CALLS_SIGNAL: Final = "calls"
DECIDE: Final = "decide"
"""Signal and update; the names of the signals `approve`, `reject`, `edit` and `replace` give the kind of the decision.
"""
POLICY: Final = "policy"
"""Signal and update: changes to the run's approval policy."""
WAITING_ATTRIBUTE: Final = "PerdureWaiting"
"""Search attribute (Int): the number of requests of a run that wait for a person (R7.8)."""
AGENT_ATTRIBUTE: Final = "PerdureAgent"
"""Search attribute (Keyword) of a run that no other run has started: its agent's name. Set at its start."""
SENDER_ATTRIBUTE: Final = "PerdureSender"
TENANT_ATTRIBUTE: Final = "PerdureTenant"
"""Search attributes (Keyword) of such a run: its sender and its tenant, if the start named them. Set at its start."""
STOP_ATTRIBUTE: Final = "PerdureStopReason"
"""Search attribute (Keyword) of such a run: its stop reason, or the type of its failure. Set at its end."""
VERSION_ATTRIBUTE: Final = "PerdureVersion"
"""Search attribute (Keyword) of such a run: the version of its agent, if its file has one. Set at its start (R24.10).
"""
COST_ATTRIBUTE: Final = "PerdureCost"
"""Search attribute (Double) of such a run: its cost in dollars, if known. Set at its end."""
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
"""All search attributes, with their types: a worker registers them at its start."""
SCHEDULE_ATTRIBUTE: Final = "TemporalScheduledById"
SCHEDULED_ATTRIBUTE: Final = "TemporalScheduledStartTime"
"""Temporal's own search attributes (Keyword, Datetime) of a schedule's run: the schedule and the time (R19.6)."""
LONGEST_KEYWORD: Final = 200
"""Characters of a search attribute: a longer value is cut."""
WAITING_MEMO: Final = "waiting"
"""Key of the memo that holds a `WaitingMemo` while a request waits."""
MODEL_MEMO: Final = "model"
"""Key of the memo that holds a `ModelWait` while the run waits for its model's provider (R20.5)."""
USAGE_MEMO: Final = "usage"
"""Key of the memo that holds a `RunUsage` once the run has ended."""
WAITING_NAMED: Final = 10
"""Waiting requests that a run's memo names; the search attribute counts all."""

REWRITE: Final = "rewrite"
"""Signal to sessions, ledgers and audit logs: they continue as new, so that the codec's newest key encrypts their values (R24.9).

A session has no handler for it: it continues as new when it is idle again after any signal."""
REFUSED: Final = "Refused"
"""Type of the failure of a run whose agent, tools or input cannot be used; nothing was executed."""
MODEL_FAILED: Final = "ModelFailed"
"""Type of the failure of a run whose model was unavailable, or rejected the Request finally."""
MODEL_REFUSED: Final = "ModelRefused"
"""Type of the failure of a run whose model refused; the message has the model's text (R20.2)."""
CONTEXT_TOO_LONG: Final = "ContextTooLong"
"""Type of the failure of a Request whose context is too long for the model (R9.7)."""
UNDO_STOPPED: Final = "UndoStopped"
"""Type of the failure of an undo run that could not undo all effects (R23.4)."""
RECORD_ENDED: Final = "RecordEnded"
"""Type of the failure of an imported run that did not complete where it ran (R24.5)."""
LEDGER_AWAY: Final = "LedgerAway"
"""Type of the failure of a run whose tenant's ledger does not answer, so that no share of a budget can be reserved."""
LIMIT_REACHED: Final = "LimitReached"
"""Type of the failure of a run that reached a limit without an output."""

RunStatus: TypeAlias = Literal["running", "completed", "refused", "failed", "cancelled", "terminated", "timed_out"]
"""Status of a run. `refused`: its model refused (R20.2); `cancelled`: it was requested to end; `terminated`: Temporal
ended it.
"""


class PrepareInput(WireModel):
    tools: list[str | JsonObject]
    models: JsonObject
    """The agent file's `config.models`, if it has any."""
    prices: dict[str, Price] = Field(default_factory=dict)
    """The agent file's own prices."""
    cost_budget: bool = False
    """Whether there is a cost budget: then every model needs a price."""
    delegates: dict[str, JsonObject] = Field(default_factory=dict)
    """The agent files that the run above has recorded, by name."""
    approver: str | None = None
    """The program that decides, if any: the worker needs it."""
    prompt: PromptConfig = Field(default_factory=PromptConfig)
    """The instructions, skills and files of the run's prompt (R10.19)."""
    notify: dict[str, list[str]] = Field(default_factory=dict)
    """Names of the routes that the run's notifications need, by their places in `config.notify` (R19.5)."""
    callback: str = ""
    """Address to which the run's end is to be sent (R19.8)."""
    tenant: str = Field(default="", exclude_if=operator.not_)
    """The run's tenant, by which versions of its delegates are chosen (R24.10)."""
    rules: list[Rule] = Field(default_factory=list, exclude_if=operator.not_)
    """The agent file's rules, where the run is not part of another run (R23.1)."""
    policy: Policy | None = Field(default=None, exclude_if=operator.not_)
    """The agent file's approval policy, where the run is not part of another run (R7.1)."""


class PreparedWorker(WireModel):
    """The worker's record at the run's start; a redeployed worker cannot change a run's past."""

    tools: list[Tool]
    undo_tools: list[Tool] = Field(default_factory=list)
    """The tools that undo effects of `tools` (R23.4)."""
    recall: Tool | None = None
    """The tool that reads the rest of a cut value; `None`: the worker had none when the run began (R10.18)."""
    models: Models
    prices: dict[str, Price] = Field(default_factory=dict)
    """Prices of the models that the run may use, as far as they are known (R9.5)."""
    model_patience: float = PATIENCE
    """Seconds that a Request waits for a model whose provider is unavailable, unless its agent sets them (R20.5)."""
    floor: Ask = "never"
    """The worker's `--approval-floor`, which nothing loosens (R7.1)."""
    floor_flows: list[Flow] = Field(default_factory=list)
    """Its rules about the sources of parameters (R15.5)."""
    worker_rules: list[Rule] = Field(default_factory=list, exclude_if=operator.not_)
    """The worker's `--rules`, which apply beside the agent file's rules (R23.1)."""
    budgets: list[SharedBudget] = Field(default_factory=list, exclude_if=operator.not_)
    """The worker's `--budgets`, which the run shares with others (R24.8)."""
    delegates: dict[str, JsonObject] = Field(default_factory=dict)
    """The agent files that tools delegate to, at any depth, as they were when the run started (R8.1)."""
    delegate_problems: dict[str, str] = Field(default_factory=dict)
    """Reasons why others cannot be used: the calls that need them fail with the reason (R8.4)."""
    max_payload: int = MAX_PAYLOAD
    """`MAX_STORED` if the worker has external storage."""
    searchable: bool = False
    """Whether the namespace knows `WAITING_ATTRIBUTE`: setting an unknown one fails the run's tasks permanently."""
    attributes: list[str] = Field(default_factory=list)
    """The `ATTRIBUTES` that the namespace knows."""
    limited: Limited = Field(default_factory=Limited)
    """Models and tools with a task queue of their own, for their rate."""
    hooks: list[HookRef] = Field(default_factory=list)
    """The worker's hooks of runs, in their order (R10.17)."""
    prompt: PromptParts = Field(default_factory=PromptParts)
    """Instructions, skills and bootstrap files at the run's start (R10.19)."""
    rules: int = 0
    """Number that gives the rules of the run until its end: see `perdure.runs.version_switches`. 0.1.0 recorded none.
    """
    pages: str = ""
    """Address of the gateway's pages, to which a run links in Temporal's Web UI; empty: there are no pages."""
    audited: bool = Field(default=False, exclude_if=operator.not_)
    """Whether the worker has an audit sink (R24.4)."""
    keeps_version: bool = False
    """Whether the run keeps its worker's version until it ends, even if another one becomes current (R19.9)."""

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
    """Parameters, with every reference resolved once the call was ready."""
    status: str  # R5.4, R5.10, R10.5, R10.6
    """`done`, `failed`, `rejected`, `skipped`, `invalid`, `deferred` or `unknown` once it has ended; before that `pending`, `ready`, `waiting`, `held` or `running`."""
    is_with_client: bool = Field(default=False, exclude_if=operator.not_)  # R10.6
    """Whether its client has received the call and has not answered yet. Not part of `run --json`."""
    started_at: str | None = None
    """ISO 8601, UTC, as all times of a view; `None`: it never started."""
    ended_at: str | None = None
    attempts: int = 0
    """The number of attempts of its tool."""
    carried_out: bool = Field(default=False, exclude_if=operator.not_)
    """Whether its tool has returned although the call is not done: its result cannot be used."""
    recorded: bool = Field(default=False, exclude_if=operator.not_)
    """Whether the run is a fork, and the call was answered from the other run's record: its tool was not begun."""
    hooked: list[str] = Field(default_factory=list, exclude_if=operator.not_)
    """The parameters that hooks have changed."""
    hooked_by: str = Field(default="", exclude_if=operator.not_)
    """The hooks that have changed them."""
    reason: str | None = None
    """The reason why it was skipped, or waits."""
    error: JsonObject | None = None
    """`{"code", "message"}` of a call that did not succeed."""
    approval: Approval | None = None
    """The outcome of its approval request, if it had one."""
    sources: dict[str, int] = Field(default_factory=dict)  # R15.1
    """By parameter its sources, unless the model wrote it out: an index into the run's `sets`; as `""` the sources of
    an untrusted result. Not part of `run --json`.
    """
    shown: str | None = None
    """The beginning of the result, for `show`; not part of `run --json`."""
    result: str | None = None  # R10.18
    """The result as text, cut as a transcript keeps it, in a run that `records`; not part of `run --json`."""
    told: JsonObject = Field(default_factory=dict)  # R15.4
    """The parts of its transcript entry that a model sees as shapes: `params`, `error`, `shown`. Not part of `run
    --json`.
    """
    wrote: list[WriteRecord] = Field(default_factory=list)
    """Its writes to the state, in a run that `records`; not part of `run --json`."""

    @property
    def status_without_outcome(self) -> str:
        """The status if the run ends now: `unknown` for a call whose tool may be at work, `skipped` for another one."""
        if self.status in ENDED:
            return self.status
        return "unknown" if self.status == "running" or self.is_with_client else "skipped"

    def as_json(self) -> JsonObject:
        plain = super().as_json()
        plain.pop("isWithClient", None)
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
    """JSON that fits the agent's schema; `None` if there is none, or none yet."""
    stop_reason: StopReason | None = None  # R9.5
    """The reason of its end: its `output`, an `answer` in text, `task_complete`, or the limit of this name."""
    requests: int = 0
    """The number of Requests to models."""
    usage: RunUsage = Field(default_factory=RunUsage)  # R9.6
    """Tokens and dollars, including its delegates'."""
    errors: list[JsonObject] = Field(default_factory=list)  # R6.6
    """The error messages to the model, each `{"call", "error"}`."""
    calls: list[CallView] = Field(default_factory=list)
    """In the order of the plans, including calls that never ran."""
    state: JsonObject = Field(default_factory=dict)
    """The state that the calls wrote, as a reference to `†state` reads it now."""
    messages: list[MessageFate] = Field(default_factory=list)
    """The fates of messages that arrived while it worked, in the order of acceptance; not printed if there were none.
    """
    error: str | None = None
    """The reason of the run's failure, in one line."""
    schedule: str = ""
    """The schedule that started it; not printed if there is none."""
    scheduled_at: str | None = None
    """ISO 8601, UTC: the time for which the schedule started it."""
    worked: float = 0.0
    """Seconds of work, for a parent's deadline; not part of `run --json`."""
    cut: list[str] = Field(default_factory=list)  # R18.3
    """Values that were too large to be shown whole: one line each, with the command to read them."""
    sources: list[str] = Field(default_factory=list)  # R15.1
    """Sources of a delegate's output, for the run above; not part of `run --json`."""
    left: dict[str, list[str]] = Field(default_factory=dict)  # R15.1
    """Sources of the values with which a session continues, by reference: `†state.KEY`, and as `†conversation` the
    untrusted sources of the run's report; not part of `run --json`."""
    output_size: int = 0
    """Bytes of an output that was cut; 0: it is whole. Not part of `run --json`."""
    context_tokens: int = 0
    """Tokens of the last Request, context and answer, by the server's count; 0: not reported. Not part of `run --json`.
    """
    sent: list[str] = Field(default_factory=list)  # R10.16
    """Digests of texts that message tools have sent, including its delegates'. Not part of `run --json`."""
    rule_record: RuleRecord | None = Field(default=None, exclude_if=operator.not_)  # R23.1
    """Its record for the rules of the run above or of its session. Not part of `run --json`."""
    changed: bool = Field(default=False, exclude_if=operator.not_)  # R23.3
    """Whether a decision has changed a call of it. Not part of `run --json`."""
    reasoning: str = ""
    """The model's reasoning before the answer, in a session that sends it. Not part of `run --json`."""
    tight: bool = False  # R9.7
    """Whether its context was too long for a model, and is cut since then. Not part of `run --json`."""
    ended_at: str | None = None
    """The time of its end by its own clock, ISO 8601, UTC; the same for all readers. `None`: it was terminated, or is a
    run of 0.1.0. Not part of `run --json`.
    """

    def as_json(self) -> JsonObject:
        plain = super().as_json() | {"calls": [call.as_json() for call in self.calls]}
        del plain["worked"], plain["outputSize"], plain["contextTokens"], plain["tight"], plain["sources"]
        del plain["left"], plain["sent"], plain["reasoning"], plain["endedAt"]
        for name in ("ruleRecord", "changed"):
            plain.pop(name, None)
        for name in ("error", "cut", "messages", "schedule", "scheduledAt"):
            if not plain[name]:
                del plain[name]
        return plain


class RunView(RunResult):
    """The present or final view of a run: its result so far, and data for live views.

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
    """The run from which it was forked, and the point: `order-17 at 2.1`; empty: it is no fork."""
    owner: RunOwner = Field(default_factory=RunOwner, exclude_if=lambda owner: owner == NOBODY)
    """The sender, tenant, session and context of its start; secrets in the context are masked."""
    waiting: list[WaitingView] = Field(default_factory=list)
    """The requests that wait for a person, oldest first."""
    rules: list[str] = Field(default_factory=list, exclude_if=operator.not_)  # R23.1
    """The verdict on each rule of the run over its running plan, one line each, violated ones first."""
    wait: ModelWait | None = None  # R20.5
    """The model that it waits for, while the model's provider is unavailable."""
    notifications: list[NotificationView] = Field(default_factory=list)  # R19.5
    """The newest notifications, with their outcomes."""
    refusals: list[JsonObject] = Field(default_factory=list)
    """Decisions that changed nothing, and why: `{"time", "decision", "problem"}`."""
    resets: int = 0
    """The number of resets by Temporal in its history: after each the run continues from an earlier point."""
    log: list[RequestView] = Field(default_factory=list)
    """Its Requests, in order."""
    trouble: str = ""  # R18.10
    """Why its workflow tasks fail, if they do, and what to do; or that no worker answers for an ended run."""
    reads: dict[str, list[str]] = Field(default_factory=dict)
    """Call id → the references that it reads."""
    writes: dict[str, str] = Field(default_factory=dict)
    """Call id → its output path."""
    sets: list[list[str]] = Field(default_factory=list)  # R15.1
    """Names of sources; `!` before one means that others wrote its values."""
    met: list[str] = Field(default_factory=list)  # R15.1
    """The untrusted sources that its calls or its model have read."""
    edges: list[tuple[str, str, str]] = Field(default_factory=list)
    """The edges of a drawing: the writer's call id, the reader's, and the reference."""

    def result(self) -> RunResult:
        """Return only the part that `run --json` prints.

        ```python
        print((await run.view()).result().as_json())
        ```
        """
        return RunResult.model_validate({name: getattr(self, name) for name in RunResult.model_fields})


PREPARED_FORM: Final = 1
"""Form of the record of `perdure.prepare`."""


class RunInput(WireModel):
    """The input of the `Agent` workflow: an agent file and the run's input (section 11)."""

    agent: JsonObject
    agent_name: str = ""
    """In place of `agent`: the worker reads the file of this name when the run begins, as for a schedule's runs (R19.6)."""
    input: Json = None
    has_input: bool = False
    """Whether the run has an input: `null` is one."""
    approval: JsonObject = Field(default_factory=dict)
    """The run's own override of the agent's approval policy: the keys that differ (R7.1)."""
    prompt: JsonObject = Field(default_factory=dict)
    """The same for its `config.prompt` (R10.19)."""
    floor: Ask = "never"
    """The approval floor of the run above: a delegate on another queue cannot loosen it."""
    floor_flows: list[Flow] = Field(default_factory=list)
    """The rules that belong to it."""
    rules: list[Rule] = Field(default_factory=list, exclude_if=operator.not_)
    """The rules of the run above (R23.1)."""
    rule_record: RuleRecord | None = Field(default=None, exclude_if=operator.not_)
    """The earlier record, for these rules and for rules over a session."""
    unlent_rules: list[str] = Field(default_factory=list, exclude_if=operator.not_)
    """Keys of rules whose calls the run above has not left to this one."""
    budgets: list[SharedBudget] = Field(default_factory=list, exclude_if=operator.not_)
    """The budgets of the run above that many runs share (R24.8)."""
    givers: list[ToolOwner] = Field(default_factory=list)
    """Owners whose policies apply to the inherited tools (R8.2)."""
    lineage: list[str] = Field(default_factory=list)
    """The agents above a delegate, outermost first."""
    delegates: dict[str, JsonObject] = Field(default_factory=dict)
    """The agent files that the run above has recorded."""
    budget: Budget = Field(default_factory=Budget)
    """The remaining budget of the run above (R9.6)."""
    free: int = MAX_PAYLOAD
    """Bytes that a delegate's output may have without a `CLAIM` (R18.4)."""
    sources: dict[str, list[str]] = Field(default_factory=dict)
    """Sources of a delegate's input, by reference (R15.1)."""
    whose: RunOwner = Field(default_factory=RunOwner)
    routes_above: ApprovalRoutes | None = None
    """Routes of the run above, for approval requests of a delegate whose agent file names none (R19.5)."""
    callback: str = ""
    """Address to which the run's end is sent (R19.8)."""
    said: str = Field(default="", exclude_if=operator.not_)  # the person's last message in its session, for approvers
    requesters: list[str] = Field(default_factory=list, exclude_if=operator.not_)
    """People, besides the sender, whose messages the run begins with: a quorum may exclude them (R24.6)."""
    evaluated: bool = Field(default=False, exclude_if=operator.not_)
    """Whether it belongs to an evaluation: it informs nobody, and uses no standing approval (R22.3)."""
    asks: bool = False  # queries the run above for large values (R18.2)
    clocked: bool = False  # the run above signals when the deadline may be reached (R9.5)
    records: bool = False
    """Whether the result has the results of calls, for a session that keeps them (R10.10)."""
    reasons: bool = False  # a session sends the model's reasoning to people (R10.16)
    prepared: Packed | None = None
    """A `PreparedWorker` that its loop has recorded for all iterations; its form is `PREPARED_FORM`."""
    fork: Packed | None = Field(default=None, exclude_if=operator.not_)
    """A `ForkRecord`: the record of the run from which this one was forked (R22.1); its form is `FORK_FORM`."""
    undo: Packed | None = Field(default=None, exclude_if=operator.not_)
    """An `UndoRecord`: the calls of the run that this run undoes (R23.4); its form is `UNDO_FORM`."""
    remembered: list[str] = Field(default_factory=list, exclude_if=operator.not_)
    """Tools of a part of a loop whose approval a person wants remembered in the run above (R7.7)."""
    standing: StandingClaim | None = Field(default=None, exclude_if=operator.not_)
    """The standing approvals that apply to a part of a procedure's loop (R23.3)."""
    plan_approval: PlanApproval | None = Field(default=None, exclude_if=operator.not_)
    """The approval of the whole plan, for a part of its loop (R7.6)."""
    snapshot: Packed | None = None
    """A `RunSnapshot`, set when the run continues from an execution that grew too long; its form is `SNAPSHOT_FORM`."""
