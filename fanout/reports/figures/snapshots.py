"""The sections on links: from connect to ready, and the epochs: how each began, became ready and was torn down."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fanout.reports.compare.link_periods import latest_periods, link_periods, summarize_periods
from fanout.reports.figures.material import Material, Part
from fanout.reports.read.reading import collect_rows
from fanout.reports.read.rows import small_frame
from fanout.reports.session.sail import keep
from fanout.reports.values.document import Attempt, ReadySection, ReadySummary
from fanout.reports.values.figures import Listed, time_of
from fanout.reports.values.findings import LinkEpoch, LinkSnapshots, SnapshotSection

__all__ = ["describe_links"]


def describe_links(material: Material, *, shows: Collection[str] = ("ready", "snapshots")) -> Part:
    """Return the sections on links, of what was under way in the window.

    Args:
        material: Result of the first look.
        shows: Which of them: `ready`, how long each link took from connect to ready, and `snapshots`, every epoch of
            every link, in numbers and the latest of them one by one. Its table goes with it.
    """
    survey, window = material.survey, material.window
    ends: list[tuple[object, ...]] = [
        (node, survey.log_span_us(node)[1], survey.epochs(node)[-1] if survey.stopped_us(node) is None else None)
        for node in survey.roles
    ]
    of_nodes = small_frame(material.spark, ends, schema="node string, end_us bigint, open_epoch bigint")
    periods = keep(link_periods(material.tables.events, ends=of_nodes, settle_us=material.settle_us, window=window))
    try:
        links = collect_rows(summarize_periods(periods).orderBy("node", "link"))
        latest = collect_rows(latest_periods(periods, limit=material.list_limit))
        if "snapshots" in shows:
            epochs = periods.where("kind = 'epoch' AND shown")
            material.parquet.write("snapshots", epochs.withColumnRenamed("number", "link_epoch"))
    finally:
        periods.unpersist()
    torn = {(row["node"], row["link"]): row["torn"] for row in links if row["kind"] == "epoch"}
    sections = {
        "ready": _ready([row for row in links if row["kind"] == "attempt" and row["shown"]], latest=latest, torn=torn),
        "snapshots": _snapshots([row for row in links if row["kind"] == "epoch" and row["shown"]], latest=latest),
    }
    return Part({name: sections[name] for name in shows})


def _ready(
    links: list[dict[str, Any]], *, latest: list[dict[str, Any]], torn: dict[tuple[str, str], int]
) -> ReadySection:
    return ReadySection(
        links=tuple(
            ReadySummary.of(row, attempts=row["shown"], tear_downs=torn[row["node"], row["link"]]) for row in links
        ),
        attempts=Listed[Attempt](
            total=sum(row["ready"] for row in links),
            listed=tuple(
                Attempt.of(row, connecting=time_of(row["begin_us"])) for row in latest if row["kind"] == "attempt"
            ),
        ),
    )


def _snapshots(links: list[dict[str, Any]], *, latest: list[dict[str, Any]]) -> SnapshotSection:
    return SnapshotSection(
        links=tuple(LinkSnapshots.of(row, epochs=row["shown"]) for row in links),
        epochs=Listed[LinkEpoch](
            total=sum(row["shown"] for row in links),
            listed=tuple(
                LinkEpoch.of(
                    row,
                    process=row["node_epoch"],
                    epoch=row["number"],
                    ready=None if row["live_us"] is None else time_of(row["live_us"]),
                )
                for row in latest
                if row["kind"] == "epoch"
            ),
        ),
    )
