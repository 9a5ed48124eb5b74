"""The first requests of an epoch, which show what evidence the primary can give later (core).

Owns two questions. Does a message to the control topic come back? Then a marker and heartbeats can be
expected. Is there a *fence*: a retained message that a SUBSCRIBE can ask for behind a retained set, in the
same packet? It must not know what they prove (`fanout.link.proof`).

Fences tried: the version topic of Mosquitto, which is there by default and leaves nothing behind; else a
retained message of our own, with an expiry. A fanout node needs no fence: its PINGRESP waits for the retained
set.
"""

from __future__ import annotations

from fanout.errors import LinkLost
from fanout.link.control import ControlChannel
from fanout.link.outgoing import Message, Outgoing
from fanout.link.stage import Stage
from fanout.mqtt.packets import Suback

__all__ = ["RETAINED_COUNT", "SERVER_FENCE", "Rehearsal", "own_fence"]

SERVER_FENCE = b"$SYS/broker/version"
"""A topic whose retained value Mosquitto sets once, when it starts."""
RETAINED_COUNT = b"$SYS/broker/retained messages/count"
"""How many retained messages the primary has in all, as most servers tell; asked so that a shortfall has a measure."""
CONTROL_PATIENCE_S = 1.0
"""How long the control message may take after its PUBACK before it counts as not permitted."""
_OWN_FENCE_EXPIRY_S = 86_400
_NEVER = float("inf")


def own_fence(control: ControlChannel) -> Message:
    """Return the link's own fence; it expires, so that a node that is gone leaves nothing behind."""
    return Message(control.fence_topic, b"fence", retain=True, expiry_s=_OWN_FENCE_EXPIRY_S)


class Rehearsal(Stage):
    """The questions to a primary at the beginning of an epoch.

    Attributes:
        done: Whether both are answered.
        fence: Topic of the fence; None while none is known.
    """

    def __init__(self, *, outgoing: Outgoing, control: ControlChannel, wants_fence: bool, timeout_s: float) -> None:
        """Prepare; `begin` asks.

        Args:
            outgoing: Where requests go.
            control: Told whether messages come back.
            wants_fence: Whether the primary is one that needs a fence.
            timeout_s: How long the primary may take for any answer.
        """
        self.done = False
        self.fence: bytes | None = None
        self._outgoing = outgoing
        self._control = control
        self._wants_fence = wants_fence
        self._timeout_s = timeout_s
        self._own_fence_tried = False
        self._control_suback_id = 0
        self._control_by = _NEVER
        self._ponged = False
        self._fails_at = _NEVER

    def begin(self, now: float) -> None:
        """Ask: subscribe to the control topic, publish to it, and look for the primary's own fence."""
        outgoing, control = self._outgoing, self._control
        self._control_suback_id = outgoing.subscribe(control.topic, qos=1, no_local=False, retain_handling=2, now=now)
        outgoing.publish(Message(control.topic, control.send(now)), now=now)
        if self._wants_fence:
            outgoing.subscribe(SERVER_FENCE, qos=0, no_local=False, retain_handling=0, now=now)
            outgoing.subscribe(RETAINED_COUNT, qos=0, no_local=False, retain_handling=0, now=now)
        self._ping(now)

    def receive_suback(self, packet: Suback, now: float) -> None:
        """Take a SUBACK: a refused control topic is no channel."""
        if packet.packet_id == self._control_suback_id and packet.reason_codes[0] >= 0x80:
            self._control.refuse()
            self._answer(now)

    def receive_puback(self, now: float) -> None:
        """Take the PUBACK of the control message, after `ControlChannel.refuse` when it refuses."""
        if self._control.permitted is None:
            self._control_by = now + CONTROL_PATIENCE_S
        self._answer(now)

    def receive_control(self, payload: bytes, now: float) -> None:
        """Note that the control message came back."""
        self._answer(now)

    def receive_retained(self, topic: bytes, now: float) -> None:
        """Take a retained message that may be the fence."""
        if topic in (SERVER_FENCE, self._control.fence_topic):
            self.fence = topic
            self._answer(now)

    def receive_pingresp(self, now: float) -> None:
        """Take PINGRESP: what should have come before it has come."""
        self._ponged = True
        self._answer(now)

    def tick(self, now: float) -> None:
        """Do what is due.

        Raises:
            LinkLost: The primary does not answer.
        """
        if now >= self._control_by and self._control.permitted is None:
            self._control.refuse()
            self._answer(now)
        if not self.done and now >= self._fails_at:
            raise LinkLost("the primary does not answer")

    @property
    def deadline(self) -> float:
        """When to call `tick`, monotonic seconds."""
        return min(self._control_by if self._control.permitted is None else _NEVER, self._fails_at)

    def _ping(self, now: float) -> None:
        self._ponged = False
        self._outgoing.ping(now)
        self._fails_at = now + self._timeout_s

    def _answer(self, now: float) -> None:
        if self._control.permitted is None or not self._ponged:
            return
        tries = self._wants_fence and self.fence is None and self._control.permitted and not self._own_fence_tried
        if tries and self._outgoing.free:
            self._own_fence_tried = True
            self._outgoing.publish(own_fence(self._control), now=now)
            self._outgoing.subscribe(self._control.fence_topic, qos=0, no_local=False, retain_handling=0, now=now)
            self._ping(now)
            return
        self.done = True
