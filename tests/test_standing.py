"""The document by which a node tells those below it how it stands."""

from __future__ import annotations

import pytest

from fanout.standing import PATHS_MAX, Standing, decode_standing, encode_standing, join


@pytest.mark.parametrize(
    "standing",
    [Standing("", (("hub",),)), Standing("link plant is down", (("hub", "a"), ("b", "a"))), Standing("", ())],
)
def test_document_says_what_was_meant(standing: Standing) -> None:
    """What is written is read again."""
    assert decode_standing(encode_standing(standing)) == standing


@pytest.mark.parametrize(
    "payload", [b"", b"true", b"\xff", b"[" * 5000, b'{"ready": true}', b'{"ready": true, "reason": "", "paths": 3}']
)
def test_anything_else_is_no_document(payload: bytes) -> None:
    """What another program put there is not believed, and does no harm."""
    assert decode_standing(payload) is None


def test_only_true_is_ready() -> None:
    """A document that does not clearly say ready means not ready, also without a reason."""
    standing = decode_standing(b'{"ready": 1, "reason": "", "paths": []}')
    assert standing is not None
    assert standing.reason


def test_paths_grow_by_the_node() -> None:
    """Each way from above is continued, once; a node without any is the top."""
    assert join("c", [("hub", "a"), ("hub", "b"), ("hub", "a")]) == (("hub", "a", "c"), ("hub", "b", "c"))
    assert join("c", []) == (("c",),)
    assert len(join("c", [(str(number),) for number in range(1000)])) == PATHS_MAX
    assert Standing("", (("a",), ("hub", "a"))).hops == 2
