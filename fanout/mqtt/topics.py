"""Topic Names and Topic Filters (MQTT 5, section 4.7; shared subscriptions, section 4.8.2).

Owns the rules of their form, the match of one filter with one name, and `FilterTrie`, which finds the filters that
match a name. Names and filters are UTF-8 in `bytes`, as on the wire.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

from fanout.errors import ProtocolError
from fanout.mqtt.data_representation import MAX_STRING_BYTES, malformed
from fanout.mqtt.reason_codes import ReasonCode

__all__ = [
    "MAX",
    "SHARE_PREFIX",
    "FilterTrie",
    "check_topic_filter",
    "check_topic_name",
    "check_topic_names",
    "matches",
    "parse_shared",
]

MAX = MAX_STRING_BYTES
"""The longest Topic Name or Topic Filter in bytes [MQTT-4.7.3-3]."""

SHARE_PREFIX = b"$share/"
"""Beginning of the Topic Filter of a Shared Subscription (MQTT 5, section 4.8.2)."""
# '#' that is not a whole level or not the last [MQTT-4.7.1-1], '+' that is not a whole level [MQTT-4.7.1-2].
_MISPLACED_WILDCARD = re.compile(rb"[^/]#|#.|[^/]\+|\+[^/]", re.DOTALL)
_FORBIDDEN_IN_NAME = re.compile(rb"[+#\0]")

T = TypeVar("T", bound=Hashable)


def _check_text(topic: bytes) -> None:
    try:
        topic.decode()  # [MQTT-4.7.3-3]: UTF-8 Encoded Strings, hence no surrogates [MQTT-1.5.4-1]
    except UnicodeDecodeError as error:
        raise malformed("a topic is not well-formed UTF-8") from error
    if b"\0" in topic:
        raise malformed("a topic holds U+0000")  # [MQTT-4.7.3-2]


def check_topic_name(topic: bytes) -> None:
    """Check that `topic` is a Topic Name.

    Raises:
        ProtocolError: It is ill-formed UTF-8 or holds U+0000 (Malformed Packet), or it is empty
            [MQTT-4.7.3-1], too long [MQTT-4.7.3-3] or holds a wildcard [MQTT-3.3.2-2] (Topic Name invalid).
    """
    # A good name costs one search and one decode: this runs for every unknown name.
    if _FORBIDDEN_IN_NAME.search(topic) is None and 0 < len(topic) <= MAX:
        try:
            topic.decode()
        except UnicodeDecodeError as error:
            raise malformed("a topic is not well-formed UTF-8") from error
        return
    _check_text(topic)
    if not topic:
        raise ProtocolError(ReasonCode.TOPIC_NAME_INVALID, "the Topic Name is empty")
    if len(topic) > MAX:
        raise ProtocolError(ReasonCode.TOPIC_NAME_INVALID, "the Topic Name is longer than 65,535 bytes")
    raise ProtocolError(ReasonCode.TOPIC_NAME_INVALID, "the Topic Name holds a wildcard character")


def check_topic_names(topics: Sequence[bytes]) -> None:
    """Check that each of `topics` is a Topic Name; many together cost little more than one.

    Raises:
        ProtocolError: The first that is not, as `check_topic_name` raises it.
    """
    # No part of a character is "/": the joined names are well-formed UTF-8 exactly when each of them is.
    joined = b"/".join(topics)
    if _FORBIDDEN_IN_NAME.search(joined) is None and all(topics) and max(map(len, topics), default=0) <= MAX:
        try:
            joined.decode()
        except UnicodeDecodeError:
            pass
        else:
            return
    for topic in topics:
        check_topic_name(topic)


def check_topic_filter(topic_filter: bytes) -> None:
    """Check that `topic_filter` is a Topic Filter; `parse_shared` checks the form of `$share/...`.

    Raises:
        ProtocolError: It is ill-formed UTF-8 or holds U+0000 (Malformed Packet), or it is empty
            [MQTT-4.7.3-1], too long [MQTT-4.7.3-3] or has a misplaced wildcard [MQTT-4.7.1-1] [MQTT-4.7.1-2]
            (Topic Filter invalid).
    """
    _check_text(topic_filter)
    if not topic_filter:
        raise ProtocolError(ReasonCode.TOPIC_FILTER_INVALID, "the Topic Filter is empty")
    if len(topic_filter) > MAX:
        raise ProtocolError(ReasonCode.TOPIC_FILTER_INVALID, "the Topic Filter is longer than 65,535 bytes")
    if _MISPLACED_WILDCARD.search(topic_filter) is not None:
        raise ProtocolError(ReasonCode.TOPIC_FILTER_INVALID, "the Topic Filter has a misplaced wildcard character")


def parse_shared(topic_filter: bytes) -> tuple[bytes, bytes] | None:
    """Split `$share/{ShareName}/{filter}` (MQTT 5, section 4.8.2).

    Returns:
        The ShareName and the Topic Filter after it; None when `topic_filter` is not a Shared Subscription.

    Raises:
        ProtocolError: The ShareName is empty [MQTT-4.8.2-1], holds a wildcard, or no filter follows
            [MQTT-4.8.2-2].
    """
    if not topic_filter.startswith(SHARE_PREFIX):
        return None
    share_name, separator, shared_filter = topic_filter[len(SHARE_PREFIX) :].partition(b"/")
    if not share_name:
        raise ProtocolError(ReasonCode.TOPIC_FILTER_INVALID, "the ShareName is empty")
    if b"+" in share_name or b"#" in share_name:
        raise ProtocolError(ReasonCode.TOPIC_FILTER_INVALID, "the ShareName holds a wildcard character")
    if not separator or not shared_filter:
        raise ProtocolError(ReasonCode.TOPIC_FILTER_INVALID, "no Topic Filter follows the ShareName")
    return share_name, shared_filter


def matches(topic_filter: bytes, topic: bytes) -> bool:
    """Return whether `topic_filter` (valid, not shared) matches the Topic Name `topic`."""
    if b"+" not in topic_filter and b"#" not in topic_filter:
        return topic_filter == topic  # [MQTT-4.7.3-4]: by characters, no normalisation
    if topic[:1] == b"$" and topic_filter[:1] in {b"+", b"#"}:
        return False  # [MQTT-4.7.2-1]
    levels = topic.split(b"/")
    filter_levels = topic_filter.split(b"/")
    for index, level in enumerate(filter_levels):
        if level == b"#":
            return True  # also the parent level: here `index` may be one past the last level of the name
        if index == len(levels) or level not in (b"+", levels[index]):
            return False
    return len(filter_levels) == len(levels)


class _Node(Generic[T]):
    """One level of a `FilterTrie`: the levels below it, and the values of the filter that ends here."""

    __slots__ = ("children", "values")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node[T]] = {}
        self.values: dict[T, None] = {}


class FilterTrie(Generic[T]):
    """Topic Filters with values; finds the values of all filters that match a Topic Name.

    The cost of `match` depends on the number of levels and of matching branches, not on the number of filters. Filters
    must be valid and without `$share/{ShareName}/`. A value is hashable and may belong to many filters.

    Attributes:
        size: Number of pairs of filter and value.
    """

    __slots__ = ("_root", "size")

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()
        self.size = 0

    def add(self, topic_filter: bytes, value: T) -> None:
        """Add `value` at `topic_filter`; does nothing when it is there."""
        node = self._root
        for level in topic_filter.split(b"/"):
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        if value not in node.values:
            node.values[value] = None
            self.size += 1

    def remove(self, topic_filter: bytes, value: T) -> None:
        """Remove `value` from `topic_filter`.

        Raises:
            KeyError: `value` is not at `topic_filter`; nothing changes.
        """
        path: list[tuple[_Node[T], bytes]] = []
        node = self._root
        for level in topic_filter.split(b"/"):
            path.append((node, level))
            node = node.children[level]
        del node.values[value]
        self.size -= 1
        for parent, level in reversed(path):
            if node.values or node.children:
                break
            del parent.children[level]
            node = parent

    def at(self, topic_filter: bytes) -> list[T]:
        """Return the values at exactly this `topic_filter`."""
        node = self._root
        for level in topic_filter.split(b"/"):
            child = node.children.get(level)
            if child is None:
                return []
            node = child
        return list(node.values)

    def match(self, topic: bytes) -> list[T]:
        """Return the values at all filters that match the Topic Name `topic`, once per matching filter."""
        found: list[T] = []
        nodes = [self._root]
        wildcards = topic[:1] != b"$"  # [MQTT-4.7.2-1]: a leading wildcard does not match `$...`
        for level in topic.split(b"/"):
            below: list[_Node[T]] = []
            for node in nodes:
                children = node.children
                child = children.get(level)
                if child is not None:
                    below.append(child)
                if wildcards:
                    child = children.get(b"+")
                    if child is not None:
                        below.append(child)
                    child = children.get(b"#")
                    if child is not None:
                        found.extend(child.values)
            if not below:
                return found
            nodes = below
            wildcards = True
        for node in nodes:
            found.extend(node.values)
            child = node.children.get(b"#")  # '#' includes the parent level (MQTT 5, section 4.7.1.2)
            if child is not None:
                found.extend(child.values)
        return found
