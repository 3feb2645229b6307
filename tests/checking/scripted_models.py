"""Scripted models for `perdure models check`: one that does every task in every dialect, and how it is made worse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from perdure.checking.tasks import NOTE, TASKS
from perdure.testing.scripted_model import ChatRequest, Turn, write_answer


def calls(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"calls": list(calls), "output": None}


def call(tool: str, path: str = "", **params: Any) -> dict[str, Any]:
    return {"_tool": tool, **params, **({"_outputPath": f"†state.{path}"} if path else {})}


def outputs(name: str) -> dict[str, Any]:
    task = next(task for task in TASKS if task.name == name)
    return {"calls": [], "output": task.output or {}}


SOLVED: dict[str, list[dict[str, Any]]] = {
    "references": [
        calls(
            call("find_customer", "customer", id="C-17"),
            call("send_invoice", "invoice", email="†state.customer.email", amount="†state.customer.balance"),
        )
    ],
    "text": [
        calls(
            call("find_customer", "customer", id="C-23"),
            call("save_note", title="call", text="Dear {†state.customer.name}, write to {†state.customer.email}."),
        )
    ],
    "parallel": [calls(*(call("temperature", city.lower(), city=city) for city in ("Oslo", "Rome", "Cairo")))],
    "branch": [calls(call("charge_card", "receipt", card="K-2", amount=40)), calls(call("open_ticket", "ticket", title="declined"))],
    "correction": [
        calls(call("count_pages", "pages", document="report-2026-3")),
        calls(call("count_pages", "pages", document="report-2026-03")),
    ],
    "order": [calls(call(tool, tool, service="shop")) for tool in ("stop_service", "back_up", "start_service")],
    "choice": [calls(call("book_room", room="green", hour=15, people=["Ann", "Ben"], projector=True))],
    "quoting": [calls(call("save_note", title="raw", text=NOTE))],
    "schema": [],
    "long": [
        calls(call("read_log", "lines", day="2026-03-05"), call("count_lines", "count", lines="†state.lines", word="ERROR"))
    ],
    "rejection": [calls(call("delete_account", "gone", id="C-23"))],
    "restraint": [],
}  # fmt: skip
"""Task → the answers that do it, but for the last one, which is its output."""


def dialect_of(request: ChatRequest) -> str:
    if "only with Python calls" in request.text or "one line: output(" in request.text:
        return "script"
    return "solution" if '"calls"' in request.text else "tools"


def task_of(request: ChatRequest) -> str:
    return next(task.name for task in TASKS if task.request[:40] in request.text)


SLOPPY: dict[str, list[dict[str, Any]]] = {
    "references": [
        calls(call("find_customer", "customer", id="C-17")),
        calls(call("send_invoice", "invoice", email="a.weber@example.com", amount=412.5)),
        outputs("references"),
    ],
    "text": [
        calls(
            call("find_customer", "customer", id="C-23"),
            call("save_note", title="call", text="Hi {†state.customer.name}"),
        ),
        outputs("text"),
    ],
    "parallel": [*(calls(call("temperature", city=city)) for city in ("Oslo", "Rome", "Cairo")), outputs("parallel")],
    "branch": [
        calls(call("charge_card", card="K-2", amount=40)),
        calls(call("charge_card", card="K-2", amount=40.0), call("open_ticket", title="declined")),
        outputs("branch"),
    ],
    "correction": [calls(call("count_pages", document="report-2026-3")), outputs("correction")],
    "order": [calls(*(call(tool, service="shop") for tool in ("stop_service", "back_up", "start_service"))), outputs("order")],
    "choice": [calls(call("book_desk", desk=3, person="Ann")), outputs("choice")],
    "quoting": [calls(call("save_note", title="raw", text=NOTE.replace("\n", " "))), outputs("quoting")],
    "schema": [{"calls": [], "output": outputs("schema")["output"] | {"priority": "normal"}}],
    "long": [calls(call("read_log", day="2026-03-05")), calls(call("count_lines", lines=["ERROR"], word="ERROR")), outputs("long")],
    "rejection": [calls(call("delete_account", id="C-23")), {"calls": [], "output": {"deleted": True}}],
    "restraint": [calls(call("find_customer", id="C-17")), outputs("restraint")],
}  # fmt: skip
"""Task → answers that do it badly, each in its own way."""


def good() -> Callable[[ChatRequest], Turn]:
    """A model that does everything, in whatever dialect it is asked."""
    return scripted({task: [*answers, outputs(task)] for task, answers in SOLVED.items()})


def sloppy() -> Callable[[ChatRequest], Turn]:
    """A model that does everything badly."""
    return scripted(SLOPPY)


def prose(request: ChatRequest) -> Turn:
    """A model that talks."""
    return Turn("Sure! I would love to help you with that." if request.messages else "")


def old() -> Callable[[ChatRequest], Turn]:
    """A server that knows neither response_format nor functions nor stream_options, with a good model."""
    answer = good()

    def refuse(request: ChatRequest) -> Turn:
        for key, words in (
            ("tools", "m does not support tools"),
            ("response_format", "Unrecognized request argument supplied: response_format"),
            ("stream_options", "Unrecognized request argument supplied: stream_options"),
        ):
            if key in request.body:
                return Turn(words, status=400)
        return answer(request)

    return refuse


def scripted(answers: dict[str, list[dict[str, Any]]]) -> Callable[[ChatRequest], Turn]:
    asked: Counter[tuple[str, str, str]] = Counter()

    def answer(request: ChatRequest) -> Turn:
        if "the word OK" in request.text:
            return Turn("OK")
        task, dialect = task_of(request), dialect_of(request)
        key = (request.model, dialect, task)
        content = answers[task][min(asked[key], len(answers[task]) - 1)]
        asked[key] += 1
        written = write_answer(content, dialect, ["input"])
        return Turn(written.text, tool_calls=written.tool_calls)

    return answer
