"""Faults planted at a node that works: each is seen, and takes no live value from a local client.

One Mosquitto, one node and one local client go through all of them. After each the node is ready again and holds what
the primary has. A fault is *seen* when the node is not ready, or its status or log has an alarm that names it. While it
lasts, the first line of `fanout explain` names the cause, wherever the node can be asked and a topic is affected.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fanout.cli.app import app
from fanout.cli.output.exit_codes import ExitCode
from tests.support.clients import Inbox, publish_properties, slow_reader, subscriber
from tests.support.mosquitto import Mosquitto, find_mosquitto, publish_all, publisher
from tests.support.nodes import QUICK, LiveNode, Nodes, link, selector
from tests.support.raw_reader import read_retained
from tests.support.waiting import wait_until_blocking

pytestmark = [
    pytest.mark.mosquitto,
    pytest.mark.skipif(find_mosquitto() is None, reason="Mosquitto is not installed; scripts/test installs it"),
]

VALUES = {f"plant/{area}/{number}": b"first" for area in ("a", "b") for number in range(10)}
BRANCHES = 100
MANY = {f"many/{branch:02d}/{number}": b"first" for branch in range(BRANCHES) for number in range(2)}
"""Values behind the second link, which audits seldom: what is hidden there is seen by samples."""
HEARTBEAT_S = 0.5
HOUR_S = 3600.0
SETTINGS = (
    f"{QUICK}heartbeat_s = {HEARTBEAT_S}\nkeep_alive_s = 2\nsession_expiry_s = 1\nsnapshot_quiet_s = 1.0\n"
    'on_session_loss = "serve_stale"\nusername = "edge"\n'
)
CLOCK = """
import os, time

_shift, _file = 0, os.environ["FANOUT_TEST_CLOCK"]
_time, _time_ns = time.time, time.time_ns


def shift_ns():
    try:
        return int(os.stat(_file).st_size) * 1_000_000_000
    except OSError:
        return 0


time.time_ns = lambda: _time_ns() + shift_ns()
time.time = lambda: _time() + shift_ns() / 1e9
"""
"""A module that Python loads at its start: the size of a file is by how many seconds the node's clock is ahead."""
ALL_RIGHTS = "topic readwrite #\ntopic read $SYS/#\nuser edge\ntopic readwrite #\ntopic read $SYS/#\n"
CONTROL_ONLY = "topic readwrite #\ntopic read $SYS/#\nuser edge\ntopic readwrite fanout/#\ntopic read $SYS/#\n"


@dataclass
class Plant:
    """The servers, and the client that watches."""

    mosquitto: Mosquitto
    node: LiveNode
    local: Inbox
    directory: Path

    def signal_mosquitto(self, number: signal.Signals) -> None:
        """Send a signal to the primary."""
        assert self.mosquitto.process is not None
        self.mosquitto.process.send_signal(number)

    def allow(self, rules: str) -> None:
        """Put other access rules in force at the primary."""
        (self.directory / "rules").write_text(rules)
        self.signal_mosquitto(signal.SIGHUP)

    def publish(self, values: dict[str, bytes]) -> None:
        """Publish retained values at the primary."""
        with publisher(self.mosquitto.port) as client:
            publish_all(client, list(values.items()))

    def is_seen(self) -> bool:
        """Tell whether the node is not ready, or has an alarm."""
        if not self.node.ready:
            return True
        status = self.node.document("/v1/status")
        return any(one["alarm"] for one in (*status["links"], status["log"]))

    def explained(self, topic: str, *further: str) -> str:
        """Return the first line of `fanout explain`."""
        answer = CliRunner().invoke(app, ["explain", topic, "--url", self.node.url, *further])
        return answer.stdout.splitlines()[0]

    def hidden(self) -> tuple[ExitCode, str]:
        """Return exit code and text of `fanout audit --list` for the second link."""
        answer = CliRunner().invoke(app, ["audit", "many", "--list", "--url", self.node.url])
        return ExitCode(answer.exit_code), answer.stdout


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    """Return a primary with retained values, a node that is ready, and a client that has read them all."""
    directory = tmp_path_factory.mktemp("planted")
    (directory / "rules").write_text(ALL_RIGHTS)
    (directory / "sitecustomize.py").write_text(CLOCK)
    settings = [f"acl_file {directory / 'rules'}", "persistence true", f"persistence_location {directory}/"]
    nodes = Nodes(directory)
    with (
        Mosquitto(directory, settings=[*settings, "autosave_interval 0"]) as mosquitto,
        pytest.MonkeyPatch.context() as patch,
    ):
        with publisher(mosquitto.port) as client:
            publish_all(client, [*VALUES.items(), *MANY.items()])
        patch.setenv("PYTHONPATH", os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("FANOUT_TEST_CLOCK", str(directory / "ahead"))
        node = nodes.secondary(
            link(mosquitto.port, selector("plant/#"), settings=f"{SETTINGS}audit_interval_s = 2.0\n"),
            link(mosquitto.port, selector("many/#"), name="many", settings=f"{SETTINGS}audit_interval_s = 5.0\n"),
            settings="queue_messages_max = 500\nwrite_buffer_high_bytes = 65536\nwrite_buffer_low_bytes = 16384\n",
        ).started()
        try:
            with subscriber(node.port, "plant/#", "many/#", qos=1) as local:
                local.wait(len(VALUES) + len(MANY))
                wait_until_blocking(
                    lambda: all(node.link_status(name)["sampling"]["samples_total"] for name in ("primary", "many")),
                    what="the first samples",
                )
                yield Plant(mosquitto, node, local, directory)
        finally:
            nodes.end()


@pytest.fixture
def plant(servers: Plant) -> Iterator[Plant]:
    """Return the servers; afterwards the node is ready with what the primary has, and its client lost nothing."""
    begun = len(servers.local.messages)
    servers.publish(VALUES)
    yield servers
    wait_until_blocking(
        lambda: not servers.is_seen() and held(servers.node.port) == held(servers.mosquitto.port),
        what=lambda: f"the node being as the primary ({servers.node.probe()[1]['reasons']})",
    )
    removed = {message.topic for message in servers.local.messages[begun:] if not message.payload}
    assert not removed, "values that the primary has disappeared at a local client"


def held(port: int) -> dict[str, bytes]:
    """Return the retained values of a server."""
    return read_retained(port, "plant/#") | read_retained(port, "many/#")


def test_a_node_stopped_beyond_the_life_of_its_session(plant: Plant) -> None:
    """It answers no probe as ready before it has compared everything with the primary, and serves what it had."""
    assert plant.node.process is not None
    expired = plant.mosquitto.log_text().count("Expiring client fanout-edge-1-primary")
    plant.node.process.send_signal(signal.SIGSTOP)
    try:
        wait_until_blocking(
            lambda: plant.mosquitto.log_text().count("Expiring client fanout-edge-1-primary") > expired,
            what="the end of the session",
        )
        plant.publish({"plant/a/0": b"meanwhile"})
    finally:
        plant.node.process.send_signal(signal.SIGCONT)
    assert not plant.node.ready or held(plant.node.port) == held(plant.mosquitto.port)
    plant.local.wait_for("plant/a/0", b"meanwhile")


def test_a_database_that_was_restored(plant: Plant) -> None:
    """The primary comes back with an older value: not ready without it, then the client gets that value."""
    store, copy = plant.directory / "mosquitto.db", plant.directory / "copy"
    store.unlink(missing_ok=True)
    plant.signal_mosquitto(signal.SIGUSR1)
    wait_until_blocking(store.exists, what="Mosquitto's store being written")
    shutil.copy(store, copy)
    plant.publish({"plant/b/1": b"newer"})
    plant.local.wait_for("plant/b/1", b"newer")
    before = len(plant.local.messages)
    plant.mosquitto.kill()
    wait_until_blocking(plant.is_seen, what="a primary that is gone being seen")
    assert plant.explained("plant/b/1").startswith("Link primary is ")
    shutil.copy(copy, store)
    plant.mosquitto.start()
    wait_until_blocking(
        lambda: ("plant/b/1", b"first") in [(one.topic, one.payload) for one in plant.local.messages[before:]],
        what="the restored value at the local client",
    )


def test_the_right_to_read_the_wildcard_is_lost(plant: Plant) -> None:
    """The session goes on and nothing comes: the next audit finds that, and removes nothing."""
    plant.allow(CONTROL_ONLY)
    try:
        wait_until_blocking(plant.is_seen, what="a lost right being seen")
        assert held(plant.node.port) == VALUES | MANY
        wait_until_blocking(lambda: plant.node.link_status()["unconfirmed"] == len(VALUES), what="the end of the audit")
        line = plant.explained("plant/a/0")
        assert line.startswith('The primary sends user edge neither "plant/a/0" nor any of 8 topics beside it: ')
        assert "the value here is kept, unconfirmed: the audit that ended 20" in line
    finally:
        plant.allow(ALL_RIGHTS)


def test_the_right_to_read_is_narrowed(plant: Plant) -> None:
    """Mosquitto goes on without the hidden half: a sample sees that, and the node keeps and lists the topics."""
    branches = range(0, BRANCHES, 2)
    hidden = [topic for topic in MANY if int(topic.split("/")[1]) in branches]
    denied = "".join(f"topic deny many/{branch:02d}/#\n" for branch in branches)
    head, _, tail = ALL_RIGHTS.partition("user edge\n")
    plant.allow(f"{head}user edge\n{denied}{tail}")
    try:
        wait_until_blocking(plant.is_seen, what=f"{len(hidden)} of {len(MANY)} hidden topics being seen")
        wait_until_blocking(
            lambda: plant.node.link_status("many")["unconfirmed"] == len(hidden), what="the end of the audit"
        )
        assert not plant.node.ready
        assert held(plant.node.port) == VALUES | MANY
        code, text = plant.hidden()
        assert code == ExitCode.NO
        assert f"{len(hidden)} topics did not come from the primary: deleted there, no longer readable by user " in text
        assert "many/42" in text
        line = plant.explained(hidden[0])
        assert line.startswith(f'The primary sends user edge no value of "{hidden[0]}": it was deleted without a ')
        assert ", and is kept, unconfirmed: the audit that ended 20" in line
    finally:
        plant.allow(ALL_RIGHTS)
    wait_until_blocking(lambda: plant.node.ready, what="the node being ready by itself")
    assert plant.hidden() == (ExitCode.OK, "many: no topic is unconfirmed\n")


@pytest.mark.parametrize(
    ("qos", "figure", "cause"),
    [(0, "conflated_total", "reads too slowly"), (1, "sessions_overflowed_total", "has no session at this node")],
)
def test_a_slow_reader(plant: Plant, qos: int, figure: str, cause: str) -> None:
    """It costs nobody else anything: at QoS 0 it gets the newest values later, at QoS 1 its session ends."""

    def counted() -> int:
        return int(plant.node.document("/v1/status")["server"][figure])

    before = counted()
    with slow_reader(plant.node.port, b"plant/#", qos=qos), publisher(plant.mosquitto.port) as client:
        turns = itertools.count()

        def is_seen() -> bool:
            publish_all(client, [(topic, b"%d" % next(turns) + b"x" * 4_000) for topic in VALUES])
            return counted() > before

        wait_until_blocking(is_seen, what="a slow reader being seen")
        publish_all(client, [("plant/a/0", b"behind it")])
        plant.local.wait_for("plant/a/0", b"behind it")
        assert plant.explained("plant/a/0", "--client", f"slow-{qos}").startswith(f'Client "slow-{qos}" {cause}')
        plant.node.wait_until_ready()


def test_a_clock_that_is_set_an_hour_ahead(plant: Plant) -> None:
    """A value with ten minutes left has expired by that clock; it stays, and an audit corrects its expiry."""
    ahead = plant.directory / "ahead"
    expiry = publish_properties(MessageExpiryInterval=600)
    with publisher(plant.mosquitto.port) as client:
        publish_all(client, [("plant/a/0", b"ten minutes")], properties=expiry)
    plant.local.wait_for("plant/a/0", b"ten minutes")
    audits = plant.node.link_status()["audits_total"]
    ahead.touch()
    os.truncate(ahead, int(HOUR_S))
    try:
        wait_until_blocking(
            lambda: not plant.node.ready or plant.node.link_status()["audits_total"] > audits,
            what="the clock being seen",
        )
        wait_until_blocking(
            lambda: held(plant.node.port).get("plant/a/0") == b"ten minutes", what="the value for a new client"
        )
    finally:
        ahead.unlink()
