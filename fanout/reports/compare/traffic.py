"""Traffic by publisher and topic prefix, as the reference saw it.

Rows are counted by topic first. So Spark shuffles a row for each topic, not for each update, and a topic with half of
all updates is one row for each task.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from fanout.reports.compare.prefixes import prefix_of
from fanout.reports.read.rows import is_live

__all__ = ["PUBLISHERS_MAX", "count_by_prefix", "count_by_source", "count_topics"]

PUBLISHERS_MAX = 3
"""The most publishing nodes that are named for a prefix."""

_SUMS = ("updates", "payload_bytes", "retained", "pending")


def count_topics(updates: DataFrame, *, sources: DataFrame, control_topics: Sequence[str], union: bool) -> DataFrame:
    """Return what was published of each topic: one row for each (group, topic, publisher).

    Args:
        updates: The table, as far as it is of the window.
        sources: (node, link, group, settled_until_us): what the reference logged, and until when it is counted.
        control_topics: Messages below these are those of links to themselves, and no traffic.
        union: True if several nodes saw the same updates: then the node that saw most of a topic counts.

    Returns:
        Columns group, topic, publisher (null without a stamp), updates, payload_bytes, retained, pending.
    """
    own = reduce(or_, (sf.startswith("topic", sf.lit(f"{topic}/")) for topic in control_topics), sf.lit(False))
    settled = sf.unix_micros("applied") <= sf.col("settled_until_us")
    size = sf.col("payload_bytes").cast("long")
    by_source = (
        updates.where(is_live() & ~own)
        .join(sf.broadcast(sources), on=["node", "link"], how="inner")
        .groupBy("group", "node", "link", "topic", sf.col("stamp_primary").alias("publisher"))
        .agg(
            sf.count_if(settled).alias("updates"),
            sf.sum(sf.when(settled, size).otherwise(sf.lit(0).cast("long"))).alias("payload_bytes"),
            sf.count_if(settled & sf.col("retain")).alias("retained"),
            sf.count_if(~settled).alias("pending"),
        )
    )
    together = sf.max if union else sf.sum
    return by_source.groupBy("group", "topic", "publisher").agg(*(together(name).alias(name) for name in _SUMS))


def count_by_source(topics: DataFrame, *, depth: int) -> DataFrame:
    """Return, for each group, updates, payload_bytes, topics, prefixes and pending."""
    seen = sf.col("updates") > 0
    prefix = prefix_of(sf.col("topic"), depth=depth)
    by_topic = topics.groupBy("group", "topic").agg(*(sf.sum(name).alias(name) for name in _SUMS))
    return (
        by_topic.groupBy("group", prefix.alias("prefix"))
        .agg(
            *(sf.sum(name).alias(name) for name in _SUMS),
            sf.count_if(seen).alias("topics"),
        )
        .groupBy("group")
        .agg(
            *(sf.sum(name).alias(name) for name in (*_SUMS, "topics")),
            sf.count_if(sf.col("topics") > 0).alias("prefixes"),
        )
    )


def count_by_prefix(topics: DataFrame, *, depth: int) -> DataFrame:
    """Return, for each (group, prefix), updates, payload_bytes, retained, topics, and its top publishers.

    The share of a prefix is not in it: its whole is a row of `count_by_source`.
    """
    prefix = prefix_of(sf.col("topic"), depth=depth).alias("prefix")
    settled = topics.where(sf.col("updates") > 0)
    by_topic = (
        settled.groupBy("group", "topic")
        .agg(*(sf.sum(name).alias(name) for name in _SUMS))
        .groupBy("group", prefix)
        .agg(
            *(sf.sum(name).alias(name) for name in ("updates", "payload_bytes", "retained")),
            sf.count(sf.lit(1)).alias("topics"),
        )
    )
    # As many rows as a prefix has publishing nodes, which are few.
    ranked = sf.sort_array(sf.collect_list(sf.struct((-sf.col("updates")).alias("less"), "publisher")))
    publishers = (
        settled.groupBy("group", prefix, "publisher")
        .agg(sf.sum("updates").alias("updates"))
        .groupBy("group", "prefix")
        .agg(
            sf.transform(
                sf.slice(ranked, 1, PUBLISHERS_MAX),
                lambda one: sf.struct(one["publisher"].alias("node"), (-one["less"]).alias("updates")),
            ).alias("publishers")
        )
    )
    return by_topic.join(publishers, on=["group", "prefix"], how="inner")
