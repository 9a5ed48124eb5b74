"""Files of a node: for its user and group, whatever the umask of whoever starts it."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from tests.support.mosquitto import publish_all, publisher
from tests.support.nodes import Nodes

DISC = '[retained]\nstorage = "disc"\n[sessions]\nstorage = "disc"\n'


def made(directory: Path) -> Iterator[Path]:
    """Yield what a node has made: log, values, sessions and their directories, not its configuration and output."""
    for path in directory.rglob("*"):
        if not (path.parent == directory and path.suffix in (".toml", ".log", ".txt")):
            yield path


async def test_files_are_for_user_and_group(nodes: Nodes, tmp_path: Path) -> None:
    """They have topics, payloads and Client Identifiers, so nobody else on the machine reads them."""
    hub = await nodes.primary(settings=DISC).begin()
    with publisher(hub.port) as client:
        publish_all(client, [(f"plant/{number}", b"1") for number in range(10)], qos=1)
    hub.stop()
    files = list(made(nodes.directory))
    assert {path.suffix for path in files} >= {".parquet", ".sqlite"}, files
    assert [path for path in files if stat.S_IMODE(path.stat().st_mode) & 0o027] == []
