"""A run's view, kept up to date by its events: the whole of it is asked for only where they do not say what is new (R10.14)."""

from __future__ import annotations

from typing import Final

from perdure.model.wire import RequestView
from perdure.plan.calls import ENDED
from perdure.run.events.kinds import Event
from perdure.run.wire import CallView, RunView
from perdure.values.jsons import JsonObject
from perdure.values.limits.sizes import preview

_SHOWN: Final = 200
"""Characters of a result."""


class Picture:
    """What is shown of a run while it goes on. Events may be older than the view that they are applied to: they change nothing back."""

    def __init__(self, view: RunView) -> None:
        self.view = view
        self.lacks = False
        """Whether something is new that events do not say whole."""
        self.asks = False
        """Whether that is what a person is asked about, or the run's end."""
        self._texts: dict[int, str] = {}
        self._said: dict[str, str] = {}

    def renew(self, view: RunView) -> None:
        """The whole run as it stands; it does not say what is being written, and what tools tell while they run."""
        self.view, self.lacks, self.asks = view, False, False
        for request in view.log:
            if request.status == "running":
                request.text = self._texts.get(request.number, request.text)
        for call in view.calls:
            if call.status == "running":
                call.reason = self._said.get(call.id, call.reason)

    def apply(self, event: Event) -> None:
        """Take in what has happened."""
        if event.topic == "request":
            self._request(event.phase, event.data)
        elif event.topic == "assistant":
            self._text(event.phase, event.data)
        elif event.topic == "tool":
            self._call(event.phase, event.data, event.at)
        elif event.phase == "reset":
            self.view = self.view.model_copy(update={"calls": [], "log": [], "waiting": []})
            self._texts.clear()
            self._said.clear()
            self.lacks = self.asks = True
        elif event.topic in ("approval", "lifecycle"):
            waits = {offer.call for offer in self.view.waiting}
            self.asks = self.asks or (event.data.get("call") in waits) is not (event.phase == "start")
            self.lacks = self.lacks or self.asks
        elif event.topic == "message":
            self.lacks = True

    def _request(self, phase: str, data: JsonObject) -> None:
        number = int(data.get("number", 0))
        found = next((each for each in self.view.log if each.number == number), None)
        if found is None:
            found = RequestView(number=number, model=str(data.get("model", "")), reason=str(data.get("reason", "")))
            self.view.log.append(found)
            self.lacks = True
        if phase == "update" and found.status == "running":
            found.trouble = str(data.get("reason", ""))
        elif phase == "end":
            self._texts.pop(number, None)
            self.lacks = self.lacks or found.status == "running"

    def _text(self, phase: str, data: JsonObject) -> None:
        number = int(data.get("request", 0))
        found = next((each for each in self.view.log if each.number == number), None)
        if found is None or found.status != "running" or phase == "end":
            return
        text = self._texts.get(number, "") if phase == "delta" else ""
        self._texts[number] = found.text = text + str(data.get("text", ""))

    def _call(self, phase: str, data: JsonObject, at: str) -> None:
        id = str(data.get("call"))
        found = next((each for each in self.view.calls if each.id == id), None)
        if found is None:
            params = data.get("params")
            params = params if isinstance(params, dict) else {}
            found = CallView(id=id, tool=str(data.get("tool", "")), params=params, status="pending")
            self.view.calls.append(found)
            self.lacks = True
        if found.status in ENDED:
            return
        if phase == "start":
            found.status, found.started_at = "running", found.started_at or at
        elif phase == "update":
            words = data.get("reason") or data.get("progress")
            found.reason = self._said[id] = str(words)
        else:
            self._said.pop(id, None)
            error, reason = data.get("error"), data.get("reason")
            found.status, found.ended_at = str(data.get("status", "done")), at
            found.error = error if isinstance(error, dict) else None
            found.reason = None if reason is None else str(reason)
            found.shown = preview(data["result"], _SHOWN) if "result" in data else None
