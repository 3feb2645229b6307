"""Routes of a worker: what it lacks, what it cannot read, and what it allows (R19.5, R19.8)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from standardwebhooks import Webhook

from perdure.activities.deliveries import NotificationRoutes, check_apprise, sign_webhook, webhook_body
from perdure.errors import SettingsError
from perdure.runs.notifications import Notification, WebhookRoute, notification_route, notification_routes_of
from perdure.runs.routes import RouteFunctions
from perdure.runs.wire import PrepareInput
from perdure.values.json import Json, dumps

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@notification_route("pager")
def page(notification: Notification) -> None:
    del notification


def routes(*hosts: str) -> NotificationRoutes:
    functions = RouteFunctions()
    for each in notification_routes_of(page):
        functions.add(each)
    return NotificationRoutes({"chat": "json://localhost"}, functions, hosts, SECRET if hosts else None)


def test_a_route_is_found_by_its_name_and_a_functions_with_an_address() -> None:
    known = routes()
    assert known.find("chat") == "json://localhost"
    assert known.find("pager:boss") == notification_routes_of(page)[0]
    assert [known.find(each) for each in ("chat:x", "none", "")] == [None] * 3


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ({"run_ended": ["chat", "pager:x"]}, ""),
        (
            {"run_failed": ["pagr"]},
            "config.notify.run_failed: the worker has no notification route 'pagr'; it has pager",
        ),
        (
            {"run_failed": ["chat:boss"]},
            "config.notify.run_failed: 'chat:boss': the route 'chat' is a setting, which needs no address",
        ),
    ],
)
def test_a_lacking_route_is_named_with_those_that_are_close(wanted: dict[str, list[str]], problem: str) -> None:
    assert routes().problem(PrepareInput(tools=[], models={}, notify=wanted)).startswith(problem)
    assert bool(problem) == bool(routes().problem(PrepareInput(tools=[], models={}, notify=wanted)))


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("https://hooks.example.com/a", True),
        ("https://HOOKS.example.com:8443", True),
        ("http://a.example.org", True),
        ("https://example.org", False),
        ("https://hooks.example.com.evil.net", False),
    ],
)
def test_a_callback_goes_to_allowed_hosts_alone(address: str, allowed: bool) -> None:
    assert (routes("hooks.example.com", "*.example.org").callback_problem(address) == "") is allowed


def test_an_address_that_apprise_cannot_read_is_not_shown() -> None:
    with pytest.raises(SettingsError, match=r"^notification_routes\.ops: Apprise does not support this URL") as found:
        check_apprise({"ops": "nosuchservice://hush"})
    assert "hush" not in str(found.value)
    check_apprise({"ops": "json://localhost", "audit": WebhookRoute(url="https://e.com", secret=SECRET)})


def test_a_webhook_is_signed_so_that_the_standards_own_library_takes_it() -> None:
    said = Notification(
        key="r ü/1.0:ab/approval_requested/1", kind="approval_requested", at="t", text="é", run_id="r", agent="a"
    )
    body = dumps(webhook_body(said))
    headers = sign_webhook(said.key, SECRET, body, datetime.now(UTC))
    assert all(value.isascii() for value in headers.values())
    assert "." not in headers["webhook-id"]
    assert Webhook(SECRET).verify(body, headers)["data"]["text"] == "é"


@pytest.mark.parametrize("output", ["", [], {}, 0, False])
def test_an_output_that_holds_nothing_is_sent(output: Json) -> None:
    ended = Notification(key="k", kind="run_ended", at="t", text="", run_id="r", agent="a", output=output)
    assert webhook_body(ended)["data"]["output"] == output
