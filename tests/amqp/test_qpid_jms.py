"""Test with Apache Qpid JMS, a real JMS client: `tests/jms/Rows.java`, with one start of Java for all its rows."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from types import MappingProxyType

import pytest
import structlog
from pydantic import TypeAdapter

from fanout.access.gate import Gate
from fanout.access.passwords import PasswordFile
from fanout.config.access import AccessConfig
from fanout.mqtt.packets import Ack, Publish
from tests.access.pieces import cheap_hash
from tests.amqp.conftest import StartNode, amqp_port
from tests.server.node_in_memory import NodeInMemory
from tests.support.raw_client import RawClient

JMS = Path(__file__).parents[1] / "jms"
LIBRARIES = JMS / "lib"
ROWS = 15


def missing() -> str:
    """Return what is not there; empty for nothing."""
    java = shutil.which("java")
    listing = [java, "--list-modules"] if java else []
    if (
        not listing
        or "jdk.compiler@" not in subprocess.run(listing, capture_output=True, text=True, check=False).stdout
    ):
        return "there is no JDK: `java --list-modules` has no jdk.compiler, which Rows.java needs"
    mark = LIBRARIES / f".installed-{hashlib.sha256((JMS / 'pom.xml').read_bytes()).hexdigest()[:16]}"
    return "" if mark.exists() else "Apache Qpid JMS is not there: scripts/setup fetches it with Maven"


@pytest.fixture
async def node(start_node: StartNode) -> AsyncIterator[NodeInMemory]:
    """Give a node with one user."""
    access = TypeAdapter(AccessConfig).validate_python({"password_file": "users", "anonymous": "always"})
    users = PasswordFile(users=MappingProxyType({"alice": cheap_hash(b"wonder")}))
    gate = Gate(access, passwords=users, monotonic=lambda: 0.0, logger=structlog.get_logger())
    yield await start_node(gate=gate)
    await gate.close()


@pytest.mark.parametrize("modules", [None, "java.base@17.0.15", "java.base@17.0.15\njdk.compiler@17.0.15"])
def test_a_jdk_is_named_where_it_is_missing(
    modules: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runtime alone cannot run a source file."""
    if modules is not None:
        (tmp_path / "java").write_text(f"#!/bin/sh\nprintf '%s\\n' '{modules}'\n")
        (tmp_path / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ("JDK" in missing()) == ("jdk.compiler" not in (modules or ""))


async def test_every_row_with_qpid_jms(node: NodeInMemory) -> None:
    """Each row of docs/reference/jms.md holds for a real JMS client."""
    if why := missing():
        pytest.skip(why)
    pytest.importorskip("proton", reason="python-qpid-proton is not installed (extra amqp)")
    process = await asyncio.create_subprocess_exec(
        "java",
        "-Xshare:auto",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        f"{LIBRARIES}{os.sep}*",
        str(JMS / "Rows.java"),
        f"amqp://127.0.0.1:{amqp_port(node)}",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    lines: list[str] = []
    async with asyncio.timeout(200):
        while line := (await process.stdout.readline()).decode().strip():
            lines.append(line)
            match line.split():
                case ["?", "clear", topic]:
                    await clear(node, topic.encode())
                    process.stdin.write(b"done\n")
                case ["?", "advance", seconds]:
                    node.clock.advance(float(seconds))
                    process.stdin.write(b"done\n")
        errors = (await process.stderr.read()).decode()
        await process.wait()
    done = [line for line in lines if line.startswith("ok ")]
    assert len(done) == ROWS, "\n".join([*lines, errors[:8000]])


async def clear(node: NodeInMemory, topic: bytes) -> None:
    """Send a retained message without payload over MQTT."""
    async with await RawClient.connect(node.port, username="alice", password=b"wonder") as client:
        client.send(Publish(topic, b"", 1, retain=True, packet_id=1))
        await client.expect(Ack)
