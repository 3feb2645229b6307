"""Options of an agent: the keys of `config` as keyword arguments.

`perdure.runs.agent.Config` and its parts define, describe and check them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Required, TypedDict

from perdure.rules import Rule

# Made from the models by `make settings`; not to be edited below.


class ModelOptions(TypedDict, total=False):
    """The models that answer. Keys that the file leaves out have the worker's values.

    ```python
    Agent("shopper", models={"fast": "gpt-5-mini", "smart": "gpt-5"})
    ```
    """

    fast: str
    """The model for choosing tools; by default the worker's. `model@endpoint` uses another server of the worker's
    settings."""
    smart: str
    """The model after errors and for final answers; by default the worker's."""
    policy: str
    """The choice of the model for each Request: `auto`, `fast`, `smart`, or the worker's `module:function`. Default:
    `'auto'`."""
    fallback: Sequence[str]
    """The models to use in this order when the chosen one is down. `model@endpoint` uses another server of the worker's
    settings."""


class SamplingOptions(TypedDict, total=False):
    """The sampling of a model, as its server accepts it. The server chooses what is left out.

    ```python
    Agent("shopper", sampling={"temperature": 0, "max_tokens": 2000})
    ```
    """

    temperature: float | None
    """As the server takes it, like all of these."""
    top_p: float | None
    """Share of the likeliest tokens that are drawn from."""
    max_tokens: int | None
    """Tokens of one answer at most."""
    seed: int | None
    """For answers that are the same again, as far as the server can."""
    reasoning_effort: str | None
    """How long it thinks: `low`, `medium`, …"""


class ModelSamplingOptions(SamplingOptions, total=False):
    """The sampling of all models; `fast` and `smart` hold what differs for these.

    ```python
    Agent("shopper", sampling={"seed": 7, "smart": {"reasoning_effort": "high"}})
    ```
    """

    fast: SamplingOptions
    """Settings that differ for the fast model."""
    smart: SamplingOptions
    """Settings that differ for the smart model."""


class PriceOptions(TypedDict, total=False):
    """Dollars per million tokens.

    ```python
    Agent("shopper", prices={"my-model": {"prompt": 0.5, "completion": 2.0}})
    ```
    """

    prompt: Required[float]
    completion: Required[float]
    cached: float | None
    """The price of prompt tokens from the server's cache; `None`, which is not printed: that of the others."""
    cache_write: float | None
    """The price of prompt tokens that the server writes to its cache; `None` as for `cached`."""


class ApprovalOptions(TypedDict, total=False):
    """The approval policy of an agent file (`config.approval`); with only some of its keys, a change to it.

    ```python
    Agent("shopper", approval={"ask": "dangerous", "tools": {"order": "always"}, "timeout": 3600})
    ```
    """

    scope: Literal["calls", "plan"]
    """`plan` requests one approval for a Request's whole plan, instead of one for each call. Default: `'calls'`."""
    ask: Literal["never", "untrusted", "dangerous", "unsafe", "always"]
    """The calls that need approval; `unsafe` is every call that is not declared safe. Default: `'dangerous'`."""
    tools: Mapping[str, Any]
    """Rules by tool name, in place of `ask` and of the tool's own `_approval`: `never`, `always`, `{"when": <JSON
    Schema>}`, or a quorum: `{"by": 2, "roles": ["finance"], "not": "requester"}`. With `when`, only matching calls are
    asked about."""
    flows: Sequence[Mapping[str, Any]]
    """Rules about the provenance of parameters."""
    approver: str | None
    """The worker's `module:function`: a program that decides, or leaves the decision to a person."""
    timeout: float | None
    """Seconds to wait for a decision. `None`: no limit."""
    on_timeout: Literal["reject", "approve", "fail"]
    """The result of a call without a decision in time. Default: `'reject'`."""


class SessionOptions(TypedDict, total=False):
    """The rules of a session. A rule that is left out comes from the level above, or is the default.

    ```python
    Agent("shopper", session={"mode": "collect", "quiet": 5})
    ```
    """

    mode: Literal["steer", "followup", "collect", "interrupt", "reject"] | None
    """The mode of a message without one; `steer`, and `followup` while the run waits for a person."""
    cap: int | None
    """Messages that may wait; 20."""
    quiet: float | None
    """Seconds without another message after which collected messages begin a run; 0.5."""
    context_tokens: int | None
    """Tokens of a context from which the conversation is compacted; 100,000, or less after a model has refused that."""
    priority: int | None
    """Priority of its runs; that of its agent."""
    verbose: Sequence[Literal["reasoning", "tools"]] | None
    """The parts that are delivered before an answer, to people whose messages name a route; none."""


class PromptOptions(TypedDict, total=False):
    """The instructions, skills and workspace files of a run's prompt. By default there are none.

    ```python
    Agent("shopper", prompt={"skills": True, "files": ["HOUSE.md"]})
    ```
    """

    text: str
    """Instructions at the end of the prompt. A run's text replaces its agent's."""
    skills: bool | Sequence[str]
    """`true`: all skills of the worker. A list: the skills with these names."""
    workspace: bool | str
    """`true`: the files of the worker's workspace. A text: the files of this folder in it."""
    files: Sequence[str]
    """The files in this order. Missing files are left out. Default: `['AGENTS.md', 'SOUL.md', 'TOOLS.md',
    'IDENTITY.md', 'USER.md', 'MEMORY.md']`."""


class WaitingStepOptions(TypedDict, total=False):
    """A time after which a request still waits for a person, and the routes that are informed then.

    ```python
    Agent("shopper", notify={"approval_waiting": [{"after": 3600, "routes": ["boss"]}]})
    ```
    """

    after: Required[float]
    """Seconds since the request."""
    routes: Required[Sequence[str]]
    """Routes of the worker, by name."""


class NotifyOptions(TypedDict, total=False):
    """The routes of the worker that are informed of what happens in a run. By default there are none.

    ```python
    Agent("shopper", notify={"approval_requested": ["ops"], "run_failed": ["ops"]})
    ```
    """

    approval_requested: Sequence[str]
    """Routes to notify when a call, a plan or a question starts to wait for a person."""
    approval_waiting: Sequence[WaitingStepOptions]
    """Reminders and escalations: routes to notify after a time, if it still waits."""
    budget_nearly_used: Sequence[str]
    """Routes to notify when the run has used `budget_share` of its token or cost budget."""
    run_failed: Sequence[str]
    """Routes to notify when a run fails or its model refuses."""
    run_ended: Sequence[str]
    """Routes to notify at every end of a run. A route that `run_failed` has too is notified once."""
    budget_share: float
    """The share of `token_budget` or `cost_budget` at which the routes of `budget_nearly_used` are notified. Default:
    `0.8`."""


class EvaluateOptions(TypedDict, total=False):
    """The evaluators of an agent's finished runs in production, and how many runs they score.

    ```python
    Agent("shopper", evaluate={"evaluators": [{"MaxCost": 0.05}], "share": 0.1})
    ```
    """

    evaluators: Sequence[Any]
    """Evaluators of `pydantic-evals`, as a dataset file writes them: `"IsInstance"`, `{"MaxCost": 0.05}`. None: no run
    is scored."""
    share: float
    """The share of runs that is scored: 0.1 is one of ten. The run's id decides. Default: `1.0`."""
    per_day: int
    """Runs of the agent that are scored in one day (UTC), over all workers. Default: `100`."""


class AgentOptions(TypedDict, total=False):
    """The `config` of an agent file; every key may be left out.

    ```python
    Agent("shopper", max_requests=10, deadline=600, cost_budget=0.5)
    ```
    """

    models: ModelOptions
    """The models."""
    sampling: ModelSamplingOptions
    """Sampling, such as the temperature."""
    dialect: Literal["solution", "tools", "script"]
    """The form of the model's plans. Default: `'solution'`."""
    control: bool | Literal["auto"] | None
    """Whether the prompt describes expressions and conditions. `auto`: if a list can occur; the default in `script`."""
    start: Literal["model", "plan"]
    """Whether a `plan` in the context is shown to the model, or runs first. Default: `'model'`."""
    execution: Literal["drain", "step"]
    """Whether all calls of a Solution run before the next Request, or only calls without a dependency. Default:
    `'drain'`."""
    stream: bool
    """Whether calls start while the model is still writing. Default: `True`."""
    parallel: int | None
    """The most parallel calls; with `step`, calls per Request. `None`: as many as the dependencies allow."""
    max_requests: int
    """The most Requests of a run. Default: `20`."""
    max_calls: int
    """The most calls of a Solution. Default: `500`."""
    token_budget: int | None
    """The most prompt and completion tokens of the run and its delegates."""
    cost_budget: float | None
    """The most dollars of the run and its delegates, by `prices`."""
    deadline: float
    """The most seconds of work. Time spent waiting for a person does not count, nor an outage of all workers at the
    deadline. Default: `600.0`."""
    model_patience: float | None
    """Seconds that a Request waits for a model whose provider is unavailable; by default the worker's, an hour."""
    priority: int | None
    """The priority, 1 (first) to 5 (last), for workers with more work than capacity; by default 3. Delegates have their
    run's priority."""
    client_timeout: float | None
    """Seconds that a call waits for the client that executes it; then the run fails. `None`: no limit."""
    on_failure: Literal["keep", "undo"]
    """Whether a failed run undoes its calls, if their tools have an undo. Default: `'keep'`."""
    stuck_after: int
    """The run ends after this many consecutive answers with the same calls. Default: `3`."""
    must_call: Sequence[str]
    """The model must call one of these tools before its output counts."""
    refine: bool
    """Whether the smart model revises an output of the fast one."""
    prices: Mapping[str, PriceOptions]
    """Model → dollars per million tokens. Other models have the worker's prices."""
    show: Literal["values", "shape"] | Mapping[str, Literal["values", "shape"]]
    """Whether prompts have untrusted tools' full results, or only keys, types, lengths and numbers; or a choice for
    each tool. Default: `'values'`."""
    prompt: PromptOptions
    """Instructions, skills and a workspace's files, in addition to the context."""
    approval: ApprovalOptions | Literal["calls", "plan"]
    """The approval policy: the calls that need a person."""
    rules: Sequence[Rule | Mapping[str, Any]]
    """Rules of every run, which no plan and no approval overrides."""
    notify: NotifyOptions
    """Routes to notify when an approval is requested or waits, a budget is nearly used, or a run ends."""
    evaluate: EvaluateOptions
    """Evaluators that score a sample of the agent's finished runs."""
    trusted_clients: Sequence[str]
    """Clients of the gateway whose histories and function results have the provenance of their user: `TENANT/SENDER`,
    `SENDER` without a tenant, `*` for all."""
    image_hosts: Sequence[str]
    """Hosts from which the model's provider may fetch pictures of the gateway's clients: `img.example.com`,
    `*.example.org`."""
    session: SessionOptions
    """The settings of the agent's sessions."""
