"""How numbers, times and names are written."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.reports.render.wording import count, duration, facts, percentage, printable, seconds, span, timestamp
from tests.reports.documents import BEGIN, END, report


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "–"),
        (100, "100 %"),
        (0, "0 %"),
        (94.16, "94.1 %"),
        (99.5, "99.5 %"),
        (99.95, "99.95 %"),
        (99.998, "99.998 %"),
        (99.99999999, "99.9999 %"),
        (33.3333, "33.3 %"),
        (98.0, "98.0 %"),
        (100 * 1999 / 2000, "99.95 %"),
    ],
)
def test_percentage_is_rounded_down(share: float | None, text: str) -> None:
    """One lost update in a million is not 100 per cent."""
    assert percentage(share).replace("\u00a0", " ") == text


@given(st.floats(min_value=0, max_value=100))
def test_percentage_never_says_more_than_there_is(share: float) -> None:
    """What is written is not above the share, and within a tenth of a per cent of it."""
    written = float(percentage(share).removesuffix("\u00a0%"))
    assert share - 0.1001 <= written <= share + 1e-9


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (None, "–"),
        (0, "0 µs"),
        (999, "999 µs"),
        (1000, "1.00 ms"),
        (-3020, "-3.02 ms"),
        (16_040, "16.0 ms"),
        (999_499, "999 ms"),
        (999_500, "1.00 s"),
        (61_500_000, "61.5 s"),
        (125_000_000, "2 min 5 s"),
        (7_320_000_000, "2 h 2 min"),
    ],
)
def test_duration_has_three_digits_and_a_unit(microseconds: int | None, text: str) -> None:
    """Microseconds become the unit that a person would choose; the sign is kept."""
    assert duration(microseconds).replace("\u00a0", " ") == text


def test_seconds_below_one_are_smaller_units() -> None:
    """A quarter of a second is 250 ms, and nothing is nothing."""
    assert seconds(0.25) == "250\u00a0ms"
    assert seconds(None) == "–"


def test_times_are_in_utc_with_the_decimals_asked_for() -> None:
    """The second end of a span has a date only when it is on another day."""
    begin, end = datetime(2026, 2, 2, 3, 4, 5, 678900, UTC), datetime(2026, 2, 2, 4, 0, 0, 0, UTC)
    assert timestamp(begin) == "2026-02-02\u00a003:04:05.678"
    assert timestamp(None) == "–"
    assert span(begin, end) == "2026-02-02\u00a003:04:05 to 04:00:00 UTC"
    assert "2026-02-03" in span(begin, end.replace(day=3))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plant/é/日本", "plant/é/日本"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("a\nb\u202ec\u200bd", "a\\nb\\u202ec\\u200bd"),
        ("two  spaces", "two  spaces"),
    ],
)
def test_printable_leaves_no_control_character(text: str, shown: str) -> None:
    """Neither a cursor movement nor a change of direction survives."""
    assert printable(text) == shown


def test_printable_is_not_longer_than_a_line_or_two() -> None:
    """The longest topic that MQTT allows does not fill a screen."""
    assert printable("x" * 400) == "x" * 400
    assert printable("\x00" + "x" * 65_534) == "\\x00" + "x" * 399 + "… (65,535 characters)"


def test_counts_have_thousands_apart() -> None:
    """Large counts can be read; unknown ones are a dash."""
    assert count(1234567) == "1,234,567"
    assert count(None) == "–"


def test_facts_say_what_the_figures_are_relative_to() -> None:
    """With what and how it was compared, of which time, input, and what of that is lost, in this order."""
    found = facts(report())
    assert [name for name, _ in found] == ["compared with", "how", "time", "read", "lost"]
    texts = dict(found)
    assert texts["compared with"] == "hub (the only primary in the logs)"
    assert "12,345 updates and 67 events of 1 node, in 5 files of 1 directory" in texts["read"]
    assert "lacks 2 of the sequences 1 to 100" in texts["lost"]
    asked = report().parameters.model_copy(update={"since": BEGIN})
    since = dict(facts(report().model_copy(update={"parameters": asked})))
    assert since["asked for"] == "from 2026-02-02\u00a002:40:00 UTC to the end: what lies outside is in no figure."
    assert "too young to be judged" in since["time"]
    asked = asked.model_copy(update={"since": None, "until": END})
    settled = report().window
    assert settled is not None
    until = dict(
        facts(
            report().model_copy(
                update={"parameters": asked, "window": settled.model_copy(update={"settled_until": END})}
            )
        )
    )
    assert until["asked for"].startswith("from the beginning until 2026-02-02\u00a002:45:00 UTC: what lies outside")
    assert until["asked for"].endswith("Final values are of the end of the logs, not of that time, and left out.")
    assert "too young" not in until["time"]
    summary = dict(facts(report().model_copy(update={"parameters": asked, "report": "summary"})))
    assert summary["asked for"] == until["asked for"]
    alone = report().model_copy(update={"reference": None, "window": None, "basis": ()})
    assert [name for name, _ in facts(alone)] == ["read"]
