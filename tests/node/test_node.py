"""The order in which the parts of a node start and stop, what a failing part leaves behind, and signals."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, Literal, cast

import httpx
import pytest
import pytest_asyncio
import structlog
from structlog.testing import capture_logs
from structlog.typing import FilteringBoundLogger

from fanout.access.passwords import update_password_file
from fanout.api.http_server import HttpServer
from fanout.chain.readiness_notice import READINESS_TOPIC
from fanout.cli.output.exit_codes import ExitCode
from fanout.config import (
    AccessConfig,
    Address,
    HttpConfig,
    IdentityConfig,
    LinkConfig,
    LogConfig,
    NodeConfig,
    RetainedConfig,
    Role,
    ServerConfig,
    load_config,
)
from fanout.errors import ConfigError, ListenError, LogError, StoreError
from fanout.link.missing_topics import MissingTopics
from fanout.link.model.counters import LinkCounters
from fanout.link.model.states import LinkState
from fanout.link.model.status import LinkSink, LinkStatus
from fanout.link.session.teardown import TOPICS_MAX
from fanout.mqtt.packets import Ack, PacketType, Publish
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.node import housekeeping
from fanout.node import node as node_module
from fanout.node.drain import NodePhase
from fanout.node.node import Node
from fanout.node.process import run_node
from fanout.replica.store import Replica
from fanout.replica.update import Changes, Phase, Update, content_digest
from fanout.replog.write.writer import LogWriter
from fanout.runtime import service_manager
from fanout.selection import Selector
from fanout.server.client.server import Server
from fanout.server.client.slow_clients import SlowClients, SlowNews
from fanout.storage.direct import DirectStore
from fanout.storage.file import RetainedFile
from tests.access.pieces import cheap_hash
from tests.node.test_documents import LIVE
from tests.support.mosquitto import free_port
from tests.support.nodes import read_events, read_updates
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

NOW_NS = 1_700_000_000_000_000_000


class LinkStandIn:
    """A link without a network: it tells when it runs and when it ends, and fails when told to."""

    def __init__(
        self, config: LinkConfig, *, replica: Replica, sink: LinkSink, logger: FilteringBoundLogger, **_: object
    ) -> None:
        self.config = config
        self.logger = logger
        self.replica = replica
        self.sink = sink
        self.fault: Exception | None = None
        self.runs = asyncio.Event()
        self.retried = asyncio.Event()
        self.ended = False
        self.awaited = False
        self.answered = asyncio.Event()
        self.answered.set()
        self._failed = asyncio.Event()

    async def run(self) -> None:
        self.runs.set()
        try:
            await self._failed.wait()
        finally:
            self.ended = True
        raise self.fault or AssertionError

    def fail(self, fault: Exception) -> None:
        self.fault = fault
        self._failed.set()

    def retry(self) -> None:
        self.retried.set()

    control = SimpleNamespace(is_open=False, may_be_open=False, returned_sent_s=None)
    cuts = SimpleNamespace(own=MappingProxyType({}), newest=lambda node: None, heard_s=lambda node: None)
    may_send_marker = may_cut = False

    def cut(self, nodes: Iterable[str]) -> None:
        """Listen to nobody."""

    async def wait_forwarded(self) -> None:
        self.awaited = True
        await self.answered.wait()

    def forward(self, row: object, *, prefix: bytes) -> object:
        raise AssertionError

    def status(self) -> LinkStatus:
        return dataclasses.replace(LIVE, name=self.config.name, epoch=1, topics=len(self.replica), selectors=())


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the stand-in in the place of every link."""
    monkeypatch.setattr("fanout.link.link.Link", LinkStandIn)


@pytest.fixture(autouse=True)
def handlers_restored() -> Iterator[None]:
    """Put the signal handlers of the test run back after a test that runs a node."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def taken_port() -> Iterator[int]:
    """Give a port on which something else listens."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


other_listener = pytest.fixture(taken_port)


def config(
    directory: Path, *, mqtt_port: int = 0, http_port: int = 0, links: int = 1, drain_s: float = 0.0
) -> NodeConfig:
    """Return the configuration of a node with every part."""
    return NodeConfig(
        node=IdentityConfig(id="edge-1", drain_s=drain_s),
        server=ServerConfig(listen=(Address("mqtt", "127.0.0.1", mqtt_port),)),
        http=HttpConfig(listen=Address("http", "127.0.0.1", http_port)),
        log=LogConfig(directory=directory / "log"),
        links=tuple(
            LinkConfig(
                name=f"plant-{number}",
                primaries=(Address("mqtt", "127.0.0.1", 1883),),
                selectors=(Selector(f"plant-{number}/#", prefix="hq/"),),
            )
            for number in range(1, links + 1)
        ),
    )


def node_of(settings: NodeConfig, *, role: Role = "secondary") -> Node:
    """Return a node that was not started."""
    logger: FilteringBoundLogger = structlog.get_logger("test")
    return Node(settings, role=role, logger=logger)


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """Return a started secondary with one link, stopped after the test."""
    node = node_of(config(tmp_path))
    await node.start()
    yield node
    if node.drain.phase is not NodePhase.STOPPING:
        await node.stop()


def link_of(node: Node, index: int = 0) -> LinkStandIn:
    """Return the stand-in of a link."""
    return cast(LinkStandIn, node.links[index])


def port_of(node: Node) -> int:
    """Return the port of the MQTT listener."""
    assert node.server is not None
    return int(node.server.addresses[0].rpartition(":")[2])


def http_port_of(node: Node) -> int:
    """Return the port of the HTTP interface."""
    assert node.http is not None
    return node.http.port


def is_free(port: int) -> bool:
    """Return whether nothing listens on a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def value(topic: bytes, payload: bytes = b"v") -> Update:
    """Return a retained value as a link brings it, its topic with the prefix."""
    digest = content_digest(topic.removeprefix(b"hq/"), payload)
    return (topic, payload, 1, True, b"", NOW_NS, 0, digest, None)


def applied(node: Node, *updates: Update) -> Changes:
    """Return what a batch did to the replica of a node's link."""
    return link_of(node).replica.apply(list(updates), phase=Phase.LIVE)


class Recorder:
    """Notes the calls that start and stop the parts of a node, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.stopping: dict[str, bool] = {}
        self.node: Node
        for owner, name, call in (
            (LogWriter, "open", "log opens"),
            (LogWriter, "close", "log closes"),
            (Server, "start", "server starts"),
            (Server, "stop", "server stops"),
            (HttpServer, "start", "http starts"),
            (HttpServer, "stop", "http stops"),
        ):
            monkeypatch.setattr(owner, name, self._noted(getattr(owner, name), call))
        event = LogWriter.event

        def log_event(writer: object, kind: str, **columns: Any) -> None:
            if kind in ("start", "stop"):
                self.note(f"log has {kind}")
            event(writer, kind, **columns)  # type: ignore[arg-type]  # the original method

        monkeypatch.setattr(LogWriter, "event", log_event)
        run = LinkStandIn.run

        async def link_run(link: LinkStandIn) -> None:
            self.note("link runs")
            try:
                await run(link)
            finally:
                self.note("link ends")

        monkeypatch.setattr(LinkStandIn, "run", link_run)

    def note(self, call: str) -> None:
        """Note a call, and whether the node called itself stopping."""
        self.calls.append(call)
        self.stopping[call] = self.node.drain.phase is NodePhase.STOPPING

    def _noted(self, method: Any, call: str) -> Any:
        def noted(*arguments: Any, **keywords: Any) -> Any:
            self.note(call)
            return method(*arguments, **keywords)

        return noted


# Start and stop.


async def test_parts_start_and_stop_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP, log, clients, links; and back: not ready first, then clients, links, HTTP, the log last."""
    recorder = Recorder(monkeypatch)
    recorder.node = node = node_of(config(tmp_path))
    await node.start()
    await link_of(node).runs.wait()
    assert recorder.calls == ["http starts", "log opens", "log has start", "server starts", "link runs"]
    recorder.calls.clear()
    await node.stop()
    assert recorder.calls == ["server stops", "link ends", "http stops", "log has stop", "log closes"]
    assert recorder.stopping["server stops"]


async def test_stopped_node_leaves_nothing(node: Node, tmp_path: Path) -> None:
    """No task, no port, no open segment; the log begins with "start" and ends with "stop"."""
    await link_of(node).runs.wait()
    ports = (port_of(node), http_port_of(node))
    before = asyncio.all_tasks()
    await node.stop()
    assert {task.get_name() for task in asyncio.all_tasks()} < {task.get_name() for task in before}
    assert all(is_free(port) for port in ports)
    assert list(tmp_path.glob("log/open/**/*.seg")) == []
    events = [event["event"] for event in read_events(tmp_path / "log")]
    assert (events[0], events[-1]) == ("start", "stop")


async def test_sessions_are_left_out_of_garbage_collections(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they grow by thousands: a full collection of 50,000 would stop the node for half a second."""
    assert node.server is not None
    try:
        for sessions in (2_000, 4_000):
            gc.unfreeze()
            monkeypatch.setattr(type(node.server), "session_count", sessions)
            await wait_until(gc.get_freeze_count)
    finally:
        gc.unfreeze()


async def test_clients_are_told_why(node: Node) -> None:
    """An MQTT 5 client gets Reason Code 0x8B, Server shutting down."""
    async with await RawClient.connect(port_of(node), "c") as client:
        await node.stop()
        await client.expect_end(0x8B)


async def test_readiness_ends_first(node: Node) -> None:
    """A node that stops is not ready, although its links are live."""
    assert node.documents.readiness().ready
    await node.stop()
    assert node.documents.readiness().reasons[0] == "the node is stopping"


async def test_start_event_tells_what_is_replicated(tmp_path: Path) -> None:
    """Reports learn links, primaries, selectors, and what these leave out, from the log itself."""
    settings = config(tmp_path, links=2)
    plain, other = settings.links
    narrow = dataclasses.replace(other.selectors[0], max_payload=9, retained_only=True)
    node = node_of(
        dataclasses.replace(settings, links=(plain, dataclasses.replace(other, selectors=(narrow,), max_age_s=0.5)))
    )
    await node.start()
    await node.stop()
    detail = json.loads(read_events(tmp_path / "log")[0]["detail"])
    assert detail["format"] == 1
    assert [link["name"] for link in detail["links"]] == ["plant-1", "plant-2"]
    assert detail["links"][0] == {
        "name": "plant-1",
        "primary": ["mqtt://127.0.0.1:1883"],
        "control_topic": "fanout/control",
        "selectors": [{"filter": "plant-1/#", "exclude": [], "qos": 1, "prefix": "hq/"}],
    }
    limited = detail["links"][1]
    assert (limited["max_age_s"], "max_age_qos" in limited) == (0.5, False)
    assert limited["selectors"][0].items() >= {"max_payload": 9, "retained_only": True}.items()


@pytest.mark.parametrize("taken", ["mqtt_port", "http_port"])
async def test_failing_listener_cleans_up(tmp_path: Path, other_listener: int, taken: str) -> None:
    """When an address is taken, the other listener is closed, the log sealed and given up, no link runs."""
    free = "http_port" if taken == "mqtt_port" else "mqtt_port"
    port = free_port()
    settings = config(tmp_path, **{taken: other_listener, free: port})
    node = node_of(settings)
    with pytest.raises(ListenError, match=str(other_listener)):
        await node.start()
    assert not link_of(node).runs.is_set()
    assert is_free(port)
    logged = [event["event"] for event in read_events(tmp_path / "log")]
    assert logged == ([] if taken == "http_port" else ["start", "stop"])
    again = node_of(config(tmp_path))
    await again.start()  # the log's lock is free, and the last run counts as ended in good order
    await again.stop()
    assert "gap" not in {event["event"] for event in read_events(tmp_path / "log")}


async def test_log_in_use_prevents_the_start(node: Node, tmp_path: Path) -> None:
    """Two nodes must not write the same log; the second one opens no listener."""
    second = node_of(config(tmp_path))
    with pytest.raises(LogError):
        await second.start()
    assert second.server is not None
    assert second.server.addresses == []
    assert is_free(http_port_of(second))


@pytest.mark.parametrize("storage", ["disc", "disc_only"])
async def test_a_node_that_loads_is_alive_and_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: Literal["disc", "disc_only"]
) -> None:
    """Loading millions of values takes a minute: `/livez` answers meanwhile, and `/readyz` says what is done."""
    settings = dataclasses.replace(
        config(tmp_path, links=0),
        node=IdentityConfig(id="hub", drain_s=0.0, data_directory=tmp_path),
        retained=RetainedConfig(storage=storage),
    )
    go_on = threading.Event()
    load = Node._load_storage

    def slow(node: Node) -> None:
        assert go_on.wait(60)
        load(node)

    monkeypatch.setattr(Node, "_load_storage", slow)
    node = node_of(settings, role="primary")
    starting = asyncio.create_task(node.start())
    await wait_until(lambda: node.http is not None and node.http.port)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{http_port_of(node)}", trust_env=False, timeout=30
    ) as http:
        assert (await http.get("/livez")).status_code == 200
        answer = await http.get("/readyz")
        assert (answer.status_code, answer.json()["reasons"]) == (
            503,
            ["the node is loading retained values from disk"],
        )
        for path in ("/v1/status", "/v1/lag", "/metrics"):
            assert (await http.get(path)).status_code == 200
        assert not starting.done()
        go_on.set()
        await starting
        assert (await http.get("/readyz")).status_code == 200
    await node.stop()


async def test_a_file_that_cannot_be_loaded_prevents_the_start(tmp_path: Path) -> None:
    """The HTTP interface, which was first, is closed again."""
    (tmp_path / "retained-edge-1.sqlite").mkdir()
    settings = dataclasses.replace(
        config(tmp_path),
        node=IdentityConfig(id="edge-1", drain_s=0.0, data_directory=tmp_path),
        retained=RetainedConfig(storage="disc"),
    )
    node = node_of(settings)
    with pytest.raises(StoreError):
        await node.start()
    assert is_free(http_port_of(node))


@pytest.mark.parametrize("storage", ["disc", "disc_only"])
async def test_log_in_use_leaves_the_retained_values_to_the_next_start(
    node: Node, tmp_path: Path, storage: Literal["disc", "disc_only"]
) -> None:
    """Their file and its lock are given up with the start that failed."""
    identity = IdentityConfig(id="edge-1", data_directory=tmp_path / "data")
    settings = dataclasses.replace(config(tmp_path), node=identity, retained=RetainedConfig(storage=storage))
    with pytest.raises(LogError):
        await node_of(settings).start()
    again = node_of(dataclasses.replace(settings, log=LogConfig(directory=tmp_path / "other")))
    await again.start()
    await again.stop()


async def test_log_that_cannot_be_sealed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node ends all the same: the next start seals what is left."""
    node = node_of(config(tmp_path))
    await node.start()
    close = LogWriter.close
    monkeypatch.setattr(LogWriter, "close", lambda log, **deadline: close(log, **deadline) and False)
    with capture_logs() as lines:
        await node.stop()
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == ["replication log not sealed in time"]


async def test_a_log_that_cannot_be_written_is_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once when it begins, with the reason, and once when it is over."""
    alarm = ["the replication log cannot be written: no space"]
    stats = LogWriter.stats
    monkeypatch.setattr(LogWriter, "stats", lambda log: dataclasses.replace(stats(log), alarm=alarm[0]))
    monkeypatch.setattr(housekeeping, "INTERVAL_S", 0.01)
    node = node_of(config(tmp_path))
    await node.start()

    def texts() -> list[str]:
        return [one.text for one in node.browser.events(before=None, limit=100).events if one.kind == "log_alarm"]

    await wait_until(lambda: texts() == ["The replication log cannot be written: no space"])
    alarm[0] = ""
    await wait_until(lambda: texts()[0] == "The replication log is written again")
    await node.stop()
    assert len(texts()) == 2


async def test_slow_clients_are_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One event for all that became slow in an interval, and one for all that are it no more."""
    news = [(SlowNews(5, ["a", "b\u202e", "c"]), SlowNews(1, ["a"]))]
    monkeypatch.setattr(SlowClients, "news", lambda _: news.pop() if news else (SlowNews(), SlowNews()))
    monkeypatch.setattr(housekeeping, "INTERVAL_S", 0.01)
    node = node_of(config(tmp_path))
    await node.start()

    def texts() -> list[str]:
        return [one.text for one in node.browser.events(before=None, limit=100).events if "clients" in one.kind]

    await wait_until(lambda: len(texts()) == 2)
    await node.stop()
    assert texts() == [
        "Client a reads slowly no more: caught up, or gone",
        r"5 clients (a, b\u202e, c and 2 more) read slowly: messages wait, at QoS 0 the newest of each topic; "
        "see Clients",
    ]


# Roles.


async def test_primary_has_no_links(tmp_path: Path) -> None:
    """It serves its own namespace, is ready at once, and stamps what clients publish."""
    node = node_of(config(tmp_path, links=0), role="primary")
    await node.start()
    assert node.documents.readiness().ready
    async with (
        await RawClient.connect(port_of(node), "pub") as publisher,
        await RawClient.connect(port_of(node), "sub") as subscriber,
    ):
        await subscriber.subscribe(b"#")
        publisher.publish(b"t", b"v", retain=True)
        assert (await subscriber.receive()).payload == b"v"  # type: ignore[union-attr]  # a PUBLISH
    await node.stop()
    (row,) = read_updates(tmp_path / "log")
    assert (row["link"], row["topic"], row["stamp_primary"], row["sequence"]) == ("", "t", "edge-1", 1)
    assert row["stamp_epoch"] == row["node_epoch"] == row["link_epoch"] == node.epoch


async def test_listener_that_admits_nobody_is_told_at_the_start(tmp_path: Path) -> None:
    """A warning names the listener's key, and those that would let somebody in."""
    settings = dataclasses.replace(config(tmp_path, links=0), access=AccessConfig(anonymous="never"))
    node = node_of(settings, role="primary")
    with capture_logs() as lines:
        await node.start()
        await node.stop()
    (line,) = [line for line in lines if line["event"] == "configuration needs a look"]
    assert (line["log_level"], line["key"]) == ("warning", "server.listen[0]")
    assert "access.password_file" in line["hint"]


async def test_tap_serves_nobody(tmp_path: Path) -> None:
    """Links and log only; a batch is logged, and there is nobody to dispatch to."""
    node = node_of(config(tmp_path), role="tap")
    await node.start()
    assert node.server is None
    changes = applied(node, value(b"hq/plant-1/a"))
    node.record("plant-1", changes, epoch=5)
    node.dispatch("plant", changes)
    await node.stop()
    assert [row["topic"] for row in read_updates(tmp_path / "log")] == ["plant-1/a"]


async def test_node_may_be_without_log_and_http(tmp_path: Path) -> None:
    """Sections that are absent are off."""
    settings = NodeConfig(
        node=IdentityConfig(id="edge-1"), server=config(tmp_path).server, links=config(tmp_path).links
    )
    node = node_of(settings)
    await node.start()
    assert (node.log, node.http) == (None, None)
    changes = applied(node, value(b"hq/plant-1/a"))
    node.record("plant-1", changes, epoch=5)
    node.event("plant-1", "heartbeat", epoch=5)
    await node.stop()
    assert list(tmp_path.iterdir()) == []


# What links bring.


async def test_batch_of_a_link_reaches_log_and_clients(node: Node, tmp_path: Path) -> None:
    """A link's batch is logged with its epoch and its topic at the primary, and delivered under the local one."""
    async with await RawClient.connect(port_of(node), "c") as client:
        await client.subscribe(b"hq/#", qos=1)
        changes = applied(node, value(b"hq/plant-1/a"), value(b"hq/plant-1/b"))
        node.record("plant-1", changes, epoch=5)
        node.dispatch("plant", changes)
        for topic in (b"hq/plant-1/a", b"hq/plant-1/b"):
            assert (await client.receive()).topic == topic  # type: ignore[union-attr]  # a PUBLISH
    await node.stop()
    rows = read_updates(tmp_path / "log")
    assert [(row["link"], row["link_epoch"], row["topic"], row["selector"]) for row in rows] == [
        ("plant-1", 5, "plant-1/a", "plant-1/#"),
        ("plant-1", 5, "plant-1/b", "plant-1/#"),
    ]
    assert rows[0]["digest"] % 2**64 == content_digest(b"plant-1/a", b"v")


class AnnouncingStandIn(LinkStandIn):
    """A link that is live when the test says so, and whose primary takes announcements."""

    def __init__(self, config: LinkConfig, **rest: Any) -> None:
        super().__init__(config, **rest)
        self.missing = MissingTopics(config.control_topic, node_id="edge-1", counters=LinkCounters())
        self.state = LinkState.VERIFYING
        self.told: list[str] = []

    def announce_missing(self, payload: bytes) -> ReasonCode:
        self.told.append(json.loads(payload)["filter"])
        return ReasonCode.SUCCESS

    def status(self) -> LinkStatus:
        return dataclasses.replace(super().status(), state=self.state)


async def test_topics_asked_for_before_the_link_is_live_are_announced_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, by the change of its state alone: no later subscription is needed, and a later one repeats nothing."""
    monkeypatch.setattr("fanout.link.link.Link", AnnouncingStandIn)
    settings = config(tmp_path)
    node = node_of(
        dataclasses.replace(settings, links=(dataclasses.replace(settings.links[0], announce_missing=True),))
    )
    await node.start()
    link = cast(AnnouncingStandIn, link_of(node))
    async with await RawClient.connect(port_of(node), "c") as client:
        await client.subscribe(b"hq/plant-1/early")
        await client.messages_until_ping()
        assert (link.told, len(link.missing)) == ([], 1)
        link.state = LinkState.LIVE
        node.event("plant-1", "state", epoch=1, state="live")
        await wait_until(lambda: link.told)
        await client.subscribe(b"hq/plant-1/late")
        await wait_until(lambda: "plant-1/late" in link.told)
    assert link.told == ["plant-1/early", "plant-1/late"]
    await node.stop()


async def test_unchanged_values_are_logged_and_not_delivered(node: Node, tmp_path: Path) -> None:
    """A copy of what is held goes to the log only."""
    applied(node, value(b"hq/plant-1/a"))
    copies = link_of(node).replica.apply([value(b"hq/plant-1/a")], phase=Phase.AUDIT)
    async with await RawClient.connect(port_of(node), "c") as client:
        await client.subscribe(b"none")
        node.record("plant-1", copies, epoch=5)
        node.dispatch("plant", copies)
        assert await client.messages_until_ping() == []
    await node.stop()
    assert [row["phase"] for row in read_updates(tmp_path / "log")] == [Phase.AUDIT]


async def test_events_of_a_link_are_logged(node: Node, tmp_path: Path) -> None:
    """Every column reaches the log."""
    node.event(
        "plant-1",
        "complete",
        epoch=5,
        evidence="marker",
        selector="plant-1/#",
        topics=7,
        digest=2**64 - 1,
        detail="why",
    )
    node.event("plant-1", "heartbeat", epoch=5, lag_us=250)
    await node.stop()
    logged = [event for event in read_events(tmp_path / "log") if event["link"] == "plant-1"]
    assert [event["event"] for event in logged] == ["complete", "heartbeat"]
    first = {name: logged[0][name] for name in ("link_epoch", "evidence", "selector", "topics", "digest", "detail")}
    assert first == {
        "link_epoch": 5,
        "evidence": "marker",
        "selector": "plant-1/#",
        "topics": 7,
        "digest": -1,
        "detail": "why",
    }
    assert logged[1]["lag_us"] == 250


async def test_warnings_of_a_link_are_alarms_in_the_log(node: Node, tmp_path: Path) -> None:
    """With what the link held then; its other lines are in the node's log only."""
    link = link_of(node)
    node.record("plant-1", applied(node, value(b"hq/plant-1/a")), epoch=1)
    link.logger.info("link state", state="live")
    link.logger.warning("audit ended", changed=1)
    await node.stop()
    (alarm,) = [event for event in read_events(tmp_path / "log") if event["event"] == "alarm"]
    assert (alarm["link"], alarm["link_epoch"], alarm["topics"]) == ("plant-1", 1, 1)
    detail = json.loads(alarm["detail"])
    assert (detail["level"], detail["message"], detail["changed"]) == ("warning", "audit ended", 1)


async def test_clients_read_all_replicas_and_the_nodes_own_values(tmp_path: Path) -> None:
    """A SUBSCRIBE sees the values of both links and what was published at the node."""
    node = node_of(config(tmp_path, links=2))
    await node.start()
    for index, topic in enumerate((b"hq/plant-1/a", b"hq/plant-2/b")):
        link_of(node, index).replica.apply([value(topic)], phase=Phase.SNAPSHOT)
    async with await RawClient.connect(port_of(node), "c") as client:
        client.publish(b"own", b"v", retain=True)
        await client.subscribe(b"#")
        messages = await client.messages_until_ping()
    assert sorted(message.topic for message in messages) == [b"hq/plant-1/a", b"hq/plant-2/b", b"own"]
    await node.stop()


async def test_retained_values_can_be_off(tmp_path: Path) -> None:
    """Clients are told so, and a PUBLISH with RETAIN ends the connection [MQTT-3.2.2-14]."""
    node = node_of(dataclasses.replace(config(tmp_path), retained=RetainedConfig(available=False)))
    await node.start()
    async with await RawClient.connect(port_of(node), "c") as client:
        assert client.connack.properties.retain_available == 0
        client.publish(b"own/a", b"v", retain=True)
        await client.expect_end(ReasonCode.RETAIN_NOT_SUPPORTED)
    await node.stop()


async def test_own_messages_are_not_sent_back_with_no_local(node: Node) -> None:
    """The publisher's Client Identifier reaches dispatch, for No Local [MQTT-3.8.3-3]."""
    async with await RawClient.connect(port_of(node), "c") as client:
        client.send_bytes(b"\x82\x0a\x00\x01\x00\x00\x04no/+\x04")
        await client.receive()
        client.publish(b"no/x", b"v")
        assert await client.messages_until_ping() == []


async def test_a_publisher_that_waits_no_more_leaves_the_others_their_answers(tmp_path: Path) -> None:
    """What one has cancelled is committed all the same, and who comes behind it in the same transaction is told."""
    settings = dataclasses.replace(
        config(tmp_path),
        node=IdentityConfig(id="edge-1", drain_s=0.0, data_directory=tmp_path),
        retained=RetainedConfig(storage="disc"),
    )
    node = node_of(settings)
    await node.start()
    try:
        verdicts = [
            node.ingress.publish("c", [(b"own/%d" % number, b"v", 3, 1, b"", None, 0)], NOW_NS)[0]
            for number in range(2)
        ]
        first, second = (cast("asyncio.Future[ReasonCode]", verdict) for verdict in verdicts)
        first.cancel()
        async with asyncio.timeout(60):
            assert await second is ReasonCode.SUCCESS
    finally:
        await node.stop()


async def test_a_writer_of_retained_values_that_ends_ends_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing would be acknowledged any more, and nobody would see it."""

    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    settings = dataclasses.replace(
        config(tmp_path),
        node=IdentityConfig(id="edge-1", drain_s=0.0, data_directory=tmp_path),
        retained=RetainedConfig(storage="disc"),
    )
    node = node_of(settings)
    await node.start()
    try:
        monkeypatch.setattr(RetainedFile, "commit", failing)
        node.ingress.publish("c", [(b"own/1", b"v", 3, 1, b"", None, 0)], NOW_NS)
        error = await asyncio.wait_for(node.wait_failed(), 30)
        assert isinstance(error, RuntimeError)  # a bug, unlike a disk that fails
        assert "ended" in str(error)
    finally:
        await node.stop()


# Time.


async def test_expired_values_are_removed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Housekeeping removes the node's own expired values and tells subscribers, without any traffic."""
    monkeypatch.setattr(housekeeping, "_LOOK_S", 0.01)
    async with await RawClient.connect(port_of(node), "c") as client:
        await client.subscribe(b"#")
        client.send_bytes(b"\x31\x0a\x00\x01e\x05\x02\x00\x00\x00\x01v")  # Message Expiry Interval 1 s
        payloads = [(await client.receive()).payload for _ in range(2)]  # type: ignore[union-attr]  # PUBLISHs
    assert payloads == [b"v", b""]
    assert len(node.own) == 0


async def test_values_that_expire_together_go_one_piece_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in a turn of the event loop of its own, without the pause of housekeeping in between."""
    monkeypatch.setattr(housekeeping, "_LOOK_S", 3600.0)
    node = node_of(config(tmp_path))
    count = 2 * TOPICS_MAX + 1
    topics = [b"%d" % number for number in range(count)]
    values: list[Update] = [(topic, b"x", 0, True, b"", 1, 2, content_digest(topic, b"x"), None) for topic in topics]
    node.own.apply(values, phase=Phase.LIVE)
    left: list[int] = []
    await node.start()
    try:
        async with asyncio.timeout(30):
            while len(node.own):
                left.append(len(node.own))
                await asyncio.sleep(0)
    finally:
        await node.stop()
    assert {count - TOPICS_MAX, 1} <= set(left)


# Signals, and parts that fail.


async def running_node(
    settings: NodeConfig, monkeypatch: pytest.MonkeyPatch, *, role: Role = "secondary", path: Path | None = None
) -> tuple[asyncio.Task[int], Node]:
    """Start `run_node` and return its task, and the node once it has started."""
    made: list[Node] = []
    start = Node.start

    async def noted(node: Node) -> None:
        await start(node)
        made.append(node)

    monkeypatch.setattr(Node, "start", noted)
    task = asyncio.create_task(run_node(settings, role=role, path=path))
    await wait_until(lambda: made or task.done(), what="the node's start")
    return task, made[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_stops_in_good_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """SIGTERM and SIGINT end the node with exit code 0, its log sealed."""
    task, _ = await running_node(config(tmp_path), monkeypatch)
    os.kill(os.getpid(), number)
    assert await asyncio.wait_for(task, 30) == 0
    assert read_events(tmp_path / "log")[-1]["event"] == "stop"


async def test_a_service_manager_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ready when the node listens; alive until it has drained; then that it stops."""
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address)
        receiver.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        monkeypatch.setenv("WATCHDOG_USEC", "20000")
        task, node = await running_node(config(tmp_path, drain_s=0.2), monkeypatch)
        loop = asyncio.get_running_loop()
        assert await asyncio.wait_for(loop.sock_recv(receiver, 64), 30) == b"READY=1"
        async with await RawClient.connect(port_of(node), "there"):
            os.kill(os.getpid(), signal.SIGTERM)
            told = [b""]
            while told[-1] != b"STOPPING=1":
                told.append(await asyncio.wait_for(loop.sock_recv(receiver, 64), 30))
        assert set(told[1:-1]) == {b"WATCHDOG=1"}
        assert await asyncio.wait_for(task, 30) == 0


async def test_a_service_manager_is_asked_for_more_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Again and again while values load; no more once the node listens."""
    address = str(tmp_path / "notify")
    loop, start, told = asyncio.get_running_loop(), Node.start, [b""]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address)
        receiver.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        monkeypatch.setattr(service_manager, "_EXTEND_EVERY_S", 0.01)

        async def collect() -> None:
            while told[-1] != b"STOPPING=1":
                told.append(await loop.sock_recv(receiver, 64))

        async def slow_start(node: Node) -> None:
            await wait_until(lambda: len(told) > 3)
            await start(node)

        monkeypatch.setattr(Node, "start", slow_start)
        collecting = asyncio.create_task(collect())
        task, _ = await running_node(config(tmp_path), monkeypatch)
        os.kill(os.getpid(), signal.SIGINT)
        assert await asyncio.wait_for(task, 30) == 0
        await asyncio.wait_for(collecting, 30)
    assert set(told[1:-2]) == {b"EXTEND_TIMEOUT_USEC=60000000"}
    assert told[-2:] == [b"READY=1", b"STOPPING=1"]


async def test_sigterm_drains_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not ready at once; who is there and who still comes is served, until the time is over."""
    task, node = await running_node(config(tmp_path, drain_s=3600), monkeypatch)
    async with await RawClient.connect(port_of(node), "there") as there:
        os.kill(os.getpid(), signal.SIGTERM)
        await wait_until(lambda: not node.documents.readiness().ready, what="not being ready")
        assert node.documents.readiness().state == "draining"
        assert node.documents.status().state == "draining"
        async with await RawClient.connect(port_of(node), "late") as late:
            assert await late.messages_until_ping() == []
            node.drain.end()
            await there.expect_end(0x8B)
            await late.expect_end(0x8B)
    assert await asyncio.wait_for(task, 30) == 0


async def test_sigint_does_not_drain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody waits at the terminal."""
    task, _ = await running_node(config(tmp_path, drain_s=3600), monkeypatch)
    os.kill(os.getpid(), signal.SIGINT)
    assert await asyncio.wait_for(task, 30) == 0


async def test_drain_over_http_ends_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As SIGTERM does, which in the middle of it changes nothing: it is the first signal."""
    task, node = await running_node(config(tmp_path, drain_s=3600), monkeypatch)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{http_port_of(node)}", timeout=60) as http:
        answer = await http.post("/v1/drain")
        assert (answer.status_code, answer.json()["state"]) == (202, "draining")
        assert 3000 < answer.json()["left_seconds"] <= 3600
        os.kill(os.getpid(), signal.SIGTERM)
        assert (await http.post("/v1/drain")).status_code == 202
        node.drain.end()
    assert await asyncio.wait_for(task, 30) == 0


async def test_hold_over_http(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not ready, clients stay and new ones are served; with `disconnect` they leave, each once, until `undrain`."""
    monkeypatch.setattr("fanout.node.clients._AWAY_AT_ONCE", 1)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{http_port_of(node)}", timeout=60) as http:
        async with await RawClient.connect(port_of(node), "a") as first:
            answer = (await http.post("/v1/hold")).json()
            assert (answer["changed"], answer["connections"], answer["state"]) == (True, 1, "not_ready")
            (reason,) = (await http.get("/readyz")).json()["reasons"]
            assert reason.startswith("held by operator since 20")
            async with await RawClient.connect(port_of(node), "b") as second:
                assert await first.messages_until_ping() == await second.messages_until_ping() == []
                assert not (await http.post("/v1/hold", json={"disconnect": True})).json()["changed"]
                for client in (first, second):
                    await client.expect_end(ReasonCode.USE_ANOTHER_SERVER)
        async with await RawClient.connect(port_of(node), "a") as again:
            assert (await http.post("/v1/undrain")).json()["reasons"] == []
            assert (await http.get("/readyz")).status_code == 200
            assert await again.messages_until_ping() == []


async def test_undrain_keeps_the_clients_that_are_left(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sending away ends with the hold, and with the node."""
    monkeypatch.setattr("fanout.node.clients._AWAY_AT_ONCE", 1)
    monkeypatch.setattr("fanout.node.clients._AWAY_PAUSE_S", 3600)
    async with (
        await RawClient.connect(port_of(node), "a") as first,
        await RawClient.connect(port_of(node), "b") as last,
    ):
        node.documents.hold(disconnect=True)
        await first.expect_end(ReasonCode.USE_ANOTHER_SERVER)
        node.documents.undrain()
        assert await last.messages_until_ping() == []
        node.documents.hold(disconnect=True)
        await last.expect_end(ReasonCode.USE_ANOTHER_SERVER)
    await asyncio.wait_for(node.stop(), 30)


async def test_clients_over_http(node: Node) -> None:
    """Who is there, with the bytes that it reads in a second; a kick ends the connection."""
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{http_port_of(node)}", timeout=60) as http,
        await RawClient.connect(port_of(node), "app/1", properties=Properties(session_expiry_interval=600)) as client,
    ):
        await client.subscribe(b"own/#")
        asked = asyncio.create_task(http.get("/v1/clients"))
        client.publish(b"own/a", b"x" * 100_000)
        await client.messages(1)
        document = (await asked).json()
        (found,) = document["clients"]
        assert (found["client_id"], found["filters"], found["slow_since"]) == ("app/1", ["own/#"], None)
        assert 0 <= found["bytes_per_second"] <= 250_000
        assert (document["sessions"], document["next"]) == (1, None)
        kicked = await http.post("/v1/clients/kick", json={"client_id": "app/1"})
        assert kicked.json()["session"] == "kept"
        await client.expect_end(ReasonCode.ADMINISTRATIVE_ACTION)
        unknown = await http.get("/v1/clients", params={"client_id": "nobody"})
        assert (unknown.status_code, "nobody" in unknown.json()["error"]) == (409, True)


async def test_single_clients_off_loopback_want_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one they are shown to nobody; a file without a token prevents the start."""
    settings = config(tmp_path)
    token_file = tmp_path / "token"
    token_file.write_text("a-token-of-24-characters\n")
    listen = Address("http", "127.0.0.1", 0)
    monkeypatch.setattr(node_module, "is_local", lambda address: False)
    for http_config, codes in (
        (HttpConfig(listen=listen), (403, 403)),
        (HttpConfig(listen=listen, token_file=token_file), (401, 200)),
    ):
        node = node_of(dataclasses.replace(settings, http=http_config))
        await node.start()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{http_port_of(node)}", timeout=60) as http:
            right = {"Authorization": "Bearer a-token-of-24-characters"}
            given = [(await http.get("/v1/clients", headers=one)).status_code for one in ({}, right)]
            assert tuple(given) == codes
        await node.stop()
    token_file.write_text("short")
    with pytest.raises(ConfigError, match="has no token"):
        node_of(dataclasses.replace(settings, http=HttpConfig(token_file=token_file)))


async def test_tap_does_not_drain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It serves nobody who would have to be sent elsewhere."""
    settings = dataclasses.replace(config(tmp_path, drain_s=3600), server=None)
    task, _ = await running_node(settings, monkeypatch, role="tap")
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(task, 30) == 0


async def test_links_stay_until_the_primary_has_answered(node: Node) -> None:
    """What clients published before they left is forwarded."""
    link = link_of(node)
    link.answered.clear()
    await link.runs.wait()
    stopping = asyncio.create_task(node.stop())
    await wait_until(lambda: link.awaited, what="the question whether all is answered")
    assert not link.ended
    link.answered.set()
    await stopping
    assert link.ended


async def test_primary_that_does_not_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node ends all the same, and says what may be lost."""
    monkeypatch.setattr(node_module, "_FORWARDED_S", 0.05)
    node = node_of(dataclasses.replace(config(tmp_path), log=None))
    await node.start()
    link_of(node).answered.clear()
    with capture_logs() as lines:
        await node.stop()
    assert "messages of clients may not have reached the primary" in [line["event"] for line in lines]


async def test_second_signal_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks twice does not want to wait: the exit code of a process ended by the signal, without cleaning up."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    task, _ = await running_node(config(tmp_path), monkeypatch)
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(task, 30)
    assert codes == [128 + signal.SIGTERM]


async def test_failure_of_a_part_ends_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that ends, which only a bug makes it do, is told, with the exit code of a bug; the rest stops."""
    task, node = await running_node(config(tmp_path), monkeypatch)
    with capture_logs() as lines:
        link_of(node).fail(ValueError("a bug"))
        assert await asyncio.wait_for(task, 30) == ExitCode.BUG
    (told,) = [line for line in lines if line["log_level"] == "error"]
    assert told["event"] == "a part of the node failed"
    assert isinstance(told["exc_info"], ValueError)
    assert read_events(tmp_path / "log")[-1]["event"] == "stop"


async def test_a_disk_that_fails_ends_a_node_that_has_its_values_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is no bug: it ends with the exit code of what could not be done, and says what to do."""
    settings = dataclasses.replace(
        config(tmp_path, links=0),
        node=IdentityConfig(id="hub", drain_s=0.0, data_directory=tmp_path),
        retained=RetainedConfig(storage="disc_only"),
    )
    task, node = await running_node(settings, monkeypatch, role="primary")
    assert isinstance(node.storage, DirectStore)
    node.storage.database.execute("PRAGMA max_page_count = 1")
    with capture_logs() as lines:
        async with await RawClient.connect(port_of(node), "publisher") as publisher:
            for number in range(100):
                publisher.publish(b"t/%d" % number, bytes(9000), retain=True)
            assert await asyncio.wait_for(task, 30) == ExitCode.FAILED
    (told,) = [line for line in lines if line["event"] == "a part of the node failed"]
    assert "full" in told["error"]
    assert told["hint"].startswith("Check the disk")


async def test_failing_start_is_raised(tmp_path: Path, other_listener: int) -> None:
    """The command turns it into a line and an exit code."""
    with pytest.raises(ListenError):
        await run_node(config(tmp_path, mqtt_port=other_listener), role="secondary")


# Reload.


async def test_sighup_takes_rights_away_and_keeps_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A revoked subscription ends, a removed user is disconnected, others stay; a file with faults changes nothing."""
    file, users = tmp_path / "node.toml", tmp_path / "users"
    update_password_file(
        users, lambda none: none.with_user("alice", cheap_hash(b"a")).with_user("bob", cheap_hash(b"b"))
    )
    text = f"""[node]
id = "edge-1"
[server]
listen = ["mqtt://127.0.0.1:0"]
[access]
password_file = "{users}"
[[access.rule]]
allow = "all"
filter = "#"
"""
    file.write_text(text)
    task, node = await running_node(load_config(file), monkeypatch, path=file, role="primary")
    port = port_of(node)
    alice = await RawClient.connect(port, "a", username="alice", password=b"a")
    async with alice, await RawClient.connect(port, "b", username="bob", password=b"b") as bob:
        assert (await bob.subscribe(b"t/1", b"t/2")).reason_codes == (0, 0)

        async def reload(level: str, event: str) -> dict[str, Any]:
            with capture_logs() as lines:
                os.kill(os.getpid(), signal.SIGHUP)
                await wait_until(lambda: any(line["event"] == event for line in lines), what=event)
            (line,) = [line for line in lines if line["event"] == event]
            assert line["log_level"] == level
            return dict(line)

        file.write_text(text.replace('allow = "all"', 'allow = "al"'))
        told = await reload("error", "reload failed, what was in force stays")
        assert "access.rule[0].allow" in told["faults"][0]
        file.write_text(text)
        users.write_text("alice:secret\n")
        await reload("error", "reload failed, what was in force stays")
        users.write_text(f"bob:{cheap_hash(b'b')}\n")
        changed = text.replace('"#"', '"t/2"')
        file.write_text(changed + "[http]\nlisten = '127.0.0.1:0'\n")
        assert (await reload("error", "reload refused, changes need a restart"))["keys"] == ["http"]
        file.write_text(changed)
        told = await reload("info", "configuration reloaded")
        assert told["changes"] == ["access.rule changed, cost: nothing"]
        await alice.expect_end(0x87)
        for number in (1, 2):
            bob.publish(b"t/%d" % number, b"v", qos=1)
        received = [await bob.receive() for _ in range(3)]
        assert [packet.reason_code for packet in received if isinstance(packet, Ack)] == [0x87, 0]
        assert [packet.topic for packet in received if isinstance(packet, Publish)] == [b"t/2"]
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(task, 30) == 0
    loop = asyncio.get_running_loop()
    assert loop.remove_signal_handler(signal.SIGHUP)


async def test_sighup_has_every_link_connect_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed password is tried without waiting; a configuration with faults does not prevent it."""
    file = tmp_path / "node.toml"
    file.write_text("this is no configuration")
    task, node = await running_node(config(tmp_path, links=2), monkeypatch, path=file)
    links = cast("tuple[LinkStandIn, ...]", node.links)
    os.kill(os.getpid(), signal.SIGHUP)
    await asyncio.wait_for(asyncio.gather(*(link.retried.wait() for link in links)), 30)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(task, 30) == 0


async def test_password_file_with_faults_prevents_the_start(tmp_path: Path) -> None:
    """The node does not run with fewer users than the operator thinks."""
    settings = dataclasses.replace(config(tmp_path), access=AccessConfig(password_file=tmp_path / "none"))
    with pytest.raises(ConfigError, match="none"):
        node_of(settings)


async def test_tap_reloads_nothing(tmp_path: Path) -> None:
    """It serves nobody, so it needs no password file."""
    settings = dataclasses.replace(config(tmp_path), access=AccessConfig(password_file=tmp_path / "none"))
    node = node_of(settings, role="tap")
    await node.apply(settings)
    assert node.gate is None


# $SYS.


async def test_sys_topics_are_retained_and_not_logged(node: Node, tmp_path: Path) -> None:
    """Clients read figures of the server and of the links below `$SYS`, which `#` does not match; a report does not."""
    await wait_until(lambda: node.store.get_many([b"$SYS/broker/uptime"]))
    async with await RawClient.connect(port_of(node)) as client:
        await client.subscribe(b"#")
        assert await client.messages_until_ping() == []
        await client.subscribe(b"$SYS/#")
        values = {one.topic: one.payload for one in await client.messages_until_ping()}
        assert values[b"$SYS/broker/retained messages/count"] == b"0"
        assert values[f"$SYS/fanout/{node.links[0].status().name}/ready".encode()] in {b"true", b"false"}
        packet_id = client.publish(b"$SYS/broker/uptime", b"x", qos=1)
        await client.expect_ack(PacketType.PUBACK, packet_id, ReasonCode.NOT_AUTHORIZED)
    assert len(node.store) == 0
    await node.stop()
    assert read_updates(tmp_path / "log") == []


async def test_sys_topics_can_be_off(tmp_path: Path) -> None:
    """With an interval of 0 there are none but the one that nodes below rely on."""
    settings = config(tmp_path)
    assert settings.server is not None
    node = node_of(dataclasses.replace(settings, server=dataclasses.replace(settings.server, sys_interval_s=0.0)))
    await node.start()
    try:
        await asyncio.sleep(0)
        values = [value for piece in node.store.match(b"$SYS/#") for value in piece]
        assert [value[0] for value in values] == [READINESS_TOPIC]
    finally:
        await node.stop()


# HAProxy's agent check.


async def test_agent_check_follows_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weight falls with each connection; while the node drains the line says so, and then the port is gone."""
    settings = config(tmp_path, drain_s=3600)
    assert settings.http is not None
    assert settings.server is not None
    settings = dataclasses.replace(
        settings,
        http=dataclasses.replace(settings.http, agent_listen=Address("http", "127.0.0.1", 0)),
        server=dataclasses.replace(settings.server, connections_max=4),
    )
    task, node = await running_node(settings, monkeypatch)
    assert node.agent is not None
    port = node.agent.port

    async def told() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        line = await reader.read()
        writer.close()
        await writer.wait_closed()
        return line

    assert await told() == b"ready up 100%\n"
    async with await RawClient.connect(port_of(node), "c"):
        assert await told() == b"ready up 75%\n"
    os.kill(os.getpid(), signal.SIGTERM)
    await wait_until(lambda: not node.documents.readiness().ready, what="the drain")
    assert await told() == b"drain #the node is draining\n"
    node.drain.end()
    assert await asyncio.wait_for(task, 30) == 0
    assert is_free(port)


# Tear-downs.


async def test_clients_are_sent_away_before_a_tear_down(tmp_path: Path) -> None:
    """Where the link says so: those that have subscribed to its topics, by their local names."""
    settings = config(tmp_path, links=2)
    first, second = settings.links
    settings = dataclasses.replace(settings, links=(dataclasses.replace(first, disconnect_clients=True), second))
    node = node_of(settings)
    await node.start()
    async with (
        await RawClient.connect(port_of(node), "concerned") as concerned,
        await RawClient.connect(port_of(node), "other") as other,
    ):
        await concerned.subscribe(b"hq/plant-1/#")
        await other.subscribe(b"hq/plant-2/#")
        assert await node.prepare_tear_down("plant-2") == 2
        await node.prepare_tear_down("plant-1")
        await concerned.expect_end(0x9C)
        assert await other.messages_until_ping() == []
    await node.stop()


async def test_tap_prepares_nothing(tmp_path: Path) -> None:
    """Nobody is told of a removal."""
    node = node_of(dataclasses.replace(config(tmp_path), server=None), role="tap")
    assert await node.prepare_tear_down("plant-1") == 0
