"""A report on 200,000 synthetic rows with every kind of fault: each number equals the injected truth."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bench.synthetic_logs import make_logs, publish, write
from bench.synthetic_truth import differences, figures, missing_sequences
from fanout.replog.read.reading import stage
from fanout.reports.entry import ReportOptions, run_report
from fanout.reports.read.log_files import LogFiles

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

ROWS = 200_000
SETTLE_US = 2_000_000


@pytest.mark.parametrize("session", ["compiled", "spark"])
def test_every_number_is_the_injected_truth(request: pytest.FixtureRequest, tmp_path: Path, session: str) -> None:
    """Half of the updates on one topic; loss, copies, exchanges, conflation, clocks, a crash, an outage, torn frames.

    The logs are written as nodes write them, and one still has an open segment that is torn.
    """
    request.getfixturevalue(session)
    tables = None if session == "spark" else tmp_path / "tables"  # Sail writes none
    published = publish(ROWS // 4, seed=7)
    logs = make_logs(published, seed=7)
    for log in logs:
        write(tmp_path / log.node, published, log)
    (tmp_path / "staged").mkdir()
    directories = [tmp_path / log.node for log in logs]
    staged = stage(directories, target=tmp_path / "staged")
    assert staged.torn_bytes > 0
    run_report(
        "completeness",
        LogFiles.of_files(updates=staged.updates, events=staged.events, directories=directories),
        ReportOptions(
            settle_s=SETTLE_US / 1e6,
            depth=2,
            json_path=tmp_path / "report.json",
            parquet=None if tables is None else str(tables),
        ),
    )
    truth = figures(published, logs, settle_us=SETTLE_US)
    compared, wrong = differences(truth, json.loads((tmp_path / "report.json").read_text()))
    assert wrong == []
    assert compared > 1_000
    lasting = {one["going_on"] for of_target in truth["prefixes"].values() for one in of_target.values()}
    assert lasting == {True, False, None}, "losses by prefix that go on, that have ended, and none"
    faults = {name for counts in truth["updates"].values() for name, count in counts.items() if count}
    assert faults >= {"missing", "unknown", "superseded", "reobtained", "conflated", "duplicated", "stale", "refused"}
    assert {name for counts in truth["finals"].values() for name, count in counts.items() if count} >= {
        "equal",
        "different",
        "absent",
        "extra",
        "pending",
    }
    if tables is None:
        return
    rows = pq.read_table(tables / "missing").select(["known", "node", "selector", "sequence"]).to_pylist()
    missing = [(row["node"], row["selector"], row["sequence"]) for row in rows if row["known"]]
    assert len(missing) == len(set(missing))
    assert set(missing) == missing_sequences(published, logs, settle_us=SETTLE_US)
