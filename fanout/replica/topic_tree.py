"""Topic tree: an index over Topic Names that finds those that a Topic Filter matches (MQTT 5, section 4.7).

The index is not made of nodes: the topics stand in lists of some hundred, in the order of their bytes, so every branch
is one contiguous stretch and costs nothing. With a million topics `plant/lineN/cellN/sensorN/temp`, a topic costs 9
bytes (nested dicts with shared ends: 88), and adding the batches of a snapshot, which arrive branch by branch, costs
0.1 us a topic (1.3 us). A single topic in random order costs about 4 us, which is rare: known topics are not added
again.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice

__all__ = ["TopicSearch", "TopicTree"]

_CHUNK_TOPICS = 256
"""Length of the pieces into which a list is split when it has more than twice as many topics."""

_ABOVE_ALL = b"\xff"
"""Sorts after all topics with the same beginning: UTF-8 never has this byte."""

_MERGE_AT = 8
"""Number of new topics in one list from which sorting it again is faster than inserting one by one."""


class TopicSearch:
    """Finds the topics that a Topic Filter matches in any set of them that is ordered by their bytes."""

    __slots__ = ()

    @abstractmethod
    def __contains__(self, topic: bytes) -> bool:
        """Say whether `topic` is in the set."""

    @abstractmethod
    def _pieces(self, low: bytes, high: bytes | None) -> Iterator[list[bytes]]:
        """Yield stretches of the topics from `low` on and below `high`, in order; none of them is empty."""

    def match(self, topic_filter: bytes, *, low: bytes = b"", high: bytes | None = None) -> Iterator[list[bytes]]:
        """Yield the topics that a Topic Filter matches, in the order of their bytes, in pieces.

        A piece is a stretch of the set, some hundred topics or none, so the search takes little time between two
        pieces; the same filter gives the same pieces. The set may change during the search: a topic that stays from
        beginning to end is yielded once, one that comes or goes meanwhile may or may not be.

        Args:
            topic_filter: A valid Topic Filter without `$share/{ShareName}/`.
            low: Topics from this one on only.
            high: Topics below this one only; None for all.
        """
        levels = topic_filter.split(b"/")
        depth = next((index for index, level in enumerate(levels) if level in (b"+", b"#")), None)
        if depth is None:
            return self._match_name(topic_filter, low, high)
        root = b"/".join(levels[:depth])
        if levels[depth] == b"+":
            return self._match_levels(levels, root, low, high)
        return self._match_branch(root, low, high) if depth else self._match_all(low, high)

    def beginning_with(self, root: bytes) -> Iterator[list[bytes]]:
        """Yield the topics that begin with `root`, in pieces that are not empty, as `match` does."""
        return self._pieces(root, root + _ABOVE_ALL)

    def first(self, low: bytes, high: bytes | None) -> bytes | None:
        """Return the first topic from `low` on and below `high`; None when there is none."""
        piece = next(self._pieces(low, high), None)
        return None if piece is None else piece[0]

    @abstractmethod
    def count_between(self, low: bytes, high: bytes, *, most: int) -> int:
        """Return the number of topics from `low` on and below `high`; at least `most` if there are more than that."""

    @abstractmethod
    def spread(self, root: bytes, fractions: Sequence[float]) -> list[bytes]:
        """Return topics that begin with `root`, one at each fraction of their stretch, at most as many as fractions.

        Some may come twice. No copy of the topics is made.

        Args:
            root: The beginning; empty for all topics.
            fractions: Places in the stretch, from 0 to below 1.
        """

    def _match_name(self, topic: bytes, low: bytes, high: bytes | None) -> Iterator[list[bytes]]:
        if low <= topic and (high is None or topic < high) and topic in self:
            yield [topic]

    def _match_branch(self, root: bytes, low: bytes, high: bytes | None) -> Iterator[list[bytes]]:
        yield from self._match_name(root, low, high)  # `a/#` matches `a` too (MQTT 5, section 4.7.1.2)
        yield from self._pieces(max(low, root + b"/"), _lower(high, root + b"0"))

    def _match_all(self, low: bytes, high: bytes | None) -> Iterator[list[bytes]]:
        yield from self._pieces(low, _lower(high, b"$"))  # nothing that begins with `$` [MQTT-4.7.2-1]
        yield from self._pieces(max(low, b"%"), high)

    def _match_levels(self, levels: list[bytes], root: bytes, low: bytes, high: bytes | None) -> Iterator[list[bytes]]:
        """Search below `root` for a filter with `+`; after a mismatch, jump to the next possible match."""
        fullmatch = re.compile(_expression(levels), re.DOTALL).fullmatch
        position = max(low, root + b"/" if root else b"")
        high = _lower(high, root + b"0") if root else high
        while True:
            piece = next(self._pieces(position, high), None)
            if piece is None:
                return
            index = 0
            found: list[bytes] = []
            position = piece[-1] + b"\0"
            while index < len(piece):
                topic = piece[index]
                index += 1
                if fullmatch(topic) is not None:
                    found.append(topic)
                    continue
                target = _next_candidate(levels, topic)
                if target > piece[-1]:
                    position = target
                    break
                index = bisect_left(piece, target, index)
            yield found


class TopicTree(TopicSearch):
    """A set of Topic Names that can be searched by Topic Filter."""

    __slots__ = ("_chunks", "_highest", "version")

    def __init__(self) -> None:
        self._chunks: list[list[bytes]] = []
        """Sorted lists; every topic of one is smaller than every topic of the next; none is empty."""
        self._highest: list[bytes] = []
        """For each list an upper bound of its topics that is below the next list."""
        self.version = 0
        """Raised by every change, so that a running search knows that its place may have moved; read only."""

    def __len__(self) -> int:
        """Return the number of topics; the cost is proportional to the number of lists."""
        return sum(map(len, self._chunks))

    def __contains__(self, topic: bytes) -> bool:
        """Say whether `topic` is in the tree."""
        return self._find(topic) is not None

    def add(self, topic: bytes) -> None:
        """Add `topic`; does nothing when it is there."""
        if topic not in self:
            self.add_new([topic])

    def add_new(self, topics: Sequence[bytes]) -> None:
        """Add a batch of topics.

        Args:
            topics: In any order; distinct, and not in the tree yet.
        """
        if not topics:
            return
        self.version += 1
        chunks, highest = self._chunks, self._highest
        batch = sorted(topics)
        size = len(batch)
        if not chunks:
            chunks.append([])
            highest.append(batch[-1])
        start = 0
        while start < size:
            at = bisect_left(highest, batch[start])
            if at >= len(chunks) - 1:  # the last list takes all higher topics
                at = len(chunks) - 1
                end = size
                highest[at] = max(highest[at], batch[-1])
            else:
                end = bisect_right(batch, highest[at], start)
            chunk = chunks[at]
            if end - start < _MERGE_AT:
                for topic in batch[start:end]:
                    insort(chunk, topic)
            else:
                chunk += batch[start:end]
                chunk.sort()
            if len(chunk) > 2 * _CHUNK_TOPICS:
                self._split(at)
            start = end

    def discard(self, topic: bytes) -> None:
        """Remove `topic`; does nothing when it is not there."""
        place = self._find(topic)
        if place is None:
            return
        self.version += 1
        at, index = place
        del self._chunks[at][index]
        if not self._chunks[at]:
            del self._chunks[at], self._highest[at]

    def count_between(self, low: bytes, high: bytes, *, most: int) -> int:
        """Return the number of topics of a stretch, exact above `most` too; see `TopicSearch.count_between`."""
        at, last = bisect_left(self._highest, low), bisect_left(self._highest, high)
        if at == len(self._chunks):
            return 0
        count = sum(map(len, islice(self._chunks, at, last)))
        if last < len(self._chunks):
            count += bisect_left(self._chunks[last], high)
        return max(0, count - bisect_left(self._chunks[at], low))

    def spread(self, root: bytes, fractions: Sequence[float]) -> list[bytes]:
        """Return topics at fractions of a stretch; see `TopicSearch.spread`.

        The lists are counted, some hundred topics each: 0.1 ms for a million topics.
        """
        chunks = self._chunks
        ends = list(accumulate(map(len, chunks)))
        low, high = self._place(root, ends), self._place(root + _ABOVE_ALL, ends)
        found: list[bytes] = []
        for fraction in fractions if low < high else ():
            place = low + int(fraction * (high - low))
            at = bisect_right(ends, place)
            found.append(chunks[at][place - ends[at]])
        return found

    def _place(self, key: bytes, ends: Sequence[int]) -> int:
        """Return the number of topics below a key; `ends` has that of the topics up to the end of each list."""
        at = bisect_left(self._highest, key)
        if at == len(ends):
            return ends[-1] if ends else 0
        chunk = self._chunks[at]
        return ends[at] - len(chunk) + bisect_left(chunk, key)

    def take(self, count: int) -> list[bytes]:
        """Remove and return up to `count` topics, those that are cheapest to remove."""
        taken: list[bytes] = []
        while self._chunks and len(taken) < count:
            chunk = self._chunks[-1]
            keep = max(0, len(chunk) - (count - len(taken)))
            taken += chunk[keep:]
            del chunk[keep:]
            if not chunk:
                del self._chunks[-1], self._highest[-1]
        self.version += 1
        return taken

    def _pieces(self, low: bytes, high: bytes | None) -> Iterator[list[bytes]]:
        """Yield copies of stretches of the topics from `low` on and below `high`; none of them is empty."""
        chunks = self._chunks
        version = self.version
        at = bisect_left(self._highest, low)
        while at < len(chunks):
            chunk = chunks[at]
            start = bisect_left(chunk, low) if low else 0
            end = len(chunk) if high is None or chunk[-1] < high else bisect_left(chunk, high)
            if start < end:
                piece = chunk[start:end]
                low = piece[-1] + b"\0"  # no topic lies between: U+0000 occurs in none [MQTT-4.7.3-2]
                yield piece
            if self.version != version:
                version = self.version
                at = bisect_left(self._highest, low)
            elif end < len(chunk):
                return
            else:
                at += 1

    def _find(self, topic: bytes) -> tuple[int, int] | None:
        at = bisect_left(self._highest, topic)
        if at < len(self._chunks):
            chunk = self._chunks[at]
            index = bisect_left(chunk, topic)
            if index < len(chunk) and chunk[index] == topic:
                return at, index
        return None

    def _split(self, at: int) -> None:
        chunk = self._chunks[at]
        parts = [chunk[start : start + _CHUNK_TOPICS] for start in range(0, len(chunk), _CHUNK_TOPICS)]
        highest = [part[-1] for part in parts]
        highest[-1] = self._highest[at]
        self._chunks[at : at + 1] = parts
        self._highest[at : at + 1] = highest


def _lower(high: bytes | None, other: bytes) -> bytes:
    return other if high is None else min(high, other)


def _expression(levels: list[bytes]) -> bytes:
    """Return a regular expression (for DOTALL) of a Topic Filter; its time is linear."""
    parts = [rb"[^/]*" if level == b"+" else re.escape(level) for level in levels if level != b"#"]
    dollar = rb"(?!\$)" if levels[0] == b"+" else b""  # [MQTT-4.7.2-1]
    return dollar + b"/".join(parts) + (rb"(?:/.*)?" if levels[-1] == b"#" else b"")


def _next_candidate(levels: list[bytes], topic: bytes) -> bytes:
    """Return a lower bound, above `topic`, of the following topics that may match.

    Args:
        levels: The levels of a Topic Filter, the literal ones before its first `+` equal to those of `topic`.
        topic: A topic that the filter does not match.
    """
    if topic[:1] == b"$" and levels[0] == b"+":
        return b"%"
    names = topic.split(b"/")
    for index, level in enumerate(levels):
        if index == len(names):
            return topic + b"\0"  # too few levels; the next topics may be below it
        if level in (b"+", names[index]):
            continue
        wanted = b"/".join([*names[:index], level])
        if wanted > topic:
            return wanted
        below = wanted + b"/"
        if below > topic:
            return below
        return b"/".join(names[:index]) + b"0"  # "0" follows "/": past the whole branch
    return b"/".join(names[: len(levels)]) + b"0"  # too many levels
