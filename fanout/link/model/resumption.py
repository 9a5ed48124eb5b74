"""State of a session at the primary that an earlier process of the link left on disk.

`fanout.link.durability.session_codec` encodes and decodes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from fanout.link.model.evidence import Evidence, Order
from fanout.selection import Selector

__all__ = ["Resumption", "StoredSession"]


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session at the primary, without the values, which are stored apart."""

    epoch: int
    """Identity of the session."""
    evidence: tuple[Evidence | None, ...]
    """Evidence for the snapshot of each selector."""
    sentinel: bytes | None
    """Topic of the sentinel; None when it must be found anew."""
    order: Order
    """Order of the primary's answers."""
    why_unordered: str
    """Why that is not known, in words; empty when it is."""
    control_permitted: bool | None
    """True if control messages come back."""
    session_expiry_s: int
    """Time for which the primary keeps the session without a connection."""
    unreleased: frozenset[int] = frozenset()
    """Packet Identifiers of QoS 2 messages from the primary that were applied, and not released by it."""
    unfinished: frozenset[int] = frozenset()
    """Packet Identifiers of QoS 2 messages to the primary that may have arrived, and were not released to it."""
    stale_filters: frozenset[str] = frozenset()
    """Topic Filters that are subscribed at the primary and are no longer configured."""
    is_mosquitto: bool = False
    """True if the primary is a Mosquitto."""
    at_qos_0: frozenset[str] = frozenset()
    """Topic Filters of selectors whose subscriptions had, or may have had, QoS 0 in place of their own: what was
    published without RETAIN while the session was away is lost."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """The part of a stored session that is valid under the present configuration."""

    session: StoredSession
    """The session, for the present selectors; a new selector has no evidence."""
    selectors: tuple[Selector, ...]
    """Selectors whose stored values are valid; all other values are removed."""
    seen_ns: int
    """When the session was last known to exist, Unix time in nanoseconds."""
    joining: frozenset[int] = frozenset()
    """Positions of new selectors that are proved once the others are live; without them all are proved together."""
