"""The replication log as Spark sees it: one StructType for each table, and the values of its coded columns.

`fanout.replog.files.schema` is the contract; a test holds these types equal to it. The codes of `change` and
`phase` are those of `fanout.replica.update`, repeated here because reports know nothing of the service's
packages; a test holds them equal too.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    BooleanType,
    ByteType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

__all__ = [
    "CHANGE_NEW",
    "CHANGE_REFUSED",
    "CHANGE_REMOVED",
    "CHANGE_REPLACED",
    "CHANGE_UNCHANGED",
    "EVENTS",
    "PHASE_LIVE",
    "STATE_CONNECTING",
    "STATE_DOWN",
    "STATE_LIVE",
    "UPDATES",
]

PHASE_LIVE: Final = 0
"""The only phase whose rows are updates; the others are copies of retained values."""

CHANGE_NEW: Final = 1
CHANGE_REPLACED: Final = 2
CHANGE_REMOVED: Final = 3
CHANGE_UNCHANGED: Final = 5
CHANGE_REFUSED: Final = 6

STATE_CONNECTING: Final = "connecting"
"""The link's state from which the time to ready is counted."""
STATE_DOWN: Final = "down"
"""The link's state without a connection."""
STATE_LIVE: Final = "live"
"""The link's state in which it holds everything."""

_REQUIRED: Final = False

UPDATES: Final = StructType(
    [
        StructField("node", StringType(), _REQUIRED),
        StructField("role", StringType(), _REQUIRED),
        StructField("link", StringType(), _REQUIRED),
        StructField("selector", StringType(), _REQUIRED),
        StructField("link_epoch", LongType(), _REQUIRED),
        StructField("log_pos", LongType(), _REQUIRED),
        StructField("node_epoch", LongType(), _REQUIRED),
        StructField("topic", StringType(), _REQUIRED),
        StructField("digest", LongType(), _REQUIRED),
        StructField("payload_bytes", IntegerType(), _REQUIRED),
        StructField("qos", ByteType(), _REQUIRED),
        StructField("retain", BooleanType(), _REQUIRED),
        StructField("change", ByteType(), _REQUIRED),
        StructField("phase", ByteType(), _REQUIRED),
        StructField("flags", IntegerType(), _REQUIRED),
        StructField("stamp_primary", StringType()),
        StructField("stamp_epoch", LongType()),
        StructField("sequence", LongType()),
        StructField("origin", TimestampType()),
        StructField("applied", TimestampType(), _REQUIRED),
    ]
)
"""A row for each update published at a node or applied through a link."""

EVENTS: Final = StructType(
    [
        StructField("node", StringType(), _REQUIRED),
        StructField("role", StringType(), _REQUIRED),
        StructField("link", StringType(), _REQUIRED),
        StructField("selector", StringType(), _REQUIRED),
        StructField("link_epoch", LongType(), _REQUIRED),
        StructField("log_pos", LongType(), _REQUIRED),
        StructField("node_epoch", LongType(), _REQUIRED),
        StructField("at", TimestampType(), _REQUIRED),
        StructField("event", StringType(), _REQUIRED),
        StructField("state", StringType(), _REQUIRED),
        StructField("evidence", StringType(), _REQUIRED),
        StructField("topics", LongType(), _REQUIRED),
        StructField("digest", LongType(), _REQUIRED),
        StructField("lag_us", LongType()),
        StructField("detail", StringType(), _REQUIRED),
    ]
)
"""A row for each change of state, heartbeat, start and stop."""
