"""Columns of the replication log: encodes the updates and events of a node as Arrow record batches.

Owns the content of a row: the topic as at the primary, the selector, the flags that follow from the stamp. All of it
runs in the writer's thread. Work per row is one call in C per column; the interpreter holds its lock for about 0.3 us
per row (0.5 us with stamps), and the code is written around that.
"""

from __future__ import annotations

import contextlib
import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from fanout.replica.update import RECEIVED_NS, Phase, Stamp, Update
from fanout.replog.files.schema import EVENTS, FLAG_DUPLICATE, FLAG_OVERTAKEN, UPDATES
from fanout.replog.files.sequence_flags import SequenceFlags

__all__ = ["Column", "EventRow", "LogSource", "LoggedSelector", "RowEncoder", "StampTotals", "UpdateRows", "signed"]

_TOPICS_CACHED_MAX = 262_144
"""Topics whose selector is cached per source; a full cache is cleared."""

_topic, _payload, _qos, _retain, _digest, _stamp = map(itemgetter, (0, 1, 2, 3, 7, 8))
_primary, _epoch, _sequence, _origin = map(itemgetter, range(4))

Column: TypeAlias = "pa.Array[Any]"  # Any: the stubs type the elements, which is of no use for whole columns

_INT64 = pa.int64()
_NAME = UPDATES.field("node").type
_TIMESTAMP = UPDATES.field("applied").type


class LoggedSelector(Protocol):
    """The part of a selector that the log needs (`fanout.selection.Selector` fits)."""

    @property
    def filter(self) -> str:
        """The Topic Filter at the primary."""

    @property
    def prefix(self) -> str:
        """Prefix of local topics."""

    def covers_local(self, topic: bytes) -> bool:
        """Tell whether this selector replicates a local topic."""


@dataclass(slots=True)
class StampTotals:
    """Counts over all sources of a log, also those that are not used any more."""

    duplicates: int = 0
    """Updates that got FLAG_DUPLICATE."""
    overtaken: int = 0
    """Updates that got FLAG_OVERTAKEN."""


class LogSource:
    """Source of updates: a link with its selectors, or the node itself.

    `LogWriter.source` makes one for each link; every `LogWriter.append` takes it. Its caches belong to the writer's
    thread.
    """

    def __init__(
        self,
        link: str,
        selectors: Sequence[LoggedSelector],
        *,
        totals: StampTotals | None = None,
        former: LogSource | None = None,
    ) -> None:
        """Make one.

        Args:
            link: The link's name; empty for the node itself.
            selectors: The link's selectors.
            totals: Counts of the log; None for own ones.
            former: Source of the same link with other selectors, in place of which it is used; None for none.
        """
        self.link = link
        self.totals = StampTotals() if totals is None else totals
        self.selectors = tuple(selectors)
        self.names = (*(selector.filter for selector in self.selectors), "")
        """Names of the column `selector`; the last is for topics of no selector."""
        self._prefix_bytes = [len(selector.prefix.encode()) for selector in self.selectors] + [0]
        self._has_prefix = any(self._prefix_bytes)
        self._selector_of: dict[bytes, int] = {}  # by local topic
        self._flags: SequenceFlags = SequenceFlags() if former is None else former._flags
        self._flags_epoch: int = -1 if former is None else former._flags_epoch

    def selector_indices(self, topics: list[bytes]) -> list[int] | None:
        """Return the index in `names` for each local topic, or None when all have index 0."""
        if len(self.selectors) < 2:
            return None
        known = self._selector_of
        indices: list[int | None] = list(map(known.get, topics))
        if None in indices:
            if len(known) > _TOPICS_CACHED_MAX:
                known.clear()
            for topic in topics:
                if topic not in known:
                    known[topic] = self._find(topic)
            return [known[topic] for topic in topics]
        return indices  # type: ignore[return-value]  # no None in it, as was just asked

    def _find(self, topic: bytes) -> int:
        for index, selector in enumerate(self.selectors):
            if selector.covers_local(topic):
                return index
        return len(self.selectors)

    def at_primary(self, topics: list[bytes], indices: list[int] | None) -> list[bytes] | None:
        """Return the topics without the prefixes of their selectors, or None when there are no prefixes."""
        if not self._has_prefix:
            return None
        lengths = self._prefix_bytes
        if indices is None:
            length = lengths[0]
            return [topic[length:] for topic in topics]
        return [topic[lengths[index] :] for topic, index in zip(topics, indices, strict=True)]

    def sequence_flags(
        self,
        topics: Sequence[bytes],
        primaries: Sequence[str],
        epochs: Sequence[int],
        sequences: Sequence[int],
        *,
        link_epoch: int,
        live: bool,
    ) -> list[int] | None:
        """Return the flags that follow from stamps, or None when all are 0."""
        if link_epoch != self._flags_epoch:
            self._flags, self._flags_epoch = SequenceFlags(), link_epoch
        flags = self._flags.observe(topics, primaries, epochs, sequences, live=live)
        if flags is not None:
            self.totals.duplicates += sum(1 for flag in flags if flag & FLAG_DUPLICATE)
            self.totals.overtaken += sum(1 for flag in flags if flag & FLAG_OVERTAKEN)
        return flags


class UpdateRows(NamedTuple):
    """One appended batch: references to its updates, and the values that all of them share."""

    source: LogSource
    link_epoch: int
    phase: Phase
    updates: list[Update]
    kinds: bytes | bytearray
    flags: Sequence[int] | None
    first_log_pos: int


class EventRow(NamedTuple):
    """One row of the table `events`, without the columns that are constant in a log."""

    link: str
    link_epoch: int
    event: str
    at_ns: int
    selector: str = ""
    state: str = ""
    evidence: str = ""
    topics: int = 0
    digest: int = 0
    lag_us: int | None = None
    detail: str = ""
    log_pos: int = 0
    """Assigned when the event enters the queue."""


@dataclass(slots=True)
class _Group:
    """Rows of one frame with the same source, link epoch and phase."""

    updates: list[Update] = field(default_factory=list)
    kinds: bytearray = field(default_factory=bytearray)
    # By appended batch: first log_pos, rows, time of the read that brought all of them (None: several).
    runs: list[tuple[int, int, int | None]] = field(default_factory=list)
    flags: list[tuple[int, Sequence[int]]] = field(default_factory=list)  # (row of the group, flags from there on)


class RowEncoder:
    """Makes record batches for one node; constant columns are cached and sliced."""

    def __init__(self, *, node: str, role: str, node_epoch: int) -> None:
        self._node = node
        self._role = role
        self._node_epoch = node_epoch
        self._constants: dict[tuple[pa.DataType, object], Column] = {}

    def updates(self, rows: Iterable[UpdateRows]) -> list[pa.RecordBatch]:
        """Return record batches of `schema.UPDATES`, one for each source, link epoch and phase.

        Stamped updates of two phases that alternate give one batch per change of phase: a copy tells how new a topic's
        value is, so it may make later updates overtaken, but not earlier ones.
        """
        groups: dict[tuple[LogSource, int, Phase, int], _Group] = {}
        turns: dict[tuple[LogSource, int], tuple[Phase, int]] = {}
        for source, link_epoch, phase, updates, kinds, flags, first_log_pos in rows:
            phase_before, turn = turns.setdefault((source, link_epoch), (phase, 0))
            # Expired values have no stamp and change no phase.
            if phase is not phase_before and any(map(_stamp, updates)):
                turn += 1
                turns[source, link_epoch] = phase, turn
            group = groups.setdefault((source, link_epoch, phase, turn), _Group())
            if flags is not None:
                group.flags.append((len(group.updates), flags))
            group.updates += updates
            group.kinds += kinds
            # Times never go back inside a batch, so equal ends mean one time: the usual case.
            received_ns = updates[0][RECEIVED_NS]
            group.runs.append(
                (first_log_pos, len(updates), received_ns if updates[-1][RECEIVED_NS] == received_ns else None)
            )
        return [
            self._batch(source, link_epoch, phase, group) for (source, link_epoch, phase, _), group in groups.items()
        ]

    def events(self, rows: Sequence[EventRow]) -> pa.RecordBatch:
        """Return one record batch of `schema.EVENTS`."""
        count = len(rows)
        by_name = {name: [getattr(row, name) for row in rows] for name in EventRow._fields}
        by_name["digest"] = [signed(digest) for digest in by_name["digest"]]
        by_name["at"] = [at_ns // 1000 for at_ns in by_name["at_ns"]]
        constants: dict[str, str | int] = {
            "node": self._node,
            "role": self._role,
            "node_epoch": self._node_epoch,
        }
        columns = [
            self._constant(column.type, constants[column.name], count)
            if column.name in constants
            else _encoded_names(by_name[column.name])
            if column.type == _NAME
            else pa.array(by_name[column.name], column.type)
            for column in EVENTS
        ]
        return pa.RecordBatch.from_arrays(columns, schema=EVENTS)

    def _batch(self, source: LogSource, link_epoch: int, phase: Phase, group: _Group) -> pa.RecordBatch:
        """Return one group of rows as columns."""
        rows = group.updates
        count = len(rows)
        topics = list(map(_topic, rows))
        indices = source.selector_indices(topics)
        stripped = source.at_primary(topics, indices)
        if stripped is not None:
            topics = stripped
        stamped, flags = self._stamps(source, link_epoch, phase, topics, list(map(_stamp, rows)))
        for start, given in group.flags:
            flags = flags or [0] * count
            for row, flag in enumerate(given, start):
                flags[row] |= flag
        columns = {
            "node": self._constant(_NAME, self._node, count),
            "role": self._constant(_NAME, self._role, count),
            "link": self._constant(_NAME, source.link, count),
            "selector": self._constant(_NAME, source.names[0], count)
            if indices is None
            else _names(struct.pack(f"{count}i", *indices), source.names, count),
            "link_epoch": self._constant(_INT64, link_epoch, count),
            "log_pos": _positions(group),
            "node_epoch": self._constant(_INT64, self._node_epoch, count),
            # The topics were validated as UTF-8 when they arrived; a view does not check them again.
            "topic": pa.array(topics, pa.binary()).view(pa.string()),
            # Packed as unsigned and read as signed: the same bits.
            "digest": _fixed(_INT64, struct.pack(f"{count}Q", *map(_digest, rows)), count),
            "payload_bytes": _fixed(pa.int32(), struct.pack(f"{count}i", *map(len, map(_payload, rows))), count),
            "qos": _fixed(pa.int8(), bytes(map(_qos, rows)), count),
            "retain": pa.array(list(map(_retain, rows)), pa.bool_()),
            "change": _fixed(pa.int8(), group.kinds, count),
            "phase": self._constant(pa.int8(), int(phase), count),
            "flags": self._constant(pa.int32(), 0, count)
            if flags is None
            else _fixed(pa.int32(), struct.pack(f"{count}i", *flags), count),
            "applied": _times(group),
            **stamped,
        }
        return pa.RecordBatch.from_arrays([columns[name] for name in UPDATES.names], schema=UPDATES)

    def _stamps(
        self,
        source: LogSource,
        link_epoch: int,
        phase: Phase,
        topics: list[bytes],
        stamps: list[Stamp | None],
    ) -> tuple[dict[str, Column], list[int] | None]:
        """Return the four columns of the stamps, and the flags that follow (None when all are 0)."""
        count = len(stamps)
        missing = stamps.count(None)
        live = phase is Phase.LIVE
        if missing == count:
            names = ("stamp_primary", "stamp_epoch", "sequence", "origin")
            return {name: self._constant(UPDATES.field(name).type, None, count) for name in names}, None
        if not missing:
            # A peer may send numbers that no column holds; such a stamp is ignored.
            with contextlib.suppress(struct.error, OverflowError):
                return self._all_stamps(source, link_epoch, topics, stamps, live=live)  # type: ignore[arg-type]
        return self._some_stamps(source, link_epoch, topics, stamps, live=live)

    def _all_stamps(
        self, source: LogSource, link_epoch: int, topics: list[bytes], stamps: list[Stamp], *, live: bool
    ) -> tuple[dict[str, Column], list[int] | None]:
        """Do the work of `_stamps` column by column, when every row has a stamp.

        Raises:
            struct.error, OverflowError: A number is too large; no cache has changed.
        """
        count = len(stamps)
        primaries: list[str] = list(map(_primary, stamps))
        epochs: list[int] = list(map(_epoch, stamps))
        sequences: list[int] = list(map(_sequence, stamps))
        one_primary = primaries.count(primaries[0]) == count
        one_epoch = epochs.count(epochs[0]) == count
        columns = {
            "stamp_primary": self._constant(_NAME, primaries[0], count)
            if one_primary
            else pa.array(primaries, pa.string()).dictionary_encode(),
            "stamp_epoch": self._constant(_INT64, epochs[0], count)
            if one_epoch
            else _fixed(_INT64, struct.pack(f"{count}q", *epochs), count),
            "sequence": _fixed(_INT64, struct.pack(f"{count}q", *sequences), count),
            "origin": _fixed(_TIMESTAMP, struct.pack(f"{count}q", *map(_origin, stamps)), count),
        }
        if one_primary and primaries[0] == self._node:  # this node's own stamps cannot come twice or late
            return columns, None
        return columns, source.sequence_flags(topics, primaries, epochs, sequences, link_epoch=link_epoch, live=live)

    @staticmethod
    def _some_stamps(
        source: LogSource, link_epoch: int, topics: list[bytes], stamps: list[Stamp | None], *, live: bool
    ) -> tuple[dict[str, Column], list[int] | None]:
        """Do the work of `_stamps` row by row, when only some rows have a stamp; rare."""
        stamps = [stamp if stamp and _fits(stamp) else None for stamp in stamps]
        parts = [stamp or (None, None, None, None) for stamp in stamps]
        columns = {
            "stamp_primary": pa.array(map(_primary, parts), pa.string()).dictionary_encode(),
            "stamp_epoch": pa.array(map(_epoch, parts), _INT64),
            "sequence": pa.array(map(_sequence, parts), _INT64),
            "origin": pa.array(map(_origin, parts), _INT64).view(_TIMESTAMP),
        }
        present = [(row, stamp) for row, stamp in enumerate(stamps) if stamp is not None]
        if not present:
            return columns, None
        found = source.sequence_flags(
            [topics[row] for row, _ in present],
            [stamp.primary for _, stamp in present],
            [stamp.epoch for _, stamp in present],
            [stamp.sequence for _, stamp in present],
            link_epoch=link_epoch,
            live=live,
        )
        if found is None:
            return columns, None
        flags = [0] * len(stamps)
        for (row, _), flag in zip(present, found, strict=True):
            flags[row] = flag
        return columns, flags

    def _constant(self, type_: pa.DataType, value: str | int | None, count: int) -> Column:
        """Return a column of one value, sliced from a cached one."""
        kept = self._constants.get((type_, value))
        if kept is None or len(kept) < count:
            length = max(count, 1024)
            if value is None:
                kept = pa.array([None] * length, type_)
            elif isinstance(value, str):
                kept = _names(bytes(4 * length), (value,), length)
            else:
                kept = _fixed(type_, value.to_bytes(type_.bit_width // 8, "little", signed=True) * length, length)
            if len(self._constants) > 256:  # link epochs and stamping epochs come and go
                self._constants.clear()
            self._constants[type_, value] = kept
        return kept.slice(0, count)


def _fits(stamp: Stamp) -> bool:
    """Tell whether the columns can hold a stamp."""
    return all(-(2**63) <= number < 2**63 for number in stamp[1:])


def signed(digest: int) -> int:
    """Return an unsigned 64-bit value as the signed one with the same bits."""
    return digest - (1 << 64) if digest >= 1 << 63 else digest


def _fixed(type_: pa.DataType, data: bytes | bytearray | array[int], count: int) -> Column:
    """Return a column of fixed-width values without nulls over their bytes."""
    return pa.Array.from_buffers(type_, count, [None, pa.py_buffer(data)])


def _names(indices: bytes, names: Sequence[str], count: int) -> Column:
    """Return a dictionary column from packed 32-bit indices into `names`."""
    return pa.DictionaryArray.from_arrays(_fixed(pa.int32(), indices, count), pa.array(names, pa.string()))


def _encoded_names(values: Sequence[str]) -> Column:
    """Return a dictionary column of a few strings, without an import of `pyarrow.compute`."""
    indices: dict[str, int] = {}
    packed = array("i", [indices.setdefault(value, len(indices)) for value in values])
    return _names(packed.tobytes(), tuple(indices), len(values))


def _positions(group: _Group) -> Column:
    """Return the column of log positions, which are consecutive inside a run."""
    # `pyarrow.compute` would take a tenth of the time, 30 ns less a row, but its import costs each start 0.1 s.
    positions = array("q")
    for first, rows, _ in group.runs:
        positions.extend(range(first, first + rows))
    return _fixed(_INT64, positions, len(positions))


def _times(group: _Group) -> Column:
    """Return the column of the times of the reads that brought the updates."""
    times = array("q")
    row = 0
    for _, rows, received_ns in group.runs:
        if received_ns is None:
            times.extend(update[5] // 1000 for update in group.updates[row : row + rows])
        else:
            times.extend(array("q", (received_ns // 1000,)) * rows)
        row += rows
    return _fixed(_TIMESTAMP, times, row)
