"""A node's replication log: its writer, the start event, values that an earlier process left, alarms of links.

`fanout.node.node` opens and closes the log, and appends to it. Reports show alarms with a hint of nodes that lack
something; `fanout log show --kind alarm` shows all, beside the states and audits of the same time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

from fanout import __version__
from fanout.config import NodeConfig, Role
from fanout.replica.store import Replica
from fanout.replica.update import ChangeKind, Changes, Phase
from fanout.replog.settings import LogSettings
from fanout.runtime.logging_setup import RepeatLimit
from fanout.runtime.system_clock import SystemClock

if TYPE_CHECKING:
    from fanout.replog.files.columns import LogSource
    from fanout.replog.write.writer import LogWriter

__all__ = ["alarm_logger", "describe", "log_loaded", "make_log"]

_AT_ONCE: Final = 50_000
"""Values of an earlier process that are logged in one piece."""
_ALARM_LEVELS: Final = frozenset({"warning", "error", "critical", "exception"})


def make_log(
    config: NodeConfig, *, role: Role, epoch: int, clock: SystemClock, logger: FilteringBoundLogger
) -> LogWriter | None:
    """Return the writer, closed; None when the configuration has no log.

    Args:
        config: The node's configuration.
        role: Role of the node.
        epoch: Start of its process, Unix time in microseconds.
        clock: The time.
        logger: Takes log lines.
    """
    log = config.log
    if log is None:
        return None
    from fanout.replog.write.writer import LogWriter  # it needs Arrow, which takes a fifth of the start of a node

    return LogWriter(
        log.directory,
        node=config.node.id,
        role=role,
        node_epoch=epoch,
        clock=clock,
        settings=LogSettings.of(log),
        logger=logger,
    )


async def log_loaded(log: LogWriter, own: Replica, *, source: LogSource) -> None:
    """Log the own values that an earlier process left, because reports count only the last process of a node.

    The values of links are logged when they are compared with the primary.

    Args:
        log: The log, open.
        own: The node's own values.
        source: Source of the own values.
    """
    for piece in own.pieces(_AT_ONCE):
        kinds = bytearray([ChangeKind.UNCHANGED]) * len(piece)
        log.append(Changes(piece, kinds, [], Phase.AUDIT), source=source)
        await asyncio.to_thread(log.flush)  # the log's queue may not have room for all of them


def describe(config: NodeConfig) -> str:
    """Return the detail of the start event, from which reports learn the links and selectors of this node."""
    return json.dumps(
        {
            "format": 1,
            "version": __version__,
            "links": [
                {
                    "name": link.name,
                    "primary": [str(address) for address in link.primaries],
                    "control_topic": link.control_topic,
                    "selectors": [
                        {
                            "filter": selector.filter,
                            "exclude": list(selector.exclude),
                            "qos": selector.qos,
                            "prefix": selector.prefix,
                        }
                        | _set_of(selector, "content", "retained_only", "live_only", "max_payload")
                        for selector in link.selectors
                    ],
                }
                | _set_of(link, "max_age_s", "max_age_qos")
                for link in config.links
            ],
        }
    )


def _set_of(section: object, *keys: str) -> dict[str, object]:
    """Return the keys that leave something out: those with a value that is neither empty nor 0."""
    return {key: value for key in keys if (value := getattr(section, key))}


def alarm_logger(logger: FilteringBoundLogger, *, record: Callable[[str], None]) -> FilteringBoundLogger:
    """Return a logger that writes what `logger` does, and records its warnings and errors, thinned out as lines are.

    Args:
        logger: Takes every line.
        record: Takes the detail of an alarm: JSON with `level`, `message`, and the fields of the line.
    """
    limit = RepeatLimit()

    def record_alarm(_: WrappedLogger, level: str, fields: EventDict) -> EventDict:
        if level in _ALARM_LEVELS:
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
