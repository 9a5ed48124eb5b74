"""How many examples a property with costly ones is tried with: all in the long run, and a third in every other."""

from __future__ import annotations

from typing import Final

__all__ = ["begin_long_run", "examples"]

_SHARE: Final = 3
_long_runs: list[bool] = []


def begin_long_run() -> None:
    """Give all examples from now on; before the test modules are imported."""
    _long_runs.append(True)


def examples(count: int) -> int:
    """Return `count` with `--long`, else a third of it: runs draw anew, so several of them try what a long one does."""
    return count if _long_runs else count // _SHARE
