"""Tests of the walk through retained messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fanout.replica.update import Update
from fanout.server.audiences import SubscriptionOptions
from fanout.server.retained_delivery import RetainedDelivery
from fanout.server.wire import Message
from tests.server.core_pieces import options
from tests.server.node_in_memory import update

VALUES = [
    update(b"t/1", b"one", qos=2),
    update(b"t/2", b"two", qos=0),
    update(b"t/3", b"three", qos=1, expires_ns=100),
]


def deliver(values: list[Update], granted: SubscriptionOptions) -> RetainedDelivery:
    """Make a delivery of `values`."""

    def find(topic_filter: bytes) -> Iterator[Update]:
        assert topic_filter == b"t/#"
        return iter(values)

    return RetainedDelivery(b"t/#", options=granted, find=find)


def take(
    delivery: RetainedDelivery,
    messages_max: int,
    *,
    waiting: Mapping[bytes, Update] | None = None,
    now_ns: int = 0,
    bytes_max: int = 1000,
) -> list[Message]:
    """Take messages, whose size must be the one said."""
    messages, size = delivery.take(messages_max=messages_max, bytes_max=bytes_max, waiting=waiting or {}, now_ns=now_ns)
    assert size == sum(len(message[0][1]) for message in messages)
    return messages


def test_messages_have_retain_and_the_lower_qos() -> None:
    """Retained messages carry RETAIN 1 [MQTT-3.3.1-8], the lower QoS, and the subscription's identifier."""
    delivery = deliver(VALUES, options(1, identifier=6))
    assert take(delivery, 2, now_ns=0) == [(VALUES[0], 1, True, (6,)), (VALUES[1], 0, True, (6,))]
    assert take(delivery, 2, now_ns=0) == [(VALUES[2], 1, True, (6,))]
    assert take(delivery, 2, now_ns=0) == []


def test_piece_ends_at_a_number_of_bytes() -> None:
    """The message that reaches the bound is the last one of its piece."""
    delivery = deliver(VALUES, options())
    assert len(take(delivery, 9, bytes_max=4)) == 2
    assert len(take(delivery, 9, bytes_max=4)) == 1


def test_expired_value_is_left_out() -> None:
    """A value whose Message Expiry Interval passed is not sent [MQTT-3.3.2-5]."""
    assert take(deliver(VALUES[2:], options()), 1, now_ns=100) == []


def test_message_put_back_is_looked_up_again() -> None:
    """A message that could not be sent comes again with the value of that time, or not at all."""
    values = {one[0]: one for one in VALUES}

    def find(topic_filter: bytes) -> Iterator[Update]:
        if topic_filter == b"t/#":
            return iter(list(values.values()))
        return iter([values[topic_filter]] if topic_filter in values else [])

    delivery = RetainedDelivery(b"t/#", options=options(), find=find)
    for newer in (update(b"t/1", b"newer"), update(b"t/1", b"newest")):
        (message,) = take(delivery, 1, now_ns=0)
        delivery.put_back(message)
        values[b"t/1"] = newer
    (message,) = take(delivery, 1, now_ns=0)
    assert message == (newer, 0, True, ())
    delivery.put_back(message)
    del values[b"t/1"]
    assert take(delivery, 9, now_ns=0) == [(one, 0, True, ()) for one in VALUES[1:]]


def test_topic_with_a_newer_message_waiting_is_left_out() -> None:
    """The retained value of a topic is not sent when a live one for it follows."""
    delivery = deliver(VALUES, options())
    assert take(delivery, 1, waiting={b"t/1": VALUES[0]}, now_ns=0) == [(VALUES[1], 0, True, ())]
