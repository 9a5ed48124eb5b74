"""Alarms of a link in the replication log: its log lines at WARNING and above, thinned out as lines are.

Reports show those with a hint of nodes that lack something; `fanout log show --kind alarm` shows all, beside the states
and audits of the same time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

from fanout.runtime.logging_setup import RepeatLimit

__all__ = ["alarm_logger"]

_LEVELS: Final = frozenset({"warning", "error", "critical", "exception"})


def alarm_logger(logger: FilteringBoundLogger, *, record: Callable[[str], None]) -> FilteringBoundLogger:
    """Return a logger that writes what `logger` does, and records its warnings and errors.

    Args:
        logger: Takes every line.
        record: Takes the detail of an alarm: JSON with `level`, `message`, and the fields of the line.
    """
    limit = RepeatLimit()

    def record_alarm(_: WrappedLogger, level: str, fields: EventDict) -> EventDict:
        if level in _LEVELS:
            try:
                alarm = limit(None, level, dict(fields))
            except structlog.DropEvent:
                return fields
            message = alarm.pop("event")
            record(json.dumps({"level": level, "message": message, **alarm}, default=str, ensure_ascii=False))
        return fields

    def pass_on(_: WrappedLogger, __: str, fields: EventDict) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (fields.pop("event"),), dict(fields)

    wrapped = structlog.wrap_logger(
        logger,
        processors=[record_alarm, pass_on],
        wrapper_class=structlog.make_filtering_bound_logger(0),  # `logger` decides on levels
        cache_logger_on_first_use=False,
    )
    return cast("FilteringBoundLogger", wrapped)
