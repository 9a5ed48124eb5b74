"""The server at the other end of a link: what it is, and how it says that it stands (core).

Owns what a link knows of it: from CONNACK, from what an epoch has shown, and from the standing of a fanout node
(`fanout.chain.readiness_notice`), for which it asks. It must not know how any of it is found out
(`fanout.link.snapshot.capability_check`, `fanout.link.snapshot.retained_pass`), nor what follows from it.
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
    """The primary of one link, as the newest Network Connection that it accepted found it.

    Attributes:
        node: Its node identifier, when CONNACK told that it is a fanout node; else None.
        fence: Topic of the fence that snapshots of this epoch use; None for none.
        order: Whether it answers in order, as far as this epoch has shown.
        why_unordered: Why it is not known to, in words; empty when it is.
        hears_standing: Whether it is a fanout node, or may be one: over MQTT 3.1.1 it cannot say so.
        landmarks: Topics whose messages say something about the data in front of them.
        is_mosquitto: Whether it is a Mosquitto: it is known what that counts, and that it sends what has QoS 0 in front
            of what it has queued at QoS 1 and 2.
        system_topics: Whether it may be asked for topics below `$SYS/`.
    """

    def __init__(self, config: LinkConfig, *, node_id: str, sender: PacketSender) -> None:
        """Prepare for one link.

        Args:
            config: The link's configuration.
            node_id: This node, which must not be above its own primary.
            sender: Where requests go.
        """
        self.node: str | None = None
        self.hears_standing = False
        self.landmarks: frozenset[bytes] = frozenset()
        self.fence: bytes | None = None
        self.order = Order.NONE
        self.why_unordered = ""
        self.is_mosquitto = False
        self.system_topics = SystemTopics()
        self._version = config.version
        self._node_id = node_id
        self._sender = sender
        self._suback_id = 0
        """Packet Identifier of the SUBSCRIBE for the standing of a fanout node while it awaits SUBACK, else 0."""

    def begin_epoch(self) -> None:
        """Forget what the former epoch has shown."""
        self.learn(None, Order.NONE, "")
        self.is_mosquitto = False

    def learn(self, fence: bytes | None, order: Order, why_unordered: str) -> None:
        """Note what an epoch has shown; see the class."""
        self.fence, self.order, self.why_unordered = fence, order, why_unordered

    def begin_connection(self, node: str | None, *, now: float) -> ReadinessNotice:
        """Note who accepted a Network Connection, and ask how it stands; what it says comes in order with the data.

        Args:
            node: See the class.
            now: Monotonic seconds.

        Returns:
            What is known of its standing before it says anything.
        """
        self.node = node
        self.hears_standing = node is not None or self._version == 4
        self.landmarks = frozenset((READINESS_TOPIC, MANIFEST_TOPIC) if self.hears_standing else ())
        self._suback_id = 0
        if node is not None or (self.hears_standing and self.system_topics.asked):
            asked = self._sender.subscribe(READINESS_TOPIC, qos=1, no_local=False, retain_handling=0, now=now)
            self._suback_id = 0 if node is None else asked
        return NO_NODE if node is None else UNTOLD

    def receive_suback(self, packet: Suback) -> None:
        """Look at a SUBACK.

        Raises:
            PrimaryRefused: A fanout node does not let the link know how it stands.
        """
        if packet.packet_id == self._suback_id:
            self._suback_id = 0
            if packet.reason_codes[0] >= 0x80:
                raise refused_subscription(READINESS_TOPIC.decode(), packet.reason_codes[0])

    def receive_standing(self, payload: bytes) -> ReadinessNotice:
        """Return what a message of the standing's topic says.

        Raises:
            PrimaryRefused: The primary gets what it has from this node.
        """
        standing = decode_readiness_notice(payload) or (NO_NODE if self.node is None else UNTOLD)
        check_cycle(standing, self._node_id)
        return standing
