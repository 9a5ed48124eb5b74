"""Access to single clients over HTTP: free on loopback, elsewhere with the token of `http.token_file` only.

Client Identifiers, users and addresses are personal, and ending a client's connection is an operator's right. The token
goes as `Authorization: Bearer TOKEN` (RFC 6750); the HTTP interface has no TLS of its own.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import Final

__all__ = ["LOOPBACK", "OperatorAccess", "TokenRefusal"]

_SCHEME: Final = "bearer"


@dataclass(frozen=True, slots=True)
class TokenRefusal:
    """Why a request is refused."""

    status_code: int
    """401 or 403."""
    error: str
    """What is wrong."""
    hint: str
    """What to do."""
    headers: dict[str, str]
    """Header fields of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorAccess:
    """Who may see and end single clients."""

    token: str | None = field(default=None, repr=False)
    """The token that every request must carry; None for none."""
    loopback: bool = False
    """Whether `http.listen` can be reached from this machine only; then no token is needed unless there is one."""

    def refusal(self, authorization: str | None) -> TokenRefusal | None:
        """Return why a request is refused; None when it is allowed.

        Args:
            authorization: Its header field `Authorization`; None without one.
        """
        if self.token is None:
            if self.loopback:
                return None
            return TokenRefusal(
                403,
                "this is shown to this machine only",
                "Set http.token_file, and give the token with --token-file; or bind http.listen to loopback",
                {},
            )
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() == _SCHEME and hmac.compare_digest(given.strip().encode(), self.token.encode()):
            return None
        return TokenRefusal(
            401,
            "the token is wrong" if given else "a token is needed",
            "Give the text of the node's http.token_file: --token-file, or Authorization: Bearer",
            {"WWW-Authenticate": "Bearer"},
        )


LOOPBACK: Final = OperatorAccess(loopback=True)
"""Access on an address that this machine only reaches, without a token."""
