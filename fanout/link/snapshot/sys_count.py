"""Whether a link holds as many retained messages as its primary counts (core).

Owns the figure that Mosquitto gives, what belongs to it, and the requests for it. It must not know when it is wanted
(`fanout.link.session.lifecycle`), nor how the set was proved before: this only confirms a set that is.

`$SYS/broker/retained messages/count` counts everything with a retained value: the primary's own `$SYS` topics (53 of
them on 2.0.11), other topics with `$` in front that `#` does not match, what the link may not read, and what has
expired and was not looked at since. So it is compared for a selector `#` without any exception only, with the `$SYS`
topics counted here and the link's control topics beside it. None of the parts can be larger than it is at the primary,
hence equal sums mean that each is whole; unequal ones mean nothing.

The primary works the figure out every `sys_interval`, and tells it only when it has changed. Each time it tells its
uptime first, and everything before that is applied here: what is held at that moment is what the figure of the same
moment is about, and a PINGRESP behind it shows that the figure has come if there is a new one.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from fanout.link.protocol.sender import PacketSender
from fanout.selection import Selector

__all__ = ["CountState", "SysCount"]

_SYSTEM_PREFIX = b"$SYS/"
_SYSTEM_TOPICS = b"$SYS/#"
_UPTIME = b"$SYS/broker/uptime"
_LANDMARKS = frozenset({_UPTIME})
_NONE: frozenset[bytes] = frozenset()
_FIGURE = b"$SYS/broker/retained messages/count"
_COMPARISONS_MAX = 6
"""After so many figures that do not agree there are others to count: what is not readable, or not in `#`."""
_NAMES_MAX = 10_000
"""So many topics beside the selected ones are told apart; with more, nothing is claimed."""
_NAME_BYTES_MAX = 1024
"""A longer one is not remembered, with the same result."""


class CountState(enum.Enum):
    """How far a comparison is."""

    OFF = "off"
    """None is made: the figure is not about what is selected, or it was compared."""
    WAITING = "waiting"
    """The primary's next figure is awaited."""
    TAKEN = "taken"
    """The primary has told its uptime: the figure is there behind the next PINGRESP."""


class SysCount:
    """The comparison of one link.

    Attributes:
        state: How far it is.
        total: How many retained messages the primary says it has in all; None for unknown.
        why: Why it does not agree, in words; empty while that is not known.
    """

    def __init__(self, selectors: Sequence[Selector], *, control_prefix: bytes, sender: PacketSender) -> None:
        """Prepare.

        Args:
            selectors: The link's selectors.
            control_prefix: What the control topics begin with.
            sender: Where requests go.
        """
        self.state = CountState.OFF
        self.total: int | None = None
        self.why = ""
        self._control_prefix = control_prefix
        self._sender = sender
        (first, *others) = selectors
        self._possible = first.filter == "#" and not (others or first.exclude or first.is_choosy)
        if not self._possible:
            self.why = "the primary's count is not of what is selected"
        self._control_names: set[bytes] = set()
        self._system_names: set[bytes] = set()
        self._compared = 0
        self._held = 0
        self._system_held = 0

    def begin_epoch(self) -> None:
        """Forget what belongs to the former session."""
        self.state = CountState.OFF
        self.total = None
        self._control_names.clear()
        if self._possible:
            self.why = ""

    @property
    def difference(self) -> str:
        """How what is held differs from what the primary counts, in words; empty unless both could be compared."""
        return self.why if self._possible else ""

    @property
    def landmarks(self) -> frozenset[bytes]:
        """Topics whose messages say something about the data in front of them."""
        return _NONE if self.state is CountState.OFF else _LANDMARKS

    def begin(self, now: float) -> None:
        """Begin to compare, where that says anything, unless a PINGREQ is under way; `now` is monotonic seconds."""
        if not self._possible or self._sender.ping_sent_s is not None:
            return
        self.state = CountState.WAITING
        self._system_names.clear()
        self._compared = 0
        # The PINGREQ keeps an audit waiting, for which a copy of the fence that comes now would be none.
        self._sender.subscribe(_SYSTEM_TOPICS, qos=0, no_local=False, retain_handling=0, now=now)
        self._sender.ping(now)

    def receive(self, topic: bytes, payload: bytes, *, retain: bool, held: int) -> bool:
        """Take a message outside the selectors.

        Args:
            topic: Its topic.
            payload: Its payload.
            retain: Its RETAIN flag.
            held: How many topics of the selector are held, with everything in front of it applied.

        Returns:
            Whether it is one of the system topics.
        """
        if not topic.startswith(_SYSTEM_PREFIX):
            if retain and topic.startswith(self._control_prefix):
                _note(self._control_names, topic, payload)
            return False
        if topic == _FIGURE:
            self.total = int(payload) if payload.isdigit() and len(payload) < 16 else None
        if self.state is CountState.OFF:
            return topic == _FIGURE
        if topic == _UPTIME and topic in self._system_names:  # the first one is the retained value, of any age
            self.state = CountState.TAKEN
            self._held = held + len(self._control_names)
            self._system_held = len(self._system_names)
        if retain:
            _note(self._system_names, topic, payload)
        return True

    def ask(self, now: float) -> None:
        """Send PINGREQ if its answer would come behind a figure, and none is under way."""
        if self.state is CountState.TAKEN and self._sender.ping_sent_s is None:
            self._sender.ping(now)

    def receive_pingresp(self, now: float) -> bool:
        """Compare, if the primary's uptime came before, and return whether as many are held as it counts."""
        if self.state is not CountState.TAKEN:
            return False
        held, total = self._held + self._system_held, self.total
        equal = held == total and len(self._system_names) == self._system_held
        if equal:
            self.why = ""
        else:
            self._compared += 1
            counted = "does not tell how many retained messages it has" if total is None else f"counts {total}"
            self.why = f"the primary {counted}, and {held} are here, {self._system_held} of its own topics among them"
        if equal or self._compared >= _COMPARISONS_MAX:
            self.state = CountState.OFF
            self._sender.unsubscribe(_SYSTEM_TOPICS, now=now)
        else:
            self.state = CountState.WAITING
        return equal


def _note(names: set[bytes], topic: bytes, payload: bytes) -> None:
    if not payload:
        names.discard(topic)
    elif len(names) < _NAMES_MAX and len(topic) <= _NAME_BYTES_MAX:
        names.add(topic)
