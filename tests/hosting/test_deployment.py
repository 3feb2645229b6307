"""What is deployed is what the suite runs: versions, settings and times of the image, the Compose file and the manifests agree."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure.hosting.server import find_program
from perdure.hosting.settings import CONFIG, Settings, load, variable
from tests.support import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE_FILE = ROOT / "docker-compose.temporal.yml"
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_FILE.read_text(encoding="utf-8"))["services"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
KUBERNETES = ROOT / "deploy" / "kubernetes"
DEPLOYED = [ROOT / "Dockerfile", COMPOSE_FILE, ROOT / ".env.example", *sorted((ROOT / "deploy").rglob("*.*"))]


def manifests(kind: str) -> list[dict[str, Any]]:
    found = [
        each for path in KUBERNETES.glob("*.yaml") for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    ]
    return [each for each in found if each["kind"] == kind]


def pod() -> dict[str, Any]:
    (deployment,) = manifests("Deployment")
    return dict(deployment["spec"]["template"]["spec"])


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
    known = {variable(name) for name in Settings.model_fields} | {CONFIG}
    assert set(re.findall(r"\bPERDURE_[A-Z_]+\b", text)) - known == set()
    assert "perdure.demo" not in text
    assert not re.search(r"PASSWORD:?-", text), "a password has no default"


def test_calls_have_their_grace_and_the_probes_know_the_health_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_kubernetes = configured((KUBERNETES / "perdure.toml").read_text("utf-8"), tmp_path, monkeypatch)
    in_compose = configured((ROOT / "deploy/compose/perdure.toml").read_text("utf-8"), tmp_path, monkeypatch)
    worker, (container,) = COMPOSE["worker"], pod()["containers"]
    assert in_compose.grace < float(worker["stop_grace_period"].rstrip("s"))
    assert in_compose.wait < float(worker["healthcheck"]["start_period"].rstrip("s"))
    assert in_kubernetes.grace < pod()["terminationGracePeriodSeconds"]
    probe = container["startupProbe"]
    assert in_kubernetes.wait < probe["periodSeconds"] * probe["failureThreshold"]
    (port,) = re.findall(r"PERDURE_HEALTH_PORT=(\d+)", DOCKERFILE)
    assert f"http://127.0.0.1:{port}/livez" in DOCKERFILE
    assert f"http://127.0.0.1:{port}/readyz" in worker["healthcheck"]["test"][-1]
    assert {each["name"]: each["containerPort"] for each in container["ports"]}["health"] == int(port)
    assert [container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "readiness")] == ["/livez", "/readyz"]


def test_a_worker_may_do_no_more_than_it_needs() -> None:
    (container,) = pod()["containers"]
    (user,) = re.findall(r"^USER (\d+)$", DOCKERFILE, re.M)
    assert pod()["securityContext"]["runAsNonRoot"]
    assert pod()["securityContext"]["runAsUser"] == int(user)
    assert not pod()["automountServiceAccountToken"]
    assert not pod()["enableServiceLinks"], "a Service named perdure would set PERDURE_PORT"
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    for each in (container["resources"]["limits"], COMPOSE["worker"]["deploy"]["resources"]["limits"]):
        assert set(each) in ({"cpu", "memory"}, {"cpus", "memory"})
    assert COMPOSE["worker"]["read_only"]
    secret = [each for each in container["env"] if "KEY" in each["name"]]
    assert all("secretKeyRef" in each["valueFrom"] for each in secret)


def test_the_manifests_name_each_other() -> None:
    (listed,) = manifests("Kustomization")
    assert {path.name for path in KUBERNETES.glob("*.yaml")} == {
        *listed["resources"],
        "kustomization.yaml",
        "keda.yaml",
    }
    (deployment,), (scaler,), (budget,) = map(
        manifests, ("Deployment", "HorizontalPodAutoscaler", "PodDisruptionBudget")
    )
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    (by_work,) = manifests("ScaledObject")
    assert by_work["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert by_work["spec"]["triggers"][0]["metadata"]["taskQueue"] == load().task_queue
    assert scaler["spec"]["minReplicas"] > budget["spec"]["minAvailable"]
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]
    scaling = (KUBERNETES / "scaling.yaml").read_text("utf-8")
    assert [each["kind"] for each in yaml.safe_load_all(scaling)] == [scaler["kind"]], "keda.yaml stands in its place"


def test_a_change_of_what_is_mounted_rolls_the_pods() -> None:
    """A ConfigMap whose name does not change is changed under running workers, which read it only at their start."""
    assert manifests("ConfigMap") == []
    (listed,) = manifests("Kustomization")
    made = {each["name"]: each["files"] for each in listed["configMapGenerator"]}
    assert {each["configMap"]["name"] for each in pod()["volumes"] if "configMap" in each} == set(made)
    assert all((KUBERNETES / path).is_file() for files in made.values() for path in files)
    assert not listed["generatorOptions"].get("disableNameSuffixHash")


def test_metrics_are_served_where_they_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("compose", "kubernetes"):
        text = (ROOT / "deploy" / folder / "perdure.toml").read_text("utf-8")
        assert configured(text, tmp_path, monkeypatch).metrics == "0.0.0.0:9464"
    assert "127.0.0.1:9464:9464" in COMPOSE["worker"]["ports"]
    ports = {each["name"]: each["containerPort"] for each in pod()["containers"][0]["ports"]}
    assert ports["metrics"] == 9464
