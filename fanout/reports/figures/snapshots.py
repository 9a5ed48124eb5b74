"""The section on the epochs of links: how each began, became ready and was torn down."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from fanout.reports.compare import snapshots
from fanout.reports.figures.parquet import ParquetTables
from fanout.reports.read.reading import Tables, collect_rows
from fanout.reports.read.rows import small_frame
from fanout.reports.read.scope import WHOLE, AskedWindow
from fanout.reports.read.survey import Survey
from fanout.reports.values.figures import Listed, time_of
from fanout.reports.values.findings import LinkEpoch, LinkSnapshots, SnapshotSection

__all__ = ["describe_snapshots"]


def describe_snapshots(
    spark: SparkSession,
    tables: Tables,
    *,
    survey: Survey,
    settle_us: int,
    window: AskedWindow = WHOLE,
    list_limit: int,
    parquet: ParquetTables,
) -> SnapshotSection:
    """Return every epoch of every link that has a part in a window: in numbers, and the latest of them one by one."""
    ends: list[tuple[object, ...]] = [
        (node, survey.log_span_us(node)[1], survey.epochs(node)[-1] if survey.stopped_us(node) is None else None)
        for node in survey.roles
    ]
    of_nodes = small_frame(spark, ends, schema="node string, end_us bigint, open_epoch bigint")
    epochs = snapshots.link_epochs(tables.events, ends=of_nodes, settle_us=settle_us)
    if not window.is_whole:
        epochs = epochs.where((sf.col("begin_us") < window.until_us) & (sf.col("last_us") >= window.since_us))
    epochs.persist()
    try:
        links = collect_rows(snapshots.summarize_epochs(epochs).orderBy("node", "link"))
        latest = collect_rows(
            epochs.orderBy(sf.desc("begin_us"), "node", "link", "node_epoch", "link_epoch").limit(list_limit)
        )
        parquet.write("snapshots", epochs)
    finally:
        epochs.unpersist()
    return SnapshotSection(
        links=tuple(
            LinkSnapshots(
                **{name: row[name] for name in ("node", "link", "epochs", "ready", "never", "pending", "tear_downs")},
                least_ready_s=_seconds(row["least_ready_us"]),
                most_ready_s=_seconds(row["most_ready_us"]),
                last_ready_s=_seconds(row["last_ready_us"]),
                topics=row["topics"],
                evidence=row["evidence"] or "",
            )
            for row in links
        ),
        epochs=Listed[LinkEpoch](
            total=sum(row["epochs"] for row in links),
            listed=tuple(
                LinkEpoch(
                    **{
                        name: row[name]
                        for name in (
                            *("node", "link", "verdict", "entered_live", "selectors", "topics"),
                            *("evidence", "tear_downs"),
                        )
                    },
                    process=row["node_epoch"],
                    epoch=row["link_epoch"],
                    begin=time_of(row["begin_us"]),
                    ready=None if row["live_us"] is None else time_of(row["live_us"]),
                    ready_s=_seconds(row["ready_us"]),
                    last=time_of(row["last_us"]),
                )
                for row in latest
            ),
        ),
    )


def _seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / 1e6
