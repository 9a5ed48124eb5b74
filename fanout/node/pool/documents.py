"""Documents about the pool: what this node tells the other members, and what it shows of them over HTTP."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Final

from fanout.api.models import (
    PoolDocument,
    PoolMember,
    utc_from_ns,
)
from fanout.config import LinkConfig
from fanout.pool.convergence import Verdict
from fanout.pool.member_facts import MemberFacts
from fanout.pool.membership import AskFailure
from fanout.pool.pool_members import OtherMember
from fanout.selection import Selector

__all__ = ["config_digest", "pool_document"]

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


def _member(
    facts: MemberFacts | None, *, address: str | None, reachable: bool, failure: AskFailure | None, verdict: Verdict
) -> PoolMember:
    seen = {
        "address": address,
        "is_self": address is None,
        "reachable": reachable,
        "failure": None if failure is None else _FAILURES[failure],
    }
    if facts is None:
        return PoolMember.of(**seen)
    seen["url"] = None if address is None else _url(facts, address)
    if not reachable:
        return PoolMember.of(**seen, node=facts.node, version=facts.version, config_digest=facts.config_digest)
    return PoolMember.of(
        facts,
        **seen,
        ready=facts.state == "ready",
        digest_equal=verdict.equal,
        digest_equal_since=None if verdict.since_ns is None else utc_from_ns(verdict.since_ns),
        lag=facts.lag_s,
        copies_late_seconds=facts.copies_late_s,
        history_seconds=facts.history_s,
        history_used_ratio=facts.history_used,
    )


def _url(facts: MemberFacts, address: str) -> str | None:
    """Return the HTTP interface of a member. The host is the configured one: operators send a token there."""
    if facts.http_port is None:
        return None
    return f"{'https' if facts.http_tls else 'http'}://{address.rpartition(':')[0]}:{facts.http_port}"


def _reasons(member: PoolMember, own: MemberFacts) -> Iterable[str]:
    name = member.address if member.node is None else member.node
    if not member.reachable:
        yield f"{name} is not reachable: {member.failure or 'it says nothing'}"
    elif not member.ready:
        yield f"{name} is {(member.state or 'not_ready').replace('_', ' ')}"
    if member.config_digest not in (None, own.config_digest):
        yield f"{name} has other links or selectors than {own.node}"
