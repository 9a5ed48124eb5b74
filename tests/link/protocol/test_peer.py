"""What a link knows of the server at the other end."""

from __future__ import annotations

import pytest

from fanout.chain.manifest import MANIFEST_TOPIC
from fanout.chain.readiness_notice import NO_NODE, READINESS_TOPIC, UNTOLD, ReadinessNotice, encode_readiness_notice
from fanout.errors import PrimaryRefused
from fanout.link.model.evidence import Order
from fanout.link.protocol.peer import RemotePeer
from fanout.link.protocol.sender import PacketSender
from fanout.mqtt.packets import Suback
from tests.link.fake_primary import make_config


def primary(*, version: int = 5) -> tuple[RemotePeer, PacketSender]:
    """Return one that no connection was made to."""
    config = make_config(version=version)
    sender = PacketSender(config, node_id="edge-1")
    return RemotePeer(config, node_id="edge-1", sender=sender), sender


def test_a_foreign_primary_is_asked_nothing() -> None:
    """Over MQTT 5 it would say that it is a fanout node."""
    one, sender = primary()
    assert one.begin_connection(None, now=1.0) is NO_NODE
    assert not sender.has_output
    assert not one.hears_readiness
    assert one.ordered_topics == frozenset()


def test_a_fanout_node_is_asked_how_it_stands() -> None:
    """Until it says so, it is not known to be ready; what it says has its place among the data."""
    one, sender = primary()
    assert one.begin_connection("root", now=1.0) is UNTOLD
    assert READINESS_TOPIC in sender.take()
    assert one.node == "root"
    assert one.ordered_topics == {READINESS_TOPIC, MANIFEST_TOPIC}
    told = ReadinessNotice("", (("root",),))
    assert one.receive_readiness(encode_readiness_notice(told)) == told
    assert one.receive_readiness(b"no document") is UNTOLD


def test_over_mqtt_3_1_1_anybody_is_asked() -> None:
    """A refusal says nothing there: it may be a broker that does not let the link read the topic."""
    one, sender = primary(version=4)
    assert one.begin_connection(None, now=1.0) is NO_NODE
    assert READINESS_TOPIC in sender.take()
    assert one.hears_readiness
    one.receive_suback(Suback(1, (0x80,)))
    assert one.receive_readiness(b"no document") is NO_NODE


def test_a_fanout_node_that_does_not_say_is_refused() -> None:
    """The answer to another subscription means nothing; a second one to the same cannot come."""
    one, _ = primary()
    one.begin_connection("root", now=1.0)
    one.receive_suback(Suback(2, (0x87,)))
    with pytest.raises(PrimaryRefused, match="fanout/standing"):
        one.receive_suback(Suback(1, (0x87,)))
    one.receive_suback(Suback(1, (0x87,)))


def test_a_cycle_is_refused() -> None:
    """A primary that has from this node what it has."""
    one, _ = primary()
    one.begin_connection("root", now=1.0)
    with pytest.raises(PrimaryRefused, match="edge-1 > root > edge-1"):
        one.receive_readiness(encode_readiness_notice(ReadinessNotice("", (("edge-1", "root"),))))


def test_an_epoch_begins_with_nothing_learnt() -> None:
    """What the former one has shown may be of another server."""
    one, _ = primary()
    one.learn(b"sentinel", Order.LIKELY, "why", is_mosquitto=True)
    assert (one.sentinel, one.order, one.why_unordered) == (b"sentinel", Order.LIKELY, "why")
    one.begin_epoch()
    assert (one.sentinel, one.order, one.why_unordered, one.is_mosquitto) == (None, Order.NONE, "", False)
