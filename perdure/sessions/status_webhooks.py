"""Addresses that are informed of the status of a session's runs: A2A's push notifications (R21.4)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from perdure.errors import MessageRefusedError
from perdure.runs.notifications import (
    Notification,
    NotificationInput,
    NotificationKind,
    StatusPush,
    check_callback,
    one_line,
)
from perdure.sessions.wire import SenderName, digest
from perdure.values.json import JsonObject, WireModel
from perdure.values.limits import MAX_NOTIFICATION_TEXT, MAX_STATUS_WEBHOOKS
from perdure.values.messages import is_visible

SET_STATUS_WEBHOOK: Final = "set_status_webhook"
"""Update, one `StatusWebhookChange`: an address is informed of a run from now on, or no longer."""
STATUS_WEBHOOKS: Final = "status_webhooks"
"""Query, the id of a run and a sender: the addresses that this sender has named for the run, as `StatusWebhook`s."""

_STATES: Final = {"waiting": "INPUT_REQUIRED", "completed": "COMPLETED", "cancelled": "CANCELED", "refused": "REJECTED"}
"""A2A's names by status; any other end is `FAILED`."""


def _check_url(url: str) -> str:
    if problem := check_callback(url):
        raise ValueError(problem)
    return url


def _check_header(text: str) -> str:
    if not (text.isascii() and all(map(is_visible, text))):
        raise ValueError("must be printable ASCII: it is a header")
    return text


HeaderText = Annotated[str, Field(max_length=4096), AfterValidator(_check_header)]


class StatusWebhook(WireModel):
    """An address that is informed when a run waits for a person, and when it has ended.

    ```python
    webhook = StatusWebhook(run_id=receipt.run_id or "", url="https://example.com/ended", token="mine")
    ```
    """

    id: str = Field(default="", max_length=200)
    """Id of the address among the addresses of one sender and run."""
    run_id: str
    """Run of the session, which may not have begun."""
    url: Annotated[str, AfterValidator(_check_url)]
    """Address, http or https, of a host that the workers allow (`callback_hosts`)."""
    token: HeaderText = ""
    """Header `X-A2A-Notification-Token`."""
    scheme: HeaderText = ""
    """Scheme of the header `Authorization`, before the `credentials`."""
    credentials: HeaderText = ""
    protocol: Literal["1.0", "0.3"] = "1.0"
    """Version of A2A that gives the form of the status."""
    waits: bool = True
    """Whether the webhook gets the status that the run waits for a person: its sender may decide."""


class StatusWebhookChange(WireModel):
    """An address to inform of a run, or with `remove` one to inform no longer."""

    webhook: StatusWebhook
    remove: bool = False
    sender: SenderName


class KeptStatusWebhook(WireModel):
    """An address, and the statuses that were sent to it."""

    webhook: StatusWebhook
    sender: str
    last: str = ""
    """The status that was sent last."""
    number: int = 0
    """Number of sent statuses."""
    ended: bool = False

    def is_named(self, run_id: str, sender: str) -> bool:
        """Whether this sender named it for this run."""
        return (self.webhook.run_id, self.sender) == (run_id, sender)

    def is_changed_by(self, change: StatusWebhookChange) -> bool:
        """Whether the change names this address."""
        return self.is_named(change.webhook.run_id, change.sender) and self.webhook.id == change.webhook.id


class StatusWebhooks:
    """The addresses that are informed of a session's runs. `kept` is the caller's own list."""

    def __init__(self, kept: list[KeptStatusWebhook]) -> None:
        self.kept = kept

    def judge(self, change: StatusWebhookChange) -> None:
        """Raise `MessageRefusedError` where there is no room for one more address."""
        is_new = not change.remove and not any(each.is_changed_by(change) for each in self.kept)
        if is_new and sum(not each.ended for each in self.kept) >= MAX_STATUS_WEBHOOKS:
            words = f"the session already has {MAX_STATUS_WEBHOOKS} webhooks of its runs, which is the limit"
            raise MessageRefusedError(words)

    def change(self, change: StatusWebhookChange) -> None:
        """Add an address, in place of an earlier one with its id, or remove it. Addresses of ended runs give way."""
        self.kept[:] = [each for each in self.kept if not each.is_changed_by(change)]
        if change.remove:
            return
        while len(self.kept) >= MAX_STATUS_WEBHOOKS:
            self.kept.remove(next(each for each in self.kept if each.ended))
        self.kept.append(KeptStatusWebhook(webhook=change.webhook, sender=change.sender))

    def named(self, run_id: str, sender: str) -> list[StatusWebhook]:
        """Return the addresses that a sender has named for a run."""
        return [each.webhook for each in self.kept if each.is_named(run_id, sender)]

    def report(
        self, run_id: str, status: str, at: str, *, session: str, tenant: str, agent: str, error: str | None = None
    ) -> Iterable[NotificationInput]:
        """Yield the notifications for addresses without this status of a run: `running`, `waiting` or its end.

        `running` is only recorded, so that the next wait is sent again.
        """
        for each in self.kept:
            webhook = each.webhook
            if webhook.run_id != run_id or each.last == status or each.ended:
                continue
            each.last, each.ended = status, status not in ("running", "waiting")
            if status == "running" or (status == "waiting" and not webhook.waits):
                continue
            each.number += 1
            kind: NotificationKind = "approval_requested" if status == "waiting" else "run_ended"
            notification = Notification(
                key=f"{run_id}/push/{digest([each.sender, webhook.id, webhook.url], 12)}/{each.number}-{status}",
                kind=kind,
                at=at,
                text=one_line(f"the run {run_id} is {status}", MAX_NOTIFICATION_TEXT),
                run_id=run_id,
                agent=agent,
                session=session,
                tenant=tenant,
                status=None if status == "waiting" else status,
                error=error,
            )
            with_credentials = webhook.scheme and webhook.credentials
            push = StatusPush(
                token=webhook.token,
                authorization=f"{webhook.scheme} {webhook.credentials}" if with_credentials else "",
                body=_body(webhook, session, status, at, error),
            )
            yield NotificationInput(notification=notification, callback=webhook.url, push=push)


def _body(webhook: StatusWebhook, session: str, status: str, at: str, error: str | None) -> JsonObject:
    """Return a status in A2A's form: an update of the status, in 0.3 a task."""
    state = _STATES.get(status, "FAILED")
    words = None if error is None else one_line(error, MAX_NOTIFICATION_TEXT)
    if webhook.protocol == "1.0":
        status_form: JsonObject = {"state": f"TASK_STATE_{state}", "timestamp": at}
        if words:
            message = {"messageId": f"{webhook.run_id}:end", "role": "ROLE_AGENT", "parts": [{"text": words}]}
            status_form["message"] = message
        return {"statusUpdate": {"taskId": webhook.run_id, "contextId": session, "status": status_form}}
    status_form = {"state": state.lower().replace("_", "-"), "timestamp": at}
    if words:
        status_form["message"] = {
            "kind": "message",
            "messageId": f"{webhook.run_id}:end",
            "role": "agent",
            "parts": [{"kind": "text", "text": words}],
        }
    return {"kind": "task", "id": webhook.run_id, "contextId": session, "status": status_form}
