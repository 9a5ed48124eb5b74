"""Selectors: which topics a link replicates, under which local names, and whether two selectors share a topic.

Owns the rules for Topic Filters in a configuration (MQTT 5, section 4.7), the matching of topics against a selector,
and the exact detection of overlaps.

Overlaps are decided like this: the topics that two Topic Filters both match are again the topics of one Topic Filter,
found by a walk level by level (`common_filter`). One *freshest* topic per depth decides whether the excludes leave any
of them: that filter, with a name that occurs in no exclude in place of every wildcard. An exclude that matches this
topic has a wildcard wherever the filter has one, so it matches every topic of the filter at this depth; and beyond the
longest exclude a greater depth changes nothing. So a few topics are a proof, and the first one left is the witness. No
search over combinations of excludes is needed, because a level always has one more name.
"""

from __future__ import annotations

import enum
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from fanout.errors import SelectorInvalid
from fanout.mqtt.data_representation import MAX_STRING_BYTES

__all__ = [
    "FILTER_BYTES_MAX",
    "LEVELS_MAX",
    "ContentKind",
    "LinkSelectors",
    "Namespace",
    "Overlap",
    "Selector",
    "SelectorPlace",
    "WritePolicy",
    "check_filter",
    "check_prefix",
    "common_filter",
    "find_moves",
    "find_overlaps",
    "intersect",
    "overlap",
    "sample_topic",
]

FILTER_BYTES_MAX = MAX_STRING_BYTES
"""Longest Topic Filter and longest prefix, in bytes of UTF-8 [MQTT-4.7.3-3]."""
LEVELS_MAX = 200
"""Most levels of a Topic Filter; Mosquitto refuses topics with more."""

ContentKind: TypeAlias = Literal["json", "binary", "text"]
"""Kind of a payload; every JSON document is text as well (`fanout.link.ingest.content_filter`)."""

WritePolicy: TypeAlias = Literal["reject", "forward"]
"""Treatment of a local PUBLISH on a replicated topic."""

_Match: TypeAlias = Callable[[bytes], "re.Match[bytes] | None"]

# A level of a `_TopicPattern` is a literal or one of these two. No literal contains "+" [MQTT-4.7.1-2].
_ANY = "+"
_ANY_PLAIN = "+plain"  # any level that does not begin with "$" [MQTT-4.7.2-1]


class Namespace(enum.Enum):
    """Namespace in which two selectors overlap."""

    PRIMARY = "primary"
    """Topics at the primary: one message would belong to both."""
    LOCAL = "local"
    """Topics at this node, with the prefixes: two messages would share one name."""


@dataclass(frozen=True, slots=True)
class _TopicPattern:
    """The Topic Names that a Topic Filter matches, perhaps after a prefix."""

    levels: tuple[str, ...]
    """One literal, `_ANY` or `_ANY_PLAIN` for each level; never empty."""
    open: bool
    """True if further levels may follow (`#`)."""
    roots: frozenset[int]
    """Levels at which a Topic Name at a primary begins: it must not be empty there [MQTT-4.7.3-1]."""

    def matches(self, levels: Sequence[str]) -> bool:
        """Tell whether it matches the legal Topic Name of these levels."""
        if len(levels) < len(self.levels) or (len(levels) > len(self.levels) and not self.open):
            return False
        for own, level in zip(self.levels, levels, strict=False):
            if own in (level, _ANY):
                continue
            if own == _ANY_PLAIN and not level.startswith("$"):
                continue
            return False
        return True


@dataclass(frozen=True, slots=True)
class _TopicSet:
    """The topics of a selector in one namespace: those of a pattern, without excluded ones."""

    pattern: _TopicPattern
    excludes: tuple[_TopicPattern, ...]
    names: frozenset[str]
    """Every level that occurs in it."""


@dataclass(frozen=True, slots=True)
class Selector:
    """One Topic Filter with its excludes, and the local form of its topics.

    Args:
        filter: Topic Filter at the primary; not a `$share` form.
        exclude: Topic Filters whose topics are not replicated.
        qos: Maximum QoS of the subscription at the primary.
        prefix: Put in front of the topic locally; empty, or literal levels that end with "/".
        writes: Treatment of a local PUBLISH inside the selector.
        content: Kinds of content that are replicated; empty for all.
        retained_only: True if only messages with RETAIN are replicated.
        live_only: True if no retained value is replicated: messages are delivered as they come, and none is held.
        max_payload: Bytes of the largest payload that is replicated; 0 for no limit.
        min_topics: Fewest retained values with which a link is ready; 0 for no bound.

    Raises:
        SelectorInvalid: When the filter, an exclude, the prefix or the QoS is not legal.
    """

    filter: str
    exclude: tuple[str, ...] = ()
    qos: int = 1
    prefix: str = ""
    writes: WritePolicy = "reject"
    content: tuple[ContentKind, ...] = ()
    retained_only: bool = False
    live_only: bool = False
    max_payload: int = 0
    min_topics: int = 0
    match: _Match = field(init=False, repr=False, compare=False)
    """Pattern of `matches`, to be called directly on the hot path; None for a topic that is not replicated."""
    _match_local: _Match = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for topic_filter in (self.filter, *self.exclude):
            check_filter(topic_filter)
        check_prefix(self.prefix)
        if self.qos not in (0, 1, 2):
            raise SelectorInvalid(f"QoS {self.qos} does not exist", hint="Use 0, 1 or 2.")
        pattern = _expression(_topic_pattern(self.filter))
        if self.exclude:
            excluded = b"|".join(_expression(_topic_pattern(topic_filter)) for topic_filter in self.exclude)
            pattern = rb"(?!(?:%b)\Z)%b" % (excluded, pattern)
        pattern = rb"(?!\Z)%b" % pattern  # the prefix alone is not the local name of anything
        local = re.escape(self.prefix.encode()) + pattern
        object.__setattr__(self, "match", re.compile(pattern, re.DOTALL).fullmatch)
        object.__setattr__(self, "_match_local", re.compile(local, re.DOTALL).fullmatch)

    @property
    def root(self) -> str:
        """The literal levels before the first wildcard; empty when the first level is a wildcard."""
        literal = itertools.takewhile(lambda level: level not in ("+", "#"), self.filter.split("/"))
        return "/".join(literal)

    @property
    def has_wildcard(self) -> bool:
        """True if its filter has one."""
        return self.root != self.filter

    @property
    def is_choosy(self) -> bool:
        """True if some messages inside it may be left out."""
        return bool(self.content or self.retained_only or self.live_only or self.max_payload)

    @property
    def holds_all_retained(self) -> bool:
        """True if every retained value inside it is replicated, so a value absent here is absent at the primary."""
        return not (self.content or self.live_only or self.max_payload)

    @property
    def local_filter(self) -> str:
        """A Topic Filter that matches all its local topics, and perhaps excluded ones."""
        return self.prefix + self.filter

    def matches(self, topic: bytes) -> bool:
        """Tell whether it replicates `topic`, a legal Topic Name at the primary."""
        return self.match(topic) is not None

    def covers_local(self, topic: bytes) -> bool:
        """Tell whether `topic`, a legal local Topic Name, is the local name of a topic that it replicates."""
        return self._match_local(topic) is not None


@dataclass(frozen=True, slots=True)
class LinkSelectors:
    """The part of a link that overlaps depend on."""

    primaries: frozenset[str]
    """Its primary's addresses; links that share one have the same primary."""
    selectors: tuple[Selector, ...]


@dataclass(frozen=True, slots=True, order=True)
class SelectorPlace:
    """Position of a selector in a sequence of links; both count from 0."""

    link: int
    selector: int


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two selectors that would replicate the same topic."""

    first: SelectorPlace
    second: SelectorPlace
    witness: str
    """A topic that both would replicate, in `namespace`."""
    namespace: Namespace


def check_filter(topic_filter: str) -> None:
    """Check that a Topic Filter is legal (MQTT 5, section 4.7) and within bounds.

    Raises:
        SelectorInvalid: When it is not.
    """
    if not topic_filter:
        raise SelectorInvalid("a Topic Filter has at least one character", hint='Write "#" for every topic.')
    _check_characters(topic_filter)
    levels = topic_filter.split("/")
    if len(levels) > LEVELS_MAX:
        raise SelectorInvalid(
            f"it has {len(levels)} levels; {LEVELS_MAX} is the most", hint='End it earlier, with "#".'
        )
    if any("#" in level for level in levels[:-1]) or ("#" in levels[-1] and levels[-1] != "#"):
        raise SelectorInvalid(
            f'"#" in "{topic_filter}" is not the whole last level',
            hint='Use "#" only at the end and after a "/", as in "a/b/#"; "+" stands for one level anywhere.',
        )
    if any("+" in level and level != "+" for level in levels):
        raise SelectorInvalid(
            f'"+" in "{topic_filter}" does not fill its level',
            hint='Put "+" alone between slashes, as in "a/+/c".',
        )


def check_prefix(prefix: str) -> None:
    """Check that a prefix is empty, or literal levels that end with "/".

    Raises:
        SelectorInvalid: When it is not. A prefix that does not end with "/" would merge with the first level
            of the topic, and a local name would no longer tell where the prefix ends.
    """
    _check_characters(prefix)
    if "+" in prefix or "#" in prefix:
        raise SelectorInvalid(
            f'the prefix "{prefix}" contains a wildcard', hint='Use a literal prefix, such as "site-1/".'
        )
    if prefix.startswith("$"):
        raise SelectorInvalid(
            f'the prefix "{prefix}" begins with "$", which is kept for topics of the server itself',
            hint='Begin it with another character, as in "site-1/".',
        )
    if prefix and not prefix.endswith("/"):
        raise SelectorInvalid(f'the prefix "{prefix}" does not end with "/"', hint=f'Write "{prefix}/".')


def _check_characters(text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise SelectorInvalid(
            "it contains half of a surrogate pair, which UTF-8 cannot carry", hint="Remove that character."
        ) from None
    if "\0" in text:
        raise SelectorInvalid(
            "it contains the character U+0000, which MQTT does not allow", hint="Remove that character."
        )
    if size > FILTER_BYTES_MAX:
        raise SelectorInvalid(f"it has {size} bytes; {FILTER_BYTES_MAX} is the most", hint="Shorten it.")


def common_filter(filter_a: str, filter_b: str) -> str | None:
    """Return the Topic Filter of exactly the topics that both legal filters match; None for no topics."""
    met = _intersect_patterns(_topic_pattern(filter_a), _topic_pattern(filter_b))
    if met is None:
        return None
    levels = ["+" if level in (_ANY, _ANY_PLAIN) else level for level in met.levels]
    if not met.open:
        return "/".join(levels) or None  # a Topic Name has at least one character [MQTT-4.7.3-1]
    return "#" if levels == ["+"] else "/".join([*levels, "#"])


def intersect(filter_a: str, filter_b: str) -> str | None:
    """Return a shortest topic that both Topic Filters match, or None when there is none.

    Raises:
        SelectorInvalid: When one of them is not legal.
    """
    return _shared_topic(_topic_set(Selector(filter_a), local=False), _topic_set(Selector(filter_b), local=False))


def sample_topic(selector: Selector) -> str | None:
    """Return a shortest topic at the primary that `selector` replicates; None when it excludes all."""
    topics = _topic_set(selector, local=False)
    return _shared_topic(topics, topics)


def overlap(a: Selector, b: Selector, *, local: bool) -> str | None:
    """Return a shortest topic that both selectors replicate, or None when there is none.

    Args:
        a: One selector.
        b: The other.
        local: Compare local names (after the prefixes) rather than topics at the primary.
    """
    return _shared_topic(_topic_set(a, local=local), _topic_set(b, local=local))


def find_moves(before: Sequence[Selector], after: Sequence[Selector]) -> tuple[int | None, ...]:
    """Return the former position of each selector; None for one that is new, or differs in any key."""
    places = {selector: index for index, selector in enumerate(before)}
    return tuple(places.get(selector) for selector in after)


def find_overlaps(links: Sequence[LinkSelectors]) -> list[Overlap]:
    """Return the pairs of selectors that overlap, in the order of their places, each pair once.

    At the primary, selectors are compared within a link and between links to the same primary; in the local
    namespace all are compared. A pair that overlaps in both is reported for the primary.
    """
    placed = [
        _Placed(
            SelectorPlace(link_index, selector_index),
            link.primaries,
            selector.prefix,
            _topic_set(selector, local=False),
            _topic_set(selector, local=True),
        )
        for link_index, link in enumerate(links)
        for selector_index, selector in enumerate(link.selectors)
    ]
    found = (_find_overlap(first, second) for first, second in itertools.combinations(placed, 2))
    return [each for each in found if each is not None]


@dataclass(frozen=True, slots=True)
class _Placed:
    """A selector, prepared for many comparisons."""

    place: SelectorPlace
    primaries: frozenset[str]
    prefix: str
    at_primary: _TopicSet
    local: _TopicSet


def _find_overlap(first: _Placed, second: _Placed) -> Overlap | None:
    if first.place.link == second.place.link or not first.primaries.isdisjoint(second.primaries):
        witness = _shared_topic(first.at_primary, second.at_primary)
        if witness is not None:
            return Overlap(first.place, second.place, witness, Namespace.PRIMARY)
        if first.prefix == second.prefix:
            return None  # with one prefix both namespaces give the same answer
    witness = _shared_topic(first.local, second.local)
    if witness is not None:
        return Overlap(first.place, second.place, witness, Namespace.LOCAL)
    return None


def _expression(pattern: _TopicPattern) -> bytes:
    """Return a regular expression (for DOTALL) of linear time: every level ends at the next "/"."""
    tests = {_ANY: rb"[^/]*", _ANY_PLAIN: rb"(?!\$)[^/]*"}
    levels = [tests.get(level) or re.escape(level.encode()) for level in pattern.levels]
    return rb"/".join(levels) + (rb"(?:/.*)?" if pattern.open else b"")


def _topic_pattern(topic_filter: str, *, prefix: str = "") -> _TopicPattern:
    levels = topic_filter.split("/")
    is_open = levels[-1] == "#"
    if is_open:
        levels.pop()
    if not levels:
        levels = ["+"]  # a Topic Name has a first level, so "#" is "+/#"
    if levels[0] == "+":
        levels[0] = _ANY_PLAIN
    in_front = prefix.split("/")[:-1]
    return _TopicPattern((*in_front, *levels), is_open, frozenset({len(in_front)}))


def _topic_set(selector: Selector, *, local: bool) -> _TopicSet:
    prefix = selector.prefix if local else ""
    excludes = tuple(_topic_pattern(topic_filter, prefix=prefix) for topic_filter in selector.exclude)
    pattern = _topic_pattern(selector.filter, prefix=prefix)
    names = frozenset(level for each in (pattern, *excludes) for level in each.levels)
    return _TopicSet(pattern, excludes, names)


def _intersect_patterns(a: _TopicPattern, b: _TopicPattern) -> _TopicPattern | None:
    """Return the pattern of the topics of both, or None when there are none."""
    if len(a.levels) > len(b.levels):
        a, b = b, a
    if len(a.levels) < len(b.levels) and not a.open:
        return None
    met: list[str] = []
    for own, other in zip(a.levels, b.levels, strict=False):
        if own in (other, _ANY):
            met.append(other)
        elif other == _ANY:
            met.append(own)
        elif own == _ANY_PLAIN and not other.startswith("$"):
            met.append(other)
        elif other == _ANY_PLAIN and not own.startswith("$"):
            met.append(own)
        else:
            return None
    met.extend(b.levels[len(a.levels) :])
    return _TopicPattern(tuple(met), a.open and b.open, a.roots | b.roots)


def _shared_topic(a: _TopicSet, b: _TopicSet) -> str | None:
    """Return a shortest topic of both sets (see the module's docstring for why this is exact)."""
    met = _intersect_patterns(a.pattern, b.pattern)
    if met is None:
        return None
    excludes = a.excludes + b.excludes
    fresh = next(name for name in _level_names() if name not in a.names and name not in b.names)
    levels = [fresh if level in (_ANY, _ANY_PLAIN) else level for level in met.levels]
    depth_max = len(levels)
    if met.open:
        depth_max = 1 + max(len(pattern.levels) for pattern in (met, *excludes))
    while True:
        # An empty last level right after a prefix would be the local name of an empty Topic Name.
        is_legal = levels[-1] != "" or len(levels) - 1 not in met.roots
        if is_legal and not any(exclude.matches(levels) for exclude in excludes):
            return "/".join(levels)
        if len(levels) == depth_max:
            return None
        levels.append(fresh)


def _level_names() -> Iterator[str]:
    """Yield names for a level without end, the most readable first."""
    return itertools.chain("xyzuvw", (f"x{number}" for number in itertools.count(1)))
