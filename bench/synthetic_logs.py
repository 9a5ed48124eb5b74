"""Synthetic replication logs of a primary and three secondaries, with faults that are known row by row.

Owns the scenario and how it is written: through the log's own encoding of events, frames, segments, recovery and
sealing, with whole columns instead of an object for each row. The expected results are in `bench.synthetic_truth`,
which knows the arrays below and not the files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fanout.replica.update import ChangeKind, Phase
from fanout.replog.files.columns import Column, EventRow, RowEncoder
from fanout.replog.files.node_lock import LastRun
from fanout.replog.files.schema import FLAG_CONFLATED, FLAG_DUP, FLAG_DUPLICATE, FLAG_OVERTAKEN, UPDATES
from fanout.replog.files.sealing import open_directory, seal
from fanout.replog.files.segments import SegmentFile, SegmentIdentity, encode_rows
from fanout.replog.write.recovery import crash_loss, left_over_segments

__all__ = ["FIRST_SEQUENCE", "HUB", "LINK", "SECOND", "T0", "Log", "Published", "Rows", "make_logs", "publish", "write"]

T0 = 1_770_000_000_000_000
"""When the primary started: 2026-02-02 02:40:00 UTC, in microseconds; its epoch."""
SECOND = 1_000_000
FIRST_SEQUENCE = 2**53 + 61
"""A sequence beyond exact floating point, and not at a boundary of 64."""
HUB, LINK = "hub", "up"
FRAME_ROWS, SEGMENT_ROWS = 65_536, 1_048_576
_TOPICS_MAX, _GROUPS = 50_000, 15

Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Published:
    """Updates of the primary: half of them on one topic. Arrays by position; the sequence is that plus a constant."""

    topic: npt.NDArray[np.int32]
    """Index into `names`."""
    origin: Ints
    digest: Ints
    removal: npt.NDArray[np.bool_]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.topic)

    def selected(self, filters: Sequence[str]) -> npt.NDArray[np.int32]:
        """Return, for each topic, which of some filters takes it; -1 for none. Understands those of this module."""
        index = np.full(len(self.names), -1, np.int32)
        for number, topic_filter in enumerate(filters):
            for topic, name in enumerate(self.names):
                hit = topic_filter in {name, "plant/#"} or (topic_filter == "plant/+/+" and topic > 0)
                if hit and index[topic] < 0:
                    index[topic] = number
        return index

    def retained(self, end: int) -> Ints:
        """Return the positions of the values that are retained before position `end`."""
        last = np.full(len(self.names), -1, np.int64)
        last[self.topic[:end]] = np.arange(end)
        held = last[last >= 0]
        return np.sort(held[~self.removal[held]])


@dataclass(slots=True)
class Rows:
    """Rows of one process that follow each other in a log; columns by row."""

    node_epoch: int
    link_epoch: int
    phase: Phase
    at: Ints
    """Position of the update among what was published."""
    flags: npt.NDArray[np.int32]
    change: npt.NDArray[np.int8]
    digest: Ints
    applied: Ints
    first_pos: int
    torn: bool
    """True if the frame that holds them is torn: the log does not have them."""


@dataclass(slots=True)
class Log:
    """The log of one node: rows and events in order, with positions as a node gives them."""

    node: str
    role: str
    offset: int
    """Its clock less the primary's."""
    filters: tuple[str, ...]
    excluded: tuple[str, ...] = ()
    node_epoch: int = 0
    link_epoch: int = 1
    pos: int = 0
    stopped_us: int | None = None
    primary: str = HUB
    """The fanout node whose stamps its rows carry; "" beside a foreign broker, which has none."""
    entries: list[Rows | tuple[int, EventRow]] = field(default_factory=list)
    """Rows, or a node epoch and an event."""

    @property
    def link(self) -> str:
        """The link that its rows name; a primary has none."""
        return "" if self.role == "primary" else LINK

    @property
    def rows(self) -> list[Rows]:
        """The rows that the log has, in order."""
        return [entry for entry in self.entries if isinstance(entry, Rows) and not entry.torn]

    @property
    def events(self) -> list[tuple[int, EventRow]]:
        """Node epochs and events, in order."""
        return [entry for entry in self.entries if isinstance(entry, tuple)]

    def begin(self, at_us: int) -> None:
        """Begin a process."""
        self.node_epoch, self.pos = at_us, 0
        selectors = [{"filter": one, "exclude": list(self.excluded), "qos": 0, "prefix": ""} for one in self.filters]
        links = [{"name": LINK, "primary": ["mqtt://hub:1883"], "selectors": selectors}] if self.link else []
        self.event("start", at_us, link="", detail=json.dumps({"format": 1, "version": "0", "links": links}))

    def event(self, event: str, at_us: int, **columns: Any) -> None:
        """Add an event of the link, unless the columns say otherwise."""
        self.pos += 1
        row = EventRow(self.link, self.link_epoch, event, at_us * 1000)
        self.entries.append((self.node_epoch, row._replace(log_pos=self.pos, **columns)))

    def connect(self, at_us: int) -> None:
        """Say that the link has reached the primary."""
        self.event("state", at_us, state="connecting")
        self.event("state", at_us + 1000, state="snapshot", detail=json.dumps({"primary_node": self.primary}))

    def complete(self, at_us: int) -> None:
        """Say that every selector is complete, and the link live."""
        for topic_filter in self.filters:
            self.event("complete", at_us, selector=topic_filter, evidence="marker")
        self.event("state", at_us, state="live")

    def add(
        self,
        published: Published,
        at: Ints,
        applied: Ints,
        *,
        phase: Phase = Phase.LIVE,
        flags: npt.NDArray[np.int32] | None = None,
        change: npt.NDArray[np.int8] | None = None,
        digest: Ints | None = None,
        torn: bool = False,
    ) -> None:
        """Add rows; other fields are those of an update that replaces or removes a value."""
        if change is None:
            stored = ChangeKind.REPLACED if phase is Phase.LIVE else ChangeKind.NEW
            change = np.where(published.removal[at], ChangeKind.REMOVED, stored).astype(np.int8)
        first, self.pos = self.pos + 1, self.pos + len(at)
        self.entries.append(
            Rows(
                node_epoch=self.node_epoch,
                link_epoch=self.link_epoch,
                phase=phase,
                at=at,
                flags=np.zeros(len(at), np.int32) if flags is None else flags,
                change=change,
                digest=published.digest[at] if digest is None else digest,
                applied=applied,
                first_pos=first,
                torn=torn,
            )
        )


def publish(updates: int, *, seed: int) -> Published:
    """Return so many updates, over at least a minute."""
    rng = np.random.default_rng(seed)
    topics = min(_TOPICS_MAX, max(100, updates // 20))
    topic = np.where(rng.random(updates) < 0.5, 0, rng.integers(1, topics, updates)).astype(np.int32)
    step_us = max(50, 60 * SECOND // updates)
    return Published(
        topic=topic,
        origin=T0 + SECOND + np.arange(updates, dtype=np.int64) // 20 * 20 * step_us,  # 20 to a read
        digest=rng.integers(-(2**63), 2**63 - 1, updates, dtype=np.int64),
        removal=rng.random(updates) < 0.05,
        names=("plant/hot", *(f"plant/{number % _GROUPS}/{number}" for number in range(1, topics))),
    )


def make_logs(published: Published, *, seed: int, stamped: bool = True) -> list[Log]:
    """Return the primary's log, a clean one, one with a bad network, and one with a crash and an outage.

    Without stamps they are of nodes beside a foreign broker, and a tap is in the primary's place.
    """
    rng = np.random.default_rng(seed + 1)
    logs = [make(published, rng, primary=HUB if stamped else "") for make in (_clean, _lossy, _broken)]
    return [_hub(published) if stamped else _clean(published, rng, primary="", node="tap", role="tap"), *logs]


def _hub(published: Published) -> Log:
    log = Log(HUB, "primary", 0, ())
    log.begin(T0)
    log.link_epoch = T0
    log.add(published, np.arange(len(published)), published.origin)
    log.event("stop", int(published.origin[-1]) + SECOND, link="")
    return log


def _delays(rng: np.random.Generator, count: int) -> Ints:
    """Return how long updates took: some hundred microseconds, one in a hundred up to seconds."""
    delays = 300 + rng.exponential(900, count).astype(np.int64)
    slow = rng.random(count) < 0.01
    return delays + np.where(slow, rng.integers(0, 2 * SECOND, count), 0)


def _live(log: Log, published: Published, at: Ints, applied: Ints, rng: np.random.Generator, **columns: Any) -> None:
    """Add live rows with heartbeats in between."""
    edges = np.linspace(0, len(at), 9).astype(int)
    for begin, end in pairwise(edges.tolist()):
        part = slice(begin, end)
        log.add(published, at[part], applied[part], **{name: column[part] for name, column in columns.items()})
        log.event("heartbeat", int(applied[part][-1]), lag_us=int(rng.integers(400, 9_000)))


def _clean(
    published: Published, rng: np.random.Generator, *, primary: str, node: str = "clean", role: str = "secondary"
) -> Log:
    log = Log(node, role, 0, ("plant/#",), primary=primary)
    log.begin(T0 + 1000)
    log.connect(T0 + 100_000)
    log.complete(T0 + 500_000)
    at = np.arange(len(published))
    _live(log, published, at, published.origin + _delays(rng, len(at)), rng)
    log.stopped_us = int(published.origin[-1]) + 3 * SECOND
    log.event("stop", log.stopped_us, link="")
    return log


def _lossy(published: Published, rng: np.random.Generator, *, primary: str) -> Log:
    """Late, clock 3 s ahead; loss, repetition, exchanged order, refusals, wrong values; its last frame is torn."""
    log = Log("lossy", "secondary", 3 * SECOND, ("plant/#",), excluded=("plant/3/#",), primary=primary)
    log.begin(T0 + log.offset + 1000)
    begin = len(published) // 20
    wanted = np.array([not name.startswith("plant/3/") for name in published.names])
    ready_us = int(published.origin[begin - 1]) + log.offset + 700
    log.connect(ready_us - 200_000)
    held = published.retained(begin)
    held = held[wanted[published.topic[held]]]
    log.add(published, held, np.full(len(held), ready_us - 100_000), phase=Phase.SNAPSHOT)
    log.complete(ready_us)
    at = np.arange(begin, len(published))
    at = at[wanted[published.topic[at]] & (rng.random(len(at)) >= 0.02)]
    # Neighbours of one topic change places: which is most likely on the hot one.
    left = np.arange(0, len(at) - 1, 2)
    left = left[(published.topic[at[left]] == published.topic[at[left + 1]]) & (rng.random(len(left)) < 0.02)]
    at[left], at[left + 1] = at[left + 1], at[left].copy()
    flags = np.zeros(len(at), np.int32)
    flags[left + 1] = FLAG_OVERTAKEN
    exchanged = np.zeros(len(at), bool)
    exchanged[left] = exchanged[left + 1] = True
    change = np.where(published.removal[at], ChangeKind.REMOVED, ChangeKind.REPLACED).astype(np.int8)
    change[rng.random(len(at)) < 0.0005] = ChangeKind.REFUSED
    digest = published.digest[at]
    digest[rng.random(len(at)) < 0.0001] ^= 1
    again = 1 + ((rng.random(len(at)) < 0.003) & ~exchanged)
    source = np.repeat(np.arange(len(at)), again)
    repeated = np.concatenate(([False], source[1:] == source[:-1]))
    flags = flags[source] | np.where(repeated, FLAG_DUP | FLAG_DUPLICATE, 0).astype(np.int32)
    applied = published.origin[at[source]] + log.offset + _delays(rng, len(source))
    whole = len(source) - len(source) // 50
    columns: dict[str, Any] = {"flags": flags, "change": change[source], "digest": digest[source]}
    kept = {name: column[:whole] for name, column in columns.items()}
    _live(log, published, at[source][:whole], applied[:whole], rng, **kept)
    rest = {name: column[whole:] for name, column in columns.items()}
    log.add(published, at[source][whole:], applied[whole:], torn=True, **rest)
    return log


def _broken(published: Published, rng: np.random.Generator, *, primary: str) -> Log:
    """Conflation, some loss, a clock 2 s behind, two selectors; a crash with a torn segment; later an outage."""
    log = Log("broken", "secondary", -2 * SECOND, ("plant/+/+", "plant/hot"), primary=primary)
    count = len(published)
    crash, restart, cut, back = (count * part // 100 for part in (40, 42, 60, 65))
    log.begin(T0 + log.offset + 1000)
    log.connect(T0 + log.offset + 100_000)
    log.complete(T0 + log.offset + 400_000)
    _conflated(log, published, np.arange(crash), rng, torn_rows=crash // 40)
    log.begin(int(published.origin[restart]) + log.offset)
    _again(log, published, restart)
    _conflated(log, published, np.arange(restart, cut), rng)
    log.event("tear_down", int(published.origin[cut]) + log.offset)
    _again(log, published, back)
    _conflated(log, published, np.arange(back, count), rng)
    log.stopped_us = int(published.origin[-1]) + 3 * SECOND + log.offset
    log.event("stop", log.stopped_us, link="")
    return log


def _again(log: Log, published: Published, end: int) -> None:
    """Take a new snapshot of what is retained before position `end`."""
    log.link_epoch += 1
    at_us = int(published.origin[end - 1]) + log.offset
    log.connect(at_us)
    held = published.retained(end)
    log.add(published, held, np.full(len(held), at_us + 2000), phase=Phase.SNAPSHOT)
    log.complete(at_us + 3000)


def _conflated(log: Log, published: Published, at: Ints, rng: np.random.Generator, *, torn_rows: int = 0) -> None:
    at = at[rng.random(len(at)) >= 0.002]
    folded = rng.random(len(at)) < 0.05
    change = np.where(published.removal[at], ChangeKind.REMOVED, ChangeKind.REPLACED).astype(np.int8)
    change[folded] = ChangeKind.MESSAGE
    flags = np.where(folded, FLAG_CONFLATED, 0).astype(np.int32)
    applied = published.origin[at] + log.offset + _delays(rng, len(at))
    whole = len(at) - torn_rows
    _live(log, published, at[:whole], applied[:whole], rng, flags=flags[:whole], change=change[:whole])
    if torn_rows:
        log.add(published, at[whole:], applied[whole:], flags=flags[whole:], change=change[whole:], torn=True)


@dataclass(frozen=True, slots=True)
class _Names:
    """The columns that are texts, once."""

    topics: Column
    filters: Column
    selector_of: npt.NDArray[np.int32]


def write(directory: Path, published: Published, log: Log) -> None:
    """Write a log as its node would: sealed segments; the last frame before a crash torn, and told of by a gap event.

    A torn end stays in its open segment. The gap event takes its place among the log's events.
    """
    named = _Names(
        topics=pa.array(published.names, pa.string()),
        filters=pa.array(log.filters or ("",), pa.string()),
        selector_of=published.selected(log.filters) if log.link else np.zeros(len(published.names), np.int32),
    )
    place = open_directory(directory, log.node)
    place.mkdir(parents=True)
    segment: SegmentFile | None = None
    number = 0
    position = 0
    while position < len(log.entries):
        entry = log.entries[position]
        node_epoch = entry.node_epoch if isinstance(entry, Rows) else entry[0]
        if segment is None:
            number += 1
            opened_us = int(entry.applied[0]) if isinstance(entry, Rows) else entry[1].at_ns // 1000
            segment = SegmentFile.create(place, SegmentIdentity(log.node, log.role, node_epoch, number, opened_us))
        if isinstance(entry, Rows):
            for frame, rows, last_pos in _frames(log, published, entry, named):
                segment.append(frame, update_rows=rows, event_rows=0, last_log_pos=last_pos)
        else:
            encoder = RowEncoder(node=log.node, role=log.role, node_epoch=node_epoch)
            at = entry[1].log_pos
            frame = encode_rows([], [encoder.events([entry[1]])], first_log_pos=at, last_log_pos=at)
            segment.append(frame, update_rows=0, event_rows=1, last_log_pos=at)
        if isinstance(entry, Rows) and entry.torn:
            segment.damaged = True  # closed as by a kill: nothing after the torn frame
            segment.close()
            os.truncate(segment.path, segment.size - 1000)
            if position + 1 == len(log.entries):
                return
            _recover(place, log, position)
            seal(segment.path, directory=directory)
            segment, number = None, 0
        elif segment.update_rows >= SEGMENT_ROWS:
            _close(segment, directory)
            segment = None
        position += 1
    if segment is not None:
        _close(segment, directory)


def _recover(place: Path, log: Log, position: int) -> None:
    """Let the next start of the node find what the crash left, and put its gap event after that start."""
    start = log.entries[position + 1]
    assert isinstance(start, tuple)
    left_over = list(left_over_segments(place))
    last_run = LastRun(node_epoch=left_over[-1].node_epoch or 0, pid=0, clean=False)
    loss = crash_loss(last_run, left_over, sealed=None, lost_until_ns=None, now_ns=start[1].at_ns)
    assert loss is not None
    gap = EventRow("", start[0], "gap", start[1].at_ns, detail=loss.detail(), log_pos=start[1].log_pos + 1)
    log.entries.insert(position + 2, (start[0], gap))
    for index in range(position + 3, len(log.entries)):
        entry = log.entries[index]
        if isinstance(entry, Rows):
            entry.first_pos += 1
        else:
            log.entries[index] = (entry[0], entry[1]._replace(log_pos=entry[1].log_pos + 1))


def _close(segment: SegmentFile, directory: Path) -> None:
    segment.close()
    seal(segment.path, directory=directory)


def _frames(log: Log, published: Published, rows: Rows, named: _Names) -> Iterator[tuple[bytes, int, int]]:
    """Yield frames with their rows and last position; torn rows are one frame."""
    size = len(rows.at) if rows.torn else FRAME_ROWS
    for begin in range(0, len(rows.at), size):
        part = slice(begin, begin + size)
        at = rows.at[part]
        count = len(at)
        topics = published.topic[at]
        first = rows.first_pos + begin
        columns: dict[str, Column] = {
            "node": _one(log.node, count),
            "role": _one(log.role, count),
            "link": _one(log.link, count),
            "selector": pa.DictionaryArray.from_arrays(_ints(named.selector_of[topics]), named.filters),
            "link_epoch": pa.array(np.full(count, rows.link_epoch)),
            "log_pos": pa.array(np.arange(first, first + count)),
            "node_epoch": pa.array(np.full(count, rows.node_epoch)),
            "topic": named.topics.take(_ints(topics)),
            "digest": pa.array(rows.digest[part]),
            "payload_bytes": pa.array(np.full(count, 64, np.int32)),
            "qos": pa.array(np.zeros(count, np.int8)),
            "retain": pa.array(np.ones(count, bool)),
            "change": pa.array(rows.change[part]),
            "phase": pa.array(np.full(count, int(rows.phase), np.int8)),
            "flags": pa.array(rows.flags[part]),
            "applied": pa.array(rows.applied[part]).view(UPDATES.field("applied").type),
        }
        if log.primary:
            columns |= {
                "stamp_primary": _one(HUB, count),
                "stamp_epoch": pa.array(np.full(count, T0)),
                "sequence": pa.array(at + FIRST_SEQUENCE),
                "origin": pa.array(published.origin[at]).view(UPDATES.field("origin").type),
            }
        else:
            names = ("stamp_primary", "stamp_epoch", "sequence", "origin")
            columns |= {name: pa.nulls(count, UPDATES.field(name).type) for name in names}
        batch = pa.RecordBatch.from_arrays([columns[name] for name in UPDATES.names], schema=UPDATES)
        last = first + count - 1
        yield encode_rows([batch], [], first_log_pos=first, last_log_pos=last), count, last


def _one(value: str, count: int) -> Column:
    return pa.DictionaryArray.from_arrays(_ints(np.zeros(count, np.int32)), pa.array([value], pa.string()))


def _ints(values: npt.NDArray[np.int32]) -> Column:
    return pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(values.tobytes())])
