"""The server with clients that other people wrote: paho-mqtt, aiomqtt, the tools of Mosquitto, and MQTT.js."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import aiomqtt
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode as PahoReasonCode

from fanout.config import Address
from fanout.mqtt.reason_codes import ReasonCode
from tests.server.conftest import StartNode
from tests.server.node_in_memory import NodeInMemory, update
from tests.support.mqttjs import MqttJs
from tests.support.waiting import wait_until

VERSIONS = {4: paho.MQTTv311, 5: paho.MQTTv5}


class PahoClient:
    """A paho-mqtt client whose network loop runs in a thread, with what it received."""

    def __init__(
        self,
        port: int,
        *,
        version: int,
        client_id: str = "",
        clean: bool = True,
        transport: Literal["tcp", "websockets", "unix"] = "tcp",
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.messages: list[paho.MQTTMessage] = []
        self.acknowledged: dict[int, PahoReasonCode] = {}
        self.subscribed = threading.Event()
        clean_session = None if version == 5 else clean
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, clean_session, protocol=VERSIONS[version], transport=transport
        )
        if tls is not None:
            self.client.tls_set_context(tls)
        self.client.on_message = lambda _client, _data, message: self.messages.append(message)
        self.client.on_subscribe = lambda *_: self.subscribed.set()
        self.client.on_publish = lambda _client, _data, mid, code, _properties: self.acknowledged.update({mid: code})
        connect: dict[str, object] = {}
        if version == 5:
            connect["clean_start"] = clean
            connect["properties"] = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            connect["properties"].SessionExpiryInterval = 0 if clean else 600  # type: ignore[attr-defined]
        self.client.connect_async(host, port, **connect)  # type: ignore[arg-type]  # as paho wants them
        self.client.loop_start()

    def close(self) -> None:
        """Disconnect and end the thread."""
        self.client.disconnect()
        self.client.loop_stop()

    def seen(self) -> list[tuple[str, bytes, int, bool]]:
        """Return what was received: topic, payload, QoS, RETAIN."""
        return [(one.topic, bytes(one.payload), one.qos, one.retain) for one in list(self.messages)]

    async def subscribe(self, topic: str, qos: int) -> None:
        """Connect, subscribe and wait for SUBACK."""
        await wait_until(self.client.is_connected)
        self.subscribed.clear()
        self.client.subscribe(topic, qos)
        await wait_until(self.subscribed.is_set)


@contextmanager
def paho_client(port: int, *, version: int, client_id: str = "", clean: bool = True) -> Iterator[PahoClient]:
    """Give a connected client; it is closed in the end."""
    client = PahoClient(port, version=version, client_id=client_id, clean=clean)
    try:
        yield client
    finally:
        client.close()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_paho_reads_retained_and_live(node: NodeInMemory, version: int, qos: int) -> None:
    """A paho client gets retained values and then live updates, in order, at every QoS."""
    node.take([update(b"t/%d" % number, b"retained", qos=2) for number in range(300)])
    with paho_client(node.port, version=version) as client:
        await client.subscribe("t/#", qos)
        await wait_until(lambda: len(client.messages) == 300)
        node.take([update(b"t/%d" % number, b"live", qos=2) for number in range(300)])
        await wait_until(lambda: len(client.messages) == 600)
        expected = [(f"t/{number}", b"retained", qos, True) for number in sorted(range(300), key=str)]
        expected += [(f"t/{number}", b"live", qos, False) for number in range(300)]
        assert client.seen() == expected
        await wait_until(lambda: node.server.figures()["in_flight_messages"] == 0)


@pytest.mark.parametrize("version", [4, 5])
async def test_paho_publishes_at_every_qos(node: NodeInMemory, version: int) -> None:
    """What one paho client publishes another receives, and every publication is completed."""
    with paho_client(node.port, version=version) as reader, paho_client(node.port, version=version) as writer:
        await reader.subscribe("#", 2)
        await wait_until(writer.client.is_connected)
        for number in range(30):
            writer.client.publish(f"t/{number}", b"x" * number, qos=number % 3, retain=True)
        await wait_until(lambda: len(reader.messages) == 30 and len(writer.acknowledged) == 30)
        # paho hands on a message at QoS 2 only after its PUBREL, hence behind later ones at other QoS.
        expected = [(f"t/{number}", b"x" * number, number % 3, False) for number in range(30)]
        assert sorted(reader.seen()) == sorted(expected)
        assert len(node.replica) == 29  # the empty payload is no value


async def test_paho_is_told_of_a_refusal(node: NodeInMemory) -> None:
    """A paho client sees the Reason Code of a refused publication."""
    node.verdicts[b"no"] = lambda: ReasonCode.NOT_AUTHORIZED
    with paho_client(node.port, version=5) as client:
        await wait_until(client.client.is_connected)
        mid = client.client.publish("no", b"x", qos=1).mid
        await wait_until(lambda: mid in client.acknowledged)
        assert client.acknowledged[mid].value == ReasonCode.NOT_AUTHORIZED


@pytest.mark.parametrize("version", [4, 5])
async def test_paho_resumes_its_session(node: NodeInMemory, version: int) -> None:
    """What came at QoS 1 while a durable paho client was away is there when it is back."""
    with paho_client(node.port, version=version, client_id="c", clean=False) as client:
        await client.subscribe("t", 1)
    await wait_until(lambda: node.server.figures()["connections"] == 0)
    node.take([update(b"t", b"%d" % number, qos=1, retain=False) for number in range(100)])
    with paho_client(node.port, version=version, client_id="c", clean=False) as client:
        await wait_until(lambda: len(client.messages) == 100)
        assert [one.payload for one in client.messages] == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize("version", [4, 5])
async def test_aiomqtt_reads_and_publishes(node: NodeInMemory, version: int) -> None:
    """An aiomqtt client gets retained values and its own messages at every QoS."""
    node.set(b"t/retained", b"value", qos=2)
    protocol = aiomqtt.ProtocolVersion.V5 if version == 5 else aiomqtt.ProtocolVersion.V311
    async with aiomqtt.Client("127.0.0.1", node.port, protocol=protocol) as client:
        await client.subscribe("t/#", qos=2)
        for qos in (0, 1, 2):
            await client.publish("t/live", b"%d" % qos, qos=qos)
        seen: list[tuple[object, bool]] = []
        async for message in client.messages:
            seen.append((message.payload, message.retain))
            if len(seen) == 4:
                break
        # Each handshake at QoS 2 ends when it ends: there is no order between levels.
        assert sorted(seen, key=str) == [(b"0", False), (b"1", False), (b"2", False), (b"value", True)]


async def run(*command: str) -> str:
    """Run a command and return what it wrote."""
    program = shutil.which(command[0])
    assert program is not None, f"{command[0]} is not installed; scripts/test installs it"
    process = await asyncio.create_subprocess_exec(
        program, *command[1:], stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


@pytest.mark.mosquitto
@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
async def test_mosquitto_sub_reads_what_mosquitto_pub_wrote(node: NodeInMemory, version: str, qos: str) -> None:
    """The tools of Mosquitto publish, and read values with their flags."""
    port = str(node.port)
    for topic in ("a/1", "a/2"):
        await run("mosquitto_pub", "-p", port, "-V", version, "-q", qos, "-t", topic, "-m", f"value of {topic}", "-r")
    found = await run(
        "mosquitto_sub", "-p", port, "-V", version, "-q", qos, "-t", "a/#", "-C", "2", "-W", "10", "-F", "%t %q %r %p"
    )
    assert found.splitlines() == [f"a/1 {qos} 1 value of a/1", f"a/2 {qos} 1 value of a/2"]


@pytest.mark.mosquitto
@pytest.mark.parametrize("qos", ["0", "1", "2"])
async def test_mosquitto_rr_gets_its_answer(node: NodeInMemory, qos: str) -> None:
    """A request of `mosquitto_rr` reaches a responder, and the answer comes to its Response Topic."""
    port = str(node.port)
    async with aiomqtt.Client("127.0.0.1", node.port, protocol=aiomqtt.ProtocolVersion.V5) as responder:
        await responder.subscribe("question", qos=2)
        topics = ("-t", "question", "-e", "answer/1")
        correlation = ("-D", "publish", "correlation-data", "17")
        asking = asyncio.create_task(
            run("mosquitto_rr", "-p", port, "-q", qos, *topics, *correlation, "-m", "6 by 9?", "-W", "20")
        )
        async with asyncio.timeout(30):
            request = await anext(aiter(responder.messages))
        assert request.payload == b"6 by 9?"
        assert request.properties is not None
        assert request.properties.ResponseTopic == "answer/1"  # type: ignore[attr-defined]  # paho makes it up
        answer = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        answer.CorrelationData = request.properties.CorrelationData  # type: ignore[attr-defined]
        await responder.publish(request.properties.ResponseTopic, "42", qos=int(qos), properties=answer)  # type: ignore[attr-defined]
        assert (await asking).splitlines() == ["42"]


WEB = (Address("mqtt", "127.0.0.1", 0), Address("ws", "127.0.0.1", 0))


@pytest.fixture(params=["mqtt", "ws"])
async def javascript(request: pytest.FixtureRequest, start_node: StartNode) -> tuple[NodeInMemory, str]:
    """Give a node, and its address for MQTT.js."""
    node = await start_node(listen=WEB)
    address = node.server.addresses[WEB.index(Address(request.param, "127.0.0.1", 0))]
    return node, address + ("/mqtt" if request.param == "ws" else "")


@pytest.mark.parametrize("version", [4, 5])
async def test_mqttjs_reads_and_publishes(javascript: tuple[NodeInMemory, str], version: int) -> None:
    """MQTT.js gets retained values and what it publishes at every QoS, with its flags and properties."""
    node, url = javascript
    node.set(b"t/retained", b"value", qos=2)
    async with MqttJs(url, protocolVersion=version) as client:
        assert await client.connect() is False
        assert await client.subscribe("t/#", qos=2) == [2]
        await client.wait(1)
        properties = {"userProperties": {"key": "value"}, "contentType": "text"} if version == 5 else {}
        for qos in (0, 1, 2):
            await client.publish("t/live", str(qos), qos=qos, retain=True, properties=properties)
        messages = await client.wait(4)
        found = [(one["topic"], one["payload"], one["qos"], one["retain"]) for one in messages]
        assert found == [("t/retained", "value", 2, True), *[("t/live", str(qos), qos, False) for qos in (0, 1, 2)]]
        if version == 5:
            assert all(properties.items() <= one["properties"].items() for one in messages[1:])
        await client.unsubscribe("t/#")
        await client.end()
    assert node.replica.values[b"t/live"][1] == b"2"
    await wait_until(lambda: node.server.figures()["connections"] == 0)
    assert node.server.figures()["protocol_errors_total"] == 0


@pytest.mark.parametrize("version", [4, 5])
async def test_mqttjs_resumes_its_session(javascript: tuple[NodeInMemory, str], version: int) -> None:
    """What came at QoS 1 and 2 while MQTT.js was away is there when it is back."""
    node, url = javascript
    durable: dict[str, object] = {"clientId": "js", "clean": False, "protocolVersion": version}
    if version == 5:
        durable["properties"] = {"sessionExpiryInterval": 600}
    async with MqttJs(url, **durable) as client:
        assert await client.connect() is False
        await client.subscribe("t", qos=2)
    await wait_until(lambda: node.server.figures()["connections"] == 0)
    node.take([update(b"t", b"%d" % number, qos=1 + number % 2, retain=False) for number in range(50)])
    async with MqttJs(url, **durable) as client:
        assert await client.connect() is True
        # MQTT.js hands on a message at QoS 2 only after its PUBREL, hence behind later ones at QoS 1.
        found = sorted((int(one["payload"]), one["qos"]) for one in await client.wait(50))
        assert found == [(number, 1 + number % 2) for number in range(50)]


async def test_mqttjs_shares_a_subscription(javascript: tuple[NodeInMemory, str]) -> None:
    """Two clients of a Shared Subscription get each message once, by turns."""
    node, url = javascript
    async with MqttJs(url, protocolVersion=5) as one, MqttJs(url, protocolVersion=5) as two:
        for client in (one, two):
            await client.connect()
            assert await client.subscribe("$share/group/t/#", qos=1) == [1]
        for number in range(20):
            node.take([update(b"t/%d" % number, b"%d" % number, qos=1, retain=False)])
        found = [int(message["payload"]) for client in (one, two) for message in await client.wait(10)]
        assert sorted(found) == list(range(20))
