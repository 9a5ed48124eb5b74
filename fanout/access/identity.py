"""What a client shows when it connects, and what it is taken for afterwards.

Owns these two values only; how one becomes the other is the business of `fanout.access.gate`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

__all__ = ["Credentials", "Identity", "Means"]


class Means(enum.StrEnum):
    """What an identity rests on."""

    ANONYMOUS = "anonymous"
    """Nothing: the client's name, if it gave one, was not verified and does not count."""
    PASSWORD = "password"
    """The password file."""
    CERTIFICATE = "certificate"
    """A client certificate, verified by TLS."""
    HOOK = "hook"
    """The answer of the HTTP hook."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a client shows when it connects."""

    client_id: str
    """Client Identifier, the assigned one when the client sent none."""
    address: str
    """IP address of the client, without port; behind a trusted proxy the one that the proxy tells. Empty for a
    Unix socket."""
    local: bool
    """Whether the listener is loopback or a Unix socket, so that only this machine reaches it."""
    username: str | None = None
    """User Name of CONNECT; None or empty for none."""
    password: bytes | None = field(default=None, repr=False)
    """Password of CONNECT; None for none."""
    certificate_user: str | None = None
    """User named by a client certificate that TLS has verified; None when there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a client is taken for, from CONNECT to the end of its Network Connection."""

    client_id: str
    """Client Identifier. Clients choose it: it narrows what a user may do, and proves nothing."""
    user: str = ""
    """The verified user; empty for a client without one."""
    address: str = ""
    """IP address, as in `Credentials`."""
    local: bool = False
    """As in `Credentials`."""
    means: Means = Means.ANONYMOUS
    """What it rests on."""
    superuser: bool = False
    """Whether it may read and write every topic, whatever the rules say."""
    proof: str = field(default="", repr=False)
    """For `Means.PASSWORD` the stored hash that the password matched: when the file has another, it is void."""
