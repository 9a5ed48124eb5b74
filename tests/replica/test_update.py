"""The update and its digest."""

from __future__ import annotations

from xxhash import xxh3_64_intdigest

from fanout.replica.update import ChangeKind, Phase, content_digest


def test_content_digest_separates_topic_and_payload() -> None:
    """The same bytes cut differently have different digests, and the digest is xxh3 over both parts."""
    assert content_digest(b"ab", b"c") != content_digest(b"a", b"bc")
    assert content_digest(b"a", b"b") == xxh3_64_intdigest(b"a\0b")


def test_numbers_in_the_replication_log_do_not_change() -> None:
    """Logs are read years later: the numbers of kinds and phases are fixed."""
    assert {kind.name: kind.value for kind in ChangeKind} == {
        "NEW": 1,
        "REPLACED": 2,
        "REMOVED": 3,
        "MESSAGE": 4,
        "UNCHANGED": 5,
        "REFUSED": 6,
    }
    assert {phase.name: phase.value for phase in Phase} == {"LIVE": 0, "SNAPSHOT": 1, "AUDIT": 2}
