"""Packet Identifiers of one sender in one Session (MQTT 5, section 2.2.1): which of them are in use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fanout.errors import SendQuotaExceeded

__all__ = ["PacketIds"]

_MAX = 0xFFFF


class PacketIds:
    """Hands out identifiers from 1 to 65,535, never one that is in use [MQTT-2.2.1-3].

    The order is ascending and starts again at 1, so an identifier rests as long as possible before its next use. This
    makes traces readable and a late acknowledgement noticeable.
    """

    __slots__ = ("_in_use", "_last")

    def __init__(self) -> None:
        self._in_use: set[int] = set()
        self._last = 0

    def __contains__(self, packet_id: int) -> bool:
        """Return whether `packet_id` is in use."""
        return packet_id in self._in_use

    @property
    def in_use(self) -> int:
        """Number of identifiers in use."""
        return len(self._in_use)

    def allocate(self) -> int:
        """Return an identifier and mark it as in use.

        Raises:
            SendQuotaExceeded: All 65,535 are in use.
        """
        in_use = self._in_use
        if len(in_use) == _MAX:
            raise SendQuotaExceeded("All 65,535 Packet Identifiers are in use")
        packet_id = self._last
        while True:
            packet_id = packet_id % _MAX + 1
            if packet_id not in in_use:
                break
        in_use.add(packet_id)
        self._last = packet_id
        return packet_id

    def allocate_run(self, count: int) -> Sequence[int]:
        """Return the next `count` identifiers and mark them as in use.

        Raises:
            SendQuotaExceeded: Fewer are free; nothing changes.
        """
        if len(self._in_use) + count > _MAX:
            raise SendQuotaExceeded("All 65,535 Packet Identifiers are in use")
        run = range(self._last + 1, self._last + 1 + count)
        if run.stop > _MAX + 1 or not self._in_use.isdisjoint(run):
            return [self.allocate() for _ in run]
        self._in_use.update(run)
        self._last = run.stop - 1
        return run

    @property
    def last(self) -> int:
        """The identifier that was handed out last; 0 before the first."""
        return self._last

    def continue_behind(self, packet_id: int) -> None:
        """Continue after `packet_id`; 0 begins anew."""
        self._last = packet_id

    def claim(self, packet_id: int) -> None:
        """Mark `packet_id`, which is not in use, as in use."""
        assert packet_id not in self._in_use
        self._in_use.add(packet_id)

    def release(self, packet_id: int) -> None:
        """Make `packet_id` available again.

        Raises:
            KeyError: It is not in use.
        """
        self._in_use.remove(packet_id)

    def release_all(self, packet_ids: Iterable[int]) -> None:
        """Make `packet_ids` available again; those not in use are ignored."""
        self._in_use.difference_update(packet_ids)
