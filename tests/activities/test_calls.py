"""The activity of a tool's call."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

from perdure import Agent, tool
from perdure.hosting.connection import data_converter, with_perdure_converter
from perdure.testing import run_locally


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


@pytest.mark.parametrize(("failures", "error"), [(3, None), (1_000_000, "result_not_stored")])
async def test_r12_3_a_result_that_cannot_be_encoded_is_tried_again_and_its_tool_is_not(
    failures: int, error: str | None
) -> None:
    paid = []

    @tool(retries=0, timeout=5)
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
