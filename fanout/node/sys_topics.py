"""The `$SYS` topics of a node: what tools for other servers read, and how its links are.

Owns their names and values. They are retained and read-only (`fanout.node.ingress` refuses a PUBLISH to them), and
are neither replicated nor in the replication log. A value that has not changed is not sent again.
"""

from __future__ import annotations

from collections.abc import Mapping

from fanout import __version__
from fanout.chain.readiness_notice import READINESS_TOPIC, ReadinessNotice, encode_readiness_notice
from fanout.replica.store import Replica
from fanout.replica.update import Phase, Update, content_digest
from fanout.server.base.counters import ServerStats

__all__ = ["SysTopics"]


class SysTopics:
    """The retained values below `$SYS`.

    Attributes:
        replica: The values.
    """

    def __init__(self) -> None:
        self.replica = Replica()

    def update(
        self,
        stats: ServerStats,
        *,
        retained_topics: int,
        links: Mapping[str, tuple[str, bool]],
        uptime_s: int,
        now_ns: int,
    ) -> list[Update]:
        """Set all values.

        Args:
            stats: The server's figures.
            retained_topics: Topics with a retained value, these not counted.
            links: For each link by its name: its state, and whether it is ready.
            uptime_s: How long the node has been running, in whole seconds.
            now_ns: Unix time in nanoseconds.

        Returns:
            The updates to dispatch: the values that have changed.
        """
        values: dict[str, str | int] = {
            "broker/version": f"fanout version {__version__}",
            "broker/uptime": f"{uptime_s} seconds",
            "broker/clients/total": stats.sessions,
            "broker/clients/connected": stats.connections,
            "broker/clients/disconnected": max(0, stats.sessions - stats.connections),
            "broker/messages/received": stats.received_total,
            "broker/messages/sent": stats.deliveries_total,
            "broker/publish/messages/dropped": sum(stats.dropped_total.values()),
            "broker/publish/messages/conflated": stats.conflated_total,
            "broker/bytes/received": stats.received_bytes_total,
            "broker/bytes/sent": stats.sent_bytes_total,
            "broker/subscriptions/count": stats.subscriptions,
            "broker/retained messages/count": retained_topics,
        }
        for name, (state, ready) in links.items():
            values[f"fanout/{name}/state"] = state
            values[f"fanout/{name}/ready"] = "true" if ready else "false"
        # As the copies of an audit, which are not dispatched when they bring nothing new.
        updates = [_update(f"$SYS/{name}".encode(), str(value).encode(), now_ns) for name, value in values.items()]
        return self.replica.apply(updates, phase=Phase.AUDIT).dispatch

    def set_standing(self, standing: ReadinessNotice, *, now_ns: int) -> list[Update]:
        """Set how the node stands, for the nodes below it; return the update to dispatch, if it has changed."""
        # At QoS 1, so that it waits for its turn with the data.
        update = _update(READINESS_TOPIC, encode_readiness_notice(standing), now_ns, qos=1)
        return self.replica.apply([update], phase=Phase.AUDIT).dispatch


def _update(topic: bytes, payload: bytes, now_ns: int, *, qos: int = 0) -> Update:
    return (topic, payload, qos, True, b"", now_ns, 0, content_digest(topic, payload), None)
