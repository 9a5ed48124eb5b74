"""A reload of links and selectors beside a real Mosquitto: what did not change is served without a pause."""

from __future__ import annotations

import asyncio
import hashlib
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fanout.mqtt.packets import Publish
from tests.node.test_reload import changes, edit, file_of, reload
from tests.support.mosquitto import Mosquitto, load_retained, publish_all, publisher
from tests.support.nodes import QUICK, LiveNode, Nodes, link, selector
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until, wait_until_blocking

pytestmark = pytest.mark.mosquitto

TOPICS = 300


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Give nodes that end with the test."""
    nodes = Nodes(tmp_path)
    yield nodes
    nodes.end()


def load(mosquitto: Mosquitto, *branches: str, value: bytes = b"1") -> None:
    """Publish retained values below branches."""
    load_retained(mosquitto.port, [(f"{branch}/{n}", value) for branch in branches for n in range(TOPICS)])


class Watcher:
    """A client with a subscription to everything; it notes each value that comes, and each topic that goes."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.values: dict[str, bytes] = {}
        self.removed: set[str] = set()
        self.steady: list[bytes] = []
        """Values of `stays/last`, in the order in which they came."""
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while True:
            packet = await self.client.receive()
            if isinstance(packet, Publish):
                topic = packet.topic.decode()
                if topic == "stays/last":
                    self.steady.append(packet.payload)
                if packet.payload:
                    self.values[topic] = packet.payload
                else:
                    del self.values[topic]
                    self.removed.add(topic)

    def count(self, branch: str) -> int:
        """Return how many topics of a branch have a value."""
        assert not self._task.done(), "the connection has ended"
        return sum(topic.startswith(f"{branch}/") for topic in self.values)

    async def end(self) -> None:
        """Stop to read; the connection must be open still."""
        ended = self._task.done()
        self._task.cancel()
        await self.client.close()
        assert not ended


@asynccontextmanager
async def watching(node: LiveNode) -> AsyncIterator[Watcher]:
    """Give a watcher of a node; its connection must live to the end."""
    client = await RawClient.connect(node.port, "watcher")
    await client.subscribe(b"#")
    watcher = Watcher(client)
    try:
        yield watcher
    finally:
        await watcher.end()


async def test_selectors_come_go_and_change_alone(nodes: Nodes, mosquitto: Mosquitto) -> None:
    """The epoch goes on, the client stays, and only topics of changed selectors come and go, also in a second turn."""
    load(mosquitto, "a", "b", "c")
    node = nodes.secondary(link(mosquitto.port, selector("a/#"), selector("b/#"), settings=QUICK))
    await node.begin()
    before = node.link_status()
    async with watching(node) as watched:
        await wait_until(lambda: watched.count("a") == watched.count("b") == TOPICS)

        edit(node, ('filter = "b/#"', 'filter = "c/#"'), ("exclude = []", 'exclude = ["+/7"]'))
        wanted = {
            "link[primary].selector[a/#].exclude": ("changed", "selector"),
            "link[primary].selector[b/#]": ("removed", "selector"),
            "link[primary].selector[c/#]": ("added", "selector"),
        }
        assert changes(await asyncio.to_thread(reload, node, dry_run=True)) == wanted
        assert changes(await asyncio.to_thread(reload, node)) == wanted
        await wait_until(
            lambda: (watched.count("a"), watched.count("b"), watched.count("c")) == (TOPICS - 1, 0, TOPICS - 1)
        )
        assert watched.removed == {"a/7", *(f"b/{n}" for n in range(TOPICS))}
        await wait_until(lambda: all(one["complete"] for one in node.link_status()["selectors"]))
        await node.until_ready()
        status = node.link_status()
        assert status["epoch"] == before["epoch"]
        assert [(one["filter"], one["topics"]) for one in status["selectors"]] == [
            ("a/#", TOPICS - 1),
            ("c/#", TOPICS - 1),
        ]
        assert status["reconnects_total"] == before["reconnects_total"]

        load(mosquitto, "a", "b", "c", value=b"2")
        await wait_until(lambda: watched.values.get("a/299") == watched.values.get("c/299") == b"2")
        assert watched.count("b") == 0
        edit(node, ('filter = "c/#"', 'filter = "b/#"'), ('exclude = ["+/7"]', "exclude = []"))
        await asyncio.to_thread(reload, node)
        await wait_until(lambda: (watched.count("a"), watched.count("b"), watched.count("c")) == (TOPICS, TOPICS, 0))
        await wait_until(lambda: all(one["complete"] for one in node.link_status()["selectors"]))
        assert set(watched.values.values()) == {b"2"}
        assert node.link_status()["epoch"] == before["epoch"]


async def test_links_come_go_and_change_alone(nodes: Nodes, mosquitto: Mosquitto) -> None:
    """A link that stays keeps its connection; the values of one that goes are removed, and its session too."""
    load(mosquitto, "a", "b", "c")
    one = link(mosquitto.port, selector("a/#"), name="one", settings=QUICK)
    two = link(mosquitto.port, selector("b/#"), name="two", settings=QUICK)
    three = link(mosquitto.port, selector("c/#", prefix="site/"), name="three", settings=QUICK)
    node = nodes.secondary(one + "\n" + two)
    await node.begin()
    kept = node.link_status("one")
    async with watching(node) as watched:
        await wait_until(lambda: watched.count("a") == watched.count("b") == TOPICS)

        edit(node, (two, three))
        assert changes(await asyncio.to_thread(reload, node)) == {
            "link[two]": ("removed", "link"),
            "link[three]": ("added", "link"),
        }
        await wait_until(
            lambda: (watched.count("a"), watched.count("b"), watched.count("site/c")) == (TOPICS, 0, TOPICS)
        )
        await node.until_ready()
        assert [each["name"] for each in node.document("/v1/status")["links"]] == ["one", "three"]
        now = node.link_status("one")
        assert (now["epoch"], now["reconnects_total"]) == (kept["epoch"], kept["reconnects_total"])

        epoch = node.link_status("three")["epoch"]
        edit(
            node,
            (QUICK + '[[link.selector]]\nfilter = "c', QUICK + 'keep_alive_s = 20\n[[link.selector]]\nfilter = "c'),
        )
        assert changes(await asyncio.to_thread(reload, node)) == {"link[three].keep_alive_s": ("changed", "link")}
        await node.until_ready()
        edit(node, ("keep_alive_s = 20", 'client_id = "another"'))
        assert changes(await asyncio.to_thread(reload, node)) == {
            "link[three].keep_alive_s": ("changed", "session"),
            "link[three].client_id": ("changed", "session"),
        }
        await node.until_ready()
        assert node.link_status("three")["epoch"] > epoch
        gone = {f"{branch}/{n}" for branch in ("b", "site/c") for n in range(TOPICS)}
        await wait_until(lambda: watched.removed == gone and watched.count("site/c") == TOPICS)


@pytest.mark.parametrize(("seed", "turns"), [(1, 6), pytest.param(3, 50, marks=pytest.mark.long)])
async def test_random_reloads_under_load(nodes: Nodes, mosquitto: Mosquitto, seed: int, turns: int) -> None:
    """No client is dropped, no epoch changes, the link never connects anew, and the end is exact.

    Values of a selector that stays are never removed, and never go back.
    """
    draw, names = random.Random(seed), ("a", "b", "c", "d", "e")
    load(mosquitto, *names)

    def links(chosen: dict[str, tuple[str, int]]) -> str:
        return link(
            mosquitto.port,
            selector("stays/#"),
            *(
                selector(f"{name}/#", exclude=[f"+/{gone}"] if gone else (), qos=qos)
                for name, (gone, qos) in chosen.items()
            ),
            settings=QUICK,
        )

    chosen = {"a": ("", 1)}
    written = links(chosen)
    node = nodes.secondary(written)
    await node.begin()
    before_all = node.link_status()
    with publisher(mosquitto.port) as client:
        async with watching(node) as watched:
            for turn in range(turns):
                publish_all(client, [(f"stays/{n}", b"%d" % turn) for n in range(50)])
                kept = {name for name in chosen if draw.random() < 0.5}
                chosen = {name: chosen[name] for name in kept} | {
                    name: (draw.choice(["", "7", "8"]), draw.choice([0, 1, 2])) for name in draw.sample(names, 2)
                }
                before, written = written, links(chosen)
                edit(node, (before, written))
                client.publish("stays/last", b"%d" % turn, 1, retain=True)
                answer = await asyncio.to_thread(reload, node)
                assert {cost for _, cost in changes(answer).values()} <= {"selector"}
                client.publish("stays/last", b"%d after" % turn, 1, retain=True)
            await wait_until(lambda: all(one["complete"] for one in node.link_status()["selectors"]))
            await node.until_ready()
            for name in names:
                wanted = TOPICS - bool(chosen[name][0]) if name in chosen else 0
                await wait_until(lambda name=name, wanted=wanted: watched.count(name) == wanted, what=name)  # type: ignore[misc]
            await wait_until(lambda: watched.values["stays/last"] == b"%d after" % (turns - 1))
            await wait_until(lambda: watched.values["stays/49"] == b"%d" % (turns - 1))
            assert not [topic for topic in watched.removed if topic.startswith("stays/")]
            turns_seen = [int(value.split()[0]) for value in watched.steady]
            assert turns_seen == sorted(turns_seen)
    now = node.link_status()
    assert (now["epoch"], now["reconnects_total"]) == (before_all["epoch"], before_all["reconnects_total"])


def test_killed_reload_leaves_one_configuration(nodes: Nodes, mosquitto: Mosquitto) -> None:
    """With values on disk: the next process has exactly what its file says, wherever the kill came."""
    load(mosquitto, "a", "b", "c")
    pair = {
        "b/#": link(mosquitto.port, selector("a/#"), selector("b/#"), settings=QUICK),
        "c/#": link(mosquitto.port, selector("a/#", exclude=["+/7"]), selector("c/#", prefix="x/"), settings=QUICK),
    }
    node = nodes.secondary('[retained]\nstorage = "disc"\n' + pair["b/#"])
    node.started()
    draw, wanted = random.Random(1), "b/#"
    for _ in range(4):
        before, wanted = wanted, "b/#" if wanted == "c/#" else "c/#"
        node.links = node.links.replace(pair[before], pair[wanted])
        edit(node, (pair[before], pair[wanted]))
        node.send_signal(signal.SIGHUP)
        time.sleep(draw.uniform(0, 0.4))  # somewhere in the reload
        node.kill()
        node.started()
        topics = {one["filter"]: one["topics"] for one in node.link_status()["selectors"]}
        assert topics == {"a/#": TOPICS - (wanted == "c/#"), wanted: TOPICS}
        assert node.topics() == sum(topics.values())
        assert node.document("/v1/status")["config"]["digest"] == hashlib.sha256(file_of(node).read_bytes()).hexdigest()


@pytest.mark.long
def test_ten_thousand_new_topics_are_proved_in_two_seconds(nodes: Nodes, mosquitto: Mosquitto) -> None:
    """From the request of the reload on, on a live link."""
    load(mosquitto, "a")
    load_retained(mosquitto.port, [(f"new/{n}", b"1" * 100) for n in range(10_000)])
    alone, both = (link(mosquitto.port, *(selector(f"{name}/#") for name in names)) for names in ("a", ("a", "new")))
    node = nodes.secondary(alone).started()
    edit(node, (alone, both))
    began_s = time.monotonic()
    reload(node)
    wait_until_blocking(lambda: all(one["complete"] for one in node.link_status()["selectors"]))
    took_s = time.monotonic() - began_s
    assert node.topics() == TOPICS + 10_000
    assert took_s < 2, took_s
