"""What shows that a retained set is whole: the kinds of evidence, and the order of the primary's answers (core).

Owns these words only. Evidence is found by `fanout.link.snapshot.set_proof` and `fanout.link.snapshot.two_pass`, the
order by `fanout.link.snapshot.capability_check`.
"""

from __future__ import annotations

import enum

__all__ = ["Evidence", "Order"]


class Evidence(enum.StrEnum):
    """Why a snapshot is believed complete, strongest first."""

    MANIFEST = "manifest"
    """A fanout node said how many copies it sent, with their digest, and that is what came."""
    COUNT = "count"
    """The primary counts as many retained messages as there are, at a moment when both can be compared."""
    MARKER = "marker"
    """SUBACK, the fence if there is one, PINGRESP and the link's own QoS 1 message came, asked for in one write."""
    BARRIER = "barrier"
    """The same without the message: publishing to the control topic is not possible."""
    TWO_PASS = "two-pass"
    """The set was taken twice, and brought the same topics (`fanout.link.snapshot.two_pass`)."""
    QUIET = "quiet"
    """Nothing came any more. The primary sends its retained messages once only, so a second pass shows nothing."""

    def is_at_least(self, other: Evidence) -> bool:
        """Say whether this is as strong as `other`, or stronger."""
        return _RANKS[self] <= _RANKS[other]


_RANKS = {evidence: rank for rank, evidence in enumerate(Evidence)}


class Order(enum.Enum):
    """Whether what is asked for behind a retained set comes behind it."""

    KNOWN = "known"
    """It does: Mosquitto, a fanout node, or the sets of this epoch have shown it."""
    LIKELY = "likely"
    """A fence of one message did, each time it was tried."""
    NONE = "none"
    """It does not, or nothing shows it."""
