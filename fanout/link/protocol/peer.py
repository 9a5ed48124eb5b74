"""The primary at the other end of a link: its kind, its capabilities, and its readiness notice.

Filled from CONNACK, from the checks of `fanout.link.snapshot`, and from the notice of a fanout node
(`fanout.chain.readiness_notice`), to which it subscribes.
"""

from __future__ import annotations

from fanout.chain.manifest import MANIFEST_TOPIC
from fanout.chain.readiness_notice import NO_NODE, READINESS_TOPIC, UNTOLD, ReadinessNotice, decode_readiness_notice
from fanout.config import LinkConfig
from fanout.link.model.evidence import Order
from fanout.link.protocol.handshake import check_cycle, refused_subscription
from fanout.link.protocol.sender import PacketSender
from fanout.link.protocol.sys_support import SystemTopics
from fanout.mqtt.packets import Suback

__all__ = ["RemotePeer"]


class RemotePeer:
    """The primary of one link, as of the newest Network Connection that it accepted.

    Attributes:
        node: Node identifier that a fanout node gave in CONNACK; else None.
        sentinel: Topic of the sentinel that snapshots of this epoch use; None for none.
        order: Order of its answers, as far as this epoch has shown.
        why_unordered: Why that is not known, in words; empty when it is.
        hears_readiness: True if it is a fanout node, or may be one: over MQTT 3.1.1 it cannot say so.
        ordered_topics: Topics whose messages must be handled at their place among the data.
        is_mosquitto: True if it is a Mosquitto, whose counts are understood, and which sends messages at QoS 0 in
            front of those that it has queued at QoS 1 and 2.
        merges_no_local: True if No Local of a selector applies to the control topic, too, so that no control message
            comes back (mochi-mqtt); found out once in the life of the process.
        system_topics: True if it takes subscriptions below `$SYS/`, and messages at QoS 1.
    """

    def __init__(self, config: LinkConfig, *, node_id: str, sender: PacketSender) -> None:
        """Begin with an unknown primary.

        Args:
            config: The link's configuration.
            node_id: This node, which must not be above its own primary.
            sender: Sender of packets.
        """
        self.node: str | None = None
        self.hears_readiness = False
        self.ordered_topics: frozenset[bytes] = frozenset()
        self.sentinel: bytes | None = None
        self.order = Order.NONE
        self.why_unordered = ""
        self.is_mosquitto = False
        self.merges_no_local = False
        self.system_topics = SystemTopics(config.version)
        self._version = config.version
        self._node_id = node_id
        self._sender = sender
        self._suback_id = 0
        """Packet Identifier of the SUBSCRIBE for the notice of a fanout node while SUBACK is awaited, else 0."""

    def begin_epoch(self) -> None:
        """Forget the findings of the former epoch."""
        self.learn(None, Order.NONE, "", is_mosquitto=False)

    def learn(self, sentinel: bytes | None, order: Order, why_unordered: str, *, is_mosquitto: bool) -> None:
        """Note the findings of a capability check; see the class."""
        self.sentinel, self.order, self.why_unordered = sentinel, order, why_unordered
        self.is_mosquitto = is_mosquitto

    def note_order(self, order: Order, why_unordered: str) -> None:
        """Note the order that a pass has shown; if it is another one, only a known order keeps the sentinel."""
        if order is not self.order:
            sentinel = self.sentinel if order is Order.KNOWN else None
            self.learn(sentinel, order, why_unordered, is_mosquitto=self.is_mosquitto)

    def begin_connection(self, node: str | None, *, now: float) -> ReadinessNotice:
        """Note the primary that accepted a Network Connection, and subscribe to its readiness notice.

        Args:
            node: See the class.
            now: Monotonic seconds.

        Returns:
            Its readiness until the first notice comes.
        """
        self.node = node
        self.hears_readiness = node is not None or self._version == 4
        self.ordered_topics = frozenset((READINESS_TOPIC, MANIFEST_TOPIC) if self.hears_readiness else ())
        self._suback_id = 0
        if node is not None or (self.hears_readiness and self.system_topics.asked):
            asked = self._sender.subscribe(READINESS_TOPIC, qos=1, no_local=False, retain_handling=0, now=now)
            self._suback_id = 0 if node is None else asked
        return NO_NODE if node is None else UNTOLD

    def receive_suback(self, packet: Suback) -> None:
        """Look at a SUBACK.

        Raises:
            PrimaryRefused: A fanout node refuses the subscription to its readiness notice.
        """
        if packet.packet_id == self._suback_id:
            self._suback_id = 0
            if packet.reason_codes[0] >= 0x80:
                raise refused_subscription(READINESS_TOPIC.decode(), packet.reason_codes[0])

    def receive_readiness(self, payload: bytes) -> ReadinessNotice:
        """Return the readiness notice in a message.

        Raises:
            PrimaryRefused: The primary is below this node.
        """
        notice = decode_readiness_notice(payload) or (NO_NODE if self.node is None else UNTOLD)
        check_cycle(notice, self._node_id)
        return notice
