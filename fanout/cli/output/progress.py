"""Progress of a synchronisation on a terminal: the topics of each link as they arrive.

It shows counts and rates, not percentages: MQTT does not tell how many topics the primary will send, and a bar would
pretend that it does.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from fanout.api.models import LinkReadiness, Readiness
from fanout.cli.output.quantities import as_count
from fanout.escaping import printable

__all__ = ["SyncProgress"]


class _TopicsColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        topics: int | None = task.fields["topics"]
        return Text("" if topics is None else f"{as_count(topics)} topics", justify="right")


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        # rich computes the speed from the last seconds.
        return Text(
            "" if task.finished or not task.speed else f"{as_count(task.speed)}/s",
            style="dim",
            justify="right",
        )


class SyncProgress:
    """A context manager that redraws one line for the node and one for each link."""

    def __init__(self, console: Console, *, url: str, enabled: bool, auto_refresh: bool = True) -> None:
        """Prepare; nothing is drawn before the context is entered.

        Args:
            console: Console to draw on; nothing is drawn unless it is a terminal.
            url: The node's address, shown until its name is known.
            enabled: False draws nothing.
            auto_refresh: Redraw between updates too, so that the spinner turns.
        """
        self._name = url
        self._progress = Progress(
            SpinnerColumn(finished_text=Text("*", style="green")),
            TextColumn("{task.description}", markup=False),
            TextColumn("{task.fields[state]}", style="bold", markup=False),
            _TopicsColumn(),
            _RateColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            auto_refresh=auto_refresh,
            disable=not (enabled and console.is_terminal),
        )
        self._node: TaskID | None = None
        self._links: dict[str, TaskID] = {}
        self._finished: set[str] = set()

    def __enter__(self) -> Self:
        self._progress.start()
        self._node = self._progress.add_task(self._name, total=None, state="asking", topics=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def unreachable(self) -> None:
        """Show that the node cannot be reached for now."""
        self._show_node("not reachable")
        self._progress.refresh()

    def update(self, readiness: Readiness) -> None:
        """Show the newest answer."""
        self._name = printable(readiness.node)
        self._show_node("ready" if readiness.ready else "not ready")
        for link in readiness.links:
            self._show_link(link)
        self._progress.refresh()

    def _show_node(self, state: str) -> None:
        assert self._node is not None, "entered before it is updated"
        self._progress.update(self._node, description=self._name, state=state)

    def _show_link(self, link: LinkReadiness) -> None:
        state = printable(f"{link.state} ({link.evidence})" if link.ready else link.state)
        if link.name in self._finished and not link.ready:
            # The link lost its proof again, and rich cannot reopen a finished task.
            self._finished.remove(link.name)
            self._progress.remove_task(self._links.pop(link.name))
        if link.name not in self._links:
            task = self._progress.add_task(f"  {printable(link.name)}", total=None, state=state, topics=link.topics)
            self._links[link.name] = task
        self._progress.update(
            self._links[link.name],
            completed=link.topics,
            total=link.topics if link.ready else None,
            state=state,
            topics=link.topics,
        )
        if link.ready:
            self._finished.add(link.name)
