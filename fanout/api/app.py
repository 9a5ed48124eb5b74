"""HTTP endpoints of a node: paths, status codes, requests.

`fanout.api.http_server` has the sockets, `fanout.api.node_view` the source of the documents. Handlers are coroutines
although they never await, because FastAPI runs plain functions in threads, and the node's state belongs to its event
loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client.exposition import choose_encoder
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from fanout import __version__
from fanout.api.browse.endpoints import BROWSE_ENDPOINTS, KEPT_S, STALE_HEADER, NotReadable, add_browsing
from fanout.api.browse.models import PoolComparisonDocument
from fanout.api.browse.shares import Shares
from fanout.api.browse.view import OPERATOR_KEY, READER_KEY, Reader
from fanout.api.metrics import encode_metrics, process_metrics
from fanout.api.models import (
    BODY_BYTES_MAX,
    AuditDetail,
    AuditRequest,
    ClientsDocument,
    Draining,
    Fault,
    Held,
    HoldRequest,
    KickRequest,
    KickResult,
    LagDocument,
    Liveness,
    NodeStatus,
    PoolDocument,
    Readiness,
    ReloadRequest,
    ReloadResult,
    UnconfirmedDocument,
)
from fanout.api.node_view import ClientOrder, NodeView
from fanout.api.operator_access import LOOPBACK, OperatorAccess
from fanout.api.operator_guard import OperatorGuard
from fanout.api.page.files import add_page
from fanout.api.page.report import REPORT_PATH, NoReport, add_report
from fanout.api.topic_facts import TopicExplanation
from fanout.errors import AuditRefused, FanoutError, RequestRefused
from fanout.runtime.slices import OneForMany, Slices

__all__ = ["ACTIONS", "ENDPOINTS", "STALE_HEADER", "create_app"]

ENDPOINTS = (
    "/livez",
    "/readyz",
    "/v1/status",
    "/v1/lag",
    "/v1/pool",
    "/v1/pool/compare",
    "/v1/clients",
    "/v1/explain",
    *BROWSE_ENDPOINTS,
    REPORT_PATH,
    "/v1/links/{link}/unconfirmed",
    "/metrics",
    "/openapi.json",
)
"""Every path that answers GET."""
ACTIONS = ("/v1/drain", "/v1/hold", "/v1/undrain", "/v1/reload", "/v1/clients/kick", "/v1/links/{link}/audit")
"""Every path that takes POST."""
_WAITING_MAX = 256
"""Requests of operators for costly documents that may wait; more are answered 429."""
_READERS_MAX = 32
"""Those of users of `[access]`, which have places apart: a search takes seconds, and operators come in meanwhile."""
_SCRAPERS_MAX = 32
"""Requests for metrics of those who are no operators."""
_OF_ONE = 4
"""One user, or one address, may have one of so many places."""
_KEPT_MAX = 16
"""Pages that are kept for those who ask for the same within `KEPT_S`."""
_Responses: TypeAlias = dict[int | str, dict[str, Any]]
_BUSY: _Responses = {429: {"model": Fault, "description": "Too many requests wait."}}
_GUARDED: _Responses = {
    401: {"model": Fault, "description": "The token is missing or wrong."},
    403: {
        "model": Fault,
        "description": "Not an operator: a page in a browser, a foreign `Host`, or not this machine and no token.",
    },
}
"""Refusals of every path but the open ones."""
_REFUSES: _Responses = {409: {"model": Fault, "description": "It cannot be done; `error` says why."}}
_HAS_BODY: _Responses = {
    413: {"model": Fault, "description": "The body is too large."},
    422: {"model": Fault, "description": "The request has an unknown value."},
}
_NUMBERS = {"before": "from 0 on"}
"""Bounds of numbers by their names; others are from 1 to 1000."""
_BROWSING: dict[int, dict[str, Any]] = {
    409: {"model": Fault, "description": "The node is a tap, which delivers no messages."},
    422: {"model": Fault, "description": "A parameter has a wrong value."},
    429: _BUSY[429],
    503: {"model": Fault, "description": "User and password cannot be checked now."},
}
_ASK = "see /openapi.json"

Asked = TypeVar("Asked", bound=BaseModel)
Made = TypeVar("Made")

DrainingCode = Annotated[
    Literal["404", "503"],
    Query(
        description="Status code while the node drains; with 404 and `disable-on-404` HAProxy leaves its clients alone."
    ),
]

StaleCode = Annotated[
    Literal["ok", "404", "503"],
    Query(
        description=(
            "Answer while the node is not ready only because its values are stale, and offers them as stale: `ok`"
            " is 200, for a backend of last resort; with 404 and `disable-on-404` HAProxy leaves its clients alone."
        )
    ),
]


TopicName = Annotated[
    str,
    Query(min_length=1, pattern=r"^[^+#\x00]+$", description="Topic Name at this node, without wildcards."),
]
AtPrimary = Annotated[bool, Query(description="True if `topic` is the name at the primary, without a prefix.")]
AskedClient = Annotated[
    str | None, Query(min_length=1, description="Client Identifier of the client that does not get the topic.")
]


def create_app(
    node: NodeView, *, access: OperatorAccess = LOOPBACK, streams_max: int = 256, report: Path | None = None
) -> FastAPI:
    """Build the ASGI application that shows `node`.

    Args:
        node: The node.
        access: Decides who is an operator; others get probes and metrics.
        streams_max: Most streams at a time.
        report: Page of the last report (`http.report`); None for none.
    """
    app = FastAPI(
        title="fanout",
        version=__version__,
        summary="Health, status and metrics of one fanout node",
        docs_url=None,  # its page loads scripts from other servers, which a node may not reach
        redoc_url=None,
        redirect_slashes=False,  # a redirect repeats the Host of whoever asks
        responses=_GUARDED,
    )
    app.add_middleware(OperatorGuard, access=access, browser=node.browser)
    turns = _Turns(node.browser.slices, streams_max=streams_max)
    slowest: OneForMany[int, ClientsDocument] = OneForMany(keep_s=KEPT_S, entries_max=_KEPT_MAX)
    comparisons: OneForMany[None, PoolComparisonDocument] = OneForMany(keep_s=KEPT_S, entries_max=1)
    explaining = asyncio.Lock()

    # HEAD too: some probes, and `wget --spider`, use it.
    @app.head("/livez", include_in_schema=False)
    @app.get("/livez", operation_id="livez")
    async def livez() -> Liveness:
        """Answer 200 as long as the event loop runs; restart the process when it does not."""
        return Liveness()

    @app.head("/readyz", include_in_schema=False)
    @app.get(
        "/readyz",
        operation_id="readyz",
        responses={
            422: {"model": Fault, "description": "`draining` or `stale` has another value."},
            503: {"model": Readiness, "description": "Not ready; `reasons` says why."},
        },
    )
    async def readyz(response: Response, draining: DrainingCode = "503", stale: StaleCode = "503") -> Readiness:
        """Answer 200 when the node holds everything it replicates, by proof; else 503."""
        readiness = node.readiness()
        if readiness.ready:
            response.status_code = 200
        elif readiness.state in ("draining", "stopping") or readiness.held_since is not None:
            response.status_code = int(draining)
        elif readiness.stale_seconds is not None:
            response.status_code = 200 if stale == "ok" else int(stale)
            response.headers[STALE_HEADER] = f"{readiness.stale_seconds:.0f}"
        else:
            response.status_code = 503
        return readiness

    @app.get("/v1/status", operation_id="status", responses=_BUSY)
    async def status() -> NodeStatus:
        """Answer everything about the node: links, server, replication log, limits."""
        with turns.place():
            await node.count()
        return await turns.make(node.status)

    @app.get("/v1/lag", operation_id="lag", responses=_BUSY)
    async def lag() -> LagDocument:
        """Answer how far each link is behind; null where that is not known."""
        return await turns.make(node.lag)

    @app.get("/v1/pool", operation_id="pool", responses={**_BUSY, **_REFUSES})
    async def pool() -> PoolDocument:
        """Answer the members of the pool, as this node sees them; 409 from a node that is in none."""
        return await turns.make(node.pool)

    @app.get("/v1/pool/compare", operation_id="compare_pool", responses={**_BUSY, **_REFUSES})
    async def compare_pool(request: Request) -> PoolComparisonDocument:
        """Answer the topics that members of the pool hold differently, in seconds; 409 from a node that is in none."""
        authorization = request.headers.get("authorization", "")
        with turns.place():
            return await comparisons.get(None, partial(node.compare_pool, authorization=authorization))

    @app.get(
        "/v1/explain",
        operation_id="explain",
        responses={
            422: {"model": Fault, "description": "The topic is no Topic Name."},
            429: {"model": Fault, "description": "Another topic is being explained."},
        },
    )
    async def explain(topic: TopicName, at_primary: AtPrimary = False, client: AskedClient = None) -> TopicExplanation:
        """Answer whether a topic is the same here and at the primary, which is asked by name; if not, why."""
        if explaining.locked():
            raise _Refusal(429, "another topic is being explained", hint="Ask again in some seconds")
        async with explaining:
            return await node.explain(topic, at_primary=at_primary, client_id=client)

    @app.get(
        "/metrics",
        operation_id="metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}, "description": "Prometheus text format."}, **_BUSY},
    )
    async def metrics(request: Request) -> Response:
        """Answer the metrics, as Prometheus text or, where asked for, OpenMetrics."""
        try:
            encode, content_type = choose_encoder(request.headers.get("accept", ""))
        except (TypeError, ValueError):  # not a version
            encode, content_type = choose_encoder("")
        with turns.place(request):
            await node.count()
            process = await asyncio.to_thread(process_metrics)
            text = await node.browser.slices.run(encode_metrics(node, process, encode=encode))
        return Response(text, headers={"Content-Type": content_type})

    @app.post(
        "/v1/drain",
        operation_id="drain",
        status_code=202,
    )
    async def drain() -> Draining:
        """Begin to drain: not ready from now on, and after `node.drain_s` the clients leave and the process ends."""
        return node.drain()

    @app.post(
        "/v1/hold",
        operation_id="hold",
        responses={**_REFUSES, **_HAS_BODY},
        openapi_extra=_body_of(HoldRequest),
    )
    async def hold(request: Request) -> Held:
        """Hold the node out of its pool until `/v1/undrain` or its end: not ready, and its clients stay."""
        order = await _read_request(request, HoldRequest, HoldRequest())
        return node.hold(disconnect=order.disconnect)

    @app.post("/v1/undrain", operation_id="undrain", responses=_REFUSES)
    async def undrain() -> Held:
        """End the hold: the node is ready again as soon as its links are."""
        return node.undrain()

    @app.post(
        "/v1/reload",
        operation_id="reload",
        responses={**_REFUSES, **_HAS_BODY},
        openapi_extra=_body_of(ReloadRequest),
    )
    async def reload(request: Request) -> ReloadResult:
        """Read the configuration again and apply what has changed; answer the changes and their costs."""
        return await node.reload(await _read_request(request, ReloadRequest, ReloadRequest()))

    @app.get("/v1/clients", operation_id="clients", responses={**_BUSY, **_REFUSES, 422: _HAS_BODY[422]})
    async def clients(
        order: ClientOrder = "id",
        after: Annotated[str, Query(max_length=65_535, description="The `next` of the page before.")] = "",
        limit: Annotated[int, Query(ge=1, le=1000, description="Most clients on the page.")] = 100,
        client_id: Annotated[str | None, Query(max_length=65_535, description="The only client to show.")] = None,
        topic_filter: Annotated[
            str | None,
            Query(alias="filter", max_length=65_535, description="Only clients that may read a topic of this filter."),
        ] = None,
    ) -> ClientsDocument:
        """Answer with connected clients, their waiting messages, and slow readers."""
        if topic_filter is not None and not node.browser.is_topic_filter(topic_filter.encode()):
            wrong = {"type": "topic_filter", "loc": ("query", "filter"), "msg": "topic_filter", "input": None}
            raise RequestValidationError([wrong])
        with turns.place():
            make = partial(
                node.clients, order=order, after=after, limit=limit, client_id=client_id, topic_filter=topic_filter
            )
            is_shared = order == "slowest" and client_id is None and topic_filter is None
            return await (slowest.get(limit, make) if is_shared else make())

    @app.post(
        "/v1/clients/kick",
        operation_id="kick",
        responses={**_REFUSES, **_HAS_BODY},
        openapi_extra=_body_of(KickRequest),
    )
    async def kick(request: Request) -> KickResult:
        """End the Network Connection of a client (0x98); its session stays unless `clean` is true."""
        return await node.kick(await _read_request(request, KickRequest, None))

    @app.post(
        "/v1/links/{link}/audit",
        operation_id="audit",
        responses={
            404: {"model": Fault, "description": "There is no such link."},
            409: {"model": Fault, "description": "No audit can begin now."},
            **_HAS_BODY,
        },
        openapi_extra=_body_of(AuditRequest),
    )
    async def audit(link: str, request: Request) -> AuditDetail:
        """Compare a live link's replica with its primary, repair it, and answer what was found."""
        _check_link(node, link)
        order = await _read_request(request, AuditRequest, AuditRequest())
        return await node.audit(link, confirmed=order.confirmed)

    @app.get(
        "/v1/links/{link}/unconfirmed",
        operation_id="unconfirmed",
        responses={
            404: {"model": Fault, "description": "There is no such link."},
            422: {"model": Fault, "description": "The request is not possible."},
            **_BUSY,
        },
    )
    async def unconfirmed(link: str, after: Annotated[str, Query(max_length=65_535)] = "") -> UnconfirmedDocument:
        """Answer a page of the topics that the newest comparison with the primary did not bring."""
        _check_link(node, link)
        with turns.place():
            return await node.unconfirmed(link, after=after)

    add_browsing(app, node.browser, places=turns, refusals=_BROWSING)
    missing = {"model": Fault, "description": "There is no report; `hint` says how to make one."}
    add_report(app, report, missing=missing)
    add_page(app)
    app.add_exception_handler(HTTPException, _http_fault)
    app.add_exception_handler(RequestValidationError, _request_fault)
    app.add_exception_handler(NotReadable, _answering(403))
    app.add_exception_handler(NoReport, _answering(404))
    app.add_exception_handler(AuditRefused, _answering(409))
    app.add_exception_handler(RequestRefused, _answering(409))
    app.add_exception_handler(ClientDisconnect, _client_gone)
    app.add_exception_handler(Exception, _bug)
    return app


class _Refusal(HTTPException):
    """A refusal of a handler, with a hint."""

    def __init__(self, status_code: int, error: str, *, hint: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(status_code, error, headers)
        self.hint = hint


class _Turns:
    """Bounds the requests for costly documents that wait, and makes these in their share of the event loop."""

    def __init__(self, slices: Slices, *, streams_max: int) -> None:
        self._slices = slices
        self._operators = Shares(_WAITING_MAX)
        self._users = Shares(_READERS_MAX, of_one_max=_share(_READERS_MAX))
        self._scrapers = Shares(_SCRAPERS_MAX, of_one_max=_share(_SCRAPERS_MAX))
        self._streams = Shares(streams_max)
        self._streams_of_users = Shares(max(1, streams_max - _share(streams_max)), of_one_max=_share(streams_max))

    @contextlib.contextmanager
    def place(self, request: Request | None = None) -> Iterator[None]:
        """Take a place for as long as a document is made.

        Args:
            request: The request; None for one of an operator.
        """
        places, who = self._operators, ""
        if request is not None and (reader := request.scope.get(READER_KEY)) is not None:
            places, who = self._users, reader.user
        elif request is not None and not request.scope.get(OPERATOR_KEY, True):
            places, who = self._scrapers, "" if request.client is None else request.client.host
        with places.take(who) as is_free:
            if not is_free:
                raise _Refusal(429, "too many requests wait", hint="Ask again later")
            yield

    @contextlib.contextmanager
    def stream(self, reader: Reader | None) -> Iterator[None]:
        """Take a place for as long as a stream is open.

        Args:
            reader: The user who reads it; None for an operator.
        """
        with contextlib.ExitStack() as taken:
            if reader is not None:
                own = self._streams_of_users.take(reader.user, own_max=reader.connections_max)
                if not taken.enter_context(own):
                    hint = "Close one, or raise http.streams_max, or connections_max in [[access.quota]]"
                    raise _Refusal(429, "users have too many streams open", hint=hint)
            if not taken.enter_context(self._streams.take("")):
                raise _Refusal(429, "too many streams are open", hint="Ask again later, or raise http.streams_max")
            yield

    async def make(self, document: Callable[[], Made]) -> Made:
        """Make a document at once for an operator, when it is its turn."""

        def steps() -> Generator[None, None, Made]:
            yield
            return document()

        with self.place():
            return await self._slices.run(steps())


def _share(places: int) -> int:
    """Return the places that one of those who ask may have."""
    return max(1, places // _OF_ONE)


def _check_link(node: NodeView, link: str) -> None:
    names = [one.name for one in node.readiness().links]
    if link not in names:
        hint = f"Its links are {', '.join(names)}" if names else "It has none"
        raise _Refusal(404, f"there is no link {link}", hint=hint)


def _body_of(model: type[BaseModel]) -> dict[str, Any]:
    return {"requestBody": {"content": {"application/json": {"schema": model.model_json_schema()}}}}


async def _read_request(request: Request, model: type[Asked], default: Asked | None) -> Asked:
    """Read the body here, because FastAPI would read it before any check, and without a bound.

    Args:
        request: The request.
        model: Content of the body.
        default: Content in place of no body; None if there must be one.
    """
    body = await _read_body(request)
    if not body and default is not None:
        return default
    try:
        if "json" not in request.headers.get("content-type", ""):
            body = b'""'  # a form, as web pages send it
        return model.model_validate_json(body)
    except ValidationError as error:
        faults = [{**fault, "loc": ("body", *fault["loc"])} for fault in error.errors()]
        raise RequestValidationError(faults) from error


async def _read_body(request: Request) -> bytes:
    too_large = _Refusal(413, f"the body has more than {BODY_BYTES_MAX} bytes", hint=_ASK)
    if int(request.headers.get("content-length", "0")) > BODY_BYTES_MAX:  # h11 has checked that it is a number
        raise too_large
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_BYTES_MAX:
            raise too_large
    return bytes(body)


async def _http_fault(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, _Refusal):
        fault = Fault(error=error.detail, hint=error.hint)
    elif error.status_code == 404:
        paths = ", ".join([*ENDPOINTS, *(f"POST {path}" for path in ACTIONS)])
        fault = Fault(error=f"no such path: {request.url.path}", hint=f"Use one of {paths}")
    else:
        assert error.status_code == 405
        allowed = "POST" if (error.headers or {}).get("Allow") == "POST" else "GET"
        fault = Fault(error=f"{request.method} is not possible here", hint=f"Use {allowed}")
    return JSONResponse(fault.model_dump(), status_code=error.status_code, headers=error.headers)


async def _request_fault(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    fault = Fault(error="; ".join(map(_problem, error.errors())), hint=_ASK)
    return JSONResponse(fault.model_dump(), status_code=422)


def _problem(fault: dict[str, Any]) -> str:
    """Return the problem that the validator found, in plain words."""
    name = fault["loc"][-1]
    match fault["type"]:
        case "literal_error":
            return f"{name} must be {fault['ctx']['expected']}".replace("'", "")
        case "int_type" | "greater_than_equal" if name == "confirmed":
            return "confirmed must be the number of unconfirmed topics, as GET /v1/links/{link}/unconfirmed gives it"
        case "greater_than_equal" | "less_than_equal" if name == "value_bytes":
            return f"value_bytes must be a number of bytes, {fault['msg'].partition('should be ')[2]}"
        case "int_parsing" | "greater_than_equal" | "less_than_equal":
            return f"{name} must be a whole number {_NUMBERS.get(name, 'from 1 to 1000')}"
        case "string_too_long":
            return f"{name} must have {fault['ctx']['max_length']:,} characters at most"
        case "topic_filter":
            return f"{name} must be a Topic Filter, and not of a Shared Subscription"
        case "missing":
            return f"{name} must be said"
        case "string_pattern_mismatch" | "string_too_short":
            return f"{name} must be a name without wildcards, and not empty"
        case "string_type":
            return f"{name} must be a text"
        case "bool_type" | "bool_parsing":
            return f"{name} must be true or false"
        case "extra_forbidden":
            return f"there is no {name} to be said"
        case "json_invalid":
            return "the body is not JSON"
        case _:
            return "the body must be a JSON object"


def _answering(status_code: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Return a handler that answers an error with its message."""

    async def answer(request: Request, error: Exception) -> Response:
        assert isinstance(error, FanoutError)
        return JSONResponse(Fault(error=error.message, hint=error.hint).model_dump(), status_code=status_code)

    return answer


async def _client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=400)  # nobody reads it, and it is no bug


async def _bug(request: Request, error: Exception) -> Response:
    # The traceback goes to the node's log (uvicorn logs what an application raises), never to the client.
    fault = Fault(error="the node failed to answer", hint="This is a bug in fanout; the node's log has the details")
    return JSONResponse(fault.model_dump(), status_code=500)
