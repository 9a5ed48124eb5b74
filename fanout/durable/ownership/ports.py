"""Ports from the moving of sessions to the node: its sessions, its links and the other members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from fanout.durable.ownership.held_copies import HeldCopy
from fanout.durable.ownership.move_messages import (
    Fetched,
    Piece,
    TakeQuestion,
)
from fanout.durable.ownership.ownership import Owner, Reply
from fanout.server.session.exported_session import ExportedSubscription

__all__ = ["HERE", "CopyFigures", "Heirs", "Markers", "OtherMemberState", "Others", "SessionHost"]

HERE: Final = "here"
"""Answer of `Heirs.inherit` about a session that goes on."""


class SessionHost(Protocol):
    """The sessions of this node; a value is the bytes of one."""

    @property
    def count(self) -> int:
        """Number of sessions."""

    def has(self, client_id: str) -> bool:
        """Return whether a client has a session here."""

    def owner_of(self, client_id: str) -> Owner | None:
        """Return whose the session of a client is that is here; None without one."""

    def own(self, client_id: str, *, since: int) -> None:
        """Note since when the owner of a session has it that has just begun here, unless that is known."""

    def may_end(self, client: Owner, owner: Owner) -> bool:
        """Return whether a client may end the session of an owner with its Client Identifier."""

    def copy_again(self, client_id: str) -> bool:
        """Have a session copied once more; return False for one that is not copied."""

    # Sessions that go.

    def promise(self, question: TakeQuestion) -> tuple[ExportedSubscription, ...] | Reply:
        """End the connection of a session and keep it ready, once more if it was exported already.

        Returns:
            Its subscriptions, or why the client gets another session.
        """

    def note_place(self, client_ids: Sequence[str], link: str, marker: str) -> None:
        """Note the place in the queues of promised sessions that a marker has in the stream of a link."""

    def export(self, client_id: str, markers: Mapping[str, str]) -> Fetched:
        """Return the value of a promised session, with the messages before the markers, which are by link.

        A long queue makes the value empty: it is made from now on, and `piece` gives it.
        """

    def piece(self, client_id: str, offset: int, *, bytes_max: int) -> Piece:
        """Return a piece of the value of an exported session from an offset on."""

    def take_back(self, client_id: str) -> None:
        """Let a session that was promised or exported go on here."""

    def copy_of_given(self, client_id: str, *, to: str) -> bytes:
        """Return the copy of an exported session that another member has from now on; empty when it was inexact."""

    def release(self, client_id: str) -> None:
        """Remove an exported session, which another member has now."""

    def let_go(self, client_id: str) -> None:
        """Let go of the record on disk of a session that was given away: another member has it on its own."""

    async def on_disk(self) -> None:
        """Wait until it is on disk which sessions are here, where they are kept there."""

    def end(self, client_id: str) -> None:
        """End a session that is older than one elsewhere, and its connection."""

    def absent(self) -> Sequence[tuple[str, str, bool]]:
        """Return the sessions without a connection that may go: Client Identifier, user, and whether a superuser's."""

    def send_away(self, count: int, *, to: Sequence[str]) -> int:
        """Disconnect so many clients, which are to use another server; return how many are left.

        Args:
            count: Number of them.
            to: Addresses of other members, which are named in turn; without any, the configured ones.
        """

    def serve_until(self, until_s: float) -> None:
        """Ask for the next look (`SessionPool.is_fenced`) before anything that is done later than that.

        Args:
            until_s: Monotonic seconds.
        """

    def raise_fence(self) -> int:
        """Serve no durable session until `lower_fence`, and return how many connections ended.

        Meanwhile they are there, but none expires, and no Will Message is published.
        """

    def lower_fence(self) -> None:
        """Serve durable sessions again; their deadlines go on with what remained."""

    # Sessions that come.

    async def collect(self, client_id: str, subscriptions: Sequence[ExportedSubscription]) -> None:
        """Collect the messages for a session that comes."""

    def note_collected(self, client_ids: Sequence[str], link: str) -> None:
        """Note the place of an own marker in what is collected."""

    async def read(self, client_id: str, value: bytes) -> None:
        """Read the value of a session that comes, for `may_adopt` and `adopt`."""

    def follows(self, places: bytes) -> bool:
        """Return whether everything that follows places of `Fetched` is held here."""

    def awaits(self, places: bytes) -> bool:
        """Return True if a stream here has not come to its place of `Fetched` yet."""

    async def follow(self, client_id: str, places: bytes) -> bool:
        """Collect what follows the places at which a value ends that was read, in place of what follows markers.

        Returns:
            False if not all of it is held here.
        """

    def may_adopt(self, client_id: str, question: TakeQuestion, *, is_offered: bool = False) -> bool:
        """Return whether a session may come: `adopt` would succeed now, and unless offered its user has room for it."""

    def adopt(self, client_id: str, *, exact: bool) -> bool:
        """Make the session of a value, with what was collected after the markers; without any, with all of it."""

    def stop_collecting(self, client_id: str) -> None:
        """Forget what was collected."""


class Markers(Protocol):
    """Messages through the primaries that are at one place in the streams of all members."""

    @property
    def come_back(self) -> bool:
        """True if markers of all links come back, though none may be sent at the moment."""

    def send(self) -> Mapping[str, str]:
        """Publish one on each link, and return them by link; empty when one of the links cannot now."""


class OtherMemberState(NamedTuple):
    """Another member, as far as sessions are concerned."""

    name: str
    """Its `node.id`; its address before it said one."""
    is_silent: bool
    """True if nobody waits for it."""
    is_dead: bool
    """True if it has been silent everywhere for so long that its sessions are taken for lost."""
    is_ready: bool = True
    """True if it serves clients, and will go on to do so."""
    is_empty: bool = False
    """True if it has said that it stops and has given all its sessions away, so that it need not be asked."""
    client_address: str | None = None
    """Address at which MQTT clients reach it itself; None when it does not say."""
    instance: str = ""
    """Its process, as it said last; empty before it said one."""
    keeps_copies: bool = False
    """True if it can keep copies of this member's sessions: it answers, replicates the same, and does not leave."""
    interruptions: int = 0
    """Number of interruptions of its streams, after which it may not know places that copies there name."""


@dataclass(slots=True)
class CopyFigures:
    """Figures of copies, and of the history from which sessions go on, by their names in `PoolStatus`."""

    copies_held: int = 0
    """Copies of other members' sessions that are kept here."""
    copies_held_bytes: int = 0
    """Bytes that they take."""
    sessions_copied: int = 0
    """Sessions of this member of which another one keeps a copy."""
    copies_oldest_unconfirmed_seconds: float = 0.0
    """Time in seconds that the oldest copy of a session of this member has been on its way; 0 without one."""
    copies_sent_total: int = 0
    """Copies, and news of places, that were sent."""
    copies_sent_bytes_total: int = 0
    """Bytes of them."""
    copies_failed_total: int = 0
    """Calls with copies that brought nothing."""
    copies_alone_total: int = 0
    """Times that a session went on without a copy, because no other member could keep one."""
    copies_refused_total: int = 0
    """Copies that were too large, or for which the other member had no room."""
    sessions_inherited_total: int = 0
    """Sessions of dead members that went on here."""
    sessions_not_inherited_total: int = 0
    """Sessions of dead members that could not go on."""
    history_bytes: int = 0
    """Bytes of recent updates."""
    history_seconds: float | None = None
    """Age of the oldest one, in seconds; None without any."""
    history_used_ratio: float = 0.0
    """Part of what can be held that has come since the oldest message that waits for a session."""


class Heirs(Protocol):
    """Sessions of this node that come from copies."""

    def could_inherit(self, client_id: str, value: bytes) -> bool:
        """Return whether a session could go on here from a copy that has just come."""

    def owner_of_copy(self, value: bytes) -> Owner | None:
        """Return whose the session of a copy is; None when it cannot be read."""

    def inherit(self, copies: Sequence[HeldCopy], *, away_s: float, is_stale: bool) -> Sequence[str]:
        """Let sessions go on here.

        Args:
            copies: Their copies.
            away_s: Time in seconds since the holder went.
            is_stale: True if the copies may be outdated, so that nothing can go on at QoS 2.

        Returns:
            For each `HERE`, or why it does not.
        """


class Others(Protocol):
    """The other members."""

    @property
    def instance(self) -> str:
        """The process of this member, as the others hear it."""

    @property
    def are_known(self) -> bool:
        """True if `states` has all of them, however they are; False while the node starts."""

    def states(self) -> Sequence[OtherMemberState]:
        """Return every other member as it is now."""

    def have_asked(self, *, since_s: float) -> bool:
        """Return whether every other member that answers was told how this one is, as of a time or later."""

    @property
    def is_isolated(self) -> bool:
        """True while this node hears neither another member nor itself at a primary: others may take it for dead."""

    @property
    def isolated_after_s(self) -> float:
        """Time after which this node is isolated when it hears nobody."""

    def is_current(self, since_s: float) -> bool:
        """Return whether all has come here that the primaries had at a time, in seconds of the node's clock."""

    @property
    def has_witness(self) -> bool:
        """True if what this member publishes for the others may come back from a primary."""

    def tell_alone(self) -> bool:
        """Tell the others, at the primaries, that sessions go on without copies here; return whether one takes it."""

    def said_alone_s(self, instance: str) -> float:
        """Return when a process, this one too, was heard last to say so, monotonic seconds; long ago for never."""

    def went_alone(self, instance: str) -> bool:
        """Return whether a process has said so, and not since that all its copies here are right."""

    async def call(self, name: str, path: str, body: bytes, *, timeout_s: float, answer_bytes_max: int) -> bytes:
        """Send a request to a member.

        Raises:
            AskFailed: It brought nothing.
        """
