"""State of this link's session at the primary: whether it exists, when it expires, which subscriptions are stale."""

from __future__ import annotations

from collections.abc import Iterable

from fanout.config import LinkConfig
from fanout.link.model.resumption import Resumption
from fanout.link.protocol.sender import PacketSender

__all__ = ["RemoteSession"]

_SESSION_NEVER_EXPIRES = 0xFFFFFFFF
_NEVER = float("inf")


class RemoteSession:
    """Session of one link at its primary.

    Attributes:
        exists: True if the primary may have a session that matches the replica.
        expiry_s: Seconds for which the primary keeps the session without a connection.
    """

    def __init__(self, config: LinkConfig, *, sender: PacketSender) -> None:
        """Begin without a session.

        Args:
            config: The link's configuration.
            sender: Sender of packets.
        """
        self.exists = False
        self.expiry_s = config.session_expiry_s
        self._config = config
        self._sender = sender
        self._offline_since = 0.0
        self._stale_filters: dict[str, int] = {}
        """Subscribed Topic Filters of an earlier configuration, to the Packet Identifier of the UNSUBSCRIBE under
        way; 0 for none."""

    def restore(self, resumption: Resumption, *, now_ns: int, now: float) -> None:
        """Take over the session of an earlier process.

        Args:
            resumption: The stored session.
            now_ns: Unix time in nanoseconds.
            now: Monotonic seconds.
        """
        self.exists = True
        self.expiry_s = resumption.session.session_expiry_s
        self._offline_since = now - max(0.0, (now_ns - resumption.seen_ns) / 1e9)
        self._stale_filters = dict.fromkeys(resumption.session.stale_filters, 0)

    def begin(self) -> None:
        """Note that the primary has made a new session."""
        # With MQTT 3.1.1 it could be the session of a former process, and CONNACK does not tell.
        self.exists = self._config.version == 5 and self.expiry_s > 0
        self._stale_filters.clear()

    def lose(self) -> None:
        """Note that no session at the primary matches the replica."""
        self.exists = False

    def grant(self, expiry_s: int) -> None:
        """Note the Session Expiry Interval that the primary granted."""
        self.expiry_s = min(expiry_s, self._config.session_expiry_s)

    def go_offline(self, now: float) -> None:
        """Note that the connection of the session has ended."""
        self._offline_since = now
        self._stale_filters = dict.fromkeys(self._stale_filters, 0)

    @property
    def expires_at(self) -> float:
        """When the session expires without a connection, monotonic seconds."""
        return _NEVER if self.expiry_s == _SESSION_NEVER_EXPIRES else self._offline_since + self.expiry_s

    @property
    def stale_filters(self) -> frozenset[str]:
        """Topic Filters that are subscribed and no longer configured."""
        return frozenset(self._stale_filters)

    def reselect(self, before: Iterable[str], after: Iterable[str]) -> None:
        """Note that other Topic Filters are configured.

        Args:
            before: Those that were.
            after: Those that are.
        """
        stale = (self._stale_filters.keys() | set(before)) - set(after)
        self._stale_filters = {topic_filter: self._stale_filters.get(topic_filter, 0) for topic_filter in sorted(stale)}

    def unsubscribe_stale(self, now: float) -> None:
        """Send UNSUBSCRIBE for each stale filter for which none is under way."""
        for topic_filter, asked in self._stale_filters.items():
            if not asked:
                self._stale_filters[topic_filter] = self._sender.unsubscribe(topic_filter.encode(), now=now)

    def receive_unsuback(self, packet_id: int) -> None:
        """Take an UNSUBACK."""
        self._stale_filters = {each: asked for each, asked in self._stale_filters.items() if asked != packet_id}
