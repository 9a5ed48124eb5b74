"""The command line page names every command and option, and no other."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from fanout.cli.app import app

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PAGE = "\n".join((REFERENCE / name).read_text() for name in ("cli.md", "asking.md", "probe.md"))


def commands() -> list[list[str]]:
    """Return the words of every command that a user may see, those of groups too."""
    found: list[list[str]] = []
    groups: list[tuple[list[str], Any]] = [([], typer.main.get_command(app))]
    while groups:
        words, group = groups.pop()
        for name, command in group.commands.items():
            if command.hidden:
                continue
            if hasattr(command, "commands"):
                if command.invoke_without_command:
                    found.append([*words, name])
                groups.append(([*words, name], command))
            else:
                found.append([*words, name])
    return found


COMMANDS = commands()


@functools.cache
def options() -> dict[tuple[str, ...], set[str]]:
    """Return for each command the long options in its help."""
    helps = {tuple(command): CliRunner().invoke(app, [*command, "--help"]).stdout for command in COMMANDS}
    return {command: set(re.findall(r"--[a-z-]+", text)) for command, text in helps.items()}


def test_every_command_and_option_is_documented() -> None:
    """What the help lists, the page explains."""
    for command, of_command in options().items():
        assert f"`fanout {' '.join(command)}" in PAGE, command
        for option in of_command - {"--help"}:
            assert f"`{option}" in PAGE or f" {option}" in PAGE, (command, option)


def test_no_option_is_invented() -> None:
    """Every option on the page exists."""
    exist = {"--version", "--help", "--install-completion"}.union(*options().values())
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE)) <= exist
