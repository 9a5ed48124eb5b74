"""Numbers as a person reads them."""

from __future__ import annotations

import pytest

from fanout.cli.output.quantities import as_bytes, as_count, as_duration, counted


@pytest.mark.parametrize(
    ("count", "text"), [(None, "-"), (0, "0"), (999, "999"), (1_234_567, "1,234,567"), (31_204.4, "31,204")]
)
def test_as_count(count: float | None, text: str) -> None:
    """Thousands are parted; unknown is a dash."""
    assert as_count(count) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 rows"), (1, "1 row"), (2000, "2,000 rows")])
def test_counted(count: int, text: str) -> None:
    """One is singular, everything else plural."""
    assert counted(count, "row") == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (1_047_552, "1023 KiB"),
        (23_456_789, "22.4 MiB"),
        (5 * 1024**4, "5 TiB"),
        (5000 * 1024**4, "5000 TiB"),
    ],
)
def test_as_bytes(count: int, text: str) -> None:
    """Bytes are shown in the largest binary unit that keeps three digits."""
    assert as_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0, "0.0 ms"),
        (0.0041, "4.1 ms"),
        (0.9999, "1.0 s"),
        (12.04, "12.0 s"),
        (59.96, "1 min 0 s"),
        (61, "1 min 1 s"),
        (3600, "1 h 0 min"),
        (11_520.5, "3 h 12 min"),
        (200_000, "2 d 7 h"),
    ],
)
def test_as_duration(seconds: float | None, text: str) -> None:
    """Time spans are shown in their two largest units; unknown is a dash."""
    assert as_duration(seconds) == text
