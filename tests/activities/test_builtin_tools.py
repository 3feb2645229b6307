"""The tools that come with Perdure: what they do, and what they refuse."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import inspect
import json
import os
import resource
import socket
import sys
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from temporalio.testing import WorkflowEnvironment

from perdure import ToolContext, ToolError, tool
from perdure.activities.http_addresses import allowed_address
from perdure.activities.registry import load_tools
from perdure.activities.tools import ToolSettings, built_in, commands, jail
from perdure.activities.tools.http import _origin
from perdure.approvals.policy import Guard
from perdure.client.run import Run
from perdure.tools.decorator import ToolFunction
from perdure.tools.tool import resolve_tools
from tests.cpu import lap
from tests.support import DONE, ROOT, agent, harness, perdure, serving
from tests.timeouts import HANG

pytestmark = pytest.mark.asyncio(loop_scope="session")


def tools(**settings: Any) -> dict[str, ToolFunction]:
    return {function.name: function for function in built_in(ToolSettings(**settings))}


async def call(function: ToolFunction, **params: Any) -> Any:
    """The function's result, as the worker would have it."""
    context = ToolContext(function.name, function.definition, {}, "1.0", "run/1.0")
    arguments = function.bind(params, context)
    result = function.function(**arguments) if not function.is_async else await function.function(**arguments)
    return function.dump(result)


async def refusal(function: ToolFunction, **params: Any) -> str:
    with pytest.raises(ToolError) as caught:
        await call(function, **params)
    return caught.value.code


# Files.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("ä", encoding="utf-8")
    (tmp_path / "secret.txt").write_text("secret")
    (root / "link.txt").symlink_to(tmp_path / "secret.txt")
    (root / "out").symlink_to(tmp_path)
    return root


async def test_files_inside_a_folder(folder: Path) -> None:
    found = tools(files=folder)
    assert await call(found["read_file"], path="a.txt") == "ä"
    assert await call(found["write_file"], path="new/deep/b.txt", content="one") == {
        "path": "new/deep/b.txt",
        "bytes": 3,
    }
    await call(found["write_file"], path="new/deep/b.txt", content="two")
    assert (folder / "new/deep/b.txt").read_text() == "two"
    assert [row["name"] for row in await call(found["list_files"], path="new/deep")] == ["b.txt"]
    kinds = {row["name"]: row["kind"] for row in await call(found["list_files"])}
    assert kinds == {"a.txt": "file", "link.txt": "link", "new": "folder", "out": "link", "sub": "folder"}


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt", "sub/../../secret.txt", "/etc/passwd", "link.txt", "out/secret.txt", "", ".", "a\0b",
        "sub/./../../secret.txt", "..", "out",
    ],
)  # fmt: skip
async def test_no_way_out_of_the_folder(folder: Path, path: str) -> None:
    found = tools(files=folder)
    assert await refusal(found["read_file"], path=path) in ("outside", "not_readable", "not_a_file")
    assert await refusal(found["write_file"], path=path, content="x") in ("outside", "not_readable", "not_a_file")
    assert (folder.parent / "secret.txt").read_text() == "secret"
    if path not in ("", "."):
        assert await refusal(found["list_files"], path=path) in ("outside", "not_readable")


async def test_odd_files_are_errors_that_do_not_name_the_folder(folder: Path) -> None:
    found = tools(files=folder)
    os.mkfifo(folder / "pipe")
    (folder / "big").write_bytes(b"x" * 1_000_001)
    (folder / "bytes").write_bytes(b"\xff\xfe")
    codes = [await refusal(found["read_file"], path=path) for path in ("pipe", "big", "bytes", "none", "sub")]
    assert codes == ["not_a_file", "too_large", "not_text", "no_such_file", "not_a_file"]
    with pytest.raises(ToolError) as caught:
        await call(found["read_file"], path="none/at/all")
    assert str(folder) not in str(caught.value)


async def test_names_that_no_file_can_have(folder: Path) -> None:
    write = tools(files=folder)["write_file"]
    for path in ("a/" * 20_000 + "b", "x" * 256, "ä" * 128, "\ud800", "ok/" + "y" * 300 + "/z"):
        assert await refusal(write, path=path, content="x") == "invalid_params"
    assert sorted(os.listdir(folder)) == ["a.txt", "link.txt", "out", "sub"]
    await call(write, path="x" * 255, content="x")
    assert await refusal(write, path="a.txt/b", content="x") == "not_readable"


async def test_a_folder_with_odd_names_is_listed(folder: Path) -> None:
    found = tools(files=folder)
    os.close(os.open(os.fsencode(folder) + b"/\xff\xfe", os.O_CREAT))
    os.close(os.open(os.fsencode(folder) + b"/new\nline", os.O_CREAT))
    names = [row["name"] for row in await call(found["list_files"])]
    assert "\ufffd\ufffd" in names
    assert json.dumps(names).encode()
    for number in range(1001):
        (folder / "sub" / str(number)).touch()
    assert await refusal(found["list_files"], path="sub") == "too_many"


# Commands.


async def test_commands(folder: Path) -> None:
    run = tools(commands=["cat", "sh", "sleep", "env", "pwd"], files=folder)["run_command"]
    assert run.definition["_dangerous"] is True
    assert await call(run, argv=["cat"], stdin="hello; $(ls)") == {
        "exitCode": 0,
        "stdout": "hello; $(ls)",
        "stderr": "",
    }
    assert (await call(run, argv=["pwd"]))["stdout"].strip() == str(folder)
    failed = await call(run, argv=["cat", "none"])
    assert (failed["exitCode"], "none" in failed["stderr"]) == (1, True)
    assert "OPENAI_API_KEY" not in (await call(run, argv=["env"]))["stdout"]
    assert await refusal(run, argv=["ls"]) == "not_allowed"
    assert await refusal(run, argv=["/bin/cat"]) == "not_allowed"
    assert await refusal(run, argv=[]) == "not_allowed"
    long = await call(run, argv=["sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x"])
    assert len(long["stdout"]) < 100_100
    assert long["stdout"].endswith("… (200,000 more bytes)")


async def test_a_command_that_takes_too_long_is_stopped_with_what_it_started(folder: Path) -> None:
    run = tools(commands=["sh"], files=folder)["run_command"]
    # Who waited for the program would be ended by pytest.
    assert await refusal(run, argv=["sh", "-c", "(sleep 600; touch late) & sleep 600"], timeout=0.3) == "timeout"
    assert not (folder / "late").exists()


@contextmanager
def gone_when_closed(folder: Path) -> Iterator[Callable[[], Awaitable[bool]]]:
    """Yield a function that waits until no process holds `alive` open, and returns whether that came. `ready` tells that one has opened it."""
    os.mkfifo(folder / "alive")
    os.mkfifo(folder / "ready")
    handle = os.open(folder / "alive", os.O_RDONLY | os.O_NONBLOCK)
    own = os.open(folder / "alive", os.O_WRONLY)  # without any writer its end would never come
    closed = asyncio.Event()

    def look() -> None:
        with contextlib.suppress(BlockingIOError):
            if os.read(handle, 100) == b"":
                closed.set()

    async def wait() -> bool:
        loop = asyncio.get_running_loop()
        loop.add_reader(handle, look)
        os.close(own)
        try:
            return await asyncio.wait_for(closed.wait(), HANG)
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(handle)

    try:
        yield wait
    finally:
        os.close(handle)


HOLD = "exec 9>alive; echo up >ready; sleep 600"
ESCAPES = {
    "setsid": ["sh", "-c", f"setsid sh -c '{HOLD}' & read up <ready; echo done"],
    "orphan": ["sh", "-c", f"(setsid sh -c '(setsid sh -c \"{HOLD}\" &)' &); read up <ready; echo done"],
    "git alias": ["git", "-c", f"alias.x=!setsid sh -c '{HOLD}' & read up <ready; echo done", "x"],
}


def without_namespaces(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a system that lets nobody have one."""
    source = inspect.getsource(jail).replace("walled = _own_namespace()", "walled = False")
    (folder / "jail.py").write_text(source)
    monkeypatch.setattr(commands, "_JAIL", folder / "jail.py")


@pytest.mark.parametrize("walled", [True, False])
@pytest.mark.parametrize("escape", ESCAPES)
async def test_nothing_that_a_command_starts_outlives_it(
    escape: str, walled: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not walled:
        without_namespaces(folder.parent, monkeypatch)
    run = tools(commands=["sh", "git"], files=folder)["run_command"]
    with gone_when_closed(folder) as gone:
        ended = await call(run, argv=ESCAPES[escape])  # which does not wait for who keeps the pipes
        assert (ended["exitCode"], ended["stdout"]) == (0, "done\n")
        assert await gone()


@pytest.mark.parametrize("how", ["timeout", "cancelled", "killed from inside"])
async def test_a_command_that_is_stopped_ends_with_all_it_started(how: str, folder: Path) -> None:
    run = tools(commands=["sh"], files=folder)["run_command"]
    script = f"setsid sh -c '{HOLD}' & " + (
        "read up <ready; kill -9 $PPID; sleep 600" if "inside" in how else "sleep 600"
    )
    with gone_when_closed(folder) as gone:
        if how == "cancelled":
            task = asyncio.create_task(call(run, argv=["sh", "-c", script]))
            reader = await asyncio.to_thread(open, folder / "ready", "rb")  # opens when the child has
            task.cancel()
            reader.close()
            await asyncio.gather(task, return_exceptions=True)
        else:
            assert await refusal(run, argv=["sh", "-c", script], timeout=1.5) == "timeout"
        assert await gone()


@pytest.mark.parametrize("signal", ["KILL", "STOP"])
async def test_a_program_that_kills_its_jail_does_not_outlive_it(
    signal: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack, where there are no namespaces: the jail is a process of the same user. Another call goes on meanwhile."""
    without_namespaces(folder.parent, monkeypatch)
    monkeypatch.setattr(commands, "_GRACE", 0.5)
    os.mkfifo(folder / "sent")
    run = tools(commands=["sh", "cat"], files=folder)["run_command"]
    lower = "import resource, os; resource.setrlimit(10, (5, 5)); os.setsid()"  # to shed the mark that all of them bear
    script = (
        f"python3 -c '{lower}; os.system(\"{HOLD}\")' & read up <ready; kill -{signal} $PPID; echo up >sent; sleep 600"
    )
    os.mkfifo(folder / "gate")
    other = asyncio.create_task(call(run, argv=["cat", "gate"]))
    with gone_when_closed(folder) as gone:
        if signal == "KILL":
            assert await refusal(run, argv=["sh", "-c", script]) == "killed"
        else:
            task = asyncio.create_task(call(run, argv=["sh", "-c", script]))
            reader = await asyncio.to_thread(open, folder / "sent", "rb")  # opens when the jail was stopped
            task.cancel()
            reader.close()
            await asyncio.gather(task, return_exceptions=True)
        assert await gone()
    gate = await asyncio.to_thread(os.open, folder / "gate", os.O_WRONLY)  # opens when the other program reads
    os.write(gate, b"through")
    os.close(gate)
    assert await other == {"exitCode": 0, "stdout": "through", "stderr": ""}


async def test_a_command_ends_when_its_worker_is_killed(folder: Path) -> None:
    code = (
        "import asyncio; from perdure.activities.tools import ToolSettings, built_in; from pathlib import Path\n"
        f"tools = {{t.name: t for t in built_in(ToolSettings(commands=['sh'], files=Path({str(folder)!r})))}}\n"
        f"asyncio.run(tools['run_command'].function(argv=['sh', '-c', {HOLD!r}]))\n"
    )
    with gone_when_closed(folder) as gone:
        worker = await asyncio.create_subprocess_exec(sys.executable, "-c", code, cwd=ROOT)
        reader = await asyncio.to_thread(open, folder / "ready", "rb")  # opens when the command has
        worker.kill()
        await worker.wait()
        reader.close()
        assert await gone()


async def test_a_command_cannot_read_the_worker(folder: Path) -> None:
    run = tools(commands=["cat", "env", "python3"], files=folder)["run_command"]
    for name in ("environ", "mem", "maps"):
        told = await call(run, argv=["cat", f"/proc/{os.getpid()}/{name}"])
        assert (told["exitCode"], told["stdout"]) == (1, ""), name
        assert "Permission denied" in told["stderr"]
    assert {line.split("=")[0] for line in (await call(run, argv=["env"]))["stdout"].split()} == {"PATH", "LANG"}
    greedy = await call(run, argv=["python3", "-c", "b'x' * (5 << 30)"])
    assert greedy["exitCode"] == 1
    assert "MemoryError" in greedy["stderr"]


# HTTP.


@asynccontextmanager
async def website() -> AsyncIterator[tuple[str, list[dict[str, str]]]]:
    seen: list[dict[str, str]] = []

    async def echo(request: Request) -> Response:
        seen.append(dict(request.headers) | {"method": request.method})
        return JSONResponse({"body": (await request.body()).decode()})

    async def endless(_: Request) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(200):  # a client that has gone away is not noticed by who only writes
                yield b"x" * 65536
                await asyncio.sleep(0)

        return StreamingResponse(chunks())

    async def slow(_: Request) -> Response:
        await asyncio.sleep(3)
        return PlainTextResponse("late")

    def to_other(request: Request) -> Response:
        there = f"http://localhost:{request.url.port}/echo"
        return RedirectResponse(there, int(request.query_params.get("status", 307)))

    routes = [
        Route("/echo", echo, methods=["GET", "POST", "DELETE"]),
        Route("/endless", endless),
        Route("/slow", slow),
        Route("/bytes", lambda _: Response(b"\xff\xfe", media_type="image/png")),
        Route("/to-echo", lambda _: RedirectResponse("/echo", 303), methods=["GET", "POST"]),
        Route("/to-other", to_other, methods=["GET", "POST", "DELETE"]),
        Route("/to-file", lambda _: RedirectResponse("file:///etc/passwd")),
        Route("/round", lambda _: RedirectResponse("/round")),
    ]
    async with serving(Starlette(routes=routes)) as url:
        yield url, seen


async def test_http_requests() -> None:
    async with website() as (url, seen):
        ask = tools(http_hosts=["127.0.0.1"], http_private=True)["http_request"]
        answer = await call(
            ask, url=f"{url}/echo", method="POST", body={"a": 1}, headers={"Host": "evil", "X-Own": "1"}
        )
        assert (answer["status"], answer["body"]) == (200, {"body": '{"a": 1}'})
        assert (seen[0]["host"], seen[0]["x-own"], seen[0]["content-type"]) == (url[7:], "1", "application/json")
        assert seen[0]["idempotency-key"] == "run/1.0"
        assert (await call(ask, url=f"{url}/bytes"))["base64"] == "//4="
        assert (await call(ask, url=f"{url}/none"))["status"] == 404
        assert (await call(ask, url=f"{url}/echo", method="HEAD"))["status"] in (200, 405)
        moved = await call(ask, url=f"{url}/to-echo", method="POST", body="x")
        assert (moved["url"], seen[-1]["method"]) == (f"{url}/echo", "GET")


async def test_http_requests_are_bounded() -> None:
    async with website() as (url, _):
        ask = tools(http_hosts=["127.0.0.1"], http_private=True)["http_request"]
        assert await refusal(ask, url=f"{url}/endless") == "too_large"
        assert await refusal(ask, url=f"{url}/slow", timeout=0.3) == "timeout"
        assert await refusal(ask, url=f"{url}/round") == "too_many_redirects"


async def test_http_requests_go_where_they_may_and_redirects_too() -> None:
    async with website() as (url, seen):
        ask = tools(http_hosts=["127.0.0.1", "*.example.org"], http_private=True)["http_request"]
        assert await refusal(ask, url=f"{url}/to-other") == "not_allowed"
        assert await refusal(ask, url=f"{url}/to-file") == "not_allowed"
        assert await refusal(ask, url=url.replace("127.0.0.1", "localhost")) == "not_allowed"
        assert await refusal(ask, url="https://example.org.evil.com/") == "not_allowed"
        assert await refusal(ask, url="ftp://127.0.0.1/") == "not_allowed"
        assert await refusal(ask, url="http://user:pw@127.0.0.1/") == "not_allowed"
        assert await refusal(ask, url="nonsense") == "not_allowed"
        public = tools(http_hosts=["*"])["http_request"]
        for address in (
            url,
            url.replace("127.0.0.1", "localhost"),
            "http://[::1]/",
            "http://[::ffff:10.0.0.1]/",
            "http://2130706433/",
        ):
            assert await refusal(public, url=address) == "not_allowed"
        assert seen == []
        both = tools(http_hosts=["127.0.0.1", "localhost"], http_private=True)["http_request"]
        await call(both, url=f"{url}/to-other", headers={"Authorization": "Bearer x", "Accept": "text/x"})
        assert (seen[0].get("authorization"), seen[0]["accept"]) == (None, "text/x")
        for method in ("POST", "DELETE"):
            with pytest.raises(
                ToolError, match=rf"sends a {method} on to http://localhost:\d+/echo, another server"
            ) as refused:
                await call(both, url=f"{url}/to-other", method=method, body="pay")
            assert (refused.value.code, refused.value.retry) == ("redirected", False)
        await call(both, url=f"{url}/to-other?status=303", method="POST", body="pay")
        await call(both, url=f"{url}/to-other", body="of a GET")
        assert [(one["method"], one.get("content-length"), one.get("idempotency-key")) for one in seen[1:]] == [
            ("GET", None, None)
        ] * 2
        await call(both, url=f"{url}/echo", headers={"X-HTTP-Method-Override": "DELETE"})
        assert "x-http-method-override" not in seen[-1]


@asynccontextmanager
async def raw_server(answer: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[tuple[str, list[str]]]:
    """A server that writes what it likes; gives its address, and the heads of the requests that it was sent."""
    heads: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            await answer(writer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads


def bomb(layers: int) -> bytes:
    """2 GB of nothing, so encoded."""
    packer = zlib.compressobj(9, wbits=-15)
    block = packer.compress(b"\0" * (1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    data = gzip.compress(b"")[:10] + block * 2048 + b"\x03\x00" + bytes(8)
    for _ in range(layers - 1):
        data = gzip.compress(data)
    return data


@pytest.mark.parametrize("layers", [1, 2])
async def test_an_answer_that_grows_when_it_is_decoded(layers: int) -> None:
    data = bomb(layers)
    head = f"HTTP/1.1 200 OK\r\ncontent-encoding: {', '.join(['gzip'] * layers)}\r\ncontent-length: {len(data)}\r\n\r\n"

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(head.encode() + data)

    ask = tools(http_hosts=["127.0.0.1"], http_private=True)["http_request"]
    before = resource.getrusage(resource.RUSAGE_SELF)
    async with raw_server(answer) as (url, _):
        assert await refusal(ask, url=url) == "too_large"
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_utime - before.ru_utime < 1
    assert after.ru_maxrss - before.ru_maxrss < 200_000  # kB


@pytest.mark.parametrize(
    ("encoding", "body", "code"),
    [
        ("br", b"x", "not_readable"),
        ("gzip", b"no gzip", "not_readable"),
        (", ".join(["gzip"] * 6), b"", "not_readable"),
        ("gzip", gzip.compress(b"whole" * 1000, mtime=0)[:20], "not_readable"),
    ],
)
async def test_an_answer_that_cannot_be_decoded(encoding: str, body: bytes, code: str) -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 200 OK\r\ncontent-encoding: {encoding}\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)

    ask = tools(http_hosts=["127.0.0.1"], http_private=True)["http_request"]
    async with raw_server(answer) as (url, _):
        assert await refusal(ask, url=url) == code


@pytest.mark.parametrize(("method", "carried_out"), [("POST", None), ("GET", False)])
@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 1\r\n\r\nx"])
async def test_whether_a_sent_request_took_effect_is_not_known(
    method: str, carried_out: bool | None, sent: bytes
) -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(sent)

    ask = tools(http_hosts=["127.0.0.1"], http_private=True)["http_request"]
    async with raw_server(answer) as (url, _):
        with pytest.raises(ToolError) as caught:
            await call(ask, url=url, method=method)
    assert caught.value.carried_out is carried_out
    with pytest.raises(ToolError) as caught:
        await call(ask, url=url, method=method)  # nobody listens there any more
    assert (caught.value.code, caught.value.carried_out) == ("not_reachable", False)


async def test_an_encoded_answer_is_read() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        body = zlib.compress(gzip.compress("grün".encode()))
        head = f"HTTP/1.1 200 OK\r\ncontent-encoding: gzip, deflate\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)

    ask = tools(http_hosts=["127.0.0.1"], http_private=True)["http_request"]
    async with raw_server(answer) as (url, heads):
        assert (await call(ask, url=url, headers={"Accept-Encoding": "br"}))["body"] == "grün"
    assert "accept-encoding: gzip\r\n" in heads[0].lower()


async def test_an_answer_in_chunks_of_one_byte_holds_nobody_up() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 900_000)

    ask = tools(http_hosts=["127.0.0.1"], http_private=True)["http_request"]
    async with raw_server(answer) as (url, _):
        longest = 0.0

        async def beat() -> None:
            nonlocal longest
            last = time.thread_time()
            while True:
                await asyncio.sleep(0.01)
                longest, last = max(longest, time.thread_time() - last), time.thread_time()

        beats = asyncio.create_task(beat())
        with contextlib.suppress(ToolError):  # a fast machine is through with it in time
            assert len((await call(ask, url=url, timeout=0.5))["body"]) == 900_000
        beats.cancel()
    assert longest / lap() < 100


async def test_a_redirect_to_another_origin_carries_no_secrets() -> None:
    secrets = {
        "Authorization": "Bearer x",
        "Cookie": "a=b",
        "X-Api-Key": "k",
        "PRIVATE": "1",
        "X-Own": "1",
        "Accept": "a/b",
    }

    async def end(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    async with raw_server(end) as (other, heads):

        async def move(writer: asyncio.StreamWriter) -> None:
            writer.write(f"HTTP/1.1 302 Found\r\nlocation: {other}\r\ncontent-length: 0\r\n\r\n".encode())

        ask = tools(http_hosts=["127.0.0.1"], http_private=True)["http_request"]
        async with raw_server(move) as (url, first):
            await call(ask, url=url, headers=secrets)
        assert "authorization: bearer x" in first[0].lower()
    head = heads[0].lower()
    assert "accept: a/b" in head
    assert [name for name in secrets if name != "Accept" and name.lower() in head] == []
    plain, secure = httpx2.URL("http://a.example:8443/"), httpx2.URL("https://a.example:8443/")
    assert _origin(plain) != _origin(secure)
    assert _origin(httpx2.URL("https://a.example")) == _origin(httpx2.URL("https://a.example:443/x"))


async def test_a_name_that_leads_elsewhere_when_it_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack (DNS rebinding): the name is public when it is checked, and this machine's when it is asked."""
    lookups: list[str] = []

    async def rebinding(host: str, port: int, **_: Any) -> list[Any]:
        lookups.append(host)
        address = "93.184.216.34" if len(lookups) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    async with website() as (url, seen):
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", rebinding)
        address = await allowed_address(
            httpx2.URL(f"http://rebind.example:{httpx2.URL(url).port}/echo"), ["*"], private=False
        )
        assert (address, lookups) == (
            "93.184.216.34",
            ["rebind.example"],
        )  # which is what is asked: an address, no name
        ask = tools(http_hosts=["*"])["http_request"]
        assert await refusal(ask, url=f"http://rebind.example:{httpx2.URL(url).port}/echo") == "not_allowed"
    assert seen == []


async def test_only_reading_goes_unasked() -> None:
    ask = tools(http_hosts=["*"])["http_request"]
    found = resolve_tools(["http_request"], {"http_request": ask.definition})["http_request"]
    assert Guard().why(found, {"url": "https://x"}) is None
    assert Guard().why(found, {"url": "https://x", "method": "GET"}) is None
    assert Guard().why(found, {"url": "https://x", "method": "DELETE"}) is not None


# Time, and people.


async def test_now() -> None:
    found = tools()["now"]
    assert set(await call(found)) == {"time", "weekday", "unix"}
    assert (await call(found, timezone="Asia/Kolkata"))["time"].endswith("+05:30")
    assert await refusal(found, timezone="Mars/Base") == "no_such_timezone"


@tool
def stamp(after: Any) -> Any:
    return after


async def test_sleep_until_is_a_durable_timer(time_skipping: WorkflowEnvironment) -> None:
    calls = [
        {"_tool": "sleep_until", "seconds": 3 * 86400, "_outputPath": "†state.slept"},
        {"_tool": "stamp", "after": "†state.slept"},
        {"_tool": "sleep_until", "time": "2001-01-01T00:00:00"},
        {"_tool": "sleep_until", "time": "soon"},
        {"_tool": "sleep_until"},
    ]
    async with harness(time_skipping.client, [stamp], [{"calls": calls}, DONE]) as it:
        view = await it.run(agent("sleep_until", "stamp"))
        history = await it.client.get_workflow_handle(view.run_id).fetch_history()
    assert (view.status, view.stop_reason) == ("completed", "output")
    assert [one.status for one in view.calls] == ["done", "done", "done", "failed", "failed"]
    assert view.state["slept"]["slept"] == 3 * 86400
    assert "must be ISO 8601" in (view.calls[3].error or {})["message"]
    # No activity of any kind stood for it, and the deadline of ten minutes of work was not touched.
    names = {event.activity_task_scheduled_event_attributes.activity_type.name for event in history.events}
    assert "sleep_until" not in names
    assert view.worked < 600


ASK = {"_tool": "ask_person", "question": "Which one?", "choices": ["red", "blue"], "_outputPath": "†state.colour"}


async def test_ask_person_is_answered_by_signal(dev_server: WorkflowEnvironment) -> None:
    script = [{"calls": [ASK, {"_tool": "stamp", "after": "†state.colour"}]}, DONE]
    async with harness(dev_server.client, [stamp], script) as it:
        handle = await it.start(agent("ask_person", "stamp"))
        view = await it.until_waiting(handle.id, "1.0")
        assert (view.waiting[0].reason, view.waiting[0].question) == ("Which one?", True)
        await handle.signal("answer", {"call": "1.0", "answer": "green"})
        await handle.signal("approve", {"call": "1.0"})
        await handle.signal("answer", {"call": "1.0", "answer": "blue", "by": "ann"})
        await handle.result()
        view = await it.view(handle.id)
    assert (view.state["colour"], view.calls[1].params) == ("blue", {"after": "blue"})
    assert [refused["problem"] for refused in view.refusals] == [
        '1.0 ask_person: "green" is none of the choices: red, blue',
        "1.0 ask_person is a question: answer it or reject it",
    ]
    approval = view.calls[0].approval
    assert approval is not None
    assert (approval.decision, approval.by) == ("answer", "ann")


WEATHER = {
    "name": "weather",
    "properties": {"city": {"type": "string"}, "choices": {"type": "array"}},
    "_activity": "perdure.client",
}


async def test_a_call_that_a_program_outside_carries_out(dev_server: WorkflowEnvironment) -> None:
    call = {"_tool": "weather", "city": "Rome", "choices": ["C", "F"], "_outputPath": "†state.weather"}
    script = [
        {"calls": [call, {"_tool": "stamp", "after": "†state.weather.degrees"}, call | {"_outputPath": None}]},
        DONE,
    ]
    async with harness(dev_server.client, [stamp], script) as it:
        handle = await it.start(agent(WEATHER, "stamp", metadata={"for": "whom"}))
        view = await it.until_waiting(handle.id, "1.0", "1.2")
        assert (view.waiting[0].question, view.waiting[0].params["city"]) == (True, "Rome")
        run = Run(it.client, handle.id)
        await run.decide({"call": "1.0", "decision": "answer", "answer": {"degrees": 21}, "by": "ann", "via": "here"})
        await run.decide({"call": "1.2", "decision": "answer", "answer": None})
        await handle.result()
        view = await it.view(handle.id)
        metadata = await run.value("metadata")
    assert (view.calls[1].params, view.calls[2].status) == ({"after": 21}, "done")
    approvals = [call.as_json().get("approval") for call in view.calls]
    assert [approval and approval.get("via") for approval in approvals] == ["here", None, None]
    assert "via" not in (approvals[2] or {})
    assert metadata == '{"for":"whom"}'


async def test_r9_5_the_timeout_of_the_policy_does_not_end_a_call_that_the_client_executes(
    time_skipping: WorkflowEnvironment,
) -> None:
    call = {"_tool": "weather", "city": "Rome", "choices": []}
    async with harness(time_skipping.client, [], [{"calls": [call]}, DONE]) as it:
        handle = await it.start(agent(WEATHER, config={"approval": {"timeout": 60}}))
        await it.until_waiting(handle.id, "1.0")
        await time_skipping.sleep(120)
        await Run(it.client, handle.id).decide({"call": "1.0", "decision": "answer", "answer": "sunny"})
        await handle.result()
        view = await it.view(handle.id)
    assert view.calls[0].status == "done"


async def test_r5_12_calls_of_an_exclusive_tool_that_a_person_puts_in_place_of_others_reach_the_client_in_turn(
    dev_server: WorkflowEnvironment,
) -> None:
    stamps = [{"_tool": "stamp", "after": 1}, {"_tool": "stamp", "after": 2}]
    config = {"approval": {"tools": {"stamp": "always"}}}
    weather = {"_tool": "weather", "city": "Rome", "choices": []}
    async with harness(dev_server.client, [stamp], [{"calls": stamps}, DONE]) as it:
        handle = await it.start(agent("stamp", {**WEATHER, "_exclusive": True}, config=config))
        run = Run(it.client, handle.id)
        await it.until_waiting(handle.id, "1.0", "1.1")
        for call in ("1.0", "1.1"):
            await run.decide({"call": call, "decision": "replace", "with": weather})
        for call in ("1.0", "1.1"):
            while not (view := await it.until_waiting(handle.id, call)).waiting[0].question:
                pass
            await run.decide({"call": call, "decision": "answer", "answer": "sunny"})
        await handle.result()
        view = await it.view(handle.id)
    assert [(each.tool, each.status) for each in view.calls] == [("weather", "done")] * 2


async def test_a_call_may_be_replaced_by_a_question_or_a_sleep(dev_server: WorkflowEnvironment) -> None:
    stamps = [{"_tool": "stamp", "after": 1, "_outputPath": "†state.colour"}, {"_tool": "stamp", "after": 2}]
    config = {"approval": {"tools": {"stamp": "always"}}}
    async with harness(dev_server.client, [stamp], [{"calls": stamps}, DONE]) as it:
        handle = await it.start(agent("stamp", "ask_person", "sleep_until", config=config))
        await it.until_waiting(handle.id, "1.0", "1.1")
        await handle.execute_update(
            "decide", {"call": "1.1", "decision": "replace", "with": {"_tool": "sleep_until", "seconds": 0}}
        )
        question = {"_tool": "ask_person", "question": "Which one?", "choices": ["red", "blue"]}
        await handle.execute_update("decide", {"call": "1.0", "decision": "replace", "with": question})
        while not (view := await it.until_waiting(handle.id, "1.0")).waiting[0].question:
            pass
        assert view.waiting[0].reason == "Which one?"
        await handle.execute_update("decide", {"call": "1.0", "decision": "answer", "answer": "blue"})
        await handle.result()
        view = await it.view(handle.id)
    assert [(call.tool, call.status) for call in view.calls] == [("ask_person", "done"), ("sleep_until", "done")]
    assert view.state["colour"] == "blue"


async def test_ask_person_on_the_command_line(dev_server: WorkflowEnvironment) -> None:
    env = {"TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host}
    async with harness(dev_server.client, [stamp], [{"calls": [ASK]}, DONE]) as it:
        handle = await it.start(agent("ask_person"))
        await it.until_waiting(handle.id, "1.0")
        wrong = await perdure("answer", handle.id, "1.0", "", env=env)  # an empty answer is one, too
        right = await perdure("answer", handle.id, "1.0", "red", "--by", "ann", env=env)
        await handle.result()
    assert (wrong.code, right.code, right.out.strip()) == (1, 0, f"{handle.id} 1.0: answer")
    assert wrong.err.strip() == 'perdure: nothing changed: 1.0 ask_person: "" is none of the choices: red, blue'


async def test_a_question_that_nobody_answers_fails_the_call(time_skipping: WorkflowEnvironment) -> None:
    async with harness(time_skipping.client, [stamp], [{"calls": [ASK]}, DONE]) as it:
        view = await it.run(agent("ask_person", config={"approval": {"timeout": 86400, "on_timeout": "approve"}}))
    assert view.calls[0].error == {"code": "no_answer", "message": "nobody answered within 86400 s"}


async def test_a_tool_of_the_users_own_goes_before(tmp_path: Path) -> None:
    found = load_tools(["perdure.demo.tools"])
    before = len(found)
    found.add_missing(built_in(ToolSettings(files=tmp_path, http_hosts=["*"], commands=["ls"])))
    assert len(found) == before + 8
    found.add_missing(built_in(ToolSettings()))
    assert len(found) == before + 8


async def test_the_worker_says_what_is_wrong_with_its_settings(tmp_path: Path) -> None:
    missing = await perdure("--files", str(tmp_path / "none"), program="worker.py")
    assert (missing.code, missing.err.strip()) == (
        2,
        f"perdure: the folder for files, {tmp_path / 'none'}, does not exist",
    )
