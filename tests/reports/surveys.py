"""Surveys for the tests that need no Spark, made from literal logs by plain Python."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fanout.reports.read.details import parse_gap_detail
from fanout.reports.read.lost_positions import PositionBlock, block_bits, find_holes
from fanout.reports.read.survey import CompleteSummary, EventSummary, StartRecord, Survey, UpdateSummary
from tests.reports.logs import NodeLog, Row
from tests.reports.oracle import micros


def survey_of(*logs: NodeLog, holes: bool = True) -> Survey:
    """Return what the first look would find in these logs, with or without another one for holes."""
    updates: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    events: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    completes: dict[tuple[str, int, str, int, str], list[Row]] = defaultdict(list)
    every = [row for log in logs for row in log.events]
    for row in (row for log in logs for row in log.updates):
        place = (row["node"], row["role"], row["node_epoch"], row["link"], row["link_epoch"])
        updates[(*place, row["phase"] == 0, row["stamp_primary"])].append(row)
    for row in every:
        events[row["node"], row["role"], row["node_epoch"], row["link"]].append(row)
        if row["event"] == "complete":
            key = (row["node"], row["node_epoch"], row["link"], row["link_epoch"], row["selector"])
            completes[key].append(row)
    survey = Survey(
        updates=tuple(UpdateSummary(*key, *_update_numbers(rows)) for key, rows in updates.items()),
        events=tuple(EventSummary(*key, *_event_numbers(rows)) for key, rows in events.items()),
        completes=tuple(
            CompleteSummary(*key, first_us=min(micros(r["at"]) for r in rows)) for key, rows in completes.items()
        ),
        starts=tuple(
            StartRecord(r["node"], r["node_epoch"], micros(r["at"]), r["detail"])
            for r in every
            if r["event"] == "start"
        ),
        gaps=tuple(
            parse_gap_detail(
                r["detail"], node=r["node"], link=r["link"], node_epoch=r["node_epoch"], at_us=micros(r["at"])
            )
            for r in every
            if r["event"] == "gap"
        ),
    )
    if not holes or not any(survey.unexplained_rows(node) for node in survey.roles):
        return survey
    bits = block_bits(survey)
    blocks: dict[tuple[str, int, int], list[Row]] = defaultdict(list)
    for row in (row for log in logs for row in (*log.updates, *log.events)):
        blocks[row["node"], row["node_epoch"], row["log_pos"] >> bits].append(row)
    found = [PositionBlock(*key, *_block_numbers(rows, survey)) for key, rows in blocks.items()]
    lost, begins = find_holes(survey, blocks=found, bits=bits)
    return replace(survey, holes=lost, begins=begins)


def _block_numbers(rows: list[Row], survey: Survey) -> tuple[int, int, int, int]:
    times = [micros(row.get("applied") or row["at"]) for row in rows]
    epoch, pos = survey.first_updates[rows[0]["node"]]
    later = sum(row["node_epoch"] == epoch and row["log_pos"] >= pos for row in rows)
    return len(rows), later, min(times), max(times)


def _update_numbers(rows: Iterable[Row]) -> tuple[Any, ...]:
    rows = list(rows)
    positions = [row["log_pos"] for row in rows]
    applied = [micros(row["applied"]) for row in rows]
    stamped = [row for row in rows if row["origin"] is not None]
    origins = [micros(row["origin"]) for row in stamped]
    delays = [micros(row["applied"]) - micros(row["origin"]) for row in stamped]
    return (
        frozenset(row["selector"] for row in rows),
        *(len(rows), min(positions), max(positions), min(applied), max(applied)),
        *(min(origins, default=None), max(origins, default=None), min(delays, default=None)),
    )


def _event_numbers(rows: Iterable[Row]) -> tuple[Any, ...]:
    rows = list(rows)
    positions = [row["log_pos"] for row in rows]
    times = [micros(row["at"]) for row in rows]
    torn = [row["log_pos"] for row in rows if row["event"] == "tear_down"]
    stops = [micros(row["at"]) for row in rows if row["event"] == "stop"]
    named = {json.loads(r["detail"]).get("primary_node") for r in rows if r["event"] == "state" and r["detail"]}
    return (
        *(len(rows), min(positions), max(positions), min(times), max(times)),
        *(len(torn), max(torn, default=None), max(stops, default=None)),
        tuple(sorted(name for name in named if name is not None)),
    )
