"""A person's decision, as a form has it: on the inbox's page and in a conversation alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from perdure.client.lists import Offered
from perdure.client.run import Run
from perdure.errors import clip
from perdure.gateway.callers import Caller
from perdure.pages.forms import PREFIX, Field, FormError, make_fields, read_fields
from perdure.run.views.drawing import Drawing, draw_run
from perdure.run.views.svg import to_svg
from perdure.run.wire import RunView
from perdure.values.jsons import JsonObject, dumps, loads
from perdure.values.marks import changes

Find: TypeAlias = Callable[[Caller, str], Awaitable[Run]]
"""A run by its id, for whoever may look at it. Raises `RunNotFoundError` for a run of another tenant as for none."""

ACTIONS: Final = ("approve", "remember", "endorse", "answer", "replace", "reject")
"""What a form's buttons say."""
DECIDED: Final = {
    "approve": "approved",
    "reject": "rejected",
    "edit": "approved with changes",
    "replace": "replaced",
    "answer": "answered",
}


async def decide(run: Run, form: Mapping[str, str], *, by: str | None) -> str:
    """Have the run take it; what was done, in words. `by`: who it is; `None`: as they say themselves.

    Raises `FormError` and `JsonError` for what cannot be read, `RunError` and `ServerError` as `Run.decide` does.
    """
    if lacking := [key for key in ("run", "call", "action") if not form.get(key)]:
        raise FormError(f"the form lacks {', '.join(lacking)}: reload the page and try again")
    if form["action"] not in ACTIONS:  # and nothing else is taken for a yes
        raise FormError(f"an action is {', '.join(ACTIONS[:-1])} or {ACTIONS[-1]}, not {clip(form['action'], 40)!r}")
    decision = await _decision(run, form)
    done = await run.decide(decision if by is None else decision | {"by": by})
    return f"{form['run']} {done['call']}: {DECIDED[done['decision']]}"


async def offer_of(run: Run, call: str) -> Offered | None:
    """What waits there, whole; `None`: it does not."""
    return next((Offered(run.id, offer) for offer in await run.waiting(call)), None)


async def _decision(run: Run, form: Mapping[str, str]) -> JsonObject:
    decision: JsonObject = {key: form[key] for key in ("call", "digest", "by", "reason") if form.get(key)}
    if form["action"] == "answer":
        return decision | {"decision": "answer", "answer": form.get("answer", "")}
    if form["action"] == "reject":
        return decision | {"decision": "reject"}
    if form["action"] == "replace":
        return decision | {"decision": "replace", "with": loads(form.get("with", ""), source="the other call")}
    if form["action"] == "endorse":
        decision["endorse"] = True
    if form["action"] == "remember":
        decision["remember"] = True
    chosen = await offer_of(run, form["call"])
    if chosen is None:
        return decision | {"decision": "approve"}  # the run itself says best what has become of it
    if chosen.offer.calls is not None:
        calls = loads(form.get("calls", dumps(chosen.offer.calls)), source="the calls")
        return decision | (
            {"decision": "approve"} if calls == chosen.offer.calls else {"decision": "edit", "calls": calls}
        )
    params = read_fields(make_fields(chosen.offer.parameters, chosen.offer.params), form)
    changed = changes(chosen.offer.params, params)
    return decision | ({"decision": "edit", "params": changed} if changed else {"decision": "approve"})


def fields_of(chosen: Offered | None, typed: Mapping[str, str] | None) -> list[Field]:
    """The form's fields, with what was typed where it could not be taken."""
    if chosen is None or chosen.offer.calls is not None:
        return []
    fields = make_fields(chosen.offer.parameters, chosen.offer.params)
    if typed is None:
        return fields
    return [replace(each, text=typed.get(PREFIX + each.name, each.text)) for each in fields]


def request_drawing(view: RunView, call: str) -> str:
    """The plan of the Request that a call belongs to as SVG, with the call lit."""
    number = call.split(".")[0]
    whole = draw_run(view)
    nodes = [node for node in whole.nodes if node.id.split(".")[0] == number]
    ids = {node.id for node in nodes}
    edges = [edge for edge in whole.edges if edge[0] in ids and edge[1] in ids]
    return to_svg(Drawing(nodes, edges), lit=call)
