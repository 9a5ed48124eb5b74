"""Streams of values as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from fanout.api.browse.payloads import Shown, show_payload
from fanout.errors import RequestRefused
from fanout.node.browse import streams
from fanout.replica.update import Phase
from tests.node.browse.pieces import Node, value


class Reader:
    """Reads a stream as a browser's EventSource does."""

    def __init__(self, stream: AsyncGenerator[bytes]) -> None:
        self.last_id = ""
        self._stream = stream
        self._lines: list[str] = []

    async def event(self) -> tuple[str, Any]:
        """Return the next event: its name and data."""
        name, data = "", ""
        while True:
            while not self._lines:
                async with asyncio.timeout(60):
                    self._lines = (await anext(self._stream)).decode().split("\n")[:-1]
            key, _, text = self._lines.pop(0).partition(":")
            match key:
                case "id":
                    self.last_id = text.strip()
                case "event":
                    name = text.strip()
                case "data":
                    data = text.strip()
                case "" if not text and data:
                    return name, json.loads(data)

    async def until(self, wanted: str) -> list[tuple[str, Any]]:
        """Return all events up to one with this name, itself left out."""
        found = []
        while (event := await self.event())[0] != wanted:
            found.append(event)
        return found

    async def close(self) -> None:
        """Go away."""
        await self._stream.aclose()


def reader(node: Node, topic_filter: str = "#", last_id: str = "") -> Reader:
    """Open a stream."""
    return Reader(node.browser.stream(topic_filter.encode(), last_id=last_id, value_bytes=100))


async def test_retained_values_come_first_then_live_ones() -> None:
    """Each event has the topic and the value; live ones have an identifier."""
    node = Node(["a/1", "a/2", "b/1"])
    stream = reader(node, "a/+")
    retained = await stream.until("live")
    assert [data["topic"] for name, data in retained if name == "retained"] == ["a/1", "a/2"]
    node.publish(value("a/3", b"new"), value("b/2"))
    name, data = await stream.event()
    assert (name, data["topic"], data["value"], data["retained"]) == ("value", "a/3", "new", True)
    assert stream.last_id.endswith("-1")


async def test_the_newest_value_comes_last_while_the_set_arrives() -> None:
    """A message between two pieces of the set is in order with them."""
    node = Node([f"t/{number:04}" for number in range(2000)])
    stream = reader(node)
    events = [await stream.event() for _ in range(3)]
    node.publish(value("t/1500", b"first"))
    node.publish(value("t/1500", b"second"))
    events += await stream.until("live")
    values = [data["value"] for name, data in events if name != "begin" and data["topic"] == "t/1500"]
    assert values[-1] == "second"
    assert "v" not in values
    assert values.index("second") > values.index("first")
    assert "first" not in values[values.index("second") :]


async def test_a_reader_that_comes_back_gets_what_it_missed() -> None:
    """With the identifier of its last event it goes on there; a foreign one begins with the retained set."""
    node = Node(["t"])
    stream = reader(node)
    await stream.until("live")
    node.publish(value("t", b"1"))
    await stream.event()
    known = stream.last_id
    node.publish(value("t", b"2"), value("t", b"3"))
    await stream.event()
    again = reader(node, last_id=known)
    assert await again.event() == ("resumed", {"events": 2})
    assert [(await again.event())[1]["value"] for _ in range(2)] == ["2", "3"]
    for strange in ("x-1", known + "9", "-", "é-1", f"{known.rpartition('-')[0]}-{'9' * 30}"):
        assert (await reader(node, last_id=strange).event())[0] == "begin"


async def test_a_set_that_was_cut_off_begins_again() -> None:
    """A reader has no identifier before the whole set came, though live values came."""
    node = Node([f"t/{number:04}" for number in range(2000)])
    stream = reader(node)
    for _ in range(10):
        await stream.event()
    node.publish(value("t/0000", b"live"))
    while (await stream.event())[0] != "value":
        pass
    assert stream.last_id == ""
    await stream.until("live")
    assert stream.last_id


async def test_a_fault_of_one_stream_does_not_stop_the_others() -> None:
    """A message that cannot be shown is lost; later ones come, to the readers of that filter too."""
    node = Node([])
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context["exception"]))
    both = [reader(node, "a"), reader(node, "b")]
    for stream in both:
        await stream.until("live")
    (_, take), _ = node.observers.values()
    take([(b"\xff", *value("a")[1:])])
    node.publish(value("a"), value("b"))
    async with asyncio.timeout(20):  # comments keep the stream itself open
        assert (await both[1].event())[1]["topic"] == "b"
        node.publish(value("a"))
        assert (await both[0].event())[1]["topic"] == "a"
    assert [type(one) for one in faults] == [UnicodeDecodeError]


async def test_many_messages_are_conflated_and_counted() -> None:
    """Each topic's newest value comes, and the number of those left out."""
    node = Node([])
    stream = reader(node)
    await stream.until("live")
    node.publish(*(value(f"t/{number % 3}", b"%d" % number) for number in range(streams.MESSAGES_MAX + 1)))
    assert await stream.event() == ("conflated", {"messages": streams.MESSAGES_MAX - 2})
    values = [(await stream.event())[1]["value"] for _ in range(3)]
    assert values == [str(streams.MESSAGES_MAX - 2 + number) for number in range(3)]


async def test_listeners_share_one_encoding() -> None:
    """Both get the very same bytes, and the node observes once."""
    node = Node([])
    first = node.browser.stream(b"#", last_id="", value_bytes=100)
    second = node.browser.stream(b"#", last_id="", value_bytes=100)
    for stream in (first, second):
        assert (await anext(stream)).startswith(b"event: begin")
        assert b"event: live" in await anext(stream)
    node.publish(value("t"))
    assert await anext(first) is await anext(second)
    assert len(node.observers) == 1


async def test_a_reader_that_waits_is_written_to_without_a_task() -> None:
    """In order with what it yields: that is the rest, from the first piece that cannot be written at once."""
    node = Node(["t"])
    written: list[bytes] = []
    takes = True

    def write(data: bytes) -> bool:
        if takes:
            written.append(data)
        return takes

    stream = Reader(node.browser.stream(b"#", last_id="", value_bytes=100, write=write))
    await stream.until("live")
    waiting = asyncio.create_task(stream.event())
    for number in (1, 2):
        await asyncio.sleep(0)  # the reader waits
        node.publish(value("t", b"direct %d" % number))
        async with asyncio.timeout(60):
            while len(written) < number:
                await asyncio.sleep(0.01)
    takes = False
    node.publish(value("t", b"yielded"))
    name, data = await waiting
    assert (name, data["value"]) == ("value", "yielded")
    assert [json.loads(one.split(b"data: ")[1])["value"] for one in written] == ["direct 1", "direct 2"]


async def test_many_readers_get_a_batch_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others run in between; each reader gets it once."""
    monkeypatch.setattr(streams, "_AT_ONCE", 2)
    monkeypatch.setattr(streams, "_FLUSH_SLICE_S", 0.0)  # one step a turn
    node = Node([])
    readers = [reader(node) for _ in range(7)]
    for one in readers:
        await one.until("live")
    got = [asyncio.create_task(one.event()) for one in readers]
    for number in range(2):
        node.publish(value("t", b"%d" % number))
        assert [data["value"] for _, data in await asyncio.gather(*got)] == [str(number)] * len(readers)
        got = [asyncio.create_task(one.event()) for one in readers]
    for task in got:
        task.cancel()
    await asyncio.gather(*got, return_exceptions=True)


async def test_filters_share_the_encoding_of_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many filters match a message, it is encoded once for each size of a value."""
    node = Node([])
    encoded: list[bytes] = []
    show = show_payload

    def counted(payload: bytes, *, bytes_max: int) -> Shown:
        encoded.append(payload)
        return show(payload, bytes_max=bytes_max)

    monkeypatch.setattr("fanout.node.browse.streams.show_payload", counted)
    readers = [reader(node, one) for one in ("#", "a/#", "+/b", "a/b", "a/+")]
    for one in readers:
        await one.until("live")
    node.publish(value("a/b", b"1"), value("a/b", b"2"), value("c", b"3"))
    for one in readers:
        assert [(await one.event())[1]["value"] for _ in range(2)] == ["1", "2"]
    assert sorted(encoded) == [b"1", b"2", b"3"]


async def test_a_slow_reader_is_told_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for one reader is bounded."""
    monkeypatch.setattr(streams, "WAITING_BYTES_MAX", 1 << 16)
    node = Node([])
    stream = reader(node)
    await stream.until("live")
    for number in range(streams.WAITING_BYTES_MAX // 20):
        node.browser.note("tear_down", link=f"link{number}")
    assert (await stream.event())[0] == "overflow"
    with pytest.raises(StopAsyncIteration):
        await stream.event()


async def test_states_of_links_are_told() -> None:
    """A reader knows when values are stale or removed."""
    node = Node([])
    stream = reader(node)
    await stream.until("live")
    node.browser.note("state", link="plant", state="stalled", detail="no heartbeat")
    assert await stream.event() == ("state", {"link": "plant", "state": "stalled"})


async def test_streams_end_with_the_node() -> None:
    """Each reader gets a last event."""
    node = Node([])
    stream = reader(node)
    await stream.until("live")
    node.browser.close()
    assert (await stream.event())[0] == "end"
    assert node.observers == {}


async def test_a_channel_ends_some_time_after_its_last_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with nobody looking pays nothing."""
    monkeypatch.setattr(streams, "LINGER_S", 0.01)
    node = Node([])
    async with aclosing(node.browser.stream(b"#", last_id="", value_bytes=100)) as stream:
        await anext(stream)
        assert len(node.observers) == 1
    async with asyncio.timeout(60):
        while node.observers:
            await asyncio.sleep(0.005)


async def test_channels_without_readers_are_bounded() -> None:
    """A reader of many filters one after the other leaves some only; the newest still remember what is missed."""
    node = Node([])
    for number in range(streams.IDLE_MAX + 50):
        stream = reader(node, f"t/{number}/#")
        await stream.until("live")
        await stream.close()
    assert len(node.observers) == streams.IDLE_MAX
    again = reader(node, f"t/{number}/#", last_id=stream.last_id)
    assert await again.event() == ("resumed", {"events": 0})
    node.publish(value(f"t/{number}/1"))
    assert (await again.event())[0] == "value"
    node.browser.close()
    assert (await again.event())[0] == "end"
    await again.close()
    assert node.observers == {}


async def test_sizes_of_values_are_rounded_up() -> None:
    """Readers that want almost the same size share a channel; each gets at least what it asks for."""
    node = Node(["t"])
    node.publish(value("t", b"x" * 300))
    for size, sent in ((0, 0), (1, 64), (60, 64), (64, 64), (200, 256), (257, 300), (4096, 300)):
        stream = Reader(node.browser.stream(b"t", last_id="", value_bytes=size))
        (_, (_, data)) = await stream.until("live")
        assert len(data["value"] or "") == sent
        await stream.close()
    assert len(node.observers) == 5


async def test_a_tap_has_no_stream() -> None:
    """It delivers nothing, and says so."""
    with pytest.raises(RequestRefused, match="tap"):
        Node([], serves=False).browser.stream(b"#", last_id="", value_bytes=100)


@pytest.mark.parametrize(("payload", "value_bytes"), [(b"x" * 4096, 4096), (b"\x01" * 4096, 4096)])
async def test_a_set_of_large_values_is_not_taken_for_a_slow_reader(payload: bytes, value_bytes: int) -> None:
    """Escapes make six characters of one byte; a piece of the set may be larger than what may wait."""
    node = Node([])
    node.stores[0].replica.apply([value(f"a/{number}", payload) for number in range(500)], phase=Phase.LIVE)
    stream = Reader(node.browser.stream(b"#", last_id="", value_bytes=value_bytes))
    assert len(await stream.until("live")) == 501


async def test_events_begin_anew_after_a_restart() -> None:
    """A reader of an earlier process gets all of this one."""
    node = Node([])
    node.browser.note("start")
    for strange in ("500", "00000000-1", f"{node.browser.node_events.process}-x"):
        assert (await Reader(node.browser.event_stream(last_id=strange)).event())[1]["id"] == 1
    document = node.browser.events(before=None, limit=10)
    again = Reader(node.browser.event_stream(last_id=f"{document.process}-1"))
    node.browser.note("stop")
    assert (await again.event())[1]["id"] == 2
    assert again.last_id == f"{document.process}-2"
