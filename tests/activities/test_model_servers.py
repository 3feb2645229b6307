"""Servers of models: libraries that are not installed, and libraries that nobody needs."""

from __future__ import annotations

import subprocess
import sys

import pytest
from temporalio.exceptions import ApplicationError

from perdure.activities.model_servers import load_library

LIBRARIES = ("anthropic", "botocore", "google.auth")


async def test_a_missing_extra_is_one_line() -> None:
    with pytest.raises(ApplicationError) as raised:
        await load_library("no_such_library", extra="anthropic")
    assert raised.value.message == (
        "the provider 'anthropic' needs a library that is not installed (no_such_library): pip install 'perdure[anthropic]'"
    )
    assert raised.value.non_retryable


def test_no_library_of_a_provider_is_loaded_before_it_is_needed() -> None:
    program = f"import sys, perdure.hosting.worker; print([each for each in {LIBRARIES!r} if each in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
