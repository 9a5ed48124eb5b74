"""The command as a whole: help, version, weight, how it fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import fanout.cli
from fanout import __version__
from fanout.cli import app as app_module
from fanout.cli.app import app
from fanout.cli.output.exit_codes import ExitCode
from fanout.installation import build
from tests.cli.processes import run_fanout

COMMANDS = tuple(typer.main.get_group(app).commands)
"""All but the one that only a node starts."""
HEAVY = (
    "pyspark",
    "httpx",
    "fastapi",
    "uvicorn",
    "pydantic",
    "structlog",
    "pyarrow",
    "rich",
    "asyncio",
    "numpy",
)


def test_help_names_every_command() -> None:
    """`fanout --help` lists all commands within 80 columns, without colour in a pipe."""
    answer = run_fanout("--help")
    assert answer.returncode == 0
    assert len(COMMANDS) > 10
    for command in COMMANDS:
        assert f"\n  {command}" in answer.stdout
    assert "..." not in answer.stdout.partition("Commands:")[2], "a summary is cut off"
    assert max(map(len, answer.stdout.splitlines())) <= 80
    assert "\x1b" not in answer.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_fits(runner: CliRunner, command: str) -> None:
    """Each command explains itself within 80 columns."""
    answer = runner.invoke(app, [command, "--help"], terminal_width=80)
    assert answer.exit_code == 0
    assert max(map(len, answer.stdout.splitlines())) <= 80


def test_no_command_shows_the_help(runner: CliRunner) -> None:
    """`fanout` alone is a question, answered with the help and the code of a wrong command line."""
    answer = runner.invoke(app, [])
    assert answer.exit_code == ExitCode.USAGE
    assert "Commands:" in answer.output


def test_version() -> None:
    """`fanout --version` prints one line."""
    answer = run_fanout("--version")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, f"fanout {__version__} ({build()})\n", "")


def test_help_loads_nothing_heavy() -> None:
    """Building the whole tree of commands leaves every heavy library, pyspark first of all, unloaded."""
    code = f"import sys, fanout.cli.app\nprint([n for n in {HEAVY!r} if n in sys.modules])"
    answer = run_python(code)
    assert answer == "[]\n"


def test_asking_a_node_loads_no_spark_and_no_server() -> None:
    """What a probe runs every second leaves Spark and the web framework unloaded."""
    code = (
        "import sys\n"
        "from fanout.cli.asking import client\n"
        "from fanout.cli.output import progress, terminal\n"
        "print([n for n in ('pyspark', 'fastapi', 'uvicorn', 'pyarrow') if n in sys.modules])"
    )
    assert run_python(code) == "[]\n"


def run_python(code: str) -> str:
    """Return what a fresh interpreter prints."""
    import subprocess

    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return answer.stdout


def test_unknown_option_is_a_usage_error(runner: CliRunner) -> None:
    """A wrong command line exits 2 and points at the help."""
    answer = runner.invoke(app, ["ready", "--no-such-option"])
    assert answer.exit_code == ExitCode.USAGE
    assert "--no-such-option" in answer.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("ready --wait -1", "'--wait': -1 is too small; the smallest value is 0"),
        ("ready --wait soon", "'--wait': 'soon' is not a number"),
        ("log show . --last 1.5", "'--last': '1.5' is not a whole number"),
        ("report completeness . --fail-under 101", "'--fail-under': 101 is too large; the largest value is 100"),
        ("check a.toml --role third", "'--role': 'third' is not one of 'primary', 'secondary', 'tap'"),
        ("log show . --topic a/#/b", '--topic: "#" in "a/#/b" is not the whole last level. Use "#" only at the end'),
    ],
)
def test_a_wrong_value_is_told_with_what_would_do(runner: CliRunner, words: str, problem: str) -> None:
    """The option, the value and its limits, in the words of a user."""
    answer = runner.invoke(app, words.split())
    assert answer.exit_code == ExitCode.USAGE
    assert f"Invalid value for {problem}" in answer.stderr
    assert "nput should" not in answer.stderr
    assert "Value error" not in answer.stderr


def test_defect_exits_70_with_a_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A bug is told apart from every answer, and its traceback is shown whole."""

    def broken(prog_name: str) -> None:
        raise RuntimeError("impossible")

    monkeypatch.setattr(app_module, "app", broken)
    with pytest.raises(SystemExit) as caught:
        fanout.cli.main()
    assert caught.value.code == ExitCode.BUG
    assert "RuntimeError: impossible" in capsys.readouterr().err


def test_interrupt_exits_130(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends a command with the code of a shell."""

    def interrupted(url: str, token_file: Path | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fanout.cli.asking.client.NodeClient", interrupted)
    assert runner.invoke(app, ["status"]).exit_code == ExitCode.INTERRUPTED


def test_commands_are_typers() -> None:
    """The tree is built at import, so that documentation tools can read it."""
    assert isinstance(app, typer.Typer)


@pytest.mark.parametrize("group", ["", "pool", "report", "log"])
def test_no_summary_of_a_command_is_cut(runner: CliRunner, group: str) -> None:
    """On 80 columns each command has its whole first sentence in the help of its group."""
    answer = runner.invoke(app, [*group.split(), "--help"], terminal_width=80)
    summaries = answer.stdout.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert summaries
    assert all(each.endswith(".") and not each.endswith("..") for each in summaries), summaries
