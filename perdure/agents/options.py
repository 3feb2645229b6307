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
    """The model for choosing tools; by default the worker's. `model@endpoint` asks another server that the worker
    knows."""
    smart: str
    """The model after errors and for final answers; by default the worker's."""
    policy: str
    """How one is chosen for each Request: `auto`, `fast`, `smart`, or `module:function` of the worker's. Default:
    `'auto'`."""
    fallback: Sequence[str]
    """Asked in their order when the chosen one is down; `model@endpoint` is another server that the worker knows."""


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
    """`plan` requests approval for a Request's whole plan once, in place of its calls one by one. Default: `'calls'`."""
    ask: Literal["never", "untrusted", "dangerous", "unsafe", "always"]
    """The calls that need approval; `unsafe` is every call that is not declared safe. Default: `'dangerous'`."""
    tools: Mapping[str, Any]
    """Exceptions by tool name, before the tool's own `_approval`: `never`, `always`, `{"when": <JSON Schema>}`, or a
    quorum: `{"by": 2, "roles": ["finance"], "not": "requester"}`, with `when` only for the calls that meet it."""
    flows: Sequence[Mapping[str, Any]]
    """Rules about where parameters may come from."""
    approver: str | None
    """`module:function` of the worker's: the program that decides, or leaves it to a person."""
    timeout: float | None
    """Seconds to wait for a decision; `None` waits for ever."""
    on_timeout: Literal["reject", "approve", "fail"]
    """The verdict when nobody decides in time. Default: `'reject'`."""


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
    """Instructions that come last; those of a run replace its agent's."""
    skills: bool | Sequence[str]
    """`true`: all that the worker has; or these, by name."""
    workspace: bool | str
    """`true`: the files of the worker's workspace; or of this folder in it."""
    files: Sequence[str]
    """Which, in this order; those that are not there are left out. Default: `['AGENTS.md', 'SOUL.md', 'TOOLS.md',
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
    """When a call, a plan or a question begins to wait for a person."""
    approval_waiting: Sequence[WaitingStepOptions]
    """When it still waits: reminders, and others than before (escalation), each after a time."""
    budget_nearly_used: Sequence[str]
    """When `budget_share` of the tokens or of the money is used."""
    run_failed: Sequence[str]
    """When a run fails, or its model refuses."""
    run_ended: Sequence[str]
    """When a run ends in any way; a route of `run_failed` is informed once."""
    budget_share: float
    """Share of `token_budget`, or of `cost_budget`, that is nearly all. Default: `0.8`."""


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
    """Which models answer."""
    sampling: ModelSamplingOptions
    """Temperature and the like."""
    dialect: Literal["solution", "tools", "script"]
    """The form in which the model writes plans. Default: `'solution'`."""
    control: bool | Literal["auto"] | None
    """Whether the model is taught to compute and to make calls on conditions. `auto`: where a list can occur; the
    default in `script`."""
    start: Literal["model", "plan"]
    """Whether a `plan` in the context is only shown to the model, or is run first. Default: `'model'`."""
    execution: Literal["drain", "step"]
    """Whether all calls of a Solution run, or only those that need no other, before the model is asked again. Default:
    `'drain'`."""
    stream: bool
    """Whether calls start while the model is still writing. Default: `True`."""
    parallel: int | None
    """Calls at once; with `step` calls per Request. `None`: as many as the dependencies allow."""
    max_requests: int
    """Model invocations per run. Default: `20`."""
    max_calls: int
    """Calls per Solution. Default: `500`."""
    token_budget: int | None
    """Prompt and completion tokens of the run and its delegates."""
    cost_budget: float | None
    """Dollars, by `prices`."""
    deadline: float
    """Seconds of work; time spent waiting for a person does not count. Default: `600.0`."""
    model_patience: float | None
    """Seconds that a Request waits for a model whose provider is away; by default the worker's, an hour."""
    priority: int | None
    """1 to 5: which runs workers serve first where more waits than they can do, 1 before 2; 3. Delegates have that of
    their run."""
    client_timeout: float | None
    """Seconds that a call waits for the program that carries it out; then the run fails. `None`: for ever."""
    on_failure: Literal["keep", "undo"]
    """Whether a run that fails takes back what it has done, as far as its tools have an undo. Default: `'keep'`."""
    stuck_after: int
    """The run ends after this many answers in a row that ask for the same. Default: `3`."""
    must_call: Sequence[str]
    """Tools of which the model calls one before its output counts."""
    refine: bool
    """Whether the smart model goes over an output that the fast one gave."""
    prices: Mapping[str, PriceOptions]
    """Model → dollars per million tokens; those not named here are the worker's."""
    show: Literal["values", "shape"] | Mapping[str, Literal["values", "shape"]]
    """Whether the model reads what untrusted tools return, or sees keys, types, lengths and numbers; or so by tool.
    Default: `'values'`."""
    prompt: PromptOptions
    """Instructions, skills and a workspace's files, beside the context."""
    approval: ApprovalOptions | Literal["calls", "plan"]
    """Which calls a person is asked about."""
    rules: Sequence[Rule | Mapping[str, Any]]
    """Rules that hold of every run, whatever its model plans and its people approve."""
    notify: NotifyOptions
    """Who is informed when an approval is requested or waits, a budget is nearly used, or a run ends."""
    evaluate: EvaluateOptions
    """Evaluators that score a sample of the agent's finished runs."""
    trusted_clients: Sequence[str]
    """Clients of the gateway whose histories and function results count as their user's own: `TENANT/SENDER`, `SENDER`
    without a tenant, `*` for all."""
    image_hosts: Sequence[str]
    """Hosts from which the model's provider may fetch pictures that clients of the gateway name by an address:
    `img.example.com`, `*.example.org`."""
    session: SessionOptions
    """How its sessions take messages."""
