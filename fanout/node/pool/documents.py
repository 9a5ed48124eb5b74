"""Documents about the pool: what this node tells the other members, and what it shows of them over HTTP."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from fanout import __version__
from fanout.api.models import (
    HttpStatus,
    LinkLag,
    NodeState,
    PoolDocument,
    PoolMember,
    PoolStatus,
    utc_from_ns,
)
from fanout.config import LinkConfig
from fanout.durable.ownership.ports import CopyFigures
from fanout.pool.convergence import Verdict
from fanout.pool.member_facts import MemberFacts
from fanout.pool.membership import AskFailure
from fanout.pool.pool_members import OtherMember, PoolFigures
from fanout.selection import Selector

if TYPE_CHECKING:
    from fanout.durable.moving.session_pool import SessionPool
    from fanout.durable.ownership.ledger import SessionFigures

__all__ = ["PoolCopyFigures", "config_digest", "member_facts", "pool_document", "pool_status"]

_DIGEST_BYTES: Final = 8
_FAILURES: Final = {
    AskFailure.UNREACHABLE: "nothing answers there, or TLS does not accept the other side",
    AskFailure.TIMEOUT: "it does not answer in time",
    AskFailure.REFUSED: "it does not accept the token of this node",
    AskFailure.PROTOCOL: "it speaks another version of the pool's protocol",
    AskFailure.ANSWER: "it ended the connection, or what answers there is no member of a pool",
    AskFailure.IDENTITY: "it has the node.id of this node",
}


def config_digest(links: Iterable[LinkConfig]) -> str:
    """Return the digest of what a node replicates: the names of its links, and their selectors with every key."""
    what = [[link.name, [_keys_of(selector) for selector in link.selectors]] for link in links]
    return hashlib.blake2b(json.dumps(what).encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _keys_of(selector: Selector) -> dict[str, object]:
    # What a selector derives from its keys may be other objects in each process.
    return {field.name: getattr(selector, field.name) for field in dataclasses.fields(selector) if field.init}


class PoolCopyFigures(NamedTuple):
    """Figures of copies of sessions, and of the history from which these go on."""

    figures: CopyFigures
    """Figures of copies."""
    history_bytes: int
    """Bytes of recent updates."""
    history_s: float | None
    """Age of the oldest one, in seconds; None without any."""
    history_used: float
    """Part of what can be held that has come since the oldest message that waits for a session."""


def member_facts(
    instance: str,
    links: Iterable[LinkLag],
    *,
    node: str,
    state: str,
    topics: int,
    sessions: int,
    digest: str,
    moves: SessionFigures | None,
    client_address: str | None,
    http: tuple[int, bool] | None,
    copies: PoolCopyFigures | None,
) -> MemberFacts:
    """Return what a node tells the other members.

    Args:
        instance: Identity of its process.
        links: The lag of its links.
        node: Its `node.id`.
        state: Its state, as its readiness has it.
        topics: Retained topics that its clients can read.
        sessions: Sessions of its clients.
        digest: Digest of what it replicates.
        moves: Figures of sessions that moved; None for a node without.
        client_address: Address at which MQTT clients reach it; None when it does not say.
        http: Port of its HTTP interface, and whether that speaks TLS; None without one.
        copies: Figures of copies; None for a node that keeps none.
    """
    lags = [link.lag_seconds for link in links]
    known = [seconds for seconds in lags if seconds is not None]
    return MemberFacts(
        node=node,
        instance=instance,
        version=__version__,
        config_digest=digest,
        state=state,
        topics=topics,
        sessions=sessions,
        lag_s=max(known) if known and len(known) == len(lags) else None,
        moved_in=0 if moves is None else moves.moved_in_total,
        moved_out=0 if moves is None else moves.moved_out_total,
        client_address=client_address,
        http_port=None if http is None else http[0],
        http_tls=http is not None and http[1],
        keeps_copies=copies is not None,
        sessions_copied=None if copies is None else copies.figures.copied,
        copies_held=None if copies is None else copies.figures.held,
        copies_late_s=None if copies is None else copies.figures.oldest_unconfirmed_s,
        history_s=None if copies is None else copies.history_s,
        history_used=None if copies is None else copies.history_used,
    )


def pool_document(
    own: MemberFacts, others: Sequence[OtherMember], *, started_ns: int, fenced: bool = False
) -> PoolDocument:
    """Return the members as this node sees them.

    Args:
        own: Facts that this node tells the others.
        others: The other members.
        started_ns: When this node started, Unix time in nanoseconds.
        fenced: True if this node serves no durable session.
    """
    first = _member(own, address=None, reachable=True, failure=None, verdict=Verdict(True, started_ns))
    seen = [
        (
            _member(
                other.peer.facts,
                address=other.peer.address,
                reachable=other.reachable,
                failure=other.peer.failure,
                verdict=other.verdict,
            ),
            other.verdict.overdue,
        )
        for other in others
    ]
    seen.sort(key=lambda one: (one[0].node or "", one[0].address or ""))
    members = [first, *(member for member, _ in seen)]
    of_others: list[str] = []
    for member, overdue in seen:
        of_others += _reasons(member, own)
        if overdue:
            of_others.append(f"{own.node} and {member.node} do not hold the same values")
    of_fence = (f"{own.node} is fenced: it serves no durable session until the others have answered it",)
    reasons = *_reasons(first, own), *(of_fence if fenced else ()), *of_others
    return PoolDocument(
        node=own.node,
        ready=not reasons,
        reasons=reasons,
        members=tuple(members),
        fenced=fenced,
        stay_reasons=tuple(of_others) if seen else (f"{own.node} knows no other member",),
    )


def pool_status(
    document: PoolDocument,
    figures: PoolFigures,
    listener: HttpStatus,
    sessions: SessionPool,
    copies: PoolCopyFigures | None,
) -> PoolStatus:
    """Return the figures of the pool.

    Args:
        document: Its members.
        figures: Figures of the questions between members.
        listener: Connections of the listener for members.
        sessions: The sessions that move.
        copies: Figures of copies; None where none are kept.
    """
    moves = sessions.figures
    copies = copies or PoolCopyFigures(CopyFigures(), 0, None, 0.0)
    kept = copies.figures
    return PoolStatus(
        members=len(document.members),
        members_reachable=sum(member.reachable for member in document.members),
        members_ready=sum(member.ready is True for member in document.members),
        asked_total=figures.asked_total,
        ask_failures_total=figures.failures_total,
        answered_total=figures.answered_total,
        refused_total=figures.refused_total,
        members_equal=sum(member.digest_equal is True for member in document.members),
        cuts_compared_total=figures.cuts_compared_total,
        cuts_differed_total=figures.cuts_differed_total,
        repairs_total=figures.repairs_total,
        sessions_moved_in_total=moves.moved_in_total,
        sessions_moved_out_total=moves.moved_out_total,
        sessions_inexact_total=moves.inexact_total,
        sessions_ended_total=moves.ended_total,
        sessions_lost_total=moves.lost_total,
        sessions_copied=kept.copied,
        copies_held=kept.held,
        copies_held_bytes=kept.held_bytes,
        copies_oldest_unconfirmed_seconds=kept.oldest_unconfirmed_s,
        copies_sent_total=kept.sent_total,
        copies_sent_bytes_total=kept.sent_bytes_total,
        copies_failed_total=kept.failed_total,
        copies_alone_total=kept.alone_total,
        copies_refused_total=kept.refused_total,
        sessions_inherited_total=kept.inherited_total,
        sessions_not_inherited_total=kept.lost_total,
        history_bytes=copies.history_bytes,
        history_seconds=copies.history_s or 0.0,
        history_used_ratio=copies.history_used,
        fenced=document.fenced,
        fences_total=moves.fences_total,
        clients_later_total=moves.later_total,
        session_calls_total=sessions.calls_total,
        connections=listener.connections,
        closed_total=listener.closed_total,
    )


def _member(
    facts: MemberFacts | None, *, address: str | None, reachable: bool, failure: AskFailure | None, verdict: Verdict
) -> PoolMember:
    now = facts if reachable else None
    return PoolMember(
        node=None if facts is None else facts.node,
        address=address,
        url=None if facts is None or address is None else _url(facts, address),
        is_self=address is None,
        reachable=reachable,
        failure=None if failure is None else _FAILURES[failure],
        state=None if now is None else _state(now),
        ready=None if now is None else now.state == "ready",
        topics=None if now is None else now.topics,
        digest_equal=None if now is None else verdict.equal,
        digest_equal_since=None if now is None or verdict.since_ns is None else utc_from_ns(verdict.since_ns),
        lag=None if now is None else now.lag_s,
        sessions=None if now is None else now.sessions,
        moved_in=None if now is None else now.moved_in,
        moved_out=None if now is None else now.moved_out,
        sessions_copied=None if now is None else now.sessions_copied,
        copies_held=None if now is None else now.copies_held,
        copies_late_seconds=None if now is None else now.copies_late_s,
        history_seconds=None if now is None else now.history_s,
        history_used_ratio=None if now is None else now.history_used,
        version=None if facts is None else facts.version,
        config_digest=None if facts is None else facts.config_digest,
    )


def _url(facts: MemberFacts, address: str) -> str | None:
    """Return the HTTP interface of a member. The host is the configured one: operators send a token there."""
    if facts.http_port is None:
        return None
    return f"{'https' if facts.http_tls else 'http'}://{address.rpartition(':')[0]}:{facts.http_port}"


def _state(facts: MemberFacts) -> NodeState:
    states: dict[str, NodeState] = {
        "ready": "ready",
        "not_ready": "not_ready",
        "draining": "draining",
        "stopping": "stopping",
    }
    return states[facts.state]


def _reasons(member: PoolMember, own: MemberFacts) -> Iterable[str]:
    name = member.address if member.node is None else member.node
    if not member.reachable:
        yield f"{name} is not reachable: {member.failure or 'it says nothing'}"
    elif not member.ready:
        yield f"{name} is {(member.state or 'not_ready').replace('_', ' ')}"
    if member.config_digest not in (None, own.config_digest):
        yield f"{name} has other links or selectors than {own.node}"
