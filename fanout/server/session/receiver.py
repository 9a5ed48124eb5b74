"""Receiver's side of one session: PUBLISH packets from its client, and the order of their acknowledgements.

Owns the state of QoS 1 and 2 (MQTT 5, sections 4.3 and 4.6): which rows are new, the verdict of the node on each, and
the PUBACKs and PUBRECs in the order of the PUBLISHs, even when a verdict comes late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby

from fanout.errors import ProtocolError
from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.delivery import Inbound
from fanout.mqtt.packets import PacketType, encode_acks, encode_unknown
from fanout.mqtt.reason_codes import ReasonCode
from fanout.server.base.counters import Counters
from fanout.server.base.ports import Accepted, PendingVerdict
from fanout.server.base.refusals import NOT_NOW

__all__ = ["SessionReceiver"]


class _Unanswered:
    """A PUBLISH at QoS 1 or 2 that is not acknowledged yet."""

    __slots__ = ("packet_id", "qos", "verdict")

    def __init__(self, packet_id: int, qos: int, verdict: int | PendingVerdict) -> None:
        self.packet_id = packet_id
        self.qos = qos
        self.verdict = verdict

    def reason_code(self) -> int | None:
        """Return the verdict; None while it is pending."""
        verdict = self.verdict
        if isinstance(verdict, int):
            return verdict
        return verdict.result() if verdict.done() else None

    @property
    def is_decided(self) -> bool:
        """True if it is known that the message is taken, or refused, though the client may be told later."""
        return isinstance(self.verdict, Accepted) or self.reason_code() is not None


class SessionReceiver:
    """The receiver's side of one session."""

    __slots__ = ("_counters", "_inbound", "_unanswered", "_unanswered_qos_2", "steps_told", "version")

    def __init__(self, *, version: int, counters: Counters) -> None:
        self.version = version
        """Protocol Level of the Network Connection: 4 or 5."""
        self.steps_told = 0
        """Number of PUBRECs and PUBCOMPs made: with each, the client relies on `unreleased` as it is then."""
        self._counters = counters
        self._inbound = Inbound()
        self._unanswered: deque[_Unanswered] = deque()
        self._unanswered_qos_2: set[int] = set()  # the Packet Identifiers of those in _unanswered at QoS 2

    @property
    def unanswered(self) -> int:
        """Number of PUBLISH packets at QoS 1 and 2 that are not acknowledged yet."""
        return len(self._unanswered)

    @property
    def undecided(self) -> int:
        """Number of PUBLISH packets at QoS 1 and 2 that have no verdict yet."""
        return sum(not one.is_decided for one in self._unanswered)

    @property
    def unreleased(self) -> frozenset[int]:
        """Packet Identifiers of QoS 2 messages that were received and not released.

        Refused ones are left out, and those without a verdict: their messages are taken when they are sent again.
        """
        undecided = self._free_refused()
        return self._inbound.unreleased - undecided if undecided else self._inbound.unreleased

    def restore(self, unreleased: Iterable[int]) -> None:
        """Take over `unreleased` of a session of another node, or of an earlier process."""
        self._inbound.restore(unreleased)

    def new_connection(self, version: int) -> None:
        """Record that the session continues with a new Network Connection.

        The client sends unacknowledged messages at QoS 1 again, and they are acknowledged then. At QoS 2 a pending
        verdict still counts.
        """
        self.version = version
        self._inbound.new_connection()
        self._free_refused()
        self._unanswered = deque(one for one in self._unanswered if one.qos == 2 and one.reason_code() is None)
        self._unanswered_qos_2 = {one.packet_id for one in self._unanswered}

    def accept(
        self, rows: list[PublishRow], *, qos_max: int, receive_maximum: int, retain_available: bool = True
    ) -> tuple[list[PublishRow], ProtocolError | None]:
        """Return the new messages in a run of PUBLISH packets.

        A QoS 2 message that was received before and not released is acknowledged again and is not new [MQTT-4.3.3-10].

        Returns:
            The new rows up to the first fault, and the fault.
        """
        fresh: list[PublishRow] = []
        inbound = self._inbound
        for row in rows:
            qos = row[2] >> 1 & 3
            if not retain_available and row[2] & 1:  # [MQTT-3.2.2-14]
                return fresh, ProtocolError(ReasonCode.RETAIN_NOT_SUPPORTED, "a PUBLISH with RETAIN")
            if qos == 0:
                fresh.append(row)
                continue
            if qos > qos_max:  # [MQTT-3.2.2-11]
                return fresh, ProtocolError(ReasonCode.QOS_NOT_SUPPORTED, f"a PUBLISH at QoS {qos}")
            packet_id = row[3]
            if inbound.accept(packet_id, qos, dup=row[2] & 8 != 0):
                fresh.append(row)
            elif packet_id not in self._unanswered_qos_2:
                self._append(_Unanswered(packet_id, qos, ReasonCode.SUCCESS))
            if self.version == 5 and inbound.exceeded(receive_maximum):
                fault = ProtocolError(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED, f"{inbound.open_count} unanswered PUBLISHs")
                return fresh, fault
        return fresh, None

    def note_verdicts(self, rows: list[PublishRow], verdicts: Sequence[int | PendingVerdict]) -> None:
        """Record the node's verdicts on new rows; `take_acks` returns the acknowledgements."""
        for row, verdict in zip(rows, verdicts, strict=True):
            qos = row[2] >> 1 & 3
            if qos:
                self._append(_Unanswered(row[3], qos, verdict))

    def take_acks(self, *, closes_at_refusal: bool = False) -> tuple[bytes, bool]:
        """Return the PUBACKs and PUBRECs that can be sent now, in the order of the PUBLISHs [MQTT-4.6.0-2].

        MQTT 3.1.1 has no code for a refusal, and allows either a positive acknowledgement or closing [MQTT-3.3.5-2]. A
        client that is closed sends the message again. So one that is refused for good is acknowledged and dropped; one
        that may be accepted later closes the connection, for an acknowledgement would lose it.

        Args:
            closes_at_refusal: True if every refusal closes the connection of a client of MQTT 3.1.1.

        Returns:
            Their bytes, and whether the Network Connection must then be closed.
        """
        parts: list[bytes] = []
        plain: list[int] = []
        plain_type = PacketType.PUBACK
        must_close = False
        while self._unanswered:
            one = self._unanswered[0]
            code = one.reason_code()
            if code is None:
                break
            if code >= 0x80:
                if self.version == 5:
                    code = NOT_NOW.get(code, code)
                elif closes_at_refusal or code in NOT_NOW:
                    must_close = True
                    break
                else:
                    code = ReasonCode.SUCCESS  # dropped; its PUBREL is answered as that of any other
            self._unanswered.popleft()
            self._unanswered_qos_2.discard(one.packet_id)
            if one.qos == 1 or code >= 0x80:
                self._inbound.acknowledge(one.packet_id)
            ack_type = PacketType.PUBACK if one.qos == 1 else PacketType.PUBREC
            self.steps_told += one.qos == 2
            if code == 0 and (ack_type is plain_type or not plain):
                plain_type = ack_type
                plain.append(one.packet_id)
                continue
            if plain:
                parts.append(encode_acks(plain_type, plain))
                plain = []
            if self.version == 5:
                parts.append(bytes((ack_type << 4, 3, one.packet_id >> 8, one.packet_id & 0xFF, code)))
            else:
                parts.append(encode_acks(ack_type, (one.packet_id,)))
        if plain:
            parts.append(encode_acks(plain_type, plain))
        return b"".join(parts), must_close

    def release(self, packet_ids: Sequence[int]) -> bytes:
        """Process PUBRELs and return the PUBCOMPs.

        An unknown Packet Identifier is answered with 0x92 in MQTT 5. MQTT 3.1.1 has no such code and requires PUBCOMP
        (section 4.3.3): without it, a client whose PUBCOMP was lost would repeat its PUBREL for ever.
        """
        parts: list[bytes] = []
        self.steps_told += len(packet_ids)
        for known, run in groupby(packet_ids, self._inbound.release):
            of_run = list(run)
            if not known:
                self._counters.unknown_releases += len(of_run)
            encode = encode_acks if known or self.version == 4 else encode_unknown
            parts.append(encode(PacketType.PUBCOMP, of_run))
        return b"".join(parts)

    def _append(self, one: _Unanswered) -> None:
        self._unanswered.append(one)
        if one.qos == 2:
            self._unanswered_qos_2.add(one.packet_id)

    def _free_refused(self) -> set[int]:
        """Free the Packet Identifiers of messages that were refused while the client was not connected.

        Returns:
            Those of messages at QoS 2 that have no verdict.
        """
        undecided: set[int] = set()
        for one in self._unanswered:
            code = one.reason_code()
            if code is None:
                if one.qos == 2 and not one.is_decided:
                    undecided.add(one.packet_id)
            elif code >= 0x80:
                self._inbound.acknowledge(one.packet_id)
        return undecided
