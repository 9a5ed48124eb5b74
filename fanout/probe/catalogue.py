"""Catalogue of the checks, in their order: the needs of each, and the meaning of its result for a link."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from fanout.probe import limits, retained, sessions, sets
from fanout.probe.ground import Ground
from fanout.probe.results import Result

__all__ = ["CHECKS", "CONNECT", "CONTROL", "SERVER_VERSION", "Check"]

CONNECT: Final = "connection"
"""Name of the check that all others need; the runner makes it."""
_BOTH: Final = (5, 4)
_FIVE: Final = (5,)


@dataclass(frozen=True, slots=True)
class Check:
    """One check."""

    name: str
    """Name in the table."""
    run: Callable[[Ground], Awaitable[Result]]
    """Function of the check."""
    passed: str
    """Meaning for a link when it passes."""
    otherwise: str
    """Meaning when it does not pass."""
    needs: tuple[str, ...] = ()
    """Checks that must have passed before."""
    versions: tuple[int, ...] = _BOTH
    """Protocol versions with the tested feature."""
    for_filter: bool = False
    """Whether it reads the given filter; it is skipped without one."""


SERVER_VERSION: Final = "$SYS version"
"""Name of the check whose text is the primary's name and version."""
CONTROL: Final = "control message"
"""Name of the check whether the user's own message comes back to it."""
_RETAINED: Final = "retained message"
_HASH: Final = "retained by #"
_LARGE: Final = "large set, QoS 0"
_SESSION: Final = "session kept"


def _limit(name: str, passed: str) -> Check:
    return Check(name, limits.limit_check(name), passed, "", versions=_FIVE)


def _flag(name: str, passed: str, otherwise: str) -> Check:
    return Check(name, limits.flag_check(name), passed, otherwise, versions=_FIVE)


CHECKS: Final = (
    _limit("Receive Maximum", "forwarded writes under way at a time"),
    _limit("Maximum QoS", "the highest useful qos of a selector"),
    _limit("Maximum Packet Size", "larger local writes cannot be forwarded"),
    _limit("Topic Alias Maximum", "nothing: a link publishes without aliases"),
    _limit("Server Keep Alive", "a link follows it"),
    _flag(
        "Retain Available",
        "there can be a retained set",
        "nothing is retained: there is no set to replicate, only live messages",
    ),
    _flag("Wildcard Subscription", "selectors may have wildcards", "selectors must name single topics"),
    _flag("Subscription Identifiers", "nothing: a link needs none", "nothing: a link needs none"),
    _flag("Shared Subscription", "nothing: a link uses none", "nothing: a link uses none"),
    Check(
        SERVER_VERSION,
        sets.check_server_fence,
        "the link's fence, which leaves nothing behind",
        "where it is not there the fence is a retained message of the link's own; where the connection is closed for"
        " it a link does not become ready",
    ),
    Check(
        "set of --filter",
        sets.check_read_set,
        "this set can be read, and PINGRESP comes behind it",
        "nothing shows that this set can be proved complete",
        for_filter=True,
    ),
    Check(
        CONTROL,
        retained.check_control_message,
        "marker and heartbeats: the strongest evidence, and a lag that is known",
        "no marker, no heartbeats: lag is unknown; let the link's user write below control_topic",
    ),
    Check(
        _RETAINED,
        retained.check_retained_message,
        "a selector for one topic gets its value",
        "there is nothing to take a snapshot of",
        needs=(CONTROL,),
    ),
    Check(
        _HASH,
        retained.check_wildcard_hash,
        "a selector with # gets the retained set",
        "a selector with # never gets the retained set: name single topics, or replicate live messages only",
        needs=(_RETAINED,),
    ),
    Check(
        "retained by +",
        retained.check_wildcard_plus,
        "a selector with + gets the retained set",
        "a selector with + never gets the retained set: name single topics, or replicate live messages only",
        needs=(_RETAINED,),
    ),
    Check(
        "only what matches",
        retained.check_only_matching,
        "what comes belongs to a selector",
        "a link ignores and counts what is outside its selectors",
        needs=(_RETAINED,),
    ),
    Check(
        "set again",
        retained.check_set_again,
        "audits and verification work inside a session",
        "no audits: what is cleared without a message stays; set audit_interval_s = 0",
        needs=(_RETAINED,),
    ),
    Check(
        "Retain Handling 2",
        retained.check_retain_handling,
        "behind a snapshot a selector gets its QoS without the set coming twice",
        "the set comes twice, the second time at the selector's QoS: use qos = 0",
        needs=(_RETAINED,),
        versions=_FIVE,
    ),
    Check(
        "RETAIN of updates",
        retained.check_retain_on_live,
        "live updates keep their flag, so new clients get the newest value",
        'live updates lose RETAIN, and the first value would stay: version = 4 with retain_policy = "keep" helps',
        needs=(_RETAINED,),
    ),
    Check(
        "control, bridge bit",
        retained.check_control_message_bridge,
        "the bridge bit does not cost the marker",
        "with the bridge bit there is no marker, no fence of the link's own and no heartbeat",
        needs=(CONTROL, "RETAIN of updates"),
        versions=(4,),
    ),
    Check(
        "No Local",
        retained.check_no_local,
        "forwarded writes do not come back",
        "what a link publishes comes back to it; its control messages are known by their topic",
        needs=(CONTROL,),
        versions=_FIVE,
    ),
    Check(
        "clear forwarded",
        retained.check_clear_forwarded,
        "a deleted topic disappears at once",
        "a deleted topic stays until the next audit: lower audit_interval_s",
        needs=(_RETAINED,),
    ),
    Check(
        "clear removes",
        retained.check_clear_removes,
        "a deleted topic is not in the next snapshot",
        "deleted topics come back with every snapshot",
        needs=(_RETAINED,),
    ),
    Check(
        "properties",
        retained.check_properties,
        "clients get them; stamps pass, so reports can be exact",
        "clients do not get them; stamps are lost, so reports give lower bounds",
        needs=(_RETAINED,),
        versions=_FIVE,
    ),
    Check(
        _LARGE,
        sets.check_large_set,
        "a snapshot of this size arrives whole",
        "snapshots are cut short, and the link will not be ready: use narrower selectors, or raise the primary's limit",
        needs=(_HASH,),
    ),
    Check(
        "SUBACK first",
        sets.check_suback,
        "a refused selector is known at once",
        "nothing: a link takes SUBACK where it comes",
        needs=(_HASH,),
    ),
    Check(
        "fence",
        sets.check_fence,
        "it comes behind a whole set: part of the evidence",
        "it does not prove that the set is whole",
        needs=(_HASH,),
    ),
    Check(
        "barrier",
        sets.check_barrier,
        "PINGRESP comes behind a whole set: part of the evidence",
        "PINGRESP does not prove that the set is whole",
        needs=(_HASH,),
    ),
    Check(
        "marker",
        sets.check_marker,
        'the strongest evidence: min_evidence = "marker" is possible',
        "the link's own message overtakes the set, or is lost: it does not prove that the set is whole",
        needs=(_HASH,),
    ),
    Check(
        "large set, QoS 1",
        sets.check_large_set_qos_1,
        "nothing: a link takes snapshots at QoS 0",
        "nothing: a link takes snapshots at QoS 0, for this reason",
        needs=(_HASH,),
    ),
    Check(
        _SESSION,
        sessions.check_session_present,
        "after a short loss of the connection the replica stays",
        "each loss of the connection begins a new epoch, with a snapshot",
        needs=(CONTROL,),
    ),
    Check(
        "messages kept",
        sessions.check_messages_kept,
        "what was published meanwhile follows",
        "what was published meanwhile is found by the verification only, if it is retained",
        needs=(_SESSION,),
    ),
    Check(
        "many messages kept",
        sessions.check_many_kept,
        "a longer loss of the connection costs nothing",
        "after a longer loss the verification finds a difference, and a new epoch begins",
        needs=(_SESSION,),
    ),
    Check(
        "expiry counted down",
        retained.check_expiry_counted_down,
        "a value lives here as long as at the primary",
        "after a snapshot a value lives here longer than at the primary, until the next audit",
        needs=(_RETAINED,),
        versions=_FIVE,
    ),
    Check(
        "expiry removes",
        retained.check_expiry_removes,
        "what has expired is in no snapshot",
        "what has expired comes again with the next snapshot",
        needs=(_RETAINED,),
        versions=_FIVE,
    ),
    Check(
        "retained count",
        retained.check_retained_count,
        "a set that comes short can be told by how much",
        "nothing tells how much is missing from a set that comes short",
    ),
)
"""The checks in order; those that publish nothing come first."""
