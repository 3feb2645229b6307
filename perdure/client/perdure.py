"""Perdure from Python: starting, finding and listing runs (R13.3). It runs no agent itself: workers do."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Iterable
from contextlib import aclosing
from typing import Any, overload

from temporalio.client import Client
from temporalio.runtime import Runtime
from temporalio.service import RPCError, RPCStatusCode, TLSConfig
from typing_extensions import TypeVar, Unpack

from perdure.agents.agent import Agent
from perdure.agents.options import ApprovalOptions, PromptOptions
from perdure.approvals.policy import parse_policy
from perdure.client import _run_lists as listing
from perdure.client import approvals, run_operations
from perdure.client._event_relay import relay_of, wanted
from perdure.client.approvals import PAGE
from perdure.client.errors import clear_errors
from perdure.client.run import Run
from perdure.client.selection import ListedRun, ListedSession, RunPage, Selection, SessionPage, WaitingPage
from perdure.client.session import Session
from perdure.client.session_operations import Address
from perdure.client.tenancy import IdempotentStart, check_owner
from perdure.errors import RunExistsError, RunNotFoundError
from perdure.hosting.connection import connect, reached, with_converter
from perdure.hosting.settings import in_force
from perdure.runs.agent import parse_prompt, written_keys
from perdure.runs.events import Event
from perdure.sessions.wire import SESSION_PREFIX, SESSION_WORKFLOW
from perdure.values.json import Json, JsonObject
from perdure.values.messages import Mode, SessionRules
from perdure.values.references import MISSING

T = TypeVar("T")


class Perdure:
    """Runs in one namespace of a Temporal server.

    `client`: a client of the user's own; its codec, storage and interceptors stay in force. `task_queue`: where the workers listen to
    which runs are given, unless a start says another (`PERDURE_TASK_QUEUE`, or `perdure`).
    """

    def __init__(self, client: Client, *, task_queue: str | None = None) -> None:
        self.client: Client = with_converter(client)
        """Temporal's own client: the one that was given, with Perdure's JSON as its payloads."""
        self.task_queue: str = task_queue or in_force().task_queue
        """Where runs are started."""

    @classmethod
    async def connect(
        cls,
        address: str | None = None,
        *,
        namespace: str | None = None,
        api_key: str | None = None,
        tls: bool | TLSConfig | None = None,
        profile: str | None = None,
        task_queue: str | None = None,
        runtime: Runtime | None = None,
        wait: float = 0,
        lazy: bool = False,
    ) -> Perdure:
        """Connect by Temporal's own settings: `TEMPORAL_ADDRESS`, `TEMPORAL_NAMESPACE`, `TEMPORAL_PROFILE`, `temporal.toml`, … (R12.6).

        What is given here goes before them. `address`: `host:port`. `tls`: yes or no, or certificates of one's own; by default
        yes where there is an `api_key`. `profile`: one of `temporal.toml`. `task_queue`: as of `Perdure` itself. `runtime`: the SDK's. `wait`:
        seconds to wait for a server, and its namespace, that may still come. `lazy`: connect at the first use; that one raises what is wrong (R19.10).
        A connection that is lost is made again by the next use. Raises `ServerError` when nothing answers there, or when the settings cannot be read.

            perdure = await Perdure.connect(wait=60)
        """
        given = {"target_host": address, "namespace": namespace, "api_key": api_key, "tls": tls}
        options = {name: value for name, value in given.items() if value is not None} | ({"lazy": True} if lazy else {})

        def connected() -> Awaitable[Client]:
            return connect(runtime, profile=profile, **options)

        client = await (reached(connected, wait) if wait > 0 and not lazy else connected())
        return cls(client, task_queue=task_queue)

    async def start(
        self,
        agent: Agent[T],
        input: object = MISSING,
        *,
        id: str | None = None,
        key: str | IdempotentStart | None = None,
        task_queue: str | None = None,
        approval: ApprovalOptions | None = None,
        prompt: PromptOptions | None = None,
        sender: str | None = None,
        tenant: str | None = None,
        context: object = None,
        source: str = "",
    ) -> Run[T]:
        """Start a run of the agent. Nobody waits for a worker here: the run does.

        `input`: JSON, or what pydantic writes as JSON; left out there is none. `id`: names this one run for good; by default the agent's
        name and a random part. `key`, in place of it: the sender's own for what they want done; said again by the same sender with the same agent,
        input, policy and prompt, it gives the run that there is already; an adapter's own key is an `IdempotentStart`. `task_queue`: where its workers listen. `approval`: this run's own changes to the agent's policy (R7.1), `prompt` those to its
        `config.prompt` (R10.19). `sender`, `tenant`: for whom it runs, as
        lists find it. `context`: what else is known of them, an object or what pydantic writes as one; tools read all three, no model does
        (R19.1): give what you have verified. `source`: where the input comes from, if others wrote it: `!client:shop/github` (R15.2); by
        default the user wrote it. Raises `InputError` for an input or a context that breaks
        its schema, and nothing is started (R2.3); `AgentError` for a policy that names a tool that the agent has not, and for a prompt that is none; `DecisionError` for a policy that is none; `RunExistsError`, also for
        a `key` of another run; `RunError` where agent and input are too large.
        """
        agent.check_policy()
        value = agent.check_input(input)
        known = agent.check_context(context)
        change: JsonObject = {**(approval or {})}
        parse_policy(change)
        wishes: JsonObject = {**(prompt or {})}
        told = written_keys(parse_prompt(wishes))
        said_again: list[Json] = [agent.name, None if value is MISSING else [value], change, told]
        said_again += [known] if known else []
        wanted = (
            key
            if isinstance(key, IdempotentStart)
            else IdempotentStart.of(tenant, sender, key, said_again)
            if key
            else None
        )
        with clear_errors(self.client):
            try:
                handle = await run_operations.start_run(
                    self.client,
                    agent.parsed,
                    agent.document(),
                    None if value is MISSING else value,
                    has_input=value is not MISSING,
                    run_id=id if wanted is None else wanted.run_id,
                    task_queue=task_queue or self.task_queue,
                    approval=change,
                    prompt=told,
                    sender=sender,
                    tenant=tenant,
                    context=known,
                    delegates=agent.delegates(),
                    memo=None if wanted is None else wanted.memo(),
                    source=source,
                )
            except RunExistsError:
                if wanted is None:
                    raise
                return self._run(await wanted.found(self.client), agent)
        return self._run(handle.id, agent)

    async def run(
        self,
        agent: Agent[T],
        input: object = MISSING,
        *,
        id: str | None = None,
        task_queue: str | None = None,
        approval: ApprovalOptions | None = None,
        prompt: PromptOptions | None = None,
        sender: str | None = None,
        tenant: str | None = None,
        context: object = None,
        timeout: float | None = None,
    ) -> T:
        """Start a run and wait for its output: `start`, then `Run.result`, with what they take and raise.

        `timeout`: seconds, by default as long as it takes; it ends the waiting, not the run.
        """
        started = await self.start(
            agent,
            input,
            id=id,
            task_queue=task_queue,
            approval=approval,
            prompt=prompt,
            sender=sender,
            tenant=tenant,
            context=context,
        )
        return await started.result(timeout)

    @overload
    def get_run(self, id: str) -> Run[Any]: ...

    @overload
    def get_run(self, id: str, agent: Agent[T]) -> Run[T]: ...

    def get_run(self, id: str, agent: Agent[Any] | None = None) -> Run[Any]:
        """A run that was started before, here or anywhere. With its `agent` its output is of the agent's type. Asks nobody."""
        return self._run(id, agent)

    async def find_run(self, id: str, *, tenant: str = "") -> Run[Any]:
        """A run of this tenant, or of none: one that it was started for, or that runs below such a one. Raises `RunNotFoundError` for another
        tenant's as for none at all (R10.2)."""
        with clear_errors(self.client, id):
            await check_owner(self.client, id, tenant)
        return self._run(id)

    def session(
        self,
        key: str,
        *,
        tenant: str = "",
        agent: Agent[Any] | None = None,
        mode: Mode | None = None,
        cap: int | None = None,
        quiet: float | None = None,
        task_queue: str | None = None,
    ) -> Session:
        """A session by its key (section 10): a conversation that outlives its runs. Asks nobody; the first message begins it.

        `tenant`: of whoever is authenticated, never what they say themselves: who has another finds no such session (R10.2). `agent`: who
        answers; it may be left out where the session is there already, and another one than before takes the right `agent`. `mode`, `cap`, `quiet`
        (R10.4, R10.8): the session's own, from its beginning on, over its agent's.
        """
        rules = SessionRules(mode=mode, cap=cap, quiet=quiet)
        queue = task_queue or self.task_queue
        return self._session(Address(self.client, key, tenant), agent, rules, queue)

    def session_of(self, run_id: str) -> Session:
        """The session that a run belongs to, by what its receipt says. Asks nobody. Raises `RunNotFoundError` for a run of none."""
        id, _, number = run_id.partition("/")
        if not id.startswith(SESSION_PREFIX) or not number:
            raise RunNotFoundError(f"{run_id!r} is not a run of a session")
        return self._session(Address(self.client, id, known=id))

    async def find_session_of(self, run_id: str, *, tenant: str = "") -> Session:
        """Return the session of a run, if it belongs to the tenant. Raises `RunNotFoundError` if it does not, as if there were none (R10.2)."""
        session = self.session_of(run_id)
        with clear_errors(self.client, run_id):
            await check_owner(self.client, session.id, tenant, asked=run_id)
        return session

    async def events(
        self, id: str, from_: str | None = None, topics: Iterable[str] | None = None, *, tenant: str = ""
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of a run, by its id, or of a session, by its key (of this `tenant`) or its id; see `Run.events` and `Session.events`.

        Raises `RunNotFoundError` if there is neither.
        """
        with clear_errors(self.client, id):
            session = await self._session_of(id, tenant)
            kinds, relay = wanted(topics), relay_of(self.client)
            found = relay.run(id, from_, kinds) if session is None else session.events(from_, topics)
            async with aclosing(found) as events:
                async for event in events:
                    yield event

    async def _session_of(self, id: str, tenant: str) -> Session | None:
        """The session of this id or key; `None`: it is a run's. Raises `RPCError` where there is neither."""
        by_key = Address(self.client, id, tenant)
        for address in (Address(self.client, id, known=id), by_key):
            try:
                description = await address.handle.describe()
            except RPCError as error:
                if error.status != RPCStatusCode.NOT_FOUND or address is by_key:
                    raise
                continue
            is_session = description.workflow_type == SESSION_WORKFLOW
            return self._session(address) if is_session else None
        return None

    async def list_sessions(self, *, tenant: str = "") -> AsyncGenerator[ListedSession, None]:
        """The sessions of a tenant, the last that did something first. The server's index is a moment late; none is asked."""
        with clear_errors(self.client):
            async with aclosing(listing.walk_sessions(self.client, tenant)) as found:
                async for each in found:
                    yield each

    async def page_of_sessions(self, *, tenant: str = "", size: int, page: str | None = None) -> SessionPage:
        """Return one page of sessions; `page`: `following` of the page before."""
        with clear_errors(self.client):
            return await listing.list_sessions(self.client, tenant, size=size, page=page)

    async def list_tenants(self) -> list[str]:
        """The tenants that runs or sessions were started for, in alphabetical order; for those who may see all of them."""
        with clear_errors(self.client):
            return await listing.list_tenants(self.client)

    async def list_runs(
        self, selection: Selection | None = None, *, limit: int | None = None
    ) -> AsyncGenerator[ListedRun, None]:
        """The runs that are meant (default: all), newest first, at most `limit`. The server's index is a moment late.

        Raises `RunError` for a selection that cannot be listed. No run is asked: a list costs no Action.
        """
        with clear_errors(self.client):
            async with aclosing(listing.walk_runs(self.client, selection or Selection(), limit)) as runs:
                async for run in runs:
                    yield run

    async def page_of_runs(self, selection: Selection, *, size: int, page: str | None = None) -> RunPage:
        """Return one page of runs; `page`: `following` of the page before."""
        with clear_errors(self.client):
            return await listing.list_runs(self.client, selection, size=size, page=page)

    async def count_runs(self, selection: Selection) -> int:
        """Return the number of selected runs. Raises as `list_runs` does."""
        with clear_errors(self.client):
            return await listing.count_runs(self.client, selection)

    async def cancel_runs(self, selection: Selection) -> int:
        """Ask all of them that run to end, as `Run.cancel` does; how many took it. Raises as `list_runs` does."""
        with clear_errors(self.client):
            return await listing.cancel_runs(self.client, selection)

    async def terminate_runs(self, selection: Selection, *, reason: str = "") -> int:
        """End all of them that run at once, as `Run.terminate` does; how many were. Raises as `list_runs` does."""
        with clear_errors(self.client):
            return await listing.terminate_runs(self.client, selection, reason)

    async def change_policies(self, selection: Selection, **change: Unpack[ApprovalOptions]) -> int:
        """Change what all of them that run ask about, also where no worker answers now; how many were told. Raises as `list_runs` does,
        and `DecisionError` for a policy that is none."""
        changed: JsonObject = {**change}
        parse_policy(changed)  # a signal that is wrong would change nothing, and say so to nobody
        with clear_errors(self.client):
            return await listing.change_policies(self.client, selection, changed)

    async def approvals(self, *, size: int = PAGE, page: str | None = None, tenant: str | None = None) -> WaitingPage:
        """List what waits for a person across the namespace, also where no worker answers (R7.8). The server's index is a moment late.

        `size`: runs on a page; `page`: `following` of the page before. `tenant`: only its runs; `""`: only runs without a tenant.
        Raises `RunError` if the namespace cannot list it.
        """
        with clear_errors(self.client):
            return await approvals.list_waiting(self.client, size=size, page=page, tenant=tenant)

    async def has_worker(self, task_queue: str | None = None) -> bool:
        """Whether any worker takes runs from the queue; those just gone count for some minutes."""
        with clear_errors(self.client):
            return await run_operations.has_worker(self.client, task_queue or self.task_queue)

    def _run(self, id: str, agent: Agent[Any] | None = None) -> Run[Any]:
        return Run(self.client, id, agent)

    def _session(
        self,
        address: Address,
        agent: Agent[Any] | None = None,
        rules: SessionRules | None = None,
        task_queue: str | None = None,
    ) -> Session:
        return Session(address, agent=agent, rules=rules, task_queue=task_queue or self.task_queue)

    def __repr__(self) -> str:
        return f"Perdure({self.client.service_client.config.target_host!r}, namespace={self.client.namespace!r})"
