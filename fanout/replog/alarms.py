"""Alarms of the replication log: lasting faults, logged once when they begin and once when they end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

__all__ = ["Alarms"]


class Alarms:
    """Lasting faults by the step that fails; methods may be called from any thread."""

    def __init__(self, logger: FilteringBoundLogger) -> None:
        self._logger = logger
        self._lock = threading.Lock()
        self._active: dict[str, str] = {}

    @property
    def text(self) -> str:
        """All present faults in one line; empty for none."""
        return "; ".join(self._active.values())

    def begin(self, what: str, text: str) -> None:
        """Note that a step fails; only the first failure in a row is logged.

        Args:
            what: The step that fails.
            text: The fault and its consequence.
        """
        with self._lock:
            begins = what not in self._active
            self._active = {**self._active, what: text}
        if begins:
            self._logger.error("replication log alarm", step=what, problem=text)

    def end(self, what: str) -> None:
        """Note that a step works."""
        if what not in self._active:
            return
        with self._lock:
            self._active = {name: text for name, text in self._active.items() if name != what}
        self._logger.info("replication log alarm ended", step=what)
