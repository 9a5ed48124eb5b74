"""Sealed files that a report on a window of time reads if Spark alone sees them, as in an object store.

Owns the choice by names: the directories of a file say in which hour its segment was opened, and nodes seal it when
that hour ends. So whole hours are left out, of the table `updates` alone: only the events themselves tell which of them
say something. Spark lists the files, over Spark Connect too, and none that is left out is opened.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from fanout.reports.read.log_files import LogFiles
from fanout.reports.read.reading import collect_rows, read_tables
from fanout.reports.read.recent_files import MARGIN_US, SealedFile, Segment, Span, cut_of, sealed_file
from fanout.reports.read.scope import AskedWindow
from fanout.reports.read.survey import LogCut
from fanout.reports.session.places import is_missing, is_uri
from fanout.reports.session.spark_errors import SPARK_ERRORS

__all__ = ["recent_by_name"]

_HOUR_US: Final = 3_600_000_000
_NONE: Final[Segment] = (2**63, 0)
"""Behind every segment."""


def recent_by_name(spark: SparkSession, files: LogFiles, *, window: AskedWindow) -> tuple[LogFiles, tuple[LogCut, ...]]:
    """Return the files that a report on a window needs, and where the logs begin that are not read whole.

    The window is by any node's clock. If the newest file of a log is some hours older than another's, the log is read
    back by as many hours more, because its clock may be slow. If a file has another name than nodes give, or Spark
    cannot list them, all are read, which tells why.

    Args:
        spark: The session.
        files: The logs.
        window: Window of the report. For one without a begin or an end all is read: final values need all rows. So is
            all of files on this machine, of which `recent_files` chooses.

    Raises:
        ReportError: A file cannot be read.
    """
    if not (window.has_begin and window.has_end and any(map(is_uri, (*files.updates, *files.events)))):
        return files, ()
    listed = [_listed(spark, paths) for paths in (files.updates, files.events)]
    if not listed[0] or None in listed:
        return files, ()
    updates, events = (found or [] for found in listed)
    by_node: dict[str, list[SealedFile]] = defaultdict(list)
    for one in (*updates, *events):
        by_node[one.node].append(one)
    newest_us = {node: max(one.hour_us for one in found) for node, found in by_node.items()}
    begins: dict[str, Segment] = {}
    for node, found in by_node.items():
        from_us = window.since_us - MARGIN_US - (max(newest_us.values()) - newest_us[node])
        # A clock that was set back has later hours in earlier segments.
        first = min((one.segment for one in found if one.hour_us + _HOUR_US > from_us), default=_NONE)
        # What is read begins before that, as the log did: with a segment of an earlier hour.
        begins[node] = max((one.segment for one in found if one.segment < first), default=first)
    recent = [one for one in updates if one.segment >= begins[one.node]]
    if len(recent) == len(updates):
        return files, ()
    left_out = {one.node for one in updates if one.segment < begins[one.node]}
    taken = [
        [one.path for one in table if one.node in left_out and one.segment >= begins[one.node]]
        for table in (recent, events)
    ]
    chosen = replace(files, updates=tuple(one.path for one in recent), counts=(len(recent), len(events)))
    return chosen, _cuts(spark, replace(files, updates=tuple(taken[0]), events=tuple(taken[1])))


def _listed(spark: SparkSession, paths: Sequence[str]) -> list[SealedFile] | None:
    """Return the files at paths and URIs; None if one has no name that nodes give, or they cannot be listed."""
    try:
        names = [name for path in paths for name in (_below(spark, path) if is_uri(path) else [path])]
    except SPARK_ERRORS:
        return None
    found = [one for one in map(sealed_file, names) if one is not None]
    return found if len(found) == len(names) else None


def _below(spark: SparkSession, uri: str) -> list[str]:
    """Return the Parquet files below a URI, none if there is no such place; only their names are looked at."""
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        return sorted(map(unquote, reader.option("pathGlobFilter", "*.parquet").load(uri).inputFiles()))
    except AnalysisException as error:
        if is_missing(error):
            return []
        raise


def _cuts(spark: SparkSession, files: LogFiles) -> tuple[LogCut, ...]:
    """Return the begin of the rows in these files, by node."""
    if not files.updates and not files.events:
        return ()
    tables = read_tables(spark, files)
    rows = (
        tables.updates.select("node", "node_epoch", "log_pos", sf.col("applied").alias("at"))
        .unionByName(tables.events.select("node", "node_epoch", "log_pos", "at"))
        .groupBy("node", "node_epoch")
        .agg(
            sf.count(sf.lit(1)).alias("rows"),
            *(of("log_pos").alias(f"{name}_pos") for name, of in (("first", sf.min), ("last", sf.max))),
            *(sf.unix_micros(of("at")).alias(f"{name}_us") for name, of in (("first", sf.min), ("last", sf.max))),
        )
    )
    by_node: dict[str, dict[Segment, Span]] = defaultdict(dict)
    for row in collect_rows(rows):
        node, node_epoch = row.pop("node"), row.pop("node_epoch")
        by_node[node][node_epoch, 0] = Span(**row)
    return tuple(cut_of(node, taken) for node, taken in sorted(by_node.items()))
