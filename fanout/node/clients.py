"""Clients of a node for an operator: the document that lists them, and sending them away, one or all.

The bytes per second of a client are the difference of two questions to the operating system, half a second apart, so
that nothing is counted while nobody asks.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from fanout.affected_clients import Concerned
from fanout.api.models import ClientDetail, ClientsDocument, KickRequest, KickResult, utc_from_ns
from fanout.errors import RequestRefused, SelectorInvalid
from fanout.mqtt.reason_codes import ReasonCode
from fanout.runtime.slices import Slices
from fanout.runtime.system_clock import Clock
from fanout.selection import Selector
from fanout.server.client.client_list import ClientFigures, ClientQuery
from fanout.server.client.server import Server

__all__ = ["RATE_S", "ClientsView", "send_all_away"]

RATE_S: Final = 0.5
"""Time over which bytes per second are measured."""
_NS_PER_S: Final = 1_000_000_000
_AWAY_AT_ONCE: Final = 50
_AWAY_PAUSE_S: Final = 0.1
"""500 clients a second, half of what other nodes let in at most by default (`connection_rate_max`)."""


class ClientsView:
    """The clients of one node."""

    def __init__(self, server: Server | None, *, node: str, clock: Clock, slices: Slices) -> None:
        """Prepare.

        Args:
            server: Serves the clients; None on a node without clients.
            node: Identifier of the node.
            clock: The clock.
            slices: Share of the event loop for lists.
        """
        self._slices = slices
        self._server = server
        self._node = node
        self._clock = clock

    async def list(self, query: ClientQuery, *, topic_filter: str | None = None) -> ClientsDocument:
        """Return the clients that are asked for; takes `RATE_S`.

        Args:
            query: The query.
            topic_filter: Topic Filter; only clients with a subscription that may match one of its topics. None for all.

        Raises:
            RequestRefused: A client that is named has no session, or the Topic Filter has too many levels.
        """
        if topic_filter is not None:
            try:
                query = replace(query, reads=Concerned((Selector(topic_filter),)))
            except SelectorInvalid as error:
                raise RequestRefused(f"filter cannot be compared: {error}", hint="Ask for a shorter one") from error
        if self._server is None:
            return ClientsDocument(
                node=self._node, at=utc_from_ns(self._clock.now_ns()), sessions=0, clients=(), next=None
            )
        began_s = self._clock.monotonic()
        page = await self._server.clients(query, slices=self._slices)
        if query.client_ids and not page.clients:
            raise self._unknown(query.client_ids[0])
        await asyncio.sleep(RATE_S)
        names = tuple(client.client_id for client in page.clients)
        later = await self._server.clients(ClientQuery(client_ids=names), slices=self._slices)
        took_s = max(self._clock.monotonic() - began_s, RATE_S)
        now_by_id = {client.client_id: client for client in later.clients}
        now_ns = self._clock.now_ns()
        return ClientsDocument(
            node=self._node,
            at=utc_from_ns(now_ns),
            sessions=page.sessions,
            clients=tuple(
                _detail(client, _rate(client, now_by_id.get(client.client_id), took_s), now_ns=now_ns)
                for client in page.clients
            ),
            next=page.next,
        )

    async def kick(self, request: KickRequest) -> KickResult:
        """Send a client away.

        Raises:
            RequestRefused: The client has no session here.
        """
        if self._server is None:
            raise self._unknown(request.client_id)
        kicked = self._server.lifecycles.kick(request.client_id, clean=request.clean)
        if kicked is None:
            raise self._unknown(request.client_id)
        return KickResult(
            node=self._node,
            client_id=request.client_id,
            was_connected=kicked.was_connected,
            session="ended" if kicked.session_ended else "kept",
        )

    def _unknown(self, client_id: str) -> RequestRefused:
        return RequestRefused(
            f"no client {client_id!r} has a session at {self._node}",
            hint="fanout clients lists those that have; behind a load balancer it may be at another node",
        )


async def send_all_away(server: Server) -> int:
    """Disconnect every client that is connected, some at a time, and return their number; sessions stay.

    They are told to use another server (0x9C), where their protocol can say it. Each is sent away once: one that
    comes back stays. Cancelling leaves the others connected.
    """
    sent = 0
    after: str | None = ""
    while after is not None:
        page = await server.clients(ClientQuery(after=after))
        connected = [client.client_id for client in page.clients if client.address is not None]
        for start in range(0, len(connected), _AWAY_AT_ONCE):
            for client_id in connected[start : start + _AWAY_AT_ONCE]:
                sent += _sent_away(server, client_id)
            await asyncio.sleep(_AWAY_PAUSE_S)
        after = page.next
    return sent


def _sent_away(server: Server, client_id: str) -> bool:
    kicked = server.lifecycles.kick(client_id, reason_code=ReasonCode.USE_ANOTHER_SERVER)
    return kicked is not None and kicked.was_connected


def _rate(before: ClientFigures, after: ClientFigures | None, seconds: float) -> float | None:
    """Return the bytes per second between two looks at a client; None unless both saw the same connection."""
    if after is None or before.acked_bytes is None or after.acked_bytes is None or before.address != after.address:
        return None
    return max(0, after.acked_bytes - before.acked_bytes) / seconds


def _detail(client: ClientFigures, rate: float | None, *, now_ns: int) -> ClientDetail:
    def ago(seconds: float) -> int:
        return now_ns - int(seconds * _NS_PER_S)

    return ClientDetail.of(
        client,
        connected_since=None if client.connected_s is None else utc_from_ns(ago(client.connected_s)),
        user=client.user or None,
        version="5" if client.version == 5 else "3.1.1",
        slow_since=None if client.slow_s is None else utc_from_ns(ago(client.slow_s)),
        bytes_per_second=rate,
    )
