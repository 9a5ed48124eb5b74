"""Accept pipeline: takes a new connection through PROXY header and TLS to its protocol, in limited time."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol, cast

from fanout.config import Address, ListenerConfig
from fanout.runtime.first_record import HANDSHAKE_S, wait_for_handshake
from fanout.runtime.turnstile import Turnstile
from fanout.server.accept.peers import Peer, address_text, is_local, peer_of
from fanout.server.accept.proxy_header import ProxyHeader, ProxyHeaderInvalid
from fanout.server.accept.slots import ConnectionSlot
from fanout.server.accept.tls import ListenerTls
from fanout.server.base.counters import EntryFault, Limit
from fanout.server.base.deadlines import Deadline
from fanout.server.base.ports import Logger

__all__ = ["AcceptPipeline", "AcceptingServer", "ListenerContext"]

_WRAPPED_BYTES = 64 * 1024


class AcceptingServer(Protocol):
    """Interface of the server to the accept pipeline."""

    @property
    def logger(self) -> Logger:
        """The log."""

    @property
    def turnstile(self) -> Turnstile:
        """Bounds the work of clients that are not admitted in each turn of the event loop."""

    @property
    def accept_timeout_s(self) -> float:
        """Limit in seconds until CONNECT must be there, PROXY header and TLS handshake included."""

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

    def after(self, seconds: float, action: Callable[[], None]) -> Deadline:
        """Run `action` in `seconds`."""

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


class AcceptPipeline(asyncio.BufferedProtocol):
    """Protocol of a new connection until PROXY header and TLS are done; then it hands the transport over."""

    def __init__(self, listener: ListenerContext, slot: ConnectionSlot | None = None) -> None:
        """Prepare.

        Args:
            listener: Context of its listener.
            slot: A slot that is taken already; None takes one when the connection is made.
        """
        self._listener = listener
        self._server = listener.server
        self.slot = slot
        """Its slot; None before the connection is made, and after it was handed over or refused."""
        self._local = is_local(listener.config.address)
        self._header: ProxyHeader | None = None
        self._buffer = bytearray()
        self._early = bytearray()  # data decrypted before the TLS task handed the transport over
        self._wrapping: asyncio.Task[None] | None = None
        self._deadline: Deadline | None = None
        self._transport: asyncio.Transport | None = None

    def accept_tls(self, connection: socket.socket, *, address: str) -> None:
        """Do the TLS handshake of a connection that begins with it, and has its slot; then hand it over.

        Args:
            connection: An accepted socket, which is not blocking.
            address: For the log.
        """
        self._address = address
        self._begin()
        self._wrapping = asyncio.get_running_loop().create_task(self._handshake(connection), name="tls-handshake")
        self._wrapping.add_done_callback(lambda _: self._end_handshake(connection))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a slot, then hand the connection over, or read the PROXY header first."""
        self._transport = cast("asyncio.Transport", transport)
        if self._wrapping is not None:  # from `accept_tls`
            if self.slot is None:  # refused meanwhile
                self._transport.abort()
            else:
                self._hand_on(self._transport, None)
            return
        networks = self._listener.config.proxy_protocol_from
        name = transport.get_extra_info("peername")
        host = str(name[0]) if isinstance(name, tuple) else ""
        self._address = address_text(host, name[1] if host else 0)
        if self.slot is None:
            # With a PROXY header the client's own address counts, which is not known yet.
            self.slot = self._server.take_slot("" if networks else host, address=self._address)
            if self.slot is None:
                self._transport.abort()
                return
        if not networks:
            self._hand_on(self._transport, None)
            return
        ip = ipaddress.ip_address(host) if host else None
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        if ip is None or not any(ip in network for network in networks):
            self._refuse("not_in_proxy_protocol_from", why=EntryFault.PROXY_HEADER)
            return
        if self.slot.over_rate and self._listener.tls is not None:
            self._refuse("connection_rate_max")
            return
        self._header = ProxyHeader()
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """Refuse the connection, which ended in the pipeline."""
        if self._wrapping is not None:
            self._wrapping.cancel()
        if self.slot is not None:
            self._fail(EntryFault.PROXY_HEADER if self._wrapping is None else EntryFault.TLS, None)

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
        self._wrapping = asyncio.get_running_loop().create_task(
            self._wrap(self._transport, self._listener.tls, who=self.slot.origin), name="tls-handshake"
        )

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()
        elif self._wrapping is not None:
            self._wrapping.cancel()

    def _begin(self) -> None:
        """Limit the time in the pipeline."""
        self._listener.pending[self] = None
        self._deadline = self._server.after(self._server.accept_timeout_s, self._timed_out)

    async def _handshake(self, connection: socket.socket) -> None:
        """Do the TLS handshake of an accepted connection; `connection_made` hands it over."""
        assert self._listener.tls is not None
        assert self.slot is not None
        try:
            await wait_for_handshake(connection, self._server.turnstile, who=self.slot.origin)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self,
                connection,
                ssl=self._listener.tls.context,
                ssl_handshake_timeout=2 * self._server.accept_timeout_s,  # the deadline comes first
            )
        except (OSError, ValueError) as error:
            if self.slot is not None:
                self._fail(EntryFault.TLS, error)

    def _end_handshake(self, connection: socket.socket) -> None:
        if self.slot is not None:  # cancelled, maybe before it began, or a bug, which the event loop reports
            self._fail(EntryFault.TLS, None)
        if self._transport is None:
            connection.close()
            self._wrapping = None  # else it could be freed by a garbage collection only

    async def _wrap(self, transport: asyncio.Transport, tls: ListenerTls, *, who: Hashable) -> None:
        if not await self._server.turnstile.turn(
            who=who, at_least_s=HANDSHAKE_S, is_wanted=lambda: not transport.is_closing()
        ):
            return  # refused meanwhile, or left; `connection_lost` comes
        loop = asyncio.get_running_loop()
        timeout_s = 2 * self._server.accept_timeout_s  # the deadline comes first
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
                self._fail(EntryFault.TLS, error)
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

    def _fail(self, fault: EntryFault, error: Exception | None) -> None:
        left = error is None or isinstance(error, ConnectionError)
        self._refuse(f"{fault.value}_failed", why=fault, left=left, detail=str(error or "") or "the client left")

    def _refuse(
        self, reason: str, *, why: EntryFault | Limit | None = None, left: bool = False, **more: object
    ) -> None:
        self._server.reject(reason, address=self._address, why=why, left=left, **more)
        self._leave()
        self.abort()

    def _timed_out(self) -> None:
        stage = "proxy_header" if self._wrapping is None else "tls"
        self._refuse(f"{stage}_timeout", why=Limit.CONNECT_TIMEOUT)

    def _leave(self) -> None:
        slot, self.slot = self.slot, None
        if slot is not None:
            self._server.release_slot(slot)
        self._forget()

    def _forget(self) -> None:
        self._listener.pending.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
