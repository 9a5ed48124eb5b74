"""What a fanout node tells of the retained messages that answer a SUBSCRIBE: how many they are, and their digest.

Owns the User Property that asks, the two messages around the retained ones, and the sum; `fanout.server` sends,
`fanout.link` compares. A link asks with the User Property in SUBSCRIBE, and the same one in SUBACK promises. Count and
digest cannot stand there: the values are looked up while they are sent, so that nothing has to be searched or held for
a slow reader, and they may change until then. So they follow: a message in front of the first retained one and one
behind the last, both to this session alone, and in between nothing else that looks like a retained message.

What belongs to the set and could not be sent, for instance because it is too large for the client, is in the sum, so
that it is missed. A value for which a newer live message waits is not: that message is sent behind the set.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from fanout.peer_text import read_document
from fanout.replica.update import content_digest

__all__ = ["ASK_FOR_MANIFEST", "MANIFEST_TOPIC", "Manifest", "ManifestSum", "decode_manifest"]

ASK_FOR_MANIFEST = ("fanout-manifest", "1")
"""User Property of SUBSCRIBE by which a link asks for a manifest, and of SUBACK by which a server promises one."""

MANIFEST_TOPIC = b"$SYS/fanout/manifest"
"""Topic of the messages."""

_DIGEST_MASK = 2**64 - 1
_DOCUMENT_BYTES_MAX = 6 * 65_535 + 256
"""Size of the largest message: JSON has up to six characters for one of the Topic Filter."""
_DIGEST = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What one of the messages says."""

    topic_filter: str
    """The Topic Filter whose retained messages it is about."""
    count: int | None
    """How many they are; None in front of them."""
    digest: int = 0
    """The sum of their content digests modulo 2**64."""

    def encode(self) -> bytes:
        """Return the payload."""
        document = {"filter": self.topic_filter, "count": self.count, "digest": f"{self.digest:016x}"}
        return json.dumps(document).encode()


def decode_manifest(payload: bytes) -> Manifest | None:
    """Return what a message says; None when it is not one."""
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
    """The sum over retained messages, at either end.

    Attributes:
        count: How many.
        digest: The sum of their content digests modulo 2**64.
    """

    __slots__ = ("count", "digest")

    def __init__(self) -> None:
        self.count = 0
        self.digest = 0

    def add(self, topic: bytes, payload: bytes) -> None:
        """Add one; the topic is that at the server, on both sides."""
        self.count += 1
        self.digest = (self.digest + content_digest(topic, payload)) & _DIGEST_MASK
