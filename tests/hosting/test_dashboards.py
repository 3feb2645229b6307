"""The dashboard and the alerts name metrics that there are, all of Perdure's, and each alert says what to do."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import temporalio.bridge

from perdure.runs.metrics import METRICS

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy" / "prometheus" / "perdure.yml"
TESTS = ROOT / "deploy" / "prometheus" / "tests.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "perdure.json"
PRODUCTION = ROOT / "docs" / "production.md"
NAME = re.compile(r"\b(?:perdure|temporal)_[a-z_]+")


def dashboard() -> dict[str, Any]:
    board: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return board


def queries() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])]


def metric(series: str) -> str:
    """The metric that a series is of."""
    base = re.sub(r"_(bucket|sum|count)$", "", series)
    return base if base in METRICS and METRICS[base].kind == "histogram" else series


def named(text: str) -> set[str]:
    return {metric(series) for series in NAME.findall(text)}


def promtool(*words: str) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (Debian's package prometheus has it)")
    checked = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_metric_that_is_named_is_there_and_the_other_way_round() -> None:
    alerts = "\n".join(re.findall(r"expr: (.*?)(?=\n {8}\w+:)", ALERTS.read_text(encoding="utf-8"), re.DOTALL))
    found = named("\n".join([alerts, *queries()]))
    assert {name for name in found if name.startswith("perdure_")} == set(METRICS)
    [library] = Path(temporalio.bridge.__path__[0]).glob("temporal_sdk_bridge*.*[od]")  # .so, or Windows' .pyd
    binary = library.read_bytes()
    theirs = {re.sub(r"^temporal_|_bucket$", "", name) for name in found if name.startswith("temporal_")}
    assert theirs
    assert [name for name in theirs if name.encode() not in binary] == []


def test_every_label_that_is_named_is_the_metrics() -> None:
    always = {"namespace", "le"}
    for query in queries():
        for series, labels in re.findall(r"(perdure_[a-z_]+)\{([^}]*)\}", query):
            assert set(re.findall(r"(\w+)[=!]", labels)) <= {*METRICS[metric(series)].labels, *always}, query


def test_panels_are_distinct_and_have_units() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    drawn = [panel for panel in panels if panel["type"] != "row"]
    assert len({panel["title"] for panel in drawn}) == len(drawn)
    assert [panel["title"] for panel in drawn if not panel["fieldConfig"]["defaults"].get("unit")] == []


def test_every_alert_says_what_to_do() -> None:
    text = ALERTS.read_text(encoding="utf-8")
    alerts = re.findall(r"alert: (\w+)", text)
    links = re.findall(r"runbook: (\S+)", text)
    assert links == [f"docs/production.md#{alert.lower()}" for alert in alerts]
    headings = re.findall(r"^#+ (\w+)$", PRODUCTION.read_text(encoding="utf-8"), re.MULTILINE)
    assert [alert for alert in alerts if alert not in headings] == []
    assert [name for name in headings if name.startswith("Perdure") and name not in alerts] == []


def test_prometheus_takes_the_alerts_and_they_fire_when_they_should() -> None:
    promtool("check", "rules", str(ALERTS))
    promtool("test", "rules", str(TESTS))


def test_prometheus_takes_the_dashboards_queries(tmp_path: Path) -> None:
    plain = [query.replace("$__rate_interval", "5m") for query in queries()]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(plain)]
    path = tmp_path / "queries.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}), encoding="utf-8")
    promtool("check", "rules", str(path))
