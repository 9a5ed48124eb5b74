"""The rung `manifest`: what a fanout node says it sent, and what came."""

from __future__ import annotations

from typing import Any

import pytest

from fanout.chain.manifest import ASK_FOR_MANIFEST
from fanout.chain.readiness_notice import READINESS_TOPIC, ReadinessNotice, encode_readiness_notice
from fanout.link.model.events import SelectorComplete
from fanout.link.model.evidence import Evidence
from fanout.link.model.states import LinkState
from fanout.mqtt.packets import Connack
from fanout.selection import Selector
from tests.link.fake_primary import STAMPING, FakePrimary, Pair, make_config
from tests.link.fake_server import FakeServer
from tests.link.harness import config_for, running

VALUES = {b"plant/%d" % number: b"x" for number in range(20)}
OTHERS = {b"plant/cold/1": b"excluded", b"fanout/control/x": b"not replicated", b"office/1": b"not selected"}


def node(**knobs: Any) -> FakePrimary:
    """Return a primary that is a fanout node and says what it sends."""
    connack = Connack(False, 0, STAMPING)
    primary = FakePrimary(retained=VALUES | OTHERS, connack=connack, manifest=True, **knobs)
    primary.retained[READINESS_TOPIC] = encode_readiness_notice(ReadinessNotice("", (("root",),)))
    return primary


def test_the_manifest_is_the_evidence() -> None:
    """What is excluded, or of the control topic, was sent all the same and is part of it; each selector has its own."""
    config = make_config(Selector("plant/#", exclude=("plant/cold/#",)), Selector("fanout/#"), Selector("office/+"))
    pair = Pair(config, node())
    pair.go_live_with_events()
    assert pair.of(SelectorComplete) == [SelectorComplete(index, Evidence.MANIFEST) for index in range(3)]
    assert pair.values() == VALUES | {b"office/1": b"not selected"}
    assert pair.session.counters.outside_total == 2, "what is excluded, and what is below the control topic"


def test_an_update_behind_the_set_is_no_part_of_it() -> None:
    """Nor one in front of it, although both may be retained and at QoS 0."""
    pair = Pair(primary=node())
    pair.connect(pump=False)
    while not pair.primary.asked(b"plant/#"):
        pair.primary.receive(pair.session.take_output())
        if not pair.primary.asked(b"plant/#"):
            pair.feed(pair.primary.take())
    rest = pair.primary.take_packets()
    suback = next(index for index, packet in enumerate(rest) if ASK_FOR_MANIFEST[0].encode() in packet)
    pair.primary.deliver(b"plant/1", b"live", retain=True)
    (live,) = pair.primary.take_packets()
    pair.feed(b"".join([*rest[: suback + 1], live, *rest[suback + 1 :], live]))
    pair.pump()
    assert pair.session.lifecycle.evidence == [Evidence.MANIFEST]


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        ({"lose": lambda number, topic: topic == b"plant/7"}, "got 19 of 20 retained messages that the primary says"),
        ({"lose": lambda number, topic: topic != b"plant/7"}, "got 1 of 20 retained messages"),
        ({"alters": b"plant/7"}, "got 20 retained messages, which differ from those that the primary says it sent"),
    ],
)
async def test_a_set_that_is_not_what_was_sent_defeats_the_manifest(knobs: dict[str, Any], reason: str) -> None:
    """All answers are there, in order, so marker and barrier would hold: the node is not ready, and says why."""
    primary = node(**knobs)
    del primary.retained[b"plant/cold/1"]
    async with FakeServer(primary) as server, running(config_for(server.port, min_evidence="quiet")) as link:
        await link.wait(lambda: link.status.counters.truncated_total >= 2)
        assert not link.status.ready
        assert link.sink.named("complete") == []
        assert "live" not in link.sink.states()
        assert reason in (link.status.last_error or "")


@pytest.mark.parametrize("packets", range(2, 26))
def test_a_cut_defeats_the_manifest(packets: int) -> None:
    """Wherever the primary begins to drop, behind SUBACK: the link is not live."""
    pair = Pair(primary=node())
    pair.connect(pump=False)
    while not pair.primary.asked(b"plant/#"):
        pair.primary.receive(pair.session.take_output())
        if not pair.primary.asked(b"plant/#"):
            pair.feed(pair.primary.take())
    rest = pair.primary.take_packets()
    assert packets < len(rest)
    pair.feed(b"".join(rest[:packets]))
    pair.primary.truncate_after = 0
    pair.wait(60)
    assert not pair.of(SelectorComplete)
    assert LinkState.LIVE not in pair.states()
    assert "without" in pair.reason()


def test_a_node_that_does_not_promise_one_is_proved_as_before() -> None:
    """An older one: its PINGRESP waits for the set."""
    primary = node()
    primary.manifest = False
    pair = Pair(primary=primary)
    pair.go_live()
    assert pair.session.lifecycle.evidence == [Evidence.MARKER]


def test_a_resumed_session_and_an_audit_have_one_too() -> None:
    """Verification ends with the same evidence, and an audit may remove what did not come."""
    pair = Pair(primary=node())
    pair.go_live()
    pair.lose()
    pair.connect()
    assert pair.session.lifecycle.evidence == [Evidence.MANIFEST]
    del pair.primary.retained[b"plant/1"]
    pair.audit()
    assert b"plant/1" not in pair.values()
