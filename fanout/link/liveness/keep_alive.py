"""Keep Alive of a link: deadlines for CONNACK and PINGRESP, and the requests that test whether the primary answers.

While a stage uses PINGREQ for itself, UNSUBSCRIBE is the request.
"""

from __future__ import annotations

from fanout.config import LinkConfig
from fanout.errors import LinkLost
from fanout.link.protocol.handshake import unanswered_hint
from fanout.link.protocol.sender import PacketSender

__all__ = ["PING_SHARE", "KeepAlive"]

PING_SHARE = 0.75
"""Share of the Keep Alive after which PINGREQ is sent, and after which its answer is overdue."""
_NEVER = float("inf")


class KeepAlive:
    """The Keep Alive of one link, over all its Network Connections. All times are monotonic seconds."""

    def __init__(self, config: LinkConfig, *, sender: PacketSender, probe_filter: bytes) -> None:
        """Begin without a Network Connection.

        Args:
            config: The link's configuration.
            sender: Sender of packets.
            probe_filter: A Topic Filter that is never subscribed; UNSUBSCRIBE for it has no effect but its answer.
        """
        self._unanswered_hint = unanswered_hint(config)
        self._sender = sender
        self._probe_filter = probe_filter
        self._connack_by: float | None = None
        """Deadline of CONNACK; None once it came."""
        self._keep_alive_s = 0
        self.received_s = 0.0
        """When the primary sent something last; the driver of packets sets it at each read."""

    def begin(self, *, now: float, timeout_s: float) -> None:
        """Note that CONNECT was sent; CONNACK may take `timeout_s`."""
        self.received_s = now
        self._connack_by = now + timeout_s

    def accept(self, keep_alive_s: int) -> None:
        """Note CONNACK, with the Keep Alive in force; 0 for none."""
        self._connack_by = None
        self._keep_alive_s = keep_alive_s

    def postpone(self, pause_s: float) -> None:
        """Move all deadlines by a pause in which nothing was read."""
        self.received_s += pause_s
        if self._connack_by is not None:
            self._connack_by += pause_s
        self._sender.postpone(pause_s)

    def deadline(self, *, staged: bool) -> float:
        """Return when to call `tick`; infinity for never.

        Args:
            staged: True if a stage is under way, which uses PINGREQ itself.
        """
        if self._connack_by is not None:
            return self._connack_by
        if not self._keep_alive_s:
            return _NEVER
        since = self._sender.last_sent_s
        if not staged:
            asked = self._sender.ping_sent_s
            since = min(since, self.received_s) if asked is None else asked
        return since + PING_SHARE * self._keep_alive_s

    def tick(self, now: float, *, staged: bool) -> None:
        """Send a request that the primary must answer, if one is due.

        Args:
            now: The present time.
            staged: See `deadline`.

        Raises:
            LinkLost: The primary did not answer in time.
        """
        if now < self.deadline(staged=staged):
            return
        if self._connack_by is not None:
            raise LinkLost("the primary does not answer CONNECT", hint=self._unanswered_hint)
        if staged:
            self._sender.unsubscribe(self._probe_filter, now=now)
        elif self._sender.ping_sent_s is not None:
            raise LinkLost("the primary does not answer PINGREQ")
        else:
            self._sender.ping(now)
