"""Settings of every program: one model, read from flags, variables, files, and defaults."""

from __future__ import annotations

import ipaddress
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import parse_qs, urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from perdure.agents.json_files import AGENTS, json_option
from perdure.approvals.policy import ASKS, Ask, Flow
from perdure.errors import SettingsError
from perdure.hosting.oidc import OidcConfig
from perdure.models.model_names import FAST_MODEL, SMART_MODEL, split_endpoint
from perdure.models.providers.capabilities import FileKind
from perdure.models.requests import PATIENCE, Endpoint
from perdure.models.usage import Price
from perdure.rules import Rule
from perdure.runs.audit import DATABASES
from perdure.runs.notifications import SigningSecret, WebhookRoute
from perdure.runs.routes import is_route_name
from perdure.runs.shared_budgets import SharedBudget
from perdure.values.json import shorten
from perdure.values.limits import LONGEST, read_duration
from perdure.values.problems import close_names

T = TypeVar("T")


@dataclass(frozen=True)
class SettingInfo:
    """A setting's place in the table of all settings."""

    group: str
    form: str
    """The form of its value in help texts: `SECONDS`, `FOLDER`, `A,B,…`."""
    secret: bool = False
    """Whether its value is always masked."""


def setting(default: Any, words: str, group: str, form: str = "", *, secret: bool = False, **bounds: Any) -> Any:
    """Return a field of `Settings`. `words` describe it in one line; `bounds` are those of `pydantic.Field`."""
    about = SettingInfo(group, form, secret)
    return Field(default=default, description=words, json_schema_extra={"about": about.__dict__}, **bounds)


def setting_info(field: FieldInfo) -> SettingInfo:
    """Return the description of a field."""
    extra = field.json_schema_extra
    assert isinstance(extra, dict)
    assert isinstance(extra["about"], dict)
    return SettingInfo(**extra["about"])  # type: ignore[arg-type]


_HOST: Final = re.compile(r"[\w.*?-]+|\[?[0-9A-Fa-f:.*]+\]?")
"""A name or an address of a host, where `*` matches any part: no port, no path, no JSON list."""


def _names(value: Any) -> Any:
    """Read comma-separated text, or a list of texts."""
    return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value


def _json(value: Any) -> Any:
    """Read JSON text, `@file`, or a table of a TOML file."""
    if not isinstance(value, str):
        return value
    try:
        return json_option(value, "the value")
    except SettingsError as error:
        raise ValueError(str(error)) from None


def _rates(value: Any) -> Any:
    """Read `NAME=NUMBER,…`, or what `_json` reads."""
    read = _pairs(value, "NUMBER", "search=120")
    if isinstance(read, dict) and any(isinstance(each, bool) for each in read.values()):
        raise ValueError("each rate must be a number")
    return read


def _kinds(value: Any) -> Any:
    """Read `NAME=KIND+KIND,…`, or what `_json` reads."""
    read = _pairs(value, "KIND", "llava*=images,my-model=images+documents")
    if not isinstance(value, str) or not isinstance(read, dict):
        return read
    return {
        name: [kind.strip() for kind in each.split("+") if kind.strip()] if isinstance(each, str) else each
        for name, each in read.items()
    }


def _ages(value: Any) -> Any:
    """Read `TENANT=AGE,…`, or what `_json` reads."""
    return _pairs(value, "AGE", "acme=30d,*=365d")


def _pairs(value: Any, form: str, example: str) -> Any:
    """Read `NAME=VALUE,…`, or what `_json` reads. `form`: the word for a value in errors."""
    if not isinstance(value, str) or value.lstrip().startswith(("{", "@")):
        return _json(value)
    pairs: dict[str, str] = {}
    for part in _names(value):
        name, equals, text = part.rpartition("=")
        if not equals or not name:
            raise ValueError(f"must be NAME={form}, separated by commas, such as {example}")
        pairs[name.strip()] = text.strip()
    return pairs


def _pollers(value: Any) -> Any:
    """Read `auto`, or a number of at least 2: one poller is for the runs that a worker keeps in memory."""
    if value == "auto" or (str(value).isdecimal() and int(value) >= 2):
        return value if value == "auto" else int(value)
    raise ValueError("must be 2 or more, or auto")


def _route(value: Any) -> Any:
    """Return an address of Apprise's, or a table that describes a webhook."""
    if isinstance(value, str | WebhookRoute):
        return value
    if not isinstance(value, dict):
        raise ValueError("must be an Apprise URL, or a table with url and secret")
    try:
        return WebhookRoute.model_validate(value)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise ValueError(f"{'.'.join(map(str, problem['loc']))} {_words(problem)}") from None


RouteTarget = Annotated[str | WebhookRoute, BeforeValidator(_route)]
Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
ByName = Annotated[dict[str, T], BeforeValidator(_json)]
Pollers = Annotated[int | Literal["auto"], BeforeValidator(_pollers)]


def _sink(value: str) -> str:
    """Check `file:` and a path from the root, an address of HTTP or of PostgreSQL, or `otel`."""
    path = value.removeprefix("file:")
    if value == "otel" or (path != value and path.startswith("/")):
        return value
    if value.startswith(("https://", "http://")) and len(value.partition("://")[2].partition("/")[0]) > 0:
        return value
    if value.startswith(DATABASES):
        address = urlsplit(value)
        if address.password is not None or "password" in parse_qs(address.query, keep_blank_values=True):
            raise ValueError("must not have a password: use the setting audit_token")
        return value
    raise ValueError("must be file:/PATH, https://…, postgresql://USER@HOST/DATABASE, or otel")


def _age(value: str) -> str:
    """Validate a duration: more than zero, and at most a hundred years."""
    if 0 < (read_duration(value) or 0) <= 36_500 * 86_400:
        return value
    raise ValueError("must be an age, such as 12h, 30d or 52w")


Flows = Annotated[tuple[Flow, ...], BeforeValidator(_json)]
Rules = Annotated[tuple[Rule, ...], BeforeValidator(_json)]
Kinds = Annotated[dict[str, tuple[FileKind, ...]], BeforeValidator(_kinds)]
"""The kinds of files that models read, by name."""
Budgets = Annotated[tuple[SharedBudget, ...], Field(max_length=50), BeforeValidator(_json)]
Rates = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=200)], Annotated[float, Field(gt=0)]], BeforeValidator(_rates)
]
"""A rate per minute, by name."""
Ages = Annotated[dict[str, Annotated[str, AfterValidator(_age)]], BeforeValidator(_ages)]
"""The age at which data is removed, by tenant."""


TASK_QUEUE: Final = "perdure"
"""The default task queue of workers."""
PREFIX: Final = "PERDURE_"
CONFIG: Final = "PERDURE_CONFIG"
"""The variable that names the settings file; `FILE` by default."""
FILE: Final = Path("perdure.toml")

WORK = "Tools and agents of a worker"
PEOPLE = "Approvals and rules"
NOTICES = "Notifications and audit"
MODELS = "Models"
SERVICE = "A worker as a service"
TUNING = "Tuning of a worker"
RATES = "Rates over all workers"
DATA = "Storage and encryption"
GATEWAY = "The gateway"
PAGES = "Pages and the embedded server"


class Settings(BaseSettings):
    """The settings in force. A flag takes precedence over its environment variable, then come the key in `perdure.toml`
    and the default.

    ```python
    plugin = PerdurePlugin(settings=Settings(approval_floor="dangerous"))
    ```
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        enable_decoding=False,
        allow_inf_nan=False,
        extra="forbid",
        frozen=True,
        populate_by_name=True,
    )

    tools: Names = setting((), "Modules with tools and hooks", WORK, "A,B,…")
    agents: Path | None = setting(
        None, "Folder of agent files: delegates, and agents by name; `agents` for clients and `dev`", WORK, "FOLDER"
    )
    files: Path | None = setting(None, "Offer read_file, write_file, list_files in this folder", WORK, "FOLDER")
    http_hosts: Names = setting((), "Offer http_request for these hosts: api.example.com,*.example.org", WORK, "A,B,…")
    http_private: bool = setting(False, "Allow http_request to private addresses of these hosts too", WORK)
    commands: Names = setting((), "Offer run_command for these programs: git,df", WORK, "A,B,…")
    mcp: Path | None = setting(None, "Offer the tools of a standard mcpServers file", WORK, "FILE")
    functions: Names = setting(
        (),
        "Modules whose functions agent files may name: config.models.policy, config.approval.approver",
        WORK,
        "A,B,…",
    )
    workflows: Names = setting(
        (), "Modules with your own workflows, which run agents by perdure.workflow.run_agent", WORK, "A,B,…"
    )
    skills: Path | None = setting(
        None,
        "Folder of skills (folders with a SKILL.md) for agents that use config.prompt.skills",
        WORK,
        "FOLDER",
    )
    workspace: Path | None = setting(
        None,
        "Folder with AGENTS.md and similar files for agents that use config.prompt.workspace",
        WORK,
        "FOLDER",
    )
    task_queue: str = setting(TASK_QUEUE, "The task queue of workers and new runs", WORK, "NAME", min_length=1)
    tools_only: bool = setting(False, "Run tool calls only, no agents", WORK)

    approval_floor: Ask = setting(
        "never", "The approval floor, the weakest approval policy of a run: " + " < ".join(ASKS), PEOPLE, "ASK"
    )
    approval_flows: Flows = setting(
        (),
        'Rules of the floor: [{"from": "tool:read_mail", "to": "send_money.iban", "do": "ask"}]; or refuse, or allow',
        PEOPLE,
        "JSON|@FILE",
    )
    rules: Rules = setting(
        (),
        'Rules of all runs: [{"rule": "count_at_most", "of": "send_mail", "count": 3}]',
        PEOPLE,
        "JSON|@FILE",
    )
    budgets: Budgets = setting(
        (),
        "Budgets of a day or a month that runs share, in tokens or dollars, for each tenant, sender or agent: "
        '[{"of": "tenant", "unit": "tokens", "sum": 2000000, "per": "day"}]',
        PEOPLE,
        "JSON|@FILE",
    )
    untrusted: Names = setting(
        (),
        "Untrusted sources: tools by name, skill:NAME and file:NAME of prompts, besides the tools that declare it",
        PEOPLE,
        "A,B,…",
    )

    notification_routes: ByName[RouteTarget] = setting(
        {},
        "Routes of notifications by name: an Apprise URL, or a signed webhook: "
        '{"ops": "slack://…", "audit": {"url": "https://…", "secret": "whsec_…"}}',
        NOTICES,
        "JSON|@FILE",
        secret=True,
    )
    callback_hosts: Names = setting(
        (),
        "Allowed hosts of a run's callback: hooks.example.com,*.example.org; a host without * may have a private address",
        NOTICES,
        "A,B,…",
    )
    callback_secret: SigningSecret | None = setting(
        None, "The secret that signs callbacks: whsec_ and 24 bytes or more in base64", NOTICES, "TEXT", secret=True,
    )  # fmt: skip

    audit: Annotated[str, AfterValidator(_sink)] | None = setting(
        None,
        "The audit log: file:/PATH, the URL of an HTTP collector or of PostgreSQL, or otel",
        NOTICES,
        "SINK",
    )
    audit_token: str | None = setting(
        None,
        "The bearer token of the audit log's collector, or the password of its database",
        NOTICES,
        "TEXT",
        secret=True,
        min_length=1,
    )

    fast_model: str = setting(FAST_MODEL, "The model for choosing tools", MODELS, "MODEL", min_length=1)
    smart_model: str = setting(SMART_MODEL, "The model for thinking", MODELS, "MODEL", min_length=1)
    model_patience: float = setting(
        PATIENCE,
        "Seconds that a run waits for a model whose provider is unavailable; agent files may set less or more",
        MODELS,
        "SECONDS",
        ge=0,
        le=LONGEST,
    )
    endpoints: ByName[Endpoint] = setting(
        {}, 'Further model servers: {"backup": {"base_url": "…", "api_key_env": "BACKUP_KEY"}}', MODELS, "JSON|@FILE"
    )
    model_files: Kinds = setting(
        {},
        "The files that models of your own servers read: llava*=images,my-model=images+documents+audio",
        MODELS,
        "A=KIND,…|JSON",
    )
    prices: ByName[Price] = setting(
        {}, 'Dollars per million tokens: {"my-model": {"prompt": 0.5, "completion": 1.5}}', MODELS, "JSON|@FILE"
    )

    wait: float = setting(
        0.0, "Seconds to wait for a Temporal server that does not answer yet", SERVICE, "SECONDS", ge=0
    )
    grace: float = setting(
        75.0,  # above the minute that a tool's attempt may take unless it says otherwise: no such call is cut off by a deploy
        "Seconds that calls have to end after SIGTERM; other workers then take them. The supervisor must wait longer",
        SERVICE,
        "SECONDS",
        ge=0,
    )
    deployment_name: str | None = setting(
        None,
        "The name of the worker's deployment in Temporal; used with `build_id`",
        SERVICE,
        "NAME",
        min_length=1,
    )
    build_id: str | None = setting(
        None,
        "The deployment version. Runs stay on its workers, and move to the current version when they continue as new",
        SERVICE,
        "ID",
        min_length=1,
    )
    keep_version: bool = setting(False, "Runs stay on the worker's version until they end", SERVICE)
    metrics: str | None = setting(
        None, "The address where the worker serves Prometheus metrics of Perdure and Temporal", SERVICE, "HOST:PORT"
    )
    health_port: int | None = setting(
        None, "Answer /livez and /readyz on this port of every address of the machine", SERVICE, "PORT", ge=1, le=65535
    )
    log_format: Literal["text", "json"] = setting(
        "text", "The log's form, one line per event: text or json", SERVICE, "FORM"
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "The lowest logged level: debug < info < warning < error", SERVICE, "LEVEL"
    )
    log_payloads: bool = setting(
        False,
        "Log texts of tools and models too, such as exceptions' messages and libraries' details; for development",
        SERVICE,
    )
    trace_content: bool = setting(
        False, "Include prompts, answers, parameters and results in spans, without the worker's keys", SERVICE
    )

    activities: int = setting(
        100, "The most parallel tool calls and Requests; each call of a sync tool uses a thread", TUNING, "N", ge=1
    )
    workflow_tasks: int = setting(100, "The most parallel workflow tasks", TUNING, "N", ge=2)
    threads: int | None = setting(
        None, "Threads for workflow tasks; by default the number of parallel tasks", TUNING, "N", ge=1
    )
    activity_pollers: Pollers = setting(5, "Parallel polls for calls; auto: scaled by the load", TUNING, "N|auto")
    workflow_pollers: Pollers = setting(5, "Parallel polls for workflow tasks", TUNING, "N|auto")
    cached_workflows: int = setting(
        1000, "Runs in memory between their tasks; 0 replays each from its history", TUNING, "N", ge=0
    )
    heartbeat: float = setting(
        1.0,
        "The fewest seconds between two heartbeats of a call. Progress and cancellation are noticed at a heartbeat",
        TUNING,
        "SECONDS",
        gt=0,
        le=60,
    )
    target_cpu: float | None = setting(
        None,
        "Accept work while the machine's CPU use is below this share; `activities` and `workflow_tasks` are the limits",
        TUNING,
        "0.0–1.0",
        gt=0,
        le=1,
    )
    target_memory: float | None = setting(
        None,
        "Accept work while the memory use is below this share; 0.8 with `target_cpu` alone",
        TUNING,
        "0.0–1.0",
        gt=0,
        le=1,
    )

    model_limits: Rates = setting(
        {}, "Requests per minute of each model, over all workers: gpt-4o=500,anthropic:*=60", RATES, "A=N,…|JSON"
    )
    model_token_limits: Rates = setting(
        {}, "Tokens per minute of each model, over all workers: gpt-4o=90000,anthropic:*=400000", RATES, "A=N,…|JSON"
    )
    tool_limits: Rates = setting({}, "Calls per minute of each tool, over all workers: search=120", RATES, "A=N,…|JSON")

    session_runs: int = setting(
        0,
        "The most parallel runs of sessions on this worker; each worker adds its number. 0: no limit",
        RATES,
        "N",
        ge=0,
        le=10_000,
    )

    storage: str | None = setting(
        None, "A folder or s3://bucket for large values; clients and workers need the same", DATA, "PLACE"
    )
    storage_threshold: int = setting(
        256 * 1024, "The size in bytes of the smallest value in external storage", DATA, "BYTES", ge=0
    )
    retention: Ages = setting(
        {},
        "The age at which `perdure erase --old` removes ended runs and idle sessions, with their values and files, by tenant; *: all others",
        DATA,
        "TENANT=AGE,…",
    )
    codec: str | None = setting(
        None, "The codec that encrypts payloads in Temporal: perdure.encryption:aes_gcm", DATA, "MODULE:FUNCTION"
    )
    codec_keys: ByName[str] = setting(
        {}, "The codec's keys by name, newest first: 32 bytes each, in base64", DATA, "JSON|@FILE", secret=True
    )

    gateway_host: str = setting(
        "127.0.0.1",
        "The address that the gateway listens on. Another address than this machine's needs tokens",
        GATEWAY,
        "HOST",
        min_length=1,
    )
    gateway_port: int = setting(8700, "The gateway's port; 0 selects a free one", GATEWAY, "PORT", ge=0, le=65535)
    gateway_tokens: Path | None = setting(
        None, "The file of the gateway's tokens: tenants, senders, rights (`perdure token new`)", GATEWAY, "FILE"
    )
    gateway_token: str | None = setting(
        None,
        "The gateway's only token, with all rights, instead of a file",
        GATEWAY,
        "TEXT",
        secret=True,
        min_length=16,
    )
    gateway_oidc: Annotated[OidcConfig | None, BeforeValidator(_json)] = setting(
        None,
        "The OpenID Connect provider for people's sign-in: issuer, client_id, rights, …",
        GATEWAY,
        "JSON|@FILE",
        secret=True,
    )
    gateway_triggers: Path | None = setting(
        None, "Signed webhooks that start runs or send messages (`perdure trigger check`)", GATEWAY, "FILE"
    )
    gateway_secret: str | None = setting(
        None,
        "The key that signs the gateway's cookies. Gateways with the same key share sign-ins. By default a random key",
        GATEWAY,
        "TEXT",
        secret=True,
        min_length=32,
    )
    gateway_hosts: Names = setting(
        (), "The accepted host names; by default any with tokens, else the loopback names", GATEWAY, "A,B,…"
    )
    gateway_origins: Names = setting(
        (), "Other sites whose pages may send requests: https://app.example.com", GATEWAY, "A,B,…"
    )
    gateway_proxies: Names = setting(
        (),
        "Trusted proxies, by address or network, for Forwarded and X-Forwarded-For: 10.0.0.0/8",
        GATEWAY,
        "A,B,…",
    )
    gateway_trusted_clients: Names = setting(
        (),
        "Clients whose histories and function results have the provenance of their user: TENANT/SENDER, SENDER without a tenant, * for all",
        GATEWAY,
        "A,B,…",
    )
    gateway_rate: float = setting(600.0, "Requests per minute of each token, for each gateway", GATEWAY, "N", gt=0)
    gateway_streams: int = setting(50, "Open event streams of each token, for each gateway", GATEWAY, "N", ge=1)
    gateway_connections: int = setting(1000, "The most open connections", GATEWAY, "N", ge=1)
    gateway_body: int = setting(4_000_000, "The largest body in bytes", GATEWAY, "BYTES", ge=1000)
    gateway_client_wait: float = setting(
        3600.0,
        "Seconds that a run waits for its client's function results, if the client stores nothing; then the run fails",
        GATEWAY,
        "SECONDS",
        gt=0,
    )
    gateway_grace: float = setting(
        10.0, "Seconds that open responses have to end after SIGTERM", GATEWAY, "SECONDS", ge=0
    )

    web_ui: str = setting(
        "",
        "The URL of Temporal's Web UI, for links in the pages: http://localhost:8233",
        PAGES,
        "ADDRESS",
        pattern=r"(https?://.+)?",
    )
    pages_url: str = setting(
        "",
        "The URL of the gateway's pages, for links in Temporal's Web UI",
        PAGES,
        "ADDRESS",
        pattern=r"(https?://.+)?",
    )
    inbox_token: str | None = setting(None, "The inbox's token", PAGES, "TEXT", secret=True)
    codec_token: str = setting("", "The codec server's token", PAGES, "TEXT", secret=True)
    codec_origin: str = setting(
        "http://localhost:8233", "The origin of the Web UI that may call the codec server", PAGES, "ORIGIN"
    )
    dev_port: int = setting(7233, "The port of `dev`'s server", PAGES, "PORT", ge=0, le=65535)
    dev_ui_port: int = setting(8233, "The port of `dev`'s Web UI", PAGES, "PORT", ge=0, le=65535)
    dev_db: str | None = setting(
        None, "The file where `dev` stores runs; without one, they are lost at its end", PAGES, "FILE"
    )

    dev_reload: bool = setting(True, "Reload tools and agents when their files change; a run keeps its code", PAGES)

    _sources: dict[str, str] = PrivateAttr(default_factory=dict)

    @field_validator("endpoints")
    @classmethod
    def _endpoint_names(cls, endpoints: dict[str, Endpoint]) -> dict[str, Endpoint]:
        for name in endpoints:
            if split_endpoint(f"model@{name}") != ("model", name):
                raise ValueError(f"{name!r} cannot be named behind a model: use a name without '@' that is no number")
        return endpoints

    @field_validator("gateway_proxies")
    @classmethod
    def _networks(cls, named: Names) -> Names:
        for each in named:
            try:
                ipaddress.ip_network(each, strict=False)
            except ValueError:
                raise ValueError(f"{each!r} is not an address or a network; write 10.0.0.1 or 10.0.0.0/8") from None
        return named

    @field_validator("callback_hosts", "http_hosts")
    @classmethod
    def _hosts(cls, named: Names) -> Names:
        if not all(map(_HOST.fullmatch, named)):
            raise ValueError("must be host names, such as api.example.com,*.example.org")
        return named

    @field_validator("notification_routes")
    @classmethod
    def _route_names(cls, routes: dict[str, str | WebhookRoute]) -> dict[str, str | WebhookRoute]:
        if wrong := [name for name in routes if not is_route_name(name)]:
            raise ValueError(
                f"{wrong[0][:100]!r} is not a valid name of a route: use printable characters without a colon"
            )
        return routes

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch(cls, value: Any, info: ValidationInfo) -> Any:
        """Reject a boolean for other types: `wait = true` must not become one second."""
        if isinstance(value, bool) and cls.model_fields[info.field_name or ""].annotation is not bool:
            raise ValueError("must be a value")
        return value

    @property
    def sources(self) -> dict[str, str]:
        """The source of each setting that is not a default: a flag, a variable or a key."""
        return self._sources

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        del dotenv_settings, file_secret_settings
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, config_file())

    @property
    def agents_folder(self) -> Path:
        """Return the folder in which a client finds agents by name."""
        return self.agents or AGENTS


def config_file() -> Path:
    """Return the file of settings: `PERDURE_CONFIG`, or `perdure.toml` here. It need not exist."""
    return Path(os.environ.get(CONFIG) or FILE)


_in_force: ContextVar[Settings] = ContextVar("settings")


def in_force() -> Settings:
    """Return the settings of the running command; elsewhere those of environment and file. Raises `SettingsError`.

    ```python
    print(in_force().task_queue)
    ```
    """
    found = _in_force.get(None)
    return load() if found is None else found


@contextmanager
def apply_settings(settings: Settings) -> Iterator[None]:
    """Put the settings in force while the context lasts."""
    token = _in_force.set(settings)
    try:
        yield
    finally:
        _in_force.reset(token)


def load(given: Mapping[str, Any] | None = None, flags: Mapping[str, str] | None = None) -> Settings:
    """Return the settings in force, with `given` fields from flags. `flags` are the names of flags that differ from
    their field's.

    Raises `SettingsError` with one line that names the flag, variable or key and its error.
    """
    path = config_file()
    if os.environ.get(CONFIG) and not path.is_file():
        raise SettingsError(f"{CONFIG} names {path}, which does not exist")
    if not os.environ.get(CONFIG) and _put_there(path):
        raise SettingsError(
            f"{path} belongs to another user, in a folder that everybody can write, and can name code to run: to use the file, set {CONFIG}={path}"
        )
    try:
        settings = Settings(**(given or {}))
        settings.sources.update(origins(given or {}, flags or {}))
        return settings
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from None
    except ValidationError as error:
        known, problems = list(Settings.model_fields), error.errors(include_url=False)
        if unknown := [name for name in (problem["loc"][0] for problem in problems) if name not in known]:
            found = "; ".join(f"{name!r} is not a setting{_near(str(name), known)}" for name in unknown)
            raise SettingsError(f"{path}: {found}") from None
        problem = problems[0]
        name, *path_inside = problem["loc"]
        inside = "".join(f".{part}" for part in path_inside)
        place = origins(given or {}, flags or {}).get(str(name), str(name))
        place = place.replace(str(name), f"{name}{inside}", 1) if " in " in place else place + inside
        secret = setting_info(Settings.model_fields[str(name)]).secret
        got = "" if secret or inside else f", not {shorten(problem['input'], 60)}"
        raise SettingsError(f"{place}: {_words(problem)}{got}") from None


def replace_settings(settings: Settings, fields: Mapping[str, Any]) -> Settings:
    """Return the settings with these fields replaced. Raises `TypeError` for a name that is not a setting."""
    if unknown := [name for name in fields if name not in Settings.model_fields]:
        raise TypeError(f"{unknown[0]!r} is not a setting{_near(unknown[0], list(Settings.model_fields))}")
    return settings.model_copy(update=dict(fields))


def origins(given: Mapping[str, Any], flags: Mapping[str, str]) -> dict[str, str]:
    """Return the origin of each setting that is not a default: a flag, a variable, or the file's key."""
    path = config_file()
    found = {name: f"{name} in {path}" for name in TomlConfigSettingsSource(Settings, path)()}
    set_here = {
        name.upper() for name, value in os.environ.items() if value
    }  # as pydantic reads them, without parsing them again
    found |= {name: variable_name(name) for name in Settings.model_fields if variable_name(name) in set_here}
    return found | {name: flags.get(name, flag(name)) for name in given}


def flag(name: str) -> str:
    """Return a setting's flag."""
    return "--" + name.replace("_", "-")


def variable_name(name: str) -> str:
    """Return a setting's environment variable."""
    return PREFIX + name.upper()


def unknown_variables() -> list[str]:
    """Return one line for each variable with the prefix of settings that is not a setting."""
    known = [variable_name(name) for name in Settings.model_fields] + [CONFIG]
    ours = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known)
    return [f"{name} is not a setting{_near(name, known)}" for name in ours]


def _put_there(path: Path) -> bool:
    """Whether another user may have put the file there as a trap, as in `/tmp`."""
    if not hasattr(os, "getuid") or not path.is_file():
        return False
    owners = {path.lstat().st_uid, path.stat().st_uid} - {os.getuid(), 0}
    return bool(owners) and bool(path.absolute().parent.stat().st_mode & stat.S_IWOTH)


def _near(name: str, known: list[str]) -> str:
    near = close_names(name.replace("-", "_"), known, limit=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _words(problem: Any) -> str:
    words = str(problem["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    return words.replace("should be", "must be", 1).split(", unable to")[0]
