"""A `fanout primary`: the embedded primary, to which clients publish as to any broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanout.access.passwords import update_password_file
from fanout.mqtt.packets import Ack, Connack, PacketType, Publish
from fanout.mqtt.properties import Properties
from tests.access.pieces import cheap_hash
from tests.cli.processes import run_fanout
from tests.support.clients import subscriber
from tests.support.mosquitto import publish_all, publisher
from tests.support.nodes import QUICK, LiveNode, Nodes, link, selector
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until_blocking


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publishing_works_at_every_qos(hub: LiveNode, version: int, qos: int) -> None:
    """Done when: on a `fanout primary` publishing works at every QoS, with retained values."""
    root = f"qos/{version}-{qos}"
    with (
        subscriber(hub.port, f"{root}/#", qos=2, version=version) as live,
        publisher(hub.port, version=version) as client,
    ):
        publish_all(client, [(f"{root}/live", b"1")], qos=qos, retain=False)
        publish_all(
            client,
            [(f"{root}/kept", b"old"), (f"{root}/kept", b"new"), (f"{root}/gone", b"x"), (f"{root}/gone", b"")],
            qos=qos,
        )
        live.wait_for(f"{root}/gone", b"")
        assert [(one.topic, one.payload, one.qos, one.retain) for one in live.messages] == [
            (f"{root}/live", b"1", qos, False),
            (f"{root}/kept", b"old", qos, False),
            (f"{root}/kept", b"new", qos, False),
            (f"{root}/gone", b"x", qos, False),
            (f"{root}/gone", b"", qos, False),
        ]
        with subscriber(hub.port, f"{root}/#", qos=2, version=version) as late:
            late.wait(1)
            publish_all(client, [(f"{root}/end", b"")], retain=False)
            late.wait_for(f"{root}/end")
            assert [(one.topic, one.payload, one.retain) for one in late.messages] == [
                (f"{root}/kept", b"new", True),
                (f"{root}/end", b"", False),
            ]


async def test_unknown_pubrel_is_never_a_success(hub: LiveNode) -> None:
    """T17: an unknown PUBREL gets PUBCOMP 0x92; what the publisher sends again is stored once."""
    expiry = Properties(session_expiry_interval=60)
    async with await RawClient.connect(hub.port, "watcher") as watcher:
        await watcher.subscribe(b"pubrel", qos=2)
        publisher_ = await RawClient.connect(hub.port, "pub", properties=expiry)
        publisher_.send(Ack(PacketType.PUBREL, 99))
        await publisher_.expect_ack(PacketType.PUBCOMP, 99, 0x92)
        publisher_.publish(b"pubrel", b"once", qos=2, retain=True, packet_id=7)
        await publisher_.expect_ack(PacketType.PUBREC, 7)
        await publisher_.close()  # the PUBREC did not arrive, as far as the publisher knows

        async with await RawClient.connect(hub.port, "pub", clean_start=False, properties=expiry) as again:
            assert again.connack.session_present
            again.publish(b"pubrel", b"once", qos=2, retain=True, packet_id=7, dup=True)
            await again.expect_ack(PacketType.PUBREC, 7)
            again.send(Ack(PacketType.PUBREL, 7), Ack(PacketType.PUBREL, 7))
            await again.expect_ack(PacketType.PUBCOMP, 7)
            await again.expect_ack(PacketType.PUBCOMP, 7, 0x92)
        async with await RawClient.connect(hub.port, "pub", properties=expiry) as fresh:
            assert not fresh.connack.session_present
            fresh.send(Ack(PacketType.PUBREL, 7))
            await fresh.expect_ack(PacketType.PUBCOMP, 7, 0x92)
            fresh.publish(b"pubrel", b"end")
        messages = [await watcher.expect(Publish) for _ in range(2)]
        assert [message.payload for message in messages] == [b"once", b"end"]


@pytest.mark.parametrize("version", [4, 5])
async def test_topics_of_the_server_are_refused(hub: LiveNode, version: int) -> None:
    """$SYS belongs to the server: 0x87 for MQTT 5; acknowledged and dropped for MQTT 3.1.1, which has no such code."""
    async with await RawClient.connect(hub.port, "c", version=version) as client:
        assert isinstance(client.connack, Connack)
        packet_id = client.publish(b"$SYS/broker/uptime", b"x", qos=1, retain=True)
        await client.expect_ack(PacketType.PUBACK, packet_id, 0x87 if version == 5 else 0)
        client.publish(b"t", b"still here", qos=1, packet_id=9)
        await client.expect_ack(PacketType.PUBACK, 9, 0x10 if version == 5 else 0)  # 0x10: nobody has subscribed
    assert "publish_refused" in hub.log_text()


def test_primary_is_ready_as_soon_as_it_listens(hub: LiveNode) -> None:
    """A node without links has nothing to wait for; `/readyz` says so."""
    status, document = hub.probe()
    assert (status, document["ready"], document["role"], document["links"]) == (200, True, "primary", [])


def test_rules_that_check_prints_are_enough_for_a_link(nodes: Nodes, tmp_path: Path) -> None:
    """With `fanout check --acl --for fanout` alone a node below is ready by manifest, with heartbeats."""
    users, secret = tmp_path / "users", tmp_path / "secret"
    update_password_file(users, lambda none: none.with_user("edge", cheap_hash(b"secret")))
    secret.write_text("secret\n")
    below = tmp_path / "below.toml"
    keys = f'{QUICK}heartbeat_s = 0.2\nusername = "edge"\npassword_file = "{secret}"\n'

    def link_to(port: int) -> str:
        return link(port, selector("plant/#"), settings=keys)

    below.write_text(f'[node]\nid = "edge-1"\n[server]\n{link_to(1883)}')
    rules = run_fanout("check", str(below), "--acl", "--for", "fanout").stdout
    assert rules
    hub = nodes.primary(settings=f'\n[access]\npassword_file = "{users}"\n{rules}').started()
    edge = nodes.secondary(link_to(hub.port)).started()
    assert edge.link_status()["selectors"][0]["evidence"] == "manifest"
    wait_until_blocking(lambda: edge.document("/v1/lag")["links"][0]["lag_seconds"] is not None, what="a heartbeat")
