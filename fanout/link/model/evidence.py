"""Kinds of evidence that a retained set is complete, and whether a primary answers in order.

`fanout.link.snapshot.set_proof` and `fanout.link.snapshot.two_pass` find the evidence,
`fanout.link.snapshot.capability_check` the order.
"""

from __future__ import annotations

import enum

__all__ = ["Evidence", "Order"]


class Evidence(enum.StrEnum):
    """Evidence that a snapshot is complete, strongest first."""

    MANIFEST = "manifest"
    """A fanout node told the count and digest of the copies that it sent, and both match."""
    COUNT = "count"
    """The primary counts as many retained messages as the replica has, at a moment when both can be compared."""
    MARKER = "marker"
    """SUBACK, the sentinel if any, PINGRESP and the link's own QoS 1 message came; all requested in one write."""
    BARRIER = "barrier"
    """As `MARKER` without the message: the link cannot publish to the control topic."""
    TWO_PASS = "two-pass"
    """Two passes brought the same topics (`fanout.link.snapshot.two_pass`)."""
    QUIET = "quiet"
    """Nothing more came. The primary sends its retained messages only once, so a second pass shows nothing."""

    def is_at_least(self, other: Evidence) -> bool:
        """Say whether this is as strong as `other`, or stronger."""
        return _RANKS[self] <= _RANKS[other]


_RANKS = {evidence: rank for rank, evidence in enumerate(Evidence)}


class Order(enum.Enum):
    """Order of a retained set and the answers to later requests, best first."""

    KNOWN = "known"
    """The answers come after the set: at Mosquitto or a fanout node, or as the sets of this epoch have shown."""
    LIKELY = "likely"
    """A sentinel of one message did, in each trial."""
    NONE = "none"
    """They come before it, or nothing shows an order."""

    def is_better_than(self, other: Order) -> bool:
        """Say whether this allows stronger evidence than `other`."""
        orders = list(Order)
        return orders.index(self) < orders.index(other)
