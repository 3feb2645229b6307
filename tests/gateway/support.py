"""What tests of the gateway share: one over real HTTP, tokens, and agents in a folder."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from temporalio.client import Client

from perdure.client.perdure import Perdure
from perdure.gateway import create_app
from perdure.gateway.adapter import AdapterMaker, Gateway
from perdure.gateway.callers import FORM, new_token
from perdure.gateway.http_server import serve_app
from perdure.hosting.settings import Settings, load, replace_settings
from tests.timeouts import HANG


@dataclass
class Served:
    """A gateway, and what is sent to it."""

    address: str
    gateway: Gateway
    http: httpx2.AsyncClient


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def write_agents(folder: Path, *documents: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for document in documents:
        (folder / f"{document['name']}.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


def write_tokens(path: Path, *who: tuple[str, str, Iterable[str]]) -> list[str]:
    """A file of tokens, of (tenant, sender, rights); the tokens."""
    made = [new_token(*each) for each in who]
    entries = [entry.model_dump(mode="json", exclude_none=True) for _, entry in made]
    path.write_text(json.dumps({"tokens": entries}), encoding="utf-8")
    return [text for text, _ in made]


def secret_of(token: str) -> str:
    """The part of a token that nobody may see. It may hold `_` itself."""
    found = FORM.fullmatch(token)
    assert found is not None
    return found[2]


@asynccontextmanager
async def gateway(
    client: Client | None, adapters: Iterable[AdapterMaker], *, task_queue: str = "none", **given: Any
) -> AsyncIterator[Served]:
    """One on this machine; `given` are settings. Without a `client` no route may need one."""
    settings: Settings = replace_settings(load(), given)
    perdure = Perdure(client, task_queue=task_queue) if client is not None else None
    app = create_app(perdure, settings, adapters)  # type: ignore[arg-type]
    found: Gateway = app.state.gateway
    async with (
        serve_app(app, "gateway", "127.0.0.1", 0, stopping=found.stopping.set, grace=5.0) as address,
        httpx2.AsyncClient(base_url=address, timeout=HANG) as http,
    ):
        yield Served(address, found, http)


def some_name(prefix: str = "s") -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"
