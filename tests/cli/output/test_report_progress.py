"""The display of a report on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from fanout.cli.output.report_progress import report_progress


def console(*, terminal: bool = True) -> Console:
    """Return a console that believes it is a terminal, or is none."""
    return Console(file=io.StringIO(), force_terminal=terminal, width=80)


def drawn(where: Console) -> str:
    """Return everything that was drawn."""
    assert isinstance(where.file, io.StringIO)
    return where.file.getvalue()


def test_the_stage_is_shown() -> None:
    """The line has the stage; it is gone at the end."""
    where = console()
    with report_progress(where) as progress:
        progress("updates by identity, 1,000 rows")
    text = drawn(where)
    assert "updates by identity, 1,000 rows" in text
    assert text.endswith("\x1b[2K"), "nothing of it stays"


def test_a_pipe_sees_nothing() -> None:
    """Nothing is drawn."""
    where = console(terminal=False)
    with report_progress(where) as progress:
        progress("lag")
    assert drawn(where) == ""
