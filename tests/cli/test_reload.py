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


def test_several_nodes_are_reloaded_one_after_another(runner: CliRunner) -> None:
    """Each waits for the one before it; the first that is not ready is the last."""
    one, two, three = nodes = ready_node(), ready_node(), ready_node()
    for number, node in enumerate(nodes, 1):
        node.node, node.changes = f"edge-{number}", (RULES,)
    with serving(one) as first, serving(two) as second, serving(three) as third:
        answer = runner.invoke(app, ["reload", first, second, third, "--json"])
        assert [each["node"] for each in json.loads(answer.stdout)] == ["edge-1", "edge-2", "edge-3"]
        three.reload_asked, two.reasons = None, ("link plant is resuming",)
        answer = runner.invoke(app, ["reload", first, second, third, "--wait", "0"])
    assert answer.exit_code == 1
    assert "edge-2 is not ready after 0 s; 1 more not reloaded: link plant is resuming" in answer.stdout
    assert three.reload_asked == ReloadRequest(dry_run=True)


def test_several_nodes_are_asked_first(runner: CliRunner) -> None:
    """A restart that one needs is told before anything changes at any."""
    one, two = ready_node(), ready_node()
    one.changes, two.changes = (RULES,), (LISTEN,)
    with serving(one) as first, serving(two) as second:
        answer = runner.invoke(app, ["reload", first, second])
        assert answer.exit_code == 5
        assert "needs a restart for http.listen: nothing has changed, at any node" in answer.stderr
        assert one.reload_asked == two.reload_asked == ReloadRequest(dry_run=True)
        assert runner.invoke(app, ["reload", first, second, "--partial"]).exit_code == 0


def test_pool_is_reloaded_as_a_whole(runner: CliRunner) -> None:
    """A member that is not named refuses all."""
    one, two = ready_node(), ready_node()
    two.node = "edge-2"
    with serving(one) as first, serving(two) as second:
        answer = runner.invoke(app, ["reload", "--pool", first])
        assert answer.exit_code == 5
        assert "the pool has the members edge-1, edge-2, and edge-1 are named" in answer.stderr
        assert one.reload_asked is None
        assert runner.invoke(app, ["reload", "--pool", first, second]).exit_code == 0
    assert two.reload_asked == ReloadRequest()


def test_addresses_come_in_one_way(runner: CliRunner) -> None:
    """No node is left out silently: arguments beside `--url` are refused, and a variable gives way."""
    with serving(ready_node()) as one, serving(ready_node()) as two:
        refused = runner.invoke(app, ["reload", one, "--url", two])
        answer = runner.invoke(app, ["reload", "--url", one, "--url", two, "--json"], env={"FANOUT_URL": one})
    assert refused.exit_code == 2
    assert "give addresses as arguments or with it, not both" in refused.stderr
    assert len(json.loads(answer.stdout)) == 2
