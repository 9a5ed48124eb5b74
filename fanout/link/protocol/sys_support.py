"""Whether a primary may be asked for topics below `$SYS/` (core).

Owns the memory of addresses that close the connection at such a SUBSCRIBE, as rumqttd does; no link would ever come up
there. It lasts as long as the process. It must not know what is asked there, nor packets.
"""

from __future__ import annotations

__all__ = ["CLOSED_MAX", "SystemTopics"]

CLOSED_MAX = 2
"""After so many connections in a row that were closed without an answer nothing below `$SYS/` is asked any more."""


class SystemTopics:
    """What is known of the addresses of one primary."""

    def __init__(self) -> None:
        """Begin without any address: each may be asked."""
        self._address = ""
        self._closed: dict[str, int] = {}
        """Address to how many connections in a row were closed in place of an answer."""

    @property
    def asked(self) -> bool:
        """Whether the address in use is asked."""
        return self._closed.get(self._address, 0) < CLOSED_MAX

    def use(self, address: str) -> None:
        """Note which address is used from now on."""
        self._address = address

    def note_answer(self) -> None:
        """Note that it answers what is sent behind such a question."""
        if self.asked:
            self._closed.pop(self._address, None)

    def note_closed(self) -> bool:
        """Note that it closed the connection without an answer; return whether it is not asked from now on."""
        if not self.asked:
            return False
        self._closed[self._address] = self._closed.get(self._address, 0) + 1
        return not self.asked
