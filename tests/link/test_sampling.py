"""Sampling of a running link: what it waits for, what it calls for, and what it says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fanout.link.model.states import LinkState
from fanout.mqtt.packets import Connack, Suback
from fanout.selection import Selector
from tests.link.fake_primary import FakePrimary
from tests.link.fake_server import FakeServer
from tests.link.harness import Running, config_for, logging_to, running

_UNASKED = "primary refuses to be asked for topics by name, they are in no sample"
VALUES = {b"plant/%d" % number: b"old" for number in range(10)}


class UnderWay(FakePrimary):
    """Sends an update in front of the heartbeat that follows an answer by name."""

    update: tuple[bytes, bytes] | None = None

    def _on_publish(self, topic: bytes, payload: bytes, flags: int, packet_id: int) -> None:
        if self.update is not None and topic.startswith(b"fanout/"):
            self.publish(*self.update)
            self.update = None
        super()._on_publish(topic, payload, flags, packet_id)


@asynccontextmanager
async def sampled(
    one: FakePrimary, beside: FakePrimary, *selectors: Selector, lines: list[dict[str, object]], **changes: Any
) -> AsyncIterator[tuple[Running, FakeServer]]:
    """Give a live link to a primary, which `beside` stands for where topics are requested by name."""
    async with FakeServer(one, beside=beside) as server:
        config = config_for(
            server.port, *selectors, **{"sample_topics": 16, "heartbeat_s": 0.1, "audit_interval_s": 0.0, **changes}
        )
        async with running(config, logger=logging_to(lines)) as link:
            await link.wait_state(LinkState.LIVE)
            yield link, server


async def test_a_value_that_is_missing_calls_for_an_audit_at_once() -> None:
    """Which removes it, as it is gone indeed; the reason is in the event for the log."""
    lines: list[dict[str, object]] = []
    one, beside = FakePrimary(retained=dict(VALUES)), FakePrimary(retained=dict(VALUES))
    async with sampled(one, beside, lines=lines) as (link, _):
        await link.wait(lambda: link.status.sampling.samples_total)
        del one.retained[b"plant/3"], beside.retained[b"plant/3"]
        await link.wait(lambda: link.status.newest_audit is not None)
        assert link.status.newest_audit is not None
        assert link.status.newest_audit.reason == "sample"
        assert '"reason": "sample"' in link.sink.named("audit")[0]["detail"]
        (line,) = [
            line for line in lines if line["event"] == "sample of topics differs from the replica, audit follows"
        ]
        assert (line["missing"], line["changed"], line["selectors"]) == (1, 0, ["plant/#"])
        assert link.status.ready


async def test_an_update_that_is_under_way_is_no_difference() -> None:
    """The primary's answer by name overtakes it; the heartbeat behind the answer does not."""
    one, beside = UnderWay(retained=dict(VALUES)), FakePrimary(retained=dict(VALUES))
    changes = [(b"plant/5", b"new"), (b"plant/6", b"")]

    def change(packet: object, send: Any = beside.send) -> None:
        if isinstance(packet, Suback) and changes:
            one.update = topic, payload = changes.pop()
            beside.publish(topic, payload)
        send(packet)

    beside.send = change  # type: ignore[method-assign]
    async with sampled(one, beside, lines=[]) as (link, _):
        await link.wait(lambda: link.status.sampling.samples_total >= 4)
        sampling = link.status.sampling
        assert (sampling.missing_total, sampling.changed_total, sampling.audits_total) == (0, 0, 0)
        assert link.values()["plant/5"] == b"new"
        assert "plant/6" not in link.values()


@pytest.mark.parametrize("share", ["some", "all"])
async def test_topics_that_the_primary_refuses_to_be_asked_for_call_for_no_audit(share: str) -> None:
    """As those that are deeper than its limit: a warning says so once, and sampling rests if it is every topic."""
    lines: list[dict[str, object]] = []
    deep = {b"plant/a/b/c/d/%d" % number: b"old" for number in range(10)}
    values = deep | (VALUES if share == "some" else {})
    one, beside = FakePrimary(retained=dict(values)), FakePrimary(retained=dict(values), levels_max=3)
    async with sampled(one, beside, lines=lines) as (link, _):
        await link.wait(lambda: link.status.sampling.samples_total >= 4)
        status = link.status
        assert (status.sampling.missing_total, status.sampling.audits_total, status.counters.audits_total) == (0, 0, 0)
        assert status.ready
        if share == "all":
            assert status.sampling.topics_total == 0
            assert status.sampling.off == "the primary refuses to be asked for topics by name: Quota exceeded (0x97)"
        else:
            assert status.sampling.off == ""
            assert status.sampling.topics_total > 0
    (line,) = [line for line in lines if line["event"] == _UNASKED]
    assert (line["reason"], str(line["topic"])[:14]) == ("Quota exceeded (0x97)", "plant/a/b/c/d/")


async def test_a_primary_that_takes_eight_filters_is_sampled() -> None:
    """What is missing among the topics is still found."""
    one = FakePrimary(retained=dict(VALUES))
    beside = FakePrimary(retained=dict(VALUES), filters_max=8, at_filters_max="close")
    async with sampled(one, beside, lines=[]) as (link, _):
        await link.wait(lambda: link.status.sampling.samples_total >= 2)
        assert (link.status.sampling.failed_total, link.status.sampling.missing_total) == (0, 0)
        connects = len(beside.connects)
        samples = link.status.sampling.samples_total
        await link.wait(lambda: link.status.sampling.samples_total >= samples + 3)
        assert len(beside.connects) <= connects + 5, "the size that works is remembered"
        del one.retained[b"plant/3"], beside.retained[b"plant/3"]
        await link.wait(lambda: link.status.newest_audit is not None)
        assert link.status.sampling.missing_total == 1


async def test_while_heartbeats_stay_away_nothing_is_concluded() -> None:
    """The link is behind by an unknown time, so its old value may be about to go."""
    one, beside = FakePrimary(retained=dict(VALUES)), FakePrimary(retained={})
    async with sampled(one, beside, lines=[], snapshot_quiet_s=0.2, heartbeat_s=0.5) as (link, _):
        one.silent_control = True
        await link.wait(lambda: link.status.sampling.samples_total)
        await link.wait_state(LinkState.STALLED)
        assert (link.status.sampling.missing_total, link.status.sampling.audits_total) == (0, 0)


async def test_where_no_heartbeat_is_allowed_the_quiet_time_must_do() -> None:
    """A value that the replica still has after it counts."""
    one, beside = FakePrimary(retained=dict(VALUES), allow_control=False), FakePrimary(retained={})
    async with sampled(one, beside, lines=[], snapshot_quiet_s=0.2, min_evidence="quiet") as (link, _):
        await link.wait(lambda: link.status.sampling.audits_total == 1)
        assert link.status.sampling.missing_total >= 8


async def test_an_audit_in_the_links_own_session_that_finds_all_ends_the_alarm() -> None:
    """Access rules that depend on the Client Identifier: sampling rests, says so, and the node stays ready."""
    lines: list[dict[str, object]] = []
    selectors = Selector("dock/#"), Selector("plant/#")
    one, beside = FakePrimary(retained=dict(VALUES)), FakePrimary(retained={})
    async with sampled(one, beside, *selectors, lines=lines) as (link, _):
        before = len(one.subscribes)
        await link.wait(lambda: "resting" in link.status.sampling.off)
        assert "depend on the Client Identifier" in link.status.sampling.off
        assert link.status.counters.audits_total == 1
        assert link.status.ready
        assert len(link.values()) == len(VALUES)
        assert all(update[1] for update in link.sink.dispatched())
        assert "sampling rests" in [line["event"] for line in lines]
        asked = [packet.subscriptions[0].topic_filter for packet in one.subscribes[before:]]
        assert list(dict.fromkeys(asked))[:2] == [b"plant/#", b"dock/#"]


async def test_a_primary_that_takes_no_second_connection_is_asked_more_and_more_rarely() -> None:
    """The status says why there are no samples; it is told once in the log, and so is the end of it."""
    lines: list[dict[str, object]] = []
    one, beside = FakePrimary(retained=dict(VALUES)), FakePrimary(retained=dict(VALUES))
    beside.connack = Connack(False, 0x97)
    async with sampled(one, beside, lines=lines) as (link, _):
        await link.wait(lambda: link.status.sampling.failed_total >= 2)
        assert "the primary could not be asked by name: the primary refused" in link.status.sampling.off
        assert link.status.counters.audits_total == 0
        assert link.status.ready
        beside.connack = Connack(False, 0)
        await link.wait(lambda: link.status.sampling.samples_total)
        assert link.status.sampling.off == ""
    told = [line["event"] for line in lines if "by name" in str(line["event"])]
    assert told == ["primary cannot be asked for topics by name", "primary answers requests by name again"]


@pytest.mark.parametrize("changes", [{"sample_topics": 0}, {"heartbeat_s": 0.0}])
async def test_where_it_is_off_no_connection_is_made(changes: dict[str, Any]) -> None:
    """The status says why."""
    one, beside = FakePrimary(retained=dict(VALUES)), FakePrimary()
    async with sampled(one, beside, lines=[], **changes) as (link, _):
        (key,) = changes
        assert link.status.sampling.off == f"{key} is 0"
        await asyncio.sleep(0)
        assert not beside.connects


async def test_a_primary_with_one_connection_for_each_user_is_not_torn_from_the_link_for_ever() -> None:
    """Twice is enough to see it: then samples rest for an hour."""
    one, beside = FakePrimary(retained=dict(VALUES)), FakePrimary(retained=dict(VALUES))
    async with sampled(one, beside, lines=[]) as (link, server):

        def cut(packet: object, send: Any = beside.send) -> None:
            if isinstance(packet, Connack):
                server.cut()
            send(packet)

        beside.send = cut  # type: ignore[method-assign]
        await link.wait(lambda: "only one connection of a user" in link.status.sampling.off)
        await link.wait(lambda: link.status.ready)
        assert len(beside.connects) == 2
        assert link.status.counters.epochs_total == 1
