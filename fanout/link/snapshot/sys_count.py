"""Comparison of the replica with the primary's own count of retained messages (Mosquitto).

It confirms a set that is proved already, and shows whether as many messages are gone as topics are missing
(`fanout.link.snapshot.absence`): the difference between the count and what is held is then what it was before. It also
shows that the primary has dropped deletions, which no proof of a set tells: there are fewer messages than topics here.
The first is possible only for some selectors. `$SYS/broker/retained messages/count` counts everything with a retained
value: the primary's own `$SYS` topics (53 of them on 2.0.11), other topics with `$` in front that `#` does not match,
topics that the link may not read, and expired ones that were not looked at since. So the comparison is made only for a
selector `#` without exceptions, and the `$SYS` topics and the link's control topics are counted here. None of the parts
can be larger here than at the primary, hence equal sums mean that each is complete; unequal ones mean nothing.

The primary works the figure out every `sys_interval`, and sends it only when it has changed. Each time it sends its
uptime first, and everything before that is applied here. The replica at that moment is the one that the figure of the
same moment is about, and a PINGRESP after it shows that the figure has come if there is a new one.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from fanout.link.protocol.sender import PacketSender
from fanout.selection import Selector

__all__ = ["ORDERED_TOPICS", "SYSTEM_TOPICS", "UPTIME", "CountState", "SysCount", "is_comparable"]

_SYSTEM_PREFIX = b"$SYS/"
SYSTEM_TOPICS = b"$SYS/#"
"""Topic Filter of the primary's own topics, which must all be counted."""
UPTIME = b"$SYS/broker/uptime"
"""Topic that Mosquitto publishes each time in front of its count of retained messages."""
ORDERED_TOPICS = frozenset({UPTIME})
"""Topics whose messages must be handled at their place among the data during a comparison."""
_FIGURE = b"$SYS/broker/retained messages/count"
_COMPARISONS_MAX = 6
"""Number of figures that differ, or are too low, after which the comparison ends.

The primary counts topics that are not readable or not in `#`, or has dropped deletions."""
_NAMES_MAX = 10_000
"""Number of topics remembered beside the selected ones; with more, nothing can be confirmed."""
_NAME_BYTES_MAX = 1024
"""Longest topic remembered; with a longer one, nothing can be confirmed."""


def is_comparable(selectors: Sequence[Selector]) -> bool:
    """Say whether the primary's count covers exactly the topics of these selectors: everything, without exceptions."""
    first, *others = selectors
    return first.filter == "#" and not (others or first.exclude or first.is_choosy)


class CountState(enum.Enum):
    """State of a comparison."""

    OFF = "off"
    """No comparison: it is not possible, or it has ended."""
    WAITING = "waiting"
    """The primary's next uptime message is awaited."""
    TAKEN = "taken"
    """The uptime message came: the figure comes before the next PINGRESP."""


class SysCount:
    """Comparison of one link.

    Attributes:
        state: State of the comparison.
        total: Count of retained messages that the primary gives; None for unknown.
        outside: Retained messages that the primary had beyond the confirmed topics of the replica when both were
            compared last; None before.
        why: Why the replica differs, in words; empty while that is unknown.
    """

    def __init__(self, selectors: Sequence[Selector], *, control_prefix: bytes, sender: PacketSender) -> None:
        """Prepare.

        Args:
            selectors: The link's selectors.
            control_prefix: Prefix of control topics.
            sender: Sender of packets.
        """
        self.state = CountState.OFF
        self.total: int | None = None
        self.outside: int | None = None
        self.why = ""
        self._control_prefix = control_prefix
        self._sender = sender
        self._possible = False
        self._select(selectors)
        self._control_names: set[bytes] = set()
        self._system_names: set[bytes] = set()
        self._compared = 0
        self._held = 0
        self._system_held = 0
        self._confirmed = 0
        """Confirmed topics of the replica at the moment of the newest uptime message."""

    def begin_epoch(self) -> None:
        """Forget the state of the former session."""
        self.state = CountState.OFF
        self.total = None
        self.outside = None
        self._control_names.clear()
        if self._possible:
            self.why = ""

    def reselect(self, selectors: Sequence[Selector], now: float) -> None:
        """Go on with other selectors; a comparison that is under way ends."""
        if self.state is not CountState.OFF:
            self._end(now)
        self.outside = None
        self._select(selectors)

    def _select(self, selectors: Sequence[Selector]) -> None:
        self._possible = is_comparable(selectors)
        self.why = "" if self._possible else "the primary's count covers other topics than the selectors"

    def _end(self, now: float) -> None:
        self.state = CountState.OFF
        for topic_filter in filter(None, self._filters):
            self._sender.unsubscribe(topic_filter, now=now)

    @property
    def difference(self) -> str:
        """Difference of the replica from the primary's count, in words; empty unless both could be compared."""
        return self.why if self._possible else ""

    @property
    def is_short(self) -> bool:
        """True if the primary had fewer than the confirmed topics of the replica when both were compared last.

        The figure may have overtaken some deletions. When the comparison ends with it, some did not come.
        """
        return self.outside is not None and self.outside < 0

    @property
    def is_idle(self) -> bool:
        """True if no comparison is under way, or the primary has sent nothing for it, as without the rights."""
        return self.state is CountState.OFF or not self._system_names

    def begin(self, now: float) -> None:
        """Begin a comparison if no PINGREQ is under way; `now` is monotonic seconds."""
        if self._sender.ping_sent_s is not None:
            return
        self.state = CountState.WAITING
        self._system_names.clear()
        self._compared = 0
        # An audit waits for this PINGRESP, so it does not take a copy of the sentinel that comes now for its own.
        first, second = self._filters
        self._sender.subscribe(first, qos=0, no_local=False, retain_handling=0, sentinel=second, now=now)
        self._sender.ping(now)

    def receive(self, topic: bytes, payload: bytes, *, retain: bool, held: int, unconfirmed: int = 0) -> bool:
        """Take a message outside the selectors.

        Args:
            topic: Its topic.
            payload: Its payload.
            retain: Its RETAIN flag.
            held: Number of topics in the replica, with everything in front of the message applied.
            unconfirmed: Number of these that are unconfirmed.

        Returns:
            True if it is one of the system topics.
        """
        if not topic.startswith(_SYSTEM_PREFIX):
            if retain and topic.startswith(self._control_prefix):
                _note(self._control_names, topic, payload)
            return False
        if topic == _FIGURE:
            self.total = int(payload) if payload.isdigit() and len(payload) < 16 else None
        if self.state is CountState.OFF:
            return topic == _FIGURE
        if topic == UPTIME and topic in self._system_names:  # the first one is the retained value, which may be old
            self.state = CountState.TAKEN
            self._held = held + len(self._control_names)
            self._confirmed = held - unconfirmed
            self._system_held = len(self._system_names)
        if retain:
            _note(self._system_names, topic, payload)
        return True

    def ask(self, now: float) -> None:
        """Send PINGREQ if its answer would come after a figure and none is under way."""
        if self.state is CountState.TAKEN and self._sender.ping_sent_s is None:
            self._sender.ping(now)

    def receive_pingresp(self, now: float) -> bool:
        """Compare if the uptime message came before; return whether both counts are equal."""
        if self.state is not CountState.TAKEN:
            return False
        held, total = self._held + self._system_held, self.total
        self.outside = None if total is None else total - self._confirmed
        equal = self._possible and held == total and len(self._system_names) == self._system_held
        self._compared += 1
        if equal:
            self.why = ""
        elif self._possible:
            counted = "does not tell how many retained messages it has" if total is None else f"counts {total}"
            self.why = f"the primary {counted}, and {held} are here, {self._system_held} of its own topics among them"
        if equal or not (self._possible or self.is_short) or self._compared >= _COMPARISONS_MAX:
            self._end(now)
        else:
            self.state = CountState.WAITING
        return equal

    @property
    def _filters(self) -> tuple[bytes, bytes | None]:
        """Topic Filters of the primary's own topics that are needed."""
        return (SYSTEM_TOPICS, None) if self._possible else (_FIGURE, UPTIME)


def _note(names: set[bytes], topic: bytes, payload: bytes) -> None:
    if not payload:
        names.discard(topic)
    elif len(names) < _NAMES_MAX and len(topic) <= _NAME_BYTES_MAX:
        names.add(topic)
