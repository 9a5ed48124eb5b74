"""`fanout check`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fanout.cli.app import app
from tests.cli.processes import run_fanout

SECONDARY = """
[node]
id = "edge-1"

[server]
listen = ["mqtt://127.0.0.1:1884"]

[http]
listen = "127.0.0.1:8080"

[log]
directory = "var/replication-log"

[[link]]
name = "plant"
primary = ["mqtt://127.0.0.1:1883", "mqtt://127.0.0.2:1883"]
username = "edge"

[[link.selector]]
filter = "plant/#"
exclude = ["plant/debug/#", "plant/tmp/#"]

[[link.selector]]
filter = "office/+/state"
qos = 0
prefix = "hq/"
writes = "forward"
"""

SUMMARY = """\
{path} has no faults for a secondary

node    edge-1
data    var/lib
serves  mqtt://127.0.0.1:1884
http    http://127.0.0.1:8080
log     var/replication-log

LINK   PRIMARY                MQTT  CLIENT ID            USER
plant  mqtt://127.0.0.1:1883  5     fanout-edge-1-plant  edge
       mqtt://127.0.0.2:1883

LINK   SELECTOR        EXCEPT         QOS  PREFIX  WRITES
plant  plant/#         plant/debug/#    1  -       reject
                       plant/tmp/#
plant  office/+/state  -                0  hq/     forward
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return the path of a sound configuration."""
    path = tmp_path / "node.toml"
    path.write_text(SECONDARY)
    return path


def test_sound_configuration_is_summarised(config: Path) -> None:
    """A configuration without faults: exit 0 and what it would run, defaults included."""
    answer = run_fanout("check", str(config), "--role", "secondary")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout == SUMMARY.format(path=config)


def test_smallest_configuration(runner: CliRunner, config: Path) -> None:
    """Without a role only what holds for each is checked; what is off is said to be off."""
    config.write_text('[node]\nid = "edge-1"\n[server]\n')
    answer = runner.invoke(app, ["check", str(config)])
    assert answer.exit_code == 0
    assert answer.stdout == (
        f"{config} has no faults\n\n"
        "node    edge-1\ndata    var/lib\nserves  mqtt://127.0.0.1:1884\nhttp    off\nlog     off\n"
    )


def test_all_faults_at_once(config: Path) -> None:
    """Each fault has its key and a hint, on standard error; exit 2; nothing on standard output."""
    config.write_text(SECONDARY.replace('id = "edge-1"', 'id = "edge 1"\ncolour = "red"').replace("qos = 0", "qos = 3"))
    answer = run_fanout("check", str(config))
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith(f"error: {config}: 3 faults\n")
    for key in ("node.id", "node.colour", "link[0].selector[1].qos"):
        assert f"\n  {key}: " in answer.stderr


def test_role_is_checked(runner: CliRunner, config: Path) -> None:
    """A primary has no links; saying so needs the role."""
    answer = runner.invoke(app, ["check", str(config), "--role", "primary"])
    assert answer.exit_code == 2
    assert "primary" in answer.stderr


def test_overlap_shows_its_witness(runner: CliRunner, config: Path) -> None:
    """Two selectors that share a topic are refused with such a topic."""
    config.write_text(SECONDARY.replace('"office/+/state"', '"plant/+/state"').replace('prefix = "hq/"\n', ""))
    answer = runner.invoke(app, ["check", str(config)])
    assert answer.exit_code == 2
    assert "plant/" in answer.stderr


def test_missing_file(runner: CliRunner, tmp_path: Path) -> None:
    """A file that is not there is a fault like any other."""
    answer = runner.invoke(app, ["check", str(tmp_path / "none.toml")])
    assert answer.exit_code == 2
    assert "cannot read the configuration file" in answer.stderr


def test_unknown_role_is_a_usage_error(runner: CliRunner, config: Path) -> None:
    """The roles that exist are named."""
    answer = runner.invoke(app, ["check", str(config), "--role", "tertiary"])
    assert answer.exit_code == 2
    assert "secondary" in answer.stderr
