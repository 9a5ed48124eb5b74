"""The exit codes of every `fanout` command; scripts and probes rely on them (`docs/reference/cli.md`)."""

from __future__ import annotations

import enum

from fanout.errors import ConfigError, ExtraMissing, FanoutError, NodeUnreachable, PrimaryUnreachable

__all__ = ["ExitCode", "exit_code_of"]


class ExitCode(enum.IntEnum):
    """Exit codes of commands."""

    OK = 0
    """Done; where a question was asked, the answer is yes."""
    NO = 1
    """The answer is no: not ready, not complete enough, damaged."""
    USAGE = 2
    """The command line or the configuration is wrong; nothing was done."""
    UNREACHABLE = 3
    """The node does not answer, or is no node; for `fanout probe` the primary."""
    EXTRA_MISSING = 4
    """An optional part is not installed; the message has the install command."""
    FAILED = 5
    """The work could not be done: a port is taken, a log cannot be read, a report cannot be made."""
    BUG = 70
    """A defect of fanout; the traceback belongs in a bug report."""
    INTERRUPTED = 130
    """Stopped by Ctrl-C."""


def exit_code_of(error: FanoutError) -> ExitCode:
    """Return the exit code of a command that ended with `error`."""
    match error:
        case ConfigError():
            return ExitCode.USAGE
        case NodeUnreachable() | PrimaryUnreachable():
            return ExitCode.UNREACHABLE
        case ExtraMissing():
            return ExitCode.EXTRA_MISSING
        case _:
            return ExitCode.FAILED
