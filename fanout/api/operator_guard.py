"""Guard in front of the HTTP interface, as an ASGI application: it applies `fanout.api.operator_access`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from fanout.api.models import Fault
from fanout.api.operator_access import OPEN_PATHS, OperatorAccess

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["OperatorGuard"]


class OperatorGuard:
    """ASGI application in front of another one, which gets the requests of operators and those for `OPEN_PATHS`."""

    def __init__(self, app: ASGIApp, *, access: OperatorAccess) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer why it is refused, before its body is read."""
        refusal = None
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            refusal = self._access.refusal(Headers(scope=scope))
        if refusal is None:
            await self._app(scope, receive, send)
            return
        fault = Fault(error=refusal.error, hint=refusal.hint)
        answer = JSONResponse(fault.model_dump(), status_code=refusal.status_code, headers=refusal.headers)
        await answer(scope, receive, send)
