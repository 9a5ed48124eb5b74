"""Snapshots and live updates from a real Mosquitto with its default configuration."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from fanout.config import Address
from fanout.link.model.evidence import Evidence
from fanout.link.model.states import LinkState
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.update import ChangeKind, Phase, content_digest
from fanout.selection import Selector
from tests.link.harness import config_for, logging_to, running
from tests.support.mosquitto import Mosquitto, free_port, load_retained, publish_all, publisher
from tests.support.network import Proxy

pytestmark = pytest.mark.mosquitto


def sensor_values(count: int, *, size: int = 64) -> dict[str, bytes]:
    """Return `count` topics of a plant with distinct payloads."""
    return {
        f"plant/line{number // 2000}/cell{number // 200 % 10}/sensor{number}/temp": str(number).encode().rjust(size)
        for number in range(count)
    }


def publish_properties() -> Properties:
    """Return empty properties of a PUBLISH."""
    return Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]


async def load(mosquitto: Mosquitto, values: dict[str, bytes]) -> None:
    """Give Mosquitto retained values, off the event loop."""
    assert await asyncio.to_thread(load_retained, mosquitto.port, values.items()) == len(values)


async def test_every_retained_value_arrives_with_evidence(mosquitto: Mosquitto) -> None:
    """20 000 retained values are all held, equal, and only then complete, proved by marker and sentinel."""
    values = sensor_values(20_000)
    await load(mosquitto, values)
    async with running(config_for(mosquitto.port)) as link:
        await link.wait_state(LinkState.LIVE)
        assert link.values() == values
        status = link.status
        assert status.evidence is Evidence.MARKER
        assert status.selectors[0].complete
        assert status.selectors[0].digest == sum(content_digest(t.encode(), p) for t, p in values.items()) % 2**64
        assert status.snapshot_topics == 20_000
        assert status.snapshot_seconds is not None
        assert status.primary == mosquitto.address
        (complete,) = link.sink.named("complete")
        assert complete["evidence"] == "marker"
        assert complete["topics"] == 20_000
        assert complete["digest"] == status.selectors[0].digest
        assert complete["detail"] == "sentinel $SYS/broker/version"
        assert link.sink.states() == ["connecting", "snapshot", "proving", "live"]
        assert len(link.sink.dispatched()) == 20_000
        assert all(changes.phase is Phase.SNAPSHOT for _, changes in link.sink.steps)
        assert all(update[2] == 1 and update[3] for update in link.replica.values.values())
        assert status.epoch == complete["epoch"] > 0


@pytest.mark.long
@pytest.mark.parametrize("event_loop_name", ["asyncio", "uvloop"])
def test_200_000_retained_values_arrive(mosquitto: Mosquitto, event_loop_name: str) -> None:
    """The full size, on both event loops; on a busy machine it may take more than one attempt."""
    values = sensor_values(200_000)

    async def take() -> None:
        await load(mosquitto, values)
        async with running(config_for(mosquitto.port, snapshot_quiet_s=5.0)) as link:
            await link.wait_state(LinkState.LIVE, 100)
            assert link.values() == values
            assert link.status.evidence is Evidence.MARKER

    if event_loop_name == "uvloop":
        uvloop = pytest.importorskip("uvloop")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(take())
    else:
        asyncio.run(take())


async def test_an_empty_retained_set_is_complete(mosquitto: Mosquitto) -> None:
    """Nothing retained is a snapshot, too."""
    async with running(config_for(mosquitto.port)) as link:
        await link.wait_state(LinkState.LIVE)
        assert link.values() == {}
        assert link.status.evidence is Evidence.MARKER


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_live_updates_keep_order_qos_and_flag(mosquitto: Mosquitto, qos: int) -> None:
    """Live updates at every QoS arrive once, in order, retained or not as they were published."""
    await load(mosquitto, {"plant/a": b"0"})
    async with running(config_for(mosquitto.port, Selector("plant/#", qos=2))) as link:
        await link.wait_state(LinkState.LIVE)
        link.sink.clear()

        def publish() -> None:
            with publisher(mosquitto.port) as client:
                publish_all(client, [("plant/a", b"%d" % number) for number in range(1, 301)], qos=qos)
                publish_all(client, [("plant/b", b"message")], qos=qos, retain=False)
                publish_all(client, [("elsewhere", b"1")], qos=qos)

        await asyncio.to_thread(publish)
        await link.wait(lambda: link.sink.payloads(b"plant/b") == [b"message"])
        assert link.sink.payloads(b"plant/a") == [b"%d" % number for number in range(1, 301)]
        assert {update[2] for update in link.sink.dispatched()} == {qos}
        assert link.values() == {"plant/a": b"300"}
        assert link.sink.recorded() == link.sink.dispatched()
        assert all(changes.phase is Phase.LIVE for _, changes in link.sink.steps)


async def test_more_unacknowledged_messages_than_the_window_flow(mosquitto: Mosquitto) -> None:
    """A burst far above our Receive Maximum arrives whole, since batches are acknowledged as they come."""
    async with running(config_for(mosquitto.port, receive_maximum=100)) as link:
        await link.wait_state(LinkState.LIVE)

        def publish() -> None:
            with publisher(mosquitto.port) as client:
                publish_all(client, [(f"plant/{number}", b"x") for number in range(5000)])

        await asyncio.to_thread(publish)
        await link.wait(lambda: len(link.replica) == 5000)
        assert link.status.state is LinkState.LIVE


async def test_records_before_dispatch(mosquitto: Mosquitto) -> None:
    """Each batch is recorded before it is dispatched."""
    await load(mosquitto, sensor_values(3000))
    async with running(config_for(mosquitto.port)) as link:
        await link.wait_state(LinkState.LIVE)
        steps = link.sink.steps
        assert len(steps) % 2 == 0
        for (first, recorded), (second, dispatched) in zip(steps[::2], steps[1::2], strict=True):
            assert (first, second) == ("record", "dispatch")
            assert recorded is dispatched


async def test_a_zero_length_payload_removes_the_value(mosquitto: Mosquitto) -> None:
    """A retained message without payload removes the topic and is dispatched once."""
    await load(mosquitto, {"plant/a": b"1", "plant/b": b"2"})
    async with running(config_for(mosquitto.port)) as link:
        await link.wait_state(LinkState.LIVE)
        link.sink.clear()
        await load(mosquitto, {"plant/a": b""})
        await link.wait(lambda: "plant/a" not in link.values())
        assert link.sink.payloads(b"plant/a") == [b""]
        assert ChangeKind.REMOVED in link.sink.steps[0][1].kinds
        assert link.values() == {"plant/b": b"2"}
        assert link.status.selectors[0].topics == 1


async def test_message_expiry_removes_the_value(mosquitto: Mosquitto) -> None:
    """A value with Message Expiry Interval is removed when it has passed, without a message from the primary."""
    async with running(config_for(mosquitto.port)) as link:
        await link.wait_state(LinkState.LIVE)

        def publish() -> None:
            properties = publish_properties()
            properties.MessageExpiryInterval = 1
            with publisher(mosquitto.port) as client:
                publish_all(client, [("plant/short", b"1")], properties=properties)
                publish_all(client, [("plant/long", b"1")])

        await asyncio.to_thread(publish)
        await link.wait(lambda: len(link.replica) == 2)
        await link.wait(lambda: link.values() == {"plant/long": b"1"})
        assert link.sink.payloads(b"plant/short") == [b"1", b""]
        assert link.status.state is LinkState.LIVE


async def test_properties_are_kept(mosquitto: Mosquitto) -> None:
    """The MQTT 5 properties of a message stay with it, in a snapshot and live."""

    def publish(topic: str) -> None:
        properties = publish_properties()
        properties.ContentType = "text/plain"
        properties.UserProperty = [("unit", "K")]
        with publisher(mosquitto.port) as client:
            publish_all(client, [(topic, b"1")], properties=properties)

    await asyncio.to_thread(publish, "plant/before")
    async with running(config_for(mosquitto.port)) as link:
        await link.wait_state(LinkState.LIVE)
        await asyncio.to_thread(publish, "plant/after")
        await link.wait(lambda: len(link.replica) == 2)
        for update in link.replica.values.values():
            assert b"\x03\x00\x0atext/plain" in update[4]
            assert b"\x26\x00\x04unit\x00\x01K" in update[4]


async def test_several_selectors_with_prefix_and_exclude(mosquitto: Mosquitto) -> None:
    """Each selector brings its own topics under its own names; the rest is neither held nor dispatched."""
    values = {"plant/a/temp": b"1", "plant/a/debug": b"2", "office/x": b"3", "garage/x": b"4"}
    await load(mosquitto, values)
    selectors = (Selector("plant/#", exclude=("plant/+/debug",)), Selector("office/+", prefix="site/", qos=0))
    async with running(config_for(mosquitto.port, *selectors)) as link:
        await link.wait_state(LinkState.LIVE)
        assert link.values() == {"plant/a/temp": b"1", "site/office/x": b"3"}
        assert [each.topics for each in link.status.selectors] == [1, 1]
        assert [each.evidence for each in link.status.selectors] == [Evidence.MARKER] * 2
        assert link.sink.states() == ["connecting", "snapshot", "proving", "snapshot", "proving", "live"]
        assert link.status.counters.outside_total == 1
        await load(mosquitto, {"office/y": b"5", "plant/b/debug": b"6"})
        await link.wait(lambda: "site/office/y" in link.values())
        assert len(link.replica) == 3
        assert link.replica.values[b"site/office/y"][7] == content_digest(b"office/y", b"5")


async def test_a_full_mirror_leaves_control_topics_and_system_topics_out(mosquitto: Mosquitto) -> None:
    """The selector `#` replicates neither control topics, of any node, nor `$SYS`."""
    await load(mosquitto, {"a": b"1", "fanout/control/other/link/fence": b"x"})
    async with running(config_for(mosquitto.port, Selector("#"))) as link:
        await link.wait_state(LinkState.LIVE)
        heartbeats = len(link.sink.named("heartbeat"))
        await link.wait(lambda: len(link.sink.named("heartbeat")) > heartbeats + 2)
        assert link.values() == {"a": b"1"}
        assert {update[0] for update in link.sink.dispatched()} == {b"a"}


async def test_values_above_the_limit_leave_the_link_incomplete(mosquitto: Mosquitto) -> None:
    """With more topics than the replica may hold the link runs, but is not complete, and says why."""
    await load(mosquitto, sensor_values(30))
    async with running(config_for(mosquitto.port), topics_max=10) as link:
        await link.wait_state(LinkState.LIVE)
        assert len(link.replica) == 10
        assert len(link.sink.dispatched()) == 30
        status = link.status
        assert not status.selectors[0].complete
        assert status.evidence is None
        assert status.refused_total == 20
        assert status.last_error is not None
        assert "over topics_max" in status.last_error
        assert status.last_error_hint is not None
        assert "Raise topics_max" in status.last_error_hint
        assert status.short_by == ("topics_max",)
        await load(mosquitto, dict.fromkeys(sensor_values(30), b""))
        await link.wait(lambda: link.status.selectors[0].complete)
        assert link.status.last_error is None


async def test_live_updates_during_the_snapshot_are_not_lost(mosquitto: Mosquitto) -> None:
    """Topics that change while the snapshot arrives end with their newest value."""
    values = sensor_values(20_000)
    await load(mosquitto, values)
    busy = list(values)[::100]
    with publisher(mosquitto.port) as client:
        async with running(config_for(mosquitto.port)) as link:

            def publish() -> None:
                for number in range(10):
                    publish_all(client, [(topic, b"live %d" % number) for topic in busy], qos=1)

            await asyncio.to_thread(publish)
            await link.wait_state(LinkState.LIVE)
            expected = values | dict.fromkeys(busy, b"live 9")
            await link.wait(lambda: link.values() == expected)


async def test_a_truncated_snapshot_is_never_live(mosquitto: Mosquitto) -> None:
    """A reader too slow for Mosquitto's queue does not become live; it says so, and retries."""
    values = sensor_values(20_000, size=1000)
    await load(mosquitto, values)
    async with Proxy(mosquitto.port) as proxy:
        proxy.throttle_bytes_per_s = 4_000_000
        config = config_for(proxy.port, receive_buffer_bytes=65_536, snapshot_quiet_s=0.5)
        async with running(config) as link:
            await link.wait(lambda: link.status.counters.truncated_total >= 2, 40)
            assert "live" not in link.sink.states()
            # An attempt may end between the two, and its tear-down is told a moment later.
            await link.wait(lambda: str(link.status.last_error) in link.sink.named("tear_down")[-1]["detail"])
            status = link.status
            assert status.evidence is None
            reasons = [event["detail"] for event in link.sink.named("tear_down")]
            assert all("the retained set of plant/# ended after" in reason for reason in reasons)
            assert all("without the sentinel" in reason for reason in reasons)
            assert link.sink.named("complete") == []
            assert "max_queued_messages" in (status.last_error_hint or "")
            assert "are being dropped" in mosquitto.log_text()
            few = dict(list(values.items())[:200])
            proxy.throttle_bytes_per_s = None  # clears would be dropped as well: tests/link/snapshot/test_absence.py
            await load(mosquitto, {topic: b"" for topic in values if topic not in few})
            await link.wait_state(LinkState.LIVE, 40)
            await link.wait(lambda: link.values() == few, 40)  # the last clears may be behind the snapshot
            assert link.status.counters.epochs_total >= 3


async def test_truncation_shows_although_live_updates_go_on(mosquitto: Mosquitto) -> None:
    """When silence never comes, a later request that is answered shows that the rest was dropped."""
    values = sensor_values(20_000, size=1000)
    await load(mosquitto, values)
    ends = asyncio.Event()

    async def keep_publishing() -> None:
        with publisher(mosquitto.port) as client:
            while not ends.is_set():
                await asyncio.to_thread(publish_all, client, [("plant/live", b"x")], qos=1)

    async with Proxy(mosquitto.port) as proxy, asyncio.TaskGroup() as group:
        group.create_task(keep_publishing())
        proxy.throttle_bytes_per_s = 8_000_000
        config = config_for(proxy.port, receive_buffer_bytes=65_536, snapshot_quiet_s=0.5)
        try:
            async with running(config) as link:
                await link.wait(lambda: link.status.counters.truncated_total >= 1, 40)
                assert "live" not in link.sink.states()
        finally:
            ends.set()


async def test_without_permission_to_publish_the_barrier_is_the_evidence(tmp_path: Path) -> None:
    """Where an ACL keeps the control topic away, the snapshot is proved by the barrier, and lag is unknown."""
    acl = tmp_path / "acl"
    acl.write_text("topic read plant/#\ntopic write plant/#\ntopic read $SYS/broker/version\n")
    server = Mosquitto(tmp_path, settings=[f"acl_file {acl}"])
    server.start()
    try:
        await load(server, {"plant/a": b"1"})
        async with running(config_for(server.port)) as link:
            await link.wait_state(LinkState.LIVE)
            assert link.values() == {"plant/a": b"1"}
            assert link.status.evidence is Evidence.BARRIER
            assert link.status.lag_ns is None
            assert link.status.round_trip_ns is None
            assert link.sink.named("complete")[0]["evidence"] == "barrier"
            assert link.sink.named("heartbeat") == []
            await load(server, {"plant/a": b"2"})
            await link.wait(lambda: link.values() == {"plant/a": b"2"})
    finally:
        server.stop()


async def test_without_anything_to_mark_the_end_the_set_is_taken_twice(tmp_path: Path) -> None:
    """Where an ACL leaves nothing but the selector: PINGRESP alone comes behind a set that was cut short, too."""
    acl = tmp_path / "acl"
    acl.write_text("topic readwrite plant/#\n")
    server = Mosquitto(tmp_path, settings=[f"acl_file {acl}"])
    server.start()
    try:
        await load(server, {"plant/a": b"1"})
        async with running(config_for(server.port, snapshot_quiet_s=0.3)) as link:
            await link.wait_state(LinkState.LIVE)
            assert link.values() == {"plant/a": b"1"}
            assert link.status.evidence is Evidence.TWO_PASS
            assert not link.status.ready
            assert "allow the link's user to read $SYS/broker/version" in (link.status.not_ready_reason or "")
    finally:
        server.stop()


async def test_without_system_topics_the_link_brings_its_own_sentinel(tmp_path: Path) -> None:
    """Where `$SYS` cannot be read, a retained message of the link is the sentinel; it is gone when the link stops."""
    acl = tmp_path / "acl"
    acl.write_text("topic readwrite plant/#\ntopic readwrite fanout/#\n")
    server = Mosquitto(tmp_path, settings=[f"acl_file {acl}"])
    server.start()
    try:
        await load(server, {"plant/a": b"1"})
        async with running(config_for(server.port)) as link:
            await link.wait_state(LinkState.LIVE)
            assert link.status.evidence is Evidence.MARKER
            assert link.sink.named("complete")[0]["detail"] == "sentinel fanout/control/edge-1/plant/fence"
        async with running(config_for(server.port, Selector("fanout/#"), control_topic="other")) as link:
            await link.wait_state(LinkState.LIVE)
            assert link.values() == {}
    finally:
        server.stop()


async def test_heartbeats_measure_lag_without_traffic(mosquitto: Mosquitto) -> None:
    """Heartbeats come back by themselves, and the lag grows when they do not."""
    async with Proxy(mosquitto.port) as proxy, running(config_for(proxy.port)) as link:
        await link.wait_state(LinkState.LIVE)
        count = len(link.sink.named("heartbeat"))
        await link.wait(lambda: len(link.sink.named("heartbeat")) > count + 2)
        status = link.status
        assert status.lag_ns is not None
        assert 0 < status.lag_ns < 15e9
        assert status.round_trip_ns is not None
        assert status.heartbeat_age_s is not None
        assert all(event["lag_us"] > 0 for event in link.sink.named("heartbeat"))
        proxy.pause()
        await link.wait_state(LinkState.STALLED, 15)  # the Keep Alive would take 45 s
        lag_ns = link.status.lag_ns
        assert lag_ns is not None
        assert lag_ns > 0.2e9
        assert link.status.state is LinkState.STALLED
        proxy.resume()
        await link.wait_state(LinkState.LIVE)
        assert link.sink.states()[-3:] == ["stalled", "verifying", "live"]
        assert link.status.counters.epochs_total == 1


async def test_a_stall_that_does_not_end_leads_to_a_new_connection(mosquitto: Mosquitto) -> None:
    """A link that stays stalled connects again and resumes its session."""
    async with Proxy(mosquitto.port) as proxy, running(config_for(proxy.port)) as link:
        await link.wait_state(LinkState.LIVE)
        proxy.pause()
        await link.wait(lambda: "down" in link.sink.states())
        proxy.cut()
        proxy.resume()
        await link.wait_state(LinkState.LIVE)
        assert link.status.counters.epochs_total == 1
        assert link.status.counters.reconnects_total == 1


@pytest.mark.parametrize("policy", ["bridge", "keep"])
async def test_mqtt_3_1_1_keeps_the_retain_flag(mosquitto: Mosquitto, policy: str) -> None:
    """Over MQTT 3.1.1 live updates are retained, by the bridge bit or because the configuration says so."""
    await load(mosquitto, {"plant/a": b"1"})
    async with running(config_for(mosquitto.port, version=4, retain_policy=policy)) as link:
        await link.wait_state(LinkState.LIVE)
        assert link.values() == {"plant/a": b"1"}
        await load(mosquitto, {"plant/a": b"2", "plant/b": b"3"})
        await link.wait(lambda: link.values() == {"plant/a": b"2", "plant/b": b"3"})
        await load(mosquitto, {"plant/a": b""})
        await link.wait(lambda: link.values() == {"plant/b": b"3"})
        expected = Evidence.BARRIER if policy == "bridge" else Evidence.MARKER
        assert link.status.evidence is expected  # a bridge does not get its own messages back

        def publish() -> None:
            with publisher(mosquitto.port) as client:
                publish_all(client, [("plant/c", b"message")], retain=False)

        await asyncio.to_thread(publish)
        await link.wait(lambda: link.sink.payloads(b"plant/c") == [b"message"])
        assert ("plant/c" in link.values()) == (policy == "keep")


async def test_addresses_of_one_primary_are_tried_in_turn(mosquitto: Mosquitto) -> None:
    """An address that does not answer is passed over."""
    addresses = (Address("mqtt", "127.0.0.1", free_port()), Address("mqtt", "127.0.0.1", mosquitto.port))
    async with running(config_for(0, primaries=addresses)) as link:
        await link.wait_state(LinkState.LIVE)
        assert link.status.primary == mosquitto.address
        assert "cannot connect" in (link.status.last_error or "")


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_forwarded_writes_come_back_as_updates(mosquitto: Mosquitto, qos: int) -> None:
    """What a local client writes goes to the primary first, and returns through the subscription."""
    selector = Selector("plant/#", qos=2, prefix="site/", writes="forward")
    async with running(config_for(mosquitto.port, selector)) as link:
        await link.wait_state(LinkState.LIVE)
        verdicts = [
            link.link.forward(
                (b"site/plant/%d" % number, b"x", qos << 1 | 1, 1 if qos else 0, b"", None, 0), prefix=b"site/"
            )
            for number in range(200)
        ]
        for verdict in verdicts:
            assert isinstance(verdict, asyncio.Future)
            assert await asyncio.wait_for(verdict, 30) is ReasonCode.SUCCESS
        await link.wait(lambda: len(link.replica) == 200)
        assert {update[2] for update in link.replica.values.values()} == {max(1, qos)}
        assert link.status.state is LinkState.LIVE


async def test_forwarding_against_an_acl_is_refused(tmp_path: Path) -> None:
    """The primary's refusal is the verdict."""
    acl = tmp_path / "acl"
    acl.write_text("topic read plant/#\ntopic readwrite fanout/#\n")
    server = Mosquitto(tmp_path, settings=[f"acl_file {acl}"])
    server.start()
    try:
        async with running(config_for(server.port, Selector("plant/#", writes="forward"))) as link:
            await link.wait_state(LinkState.LIVE)
            verdict = link.link.forward((b"plant/0", b"x", 3, 1, b"", None, 0), prefix=b"")
            assert isinstance(verdict, asyncio.Future)
            assert await asyncio.wait_for(verdict, 30) is ReasonCode.NOT_AUTHORIZED
    finally:
        server.stop()


async def test_a_selector_that_the_access_rules_hide_is_shown_as_empty_or_not_readable(tmp_path: Path) -> None:
    """Mosquitto grants the SUBSCRIBE and sends nothing: told once per epoch, and not ready where topics are due."""
    acl = tmp_path / "acl"
    acl.write_text("topic readwrite fanout/#\ntopic read $SYS/#\ntopic write plant/#\ntopic readwrite office/#\n")
    server = Mosquitto(tmp_path, settings=[f"acl_file {acl}"])
    server.start()
    lines: list[dict[str, object]] = []
    try:
        await load(server, {**{f"plant/{number}": b"x" for number in range(5)}, "office/1": b"x"})
        selectors = (Selector("plant/#"), Selector("office/#"))
        async with running(config_for(server.port, *selectors), logger=logging_to(lines)) as link:
            await link.wait_state(LinkState.LIVE)
            assert [(one.topics, one.maybe_unreadable) for one in link.status.selectors] == [(0, True), (1, False)]
            assert link.status.ready
            (told,) = (line for line in lines if line["event"] == "retained set is empty, or not readable")
            assert told["selector"] == "plant/#"
            await load(server, {"office/1": b""})
            await link.wait(lambda: not link.values())
            assert not link.status.selectors[1].maybe_unreadable
        expecting = (Selector("plant/#", min_topics=5), Selector("office/#"))
        async with running(config_for(server.port, *expecting, client_id="expecting")) as link:
            await link.wait_state(LinkState.LIVE)
            assert not link.status.ready
            assert link.status.not_ready_reason == (
                "plant/# has no topics, and min_topics = 5: let anonymous clients read all of it in the primary's"
                " access rules, or lower min_topics"
            )
    finally:
        server.stop()
