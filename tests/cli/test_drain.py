"""`fanout drain`."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from fanout.api.models import Readiness
from fanout.cli.app import app
from fanout.cli.client import NodeClient
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
