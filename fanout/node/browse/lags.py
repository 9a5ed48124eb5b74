"""Lag of each link over the last hour, a figure every ten seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from fanout.api.browse.models import LagHistory, LinkLagHistory

__all__ = ["INTERVAL_S", "NodeLags"]

INTERVAL_S: Final = 10.0
_FIGURES_MAX: Final = 360


class NodeLags:
    """Newest figures of each link; those of a link that is gone are forgotten."""

    def __init__(self) -> None:
        self._lags: dict[str, deque[float | None]] = {}

    def note(self, lags: Mapping[str, float | None]) -> None:
        """Note the lag of each link in seconds; None where it is unknown."""
        self._lags = {name: self._lags.get(name, deque(maxlen=_FIGURES_MAX)) for name in lags}
        for name, seconds in lags.items():
            self._lags[name].append(None if seconds is None else round(seconds, 6))

    def document(self) -> LagHistory:
        """Return `/v1/lag/history`."""
        links = tuple(LinkLagHistory(name=name, lags=tuple(lags)) for name, lags in self._lags.items())
        return LagHistory(interval_s=INTERVAL_S, links=links)
