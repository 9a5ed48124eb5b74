"""Export of a session's state to a value, and the messages of a value as a session sends them (core).

Owns what of a session travels. Messages that have expired do not, unless they are in flight: their Packet Identifier
is in use at the client. Nor does the place in the retained set, which is another node's own order: the topics that are
left are named, up to `RETAINED_TOPICS_MAX`; a longer delivery begins anew at the other node.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from fanout.access.identity import Identity
from fanout.mqtt.delivery import SendState
from fanout.server.messages.encoding import Message, SharedMessage, WireVariant
from fanout.server.messages.queue import MessageBatch
from fanout.server.session.exported_session import (
    ExportedInFlight,
    ExportedMessage,
    ExportedRetained,
    ExportedSession,
    ExportedSubscription,
)
from fanout.server.session.session import Session

__all__ = [
    "BATCH_MESSAGES",
    "RELEASED",
    "RETAINED_TOPICS_MAX",
    "ExportedMessages",
    "MessageMaker",
    "WaitingMessages",
    "batches_of",
    "export_state",
    "exported_message",
    "message_of",
    "queued",
    "subscriptions_of",
]

RETAINED_TOPICS_MAX: Final = 10_000
"""Limit of topics that are named for one subscription; listing them stops the event loop for some milliseconds."""
RELEASED: Final[Message] = ((b"", b"", 2, False, b"", 0, 0, 0, None), 2, False, ())
"""Stands for a message that waits for PUBCOMP, of which only the Packet Identifier matters."""

BATCH_MESSAGES: Final = 256
"""Messages of a restored batch, and of a step: a few milliseconds."""


class ExportedMessages:
    """The values of messages at one time: one value for a message, in however many sessions it is."""

    def __init__(self, *, now_ns: int) -> None:
        """Begin with none.

        Args:
            now_ns: Unix time in nanoseconds.
        """
        self.now_ns = now_ns
        """Unix time in nanoseconds."""
        self._values: dict[int, tuple[Message, ExportedMessage]] = {}  # by identity, which each entry keeps in use
        self._earlier: dict[int, tuple[Message, ExportedMessage]] = {}

    def of(self, message: Message) -> ExportedMessage:
        """Return the value of a message."""
        known = self._values.get(id(message))
        if known is None:
            known = self._earlier.get(id(message))
            if known is None or message[0][6]:  # what remains until it expires is another now
                known = message, exported_message(message, now_ns=self.now_ns)
            self._values[id(message)] = known
        return known[1]

    def later(self, now_ns: int) -> ExportedMessages:
        """Return the values at a later time; of messages that do not expire they are the same, and are kept once more.

        Args:
            now_ns: Unix time in nanoseconds.
        """
        later = ExportedMessages(now_ns=now_ns)
        later._earlier = self._values
        return later


class MessageMaker:
    """The messages of values at one time: sessions with the same value share one message."""

    def __init__(self, *, now_ns: int) -> None:
        """Begin with none.

        Args:
            now_ns: Unix time in nanoseconds at which the values were made.
        """
        self._now_ns = now_ns
        self._messages: dict[int, tuple[ExportedMessage, Message]] = {}

    def of(self, exported: ExportedMessage) -> Message:
        """Return the message of a value as a session of this node sends it; it counts as received then."""
        known = self._messages.get(id(exported))
        if known is None:
            known = self._messages[id(exported)] = (exported, message_of(exported, now_ns=self._now_ns))
        return known[1]


class WaitingMessages:
    """The queued messages of a value, as a session queues them here."""

    def __init__(self, make: Callable[[ExportedMessage], Message]) -> None:
        """Begin without any.

        Args:
            make: Makes a message of its value, which is forgotten.
        """
        self.batches: list[MessageBatch] = []
        """Them in batches, once these are made."""
        self.count = 0
        """Their number."""
        self.bytes = 0
        """Their bytes, as a queue counts them, once the batches are made."""
        self.replacing: dict[bytes, ExportedMessage] = {}
        """By topic, those that take the place of retained messages."""
        self._make = make
        self._parts: list[list[Message]] = []

    def add(self, exported: Sequence[ExportedMessage]) -> None:
        """Add further ones."""
        self.count += len(exported)
        self._parts.append(list(map(self._make, exported)))
        self.replacing |= {one.topic: one for one in exported if one.replaces_retained}

    def make_batches(self, wire: WireVariant) -> Generator[None, None, None]:
        """Make the batches in steps.

        Args:
            wire: Wire variant of the session.
        """
        for part in self._parts:
            batch = MessageBatch(part, wire=wire, expiring=any(message[0][6] for message in part))
            self.bytes += batch.bytes_between(0, len(part))
            self.batches.append(batch)
            yield
        self._parts = []

    @classmethod
    def of(cls, exported: ExportedSession, messages: MessageMaker) -> WaitingMessages:
        """Return those of a session, at once."""
        waiting = cls(messages.of)
        for first in range(0, len(exported.queue), BATCH_MESSAGES):
            waiting.add(exported.queue[first : first + BATCH_MESSAGES])
        for _ in waiting.make_batches(exported.wire):
            pass
        return waiting


def export_state(
    session: Session,
    *,
    expiry_left_ms: int,
    will_left_ms: int | None,
    messages: ExportedMessages,
    waiting: Sequence[Message],
    in_flight: Sequence[ExportedInFlight] | None = None,
) -> tuple[ExportedSession, int]:
    """Return the value of a session, which is not changed.

    Args:
        session: The session. A message of its client that waits for a verdict is left out.
        expiry_left_ms: Time until it ends, in milliseconds.
        will_left_ms: Time until its Will Message is published; None when that is at its end.
        messages: Values of messages, with the time.
        waiting: The queued messages that go along.
        in_flight: The messages in flight that go along; None for all.

    Returns:
        The value, and the number of queued messages that were left out because they have expired.
    """
    sender, now_ns = session.sender, messages.now_ns
    if in_flight is None:
        in_flight = [
            ExportedInFlight(packet_id, state, None if state is SendState.AWAIT_PUBCOMP else messages.of(message))
            for packet_id, message, state in sender.inflight.in_flight()
        ]
    left = [
        replace(messages.of(message), replaces_retained=True)
        if sender.replaces_retained(message)
        else messages.of(message)
        for message in waiting
        if not 0 < message[0][6] <= now_ns  # [MQTT-3.3.2-5]
    ]
    value = ExportedSession(
        client_id=session.client_id,
        owner=None if session.access is None else _without_proof(session.access.identity),
        owner_since=session.owner_since or 0,
        wire=session.wire,
        expiry_left_ms=expiry_left_ms,
        subscriptions=subscriptions_of(session),
        in_flight=tuple(in_flight),
        last_packet_id=sender.inflight.last_packet_id,
        queue=tuple(left),
        retained=tuple(
            ExportedRetained(delivery.topic_filter, delivery.topics_left(RETAINED_TOPICS_MAX))
            for delivery in sender.deliveries
        ),
        unreleased=session.receiver.unreleased,
        will=session.will,
        will_left_ms=will_left_ms,
    )
    return value, len(waiting) - len(left)


def subscriptions_of(session: Session) -> tuple[ExportedSubscription, ...]:
    """Return the subscriptions of a session, shared ones last."""
    own = [ExportedSubscription(*one) for one in session.subscriptions.items()]
    shared = [
        ExportedSubscription(b"$share/%b/%b" % (name, topic_filter), group.options_of(session))
        for (name, topic_filter), group in session.shared.items()
    ]
    return (*own, *shared)


def queued(session: Session, keep: Callable[[int, bytes], bool] | None = None) -> list[tuple[Message, int]]:
    """Return the queued messages of a session with their positions, in order: those that `keep` wants, or all."""
    queue = session.sender.queue
    numbered = zip(queue.waiting(), range(queue.appended_total - queue.messages, queue.appended_total), strict=True)
    return [(message, position) for message, position in numbered if keep is None or keep(position, message[0][0])]


def _without_proof(identity: Identity) -> Identity:
    return replace(identity, proof="") if identity.proof else identity


def message_of(exported: ExportedMessage, *, now_ns: int) -> Message:
    """Return the message of a value as a session of this node sends it; it counts as received at a time."""
    left_ns = exported.expiry_left_ns
    update = (
        exported.topic,
        exported.payload,
        exported.update_qos,
        exported.retained,
        exported.properties,
        now_ns,
        now_ns + left_ns if left_ns is not None else 0,
        exported.digest,
        None,
    )
    message = (update, exported.qos, exported.retain, exported.identifiers)
    if exported.share is None:
        return message
    shared = SharedMessage(message)
    shared.share = exported.share
    return shared


def batches_of(messages: list[Message], *, session: Session) -> Iterator[MessageBatch]:
    """Yield messages as batches for the queue of a session, each of a size that can be encoded at once."""
    left = iter(messages)
    while part := list(islice(left, BATCH_MESSAGES)):
        yield MessageBatch(part, wire=session.wire, expiring=any(message[0][6] for message in part))


def exported_message(message: Message, *, now_ns: int) -> ExportedMessage:
    """Return the value of a message at a time."""
    (topic, payload, update_qos, retained, properties, _, expires_ns, digest, _), qos, retain, identifiers = message
    return ExportedMessage(
        topic=topic,
        payload=payload,
        properties=properties,
        update_qos=update_qos,
        retained=retained,
        expiry_left_ns=max(0, expires_ns - now_ns) if expires_ns else None,
        digest=digest,
        qos=qos,
        retain=retain,
        identifiers=identifiers,
        share=message.share if isinstance(message, SharedMessage) else None,
    )
