"""The columns of the log."""

from __future__ import annotations

import pyarrow as pa
import pytest

from fanout.replog.files.schema import (
    EVENTS,
    FLAG_CONFLATED,
    FLAG_DUP,
    FLAG_DUPLICATE,
    FLAG_OVERTAKEN,
    UPDATES,
    event_names,
)


@pytest.mark.parametrize("schema", [UPDATES, EVENTS])
def test_columns_have_types_that_spark_knows(schema: pa.Schema) -> None:
    """No column is unsigned or has nanoseconds, which Spark refuses."""
    for column in schema:
        assert not pa.types.is_unsigned_integer(column.type)
        if pa.types.is_timestamp(column.type):
            assert (column.type.unit, column.type.tz) == ("us", "UTC")


def test_both_tables_share_their_identity_columns() -> None:
    """The columns that join the two tables are the same in both."""
    for name in ("node", "role", "link", "selector", "link_epoch", "log_pos", "node_epoch"):
        assert UPDATES.field(name) == EVENTS.field(name)


def test_flags_are_different_bits() -> None:
    """Flags can be combined, and events have different names."""
    flags = (FLAG_DUP, FLAG_DUPLICATE, FLAG_OVERTAKEN, FLAG_CONFLATED)
    assert [flag.bit_count() for flag in flags] == [1] * len(flags)
    assert len(set(flags)) == len(flags)
    assert len(set(event_names)) == len(event_names)
