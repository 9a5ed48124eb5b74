"""Newest rows of one node's log about one topic, and the events beside them; the search is bounded.

Nothing is changed, and the node may go on writing. Rows of the newest second may not be in the log yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from fanout.errors import LogError
from fanout.replog.files.sealing import node_of
from fanout.replog.read.reading import log_parts
from fanout.replog.read.showing import pieces_of

__all__ = ["TopicHistory", "topic_history"]

_UPDATE_COLUMNS: Final = ["log_pos", "node_epoch", "applied", "change", "phase", "digest", "payload_bytes"]
_EVENT_COLUMNS: Final = ["log_pos", "node_epoch", "at", "event", "state", "selector", "detail"]


@dataclass(slots=True)
class TopicHistory:
    """Rows about one topic, in the order of the log; each is a row by the names of its columns."""

    updates: list[dict[str, Any]] = field(default_factory=list)
    """The newest updates of the topic."""
    events: list[dict[str, Any]] = field(default_factory=list)
    """The newest events of its link and of the node, heartbeats left out."""
    whole: bool = True
    """True if the search went back to the begin of the log."""
    oldest_us: int | None = None
    """Time of the oldest row that was searched, Unix time in microseconds; None without rows."""


def topic_history(
    directory: Path,
    *,
    node: str,
    link: str,
    topic: str,
    count: int = 10,
    rows_max: int = 1_000_000,
    seconds: float = 2.0,
    monotonic: Callable[[], float] = time.monotonic,
) -> TopicHistory:
    """Return the newest rows about a topic that came through a link.

    The log is read from its end, one segment or sealed file after another, until there are enough updates and events.

    Args:
        directory: The log's directory.
        node: The node.
        link: The link.
        topic: The topic's name at the primary.
        count: Greatest number of updates, and of events.
        rows_max: Rows after which no older file is read.
        seconds: Time after which no older file is read.
        monotonic: Tells seconds of a clock that never goes back.

    Raises:
        LogError: The directory is not that of a log, or a file cannot be read.
    """
    history = TopicHistory()
    read, ends_at = 0, monotonic() + seconds
    try:
        with log_parts(directory) as parts:
            of_node = [part for name, part in parts.items() if node_of(name.node) == node]
            for part in reversed(of_node):
                if len(history.updates) >= count and len(history.events) >= count:
                    history.whole = False
                    break
                if read >= rows_max or monotonic() >= ends_at:
                    history.whole = False
                    break
                updates: list[dict[str, Any]] = []
                events: list[dict[str, Any]] = []
                for piece in pieces_of(part, "updates", columns=["topic", "link", *_UPDATE_COLUMNS]):
                    read += len(piece)
                    _note_oldest(history, piece["applied"])
                    wanted = pc.and_(_equal(piece, "topic", topic), _equal(piece, "link", link))
                    updates = _newest(updates, _rows(piece, wanted, _UPDATE_COLUMNS, count), count)
                for piece in pieces_of(part, "events", columns=["link", *_EVENT_COLUMNS]):
                    read += len(piece)
                    of_link = pc.or_(_equal(piece, "link", link), _equal(piece, "link", ""))
                    wanted = pc.and_(of_link, pc.invert(_equal(piece, "event", "heartbeat")))
                    events = _newest(events, _rows(piece, wanted, _EVENT_COLUMNS, count), count)
                history.updates = _newest(updates, history.updates, count)
                history.events = _newest(events, history.events, count)
    except (OSError, pa.ArrowException) as error:
        raise LogError(f"the log in {directory} cannot be read: {error}", hint="Run fanout log verify") from error
    return history


def _equal(piece: pa.Table, column: str, text: str) -> Any:
    """Tell for each row whether a column of texts equals one; names are dictionaries in the log."""
    values = piece[column]
    if pa.types.is_dictionary(values.type):
        values = values.cast(pa.string())
    return pc.equal(values, pa.scalar(text, pa.string()))


def _rows(piece: pa.Table, wanted: Any, columns: list[str], count: int) -> list[dict[str, Any]]:
    """Return the newest of the wanted rows of a piece, which are not sorted."""
    rows = piece.select(columns).filter(wanted)
    order = pc.sort_indices(rows["log_pos"])
    return rows.take(order[max(0, len(order) - count) :]).to_pylist()


def _newest(older: list[dict[str, Any]], rows: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Return the newest of all rows, in the order of the log; a piece may have rows of several links."""
    joined = sorted([*older, *rows], key=lambda row: (row["node_epoch"], row["log_pos"]))
    return joined[max(0, len(joined) - count) :]


def _note_oldest(history: TopicHistory, times: pa.ChunkedArray[Any]) -> None:
    if len(times):
        oldest: int = pc.min(times.cast(pa.int64())).as_py()
        history.oldest_us = oldest if history.oldest_us is None else min(history.oldest_us, oldest)
