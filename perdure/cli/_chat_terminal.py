"""A chat in a terminal: lasting lines, and an input line at the bottom."""

from __future__ import annotations

import asyncio
import io
import sys
from typing import TYPE_CHECKING, Final

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import patch_stdout
from rich.console import Console
from rich.text import Text

from perdure.cli._chat import Chat
from perdure.cli._console import strip_control_characters
from perdure.cli._execute import INTERRUPTED
from perdure.queries import cancel_all

if TYPE_CHECKING:
    from perdure.client.perdure import Perdure
    from perdure.client.session import Session
    from perdure.values.json import JsonObject


_KEPT: Final = 4
"""Lines of the terminal that the live lines leave free for input and lasting lines."""
_HERE: Final = "› "


async def chat(perdure: Perdure, session: Session, sender: str, context: JsonObject, *, reasoning: bool) -> int:
    """Chat until the person leaves. Return the exit code."""
    with patch_stdout(raw=True):
        return await _Terminal(perdure, session, sender, context, reasoning=reasoning).run()


class _Terminal:
    def __init__(
        self, perdure: Perdure, session: Session, sender: str, context: JsonObject, *, reasoning: bool
    ) -> None:
        self._out = Console(file=sys.stdout, highlight=False, force_terminal=True)
        self._prompt: PromptSession[str] = PromptSession(
            message=self._below, key_bindings=self._keys(), erase_when_done=True, refresh_interval=0
        )
        print_line, changed = self._print_line, self._prompt.app.invalidate
        self._talk = Chat(perdure, session, sender, context, print_line, changed, reasoning=reasoning)
        self._lines: asyncio.Queue[str] = asyncio.Queue()
        self._interrupted = False
        self._left = False

    async def run(self) -> int:
        await self._talk.begin()
        tasks = [
            asyncio.create_task(self._talk.listen()),
            asyncio.create_task(self._do()),
            asyncio.create_task(self._end()),
        ]
        try:
            return await self._read()
        finally:
            self._talk.close()
            await cancel_all(*tasks)

    async def _read(self) -> int:
        """Read typed lines until the input ends."""
        while not self._left:
            try:
                text = await self._prompt.prompt_async()
            except EOFError:
                return 0
            except KeyboardInterrupt:
                return INTERRUPTED
            self._interrupted = False
            if text.strip():
                self._print_line(Text.assemble((_HERE, "bold cyan"), (strip_control_characters(text), "bold")))
                if text.strip() in ("/quit", "/exit"):
                    return 0
                self._lines.put_nowait(text)
        return 0

    async def _do(self) -> None:
        """Handle typed lines one after the other, while the person types the next."""
        while True:
            await self._talk.send(await self._lines.get())
            self._prompt.app.invalidate()

    async def _end(self) -> None:
        """Leave the chat once the session has ended."""
        await self._talk.over.wait()
        self._left = True
        if self._prompt.app.is_running:
            self._prompt.app.exit(result="")

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("c-c")
        def interrupt(event: KeyPressEvent) -> None:
            if self._interrupted:
                event.app.exit(exception=KeyboardInterrupt)
            elif event.app.current_buffer.text and not self._talk.picture.works:
                event.app.current_buffer.reset()
            else:
                self._interrupted = True
                if self._talk.picture.works:
                    self._lines.put_nowait("/stop")
                self._print_line(Text("  press Ctrl-C again to leave", style="dim"))

        return keys

    def _print_line(self, line: Text) -> None:
        self._out.width, self._out.height = self._size()
        self._out.print(line, no_wrap=line.no_wrap, overflow=line.overflow)

    def _size(self) -> tuple[int, int]:
        size = self._prompt.app.output.get_size()
        return max(20, size.columns), max(4, size.rows)

    def _below(self) -> ANSI:
        """Return the live lines, and the input line."""
        width, height = self._size()
        text = io.StringIO()
        paint = Console(
            file=text, width=width, highlight=False, force_terminal=True, color_system="standard", legacy_windows=False
        )
        for line in self._talk.picture.live(width - 1, height - _KEPT):
            paint.print(line, no_wrap=True, overflow="ellipsis", crop=True)
        paint.print(Text(_HERE, style="bold cyan"), end="")
        return ANSI(text.getvalue())
