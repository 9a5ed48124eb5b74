"""Older versions of fanout: their code out of the history, and data directories that they wrote.

`python -m tests.support.former NAME` writes `tests/acceptance/former/NAME.tar.gz` anew with the code of that commit:
the data of a `fanout primary` that was stopped, started again, and killed. It needs the history.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench.processes import Node
from fanout.mqtt.packets import Ack, PacketType, Publish
from fanout.mqtt.properties import Properties
from tests.support.durable import come_back
from tests.support.mosquitto import publish_all, publisher
from tests.support.raw_client import RawClient

__all__ = ["DATA", "FORMERS", "FOR_EVER", "NUMBERS", "SESSIONS", "VALUES", "code_of", "environment_of"]

DATA: Final = Path(__file__).parents[1] / "acceptance" / "former"
"""Where the data directories are."""
_RETAINED: Final = '[retained]\nstorage = "disc"\n'
SESSIONS: Final = f'session_expiry_max_s = 4_294_967_294\n{_RETAINED}[sessions]\nstorage = "disc"\n'
FORMERS: Final = {
    "f7e1a77d": _RETAINED,  # format 1 of the file
    "1d94cfa9": _RETAINED,  # format 2
    "0abe60ba": SESSIONS,  # format 3, version 1 of sessions, form 1 of copies
}
"""For each commit further lines for `[server]`, and the sections, of a configuration with what it can have on disk.

Nothing in it may expire: the data is read long after it was made."""
VALUES: Final = {f"plant/{number}": b"%d" % number for number in range(100)}
"""Retained values that are there when it is killed."""
NUMBERS: Final = range(10)
"""Numbers that wait for the session `stays`; it has answered the first, at QoS 2, by PUBREC."""
FOR_EVER: Final = Properties(session_expiry_interval=0xFFFF_FFFF)
"""Properties of a CONNECT with a session that never expires."""


def code_of(commit: str, directory: Path) -> bool:
    """Put the code of a commit into a directory; return False where there is no such history."""
    root = Path(__file__).parents[2]
    archive = directory / "code.tar"
    with archive.open("wb") as file:
        command = ["git", "archive", commit, "fanout"]
        answer = subprocess.run(command, cwd=root, stdout=file, stderr=subprocess.DEVNULL, check=False)
    if answer.returncode == 0:
        with tarfile.open(archive) as members:
            members.extractall(directory, filter="data")
    return answer.returncode == 0


def environment_of(directory: Path) -> Mapping[str, str]:
    """Return the environment in which `python -m fanout` is the code in a directory."""
    return {**os.environ, "PYTHONPATH": str(directory), "PYTHONSAFEPATH": "1"}


class _FormerNode(Node):
    """A `fanout primary` of an older version, with what all versions know of the configuration."""

    def _prepare(self) -> None:
        self._config.write_text(
            f'[node]\nid = "{self.name}"\ndata_directory = "{self._data_directory}"\n'
            f'[server]\nlisten = ["{self.address}"]\n{self.settings}'
            f'[http]\nlisten = "{self.host}:{self.http_port}"\n[log]\ndirectory = "{self.log_directory}"\n'
        )


async def _make(commit: str, scratch: Path) -> None:
    code = scratch / "code"
    code.mkdir()
    if not code_of(commit, code):
        raise SystemExit(f"there is no commit {commit} in this history")
    node = _FormerNode(scratch, role="primary", name="hub", settings=FORMERS[commit])
    node.environment = dict(environment_of(code))
    has_session = "sessions" in node.settings
    node.start()
    with publisher(node.port) as client:
        publish_all(client, ((topic, b"old") for topic in VALUES))
    if has_session:
        async with await come_back(node.port, "stays", properties=FOR_EVER) as reader:
            await reader.subscribe(b"plant/n", qos=2)
    node.restart()
    with publisher(node.port) as client:
        publish_all(client, list(VALUES.items()))
        publish_all(client, [("plant/n", b"%d" % number) for number in NUMBERS], qos=2, retain=False)
    if has_session:
        await _answer_once(await come_back(node.port, "stays", properties=FOR_EVER))
    time.sleep(2)  # each version has written its log by then
    node.kill()
    with tarfile.open(DATA / f"{commit}.tar.gz", "w:gz") as archive:
        for name in ("hub", "replication-log"):
            archive.add(scratch / name, name)


async def _answer_once(reader: RawClient) -> None:
    """Take the first message by PUBREC, and go when the server has it."""
    async with reader:
        packet = await reader.expect(Publish)
        assert packet.packet_id is not None
        reader.send(Ack(PacketType.PUBREC, packet.packet_id))
        while not (isinstance(answer := await reader.receive(), Ack) and answer.type is PacketType.PUBREL):
            pass


if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    for name in sys.argv[1:] or FORMERS:
        with tempfile.TemporaryDirectory() as place:
            asyncio.run(_make(name, Path(place)))
