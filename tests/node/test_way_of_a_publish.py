"""The way of one live PUBLISH from the link's connection to a client's: short, and without anything that repeats."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest

import fanout
from fanout.link.driver import Driver
from fanout.link.transport.connection import LinkConnection
from fanout.mqtt.packets import Publish, encode
from fanout.replica.update import Changes
from fanout.server.routing import dispatch
from tests.link.fake_primary import Pair, make_config
from tests.link.harness import RecordingSink
from tests.server.node_in_memory import NodeInMemory
from tests.support.raw_client import RawClient

ROOT = str(Path(fanout.__file__).parent)
IS_COMPILED = not str(dispatch.__file__).endswith(".py")
FUNCTIONS_MAX = {(0, 0): (18, 12), (0, 1): (19, 13), (1, 0): (22, 16), (1, 1): (26, 18)}
"""QoS of the message, and of the subscription, to the functions that it may pass, and to those that are not compiled.

The node adds two: `record` and `dispatch` of `fanout.node.node`.
"""


class Wire(asyncio.Transport):
    """A connection whose bytes go nowhere."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Drop what is written."""

    def is_closing(self) -> bool:
        """Stay open."""
        return False


class ServingSink(RecordingSink):
    """Hands the changes of a link to a server."""

    def __init__(self, node: NodeInMemory) -> None:
        super().__init__()
        self.node = node

    def dispatch(self, link: str, changes: Changes) -> None:
        """Let the server deliver."""
        self.node.server.dispatch(changes.dispatch)


@pytest.fixture
async def node() -> AsyncIterator[NodeInMemory]:
    """Give a server in this process."""
    node = NodeInMemory()
    await node.server.start()
    yield node
    await node.server.stop(deadline_s=0.1)


def passed(connection: LinkConnection, data: bytes) -> set[str]:
    """Return the functions of fanout that a read passes; compiled ones are not seen."""
    names: set[str] = set()

    def note(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ROOT):
            names.add(f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}")

    sys.setprofile(note)
    try:
        connection.data_received(data)
    finally:
        sys.setprofile(None)
    return names


@pytest.mark.parametrize(("qos", "granted"), sorted(FUNCTIONS_MAX))
async def test_a_live_publish_passes_few_functions(node: NodeInMemory, qos: int, granted: int) -> None:
    """From the read of a settled link to the write to a client; a wrapper that only passes on would be one more."""
    pair = Pair(make_config(heartbeat_s=0))
    pair.go_live()
    driver = Driver(
        "plant",
        session=pair.session,
        replica=pair.replica,
        sink=cast("Any", ServingSink(node)),
        commit_gate=None,
        clock=cast("Any", SimpleNamespace(now_ns=lambda: pair.now_ns, monotonic=lambda: pair.now)),
        on_event=lambda event: None,
        on_full=lambda: None,
        on_unconfirmed=lambda: None,
        on_crash=lambda error: pytest.fail(repr(error)),
    )
    connection = LinkConnection(
        on_data=driver.receive, on_closed=lambda: None, read_ahead_bytes_max=1 << 20, monotonic=lambda: 0.0
    )
    connection.connection_made(Wire())
    connection.read_ahead = False
    driver.attach(connection)
    driver.write_and_plan()
    connection.read_ahead = False
    async with await RawClient.connect(node.port, "c") as client:
        await client.subscribe(b"plant/#", qos=granted)
        names: set[str] = set()
        for number in range(1, 4):  # the first ones are routed, and checked, for the first time
            packet = Publish(b"plant/1", b"%d" % number, qos=qos, packet_id=number if qos else None)
            names = passed(connection, encode(packet, version=5))
        assert [message.payload for message in await client.messages(3)] == [b"1", b"2", b"3"]
    driver.stop()
    assert len(names) <= FUNCTIONS_MAX[qos, granted][IS_COMPILED], "\n".join(sorted(names))
