"""`fanout secondary`, `fanout primary`, `fanout tap`: run a node until it is told to stop."""

from __future__ import annotations

import enum
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias, cast

import typer

if TYPE_CHECKING:
    import socket
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from fanout.config import Role

__all__ = ["LogFormat", "LogLevel", "register"]

_NOT_FOR_NODES: Final = ("numpy", "rich")
"""Libraries that others import where they are installed, together a seventh of a node's start."""


class LogFormat(enum.StrEnum):
    """Format of log lines."""

    TEXT = "text"
    JSON = "json"


class LogLevel(enum.StrEnum):
    """The lowest level that is written (`docs/reference/log-lines.md` explains the levels)."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


ConfigOption: TypeAlias = Annotated[
    Path,
    typer.Option("--config", "-c", metavar="FILE", envvar="FANOUT_CONFIG", help="The node's configuration (TOML)."),
]
LogFormatOption: TypeAlias = Annotated[
    LogFormat, typer.Option(envvar="FANOUT_LOG_FORMAT", help="Log lines for people, or JSON for a collector.")
]
LogLevelOption: TypeAlias = Annotated[
    LogLevel, typer.Option(envvar="FANOUT_LOG_LEVEL", help="The lowest level of log lines.")
]


_ROLES: dict[Role, str] = {
    "secondary": "Run a node that mirrors primaries and serves clients.\n",
    "primary": "Run a node without links, to which clients publish.\n",
    "tap": "Run a node that mirrors and logs but serves nobody.\n\nIts log is the reference of reports.",
}


def register(app: typer.Typer) -> None:
    """Add the three commands to `app`, and the hidden one of a node's worker."""
    for role, what in _ROLES.items():
        app.command(role, help=f"{what}\nSIGTERM or Ctrl-C stops it in good order. Log lines go to standard error.")(
            _runs_node(role)
        )
    app.command(hidden=True)(worker)


def _runs_node(role: Role) -> Callable[..., None]:
    def run(
        config: ConfigOption,
        log_format: LogFormatOption = LogFormat.TEXT,
        log_level: LogLevelOption = LogLevel.INFO,
    ) -> None:
        _run(config, role=role, log_format=log_format, log_level=log_level)

    return run


def worker(
    feed: Annotated[int, typer.Option(help="Descriptor of the channel to the hub.")],
    log_format: LogFormatOption = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Serve a share of the clients of a node; started by the node itself."""
    import asyncio
    import signal

    end = _inherited_socket(feed)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the hub gets them too, and instructs the worker
        signal.signal(number, signal.SIG_IGN)

    with _importing():
        from fanout.runtime.system_clock import SystemClock
        from fanout.workers.worker import run_worker

    _configure_logging(log_format, log_level)
    with asyncio.Runner(loop_factory=_event_loop_factory()) as runner:
        raise typer.Exit(runner.run(run_worker(end, clock=SystemClock())))


@contextmanager
def _importing() -> Iterator[None]:
    """Import only what a node uses: it starts in less time and memory.

    No garbage is collected meanwhile: what is imported stays, and visiting it over and over is a twelfth of a start.
    structlog imports rich, and Arrow numpy, wherever they are installed. A node needs neither: during these imports
    they look as if they were not installed.
    """
    import gc
    import sys

    hidden: dict[str, ModuleType | None] = {name: None for name in _NOT_FOR_NODES if name not in sys.modules}
    modules = cast("dict[str, ModuleType | None]", sys.modules)  # None makes an import fail
    modules.update(hidden)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        for name in hidden:
            del modules[name]


def _inherited_socket(descriptor: int) -> socket.socket:
    import socket

    try:
        return socket.socket(fileno=descriptor)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(
            f"{descriptor} is no socket of a node: a node with server.workers above 1 starts its workers itself",
            param_hint="--feed",
        ) from error


def _run(path: Path, *, role: Role, log_format: LogFormat, log_level: LogLevel) -> None:
    import asyncio
    import os

    with _importing():
        from fanout.config.loading import load_file

        loaded = load_file(path, role=role)  # before the slow imports: a faulty file is reported at once

        from fanout.node import run_node

        if loaded.config.log is not None:
            import fanout.replog.write.writer  # noqa: F401  # Arrow, while it finds no numpy

    _configure_logging(log_format, log_level)
    os.environ.update(FANOUT_LOG_FORMAT=log_format, FANOUT_LOG_LEVEL=log_level)  # workers log in the same way
    with asyncio.Runner(loop_factory=_event_loop_factory()) as runner:
        raise typer.Exit(runner.run(run_node(loaded.config, role=role, path=path, digest=loaded.digest)))


def _configure_logging(log_format: LogFormat, log_level: LogLevel) -> None:
    import logging
    import sys

    from fanout.runtime.logging_setup import configure_logging

    configure_logging(
        level=logging.getLevelNamesMapping()[log_level.upper()],
        as_json=log_format is LogFormat.JSON,
        stream=sys.stderr,
    )


def _event_loop_factory() -> Callable[[], AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        from asyncio import new_event_loop

        return new_event_loop
    return uvloop.new_event_loop
