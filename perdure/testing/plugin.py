"""Fixtures for pytest. Each pytest run with Perdure installed loads this module, so it imports nothing before a fixture
is used (R14.3).
"""

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
    """Remove all variables `TEMPORAL_…`, `OPENAI_…` and `PERDURE_…` from the environment of a test.

    ```python
    def test_settings(no_perdure_settings: None) -> None:
        assert in_force().task_queue == "perdure"
    ```
    """
    for name in [name for name in os.environ if name.startswith(_SETTINGS)]:
        monkeypatch.delenv(name)


@pytest.fixture
def run_locally(no_perdure_settings: None) -> Callable[..., AbstractAsyncContextManager[Local]]:
    """Return `perdure.testing.run_locally`, without any setting of the environment.

    ```python
    async def test_order(run_locally: Callable[..., Any]) -> None:
        async with run_locally(shopper, model=AutoModel()) as local:
            await local.run()
    ```
    """
    from perdure.testing._local import run_locally

    del no_perdure_settings
    return run_locally


@pytest.fixture(scope="session")
def perdure_dev_server() -> Iterator[str]:
    """Return the address of a dev server for all tests of the session. It keeps real time.

    ```python
    async def test_order(perdure_dev_server: str) -> None:
        async with run_locally(shopper, model=AutoModel(), server=perdure_dev_server) as local:
            await local.run()
    ```
    """
    from perdure.testing._servers import dev_server_in_thread

    with dev_server_in_thread() as address:
        yield address
