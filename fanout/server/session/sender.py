"""Sender's side of one session: its queue, its retained deliveries, its newest values, and the order of all messages.

Owns the order (MQTT 5, section 4.6) of messages to send again, retained messages, queued messages, newest values and
PINGRESP. `inflight` owns the in-flight messages and the client's limits.

Messages that are queued at a SUBSCRIBE are sent before its retained messages, so that no older message follows a
retained value. Messages that are queued later follow the retained ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping

from fanout.chain.age_bound import AgeBound
from fanout.mqtt.delivery import SendState
from fanout.replica.update import Update
from fanout.server.base.counters import Counters, DropReason
from fanout.server.messages.encoding import Message, SharedMessage, WireVariant
from fanout.server.messages.queue import Conflatable, MessageBatch, MessageQueue
from fanout.server.session.inflight import Inflight, Piece
from fanout.server.session.newest_values import NewestValues
from fanout.server.session.retained_delivery import EMPTY_PIECE_COST, RetainedDelivery

__all__ = ["CONFLATED_BYTES", "PINGRESP", "SessionSender"]

PINGRESP = b"\xd0\x00"
CONFLATED_BYTES = 128
"""Bytes that the newest value of a topic counts towards the bound of a queue: its entry; the store holds the value."""


class SessionSender:
    """The sender's side of one session."""

    __slots__ = (
        "_conflatable",
        "_counters",
        "_deliveries",
        "_first",
        "_first_topics",
        "_live_from",
        "_pings",
        "_queued_values",
        "_retained_from",
        "bound",
        "inflight",
        "newest_values",
        "queue",
    )

    def __init__(self, *, wire: WireVariant, queue: MessageQueue, counters: Counters) -> None:
        self.inflight = Inflight(wire=wire, bytes_max=queue.bytes_max, counters=counters)
        """Messages in flight, and the client's limits."""
        self.queue = queue
        """Messages that are delivered one by one."""
        self.newest_values = NewestValues(counters=counters)
        """Newest values of topics, while the client is slow."""
        self.bound: AgeBound | None = None
        """Bound on the age of what waits; None for none."""
        self._conflatable = Conflatable.RETAINED
        # With a bound, messages of these topics are in a queue of their own, which is sent before everything else.
        self._first_topics: frozenset[bytes] = frozenset()
        self._first: MessageQueue | None = None
        self._counters = counters
        self._deliveries: dict[bytes, RetainedDelivery] = {}  # by Topic Filter, in order
        # Retained values by topic that changed during a retained delivery: their messages are in the queue.
        self._queued_values: dict[bytes, Update] = {}
        # Messages before this position of the queue came during a retained delivery.
        self._live_from = 0
        # Messages before this position of the queue are sent before retained ones and sealed newest values.
        self._retained_from = 0
        # PINGRESPs that are due when the queue reaches a position: (position, count).
        self._pings: deque[tuple[int, int]] = deque()

    @property
    def pending(self) -> bool:
        """True when anything is left to write, even if the client must acknowledge something first."""
        return bool(
            self.inflight.resend or self._deliveries or self.queue or self._pings or self.newest_values or self._first
        )

    def limit_age(self, bound: AgeBound | None, *, conflatable: Conflatable) -> None:
        """Bound the age of what waits from now on, by leaving out messages for newer ones.

        Args:
            bound: The bound; None for none.
            conflatable: Messages that may be left out while the client is slow.
        """
        self.bound, self._conflatable = bound, conflatable
        self.newest_values.has_events = conflatable is not Conflatable.RETAINED

    def put_first(self, topics: Iterable[bytes]) -> None:
        """Let the messages of exactly these topics wait for no others, from now on."""
        self._first_topics = frozenset(topics)
        if self._first is None and self._first_topics:
            self._first = self.queue.another()

    def conflate_queued(self) -> None:
        """Conflate the queue of a client with a bound, whose socket is full now.

        The queue stays while retained messages or PINGRESPs wait for a position in it.
        """
        if self.bound is None or not self.queue or self._deliveries or self.newest_values or self._pings:
            return  # once there are newest values, the queue has only messages that may not be conflated
        waiting = list(self.queue.waiting())
        batch = MessageBatch(waiting, wire=self.inflight.wire, expiring=any(message[0][6] for message in waiting))
        self.queue.replace(None)
        self._conflate(batch)

    @property
    def delivers_retained(self) -> bool:
        """True while a retained delivery is not complete."""
        return bool(self._deliveries)

    def connect(self, *, wire: WireVariant, window: int) -> bytes:
        """Start with a new Network Connection.

        Args:
            wire: Wire variant of the client.
            window: Limit of messages in flight: the client's Receive Maximum, or less.

        Returns:
            The PUBRELs to send first; `take` returns the other unacknowledged messages [MQTT-4.4.0-1].
        """
        self._seal()  # queued messages go before retained values, which may have changed since
        return self.inflight.connect(wire=wire, window=window)

    def disconnect(self) -> None:
        """Record that the Network Connection has ended; messages in flight, and queued ones at QoS 1 and 2, stay.

        Queued messages and newest values at QoS 0 are dropped: newer values at QoS 0 are not queued while the client is
        away, so it would get outdated ones.
        """
        self.inflight.disconnect()
        durable = self._conflatable is Conflatable.QOS_1
        self._counters.dropped[DropReason.DISCONNECTED] += self.newest_values.clear(all_qos=not durable)
        self._count_dropped(self.queue.drop_qos_0(), DropReason.DISCONNECTED)
        if self._first is not None:
            self._count_dropped(self._first.drop_qos_0(), DropReason.DISCONNECTED)
        self._live_from = self.queue.appended_total
        self._pings.clear()
        for delivery in self._deliveries.values():
            delivery.pings = 0

    @property
    def deliveries(self) -> Collection[RetainedDelivery]:
        """The retained deliveries that are not complete, in order."""
        return self._deliveries.values()

    def replaces_retained(self, message: Message) -> bool:
        """Return whether a queued message takes the place of the retained message of its topic."""
        return self._queued_values.get(message[0][0]) is message[0]

    def restore(self, batches: Iterable[MessageBatch], *, replacing: Mapping[bytes, Update]) -> None:
        """Take over the queue of a session at another node; this one is empty, and without a Network Connection.

        Args:
            batches: The messages, in order.
            replacing: Retained values of this node, by topic, that queued messages take the place of.
        """
        for batch in batches:
            self.queue.restore(batch)
        self._queued_values.update(replacing)
        self._live_from = self.queue.appended_total

    @property
    def unsent(self) -> int:
        """Number of messages queued or in flight."""
        first = 0 if self._first is None else self._first.messages
        return first + self.queue.messages + self.inflight.messages

    def undelivered(self) -> Iterator[Message]:
        """Return the messages not known to be delivered: unacknowledged ones at QoS 1, then queued ones.

        Messages in flight at QoS 2 are left out: no other client may get them [MQTT-4.8.2-5].
        """
        for _, message, state in self.inflight.outbound.in_flight():
            if state is SendState.AWAIT_PUBACK:
                yield message
        yield from self.queue.waiting()

    def add_retained(self, delivery: RetainedDelivery) -> None:
        """Add a retained delivery; live messages are queued until it is complete.

        It replaces an unfinished delivery for the same Topic Filter, so that there are never more than subscriptions.
        """
        former = self._deliveries.pop(delivery.topic_filter, None)
        if former is not None:
            delivery.pings += former.pings
        self._deliveries[delivery.topic_filter] = delivery
        self.inflight.blocked = False  # the next `take` finds out
        self._seal()

    def cancel_retained(self, topic_filter: bytes) -> None:
        """Cancel the retained delivery of a subscription that has ended."""
        cancelled = self._deliveries.pop(topic_filter, None)
        if cancelled is None:
            return
        if not self._deliveries:
            self._queued_values.clear()
            self._live_from = self.queue.appended_total
            self._expect_pings(cancelled.pings)
        elif cancelled.pings:
            # The order among the other deliveries is not known any more; the end of the last one is never too early.
            self._last_delivery().pings += cancelled.pings

    def ping(self) -> bool:
        """Process a PINGREQ; return True to answer it at once, otherwise `take` returns the answer in its turn.

        A PINGREQ after a SUBSCRIBE is answered when the retained messages of that SUBSCRIBE have been sent, with the
        live messages that replaced some of them. So the PINGRESP proves that all have been sent. It is answered at once
        while the client must acknowledge something first [MQTT-3.3.4-10], unless the client is the link of a fanout
        node, which asked for stamps: it relies on the proof, and acknowledges.
        """
        if self._answers_early():
            return True
        if self._deliveries:
            self._last_delivery().pings += 1
            return False
        if self._position < self._live_from:
            self._pings.append((self._live_from, 1))
            return False
        return True

    def enqueue(self, batch: MessageBatch, *, conflate: bool = False) -> None:
        """Queue a batch; for a slow client keep only the newest of messages that may be conflated.

        Args:
            batch: The messages.
            conflate: True when the client reads too slowly.
        """
        self.inflight.follower.leave()
        if self._first_topics:
            batch = self._queue_first(batch)
        if not conflate and not self.newest_values:
            self._append(batch)
        else:
            self._conflate(batch)

    def _queue_first(self, batch: MessageBatch) -> MessageBatch:
        """Queue the messages of a batch that wait for no other; return the rest of them."""
        topics = self._first_topics
        first = [one for one in batch.messages if one[0][0] in topics and not isinstance(one, SharedMessage)]
        if not first or self._first is None:
            return batch
        self._count_dropped(self._first.append(batch.part(first)), DropReason.QUEUE_FULL)
        self.queue.overflowed = self.queue.overflowed or self._first.overflowed
        return batch.part([one for one in batch.messages if one[0][0] not in topics or isinstance(one, SharedMessage)])

    def _conflate(self, batch: MessageBatch) -> None:
        newest, conflatable, rest = batch.conflated(self._conflatable)
        if rest is not None:
            if older := self.newest_values.remove(rest.messages):
                self._append(
                    MessageBatch(older, wire=self.inflight.wire, expiring=any(message[0][6] for message in older))
                )
            self._append(rest)
        if newest:
            self.newest_values.put(newest, count=conflatable)
        if self.newest_values.topics * CONFLATED_BYTES > self.queue.bytes_max:
            self.queue.overflowed = True  # a value that is dropped now would never be sent

    def send(self, batch: MessageBatch, *, now_ns: int) -> bytes:
        """Return the bytes of a batch for a session that is DIRECT; messages above its window are queued."""
        self.inflight.follower.leave()
        count = len(batch.messages)
        piece = Piece(now_ns=now_ns, messages_left=count, bytes_left=0)
        count = self.inflight.encode(batch, 0, count, piece, frames=batch.frames)
        if count < len(batch.messages):
            self.inflight.blocked = True
            self._append(batch, count)
        return b"".join(piece.parts)

    def take(self, *, now_ns: int, messages_max: int, bytes_max: int) -> bytes:
        """Take the next bytes to write: messages to send again, retained ones, the queue, then newest values.

        Args:
            now_ns: Unix time in nanoseconds.
            messages_max: Approximate limit of messages; a batch that is encoded already is not divided, unless there
                is a bound on the age.
            bytes_max: Bytes at which to stop.

        Returns:
            Bytes of whole packets. While `pending` is true, either `inflight.blocked` says that an acknowledgement
            must come first, or there is more to take.
        """
        self.inflight.follower.leave()
        piece = Piece(now_ns=now_ns, messages_left=messages_max, bytes_left=bytes_max)
        self.inflight.blocked = False
        self.inflight.take_resend(piece)
        if self._first:
            self._take_from(self._first, piece)
        if not self.inflight.resend and not self.inflight.blocked:
            self._take_sealed(piece)
            if self._deliveries and not self.newest_values.sealed:
                self._take_queued(piece, until=self._retained_from)
                if self._position >= self._retained_from:
                    self._take_retained(piece)
        if not self._deliveries and not self.newest_values.sealed and not self.inflight.blocked:
            self._take_queued(piece)
            if not self.queue and self.newest_values:
                self._seal()
                self._take_sealed(piece)
        parts = piece.parts
        sent = self._position
        early = self._answers_early()
        while self._pings and (early or self._pings[0][0] <= sent):
            parts.append(PINGRESP * self._pings.popleft()[1])
        if early:
            for delivery in self._deliveries.values():
                parts.append(PINGRESP * delivery.pings)
                delivery.pings = 0
        return b"".join(parts)

    @property
    def _position(self) -> int:
        """Position of the oldest message in the queue, or of the next one when it is empty."""
        return self.queue.appended_total - self.queue.messages

    def _append(self, batch: MessageBatch, start: int = 0) -> None:
        if self.queue.overflowed:  # the session ends after this dispatch
            self._counters.dropped[DropReason.SESSION_ENDED] += len(batch.messages) - start
            return
        dropped = self.queue.append(batch, start=start)
        if self._deliveries:
            self._queued_values.update(
                (message[0][0], message[0]) for message in batch.messages[start:] if message[0][3]
            )
        self._count_dropped(dropped, DropReason.QUEUE_FULL)

    def _count_dropped(self, dropped: list[Message], reason: DropReason) -> None:
        """Count messages that the queue has dropped."""
        if not dropped:
            return
        self._counters.dropped[reason] += len(dropped)
        if not self._queued_values:
            return
        for update, _, _, _ in dropped:
            if self._queued_values.get(update[0]) is update:
                del self._queued_values[update[0]]  # so the retained delivery includes the value

    def _seal(self) -> None:
        """Order the queued messages and newest values before all that are added later."""
        self._retained_from = self.queue.appended_total
        self.newest_values.seal(self._retained_from)

    def _take_retained(self, piece: Piece) -> None:
        while self._deliveries and piece.has_room():
            topic_filter, delivery = next(iter(self._deliveries.items()))
            piece.parts.append(delivery.begin_manifest())
            count = piece.messages_left
            if delivery.qos_max:  # no more than the window allows, so at most one is put back
                count = min(count, max(1, self.inflight.outbound.free))
            values = delivery.take(count)
            if values is None:
                piece.parts.append(delivery.end_manifest())
                del self._deliveries[topic_filter]
                self._live_from = self.queue.appended_total
                self._expect_pings(delivery.pings)
                if not self._deliveries:
                    self._queued_values.clear()
                continue
            if not values:
                piece.spend(EMPTY_PIECE_COST, 0)
                continue
            batch = None if self.bound is not None else delivery.batch(values, wire=self.inflight.wire)
            if batch is None:
                left = self._send_retained(delivery, values, piece)
            else:
                left = self._send_retained_batch(delivery, batch, piece)
            if left:
                delivery.put_back(left)
            if self.inflight.blocked:
                return

    def _send_retained(self, delivery: RetainedDelivery, values: list[Update], piece: Piece) -> list[Update]:
        """Encode retained values one by one; return those that were not sent."""
        for index, value in enumerate(values):
            if not piece.has_room():
                return values[index:]
            piece.spend(1, len(value[1]) + len(value[4]))
            if self._is_queued(value) or 0 < value[6] <= piece.now_ns:  # [MQTT-3.3.2-5]
                continue
            message = delivery.message(value)
            if not self.inflight.encode_one(message, piece):
                self.inflight.blocked = True
                return values[index:]
            delivery.note((value,))
            self.newest_values.supersede(message)
        return []

    def _send_retained_batch(self, delivery: RetainedDelivery, batch: MessageBatch, piece: Piece) -> list[Update]:
        """Send retained values that are encoded once for all clients; return those that were not sent."""
        frames = batch.shared_frames(self.inflight.wire, now_ns=piece.now_ns)
        assert frames is not None, "a shared piece fits its receivers"
        messages, data = batch.messages, batch.data
        piece.spend(len(messages), batch.bytes_between(0, len(messages)))
        waiting = self._queued_values
        if waiting and not waiting.keys().isdisjoint([message[0][0] for message in messages]):
            kept = [index for index, message in enumerate(messages) if not self._is_queued(message[0])]
            messages, data = [messages[index] for index in kept], None
            frames = [frames[index] for index in kept]
            batch = MessageBatch(messages, wire=batch.wire, frames=frames)
        if data is not None:
            piece.parts.append(data)
            self._counters.deliveries += len(messages)
            done = len(messages)
        else:
            done = self.inflight.encode(batch, 0, len(messages), piece, frames=frames)
            self.inflight.blocked = done < len(messages)
        delivery.note([message[0] for message in messages[:done]])
        if self.newest_values:
            for message in messages[:done]:
                self.newest_values.supersede(message)
        return [message[0] for message in messages[done:]]

    def _is_queued(self, value: Update) -> bool:
        """Return whether a retained value, just read, will also be sent as a live message.

        An older queued message of its topic does not count, because the value may have come while the client had no
        subscription, unless a newer one follows among the newest values.
        """
        waiting = self._queued_values.get(value[0])
        return waiting is not None and (waiting == value or self.newest_values.follows(value[0]))

    def _take_sealed(self, piece: Piece) -> None:
        newest_values = self.newest_values
        while newest_values.sealed and piece.has_room():
            if self._position < newest_values.turn:
                self._take_queued(piece, until=newest_values.turn)
                if self.inflight.blocked:
                    return
                continue
            messages = newest_values.take(
                newest=not self.queue, messages_max=piece.messages_left, bytes_max=piece.bytes_left
            )
            done = self.inflight.encode_newest(messages, piece)
            piece.spend(len(messages), sum([len(message[0][1]) + len(message[0][4]) for message in messages]))
            if done < len(messages):
                newest_values.put_back(messages[done:])
                self.inflight.blocked = True
                return

    def _take_queued(self, piece: Piece, *, until: int | None = None) -> None:
        self._take_from(self.queue, piece, until=until)

    def _take_from(self, queue: MessageQueue, piece: Piece, *, until: int | None = None) -> None:
        divides = self.bound is not None
        while queue and piece.has_room():
            if until is not None and self._position >= until:
                return
            batch, start = queue.head()
            count = len(batch.messages) - start
            frames = batch.shared_frames(self.inflight.wire, now_ns=piece.now_ns)
            if start == 0 and frames is not None and batch.data is not None and not divides:
                piece.parts.append(batch.data)
                piece.spend(count, len(batch.data))
                self._counters.deliveries += count
                queue.advance(count)
                continue
            stop = start + min(count, piece.messages_left)
            if divides:
                stop = min(stop, max(start + 1, batch.index_beyond(start, piece.bytes_left)))
            done = self.inflight.encode(batch, start, stop, piece, frames=frames)
            piece.spend(done, batch.bytes_between(start, start + done))
            queue.advance(done)
            if done < stop - start:
                self.inflight.blocked = True
                return

    def _expect_pings(self, count: int) -> None:
        """Answer `count` PINGREQs when all messages that are queued now have been sent."""
        if count:
            self._pings.append((self.queue.appended_total, count))

    def _answers_early(self) -> bool:
        """Return whether a PINGREQ is answered before its turn; see `ping`."""
        return self.inflight.blocked and not self.inflight.wire.stamped

    def _last_delivery(self) -> RetainedDelivery:
        return self._deliveries[next(reversed(self._deliveries))]
