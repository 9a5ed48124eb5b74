"""The command line page names every command and option, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner

from fanout.cli.app import app

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
REPORTS = [["report", name] for name in ("snapshots", "convergence", "stalls", "traffic", "watch")]
COMMANDS = (
    *(["secondary"], ["primary"], ["tap"], ["check"], ["ready"], ["drain"], ["status"], ["lag"], ["audit"], ["passwd"]),
    *(["probe"], ["report", "completeness"], ["report", "lag"], *REPORTS, ["log", "stat"], ["log", "verify"]),
)


def options_of(runner: CliRunner, command: list[str]) -> set[str]:
    """Return the long options in a command's help."""
    return set(re.findall(r"--[a-z-]+", runner.invoke(app, [*command, "--help"]).stdout))


def test_every_command_and_option_is_documented(runner: CliRunner) -> None:
    """What the help lists, the page explains."""
    for command in COMMANDS:
        assert f"`fanout {' '.join(command)}" in PAGE, command
        for option in options_of(runner, command) - {"--help"}:
            assert f"`{option}" in PAGE or f" {option}" in PAGE, (command, option)


def test_no_option_is_invented(runner: CliRunner) -> None:
    """Every option on the page exists."""
    exist = {"--version", "--help", "--install-completion"}
    for command in COMMANDS:
        exist |= options_of(runner, command)
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE)) <= exist
