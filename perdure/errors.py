"""Errors that a person or a model can cause, as one tree.

    PerdureError
    ├── ProtocolError            something written down is wrong: what, where, what would be right
    │   ├── JsonError            text that is not the JSON that it should be (line and column)
    │   ├── AgentError           an agent file (R2.1, section 11)
    │   ├── InputError           the run's input against its schema (R2.3)
    │   ├── ReferenceSyntaxError a malformed reference or expression (R3.5)
    │   ├── FormulaError         an expression over values, as read or as computed (R16.3)
    │   ├── StateError           a write that the state cannot take (R4.1, R4.5)
    │   ├── TooLargeError        what values add up to where they are embedded in a text (R3.1, R18.1)
    │   ├── ToolDefinitionError  a tool or its definition (R12.1, R12.5)
    │   ├── HookDefinitionError  a hook's function (R10.17)
    │   ├── DecisionError        a person's decision, or a change of policy, that cannot be followed (R7.2)
    │   ├── CursorError          a place among events that is none (R10.14)
    │   └── MessageRefusedError  what was said to a session, and it does not take; nothing has changed (R10.1, R10.8, R10.9)
    ├── SettingsError            an option, a variable or a file that a program was given cannot be used
    ├── ServerError              no Temporal server answers, or none can be started
    ├── RunError                 what was asked of a run from outside cannot be done; the run is as it was
    │   ├── ServerRefusalError   the Temporal server refused it; the message quotes the server
    │   ├── RunNotFoundError     there is no run of this id in this namespace
    │   ├── RunExistsError       the id is taken: one id names one run for good
    │   ├── RunFailedError       it ended without an output; `view` is all that is known of it (`perdure.client.errors`)
    │   │   └── RunRefusedError  its model refused; `view.error` is the model's words
    │   ├── RunTimeoutError      it has not ended within the time that the caller gave; it goes on
    │   ├── RunEndedError        it has ended, and what was asked only a running one could do
    │   ├── NoWorkerError        no worker answers for it now
    │   ├── DecisionRefusedError a decision, or a change of policy, that changed nothing, and why (R7.2)
    │   └── OutputError          its output fits the schema and is not of the type that it is read as (R13.2)
    └── ToolError                raised by a tool's own code (R12.3)

What goes wrong with one call of a plan is not an exception but data: `CallError`, which becomes an error message for the
model (R6.6).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

MAX_PROBLEM: Final = 1_000
"""Characters of one thing that is wrong with a call: it names what was written, which can be of any length."""
MAX_TOLD: Final = 10_000
"""Characters of all that is said of a call, a tool's own words among it."""


class PerdureError(Exception):
    """Base of every error that Perdure raises on purpose; `str()` is one clear line."""


class ProtocolError(PerdureError):
    """Something written down is wrong; repeating the same would fail the same way."""


class JsonError(ProtocolError):
    """Text that is not JSON, or JSON outside the limits of `perdure.values.json`."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with something that was written, and where it stands."""

    place: tuple[str | int, ...]
    """The steps to it."""
    path: str
    """The same as a JSON path, `$.config.dialect`."""
    words: str
    source: str = ""
    """The file and the line, `agent.json:3`, where they are known."""

    def __str__(self) -> str:
        parts = (self.source, self.path if self.place else "", self.words)
        return ": ".join(filter(None, parts))


class AgentError(ProtocolError):
    """An agent file that cannot be run as it stands. `problems`: everything that is wrong with it, where more is known than one line."""

    def __init__(self, message: str, problems: Iterable[Problem] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)

    @classmethod
    def of(cls, problems: Iterable[Problem], source: str = "") -> AgentError:
        """Return one error with all problems in one line."""
        found = tuple(problems)
        told = clip("; ".join(clip(str(problem)) for problem in found), MAX_TOLD)
        return cls(f"{source}: {told}" if source else told, found)


class InputError(ProtocolError):
    """A run's input that breaks its schema; nothing was executed (R2.3)."""


class ReferenceSyntaxError(ProtocolError):
    """A malformed reference; `position` counts characters from 0 in the string it stands in (R3.5)."""

    def __init__(self, message: str, position: int = 0) -> None:
        super().__init__(message, position)
        self.message = message
        self.position = position

    def __str__(self) -> str:
        return f"{self.message} at position {self.position}"


class FormulaError(ProtocolError):
    """A formula that cannot be read or computed; `line` and `column` count from 1 in its text (R16.3)."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(message, line, column)
        self.message = message
        self.line = line
        self.column = column

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.message}"


class StateError(ProtocolError):
    """A write that the state cannot take, e.g. a push to something that is no array (R4.1)."""


class TooLargeError(ProtocolError):
    """Values embedded in a text add up to more than it may have; a reference alone would pass one on as it is (R18.1)."""


class ToolDefinitionError(ProtocolError):
    """A tool's definition, or the function that it is made from, cannot be used."""


class HookDefinitionError(ProtocolError):
    """A function that cannot be a hook of the event that it names (R10.17)."""


class CursorError(ProtocolError):
    """A place among the events of a run or a session that is none (R10.14)."""


class DecisionError(ProtocolError):
    """A decision that changes nothing, because it is none, or because nothing waits for it."""


class MessageRefusedError(ProtocolError):
    """A message, a withdrawal or a decision that a session does not take, and why; nothing has changed (R10.1, R10.8, R10.9)."""


class SettingsError(PerdureError):
    """An option, a variable or a file that a program was given cannot be used; nothing was started."""


class ServerError(PerdureError):
    """No Temporal server answers where one was expected, or none can be started here. `final`: waiting for it does not help."""

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class RunError(PerdureError):
    """An operation on a run that cannot be done. The run is unchanged."""


class ServerRefusalError(RunError):
    """The Temporal server refused what was asked of a run, or a list; the message quotes the server."""


class RunNotFoundError(RunError):
    """There is no run of this id in this namespace; it may never have been, or its retention is over."""


class RunExistsError(RunError):
    """The id is taken. Idempotency keys are made of it, so it is never given again: take another, or look at that run."""


class RunTimeoutError(RunError):
    """The run has not ended within the caller's time. It goes on: wait again, or cancel it."""


class RunEndedError(RunError):
    """The run has ended, and what was asked only a running one could do."""


class NoWorkerError(RunError):
    """No worker answers for the run now: start one on its task queue, and ask again."""


class DecisionRefusedError(RunError):
    """A decision, or a change of policy, that changed nothing: what is wrong with it, or that nothing waits for it any more (R7.2)."""


class OutputError(RunError):
    """A run's output that the type of its agent's output does not take, e.g. by a validator that no JSON Schema can say."""


class ToolError(PerdureError):
    """A tool's own failure (R12.3).

    `code` is what branches and error messages show; `retry=True` lets the tool's retry policy try again first.
    """

    def __init__(self, code: str, message: str, retry: bool = False) -> None:
        super().__init__(code, message, retry)
        self.code = code
        self.message = message
        self.retry = retry

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


def clip(text: str, limit: int = MAX_PROBLEM) -> str:
    """The text; of one longer than `limit` its beginning and its end, and how long it is."""
    if len(text) <= limit:
        return text
    between = f" … ({len(text):,} characters) … "
    kept = max(2, limit - len(between))
    return f"{text[: kept - kept // 3]}{between}{text[-(kept // 3) :]}"


@dataclass(frozen=True, slots=True)
class CallError:
    """Why one call ended badly: the `error` of an error message and of a failed branch (R4.3, R6.6).

    Its words are bounded here, whoever makes it: what a model or a tool wrote is quoted in them.
    """

    code: str
    message: str
    problems: tuple[str, ...] = ()
    """Each thing that is wrong, where there are several; the message joins the first of them."""

    def __post_init__(self) -> None:
        if len(self.message) > MAX_TOLD:
            object.__setattr__(self, "message", clip(self.message, MAX_TOLD))

    @classmethod
    def of(cls, code: str, problems: Iterable[str]) -> CallError:
        """Return one error with all problems of a call, a line each. The message has the first five."""
        lines = tuple(map(clip, problems))
        return cls(code, "; ".join(lines[:5]), lines)

    def as_json(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message}


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error, its cause, the cause of that, and so on; each once."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
