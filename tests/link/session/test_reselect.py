"""Selectors of a live link that come, go and change on its Network Connection."""

from __future__ import annotations

import asyncio
import random

import pytest

from fanout.errors import PrimaryRefused
from fanout.link.model.events import Failed, SelectorComplete
from fanout.link.model.states import LinkState
from fanout.link.session.evidence_retry import PAUSE_MAX_S
from fanout.mqtt.packets import Connack
from fanout.mqtt.properties import Properties
from fanout.selection import Selector
from tests.link.fake_primary import FakePrimary, Pair, make_config
from tests.link.fake_server import FakeServer
from tests.link.harness import config_for, running

A, B, C = Selector("a/#"), Selector("b/#"), Selector("c/#", qos=2)


def primary_of(*branches: str, topics: int = 20, **knobs: object) -> FakePrimary:
    """Return a primary with retained values below branches."""
    retained = {f"{branch}/{n}".encode(): b"1" for branch in branches for n in range(topics)}
    primary = FakePrimary(retained=retained)
    for name, value in knobs.items():
        setattr(primary, name, value)
    return primary


def live(primary: FakePrimary, *selectors: Selector, **changes: object) -> Pair:
    """Return a live link."""
    pair = Pair(make_config(*selectors, **changes), primary)
    pair.go_live()
    return pair


def branches(pair: Pair) -> dict[str, int]:
    """Return the number of topics of each branch of the replica."""
    names = [topic.decode().rpartition("/")[0] for topic in pair.values()]
    return {name: names.count(name) for name in sorted(set(names))}


@pytest.mark.parametrize("version", [5, 4])
def test_selectors_come_go_and_change_on_the_connection(version: int) -> None:
    """Each is subscribed and proved alone, or unsubscribed and removed; the others get nothing but their updates."""
    primary = primary_of("a", "b", "c", version=version)
    primary.__post_init__()
    pair = live(primary, A, B, version=version)
    epoch, asked = pair.session.lifecycle.epoch, primary.asked(b"a/#")
    pair.reselect(Selector("b/#", exclude=("+/7",)), C, A)
    pair.wait(1)
    assert (len(primary.connects), pair.states(), pair.session.lifecycle.epoch) == (1, [], epoch)
    assert branches(pair) == {"a": 20, "b": 19, "c": 20}
    assert primary.asked(b"a/#") == asked
    lifecycle = pair.session.lifecycle
    assert not lifecycle.joining
    assert all(lifecycle.evidence)
    assert {event.index for event in pair.of(SelectorComplete)} == {0, 1}

    pair.reselect(A)
    assert {name for one in primary.unsubscribes for name in one.topic_filters} >= {b"b/#", b"c/#"}
    assert branches(pair) == {"a": 20}
    assert not pair.stored().stale_filters if version == 5 else True
    pair.events.clear()
    primary.deliver(b"b/1", b"late")  # what the primary sent before it took UNSUBSCRIBE
    primary.publish(b"a/1", b"2")
    pair.pump()
    assert pair.dispatched() == [(b"a/1", b"2")]
    assert pair.is_in(LinkState.LIVE)


def test_another_prefix_is_another_selector() -> None:
    """Its values go under one name, and come under the other; its subscription at the primary stays."""
    primary = primary_of("a", "b")
    pair = live(primary, A, B)
    pair.reselect(A, Selector("b/#", prefix="site/"))
    pair.wait(1)
    assert branches(pair) == {"a": 20, "site/b": 20}
    assert b"b/#" in primary.subscriptions
    assert not pair.stored().stale_filters


def test_refused_selector_does_not_touch_the_others() -> None:
    """It stays joining, and is tried again."""
    primary = primary_of("a", "c", refuse_filters=(b"c/#",))
    pair = live(primary, A)
    pair.reselect(A, C)
    pair.wait(5)
    assert pair.is_in(LinkState.LIVE)
    assert pair.session.lifecycle.joining == [1]
    assert branches(pair) == {"a": 20}
    primary.refuse_filters = ()
    pair.wait(PAUSE_MAX_S)
    assert not pair.session.lifecycle.joining
    assert branches(pair) == {"a": 20, "c": 20}


def test_selector_beyond_a_limit_of_the_primary_ends_the_connection() -> None:
    """As it does when the link connects; the error names it."""
    primary = primary_of("a", connack=Connack(False, 0, Properties(maximum_packet_size=200)))
    pair = live(primary, A)
    pair.reselect(A, Selector("x" * 200))
    (failed,) = pair.of(Failed)
    assert isinstance(failed.error, PrimaryRefused)
    assert "x" * 200 in failed.error.message


def test_connection_lost_while_a_selector_joins() -> None:
    """The session is resumed, the former selectors are verified, and then the new one is proved."""
    primary = primary_of("a", "b", "c")
    pair = live(primary, A, B)
    epoch = pair.session.lifecycle.epoch
    primary.truncate_after = 3
    pair.reselect(A, C)
    pair.lose()
    primary.truncate_after = None
    stored = pair.stored()
    assert stored.evidence[1] is None
    pair.connect()
    pair.wait(1)
    assert pair.session.lifecycle.epoch == epoch
    assert LinkState.VERIFYING in pair.states()
    assert branches(pair) == {"a": 20, "c": 20}
    assert not pair.session.lifecycle.joining
    assert b"b/#" not in primary.subscriptions


def test_unconfirmed_and_refused_topics_of_selectors_that_stay_are_remembered() -> None:
    """A change beside them confirms nothing, and makes room for nothing."""
    primary = primary_of("a", "b", system_topics=False)
    pair = Pair(make_config(A, B), primary, topics_max=30)
    pair.go_live()
    assert pair.replica.refused.limits(pair.now_ns) == ("topics_max",)
    pair.reselect(C, B)
    assert pair.replica.refused.limits(pair.now_ns) == ("topics_max",)
    pair.reselect(C)
    assert pair.replica.refused.limits(pair.now_ns) == ()


class World:
    """A link of which the selectors change at random under load; `s/#` stays."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.primary = primary_of("s", "a", "b", "c", topics=8)
        self.pair = live(self.primary, Selector("s/#", qos=self.draw.randrange(3)))
        self.published: list[tuple[bytes, bytes]] = []
        """Topics and values below `s/`, in order."""
        self.turn = 0

    def publish(self) -> None:
        """Publish some values at any QoS; some are removals."""
        for _ in range(self.draw.randrange(6)):
            self.turn += 1
            topic = b"%s/%d" % (self.draw.choice([b"s", b"a", b"b", b"c"]), self.draw.randrange(8))
            is_held = topic in self.primary.retained
            payload = b"%d" % self.turn if not is_held or self.draw.random() < 0.8 else b""
            self.primary.publish(topic, payload, qos=self.draw.randrange(3))
            if topic.startswith(b"s/"):
                self.published.append((topic, payload))

    def carry(self) -> None:
        """Let a part of what is under way arrive."""
        for _ in range(self.draw.randrange(4)):
            if up := self.pair.session.take_output():
                self.primary.receive(up)
            for packet in self.primary.take_packets(self.draw.randrange(12)):
                self.pair.feed(packet)

    def choose(self) -> list[Selector]:
        """Return other selectors; the one that stays is somewhere among them."""
        stays = next(one for one in self.pair.replica.selectors if one.filter == "s/#")
        kept = [one for one in self.pair.replica.selectors if one is not stays and self.draw.random() < 0.5]
        names = [name for name in "abc" if all(one.filter != f"{name}/#" for one in kept)]
        for name in self.draw.sample(names, self.draw.randint(0, len(names))):
            selector = Selector(
                f"{name}/#",
                exclude=self.draw.choice([(), ("+/3",), ("+/1", "+/2")]),
                qos=self.draw.randrange(3),
                prefix=self.draw.choice(["", "", "x/"]),
                max_payload=self.draw.choice([0, 0, 2]),
                writes=self.draw.choice(["reject", "forward"]),
            )
            kept.append(selector)
        kept.insert(self.draw.randint(0, len(kept)), stays)
        return kept

    def expected(self) -> dict[bytes, bytes]:
        """Return what the replica holds at rest."""
        return {
            selector.prefix.encode() + topic: payload
            for topic, payload in self.primary.retained.items()
            for selector in self.pair.replica.selectors
            if selector.matches(topic) and not 0 < selector.max_payload < len(payload)
        }

    def check(self) -> None:
        """Let all arrive, and compare."""
        self.pair.pump()
        self.pair.wait(PAUSE_MAX_S)
        assert not self.pair.session.lifecycle.joining
        assert self.pair.values() == self.expected()
        assert [one for one in self.pair.dispatched() if one[0].startswith(b"s/")] == self.published
        self.pair.events.clear()
        self.published.clear()


@pytest.mark.parametrize("seed", range(4))
def test_a_thousand_random_changes_under_load(seed: int) -> None:
    """The selector that stays loses, doubles and reorders nothing, in one epoch; the others are exact at rest."""
    world = World(seed)
    pair, draw = world.pair, world.draw
    epoch = pair.session.lifecycle.epoch
    for _ in range(250):
        world.publish()
        world.carry()
        pair.reselect(*world.choose(), pump=False)
        world.publish()
        world.carry()
        if draw.random() < 0.3:
            pair.session.audit(confirmed=None, now_ns=pair.now_ns, now=pair.now)
            world.carry()
        if draw.random() < 0.3:
            world.check()
    world.check()
    assert (pair.session.lifecycle.epoch, len(world.primary.connects)) == (epoch, 1)
    assert pair.states() == []


@pytest.mark.parametrize(("on_joining", "reason"), [("serve", None), ("not_ready", "live, but not proved yet: c/#")])
async def test_readiness_while_a_selector_joins(on_joining: str, reason: str | None) -> None:
    """Joining counts as configured, but a link without any proved selector is not ready; its connection stays."""
    primary = primary_of("a", refuse_filters=(b"c/#",))
    async with FakeServer(primary) as server, running(config_for(server.port, A, on_joining=on_joining)) as link:
        await link.wait_state(LinkState.LIVE)
        await link.link.change(config_for(server.port, A, C, on_joining=on_joining))
        assert link.status.reason == reason
        assert [one.joining for one in link.status.selectors] == [False, True]
        await link.link.change(config_for(server.port, C, on_joining=on_joining))
        assert link.status.reason == "live, but not proved yet: c/#"
        assert link.values() == {}
        assert len(primary.connects) == 1


async def test_selectors_change_while_backpressure_holds_the_link() -> None:
    """The change waits for it, and the link reads again afterwards."""
    primary = primary_of("a", "b", "c")
    async with FakeServer(primary) as server, running(config_for(server.port, A, B)) as link:
        await link.wait_state(LinkState.LIVE)
        link.link.hold(True)
        changing = asyncio.create_task(link.link.change(config_for(server.port, A, C)))
        primary.publish(b"a/1", b"2")
        server.push()
        await asyncio.sleep(0)
        assert not changing.done()
        link.link.hold(False)
        await changing
        await link.wait(lambda: link.status.selectors[1].complete)
        await link.wait(lambda: link.values().get("a/1") == b"2")
        assert len(link.values()) == 40
        assert len(primary.connects) == 1


def test_audits_and_stalls_while_every_selector_joins() -> None:
    """Nothing is proved that could be compared: the proof is the comparison, and the link goes on."""
    primary = primary_of("a", refuse_filters=(b"c/#",))
    pair = live(primary, A, audit_interval_s=20.0)
    pair.reselect(C)
    pair.wait(60)
    pair.audit(pump=False)
    pair.session.lifecycle.call_audit("the primary dropped heartbeats")
    pair.wait(60)
    lifecycle = pair.session.lifecycle
    lifecycle.at(pair.now_ns, pair.now)
    lifecycle.stall("no heartbeat")
    lifecycle.revive()
    assert lifecycle.state is LinkState.LIVE
