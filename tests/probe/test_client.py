"""Tests of `fanout.probe.client`, beside a server that does what it is told."""

from __future__ import annotations

import asyncio

import aiomqtt
import pytest

from fanout.probe.client import ProbeClient, Target


async def test_a_set_that_cannot_be_asked_for_is_an_error_of_the_connection() -> None:
    """A primary that closes the connection just before is a finding of a check, not a defect of the probe."""

    async def accept_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1024)
        writer.write(b"\x20\x03\x00\x00\x00")  # CONNACK
        writer.close()

    async with await asyncio.start_server(accept_and_close, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with ProbeClient(Target("127.0.0.1", port), version=5, client_id="probe") as client:
            with pytest.raises(aiomqtt.MqttError, match="closed the connection"):
                await client.until(lambda: False, 30)
            with pytest.raises(aiomqtt.MqttError, match="closed the connection"):
                client.ask_for_set(["plant/#"], qos=0, marker=None)
