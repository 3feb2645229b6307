"""How long a test waits for what is certain to come: the limit ends a hang, and says nothing about the speed of a machine."""

from __future__ import annotations

from typing import Final

HANG: Final = 240.0
"""Seconds. Below the `timeout` of pytest in `pyproject.toml`, so that the failure names what did not come."""
