"""Tools of a test, real or fake, and the deaths of its worker."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import inspect
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

from pydantic_core import to_jsonable_python
from temporalio.client import Client

from perdure.activities.registry import Registry
from perdure.client.histories import quiet_runtime
from perdure.errors import ProtocolError, ToolDefinitionError, ToolError
from perdure.hosting.worker_group import WorkerGroup
from perdure.queries import cancel_all
from perdure.tools.decorator import Branch, ToolContext, ToolFunction, open_tool
from perdure.tools.tool import ANSWERED, ENGINE_ACTIVITIES, parse_tool
from perdure.values.arguments import check_arguments_of
from perdure.values.json import JsonObject, shorten
from perdure.values.problems import none_of, suggest_name

# A worker that a fault will kill connects through a relay. For the server a cut relay is like `kill -9`: no shutdown,
# no result and no heartbeats. The worker's running code is held and never reports.

Moment: TypeAlias = Literal["before", "during", "after"]
"""The moment of a worker's death, relative to the tool's code: see `kill`."""


@dataclass
class Kill:
    """A worker's death: see `kill`.

    ```python
    faults = [kill("order", "during"), kill("order", "before", call=2)]
    ```
    """

    tool: str
    moment: Moment
    call: int = 1
    seen: int = 0
    happened: bool = False

    def __str__(self) -> str:
        return f"kill({self.tool!r}, {self.moment!r})"


@check_arguments_of
def kill(tool: str, moment: Moment = "during", *, call: int = 1) -> Kill:
    """Kill the worker at a call of the tool, the `call`-th time that a worker starts one; another worker starts at
    once.

    `before`: the worker has the call, and the tool's code has not run. `during`: the code has run to its end,
    and its result was not reported: the effect happened, the result is lost. `after`: the result is in the history, and
    the worker dies before the run continues. Times at which an earlier item of `faults` happens do not count. Raises
    `ValueError` for another moment, and for a `call` below 1.

    ```python
    async def test_order() -> None:
        async with run_locally(shopper, model=AutoModel(), faults=[kill("order")]) as local:
            await local.run()
            local.assert_once("order")
    ```
    """
    if moment not in get_args(Moment):
        raise ValueError(f"moment must be one of {', '.join(get_args(Moment))}, not {moment!r}")
    if call < 1:
        raise ValueError(f"call must be 1 or more, not {call}: the first call is 1")
    return Kill(tool, moment, call)


class CuttableRelay:
    """A relay between a worker and its server, until it is cut."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumping: set[asyncio.Task[None]] = set()
        self._is_cut = False

    async def open(self) -> str:
        """Open the relay, and return its address."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return f"127.0.0.1:{port}"

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection(self._host, self._port)
        self._writers |= {writer, back}
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._pumping.add(task)
            task.add_done_callback(self._pumping.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65_536):
                sink.write(data)
                await sink.drain()
        sink.transport.abort()
        self._writers.discard(sink)

    def cut(self) -> None:
        self._is_cut = True
        for writer in list(self._writers):
            writer.transport.abort()

    def heal(self) -> None:
        """Let connections through again, so that a worker can shut down. Its late reports change nothing."""
        self._is_cut = False

    async def close(self) -> None:
        self.cut()
        self._server.close()
        await asyncio.gather(*self._pumping, return_exceptions=True)


@dataclass
class _Running:
    worker: WorkerGroup
    task: asyncio.Task[None]
    relay: CuttableRelay | None
    identity: str


@dataclass
class Workers:
    """The living workers of a test, which `build` makes on a client."""

    client: Client
    mortal: bool
    """Whether faults will kill workers, which then need a relay."""
    dead: set[str] = field(default_factory=set)
    """Identities of killed workers."""
    _running: list[_Running] = field(default_factory=list)

    async def start(self, build: Callable[[Client], list[WorkerGroup]]) -> None:
        self._build = build
        relay, client = None, self.client
        if self.mortal:
            relay = CuttableRelay(self.client.service_client.config.target_host)
            address = await relay.open()
            client = await Client.connect(
                address,
                namespace=self.client.namespace,
                data_converter=self.client.data_converter,
                identity=f"test-{uuid.uuid4().hex[:8]}",
                runtime=quiet_runtime(),
            )
        for worker in build(client):
            self._running.append(_Running(worker, asyncio.create_task(worker.run()), relay, client.identity))

    async def kill(self) -> None:
        """Kill the living workers, and start others."""
        for running in self._running:
            if running.identity not in self.dead and running.relay is not None:
                running.relay.cut()
        self.dead |= {running.identity for running in self._running}
        await self.start(self._build)

    def check(self) -> None:
        """Raise the error of a worker that has failed without a fault."""
        for running in self._running:
            if running.task.done() and not running.task.cancelled() and (error := running.task.exception()):
                raise error

    async def close(self) -> None:
        stopping = [asyncio.create_task(running.worker.shutdown()) for running in self._running]
        await asyncio.sleep(0)
        for running in self._running:
            if running.relay is not None:
                running.relay.heal()
        await asyncio.gather(*stopping, *(running.task for running in self._running), return_exceptions=True)
        for relay in {id(each.relay): each.relay for each in self._running if each.relay is not None}.values():
            await relay.close()


_CONTEXT: Final = "perdure_context"
RECORDED: Final = "recorded_result"
"""The name of a fake that returns the results of a recorded run."""
FAST_HEARTBEAT: Final = 1.0
"""Seconds until the server detects a killed worker; the default of tools is 20."""


@dataclass
class Execution:
    """One execution of a tool's code, or of its fake.

    ```python
    for execution in local.executions("order"):
        print(execution.call_id, execution.attempt, execution.params)
    ```
    """

    tool: str
    params: JsonObject
    """The resolved parameters."""
    run_id: str
    call_id: str
    attempt: int
    """1 for the call's first attempt."""
    idempotency_key: str
    knows_key: bool
    """Whether the code takes a `ToolContext`, and so can use the idempotency key."""
    ended: bool = False
    """Whether the code ran to its end, reported or not."""

    def __str__(self) -> str:
        return f"{self.call_id} {self.tool}({shorten(self.params, 80)}), attempt {self.attempt}"


@dataclass
class Toolbox:
    """The tools of a test's workers, by name.

    `die` kills the worker and starts another; `settled` returns once the history of a run has the result of a call.
    """

    die: Callable[[], Awaitable[None]]
    settled: Callable[[str, str], Awaitable[None]]
    faults: list[Kill] = field(default_factory=list)
    skips: bool = False
    """Whether the server skips the time in which it waits for a dead worker."""
    executions: list[Execution] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    _fakes: dict[str, bool] = field(default_factory=dict)
    """The fakes, and whether each is in the place of a known tool."""
    _dying: set[asyncio.Task[None]] = field(default_factory=set)
    _registry: Registry = field(default_factory=Registry)
    _inline: dict[str, JsonObject] = field(default_factory=dict)

    def registry(
        self, real: Iterable[ToolFunction], fakes: Mapping[str, Any], inline: Mapping[str, JsonObject]
    ) -> Registry:
        """Return the real tools, and fakes in place of tools of the same name, with recorded executions. `inline`: the
        agent's own definitions.
        """
        functions = {function.name: self._watched(function, function.context_parameter) for function in real}
        self._fakes = {name: name in functions or name in inline for name in fakes}
        for name, value in fakes.items():
            definition = _definition(name, inline.get(name), functions)
            real_type = functions[name].context_type if name in functions else None
            fake = dataclasses.replace(self._fake(definition, value), context_type=real_type)
            functions[str(definition["name"])] = self._watched(fake, _CONTEXT, value)
        self._registry = Registry(functions.values())
        self.add_inline(inline)
        return self._registry

    def add_inline(self, inline: Mapping[str, JsonObject]) -> None:
        """Add the definitions of another agent's file, by name."""
        self._inline |= inline

    def check_names(self, tool: str, params: Iterable[str] = ()) -> None:
        """Raise `ProtocolError` for a tool that no worker or agent of the test has, and for a parameter that it does not
        have: the check of an execution would pass for each.
        """
        known = self._inline | self._registry.definitions()
        ran = [each for each in self.executions if each.tool == tool]
        if tool not in known and not ran:
            raise ProtocolError(none_of(tool, "tool", sorted(known)))
        about = known.get(tool, {})
        names = {*about.get("properties", ()), *(name for each in ran for name in each.params)}
        for name in params:
            if name not in names and about.get("additionalProperties") is False:
                raise ProtocolError(f"{tool}: {none_of(name, 'parameter', sorted(names))}")

    def find_mistaken_hooks(self) -> list[str]:
        """Return a line for each tool that a hook is limited to and that no worker or agent of the test has."""
        return self._registry.mistaken_hooks(self._inline)

    def find_mistyped_fakes(self) -> list[str]:
        """Return a line for each fake that replaced no tool, beside a tool of a similar name that ran."""
        called = {execution.tool for execution in self.executions}
        ran = called - self._fakes.keys()
        lost = [name for name, replaces in self._fakes.items() if not replaces and name not in called]
        return [
            f"the fake of {name!r} was not used, and {near!r} ran as it is: no known tool is named {name!r}"
            for name in lost
            if (near := suggest_name(name, ran)) is not None
        ]

    def _fake(self, definition: JsonObject, value: Any) -> ToolFunction:
        name = str(definition["name"])
        output = parse_tool(definition, activities=[name]).output_schema
        wants_context = _takes_context(value)
        recorded = getattr(value, "__name__", "") == RECORDED  # recorded results are not validated again

        async def fake(**params: Any) -> Any:
            context = params.pop(_CONTEXT)
            if isinstance(value, Exception):
                raise value
            result = value
            if callable(value):
                result = value(**params, **({"context": context} if wants_context else {}))
                if inspect.isawaitable(result):
                    result = await result
            plain = to_jsonable_python(result.value if isinstance(result, Branch) else result)
            if output is not None and not recorded and (problems := output.errors(plain)):
                raise AssertionError(
                    f"the fake of {name!r} returned a value that breaks the tool's schema: {problems[0]}"
                )
            return result

        return open_tool(definition, fake, context_parameter=_CONTEXT)

    def _watched(self, function: ToolFunction, own: str | None, fake: Any = None) -> ToolFunction:
        """Return the tool with its executions recorded. At a scripted fault its worker dies."""
        knows_key = own is not None if fake is None else _takes_context(fake)
        run = function.function

        def begin(params: JsonObject) -> tuple[Execution, JsonObject]:
            context: ToolContext = params[own or _CONTEXT]
            given = {key: value for key, value in params.items() if key not in (own, _CONTEXT)}
            plain: JsonObject = to_jsonable_python(given, fallback=repr)
            run_id = context.idempotency_key.rpartition("/")[0]
            one = (context.tool_name, plain, run_id, context.call_id, context.attempt, context.idempotency_key)
            execution = Execution(*one, knows_key)
            self.executions.append(execution)
            return execution, given if own is None else params

        async def with_faults(**params: Any) -> Any:
            execution, given = begin(params)
            fault = self._fault(execution.tool)
            if fault is not None and fault.moment == "before":
                self.executions.remove(execution)
                await self._die()
                return None
            with self._reporting():
                result = run(**given) if function.is_async else await asyncio.to_thread(run, **given)
                result = await result if inspect.isawaitable(result) else result
            execution.ended = True
            if fault is not None and fault.moment == "during":
                await self._die()
            elif fault is not None:
                task = asyncio.create_task(self._die_once_settled(execution))
                self._dying.add(task)
                task.add_done_callback(self._dying.discard)
            return result

        async def end(execution: Execution, running: Awaitable[Any]) -> Any:
            with self._reporting():
                result = await running
            execution.ended = True
            return result

        async def in_loop(**params: Any) -> Any:
            execution, given = begin(params)
            return await end(execution, run(**given))

        def in_thread(**params: Any) -> Any:
            execution, given = begin(params)
            with self._reporting():
                result = run(**given)
            if inspect.isawaitable(result):
                return end(execution, result)
            execution.ended = True
            return result

        wrapped: Callable[..., Any] = with_faults if self.faults else in_loop if function.is_async else in_thread
        # In a test, code of the test replaces another application's activity or workflow.
        definition = {key: value for key, value in function.definition.items() if key != "_calls"}
        if self.faults and not self.skips:  # any call may be on the worker that dies
            definition = {**definition, "_heartbeat": FAST_HEARTBEAT}
        return dataclasses.replace(
            function,
            definition=definition,
            # A worker recognises Perdure's own `recall` by its code.
            function=functools.update_wrapper(wrapped, run),
            is_async=function.is_async or bool(self.faults),
            context_parameter=own or _CONTEXT,
        )

    def _reporting(self) -> _Reporting:
        return _Reporting(self.complaints)

    def _fault(self, tool: str) -> Kill | None:
        """Return the fault of this call, if it has one."""
        for fault in self.faults:
            if fault.tool == tool and not fault.happened:
                fault.seen += 1
                if fault.seen == fault.call:
                    fault.happened = True
                    return fault
        return None

    async def _die(self) -> None:
        """Kill the worker, and wait until the test is over, because nobody receives a report from here."""
        await self.die()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    async def _die_once_settled(self, execution: Execution) -> None:
        await self.settled(execution.run_id, execution.call_id)
        await self.die()

    async def close(self) -> None:
        await cancel_all(*self._dying)


class _Reporting:
    """A context that makes an assertion in a tool fail the test, not only the call."""

    def __init__(self, complaints: list[str]) -> None:
        self._complaints = complaints

    def __enter__(self) -> None:
        return

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, AssertionError):
            self._complaints.append(str(error) or "an assertion failed inside a tool")
            raise ToolError("assertion", str(error)) from error


def _takes_context(value: Any) -> bool:
    return callable(value) and "context" in inspect.signature(value).parameters


def _definition(name: str, inline: JsonObject | None, real: Mapping[str, ToolFunction]) -> JsonObject:
    """Return the faked tool's definition: its parameters, its danger, its output."""
    if inline is None:
        return real[name].definition if name in real else {"name": name, "additionalProperties": True}
    activity = inline.get("_activity", name)
    if activity in ENGINE_ACTIVITIES:
        is_answered = activity in ANSWERED
        remedy = f"answer its calls with people=[answer(…, tool={name!r})]" if is_answered else "remove this fake"
        raise ToolDefinitionError(f"fakes: {name!r} cannot be replaced, because no worker runs {activity}: {remedy}")
    if activity in real:
        return real[activity].definition
    kept = {key: value for key, value in inline.items() if key not in ("_activity", "_delegate", "_taskQueue")}
    return {**kept, "name": activity}


def unlike_once(tool: str, executions: Iterable[Execution], params: Mapping[str, Any]) -> str | None:
    """Return the reason why the tool's effect did not happen exactly once, or `None` if it did: see
    `Local.assert_once`.
    """
    begun = [
        each
        for each in executions
        if each.tool == tool and all(each.params.get(key) == value for key, value in params.items())
    ]
    meant = [each for each in begun if each.ended]
    keys = list(dict.fromkeys(each.idempotency_key for each in meant))
    what = tool if not params else f"{tool} with {shorten(dict(params), 80)}"
    if not keys:
        return f"{what} never ran"
    if len(keys) > 1:
        return f"{what} ran for {len(keys)} effects: {'; '.join(map(str, meant))}"
    tries = [each for each in begun if each.idempotency_key == keys[0]]
    if len(tries) > 1 and not all(each.knows_key for each in tries):
        return f"{what} ran {len(tries)} times for one call, and has no ToolContext to detect a retry, so each attempt may have had an effect. Use a ToolContext and act once per context.idempotency_key, or declare the tool with retries=0"
    return None
