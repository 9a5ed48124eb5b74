"""The replication log as Spark sees it: one StructType for each table, and the values of its coded columns.

The columns are those of `fanout.replog.files.schema`, the contract. The codes of `change` and `phase` are those of
`fanout.replica.update`, repeated here because reports know nothing of the service's packages; a test holds them equal.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
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

from fanout.replog.files.schema import EVENTS as LOGGED_EVENTS
from fanout.replog.files.schema import UPDATES as LOGGED_UPDATES

__all__ = [
    "CHANGE_NEW",
    "CHANGE_REFUSED",
    "CHANGE_REMOVED",
    "CHANGE_REPLACED",
    "CHANGE_UNCHANGED",
    "EVENTS",
    "PHASE_LIVE",
    "PHASE_UNSURE",
    "SIDE_NODE",
    "SIDE_REFERENCE",
    "STATE_CONNECTING",
    "STATE_DOWN",
    "STATE_LIVE",
    "UPDATES",
]

PHASE_LIVE: Final = 0
"""The only phase whose rows are updates; the others are copies of retained values."""
PHASE_UNSURE: Final = -1
"""The phase of rows that are in no log: of an update nobody knows whether it came."""

SIDE_REFERENCE: Final = 0
"""The side of a row of the reference that got an identity by counting; the rows of logs have no side."""
SIDE_NODE: Final = 1
"""The side of a row of a node that got one."""

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

_TYPES: Final = {
    pa.string(): StringType(),
    pa.int64(): LongType(),
    pa.int32(): IntegerType(),
    pa.int8(): ByteType(),
    pa.bool_(): BooleanType(),
    pa.timestamp("us", tz="UTC"): TimestampType(),
}


def _struct(schema: pa.Schema) -> StructType:
    plain = [(field, field.type.value_type if pa.types.is_dictionary(field.type) else field.type) for field in schema]
    return StructType([StructField(field.name, _TYPES[kind], field.nullable) for field, kind in plain])


UPDATES: Final = _struct(LOGGED_UPDATES)
"""A row for each update published at a node or applied through a link."""

EVENTS: Final = _struct(LOGGED_EVENTS)
"""A row for each change of state, heartbeat, start and stop."""
