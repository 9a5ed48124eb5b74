"""Schema of the replication log: the contract between the nodes that write it and the jobs that read it.

A log directory holds two tables. `updates` has a row for each update that a node published or applied. `events` has a
row for each change of state and each heartbeat. Both carry `log_pos`, one count over both tables, which gives the order
inside one log. Timestamps are microseconds in UTC. Digests are unsigned 64-bit values read as signed, because Spark has
neither nanoseconds nor unsigned integers. Rows of one file are grouped by link, not sorted: the order inside a log is
(`node_epoch`, `log_pos`). The module can be imported without pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from fanout.errors import LogError

if TYPE_CHECKING:
    import pyarrow.parquet as pq

__all__ = [
    "EVENTS",
    "FLAG_CONFLATED",
    "FLAG_DUP",
    "FLAG_DUPLICATE",
    "FLAG_OVERTAKEN",
    "SCHEMA_VERSION",
    "UPDATES",
    "check_expansion",
    "event_names",
    "refuse_version",
]

SCHEMA_VERSION = 1
"""Part of the directory name (`v1`); raised when a column changes its meaning or is removed."""

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_NAME = pa.dictionary(pa.int32(), pa.string())

UPDATES = pa.schema(
    [
        pa.field("node", _NAME, nullable=False),  # the node that wrote the row
        pa.field("role", _NAME, nullable=False),  # primary | secondary | tap
        pa.field("link", _NAME, nullable=False),  # name of the link; "" for what was published at this node
        pa.field("selector", _NAME, nullable=False),  # the selector's filter at the primary; "" without one
        # The epoch of the link's session; the node's epoch without a link.
        pa.field("link_epoch", pa.int64(), nullable=False),
        # The order of rows in this node's log, from 1, per node epoch.
        pa.field("log_pos", pa.int64(), nullable=False),
        # Unix time in microseconds at which this node process started.
        pa.field("node_epoch", pa.int64(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),  # Topic Name at the primary (without a prefix)
        pa.field("digest", pa.int64(), nullable=False),  # content digest of (topic at the primary, payload)
        pa.field("payload_bytes", pa.int32(), nullable=False),
        pa.field("qos", pa.int8(), nullable=False),
        pa.field("retain", pa.bool_(), nullable=False),
        pa.field("change", pa.int8(), nullable=False),  # fanout.replica.update.ChangeKind
        pa.field("phase", pa.int8(), nullable=False),  # fanout.replica.update.Phase
        pa.field("flags", pa.int32(), nullable=False),  # FLAG_*
        pa.field("stamp_primary", _NAME, nullable=True),  # identity of the update; null without a stamp
        pa.field("stamp_epoch", pa.int64(), nullable=True),
        pa.field("sequence", pa.int64(), nullable=True),
        pa.field("origin", _TIMESTAMP, nullable=True),  # the stamping node's clock
        pa.field("applied", _TIMESTAMP, nullable=False),  # this node's clock, the read that brought it
    ]
)
"""One row for each update published (at a node) or applied (through a link)."""

EVENTS = pa.schema(
    [
        pa.field("node", _NAME, nullable=False),
        pa.field("role", _NAME, nullable=False),
        pa.field("link", _NAME, nullable=False),  # "" when the whole node is meant
        pa.field("selector", _NAME, nullable=False),  # "" when the whole link is meant
        pa.field("link_epoch", pa.int64(), nullable=False),
        pa.field("log_pos", pa.int64(), nullable=False),
        pa.field("node_epoch", pa.int64(), nullable=False),
        pa.field("at", _TIMESTAMP, nullable=False),  # this node's clock
        pa.field("event", _NAME, nullable=False),  # one of event_names
        pa.field("state", _NAME, nullable=False),  # the state entered, for "state"; else ""
        pa.field("evidence", _NAME, nullable=False),  # for "complete"; else ""
        pa.field("topics", pa.int64(), nullable=False),  # retained topics held, after the event
        pa.field("digest", pa.int64(), nullable=False),  # digest over the retained set, after the event
        pa.field("lag_us", pa.int64(), nullable=True),  # for "heartbeat": round trip through the data path
        pa.field("detail", pa.string(), nullable=False),  # what a person should read, or JSON; "" for nothing
    ]
)
"""One row for each change of state, heartbeat, start and stop."""

event_names = (
    "start",  # the node started; detail: JSON of its links, selectors and version
    "stop",  # the node stopped in good order
    "state",  # a link entered `state`; detail: on an accepted connection JSON of the primary, see below
    "complete",  # a selector's snapshot is proved complete, by `evidence`
    "audit",  # an audit of a live link has ended; detail: JSON of `fanout.link.model.audit_report.AuditReport`
    "unconfirmed",  # topics have become unconfirmed, or none is any more; detail: JSON of their number
    "tear_down",  # the link's replica was removed; rows of it with a smaller log_pos hold no more
    "heartbeat",  # the link's own message came back through the data path, or (link "") the node is alive
    "skipped",  # messages could not be replicated; detail: JSON of one reason, see below
    "alarm",  # a link had a warning or an error; detail: JSON of its log line, with `level` and `message`
    "gap",  # rows were not logged; detail is JSON, see below
)
"""Values of the column `event`.

A "state" that is "snapshot", "resuming" or "live" has a detail with these keys:

    primary        the address in use
    primary_node   the name of the fanout node that is the primary, "" when it is none, null when the link cannot know
    reason         what a person should read; absent for nothing

Rows of earlier versions have text there, or the key "primary_node" with a name; so its meaning is that of `v1`.

A "skipped" has a detail with these keys, at most once a second and with each heartbeat:

    reason         a `fanout.mqtt.breaches.SkipReason`
    messages       how many were skipped since the last such event of this reason
    topics         their Topic Names as far as known, escaped, the first hundred of them
    first_us, last_us   the time of the first and of the last, Unix time in microseconds

A "gap" belongs to the link whose rows were lost ("" for rows published at the node, or for the whole node).
Lost rows keep their `log_pos`, so that a gap shows as missing positions too. Its detail has these keys, null
where nobody can know:

    reason         "queue" (the writer was too slow), "disk" (it failed, was full, or lost what it took), "encoding"
                   (a bug of the writer), "crash" (the node did not stop in good order; its next start writes
                   this event), "damage" (bytes of a segment were not what had been written), or "missing" (a file has
                   gone since; readers of the log add this event, and never write it)
    rows           how many updates were lost; null after a crash; after damage, or of missing files, how many rows
                   of both tables, null when nobody can know
    events         how many events were lost; 0 after a crash or damage, though some may have been
    node_epoch     the epoch whose rows were lost
    first_log_pos, last_log_pos   the positions among which rows were lost
    first_us, last_us             the time of the first and of the last row lost, Unix time in microseconds;
                                  after a crash the time of the last row that is there (of the start without any),
                                  and of the next start
"""

FLAG_DUP = 1
"""The PUBLISH had DUP set."""
FLAG_DUPLICATE = 2
"""The same stamped sequence was applied before by this link in this epoch, as a row of phase LIVE.

Only rows of phase LIVE carry it: a snapshot or audit row is a copy of an update, not another delivery of it.
"""
FLAG_OVERTAKEN = 4
"""A row of phase LIVE whose sequence is below the highest applied to its topic, by a copy or an update."""
FLAG_CONFLATED = 8
"""The update was received and folded into a newer one of its topic instead of being applied: deliberately
not applied, hence not missing.

Links of this version apply every update, so they never set it; what is conflated for a slow local client is
no row of the log. It is part of the contract so that reports never take such a row for an applied update.
"""

GROUP_ROWS_MAX = 4_194_304
"""Most rows of a row group that are read at once; a node writes some 262,144."""
ROWS_PER_BYTE_MAX = 8
"""Most rows for each byte of a file; those of a node have one byte or more each."""
_FEW_ROWS = 1_000_000


def check_expansion(metadata: pq.FileMetaData, *, nbytes: int) -> None:
    """Check that a file does not expand to far more rows than a node writes into so many bytes.

    Args:
        metadata: The footer of the file.
        nbytes: Size of the file.

    Raises:
        pyarrow.ArrowInvalid: It does.
    """
    rows = metadata.num_rows
    groups = (metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
    if rows > _FEW_ROWS and (rows > nbytes * ROWS_PER_BYTE_MAX or max(groups, default=0) > GROUP_ROWS_MAX):
        raise pa.ArrowInvalid(f"its {nbytes:,} bytes expand to {rows:,} rows, which no node writes")


def refuse_version(place: object, version: int) -> None:
    """Refuse a later version of the log: what this one could read of it would be a part, or misread.

    Args:
        place: The directory or file that has it, for the message.
        version: The version that it has.

    Raises:
        LogError: It is later than `SCHEMA_VERSION`.
    """
    if version > SCHEMA_VERSION:
        raise LogError(
            f"{place} has version {version} of the replication log, and this fanout reads {SCHEMA_VERSION}",
            hint="Read it with the version of fanout that wrote it, or a later one",
        )
