"""Placement: which member keeps the copy of a session (core).

Rendezvous hashing: each member has a rank for each client, and the highest keeps the copy. A member that comes or goes
moves the copies of its own clients only.
"""

from __future__ import annotations

from collections.abc import Iterable

from xxhash import xxh3_64_intdigest

__all__ = ["keeper_of"]


def keeper_of(client_id: str, members: Iterable[str]) -> str | None:
    """Return the member that keeps the copy of a client's session; None when there is none.

    Args:
        client_id: Client Identifier.
        members: Members that can.
    """
    return max(members, key=lambda member: (xxh3_64_intdigest(f"{member}\0{client_id}".encode()), member), default=None)
