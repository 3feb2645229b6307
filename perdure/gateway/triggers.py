"""Triggers: their declaration in a file or an application, the mapping of a delivery, and its signature (R19.7).

Standard Webhooks, GitHub and Stripe sign with HMAC-SHA256. They differ in the signed data and in the signature's
header.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError, model_validator
from standardwebhooks import Webhook

from perdure.agents.agent import Agent
from perdure.agents.json_files import read_json
from perdure.errors import (
    FormulaError,
    InputError,
    MessageRefusedError,
    PerdureError,
    ReferenceSyntaxError,
    SettingsError,
    TooLargeError,
)
from perdure.sessions.agent_file import input_name
from perdure.sessions.message_queue import check_content, check_name
from perdure.sessions.wire import COMMANDS, Message
from perdure.values.json import Json, JsonObject, json_path
from perdure.values.limits import MAX_NAME
from perdure.values.messages import InputMessage, merge_data
from perdure.values.problems import none_of, problems_of
from perdure.values.references import MISSING, Expression, Missing, Reference, get
from perdure.values.schemas import Schema
from perdure.values.templates import parse_template

KINDS: Final = ("body", "event", "delivery")
"""The names that a mapping can refer to: `†body.issue.title`, the event's type, the delivery's id."""
NAME: Final = r"^[a-z0-9][a-z0-9_-]{0,63}$"
_PLACE: Final = re.compile(r"(env|file):(.+)")


class MappingError(Exception):
    """A mapping does not fit the body of a delivery: one line that names the place."""


def _places(value: Any) -> tuple[Any, ...]:
    """Return the places of the secrets. A file of triggers must not contain a secret itself."""
    places = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not 0 < len(places) <= SECRETS:
        raise ValueError(f"must have 1 to {SECRETS} secrets, not {len(places)}")
    if not all(isinstance(each, SecretStr) or (isinstance(each, str) and _PLACE.fullmatch(each)) for each in places):
        raise ValueError("must name the secret's place, not the secret: use env:VARIABLE or file:PATH")
    return places


SecretPlace: TypeAlias = str | SecretStr


class SessionMapping(BaseModel):
    """The message that a delivery sends in a session."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str = Field(min_length=1)
    """The session's key, for example `issue-{†body.issue.number}`."""
    text: str = Field(min_length=1)
    """The message's text."""
    mode: Literal["followup", "collect", "steer", "interrupt", "reject"] | None = None
    """The message's effect on an active run; by default the session's mode."""
    route: str = ""
    """The route of the reply."""


class Trigger(BaseModel):
    """A webhook of another system that starts a run, or sends a message in a session.

        Trigger(scheme="github", secret="env:GITHUB_SECRET", agent="triage", input={"title": "†body.issue.title"})

    In an application `secret` may be a `pydantic.SecretStr` too.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    scheme: Scheme
    """The signature scheme; `standard` is the Standard Webhooks specification."""
    secret: Annotated[SecretPlace | Sequence[SecretPlace], BeforeValidator(_places)]
    """`env:VARIABLE` or `file:PATH`. Several during a rotation: each is accepted."""
    agent: str = Field(min_length=1, max_length=1000)
    """An agent of this gateway by its name, or an agent file, whose name ends with `.json`."""
    on: Sequence[str] = ()
    """The accepted events: `issues.opened`, or `issues` for all of its events; by default all."""
    sender: str = Field(default="", max_length=MAX_NAME)
    """The recorded sender of runs and messages; by default the trigger's name."""
    tenant: str = Field(default="", max_length=100)
    """The tenant of the runs and sessions."""
    input: Any = MISSING
    """The run's input, with references to `†body`, `†event` and `†delivery`; by default no input."""
    session: SessionMapping | None = None
    """The message of a session, in place of a run with an input."""
    context: Any = MISSING
    """The context of the run or the message, with the same references; only tools read it, never a model (R19.1)."""

    @model_validator(mode="after")
    def _one_effect(self) -> Trigger:
        if self.session is not None and self.input is not MISSING:
            raise ValueError("has both 'input' and 'session': a delivery starts a run or sends a message")
        return self

    def mapping(self) -> JsonObject:
        """Return the declaration's templates with references, by their key."""
        found: JsonObject = {} if self.context is MISSING else {"context": self.context}
        if self.session is not None:
            return {
                "session": {"key": self.session.key, "text": self.session.text, "route": self.session.route},
                **found,
            }
        return found if self.input is MISSING else {"input": self.input, **found}

    def secrets(self) -> list[str]:
        """Return the secrets themselves. Raises `SettingsError` for a missing or invalid one."""
        found = []
        for place in _places(self.secret):
            where = "the secret" if isinstance(place, SecretStr) else place
            text = place.get_secret_value() if isinstance(place, SecretStr) else _read(place)
            if problem := check_secret(self.scheme, text):
                raise SettingsError(f"{where} {problem}")
            found.append(text)
        return found


def _read(place: str) -> str:
    kind, _, name = place.partition(":")
    if kind == "env":
        text = os.environ.get(name)
        if text is None:
            raise SettingsError(f"the variable {name} is not set")
        return text.strip()
    try:
        return Path(name).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SettingsError(f"{name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{name} is not UTF-8 text") from None


@dataclass(frozen=True)
class Mapped:
    """The values that a mapping has taken out of a delivery."""

    input: Json | Missing = MISSING
    context: Json = None
    key: str = ""
    text: str = ""
    route: str = ""


def map_delivery(trigger: Trigger, body: Json, event: str, delivery: str) -> Mapped:
    """Return the values that the mapping reads from a delivery. The body is data: references in its texts stay text.

    Raises `MappingError` if the body lacks a value that the mapping reads, or if a value has another type.
    """
    given: dict[str, Json] = {"body": body, "event": event, "delivery": delivery}

    def lookup(reference: Reference) -> Json | Missing:
        return get(given.get(reference.kind, MISSING), reference.path)

    template, _ = parse_template(trigger.mapping())
    if (site := next(template.find_missing(lookup), None)) is not None:
        raise MappingError(f"{_place(site.path)} reads {site.expression}, which is missing in this body")
    try:
        found = template.resolve(lookup)
    except (FormulaError, TooLargeError) as error:
        raise MappingError(" ".join(str(error).split())) from None
    context = found.get("context")
    if trigger.session is None:
        return Mapped(found.get("input", MISSING), context)
    texts = {name: _text(name, value) for name, value in found["session"].items()}
    if texts["text"].strip() in COMMANDS:
        raise MappingError(f"session.text is the command {texts['text'].strip()}, which a trigger may not send")
    try:
        check_name(texts["key"], "session.key")
        check_content(Message(message_id="-", sender="-", text=texts["text"], route=texts["route"]))
    except MessageRefusedError as error:
        raise MappingError(str(error)) from None
    return Mapped(context=context, **texts)


def _text(name: str, value: Json) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise MappingError(f"session.{name} must be text, and this body has {type(value).__name__} there")
    return str(value)


def _place(path: tuple[str | int, ...]) -> str:
    return json_path(path).removeprefix("$.")


def parse_triggers(document: Json | Mapping[str, Any], source: str = "the triggers") -> dict[str, Trigger]:
    """Return the triggers of a declaration, by name: `{"triggers": {"NAME": {…}}}`, or of names and `Trigger`s.

    Raises `SettingsError` with the first fault; see `trigger_faults` for all.
    """
    found, faults = _parsed(document)
    if faults:
        raise SettingsError(f"{source}: {faults[0]}")
    return found


def read_triggers(path: Path) -> dict[str, Trigger]:
    """Return the triggers of a file. Raises `SettingsError`."""
    return parse_triggers(read_json(path), str(path))


def trigger_faults(path: Path, agents: Path) -> tuple[dict[str, Trigger], list[str]]:
    """Return the triggers of a file, and all its problems, a line each. `agents`: the gateway's folder.

    Raises `SettingsError` for a file that cannot be read.
    """
    found, faults = _parsed(read_json(path))
    return found, [*faults, *(fault for name, each in found.items() for fault in place_faults(name, each, agents))]


def place_faults(name: str, trigger: Trigger, agents: Path) -> Iterable[str]:
    """Yield the problems of a trigger's secrets, its agent, and the context, message or input that its agent takes."""
    try:
        trigger.secrets()
    except SettingsError as error:
        yield f"{name}.secret: {error}"
    folder, stem = agent_place(trigger, agents)
    if not (folder / f"{stem}.json").is_file():
        if folder != agents:
            yield f"{name}.agent: the file {trigger.agent} does not exist"
        else:
            yield f"{name}.agent: {none_of(stem, 'agent', sorted(each.stem for each in agents.glob('*.json')))}"
        return
    try:
        agent = Agent.read_to_run(folder / f"{stem}.json")
    except PerdureError:  # the gateway logs the problem of a file, also after a later change
        return
    if any(_mapping_faults(trigger)):
        return
    if fault := _context_fault(trigger, agent):
        yield f"{name}.context: {fault}"
    key = "input" if trigger.session is None else "session"
    if fault := _input_fault(trigger, agent):
        yield f"{name}.{key}: {fault}"


def _context_fault(trigger: Trigger, agent: Agent[Any]) -> str:
    """Return the reason why the trigger's context can never match the agent's type for it; empty if it can match."""
    schema, context = agent.parsed.caller_context, trigger.context
    if context is MISSING or not parse_template(context)[0].sites:
        try:
            agent.check_context(None if context is MISSING else context)
        except InputError as error:
            return f"is missing: {error}" if context is MISSING else str(error)
    elif isinstance(context, dict) and isinstance(schema, dict):
        required = schema.get("required", [])
        if missing := [each for each in required if isinstance(each, str) and each not in context]:
            return f"the agent's context type also needs {missing[0]!r}"
    return ""


def _input_fault(trigger: Trigger, agent: Agent[Any]) -> str:
    """Return the reason why the agent can never take the trigger's message or input; empty if it can take one."""
    given = trigger.input
    try:
        if trigger.session is not None:
            input_name(agent.document())
        elif given is MISSING or parse_template(given)[0].literal:
            agent.check_input(given)
        elif isinstance(given, dict):  # else the whole input is a value of the body
            messages = [each for each in agent.parsed.messages() if isinstance(each, InputMessage)]
            merged = merge_data([*messages, InputMessage.model_validate({"type": "input", "input": given})])
            found = next(each for each in merged if each.instance is None)
            wrong = Schema(found.data_schema or {}).errors(found.value, references=True)
            return f"the input breaks its schema: {'; '.join(wrong[:5])}" if wrong else ""
    except (InputError, MessageRefusedError) as error:
        return f"is missing: {error}" if given is MISSING and trigger.session is None else str(error)
    return ""


def agent_place(trigger: Trigger, agents: Path) -> tuple[Path, str]:
    """Return the folder and the name of the trigger's agent."""
    if trigger.agent.endswith(".json"):
        path = Path(trigger.agent)
        return path.parent, path.stem
    return agents, trigger.agent


def _parsed(document: Json | Mapping[str, Any]) -> tuple[dict[str, Trigger], list[str]]:
    """Return the triggers that have every key they need, and the faults, also of their mappings."""
    listed = document.get("triggers", document) if isinstance(document, Mapping) else None
    if not isinstance(listed, Mapping) or not listed:
        return {}, ['must be an object such as {"triggers": {"issues": {"scheme": "github", …}}}']
    found: dict[str, Trigger] = {}
    faults: list[str] = []
    for name, raw in listed.items():
        try:
            named = _NamedTrigger(name=name, trigger=raw)
        except ValidationError as error:
            given = {"name": name, "trigger": raw}
            for problem in problems_of(error, given, model=_NamedTrigger):
                if problem.place[:1] == ("name",):
                    faults.append(f"{name!r} is not a valid name of a trigger: use 1 to 64 of a-z, 0-9, '-' and '_'")
                else:
                    faults.append(f"{name}{json_path(problem.place[1:]).removeprefix('$')}: {problem.words}")
            continue
        faults += [f"{name}.{each}" for each in _mapping_faults(named.trigger)]
        found[name] = named.trigger
    return found, faults


class _NamedTrigger(BaseModel):
    name: str = Field(pattern=NAME)
    trigger: Trigger


def _mapping_faults(trigger: Trigger) -> Iterable[str]:
    template, problems = parse_template(trigger.mapping())
    for problem in problems:
        yield f"{_place(problem.path)}: {_words(problem.error)}"
    for site in template.sites:
        for kind in sorted(_kinds(site.expression) - {*KINDS}):
            yield f"{_place(site.path)}: {none_of(f'†{kind}', 'reference of a trigger', [f'†{each}' for each in KINDS])}"


def _kinds(expression: Expression) -> set[str]:
    if isinstance(expression, Reference):
        return {expression.kind}
    return {kind for each in expression.items for kind in _kinds(each)}


def _words(error: ReferenceSyntaxError | FormulaError) -> str:
    return " ".join(str(error).split())


Scheme: TypeAlias = Literal["standard", "github", "stripe"]
TOLERANCE: Final = 300
"""The most seconds between a signed time and now; both specifications name five minutes."""
SECRETS: Final = 4
"""The most secrets of a trigger. Every delivery is compared with as many: the time must reveal neither their number nor an unknown name."""
SIGNATURES: Final = 16
"""The most signatures of a delivery that are checked: a sender sends one for each rotated secret."""
_PREFIX: Final = "whsec_"
_SECONDS: Final = re.compile(r"[0-9]{1,11}")
_DECOY: Final = base64.b64encode(b"nobody's secret").decode()


def check_secret(scheme: Scheme, secret: str) -> str | None:
    """Return a secret's problem, without the secret; `None` for a valid one."""
    if not secret:
        return "is empty"
    if scheme != "standard":
        return None
    digits = secret.removeprefix(_PREFIX).rstrip("=")
    try:
        key = base64.b64decode(digits + "=" * (-len(digits) % 4), validate=True)
    except (binascii.Error, ValueError):
        return f"must be base64, as in {_PREFIX}MfKQ9r8…"
    return None if key else "is empty"


def verify(scheme: Scheme, secrets: Sequence[str], headers: Mapping[str, str], body: bytes, now: float) -> bool:
    """Whether one of the secrets has signed this body, within `TOLERANCE` of `now`, in seconds since 1970.

    `headers`: by lower-case name. GitHub signs no time. Always compares with `SECRETS` secrets. Raises nothing.
    """
    padded = [*secrets[:SECRETS], *[_DECOY] * (SECRETS - len(secrets))]
    if scheme == "github":
        at, timely = "", True
        sent = [headers.get("x-hub-signature-256", "").removeprefix("sha256=")]
    elif scheme == "stripe":
        at, sent = _stripe(headers.get("stripe-signature", ""))
        timely = _is_timely(at, now)
    else:
        at = headers.get("webhook-timestamp", "")
        listed = headers.get("webhook-signature", "").split(" ")
        sent = [each for each in listed if each.startswith("v1,")]
        timely = _is_timely(at, now)
    moment = int(at) if _SECONDS.fullmatch(at) else 0
    matches = False
    for number, secret in enumerate(padded):
        right = _signature(scheme, secret, headers, moment, body)
        for each in sent[:SIGNATURES]:
            same = hmac.compare_digest(each.encode(errors="replace"), right.encode())
            matches |= same and right != "" and number < len(secrets)
    return matches and timely


def _signature(scheme: Scheme, secret: str, headers: Mapping[str, str], moment: int, body: bytes) -> str:
    """Return the valid signature by this secret; empty for data that cannot be signed."""
    if scheme == "standard":
        try:
            when = datetime.fromtimestamp(moment, UTC)
            return Webhook(secret).sign(headers.get("webhook-id", ""), when, body.decode())
        except (ValueError, OverflowError):  # a body that is not text, or an invalid year
            return ""
    signed = body if scheme == "github" else b"%d." % moment + body
    return hmac.new(secret.encode(), signed, sha256).hexdigest()


def _stripe(header: str) -> tuple[str, list[str]]:
    """Return the time and the signatures of `t=1700000000,v1=…,v1=…`."""
    pairs = [each.strip().partition("=") for each in header.split(",")]
    times = [value for key, _, value in pairs if key == "t"]
    return times[0] if len(times) == 1 else "", [value for key, _, value in pairs if key == "v1"]


def _is_timely(at: str, now: float) -> bool:
    return _SECONDS.fullmatch(at) is not None and abs(now - int(at)) <= TOLERANCE


def delivery_id(scheme: Scheme, headers: Mapping[str, str], body: Mapping[str, object]) -> str:
    """Return the sender's id of a delivery, the same for each retry; empty without one."""
    if scheme == "stripe":
        id = body.get("id")
        return id if isinstance(id, str) else ""
    return headers.get("webhook-id" if scheme == "standard" else "x-github-delivery", "")


def event_of(scheme: Scheme, headers: Mapping[str, str], body: Mapping[str, object]) -> str:
    """Return the type of the event: `issues.opened`, `invoice.paid`; empty if the delivery names none."""
    kind = headers.get("x-github-event", "") if scheme == "github" else body.get("type")
    if not isinstance(kind, str):
        return ""
    action = body.get("action") if scheme == "github" else None
    return f"{kind}.{action}" if isinstance(action, str) else kind


def is_wanted(event: str, wanted: Sequence[str]) -> bool:
    """Whether an event matches one of these names: `issues` matches `issues.opened`. An empty list matches all events."""
    return not wanted or any(event == each or event.startswith(f"{each}.") for each in wanted)
