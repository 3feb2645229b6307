"""The code blocks of the README, the tutorial and the guides run; what they name exists."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer
from openai import AsyncOpenAI
from temporalio.testing import WorkflowEnvironment
from typer.testing import CliRunner

from perdure import Agent, Perdure
from perdure.activities.tools import ToolSettings, built_in
from perdure.cli._project_commands import FILES
from perdure.cli.app import app
from perdure.demo.scenario import FIRST
from perdure.testing import ChatRequest, Turn, approve, run_locally
from perdure.tools.tool import ENGINE_ACTIVITIES
from scripts.site_pages import page
from tests.support import ROOT, agent, harness, perdure
from tests.timeouts import HANG

README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}


TUTORIAL = DOCS["tutorial.md"] + DOCS["subagents.md"]
"""The guide goes on in the tutorial's folder."""


def blocks(language: str, text: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def write(folder: Path, *texts: str) -> None:
    """Each block into the file that its first line names."""
    for text in texts:
        name = re.match(r"(?:#|//) ([\w./-]+)\n", text)
        assert name is not None, text
        (folder / name[1]).parent.mkdir(exist_ok=True)
        (folder / name[1]).write_text(text, encoding="utf-8")


ELSEWHERE = (
    *("pip", "cd", "export", "pytest", "perdure init", "perdure dev", "perdure worker", "perdure models"),
    "python scripted_model.py",
)
"""What the test does itself, or another does: that the commands exist is tested below."""


def answers(asked: ChatRequest) -> dict[str, Any]:
    """The plans of the tutorial, for each of its agents."""
    plans = (block for block in blocks("json", TUTORIAL) if "plan.json\n" in block)
    shopping, basket = (json.loads(block.partition("\n")[2]) for block in plans)
    if "price baskets" in asked.text:
        return dict(basket)
    order = {"_tool": "order", "euros": "†state.total"}
    return {**shopping, "calls": [*shopping["calls"], *([order] if "Order three" in asked.text else [])]}


@pytest.mark.asyncio(loop_scope="session")
async def test_the_tutorial_runs_as_it_stands_in_a_folder_with_nothing_else(
    dev_server: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = [*blocks("python", TUTORIAL), *(block for block in blocks("json", TUTORIAL) if block.startswith("//"))]
    write(tmp_path, *named)
    monkeypatch.chdir(tmp_path)
    with on_path(tmp_path):
        shopper = importlib.import_module("shopping").shopper
    functions = [function.function for function in shopper.functions]
    said: dict[str, str] = {}
    async with harness(dev_server.client, functions, answers, agents=tmp_path / "agents") as it:
        monkeypatch.setenv("TEMPORAL_ADDRESS", dev_server.client.service_client.config.target_host)
        monkeypatch.setenv("PERDURE_TASK_QUEUE", it.task_queue)
        lines = [line[2:] for block in blocks("console", TUTORIAL) for line in block.splitlines()]
        for line in (line for line in lines if not line.startswith(ELSEWHERE)):
            if line.startswith("perdure approvals"):
                await it.until_waiting("fruit-2", "1.3")
            if line.startswith("python"):
                env = {**os.environ, "PYTHONPATH": str(ROOT)}
                ran = await perdure(env=env, program=str(tmp_path / line.split()[1]))
                said[line] = ran.out + ran.err
                assert ran.code == 0, said
            else:
                found = await asyncio.to_thread(CliRunner().invoke, app, shlex.split(line)[1:])
                said[line] = found.output
                assert found.exit_code == 0, (line, found.output)
    told = list(said.values())
    assert "3 calls, no problems\n" in told
    assert said["python shopping.py"] == "2.25\n"
    assert "perdure approve fruit-2 1.3" in said["perdure approvals fruit-2"]
    assert "1.3 order" not in said["perdure show fruit-1"]
    assert said["perdure show fruit-1"].splitlines()[-1] in TUTORIAL
    assert '"fruit": "pear"' in told[-1]
    assert (tmp_path / "plan.svg").exists()


async def test_the_tutorials_model_without_a_key_answers_over_http(tmp_path: Path) -> None:
    write(tmp_path, *(block for block in blocks("python", TUTORIAL) if re.match(r"# \w+\.py\n", block)))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    program = [sys.executable, "scripted_model.py"]
    model = await asyncio.create_subprocess_exec(*program, cwd=tmp_path, env=env, stdout=asyncio.subprocess.PIPE)
    try:
        assert model.stdout is not None
        line = (await asyncio.wait_for(model.stdout.readline(), HANG)).decode()
        settings = dict(word.split("=", 1) for word in shlex.split(line)[1:])
        assert set(settings) == {"OPENAI_BASE_URL", "OPENAI_API_KEY"}
        with on_path(tmp_path):
            shopper = importlib.import_module("shopping").shopper
        client = AsyncOpenAI(base_url=settings["OPENAI_BASE_URL"], api_key=settings["OPENAI_API_KEY"])
        async with run_locally(shopper, model=client, people=[approve("order")]) as local:
            asked = await local.run({"request": "What are three apples and a pear?"})
            ordered = await local.run({"request": "Order three apples and a pear."})
    finally:
        model.terminate()
        await model.wait()
    assert [[call.tool for call in view.calls] for view in (asked, ordered)] == [
        ["price", "price", "total"],
        ["price", "price", "total", "order"],
    ]
    assert asked.output == ordered.output == {"euros": 2.25}


@pytest.mark.asyncio(loop_scope="session")
async def test_the_readmes_file_prints_what_the_readme_shows(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    write(tmp_path, *blocks("python", README))
    (shown,) = blocks("text", README)
    with on_path(tmp_path):
        shopper = importlib.import_module("fruit").shopper
    functions = [function.function for function in shopper.functions]
    async with harness(dev_server.client, functions, answers) as it:
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host,
            "PERDURE_TASK_QUEUE": it.task_queue,
        }
        ran = await perdure(env=env, program=str(tmp_path / "fruit.py"))
    assert (ran.out, ran.err, ran.code) == (shown, "", 0)


GUIDES = sorted(name for name, text in DOCS.items() if re.search(r"```python\n# test_\w+\.py\n", text))


@pytest.mark.parametrize("name", [name for name in GUIDES if name not in ("testing.md", "tutorial.md")])
async def test_a_guides_tests_pass(name: str, tmp_path: Path) -> None:
    written = [block for block in blocks("python", DOCS[name]) if re.match(r"# \w+\.py\n", block)]
    if find_spec("langgraph") is None:  # an environment of before the guide from LangGraph
        written = [block for block in written if "langgraph" not in block.partition("\n")[0]]
    write(tmp_path, *written)
    with on_path(tmp_path):
        modules = [importlib.import_module(block.split()[1].removesuffix(".py")) for block in written]
        tests = [value for module in modules for key, value in vars(module).items() if key.startswith("test_")]
        assert tests
        for test in tests:
            ended = test()
            if inspect.iscoroutine(ended):
                await ended


def test_a_guide_with_async_tests_has_the_mark_or_the_command_that_runs_them() -> None:
    missing = [
        f"{name}: {file}"
        for name, text in DOCS.items()
        for file, code in re.findall(r"```python\n# (test_\w+\.py)\n(.*?)```", text, re.DOTALL)
        if "async def test_" in code and "@pytest.mark.asyncio" not in code
        if f"`pytest -o asyncio_mode=auto {file}`" not in text
    ]
    assert missing == []


def test_code_in_a_table_has_no_escape_on_the_site() -> None:
    table = "| a | b |\n|---|---|\n| `x \\|\\| y` | text \\| text |\n"
    assert page(table, ROOT / "docs" / "tools.md", "tools.md") == table.replace(r"`x \|\| y`", "`x || y`")


def test_the_guides_with_tests_are_those_that_there_are() -> None:
    assert {"approvals.md", "cost.md", "injection.md", "migration.md", "streaming.md", "tools.md"} <= set(GUIDES)


def test_a_guide_ends_with_what_can_go_wrong() -> None:
    guides = [
        "install",
        "tutorial",
        "tools",
        "approvals",
        "notifications",
        "identity",
        "subagents",
        "streaming",
        "cost",
        "injection",
        "cloud",
        "observability",
        "durability",
        "planning",
        "troubleshooting",
        "models",
        "sessions",
        "upgrading",
        "testing",
        "fastapi",
        "shop",
        "schedules",
        "triggers",
        "memory",
        "migration",
        "kubernetes",
    ]
    last = {name: re.findall(r"^## (.*)$", DOCS[f"{name}.md"], re.MULTILINE)[-1] for name in guides}
    assert [name for name, heading in last.items() if not heading.startswith("What can go wrong")] == []


@pytest.mark.asyncio(loop_scope="session")
async def test_the_picture_of_the_demos_plan_is_the_drawing_of_today(tmp_path: Path) -> None:
    plan, drawn = tmp_path / "plan.json", tmp_path / "plan.svg"
    plan.write_text(json.dumps(FIRST), encoding="utf-8")
    ran = await perdure("plan", "draw", str(plan), "--input", '{"folder": "/data"}', "--svg", str(drawn))
    assert (ran.code, drawn.read_text(encoding="utf-8")) == (
        0,
        (ROOT / "docs" / "plan.svg").read_text(encoding="utf-8"),
    )


def test_the_tutorial_and_init_show_the_same_files() -> None:
    shown = {
        text.split()[1]: text for text in [*blocks("python", TUTORIAL), *blocks("json", TUTORIAL)] if text[0] in "#/"
    }
    for name in ("mytools.py", "shopping.py", "test_shopping.py", "scripted_model.py"):
        assert shown[name] == FILES[name]
    written = json.loads(FILES["agents/shopper.json"])
    assert written.pop("$schema")
    assert json.loads(shown["agents/shopper.json"].partition("\n")[2]) == written
    policies = [json.loads(block) for block in blocks("json", DOCS["approvals.md"])]
    parsed = [Agent.of({"name": "a", "config": {"approval": policy}}).parsed.config.approval for policy in policies]
    assert [(policy.timeout, list(policy.tools)) for policy in parsed] == [(86_400, ["refund"]), (None, ["refund"])]


@pytest.mark.asyncio(loop_scope="session")
async def test_the_script_with_loops_and_conditions_runs(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    write(tmp_path, *(block for block in blocks("python", TUTORIAL) if block.startswith("# mytools.py")))
    (script,) = blocks("py", DOCS["script.md"])
    with on_path(tmp_path):
        tools = importlib.import_module("mytools")
    document = agent("price", "total", config={"dialect": "script"})
    basket = [{"name": "apple", "count": 3}, {"name": "plum", "count": 0}, {"name": "pear", "count": 1}]
    async with harness(dev_server.client, [tools.price, tools.total], [Turn(script)]) as it:
        view = await it.run(document, {"basket": basket})
    assert (view.output, view.requests) == ({"euros": 2.25}, 1)
    assert view.state["cost"] == [1.5, None, 0.75]


@pytest.mark.asyncio(loop_scope="session")
async def test_the_page_on_python_is_python_that_runs(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    write(tmp_path, *blocks("python", page.replace('"shop"', f'"shop-{uuid.uuid4().hex[:8]}"')))  # others have a shop
    with on_path(tmp_path):
        shop, buying, looking = map(importlib.import_module, ("shop", "buying", "looking"))
    calls = [
        {"_tool": "price", "fruit": "†input.fruit", "count": "†input.count", "_outputPath": "†state.euros"},
        {"_tool": "pay", "euros": "†state.euros", "_outputPath": "†state.receipt"},
    ]
    broken = Turn("no", status=401)
    script = [{"calls": calls, "output": "†state.receipt"}, broken]
    number = uuid.uuid4().int
    async with harness(dev_server.client, [shop.price, shop.pay], script) as it:
        python = Perdure(dev_server.client, task_queue=it.task_queue)
        receipt = await buying.buy(python, shop.Order(fruit="pear", count=3), number)
        assert receipt == shop.Receipt(number=receipt.number, euros=1.5)
        assert await buying.buy(python, shop.Order(fruit="pear"), number + 1) is None
        async with asyncio.timeout(HANG):  # the server's index is a moment late
            while True:
                if f"order-{number} completed {receipt.number}" in await looking.look(python):
                    break
                await asyncio.sleep(0.1)


@contextlib.contextmanager
def on_path(folder: Path) -> Iterator[None]:
    """Import modules from a page's folder. Another page may have modules of the same names."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        forget(folder, before)


def forget(folder: Path, before: set[str]) -> None:
    """Unload the modules of a folder that were not there before."""
    for name in sys.modules.keys() - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    commands = [line.split()[:2] for line in blocks("bash", README)[0].splitlines()]
    assert commands == [["make", "demo"], ["make", "test"]]
    assert shutil.which("make")
    for _, target in commands:
        subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, capture_output=True)


@functools.cache
def commands(group: Any = None, path: tuple[str, ...] = ()) -> dict[str, dict[str, bool]]:
    """Each command that there is, with its options, and whether one may be repeated."""
    group = group or typer.main.get_command(app)
    if hasattr(group, "commands"):
        return {name: o for word, one in group.commands.items() for name, o in commands(one, (*path, word)).items()}
    return {
        " ".join(path): {
            option: getattr(parameter, "multiple", False) for parameter in group.params for option in parameter.opts
        }
    }


def wrong(written: str) -> list[str]:
    """What does not exist of `plan draw|validate FILE --svg OUT`; nothing where it is all there."""
    there = commands()
    first, second, *_ = [*written.replace("\\|", "|").split(), "", ""]
    if first == "agent" and f"agent {second}" not in there:
        second = "say"  # what is said needs no word before it
    named = (
        [f"{first} {word}" for word in second.split("|")]
        if first in {n.split()[0] for n in there if " " in n}
        else [first]
    )
    options = re.findall(r"(?<![\w-])--[a-z-]+", written)
    return [name for name in named if name not in there] or [
        f"{name} {option}"
        for name in named
        for option in options
        if option != "--help" and (option not in there[name] or (options.count(option) > 1 and not there[name][option]))
    ]


def test_no_option_has_an_underscore() -> None:
    assert {
        option for options in commands().values() for option in options if option[0] == "-" and "_" in option
    } == set()


def test_every_command_and_option_named_exists() -> None:
    text = README + "".join(text for name, text in DOCS.items() if name != "roadmap.md")
    named = re.findall(r"(?:^\$ |`)perdure ([a-z][^`#\n]*)", text, re.MULTILINE)
    assert len(named) > 30
    assert [(line, missing) for line in named if (missing := wrong(line))] == []


def test_the_protocol_lists_the_commands_that_there_are() -> None:
    table = DOCS["protocol.md"].partition("| command | does |")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| (`.*?`) \| ", table, re.MULTILINE)
    named = [span for cell in cells for span in re.findall(r"`([^`]+)`", cell)]
    assert [(span, missing) for span in named if (missing := wrong(span))] == []
    listed = {word for span in named for word in re.findall(r"[a-z-]+", span)}
    named_not = {"agent say"}  # it is said without that word
    assert [name for name in commands() if name not in named_not and not set(name.split()) <= listed] == []


def test_nothing_stands_in_the_protocol_and_in_the_roadmap_with_the_same_words() -> None:
    rules = [set(re.findall(r"^- (R\d+\.\d+ .*)$", DOCS[name], re.MULTILINE)) for name in ("protocol.md", "roadmap.md")]
    assert rules[0]
    assert rules[0] & rules[1] == set()


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", README)
    assert len(links) > 8
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_page_on_tools_names_every_built_in_tool(tmp_path: Path) -> None:
    (tmp_path / "skills").mkdir()
    all_of_them = ToolSettings(files=tmp_path, http_hosts=["*"], commands=["ls"], skills=tmp_path / "skills")
    names = {tool.name for tool in built_in(all_of_them)} | ENGINE_ACTIVITIES
    (table,) = re.findall(r"^## Tools that come with Perdure\n\n(.*?)\n\n", DOCS["tools.md"], re.DOTALL | re.MULTILINE)
    named = set(re.findall(r"[\w.]+", table))
    assert [name for name in names if not {name, name.removeprefix("perdure.")} & named] == []
