"""What is known of a session at the primary that an earlier process of the link had (core).

Owns the values only. `fanout.link.durability.session_codec` writes and reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

from fanout.link.model.evidence import Evidence, Order
from fanout.selection import Selector

__all__ = ["KeptSession", "Resumption"]


@dataclass(frozen=True, slots=True)
class KeptSession:
    """A session at the primary, as far as values on disk say nothing of it."""

    epoch: int
    """Identity of the session."""
    evidence: tuple[Evidence | None, ...]
    """For each selector what proves its snapshot."""
    fence: bytes | None
    """Topic of the fence; None when it must be found again."""
    order: Order
    """Whether the primary answers in order."""
    why_unordered: str
    """Why it is not known to, in words; empty when it is."""
    control_permitted: bool | None
    """Whether control messages come back."""
    session_expiry_s: int
    """How long the primary keeps the session without a connection."""
    unreleased: frozenset[int] = frozenset()
    """Packet Identifiers of QoS 2 messages from the primary that were applied, and not released by it."""
    unfinished: frozenset[int] = frozenset()
    """Packet Identifiers of QoS 2 messages to the primary that may have arrived, and were not released to it."""
    surplus: frozenset[str] = frozenset()
    """Topic Filters that are subscribed at the primary and not wanted any more."""
    is_mosquitto: bool = False
    """Whether the primary is a Mosquitto."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """What of a kept session holds under the present configuration."""

    session: KeptSession
    """For the selectors of now; those that are new have no evidence."""
    selectors: tuple[Selector, ...]
    """The selectors whose values are still good; every other value goes."""
    seen_ns: int
    """When the session was known to be there last, Unix time in nanoseconds."""
