"""Options of an agent: the keys of `config` as keyword arguments.

`perdure.runs.agent.Config` and its parts define and check them; a test compares the names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict


class ModelOptions(TypedDict, total=False):
    """The models that answer (R9.4)."""

    fast: str
    """The model for choosing tools; by default the worker's, `gpt-4o-mini` unless it says otherwise. `name@endpoint` asks another server."""
    smart: str
    """The model after errors and for final answers; by default the worker's, `gpt-4o` unless it says otherwise."""
    policy: str
    """`auto` (default), `fast`, `smart`, or `module:function` of the worker's."""
    fallback: Sequence[str]
    """Asked in their order when the chosen one is down."""


class SamplingOptions(TypedDict, total=False):
    """The sampling of a model, as its server accepts it (R9.8)."""

    temperature: float
    top_p: float
    max_tokens: int
    """Tokens of one answer at most."""
    seed: int
    reasoning_effort: str


class ModelSamplingOptions(SamplingOptions, total=False):
    """The sampling of all models; `fast` and `smart` hold what differs for these."""

    fast: SamplingOptions
    smart: SamplingOptions


class PriceOptions(TypedDict):
    """Dollars per million tokens."""

    prompt: float
    completion: float
    cached: NotRequired[float]
    """Of the prompt, what the server had in its cache; without it that costs as the rest does."""


class ApprovalOptions(TypedDict, total=False):
    """The approval policy: which calls a person decides on (R7.1)."""

    scope: Literal["calls", "plan"]
    """`plan` offers a Request's whole plan once (R7.6)."""
    ask: Literal["never", "untrusted", "dangerous", "unsafe", "always"]
    """`dangerous` by default; `untrusted` is what is dangerous and comes from what others wrote (R15.5), `unsafe` is all that is not declared safe."""
    tools: Mapping[str, Literal["never", "always"] | Mapping[str, Any]]
    """Exceptions by tool name; a condition is `{"when": <JSON Schema of the parameters>}`."""
    flows: Sequence[Mapping[str, str]]
    """Rules such as `{"from": "tool:read_mail", "to": "send_money.iban", "do": "ask"}`; or `refuse`, or `allow` (R15.5)."""
    approver: str
    """`module:function` of the worker's: the program that decides, or leaves it to a person (R7.9)."""
    timeout: float | None
    """Seconds that a decision is waited for; `None`, the default, waits for ever (R7.4)."""
    on_timeout: Literal["reject", "approve", "fail"]
    """`reject` by default."""


class SessionOptions(TypedDict, total=False):
    """The message queue of an agent's sessions (R10.4, R10.8)."""

    mode: Literal["steer", "followup", "collect", "interrupt", "reject"]
    """What a message without a mode does; `steer` by default, and `followup` while the run waits for a person."""
    cap: int
    """Messages that may wait; 20 by default."""
    quiet: float
    """Seconds without another message after which those collected begin a run; 0.5 by default."""
    context_tokens: int
    """Tokens of a context from which on the conversation is compacted; 100,000 by default (R10.11)."""
    verbose: Sequence[Literal["reasoning", "tools"]]
    """What is delivered before an answer, to people whose messages name a route; nothing by default (R10.16)."""


class PromptOptions(TypedDict, total=False):
    """The parts of a run's prompt beside the context (R10.19). A run's own options replace its agent's."""

    text: str
    """Instructions."""
    skills: bool | Sequence[str]
    """`True`: all that the worker has (`--skills`); or these, by name."""
    workspace: bool | str
    """`True`: `AGENTS.md` and the like of the worker's workspace (`--workspace`); or of this folder in it."""
    files: Sequence[str]
    """Which files, in this order; those that are not there are left out."""


class AgentOptions(TypedDict, total=False):
    """The `config` of an agent; a missing key has the default of section 11."""

    models: ModelOptions
    """Which models answer, and when."""
    sampling: ModelSamplingOptions
    """How they write; by default as their servers do."""
    dialect: Literal["solution", "tools", "script"]
    """What the model writes (R9.2); `solution` by default."""
    start: Literal["model", "plan"]
    """Whether a `plan` in the context is only shown to the model (default), or is run first (R5.9)."""
    control: bool | None
    """Whether the model is taught to compute and to make calls on conditions (R16); by default it is in `script`."""
    execution: Literal["drain", "step"]
    """Whether all calls of a Solution run (default), or only those that need no other, before the model is asked again (R5.10)."""
    stream: bool
    """Whether calls start while the model is still writing (R6.3); true by default."""
    parallel: int | None
    """Calls at once; `None`, the default: as many as the wiring allows (R5.12)."""
    max_requests: int
    """Model invocations per run; 20 by default (R9.5)."""
    max_calls: int
    """Calls per Solution; 500 by default (R6.8)."""
    token_budget: int | None
    """Tokens of the run and its delegates (R9.5)."""
    cost_budget: float | None
    """Dollars of the run and its delegates, by `prices`."""
    deadline: float
    """Seconds of work; 600 by default. Time spent waiting for a person does not count."""
    model_patience: float | None
    """Seconds that a Request waits for a model whose provider is away; by default the worker's, an hour (R20.5)."""
    client_timeout: float | None
    """Seconds that a call waits for the program that carries it out; then the run fails. By default for ever."""
    stuck_after: int
    """So many answers in a row that ask for the same end the run; 3 by default."""
    must_call: Sequence[str]
    """Tools of which the model calls one before its output counts (R6.5)."""
    refine: bool
    """Whether the smart model goes over an output that the fast one gave (R9.4)."""
    prices: Mapping[str, PriceOptions]
    """By model; those not named here are the worker's."""
    show: Literal["values", "shape"] | Mapping[str, Literal["values", "shape"]]
    """Whether the model reads what untrusted tools return, or sees its shape alone; or so by tool (R15.4). `values` by default."""
    prompt: PromptOptions
    """Instructions, skills and a workspace's files, beside the context."""
    approval: ApprovalOptions | Literal["calls", "plan"]
    """Which calls a person is asked about, and how; `"plan"` is short for `{"scope": "plan"}`."""
    trusted_clients: Sequence[str]
    """Clients of the gateway whose histories and function results count as their user's own: `TENANT/SENDER`, `SENDER` without a tenant, `*` for all."""
    session: SessionOptions
    """How its sessions take messages."""
