"""`fanout secondary`, `primary`, `tap`, with a stand-in for the node."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
from pathlib import Path
from types import ModuleType

import pytest
import structlog
from typer.testing import CliRunner

from fanout.cli.app import app
from fanout.config import NodeConfig
from fanout.errors import ListenError

pytestmark = pytest.mark.usefixtures("restored_logging")

PRIMARY = '[node]\nid = "hub"\n[server]\nlisten = ["mqtt://127.0.0.1:0"]\n'
LINK = '[[link]]\nname = "plant"\nprimary = "mqtt://127.0.0.1"\n[[link.selector]]\nfilter = "#"\n'
CONFIGS = {
    "primary": PRIMARY,
    "secondary": PRIMARY + LINK,
    "tap": '[node]\nid = "hub"\n[log]\n' + LINK,
}


class StandInRun:
    """Takes the place of `fanout.node.run_node`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.loop = ""
        self.descriptors = 0
        self.exit_code = 0
        self.error: Exception | None = None

    async def __call__(self, config: NodeConfig, *, role: str, **_: object) -> int:
        self.calls.append((config.node.id, role))
        self.loop = type(asyncio.get_running_loop()).__module__
        self.descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        structlog.get_logger("fanout.node").info("node started", node=config.node.id)
        structlog.get_logger("fanout.node").debug("only for debugging")
        if self.error is not None:
            raise self.error
        return self.exit_code


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> StandInRun:
    """Put a stand-in in the place of the node."""
    stand_in = StandInRun()
    module = ModuleType("fanout.node")
    module.run_node = stand_in  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fanout.node", module)
    return stand_in


def config_file(directory: Path, text: str) -> str:
    """Return the path of a file with `text`."""
    path = directory / "node.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("role", ["primary", "secondary", "tap"])
def test_command_runs_the_node_in_its_role(runner: CliRunner, run: StandInRun, tmp_path: Path, role: str) -> None:
    """Each command loads the file for its role and runs the node on uvloop; its exit code is the node's."""
    run.exit_code = 7
    answer = runner.invoke(app, [role, "--config", config_file(tmp_path, CONFIGS[role])])
    assert answer.exit_code == 7, answer.output
    assert run.calls == [("hub", role)]
    assert run.loop == "uvloop"


def test_a_node_has_all_the_descriptors_that_it_may_have(runner: CliRunner, run: StandInRun, tmp_path: Path) -> None:
    """A shell gives 1,024 to a process that does not ask, far fewer than `connections_max`."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most // 2, most))
    try:
        runner.invoke(app, ["primary", "-c", config_file(tmp_path, PRIMARY)])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))
    assert run.descriptors == most


def test_log_lines_go_to_standard_error(runner: CliRunner, run: StandInRun, tmp_path: Path) -> None:
    """Text by default, at INFO; standard output stays empty."""
    answer = runner.invoke(app, ["primary", "-c", config_file(tmp_path, PRIMARY)])
    assert answer.stdout == ""
    assert "node started" in answer.stderr
    assert "node=hub" in answer.stderr
    assert "only for debugging" not in answer.stderr


def test_log_format_and_level(runner: CliRunner, run: StandInRun, tmp_path: Path) -> None:
    """JSON lines for collectors, and every line with --log-level debug."""
    path = config_file(tmp_path, PRIMARY)
    answer = runner.invoke(app, ["primary", "-c", path, "--log-format", "json", "--log-level", "debug"])
    lines = [json.loads(line) for line in answer.stderr.splitlines()]
    assert [(line["level"], line["event"]) for line in lines if line["logger"] == "fanout.node"] == [
        ("info", "node started"),
        ("debug", "only for debugging"),
    ]


def test_settings_from_the_environment(
    runner: CliRunner, run: StandInRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container the file and the log format come from the environment."""
    monkeypatch.setenv("FANOUT_CONFIG", config_file(tmp_path, PRIMARY))
    monkeypatch.setenv("FANOUT_LOG_FORMAT", "json")
    monkeypatch.setenv("FANOUT_LOG_LEVEL", "error")
    answer = runner.invoke(app, ["primary"])
    assert (answer.exit_code, answer.stderr) == (0, "")
    assert run.calls == [("hub", "primary")]


def test_faults_prevent_the_start(runner: CliRunner, run: StandInRun, tmp_path: Path) -> None:
    """A faulty file: exit 2, the faults, and no node."""
    answer = runner.invoke(app, ["secondary", "--config", config_file(tmp_path, PRIMARY)])
    assert answer.exit_code == 2
    assert "error: " in answer.stderr
    assert run.calls == []


def test_garbage_is_collected_again_after_the_imports(runner: CliRunner, run: StandInRun, tmp_path: Path) -> None:
    """Both when the node runs and when its configuration is refused before."""
    for text in (PRIMARY, "[node]"):
        gc.enable()
        runner.invoke(app, ["primary", "--config", config_file(tmp_path, text)])
        assert gc.isenabled()


def test_file_is_required(runner: CliRunner, run: StandInRun) -> None:
    """Without a file there is nothing to run."""
    answer = runner.invoke(app, ["tap"])
    assert answer.exit_code == 2
    assert "--config" in answer.stderr


def test_failure_of_the_node_is_told(runner: CliRunner, run: StandInRun, tmp_path: Path) -> None:
    """A taken port is one line and a hint, not a traceback."""
    run.error = ListenError("cannot listen on 127.0.0.1:1884: Address already in use", hint="Stop the other")
    answer = runner.invoke(app, ["primary", "-c", config_file(tmp_path, PRIMARY)])
    assert answer.exit_code == 5
    assert answer.stderr.endswith("error: cannot listen on 127.0.0.1:1884: Address already in use\n  Stop the other\n")
    assert "Traceback" not in answer.stderr
