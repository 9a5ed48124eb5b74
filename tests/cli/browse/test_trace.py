"""`fanout trace` over stand-in nodes."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, Self

import pytest
from typer.testing import CliRunner

from fanout.api.models import NodeStatus
from fanout.cli.app import app
from fanout.cli.asking import client
from fanout.cli.asking.client import NodeClient
from fanout.cli.browse import trace
from fanout.errors import RequestRefused
from fanout.mqtt.packet_types import PacketType
from fanout.mqtt.properties import Properties, encode_properties
from fanout.node.browse.identity import traceparent_of
from fanout.node.browse.streams import MESSAGES_MAX
from fanout.replica.update import PROPERTIES, Stamp, Update
from tests.api.stand_in import StandInNode, live_link, pool_member, serving
from tests.node.browse.pieces import Node, value

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def message(payload: bytes, *, sequence: int = 1, parent: str = PARENT) -> Update:
    """Return a message with a stamp and a User Property."""
    block = encode_properties(Properties(user_property=(("traceparent", parent),)), packet=PacketType.PUBLISH)
    topic, _, qos, retain, _, received, expires, digest, _ = value("plant/s1", payload)
    stamp = Stamp("hub", 1_700_000_000_000_000, sequence, 1_700_000_000_000_000)
    return (topic, payload, qos, retain, block[1:], received, expires, digest, stamp)


def node(name: str, *, above: str = "", **changes: Any) -> tuple[StandInNode, Node]:
    """Return a stand-in that holds a topic, and what delivers its messages."""
    topics = Node(["plant/s1"])
    link = live_link().model_copy(update={"paths_above": (above,) if above else ()})
    shown = StandInNode(link)
    shown.node, shown.browser, shown.members = name, topics.browser, ()
    for key, changed in changes.items():
        setattr(shown, key, changed)
    return shown, topics


def _set(event: threading.Event, _: object) -> None:
    event.set()


@contextmanager
def busy(*nodes: Node, parent: str = PARENT, at_once: int = 1) -> Iterator[None]:
    """Deliver one message after another at these nodes, each at all of them, from the time that they are looked at.

    Each is the last one of so many at once.
    """
    ended = threading.Event()
    looked_at = [threading.Event() for _ in nodes]
    for node, event in zip(nodes, looked_at, strict=True):
        node.observed = partial(_set, event)

    def publish() -> None:
        for event in looked_at:
            while not event.wait(0.05):
                if ended.is_set():
                    return
        for sequence in count(1):
            for node in nodes:
                found = message(b"\x1b%d" % sequence, sequence=sequence, parent=parent)
                node.loop.call_soon_threadsafe(node.publish, *[found] * at_once)
            if ended.wait(0.05):
                return

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def traced(
    runner: CliRunner,
    nodes: list[tuple[StandInNode, Node]],
    *further: str,
    asked: int = 99,
    busy_nodes: int = 99,
    at_once: int = 1,
) -> Any:
    """Trace a topic through nodes of which the first `asked` are named; addresses of members are their numbers."""
    with ExitStack() as stack:
        urls = [stack.enter_context(serving(shown)) for shown, _ in nodes]
        for shown, _ in nodes:
            shown.members = tuple(
                one.model_copy(update={"url": urls[int(one.url)]}) if one.url is not None and one.url.isdigit() else one
                for one in shown.members
            )
        with busy(*(topics for _, topics in nodes[:busy_nodes]), at_once=at_once):
            answer = runner.invoke(app, ["trace", "plant/s1", *urls[:asked], *further, "--json"])
        for _, topics in nodes:  # ends the streams that the command would end with its process
            topics.loop.call_soon_threadsafe(topics.browser.close)
        return answer


def test_a_message_is_followed_through_a_chain(runner: CliRunner) -> None:
    """By its stamp; a node is measured from the one above it, with the uncertainty of both clocks."""
    nodes = [node("a", above="hub"), node("hub"), node("b", above="hub > a")]
    answer = traced(runner, nodes, "--within", "30")
    assert answer.exit_code == 0, answer.output
    document = json.loads(answer.stdout)
    assert {hop["node"]: hop["above"] for hop in document["hops"]} == {"a": "hub", "hub": None, "b": "a"}
    assert document["not_asked"] == []
    assert len({hop["message"]["stamp"]["sequence"] for hop in document["hops"]}) == 1
    for hop in document["hops"]:
        assert hop["message"]["traceparent"] == PARENT
        assert hop["uncertainty_seconds"] > 0
    named = {hop["node"]: hop["since"] for hop in document["hops"][1:]}
    assert named.get("b", "a") == "a"
    assert named.get("a", "hub") == "hub"


def test_nodes_without_the_message_are_named(runner: CliRunner) -> None:
    """And the command answers 1; a node that is above and was not asked is named too."""
    nodes = [node("a", above="hub"), node("b", above="hub")]
    answer = traced(runner, nodes, "--within", "0.5", busy_nodes=1)
    assert answer.exit_code == 1
    document = json.loads(answer.stdout)
    assert [(hop["node"], hop["message"] is None) for hop in document["hops"]] == [("a", False), ("b", True)]
    assert document["not_asked"] == ["hub: it is above these; give its URL too"]


def test_members_of_the_pool_are_asked(runner: CliRunner) -> None:
    """At the addresses that the pool names; one that cannot be reached is left out, with the reason."""
    members = (
        pool_member("a", is_self=True),
        pool_member("b", url="1"),
        pool_member("c", url="http://127.0.0.1:1"),
        pool_member("d"),
    )
    nodes = [node("a", members=members), node("b")]
    answer = traced(runner, nodes, "--within", "30", asked=1)
    assert answer.exit_code == 0, answer.output
    document = json.loads(answer.stdout)
    assert {hop["node"] for hop in document["hops"]} == {"a", "b"}
    assert document["not_asked"] == [
        "d: its HTTP address is not known",
        "c: nothing listens at http://127.0.0.1:1 (connection refused)",
    ]


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the addresses that are asked for the status of a node, while they are asked."""
    asked: list[str] = []
    status = NodeClient.status

    def noted(self: NodeClient) -> NodeStatus:
        asked.append(self.url)
        return status(self)

    monkeypatch.setattr(NodeClient, "status", noted)
    return asked


def test_each_member_is_asked_once(runner: CliRunner, addresses: list[str]) -> None:
    """Also one that several members name, and one of them that does not answer."""
    members = [pool_member(name, url=str(at)) for at, name in enumerate("abc")]
    members.append(pool_member("d", url="http://127.0.0.1:1"))
    nodes = [
        node(name, members=tuple(one.model_copy(update={"is_self": one.node == name}) for one in members))
        for name in "abc"
    ]
    answer = traced(runner, nodes, "--within", "30", asked=1)
    assert answer.exit_code == 0, answer.output
    assert len(addresses) == len(set(addresses)) == 4


def test_members_wait_for_their_answers_together(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that some that do not answer take the time of one."""
    barrier = threading.Barrier(3)
    status = NodeClient.status

    def all_asked(self: NodeClient) -> NodeStatus:
        if self.url.endswith((":1", ":2", ":3")):
            barrier.wait(30)  # broken, and hence an error that is none of a node, if one is asked after another
        return status(self)

    monkeypatch.setattr(NodeClient, "status", all_asked)
    members = [pool_member("a", is_self=True)]
    members += [pool_member(name, url=f"http://127.0.0.1:{port}") for port, name in enumerate("bcd", 1)]
    answer = traced(runner, [node("a", members=tuple(members))], "--within", "30", asked=1)
    assert answer.exit_code == 0, answer.output
    assert [one[:2] for one in json.loads(answer.stdout)["not_asked"]] == ["b:", "c:", "d:"]


def test_messages_that_a_stream_leaves_out_are_told(runner: CliRunner) -> None:
    """More of one topic than a stream carries: the newest is followed."""
    answer = traced(runner, [node("a")], "--within", "30", at_once=MESSAGES_MAX + 100)
    assert answer.exit_code == 0, answer.output
    (hop,) = json.loads(answer.stdout)["hops"]
    assert hop["conflated"] >= MESSAGES_MAX


def test_members_beyond_the_bound_are_named(
    runner: CliRunner, addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So are those of which a member does not tell the pool."""
    monkeypatch.setattr(trace, "_NODES_MAX", 2)

    def refuse() -> NoReturn:
        raise RequestRefused("many requests wait", hint="Ask again")

    busy_one, _ = node("b", members=(pool_member("b", is_self=True),), pool=refuse)
    with serving(busy_one) as url:
        members = (pool_member("a", is_self=True), pool_member("b", url=url), pool_member("c", url="http://c"))
        answer = traced(runner, [node("a", members=members)], "--within", "30", asked=1)
    assert answer.exit_code == 0, answer.output
    left_out = json.loads(answer.stdout)["not_asked"]
    assert [one.split(": ")[0] for one in left_out] == ["c", "b"]
    assert left_out[1] == "b: many requests wait"
    assert len(addresses) == 2


@pytest.mark.parametrize("is_live", [False, True])
def test_the_wait_bounds_streams_that_are_not_live(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_live: bool
) -> None:
    """A member without TLS does not get the token that was meant for https."""
    shown, _ = node("a", members=(pool_member("a", is_self=True), pool_member("b", url="http://b:8080")))
    asked, ended = [], threading.Event()

    class Told:
        """Answers without a connection."""

        def __init__(self, url: str, token_file: Path) -> None:
            asked.append((url, token_file))

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def __getattr__(self, name: str) -> Any:
            return getattr(shown, name)

        def stream(self, *_: object) -> Iterator[tuple[str, str, Any]]:
            if is_live:
                yield "live", "", {}
            ended.wait(60)

        def topic(self, topic: str) -> SimpleNamespace:
            return SimpleNamespace(readers=0)

    monkeypatch.setattr(client, "NodeClient", Told)
    token = tmp_path / "token"
    token.touch()
    answer = runner.invoke(
        app, ["trace", "plant/s1", "https://a", "--wait", "0.2", "--json", "--token-file", str(token)]
    )
    ended.set()
    assert answer.exit_code == 1, answer.output
    assert ("Waits for a message" in answer.stderr) == is_live
    assert set(asked) == {("https://a", token)}
    left_out = json.loads(answer.stdout)["not_asked"]
    assert left_out[0] == "b: a token is not sent there: it has no TLS"


def test_the_way_is_a_table(runner: CliRunner) -> None:
    """With the value, its identity and its trace, and the sessions that subscribe to it."""
    shown, topics = node("hub")
    with serving(shown) as url:
        with busy(topics):
            answer = runner.invoke(app, ["trace", "plant/s1", url])
        silent = runner.invoke(app, ["trace", "plant/s2", "--url", url, "--wait", "0"])
        wrong = runner.invoke(app, ["trace", "plant/#", url])
    assert answer.exit_code == 0, answer.output
    lines = [" ".join(line.split()) for line in answer.stdout.splitlines()]
    assert re.fullmatch(r"plant/s1 \\x1b[0-9]+", lines[0])
    assert re.fullmatch(r"number [0-9,]+ of hub, epoch 1700000000000000", lines[1])
    assert lines[2:5] == [f"traceparent {PARENT}", "", "NODE RECEIVED LAG ± SINCE READERS"]
    assert lines[5].startswith("hub ")
    assert answer.stderr == "Waits for a message of plant/s1 at hub\n"
    assert (silent.exit_code, silent.stdout) == (1, "no message of plant/s2 came within 0 s\n")
    assert wrong.exit_code == 2


@pytest.mark.parametrize("given", ["00-" + "0" * 32 + "-b7ad6b7169203331-01", "ff" + PARENT[2:], PARENT.upper(), ""])
def test_what_is_no_traceparent_is_not_shown(given: str) -> None:
    """W3C Trace Context 3.2: zeros and the version ff are invalid, and letters are small."""
    properties = message(b"x", parent=given)[PROPERTIES]
    assert traceparent_of(properties) is None
    assert traceparent_of(message(b"x")[PROPERTIES]) == PARENT
    assert traceparent_of(b"") is None
