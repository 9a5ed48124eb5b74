"""How many examples a property is tried with, and which: the same in each run, and others with `--long`.

A run tells what a change did, so it tries what the run before tried. What is drawn anew finds what nobody thought of,
at a time of nobody's choice: before a release.
"""

from __future__ import annotations

import random
from typing import Final

__all__ = ["begin_long_run", "examples", "source_of"]

_SHARE: Final = 3
_long_runs: list[bool] = []


def begin_long_run() -> None:
    """Give all examples from now on, and draw anew; before the test modules are imported."""
    _long_runs.append(True)


def examples(count: int) -> int:
    """Return `count` with `--long`, else a third of it: costly examples."""
    return count if _long_runs else count // _SHARE


def source_of(name: str) -> random.Random:
    """Return the source of a test's random examples; `name` is the test's own, so that tests draw different ones."""
    return random.SystemRandom() if _long_runs else random.Random(name)
