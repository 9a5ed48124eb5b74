"""Snapshots and live updates from a real Mosquitto with its default configuration."""

from __future__ import annotations

import asyncio

import pytest

from fanout.link.model.evidence import Evidence
from fanout.link.model.states import LinkState
from fanout.replica.update import Phase
from fanout.selection import Selector
from tests.link.harness import config_for, logging_to, running
from tests.support.mosquitto import Mosquitto, load_retained, publish_all, publisher
from tests.support.network import Proxy
from tests.support.waiting import wait_result

pytestmark = pytest.mark.mosquitto


def sensor_values(count: int, *, size: int = 64) -> dict[str, bytes]:
    """Return `count` topics of a plant with distinct payloads."""
    return {
        f"plant/line{number // 2000}/cell{number // 200 % 10}/sensor{number}/temp": str(number).encode().rjust(size)
        for number in range(count)
    }


async def load(mosquitto: Mosquitto, values: dict[str, bytes]) -> None:
    """Give Mosquitto retained values, off the event loop."""
    assert await asyncio.to_thread(load_retained, mosquitto.port, values.items()) == len(values)


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
    mosquitto.settings = ["max_queued_messages 0"]  # it drops what waits above 1,000: a busy machine reads later
    mosquitto.restart()
    async with running(config_for(mosquitto.port, receive_maximum=100)) as link:
        await link.wait_state(LinkState.LIVE)

        def publish() -> None:
            with publisher(mosquitto.port) as client:
                publish_all(client, [(f"plant/{number}", b"x") for number in range(5000)])

        await asyncio.to_thread(publish)
        await link.wait(lambda: len(link.replica) == 5000)
        assert link.status.state is LinkState.LIVE


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

            async def clear() -> bool | None:  # Mosquitto drops clears too where the link is slow: they come again
                await load(mosquitto, {topic: b"" for topic in link.values() if topic not in few})
                return link.values() == few or None

            await wait_result(clear)
            assert link.status.counters.epochs_total >= 3


@pytest.mark.parametrize("policy", ["bridge", "keep"])
async def test_mqtt_3_1_1_keeps_the_retain_flag(mosquitto: Mosquitto, policy: str) -> None:
    """Over MQTT 3.1.1 live updates are retained, by the bridge bit or because the configuration says so."""
    await load(mosquitto, {"plant/a": b"1"})
    config = config_for(mosquitto.port, version=4, retain_policy=policy)
    lines: list[dict[str, object]] = []
    async with running(config, logger=logging_to(lines)) as link:
        await link.wait_state(LinkState.LIVE)
        hints = [str(line["hint"]) for line in lines if str(line["event"]).startswith("no heartbeats")]
        assert [hint.startswith("Set version = 5") for hint in hints] == [True] * (policy == "bridge")
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
