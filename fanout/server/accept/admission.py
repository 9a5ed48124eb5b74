"""What happens to a new connection before MQTT or WebSocket is spoken on it: PROXY header, TLS, who it is.

Owns the way from an accepted socket to the protocol that serves it, and the limit of time for it. It must not know
what that protocol is.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from fanout.config import ListenerConfig
from fanout.server.accept.peers import Peer, address_text, is_local, peer_of
from fanout.server.accept.proxy_header import ProxyHeader, ProxyHeaderInvalid
from fanout.server.accept.slots import ConnectionSlot
from fanout.server.accept.tls import ListenerTls
from fanout.server.base.counters import EntryFault, Limit
from fanout.server.base.deadlines import Deadline
from fanout.server.base.ports import Logger

__all__ = ["AcceptPipeline", "AcceptingServer", "ListenerContext", "PendingConnection"]

_WRAPPED_BYTES = 64 * 1024


class AcceptingServer(Protocol):
    """What the entry needs of the server."""

    @property
    def logger(self) -> Logger:
        """Takes log lines."""

    @property
    def accept_timeout_s(self) -> float:
        """How long a connection may take until its CONNECT is there, PROXY header and TLS handshake included."""

    def take_slot(self, host: str, *, address: str) -> ConnectionSlot | None:
        """Give a new connection a slot; None when it is refused, which is counted and logged then.

        Args:
            host: Its IP address; empty when it has none, or when it is not known yet.
            address: For the log.
        """

    def assign_host(self, slot: ConnectionSlot, host: str, *, address: str) -> bool:
        """Note from where a connection comes; return False when it is refused for that, counted and logged."""

    def release_slot(self, slot: ConnectionSlot) -> None:
        """Free the slot of a connection that did not get as far as its protocol."""

    def reject(
        self,
        reason: str,
        *,
        address: str,
        why: EntryFault | Limit | None = None,
        left: bool = False,
        **more: object,
    ) -> None:
        """Count and log a connection that ends here.

        Args:
            reason: For the log: one of a few.
            address: For the log.
            why: What is counted beside the refusal.
            left: Whether the client only went away, as health checks do, which is worth no warning.
            more: For the log.
        """

    def after(self, seconds: float, action: Callable[[], None]) -> Deadline:
        """Do `action` in `seconds`."""

    def new_protocol(self, peer: Peer, slot: ConnectionSlot, *, websocket: bool) -> asyncio.BufferedProtocol:
        """Make what serves a connection, and frees its slot in the end."""


class PendingConnection(Protocol):
    """A connection on its way in."""

    def abort(self) -> None:
        """End it at once."""


@dataclass(frozen=True, slots=True)
class ListenerContext:
    """What the entries of one listener share."""

    config: ListenerConfig
    """The listener."""
    tls: ListenerTls | None
    """Its TLS; None without."""
    server: AcceptingServer
    """The server."""
    pending: dict[PendingConnection, None]
    """The connections of all listeners that are on their way, so that they can be ended."""


class AcceptPipeline(asyncio.BufferedProtocol):
    """A connection on its way in. It hands the transport on, and is not used after that."""

    def __init__(self, listener: ListenerContext, slot: ConnectionSlot | None = None) -> None:
        """Prepare.

        Args:
            listener: Of its listener.
            slot: What it has taken already; None when that is to be done as the connection is made.
        """
        self._listener = listener
        self._server = listener.server
        self.slot = slot
        """What it holds; None before it is made, and after it was handed on or refused."""
        self._local = is_local(listener.config.address)
        self._header: ProxyHeader | None = None
        self._buffer = bytearray()
        self._early = bytearray()  # decrypted before the awaiting task could hand the transport on
        self._wrapping: asyncio.Task[None] | None = None
        self._deadline: Deadline | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection: hand it on, or read the PROXY header first."""
        self._transport = cast("asyncio.Transport", transport)
        networks = self._listener.config.proxy_protocol_from
        name = transport.get_extra_info("peername")
        host = str(name[0]) if isinstance(name, tuple) else ""
        self._address = address_text(host, name[1] if host else 0)
        if self.slot is None:
            # Behind a load balancer the client's own address counts, which is not known yet.
            self.slot = self._server.take_slot("" if networks else host, address=self._address)
            if self.slot is None:
                transport.abort()  # type: ignore[attr-defined]  # it is an asyncio.Transport
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
        self._listener.pending[self] = None
        self._deadline = self._server.after(self._server.accept_timeout_s, self._timed_out)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection: it ended on the way."""
        if self._wrapping is not None:
            self._wrapping.cancel()
        if self.slot is not None:
            self._fail(EntryFault.PROXY_HEADER if self._wrapping is None else EntryFault.TLS, None)

    def get_buffer(self, sizehint: int) -> bytearray:
        """Give room for the rest of the header and not for a byte more: what follows belongs to somebody else."""
        wanted = self._header.wanted if self._header is not None else 0
        self._buffer = bytearray(wanted or _WRAPPED_BYTES)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take a piece of the header."""
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
        if self._header.client is not None and not self._named(*self._header.client):
            return
        if self._listener.tls is None:
            self._hand_on(self._transport, self._header.client)
            return
        self._transport.pause_reading()  # the next byte is for TLS
        self._wrapping = asyncio.get_running_loop().create_task(self._wrap(self._listener.tls), name="tls-handshake")

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    async def _wrap(self, tls: ListenerTls) -> None:
        loop = asyncio.get_running_loop()
        timeout_s = 2 * self._server.accept_timeout_s  # the deadline comes first
        error: Exception | None = None
        try:
            wrapped = await loop.start_tls(
                self._transport, self, tls.context, server_side=True, ssl_handshake_timeout=timeout_s
            )
        except (OSError, ValueError) as caught:
            wrapped, error = None, caught
        # Whether TLS tells of it depends on how far it had come; without a slot it was refused meanwhile.
        if wrapped is None or wrapped.is_closing() or self.slot is None:
            if self.slot is not None:
                self._fail(EntryFault.TLS, error)
            self._transport.abort()
            return
        assert self._header is not None
        self._hand_on(wrapped, self._header.client)

    def _named(self, host: str, port: int) -> bool:
        """Note for whom the load balancer speaks; return False when that one may not come."""
        assert self.slot is not None
        self._address = address_text(host, port)
        if self._server.assign_host(self.slot, host, address=self._address):
            return True
        self._leave()
        self._transport.abort()
        return False

    def _hand_on(self, transport: asyncio.Transport, proxied: tuple[str, int] | None) -> None:
        slot, self.slot = self.slot, None
        assert slot is not None
        self._forget()
        peer = peer_of(transport, local=self._local, proxied=proxied)
        websocket = self._listener.config.address.has_websocket
        protocol = self._server.new_protocol(peer, slot, websocket=websocket)
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
        self._refuse(f"{fault.value}_failed", why=fault, left=left, detail=str(error or "the client left"))

    def _refuse(
        self, reason: str, *, why: EntryFault | Limit | None = None, left: bool = False, **more: object
    ) -> None:
        self._server.reject(reason, address=self._address, why=why, left=left, **more)
        self._leave()
        self._transport.abort()

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
