"""Which files a report on a window reads where Spark alone sees them, and where each log begins in them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fanout.reports import ReportOptions, run_report
from tests.reports.logs import HOUR, at, when
from tests.reports.segments import damage_hours, hourly_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_updates_of_other_hours_are_not_opened(jvm: SparkSession, tmp_path: Path) -> None:
    """Their files are damaged, and the report is that of the window."""
    log = hourly_log(tmp_path / "log")
    damage_hours(log, range(3))
    asked = ReportOptions(settle_s=1, since=when(at(4 * HOUR)), until=when(at(5 * HOUR)))
    found = run_report("completeness", [log.as_uri()], asked).report
    assert (found.inputs.update_files, found.inputs.event_files) == (6, 12)
    figures = found.targets[0].stamped
    assert figures is not None
    assert (figures.expected, figures.missing, figures.unknown, figures.complete_percent) == (10, 1, 0, 90)
