"""Mark of a session: some subscriptions by which a link knows a session that it has left, when it resumes it.

Session Present only tells that the primary has a session with the link's Client Identifier. A second process with the
same configuration may have begun it, or have resumed it and taken messages. So each process subscribes some of eight
Topic Filters below its control topic, to which nobody publishes; which ones tells the processes apart. At each
resumption it removes all eight, and subscribes its own again. UNSUBACK tells which of them there were (MQTT 5, section
3.11.3), thus which process had the session last. This counts if the primary has shown this mark before.
"""

from __future__ import annotations

from typing import Final

from xxhash import xxh3_64_intdigest

from fanout.link.protocol.control_channel import ControlChannel
from fanout.link.protocol.sender import PacketSender
from fanout.mqtt.packets import Suback, Unsuback
from fanout.mqtt.reason_codes import ReasonCode

__all__ = ["SessionMark"]

_FILTERS: Final = 8
"""Number of Topic Filters, which some primaries take in one packet and no more."""
_EXISTED: Final[dict[int, bool]] = {ReasonCode.SUCCESS: True, ReasonCode.NO_SUBSCRIPTION_EXISTED: False}


class SessionMark:
    """Mark of one link's session, over all its Network Connections."""

    def __init__(self, control: ControlChannel, *, sender: PacketSender) -> None:
        """Begin without a mark.

        Args:
            control: Control channel of the link, below whose topic the mark is.
            sender: Sender of packets.
        """
        number = 1 + xxh3_64_intdigest(b"%d" % control.nonce) % (2**_FILTERS - 2)  # neither none nor all
        self._own = tuple(bool(number >> bit & 1) for bit in range(_FILTERS))
        """Those of the filters that this process subscribes to."""
        self._control = control
        self._sender = sender
        self._filters = [control.topic + b"/session/%d" % bit for bit in range(_FILTERS)]
        self._is_trusted = False
        """True if the primary has told of this mark in this epoch."""
        self._is_placed = False
        """True if the session that this process knows has the mark."""
        self._subscribe_id = 0
        """Packet Identifier of the newest SUBSCRIBE; 0 once it is answered."""
        self._unsubscribe_id = 0
        """The same of UNSUBSCRIBE."""
        self._is_expected = False
        """True if this UNSUBSCRIBE must find the mark."""

    def begin_epoch(self) -> None:
        """Forget the mark of the former session."""
        self._is_trusted = self._is_placed = False

    def begin_connection(self) -> None:
        """Forget what was under way on the former Network Connection."""
        self._subscribe_id = self._unsubscribe_id = 0

    def place(self, now: float) -> None:
        """Mark a session that was begun on this Network Connection, and have the primary tell of the mark."""
        if self._can_place:
            self._subscribe(now)
            self._renew(now)

    def check(self, now: float) -> None:
        """Ask whether a session that was resumed has the mark, and mark it again."""
        self._is_expected = self._is_placed and self._is_trusted
        if self._can_place:
            self._renew(now)

    def receive_suback(self, packet: Suback) -> None:
        """Take a SUBACK: the mark is placed, unless the primary refused it."""
        if packet.packet_id == self._subscribe_id:
            self._subscribe_id = 0
            self._is_placed = all(code < ReasonCode.UNSPECIFIED_ERROR for code in packet.reason_codes)

    def receive_unsuback(self, packet: Unsuback) -> bool:
        """Take an UNSUBACK; return whether it shows that another process had the session, or that it is another one."""
        if packet.packet_id != self._unsubscribe_id:
            return False
        self._unsubscribe_id = 0
        found = tuple(_EXISTED.get(code) for code in packet.reason_codes)
        self._is_trusted = self._is_trusted or found == self._own
        is_told = len(found) == _FILTERS and None not in found
        return self._is_expected and is_told and found != self._own

    @property
    def _can_place(self) -> bool:
        """True if the primary takes a mark: it lets the link subscribe to its control topic."""
        return (
            self._sender.version == 5
            and bool(self._control.permitted)
            and self._sender.takes_names(self._filters, sentinel=None)
        )

    def _renew(self, now: float) -> None:
        self._is_placed = False  # if the connection is lost now, nobody knows
        self._unsubscribe_id = self._sender.unsubscribe(*self._filters, now=now)
        self._subscribe(now)

    def _subscribe(self, now: float) -> None:
        own = [each for each, is_own in zip(self._filters, self._own, strict=True) if is_own]
        self._subscribe_id = self._sender.subscribe_names(own, sentinel=None, now=now)
