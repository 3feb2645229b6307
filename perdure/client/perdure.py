"""Perdure's Python API: start, find and list runs and sessions (R13.3). Workers run the agents."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from pydantic import ValidationError
from temporalio.client import Client
from temporalio.runtime import Runtime
from temporalio.service import RPCError, RPCStatusCode, TLSConfig
from typing_extensions import TypeVar, Unpack

from perdure.agents.agent import Agent
from perdure.agents.media import Media, media_met, media_without_bytes
from perdure.agents.options import ApprovalOptions, PromptOptions
from perdure.approvals.policy import parse_policy
from perdure.client import _run_lists as listing
from perdure.client import approvals, run_operations
from perdure.client._pending_activities import unanswered
from perdure.client.approvals import PAGE
from perdure.client.erasure import ErasureReport, apply_retention, erase
from perdure.client.errors import clear_errors, no_answer
from perdure.client.evaluations import Evaluation, start_evaluation, walk_scores
from perdure.client.key_use import KeyRewrite, KeyUse, key_uses, rewrite_keys
from perdure.client.run import Run
from perdure.client.schedules import ListedSchedule, Schedule, walk_schedules
from perdure.client.selection import ListedRun, ListedSession, RunPage, Selection, SessionPage, WaitingPage
from perdure.client.session import Session
from perdure.client.session_operations import Address
from perdure.client.tenancy import IdempotentStart, check_owner
from perdure.client.versions import VersionFigures, compare
from perdure.errors import MediaError, ProtocolError, RunError, RunExistsError, RunNotFoundError, clip
from perdure.hosting.connection import connect, connect_with_retry, with_converter
from perdure.hosting.settings import in_force
from perdure.queries import find_missing_worker, list_accounts, list_standing_approvals
from perdure.queries.media_store import MediaStore
from perdure.rules import Rule
from perdure.runs.agent import parse_prompt, written_keys
from perdure.runs.evaluation import Decide
from perdure.runs.events import Event
from perdure.runs.ledger import AccountView, ledger_id
from perdure.runs.standing_approvals import StandingApproval
from perdure.runs.what_if import Change, RunReport, WhatIfReport
from perdure.sessions.wire import SESSION_PREFIX, SESSION_WORKFLOW
from perdure.values.arguments import check_arguments
from perdure.values.json import Json, JsonObject, to_json
from perdure.values.media import media_within
from perdure.values.messages import Mode, Priority, SessionRules, check_priority
from perdure.values.problems import first_problem
from perdure.values.references import MISSING

if TYPE_CHECKING:
    from pydantic_evals import Dataset

T = TypeVar("T")


@check_arguments
class Perdure:
    """The runs and sessions in one namespace of a Temporal server.

    `client`: your own client; its codec, storage and interceptors stay in force. `task_queue`: the task queue of the
    workers, where runs start unless a start names another one (default: `PERDURE_TASK_QUEUE`, or `perdure`).

    ```python
    perdure = await Perdure.connect()
    print(await perdure.run(shopper, {"request": "Order three apples."}))
    ```
    """

    def __init__(self, client: Client, *, task_queue: str | None = None) -> None:
        self.client: Client = with_converter(client)
        """Temporal's own client: yours, with Perdure's JSON as its payloads."""
        self.task_queue: str = task_queue or in_force().task_queue
        """The task queue where runs start."""

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
        """Connect by Temporal's own settings: `TEMPORAL_ADDRESS`, `TEMPORAL_NAMESPACE`, `TEMPORAL_PROFILE`,
        `temporal.toml`, …

        Arguments take precedence over them. `address`: `host:port`. `tls`: yes or no, or your own certificates
        (default: yes with an `api_key`). `profile`: one of `temporal.toml`. `task_queue`: as of `Perdure`. `runtime`:
        the SDK's. `wait`: seconds to wait for the server and its namespace (0). `lazy`: connect at the first use, which
        then raises the errors. The next use restores a lost connection. Raises `ServerError` if no server
        answers, or if the settings cannot be read.

        ```python
        perdure = await Perdure.connect("localhost:7233", wait=60)
        ```
        """
        # R12.6, R19.10
        given = {"target_host": address, "namespace": namespace, "api_key": api_key, "tls": tls}
        options = {name: value for name, value in given.items() if value is not None} | ({"lazy": True} if lazy else {})

        def connected() -> Awaitable[Client]:
            return connect(runtime, profile=profile, **options)

        client = await (connect_with_retry(connected, wait) if wait > 0 and not lazy else connected())
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
        priority: Priority | None = None,
        source: str = "",
        callback: str | None = None,
    ) -> Run[T]:
        """Start a run of the agent. The start does not need a worker; the run waits for one.

        `input`: JSON, or a value that pydantic writes as JSON, with `Image` and `Media` for files (default: none).
        `id`: the run's id (default: the agent's name and a random part). `key`, in place of `id`: the sender's
        idempotency key. The same key of the same sender with the same agent, input, policy and prompt returns the run
        that exists; an adapter passes an `IdempotentStart`. `task_queue`: the queue of its workers. `approval`: this
        run's changes to the agent's policy; `prompt`: its changes to `config.prompt`. `sender`, `tenant`: on whose
        behalf it runs, for lists. `context`: more about the caller, an object or a value that pydantic writes as one.
        Tools read all three and no model does: pass only verified data. `priority`: 1 to 5; workers serve runs of a
        smaller number first (default: the agent's). `source`: the source of an input that others wrote, such as
        `!client:shop/github` (default: the user). `callback`: an http or https address. It receives the run's end as a
        signed webhook if the worker allows the host. Raises `InputError` for an input or a context that breaks its
        schema; `AgentError` for a policy that names a tool which the agent does not have, and for an invalid prompt;
        `DecisionError` for an invalid policy; `RunExistsError` for an id or key of another run; `RunError` for an invalid
        id, key or `callback`, and if agent and input are too large. In each case no run starts.

        ```python
        run = await perdure.start(shopper, {"request": "Order three apples."}, key="order-17", sender="ann")
        ```
        """
        # R2.3, R7.1, R10.19, R15.2, R24.10
        if key is not None and id is not None:
            raise RunError(f"give id={clip(repr(id), 60)} or key={clip(repr(key), 60)}, not both: a key names the run")
        if key is not None:
            run_id = key.run_id if isinstance(key, IdempotentStart) else IdempotentStart.id_of(tenant, sender, key)
        else:
            run_id = run_operations.new_run_id(agent.parsed) if id is None else id
        agent = agent.version_for(run_id, tenant=tenant or "")
        agent.check_policy()
        with media_met() as files:
            value = agent.check_input(input)
        await MediaStore(self.client.data_converter, tenant or "").save(files)
        known = agent.check_context(context)
        change: JsonObject = {**(approval or {})}
        parse_policy(change)
        wishes: JsonObject = {**(prompt or {})}
        prompt_change = written_keys(parse_prompt(wishes))
        start_content: list[Json] = [agent.name, None if value is MISSING else [value], change, prompt_change]
        start_content += [known] if known else []
        start_content += [callback] if callback else []
        wanted = (
            key
            if isinstance(key, IdempotentStart)
            else IdempotentStart.of(tenant, sender, key, start_content)
            if key is not None
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
                    run_id=run_id,
                    task_queue=task_queue or self.task_queue,
                    approval=change,
                    prompt=prompt_change,
                    sender=sender,
                    tenant=tenant,
                    context=known,
                    priority=check_priority(priority),
                    delegates=agent.delegates(),
                    memo=None if wanted is None else wanted.memo(),
                    source=source,
                    callback=callback,
                )
            except RunExistsError:
                if wanted is None:
                    raise
                return self._run(await wanted.find_run_id(self.client), agent)
        return self._run(handle.id, agent)

    @property
    def stores_media(self) -> bool:
        """Whether there is storage for files: `PERDURE_STORAGE`, or that of your own client."""
        return MediaStore(self.client.data_converter).is_there

    async def load_media(self, value: Media | Json, *, tenant: str = "") -> Media:
        """Return a file with its bytes, from an output, a result, or a text that contains the file's line.

        `tenant`: the owner of the run that had the file. Raises `MediaError` for a value that is not a file, and for a
        file that is not stored for this tenant.

        ```python
        chart = await perdure.load_media(await run.result())
        print(chart.name, len(chart.read()))
        ```
        """
        # R20.3
        found = value.value if isinstance(value, Media) else next(media_within(value), None)
        if found is None:
            raise MediaError(f"expected a file, {{'_media': 'sha256:…', …}}; got {clip(repr(value), 80)}")
        file = media_without_bytes(found)
        await MediaStore(self.client.data_converter, tenant).load([file])
        return file

    async def save_media(self, *files: Media, tenant: str = "") -> list[Json]:
        """Store files, and return their values. `start` and `send` store files themselves.

        `tenant`: the owner of the runs that may read them. Raises `MediaError` for files that are too large together, and
        without storage.

        ```python
        [chart] = await perdure.save_media(Image("chart.png"))
        ```
        """
        # R20.3
        await MediaStore(self.client.data_converter, tenant).save(files)
        return [file.value.as_json() for file in files]

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
        callback: str | None = None,
        priority: Priority | None = None,
        timeout: float | None = None,
    ) -> T:
        """Start a run and return its output: `start`, then `Run.result`, with their parameters and errors.

        `timeout`: seconds (default: no limit); the run continues after them.

        ```python
        print(await perdure.run(shopper, {"request": "Order three apples."}, timeout=60))
        ```
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
            callback=callback,
            priority=priority,
        )
        return await started.result(timeout)

    @overload
    def get_run(self, id: str) -> Run[Any]: ...

    @overload
    def get_run(self, id: str, agent: Agent[T]) -> Run[T]: ...

    def get_run(self, id: str, agent: Agent[Any] | None = None) -> Run[Any]:
        """Return a run that was started before, by any client. With its `agent` its output has the agent's type.
        Nothing is queried.

        ```python
        run = perdure.get_run("order-17")
        ```
        """
        return self._run(id, agent)

    async def find_run(self, id: str, *, tenant: str = "") -> Run[Any]:
        """Return a run of this tenant (`""`: of none): one that was started for it, or that runs below such a run.
        Raises `RunNotFoundError` for a run of another tenant, as if there were none.

        ```python
        run = await perdure.find_run("order-17", tenant="acme")
        ```
        """
        # R10.2
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
        priority: Priority | None = None,
        task_queue: str | None = None,
    ) -> Session:
        """Return the session of a key: a conversation that outlives its runs. Nothing is queried; the first message
        begins the session.

        `tenant`: the authenticated tenant, never the caller's claim; another tenant does not find the session. `agent`:
        the agent that answers. An existing session needs none, and another agent than before needs the right `agent`.
        `mode`, `cap`, `quiet`, `priority`: the session's own rules from its beginning on, in place of its agent's. Raises
        `ProtocolError` for invalid rules, and `InputError` for an invalid priority.

        ```python
        session = perdure.session("ann", agent=shopper, mode="steer")
        ```
        """
        # R10.2, R10.4, R10.8, R24.3
        priority = check_priority(priority)
        try:
            rules = SessionRules(mode=mode, cap=cap, quiet=quiet, priority=priority)
        except ValidationError as error:
            raise ProtocolError(f"the session's rules are not valid: {first_problem(error)}") from None
        queue = task_queue or self.task_queue
        return self._session(Address(self.client, key, tenant), agent, rules, queue)

    def session_of(self, run_id: str) -> Session:
        """Return the session of a run, from the run's id. Nothing is queried. Raises `RunNotFoundError` for a run
        without a session.

        ```python
        session = perdure.session_of(receipt.run_id or "")
        ```
        """
        id, _, number = run_id.partition("/")
        if not id.startswith(SESSION_PREFIX) or not number:
            raise RunNotFoundError(f"{run_id!r} is not a run of a session")
        return self._session(Address(self.client, id, known=id))

    async def find_session_of(self, run_id: str, *, tenant: str = "") -> Session:
        """Return the session of a run, if it belongs to the tenant. Raises `RunNotFoundError` if it does not, as if
        there were none.

        ```python
        session = await perdure.find_session_of(receipt.run_id or "", tenant="acme")
        ```
        """
        # R10.2
        session = self.session_of(run_id)
        with clear_errors(self.client, run_id):
            await check_owner(self.client, session.id, tenant, asked=run_id)
        return self._session(Address(self.client, session.id, tenant, known=session.id))

    async def events(
        self, id: str, from_: str | None = None, topics: Iterable[str] | None = None, *, tenant: str = ""
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of a run, by its id, or of a session, by its key (of this `tenant`) or its id; see
        `Run.events` and `Session.events`.

        Raises `RunNotFoundError` if there is neither.

        ```python
        async for event in perdure.events("order-17", topics=["tool"]):
            print(event.phase, event.data)
        ```
        """
        with clear_errors(self.client, id):
            session = await self._session_of(id, tenant)
            found = (self._run(id) if session is None else session).events(from_, topics)
            async with aclosing(found) as events:
                async for event in events:
                    yield event

    async def _session_of(self, id: str, tenant: str) -> Session | None:
        """Return the session of this id or key; `None`: it is a run's. Raises `RPCError` if neither exists."""
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
        """Yield the sessions of a tenant, the most recently active first. The server's index is a moment late; no
        session is queried.

        ```python
        async for listed in perdure.list_sessions(tenant="acme"):
            print(listed.session)
        ```
        """
        with clear_errors(self.client):
            async with aclosing(listing.walk_sessions(self.client, tenant)) as found:
                async for each in found:
                    yield each

    async def page_of_sessions(self, *, tenant: str = "", size: int, page: str | None = None) -> SessionPage:
        """Return one page of sessions. `size`: sessions on a page. `page`: `following` of the page before.

        ```python
        page = await perdure.page_of_sessions(size=20)
        ```
        """
        with clear_errors(self.client):
            return await listing.list_sessions(self.client, tenant, size=size, page=page)

    async def list_tenants(self) -> list[str]:
        """Return the tenants of all runs and sessions, in alphabetical order.

        ```python
        print(await perdure.list_tenants())
        ```
        """
        with clear_errors(self.client):
            return await listing.list_tenants(self.client)

    async def list_runs(
        self, selection: Selection | None = None, *, limit: int | None = None
    ) -> AsyncGenerator[ListedRun, None]:
        """Yield the selected runs (default: all), newest first, at most `limit`. The server's index is a moment late.

        No run is queried: a list costs no Action. Raises `RunError` for a selection that cannot be listed.

        ```python
        async for listed in perdure.list_runs(Selection(status="failed"), limit=10):
            print(listed.id)
        ```
        """
        with clear_errors(self.client):
            async with aclosing(listing.walk_runs(self.client, selection or Selection(), limit)) as runs:
                async for run in runs:
                    yield run

    async def page_of_runs(self, selection: Selection, *, size: int, page: str | None = None) -> RunPage:
        """Return one page of runs. `size`: runs on a page. `page`: `following` of the page before.

        ```python
        page = await perdure.page_of_runs(Selection(), size=20)
        following = await perdure.page_of_runs(Selection(), size=20, page=page.following)
        ```
        """
        with clear_errors(self.client):
            return await listing.list_runs(self.client, selection, size=size, page=page)

    async def count_runs(self, selection: Selection) -> int:
        """Return the number of selected runs, without a list of them. A run that was reset counts once for each
        execution that the server still has. Raises as `list_runs` does.

        ```python
        print(await perdure.count_runs(Selection(status="running")))
        ```
        """
        with clear_errors(self.client):
            return await listing.count_runs(self.client, selection)

    async def erase(
        self,
        *,
        tenant: str = "",
        sender: str | None = None,
        before: datetime | None = None,
        dry_run: bool = False,
        shared: bool = False,
        by: str = "",
    ) -> ErasureReport:
        """Remove the runs and sessions of a person, or old ones, from Temporal and from external storage. This cannot be undone.

        `tenant`: the owner of the data (`""`: no tenant). `sender`: the person (default: everybody). `before`: only
        runs that ended, and sessions that were last used, before this time (default: all, which needs a `sender`).
        `dry_run`: change nothing, and report what would be removed. `shared`: also remove whole sessions to which
        others have written (default: they stay). `by`: the person who erases, for the audit log. Running runs are
        terminated, and sessions end. A second call removes the data that an interrupted attempt has left. Raises
        `RunError` without `sender` and `before`, and `ProtocolError` for a time without a time zone.

        ```python
        report = await perdure.erase(tenant="acme", sender="ann", by="bob")
        print(report.sessions, len(report.runs), report.remaining)
        ```
        """
        # R24.5
        with clear_errors(self.client):
            return await erase(
                self.client, self.task_queue, tenant, sender or None, before, dry_run=dry_run, shared=shared, by=by
            )

    async def apply_retention(self, *, dry_run: bool = False, by: str = "") -> list[ErasureReport]:
        """Erase data that is older than the setting `retention` allows. Return a report for each tenant that had such data.

        `dry_run`: change nothing, and report what would be removed. `by`: the person who erases, for the audit log.
        A tenant whose erasure fails has `remaining` in its report; the others are erased. Raises `RunError` if the setting
        names no tenant.

        ```python
        for report in await perdure.apply_retention(dry_run=True):
            print(report.tenant, report.before, len(report.runs))
        ```
        """
        # R24.5
        with clear_errors(self.client):
            return await apply_retention(self.client, self.task_queue, dry_run=dry_run, by=by)

    async def import_session(
        self, exported: Json, *, key: str | None = None, tenant: str | None = None, task_queue: str | None = None
    ) -> Session:
        """Start a session from an export of `Session.export`, with its transcript, state, agent, rules, known messages and files.

        `exported`: the export. `key`, `tenant`: those of the new session (default: those of the export). `task_queue`: its task queue
        (default: that of this client). A message that is sent again is recognised. The histories of earlier runs stay where they ran.
        Raises `RunExistsError` if the key has a session, `RunError` for a value that is not an export of a session, and
        `MediaError` if files cannot be stored.

        ```python
        session = await perdure.import_session(json.loads(Path("ann.json").read_text()))
        print(await session.ask("And the pears?", sender="ann"))
        ```
        """
        # R24.5
        from perdure.client.exports import Exported, import_session  # imports the workflows, for a replay

        parsed, queue = Exported.parse(exported), task_queue or self.task_queue
        owner = parsed.tenant if tenant is None else tenant
        address = await import_session(self.client, parsed, key or parsed.session or "", owner, queue)
        return self._session(address, None, SessionRules(), queue)

    async def import_run(self, exported: Json, *, id: str | None = None, task_queue: str | None = None) -> Run[Any]:
        """Restore a run from an export of `Run.export`, as a run of this namespace that can be shown, forked and promoted.

        The restored run answers each Request and each call from the record. It calls no model, runs no tool and waits
        for no person. It has no effects to undo: undo the exported run, where it ran. A run that did not complete fails where its record ends, with its reason. Workers must have its
        tools.

        `exported`: the export. `id`: the id of the restored run (default: that of the export). `task_queue`: its task queue (default: that
        of this client). Raises `RunExistsError` for an id of another run, and `RunError` for a value that is not an export of a run.

        ```python
        run = await perdure.import_run(json.loads(Path("order-17.json").read_text()))
        print(await run.result())
        ```
        """
        # R24.5
        from perdure.client.exports import Exported, import_run  # imports the workflows, for a replay

        parsed = Exported.parse(exported)
        name = id or parsed.run or ""
        with clear_errors(self.client, name):
            handle = await import_run(self.client, parsed, name, task_queue or self.task_queue)
        return self._run(handle.id)

    async def key_uses(self, query: str | None = None) -> list[KeyUse]:
        """Return the encryption keys that histories, stored values and files need, each with its executions and the end of their retention.

        `query`: only these workflows, in the language of Temporal's lists (default: all workflows, and files). Each history and each stored
        value is read, and none is decoded. Raises `RunError` where values are in an external storage that is not set here.

        ```python
        print([use.key for use in await perdure.key_uses() if use.open])
        ```
        """
        # R24.9
        with clear_errors(self.client):
            return await key_uses(self.client, query)

    async def rewrite_keys(self) -> KeyRewrite:
        """Rewrite the values of sessions, their segments, ledgers and audit logs, and stored files, under the codec's newest key.

        Workflows continue as new. A session with a running run does so when it is idle. Earlier histories need their
        keys until their retention is over. Raises `RunError` without a codec, and for a codec that does not name its
        key.

        ```python
        print((await perdure.rewrite_keys()).remaining)
        ```
        """
        # R24.9
        with clear_errors(self.client):
            return await rewrite_keys(self.client)

    async def compare_versions(
        self, agent: str, *, since: str | None = None, tenant: str | None = None, limit: int = 1000
    ) -> list[VersionFigures]:
        """Return the figures of each version of an agent from its runs: outcomes, tokens, cost, time, and scores. No
        run is queried.

        `agent`: its name. `since`: only runs that started since then (`7d`). `tenant`: only that tenant's. `limit`: the
        most runs, newest first. Raises as `list_runs` does.

        ```python
        for each in await perdure.compare_versions("shopper", since="7d"):
            print(each.version, each.runs, each.completed, each.cost)
        ```
        """
        # R24.10
        chosen = Selection(agent=agent, since=since, tenant=tenant)
        with clear_errors(self.client):
            async with aclosing(listing.walk_runs(self.client, chosen, limit)) as runs:
                return await compare(runs, walk_scores(self.client, chosen, limit))

    async def what_if(
        self,
        selection: Selection | None = None,
        *,
        policy: ApprovalOptions | JsonObject | None = None,
        rules: Iterable[Rule | JsonObject] | None = None,
        agent: Agent[Any] | None = None,
        model: str | None = None,
        ids: Iterable[str] = (),
        limit: int = 500,
        on_run: Callable[[RunReport], None] = lambda _: None,
    ) -> WhatIfReport:
        """Play recorded runs again under a change, without effects, and return the differences.

        Results of tools come from the records. The result of a call that was never made is unknown, and so are all
        values that depend on it. `selection`: the runs, the newest `limit` of them (default: all). `ids`: runs by id,
        in its place. `policy`: the approval policy in place of the agent's. `rules`: the rules in place of the agent's.
        Changes of policy and rules call no model. `agent`: another agent. `model`: the model of all Requests. With an
        agent or a model, this process sends Requests that differ from the recorded ones to the model: it needs
        `OPENAI_API_KEY`, or the key of the model's provider. `on_run` receives each report as it is ready. Raises
        `RunError` for runs that cannot be listed, `DecisionError` for a policy that is not valid, `AgentError` for such
        rules, and `JsonError` for rules that are not JSON.

        ```python
        report = await perdure.what_if(Selection(agent="refunds", since="30d"), policy={"ask": "unsafe"})
        print(report.added, report.removed, report.refused)
        ```
        """
        from perdure.client.what_if import what_if  # imports the workflows, for a replay

        change = Change(
            policy=None if policy is None else dict(policy),
            rules=None if rules is None else to_json(list(rules), source="the rules"),
            agent=None if agent is None else agent.document(),
            model=model,
        )
        with clear_errors(self.client):
            return await what_if(self.client, change, selection, ids=list(ids), limit=limit, on_run=on_run)

    async def evaluate(
        self,
        agent: Agent[Any],
        dataset: str | Path | Dataset[Any, Any, Any],
        *,
        models: Iterable[str] = (),
        evaluators: Iterable[Json] = (),
        repeat: int = 1,
        parallel: int = 8,
        timeout: float = 3600.0,
        decide: Decide = "reject",
        tenant: str | None = None,
        id: str | None = None,
    ) -> Evaluation:
        """Run an agent over the cases of a dataset, and score each run. The evaluation is a workflow: it continues
        without this process.

        `dataset`: a file, a folder, `module:name`, or a `Dataset` of `pydantic-evals`. `models`: models to compare
        (default: the agent's own). `evaluators`: evaluators of all cases beside the dataset's, as its files name them.
        `repeat`: runs of each case and model (1). `parallel`: runs at a time (8). `timeout`: seconds of one run, waits
        for people included (3,600). `decide`: the decision about calls that need approval: `reject` (default),
        `approve`, or `wait` for a person. `tenant`: the runs' tenant. `id`: the evaluation's id. The same id with the
        same cases returns the evaluation that exists. Raises `SettingsError` for a dataset that cannot be evaluated,
        and `RunExistsError` for an id of another evaluation.

        ```python
        evaluation = await perdure.evaluate(shopper, "cases/", models=["gpt-4o", "gpt-4o-mini"], repeat=5)
        for row in (await evaluation.wait()).totals():
            print(row.model, row.rate.rate, row.cost)
        ```
        """
        # R22.3
        return await start_evaluation(
            self.client,
            agent,
            dataset,
            task_queue=self.task_queue,
            models=models,
            evaluators=evaluators,
            repeat=repeat,
            parallel=parallel,
            timeout=timeout,
            decide=decide,
            tenant=tenant,
            id=id,
        )

    def get_evaluation(self, id: str) -> Evaluation:
        """Return an evaluation by its id. It makes no request.

        ```python
        result = await perdure.get_evaluation("eval-refunds-4f1c").wait()
        ```
        """
        return Evaluation(self.client, id)

    async def cancel_runs(self, selection: Selection, *, on_run: listing.OnRun = lambda _: None) -> int:
        """Cancel all selected runs that are running, as `Run.cancel` does, and return their number. `on_run` receives
        the id of each. Raises as `list_runs` does.

        ```python
        await perdure.cancel_runs(Selection(agent="shopper"))
        ```
        """
        with clear_errors(self.client):
            return await listing.cancel_runs(self.client, selection, on_run)

    async def terminate_runs(
        self, selection: Selection, *, reason: str = "", on_run: listing.OnRun = lambda _: None
    ) -> int:
        """Terminate all selected runs that are running, as `Run.terminate` does, and return their number. `on_run`
        receives the id of each. Raises as `list_runs` does.

        ```python
        await perdure.terminate_runs(Selection(agent="shopper"), reason="wrong release")
        ```
        """
        with clear_errors(self.client):
            return await listing.terminate_runs(self.client, selection, reason, on_run)

    async def change_policies(
        self, selection: Selection, *, on_run: listing.OnRun = lambda _: None, **change: Unpack[ApprovalOptions]
    ) -> int:
        """Change the approval policy of all selected runs that are running, also if no worker answers now, and return
        their number. `on_run` receives the id of each. Raises as `list_runs` does, and `DecisionError` for an invalid
        policy.

        ```python
        await perdure.change_policies(Selection(agent="shopper"), ask="always")
        ```
        """
        changed: JsonObject = {**change}
        parse_policy(changed)  # nobody would receive the error of an invalid signal
        with clear_errors(self.client):
            return await listing.change_policies(self.client, selection, changed, on_run)

    async def approvals(self, *, size: int = PAGE, page: str | None = None, tenant: str | None = None) -> WaitingPage:
        """Return one page of approval requests across the namespace, also if no worker answers. The server's index is a
        moment late.

        `size`: runs on a page. `page`: `following` of the page before. `tenant`: only its runs; `""`: only runs without
        a tenant. Raises `RunError` if the namespace cannot list them.

        ```python
        for row in (await perdure.approvals()).waiting:
            await perdure.get_run(row.run_id).approve(row.entry, by="ann")
        ```
        """
        # R7.8
        with clear_errors(self.client):
            return await approvals.list_waiting(self.client, size=size, page=page, tenant=tenant)

    def schedule(self, name: str, *, tenant: str = "", task_queue: str | None = None) -> Schedule:
        """Return the schedule of this name: runs of an agent at fixed times. It makes no request.

        `tenant`: its owner; other tenants find no such schedule. `task_queue`: the queue of its runs' workers. Raises
        `ScheduleError` for an invalid name.

        ```python
        await perdure.schedule("nightly").create("reporter", cron="0 4 * * *", timezone="Europe/Berlin")
        ```
        """
        # R19.6
        return Schedule(self.client, name, tenant=tenant, task_queue=task_queue or self.task_queue)

    async def list_schedules(self, *, tenant: str = "") -> AsyncGenerator[ListedSchedule, None]:
        """Yield the schedules of a tenant, or those without a tenant. The server's index is a moment late.

        ```python
        async for schedule in perdure.list_schedules():
            print(schedule.name, schedule.next[:1])
        ```
        """
        async with aclosing(walk_schedules(self.client, tenant)) as found:
            async for each in found:
                yield each

    async def limits(self, *, tenant: str = "") -> list[AccountView]:
        """Return the usage of all runs of a tenant, today or this month, for the rules that count over runs.

        An account exists from its first use on. It needs a worker that answers for the tenant's ledger.

        ```python
        for account in await perdure.limits(tenant="acme"):
            print(account.title, account.used, account.limit)
        ```
        """
        # R23.1
        with clear_errors(self.client):
            return await self._read_ledger(tenant, list_accounts)

    async def _read_ledger(self, tenant: str, read: Callable[[Client, str], Awaitable[list[T]]]) -> list[T]:
        try:
            return await read(self.client, tenant)
        except RPCError as error:
            if error.status is not RPCStatusCode.FAILED_PRECONDITION:
                raise
            id = ledger_id(tenant)
            raise await unanswered(self.client, id, no_answer(error, id)) from None

    async def grant_standing_approval(
        self,
        procedure: Agent[Any],
        *,
        uses: int,
        until: str | date,
        by: str,
        bounds: JsonObject | None = None,
        sources: Sequence[str] = ("trusted",),
        name: str | None = None,
        reason: str = "",
        tenant: str = "",
    ) -> StandingApproval:
        """Approve coming runs of a procedure: their calls need no further approval as long as the run follows its plan.

        `uses`: the most runs, 1 to 1,000. `until`: a date, to its end in UTC, or a time, in Python or as ISO 8601. `by`: the person
        who grants it. `bounds`: a JSON Schema of the run's input (default: any). `sources`: the allowed sources of the
        calls' values, beside the procedure itself (default: all trusted ones). `name`: its name (default: the
        procedure's). `tenant`: the owner of the runs. Raises `DecisionError` for an agent that is not a procedure and
        for invalid bounds, `ProtocolError` for a time without a time zone, and `DecisionRefusedError` if a valid approval has this name.

        ```python
        procedure = await perdure.get_run("refund-7").promote("monthly_refunds")
        monthly = Agent.of(procedure.agent)
        limit = {"properties": {"euros": {"maximum": 100}}}
        await perdure.grant_standing_approval(monthly, uses=12, until="2027-12-31", by="ann", bounds=limit)
        ```
        """
        # R23.3
        wanted = approvals.standing_approval_of(
            procedure.document(),
            uses=uses,
            until=until,
            by=by,
            bounds=bounds or {},
            sources=sources,
            name=name,
            reason=reason,
        )
        with clear_errors(self.client):
            return await approvals.grant_standing_approval(self.client, tenant, self.task_queue, wanted)

    async def standing_approvals(self, *, tenant: str = "") -> list[StandingApproval]:
        """Return the standing approvals of a tenant, the newest first, also those that are no longer valid.

        It needs a worker that answers for the tenant's ledger.

        ```python
        for standing in await perdure.standing_approvals(tenant="acme"):
            print(standing.name, standing.status, standing.left)
        ```
        """
        with clear_errors(self.client):
            return await self._read_ledger(tenant, list_standing_approvals)

    async def revoke_standing_approval(self, name: str, *, by: str = "", tenant: str = "") -> StandingApproval:
        """Revoke a standing approval, and return it. Later calls wait for a person, also in runs that use it. For five seconds a run
        may still use its last answer.

        Raises `RunNotFoundError` if no standing approval has this name.

        ```python
        await perdure.revoke_standing_approval("monthly_refunds", by="ann")
        ```
        """
        with clear_errors(self.client):
            return await approvals.revoke_standing_approval(self.client, tenant, self.task_queue, name, by)

    async def has_worker(self, task_queue: str | None = None) -> bool:
        """Whether a worker takes new runs from the task queue (default: this object's). A worker that has stopped
        counts for 90 s. A worker of a version that is neither current nor ramping takes none.

        ```python
        if not await perdure.has_worker():
            print("start a worker")
        ```
        """
        with clear_errors(self.client):
            return not await find_missing_worker(self.client, task_queue or self.task_queue)

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
