"""Chains of fanout nodes: a `fanout primary`, a secondary of it, and a secondary of that; and their stamps."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.clients import publish_properties, subscriber
from tests.support.mosquitto import publish_all, publisher
from tests.support.nodes import QUICK, LiveNode, Nodes, link, read_events, read_updates, selector, watched
from tests.support.raw_reader import RawReader
from tests.support.waiting import wait_until_blocking


def chain(nodes: Nodes, *, settings: str = QUICK) -> tuple[LiveNode, LiveNode, LiveNode]:
    """Return a primary, a secondary A of it, and a secondary B of A; none is started."""
    hub = nodes.primary()
    a = nodes.secondary(link(hub.port, selector("plant/#"), settings=settings), name="a")
    b = nodes.secondary(link(a.port, selector("plant/#"), settings=settings), name="b")
    return hub, a, b


def retained(node: LiveNode) -> dict[str, bytes]:
    """Return what a new subscriber reads below `plant/`."""
    with RawReader(node.port) as reader:
        reader.subscribe("plant/#")
    return reader.values


def stamped(node: LiveNode) -> list[tuple[Any, ...]]:
    """Return identity and content of every row of a stopped node's log, in order."""
    return [
        (row["stamp_primary"], row["stamp_epoch"], row["sequence"], row["topic"], row["digest"])
        for row in read_updates(node.log_directory)
        if row["topic"].startswith("plant/")
    ]


def test_chain_mirrors_with_stamps(nodes: Nodes) -> None:
    """T19, and done when: a `fanout primary` is the primary of a secondary; its stamps reach the log of every hop.

    Ordinary MQTT 5 clients never see one, at any hop, and get the properties that were published.
    """
    hub, a, b = chain(nodes)
    hub.started()
    sent = publish_properties(ContentType="text/plain", UserProperty=[("unit", "K")])
    with publisher(hub.port) as client:
        publish_all(client, [(f"plant/{number}", b"%d" % number) for number in range(50)], properties=sent)
        a.started()
        b.started()
        for node in (a, b):
            (state,) = node.probe()[1]["links"]
            assert (state["topics"], state["evidence"]) == (50, "marker")
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
    assert retained(hub) == retained(a) == retained(b) == held
    assert len({node.link_status()["selectors"][0]["digest"] for node in (a, b)}) == 1
    for node in (b, a, hub):
        assert node.stop() == 0

    published = stamped(hub)
    assert {row[0] for row in published} == {"hub"}
    sequences = [row[2] for row in published]
    assert sequences == sorted(set(sequences))
    for node in (a, b):
        assert sorted(stamped(node)) == sorted(published)
        assert stamped(node)[50:] == published[50:]
        rows = [row for row in read_updates(node.log_directory) if row["topic"].startswith("plant/")]
        assert {row["phase"] for row in rows[:50]} == {1}
        assert {row["phase"] for row in rows[50:]} == {0}
        assert all(row["origin"] <= row["applied"] for row in rows)
        assert {row["flags"] for row in rows} == {0}


def test_chain_is_repaired_from_the_top(nodes: Nodes) -> None:
    """T19: when the primary is restarted, each hop tears down and is ready again with what is published then."""
    hub, a, b = chain(nodes)
    for node in (hub, a, b):
        node.started()
    with publisher(hub.port) as client:
        publish_all(client, [("plant/1", b"old"), ("plant/2", b"old")])
    wait_until_blocking(lambda: len(retained(b)) == 2, what="the values at the end of the chain")
    with subscriber(b.port, "plant/#", qos=1) as at_b:
        at_b.wait(2)
        hub.restart()
        a.wait_until_ready()
        wait_until_blocking(lambda: at_b.newest() == {"plant/1": b"", "plant/2": b""}, what="the removals")
        with publisher(hub.port) as client:
            publish_all(client, [("plant/1", b"new")])
        at_b.wait_for("plant/1", b"new")
    b.wait_until_ready()
    assert retained(a) == retained(b) == {"plant/1": b"new"}


def test_lag_and_hops_are_per_link(nodes: Nodes) -> None:
    """T19: each hop measures its own lag, and its log has its own heartbeats."""
    hub, a, b = chain(nodes, settings=QUICK + "heartbeat_s = 0.2\n")
    for node in (hub, a, b):
        node.started()

    def measured(node: LiveNode) -> bool:
        (lag,) = node.document("/v1/lag")["links"]
        return bool(lag["basis"] == "heartbeat")

    wait_until_blocking(lambda: measured(a) and measured(b), what="a lag at both hops")
    for node in (b, a):
        node.stop()
        events = read_events(node.log_directory)
        assert any(event["event"] == "heartbeat" and event["link"] == "primary" for event in events)
    # What A publishes at the primary, and B at A, is nobody's topic further down.
    assert [row["topic"] for node in (a, b) for row in read_updates(node.log_directory) if row["link"]] == []


def test_chain_of_everything(nodes: Nodes) -> None:
    """T19: also with the selector `#` the next hop may use its control topic: marker, lag, no refusal."""
    hub = nodes.primary()
    a = nodes.secondary(link(hub.port, selector("#"), settings=QUICK + "heartbeat_s = 0.2\n"), name="a")
    b = nodes.secondary(link(a.port, selector("#"), settings=QUICK + "heartbeat_s = 0.2\n"), name="b")
    hub.started()
    with publisher(hub.port) as client:
        publish_all(client, [("plant/1", b"x"), ("office/1", b"y")])
    for node in (a, b):
        node.started()
        (state,) = node.probe()[1]["links"]
        assert (state["topics"], state["evidence"]) == (2, "marker")
    wait_until_blocking(lambda: b.document("/v1/lag")["links"][0]["lag_seconds"], what="the lag of the second hop")
    assert b.topics() == 2


@pytest.mark.parametrize("primary_comes_late", [True, False])
def test_readiness_waits_for_the_hop_before(nodes: Nodes, primary_comes_late: bool) -> None:
    """T19: B is not ready as long as A is not: an empty A that has no primary yet is no complete snapshot."""
    hub, a, b = chain(nodes)
    if not primary_comes_late:
        hub.started()
        with publisher(hub.port) as client:
            publish_all(client, [("plant/1", b"x")])
        a.started()
        b.started()
        hub.stop()
        wait_until_blocking(lambda: not a.ready, what="503 at A")
        wait_until_blocking(lambda: not b.ready, what="503 at B")
        return
    a.start()
    with watched(b) as answers:
        b.start()
        wait_until_blocking(lambda: len(answers) > 20, what="twenty answers")
        hub.started()
        with publisher(hub.port) as client:
            publish_all(client, [("plant/1", b"x")])
        a.wait_until_ready()
        wait_until_blocking(lambda: b.topics() == 1, what="the value at B")
        b.wait_until_ready()
    assert all(answer["links"][0]["topics"] == 1 for answer in answers if answer["ready"])
