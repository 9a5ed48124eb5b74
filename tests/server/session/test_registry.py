"""Tests of the sessions of all clients, and of SUBSCRIBE and UNSUBSCRIBE."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fanout.config import ServerConfig
from fanout.mqtt.packets import Subscribe, Subscription, Unsubscribe
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.store import Replica
from fanout.replica.update import Phase
from fanout.server.base.counters import Counters, DropReason
from fanout.server.messages.encoding import SharedMessage, WireVariant
from fanout.server.messages.queue import MessageBatch
from fanout.server.session.registry import SessionRegistry
from fanout.server.session.session import Session
from fanout.server.session.session_export import queued
from tests.server.node_in_memory import update

V4, V5 = WireVariant(4), WireVariant(5)


def make_registry(*, sessions_max: int = 10, **settings: object) -> SessionRegistry:
    """Make a registry over a store with two retained values."""
    replica = Replica()
    replica.apply([update(b"a/1", b"one"), update(b"a/2", b"two")], phase=Phase.LIVE)
    config = ServerConfig(sessions_max=sessions_max, **settings)  # type: ignore[arg-type]  # tests know the keys
    return SessionRegistry(config=config, store=replica, counters=Counters())


@pytest.fixture
def registry() -> SessionRegistry:
    """Give a registry with the default settings."""
    return make_registry()


def subscribe(
    registry: SessionRegistry, session: Session, *subscriptions: Subscription, identifier: int = 0, bridge: bool = False
) -> list[int]:
    """Subscribe and return the Reason Codes."""
    properties = Properties(subscription_identifier=(identifier,) if identifier else ())
    suback = registry.subscribe(session, Subscribe(5, subscriptions, properties), bridge=bridge)
    assert suback.packet_id == 5
    return list(suback.reason_codes)


def test_sessions_are_found_until_they_end(registry: SessionRegistry) -> None:
    """A session exists from its creation to its end, with all its subscriptions."""
    session = registry.create("c", wire=V5)
    assert registry.get("c") is session
    assert (list(registry), len(registry)) == ([session], 1)
    subscribe(registry, session, Subscription(b"a/#"), Subscription(b"$share/g/b"))
    session.enqueue(MessageBatch([(update(b"b", b"x", qos=1), 1, False, ())], wire=V5))
    registry.end(session)
    assert registry.get("c") is None
    assert registry._counters.dropped[DropReason.SESSION_ENDED] == 1
    assert registry.index.routes(b"a/1") == registry.index.routes(b"b") == ((), ())


def test_subscriptions_are_bounded() -> None:
    """Beyond the limit a new filter is refused with 0x97; an old one may still be changed."""
    registry = make_registry(subscriptions_max=2)
    session = registry.create("c", wire=V5)
    one, two, three = (Subscription(b"%d" % number) for number in (1, 2, 3))
    shared = Subscription(b"$share/g/1")
    assert subscribe(registry, session, one, shared, two) == [0, 0, ReasonCode.QUOTA_EXCEEDED]
    assert subscribe(registry, session, Subscription(b"1", 1), shared, three) == [1, 0, ReasonCode.QUOTA_EXCEEDED]
    registry.unsubscribe(session, Unsubscribe(1, (b"$share/g/1",)))
    assert subscribe(registry, session, three) == [0]


def test_levels_of_a_filter_are_bounded() -> None:
    """A filter with more levels than the limit is refused with 0x97: each level costs memory."""
    registry = make_registry(filter_levels_max=3)
    session = registry.create("c", wire=V5)
    allowed = [Subscription(b"a/b/c"), Subscription(b"+/+/#"), Subscription(b"$share/g/a/b/c")]
    refused = [Subscription(b"a/b/c/d"), Subscription(b"///"), Subscription(b"+/+/+/#"), Subscription(b"$share/g/////")]
    assert subscribe(registry, session, *allowed, *refused) == [0, 0, 0, *[ReasonCode.QUOTA_EXCEEDED] * 4]
    assert len(session.subscriptions) == 2


def test_a_filter_that_a_session_has_may_be_changed_below_a_lowered_limit() -> None:
    """A reload may lower a limit below what a session has; to subscribe again costs nothing more."""
    registry = make_registry()
    session = registry.create("c", wire=V5)
    before = [Subscription(b"long/filter"), Subscription(b"$share/g/long/filter")]
    assert subscribe(registry, session, *before) == [0, 0]
    registry.config = replace(registry.config, filter_bytes_max=5, filter_levels_max=1)
    again = [Subscription(one.topic_filter, 1) for one in before]
    assert subscribe(registry, session, *again, Subscription(b"new")) == [1, 1, ReasonCode.QUOTA_EXCEEDED]


AGE = Properties(user_property=(("fanout-max-age-s", "1"),))


def test_messages_of_a_durable_session_wait_in_one_queue() -> None:
    """With a bound on the age too: what waits for a topic by name is in its journal record and its copies."""
    registry = make_registry()
    session = registry.create("c", wire=V5)
    session.expiry_s = 3600
    registry.subscribe(session, Subscribe(1, (Subscription(b"x/#", qos=1),), AGE))
    registry.subscribe(session, Subscribe(2, (Subscription(b"alarm", qos=1),), Properties()))
    session.enqueue(MessageBatch([(update(b"alarm", b"fire", qos=1), 1, False, ())], wire=V5))
    assert len(queued(session)) == session.sender.unsent == 1


def test_a_message_of_a_share_group_is_redelivered_beside_a_bound_on_the_age() -> None:
    """It is not among those of topics by name, which end with the session."""
    registry = make_registry()
    session, other = registry.create("c", wire=V5), registry.create("d", wire=V5)
    shared = Subscription(b"$share/g/alarm", qos=1)
    registry.subscribe(other, Subscribe(1, (shared,), Properties()))
    registry.subscribe(session, Subscribe(1, (Subscription(b"x/#", qos=1),), AGE))
    registry.subscribe(session, Subscribe(2, (Subscription(b"alarm", qos=1), shared), Properties()))
    message = SharedMessage((update(b"alarm", b"fire", qos=1), 1, False, ()))
    message.share = (b"g", b"alarm")
    session.enqueue(MessageBatch([message], wire=V5))
    assert len(registry.end(session)) == 1


def test_a_bound_on_the_age_ends_with_its_subscription() -> None:
    """A client that subscribes and unsubscribes in a loop leaves nothing behind."""
    registry = make_registry()
    session = registry.create("c", wire=V5)
    for number in range(100):
        topic_filter = b"x/%d" % number
        registry.subscribe(session, Subscribe(1, (Subscription(topic_filter),), AGE))
        registry.unsubscribe(session, Unsubscribe(1, (topic_filter,)))
    assert not session.bounded
