"""Files through loops, delegates, continue-as-new, shapes and the command line (R20.3)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import Image, Perdure, tool
from perdure.activities.transcripts import recall
from perdure.testing.scripted_model import ChatRequest, Turn
from tests.cli.test_commands import one_line, write
from tests.support import DONE, agent, harness, impatient, perdure, storage_fixture
from tests.timeouts import HANG
from tests.workflows.test_delegates import parts, save
from tests.workflows.test_forks import forked
from tests.workflows.test_media import PNG, connect, draw, measure, pictures, stored
from tests.workflows.test_session import ECHO, desk, idles
from tests.workflows.test_session_archive import PADDING

pytestmark = pytest.mark.asyncio(loop_scope="session")
storage = storage_fixture()
impatient_server = impatient(events=10)


def looks(request: Any) -> dict[str, Any]:
    """Say how many pictures there are."""
    return {"calls": [], "output": f"{len(pictures(request))} picture"}


@tool(untrusted=True)
def download(url: str) -> Image:
    """Download a picture that others have made."""
    return Image(data=PNG, name=url)


async def test_r20_3_each_item_of_a_loop_is_a_file(dev_server: WorkflowEnvironment, storage: Path) -> None:
    drawn = {"_tool": "draw", "name": "†item", "_each": ["a.png", "b.png"], "_outputPath": "†state.charts"}
    read = {"_tool": "measure", "picture": "†item", "_each": "†state.charts", "_outputPath": "†state.sizes"}
    script = [{"calls": [drawn, read], "output": None}, DONE]
    async with harness(await connect(dev_server), [draw, measure], script) as it:
        view = await it.run(agent("draw", "measure"))
        shown = pictures(it.model.requests[1])
    assert [each["name"] for each in view.state["charts"]] == ["a.png", "b.png"]
    assert [text.partition(" ")[0] for text in view.state["sizes"]] == ["a.png", "b.png"]
    assert (len(stored(storage / "files")), shown) == (1, ["data:image/png"])  # one file with two names


@pytest.mark.usefixtures("storage")
async def test_r20_3_a_delegate_sees_the_file_of_its_input_and_returns_another(
    dev_server: WorkflowEnvironment, tmp_path: Path
) -> None:
    writer = agent("draw", name="writer", context=[{"type": "system", "text": "You are WRITER."}, {"type": "input"}])
    asked = {"_tool": "ask", "picture": "†state.chart", "_outputPath": "†state.back"}
    first = {"calls": [{"_tool": "draw", "name": "a.png", "_outputPath": "†state.chart"}, asked], "output": None}
    script = parts(PARENT=[first, DONE], WRITER=[{"output": "†input.picture"}])
    delegate = {"name": "ask", "description": "Ask.", "properties": {"picture": {}}, "_delegate": "writer"}
    async with harness(await connect(dev_server), [draw], script, agents=save(tmp_path, writer)) as it:
        view = await it.run(agent("draw", delegate))
        child = next(request for request in it.model.requests if "You are WRITER." in request.text)
    assert view.state["back"] == view.state["chart"]
    assert pictures(child) == ["data:image/png"]


@pytest.mark.usefixtures("storage")
async def test_r20_3_a_file_outlives_continue_as_new(impatient_server: WorkflowEnvironment) -> None:
    script = [
        {"calls": [{"_tool": "draw", "name": "a.png", "_outputPath": "†state.chart"}], "output": None},
        {"calls": [{"_tool": "draw", "name": "b.png"}], "output": None},
        {"calls": [{"_tool": "measure", "picture": "†state.chart", "_outputPath": "†state.size"}], "output": None},
        DONE,
    ]
    async with harness(await connect(impatient_server), [draw, measure], script) as it:
        handle = await it.start(agent("draw", "measure"))
        result = await handle.result()
        shown = [pictures(request) for request in it.model.requests]
        first = await it.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id).describe()
    assert first.status is not None
    assert first.status.name == "CONTINUED_AS_NEW"
    assert result.state["size"].startswith("a.png has ")
    assert shown == [[], *[["data:image/png"]] * 3]


@pytest.mark.usefixtures("storage")
async def test_r20_3_where_untrusted_values_are_shapes_no_file_of_them_is_shown(
    dev_server: WorkflowEnvironment,
) -> None:
    call = {"_tool": "download", "url": "a.png", "_outputPath": "†state.found"}
    script: list[Any] = [{"calls": [call], "output": None}, DONE]
    for shows, expected in (("shape", []), ("values", ["data:image/png"])):
        async with harness(await connect(dev_server), [download], script) as it:
            await it.run(agent("download", config={"show": shows}))
            assert pictures(it.model.requests[1]) == expected


async def test_r20_3_the_command_line_adds_files_to_an_input(
    dev_server: WorkflowEnvironment, storage: Path, tmp_path: Path
) -> None:
    document = write(tmp_path, agent(context=[{"type": "input"}]))
    picture = tmp_path / "cat.png"
    picture.write_bytes(PNG)
    address = dev_server.client.service_client.config.target_host
    env = {"TEMPORAL_ADDRESS": address, "PERDURE_STORAGE": str(storage)}
    async with harness(await connect(dev_server), [], [{"output": "\u2020input.photo"}]) as it:
        words = ["run", document, "--task-queue", it.task_queue, "--input", '{"n": 1}']
        ran = await perdure(*words, "--file", f"photo={picture}", "--json", env=env)
        shown = pictures(it.model.requests[0])
        wrong = [await perdure(*words, "--file", each, env=env) for each in ("photo", "n=x", "photo=/no/such")]
    assert (ran.code, '"name":"cat.png"' in ran.out, shown) == (0, True, ["data:image/png"])
    assert [one_line(each.err).removeprefix("perdure: ") for each in wrong] == [
        "--file 'photo' is not valid: expected NAME=PATH",
        "--file 'n=x' cannot be used: the input must be an object without 'n'",
        "--file 'photo=/no/such': /no/such cannot be read: No such file or directory",
    ]


@pytest.mark.usefixtures("storage")
async def test_r20_3_a_fork_reads_the_files_of_its_run_and_draws_nothing_again(dev_server: WorkflowEnvironment) -> None:
    drawn = {"_tool": "draw", "name": "a.png", "_outputPath": "†state.chart"}
    read = {"_tool": "measure", "picture": "†state.chart", "_outputPath": "†state.size"}
    script = [{"calls": [drawn], "output": None}, DONE, {"calls": [read], "output": None}, DONE]
    async with harness(await connect(dev_server), [draw, measure], script) as it:
        first = await it.run(agent("draw", "measure"))
        view = await forked(it, first.run_id, "2")
        shown = [pictures(request) for request in it.model.requests]
    assert view.status == "completed", view.error
    assert view.state == {"chart": first.state["chart"], "size": f"a.png has {len(PNG)} bytes of image/png"}
    assert [call.recorded for call in view.calls] == [True, False]
    assert shown == [[], *[["data:image/png"]] * 3]


async def test_r20_3_a_fork_of_a_session_and_its_export_have_its_files(
    dev_server: WorkflowEnvironment, storage: Path
) -> None:
    chat = {**ECHO, "config": {"models": {"fast": "gpt-4o", "smart": "gpt-4o"}}}
    async with desk(dev_server, looks, chat, client=await connect(dev_server)) as (session, it):
        picture = Image(data=PNG, name="a.png")
        assert await session.reply(await session.send("look", sender="ann", files=[picture]), HANG) == "1 picture"
        assert await session.reply(await session.send("and now?", sender="ann"), HANG) == "1 picture"
        fork = await session.fork("1")
        assert await fork.reply(await fork.send("what was it?", sender="ann"), HANG) == "1 picture"
        env = {"TEMPORAL_ADDRESS": it.client.service_client.config.target_host, "PERDURE_STORAGE": str(storage)}
        exported = await perdure("session", "export", fork.key, "--tenant", "acme", env=env)
        text = json.loads(exported.out)["entries"][0]["text"]
        loaded = await Perdure(it.client, task_queue=it.task_queue).load_media(text, tenant="acme")
    assert (loaded.name, loaded.read()) == ("a.png", PNG)
    assert len(stored(storage / "files")) == 1


def remembers(request: ChatRequest) -> Any:
    """Sum up when asked to, and read again what was summed up before saying how many pictures there are."""
    if "You keep the memory" in request.text:
        return Turn("Ann showed a picture.", dialect="tools")
    if "show it again" not in request.text:
        return {"calls": [], "output": "yes"}
    if "a.png" not in request.text:
        return {"calls": [{"_tool": "recall", "what": "1"}], "output": None}
    return looks(request)


@pytest.mark.usefixtures("storage")
async def test_r20_3_a_file_of_a_message_that_was_summed_up_is_seen_once_it_is_recalled(
    dev_server: WorkflowEnvironment,
) -> None:
    chat = {**ECHO, "config": {"session": {"context_tokens": 1_000}}}
    async with desk(dev_server, remembers, chat, [recall], client=await connect(dev_server)) as (session, it):
        picture = Image(data=PNG, name="a.png")
        await session.reply(await session.send("look", sender="ann", files=[picture]), HANG)
        for number in range(4):
            await session.reply(await session.send(f"A-100{number} {PADDING}", sender="ann"), HANG)
        await idles(session)
        assert "compaction" in [entry["type"] for entry in await session.read_entries()]
        answer = await session.reply(await session.send("show it again", sender="ann"), HANG)
        # The answer itself may fill the context again: a summary is then asked for beside it.
        asked = [
            each
            for each in it.model.requests
            if "show it again" in each.text and "You keep the memory" not in each.text
        ]
        before, after = asked
    assert picture.digest in before.text
    assert (pictures(before), pictures(after), answer) == ([], ["data:image/png"], "1 picture")
