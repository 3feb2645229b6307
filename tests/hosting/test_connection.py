"""Connections as a cluster wants them: TLS, certificates, keys, profiles, a server that comes later; one line where they are wrong (R12.6)."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment

from perdure import ToolContext, tool
from perdure.client.run_operations import start_run
from perdure.errors import ServerError
from perdure.hosting.connection import connect, connect_with_retry, data_converter, unreachable_error
from perdure.hosting.server import embedded_server, free_port
from perdure.runs.agent import parse_agent
from perdure.testing.toolbox import CuttableRelay
from tests.support import DONE, ROOT, agent, harness
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")


def _issue(folder: Path, name: str, host: str = "", by: str = "") -> None:
    """`NAME.pem` and `NAME.key`, signed by another of the folder or by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    signer, issuer = key, x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    subject = issuer
    if by:
        loaded = serialization.load_pem_private_key((folder / f"{by}.key").read_bytes(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        signer = loaded
        issuer = x509.load_pem_x509_certificate((folder / f"{by}.pem").read_bytes()).subject
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    built = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number(), now - day, now + day)
        .add_extension(x509.BasicConstraints(ca=not by, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host or name)]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    (folder / f"{name}.pem").write_bytes(built.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    (folder / f"{name}.key").write_bytes(pem)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    _issue(folder, "authority")
    _issue(folder, "server", "localhost", by="authority")
    _issue(folder, "client", by="authority")
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def tls_port(dev_server: WorkflowEnvironment, certificates: Path) -> AsyncIterator[int]:
    """The dev server behind TLS that wants a client's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    context.load_verify_locations(certificates / "authority.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    host, _, port = dev_server.client.service_client.config.target_host.rpartition(":")
    passing: set[asyncio.Task[None]] = set()

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while data := await source.read(65_536):
                sink.write(data)
                await sink.drain()
        sink.transport.abort()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port))
        for source, sink in ((reader, back), (there, writer)):
            passing.add(asyncio.create_task(pump(source, sink)))

    proxy = await asyncio.start_server(serve, "localhost", 0, ssl=context)
    yield proxy.sockets[0].getsockname()[1]
    proxy.close()
    for task in passing:
        task.cancel()
    await asyncio.gather(*passing)


def _set(monkeypatch: pytest.MonkeyPatch, **values: object) -> None:
    for name, value in values.items():
        monkeypatch.setenv(f"TEMPORAL_{name.upper()}", str(value))


async def test_tls_with_a_client_s_certificate(
    tls_port: int, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _set(monkeypatch, address=f"localhost:{tls_port}", tls_server_ca_cert_path=certificates / "authority.pem")
    _set(monkeypatch, tls_client_cert_path=certificates / "client.pem", tls_client_key_path=certificates / "client.key")
    assert (await connect_with_retry(connect, 0)).namespace == "default"


async def test_a_profile_and_a_key(
    tls_port: int, certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "temporal.toml"
    path.write_text(
        f'[profile.site]\naddress = "localhost:{tls_port}"\napi_key = "hush"\n[profile.site.tls]\n'
        f'server_ca_cert_path = "{certificates}/authority.pem"\nclient_cert_path = "{certificates}/client.pem"\n'
        f'client_key_path = "{certificates}/client.key"\n'
    )
    _set(monkeypatch, config_file=path, profile="site")
    client = await connect_with_retry(connect, 0)
    assert client.service_client.config.api_key == "hush"


@pytest.mark.parametrize("value", ['"sk-0123456789', '["sk-0123456789"]'])
async def test_a_key_in_a_file_that_cannot_be_read_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    (tmp_path / "temporal.toml").write_text(f"[profile.default]\napi_key = {value}\n", encoding="utf-8")
    _set(monkeypatch, CONFIG_FILE=tmp_path / "temporal.toml")
    with pytest.raises(ServerError, match=r"at line 2, column .*: invalid ") as refused:
        await connect()
    assert "sk-" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "ended the connection: it may need TLS: set TEMPORAL_TLS=true"),
        ({"tls": "true"}, "is not trusted: set TEMPORAL_TLS_SERVER_CA_CERT_PATH"),
        ({"tls_server_ca_cert_path": "authority.pem"}, "it may need a certificate: set TEMPORAL_TLS_CLIENT_CERT_PATH"),
        ({"tls_server_ca_cert_path": "authority.pem", "tls_server_name": "other"}, "is for another name: "),
    ],
)
async def test_what_is_wrong_with_tls_is_one_line(
    tls_port: int, certificates: Path, settings: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(certificates)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)  # the machine's own certificates
    _set(monkeypatch, address=f"localhost:{tls_port}", **settings)
    with pytest.raises(ServerError) as refused:
        await connect()
    assert said in str(refused.value)
    assert f"localhost:{tls_port}" in str(refused.value)


async def test_a_server_without_tls_and_a_namespace_that_is_not_there(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = dev_server.client.service_client.config.target_host
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)  # the machine's own certificates
    _set(monkeypatch, address=address, tls="true")
    with pytest.raises(ServerError, match=f"^{address} does not use TLS: leave out TEMPORAL_TLS"):
        await connect_with_retry(connect, 60)  # and is not waited for
    _set(monkeypatch, tls="false", namespace="nowhere")
    with pytest.raises(
        ServerError, match=f"^the namespace 'nowhere' does not exist at {address}: check TEMPORAL_NAMESPACE"
    ):
        await connect_with_retry(connect, 0)


@pytest.mark.parametrize(
    ("status", "said", "final"),
    [
        (RPCStatusCode.UNAUTHENTICATED, "a:1 does not accept the API key: check TEMPORAL_API_KEY", True),
        (RPCStatusCode.PERMISSION_DENIED, "a:1 denies this key or certificate access to namespace 'mine'", True),
        (RPCStatusCode.UNAVAILABLE, "no Temporal server answers at a:1", False),
        (RPCStatusCode.INTERNAL, "a:1 does not answer as a Temporal server", False),
    ],
)
async def test_what_a_server_refuses_names_the_setting(status: RPCStatusCode, said: str, final: bool) -> None:
    problem = unreachable_error(RPCError("no", status, b""), {"target_host": "a:1", "namespace": "mine"})
    assert str(problem).startswith(said)
    assert problem.final is final


@pytest.mark.parametrize("words", ["transport error", 'code: Cancelled, message: "operation was canceled"'])
async def test_a_server_may_end_a_connection_at_any_moment(words: str) -> None:
    assert "ended the connection: it may need TLS" in str(
        unreachable_error(RuntimeError(words), {"target_host": "a:1"})
    )


async def test_a_worker_waits_for_a_server_that_comes_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    _set(monkeypatch, address=f"127.0.0.1:{port}")
    tried = asyncio.Event()

    async def trying() -> object:
        try:
            return await connect()
        finally:
            tried.set()

    with caplog.at_level("WARNING", "perdure.worker"):
        waiting = asyncio.create_task(connect_with_retry(trying, 60))  # type: ignore[arg-type]
        await tried.wait()
        async with embedded_server(port=port, ui=False):
            await waiting
    assert [line for line in caplog.messages if "no Temporal server answers" in line] == caplog.messages
    assert caplog.messages[0].startswith("waiting up to 60 s more: ")
    assert len(caplog.messages) == 1


_CONTAINER = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")


def _child(process: int) -> int:
    return int(Path(f"/proc/{process}/task/{process}/children").read_text())


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run([*_CONTAINER, "true"], check=False, capture_output=True).returncode != 0,
    reason="this machine makes no process the first of its own",
)
async def test_a_worker_that_waits_ends_when_a_container_is_stopped() -> None:
    env = os.environ | {"TEMPORAL_ADDRESS": f"127.0.0.1:{free_port()}", "PERDURE_WAIT": "60"}
    command = [*_CONTAINER, sys.executable, str(ROOT / "worker.py")]
    container = await asyncio.create_subprocess_exec(*command, env=env, stderr=asyncio.subprocess.PIPE)
    try:
        assert container.stderr is not None
        assert b"waiting up to 60 s more" in await asyncio.wait_for(container.stderr.readline(), HANG)
        os.kill(_child(container.pid), signal.SIGTERM)
        # The kernel keeps a signal that nobody handles from the first process.
        assert await asyncio.wait_for(container.wait(), HANG) == 128 + signal.SIGTERM
    finally:
        with contextlib.suppress(ProcessLookupError):
            container.kill()


@pytest.mark.parametrize("seconds", [1, pytest.param(30, marks=pytest.mark.soak)])
async def test_a_server_that_goes_away_is_found_again(dev_server: WorkflowEnvironment, seconds: float) -> None:
    begun, go_on, paid = asyncio.Event(), asyncio.Event(), []

    @tool(retries=0)
    async def pay(context: ToolContext) -> None:
        paid.append(context.idempotency_key)
        begun.set()
        await go_on.wait()

    relay = CuttableRelay(dev_server.client.service_client.config.target_host)
    client = await Client.connect(await relay.open(), data_converter=data_converter())
    # Long enough that the worker is not taken for lost meanwhile.
    plan = [{"type": "plan", "plan": [{"_tool": "pay"}]}]
    document = agent({"name": "pay", "_heartbeat": 120, "_timeout": 300}, context=plan, config={"start": "plan"})
    try:
        async with harness(client, [pay], [DONE]) as it:
            handle = await start_run(dev_server.client, parse_agent(document), document, task_queue=it.task_queue)
            await begun.wait()
            relay.cut()
            await asyncio.sleep(seconds)  # nothing is waited for: it is gone for as long
            go_on.set()
            relay.heal()
            result = await handle.result()
    finally:
        await relay.close()
    assert [(call.status, call.attempts) for call in result.calls] == [("done", 1)]
    assert len(paid) == 1


async def test_an_embedded_server_prints_nothing_about_calls_that_its_clients_cancel(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with embedded_server(ui=False) as server:
        for step in range(600):  # some are cancelled while the server is at them
            count = asyncio.create_task(server.client.count_workflows("WorkflowType = 'none'"))
            await asyncio.sleep(step % 30 / 5000)
            count.cancel()
        await asyncio.gather(count, return_exceptions=True)
    assert "context canceled" not in capfd.readouterr().err


async def test_no_connection_of_the_machine_takes_a_free_port_before_its_server() -> None:
    ports = {free_port() for _ in range(50)}
    with contextlib.ExitStack() as held:
        for port in ports:
            taken = held.enter_context(socket.create_server(("127.0.0.1", port)))
            _, given = held.enter_context(socket.create_connection(taken.getsockname())).getsockname()
            assert port < 32_768 <= given
        assert ports.isdisjoint(free_port() for _ in range(50))
