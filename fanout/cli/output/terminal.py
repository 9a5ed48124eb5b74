"""Terminal output of commands: consoles, tables, styled and escaped text.

Results go to standard output, errors and progress to standard error. On a terminal there is colour and lines wrap at
its width; in a pipe there is neither, so the same state gives the same bytes. Output includes texts of strangers, so
every text is made `printable` here: a string by the consoles, a text with a style by `styled` and `lines`.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fanout.escaping import printable, printable_json

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
    "json_line",
    "lines",
    "outcome_text",
    "output",
    "print_error",
    "print_json",
    "print_note",
    "print_warnings",
    "show",
    "show_to_paste",
    "state_text",
    "styled",
]

_PIPE_WIDTH = 1000
"""Width of an output that is not a terminal, so that nothing wraps."""


def output_console() -> Console:
    """Return the console of standard output."""
    return _console(stderr=False, is_terminal=sys.stdout.isatty())


def error_console() -> Console:
    """Return the console of standard error."""
    return _console(stderr=True, is_terminal=sys.stderr.isatty())


@contextmanager
def output(console: Console | None = None) -> Iterator[Console]:
    """Yield the console of standard output (or another); in a pipe, trailing blanks are removed."""
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


def show_to_paste(text: str) -> None:
    """Print lines that somebody pastes or saves, as `show` does, but none is cut at the width of the terminal."""
    with output() as target:
        for line in text.removesuffix("\n").split("\n"):
            target.print(line, soft_wrap=True)


def columns(*headings: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table without lines, headings in capitals.

    Args:
        headings: The columns, from left to right.
        right: Columns of numbers, aligned to the right.
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


def styled(*parts: str | tuple[str, str]) -> Text:
    """Return one line of texts, each with or without a style."""
    from rich.text import Text

    with_styles = ((part, "") if isinstance(part, str) else part for part in parts)
    return Text.assemble(*((printable(text), style) for text, style in with_styles))


def lines(*texts: str, style: str = "") -> Text:
    """Return texts, each on a line of its own."""
    from rich.text import Text

    return Text("\n".join(map(printable, texts)), style)


def state_text(state: str) -> Text:
    """Return the state of a link, coloured by how far it is from serving."""
    colours = {"live": "green", "down": "red", "stalled": "red"}
    return lines(state, style=colours.get(state, "yellow"))


def outcome_text(outcome: str) -> Text:
    """Return the outcome of a check, coloured by how much attention it needs."""
    return lines(outcome, style={"passed": "green", "failed": "red"}.get(outcome, "yellow"))


def print_json(document: Any) -> None:
    """Print a document as JSON and nothing else, to standard output."""
    sys.stdout.write(printable_json(json.dumps(document, indent=2, ensure_ascii=False)) + "\n")


def json_line(document: Any) -> str:
    """Return a document as one line of JSON; times become strings."""
    return printable_json(json.dumps(document, default=datetime.isoformat, ensure_ascii=False))


def print_error(error: FanoutError) -> None:
    """Print an error and its hint to standard error; of a configuration every fault."""
    from rich.padding import Padding

    from fanout.cli.output.quantities import counted
    from fanout.errors import ConfigError

    console = error_console()
    if isinstance(error, ConfigError):
        show(_headline("error", f"{error.path}: {counted(len(error.faults), 'fault')}"), console=console)
        _print_faults(error.faults)
        return
    show(_headline("error", error.message), console=console)
    if error.hint:
        show(Padding(error.hint, (0, 0, 0, 2)), console=console)


def print_note(message: str, *, hint: str) -> None:
    """Print a note and its hint to standard error."""
    from rich.padding import Padding

    console = error_console()
    show(_headline("note", message), Padding(styled(hint), (0, 0, 0, 2)), console=console)


def print_warnings(path: str, faults: Sequence[ConfigFault]) -> None:
    """Print the warnings of a configuration to standard error."""
    from fanout.cli.output.quantities import counted

    if faults:
        show(_headline("warning", f"{path}: {counted(len(faults), 'warning')}"), console=error_console())
        _print_faults(faults)


def _print_faults(faults: Sequence[ConfigFault]) -> None:
    from rich.padding import Padding

    for fault in faults:
        where = styled((fault.key, "bold"), ": " if fault.key else "", fault.problem)
        show(
            Padding(where, (0, 0, 0, 2)),
            Padding(styled((fault.hint, "dim")), (0, 0, 0, 4)),
            console=error_console(),
        )


def _headline(kind: str, message: str) -> RenderableType:
    return styled((f"{kind}: ", "bold red" if kind == "error" else "bold yellow"), message)


def _console(*, stderr: bool, is_terminal: bool) -> Console:
    from rich.console import Console

    class PrintableConsole(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(printable(text), **options)

    return PrintableConsole(
        stderr=stderr,
        markup=False,  # topics and messages may hold square brackets
        emoji=False,
        highlight=False,
        force_terminal=is_terminal,
        color_system=None if os.environ.get("NO_COLOR") else "auto",  # without: no bold either
        width=None if is_terminal else _PIPE_WIDTH,
    )
