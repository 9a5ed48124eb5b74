"""Guard in front of the HTTP interface, as an ASGI application: it applies `fanout.api.operator_access`."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from fanout.api.browse.view import OPERATOR_KEY, READER_KEY, ReaderRefused
from fanout.api.models import Fault
from fanout.api.operator_access import OPEN_PATHS, READER_PATHS, OperatorAccess, Refusal

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from fanout.api.browse.view import NodeBrowser

__all__ = ["OperatorGuard"]

_WRONG: Final = Refusal(
    401, "user or password is wrong", "Give them as for a client of this node: Authorization: Basic"
)


class OperatorGuard:
    """ASGI application in front of another one.

    It passes on the requests of operators, those for `OPEN_PATHS`, and those of users for `READER_PATHS`.
    """

    def __init__(self, app: ASGIApp, *, access: OperatorAccess, browser: NodeBrowser) -> None:
        self._app = app
        self._access = access
        self._browser = browser

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer why it is refused, before its body is read."""
        refusal = None
        headers = Headers(scope=scope)
        if scope["path"] in OPEN_PATHS:
            scope[OPERATOR_KEY] = self._access.refusal(headers) is None
        elif scope["type"] == "http":
            user = _basic(headers.get("authorization", ""))
            if user is not None and scope["path"].startswith(READER_PATHS):
                refusal = self._access.foreign(headers) or await self._authenticate(scope, *user)
            else:
                refusal = self._access.refusal(headers)
        if refusal is None:
            await self._app(scope, receive, send)
            return
        fault = Fault(error=refusal.error, hint=refusal.hint)
        answer = JSONResponse(fault.model_dump(), status_code=refusal.status_code, headers=refusal.headers)
        await answer(scope, receive, send)

    async def _authenticate(self, scope: Scope, username: str, password: bytes) -> Refusal | None:
        client = scope.get("client")
        try:
            reader = await self._browser.reader(username, password, address=client[0] if client else "")
        except ReaderRefused as error:
            return Refusal(error.status_code, error.message, error.hint)
        if reader is None:
            return _WRONG
        scope[READER_KEY] = reader
        return None


def _basic(authorization: str) -> tuple[str, bytes] | None:
    """Return user and password of `Authorization: Basic` (RFC 7617); None for other schemes."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, _, password = base64.b64decode(given.strip(), validate=True).partition(b":")
        return user.decode(), password
    except ValueError:
        return "", b""
