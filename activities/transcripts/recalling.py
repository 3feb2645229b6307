"""Recall as a tool, and who asks a session and its segments for it (R10.12)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from temporalio.client import Client, WorkflowHandle, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.asking import TIMEOUT, answer_of, client, execution_before, own_run
from perdure.errors import RunError, ToolError
from perdure.run.recall import is_of_run
from perdure.run.wire import RECALL_QUERY, VALUE_QUERY
from perdure.sessions.entries import CommandEntry, MessageEntry, ReplyEntry, RunEntry
from perdure.sessions.recall import newest_first, oldest_first
from perdure.sessions.recall import recall as recalled
from perdure.sessions.segments import SEGMENT_ENTRIES_QUERY, SEGMENT_FIND_QUERY, Entries, Span, asked, is_said
from perdure.sessions.tending import ENTRIES_QUERY, AtHand
from perdure.sessions.wire import SESSION_WORKFLOW, Fate, several_senders
from perdure.tools.functions import tool
from perdure.values.jsons import Json, JsonObject
from perdure.values.limits import MAX_DELEGATES_DEEP
from perdure.values.wire import ValuePage


class SessionReader:
    """Asks one session, its segments and its runs."""

    def __init__(self, client: Client, session: str) -> None:
        self._client = client
        self._session = session

    async def at_hand(self, after: int) -> AtHand:
        """The entries that it has itself. Raises `RunError` where nobody answers."""
        found: AtHand = await self._ask(self._session, ENTRIES_QUERY, AtHand, after)
        return found

    async def segment(self, id: str) -> Entries:
        """Those of a segment. Raises `RunError` where it is gone."""
        found: Entries = await self._ask(id, SEGMENT_ENTRIES_QUERY, Entries)
        return found

    async def whole(self, run_id: str, what: str) -> Json:
        """A value of a run, as it shows it whole. Raises `RunError` where its history is gone, or it does not have it."""
        parts: list[str] = []
        offset: int | None = 0
        while offset is not None:
            page: ValuePage = await self._ask(run_id, VALUE_QUERY, ValuePage, what, offset)
            if page.earlier:
                raise RunError(f"{run_id} has gone on in a new execution since then")
            parts.append(page.text)
            offset = page.next
        value: Json = json.loads("".join(parts))
        return value

    async def find(
        self, spans: Sequence[Span], message_id: str, sender: str = ""
    ) -> MessageEntry | CommandEntry | None:
        """Return a message's entry, in whichever segment: a few questions, however many there are.

        Raises `RunError` where one does not answer, and without `sender` where several senders have a message of this id.
        """
        found: dict[str, MessageEntry | CommandEntry] = {}
        for span in reversed(spans):
            for number in asked(span.segments):
                held: Any = await self._ask(span.id(number), SEGMENT_FIND_QUERY, None, message_id)
                for each in held if isinstance(held, list) else [held] if held else []:
                    for entry in (await self.segment(span.id(each))).entries:
                        if not is_said(entry) or entry.message_id != message_id or entry.n > span.last:
                            continue
                        if entry.sender == sender:
                            return entry
                        found.setdefault(entry.sender, entry)
        if sender:
            return None
        if len(found) > 1:
            raise RunError(several_senders(message_id, found))
        return next(iter(found.values()), None)

    async def fate(self, message_id: str, sender: str = "") -> Fate:
        """Return what became of a message that the session has not at hand any more. Raises `RunError` as `find` does."""
        hand = await self.at_hand(0)
        entry = await self.find(hand.spans, message_id, sender)
        if entry is None:
            return Fate()
        if isinstance(entry, CommandEntry):
            return Fate(known=True, state="ended", status="ok")
        if entry.run_id is None:
            return Fate(known=True, state="ended", status="error", error=entry.why)
        fate = await self.end_of(entry.run_id, entry.n)
        if fate is None:
            raise RunError(f"the transcript has no end of {entry.run_id}")
        return fate

    async def end_of(self, run_id: str, after: int | None = None) -> Fate | None:
        """Return how a run ended and what it replied: behind a place, or the newest first; `None`: the transcript has no end of it."""
        fate = Fate(known=True, run_id=run_id, state="ended")
        replied = False
        async for entry in newest_first(self) if after is None else oldest_first(self, after):
            if isinstance(entry, RunEntry) and entry.run_id == run_id:
                fate.status, fate.ended_at = "ok" if entry.status == "completed" else "error", entry.at
                fate.started_at = entry.started_at
                replied = replied or entry.status == "forked"  # this session began in the middle of it
            elif isinstance(entry, ReplyEntry) and entry.run_id == run_id:
                fate.reply, fate.error, replied = entry.text, entry.why, True
            if replied and fate.status is not None:
                return fate
        return None

    async def _ask(self, id: str, query: str, kind: Any, *arguments: Any) -> Any:
        handle: WorkflowHandle[Any, Any] = self._client.get_workflow_handle(id)
        try:
            return await answer_of(handle, query, *arguments, result_type=kind)
        except WorkflowQueryFailedError as error:
            raise RunError(f"{id} does not say: {error}") from None
        except RPCError as error:
            gone = error.status is RPCStatusCode.NOT_FOUND
            raise RunError(
                f"{id} is not there any more" if gone else f"{id} does not answer: {error.message}"
            ) from None


@tool(safe=True, untrusted=True, timeout=60)
async def recall(what: str, page: int = 1) -> JsonObject:
    """Read again, word for word, what is shown cut or in short.

    Args:
        what: the id of a call as it is shown, such as 1.0 or c12_1_0; a value of the state, such as state.report; in a
            session also the number of an entry, or words to look for, which give entries by their number.
        page: 1 for the first; the answer says how many there are.
    """
    what = what.strip()
    try:
        if is_of_run(what):
            return await _of_own_run(what, page)
        return await recalled(SessionReader(client(), await _own_session()), what, page)
    except RunError as error:
        raise ToolError("not_found", str(error)) from None


async def _of_own_run(what: str, page: int) -> JsonObject:
    """What the run itself has; a call that it made before it went on as new is asked of the execution that made it."""
    run = own_run()
    while True:
        try:
            found: JsonObject | None = await answer_of(run, RECALL_QUERY, what, page, result_type=JsonObject | None)
        except WorkflowQueryFailedError as error:
            raise RunError(str(error)) from None
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            raise RunError(f"{what} stands in an execution whose history is gone") from None
        if found is not None:
            return found
        run = await execution_before(client(), run)


_NONE: Final = ToolError(
    "no_session",
    "this run belongs to no session: name the id of a call, such as 1.0, or a value of the state, such as state.report",
)


async def _own_session() -> str:
    """The session that this call's run belongs to: what the server says of its parents, not what its id looks like (R10.2)."""
    run = own_run()
    for _ in range(2 * MAX_DELEGATES_DEEP + 2):
        described = await run.describe(rpc_timeout=TIMEOUT)
        if described.workflow_type == SESSION_WORKFLOW:
            return described.id
        if described.parent_id is None:
            break
        run = client().get_workflow_handle(described.parent_id)
    raise _NONE
