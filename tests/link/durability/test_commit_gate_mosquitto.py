"""What a real Mosquitto holds for delivered is on disk, however slow the disk: a link, and the one after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from fanout.config import LinkConfig
from fanout.link.durability.session_codec import find_resumption
from fanout.link.model.resumption import Resumption
from fanout.link.model.states import LinkState
from fanout.replica.store import Replica
from fanout.replica.update import ChangeKind, Changes, Phase, Update
from fanout.selection import Selector
from tests.link.harness import config_for, running
from tests.support.mosquitto import Mosquitto, publish_all, publisher

pytestmark = pytest.mark.mosquitto


class Disk:
    """A store in memory that commits at once, or not at all while it hangs."""

    def __init__(self) -> None:
        self.values: dict[bytes, Update] = {}
        self.session = b""
        self.hangs = False

    def put(
        self,
        store: str,
        changes: Sequence[Changes],
        *,
        session: Callable[[], bytes] | None = None,
        done: Callable[[], None] | None = None,
    ) -> None:
        if self.hangs:
            return
        for each in changes:
            for update, kind in zip(each.updates, each.kinds, strict=True):
                if kind in (ChangeKind.NEW, ChangeKind.REPLACED):
                    self.values[update[0]] = update
                elif kind == ChangeKind.REMOVED:
                    self.values.pop(update[0], None)
        if session is not None:
            self.session = session()
        if done is not None:
            done()

    def load(self, config: LinkConfig) -> tuple[Replica, Resumption | None]:
        """Return what the next process finds."""
        replica = Replica(selectors=config.selectors)
        replica.apply(list(self.values.values()), phase=Phase.SNAPSHOT)
        return replica, find_resumption(self.session, config, node_id="edge-1")


@contextmanager
def hanging(disk: Disk) -> Iterator[None]:
    """Let a disk hang."""
    disk.hangs = True
    yield
    disk.hangs = False


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_is_not_on_disk_is_not_acknowledged(mosquitto: Mosquitto, qos: int) -> None:
    """A disk that hangs while messages come, then a process that ends: the next one gets them all again."""
    config = config_for(mosquitto.port, Selector("plant/#", qos=qos))
    disk = Disk()
    values = [(f"plant/{number}", b"%d" % number) for number in range(30)]

    def send() -> None:
        with publisher(mosquitto.port) as client:
            publish_all(client, values, qos=qos)

    async with running(config, store=disk) as link:
        await link.wait_state(LinkState.LIVE)
        epoch = link.status.epoch
        with hanging(disk):
            await asyncio.to_thread(send)
            await link.wait(lambda: len(link.replica) == 30)
            round_trips = len(link.sink.named("heartbeat"))
            await link.wait(lambda: len(link.sink.named("heartbeat")) > round_trips + 3)
            assert link.status.state is LinkState.LIVE, "heartbeats do not wait for the disk"
            link.task.cancel()
            await asyncio.wait([link.task])
    assert not disk.values
    replica, resumption = disk.load(config)
    assert resumption is not None
    async with running(config, store=disk, replica=replica, resumption=resumption) as link:
        await link.wait_state(LinkState.LIVE)
        assert link.values() == dict(values)
        assert (link.status.epoch, link.status.counters.epochs_total) == (epoch, 0), link.sink.events
        assert sorted(update[0].decode() for update in link.sink.dispatched()) == sorted(dict(values))
        await link.wait(lambda: len(disk.values) == 30)
