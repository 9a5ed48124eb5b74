"""The newest rows of a log about one topic, found from its end within bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanout.errors import LogError
from fanout.replica.update import ChangeKind
from fanout.replog.read.topic_history import TopicHistory, topic_history
from fanout.replog.write.writer import LogSettings, LogWriter
from tests.replog.rows import EPOCH, NOW_NS, ManualClock, make_changes, make_update

TOPIC = b"plant/1"


class Log:
    """A log that is written; each batch is a segment of its own."""

    def __init__(self, directory: Path, *, node: str = "edge-1", epoch: int = EPOCH, segment: int = 1) -> None:
        self.clock = ManualClock(NOW_NS)
        self.directory = directory
        self.writer = LogWriter(
            directory,
            node=node,
            role="secondary",
            node_epoch=epoch,
            clock=self.clock,
            settings=LogSettings(segment_bytes_max=segment),
        )
        self.writer.open()
        self.sources = {name: self.writer.source(link=name) for name in ("plant", "office")}

    def update(self, payload: bytes, *, topic: bytes = TOPIC, link: str = "plant", count: int = 1) -> None:
        """Write rows of one topic, and a heartbeat and an event behind them."""
        updates = [make_update(topic, payload, received_ns=self.clock.ns)] * count
        kind = ChangeKind.REPLACED if payload else ChangeKind.REMOVED
        self.writer.append(make_changes(updates, kind=kind), source=self.sources[link], link_epoch=7)
        self.writer.event("heartbeat", link=link)
        self.writer.event("state", link=link, state="live")
        assert self.writer.flush()
        self.clock.advance(10)

    def history(self, **bounds: object) -> TopicHistory:
        """Return what is found of the topic."""
        return topic_history(
            self.directory,
            node="edge-1",
            link="plant",
            topic=TOPIC.decode(),
            **bounds,  # type: ignore[arg-type]
        )


def sizes(history: TopicHistory) -> list[int]:
    """Return the sizes of the payloads of the updates."""
    return [row["payload_bytes"] for row in history.updates]


def test_rows_of_the_topic_in_the_order_of_the_log(tmp_path: Path) -> None:
    """Of this node, link and topic only; sealed files and the open segment, older runs too; no heartbeats."""
    former = Log(tmp_path, epoch=EPOCH - 10)
    former.update(b"1")
    former.writer.close()
    other = Log(tmp_path, node="edge-2")
    other.update(b"123456789")
    other.writer.close()
    log = Log(tmp_path)
    log.update(b"12")
    log.update(b"1234", topic=b"plant/2")
    log.update(b"1234", link="office")
    log.update(b"")
    found = log.history()
    assert sizes(found) == [1, 2, 0]
    assert [row["change"] for row in found.updates] == [ChangeKind.REPLACED, ChangeKind.REPLACED, ChangeKind.REMOVED]
    assert {row["event"] for row in found.events} == {"state"}
    assert len(found.events) == 4  # not of the other link
    assert found.whole
    log.writer.close()
    assert sizes(log.history()) == [1, 2, 0]


def test_the_newest_rows_are_enough(tmp_path: Path) -> None:
    """Also of many in one piece; older files are not read then, and the answer says so."""
    log = Log(tmp_path)
    for number in range(1, 6):
        log.update(b"x" * number, count=5)
    found = log.history(count=3)
    assert sizes(found) == [5, 5, 5]
    assert (len(found.events), found.whole) == (3, False)
    log.writer.close()


def test_the_search_ends_at_its_bounds(tmp_path: Path) -> None:
    """Of rows, and of time: one file is always read, and where the search ended is told."""
    log = Log(tmp_path)
    for number in range(1, 6):
        log.update(b"x" * number)
    assert sizes(log.history()) == [1, 2, 3, 4, 5]
    found = log.history(rows_max=4)
    assert (sizes(found), found.whole) == ([4, 5], False)
    assert found.oldest_us == (NOW_NS + 30 * 1_000_000_000) // 1000
    times = iter([0.0, 0.0, 1.0, 2.5])
    found = log.history(seconds=2.0, monotonic=lambda: next(times))
    assert (sizes(found), found.whole) == ([4, 5], False)
    log.writer.close()


def test_a_directory_that_is_no_log_is_an_error(tmp_path: Path) -> None:
    """With the key that is wrong."""
    with pytest.raises(LogError, match="not the directory of a replication log"):
        topic_history(tmp_path, node="edge-1", link="plant", topic="plant/1")
