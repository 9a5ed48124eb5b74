"""The display of a report on a terminal."""

from __future__ import annotations

import io
import threading

from rich.console import Console

from fanout.cli.output.report_progress import ReportProgress


def console(*, terminal: bool = True) -> Console:
    """Return a console that believes it is a terminal, or is none."""
    return Console(file=io.StringIO(), force_terminal=terminal, width=80)


def drawn(where: Console) -> str:
    """Return everything that was drawn."""
    assert isinstance(where.file, io.StringIO)
    return where.file.getvalue()


def test_stage_tasks_and_bar_are_shown() -> None:
    """The line has the stage, and the tasks of the moment; it is gone at the end."""
    asked = threading.Semaphore(0)

    def tasks() -> tuple[int, int]:
        asked.release()
        return 3, 8

    where = console()
    with ReportProgress(where, tasks=tasks) as progress:
        progress("updates by identity, 1,000 rows")
        assert asked.acquire(timeout=30), "drawn by itself, again and again"
        for _ in range(3):
            assert asked.acquire(timeout=30)
    text = drawn(where)
    assert "updates by identity, 1,000 rows" in text
    assert "3/8 tasks" in text
    assert text.endswith("\x1b[2K"), "nothing of it stays"


def test_a_pipe_sees_nothing() -> None:
    """Nothing is drawn, and nobody is asked."""
    where = console(terminal=False)

    def tasks() -> tuple[int, int]:
        raise AssertionError("not asked")

    with ReportProgress(where, tasks=tasks) as progress:
        progress("lag")
    assert drawn(where) == ""


def test_without_spark_there_are_no_tasks() -> None:
    """What is asked by default knows nothing as long as no session runs."""
    where = console()
    with ReportProgress(where) as progress:
        progress("reading the logs")
    assert "reading the logs" in drawn(where)
