"""Servers for the tests: real ones, each started once per test process."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Generator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from hypothesis import settings
from temporalio.testing import WorkflowEnvironment

from perdure.activities import secrets
from perdure.hosting.sdk_internals import hide_loops
from perdure.hosting.server import embedded_server
from perdure.queries import add_attributes
from perdure.runs.wire import ATTRIBUTES
from perdure.testing._servers import DEV_SETTINGS, serve
from tests.support import CHROMIUM, ImpatientServers
from tests.timeouts import HANG

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext

# Time limits belong to the machine, not to the rules under test; a hang is caught by pytest's own timeout.
settings.register_profile("suite", deadline=None, max_examples=100)
settings.load_profile("suite")
# A shell that runs the suite in the background has it ignore Ctrl+C, and so would every program that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Let no client over HTTP read the machine's certificates, in 0.03 s of CPU time each: no server of the suite has one.

    Programs that a soak test fetches from a registry need them.
    """
    hide_loops()  # as a worker does: clients that a test leaves open are collected in any later test
    if config.option.markexpr == "not soak and not clients":
        os.environ.pop("SSL_CERT_FILE", None)
        os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)
    # Dev servers collect their garbage a twentieth as often, up to so much memory, and run on one core each: a third less of their CPU time.
    for name, value in (("GOGC", "2000"), ("GOMEMLIMIT", "1GiB"), ("GOMAXPROCS", "1")):
        os.environ.setdefault(name, value)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Load all tests without the garbage collector, a third of that CPU time; then take them out of its sight, as a worker does."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _no_settings_from_outside(no_perdure_settings: None) -> None:
    del no_perdure_settings


@pytest.fixture(autouse=True)
def _no_secrets_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a process forget the secrets that a test has it keep: a text that ends as one of them begins is held back."""
    monkeypatch.setattr(secrets, "_known", set(secrets._known))


@pytest.fixture(autouse=True)
def _slow_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the program of an MCP server start slowly, as on a busy machine. Only some tests load the module."""
    if (connection := sys.modules.get("perdure.activities.mcp_connection")) is not None:
        monkeypatch.setattr(connection, "CONNECT_TIMEOUT", HANG)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def dev_server() -> AsyncIterator[WorkflowEnvironment]:
    """A dev server: lists workflows, keeps real time. It knows all search attributes from its first run on, whichever test that is."""
    # A queue's statistics are those of now, and not those of up to five seconds before.
    settings = DEV_SETTINGS | {
        "matching.TaskQueueInfoByBuildIdTTL": "1ms",
        "system.numConsecutiveWorkflowTaskProblemsToTriggerSearchAttribute": 2,  # otherwise a run is marked after five
    }
    async with embedded_server(ui=False, settings=settings) as server:
        await add_attributes(server.client, list(ATTRIBUTES))
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def impatient_servers() -> AsyncIterator[ImpatientServers]:
    servers = ImpatientServers()
    yield servers
    await servers.stop_all_but(0)


@pytest_asyncio.fixture(loop_scope="function")
async def time_skipping() -> AsyncIterator[WorkflowEnvironment]:
    """A server whose clock jumps ahead whenever nothing but time is waited for."""
    async with AsyncExitStack() as stack:
        yield await serve(stack, "time-skipping")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def _chromium() -> AsyncIterator[Browser]:
    from playwright.async_api import async_playwright, expect

    expect.set_options(timeout=HANG * 1000)  # five seconds are too few for a slow machine
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--renderer-process-limit=1"]
        )
        new_context = started.new_context

        async def patient(**options: Any) -> BrowserContext:
            context = await new_context(**options)
            context.set_default_timeout(
                HANG * 1000
            )  # thirty seconds for a click or a page are too few for a slow machine
            return context

        started.new_context = patient  # type: ignore[method-assign]
        yield started
        await started.close()


@pytest_asyncio.fixture(loop_scope="session")
async def browser(_chromium: Browser) -> AsyncIterator[Browser]:
    """Headless Chromium, started once per test process; what a test has opened is closed after it."""
    yield _chromium
    for context in _chromium.contexts:
        await context.close()
