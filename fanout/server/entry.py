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
from fanout.server.collaborators import Logger
from fanout.server.deadlines import Deadline
from fanout.server.peers import Peer, is_local, peer_of
from fanout.server.proxy_header import ProxyHeader, ProxyHeaderInvalid
from fanout.server.tls import ListenerTls

__all__ = ["Entry", "Gateway", "Reception"]

_WRAPPED_BYTES = 64 * 1024


class Reception(Protocol):
    """What the entry needs of the server."""

    @property
    def logger(self) -> Logger:
        """Takes log lines."""

    @property
    def entry_timeout_s(self) -> float:
        """How long PROXY header and TLS handshake may take."""

    def may_enter(self, entering: int) -> bool:
        """Say whether there is room for one more connection besides `entering` that are on their way."""

    def after(self, seconds: float, action: Callable[[], None]) -> Deadline:
        """Do `action` in `seconds`."""

    def new_protocol(self, peer: Peer, *, websocket: bool) -> asyncio.BufferedProtocol:
        """Make what serves a connection."""

    def count_refused(self) -> None:
        """Count a connection that ended here."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """What the entries of one listener share."""

    config: ListenerConfig
    """The listener."""
    tls: ListenerTls | None
    """Its TLS; None without."""
    reception: Reception
    """The server."""
    entering: dict[Entry, None]
    """The connections of all listeners that are on their way, so that they can be ended."""


class Entry(asyncio.BufferedProtocol):
    """A connection on its way in. It hands the transport on, and is not used after that."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._local = is_local(gateway.config.address)
        self._header: ProxyHeader | None = None
        self._buffer = bytearray()
        self._early = bytearray()  # decrypted before the awaiting task could hand the transport on
        self._wrapping: asyncio.Task[None] | None = None
        self._deadline: Deadline | None = None
        self._ended = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection: hand it on, or read the PROXY header first."""
        self._transport = cast("asyncio.Transport", transport)
        networks = self._gateway.config.proxy_protocol_from
        if not networks:
            self._hand_on(self._transport, None)
            return
        name = transport.get_extra_info("peername")
        host = ipaddress.ip_address(name[0]) if isinstance(name, tuple) else None
        if isinstance(host, ipaddress.IPv6Address) and host.ipv4_mapped is not None:
            host = host.ipv4_mapped
        if host is None or not any(host in network for network in networks):
            self._refuse("not_in_proxy_protocol_from")
            return
        if not self._gateway.reception.may_enter(len(self._gateway.entering)):
            self._refuse("connections_max")
            return
        self._header = ProxyHeader()
        self._gateway.entering[self] = None
        self._deadline = self._gateway.reception.after(self._gateway.reception.entry_timeout_s, self._timed_out)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection: it ended on the way."""
        if not self._ended:
            self._ended = True
            self._leave()
            self._gateway.reception.count_refused()
        if self._wrapping is not None:
            self._wrapping.cancel()

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
            self._refuse("proxy_header_invalid", detail=str(error))
            return
        if not complete:
            return
        if self._gateway.tls is None:
            self._hand_on(self._transport, self._header.client)
            return
        self._transport.pause_reading()  # the next byte is for TLS
        self._wrapping = asyncio.get_running_loop().create_task(self._wrap(self._gateway.tls), name="tls-handshake")

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    async def _wrap(self, tls: ListenerTls) -> None:
        loop = asyncio.get_running_loop()
        timeout_s = self._gateway.reception.entry_timeout_s
        try:
            wrapped = await loop.start_tls(
                self._transport, self, tls.context, server_side=True, ssl_handshake_timeout=timeout_s
            )
        except (OSError, ValueError):  # also of a peer that is gone; `connection_lost` counts it
            wrapped = None
        if wrapped is None or wrapped.is_closing():
            self._transport.abort()
            self._wrapping = None
            self.connection_lost(None)  # whether TLS tells of it depends on how far it had come
            return
        assert self._header is not None
        self._hand_on(wrapped, self._header.client)

    def _hand_on(self, transport: asyncio.Transport, proxied: tuple[str, int] | None) -> None:
        self._leave()
        peer = peer_of(transport, local=self._local, proxied=proxied)
        websocket = self._gateway.config.address.has_websocket
        protocol = self._gateway.reception.new_protocol(peer, websocket=websocket)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        early = memoryview(self._early)
        while early and not transport.is_closing():
            room = memoryview(protocol.get_buffer(len(early)))
            count = min(len(room), len(early))
            room[:count] = early[:count]
            protocol.buffer_updated(count)
            early = early[count:]

    def _refuse(self, reason: str, **more: object) -> None:
        name = self._transport.get_extra_info("peername")
        address = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "unix"
        self._gateway.reception.logger.warning("connection_refused", reason=reason, address=address, **more)
        self._transport.abort()

    def _timed_out(self) -> None:
        self._refuse("proxy_header_timeout")

    def _leave(self) -> None:
        self._gateway.entering.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
