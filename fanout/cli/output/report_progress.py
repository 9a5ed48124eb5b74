"""Progress of a report on a terminal: the stage that runs, with a bar of Spark's tasks.

Spark does not know how many stages and tasks follow, so the bar begins anew with each of its jobs. The number of rows,
which is known, stands beside the stage.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from fanout.escaping import printable
from fanout.reports.spark import running_tasks

__all__ = ["ReportProgress"]


class ReportProgress:
    """A context manager that redraws one line; a call with the name of a stage shows its begin."""

    def __init__(self, console: Console, *, tasks: Callable[[], tuple[int, int]] = running_tasks) -> None:
        """Prepare; nothing is drawn before the context is entered.

        Args:
            console: Console to draw on; nothing is drawn unless it is a terminal.
            tasks: Returns the numbers of finished and of all tasks; called whenever the line is drawn.
        """
        self._tasks = tasks
        self._stage: TaskID | None = None
        self._progress = _Line(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[tasks]}", style="dim", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            refresh_per_second=4,
            disable=not console.is_terminal,
            before_drawing=self._count,
        )

    def __enter__(self) -> Self:
        self._stage = self._progress.add_task("", total=None, tasks="")
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, stage: str) -> None:
        """Show that a stage begins."""
        assert self._stage is not None, "entered before a stage begins"
        self._progress.update(self._stage, description=printable(stage))

    def _count(self) -> None:
        if self._stage is None:
            return
        done, total = self._tasks()
        text = f"{done}/{total} tasks" if total else ""
        self._progress.update(self._stage, completed=done, total=total or None, tasks=text)


class _Line(Progress):
    """A display that updates itself whenever it is drawn."""

    def __init__(self, *columns: ProgressColumn, before_drawing: Callable[[], None], **options: Any) -> None:
        self._before_drawing = before_drawing
        super().__init__(*columns, **options)

    def get_renderable(self) -> RenderableType:
        self._before_drawing()
        return super().get_renderable()
