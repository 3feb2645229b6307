"""Which calls a person is asked about (R7.1)."""

from __future__ import annotations

from typing import Literal, TypeAlias

from perdure.tools import Tool

Ask: TypeAlias = Literal["never", "dangerous", "unsafe", "always"]
"""What a policy asks about, from the loosest to the strictest: `unsafe` is all that is not declared safe."""


def asks(tool: Tool, ask: Ask = "dangerous") -> bool:
    """Whether a call of the tool would be offered for approval; a condition on parameters counts as if it held."""
    if tool.approval is not None:
        return bool(tool.approval != "never")
    return ask == "always" or (ask == "unsafe" and not tool.safe) or (ask != "never" and tool.dangerous)
