"""Memory of addresses that close the connection at requests of the capability check.

rumqttd closes it at a SUBSCRIBE below `$SYS/`. Over MQTT 3.1.1 a primary cannot tell its Maximum QoS, and Mosquitto
with `max_qos 0` closes it at a message at QoS 1. With `max_queued_messages 0` it closes it, over either version, after
PUBACK has refused a message. Without this memory no link would ever come up there. It lasts as long as the process.
"""

from __future__ import annotations

__all__ = ["CLOSED_MAX", "SystemTopics"]

CLOSED_MAX = 2
"""Number of connections in a row, closed without an answer, after which something else is omitted."""
_LADDER = ((True, True), (False, True), (True, False), (False, False))
"""Attempts in order: True to subscribe topics below `$SYS/`, and True to publish messages at QoS 1."""
_UNPUBLISHED = 2
"""First attempt without messages. Over MQTT 5 CONNACK tells Maximum QoS: only a refusal leads here."""


class SystemTopics:
    """Support of `$SYS/` topics, and of messages at QoS 1, by the addresses of one primary."""

    def __init__(self, version: int) -> None:
        """Begin without findings: each address may be asked everything.

        Args:
            version: 4 or 5.
        """
        self._version = version
        self._address = ""
        self._refused = ""
        """Address that refused a message on its newest connection; empty for none."""
        self._closed: dict[str, int] = {}
        """Address to the number of connections that it closed without an answer; an answer keeps what was left out."""

    @property
    def asked(self) -> bool:
        """True if topics below `$SYS/` are requested from the address in use."""
        return _LADDER[self._step][0]

    @property
    def may_publish(self) -> bool:
        """True if the address in use takes messages at QoS 1, as far as is known."""
        return _LADDER[self._step][1]

    def use(self, address: str) -> None:
        """Note the address in use from now on."""
        self._address = address

    def note_refused(self) -> None:
        """Note that the address does not let the link publish."""
        self._refused = self._address

    def note_answer(self) -> None:
        """Note that the address answered a request after all others."""
        self._refused = ""
        if self._closed.get(self._address):
            self._closed[self._address] = self._step * CLOSED_MAX

    def note_closed(self) -> str:
        """Note that the address closed the connection unanswered; return what is left out now, empty for no change."""
        before, closed = self._step, self._closed.get(self._address, 0) + 1
        last = len(_LADDER) - 1 if self._version == 4 or not self.may_publish else _UNPUBLISHED - 1
        if self._refused == self._address and self.may_publish:
            closed, last = CLOSED_MAX * _UNPUBLISHED, _UNPUBLISHED
        self._refused = ""
        self._closed[self._address] = min(closed, CLOSED_MAX * last)
        if self._step == before:
            return ""
        left_out = "requests below $SYS" if not self.asked else ""
        if not self.may_publish:
            left_out += f"{' and ' * bool(left_out)}messages at QoS 1"
        return left_out

    @property
    def _step(self) -> int:
        return min(self._closed.get(self._address, 0) // CLOSED_MAX, len(_LADDER) - 1)
