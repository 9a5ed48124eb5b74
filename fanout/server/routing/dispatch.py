"""Dispatch of a batch of updates to all audiences: the hot path of the server.

Each update is encoded once per encoding and the frames are joined once per audience; each member gets one write per
slice. Dispatch calls each member's `write` itself: returning a thousand pairs of member and bytes to a caller would
cost as much as the join.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final, TypeAlias, cast

from fanout.chain.stamp import as_copy
from fanout.replica.update import Stamp, Update
from fanout.server.base.counters import Counters, DropReason
from fanout.server.messages.encoding import (
    HEADERS,
    SHORT_MAX,
    TWO_BYTES,
    Frame,
    SharedMessage,
    WireVariant,
    encode_frame,
)
from fanout.server.messages.queue import MessageBatch
from fanout.server.messages.shared_inflight import CYCLE, PACKET_IDS
from fanout.server.routing.audiences import AudienceIndex, Encoding
from fanout.server.routing.subscribers import Audience, Collected, ShareGroup, Subscriber, Write

__all__ = ["SLICE_BYTES", "Dispatcher"]

SLICE_BYTES: Final = 256 * 1024
"""Approximate bytes of one write to a member. A full socket is detected after each slice. The rest of a large batch
then waits in the queue, which members share, and not in the transport, where each member has a copy."""

# Compiled code takes a tuple of known length apart and makes another one where it hands it on; it keeps one of unknown
# length. Each message has the very update that was dispatched: what is kept for copies of sessions is recognized by it.
_SameUpdate: TypeAlias = tuple[Any, ...]
_SameMessage: TypeAlias = tuple[_SameUpdate, int, bool, tuple[int, ...]]

_UPDATE_BYTES = 32  # bytes that an update counts towards a slice beside its payload and properties


class Dispatcher:
    """Delivers batches of updates to sessions."""

    def __init__(self, index: AudienceIndex, *, counters: Counters) -> None:
        self._index = index
        self._counters = counters
        self._position = 0
        """Number of the batch that is dispatched, in the history of messages."""

    def dispatch(
        self, updates: list[Update], *, now_ns: int, origin: Subscriber | None = None, position: int = 0
    ) -> None:
        """Deliver `updates`, in order, to every session with a matching subscription.

        Args:
            updates: Updates that are in the store already, so that no client misses both the retained and the live one.
            now_ns: Unix time in nanoseconds.
            origin: The session that published them; None when they came from elsewhere.
            position: Number of the batch in the history of messages on disk; 0 when it is not there.
        """
        self._position = position
        if not self._index.trie.size:  # no subscriptions, as during most first snapshots: no route is looked up
            return
        # One loop on local variables, with a copy of the fast paths of `encode_message` and `encode_frame`. With one
        # audience of a QoS 0 reader an update costs 0.8 us here, of which the frame is 0.2 us; each further member
        # costs its share of one write.
        routes_of = self._index.cached.get
        find_routes = self._index.routes
        counters = self._counters
        excluded = origin.audience if origin is not None else None
        if excluded is not None and not excluded.no_local:
            excluded = None
        touched: list[Audience] = []
        individual: dict[Subscriber, list[_SameMessage]] = {}
        weight = 0
        topic: bytes
        payload: bytes
        qos: int
        retain: bool
        properties: bytes
        expires_ns: int
        stamp: Stamp | None
        for update in cast("list[_SameUpdate]", updates):
            topic, payload, qos, retain, properties, _, expires_ns, _, stamp = update
            routes, groups = routes_of(topic) or find_routes(topic)
            if expires_ns and expires_ns <= now_ns:  # [MQTT-3.3.2-5]
                counters.dropped[DropReason.EXPIRED] += sum(len(route.audience) for route in routes) + len(groups)
                continue
            current: Encoding | None = None
            for audience, encoding, own in routes:
                if encoding is not current:  # routes with the same encoding are adjacent
                    current = encoding
                    wire, qos_max, retain_as_published, identifiers = encoding
                    message_qos = qos_max if qos > qos_max else qos
                    flag = retain and retain_as_published
                    message = (update, message_qos, flag, identifiers)
                    frame: Frame = b""
                collected = audience.collected
                if collected is None:
                    collected = audience.collected = Collected(audience)
                    touched.append(audience)
                if collected.encodes:
                    if not frame:
                        length = len(topic) + len(payload) + 2
                        version, stamped, packet_bytes_max = wire
                        if length >= SHORT_MAX - 3 or packet_bytes_max:
                            frame = self._encode(message, wire, now_ns)
                        elif version == 4:
                            if message_qos:
                                header = HEADERS[message_qos << 1 | flag][length + 2]
                                frame = (header + TWO_BYTES[len(topic)] + topic, payload)
                            else:
                                frame = b"".join((HEADERS[flag][length], TWO_BYTES[len(topic)], topic, payload))
                        elif properties or expires_ns or identifiers or (stamped and stamp is not None):
                            frame = encode_frame(message, wire=wire, now_ns=now_ns)
                        elif message_qos:
                            header = HEADERS[message_qos << 1 | flag][length + 3]
                            frame = (header + TWO_BYTES[len(topic)] + topic, b"\0" + payload)
                        else:
                            frame = b"".join((HEADERS[flag][length + 1], TWO_BYTES[len(topic)], topic, b"\0", payload))
                    if not frame:  # over the Maximum Packet Size [MQTT-3.1.2-25]
                        counters.dropped[DropReason.PACKET_TOO_LARGE] += len(audience)
                        continue
                    collected.frames.append(frame)
                if collected.keeps:
                    collected.messages.append(message)
                    collected.qos_levels |= message_qos
                    if expires_ns:
                        collected.expiring = True
                if audience is excluded and origin is not None and own is not None:
                    individual.setdefault(origin, []).append(_own_message(update, own))
            for group in groups:
                self._deliver_to_group(group, update, individual)
            weight += len(payload) + _UPDATE_BYTES
            if properties:
                weight += len(properties)
            if weight > SLICE_BYTES:
                self._flush(touched, individual, now_ns, origin if excluded is not None else None)
                touched, individual, weight = [], {}, 0
        self._flush(touched, individual, now_ns, origin if excluded is not None else None)

    def correct(self, values: Sequence[Update], *, now_ns: int) -> None:
        """Send the corrected expiry of delivered values to the fanout nodes below; other clients get nothing.

        Args:
            values: The values as they are in the store now.
            now_ns: Unix time in nanoseconds.
        """
        self._position = 0
        individual: dict[Subscriber, list[_SameMessage]] = {}
        for value in values:
            routes, _ = self._index.routes(value[0])
            for audience, encoding, _ in routes:
                if encoding.wire.stamped:  # only nodes ask for stamps, and they recognise a copy
                    message = _own_message(as_copy(value), encoding)
                    for session in (*audience.direct, *audience.queued):
                        individual.setdefault(session, []).append(message)
        self._send_each(individual, now_ns)

    def redeliver(self, messages: list[tuple[ShareGroup, Update]], *, now_ns: int) -> None:
        """Deliver messages that a former member of a share group did not get, to the other members of the group."""
        self._position = 0
        individual: dict[Subscriber, list[_SameMessage]] = {}
        for group, update in messages:
            self._deliver_to_group(group, update, individual)
        self._send_each(individual, now_ns)

    def _deliver_to_group(
        self, group: ShareGroup, update: _SameUpdate, individual: dict[Subscriber, list[_SameMessage]]
    ) -> None:
        session, options = group.take_turn()
        message = SharedMessage(_own_message(update, self._index.encoding(session.wire, [options])))
        message.share = group.key
        individual.setdefault(session, []).append(message)

    def _encode(self, message: _SameMessage, wire: WireVariant, now_ns: int) -> Frame:
        """Encode a message that the hot loop does not; an empty frame means that it exceeds the Maximum Packet Size."""
        frame = encode_frame(message, wire=wire, now_ns=now_ns)
        size = len(frame) if isinstance(frame, bytes) else len(frame[0]) + 2 + len(frame[1])
        return b"" if 0 < wire.packet_bytes_max < size else frame

    def _flush(
        self,
        touched: list[Audience],
        individual: dict[Subscriber, list[_SameMessage]],
        now_ns: int,
        excluded: Subscriber | None,
    ) -> None:
        """Write or queue the collected messages; `excluded` gets nothing with its audience."""
        counters = self._counters
        for audience in touched:
            collected = audience.collected
            assert collected is not None
            audience.collected = None
            frames = collected.frames if collected.encodes else None
            if not (frames or collected.messages):  # all over the Maximum Packet Size
                continue
            left_out = excluded if excluded is not None and excluded.audience is audience else None
            if left_out is not None:
                audience.discard(left_out)
            data: bytes | None = None
            if not collected.qos_levels and frames is not None:
                data = b"".join(frames)  # type: ignore[arg-type]  # at QoS 0 a frame is bytes
            # A write may fill a socket, which moves its member to `queued`; so both sets are copied.
            queued = tuple(audience.queued)
            batch: MessageBatch | None = None
            if collected.keeps:
                batch = MessageBatch(
                    collected.messages,
                    wire=audience.wire,
                    frames=frames,
                    data=data,
                    expiring=collected.expiring,
                    position=self._position,
                )
            if data is not None and frames is not None:
                direct = tuple(audience.direct.values())
                for write in direct:
                    write(data)
                counters.sent_bytes += len(direct) * len(data)
                counters.deliveries += len(direct) * len(frames)
            elif batch is not None and frames is not None:
                for session in queued:
                    session.follower.leave()  # before messages are logged that these sessions do not get now
                self._deliver_in_step(audience, batch, frames, qos_levels=collected.qos_levels, now_ns=now_ns)
            if batch is not None:
                for session in queued:
                    session.enqueue(batch)
            if left_out is not None:
                audience.update(left_out)
        if individual:
            self._send_each(individual, now_ns)

    def _send_each(self, individual: dict[Subscriber, list[_SameMessage]], now_ns: int) -> None:
        """Write or queue messages for single sessions."""
        for session, messages in individual.items():
            expiring = any(message[0][6] for message in messages)
            batch = MessageBatch(messages, wire=session.wire, expiring=expiring, position=self._position)
            if session.write is None:
                session.enqueue(batch)
                continue
            write = session.write
            data = session.send(batch, now_ns=now_ns)
            self._counters.sent_bytes += len(data)
            if data:
                write(data)

    def _deliver_in_step(
        self, audience: Audience, batch: MessageBatch, frames: list[Frame], *, qos_levels: int, now_ns: int
    ) -> None:
        """Deliver a slice with messages at QoS 1 or 2: the same bytes to all members that are in step.

        A member is served individually when the slice does not fit its window; it joins again as soon as its queue is
        empty. All members are served individually while one slice has messages of both QoS 1 and 2.
        """
        counters = self._counters
        log = audience.log
        direct = audience.direct
        messages = batch.messages
        shared = messages if all(map(itemgetter(1), messages)) else batch.durable().messages
        count = len(shared)
        if qos_levels != log.qos:
            for session in direct:
                session.follower.leave()
            log.qos = qos_levels if qos_levels in {1, 2} else log.qos
        if not log.followers and direct:
            log.begin_behind(next(iter(direct)).follower.last_packet_id)
        stop, floor = log.end + count, log.floor
        writes: list[Write] = []
        others: list[tuple[Subscriber, Write]] = []
        for session, write in direct.items():
            follower = session.follower
            if (follower.limit >= stop and follower.completed >= floor) or (
                qos_levels == log.qos and follower.log is None and follower.join(log, count)
            ):
                writes.append(write)
            else:
                follower.leave()
                others.append((session, write))
        if writes:
            data = _join_frames(frames, log.end, count)
            log.append(shared, size=len(data), oldest=lambda: _oldest(audience))
            for write in writes:
                write(data)
            counters.sent_bytes += len(writes) * len(data)
            counters.deliveries += len(writes) * len(messages)
        for session, write in others:
            sent = session.send(batch, now_ns=now_ns)
            counters.sent_bytes += len(sent)
            if sent:
                write(sent)


def _oldest(audience: Audience) -> int:
    """Return the lowest position that a following member has in flight."""
    followers = (session.follower for session in audience.direct)
    return min(follower.completed for follower in followers if follower.log is not None)


def _join_frames(frames: list[Frame], position: int, count: int) -> bytes:
    """Join frames, of which `count` need a Packet Identifier, with the identifiers of the log from `position`."""
    start = position % CYCLE
    identifiers = PACKET_IDS[start : start + count]
    if count == len(frames):
        heads, tails = zip(*frames, strict=True)
        return b"".join(chain.from_iterable(zip(heads, identifiers, tails, strict=True)))
    parts: list[bytes] = []
    following = iter(identifiers)
    for frame in frames:
        if isinstance(frame, bytes):
            parts.append(frame)
        else:
            parts += (frame[0], next(following), frame[1])
    return b"".join(parts)


def _own_message(update: _SameUpdate, encoding: Encoding) -> _SameMessage:
    """Return the message for one session that is served individually."""
    return (
        update,
        min(update[2], encoding.qos_max),
        update[3] and encoding.retain_as_published,
        encoding.identifiers,
    )
