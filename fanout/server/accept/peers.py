"""Peer of a Network Connection: its address, locality and TLS certificate user, as the transport has them."""

from __future__ import annotations

import asyncio
import ipaddress
from dataclasses import dataclass
from typing import Any

from fanout.config import Address

__all__ = ["Peer", "address_text", "certificate_user", "is_local", "peer_of"]

_LOOPBACK_NAME = "localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Peer of a Network Connection."""

    host: str
    """IP address of the client, from the PROXY header of a trusted load balancer; empty for a Unix socket."""
    port: int
    """Port of the client; 0 for a Unix socket."""
    local: bool
    """True when the listener can be reached only from this machine: loopback, or a Unix socket."""
    certificate_user: str | None = None
    """Common Name of the subject of the client's verified certificate; None without one."""

    @property
    def address(self) -> str:
        """The client's address, for the log."""
        return address_text(self.host, self.port)


def address_text(host: str, port: int) -> str:
    """Return an address for the log; `host` is empty for a Unix socket."""
    if not host:
        return "unix"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def peer_of(transport: asyncio.BaseTransport, *, local: bool, proxied: tuple[str, int] | None = None) -> Peer:
    """Return the peer of a transport.

    Args:
        transport: A connected transport, after the TLS handshake if there is one.
        local: As in `Peer`.
        proxied: Host and port from the PROXY header; None for those of the transport.
    """
    name = transport.get_extra_info("peername")
    host, port = proxied or (name[:2] if isinstance(name, tuple) else ("", 0))
    user = certificate_user(transport.get_extra_info("peercert"))
    return Peer(host=host, port=port, local=local, certificate_user=user)


def is_local(address: Address) -> bool:
    """Return whether `address`, to listen on or to connect to, is reachable only from this machine."""
    if address.scheme == "unix":
        return True
    try:
        return ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        return address.host == _LOOPBACK_NAME


def certificate_user(certificate: dict[str, Any] | None) -> str | None:
    """Return the Common Name of a certificate's subject.

    Args:
        certificate: As `ssl.SSLSocket.getpeercert` returns it; None or empty when there is none.

    Returns:
        The name; None when there is not exactly one, or when it cannot be a User Name of MQTT.
    """
    subject = (certificate or {}).get("subject", ())
    names = [value for parts in subject for key, value in parts if key == "commonName"]
    if len(names) != 1 or not names[0] or "\0" in names[0]:
        return None
    return str(names[0])
