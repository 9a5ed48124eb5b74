"""From what a probe found to the configuration of a link, as TOML that `fanout check` accepts.

Owns which settings follow from which results, and whether a link can replicate from the primary at all. It
must not know how anything is tested.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from fanout.probe.results import Outcome, Report, VersionReport

__all__ = ["Advice", "advise"]

_LARGE: Final = "large set, QoS 0"
_WRONGLY: Final = ", and the evidence comes all the same: a link would take the part for the whole"
_NEEDED: Final = {
    "retained message": "there is no retained set to replicate",
    "retained by #": "filters with wildcards do not bring the retained set",
    _LARGE: "large retained sets do not arrive whole",
}
"""What must pass, each with what is said when it does not; each needs the one before."""
_EVIDENCE: Final = ("marker", "barrier", "fence")
_SESSION_EXPIRY_S: Final = 300
"""What a link asks for unless it is configured."""
_AUDIT_OFTEN_S: Final = 300.0
_QUIET_S: Final = 5.0
"""`snapshot_quiet_s` unless it is configured."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to configure."""

    can_replicate: bool
    """Whether a link gets retained sets from this primary and can prove them complete."""
    reason: str
    """Why, or why not; one sentence without a full stop."""
    toml: str
    """A whole configuration of a secondary."""


def advise(report: Report, *, read_filter: str | None, keys: Mapping[str, str]) -> Advice:
    """Return the settings for a link to a primary.

    Args:
        report: What was found.
        read_filter: The filter that the link would select; None for all topics.
        keys: Keys of the link that are known already, such as `username`.
    """
    usable = [one for one in report.versions if _reason_against(one) is None]
    best = usable[0] if usable else report.versions[0]
    if not usable:
        accepted = [one for one in report.versions if one.has_passed("connection")]
        best = accepted[0] if accepted else best
    against = _reason_against(best)
    reason = against or f"a link can replicate from it over {_version_text(best)}, with the evidence {_evidence(best)}"
    lines = [
        "[node]",
        'id = "edge-1"  # unique among the nodes of this primary',
        "",
        "[server]",
        "",
        "[[link]]",
        'name = "primary"',
        f"primary = {json.dumps(report.address)}",
        *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in keys.items()),
        *_link_keys(best),
        "",
        "[[link.selector]]",
        f"filter = {json.dumps(read_filter or '#', ensure_ascii=False)}",
        *_selector_keys(best),
    ]
    return Advice(against is None, reason, "\n".join(lines) + "\n")


def _reason_against(report: VersionReport) -> str | None:
    """Return why a link cannot replicate with this version; None when it can."""
    if not report.has_passed("connection"):
        return f"the primary does not accept {_version_text(report)}"
    if (fence := report.result("$SYS version")) is not None and fence.outcome is Outcome.FAILED:
        return f"a link cannot begin an epoch ({fence.seen})"
    for name in ("control message", "retained message"):
        if _outcome(report, name) is Outcome.NOT_PERMITTED:
            if report.has_passed("set of --filter"):
                return None
            return (
                "this user may not publish, so little can be tested: give --prefix where it may, or --filter with the"
                " retained set that the link is to replicate"
            )
    for name, problem in _NEEDED.items():
        result = report.result(name)
        if result is not None and result.outcome is not Outcome.PASSED:
            wrongly = name == _LARGE and all(_comes(report, evidence) for evidence in _EVIDENCE)
            return f"{problem} ({result.seen})" + (_WRONGLY if wrongly else "")
    if not _proofs(report, keeps=False) and not (report.version == 4 and _proofs(report, keeps=True)):
        return "nothing that the primary sends comes reliably behind a retained set, so none is proved complete"
    if report.version == 5 and not report.has_passed("RETAIN of updates"):
        return "over MQTT 5 the primary does not keep RETAIN as published"
    return None


def _proofs(report: VersionReport, *, keeps: bool) -> set[str]:
    """Return what comes behind a whole set, of what a link awaits with this retain policy."""
    proofs = {name for name in _EVIDENCE if report.has_passed(name)}
    if report.version == 4 and not keeps and _outcome(report, "control, bridge bit") is Outcome.FAILED:
        # A message of its own does not come back, so there is no marker, and a fence only where the primary has one.
        proofs -= {"marker"} if report.has_passed("$SYS version") else {"marker", "fence"}
    return proofs


def _keeps(report: VersionReport) -> bool:
    """Say whether a link over MQTT 3.1.1 must take every live message for a retained one."""
    if _outcome(report, "RETAIN of updates") is Outcome.FAILED:
        return True
    return not _proofs(report, keeps=False) and bool(_proofs(report, keeps=True))


def _evidence(report: VersionReport) -> str:
    keeps = report.version == 4 and _keeps(report)
    return "marker" if "marker" in _proofs(report, keeps=keeps) else "barrier"


def _link_keys(report: VersionReport) -> Iterator[str]:
    yield f"version = {report.version}"
    if report.version == 4:
        yield f'retain_policy = "{"keep" if _keeps(report) else "bridge"}"'
        if _keeps(report):
            yield "# Every live message counts as retained: select topics on which all messages are."
    yield f'min_evidence = "{_evidence(report)}"'
    session = report.result("session kept")
    if session is not None and session.figure is not None and session.figure < _SESSION_EXPIRY_S:
        yield f"session_expiry_s = {session.figure:.0f}  # the primary keeps it no longer"
    large = report.result(_LARGE)
    if large is not None and large.figure is not None and 3 * large.figure > _QUIET_S:
        yield f"snapshot_quiet_s = {math.ceil(3 * large.figure):.1f}  # the primary makes pauses within a set"
    if _outcome(report, "set again") is Outcome.FAILED:
        yield "audit_interval_s = 0  # a second SUBSCRIBE brings nothing, so there can be no audit"
    elif _outcome(report, "clear forwarded") is Outcome.FAILED:
        yield f"audit_interval_s = {_AUDIT_OFTEN_S}  # subscribers are not told of deleted topics; audits find them"
    if _outcome(report, "control message") is Outcome.NOT_PERMITTED:
        yield "# Markers and heartbeats need the right to write and read below control_topic."


def _selector_keys(report: VersionReport) -> Iterator[str]:
    highest = report.result("Maximum QoS")
    qos = 1 if highest is None or highest.figure is None else min(1, int(highest.figure))
    if report.version == 4 or _outcome(report, "Retain Handling 2") is Outcome.FAILED:
        qos = 0
    yield f"qos = {qos}"
    if _outcome(report, "retained by #") in (Outcome.FAILED, Outcome.NOT_AVAILABLE):
        yield "live_only = true  # no retained set comes for a filter with wildcards"


def _comes(report: VersionReport, evidence: str) -> bool:
    """Say whether it came at all, in a round in which it was not behind a whole set."""
    result = report.result(evidence)
    return result is not None and result.outcome is Outcome.FAILED and result.figure is not None


def _outcome(report: VersionReport, check: str) -> Outcome | None:
    result = report.result(check)
    return None if result is None else result.outcome


def _version_text(report: VersionReport) -> str:
    return "MQTT 5" if report.version == 5 else "MQTT 3.1.1"
