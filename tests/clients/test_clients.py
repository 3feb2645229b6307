"""OpenAI's clients that others wrote, each with the same scenarios against the gateway (R17.2): `make test-clients`."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from perdure.testing.scripted_model import ChatRequest
from tests.gateway.openai_support import Door, door, says

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.clients]

HERE: Final = Path(__file__).parent
CLIENTS: Final = HERE.parent.parent / ".venv-clients"
PYTHON: Final = {
    "openai-responses": "openai3",
    "openai-chat": "openai3",
    "agents-responses": "openai3",
    "agents-chat": "openai3",
    "langchain": "openai3",
    "pydantic-ai-chat": "openai3",
    "pydantic-ai-responses": "openai3",
    "litellm": "openai2",
    "llama-index": "openai2",
    "instructor": "openai2",
}
"""Client → its environment, by the version of `openai` that it goes with."""
NODE: Final = (
    "node-openai-responses",
    "node-openai-chat",
    "node-agents-responses",
    "node-agents-chat",
    "ai-sdk-responses",
    "ai-sdk-chat",
)
ANSWER: Final = "In Rome it is mild and sunny."
REASON: Final = "the last answer was not a valid output"
OWN_WORDS: Final = {"node-agents-responses": 'unsuccessful terminal state "response.failed"'}
"""What clients say of a failed response that do not pass on its reason."""
_MUST_CALL: Final = re.compile(r"has to make a call of (\w+)")

effects: list[str] = []
"""What the failing agent has done before it failed."""


@tool(dangerous=True, retries=0)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool(retries=0)
def note(text: str) -> str:
    """Write a note down."""
    effects.append(text)
    return "noted"


def agents() -> list[dict[str, Any]]:
    named = {each: [{"type": "system", "text": f"SCENARIO {each}."}] for each in ("text", "structured", "function")}
    named["approval"] = [{"type": "system", "text": "SCENARIO approval."}, {"type": "tool", "tool": "pay"}]
    named["failing"] = [{"type": "system", "text": "SCENARIO failing."}, {"type": "tool", "tool": "note"}]
    made: list[dict[str, Any]] = [{"name": name, "context": context} for name, context in named.items()]
    made[-1] |= {"config": {"max_requests": 2}, "schema": {"type": "object", "required": ["impossible"]}}
    return made


def answers(request: ChatRequest) -> dict[str, Any]:
    """Answer like a model that does what its agent is for."""
    text = request.text
    wanted = re.findall(r"SCENARIO (\w+)", text)[0]
    if wanted == "text":
        return says(ANSWER)
    if wanted == "structured":
        report = {"city": "Rome", "degrees": 21}
        named = _MUST_CALL.search(text)
        return says(report) if named is None else {"calls": [{"_tool": named[1], **report}]}
    if wanted == "function":
        call: dict[str, Any] = {"_tool": "get_weather", "city": "Rome", "_outputPath": "†state.rome"}
        return says(ANSWER) if "mild and sunny" in text else {"calls": [call]}
    if wanted == "approval":
        call = {"_tool": "pay", "amount": 5, "_outputPath": "†state.paid"}
        return says(ANSWER) if "paid 5" in text else {"calls": [call]}
    call = {"_tool": "note", "text": "began", "_outputPath": "†state.note"}
    return says("no object") if "noted" in text else {"calls": [call]}


def installed(environment: str) -> None:
    """Skip the test where an environment of `make clients` is not installed, unless it is required."""
    if not (CLIENTS / f".{environment}").exists() and os.environ.get("CLIENTS") != "required":
        pytest.skip(f"the environment {environment!r} is not installed: its registry did not answer `make clients`")


def command(client: str) -> list[str]:
    """Return the command of a client. Skips where it is not installed."""
    environment = PYTHON.get(client, "node")
    installed(environment)
    if environment == "node":
        return ["node", str(HERE / "scenarios.mjs"), client]
    return [str(CLIENTS / environment / "bin" / "python"), str(HERE / "scenarios.py"), client]


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def front(dev_server: WorkflowEnvironment, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Door]:
    """One gateway, with its worker and its model, for all clients: they come one after the other."""
    folder = tmp_path_factory.mktemp("clients")
    async with door(dev_server.client, folder, answers, agents=agents(), functions=[pay, note]) as it:
        yield it


@pytest.mark.parametrize("client", [*PYTHON, *NODE])
async def test_a_client(client: str, front: Door) -> None:
    effects.clear()
    process = await asyncio.create_subprocess_exec(
        *command(client),
        f"{front.served.address}/v1",
        front.tokens[0],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()[-3000:]
    found = json.loads(out.decode().splitlines()[-1])
    failed = found.pop("failing")
    assert found == {
        "text": ANSWER,
        "stream": ANSWER,
        "structured": {"city": "Rome", "degrees": 21},
        "function": ANSWER,
        "approval": ANSWER,
    }
    assert OWN_WORDS.get(client, REASON) in failed["error"], failed
    assert effects == ["began"], f"the failing agent ran {len(effects)} times"
