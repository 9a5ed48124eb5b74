"""What a link writes to a hostile primary, under a manual clock: `FakePrimary` has the oracle read every byte of it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from fanout.link.model.events import Applied, Event, Failed, TearDown
from fanout.link.model.states import LinkState
from fanout.link.protocol.sender import OutgoingMessage
from fanout.mqtt.packets import Connack
from fanout.mqtt.properties import Properties
from fanout.selection import Selector
from tests.fuzz.mutation import from_server, mutate
from tests.link.fake_primary import STAMPING, FakePrimary, Pair, make_config
from tests.oracle.encoding import encode_properties
from tests.oracle.messages import make_sample
from tests.oracle.packets import Violation, packet_length

LIVES = 25
"""Links for each seed."""
STEPS = 40
"""What happens to each."""


class HostilePair(Pair):
    """A pair whose acknowledgements reach the primary, and which connects again."""

    def _note(self, events: Iterable[Event]) -> None:
        events = list(events)
        super()._note(events)
        for event in events:
            if isinstance(event, Applied) and event.acknowledgement:
                self.primary.receive(event.acknowledgement)

    def settle(self) -> None:
        """Do what the events ask for, as the link's task does."""
        while self.events:
            events, self.events = self.events, []
            for event in events:
                if isinstance(event, Failed):
                    self.primary.receive(self.session.take_output())
                    self.lose()
                elif isinstance(event, TearDown):
                    self.tear_down()


def limits(rng: random.Random, version: int) -> Connack:
    """Make a CONNACK that says what the primary takes."""
    if version == 4:
        return Connack(False, 0)
    told = Properties(
        receive_maximum=rng.choice((None, 1, 2, 10)),
        maximum_qos=rng.choice((None, None, 1, 0)),
        retain_available=rng.choice((None, None, 0)),
        maximum_packet_size=rng.choice((None, 200, 1000)),
        topic_alias_maximum=rng.choice((None, 0, 5)),
        server_keep_alive=rng.choice((None, 5)),
    )
    return Connack(False, 0, replace(told, user_property=STAMPING.user_property) if rng.random() < 0.5 else told)


def block(data: bytes) -> bytes:
    """Return encoded properties without their length."""
    bounds = packet_length(b"\0" + data)
    assert bounds is not None
    return data[bounds[0] - 1 :]


def live_through(rng: random.Random) -> tuple[int, int]:
    """Let one link live, and return how many messages it forwarded and published came."""
    version = rng.choice((4, 5, 5))
    primary = FakePrimary(version=version, connack=limits(rng, version), sends_again=rng.random() < 0.9)
    primary.retained = {b"fz/r/%d" % number: b"x" for number in range(20)}
    selectors = (Selector("fz/#", qos=rng.randrange(3), writes="forward"), Selector("plant/#", qos=rng.randrange(3)))
    pair = HostilePair(make_config(*selectors, version=version, audit_interval_s=20.0), primary)
    forwarded = delivered = 0
    for number in range(1, STEPS):
        if not pair.session.lifecycle.connected:
            if rng.random() < 0.2:
                primary.has_session, primary.connack = False, limits(rng, version)
            pair.connect()
            pair.settle()  # while a replica is torn down, nothing but the standing may come, for nothing is subscribed
        kind = rng.random()
        if kind < 0.3:
            sample = make_sample(rng, number, root=b"fz", publisher=b"up", version=version, qos_max=2)
            properties = block(encode_properties([one for one in sample.properties if one[0] != 2]))
            message = OutgoingMessage(sample.topic, sample.payload, max(1, sample.qos), sample.retain, properties)
            if not sample.is_refused:  # else the server would not have taken it
                pair.session.forward(message, now_ns=pair.now_ns, now=pair.now)
                forwarded += 1
        elif kind < 0.6:
            sample = make_sample(rng, number, root=b"fz", publisher=b"down", version=version, qos_max=2)
            properties = block(encode_properties(sample.properties)) if version == 5 else b""
            primary.publish(sample.topic, sample.payload, qos=sample.qos, retain=sample.retain, properties=properties)
            delivered += 1
        elif kind < 0.75 and pair.session.lifecycle.connected:
            pair.feed(mutate(from_server(version), rng))
        elif kind < 0.85:
            pair.wait(rng.choice((0.1, 5.0, 30.0)))
        elif kind < 0.9 and pair.session.lifecycle.connected:
            pair.lose()
        if pair.session.lifecycle.connected:
            pair.pump()
        pair.settle()
    assert isinstance(pair.session.lifecycle.state, LinkState)
    return forwarded, delivered


@pytest.mark.parametrize("seed", range(10))
def test_links_write_mqtt_whatever_they_read(seed: int) -> None:
    """Forwarded messages with any properties, acknowledgements, requests and farewells, over every kind of fault."""
    rng = random.Random(seed)
    forwarded = delivered = 0
    for lifecycle in range(LIVES):
        try:
            counts = live_through(rng)
        except (Violation, AssertionError) as error:
            raise AssertionError(f"seed {seed}, link {lifecycle}") from error
        forwarded, delivered = forwarded + counts[0], delivered + counts[1]
    assert forwarded > 100
    assert delivered > 100
