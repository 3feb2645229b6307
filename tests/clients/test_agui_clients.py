"""CopilotKit's client and runtime between a page and the gateway (R17.3): `make test-clients`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

from tests.clients.test_clients import installed
from tests.clients.test_mcp_clients import node
from tests.gateway.test_agui import PAYS, played

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.clients]


async def test_copilotkits_runtime(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    installed("copilotkit")
    async with played(dev_server.client, tmp_path, PAYS) as it:
        code, out, err = await node("copilotkit/page.mjs", it.served.address, it.tokens[0])
        shown = it.it.model.requests[0].shown
    assert code == 0, err
    assert json.loads(out) == {
        "asked": ["pay amount 5: pay is dangerous"],
        "last": "paid 5",
        "state": {"receipt": "paid 5"},
    }
    assert '# data of the page: The open page\n\n{"shoes":"red"}' in shown


async def test_a_tool_of_copilotkits_page(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    """CopilotKit's core carries the call out and sends the result by itself; the next message does not send it again."""
    installed("copilotkit")
    script = [
        {"calls": [{"_tool": "read_cart", "of": "ann", "_outputPath": "†state.cart"}]},
        {"calls": [], "output": "{†state.cart.fruit}"},
        {"calls": [], "output": "You are welcome."},
    ]
    async with played(dev_server.client, tmp_path, script) as it:
        code, out, err = await node("copilotkit/tools.mjs", it.served.address, it.tokens[0])
        requests = len(it.it.model.requests)
    assert code == 0, err
    assert json.loads(out) == {"calls": [{"of": "ann"}], "texts": ["apple", "You are welcome."]}
    assert requests == 3
