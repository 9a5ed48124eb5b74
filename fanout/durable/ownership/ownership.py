"""Ownership of one client's session at one member of a pool: the rules by which it moves (core).

Every function takes a member's knowledge of one Client Identifier and returns the new knowledge; None for nothing. A
member pulls a session: TAKE promises it, FETCH freezes its value, and the holder's answer to COMMIT is the one place
where the owner changes. Until then the holder may take the session back at any time, because the other one has not
served it. CLAIM ends what is older. `tests/durable/ownership/test_ownership_model.py` searches these rules
exhaustively.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from fanout.durable.ownership.epochs import NO_EPOCH, Epoch, RecordedEpochs

__all__ = [
    "TRANSITIONS",
    "Answer",
    "Choice",
    "Decision",
    "IllegalTransitionError",
    "Owner",
    "Ownership",
    "Reply",
    "Stage",
    "abandon",
    "answer_giver",
    "arrive",
    "ask",
    "become",
    "begin",
    "choose",
    "claim",
    "commit",
    "fetch",
    "finish",
    "give_up",
    "has_older_right",
    "keep_given",
    "refuse",
    "take",
    "take_back",
]


class Owner(NamedTuple):
    """Owner of a session, as a claim names it."""

    user: str
    """The verified user of its client; empty without one."""
    superuser: bool
    """True if that may read and write every topic."""
    anyone: bool
    """True if its member has no access control, so that a session is anybody's."""
    since: int
    """Counter of the epoch since which its owner has the Client Identifier, at the latest."""


class Stage(enum.Enum):
    """Stage of a client's session at a member."""

    OWNED = "owned"
    """It is here."""
    PROMISED = "promised"
    """It is here, and another member asks for it; its messages are still queued."""
    FROZEN = "frozen"
    """Its value is kept for another member, and nothing reaches it."""
    ASKING = "asking"
    """It is not here; this member asks the others for it."""
    ARRIVING = "arriving"
    """Its value is here, and its holder has not said yet that it is this member's."""
    GIVEN = "given"
    """A former process of this member gave it away. Its value is here, and goes on if the other member never got it."""
    CEDED = "ceded"
    """It is not here, and was at another member at `epoch`."""


_FORGOTTEN: Final = None
"""In the table: nothing is known of the session."""
_BEGUN: Final = "begin: its client is here; or it goes on here, from a copy, from disk or against a stranger's claim"
_CLAIMED: Final = "claim: another member has a later one"

TRANSITIONS: Final[Mapping[Stage | None, Mapping[Stage | None, str]]] = {
    _FORGOTTEN: {
        Stage.OWNED: _BEGUN,
        Stage.ASKING: "ask",
        Stage.CEDED: _CLAIMED,
    },
    Stage.OWNED: {
        Stage.OWNED: _BEGUN,
        Stage.GIVEN: "keep_given: its record on disk, from which it was restored, says so",
        Stage.PROMISED: "take",
        Stage.CEDED: f"{_CLAIMED}; or it has ended",
    },
    Stage.PROMISED: {
        Stage.OWNED: f"take_back; {_BEGUN}",
        Stage.PROMISED: "take, by a later request",
        Stage.FROZEN: "fetch",
        Stage.CEDED: _CLAIMED,
    },
    Stage.FROZEN: {
        Stage.OWNED: f"take_back; {_BEGUN}",
        Stage.PROMISED: "take, by a later request",
        Stage.FROZEN: "fetch, once more",
        Stage.CEDED: f"commit: it is the other member's, and a copy is kept here until that has one; {_CLAIMED}",
    },
    Stage.CEDED: {
        Stage.OWNED: _BEGUN,
        Stage.ASKING: "ask",
        Stage.CEDED: _CLAIMED,
    },
    Stage.ASKING: {
        Stage.OWNED: _BEGUN,
        Stage.ASKING: "ask, as its client came once more",
        Stage.ARRIVING: "arrive",
        Stage.CEDED: f"abandon; {_CLAIMED}",
        _FORGOTTEN: "abandon",
    },
    Stage.ARRIVING: {
        Stage.OWNED: f"finish; {_BEGUN}",
        Stage.CEDED: f"abandon, also because another member goes on with it from a copy; {_CLAIMED}",
        _FORGOTTEN: "abandon",
    },
    Stage.GIVEN: {
        Stage.OWNED: f"the other member never got it; {_BEGUN}",
        Stage.CEDED: _CLAIMED,
        _FORGOTTEN: "the other member is dead: it may have got it",
    },
}
"""Stages that may follow each stage, and the functions below that make the step."""


class IllegalTransitionError(AssertionError):
    """A stage that cannot follow the other one: a bug in fanout, never a fault of another member."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """Knowledge of a member about the session of one client."""

    stage: Stage
    """Its stage."""
    epoch: Epoch
    """Epoch of the session; in ASKING and ARRIVING epoch of the own request."""
    promised: Epoch = NO_EPOCH
    """Epoch of the newest request for it, for which it is PROMISED, FROZEN or GIVEN; late once the session is OWNED."""
    before: Epoch = NO_EPOCH
    """Newest epoch that was known when this member began to ask, while it is ASKING or ARRIVING."""
    given_since: Epoch = NO_EPOCH
    """Since when it was here before it was given away; `NO_EPOCH` once its next holder has said that it has it.

    While it is CEDED or ASKING: the next holder may never have learnt of it, and another member gone on from a copy.
    """
    owner_since: int = 0
    """Counter of the epoch since which the owner of a session that is to begin here had former ones; 0 for none."""

    @property
    def is_here(self) -> bool:
        """True if messages reach it at this member."""
        return self.stage in (Stage.OWNED, Stage.PROMISED)

    @property
    def newest(self) -> Epoch:
        """The newest epoch that this member knows of."""
        return max(self.epoch, self.promised)

    @property
    def settled(self) -> Epoch:
        """The newest epoch at which a session is, or was, a member's."""
        return self.before if self.stage in (Stage.ASKING, Stage.ARRIVING) else self.epoch

    def is_of_heir(self, epoch: Epoch) -> bool:
        """Return whether an epoch is of a member that went on with a session after it was given away from here."""
        return epoch.is_inherited and NO_EPOCH != self.given_since < epoch


class Reply(enum.StrEnum):
    """Reply of a member to TAKE."""

    NONE = "none"
    """It has no such session; the epoch is the newest that it knows of."""
    HELD = "held"
    """It has the session, and keeps it ready."""
    REFUSED = "refused"
    """It has the session, and that is another user's."""
    LATE = "late"
    """A later request than this one is known; ask with a later epoch."""
    BUSY = "busy"
    """The session is arriving there, or about to go on there from the copy of a dead member's."""
    KEPT = "kept"
    """It keeps a copy of the session of the epoch's member. While that member is silent, nobody begins a new session.
    """
    LOST = "lost"
    """It was to go on with the session, and could not; the epoch is the newest that it knows of."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a member to TAKE."""

    reply: Reply
    """The reply."""
    epoch: Epoch = NO_EPOCH
    """Epoch of the session, or the newest that is known."""


class Choice(enum.Enum):
    """Decision of a member on all answers to its TAKE."""

    FETCH = "fetch"
    """Fetch the session from a member."""
    BEGIN = "begin"
    """Begin a session: no member has one."""
    BEGIN_ANEW = "begin anew"
    """Begin a session, and say so: the former one, of a dead member, could not go on."""
    REFUSE = "refuse"
    """Refuse the client: the session is another user's."""
    LATER = "later"
    """Let the client come again: a member that may have the session does not answer, or not yet."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice."""

    choice: Choice
    """The choice."""
    holder: str = ""
    """Member that has the session, with FETCH."""
    epoch: Epoch = NO_EPOCH
    """Since when, with FETCH."""
    is_coming: bool = False
    """True if the session is on its way, or about to go on at a member that has a copy, with LATER."""


def become(before: Ownership | None, after: Ownership | None) -> Ownership | None:
    """Return what is known from now on.

    Args:
        before: The present knowledge.
        after: The knowledge to have.

    Raises:
        IllegalTransitionError: `TRANSITIONS` does not have it; nothing has changed.
    """
    former, stage = (None if own is None else own.stage for own in (before, after))
    if after is not before and stage not in TRANSITIONS[former]:
        raise IllegalTransitionError(f"a session that is {former} cannot become {stage}")
    return after


# The holder's side.


def take(own: Ownership | None, epoch: Epoch) -> tuple[Ownership | None, Answer]:
    """Take a member's TAKE; a session that was FROZEN is to be thawed when it is PROMISED then.

    Args:
        own: The knowledge here.
        epoch: Epoch of the request.
    """
    if own is None:
        return None, Answer(Reply.NONE)
    if epoch <= own.newest:
        return own, Answer(Reply.LATE, own.newest)
    match own.stage:
        case Stage.OWNED | Stage.PROMISED | Stage.FROZEN:
            return Ownership(Stage.PROMISED, own.epoch, epoch), Answer(Reply.HELD, own.epoch)
        case Stage.ASKING:  # the client has gone on to the other member
            return abandon(own), Answer(Reply.NONE, own.before)
        case Stage.ARRIVING | Stage.GIVEN:
            return own, Answer(Reply.BUSY, own.epoch)
        case Stage.CEDED:
            return own, Answer(Reply.NONE, own.epoch)


def fetch(own: Ownership | None, epoch: Epoch) -> tuple[Ownership | None, bool]:
    """Take a member's FETCH; return whether it gets the value, which is made once the stage is FROZEN."""
    if own is None or own.promised != epoch or own.stage not in (Stage.PROMISED, Stage.FROZEN):
        return own, False
    return Ownership(Stage.FROZEN, own.epoch, epoch), True


def commit(own: Ownership | None, epoch: Epoch) -> tuple[Ownership | None, bool]:
    """Take a member's COMMIT; return whether the session is that member's from now on."""
    if own is None:
        return None, False
    if own.stage is Stage.FROZEN and own.promised == epoch:
        return Ownership(Stage.CEDED, epoch, given_since=own.epoch), True
    ceded = own.epoch if own.stage is Stage.CEDED else own.before
    return own, ceded == epoch


def claim(own: Ownership | None, epoch: Epoch) -> tuple[Ownership, Epoch | None]:
    """Take a member's CLAIM that it has a session since an epoch; an older session here ends.

    Returns:
        The knowledge afterwards; and the epoch of the session here when it is the newer one, so that the other's ends.
    """
    if own is None or own.epoch < epoch:
        return Ownership(Stage.CEDED, epoch), None
    has_come = own.stage is Stage.CEDED and own.given_since != NO_EPOCH and own.epoch == epoch
    if has_come or own.is_of_heir(epoch):
        return Ownership(Stage.CEDED, epoch), None
    if own.stage in (Stage.ASKING, Stage.ARRIVING) and own.before < epoch != own.epoch:
        # A member has a newer one than is on its way here, or than the answers say: the client comes again. At the
        # epoch of the own request nobody else has one: its holder says so that has just given it away.
        return Ownership(Stage.CEDED, epoch), None
    has_session = own.stage in (Stage.OWNED, Stage.PROMISED, Stage.FROZEN, Stage.GIVEN)
    return own, own.epoch if has_session and own.epoch > epoch else None


def keep_given(epochs: RecordedEpochs) -> Ownership:
    """Restore a session from disk that a former process gave away; a COMMIT for it is denied from now on."""
    return Ownership(Stage.GIVEN, epochs.since, epochs.given)


def answer_giver(own: Ownership | None, epoch: Epoch) -> Epoch | None:
    """Answer the member that gave a session away, and asks whether it came here, since an epoch of this member.

    Returns:
        The epoch of the newest session that is known, if it came; None if it did not, and is not to come any more.
    """
    return own.settled if own is not None and own.settled >= epoch else None


def has_older_right(claimed: Owner, own: Owner) -> bool:
    """Return whether the session of a claim prevails over a stranger's that is here.

    Two strangers can both have a session only if a member was not heard. The one prevails who has had the Client
    Identifier for longer, whenever either connected last.
    """
    return (claimed.since, claimed.user) < (own.since, own.user)


def take_back(own: Ownership | None) -> Ownership | None:
    """Take back a session that is promised or frozen, because nobody has fetched it in time.

    The request that it was promised to is late from then on. A session that was FROZEN is to be thawed.
    """
    if own is None or own.stage not in (Stage.PROMISED, Stage.FROZEN):
        return own
    return Ownership(Stage.OWNED, own.epoch, own.promised)


# The side of the member that the client is at.


def begin(epoch: Epoch, *, owner_since: int = 0) -> Ownership:
    """Begin a session, or go on with the one that is here, under an epoch above all known ones.

    Claims end what the other members have. A session that was FROZEN is to be thawed, or to be ended.
    """
    return Ownership(Stage.OWNED, epoch, owner_since=owner_since)


def ask(own: Ownership | None, epoch: Epoch) -> Ownership | None:
    """Begin to ask the others for a session, once more if its client came once more.

    Returns:
        The knowledge afterwards; None when the session is here, or has all but arrived.
    """
    if own is None or own.stage is Stage.CEDED:
        if own is None:
            return Ownership(Stage.ASKING, epoch)
        return Ownership(Stage.ASKING, epoch, before=own.epoch, given_since=own.given_since)
    return replace(own, epoch=epoch) if own.stage is Stage.ASKING else None


def choose(own: Ownership | None, answers: Iterable[tuple[str, Answer | None]]) -> Decision:
    """Decide what follows from the answers to TAKE.

    Args:
        own: The knowledge here.
        answers: Each member that is not dead, with its answer; None when none came. This member too, if
            it keeps a copy.
    """
    if own is None or own.stage is not Stage.ASKING:  # the client went on to another member meanwhile
        return Decision(Choice.LATER)
    given = list(answers)
    came = [(answer, member) for member, answer in given if answer is not None]
    replies = {answer.reply for answer, _ in came}
    if replies & {Reply.LATE, Reply.BUSY}:
        return Decision(Choice.LATER, is_coming=Reply.LATE not in replies)
    newest = max([own.before, *(answer.epoch for answer, _ in came)])
    for answer, member in came:
        if answer.reply is Reply.HELD and answer.epoch == newest:
            return Decision(Choice.FETCH, member, newest)
        if answer.reply is Reply.REFUSED and answer.epoch == newest:
            return Decision(Choice.REFUSE)
        if answer.reply is Reply.HELD and newest.is_inherited and member == newest.member:
            # Since it has answered it went on with a newer one, from a copy.
            return Decision(Choice.LATER, is_coming=True)
    said = {member: answer.epoch for answer, member in came}
    for answer, member in came:
        # Its holder has not said that it ended; or it goes on at the keeper since that has answered.
        has_ended = said.get(answer.epoch.member, NO_EPOCH) >= answer.epoch
        if answer.reply is Reply.KEPT and (not has_ended or (member == newest.member and answer.epoch < newest)):
            return Decision(Choice.LATER, is_coming=True)
    if len(came) < len(given):
        return Decision(Choice.LATER)
    return Decision(Choice.BEGIN_ANEW if Reply.LOST in replies else Choice.BEGIN)


def refuse(own: Ownership, epoch: Epoch) -> Answer:
    """Return the answer to TAKE of a client that may not have the session; nothing changes by it."""
    return Answer(Reply.LATE, own.newest) if epoch <= own.newest else Answer(Reply.REFUSED, own.epoch)


def arrive(own: Ownership | None, epoch: Epoch, *, found: bool, since: Epoch) -> tuple[Ownership | None, bool]:
    """Take the answer to FETCH, and return whether COMMIT follows.

    Args:
        own: The knowledge here.
        epoch: Epoch of the request.
        found: True if the value came.
        since: Epoch of the session that came; a newer one may have been claimed meanwhile.
    """
    if own is None or own.stage is not Stage.ASKING or own.epoch != epoch:
        return own, False
    if not found or since < own.before:
        return abandon(own), False
    return Ownership(Stage.ARRIVING, epoch, before=since), True


def finish(own: Ownership | None, epoch: Epoch, *, committed: bool) -> tuple[Ownership | None, bool]:
    """Take the holder's answer to COMMIT; return whether the session is here from now on."""
    if own is None or own.stage is not Stage.ARRIVING or own.epoch != epoch:
        return own, False
    return (Ownership(Stage.OWNED, epoch), True) if committed else (abandon(own), False)


def give_up(own: Ownership | None, epoch: Epoch) -> Ownership | None:
    """End a request that brought nothing; a value that has arrived is thrown away."""
    return abandon(own) if own is not None and own.epoch == epoch else own


def abandon(own: Ownership | None) -> Ownership | None:
    """Forget a request, whatever it is at."""
    if own is None or own.stage not in (Stage.ASKING, Stage.ARRIVING):
        return own
    return Ownership(Stage.CEDED, own.before, given_since=own.given_since) if own.before != NO_EPOCH else None
