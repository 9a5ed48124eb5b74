"""`fanout secondary`, `fanout primary`, `fanout tap`: run a node until it is told to stop."""

from __future__ import annotations

import enum
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from fanout.cli.arguments.node_options import MembersOption
from fanout.installation import hidden

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Iterator

    from fanout.config import Role

__all__ = ["LogFormat", "LogLevel", "register"]

_NOT_FOR_NODES: Final = ("numpy", "rich")
"""Libraries that others import where they are installed, together a seventh of a node's start."""
_STOP_S: Final = 65.0
"""Time for a member to stop after it has drained, at worst; see `docs/how-to/run-as-a-service.md`."""


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


MemberOption: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, metavar="K", help="With --members: run only member K, as a unit of systemd does."),
]

_ROLES: dict[Role, str] = {
    "secondary": "Run a node that mirrors primaries and serves clients.\n",
    "primary": "Run a node without links, to which clients publish.\n",
    "tap": "Run a node that mirrors and logs but serves nobody.\n\nIts log is the reference of reports.",
}


def register(app: typer.Typer) -> None:
    """Add the three commands to `app`."""
    for role, what in _ROLES.items():
        app.command(role, help=f"{what}\nSIGTERM or Ctrl-C stops it in good order. Log lines go to standard error.")(
            secondary if role == "secondary" else _runs_node(role)
        )


def _runs_node(role: Role) -> Callable[..., None]:
    def run(
        config: ConfigOption,
        log_format: LogFormatOption = LogFormat.TEXT,
        log_level: LogLevelOption = LogLevel.INFO,
    ) -> None:
        _run(config, role=role, log_format=log_format, log_level=log_level)

    return run


def secondary(
    config: ConfigOption,
    members: MembersOption = None,
    member: MemberOption = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Run a secondary, or several from one configuration (`register` has the help text)."""
    if members is None:
        if member is not None:
            raise typer.BadParameter("it needs --members, the number of all members", param_hint="--member")
        _run(config, role="secondary", log_format=log_format, log_level=log_level)
    elif member is None:
        _supervise(config, members, log_format=log_format, log_level=log_level)
    elif member > members:
        raise typer.BadParameter(f"{member} is more than --members, {members}", param_hint="--member")
    else:
        from fanout.runtime.supervisor import end_with_supervisor

        end_with_supervisor()
        _run(config, role="secondary", member=(member, members), log_format=log_format, log_level=log_level)


def _supervise(path: Path, members: int, *, log_format: LogFormat, log_level: LogLevel) -> None:
    """Keep all members running as processes of their own."""
    import asyncio
    import sys

    import structlog

    from fanout.config import MemberNumber
    from fanout.config.loading import load_file
    from fanout.runtime.supervisor import Supervisor

    numbers = range(1, members + 1)
    # Faults are told once, and not by each member.
    configs = [load_file(path, role="secondary", member=MemberNumber(one, members)).config for one in numbers]
    _configure_logging(log_format, log_level)
    options = ["--config", str(path), "--members", str(members), "--log-format", log_format, "--log-level", log_level]
    command = [sys.executable, "-m", "fanout", "secondary", *options, "--member"]

    async def run() -> int:
        supervisor = Supervisor(
            [[*command, str(number)] for number in numbers],
            stop_s=configs[0].node.drain_s + _STOP_S,
            logger=structlog.get_logger("fanout.members"),
        )
        return await supervisor.run()

    raise typer.Exit(asyncio.run(run()))


@contextmanager
def _importing() -> Iterator[None]:
    """Import only what a node uses: it starts in less time and memory.

    No garbage is collected meanwhile: what is imported stays, and visiting it over and over is a twelfth of a start.
    structlog imports rich, and Arrow numpy, wherever they are installed. A node needs neither: during these imports
    they look as if they were not installed.
    """
    import gc

    gc.disable()
    try:
        with hidden(*_NOT_FOR_NODES):
            yield
    finally:
        gc.enable()


def _run(
    path: Path, *, role: Role, log_format: LogFormat, log_level: LogLevel, member: tuple[int, int] | None = None
) -> None:
    import asyncio

    with _importing():
        from fanout.config import MemberNumber, make_pool_token
        from fanout.config.loading import load_file

        number = None if member is None else MemberNumber(*member)
        loaded = load_file(path, role=role, member=number)  # before the slow imports: a faulty file is reported at once
        if number is not None:
            make_pool_token(loaded.config)

        from fanout.node import run_node
        from fanout.runtime.listening import allow_descriptors

        if loaded.config.log is not None:
            import fanout.replog.write.writer  # noqa: F401  # Arrow, while it finds no numpy

    _configure_logging(log_format, log_level)
    allow_descriptors()
    with asyncio.Runner(loop_factory=_event_loop_factory()) as runner:
        node = run_node(loaded.config, role=role, path=path, digest=loaded.digest, member=number)
        raise typer.Exit(runner.run(node))


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
