"""The link's task, with a fake primary behind a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from fcntl import ioctl
from itertools import pairwise
from pathlib import Path
from termios import FIONREAD
from typing import Any

import pytest

from fanout.chain.readiness_notice import READINESS_TOPIC, ReadinessNotice, encode_readiness_notice
from fanout.config import Address
from fanout.errors import AuditRefused
from fanout.link.missing_topics import Waiting
from fanout.link.model.evidence import Evidence
from fanout.link.model.states import LinkState
from fanout.link.protocol.forwarding import UNAVAILABLE
from fanout.link.sample_watch import SampleWatch
from fanout.link.session.teardown import DELIVERIES_MAX, TOPICS_MAX
from fanout.link.transport.connection import LinkConnection
from fanout.mqtt.packets import Ack, Connack
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.update import Changes, Phase, content_digest
from fanout.selection import Selector
from tests.link.fake_primary import STAMPING, FakePrimary
from tests.link.fake_server import FakeServer
from tests.link.harness import Running, config_for, logging_to, removals_by_turn, running
from tests.support.mosquitto import free_port
from tests.support.updates import row

VALUES = {b"plant/%d" % number: b"%d" % number for number in range(300)}


async def test_a_link_becomes_live_and_follows() -> None:
    """Snapshot, live, status: the whole way with a primary that is not Mosquitto."""
    async with FakeServer(FakePrimary(retained=dict(VALUES))) as server, running(config_for(server.port)) as link:
        before = link.status
        assert (before.state, before.epoch, before.evidence) == (LinkState.DOWN, 0, None)
        await link.wait_state(LinkState.LIVE)
        assert link.values() == {topic.decode(): payload for topic, payload in VALUES.items()}
        digest = sum(content_digest(*each) for each in VALUES.items()) % 2**64
        (complete,) = link.sink.named("complete")
        assert (complete["evidence"], complete["topics"], complete["digest"]) == ("marker", len(VALUES), digest)
        assert (complete["epoch"], link.status.selectors[0].digest) == (link.status.epoch, digest)
        assert {changes.phase for _, changes in link.sink.steps} == {Phase.SNAPSHOT}
        server.primary.publish(b"plant/0", b"new")
        server.push()
        await link.wait(lambda: link.values()["plant/0"] == b"new")
        assert link.status.evidence is Evidence.MARKER
        assert link.status.payload_bytes == sum(map(len, link.values().values()))


async def test_nothing_beside_a_connection_keeps_the_link_from_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong in it: a link that waits for ever is worse than a task that is left."""
    released = asyncio.Event()

    async def never_ends(samples: SampleWatch) -> None:
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()

    monkeypatch.setattr(SampleWatch, "run", never_ends)
    monkeypatch.setattr("fanout.link.side_tasks.END_S", 0.05)
    async with FakeServer(FakePrimary()) as server, running(config_for(server.port, heartbeat_s=1.0)) as link:
        await link.wait_state(LinkState.LIVE)
        link.sink.clear()
        server.cut()
        await link.wait(lambda: link.sink.states()[-1:] == ["live"])
        released.set()


async def test_acknowledgements_follow_the_record() -> None:
    """A batch is acknowledged to the primary only when the sink has recorded it."""
    primary = FakePrimary()
    async with FakeServer(primary) as server, running(config_for(server.port)) as link:
        await link.wait_state(LinkState.LIVE)
        order: list[str] = []
        record, dispatch = link.sink.record, link.sink.dispatch

        def record_first(link: str, changes: Changes, *, epoch: int) -> None:
            order.append(f"record {len(primary.acks)}")
            record(link, changes, epoch=epoch)

        def dispatch_last(link: str, changes: Changes) -> None:
            order.append("dispatch")
            dispatch(link, changes)

        link.sink.record = record_first  # type: ignore[method-assign]
        link.sink.dispatch = dispatch_last  # type: ignore[method-assign]
        acknowledged = len(primary.acks)
        primary.publish(b"plant/0", b"1")
        server.push()
        await link.wait(lambda: len(primary.acks) > acknowledged)
        assert order == [f"record {acknowledged}", "dispatch"]


async def test_skipped_messages_are_recorded_by_reason_with_their_topics() -> None:
    """The first at once, those of the next second together; the value that one would replace goes without an update."""
    primary = FakePrimary(retained={b"plant/big/0": b"1"})
    async with (
        FakeServer(primary) as server,
        running(config_for(server.port, heartbeat_s=0.1, packet_bytes_max=100)) as link,
    ):
        await link.wait_state(LinkState.LIVE)
        link.sink.clear()
        for number in range(120):
            primary.publish(b"plant/big/%d" % number, b"x" * 200, qos=1, retain=True)
        server.push()

        def told() -> list[dict[str, Any]]:
            return [json.loads(event["detail"]) for event in link.sink.named("skipped")]

        await link.wait(lambda: sum(one["messages"] for one in told()) == 120)
        found = told()
        assert {one["reason"] for one in found} == {"packet_too_large"}
        assert len(found) < 20
        assert all(one["first_us"] <= one["last_us"] for one in found)
        topics = [topic for one in found for topic in one["topics"]]
        assert topics[0] == "plant/big/0"
        assert len(topics) == len(set(topics)) >= 100
        assert max(len(one["topics"]) for one in found) <= 100
        assert link.values() == {}
        recorded = [changes for step, changes in link.sink.steps if step == "record" and changes.updates]
        assert {changes.phase for changes in recorded} == {Phase.AUDIT}


async def test_a_primary_that_closes_at_connect_may_not_take_the_bridge_bit() -> None:
    """Over MQTT 3.1.1 the error names the setting without it; once it was connected, it does not."""
    primary = FakePrimary(version=4, swallow=(Connack,))
    async with FakeServer(primary) as server, running(config_for(server.port, version=4)) as link:
        await link.wait(lambda: primary.connects)
        assert primary.connects[0].bridge
        server.cut()
        await link.wait(lambda: link.status.last_error_hint)
        assert 'retain_policy = "keep"' in (link.status.last_error_hint or "")
        primary.swallow = ()
        await link.wait_state(LinkState.LIVE)
        server.cut()
        await link.wait(lambda: "client_id" in (link.status.last_error_hint or ""))
        connects = len(primary.connects)
        primary.swallow = (Connack,)
        server.cut()
        await link.wait(lambda: len(primary.connects) > connects)
        server.cut()
        await link.wait(lambda: "accepted this link before" in (link.status.last_error_hint or ""))


async def test_an_error_of_the_sink_ends_the_link() -> None:
    """A bug is not swallowed: the task ends with it."""
    async with FakeServer(FakePrimary()) as server, running(config_for(server.port), may_fail=True) as link:
        await link.wait_state(LinkState.LIVE)

        def fail(link: str, changes: Changes, *, epoch: int) -> None:
            raise RuntimeError("a bug")

        link.sink.record = fail  # type: ignore[method-assign]
        server.primary.publish(b"plant/0", b"1")
        server.push()
        await asyncio.wait([link.task], timeout=30)
        with pytest.raises(RuntimeError, match="a bug"):
            link.task.result()


async def test_an_error_at_a_tick_ends_the_link() -> None:
    """The same for what the timer does."""
    async with FakeServer(FakePrimary()) as server, running(config_for(server.port), may_fail=True) as link:
        await link.wait_state(LinkState.LIVE)

        def fail(link: str, changes: Changes, *, epoch: int) -> None:
            raise RuntimeError("a bug")

        while not link.values():  # it may expire before it is seen
            server.primary.publish(b"plant/0", b"1", properties=b"\x02\x00\x00\x00\x01")
            server.push()
            await asyncio.sleep(0.05)
        link.sink.record = fail  # type: ignore[method-assign]
        await asyncio.wait([link.task], timeout=30)
        with pytest.raises(RuntimeError, match="a bug"):
            link.task.result()


async def test_a_fanout_primary_is_named_in_the_log() -> None:
    """Reports pair the logs of a link and of its primary by the node's name, from the start of each connection on."""
    primary = FakePrimary(connack=Connack(False, 0, STAMPING))
    async with FakeServer(primary) as server, running(config_for(server.port)) as link:
        await link.wait_state(LinkState.LIVE)
        told = {"primary": f"mqtt://127.0.0.1:{server.port}", "primary_node": "root"}
        assert primaries_told(link) == {"snapshot": told, "live": told}
        server.cut()
        await link.wait(lambda: "resuming" in link.sink.states())
        assert primaries_told(link)["resuming"] == told


@pytest.mark.parametrize(
    ("version", "paths", "snapshot", "live"),
    [
        (5, None, "", ""),
        (4, None, None, None),
        (4, (("root", "middle"), ("middle",)), None, "middle"),
        (4, (), None, None),
        (4, ((),), None, None),
    ],
)
async def test_a_primary_without_a_name_in_connack_is_told_apart(
    version: int, paths: tuple[tuple[str, ...], ...] | None, snapshot: str | None, live: str | None
) -> None:
    """Over MQTT 5 it is no fanout node for sure; over MQTT 3.1.1 only a readiness notice gives the name."""
    retained = {} if paths is None else {READINESS_TOPIC: encode_readiness_notice(ReadinessNotice("", paths))}
    primary = FakePrimary(version=version, retained={b"plant/1": b"x", **retained})
    async with FakeServer(primary) as server, running(config_for(server.port, version=version)) as link:
        await link.wait_state(LinkState.LIVE)
        told = {state: detail["primary_node"] for state, detail in primaries_told(link).items()}
        assert told == {"snapshot": snapshot, "live": live}


def primaries_told(link: Running) -> dict[str, dict[str, object]]:
    """Return by state what a link logged of its primary."""
    events = link.sink.named("state")
    return {e["state"]: json.loads(e["detail"]) for e in events if e["state"] in ("snapshot", "resuming", "live")}


async def test_a_lower_qos_than_the_selectors_is_a_warning() -> None:
    """With the selector and both figures."""
    lines: list[dict[str, object]] = []
    async with (
        FakeServer(FakePrimary(maximum_qos=0)) as server,
        running(config_for(server.port), logger=logging_to(lines)) as link,
    ):
        await link.wait_state(LinkState.LIVE)
        (line,) = [line for line in lines if "lower QoS" in str(line["event"])]
        assert (line["selector"], line["qos"], line["granted"]) == ("plant/#", 1, 0)


async def test_a_missing_password_is_told() -> None:
    """A password that cannot be read is an error in the status; it is read again at each attempt."""
    async with (
        FakeServer(FakePrimary()) as server,
        running(config_for(server.port, username="u", password_env="FANOUT_TEST_NO_SUCH_VARIABLE")) as link,
    ):
        await link.wait(lambda: link.status.last_error is not None)
        assert "FANOUT_TEST_NO_SUCH_VARIABLE" in (link.status.last_error or "")
        assert link.status.state is LinkState.DOWN


async def test_a_changed_password_is_used_without_the_pause(tmp_path: Path) -> None:
    """Each attempt reads the file again; `retry` does not wait for the next one."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"old\n")
    primary = FakePrimary(connack=Connack(False, ReasonCode.NOT_AUTHORIZED))
    async with FakeServer(primary) as server:
        config = config_for(server.port, username="edge", password_file=secret, retry_min_s=600.0, retry_max_s=600.0)
        async with running(config) as link:
            await link.wait(lambda: link.status.last_error_hint is not None)
            assert "which is read again at each attempt" in (link.status.last_error_hint or "")
            link.link.retry()
            await link.wait(lambda: len(primary.connects) == 2)
            secret.write_bytes(b"new\n")
            primary.connack = Connack(False, 0)
            await link.wait(lambda: link.status.state is LinkState.DOWN)
            link.link.retry()
            await link.wait_state(LinkState.LIVE)
            assert [one.password for one in primary.connects] == [b"old", b"old", b"new"]
            link.link.retry()  # changes nothing while there is a connection
            server.cut()
            await link.wait(lambda: link.sink.states()[-1] == "down")
            assert len(primary.connects) == 3


async def test_a_link_is_not_ready_while_it_closes_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that did not run for long answers a probe before its link has cleaned up; the answer is no."""
    may_close = asyncio.Event()
    close = LinkConnection.close

    async def wait_and_close(connection: LinkConnection, **options: bool) -> None:
        await may_close.wait()
        await close(connection, **options)

    monkeypatch.setattr(LinkConnection, "close", wait_and_close)
    settings = {"on_stall": "serve_stale", "stall_grace_s": 600.0}
    async with FakeServer(FakePrimary()) as server, running(config_for(server.port, **settings)) as link:
        await link.wait(lambda: link.status.ready)
        server.cut()
        await link.wait(lambda: not link.status.ready)
        assert (link.status.state, link.status.not_ready_reason) == (LinkState.LIVE, "its connection is lost")
        assert link.status.serves_stale, "not even for a moment is it out, where stale values are offered"
        may_close.set()
        await link.wait(lambda: link.status.ready)


async def test_the_grace_does_not_wait_for_an_address_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stale values are removed in time although an attempt to connect is under way, which may take longer."""
    primary = FakePrimary(retained=dict(VALUES))
    async with (
        FakeServer(primary) as server,
        running(config_for(server.port, on_session_loss="serve_stale", grace_s=0.1, session_expiry_s=0)) as link,
    ):
        await link.wait_state(LinkState.LIVE)
        attempts = 0

        async def hang(*_: object, **__: object) -> None:
            nonlocal attempts
            attempts += 1
            await asyncio.Event().wait()

        monkeypatch.setattr("fanout.link.link.connect", hang)
        server.cut()
        await link.wait(lambda: link.sink.named("tear_down"))
        assert attempts
        assert "grace" in link.sink.named("tear_down")[0]["detail"]
        assert link.values() == {}


@pytest.mark.parametrize("clients", [0, 1_000])
async def test_a_tear_down_gives_turns_to_others(clients: int) -> None:
    """Between two turns of the event loop no more is removed than clients can be told of in a few milliseconds."""
    count = 5_000
    primary = FakePrimary(retained={b"plant/%d" % number: b"x" for number in range(count)})
    async with FakeServer(primary) as server, running(config_for(server.port)) as link:
        await link.wait_state(LinkState.LIVE)
        link.sink.clear()
        link.sink.clients = clients
        primary.has_session = False
        primary.retained.clear()
        server.cut()
        removed = await removals_by_turn(link, until="live")
        assert sum(removed) == count
        assert max(removed) <= TOPICS_MAX
        assert max(removed) * clients <= DELIVERIES_MAX
        names = [event["name"] for event in link.sink.events]
        assert names.index("prepare_tear_down") < names.index("tear_down")


async def test_stale_values_are_served_and_told() -> None:
    """The status, the log line and the event say `stale`; a resync that brings nothing new dispatches nothing."""
    primary = FakePrimary(retained=dict(VALUES))
    lines: list[dict[str, object]] = []
    async with FakeServer(primary) as server:
        config = config_for(server.port, on_session_loss="serve_stale", grace_s=600.0)
        async with running(config, logger=logging_to(lines)) as link:
            await link.wait_state(LinkState.LIVE)
            link.sink.clear()
            primary.has_session = False
            primary.truncate_after = 3
            server.cut()
            await link.wait(lambda: link.status.shown_state == "stale")
            assert not link.status.ready
            assert 0 < (link.status.stale_left_s or 0) <= 600
            assert len(link.replica) == len(VALUES)
            primary.truncate_after = None
            primary.has_session = False
            server.cut()
            await link.wait_state(LinkState.LIVE)
            assert link.status.shown_state == "live"
            assert link.sink.dispatched() == []
            assert "stale" in link.sink.states()
            assert "session lost, serving stale values" in [line["event"] for line in lines]


async def test_a_connection_lost_during_the_tear_down() -> None:
    """A connection that ends while the replica is removed: the next one starts clean."""
    primary = FakePrimary(retained={b"plant/%d" % number: b"x" for number in range(100)})
    async with FakeServer(primary) as server, running(config_for(server.port)) as link:
        await link.wait_state(LinkState.LIVE)
        link.sink.may_tear_down = asyncio.Event()
        primary.has_session = False
        server.cut()
        await link.wait_state(LinkState.TEARING_DOWN)
        server.cut()
        await link.wait(lambda: link.status.not_ready_reason == "its connection is lost")
        link.sink.may_tear_down.set()
        await link.wait(lambda: len(primary.connects) == 3)
        assert primary.connects[2].clean_start
        await link.wait_state(LinkState.LIVE)
        assert len(link.replica) == 100


async def test_addresses_take_turns_until_one_becomes_live() -> None:
    """A failing address is followed by the next; one that was live is tried again first."""
    async with FakeServer(FakePrimary()) as server:
        addresses = tuple(Address("mqtt", "127.0.0.1", port) for port in (free_port(), server.port, free_port()))
        async with running(config_for(0, primaries=addresses)) as link:
            await link.wait_state(LinkState.LIVE)
            assert link.status.primary == str(addresses[1])
            server.cut()
            await link.wait(lambda: link.status.counters.reconnects_total == 1)
            assert link.status.primary == str(addresses[1])


async def test_a_primary_that_resets_each_live_connection_is_tried_less_and_less_often() -> None:
    """Each connection costs it a whole snapshot, so becoming live is not enough to forget the pauses."""
    times: list[float] = []
    async with FakeServer(FakePrimary()) as server, running(config_for(server.port, retry_max_s=0.4)) as link:
        for _ in range(5):
            await link.wait_state(LinkState.LIVE)
            times.append(time.monotonic())
            server.cut()
            await link.wait(lambda: link.status.state is not LinkState.LIVE)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert [gap >= least for gap, least in zip(gaps, (0.05, 0.1, 0.2, 0.4), strict=True)] == [True] * 4


async def wait_verdict(link: Running, *, topic: bytes = b"plant/0", flags: int = 3) -> ReasonCode:
    """Forward a message and return what becomes of it."""
    verdict = link.link.forward(row(topic, flags=flags), prefix=b"")
    return await asyncio.wait_for(verdict, 30) if isinstance(verdict, asyncio.Future) else verdict


async def test_a_held_link_reads_nothing() -> None:
    """Not on the connection that it has, and not on the next one; then it goes on where it was."""
    primary = FakePrimary()
    async with FakeServer(primary) as server, running(config_for(server.port)) as link:
        await link.wait_state(LinkState.LIVE)
        link.link.hold(True)
        before = link.status.counters.received_total
        link.link.forward(row(b"plant/0"), prefix=b"")
        await link.wait(lambda: unread_bytes(link) > 0)
        await turns_of_the_loop()
        assert (unread_bytes(link) > 0, link.status.counters.received_total) == (True, before)
        server.cut()
        await link.wait(lambda: link.status.state is LinkState.CONNECTING and unread_bytes(link) > 0)
        await turns_of_the_loop()
        assert (unread_bytes(link) > 0, link.status.state) == (True, LinkState.CONNECTING)
        link.link.hold(False)
        await link.wait_state(LinkState.LIVE)


@pytest.mark.parametrize("pieces", [0, 2])
@pytest.mark.parametrize("offline", [False, True])
async def test_a_tear_down_waits_while_the_link_is_held(*, pieces: int, offline: bool) -> None:
    """Held before it begins, or in the middle of it: no piece comes until who takes them has room again."""
    primary = FakePrimary(retained={b"plant/%d" % number: b"x" for number in range(5 * TOPICS_MAX)})
    async with FakeServer(primary) as server, running(config_for(server.port)) as link:
        await link.wait_state(LinkState.LIVE)
        link.sink.clear()
        removed = hold_at_removals(link, pieces=pieces)
        link.sink.may_tear_down = asyncio.Event()
        primary.has_session = False
        primary.retained.clear()
        server.cut()
        await link.wait_state(LinkState.TEARING_DOWN)
        if offline:
            server.cut()
            await link.wait(lambda: link.status.not_ready_reason == "its connection is lost")
        if not pieces:
            link.link.hold(True)
        link.sink.may_tear_down.set()
        await link.wait(lambda: len(removed) == pieces)
        for _ in range(3):
            await turns_of_the_loop()
        assert removed == [TOPICS_MAX] * pieces
        assert link.status.state is LinkState.TEARING_DOWN
        link.link.hold(False)
        await link.wait_state(LinkState.LIVE)
        assert sum(removed) == 5 * TOPICS_MAX


def hold_at_removals(running_link: Running, *, pieces: int) -> list[int]:
    """Hold a link when it has removed so many pieces, and return the sizes of all: those to come are added."""
    removed: list[int] = []
    dispatch = running_link.sink.dispatch

    def count(link: str, changes: Changes) -> None:
        removed.append(len(changes.dispatch))
        dispatch(link, changes)
        if len(removed) == pieces:
            running_link.link.hold(True)

    running_link.sink.dispatch = count  # type: ignore[method-assign]
    return removed


async def test_a_held_tear_down_does_not_keep_a_node_from_stopping() -> None:
    """The disk may be full for ever."""
    primary = FakePrimary(retained={b"plant/%d" % number: b"x" for number in range(2 * TOPICS_MAX)})
    async with FakeServer(primary) as server, running(config_for(server.port)) as link:
        await link.wait_state(LinkState.LIVE)
        removed = hold_at_removals(link, pieces=1)
        primary.has_session = False
        server.cut()
        await link.wait(lambda: removed)
        link.task.cancel()
        await asyncio.wait_for(asyncio.wait([link.task]), 30)
        assert (link.task.cancelled(), removed) == (True, [TOPICS_MAX])


async def test_a_tear_down_that_is_asked_for_as_the_node_stops_is_left_out() -> None:
    """Nobody reads any more; held, it would wait for ever for what has stopped, too."""
    primary = FakePrimary(retained=dict(VALUES))
    async with FakeServer(primary) as server, running(config_for(server.port)) as link:
        await link.wait_state(LinkState.LIVE)
        removed = hold_at_removals(link, pieces=0)
        event = link.sink.event

        def stop_at_loss(*names: Any, **fields: Any) -> None:
            event(*names, **fields)
            if fields.get("state") == "tearing_down":
                link.link.hold(True)
                link.task.cancel()

        link.sink.event = stop_at_loss  # type: ignore[method-assign]
        primary.has_session = False
        server.cut()
        done, _ = await asyncio.wait([link.task], timeout=30)
        assert done
        assert removed == []


async def test_what_expired_during_a_hold_goes_without_a_connection() -> None:
    """The primary is away, and the next attempt far: values are removed when the hold ends, not when it is made."""
    async with (
        FakeServer(FakePrimary()) as server,
        running(config_for(server.port, retry_min_s=3600.0, retry_max_s=3600.0)) as link,
    ):
        await link.wait_state(LinkState.LIVE)
        server.primary.publish(b"plant/0", b"x", properties=b"\x02\x00\x00\x00\x03")
        server.push()
        await link.wait(link.values)
        link.link.hold(True)
        server.cut()
        await link.wait_state(LinkState.DOWN)
        (value,) = link.replica.values.values()
        await link.wait(lambda: time.time_ns() > value[6])
        await turns_of_the_loop()
        assert link.values()
        link.link.hold(False)
        await link.wait(lambda: not link.values())


def unread_bytes(link: Running) -> int:
    """Return how many bytes the system has for a link that the link has not read."""
    connection = link.link._connection
    if connection is None or connection.socket is None or connection.socket.fileno() < 0:
        return 0
    count = bytearray(4)
    ioctl(connection.socket.fileno(), FIONREAD, count)
    return int.from_bytes(count, sys.byteorder)


async def turns_of_the_loop() -> None:
    """Let the event loop read what it may read: it looks at its sockets in each turn."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_forwarded_messages_get_a_verdict() -> None:
    """The primary's answer is the verdict; without the prefix, at QoS 1 at least, and it comes back."""
    primary = FakePrimary()
    config_selectors = (Selector("plant/#", prefix="site/", writes="forward"),)
    async with FakeServer(primary) as server, running(config_for(server.port, *config_selectors)) as link:
        assert link.link.forward(row(b"site/plant/0"), prefix=b"site/") is UNAVAILABLE
        await link.wait_state(LinkState.LIVE)
        verdict = link.link.forward(row(b"site/plant/0", b"1", flags=1), prefix=b"site/")
        assert isinstance(verdict, asyncio.Future)
        assert await asyncio.wait_for(verdict, 30) is ReasonCode.SUCCESS
        assert primary.published[-1] == (b"plant/0", b"1", 0b0011)
        await link.wait(lambda: link.values() == {"site/plant/0": b"1"})


async def test_a_forwarded_message_of_a_lost_session_is_unavailable() -> None:
    """When nobody will answer, the publisher is told."""
    primary = FakePrimary()
    async with FakeServer(primary) as server, running(config_for(server.port)) as link:
        await link.wait_state(LinkState.LIVE)
        primary.swallow = (Ack,)
        waiting = asyncio.create_task(wait_verdict(link))
        await link.wait(lambda: primary.published[-1][0] == b"plant/0")
        primary.has_session = False
        primary.swallow = ()
        server.cut()
        assert await waiting is UNAVAILABLE


async def test_a_stopping_link_leaves_nobody_waiting() -> None:
    """Verdicts that are still awaited when the link stops are given."""
    primary = FakePrimary()
    async with FakeServer(primary) as server, running(config_for(server.port)) as link:
        await link.wait_state(LinkState.LIVE)
        primary.swallow = (Ack,)
        verdict = link.link.forward(row(b"plant/0"), prefix=b"")
        assert isinstance(verdict, asyncio.Future)
        cancelled = link.link.forward(row(b"plant/0"), prefix=b"")
        assert isinstance(cancelled, asyncio.Future)
        cancelled.cancel()
        link.task.cancel()
        assert await asyncio.wait_for(verdict, 30) is UNAVAILABLE


async def test_the_log_lines_of_a_life() -> None:
    """Lifecycle at INFO, a lost connection and a tear-down at WARNING, with the link's name on each line."""
    lines: list[dict[str, object]] = []
    primary = FakePrimary(retained=dict(VALUES))
    async with FakeServer(primary) as server:
        config = config_for(server.port, snapshot_quiet_s=30.0)  # a machine that stands still cuts no snapshot short
        async with running(config, logger=logging_to(lines)) as link:
            await link.wait_state(LinkState.LIVE)
            primary.has_session = False
            server.cut()
            await link.wait(lambda: link.status.counters.epochs_total == 2)
            await link.wait_state(LinkState.LIVE)
    assert {line["link"] for line in lines} == {"plant"}
    events = [line["event"] for line in lines]
    assert events.count("snapshot complete") == 2
    assert events.count("replica torn down") == 1
    assert events.count("link is down") == 1


async def test_an_audit_is_asked_for_and_told() -> None:
    """Who asks gets the report; it stands in the status, in the log, and in the alarm until somebody confirms."""
    primary = FakePrimary(retained={b"plant/%d" % number: b"x" for number in range(10)})
    async with FakeServer(primary) as server, running(config_for(server.port)) as link:
        with pytest.raises(AuditRefused, match="the link is"):
            await link.link.audit()
        await link.wait_state(LinkState.LIVE)
        for number in range(5):
            del primary.retained[b"plant/%d" % number]
        report = await link.link.audit()
        assert (report.checked, report.kept, report.removed) == (10, 5, 0)
        assert "5 topics did not come" in (link.status.alarm or "")
        assert not link.status.ready
        assert "topics are unconfirmed" in (link.status.not_ready_reason or "")
        with pytest.raises(AuditRefused, match="5 topics are unconfirmed now, not 4"):
            await link.link.audit(confirmed=4)
        report = await link.link.audit(confirmed=5)
        assert report.removed == 5
        assert link.status.alarm is None
        assert link.status.not_ready_reason is None
        assert link.values().keys() == {topic.decode() for topic in primary.retained}
        status, totals = link.status, link.status.counters
        assert (totals.audits_total, totals.audits_failed_total, totals.audit_removed_total) == (2, 0, 5)
        assert status.newest_audit == report
        assert status.audit_completed_ns == status.audit_ended_ns > 0
        assert [json.loads(event["detail"])["removed"] for event in link.sink.named("audit")] == [0, 5]


async def test_a_link_that_serves_in_doubt_stays_ready() -> None:
    """The alarm stands all the same."""
    primary = FakePrimary(retained={b"plant/%d" % number: b"x" for number in range(10)})
    async with FakeServer(primary) as server, running(config_for(server.port, on_doubt="serve")) as link:
        await link.wait_state(LinkState.LIVE)
        primary.hidden = {b"plant/0"}
        assert (await link.link.audit()).kept == 1
        assert link.status.ready
        assert link.status.alarm is not None


async def test_an_audit_that_is_cut_short_takes_readiness_away() -> None:
    """What was dropped may have been an update: not ready until an audit, or a verification, has come to its end."""
    primary = FakePrimary(retained=dict(VALUES))
    async with FakeServer(primary) as server, running(config_for(server.port, snapshot_quiet_s=0.5)) as link:
        await link.wait_state(LinkState.LIVE)
        await link.link.audit()
        completed_ns = link.status.audit_ended_ns
        primary.truncate_after = 100
        report = await link.link.audit()
        primary.truncate_after = None
        assert "ended after 9" in report.failure
        status, totals = link.status, link.status.counters
        assert (totals.audits_total, totals.audits_failed_total, status.audit_completed_ns) == (2, 1, completed_ns)
        assert (status.newest_audit, status.audit_ended_ns > completed_ns) == (report, True)
        assert not link.status.ready
        assert "an audit failed" in (link.status.not_ready_reason or "")
        assert len(link.values()) == len(VALUES)
        server.cut()
        await link.wait(lambda: link.status.ready)
        assert link.status.not_ready_reason is None


async def test_a_stop_ends_the_wait_for_an_audit() -> None:
    """Nobody waits for the audit of a link that is gone."""
    primary = FakePrimary(retained=dict(VALUES))
    async with FakeServer(primary) as server, running(config_for(server.port)) as link:
        await link.wait_state(LinkState.LIVE)
        primary.truncate_after = 0
        waiting = asyncio.create_task(link.link.audit())
        await asyncio.sleep(0)
    assert (await waiting).failure


async def test_a_stall_is_an_error_with_its_time_until_it_is_over() -> None:
    """It stands in the place of an older error, which is over since the link was live; stalls are counted."""
    primary = FakePrimary(retained=dict(VALUES))
    async with FakeServer(primary) as server, running(config_for(server.port)) as link:
        await link.wait_state(LinkState.LIVE)
        server.cut()
        await link.wait(lambda: link.status.last_error is not None)
        await link.wait_state(LinkState.LIVE)
        first = link.status
        assert (first.last_error_over, first.counters.stalls_total) == (True, 0)
        primary.silent_control = True
        await link.wait_state(LinkState.STALLED)
        stalled = link.status
        assert (stalled.last_error, stalled.last_error_over, stalled.counters.stalls_total) == (
            "heartbeats do not come back",
            False,
            1,
        )
        assert stalled.last_error_ns is not None
        assert first.last_error_ns is not None
        assert stalled.last_error_ns > first.last_error_ns
        assert stalled.last_error_hint
        primary.silent_control = False
        await link.wait_state(LinkState.LIVE)
        assert (link.status.last_error_over, link.status.counters.stalls_total) == (True, 1)


async def test_the_end_of_heartbeats_is_told_and_their_return() -> None:
    """Once each, however many are refused, and the status says why lag is not known."""
    lines: list[dict[str, object]] = []
    primary = FakePrimary(control_code=0x97)
    async with FakeServer(primary) as server, running(config_for(server.port), logger=logging_to(lines)) as link:
        await link.wait(lambda: link.status.lag_ns is not None)
        primary.allow_control = False
        before = len(primary.published)
        await link.wait(lambda: len(primary.published) >= before + 3)
        assert link.status.lag_ns is None
        assert "Quota exceeded" in link.status.heartbeat_refusal
        primary.allow_control = True
        await link.wait(lambda: link.status.lag_ns is not None)
        assert (link.status.heartbeat_refusal, link.status.ready) == ("", True)
    told = [line["event"] for line in lines if "heartbeats" in str(line["event"])]
    assert told == ["no heartbeats, lag is unknown and a stall is not noticed", "heartbeats come back"]


async def test_a_stalled_link_offers_its_complete_values_as_stale() -> None:
    """With `on_stall`: from the stall on, over the lost connection; not with fewer topics than were wanted."""
    primary = FakePrimary(retained=dict(VALUES))
    settings = {"on_stall": "serve_stale", "stall_grace_s": 600.0, "connect_timeout_s": 0.3}
    async with FakeServer(primary) as server, running(config_for(server.port, **settings)) as link:
        assert (link.status.stale_s, link.status.serves_stale) == (None, False)
        await link.wait_state(LinkState.LIVE)
        assert (link.status.stale_s, link.status.serves_stale) == (0.0, False)
        primary.silent_control = True
        primary.swallow = (Connack,)
        await link.wait_state(LinkState.STALLED)
        assert link.status.serves_stale
        assert link.status.stale_s is not None
        assert link.status.stale_s >= 0.6
        await link.wait_state(LinkState.CONNECTING)
        assert link.status.serves_stale
        primary.silent_control, primary.swallow = False, ()
        await link.wait(lambda: link.status.ready)
        assert (link.status.stale_s, link.status.serves_stale) == (0.0, False)
    few = Selector("plant/#", min_topics=len(VALUES) + 1)
    async with FakeServer(primary) as server, running(config_for(server.port, few, **settings)) as link:
        await link.wait_state(LinkState.LIVE)
        server.cut()
        await link.wait(lambda: link.status.state is not LinkState.LIVE)
        assert not link.status.serves_stale


async def test_values_below_a_primary_that_is_not_ready_are_stale() -> None:
    """A fanout node above that stalls withholds readiness here, too: the values are complete, and may be behind."""
    primary = FakePrimary(connack=Connack(False, 0, STAMPING), retained=dict(VALUES))
    settings = {"on_stall": "serve_stale", "stall_grace_s": 600.0}
    async with FakeServer(primary) as server, running(config_for(server.port, **settings)) as link:
        await link.wait_state(LinkState.LIVE)
        for reason, stale in (("link x is stalled", True), ("", False)):
            notice = ReadinessNotice(reason, (("root",),))
            primary.deliver(READINESS_TOPIC, encode_readiness_notice(notice), qos=1, retain=True)
            server.push()
            await link.wait(lambda stale=stale: link.status.serves_stale is stale)
            assert link.status.ready is not stale


async def test_heartbeats_that_the_primary_dropped_are_told() -> None:
    """They are counted, too; the link is ready again when the audit that follows has ended."""
    lines: list[dict[str, object]] = []
    primary = FakePrimary()
    async with FakeServer(primary) as server:
        config = config_for(server.port, heartbeat_s=1.0, audit_interval_s=0.0)
        async with running(config, logger=logging_to(lines)) as link:
            await link.wait_state(LinkState.LIVE)
            before = len(primary.published)
            primary.silent_control = True
            await link.wait(lambda: len(primary.published) > before)
            primary.silent_control = False
            await link.wait(lambda: link.status.counters.audits_total)
            await link.wait(lambda: link.status.ready)
            assert link.status.counters.heartbeats_lost_total == 1
    (told,) = [line for line in lines if "dropped heartbeats" in str(line["event"])]
    assert told["heartbeats"] == 1


async def test_an_announcement_gets_the_answer_of_the_primary() -> None:
    """As a forwarded message does; none is sent before the link is live. What is counted is in the status."""
    primary = FakePrimary(allow_control=False)
    async with FakeServer(primary) as server, running(config_for(server.port)) as link:
        missing = link.link.missing
        payload = missing.announcement("plant/new", Waiting(1))
        assert link.link.announce_missing(payload) is UNAVAILABLE
        await link.wait_state(LinkState.LIVE)
        answer = link.link.announce_missing(payload)
        assert isinstance(answer, asyncio.Future)
        assert await answer is ReasonCode.NOT_AUTHORIZED
        missing.add(b"plant/other", Waiting(1))
        missing.note_answer("plant/new", accepted=False, now=1.0)
        status = link.status
        assert (
            status.missing_pending,
            status.counters.missing_dropped_total,
            status.counters.missing_announced_total,
        ) == (1, 1, 0)
    assert [topic for topic, *_ in primary.published].count(b"fanout/control/missing") == 1


@pytest.mark.parametrize("comes_back", [True, False])
async def test_markers_of_a_pool_come_back_before_the_first_cut(comes_back: bool) -> None:
    """A link that has just started has markers, though it can send one only once it listens to another member."""
    primary = FakePrimary(allow_control=comes_back)
    async with FakeServer(primary) as server, running(config_for(server.port)) as link:
        assert not link.link.control.is_open
        await link.wait_state(LinkState.LIVE)
        assert (link.link.control.is_open, link.link.may_send_marker) == (comes_back, False)
        with pytest.raises(ValueError, match="can send no marker now"):
            link.link.send_marker()
        link.link.cut(["other"])
        await link.wait(lambda: link.link.may_send_marker is comes_back)
        if comes_back:
            marker = link.link.send_marker()
            await link.wait(lambda: any(event["marker"] == marker for event in link.sink.named("marker")))


async def test_a_marker_is_dispatched_between_what_came_before_it_and_behind_it() -> None:
    """In one read: who splits streams at a marker has all that was in front of it dispatched, and nothing else."""
    primary = FakePrimary()
    async with FakeServer(primary) as server, running(config_for(server.port)) as link:
        await link.wait_state(LinkState.LIVE)
        link.link.cut(["edge-2"])
        await link.wait(lambda: b"fanout/control/edge-2/plant" in primary.subscriptions)
        begun = len(link.sink.steps)
        for topic, payload in ((b"plant/1", b"1"), (b"fanout/control/edge-2/plant", b"123 4"), (b"plant/2", b"2")):
            primary.publish(topic, payload)
        server.push()
        await link.wait(lambda: [each for each in link.sink.steps[begun:] if each[1].updates[0][0] == b"plant/2"])
        (marker,) = [each for each in link.sink.named("marker") if each["node"] == "edge-2"]
        steps = enumerate(link.sink.steps)
        dispatched = [(number, changes.updates[0][0]) for number, (step, changes) in steps if step == "dispatch"]
        assert [topic for number, topic in dispatched if number < marker["step"]][-1] == b"plant/1"
        assert [topic for number, topic in dispatched if number >= marker["step"]] == [b"plant/2"]
