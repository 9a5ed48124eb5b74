"""Mosquitto hides topics from the link's user: their values are kept; topics that are deleted there are removed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.link.harness import Running, config_for, running
from tests.support.mosquitto import Mosquitto, load_retained, publish_all, publisher
from tests.support.raw_reader import RawReader
from tests.support.waiting import wait_until

pytestmark = pytest.mark.mosquitto

COUNT = 500
EVERYTHING = "topic readwrite #\ntopic read $SYS/#\n"
BASE = f"{EVERYTHING}user auditor\n{EVERYTHING}user edge\n"


class Ruled:
    """A Mosquitto whose rules for the user `edge` can be replaced."""

    def __init__(self, directory: Path) -> None:
        self._rules = directory / "rules"
        self._rules.write_text(BASE + EVERYTHING)
        self.server = Mosquitto(directory, settings=[f"acl_file {self._rules}", "sys_interval 1"])

    def deny(self, topics: list[str]) -> None:
        """Hide topics from the user `edge`, and wait until they are."""
        denied = "".join(f"topic deny {topic}\n" for topic in topics)
        self._rules.write_text(BASE + denied + EVERYTHING)
        assert self.server.process is not None
        self.server.process.send_signal(signal.SIGHUP)

    def readable(self, username: str = "edge") -> int:
        """Return how many topics a user may read."""
        with RawReader(self.server.port, username=username) as reader:
            reader.subscribe("plant/#")
        return len(reader.values)


@pytest.fixture
def ruled(tmp_path: Path) -> Iterator[Ruled]:
    """Give a Mosquitto with five hundred topics."""
    with started(tmp_path) as one:
        yield one


@contextmanager
def started(directory: Path) -> Iterator[Ruled]:
    """Run it."""
    one = Ruled(directory)
    with one.server:
        load_retained(one.server.port, [(f"plant/{number}", b"x") for number in range(COUNT)])
        yield one


async def counted(link: Running) -> None:
    """Wait until the link knows what the primary has beside its topics, from counts of two moments."""
    await link.wait(lambda: link.status.ready and link.status.counted_outside is not None)


async def test_topics_hidden_by_an_access_rule_are_kept_and_deleted_ones_removed(ruled: Ruled) -> None:
    """40 of 500 are hidden: no value leaves, and the link is not ready until they may be read again.

    What was deleted while nobody could see it is removed once the primary's count has shown it.
    """
    config = config_for(ruled.server.port, username="edge", audit_interval_s=0.0)
    async with running(config) as link:
        await counted(link)
        link.sink.clear()
        ruled.deny([f"plant/{number}" for number in range(40)])
        await wait_until(lambda: ruled.readable() == COUNT - 40, what="the new rules")
        report = await link.link.audit()
        assert (report.removed, report.kept, len(link.replica)) == (0, 40, COUNT)
        assert link.sink.dispatched() == []
        assert (link.status.unconfirmed, link.status.ready) == (40, False)
        assert "no longer readable by user edge" in str(link.status.alarm)
        assert "fanout audit plant --confirm 40" in str(link.status.alarm)
        with publisher(ruled.server.port) as client:
            publish_all(client, [("plant/0", b"")])  # unseen
            ruled.deny([])
            await wait_until(lambda: ruled.readable() == COUNT - 1, what="the old rules")
        report = await link.link.audit()
        assert (report.removed, report.kept) == (1, 0)
        assert [(update[0], update[1]) for update in link.sink.dispatched()] == [(b"plant/0", b"")]
        assert link.status.ready
        assert [event["detail"] for event in link.sink.named("unconfirmed")] == [
            '{"unconfirmed": 40}',
            '{"unconfirmed": 0}',
        ]


async def test_another_user_tells_deleted_topics_from_hidden_ones(ruled: Ruled) -> None:
    """It is asked by name: what it gets is hidden from the link, what it does not get is deleted.

    A user that cannot read what the link holds is no witness.
    """
    config = config_for(ruled.server.port, username="edge", audit_username="auditor", audit_interval_s=0.0)
    async with running(config) as link, running(replace(config, name="blind", audit_username="nobody")) as blind:
        await counted(link)
        await counted(blind)
        ruled.deny([f"plant/{number}" for number in range(40)])
        await wait_until(lambda: ruled.readable() == COUNT - 40, what="the new rules")
        with publisher(ruled.server.port) as client:
            publish_all(client, [(f"plant/{number}", b"") for number in range(3)])
        report = await link.link.audit()
        assert (report.removed, report.kept, len(link.replica)) == (3, 37, COUNT - 3)
        report = await blind.link.audit()
        assert (report.removed, report.kept, len(blind.replica)) == (0, 40, COUNT)
