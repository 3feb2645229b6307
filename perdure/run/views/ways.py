"""Where the parameters of calls come from, in words (R15.6, R15.7)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from perdure.errors import clip
from perdure.plan.calls import Call
from perdure.plan.plan import Plan
from perdure.run.wire import RunView
from perdure.values.sources import MODEL, in_words, untrusted

SHOWN: Final = 20
"""Parameters of a call that are told; there are seldom so many."""
_LONGEST: Final = 120


def ways(call: Call, *, model: bool = True) -> list[str]:
    """A line a parameter, those that others wrote first: `send_money.iban ← †state.mail.iban ← read_mail (written by others)`.

    `model`: also those that the model has written out.
    """
    params, tool = call.origins.params, clip(call.tool_name, 60)
    named = [
        name for name in sorted(params, key=lambda name: not untrusted(params[name])) if model or params[name] != MODEL
    ]
    lines = []
    for name in named[:SHOWN]:
        read = dict.fromkeys(str(site.expression) for site in call.template.sites if site.path[0] == name)
        through = f" ← {clip(', '.join(read), _LONGEST)}" if read else ""
        lines.append(f"{tool}.{clip(name, 60)}{through} ← {in_words(params[name])}")
    if len(named) > SHOWN:
        lines.append(f"and {len(named) - SHOWN} more parameters of {tool}")
    if untrusted(call.origins.written):
        lines.append(f"{tool} itself ← {in_words(call.origins.written)}: what had been read when the call was written")
    return lines


def plan_ways(plan: Plan) -> Iterator[tuple[str, str]]:
    """Call id and way of each parameter that is not written out in the plan."""
    for call in plan.calls:
        for line in ways(call, model=False):
            yield call.id, line


def run_ways(view: RunView) -> Iterator[str]:
    """The same of a run, as it keeps it: `1.2 send_money.iban ← read_mail (written by others)`."""
    for call in view.calls:
        for name, number in call.sources.items():
            if not name:
                continue
            names = view.sets[number] if number < len(view.sets) else []
            yield f"{call.id} {call.tool}.{name} ← {in_words(names)}"
