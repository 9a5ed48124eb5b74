"""Progress of a report on a terminal: the stage that runs, with the number of rows, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fanout.escaping import printable

__all__ = ["report_progress"]


@contextmanager
def report_progress(console: Console) -> Iterator[Callable[[str], None]]:
    """Draw one line for as long as the `with` block lasts, and nothing unless the console is a terminal.

    Give a function that shows the name of a stage.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, refresh_per_second=4, disable=not console.is_terminal
    ) as progress:
        line = progress.add_task("", total=None)
        yield lambda stage: progress.update(line, description=printable(stage))
