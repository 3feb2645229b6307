"""Large values travel by external storage, in files and in S3; the model is shown a cut (R6.9)."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
from moto.server import ThreadedMotoServer
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Image, Media, Perdure, Selection, tool
from perdure.client.erasure import ErasureReport
from perdure.client.what_if import what_if
from perdure.errors import SettingsError
from perdure.hosting._storage import FileStorage, external_storage
from perdure.hosting.connection import data_converter
from perdure.hosting.model_client import ModelClient
from perdure.hosting.settings import Settings
from perdure.runs.what_if import Change
from perdure.runs.wire import AGENT_WORKFLOW, DECIDE, REFUSED
from perdure.values.limits import MAX_PAYLOAD
from tests.cli.test_commands import one_line, write
from tests.support import DONE, agent, harness, new_namespace, perdure
from tests.timeouts import HANG
from tests.workflows.test_delegates import parts, save

pytestmark = pytest.mark.asyncio(loop_scope="session")


REFERENCE = b"json/external-storage-reference"


PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40


@tool
def draw(name: str) -> Image:
    """Draw a chart."""
    return Image(data=PNG, name=name)


@tool
def weigh(picture: Image) -> str:
    """Weigh a picture."""
    return f"{len(picture.read())} bytes"


@tool
def make(size: int) -> str:
    """Make a text."""
    return "x" * size


@tool
def measure(text: str) -> int:
    """Measure a text."""
    return len(text)


async def connect(server: WorkflowEnvironment, namespace: str = "default") -> Client:
    """A client with the storage that the settings name."""
    address = server.client.service_client.config.target_host
    return await Client.connect(address, namespace=namespace, data_converter=data_converter())


def made(size: int) -> list[Any]:
    calls = [
        {"_tool": "make", "size": size, "_outputPath": "†state.text"},
        {"_tool": "measure", "text": "†state.text", "_outputPath": "†state.length"},
    ]
    return [{"calls": calls, "output": None}, DONE]


def stored(folder: Path) -> list[int]:
    return [path.stat().st_size for path in folder.rglob("*") if path.is_file()]


async def test_r6_9_five_megabytes_reach_the_next_tool_whole(
    dev_server: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_STORAGE", str(tmp_path))
    async with harness(await connect(dev_server), [make, measure], made(5_000_000)) as it:
        handle = await it.start(agent("make", "measure"))
        result = await handle.result()
        history = await handle.describe()
        shown = it.model.requests[1].text
    assert (result.status, result.state["length"]) == ("completed", 5_000_000)
    assert len(result.state["text"]) == 5_000_000
    assert "[5,000,000 characters; the rest: recall state.text]" in shown  # R10.18
    assert len(shown) < 30_000
    assert history.raw_description.workflow_execution_info.history_size_bytes < 100_000
    assert max(stored(tmp_path)) > 5_000_000


THRESHOLD = Settings().storage_threshold


@pytest.mark.parametrize(("size", "outside"), [(THRESHOLD - 1000, False), (THRESHOLD + 1000, True)])
async def test_r6_9_both_sides_of_the_threshold(
    dev_server: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, outside: bool
) -> None:
    monkeypatch.setenv("PERDURE_STORAGE", str(tmp_path))
    async with harness(await connect(dev_server), [make, measure], made(size)) as it:
        view = await it.run(agent("make", "measure"))
        shown = it.model.requests[1].text
    assert view.state["length"] == size
    # The tool's own result; the run's, which holds the value twice, is larger in any case.
    assert any(size < found < size + 2000 for found in stored(tmp_path)) == outside
    assert f"[{size:,} characters; the rest: recall state.text]" in shown


async def test_r8_7_results_of_a_loop_above_the_limit_of_a_payload(
    dev_server: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_STORAGE", str(tmp_path / "values"))
    maker = {
        "name": "maker",
        "context": [
            {"type": "tool", "tool": "make"},
            {"type": "input"},
            {
                "type": "plan",
                "plan": [{"_tool": "make", "size": "†input.item", "_outputPath": "†state.t"}],
                "output": "†state.t",
            },
        ],
    }
    call = {"_tool": "all", "_each": [300_000] * 10, "_outputPath": "†state.all"}
    script = parts(PARENT=[{"calls": [call], "output": None}, DONE])
    async with harness(await connect(dev_server), [make], script, agents=save(tmp_path, maker)) as it:
        result = await (await it.start(agent({"name": "all", "_delegate": "maker"}))).result()
    assert [len(text) for text in result.state["all"]] == [300_000] * 10
    assert MAX_PAYLOAD < 10 * 300_000


def forged() -> list[Payload]:
    """Payloads that claim to be stored where nothing of theirs is."""
    claims: list[tuple[str, Any]] = [
        ("perdure.files", {"sha256": "0" * 64}),
        ("perdure.files", {"sha256": "../../etc/passwd"}),
        ("perdure.files", {}),
        ("aws.s3driver", {"bucket": "others", "key": "x"}),
        ("nobody", {"sha256": "0" * 64}),
    ]
    written = [
        json.dumps({"driver_name": name, "driver_claim": {"claim_data": data}}).encode() for name, data in claims
    ]
    payloads = [Payload(metadata={"encoding": REFERENCE}, data=data) for data in [*written, b"{oops", b"[]"]]
    marked = Payload(metadata={"encoding": b"json/plain", "__temporal_external_storage_reference": b"true"}, data=b"{}")
    return [*payloads, marked]


async def attacker_starts(client: Client, queue: str, payload: Payload) -> BaseException | None:
    """How a run ends that is started with it."""
    name = f"forged-{uuid.uuid4().hex[:8]}"
    handle = await client.start_workflow(AGENT_WORKFLOW, RawValue(payload), id=name, task_queue=queue)
    with pytest.raises(WorkflowFailureError) as ended:
        await handle.result()
    return ended.value.cause


@pytest.mark.parametrize("stores", [True, False])
async def test_r18_6_a_forged_claim_of_storage_is_a_signal_that_is_none(
    dev_server: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stores: bool
) -> None:
    """The attack: a signal whose argument is said to lie in the storage. The run's tasks must not fail for it."""
    if stores:
        monkeypatch.setenv("PERDURE_STORAGE", str(tmp_path))
    plain = await Client.connect(dev_server.client.service_client.config.target_host)
    calls = [{"_tool": "erase", "path": "/x"}]

    @tool(dangerous=True)
    def erase(path: str) -> str:
        return path

    async with harness(await connect(dev_server), [erase], [{"calls": calls}, DONE]) as it:
        handle = await it.start(agent("erase"))
        await it.until_waiting(handle.id, "1.0")
        attacker = plain.get_workflow_handle(handle.id)
        for payload in forged():
            for name in ("approve", "calls", "nothing of ours"):
                await attacker.signal(name, RawValue(payload))
        with pytest.raises(WorkflowUpdateFailedError):
            await attacker.execute_update(DECIDE, RawValue(forged()[0]))
        await it.client.get_workflow_handle(handle.id).execute_update(DECIDE, {"call": "1.0", "decision": "approve"})
        result = await asyncio.wait_for(handle.result(), HANG)
        failed = [
            event
            async for event in handle.fetch_history_events()
            if event.HasField("workflow_task_failed_event_attributes")
        ]
        view = await it.view(handle.id)
        starts = [attacker_starts(plain, it.task_queue, payload) for payload in forged()]
        ends = await asyncio.wait_for(asyncio.gather(*starts), HANG)
    assert ([call.status for call in result.calls], failed) == (["done"], [])
    assert len([line for line in view.refusals if "cannot be read" in line["problem"]]) == len(forged())
    for cause in ends:
        assert isinstance(cause, ApplicationError)
        assert (cause.type, "cannot be read" in cause.message or "no input" in cause.message) == (REFUSED, True)


def damage(folder: Path) -> None:
    """Change the only file."""
    next(path for path in folder.rglob("*") if path.is_file()).write_bytes(b"two")


async def test_a_name_that_leads_elsewhere_and_a_damaged_value_are_refused(tmp_path: Path) -> None:
    from temporalio.converter import StorageDriverClaim, StorageDriverRetrieveContext, StorageDriverStoreContext

    storage = FileStorage(tmp_path)
    claims = await storage.store(StorageDriverStoreContext(), [Payload(data=b"one"), Payload(data=b"one")])
    assert claims[0] == claims[1]
    assert [one.data for one in await storage.retrieve(StorageDriverRetrieveContext(), claims)] == [b"one"] * 2
    with pytest.raises(ValueError, match="is not a valid name of a stored value"):
        await storage.retrieve(StorageDriverRetrieveContext(), [StorageDriverClaim({"sha256": "../../etc/passwd"})])
    damage(tmp_path)
    with pytest.raises(ValueError, match="was damaged"):
        await storage.retrieve(StorageDriverRetrieveContext(), claims)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A bucket on a server that speaks S3, found by AWS's own settings."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for key, value in {
        "AWS_ENDPOINT_URL_S3": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "PERDURE_STORAGE": "s3://values",
    }.items():
        monkeypatch.setenv(key, value)
    httpx.post(f"http://{host}:{port}/moto-api/reset").raise_for_status()  # its buckets are those of the process
    client = boto3.client("s3")
    client.create_bucket(Bucket="values", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    yield client
    server.stop()
    assert threading.active_count() < 200


async def test_r6_9_values_in_s3(dev_server: WorkflowEnvironment, s3: Any) -> None:
    async with harness(await connect(dev_server), [make, measure], made(5_000_000)) as it:
        view = await it.run(agent("make", "measure"))
    assert view.state["length"] == 5_000_000
    assert max(item["Size"] for item in s3.list_objects_v2(Bucket="values")["Contents"]) > 5_000_000


async def erase_all(perdure: Perdure, tenant: str, runs: list[str]) -> ErasureReport:
    """Erase the sender's runs once the server lists them all: its list comes later than their ends."""
    async with asyncio.timeout(HANG):
        while True:
            planned = await perdure.erase(tenant=tenant, sender="ann", dry_run=True)
            if planned.runs == sorted(runs):
                return await perdure.erase(tenant=tenant, sender="ann")
            await asyncio.sleep(0.1)


async def test_r20_3_files_in_s3_through_a_fork_a_what_if_and_an_erasure(
    dev_server: WorkflowEnvironment, s3: Any
) -> None:
    drawn = {"_tool": "draw", "name": "a.png", "_outputPath": "†state.chart"}
    size = {"_tool": "weigh", "picture": "†state.chart", "_outputPath": "†state.size"}
    answers = [{"calls": [drawn], "output": None}, {"calls": [size], "output": None}, {"output": "†state.size"}]
    drawer = Agent("drawer", instructions="Draw.", tools=[draw, weigh])
    tenant = f"t{uuid.uuid4().hex[:8]}"

    def files() -> list[str]:
        keys = [each["Key"] for each in s3.list_objects_v2(Bucket="values").get("Contents", [])]
        return [key for key in keys if key.startswith("files/")]

    client = await connect(dev_server, await new_namespace(dev_server.client))  # an erasure looks at all workflows
    async with harness(client, [draw, weigh], [*answers, *answers[1:], *answers]) as it:
        perdure = Perdure(it.client, task_queue=it.task_queue)
        run = await perdure.start(drawer, {"photo": Image(data=PNG, name="p.png")}, tenant=tenant, sender="ann")
        assert await run.result(HANG) == f"{len(PNG)} bytes"
        fork = await run.fork("2")
        assert await fork.result(HANG) == f"{len(PNG)} bytes"
        assert (await fork.view()).calls[0].recorded
        change = Change(agent=drawer.document(), model="gpt-4o")
        report = await what_if(it.client, change, ids=[run.id], models=ModelClient(it.model.client()))
        assert [each.problem for each in report.runs] == [None]
        assert len(files()) == 1  # the input and the chart have the same bytes
        erased = await erase_all(perdure, tenant, [run.id, fork.id])
    assert (erased.files, erased.remaining, files()) == (1, [], [])


async def until_listed(api: Perdure, tenant: str, runs: int) -> None:
    """Return once the index, which is a moment late, has the ends of so many runs."""
    async with asyncio.timeout(HANG):
        while True:
            if len([row async for row in api.list_runs(Selection(tenant=tenant)) if row.ended_at]) >= runs:
                return
            await asyncio.sleep(0.05)


async def test_r24_5_a_persons_values_and_files_leave_s3_and_those_of_others_stay(
    dev_server: WorkflowEnvironment, s3: Any
) -> None:
    tenant = f"tenant-{uuid.uuid4().hex[:8]}"

    def stored() -> list[str]:
        return sorted(each["Key"] for each in s3.list_objects_v2(Bucket="values").get("Contents", ()))

    file, shared = Media(data=b"only ann's", name="a.txt"), Media(data=b"both have it", name="b.txt")
    client = await connect(dev_server, await new_namespace(dev_server.client))  # an erasure looks at all workflows
    async with harness(client, [make, measure], [*made(300_000), *made(300_000)]) as it:
        api, document = Perdure(it.client, task_queue=it.task_queue), Agent.of(agent("make", "measure"))
        for sender, files in (("ann", [file, shared]), ("bob", [shared])):
            run = await api.start(document, {"files": files}, id=f"{tenant}-{sender}", sender=sender, tenant=tenant)
            await run.result(HANG)
        await until_listed(api, tenant, 2)
        before = stored()
        planned = await api.erase(tenant=tenant, sender="ann", dry_run=True)
        assert stored() == before
        report = await api.erase(tenant=tenant, sender="ann")
        left = stored()
    assert (report.values, report.files) == (planned.values, planned.files)
    assert report.files == 1
    assert report.values >= 1
    assert len(before) - len(left) == report.values + report.files
    assert not [key for key in left if f"/{tenant}-ann/" in key]
    assert (
        [key for key in left if f"/{tenant}-bob/" in key] == [key for key in before if f"/{tenant}-bob/" in key] != []
    )
    assert [(each.what, each.id) for each in report.remaining] == [("file", shared.digest)]


async def test_r24_9_files_in_s3_are_listed_and_replaced(s3: Any) -> None:
    storage: Any = external_storage()
    [driver] = storage.drivers
    await driver.put_named("ab", b"1")
    await driver.replace_named("ab", b"2")
    await driver.replace_named("cd", b"3")  # it was erased meanwhile
    assert await driver.list_named() == ["ab"]
    assert await driver.get_named("ab") == b"2"
    assert len(s3.list_objects_v2(Bucket="values")["Contents"]) == 1


async def test_a_place_of_another_kind_is_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_STORAGE", "gs://values")
    with pytest.raises(SettingsError, match="'gs://values' cannot be used: expected a folder, or s3://bucket"):
        external_storage()


async def test_a_threshold_that_is_no_number_is_one_line(tmp_path: Path) -> None:
    env = {"PERDURE_STORAGE": str(tmp_path), "PERDURE_STORAGE_THRESHOLD": "lots"}
    refused = await perdure("run", write(tmp_path, agent()), env=env)
    assert (
        refused.code,
        'PERDURE_STORAGE_THRESHOLD: must be a valid integer, not "lots"' in one_line(refused.err),
    ) == (2, True)
