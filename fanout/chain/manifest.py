"""Manifest of the retained messages that answer a SUBSCRIBE between fanout nodes: their count and their digest.

A link requests it with a User Property in SUBSCRIBE, and the same one in SUBACK promises it. `fanout.server` sends it,
`fanout.link` compares it with the messages that came. Count and digest cannot stand in SUBACK: the values are looked up
while they are sent, so that nothing has to be searched or held for a slow reader, and they may change until then. So
they follow in two messages to this session alone: one before the first retained message, and one after the last. In
between comes nothing else that looks like a retained message.

Messages of the set that could not be sent, for instance because they are too large for the client, are in the sum, so
that they are missed. A value with a newer waiting live message is not: that message is sent after the set.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from fanout.peer_text import read_document
from fanout.replica.update import content_digest

__all__ = ["ASK_FOR_MANIFEST", "MANIFEST_TOPIC", "Manifest", "ManifestSum", "decode_manifest"]

ASK_FOR_MANIFEST = ("fanout-manifest", "1")
"""User Property of SUBSCRIBE that requests a manifest, and of SUBACK that promises one."""

MANIFEST_TOPIC = b"$SYS/fanout/manifest"
"""Topic of a manifest."""

_DIGEST_MASK = 2**64 - 1
_DOCUMENT_BYTES_MAX = 6 * 65_535 + 256
"""Size of the largest manifest: JSON needs up to six characters for one of the Topic Filter."""
_DIGEST = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Manifest:
    """Content of one of the two messages."""

    topic_filter: str
    """Topic Filter of the SUBSCRIBE."""
    count: int | None
    """Number of retained messages; None in the message before them."""
    digest: int = 0
    """Sum of their content digests modulo 2**64."""

    def encode(self) -> bytes:
        """Return the payload."""
        document = {"filter": self.topic_filter, "count": self.count, "digest": f"{self.digest:016x}"}
        return json.dumps(document).encode()


def decode_manifest(payload: bytes) -> Manifest | None:
    """Decode a manifest; None when it is invalid."""
    try:
        document = read_document(payload, bytes_max=_DOCUMENT_BYTES_MAX)
        topic_filter, count, digest = document["filter"], document["count"], document["digest"]
        if not isinstance(topic_filter, str) or _DIGEST.fullmatch(digest) is None:
            return None
        if count is not None and (type(count) is not int or count < 0):
            return None
        return Manifest(topic_filter, count, int(digest, 16))
    except (ValueError, KeyError, TypeError):
        return None


class ManifestSum:
    """Sum over retained messages, at either end.

    Attributes:
        count: Number of messages.
        digest: Sum of their content digests modulo 2**64.
    """

    __slots__ = ("count", "digest")

    def __init__(self) -> None:
        self.count = 0
        self.digest = 0

    def add(self, topic: bytes, payload: bytes) -> None:
        """Add a message, with its topic at the server."""
        self.count += 1
        self.digest = (self.digest + content_digest(topic, payload)) & _DIGEST_MASK
