"""What the moving of sessions needs of the node: its sessions, its links and the other members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fanout.pool.sessions.move_messages import Fetched, Subscription, TakeQuestion
from fanout.pool.sessions.ownership import Reply

__all__ = ["Markers", "OtherMemberState", "Others", "SessionHost"]


class SessionHost(Protocol):
    """The sessions of this node; a value is the bytes of one."""

    @property
    def count(self) -> int:
        """Number of sessions."""

    def has(self, client_id: str) -> bool:
        """Return whether a client has a session here."""

    # Sessions that go.

    def promise(self, question: TakeQuestion) -> tuple[Subscription, ...] | Reply:
        """End the connection of a session and keep it ready, once more if it was exported already.

        Returns:
            Its subscriptions, or why the client gets another session.
        """

    def note_place(self, client_ids: Sequence[str], link: str, marker: str) -> None:
        """Note the place in the queues of promised sessions that a marker has in the stream of a link."""

    def export(self, client_id: str, markers: Mapping[str, str]) -> Fetched:
        """Return the value of a promised session, with the messages before the markers, which are by link."""

    def take_back(self, client_id: str) -> None:
        """Let a session that was promised or exported go on here."""

    def release(self, client_id: str) -> None:
        """Remove an exported session, which another member has now."""

    async def written(self) -> None:
        """Wait until it is on disk which sessions are here, where they are kept there."""

    def end(self, client_id: str) -> None:
        """End a session that is older than one elsewhere, and its connection."""

    def absent(self) -> Sequence[tuple[str, str, bool]]:
        """Return the sessions without a connection that may go: Client Identifier, user, and whether a superuser's."""

    def send_away(self, count: int, *, to: Sequence[str]) -> int:
        """Disconnect so many clients, which are to use another server; return how many are left.

        Args:
            count: How many.
            to: Addresses of other members, which are named in turn; without any, what the configuration names.
        """

    # Sessions that come.

    def collect(self, client_id: str, subscriptions: Sequence[Subscription]) -> None:
        """Collect the messages for a session that comes."""

    def note_collected(self, client_ids: Sequence[str], link: str) -> None:
        """Note the place of an own marker in what is collected."""

    def may_adopt(self, client_id: str, value: bytes, question: TakeQuestion) -> bool:
        """Return whether `adopt` would succeed now."""

    def adopt(self, client_id: str, value: bytes, *, exact: bool) -> bool:
        """Make the session of a value, with what was collected behind the markers; without any, with all of it."""

    def stop_collecting(self, client_id: str) -> None:
        """Forget what was collected."""


class Markers(Protocol):
    """Messages through the primaries that are at one place in the streams of all members."""

    @property
    def come_back(self) -> bool:
        """Whether markers of all links come back, though none may be sent at the moment."""

    def send(self) -> Mapping[str, str]:
        """Publish one on each link, and return them by link; empty when one of the links cannot now."""


@dataclass(frozen=True, slots=True)
class OtherMemberState:
    """Another member, as far as sessions are concerned."""

    name: str
    """Its `node.id`; its address before it said one."""
    is_silent: bool
    """Whether nobody waits for it."""
    is_dead: bool
    """Whether it has been silent everywhere for so long that its sessions are taken for lost."""
    is_ready: bool = True
    """Whether it serves clients, and will go on to do so."""
    is_empty: bool = False
    """Whether it has said that it stops and has given all its sessions away, so that it need not be asked."""
    client_address: str | None = None
    """Where MQTT clients reach it itself; None when it does not say."""


class Others(Protocol):
    """The other members."""

    @property
    def are_known(self) -> bool:
        """Whether `states` has all of them, however they are; False while the node starts."""

    def states(self) -> Sequence[OtherMemberState]:
        """Return every other member as it is now."""

    @property
    def is_isolated(self) -> bool:
        """True while this node hears neither another member nor itself at a primary: others may take it for dead."""

    async def call(self, name: str, path: str, body: bytes, *, timeout_s: float, answer_bytes_max: int) -> bytes:
        """Send a request to a member.

        Raises:
            AskFailed: It brought nothing.
        """
