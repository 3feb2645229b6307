"""Notifications of a run: their rules in an agent file, their texts, their wire types, and `@notification_route` (R19.5)."""

from __future__ import annotations

import hashlib
import operator
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from perdure.models.usage import RunUsage
from perdure.runs.routes import (
    LONGEST_ROUTE,
    Delivered,
    F,
    RouteFunction,
    address_of,
    decorated_route,
    registered_routes,
)
from perdure.values.json import Json, JsonObject, WireModel, dumps
from perdure.values.limits import MAX_ID, MAX_NOTIFICATION_TEXT, MAX_ROUTES, MAX_WAITING_STEPS, Seconds, duration_words
from perdure.values.messages import is_visible

NOTIFICATION_WORKFLOW: Final = "Notification"
"""Workflow that delivers one notification to its routes. Its id is the notification's key, so that it is sent once."""
NOTIFY_ACTIVITY: Final = "perdure.notify"
"""Activity that delivers one notification to one route, a `NotificationDelivery`: a `Delivered`."""


def _check_secret(secret: str) -> str:
    if not re.fullmatch(r"whsec_[A-Za-z0-9+/]{32,}={0,2}", secret):
        raise ValueError('must be whsec_ and 24 bytes or more in base64, such as "whsec_$(openssl rand -base64 24)"')
    return secret


def _check_url(url: str) -> str:
    if check_callback(url):
        raise ValueError("must be an http or https URL without a user and a fragment")
    return url


SigningSecret: TypeAlias = Annotated[str, AfterValidator(_check_secret)]
"""Secret that signs webhooks."""

NotificationKind: TypeAlias = Literal[
    "approval_requested", "approval_waiting", "budget_nearly_used", "run_failed", "run_ended"
]
RouteName: TypeAlias = Annotated[str, Field(min_length=1, max_length=LONGEST_ROUTE)]


class WaitingStep(BaseModel):
    """A time after which a request still waits for a person, and the routes that are informed then."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after: Seconds
    """Seconds since the request."""
    routes: list[RouteName] = Field(min_length=1, max_length=MAX_ROUTES)
    """Routes of the worker, by name."""


class Notify(BaseModel):
    """The routes of the worker that are informed of what happens in a run. By default there are none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    approval_requested: list[RouteName] = Field(default_factory=list, max_length=MAX_ROUTES)
    """Routes to notify when a call, a plan or a question starts to wait for a person."""
    approval_waiting: list[WaitingStep] = Field(default_factory=list, max_length=MAX_WAITING_STEPS)
    """Reminders and escalations: routes to notify after a time, if it still waits."""
    budget_nearly_used: list[RouteName] = Field(default_factory=list, max_length=MAX_ROUTES)
    """Routes to notify when the run has used `budget_share` of its token or cost budget."""
    run_failed: list[RouteName] = Field(default_factory=list, max_length=MAX_ROUTES)
    """Routes to notify when a run fails or its model refuses."""
    run_ended: list[RouteName] = Field(default_factory=list, max_length=MAX_ROUTES)
    """Routes to notify at every end of a run. A route that `run_failed` has too is notified once."""
    budget_share: float = Field(default=0.8, gt=0, le=1)
    """The share of `token_budget` or `cost_budget` at which the routes of `budget_nearly_used` are notified."""

    @field_validator("approval_requested", "budget_nearly_used", "run_failed", "run_ended")
    @classmethod
    def _once(cls, routes: list[str]) -> list[str]:
        return list(dict.fromkeys(routes))

    @property
    def of_approvals(self) -> bool:
        """Whether it names routes for approval requests."""
        return bool(self.approval_requested or self.approval_waiting)

    def places(self) -> dict[str, list[str]]:
        """Return the names of all routes, by the key that names them."""
        keys = ("approval_requested", "budget_nearly_used", "run_failed", "run_ended")
        found = {key: getattr(self, key) for key in keys}
        return found | {f"approval_waiting[{n}].routes": step.routes for n, step in enumerate(self.approval_waiting)}


class WebhookRoute(BaseModel):
    """A route of a worker's settings: a receiver of webhooks that are signed by Standard Webhooks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: Annotated[str, AfterValidator(_check_url)]
    secret: SigningSecret
    """`whsec_` and 24 bytes or more in base64."""


class ApprovalRoutes(WireModel):
    """The routes for approval requests of a run and of those below it whose agent files name none."""

    approval_requested: list[str] = Field(default_factory=list, max_length=MAX_ROUTES)
    approval_waiting: list[WaitingStep] = Field(default_factory=list, max_length=MAX_WAITING_STEPS)
    queue: str
    """Task queue of the workers that have these routes."""


def approval_routes(rules: Notify, queue: str, above: ApprovalRoutes | None) -> ApprovalRoutes | None:
    """Return the routes for a run's approval requests: its own, else those of the run above."""
    if not rules.of_approvals:
        return above
    steps = sorted(rules.approval_waiting, key=lambda step: step.after)
    return ApprovalRoutes(approval_requested=rules.approval_requested, approval_waiting=steps, queue=queue)


# Notifications.


class Notification(WireModel):
    """The argument of a route's function: one thing that has happened, and its text.

    ```python
    print(f"{notification.text} {notification.link or notification.command}")
    ```
    """

    key: str
    """Identifies this notification at every attempt. A receiver ignores a key that it has processed."""
    kind: NotificationKind
    at: str
    """ISO 8601, UTC."""
    text: str
    """A sentence on one line: the event, the persons asked, and the reason. It contains texts of tools, people and
    models.
    """
    run_id: str
    agent: str
    """The name of the run's agent."""
    above: list[str] = Field(default_factory=list)
    """The agents above a delegate, outermost first."""
    session: str = ""
    sender: str = ""
    """The sender on whose behalf it runs, if one was named."""
    tenant: str = ""
    link: str = ""
    """Address of this request, or run, on the pages; empty where the worker has no `pages_url`."""
    command: str = ""
    """Command line that decides about the request, or shows the run."""
    call: str | None = None
    """The call, or the Request's number for its plan, as a decision names it."""
    tool: str | None = None
    question: bool = False
    """Whether it requests an answer, not a decision."""
    reason: str | None = None
    """The reason of the request; for a question the question."""
    number: int = 1
    """1 for the first of its kind about this call, or run."""
    status: str | None = None
    """Status of an ended run: `completed`, `refused`, `failed` or `cancelled`."""
    stop_reason: str | None = None
    error: str | None = None
    output: Json = None
    """Output of an ended run, if it is small enough."""
    output_size: int = 0
    """Bytes of an output that is too large to be sent; 0: `output` is whole."""
    output_link: str = ""
    """Address of an output that is too large."""
    usage: RunUsage | None = None
    route: str = ""
    """Route that this delivery goes to: `name`, or `name:address`."""
    attempt: int = 1
    """1 for the first."""

    @property
    def address(self) -> str:
        """The part of the route behind the name."""
        return address_of(self.route)


class StatusPush(WireModel):
    """The form of a status for a callback by A2A: its own body, and the receiver's token."""

    body: JsonObject
    token: str = ""
    """Header `X-A2A-Notification-Token`."""
    authorization: str = ""
    """Header `Authorization`."""


class NotificationInput(WireModel):
    """The input of the workflow of one notification."""

    notification: Notification
    routes: list[str] = Field(default_factory=list, max_length=MAX_ROUTES)
    callback: str = ""
    """Address from the run's start, in place of routes."""
    push: StatusPush | None = Field(default=None, exclude_if=operator.not_)
    """Form of the body, if it differs from a webhook's."""

    def deliveries(self) -> list[tuple[str, NotificationInput]]:
        """Return the id and the input of each workflow that delivers it: one for each route, or one for the callback."""
        key = self.notification.key
        if self.callback or len(self.routes) == 1:
            return [(key, self)]
        return [
            (delivery_id(key, route, alone=False), self.model_copy(update={"routes": [route]})) for route in self.routes
        ]


class NotificationDelivery(WireModel):
    """A notification on its way to one route, or to the address of a callback."""

    notification: Notification
    callback: str = ""
    push: StatusPush | None = Field(default=None, exclude_if=operator.not_)
    earlier: int = 0
    """Attempts during which the worker was shut down."""


class RouteOutcome(WireModel):
    """The outcome of a notification at one route.

    ```python
    print(outcome.route, outcome.status, outcome.why)
    ```
    """

    route: str
    """Its name; for a callback the host."""
    status: Literal["sending", "delivered", "refused", "unknown"] = "sending"
    why: str | None = None

    def ended(self, became: Delivered) -> RouteOutcome:
        """Return the outcome of this delivery."""
        return RouteOutcome(route=self.route, status=became.status, why=became.why)


class NotificationView(WireModel):
    """A notification, as `show` prints it.

    ```python
    lost = [each for each in view.notifications if any(route.status == "unknown" for route in each.routes)]
    ```
    """

    key: str
    kind: str
    at: str
    call: str | None = None
    routes: list[RouteOutcome]


class NotificationResult(WireModel):
    """The output of the workflow of one notification."""

    routes: list[RouteOutcome]


def notification_key(
    run_id: str, kind: str, number: int = 1, *, about: str = "", digest: str = "", asked_at: str = ""
) -> str:
    """Return `<run>/<about>:<digest>/<kind>/<number>`; without `about`, `<run>/<kind>/<number>`. `about`: a call, or
    `end`.

    The digest includes the request and its time: after a reset the same call may make the request again, or another
    one.
    """
    if asked_at:
        digest = hashlib.sha256(f"{digest} {asked_at}".encode()).hexdigest()
    what = f"/{about}:{digest[:12]}" if about else ""
    return f"{run_id}{what}/{kind}/{number}"


def delivery_id(key: str, route: str, *, alone: bool) -> str:
    """Return the id of the workflow that delivers a notification to a route. `alone`: the notification has no other route."""
    return key if alone else f"{key}/{route}"


def end_digest(status: str | None, error: str | None, output: Json) -> str:
    """Return the digest of a run's end. A run that ends differently after a reset has another digest."""
    text = dumps([status, error, output], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def fits_id(key: str) -> bool:
    """Whether a workflow may have this id."""
    return len(key.encode()) <= MAX_ID


# Texts.

_WHO: Final = 80
"""Characters of a name in a text."""


def one_line(text: str, most: int) -> str:
    """Return an untrusted text on one line, in at most `most` characters, without invisible characters."""
    line = " ".join("".join(char if is_visible(char) else " " for char in text[: 4 * most]).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def approval_text(
    agent: str, sender: str, routes: Iterable[str], words: str, *, question: bool, waited: float | None = None
) -> str:
    """Return the sentence about a request: `The agent 'shop', for ann, asks ops: refund 120 EUR: euros is above 100`."""
    asks = f"asks {_names(routes)}" + ("" if question else " to decide")
    if waited is not None:
        asks += f", and has waited for {duration_words(waited)}"
    return one_line(f"{_agent(agent, sender)} {asks}: {one_line(words, MAX_NOTIFICATION_TEXT)}", MAX_NOTIFICATION_TEXT)


def budget_text(agent: str, sender: str, run_id: str, used: str) -> str:
    """Return the sentence about a budget that is nearly used."""
    return one_line(
        f"{_agent(agent, sender)} has nearly used its budget in the run {_quoted(run_id)}: {used}",
        MAX_NOTIFICATION_TEXT,
    )


def end_text(agent: str, sender: str, run_id: str, status: str, error: str | None, usage: RunUsage) -> str:
    """Return the sentence about the end of a run."""
    words = {"completed": "has completed", "cancelled": "was cancelled in", "refused": "was refused in"}
    cost = "" if usage.cost is None or not usage.by_model else f" It cost ${usage.cost:.4f}."
    why = f": {one_line(error, MAX_NOTIFICATION_TEXT)}" if error else "."
    return one_line(
        f"{_agent(agent, sender)} {words.get(status, 'has failed in')} the run {_quoted(run_id)}{why}{cost}",
        MAX_NOTIFICATION_TEXT,
    )


def used_words(rules: Notify, tokens: int | None, cost: float | None, usage: RunUsage) -> str | None:
    """Return the used part of a budget in words, if it is at least `budget_share`; otherwise `None`."""
    if tokens and usage.tokens >= rules.budget_share * tokens:
        return f"{usage.tokens:,} of {tokens:,} tokens ({usage.tokens / tokens:.0%})"
    if cost and usage.cost is not None and usage.cost >= rules.budget_share * cost:
        return f"${usage.cost:.4f} of ${cost:g} ({usage.cost / cost:.0%})"
    return None


def run_link(pages: str, run_id: str) -> str:
    """Return the address of a run on the pages; empty without pages."""
    return f"{pages.rstrip('/')}/runs/{_escaped(run_id, '/')}" if pages else ""


def approval_link(pages: str, run_id: str, call: str) -> str:
    """Return the address of this request on the pages."""
    return f"{pages.rstrip('/')}/inbox/?run={_escaped(run_id)}&call={_escaped(call)}" if pages else ""


def output_link(pages: str, run_id: str) -> str:
    """Return the address of a run's output at the HTTP API."""
    return f"{pages.rstrip('/')}/v1/runs/{_escaped(run_id, '/')}/value?what=output" if pages else ""


def decide_command(run_id: str, call: str, *, question: bool, roles: Sequence[str] = ()) -> str:
    """Return the command line that decides about a request, with the roles that its quorum needs."""
    named = f"{shlex.quote(run_id)} {shlex.quote(call)}"
    if question:
        return f"perdure answer {named} TEXT"
    return " ".join([f"perdure approve {named}", *(f"--role {shlex.quote(role)}" for role in roles)])


def show_command(run_id: str) -> str:
    """Return the command line that shows a run."""
    return f"perdure show {shlex.quote(run_id)}"


def _escaped(text: str, also: str = "") -> str:
    signs = re.escape(f"._~-{also}")
    return re.sub(f"[^A-Za-z0-9{signs}]", lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), text)


def webhook_id(key: str) -> str:
    """Return a key as the id of a webhook: a header holds ASCII, and the signed content has full stops between its parts."""
    return _escaped(key, "/:").replace(".", "%2E")


def _agent(agent: str, sender: str) -> str:
    return f"The agent {_quoted(agent)}" + (f", for {one_line(sender, _WHO)}," if sender else "")


def _quoted(text: str) -> str:
    return f"'{one_line(text, _WHO)}'"


def _names(routes: Iterable[str]) -> str:
    names = [one_line(route, _WHO) for route in routes]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


_MARKUP: Final = str.maketrans({"<": "‹", ">": "›", "`": "ˋ", "*": "∗", "~": "∼"})
"""Signs that begin markup, a link or a mention in some chat program, and their replacements."""


_ADDRESS: Final = re.compile(r"@(?=\w)|(?<=\w)\.(?=[^\W\d_]{2,})")
"""The signs that make a mention, a mail address, or the name of a host, which many programs show as a link."""


def without_markup(text: str) -> str:
    """Return the text with similar signs that no chat program reads as markup, a mention or a link.

    Only the link to the pages, after the text, stays a link.
    """
    text = text.translate(_MARKUP).replace("://", ":∕∕").replace("](", "] (").replace("||", "¦¦")
    text = re.sub(r"(?<![^\W_])_+|_+(?![^\W_])", lambda found: "＿" * len(found[0]), text)
    return _ADDRESS.sub(lambda found: "＠" if found[0] == "@" else "․", text)


TITLES: Final[dict[str, str]] = {
    "approval_requested": "Approval requested",
    "approval_waiting": "Approval still waiting",
    "budget_nearly_used": "Budget nearly used",
    "run_failed": "Run failed",
    "run_ended": "Run ended",
}


def message_body(notification: Notification) -> str:
    """Return the text of a notification for people, with the link or command to decide about it or to view it."""
    return f"{without_markup(notification.text)}\n{notification.link or notification.command}"


# Route functions of a worker.

_REGISTERED: Final = "__perdure_notification_routes__"


def notification_route(name: str, /) -> Callable[[F], F]:
    """Make a function, sync or async, deliver the notifications of a route: `name`, or `name:address`.

    The function takes a `Notification` and delivers it under its `key`. It returns nothing, or `refuse("why")` if it
    can never be delivered. The engine retries after an exception: 12 attempts in about 20 minutes. Sync functions run
    in threads. A route of the setting `notification_routes` has precedence over a function of the same name.

    Raises `ToolDefinitionError` for a name with a colon in it, and for a function that takes no `Notification`.

    ```python
    @notification_route("pager")
    async def page(notification: Notification) -> None:
        print(f"to {notification.address}: {notification.text}")
    ```
    """
    # R19.5
    return decorated_route(name, _REGISTERED, "notification")


def notification_routes_of(value: object) -> list[RouteFunction]:
    """Return the routes that a decorated function is registered for."""
    return registered_routes(value, _REGISTERED, "notification")


_CALLBACK: Final = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[^/@?#:\[\]]+)(:(?P<port>[0-9]{1,5}))?([/?][^#]*)?")


def check_callback(address: str) -> str:
    """Return the problem of a callback's address; empty if it is valid. The worker judges its host."""
    if not address.isprintable() or " " in address or len(address) > MAX_ID:
        return f"a callback must be a URL in one line, with at most {MAX_ID:,} characters"
    found = _CALLBACK.fullmatch(address)
    if found is None or int(found["port"] or 1) not in range(1, 65_536):
        return (
            "a callback must be an http or https URL without a user and a fragment, such as https://example.com/ended"
        )
    return ""


def host_of(address: str) -> str:
    """Return the host of a callback's address, for people."""
    return address.partition("://")[2].partition("/")[0].partition("?")[0]
