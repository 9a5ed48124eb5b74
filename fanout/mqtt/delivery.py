"""Delivery state of QoS 1 and QoS 2 (MQTT 5, sections 4.3 and 4.9): the Packet Identifiers of one side of a Session.

`Inbound` is the state of messages from the peer, `Outbound` of messages to it. No packet is written here; a method
tells its caller what to do.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Generic, NamedTuple, TypeVar

from fanout.errors import SendQuotaExceeded
from fanout.mqtt.decoder import AckRun
from fanout.mqtt.packet_ids import PacketIds
from fanout.mqtt.packet_types import PacketType

__all__ = ["AckOutcome", "AckRunOutcome", "Inbound", "Outbound", "SendState"]

M = TypeVar("M")


class Inbound:
    """Receiver: QoS 2 messages that were received and not released, and the count for our Receive Maximum.

    Attributes:
        open_count: Packets at QoS 1 or 2 of this Network Connection that are not yet answered with PUBACK,
            PUBCOMP or a failing PUBREC.
    """

    __slots__ = ("_open", "_unreleased", "_unreleased_copy")

    def __init__(self) -> None:
        # QoS 2 messages that were received and not released: state of the Session, which outlives Network Connections.
        self._unreleased: set[int] = set()
        # The last result of `unreleased`; None once it is outdated.
        self._unreleased_copy: frozenset[int] | None = None
        # Messages that count for the Receive Maximum: state of the Network Connection (section 4.9).
        self._open: set[int] = set()

    @property
    def open_count(self) -> int:
        """See the class."""
        return len(self._open)

    @property
    def unreleased(self) -> frozenset[int]:
        """Packet Identifiers of QoS 2 messages received and not released; one object until they change."""
        if self._unreleased_copy is None:
            self._unreleased_copy = frozenset(self._unreleased)
        return self._unreleased_copy

    def restore(self, unreleased: Iterable[int]) -> None:
        """Take over `unreleased` of an earlier process."""
        self._unreleased.update(unreleased)
        self._unreleased_copy = None

    def accept(self, packet_id: int, qos: int, dup: bool = False) -> bool:
        """Note a PUBLISH at QoS 1 or 2.

        Args:
            packet_id: Its Packet Identifier.
            qos: 1 or 2.
            dup: Its DUP flag, which decides nothing: a receiver may not conclude from it that it saw the message before
                (section 3.3.1.1), only the Packet Identifier counts [MQTT-4.3.3-10].

        Returns:
            True to apply the message. False for a QoS 2 message that was received before and not released: answer it
            with PUBREC again.
        """
        self._open.add(packet_id)
        if qos == 1:
            return True  # [MQTT-4.3.2-5]: a new message, whatever DUP says
        if packet_id in self._unreleased:
            return False
        self._unreleased.add(packet_id)
        self._unreleased_copy = None
        return True

    def acknowledge(self, packet_id: int) -> None:
        """Note that PUBACK, or a refusing PUBREC, was sent [MQTT-4.3.3-9]."""
        self._open.discard(packet_id)
        if packet_id in self._unreleased:
            self._unreleased.remove(packet_id)
            self._unreleased_copy = None

    def release(self, packet_id: int) -> bool:
        """Note PUBREL; answer it with PUBCOMP.

        Returns:
            True if the Packet Identifier was known; otherwise send PUBCOMP with Packet Identifier not found (0x92).
        """
        if packet_id not in self._unreleased:
            return False
        self._unreleased.remove(packet_id)
        self._unreleased_copy = None
        self._open.discard(packet_id)
        return True

    def exceeded(self, receive_maximum: int) -> bool:
        """Return whether the peer broke `receive_maximum` [MQTT-3.3.4-7] [MQTT-3.3.4-9] (0x93)."""
        return len(self._open) > receive_maximum

    def new_connection(self) -> None:
        """Note a new Network Connection of the Session: the count is reset, QoS 2 state stays."""
        self._open.clear()


class SendState(enum.Enum):
    """Packet that a sent message waits for."""

    AWAIT_PUBACK = "await_puback"
    AWAIT_PUBREC = "await_pubrec"
    AWAIT_PUBCOMP = "await_pubcomp"


class AckOutcome(enum.Enum):
    """Effect of an acknowledgement on a sent message."""

    COMPLETED = "completed"
    """The peer has the message; its Packet Identifier is free."""
    REFUSED = "refused"
    """The peer refused the message (Reason Code of 0x80 or above); its Packet Identifier is free."""
    RELEASE = "release"
    """The peer has the message; send PUBREL."""
    UNKNOWN = "unknown"
    """No message has that Packet Identifier. Answer a PUBREC with PUBREL 0x92, ignore anything else."""
    UNEXPECTED = "unexpected"
    """The message waits for another type of packet; nothing changed."""


_TRANSITIONS: dict[tuple[SendState, PacketType], AckOutcome] = {
    (SendState.AWAIT_PUBACK, PacketType.PUBACK): AckOutcome.COMPLETED,
    (SendState.AWAIT_PUBREC, PacketType.PUBREC): AckOutcome.RELEASE,
    # PUBREC again: its PUBREL was lost with a Network Connection
    (SendState.AWAIT_PUBCOMP, PacketType.PUBREC): AckOutcome.RELEASE,
    (SendState.AWAIT_PUBCOMP, PacketType.PUBCOMP): AckOutcome.COMPLETED,
}
"""Effect of packets with a Reason Code below 0x80; other combinations are `UNEXPECTED`."""


class AckRunOutcome(NamedTuple):
    """Effect of a run of acknowledgements."""

    completed: int
    """Number of finished messages, including refused ones; as many places became free."""
    to_release: list[int]
    """Packet Identifiers to send PUBREL for, in order."""
    unknown: list[int]
    """Packet Identifiers for which no message awaits this type of packet."""


class Outbound(Generic[M]):
    """Sender: messages at QoS 1 and 2 in flight, in order, within the peer's Receive Maximum.

    `M` is the caller's type of a message. Session state: it outlives Network Connections.

    Attributes:
        window: The peer's Receive Maximum; a new Network Connection may change it.
        bytes: Bytes in flight, by the sizes that the caller gave.
        bytes_max: Bytes in flight at which nothing more may be sent.
    """

    __slots__ = ("_in_flight", "_packet_ids", "bytes", "bytes_max", "window")

    def __init__(
        self, *, window: int = 0xFFFF, bytes_max: int = sys.maxsize, packet_ids: PacketIds | None = None
    ) -> None:
        """Create an empty state.

        Args:
            window: See the class.
            bytes_max: See the class.
            packet_ids: Source of Packet Identifiers, to share it with SUBSCRIBE and UNSUBSCRIBE; None for a new one.
        """
        self.window = window
        self.bytes = 0
        self.bytes_max = bytes_max
        self._packet_ids = PacketIds() if packet_ids is None else packet_ids
        # In the order of sending. On PUBREC a message moves to the end, so PUBRELs are sent again in the order of the
        # PUBRECs, and PUBLISHs in the order of sending [MQTT-4.6.0-1] [MQTT-4.6.0-4].
        self._in_flight: dict[int, tuple[M, SendState, int]] = {}

    def __contains__(self, packet_id: int) -> bool:
        """Return whether a message with `packet_id` is in flight."""
        return packet_id in self._in_flight

    def __len__(self) -> int:
        """Return the number of messages in flight."""
        return len(self._in_flight)

    @property
    def free(self) -> int:
        """Number of further messages that may be sent now [MQTT-4.9.0-2]."""
        return max(0, self.window - len(self._in_flight)) if self.bytes < self.bytes_max else 0

    def send(self, message: M, qos: int, *, size: int = 0) -> int:
        """Note that `message` is sent.

        Args:
            message: The message, which `in_flight` returns.
            qos: 1 or 2.
            size: Its bytes.

        Returns:
            Its Packet Identifier.

        Raises:
            SendQuotaExceeded: `free` is 0, or no Packet Identifier is free; nothing changes.
        """
        if len(self._in_flight) >= self.window:
            raise SendQuotaExceeded("The peer's Receive Maximum is used up")
        packet_id = self._packet_ids.allocate()
        self._in_flight[packet_id] = (message, SendState.AWAIT_PUBACK if qos == 1 else SendState.AWAIT_PUBREC, size)
        self.bytes += size
        return packet_id

    def send_run(self, messages: Sequence[M], qos: int, *, size: int) -> Sequence[int]:
        """Note that `messages`, of one QoS, are sent; in a fifth of the time that it takes one by one.

        Args:
            messages: The messages, which `in_flight` returns.
            qos: 1 or 2.
            size: Their bytes; each counts as an equal part.

        Returns:
            Their Packet Identifiers.

        Raises:
            SendQuotaExceeded: `free` or the number of free Packet Identifiers is less; nothing changes.
        """
        if len(messages) > self.free:
            raise SendQuotaExceeded("The peer's Receive Maximum is used up")
        packet_ids = self._packet_ids.allocate_run(len(messages))
        state = SendState.AWAIT_PUBACK if qos == 1 else SendState.AWAIT_PUBREC
        part = size // len(messages)
        self._in_flight.update(zip(packet_ids, zip(messages, repeat(state), repeat(part), strict=False), strict=True))
        self.bytes += part * len(messages)
        return packet_ids

    def adopt(self, packet_id: int, message: M, state: SendState, *, size: int) -> None:
        """Note that `message` was sent as `packet_id`, which is not in use, after all that is in flight."""
        self._packet_ids.claim(packet_id)
        self._in_flight[packet_id] = (message, state, size)
        self.bytes += size

    @property
    def last_packet_id(self) -> int:
        """The Packet Identifier that was used last; 0 before the first."""
        return self._packet_ids.last

    def continue_behind(self, packet_id: int) -> None:
        """Continue with the Packet Identifier after `packet_id`; 0 begins anew."""
        self._packet_ids.continue_behind(packet_id)

    def packet_ids(self) -> Iterator[int]:
        """Return the Packet Identifiers in flight, in order."""
        return iter(self._in_flight)

    def message(self, packet_id: int) -> M:
        """Return the message in flight with `packet_id`.

        Raises:
            KeyError: There is none.
        """
        return self._in_flight[packet_id][0]

    def acknowledge(self, ack_type: PacketType, packet_id: int, reason_code: int = 0) -> AckOutcome:
        """Take a PUBACK, PUBREC or PUBCOMP from the peer and return its effect."""
        entry = self._in_flight.get(packet_id)
        if entry is None:
            return AckOutcome.UNKNOWN
        message, state, size = entry
        outcome = _TRANSITIONS.get((state, ack_type), AckOutcome.UNEXPECTED)
        if outcome is AckOutcome.UNEXPECTED:
            return outcome
        if reason_code >= 0x80:
            # The Packet Identifier is free (sections 4.3.2 and 4.3.3, "Reason Code of 0x80").
            outcome = AckOutcome.REFUSED
        if outcome is not AckOutcome.RELEASE:
            del self._in_flight[packet_id]
            self.bytes -= size
            self._packet_ids.release(packet_id)
        elif state is SendState.AWAIT_PUBREC:
            del self._in_flight[packet_id]
            self._in_flight[packet_id] = (message, SendState.AWAIT_PUBCOMP, size)
        return outcome

    def acknowledge_run(self, run: AckRun) -> AckRunOutcome:
        """Take a run of PUBACK, PUBREC or PUBCOMP and return its effect."""
        if run.type is PacketType.PUBACK:
            return self._acknowledge_pubacks(run.packet_ids)
        completed = 0
        to_release: list[int] = []
        unknown: list[int] = []
        for index, packet_id in enumerate(run.packet_ids):
            if packet_id not in self._in_flight:
                unknown.append(packet_id)
                continue
            reason_code = run.reason_codes[index] if run.reason_codes is not None else 0
            outcome = self.acknowledge(run.type, packet_id, reason_code)
            if outcome is AckOutcome.RELEASE:
                to_release.append(packet_id)
            elif outcome in {AckOutcome.COMPLETED, AckOutcome.REFUSED}:
                completed += 1
            else:
                unknown.append(packet_id)
        return AckRunOutcome(completed, to_release, unknown)

    def _acknowledge_pubacks(self, packet_ids: list[int]) -> AckRunOutcome:
        # QoS 1 needs no table and its Reason Codes decide nothing here: a quarter of the time of a call each.
        in_flight = self._in_flight
        completed: list[int] = []
        unknown: list[int] = []
        freed = 0
        for packet_id in packet_ids:
            entry = in_flight.get(packet_id)
            if entry is not None and entry[1] is SendState.AWAIT_PUBACK:
                del in_flight[packet_id]
                freed += entry[2]
                completed.append(packet_id)
            else:
                unknown.append(packet_id)
        self.bytes -= freed
        self._packet_ids.release_all(completed)
        return AckRunOutcome(len(completed), [], unknown)

    def restore_release(self, packet_id: int, message: M) -> None:
        """Take over a QoS 2 message that an earlier process may have sent: release it, do not send it again."""
        self._packet_ids.claim(packet_id)
        self._in_flight[packet_id] = (message, SendState.AWAIT_PUBCOMP, 0)

    def in_flight(self) -> Iterator[tuple[int, M, SendState]]:
        """Return the messages to send again after the Session was resumed, in order [MQTT-4.4.0-1].

        A message that waits for PUBCOMP is sent again as PUBREL, any other as PUBLISH with DUP set
        [MQTT-3.3.1-1].
        """
        for packet_id, (message, state, _) in self._in_flight.items():
            yield packet_id, message, state
