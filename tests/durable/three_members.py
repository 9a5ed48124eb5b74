"""What models of three members of a pool have in common: the names of the members, and where a session is."""

from __future__ import annotations

from typing import Final

from fanout.durable.ownership.ownership import Stage

__all__ = ["HELD", "MEMBERS", "WAITING", "others"]

MEMBERS: Final = ("a", "b", "c")
HELD: Final = (Stage.OWNED, Stage.PROMISED, Stage.FROZEN)
"""Stages of a session that is at a member, whatever it was promised."""
WAITING: Final = (Stage.ASKING, Stage.ARRIVING)
"""Stages of a session that is to come to a member."""


_OTHERS: Final = {name: tuple(other for other in MEMBERS if other != name) for name in MEMBERS}


def others(name: str) -> tuple[str, ...]:
    """Return the other members."""
    return _OTHERS[name]
