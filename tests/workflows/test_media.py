"""Files as values: tools return and read them, models see those that they can read, and no history holds one (R20.3)."""

from __future__ import annotations

import base64
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Image, Media, MediaError, Perdure, tool
from perdure.hosting.connection import data_converter
from perdure.testing.scripted_model import Turn
from tests.support import DONE, agent, harness, storage_fixture
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")
storage = storage_fixture()

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 400
PDF = b"%PDF-1.7\n" + b"a page of it\n" * 50


@pytest.mark.parametrize(
    ("path", "line"),
    [("nowhere.png", "nowhere.png cannot be read: No such file or directory"), (5, "Media needs a path, not 5")],
)
async def test_a_file_that_cannot_be_read_is_refused_in_one_line(path: Any, line: str) -> None:
    with pytest.raises(MediaError, match=line):
        Media(path)


@tool
def draw(name: str) -> Image:
    """Draw a chart."""
    return Image(data=PNG, name=name)


@tool
def measure(picture: Image) -> str:
    """Measure a picture."""
    return f"{picture.name} has {len(picture.read())} bytes of {picture.type}"


@tool
def pack(files: list[Media]) -> dict[str, Any]:
    """Pack files: a file deep inside a value of no declared type."""
    return {"packed": [Media(data=file.read() + b"!", name=f"x {file.name}") for file in files]}


def stored(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def connect(server: WorkflowEnvironment) -> Client:
    return await Client.connect(server.client.service_client.config.target_host, data_converter=data_converter())


def pictures(request: Any) -> list[str]:
    """Types of the pictures that a model was shown."""
    contents = [message["content"] for message in request.messages if isinstance(message["content"], list)]
    parts = [part for content in contents for part in content]
    return [part["image_url"]["url"].partition(";")[0] for part in parts if part["type"] == "image_url"]


DRAWN: list[Any] = [
    {
        "calls": [
            {"_tool": "draw", "name": "chart.png", "_outputPath": "†state.chart"},
            {"_tool": "measure", "picture": "†state.chart", "_outputPath": "†state.measured"},
        ],
        "output": None,
    },
    {"output": "†state.chart"},
]


@pytest.mark.parametrize("dialect", ["solution", "tools", "script"])
@pytest.mark.parametrize(("model", "shown"), [("gpt-4.1", ["data:image/png"]), ("small", [])])
async def test_r20_3_a_picture_reaches_the_next_tool_and_a_model_that_sees(
    dev_server: WorkflowEnvironment, storage: Path, dialect: str, model: str, shown: list[str]
) -> None:
    document = agent("draw", "measure", config={"models": {"fast": model, "smart": model}, "dialect": dialect})
    async with harness(await connect(dev_server), [draw, measure], DRAWN) as it:
        it.model.dialect, it.model.kinds = dialect, ["state"]
        handle = await it.start(document)
        result = await handle.result()
        history = (await handle.fetch_history()).to_json()
        first, second = it.model.requests
    value = result.state["chart"]
    assert value == {"_media": value["_media"], "type": "image/png", "bytes": len(PNG), "name": "chart.png"}
    assert result.output == value
    assert result.state["measured"] == f"chart.png has {len(PNG)} bytes of image/png"
    assert f"[image/png, {len(PNG):,} bytes, chart.png, {value['_media']}]" in second.text
    assert (pictures(first), pictures(second)) == ([], shown)
    assert base64.b64encode(PNG[1000:1300]).decode() not in history
    assert list(stored(storage / "files")) == [value["_media"][7:]]


@pytest.mark.usefixtures("storage")
async def test_r20_3_a_worker_says_which_files_a_model_of_its_own_server_reads(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_MODEL_FILES", "llava*=images, gpt-4.1=documents")
    client = await connect(dev_server)
    for model, shown in (("llava:13b", ["data:image/png"]), ("gpt-4.1", [])):
        async with harness(client, [], [{"output": "seen"}]) as it:
            looker = Agent("looker", instructions="Look.", input=dict[str, Any], models={"fast": model, "smart": model})
            given = {"file": Image(data=PNG, name="a.png")}
            await Perdure(client, task_queue=it.task_queue).run(looker, given)
            (request,) = it.model.requests
        assert pictures(request) == shown


@pytest.mark.usefixtures("storage")
async def test_r20_3_any_model_reads_a_text_without_the_workers_secrets(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_API_KEY", "sk-0123456789abcdef")
    table = Media(data=b"id,total\r\n1,42\r\n", name="orders.csv")
    notes = Media(data=b"the key is sk-0123456789abcdef", name="notes.md")
    reader = Agent("reader", instructions="Read.", input=dict[str, Any])
    client = await connect(dev_server)
    async with harness(client, [], [{"output": "read"}]) as it:
        await Perdure(client, task_queue=it.task_queue).run(reader, {"files": [table, notes]})
        (request,) = it.model.requests
    assert f"{table.value.line}\nid,total\r\n1,42\r\n\n[end of {table.digest[:23]}]" in request.text
    assert "the key is " in request.text
    assert "sk-0123456789abcdef" not in request.text


@pytest.mark.usefixtures("storage")
async def test_r20_3_files_go_in_and_come_out(dev_server: WorkflowEnvironment) -> None:
    client = await connect(dev_server)
    given = Agent("packer", instructions="Pack.", tools=[pack], input=dict[str, Any])
    calls = [{"_tool": "pack", "files": "†input.files", "_outputPath": "†state.all"}]
    script: list[Any] = [{"calls": calls, "output": None}, {"output": "†state.all.packed[1]"}]
    async with harness(client, [pack], script) as it:
        perdure = Perdure(client, task_queue=it.task_queue)
        files = [Image(data=PNG, name="a.png"), Media(data=PDF, name="b.pdf")]
        output = await perdure.run(given, {"files": files})
        loaded = await perdure.load_media(output)
        first = it.model.requests[0]
    assert (loaded.name, loaded.type, loaded.read()) == ("x b.pdf", "application/pdf", PDF + b"!")
    assert all(file.value.line in first.text for file in files)
    assert pictures(first) == ["data:image/png"]


@pytest.mark.usefixtures("storage")
async def test_r20_3_a_sessions_later_runs_see_its_files(dev_server: WorkflowEnvironment) -> None:
    client = await connect(dev_server)
    chat = Agent("chat", instructions="Chat.")
    async with harness(client, [], [{"output": "A chart."}, {"output": "Still one."}]) as it:
        session = Perdure(client, task_queue=it.task_queue).session(f"media-{uuid.uuid4().hex[:8]}", agent=chat)
        for text, files in (("What is it?", [Image(data=PNG, name="a.png")]), ("And now?", [])):
            receipt = await session.send(text, sender="ann", files=files)
            await session.wait(receipt)
        view = await session.show()
        first, second = it.model.requests
        await session.delete(sender="ann", rights=["*"])
    assert pictures(first) == pictures(second) == ["data:image/png"]
    assert "a.png, sha256:" in str(view)


@pytest.mark.usefixtures("storage")
async def test_r20_3_a_file_that_the_server_refuses_does_not_end_the_conversation(
    dev_server: WorkflowEnvironment,
) -> None:
    def answer(request: Any) -> Any:
        return Turn("Could not process image", status=400) if pictures(request) else {"output": "No chart."}

    client = await connect(dev_server)
    chat = Agent("chat", instructions="Chat.")
    async with harness(client, [], answer) as it:
        session = Perdure(client, task_queue=it.task_queue).session(f"media-{uuid.uuid4().hex[:8]}", agent=chat)
        for text, files in (("What is it?", [Image(data=PNG, name="a.png")]), ("And now?", [])):
            await session.wait(await session.send(text, sender="ann", files=files))
        left_out = ["the model's server refuses it" in request.text for request in it.model.requests]
        await session.delete(sender="ann", rights=["*"])
    assert left_out == [False, True, True]  # the second run's Request is sent once


async def test_r20_3_without_storage_a_file_is_one_clear_error(dev_server: WorkflowEnvironment) -> None:
    script: list[Any] = [{"calls": [{"_tool": "draw", "name": "a.png"}], "output": None}, DONE]
    async with harness(dev_server.client, [draw], script) as it:
        view = await it.run(agent("draw"))
        with pytest.raises(MediaError, match="PERDURE_STORAGE"):
            await Perdure(dev_server.client).save_media(Image(data=PNG))
    assert view.calls[0].error is not None
    assert view.calls[0].error["code"] == "file"
    assert "set PERDURE_STORAGE" in view.calls[0].error["message"]


@pytest.mark.usefixtures("storage")
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"_media": f"sha256:{'0' * 64}", "type": "image/png", "bytes": 5}, "is not in this storage"),
        ("a picture", "expected a image/* file"),
    ],
)
async def test_r20_3_a_file_that_is_none_is_the_calls_error(
    dev_server: WorkflowEnvironment, value: Any, words: str
) -> None:
    script: list[Any] = [{"calls": [{"_tool": "measure", "picture": value}], "output": None}, DONE]
    async with harness(await connect(dev_server), [measure], script) as it:
        view = await it.run(agent("measure"))
    assert words in str(view.calls[0].error)


@pytest.mark.usefixtures("storage")
async def test_r20_3_a_lie_about_a_files_type_is_found(dev_server: WorkflowEnvironment) -> None:
    client = await connect(dev_server)
    [page] = await Perdure(client).save_media(Media(data=b"<script>alert(1)</script>", name="page.html"))
    lie = {**page, "type": "image/png"}  # type: ignore[dict-item]
    script: list[Any] = [{"calls": [{"_tool": "measure", "picture": lie}], "output": None}, DONE]
    async with harness(client, [measure], script) as it:
        view = await it.run(agent("measure", context=[{"type": "data", "data": lie}]))
        assert pictures(it.model.requests[0]) == []
    assert "page.html is text/plain; expected image/*" in str(view.calls[0].error)


async def test_r20_3_what_is_stored_is_encrypted_where_values_are(
    dev_server: WorkflowEnvironment, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_CODEC", "perdure.encryption:aes_gcm")
    monkeypatch.setenv("PERDURE_CODEC_KEYS", json.dumps({"k": base64.b64encode(bytes(32)).decode()}))
    perdure = Perdure(await connect(dev_server))
    [value] = await perdure.save_media(Media(data=PDF))
    assert (await perdure.load_media(value)).read() == PDF
    assert [PDF[:20] in data for data in stored(storage).values()] == [False]


@pytest.mark.usefixtures("storage")
async def test_r20_3_an_agents_output_may_be_a_picture(dev_server: WorkflowEnvironment) -> None:
    client = await connect(dev_server)
    drawer = Agent("drawer", instructions="Draw.", tools=[draw], output=Image)
    script: list[Any] = [{"calls": DRAWN[0]["calls"][:1], "output": "†state.chart"}]
    async with harness(client, [draw], script) as it:
        perdure = Perdure(client, task_queue=it.task_queue)
        output = await perdure.run(drawer, timeout=HANG)
        loaded = await perdure.load_media(output)
    assert isinstance(output, Image)
    assert loaded.read() == PNG


@pytest.mark.usefixtures("storage")
async def test_r20_3_a_digest_opens_no_file_of_another_tenant(dev_server: WorkflowEnvironment) -> None:
    client = await connect(dev_server)
    reader = Agent("reader", instructions="Measure.", tools=[measure], input=dict[str, Any])
    calls = [{"_tool": "measure", "picture": "†input.file", "_outputPath": "†state.measured"}]
    script: list[Any] = [{"calls": calls, "output": None}, {"output": "Done."}]
    async with harness(client, [measure], script * 3) as it:
        perdure = Perdure(client, task_queue=it.task_queue)
        file = Image(data=PNG, name="a.png")
        copied = file.value.as_json()
        found = []
        for given, tenant in ((file, "acme"), (copied, "rival"), (copied, "")):
            run = await perdure.start(reader, {"file": given}, tenant=tenant)
            view = await run.wait(timeout=HANG)
            found.append((view.calls[0].error is None, pictures(it.model.requests[-1])))
        loaded = await perdure.load_media(file.value.as_json(), tenant="acme")
        for tenant in ("rival", ""):
            with pytest.raises(MediaError, match="is not in this storage"):
                await perdure.load_media(copied, tenant=tenant)
    assert found == [(True, ["data:image/png"]), (False, []), (False, [])]
    assert loaded.read() == PNG


@pytest.mark.usefixtures("storage")
async def test_r20_3_a_delegate_and_a_loop_read_files_of_their_runs_tenant(dev_server: WorkflowEnvironment) -> None:
    client = await connect(dev_server)
    below = Agent("below", instructions="Measure.", tools=[measure], input=dict[str, Any])
    above = Agent("above", instructions="Delegate.", tools=[measure, below], input=dict[str, Any])
    looped = {"_tool": "below", "_each": [{"file": "†input.file"}], "_outputPath": "†state.all"}
    measured = {"_tool": "measure", "picture": "†input.item.file", "_outputPath": "†state.m"}
    script: list[Any] = [
        {"calls": [looped], "output": None},
        {"calls": [measured], "output": "†state.m"},
        {"output": "†state.all"},
    ]
    async with harness(client, [measure], script) as it:
        perdure = Perdure(client, task_queue=it.task_queue)
        run = await perdure.start(above, {"file": Image(data=PNG, name="a.png")}, tenant="acme")
        view = await run.wait(timeout=HANG)
        shown = [pictures(request) for request in it.model.requests]
    assert view.output == [f"a.png has {len(PNG)} bytes of image/png"]
    assert shown == [["data:image/png"]] * 3


@pytest.mark.usefixtures("storage")
async def test_r20_3_a_value_that_names_fewer_bytes_than_its_file_has_is_refused(
    dev_server: WorkflowEnvironment,
) -> None:
    client = await connect(dev_server)
    [value] = await Perdure(client).save_media(Image(data=PNG, name="a.png"))
    assert isinstance(value, dict)
    forged = value | {"bytes": 0}
    script: list[Any] = [{"calls": [{"_tool": "measure", "picture": forged}], "output": None}, DONE]
    async with harness(client, [measure], script) as it:
        view = await it.run(agent("measure", context=[{"type": "data", "data": forged}]))
        assert pictures(it.model.requests[0]) == []
    assert f"has {len(PNG):,} bytes" in str(view.calls[0].error)


@pytest.mark.usefixtures("storage")
async def test_r20_3_files_are_left_out_in_vain_once(dev_server: WorkflowEnvironment) -> None:
    files = [Media(data=PNG + bytes([number]), name="a.png") for number in range(3)]
    document = Agent.of(agent(config={"models": {"fast": "gpt-4.1"}}))
    async with harness(await connect(dev_server), [], lambda _: Turn("Invalid argument: image.", status=400)) as it:
        run = await Perdure(it.client, task_queue=it.task_queue).start(document, {"files": files})
        view = await run.wait(HANG)
        shown = [len(pictures(request)) for request in it.model.requests]
    assert (view.status, shown) == ("failed", [3, 2, 1, 0])
