"""Who is dead and who is isolated, by what a node hears of the others and of itself."""

from __future__ import annotations

from itertools import product

import pytest

from fanout.pool.failure_detection import FailureDetector, LifeSigns, isolated_after_s

NEVER = float("-inf")
B = "edge-2"


def run(
    detector: FailureDetector,
    *,
    until_s: float,
    since_s: float,
    answered_s: float | None,
    at_primary_s: float = NEVER,
    own_s: tuple[float | None, ...] = (),
    name: str = B,
) -> None:
    """Look ten times a second; what is heard stops at the given times, and own heartbeats leave each second."""
    for tenth in range(round(since_s * 10), round(until_s * 10) + 1):
        now_s = tenth / 10
        answered = None if answered_s is None else min(now_s, answered_s)
        heard_s = max(since_s if answered is None else answered, min(now_s, at_primary_s))
        own = [None if one is None else float(min(now_s, one) // 1) for one in own_s]
        detector.look([LifeSigns(name, heard_s, answered)], own_sent_s=own, now_s=now_s)


ALWAYS = 1e9


@pytest.mark.parametrize(
    ("answered_s", "at_primary_s", "own_s", "until_s", "is_dead", "is_isolated"),
    [
        # Silent everywhere, and the primary is there.
        (10.0, 10.0, (ALWAYS,), 12.9, False, False),
        (10.0, 10.0, (ALWAYS,), 13.1, True, False),
        (None, NEVER, (ALWAYS,), 3.1, True, False),
        # Heard on one way.
        (ALWAYS, NEVER, (ALWAYS,), 60.0, False, False),
        (10.0, ALWAYS, (ALWAYS,), 60.0, False, False),
        (ALWAYS, NEVER, (NEVER,), 60.0, False, False),
        # This node is cut off: it finds nobody dead, however long that takes.
        (10.0, 10.0, (10.0,), 11.9, False, False),
        (10.0, 10.0, (10.0,), 12.1, False, True),
        (10.0, 10.0, (10.0,), 60.0, False, True),
        (10.0, ALWAYS, (10.0,), 60.0, False, True),
        # The primary went when the member did, or soon after it.
        (10.0, 10.0, (11.0,), 60.0, False, True),
        (10.0, 10.0, (None,), 60.0, False, True),
        # A member was found dead before the primary went.
        (10.0, 10.0, (20.0,), 60.0, True, False),
        # Links to two primaries, one of which is away.
        (10.0, 10.0, (ALWAYS, 5.0), 60.0, False, False),
        (10.0, 10.0, (ALWAYS, None), 60.0, False, False),
        (10.0, 10.0, (ALWAYS, ALWAYS), 60.0, True, False),
        # No link may publish heartbeats: silence decides, and nobody tells this node that it is heard.
        (10.0, 10.0, (), 12.9, False, True),
        (10.0, 10.0, (), 13.1, True, True),
        (10.0, ALWAYS, (), 60.0, False, True),
    ],
)
def test_verdicts(
    answered_s: float | None,
    at_primary_s: float,
    own_s: tuple[float | None, ...],
    until_s: float,
    is_dead: bool,
    is_isolated: bool,
) -> None:
    """With `dead_after_s = 3`, of one other member, after so many seconds."""
    detector = FailureDetector(dead_after_s=3.0)
    run(detector, until_s=until_s, since_s=0.0, answered_s=answered_s, at_primary_s=at_primary_s, own_s=own_s)
    assert (detector.dead, detector.is_isolated) == (frozenset({B} if is_dead else ()), is_isolated)


def test_a_verdict_holds_until_the_member_is_heard() -> None:
    """Though the primary goes; the member counts again from then on, and another one is judged by itself."""
    detector = FailureDetector(dead_after_s=3.0)
    run(detector, until_s=20.0, since_s=0.0, answered_s=5.0, own_s=(15.0,))
    assert (detector.dead, detector.is_isolated) == (frozenset({B}), False)
    run(detector, until_s=21.0, since_s=20.1, answered_s=20.5, own_s=(15.0,))
    assert (detector.dead, detector.is_isolated) == (frozenset(), False)
    run(detector, until_s=23.0, since_s=21.1, answered_s=20.5, own_s=(15.0,))
    assert (detector.dead, detector.is_isolated) == (frozenset(), True)
    former, present = LifeSigns(B, 5.0, 5.0), LifeSigns(B, 23.1, 23.1)  # at two addresses
    for signs in ([former, present], [present, former]):
        detector.look(signs, own_sent_s=[15.0], now_s=23.1)
        assert (detector.dead, detector.is_isolated) == (frozenset(), False)
    detector.look([], own_sent_s=[15.0], now_s=60.0)
    assert (detector.dead, detector.is_isolated) == (frozenset(), False)


def test_a_pause_of_this_node_is_no_silence_of_the_others() -> None:
    """A heartbeat that waited in the socket comes first, and would be a witness; this node is isolated at once."""
    detector = FailureDetector(dead_after_s=3.0)
    run(detector, until_s=10.0, since_s=0.0, answered_s=ALWAYS, at_primary_s=ALWAYS, own_s=(ALWAYS,))
    detector.look([LifeSigns(B, 10.0, 10.0)], own_sent_s=[10.0], now_s=20.0)
    assert (detector.dead, detector.is_isolated) == (frozenset(), True)
    detector.look([LifeSigns(B, 10.0, 10.0)], own_sent_s=[20.0], now_s=20.1)
    assert (detector.dead, detector.is_isolated) == (frozenset(), False)
    run(detector, until_s=22.9, since_s=20.2, answered_s=10.0, own_s=(ALWAYS,))
    assert detector.dead == frozenset()
    run(detector, until_s=23.2, since_s=23.0, answered_s=10.0, own_s=(ALWAYS,))
    assert detector.dead == {B}


def test_a_long_pause_of_this_node_takes_verdicts_back() -> None:
    """The member may have come back meanwhile, and have found this node dead; a short pause cannot hide that."""
    for pause_s, is_dead in ((1.9, True), (2.1, False)):
        detector = FailureDetector(dead_after_s=3.0)
        run(detector, until_s=20.0, since_s=0.0, answered_s=5.0, own_s=(ALWAYS,))
        assert detector.dead == {B}
        detector.look([LifeSigns(B, 5.0, 5.0)], own_sent_s=[20.0], now_s=20.0 + pause_s)
        assert (detector.dead == {B}) is is_dead


@pytest.mark.parametrize(("dead_after_s", "expected_s"), [(1.0, 0.5), (2.0, 1.0), (3.0, 2.0), (20.0, 19.0)])
def test_a_node_is_isolated_before_it_is_dead(dead_after_s: float, expected_s: float) -> None:
    """By a second, or by half of the time."""
    assert isolated_after_s(dead_after_s) == expected_s
    assert FailureDetector(dead_after_s=dead_after_s).isolated_after_s == expected_s


@pytest.mark.parametrize("dead_after_s", [1.0, 3.0])
def test_of_two_nodes_that_part_none_is_dead_before_it_is_isolated(dead_after_s: float) -> None:
    """Whenever the ways between them, and of each to the primary, break: each finds the other dead after its end."""
    for peers_s, first_s, second_s in product((3, 4, 5, 9, 14, 30), repeat=3):
        ways = {"a": first_s, "b": second_s}
        detectors = {name: FailureDetector(dead_after_s=dead_after_s) for name in ways}
        for tenth in range(180):
            now_s = tenth / 10
            for name, other in (("a", "b"), ("b", "a")):
                answered_s = min(now_s, float(peers_s))
                at_primary_s = float(min(now_s, *ways.values()) // 1)  # the last heartbeat of the other that came here
                own_s = float(min(now_s, ways[name]) // 1)
                signs = LifeSigns(other, max(answered_s, at_primary_s), answered_s)
                detectors[name].look([signs], own_sent_s=[own_s], now_s=now_s)
            for name, other in (("a", "b"), ("b", "a")):
                if other in detectors[name].dead:
                    moment = (peers_s, first_s, second_s, now_s)
                    assert detectors[other].is_isolated, moment
