"""The buckets of a lag histogram: 16 to an octave, exact counts, values within 2.2 per cent.

Bucket b >= 0 holds the microseconds x with 2**(b/16) <= x < 2**((b+1)/16); -1 holds zero; below that lie the
negative values, which different clocks can cause, mirrored: bucket -2 - b holds -x. So the order of buckets
is the order of values and two histograms merge by adding counts. Owns the numbers on the Python side; the
Column expression that puts a value in its bucket is in `compare.lag`, and a test holds both equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

__all__ = ["BUCKETS_PER_OCTAVE", "ROUNDING", "bucket_of", "bucket_value_us", "cumulative", "window_us"]

BUCKETS_PER_OCTAVE: Final = 16

ROUNDING: Final = 1e-10
"""Added before rounding down, so that exact powers of two land above their boundary whatever the logarithm's
last bit.

Small enough that no other whole number of microseconds below a day moves.
"""

_WINDOWS_MAX: Final = 120
_WINDOW_STEPS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)


def bucket_of(value_us: int) -> int:
    """Return the bucket of a value."""
    if value_us == 0:
        return -1
    bucket = math.floor(BUCKETS_PER_OCTAVE * math.log2(abs(value_us)) + ROUNDING)
    return bucket if value_us > 0 else -2 - bucket


def bucket_value_us(bucket: int, *, least_us: int, most_us: int) -> int:
    """Return the value that stands for a bucket: its middle, but nothing outside what was seen."""
    if bucket == -1:
        middle = 0
    else:
        size = bucket if bucket >= 0 else -2 - bucket
        middle = round(2.0 ** ((size + 0.5) / BUCKETS_PER_OCTAVE)) * (1 if bucket >= 0 else -1)
    return min(max(middle, least_us), most_us)


def cumulative(octaves: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return (bound in microseconds, rows below it) at each power of two from the least to the greatest.

    Args:
        octaves: (octave, rows), where octave k holds 2**k <= x < 2**(k+1) and -1 everything below 1.
    """
    rows_of: dict[int, int] = {}
    for octave, rows in octaves:
        rows_of[octave] = rows_of.get(octave, 0) + rows
    if not rows_of:
        return ()
    counts: list[tuple[int, int]] = []
    below = 0
    for octave in range(min(rows_of), max(rows_of) + 1):
        below += rows_of.get(octave, 0)
        counts.append((2 ** (octave + 1), below))
    return tuple(counts)


def window_us(span_us: int) -> int:
    """Return a round width of time windows that cuts a span into at most 120."""
    for step_s in _WINDOW_STEPS_S:
        if span_us <= step_s * 1_000_000 * _WINDOWS_MAX:
            return step_s * 1_000_000
    days = math.ceil(span_us / (_WINDOW_STEPS_S[-1] * 1_000_000 * _WINDOWS_MAX))
    return days * _WINDOW_STEPS_S[-1] * 1_000_000
