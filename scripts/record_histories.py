"""Records a history of each kind of run, which `tests/test_replay.py` replays: a worker of today goes on with a run of yesterday.

    make histories

Histories stand under the version that made them. Those of a released version are never written again: a history that no longer
replays is a finding, and the change that broke it goes behind `workflow.patched` (R13.7).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from temporalio.client import Client, WorkflowFailureError, WorkflowHistory
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure, ToolContext, ToolError, tool
from perdure.client.runs import AgentHandle
from perdure.hosting.server import embedded_server
from perdure.run.wire import DECIDE
from perdure.testing.turns import Fault, Turn
from scripts.release import write_digests
from tests.support import DONE, Harness, agent, harness

ROOT: Final = Path(__file__).parents[1]
IMPATIENT: Final = {"limit.historyCount.suggestContinueAsNew": 60}
"""A server that suggests to continue as new early."""


@tool
async def look(path: str) -> dict[str, Any]:
    """Look at a path."""
    return {"path": path, "size": len(path)}


@tool(retries=1)
async def fail(code: str) -> str:
    """Fail."""
    raise ToolError(code, "it does not work")


@tool(dangerous=True)
async def remove(path: str) -> str:
    """Remove a path."""
    return f"removed {path}"


@tool
async def double(n: int) -> dict[str, Any]:
    """Double a number."""
    return {"n": n * 2, "done": n * 2 > 10}


@tool(heartbeat=1, timeout=60)
async def linger(context: ToolContext) -> str:
    """Work until cancelled."""
    while True:
        context.heartbeat()
        await asyncio.sleep(0.2)


TOOLS: Final[list[Callable[..., Any]]] = [look, fail, remove, double, linger]
NAMES: Final = [function.__name__ for function in TOOLS]
LOOK: Final = {"_tool": "look", "path": "/a", "_outputPath": "†state.a"}
BRANCH: Final = {"_tool": "fail", "code": "no", "_outputPath": "†state.good || †state.bad"}
READS: Final = {"_tool": "look", "path": "{†state.a.path}/b", "_outputPath": "†state.b"}
SEVERAL: Final = [
    {"calls": [LOOK, READS, BRANCH, {"_tool": "look"}], "output": None},
    {"calls": [{"_tool": "fail", "code": "again"}], "output": None},
    DONE,
]
CHILD: Final = agent("look", "double", name="child", context=[{"type": "input"}])
ONCE: Final = {"_tool": "child", "_outputPath": "†state.c", "n": 3}
DELEGATE: Final = {"name": "child", "_delegate": "child"}


def given(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"type": "plan", "plan": list(calls), "output": {"n": "†state.d.n", "done": "†state.d.done"}}


LOOPED: Final = agent(
    "double",
    name="child",
    config={"start": "plan"},
    context=[{"type": "input"}, given({"_tool": "double", "n": "†input.item", "_outputPath": "†state.d"})],
)
REPEATED: Final = agent(
    "double",
    name="child",
    config={"start": "plan"},
    context=[
        {"type": "input"},
        given({"_tool": "double", "n": "†state.previous.n || †input.n", "_outputPath": "†state.d"}),
    ],
)


class Recorder:
    """One folder of histories."""

    def __init__(self, folder: Path, client: Client, impatient: Client) -> None:
        self.folder = folder
        self.client = client
        self.impatient = impatient

    async def play(self, name: str, document: dict[str, Any], script: list[Any], **more: Any) -> None:
        """Run an agent to its end, however it ends, and write down every execution that belongs to it."""
        client = self.impatient if more.get("impatient") else self.client
        child: dict[str, Any] | None = more.get("child")
        with tempfile.TemporaryDirectory() as agents:
            if child is not None:
                (Path(agents) / "child.json").write_text(json.dumps(child), encoding="utf-8")
            options: dict[str, Any] = {"agents": Path(agents)} if child is not None else {}
            async with harness(client, TOOLS, script, sandboxed=False, **options) as it:
                it.model.dialect = document.get("config", {}).get("dialect", "solution")
                handle = await it.start(document, more.get("input"), run_id=name)
                meanwhile: Callable[[Harness, AgentHandle], Awaitable[None]] | None = more.get("meanwhile")
                if meanwhile is not None:
                    await meanwhile(it, handle)
                try:
                    await handle.result()
                except WorkflowFailureError:
                    if not more.get("fails"):
                        raise
        await self._write(client, name)

    async def talk(self, name: str) -> None:
        """A session of three messages, one of them while a run is under way; its executions, idle ones too."""
        document = agent("look", name="desk", schema=True)
        async with harness(
            self.client, TOOLS, [{"calls": [LOOK], "output": None}, DONE, DONE, DONE], sandboxed=False
        ) as it:
            session = Perdure(it.client, task_queue=it.task_queue).session(name, agent=Agent.of(document))
            receipts = [await session.send("look", sender="ann", id="1")]
            receipts.append(await session.send("and there", sender="ann", id="2"))
            receipts.append(await session.send("then that", sender="bob", id="3", mode="followup"))
            for receipt in receipts:
                await session.wait(receipt)
            await self._write(self.client, name, session.id)  # its worker still has it go on as new to idle

    async def _write(self, client: Client, name: str, id: str | None = None) -> None:
        """The run, or the session of this id, and all below it, every execution in the order in which they began, a few of each."""
        id = id or name
        async with asyncio.timeout(20):
            while not [
                run async for run in client.list_workflows(f"WorkflowId = '{id}' AND ExecutionStatus != 'Running'")
            ]:
                pass
        found = [run async for run in client.list_workflows(f"WorkflowId STARTS_WITH '{id}'")]
        own = [run for run in found if run.id == id or run.id.startswith(f"{id}/")]
        counts: dict[str, int] = {}
        for run in sorted(own, key=lambda run: run.start_time):
            kind = name if run.id == id else f"{name}.{run.workflow_type.lower()}"
            number = counts[kind] = counts.get(kind, 0) + 1
            if number > 2:
                continue
            history = await client.get_workflow_handle(run.id, run_id=run.run_id).fetch_history()
            target = self.folder / f"{kind}{'' if number == 1 else f'.{number}'}.json"
            content = {"workflowId": run.id, **plain(history)}
            target.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            print(f"{target.name}: {len(history.events)} events, {target.stat().st_size:,} bytes")


def plain(history: WorkflowHistory) -> Any:
    """Without what tells of the machine, and no replay reads: stack traces and worker identities."""

    def strip(value: Any) -> Any:
        if isinstance(value, list):
            return [strip(item) for item in value]
        if not isinstance(value, dict):
            return value
        return {key: strip(item) for key, item in value.items() if key not in ("stackTrace", "identity")}

    return strip(json.loads(history.to_json()))


async def decides(it: Harness, handle: AgentHandle) -> None:
    """Every kind of decision, by signal and by update, and a change of policy."""
    await it.until_waiting(handle.id, *(f"1.{n}" for n in range(6)))
    await handle.signal("approve", {"call": "1.0", "by": "Ann"})
    await handle.signal("reject", {"call": "1.1", "reason": "still needed"})
    await handle.execute_update(DECIDE, {"call": "1.2", "decision": "edit", "params": {"path": "/e"}, "by": "Ann"})
    await handle.execute_update(
        DECIDE, {"call": "1.3", "decision": "replace", "with": {"_tool": "look", "path": "/r"}, "by": "Ann"}
    )
    await handle.execute_update(DECIDE, {"call": "1.5", "decision": "answer", "answer": "yes"})
    await handle.signal("approve", {"call": "9.9"})
    await handle.signal("policy", {"ask": "never"})


async def approves_plan(it: Harness, handle: AgentHandle) -> None:
    await it.until_waiting(handle.id, "1")
    await handle.execute_update(DECIDE, {"call": "1", "decision": "approve"})


async def cancels(it: Harness, handle: AgentHandle) -> None:
    async with asyncio.timeout(20):
        while not [call for call in (await it.view(handle.id)).calls if call.status == "running"]:
            pass
    await handle.cancel()


async def record(to: Recorder) -> None:
    """Each kind of run, once."""
    remove_it = [{"_tool": "remove", "path": f"/{n}"} for n in range(5)]
    ask = {"_tool": "ask_person", "question": "Sure?"}
    for dialect in ("solution", "tools", "script"):
        await to.play(f"plain-{dialect}", agent(*NAMES, config={"dialect": dialect}), SEVERAL)
    await to.play("unstreamed", agent(*NAMES, config={"stream": False}), SEVERAL)
    await to.play("step", agent(*NAMES, config={"execution": "step"}), [SEVERAL[0], *SEVERAL])
    await to.play(
        "given-plan",
        agent(
            "double", config={"start": "plan"}, context=[given({"_tool": "double", "n": 1, "_outputPath": "†state.d"})]
        ),
        [],
    )
    await to.play(
        "decisions",
        agent("remove", "look", "ask_person"),
        [{"calls": [*remove_it, ask], "output": None}, DONE],
        meanwhile=decides,
    )
    asked = {"approval": {"scope": "plan"}}
    await to.play(
        "plan-approval",
        agent("look", config=asked),
        [{"calls": [LOOK, READS], "output": None}, DONE],
        meanwhile=approves_plan,
    )
    timeout = {"approval": {"timeout": 0.2}}
    await to.play("approval-timeout", agent("remove", config=timeout), [{"calls": remove_it, "output": None}, DONE])
    sleep = {"_tool": "sleep_until", "seconds": 0.3}
    await to.play("sleep", agent("sleep_until"), [{"calls": [sleep], "output": None}, DONE])
    await to.play(
        "deadline", agent("linger", config={"deadline": 1}), [{"calls": [{"_tool": "linger"}], "output": None}, DONE]
    )
    await to.play(
        "stuck", agent("look", config={"stuck_after": 2}), [{"calls": [LOOK], "output": None}] * 2 + [DONE] * 2
    )
    broken = Turn(SEVERAL[0], fault=Fault("cut", 120))
    await to.play("interrupted", agent(*NAMES), [broken, *SEVERAL])
    fallback = {"models": {"fast": "small", "smart": "small", "fallback": ["large"]}}
    await to.play("fallback", agent(*NAMES, config=fallback), [Turn("no such key", status=401), *SEVERAL])
    await to.play(
        "refused-output",
        agent("look", schema={"type": "object", "required": ["ok"]}),
        [{"calls": [], "output": {}}, DONE],
    )
    await to.play(
        "cancelled", agent("linger"), [{"calls": [{"_tool": "linger"}], "output": None}], meanwhile=cancels, fails=True
    )
    await to.play(
        "failed", agent("look", config={"max_requests": 1}), [{"calls": [LOOK], "output": None}] * 3, fails=True
    )
    await to.play("delegate", agent(DELEGATE), [{"calls": [ONCE], "output": None}, SEVERAL[2], DONE], child=CHILD)
    each = {"_tool": "child", "_each": [1, 2, 3], "_parallel": 2, "_outputPath": "†state.all"}
    await to.play("each", agent(DELEGATE), [{"calls": [each], "output": None}, DONE], child=LOOPED)
    until = {"_tool": "child", "n": 1, "_until": "†output.done", "_outputPath": "†state.last"}
    await to.play("until", agent(DELEGATE), [{"calls": [until], "output": None}, DONE], child=REPEATED)
    many = {"_tool": "child", "_each": list(range(30)), "_outputPath": "†state.all"}
    await to.play("long-each", agent(DELEGATE), [{"calls": [many], "output": None}, DONE], child=LOOPED, impatient=True)
    steps = [{"calls": [{**LOOK, "path": f"/{n}"}], "output": None} for n in range(8)]
    await to.play("continued", agent("look"), [*steps, DONE], impatient=True)
    await to.talk("session")


def is_released(number: str, changelog: Path) -> bool:
    """Whether the changelog has a section of this version."""
    return re.search(rf"^## \[?{re.escape(number)}\b", changelog.read_text(encoding="utf-8"), re.MULTILINE) is not None


async def main() -> int:
    """Refuses to write over the histories of a version that is released."""
    current = version("perdure")
    folder = ROOT / "tests" / "histories" / current
    if is_released(current, ROOT / "CHANGELOG.md"):
        print(
            f"{current} is released: its histories stay as they are; give the next version its number first",
            file=sys.stderr,
        )
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.json"):
        old.unlink()
    async with embedded_server(ui=False) as server, embedded_server(ui=False, settings=IMPATIENT) as impatient:
        clients: list[WorkflowEnvironment] = [server, impatient]
        await record(Recorder(folder, *(each.client for each in clients)))
    write_digests(folder)
    return 0


if __name__ == "__main__":
    code = asyncio.run(main())
    sys.stdout.flush()
    os._exit(code)  # as the command line leaves: the SDK's threads may abort the interpreter while it takes itself down
