"""What a pass says about losses."""

from __future__ import annotations

import pytest

from fanout.link.verification import Losses, find_losses
from fanout.replica.store import PassResult
from fanout.replica.update import Stamp, Update

NOW = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
BEFORE = Stamp("root", 5, 100, 0)


def values(expires_ns: int = 0, stamp: Stamp | None = None) -> dict[bytes, Update]:
    """Return a replica of one topic."""
    return {b"a": (b"a", b"1", 1, True, b"", NOW, expires_ns, 0, stamp)}


def test_nothing_unseen_and_nothing_changed_is_no_loss() -> None:
    """A pass that brings what is held shows nothing."""
    losses = find_losses(PassResult((), ()), values(), before=None, now_ns=NOW)
    assert not losses
    assert losses == Losses(0, 0)


def test_unseen_and_changed_topics_are_losses() -> None:
    """Both are counted, and told."""
    both = values() | {b"b": (b"b", b"1", 1, True, b"", NOW, 0, 0, None)}
    losses = find_losses(PassResult((b"a",), (b"b",)), both, before=None, now_ns=NOW)
    assert losses == Losses(1, 1)
    assert str(losses) == "messages were lost: 1 topics vanished and 1 changed without a message"


@pytest.mark.parametrize(("in_s", "removed"), [(-1, 0), (0, 0), (2, 0), (3, 1)])
def test_a_value_about_to_expire_may_be_gone(in_s: int, removed: int) -> None:
    """Expiry travels in whole seconds, so the primary may be a little earlier."""
    losses = find_losses(PassResult((b"a",), ()), values(NOW + in_s * SECOND), before=None, now_ns=NOW)
    assert losses.removed == removed


@pytest.mark.parametrize(
    ("stamp", "before", "changed"),
    [
        (Stamp("root", 5, 101, 0), BEFORE, 0),
        (Stamp("root", 5, 100, 0), BEFORE, 1),
        (Stamp("root", 6, 101, 0), BEFORE, 1),
        (Stamp("other", 5, 101, 0), BEFORE, 1),
        (None, BEFORE, 1),
        (Stamp("root", 5, 101, 0), None, 1),
    ],
)
def test_the_sequence_tells_an_update_during_the_pass(stamp: Stamp | None, before: Stamp | None, changed: int) -> None:
    """Only a sequence of the same count, behind the one seen before the pass, excuses a change."""
    losses = find_losses(PassResult((), (b"a",)), values(stamp=stamp), before=before, now_ns=NOW)
    assert losses.changed == changed
