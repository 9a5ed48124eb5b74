"""`fanout init`: a first configuration, for a primary that was tried."""

from __future__ import annotations

import signal
import stat
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fanout.cli.app import app
from fanout.cli.output.exit_codes import ExitCode
from fanout.config import load_config, read_password
from fanout.probe.results import ProbeReport
from tests.cli.processes import COMMAND, run_fanout, run_on_terminal
from tests.probe.test_advice import ADDRESS, trial
from tests.support.mosquitto import Mosquitto, free_port


@pytest.mark.mosquitto
def test_init_asks_for_what_is_not_given_and_the_secondary_becomes_ready(mosquitto: Mosquitto, tmp_path: Path) -> None:
    """One command makes it: it tries the primary, writes the files, prints the rights."""
    out = tmp_path / "edge.toml"
    asked = [
        ("Address of the primary", mosquitto.address),
        ("Topic Filters to replicate", "plant/# site/+"),
        ("User Name there", "edge"),
        ("Password, if any: ", "s3cret"),
        ("Start it now", "n"),
    ]
    answer = run_on_terminal("init", "--set-size", "20", "--out", str(out), columns=200, answers=asked)
    assert answer.exit_code == ExitCode.OK, answer.text
    assert "s3cret" not in answer.text
    assert "yes: a link can replicate plant/# and site/+ from it over MQTT 5, with the evidence marker" in answer.text
    assert "user edge\n" in answer.text
    assert "topic read site/+\n" in answer.text
    config = load_config(out, role="secondary")
    assert (config.links[0].username, read_password(config.links[0])) == ("edge", b"s3cret")
    assert [one.filter for one in config.links[0].selectors] == ["plant/#", "site/+"]
    assert stat.S_IMODE((tmp_path / "edge.password").stat().st_mode) == 0o600
    assert f"fanout secondary --config {out}" in answer.text
    assert config.http is not None
    with subprocess.Popen([*COMMAND, "secondary", "--config", str(out), "--log-level", "error"], cwd=tmp_path) as node:
        try:
            ready = run_fanout("ready", "--wait", "30", config.http.listen.authority)
        finally:
            node.send_signal(signal.SIGINT)  # without draining
        assert (ready.returncode, node.wait(30)) == (ExitCode.OK, 0), ready.stderr


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((), "Error: Invalid value for --primary: it is required"),
        (("--primary", "mqtt://127.0.0.1"), "Error: Invalid value for --filter: it is required"),
        (("--primary", "mqtt://127.0.0.1", "--filter", "a/#", "--filter", "a/b"), '  --filter: "a/b" overlaps'),
    ],
)
def test_init_without_a_terminal_needs_both(given: tuple[str, ...], text: str, runner: CliRunner) -> None:
    """Nobody is there to be asked; faults are those of a configuration."""
    answer = runner.invoke(app, ["init", *given])
    assert answer.exit_code == ExitCode.USAGE
    assert text in answer.stderr


def test_init_overwrites_nothing(runner: CliRunner, tmp_path: Path) -> None:
    """The file that is there stays, before anything is asked."""
    out = tmp_path / "edge.toml"
    out.write_text("mine")
    answer = runner.invoke(app, ["init", "--out", str(out), "--primary", ADDRESS, "--filter", "#"])
    assert (answer.exit_code, out.read_text()) == (ExitCode.USAGE, "mine")
    assert f"{out} exists" in answer.stderr


def test_init_writes_nothing_for_a_primary_of_no_use(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says why, and which rights may be missing."""

    async def found(*_: object, **__: object) -> ProbeReport:
        return ProbeReport(ADDRESS, "", (trial(evidence=None, reason="it is so"),), True, "")

    monkeypatch.setattr("fanout.probe.runner.probe", found)
    out = tmp_path / "edge.toml"
    answer = runner.invoke(app, ["init", "--out", str(out), "--primary", ADDRESS, "--filter", "plant/#"])
    assert (answer.exit_code, out.exists()) == (ExitCode.NO, False)
    assert "no: a link does not become ready over MQTT 5: it is so" in answer.stdout
    assert "read  plant/#" in answer.stdout


def test_init_of_nothing(tmp_path: Path) -> None:
    """A primary that is not there is unreachable, and no file is left."""
    out = tmp_path / "edge.toml"
    answer = run_fanout("init", "--primary", f"mqtt://127.0.0.1:{free_port()}", "--filter", "#", "--out", str(out))
    assert (answer.returncode, out.exists()) == (ExitCode.UNREACHABLE, False)
