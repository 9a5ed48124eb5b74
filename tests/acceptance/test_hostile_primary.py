"""A primary that calls itself a fanout node and says of itself what no node says, and two real nodes below it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fanout.chain.readiness_notice import READINESS_TOPIC
from fanout.mqtt.packets import Connack, Disconnect
from fanout.mqtt.properties import Properties
from tests.link.fake_primary import FakePrimary
from tests.link.fake_server import FakeServer
from tests.support.nodes import QUICK, LiveNode, Nodes, link, selector
from tests.support.waiting import wait_until

NODE = Properties(user_property=(("fanout-stamps", "1"), ("fanout-node", "root")))
SETTINGS = QUICK + "heartbeat_s = 0.3\nsnapshot_quiet_s = 2\n"
ANSWER_BYTES_MAX = 16 * 1024


def standing(*, ready: bool = False, reason: str = "", paths: object = (("root",),)) -> bytes:
    """Return a document, whatever is in it; surrogates are spelt."""
    return json.dumps({"ready": ready, "reason": reason, "paths": paths}).encode()


def pair(nodes: Nodes, port: int) -> tuple[LiveNode, LiveNode]:
    """Return a node below a primary, and a node below that."""
    a = nodes.secondary(link(port, selector("plant/#"), settings=SETTINGS), name="a")
    return a, nodes.secondary(link(a.port, selector("plant/#"), settings=SETTINGS), name="b")


def reasons(node: LiveNode) -> str:
    """Return why a node is not ready; both of its documents must be answers that anybody can read."""
    ready, status = node.get("/readyz"), node.get("/v1/status")
    assert ready.status_code in {200, 503}, ready.text
    assert status.status_code == 200, status.text
    for answer in (ready, status):
        assert len(answer.content) <= ANSWER_BYTES_MAX
        answer.content.decode()
        assert answer.text.isprintable(), ascii(answer.text)
        json.dumps(answer.json(), ensure_ascii=False).encode()
    return "; ".join(ready.json()["reasons"])


async def until(node: LiveNode, text: str) -> None:
    """Wait until a node says why it is not ready with `text` in it."""
    async with asyncio.timeout(60):
        while text not in await asyncio.to_thread(reasons, node):
            await asyncio.sleep(0.05)


UNTOLD = "has not said yet"
DOCUMENTS = [
    # (what the primary says, what its node says then, what the node below that says)
    (standing(reason="\ud800"), "not ready: \ufffd", "not ready: \ufffd"),
    (standing(reason="lost\x1b[2J\n\u202e"), "lost\ufffd[2J \ufffd", "lost\ufffd[2J \ufffd"),
    (standing(reason="y" * 60_000), "y" * 511 + "…", "y" * 300),
    (standing(reason="y" * 15_000_000), UNTOLD, UNTOLD),
    (standing(paths=[["\udfff"]]), UNTOLD, UNTOLD),
    (standing(ready=True, paths=[["n"]] * 1_000_000), UNTOLD, UNTOLD),
    (b'{"ready": NaN, "reason": ' + b"[" * 50_000, UNTOLD, UNTOLD),
]


async def test_standings_that_no_node_writes(nodes: Nodes) -> None:
    """Both nodes answer, say what is the matter in lines that are bounded, and follow the next word."""
    primary = FakePrimary(retained={b"plant/1": b"x"}, connack=Connack(False, 0, NODE), manifest=True)
    primary.retained[READINESS_TOPIC] = standing(ready=True)
    async with FakeServer(primary) as server:
        a, b = pair(nodes, server.port)
        await a.begin()
        await b.begin()
        for document, here, below in DOCUMENTS:
            primary.publish(READINESS_TOPIC, document)
            server.push()
            await until(a, here)
            await until(b, below)
            primary.publish(READINESS_TOPIC, standing(ready=True))
            server.push()
            await a.until_ready()
            await b.until_ready()
        assert await asyncio.to_thread(b.topics) == 1
        assert max(len(line) for node in (a, b) for line in node.log_text().splitlines()) <= 4096


async def test_a_flood_of_standings(nodes: Nodes) -> None:
    """Twenty thousand that alternate leave tens of lines, and both nodes with the last word."""
    primary = FakePrimary(retained={b"plant/1": b"x"}, connack=Connack(False, 0, NODE), manifest=True)
    primary.retained[READINESS_TOPIC] = standing(ready=True)
    async with FakeServer(primary) as server:
        a, b = pair(nodes, server.port)
        await a.begin()
        await b.begin()
        for number in range(20_000):
            primary.publish(READINESS_TOPIC, standing(reason=f"number {number}"))
        server.push()
        await until(a, "number 19999")
        await until(b, "number 19999")
        for node in (a, b):
            lines = node.log_text().splitlines()
            assert sum("primary told how it stands" in line for line in lines) <= 200


async def test_words_of_a_primary_that_sends_away(nodes: Nodes) -> None:
    """A Reason String and a Server Reference are shown, cleaned and cut, and the address is not tried."""
    told: dict[str, Any] = {"reason_string": "gone\x1b[2J\n" + "r" * 60_000, "server_reference": "hub-2:1883"}
    primary = FakePrimary(retained={b"plant/1": b"x"})
    async with FakeServer(primary) as server:
        a, b = pair(nodes, server.port)
        await a.begin()
        await b.begin()
        primary.connack = Connack(False, 0x9D, Properties(**told))
        primary.send(Disconnect(0x9C, Properties(**told)))
        server.push()
        await until(a, "Server moved (0x9D) (gone\ufffd[2J rrr")
        await until(b, "Server moved (0x9D) (gone\ufffd[2J rrr")
        status = await asyncio.to_thread(a.link_status)
        assert status["last_error"].endswith("…; it names hub-2:1883)")
        assert "does not follow" in status["hint"]
        assert "Use another server (0x9C)" in a.log_text()
        primary.connack = Connack(False, 0)
        await wait_until(lambda: a.ready and b.ready)
