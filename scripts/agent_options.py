"""The keyword arguments of `Agent`, made from the models of `config`: types, defaults and docstrings are written there alone."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from perdure.agents.schema import field_docstrings
from perdure.approvals.policy import Policy
from perdure.models.usage import Price
from perdure.rules.rules import BaseRule
from perdure.runs.agent import Config, Evaluate, Models, ModelSampling, PromptConfig, Sampling
from perdure.runs.notifications import Notify, WaitingStep
from perdure.values.json import dumps
from perdure.values.messages import SessionRules

_NAMES: Final[dict[Any, str]] = {
    Models: "ModelOptions",
    Sampling: "SamplingOptions",
    ModelSampling: "ModelSamplingOptions",
    Price: "PriceOptions",
    Policy: "ApprovalOptions",
    SessionRules: "SessionOptions",
    PromptConfig: "PromptOptions",
    WaitingStep: "WaitingStepOptions",
    Notify: "NotifyOptions",
    Evaluate: "EvaluateOptions",
    Config: "AgentOptions",
}
_EXAMPLES: Final = {
    "ModelOptions": 'Agent("shopper", models={"fast": "gpt-5-mini", "smart": "gpt-5"})',
    "SamplingOptions": 'Agent("shopper", sampling={"temperature": 0, "max_tokens": 2000})',
    "ModelSamplingOptions": 'Agent("shopper", sampling={"seed": 7, "smart": {"reasoning_effort": "high"}})',
    "PriceOptions": 'Agent("shopper", prices={"my-model": {"prompt": 0.5, "completion": 2.0}})',
    "ApprovalOptions": 'Agent("shopper", approval={"ask": "dangerous", "tools": {"order": "always"}, "timeout": 3600})',
    "SessionOptions": 'Agent("shopper", session={"mode": "collect", "quiet": 5})',
    "PromptOptions": 'Agent("shopper", prompt={"skills": True, "files": ["HOUSE.md"]})',
    "WaitingStepOptions": 'Agent("shopper", notify={"approval_waiting": [{"after": 3600, "routes": ["boss"]}]})',
    "NotifyOptions": 'Agent("shopper", notify={"approval_requested": ["ops"], "run_failed": ["ops"]})',
    "EvaluateOptions": 'Agent("shopper", evaluate={"evaluators": [{"MaxCost": 0.05}], "share": 0.1})',
    "AgentOptions": 'Agent("shopper", max_requests=10, deadline=600, cost_budget=0.5)',
}
"""One use of each class."""
_SHORT: Final = {"approval": ' | Literal["calls", "plan"]'}
"""What a key takes in place of an object."""
_SIMPLE: Final[dict[Any, str]] = {NoneType: "None", Any: "Any"}
_PLURAL: Final = {list: "Sequence", tuple: "Sequence", dict: "Mapping"}


def options_source() -> str:
    """Return the classes of `perdure/agents/options.py`."""
    return "\n\n".join("\n".join(_lines(model, name)) + "\n" for model, name in _NAMES.items())


def _lines(model: type[BaseModel], name: str) -> Iterator[str]:
    base = _NAMES.get(model.__base__, "TypedDict")
    words = field_docstrings(model)
    yield f"class {name}({base}, total=False):"
    yield from _docstring(model.__doc__ or "", _EXAMPLES[name])
    yield ""
    for key in model.__annotations__:
        field = model.model_fields[key]
        kind = _type(field.annotation) + _SHORT.get(key, "")
        yield f"    {key}: {f'Required[{kind}]' if field.is_required() else kind}"
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        told = [words[key]] if key in words else []
        if default and not isinstance(default, BaseModel) and "by default" not in words.get(key, ""):
            told.append(f"Default: `{default!r}`.")
        yield from _docstring(" ".join(told))


def _docstring(text: str, example: str = "") -> Iterator[str]:
    """Yield a docstring without the numbers of rules, in lines that `ruff format` leaves as they are."""
    text = re.sub(r" \((R\d|section )[^)]*\)", "", text)
    if text:
        lines = textwrap.wrap(f'"""{" ".join(text.split())}', 116) or [""]
        lines += ["", "```python", example, "```", '"""'] if example else []
        end = "" if example else '"""'
        yield from (f"    {line}" if line else "" for line in lines[:-1])
        yield f"    {lines[-1]}{end}"


def _type(kind: Any) -> str:
    if kind in _NAMES or kind in _SIMPLE:
        return _NAMES.get(kind) or _SIMPLE[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " | ".join(dict.fromkeys(map(_type, arguments)))
    if origin is Annotated:
        return _type(arguments[0])
    if origin is Literal:
        return f"Literal[{', '.join(map(dumps, arguments))}]"
    if origin in _PLURAL:
        return f"{_PLURAL[origin]}[{', '.join(_type(each) for each in arguments if each is not ...)}]"
    if issubclass(kind, BaseRule):
        return "Rule | Mapping[str, Any]"
    return "Mapping[str, Any]" if issubclass(kind, BaseModel) else str(kind.__name__)
