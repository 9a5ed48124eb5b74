"""Values that a verification brought and no message did (core): whether the session was promised them.

A session is promised each message that is published at QoS 1 or 2 for a subscription at such a QoS. One that did not
come is a loss. A message at QoS 0 is not promised, so its value is only taken over from the retained set. A
copy at QoS 0 does not tell at which QoS its value was published, so these topics are requested once more by exact name
at QoS 1. The answer is about the newest message for a topic; earlier ones leave no trace.
`docs/decisions/0053-promised-or-not.md` has the reasons.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from fanout.link.protocol.name_request import NamedAnswer
from fanout.link.snapshot.stage import Stage
from fanout.replica.store import Replica

__all__ = ["ASK_S", "MISSED_MAX", "MissedValues", "PromiseCheck"]

MISSED_MAX: Final = 100_000
"""Largest number of topics that are requested by name; more count as lost."""
ASK_S: Final = 30.0
"""Seconds that the requests may take."""
_TRIES_MAX: Final = 2
"""Number of connections on which it is tried: a request on another one may end that of the link."""
_QOS = 0x06


class MissedValues:
    """Values of one link's session that are missed, until it is known whether they were promised.

    Attributes:
        repaired: Number of values that were not promised, and are taken over.
        lost: Why messages count as lost; empty while nothing shows it.
    """

    def __init__(self, replica: Replica) -> None:
        """Begin without any.

        Args:
            replica: The link's replica, read only.
        """
        self.repaired = 0
        self.lost = ""
        self._replica = replica
        self._in_doubt: dict[str, bytes] = {}
        """Name at the primary of each topic whose QoS is not known, to its local topic."""
        self._tries = 0

    def clear(self) -> None:
        """Forget all: they are judged, or their session has ended."""
        self.repaired, self.lost = 0, ""
        self._in_doubt.clear()
        self._tries = 0

    @property
    def is_open(self) -> bool:
        """True if the primary must be asked about some of them."""
        return bool(self._in_doubt) and not self.lost

    def note(self, changed: int, topics: Iterable[bytes], *, prefix: str, promised: bool) -> None:
        """Note values of one selector that changed without a message.

        Args:
            changed: Number of them.
            topics: Their local topics.
            prefix: Prefix of the selector, which they begin with.
            promised: True if the session is promised what is published at QoS 1 or 2 for this selector.
        """
        if not promised:
            self.repaired += changed
            return
        start = len(prefix.encode())
        self._in_doubt |= {topic[start:].decode(): topic for topic in topics}
        if len(self._in_doubt) > MISSED_MAX:
            self._lose(f"more than {MISSED_MAX:,} topics changed without a message")

    def begin_try(self) -> bool:
        """Return whether the primary is to be asked on this connection about values whose QoS is not known."""
        self._tries += self.is_open
        if self._tries > _TRIES_MAX:
            self.give_up("the connection of the link was lost each time")
        return self.is_open

    def names(self, count: int) -> list[str]:
        """Return some of the topics to request, by their names at the primary."""
        return list(islice(self._in_doubt, count)) if self.is_open else []

    def take(self, answer: NamedAnswer) -> None:
        """Take the primary's answer to a request at QoS 1 for topics of `names`."""
        promised = unknown = 0
        for name, row in answer.values.items():
            if self._in_doubt.pop(name, None) is not None:
                promised += row[2] & _QOS > 0
        for name in answer.absent:
            topic = self._in_doubt.pop(name, None)
            # A topic that no longer has a value needs no request.
            unknown += topic is not None and bool(self._replica.get_many([topic]))
        for name in answer.refused:
            unknown += self._in_doubt.pop(name, None) is not None
        judged = len(answer.values) + len(answer.absent) + len(answer.refused)
        self.repaired += judged - promised - unknown
        if promised:
            self._lose(f"{promised} of {judged} topics that changed without a message were published at QoS 1 or 2")
        elif unknown:
            self._lose_unlearned(unknown, "it does not send them by name at QoS 1")

    def give_up(self, why: str) -> None:
        """Note that the primary does not tell at which QoS values were published, and why."""
        if self.is_open:
            self._lose_unlearned(len(self._in_doubt), why)

    def _lose_unlearned(self, topics: int, why: str) -> None:
        self._lose(
            f"{topics} topics changed without a message, and the primary did not tell whether they were published at"
            f" QoS 0, which promises nothing: {why}"
        )

    def _lose(self, why: str) -> None:
        self.lost = f"messages were lost: {why}"


class PromiseCheck(Stage):
    """Stage after a verification, while the primary is asked about values that were missed; all is live meanwhile."""

    def __init__(self, missed: MissedValues) -> None:
        """Prepare; `begin` starts the time.

        Args:
            missed: The values.
        """
        self._missed = missed
        self._by_s = float("inf")

    def begin(self, now: float) -> None:
        """Note when the requests begin."""
        self._by_s = now + ASK_S

    def postpone(self, pause_s: float) -> None:
        """Move the deadline by a pause."""
        self._by_s += pause_s

    def tick(self, now: float) -> None:
        """Give up when the time is over."""
        if now >= self._by_s:
            self._missed.give_up(f"it took more than {ASK_S:g} s")

    @property
    def copies_complete(self) -> bool:
        """True if every copy has come: the verification is over."""
        return True

    @property
    def done(self) -> bool:
        """True if all values are judged."""
        return not self._missed.is_open

    @property
    def deadline(self) -> float:
        """When to call `tick`."""
        return self._by_s
