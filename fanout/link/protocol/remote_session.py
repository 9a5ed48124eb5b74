"""The session that a primary may have for a link: whether it has, for how long, what is surplus in it (core).

Owns what decides whether the session can be resumed, and the subscriptions in it that are not wanted any more. It must
not know what a replica is, nor what else is in the session.
"""

from __future__ import annotations

from fanout.config import LinkConfig
from fanout.link.model.resumption import Resumption
from fanout.link.protocol.sender import PacketSender

__all__ = ["RemoteSession"]

_SESSION_NEVER_EXPIRES = 0xFFFFFFFF
_NEVER = float("inf")


class RemoteSession:
    """The session of one link at its primary.

    Attributes:
        exists: Whether the primary may have a session that matches the replica.
        expiry_s: How long it keeps the session without a connection, in seconds.
    """

    def __init__(self, config: LinkConfig, *, sender: PacketSender) -> None:
        """Prepare for one link; there is no session.

        Args:
            config: The link's configuration.
            sender: Where requests go.
        """
        self.exists = False
        self.expiry_s = config.session_expiry_s
        self._config = config
        self._sender = sender
        self._offline_since = 0.0
        self._surplus: dict[str, int] = {}
        """Topic Filters of an earlier configuration that are subscribed still; the Packet Identifier of UNSUBSCRIBE."""

    def restore(self, resumption: Resumption, *, now_ns: int, now: float) -> None:
        """Take over the session of an earlier process.

        Args:
            resumption: What is left of it.
            now_ns: Unix time in nanoseconds.
            now: Monotonic seconds.
        """
        self.exists = True
        self.expiry_s = resumption.session.session_expiry_s
        self._offline_since = now - max(0.0, (now_ns - resumption.seen_ns) / 1e9)
        self._surplus = dict.fromkeys(resumption.session.surplus, 0)

    def begin(self) -> None:
        """Note that the primary has made a new session."""
        # MQTT 3.1.1 without Clean Session could meet a session of a former process, and no answer tells which.
        self.exists = self._config.version == 5 and self.expiry_s > 0
        self._surplus.clear()

    def grant(self, expiry_s: int) -> None:
        """Note how long the primary is willing to keep the session."""
        self.expiry_s = min(expiry_s, self._config.session_expiry_s)

    def go_offline(self, now: float) -> None:
        """Note that the session has no connection any more."""
        self._offline_since = now

    @property
    def expires_at(self) -> float:
        """When the primary drops the session if it has no connection until then, monotonic seconds."""
        return _NEVER if self.expiry_s == _SESSION_NEVER_EXPIRES else self._offline_since + self.expiry_s

    @property
    def surplus(self) -> frozenset[str]:
        """Topic Filters that are subscribed and not wanted any more."""
        return frozenset(self._surplus)

    def unsubscribe_surplus(self, now: float) -> None:
        """Ask, in the resumed session, for an end of what is not wanted any more."""
        for topic_filter in self._surplus:
            self._surplus[topic_filter] = self._sender.unsubscribe(topic_filter.encode(), now=now)

    def receive_unsuback(self, packet_id: int) -> None:
        """Take an UNSUBACK."""
        self._surplus = {each: asked for each, asked in self._surplus.items() if asked != packet_id}
