"""MQTT over TLS, with real certificates and clients that other people wrote."""

from __future__ import annotations

import asyncio
import gc
import ssl
from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path

import pytest

from bench.processes import free_port
from fanout.config import Address, ListenerConfig
from fanout.errors import ListenError
from fanout.mqtt.packets import Connack, Connect, Pingreq, Pingresp, Publish, encode
from fanout.runtime.turnstile import Turnstile
from fanout.server.accept.admission import AcceptPipeline
from fanout.server.accept.tls import ListenerTls
from fanout.server.base.counters import Limit
from fanout.server.client.connection import ClientConnection
from tests.server.conftest import StartNode
from tests.server.node_in_memory import NodeInMemory, update
from tests.server.test_clients import VERSIONS, PahoClient, run
from tests.support.certificates import Authority, client_context
from tests.support.raw_client import RawClient, ServerClosed
from tests.support.waiting import wait_until

ADDRESS = Address("mqtts", "127.0.0.1", 0)

REFUSED = (OSError, ServerClosed)
"""An alert of TLS or a reset: with TLS 1.3 a client learns only when it reads that its certificate was refused."""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Give a certificate authority that has issued `server`."""
    made = Authority(tmp_path)
    made.issue("server")
    return made


def listener(authority: Authority, **more: object) -> ListenerConfig:
    """Describe a listener that shows the certificate `server`."""
    directory = authority.certificate.parent
    files = {"certificate_file": directory / "server.pem", "key_file": directory / "server.key"}
    return ListenerConfig(**{"address": ADDRESS, **files, **more})  # type: ignore[arg-type]  # tests know the keys


async def connect(node: NodeInMemory, context: ssl.SSLContext, client_id: str = "c") -> RawClient:
    """Connect over TLS as far as CONNACK."""
    client = RawClient(*await asyncio.open_connection("127.0.0.1", node.port, ssl=context), version=5)
    client.send(Connect(client_id))
    try:
        assert (await client.expect(Connack)).reason_code == 0
    except BaseException:
        client.transport.abort()
        raise
    return client


def serial_of(client: RawClient) -> str:
    """Return the serial number of the certificate that the server showed."""
    return str(client.transport.get_extra_info("peercert")["serialNumber"])


async def test_messages_go_both_ways(start_node: StartNode, authority: Authority) -> None:
    """What one client publishes over TLS another receives over TLS, also where it is larger than any buffer."""
    node = await start_node(listen=(), listener_tables=(listener(authority),))
    context = client_context(authority)
    async with await connect(node, context, "a") as writer, await connect(node, context, "b") as reader:
        await reader.subscribe(b"t/#", qos=1)
        for number in range(20):
            writer.publish(b"t/%d" % number, b"x" * 100_000)
        messages = await reader.messages(20)
        assert [len(message.payload) for message in messages] == [100_000] * 20
        assert node.server.addresses[0].startswith("mqtts://127.0.0.1:")


async def test_strangers_wait_for_their_turn(start_node: StartNode, authority: Authority) -> None:
    """A handshake and a CONNECT begin when there is time for them."""
    node = await start_node(listener_tables=(listener(authority),))
    node.server.context.turnstile = turnstile = HeldTurnstile()
    address, tls_address = node.server.addresses
    port, tls_port = (int(one.rpartition(":")[2]) for one in (address, tls_address))
    async with asyncio.timeout(30):
        plain = await RawClient.open(port)
        await turnstile.let_through(1)
        plain.send(Connect("plain"), Pingreq())
        await wait_until(lambda: len(turnstile.held) == 2)
        over_tls = asyncio.create_task(asyncio.open_connection("127.0.0.1", tls_port, ssl=client_context(authority)))
        await wait_until(lambda: len(turnstile.held) == 3)
        assert node.server.session_count == 0
        await turnstile.let_through(3)
        await wait_until(lambda: len(turnstile.held) == 4)  # the ClientHello is whole
        assert not over_tls.done()
        await turnstile.let_through(4)
        assert (await plain.expect(Connack)).reason_code == 0
        await plain.expect(Pingresp)
        (await over_tls)[1].close()
        plain.transport.abort()
        refused = await RawClient.open(port)
        await turnstile.let_through(5)
        refused.send(Connect("refused"))
        await wait_until(lambda: len(turnstile.held) == 6)
        next(one for one in node.server.connections if one.is_suspended).abort()
        await wait_until(lambda: turnstile.held[5] in turnstile.withdrawn)
        refused.transport.abort()


class HeldTurnstile(Turnstile):
    """A turnstile that keeps all actions until a test lets them through."""

    def __init__(self) -> None:
        super().__init__(slice_s=0.0, processor_s=lambda: 0.0)
        self.held: list[Callable[[], object]] = []
        self.withdrawn: list[Callable[[], object]] = []
        self._through = 0

    def run(
        self, action: Callable[[], object], *, who: Hashable = "", at_least_s: float = 0.0
    ) -> Callable[[], None] | None:
        """Keep the action."""
        self.held.append(action)
        return lambda: self.withdrawn.append(action)

    async def let_through(self, count: int) -> None:
        """Wait until so many actions came in all, and do those of them that were not done."""
        await wait_until(lambda: len(self.held) >= count)
        for action in self.held[self._through : count]:
            action()
        self._through = count


async def test_a_handshake_that_does_not_come_leaves_no_garbage(start_node: StartNode, authority: Authority) -> None:
    """Collections of thousands of them would stop the event loop."""
    node = await start_node(listen=(), listener_tables=(listener(authority),))

    def pipelines() -> int:
        return sum(isinstance(one, AcceptPipeline) for one in gc.get_objects())

    gc.collect()  # what tests before left
    gc.disable()
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", node.port)
        await wait_until(lambda: pipelines() == 1)
        await node.pass_time(node.server.config.connect_timeout_s)
        await wait_until(lambda: node.server.counters.limits_reached[Limit.CONNECT_TIMEOUT] == 1)
        await wait_until(lambda: not pipelines())
        writer.close()
    finally:
        gc.enable()


async def test_a_connection_that_ends_leaves_no_garbage(start_node: StartNode, authority: Authority) -> None:
    """Its buffers of 256 KiB would wait for a full collection, which is rare."""
    node = await start_node(listen=(), listener_tables=(listener(authority),))

    def connections() -> int:
        return sum(isinstance(one, ClientConnection) for one in gc.get_objects())

    gc.collect()  # what tests before left
    gc.disable()
    try:
        async with await connect(node, client_context(authority)):
            assert connections() == 1
        await wait_until(lambda: not connections())
    finally:
        gc.enable()


async def test_slow_reader_keeps_its_messages_waiting(start_node: StartNode, authority: Authority) -> None:
    """The marks for unsent bytes hold under TLS too: messages wait in the queue, and all arrive."""
    node = await start_node(
        listen=(),
        listener_tables=(listener(authority),),
        write_buffer_high_bytes=64 * 1024,
        write_buffer_low_bytes=16 * 1024,
    )
    async with await connect(node, client_context(authority)) as client:
        await client.subscribe(b"t")
        client.pause()
        for number in range(400):
            node.take([update(b"t", b"%06d" % number + b"x" * 100_000, retain=False)])
            await asyncio.sleep(0)
        assert node.server.figures()["queued_messages"] > 100
        client.resume()
        messages = await client.messages(400)
        assert [int(message.payload[:6]) for message in messages] == list(range(400))


async def test_plain_mqtt_gets_nowhere(start_node: StartNode, authority: Authority) -> None:
    """A client without TLS is closed, and so is one that does not trust the certificate; others are served."""
    node = await start_node(listen=(), listener_tables=(listener(authority),))
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    writer.write(encode(Connect("c"), version=5))
    while await reader.read(1000):
        pass  # an alert of TLS
    writer.close()
    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.open_connection("127.0.0.1", node.port, ssl=ssl.create_default_context())
    async with await connect(node, client_context(authority)):
        assert node.server.figures()["connections"] == 1


async def test_required_certificate(start_node: StartNode, authority: Authority, tmp_path: Path) -> None:
    """Only clients with a certificate of the right authority get in, known by its Common Name."""
    required = listener(authority, client_ca_file=authority.certificate, require_client_certificate=True)
    node = await start_node(listen=(), listener_tables=(required,))
    shown = authority.issue("sensor", subject="/O=plant/CN=sensor-7")
    async with await connect(node, client_context(authority, *shown)):
        [connection] = node.server.connections
        assert connection.peer.certificate_user == "sensor-7"
        assert connection.peer.local
        assert connection.peer.host == "127.0.0.1"
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other").issue("sensor")
    for context in (client_context(authority), client_context(authority, *stranger)):
        with pytest.raises(REFUSED):
            await connect(node, context)
    await wait_until(lambda: node.server.figures()["connections"] == 0)


async def test_optional_certificate(start_node: StartNode, authority: Authority) -> None:
    """Where it is not required, a client without one gets in and has no user."""
    node = await start_node(listen=(), listener_tables=(listener(authority, client_ca_file=authority.certificate),))
    async with await connect(node, client_context(authority)):
        assert [one.peer.certificate_user for one in node.server.connections] == [None]


async def test_reload_serves_the_new_certificate(start_node: StartNode, authority: Authority) -> None:
    """New connections see the new certificate; those that are open stay."""
    node = await start_node(listen=(), listener_tables=(listener(authority),))
    context = client_context(authority)
    async with await connect(node, context, "old") as old:
        authority.issue("server")
        async with await connect(node, context, "before") as before:
            assert serial_of(before) == serial_of(old)
        node.server.reload_certificates()
        async with await connect(node, context, "new") as new:
            assert serial_of(new) != serial_of(old)
        old.send(Pingreq())
        assert await old.receive() == Pingresp()


async def test_reload_serves_the_new_authority(start_node: StartNode, authority: Authority, tmp_path: Path) -> None:
    """Whose certificates of clients are valid is read again too."""
    clients = tmp_path / "clients.pem"
    clients.write_bytes(authority.certificate.read_bytes())
    required = listener(authority, client_ca_file=clients, require_client_certificate=True)
    node = await start_node(listen=(), listener_tables=(required,))
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other", name="other")
    former, latter = authority.issue("former"), other.issue("latter")
    async with await connect(node, client_context(authority, *former)):
        clients.write_bytes(other.certificate.read_bytes())
        node.server.reload_certificates()
        async with await connect(node, client_context(authority, *latter), "d"):
            assert {one.peer.certificate_user for one in node.server.connections} == {"former", "latter"}
        with pytest.raises(REFUSED):
            await connect(node, client_context(authority, *former), "e")


async def test_failed_reload_changes_nothing(start_node: StartNode, authority: Authority, tmp_path: Path) -> None:
    """With a broken file the certificate that was read before is served on."""
    node = await start_node(listen=(), listener_tables=(listener(authority),))
    (tmp_path / "server.pem").write_text("rubbish")
    node.server.reload_certificates()
    async with await connect(node, client_context(authority)) as client:
        client.send(Pingreq())
        assert await client.receive() == Pingresp()


async def test_a_listener_that_cannot_be_changed_stays_though_its_files_are_gone(
    start_node: StartNode, authority: Authority, tmp_path: Path
) -> None:
    """A reload with a wrong path changes nothing, also if the former certificate was moved away already."""
    before = listener(authority, address=Address("mqtts", "127.0.0.1", free_port()))
    node = await start_node(listen=(), listener_tables=(before,))
    context = client_context(authority)
    (tmp_path / "server.pem").unlink()
    wrong = replace(before, certificate_file=tmp_path / "misspelt.pem")
    taken = replace(before, address=Address("mqtt", "192.0.2.1", 1883))
    for changed in (wrong, taken):
        with pytest.raises(ListenError):
            await node.server.change(replace(node.config, listener_tables=(changed,)))
        async with await connect(node, context) as client:
            client.send(Pingreq())
            assert await client.receive() == Pingresp()


def _remove(directory: Path) -> None:
    (directory / "server.key").unlink()


def _mismatch(directory: Path) -> None:
    (directory / "server.key").write_bytes((directory / "ca.key").read_bytes())


def _rubbish(directory: Path) -> None:
    (directory / "server.pem").write_text("rubbish")


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (_remove, "cannot read its key_file, {0}/server.key: no such file or directory"),
        (_mismatch, "the key in {0}/server.key does not belong to the certificate in {0}/server.pem"),
        (_rubbish, "{0}/server.pem and {0}/server.key are not a certificate and its key in PEM"),
    ],
)
def test_unusable_files_are_named(authority: Authority, spoil: Callable[[Path], None], problem: str) -> None:
    """The error says which file, and what is wrong with it."""
    directory = authority.certificate.parent
    spoil(directory)
    with pytest.raises(ListenError) as caught:
        ListenerTls(listener(authority))
    assert caught.value.message == f"no TLS for mqtts://127.0.0.1:0: {problem.format(directory)}"
    assert caught.value.hint == "Correct the files or their paths in [[server.listener]]."


def test_rubbish_as_authority_is_named(authority: Authority) -> None:
    """A file without certificates is no authority."""
    rubbish = authority.certificate.parent / "rubbish.pem"
    rubbish.write_text("rubbish")
    with pytest.raises(ListenError, match=r"rubbish\.pem has no certificates in PEM"):
        ListenerTls(listener(authority, client_ca_file=rubbish))


@pytest.mark.parametrize("version", [4, 5])
async def test_paho_over_tls(start_node: StartNode, authority: Authority, version: int) -> None:
    """A paho client gets retained values and its own messages over TLS."""
    assert version in VERSIONS
    node = await start_node(listen=(), listener_tables=(listener(authority),))
    node.set(b"t/retained", b"value")
    client = PahoClient(node.port, version=version, tls=client_context(authority))
    try:
        await client.subscribe("t/#", 1)
        client.client.publish("t/live", "x", qos=1)
        await wait_until(lambda: len(client.messages) == 2)
        assert client.seen() == [("t/retained", b"value", 0, True), ("t/live", b"x", 1, False)]
    finally:
        client.close()


@pytest.mark.mosquitto
async def test_mosquitto_tools_over_tls(start_node: StartNode, authority: Authority) -> None:
    """`mosquitto_pub` and `mosquitto_sub` with a certificate of their own."""
    required = listener(authority, client_ca_file=authority.certificate, require_client_certificate=True)
    node = await start_node(listen=(), listener_tables=(required,))
    certificate, key = authority.issue("tool")
    tls = ("--cafile", str(authority.certificate), "--cert", str(certificate), "--key", str(key))
    common = ("-h", "127.0.0.1", "-p", str(node.port), *tls, "-q", "1")
    await run("mosquitto_pub", *common, "-t", "a", "-m", "value", "-r")
    found = await run("mosquitto_sub", *common, "-t", "#", "-C", "1", "-W", "10", "-F", "%t %r %p")
    assert found == "a 1 value\n"


async def test_retained_message_is_delivered(start_node: StartNode, authority: Authority) -> None:
    """A retained value comes over TLS as it does over TCP."""
    node = await start_node(listener_tables=(listener(authority),))
    node.set(b"t", b"v")
    port = int(node.server.addresses[1].rpartition(":")[2])
    streams = await asyncio.open_connection("127.0.0.1", port, ssl=client_context(authority))
    async with RawClient(*streams, version=5) as client:
        client.send(Connect("c"))
        await client.expect(Connack)
        await client.subscribe(b"t")
        assert (await client.expect(Publish)).payload == b"v"
