"""Evidence that topics which a comparison did not bring are deleted at the primary, and not only hidden from this user.

A primary hides topics from a user without a word: after an access rule is narrowed, Mosquitto grants the same
subscription and leaves topics out. So a topic that did not come is *unconfirmed*, and its value is kept. It is removed
with evidence of one of two kinds:

- *exact*, about single topics: the primary's list does not have the topic, or it does not come to another user who asks
  for it by name, or a fanout node counted in a manifest what it sent (it grants a subscription only as a whole);
- *likely*, about all of them together: the primary counts exactly as many retained messages less as topics are missing.
  Others may have come and gone meanwhile, so this is not enough where whole branches are gone, which is how access
  rules are written.

Neither is enough to remove more than `max_removed_percent` of a selector, or what came with a refused SUBSCRIBE.
`docs/decisions/0015-absent-is-not-deleted.md` has the reasons.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Generator
from dataclasses import dataclass, field

from fanout.replica.store import Replica

__all__ = ["EVIDENCE_WAIT_S", "AbsenceCheck", "Removable", "find_whole_branch"]

EVIDENCE_WAIT_S = 25.0
"""Longest wait for evidence: twice the time in which Mosquitto counts (`sys_interval`, 10 s), and some more."""
_BRANCHES_PIECE = 64
"""Number of branches examined in one step."""


class Removable(enum.Enum):
    """Evidence with which the missing topics of a selector may be removed without an operator."""

    NO = "no"
    """With none: they are too many, or the primary refused the selector."""
    EXACT = "exact"
    """Only with evidence about each: whole branches are gone, or the primary does not answer in order."""
    LIKELY = "likely"
    """With any."""


@dataclass(slots=True)
class AbsenceCheck:
    """Evidence awaited for the topics that one audit did not find."""

    deadline: float
    """When to do without the evidence that is missing, monotonic seconds."""
    removable: dict[int, Removable] = field(default_factory=dict)
    """Position of each selector with missing topics to the topics that may be removed."""
    awaits_count: bool = False
    """True if the primary's next count is awaited."""
    awaits_answers: bool = False
    """True if answers about single topics are awaited."""

    @property
    def is_over(self) -> bool:
        """True if nothing is awaited any more."""
        return not (self.awaits_count or self.awaits_answers)

    def may_remove(self, selector_index: int, *, exact: bool) -> bool:
        """Say whether evidence of one kind is enough for a selector."""
        removable = self.removable.get(selector_index, Removable.NO)
        return removable is Removable.LIKELY or (exact and removable is Removable.EXACT)


def find_whole_branch(replica: Replica, missing: Collection[bytes]) -> Generator[None, None, bytes]:
    """Find a branch of at least two topics that are all missing, some branches per step.

    Args:
        replica: The replica; it may change meanwhile.
        missing: Local topics.

    Returns:
        The topic above the branch; empty when there is none.
    """
    sizes: Counter[bytes] = Counter()
    for number, topic in enumerate(missing, 1):
        at = topic.find(b"/")
        while at >= 0:
            sizes[topic[:at]] += 1
            at = topic.find(b"/", at + 1)
        if number % (_BRANCHES_PIECE * 16) == 0:
            yield
    candidates = sorted((branch for branch, size in sizes.items() if size > 1), key=len)
    gone = frozenset(missing)
    for number, branch in enumerate(candidates, 1):
        held = 0
        for topics in replica.match_topics(branch + b"/#"):
            others = [topic for topic in topics if topic != branch]
            held += len(others)
            if any(topic not in gone for topic in others):
                held = 0
                break
        if held > 1:
            return branch
        if number % _BRANCHES_PIECE == 0:
            yield
    return b""
