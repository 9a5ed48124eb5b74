"""Heartbeats of a live link: sends them, and notices a stall or a lost connection.

The times come from `fanout.link.protocol.control_channel`; `fanout.link.session.lifecycle` decides what a stall leads
to.
"""

from __future__ import annotations

from fanout.errors import LinkLost
from fanout.link.protocol.control_channel import STALL_INTERVALS, ControlChannel
from fanout.link.protocol.sender import OutgoingMessage, PacketSender

__all__ = ["Heartbeat"]

_STAYS_AWAY = "heartbeats do not come back"
_HINT_SLEPT = "The process was stopped or suspended, or its machine had no processor time for it"


class Heartbeat:
    """The heartbeat of one link."""

    def __init__(self, control: ControlChannel, *, sender: PacketSender) -> None:
        """Prepare; nothing is sent.

        Args:
            control: The control channel.
            sender: Sender of packets.
        """
        self._control = control
        self._sender = sender

    def tick(self, now: float, *, live: bool) -> str:
        """Send a heartbeat if one is due; return why the link stalls now, or an empty string.

        Args:
            now: Monotonic seconds.
            live: True if the link is live, not stalled already.

        Raises:
            LinkLost: Heartbeats have been missing for too long.
        """
        control = self._control
        slept_s = control.slept_s(now)
        reason = f"the node itself did not run for {slept_s:.1f} s" if slept_s else _STAYS_AWAY
        if control.is_stalled(now, intervals=2 * STALL_INTERVALS):
            raise LinkLost(reason, hint=_HINT_SLEPT if slept_s else "")
        if live and control.is_stalled(now):
            return reason
        if not control.heartbeat_due(now):
            return ""
        # Stopped, suspended, or starved: the primary may have dropped messages that were not read in time.
        stall = reason if live and slept_s else ""
        if self.send(now) is None:
            control.skip_heartbeat(now)
        return stall

    @property
    def may_send(self) -> bool:
        """True if a heartbeat can be sent now."""
        return bool(self._sender.free) and self._control.may_send

    def send(self, now: float) -> bytes | None:
        """Send a heartbeat now, and return its payload; None when that is not possible."""
        control = self._control
        if not self.may_send:
            return None
        payload = control.send(now)
        self._sender.publish(OutgoingMessage(control.topic, payload), now=now)
        return payload
