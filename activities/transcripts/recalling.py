"""Recall as a tool, and who asks a session and its segments for it (R10.12)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from temporalio.client import Client, WorkflowHandle, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.asking import TIMEOUT, answer_of, client, own_run
from perdure.errors import RunError, ToolError
from perdure.run.wire import VALUE_QUERY
from perdure.sessions.entries import CommandEntry, MessageEntry, ReplyEntry, RunEntry
from perdure.sessions.recall import entry_at
from perdure.sessions.recall import recall as recalled
from perdure.sessions.segments import SEGMENT_ENTRIES_QUERY, SEGMENT_FIND_QUERY, Entries, Span, asked, is_said
from perdure.sessions.tending import ENTRIES_QUERY, AtHand
from perdure.sessions.wire import SESSION_WORKFLOW, Fate
from perdure.tools.functions import tool
from perdure.values.jsons import Json, JsonObject
from perdure.values.limits import MAX_DELEGATES_DEEP
from perdure.values.wire import ValuePage

_NEAR: Final = 50
"""Entries behind a message among which its run's are looked for."""


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

    async def find(self, spans: Sequence[Span], message_id: str) -> MessageEntry | CommandEntry | None:
        """A message's entry, in whichever segment: a few questions, however many there are. Raises `RunError` where one does not answer."""
        for span in reversed(spans):
            for number in asked(span.segments):
                held: int = await self._ask(span.id(number), SEGMENT_FIND_QUERY, int, message_id)
                for entry in (await self.segment(span.id(held))).entries if held else ():
                    if is_said(entry) and entry.message_id == message_id and entry.n <= span.last:
                        return entry
        return None

    async def fate(self, message_id: str) -> Fate:
        """What became of a message that the session has not at hand any more. Raises `RunError` where somebody does not answer."""
        hand = await self.at_hand(0)
        entry = await self.find(hand.spans, message_id)
        if entry is None:
            return Fate()
        if isinstance(entry, CommandEntry):
            return Fate(known=True, state="ended", status="ok")
        if entry.run_id is None:
            return Fate(known=True, state="ended", status="error", error=entry.why)
        fate = Fate(known=True, run_id=entry.run_id, state="ended")
        n = entry.n
        while (n := n + 1) <= min(hand.last, entry.n + _NEAR):
            after = await entry_at(self, n)
            if isinstance(after, RunEntry) and after.run_id == entry.run_id:
                fate.status, fate.ended_at = "ok" if after.status == "completed" else "error", after.at
                fate.started_at = after.started_at
            elif isinstance(after, ReplyEntry) and after.run_id == entry.run_id:
                return fate.model_copy(update={"reply": after.text, "error": after.why})
        return fate

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
    """Read again, word for word, what this conversation shows cut or in short.

    Args:
        what: the id of a call, such as c12_1_0; the number of an entry; or words to look for, which gives entries by their number.
        page: 1 for the first; the answer says how many there are.
    """
    try:
        return await recalled(SessionReader(client(), await _own_session()), what, page)
    except RunError as error:
        raise ToolError("not_found", str(error)) from None


_NONE: Final = ToolError("no_session", "this run belongs to no session, so there is nothing to recall")


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
