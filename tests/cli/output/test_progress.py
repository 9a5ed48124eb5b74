"""The progress display, drawn on a recording console."""

from __future__ import annotations

import io
import re

from rich.console import Console

from fanout.cli.output.progress import SyncProgress
from tests.api.stand_in import StandInNode, live_link, snapshot_link, syncing_node


def console(*, terminal: bool = True) -> Console:
    """Return a console of 80 columns that keeps what is drawn."""
    return Console(file=io.StringIO(), force_terminal=terminal, width=80, highlight=False, markup=False)


def drawn(screen: Console) -> str:
    """Return the lines drawn since the last call, redrawn ones each time, without control sequences."""
    assert isinstance(screen.file, io.StringIO)
    raw = screen.file.getvalue()
    screen.file.seek(0)
    screen.file.truncate()
    return "\n".join(line for line in re.split(r"[\r\n]+|\x1b\[2K", re.sub(r"\x1b\[[0-9;?]*[mhlA]", "", raw)) if line)


def last_line(text: str, containing: str) -> str:
    """Return the newest line about one link or node."""
    return [line for line in text.splitlines() if containing in line][-1]


def test_one_line_for_the_node_and_one_for_each_link() -> None:
    """State, topics and evidence of each link are shown; nothing is wider than the terminal."""
    screen = console()
    with SyncProgress(screen, url="http://127.0.0.1:8080", enabled=True, auto_refresh=False) as progress:
        drawn(screen)
        progress.update(syncing_node().readiness())
        text = drawn(screen)
    assert "not ready" in last_line(text, "edge-1")
    assert "live (marker)" in last_line(text, "office")
    assert "321 topics" in last_line(text, "office")
    assert "snapshot" in last_line(text, "plant")
    assert "12,040 topics" in last_line(text, "plant")
    assert max(map(len, text.splitlines())) <= 80


def test_unreachable_is_shown_in_place_of_the_state() -> None:
    """While the node cannot be reached, its line says so."""
    screen = console()
    with SyncProgress(screen, url="http://127.0.0.1:8080", enabled=True, auto_refresh=False) as progress:
        drawn(screen)
        progress.unreachable()
        assert "http://127.0.0.1:8080 not reachable" in drawn(screen)
        progress.update(syncing_node().readiness())
        drawn(screen)
        progress.unreachable()
        assert "not reachable" in last_line(drawn(screen), "edge-1")


def test_link_that_loses_its_proof_counts_again() -> None:
    """A link that was complete and is torn down is shown as unfinished again, once."""
    screen = console()
    with SyncProgress(screen, url="http://127.0.0.1:8080", enabled=True, auto_refresh=False) as progress:
        node = StandInNode(live_link())
        progress.update(node.readiness())
        assert last_line(drawn(screen), "plant").startswith("*")
        node.links, node.reasons = (snapshot_link(topics=7),), ("link plant: snapshot",)
        progress.update(node.readiness())
        line = last_line(drawn(screen), "plant")
    assert not line.startswith("*")
    assert "7 topics" in line


def test_nothing_is_drawn_in_a_pipe_or_when_not_waiting() -> None:
    """The display is for people who wait at a terminal."""
    for terminal, enabled in ((False, True), (True, False)):
        screen = console(terminal=terminal)
        with SyncProgress(screen, url="http://127.0.0.1:8080", enabled=enabled) as progress:
            progress.update(syncing_node().readiness())
        assert drawn(screen) == ""
