"""The positions of a log in blocks: how many rows of each are there, and of what time.

Positions that no row has show as blocks with too few rows (`fanout.reports.read.lost_positions`), without sorting any
row.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

__all__ = ["count_blocks"]


def count_blocks(
    updates: DataFrame, *, events: DataFrame, since: Mapping[str, tuple[int, int]], bits: int
) -> DataFrame:
    """Return, for each block of 2**bits positions of these nodes' processes that has rows, how many and of what time.

    Args:
        updates: The table `updates`.
        events: The table `events`.
        since: The nodes, each with the (node epoch, position) of its first update. Rows of that process from there on
            are counted as `later` too.
        bits: The size of a block.

    Returns:
        The columns of `PositionBlock`; (node, node_epoch, block) is the key.
    """

    def rows(table: DataFrame, time: str) -> DataFrame:
        at_us: Column = sf.unix_micros(time)
        return table.where(sf.col("node").isin(list(since))).select(
            "node", "node_epoch", sf.shiftright("log_pos", bits).alias("block"), at_us.alias("at_us"), "log_pos"
        )

    later = reduce(
        or_,
        (
            (sf.col("node") == node) & (sf.col("node_epoch") == epoch) & (sf.col("log_pos") >= pos)
            for node, (epoch, pos) in since.items()
        ),
    )

    both = rows(updates, "applied").unionByName(rows(events, "at"))
    return both.groupBy("node", "node_epoch", "block").agg(
        sf.count(sf.lit(1)).alias("rows"),
        sf.count_if(later).alias("later"),
        sf.min("at_us").alias("first_us"),
        sf.max("at_us").alias("last_us"),
    )
