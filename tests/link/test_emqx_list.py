"""The rung `count` by the list of retained messages that EMQX gives over HTTP."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import gzip
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from fanout.api.http_server import HttpServer
from fanout.errors import FanoutError
from fanout.link import emqx_list as retained_list
from fanout.link.emqx_list import EmqxList
from fanout.link.list_check import ListCheck
from fanout.link.model.evidence import Evidence
from fanout.link.model.states import LinkState
from fanout.mqtt.topics import matches
from fanout.selection import Selector
from tests.link.fake_primary import FakePrimary, Pair, make_config
from tests.link.fake_server import FakeServer
from tests.link.harness import Running, config_for, running, silent_logger

PATH = "/api/v5/mqtt/retainer/messages"
VALUES = {b"plant/%d" % number: b"x" for number in range(25)}
EMPTY = b'{"data": [], "meta": {"hasnext": false}}'
OTHERS = {b"plant/cold/1": b"x", b"fanout/control/edge-2/plant/fence": b"fence", b"office/1": b"x"}


async def endless(*, pause_s: float) -> AsyncIterator[bytes]:
    """Yield a page without end."""
    while True:
        yield b" " * (1 if pause_s else 2**20)
        await asyncio.sleep(pause_s)


class Emqx:
    """The list, as EMQX 5 documents it: by Topic Filter and page; `meta.count` stands there without a filter only."""

    def __init__(self, topics: dict[bytes, bytes]) -> None:
        self.topics = topics
        self.asked: list[Request] = []
        self.answer: Response | None = None

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        self.asked.append(request)
        if self.answer is not None:
            return self.answer
        query = request.query_params
        page, limit = int(query.get("page", 1)), int(query.get("limit", 100))
        found = [topic for topic in self.topics if "topic" not in query or matches(query["topic"].encode(), topic)]
        meta: dict[str, Any] = {"page": page, "limit": limit, "hasnext": page * limit < len(found)}
        if "topic" not in query:
            meta["count"] = len(self.topics)
        data = [{"topic": topic.decode(), "qos": 1} for topic in found[(page - 1) * limit : page * limit]]
        return JSONResponse({"data": data, "meta": meta})


@contextlib.asynccontextmanager
async def listing(topics: dict[bytes, bytes]) -> AsyncIterator[tuple[Emqx, str]]:
    """Serve a list; give it and its address."""
    emqx, app = Emqx(topics), FastAPI()
    app.add_route(PATH, emqx.__call__, methods=["GET"])
    server = HttpServer(lambda: app, host="127.0.0.1", port=0)
    await server.start()
    try:
        yield emqx, f"{server.url}{PATH}"
    finally:
        await server.stop()


def of(url: str, key_file: Path | None = None) -> EmqxList:
    """Return the list at an address."""
    return EmqxList(url, key_file=key_file, timeout_s=10.0)


async def test_all_pages_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the Topic Filter matches, page by page."""
    monkeypatch.setattr(retained_list, "PAGE_TOPICS", 10)
    async with listing(VALUES | OTHERS) as (emqx, url):
        assert await of(url).topics("plant/+") == set(VALUES)
        assert [request.query_params["page"] for request in emqx.asked] == ["1", "2", "3"]
        monkeypatch.setattr(retained_list, "PAGES_MAX", 2)
        with pytest.raises(FanoutError, match="more than 20 topics"):
            await of(url).topics("plant/+")
        monkeypatch.setattr(retained_list, "TOPICS_BYTES_MAX", 100)
        with pytest.raises(FanoutError, match="more than 100 bytes"):
            await of(url).topics("plant/+")


async def test_the_key_is_sent_as_basic(tmp_path: Path) -> None:
    """EMQX: the API Key and its Secret Key."""
    key_file = tmp_path / "key"
    key_file.write_text("key:secret:more\n")
    async with listing({}) as (emqx, url):
        assert await of(url, key_file).topics("#") == set()
        expected = base64.b64encode(b"key:secret:more").decode()
        assert emqx.asked[0].headers["authorization"] == f"Basic {expected}"
        with pytest.raises(FanoutError, match="count_key_file cannot be read"):
            await of(url, tmp_path / "none").topics("#")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Response(status_code=401), "status 401"),
        (Response(b"<html>"), "not a list"),
        (Response(b"[]"), "not a list"),
        (Response(b'{"data": [{}], "meta": {}}'), "not a list"),
        (Response(b'{"data": []}'), "not a list"),
        (Response(b'{"data": 7, "meta": {}}'), "not a list"),
        (Response(b'{"data": [{"topic": 7}], "meta": {"hasnext": false}}'), "not a list"),
        (Response(b'{"data": [{"topic": "\\ud800"}], "meta": {"hasnext": false}}'), "not a list"),
        (
            Response(b'{"data": [%b], "meta": {"hasnext": false}}' % b",".join([b'{"topic": "a"}'] * 10_001)),
            "not a list",
        ),
        (Response(b"[" * 100_000), "not a list"),
        (Response(gzip.compress(b'{"data": [], "meta": {}}'), headers={"Content-Encoding": "gzip"}), "compressed"),
        (StreamingResponse(endless(pause_s=0.05)), "more than 1 s"),
        (StreamingResponse(endless(pause_s=0)), "a page of it is too large"),
    ],
)
async def test_what_is_no_list_is_an_error(answer: Response, text: str) -> None:
    """Nothing is taken from it."""
    async with listing({}) as (emqx, url):
        emqx.answer = answer
        with pytest.raises(FanoutError, match=text):
            await EmqxList(url, key_file=None, timeout_s=1.0 if "1 s" in text else 20.0).topics("#")


async def test_nobody_there_is_an_error() -> None:
    """The error says so."""
    async with listing({}) as (_, url):
        pass
    with pytest.raises(FanoutError, match="no answer"):
        await of(url).topics("#")


@contextlib.asynccontextmanager
async def linked(topics: dict[bytes, bytes], primary: FakePrimary) -> AsyncIterator[tuple[Running, FakeServer]]:
    """Run a link that is ready with `count` only, at a primary that sends retained messages by themselves."""
    selector = Selector("plant/#", exclude=("plant/cold/#",), prefix="site/")
    async with listing(topics) as (_, url), FakeServer(primary) as server:
        config = config_for(server.port, selector, min_evidence="count", count_url=url, snapshot_quiet_s=0.2)
        async with running(config) as link:
            yield link, server


def asynchronous(values: dict[bytes, bytes]) -> FakePrimary:
    """Return a primary whose answers overtake its retained messages."""
    return FakePrimary(retained=dict(values), system_topics=False, asynchronous=True)


async def test_a_primary_without_order_is_ready_by_its_list() -> None:
    """Two passes are not enough; the list has the same topics, without what is excluded."""
    async with linked(VALUES | OTHERS, asynchronous(VALUES | OTHERS)) as (link, server):

        def ready() -> bool:
            if server.is_connected:
                server.push()
            return link.status.ready

        await link.wait(ready)
        assert link.status.evidence is Evidence.COUNT
        assert [event["evidence"] for event in link.sink.named("complete")] == ["two-pass", "count"]


async def compared(pair: Pair, listed: set[bytes], meanwhile: Callable[[], object]) -> tuple[bool, str, int]:
    """Compare a live pair with a list; return whether it agrees, why not, and how many turns others had."""

    class Given(EmqxList):
        async def topics(self, topic_filter: str) -> set[bytes]:
            return set(listed)

    comparison = ListCheck(
        dataclasses.replace(pair.config, count_url="http://127.0.0.1/"),
        session=pair.session,
        replica=pair.replica,
        logger=silent_logger(),
    )
    comparison._listed = Given("", key_file=None, timeout_s=1)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1
            if turns == 2:
                meanwhile()

    task = asyncio.create_task(others())
    try:
        ((_, agrees),) = [each async for each in comparison.compare()]
    finally:
        task.cancel()
    return agrees, comparison.why, turns


async def test_a_long_list_is_compared_in_slices() -> None:
    """Others have their turn in between; a topic that comes or goes then needs another comparison, a value does not."""
    topics = {b"plant/%d" % number: b"x" for number in range(10_000)}
    pair = Pair(make_config(heartbeat_s=0.0), FakePrimary(retained=dict(topics)))
    pair.go_live()

    def publish(topic: bytes, payload: bytes) -> None:
        pair.primary.publish(topic, payload)
        pair.pump()

    agrees, why, turns = await compared(pair, set(topics), lambda: publish(b"plant/1", b"y"))
    assert (agrees, why) == (True, "")
    assert turns >= 3

    def swap() -> None:
        publish(b"plant/new", b"z")
        publish(b"plant/new", b"")

    agrees, why, _ = await compared(pair, set(topics), swap)
    assert (agrees, why) == (False, "topics came or went while plant/# was compared with the primary's list")
    agrees, why, _ = await compared(pair, {*topics, b"plant/more"}, lambda: None)
    assert (agrees, why) == (False, "the primary lists 10001 retained messages for plant/#, 10000 are here")


async def test_a_list_with_more_defeats_the_rung() -> None:
    """A primary that always sends the same part fools two passes, not the list: not ready, and why."""
    primary = asynchronous(VALUES)
    primary.lose = lambda number, topic: topic > b"plant/2"
    async with linked(dict(VALUES), primary) as (link, server):

        def told() -> bool:
            if server.is_connected:
                server.push()
            return "the primary lists 25 retained messages for plant/#, 13 are here" in (
                link.status.not_ready_reason or ""
            )

        await link.wait(told)
        assert link.status.state is LinkState.LIVE
        assert not link.status.ready
