"""The section on who publishes what, by topic prefix."""

from __future__ import annotations

from typing import Final

from pyspark.sql import functions as sf

from fanout.reports.compare import traffic
from fanout.reports.figures.material import Material, Part
from fanout.reports.read import rows
from fanout.reports.read.details import CONTROL_TOPIC
from fanout.reports.read.reading import collect_rows
from fanout.reports.read.scope import Group, Reference
from fanout.reports.session.sail import keep
from fanout.reports.values.figures import Listed, percent
from fanout.reports.values.findings import PrefixTraffic, Publisher, SourceTraffic, TrafficSection

__all__ = ["basis_statement", "describe_traffic"]

_SOURCES = "node string, link string, `group` int, settled_until_us bigint"
_NOTHING: Final = dict.fromkeys(("updates", "payload_bytes", "topics", "prefixes", "pending"), 0)


def basis_statement(reference: Reference) -> str:
    """Return what the counts are relative to."""
    if reference.kind == "primary":
        return f"Counted is what was published at {reference.name}, by its own log."
    if reference.kind == "union":
        return (
            "For each topic and publishing node the log that saw most of it is counted: at least as much was published."
        )
    return f"Counted is what {reference.name} received: at least as much was published."


def describe_traffic(material: Material) -> Part:
    """Return how many updates and bytes were published under each prefix, and at which nodes."""
    survey, scope, depth = material.survey, material.traffic_scope, material.depth
    titles = {group.id: _title(group) for group in scope.groups}
    settled_until_us = {
        group.id: max(survey.log_span_us(node)[1] for node, _ in group.sources) - scope.settle_us
        for group in scope.groups
    }
    sources: list[tuple[object, ...]] = [(*source, settled_until_us[source[-1]]) for source in scope.sources]
    names: list[tuple[object, ...]] = list(titles.items())
    control_topics = {CONTROL_TOPIC} | {
        selection.control_topic
        for node in survey.roles
        for link in survey.config(node).links
        for selection in link.selections
    }
    in_window = material.tables.updates.where(rows.is_within(sf.col("applied"), scope.window))
    topics = keep(
        traffic.count_topics(
            in_window,
            sources=rows.small_frame(material.spark, sources, schema=_SOURCES),
            control_topics=sorted(control_topics),
            union=scope.reference.kind == "union",
        )
    )
    try:
        whole = {row["group"]: row for row in collect_rows(traffic.count_by_source(topics, depth=depth))}
        prefixes = traffic.count_by_prefix(topics, depth=depth)
        busiest = collect_rows(prefixes.orderBy(sf.desc("updates"), "group", "prefix").limit(material.list_limit))
        named = rows.small_frame(material.spark, names, schema="`group` int, source string")
        material.parquet.write("traffic", prefixes.join(sf.broadcast(named), on="group", how="inner"))
    finally:
        topics.unpersist()
    section = TrafficSection(
        depth=depth,
        sources=tuple(
            SourceTraffic.of(
                whole.get(group.id, _NOTHING), source=titles[group.id], basis=group.basis, exact=group.exact
            )
            for group in scope.groups
        ),
        prefixes=Listed[PrefixTraffic](
            total=sum(row["prefixes"] for row in whole.values()),
            listed=tuple(
                PrefixTraffic.of(
                    row,
                    source=titles[row["group"]],
                    updates_percent=percent(row["updates"], whole[row["group"]]["updates"]) or 0.0,
                    bytes_percent=percent(row["payload_bytes"], whole[row["group"]]["payload_bytes"]),
                    publishers=tuple(Publisher(**one.asDict()) for one in row["publishers"]),
                )
                for row in busiest
            ),
        ),
    )
    return Part({"traffic": section})


def _title(group: Group) -> str:
    return ", ".join(f"{node}/{link}" if link else f"{node}, published" for node, link in sorted(set(group.sources)))
