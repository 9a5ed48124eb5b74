"""Rows leave Spark by one bounded door, and no Python runs on an executor: checked in the source of every report."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import fanout.reports

SOURCES = Path(fanout.reports.__file__).parent
FORBIDDEN = {
    *("collect", "toPandas", "toLocalIterator", "toArrow", "rdd", "foreach", "foreachPartition"),
    *("mapInPandas", "mapInArrow", "applyInPandas", "applyInArrow", "udf", "pandas_udf", "arrow_udf", "udtf"),
}
"""What would take rows out of Spark without a bound, or run Python on an executor."""


def attributes() -> Iterator[tuple[str, str]]:
    """Yield file and name of every attribute that is used anywhere in the reports."""
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                yield str(path.relative_to(SOURCES)), node.attr


def test_rows_leave_spark_by_one_door_and_no_python_runs_in_it() -> None:
    """Nothing collects without a bound or brings a Python function; `take` is used in one place."""
    used = list(attributes())
    assert [one for one in used if one[1] in FORBIDDEN] == []
    assert [path for path, name in used if name == "take"] == ["read/reading.py"]
    assert [path for path, name in used if name == "persist"] == ["session/sail.py"]
