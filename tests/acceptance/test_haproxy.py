"""A pool behind a real HAProxy: rolling restarts under load, and what clients that come through it read."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.cli.processes import run_fanout
from tests.support.clients import subscriber
from tests.support.haproxy import HAProxy, find_haproxy
from tests.support.mosquitto import Mosquitto, find_mosquitto, free_port, load_retained, publish_all, publisher
from tests.support.nodes import QUICK, LiveNode, Nodes, link, selector
from tests.support.raw_reader import RawReader
from tests.support.waiting import wait_until_blocking

pytestmark = [
    pytest.mark.mosquitto,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_haproxy() is None, reason="HAProxy is not installed; scripts/setup installs it"),
]

EXAMPLE = Path(__file__).parents[2] / "configs" / "haproxy.cfg"
CHECK_S = 0.5
PATIENT_CHECK_S = 2.0
"""Where a check without an answer counts: a busy machine must not leave two in a row without one."""
PAUSE_S = 0.1
"""Between two steps of each thread that makes load."""
TOPICS = [f"plant/line-{number // 100}/sensor-{number}" for number in range(200)]


class Load:
    """Threads that go on until the end of a `with`, and whose faults end the test."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.faults: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def add(self, work: Any, *arguments: Any) -> None:
        """Call `work` again and again, with a pause in between."""

        def run() -> None:
            try:
                while not self.ended.wait(PAUSE_S):
                    work(*arguments)
            except BaseException as error:
                self.faults.append(error)

        thread = threading.Thread(target=run)
        self._threads.append(thread)
        thread.start()

    def end(self) -> None:
        """Stop all and raise what went wrong."""
        self.ended.set()
        for thread in self._threads:
            thread.join(60)
        if self.faults:
            raise self.faults[0]


class Readers:
    """Clients that come through HAProxy, read everything once, and go."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.complete = 0
        """Full sets read."""
        self.cut = 0
        """Connections that were refused or lost on the way."""

    def read(self, name: str) -> None:
        """Read the retained set as one client; it must be there in full, unless the connection is lost before."""
        try:
            with RawReader(self._port, client_id=f"{name}-{self.complete}-{self.cut}") as reader:
                reader.subscribe("plant/#")
        except (OSError, AssertionError):  # RawReader asserts that the connection lives
            self.cut += 1
            return
        assert len(reader.values) == len(TOPICS), f"{len(reader.values)} of {len(TOPICS)} topics"
        self.complete += 1


class Resident:
    """A client that stays, subscribes at QoS 1, and comes back through HAProxy when it is told to leave."""

    def __init__(self, port: int, name: str) -> None:
        self.newest: dict[str, bytes] = {}
        self.connections = 0
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5)
        self.client.reconnect_delay_set(1, 1)
        self.client.on_connect = self._connected
        self.client.on_message = self._receive
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()

    def _connected(self, client: paho.Client, _data: Any, _flags: Any, code: Any, _properties: Any) -> None:
        if not code.is_failure:
            self.connections += 1
            client.subscribe("plant/#", 1)

    def _receive(self, _client: paho.Client, _data: Any, message: paho.MQTTMessage) -> None:
        self.newest[message.topic] = bytes(message.payload)

    def end(self) -> None:
        """Leave."""
        self.client.disconnect()
        self.client.loop_stop()


class Writer:
    """A client that publishes at QoS 1 through HAProxy, and remembers which messages were acknowledged."""

    def __init__(self, client: paho.Client) -> None:
        self._client = client
        self._sent: dict[int, bytes] = {}
        self._answered: set[int] = set()
        client.on_publish = self._note

    def write(self) -> None:
        """Publish the next message, unless too many wait for an answer."""
        if len(self._sent) - len(self._answered) < 100:
            payload = b"%d" % len(self._sent)
            self._sent[self._client.publish("set/value", payload, 1).mid] = payload

    @property
    def acknowledged(self) -> set[bytes]:
        """The payloads whose PUBACK says that the primary has them."""
        return {self._sent[packet_id] for packet_id in list(self._answered)}

    def _note(self, _client: Any, _data: Any, packet_id: int, code: Any, _properties: Any) -> None:
        if not code.is_failure:
            self._answered.add(packet_id)


@contextmanager
def persistent_mosquitto(directory: Path) -> Iterator[Mosquitto]:
    """Give a primary that keeps retained values and sessions over a restart."""
    if find_mosquitto() is None:
        pytest.skip("Mosquitto is not installed; scripts/test installs it")
    kept = directory / "kept"
    kept.mkdir()
    with Mosquitto(directory, settings=["persistence true", f"persistence_location {kept}/"]) as server:
        yield server


def restart(node: LiveNode, haproxy: HAProxy, *, served: Callable[[], int]) -> None:
    """Drain and restart a node, and check at each step whom HAProxy sends to it; `served` counts what others serve."""
    assert run_fanout("drain", node.url).returncode == 0
    wait_until_blocking(lambda: not haproxy.is_up(node.name), what="HAProxy noticing the drain")
    sent, before = haproxy.clients_sent(node.name), served()
    wait_until_blocking(lambda: served() >= before + 10, what="the others serving")
    assert node.stop(signal.SIGINT) == 0  # the rest of the hour is not waited for
    wait_until_blocking(lambda: haproxy.status(node.name).startswith("DOWN"), what="HAProxy noticing the end")
    assert haproxy.clients_sent(node.name) == sent, "a client was sent to a node that drained"
    node.start()
    while (now := haproxy.clients_sent(node.name)) == sent and not node.ready:
        time.sleep(0.01)
    assert now == sent or node.ready, "a client was sent to a node that is not ready"
    wait_until_blocking(lambda: haproxy.is_up(node.name), what="HAProxy taking it back")


def test_rolling_restart_behind_haproxy(tmp_path: Path, nodes: Nodes) -> None:
    """Secondaries one after another, then the primary: nobody reads an incomplete set, nothing acknowledged is lost.

    Connections end when their node ends or loses its primary; whoever is given a node reads everything there. The
    primary is restarted a second time, with a backup that has no sessions, faster than HAProxy looks.
    """
    with persistent_mosquitto(tmp_path) as primary:
        load_retained(primary.port, ((topic, b"0") for topic in TOPICS))
        primary.stop()
        store = tmp_path / "kept" / "mosquitto.db"
        shutil.copy(store, tmp_path / "backup.db")
        primary.start()
        stale = QUICK + 'on_session_loss = "serve_stale"\n'
        pool = []
        for number in (1, 2, 3):
            agent_port = free_port()
            links = link(primary.port, selector("plant/#"), selector("set/#", writes="forward"), settings=stale)
            http = f'agent_listen = "127.0.0.1:{agent_port}"\n'
            pool.append((nodes.secondary(links, name=f"edge-{number}", drain_s=3600, http=http), agent_port))
        for node, _ in pool:
            node.start()
        for node, _ in pool:
            node.wait_until_ready()  # HAProxy takes every server for up until its first check
        with (
            HAProxy(tmp_path, EXAMPLE.read_text(), pool, check_s=CHECK_S) as haproxy,
            subscriber(primary.port, "set/#", qos=1) as at_primary,
            publisher(primary.port) as source,
        ):
            source.reconnect_delay_set(1, 1)
            load, readers = Load(), Readers(haproxy.port)
            residents = [Resident(haproxy.port, f"resident-{number}") for number in range(6)]
            counter = iter(range(1, 1_000_000_000))

            def change_a_value() -> None:
                count = next(counter)
                source.publish(TOPICS[count % len(TOPICS)], b"%d" % count, 1, True)

            try:
                for number in range(3):
                    load.add(readers.read, f"reader-{number}")
                load.add(change_a_value)
                with publisher(haproxy.port, client_id="writer") as client:
                    client.reconnect_delay_set(1, 1)
                    writer = Writer(client)
                    writing = Load()
                    writing.add(writer.write)
                    try:
                        for node, _ in pool:
                            restart(node, haproxy, served=lambda: readers.complete + 100 * len(load.faults))
                            assert not load.faults, load.faults
                            acknowledged = len(writer.acknowledged)
                            wait_until_blocking(
                                lambda least=acknowledged + 5: len(writer.acknowledged) >= least,  # type: ignore[misc]
                                what="writes being acknowledged",
                            )
                    finally:
                        writing.end()
                wait_until_blocking(
                    lambda: writer.acknowledged <= set(at_primary.payloads("set/value")),
                    what="what was acknowledged",
                )
                # Each node was restarted: all had to move.
                wait_until_blocking(lambda: min(one.connections for one in residents) >= 2, what="the residents")
                complete = readers.complete

                primary.stop()
                wait_until_blocking(
                    lambda: not any(haproxy.is_up(node.name) for node, _ in pool),
                    what="an empty pool",
                )
                primary.start()
                wait_until_blocking(
                    lambda: all(haproxy.is_up(node.name) for node, _ in pool),
                    what="the pool again",
                )
                wait_until_blocking(lambda: readers.complete > complete + 20 or load.faults, what="readers")

                epochs = [node.link_status()["epochs_total"] for node, _ in pool]
                primary.stop()
                shutil.copy(tmp_path / "backup.db", store)
                primary.start()
                wait_until_blocking(
                    lambda: all(
                        node.link_status()["epochs_total"] > before and haproxy.is_up(node.name)
                        for (node, _), before in zip(pool, epochs, strict=True)
                    ),
                    what="the pool with new sessions",
                )
                again = readers.complete
                wait_until_blocking(lambda: readers.complete > again + 20 or load.faults, what="readers")
            finally:
                load.end()
                final = dict.fromkeys(TOPICS, b"final")
                # Behind what it queued while the primary was away.
                wait_until_blocking(source.is_connected, what="the publisher coming back")
                publish_all(source, final.items())
                wait_until_blocking(
                    lambda: all(one.newest == final for one in residents), what="the residents' last values"
                )
                for one in residents:
                    one.end()
                assert [node.stop(signal.SIGINT) for node, _ in pool] == [0, 0, 0]


def has_weight(haproxy: HAProxy, node: LiveNode, weight: int) -> bool:
    """Return whether HAProxy gives a node this weight."""
    return haproxy.weight(node.name) == weight


def test_haproxy_follows_the_weight_and_the_hold_of_a_node(mosquitto: Mosquitto, nodes: Nodes, tmp_path: Path) -> None:
    """The weight is the share of free connections; a node that is held gets no clients, and keeps those that it has."""
    agent_port = free_port()
    node = nodes.secondary(
        link(mosquitto.port, selector("plant/#"), settings=QUICK),
        settings="connections_max = 4\n",
        http=f'agent_listen = "127.0.0.1:{agent_port}"\n',
    ).started()
    with HAProxy(tmp_path, EXAMPLE.read_text(), [(node, agent_port)], check_s=PATIENT_CHECK_S / 2) as haproxy:
        wait_until_blocking(partial(has_weight, haproxy, node, 100), what="an answer of the agent")
        before = haproxy.clients_sent(node.name)
        with subscriber(haproxy.port, "plant/#") as client:
            wait_until_blocking(partial(has_weight, haproxy, node, 75), what="weight 75")
            with ExitStack() as clients:
                for taken in range(3):
                    clients.enter_context(publisher(haproxy.port, client_id=f"client-{taken}"))
                wait_until_blocking(partial(has_weight, haproxy, node, 0), what="no weight")
            wait_until_blocking(partial(has_weight, haproxy, node, 75), what="weight 75 again")
            assert run_fanout("drain", "--hold", node.url).returncode == 0
            wait_until_blocking(lambda: is_out(haproxy, node), what="the node out of the pool")
            load_retained(mosquitto.port, [("plant/while-held", b"1")])
            client.wait_for("plant/while-held")
            assert run_fanout("undrain", node.url).returncode == 0
            wait_until_blocking(partial(haproxy.is_up, node.name), what="the node back in the pool")
            load_retained(mosquitto.port, [("plant/afterwards", b"1")])
            client.wait_for("plant/afterwards")
            assert haproxy.clients_sent(node.name) == before + 4


def is_out(haproxy: HAProxy, node: LiveNode) -> bool:
    """Return whether HAProxy sends no new clients to a node, and leaves it those that it has."""
    return haproxy.status(node.name).partition(" ")[0] in ("NOLB", "DRAIN")


def test_clients_stay_and_new_ones_read_while_the_primary_is_frozen(
    mosquitto: Mosquitto, nodes: Nodes, tmp_path: Path
) -> None:
    """All nodes leave the pool together, and are the last resort; clients see how old the values are."""
    load_retained(mosquitto.port, [(topic, b"before") for topic in TOPICS])
    settings = QUICK + "heartbeat_s = 1.0\n" + 'on_stall = "serve_stale"\n'
    pool = []
    for number in (1, 2):
        agent_port = free_port()
        node = nodes.secondary(
            link(mosquitto.port, selector("plant/#"), settings=settings),
            name=f"edge-{number}",
            settings="sys_interval_s = 0.2\n",
            http=f'agent_listen = "127.0.0.1:{agent_port}"\n',
        )
        pool.append((node, agent_port))
        node.start()
    for node, _ in pool:
        node.wait_until_ready()
    assert mosquitto.process is not None
    with HAProxy(tmp_path, EXAMPLE.read_text(), pool, check_s=PATIENT_CHECK_S) as haproxy:
        residents = [Resident(haproxy.port, f"resident-{number}") for number in range(4)]
        try:
            wait_until_blocking(
                lambda: all(len(one.newest) == len(TOPICS) for one in residents), what="the residents' values"
            )
            mosquitto.process.send_signal(signal.SIGSTOP)
            try:
                wait_until_blocking(
                    lambda: all(is_out(haproxy, node) for node, _ in pool), what="the pool leaving together"
                )
                for number in range(4):
                    with RawReader(haproxy.port, client_id=f"new-{number}") as reader:
                        reader.subscribe("plant/#")
                        assert len(reader.values) == len(TOPICS)
                sent = haproxy.servers(backend="stale")
                assert sum(int(one["stot"]) for one in sent.values()) == 4
                with subscriber(haproxy.port, "$SYS/fanout/primary/stale_s") as watcher:
                    ages = partial(watcher.payloads, "$SYS/fanout/primary/stale_s")
                    wait_until_blocking(lambda: len(set(ages())) >= 3, what="values growing older")
                    assert sorted(map(int, ages())) == [int(age) for age in ages()]
                answer = pool[0][0].get("/readyz?stale=ok")
                assert (answer.status_code, answer.json()["ready"]) == (200, False)
                assert int(answer.headers["Fanout-Stale-Seconds"]) >= 1
                assert pool[0][0].get("/readyz").status_code == 503
            finally:
                mosquitto.process.send_signal(signal.SIGCONT)
            wait_until_blocking(lambda: all(haproxy.is_up(node.name) for node, _ in pool), what="the pool coming back")
            with publisher(mosquitto.port) as source:
                publish_all(source, [(TOPICS[0], b"after")])
            wait_until_blocking(
                lambda: all(one.newest[TOPICS[0]] == b"after" for one in residents), what="the residents' update"
            )
            assert [one.connections for one in residents] == [1, 1, 1, 1]
        finally:
            for one in residents:
                one.end()


def test_a_node_that_is_slow_once_keeps_its_clients(mosquitto: Mosquitto, nodes: Nodes, tmp_path: Path) -> None:
    """One check without an answer moves nobody; the second one in a row does."""
    load_retained(mosquitto.port, [(topic, b"1") for topic in TOPICS])
    agent_port = free_port()
    node = nodes.secondary(
        link(mosquitto.port, selector("plant/#"), settings=QUICK), http=f'agent_listen = "127.0.0.1:{agent_port}"\n'
    )
    node.start()
    node.wait_until_ready()
    assert node.process is not None

    def figure(name: str) -> int:
        return int(haproxy.servers()[node.name][name])

    with HAProxy(tmp_path, EXAMPLE.read_text(), [(node, agent_port)], check_s=PATIENT_CHECK_S) as haproxy:
        resident = Resident(haproxy.port, "resident")
        try:
            wait_until_blocking(lambda: len(resident.newest) == len(TOPICS), what="the resident's values")
            failed = figure("chkfail")
            node.process.send_signal(signal.SIGSTOP)
            try:
                wait_until_blocking(lambda: figure("chkfail") > failed, what="a check without an answer")
            finally:
                node.process.send_signal(signal.SIGCONT)
            wait_until_blocking(lambda: haproxy.status(node.name) == "UP", what="a check with an answer")
            assert figure("chkdown") == 0
            with publisher(mosquitto.port) as source:
                publish_all(source, [(TOPICS[0], b"2")])
            wait_until_blocking(lambda: resident.newest[TOPICS[0]] == b"2", what="an update at the resident")
            assert resident.connections == 1
            node.process.send_signal(signal.SIGSTOP)
            try:
                wait_until_blocking(lambda: figure("chkdown") == 1, what="a node that says nothing being left")
            finally:
                node.process.send_signal(signal.SIGCONT)
            wait_until_blocking(lambda: resident.connections >= 2, what="the resident coming back")
        finally:
            resident.end()
