"""What a command prints, and how.

Results go to standard output, errors and progress to standard error. On a terminal there is colour and lines
wrap at its width; in a pipe there is neither, so that the same state gives the same bytes. This module must
not know what is printed.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

    from fanout.errors import ConfigFault, FanoutError

__all__ = [
    "columns",
    "error_console",
    "facts",
    "outcome_text",
    "output",
    "print_error",
    "print_json",
    "print_warnings",
    "show",
    "state_text",
]

_PIPE_WIDTH = 1000
"""Columns of an output that is not a terminal: wide enough that nothing wraps."""


def output_console() -> Console:
    """Return the console of standard output."""
    return _console(stderr=False, is_terminal=sys.stdout.isatty())


def error_console() -> Console:
    """Return the console of standard error."""
    return _console(stderr=True, is_terminal=sys.stderr.isatty())


@contextmanager
def output(console: Console | None = None) -> Iterator[Console]:
    """Give the console of standard output (or another) to print on; in a pipe without trailing blanks."""
    console = console or output_console()
    if console.is_terminal:
        yield console
        return
    with console.capture() as captured:
        yield console
    for line in captured.get().splitlines():
        console.file.write(f"{line.rstrip()}\n")


def show(*renderables: RenderableType, console: Console | None = None) -> None:
    """Print to standard output, or to another console, as `output` does."""
    with output(console) as target:
        for renderable in renderables:
            target.print(renderable)


def columns(*headings: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table without lines, headings in capitals.

    Args:
        headings: The columns, from left to right.
        right: Those of them that hold numbers.
    """
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading.upper(), justify="right" if heading in right else "left", overflow="fold")
    return table


def facts(*pairs: tuple[str, RenderableType]) -> Table:
    """Return a list of names and values, one pair a line."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, value)
    return table


def state_text(state: str) -> Text:
    """Return the state of a link or a worker, coloured by how far it is from serving."""
    from rich.text import Text

    return Text(state, {"live": "green", "serving": "green", "down": "red", "stalled": "red"}.get(state, "yellow"))


def outcome_text(outcome: str) -> Text:
    """Return the outcome of a check, coloured by whether somebody must look at it."""
    from rich.text import Text

    return Text(outcome, {"passed": "green", "failed": "red"}.get(outcome, "yellow"))


def print_json(document: Any) -> None:
    """Print a document as JSON and nothing else, to standard output."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def print_error(error: FanoutError) -> None:
    """Print what went wrong and what to do, to standard error; of a configuration every fault."""
    from rich.padding import Padding
    from rich.text import Text

    from fanout.cli.quantities import counted
    from fanout.errors import ConfigError

    console = error_console()
    if isinstance(error, ConfigError):
        show(_headline("error", f"{error.path}: {counted(len(error.faults), 'fault')}"), console=console)
        _print_faults(error.faults)
        return
    show(_headline("error", error.message), console=console)
    if error.hint:
        show(Padding(Text(error.hint), (0, 0, 0, 2)), console=console)


def print_warnings(path: str, faults: Sequence[ConfigFault]) -> None:
    """Print what is no fault of a configuration and surely not meant, to standard error; nothing for none."""
    from fanout.cli.quantities import counted

    if faults:
        show(_headline("warning", f"{path}: {counted(len(faults), 'warning')}"), console=error_console())
        _print_faults(faults)


def _print_faults(faults: Sequence[ConfigFault]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    for fault in faults:
        where = Text.assemble((fault.key, "bold"), ": " if fault.key else "", fault.problem)
        show(
            Padding(where, (0, 0, 0, 2)),
            Padding(Text(fault.hint, style="dim"), (0, 0, 0, 4)),
            console=error_console(),
        )


def _headline(kind: str, message: str) -> RenderableType:
    from rich.text import Text

    return Text.assemble((f"{kind}: ", "bold red" if kind == "error" else "bold yellow"), message)


def _console(*, stderr: bool, is_terminal: bool) -> Console:
    from rich.console import Console

    return Console(
        stderr=stderr,
        markup=False,  # topics and messages may hold square brackets
        emoji=False,
        highlight=False,
        force_terminal=is_terminal,
        width=None if is_terminal else _PIPE_WIDTH,
    )
