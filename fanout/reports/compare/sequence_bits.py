"""The word plan: which sequences a node applied, as bits of 64-bit words.

A word is (target, primary, epoch, sequence >> 6); the reference's rows set the bits that were
expected, the node's rows those that came. Merging is `bit_or` over fixed-width columns, so 64 rows become one
before anything is shuffled, and no row of one log is ever joined with a row of another.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from fanout.replog.files.schema import FLAG_OVERTAKEN
from fanout.reports.read.rows import conflated, in_gap, is_live, is_within
from fanout.reports.read.schemas import CHANGE_REFUSED, PHASE_LIVE, PHASE_UNSURE
from fanout.reports.read.scope import NEVER_US, WHOLE, AskedWindow, Scope

__all__ = [
    "KEY",
    "REFERENCE",
    "absent_bits",
    "applied_words",
    "bit_of",
    "count_words",
    "expected_words",
    "identified",
    "is_expected",
    "merge_words",
    "missing_bits",
    "origin_us",
    "sequence_words",
    "stamped",
    "word",
]

KEY = ("target", "primary", "epoch", "word")
"""Key of a word."""

REFERENCE: Final = -1
"""Stands in the place of a target for the reference's own sequences."""

_BITS = ("settled", "pending", "outside", "doubtful", "applied", "counted", "judged", "reobtained", "conflated")
_COUNTS = ("live_rows", "stale_rows", "refused_rows")


def word() -> Column:
    """Return the word of a row's sequence.

    Not floor(sequence / 64), which Spark computes in floating point and gets wrong above 2**53.
    """
    return sf.shiftright("sequence", 6)


def bit_of(sequence: Column) -> Column:
    """Return the bit of a sequence inside its word."""
    return sf.call_function("shiftleft", sf.lit(1).cast("long"), sequence.bitwiseAND(63).cast("int"))


def expected_words(rows: DataFrame, *, gaps: bool) -> DataFrame:
    """Return the word rows of what had to be applied.

    Args:
        rows: Stamped reference rows by target, with the target's spans.
        gaps: True if a target has gaps; without any, no row is asked whether it lies in one.
    """
    at_us = origin_us()
    covered = (at_us > sf.col("covered_from_us")) & (at_us <= sf.col("covered_until_us"))
    settled = at_us <= sf.col("settled_until_us")
    bit = bit_of(sf.col("sequence"))
    return _word_rows(
        rows,
        settled=_where(covered & settled, bit),
        pending=_where(covered & ~settled, bit),
        outside=_where(~covered, bit),
        **({"doubtful": _where(covered & settled & in_gap(at_us), bit)} if gaps else {}),
    )


def applied_words(rows: DataFrame, *, window: AskedWindow = WHOLE) -> DataFrame:
    """Return the word rows of what a node applied, got back as a retained value, or folded away.

    Args:
        rows: Stamped rows of nodes by target, with the target's spans.
        window: Window of the report. A later row may be an update of the window. Duplicated, stale and refused rows,
            and rows that the reference lacks, count only if stamped in the window.
    """
    bit = bit_of(sf.col("sequence"))
    at_us = origin_us()
    counted = is_live() & is_within(sf.coalesce("origin", "applied"), window)
    within = (at_us >= sf.col("reference_from_us")) & (at_us <= sf.col("reference_until_us"))
    return _word_rows(
        rows,
        applied=_where(is_live(), bit),
        counted=_where(counted, bit),
        judged=_where(counted & within, bit),
        doubtful=_where(sf.col("phase") == PHASE_UNSURE, bit),
        reobtained=_where((sf.col("phase") > PHASE_LIVE) & ~conflated(), bit),
        conflated=_where(conflated(), bit),
        live_rows=_where(counted, sf.lit(1)),
        stale_rows=_where(counted & (sf.col("flags").bitwiseAND(FLAG_OVERTAKEN) != 0), sf.lit(1)),
        refused_rows=_where(counted & (sf.col("change") == CHANGE_REFUSED), sf.lit(1)),
    )


def merge_words(*word_rows: DataFrame) -> DataFrame:
    """Return the words, one row for each key."""
    rows = reduce(DataFrame.unionByName, word_rows)
    return rows.groupBy(*KEY).agg(
        *(sf.bit_or(name).alias(name) for name in _BITS), *(sf.sum(name).alias(name) for name in _COUNTS)
    )


def is_expected() -> Column:
    """Return whether a reference row, with its target's spans, had to be applied and is old enough to be judged."""
    return (origin_us() > sf.col("covered_from_us")) & (origin_us() <= sf.col("settled_until_us"))


def absent_bits() -> Column:
    """Return the bits that were expected and came in no way, whether or not the node could log."""
    return sf.col("settled").bitwiseAND(_without(_came()))


def missing_bits() -> Column:
    """Return the bits that were expected and came in no way, though the node could log."""
    return absent_bits().bitwiseAND(_without(sf.col("doubtful")))


def count_words(words: DataFrame) -> DataFrame:
    """Return the counts of a report by target, added up over words.

    expected = applied + reobtained + conflated + missing + unknown, each update in the first that fits; hole_words is
    how many words lack an update.

    The sequences of the reference itself have a row for each primary and epoch, with first_sequence and last_sequence,
    which are null in other rows. They go from the last one before the window to the first one after it, because absent
    ones in between may belong to the window. `expected` is how many are there. Both are null where there is nothing on
    one side, and the first is the greater one where nothing can be absent.
    """
    is_reference = sf.col("target") == REFERENCE
    settled, applied = sf.col("settled"), sf.col("applied")
    copied = sf.col("reobtained").bitwiseAND(_without(applied))
    folded = sf.col("conflated").bitwiseAND(_without(applied.bitwiseOR(sf.col("reobtained"))))
    known = settled.bitwiseOR(sf.col("pending")).bitwiseOR(sf.col("outside"))
    counted = {
        "expected": settled,
        "applied": settled.bitwiseAND(applied),
        "reobtained": settled.bitwiseAND(copied),
        "conflated": settled.bitwiseAND(folded),
        "missing": missing_bits(),
        "unknown": absent_bits().bitwiseAND(sf.col("doubtful")),
        "pending": sf.col("pending"),
        "pending_applied": sf.col("pending").bitwiseAND(_came()),
        "unreferenced": sf.col("judged").bitwiseAND(_without(known)),
    }
    own = [sf.when(is_reference, sf.col(name)).alias(name) for name in ("primary", "epoch")]
    first, last = sf.min(_first("settled")), sf.max(_last("settled"))
    return words.groupBy("target", *own).agg(
        *(sf.sum(sf.bit_count(bits)).alias(name) for name, bits in counted.items()),
        sf.sum(sf.col("live_rows") - sf.bit_count("counted")).alias("duplicated"),
        sf.sum("stale_rows").alias("stale"),
        sf.sum("refused_rows").alias("refused"),
        sf.count_if(absent_bits() != 0).alias("hole_words"),
        sf.least(first, sf.max(_last("pending")) + 1).alias("first_sequence"),
        sf.greatest(last, sf.min(_first("outside")) - 1).alias("last_sequence"),
    )


def sequence_words(rows: DataFrame, *, window: AskedWindow = WHOLE) -> DataFrame:
    """Return the word rows of what the reference itself holds, of the target `REFERENCE`.

    Args:
        rows: The reference's rows with its own stamps.
        window: Window of the report.
    """
    applied, bit = sf.col("applied"), bit_of(sf.col("sequence"))
    inside = is_within(applied, window)
    before = ~is_within(applied, replace(window, until_us=NEVER_US))
    after = ~is_within(applied, replace(window, since_us=-NEVER_US))
    return _word_rows(
        rows.withColumn("target", sf.lit(REFERENCE)),
        settled=_where(inside, bit),
        applied=_where(inside, bit),
        pending=_where(before, bit),
        outside=_where(after, bit),
    )


def stamped(scope: Scope) -> Column:
    """Return whether a row with the column `target` or `group` carries a stamp of its own group's primary."""
    by_group = [
        (sf.col("group") == group.id) & sf.col("stamp_primary").isin(list(group.stamped_by))
        for group in scope.groups
        if group.basis == "stamped"
    ]
    return sf.col("sequence").isNotNull() & reduce(or_, by_group, sf.lit(False))


def identified(scope: Scope, *, side: int) -> Column:
    """Return whether a row, as for `stamped`, has an identity: a stamp, or without stamps one by counting, of a side.

    In a union each node is of both sides. Rows of a node must not stand for the reference's: their times are by another
    clock, and do not say if an update was due.
    """
    groups = sorted({target.group for target in scope.targets_of("unstamped")})
    if not groups:
        return stamped(scope)
    is_counted = sf.col("group").isin(groups) & (sf.col("side") == side)
    return (stamped(scope) & sf.col("side").isNull()) | sf.coalesce(is_counted, sf.lit(False))


def origin_us() -> Column:
    """Return when a row's update was stamped, in microseconds of Unix time."""
    return sf.unix_micros(sf.coalesce("origin", "applied"))


def _first(bits: str) -> Column:
    """Return the lowest sequence of a word among some of its bits; null of none."""
    lowest = sf.locate("1", sf.reverse(sf.bin(bits))) - 1
    return sf.when(sf.col(bits) != 0, sf.col("word") * 64 + lowest)


def _last(bits: str) -> Column:
    """Return the highest sequence of a word among some of its bits; null of none."""
    return sf.when(sf.col(bits) != 0, sf.col("word") * 64 + sf.length(sf.bin(bits)) - 1)


def _came() -> Column:
    return sf.col("applied").bitwiseOR(sf.col("reobtained")).bitwiseOR(sf.col("conflated"))


def _where(condition: Column, value: Column) -> Column:
    return sf.when(condition, value.cast("long")).otherwise(sf.lit(0).cast("long"))


def _word_rows(rows: DataFrame, **values: Column) -> DataFrame:
    nothing = sf.lit(0).cast("long")
    return rows.select(
        "target",
        sf.col("stamp_primary").alias("primary"),
        sf.col("stamp_epoch").alias("epoch"),
        word().alias("word"),
        *(values.get(name, nothing).alias(name) for name in (*_BITS, *_COUNTS)),
    )


def _without(bits: Column) -> Column:
    """Return the other bits of a word. Not `~`: of `~(a | b)` the optimizer of Sail 0.7.2 makes something else."""
    return bits.bitwiseXOR(sf.lit(-1).cast("long"))
