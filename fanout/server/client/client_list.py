"""Figures of single clients, for an operator: connections, waiting messages, and slow readers.

Everything is read from what the server has anyway. The bytes that a client has acknowledged are asked from the
operating system (TCP_INFO, Linux), so that no write has to be counted.
"""

from __future__ import annotations

import heapq
import socket
import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from fanout.errors import ProtocolError
from fanout.mqtt.topics import matches, parse_shared
from fanout.server.client.connection import ClientConnection
from fanout.server.session.session import Session

__all__ = ["CLIENTS_MAX", "ClientFigures", "ClientOrder", "ClientPage", "ClientQuery", "Kicked", "list_clients"]

CLIENTS_MAX: Final = 1_000
"""Limit of clients in one answer."""
FILTERS_SHOWN: Final = 20
"""Limit of Topic Filters that are listed for each client of a page; for clients that are named there is none."""
_BYTES_ACKED_AT: Final = 120
"""Offset of `tcpi_bytes_acked` in Linux' `struct tcp_info`, 64 bits."""
_TCP_INFO_BYTES: Final = 128
_STEP: Final = 500
"""Sessions that are compared at once."""
_FILTERS_STEP: Final = 200
"""Topic Filters that are compared at once, some 10 us each."""
_FIGURES_STEP: Final = 25
"""Clients whose figures are read at once."""

ClientOrder: TypeAlias = Literal["id", "slowest"]
"""By Client Identifier; or the slowest first: longest slow, then most waiting messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuery:
    """Clients that are asked for."""

    order: ClientOrder = "id"
    """Order of the answer."""
    after: str = ""
    """Client Identifier after which the answer begins, with the order "id"; empty for the first one."""
    limit: int = CLIENTS_MAX
    """Limit of clients in the answer."""
    client_ids: tuple[str, ...] | None = None
    """Clients that are named; the others are left out, and `order` does not count. None for all."""
    reads: Callable[[bytes], bool] | None = None
    """Returns True for Topic Filters, not in a `$share` form, of clients that are asked for; None for all clients."""
    topic: bytes | None = None
    """Topic Name to examine for delivery to these clients; None for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFigures:
    """One client that has a session."""

    client_id: str
    """Client Identifier."""
    address: str | None
    """Its address, of a PROXY header where a trusted proxy sent one; None without a connection."""
    connected_s: float | None
    """Time since it connected; None without a connection."""
    user: str
    """The verified user; empty without one."""
    version: int
    """Protocol Level: 4 (MQTT 3.1.1) or 5."""
    queued_messages: int
    """Messages that wait for it."""
    queued_bytes: int
    """Their bytes."""
    conflated_topics: int
    """Newest values of topics that wait for it, at QoS 0."""
    in_flight_messages: int
    """Messages at QoS 1 and 2 sent and not completed."""
    unsent_bytes: int
    """Bytes written to its connection that the system has not taken."""
    slow_s: float | None
    """Time since it became slow; None when it is not."""
    acked_bytes: int | None
    """Bytes that its end of the connection has acknowledged; None where the system does not tell."""
    subscriptions: int
    """Subscriptions, shared ones included."""
    filters: tuple[str, ...]
    """Their Topic Filters, as the client sent them; the first `FILTERS_SHOWN` unless the client is named."""
    matching: tuple[str, ...] = ()
    """Topic Filters that match the topic of the query, the first `FILTERS_SHOWN`; with `reads` the first of them."""
    denied_by: str = ""
    """Access rule that keeps the topic of the query from the client; empty for none, and without a topic."""

    @property
    def slowness(self) -> tuple[float, int, int]:
        """Key for the order "slowest", largest first."""
        return (-1.0 if self.slow_s is None else self.slow_s, self.queued_bytes, self.conflated_topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPage:
    """Answer to a `ClientQuery`."""

    clients: tuple[ClientFigures, ...] = ()
    """The clients, in the order that was asked for."""
    sessions: int = 0
    """All sessions; with `reads` those that it is true of."""
    next: str | None = None
    """`after` of the next page, in the order "id"; None when the limit leaves out no client."""


@dataclass(frozen=True, slots=True)
class Kicked:
    """Result of sending a client away by an operator's order."""

    was_connected: bool
    """True when a connection was ended."""
    session_ended: bool
    """True when the session ended with it; False when the client can resume it."""


def list_clients(
    query: ClientQuery,
    sessions: Sequence[Session],
    *,
    get: Callable[[str], Session | None],
    connection_of: Callable[[Session], ClientConnection | None],
    slow_s: Callable[[ClientConnection], float | None],
    now_s: float,
) -> Generator[None, None, ClientPage]:
    """Return the clients that a query asks for, in steps of a millisecond; sessions may come and go in between.

    Args:
        query: The query.
        sessions: All sessions.
        get: Returns the session of a client; None when it has none.
        connection_of: Returns the connection of a session; None without one.
        slow_s: Returns for how long a client has been slow; None when it is not.
        now_s: Monotonic seconds.
    """
    reading: dict[Session, bytes] = {}
    if query.reads is not None:
        reading = yield from _readers(query.reads, sessions)
        sessions = tuple(reading)
    limit = min(query.limit, CLIENTS_MAX)
    by_id = query.order == "id"
    chosen: list[Session] = []
    if query.client_ids is not None:
        chosen = [session for session in map(get, query.client_ids[:limit]) if session is not None]
    else:

        def slowness(session: Session) -> tuple[float, int, int]:
            connection = connection_of(session)
            slow = None if connection is None else slow_s(connection)
            queue = session.sender.queue
            return (-1.0 if slow is None else slow, queue.bytes, len(session.sender.newest_values))

        everybody = [one for one in sessions if one.client_id > query.after] if by_id else sessions
        for begin in range(0, len(everybody), _STEP):
            yield
            some = [*chosen, *everybody[begin : begin + _STEP]]
            if by_id:
                chosen = heapq.nsmallest(limit + 1, some, key=lambda session: session.client_id)
            else:
                chosen = heapq.nlargest(limit + 1, some, key=slowness)
    figures: list[ClientFigures] = []
    named = query.client_ids is not None
    for number, session in enumerate(chosen[:limit]):
        if number % _FIGURES_STEP == 0:
            yield
        if get(session.client_id) is session:  # else it has ended meanwhile
            connection = connection_of(session)
            one = _figures(session, connection, slow_s, now_s, named=named, topic=query.topic)
            own = reading.get(session)
            figures.append(one if own is None else replace(one, matching=(own.decode("utf-8", "replace"),)))
    last = chosen[limit - 1].client_id if by_id and len(chosen) > limit else None  # though it may have ended meanwhile
    return ClientPage(clients=tuple(figures), sessions=len(sessions), next=last)


def _readers(
    reads: Callable[[bytes], bool], sessions: Sequence[Session]
) -> Generator[None, None, dict[Session, bytes]]:
    """Return the sessions with a subscription of which `reads` is true, and the first such one, in steps."""
    found: dict[Session, bytes] = {}
    looked = 0
    for session in sessions:
        for own in session.topic_filters:
            if (looked := looked + 1) % _FILTERS_STEP == 0:
                yield
            shared = parse_shared(own)
            if reads(own if shared is None else shared[1]):
                found[session] = own
                break
    return found


def _figures(
    session: Session,
    connection: ClientConnection | None,
    slow_s: Callable[[ClientConnection], float | None],
    now_s: float,
    *,
    named: bool,
    topic: bytes | None,
) -> ClientFigures:
    sender = session.sender
    return ClientFigures(
        client_id=session.client_id,
        address=None if connection is None else connection.address,
        connected_s=None if connection is None else max(0.0, now_s - connection.slot.since_s),
        user=session.user,
        version=session.wire.version,
        queued_messages=sender.queue.messages,
        queued_bytes=sender.queue.bytes,
        conflated_topics=len(sender.newest_values),
        in_flight_messages=sender.inflight.messages,
        unsent_bytes=0 if connection is None else connection.unsent_bytes,
        slow_s=None if connection is None else slow_s(connection),
        acked_bytes=None if connection is None else _acked_bytes(connection.get_extra_info("socket")),
        subscriptions=len(session.subscriptions) + len(session.shared),
        filters=tuple(_filters(session, None if named else FILTERS_SHOWN)),
        matching=() if topic is None else _matching(session, topic),
        denied_by="" if topic is None else _denied_by(session, topic),
    )


def _filters(session: Session, count: int | None) -> Iterator[str]:
    for topic_filter in session.topic_filters[:count]:
        yield topic_filter.decode("utf-8", "replace")


def _matching(session: Session, topic: bytes) -> tuple[str, ...]:
    """Return the first `FILTERS_SHOWN` Topic Filters of a session that match a topic."""
    found: list[str] = []
    for topic_filter in session.topic_filters:
        shared = parse_shared(topic_filter)
        if matches(topic_filter if shared is None else shared[1], topic):
            found.append(topic_filter.decode())
            if len(found) == FILTERS_SHOWN:
                break
    return tuple(found)


def _denied_by(session: Session, topic: bytes) -> str:
    """Return the access rule that keeps a topic from a client; empty for none. The HTTP hook is not asked."""
    try:
        denied = None if session.access is None else session.access.explain(topic)
    except ProtocolError:  # a Topic Name that begins like a Shared Subscription
        return ""
    if denied is None:
        return ""
    return "no access rule allows it" if denied.rule is None else f"access.rule[{denied.rule}] denies it"


def _acked_bytes(stream: Any) -> int | None:
    """Return the bytes that the other end of a TCP connection has acknowledged; None where that is not known."""
    option: int | None = getattr(socket, "TCP_INFO", None)
    if option is None or stream is None or stream.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        info: bytes = stream.getsockopt(socket.IPPROTO_TCP, option, _TCP_INFO_BYTES)
    except OSError:
        return None
    if len(info) < _BYTES_ACKED_AT + 8:  # a kernel older than 4.1
        return None
    acked: int = struct.unpack_from("=Q", info, _BYTES_ACKED_AT)[0]
    return acked
