"""Encoded messages in flight, for records that are written again and again; each message is encoded once.

Sessions in step share a log of messages, so its bytes serve all of them and all of their records. The messages in
flight at one session are a piece of these bytes.
"""

from __future__ import annotations

import sys
from array import array
from typing import Final

from fanout.durable.form.session_format import encode_in_flight, encode_one_in_flight
from fanout.mqtt.delivery import SendState
from fanout.server.messages.encoding import Message
from fanout.server.messages.shared_inflight import SharedInflight
from fanout.server.session.exported_session import ExportedInFlight
from fanout.server.session.inflight import Inflight
from fanout.server.session.session_export import ExportedMessages

__all__ = ["InFlightForms"]

_CYCLE: Final = 0xFFFF
_RELEASED_BYTES: Final = 3


class InFlightForms:
    """The bytes of the messages in flight of a server's sessions."""

    def __init__(self) -> None:
        """Begin with none."""
        self._logs: dict[SharedInflight, _LogForms] = {}
        self._earlier: dict[SharedInflight, _LogForms] = {}

    def begin_group(self) -> None:
        """Begin a group of records: logs that the last one had no use for are forgotten."""
        self._earlier, self._logs = self._logs, {}

    def of(self, inflight: Inflight, messages: ExportedMessages) -> bytes:
        """Return the messages in flight of a session, as `encode_in_flight` writes them.

        Args:
            inflight: Its messages in flight.
            messages: Values of messages.
        """
        log = inflight.follower.log
        if log is not None and not len(inflight.outbound):
            forms = self._logs.get(log) or self._earlier.get(log)
            if forms is None or forms.run != log.run:
                forms = _LogForms(log)
            self._logs[log] = forms
            whole = forms.of(inflight.follower.completed, inflight.follower.received, messages)
            if whole is not None:
                return whole
        return encode_in_flight([_value(*one, messages) for one in inflight.in_flight()])


class _LogForms:
    """The bytes of the messages of one log, from a position on."""

    def __init__(self, log: SharedInflight) -> None:
        self._log = log
        self.run = log.run
        """The run of its positions."""
        self._begin = self._end = 0
        self._forms: list[bytes] = []
        """Those from `_begin` to `_end`, each as one that was sent and has no answer."""
        self._expiring_until = 0
        """Position after the last message that expires, whose remaining time differs in each record."""

    def of(self, completed: int, received: int, messages: ExportedMessages) -> bytes | None:
        """Return the messages in flight of a session with these positions; None when one of them expires."""
        self._follow(received, messages)
        if received < self._expiring_until:
            return None
        first = completed % _CYCLE * _RELEASED_BYTES
        released = _RELEASED[first : first + (received - completed) * _RELEASED_BYTES]
        unanswered = self._forms[received - self._begin :]
        return b"".join(((self._end - completed).to_bytes(4, "big"), released, *unanswered))

    def _follow(self, received: int, messages: ExportedMessages) -> None:
        """Encode at least the messages of the log from `received` on."""
        log = self._log
        if received < self._begin:
            self._forms.clear()
            self._begin = self._end = received
        elif self._begin < log.begin:
            del self._forms[: log.begin - self._begin]
            self._begin = log.begin
        if self._end == log.end:
            return
        state = SendState.AWAIT_PUBACK if log.qos == 1 else SendState.AWAIT_PUBREC
        for position, message in log.messages_from(self._end):
            one = _value(position % _CYCLE + 1, message, state, messages)
            self._forms.append(encode_one_in_flight(one))
            if message[0][6]:
                self._expiring_until = position + 1
        self._end = log.end


def _released_forms() -> bytes:
    """Return the bytes of released messages with all Packet Identifiers in order."""
    packet_ids = array("H", range(1, _CYCLE + 1))
    if sys.byteorder == "little":
        packet_ids.byteswap()
    encoded = packet_ids.tobytes()
    state = encode_one_in_flight(ExportedInFlight(1, SendState.AWAIT_PUBCOMP, None))[2:]
    forms = bytearray(_RELEASED_BYTES * _CYCLE)
    forms[0::3], forms[1::3], forms[2::3] = encoded[0::2], encoded[1::2], state * _CYCLE
    return bytes(forms)


_RELEASED: Final = _released_forms() * 2
"""Twice, so that a run that passes the last identifier is one piece."""


def _value(packet_id: int, message: Message, state: SendState, messages: ExportedMessages) -> ExportedInFlight:
    is_released = state is SendState.AWAIT_PUBCOMP
    return ExportedInFlight(packet_id, state, None if is_released else messages.of(message))
