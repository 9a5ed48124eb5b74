"""Recent updates of links, in memory: a bounded history that the members of a pool have in common (core).

A heartbeat of any member is one place in the streams of all of them, so a place in a stream has the same name at each:
the heartbeat before it, and the number of updates since. `RecentUpdates` holds the updates at QoS 1 and 2 of each link
with the heartbeats between them, names the place of an update, and finds the update of a place that another member has
named. Nothing is believed by its number alone: each name has a digest, and a place whose updates are others here is not
found.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from itertools import compress
from operator import itemgetter
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from fanout.replica.update import DIGEST, PAYLOAD, PROPERTIES, QOS, RECEIVED_NS, TOPIC, Update

__all__ = ["Found", "Place", "RecentBatch", "RecentUpdates", "Start", "message_digest"]

_OVERHEAD: Final = 256
"""Bytes of an update in memory beside its topic, payload and properties."""
_CANDIDATES_MAX: Final = 64
"""Batches of one time in which an update is looked for: those of one turn of the event loop."""
_SEGMENT_BYTES: Final = 512
"""Bytes of a heartbeat in memory."""
_JOINED_BYTES: Final = 32 * 1024
"""Bytes up to which batches that follow each other are one: an object of each batch would have to be looked at by
garbage collections, which stop the event loop."""
_PARTS: Final = 100
"""Least number of batches in a full history: the oldest goes as a whole."""
_COMPACT: Final = 1024
"""Batches that have gone before their entries are removed."""
_NO_LIMIT: Final = 1 << 62
_DIGITS_MAX: Final = 20

_qos = itemgetter(QOS)
_topic = itemgetter(TOPIC)
_payload = itemgetter(PAYLOAD)
_properties = itemgetter(PROPERTIES)


class Place(NamedTuple):
    """A place in the stream of a link, by a name that all members understand."""

    node: str
    """Member whose heartbeat is in front of it."""
    marker: str
    """That heartbeat."""
    updates: int
    """Number of updates between the heartbeat and the place."""
    digest: int
    """Digest of the last of these; 0 when there is none."""


class Found(NamedTuple):
    """Place of an update in the history of this node."""

    link: str
    """Its link."""
    place: Place
    """The place in front of it."""
    number: int
    """Number of its batch."""


class Start(NamedTuple):
    """Place in the history of this node from which on updates follow."""

    number: int
    """Number of the first batch."""
    offset: int
    """Number of updates of that batch that are in front of the place."""


class RecentBatch:
    """Updates of a link at QoS 1 and 2 that were dispatched one after the other, without another link between them."""

    __slots__ = (
        "_by_digest",
        "_index",
        "begun_ns",
        "dispatched_ns",
        "first",
        "grown",
        "link",
        "number",
        "segment",
        "size",
        "updates",
    )

    def __init__(
        self,
        number: int,
        link: str,
        segment: _Segment,
        updates: list[Update],
        *,
        size: int,
        grown: int,
        dispatched_ns: int,
    ) -> None:
        self.number = number
        """Its number; from 1, ascending over all links."""
        self.link = link
        """Its link."""
        self.updates = updates
        """The updates, in order."""
        self.dispatched_ns = dispatched_ns
        """Unix time in nanoseconds at which the first were."""
        self.begun_ns = updates[0][RECEIVED_NS]
        """Time of receipt of its first update."""
        self.segment = segment
        """The heartbeat in front of it."""
        self.first = segment.count
        """Number of updates between that heartbeat and its first update."""
        self.size = size
        """About how many bytes it takes."""
        self.grown = grown
        """`RecentUpdates.grown` before it came."""
        self._index: dict[int, int] | None = None
        self._by_digest: dict[int, Update] | None = None

    def add(self, updates: list[Update], *, size: int) -> None:
        """Add updates that were dispatched after the others."""
        if self._index is not None:
            self._index |= {id(one): index for index, one in enumerate(updates, len(self.updates))}
        self._by_digest = None
        self.updates = [*self.updates, *updates]
        self.size += size

    def index_of(self, update: Update) -> int | None:
        """Return the index of an update, which is recognized by its identity."""
        if self._index is None:
            self._index = {id(one): index for index, one in enumerate(self.updates)}
        return self._index.get(id(update))

    def with_digest(self, digest: int) -> Update | None:
        """Return an update with this `message_digest`; None when there is none."""
        if self._by_digest is None:
            self._by_digest = {message_digest(one): one for one in reversed(self.updates)}
        return self._by_digest.get(digest)


class _Segment:
    """Updates of a link after one heartbeat."""

    __slots__ = ("batches", "count", "exact_until", "first_number", "key")

    def __init__(self, key: tuple[str, str] | None, first_number: int) -> None:
        self.key = key
        """Member and heartbeat; None before the first."""
        self.first_number = first_number
        """Number that the first batch of any link has after the heartbeat."""
        self.batches: list[RecentBatch] = []
        """Those that are held."""
        self.count = 0
        """Number of all updates."""
        self.exact_until = _NO_LIMIT
        """Number of updates up to which a place has the same number at the other members."""


class _Stream:
    """The stream of one link."""

    __slots__ = ("by_key", "newest", "segment", "segments")

    def __init__(self) -> None:
        self.segment = _Segment(None, 0)
        self.segments: list[_Segment] = []
        """With a heartbeat, oldest first."""
        self.by_key: dict[tuple[str, str], _Segment] = {}
        self.newest: dict[str, tuple[int, int]] = {}
        """Member to its process and the number of its newest heartbeat."""


class RecentUpdates:
    """The recent updates of all links of a node."""

    def __init__(self, links: Iterable[str], *, bytes_max: int) -> None:
        """Begin without any.

        Args:
            links: Names of the links.
            bytes_max: About how many bytes are held; the oldest go.
        """
        self.bytes = 0
        """About how many bytes are held."""
        self.grown = 0
        """About how many bytes were ever held: a place is held until `bytes_max` more have come."""
        self.bytes_max = bytes_max
        """About how many bytes are held at most."""
        self.interruptions = 0
        """Number of heartbeats that were the first after an interruption of a stream: earlier places may have lost
        their names, or have got none here, and later ones have names again.
        """
        self.stray_number = 0
        """Newest batch when an update without a place was last dispatched; all updates of later ones have a place."""
        self.incomplete_number = 0
        """Number of the next batch when an update was last dispatched that is not held: one at QoS 0, or one that an
        audit found."""
        self._joined_bytes = min(_JOINED_BYTES, bytes_max // _PARTS)
        self._streams = {link: _Stream() for link in links}
        self._batches: list[RecentBatch] = []
        """Oldest first, from `_gone` on."""
        self._times: list[int] = []
        """The newest time of receipt up to each batch."""
        self._set_back_number = 0
        """Number of the newest batch with an update that was received earlier than one before it: the clock was set."""
        self._gone = 0
        self._number = 0
        self._noted: list[Update] | None = None
        self._epochs: dict[str, int] = {}

    # Entries of the history, in order.

    def note(self, link: str, updates: list[Update], *, now_ns: int) -> None:
        """Note live updates of a link that are about to be dispatched; those at QoS 0 are left out.

        Args:
            link: The link.
            updates: The updates, which do not change afterwards.
            now_ns: Unix time in nanoseconds.
        """
        self._noted = updates
        levels = list(map(_qos, updates))
        if not all(levels):
            self.incomplete_number = self.next_number
            updates = list(compress(updates, levels))
            if not updates:
                return
        size = (
            sum(map(len, map(_topic, updates)))
            + sum(map(len, map(_payload, updates)))
            + sum(map(len, map(_properties, updates)))
            + _OVERHEAD * len(updates)
        )
        segment = self._streams[link].segment
        received_ns = updates[0][RECEIVED_NS]
        last = self._batches[-1] if self._gone < len(self._batches) else None
        if (
            last is not None
            and last.segment is segment
            and last.size + size <= self._joined_bytes
            and self.stray_number < last.number
        ):
            last.add(updates, size=size)
            self._times[-1] = max(self._times[-1], received_ns)
        else:
            self._number += 1
            batch = RecentBatch(self._number, link, segment, updates, size=size, grown=self.grown, dispatched_ns=now_ns)
            segment.batches.append(batch)
            self._batches.append(batch)
            self._times.append(max(self._times[-1], received_ns) if self._times else received_ns)
        if received_ns < self._times[-1]:
            self._set_back_number = self._number
        segment.count += len(updates)
        self._grow(size)
        if segment.key is None or segment.count > segment.exact_until:
            self.stray_number = self._number

    def note_found(self) -> None:
        """Note that updates are about to be dispatched that no stream has: an audit or a snapshot found them."""
        self.incomplete_number = self.next_number

    def note_dispatched(self, updates: list[Update]) -> None:
        """Note that updates are dispatched; those at QoS 1 and 2 that `note` was not given just before have no place.

        Args:
            updates: The updates.
        """
        if updates is not self._noted and any(map(_qos, updates)):
            self.stray_number = self._number

    def mark(self, link: str, node: str, marker: str) -> None:
        """Note that a member's heartbeat came after everything that was noted of a link."""
        stream, key = self._streams[link], (node, marker)
        if key in stream.by_key:
            return
        if stream.segment.exact_until != _NO_LIMIT:
            self.interruptions += 1
        stream.segment = segment = _Segment(key, self.next_number)
        stream.segments.append(segment)
        stream.by_key[key] = segment
        stream.newest[node] = _process(marker)
        self._grow(_SEGMENT_BYTES)

    def note_connection(self, link: str, *, epoch: int) -> None:
        """Note that the connection of a link is another one, or in another state.

        Until the next heartbeat updates may come twice then, or in another order. In a new epoch updates were lost:
        what was before is connected with nothing that comes.

        Args:
            link: The link.
            epoch: Epoch of its session at the primary.
        """
        if self._epochs.setdefault(link, epoch) != epoch:
            self._epochs[link] = epoch
            self.bytes -= _SEGMENT_BYTES * len(self._streams[link].segments)
            self._streams[link] = _Stream()
        segment = self._streams[link].segment
        segment.exact_until = min(segment.exact_until, segment.count)

    # Names.

    @property
    def links(self) -> Collection[str]:
        """The links."""
        return self._streams.keys()

    def ends(self, *, exactly: bool) -> dict[str, Place | None]:
        """Return the place after everything, by link.

        Args:
            exactly: True if nothing but everything may be in front of it; otherwise it is the last place with a name.

        Returns:
            None for a link where it has no name at the moment.
        """
        segments = ((link, stream.segment) for link, stream in self._streams.items())
        return {link: _place(one, one.count if exactly else min(one.count, one.exact_until)) for link, one in segments}

    def find(self, update: Update) -> Found | None:
        """Return the place of an update; None when it is none of those that are held, or has no name."""
        batch, index = self._batch_of(update)
        if batch is None:
            return None
        place = _place(batch.segment, batch.first + index)
        return None if place is None else Found(batch.link, place, batch.number)

    def link_of(self, update: Update) -> str | None:
        """Return the link of an update that is held, also of one without a name; None for any other."""
        batch, _ = self._batch_of(update)
        return None if batch is None else batch.link

    def in_front_of(self, found: Found) -> dict[str, Place | None]:
        """Return the place in each stream in front of which everything was dispatched before an update.

        Args:
            found: Place of the update.
        """
        places: dict[str, Place | None] = {}
        for link, stream in self._streams.items():
            if link == found.link:
                places[link] = found.place
                continue
            segment, count = stream.segment, stream.segment.count
            for earlier in reversed(stream.segments):
                at = bisect_left(earlier.batches, found.number, key=_number)
                if at < len(earlier.batches):
                    segment, count = earlier, earlier.batches[at].first
                if at:
                    break
            places[link] = _place(segment, count)
        return places

    def grown_at(self, number: int) -> int:
        """Return `grown` as it was before a batch came: the batch is held until `bytes_max` more have come.

        Args:
            number: Its number; of one that has not come for `grown` itself.
        """
        at = self._at(number)
        if at < self._gone:
            return self.grown - self.bytes_max
        return self._batches[at].grown if at < len(self._batches) else self.grown

    # Names given by others.

    def is_gone(self, link: str, place: Place) -> bool:
        """Return whether what follows a place is not held any more, or may never have been.

        It is to come when an earlier heartbeat of the same member has come here, or one of an earlier process.

        Args:
            link: The link.
            place: The place.
        """
        stream = self._streams[link]
        if (place.node, place.marker) in stream.by_key:
            return self.start(link, place, exactly=False) is None
        newest = stream.newest.get(place.node)
        return newest is None or newest >= _process(place.marker)

    def is_ahead(self, link: str, place: Place) -> bool:
        """Return whether the stream of a link has not come to a place yet.

        Args:
            link: The link.
            place: The place.
        """
        stream = self._streams[link]
        segment = stream.by_key.get((place.node, place.marker))
        if segment is None:
            newest = stream.newest.get(place.node)
            return newest is not None and newest < _process(place.marker)
        is_open = segment is stream.segment and segment.exact_until == _NO_LIMIT
        return is_open and place.updates > segment.count

    def start(self, link: str, place: Place, *, exactly: bool) -> Start | None:
        """Return from where on updates follow a place.

        Args:
            link: The link.
            place: The place.
            exactly: True if nothing that is in front of it may come; otherwise it begins at the heartbeat in front of
                the place where the place itself is not found.

        Returns:
            None when it is not found, or when what follows it is not held any more.
        """
        stream = self._streams[link]
        segment = stream.by_key.get((place.node, place.marker))
        if segment is None:
            return None
        if _place(segment, place.updates) == place:
            return self._start(stream, segment, place.updates)
        return None if exactly else self._start(stream, segment, 0)

    def get(self, link: str, place: Place, *, digest: int) -> Update | None:
        """Return the update after a place; None when it is not held, or has another digest.

        Args:
            link: The link.
            place: The place in front of it.
            digest: Its `message_digest`.
        """
        stream = self._streams.get(link)
        segment = None if stream is None else stream.by_key.get((place.node, place.marker))
        if segment is None:
            return None
        batch = _batch_at(segment, place.updates)
        update = None if batch is None else batch.updates[place.updates - batch.first]
        if update is not None and message_digest(update) == digest:
            return update
        # Behind an interruption it may have another number; any update with its digest is the same to a client.
        return next((one for batch in segment.batches if (one := batch.with_digest(digest)) is not None), None)

    def batches_from(self, number: int) -> Iterator[RecentBatch]:
        """Yield the batches from a number on, in order; nothing may be noted meanwhile."""
        for at in range(max(self._gone, self._at(number)), len(self._batches)):
            yield self._batches[at]

    @property
    def next_number(self) -> int:
        """Number of the next batch."""
        return self._number + 1

    def begun_ns(self) -> int | None:
        """Return since when everything is held, Unix time in nanoseconds; None while nothing is."""
        return self._batches[self._gone].dispatched_ns if self._gone < len(self._batches) else None

    # Its own.

    def _at(self, number: int) -> int:
        """Return the place of a batch in the list."""
        return len(self._batches) - (self.next_number - number)

    def _start(self, stream: _Stream, segment: _Segment, count: int) -> Start | None:
        if count < segment.count:
            batch = _batch_at(segment, count)
            return None if batch is None else Start(batch.number, count - batch.first)
        behind = [] if segment is stream.segment else stream.segments[stream.segments.index(segment) + 1 :]
        for later in behind:
            if later.count:
                first = _batch_at(later, 0)
                return None if first is None else Start(first.number, 0)
        return Start(self.next_number, 0)

    def _grow(self, size: int) -> None:
        self.bytes += size
        self.grown += size
        while self.bytes > self.bytes_max:
            if self._gone < len(self._batches):
                self._drop_oldest()
            else:
                self._forget_oldest_segment(max(self._streams.values(), key=lambda one: len(one.segments)))

    def _batch_of(self, update: Update) -> tuple[RecentBatch | None, int]:
        received_ns = update[RECEIVED_NS]
        first = bisect_left(self._times, received_ns, lo=self._gone)
        for at in range(first, min(first + _CANDIDATES_MAX, len(self._batches))):
            batch = self._batches[at]
            if batch.begun_ns > received_ns and batch.number > self._set_back_number:
                break  # it would have come before, or is not held any more
            index = batch.index_of(update)
            if index is not None:
                return batch, index
        return None, 0

    def _drop_oldest(self) -> None:
        batch = self._batches[self._gone]
        self._gone += 1
        self.bytes -= batch.size
        del batch.segment.batches[0]
        oldest = self._batches[self._gone].number if self._gone < len(self._batches) else self.next_number
        for stream in self._streams.values():  # a link without traffic has heartbeats too
            while len(stream.segments) > 1 and stream.segments[1].first_number <= oldest:
                self._forget_oldest_segment(stream)
        if self._gone >= _COMPACT and self._gone * 2 >= len(self._batches):
            del self._batches[: self._gone], self._times[: self._gone]
            self._gone = 0

    def _forget_oldest_segment(self, stream: _Stream) -> None:
        segment = stream.segments.pop(0)
        assert segment.key is not None
        del stream.by_key[segment.key]
        self.bytes -= _SEGMENT_BYTES


def message_digest(update: Update) -> int:
    """Return the digest of all that a client gets of an update: of its topic, payload and properties."""
    properties = update[PROPERTIES]
    return xxh3_64_intdigest(properties, update[DIGEST]) if properties else update[DIGEST]


def _place(segment: _Segment, count: int) -> Place | None:
    """Return the place after `count` updates of a segment; None when it has no name here."""
    if segment.key is None or count > min(segment.count, segment.exact_until):
        return None
    if not count:
        return Place(*segment.key, 0, 0)
    batch = _batch_at(segment, count - 1)
    return None if batch is None else Place(*segment.key, count, batch.updates[count - 1 - batch.first][DIGEST])


def _batch_at(segment: _Segment, index: int) -> RecentBatch | None:
    """Return the batch with the update of a segment that has so many in front of it; None when it is not held."""
    at = bisect_left(segment.batches, index + 1, key=_first) - 1
    if at < 0:
        return None
    batch = segment.batches[at]
    return batch if index < batch.first + len(batch.updates) else None


def _process(marker: str) -> tuple[int, int]:
    """Return the process that a heartbeat is from, and its number there; those of one member ascend."""
    process, _, number = marker.partition(" ")
    return _count(process), _count(number)


def _count(text: str) -> int:
    """Return the number of a text that another member sent; 0 for none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX else 0


def _number(batch: RecentBatch) -> int:
    return batch.number


def _first(batch: RecentBatch) -> int:
    return batch.first
