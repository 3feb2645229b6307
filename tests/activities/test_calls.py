"""The activity of a tool's call."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import uuid
from collections.abc import Sequence

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.converter import PayloadCodec
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, tool
from perdure.hosting.connection import data_converter, with_perdure_converter
from perdure.testing import run_locally
from tests.support import DONE, agent, harness
from tests.timeouts import HANG


@tool(retries=0)
def in_a_thread() -> None:
    sys.exit("no such option")


@tool(retries=0)
async def on_the_loop() -> None:
    sys.exit("no such option")


@tool(retries=1)
async def with_retries() -> None:
    sys.exit("no such option")


@pytest.mark.parametrize("program", [in_a_thread, on_the_loop, with_retries])
async def test_a_tool_that_exits_fails_and_its_worker_goes_on(program: object) -> None:
    name = str(getattr(program, "__name__", ""))
    script = [{"calls": [{"_tool": name, "_outputPath": "†state.x"}]}, {"calls": [], "output": "so"}]
    async with run_locally(Agent("a", tools=[program]), model=script, server="dev") as local:
        view = await (await local.start()).wait()
    assert view.output == "so"
    words = "the code tried to end its program: SystemExit(no such option)"
    assert view.calls[0].error == {"code": "SystemExit", "message": words}


RECEIPT = "receipt 4711"


class Unreliable(PayloadCodec):
    """A codec whose key service is away for some values with a receipt."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        if self.failures and any(RECEIPT.encode() in payload.data for payload in payloads):
            self.failures -= 1
            raise ConnectionError("no key service")
        return list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize(("failures", "error"), [(3, None), (1_000_000, "result_not_stored")])
async def test_r12_3_a_result_that_cannot_be_encoded_is_tried_again_and_its_tool_is_not(
    failures: int, error: str | None, retries: int
) -> None:
    paid = []

    @tool(retries=retries, timeout=5)
    def pay() -> str:
        paid.append(True)
        return RECEIPT

    codec = Unreliable(failures)
    converter = with_perdure_converter(dataclasses.replace(data_converter(), payload_codec=codec))
    script = [{"calls": [{"_tool": "pay", "_outputPath": "†state.receipt"}]}, {"calls": [], "output": "so"}]
    agent = Agent("a", tools=[pay])
    async with run_locally(agent, model=script, server="dev", data_converter=converter) as local:
        view = await (await local.start()).wait()
    [call] = view.calls
    assert (len(paid), (call.error or {}).get("code")) == (1, error)
    assert error is None or "pay has run, but its result could not be stored" in str(call.error)
    assert (call.attempts, call.carried_out) == (1, error is not None)


class Stuck(Unreliable):
    """A codec whose key service never answers for values with a receipt. `asked`: set once it was asked."""

    def __init__(self) -> None:
        super().__init__(0)
        self.asked = asyncio.Event()

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        if any(RECEIPT.encode() in payload.data for payload in payloads):
            self.asked.set()
            await asyncio.Event().wait()
        return list(payloads)


@pytest.mark.parametrize("interrupts", [False, True])
async def test_a_call_whose_result_is_being_stored_at_the_end_of_its_attempt_or_worker_is_not_repeated(
    dev_server: WorkflowEnvironment, interrupts: bool
) -> None:
    paid, codec = [], Stuck()

    @tool(retries=2, timeout=60 if interrupts else 1)
    def pay() -> str:
        paid.append(True)
        return RECEIPT

    address, queue = dev_server.client.service_client.config.target_host, f"test-{uuid.uuid4().hex[:8]}"
    converter = with_perdure_converter(dataclasses.replace(data_converter(), payload_codec=codec))
    client = await Client.connect(address, data_converter=converter)
    plan = {"calls": [{"_tool": "pay", "_outputPath": "†state.receipt"}]}
    async with harness(client, [pay], [plan, DONE], task_queue=queue, grace=0.0) as it:
        handle = await it.start(agent("pay"))
        await asyncio.wait_for(codec.asked.wait(), HANG)
        await (it.until_answered(handle.id) if interrupts else handle.result())
    async with harness(client, [pay], [DONE], task_queue=queue):
        [call] = (await handle.result()).calls
    assert (len(paid), call.attempts, call.carried_out) == (1, 1, True)
    assert (call.error or {})["code"] == "result_not_stored"
    words = "it was interrupted" if interrupts else "its attempt had no time left"
    assert f"pay has run, but its result could not be stored ({words})" in str(call.error)
