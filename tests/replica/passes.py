"""What a pass over a retained set shows of a replica, all at once."""

from __future__ import annotations

from typing import NamedTuple

from fanout.replica.store import Replica

__all__ = ["PassResult", "end_pass"]


class PassResult(NamedTuple):
    """The local topics that a pass did not bring, and those that were missed before it."""

    unseen: tuple[bytes, ...]
    changed: tuple[bytes, ...]


def end_pass(replica: Replica) -> PassResult:
    """End the running pass, if one runs, and return what it showed."""
    replica.close_pass()
    unseen = tuple(value[0] for values in replica.unseen() for value in values)
    changed = tuple(value[0] for values in replica.changed() for value in values)
    assert len(changed) == replica.changed_count
    replica.drop_pass()
    return PassResult(unseen, changed)
