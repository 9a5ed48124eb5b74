"""Session of one client (MQTT 5, section 4.1): its sender, its receiver, and its delivery state.

Owns the state that decides whether the session's audience writes to it directly. The connection passes the function
that writes, and the time.
"""

from __future__ import annotations

from collections.abc import Callable

from fanout.access.authorization import Access
from fanout.chain.age_bound import AgeBound
from fanout.mqtt.decoder import AckRun
from fanout.mqtt.packets import PacketType
from fanout.server.base.counters import Counters
from fanout.server.base.timer import Deadline
from fanout.server.messages.encoding import WireVariant
from fanout.server.messages.queue import Conflatable, MessageBatch, MessageQueue
from fanout.server.routing.subscribers import SessionState, Subscriber, Write
from fanout.server.session.receiver import SessionReceiver
from fanout.server.session.retained_delivery import RetainedDelivery
from fanout.server.session.sender import SessionSender
from fanout.server.session.wills import WillMessage

__all__ = ["Session"]


class Session(Subscriber):
    """Session of one client. `AudienceIndex` sets `audience` and `subscriptions`."""

    __slots__ = (
        "_connection_write",
        "_overflowed",
        "_paused",
        "_wake",
        "access",
        "age_asked",
        "bounded",
        "counted",
        "expiry",
        "expiry_s",
        "owner_since",
        "receiver",
        "sender",
        "will",
        "will_deadline",
    )

    def __init__(
        self,
        client_id: str,
        *,
        wire: WireVariant,
        queue: MessageQueue,
        overflowed: dict[Session, None],
        counters: Counters,
    ) -> None:
        """Make a session without a connection.

        Args:
            client_id: Client Identifier.
            wire: Wire variant of its client.
            queue: Its empty queue.
            overflowed: The session adds itself here when its queue overflows, so that it must end.
            counters: Totals of the server.
        """
        sender = SessionSender(wire=wire, queue=queue, counters=counters)
        super().__init__(client_id, wire=wire, follower=sender.inflight.follower)
        self.access: Access | None = None
        """Identity and permissions of its client; None without access control."""
        self.sender = sender
        """Messages to the client."""
        self.age_asked: AgeBound | None = None
        """Bound on the age that its client asked for in SUBSCRIBE; None for none."""
        self.bounded: frozenset[bytes] = frozenset()
        """Topic Filters of the SUBSCRIBEs that asked for it."""
        self.counted = 0, 0, 0
        """Sessions, connections and subscriptions that `UserQuotas` counts for it."""
        self.receiver = SessionReceiver(version=wire.version, counters=counters)
        """Messages from the client."""
        self.expiry_s = 0
        """Session Expiry Interval in seconds."""
        self.expiry: Deadline | None = None
        """Time when it ends, while it is absent."""
        self.owner_since: int | None = None
        """Since when its owner has the Client Identifier, as a pool counts; None while that is not known."""
        self.will: WillMessage | None = None
        """Its Will Message; None when it has none (left)."""
        self.will_deadline: Deadline | None = None
        """Time when its Will Message is published, while it is absent and the Will Delay Interval runs."""
        self._connection_write: Write | None = None
        self._overflowed = overflowed
        self._paused = False
        self._wake: Callable[[], None] | None = None

    @property
    def topic_filters(self) -> list[bytes]:
        """The Topic Filters of all its subscriptions, as its client sent them."""
        shared = (b"$share/%b/%b" % (group, topic_filter) for group, topic_filter in self.shared)
        return [*self.subscriptions, *shared]

    @property
    def user(self) -> str:
        """The verified user of its client; empty without one."""
        return "" if self.access is None else self.access.identity.user

    @property
    def paused(self) -> bool:
        """True while the socket of its Network Connection is full."""
        return self._paused

    @property
    def is_connected(self) -> bool:
        """True if it has a Network Connection."""
        return self._connection_write is not None

    @property
    def outlives_node(self) -> bool:
        """True if it may go on in another process: it has a Session Expiry Interval, and is of no link of a node."""
        return bool(self.expiry_s) and not self.is_of_a_link

    @property
    def is_of_a_link(self) -> bool:
        """True if its client is the link of a node, whose proofs hold for one server only."""
        return self.wire.stamped or any(delivery.has_manifest for delivery in self.sender.deliveries)

    @property
    def is_idle(self) -> bool:
        """True when no message is queued, in flight or unacknowledged in either direction."""
        return not (self.sender.pending or self.sender.inflight.messages or self.receiver.unanswered)

    def connect(self, write: Write, *, window: int, wake: Callable[[], None] | None = None) -> bytes:
        """Attach a Network Connection; the wire variant is set by `AudienceIndex.join`, before.

        Args:
            write: Writes bytes to it.
            window: Limit of messages in flight: the client's Receive Maximum, or less.
            wake: Called when messages wait for a session with a bound on their age, which is never DIRECT.

        Returns:
            The bytes to send first; `take` returns the next ones.
        """
        self._connection_write = write
        self._wake = wake
        self._paused = False
        self.receiver.new_connection(self.wire.version)
        first = self.sender.connect(wire=self.wire, window=window)
        self._update_state()
        return first

    def disconnect(self) -> None:
        """Detach the Network Connection."""
        self._connection_write = self._wake = None
        self._paused = False
        self.sender.disconnect()
        self._update_state()

    def pause(self) -> None:
        """Record that its socket is full."""
        self._paused = True
        self.sender.conflate_queued()
        self._update_state()

    def resume(self) -> None:
        """Record that its socket is writable again."""
        self._paused = False
        self._update_state()

    def limit_age(self, bound: AgeBound | None) -> None:
        """Bound the age of what waits for its client, or end that; `AudienceIndex.set_age_bound` comes first."""
        conflatable = Conflatable.RETAINED
        if bound is not None:  # copies of a durable session at other places know each message of its queue
            durable_too = bound.qos_max == 1 and not self.outlives_node
            conflatable = Conflatable.QOS_1 if durable_too else Conflatable.QOS_0
        self.sender.limit_age(bound, conflatable=conflatable)
        self._update_state()

    def add_retained(self, delivery: RetainedDelivery) -> None:
        """Add a retained delivery; live messages are queued until it is complete."""
        self.sender.add_retained(delivery)
        self._update_state()

    def cancel_retained(self, topic_filter: bytes) -> None:
        """Cancel the retained delivery of a subscription that has ended."""
        self.sender.cancel_retained(topic_filter)
        self._update_state()

    def enqueue(self, batch: MessageBatch) -> None:
        """Queue a batch; without a Network Connection only its messages at QoS 1 and 2."""
        if self._connection_write is None:
            self.sender.enqueue(batch.durable(), conflate=self.age_bound)
        else:
            self.sender.enqueue(batch, conflate=self._paused)
        self._update_state()
        if self.sender.queue.overflowed:
            self._overflowed[self] = None
        elif self.age_bound and self._wake is not None:
            self._wake()

    def send(self, batch: MessageBatch, *, now_ns: int) -> bytes:
        """Return the bytes of a batch for a session that is DIRECT; messages above its window are queued."""
        data = self.sender.send(batch, now_ns=now_ns)
        self._update_state()
        if self.sender.queue.overflowed:
            self._overflowed[self] = None
        return data

    def take(self, *, now_ns: int, messages_max: int, bytes_max: int) -> bytes:
        """Take the next bytes to write; see `SessionSender.take`."""
        data = self.sender.take(now_ns=now_ns, messages_max=messages_max, bytes_max=bytes_max)
        self._update_state()
        return data

    def acknowledge(self, run: AckRun) -> bytes:
        """Process a run of PUBACK, PUBREC, PUBREL or PUBCOMP and return the answers."""
        if run.type is PacketType.PUBREL:
            return self.receiver.release(run.packet_ids)
        return self.sender.inflight.acknowledge(run)

    def _update_state(self) -> None:
        """Update `state`, in its audience and share groups too."""
        if self._connection_write is None:
            state = SessionState.ABSENT
        elif self._paused or self.age_bound or self.sender.pending:
            state = SessionState.QUEUED
        else:
            state = SessionState.DIRECT
        if state is self.state:
            return
        self.state = state
        self.write = self._connection_write if state is SessionState.DIRECT else None
        if self.audience is not None:
            self.audience.update(self)
        for group in self.shared.values():
            group.update(self)
