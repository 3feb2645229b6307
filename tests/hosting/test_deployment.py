"""What is deployed is what the suite runs: versions, settings and times of the image, the Compose file and the manifests agree."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from perdure.cli.app import app
from perdure.hosting.server import find_program
from perdure.hosting.settings import CONFIG, Settings, load, variable_name
from perdure.hosting.worker_group import model_rates
from perdure.runs.wire import ATTRIBUTES
from perdure.tools.invocation import model_queue, runs_queue, tool_queue
from tests.support import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE_FILE = ROOT / "docker-compose.temporal.yml"
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_FILE.read_text(encoding="utf-8"))["services"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CHART = ROOT / "deploy" / "helm" / "perdure"
DEPLOYED = [ROOT / "Dockerfile", COMPOSE_FILE, ROOT / ".env.example", *sorted((ROOT / "deploy").rglob("*.*"))]


def helm() -> str:
    """Return a Helm program: the one that `make lint-deploy` installs, or the one on PATH. Skips the test without one."""
    own = ROOT / ".venv-deploy" / "helm"
    if own.is_file():
        return str(own)
    return shutil.which("helm") or pytest.skip("no helm here: make lint-deploy installs it")


def rendered(*options: str, release: str = "shop") -> dict[tuple[str, str], dict[str, Any]]:
    """Return the chart's manifests of a release, by kind and name."""
    made = subprocess.run([helm(), "template", release, str(CHART), *options], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    found = [each for each in yaml.safe_load_all(made.stdout) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def values(name: str) -> tuple[str, str]:
    return "-f", str(CHART / "ci" / f"{name}-values.yaml")


def pod(manifests: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    return dict(manifests["Deployment", "shop-worker"]["spec"]["template"]["spec"])


def configured(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings of a worker with this file; Raises `SettingsError` for what is none."""
    path = folder / "perdure.toml"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setenv(CONFIG, str(path))
    return load()


def test_the_images_are_of_the_versions_that_the_suite_runs_against() -> None:
    program = find_program("temporal")
    if program is None:
        pytest.skip("no temporal program here that says its version")
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    server, ui = re.findall(r"(?:Server|UI) ([\d.]+)", said)
    images = {service["image"] for service in COMPOSE.values() if "temporalio/" in service.get("image", "")}
    assert images == {f"temporalio/server:{server}", f"temporalio/admin-tools:{server}", f"temporalio/ui:{ui}"}


def test_every_image_is_pinned() -> None:
    images = [service["image"] for service in COMPOSE.values() if "image" in service]
    assert all(re.search(r":\d", image) for image in images), images
    (floor,) = re.findall(r">=([\d.]+)", PROJECT["requires-python"])
    assert f"ARG PYTHON_VERSION={floor}\n" in DOCKERFILE
    assert "-c constraints.txt" in DOCKERFILE


def test_the_image_has_the_extras_that_a_worker_may_need() -> None:
    extras = set(PROJECT["optional-dependencies"]) - {
        "bench",
        "dev",
        "docs",
        "embedded",
        "injection",
        "package",
        "testing",
    }
    (named,) = re.findall(r"'\.\[([\w,]+)\]'", DOCKERFILE)
    assert set(named.split(",")) == extras


@pytest.mark.parametrize("path", DEPLOYED, ids=lambda path: path.name)
def test_whatever_is_set_is_a_setting_and_nothing_is_a_demo(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    known = {variable_name(name) for name in Settings.model_fields} | {CONFIG}
    assert set(re.findall(r"\bPERDURE_[A-Z_]+\b", text)) - known == set()
    assert "perdure.demo" not in text
    assert not re.search(r"PASSWORD:?-", text), "a password has no default"


def test_calls_have_their_grace_and_the_probes_know_the_health_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests = rendered()
    settings = manifests["ConfigMap", "shop"]["data"]["perdure.toml"]
    in_kubernetes = configured(settings, tmp_path, monkeypatch)
    in_compose = configured((ROOT / "deploy/compose/perdure.toml").read_text("utf-8"), tmp_path, monkeypatch)
    worker, (container,) = COMPOSE["worker"], pod(manifests)["containers"]
    assert in_compose.grace < float(worker["stop_grace_period"].rstrip("s"))
    assert in_compose.wait < float(worker["healthcheck"]["start_period"].rstrip("s"))
    assert in_kubernetes.grace < pod(manifests)["terminationGracePeriodSeconds"]
    probe = container["startupProbe"]
    assert in_kubernetes.wait < probe["periodSeconds"] * probe["failureThreshold"]
    (port,) = re.findall(r"PERDURE_HEALTH_PORT=(\d+)", DOCKERFILE)
    assert f"http://127.0.0.1:{port}/livez" in DOCKERFILE
    assert f"http://127.0.0.1:{port}/readyz" in worker["healthcheck"]["test"][-1]
    assert {each["name"]: each["containerPort"] for each in container["ports"]}["health"] == int(port)
    assert [container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "readiness")] == ["/livez", "/readyz"]


def test_pods_may_do_no_more_than_they_need() -> None:
    manifests = rendered(*values("whole"))
    (user,) = re.findall(r"^USER (\d+)$", DOCKERFILE, re.M)
    job = manifests["CronJob", "shop-retention"]["spec"]["jobTemplate"]
    for part in ("worker", "gateway", "retention"):
        owner = job if part == "retention" else manifests["Deployment", f"shop-{part}"]
        spec = owner["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["runAsUser"] == int(user)
        assert not spec["automountServiceAccountToken"]
        assert not spec["enableServiceLinks"], "a Service named perdure would set PERDURE_PORT"
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert set(container["resources"]["limits"]) == {"cpu", "memory"}
        assert all("KEY" not in each["name"] for each in container["env"]), "keys come from the Secret"
        policy = manifests["NetworkPolicy", f"shop-{part}"]["spec"]
        assert policy["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == part
    assert COMPOSE["worker"]["read_only"]
    assert set(COMPOSE["worker"]["deploy"]["resources"]["limits"]) == {"cpus", "memory"}


def test_the_manifests_name_each_other() -> None:
    manifests = rendered()
    deployment = manifests["Deployment", "shop-worker"]
    scaler = manifests["HorizontalPodAutoscaler", "shop-worker"]
    budget = manifests["PodDisruptionBudget", "shop-worker"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"], "each upgrade would undo the autoscaler's number"
    assert scaler["spec"]["minReplicas"] > budget["spec"]["minAvailable"]
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]
    mounted = {each["configMap"]["name"] for each in pod(manifests)["volumes"] if "configMap" in each}
    assert mounted == {name for kind, name in manifests if kind == "ConfigMap"}
    whole = rendered(*values("whole"))
    service = whole["Service", "shop-gateway"]["spec"]
    gateway = whole["Deployment", "shop-gateway"]["spec"]
    assert service["selector"] == gateway["selector"]["matchLabels"]
    assert whole["Ingress", "shop-gateway"]["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]["name"]
    monitored = whole["ServiceMonitor", "shop"]["spec"]["selector"]["matchLabels"]
    assert monitored.items() <= whole["Service", "shop-metrics"]["metadata"]["labels"].items()


def test_every_queue_of_a_worker_scales_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifests = rendered(*values("whole"))
    settings = configured(manifests["ConfigMap", "shop"]["data"]["perdure.toml"], tmp_path, monkeypatch)
    served = {
        settings.task_queue,
        runs_queue(settings.task_queue),
        *(model_queue(settings.task_queue, name) for name in model_rates(settings)),
        *(tool_queue(settings.task_queue, name) for name in settings.tool_limits),
    }
    scaler = manifests["ScaledObject", "shop-worker"]["spec"]
    assert {each["metadata"]["taskQueue"] for each in scaler["triggers"]} == served
    assert len(served) == 5


def test_a_change_of_settings_or_agents_rolls_the_pods() -> None:
    """A worker reads both at its start only."""
    before, *others = (
        rendered(*options)["Deployment", "shop-worker"]["spec"]["template"]["metadata"]["annotations"]
        for options in ((), ("--set", "settings.grace=60"), ("--set", "agents.hello=none"))
    )
    assert all(each != before for each in others)


def test_a_job_of_each_day_removes_what_is_older_than_its_retention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not [name for kind, name in rendered() if kind == "CronJob"]
    long = "a-release-with-a-name-of-fifty-three-letters-in-all-x"
    [name] = [name for kind, name in rendered(*values("whole"), release=long) if kind == "CronJob"]
    assert len(name) <= 52
    manifests = rendered(*values("whole"))
    settings = configured(manifests["ConfigMap", "shop"]["data"]["perdure.toml"], tmp_path, monkeypatch)
    assert settings.retention == {"acme": "30d", "*": "365d"}
    job = manifests["CronJob", "shop-retention"]["spec"]
    assert (job["timeZone"], job["concurrencyPolicy"]) == ("Etc/UTC", "Forbid")
    made = job["jobTemplate"]["spec"]["template"]
    (container,) = made["spec"]["containers"]
    program, command, *options = container["args"]
    assert (program, command) == ("perdure", "erase")
    help = CliRunner().invoke(app, [command, *options, "--help"])
    assert (help.exit_code, options) == (0, ["--old", "--yes", "--by=retention"]), help.output
    worker = pod(manifests)
    assert made["spec"]["volumes"] == worker["volumes"]
    assert container["envFrom"] == worker["containers"][0]["envFrom"], "it decodes values, and finds files in a bucket"
    labels = made["metadata"]["labels"]
    for (kind, name), each in manifests.items():
        selector = each["spec"].get("selector") if kind in ("Service", "Deployment", "PodDisruptionBudget") else None
        assert selector is None or not selector.get("matchLabels", selector).items() <= labels.items(), name
    policy = manifests["NetworkPolicy", "shop-retention"]["spec"]
    assert (policy["podSelector"]["matchLabels"], policy["ingress"]) == (labels, [])
    assert policy["egress"] == manifests["NetworkPolicy", "shop-worker"]["spec"]["egress"]


def test_versions_are_the_controllers() -> None:
    manifests = rendered(*values("versions"))
    assert ("Deployment", "shop-worker") not in manifests
    spec = manifests["WorkerDeployment", "shop"]["spec"]
    assert spec["workerOptions"]["connectionRef"]["name"] == manifests["Connection", "shop"]["metadata"]["name"]
    (container,) = spec["template"]["spec"]["containers"]
    assert container["args"][-2:] == [
        "--deployment-name=$(TEMPORAL_DEPLOYMENT_NAME)",
        "--build-id=$(TEMPORAL_WORKER_BUILD_ID)",
    ]
    scaling = manifests["WorkerResourceTemplate", "shop-scaling"]["spec"]
    assert scaling["workerDeploymentRef"]["name"] == "shop"
    assert scaling["template"]["spec"]["scaleTargetRef"] == {}, "the controller sets it"
    assert "replicas" not in spec, "the controller would undo each step of the autoscaler"
    fixed = rendered(*values("versions"), "--set", "autoscaling.kind=none")
    assert fixed["WorkerDeployment", "shop"]["spec"]["replicas"] == 2


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("autoscaling.kind=memory", "autoscaling/kind"),
        ("gateway.enabled=true", "gateway.tokens: name a Secret"),
        ("settings.tool_limits.search=0", "settings/tool_limits/search"),
        ("settings.retention.acme=30 years", "settings/retention/acme"),
        ("image.tga=1", "image"),
    ],
)
def test_wrong_values_are_refused_with_their_place(option: str, message: str) -> None:
    made = subprocess.run([helm(), "template", str(CHART), "--set", option], capture_output=True, text=True)
    assert made.returncode != 0
    assert message in made.stderr


def test_metrics_are_served_where_they_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifests = rendered()
    in_kubernetes = manifests["ConfigMap", "shop"]["data"]["perdure.toml"]
    for text in ((ROOT / "deploy/compose/perdure.toml").read_text("utf-8"), in_kubernetes):
        assert configured(text, tmp_path, monkeypatch).metrics == "0.0.0.0:9464"
    assert "127.0.0.1:9464:9464" in COMPOSE["worker"]["ports"]
    ports = {each["name"]: each["containerPort"] for each in pod(manifests)["containers"][0]["ports"]}
    assert ports["metrics"] == 9464


def test_the_search_attributes_that_an_operator_adds_by_hand_are_those_of_the_engine() -> None:
    cloud, production = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("cloud.md", "production.md"))
    rows = re.findall(r"^\| (`Perdure[^|]*) \| (\w+) \|$", cloud, re.MULTILINE)
    assert {name: kind for names, kind in rows for name in re.findall(r"\w+", names)} == ATTRIBUTES
    kinds = list(ATTRIBUTES.values())
    numbers = ", ".join(f"{kinds.count(kind)} {kind}" for kind in ("Keyword", "Int", "Double"))
    assert f"{len(kinds)} search attributes ({numbers})" in production
    assert {name for name in ATTRIBUTES if name not in production} == set()
