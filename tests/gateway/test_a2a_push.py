"""A2A's push notifications: signed, with the receiver's token, to permitted hosts alone, tried again (R21.4, R19.8)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.types import (
    AuthenticationInfo,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    SendMessageConfiguration,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import A2AError, InvalidParamsError, PushNotificationNotSupportedError, TaskNotFoundError
from standardwebhooks import Webhook
from temporalio.testing import WorkflowEnvironment

from perdure.testing.scripted_model import Script
from scripts.history_scenarios import reset_to_start
from tests.gateway.test_a2a import ASKS, COMPLETED, WAITER, WAITS, Agents, agents, user
from tests.gateway.test_agui import EVERYTHING, PAYS, SHOPPER
from tests.support import impatient
from tests.timeouts import HANG
from tests.workflows.test_notifications import SECRET, receiving

pytestmark = pytest.mark.asyncio(loop_scope="session")
impatient_server = impatient(60)
PUSHES: dict[str, Any] = {"callback_hosts": ("127.0.0.1",), "callback_secret": SECRET}


@asynccontextmanager
async def pushing(
    dev_server: WorkflowEnvironment,
    folder: Path,
    script: Script,
    who: Sequence[tuple[str, str, Sequence[str]]] = (EVERYTHING,),
    **settings: Any,
) -> AsyncIterator[Agents]:
    settings = settings or PUSHES
    async with agents(dev_server.client, folder, script, who, [SHOPPER, WAITER], settings=settings) as it:
        yield it


def states(got: list[tuple[dict[str, str], bytes]]) -> list[str]:
    return [json.loads(body)["statusUpdate"]["status"]["state"] for _, body in got]


async def test_a_receiver_learns_that_a_task_waits_and_that_it_has_ended(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    # The first answer is 503: what was not taken comes again.
    async with receiving(503) as (receiver, url), pushing(dev_server, tmp_path, PAYS) as it:
        config = TaskPushNotificationConfig(
            url=f"{url}/hook",
            token="mine",
            authentication=AuthenticationInfo(scheme="Bearer", credentials="theirs"),
        )
        configuration = SendMessageConfiguration(task_push_notification_config=config)
        first = await it.send(user("Pay."), configuration=configuration)
        assert first.states[-1] == ASKS
        await receiver.until(2)
        done = await it.send(user("approve", task_id=first.task.id, context_id=first.task.context_id))
        assert done.states[-1] == COMPLETED
        await receiver.until(3)
    asked, ended = "TASK_STATE_INPUT_REQUIRED", "TASK_STATE_COMPLETED"
    assert states(receiver.got) == [asked, asked, ended]
    keys = [headers["webhook-id"] for headers, _ in receiver.got]
    assert keys[0] == keys[1] != keys[2]
    for headers, body in receiver.got:
        assert Webhook(SECRET).verify(body, headers) == json.loads(body)
        assert (headers["x-a2a-notification-token"], headers["authorization"]) == ("mine", "Bearer theirs")
        update = json.loads(body)["statusUpdate"]
        assert (update["taskId"], update["contextId"]) == (first.task.id, first.task.context_id)


async def test_configs_of_a_task_are_those_of_their_sender(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    who = [EVERYTHING, ("acme", "bob", ["read", "stop"]), ("other", "eve", ["*"])]
    async with receiving() as (receiver, url), pushing(dev_server, tmp_path, WAITS, who) as it:
        configuration = SendMessageConfiguration(return_immediately=True)
        task = (await it.send(user("Wait."), agent="waiter", streaming=False, configuration=configuration)).task
        clients = [await it.client(token, "waiter") for token in range(3)]
        ann, bob, eve = clients
        shopper = await it.client(agent="shopper")
        named = TaskPushNotificationConfig(id="one", task_id=task.id, url=f"{url}/one")
        assert await ann.create_task_push_notification_config(named) == named
        gone = await ann.create_task_push_notification_config(
            TaskPushNotificationConfig(task_id=task.id, url=f"{url}/gone")
        )
        assert gone.id
        of_bob = TaskPushNotificationConfig(id="one", task_id=task.id, url=f"{url}/bob")
        await bob.create_task_push_notification_config(of_bob)
        listed = ListTaskPushNotificationConfigsRequest(task_id=task.id)
        assert [each.url for each in (await bob.list_task_push_notification_configs(listed)).configs] == [of_bob.url]
        read = await ann.get_task_push_notification_config(
            GetTaskPushNotificationConfigRequest(task_id=task.id, id="one")
        )
        assert read == named
        for call in (
            eve.create_task_push_notification_config(named),
            eve.list_task_push_notification_configs(listed),
            shopper.create_task_push_notification_config(named),  # the task is another agent's
            shopper.list_task_push_notification_configs(listed),
            ann.get_task_push_notification_config(GetTaskPushNotificationConfigRequest(task_id=task.id, id="none")),
        ):
            with pytest.raises(TaskNotFoundError):
                await call
        await ann.delete_task_push_notification_config(
            DeleteTaskPushNotificationConfigRequest(task_id=task.id, id=gone.id)
        )
        await bob.cancel_task(CancelTaskRequest(id=task.id))
        await receiver.until(2)
        late = TaskPushNotificationConfig(id="late", task_id=task.id, url=f"{url}/late")
        await ann.create_task_push_notification_config(late)  # it learns the end, which was before it
        await receiver.until(3)
    assert states(receiver.got) == ["TASK_STATE_CANCELED"] * 3
    assert sorted(headers["path"] for headers, _ in receiver.got[:2]) == ["/bob", "/one"]
    assert receiver.got[2][0]["path"] == "/late"


@pytest.mark.parametrize(
    ("settings", "url", "error", "words"),
    [
        (PUSHES, "https://evil.example.com/x", InvalidParamsError, "the host evil.example.com is not allowed"),
        (PUSHES, "file:///etc/passwd", InvalidParamsError, "must be an http or https URL"),
        ({"callback_hosts": ()}, "http://127.0.0.1/x", PushNotificationNotSupportedError, ""),
    ],
)
async def test_other_hosts_are_refused_before_the_message_is_sent(
    dev_server: WorkflowEnvironment,
    tmp_path: Path,
    settings: dict[str, Any],
    url: str,
    error: type[A2AError],
    words: str,
) -> None:
    async with pushing(dev_server, tmp_path, [], **settings) as it:
        config = TaskPushNotificationConfig(url=url)
        configuration = SendMessageConfiguration(task_push_notification_config=config)
        with pytest.raises(error, match=words):
            await it.send(user("Pay."), streaming=False, configuration=configuration)
        card = await it.http[0].get(f"{it.served.address}/a2a/shopper/.well-known/agent-card.json")
        assert card.json()["capabilities"]["pushNotifications"] is bool(settings["callback_hosts"])
        assert it.it.model.requests == []


async def test_a_client_of_0_3_gets_a_task(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with receiving() as (receiver, url), pushing(dev_server, tmp_path, [{"calls": [], "output": "Hi."}]) as it:
        message = {"kind": "message", "messageId": "m1", "role": "user", "parts": [{"kind": "text", "text": "Hi."}]}
        params = {"message": message, "configuration": {"pushNotificationConfig": {"url": f"{url}/old", "token": "t"}}}
        sent = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params}
        answer: httpx.Response = await it.http[0].post(f"{it.served.address}/a2a/shopper", json=sent)
        task = answer.json()["result"]
        await receiver.until(1)
    headers, body = receiver.got[0]
    assert headers["x-a2a-notification-token"] == "t"
    pushed = json.loads(body)
    assert (pushed["kind"], pushed["id"], pushed["contextId"]) == ("task", task["id"], task["contextId"])
    assert pushed["status"]["state"] == "completed" == task["status"]["state"]


async def test_pushes_go_on_when_the_session_continues_as_new(
    impatient_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    def answer(_: Any) -> Any:
        return {"calls": [], "output": "Here."}

    async with receiving() as (receiver, url), pushing(impatient_server, tmp_path, answer) as it:
        config = TaskPushNotificationConfig(id="mine", url=f"{url}/hook")
        configuration = SendMessageConfiguration(task_push_notification_config=config)
        first = (await it.send(user("0."), configuration=configuration)).task
        for number in range(1, 6):
            await it.send(user(f"{number}.", context_id=first.context_id), configuration=configuration)
        await receiver.until(6)
        session = it.served.gateway.perdure.client.get_workflow_handle(first.id.rpartition("/")[0])
        described = await session.describe()
        assert described.run_id != described.raw_description.workflow_execution_info.first_run_id
        client = await it.client()
        known = await client.get_task_push_notification_config(
            GetTaskPushNotificationConfigRequest(task_id=first.id, id="mine")
        )
        assert known.url == config.url
    assert states(receiver.got) == ["TASK_STATE_COMPLETED"] * 6
    tasks = [json.loads(body)["statusUpdate"]["taskId"] for _, body in receiver.got]
    assert len({*tasks}) == len({headers["webhook-id"] for headers, _ in receiver.got}) == 6


async def test_a_receiver_learns_another_end_after_a_reset(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    """The same end is not sent again."""
    answers = iter([*WAITS[:1], {"calls": [], "output": "Done."}, {"calls": [], "output": "Done."}])
    async with receiving() as (receiver, url), pushing(dev_server, tmp_path, lambda _: next(answers)) as it:
        config = TaskPushNotificationConfig(id="mine", url=f"{url}/hook")
        configuration = SendMessageConfiguration(task_push_notification_config=config, return_immediately=True)
        task = (await it.send(user("Wait."), agent="waiter", streaming=False, configuration=configuration)).task
        client = await it.client(agent="waiter")
        await client.cancel_task(CancelTaskRequest(id=task.id))
        await receiver.until(1)
        temporal = it.served.gateway.perdure.client
        session = temporal.get_workflow_handle(task.id.rpartition("/")[0])
        for ended in (2, 2):
            await reset_to_start(temporal, session)
            await it.served.gateway.perdure.get_run(task.id).waited(HANG)
            await receiver.until(ended)
    assert states(receiver.got) == ["TASK_STATE_CANCELED", "TASK_STATE_COMPLETED"]
