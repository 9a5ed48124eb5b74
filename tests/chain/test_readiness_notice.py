"""The document by which a node tells those below it how it stands."""

from __future__ import annotations

import json

import pytest

from fanout.chain.readiness_notice import (
    DOCUMENT_BYTES_MAX,
    PATH_NODES_MAX,
    PATHS_MAX,
    ReadinessNotice,
    decode_readiness_notice,
    encode_readiness_notice,
    join,
)


@pytest.mark.parametrize(
    "notice",
    [
        ReadinessNotice("", (("hub",),)),
        ReadinessNotice("link plant is down", (("hub", "a"), ("b", "a"))),
        ReadinessNotice("", ()),
    ],
)
def test_document_says_what_was_meant(notice: ReadinessNotice) -> None:
    """What is written is read again."""
    assert decode_readiness_notice(encode_readiness_notice(notice)) == notice


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"true",
        b"\xff",
        b"[" * 5000,
        b'{"ready": true}',
        b'{"ready": true, "reason": "", "paths": 3}',
        b'{"ready": true, "reason": "", "paths": {"a": 1}}',
        b'{"ready": true, "reason": "", "paths": [["\\ud800"]]}',
        b'{"ready": true, "reason": "", "paths": [["hub", "no name"]]}',
        b'{"ready": true, "reason": "", "paths": [[7]]}',
        b'{"ready": true, "reason": "", "paths": [7]}',
        b'{"ready": false, "reason": "' + b"x" * DOCUMENT_BYTES_MAX + b'", "paths": []}',
    ],
)
def test_anything_else_is_no_document(payload: bytes) -> None:
    """What another program put there is not believed, and does no harm."""
    assert decode_readiness_notice(payload) is None


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (r'"\ud800"', "\ufffd"),
        (r'"\u001b[2J\u202ehub\n"', "\ufffd[2J\ufffdhub "),
        ('"' + "x" * 60_000 + '"', "x" * 511 + "…"),
        ("7", "it does not say why"),
        ('["x"]', "it does not say why"),
        ('""', "it does not say why"),
    ],
)
def test_a_reason_is_short_and_printable(reason: str, told: str) -> None:
    """What a node above wrote can go on into every answer, line and document."""
    notice = decode_readiness_notice(b'{"ready": false, "reason": %b, "paths": []}' % reason.encode())
    assert notice == ReadinessNotice(told, ())
    assert decode_readiness_notice(encode_readiness_notice(notice)) == notice


def test_paths_are_bounded() -> None:
    """So many paths, and of each the nodes nearest to the one that tells; own documents keep to it, at any size."""
    many = [[f"n{number}"] for number in range(1000)]
    notice = decode_readiness_notice(json.dumps({"ready": True, "reason": "", "paths": many}).encode())
    assert notice is not None
    assert len(notice.paths) == PATHS_MAX
    long = [[f"n{number}" for number in range(1000)]]
    notice = decode_readiness_notice(json.dumps({"ready": True, "reason": "", "paths": long}).encode())
    assert notice is not None
    assert notice.paths == (tuple(long[0][-PATH_NODES_MAX:]),)
    assert join("me", notice.paths) == ((*long[0][1 - PATH_NODES_MAX :], "me"),)
    largest = tuple(tuple(f"{path:0>32}{node:0>32}" for node in range(PATH_NODES_MAX)) for path in range(PATHS_MAX))
    document = encode_readiness_notice(ReadinessNotice("x" * 10_000, largest))
    told = decode_readiness_notice(document)
    assert told is not None
    assert told.paths
    assert told.paths == largest[: len(told.paths)]


def test_only_true_is_ready() -> None:
    """A document that does not clearly say ready means not ready, also without a reason."""
    notice = decode_readiness_notice(b'{"ready": 1, "reason": "", "paths": []}')
    assert notice is not None
    assert notice.reason


def test_paths_grow_by_the_node() -> None:
    """Each way from above is continued, once; a node without any is the top."""
    assert join("c", [("hub", "a"), ("hub", "b"), ("hub", "a")]) == (("hub", "a", "c"), ("hub", "b", "c"))
    assert join("c", []) == (("c",),)
    assert len(join("c", [(str(number),) for number in range(1000)])) == PATHS_MAX
    assert ReadinessNotice("", (("a",), ("hub", "a"))).hops == 2
