"""The way between hub and worker, over real sockets."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from fanout.replica.update import Stamp, Update
from fanout.workers.channel import HIGH_BYTES, Channel, encode, open_channel
from fanout.workers.messages import ChannelMessage, Complete, FeedBatch, Stop
from tests.support.waiting import wait_until


class End:
    """One end, with what came there."""

    def __init__(self) -> None:
        self.messages: list[ChannelMessage] = []
        self.pressure: list[bool] = []
        self.closed = 0
        self.take: Callable[[list[ChannelMessage]], None] = self.messages.extend
        self.channel = Channel(on_messages=self.receive, on_closed=self.close, on_backpressure=self.pressure.append)

    def receive(self, messages: list[ChannelMessage]) -> None:
        self.take(messages)

    def close(self) -> None:
        self.closed += 1


def update(number: int, size: int = 10) -> Update:
    """Make an update with a stamp."""
    return (b"a/%d" % number, b"x" * size, 1, True, b"", 5, 0, 2**63 + number, Stamp("p", 1, number, 2))


@pytest_asyncio.fixture
async def ends() -> AsyncIterator[tuple[End, End]]:
    """Return both ends of a channel."""
    one, other = End(), End()
    for end, endpoint in zip((one, other), socket.socketpair(), strict=True):
        await open_channel(end.channel, endpoint)
    yield one, other
    for end in (one, other):
        end.channel.abort()
    await wait_until(lambda: one.channel.closed and other.channel.closed)


async def test_messages_arrive_as_they_were_sent(ends: tuple[End, End]) -> None:
    """In order, of any size, with every part of an update as it was."""
    one, other = ends
    sent: list[ChannelMessage] = [
        FeedBatch([update(1)]),
        FeedBatch([update(number, 100_000) for number in range(50)], "c"),
        Complete(),
    ]
    for message in sent:
        one.channel.send(message)
    other.channel.write(encode(Stop(2.5)))
    await wait_until(lambda: len(other.messages) == 3 and one.messages)
    assert other.messages == sent
    assert one.messages == [Stop(2.5)]
    received = other.messages[0]
    assert isinstance(received, FeedBatch)
    assert isinstance(received.updates[0][8], Stamp)


async def test_sender_is_told_while_much_is_unread(ends: tuple[End, End]) -> None:
    """Once above the high mark, and once below the low one; nothing is lost."""
    one, other = ends
    other.channel.read(False)
    batch = FeedBatch([update(1, 1024 * 1024)])
    for _ in range(20):
        one.channel.send(batch)
    await wait_until(lambda: one.pressure == [True])
    assert one.channel.unsent_bytes > HIGH_BYTES
    other.channel.read(True)
    await wait_until(lambda: len(other.messages) == 20)
    assert one.pressure == [True, False]


async def test_both_ends_are_told_of_the_end(ends: tuple[End, End]) -> None:
    """What is sent after it goes nowhere."""
    one, other = ends
    one.channel.send(Complete())
    await wait_until(lambda: other.messages == [Complete()])
    one.channel.abort()
    await wait_until(lambda: one.closed == other.closed == 1)
    other.channel.send(Complete())
    await other.channel.wait_almost_sent()


async def test_a_defect_of_the_receiver_ends_the_channel(ends: tuple[End, End]) -> None:
    """It is kept, for whoever looks after the channel."""
    one, other = ends

    def fail(messages: list[ChannelMessage]) -> None:
        raise ZeroDivisionError

    other.take = fail
    one.channel.send(Complete())
    await wait_until(lambda: one.closed == other.closed == 1)
    assert isinstance(other.channel.crash, ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        raise other.channel.crash
