"""Interfaces that the node implements for the server: clock, log, retained store and ingress."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias

from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.update import Update
from fanout.runtime.system_clock import Clock

__all__ = [
    "Accepted",
    "Clock",
    "Ingress",
    "Logger",
    "PendingVerdict",
    "PublishVerdict",
    "RetainedStore",
    "SessionFinder",
    "SessionFound",
]


class PendingVerdict(Protocol):
    """A Reason Code for a PUBLISH that is decided later; `asyncio.Future` is one."""

    def done(self) -> bool:
        """Return whether it is decided."""

    def result(self) -> ReasonCode:
        """Return the Reason Code, once it is decided."""


class Accepted(asyncio.Future[ReasonCode]):
    """Success, once the message and its Packet Identifier are on disk; only the client's answer waits."""


PublishVerdict: TypeAlias = ReasonCode | PendingVerdict
"""Verdict on a PUBLISH: a Reason Code of PUBACK, or an `asyncio.Future` of one, which must not fail.

Server unavailable and Server busy are verdicts, too: the message may be accepted when it is sent again. A client of
MQTT 5 is told a Reason Code of PUBACK in their place (`fanout.server.base.refusals`).
"""


class Logger(Protocol):
    """Log of constant messages with fields, as structlog writes them."""

    def debug(self, event: str, **fields: Any) -> Any:
        """Log something for a developer."""

    def info(self, event: str, **fields: Any) -> Any:
        """Log an event in the lifecycle of the node."""

    def warning(self, event: str, **fields: Any) -> Any:
        """Log that something is degraded or was dropped."""

    def error(self, event: str, **fields: Any) -> Any:
        """Log a problem on which a person must act."""


class RetainedStore(Protocol):
    """The retained values that clients read."""

    def match(self, topic_filter: bytes) -> Iterator[list[Update]]:
        """Yield the retained values whose topics match a Topic Filter (valid, not shared), in pieces.

        A piece has some hundred values at most. It may be empty, so that a long search yields too.
        While no topic is added or removed, the pieces of one filter have the same boundaries, so that several
        clients can get the same bytes.

        The store may change between two steps of the iterator. A topic that has a value throughout is yielded exactly
        once, with its current value; a topic that is added or removed meanwhile may be yielded or not. A batch is in
        the store before it is dispatched, and the server does not run in between, so no client misses a value or
        gets it twice.
        """

    def get_many(self, topics: Sequence[bytes]) -> list[Update]:
        """Return the retained values of some distinct topics, in their order; topics without a value are left out.

        One call for all topics saves a statement for each in a store on disk. Topics come in the order of `match`.
        """


class Ingress(Protocol):
    """Receives the messages that local clients publish."""

    def publish(
        self, client_id: str, rows: list[PublishRow], now_ns: int, *, user: str = ""
    ) -> Sequence[PublishVerdict]:
        """Receive a run of PUBLISH packets or a Will Message: store, log, and dispatch the accepted messages.

        Topic Names are valid; the ingress decides whether they may be published (`$SYS/...`, a topic of a replica).
        Called on the event loop; `Server.dispatch` may be called from inside.

        Args:
            client_id: Client Identifier of the publisher, to be handed to `Server.dispatch` as origin.
            rows: In the order of arrival.
            now_ns: Unix time in nanoseconds when they arrived.
            user: The verified user of the publisher; empty without one.

        Returns:
            One verdict for each of `rows`. A pending verdict delays the acknowledgements of later messages, which
            must keep their order [MQTT-4.6.0-2]; at QoS 0 it has no effect.
        """


class SessionFound(enum.Enum):
    """Place of the session of a client that has none at this node."""

    HERE = "here"
    """It has come here."""
    NONE = "none"
    """There is none."""
    LOST = "lost"
    """There is none any more: the member that had it is gone, and it could not go on elsewhere."""
    OF_ANOTHER_USER = "of another user"
    """It belongs to another user, and stays where it is."""
    UNKNOWN = "unknown"
    """It is not known in time: the client should come again."""


class SessionFinder(Protocol):
    """Finds the sessions of clients at other nodes of a pool."""

    @property
    def may_resume(self) -> bool:
        """True if this node may go on with its own sessions: False while others may take it for dead."""

    @property
    def is_fenced(self) -> bool:
        """True if this node may not serve durable sessions, as others may take it for dead; looked at anew."""

    @property
    def is_leaving(self) -> bool:
        """True if this node gives its sessions away, and takes no client any more."""

    def began(self, client_id: str, *, is_copied: bool) -> None:
        """Note that the session of a client begins here, or goes on here: what is older elsewhere ends.

        Args:
            client_id: Its Client Identifier.
            is_copied: True if it is copied now, where copies are kept.
        """

    def epochs_of(self, client_id: str) -> bytes:
        """Return since when the session of a client is this node's, or another one's, as the pool writes it."""

    def find(self, client_id: str, *, user: str, superuser: bool, clean: bool = False) -> asyncio.Future[SessionFound]:
        """Bring the session of a client here that has none here, and tell where it is; bounded in time, never fails.

        Args:
            client_id: Its Client Identifier.
            user: Its verified user; empty without one.
            superuser: True if it may read and write every topic.
            clean: True if it wants a new session, so that none comes: it is asked whether it may end the former one.
        """
