"""`perdure init`, `tools`, `schema` and `settings`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text

from perdure.cli._console import get_console, make_table
from perdure.cli._execute import USAGE, CommandError, Json, execute, one_line_errors
from perdure.cli._help import Commands
from perdure.cli._options import ALL, with_settings, write_file
from perdure.hosting.settings import Settings, unknown_variables
from perdure.hosting.settings_display import list_settings
from perdure.tools.tool import resolve_tools
from perdure.values.json import JsonObject, dumps

TOOLS: Final = '''\
# mytools.py
from perdure import ToolError, tool

PRICES = {"apple": 0.5, "pear": 0.75}


@tool(safe=True, timeout=10, retries=3)
def price(fruit: str, count: int = 1) -> float:
    """The price of some fruit, in euros."""
    if fruit not in PRICES:
        raise ToolError("unknown_fruit", f"no price for {fruit}; there are {', '.join(PRICES)}")
    return count * PRICES[fruit]


@tool(safe=True)
def total(prices: list[float]) -> float:
    """Add prices."""
    return sum(prices)


@tool(dangerous=True)
def order(euros: float) -> str:
    """Order what was priced, and pay for it."""
    return f"ordered for {euros:.2f} euros"
'''

SCRIPT: Final = """\
# shopping.py
import asyncio

from mytools import order, price, total
from pydantic import BaseModel

from perdure import Agent, Perdure


class Bill(BaseModel):
    euros: float


shopper = Agent("shopper", instructions="You help with shopping.", tools=[price, total, order], output=Bill)


async def main() -> None:
    perdure = await Perdure.connect()
    bill = await perdure.run(shopper, {"request": "What are three apples and a pear?"})
    print(bill.euros)


if __name__ == "__main__":
    asyncio.run(main())
"""

AGENT: Final = """\
{
  "$schema": "../agent.schema.json",
  "name": "shopper",
  "context": [
    {"type": "system", "text": "You help with shopping."},
    {"type": "tool", "tool": "price"},
    {"type": "tool", "tool": "total"},
    {"type": "tool", "tool": "order"}
  ],
  "schema": {"type": "object", "properties": {"euros": {"type": "number"}}, "required": ["euros"]}
}
"""

TEST: Final = """\
# test_shopping.py
import pytest
from shopping import Bill, shopper

from perdure.testing import approve, check, run_locally

PLAN = {
    "calls": [
        {"_tool": "price", "fruit": "apple", "count": 3, "_outputPath": "†state.apples"},
        {"_tool": "price", "fruit": "pear", "_outputPath": "†state.pears"},
        {"_tool": "total", "prices": ["†state.apples", "†state.pears"], "_outputPath": "†state.total"},
        {"_tool": "order", "euros": "†state.total"},
    ],
    "output": {"euros": "†state.total"},
}


def test_a_person_is_asked_before_anything_is_ordered() -> None:
    checked = check(shopper, PLAN)
    assert checked.problems == []
    assert checked.asks == ["order"]


@pytest.mark.asyncio
async def test_the_bill_is_right() -> None:
    async with run_locally(shopper, model=[PLAN], people=[approve("order", after="2 days")]) as local:
        view = await local.run({"request": "Order three apples and a pear."})
    assert shopper.read_output(view.output) == Bill(euros=2.25)
"""

MODEL: Final = """\
# scripted_model.py
import asyncio
from typing import Any

from test_shopping import PLAN

from perdure.testing import ChatRequest, ScriptedModel


def answer(request: ChatRequest) -> dict[str, Any]:
    calls = PLAN["calls"] if "Order three" in request.text else PLAN["calls"][:3]
    return {"calls": calls, "output": PLAN["output"]}


async def main() -> None:
    async with ScriptedModel(answer) as model:
        print(f"export OPENAI_BASE_URL={model.base_url} OPENAI_API_KEY=none", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
"""

CONFIG: Final = """\
tools = ["mytools"]
agents = "agents"
"""

FILES: Final = {
    "mytools.py": TOOLS,
    "shopping.py": SCRIPT,
    "agents/shopper.json": AGENT,
    "test_shopping.py": TEST,
    "scripted_model.py": MODEL,
    "perdure.toml": CONFIG,
}


starting_app = Commands()


@starting_app.command()
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="The folder; by default the current one.")
    ] = Path(),
) -> None:
    """Write a project that runs: three tools, an agent, a script, a test, and a scripted model that needs no key. Existing files do not change."""
    from perdure.agents.schema import agent_schema  # as in `schema`: it reads Perdure's sources

    files = {**FILES, "agent.schema.json": dumps(agent_schema(), indent=2) + "\n"}
    with one_line_errors():
        try:
            if there := [name for name in files if (folder / name).exists()]:
                raise CommandError(
                    f"nothing was written: {folder / there[0]} already exists; give another folder", USAGE
                )
            for name, text in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text, encoding="utf-8")
                print(folder / name)
        except OSError as error:
            raise CommandError(f"the folder {folder} cannot be written: {error.strerror}", USAGE) from None
    where = "" if folder == Path() else f"cd {folder} && "
    print(f"\ntest it:    {where}pytest\nstart it:   {where}perdure dev\nrun it:     {where}python shopping.py")
    print(
        f"without a key for a model, first: {where}python scripted_model.py; enter the line that it prints, then 'perdure dev'"
    )


@starting_app.command()
@with_settings("tools", "files", "http_hosts", "http_private", "commands", "mcp")
def tools(settings: Settings, as_json: Json = False) -> None:
    """List the tools that a worker with these options offers."""
    found, missing = execute(lambda: _tools(settings))
    if as_json:
        print(dumps(list(found.values())))
    else:
        _print_tools(found)
    with one_line_errors():
        if missing:
            raise CommandError(f"the list is incomplete: {', '.join(missing)} of {settings.mcp} cannot be used")


def _print_tools(found: dict[str, JsonObject]) -> None:
    rows = []
    for name, definition in sorted(found.items()):
        kinds = ", ".join(kind for kind in ("safe", "dangerous", "exclusive") if definition.get(f"_{kind}"))
        about = str(definition.get("description", "")).strip().partition("\n")[0]
        rows.append((name, _parameters(resolve_tools([name], found)[name].parameters), kinds, about))
    console = get_console()
    console.print(
        make_table(("tool", "parameters", "is", "does"), rows, console.width, shrinkable=("does", "parameters"))
    )


async def _tools(settings: Settings) -> tuple[dict[str, JsonObject], list[str]]:
    """Return all tools, and the MCP servers that cannot be used. Start the servers to list their tools."""
    from perdure.hosting.equipment import check_prompts, mcp_tools_of, registry_of  # as for a worker

    registry = registry_of(settings)
    check_prompts(settings)
    async with mcp_tools_of(settings.mcp, registry) as missing:
        return registry.definitions(), missing


def _parameters(schema: JsonObject) -> str:
    """Return the parameters as `fruit, count?`: optional ones with a question mark."""
    required: Any = schema.get("required", [])
    names = [name for name in schema.get("properties", {}) if not name.startswith("_")]
    return ", ".join(name if name in required else f"{name}?" for name in names)


@starting_app.command()
def schema(
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write to this file instead of stdout.")
    ] = None,
) -> None:
    """Print the JSON Schema of agent files. An editor uses it to complete and check a file that names it as `$schema`."""
    from perdure.agents.schema import agent_schema

    text = dumps(agent_schema(), indent=2)
    if out is None:
        print(text)
        return
    write_file(out, text + "\n")


@starting_app.command("settings")
@with_settings(*ALL)
def print_settings(settings: Settings, as_json: Json = False) -> None:
    """Print the settings in force and the source of each. Secrets are masked."""
    rows = list_settings(settings)
    if as_json:
        print(dumps({row.name: {"value": row.value, "source": row.source} for row in rows}))
    else:
        table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
        for title in ("setting", "value", "from"):
            table.add_column(title, no_wrap=title == "setting", overflow="fold")
        for row in rows:
            value = row.value if isinstance(row.value, str) else dumps(row.value)
            table.add_row(row.name, Text(value), row.source, style="dim" if row.source == "default" else None)
        get_console().print(table)
    for problem in unknown_variables():
        typer.echo(f"perdure: {problem}", err=True)
