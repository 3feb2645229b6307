"""One model of settings for all programs: flag, variable, file, default; one line for what is wrong; a table that is up to date."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from temporalio.worker import PollerBehaviorAutoscaling, PollerBehaviorSimpleMaximum
from typer.testing import CliRunner, Result

from perdure.cli.app import app
from perdure.errors import SettingsError
from perdure.hosting._worker_parts import tuning
from perdure.hosting.settings import Settings, apply_settings, in_force, load, replace_settings
from perdure.hosting.settings_display import secrets_of
from scripts.settings import TABLES, page


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def settings_of(*words: str) -> dict[str, Any]:
    found = invoke("settings", "--json", *words)
    assert found.exit_code == 0, found.stderr
    return dict(json.loads(found.stdout))


def test_the_table_in_the_docs_is_made_from_the_settings() -> None:
    for path in TABLES:
        assert path.read_text(encoding="utf-8") == page(path), "run: make settings"


def test_a_flag_goes_before_a_variable_before_the_file_before_the_default(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "perdure.toml").write_text(
        'grace = 1\nactivities = 2\ntools = ["a", "b"]\n[prices.m]\nprompt=1\ncompletion=2\n'
    )
    monkeypatch.setenv("PERDURE_GRACE", "3")
    monkeypatch.setenv("PERDURE_ACTIVITIES", "4")
    monkeypatch.setenv("PERDURE_COMMANDS", "")
    found = settings_of("--grace", "5")
    assert found["grace"] == {"value": 5.0, "source": "--grace"}
    assert found["activities"] == {"value": 4, "source": "PERDURE_ACTIVITIES"}
    assert found["tools"] == {"value": ["a", "b"], "source": "tools in perdure.toml"}
    assert found["prices"]["value"] == {"m": {"prompt": 1.0, "completion": 2.0}}
    assert found["commands"] == {"value": [], "source": "default"}


SECRET_FORM = 'must be whsec_ and 24 bytes or more in base64, such as "whsec_$(openssl rand -base64 24)"'


@pytest.mark.parametrize("named", ["--config", "PERDURE_CONFIG"])
def test_the_file_can_be_named(here: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    (here / "other.toml").write_text("http_private = true\n")
    monkeypatch.setenv("PERDURE_CONFIG", "" if named == "--config" else "other.toml")
    found = settings_of(*(["--config", "other.toml"] if named == "--config" else []))
    assert found["http_private"] == {"value": True, "source": "http_private in other.toml"}
    assert settings_of("--config", "other.toml", "--no-http-private")["http_private"]["value"] is False
    missing = invoke("settings", "--config", "none.toml")
    assert (missing.exit_code, missing.stderr) == (2, "perdure: --config: the file none.toml does not exist\n")
    monkeypatch.setenv("PERDURE_CONFIG", "none.toml")
    missing = invoke("settings")
    assert (missing.exit_code, missing.stderr) == (2, "perdure: PERDURE_CONFIG names none.toml, which does not exist\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("graec = 5", "perdure.toml: 'graec' is not a setting; did you mean 'grace'?"),
        (
            "graec = 5\nagnets = ''",
            "perdure.toml: 'graec' is not a setting; did you mean 'grace'?; 'agnets' is not a setting; did you mean 'agents'?",
        ),
        (
            "callback_hosts = '[\"a.example.com\"]'",
            "callback_hosts in perdure.toml: must be host names, such as api.example.com,*.example.org, not "
            '"[\\"a.example.com\\"]"',
        ),
        (
            'http_hosts = ["https://a.example.com"]',
            "http_hosts in perdure.toml: must be host names, such as api.example.com,*.example.org, not "
            '["https://a.example.com"]',
        ),
        ("http-hosts = []", "perdure.toml: 'http-hosts' is not a setting; did you mean 'http_hosts'?"),
        ('grace = "soon"', 'grace in perdure.toml: must be a valid number, not "soon"'),
        ("grace = inf", "grace in perdure.toml: must be a finite number, not Infinity"),
        ("model_limits = {m = inf}", "model_limits.m in perdure.toml: must be a finite number"),
        ("activities = 0", "activities in perdure.toml: must be greater than or equal to 1, not 0"),
        ("[prices.m]\nprompt = 1", "prices.m.completion in perdure.toml: Field required"),
        ("wait = true", "wait in perdure.toml: must be a value, not true"),
        ("threads = false", "threads in perdure.toml: must be a value, not false"),
        (
            'retention = "acme"',
            'retention in perdure.toml: must be NAME=AGE, separated by commas, such as acme=30d,*=365d, not "acme"',
        ),
        ("retention = {acme = 30}", "retention.acme in perdure.toml: must be a valid string"),
        ('retention = "acme=0d"', "retention.acme in perdure.toml: must be an age, such as 12h, 30d or 52w"),
        ("model_limits = {m = true}", 'model_limits in perdure.toml: each rate must be a number, not {"m": true}'),
        ("= 5", "perdure.toml cannot be read: Invalid statement (at line 1, column 1)"),
        (
            '[notification_routes]\n"a:b" = "json://x"',
            "notification_routes in perdure.toml: 'a:b' is not a valid name of a route: use printable characters without a colon",
        ),
        (
            '[endpoints.2]\nbase_url = "http://10.0.0.2/v1"',
            'endpoints in perdure.toml: \'2\' cannot be named behind a model: use a name without \'@\' that is no number, not {"2": {"base_url": "http://10.0.0.2/v1"}}',
        ),
        ('callback_secret = "whsec_short"', f"callback_secret in perdure.toml: {SECRET_FORM}"),
        (
            "[notification_routes]\na = 5",
            "notification_routes.a in perdure.toml: must be an Apprise URL, or a table with url and secret",
        ),
        (
            '[notification_routes.a]\nurl = "https://e.com"',
            "notification_routes.a in perdure.toml: secret Field required",
        ),
        (
            '[notification_routes.a]\nurl = "https://e.com"\nsecret = "x"',
            f"notification_routes.a in perdure.toml: secret {SECRET_FORM}",
        ),
        ("[codec_keys]\na = 5", "codec_keys.a in perdure.toml: must be a valid string"),
    ],
)
def test_what_is_wrong_in_the_file_is_one_line_for_every_command(here: Path, text: str, said: str) -> None:
    (here / "perdure.toml").write_text(text)
    for command in (["settings"], ["worker"], ["plan", "validate", "x.json"], ["show", "x"]):
        found = invoke(*command)
        assert (found.exit_code, found.stderr) == (2, f"perdure: {said}\n"), command


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--approval-floor", "often"],
            "--approval-floor: must be 'never', 'untrusted', 'dangerous', 'unsafe' or 'always', not \"often\"",
        ),
        (["--activity-pollers", "1"], '--activity-pollers: must be 2 or more, or auto, not "1"'),
        (["--target-cpu", "80"], '--target-cpu: must be less than or equal to 1, not "80"'),
        (["--codec-keys", "5"], "--codec-keys: must be a valid dictionary"),
    ],
)
def test_a_wrong_flag_is_one_line(words: list[str], said: str) -> None:
    found = invoke("worker", *words)
    assert (found.exit_code, found.stderr) == (2, f"perdure: {said}\n")


def test_a_wrong_variable_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_PRICES", '{"m": ')
    with pytest.raises(SettingsError, match=r"^PERDURE_PRICES: .* not valid JSON"):
        load()


def test_secrets_are_masked_and_strange_variables_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_CODEC_KEYS", '{"a": "hush"}')
    monkeypatch.setenv("PERDURE_INBOX_TOKEN", "hush")
    monkeypatch.setenv("PERDURE_PORT_80_TCP", "tcp://10.0.0.1:80")
    routes = '{"ops": "json://hush.example", "audit": {"url": "https://hush", "secret": "whsec_hush%s"}}' % ("a" * 32)
    monkeypatch.setenv("PERDURE_NOTIFICATION_ROUTES", routes)
    monkeypatch.setenv("PERDURE_CALLBACK_SECRET", f"whsec_hush{'a' * 32}")
    assert {"json://hush.example", "https://hush", f"whsec_hush{'a' * 32}"} <= set(secrets_of(load()))
    found = invoke("settings")
    assert "hush" not in found.stdout
    assert "inbox_token" in found.stdout
    assert "PERDURE_PORT_80_TCP is not a setting" in found.stderr


def test_a_database_for_the_audit_log_is_named_without_its_password() -> None:
    for address in ("postgresql://me@db.example/audit", "postgres://me@/audit?host=/run/postgresql"):
        assert Settings(audit=address).audit == address
    for address in ("postgresql://me:hush@db.example/audit", "postgresql://db.example/audit?password=hush"):
        with pytest.raises(ValueError, match="must not have a password: use the setting audit_token"):
            Settings(audit=address)


def test_what_is_in_force_is_the_command_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_GRACE", "3")
    with apply_settings(replace_settings(load(), {"task_queue": "mine"})):
        assert (in_force().task_queue, in_force().grace) == ("mine", 3.0)
    assert in_force().task_queue == "perdure"
    with pytest.raises(TypeError, match="'task_qeue' is not a setting; did you mean 'task_queue'"):
        replace_settings(load(), {"task_qeue": "mine"})


def test_dev_and_worker_share_the_flags() -> None:
    helps = {name: invoke(name, "--help").stdout for name in ("worker", "dev")}
    for name in ("--tools", "--target-cpu", "--cached-workflows", "--codec-keys", "--approval-floor", "--grace"):
        assert all(name in said for said in helps.values()), name
    assert "--tools-only" not in helps["dev"]


def test_tuning_is_the_sdk_s_own() -> None:
    plain = tuning(
        Settings(activities=7, workflow_tasks=8, cached_workflows=9, workflow_pollers=4, heartbeat=2, grace=3)
    )
    assert (plain["max_concurrent_activities"], plain["max_concurrent_workflow_tasks"]) == (7, 8)
    assert (plain["max_cached_workflows"], plain["workflow_task_poller_behavior"]) == (
        9,
        PollerBehaviorSimpleMaximum(4),
    )
    assert plain["graceful_shutdown_timeout"].total_seconds() == 3
    assert plain["max_heartbeat_throttle_interval"].total_seconds() == 2
    scaled = tuning(Settings(target_cpu=0.9, activity_pollers="auto", threads=3))
    assert "max_concurrent_activities" not in scaled
    assert scaled["activity_task_poller_behavior"] == PollerBehaviorAutoscaling()
    assert scaled["workflow_task_executor"]._max_workers == 3


def test_a_password_in_an_address_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_ENDPOINTS", '{"x": {"base_url": "https://ann:hunter2@models.example/v1"}}')
    assert settings_of()["endpoints"]["value"]["x"]["base_url"] == "https://•••@models.example/v1"


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="to give a file to somebody else takes root")
def test_a_file_that_somebody_else_has_put_where_everybody_may_is_not_read(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack: `/tmp/perdure.toml` names code, and somebody runs `perdure list` there."""
    monkeypatch.setenv("PERDURE_CONFIG", "")  # put back afterwards: `--config` sets it
    (here / "perdure.toml").write_text('codec = "theirs:code"', encoding="utf-8")
    os.chown(here / "perdure.toml", 4711, 4711)
    settings_of()
    here.chmod(0o1777)
    refused = invoke("settings")
    assert refused.exit_code == 2
    assert "belongs to another user, in a folder that everybody can write" in refused.output
    assert settings_of("--config", "perdure.toml")["codec"]["value"] == "theirs:code"
