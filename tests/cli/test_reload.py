"""`fanout reload`."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from fanout.api.models import ConfigChange, ReloadRequest
from fanout.cli.app import app
from tests.api.stand_in import ready_node, serving

RULES = ConfigChange(key="access.rule", change="changed", cost="nothing", reason="")
LISTEN = ConfigChange(key="http.listen", change="changed", cost="restart", reason="the node reads it at its start only")


def test_changes_are_applied_and_shown(runner: CliRunner) -> None:
    """Exit 0, with each change and its cost."""
    node = ready_node()
    node.changes = (RULES,)
    with serving(node) as url:
        answer = runner.invoke(app, ["reload", url])
    assert answer.exit_code == 0, answer.output
    assert "access.rule" in answer.stdout
    assert answer.stdout.endswith("edge-1: 1 change applied\n")
    assert node.reload_asked == ReloadRequest()


def test_unchanged_configuration(runner: CliRunner) -> None:
    """Nothing to show."""
    with serving(ready_node()) as url:
        answer = runner.invoke(app, ["reload", url])
    assert (answer.exit_code, answer.stdout) == (0, "edge-1: the configuration is as it was\n")


def test_dry_run_says_that_a_restart_is_needed(runner: CliRunner) -> None:
    """Exit 1, with the reason, and nothing is applied."""
    node = ready_node()
    node.changes = (RULES, LISTEN)
    with serving(node) as url:
        answer = runner.invoke(app, ["reload", url, "--dry-run"])
    assert answer.exit_code == 1
    assert "needs a restart: the node reads it at its start only" in answer.stdout
    assert answer.stdout.endswith("2 changes found, nothing is applied (--dry-run), 1 of them with the next start\n")
    assert node.reload_asked == ReloadRequest(dry_run=True)


def test_restart_refuses_the_reload_unless_partial(runner: CliRunner) -> None:
    """Exit 5 without, exit 0 with `--partial`."""
    node = ready_node()
    node.changes = (RULES, LISTEN)
    with serving(node) as url:
        refused = runner.invoke(app, ["reload", url])
        partial = runner.invoke(app, ["reload", url, "--partial", "--json"])
    assert (refused.exit_code, refused.stdout) == (5, "")
    assert "a restart is needed for http.listen" in refused.stderr
    assert partial.exit_code == 0
    assert json.loads(partial.stdout)["applied"] is True
