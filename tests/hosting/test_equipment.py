"""What a worker logs about its tools, hooks and agents when it starts (R12.5)."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest

from perdure import hook
from perdure.activities.registry import load_tools
from perdure.errors import ToolDefinitionError
from perdure.hooks import BeforeToolCall
from perdure.hooks.decorator import found_hooks
from perdure.hosting.equipment import keep_mcp_tools, registry_of
from perdure.hosting.settings import Settings


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("library.py", "no module is named 'library.py'; give library"),
        ("no.such", "no module is named 'no.such'"),
        ("needy", "the module 'needy' imports 'nothere', which is not installed"),
    ],
)
def test_a_module_that_cannot_be_found_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, problem: str
) -> None:
    (tmp_path / "needy.py").write_text("import nothere", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ToolDefinitionError, match=f"^no tools can be loaded: {re.escape(problem)}$"):
        load_tools([name])


@hook("before_tool_call", tools=["http_request", "clerk", "task_complet"])
def guard(_: BeforeToolCall) -> None:
    """Look at calls of a built-in tool, of a delegate that a file names, and of a misspelled tool."""


async def test_a_worker_warns_of_a_hook_that_is_never_called(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tools = [{"name": "clerk", "_delegate": "writer"}]
    boss = {"context": [{"type": "tool", "tool": tool} for tool in tools]}
    for name, document in {"boss": boss, "writer": {"context": []}}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
    settings = Settings.model_construct(agents=tmp_path, http_hosts=("localhost",))
    registry = registry_of(settings)
    registry.hooks.add(*found_hooks([guard]))
    with caplog.at_level(logging.WARNING, "perdure.worker"):
        async with keep_mcp_tools(settings, registry):
            pass
    (record,) = caplog.records
    assert (
        record.getMessage()
        == f'hook {__name__}:guard: "task_complet" is not a known tool; did you mean "task_complete"?'
    )
