"""A2A's clients over real HTTP, by the protocol's own library: tasks, streams, approvals, cancellation, tenants (R21.4)."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.client import Client, ClientConfig, create_client
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from a2a.utils.errors import A2AError
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value
from temporalio.client import Client as Temporal
from temporalio.testing import WorkflowEnvironment

from perdure import Media, tool
from perdure.gateway.a2a import a2a_adapter
from perdure.hosting.connection import data_converter
from perdure.testing.scripted_model import Script
from tests.gateway.support import Served, bearer, gateway, some_name, write_agents, write_tokens
from tests.gateway.test_agui import EVERYTHING, LEVELS, PAYS, SHOPPER, levels, pay
from tests.support import ROOT, Harness, harness, storage_fixture
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")
storage = storage_fixture()
WORKING, COMPLETED = TaskState.TASK_STATE_WORKING, TaskState.TASK_STATE_COMPLETED
ASKS = TaskState.TASK_STATE_INPUT_REQUIRED
WAITER: dict[str, Any] = {"name": "waiter", "context": [{"type": "tool", "tool": "wait"}]}
WAITS: list[Any] = [{"calls": [{"_tool": "wait"}]}, {"calls": [], "output": "never"}]


@tool
async def wait() -> str:
    await asyncio.Event().wait()
    return "waited"


def user(text: str | None = None, id: str = "", *, data: Any = None, **more: str) -> Message:
    part = Part(text=text) if data is None else Part(data=ParseDict(data, Value()))
    return Message(message_id=id or some_name("m"), role=Role.ROLE_USER, parts=[part], **more)


def history(task: Task) -> list[tuple[str, str]]:
    """Return who has sent which text."""
    senders = {Role.ROLE_USER: "user", Role.ROLE_AGENT: "agent"}
    return [(senders[message.role], message.parts[0].text) for message in task.history]


@dataclass
class Seen:
    """A task as a client has it after an answer."""

    task: Task = field(default_factory=Task)
    states: list[TaskState] = field(default_factory=list)
    message: Message | None = None
    pieces: int = 0

    def take(self, response: StreamResponse) -> None:
        if response.HasField("task"):
            self.task.CopyFrom(response.task)
        elif response.HasField("message"):
            self.message = response.message
        elif response.HasField("status_update"):
            self.task.status.CopyFrom(response.status_update.status)
        else:
            self.pieces += 1
            update = response.artifact_update
            if not update.append:
                del self.task.artifacts[:]
                self.task.artifacts.append(update.artifact)
            else:
                self.task.artifacts[0].parts.extend(update.artifact.parts)
        if not self.message and self.task.status.state not in self.states[-1:]:
            self.states.append(self.task.status.state)

    @property
    def text(self) -> str:
        return "".join(part.text for each in self.task.artifacts for part in each.parts)

    @property
    def requests(self) -> list[dict[str, Any]]:
        (data,) = [part.data for part in self.task.status.message.parts if part.HasField("data")]
        found: list[dict[str, Any]] = MessageToDict(data)["requests"]
        return found


@dataclass
class Agents:
    """What the agents of one gateway are to clients with tokens."""

    served: Served
    it: Harness
    tokens: list[str]
    http: list[httpx.AsyncClient]

    async def client(self, token: int = 0, agent: str = "shopper", *, streaming: bool = True) -> Client:
        return await create_client(
            f"{self.served.address}/a2a/{agent}", ClientConfig(streaming=streaming, httpx_client=self.http[token])
        )

    async def send(self, message: Message, token: int = 0, agent: str = "shopper", **more: Any) -> Seen:
        seen = Seen()
        client = await self.client(token, agent, streaming=more.pop("streaming", True))
        async for each in client.send_message(SendMessageRequest(message=message, **more)):
            seen.take(each)
        return seen


@asynccontextmanager
async def agents(
    client: Temporal,
    folder: Path,
    script: Script,
    who: Sequence[tuple[str, str, Sequence[str]]] = (EVERYTHING,),
    documents: Sequence[dict[str, Any]] = (SHOPPER, WAITER),
    settings: Mapping[str, Any] | None = None,
) -> AsyncIterator[Agents]:
    tokens = write_tokens(folder / "tokens.json", *who)
    files = write_agents(folder / "agents", *documents)
    given = {"agents": files, **(settings or {})}
    async with (
        harness(client, [pay, wait], script, **given) as it,
        gateway(
            client, [a2a_adapter], task_queue=it.task_queue, gateway_tokens=folder / "tokens.json", **given
        ) as served,
    ):
        http = [httpx.AsyncClient(headers=bearer(each), timeout=HANG) for each in tokens]
        try:
            yield Agents(served, it, tokens, http)
        finally:
            for each in http:
                await each.aclose()


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_context_is_a_session(dev_server: WorkflowEnvironment, tmp_path: Path, *, streaming: bool) -> None:
    script = [{"calls": [], "output": "Which colour?"}, {"calls": [], "output": "These."}]
    async with agents(dev_server.client, tmp_path, script) as it:
        shoes = user("Shoes.")
        first = await it.send(shoes, streaming=streaming)
        assert (first.text, first.task.status.state) == ("Which colour?", COMPLETED)
        assert first.states[-1:] == [COMPLETED]
        assert first.task.history[0].parts[0].text == "Shoes."
        # The same message again is the same task, also where the client has lost the answer with the context's id.
        again = await it.send(shoes, streaming=streaming)
        assert (again.task.id, again.task.context_id) == (first.task.id, first.task.context_id)
        assert (again.text, again.states, again.pieces) == (
            "Which colour?",
            [COMPLETED],
            0,
        )  # an ended task has no updates
        second = await it.send(user("Red ones.", context_id=first.task.context_id), streaming=streaming)
        assert (second.text, second.task.context_id) == ("These.", first.task.context_id)
        assert second.task.id != first.task.id
        assert len(it.it.model.requests) == 2
        assert "Which colour?" in it.it.model.requests[1].text
        client = await it.client()
        read = await client.get_task(GetTaskRequest(id=first.task.id))
        assert (read.status.state, read.artifacts[0].parts[0].text) == (COMPLETED, "Which colour?")
        assert read.context_id == first.task.context_id
        command = await it.send(user("/new", context_id=first.task.context_id), streaming=streaming)
        assert command.message is not None


async def test_the_card_names_the_agent_and_its_address(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with agents(dev_server.client, tmp_path, [], documents=[SHOPPER | {"description": "Sells shoes."}]) as it:
        answer = await it.http[0].get(f"{it.served.address}/a2a/shopper/.well-known/agent-card.json")
        card = answer.json()
        assert (card["name"], card["description"]) == ("shopper", "Sells shoes.")
        assert {each["url"] for each in card["supportedInterfaces"]} == {f"{it.served.address}/a2a/shopper"}
        assert card["capabilities"]["streaming"] is True
        assert "bearer" in card["securitySchemes"]
        assert card["url"] == f"{it.served.address}/a2a/shopper"  # as clients of version 0.3 read it
        newer = await it.http[0].get(str(answer.url), headers={"A2A-Version": "1.0"})
        assert newer.json()["securitySchemes"] == {"bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}}
        assert not {"url", "preferredTransport", "protocolVersion", "security"} & set(newer.json())
        none = await it.http[0].get(f"{it.served.address}/a2a/none/.well-known/agent-card.json")
        unknown = await it.served.http.get("/a2a/shopper/.well-known/agent-card.json")
        assert (none.status_code, unknown.status_code) == (404, 401)


async def test_an_output_streams_in_pieces(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    words = " ".join(f"word{at}" for at in range(400))
    async with agents(dev_server.client, tmp_path, [{"calls": [], "output": words}]) as it:
        seen = await it.send(user("Tell me."))
        assert seen.text == words
        assert seen.states == [TaskState.TASK_STATE_SUBMITTED, WORKING, COMPLETED] or seen.states == [
            WORKING,
            COMPLETED,
        ]


async def test_an_output_that_is_an_object_is_data(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
    documents = [SHOPPER | {"schema": schema}]
    async with agents(dev_server.client, tmp_path, [{"calls": [], "output": {"size": 42}}], documents=documents) as it:
        seen = await it.send(user("Which size?"))
        ((part,),) = [each.parts for each in seen.task.artifacts]
        assert MessageToDict(part.data) == {"size": 42}


@pytest.mark.parametrize(
    ("reply", "end", "kept"),
    [
        ("approve", "paid 5", "approve"),
        ("Reject: too much", "Not paid.", "reject: too much"),
        ("data", "paid 7", "edit"),
    ],
)
async def test_a_reply_decides(
    dev_server: WorkflowEnvironment, tmp_path: Path, reply: str, end: str, kept: str
) -> None:
    script = [PAYS[0], {"calls": [], "output": end} if end == "Not paid." else PAYS[1]]
    async with agents(dev_server.client, tmp_path, script) as it:
        first = await it.send(user("Pay."))
        assert first.states[-1] == ASKS
        assert "pay amount 5" in first.task.status.message.parts[0].text
        (request,) = first.requests
        assert (request["tool"], request["params"]) == ("pay", {"amount": 5})
        read = await (await it.client()).get_task(GetTaskRequest(id=first.task.id))
        assert read.status.state == ASKS
        edit = {"interrupt": request["interrupt"], "decision": "edit", "params": {"amount": 7}}
        about = {"task_id": first.task.id, "context_id": first.task.context_id}
        decision = user(data=edit, **about) if reply == "data" else user(reply, **about)
        done = await it.send(decision)
        assert (done.text, done.task.status.state, done.task.id) == (end, COMPLETED, first.task.id)
        late = await it.send(
            decision, streaming=False
        )  # sent again, it decides nothing, and is no message to the agent
        assert (late.text, len(it.it.model.requests)) == (end, 2)
        assert [role for role, _ in history(late.task)] == ["user", "agent", "user"]
        assert history(late.task)[-1] == ("user", kept)
        assert late.task.history[-1].message_id == decision.message_id


async def test_the_first_of_two_approvals_is_in_the_history(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    documents: Any = [SHOPPER | {"config": {"approval": {"tools": {"pay": {"by": 2}}}}}]
    async with agents(dev_server.client, tmp_path, PAYS, documents=documents) as it:
        first = await it.send(user("Pay."))
        decision = user("approve", task_id=first.task.id)
        seen = await it.send(decision)
        assert seen.task.status.state == ASKS
        assert history(seen.task)[1:] == [("agent", "pay amount 5"), ("user", "approve")]
        run = it.served.gateway.perdure.get_run(first.task.id)
        await run.approve("1.0", by="cleo")
        await run.result()
        read = await (await it.client()).get_task(GetTaskRequest(id=first.task.id))
        assert history(read)[1:] == [("agent", "pay amount 5"), ("user", "approve")]
        assert read.history[-1].message_id == decision.message_id


async def test_a_text_that_decides_nothing_is_refused_in_one_line(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    async with agents(dev_server.client, tmp_path, PAYS) as it:
        first = await it.send(user("Pay."))
        with pytest.raises(A2AError, match="must be 'approve', 'reject: WHY', or a data part"):
            await it.send(user("Perhaps.", task_id=first.task.id))
        with pytest.raises(A2AError, match="without the interrupt"):
            await it.send(user(data={"decision": "approve"}, task_id=first.task.id))
        assert (await it.send(user("yes", task_id=first.task.id))).text == "paid 5"


async def test_a_question_is_answered(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    asks = {"_tool": "ask_person", "question": "Which size?", "_outputPath": "†state.size"}
    script = [{"calls": [asks]}, {"calls": [], "output": "Size {†state.size}."}]
    async with agents(dev_server.client, tmp_path, script) as it:
        first = await it.send(user("Shoes."))
        assert (first.requests[0]["kind"], first.states[-1]) == ("question", ASKS)
        answer = user("42", task_id=first.task.id)
        done = await it.send(answer)
        assert done.text == "Size 42."
        client = await it.client()
        read = await client.get_task(GetTaskRequest(id=first.task.id))
        exchanged = [("user", "Shoes."), ("agent", "Which size?"), ("user", "42")]
        assert history(read) == history(done.task) == exchanged
        assert read.history[-1].message_id == answer.message_id
        assert len({message.message_id for message in read.history}) == len(exchanged)
        last = await client.get_task(GetTaskRequest(id=first.task.id, history_length=1))
        assert history(last) == exchanged[-1:]


async def test_a_request_of_a_delegate_is_decided(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with agents(dev_server.client, tmp_path, levels, documents=LEVELS) as it:
        seen = await it.send(user("Pay."))
        for amount in (1, 2):
            assert (seen.task.status.state, seen.requests[0]["params"]) == (ASKS, {"amount": amount})
            decision = user("approve", task_id=seen.task.id)
            seen = await it.send(decision)
            if amount == 1:
                seen = await it.send(decision)  # sent again, it does not decide the next request
        assert (seen.text, seen.task.status.state) == ("till: paid both", COMPLETED)
        read = await (await it.client()).get_task(GetTaskRequest(id=seen.task.id))
        asked = [("agent", "pay amount 1"), ("user", "approve"), ("agent", "pay amount 2"), ("user", "approve")]
        assert history(read) == [("user", "Pay."), *asked]


async def test_a_task_is_cancelled(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with agents(dev_server.client, tmp_path, WAITS) as it:
        client = await it.client(agent="waiter")
        seen = Seen()
        cancelled = None
        async with aclosing(client.send_message(SendMessageRequest(message=user("Wait.")))) as updates:
            async for each in updates:
                seen.take(each)
                if each.status_update.metadata.fields and cancelled is None:  # the call runs
                    cancelled = await client.cancel_task(CancelTaskRequest(id=seen.task.id))
        assert seen.states[-1] == TaskState.TASK_STATE_CANCELED
        assert cancelled is not None
        assert cancelled.status.state == TaskState.TASK_STATE_CANCELED
        with pytest.raises(A2AError):
            await client.cancel_task(CancelTaskRequest(id=seen.task.id))
        with pytest.raises(A2AError, match="has ended"):
            await anext(client.subscribe(SubscribeToTaskRequest(id=seen.task.id)))
        with pytest.raises(A2AError, match="the task has ended: leave out taskId"):
            await it.send(user("And now?", task_id=seen.task.id), agent="waiter")


async def test_a_message_that_the_task_does_not_accept_begins_no_run(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    who = (EVERYTHING, ("acme", "bob", ["read", "send"]))
    async with agents(dev_server.client, tmp_path, WAITS, who) as it:
        at_once = {"return_immediately": True}
        first = await it.send(user("Wait."), agent="waiter", streaming=False, configuration=at_once)
        message = user("And now?", task_id=first.task.id)
        for _ in range(2):  # also sent again
            with pytest.raises(A2AError, match="'bob' does not have the rights of"):
                await it.send(message, 1, "waiter")
        session = it.served.gateway.perdure.session(first.task.context_id, tenant="acme")
        assert not (await session.show()).queue


async def test_a_client_that_comes_back_follows_its_task(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with agents(dev_server.client, tmp_path, PAYS) as it:
        at_once = {"return_immediately": True}
        first = await it.send(user("Pay."), streaming=False, configuration=at_once)
        assert first.task.status.state in (TaskState.TASK_STATE_SUBMITTED, WORKING, ASKS)
        client = await it.client()
        followed = Seen()
        async for each in client.subscribe(SubscribeToTaskRequest(id=first.task.id)):
            followed.take(each)
        assert (followed.task.id, followed.states[-1]) == (first.task.id, ASKS)
        async with aclosing(client.subscribe(SubscribeToTaskRequest(id=first.task.id))) as updates:
            assert history((await anext(updates)).task) == [("user", "Pay.")]
        assert (await it.send(user("approve", task_id=first.task.id))).text == "paid 5"


async def test_tasks_are_listed(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    script = [{"calls": [], "output": f"Answer {at}."} for at in range(3)]
    who = [(some_name("tenant"), "ann", ["*"]), (some_name("tenant"), "bob", ["*"])]
    async with agents(dev_server.client, tmp_path, script, who) as it:
        client = await it.client()
        sent = [await it.send(user("One.")), await it.send(user("Two."))]
        sent.append(await it.send(user("More.", context_id=sent[0].task.context_id)))
        ids = {each.task.id for each in sent}

        async def listed(**wanted: Any) -> set[str]:
            found = await client.list_tasks(ListTasksRequest(**wanted))
            return {task.id for task in found.tasks}

        async with asyncio.timeout(HANG):
            while await listed() != ids:  # the server's index comes later  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert await listed(context_id=sent[0].task.context_id) == {sent[0].task.id, sent[2].task.id}
        assert await listed(status=COMPLETED) == ids
        assert await listed(status=ASKS) == set()
        first = await client.list_tasks(ListTasksRequest(page_size=2, include_artifacts=True))
        rest = await client.list_tasks(ListTasksRequest(page_size=2, page_token=first.next_page_token))
        assert [len(page.tasks) for page in (first, rest)] == [2, 1]
        assert first.tasks[0].artifacts
        assert not rest.tasks[0].artifacts
        assert not any(task.history for page in (first, rest) for task in page.tasks)
        told = await client.list_tasks(ListTasksRequest(history_length=1))
        assert {text for task in told.tasks for _, text in history(task)} == {"One.", "Two.", "More."}
        other = await it.client(1)
        assert not (await other.list_tasks(ListTasksRequest())).tasks


async def test_another_tenant_and_another_agent_have_no_such_task(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    who = (EVERYTHING, ("other", "bob", ["*"]), ("acme", "eve", ["read"]), ("acme", "sam", ["read", "send"]))
    async with agents(dev_server.client, tmp_path, PAYS, who) as it:
        first = await it.send(user("Pay."))
        for token, agent in ((1, "shopper"), (0, "waiter")):
            client = await it.client(token, agent)
            with pytest.raises(A2AError, match="the task does not exist"):
                await client.get_task(GetTaskRequest(id=first.task.id))
            with pytest.raises(A2AError, match="the task does not exist"):
                await it.send(user("approve", task_id=first.task.id), token, agent)
        waiting = await (await it.client()).get_task(GetTaskRequest(id=first.task.id))
        assert waiting.status.state == ASKS  # a refused decision has decided nothing
        reader, sender = await it.client(2), await it.client(3)
        with pytest.raises(A2AError, match="the right 'send' is missing"):
            await it.send(user("Pay."), 2)
        with pytest.raises(A2AError, match="the right 'stop' is missing"):
            await reader.cancel_task(CancelTaskRequest(id=first.task.id))
        # Who may not approve is not asked: to them the task works.
        assert (await sender.get_task(GetTaskRequest(id=first.task.id))).status.state == WORKING


async def test_the_script_of_the_docs_runs(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "gateway" / "a2a.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    async with agents(dev_server.client, tmp_path, PAYS) as it:
        path = tmp_path / "ask.py"
        path.write_text(script.replace("order-1", some_name("order")), encoding="utf-8")
        about = {"PERDURE_TOKEN": it.tokens[0], "PERDURE_GATEWAY": it.served.address}
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(path), env={**os.environ, **about}, stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(HANG):
            out, _ = await process.communicate()
        assert "pay amount 5" in out.decode()


WRONG: list[tuple[Message, str]] = [
    (Message(message_id="m", role=Role.ROLE_AGENT, parts=[Part(text="x")]), "role must be the user's"),
    (Message(message_id="m" * 201, role=Role.ROLE_USER, parts=[Part(text="x")]), "messageId must have 1 to 200"),
    (Message(message_id="m", role=Role.ROLE_USER, parts=[Part(text=" ")]), "parts have no text"),
    (
        Message(message_id="m", role=Role.ROLE_USER, parts=[Part(url="https://example.com/a.png")]),
        "text, data or files",
    ),
    (Message(message_id="m", task_id="none", role=Role.ROLE_USER, parts=[Part(text="x")]), "the task does not exist"),
]


async def test_wrong_input_is_one_line(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with agents(dev_server.client, tmp_path, []) as it:
        for message, words in WRONG:
            with pytest.raises(A2AError, match=words):
                await it.send(message, streaming=False)
        address = f"{it.served.address}/a2a/shopper"
        version = {"A2A-Version": "1.0"}

        async def code(body: str) -> int:
            answer = await it.http[0].post(
                address, content=body, headers=version | {"content-type": "application/json"}
            )
            found: int = answer.json()["error"]["code"]
            return found

        assert await code("{") == -32700
        part = '{"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"data": %s}]}}}'
        for value in ('{"data": NaN}', '{"data": 1e999}', "[" * 3_000 + "]" * 3_000):
            assert await code(part % value) == -32700
        assert await code("[]") == -32600
        assert await code('{"jsonrpc": "2.0", "id": 1, "method": "Nothing"}') == -32601
        assert await code('{"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": 1}}') == -32602
        card = '{"jsonrpc": "2.0", "id": 1, "method": "GetExtendedAgentCard", "params": {}}'
        assert await code(card) == -32007
        assert (await it.served.http.post("/a2a/shopper", json={})).status_code == 401
        assert (await it.http[0].post(f"{it.served.address}/a2a/none", json={})).status_code == 404


PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


@pytest.mark.usefixtures("storage")
@pytest.mark.parametrize("streaming", [True, False])
async def test_files_go_in_and_come_out(dev_server: WorkflowEnvironment, tmp_path: Path, *, streaming: bool) -> None:
    client = await Temporal.connect(
        dev_server.client.service_client.config.target_host, data_converter=data_converter()
    )
    picture = Media(data=PNG, name="a.png")
    script = [{"calls": [], "output": f"Here it is: {picture.value.line}"}]
    async with agents(client, tmp_path, script) as it:
        message = user("Copy this:")
        message.parts.append(Part(raw=PNG, filename="a.png", media_type="text/html"))
        seen = await it.send(message, streaming=streaming)
        (request,) = it.it.model.requests
        card = (await it.http[0].get(f"{it.served.address}/a2a/shopper/.well-known/agent-card.json")).json()
        listed = await (await it.client()).list_tasks(
            ListTasksRequest(context_id=seen.task.context_id, include_artifacts=True)
        )
    assert picture.value.line in request.text
    (artifact,) = seen.task.artifacts
    assert (artifact.parts[-1].raw, artifact.parts[-1].media_type, artifact.parts[-1].filename) == (
        PNG,
        "image/png",
        "a.png",
    )
    assert [part.WhichOneof("content") for part in artifact.parts].count("raw") == 1
    assert card["defaultInputModes"] == ["text/plain", "application/json", "*/*"]
    assert [part.WhichOneof("content") for part in listed.tasks[0].artifacts[0].parts] == ["text"]


@pytest.mark.usefixtures("storage")
async def test_a_file_that_cannot_be_taken_is_one_line(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    linked = Message(message_id="m", role=Role.ROLE_USER, parts=[Part(url="https://img.example/a.png")])
    raw = Message(message_id="m", role=Role.ROLE_USER, parts=[Part(raw=PNG)])
    stored = await Temporal.connect(
        dev_server.client.service_client.config.target_host, data_converter=data_converter()
    )
    async with agents(stored, tmp_path, []) as it:
        with pytest.raises(A2AError, match="text, data or files, not a part of the kind 'url'"):
            await it.send(linked, streaming=False)
    (tmp_path / "none").mkdir()
    async with agents(dev_server.client, tmp_path / "none", []) as it:
        with pytest.raises(A2AError, match="this gateway has no storage for files"):
            await it.send(raw, streaming=False)


async def test_clients_of_the_version_before_are_answered(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with agents(dev_server.client, tmp_path, PAYS) as it:
        address = f"{it.served.address}/a2a/shopper"

        async def call(method: str, **params: Any) -> dict[str, Any]:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            found: dict[str, Any] = (await it.http[0].post(address, json=body)).json()
            return found

        message = {
            "kind": "message",
            "messageId": some_name("m"),
            "role": "user",
            "parts": [{"kind": "text", "text": "Pay."}],
        }
        task = (await call("message/send", message=message))["result"]
        assert (task["kind"], task["status"]["state"]) == ("task", "input-required")
        reply = message | {"messageId": "m2", "taskId": task["id"], "parts": [{"kind": "text", "text": "approve"}]}
        done = (await call("message/send", message=reply))["result"]
        assert (done["status"]["state"], done["artifacts"][0]["parts"][0]["text"]) == ("completed", "paid 5")
        assert (await call("tasks/get", id="none"))["error"]["code"] == -32001
        del message["messageId"]
        words = "Invalid params: is missing at $.params.message.messageId"
        assert (await call("message/send", message=message))["error"] == {"code": -32602, "message": words}
        bodies: list[dict[str, Any]] = [
            {"jsonrpc": "2.0", "id": {}, "method": "message/send", "params": {}},
            {"jsonrpc": "1.0", "id": 1, "method": "message/send", "params": {}},
            {"jsonrpc": "2.0", "id": 1, "method": 5},
        ]
        answers = [(await it.http[0].post(address, json=body)).json() for body in bodies]
        assert [each["error"]["code"] for each in answers] == [-32600, -32600, -32600]
