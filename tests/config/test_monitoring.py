"""Alerts and dashboard in `configs/`: each names metrics that exist, and each alert fires for its fault alone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from fanout.api.browse.top_metrics import TOP_METRIC
from fanout.api.metrics import METRICS
from fanout.reports.metrics import REPORT_METRICS

ROOT = Path(__file__).parents[2]
RULES = ROOT / "configs" / "prometheus-rules.yaml"
UNIT_TESTS = Path(__file__).with_name("prometheus_rules.yaml")
DASHBOARD: dict[str, Any] = json.loads((ROOT / "configs" / "grafana-dashboard.json").read_text())
ALERTS = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
EXPRESSIONS = [
    *(rule["expr"] for rule in ALERTS),
    *(target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())),
]
LABELS = {spec.name: spec.labels for spec in METRICS} | {name: labels for name, (_, labels) in REPORT_METRICS.items()}
LABELS |= dict([TOP_METRIC])
OF_PROMETHEUS = {"instance", "job"}
"""Labels that the scraper adds."""


def promtool(*arguments: str | Path) -> str:
    """Run promtool; return what it found wrong, or skip by its name where it is not installed."""
    if (program := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed; scripts/setup installs it where apt-get may")
    command = [program, *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return "" if answer.returncode == 0 else answer.stdout + answer.stderr


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_names_what_a_node_or_a_report_has(expression: str) -> None:
    """Metrics of fanout with their own labels; those of the process and of Prometheus itself are taken as they are."""
    named = re.findall(r"\b(fanout_\w+)(?:\{([^}]*)\})?", expression)
    assert named or re.search(r"\b(up|ALERTS|process_\w+)\b", expression)
    for name, labels in named:
        assert set(re.findall(r"(\w+) *[=!]", labels)) <= {*LABELS[name], *OF_PROMETHEUS}


def test_an_alert_names_labels_that_it_has() -> None:
    """A summary with a label that no metric of its expression has would have a hole."""
    for rule in ALERTS:
        shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        has = [set(LABELS[name]) for name in re.findall(r"\bfanout_\w+", rule["expr"]) if name in LABELS]
        assert shown <= set().union(*has, OF_PROMETHEUS), rule["alert"]
        assert rule["labels"]["severity"] in {"critical", "warning"}


def test_each_alert_has_a_unit_test() -> None:
    """Where it fires; the same test says that it fires nowhere else."""
    assert set(re.findall(r'alertname="(\w+)"', UNIT_TESTS.read_text())) == {rule["alert"] for rule in ALERTS}


def test_alerts_fire_for_their_faults_alone() -> None:
    """Promtool evaluates the rules over series of a sick node and of a well one."""
    assert promtool("test", "rules", UNIT_TESTS) == ""


def test_prometheus_can_parse_every_expression(tmp_path: Path) -> None:
    """Those of the dashboard too, once its variables have a value."""
    shown = [one.replace("$__rate_interval", "5m").replace("$instance", ".*") for one in EXPRESSIONS]
    rules = [{"record": f"one:{number}", "expr": one} for number, one in enumerate(shown)]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}))
    assert promtool("check", "rules", path) == ""


def test_the_dashboard_has_the_rate_of_each_counter_of_a_link() -> None:
    """By link, as `rate` or `increase`; and the busiest topics."""
    shown = " ".join(EXPRESSIONS[len(ALERTS) :])
    rates = set(re.findall(r"\b(?:rate|increase)\((\w+)", shown))
    assert {spec.name for spec in METRICS if spec.kind == "counter" and spec.labels[:1] == ("link",)} <= rates
    assert TOP_METRIC[0] in shown


def test_prometheus_takes_what_the_page_adds_to_its_file(tmp_path: Path) -> None:
    """The blocks of the page, one below the other, with the rules and the password at a place that is there."""
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "how-to" / "alert.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    password, path = tmp_path / "password", tmp_path / "prometheus.yml"
    password.touch()
    text = "".join(blocks).replace("/etc/prometheus/fanout-password", str(password))
    path.write_text(text.replace("/etc/prometheus/fanout-rules.yaml", str(RULES)))
    assert str(password) in text
    assert promtool("check", "config", path) == ""


def test_the_panels_of_the_dashboard_have_places_of_their_own() -> None:
    """No panel lies on another, and each has a number and names its data source."""
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${source}"
