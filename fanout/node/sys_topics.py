"""The `$SYS` topics of a node: figures under the names that tools for other servers read, and the state of each link.

The topics are retained and read-only: `fanout.node.ingress` refuses a PUBLISH to them. They are not replicated and not
logged. An unchanged value is not sent again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fanout import __version__
from fanout.chain.readiness_notice import READINESS_TOPIC, ReadinessNotice, encode_readiness_notice
from fanout.replica.store import Replica
from fanout.replica.update import Phase, Update, content_digest

__all__ = ["LinkFigures", "SysTopics"]


@dataclass(frozen=True, slots=True)
class LinkFigures:
    """Status of one link for clients."""

    state: str
    """State name."""
    ready: bool
    """True if it is live and proved complete."""
    stale_s: int | None
    """Age of its values in whole seconds; None without any, and then there is no such topic."""


class SysTopics:
    """The retained values below `$SYS`.

    Attributes:
        replica: The values.
    """

    def __init__(self) -> None:
        self.replica = Replica()

    def update(
        self,
        figures: Mapping[str, Any],
        *,
        retained_topics: int,
        links: Mapping[str, LinkFigures],
        uptime_s: int,
        now_ns: int,
    ) -> list[Update]:
        """Set all values.

        Args:
            figures: The server's figures (`Server.figures`).
            retained_topics: Topics with a retained value, without `$SYS`.
            links: Figures of each link, by name.
            uptime_s: Uptime of the node in whole seconds.
            now_ns: Unix time in nanoseconds.

        Returns:
            The values that have changed, to be dispatched.
        """
        values: dict[str, str | int] = {
            "broker/version": f"fanout version {__version__}",
            "broker/uptime": f"{uptime_s} seconds",
            "broker/clients/total": figures["sessions"],
            "broker/clients/connected": figures["connections"],
            "broker/clients/disconnected": max(0, figures["sessions"] - figures["connections"]),
            "broker/messages/received": figures["received_total"],
            "broker/messages/sent": figures["deliveries_total"],
            "broker/publish/messages/dropped": sum(figures["dropped_total"].values()),
            "broker/publish/messages/conflated": figures["conflated_total"],
            "broker/bytes/received": figures["received_bytes_total"],
            "broker/bytes/sent": figures["sent_bytes_total"],
            "broker/subscriptions/count": figures["subscriptions"],
            "broker/retained messages/count": retained_topics,
        }
        for name, link in links.items():
            values[f"fanout/{name}/state"] = link.state
            values[f"fanout/{name}/ready"] = "true" if link.ready else "false"
            values[f"fanout/{name}/stale_s"] = "" if link.stale_s is None else link.stale_s
        # Phase AUDIT: unchanged values are not dispatched.
        payloads = {f"$SYS/{name}".encode(): str(value).encode() for name, value in values.items()}
        updates = [
            _update(topic, payload, now_ns)
            for topic, payload in payloads.items()
            if payload or topic in self.replica.values
        ]
        return self.replica.apply(updates, phase=Phase.AUDIT).dispatch

    def set_readiness_notice(self, standing: ReadinessNotice, *, now_ns: int) -> list[Update]:
        """Set the readiness notice for the nodes below; return the update to dispatch if it has changed."""
        # QoS 1 keeps it in order with the data.
        update = _update(READINESS_TOPIC, encode_readiness_notice(standing), now_ns, qos=1)
        return self.replica.apply([update], phase=Phase.AUDIT).dispatch


def _update(topic: bytes, payload: bytes, now_ns: int, *, qos: int = 0) -> Update:
    return (topic, payload, qos, True, b"", now_ns, 0, content_digest(topic, payload), None)
