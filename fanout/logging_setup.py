"""Where log lines go and what they look like.

This module configures structlog on top of the standard library's logging, once, for the whole process: an
event is a constant message with fields, and lines of other libraries get the same form. It owns the two
formats (text for people, JSON for collectors) and the limit on repeated warnings. It must not know who logs
what; the levels are explained in `docs/operations.md`.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

__all__ = ["RepeatLimit", "configure_logging"]

_KEYS_MAX: Final = 1024
"""How many different warnings the limit remembers; the one that was silent longest is forgotten first."""


class RepeatLimit:
    """A structlog processor that thins out warnings and errors that repeat.

    Of the same event on the same link or for the same reason, `burst` lines pass in each `period_s`; the
    first line of the next period carries `suppressed`, the number of lines left out. What is left out is
    still counted by the metrics. Lines below WARNING always pass: they tell the life of the node, and DEBUG
    is asked for.
    """

    def __init__(self, *, burst: int = 5, period_s: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst = burst
        self._period_s = period_s
        self._clock = clock
        # key -> (start of its period, lines seen in it), in the order of last use
        self._seen: OrderedDict[tuple[object, ...], tuple[float, int]] = OrderedDict()

    def __call__(self, logger: WrappedLogger, method_name: str, event_dict: EventDict) -> EventDict:
        """Pass the line on, or drop it.

        Raises:
            structlog.DropEvent: The line repeats too often.
        """
        if method_name in {"debug", "info"}:
            return event_dict
        key = (event_dict.get("event"), method_name, event_dict.get("link"), event_dict.get("reason"))
        now = self._clock()
        started, count = self._seen.get(key, (now, 0))
        if now - started >= self._period_s:
            if count > self._burst:
                event_dict["suppressed"] = count - self._burst
            started, count = now, 0
        self._seen[key] = (started, count + 1)
        self._seen.move_to_end(key)
        if len(self._seen) > _KEYS_MAX:
            self._seen.popitem(last=False)
        if count >= self._burst:
            raise structlog.DropEvent
        return event_dict


def configure_logging(*, level: int, as_json: bool, stream: TextIO) -> None:
    """Send every log line of this process to `stream`.

    Calling it again replaces the former set-up.

    Args:
        level: The lowest level that is written, a number of the `logging` module.
        as_json: One JSON object a line, with `time`, `level`, `logger`, `event` and the event's fields; otherwise one
            line of text for people, coloured when `stream` is a terminal.
        stream: Where lines go; standard error in a service, so that standard output stays clean.
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]
    structlog.configure(
        processors=[RepeatLimit(), *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),  # a line below the level costs one call
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,  # a logger made before this call follows it
    )
    handler = logging.StreamHandler(stream)
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
    # uvicorn tells at INFO that it started, and the node says so itself, with its address; at WARNING of each request
    # that is wrong, as often as somebody sends one: `fanout_http_closed_total` counts them.
    logging.getLogger("uvicorn").setLevel(max(level, logging.ERROR))


def _rendering(stream: TextIO, *, as_json: bool) -> list[Processor]:
    if as_json:
        return [
            structlog.processors.format_exc_info,
            _fixed_keys_first,
            structlog.processors.JSONRenderer(default=_as_text),
        ]
    return [
        structlog.dev.ConsoleRenderer(
            colors=stream.isatty(),
            timestamp_key="time",
            exception_formatter=structlog.dev.plain_traceback,
            sort_keys=False,
        )
    ]


def _fixed_keys_first(logger: WrappedLogger, method_name: str, event_dict: EventDict) -> EventDict:
    fixed = {key: event_dict.pop(key) for key in ("time", "level", "logger", "event") if key in event_dict}
    return {**fixed, **event_dict}


def _as_text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else repr(value)
