"""Access to the HTTP interface: probes and metrics are open, everything else is for operators.

Users of `[access]` may read topics within their rights. An operator is who asks from this machine, or has the token of
`http.token_file`, which goes as `Authorization: Bearer TOKEN` (RFC 6750). Two doors that a browser would open are shut:
a page of another site may ask for nothing (Fetch Metadata), and on loopback the field Host names this machine, so that
no name of a stranger leads here (DNS rebinding).
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

__all__ = ["LOOPBACK", "OPEN_PATHS", "READER_PATHS", "OperatorAccess", "Refusal"]

OPEN_PATHS: Final = frozenset(
    {"/livez", "/readyz", "/metrics", "/", "/page/frame.html", "/page/style.css", "/page/page.js"}
)
"""Paths that everybody may ask for: those of load balancers, supervisors and Prometheus, without a client's name, and
the files of the page, which show nothing of the node."""
READER_PATHS: Final = ("/v1/topics", "/v1/tree", "/v1/top", "/v1/stream")
"""Beginnings of the paths that users of `[access]` may ask for, each within its rights."""
_SCHEME: Final = "bearer"
_HERE: Final = "localhost"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is refused."""

    status_code: int
    """401, 403 or 503."""
    error: str
    """The fault of the request."""
    hint: str
    """Advice to its sender."""
    headers: dict[str, str] = field(default_factory=dict)
    """Header fields of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorAccess:
    """Rule that decides whether a request comes from an operator."""

    token: str | None = field(default=None, repr=False)
    """The token that every request must carry; None for none."""
    loopback: bool = False
    """True if only this machine reaches `http.listen`; then no token is needed unless there is one."""
    hosts: frozenset[str] = frozenset()
    """Names in lower case (`http.hosts`) by which a request without a token may name this node, beside addresses."""

    def refusal(self, headers: Mapping[str, str]) -> Refusal | None:
        """Return why a request is refused; None when it is allowed.

        Args:
            headers: Its header fields, names in lower case.
        """
        if (foreign := self.foreign(headers)) is not None:
            return foreign
        if self.token is not None:
            return self._token_refusal(headers.get("authorization", ""))
        if not self.loopback:
            return Refusal(
                403,
                "this is shown to this machine only",
                "Set http.token_file, and give the token with --token-file; or bind http.listen to loopback",
            )
        host = _host_of(headers.get("host", _HERE))
        if host in self.hosts or host == _HERE or _is_address(host):
            return None
        return Refusal(
            403,
            "Host names another machine",
            "Ask for the node by its address or as localhost; or add the name to http.hosts, if it is a name of yours",
        )

    def foreign(self, headers: Mapping[str, str]) -> Refusal | None:
        """Return the refusal of a page of another site; None for other requests."""
        # Any web page opened on this machine can post to loopback; its browser then sends the page's origin. With GET
        # it says at least that the page is of another site.
        # A page of this node, and no other, is of the same origin; a browser lets no page set these fields. It leaves
        # out Sec-Fetch-Site where it does not trust the way: over plain HTTP to another machine.
        origin, host = headers.get("origin"), headers.get("host", "").lower()
        is_own = origin is None or origin.lower() in (f"http://{host}", f"https://{host}")
        site = headers.get("sec-fetch-site", "same-origin" if is_own else "cross-site")
        if site != "same-origin" and (site != "none" or origin is not None):
            return Refusal(403, "a page in a browser may not ask for this", "Use a command, or leave out Origin")
        return None

    def _token_refusal(self, authorization: str) -> Refusal | None:
        scheme, _, given = authorization.partition(" ")
        assert self.token is not None
        if scheme.lower() == _SCHEME and hmac.compare_digest(given.strip().encode(), self.token.encode()):
            return None
        return Refusal(
            401,
            "the token is wrong" if given else "a token is needed",
            "Give the text of the node's http.token_file: --token-file, or Authorization: Bearer",
            {"WWW-Authenticate": "Bearer"},
        )


LOOPBACK: Final = OperatorAccess(loopback=True)
"""Access on an address that this machine only reaches, without a token."""


def _host_of(text: str) -> str:
    """Return the host in a field Host, in lower case, without its port and brackets."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0].lower() if ":" in text else text.lower()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
