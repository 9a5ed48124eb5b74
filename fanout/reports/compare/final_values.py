"""Final values: what each link holds at the end, compared topic by topic with what the reference holds."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as sf

__all__ = ["UNEQUAL", "VERDICTS", "final_verdict"]

UNEQUAL = ("different", "absent", "extra")
"""The verdicts on a topic that differs."""
VERDICTS = ("equal", *UNEQUAL, "pending", "unknown")
"""Verdicts on a topic at a node, in this order: the reference's value; another value; no value, but the reference has
one; a value, but the reference has none; different, but changed too recently to be judged; not logged since a gap in a
log.
"""


def final_verdict() -> Column:
    """Return the verdict on a row of `topic_states`; null when both are known to hold nothing.

    The row also has the target's settled_until_us and silent_after_us, and reference_gap and node_gap: true if rows of
    the log may be missing, so that a topic without a row may have a value.
    """
    equal = sf.equal_null("wanted_digest", "held_digest")
    wanted_sure = sf.coalesce("wanted_sure", ~sf.col("reference_gap"))
    heard = sf.coalesce(sf.col("wanted_changed_us") <= sf.col("silent_after_us"), sf.lit(True))
    held_sure = sf.coalesce("held_sure", ~sf.col("node_gap")) & heard
    # What the node last logged is the reference's last update itself, so nothing newer can have been lost.
    same_update = (
        (sf.col("wanted_sequence") > 0)
        & (sf.col("wanted_sequence") == sf.col("held_sequence"))
        & (sf.col("wanted_stamp_epoch") == sf.col("held_stamp_epoch"))
    )
    known = wanted_sure & (held_sure | (equal & sf.coalesce(same_update, sf.lit(False))))
    changed_us = sf.greatest("wanted_changed_us", "held_changed_us")
    return (
        sf.when(sf.coalesce("wanted_digest", "held_digest").isNull(), sf.lit(None))
        .when(~known, "unknown")
        .when(equal, "equal")
        .when(changed_us > sf.col("settled_until_us"), "pending")
        .when(sf.col("held_digest").isNull(), "absent")
        .when(sf.col("wanted_digest").isNull(), "extra")
        .otherwise("different")
    )
