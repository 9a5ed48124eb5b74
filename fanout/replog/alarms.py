"""What is wrong with the replication log at the moment, told once when it begins and once when it ends."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

__all__ = ["Alarms"]


class Alarms:
    """The faults that last, by what failed; methods may be called from any thread."""

    def __init__(self, logger: FilteringBoundLogger) -> None:
        self._logger = logger
        self._lock = threading.Lock()
        self._active: dict[str, str] = {}

    @property
    def text(self) -> str:
        """All that is wrong now, in one line; empty when nothing is."""
        return "; ".join(self._active.values())

    def begin(self, what: str, text: str) -> None:
        """Note that something fails; it is logged only when it did not fail before.

        Args:
            what: The step that fails.
            text: What happened and what follows from it.
        """
        with self._lock:
            begins = what not in self._active
            self._active = {**self._active, what: text}
        if begins:
            self._logger.error("replication log alarm", step=what, problem=text)

    def end(self, what: str) -> None:
        """Note that a step works (again)."""
        if what not in self._active:
            return
        with self._lock:
            self._active = {name: text for name, text in self._active.items() if name != what}
        self._logger.info("replication log alarm ended", step=what)
