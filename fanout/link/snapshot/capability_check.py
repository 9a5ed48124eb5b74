"""First stage of an epoch: requests that show which evidence the primary can give.

It answers four questions. Does a message to the control topic come back? Then markers and heartbeats are possible. Is
there a *sentinel*: a retained message that a SUBSCRIBE can request after a retained set, in the same packet? Does the
primary answer in order, so that requests after a set are answered after it? Does it send retained messages for a
Topic Filter with wildcards at all?

Sentinels tried: the version topic of Mosquitto, which is there by default and leaves nothing behind; else a
retained message of the link, with an expiry. It is requested after its PUBACK, because a primary may keep it only then
(nats-server 2.15), and again if it does not come. A fanout node needs no sentinel: its PINGRESP waits for the retained
set.

The check is repeated within a live session that needs better evidence, or whose heartbeats do not come back: a right
may have been granted meanwhile (`fanout.link.session.evidence_retry`).

Order: it is known for Mosquitto and for fanout nodes. For others a few trials must bring the sentinel before the
PINGRESP that was requested after it. Even then only the sets themselves can prove it
(`fanout.link.snapshot.retained_pass`).

Wildcards: some primaries (RabbitMQ 3.10) send retained messages only for a Topic Filter without wildcards. Sentinel,
PINGRESP and marker come all the same, so an empty set would look complete. So after the sentinel has come by its name
each time, it is requested once more by a filter with a wildcard.
"""

from __future__ import annotations

from fanout.errors import LinkLost, SnapshotUnproved
from fanout.link.model.evidence import Order
from fanout.link.protocol.control_channel import PAYLOAD_BYTES_MAX, ControlChannel
from fanout.link.protocol.sender import OutgoingMessage, PacketSender
from fanout.link.snapshot.context import LinkContext
from fanout.link.snapshot.stage import Stage
from fanout.mqtt.packets import Suback

__all__ = [
    "BY_WILDCARD",
    "LIMIT_REFUSALS",
    "OWN_SENTINEL_REQUESTS",
    "RETAINED_COUNT",
    "SERVER_SENTINEL",
    "CapabilityCheck",
    "is_checked",
    "own_sentinel",
    "refuse_control",
]

SERVER_SENTINEL = b"$SYS/broker/version"
"""A topic whose retained value Mosquitto sets once, when it starts."""
RETAINED_COUNT = b"$SYS/broker/retained messages/count"
"""Topic of the primary's count of retained messages, which most servers have; requested to measure a shortfall."""
CONTROL_PATIENCE_S = 1.0
"""Seconds after its PUBACK in which the control message must come back, else it counts as not permitted.

A sentinel that did not come before PINGRESP has as long, so that the reason is known.
"""
OWN_SENTINEL_REQUESTS = 4
"""Number of requests for the link's own sentinel, `CONTROL_PATIENCE_S` apart, before it counts as unavailable."""
TRIALS = 3
"""Number of trials in which a sentinel must come before PINGRESP at a primary whose order is unknown."""
BY_WILDCARD = {SERVER_SENTINEL: b"$SYS/+/version"}
"""Topic Filter with a wildcard for the primary's own sentinel."""
_MOSQUITTO = b"mosquitto"
_FANOUT = b"fanout"
"""First bytes of the versions of primaries whose order is known. Over MQTT 3.1.1 CONNACK does not tell a node."""
_OVERTAKEN = "the primary's answers overtake its retained messages"
_NO_SENTINEL = (
    "no sentinel could be obtained to mark the end of a set; allow the link's user to read $SYS/broker/version,"
    " or to write and read below its control topic"
)
_NOTHING_RETAINED = (
    "the primary keeps no retained messages (CONNACK: Retain Available 0), so there is nothing to prove; set"
    " live_only = true for its selectors"
)
_PERHAPS_NOTHING_RETAINED = "; or it keeps no retained messages at all: then set live_only = true for its selectors"
_NO_QOS_1 = "the primary accepts no messages at QoS 1 (CONNACK: Maximum QoS 0)"
_CLOSES_AT_QOS_1 = "the primary closes the connection at a message at QoS 1"
_TOO_LARGE = "the primary accepts no messages as large as a heartbeat (CONNACK: Maximum Packet Size)"
LIMIT_REFUSALS = {
    _NO_QOS_1: "Raise its Maximum QoS (max_qos of Mosquitto), or set heartbeat_s = 0; nothing is forwarded either",
    _CLOSES_AT_QOS_1: (
        "Allow the link's user to publish and read below its control topic (fanout check --acl prints the rules), or"
        " raise its max_qos, and restart the node; or set heartbeat_s = 0; nothing is forwarded either"
    ),
    _TOO_LARGE: "Raise its Maximum Packet Size (max_packet_size of Mosquitto), or set heartbeat_s = 0",
}
"""Reasons for which a primary's limits exclude messages to the control topic, and advice."""
_OWN_SENTINEL_EXPIRY_S = 86_400
_NEVER = float("inf")


def own_sentinel(control: ControlChannel) -> OutgoingMessage:
    """Return the link's own sentinel; it expires, so that a node that is gone leaves nothing behind."""
    return OutgoingMessage(control.sentinel_topic, b"fence", retain=True, expiry_s=_OWN_SENTINEL_EXPIRY_S)


def is_checked(context: LinkContext) -> bool:
    """Say whether the capability check of this epoch is complete."""
    peer = context.peer
    return context.control.permitted is not None and (peer.sentinel is not None or peer.node is not None)


def refuse_control(control: ControlChannel, sender: PacketSender) -> bool:
    """Return whether the primary's limits exclude messages to the control topic, and note it in the channel."""
    if sender.takes(OutgoingMessage(control.topic, bytes(PAYLOAD_BYTES_MAX))):
        return False
    if sender.limits.maximum_qos:
        control.refuse(_TOO_LARGE)
    else:
        control.refuse(_CLOSES_AT_QOS_1 if sender.limits.closes_at_messages else _NO_QOS_1)
    return True


class CapabilityCheck(Stage):
    """Capability check of one epoch.

    Attributes:
        done: True if all questions are answered.
        answered: True if the primary answered the request after the first questions.
        sentinel: Topic of the sentinel; None while none is known.
        order: Order of the primary's answers.
        why: Why that is not known, in words; empty when it is.
        is_mosquitto: True if the primary calls itself Mosquitto.
    """

    def __init__(self, context: LinkContext) -> None:
        """Prepare; `begin` sends the requests.

        Args:
            context: Collaborators of the link.
        """
        config, peer = context.config, context.peer
        wants_sentinel = peer.node is None
        self.done = False
        self.answered = False
        self.sentinel: bytes | None = None
        self.order = Order.NONE if wants_sentinel else Order.KNOWN
        self.why = ""
        self.is_mosquitto = False
        self._sender = context.sender
        self._control = context.control
        self._asks_system = wants_sentinel and peer.system_topics.asked
        self._timeout_s = config.connect_timeout_s
        self._own_sentinel_published = False
        self._own_sentinel_requests = 0
        self._trials = 0
        """Number of sentinels that came before the PINGRESP that was requested after them."""
        self._late_sentinel_by = _NEVER
        """Deadline of a sentinel that did not come before PINGRESP."""
        self._wild = next(
            (one.filter for one in context.replica.selectors if one.has_wildcard and not one.live_only), None
        )
        """A selector whose retained messages must come for a filter with wildcards; None without any."""
        self._wildcard: bytes | None = None
        """Topic Filter with a wildcard by which the sentinel was requested; None before."""
        self._control_suback_id = 0
        self._control_by = _NEVER
        self._ponged = False
        self._sentinel_came = False
        """True if the sentinel of the newest request has come."""
        self._fails_at = _NEVER
        self._begun = False

    def begin(self, now: float) -> None:
        """Subscribe to the control topic, publish to it, and request the primary's own sentinel.

        While a PINGREQ of a live link is under way, wait for its PINGRESP.
        """
        sender, control = self._sender, self._control
        if sender.ping_sent_s is not None:
            self._fails_at = now + self._timeout_s
            return
        self._begun = True
        self._control_suback_id = sender.subscribe(control.topic, qos=1, no_local=False, retain_handling=2, now=now)
        message = OutgoingMessage(control.topic, control.send(now))
        if not refuse_control(control, sender):
            sender.publish(message, now=now)
        if self._asks_system:
            sender.subscribe(SERVER_SENTINEL, qos=0, no_local=False, retain_handling=0, now=now)
            sender.subscribe(RETAINED_COUNT, qos=0, no_local=False, retain_handling=0, now=now)
        self._ping(now)

    def receive_suback(self, packet: Suback, now: float) -> None:
        """Take a SUBACK: a refused control topic is no channel."""
        if packet.packet_id == self._control_suback_id and packet.reason_codes[0] >= 0x80:
            self._control.refuse("the primary does not let the link subscribe to its control topic")
            self._answer(now)

    def receive_puback(self, topic: bytes, reason_code: int, now: float) -> None:
        """Take the PUBACK of the control message, or of the own sentinel, which is requested now.

        A refusal of the control message goes to `ControlChannel` before.
        """
        if topic == self._control.sentinel_topic:
            if reason_code >= 0x80:
                self._own_sentinel_requests = OWN_SENTINEL_REQUESTS
                self._late_sentinel_by = now
            elif not self._own_sentinel_requests:
                self._ask_own_sentinel(now)
        elif not self._control.answered:
            self._control_by = now + CONTROL_PATIENCE_S
        self._answer(now)

    def receive_control(self, payload: bytes, now: float) -> None:
        """Note that the control message came back."""
        self._answer(now)

    def receive_retained(self, topic: bytes, payload: bytes, now: float) -> None:
        """Take a retained message that may be the sentinel."""
        if topic not in (SERVER_SENTINEL, self._control.sentinel_topic) or self.order is Order.KNOWN:
            return
        if topic == self._control.sentinel_topic and not self._own_sentinel_requests:
            return  # a live copy of what was just published: an earlier connection had subscribed
        if self._ponged or (self._own_sentinel_published and topic == SERVER_SENTINEL):
            self.why = _OVERTAKEN
        else:
            self.sentinel = topic
            self._sentinel_came = True
            if topic == SERVER_SENTINEL and payload.startswith((_MOSQUITTO, _FANOUT)):
                self.order = Order.KNOWN
                self.is_mosquitto = payload.startswith(_MOSQUITTO)
        self._answer(now)

    def receive_pingresp(self, now: float) -> None:
        """Take PINGRESP, after which nothing more should come."""
        if not self._begun:
            self.begin(now)
            return
        self._ponged = self.answered = True
        if not self._sentinel_came and self._wildcard is None:
            self.sentinel = None
        self._answer(now)

    def postpone(self, pause_s: float) -> None:
        """Move all deadlines by a pause."""
        self._control_by += pause_s
        self._late_sentinel_by += pause_s
        self._fails_at += pause_s

    def tick(self, now: float) -> None:
        """Do the work that is due.

        Raises:
            LinkLost: The primary does not answer.
        """
        if now >= self._control_by and not self._control.answered:
            self._control.refuse("messages to the link's control topic do not come back")
        if now >= min(self._control_by, self._late_sentinel_by):
            self._answer(now)
        if not self.done and now >= self._fails_at:
            raise LinkLost("the primary does not answer")

    @property
    def deadline(self) -> float:
        """When to call `tick`, monotonic seconds."""
        if self.done:
            return _NEVER
        control_by = _NEVER if self._control.answered else self._control_by
        return min(control_by, self._late_sentinel_by, self._fails_at)

    def _ping(self, now: float) -> None:
        self._ponged = False
        self._sentinel_came = False
        self._late_sentinel_by = _NEVER
        self._sender.ping(now)
        self._fails_at = now + self._timeout_s

    def _answer(self, now: float) -> None:
        if self.done or not self._control.answered or not self._ponged:
            return
        if self.order is Order.KNOWN:
            self.done = True
        elif self.why:
            self.sentinel, self.done = None, True
        elif self.sentinel is not None and self._wildcard is not None:
            self._answer_wildcard(self.sentinel, now)
        elif self.sentinel is not None:
            self._trials += 1
            if self._trials < TRIALS:
                self._ask_sentinel(self.sentinel, now)
            elif self._wild is not None:
                self._wildcard = BY_WILDCARD.get(self.sentinel, self._control.own_filter)
                self._ask_sentinel(self._wildcard, now)
            else:
                self.order, self.done = Order.LIKELY, True
        elif (
            self._control.permitted
            and not self._own_sentinel_published
            and self._sender.free
            and self._sender.takes(own_sentinel(self._control))
        ):
            self._own_sentinel_published = True
            self._sender.publish(own_sentinel(self._control), now=now)
            self._late_sentinel_by = now + CONTROL_PATIENCE_S  # requested then without its PUBACK
        elif self._late_sentinel_by == _NEVER:
            self._late_sentinel_by = now + CONTROL_PATIENCE_S
        elif now >= self._late_sentinel_by:
            if self._own_sentinel_published and self._own_sentinel_requests < OWN_SENTINEL_REQUESTS:
                self._ask_own_sentinel(now)
            else:
                self.why, self.done = self._why_no_sentinel(), True

    def _why_no_sentinel(self) -> str:
        if not self._sender.limits.retain_available:
            return _NOTHING_RETAINED
        return _NO_SENTINEL + (_PERHAPS_NOTHING_RETAINED if self._sender.version == 4 else "")

    def _answer_wildcard(self, sentinel: bytes, now: float) -> None:
        """Conclude from a sentinel requested by a Topic Filter with a wildcard whether such filters work.

        Raises:
            SnapshotUnproved: They do not, and a selector needs one.
        """
        assert self._wildcard is not None
        if self._sentinel_came:
            self._sender.unsubscribe(self._wildcard, now=now)
            self.order, self.done = Order.LIKELY, True
        elif self._late_sentinel_by == _NEVER:
            self._late_sentinel_by = now + CONTROL_PATIENCE_S
        elif now >= self._late_sentinel_by:
            raise SnapshotUnproved(
                f"the primary sends no retained messages for Topic Filters with wildcards, as {self._wild} is one: it"
                f" sent {sentinel.decode()} by that name, but not by {self._wildcard.decode()}",
                hint="Use a selector for each topic, or live_only = true for this one, or another primary; if access"
                " rules of the primary are the reason, allow the link's user to subscribe below its control topic",
            )

    def _ask_own_sentinel(self, now: float) -> None:
        self._own_sentinel_requests += 1
        self._ask_sentinel(self._control.sentinel_topic, now)

    def _ask_sentinel(self, topic: bytes, now: float) -> None:
        self._sender.subscribe(topic, qos=0, no_local=False, retain_handling=0, now=now)
        self._ping(now)
