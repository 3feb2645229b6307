"""Differences of two plays of a run: of their plans as graphs, of status and output."""

from __future__ import annotations

from typing import Final

from perdure.runs.wire import CallView, RunView
from perdure.values.json import Json, JsonObject, dumps, shorten

_SHOWN: Final = 200
"""Characters of a value in a line."""


def plan_graph(view: RunView) -> JsonObject:
    """Return `{"calls": [{"id", "tool", "params", "status", …}], "edges": [[writer, reader, what is read]]}`."""
    return {"calls": [_node(call) for call in view.calls], "edges": [list(edge) for edge in view.edges]}


def _node(call: CallView) -> JsonObject:
    node: JsonObject = {"id": call.id, "tool": call.tool, "params": call.params, "status": call.status}
    node |= {"asked": True} if call.approval is not None else {}
    node |= {"error": call.error} if call.error is not None else {}
    return node | ({"reason": call.reason} if call.reason and call.status != "done" else {})


def differences(before: JsonObject, after: JsonObject) -> list[str]:
    """Return the differences, a line each: `-` was, `+` is. Calls are named by their ids; an edge is a writer, a reader, and the path that is
    read.
    """
    lines: list[str] = []
    old, new = ({call["id"]: call for call in each["calls"]} for each in (before, after))
    for call_id in sorted({**old, **new}, key=_place):
        if _compared(old.get(call_id)) != _compared(new.get(call_id)):
            lines += _changed(_call_line(old.get(call_id)), _call_line(new.get(call_id)))
    was, is_ = ({tuple(edge) for edge in each["edges"]} for each in (before, after))
    lines += [f"- {_edge_line(edge)}" for edge in sorted(was - is_)]
    lines += [f"+ {_edge_line(edge)}" for edge in sorted(is_ - was)]
    for key in ("status", "output"):
        if before[key] != after[key]:
            lines += _changed(f"{key} {_short(before[key])}", f"{key} {_short(after[key])}")
    return lines


def _compared(call: JsonObject | None) -> Json:
    """Return the parts of a call that must stay the same. The texts of errors and reasons may change."""
    if call is None:
        return None
    code = (call.get("error") or {}).get("code")
    return [call["tool"], call["params"], call["status"], bool(call.get("asked")), code]


def _changed(before: str, after: str) -> list[str]:
    return [line for sign, words in (("-", before), ("+", after)) if words for line in [f"{sign} {words}"]]


def _call_line(call: JsonObject | None) -> str:
    if call is None:
        return ""
    why = (call.get("error") or {}).get("message") or call.get("reason")
    asked = ", asked" if call.get("asked") else ""
    return f"{call['id']} {call['tool']} {_short(call['params'])} {call['status']}{asked}{f': {why}' if why else ''}"


def _edge_line(edge: tuple[str, ...]) -> str:
    writer, reader, what = edge
    return f"{writer} → {reader} {what}"


def _place(call_id: str) -> list[int | str]:
    return [int(part) if part.isdigit() else part for part in call_id.replace("[", ".").replace("]", "").split(".")]


def _short(value: Json) -> str:
    text = dumps(value)
    return text if len(text) <= _SHOWN else shorten(value, _SHOWN)
