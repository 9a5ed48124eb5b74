"""The commands that start everything themselves: the demonstration and the comparison with a Mosquitto bridge."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.nodes import processes_with

ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = [pytest.mark.slow, pytest.mark.mosquitto, pytest.mark.timeout(600)]


def run(*arguments: str | Path, deadline_s: float = 580) -> subprocess.CompletedProcess[str]:
    """Run Python in the project's directory."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=deadline_s, check=False)


def test_demonstration_shows_the_whole_mission(tmp_path: Path) -> None:
    """Done when: the demonstration ends by itself with exit code 0: snapshot, tear-down, re-creation, equal values."""
    demonstrate(tmp_path, "--skip-report")


@pytest.mark.long
@pytest.mark.spark
def test_demonstration_ends_with_a_report(tmp_path: Path) -> None:
    """Of its own logs, as a page and a document."""
    scratch = demonstrate(tmp_path)
    document = json.loads((scratch / "report.json").read_text())
    assert {(one["node"], one["final"]["equal_percent"]) for one in document["targets"]} == {
        ("edge-1", 100),
        ("edge-2", 100),
    }
    assert (scratch / "report.html").exists()


def demonstrate(directory: Path, *options: str) -> Path:
    """Run the demonstration, and return where it left its files; no process may be left."""
    sizes = ("--sensors", "500", "--rate", "100", "--directory", directory)
    answer = run(ROOT / "scripts" / "run_demo.py", *sizes, *options)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    for node in ("edge-1", "edge-2"):
        assert answer.stdout.count(f"{node}  serves 500 retained topics") == 2
    for said in ("evidence marker", "not ready", "equal digests"):
        assert said in " ".join(answer.stdout.split())
    assert processes_with(str(directory)) == []
    (scratch,) = directory.iterdir()
    return scratch


@pytest.mark.long
def test_fan_out_is_faster_than_a_bridge(tmp_path: Path) -> None:
    """Done when: at 100 subscribers ours delivers at least 5 times as many messages per second as a bridge."""
    document = tmp_path / "bench.json"
    answer = run("-m", "bench", "fanout", "--subscribers", "1,100", "--qos", "0", "--runs", "1", "--json", document)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    ratios = {
        one["subscribers"]: one["asked"][0]["reached"]
        for one in json.loads(document.read_text())["results"]
        if one["server"] == "ours"
    }
    assert set(ratios) == {1, 100}
    assert ratios[100] >= 5, answer.stdout


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(7200)
def test_every_number_of_a_hundred_million_rows_is_right(tmp_path: Path) -> None:
    """The bench compares each number with the truth that it injected."""
    document = tmp_path / "bench.json"
    options = ("--rows", "100000000", "--reports", "completeness,lag", "--runs", "1", "--scratch", tmp_path)
    answer = run("-m", "bench", "reports", *options, "--json", document, deadline_s=7000)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    asked = [ask for one in json.loads(document.read_text())["results"] for ask in one["asked"]]
    wrong = [ask["reached"] for ask in asked if ask["what"] == "numbers that are not the injected truth"]
    assert wrong == [0, 0], answer.stdout
