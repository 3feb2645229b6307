"""The log of a worker: one line for each event, as text or JSON.

A line holds names, ids, counts and times. It holds no text of tools, models or people at any level. An exception is
logged as its type, a bug also with its traceback. `payloads` adds exception messages and the libraries' details, for
development.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any, Final, Literal, TextIO

from temporalio import activity, workflow
from temporalio.exceptions import CancelledError, FailureError
from temporalio.runtime import LogForwardingConfig, LoggingConfig, TelemetryFilter

from perdure.activities.secrets import mask_text, mask_value
from perdure.errors import PerdureError
from perdure.plan import NO_SUCH_TOOL
from perdure.runs.metrics import label_value
from perdure.values.json import JsonObject

_TALKATIVE: Final = ("perdure.mcp",)
"""Its details are texts of servers: they are logged with `payloads` only."""
_LIBRARIES: Final = (
    *(
        "temporalio",
        "openai",
        "httpx",
        "httpx2",
        "httpcore",
        "httpcore2",
        "asyncio",
        "urllib3",
        "apprise",
        "requests",
        "opentelemetry",
        "uvicorn",
    ),
    *("boto3", "botocore", "aioboto3", "aiobotocore", "s3transfer"),
)
"""Libraries whose warnings only are logged: their details hold the data that they send."""
_SILENT: Final = ("mcp",)
"""The worker itself logs its messages about a server, in one line."""
QUIET: Final = (*_TALKATIVE, *_LIBRARIES, *_SILENT)
"""All loggers with a higher level."""
_COLOURS: Final = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[31m", "DEBUG": "\x1b[2m"}


def configure(
    format: Literal["text", "json"] = "text",
    level: str = "info",
    *,
    payloads: bool = False,
    stream: TextIO | None = None,
) -> None:
    """Log to `stream` (stderr) from this level on, in this format."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    colours = stream.isatty() and not os.environ.get("NO_COLOR")
    handler.setFormatter(JsonLines(payloads) if format == "json" else TextLines(payloads, colours))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    lowest = logging.getLevelName(level.upper())
    for names, least in ((_TALKATIVE, logging.INFO), (_LIBRARIES, logging.WARNING), (_SILENT, logging.CRITICAL)):
        for name in names:
            logging.getLogger(name).setLevel(lowest if payloads else max(lowest, least))
    # Ids are fields of the line, not a part of its message.
    activity.logger.activity_info_on_message = workflow.logger.workflow_info_on_message = False


def core_logging() -> LoggingConfig:
    """Return a configuration that forwards the log of the SDK's core to Python, without its fields: they hold data of runs."""
    logger = logging.getLogger("temporalio.core")
    logger.addFilter(_has_more)
    forwarding = LogForwardingConfig(logger, append_target_to_name=False, append_log_fields_to_message=False)
    return LoggingConfig(filter=TelemetryFilter(core_level="WARN", other_level="ERROR"), forwarding=forwarding)


def _has_more(record: logging.LogRecord) -> bool:
    """Whether a record is logged. Retries of polls are not: the worker itself logs once that the server is lost."""
    return "poll_" not in (words := record.getMessage()) or "retried" not in words


class _LogFormatter(logging.Formatter):
    def __init__(self, payloads: bool) -> None:
        super().__init__()
        self._payloads = payloads

    def message(self, record: logging.LogRecord) -> str:
        """Return the first line: further lines are the text of an object or an error."""
        words = record.getMessage()
        return words if self._payloads or record.name.startswith("perdure") else words.partition("\n")[0]

    def fields(self, record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
        """Yield the run, the call, and the other fields of the event."""
        attributes = vars(record)
        if of_activity := attributes.get("temporal_activity"):
            yield "run", of_activity.get("workflow_id")
            yield "call", of_activity.get("activity_id")
            yield "activity", of_activity.get("activity_type")
            yield "attempt", of_activity.get("attempt")
        elif of_workflow := attributes.get("temporal_workflow"):
            yield "run", of_workflow.get("workflow_id")
        yield from attributes.get("perdure", {}).items()
        if (error := _error_of(record)) is not None:
            yield "error", label_value(getattr(error, "type", None) or type(error).__name__)
            if getattr(error, "type", None) == NO_SUCH_TOOL:
                yield "missing", getattr(error, "message", "")
            if self._payloads:
                yield "said", str(error)

    def story(self, record: logging.LogRecord) -> str:
        """Return the traceback of a bug, or the record's own; empty for errors that were raised on purpose."""
        bug = bug_in(_error_of(record))
        if bug is None:
            own: str = vars(record).get("traceback", "")
            return own
        trace = traceback.TracebackException.from_exception(bug, lookup_lines=True)
        return "".join(trace.format() if self._payloads else _frames(trace)).rstrip("\n")


class TextLines(_LogFormatter):
    """`2026-11-21T18:05:00.123Z INFO run: call ended run=… call=1.0 tool=…`, and a bug's traceback in the lines after it."""

    def __init__(self, payloads: bool = False, colours: bool = False) -> None:
        super().__init__(payloads)
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_plain(value)}" for name, value in self.fields(record))
        level = record.levelname
        if self._colours and level in _COLOURS:
            level = f"{_COLOURS[level]}{level}\x1b[0m"
        name = record.name.removeprefix("perdure.")
        line = f"{_time(record)} {level} {name}: {self.message(record)}{fields}"
        return mask_text("\n".join(filter(None, (line, self.story(record)))))


class JsonLines(_LogFormatter):
    """One JSON object a line: `{"time", "level", "logger", "message", "run"?, "call"?, …, "traceback"?}`."""

    def format(self, record: logging.LogRecord) -> str:
        line: JsonObject = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name}
        line |= {"message": self.message(record), **dict(self.fields(record))}
        if story := self.story(record):
            line["traceback"] = story
        return json.dumps(mask_value(line), ensure_ascii=False, default=str)


def bug_in(error: BaseException | None) -> BaseException | None:
    """Return an error that is a bug. `None` for a user's mistake, a tool's own failure, a provider's failure, or a
    cancellation (Ctrl-C, `/stop`, a closed browser).
    """
    while isinstance(error, FailureError | PerdureError | CancelledError):
        error = None if isinstance(error, PerdureError) else error.__cause__
    return None if isinstance(error, asyncio.CancelledError | KeyboardInterrupt) else error


def _error_of(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if record.exc_info else None


def _frames(trace: traceback.TracebackException) -> Iterator[str]:
    """Yield a traceback without the messages of its exceptions, which may hold any data."""
    earlier = trace.__cause__ or (None if trace.__suppress_context__ else trace.__context__)
    if earlier is not None:
        yield from _frames(earlier)
        yield "\n"
    yield "Traceback (most recent call last):\n"
    yield from trace.stack.format()
    yield f"{trace.exc_type.__name__ if trace.exc_type else 'error'}\n"


def _plain(value: object) -> str:
    text = str(value)
    return text if text and text.isprintable() and not set(text) & set(' "=') else json.dumps(text, ensure_ascii=False)


def _time(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
