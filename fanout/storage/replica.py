"""Replica whose values are in a file only (`disc_only`).

Memory holds the values of one batch's topics at a time. They are read before the batch, the ordinary `Replica` applies
the batch to them, and the changes are written after it. So `Replica` alone defines what a batch does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from typing import Final

from fanout.replica.refused import LIMIT_KEYS, LimitKeys
from fanout.replica.store import Replica
from fanout.replica.topic_tree import TopicSearch, TopicTree
from fanout.replica.update import EXPIRES_NS, TOPIC, ChangeKind, Changes, Phase, Update
from fanout.selection import Selector
from fanout.storage.table import RetainedTable

__all__ = ["DiscReplica"]

_SEEN: Final = 1
_CHANGED: Final = 2
_LIVE_FIRST: Final = 4
_PIECE: Final = 2_000
"""Default number of topics in one piece of work."""
_NEWEST: Final = 2_000
"""Number of topics of a pass, the newest, that are remembered."""


class _NoIndex(TopicTree):
    """Index of the topics in memory; it stays empty, because searches use the file."""

    __slots__ = ()

    def add_new(self, topics: Sequence[bytes]) -> None:
        """Do nothing."""

    def discard(self, topic: bytes) -> None:
        """Do nothing."""


class DiscReplica(Replica):
    """A replica over the rows of a store that only it changes.

    Attributes:
        values: Values of the topics of the batch under way; empty between batches.
    """

    def __init__(
        self,
        table: RetainedTable,
        *,
        selectors: Sequence[Selector] = (),
        topics_max: int | None = None,
        bytes_max: int | None = None,
        payload_max: int | None = None,
        limit_keys: LimitKeys = LIMIT_KEYS,
    ) -> None:
        """Make an empty replica; `load` counts the values of the store.

        Args:
            table: The rows of its store.
            selectors: As for `Replica`, like the following.
            topics_max: See there.
            bytes_max: See there.
            payload_max: See there.
            limit_keys: See there.
        """
        super().__init__(
            selectors=selectors,
            topics_max=topics_max,
            bytes_max=bytes_max,
            payload_max=payload_max,
            limit_keys=limit_keys,
        )
        self._table = table
        self._tree = _NoIndex()
        self._before: dict[bytes, Update | None] = {}
        """Value in the file of each topic in memory; None for no value."""
        self._nested = 0
        self._view = _View(self)
        self._pass = 0
        """Number of the running pass."""
        self._marks_before: dict[bytes, int] = {}
        self._seen_elsewhere = 0
        """Number of topics of the running pass that are not in memory."""
        self._changed_total = 0
        """Number of topics that the running pass found changed."""
        self._newest_seen: deque[bytes] = deque(maxlen=_NEWEST)

    # --- from the file ---

    def load(self, is_good: Callable[[Update], bool]) -> int:
        """Count the values of the store, and remove those that are not good or over a limit; return their number.

        Args:
            is_good: Tells whether a value is good, or raises.
        """
        dropped = 0
        for values in self._table.pieces():
            good: list[Update] = []
            wrong: list[Update] = []
            for value in values:
                (good if is_good(value) else wrong).append(value)
            changes = super().apply(good, phase=Phase.SNAPSHOT)
            wrong += [one for one, kind in zip(good, changes.kinds, strict=True) if kind == ChangeKind.REFUSED]
            if wrong:
                self._table.write({value[TOPIC]: None for value in wrong})
                dropped += len(wrong)
            expiries = [(value[EXPIRES_NS], value[TOPIC]) for value in self.values.values() if value[EXPIRES_NS]]
            if expiries:
                self._change_expiries([], expiries)
            self._elsewhere += len(self.values)
            self.values.clear()
            self.selector_of.clear()
        self._forget_refused()
        return dropped

    def forget(self) -> None:
        """Reset all counts: the file was replaced by an empty one."""
        self.values.clear()
        self.selector_of.clear()
        self.payload_bytes = self.topic_bytes = self._elsewhere = self._digest = 0
        self._forget_refused()
        self.unconfirmed.clear()
        self._counts = [0] * len(self._counts)
        self._digests = [0] * len(self._digests)
        self.next_expiry_ns = None

    def _forget_refused(self) -> None:
        self.refused_total = 0
        self.refused_by = dict.fromkeys(self.refused_by, 0)
        self.refused.clear()

    # --- queries ---

    @property
    def topics(self) -> TopicSearch:
        """Set of all topics in the file; see `Replica.topics`."""
        return self._table

    @property
    def view(self) -> Mapping[bytes, Update]:
        """Read-only mapping of local topics to updates; each look-up is a statement."""
        return self._view

    def pieces(self, piece: int = _PIECE) -> Iterator[list[Update]]:
        """Yield every value, in pieces of at most this size; the replica may change meanwhile."""
        for values in self._table.pieces():
            rest = iter(values)
            while part := list(islice(rest, piece)):
                yield part

    def match(self, topic_filter: bytes) -> Iterator[list[Update]]:
        """Yield the retained values whose topics a Topic Filter matches, as `Replica.match` does."""
        return self._table.match_values(topic_filter) if len(self) else iter(())

    def match_topics(self, topic_filter: bytes) -> Iterator[list[bytes]]:
        """Yield the topics that a Topic Filter matches, as `Replica.match_topics` does."""
        return self._table.match(topic_filter) if len(self) else iter(())

    def get_many(self, topics: Sequence[bytes]) -> list[Update]:
        """Return the retained values of topics with one statement; see `Replica.get_many`."""
        return self._table.select(topics) if len(self) else []

    # --- batches ---

    def apply(self, updates: list[Update], *, phase: Phase, of_pass: bool = True) -> Changes:
        """Apply one batch; see `Replica.apply`."""
        self._look_at(update[0] for update in updates if update[3])
        changes = super().apply(updates, phase=phase, of_pass=of_pass)
        self._write()
        return changes

    def correct(self, values: Iterable[Update]) -> None:
        """See `Replica.correct`."""
        corrected = list(values)
        self._look_at(value[0] for value in corrected)
        super().correct(corrected)
        self._write()

    def overtakes(self, update: Update) -> bool:
        """See `Replica.overtakes`."""
        self._look_at((update[0],))
        overtakes = super().overtakes(update)
        self._write()
        return overtakes

    def _remove(
        self, topics: Iterable[bytes], *, now_ns: int, indexed: bool = True, unseen_only: bool = False
    ) -> Changes:
        removals: list[Update] = []
        rest = iter(topics)
        while piece := list(islice(rest, _PIECE)):
            self._look_at(piece)
            removals += super()._remove(piece, now_ns=now_ns, indexed=indexed, unseen_only=unseen_only).updates
            self._write()
        return Changes(removals, bytearray([ChangeKind.REMOVED]) * len(removals), removals, Phase.AUDIT)

    def tear_down(self, piece: int = _PIECE, *, now_ns: int) -> Iterator[Changes]:
        """Remove everything, a piece with each step; see `Replica.tear_down`."""
        self.drop_pass()
        self.unconfirmed.clear()
        while topics := self._table.topics(b"", None, piece):
            yield self._remove(topics, now_ns=now_ns)

    def _look_at(self, topics: Iterable[bytes]) -> None:
        """Read the values of some topics into memory."""
        before = self._before
        new = [topic for topic in dict.fromkeys(topics) if topic not in before]
        if not new:
            return
        before.update(dict.fromkeys(new))
        if len(self):
            found = {update[0]: update for update in self._table.select(new)}
            before.update(found)
            self.values.update(found)
            self._elsewhere -= len(found)
            if len(self.selectors) > 1:
                self.selector_of.update((topic, self._find_index(topic)) for topic in found)
        if self._seen is not None:
            for topic, flags in self._table.marks(self._pass, new):
                self._marks_before[topic] = flags
                if flags & _SEEN:
                    self._seen.add(topic)
                    self._seen_elsewhere -= 1
                if flags & _CHANGED:
                    self._changed.add(topic)
                if flags & _LIVE_FIRST:
                    self._live_first.add(topic)

    def _write(self) -> None:
        """Write the values that differ from the file, and clear memory."""
        values, before = self.values, self._before
        changed: dict[bytes, Update | None] = {}
        expiries_gone: list[tuple[int, bytes]] = []
        expiries_new: list[tuple[int, bytes]] = []
        for topic, old in before.items():
            new = values.get(topic)
            if new is old:
                continue
            changed[topic] = new
            old_ns = 0 if old is None else old[6]
            new_ns = 0 if new is None else new[6]
            if old_ns != new_ns:
                if old_ns:
                    expiries_gone.append((old_ns, topic))
                if new_ns:
                    expiries_new.append((new_ns, topic))
        if changed:
            self._table.write(changed)
            if expiries_gone or expiries_new:
                self._change_expiries(expiries_gone, expiries_new)
        if self._seen is not None:
            self._write_marks(self._seen)
        if self._nested:
            before.update(changed)
            return
        self._elsewhere += len(values)
        values.clear()
        self.selector_of.clear()
        before.clear()
        if self._seen is not None:
            self._seen_elsewhere += len(self._seen)
            self._seen.clear()
            self._changed.clear()
            self._live_first.clear()
            self._marks_before.clear()

    # --- expiry ---

    def remove_expired(self, now_ns: int, piece: int = _PIECE) -> Changes:
        """Remove values whose Message Expiry Interval has passed; see `Replica.remove_expired`."""
        due = self.next_expiry_ns is not None and self.next_expiry_ns <= now_ns
        return self._remove(self._table.expired(now_ns, piece) if due else (), now_ns=now_ns)

    def _change_expiry(self, topic: bytes, before_ns: int, expires_ns: int) -> None:
        """Do nothing: `_write` finds what expires."""

    def _change_expiries(self, gone: list[tuple[int, bytes]], new: list[tuple[int, bytes]]) -> None:
        self._table.change_expiries(gone, new)
        self.next_expiry_ns = self._table.next_expiry()

    # --- passes ---

    def begin_pass(self, selector_index: int = 0, *, seen: Iterable[bytes] = (), copies_newer: bool = False) -> None:
        """Begin a pass over one selector; see `Replica.begin_pass`."""
        topics = list(seen)  # before the marks of the last pass are removed
        self.drop_pass()
        super().begin_pass(selector_index, seen=() if seen == () else iter(()), copies_newer=copies_newer)
        self._pass = self._table.begin_pass()
        for start in range(0, len(topics), _PIECE):
            self._table.mark(self._pass, _SEEN, topics[start : start + _PIECE])
        self._seen_elsewhere = len(topics)
        self._newest_seen.extend(topics)

    def split_pass(self, updates: Sequence[Update]) -> Iterator[tuple[Phase, list[Update]]]:
        """Split updates into copies of the running pass and live ones; see `Replica.split_pass`."""
        self._look_at(update[0] for update in updates if update[3])
        self._nested += 1
        try:
            yield from super().split_pass(updates)
        finally:
            self._nested -= 1
            self._write()

    def drop_pass(self) -> None:
        """End the running pass, if any, and discard its findings."""
        if self._seen is not None:
            self._table.end_pass(self._pass)
        self._marks_before.clear()
        self._newest_seen.clear()
        self._seen_elsewhere = self._changed_total = 0
        super().drop_pass()

    @property
    def seen_count(self) -> int:
        """Number of topics that the running pass has brought."""
        return 0 if self._seen is None else len(self._seen) + self._seen_elsewhere

    @property
    def seen_topics(self) -> Set[bytes]:
        """All local topics that the running pass has brought, in memory; for two-pass only."""
        return frozenset() if self._seen is None else frozenset(self._table.marked(self._pass, _SEEN))

    def newest_seen(self, count: int) -> list[bytes]:
        """Return local topics that the running pass has brought, the newest first."""
        newest = list(dict.fromkeys(reversed(self._newest_seen)))[:count]
        seen = {topic for topic, flags in self._table.marks(self._pass, newest) if flags & _SEEN}
        return [topic for topic in newest if topic in seen]  # some may have been removed since

    @property
    def changed_count(self) -> int:
        """See `Replica.changed_count`."""
        return self._changed_total

    def changed(self) -> Iterator[list[Update]]:
        """See `Replica.changed`."""
        pieces = self._table.marked_pieces(self._pass, _CHANGED)
        while self._changed_total and (topics := next(pieces, None)) is not None:
            yield self._values_of(topics)

    def _unseen_below(self, root: bytes) -> Iterator[list[bytes]]:
        return self._table.unmarked(self._pass, root)

    def _values_of(self, topics: list[bytes]) -> list[Update]:
        return self._table.select(topics) if topics else []

    def _write_marks(self, seen: set[bytes]) -> None:
        marked: dict[int, list[bytes]] = {}
        before, changed, live_first = self._marks_before, self._changed, self._live_first
        for topic in self._before:
            flags = (topic in seen) * _SEEN | (topic in changed) * _CHANGED | (topic in live_first) * _LIVE_FIRST
            old = before.get(topic, 0)
            if flags != old:
                marked.setdefault(flags, []).append(topic)
                before[topic] = flags
                self._changed_total += bool(flags & _CHANGED) - bool(old & _CHANGED)
                if flags & _SEEN and not old & _SEEN:
                    self._newest_seen.append(topic)
        for flags, topics in marked.items():
            self._table.mark(self._pass, flags, topics)


class _View(Mapping[bytes, Update]):
    """Every value of a replica, looked up one by one."""

    def __init__(self, replica: DiscReplica) -> None:
        self._replica = replica

    def __getitem__(self, topic: bytes) -> Update:
        for value in self._replica.get_many((topic,)):
            return value
        raise KeyError(topic)

    def __len__(self) -> int:
        return len(self._replica)

    def __iter__(self) -> Iterator[bytes]:
        return (value[0] for piece in self._replica.pieces() for value in piece)
