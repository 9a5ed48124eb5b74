"""How a fanout node marks a value that the nodes below it have already, for it expires at another time than they know.

Owns the User Property, and how it gets on a message and off it. Clients that have a value are not told when only its
expiry changes; a node below must be, or it removes the value too early, or serves it too long. So `fanout.server` sends
the value once more to such sessions alone, with this mark, and `fanout.link` takes it as a copy: what is held already
is not delivered again.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from operator import itemgetter

from fanout.mqtt.decoder import PublishRow
from fanout.replica.update import Update

__all__ = ["has_marked", "is_marked", "mark", "unmark"]


def _encode(name: str, value: str) -> bytes:
    pair = (name.encode(), value.encode())
    return b"\x26" + b"".join(struct.pack(">H", len(text)) + text for text in pair)  # 0x26: User Property


_MARK = _encode("fanout-copy", "1")
_PROPERTIES = itemgetter(4)


def mark(update: Update) -> Update:
    """Return an update with the mark."""
    return (*update[:4], update[4] + _MARK, *update[5:])


def has_marked(rows: Sequence[PublishRow]) -> bool:
    """Say whether some of the PUBLISH packets of a fanout node may have the mark; true for all that have one."""
    return _MARK in b"".join(map(_PROPERTIES, rows))


def is_marked(row: PublishRow) -> bool:
    """Say whether a PUBLISH of a fanout node has the mark."""
    return _MARK in row[4]


def unmark(row: PublishRow) -> PublishRow:
    """Return a PUBLISH without the mark; its stamp stays."""
    return (*row[:4], row[4].replace(_MARK, b""), *row[5:])
