"""Times on the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import typer

from fanout.cli.arguments.times import parse_time

NOW = datetime(2026, 2, 2, 14, 30, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-02-01", datetime(2026, 2, 1, tzinfo=UTC)),
        ("2026-02-01T14:00", datetime(2026, 2, 1, 14, tzinfo=UTC)),
        ("2026-02-01 14:00:07.25", datetime(2026, 2, 1, 14, 0, 7, 250_000, tzinfo=UTC)),
        ("2026-02-01T14:00Z", datetime(2026, 2, 1, 14, tzinfo=UTC)),
        ("2026-02-01T14:00+01:00", datetime(2026, 2, 1, 13, tzinfo=UTC)),
        ("today", datetime(2026, 2, 2, tzinfo=UTC)),
        ("yesterday", datetime(2026, 2, 1, tzinfo=UTC)),
        ("45s", NOW - timedelta(seconds=45)),
        ("30m", NOW - timedelta(minutes=30)),
        ("2h", NOW - timedelta(hours=2)),
        ("1d", NOW - timedelta(days=1)),
        ("2w", NOW - timedelta(days=14)),
    ],
)
def test_times_and_ages(text: str, expected: datetime) -> None:
    """Without a zone a time is UTC; an age is counted back from now."""
    time = parse_time(text, now=NOW)
    assert (time, time.utcoffset()) == (expected, timedelta(0))


def test_an_age_is_counted_from_the_present() -> None:
    """Nothing else says when now is."""
    before = datetime.now(UTC) - timedelta(hours=2, seconds=1)
    assert before <= parse_time("2h") <= datetime.now(UTC) - timedelta(hours=2)


@pytest.mark.parametrize(
    "text",
    ["", "noon", "2", "h", "2 h", "-2h", "2y", "2h30m", "٢h", "2026-02-30", "9" * 30 + "d", "0001-01-01T00:00+01:00"],
)
def test_what_is_no_time(text: str) -> None:
    """The message shows what one looks like."""
    with pytest.raises(typer.BadParameter, match="is not a time; give one like 2026-02-02T14:00"):
        parse_time(text, now=NOW)
