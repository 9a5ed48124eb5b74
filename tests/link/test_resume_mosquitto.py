"""Lost connections, lost sessions and lost messages, with a real Mosquitto and a network that can be cut."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from fanout.link.model.states import LinkState
from fanout.mqtt.packets import Publish
from fanout.selection import Selector
from tests.link.harness import Running, config_for, logging_to, running
from tests.support.mosquitto import Mosquitto, load_retained, publish_all, publisher
from tests.support.network import Proxy
from tests.support.raw_client import RawClient

pytestmark = pytest.mark.mosquitto


async def load(mosquitto: Mosquitto, values: dict[str, bytes]) -> None:
    """Give Mosquitto retained values, off the event loop."""
    assert await asyncio.to_thread(load_retained, mosquitto.port, values.items()) == len(values)


async def publish(mosquitto: Mosquitto, values: dict[str, bytes], *, qos: int = 1) -> None:
    """Publish retained values at a QoS, off the event loop."""

    def send() -> None:
        with publisher(mosquitto.port) as client:
            publish_all(client, values.items(), qos=qos)
            publish_all(client, [("barrier", b"")])  # once it is acknowledged, all at QoS 0 have arrived

    await asyncio.to_thread(send)


VALUES = {f"plant/{number}": b"%d" % number for number in range(3000)}


async def test_a_small_receive_maximum_does_not_end_a_resumed_session(mosquitto: Mosquitto) -> None:
    """More than that is pending, and Mosquitto does not keep to it: the link comes back in one attempt all the same."""
    await load(mosquitto, VALUES)
    async with Proxy(mosquitto.port) as proxy, running(config_for(proxy.port, receive_maximum=20)) as link:
        await link.wait_state(LinkState.LIVE)
        proxy.accepting = False
        proxy.cut()
        await link.wait_state(LinkState.DOWN)
        changed = {f"plant/{number}": b"changed" for number in range(90)}
        await publish(mosquitto, changed)
        link.sink.clear()
        proxy.accepting = True
        await link.wait_state(LinkState.LIVE)
        assert link.values() == VALUES | changed
        assert link.sink.states().count("resuming") == 1


async def test_a_small_receive_maximum_does_not_end_a_new_session(mosquitto: Mosquitto) -> None:
    """Once messages wait, Mosquitto sends as many as that with each PUBACK: a burst is no reason to connect again."""
    async with (
        Proxy(mosquitto.port) as proxy,
        running(config_for(proxy.port, receive_maximum=10, heartbeat_s=60.0)) as link,
    ):
        await link.wait_state(LinkState.LIVE)
        proxy.pause()
        changed = {f"plant/{number}": b"changed" for number in range(300)}
        await publish(mosquitto, changed)
        proxy.resume()
        await link.wait(lambda: link.values() == changed)
        assert link.sink.states()[-1] == "live"
        assert link.status.counters.reconnects_total == 0


async def test_updates_that_overflowed_at_the_primary_are_found_by_a_dropped_heartbeat(mosquitto: Mosquitto) -> None:
    """A link that was stopped for less than a stall means lacks them; a heartbeat fell into the same gap and tells."""
    mosquitto.settings = ["max_queued_messages 50"]
    mosquitto.restart()
    config = config_for(mosquitto.port, receive_maximum=20, heartbeat_s=2.0, audit_interval_s=0.0)
    changed = {f"plant/{number}": b"changed" for number in range(300)}
    async with running(config) as link, await RawClient.connect(mosquitto.port) as observer:
        await link.wait_state(LinkState.LIVE)
        link.link.hold(True)
        await publish(mosquitto, changed)
        await observer.subscribe(config.control_topic.encode() + b"/#")
        await observer.expect(Publish)  # of a heartbeat, so Mosquitto has dropped the one for the link
        link.link.hold(False)
        await link.wait(lambda: link.status.counters.audits_total)
        assert link.values() == changed
        assert link.status.counters.heartbeats_lost_total == 1
        assert link.status.counters.audit_changed_total >= 100
        assert link.sink.states()[-1] == "live"
        assert "stalled" not in link.sink.states()


async def test_what_mosquitto_dropped_while_live_does_not_come_back_over_newer_values(mosquitto: Mosquitto) -> None:
    """It drops what it cannot write at QoS 1 too, keeps it in flight, and sends it again in the resumed session."""
    mosquitto.settings = ["max_queued_messages 50"]
    mosquitto.restart()
    old, new = ({f"plant/{number}": payload for number in range(50)} for payload in (b"old", b"new"))

    def overflow() -> None:
        with publisher(mosquitto.port) as client:
            publish_all(client, [("plant/event", b"x" * 20_000)] * 600, retain=False)
            publish_all(client, old.items())

    async with Proxy(mosquitto.port) as proxy:
        config = config_for(proxy.port, receive_buffer_bytes=65_536, heartbeat_s=60.0)
        async with running(config) as link:
            await link.wait_state(LinkState.LIVE)
            link.link.hold(True)
            await asyncio.to_thread(overflow)
            link.link.hold(False)
            while "plant/0" not in link.values():  # until it takes what it has to write
                await publish(mosquitto, {"plant/0": b"old"})
            assert not (await link.link.audit()).failure
            assert link.values() == old
            await publish(mosquitto, new)
            await link.wait(lambda: link.values() == new)
            link.sink.clear()
            proxy.cut()
            await link.wait(lambda: link.sink.states()[-1:] == ["live"])
            assert [update for update in link.sink.dispatched() if update[1] == b"old"] == []
            assert link.sink.named("tear_down") == []
            assert link.values() == new


async def test_properties_are_the_same_in_a_verification(mosquitto: Mosquitto) -> None:
    """A copy has the properties of the live message, in the same order: a resumption finds no difference."""

    def send() -> None:
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.UserProperty = [("b", "2"), ("a", "1")]
        properties.ContentType = "text/plain"
        properties.PayloadFormatIndicator = 1
        properties.ResponseTopic = "answers"
        properties.CorrelationData = b"c"
        properties.MessageExpiryInterval = 1000
        with publisher(mosquitto.port) as client:
            publish_all(client, [("plant/a", b"1")], properties=properties)

    async with Proxy(mosquitto.port) as proxy, running(config_for(proxy.port)) as link:
        await link.wait_state(LinkState.LIVE)
        await asyncio.to_thread(send)
        await link.wait(lambda: len(link.replica) == 1)
        link.sink.clear()
        proxy.cut()
        await link.wait(lambda: link.sink.states()[-1:] == ["live"])
        assert link.status.counters.epochs_total == 1
        assert link.sink.dispatched() == []
        assert link.replica.values[b"plant/a"][4].count(b"\x26") == 2


@pytest.mark.parametrize("change", ["changed", "created"])
async def test_a_loss_begins_a_new_epoch(mosquitto: Mosquitto, change: str) -> None:
    """What was promised at QoS 1 and dropped from the full queue is found, and means a new epoch."""
    mosquitto.settings = ["max_inflight_messages 1", "max_queued_messages 1"]
    mosquitto.restart()
    await load(mosquitto, VALUES)
    lost = {f"plant/{number}" if change == "changed" else f"plant/new/{number}": b"x" for number in range(10)}
    async with Proxy(mosquitto.port) as proxy, running(config_for(proxy.port)) as link:
        await link.wait_state(LinkState.LIVE)
        epoch = link.status.epoch
        link.sink.clear()
        proxy.accepting = False
        proxy.cut()
        await link.wait_state(LinkState.DOWN)
        await publish(mosquitto, lost, qos=1)
        proxy.accepting = True
        await link.wait(lambda: link.status.epoch != epoch)
        await link.wait_state(LinkState.LIVE)
        assert link.values() == VALUES | lost
        states = link.sink.states()
        assert states[states.index("verifying") + 1] == "tearing_down"
        (torn_down,) = link.sink.named("tear_down")
        assert "topics that changed without a message were published at QoS 1 or 2" in torn_down["detail"]
        assert link.status.counters.epochs_total == 2
        assert link.status.last_error is not None
        assert "messages were lost" in link.status.last_error


async def test_what_was_published_at_qos_0_while_the_link_was_away_is_taken_over(mosquitto: Mosquitto) -> None:
    """Nobody promised it: the epoch goes on, and each value is delivered once."""
    await load(mosquitto, VALUES)
    changed = {f"plant/{number}": b"changed" for number in range(10)} | {"plant/new": b"1"}
    lines: list[dict[str, object]] = []
    async with Proxy(mosquitto.port) as proxy, running(config_for(proxy.port), logger=logging_to(lines)) as link:
        await link.wait_state(LinkState.LIVE)
        epoch = link.status.epoch
        link.sink.clear()
        proxy.accepting = False
        proxy.cut()
        await link.wait_state(LinkState.DOWN)
        await publish(mosquitto, changed, qos=0)
        proxy.accepting = True
        await link.wait(lambda: link.sink.states()[-1:] == ["live"])
        assert link.status.epoch == epoch
        assert link.values() == VALUES | changed
        assert sorted(update[0].decode() for update in link.sink.dispatched()) == sorted(changed)
        assert link.sink.named("tear_down") == []
        assert link.status.not_ready_reason is None
        assert link.status.counters.audit_changed_total == len(changed)
        (told,) = (line for line in lines if line["event"] == "values re-obtained, their messages did not come")
        assert told["topics"] == len(changed)


async def test_a_cut_in_the_middle_of_the_snapshot_still_gives_the_whole_set(mosquitto: Mosquitto) -> None:
    """A snapshot that was cut off is begun again, and never complete before."""
    values = {f"plant/{number}": b"x" * 200 for number in range(5000)}
    await load(mosquitto, values)
    async with Proxy(mosquitto.port) as proxy:
        proxy.cut_after_bytes = 400_000
        async with running(config_for(proxy.port)) as link:
            await link.wait(lambda: link.status.counters.reconnects_total == 1)
            await link.wait_state(LinkState.LIVE)
            assert link.values() == values
            states = link.sink.states()
            assert states[:5] == ["connecting", "snapshot", "down", "connecting", "snapshot"]
            assert states[-1] == "live"
            assert len(link.sink.named("complete")) == 1
            assert link.status.counters.epochs_total == 1, "the session was resumed"
            assert sorted(update[0] for update in link.sink.dispatched()) == sorted(map(str.encode, values))


async def test_busy_topics_are_no_loss(mosquitto: Mosquitto) -> None:
    """Topics that change all the time, while the link resumes and verifies, do not look like losses."""
    mosquitto.settings = ["max_queued_messages 0"]  # above 1,000 it would lose what waits for a link that is away
    mosquitto.restart()
    await load(mosquitto, VALUES)
    ends = asyncio.Event()
    topics = [f"plant/{number}" for number in range(0, 3000, 60)]

    async def keep_publishing() -> None:
        number = 0
        with publisher(mosquitto.port) as client:
            while not ends.is_set():
                number += 1
                batch = [(topic, b"busy %d" % number) for topic in topics]
                await asyncio.to_thread(publish_all, client, batch, qos=1)

    async with Proxy(mosquitto.port) as proxy, running(config_for(proxy.port)) as link, asyncio.TaskGroup() as group:
        group.create_task(keep_publishing())
        try:
            for round_number in range(4):
                await link.wait(lambda: link.sink.states()[-1:] == ["live"])
                await link.wait(lambda: b"busy" in link.values()["plant/0"])
                link.sink.clear()
                proxy.cut()
                await link.wait(lambda: link.sink.states()[-1:] == ["live"])
                assert link.status.counters.reconnects_total == round_number + 1
            assert link.status.counters.epochs_total == 1, link.sink.events
        finally:
            ends.set()


async def test_repeated_failures_are_told_once(tmp_path: Path) -> None:
    """While the primary is away, every attempt but the first is silent; the status says what is wrong."""
    server = Mosquitto(tmp_path)
    lines: list[dict[str, object]] = []
    failed: set[int | None] = set()
    async with running(config_for(server.port), logger=logging_to(lines)) as link:

        def failed_often() -> bool:
            failed.add(link.status.last_error_ns)
            return len(failed) > 5

        await link.wait(failed_often)
        assert link.sink.states() == ["connecting", "down"]
        assert [line["event"] for line in lines] == ["link state", "link state", "link is down"]
        assert link.status.last_error is not None
        assert "cannot connect" in link.status.last_error
        assert link.status.last_error_hint
        server.start()
        try:
            await link.wait_state(LinkState.LIVE)
            assert "primary answers again" in [line["event"] for line in lines]
            assert link.sink.states() == ["connecting", "down", "snapshot", "proving", "live"]
        finally:
            server.stop()


async def test_two_nodes_with_one_identity_are_told(mosquitto: Mosquitto) -> None:
    """When another client takes the session over (Mosquitto just closes), the hint names the likely cause."""
    async with running(config_for(mosquitto.port, client_id="same", retry_min_s=5.0, retry_max_s=5.0)) as link:
        await link.wait_state(LinkState.LIVE)
        with publisher(mosquitto.port, client_id="same"):
            await link.wait_state(LinkState.DOWN)
        assert "the connection was lost" in (link.status.last_error or "")
        assert "client_id" in (link.status.last_error_hint or "")


async def test_qos_2_is_applied_once_over_a_lost_connection(mosquitto: Mosquitto) -> None:
    """Messages at QoS 2 reach local clients exactly once, however often the connection is cut meanwhile."""
    count = 400
    config_selectors = (Selector("plant/#", qos=2),)
    async with Proxy(mosquitto.port) as proxy, running(config_for(proxy.port, *config_selectors)) as link:
        await link.wait_state(LinkState.LIVE)
        link.sink.clear()

        def send() -> None:
            with publisher(mosquitto.port) as client:
                for number in range(count):
                    publish_all(client, [("plant/counter", b"%d" % number)], qos=2, retain=False)

        sending = asyncio.create_task(asyncio.to_thread(send))
        await cut_often(proxy, link, sending)
        await sending
        await link.wait(lambda: len(link.sink.payloads(b"plant/counter")) >= count)
        assert link.sink.payloads(b"plant/counter") == [b"%d" % number for number in range(count)]
        assert link.status.counters.epochs_total == 1


async def cut_often(proxy: Proxy, link: Running, sending: asyncio.Task[None]) -> None:
    """Cut the connection whenever the link is live and has received something more, as long as is sent."""
    while not sending.done():
        enough = link.status.counters.received_total + 20
        await link.wait(lambda enough=enough: sending.done() or link.status.counters.received_total > enough)
        proxy.cut()
        await link.wait(lambda: link.status.state is not LinkState.LIVE or sending.done())
        await link.wait_state(LinkState.LIVE)
