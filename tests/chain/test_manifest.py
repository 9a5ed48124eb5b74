"""What a fanout node tells of the retained messages that it sent."""

from __future__ import annotations

import pytest

from fanout.chain.manifest import Manifest, ManifestSum, decode_manifest
from fanout.replica.update import content_digest


@pytest.mark.parametrize(
    "manifest",
    [Manifest("plant/+", None), Manifest("#", 0), Manifest("ä/#", 7, 2**64 - 1), Manifest("\x01" * 65_535, 2**60)],
)
def test_what_is_encoded_is_read_back(manifest: Manifest) -> None:
    """In front of a set, of an empty one, and with the largest digest."""
    assert decode_manifest(manifest.encode()) == manifest


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"{}",
        b"[1]",
        b'{"filter": "#", "count": "x", "digest": "0"}',
        b'{"filter": "#", "count": Infinity, "digest": "0000000000000000"}',
        b'{"filter": "#", "count": 1.5, "digest": "0000000000000000"}',
        b'{"filter": "#", "count": -1, "digest": "0000000000000000"}',
        b'{"filter": "#", "count": true, "digest": "0000000000000000"}',
        b'{"filter": "#", "count": %b, "digest": "0000000000000000"}' % (b"9" * 40),
        b'{"filter": "#", "count": 1, "digest": "%b"}' % (b"f" * 1_000_000),
        b'{"filter": "#", "count": 1, "digest": "%b"}' % (b"f" * 17),
        b'{"filter": "#", "count": 1, "digest": "-000000000000001"}',
        b'{"filter": 7, "count": 1, "digest": "0000000000000000"}',
        b"[" * 5000,
    ],
)
def test_anything_else_is_none(payload: bytes) -> None:
    """A payload that is no manifest says nothing."""
    assert decode_manifest(payload) is None


def test_the_sum_is_that_of_the_digests() -> None:
    """In any order, modulo 2**64."""
    pairs = [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]
    sums = (ManifestSum(), ManifestSum())
    for topic, payload in pairs:
        sums[0].add(topic, payload)
    for topic, payload in reversed(pairs):
        sums[1].add(topic, payload)
    assert sums[0].count == sums[1].count == 3
    assert sums[0].digest == sums[1].digest == sum(content_digest(*pair) for pair in pairs) % 2**64
