"""Every update that a node lacks with its topic and time, and whether a later snapshot made up for it.

Only words that have holes are joined back with the reference's rows, so the cost follows the loss, not the traffic.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from fanout.reports.compare.sequence_bits import KEY, absent_bits, bit_of, missing_bits, origin_us, word
from fanout.reports.read.schemas import PHASE_LIVE

__all__ = ["absent_updates", "latest_copies"]


def absent_updates(
    rows: DataFrame, *, words: DataFrame, copies: DataFrame, few_holes: bool = False, more: Sequence[str] = ()
) -> DataFrame:
    """Return one row for each update that a target lacks.

    Args:
        rows: Stamped reference rows by target.
        words: The merged words.
        copies: `latest_copies` of the nodes' rows.
        few_holes: True if the words with holes fit into the memory of every executor. They are then broadcast to the
            rows: Spark by itself would shuffle every row of the reference.
        more: Columns of the reference's rows to keep.

    Returns:
        Columns target, primary, epoch, sequence, topic, origin_us; known: whether it is missing for sure, not absent in
        a gap of the node's log; superseded: whether the node got a later value of the topic as a retained value; and
        those of `more`.
    """
    holes = words.select(*KEY, absent_bits().alias("absent"), missing_bits().alias("missing")).where(
        sf.col("absent") != 0
    )
    if few_holes:
        holes = sf.broadcast(holes)
    bit = bit_of(sf.col("sequence"))
    named = rows.select(
        "target",
        sf.col("stamp_primary").alias("primary"),
        sf.col("stamp_epoch").alias("epoch"),
        word().alias("word"),
        "sequence",
        "topic",
        origin_us().alias("origin_us"),
        *more,
    )
    lost = (
        named.join(holes, on=list(KEY), how="inner")
        .where(sf.col("absent").bitwiseAND(bit) != 0)
        .withColumn("known", sf.col("missing").bitwiseAND(bit) != 0)
        # A tap, or a union, may hold an update more than once.
        .groupBy("target", "primary", "epoch", "sequence", "topic", "known")
        .agg(sf.min("origin_us").alias("origin_us"), *(sf.max(name).alias(name) for name in more))
    )
    later = (sf.col("copy_epoch") > sf.col("epoch")) | (
        (sf.col("copy_epoch") == sf.col("epoch")) & (sf.col("copy_sequence") > sf.col("sequence"))
    )
    return lost.join(copies, on=["target", "primary", "topic"], how="left").select(
        "target",
        "primary",
        "epoch",
        "sequence",
        "topic",
        "origin_us",
        "known",
        sf.coalesce(later, sf.lit(False)).alias("superseded"),
        *more,
    )


def latest_copies(rows: DataFrame) -> DataFrame:
    """Return the newest identity that each target got as a retained value: one row per primary and topic.

    Args:
        rows: Stamped rows of nodes by target.

    Returns:
        Columns target, primary, topic, copy_epoch, copy_sequence.
    """
    by_epoch = (
        rows.where(sf.col("phase") > PHASE_LIVE)
        .groupBy(
            "target",
            sf.col("stamp_primary").alias("primary"),
            "topic",
            sf.col("stamp_epoch").alias("copy_epoch"),
        )
        .agg(sf.max("sequence").alias("copy_sequence"))
    )
    # The newest by (epoch, sequence), in two steps over longs: max(struct) would sort every row.
    return by_epoch.groupBy("target", "primary", "topic").agg(
        sf.max_by("copy_sequence", "copy_epoch").alias("copy_sequence"),
        sf.max("copy_epoch").alias("copy_epoch"),
    )
