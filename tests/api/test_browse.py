"""Endpoints for topics, live values and events, over a real socket."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import Message

from fanout.api.app import create_app
from tests.api.stand_in import StandInNode
from tests.node.browse.pieces import Node, value
from tests.replog.rows import ManualClock
from tests.support.waiting import wait_until


@pytest.fixture
def topics(node: StandInNode) -> Node:
    """Let the node hold topics."""
    topics = Node(["plant/s1", "plant/s2"], own=["/own//x", "a%2Fb"])
    node.browser = topics.browser
    return topics


async def test_pages_and_one_topic(topics: Node, http: httpx.AsyncClient) -> None:
    """A topic's name stands in the path as it is, or escaped."""
    page = (await http.get("/v1/topics", params={"filter": "plant/+", "limit": 1})).json()
    assert [one["topic"] for one in page["topics"]] == ["plant/s1"]
    assert (page["next"], page["held"]) == ("plant/s1", 4)
    for path, name in (("plant/s2", "plant/s2"), ("%2Fown%2F%2Fx", "/own//x"), ("/own//x", "/own//x")):
        answer = (await http.get(f"/v1/topics/{path}")).json()
        assert (answer["topic"], answer["held"]["value"]) == (name, "v")
    assert (await http.get("/v1/topics/a%252Fb")).json()["held"]["topic"] == "a%2Fb"
    tree = (await http.get("/v1/tree", params={"prefix": "plant"})).json()
    assert [(one["name"], one["topics"]) for one in tree["children"]] == [("s1", 1), ("s2", 1)]


async def test_the_busiest_topics_are_series_of_prometheus(node: StandInNode, http: httpx.AsyncClient) -> None:
    """No more of them than asked for; names of strangers neither break the text nor make one series twice."""
    clock = ManualClock()
    topics = Node([], clock=clock)
    node.browser = topics.browser

    async def series(count: int) -> list[tuple[str, float]]:
        answer = (await http.get("/v1/top/metrics", params={"count": count})).raise_for_status()
        assert answer.headers["content-type"].startswith("text/plain")
        [family] = text_string_to_metric_families(answer.text)
        return [(sample.labels["topic"], sample.value) for sample in family.samples]

    assert await series(10) == []
    long = "x" * 300
    topics.publish(*map(value, ['a"\x07b'] * 30 + ["b"] * 20 + [f"{long}1", f"{long}2"] * 5 + ["c"]))
    clock.advance(10)
    assert await series(2) == [('a"\\x07b', 3), ("b", 2)]
    assert await series(5) == [('a"\\x07b', 3), ("b", 2), (f"{'x' * 200}… (301 characters)", 1), ("c", 0.1)]


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/v1/topics?filter=a%23", "filter must be a Topic Filter, and not of a Shared Subscription"),
        ("/v1/topics?filter=$share/g/a", "filter must be a Topic Filter, and not of a Shared Subscription"),
        ("/v1/topics?filter=", "filter must be a Topic Filter, and not of a Shared Subscription"),
        ("/v1/topics?limit=1001", "limit must be a whole number from 1 to 1000"),
        ("/v1/topics?before=x&limit=x", "limit must be a whole number from 1 to 1000"),
        ("/v1/topics?value_bytes=-1", "value_bytes must be a number of bytes, greater than or equal to 0"),
        ("/v1/stream?value_bytes=4097", "value_bytes must be a number of bytes, less than or equal to 4096"),
        ("/v1/topics/a/%2B", "topic must be a name without wildcards, and not empty"),
        ("/v1/topics?search=" + "x" * 300, "search must have 256 characters at most"),
        ("/v1/stream?filter=a/%23/b", "filter must be a Topic Filter, and not of a Shared Subscription"),
    ],
)
async def test_wrong_parameters_are_told(topics: Node, http: httpx.AsyncClient, path: str, error: str) -> None:
    """The answer names the parameter."""
    answer = await http.get(path)
    assert (answer.status_code, answer.json()["error"]) == (422, error)


async def test_a_burst_does_not_open_too_many_streams(topics: Node, node: StandInNode) -> None:
    """Readers that come in one turn of the event loop are counted one by one; places come back."""
    app = create_app(node, streams_max=2)
    scope = {"type": "http", "method": "GET", "path": "/v1/stream", "query_string": b"", "headers": []}
    codes: list[int] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            codes.append(message["status"])

    for _ in range(2):
        codes.clear()
        asked = [asyncio.create_task(app(dict(scope), receive, send)) for _ in range(5)]
        await wait_until(lambda: len(codes) == 5)
        assert sorted(codes) == [200, 200, 429, 429, 429]
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def test_a_stream_is_server_sent_events(topics: Node, http: httpx.AsyncClient) -> None:
    """Retained values, then live ones; the observation ends after the reader has gone."""
    found = []
    async with asyncio.timeout(10), http.stream("GET", "/v1/stream?filter=plant/%23") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        async for line in answer.aiter_lines():
            if line == "event: live":
                topics.publish(value("plant/s3", b"\x1b"))
            if line.startswith("data: "):
                found.append(json.loads(line[6:]))
                if found[-1].get("topic") == "plant/s3":
                    break
    assert [one["topic"] for one in found if "topic" in one] == ["plant/s1", "plant/s2", "plant/s3"]


async def test_events_come_as_a_page_or_as_a_stream(topics: Node, http: httpx.AsyncClient) -> None:
    """A page has the newest first; a stream begins after the event that its reader knows of this process."""
    for link in ("a", "b", "c"):
        topics.browser.note("state", link=link, state="live")
    page = (await http.get("/v1/events?limit=2")).json()
    assert ([one["id"] for one in page["events"]], page["next"]) == ([3, 2], 2)
    assert [one["id"] for one in (await http.get("/v1/events?before=2")).json()["events"]] == [1]
    process = page["process"]
    for known, first in ((f"{process}-2", 3), ("another-2", 1)):
        headers = {"Accept": "text/event-stream", "Last-Event-ID": known}
        async with asyncio.timeout(30), http.stream("GET", "/v1/events", headers=headers) as answer:
            lines = answer.aiter_lines()
            assert await anext(lines) == f"id: {process}-{first}"
            assert await anext(lines) == "event: event"
            assert json.loads((await anext(lines))[6:])["text"] == f"Link {'abc'[first - 1]} is live"


async def test_stale_values_are_told(topics: Node, http: httpx.AsyncClient) -> None:
    """The age of values stands in a header of each answer about them."""
    assert "fanout-stale-seconds" not in (await http.get("/v1/topics")).headers
    topics.stale_s = 12.3
    for path in ("/v1/topics", "/v1/tree", "/v1/topics/plant/s1", "/v1/stream?filter=none"):
        async with http.stream("GET", path) as answer:
            assert answer.headers["fanout-stale-seconds"] == "12"


async def test_a_reader_stays_while_it_reads(
    topics: Node, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit of an answer is for one that is not read, not for a stream that goes on."""
    monkeypatch.setattr("fanout.api.http_connection._ANSWER_SECONDS", 1.0)
    payload = b"x" * 4000
    async with asyncio.timeout(20), http.stream("GET", "/v1/stream?filter=plant/%23") as answer:
        lines, seen = answer.aiter_lines(), 0
        end_s = asyncio.get_running_loop().time() + 2.0
        while asyncio.get_running_loop().time() < end_s:
            topics.publish(*(value(f"plant/{number}", payload) for number in range(100)))
            target = seen + 100
            while seen < target:
                seen += (await anext(lines)).startswith("data: ")
    assert seen >= 300
