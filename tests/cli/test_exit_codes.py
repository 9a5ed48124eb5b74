"""Which error ends with which exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanout.cli.app import app
from fanout.cli.output.exit_codes import ExitCode, exit_code_of
from fanout.errors import (
    ConfigError,
    ExtraMissing,
    FanoutError,
    ListenError,
    LogError,
    NodeUnreachable,
    PrimaryUnreachable,
    ReportError,
)

CLI_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x.toml", ()), 2),
        (NodeUnreachable("x"), 3),
        (PrimaryUnreachable("x"), 3),
        (ExtraMissing("x", install="pip"), 4),
        (ListenError("x"), 5),
        (LogError("x"), 5),
        (ReportError("x"), 5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_exit_code_of(error: FanoutError, code: int) -> None:
    """Scripts tell the kinds of failure apart."""
    assert exit_code_of(error) == code


def test_exit_codes_are_documented() -> None:
    """Each code is listed in the help of `fanout` and in the command line page."""
    epilog = str(app.info.epilog)
    page = CLI_PAGE.read_text()
    for code in ExitCode:
        assert f"\n  {code.value:<5}" in epilog, code
        assert f"\n| {code.value} |" in page, code
