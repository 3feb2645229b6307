"""A memo that this process cannot read has the default (R7.8)."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowExecution
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import PayloadCodec
from temporalio.testing import WorkflowEnvironment

from perdure import NoWorkerError, Perdure
from perdure.approvals.requests import WaitingEntry, WaitingMemo
from perdure.encryption import AesGcm
from perdure.models.requests import ModelWait
from perdure.queries import read_memo
from perdure.runs.ledger import LEDGER_WORKFLOW, ledger_id
from perdure.runs.wire import AGENT_WORKFLOW
from perdure.values.json import Timestamp

pytestmark = pytest.mark.asyncio(loop_scope="session")

NOW = "2026-11-29T10:00:00.000+00:00"
OWN, OTHER = AesGcm({"own": b"k" * 32}), AesGcm({"other": b"o" * 32})


class Raising(PayloadCodec):
    """A codec that decodes nothing."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        raise RuntimeError(f"no key service for {len(payloads)} payloads")


async def connect(server: WorkflowEnvironment, codec: PayloadCodec | None) -> Client:
    converter = dataclasses.replace(pydantic_data_converter, payload_codec=codec)
    return await Client.connect(server.client.service_client.config.target_host, data_converter=converter)


async def described(client: Client, run_id: str) -> WorkflowExecution:
    return await client.get_workflow_handle(run_id).describe()


async def test_r7_8_a_memo_is_read_or_has_the_default(dev_server: WorkflowEnvironment) -> None:
    own, run_id = await connect(dev_server, OWN), f"memo-{uuid.uuid4().hex[:8]}"
    memo = {"count": 3, "words": "three"}
    handle = await own.start_workflow(AGENT_WORKFLOW, id=run_id, task_queue=f"nobody-{run_id}", memo=memo)
    try:
        found = await described(own, run_id)
        assert await read_memo(found, "count", 0, int) == 3
        assert await read_memo(found, "words", "", str) == "three"
        assert await read_memo(found, "missing", 7, int) == 7
        assert await read_memo(found, "words", 7, int) == 7  # of another type
        for codec in (OTHER, Raising(), None):
            foreign = await described(await connect(dev_server, codec), run_id)
            assert await read_memo(foreign, "count", 0, int) == 0
    finally:
        await handle.terminate()


async def test_r7_8_a_memo_with_a_text_in_place_of_a_time_has_the_default(dev_server: WorkflowEnvironment) -> None:
    run_id, calls = (
        f"memo-{uuid.uuid4().hex[:8]}",
        [WaitingEntry(call="1.0", tool="t", reason="", requested_at=NOW, digest="")],
    )
    waiting = WaitingMemo(agent="x", calls=calls).as_json()
    wait = ModelWait(model="m", reason="503", since=NOW).as_json()
    memo: dict[str, Any] = {"waiting": waiting, "wait": wait, "time": NOW}
    memo["other waiting"] = json.loads(json.dumps(waiting).replace(NOW, "yesterday"))
    memo |= {"other wait": wait | {"since": "yesterday"}, "other time": "yesterday"}
    handle = await dev_server.client.start_workflow(AGENT_WORKFLOW, id=run_id, task_queue=f"nobody-{run_id}", memo=memo)
    try:
        found = await described(dev_server.client, run_id)
        for key, kind in (("waiting", WaitingMemo), ("wait", ModelWait), ("time", Timestamp)):
            assert await read_memo(found, key, None, kind) is not None
            assert await read_memo(found, f"other {key}", None, kind) is None
    finally:
        await handle.terminate()


async def test_r18_8_a_ledger_without_a_worker_is_named_with_its_queue(dev_server: WorkflowEnvironment) -> None:
    tenant = uuid.uuid4().hex
    handle = await dev_server.client.start_workflow(
        LEDGER_WORKFLOW, id=ledger_id(tenant), task_queue=f"nobody-{tenant}"
    )
    try:
        for ask in (Perdure(dev_server.client).limits, Perdure(dev_server.client).standing_approvals):
            with pytest.raises(NoWorkerError, match=f"Start a worker on task queue 'nobody-{tenant}'"):
                await ask(tenant=tenant)
    finally:
        await handle.terminate()
