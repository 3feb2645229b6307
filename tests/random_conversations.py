"""Random conversations, and what must be true of a session after any of them (R10.1, R10.3, R10.4)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from perdure import tool
from perdure.client.session import Session
from perdure.errors import MessageRefusedError, NoWorkerError, ServerError
from perdure.sessions.wire import Receipt
from perdure.testing.scripted_model import ChatRequest
from perdure.values.messages import MODES, Mode

T = TypeVar("T")
SENDERS: Final = {"ann": ["*"], "bob": ["refunds"], "cat": ["refunds"], "dan": [], "eve": []}


@tool(retries=3)
async def work(text: str) -> str:
    """Work for a moment."""
    await asyncio.sleep(0.02)
    return f"worked on {text}"


AGENT: Final[dict[str, Any]] = {
    "name": "clerk",
    "context": [{"type": "system", "text": "Answer."}, {"type": "tool", "tool": "work"}],
    "schema": {"type": "string"},
}


def answer(request: ChatRequest) -> dict[str, Any]:
    """A call first where the message asks for one, then an answer."""
    said = [str(each["content"]) for each in request.messages if each["role"] == "user"]
    last = next((text for text in reversed(said) if text.split(": m")[0] in SENDERS), "")
    after = "".join(said[len(said) - said[::-1].index(last) :]) if last else ""
    if last.endswith("work") and "worked on" not in after:
        return {"calls": [{"_tool": "work", "text": last}], "output": None}
    return {"calls": [], "output": f"re {last}"}


@dataclass
class Talk:
    """What was said in one session, and what came back."""

    session: Session
    random: random.Random
    receipts: dict[str, Receipt] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    said: dict[str, list[str]] = field(default_factory=dict)
    """By sender what was accepted, in the order of sending."""
    archived: int = 0
    """Entries in the archive, once it has settled."""
    different: list[str] = field(default_factory=list)

    async def speak(self, sender: str, count: int, *, commands: bool = True) -> None:
        """One sender's messages, one after the other, each sent twice; one that finds the message_queue full is sent later."""
        for n in range(count):
            mode: Mode = self.random.choice(MODES)
            text = f"m{n} of {sender} {self.random.choice(['work', 'talk'])}"
            if commands and sender == "ann" and self.random.random() < 0.1:
                text = self.random.choice(["/stop", "/new", "/reset"])
            id = f"{sender}-{n}"
            first = await self._send(id, text, sender, mode)
            if first is None:
                continue
            self.said.setdefault(sender, []).append(id)
            self.receipts[id] = first
            if await self._send(id, text, sender, mode) != first:
                self.different.append(id)
            await asyncio.sleep(self.random.random() * 0.1)

    async def _send(self, id: str, text: str, sender: str, mode: Mode) -> Receipt | None:
        while True:
            try:
                return await self.session.send(text, sender=sender, rights=SENDERS[sender], id=id, mode=mode)
            except MessageRefusedError as error:
                if "already wait" not in str(error):
                    self.refused[id] = str(error)
                    return None
                await asyncio.sleep(0.2)  # it is full: nothing was taken
            except (NoWorkerError, ServerError):
                await asyncio.sleep(0.2)  # nobody was there; sent again with its id it is the same message

    async def settled(self, timeout: float) -> list[dict[str, Any]]:
        """All entries, archived ones too, once nothing waits and nothing runs."""
        async with asyncio.timeout(timeout):
            for id in self.receipts:
                await self.session.wait(id, timeout)
            view = await _answer_of(self.session.show)
            while view.status != "idle":
                view = await _answer_of(self.session.show)
            entries = await _answer_of(self.session.read_entries)
        assert [entry["n"] for entry in entries] == list(range(1, len(entries) + 1))
        self.archived = view.archived_through
        read = {entry["n"]: entry for entry in entries}
        assert view.entries == [read.get(entry["n"]) for entry in view.entries]
        return entries


async def _answer_of(question: Callable[[], Awaitable[T]]) -> T:
    """What a session answers, once a worker is there that has the time for it."""
    while True:
        try:
            return await question()
        except (NoWorkerError, ServerError):
            await asyncio.sleep(0.2)


def wrongs(talk: Talk, entries: Sequence[dict[str, Any]], read: Mapping[str, str]) -> list[str]:
    """What is not as it must be; `read`: by run what its model has read."""
    found = [f"{id} got another receipt the second time" for id in talk.different]
    messages = [entry for entry in entries if entry["type"] == "message"]
    commands = [entry for entry in entries if entry["type"] == "command"]
    written = [entry["messageId"] for entry in [*messages, *commands]]
    found += [
        f"{id} stands in the transcript {written.count(id)} times" for id in talk.receipts if written.count(id) != 1
    ]
    found += [f"{id} was refused, and stands there" for id in talk.refused if id in written]
    order = [entry["messageId"] for entry in entries if "messageId" in entry]
    for sender, ids in talk.said.items():
        if [id for id in order if id in ids] != ids:
            found.append(f"what {sender} said does not stand in the order of acceptance")
    times = [talk.receipts[id].accepted_at for id in order if id in talk.receipts]
    found += ["the entries are not in the order of acceptance"] if times != sorted(times) else []
    replies = [entry for entry in entries if entry["type"] == "reply"]
    runs = [entry["runId"] for entry in entries if entry["type"] == "run"]
    found += [f"{run} stands there {runs.count(run)} times" for run in set(runs) if runs.count(run) != 1]
    answered = {entry["runId"]: entry for entry in replies}
    for entry in messages:
        reply = answered.get(entry["runId"])
        if entry.get("why") is None and (reply is None or (reply["text"] is None and reply.get("why") is None)):
            found.append(f"{entry['messageId']} has neither an answer nor a reason why there is none")
        elif reply is not None and reply["text"] is not None and entry["text"] not in read.get(entry["runId"], ""):
            found.append(f"{entry['messageId']} has an answer of {entry['runId']}, whose model has not read it")
    # What begins a run is taken in the order of acceptance.
    firsts = [next((order.index(e["messageId"]) for e in messages if e["runId"] == run), None) for run in runs]
    starts = [first for first in firsts if first is not None]
    found += ["runs did not begin in the order of acceptance"] if starts != sorted(starts) else []
    return found
