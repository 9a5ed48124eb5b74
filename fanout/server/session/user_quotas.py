"""Quotas of users: what each user has at this server, and how much of it the user may have.

Owns the counts of sessions, Network Connections and subscriptions by user. Clients without a user count as one. Without
a table `[[access.quota]]` of its own, a user may have four fifths of a limit of `[server]`, if clients may have users
at all.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final, NamedTuple

from fanout.access.authorization import Access
from fanout.access.gate import Gate
from fanout.config.access import QuotaSection
from fanout.server.base.context import ServerContext
from fanout.server.base.counters import Limit
from fanout.server.session.session import Session

__all__ = ["Quota", "Usage", "UserQuotas"]

_DEFAULT: Final = QuotaSection()


class Quota(NamedTuple):
    """Bounds on what one user may have."""

    sessions: int
    connections: int
    subscriptions: int
    retained_topics: int
    retained_bytes: int


@dataclass(slots=True)
class Usage:
    """Usage of one user."""

    sessions: int = 0
    """Sessions, those without a connection included."""
    connections: int = 0
    """Network Connections of these sessions."""
    subscriptions: int = 0
    """Subscriptions of these sessions, shared ones included."""


class UserQuotas:
    """The users of a server, each with what it has."""

    def __init__(self, context: ServerContext, *, gate: Gate | None) -> None:
        """Begin with no user.

        Args:
            context: Shared objects of the server, with the limits of which a user may have a share.
            gate: Has the quotas; None for no bound.
        """
        self._context = context
        self._gate = gate
        self._users: dict[str, Usage] = {}

    @property
    def has_users(self) -> bool:
        """True if a client may have a user."""
        return self._gate is not None and (self._gate.has_users or self._context.config.verifies_certificates)

    def of(self, user: str) -> Quota | None:
        """Return the bounds of a user, "" for clients without one; None for no bound."""
        table = None if self._gate is None else self._gate.quota_of(user)
        if table is None and not self.has_users:
            return None
        own, server = table or _DEFAULT, self._context.config
        return Quota(
            own.sessions_max or _share(server.sessions_max),
            own.connections_max or _share(server.connections_max),
            own.subscriptions_max,
            own.retained_topics_max or _share(server.retained_topics_max),
            own.retained_bytes_max or _share(server.retained_bytes_max),
        )

    def usage(self, user: str) -> Usage:
        """Return what a user has; it is not to be changed."""
        return self._users.get(user) or Usage()

    def admits(self, user: str, *, subscriptions: int) -> bool:
        """Return whether a user may have one more session, with so many subscriptions."""
        quota, usage = self.of(user), self.usage(user)
        return quota is None or (
            usage.sessions < quota.sessions and usage.subscriptions + subscriptions <= quota.subscriptions
        )

    def room_for_subscriptions(self, user: str) -> int:
        """Return how many subscriptions a user may still make."""
        quota = self.of(user)
        return sys.maxsize if quota is None else quota.subscriptions - self.usage(user).subscriptions

    def reached_by(self, user: str, *, new_session: bool, new_connection: bool) -> Limit | None:
        """Return the quota that keeps a user from one more session, or connection; None for none, or nothing more."""
        quota, usage = self.of(user), self.usage(user)
        if quota is None:
            return None
        if new_session and usage.sessions >= quota.sessions:
            return Limit.USER_SESSIONS
        if new_connection and usage.connections >= quota.connections:
            return Limit.USER_CONNECTIONS
        return None

    def refuse(self, limit: Limit, *, user: str, client_id: str) -> None:
        """Count that a quota refused something, and log it."""
        self._context.counters.limits_reached[limit] += 1
        self.log(limit, user=user, client_id=client_id)

    def log(self, limit: Limit, *, user: str, client_id: str) -> None:
        """Log that a quota refused something."""
        self._context.logger.warning("quota_reached", quota=limit.value, user=user, client_id=client_id)

    def count(self, session: Session, *, exists: bool = True) -> None:
        """Count what a session has now; `exists` is false for one that has ended."""
        now = (1, session.is_connected, len(session.subscriptions) + len(session.shared)) if exists else (0, 0, 0)
        self._change(session, *now)

    def set_access(self, session: Session, access: Access | None) -> None:
        """Give a session the rights of its client; it counts for that user from now on."""
        self._change(session, 0, 0, 0)
        session.access = access
        self.count(session)

    def _change(self, session: Session, sessions: int, connections: int, subscriptions: int) -> None:
        user, counted = session.user, session.counted
        usage = self._users.setdefault(user, Usage())
        usage.sessions += sessions - counted[0]
        usage.connections += connections - counted[1]
        usage.subscriptions += subscriptions - counted[2]
        session.counted = sessions, connections, subscriptions
        if not usage.sessions:
            del self._users[user]


def _share(limit: int) -> int:
    """Return four fifths of a limit, at least 1."""
    return -(-limit * 4 // 5)
