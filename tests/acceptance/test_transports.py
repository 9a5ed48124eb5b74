"""A node as a process with a listener of every kind, and SIGHUP, which reloads its certificates."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from bench.processes import free_port
from fanout.mqtt.packets import Connack, Connect, Pingreq, Pingresp
from tests.support.certificates import Authority, client_context
from tests.support.nodes import Nodes
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until


async def test_sighup_serves_the_new_certificate(nodes: Nodes, tmp_path: Path) -> None:
    """New connections see the new certificate, open ones stay, and a broken file changes nothing."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    context = client_context(authority)
    tls_port, web_port, path = free_port(), free_port(), tmp_path / "mqtt.sock"
    files = f'certificate_file = "{certificate}"\nkey_file = "{key}"\n'
    node = nodes.primary(
        settings=f'[[server.listener]]\naddress = "mqtts://127.0.0.1:{tls_port}"\n{files}'
        f'[[server.listener]]\naddress = "wss://127.0.0.1:{web_port}"\n{files}'
        f'[[server.listener]]\naddress = "unix://{path}"\n'
    )
    await node.begin()
    process = node.process
    assert process is not None
    assert node.document("/v1/status")["listeners"] == [
        f"mqtt://127.0.0.1:{node.port}",
        f"mqtts://127.0.0.1:{tls_port}",
        f"wss://127.0.0.1:{web_port}",
        f"unix://{path}",
    ]

    async def connect(client_id: str) -> tuple[RawClient, str]:
        client = RawClient(*await asyncio.open_connection("127.0.0.1", tls_port, ssl=context), version=5)
        client.send(Connect(client_id))
        await client.expect(Connack)
        return client, client.transport.get_extra_info("peercert")["serialNumber"]

    old, old_serial = await connect("old")
    async with old:
        authority.issue("server")
        process.send_signal(signal.SIGHUP)
        await wait_until(lambda: "certificates_reloaded" in node.log_text())
        new, new_serial = await connect("new")
        async with new:
            assert new_serial != old_serial
        certificate.write_text("rubbish")
        process.send_signal(signal.SIGHUP)
        await wait_until(lambda: "certificates_not_reloaded" in node.log_text())
        again, again_serial = await connect("again")
        async with again:
            assert again_serial == new_serial
        old.send(Pingreq())
        assert await old.receive() == Pingresp()
    node.stop()
    assert not path.exists()
