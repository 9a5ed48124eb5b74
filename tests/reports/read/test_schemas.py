"""Spark's view of the log against the contract."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from fanout.replica.update import ChangeKind, Phase
from fanout.replog.files import schema as contract
from fanout.reports.read import schemas


def plain(schema: pa.Schema) -> pa.Schema:
    """Return a schema without dictionary encoding, which Parquet readers undo."""
    fields = [
        pa.field(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type, nullable=f.nullable)
        for f in schema
    ]
    return pa.schema(fields)


@pytest.mark.parametrize(("ours", "theirs"), [(schemas.UPDATES, contract.UPDATES), (schemas.EVENTS, contract.EVENTS)])
def test_struct_types_equal_the_arrow_schemas(ours: StructType, theirs: pa.Schema) -> None:
    """Names, order, types and nullability are those of the log's contract."""
    assert ours == from_arrow_schema(plain(theirs))


def test_codes_equal_those_of_the_service() -> None:
    """The codes that reports repeat are those that nodes write."""
    assert int(Phase.LIVE) == schemas.PHASE_LIVE
    for name in ("NEW", "REPLACED", "REMOVED", "UNCHANGED", "REFUSED"):
        assert getattr(schemas, f"CHANGE_{name}") == ChangeKind[name]
