"""Notes on sessions for members that are away, which get them when they are back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Generic, TypeVar

__all__ = ["NotesForAbsent"]

_NOTES_MAX: Final = 100_000
"""Notes for all members together, as many as the ledger remembers of sessions that are elsewhere."""

_Note = TypeVar("_Note")


class NotesForAbsent(Generic[_Note]):
    """Notes by member and Client Identifier; if there are too many, the oldest of the first member go."""

    def __init__(self) -> None:
        """Begin without any."""
        self._notes: dict[str, dict[str, _Note]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return the number of notes."""
        return self._count

    @property
    def members(self) -> tuple[str, ...]:
        """Members for which there are notes."""
        return tuple(self._notes)

    def put(self, member: str, client_id: str, note: _Note) -> None:
        """Set the note of a session for a member, in place of an earlier one."""
        notes = self._notes.setdefault(member, {})
        self._count += client_id not in notes
        notes[client_id] = note
        if self._count > _NOTES_MAX:
            first = next(iter(self._notes))
            oldest = self._notes[first]
            del oldest[next(iter(oldest))]
            self._count -= 1
            if not oldest:
                del self._notes[first]

    def of(self, member: str) -> Mapping[str, _Note]:
        """Return the notes for a member, by Client Identifier."""
        return self._notes.get(member, {})

    def members_of(self, client_id: str) -> list[str]:
        """Return the members for which there are notes for a client."""
        return [member for member, notes in self._notes.items() if client_id in notes]

    def remove(self, member: str, client_id: str) -> None:
        """Remove the note on a session for a member, if there is one."""
        notes = self._notes.get(member, {})
        if client_id in notes:
            del notes[client_id]
            self._count -= 1
            if not notes:
                del self._notes[member]

    def forget(self, client_id: str) -> None:
        """Remove the notes on a session for all members."""
        for member in self.members_of(client_id):
            self.remove(member, client_id)

    def pop(self, member: str) -> dict[str, _Note]:
        """Remove the notes for a member, and return them by Client Identifier."""
        notes = self._notes.pop(member, {})
        self._count -= len(notes)
        return notes
