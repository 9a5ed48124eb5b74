"""A reload of a running node, over HTTP: what it changes, what it refuses, and what it tells of that."""

from __future__ import annotations

import asyncio
import hashlib
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.processes import free_port
from fanout.mqtt.packets import Publish
from tests.support.nodes import LiveNode, Nodes
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

RULE = '\n[[access.rule]]\nallow = "all"\nfilter = "open/#"\n'


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Give nodes that end with the test."""
    nodes = Nodes(tmp_path)
    yield nodes
    nodes.end()


def file_of(node: LiveNode) -> Path:
    """Return a node's configuration file."""
    return Path(node.command[-1])


def edit(node: LiveNode, *replacements: tuple[str, str], more: str = "") -> None:
    """Change a node's file."""
    text = file_of(node).read_text()
    for before, after in replacements:
        assert before in text
        text = text.replace(before, after)
    file_of(node).write_text(text + more)


def reload(node: LiveNode, **options: bool) -> httpx.Response:
    """Have a node reload."""
    return httpx.post(f"{node.url}/v1/reload", json=options, timeout=60, trust_env=False)


def changes(answer: httpx.Response) -> dict[str, tuple[str, str]]:
    """Return the changes of an answer, by key."""
    document: dict[str, Any] = answer.raise_for_status().json()
    return {one["key"]: (one["change"], one["cost"]) for one in document["changes"]}


def test_reload_takes_what_it_can_and_refuses_the_rest(nodes: Nodes) -> None:
    """A dry run shows all; a restart refuses all but with `partial`; a bad file changes nothing, and says why."""
    node = nodes.primary(log=False).started()
    first = node.document("/v1/status")["config"]
    assert first["digest"] == hashlib.sha256(file_of(node).read_bytes()).hexdigest()
    assert changes(reload(node)) == {}

    edit(node, more=RULE + "\n[sessions]\nstorage = 'disk'\n")
    refused = reload(node)
    assert refused.status_code == 409
    assert "sessions.storage" in refused.json()["error"]
    edit(node, ("storage = 'disk'", "storage = 'ram'"), ("drain_s = 0.0", "drain_s = 1.5"))
    edit(node, more="\n[retained]\nexpiry_s = 7\navailable = false\n")
    assert node.document("/v1/status")["access"]["rules"] == 0

    wanted = changes(reload(node, dry_run=True))
    assert wanted["access.rule"] == ("changed", "nothing")
    restarts = [key for key, (_, cost) in wanted.items() if cost == "restart"]
    assert restarts == ["retained.available"]
    refused = reload(node)
    assert refused.status_code == 409
    assert restarts[0] in refused.json()["error"]
    status = node.document("/v1/status")
    assert (status["access"]["rules"], status["config"]["digest"]) == (0, first["digest"])

    assert changes(reload(node, partial=True)) == wanted
    status = node.document("/v1/status")
    assert status["access"]["rules"] == 1
    assert status["config"]["pending"] == restarts
    assert status["config"]["digest"] == hashlib.sha256(file_of(node).read_bytes()).hexdigest()
    assert status["config"]["read"] > first["read"]
    counted = dict(re.findall(r'fanout_config_reloads_total\{result="(\w+)"\} (\d)', node.get("/metrics").text))
    assert counted == {"applied": "2", "refused": "1", "failed": "1"}


async def test_limits_and_listeners_change_and_connections_stay(nodes: Nodes) -> None:
    """A listener that goes keeps its connections; a new one that cannot be opened changes nothing."""
    node = nodes.primary(log=False, settings="subscriptions_max = 2\n")
    await asyncio.to_thread(node.start)
    other = free_port()
    async with await RawClient.connect(node.port, "a") as client:
        assert (await client.subscribe(b"1", b"2", b"3")).reason_codes == (0, 0, 0x97)
        old = f'listen = ["{node.address}"]'
        edit(node, ("subscriptions_max = 2", "subscriptions_max = 3\nretained_topics_max = 1"))
        edit(node, (old, f'listen = ["{node.address}", "mqtt://127.0.0.1:{node.http_port}"]'))
        refused = await asyncio.to_thread(reload, node)
        assert refused.status_code == 409
        edit(node, (f"127.0.0.1:{node.http_port}" + '"]\nsub', f"127.0.0.1:{other}" + '"]\nsub'))
        with taken(other):
            refused = await asyncio.to_thread(reload, node)
            assert (refused.status_code, f":{other}" in refused.json()["error"]) == (409, True)
        assert (await client.subscribe(b"3")).reason_codes == (0x97,)
        edit(node, (f'"{node.address}", ', ""))
        assert changes(await asyncio.to_thread(reload, node)) == {
            f"server.listener[{node.address}]": ("removed", "nothing"),
            f"server.listener[mqtt://127.0.0.1:{other}]": ("added", "nothing"),
            "server.subscriptions_max": ("changed", "nothing"),
            "server.retained_topics_max": ("changed", "nothing"),
        }
        assert (await client.subscribe(b"3")).reason_codes == (0,)
        with pytest.raises(ConnectionRefusedError):
            await RawClient.open(node.port)
        async with await RawClient.connect(other, "b") as second:
            await second.subscribe(b"#")
            client.publish(b"x", b"v", qos=1, retain=True)
            client.publish(b"y", b"v", qos=1, retain=True)
            await wait_until(lambda: node.document("/v1/status")["server"]["own_short_by"] == ["retained_topics_max"])
        edit(node, (f"mqtt://127.0.0.1:{other}", node.address))
        await asyncio.to_thread(reload, node)
    async with await RawClient.connect(node.port, "a"):
        assert node.document("/v1/status")["listeners"] == [node.address]


@contextmanager
def taken(port: int) -> Iterator[None]:
    """Listen on a port."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", port))
        one.listen()
        yield


async def test_bounds_of_retained_values_hold_from_a_reload_on(nodes: Nodes) -> None:
    """A value that is too large is delivered and not held, and one without an expiry goes in time."""
    node = nodes.primary()
    await asyncio.to_thread(node.start)
    edit(node, more="\n[retained]\nmax_payload = 3\nexpiry_s = 1\n")
    assert changes(await asyncio.to_thread(reload, node)) == {
        "retained.max_payload": ("changed", "nothing"),
        "retained.expiry_s": ("changed", "nothing"),
    }
    async with await RawClient.connect(node.port, "a") as client:
        await client.subscribe(b"#")
        client.publish(b"large", b"1234", qos=1, retain=True)
        client.publish(b"small", b"123", qos=1, retain=True)
        await wait_until(lambda: node.document("/v1/status")["server"]["own_short_by"] == ["retained.max_payload"])
        came = [await client.receive() for _ in range(5)]
    payloads = [(one.topic, one.payload) for one in came if isinstance(one, Publish)]
    assert payloads == [(b"large", b"1234"), (b"small", b"123"), (b"small", b"")]
