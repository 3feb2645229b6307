"""Errors that a person or a model can cause, as one tree.

    PerdureError
    ├── ProtocolError            something written is invalid; the message names it, its place and what is accepted
    │   ├── JsonError            text that is not JSON, with line and column
    │   ├── AgentError           an invalid agent file, or an invalid argument of Agent
    │   ├── InputError           an input of a run that breaks its schema
    │   ├── MediaError           a file that is too large, of another type, or not stored
    │   ├── ReferenceSyntaxError a malformed reference or expression
    │   ├── FormulaError         a formula that cannot be read or computed
    │   ├── StateError           a write that the state cannot take
    │   ├── TooLargeError        values embedded in a text that exceed its limit together
    │   ├── ToolDefinitionError  an invalid tool or definition of a tool
    │   ├── HookDefinitionError  a function that cannot be a hook
    │   ├── DecisionError        an invalid decision or policy
    │   ├── CursorError          an invalid position among events
    │   ├── ScheduleError        a schedule with an invalid name, invalid times or an invalid policy
    │   └── MessageRefusedError  a session refused a message, a withdrawal or a decision; nothing has changed
    ├── AuditError               a line of an audit log was changed, or lines are missing
    ├── SettingsError            an option, a variable or a file of settings cannot be used
    ├── ServerError              no Temporal server answers, or none can be started
    ├── RunError                 an operation on a run cannot be done; the run is unchanged
    │   ├── ServerRefusalError   the Temporal server refused it; the message quotes the server
    │   ├── RunNotFoundError     there is no run of this id in this namespace
    │   ├── RunExistsError       the id is taken: an id names one run for good
    │   ├── RunFailedError       the run ended without an output; `view` has all that is known (perdure.client.errors)
    │   │   └── RunRefusedError  its model refused; `view.error` has the model's words
    │   ├── RunTimeoutError      the run has not ended within the caller's time; it continues
    │   ├── RunEndedError        the run has ended, and the operation needs a running one
    │   ├── NoWorkerError        no worker answers for the run now
    │   ├── DecisionRefusedError a decision or a change of policy changed nothing; the message has the reason
    │   └── OutputError          the output fits its schema and is not of the agent's type
    └── ToolError                a failure that a tool's own code raises

What goes wrong with one call of a plan is not an exception but data: `CallError`, which becomes an error message for the
model (R6.6).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

MAX_PROBLEM: Final = 1_000
"""Characters of one thing that is wrong with a call: it names what was written, which can be of any length."""
MAX_ERROR_TEXT: Final = 10_000
"""Characters of all that is said of a call, a tool's own words among it."""


class PerdureError(Exception):
    """Base of every error that Perdure raises on purpose; `str()` is one clear line.

    ```python
    try:
        await perdure.run(shopper)
    except PerdureError as error:
        print(error)
    ```
    """


class ProtocolError(PerdureError):
    """Something written is invalid; the same again would fail in the same way.

    ```python
    try:
        Agent.of({"context": "hello"})
    except ProtocolError as error:
        print(error)
    ```
    """


class JsonError(ProtocolError):
    """Text that is not JSON, or JSON outside the limits of `perdure.values.json`.

    ```python
    try:
        agent = Agent.read("shopper.json")
    except JsonError as error:
        print(error)
    ```
    """


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
    """An agent file that cannot be run as it is. `problems`: everything that is wrong with it, with places, where more
    is known than one line.

    ```python
    try:
        Agent.of({"context": "hello"})
    except AgentError as error:
        print([problem.path for problem in error.problems])
    ```
    """

    def __init__(self, message: str, problems: Iterable[Problem] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)

    @classmethod
    def of(cls, problems: Iterable[Problem], source: str = "") -> AgentError:
        """Return one error with all problems in one line.

        ```python
        error = AgentError.of([Problem(("context",), "$.context", "is not an array")], "shopper.json")
        ```
        """
        found = tuple(problems)
        text = clip("; ".join(clip(str(problem)) for problem in found), MAX_ERROR_TEXT)
        return cls(f"{source}: {text}" if source else text, found)


class InputError(ProtocolError):
    """A run's input that breaks its schema; nothing was executed.

    ```python
    try:
        shopper.check_input({"euros": "ten"})
    except InputError as error:
        print(error)
    ```
    """

    # R2.3


class MediaError(ProtocolError):
    """A file that is too large, of another type than expected, or that is not stored or cannot be.

    ```python
    try:
        picture = Image(data=b"no picture", name="chart.png")
    except MediaError as error:
        print(error)
    ```
    """

    # R20.3


class ReferenceSyntaxError(ProtocolError):
    """A malformed reference. `message`: the fault; `position`: its place, in characters from 0 in the string that holds
    the reference.

    ```python
    try:
        await run.value("†state..x")
    except ReferenceSyntaxError as error:
        print(error.message, error.position)
    ```
    """

    # R3.5

    def __init__(self, message: str, position: int = 0) -> None:
        super().__init__(message, position)
        self.message = message
        self.position = position

    def __str__(self) -> str:
        return f"{self.message} at position {self.position}"


class FormulaError(ProtocolError):
    """A formula that cannot be read or computed; `line` and `column` count from 1 in its text.

    ```python
    error = FormulaError("unexpected ')'", line=1, column=4)
    print(error.line, error.column)
    ```
    """

    # R16.3

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(message, line, column)
        self.message = message
        self.line = line
        self.column = column

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.message}"


class StateError(ProtocolError):
    """A write that the state cannot take, e.g. an append to a value that is not an array.

    ```python
    error = StateError("†state.total is not an array")
    print(error)
    ```
    """

    # R4.1


class TooLargeError(ProtocolError):
    """Values embedded in a text that exceed its limit together. A reference alone passes a value on without this limit.

    ```python
    error = TooLargeError("the text would have 12,000,000 characters; the limit is 10,000,000")
    print(error)
    ```
    """

    # R18.1


class ToolDefinitionError(ProtocolError):
    """A tool's definition, or the function that it is made from, cannot be used.

    ```python
    try:
        activity_tool("charge", input="a text")
    except ToolDefinitionError as error:
        print(error)
    ```
    """


class HookDefinitionError(ProtocolError):
    """A function that cannot be a hook of the event that it names.

    ```python
    try:
        hook("agent_end", timeout=-1)(print)
    except HookDefinitionError as error:
        print(error)
    ```
    """

    # R10.17


class AuditError(PerdureError):
    """A line of an audit log that was changed, or lines that are missing.

    ```python
    from perdure.runs.audit import verify_chain

    try:
        verify_chain(["no line of a log"])
    except AuditError as error:
        print(error)
    ```
    """

    # R24.4


class CursorError(ProtocolError):
    """An invalid position among the events of a run or session.

    ```python
    try:
        async for event in run.events(from_="nowhere"):
            print(event)
    except CursorError as error:
        print(error)
    ```
    """

    # R10.14


class ScheduleError(ProtocolError):
    """A schedule with an invalid name, invalid times or an invalid policy. Nothing was created.

    ```python
    try:
        await perdure.schedule("nightly").create("reporter", cron="0 4 * *")
    except ScheduleError as error:
        print(error)
    ```
    """

    # R19.6


class DecisionError(ProtocolError):
    """An invalid decision or policy, or a decision for which nothing waits; nothing changes.

    ```python
    try:
        await perdure.change_policies(Selection(), ask="always")
    except DecisionError as error:
        print(error)
    ```
    """


class MessageRefusedError(ProtocolError):
    """A message, a withdrawal or a decision that a session refuses, with the reason; nothing has changed.

    ```python
    try:
        await session.send("/stop", sender="eve")
    except MessageRefusedError as error:
        print(error)
    ```
    """

    # R10.1, R10.8, R10.9


class SettingsError(PerdureError):
    """An option, a variable or a file of settings that cannot be used; nothing was started.

    ```python
    try:
        agent = Agent.read("missing.json")
    except SettingsError as error:
        print(error)
    ```
    """


class ServerError(PerdureError):
    """No Temporal server answers, or none can be started here. `final`: waiting for it does not help.

    ```python
    try:
        perdure = await Perdure.connect("localhost:7233")
    except ServerError as error:
        print(error, error.final)
    ```
    """

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class RunError(PerdureError):
    """An operation on a run that cannot be done. The run is unchanged.

    ```python
    try:
        await run.cancel()
    except RunError as error:
        print(error)
    ```
    """


class ServerRefusalError(RunError):
    """The Temporal server refused an operation on a run, or a list; the message quotes the server.

    ```python
    try:
        await perdure.count_runs(Selection(query="Nonsense = 1"))
    except ServerRefusalError as error:
        print(error)
    ```
    """


class RunNotFoundError(RunError):
    """There is no run of this id in this namespace; perhaps its retention is over.

    ```python
    try:
        await perdure.get_run("order-17").view()
    except RunNotFoundError as error:
        print(error)
    ```
    """


class RunExistsError(RunError):
    """The id is taken. An id names one run for good: use another id, or that run.

    ```python
    try:
        run = await perdure.start(shopper, id="order-17")
    except RunExistsError:
        run = perdure.get_run("order-17")
    ```
    """


class RunTimeoutError(RunError):
    """The run has not ended within the caller's time. It continues: wait again, or cancel it.

    ```python
    try:
        await run.result(timeout=60)
    except RunTimeoutError:
        await run.cancel()
    ```
    """


class RunEndedError(RunError):
    """The run has ended, and the operation needs a running one.

    ```python
    try:
        await run.steer("Pears, not apples.")
    except RunEndedError as error:
        print(error)
    ```
    """


class NoWorkerError(RunError):
    """No worker answers for the run now: start one on its task queue, and try again.

    ```python
    try:
        await run.view()
    except NoWorkerError as error:
        print(error)
    ```
    """


class DecisionRefusedError(RunError):
    """A decision, or a change of policy, that changed nothing, with the reason.

    ```python
    try:
        await run.approve("1.0", by="ann")
    except DecisionRefusedError as error:
        print(error)
    ```
    """

    # R7.2


class OutputError(RunError):
    """A run's output that the type of its agent's output rejects, e.g. by a validator that no JSON Schema can express.

    ```python
    try:
        await run.result()
    except OutputError as error:
        print(error)
    ```
    """


class ToolError(PerdureError):
    """A tool's own failure.

    `code`: the name that branches and error messages show. `message`: the text that the model reads. `retry`: whether
    the tool's retry policy tries again first (no). `carried_out`: whether the call has taken effect in spite of its
    failure (no); `None`: that is not known. A call that has taken effect is not retried.

    ```python
    @tool
    def price(fruit: str) -> float:
        raise ToolError("unknown_fruit", f"{fruit} is not sold here")
    ```
    """

    # R12.3

    def __init__(self, code: str, message: str, retry: bool = False, *, carried_out: bool | None = False) -> None:
        super().__init__(code, message, retry)
        self.code = code
        self.message = message
        self.retry = retry
        self.carried_out = carried_out

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


def clip(text: str, limit: int = MAX_PROBLEM) -> str:
    """Return the text; of one longer than `limit` its beginning and its end, and how long it is."""
    if len(text) <= limit:
        return text
    between = f" … ({len(text):,} characters) … "
    kept = max(2, limit - len(between))
    return f"{text[: kept - kept // 3]}{between}{text[-(kept // 3) :]}"


def pluralize(number: int, noun: str) -> str:
    """Return a number with its noun: `1 Request`, `2 Requests`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class CallError:
    """Why one call ended badly: the `error` of an error message and of a failed branch (R4.3, R6.6).

    Its words are bounded here, whoever makes it: what a model or a tool wrote is quoted in them.
    """

    code: str
    message: str
    problems: tuple[str, ...] = ()
    """Each thing that is wrong, where there are several; the message joins the first of them."""
    rule: str = ""
    """The key of the rule that the call would violate; empty: none."""

    def __post_init__(self) -> None:
        if len(self.message) > MAX_ERROR_TEXT:
            object.__setattr__(self, "message", clip(self.message, MAX_ERROR_TEXT))

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
