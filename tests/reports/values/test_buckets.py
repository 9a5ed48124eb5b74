"""The buckets of the lag histogram."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.reports.values.buckets import bucket_of, bucket_value_us, cumulative, window_us

MICROSECONDS = st.integers(min_value=-(10**11), max_value=10**11)


@given(MICROSECONDS, MICROSECONDS)
def test_buckets_keep_the_order_of_values(one: int, other: int) -> None:
    """The order of buckets is that of values, so that ranks in one are ranks in the other."""
    if one <= other:
        assert bucket_of(one) <= bucket_of(other)


@given(MICROSECONDS)
def test_the_value_of_a_bucket_is_near(value: int) -> None:
    """What stands for a bucket is within 2.2 per cent of every value in it."""
    shown = bucket_value_us(bucket_of(value), least_us=-(10**12), most_us=10**12)
    assert abs(shown - value) <= 0.0221 * abs(value) + 1


def test_the_value_of_a_bucket_lies_within_what_was_seen() -> None:
    """A percentile never exceeds the extremes that stand beside it."""
    assert bucket_value_us(bucket_of(1000), least_us=990, most_us=1001) == 1001
    assert bucket_value_us(bucket_of(1000), least_us=1020, most_us=1030) == 1020
    assert bucket_value_us(-1, least_us=-5, most_us=5) == 0


@pytest.mark.parametrize("exponent", [0, 1, 10, 20, 36])
def test_powers_of_two_begin_a_bucket(exponent: int) -> None:
    """An octave's boundary is exact, so that cumulative counts are."""
    assert bucket_of(2**exponent) == 16 * exponent
    assert exponent < 2 or bucket_of(2**exponent - 1) < 16 * exponent


def test_cumulative_counts_every_octave_between() -> None:
    """Octaves without rows repeat the count; everything below 1 is in the first."""
    assert cumulative([(3, 5), (-1, 2), (1, 1)]) == ((1, 2), (2, 2), (4, 3), (8, 3), (16, 8))
    assert cumulative([]) == ()


@given(st.integers(min_value=0, max_value=10**15))
def test_windows_are_round_and_at_most_120(span: int) -> None:
    """A chart of any span has a bounded number of points."""
    width = window_us(span)
    assert width % 1_000_000 == 0
    assert span / width <= 120
