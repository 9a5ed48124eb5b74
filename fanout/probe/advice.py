"""Advice from a probe: the configuration of a link, as TOML that `fanout check` accepts.

Owns which settings follow from which results, and whether a link can replicate from the primary at all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from fanout.escaping import printable_json
from fanout.probe.results import Outcome, ProbeReport, VersionReport

__all__ = ["Advice", "advise"]

_LARGE: Final = "large set, QoS 0"
_WRONGLY: Final = ", and the evidence comes all the same: a link would take the part for the whole"
_NEEDED: Final = {
    "retained message": "there is no retained set to replicate",
    "retained by #": "filters with wildcards do not bring the retained set",
    _LARGE: "large retained sets do not arrive whole",
}
"""Checks that must pass, each with the text for its failure; each needs the one before."""
_SUBACK: Final = "SUBACK first"
"""The check of a packet that a link awaits in any place."""
_LATER: Final = ("fence", "barrier")
"""Checks of packets that a link awaits behind a whole set; one too early costs a second set and a wait."""
_MARKER: Final = "marker"
"""The check of a packet that a link also awaits where its own messages come back."""
_BARRIER: Final = "barrier"
_TWO_PASS: Final = "two-pass"
_SERVER_FENCE: Final = "$SYS version"
"""The check for the fence that needs no right to publish."""
_TWO_PASS_MEANS: Final = (
    'with min_evidence = "two-pass" only, without which the node is never ready: a set counts as complete when it was'
    " taken twice, each time until nothing new came for a while, and brought the same topics; one that is cut short"
    " alike each time passes, too"
)
_SESSION_EXPIRY_S: Final = 300
"""Default of `session_expiry_s` of a link."""
_AUDIT_OFTEN_S: Final = 300.0
_QUIET_S: Final = 5.0
"""Default of `snapshot_quiet_s` of a link."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice for the configuration."""

    evidence: str | None
    """Evidence of a link with these settings: `marker`, `barrier`, or the weaker `two-pass`; None when it would
    not become ready."""
    reason: str
    """The reason; one sentence without a full stop."""
    toml: str
    """A whole configuration of a secondary."""

    @property
    def can_replicate(self) -> bool:
        """Whether a link with these settings becomes ready."""
        return self.evidence is not None

    @property
    def is_proved(self) -> bool:
        """Whether a packet behind a set proves it complete."""
        return self.evidence in (_MARKER, _BARRIER)


def advise(report: ProbeReport, *, read_filter: str | None, keys: Mapping[str, str | bool]) -> Advice:
    """Return the settings for a link to a primary.

    Args:
        report: The probe.
        read_filter: The filter that the link would select; None for all topics.
        keys: Keys of the link that are known already, such as `username`.
    """
    best = min(report.versions, key=_rank)
    against = _reason_against(best)
    evidence = None if against else _evidence(best)
    if against is not None:
        reason = against
    elif evidence == _TWO_PASS:
        reason = f"a link can replicate from it over {_version_text(best)} {_TWO_PASS_MEANS} ({_doubt(best)})"
    else:
        reason = f"a link can replicate from it over {_version_text(best)}, with the evidence {evidence}"
    lines = [
        "[node]",
        'id = "edge-1"  # unique among the nodes of this primary',
        "",
        "[server]",
        "",
        "[[link]]",
        'name = "primary"',
        f"primary = {_quoted(report.address)}",
        *(f"{key} = {_quoted(value)}" for key, value in keys.items()),
        *_link_keys(best, evidence or _BARRIER),
        "",
        "[[link.selector]]",
        f"filter = {_quoted(read_filter or '#')}",
        *_selector_keys(best),
    ]
    return Advice(evidence, reason, "\n".join(lines) + "\n")


def _quoted(value: str | bool) -> str:
    return printable_json(json.dumps(value, ensure_ascii=False))


def _rank(report: VersionReport) -> int:
    """Return the rank of a version for a link; the best is lowest."""
    if _reason_against(report) is None:
        return 1 if _evidence(report) == _TWO_PASS else 0
    return 2 if report.has_passed("connection") else 3


def _reason_against(report: VersionReport) -> str | None:
    """Return why a link cannot replicate with this version; None when it can."""
    if not report.has_passed("connection"):
        return f"the primary does not accept {_version_text(report)}"
    if (fence := report.result("$SYS version")) is not None and fence.outcome is Outcome.FAILED:
        return f"a link cannot begin an epoch ({fence.seen})"
    if _may_not_publish(report):
        if report.has_passed("set of --filter"):
            return None
        may = report.writable_prefix
        remedy = f"give --prefix {may}, below which it may" if may is not None else "give --prefix where it may"
        return (
            f"this user may not publish below --prefix, so little can be tested: {remedy}, or --filter with the"
            " retained set that the link is to replicate"
        )
    for name, problem in _NEEDED.items():
        result = report.result(name)
        if result is not None and result.outcome is not Outcome.PASSED:
            wrongly = name == _LARGE and all(_comes(report, evidence) for evidence in (*_LATER, _MARKER))
            return f"{problem} ({result.seen})" + (_WRONGLY if wrongly else "")
    if _outcome(report, "set again") is Outcome.FAILED:
        return "the primary sends its retained messages once only, so that no set can be taken twice"
    if _evidence(report) is None:
        lost = next(one for one in (_SUBACK, *_LATER, _MARKER) if _is_lost(report, one))
        result = report.result(lost)
        return f"a link awaits behind every set what does not come there ({lost}: {result.seen if result else '-'})"
    if report.version == 5 and not report.has_passed("RETAIN of updates"):
        return "over MQTT 5 the primary does not keep RETAIN as published"
    return None


def _evidence(report: VersionReport) -> str | None:
    return _evidence_with(report, keeps=_keeps(report))


def _evidence_with(report: VersionReport, *, keeps: bool) -> str | None:
    """Return the evidence of a link; None when it waits for a packet that never comes.

    Args:
        report: The probe of the version.
        keeps: Whether its connection over MQTT 3.1.1 is without the bridge bit.
    """
    returns = _returns(report, keeps=keeps)
    if not returns and not report.has_passed(_SERVER_FENCE):
        return _TWO_PASS
    if _may_not_publish(report):
        return _BARRIER
    if any(_is_lost(report, one) for one in (_SUBACK, *_LATER, *((_MARKER,) if returns else ()))):
        return None
    if not report.has_passed(*_LATER):
        return _TWO_PASS
    return _MARKER if returns and report.has_passed(_MARKER) else _BARRIER


def _keeps(report: VersionReport) -> bool:
    """Tell whether a link over MQTT 3.1.1 must treat every live message as retained."""
    if report.version == 5:
        return False
    if _outcome(report, "RETAIN of updates") is Outcome.FAILED:
        return True
    # The bridge bit may cost heartbeats, the marker and a fence of the link's own; nothing else can prove a set then.
    proved = _evidence_with(report, keeps=False) in (_MARKER, _BARRIER)
    costs = _outcome(report, "control, bridge bit") is Outcome.FAILED
    return costs and not proved and _evidence_with(report, keeps=True) is not None


def _returns(report: VersionReport, *, keeps: bool) -> bool:
    """Tell whether the link's own messages come back to it: markers, heartbeats and its own fence."""
    bridged = report.version == 4 and not keeps
    costs = bridged and _outcome(report, "control, bridge bit") is Outcome.FAILED
    return not _may_not_publish(report) and not costs


def _may_not_publish(report: VersionReport) -> bool:
    return any(_outcome(report, name) is Outcome.NOT_PERMITTED for name in ("control message", "retained message"))


def _is_lost(report: VersionReport, what: str) -> bool:
    """Tell whether a packet was absent in a round in which it was not behind a whole set."""
    result = report.result(what)
    return result is None or (result.outcome is not Outcome.PASSED and result.figure is None)


def _doubt(report: VersionReport) -> str:
    """Return the reason why nothing proves a set complete."""
    if not _returns(report, keeps=_keeps(report)) and not report.has_passed(_SERVER_FENCE):
        return "there is no retained message that could be asked for behind a set"
    return next(
        f"{one}: {result.seen}"
        for one in _LATER
        if (result := report.result(one)) is not None and result.outcome is not Outcome.PASSED
    )


def _link_keys(report: VersionReport, evidence: str) -> Iterator[str]:
    yield f"version = {report.version}"
    if report.version == 4:
        yield f'retain_policy = "{"keep" if _keeps(report) else "bridge"}"'
        if _keeps(report):
            yield "# Every live message counts as retained: select topics on which all messages are."
    yield f'min_evidence = "{evidence}"'
    if evidence == _TWO_PASS:
        yield "# No proof: a set that is cut short alike in two passes counts as complete."
    session = report.result("session kept")
    if session is not None and session.figure is not None and session.figure < _SESSION_EXPIRY_S:
        yield f"session_expiry_s = {session.figure:.0f}  # the primary keeps it no longer"
    large = report.result(_LARGE)
    if large is not None and large.figure is not None and 3 * large.figure > _QUIET_S:
        yield f"snapshot_quiet_s = {math.ceil(3 * large.figure):.1f}  # the primary makes pauses within a set"
    if _outcome(report, "set again") is Outcome.FAILED:
        yield "audit_interval_s = 0  # a second SUBSCRIBE brings nothing, so there can be no audit"
        yield "sample_topics = 0  # nor can a sample call for one"
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
    if _outcome(report, "retained by #") in (Outcome.FAILED, Outcome.NOT_AVAILABLE, Outcome.NOTHING_TO_TEST):
        yield "live_only = true  # no retained set comes for a filter with wildcards"


def _comes(report: VersionReport, evidence: str) -> bool:
    """Tell whether a packet came in a round in which it was not behind a whole set."""
    result = report.result(evidence)
    return result is not None and result.outcome is Outcome.FAILED and result.figure is not None


def _outcome(report: VersionReport, check: str) -> Outcome | None:
    result = report.result(check)
    return None if result is None else result.outcome


def _version_text(report: VersionReport) -> str:
    return "MQTT 5" if report.version == 5 else "MQTT 3.1.1"
