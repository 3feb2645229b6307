"""A run, as a client uses it."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias

from pydantic import ValidationError
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError
from typing_extensions import TypeVar, Unpack

from perdure.agents.agent import Agent
from perdure.agents.options import ApprovalOptions
from perdure.approvals.requests import IncomingMessage, WaitingEntry, WaitingView
from perdure.client import approvals, run_operations
from perdure.client._event_relay import parse_topics, relay_of, start_cursor
from perdure.client._pending_activities import END_TAKEN_WITHIN, check_ends, explain_stall, failure_words
from perdure.client._run_lists import STATUS
from perdure.client.approvals import listed_below
from perdure.client.errors import clear_errors, run_failed
from perdure.client.evaluations import fetch_score
from perdure.client.run_operations import AgentHandle, fetch_run
from perdure.client.selection import RunOrigin, WaitingRequest, WaitingRow
from perdure.errors import DecisionRefusedError, RunEndedError, RunError
from perdure.queries import answer_of, cancel_all, was_undone
from perdure.runs.agent import read_input
from perdure.runs.evaluation import RunScore
from perdure.runs.events import Event
from perdure.runs.partial_output import PartialOutputEvents, PartialText
from perdure.runs.procedures import Procedure
from perdure.runs.undo import Effect, UndoPlan
from perdure.runs.views import LiveView
from perdure.runs.wire import REQUEST_ACTIVITY, RUN_QUERY, RunResult, RunView
from perdure.sessions.wire import WAIT, WaitResult
from perdure.values.arguments import check_arguments
from perdure.values.json import Json, JsonObject, loads
from perdure.values.problems import first_problem
from perdure.values.references import MISSING

if TYPE_CHECKING:
    from perdure.client.histories import Exchange


SHORTEST_LOOK: Final = 0.1
"""The least seconds between two views: one view shows all changes of that time."""
WHOLE: Final = 1.0
"""The least seconds between two queries of the whole run; an approval request is queried at once."""
TROUBLE_INTERVAL: Final = 1.5
"""Seconds between looks for retries during a wait: the first retry comes after one second."""


async def watch_run(client: Client, run_id: str) -> AsyncGenerator[RunView, None]:
    """Yield the run's view now, and after each change; the last view follows the run's end. Wait for a worker if none
    answers.
    """
    picture = LiveView(RunView(run_id=run_id))
    picture.lacks = picture.asks = True
    changed, clock = asyncio.Event(), asyncio.get_running_loop().time

    async def follow() -> None:
        async with aclosing(relay_of(client).run(run_id, None, parse_topics(None) - {"score"}, patient=True)) as events:
            async for event in events:
                picture.apply(event)
                changed.set()

    following = asyncio.create_task(follow())
    following.add_done_callback(lambda _: changed.set())
    handle, asked = client.get_workflow_handle(run_id), clock() - WHOLE
    try:
        while not following.done():
            # Query approval requests again: somebody may have decided them meanwhile.
            if picture.view.waiting or (picture.lacks and (picture.asks or clock() - asked >= WHOLE)):
                asked = clock()
                with contextlib.suppress(RPCError, WorkflowQueryFailedError):
                    picture.renew(await answer_of(handle, RUN_QUERY, result_type=RunView))
            yield picture.view.model_copy(deep=True)
            await asyncio.sleep(SHORTEST_LOOK)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, asked + WHOLE - clock()) if picture.lacks else None):
                    await changed.wait()
            changed.clear()
        following.result()
    finally:
        await cancel_all(following)
    yield await fetch_run(client, run_id)


async def watch_waiting(client: Client, run_id: str) -> AsyncGenerator[WaitingRow, None]:
    """Yield each approval request of a run and of the runs below it, once, as lists show it. It ends only when it is
    closed.
    """
    known: set[tuple[str, str, str]] = set()
    while True:
        await asyncio.sleep(TROUBLE_INTERVAL)
        with contextlib.suppress(RPCError, RunError):
            for one in await listed_below(client, run_id):
                if (key := (one.run_id, one.entry.call, one.entry.requested_at)) not in known:
                    known.add(key)
                    yield one


async def watch_trouble(client: Client, run_id: str) -> AsyncGenerator[str, None]:
    """Yield each reason, once, why a run does not continue, or why its Request is retried. It ends only when it is
    closed.
    """
    handle = client.get_workflow_handle(run_id)
    last = ""
    while True:
        await asyncio.sleep(TROUBLE_INTERVAL)
        with contextlib.suppress(RPCError):
            description = await handle.describe()
            if (stalled := await explain_stall(client, description)) and stalled != last:
                last = stalled
                yield stalled
            for pending in description.raw_description.pending_activities:
                asks = pending.activity_type.name == REQUEST_ACTIVITY and pending.HasField("last_failure")
                words = await failure_words(client, pending.last_failure) if asks else ""
                if words and words != last:
                    last = words
                    yield f"retrying the Request: {words}"


OutputT = TypeVar("OutputT", default=Any, covariant=True)


Offer: TypeAlias = str | WaitingView | WaitingEntry | Event
"""The call to decide: its id; or the exact request, from `waiting`, a list, or an `approval` `start` event."""


@check_arguments
class Run(Generic[OutputT]):
    """A run, found by its id: see `Perdure.start` and `Perdure.get_run`. The object holds no data of the run; each
    method queries it.

    Methods raise `RunNotFoundError` if there is no such run, and `ServerError` if no server answers.

    ```python
    run = await perdure.start(shopper, {"request": "Order three apples."}, id="order-17")
    print(await run.result())
    ```
    """

    def __init__(self, client: Client, run_id: str, agent: Agent[OutputT] | None = None) -> None:
        self.id = run_id
        self._client = client
        self._agent = agent

    @property
    def client(self) -> Client:
        """Temporal's own client, with which the run was found."""
        return self._client

    @property
    def handle(self) -> AgentHandle:
        """Temporal's own handle of the run, for operations that Perdure does not offer."""
        return self._client.get_workflow_handle(self.id, result_type=RunResult)

    async def result(self, timeout: float | None = None) -> OutputT:
        """Wait for the run's end and return its output, as the type of its agent's output; without a known agent, as
        JSON.

        `timeout`: seconds (default: no limit); the run continues after them. Raises `RunFailedError` if the run ended
        without an output (`RunRefusedError` if its model refused), `RunTimeoutError` after `timeout`, and `OutputError`
        if the output is not of the type.

        ```python
        output = await perdure.get_run("order-17").result(timeout=60)
        ```
        """
        with clear_errors(self._client, self.id):
            found = await run_operations.wait_for_result(self._client, self.id, timeout)
            if found is None:
                raise run_failed(await run_operations.fetch_run(self._client, self.id))
        output: Any = loads(await self.value("output")) if found.output_size else found.output
        return output if self._agent is None else self._agent.read_output(output)

    async def wait(self, timeout: float | None = None) -> RunView:
        """Wait for the run's end and return its view, with or without an output. Raises `RunTimeoutError` as
        `result` does.

        ```python
        view = await run.wait(timeout=60)
        print(view.status, view.stop_reason)
        ```
        """
        with clear_errors(self._client, self.id):
            return await run_operations.wait_run(self._client, self.id, timeout)

    async def waited(self, timeout: float = WAIT) -> WaitResult:
        """Wait for the run's end and return only its status: `ok`, `error` with the reason, or `timeout`.

        `timeout`: seconds; the run continues after them.

        ```python
        if (await run.waited(30)).status == "timeout":
            print("still running")
        ```
        """
        # R10.1
        with clear_errors(self._client, self.id):
            return await run_operations.wait_for_status(self._client, self.id, timeout)

    async def view(self) -> RunView:
        """Return the run as it is now or as it ended: Requests, calls, state, usage. Raises `NoWorkerError` if no
        worker answers.

        ```python
        for call in (await run.view()).calls:
            print(call.id, call.tool, call.status)
        ```
        """
        with clear_errors(self._client, self.id):
            return await run_operations.fetch_run(self._client, self.id)

    async def origin(self) -> RunOrigin:
        """Return the run's input, sender, tenant and session, and whether it was reset. No worker is queried. Raises as
        `result` does if there is no such run.

        ```python
        print((await run.origin()).input)
        ```
        """
        with clear_errors(self._client, self.id):
            return await run_operations.fetch_origin(self._client, self.id)

    async def started_at(self) -> datetime:
        """Return the time when the run started, or last continued as new. No worker is queried. Raises as `result` does
        if there is no such run.

        ```python
        print((await run.started_at()).isoformat())
        ```
        """
        with clear_errors(self._client, self.id):
            return (await run_operations.describe(self._client, self.id)).start_time

    async def views(self) -> AsyncGenerator[RunView, None]:
        """Yield the run's view now, and again after each change, until the run has ended. A Request's `text` grows
        while the model writes it.

        ```python
        async for view in run.views():
            print(view.status, [call.status for call in view.calls])
        ```
        """
        with clear_errors(self._client, self.id):
            await run_operations.describe(self._client, self.id)
            async with aclosing(watch_run(self._client, self.id)) as views:
                async for view in views:
                    yield view

    async def events(
        self, from_: str | None = None, topics: Iterable[str] | None = None
    ) -> AsyncGenerator[Event, None]:
        """Yield the run's events, from its beginning to its end; also after its end. Delegates have streams of their
        own: the `tool` events name the run to follow. The `score` of a run that its agent's `config.evaluate` scores
        follows the end, if it is there.

        `from_`: the `cursor` of the last event that was read, by any reader. The events after it come once and in
        order. By default the stream starts at the beginning; with `"now"` it starts with new events. `topics`: only
        these. With the topic `score` the stream waits for the score. Without `assistant` and `reasoning` the run does not
        learn that somebody watches. A slow reader delays nobody. A reader that has missed events that are no longer
        kept gets one `lifecycle` `snapshot`. The stream waits for a worker that is lost later. Raises `CursorError`,
        `ProtocolError` for an invalid topic, and `NoWorkerError` if no worker answers at the beginning.

        ```python
        async for event in run.events(topics=["tool", "approval"]):
            print(event.topic, event.phase, event.data.get("call"))
        ```
        """
        # R10.14, R10.15
        with clear_errors(self._client, self.id):
            names = None if topics is None else [*topics]
            kinds, _ = parse_topics(names), start_cursor(from_, session=False)
            await run_operations.describe(self._client, self.id)
            relayed = relay_of(self._client).run(
                self.id, from_, kinds, awaits_score=names is not None and "score" in names
            )
            async with aclosing(relayed) as events:
                async for event in events:
                    yield event

    async def partial_output(self) -> AsyncGenerator[OutputT, None]:
        """Yield the output as far as the model has written it, each time that it has grown, and at last the whole
        output of `result`.

        Without a known agent each value is JSON. With one it has the type of the agent's output: as much of the output
        as the type accepts, so a pydantic model with required fields begins when all of them are there. A text that is
        not complete counts where the type accepts any text. References are left out until their values are final. A
        value that does not continue the one before it comes from another attempt, or from another Request. An output
        that was not streamed comes once, whole. Raises what `events` and `result` raise.

        ```python
        async for report in run.partial_output():
            print(report)
        ```
        """
        # R20.7
        last: Any = MISSING
        async with aclosing(self._partial_texts()) as texts:
            async for text in texts:
                value = text.value if self._agent is None else self._agent.read_partial_output(text)
                if value is not MISSING and value != last:
                    last = value
                    yield value  # type: ignore[misc]  # without an agent an `OutputT` is any value
        whole = await self.result()
        if last is MISSING or whole != last:
            yield whole

    async def _partial_texts(self) -> AsyncGenerator[PartialText, None]:
        fold = PartialOutputEvents()
        async with aclosing(self.events(topics=fold.topics)) as events:
            async for event in events:
                for text in fold.fold(event):
                    yield text

    async def troubles(self) -> AsyncGenerator[str, None]:
        """Yield each reason, once, why a Request is retried. The generator ends only when it is closed, and costs no
        Action.

        ```python
        async for words in run.troubles():
            print(words)
        ```
        """
        with clear_errors(self._client, self.id):
            async with aclosing(watch_trouble(self._client, self.id)) as troubles:
                async for words in troubles:
                    yield words

    async def waits(self) -> AsyncGenerator[WaitingRow, None]:
        """Yield each approval request of the run and of the runs below it, once, as lists show it. The generator ends
        only when it is closed, and costs no Action.

        ```python
        async for row in run.waits():
            print(row.run_id, row.entry.sentence)
        ```
        """
        with clear_errors(self._client, self.id):
            async with aclosing(watch_waiting(self._client, self.id)) as found:
                async for one in found:
                    yield one

    async def value(self, what: str) -> str:
        """Return the JSON text of a value that the view has cut.

        `what`: `output`, `state`, `calls`, `errors`, a reference or a call's id. Raises `RunError` if there is no such
        value, and `NoWorkerError` if no worker answers.

        ```python
        report = await run.value("†state.report")
        ```
        """
        # R18.3
        with clear_errors(self._client, self.id):
            return await run_operations.read_value(self._client, self.id, what)

    async def exchanges(self) -> list[Exchange]:
        """Return the exact messages that each Request sent to the model, and the model's answers. Raises `RunError` if
        another version wrote the run's history.

        ```python
        first = (await run.exchanges())[0]
        print(first.request)
        ```
        """
        from perdure.client import histories  # imports the workflows, for a replay

        with clear_errors(self._client, self.id):
            return await histories.exchanges(self._client, self.id)

    async def fork(
        self,
        at: str,
        *,
        agent: Agent[Any] | None = None,
        input: object = MISSING,
        edits: Mapping[str, JsonObject] | None = None,
        results: Mapping[str, Json] | None = None,
        model: str | None = None,
        id: str | None = None,
    ) -> Run[Any]:
        """Start a new run from a point of this one: before Request `R`, or before call `R.N`. This run is only read.

        Requests before the point are answered from this run's record, and so are calls that are the same: tool,
        parameters, and values read. The others run, under today's policies, and calls whose effects were undone run
        again. `agent`: another agent (default: this run's). `input`: another input. `edits`: by call id the changed
        keys of a call before the point; `None` removes a key. `results`: by call id the value that replaces a call's
        result. `model`: the model of the Requests from the point on. `id`: the new run's id. Raises `RunError` for a
        point, a call or a run that cannot be forked, `RunExistsError` for an id of another run, and `InputError` for an
        input that breaks the agent's schema.

        ```python
        fork = await run.fork("2", edits={"1.0": {"amount": 50}}, model="gpt-4o")
        print(await fork.result())
        ```
        """
        from perdure.client.recorded_runs import fork_run  # imports the workflows, for a replay

        given: list[Json] | None = None
        if input is not MISSING:
            given = [read_input(input)]
            if agent is not None:
                agent.check_input(given[0])
        with clear_errors(self._client, self.id):
            handle = await fork_run(
                self._client,
                self.id,
                at,
                agent=None if agent is None else (agent.document(), agent.delegates()),
                input=given,
                edits=edits,
                results=results,
                model=model,
                id=id,
            )
        return Run(self._client, handle.id, agent)

    async def export(self) -> JsonObject:
        """Return this run as JSON, with its view, its record and its files: `Perdure.import_run` restores it in another namespace.

        The export of a run that is running, or that accepted messages, cannot be restored: its `problem` names the
        reason. It needs no worker. Raises `RunError` if another version wrote the run's history.

        ```python
        Path("order-17.json").write_text(json.dumps(await run.export()))
        ```
        """
        # R24.5
        from perdure.client.exports import export_run  # imports the workflows, for a replay

        with clear_errors(self._client, self.id):
            return (await export_run(self._client, self.id)).as_json()

    async def promote(
        self, name: str, *, parameters: Mapping[str, str | Sequence[str]] | None = None, like: Sequence[str] = ()
    ) -> Procedure:
        """Return this completed run's plan as a procedure: an agent that makes the same calls without a model. This run is only read.

        `name`: the name of the procedure, and of its tool for other agents. `parameters`: by name of an input the
        literal, `R.N.path`, or the literals that it replaces; all others are frozen. `like`: ids of further runs whose
        plans have the same shape: the literals in which they differ become the inputs. Raises `RunError` for a run that
        has not completed or cannot be promoted, and for parameters that name no literal.

        ```python
        procedure = await run.promote("monthly_refunds", parameters={"euros": "1.2.euros"})
        print(Agent.of(procedure.agent).document(), procedure.frozen)
        ```
        """
        # R23.3
        from perdure.client.recorded_runs import promote_run  # imports the workflows, for a replay

        with clear_errors(self._client, self.id):
            return await promote_run(self._client, self.id, name, parameters or {}, like)

    async def effects(self) -> list[Effect]:
        """Return the calls that have, or may have, changed something outside, each with the state of its undo. The list
        is empty if no tool of the run has an undo. Raises `NoWorkerError` if no worker answers.

        ```python
        for effect in await run.effects():
            print(effect.call, effect.tool, effect.status, effect.reason)
        ```
        """
        # R23.4
        with clear_errors(self._client, self.id):
            return (await run_operations.effects_of(self._client, self.id)).effects

    async def undone(self) -> list[Effect]:
        """Return `effects` if any effect of the run was ever undone; else an empty list, without a query.

        ```python
        print([effect.call for effect in await run.undone() if effect.status == "undone"])
        ```
        """
        with clear_errors(self._client, self.id):
            return (
                (await run_operations.effects_of(self._client, self.id)).effects
                if await was_undone(self._client, self.id)
                else []
            )

    async def undo_plan(self, *, to: str | None = None, no_effect: Sequence[str] = ()) -> UndoPlan:
        """Return the effects that `undo` would undo now, and those that would stay, with the reasons. Raises as `undo`
        does.

        ```python
        plan = await run.undo_plan()
        print([effect.call for effect in plan.cannot])
        ```
        """
        with clear_errors(self._client, self.id):
            return (await run_operations.plan_undo_of(self._client, self.id, to, no_effect))[1]

    async def undo(self, *, to: str | None = None, no_effect: Sequence[str] = (), by: str = "") -> Run[Any]:
        """Start a run that undoes the effects of this run, in the reverse order of the data flow, and return it.

        This run must have ended. The undo of each tool undoes its effects, under this run's policies. The effects of
        calls without an undo stay. The undo run fails if an undo fails; call `undo` again to continue. `to`: undo only
        this call and the calls that depend on it (default: all). `no_effect`: ids of calls with an unknown effect, of
        which you know that they had none. `by`: the person who asks for the undo, for the audit log. Raises `RunError`
        for a run that has not ended, is being undone, or has nothing to undo, and `NoWorkerError` if no worker answers.

        ```python
        undo = await run.undo()
        print((await undo.wait()).output)
        ```
        """
        # R23.4
        with clear_errors(self._client, self.id):
            handle = await run_operations.start_undo(self._client, self.id, to, no_effect, by)
        return Run(self._client, handle.id)

    async def waiting(self, call: str | None = None) -> list[WaitingView]:
        """Return the approval requests of this run in full, oldest first; with `call` only that one. Raises
        `NoWorkerError` if no worker answers.

        ```python
        for request in await run.waiting():
            print(request.call, request.sentence)
        ```
        """
        with clear_errors(self._client, self.id):
            return [one.request for one in await approvals.requests_of_run(self._client, self.id, call)]

    async def list_requests(self) -> list[WaitingRow]:
        """Return the approval requests of the run and of the runs below it, as lists show them. No run is queried, and it
        costs no Action.

        ```python
        print([(row.run_id, row.entry.call) for row in await run.list_requests()])
        ```
        """
        with clear_errors(self._client, self.id):
            return await listed_below(self._client, self.id)

    async def may_wait(self, call: str) -> bool:
        """Whether the call still waits, as far as the server's index knows. The run is not queried, and it costs no
        Action.

        ```python
        if await run.may_wait("1.0"):
            await run.approve("1.0")
        ```
        """
        with clear_errors(self._client, self.id):
            return await approvals.may_wait(self._client, self.id, call)

    async def waiting_below(self) -> tuple[list[WaitingRequest], list[str]]:
        """Return the approval requests of this run and of its delegates' runs, each with its run's id, and one line for
        each run that does not answer.

        ```python
        requests, silent = await run.waiting_below()
        ```
        """
        with clear_errors(self._client, self.id):
            return await approvals.waiting_below(self._client, self.id)

    async def delegates(self, *, asked: bool = False) -> list[str]:
        """Return the ids of the runs of its delegates, and of theirs, as far as the server's index knows them. It costs
        no Action.

        `asked`: of runs that have ended, only those that had an approval request.

        ```python
        below = await run.delegates()
        ```
        """
        with clear_errors(self._client, self.id):
            return list(await approvals.list_below(self._client, self.id, asked=asked))

    async def approve(
        self,
        call: Offer,
        *,
        reason: str = "",
        by: str = "",
        roles: Iterable[str] = (),
        remember: bool = False,
        endorse: bool | Sequence[str] = False,
    ) -> None:
        """Approve a call or a plan. If a quorum decides, this is one of its approvals, and the call may still wait.

        `call`: its id (of a plan, the Request's number), or an entry of `waiting`, of `Perdure.approvals` or an event;
        an entry binds the decision to exactly what was shown. `remember`: do not ask about this tool again in this run.
        `endorse`: declare all parameters, or those named, to be the person's own values, whoever wrote them. `by`,
        `reason`: recorded with the decision. `roles`: those of `by`, for a quorum; nothing verifies them here. Raises `DecisionRefusedError` with the reason why nothing changed,
        `RunEndedError` if the run has ended, and `NoWorkerError` if no worker accepts the decision.

        ```python
        for request in await run.waiting():
            await run.approve(request, by="ann")
        ```
        """
        # R7.2, R7.7, R15.6
        vouched = {"endorse": endorse if isinstance(endorse, bool) else list(endorse)} if endorse else {}
        await self.decide(_approval("approve", by, roles, reason) | {"remember": remember} | vouched, call)

    async def reject(self, call: Offer, *, reason: str = "", by: str = "") -> None:
        """Reject a call or a plan; the model reads the reason. Otherwise as `approve`.

        ```python
        await run.reject("1.0", reason="Too expensive.", by="ann")
        ```
        """
        await self.decide({"decision": "reject", "reason": reason, "by": by}, call)

    async def edit(
        self,
        call: Offer,
        params: JsonObject | None = None,
        *,
        calls: list[Json] | None = None,
        reason: str = "",
        by: str = "",
        roles: Iterable[str] = (),
        remember: bool = False,
    ) -> None:
        """Approve a call with changed parameters, or a plan with other `calls`. Otherwise as `approve`.

        `params`: the changed parameters, as values; the others stay. A reference is written `{"_ref": "†state.x"}`.
        `calls`: all calls of the plan.

        ```python
        await run.edit("1.0", {"euros": 20}, by="ann")
        ```
        """
        changed: JsonObject = {"params": params} if calls is None else {"calls": calls}
        await self.decide(_approval("edit", by, roles, reason) | {"remember": remember} | changed, call)

    async def replace(
        self, call: Offer, replacement: JsonObject, *, reason: str = "", by: str = "", roles: Iterable[str] = ()
    ) -> None:
        """Run another call, `{"_tool": …}`, in place of this one. Otherwise as `approve`.

        ```python
        await run.replace("1.0", {"_tool": "voucher", "euros": 20}, by="ann")
        ```
        """
        await self.decide(_approval("replace", by, roles, reason) | {"with": replacement}, call)

    async def answer(self, call: Offer, answer: Json, *, by: str = "") -> None:
        """Answer a question of `ask_person`, or send the result of a client's tool, as JSON. Otherwise as `approve`.

        ```python
        await run.answer("1.0", "The blue one.", by="ann")
        ```
        """
        await self.decide({"decision": "answer", "answer": answer, "by": by}, call)

    async def decide(self, decision: JsonObject, call: Offer | None = None) -> JsonObject:
        """Send a decision as JSON, such as a form's, and return the result: `{"call", "decision"}`. Otherwise as
        `approve`. The result has the text `missing` if a quorum needs the approvals of others.

        `decision`: `{"call": …, "decision": "approve" | "reject" | "edit" | "replace" | "answer", …}`. `call`: as
        `approve` takes it (default: the decision's `call`).

        ```python
        await run.decide({"call": "1.0", "decision": "reject", "reason": "Too expensive."})
        ```
        """
        if call is not None:
            shown = {"call": call} if isinstance(call, str) else _shown(call)
            decision = {**decision, **shown}
        with clear_errors(self._client, self.id):
            return await approvals.decide(self._client, self.id, decision)

    async def policy(self, **change: Unpack[ApprovalOptions]) -> JsonObject:
        """Change the run's approval policy from now on, and return the policy. It also applies to calls that wait.

        Raises `DecisionRefusedError` with the reason why nothing changed, `RunEndedError` if the run has ended, and
        `NoWorkerError` if no worker accepts the change.

        ```python
        await run.policy(ask="always")
        ```
        """
        # R7.7
        with clear_errors(self._client, self.id):
            return await approvals.change_policy(self._client, self.id, {**change})

    async def steer(self, text: str, *, by: str = "", id: str | None = None) -> str:
        """Send a message to the running run and return the message's id.

        From then on only calls of safe tools start. The next Request begins at once, with the plan as it is; the model
        keeps, changes or drops calls that have not started, and running calls continue. `id`: the message's id
        (default: a new one); the same id is the same message. `by`: its sender, recorded with the message. The view's
        `messages` show what became of it. Raises `RunEndedError`, and `DecisionRefusedError` for an invalid message.

        ```python
        await run.steer("Pears, not apples.", by="ann")
        ```
        """
        # R10.5
        try:
            message = IncomingMessage(
                id=id if id is not None else f"m-{uuid.uuid4().hex[:12]}",
                text=text,
                sender=by,
                at=datetime.now(UTC).isoformat(timespec="seconds"),
            )
        except ValidationError as error:
            raise DecisionRefusedError(f"the message is not valid: {first_problem(error)}") from None
        with clear_errors(self._client, self.id):
            await approvals.steer(self._client, self.id, message)
        return message.id

    async def withdraw(self, message: str, *, sender: str | None = None) -> None:
        """Withdraw a message by its id, as long as no Request holds it; with a `sender` only that sender's message.
        Raises `DecisionRefusedError` with the number of the Request that holds it.

        ```python
        message = await run.steer("Pears, not apples.", by="ann")
        await run.withdraw(message, sender="ann")
        ```
        """
        # R10.7
        with clear_errors(self._client, self.id):
            await approvals.withdraw(self._client, self.id, message, sender)

    async def score(self) -> RunScore | None:
        """Return the score of the run by its agent's `config.evaluate`; `None`: it has no score yet.

        ```python
        score = await run.score()
        if score is not None:
            print(score.passed, score.scores)
        ```
        """
        # R22.4
        with clear_errors(self._client, self.id):
            return await fetch_score(self._client, self.id)

    async def cancel(self) -> None:
        """Cancel the run: its model stream, its running tools and its children are cancelled.

        Finished calls keep their effects. A call that ran and may have had an effect has the status `unknown`. Raises
        `RunEndedError`, and `RunError` if the run's workflow tasks fail: then it continues until a worker can cancel
        it.

        ```python
        await run.cancel()
        ```
        """
        # R10.6
        with clear_errors(self._client, self.id):
            await self._check_running()
            await self.handle.cancel()
            await check_ends(self._client, self.id, within=END_TAKEN_WITHIN)

    async def terminate(self, reason: str = "") -> None:
        """End the run at once, without cancelling its calls, e.g. if no worker can execute it. Raises `RunEndedError`.

        ```python
        await run.terminate("the tool is gone")
        ```
        """
        with clear_errors(self._client, self.id):
            await self._check_running()
            await self.handle.terminate(reason=reason or None)

    async def _check_running(self) -> None:
        status = (await run_operations.describe(self._client, self.id)).status
        if status is not None and STATUS[status] != "running":
            raise RunEndedError(f"{self.id} has already ended: {STATUS[status]}")

    def __repr__(self) -> str:
        return f"Run({self.id!r})"


def _approval(kind: str, by: str, roles: Iterable[str], reason: str) -> JsonObject:
    named: JsonObject = {"decision": kind, "reason": reason, "by": by}
    return named | ({"roles": list(roles)} if roles else {})


def _shown(request: WaitingView | WaitingEntry | Event) -> JsonObject:
    """Return the call, and the digest of the request as it was shown."""
    if isinstance(request, Event):
        return {key: request.data[key] for key in ("call", "digest") if key in request.data}
    return {"call": request.call, "digest": request.digest}
