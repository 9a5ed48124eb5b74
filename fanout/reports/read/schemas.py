"""The replication log as Spark sees it: one StructType for each table, and the values of its coded columns.

The columns are those of `fanout.replog.files.schema`, the contract. The codes of `change` and `phase` are those of
`fanout.replica.update`, repeated here because reports know nothing of the service's packages; a test holds them equal.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
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
    "arrow_type",
    "struct_of",
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

_TYPES: Final[dict[str, tuple[DataType, pa.DataType]]] = {
    "string": (StringType(), pa.string()),
    "bigint": (LongType(), pa.int64()),
    "int": (IntegerType(), pa.int32()),
    "tinyint": (ByteType(), pa.int8()),
    "boolean": (BooleanType(), pa.bool_()),
    "double": (DoubleType(), pa.float64()),
    "timestamp": (TimestampType(), pa.timestamp("us", tz="UTC")),
}
"""Types of columns by the name that Spark writes: Spark's and Arrow's."""
_OF_ARROW: Final = {arrow: spark for spark, arrow in _TYPES.values()}
_TO_ARROW: Final = dict(_TYPES.values())
_BETWEEN_FIELDS: Final = re.compile(r", (?![^<]*>)")
_FIELD: Final = re.compile(r"`?(\w+)`?:? (.+)")


def struct_of(columns: str) -> StructType:
    """Return a schema that is written as Spark writes types: Spark's own function needs a session, and is slow."""
    found = (_FIELD.fullmatch(column) for column in _BETWEEN_FIELDS.split(columns))
    return StructType([StructField(field[1], _type_of(field[2])) for field in found if field is not None])


def _type_of(text: str) -> DataType:
    if text.startswith("array<"):
        return ArrayType(_type_of(text[len("array<") : -1]))
    return struct_of(text[len("struct<") : -1]) if text.startswith("struct<") else _TYPES[text][0]


def arrow_type(spark_type: DataType) -> pa.DataType:
    """Return Arrow's type for one of Spark. Spark's own translation has other arguments in each version."""
    if isinstance(spark_type, ArrayType):
        return pa.list_(arrow_type(spark_type.elementType))
    if isinstance(spark_type, StructType):
        return pa.struct([pa.field(field.name, arrow_type(field.dataType)) for field in spark_type.fields])
    return _TO_ARROW[spark_type]


def _struct(schema: pa.Schema) -> StructType:
    plain = [(field, field.type.value_type if pa.types.is_dictionary(field.type) else field.type) for field in schema]
    return StructType([StructField(field.name, _OF_ARROW[kind], field.nullable) for field, kind in plain])


UPDATES: Final = _struct(LOGGED_UPDATES)
"""A row for each update published at a node or applied through a link."""

EVENTS: Final = _struct(LOGGED_EVENTS)
"""A row for each change of state, heartbeat, start and stop."""
