"""Copies of other members' sessions that this member keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fanout.durable.ownership.copy_rules import GIVEN, CopyVersion

__all__ = ["HeldCopies", "HeldCopy"]

_OVERHEAD: Final = 400
"""Bytes of a copy in memory beside its value."""


@dataclass(slots=True)
class HeldCopy:
    """A copy of a session."""

    client_id: str
    """Client Identifier."""
    holder: str
    """Member that has the session."""
    instance: str
    """Its process."""
    version: CopyVersion
    """Version of the copy."""
    value: bytes
    """The copy; it never changes."""
    came_s: float
    """When it came, seconds of the node's clock."""
    places: bytes | None = None
    """Place from which the session goes on, which replaces the one in the copy; None if the copy is right."""
    places_number: int = 0
    """Number of these places at the holder; of no use without any."""


class HeldCopies:
    """The copies by Client Identifier, one for each client."""

    def __init__(self, *, bytes_max: int) -> None:
        """Begin without any.

        Args:
            bytes_max: Bytes that copies take at most; further ones are not kept.
        """
        self.bytes = 0
        """Bytes that they take."""
        self._bytes_max = bytes_max
        self._copies: dict[str, HeldCopy] = {}
        self._of: dict[tuple[str, str], dict[str, None]] = {}
        """Holder and its process to Client Identifiers."""
        self._given: dict[str, float] = {}
        """Clients whose sessions were given away, or searched in vain, to the time of that; oldest first."""

    def __len__(self) -> int:
        """Return the number of copies."""
        return len(self._copies)

    def get(self, client_id: str) -> HeldCopy | None:
        """Return the copy of a client's session; None when there is none."""
        return self._copies.get(client_id)

    def put(self, copy: HeldCopy) -> bool:
        """Keep a copy in place of an earlier one; return False, and keep that one, when there is no room."""
        size, former = _size(copy), self._copies.get(copy.client_id)
        if self.bytes + size - (0 if former is None else _size(former)) > self._bytes_max:
            return False
        self.remove(copy.client_id)
        self.bytes += size
        self._copies[copy.client_id] = copy
        self._of.setdefault((copy.holder, copy.instance), {})[copy.client_id] = None
        if copy.version.number == GIVEN:
            self._given[copy.client_id] = copy.came_s
        return True

    def remove(self, client_id: str) -> HeldCopy | None:
        """Forget the copy of a client's session, and return it; None when there was none."""
        copy = self._copies.pop(client_id, None)
        if copy is not None:
            self.bytes -= _size(copy)
            self._given.pop(client_id, None)
            process = copy.holder, copy.instance
            del self._of[process][client_id]
            if not self._of[process]:
                del self._of[process]
        return copy

    @property
    def processes(self) -> tuple[tuple[str, str], ...]:
        """Processes of members, each with copies of its sessions here."""
        return tuple(self._of)

    def given(self, *, until_s: float) -> Iterator[HeldCopy]:
        """Yield the copies of sessions that were given away, and not looked for since; they must not change meanwhile.

        Args:
            until_s: Those that were given away, or looked for in vain, until then; seconds of the node's clock.
        """
        for client_id, since_s in self._given.items():
            if since_s > until_s:
                return
            yield self._copies[client_id]

    def note_sought(self, client_id: str, *, now_s: float) -> None:
        """Note that a session that was given away was looked for in vain."""
        if self._given.pop(client_id, None) is not None:
            self._given[client_id] = now_s

    def of(self, holder: str, instance: str) -> Iterator[HeldCopy]:
        """Yield the copies of the sessions of a process; they must not change meanwhile."""
        return (self._copies[client_id] for client_id in self._of.get((holder, instance), ()))


def _size(copy: HeldCopy) -> int:
    return _OVERHEAD + len(copy.value) + len(copy.client_id)
