"""Values that are held for long, kept out of Python's garbage collections.

Owns when that is done. A full collection visits every container there is: with a million retained topics it stops the
event loop for 80 to 145 ms (`docs/decisions/0023-garbage-collection.md`), although a value that is replaced is freed
by its reference count, without any collection.
"""

from __future__ import annotations

import gc

__all__ = ["LongLived"]

_STEP = 50_000


class LongLived:
    """Sets aside what a process holds, each time that it has grown."""

    def __init__(self) -> None:
        """Set aside nothing yet: modules and configuration go with the first call of `note`."""
        self._set_aside = -_STEP
        """How many values were held when that was done last."""

    def note(self, values: int) -> None:
        """Take note of how many values are held now, once in a while.

        Args:
            values: What is counted for this object: retained values in all stores of this process, or those that wait.
        """
        if values < self._set_aside // 2:
            self._set_aside = values
        elif values >= self._set_aside + _STEP:
            self._set_aside = values
            gc.collect(1)  # so that garbage of the moment is not set aside as well
            gc.freeze()
