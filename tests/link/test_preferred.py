"""Several addresses of one primary: the first is used again once it answers, and not before."""

from __future__ import annotations

import asyncio

import pytest

from fanout.chain.stamp import Count
from fanout.config import Address, LinkConfig
from fanout.link import connack_probe as probe
from fanout.link.model.states import LinkState
from fanout.link.protocol.handshake import Handshake
from fanout.mqtt.packets import Connack, Packet
from fanout.mqtt.properties import Properties
from tests.link.fake_primary import FakePrimary, make_config
from tests.link.fake_server import FakeServer
from tests.link.harness import config_for, running
from tests.support.mosquitto import Mosquitto, publish_all, publisher
from tests.support.network import Proxy


def at(port: int) -> Address:
    """Return an address on this machine."""
    return Address("mqtt", "127.0.0.1", port)


@pytest.mark.mosquitto
async def test_the_preferred_address_is_taken_back(mosquitto: Mosquitto) -> None:
    """A way that accepts connections and says nothing is not taken; one that answers is, and the session goes on."""
    with publisher(mosquitto.port) as client:
        publish_all(client, [("plant/1", b"x")])
    async with Proxy(mosquitto.port) as preferred, Proxy(mosquitto.port) as other:
        config = config_for(0, primaries=(at(preferred.port), at(other.port)), connect_timeout_s=2.0)
        async with running(config) as link:
            await link.wait_state(LinkState.LIVE)
            assert link.status.primary == str(at(preferred.port))
            preferred.accepting = False
            preferred.cut()
            await link.wait(lambda: link.status.primary == str(at(other.port)) and link.status.ready)
            states = len(link.sink.states())
            preferred.accepting = True
            preferred.pause()
            before = preferred.connections_total
            await link.wait(lambda: preferred.connections_total >= before + 2)
            assert link.status.primary == str(at(other.port))
            assert len(link.sink.states()) == states
            preferred.resume()
            await link.wait(lambda: link.status.primary == str(at(preferred.port)) and link.status.ready)
            assert link.status.counters.epochs_total == 1
            assert link.values() == {"plant/1": b"x"}
            assert len(link.sink.dispatched()) == 1


class ProbedPrimary(FakePrimary):
    """A probe, which has no session, ends the one that the link had."""

    def send(self, packet: Packet) -> None:
        """Answer."""
        if isinstance(packet, Connack) and self.connects[-1].client_id.endswith("-probe"):
            self.has_session = False
        super().send(packet)


async def test_an_answer_that_comes_while_the_link_is_stalled_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The preferred address is taken once the link is live again, without another question."""
    preferred, other = (ProbedPrimary(retained={b"plant/1": b"x"}) for _ in range(2))
    preferred.connack = Connack(False, 0x88)
    ask, asked, answered = probe.ask, asyncio.Event(), asyncio.Event()

    async def ask_and_wait(address: Address, config: LinkConfig, *, node_id: str) -> Handshake | None:
        asked.set()
        await answered.wait()
        return await ask(address, config, node_id=node_id)

    monkeypatch.setattr(probe, "ask", ask_and_wait)
    async with FakeServer(preferred) as one, FakeServer(other) as two:
        config = config_for(0, primaries=(at(one.port), at(two.port)), heartbeat_s=0.3, retry_max_s=0.2)
        async with running(config) as link:
            await link.wait(lambda: link.status.primary == str(at(two.port)) and link.status.ready)
            await asyncio.wait_for(asked.wait(), 30)
            preferred.connack = Connack(False, 0)
            other.silent_control = True
            await link.wait_state(LinkState.STALLED)
            answered.set()
            await link.wait(lambda: preferred.connects[-1].client_id.endswith("-probe"))
            await asyncio.sleep(0)
            assert link.status.primary == str(at(two.port))
            other.silent_control = False
            await link.wait(lambda: link.status.primary == str(at(one.port)) and link.status.ready)


@pytest.mark.parametrize(
    ("primary", "answers"),
    [
        (FakePrimary(), True),
        (FakePrimary(version=4), True),
        (FakePrimary(connack=Connack(False, 0x87)), False),
        (FakePrimary(swallow=(Connack,)), False),
    ],
)
async def test_only_a_connack_that_accepts_is_an_answer(primary: FakePrimary, answers: bool) -> None:
    """The probe has a name of its own and leaves no session."""
    config = make_config(connect_timeout_s=30.0 if answers else 1.0, version=primary.version)
    async with FakeServer(primary) as server:
        assert (await probe.ask(at(server.port), config, node_id="edge-1") is not None) is answers
        await asyncio.sleep(0)
    (connect,) = primary.connects
    assert connect.client_id == "fanout-edge-1-plant-probe"
    assert connect.clean_start
    assert not connect.properties.session_expiry_interval


async def test_the_answer_tells_how_far_a_fanout_primary_has_counted() -> None:
    """In a User Property of CONNACK; what it says is that of the moment."""
    told = Properties(user_property=(("fanout-node", "hub"), ("fanout-count", "hub:7:42")))
    async with FakeServer(FakePrimary(connack=Connack(False, 0, told))) as server:
        answer = await probe.ask(at(server.port), make_config(), node_id="edge-1")
    assert answer is not None
    assert answer.count == Count("hub", 7, 42)


async def test_a_peer_that_is_no_primary_is_no_answer() -> None:
    """Closed at once, or talking something else."""
    for answer in (b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"):

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes = answer) -> None:
            await reader.read(100)
            writer.write(answer)
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            assert not await probe.ask(at(port), make_config(), node_id="edge-1")
        assert not await probe.ask(at(port), make_config(), node_id="edge-1")
