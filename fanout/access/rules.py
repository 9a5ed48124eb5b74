"""Access rules: which topics a client may read and write.

The first rule that fits the client, the direction and the topic decides; without one the answer is no. An empty list
allows everything. `docs/decisions/0005-access-rules.md` has the reasons.

A subscription is granted only when every topic that its Topic Filter matches may be read, and this is decided exactly.
A topic that may not be read has either a rule that denies it or none. For each rule that denies, the topics of both
filters are again those of one filter (`fanout.selection.common_filter`). One *freshest* topic per depth is tried of
such a filter, and of the subscription's own: every wildcard becomes a name that occurs in no rule. A rule that matches
it has a wildcard there too, so it matches every topic of the filter at that depth; and beyond the longest rule a
greater depth changes nothing. So when all these topics may be read, all may; and one that may not is the witness.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, TypeAlias

from fanout.access.client_ids import matches_pattern
from fanout.access.filters import Nothing, RuleFilter
from fanout.access.identity import Identity
from fanout.mqtt.topics import matches, parse_shared
from fanout.selection import Selector, common_filter

__all__ = ["ANY", "DECISIONS_MAX", "Denied", "Direction", "Rights", "Rule", "RuleSet"]

Direction: TypeAlias = Literal["read", "write", "all"]
"""Direction of a rule: subscriptions, PUBLISH packets, or both."""

ANY: Final = "*"
"""The `user` of a rule for every client, and the `client_id` of one for every identifier."""
DECISIONS_MAX: Final = 65_536
"""Default number of decisions on topics that a set of rules remembers."""
_REMEMBERED_TOPIC_BYTES_MAX: Final = 256
"""Longest topic that is remembered, which bounds the memory to about 30 MB for `DECISIONS_MAX`."""

_WILDCARDS: Final = ("+", "#")

_Matches: TypeAlias = Callable[[bytes], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule.

    Raises:
        AccessRuleInvalid: When the filter is not legal.
    """

    allows: bool
    """True if it allows, False if it denies."""
    direction: Direction
    """Direction that it decides on."""
    filter: str
    """Topics that it decides on: a Topic Filter, in which `%u` and `%c` stand for the client's own names."""
    user: str = ANY
    """User that it applies to; `ANY` for every client, empty for clients without a user."""
    client_id: str = ANY
    """Client Identifiers that it applies to; `*` stands for any characters."""
    max_age_s: float = 0.0
    """Bound on the age of what waits for the clients that it applies to, in seconds; 0 for none."""
    _filter: RuleFilter = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_filter", RuleFilter(self.filter))

    @property
    def placeholders(self) -> frozenset[str]:
        """The placeholders in the filter, of "u" and "c"."""
        return self._filter.placeholders

    def is_for(self, identity: Identity) -> bool:
        """Tell whether it applies to a client."""
        return self.user in (ANY, identity.user) and (
            self.client_id == ANY or matches_pattern(self.client_id, identity.client_id)
        )

    def filter_for(self, identity: Identity) -> str | Nothing | None:
        """Return the Topic Filter for a client, as `RuleFilter.fill_in` does."""
        return self._filter.fill_in(user=identity.user, client_id=identity.client_id)


@dataclass(frozen=True, slots=True)
class Denied:
    """Reason of a refused subscription."""

    topic: str
    """A topic that it matches and that may not be read."""
    rule: int | None
    """Index of the rule that denies it; None when no rule allows it."""


@dataclass(frozen=True, slots=True)
class _Line:
    """A rule for one client, with the names filled in."""

    index: int
    allows: bool
    filter: str | None
    """None for every topic."""
    matches: _Matches


class RuleSet:
    """A list of rules; `rights` gives the rights of a client."""

    def __init__(self, rules: Sequence[Rule] = (), *, decisions_max: int = DECISIONS_MAX) -> None:
        """Prepare the rules.

        Args:
            rules: In order.
            decisions_max: Decisions on topics that are remembered, for all clients together. When it is reached, all
                are forgotten; frequent ones return at once.
        """
        self.rules = tuple(rules)
        """The rules, in order."""
        self._memory = _Memory(decisions_max)
        self._lines = [
            None if rule.placeholders else _line(index, rule, rule.filter_for(Identity(client_id="")))
            for index, rule in enumerate(self.rules)
        ]

    @property
    def remembered(self) -> int:
        """Number of decisions on topics that are remembered."""
        return len(self._memory)

    def rights(self, identity: Identity) -> Rights:
        """Return the rights of a client."""
        read: list[_Line] = []
        write: list[_Line] = []
        for index, (rule, prepared) in enumerate(zip(self.rules, self._lines, strict=True)):
            if not rule.is_for(identity):
                continue
            line = prepared or _line(index, rule, rule.filter_for(identity))
            if line is None:
                continue
            if rule.direction != "write":
                read.append(line)
            if rule.direction != "read":
                write.append(line)
        rights = Rights(read=tuple(read), write=tuple(write), unlimited=not self.rules, memory=self._memory)
        bounds = (rule.max_age_s for rule in self.rules if rule.max_age_s and rule.is_for(identity))
        rights.max_age_s = min(bounds, default=0.0)
        return rights


def _line(index: int, rule: Rule, topic_filter: str | Nothing | None) -> _Line | None:
    """Return a rule for a client whose filter is given; None when it does not apply."""
    if topic_filter is None:
        # The client chose a name that no filter can hold. It must gain nothing by that: an allowing rule allows
        # nothing, and a denying rule denies everything.
        return None if rule.allows else _Line(index, False, None, _every_topic)
    if isinstance(topic_filter, Nothing):
        return None
    if rule.placeholders:  # a regular expression does not pay off for one client
        return _Line(index, rule.allows, topic_filter, partial(matches, topic_filter.encode()))
    return _Line(index, rule.allows, topic_filter, Selector(topic_filter).matches)


def _every_topic(_topic: bytes) -> bool:
    return True


class Rights:
    """Rights of one client by one set of rules."""

    __slots__ = ("_denied", "_depth", "_fresh", "_memory", "_read", "_remembered", "_unlimited", "_write", "max_age_s")

    def __init__(self, *, read: tuple[_Line, ...], write: tuple[_Line, ...], unlimited: bool, memory: _Memory) -> None:
        self.max_age_s = 0.0
        """Bound on the age of what waits for the client, in seconds; 0 for none."""
        self._read = read
        self._write = write
        self._unlimited = unlimited
        self._memory = memory
        self._remembered: dict[bytes, bool] = {}
        self._fresh = ""  # chosen at the first subscription; no level of the filters of _read
        self._depth = 1  # levels of the longest of these filters
        self._denied: list[tuple[str, str]] = []  # those of them that deny, each with its first level

    @property
    def unlimited(self) -> bool:
        """True if there are no rules, so that everything is allowed."""
        return self._unlimited

    def may_publish(self, topic: bytes) -> bool:
        """Tell whether `topic`, a legal Topic Name, may be written."""
        allowed = self._remembered.get(topic)
        if allowed is None:
            if self._unlimited:
                return True
            line = _first(self._write, topic)
            allowed = line is not None and line.allows
            if len(topic) <= _REMEMBERED_TOPIC_BYTES_MAX:
                self._memory.remember(self._remembered, topic, allowed)
        return allowed

    def may_subscribe(self, topic_filter: bytes) -> bool:
        """Tell whether every topic of `topic_filter` may be read; see `explain`."""
        return self.explain(topic_filter) is None

    def explain(self, topic_filter: bytes) -> Denied | None:
        """Return why a subscription is refused; None when it is granted.

        Args:
            topic_filter: A legal Topic Filter; of a Shared Subscription the filter after the group counts.

        Raises:
            ProtocolError: The filter begins like a Shared Subscription and is none.
        """
        if self._unlimited:
            return None
        shared = parse_shared(topic_filter)
        text = (topic_filter if shared is None else shared[1]).decode()
        if not self._fresh:
            self._prepare()
        for topic in self._topics_to_try(text):
            line = _first(self._read, topic.encode())
            if line is None or not line.allows:
                return Denied(topic, line.index if line is not None else None)
        return None

    def _prepare(self) -> None:
        filters = [line.filter.split("/") for line in self._read if line.filter is not None]
        names = {level for levels in filters for level in levels}
        self._fresh = next(name for name in _level_names() if name not in names)
        self._depth = max(map(len, filters), default=1)
        denied = [line.filter for line in self._read if line.filter is not None and not line.allows]
        self._denied = [(topic_filter, topic_filter.partition("/")[0]) for topic_filter in denied]

    def _topics_to_try(self, topic_filter: str) -> Iterator[str]:
        """Yield topics of a filter that decide for all of its topics."""
        yield from self._freshest(topic_filter)
        first = topic_filter.partition("/")[0]
        for denied, denied_first in self._denied:
            if first != denied_first and first not in _WILDCARDS and denied_first not in _WILDCARDS:
                continue  # the usual case, decided without a common filter
            common = common_filter(topic_filter, denied)
            if common is not None:
                yield from self._freshest(common)

    def _freshest(self, topic_filter: str) -> Iterator[str]:
        levels = topic_filter.split("/")
        is_open = levels[-1] == "#"
        if is_open:
            levels.pop()
        levels = [self._fresh if level == "+" else level for level in levels] or [self._fresh]
        if levels != [""]:  # the shortest topic of "/#" would be empty [MQTT-4.7.3-1]
            yield "/".join(levels)
        if is_open:
            while len(levels) <= self._depth:
                levels.append(self._fresh)
                yield "/".join(levels)


class _Memory:
    """Bounds the decisions that all rights of a set of rules remember together."""

    __slots__ = ("_count", "_entries_max", "_filled")

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._count = 0
        self._filled: dict[int, dict[bytes, bool]] = {}  # by id; they are kept alive by being in it

    def __len__(self) -> int:
        return self._count

    def remember(self, remembered: dict[bytes, bool], topic: bytes, allowed: bool) -> None:
        """Note a decision in `remembered`, the memory of one client."""
        if self._count >= self._entries_max:
            for each in self._filled.values():
                each.clear()
            self._filled.clear()
            self._count = 0
        if not remembered:
            self._filled[id(remembered)] = remembered
        remembered[topic] = allowed
        self._count += 1


def _first(lines: tuple[_Line, ...], topic: bytes) -> _Line | None:
    for line in lines:
        if line.matches(topic):
            return line
    return None


def _level_names() -> Iterator[str]:
    """Yield names for a level without end, the most readable first."""
    return itertools.chain("xyz", (f"x{number}" for number in itertools.count(1)))
