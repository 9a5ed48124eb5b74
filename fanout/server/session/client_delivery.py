"""Delivery of one topic to one client: its connection, matching subscriptions, and the messages that wait for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fanout.access.authorization import Access
from fanout.errors import ProtocolError
from fanout.mqtt.topics import matches, parse_shared
from fanout.server.routing.subscribers import SessionState
from fanout.server.session.session import Session

__all__ = ["FILTERS_MAX", "ClientDelivery", "client_delivery"]

FILTERS_MAX: Final = 10
"""Number of matching Topic Filters that are returned."""


@dataclass(frozen=True, slots=True)
class ClientDelivery:
    """Delivery of one topic to one client."""

    connected: bool
    """Whether it has a Network Connection."""
    filters: tuple[bytes, ...]
    """Its Topic Filters that match the topic, `FILTERS_MAX` at most, as the client sent them."""
    subscriptions: int
    """Number of all its subscriptions."""
    denied_by: str
    """The access rule that keeps the topic from it; empty when the rules let it read the topic."""
    queued_messages: int
    """Messages in its queue."""
    queued_bytes: int
    """Bytes of them."""
    conflated_topics: int
    """Topics of which only the newest value waits."""


def client_delivery(session: Session, topic: bytes) -> ClientDelivery:
    """Return how a topic is delivered to the client of a session.

    Args:
        session: The session.
        topic: A legal Topic Name.
    """
    all_filters = session.topic_filters
    queue = session.sender.queue
    return ClientDelivery(
        connected=session.state is not SessionState.ABSENT,
        filters=tuple(each for each in all_filters if _is_for(each, topic))[:FILTERS_MAX],
        subscriptions=len(all_filters),
        denied_by=_denied_by(session.access, topic),
        queued_messages=queue.messages,
        queued_bytes=queue.bytes,
        conflated_topics=len(session.sender.newest_values),
    )


def _is_for(topic_filter: bytes, topic: bytes) -> bool:
    shared = parse_shared(topic_filter)
    return matches(topic_filter if shared is None else shared[1], topic)


def _denied_by(access: Access | None, topic: bytes) -> str:
    try:
        denied = None if access is None else access.explain(topic)
    except ProtocolError:  # a Topic Name that begins like a Shared Subscription
        return ""
    if denied is None:
        return ""
    return "no access rule allows it" if denied.rule is None else f"access.rule[{denied.rule}] denies it"
