"""Sessions that come from copies: joins `fanout.durable.copying` and the server of clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fanout.durable.form.session_copy import SessionCopy, decode_copy, decode_places, read_needs, read_owner
from fanout.durable.hosting.session_inheritance import Inherited, inherit
from fanout.durable.hosting.session_values import owner_of
from fanout.durable.ownership.copy_messages import COPY_BYTES_MAX
from fanout.durable.ownership.held_copies import HeldCopy
from fanout.durable.ownership.ownership import Owner
from fanout.durable.ownership.ports import HERE
from fanout.errors import SessionFormInvalid
from fanout.replica.recent import RecentUpdates
from fanout.runtime.system_clock import Clock
from fanout.server.client.server import Server

__all__ = ["SessionHeirs"]

_MS_PER_S: Final = 1000
_REASONS: Final = {
    Inherited.HERE: HERE,
    Inherited.EXPIRED: HERE,
    Inherited.NO_PLACE: "its place in the stream of a link was not known when it was copied",
    Inherited.NOT_HELD: "what follows its place in the stream of a link is not held here",
    Inherited.NO_MESSAGE: "a message that its client has not acknowledged is not held any more",
    Inherited.REFUSED: "it does not fit the limits or the access rules of this member",
}
_OUTDATED: Final = "its copy may be outdated: the member lived on without this one"
_INVALID: Final = "its copy cannot be read"


class SessionHeirs:
    """Lets sessions of dead members go on, as `fanout.durable.ownership.ports.Heirs`."""

    def __init__(self, server: Server, recent: RecentUpdates, *, clock: Clock) -> None:
        """Prepare.

        Args:
            server: The server of clients.
            recent: The recent updates of the links.
            clock: Gives the time.
        """
        self._server = server
        self._recent = recent
        self._clock = clock

    def could_inherit(self, client_id: str, value: bytes) -> bool:
        """Return whether a session could go on here from a copy that has just come."""
        try:
            needs = read_needs(value)
        except SessionFormInvalid:
            return False
        links = self._recent.links
        return not any(link in links and self._recent.is_gone(link, place) for link, place in needs)

    def owner_of_copy(self, value: bytes) -> Owner | None:
        """Return whose the session of a copy is; None when it cannot be read."""
        try:
            identity, since = read_owner(value)
        except SessionFormInvalid:
            return None
        return owner_of(identity, since=since)

    def inherit(self, copies: Sequence[HeldCopy], *, away_s: float, is_stale: bool) -> Sequence[str]:
        """Let sessions go on here; return for each `HERE`, or why it does not."""
        reasons = [HERE] * len(copies)
        wanted: list[tuple[SessionCopy, int]] = []
        places: list[int] = []
        now_s = self._clock.monotonic()
        for index, held in enumerate(copies):
            copy = _decoded(held)
            if copy is None:
                reasons[index] = _INVALID
            elif is_stale and copy.is_exact:
                reasons[index] = _OUTDATED
            else:
                since_s = away_s if copy.is_connected else max(away_s, now_s - held.came_s)
                wanted.append((copy, int(since_s * _MS_PER_S)))
                places.append(index)
        found = inherit(self._server, self._recent, wanted, now_ns=self._clock.now_ns())
        for index, became in zip(places, found, strict=True):
            reasons[index] = _REASONS[became]
        return reasons


def _decoded(held: HeldCopy) -> SessionCopy | None:
    try:
        copy = decode_copy(held.value, bytes_max=COPY_BYTES_MAX)
        if held.places is not None:
            copy = copy._replace(places=decode_places(held.places))
    except SessionFormInvalid:
        return None
    return copy if copy.session.client_id == held.client_id else None
