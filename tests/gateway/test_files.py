"""Files in clients' messages, in each protocol's form: stored once, and shown to a model that reads them (R20.3)."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from temporalio.testing import WorkflowEnvironment

from perdure.gateway.agui.adapter import agui_adapter
from perdure.gateway.ai_sdk.adapter import ai_sdk_adapter
from perdure.gateway.files import fetched_problem
from perdure.gateway.openai.adapter import openai_adapter
from tests.gateway.openai_support import EVERYTHING, SHOPPER, says
from tests.gateway.support import Served, bearer, gateway, some_name, write_agents, write_tokens
from tests.support import Harness, harness, storage_fixture
from tests.timeouts import HANG
from tests.workflows.test_media import PDF, PNG, connect, pictures, stored

pytestmark = pytest.mark.asyncio(loop_scope="session")
storage = storage_fixture()

IMAGE, DOCUMENT = (base64.b64encode(data).decode() for data in (PNG, PDF))
IMAGE_URL, DOCUMENT_URL = f"data:image/png;base64,{IMAGE}", f"data:application/pdf;base64,{DOCUMENT}"


@asynccontextmanager
async def serving(
    server: WorkflowEnvironment, folder: Path, script: Any, more: dict[str, Any] | None = None
) -> AsyncIterator[tuple[Served, Harness, str]]:
    [token] = write_tokens(folder / "tokens.json", EVERYTHING)
    agents = write_agents(folder / "agents", SHOPPER | (more or {}))
    given: dict[str, Any] = {"agents": agents, "gateway_tokens": folder / "tokens.json"}
    client = await connect(server)
    async with (
        harness(client, [], script, agents=agents) as it,
        gateway(client, [openai_adapter, agui_adapter, ai_sdk_adapter], task_queue=it.task_queue, **given) as served,
    ):
        yield served, it, token


BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "responses": (
        "/v1/responses",
        {"model": "shopper"}
        | {"input": [{"role": "user", "content": [
            {"type": "input_text", "text": "What is it?"},
            {"type": "input_image", "image_url": IMAGE_URL},
            {"type": "input_file", "filename": "b.pdf", "file_data": DOCUMENT_URL},
        ]}]},
    ),
    "chat": (
        "/v1/chat/completions",
        {"model": "shopper"}
        | {"messages": [{"role": "user", "content": [
            {"type": "text", "text": "What is it?"},
            {"type": "image_url", "image_url": {"url": IMAGE_URL}},
            {"type": "file", "file": {"filename": "b.pdf", "file_data": DOCUMENT_URL}},
        ]}]},
    ),
    "ag-ui": (
        "/ag-ui/shopper",
        {"threadId": "", "runId": "r", "state": {}, "tools": [], "context": [], "forwardedProps": {}}
        | {"messages": [{"id": "m", "role": "user", "content": [
            {"type": "text", "text": "What is it?"},
            {"type": "image", "source": {"type": "data", "value": IMAGE, "mimeType": "image/png"}},
            {"type": "document", "source": {"type": "data", "value": DOCUMENT, "mimeType": "application/pdf"}, "metadata": {"filename": "b.pdf"}},
        ]}]},
    ),
    "ai-sdk": (
        "/ai-sdk/shopper",
        {"id": ""}
        | {"messages": [{"id": "m", "role": "user", "parts": [
            {"type": "text", "text": "What is it?"},
            {"type": "file", "mediaType": "image/png", "url": IMAGE_URL},
            {"type": "file", "mediaType": "application/pdf", "url": DOCUMENT_URL, "filename": "b.pdf"},
        ]}]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("protocol", BODIES)
async def test_r20_3_files_of_a_client_reach_the_model(
    dev_server: WorkflowEnvironment, tmp_path: Path, storage: Path, protocol: str
) -> None:
    path, body = BODIES[protocol]
    named = {key: some_name() for key in ("threadId", "id") if key in body}
    async with serving(dev_server, tmp_path, [says("A cat.")]) as (served, it, token):
        answer = await served.http.post(path, json=body | named, headers=bearer(token))
        [request] = it.model.requests
    assert (answer.status_code, "A cat." in answer.text) == (200, True), answer.text
    assert pictures(request) == ["data:image/png"]
    assert "What is it?" in request.text
    assert f"[application/pdf, {len(PDF):,} bytes, b.pdf, sha256:" in request.text
    assert len(stored(storage / "files")) == 2


async def test_r20_3_a_response_goes_on_with_a_file(
    dev_server: WorkflowEnvironment, tmp_path: Path, storage: Path
) -> None:
    script = [says("A cat."), says("Black.")]
    async with serving(dev_server, tmp_path, script) as (served, it, token):
        async with AsyncOpenAI(base_url=f"{served.address}/v1", api_key=token, max_retries=0, timeout=HANG) as ai:
            first = await ai.responses.create(**BODIES["responses"][1])
            second = await ai.responses.create(model="shopper", input="And its colour?", previous_response_id=first.id)
        last = it.model.requests[-1]
    assert (first.output_text, second.output_text) == ("A cat.", "Black.")
    assert pictures(last) == ["data:image/png"]
    assert len(stored(storage / "files")) == 2


@pytest.mark.usefixtures("storage")
@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "input_file", "file_data": "data:application/pdf;base64,!!"}, "input[0].content[0]: the file is not base64"),
        ({"type": "input_file", "file_url": "http://169.254.169.254/latest"}, "'input_file' is not a supported part"),
    ],
)  # fmt: skip
async def test_r20_3_a_file_that_is_none_is_refused(
    dev_server: WorkflowEnvironment, tmp_path: Path, part: dict[str, Any], words: str
) -> None:
    body = {"model": "shopper", "input": [{"role": "user", "content": [part]}]}
    async with serving(dev_server, tmp_path, []) as (served, _, token):
        answer = await served.http.post("/v1/responses", json=body, headers=bearer(token))
    assert answer.status_code in (400, 422)
    assert words in answer.json()["error"]["message"]


ADDRESSES = {
    "https://img.example.com/cat.png": True,
    "HTTPS://IMG.EXAMPLE.COM:8443?size=1": True,
    "https://a.pictures.example/x": True,
    "https://pictures.example/x": False,
    "http://169.254.169.254/latest": False,
    "https://img.example.com@evil.example/cat.png": False,
    "https://evil.example\\@img.example.com/cat.png": False,
    "https://evil.example#@img.example.com/": False,
    "https://img.example.com.evil.example/": False,
    "file:///etc/passwd": False,
    "gs://bucket/private.png": False,
    "https://img.example.com\n/": False,
    "": False,
    "data:image/png;base64,AAAA": True,
}


@pytest.mark.parametrize("address", ADDRESSES)
async def test_r20_3_a_picture_is_fetched_from_an_allowed_host_alone(address: str) -> None:
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": address}}]}]
    assert (fetched_problem(messages, ["img.example.com", "*.pictures.example"]) is None) == ADDRESSES[address]


@pytest.mark.parametrize("protocol", ["responses", "chat"])
async def test_r20_3_nothing_is_fetched_from_an_address_unless_the_agent_allows_its_host(
    dev_server: WorkflowEnvironment, tmp_path: Path, protocol: str
) -> None:
    async def post(folder: Path, address: str, hosts: list[str]) -> tuple[Any, Any]:
        part = (
            {"type": "input_image", "image_url": address}
            if protocol == "responses"
            else {"type": "image_url", "image_url": {"url": address}}
        )
        key = "input" if protocol == "responses" else "messages"
        text = {"type": "text" if protocol == "chat" else "input_text", "text": "What is it?"}
        body = {"model": "shopper", key: [{"role": "user", "content": [text, part]}]}
        async with serving(dev_server, folder, [says("A cat.")], {"config": {"image_hosts": hosts}}) as (
            served,
            it,
            token,
        ):
            answer = await served.http.post(BODIES[protocol][0], json=body, headers=bearer(token))
            return answer, it.model.requests

    address = "https://img.example.com/cat.png"
    refused, none = await post(tmp_path, address, [])
    taken, [request] = await post(tmp_path, address, ["*.example.com"])
    assert (refused.status_code, none) == (400, [])
    assert "allows no pictures from img.example.com" in refused.json()["error"]["message"]
    assert taken.status_code == 200
    assert pictures(request) == [address]


async def test_without_storage_files_are_refused(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    async with serving(dev_server, tmp_path, []) as (served, it, token):
        for protocol in ("responses", "chat", "ag-ui", "ai-sdk"):
            path, body = BODIES[protocol]
            answer = await served.http.post(path, json=body | {"id": "x", "threadId": "x"}, headers=bearer(token))
            assert answer.status_code in (400, 422), protocol
    assert it.model.requests == []
