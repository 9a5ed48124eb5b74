"""Chains of fanout nodes: a `fanout primary`, a secondary of it, and a secondary of that; and their stamps."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx

from tests.support.clients import publish_properties, subscriber
from tests.support.mosquitto import publish_all, publisher
from tests.support.network import Proxy
from tests.support.nodes import QUICK, LiveNode, Nodes, link, read_events, read_updates, selector
from tests.support.raw_reader import read_retained
from tests.support.waiting import wait_until_blocking


def chain(nodes: Nodes, topic_filter: str, *, storage: str = "") -> tuple[LiveNode, LiveNode, LiveNode]:
    """Return a primary (with a section of its own), a secondary A of it, and a secondary B of A; none is started."""
    settings = QUICK + "heartbeat_s = 1.0\n"
    hub = nodes.primary(settings=storage)
    a = nodes.secondary(link(hub.port, selector(topic_filter), settings=settings), name="a")
    b = nodes.secondary(link(a.port, selector(topic_filter), settings=settings), name="b")
    return hub, a, b


def lag_is_measured(node: LiveNode) -> bool:
    """Return whether a node knows the lag of its link."""
    (lag,) = node.document("/v1/lag")["links"]
    return bool(lag["basis"] == "heartbeat")


def stamped(node: LiveNode) -> list[tuple[Any, ...]]:
    """Return identity and content of every row of a stopped node's log, in order."""
    return [
        (row["stamp_primary"], row["stamp_epoch"], row["sequence"], row["topic"], row["digest"])
        for row in read_updates(node.log_directory)
        if row["topic"].startswith("plant/")
    ]


def test_chain_mirrors_with_stamps(nodes: Nodes) -> None:
    """T19, and done when: a `fanout primary` is the primary of a secondary; its stamps reach the log of every hop.

    It stamps everything that is published at it, from 1 without gaps, over publishers, QoS and topics.
    Ordinary MQTT 5 clients never see one, at any hop, and get the properties that were published. Each hop measures
    its own lag.
    """
    hub, a, b = chain(nodes, "plant/#")
    hub.started()
    sent = publish_properties(ContentType="text/plain", UserProperty=[("unit", "K")])
    with publisher(hub.port) as client:
        publish_all(client, [(f"plant/{number}", b"%d" % number) for number in range(50)], properties=sent)
        a.started()
        b.started()
        for node in (a, b):
            (state,) = node.probe()[1]["links"]
            assert (state["topics"], state["evidence"]) == (50, "manifest")
        with (
            subscriber(hub.port, "plant/#", qos=1) as at_hub,
            subscriber(a.port, "plant/#", qos=1) as at_a,
            subscriber(b.port, "plant/#", qos=1) as at_b,
        ):
            for inbox in (at_hub, at_a, at_b):
                inbox.wait(50)
            for qos in (0, 1, 2):
                publish_all(client, [(f"plant/{qos}", b"live %d" % qos)], qos=qos, properties=sent)
            publish_all(client, [("plant/49", b"")])
            publish_all(client, [("plant/end", b"")], retain=False)
            for inbox in (at_hub, at_a, at_b):
                inbox.wait(55)
                live = [(one.topic, one.payload) for one in inbox.messages[50:]]
                assert live == [
                    *((f"plant/{qos}", b"live %d" % qos) for qos in range(3)),
                    ("plant/49", b""),
                    ("plant/end", b""),
                ]
                properties = [one.properties for one in inbox.messages[:53]]
                assert all(one == sent.json() for one in properties)  # type: ignore[no-untyped-call]  # paho
                assert [one.properties for one in inbox.messages[53:]] == [{}, {}]
    held = {f"plant/{number}": b"live %d" % number if number < 3 else b"%d" % number for number in range(49)}
    assert (
        read_retained(hub.port, "plant/#")
        == read_retained(a.port, "plant/#")
        == read_retained(b.port, "plant/#")
        == held
    )
    assert len({node.link_status()["selectors"][0]["digest"] for node in (a, b)}) == 1
    wait_until_blocking(lambda: lag_is_measured(a) and lag_is_measured(b), what="a lag at both hops")
    for node in (b, a, hub):
        assert node.stop() == 0

    everything = read_updates(hub.log_directory)
    assert [row["sequence"] for row in everything] == list(range(1, len(everything) + 1))
    assert {(row["stamp_primary"], row["stamp_epoch"]) for row in everything} == {("hub", everything[0]["node_epoch"])}
    published = stamped(hub)
    for node in (a, b):
        assert sorted(stamped(node)) == sorted(published)
        assert stamped(node)[50:] == published[50:]
        rows = [row for row in read_updates(node.log_directory) if row["topic"].startswith("plant/")]
        assert {row["phase"] for row in rows[:50]} == {1}
        assert {row["phase"] for row in rows[50:]} == {0}
        assert all(row["origin"] <= row["applied"] for row in rows)
        assert {row["flags"] for row in rows} == {0}
        # What A publishes at the primary, and B at A, is nobody's topic further down.
        assert {row["topic"].partition("/")[0] for row in read_updates(node.log_directory) if row["link"]} == {"plant"}
        assert "primary" in {one["link"] for one in read_events(node.log_directory) if one["event"] == "heartbeat"}


def test_round_number_of_topics_is_proved_over_mqtt_3_1_1(nodes: Nodes) -> None:
    """A limit of the primary could be 100, but a fanout node has none, and is known although CONNACK cannot say so."""
    hub = nodes.primary().started()
    with publisher(hub.port) as client:
        publish_all(client, [(f"plant/{number}", b"1") for number in range(100)])
    settings = 'version = 4\nretain_policy = "bridge"\n' + QUICK
    old = nodes.secondary(link(hub.port, selector("plant/#"), settings=settings), name="old").started()
    (state,) = old.probe()[1]["links"]
    assert (state["ready"], state["topics"], state["evidence"]) == (True, 100, "barrier")
    old.stop()
    (live,) = [json.loads(row["detail"]) for row in read_events(old.log_directory) if row["state"] == "live"]
    assert live == {"primary": f"mqtt://127.0.0.1:{hub.port}", "primary_node": "hub"}, "reports pair the two by it"


_READ_S_MAX = 0.5
"""A read that takes longer says nothing: the leaf may have been not ready within it, which takes a restart above."""


@contextmanager
def read_all_the_time(
    leaves: Sequence[LiveNode], found: list[str], *, held: dict[str, bytes]
) -> Iterator[Counter[str]]:
    """Read every leaf while it is ready; what a reader got there that is not `held` goes to `found`.

    Gives, by the name of a leaf, how often it was read; with "not " in front, how often it said that it is not ready.
    """
    counts: Counter[str] = Counter()
    ended = threading.Event()

    def read(leaf: LiveNode) -> None:
        while not ended.wait(0.3):
            try:
                if not leaf.ready:
                    counts[f"not {leaf.name}"] += 1
                    continue
                begun = time.monotonic()
                values = read_retained(leaf.port, "plant/#")
                took_s = time.monotonic() - begun
                if took_s > _READ_S_MAX or leaf.probe()[0] != 200:
                    continue
            except (httpx.TransportError, OSError, AssertionError):  # it was killed
                continue
            counts[leaf.name] += 1
            if values != held:
                found.append(f"{leaf.name}: {sorted(values)}")

    with ThreadPoolExecutor(len(leaves)) as pool:
        reading = [pool.submit(read, leaf) for leaf in leaves]
        try:
            yield counts
        finally:
            ended.set()
            for one in reading:
                one.result(60)


def test_tree_heals_when_any_node_is_killed(nodes: Nodes) -> None:
    """T19: a tree three deep with two branches: whichever node dies, those below it are not ready, and nobody else.

    Each is ready again only when the node above it is, and no reader at a ready leaf ever gets less than everything.
    """
    settings = QUICK + "heartbeat_s = 20.0\n"  # a busy machine is no silent primary; a kill closes connections
    hub = nodes.primary(settings='[retained]\nstorage = "disc"\n', log=False)
    above: dict[LiveNode, LiveNode] = {}

    def below(node: LiveNode, name: str) -> LiveNode:
        made = nodes.secondary(link(node.port, selector("plant/#"), settings=settings), name=name, log=False)
        above[made] = node
        return made

    middle = [below(hub, name) for name in "ab"]
    leaves = [below(node, f"{node.name}1") for node in middle]
    tree = [hub, *middle, *leaves]

    def under(node: LiveNode) -> list[LiveNode]:
        return [one for one in middle + leaves if node in (above[one], above.get(above[one]))]

    hub.started()
    held = {f"plant/{number}": b"%d" % number for number in range(20)}
    with publisher(hub.port) as client:
        publish_all(client, list(held.items()))
    for node in (*middle, *leaves):
        node.start()
    for node in tree:
        node.wait_until_ready()
    assert [leaf.link_status()["paths_above"] for leaf in leaves] == [["hub > a"], ["hub > b"]]
    assert [node.link_status()["hops"] for node in (middle[0], leaves[0])] == [1, 2]
    found: list[str] = []
    with read_all_the_time(leaves, found, held=held) as counts:
        for killed in (hub, middle[0], leaves[0]):
            before = counts.copy()
            killed.kill()
            for node in under(killed):
                wait_until_blocking(lambda node=node: not node.ready, what=f"503 at {node.name}")  # type: ignore[misc]
            killed.start()
            for node in (one for one in tree if one is killed or one in under(killed)):
                node.wait_until_ready()
                assert node is hub or above[node].ready, f"{node.name} is ready before the node above it"
            afterwards = counts.copy()
            for leaf in leaves:
                read = partial(lambda name, least: counts[name] > least, leaf.name, afterwards[leaf.name])
                wait_until_blocking(read, what=f"another read of {leaf.name}")
                if leaf is not killed and leaf not in under(killed):
                    assert counts[f"not {leaf.name}"] == before[f"not {leaf.name}"]
    assert found == []


async def test_lag_has_items_while_the_way_is_held_up(nodes: Nodes) -> None:
    """The primary goes on while nothing comes from it: it is asked how far it has counted, on another connection."""
    hub = await asyncio.to_thread(nodes.primary(log=False).started)
    async with Proxy(hub.port) as proxy:
        node = nodes.secondary(link(proxy.port, selector("plant/#"), settings=QUICK + "heartbeat_s = 2\n"), log=False)
        await asyncio.to_thread(node.started)

        def items() -> int | None:
            (lag,) = node.document("/v1/lag")["links"]
            behind = lag["items_behind"]
            return None if behind is None else int(behind)

        await asyncio.to_thread(wait_until_blocking, lambda: items() == 0, what="nothing behind")
        proxy.pause_present()

        def publish() -> None:
            with publisher(hub.port) as client:
                publish_all(client, [(f"plant/{number}", b"x") for number in range(500)])

        await asyncio.to_thread(publish)
        await asyncio.to_thread(wait_until_blocking, lambda: (items() or 0) >= 500, what="500 behind")
        proxy.resume()
        await asyncio.to_thread(wait_until_blocking, lambda: items() == 0, what="nothing behind again")
        assert "fanout_link_items_behind" in (await asyncio.to_thread(node.get, "/metrics")).text


def test_cycle_is_refused_with_its_path(nodes: Nodes) -> None:
    """A node that would get its own data back does not become ready, and says which way they would come."""
    a, b = nodes.secondary(name="a"), nodes.secondary(name="b")
    for node, other in ((a, b), (b, a)):
        node.links = link(other.port, selector("plant/#"), settings=QUICK)
        node.start()
    told = {"the links form a cycle: a > b > a", "the links form a cycle: b > a > b"}

    def refused() -> bool:
        return bool(told & {node.link_status()["last_error"] for node in (a, b)})

    wait_until_blocking(refused, what="the refusal")
    assert not a.ready
    assert not b.ready
