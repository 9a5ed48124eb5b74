"""Lost connections and lost sessions: what stays, what goes, and who is told."""

from __future__ import annotations

import pytest

from tests.support.clients import publish_properties, subscriber
from tests.support.mosquitto import Mosquitto, publish_all, publisher
from tests.support.network import Proxy
from tests.support.nodes import QUICK, LiveNode, Nodes, link, selector
from tests.support.raw_reader import read_retained
from tests.support.waiting import wait_until, wait_until_blocking

pytestmark = pytest.mark.mosquitto


async def take_away(proxy: Proxy, node: LiveNode) -> None:
    """Cut the link's connection and keep it from coming back."""
    proxy.accepting = False
    proxy.cut()
    await wait_until(lambda: not node.ready, what="503 without a connection")


async def give_back(proxy: Proxy, node: LiveNode) -> None:
    """Let the link connect again, and wait until the node is ready."""
    proxy.accepting = True
    await node.until_ready()


async def test_topic_cleared_while_the_link_is_down(mosquitto: Mosquitto, proxy: Proxy, nodes: Nodes) -> None:
    """T4: what was cleared while the link was down is gone when the node is ready again, and subscribers know.

    At QoS 0 the primary keeps no message for the session: what changed is taken over, and the primary's count shows
    that the missing topic is deleted.
    """
    mosquitto.settings = ["sys_interval 1"]
    mosquitto.restart()
    node = nodes.secondary(link(proxy.port, selector("plant/#", qos=0), settings=QUICK))
    with publisher(mosquitto.port) as client:
        publish_all(client, [("plant/cleared", b"x"), ("plant/changed", b"old"), ("plant/same", b"y")])
        await node.begin()
        await wait_until(lambda: node.link_status()["counted_outside"] is not None, what="the primary's count")
        with subscriber(node.port, "plant/#", qos=1) as live:
            live.wait(3)
            await take_away(proxy, node)
            publish_all(client, [("plant/cleared", b""), ("plant/changed", b"new"), ("plant/created", b"z")])
            assert len(read_retained(node.port)) == 3
            await give_back(proxy, node)
            assert node.link_status()["epochs_total"] == 1
            held = {"plant/changed": b"new", "plant/same": b"y", "plant/created": b"z"}
            await wait_until(lambda: live.newest() == held | {"plant/cleared": b""}, what="the values of now")
            assert live.payloads("plant/cleared") == [b"x", b""]
            assert live.payloads("plant/same") == [b"y"]
    assert read_retained(node.port) == held


async def test_value_that_expired_at_the_primary_while_the_link_was_down(
    mosquitto: Mosquitto, proxy: Proxy, nodes: Nodes
) -> None:
    """T4: expiry sends no message; the value is gone locally all the same, with the link up or down.

    At QoS 0, so that nothing is unacknowledged when the connection is cut: Mosquitto sends an expired message again
    without its expiry, which is then found as a loss.
    """
    node = nodes.secondary(link(proxy.port, selector("plant/#", qos=0), settings=QUICK))
    with publisher(mosquitto.port) as client:
        publish_all(client, [("plant/same", b"y")])
        await node.begin()
        with subscriber(node.port, "plant/expires") as live:
            publish_all(client, [("plant/expires", b"x")], properties=publish_properties(MessageExpiryInterval=2))
            await wait_until(lambda: live.payloads("plant/expires"), what="the value")
        await take_away(proxy, node)
        await wait_until(lambda: read_retained(node.port) == {"plant/same": b"y"}, what="the end of the value")
        await give_back(proxy, node)
    assert read_retained(node.port) == {"plant/same": b"y"}
    assert node.link_status()["epochs_total"] == 1, node.log_text()


async def test_short_drop_without_loss(mosquitto: Mosquitto, proxy: Proxy, nodes: Nodes) -> None:
    """T6: the session is resumed and nothing was lost: no tear-down, nothing is delivered again."""
    node = nodes.secondary(link(proxy.port, selector("plant/#"), settings=QUICK))
    with publisher(mosquitto.port) as client:
        publish_all(client, [(f"plant/{number}", b"x") for number in range(100)])
        await node.begin()
        epoch = node.link_status()["epoch"]
        with subscriber(node.port, "plant/#", qos=1) as live:
            live.wait(100)
            await take_away(proxy, node)
            publish_all(client, [("plant/1", b"meanwhile")])
            await give_back(proxy, node)
            publish_all(client, [("plant/end", b"")], retain=False)
            await wait_until(lambda: "plant/end" in live.topics, what="the last message")
            assert [(one.topic, one.payload) for one in live.messages[100:]] == [
                ("plant/1", b"meanwhile"),
                ("plant/end", b""),
            ]
    status = node.link_status()
    assert (status["epoch"], status["epochs_total"]) == (epoch, 1)
    assert status["reconnects_total"] >= 1
    assert status["evidence"] == "marker"


def test_lost_session_removes_the_replica_of_that_primary_only(
    mosquitto: Mosquitto, second_mosquitto: Mosquitto, nodes: Nodes
) -> None:
    """T7: Session Present 0 removes that primary's replica; others stay; subscribers are told and need do nothing."""
    node = nodes.secondary(
        link(mosquitto.port, selector("north/#"), name="north", settings=QUICK),
        link(second_mosquitto.port, selector("south/#"), name="south", settings=QUICK),
    )
    first = [(f"north/{number}", b"1") for number in range(20)]
    with publisher(second_mosquitto.port) as client:
        publish_all(client, [("south/1", b"s")])
    with publisher(mosquitto.port) as client:
        publish_all(client, first)
    node.started()
    with subscriber(node.port, "#", qos=1) as live:
        live.wait(21)
        mosquitto.stop()
        wait_until_blocking(lambda: not node.ready, what="503 without one primary")
        (reason,) = node.probe()[1]["reasons"]
        assert reason.startswith("link north is ")
        assert len(read_retained(node.port)) == 21  # nothing is known to be lost yet
        mosquitto.start()
        live.wait(41)
        assert sorted(live.messages[21:41]) == sorted((topic, b"", 1, False, {}) for topic, _ in first)
        assert read_retained(node.port) == {"south/1": b"s"}
        node.wait_until_ready()
        assert [node.link_status(name)["epochs_total"] for name in ("north", "south")] == [2, 1]
        with publisher(mosquitto.port) as client:
            publish_all(client, [("north/1", b"2"), ("north/new", b"2")])
        live.wait(43)
        assert [(one.topic, one.payload) for one in live.messages[41:]] == [("north/1", b"2"), ("north/new", b"2")]
    assert read_retained(node.port) == {"south/1": b"s", "north/1": b"2", "north/new": b"2"}


async def test_replica_is_kept_no_longer_than_the_session(mosquitto: Mosquitto, proxy: Proxy, nodes: Nodes) -> None:
    """T7: when the primary must have forgotten the session, nothing of it is served, connected or not."""
    node = nodes.secondary(link(proxy.port, selector("plant/#"), settings=QUICK + "session_expiry_s = 1\n"))
    with publisher(mosquitto.port) as client:
        publish_all(client, [("plant/1", b"x")])
    await node.begin()
    with subscriber(node.port, "plant/#", qos=1) as live:
        await wait_until(lambda: live.payloads("plant/1") == [b"x"], what="the value")
        await take_away(proxy, node)
        await wait_until(lambda: live.payloads("plant/1") == [b"x", b""], what="the removal")
        assert read_retained(node.port) == {}
        await give_back(proxy, node)
        await wait_until(lambda: live.payloads("plant/1") == [b"x", b"", b"x"], what="the value again")


def test_restarted_node_gets_nothing_of_its_old_subscriptions(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """A node that was killed and comes back with other selectors begins anew: its old session ends at the primary.

    Its Client Identifier is the same, and the session, with its old subscription and what was pending in it, was alive.
    Nothing of it is served, nor even sent.
    """
    node = nodes.secondary(link(mosquitto.port, selector("plant/#"), settings=QUICK))
    with publisher(mosquitto.port) as client:
        publish_all(client, [("plant/1", b"x"), ("office/1", b"y")])
        node.started()
        node.kill()
        publish_all(client, [("plant/1", b"pending")], qos=1)
        node.links = link(mosquitto.port, selector("office/#"), settings=QUICK)
        node.started()
        assert read_retained(node.port) == {"office/1": b"y"}
        with subscriber(node.port, "#", qos=1) as local:
            publish_all(client, [("plant/1", b"live"), ("office/1", b"live")], qos=1)
            local.wait_for("office/1", b"live")
            assert local.payloads("plant/1") == []
        assert read_retained(node.port) == {"office/1": b"live"}
    assert node.link_status()["outside_total"] == 0
