"""Who is a member, who is suspect, and which address is one's own."""

from __future__ import annotations

from dataclasses import replace

from fanout.pool.membership import AskFailure, Membership
from tests.pool.test_member_facts import FACTS

OWN = replace(FACTS, node="edge-1", instance="11" * 8)
A, B, C = "127.0.0.1:9201", "127.0.0.1:9202", "127.0.0.1:9203"


def membership(*addresses: str, members_max: int = 16) -> Membership:
    """Return what edge-1 knows at the begin."""
    found = Membership(node="edge-1", instance=OWN.instance, suspect_after_s=0.5, members_max=members_max)
    found.set_addresses(addresses)
    return found


def reachable(known: Membership, now_s: float) -> dict[str, bool]:
    """Return the other members, each with whether it is reachable."""
    return {peer.address: known.is_reachable(peer, now_s=now_s) for peer in known.others()}


def test_a_member_is_suspect_when_it_is_silent() -> None:
    """Its newest answer counts, also while a question is under way; a new answer ends the suspicion."""
    known = membership(B)
    assert reachable(known, 10.0) == {B: False}
    known.note_answer(B, FACTS, asked_s=10.0, now_s=10.0)
    assert reachable(known, 10.5) == {B: True}
    assert reachable(known, 10.51) == {B: False}
    known.note_answer(B, FACTS, asked_s=12.0, now_s=12.0)
    assert reachable(known, 12.0) == {B: True}


def test_one_failure_does_not_make_a_member_suspect() -> None:
    """Silence does; the reason and what it said last are kept for people."""
    known = membership(B)
    known.note_answer(B, FACTS, asked_s=10.0, now_s=10.0)
    known.note_failure(B, AskFailure.TIMEOUT)
    assert reachable(known, 10.4) == {B: True}
    [peer] = known.others()
    assert (peer.facts, peer.failure) == (FACTS, AskFailure.TIMEOUT)
    known.note_answer(B, FACTS, asked_s=10.6, now_s=10.6)
    assert known.others()[0].failure is None


def test_a_member_that_lists_itself_recognizes_itself() -> None:
    """It is no other member, at whichever of its addresses; until another process answers there."""
    known = membership(A, B)
    known.note_answer(A, OWN, asked_s=10.0, now_s=10.0)
    assert set(reachable(known, 10.0)) == {B}
    known.note_failure(A, AskFailure.UNREACHABLE)
    assert set(reachable(known, 20.0)) == {B}
    known.note_answer(A, FACTS, asked_s=11.0, now_s=11.0)
    known.note_failure(B, AskFailure.UNREACHABLE)
    assert reachable(known, 11.0) == {A: True, B: False}


def test_another_process_with_the_same_identifier_is_no_member() -> None:
    """Two nodes with one `node.id` would take each other's session at the primary."""
    known = membership(B)
    assert known.note_answer(B, replace(FACTS, node="edge-1"), asked_s=10.0, now_s=10.0) is AskFailure.IDENTITY
    [peer] = known.others()
    assert (peer.facts, peer.failure) == (None, AskFailure.IDENTITY)
    assert reachable(known, 10.0) == {B: False}


def test_a_member_with_two_addresses_is_one_member() -> None:
    """The address that was heard last stands for it."""
    known = membership(B, C)
    known.note_answer(B, FACTS, asked_s=10.0, now_s=10.0)
    known.note_answer(C, FACTS, asked_s=10.2, now_s=10.2)
    assert reachable(known, 10.6) == {C: True}


def test_addresses_come_and_go() -> None:
    """What is known of the ones that stay is kept; an answer of one that has gone is none."""
    known = membership(A, B)
    known.note_answer(B, FACTS, asked_s=10.0, now_s=10.0)
    assert known.set_addresses([B, C]) == 0
    assert reachable(known, 10.0) == {B: True, C: False}
    known.note_answer(A, FACTS, asked_s=10.0, now_s=10.0)
    known.note_failure(A, AskFailure.TIMEOUT)
    assert known.addresses == (B, C)
    assert known.get(A) is None


def test_the_number_of_addresses_is_bounded() -> None:
    """The first ones are asked; how many are left out is told."""
    known = membership(members_max=2)
    assert known.set_addresses([A, A, B, C]) == 1
    assert known.addresses == (A, B)
