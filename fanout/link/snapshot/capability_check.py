"""The first requests of an epoch, which show what evidence the primary can give later (core).

Owns four questions. Does a message to the control topic come back? Then a marker and heartbeats can be expected. Is
there a *fence*: a retained message that a SUBSCRIBE can ask for behind a retained set, in the same packet? And does the
primary answer in order, so that what is asked for behind a set comes behind it? Does it send retained messages for a
Topic Filter with wildcards at all? It must not know what they prove (`fanout.link.snapshot.set_proof`).

Fences tried: the version topic of Mosquitto, which is there by default and leaves nothing behind; else a
retained message of our own, with an expiry. A fanout node needs no fence: its PINGRESP waits for the retained
set.

Order: of Mosquitto and of fanout nodes it is known. Of others it is tried a few times with the fence, which must come
in front of the PINGRESP that was asked for behind it, and even then only the sets themselves can show it
(`fanout.link.snapshot.retained_pass`).

Wildcards: some primaries (RabbitMQ 3.10) send retained messages only for a Topic Filter without wildcards. Fence,
PINGRESP and marker come all the same, so an empty set would look whole. So when the fence has come by its name each
time, it is asked for once more by a filter with a wildcard.
"""

from __future__ import annotations

from collections.abc import Sequence

from fanout.errors import LinkLost, SnapshotUnproved
from fanout.link.model.evidence import Order
from fanout.link.protocol.control_channel import PAYLOAD_BYTES_MAX, ControlChannel
from fanout.link.protocol.sender import Message, PacketSender
from fanout.link.snapshot.stage import Stage
from fanout.mqtt.packets import Suback
from fanout.selection import Selector

__all__ = ["RETAINED_COUNT", "SERVER_FENCE", "CapabilityCheck", "own_fence", "refuse_control"]

SERVER_FENCE = b"$SYS/broker/version"
"""A topic whose retained value Mosquitto sets once, when it starts."""
RETAINED_COUNT = b"$SYS/broker/retained messages/count"
"""How many retained messages the primary has in all, as most servers tell; asked so that a shortfall has a measure."""
CONTROL_PATIENCE_S = 1.0
"""How long the control message may take after its PUBACK before it counts as not permitted; and how long a fence that
did not come in front of PINGRESP may take, so that the reason can be told."""
TRIALS = 3
"""How often a fence must come in front of PINGRESP at a primary whose order is not known."""
_BY_WILDCARD = {SERVER_FENCE: b"$SYS/+/version"}
"""How the primary's own fence is asked for with a wildcard."""
_MOSQUITTO = b"mosquitto"
_FANOUT = b"fanout"
"""How the versions begin of primaries whose order is known. A fanout node over MQTT 3.1.1 cannot say so in CONNACK."""
_OVERTAKEN = "the primary's answers overtake its retained messages"
_NO_FENCE = (
    "no retained message could be had that marks the end of a set; allow the link's user to read $SYS/broker/version,"
    " or to write and read below its control topic"
)
_OWN_FENCE_EXPIRY_S = 86_400
_NEVER = float("inf")


def own_fence(control: ControlChannel) -> Message:
    """Return the link's own fence; it expires, so that a node that is gone leaves nothing behind."""
    return Message(control.fence_topic, b"fence", retain=True, expiry_s=_OWN_FENCE_EXPIRY_S)


def refuse_control(control: ControlChannel, sender: PacketSender) -> bool:
    """Say, and note, whether the primary's limits exclude messages to the control topic."""
    if sender.takes(Message(control.topic, bytes(PAYLOAD_BYTES_MAX))):
        return False
    control.refuse("the primary takes no messages at QoS 1, or none as large as a heartbeat")
    return True


class CapabilityCheck(Stage):
    """The questions to a primary at the beginning of an epoch.

    Attributes:
        done: Whether all are answered.
        answered: Whether the primary answered what stands behind the first questions.
        fence: Topic of the fence; None while none is known.
        order: Whether the primary answers in order.
        why: Why it is not known to, in words; empty when it is.
        is_mosquitto: Whether it calls itself Mosquitto.
    """

    def __init__(
        self,
        *,
        sender: PacketSender,
        control: ControlChannel,
        wants_fence: bool,
        asks_system: bool = True,
        timeout_s: float,
        selectors: Sequence[Selector] = (),
    ) -> None:
        """Prepare; `begin` asks.

        Args:
            sender: Where requests go.
            control: Told whether messages come back.
            wants_fence: Whether the primary is one that needs a fence.
            asks_system: Whether it may be asked below `$SYS/`.
            timeout_s: How long the primary may take for any answer.
            selectors: What will be asked for behind it.
        """
        self.done = False
        self.answered = False
        self.fence: bytes | None = None
        self.order = Order.NONE if wants_fence else Order.KNOWN
        self.why = ""
        self.is_mosquitto = False
        self._sender = sender
        self._control = control
        self._asks_system = wants_fence and asks_system
        self._timeout_s = timeout_s
        self._own_fence_tried = False
        self._trials = 0
        """How many fences came in front of the PINGRESP that was asked for behind them."""
        self._late_fence_by = _NEVER
        """Until when a fence may come that did not come in front of PINGRESP."""
        self._wild = next((one.filter for one in selectors if one.has_wildcard and not one.live_only), None)
        """A selector whose retained messages must come for a filter with wildcards; None without any."""
        self._wildcard: bytes | None = None
        """The Topic Filter with a wildcard by which the fence was asked for last."""
        self._control_suback_id = 0
        self._control_by = _NEVER
        self._ponged = False
        self._fence_came = False
        """Whether the fence came in front of the PINGRESP that is awaited, or came last."""
        self._fails_at = _NEVER

    def begin(self, now: float) -> None:
        """Ask: subscribe to the control topic, publish to it, and look for the primary's own fence."""
        sender, control = self._sender, self._control
        self._control_suback_id = sender.subscribe(control.topic, qos=1, no_local=False, retain_handling=2, now=now)
        message = Message(control.topic, control.send(now))
        if not refuse_control(control, sender):
            sender.publish(message, now=now)
        if self._asks_system:
            sender.subscribe(SERVER_FENCE, qos=0, no_local=False, retain_handling=0, now=now)
            sender.subscribe(RETAINED_COUNT, qos=0, no_local=False, retain_handling=0, now=now)
        self._ping(now)

    def receive_suback(self, packet: Suback, now: float) -> None:
        """Take a SUBACK: a refused control topic is no channel."""
        if packet.packet_id == self._control_suback_id and packet.reason_codes[0] >= 0x80:
            self._control.refuse("the primary does not let the link subscribe to its control topic")
            self._answer(now)

    def receive_puback(self, now: float) -> None:
        """Take the PUBACK of the control message, after `ControlChannel` was told of it when it refuses."""
        if self._control.permitted is None:
            self._control_by = now + CONTROL_PATIENCE_S
        self._answer(now)

    def receive_control(self, payload: bytes, now: float) -> None:
        """Note that the control message came back."""
        self._answer(now)

    def receive_retained(self, topic: bytes, payload: bytes, now: float) -> None:
        """Take a retained message that may be the fence."""
        if topic not in (SERVER_FENCE, self._control.fence_topic) or self.order is Order.KNOWN:
            return
        if self._ponged or (self._own_fence_tried and topic == SERVER_FENCE):
            self.why = _OVERTAKEN
        else:
            self.fence = topic
            self._fence_came = True
            if topic == SERVER_FENCE and payload.startswith((_MOSQUITTO, _FANOUT)):
                self.order = Order.KNOWN
                self.is_mosquitto = payload.startswith(_MOSQUITTO)
        self._answer(now)

    def receive_pingresp(self, now: float) -> None:
        """Take PINGRESP: what should have come before it has come."""
        self._ponged = self.answered = True
        if not self._fence_came and self._wildcard is None:
            self.fence = None
        self._answer(now)

    def postpone(self, pause_s: float) -> None:
        """Give the primary so much more time for what is awaited."""
        self._control_by += pause_s
        self._late_fence_by += pause_s
        self._fails_at += pause_s

    def tick(self, now: float) -> None:
        """Do what is due.

        Raises:
            LinkLost: The primary does not answer.
        """
        if now >= self._control_by and self._control.permitted is None:
            self._control.refuse("what the link publishes to its control topic does not come back")
        if now >= min(self._control_by, self._late_fence_by):
            self._answer(now)
        if not self.done and now >= self._fails_at:
            raise LinkLost("the primary does not answer")

    @property
    def deadline(self) -> float:
        """When to call `tick`, monotonic seconds."""
        if self.done:
            return _NEVER
        control_by = self._control_by if self._control.permitted is None else _NEVER
        return min(control_by, self._late_fence_by, self._fails_at)

    def _ping(self, now: float) -> None:
        self._ponged = False
        self._fence_came = False
        self._late_fence_by = _NEVER
        self._sender.ping(now)
        self._fails_at = now + self._timeout_s

    def _answer(self, now: float) -> None:
        if self.done or self._control.permitted is None or not self._ponged:
            return
        if self.order is Order.KNOWN:
            self.done = True
        elif self.why:
            self.fence, self.done = None, True
        elif self.fence is not None and self._wildcard is not None:
            self._answer_wildcard(self.fence, now)
        elif self.fence is not None:
            self._trials += 1
            if self._trials < TRIALS:
                self._ask_fence(self.fence, now)
            elif self._wild is not None:
                self._wildcard = _BY_WILDCARD.get(self.fence, self._control.own_filter)
                self._ask_fence(self._wildcard, now)
            else:
                self.order, self.done = Order.LIKELY, True
        elif (
            self._control.permitted
            and not self._own_fence_tried
            and self._sender.free
            and self._sender.takes(own_fence(self._control))
        ):
            self._own_fence_tried = True
            self._sender.publish(own_fence(self._control), now=now)
            self._ask_fence(self._control.fence_topic, now)
        elif self._late_fence_by == _NEVER:
            self._late_fence_by = now + CONTROL_PATIENCE_S
        elif now >= self._late_fence_by:
            self.why, self.done = _NO_FENCE, True

    def _answer_wildcard(self, fence: bytes, now: float) -> None:
        """Take that the fence came by a Topic Filter with a wildcard, or that it did not.

        Raises:
            SnapshotUnproved: It did not, and a selector needs it.
        """
        assert self._wildcard is not None
        if self._fence_came:
            self._sender.unsubscribe(self._wildcard, now=now)
            self.order, self.done = Order.LIKELY, True
        elif self._late_fence_by == _NEVER:
            self._late_fence_by = now + CONTROL_PATIENCE_S
        elif now >= self._late_fence_by:
            raise SnapshotUnproved(
                f"the primary sends no retained messages for Topic Filters with wildcards, as {self._wild} is one: it"
                f" sent {fence.decode()} when asked by that name, and not when asked by {self._wildcard.decode()}",
                hint="Use a selector for each topic, or live_only = true for this one, or another primary; if access"
                " rules of the primary are the reason, allow the link's user to subscribe below its control topic",
            )

    def _ask_fence(self, topic: bytes, now: float) -> None:
        self._sender.subscribe(topic, qos=0, no_local=False, retain_handling=0, now=now)
        self._ping(now)
