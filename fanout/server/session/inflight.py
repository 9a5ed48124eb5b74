"""In-flight messages of one session at QoS 1 and 2, and the encoding of messages within the client's limits.

Owns the Packet Identifiers of one session, its Receive Maximum, the limit of bytes in flight and the Maximum Packet
Size (MQTT 5, sections 3.1.2.11, 4.3, 4.4 and 4.9). `sender` owns the order of messages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from operator import itemgetter

from fanout.mqtt.decoder import AckRun
from fanout.mqtt.delivery import Outbound, SendState
from fanout.mqtt.packets import PacketType, encode_acks, encode_unknown
from fanout.mqtt.reason_codes import ReasonCode
from fanout.server.base.counters import Counters, DropReason
from fanout.server.messages.encoding import TWO_BYTES, Frame, Message, WireVariant, encode_message, split_at_packet_id
from fanout.server.messages.queue import MessageBatch
from fanout.server.messages.shared_inflight import Follower

__all__ = ["Inflight", "Piece"]

_qos = itemgetter(1)


class Piece:
    """Bytes collected for one write, with the remaining budget of messages and bytes."""

    __slots__ = ("bytes_left", "messages_left", "now_ns", "parts")

    def __init__(self, *, now_ns: int, messages_left: int, bytes_left: int) -> None:
        self.parts: list[bytes] = []
        self.now_ns = now_ns
        self.messages_left = messages_left
        self.bytes_left = bytes_left

    def has_room(self) -> bool:
        """Return whether more may be added."""
        return self.messages_left > 0 and self.bytes_left > 0

    def spend(self, messages: int, size: int) -> None:
        """Charge messages of `size` bytes to the budget."""
        self.messages_left -= messages
        self.bytes_left -= size


class Inflight:
    """In-flight state of one session."""

    __slots__ = ("_counters", "blocked", "follower", "outbound", "resend", "wire")

    def __init__(self, *, wire: WireVariant, bytes_max: int, counters: Counters) -> None:
        """Begin with nothing.

        Args:
            wire: Wire variant of the client.
            bytes_max: Bytes in flight at which sending stops.
            counters: Totals of the server.
        """
        self.wire = wire
        """Wire variant of its last Network Connection."""
        self.outbound: Outbound[Message] = Outbound(bytes_max=bytes_max)
        """Messages at QoS 1 and 2 in flight that were sent to this session alone."""
        self.follower = Follower(self.outbound)
        """Its position in the shared in-flight log of its audience."""
        self.blocked = False
        """True when the last attempt to send stopped because the client must acknowledge first."""
        self._counters = counters
        self.resend: OrderedDict[int, Message] = OrderedDict()  # popping the first entry of a dict scans deleted ones
        """Messages of a former Network Connection to send again before all others, by Packet Identifier."""

    def connect(self, *, wire: WireVariant, window: int) -> bytes:
        """Start with a new Network Connection; see `SessionSender.connect`."""
        self.wire = wire
        self.blocked = False
        self.outbound.window = window
        releases: list[int] = []
        for packet_id, message, state in self.outbound.in_flight():
            if state is SendState.AWAIT_PUBCOMP:
                releases.append(packet_id)
            else:
                self.resend[packet_id] = message
        return encode_acks(PacketType.PUBREL, releases) if releases else b""

    def disconnect(self) -> None:
        """Record that the Network Connection has ended; messages in flight stay."""
        self.follower.leave()
        self.resend.clear()

    @property
    def messages(self) -> int:
        """Number of messages at QoS 1 and 2 that are sent and not completed."""
        return len(self.outbound) + self.follower.in_flight

    def in_flight(self) -> Iterator[tuple[int, Message, SendState]]:
        """Return the messages at QoS 1 and 2 that are sent and not completed, as `Outbound.in_flight` does."""
        return chain(self.outbound.in_flight(), self.follower.messages())

    @property
    def last_packet_id(self) -> int:
        """The Packet Identifier that was used last; 0 before the first."""
        shared = self.follower.last_shared_packet_id
        return self.outbound.last_packet_id if shared is None else shared

    def acknowledge(self, run: AckRun) -> bytes:
        """Process a run of PUBACK, PUBREC or PUBCOMP and return the answers."""
        follower = self.follower
        if follower.log is None:
            return self._acknowledge_own(run)
        # Messages that were sent to this session alone are older than those of the shared log.
        own = 0
        if len(self.outbound):
            own = next((at for at, packet_id in enumerate(run.packet_ids) if packet_id not in self.outbound), len(run))
        if own == len(run):
            answer = self._acknowledge_own(run)
            follower.refresh()
            return answer
        shared = follower.acknowledge(run.part(own, len(run)) if own else run)
        if shared is None:  # out of order, unknown or refused: handled with state of its own
            follower.leave()
            return self._acknowledge_own(run)
        if own:
            shared = self._acknowledge_own(run.part(0, own)) + shared
            follower.refresh()
        return shared

    def take_resend(self, piece: Piece) -> None:
        """Send the messages of a former Network Connection again [MQTT-4.4.0-1]."""
        # Only messages in flight that were sent on this Network Connection count towards its Receive Maximum.
        free = self.outbound.window - (len(self.outbound) - len(self.resend))
        while self.resend and piece.has_room():
            if free <= 0:
                self.blocked = True
                return
            packet_id, message = self.resend.popitem(last=False)
            frame = encode_message(message, wire=self.wire, now_ns=piece.now_ns, packet_id=packet_id, dup=True)
            if 0 < self.wire.packet_bytes_max < len(frame):  # as if it had been completed [MQTT-3.1.2-25]
                self._counters.dropped[DropReason.PACKET_TOO_LARGE] += 1
                given_up = PacketType.PUBACK if message[1] == 1 else PacketType.PUBREC
                self.outbound.acknowledge(given_up, packet_id, ReasonCode.PACKET_TOO_LARGE)
                continue
            free -= 1
            piece.parts.append(frame)
            piece.spend(1, len(frame))

    def encode(
        self,
        batch: MessageBatch,
        start: int,
        stop: int,
        piece: Piece,
        *,
        frames: list[Frame] | None,
    ) -> int:
        """Encode the messages from `start` to before `stop`; return their number: fewer when the window is full."""
        if frames is None:
            for index in range(start, stop):
                if not self.encode_one(batch.messages[index], piece):
                    return index - start
            return stop - start
        parts = piece.parts
        outbound = self.outbound
        free = outbound.free
        messages = batch.messages
        levels = set(map(_qos, messages[start:stop]))
        if levels == {0}:
            parts += frames[start:stop]  # type: ignore[arg-type]  # at QoS 0 a frame is bytes
            self._counters.deliveries += stop - start
            return stop - start
        if len(levels) == 1:
            qos = levels.pop()
            stop = min(stop, start + free)
            if start < stop:
                heads, tails = zip(*frames[start:stop], strict=True)
                size = sum(map(len, heads)) + sum(map(len, tails))
                packet_ids = map(TWO_BYTES.__getitem__, outbound.send_run(messages[start:stop], qos, size=size))
                parts += chain.from_iterable(zip(heads, packet_ids, tails, strict=True))
            self._counters.deliveries += stop - start
            return stop - start
        send = outbound.send
        index = start
        for index in range(start, stop):
            frame = frames[index]
            if frame.__class__ is tuple:
                if not free:
                    break
                free -= 1
                message = messages[index]
                packet_id = send(message, message[1], size=len(frame[0]) + len(frame[1]))
                parts += (frame[0], TWO_BYTES[packet_id], frame[1])
            else:
                parts.append(frame)  # type: ignore[arg-type]  # a frame that is no tuple is bytes
        else:
            index = stop
        self._counters.deliveries += index - start
        return index - start

    def encode_newest(self, messages: list[Message], piece: Piece) -> int:
        """Encode newest values; return their number: fewer when the window is full."""
        wire, now_ns = self.wire, piece.now_ns
        if wire.packet_bytes_max or any(message[0][6] or message[1] for message in messages):
            for index, message in enumerate(messages):
                if not self.encode_one(message, piece):
                    return index
            return len(messages)
        piece.parts += [encode_message(message, wire=wire, now_ns=now_ns) for message in messages]
        self._counters.deliveries += len(messages)
        return len(messages)

    def encode_one(self, message: Message, piece: Piece) -> bool:
        """Encode one message; return False when it must wait for an acknowledgement."""
        update, qos, _, _ = message
        counters = self._counters
        if 0 < update[6] <= piece.now_ns:  # [MQTT-3.3.2-5]
            counters.dropped[DropReason.EXPIRED] += 1
            return True
        if qos and not self.outbound.free:
            return False
        frame = encode_message(message, wire=self.wire, now_ns=piece.now_ns, packet_id=1 if qos else 0)
        if 0 < self.wire.packet_bytes_max < len(frame):  # [MQTT-3.1.2-25]
            counters.dropped[DropReason.PACKET_TOO_LARGE] += 1
            return True
        if qos:
            head, tail = split_at_packet_id(frame, topic=update[0])
            piece.parts += (head, TWO_BYTES[self.outbound.send(message, qos, size=len(frame))], tail)
        else:
            piece.parts.append(frame)
        counters.deliveries += 1
        return True

    def _acknowledge_own(self, run: AckRun) -> bytes:
        if self.resend:
            for packet_id in run.packet_ids:
                self.resend.pop(packet_id, None)
        outcome = self.outbound.acknowledge_run(run)
        self.blocked = self.blocked and not outcome.completed
        if run.type is PacketType.PUBREC and self.wire.version == 4:
            # MQTT 3.1.1 has no Reason Code for an unknown Packet Identifier. Without PUBREL the client would keep it
            # for ever, and take a later message with it for a duplicate.
            return encode_acks(PacketType.PUBREL, run.packet_ids)
        answer = encode_acks(PacketType.PUBREL, outcome.to_release) if outcome.to_release else b""
        if run.type is PacketType.PUBREC:
            answer += encode_unknown(PacketType.PUBREL, outcome.unknown)
        return answer
