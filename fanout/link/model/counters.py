"""Counters of a link, from its start on: one object that its parts add to, and that its status shows.

A new counter is a field here and an equal field of `fanout.api.models.LinkDetail`, whose docstring is the help text
of its metric. The part that sees the event adds to it.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LinkCounters"]


@dataclass(slots=True)
class LinkCounters:
    """Counters of one link."""

    epochs_total: int = 0
    """Sessions begun."""
    connections_total: int = 0
    """Network Connections that the primary accepted (CONNACK)."""
    heartbeats_lost_total: int = 0
    """Heartbeats that the primary dropped while the link was live, as later heartbeats showed."""
    received_total: int = 0
    """PUBLISH packets received."""
    outside_total: int = 0
    """PUBLISH packets outside all selectors, without the link's own control messages."""
    overtaken_total: int = 0
    """Messages dropped because a newer one for their topic had come before."""
    truncated_total: int = 0
    """Snapshots and verifications that failed because the retained set was truncated."""
    stalls_total: int = 0
    """Stalls of the live link."""
    audits_total: int = 0
    """Audits that have ended, failed ones included."""
    audits_failed_total: int = 0
    """Audits among these that failed."""
    audit_changed_total: int = 0
    """Topics that audits repaired."""
    audit_removed_total: int = 0
    """Topics that audits removed."""
    missing_announced_total: int = 0
    """Announcements of missing topics that the primary accepted."""
    missing_suppressed_total: int = 0
    """Filters not announced because they were announced a short time before."""
    missing_dropped_total: int = 0
    """Filters dropped: too many waited, the primary refused the announcement, or a node below sent an invalid one."""

    @property
    def reconnects_total(self) -> int:
        """Network Connections accepted after the first."""
        return max(0, self.connections_total - 1)
