"""What a worker's log tells, and what it does not."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.errors import ToolError
from perdure.runs.metrics import METRICS
from tests.support import logged

SECRET = "saffron and cinnamon"


def fail(error: BaseException, cause: BaseException | None = None) -> None:
    raise error from cause


def test_an_event_is_a_line_with_its_ids() -> None:
    fields = {"run": "r-1", "call": "1.0", "tool": "greet", "seconds": 0.25, "words": 'a "b"=c'}
    with logged("text") as text:
        logging.getLogger("perdure.run").info("call ended", extra={"perdure": fields})
    line = text.getvalue()
    assert line[10] == "T"
    assert line[24:] == ' INFO run: call ended run=r-1 call=1.0 tool=greet seconds=0.25 words="a \\"b\\"=c"\n'
    with logged("json") as text:
        logging.getLogger("perdure.run").info("call ended", extra={"perdure": fields})
    told = json.loads(text.getvalue())
    assert told.pop("time").endswith("Z")
    assert told == {"level": "info", "logger": "perdure.run", "message": "call ended", **fields}


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    ("error", "cause", "bug"),
    [
        (ApplicationError(SECRET, SECRET, type="no_such_person"), None, False),
        (ApplicationError(SECRET, type="no_such_person"), ToolError("no_such_person", SECRET), False),
        (ToolError("no_such_person", SECRET), KeyError(SECRET), False),
        (ApplicationError(SECRET, type="KeyError"), KeyError(SECRET), True),
        (KeyError(SECRET), ValueError(SECRET), True),
        (asyncio.CancelledError(SECRET), None, False),
        (asyncio.CancelledError(SECRET), KeyError(SECRET), False),
        (ApplicationError(SECRET, type="CancelledError"), asyncio.CancelledError(SECRET), False),
    ],
)
def test_an_exception_is_its_type_and_where_it_was_raised_if_it_is_a_bug(
    form: Any, error: BaseException, cause: BaseException | None, bug: bool
) -> None:
    with logged(form, "debug") as text:
        try:
            fail(error, cause)
        except BaseException:
            activity.logger.base_logger.warning("Completing activity as failed", exc_info=True)
    assert SECRET not in text.getvalue()
    assert ("Traceback" in text.getvalue()) == bug
    assert ("in fail" in text.getvalue()) == isinstance(error, KeyError)
    with logged(form, "debug", payloads=True) as text:
        try:
            fail(error, cause)
        except BaseException:
            logging.getLogger("temporalio").warning("Completing activity as failed", exc_info=True)
    assert SECRET in text.getvalue()


def test_a_worker_that_lacks_a_tool_names_it() -> None:
    with logged("text") as text:
        try:
            fail(ApplicationError("the worker has no tool 'pay'", type="NoSuchTool"))
        except ApplicationError:
            logging.getLogger("perdure.test").warning("ended", exc_info=True)
    assert "error=NoSuchTool missing=\"the worker has no tool 'pay'\"" in text.getvalue()


def test_nothing_that_libraries_say_in_detail_is_told() -> None:
    with logged("text", "debug") as text:
        for name in ("openai", "httpx2", "temporalio.worker", "perdure.mcp.files", "mcp.client"):
            logging.getLogger(name).debug("sent %s", SECRET)
        logging.getLogger("asyncio").error("Task exception was never retrieved\nfuture: %r", KeyError(SECRET))
        logging.getLogger("my.tools").debug("mine")
    assert SECRET not in text.getvalue()
    assert text.getvalue().count("\n") == 2
    assert "DEBUG my.tools: mine" in text.getvalue()


def test_a_file_has_no_colours_and_a_terminal_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for tty in (False, True):
        with logged("text", tty=tty) as text:
            logging.getLogger("perdure.worker").warning("lost the server")
        assert ("\x1b" in text.getvalue()) == tty


@pytest.mark.parametrize("metric", METRICS.values(), ids=str)
def test_metrics_are_named_as_prometheus_wants(metric: Any) -> None:
    assert metric.name.startswith("perdure_")
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert bool(metric.buckets) == (metric.kind == "histogram")
    assert metric.help.endswith(".")
    if metric.kind == "histogram":
        assert metric.name.endswith(("_seconds", "_dollars", "_score"))
    assert list(metric.buckets) == sorted(set(metric.buckets))
