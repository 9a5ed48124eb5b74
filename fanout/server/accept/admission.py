"""Accept pipeline: takes a new connection through PROXY header and TLS to its protocol, in limited time."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from fanout.config import Address, ListenerConfig
from fanout.runtime.first_record import HANDSHAKE_S, wait_for_handshake
from fanout.server.accept.peers import Peer, address_text, is_local, peer_of
from fanout.server.accept.proxy_header import ProxyHeader, ProxyHeaderInvalid
from fanout.server.accept.slots import ConnectionSlot
from fanout.server.accept.tls import ListenerTls
from fanout.server.base.context import ServerContext
from fanout.server.base.counters import EntryFault, Limit
from fanout.server.base.timer import Deadline

__all__ = ["AcceptPipeline", "AcceptingServer", "ListenerContext", "accept_connection"]

_WRAPPED_BYTES = 64 * 1024
_CONNECTION_S = 0.0004
"""Time of the processor that a connection takes, with a CONNECT, which comes in a later turn."""


class AcceptingServer(Protocol):
    """Interface of the server to the accept pipeline."""

    context: ServerContext
    """Shared objects of its parts."""

    def take_slot(self, host: str, *, address: str) -> ConnectionSlot | None:
        """Take a slot for a new connection; None when it is refused, which is then counted and logged.

        Args:
            host: Its IP address; empty when it has none, or when it is not known yet.
            address: For the log.
        """

    def assign_host(self, slot: ConnectionSlot, host: str, *, address: str) -> bool:
        """Set the IP address of a connection; return False when it is refused for that, counted and logged."""

    def release_slot(self, slot: ConnectionSlot) -> None:
        """Free the slot of a connection that did not reach its protocol."""

    def reject(
        self,
        reason: str,
        *,
        address: str,
        why: EntryFault | Limit | None = None,
        left: bool = False,
        **more: object,
    ) -> None:
        """Count and log a connection that is refused before MQTT starts.

        Args:
            reason: For the log: one of a few constants.
            address: For the log.
            why: Fault or limit to count beside the refusal.
            left: True when the client only closed the connection, as health checks do; this is logged at DEBUG.
            more: For the log.
        """

    def new_protocol(self, peer: Peer, slot: ConnectionSlot, *, address: Address) -> asyncio.BufferedProtocol:
        """Make the protocol that serves a connection to the listener at `address`, and frees its slot in the end."""


@dataclass(frozen=True, slots=True)
class ListenerContext:
    """Objects that the accept pipelines of one listener share."""

    config: ListenerConfig
    """Configuration of the listener."""
    tls: ListenerTls | None
    """Its TLS; None without TLS."""
    server: AcceptingServer
    """The server."""
    pending: dict[AcceptPipeline, None]
    """Accept pipelines of all listeners, so that they can be ended."""


def accept_connection(listener: ListenerContext, connection: socket.socket, host: str, port: int) -> None:
    """Take a slot for an accepted connection, and let it enter the pipeline; close it if it is refused.

    Args:
        listener: Context of its listener.
        connection: A socket that does not block.
        host: IP address of its peer; empty for a Unix socket.
        port: Port of its peer.
    """
    address = address_text(host, port)
    # With a PROXY header the client's own address counts, which is not known yet.
    slot = listener.server.take_slot("" if listener.config.proxy_protocol_from else host, address=address)
    if slot is None:
        connection.close()
    else:
        AcceptPipeline(listener, slot, address=address).enter(connection, host)


class AcceptPipeline(asyncio.BufferedProtocol):
    """Protocol of a new connection until PROXY header and TLS are done; then it hands the transport over."""

    def __init__(self, listener: ListenerContext, slot: ConnectionSlot, *, address: str) -> None:
        """Prepare.

        Args:
            listener: Context of its listener.
            slot: Its slot.
            address: For the log.
        """
        self._listener = listener
        self._server = listener.server
        self._address = address
        self.slot: ConnectionSlot | None = slot
        """Its slot; None after it was handed over or refused."""
        self._local = is_local(listener.config.address)
        self._header = ProxyHeader() if listener.config.proxy_protocol_from else None
        self._stage = EntryFault.PROXY_HEADER if self._header is not None else EntryFault.TLS if listener.tls else None
        self._buffer = bytearray()
        self._early = bytearray()  # data decrypted before the TLS task handed the transport over
        self._task: asyncio.Task[None] | None = None  # makes the transport, or does the TLS handshake on it
        self._deadline: Deadline | None = None
        self._transport: asyncio.Transport | None = None

    def enter(self, connection: socket.socket, host: str) -> None:
        """Refuse an accepted socket, or make its transport when it is its turn, with TLS if that comes first."""
        networks, tls = self._listener.config.proxy_protocol_from, self._listener.tls
        context = self._server.context
        assert self.slot is not None
        if networks and not _is_in(host, networks):
            self._refuse("not_in_proxy_protocol_from", why=EntryFault.PROXY_HEADER)
        elif self.slot.over_rate and tls is not None:  # before the expensive handshake
            self._refuse("connection_rate_max")
        else:
            self._listener.pending[self] = None
            if tls is not None or networks:
                self._deadline = context.timer.after(context.config.connect_timeout_s, self._timed_out)
            first = None if networks else tls
            name = "accept" if first is None else "tls-handshake"
            self._task = asyncio.get_running_loop().create_task(self._make(connection, first), name=name)
            self._task.add_done_callback(lambda _: self._end_making(connection))
            return
        connection.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand the connection over, or read the PROXY header first."""
        self._transport = cast("asyncio.Transport", transport)
        if self.slot is None:  # refused meanwhile
            self._transport.abort()
        elif self._header is None:
            self._hand_on(self._transport, None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Refuse the connection, which ended in the pipeline."""
        if self._task is not None:
            self._task.cancel()
        if self.slot is not None:
            self._fail(None)

    def get_buffer(self, sizehint: int) -> bytearray:
        """Return a buffer for the rest of the header only: the next byte belongs to TLS or MQTT."""
        wanted = self._header.wanted if self._header is not None else 0
        self._buffer = bytearray(wanted or _WRAPPED_BYTES)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Process a part of the header."""
        data = bytes(self._buffer[:nbytes])
        if self._header is None or not self._header.wanted:
            self._early += data
            return
        try:
            complete = self._header.feed(data)
        except ProxyHeaderInvalid as error:
            self._refuse("proxy_header_invalid", why=EntryFault.PROXY_HEADER, detail=str(error))
            return
        if not complete:
            return
        assert self._transport is not None
        if self._header.client is not None and not self._assign_client(*self._header.client):
            return
        if self._listener.tls is None:
            self._hand_on(self._transport, self._header.client)
            return
        self._transport.pause_reading()  # the next byte is for TLS
        assert self.slot is not None
        self._stage = EntryFault.TLS
        self._task = asyncio.get_running_loop().create_task(
            self._wrap(self._transport, self._listener.tls, who=self.slot.origin), name="tls-handshake"
        )

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()
        elif self._task is not None:
            self._task.cancel()

    async def _make(self, connection: socket.socket, tls: ListenerTls | None) -> None:
        """Make the transport of an accepted connection; `connection_made` goes on."""
        assert self.slot is not None
        loop, turnstile = asyncio.get_running_loop(), self._server.context.turnstile
        try:
            if tls is None:
                # Those of one that sends PROXY headers do not wait for each other, nor do those of a Unix socket.
                await turnstile.turn(who=self.slot.origin or self._address, at_least_s=_CONNECTION_S)
                await loop.connect_accepted_socket(lambda: self, connection)
                return
            await wait_for_handshake(connection, turnstile, who=self.slot.origin)
            await loop.connect_accepted_socket(
                lambda: self,
                connection,
                ssl=tls.context,
                ssl_handshake_timeout=2 * self._server.context.config.connect_timeout_s,  # the deadline comes first
            )
        except (OSError, ValueError) as error:
            if self.slot is not None:
                self._fail(error)

    def _end_making(self, connection: socket.socket) -> None:
        if self._transport is None:
            if self.slot is not None:  # cancelled, maybe before it began, or a bug, which the event loop reports
                self._fail(None)
            connection.close()
            self._task = None  # else it could be freed by a garbage collection only

    async def _wrap(self, transport: asyncio.Transport, tls: ListenerTls, *, who: Hashable) -> None:
        if not await self._server.context.turnstile.turn(
            who=who, at_least_s=HANDSHAKE_S, is_wanted=lambda: not transport.is_closing()
        ):
            return  # refused meanwhile, or left; `connection_lost` comes
        loop = asyncio.get_running_loop()
        timeout_s = 2 * self._server.context.config.connect_timeout_s  # the deadline comes first
        error: Exception | None = None
        try:
            wrapped = await loop.start_tls(
                transport, self, tls.context, server_side=True, ssl_handshake_timeout=timeout_s
            )
        except (OSError, ValueError) as caught:
            wrapped, error = None, caught
        # `connection_lost` may have been called or not, as far as TLS had come; without a slot it was refused already.
        if wrapped is None or wrapped.is_closing() or self.slot is None:
            if self.slot is not None:
                self._fail(error)
            transport.abort()
            return
        assert self._header is not None
        self._hand_on(wrapped, self._header.client)

    def _assign_client(self, host: str, port: int) -> bool:
        """Set the client's address from the PROXY header; return False when the connection is refused for that."""
        assert self.slot is not None
        self._address = address_text(host, port)
        if self._server.assign_host(self.slot, host, address=self._address):
            return True
        self._leave()
        self.abort()
        return False

    def _hand_on(self, transport: asyncio.Transport, proxied: tuple[str, int] | None) -> None:
        slot, self.slot = self.slot, None
        assert slot is not None
        self._forget()
        peer = peer_of(transport, local=self._local, proxied=proxied)
        protocol = self._server.new_protocol(peer, slot, address=self._listener.config.address)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        early = memoryview(self._early)
        while early and not transport.is_closing():
            room = memoryview(protocol.get_buffer(len(early)))
            count = min(len(room), len(early))
            room[:count] = early[:count]
            protocol.buffer_updated(count)
            early = early[count:]

    def _fail(self, error: Exception | None) -> None:
        if self._stage is None:  # the listener is closed while it waits for its turn
            self._refuse("stopping", left=True)
            return
        left = error is None or isinstance(error, ConnectionError)
        detail = str(error or "") or "the client left"
        self._refuse(f"{self._stage.value}_failed", why=self._stage, left=left, detail=detail)

    def _refuse(
        self, reason: str, *, why: EntryFault | Limit | None = None, left: bool = False, **more: object
    ) -> None:
        self._server.reject(reason, address=self._address, why=why, left=left, **more)
        self._leave()
        self.abort()

    def _timed_out(self) -> None:
        assert self._stage is not None
        self._refuse(f"{self._stage.value}_timeout", why=Limit.CONNECT_TIMEOUT)

    def _leave(self) -> None:
        slot, self.slot = self.slot, None
        if slot is not None:
            self._server.release_slot(slot)
        self._forget()

    def _forget(self) -> None:
        self._listener.pending.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()


def _is_in(host: str, networks: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bool:
    if not host:
        return False
    ip = ipaddress.ip_address(host)
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return any(ip in network for network in networks)
