"""Logging of a process: destination, format, limits on repeated lines and on the length of a field.

structlog is configured once, on top of the standard library's logging. An event is a constant message with fields, and
lines of other libraries get the same form. There are two formats, text for people and JSON for collectors. Text that
comes from others stays within its field: it neither ends the line nor controls a terminal. The levels are
explained in `docs/reference/log-lines.md`.
"""

from __future__ import annotations

import io
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

from fanout.escaping import printable, printable_lines

__all__ = ["RepeatLimit", "configure_logging"]

_KEYS_MAX: Final = 1024
"""Different lines that the limit remembers; the one unused longest is forgotten first."""
_VALUE_MAX: Final = 2048
"""Characters or bytes of one field."""
_ELLIPSIS: Final = "\u2026"


class RepeatLimit:
    """A structlog processor that thins out lines that repeat.

    In each `period_s`, `burst_total` lines of the same event on the same link pass; of these, `burst` warnings and
    errors with the same reason. The first line of the next period carries `suppressed`, the number of lines left out.
    Metrics still count them. DEBUG lines always pass. The total exists because peers write reasons: with a new reason
    in each line, all would pass.
    """

    def __init__(
        self,
        *,
        burst: int = 5,
        burst_total: int = 50,
        period_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._burst = burst
        self._burst_total = burst_total
        self._period_s = period_s
        self._clock = clock
        # key -> (start of its period, lines in it), in the order of last use
        self._seen: OrderedDict[tuple[object, ...], tuple[float, int]] = OrderedDict()

    def __call__(self, logger: WrappedLogger, method_name: str, event_dict: EventDict) -> EventDict:
        """Pass the line on, or drop it.

        Raises:
            structlog.DropEvent: The line repeats too often.
        """
        if method_name == "debug":
            return event_dict
        line = (event_dict.get("event"), method_name, event_dict.get("link"))
        suppressed = 0
        if method_name != "info":
            suppressed = self._count((*line, event_dict.get("reason")), self._burst)
        suppressed += self._count(line, self._burst_total)
        if suppressed:
            event_dict["suppressed"] = suppressed
        return event_dict

    def passes(self, record: logging.LogRecord) -> bool:
        """Tell whether a line of another library passes; lines of structlog went through the processor already."""
        if isinstance(record.msg, dict) or record.levelno < logging.INFO:
            return True
        burst = self._burst if record.levelno >= logging.WARNING else self._burst_total
        try:
            suppressed = self._count((record.name, record.levelno, str(record.msg)[:_VALUE_MAX]), burst)
        except structlog.DropEvent:
            return False
        if suppressed:
            record.msg, record.args = f"{record.getMessage().rstrip()} ({suppressed} such lines were left out)", ()
        return True

    def _count(self, key: tuple[object, ...], burst: int) -> int:
        """Count a line, and return how many were left out in the period that it ends.

        Raises:
            structlog.DropEvent: There were `burst` of them in this period.
        """
        now = self._clock()
        started, count = self._seen.get(key, (now, 0))
        suppressed = 0
        if now - started >= self._period_s:
            suppressed = max(0, count - burst)
            started, count = now, 0
        self._seen[key] = (started, count + 1)
        self._seen.move_to_end(key)
        if len(self._seen) > _KEYS_MAX:
            self._seen.popitem(last=False)
        if count >= burst:
            raise structlog.DropEvent
        return suppressed


def configure_logging(*, level: int, as_json: bool, stream: TextIO) -> None:
    """Send every log line of this process to `stream`.

    Calling it again replaces the former set-up.

    Args:
        level: The lowest level that is written, a number of the `logging` module.
        as_json: One JSON object a line, with `time`, `level`, `logger`, `event` and the event's fields; otherwise one
            line of text for people, coloured when `stream` is a terminal.
        stream: Stream for the lines; standard error in a service, so that standard output stays clean.
    """
    limit = RepeatLimit()
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]
    structlog.configure(
        processors=[_cut_values, limit, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),  # a line below the level costs one call
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,  # a logger made before this call follows it
    )
    handler = logging.StreamHandler(stream)
    handler.addFilter(limit.passes)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_rendering(stream, as_json=as_json),
            ],
        )
    )
    root = logging.getLogger()
    for former in root.handlers[:]:
        root.removeHandler(former)
    root.addHandler(handler)
    root.setLevel(level)
    # uvicorn logs its start at INFO, which the node logs itself with the address, and each bad request at WARNING,
    # without a limit: `fanout_http_closed_total` counts those.
    logging.getLogger("uvicorn").setLevel(max(level, logging.ERROR))
    # httpx logs each request at INFO: members of a pool are asked all the time, and counters tell of it.
    logging.getLogger("httpx").setLevel(max(level, logging.WARNING))


def _rendering(stream: TextIO, *, as_json: bool) -> list[Processor]:
    if as_json:
        return [
            structlog.processors.format_exc_info,
            _fixed_keys_first,
            structlog.processors.JSONRenderer(default=_as_text),
        ]
    return [
        _printable_fields,
        structlog.dev.ConsoleRenderer(
            colors=stream.isatty(),
            timestamp_key="time",
            exception_formatter=_write_traceback,
            sort_keys=False,
        ),
    ]


def _cut_values(logger: WrappedLogger, method_name: str, event_dict: EventDict) -> EventDict:
    """Cut long fields; peers write reasons and names."""
    for key, value in event_dict.items():
        if isinstance(value, str) and len(value) > _VALUE_MAX:
            event_dict[key] = value[: _VALUE_MAX - 1] + _ELLIPSIS
        elif isinstance(value, bytes) and len(value) > _VALUE_MAX:
            event_dict[key] = value[: _VALUE_MAX - 1].decode("utf-8", "replace") + _ELLIPSIS
    return event_dict


def _fixed_keys_first(logger: WrappedLogger, method_name: str, event_dict: EventDict) -> EventDict:
    fixed = {key: event_dict.pop(key) for key in ("time", "level", "logger", "event") if key in event_dict}
    return {**fixed, **event_dict}


def _printable_fields(logger: WrappedLogger, method_name: str, event_dict: EventDict) -> EventDict:
    for key, value in event_dict.items():
        if key in {"stack", "exception"}:
            event_dict[key] = printable_lines(f"\n{value}")[1:]
        elif isinstance(value, str):
            event_dict[key] = printable(value)
        elif isinstance(value, list | tuple):
            event_dict[key] = printable(", ".join(map(str, value)))
        elif key != "exc_info" and value is not None and not isinstance(value, int | float):
            event_dict[key] = printable(repr(value))
    return event_dict


def _write_traceback(stream: TextIO, exc_info: ExcInfo) -> None:
    written = io.StringIO()
    structlog.dev.plain_traceback(written, exc_info)
    stream.write(printable_lines(written.getvalue()))


def _as_text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else repr(value)
