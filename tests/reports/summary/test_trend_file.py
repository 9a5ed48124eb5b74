"""The file of the trend: what counts as one, and what stays in it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fanout.errors import ReportError
from fanout.reports.summary import trend_file
from fanout.reports.summary.trend_file import read_trend, trend_text
from fanout.reports.values.history import PastLag, PastNode, PastReport

DAY = timedelta(days=1)
END = datetime(2026, 2, 2, 12, tzinfo=UTC)


def past(end: datetime = END, *, node: str = "edge") -> PastReport:
    """Return a report that ended then."""
    lag = PastLag(link="up", stamped_by="hub", updates=500, p50_us=-3, p99_us=40, uncertain_us=2)
    return PastReport(
        begin=end - timedelta(hours=1),
        end=end,
        nodes=(
            PastNode(
                node=node,
                expected=10,
                missing=1,
                unknown=2,
                complete_percent_at_least=75.0,
                complete_percent_at_most=90.0,
                lag=(lag,),
            ),
        ),
    )


def line(**changes: Any) -> str:
    """Return the line of a report that somebody changed."""
    return json.dumps(json.loads(past().model_dump_json()) | changes) + "\n"


def test_each_report_is_a_line_behind_those_of_30_days(tmp_path: Path) -> None:
    """What is older than that before the newest goes; names of strangers make no line of their own."""
    path = tmp_path / "trend.jsonl"
    assert read_trend(path) == ()
    reports = [past(END - 31 * DAY), past(END - 30 * DAY), past(END - DAY, node='x\n{"format": 1}\x1b'), past()]
    for number, added in enumerate(reports):
        path.write_text(trend_text(read_trend(path), added=added))
        assert read_trend(path) == tuple(reports[number // 3 : number + 1])
    assert path.read_text().count("\n") == 3
    assert [each.name for each in tmp_path.iterdir()] == ["trend.jsonl"]


def test_the_number_of_lines_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest lines stay, however short the time between them."""
    monkeypatch.setattr(trend_file, "_REPORTS_MAX", 3)
    path = tmp_path / "trend.jsonl"
    reports = [past(END + timedelta(seconds=number)) for number in range(5)]
    for added in reports:
        path.write_text(trend_text(read_trend(path), added=added))
    assert read_trend(path) == tuple(reports[2:])


def test_a_line_without_its_end_is_passed_over(tmp_path: Path) -> None:
    """A copy of a file may end anywhere behind its first line; an empty file is a trend that begins."""
    path = tmp_path / "trend.jsonl"
    whole = line() + line()
    first = len(line())
    for end in (first, first + 1, len(whole) - 1):
        path.write_text(whole[:end])
        assert read_trend(path) == (past(),)
    path.write_text("")
    assert read_trend(path) == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no end", "is not a file of the trend"),
        ("time,missing\n1,2\n", "line 1 is not JSON"),
        ("\xff\xfe\n", "line 1 is not JSON"),
        ("[" * 100_000 + "\n", "line 1 is not JSON"),
        (line() + "\n", "line 2 is not JSON"),
        (line() + '{"format": "fanout-report"}\n', "line 2 is of another program"),
        ("[1]\n", "line 1 is of another program"),
        (line(version=2), "is of another version than 1"),
        (line(end="soon"), "damaged: end in line 1"),
        (line(begin="2026-02-02T13:00:00Z"), "damaged: the whole in line 1"),
        (line(more=1), "damaged: more in line 1"),
        (line(nodes=[{"node": "edge"}]), r"damaged: nodes\.0\.expected in line 1"),
    ],
)
def test_the_file_of_another_program_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """With its name, the line, the reason and the remedy."""
    path = tmp_path / "trend.jsonl"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ReportError, match=said) as raised:
        read_trend(path)
    assert str(path) in str(raised.value)
    assert "--trend" in (raised.value.hint or "")


@pytest.mark.parametrize(
    "figures",
    [
        {"missing": -1},
        {"missing": 11},
        {"expected": 10**400},
        {"complete_percent_at_least": 101},
        {"complete_percent_at_most": float("nan")},
        {"lag": [json.loads(past().nodes[0].lag[0].model_dump_json()) | {"p99_us": 10**30}]},
    ],
)
def test_figures_that_cannot_be_are_refused(tmp_path: Path, figures: dict[str, Any]) -> None:
    """Nothing is compared with them."""
    path = tmp_path / "trend.jsonl"
    path.write_text(line(nodes=[json.loads(past().nodes[0].model_dump_json()) | figures]))
    with pytest.raises(ReportError, match=r"damaged: nodes\.0|is not JSON"):
        read_trend(path)


def test_a_place_that_cannot_be_used_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a report is made, as far as that can be known."""
    with pytest.raises(ReportError, match="is not a file"):
        read_trend(tmp_path)
    with pytest.raises(ReportError, match="is not a file"):
        read_trend(Path("/dev/null"))
    (tmp_path / "file").touch()
    with pytest.raises(ReportError, match="cannot be read: Not a directory"):
        read_trend(tmp_path / "file" / "trend.jsonl")
    monkeypatch.setattr(trend_file, "_BYTES_MAX", 1024 * 1024)
    (tmp_path / "large").write_bytes(b" " * (1024 * 1024 + 1))
    with pytest.raises(ReportError, match="is larger than 1 MiB"):
        read_trend(tmp_path / "large")
