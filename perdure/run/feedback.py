"""What the model is told of a Request that has ended: errors, and its turn with what became of each call (R2.5, R6.6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from perdure.errors import CallError, clip
from perdure.model.wire import RequestResult, RequestView
from perdure.plan.calls import Call, errors_of
from perdure.plan.plan import Plan
from perdure.run.reading import Reading
from perdure.values.excerpts import excerpt
from perdure.values.jsons import Json, JsonObject, dumps
from perdure.values.limits import MAX_RESULT
from perdure.values.limits.sizes import Sizes, preview

CUT: Final = "A new message came while you were writing: your answer was ended there, and what had closed of it stands."
OVERTAKEN: Final = "Your output was not returned, because a new message came before everything had ended."
_TOLD_NOTES: Final = 5
"""Notes of one kind that the model is told of one plan."""
_SHOWN_IN_ERRORS: Final = 2000
"""Characters of a call that an error message repeats to the model: enough to recognise and correct it."""


def error_message(call: JsonObject | None, error: JsonObject) -> JsonObject:
    """An error message (R2.5). A very long call is shown as the start of its JSON."""
    shown: Json = call
    if call is not None and len(text := preview(call, _SHOWN_IN_ERRORS)) == _SHOWN_IN_ERRORS:
        shown = text
    return {"type": "error", "call": shown, "error": error}


def note(text: str) -> JsonObject:
    """What the engine itself has to tell the model: no error, and nothing that a person said."""
    return {"type": "note", "text": text}


def not_well(calls: Iterable[Call], plan: Plan) -> str | None:
    """What the model is told where calls of the plan did not succeed and no branch was there for that: an output beside them is held.

    A failed item of a loop has its place in the loop's list, which the output may tell of; what a person has rejected is always told.
    """
    bad = [call for call in calls if (call.error is not None and not call.writes) or call.status == "rejected"]
    own = set(map(id, plan.calls))
    bad += [call for call in plan.made() if call.status == "rejected" and id(call) not in own]
    which = ", ".join(f"{call.id} {call.tool_name} ({call.status})" for call in bad[:5])
    held = "The output was not returned, because calls beside it did not succeed"
    return f"{held}: {which}. Answer again." if bad else None


def request_problems(
    calls: Sequence[Call], result: RequestResult, told: Callable[[Call, CallError], JsonObject]
) -> list[JsonObject]:
    """The error messages of a Request: its calls' in the order of the list, what they noted, and the answer's own (R6.6).

    `told`: what the model may know of an error.
    """
    problems = [error_message(call.as_plan_entry(), told(call, call.error)) for call in errors_of(calls) if call.error]
    problems += [error_message(call.as_plan_entry(), told(call, note)) for call in calls for note in call.notes]
    return [*problems, *([error_message(None, result.problem)] if result.problem is not None else [])]


def plan_notes(calls: Sequence[Call], plan: Plan) -> list[JsonObject]:
    """What the model is told once of calls although they have run: literals that were converted (R5.13), and writes that race (R5.14)."""
    converted = [
        f"{call.id} {form.tool_name}: {text}" for call in calls for form in call.written() for text in form.converted
    ]
    return [note(_listed(texts)) for texts in (converted, plan.races(ended=True) if plan.settled else []) if texts]


def _listed(texts: Sequence[str]) -> str:
    more = f"; {len(texts) - _TOLD_NOTES} more" if len(texts) > _TOLD_NOTES else ""
    return "; ".join(texts[:_TOLD_NOTES]) + more


def with_reasons(view: RequestView, log: Sequence[RequestView], messages: Sequence[JsonObject]) -> RequestView:
    """A Request with what has led to it beside what calls tell: a wrong output, what a person changed, a note of the engine's."""
    view.told = len(messages)
    view.because = _reasons(messages[log[-1].told :]) if log else []
    return view


def _reasons(messages: Iterable[JsonObject]) -> list[str]:
    found: list[str] = []
    for message in messages:
        if message["type"] == "error" and message.get("call") is None:
            found.append(str(message["error"].get("message")))
        elif message["type"] in ("note", "message"):
            found.append(message["text"])
        elif message["type"] == "feedback":
            found.append(f"a person decided: {dumps({key: value for key, value in message.items() if key != 'type'})}")
    return [clip(each, 300) for each in found[:5]]


def turn_message(
    of: Sequence[Call],
    result: RequestResult,
    before: list[JsonObject],
    sizes: Sizes,
    reading: Reading,
    server: str = "",
    given: Iterable[str] = (),
) -> JsonObject | None:
    """An answer and what became of its calls, for a dialect that shows the model its turns; `None` where it was nothing.

    Calls keep the ids that the server gave them, unless one was used already, `before` or in the history that was
    `given`, which servers refuse. What the `server` put beside them stays with them.
    """
    used = {call["id"] for message in before if message["type"] == "turn" for call in message["calls"]} | {*given}
    calls: list[JsonObject] = []
    for call in of:
        id = call.written_id if call.written_id and call.written_id not in used else f"call_{call.id.replace('.', '_')}"
        used.add(id)
        unended = {} if call.ended else {"call": call.id}
        arguments = {key: value for key, value in call.raw.items() if key != "_tool"}
        calls.append(
            {
                "id": id,
                "tool": call.tool_name,
                "arguments": arguments,
                "result": _result_text(call, sizes, reading),
                **unended,
            }
        )
    if not (calls or result.text):
        return None
    turn: JsonObject = {"type": "turn", "text": result.text, "calls": calls}
    if result.beside is not None:
        for said, beside in zip(calls, result.beside.calls, strict=False):
            said |= {"beside": beside} if beside else {}
        turn |= {"server": server, "beside": result.beside.message}
    return turn


def complete_turns(messages: Iterable[JsonObject], ended: Iterable[Call], sizes: Sizes, reading: Reading) -> None:
    """Put the results of calls that have ended since in the turns that made them."""
    by_id = {call.id: call for call in ended}
    for message in messages if by_id else ():
        for said in message["calls"] if message["type"] == "turn" else ():
            if (call := by_id.get(said.get("call"))) is not None:
                said["result"] = _result_text(call, sizes, reading)
                del said["call"]


def _result_text(call: Call, sizes: Sizes, reading: Reading) -> str:
    if call.status == "done":
        hidden, value = reading.shown_result(call)
        value = value if hidden else excerpt(value, sizes.of(value), call.id)[0]
        return value if isinstance(value, str) else dumps(value)
    if call.error is not None:
        return dumps({"error": reading.shown_error(call, call.error)})
    return dumps({"status": call.standing, "reason": call.reason} if call.reason else {"status": call.standing})


def results_of(calls: Iterable[Call], sizes: Sizes, reading: Reading) -> JsonObject:
    """By call id what went to no path (R4.4)."""
    results: JsonObject = {}
    for call in calls:
        if call.status == "done" and not call.writes:
            hidden, shown = reading.shown_result(call)
            shown = shown if hidden else excerpt(shown, sizes.of(shown), call.id)[0]
            results[call.id] = {"tool": call.tool_name, "params": call.written_params, "result": shown}
    return results


def has_cut(calls: Iterable[Call], sizes: Sizes, reading: Reading) -> bool:
    """Whether the model is shown only the beginning of the result of one of these calls (R10.18)."""
    return any(
        call.status == "done"
        and sizes.of(call.result) > MAX_RESULT
        and not reading.hides(call.sources)
        and excerpt(call.result, sizes.of(call.result), call.id)[1]
        for call in calls
    )
