"""`fanout drain`."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from fanout.api.models import Readiness
from fanout.cli.app import app
from fanout.cli.asking.client import NodeClient
from fanout.cli.drain import wait_ended
from fanout.errors import NodeSilent, NodeUnreachable
from tests.api.stand_in import ready_node, serving
from tests.cli.test_ready import ManualClock, ScriptedClient


def ended_after(client: NodeClient, *, timeout_s: float) -> tuple[bool, float]:
    """Return whether the node ended in time, and how long the wait was."""
    clock = ManualClock()
    with client:
        ended = wait_ended(client, timeout_s=timeout_s, clock=clock, sleep=clock.sleep)
    return ended, clock.now - 1000


def readiness() -> Readiness:
    """Return what a node that drains answers."""
    node = ready_node()
    node.drain()
    return node.readiness()


GONE = NodeUnreachable("nothing listens", hint="")


def test_drain(runner: CliRunner) -> None:
    """Exit 0 and one line: what it is now, and for how long."""
    node = ready_node()
    with serving(node) as url:
        answer = runner.invoke(app, ["drain", url])
    assert (answer.exit_code, answer.stdout) == (0, "edge-1 is draining, 2.5 s are left\n")
    assert node.draining


def test_drain_as_json(runner: CliRunner) -> None:
    """The node's own answer and nothing else."""
    with serving(ready_node()) as url:
        answer = runner.invoke(app, ["drain", "--json", url])
    assert json.loads(answer.stdout) == {"node": "edge-1", "state": "draining", "left_seconds": 2.5}


def test_drain_of_nobody_is_unreachable(runner: CliRunner) -> None:
    """Exit 3, as for every question to a node that is not there."""
    answer = runner.invoke(app, ["drain", "127.0.0.1:1"])
    assert (answer.exit_code, answer.stdout) == (3, "")


def test_node_that_does_not_end_in_time(runner: CliRunner) -> None:
    """`--wait`: exit 1, and it is said."""
    with serving(ready_node()) as url:
        answer = runner.invoke(app, ["drain", "--wait", "0.1", url])
    assert answer.exit_code == 1
    assert answer.stdout.endswith("edge-1 has not ended within 0.1 s\n")


def test_waiting_ends_with_the_node() -> None:
    """It is asked four times a second until nothing answers."""
    client = ScriptedClient(readiness(), readiness(), GONE)
    assert ended_after(client, timeout_s=60) == (True, 0.5)


def test_node_that_is_slow_to_answer_has_not_ended() -> None:
    """It may be busy with sending its clients away."""
    client = ScriptedClient(readiness(), NodeSilent("no answer", hint=""), NodeSilent("no answer", hint=""), GONE)
    assert ended_after(client, timeout_s=60) == (True, 0.75)


def test_waiting_ends_with_the_time() -> None:
    """And not later, also when the pause would be longer."""
    client = ScriptedClient(readiness())
    ended, waited_s = ended_after(client, timeout_s=0.6)
    assert not ended
    assert waited_s == pytest.approx(0.6)
    assert client.asked == 4


def test_hold_and_undrain(runner: CliRunner) -> None:
    """Each says what holds now, and whether that is new."""
    node = ready_node()
    with serving(node) as url:
        held = [runner.invoke(app, ["drain", "--hold", *more, url]) for more in ([], ["--disconnect"])]
        freed = [runner.invoke(app, ["undrain", url]) for _ in range(2)]
        as_json = runner.invoke(app, ["drain", "--hold", "--json", url])
    assert [answer.exit_code for answer in (*held, *freed, as_json)] == [0] * 5
    assert held[0].stdout == (
        "edge-1 is held since 2025-11-21 08:00:00 UTC: not ready, until fanout undrain\n"
        "12 clients may stay; clients that connect directly are served\n"
    )
    assert held[1].stdout.startswith("edge-1 is held already, since 2025-11-21 08:00:00 UTC: not ready")
    assert "12 clients are being sent away;" in held[1].stdout
    assert [answer.stdout for answer in freed] == [
        "edge-1 is held no more, and ready\n",
        "edge-1 is not held, and ready\n",
    ]
    assert json.loads(as_json.stdout)["held_since"] == "2025-11-21T08:00:00.250000Z"
    assert not node.draining


def test_undrain_tells_what_else_keeps_the_node_from_being_ready(runner: CliRunner) -> None:
    """The hold is not always the only reason."""
    node = ready_node()
    node.hold(disconnect=False)
    node.reasons_after = ("link plant is down",)
    with serving(node) as url:
        answer = runner.invoke(app, ["undrain", "--json", url])
        text = runner.invoke(app, ["undrain", url])
    assert json.loads(answer.stdout)["reasons"] == ["link plant is down"]
    assert text.stdout == "edge-1 is not held, and not ready: link plant is down\n"


def test_node_that_drains_cannot_be_held(runner: CliRunner) -> None:
    """Exit 5, with the reason."""
    node = ready_node()
    node.drain()
    with serving(node) as url:
        answer = runner.invoke(app, ["drain", "--hold", url])
    assert (answer.exit_code, answer.stdout) == (5, "")
    assert "the node is draining: holding it would change nothing" in answer.stderr


def test_options_that_do_not_go_together(runner: CliRunner) -> None:
    """A node that is held does not end, and one that ends disconnects anyway."""
    for options in (["--hold", "--wait", "1"], ["--disconnect"]):
        assert runner.invoke(app, ["drain", *options, "127.0.0.1:1"]).exit_code == 2
