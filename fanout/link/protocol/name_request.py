"""Request for retained messages by exact Topic Name (core): SUBSCRIBE packets out, retained messages and refusals in.

It goes over a connection without any other subscription. Names are requested in chunks, one after another. PINGREQ
stands after each, and the sentinel, if there is one, in the same SUBSCRIBE. If the primary is known to answer in order,
a name that did not come before these answers has no retained message. Elsewhere the primary must also be silent for a
while.

A primary may accept only some names in one SUBSCRIBE, or none below a certain depth. Names that it refuses for another
reason than a missing right are requested again in smaller chunks, then one by one without the sentinel. Only then they
count as refused.

A request at QoS 1 tells at which QoS a value was published: a copy has that QoS, or the one requested if it is lower.
Such copies may come after the answers, for want of room in flight, so there too a name is absent only after silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from fanout.errors import ProtocolError
from fanout.link.model.evidence import Order
from fanout.link.protocol.sender import PacketSender
from fanout.mqtt.decoder import Item, PublishRow, PublishRun
from fanout.mqtt.packets import Pingresp, Suback
from fanout.mqtt.reason_codes import ReasonCode

__all__ = ["CHUNK_NAMES", "CHUNK_NAMES_AT_QOS_1", "CHUNK_SIZES", "NAMES_MAX", "NameRequest", "NamedAnswer"]

NAMES_MAX = 1_000
"""Largest number of names in one request: their values are held in memory."""
CHUNK_NAMES = 50
"""Largest number of names in one SUBSCRIBE, far below the number of messages that a primary queues for one client."""
CHUNK_SIZES = (CHUNK_NAMES, 7, 1)
"""Sizes of chunks that are tried, one after another: 7 names and the sentinel are 8 filters, as AWS IoT Core takes."""
_REFUSED_MAX = 8
"""Number of names refused again, with none accepted, after which the other names of the same size are not tried."""
_DENIALS = (ReasonCode.UNSPECIFIED_ERROR, ReasonCode.NOT_AUTHORIZED)
"""Reason Codes that may mean the want of a right; over MQTT 3.1.1 there is only the first."""
CHUNK_NAMES_AT_QOS_1 = 20
"""The same at QoS 1: Mosquitto's default number of messages in flight, so that none has to wait in its queue."""
_RETAIN = 0x01
_QOS = 0x06
_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class NamedAnswer:
    """Answer of a primary to a request by exact Topic Names; each name has a value, is absent, or is refused."""

    values: Mapping[str, PublishRow]
    """Retained message of each topic that has one, with its properties as they came."""
    absent: frozenset[str]
    """Topics with a positive SUBACK and no retained message before the answers that follow it."""
    refused: Mapping[str, int]
    """Reason Code of SUBACK, 0x80 or above, of each topic that the primary refused, also one by one; or the QoS that it
    granted, where that is below the one requested."""
    chunk_names: int = CHUNK_NAMES
    """Largest size of a chunk that the primary takes, as far as this request has shown."""

    @property
    def denied(self) -> frozenset[str]:
        """Refused topics that the user may have no right to read; others cannot be requested by name at all."""
        return frozenset(topic for topic, code in self.refused.items() if code in _DENIALS)


class NameRequest:
    """One request over one Network Connection; all times are monotonic seconds."""

    def __init__(
        self,
        topics: Sequence[str],
        *,
        sender: PacketSender,
        sentinel: bytes | None,
        order: Order,
        quiet_s: float,
        chunk_names: int = CHUNK_NAMES,
        qos: int = 0,
    ) -> None:
        """Prepare; `begin` sends the first chunk.

        Args:
            topics: Topic Names at the primary, at most `NAMES_MAX`.
            sender: Sender of the connection.
            sentinel: Topic of the sentinel; None for none.
            order: Order of the primary's answers.
            quiet_s: Seconds of silence that show the end of the answers at a primary whose order is not known.
            chunk_names: Size of the first chunks, of `CHUNK_SIZES`.
            qos: QoS of the request, 0 or 1.

        Raises:
            ValueError: There are too many topics, or one of them is no Topic Name that can be requested.
        """
        names = [topic.encode() for topic in dict.fromkeys(topics)]
        if len(names) > NAMES_MAX:
            raise ValueError(f"{len(names)} topics are more than the {NAMES_MAX} that one request may have")
        for name in names:
            if b"+" in name or b"#" in name or name.startswith(b"$share/"):
                raise ValueError(f"{name!r} is no Topic Name that can be requested")
        self._left = names
        self._left.reverse()  # chunks are taken from the end
        self._sender = sender
        self._sentinel = sentinel
        self._order = Order.NONE if qos else order
        self._quiet_s = quiet_s
        self._size = self._chunk_names = chunk_names
        """Size of chunks now, and the largest one that the primary takes."""
        self._again: dict[bytes, int] = {}
        """Names to be requested again in smaller chunks, with the Reason Code of their refusal."""
        self._refused_again = 0
        """Number of names refused at this size, none taken; the first size does not count."""
        self._qos = qos
        self._chunk: list[bytes] = []
        """Names of the chunk under way."""
        self._suback_id = 0
        """Packet Identifier of its SUBSCRIBE; 0 once SUBACK has come."""
        self._awaits_pingresp = False
        self._awaits_sentinel = False
        self._changed_s = 0.0
        """When the newest answer came."""
        self._values: dict[bytes, PublishRow] = {}
        self._absent: set[bytes] = set()
        self._refused: dict[bytes, int] = {}

    @property
    def done(self) -> bool:
        """True if every name is answered."""
        return not (self._left or self._chunk or self._again)

    @property
    def smaller_chunk(self) -> int | None:
        """Size to try on another connection if the primary ended this one at a chunk; None if that cannot be why."""
        is_alone = len(self._chunk) == 1 and self._chunk_sentinel is None
        return None if is_alone or not self._chunk else _smaller(self._size)

    @property
    def deadline(self) -> float:
        """When to call `tick`; infinity for never."""
        silence_counts = not (self.done or self._suback_id or self._awaits_pingresp) and self._order is not Order.KNOWN
        return self._changed_s + self._quiet_s if silence_counts else _NEVER

    def answer(self) -> NamedAnswer:
        """Return the answer; to be called once `done`."""
        return NamedAnswer(
            MappingProxyType({topic.decode(): row for topic, row in self._values.items()}),
            frozenset(topic.decode() for topic in self._absent),
            MappingProxyType({topic.decode(): code for topic, code in self._refused.items()}),
            self._chunk_names,
        )

    def begin(self, now: float) -> None:
        """Send the first chunk.

        Raises:
            PrimaryRefused: The primary takes no packet as large as a SUBSCRIBE for one of the names.
        """
        self._send_next(now)

    def receive(self, item: Item, now: float) -> None:
        """Take a decoded item of the connection, and send the next chunk when the present one is answered.

        Raises:
            PrimaryRefused: The primary takes no packet as large as a SUBSCRIBE for one of the names.
            ProtocolError: SUBACK has another number of Reason Codes than SUBSCRIBE has filters.
        """
        if isinstance(item, PublishRun):
            self._receive_rows(item.rows, now)
        elif isinstance(item, Suback) and self._sender.answered(item.packet_id) and item.packet_id == self._suback_id:
            self._receive_suback(item, now)
        elif isinstance(item, Pingresp) and self._awaits_pingresp:
            self._sender.receive_pingresp()
            self._awaits_pingresp = False
            self._changed_s = now
        if self._is_answered:
            self._end_chunk(now)

    def tick(self, now: float) -> None:
        """End the chunk under way if the primary has been silent for long enough.

        Raises:
            PrimaryRefused: See `receive`.
        """
        if now >= self.deadline:
            self._end_chunk(now)

    def _receive_rows(self, rows: Sequence[PublishRow], now: float) -> None:
        if to_acknowledge := [packet_id for _, _, flags, packet_id, *_ in rows if flags & _QOS]:
            self._sender.acknowledge(to_acknowledge, now=now)
        for row in rows:
            topic, payload, flags, *_ = row
            if not flags & _RETAIN:
                continue  # a live message: the subscription is without Retain As Published
            if topic == self._sentinel:
                self._awaits_sentinel = False
            elif topic in self._chunk and payload:
                self._values[topic] = row
                self._changed_s = now
            elif topic in self._chunk:  # a removal, with the flag of the bridge bit
                self._values.pop(topic, None)

    def _receive_suback(self, packet: Suback, now: float) -> None:
        self._suback_id = 0
        self._changed_s = now
        codes = packet.reason_codes
        if len(codes) != len(self._chunk) + (self._chunk_sentinel is not None):
            raise ProtocolError(  # [MQTT-3.8.4-6]
                ReasonCode.PROTOCOL_ERROR, "a SUBACK with another number of Reason Codes than Topic Filters"
            )
        answered = dict(zip(self._chunk, codes, strict=False))
        self._refused.update((name, code) for name, code in answered.items() if code < self._qos)
        refused = {name: code for name, code in answered.items() if code >= ReasonCode.UNSPECIFIED_ERROR}
        self._note_refused(refused, taken=len(self._chunk) - len(refused))
        if self._chunk_sentinel is not None and codes[-1] >= ReasonCode.UNSPECIFIED_ERROR:
            self._awaits_sentinel = False

    def _note_refused(self, refused: Mapping[bytes, int], *, taken: int) -> None:
        """Note which names of the chunk were refused for good, and which are requested again."""
        is_last = _smaller(self._size) is None
        for name, code in refused.items():
            (self._refused if is_last or code == ReasonCode.NOT_AUTHORIZED else self._again)[name] = code
        if self._size == self._chunk_names:
            return
        if taken:
            self._chunk_names = self._size
            return
        self._refused_again += len(refused)
        if self._refused_again >= _REFUSED_MAX:
            code = next(iter(refused.values()))
            (self._refused if is_last else self._again).update(dict.fromkeys(self._left, code))
            self._left = []

    @property
    def _chunk_sentinel(self) -> bytes | None:
        """The sentinel of the chunk; None for a name that is requested alone."""
        return None if _smaller(self._size) is None else self._sentinel

    @property
    def _is_answered(self) -> bool:
        if self._suback_id or not self._chunk:
            return False
        if all(self._is_told(name) for name in self._chunk):
            return not self._awaits_pingresp  # no more than one PINGREQ is under way
        return self._order is Order.KNOWN and not (self._awaits_pingresp or self._awaits_sentinel)

    def _end_chunk(self, now: float) -> None:
        self._absent.update(name for name in self._chunk if not self._is_told(name))
        for name in self._chunk:
            if name in self._refused or name in self._again:
                self._values.pop(name, None)
        self._chunk = []
        self._send_next(now)

    def _is_told(self, name: bytes) -> bool:
        """Say whether a name of the chunk needs no further answer."""
        return name in self._values or name in self._refused or name in self._again

    def _send_next(self, now: float) -> None:
        """Send as many names in one SUBSCRIBE as the primary takes, and PINGREQ after it."""
        if not self._left and (smaller := _smaller(self._size)) is not None:
            self._size = smaller
            self._refused_again = 0
            self._left = list(reversed(self._again))
            self._again.clear()
        sender, sentinel = self._sender, self._chunk_sentinel
        if not self._left:
            return
        size = min(CHUNK_NAMES_AT_QOS_1 if self._qos else CHUNK_NAMES, self._size, len(self._left))
        while size > 1 and not sender.takes_names(self._left[-size:], sentinel=sentinel):
            size //= 2
        self._chunk = self._left[-size:]
        self._suback_id = sender.subscribe_names(self._chunk, sentinel=sentinel, now=now, qos=self._qos)
        del self._left[-size:]
        self._awaits_sentinel = sentinel is not None
        self._awaits_pingresp = True
        self._changed_s = now
        sender.ping(now)


def _smaller(size: int) -> int | None:
    """Return the next smaller size of a chunk; None for the smallest."""
    return next((each for each in CHUNK_SIZES if each < size), None)
