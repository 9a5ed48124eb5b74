"""Memory of addresses that close the connection at a SUBSCRIBE below `$SYS/`, as rumqttd does.

Without it no link would ever come up there. It lasts as long as the process.
"""

from __future__ import annotations

__all__ = ["CLOSED_MAX", "SystemTopics"]

CLOSED_MAX = 2
"""After so many connections in a row closed without an answer, nothing below `$SYS/` is subscribed any more."""


class SystemTopics:
    """Support of `$SYS/` topics by the addresses of one primary."""

    def __init__(self) -> None:
        """Begin without findings: each address may be asked."""
        self._address = ""
        self._closed: dict[str, int] = {}
        """Address to the number of connections in a row that it closed without an answer."""

    @property
    def asked(self) -> bool:
        """Whether topics below `$SYS/` are requested from the address in use."""
        return self._closed.get(self._address, 0) < CLOSED_MAX

    def use(self, address: str) -> None:
        """Note the address in use from now on."""
        self._address = address

    def note_answer(self) -> None:
        """Note that the address answered a request behind such a SUBSCRIBE."""
        if self.asked:
            self._closed.pop(self._address, None)

    def note_closed(self) -> bool:
        """Note that the address closed the connection unanswered; return whether it is not asked any more."""
        if not self.asked:
            return False
        self._closed[self._address] = self._closed.get(self._address, 0) + 1
        return not self.asked
