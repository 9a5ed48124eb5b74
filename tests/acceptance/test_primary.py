"""A `fanout primary`: the embedded primary, to which clients publish as to any broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanout.access.passwords import update_password_file
from tests.access.pieces import cheap_hash
from tests.cli.processes import run_fanout
from tests.support.clients import subscriber
from tests.support.mosquitto import publish_all, publisher
from tests.support.nodes import QUICK, LiveNode, Nodes, link, selector
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
