"""Rows that a log lacks without a gap event: runs of positions that no row has.

Such rows were logged and are not among the files: a file was lost, or the node removed the oldest ones
(`log.keep_days`). So of what they held nothing is known. Owns how these runs are found from counts by block of
positions, which makes their ends as coarse as a block. Does not know Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from fanout.reports.read.details import GapRecord
from fanout.reports.read.survey import Survey

__all__ = ["PositionBlock", "block_bits", "find_holes"]

_BLOCKS_MAX: Final = 50_000
"""The most blocks of all logs together; the smallest block has 64 positions."""


@dataclass(frozen=True, slots=True)
class PositionBlock:
    """The rows of one process in one block of positions."""

    node: str
    node_epoch: int
    block: int
    rows: int
    later: int
    """Those of the process with the node's first update that do not lie before it."""
    first_us: int
    last_us: int


def block_bits(survey: Survey) -> int:
    """Return the size of the blocks as a power of two."""
    rows = sum(sum(survey.log_rows(node)) + survey.absent_rows(node) for node in survey.roles)
    rows -= sum(begin.lost_positions for begin in survey.begins)  # what was left out on purpose has no blocks
    return max(6, (rows // _BLOCKS_MAX).bit_length())


def find_holes(
    survey: Survey, *, blocks: Iterable[PositionBlock], bits: int
) -> tuple[tuple[GapRecord, ...], tuple[GapRecord, ...]]:
    """Return the runs of absent positions that no gap event tells of, as gaps of the whole node.

    Args:
        survey: Result of the first look.
        blocks: The blocks that have rows.
        bits: Their size, as a power of two.

    Returns:
        The holes; and those at the begin of a log, with nothing before them but the `start` and other events, as when
        the node removes old files. Neither counts positions that gap events tell of.
    """
    holes: list[GapRecord] = []
    begins: list[GapRecord] = []
    in_order = sorted(blocks, key=lambda one: (one.node, one.node_epoch, one.block))
    for (node, epoch), of_process in groupby(in_order, key=lambda one: (one.node, one.node_epoch)):
        first_pos, last_pos = survey.positions(node, node_epoch=epoch)
        by_block = {one.block: one for one in of_process}
        for hole in _holes_of(list(by_block.values()), first_pos=first_pos, last_pos=last_pos, bits=bits):
            explained = sum(
                gap.lost_positions
                for gap in survey.gaps
                if gap.node == node
                and gap.lost_epoch == epoch
                and gap.first_pos <= hole.last_pos
                and gap.last_pos >= hole.first_pos
            )
            if hole.lost_positions <= explained:
                continue
            # A gap event counts its own.
            hole = replace(hole, lost_positions=hole.lost_positions - explained)
            first_epoch, first_update_pos = survey.first_updates[node]
            beginning = epoch < first_epoch or (
                epoch == first_epoch and _is_before(first_update_pos, hole, by_block=by_block, bits=bits)
            )
            (begins if beginning else holes).append(hole)
    return tuple(holes), tuple(begins)


def _is_before(first_update_pos: int, hole: GapRecord, *, by_block: dict[int, PositionBlock], bits: int) -> bool:
    """Return whether all absent positions of a hole lie before the first update: none is absent behind that."""
    if first_update_pos > hole.last_pos:
        return True
    if first_update_pos < hole.last_pos >> bits << bits:
        return False
    return by_block[hole.last_pos >> bits].later == hole.last_pos - first_update_pos + 1


def _holes_of(blocks: list[PositionBlock], *, first_pos: int, last_pos: int, bits: int) -> list[GapRecord]:
    """Return the holes of one process: each run of blocks that have too few rows."""
    found: list[GapRecord] = []
    before: PositionBlock | None = None  # the last whole block
    run: list[PositionBlock] = []  # those with too few rows since then
    expected_block = first_pos >> bits
    for one in blocks:
        begin, end = max(first_pos, one.block << bits), min(last_pos, ((one.block + 1) << bits) - 1)
        if one.rows < end - begin + 1:
            run.append(one)
        else:
            if run or one.block != expected_block:
                found.append(_hole(before, run, one, first_pos=first_pos, bits=bits))
            before, run = one, []
            expected_block = one.block + 1
    if run:
        found.append(_hole(before, run, None, first_pos=first_pos, bits=bits, last_pos=last_pos))
    return found


def _hole(
    before: PositionBlock | None,
    run: list[PositionBlock],
    after: PositionBlock | None,
    *,
    first_pos: int,
    bits: int,
    last_pos: int = 0,
) -> GapRecord:
    some = before or after or run[0]
    begin = first_pos if before is None else (before.block + 1) << bits
    end = last_pos if after is None else (after.block << bits) - 1
    first_us = before.last_us if before else min((one.first_us for one in run), default=some.node_epoch)
    return GapRecord(
        node=some.node,
        link="",
        lost_epoch=some.node_epoch,
        first_us=first_us,
        last_us=after.first_us if after else max(one.last_us for one in run),
        last_pos=end,
        lost_positions=end - begin + 1 - sum(one.rows for one in run),
        first_pos=begin,
    )
