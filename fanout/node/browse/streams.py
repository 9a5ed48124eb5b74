"""Streams of retained and live values as server-sent events (WHATWG HTML, section 9.2).

All listeners of a Topic Filter share a channel. All channels that send in a turn share the encoding of each message.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from fanout.api.browse.payloads import show_payload
from fanout.api.models import utc_from_ns
from fanout.node.browse.activity import Observe
from fanout.node.browse.identity import stamp_of, traceparent_of
from fanout.replica.update import PAYLOAD, PROPERTIES, QOS, RECEIVED_NS, RETAIN, TOPIC, Update
from fanout.runtime.slices import Slices

__all__ = ["IDLE_MAX", "LINGER_S", "MESSAGES_MAX", "WAITING_BYTES_MAX", "Streams", "frame"]

_FLUSH_S: Final = 0.1
"""Time that messages are collected."""
MESSAGES_MAX: Final = 500
"""Messages sent after this time; if there are more, each topic's newest one, up to this number."""
_COLLECTED_MAX: Final = 20_000
"""Messages that are collected one by one; then only each topic's newest."""
_RECENT_BYTES_MAX: Final = 1 << 20
"""Bytes of a channel that are remembered for listeners that come back."""
LINGER_S: Final = 30.0
"""Time that a channel without listeners remembers."""
_ENCODED_BYTES_MAX: Final = 8 << 20
"""Bytes of encoded events that are kept for the other channels of a turn."""
_AT_ONCE: Final = 50
"""Listeners that get a batch at once, some 10 us each."""
_FLUSH_SLICE_S: Final = 0.002
"""Time of the event loop after which no further channel sends in the same turn."""
IDLE_MAX: Final = 64
"""Maximum number of channels without listeners that remember; of more, the one that was left first ends."""
_VALUE_BYTES: Final = (0, 64, 256, 1024, 4096)
"""Possible numbers of payload bytes: a reader's number is rounded up, so that more readers share an encoding."""
WAITING_BYTES_MAX: Final = 4 << 20
"""Bytes that wait for one listener; with more its stream ends."""
_PING_S: Final = 15.0


def frame(event: str, data: object, *, event_id: str = "") -> bytes:
    """Return one server-sent event, with its data as JSON in one line."""
    text = f"event: {event}\ndata: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()
    return _identified(event_id, text) if event_id else text


def _identified(event_id: str, event: bytes) -> bytes:
    return f"id: {event_id}\n".encode() + event


class _Key(NamedTuple):
    topic_filter: bytes
    value_bytes: int


@dataclass(slots=True)
class _Batch:
    """Live events that were sent together."""

    first: int
    """Number of the first of them."""
    frames: list[bytes]
    size: int


class Listener:
    """Bytes that wait for one reader of a stream; `close` ends it."""

    def __init__(self, write: Callable[[bytes], bool] | None = None) -> None:
        """Let nothing wait.

        Args:
            write: Writes bytes at once to a reader for which nothing waits; returns False if it cannot. A task that
                wakes to write them costs ten times as much. None if there is no such way.
        """
        self._write = write
        self._is_idle = False
        """True while `read` waits for bytes."""
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._woken = asyncio.Event()
        self._last = b""
        self._ends = False
        self.has_set = False
        """True once the whole retained set was put; before, a reader that comes back needs all of it again."""

    def put(self, data: bytes) -> None:
        """Add bytes; the stream ends when too many wait."""
        if self._ends:
            return
        if self._size > WAITING_BYTES_MAX:  # before these: one batch alone may be larger
            self._waiting.clear()
            self.close(frame("overflow", {"reason": "the reader is too slow; come again"}))
            return
        if self._is_idle and not self._waiting and self._write is not None and self._write(data):
            return
        self._waiting.append(data)
        self._size += len(data)
        self._woken.set()

    def close(self, last: bytes = b"") -> None:
        """End the stream, with a last event."""
        self._last, self._ends = last, True
        self._woken.set()

    def take(self) -> Iterator[bytes]:
        """Yield the bytes that wait."""
        while self._waiting:
            data = self._waiting.popleft()
            self._size -= len(data)
            yield data

    async def read(self) -> AsyncIterator[bytes]:
        """Yield bytes until the stream ends; a comment now and then keeps the connection open."""
        while True:
            for data in self.take():
                yield data
            if self._ends:
                yield self._last
                return
            self._woken.clear()
            if not self._waiting:
                self._is_idle = True
                try:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_PING_S):
                            await self._woken.wait()
                finally:
                    self._is_idle = False
                if not self._woken.is_set():
                    yield b": waiting\n\n"


class _Events:
    """Events of live values, each encoded once for the channels of one turn."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], tuple[Update, bytes]] = {}
        """By identity of the update, which is kept for that, and bytes that are shown."""
        self._bytes = 0

    def value(self, update: Update, *, value_bytes: int) -> bytes:
        """Return the event of a live value."""
        key = id(update), value_bytes
        kept = self._kept.get(key)
        if kept is None:
            if self._bytes > _ENCODED_BYTES_MAX:
                self.clear()
            kept = self._kept[key] = update, _value(update, event="value", value_bytes=value_bytes)
            self._bytes += len(kept[1])
        return kept[1]

    def clear(self) -> None:
        """Forget all of them."""
        self._kept.clear()
        self._bytes = 0


def _value(update: Update, *, event: str, value_bytes: int) -> bytes:
    """Return the event of one value."""
    payload = update[PAYLOAD]
    shown = show_payload(payload, bytes_max=value_bytes)
    data: dict[str, Any] = {
        "topic": update[TOPIC].decode(),
        "received": utc_from_ns(update[RECEIVED_NS]).isoformat(),
        "qos": update[QOS],
        "retained": update[RETAIN],
        "payload_bytes": len(payload),
        "format": shown.format,
        "value": shown.value,
        "cut": shown.cut,
    }
    if (stamp := stamp_of(update)) is not None:
        data["stamp"] = stamp.model_dump(mode="json")
    if (traceparent := traceparent_of(update[PROPERTIES])) is not None:
        data["traceparent"] = traceparent
    return frame(event, data)


class _Channel:
    """Live values of one Topic Filter, sent to all its listeners."""

    def __init__(
        self, key: _Key, observe: Observe, *, events: _Events, flush_later: Callable[[_Channel], None]
    ) -> None:
        self.listeners: dict[Listener, None] = {}
        self.value_bytes = key.value_bytes
        self._events = events
        self._flush_later = flush_later
        self._name = secrets.token_hex(4)
        self._number = 0
        self._recent: deque[_Batch] = deque()
        self._recent_bytes = 0
        self._collected: list[Update] = []
        self._messages = 0
        self._under_way: Iterator[bool] | None = None
        """Sends the newest batch to those that do not have it yet."""
        self._end = observe(key.topic_filter, self._take)

    def close(self) -> None:
        """End the observation and all streams."""
        self._end()
        for listener in self.listeners:
            listener.close(frame("end", {"reason": "the node stops"}))

    @property
    def position(self) -> str:
        """Identifier of the newest event."""
        return f"{self._name}-{self._number}"

    def since(self, last_id: str) -> list[bytes] | None:
        """Return the live events after one; None if they are not remembered."""
        name, _, text = last_id.rpartition("-")
        if name != self._name or not text.isascii() or not text.isdecimal() or len(text) > 18:
            return None
        number = int(text)
        oldest = self._recent[0].first if self._recent else self._number + 1
        if not oldest - 1 <= number <= self._number:
            return None
        found: list[bytes] = []
        for batch in self._recent:
            found += batch.frames[max(0, number + 1 - batch.first) :]
        return found

    def _take(self, updates: list[Update]) -> None:
        if not self._messages:
            self._flush_later(self)
        self._messages += len(updates)
        self._collected += updates
        if len(self._collected) > _COLLECTED_MAX:
            self._collected = _newest(self._collected)[-_COLLECTED_MAX // 2 :]

    def flush(self) -> None:
        """Send what was collected."""
        while self._under_way is not None or self._messages:
            self.flush_some()

    def flush_some(self) -> bool:
        """Send what was collected to some listeners; return False once all have it."""
        under_way = self._under_way or self._send()
        self._under_way = None  # also if it fails
        if next(under_way, False):
            self._under_way = under_way
        return self._under_way is not None

    def _send(self) -> Iterator[bool]:
        """Send what was collected; True comes when others should have a turn."""
        if not self._messages:
            return
        collected, messages = self._collected, self._messages
        self._collected, self._messages = [], 0
        if messages > MESSAGES_MAX:
            collected = _newest(collected)[-MESSAGES_MAX:]
        events = [self._events.value(update, value_bytes=self.value_bytes) for update in collected]
        if len(collected) < messages:
            events.insert(0, frame("conflated", {"messages": messages - len(collected)}))  # they were before these
        first, self._number = self._number + 1, self._number + len(events)
        frames = [_identified(f"{self._name}-{first + at}", event) for at, event in enumerate(events)]
        data = b"".join(frames)
        self._recent.append(_Batch(first, frames, len(data)))
        self._recent_bytes += len(data)
        while self._recent_bytes > _RECENT_BYTES_MAX:
            self._recent_bytes -= self._recent.popleft().size
        listeners = tuple(self.listeners)
        bare = b"" if all(listener.has_set for listener in listeners) else b"".join(events)
        for at, listener in enumerate(listeners, 1):
            listener.put(data if listener.has_set else bare)
            if at % _AT_ONCE == 0:
                yield True


class Streams:
    """Streams of values of one node."""

    def __init__(self, observe: Observe, match: Callable[[bytes], Iterator[list[Update]]], *, slices: Slices) -> None:
        """Open no stream yet.

        Args:
            observe: Observes the node's messages.
            match: Yields the retained values that a Topic Filter matches, in pieces.
            slices: Share of the event loop for retained sets.
        """
        self._observe = observe
        self._match = match
        self._slices = slices
        self._events = _Events()
        self._collecting: dict[_Channel, None] = {}
        """Channels that have collected messages since the last time that all began to send."""
        self._sending: dict[_Channel, None] = {}
        """Channels whose turn to send comes next."""
        self._timer: asyncio.Handle | None = None
        self._channels: dict[_Key, _Channel] = {}
        self._idle: dict[_Key, asyncio.TimerHandle] = {}
        """End of each channel without listeners, in the order in which they were left."""

    def close(self) -> None:
        """End all streams."""
        for key in list(self._channels):
            self._close_channel(key)
        if self._timer is not None:
            self._timer.cancel()

    def tell(self, event: str, data: object) -> None:
        """Send an event to all listeners."""
        told = frame(event, data)
        for channel in self._channels.values():
            for listener in channel.listeners:
                listener.put(told)

    async def read(
        self, topic_filter: bytes, *, last_id: str, value_bytes: int, write: Callable[[bytes], bool] | None = None
    ) -> AsyncGenerator[bytes]:
        """Yield events: retained values, `live`, then each value; or those after `last_id`, if remembered.

        Some are given to `write` in place of that: see `Listener`.
        """
        key = _Key(topic_filter, next((size for size in _VALUE_BYTES if size >= value_bytes), _VALUE_BYTES[-1]))
        channel = self._channels.get(key)
        if channel is None:
            channel = _Channel(key, self._observe, events=self._events, flush_later=self._flush_later)
            self._channels[key] = channel
        elif (timer := self._idle.pop(key, None)) is not None:
            timer.cancel()
        listener = Listener(write)
        missed = channel.since(last_id)
        channel.listeners[listener] = None
        try:
            if missed is not None:
                listener.has_set = True
                yield b"".join([frame("resumed", {"events": len(missed)}), *missed])
            else:
                yield frame("begin", {"filter": topic_filter.decode()})
                async for data in self._retained(channel, listener, topic_filter):
                    yield data
            async for data in listener.read():
                yield data
        finally:
            del channel.listeners[listener]
            if not channel.listeners and self._channels.get(key) is channel:
                self._idle[key] = asyncio.get_running_loop().call_later(LINGER_S, self._close_channel, key)
                if len(self._idle) > IDLE_MAX:
                    self._close_channel(next(iter(self._idle)))

    def _close_channel(self, key: _Key) -> None:
        if (timer := self._idle.pop(key, None)) is not None:
            timer.cancel()
        channel = self._channels.pop(key)
        channel.close()
        self._collecting.pop(channel, None)
        self._sending.pop(channel, None)

    def _flush_later(self, channel: _Channel) -> None:
        """Let a channel send what it collects."""
        self._collecting[channel] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_S, self._flush)

    def _flush(self) -> None:
        """Let channels send, for a slice of the event loop; the others have a turn in the next one."""
        if not self._sending:
            self._sending, self._collecting = self._collecting, {}
        until_s = time.perf_counter() + _FLUSH_SLICE_S
        try:
            while self._sending:
                channel = next(iter(self._sending))
                going_on = False
                try:
                    going_on = channel.flush_some()
                finally:
                    if not going_on:
                        self._sending.pop(channel, None)
                if time.perf_counter() >= until_s:
                    break
        finally:  # one that fails does not stop the others
            loop = asyncio.get_running_loop()
            if self._sending:
                self._timer = loop.call_soon(self._flush)
            else:
                self._events.clear()
                self._timer = loop.call_later(_FLUSH_S, self._flush) if self._collecting else None

    async def _retained(self, channel: _Channel, listener: Listener, topic_filter: bytes) -> AsyncIterator[bytes]:
        """Yield the retained set, with the live values that come meanwhile in their order.

        Until its end the reader has no event identifier, so one that comes back then gets the set again.
        """
        topics: int = 0
        pieces = self._match(topic_filter)

        def put() -> Generator[None, None, int | None]:
            yield
            values = next(pieces, None)
            if values is None:
                return None
            channel.flush()
            events = [_value(value, event="retained", value_bytes=channel.value_bytes) for value in values]
            listener.put(b"".join(events))
            return len(values)

        while (count := await self._slices.run(put())) is not None:
            topics += count
            yield b"".join(listener.take())
            await asyncio.sleep(0)
        channel.flush()
        listener.put(frame("live", {"topics": topics}, event_id=channel.position))
        listener.has_set = True


def _newest(updates: list[Update]) -> list[Update]:
    """Return the newest update of each topic, in the order of these."""
    newest: dict[bytes, Update] = {}
    for update in updates:
        newest.pop(update[TOPIC], None)
        newest[update[TOPIC]] = update
    return list(newest.values())
