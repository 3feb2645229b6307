"""Fixtures for pytest, loaded in every run of it wherever Perdure is installed: nothing is imported until one is used (R14.3)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from perdure.testing._local import Local

_SETTINGS: Final = ("TEMPORAL_", "OPENAI_", "PERDURE_")


@pytest.fixture
def no_perdure_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the environment reaches a server, a model or a worker: no `TEMPORAL_…`, `OPENAI_…` or `PERDURE_…`."""
    for name in [name for name in os.environ if name.startswith(_SETTINGS)]:
        monkeypatch.delenv(name)


@pytest.fixture
def run_locally(no_perdure_settings: None) -> Callable[..., AbstractAsyncContextManager[Local]]:
    """`perdure.testing.run_locally`, with nothing of the environment."""
    from perdure.testing._local import run_locally

    del no_perdure_settings
    return run_locally


@pytest.fixture(scope="session")
def perdure_dev_server() -> Iterator[str]:
    """The address of a dev server for all tests of the session: `run_locally(agent, server=perdure_dev_server)`. It keeps real time."""
    from perdure.testing._servers import dev_server_in_thread

    with dev_server_in_thread() as address:
        yield address
