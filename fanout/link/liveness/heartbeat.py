"""Sends the heartbeats of a live link, and says when it is stalled or lost by them (core).

Owns what follows from the times of the control channel (`fanout.link.protocol.control_channel`). It must not know which
state the link is in beyond stalled or not, nor what a stall leads to (`fanout.link.session.lifecycle`).
"""

from __future__ import annotations

from fanout.errors import LinkLost
from fanout.link.protocol.control_channel import STALL_INTERVALS, ControlChannel
from fanout.link.protocol.sender import Message, PacketSender

__all__ = ["Heartbeat"]

_STAYS_AWAY = "heartbeats do not come back"


class Heartbeat:
    """The heartbeat of one link."""

    def __init__(self, control: ControlChannel, *, sender: PacketSender) -> None:
        """Prepare; nothing is sent.

        Args:
            control: The control channel, which has the times.
            sender: Where heartbeats go.
        """
        self._control = control
        self._sender = sender

    def tick(self, now: float, *, live: bool) -> str:
        """Send a heartbeat if one is due, and return why the link is stalled; empty when it is not, or was before.

        Args:
            now: Monotonic seconds.
            live: Whether it is not stalled already.

        Raises:
            LinkLost: Heartbeats are away for too long.
        """
        control = self._control
        if control.is_stalled(now, intervals=2 * STALL_INTERVALS):
            raise LinkLost(_STAYS_AWAY)
        if live and control.is_stalled(now):
            return _STAYS_AWAY
        if not control.heartbeat_due(now):
            return ""
        # Stopped, suspended, or starved: the primary may have dropped what was not read in time.
        stall = "the node itself did not run" if live and control.has_slept(now) else ""
        if self._sender.free:
            self._sender.publish(Message(control.topic, control.send(now)), now=now)
        else:
            control.skip_heartbeat(now)
        return stall
