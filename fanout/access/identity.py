"""Credentials of a client that connects, and the identity that `fanout.access.gate` makes of them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

__all__ = ["Credentials", "Identity", "Means"]


class Means(enum.StrEnum):
    """Proof of an identity."""

    ANONYMOUS = "anonymous"
    """None: a User Name, if given, was not verified and does not count."""
    PASSWORD = "password"
    """The password file."""
    CERTIFICATE = "certificate"
    """A client certificate, verified by TLS."""
    HOOK = "hook"
    """The answer of the HTTP hook."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Credentials of CONNECT and of the connection."""

    client_id: str
    """Client Identifier, the assigned one when the client sent none."""
    address: str
    """IP address of the client, without port; behind a trusted proxy the address that the proxy gives. Empty for a Unix
    socket."""
    local: bool
    """True if the listener is loopback or a Unix socket, so that only this machine reaches it."""
    username: str | None = None
    """User Name of CONNECT; None or empty for none."""
    password: bytes | None = field(default=None, repr=False)
    """Password of CONNECT; None for none."""
    certificate_user: str | None = None
    """User named by a client certificate that TLS has verified; None when there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Identity of a client, from CONNECT to the end of its Network Connection."""

    client_id: str
    """Client Identifier. Clients choose it: it narrows what a user may do, and proves nothing."""
    user: str = ""
    """The verified user; empty for a client without one."""
    address: str = ""
    """IP address, as in `Credentials`."""
    local: bool = False
    """As in `Credentials`."""
    means: Means = Means.ANONYMOUS
    """Proof of the identity."""
    superuser: bool = False
    """True if it may read and write every topic, whatever the rules say."""
    proof: str = field(default="", repr=False)
    """For `Means.PASSWORD`, the stored hash that matched; the identity is void when the file has another."""
