"""A chat through a pipe: a line in is a message, its answer comes out, and then the next is said."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from typing import TYPE_CHECKING, Any

from perdure.cli.chatting.talk import COMMANDS, HELP
from perdure.cli.errors import FAILED
from perdure.cli.viewing.render import deciding
from perdure.errors import NoWorkerError, RunError, ServerError
from perdure.sessions.wire import EVERYTHING

if TYPE_CHECKING:
    from perdure.client.perdure import Perdure
    from perdure.client.session import Session


async def chat(perdure: Perdure, session: Session, sender: str) -> int:
    """Until there is no more to read; the exit code: 1 where something had no answer."""
    code = 0
    who: dict[str, Any] = {"sender": sender, "rights": (EVERYTHING,)}
    lines = _lines()
    while (line := await lines.get()) is not None:
        text = line.strip()
        if text in ("/quit", "/exit"):
            break
        if text == "/help":
            print(HELP, file=sys.stderr)
        elif text:
            try:
                await _say(perdure, session, text, who)
            except (NoWorkerError, ServerError):
                raise
            except RunError as error:
                print(f"perdure: {error}", file=sys.stderr, flush=True)
                code = FAILED
    return code


def _lines() -> asyncio.Queue[str | None]:
    """What comes in, and at its end `None`: read by a thread that nobody waits for, so that Ctrl-C ends the chat while nothing comes."""
    found: asyncio.Queue[str | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        with contextlib.suppress(RuntimeError, ValueError):  # the chat has ended
            for line in sys.stdin:
                loop.call_soon_threadsafe(found.put_nowait, line)
            loop.call_soon_threadsafe(found.put_nowait, None)

    threading.Thread(target=read, daemon=True).start()
    return found


async def _say(perdure: Perdure, session: Session, text: str, who: dict[str, Any]) -> None:
    if text in COMMANDS:
        receipt = await getattr(session, text[1:])(**who)
        print(f"perdure: {receipt.done}{f': {receipt.why}' if receipt.why else ''}", file=sys.stderr, flush=True)
        return
    receipt = await session.send(text, **who)
    if receipt.why is not None:
        print(f"perdure: {receipt.done}: {receipt.why}", file=sys.stderr, flush=True)
    telling = None if receipt.run_id is None else asyncio.create_task(_tell_waiting(perdure, receipt.run_id))
    try:
        reply = await session.reply(receipt)
    finally:
        if telling is not None:
            telling.cancel()
    if reply is not None:
        print(reply, flush=True)


async def _tell_waiting(perdure: Perdure, run_id: str) -> None:
    """A pipe cannot be asked: what waits, and the command that decides."""
    async for one in perdure.get_run(run_id).waits():
        what = "" if one.entry.question else f" {one.entry.tool}"
        print(f"perdure: {one.entry.call}{what} waits for a person: {one.entry.reason}", file=sys.stderr)
        print(deciding(one.run_id, one.entry), file=sys.stderr, flush=True)
