"""`perdure chat`: typed lines become messages, commands, or decisions."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import threading
import uuid
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from perdure.cli._chat_view import ChatView, PendingApproval, approval_lines
from perdure.cli._console import strip_control_characters
from perdure.cli._execute import FAILED
from perdure.cli._run_view import print_waiting
from perdure.errors import MediaError, NoWorkerError, PerdureError, RunError, RunNotFoundError, ServerError
from perdure.sessions.wire import EVERYTHING

if TYPE_CHECKING:
    from perdure.agents.media import Media
    from perdure.client.perdure import Perdure
    from perdure.client.run import Run
    from perdure.client.session import Session
    from perdure.values.json import JsonObject


HELP: Final = """\
/new     begin an empty conversation with the same state
/reset   begin an empty conversation with the state of the agent's file
/stop    end the current run
/file PATH   attach a file to your next message
/quit    leave; the run continues (Ctrl-D, or Ctrl-C twice, does the same)
Any other text is a message to the agent. The agent revises its plan if a run is active. Ctrl-C ends the run.
If a call waits for you: a approves it, r REASON rejects it. If a question waits for you: type the answer."""
COMMANDS: Final = ("/new", "/reset", "/stop", "/file", "/help", "/quit", "/exit")
_FILE: Final = re.compile(r"/file(\s.*)?")
_COMMAND: Final = re.compile(rf"/[a-z]+|{_FILE.pattern}")
_SHOWN: Final = 4
"""The number of last messages that are shown of an existing session."""
_LONGEST_PAUSE: Final = 5.0


class Chat:
    """A chat of one sender in one session. `print_line` prints a lasting line. `changed` is called after a change of the live lines."""

    def __init__(
        self,
        perdure: Perdure,
        session: Session,
        sender: str,
        context: JsonObject,
        print_line: Callable[[Text], None],
        changed: Callable[[], None],
        *,
        reasoning: bool = False,
    ) -> None:
        self._perdure, self._session, self._sender, self._context = perdure, session, sender, context
        self.picture = ChatView(reasoning=reasoning)
        self.print_line, self._changed = print_line, changed
        self.over = asyncio.Event()
        """Set when the session has ended."""
        self._there = asyncio.Event()
        self._from: str | None = None
        self._who: dict[str, Any] = {"sender": sender, "rights": (EVERYTHING,)}
        self._files: list[Media] = []
        """The files of the next message."""
        self._watches: set[asyncio.Task[None]] = set()

    async def begin(self) -> None:
        """Show an existing session: its last messages, its run, and waiting requests."""
        try:
            view = await self._session.show()
        except RunNotFoundError:
            return
        spoken = [entry for entry in view.entries if entry["type"] in ("message", "reply")]
        for entry in spoken[-_SHOWN:]:
            words = entry.get("text") or f"({entry.get('why') or 'no text'})"
            mine = entry["type"] == "message"
            self.print_line(
                Text(
                    strip_control_characters(f"{entry['sender']}: {words}" if mine else words),
                    style="dim bold" if mine else "dim",
                )
            )
        self._from = "now"
        self._there.set()
        if view.run_id is not None:
            self.picture.run_id = view.run_id
            self._watch(view.run_id)
            for one in await self._session.waiting_below(view):
                of = one.request
                self._add_pending(PendingApproval(one.run_id, of.call, of.tool, of.reason, of.question, of))

    async def listen(self) -> None:
        """Show events until the session has ended. After an error, continue at the last event."""
        await self._there.wait()
        pause = 0.2
        while not self.over.is_set():
            try:
                async with aclosing(self._session.events(self._from)) as events:
                    async for event in events:
                        self._from, pause = event.cursor or self._from, 0.2
                        before = set(self.picture.waits)
                        for line in self.picture.fold(event):
                            self.print_line(line)
                        if event.topic == "lifecycle" and event.phase == "start" and event.run_id:
                            self._watch(event.run_id)
                        for key in self.picture.waits.keys() - before:
                            await self._show_pending(self.picture.waits[key])
                        self._changed()
                self.over.set()
                self.print_line(Text("the session has ended", style="yellow"))
            except PerdureError as error:
                self.picture.trouble = f"{error}; retrying"
            self._changed()
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE, 2 * pause)

    async def send(self, line: str) -> bool:
        """Handle a typed line. Return whether the chat continues."""
        text = line.strip()
        if not text:
            return True
        try:
            if _COMMAND.fullmatch(text):
                return await self._command(text)
            if self.picture.waits and (decision := self._decision(text)) is not None:
                await decision
                return True
            await self._send(text)
        except PerdureError as error:
            self.print_line(Text(f"  {strip_control_characters(str(error))}", style="red"))
        return True

    async def _send(self, text: str) -> None:
        id = uuid.uuid4().hex
        self.picture.own.add(id)
        works = self.picture.works
        receipt = await self._session.send(text, id=id, context=self._context, files=self._files, **self._who)
        self._files = []
        self._there.set()
        if receipt.why is not None:
            self.print_line(Text(f"  {receipt.done}: {receipt.why}", style="dim"))
        elif works and receipt.done != "started":
            self.print_line(Text(f"  {receipt.done}", style="dim"))

    async def _command(self, text: str) -> bool:
        if text in ("/quit", "/exit"):
            return False
        if text == "/help":
            self.print_line(Text(HELP, style="dim"))
        elif _FILE.fullmatch(text):
            self._files.append(_read_file(text))
            self.print_line(Text(f"  {_attached(self._files[-1])}", style="dim"))
        elif text not in COMMANDS:
            self.print_line(Text(f"  {text} is not a command. Use one of: {', '.join(COMMANDS[:-1])}", style="yellow"))
        elif not self._there.is_set():
            self.print_line(Text("  no messages yet", style="dim"))
        else:
            receipt = await getattr(self._session, text[1:])(**self._who)
            self.picture.own.add(receipt.message_id)
            self.print_line(Text(f"  {receipt.done}{f': {receipt.why}' if receipt.why else ''}", style="dim"))
        return True

    # Approval requests.

    def _decision(self, text: str) -> Any:
        """Return a line's decision; `None` for a message."""
        waits = next(iter(self.picture.waits.values()))
        word, _, reason = text.partition(" ")
        if waits.question:
            return self._decide(waits, lambda run, call: run.answer(call, text, by=self._sender))
        if word.lower() in ("a", "approve") and not reason:
            return self._decide(waits, lambda run, call: run.approve(call, by=self._sender))
        if word.lower() in ("r", "reject"):
            return self._decide(waits, lambda run, call: run.reject(call, reason=reason.strip(), by=self._sender))
        return None

    async def _decide(self, waits: PendingApproval, how: Callable[[Run[Any], Any], Any]) -> None:
        try:
            await how(self._perdure.get_run(waits.run_id), waits.view or waits.call)
        except PerdureError as error:
            self.print_line(Text(f"  {strip_control_characters(str(error))}", style="red"))
            await self._show_pending(waits)  # show the present request, if the call still waits
            if waits.view is None:
                self.picture.decided(waits)
        else:
            if waits.run_id != self.picture.run_id:  # events of delegates' runs do not arrive here
                self.picture.decided(waits)
        self._changed()

    def _add_pending(self, waits: PendingApproval) -> None:
        self.picture.waits.setdefault((waits.run_id, waits.call), waits)
        for line in approval_lines(waits):
            self.print_line(line)
        self._changed()

    async def _show_pending(self, waits: PendingApproval) -> None:
        try:
            views = await self._perdure.get_run(waits.run_id).waiting(waits.call)
        except PerdureError:
            views = []
        waits.view = next(iter(views), None)
        for line in approval_lines(waits) if waits.view is not None else ():
            self.print_line(line)

    def _watch(self, run_id: str) -> None:
        """Watch for requests in delegates' runs, whose events do not arrive here."""
        for task in self._watches:
            task.cancel()
        self._watches = {asyncio.create_task(self._below(run_id))}

    async def _below(self, run_id: str) -> None:
        async for one in self._perdure.get_run(run_id).waits():
            if one.run_id != run_id and (one.run_id, one.entry.call) not in self.picture.waits:
                waits = PendingApproval(
                    one.run_id, one.entry.call, one.entry.tool, one.entry.reason, one.entry.question
                )
                self.picture.waits[waits.run_id, waits.call] = waits
                await self._show_pending(waits)
                self._changed()

    def close(self) -> None:
        """Stop watching."""
        for task in self._watches:
            task.cancel()


def _read_file(line: str) -> Media:
    """Return the file of `/file PATH`. Raises `MediaError` for a file that cannot be read."""
    from perdure.agents.media import Media  # imported only here

    path = line.removeprefix("/file").strip()
    if not path:
        raise MediaError("/file needs a path: /file photo.jpg")
    try:
        return Media(Path(path).expanduser())
    except MediaError as error:
        raise MediaError(f"/file: {error}") from None


def _attached(file: Media) -> str:
    return f"attached to your next message: {strip_control_characters(file.value.line)}"


async def chat(perdure: Perdure, session: Session, sender: str, context: JsonObject) -> int:
    """Send each line of the input. Return the exit code: 1 if a message had no answer."""
    code = 0
    who: dict[str, Any] = {"sender": sender, "rights": (EVERYTHING,)}
    lines = _lines()
    files: list[Media] = []
    while (line := await lines.get()) is not None:
        text = line.strip()
        if text in ("/quit", "/exit"):
            break
        if text == "/help":
            print(HELP, file=sys.stderr)
        elif _FILE.fullmatch(text):
            files.append(_read_file(text))
            print(_attached(files[-1]), file=sys.stderr, flush=True)
        elif text:
            attached, files = ([], files) if text in COMMANDS else (files, [])
            try:
                await _send_line(perdure, session, text, who, context, attached)
            except (NoWorkerError, ServerError):
                raise
            except RunError as error:
                print(f"perdure: {error}", file=sys.stderr, flush=True)
                code = FAILED
    return code


def _lines() -> asyncio.Queue[str | None]:
    """Return a queue of the typed lines, with `None` at their end. A daemon thread reads them, so that Ctrl-C can end the chat."""
    found: asyncio.Queue[str | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        with contextlib.suppress(RuntimeError, ValueError):  # the chat has ended
            for line in sys.stdin:
                loop.call_soon_threadsafe(found.put_nowait, line)
            loop.call_soon_threadsafe(found.put_nowait, None)

    threading.Thread(target=read, daemon=True).start()
    return found


async def _send_line(
    perdure: Perdure, session: Session, text: str, who: dict[str, Any], context: JsonObject, files: list[Media]
) -> None:
    if text in COMMANDS:
        receipt = await getattr(session, text[1:])(**who)
        print(f"perdure: {receipt.done}{f': {receipt.why}' if receipt.why else ''}", file=sys.stderr, flush=True)
        return
    receipt = await session.send(text, context=context, files=files, **who)
    if receipt.why is not None:
        print(f"perdure: {receipt.done}: {receipt.why}", file=sys.stderr, flush=True)
    announcement = (
        None if receipt.run_id is None else asyncio.create_task(print_waiting(perdure.get_run(receipt.run_id)))
    )
    try:
        reply = await session.reply(receipt)
    finally:
        if announcement is not None:
            announcement.cancel()
    if reply is not None:
        print(reply, flush=True)
