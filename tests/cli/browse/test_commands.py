"""`fanout topics`, `fanout events` and `fanout top`."""

from __future__ import annotations

import json
import threading

import pytest
from typer.testing import CliRunner

from fanout.cli.app import app
from tests.api.stand_in import StandInNode, ready_node, serving
from tests.node.browse.pieces import Node, value


@pytest.fixture
def topics() -> Node:
    """Return topics of a link and of a node's own."""
    node = Node(["plant/s1", "plant/s2"], own=["own/\x1b[31mred"])
    node.publish(value("plant/s2", b"\xff\x00"), value("plant/s3", b'{"v": 1}'))
    return node


def with_topics(topics: Node) -> StandInNode:
    """Return a node that holds topics."""
    node = ready_node()
    node.browser = topics.browser
    return node


def test_a_table_of_topics(runner: CliRunner, topics: Node) -> None:
    """Values are shown by their form, names of strangers escaped, and the rest is told."""
    with serving(with_topics(topics)) as url:
        answer = runner.invoke(app, ["topics", "--url", url, "--limit", "3"])
        rest = runner.invoke(app, ["topics", "plant/#", "--url", url, "--after", "plant/s2"])
    assert answer.exit_code == 0
    assert [" ".join(line.split()) for line in answer.stdout.splitlines()] == [
        "TOPIC VALUE BYTES RECEIVED LINK",
        "own/\\x1b[31mred v 1 B 2023-11-14 22:13:20 -",
        "plant/s1 v 1 B 2023-11-14 22:13:20 link0",
        "plant/s2 base64:/wA= 2 B 2023-11-14 22:13:20 link0",
        "",
        "3 of 4 topics",
        "more: --after plant/s2",
    ]
    assert rest.stdout.splitlines()[-1] == "1 of 4 topics"


def test_values_and_json(runner: CliRunner, topics: Node) -> None:
    """For scripts: a line each, or the node's document; pages are joined."""
    with serving(with_topics(topics)) as url:
        values = runner.invoke(app, ["topics", "plant/s3", "--value", "--url", url])
        document = runner.invoke(app, ["topics", "--json", "--limit", "2000", "--url", url])
        wrong = runner.invoke(app, ["topics", "plant#", "--url", url])
    assert values.stdout == '{"v": 1}\n'
    assert len(json.loads(document.stdout)["topics"]) == 4
    assert wrong.exit_code == 5
    assert "filter must be a Topic Filter" in wrong.stderr


def test_watching_follows_messages(runner: CliRunner, topics: Node) -> None:
    """The retained values come first, then each message, until the node ends the stream."""

    def go_on() -> None:
        topics.publish(value("plant/s1", b"new"))
        topics.browser.note("state", link="plant", state="stalled")
        topics.loop.call_later(0.5, topics.browser.close)

    topics.observed = lambda loop: loop.call_later(0.5, go_on)
    with serving(with_topics(topics)) as url:
        answer = runner.invoke(app, ["topics", "plant/+", "--watch", "--url", url])
    assert answer.exit_code == 0, answer.stderr
    lines = [line.partition("  ")[2] or line for line in answer.stdout.splitlines()]
    assert lines == [
        "plant/s1  v",
        "plant/s2  base64:/wA=",
        'plant/s3  {"v": 1}',
        "-- link plant is stalled",
        "plant/s1  new",
        "-- the node ended the stream: the node stops",
    ]


def test_events_are_sentences(runner: CliRunner, topics: Node) -> None:
    """The newest stands last; --follow goes on with new ones."""
    browser = topics.browser
    browser.note("start")
    browser.note("state", link="plant", state="live")
    browser.note("heartbeat", link="plant")
    browser.note("state", link="plant", state="stalled", detail="heartbeats do not come back")
    browser.note("alarm", link="plant", detail=json.dumps({"message": "audit ended", "reason": "sample"}))
    audit = {"checked": 1000, "changed": 2, "removed": 1, "kept": 0}
    browser.note("audit", link="plant", detail='{"checked": 10')  # the log cuts long details
    browser.note("audit", link="plant", detail=json.dumps(audit))
    for kind, facts in (
        ("audit", {"checked": 1}),
        ("unconfirmed", {"unconfirmed": 1}),
        ("moved", {"came": 1, "went": 2}),
        ("skipped", {"messages": 1, "reason": "topic_too_long"}),
    ):
        browser.note(kind, link="plant", detail=json.dumps(facts))
    with serving(with_topics(topics)) as url:
        answer = runner.invoke(app, ["events", "--url", url])
        threading.Timer(0.5, browser.close).start()
        followed = runner.invoke(app, ["events", "--follow", "--json", "--limit", "1", "--url", url])
    texts = [line[21:] for line in answer.stdout.splitlines()]
    assert texts == [
        "The node started",
        "Link plant is live",
        "Link plant is stalled: heartbeats do not come back",
        'Audit: {"checked": 10',
        "Link plant was compared with the primary, 1,000 topics: 2 repaired, 1 removed, 0 kept without confirmation",
        "Link plant was compared with the primary, 1 topic: all equal",
        "Link plant has 1 topic that the primary did not send in the last comparison",
        "1 session came from another member of the pool and 2 sessions went to another member of the pool",
        "Link plant skipped 1 message: topic too long",
    ]
    assert [json.loads(line)["id"] for line in followed.stdout.splitlines()] == [9]


def test_top_shows_links_topics_and_clients(runner: CliRunner, topics: Node) -> None:
    """A busy topic comes with its rate once the first interval has ended."""

    def busy() -> None:
        topics.publish(*(value("plant/s1") for _ in range(50)))

    topics.observed = lambda loop: loop.call_soon(busy)
    with serving(with_topics(topics)) as url:
        answer = runner.invoke(app, ["top", "--once", "--url", url])
    assert answer.exit_code == 0, answer.stderr
    text = answer.stdout
    assert text.startswith("edge-1 is ready, ")
    assert any(line.startswith("plant/s1") for line in text.splitlines())
    assert "app-1" in text
