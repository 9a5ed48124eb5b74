"""Twin of a process (core): another process with the same `node.id`, as a copied configuration gives it.

Both have the same Client Identifier, so each takes the other's session over, and its messages. Signs of it are a
DISCONNECT that says so, a session without the link's mark, and heartbeats of another process on the link's own control
topic. After a sign the link is not ready until it has been live without one for a while.
"""

from __future__ import annotations

from typing import Final

from fanout.config import LinkConfig

__all__ = ["CALM_S_MIN", "FOREIGN_HEARTBEAT", "TAKEN_OVER", "TWIN_HINT", "UNMARKED", "TwinAlarm"]

CALM_S_MIN: Final = 30.0
"""Shortest time without a sign that ends the alarm."""
_RETRIES: Final = 2
"""Number of times `retry_max_s` to wait for a twin, which connects again within that time, as the link does."""
_HEARTBEATS: Final = 4
_NEVER = float("inf")

TAKEN_OVER: Final = "the primary says that another client took the session over"
FOREIGN_HEARTBEAT: Final = "heartbeats of another process come on this link's control topic"
UNMARKED: Final = (
    "the session at the primary is not as this process left it, so another one took it, unless the primary came back"
    " with an older store"
)
TWIN_HINT: Final = (
    "Stop one of the processes, or give each host a node.id of its own, and no client_id of another; a configuration"
    " may have been copied. Messages that the other process took are lost here"
)


class TwinAlarm:
    """Alarm of one link about a twin.

    Attributes:
        reason: Why there seems to be one, for an operator; empty for no alarm.
        over_s: When the alarm ends without a further sign, monotonic seconds; infinity while the link is not live.
    """

    def __init__(self, config: LinkConfig, *, node_id: str) -> None:
        """Begin without an alarm.

        Args:
            config: The link's configuration.
            node_id: This node.
        """
        self.reason = ""
        self.over_s = _NEVER
        self._identity = f"node.id {node_id}, or the Client Identifier {config.client_id_of(node_id)}"
        self._calm_s = max(CALM_S_MIN, _RETRIES * config.retry_max_s, _HEARTBEATS * config.heartbeat_s)

    def raise_alarm(self, sign: str, *, now: float, live: bool) -> None:
        """Note a sign.

        Args:
            sign: The sign, one of those above.
            now: Monotonic seconds.
            live: True if the link is live.
        """
        self.reason = f"another process uses {self._identity}: {sign}"
        self.over_s = now + self._calm_s if live else _NEVER

    def enter_state(self, *, now: float, live: bool) -> None:
        """Note that the link has become live, or is not any more."""
        self.over_s = now + self._calm_s if live and self.reason else _NEVER

    def end(self) -> None:
        """End the alarm."""
        self.reason = ""
        self.over_s = _NEVER
