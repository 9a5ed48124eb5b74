"""Comparison of the topics of a pool's members by one of them, for its page.

The other members are asked over HTTP, with the credentials of the operator who asks: each decides by its own rules.
Reading takes seconds, so a thread does it; the event loop makes only the pages of this node.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx
from pydantic import ValidationError

from fanout.api.browse.models import (
    DifferingTopicView,
    MemberNotCompared,
    PoolComparisonDocument,
    TopicsDocument,
)
from fanout.api.browse.pool_values import PoolComparison, TopicReader, compare_members
from fanout.api.browse.view import NodeBrowser, TopicQuery
from fanout.certificates import client_context
from fanout.errors import FanoutError
from fanout.runtime.http_client import NO_ANSWER, AnswerWithoutEnd, node_client, read_answer

if TYPE_CHECKING:
    from fanout.api.models import PoolDocument

__all__ = ["compare_pool"]

_COMPARISON_S: Final = 20.0
"""Time for a comparison; topics that were not compared by then are left out."""
_ANSWER_S: Final = 3.0
"""Time limit of a page of topics."""
_ANSWER_BYTES_MAX: Final = 4 << 20
"""Longest page that is read; one of 1,000 topics without values has some 400 KiB, with the longest names more."""


class _NotComparedError(FanoutError):
    """A member cannot be read."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(reason)
        self.node = node


async def compare_pool(
    pool: PoolDocument,
    browser: NodeBrowser,
    *,
    authorization: str,
    is_secure: bool,
    authorities: Path | None,
) -> PoolComparisonDocument:
    """Compare what the members of a pool hold of their links.

    Args:
        pool: The members, as this node sees them.
        browser: Reads the topics of this node.
        authorization: Credentials of the operator, as the header field has them; empty for none.
        is_secure: True if they came over TLS; then no member gets them without it.
        authorities: CA of the members, trusted beside those of the system; None for none.
    """
    stopped = threading.Event()
    try:
        return await asyncio.to_thread(
            _compare,
            pool,
            _OwnTopics(pool.node, browser, asyncio.get_running_loop()),
            authorization=authorization,
            is_secure=is_secure,
            authorities=authorities,
            stopped=stopped,
        )
    finally:
        stopped.set()  # a thread cannot be cancelled


def _compare(
    pool: PoolDocument,
    own: TopicReader,
    *,
    authorization: str,
    is_secure: bool,
    authorities: Path | None,
    stopped: threading.Event,
) -> PoolComparisonDocument:
    end_s = time.monotonic() + _COMPARISON_S
    urls, left_out = pool.others_to_ask(needs_tls=bool(authorization) and is_secure)
    context = ssl.create_default_context()
    if authorities is not None:
        context, _ = client_context(authorities, name="pool.client_ca_file")
    with node_client(timeout_s=_ANSWER_S, authorization=authorization, verify=context) as http:
        readers: dict[str, TopicReader] = {pool.node: own}
        readers |= {name: _MemberTopics(name, url, http) for name, url in urls.items()}
        found = _compare_readable(readers, left_out, end_s=end_s, stopped=stopped)
    return PoolComparisonDocument(
        node=pool.node,
        at=datetime.now(UTC),
        members={name: urls.get(name) for name in readers},
        left_out=tuple(MemberNotCompared(node=name, reason=reason) for name, reason in left_out.items()),
        topics=found.topics,
        changing=found.changing,
        whole=found.whole,
        differing=tuple(
            DifferingTopicView(topic=one.topic, suspect=one.suspect, values=dict(one.values)) for one in found.differing
        ),
    )


def _compare_readable(
    readers: dict[str, TopicReader], left_out: dict[str, str], *, end_s: float, stopped: threading.Event
) -> PoolComparison:
    """Compare members, without those that cannot be read: these go from `readers` to `left_out`."""
    while True:
        try:
            return compare_members(
                readers, sleep=stopped.wait, is_late=lambda: stopped.is_set() or time.monotonic() > end_s
            )
        except _NotComparedError as error:
            left_out[error.node] = error.message
            del readers[error.node]


class _OwnTopics:
    """Reads the topics of this node, from a thread."""

    def __init__(self, node: str, browser: NodeBrowser, loop: asyncio.AbstractEventLoop) -> None:
        self._node = node
        self._browser = browser
        self._loop = loop

    def topics(self, asked: Mapping[str, str]) -> TopicsDocument:
        """Return a page of topics."""
        query = TopicQuery(
            topic_filter=asked.get("filter", "#").encode(),
            after=asked.get("after", "").encode(),
            limit=int(asked["limit"]),
            value_bytes=int(asked["value_bytes"]),
        )
        page: Future[TopicsDocument] = asyncio.run_coroutine_threadsafe(self._browser.page(query), self._loop)
        try:
            return page.result(_ANSWER_S)
        except FutureTimeoutError as error:  # overloaded, or its event loop has ended
            page.cancel()
            raise _NotComparedError(self._node, "it does not answer in time") from error


class _MemberTopics:
    """Reads the topics of another member."""

    def __init__(self, node: str, url: str, http: httpx.Client) -> None:
        self._node = node
        self._url = url
        self._http = http

    def topics(self, asked: Mapping[str, str]) -> TopicsDocument:
        """Return a page of topics."""
        try:
            with self._http.stream("GET", f"{self._url}/v1/topics", params=dict(asked)) as answer:
                return TopicsDocument.model_validate_json(self._body(answer))
        except NO_ANSWER as error:
            raise _NotComparedError(self._node, f"nothing answers at {self._url}") from error
        except (AnswerWithoutEnd, ValidationError) as error:
            raise self._stranger() from error

    def _body(self, answer: httpx.Response) -> bytes:
        if answer.status_code in {401, 403}:
            raise _NotComparedError(self._node, "it does not accept the token given to this node, or wants one")
        if answer.status_code == 429:
            raise _NotComparedError(self._node, "too many requests wait there")
        if answer.status_code != 200:
            raise self._stranger()
        return read_answer(answer, bytes_max=_ANSWER_BYTES_MAX, within_s=_ANSWER_S)

    def _stranger(self) -> _NotComparedError:
        return _NotComparedError(self._node, f"no node of this version answers at {self._url}")
