"""Endpoints for topics, live values and events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, aclosing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

from fastapi import FastAPI, Header, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST

from fanout.api.browse.models import EventsDocument, LagHistory, TopicDetail, TopicsDocument, TopTopics, TreeDocument
from fanout.api.browse.top_metrics import top_metrics
from fanout.api.browse.view import READER_KEY, WRITE_KEY, NodeBrowser, Reader, TopicQuery, Write
from fanout.errors import FanoutError
from fanout.runtime.slices import OneForMany

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

__all__ = ["BROWSE_ENDPOINTS", "KEPT_S", "STALE_HEADER", "STREAM_PATHS", "NotReadable", "add_browsing"]

BROWSE_ENDPOINTS: Final = (
    "/v1/topics",
    "/v1/topics/{topic}",
    "/v1/tree",
    "/v1/top",
    "/v1/top/metrics",
    "/v1/stream",
    "/v1/events",
    "/v1/lag/history",
)
"""Paths that are added."""
STREAM_PATHS: Final = frozenset({"/v1/stream", "/v1/events"})
"""Those whose answers may have no end."""
STALE_HEADER: Final = "Fanout-Stale-Seconds"
"""Header with the age of the values, in whole seconds, of a node that offers them as stale."""
KEPT_S: Final = 1.0
"""Time for which a costly document is given to others that ask for the same."""
_KEPT_MAX: Final = 16
_EVENT_STREAM: Final = "text/event-stream"
_TEXT_MAX: Final = 65_535
_LAST_DOLLAR: Final = "$\U0010ffff"
"""A name after all that begin with `$`, so a page that begins there has none of them."""

FilterText = Annotated[
    str, Query(alias="filter", max_length=_TEXT_MAX, description="Topic Filter, with its wildcards.")
]
ValueBytes = Annotated[int, Query(ge=0, le=65_536, description="Bytes of each payload that are shown.")]
StreamedBytes = Annotated[
    int, Query(ge=0, le=4096, description="Bytes of each payload that are sent, rounded up to 64, 256, 1024 or 4096.")
]
PageLimit = Annotated[int, Query(ge=1, le=1000, description="Most entries on the page.")]
LastEventId = Annotated[str, Header(alias="Last-Event-ID", max_length=64, description="Newest event that is known.")]


class TakePlaces(Protocol):
    """Takes places for requests; without one it raises the answer."""

    def place(self, request: Request) -> AbstractContextManager[None]:
        """Take a place for a costly document."""

    def stream(self, reader: Reader | None) -> AbstractContextManager[None]:
        """Take a place for a stream of a user, or of an operator (None)."""


class NotReadable(FanoutError):
    """The user may not read these topics."""


def add_browsing(
    app: FastAPI,
    browser: NodeBrowser,
    *,
    places: TakePlaces,
    refusals: Mapping[int, dict[str, Any]],
) -> None:
    """Add the endpoints.

    Args:
        app: The application.
        browser: Reads topics and events of the node.
        places: Takes places for costly documents and streams.
        refusals: Descriptions of the answers 409, 422, 429 and 503, for the schema.
    """
    wrong: dict[int | str, dict[str, Any]] = {422: refusals[422], 503: refusals[503]}
    busy = {**wrong, 429: refusals[429]}
    streamed = {
        200: {"content": {_EVENT_STREAM: {}}, "description": "Server-sent events."},
        **wrong,
        409: refusals[409],
        429: {"model": refusals[429]["model"], "description": "Too many streams are open."},
    }
    searches: OneForMany[TopicQuery, TopicsDocument] = OneForMany(keep_s=KEPT_S, entries_max=_KEPT_MAX)

    def checked_filter(text: str) -> bytes:
        topic_filter = text.encode()
        if not browser.is_topic_filter(topic_filter):
            raise _fault("filter", "topic_filter")
        return topic_filter

    async def check_rights(request: Request, topic_filter: bytes) -> None:
        reader: Reader | None = request.scope.get(READER_KEY)
        if reader is not None and not await reader.may_read(topic_filter):
            raise NotReadable(
                "the rules of this node do not let this user read all of these topics",
                hint="Ask for a narrower filter, topic or prefix; see access.rule in the node's configuration",
            )

    def tell_age(response: Response) -> None:
        if (age_s := browser.stale_s) is not None:
            response.headers[STALE_HEADER] = f"{age_s:.0f}"

    @app.get("/v1/topics", operation_id="topics", responses=busy)
    async def topics(  # noqa: PLR0917  # FastAPI gives them by name
        request: Request,
        response: Response,
        topic_filter: FilterText = "#",
        prefix: Annotated[str, Query(max_length=_TEXT_MAX, description="Beginning of the topics.")] = "",
        search: Annotated[str, Query(max_length=256, description="Words that a topic contains.")] = "",
        after: Annotated[str, Query(max_length=_TEXT_MAX, description="The `next` of the page before.")] = "",
        limit: PageLimit = 100,
        value_bytes: ValueBytes = 256,
    ) -> TopicsDocument:
        """Answer a page of the topics that the node holds, with their values."""
        query = TopicQuery(
            topic_filter=checked_filter(topic_filter),
            prefix=prefix.encode(),
            search=search.encode(),
            after=after.encode(),
            limit=limit,
            value_bytes=value_bytes,
        )
        await check_rights(request, query.topic_filter)
        with places.place(request):
            make = partial(browser.page, query)
            document = await (searches.get(query, make) if query.search else make())
        tell_age(response)
        return document.model_copy(update={"held": None}) if READER_KEY in request.scope else document

    @app.get("/v1/topics/{topic:path}", operation_id="topic", responses=wrong)
    async def topic(
        request: Request, response: Response, topic: Annotated[str, Path(max_length=_TEXT_MAX)]
    ) -> TopicDetail:
        """Answer one topic, with the messages that came while somebody looked at it."""
        name = topic.encode()
        if not browser.is_topic_name(name):
            raise _fault("topic", "string_pattern_mismatch")
        await check_rights(request, name)
        tell_age(response)
        return browser.topic(name, for_operator=READER_KEY not in request.scope)

    @app.get("/v1/tree", operation_id="tree", responses=busy)
    async def tree(
        request: Request,
        response: Response,
        prefix: Annotated[str, Query(max_length=_TEXT_MAX, description="The branch, without a slash at its end.")] = "",
        after: Annotated[str | None, Query(max_length=_TEXT_MAX, description="The `next` of the page before.")] = None,
        limit: PageLimit = 100,
    ) -> TreeDocument:
        """Answer the levels below a branch, with the number of topics of each."""
        branch = f"{prefix}/#".encode() if prefix else b"#"
        is_reader = request.scope.get(READER_KEY) is not None
        if is_reader and not browser.is_topic_filter(branch):
            raise _fault("prefix", "string_pattern_mismatch")
        await check_rights(request, branch)
        tell_age(response)
        with places.place(request):
            level = await browser.tree(prefix.encode(), after=None if after is None else after.encode(), limit=limit)
        return _of_number_sign(level) if is_reader and not prefix else level

    @app.get("/v1/top", operation_id="top", responses=busy)
    async def top(
        request: Request,
        count: Annotated[int, Query(ge=1, le=1000, description="Most topics in the answer.")] = 20,
    ) -> TopTopics:
        """Answer the busiest branches and topics, counted from the first request until half a minute after the last."""
        await check_rights(request, b"#")
        with places.place(request):
            return await browser.top(count)

    @app.get(
        "/v1/top/metrics",
        operation_id="top_metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}, "description": "Prometheus text format."}, **busy},
    )
    async def metrics_of_top(
        request: Request,
        count: Annotated[int, Query(ge=1, le=100, description="Most series in the answer.")] = 10,
    ) -> Response:
        """Answer the busiest topics as Prometheus text, a series each; it counts as `/v1/top` does."""
        await check_rights(request, b"#")
        with places.place(request):
            return Response(top_metrics(await browser.top(count)), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @app.get("/v1/stream", operation_id="stream", response_class=StreamingResponse, responses=streamed)
    async def stream(
        request: Request,
        topic_filter: FilterText = "#",
        value_bytes: StreamedBytes = 4096,
        last_event_id: LastEventId = "",
    ) -> Response:
        """Send the retained values that a Topic Filter matches, then each message, as server-sent events."""
        asked = checked_filter(topic_filter)
        await check_rights(request, asked)
        reader: Reader | None = request.scope.get(READER_KEY)
        write: Write | None = request.scope.get("extensions", {}).get(WRITE_KEY)

        def keeps() -> bool:
            return reader is None or reader.keeps(asked)

        def write_kept(data: bytes) -> bool:
            return write is not None and keeps() and write(data)

        events = browser.stream(asked, last_id=last_event_id, value_bytes=value_bytes, write=write_kept)
        answer = _StreamAnswer(partial(places.stream, reader), events, keeps=keeps)
        tell_age(answer)
        return answer

    @app.get("/v1/lag/history", operation_id="lag_history")
    async def lag_history() -> LagHistory:
        """Answer the lag of each link over the last hour."""
        return browser.lag_history()

    @app.get(
        "/v1/events",
        operation_id="events",
        response_model=EventsDocument,
        responses={422: wrong[422], 429: streamed[429]},
    )
    async def events(
        accept: Annotated[str, Header()] = "",
        before: Annotated[int | None, Query(ge=0, description="The `next` of the page before.")] = None,
        limit: PageLimit = 100,
        last_event_id: LastEventId = "",
    ) -> EventsDocument | Response:
        """Answer the newest events, the newest first; with `Accept: text/event-stream` a stream, the oldest first."""
        if _EVENT_STREAM in accept:
            return _StreamAnswer(partial(places.stream, None), browser.event_stream(last_id=last_event_id))
        return browser.events(before=before, limit=limit)


class _StreamAnswer(StreamingResponse):
    """Answer with a stream, which ends when its reader loses the right to it; 429 when too many are open."""

    def __init__(
        self,
        place: Callable[[], AbstractContextManager[None]],
        events: AsyncGenerator[bytes],
        *,
        keeps: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(_while_kept(events, keeps), media_type=_EVENT_STREAM)
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; its place is taken here, so that none is lost that was never sent."""
        with self._place():
            await super().__call__(scope, receive, send)


async def _while_kept(events: AsyncGenerator[bytes], keeps: Callable[[], bool]) -> AsyncIterator[bytes]:
    async with aclosing(events):
        async for piece in events:
            if not keeps():
                return
            yield piece


def _of_number_sign(level: TreeDocument) -> TreeDocument:
    """Return the first level as `#` takes it: without topics that begin with `$` (MQTT 5 4.7.2-1)."""
    return TreeDocument(
        prefix="",
        children=tuple(child for child in level.children if not child.name.startswith("$")),
        next=_LAST_DOLLAR if level.next is not None and level.next.startswith("$") else level.next,
    )


def _fault(name: str, kind: str) -> RequestValidationError:
    return RequestValidationError([{"type": kind, "loc": ("query", name), "msg": kind, "input": None}])
