"""Cuts: places in the stream of a primary that all members of a pool have in common, and what a replica holds there.

A message that all members receive splits each one's stream at the same place. Their replicas can be compared there,
however far behind one of them is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["MARKER_CHARACTERS_MAX", "Cut", "RetainedSet", "cut_of_document", "differing_selectors"]

MARKER_CHARACTERS_MAX = 48
"""Longest marker: two numbers of 64 bits and a space have 41."""
_DIGEST = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class RetainedSet:
    """Content of a replica for one selector."""

    count: int
    """Number of topics."""
    digest: int
    """Sum of the content digests of their values, unsigned 64 bits (`fanout.replica.store.Replica.digest`)."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A replica at the place of one message in the stream of its primary."""

    marker: str
    """Payload of the message, which no other message of the pool has."""
    sets: tuple[RetainedSet | None, ...]
    """Content of the replica for each selector; None for one that members may hold differently."""

    def document(self) -> dict[str, Any]:
        """Return the cut as JSON has it."""
        sets = [None if one is None else [one.count, f"{one.digest:016x}"] for one in self.sets]
        return {"marker": self.marker, "sets": sets}


def cut_of_document(document: object) -> Cut:
    """Return the cut in a part of a peer's JSON document.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(document, Mapping):
        raise ValueError("a cut is no JSON object")
    marker, sets = document.get("marker"), document.get("sets")
    if not isinstance(marker, str) or len(marker) > MARKER_CHARACTERS_MAX or not isinstance(sets, list):
        raise ValueError("a cut without a legal marker or sets")
    return Cut(marker, tuple(None if one is None else _set_of(one) for one in sets))


def _set_of(document: object) -> RetainedSet:
    if not isinstance(document, list) or len(document) != 2:
        raise ValueError("a set of a cut is no pair")
    count, digest = document
    if type(count) is not int or count < 0 or not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ValueError("a set of a cut has no legal count or digest")
    return RetainedSet(count, int(digest, 16))


def differing_selectors(ours: Cut, theirs: Cut) -> tuple[int, ...] | None:
    """Return the positions of the selectors whose sets differ; None when nothing in the cuts can be compared.

    Args:
        ours: One replica at a cut.
        theirs: Another one at the same cut.
    """
    if ours.marker != theirs.marker or len(ours.sets) != len(theirs.sets):
        return None
    pairs = [
        (index, one == other)
        for index, (one, other) in enumerate(zip(ours.sets, theirs.sets, strict=True))
        if one is not None and other is not None
    ]
    return tuple(index for index, equal in pairs if not equal) if pairs else None
