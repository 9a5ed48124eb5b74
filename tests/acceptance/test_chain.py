"""Chains of fanout nodes: a `fanout primary`, a secondary of it, and a secondary of that; and their stamps."""

from __future__ import annotations

from typing import Any

from tests.support.clients import publish_properties, subscriber
from tests.support.mosquitto import publish_all, publisher
from tests.support.nodes import QUICK, LiveNode, Nodes, link, read_events, read_updates, selector, watched
from tests.support.raw_reader import read_retained
from tests.support.waiting import wait_until_blocking


def chain(nodes: Nodes, topic_filter: str, *, storage: str = "") -> tuple[LiveNode, LiveNode, LiveNode]:
    """Return a primary (with a section of its own), a secondary A of it, and a secondary B of A; none is started."""
    settings = QUICK + "heartbeat_s = 0.3\n"
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


def test_chain_is_repaired_from_the_top(nodes: Nodes) -> None:
    """T19: when the primary is restarted, each hop tears down and is ready again with what is published then.

    Also with the selector `#`, which covers the control topics, each hop may use its own: marker and lag.
    """
    hub, a, b = chain(nodes, "#")
    for node in (hub, a, b):
        node.started()
    with publisher(hub.port) as client:
        publish_all(client, [("plant/1", b"old"), ("plant/2", b"old")])
    assert [node.link_status()["evidence"] for node in (a, b)] == ["manifest", "manifest"]
    wait_until_blocking(lambda: lag_is_measured(a) and lag_is_measured(b), what="a lag at both hops")
    wait_until_blocking(lambda: len(read_retained(b.port, "plant/#")) == 2, what="the values at the end of the chain")
    with subscriber(b.port, "plant/#", qos=1) as at_b:
        at_b.wait(2)
        hub.restart()
        a.wait_until_ready()
        wait_until_blocking(lambda: at_b.newest() == {"plant/1": b"", "plant/2": b""}, what="the removals")
        with publisher(hub.port) as client:
            publish_all(client, [("plant/1", b"new")])
        at_b.wait_for("plant/1", b"new")
    b.wait_until_ready()
    assert read_retained(a.port, "plant/#") == read_retained(b.port, "plant/#") == {"plant/1": b"new"}


def test_readiness_waits_for_the_hop_before(nodes: Nodes) -> None:
    """T19: B is not ready as long as A is not: an empty A that has no primary yet is no complete snapshot."""
    hub, a, b = chain(nodes, "plant/#", storage='[retained]\nstorage = "disc"\n')
    hub.started()
    with publisher(hub.port) as client:
        publish_all(client, [("plant/1", b"x")])
    hub.stop()
    a.start()
    with watched(b) as answers:
        b.start()
        wait_until_blocking(lambda: len(answers) > 20, what="twenty answers")
        hub.started()
        a.wait_until_ready()
        wait_until_blocking(lambda: b.topics() == 1, what="the value at B")
        b.wait_until_ready()
    assert all(answer["links"][0]["topics"] == 1 for answer in answers if answer["ready"])
    hub.stop()
    wait_until_blocking(lambda: not a.ready, what="503 at A")
    wait_until_blocking(lambda: not b.ready, what="503 at B")


def test_tree_heals_when_any_node_is_killed(nodes: Nodes) -> None:
    """T19: three hops deep, two wide: whichever node dies, those below are not ready until they hold everything again.

    At no time is a leaf ready without every topic; in the end every leaf equals the primary.
    """
    hub, a, b = chain(nodes, "plant/#")
    settings = QUICK + "heartbeat_s = 0.3\n"
    other_b = nodes.secondary(link(a.port, selector("plant/#"), settings=settings), name="b2")
    leaves = [
        nodes.secondary(link(above.port, selector("plant/#"), settings=settings), name=f"leaf-{above.name}")
        for above in (b, other_b)
    ]
    hub.started()
    values = {f"plant/{number}": b"%d" % number for number in range(20)}
    with publisher(hub.port) as client:
        publish_all(client, list(values.items()))
    for node in (a, b, other_b, *leaves):
        node.started()
    assert leaves[0].link_status()["paths_above"] == ["hub > a > b"]
    with watched(leaves[0]) as answers:
        for killed in (a, b):
            killed.kill()
            wait_until_blocking(lambda: not leaves[0].ready, what="503 at a leaf")
            killed.start()
            for node in (a, b, other_b, *leaves):
                node.wait_until_ready()
    assert all(answer["links"][0]["topics"] == 20 for answer in answers if answer["ready"])
    hub.kill()
    for leaf in leaves:
        wait_until_blocking(lambda leaf=leaf: not leaf.ready, what="503 at a leaf")  # type: ignore[misc]
    hub.started()
    with publisher(hub.port) as client:
        publish_all(client, [(topic, b"again") for topic in values])
    for node in (a, b, other_b, *leaves):
        node.wait_until_ready()
        wait_until_blocking(lambda node=node: node.topics() == 20, what="all topics")  # type: ignore[misc]
    again = dict.fromkeys(values, b"again")
    assert [read_retained(leaf.port, "plant/#") for leaf in leaves] == [again, again]


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
