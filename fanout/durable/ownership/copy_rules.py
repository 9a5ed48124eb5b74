"""Rules of copies: which one is kept, who may go on with a session, and since when it is that member's then (core).

A copy is of a session at an epoch, and the holder numbers its copies. The newest of the newest epoch is right. A member
that finds the holder dead asks the others before it goes on: one of them may have a newer copy, or hear the holder.
`python -m bench simulate` looks for what breaks them, together with those of `ownership`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final, NamedTuple

from fanout.durable.ownership.epochs import INHERITED, NO_EPOCH, Epoch
from fanout.durable.ownership.ownership import Answer, Reply

__all__ = [
    "GIVEN",
    "CopyVersion",
    "Right",
    "answer_inherit",
    "answer_take",
    "are_newer_places",
    "inherited_epoch",
    "is_kept",
    "is_outdated",
    "may_inherit",
]

GIVEN: Final = 0
"""Number of the copy that a member keeps of a session which it gave away: all that its next holder makes are newer."""


class CopyVersion(NamedTuple):
    """Session, and state of it, that a copy has; versions of one client are totally ordered."""

    epoch: Epoch
    """Since when the session is the holder's."""
    number: int
    """Number of the copy at the holder, ascending."""


class Right(enum.StrEnum):
    """Verdict of a member on another one's right to go on with a session."""

    YES = "yes"
    """It knows of nothing that is against it, and has no copy any more."""
    NEWER = "newer"
    """It has a newer copy, or knows of a newer session."""
    LIVES = "lives"
    """It hears the holder, or has the session without a copy of it yet."""


def is_kept(version: CopyVersion, *, kept: CopyVersion | None, newest: Epoch) -> bool:
    """Return True if a new copy takes the place of the kept one.

    Args:
        version: The copy that came.
        kept: The copy that is kept; None for none.
        newest: The newest epoch that is known of the client's sessions.
    """
    return version.epoch >= newest and (kept is None or version > kept)


def is_outdated(version: CopyVersion, *, epoch: Epoch, is_of_heir: bool) -> bool:
    """Return whether a copy that is kept is of no use, because a member says that it has a session since an epoch.

    Args:
        version: The copy that is kept.
        epoch: Since when the other member has a session.
        is_of_heir: True if it went on with that session after it was given away from here.
    """
    return version.epoch < epoch or (version.number == GIVEN and is_of_heir)


def are_newer_places(number: int, *, version: CopyVersion, places_number: int) -> bool:
    """Return True if new places replace those in the copy of a session.

    Args:
        number: Number of the places at the holder.
        version: The copy that is kept.
        places_number: Number of the places that are kept with it; 0 for none.
    """
    return number > max(version.number, places_number)


def answer_take(kept: CopyVersion | None, *, newest: Epoch, is_gone: bool) -> Answer | None:
    """Return the answer of a member that has no session, but keeps a copy of it; None for nothing.

    Args:
        kept: The copy that is kept; None for none.
        newest: The newest epoch that is known here of the client's sessions.
        is_gone: True if its holder is gone, so that the session is about to go on here.
    """
    if kept is None or newest > kept.epoch:
        return None
    return Answer(Reply.BUSY if is_gone else Reply.KEPT, kept.epoch)


def answer_inherit(
    version: CopyVersion,
    *,
    kept: CopyVersion | None,
    newest: Epoch,
    holder_lives: bool,
    is_here: bool = False,
    is_copied: bool = False,
    is_holder: bool = False,
    kept_lives: bool = False,
) -> Right:
    """Return the answer to a member that wants to go on with a session from its copy.

    Args:
        version: That member's copy.
        kept: The copy that is kept here; with YES it goes.
        newest: The newest epoch that is known here of the client's sessions.
        holder_lives: True if the holder is heard here.
        is_here: True if the session is here, since the epoch of the copy or a later one.
        is_copied: True if nothing waits for a copy of it as it is here: an older one is of no use then.
        is_holder: True if this member is the holder itself, to which the other one has given the session away. It has
            never come here if nothing since then is known.
        kept_lives: True if the kept copy is of a process of the holder that is heard here, which the request is not of.
    """
    if holder_lives or (is_here and not is_copied):
        return Right.LIVES
    has_come = is_holder and newest == version.epoch
    is_kept_newer = kept is not None and (kept_lives or kept > version)
    if is_here or has_come or newest > version.epoch or is_kept_newer:
        return Right.NEWER
    return Right.YES


def may_inherit(version: CopyVersion, *, newest: Epoch, answers: Iterable[Right]) -> bool:
    """Return whether a member goes on with a session, given the answers of all others that live."""
    return newest <= version.epoch and all(answer is Right.YES for answer in answers)


def inherited_epoch(version: CopyVersion, member: str, *, given_since: Epoch = NO_EPOCH) -> Epoch:
    """Return since when a session is a member's that goes on with it.

    It is later than everything that the dead holder did, and earlier than a session that a client has begun anew. A
    session that was given away, and has never come to its next holder, is the member's since it was before.

    Args:
        version: The copy that it goes on from.
        member: The member.
        given_since: Since when it was the member's before, if the holder has said that it has never come; `NO_EPOCH`
            otherwise.
    """
    if given_since != NO_EPOCH:
        return given_since
    return Epoch(version.epoch.counter + 1, f"{INHERITED}{member}")
