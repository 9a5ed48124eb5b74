"""Updates and stores for tests of what is on disk."""

from __future__ import annotations

from pathlib import Path

from fanout.kept.file import KeptFile
from fanout.replica.update import Update, content_digest

__all__ = ["contents", "opened", "value"]


def value(topic: bytes, payload: bytes = b"1", *, received_ns: int = 1, expires_ns: int = 0) -> Update:
    """Return a retained update."""
    return (topic, payload, 1, True, b"", received_ns, expires_ns, content_digest(topic, payload), None)


def opened(path: Path) -> KeptFile:
    """Return the file at `path`, open."""
    return KeptFile(path, sync="interval")


def contents(file: KeptFile, store: str) -> dict[bytes, bytes]:
    """Return topics and payloads of a store."""
    return {update[0]: update[1] for piece in file.read(store) for update in piece}
