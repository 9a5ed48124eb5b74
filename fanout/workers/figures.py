"""Sums of the workers' figures, as those of one server (core). Totals include workers that have ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar

from fanout.access.gate import AccessStats
from fanout.server.base.counters import ServerStats

__all__ = ["add_up", "totals_of"]

Stats = TypeVar("Stats", ServerStats, AccessStats)

_ALIKE = frozenset({"rules", "users"})
"""Figures that are equal in every worker, and not added up."""


def add_up(kind: type[Stats], figures: Iterable[Stats]) -> Stats:
    """Return the sum of the figures; zeros for none."""
    sums: dict[str, Any] = {field.name: {} if "dict" in str(field.type) else 0 for field in dataclasses.fields(kind)}
    for stats in figures:
        for name, value in dataclasses.asdict(stats).items():
            sums[name] = max(sums[name], value) if name in _ALIKE else _sum(sums[name], value)
    return kind(**sums)


def totals_of(stats: Stats) -> Stats:
    """Return the figures without gauges, as they remain when their process has ended: only the totals."""
    return type(stats)(
        **{
            name: value if name.endswith("_total") else type(value)()
            for name, value in dataclasses.asdict(stats).items()
        }
    )


def _sum(one: Any, other: Any) -> Any:
    if isinstance(one, dict):
        return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}
    return one + other
